"""Running an engine, timing it, and asking its inspector."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from trt_tui.backends.tensorrt.cuda_graph import CudaGraph
from trt_tui.backends.tensorrt.debug import listener
from trt_tui.backends.tensorrt.failures import run_error
from trt_tui.backends.tensorrt.log import Log
from trt_tui.core.precision import Precision
from trt_tui.core.runner import FixedShape, Handed, Profile, TensorInfo
from trt_tui.errors import InputError, TrtTuiError

_FLOATS = {"float32": Precision.FP32, "float16": Precision.FP16}


class TensorRTRunner:
    """One engine with its execution context; see `trt_tui.core.runner.EngineRunner`."""

    def __init__(self, trt: Any, engine: Any, log: Log) -> None:
        self._trt = trt
        self._engine = engine
        self._log = log
        self._activate()
        infos = [_tensor_info(engine, engine.get_tensor_name(i)) for i in range(engine.num_io_tensors)]
        modes = [engine.get_tensor_mode(info.name) for info in infos]
        self.inputs = tuple(i for i, mode in zip(infos, modes, strict=True) if mode == trt.TensorIOMode.INPUT)
        self.outputs = tuple(i for i, mode in zip(infos, modes, strict=True) if mode == trt.TensorIOMode.OUTPUT)
        memory = "device_memory_size_v2" if hasattr(engine, "device_memory_size_v2") else "device_memory_size"
        self.device_memory: int | None = int(getattr(engine, memory))
        count = int(engine.num_optimization_profiles)
        self.profiles: tuple[Profile, ...] = tuple(
            {info.name: _shapes(engine, info.name, index) for info in self.inputs}
            for index in range(count if count > 1 else 0))
        self._pinned: int | None = None
        self._placed: tuple[tuple[int, ...], list[np.ndarray], dict[str, np.ndarray]] | None = None
        self._graph: CudaGraph | None = None

    def _activate(self) -> None:
        """Makes the execution context of runs."""
        from polygraphy.backend.trt import TrtRunner

        self._runner, self._profile = TrtRunner(self._engine), 0
        with self._log.collecting(None) as said:
            try:
                _begin(self._runner)
            except Exception as error:
                raise run_error(said, error) from None

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Runs once; see `trt_tui.core.runner.Runner`."""
        names = [info.name for info in self.outputs] if fetch is None else list(fetch)
        self._let_go()
        with self._log.collecting(None) as said:
            try:
                fitted = self._fitted(feeds)
                self._choose(self._runner, fitted)
                found = self._runner.infer(fitted, check_inputs=False)
            except Exception as error:
                raise run_error(said, error) from None
        return {name: np.array(found[name]) for name in names}

    def latency_ms(self, feeds: Mapping[str, np.ndarray]) -> float:
        """Milliseconds from enqueueing to the end on the stream; see `trt_tui.core.runner.EngineRunner`."""
        self._place(feeds)
        context, stream = self._runner.context, self._runner.stream
        with self._log.collecting(None) as said:
            before = time.perf_counter()
            done = context.execute_async_v3(stream.ptr)
            stream.synchronize()
            taken = (time.perf_counter() - before) * 1e3
        if not done:
            raise run_error(said, RuntimeError("it could not be enqueued"))
        return taken

    def graph_latency_ms(self, feeds: Mapping[str, np.ndarray]) -> float:
        """The same of a run that is one CUDA graph; see `trt_tui.core.runner.EngineRunner`."""
        self._place(feeds)
        context, stream = self._runner.context, self._runner.stream
        with self._log.collecting(None) as said:
            try:
                if self._graph is None:
                    self._graph = CudaGraph(stream.ptr, lambda: bool(context.execute_async_v3(stream.ptr)))
                before = time.perf_counter()
                self._graph.launch()
                stream.synchronize()
            except Exception as error:
                raise run_error(said, error) from None
            return (time.perf_counter() - before) * 1e3

    def layer_times_ms(self, feeds: Mapping[str, np.ndarray], runs: int) -> dict[str, float]:
        """Mean milliseconds by engine layer; see `trt_tui.core.runner.EngineRunner`."""
        from polygraphy.backend.trt import TrtRunner

        profiler = _profiler(self._trt)
        fitted = self._fitted(feeds)
        self._let_go()

        def profiled() -> Any:
            context = self._engine.create_execution_context()
            if context is None:
                raise RuntimeError("there is no execution context")
            context.profiler = profiler
            return context

        # A context holds its optimization profile and the memory of activations. The profiled one therefore replaces
        # the other; it belongs to its runner only, and is freed with that.
        _end(self._runner)
        runner = TrtRunner(profiled)
        try:
            with self._log.collecting(None) as said:
                try:
                    _begin(runner)
                    try:
                        self._profile = 0
                        self._choose(runner, fitted)
                        runner.infer(fitted, check_inputs=False)
                        profiler.times.clear()
                        for _ in range(runs):
                            runner.infer(fitted, check_inputs=False)
                    finally:
                        _end(runner)
                except Exception as error:
                    raise run_error(said, error) from None
        finally:
            self._activate()
        return {name: total / runs for name, total in profiler.times.items()}

    def handed_on(self, feeds: Mapping[str, np.ndarray], names: Container[str]) -> dict[str, Handed]:
        """What kernels hand on to each other; see `trt_tui.core.runner.EngineRunner`."""
        context = self._runner.context
        heard = listener(self._trt, names)
        self._let_go()
        with self._log.collecting(None) as said:
            try:
                if not context.set_debug_listener(heard):
                    raise RuntimeError("the engine takes no listener")
                context.unfused_tensors_debug_state = True
                try:
                    fitted = self._fitted(feeds)
                    self._choose(self._runner, fitted)
                    outputs = self._runner.infer(fitted, check_inputs=False)
                finally:
                    context.unfused_tensors_debug_state = False
            except Exception as error:
                raise run_error(said, error) from None
        if heard.failed:
            raise TrtTuiError("what the engine's kernels hand on could not be read", heard.failed, "")
        own = {name: np.array(outputs[name]) for name in (info.name for info in self.outputs) if name in names}
        return {**heard.found, **{name: Handed(array.astype(np.float32), _FLOATS[array.dtype.name])
                                  for name, array in own.items() if array.dtype.name in _FLOATS}}

    def inspect(self) -> str:
        """The inspector's JSON, with the types that are told only once shapes are known."""
        inspector = self._engine.create_engine_inspector()
        context = self._runner.context
        for info in self.inputs:  # types and formats are told only once every shape is known
            if -1 in tuple(context.get_tensor_shape(info.name)):
                context.set_input_shape(info.name, self._engine.get_tensor_profile_shape(info.name, self._profile)[1])
        inspector.execution_context = context
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def _choose(self, runner: Any, fitted: Mapping[str, np.ndarray]) -> None:
        """Has the pinned profile used, or the first that has these shapes; where none has, TensorRT says so."""
        def has(profile: Profile) -> bool:
            return all(low <= size <= high for name, (least, _, most) in profile.items()
                       for low, size, high in zip(least, fitted[name].shape, most, strict=False))

        fitting = (place for place, one in enumerate(self.profiles) if has(one))
        wanted = self._pinned if self._pinned is not None else next(fitting, self._profile)
        if wanted != self._profile:
            runner.set_profile(wanted)
            runner.stream.synchronize()
            self._profile = wanted

    def use_profile(self, index: int | None) -> None:
        """See `trt_tui.core.runner.EngineRunner`."""
        self._let_go()
        self._pinned = index

    def _fitted(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The feeds in the types that the engine takes: parsers before TensorRT 10 turn INT64 into INT32."""
        fitted = {}
        for info in self.inputs:
            array = feeds[info.name]
            if array.dtype != info.dtype:
                with np.errstate(over="ignore"):
                    cast = array.astype(info.dtype)
                if array.dtype.kind in "iu" and not np.array_equal(cast, array):
                    raise InputError(f"input {info.name} does not fit the engine",
                                     f"the engine takes {info.dtype}, and a value is out of its range",
                                     "Check the data.")
                array = cast
            fitted[info.name] = np.asarray(array, order="C")
        return fitted

    def _place(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Copies the inputs to the device once, and sets the context's addresses."""
        key = tuple(id(array) for array in feeds.values())
        if self._placed is not None and self._placed[0] == key:
            return
        fitted = self._fitted(feeds)
        self._let_go()
        self._choose(self._runner, fitted)
        self._runner.infer(fitted, check_inputs=False, copy_outputs_to_host=False)
        self._placed = (key, list(feeds.values()), fitted)  # the context may read an input from host memory

    def _let_go(self) -> None:
        """Forgets what was placed, and the graph that reads it."""
        self._placed = None
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def close(self) -> None:
        """Frees the context, its buffers and the engine."""
        self._let_go()
        if self._runner is not None:
            _end(self._runner)
        self._runner = self._engine = None

    def __enter__(self) -> TensorRTRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _begin(runner: Any) -> None:
    """Begins a runner of Polygraphy, which has tensors that a builder was told to hand out copied in every run: not
    here, where runs are timed."""
    runner.activate()
    if hasattr(runner.context, "set_all_tensors_debug_state"):
        runner.context.set_all_tensors_debug_state(False)


def _end(runner: Any) -> None:
    """Ends a runner of Polygraphy and frees the buffers of outputs; Polygraphy itself frees those of inputs only."""
    if not runner.is_active:
        return
    for buffer in getattr(getattr(runner, "output_allocator", None), "buffers", {}).values():
        if hasattr(buffer, "free"):
            buffer.free()
    runner.deactivate()


def _shapes(engine: Any, name: str, profile: int) -> tuple[FixedShape, FixedShape, FixedShape]:
    """The least, usual and largest shape of an input in a profile."""
    least, usual, most = (tuple(map(int, shape)) for shape in engine.get_tensor_profile_shape(name, profile))
    return least, usual, most


def _tensor_info(engine: Any, name: str) -> TensorInfo:
    from polygraphy.datatype import DataType

    dtype = DataType.to_dtype(DataType.from_dtype(engine.get_tensor_dtype(name), "tensorrt"), "numpy")
    return TensorInfo(name, np.dtype(dtype), tuple(engine.get_tensor_shape(name)))


def _profiler(trt: Any) -> Any:
    class Profiler(trt.IProfiler):  # type: ignore[misc]
        """Adds up the time of each engine layer."""

        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times[layer_name] = self.times.get(layer_name, 0.0) + ms

    return Profiler()
