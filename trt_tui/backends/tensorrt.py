"""The backend of TensorRT 8.6, 10, 11 and TensorRT-RTX, which builds engines and executes them with Polygraphy.

The first part is what is known of the package in use: its supported releases, its import, its log, its plugins and its
errors. Errors of TensorRT and Polygraphy are converted to errors with a title, the original message as cause, and a
next step. TensorRT-RTX also lists the layers of an engine that is built without a GPU and discarded.

Debug tensors are those between the kernels of an engine, with every element type. Polygraphy's own listener drops BF16,
FP8 and INT8. TensorRT calls a listener while an execution is enqueued. The memory of the tensors belongs to TensorRT
again afterwards, so the listener copies them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from trt_tui.backends.cuda import CudaDevice, find_first_device
from trt_tui.core.builder_options import WORKSPACE_POOL, BuilderOptions
from trt_tui.core.engines.fallback_ladder import LAYERNORM_WARNING_PREFIX, BuildError, NetworkParseError
from trt_tui.core.engines.inspector import LISTING_HEADING
from trt_tui.core.lowering.network_rewrite import WEAK_PRECISIONS
from trt_tui.core.lowering.weak_typing import apply_constraints
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import (
    TIMING_CACHE_REFUSED,
    BackendCapabilities,
    BuildSettings,
    BuildStep,
    ClosingContext,
    DebugTensor,
    FixedShape,
    LayerConstraints,
    Profile,
    TensorInfo,
)
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.locks import file_lock
from trt_tui.files.reading import check_regular_file, file_sha256, read_bytes
from trt_tui.files.writing import write_file_atomically

MessageCallback = Callable[[str, str], None]
"""A function that is called with the level ("error", "warning", "info") and the text of each printed message."""

PrintedMessages = Sequence[tuple[str, str]]
"""The levels and texts of printed messages, in order."""

_MAX_DETAIL_MESSAGES = 400
"""The maximum number of verbose TensorRT messages that are kept."""

_LEVELS = {"INTERNAL_ERROR": "error", "ERROR": "error", "WARNING": "warning", "INFO": "info"}
_SUMMARY_PREFIXES = ("Invalid Engine", "Invalid Context", "Invalid network", "Could not deserialize engine")
"""The first words of Polygraphy's own error summaries, which follow the actual message of TensorRT."""


