"""The backend of TensorRT 8.6, 10, 11 and TensorRT-RTX, which builds engines and executes them with Polygraphy.

TensorRT-RTX also lists the layers of an engine that is built without a GPU and discarded.

Debug tensors are those between the kernels of an engine, with every element type. Polygraphy's own listener drops BF16,
FP8 and INT8. TensorRT calls a listener while an execution is enqueued. The memory of the tensors belongs to TensorRT
again afterwards, so the listener copies them.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from trt_tui.backends.cuda import CudaDevice, find_first_device
from trt_tui.backends.tensorrt.package import (
    CUBIC_GRID_RELEASE,
    MessageCallback,
    PrintedMessages,
    TensorRTLog,
    capabilities_text,
    capability_text,
    import_tensorrt,
    list_compute_capabilities,
    load_plugins,
    load_polygraphy,
    make_startup_error,
    parse_release_numbers,
    startup_failure_reason,
    translate_build_error,
    translate_engine_load_error,
    translate_execution_error,
    translate_parser_errors,
    translate_startup_error,
)
from trt_tui.core.builder_options import WORKSPACE_POOL, BuilderOptions
from trt_tui.core.engines.inspector import LISTING_HEADING
from trt_tui.core.lowering.implicit_quantization import apply_constraints
from trt_tui.core.lowering.lowering_checks import WEAK_PRECISIONS
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import (
    TIMING_CACHE_REFUSED,
    BackendCapabilities,
    BuildSettings,
    BuildStep,
    DebugTensor,
    FixedShape,
    LayerConstraints,
    Profile,
    TensorInfo,
)
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.locks import file_lock
from trt_tui.files.reading import file_sha256, read_bytes
from trt_tui.files.writing import update_checksum_file, write_file_atomically

_LOCK_TIMEOUT_S = 10.0
"""The maximum time in seconds to wait for a timing cache that another process is writing."""

_MAGIC_BYTES = 4
"""The number of bytes at the start of a file that identify a timing cache, whatever its release and GPU."""


def _parse_onnx_file(backend: TensorRTBackend, model_path: Path, network: Any) -> Any:
    logger = backend.log.get_tensorrt_logger(backend.trt)
    parser = backend.trt.OnnxParser(network, logger)
    backend.trt.init_libnvinfer_plugins(logger, "")
    if not parser.parse_from_file(str(model_path)) or parser.num_errors:
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        raise translate_parser_errors(backend.name, backend.version, errors, model_path)
    allow_attention_decomposition(backend.trt, network)
    return parser


def allow_attention_decomposition(trt: Any, network: Any) -> None:
    """Allows the builder to split ONNX's Attention into several layers if there is no kernel for the whole operator.

    TensorRT-RTX 1.7 has kernels in 16 bits and none in FP32, and would refuse the network.
    """
    attention_type = trt.LayerType.__members__.get("ATTENTION_INPUT")  # absent before 10.14
    if attention_type is None:
        return
    for layer in map(network.get_layer, range(network.num_layers)):
        if layer.type == attention_type:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings return the base class
            layer.attention.decomposable = True


def _check_optimization_profile(backend_name: str, network: Any, settings: BuildSettings) -> None:
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shape = tuple(tensor.shape)
        if len(shape) < 2 and tensor.is_shape_tensor:
            raise InputError(f"the values of input {tensor.name} are shapes",
                             f"{backend_name} needs them in the profile, and --shapes only gives shapes of inputs",
                             "Make it a constant of the network, in its exporter or with onnx-graphsurgeon; the "
                             "simulation works without that.")
        if tensor.name.startswith("__") and tensor.name[2:] in settings.profile:
            raise InputError(f"input {tensor.name[2:]} is also an output of the network",
                             f"the parser of {backend_name} gives such an input another name, {tensor.name}",
                             "Drop that output: it is the input, unchanged.")
        if -1 in shape and tensor.name not in settings.profile:
            sizes = "x".join("?" if size == -1 else str(size) for size in shape)
            raise InputError(f"input {tensor.name} has dynamic dimensions and no profile", f"its shape is {sizes}",
                             f"Give --shapes {tensor.name}:MIN:OPT:MAX with a size for every dimension.")


# The timing cache is read and written here: Polygraphy, with a path, loses the engine if it cannot lock or write the
# file.
def _read_timing_cache(log: TensorRTLog, path: Path) -> _TimingCacheBytes | None:
    """Reads a timing cache file. Returns None with a warning if the file cannot be read; the build then takes longer.
    """
    try:
        return _TimingCacheBytes(path, read_bytes(path)) if os.path.exists(path) else None
    except InputError as error:
        log.dispatch_message("warning", f"the timing cache {path} cannot be read: {error.cause}")
        return None


def _write_timing_cache(log: TensorRTLog, config: Any, path: Path, was_refused: bool) -> None:
    """Merges the timings of a build into the timing cache file. A failure only logs a warning, since the engine is
    built.

    A lock prevents two processes from overwriting each other's timings.
    """
    try:
        cache = config.get_timing_cache()
        if cache is None:
            return
        with file_lock(path, _LOCK_TIMEOUT_S):
            stored, measured = read_bytes(path) if os.path.exists(path) else b"", bytes(cache.serialize())
            if was_refused and stored[:_MAGIC_BYTES] != measured[:_MAGIC_BYTES]:
                log.dispatch_message("warning", f"{path} is not a timing cache: it is left unchanged")
                return
            stored_cache = config.create_timing_cache(stored) if stored else None
            if stored_cache is not None:
                cache.combine(stored_cache, ignore_mismatch=True)
            write_file_atomically(path, bytes(cache.serialize()))
            update_checksum_file(path)
    except Exception as error:
        cause = error.cause if isinstance(error, TrtTuiError) else getattr(error, "strerror", None) or error
        log.dispatch_message("warning", f"the timing cache {path} cannot be written: {cause}")


def _make_builder_config_loader(backend: TensorRTBackend, settings: BuildSettings,
                                layer_constraints: LayerConstraints | None, monitor: Any,
                                timing_cache: _TimingCacheBytes | None) -> Any:
    """Returns the Polygraphy loader that creates the builder config."""
    name, trt, loaders, capabilities = backend.name, backend.trt, backend.loaders, backend.capabilities
    production = settings.builder_options
    profiles = [loaders.Profile() for _ in range(1 + len(settings.more_profiles))]
    for profile, extra_shapes in zip(profiles, ({}, *settings.more_profiles), strict=True):
        for tensor, (min_shape, opt_shape, max_shape) in {**settings.profile, **extra_shapes}.items():
            profile.add(tensor, min_shape, opt_shape, max_shape)
    common: dict[str, Any] = {
        "profiles": profiles, "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "load_timing_cache": timing_cache,
        "builder_optimization_level": production.optimization_level, "progress_monitor": monitor,
    }
    production.check_builder_support(name, backend.version)
    requested_members = _list_requested_enum_members(backend, production)
    sources = [(source[0], 1 << int(_find_tactic_source(trt.TacticSource, source[1:])))
               for source in production.tactic_sources]
    if capabilities.target_compute_capabilities:
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        requested, offered = settings.compute_capability, capabilities.target_compute_capabilities
        if requested is None and not capabilities.can_execute:
            raise InputError("there is no GPU to build for", f"{name} builds for a named compute capability",
                             f"Use --compute-capability with one of {capabilities_text(offered)}.")
        if requested is not None and requested not in offered:
            raise InputError(
                f"{name} {backend.version} does not build for compute capability {capability_text(requested)}",
                f"it builds for {capabilities_text(offered)}", "Choose one of them.")
        target_arguments = {"compute_capabilities": [requested]} if requested is not None else {"use_gpu": True}
        create = CreateConfigRTX(**target_arguments, **common)
    else:
        if settings.compute_capability is not None:
            raise InputError(f"{name} builds for the GPU it runs on", "a compute capability was named",
                             "Leave out --compute-capability, or use --backend tensorrt-rtx.")
        flags: frozenset[Precision] = layer_constraints.precision_flags if layer_constraints is not None else frozenset(
        )
        constraints = layer_constraints.constraint_mode or None if layer_constraints is not None and flags else None
        create = loaders.CreateConfig(
            tf32=settings.tf32, fp16=Precision.FP16 in flags, int8=Precision.INT8 in flags,
            bf16=Precision.BF16 in flags, precision_constraints=constraints,
            **common)

    def set_requested_options(builder: Any, network: Any, config: Any) -> None:
        change = config.set_flag if settings.tf32 else config.clear_flag
        change(trt.BuilderFlag.TF32)
        for sign, bit in sources:
            enabled = config.get_tactic_sources()
            config.set_tactic_sources(enabled | bit if sign == "+" else enabled & ~bit)
        for member in requested_members:
            if isinstance(member, trt.BuilderFlag):
                config.set_flag(member)
            elif isinstance(member, trt.MemoryPoolType):
                config.set_memory_pool_limit(member, (production.workspace or 0) << 20)
            else:
                config.hardware_compatibility_level = member

    return loaders.PostprocessConfig(create, set_requested_options)


def _list_requested_enum_members(backend: TensorRTBackend, builder_options: BuilderOptions) -> list[Any]:
    """Returns the members of TensorRT's enums that correspond to the requested builder options.

    Raises:
        InputError: The release lacks a member. The message names the member and the option.
    """
    members = []
    for field, setting, value in builder_options.requested_options:
        names = {"": "", "workspace": WORKSPACE_POOL, "hardware_compatibility": setting.choices.get(str(value), "")}
        member = setting.flag or names.get(field.name, "")
        if not member:
            continue
        enum = "BuilderFlag" if setting.flag else "MemoryPoolType" if field.name == "workspace" else \
            "HardwareCompatibilityLevel"
        offered = getattr(backend.trt, enum, None)
        if not hasattr(offered, member):
            raise InputError(f"{backend.name} {backend.version} has no {member}", f"{setting.option} needs it",
                             f"Leave out {setting.option}, or build with another release.")
        members.append(getattr(offered, member))
    return members


class _TimingCacheBytes(io.BytesIO):
    """The bytes of a timing cache in the form of an open file, with the mode and the name that Polygraphy reads."""

    mode = "rb"

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(data)
        self._path = path

    def __str__(self) -> str:
        return str(self._path)


def _find_tactic_source(enum: Any, name: str) -> Any:
    member = getattr(enum, name.upper(), None)
    if member is None:
        names = ", ".join(member_name for member_name in dir(enum) if member_name.isupper())
        raise InputError(f"unknown tactic source {name}", f"available: {names}", "Correct the name.")
    return member


def make_progress_monitor(trt: Any, on_step: BuildStep) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """The progress monitor of a build, which reports the steps of the outermost phase. TensorRT calls it from
        several threads."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.stopped = False
            self.phases: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.phases[phase_name] = num_steps
            self._report_step(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._report_step(phase_name, step + 1)

        def phase_finish(self, phase_name: str) -> None:
            self.phases.pop(phase_name, None)

        def _report_step(self, phase: str, done_steps: int) -> bool:
            self.stopped |= not on_step(phase, done_steps, self.phases.get(phase, 0))
            return not self.stopped

    return Monitor()


_BUILD_THREADS = min(os.cpu_count() or 1, 4)
"""The number of threads of a build.

The engine does not depend on this number. Other measurements on this machine wait for the build.
"""


def import_preview_builder() -> Any:
    """Imports the TensorRT-RTX package, which lists the engine layers of a network without a GPU.

    Raises:
        BackendUnavailableError: The package is not installed, does not load, or has an unsupported release.
    """
    trt = import_tensorrt("tensorrt-rtx")
    if not hasattr(trt.OnnxParser, "load_initializer"):
        raise BackendUnavailableError(f"TensorRT-RTX {trt.__version__} is too old for a preview",
                                      "it cannot read weights from memory", "pip install -U 'trt-tui[rtx]'")
    return trt


def list_engine_layers(trt: Any, model: bytes, weights: Mapping[str, np.ndarray], base_path: Path, profile: Profile,
                       tf32: bool, compute_capability: tuple[int, int],
                       should_continue: Callable[[], bool]) -> tuple[str, PrintedMessages]:
    """Builds an engine of a strongly typed network without a GPU. Returns the list of its layers, and the printed
    messages.

    Args:
        trt: The package of `import_preview_builder`.
        model: The bytes of an ONNX file without its weights.
        weights: The weights, by name. The parser and the builder read them in place.
        base_path: A path in the folder of the external files that the model refers to.
        should_continue: A function that is called between two steps. The build ends if it returns False.

    Raises:
        NetworkParseError: The parser refuses the network. The message names the node.
        BuildError: The build failed.
        CancelledError: ``should_continue`` returned False.
        InputError: The release does not list engine layers.
    """
    log = TensorRTLog()
    logger = log.get_tensorrt_logger(trt)
    with log.collect_messages(None) as messages:
        builder = trt.Builder(logger)
        builder.max_threads = _BUILD_THREADS
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, logger)
        trt.init_libnvinfer_plugins(logger, "")
        is_loaded = parser.load_model_proto(model, str(base_path)) and all(
            parser.load_initializer(name, array.ctypes.data, array.nbytes) for name, array in weights.items())
        if not is_loaded or not parser.parse_model_proto() or parser.num_errors:
            errors = [parser.get_error(index) for index in range(parser.num_errors)]
            raise translate_parser_errors("tensorrt-rtx", trt.__version__, errors)
        allow_attention_decomposition(trt, network)
        config = builder.create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(
            getattr(trt.ComputeCapability, f"SM{compute_capability[0]}{compute_capability[1]}"), 0)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        (config.set_flag if tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
        if profile:
            optimization_profile = builder.create_optimization_profile()
            for name, (min_shape, opt_shape, max_shape) in profile.items():
                optimization_profile.set_shape(name, min_shape, opt_shape, max_shape)
            config.add_optimization_profile(optimization_profile)
        monitor = make_progress_monitor(trt, lambda *_: should_continue())
        config.progress_monitor = monitor
        built = builder.build_serialized_network(network, config)
        if monitor.stopped:
            raise CancelledError("stopped")
        if built is None:
            raise translate_build_error(messages, tuple(log.details), RuntimeError("the builder gives no reason"))
    if not log.listings:
        raise InputError("TensorRT-RTX does not list the layers of the engine",
                         f"release {trt.__version__} prints no message that begins with {LISTING_HEADING}",
                         "Another release may print it; a build on a GPU reports its layers through the inspector.")
    return log.listings[-1], [message for message in messages if message[0] != "info"]


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


class TensorRTBackend:
    """The backend that builds and executes TensorRT engines.

    Args:
        name: "tensorrt" or "tensorrt-rtx".
        plugins: The paths of plugin libraries to load.

    Raises:
        InputError: A library does not load.
        BackendUnavailableError: The package or Polygraphy is missing or does not load, or TensorRT does not start. The
            error is also raised if there is no GPU and the package needs one.
    """

    def __init__(self, name: str = "tensorrt", plugins: Sequence[str] = ()) -> None:
        trt = import_tensorrt(name)
        version = str(trt.__version__)
        loaders, log = load_polygraphy(name, trt)
        builds_for_other_gpus = hasattr(trt, "ComputeCapability")
        self._device: CudaDevice | None = None
        try:
            self._device = find_first_device()
        except BackendUnavailableError:
            if not builds_for_other_gpus:
                raise
        if reason := startup_failure_reason(trt):
            raise make_startup_error(f"{name} {version}", reason)
        load_plugins(trt, f"{name} {version}", plugins)
        self._plugins = tuple(map(file_sha256, plugins))
        compute_capabilities = list_compute_capabilities(trt)
        runs = self._device is not None and (not compute_capabilities
                                             or self._device.compute_capability in compute_capabilities)
        strongly_typed = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
        quantized_types = {
            precision
            for precision, quantized_type in QUANTIZED_TYPES.items()
            if strongly_typed and hasattr(trt.DataType, quantized_type.tensorrt_type)
        }  # release 8.6 lists FP8 but does not support it
        self.capabilities = BackendCapabilities(
            can_execute=runs, computes_in_fp16=True, supports_bf16=hasattr(trt.DataType, "BF16"),
            quantized_types=WEAK_PRECISIONS | quantized_types,
            gpu_compute_capability=self._device.compute_capability if self._device is not None else None,
            strongly_typed=strongly_typed, weakly_typed=hasattr(trt.BuilderFlag,
                                                                "INT8"), supports_cubic_grids=name == "tensorrt-rtx"
            and parse_release_numbers(version) >= CUBIC_GRID_RELEASE, reports_progress=hasattr(trt, "IProgressMonitor"),
            debug_tensors=hasattr(trt.INetworkDefinition, "mark_unfused_tensors_as_debug_tensors"),
            target_compute_capabilities=compute_capabilities)
        self.trt, self.loaders, self.log = trt, loaders, log
        self.name, self.version = name, version
        self.device = self._device.name if self._device is not None else ""

    @property
    def cache_identity(self) -> tuple[object, ...]:
        """The parts of a cache key that an engine depends on: package, version, plugins, GPU and driver."""
        device = self._device
        return (self.name, self.version, *self._plugins,
                *((device.name, device.compute_capability, device.driver) if device else ()))

    def build(self, model_path: Path, settings: BuildSettings, constraints: LayerConstraints | None = None, *,
              on_step: BuildStep | None = None, on_message: MessageCallback | None = None) -> bytes:
        if constraints is None and not self.capabilities.strongly_typed:
            raise ValueError("this release needs precisions layer by layer")
        self.log.details.clear()
        with self.log.collect_messages(on_message) as messages:
            try:
                builder, network = self.loaders.create_network(strongly_typed=constraints is None)
            except Exception as error:
                raise translate_startup_error(self.name, self.version, messages, error) from None
            parser = _parse_onnx_file(self, model_path, network)
            _check_optimization_profile(self.name, network, settings)
            if constraints is not None:
                apply_constraints(self.trt, network, constraints.precisions, constraints.output_types,
                                  constraints.ranges, constraints.inner_ranges, constraints.constant_ranges,
                                  constraints.layer_names)
            if settings.debug_tensors and not network.mark_unfused_tensors_as_debug_tensors():
                self.log.dispatch_message("warning", "TensorRT does not let its unfused tensors be read")
            monitor = make_progress_monitor(
                self.trt, on_step) if on_step is not None and self.capabilities.reports_progress else None
            cache = Path(settings.builder_options.timing_cache) if settings.builder_options.timing_cache else None
            timing_cache = _read_timing_cache(self.log, cache) if cache is not None else None
            try:
                config = _make_builder_config_loader(self, settings, constraints, monitor, timing_cache)(
                    builder, network)
                data = self.loaders.engine_bytes_from_network((builder, network, parser), config=config)
            except Exception as error:
                if monitor is not None and monitor.stopped:
                    raise CancelledError("the build was stopped") from None
                raise translate_build_error(messages, self.log.details, error, self.capabilities.can_execute) from None
            if cache is not None:
                refused = any(TIMING_CACHE_REFUSED.search(text) for _, text in messages)
                _write_timing_cache(self.log, config, cache, refused)
        return bytes(data)

    def load_engine(self, data: bytes) -> TensorRTRunner:
        if not self.capabilities.can_execute:
            reason = ("no GPU is visible" if self._device is None else (
                f"{self.device} has compute capability {capability_text(self._device.compute_capability)}, and the "
                f"backend runs on {capabilities_text(self.capabilities.target_compute_capabilities)}"))
            raise BackendUnavailableError(f"{self.name} engines cannot run on this machine", reason,
                                          "Run it on a GPU that it was built for; trt-tui inspect also takes the JSON "
                                          "of trtexec --exportLayerInfo.")
        with self.log.collect_messages(None) as messages:
            try:
                runtime = self.trt.Runtime(self.log.get_tensorrt_logger(self.trt))
            except Exception as error:
                raise translate_startup_error(self.name, self.version, messages, error) from None
            engine = None
            try:
                engine = self.loaders.engine_from_bytes(data, runtime=runtime)
            except Exception as error:
                raise translate_engine_load_error(f"{self.name} {self.version}", self.device, messages, error) from None
            if engine is None:
                raise translate_engine_load_error(f"{self.name} {self.version}", self.device, messages, None)
            return TensorRTRunner(self.trt, engine, self.log)
