"""TensorRT 8.6, 10, 11 and TensorRT-RTX, on Polygraphy's loaders and runner.

The only module that imports ``tensorrt`` or ``tensorrt_rtx``. What a release can do is asked of its API once, in
`Capabilities`. One process serves one of the two packages, since Polygraphy chooses between them when it is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from trt_tui.backends.cuda import Device, first_device
from trt_tui.core.lowering.weak import tell
from trt_tui.core.precision import Precision
from trt_tui.core.runner import (
    TIMINGS_REFUSED,
    BuildFailed,
    BuildSettings,
    BuildStep,
    Capabilities,
    ParseFailed,
    TensorInfo,
    Told,
)
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.reading import read_bytes
from trt_tui.files.writing import write_atomic

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""Packages by backend name."""

EXTRAS = {"tensorrt": "tensorrt", "tensorrt-rtx": "rtx"}
"""Extras of this project that bring them."""

KNOWN = {"tensorrt": ((8, 6), (11,)), "tensorrt-rtx": ((1, 0), (1,))}
"""The oldest release served, and the newest major version known, by backend name."""

Message = Callable[[str, str], None]

_DETAILS = 400
"""How many of the most detailed messages are kept."""

_LEVELS = {"INTERNAL_ERROR": "error", "ERROR": "error", "WARNING": "warning", "INFO": "info"}
_CONCLUSIONS = ("Invalid Engine", "Invalid Context", "Invalid network", "Could not deserialize engine")
"""How Polygraphy's own messages begin after TensorRT has said what is wrong."""

_MAGIC = 4
"""The first bytes by which a timing cache of another release or GPU is told from any other file."""

_MEMORY = re.compile(r"out ?of ?memory|insufficient memory|Cuda (?:error|initialization failure with error:) 2\b|"
                     r"\bOOM\b", re.I)
_DRIVER = re.compile(r"CUDA initialization failure|CUDA driver version is insufficient|no CUDA-capable device", re.I)
_VERSION = re.compile(r"version tag|serialization|different TensorRT version|incompatible|compute capability|"
                      r"built on|platform|magic", re.I)

_FREE = "Free the GPU, or use another one."
_COMPARE = "Its CUDA release may need a newer driver: compare it with nvidia-smi."


def not_starting(trt) -> str:
    """Why the builder of a TensorRT package does not start on this machine, "" where it does."""
    log = _Log.installed()
    with log.collecting(None) as said:
        try:
            trt.Builder(log.for_tensorrt(trt))
        except Exception as error:  # bindings raise a TypeError where the library returns nothing
            return _errors(said) or str(error)
    return ""