class TensorRTLog(logging.Handler):
    """The log handler that receives the messages of TensorRT and Polygraphy and passes them to the current collectors.

    The last verbose messages of TensorRT are kept. If a build fails without naming a layer, they show the layer that
    the builder was processing. So is the last list of engine layers that TensorRT-RTX has printed.
    """

    _instance: TensorRTLog | None = None

    @classmethod
    def get_process_log(cls) -> TensorRTLog:
        """Returns the log of this process, which replaces the output of Polygraphy."""
        if cls._instance is None:
            from polygraphy.logger import G_LOGGER

            cls._instance = cls()
            G_LOGGER.use_python_logging_system = True
            G_LOGGER.colors = False
            G_LOGGER.module_severity = G_LOGGER.VERBOSE
            logger = logging.getLogger("Polygraphy")
            logger.propagate = False
            logger.setLevel(1)
            logger.addHandler(cls._instance)
        return cls._instance

    def get_tensorrt_logger(self, trt: Any) -> Any:
        """Returns the logger for a TensorRT package. It is always the same object, since the library may keep a
        reference to it."""
        if trt.__name__ not in self._tensorrt_loggers:
            log = self

            class Logger(trt.ILogger):  # type: ignore[misc]
                def __init__(self) -> None:
                    trt.ILogger.__init__(self)
                    self.last = ""

                def log(self, severity: Any, message: str) -> None:
                    if severity == trt.Logger.VERBOSE:
                        (log.listings if message.startswith(LISTING_HEADING) else log.details).append(message)
                        if self.last.rstrip(".") == LAYERNORM_WARNING_PREFIX:
                            log.dispatch_message("warning", f"{LAYERNORM_WARNING_PREFIX}: {message}")
                            self.last = ""
                    else:
                        self.last = message
                        log.dispatch_message(_LEVELS.get(severity.name, "info"), message)

            self._tensorrt_loggers[trt.__name__] = Logger()
        return self._tensorrt_loggers[trt.__name__]

    def __init__(self) -> None:
        super().__init__(1)
        self.details: deque[str] = deque(maxlen=_MAX_DETAIL_MESSAGES)
        self.listings: deque[str] = deque(maxlen=1)
        self._tensorrt_loggers: dict[str, Any] = {}
        self._collectors: list[tuple[list[tuple[str, str]], MessageCallback | None]] = []

    @contextlib.contextmanager
    def collect_messages(self, on_message: MessageCallback | None) -> Iterator[list[tuple[str, str]]]:
        """Collects the level and text of each message during the ``with`` block, and calls ``on_message`` for each."""
        messages: list[tuple[str, str]] = []
        entry = (messages, on_message)
        self._collectors = [*self._collectors, entry]
        try:
            yield messages
        finally:
            self._collectors = [collector for collector in self._collectors if collector is not entry]

    def dispatch_message(self, level: str, text: str) -> None:
        for messages, on_message in self._collectors:
            messages.append((level, text))
            if on_message is not None:
                on_message(level, text)

    def emit(self, record: logging.LogRecord) -> None:
        """Passes a message of Polygraphy, without its colours and marks, to all current collectors."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage()).strip()
        level = (
            "error" if record.levelno >= logging.ERROR else ("warning" if record.levelno >= logging.WARNING else "info")
        )
        self.dispatch_message(level, re.sub(r"^\[\S\]\s*", "", text))


def printed_error_text(messages: PrintedMessages, fallback_pattern: re.Pattern[str] | None = None) -> str:
    """Returns the printed error messages, each once. Polygraphy's summary is left out if TensorRT gave a reason.

    Args:
        fallback_pattern: A pattern of errors that are used only if no other error was printed.
    """
    lines = list(dict.fromkeys(text for level, text in messages if level == "error"))
    reasons = [line for line in lines if not line.startswith(_SUMMARY_PREFIXES)]
    primary_reasons = [line for line in reasons if fallback_pattern is None or not fallback_pattern.search(line)]
    return "\n".join(primary_reasons or reasons or lines)


OUT_OF_MEMORY_PATTERN = re.compile(
    r"out ?of ?memory|insufficient memory|Cuda (?:error|initialization failure with error:) 2\b|"
    r"\bOOM\b",
    re.I,
)
_DRIVER_PATTERN = re.compile(
    r"CUDA initialization failure|CUDA driver version is insufficient|no CUDA-capable device", re.I
)
_VERSION_PATTERN = re.compile(
    r"version tag|serialization|different TensorRT version|incompatible|compute capability|"
    r"built on|platform|magic",
    re.I,
)
_LAUNCH_PATTERN = re.compile(r"graph_jit\.cpp.*CUDA_SUCCESS", re.S)

_PLUGIN_PATTERN = re.compile(r"plugin|no importer registered|creator", re.I)

FREE_GPU_STEP = "Free the GPU, or use another one."
_CUDA_ERRORS = (
    (
        re.compile(r"failure with error: 35\b|cudaError 35\b|driver version is insufficient", re.I),
        "the NVIDIA driver is too old for its CUDA release",
    ),
    (re.compile(r"failure with error: 100\b|cudaError 100\b|no CUDA-capable device", re.I), "no GPU is visible"),
    (re.compile(r"CUDA initialization failure with error: (\d+)", re.I), "CUDA does not start"),
)
"""The messages of TensorRT about a CUDA that does not work, each with its short form. The numbers are those of
cudaError_t."""

CHECK_DRIVER_STEP = "Its CUDA release may need a newer driver: nvidia-smi shows which release the driver supports."


def translate_startup_error(
    backend_name: str, version: str, messages: PrintedMessages, error: Exception
) -> TrtTuiError:
    """Returns the error for a TensorRT builder or runtime that does not start."""
    cause = printed_error_text(messages) or str(error)
    if OUT_OF_MEMORY_PATTERN.search(cause):
        return TrtTuiError(f"there is not enough device memory for {backend_name} to start", cause, FREE_GPU_STEP)
    return make_startup_error(f"{backend_name} {version}", cause)


def make_startup_error(backend_title: str, message: str) -> BackendUnavailableError:
    """Returns the error for a TensorRT that does not start, with the short form of its message as the cause.

    Args:
        backend_title: The name and version of the backend.
    """
    return BackendUnavailableError(
        f"{backend_title} does not start",
        shorten_cuda_error(message),
        FREE_GPU_STEP if OUT_OF_MEMORY_PATTERN.search(message) else CHECK_DRIVER_STEP,
        raw_message=message,
    )


def shorten_cuda_error(message: str) -> str:
    """Returns the short form of a message of TensorRT about CUDA; the message itself if no short form is known."""
    return next((text for pattern, text in _CUDA_ERRORS if pattern.search(message)), message)


def translate_build_error(
    messages: PrintedMessages, details: Sequence[str], error: Exception, has_gpu: bool = True
) -> TrtTuiError:
    """Returns the error for a failed build.

    Args:
        details: The last verbose messages of the builder.
        has_gpu: True if this machine has a GPU.
    """
    if isinstance(error, TrtTuiError):
        return error
    cause = printed_error_text(messages, fallback_pattern=_DRIVER_PATTERN) or str(
        error
    )  # every build without a GPU logs a driver error
    if OUT_OF_MEMORY_PATTERN.search(cause):
        return BuildError(
            "the build ran out of device memory",
            cause,
            "Free the GPU, use a smaller batch (--shapes), or build with a lower optimization level.",
            tuple(details),
            is_refused=False,
        )
    if not has_gpu and _LAUNCH_PATTERN.search(cause):
        return BuildError(
            "this engine is built with a GPU only",
            cause,
            "Build it where there is one, or leave out --refit and --stripWeights: TensorRT-RTX 1.7 "
            "builds without a GPU, but no engines whose weights can be replaced.",
            is_refused=False,
        )
    return BuildError(
        "TensorRT could not build the engine",
        cause,
        "Give the layer another precision; the log of the app, or --verbose, shows all messages.",
        tuple(details),
    )


def translate_parser_errors(
    backend_name: str, version: str, errors: Sequence[Any], model_path: Path | None = None
) -> NetworkParseError:
    """Returns the error for a network that TensorRT's ONNX parser refuses, with the first parser error and its node.

    Args:
        model_path: The file that the parser has read; None if the network was in memory.
    """
    if not errors:
        source = model_path.name if model_path is not None else "this network"
        return NetworkParseError(
            f"{backend_name} {version} cannot read {source}",
            "its parser gives no reason",
            "Check the file with onnx.checker.",
        )
    error = errors[0]
    node_name, operator = (
        _call_parser_error_getter(error, "node_name"),
        _call_parser_error_getter(error, "node_operator"),
    )
    if not node_name:
        node_name, operator = model_path is not None and _find_node_by_index(model_path, error.node()) or ("", "")
    description = " ".join((_call_parser_error_getter(error, "desc") or str(error)).split())
    if not node_name:
        return NetworkParseError(
            f"{backend_name} {version} refuses this network",
            description,
            "Check the file with onnx.checker, or export it with another opset.",
        )
    location = f" at node {node_name}" + (f" ({operator})" if operator else "")
    next_step = (
        "Replace the node, export the network with another opset, or give its layer FP32 if it has "
        "another precision; an operator that TensorRT does not know needs a plugin (--plugins LIB.so)."
    )
    unread = operator and description.removeprefix("Assertion failed: ") == "false"  # RTX's whole message
    if unread:
        description = f"its parser does not read {operator}"
    if unread or _PLUGIN_PATTERN.search(description):
        next_step = "Load its plugin with --plugins LIB.so."
        if operator and onnx.defs.has(operator):
            next_step = (
                f"{backend_name} {version} has no {operator} of ONNX: export the network without it, use another "
                "release, or load a plugin for it with --plugins LIB.so."
            )
    return NetworkParseError(
        f"{backend_name} {version} refuses this network{location}", description, next_step, node_name
    )


def _find_node_by_index(model_path: Path, node_index: int) -> tuple[str, str] | None:
    """Returns the name and the operator of a node of an ONNX file; None if the file cannot be read.

    Parser errors of releases before 10 contain only the index of the node.
    """
    try:
        nodes = onnx.load(model_path, load_external_data=False).graph.node
    except Exception:  # the parser could not read the file either
        return None
    return (nodes[node_index].name, nodes[node_index].op_type) if 0 <= node_index < len(nodes) else None


def _call_parser_error_getter(parser_error: Any, getter_name: str) -> str:
    method = getattr(parser_error, getter_name, None)
    return str(method()) if method is not None else ""


def translate_engine_load_error(
    backend_title: str, device: str, messages: PrintedMessages, error: Exception | None
) -> TrtTuiError:
    """Returns the error for an engine that cannot be loaded.

    Args:
        backend_title: The name and version of the backend.
    """
    cause = printed_error_text(messages) or str(error or "")
    if OUT_OF_MEMORY_PATTERN.search(cause):
        return TrtTuiError("the engine does not fit into device memory", cause, FREE_GPU_STEP)
    if _DRIVER_PATTERN.search(cause):
        return make_startup_error(backend_title, cause)
    next_step = "Build it again here." if _VERSION_PATTERN.search(cause) else "Check the file, or build it again here."
    return InputError(f"{backend_title} on {device} cannot load this engine", cause, next_step)


def translate_execution_error(messages: PrintedMessages, error: Exception) -> TrtTuiError:
    """Returns the error for a failed execution of an engine."""
    if isinstance(error, TrtTuiError):
        return error
    cause = printed_error_text(messages) or str(error)
    if OUT_OF_MEMORY_PATTERN.search(cause):
        return TrtTuiError("the engine ran out of device memory", cause, "Free the GPU, or use a smaller batch.")
    return TrtTuiError(
        "the engine could not run", cause, "Check the data's shapes against the profile (--shapes NAME:MIN:OPT:MAX)."
    )


MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""The Python modules of TensorRT, by backend name."""

