"""The execution of an engine, also as one CUDA graph: outputs, debug tensors, latency, and its inspector.

Debug tensors are those between the kernels of an engine, with every element type. Polygraphy's own listener drops BF16,
FP8 and INT8. TensorRT calls a listener while an execution is enqueued. The memory of the tensors belongs to TensorRT
again afterwards, so the listener copies them.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from trt_tui.backends.tensorrt.package import TensorRTLog, translate_execution_error
from trt_tui.core.precision import Precision
from trt_tui.core.runner import DebugTensor, FixedShape, Profile, TensorInfo
from trt_tui.errors import InputError, TrtTuiError

_TENSOR_TYPES: dict[str, tuple[np.dtype, Precision]] = {
    "FLOAT": (np.dtype(np.float32), Precision.FP32), "HALF": (np.dtype(np.float16), Precision.FP16),
    "BF16": (np.dtype(ml_dtypes.bfloat16), Precision.BF16),
    "FP8": (np.dtype(ml_dtypes.float8_e4m3fn), Precision.FP8), "INT8": (np.dtype(np.int8), Precision.INT8)}
"""The element types and precisions of debug tensors, by TensorRT's name of the type. Other types represent no float
value."""


def make_debug_listener(trt: Any, tensor_names: Container[str]) -> Any:
    """Creates a debug listener that copies the named debug tensors of an execution.

    After the execution, its ``found`` contains each `DebugTensor` by name. Its ``failed`` is the reason why a tensor
    could not be copied, or "".

    Args:
        trt: The TensorRT module.
        tensor_names: The names of the tensors to copy.
    """
    from polygraphy import cuda

    class Listener(trt.IDebugListener):  # type: ignore[misc]
        """A TensorRT debug listener that copies each named tensor it receives."""

        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)
            self.found: dict[str, DebugTensor] = {}
            self.failed = ""

        def process_debug_tensor(self, addr: Any, location: Any, type: Any, shape: Any, name: str, stream: Any) -> None:
            type_and_precision = _TENSOR_TYPES.get(type.name)
            if name not in tensor_names or type_and_precision is None:
                return
            try:
                self.found[name] = self._copy_debug_tensor(_read_pointer_address(addr), location, *type_and_precision,
                                                           tuple(shape), int(stream))
            except Exception as error:  # no exception may pass through TensorRT
                self.failed = self.failed or f"{name}: {error}"

        def _copy_debug_tensor(self, address: int, location: Any, dtype: np.dtype, precision: Precision,
                               shape: tuple[int, ...], stream: int) -> DebugTensor:
            raw = np.empty(math.prod(shape), dtype)
            if location == trt.TensorLocation.HOST:
                ctypes.memmove(raw.ctypes.data, address, raw.nbytes)
            else:
                cuda.wrapper().stream_synchronize(stream)
                cuda.wrapper().memcpy(raw.ctypes.data, address, raw.nbytes, cuda.MemcpyKind.DeviceToHost, stream)
                cuda.wrapper().stream_synchronize(stream)
            return DebugTensor(raw.astype(np.float32).reshape(shape), precision)

    return Listener()


def _read_pointer_address(pointer: Any) -> int:
    """Returns the address in a pointer from the Python bindings, which is a number or a capsule."""
    if isinstance(pointer, int):
        return pointer
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return int(api.PyCapsule_GetPointer(pointer, api.PyCapsule_GetName(pointer)) or 0)


_RELAXED_CAPTURE_MODE = 2  # cudaStreamCaptureModeRelaxed: calls of other threads are not captured

_FLOAT_TYPES = {"float32": Precision.FP32, "float16": Precision.FP16}


class CudaGraph:
    """A captured CUDA graph: the work of a CUDA stream, which can be launched again with the same addresses.

    Args:
        stream: The handle of a stream other than the default stream.
        enqueue: A function that enqueues an execution on the stream. It returns False if that fails.

    Raises:
        RuntimeError: The CUDA runtime cannot capture the work. The message names the failed call.
    """

    def __init__(self, stream: int, enqueue: Callable[[], bool]) -> None:
        from polygraphy import cuda

        self._runtime, self._stream = cuda.wrapper().handle, ctypes.c_void_p(stream)
        self._executable_graph = ctypes.c_void_p()
        graph = ctypes.c_void_p()
        self._call_cuda_runtime("cudaStreamBeginCapture", self._stream, _RELAXED_CAPTURE_MODE)
        try:
            enqueued = enqueue()
        finally:
            end_status = self._runtime.cudaStreamEndCapture(self._stream, ctypes.byref(graph))
        if not enqueued or end_status:
            raise RuntimeError("the engine's run cannot be captured"
                               + (f" (CUDA error {end_status})" if end_status else ""))
        try:
            self._call_cuda_runtime("cudaGraphInstantiateWithFlags", ctypes.byref(self._executable_graph), graph,
                                    ctypes.c_ulonglong(0))
        finally:
            self._runtime.cudaGraphDestroy(graph)

    def launch_graph(self) -> None:
        """Enqueues the captured work on its stream.

        Raises:
            RuntimeError: The CUDA runtime refuses the launch.
        """
        self._call_cuda_runtime("cudaGraphLaunch", self._executable_graph, self._stream)

    def close(self) -> None:
        self._runtime.cudaGraphExecDestroy(self._executable_graph)

    def _call_cuda_runtime(self, function_name: str, *arguments: object) -> None:
        if status := self._runtime[function_name](*arguments):
            raise RuntimeError(f"{function_name}: CUDA error {status}")


class TensorRTRunner:
    """A loaded engine with its execution context, as a `trt_tui.core.runner.EngineRunner`."""

    def __init__(self, trt: Any, engine: Any, log: TensorRTLog) -> None:
        self._trt = trt
        self._engine = engine
        self._log = log
        self._activate_execution_context()
        infos = [_read_tensor_info(engine, engine.get_tensor_name(i)) for i in range(engine.num_io_tensors)]
        modes = [engine.get_tensor_mode(info.name) for info in infos]
        self.inputs = tuple(i for i, mode in zip(infos, modes, strict=True) if mode == trt.TensorIOMode.INPUT)
        self.outputs = tuple(i for i, mode in zip(infos, modes, strict=True) if mode == trt.TensorIOMode.OUTPUT)
        memory = "device_memory_size_v2" if hasattr(engine, "device_memory_size_v2") else "device_memory_size"
        self.device_memory: int | None = int(getattr(engine, memory))
        count = int(engine.num_optimization_profiles)
        self.profiles: tuple[Profile, ...] = tuple(
            {info.name: _read_profile_shapes(engine, info.name, index) for info in self.inputs}
            for index in range(count if count > 1 else 0))
        self._pinned_profile: int | None = None
        self._device_inputs: tuple[tuple[int, ...], list[np.ndarray], dict[str, np.ndarray]] | None = None
        self._cuda_graph: CudaGraph | None = None

    def _activate_execution_context(self) -> None:
        from polygraphy.backend.trt import TrtRunner

        self._runner, self._active_profile = TrtRunner(self._engine), 0
        with self._translate_errors():
            _activate_polygraphy_runner(self._runner)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Converts each error of an execution in the ``with`` block, with the messages that TensorRT has printed."""
        with self._log.collect_messages(None) as messages:
            try:
                yield
            except Exception as error:
                raise translate_execution_error(messages, error) from None

    def run(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        names = [info.name for info in self.outputs] if fetch is None else list(fetch)
        self._release_device_inputs()
        with self._translate_errors():
            engine_feed = self._cast_to_engine_types(feed)
            self._activate_matching_profile(self._runner, engine_feed)
            results = self._runner.infer(engine_feed, check_inputs=False)
        return {name: np.array(results[name]) for name in names}

    def latency_ms(self, feed: Mapping[str, np.ndarray]) -> float:
        """Returns the milliseconds from the enqueueing of an execution to its end on the stream."""
        self._copy_inputs_to_device(feed)
        context, stream = self._runner.context, self._runner.stream
        with self._translate_errors():
            start = time.perf_counter()
            enqueued = context.execute_async_v3(stream.ptr)
            stream.synchronize()
            duration_ms = (time.perf_counter() - start) * 1e3
            if not enqueued:
                raise RuntimeError("it could not be enqueued")
        return duration_ms

    def graph_latency_ms(self, feed: Mapping[str, np.ndarray]) -> float:
        """Returns the milliseconds of an execution that is launched as one CUDA graph."""
        self._copy_inputs_to_device(feed)
        context, stream = self._runner.context, self._runner.stream
        with self._translate_errors():
            if self._cuda_graph is None:
                self._cuda_graph = CudaGraph(stream.ptr, lambda: bool(context.execute_async_v3(stream.ptr)))
            start = time.perf_counter()
            self._cuda_graph.launch_graph()
            stream.synchronize()
            return (time.perf_counter() - start) * 1e3

    def layer_times_ms(self, feed: Mapping[str, np.ndarray], run_count: int) -> dict[str, float]:
        """Returns the mean milliseconds of each engine layer, by name, over ``run_count`` executions."""
        from polygraphy.backend.trt import TrtRunner

        profiler = _make_profiler(self._trt)
        engine_feed = self._cast_to_engine_types(feed)
        self._release_device_inputs()

        def make_context_with_layer_profiler() -> Any:
            context = self._engine.create_execution_context()
            if context is None:
                raise RuntimeError("there is no execution context")
            context.profiler = profiler
            return context

        # A context holds its optimization profile and the memory of activations. The context with the profiler
        # therefore replaces the other context. Only its runner owns it, so both are freed together.
        _deactivate_polygraphy_runner(self._runner)
        runner = TrtRunner(make_context_with_layer_profiler)
        try:
            with self._translate_errors():
                _activate_polygraphy_runner(runner)
                try:
                    self._active_profile = 0
                    self._activate_matching_profile(runner, engine_feed)
                    runner.infer(engine_feed, check_inputs=False)
                    profiler.times.clear()
                    for _ in range(run_count):
                        runner.infer(engine_feed, check_inputs=False)
                finally:
                    _deactivate_polygraphy_runner(runner)
        finally:
            self._activate_execution_context()
        return {name: total / run_count for name, total in profiler.times.items()}

    def read_debug_tensors(self, feed: Mapping[str, np.ndarray], names: Container[str]) -> dict[str, DebugTensor]:
        """Executes the engine once. Returns the named float outputs and debug tensors."""
        context = self._runner.context
        debug_listener = make_debug_listener(self._trt, names)
        self._release_device_inputs()
        with self._translate_errors():
            if not context.set_debug_listener(debug_listener):
                raise RuntimeError("the engine accepts no listener")
            context.unfused_tensors_debug_state = True
            try:
                engine_feed = self._cast_to_engine_types(feed)
                self._activate_matching_profile(self._runner, engine_feed)
                outputs = self._runner.infer(engine_feed, check_inputs=False)
            finally:
                context.unfused_tensors_debug_state = False
        if debug_listener.failed:
            raise TrtTuiError("the debug tensors of the engine could not be read", debug_listener.failed, "")
        arrays = {info.name: np.array(outputs[info.name]) for info in self.outputs if info.name in names}
        return {**debug_listener.found, **{
            name: DebugTensor(array.astype(np.float32), _FLOAT_TYPES[array.dtype.name])
            for name, array in arrays.items() if array.dtype.name in _FLOAT_TYPES}}

    def inspect(self) -> str:
        """Returns the JSON of the engine inspector, with all tensor types and formats."""
        inspector = self._engine.create_engine_inspector()
        context = self._runner.context
        for info in self.inputs:  # the inspector reports types and formats only if every shape is set
            if -1 in tuple(context.get_tensor_shape(info.name)):
                context.set_input_shape(info.name,
                                        self._engine.get_tensor_profile_shape(info.name, self._active_profile)[1])
        inspector.execution_context = context
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def _activate_matching_profile(self, runner: Any, engine_feed: Mapping[str, np.ndarray]) -> None:
        """Activates the selected optimization profile, or the first profile that matches the shapes of a feed.

        If no profile matches, TensorRT reports the error.
        """
        def fits_profile(profile: Profile) -> bool:
            return all(low <= size <= high for name, (min_shape, _, max_shape) in profile.items()
                       for low, size, high in zip(min_shape, engine_feed[name].shape, max_shape, strict=False))

        matching_indices = (index for index, candidate in enumerate(self.profiles) if fits_profile(candidate))
        chosen = self._pinned_profile if self._pinned_profile is not None else next(matching_indices,
                                                                                    self._active_profile)
        if chosen != self._active_profile:
            runner.set_profile(chosen)
            runner.stream.synchronize()
            self._active_profile = chosen

    def select_profile(self, index: int | None) -> None:
        self._release_device_inputs()
        self._pinned_profile = index

    def _cast_to_engine_types(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a feed in the input types of the engine. Parsers before TensorRT 10 convert INT64 to INT32."""
        engine_feed = {}
        for info in self.inputs:
            array = feed[info.name]
            if array.dtype != info.dtype:
                with np.errstate(over="ignore"):
                    cast = array.astype(info.dtype)
                if array.dtype.kind in "iu" and not np.array_equal(cast, array):
                    raise InputError(f"input {info.name} does not fit the engine",
                                     f"the engine takes {info.dtype}, and a value is out of its range",
                                     "Check the data.")
                array = cast
            engine_feed[info.name] = np.asarray(array, order="C")
        return engine_feed

    def _copy_inputs_to_device(self, feed: Mapping[str, np.ndarray]) -> None:
        """Copies the inputs of a feed to the device and sets the addresses of the context, unless this feed is already
        there."""
        key = tuple(id(array) for array in feed.values())
        if self._device_inputs is not None and self._device_inputs[0] == key:
            return
        engine_feed = self._cast_to_engine_types(feed)
        self._release_device_inputs()
        self._activate_matching_profile(self._runner, engine_feed)
        self._runner.infer(engine_feed, check_inputs=False, copy_outputs_to_host=False)
        self._device_inputs = (key, list(feed.values()), engine_feed)  # the context may read an input from host memory

    def _release_device_inputs(self) -> None:
        """Releases the inputs on the device and the CUDA graph that reads them."""
        self._device_inputs = None
        if self._cuda_graph is not None:
            self._cuda_graph.close()
            self._cuda_graph = None

    def close(self) -> None:
        """Frees the execution context, its buffers and the engine."""
        self._release_device_inputs()
        if self._runner is not None:
            _deactivate_polygraphy_runner(self._runner)
        self._runner = self._engine = None

    def __enter__(self) -> TensorRTRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _activate_polygraphy_runner(runner: Any) -> None:
    """Activates a runner of Polygraphy without debug tensors.

    Polygraphy would copy all debug tensors in every execution, which would distort timings.
    """
    runner.activate()
    if hasattr(runner.context, "set_all_tensors_debug_state"):
        runner.context.set_all_tensors_debug_state(False)


def _deactivate_polygraphy_runner(runner: Any) -> None:
    """Deactivates a runner of Polygraphy and frees its output buffers. Polygraphy itself frees only the input buffers.
    """
    if not runner.is_active:
        return
    for buffer in getattr(getattr(runner, "output_allocator", None), "buffers", {}).values():
        if hasattr(buffer, "free"):
            buffer.free()
    runner.deactivate()


def _read_profile_shapes(engine: Any, input_name: str, profile_index: int) -> tuple[FixedShape, FixedShape, FixedShape]:
    min_shape, opt_shape, max_shape = (tuple(map(int, shape))
                                       for shape in engine.get_tensor_profile_shape(input_name, profile_index))
    return min_shape, opt_shape, max_shape


def _read_tensor_info(engine: Any, tensor_name: str) -> TensorInfo:
    from polygraphy.datatype import DataType

    dtype = DataType.to_dtype(DataType.from_dtype(engine.get_tensor_dtype(tensor_name), "tensorrt"), "numpy")
    return TensorInfo(tensor_name, np.dtype(dtype), tuple(engine.get_tensor_shape(tensor_name)))


def _make_profiler(trt: Any) -> Any:
    class Profiler(trt.IProfiler):  # type: ignore[misc]
        """A TensorRT profiler that sums the time of each engine layer."""

        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times[layer_name] = self.times.get(layer_name, 0.0) + ms

    return Profiler()