def module_for(name: str):
    """The TensorRT package of a backend, checked.

    Raises:
        BackendUnavailableError: it is not installed, does not load, or is of a release that is not known.
    """
    try:
        module = importlib.import_module(MODULES[name])
        version = module.__version__
    except (ImportError, OSError, AttributeError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == MODULES[name]
        title = f"{name} is not installed" if missing else f"{name} does not load"
        raise BackendUnavailableError(title, "" if missing else str(error),
                                      f"pip install 'trt-tui[{EXTRAS[name]}]'") from None
    oldest, newest = KNOWN[name]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < oldest or numbers[0] > newest[0]:
        raise BackendUnavailableError(
            f"{name} {version} is not a release that trt-tui knows",
            f"it serves {'.'.join(map(str, oldest))} to {newest[0]}.x", f"pip install 'trt-tui[{EXTRAS[name]}]'")
    return module


class TensorRTBackend:
    """Builds and runs engines.

    Args:
        name: "tensorrt" or "tensorrt-rtx".

    Raises:
        BackendUnavailableError: the package or Polygraphy is missing or does not load, or TensorRT does not start, or
            there is no GPU and the package needs one.
    """

    def __init__(self, name: str = "tensorrt") -> None:
        self.name = name
        self._trt = trt = module_for(name)
        self.version = trt.__version__
        self._load_polygraphy()
        for_others = hasattr(trt, "ComputeCapability")
        self._device: Device | None = None
        try:
            self._device = first_device()
        except BackendUnavailableError:
            if not for_others:
                raise
        if why := not_starting(trt):
            raise BackendUnavailableError(f"{name} {self.version} does not start", why,
                                          _FREE if _MEMORY.search(why) else _COMPARE)
        offered = _offered(trt) if for_others else ()
        runs = self._device is not None and (not offered or self._device.compute_capability in offered)
        strong = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
        weak = hasattr(trt.BuilderFlag, "INT8")
        self.capabilities = Capabilities(
            runs=runs, builds=True, simulates=False, real_fp16=True, bf16=hasattr(trt.DataType, "BF16"),
            strong=strong, weak=weak, reports_progress=hasattr(trt, "IProgressMonitor"), compute_capabilities=offered)

    @property
    def device(self) -> str:
        return self._device.name if self._device is not None else ""

    @property
    def stamp(self) -> tuple:
        """What an engine is bound to: package, version, GPU and driver."""
        device = self._device
        return (self.name, self.version, *((device.name, device.compute_capability, device.driver) if device else ()))

    def _load_polygraphy(self) -> None:
        try:
            from polygraphy import config
        except ImportError as error:
            raise BackendUnavailableError("Polygraphy is not installed", str(error),
                                          f"pip install 'trt-tui[{EXTRAS[self.name]}]'") from None
        rtx = self.name == "tensorrt-rtx"
        if "polygraphy.backend.trt" in sys.modules and config.USE_TENSORRT_RTX != rtx:
            raise BackendUnavailableError("another TensorRT package is in use", "one process serves one of them",
                                          f"Start trt-tui again with --backend {self.name}.")
        config.USE_TENSORRT_RTX = rtx
        self._log = _Log.installed()
        from polygraphy.backend import trt as loaders
        from polygraphy.backend.trt import util

        self._loaders = loaders
        util.TRT_LOGGER = self._log.for_tensorrt(self._trt)

    # -- building -----------------------------------------------------------------------------------------------

    def build(self, model: Path, settings: BuildSettings, told: Told | None = None, *, step: BuildStep | None = None,
              message: Message | None = None) -> bytes:
        """See `trt_tui.core.runner.EngineBackend.build`."""
        trt = self._trt
        if told is None and not self.capabilities.strong:
            raise ValueError("this release is told precisions layer by layer")
        self._log.details.clear()
        with self._log.collecting(message) as log:
            try:
                builder, network = self._loaders.create_network(strongly_typed=told is None)
            except Exception as error:
                raise self._not_starting(log, error) from None
            parser = self._parsed(model, network)
            self._check_profile(network, settings)
            if told is not None:
                tell(trt, network, told.precisions, told.output_types, told.ranges, getattr(told, "inner", None),
                     getattr(told, "constants", None), getattr(told, "names", ()))
            monitor = _monitor(trt, step) if step is not None and self.capabilities.reports_progress else None
            timings = self._read_timings(settings.timing_cache) if settings.timing_cache is not None else None
            try:
                config = self._config(settings, told, monitor, timings)(builder, network)
                data = self._loaders.engine_bytes_from_network((builder, network, parser), config=config)
            except Exception as error:
                if monitor is not None and monitor.stopped:
                    raise CancelledError("the build was stopped") from None
                raise _build_error(log, self._log.details, error) from None
            if settings.timing_cache is not None:
                refused = any(TIMINGS_REFUSED.search(text) for _, text in log)
                self._write_timings(config, settings.timing_cache, refused)
        return bytes(data)

    def _parsed(self, model: Path, network):
        trt = self._trt
        parser = trt.OnnxParser(network, self._logger())
        trt.init_libnvinfer_plugins(self._logger(), "")
        if not parser.parse_from_file(str(model)) or parser.num_errors:
            raise _parse_error(self.name, self.version, [parser.get_error(i) for i in range(parser.num_errors)], model)
        return parser

    def _logger(self):
        from polygraphy.backend.trt import util

        return util.get_trt_logger()

    def _check_profile(self, network, settings: BuildSettings) -> None:
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            shape = tuple(tensor.shape)
            if len(shape) < 2 and tensor.is_shape_tensor:
                raise InputError(f"the values of input {tensor.name} are shapes",
                                 f"{self.name} wants them in the profile, and --shapes gives shapes of inputs alone",
                                 "Make it a constant of the network, in its exporter or with onnx-graphsurgeon; the "
                                 "simulation works without that.")
            if tensor.name.startswith("__") and tensor.name[2:] in settings.profile:
                raise InputError(f"input {tensor.name[2:]} is an output of the network too",
                                 f"the parser of {self.name} gives such an input another name, {tensor.name}",
                                 "Drop that output: it is the input, unchanged.")
            if -1 in shape and tensor.name not in settings.profile:
                sizes = "x".join("?" if size == -1 else str(size) for size in shape)
                raise InputError(f"input {tensor.name} has dynamic dimensions and no profile", f"its shape is {sizes}",
                                 f"Give --shapes {tensor.name}:MIN:OPT:MAX with a size for every dimension.")

    # Given a path, Polygraphy loses the engine where it cannot lock or write the file.
    def _read_timings(self, path: Path) -> _Timings | None:
        """The timing cache in a file; one that cannot be read costs time and no build."""
        try:
            return _Timings(path, read_bytes(path)) if os.path.exists(path) else None
        except InputError as error:
            self._log.take("warning", f"the timing cache {path} cannot be read: {error.cause}")
            return None

    def _write_timings(self, config, path: Path, refused: bool) -> None:
        """Writes what a build measured, and what the file holds by now; the engine is made, whether or not it can."""
        try:
            cache = config.get_timing_cache()
            if cache is None:
                return
            held, made = read_bytes(path) if os.path.exists(path) else b"", bytes(cache.serialize())
            if refused and held[:_MAGIC] != made[:_MAGIC]:
                self._log.take("warning", f"{path} is no timing cache: it is left as it is")
                return
            there = config.create_timing_cache(held) if held else None
            if there is not None:
                cache.combine(there, ignore_mismatch=True)
            write_atomic(path, bytes(cache.serialize()))
        except Exception as error:
            cause = error.cause if isinstance(error, TrtTuiError) else getattr(error, "strerror", None) or error
            self._log.take("warning", f"the timing cache {path} cannot be written: {cause}")

    def _config(self, settings: BuildSettings, told: Told | None, monitor, timings: _Timings | None):
        trt, loaders = self._trt, self._loaders
        profile = loaders.Profile()
        for name, (least, usual, most) in settings.profile.items():
            profile.add(name, least, usual, most)
        common = {
            "profiles": [profile], "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
            "load_timing_cache": timings,
            "builder_optimization_level": settings.optimization_level, "progress_monitor": monitor,
        }
        if settings.tactic_sources is not None:
            common["tactic_sources"] = [_member(trt.TacticSource, name) for name in settings.tactic_sources]
        if self.capabilities.compute_capabilities:
            from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

            wanted, offered = settings.compute_capability, self.capabilities.compute_capabilities
            if wanted is None and not self.capabilities.runs:
                raise InputError("there is no GPU to build for", f"{self.name} builds for a named compute capability",
                                 f"Give --compute-capability, one of {_listed(offered)}.")
            if wanted is not None and wanted not in offered:
                raise InputError(f"{self.name} {self.version} does not build for compute capability {_dotted(wanted)}",
                                 f"it builds for {_listed(offered)}", "Choose one of them.")
            target = {"compute_capabilities": [wanted]} if wanted is not None else {"use_gpu": True}
            create = CreateConfigRTX(**target, **common)
        else:
            if settings.compute_capability is not None:
                raise InputError(f"{self.name} builds for the GPU it runs on", "a compute capability was named",
                                 "Leave out --compute-capability, or use --backend tensorrt-rtx.")
            flags = told.flags if told is not None else frozenset()
            create = loaders.CreateConfig(
                tf32=settings.tf32, fp16=Precision.FP16 in flags, int8=Precision.INT8 in flags,
                bf16=Precision.BF16 in flags, precision_constraints=told.constraints or None if flags else None,
                **common)

        def set_tf32(builder, network, config) -> None:
            change = config.set_flag if settings.tf32 else config.clear_flag
            change(trt.BuilderFlag.TF32)

        return loaders.PostprocessConfig(create, set_tf32)

    def _not_starting(self, log: Sequence[tuple[str, str]], error: Exception) -> TrtTuiError:
        cause = _errors(log) or str(error)
        if _MEMORY.search(cause):
            return TrtTuiError(f"there is no device memory for {self.name} to start", cause, _FREE)
        return BackendUnavailableError(f"{self.name} {self.version} does not start", cause, _COMPARE)

    # -- running ------------------------------------------------------------------------------------------------

    def load_engine(self, data: bytes) -> TensorRTRunner:
        """See `trt_tui.core.runner.EngineBackend.load_engine`."""
        if not self.capabilities.runs:
            why = "no GPU is visible" if self._device is None else (
                f"{self.device} has compute capability {_dotted(self._device.compute_capability)}, and it runs on "
                f"{_listed(self.capabilities.compute_capabilities)}")
            raise BackendUnavailableError(f"{self.name} engines cannot run on this machine", why,
                                          "Run it on a GPU that it was built for; trt-tui inspect also takes the JSON "
                                          "of trtexec --exportLayerInfo.")
        with self._log.collecting(None) as log:
            try:
                runtime = self._trt.Runtime(self._logger())
            except Exception as error:
                raise self._not_starting(log, error) from None
            engine = None
            try:
                engine = self._loaders.engine_from_bytes(data, runtime=runtime)
            except Exception as error:
                raise _load_error(self, log, error) from None
            if engine is None:
                raise _load_error(self, log, None)
            return TensorRTRunner(self._trt, engine, self._log)


class _Timings(io.BytesIO):
    """What a timing cache's file held, in the place of the open file: Polygraphy asks its mode, and prints it."""

    mode = "rb"

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(data)
        self._path = path

    def __str__(self) -> str:
        return str(self._path)


class TensorRTRunner:
    """One engine with its execution context; see `trt_tui.core.runner.EngineRunner`."""

    def __init__(self, trt, engine, log: _Log) -> None:
        self._trt = trt
        self._engine = engine
        self._log = log
        self._activate()
        infos = [_tensor_info(trt, engine, engine.get_tensor_name(i)) for i in range(engine.num_io_tensors)]
        modes = [engine.get_tensor_mode(info.name) for info in infos]
        self.inputs = tuple(i for i, mode in zip(infos, modes, strict=True) if mode == trt.TensorIOMode.INPUT)
        self.outputs = tuple(i for i, mode in zip(infos, modes, strict=True) if mode == trt.TensorIOMode.OUTPUT)
        memory = "device_memory_size_v2" if hasattr(engine, "device_memory_size_v2") else "device_memory_size"
        self.device_memory: int | None = int(getattr(engine, memory))
        self._placed: tuple[tuple[int, ...], list, dict] | None = None

    def _activate(self) -> None:
        """Makes the execution context of runs."""
        from polygraphy.backend.trt import TrtRunner

        self._runner = TrtRunner(self._engine)
        with self._log.collecting(None) as said:
            try:
                self._runner.activate()
            except Exception as error:
                raise _run_error(said, error) from None

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        names = [info.name for info in self.outputs] if fetch is None else list(fetch)
        self._placed = None
        with self._log.collecting(None) as said:
            try:
                found = self._runner.infer(self._fitted(feeds), check_inputs=False)
            except Exception as error:
                raise _run_error(said, error) from None
        return {name: np.array(found[name]) for name in names}

    def latency_ms(self, feeds: Mapping[str, np.ndarray]) -> float:
        self._place(feeds)
        context, stream = self._runner.context, self._runner.stream
        with self._log.collecting(None) as said:
            before = time.perf_counter()
            done = context.execute_async_v3(stream.ptr)
            stream.synchronize()
            taken = (time.perf_counter() - before) * 1e3
        if not done:
            raise _run_error(said, RuntimeError("it could not be enqueued"))
        return taken

    def layer_times_ms(self, feeds: Mapping[str, np.ndarray], runs: int) -> dict[str, float]:
        from polygraphy.backend.trt import TrtRunner

        profiler = _profiler(self._trt)
        fitted = self._fitted(feeds)
        self._placed = None

        def profiled():
            context = self._engine.create_execution_context()
            if context is None:
                raise RuntimeError("there is no execution context")
            context.profiler = profiler
            return context

        # A context holds its optimization profile and the memory of activations: the profiled one takes the place of
        # the other, and is its runner's alone, so that it is gone when that ends.
        _end(self._runner)
        runner = TrtRunner(profiled)
        try:
            with self._log.collecting(None) as said:
                try:
                    runner.activate()
                    try:
                        runner.infer(fitted, check_inputs=False)
                        profiler.times.clear()
                        for _ in range(runs):
                            runner.infer(fitted, check_inputs=False)
                    finally:
                        _end(runner)
                except Exception as error:
                    raise _run_error(said, error) from None
        finally:
            self._activate()
        return {name: total / runs for name, total in profiler.times.items()}

    def inspect(self) -> str:
        inspector = self._engine.create_engine_inspector()
        context = self._runner.context
        for info in self.inputs:  # types and formats are told only once every shape is known
            if -1 in tuple(context.get_tensor_shape(info.name)):
                context.set_input_shape(info.name, self._engine.get_tensor_profile_shape(info.name, 0)[1])
        inspector.execution_context = context
        return inspector.get_engine_information(self._trt.LayerInformationFormat.JSON)

    def _fitted(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The feeds in the types the engine takes: a parser before TensorRT 10 makes INT32 of INT64."""
        fitted = {}
        for info in self.inputs:
            array = feeds[info.name]
            if array.dtype != info.dtype:
                with np.errstate(over="ignore"):
                    cast = array.astype(info.dtype)
                if array.dtype.kind in "iu" and not np.array_equal(cast, array):
                    raise InputError(f"input {info.name} does not fit the engine",
                                     f"the engine takes {info.dtype}, and a value is beyond it", "Check the data.")
                array = cast
            fitted[info.name] = np.asarray(array, order="C")
        return fitted

    def _place(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Brings the inputs to the device once, and sets the context's addresses."""
        key = tuple(id(array) for array in feeds.values())
        if self._placed is not None and self._placed[0] == key:
            return
        fitted = self._fitted(feeds)
        self._runner.infer(fitted, check_inputs=False, copy_outputs_to_host=False)
        self._placed = (key, list(feeds.values()), fitted)  # the context may read an input where it lies on the host

    def close(self) -> None:
        if self._runner is not None:
            _end(self._runner)
        self._runner = self._engine = self._placed = None

    def __enter__(self) -> TensorRTRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _end(runner) -> None:
    """Ends a runner of Polygraphy, which itself frees the buffers of inputs and leaves those of outputs."""
    if not runner.is_active:
        return
    for buffer in getattr(getattr(runner, "output_allocator", None), "buffers", {}).values():
        if hasattr(buffer, "free"):
            buffer.free()
    runner.deactivate()


# -- what the library says --------------------------------------------------------------------------------------------


class _Log(logging.Handler):
    """Takes what TensorRT and Polygraphy print, for whoever collects it at the moment.

    TensorRT's most detailed messages are many; the last of them are kept, since they tell which layer it was at when a
    build failed without naming one.
    """

    _one: _Log | None = None

    @classmethod
    def installed(cls) -> _Log:
        """The one of this process, in the place of Polygraphy's printing."""
        if cls._one is None:
            from polygraphy.logger import G_LOGGER

            cls._one = cls()
            G_LOGGER.use_python_logging_system = True
            G_LOGGER.colors = False
            G_LOGGER.module_severity = G_LOGGER.VERBOSE
            logger = logging.getLogger("Polygraphy")
            logger.propagate = False
            logger.setLevel(1)
            logger.addHandler(cls._one)
        return cls._one

    def for_tensorrt(self, trt):
        """The logger that a TensorRT package is given; always the same one, since the library may hold on to it."""
        if trt.__name__ not in self._native:
            log = self

            class Logger(trt.ILogger):
                def __init__(self) -> None:
                    trt.ILogger.__init__(self)

                def log(self, severity, message: str) -> None:
                    if severity == trt.Logger.VERBOSE:
                        log.details.append(message)
                    else:
                        log.take(_LEVELS.get(severity.name, "info"), message)

            self._native[trt.__name__] = Logger()
        return self._native[trt.__name__]

    def __init__(self) -> None:
        super().__init__(1)
        self.details: deque[str] = deque(maxlen=_DETAILS)
        self._native: dict[str, object] = {}
        self._collectors: list[tuple[list[tuple[str, str]], Message | None]] = []

    @contextlib.contextmanager
    def collecting(self, message: Message | None) -> Iterator[list[tuple[str, str]]]:
        """Collects (level, text) while the block runs, and passes each on."""
        said: list[tuple[str, str]] = []
        entry = (said, message)
        self._collectors = [*self._collectors, entry]
        try:
            yield said
        finally:
            self._collectors = [one for one in self._collectors if one is not entry]

    def take(self, level: str, text: str) -> None:
        for said, message in self._collectors:
            said.append((level, text))
            if message is not None:
                message(level, text)

    def emit(self, record: logging.LogRecord) -> None:
        text = re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage()).strip()
        level = "error" if record.levelno >= logging.ERROR else (
            "warning" if record.levelno >= logging.WARNING else "info")
        self.take(level, re.sub(r"^\[\S\]\s*", "", text))


def _errors(log: Sequence[tuple[str, str]]) -> str:
    """The errors that were printed, each once, without Polygraphy's own conclusion where TensorRT said something."""
    lines = list(dict.fromkeys(text for level, text in log if level == "error"))
    told = [line for line in lines if not line.startswith(_CONCLUSIONS)]
    return "\n".join(told or lines)


def _build_error(log: Sequence[tuple[str, str]], details: Sequence[str], error: Exception) -> TrtTuiError:
    if isinstance(error, TrtTuiError):
        return error
    cause = _errors(log) or str(error)
    if _MEMORY.search(cause):
        return BuildFailed("the build ran out of device memory", cause,
                           "Free the GPU, use a smaller batch (--shapes), or build with a lower optimization level.",
                           tuple(details), refused=False)
    return BuildFailed("TensorRT could not build the engine", cause,
                       "Give the layer another precision, or build with --optimization-level 0; the log has every "
                       "message.",
                       tuple(details))


def _parse_error(name: str, version: str, errors: Sequence, model: Path) -> ParseFailed:
    """The parser's first error: what it says, and the node."""
    if not errors:
        return ParseFailed(f"{name} {version} cannot read {model.name}", "its parser gives no reason",
                           "Check the file with onnx.checker.")
    error = errors[0]
    node_name, operator = _called(error, "node_name"), _called(error, "node_operator")
    if not node_name:
        node_name, operator = _node_at(model, error.node()) or ("", "")
    description = " ".join((_called(error, "desc") or str(error)).split())
    if not node_name:
        return ParseFailed(f"{name} {version} does not take this network", description,
                           "Check the file with onnx.checker, or export it with another opset.")
    where = f" at node {node_name}" + (f" ({operator})" if operator else "")
    return ParseFailed(f"{name} {version} does not take this network{where}", description,
                       "Replace the node, export the network with another opset, or give its layer FP32 if it has "
                       "another precision; an operator that TensorRT does not know needs a plugin.", node_name)


def _node_at(model: Path, index: int) -> tuple[str, str] | None:
    """Name and operator of a node of the file, which releases before 10 tell by its number alone."""
    import onnx

    try:
        nodes = onnx.load(model, load_external_data=False).graph.node
    except Exception:  # what the parser could not read either
        return None
    return (nodes[index].name, nodes[index].op_type) if 0 <= index < len(nodes) else None


def _called(error, member: str) -> str:
    method = getattr(error, member, None)
    return str(method()) if method is not None else ""


def _load_error(backend: TensorRTBackend, log: Sequence[tuple[str, str]], error: Exception | None) -> TrtTuiError:
    cause = _errors(log) or str(error or "")
    if _MEMORY.search(cause):
        return TrtTuiError("the engine does not fit into device memory", cause, _FREE)
    if _DRIVER.search(cause):
        return BackendUnavailableError(f"{backend.name} {backend.version} does not start", cause, _COMPARE)
    next_step = "Build it again here." if _VERSION.search(cause) else "Check the file, or build it again here."
    return InputError(f"{backend.name} {backend.version} on {backend.device} cannot load this engine", cause, next_step)


def _run_error(log: Sequence[tuple[str, str]], error: Exception) -> TrtTuiError:
    if isinstance(error, TrtTuiError):
        return error
    cause = _errors(log) or str(error)
    if _MEMORY.search(cause):
        return TrtTuiError("the engine ran out of device memory", cause, "Free the GPU, or use a smaller batch.")
    return TrtTuiError("the engine could not run", cause,
                       "Check the data's shapes against the profile (--shapes NAME:MIN:OPT:MAX).")


# -- pieces that need the module --------------------------------------------------------------------------------------


def _offered(trt) -> tuple[tuple[int, int], ...]:
    names = [name for name in dir(trt.ComputeCapability) if re.fullmatch(r"SM\d+", name)]
    return tuple(sorted((int(name[2:-1]), int(name[-1])) for name in names))


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _listed(capabilities: Sequence[tuple[int, int]]) -> str:
    return ", ".join(_dotted(one) for one in capabilities)


def _member(enum, name: str):
    member = getattr(enum, name.upper(), None)
    if member is None:
        known = ", ".join(one for one in dir(enum) if one.isupper())
        raise InputError(f"unknown tactic source {name}", f"there are: {known}", "Correct the name.")
    return member


def _tensor_info(trt, engine, name: str) -> TensorInfo:
    from polygraphy.datatype import DataType

    dtype = DataType.to_dtype(DataType.from_dtype(engine.get_tensor_dtype(name), "tensorrt"), "numpy")
    return TensorInfo(name, np.dtype(dtype), tuple(engine.get_tensor_shape(name)))


def _monitor(trt, step: BuildStep):
    class Monitor(trt.IProgressMonitor):
        """Counts the steps of the outermost phase; TensorRT calls it from several threads."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.stopped = False
            self.phases: dict[str, tuple[str | None, int]] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.phases[phase_name] = (parent_phase, num_steps)
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._tell(phase_name, step + 1)

        def phase_finish(self, phase_name: str) -> None:
            self.phases.pop(phase_name, None)

        def _tell(self, phase: str, done: int) -> bool:
            _, steps = self.phases.get(phase, (None, 0))
            if not step(phase, done, steps):
                self.stopped = True
            return not self.stopped

    return Monitor()


def _profiler(trt):
    class Profiler(trt.IProfiler):
        """Adds up the time of each engine layer."""

        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times[layer_name] = self.times.get(layer_name, 0.0) + ms

    return Profiler()