EXTRAS = {"tensorrt": "tensorrt", "tensorrt-rtx": "rtx"}
"""The extras of trt-tui that install TensorRT, by backend name."""

SUPPORTED_RELEASES = {"tensorrt": ((8, 6), (11,)), "tensorrt-rtx": ((1, 0), (1,))}
"""The oldest supported release and the newest known major version, by backend name."""

CUBIC_GRID_RELEASE = (1, 7)
"""The TensorRT-RTX release whose parser reads the cubic mode of GridSample (observed). Release 1.4 reads it as nearest.
"""


def import_tensorrt(backend_name: str) -> Any:
    """Imports the TensorRT package of a backend and checks its release.

    Raises:
        BackendUnavailableError: The package is not installed, does not load, or has an unsupported release.
    """
    try:
        module = importlib.import_module(MODULES[backend_name])
        version = module.__version__
    except (ImportError, OSError, AttributeError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == MODULES[backend_name]
        title = f"{backend_name} is not installed" if missing else f"{backend_name} does not load"
        raise BackendUnavailableError(
            title, "" if missing else str(error), f"pip install 'trt-tui[{EXTRAS[backend_name]}]'"
        ) from None
    oldest, newest = SUPPORTED_RELEASES[backend_name]
    numbers = parse_release_numbers(version)
    if numbers < oldest or numbers[0] > newest[0]:
        raise BackendUnavailableError(
            f"trt-tui does not support {backend_name} {version}",
            f"it supports {'.'.join(map(str, oldest))} to {newest[0]}.x",
            f"pip install 'trt-tui[{EXTRAS[backend_name]}]'",
        )
    return module


def parse_release_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def startup_failure_reason(trt: Any) -> str:
    """Returns the reason why the TensorRT builder does not start on this machine; "" if it starts."""
    log = TensorRTLog.get_process_log()
    with log.collect_messages(None) as messages:
        try:
            trt.Builder(log.get_tensorrt_logger(trt))
        except Exception as error:  # bindings raise a TypeError if the library returns nothing
            return printed_error_text(messages) or str(error)
    return ""


def load_polygraphy(backend_name: str, trt: Any) -> tuple[Any, TensorRTLog]:
    """Returns Polygraphy's loaders for a TensorRT package, and the log of both.

    Raises:
        BackendUnavailableError: Polygraphy is not installed, or this process uses it with the other TensorRT package.
    """
    try:
        from polygraphy import config
    except ImportError as error:
        raise BackendUnavailableError(
            "Polygraphy is not installed", str(error), f"pip install 'trt-tui[{EXTRAS[backend_name]}]'"
        ) from None
    rtx = backend_name == "tensorrt-rtx"
    if "polygraphy.backend.trt" in sys.modules and config.USE_TENSORRT_RTX != rtx:
        raise BackendUnavailableError(
            "another TensorRT package is in use",
            "a process can use only one of them",
            f"Start trt-tui again with --backend {backend_name}.",
        )
    config.USE_TENSORRT_RTX = rtx
    log = TensorRTLog.get_process_log()
    from polygraphy.backend import trt as loaders
    from polygraphy.backend.trt import util

    util.TRT_LOGGER = log.get_tensorrt_logger(trt)
    return loaders, log


def list_compute_capabilities(trt: Any) -> tuple[tuple[int, int], ...]:
    """Returns the compute capabilities, as (major, minor), that a TensorRT package can build for without a GPU."""
    names = [name for name in dir(getattr(trt, "ComputeCapability", None)) if re.fullmatch(r"SM\d+", name)]
    return tuple(sorted((int(name[2:-1]), int(name[-1])) for name in names))


def capability_text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def compute_capabilities_text(capabilities: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(capability_text(capability) for capability in capabilities)


_CREATOR_SYMBOLS = ("getPluginCreators", "getCreators")
"""The symbols of plugin libraries whose creators TensorRT registers on request. Other libraries register their creators
when they are loaded."""

_loaded_paths: set[str] = set()
"""The absolute paths of the libraries whose creators are registered in this process. TensorRT refuses to register them
again."""


def load_plugins(trt: Any, backend_title: str, paths: Sequence[str]) -> None:
    """Loads plugin libraries and registers their creators in TensorRT (`IPluginRegistry.load_library`, from 8.6 on).

    A library that registers its creators when it is loaded is not registered again, because TensorRT refuses that.

    The code of the libraries runs in this process. Only the background process calls this function, and only with
    libraries that the user has named.

    Args:
        backend_title: The name and version of the backend.

    Raises:
        InputError: A library cannot be loaded or registered. The message names the library.
    """
    registry = trt.get_plugin_registry()
    for path in paths:
        check_regular_file(path)
        absolute_path = os.path.abspath(path)
        creator_count = _count_creators(registry)
        try:
            library = ctypes.CDLL(absolute_path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise InputError(
                f"--plugins {path} does not load",
                str(error),
                f"Build it for {backend_title}; ldd {path} lists the libraries that it misses.",
            ) from None
        if (
            absolute_path in _loaded_paths
            or _count_creators(registry) > creator_count
            or not any(hasattr(library, symbol) for symbol in _CREATOR_SYMBOLS)
        ):
            _loaded_paths.add(absolute_path)
            continue
        try:
            handle = registry.load_library(absolute_path)
        except Exception as error:
            raise _plugin_error(backend_title, path, str(error)) from None
        if handle is None:
            raise _plugin_error(backend_title, path, "its registry accepts nothing from it")
        _loaded_paths.add(absolute_path)


def _count_creators(registry: Any) -> int:
    """Returns the number of registered creators. Release 10 introduced the list of creators of all interfaces."""
    names = ("all_creators", "plugin_creator_list")
    return max((len(getattr(registry, name)) for name in names if hasattr(registry, name)), default=0)


def _plugin_error(backend_title: str, path: str, cause: str) -> InputError:
    return InputError(f"{backend_title} refuses the plugins of {path}", cause, f"Build it for {backend_title}.")


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
            raise InputError(
                f"the values of input {tensor.name} are shapes",
                f"{backend_name} needs them in the profile, and --shapes only gives shapes of inputs",
                "Make it a constant of the network, in its exporter or with onnx-graphsurgeon; the "
                "simulation works without that.",
            )
        if tensor.name.startswith("__") and tensor.name[2:] in settings.profile:
            raise InputError(
                f"input {tensor.name[2:]} is also an output of the network",
                f"the parser of {backend_name} gives such an input another name, {tensor.name}",
                "Drop that output: it is the input, unchanged.",
            )
        if -1 in shape and tensor.name not in settings.profile:
            sizes = "x".join("?" if size == -1 else str(size) for size in shape)
            raise InputError(
                f"input {tensor.name} has dynamic dimensions and no profile",
                f"its shape is {sizes}",
                f"Give --shapes {tensor.name}:MIN:OPT:MAX with a size for every dimension.",
            )


# The timing cache is read and written here: Polygraphy, with a path, loses the engine if it cannot lock or write the
# file.
def _read_timing_cache(log: TensorRTLog, path: Path) -> _TimingCacheBytes | None:
    """Reads a timing cache file. Returns None with a warning if the file cannot be read; the build then takes longer."""
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
    except Exception as error:
        cause = error.cause if isinstance(error, TrtTuiError) else getattr(error, "strerror", None) or error
        log.dispatch_message("warning", f"the timing cache {path} cannot be written: {cause}")


def _make_builder_config_loader(
    backend: TensorRTBackend,
    settings: BuildSettings,
    layer_constraints: LayerConstraints | None,
    monitor: Any,
    timing_cache: _TimingCacheBytes | None,
) -> Any:
    """Returns the Polygraphy loader that creates the builder config."""
    name, trt, loaders, capabilities = backend.name, backend.trt, backend.loaders, backend.capabilities
    production = settings.builder_options
    profiles = [loaders.Profile() for _ in range(1 + len(settings.more_profiles))]
    for profile, extra_shapes in zip(profiles, ({}, *settings.more_profiles), strict=True):
        for tensor, (min_shape, opt_shape, max_shape) in {**settings.profile, **extra_shapes}.items():
            profile.add(tensor, min_shape, opt_shape, max_shape)
    common: dict[str, Any] = {
        "profiles": profiles,
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "load_timing_cache": timing_cache,
        "builder_optimization_level": production.optimization_level,
        "progress_monitor": monitor,
    }
    production.check_builder_support(name, backend.version)
    requested_members = _list_requested_enum_members(backend, production)
    sources = [
        (source[0], 1 << int(_find_tactic_source(trt.TacticSource, source[1:]))) for source in production.tactic_sources
    ]
    if capabilities.target_compute_capabilities:
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        requested, offered = settings.compute_capability, capabilities.target_compute_capabilities
        if requested is None and not capabilities.can_execute:
            raise InputError(
                "there is no GPU to build for",
                f"{name} builds for a named compute capability",
                f"Use --compute-capability with one of {compute_capabilities_text(offered)}.",
            )
        if requested is not None and requested not in offered:
            raise InputError(
                f"{name} {backend.version} does not build for compute capability {capability_text(requested)}",
                f"it builds for {compute_capabilities_text(offered)}",
                "Choose one of them.",
            )
        target_arguments = {"compute_capabilities": [requested]} if requested is not None else {"use_gpu": True}
        create = CreateConfigRTX(**target_arguments, **common)
    else:
        if settings.compute_capability is not None:
            raise InputError(
                f"{name} builds for the GPU it runs on",
                "a compute capability was named",
                "Leave out --compute-capability, or use --backend tensorrt-rtx.",
            )
        flags: frozenset[Precision] = (
            layer_constraints.precision_flags if layer_constraints is not None else frozenset()
        )
        constraints = layer_constraints.constraint_mode or None if layer_constraints is not None and flags else None
        create = loaders.CreateConfig(
            tf32=settings.tf32,
            fp16=Precision.FP16 in flags,
            int8=Precision.INT8 in flags,
            bf16=Precision.BF16 in flags,
            precision_constraints=constraints,
            **common,
        )

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
        enum = (
            "BuilderFlag"
            if setting.flag
            else "MemoryPoolType"
            if field.name == "workspace"
            else "HardwareCompatibilityLevel"
        )
        offered = getattr(backend.trt, enum, None)
        if not hasattr(offered, member):
            raise InputError(
                f"{backend.name} {backend.version} has no {member}",
                f"{setting.option} needs it",
                f"Leave out {setting.option}, or build with another release.",
            )
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
    class BuildProgressMonitor(trt.IProgressMonitor):  # type: ignore[misc]
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

    return BuildProgressMonitor()


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
        raise BackendUnavailableError(
            f"TensorRT-RTX {trt.__version__} is too old for a preview",
            "it cannot read weights from memory",
            "pip install -U 'trt-tui[rtx]'",
        )
    return trt


def build_and_list_engine_layers(
    trt: Any,
    model: bytes,
    weights: Mapping[str, np.ndarray],
    base_path: Path,
    profile: Profile,
    tf32: bool,
    compute_capability: tuple[int, int],
    should_continue: Callable[[], bool],
) -> tuple[str, PrintedMessages]:
    """Builds an engine of a strongly typed network without a GPU. Returns its list of layers, and the printed messages.

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
            parser.load_initializer(name, array.ctypes.data, array.nbytes) for name, array in weights.items()
        )
        if not is_loaded or not parser.parse_model_proto() or parser.num_errors:
            errors = [parser.get_error(index) for index in range(parser.num_errors)]
            raise translate_parser_errors("tensorrt-rtx", trt.__version__, errors)
        allow_attention_decomposition(trt, network)
        config = builder.create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(
            getattr(trt.ComputeCapability, f"SM{compute_capability[0]}{compute_capability[1]}"), 0
        )
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
        raise InputError(
            "TensorRT-RTX does not list the layers of the engine",
            f"release {trt.__version__} prints no message that begins with {LISTING_HEADING}",
            "Another release may print it; a build on a GPU reports its layers through the inspector.",
        )
    return log.listings[-1], [message for message in messages if message[0] != "info"]


_TENSOR_TYPES: dict[str, tuple[np.dtype, Precision]] = {
    "FLOAT": (np.dtype(np.float32), Precision.FP32),
    "HALF": (np.dtype(np.float16), Precision.FP16),
    "BF16": (np.dtype(ml_dtypes.bfloat16), Precision.BF16),
    "FP8": (np.dtype(ml_dtypes.float8_e4m3fn), Precision.FP8),
    "INT8": (np.dtype(np.int8), Precision.INT8),
}
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

    class DebugTensorListener(trt.IDebugListener):  # type: ignore[misc]
        """A TensorRT debug listener that copies each named tensor it receives."""

        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)
            self.found: dict[str, DebugTensor] = {}
            self.failed = ""

        def process_debug_tensor(self, addr: Any, location: Any, type: Any, shape: Any, name: str, stream: Any) -> None:
            if name not in tensor_names or type.name not in _TENSOR_TYPES:
                return
            dtype, precision = _TENSOR_TYPES[type.name]
            try:
                raw, address, handle = np.empty(tuple(shape), dtype), _read_pointer_address(addr), int(stream)
                if location == trt.TensorLocation.HOST:
                    ctypes.memmove(raw.ctypes.data, address, raw.nbytes)
                else:
                    cuda.wrapper().stream_synchronize(handle)
                    cuda.wrapper().memcpy(raw.ctypes.data, address, raw.nbytes, cuda.MemcpyKind.DeviceToHost, handle)
                    cuda.wrapper().stream_synchronize(handle)
                self.found[name] = DebugTensor(raw.astype(np.float32), precision)
            except Exception as error:  # no exception may pass through TensorRT
                self.failed = self.failed or f"{name}: {error}"

    return DebugTensorListener()


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
            raise RuntimeError(
                "the engine's run cannot be captured" + (f" (CUDA error {end_status})" if end_status else "")
            )
        try:
            self._call_cuda_runtime(
                "cudaGraphInstantiateWithFlags", ctypes.byref(self._executable_graph), graph, ctypes.c_ulonglong(0)
            )
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


class TensorRTRunner(ClosingContext):
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
            for index in range(count if count > 1 else 0)
        )
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
        return {
            **debug_listener.found,
            **{
                name: DebugTensor(array.astype(np.float32), _FLOAT_TYPES[array.dtype.name])
                for name, array in arrays.items()
                if array.dtype.name in _FLOAT_TYPES
            },
        }

    def inspect(self) -> str:
        """Returns the JSON of the engine inspector, with all tensor types and formats."""
        inspector = self._engine.create_engine_inspector()
        context = self._runner.context
        for info in self.inputs:  # the inspector reports types and formats only if every shape is set
            if -1 in tuple(context.get_tensor_shape(info.name)):
                context.set_input_shape(
                    info.name, self._engine.get_tensor_profile_shape(info.name, self._active_profile)[1]
                )
        inspector.execution_context = context
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def _activate_matching_profile(self, runner: Any, engine_feed: Mapping[str, np.ndarray]) -> None:
        """Activates the selected optimization profile, or the first profile that matches the shapes of a feed.

        If no profile matches, TensorRT reports the error.
        """

        def fits_profile(profile: Profile) -> bool:
            return all(
                low <= size <= high
                for name, (min_shape, _, max_shape) in profile.items()
                for low, size, high in zip(min_shape, engine_feed[name].shape, max_shape, strict=False)
            )

        matching_indices = (index for index, candidate in enumerate(self.profiles) if fits_profile(candidate))
        chosen = (
            self._pinned_profile if self._pinned_profile is not None else next(matching_indices, self._active_profile)
        )
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
                    raise InputError(
                        f"input {info.name} does not fit the engine",
                        f"the engine takes {info.dtype}, and a value is out of its range",
                        "Check the data.",
                    )
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


def _activate_polygraphy_runner(runner: Any) -> None:
    """Activates a runner of Polygraphy without debug tensors.

    Polygraphy would copy all debug tensors in every execution, which would distort timings.
    """
    runner.activate()
    if hasattr(runner.context, "set_all_tensors_debug_state"):
        runner.context.set_all_tensors_debug_state(False)


def _deactivate_polygraphy_runner(runner: Any) -> None:
    """Deactivates a runner of Polygraphy and frees its output buffers. Polygraphy itself frees only the input buffers."""
    if not runner.is_active:
        return
    for buffer in getattr(getattr(runner, "output_allocator", None), "buffers", {}).values():
        if hasattr(buffer, "free"):
            buffer.free()
    runner.deactivate()


def _read_profile_shapes(engine: Any, input_name: str, profile_index: int) -> tuple[FixedShape, FixedShape, FixedShape]:
    min_shape, opt_shape, max_shape = (
        tuple(map(int, shape)) for shape in engine.get_tensor_profile_shape(input_name, profile_index)
    )
    return min_shape, opt_shape, max_shape


def _read_tensor_info(engine: Any, tensor_name: str) -> TensorInfo:
    from polygraphy.datatype import DataType

    dtype = DataType.to_dtype(DataType.from_dtype(engine.get_tensor_dtype(tensor_name), "tensorrt"), "numpy")
    return TensorInfo(tensor_name, np.dtype(dtype), tuple(engine.get_tensor_shape(tensor_name)))


def _make_profiler(trt: Any) -> Any:
    class LayerTimeProfiler(trt.IProfiler):  # type: ignore[misc]
        """A TensorRT profiler that sums the time of each engine layer."""

        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times[layer_name] = self.times.get(layer_name, 0.0) + ms

    return LayerTimeProfiler()


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
        runs = self._device is not None and (
            not compute_capabilities or self._device.compute_capability in compute_capabilities
        )
        strongly_typed = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
        quantized_types = {
            precision
            for precision, quantized_type in QUANTIZED_TYPES.items()
            if strongly_typed and hasattr(trt.DataType, quantized_type.tensorrt_type)
        }  # release 8.6 lists FP8 but does not support it
        self.capabilities = BackendCapabilities(
            can_execute=runs,
            computes_in_fp16=True,
            supports_bf16=hasattr(trt.DataType, "BF16"),
            quantized_types=WEAK_PRECISIONS | quantized_types,
            gpu_compute_capability=self._device.compute_capability if self._device is not None else None,
            strongly_typed=strongly_typed,
            weakly_typed=hasattr(trt.BuilderFlag, "INT8"),
            supports_cubic_grids=name == "tensorrt-rtx" and parse_release_numbers(version) >= CUBIC_GRID_RELEASE,
            reports_progress=hasattr(trt, "IProgressMonitor"),
            debug_tensors=hasattr(trt.INetworkDefinition, "mark_unfused_tensors_as_debug_tensors"),
            target_compute_capabilities=compute_capabilities,
        )
        self.trt, self.loaders, self.log = trt, loaders, log
        self.name, self.version = name, version
        self.device = self._device.name if self._device is not None else ""

    @property
    def cache_identity(self) -> tuple[object, ...]:
        """The parts of a cache key that an engine depends on: package, version, plugins, GPU and driver."""
        device = self._device
        return (
            self.name,
            self.version,
            *self._plugins,
            *((device.name, device.compute_capability, device.driver) if device else ()),
        )

    def build(
        self,
        model_path: Path,
        settings: BuildSettings,
        constraints: LayerConstraints | None = None,
        *,
        on_step: BuildStep | None = None,
        on_message: MessageCallback | None = None,
    ) -> bytes:
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
                apply_constraints(
                    self.trt,
                    network,
                    constraints.precisions,
                    constraints.output_types,
                    constraints.ranges,
                    constraints.inner_ranges,
                    constraints.constant_ranges,
                    constraints.layer_names,
                )
            if settings.debug_tensors and not network.mark_unfused_tensors_as_debug_tensors():
                self.log.dispatch_message("warning", "TensorRT does not let its unfused tensors be read")
            monitor = (
                make_progress_monitor(self.trt, on_step)
                if on_step is not None and self.capabilities.reports_progress
                else None
            )
            cache = Path(settings.builder_options.timing_cache) if settings.builder_options.timing_cache else None
            timing_cache = _read_timing_cache(self.log, cache) if cache is not None else None
            try:
                config = _make_builder_config_loader(self, settings, constraints, monitor, timing_cache)(
                    builder, network
                )
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
            reason = (
                "no GPU is visible"
                if self._device is None
                else (
                    f"{self.device} has compute capability {capability_text(self._device.compute_capability)}, and the "
                    f"backend runs on {compute_capabilities_text(self.capabilities.target_compute_capabilities)}"
                )
            )
            raise BackendUnavailableError(
                f"{self.name} engines cannot run on this machine",
                reason,
                "Run it on a GPU that it was built for; trt-tui inspect also takes the JSON "
                "of trtexec --exportLayerInfo.",
            )
        with self.log.collect_messages(None) as messages:
            try:
                runtime = self.trt.Runtime(self.log.get_tensorrt_logger(self.trt))
            except Exception as error:
                raise translate_startup_error(self.name, self.version, messages, error) from None
            try:
                engine = self.loaders.engine_from_bytes(data, runtime=runtime)
            except Exception as error:
                raise translate_engine_load_error(f"{self.name} {self.version}", self.device, messages, error) from None
            if engine is None:
                raise translate_engine_load_error(f"{self.name} {self.version}", self.device, messages, None)
            return TensorRTRunner(self.trt, engine, self.log)
