"""The TensorRT package in use: its supported releases, its import, its log, its plugins and its errors.

Errors of TensorRT and Polygraphy are converted to errors with a title, the original message as cause, and a next step.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from trt_tui.core.engines.fallback_ladder import LAYERNORM_WARNING_PREFIX, BuildError, NetworkParseError
from trt_tui.core.engines.inspector import LISTING_HEADING
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError
from trt_tui.files.reading import check_regular_file

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
        level = "error" if record.levelno >= logging.ERROR else (
            "warning" if record.levelno >= logging.WARNING else "info")
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
    r"\bOOM\b", re.I)
_DRIVER_PATTERN = re.compile(r"CUDA initialization failure|CUDA driver version is insufficient|no CUDA-capable device",
                             re.I)
_VERSION_PATTERN = re.compile(r"version tag|serialization|different TensorRT version|incompatible|compute capability|"
                              r"built on|platform|magic", re.I)
_LAUNCH_PATTERN = re.compile(r"graph_jit\.cpp.*CUDA_SUCCESS", re.S)

_PLUGIN_PATTERN = re.compile(r"plugin|no importer registered|creator", re.I)

FREE_GPU_STEP = "Free the GPU, or use another one."
_CUDA_ERRORS = ((re.compile(r"failure with error: 35\b|cudaError 35\b|driver version is insufficient", re.I),
                 "the NVIDIA driver is too old for its CUDA release"),
                (re.compile(r"failure with error: 100\b|cudaError 100\b|no CUDA-capable device", re.I),
                 "no GPU is visible"),
                (re.compile(r"CUDA initialization failure with error: (\d+)", re.I), "CUDA does not start"))
"""The messages of TensorRT about a CUDA that does not work, each with its short form. The numbers are those of
cudaError_t."""

CHECK_DRIVER_STEP = "Its CUDA release may need a newer driver: nvidia-smi shows which release the driver supports."


def translate_startup_error(backend_name: str, version: str, messages: PrintedMessages,
                            error: Exception) -> TrtTuiError:
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
    return BackendUnavailableError(f"{backend_title} does not start", shorten_cuda_error(message),
                                   FREE_GPU_STEP if OUT_OF_MEMORY_PATTERN.search(message) else CHECK_DRIVER_STEP,
                                   raw_message=message)


def shorten_cuda_error(message: str) -> str:
    """Returns the short form of a message of TensorRT about CUDA; the message itself if no short form is known."""
    return next((text for pattern, text in _CUDA_ERRORS if pattern.search(message)), message)


def translate_build_error(messages: PrintedMessages, details: Sequence[str], error: Exception,
                          has_gpu: bool = True) -> TrtTuiError:
    """Returns the error for a failed build.

    Args:
        details: The last verbose messages of the builder.
        has_gpu: True if this machine has a GPU.
    """
    if isinstance(error, TrtTuiError):
        return error
    cause = printed_error_text(messages, fallback_pattern=_DRIVER_PATTERN) or str(
        error)  # every build without a GPU logs a driver error
    if OUT_OF_MEMORY_PATTERN.search(cause):
        return BuildError("the build ran out of device memory", cause,
                          "Free the GPU, use a smaller batch (--shapes), or build with a lower optimization level.",
                          tuple(details), is_refused=False)
    if not has_gpu and _LAUNCH_PATTERN.search(cause):
        return BuildError("this engine is built with a GPU only", cause,
                          "Build it where there is one, or leave out --refit and --stripWeights: TensorRT-RTX 1.7 "
                          "builds without a GPU, but no engines whose weights can be replaced.", is_refused=False)
    return BuildError("TensorRT could not build the engine", cause,
                      "Give the layer another precision; the log of the app, or --verbose, shows all messages.",
                      tuple(details))


def translate_parser_errors(backend_name: str, version: str, errors: Sequence[Any],
                            model_path: Path | None = None) -> NetworkParseError:
    """Returns the error for a network that TensorRT's ONNX parser refuses, with the first parser error and its node.

    Args:
        model_path: The file that the parser has read; None if the network was in memory.
    """
    if not errors:
        source = model_path.name if model_path is not None else "this network"
        return NetworkParseError(f"{backend_name} {version} cannot read {source}", "its parser gives no reason",
                                 "Check the file with onnx.checker.")
    error = errors[0]
    node_name, operator = _call_parser_error_getter(error,
                                                    "node_name"), _call_parser_error_getter(error, "node_operator")
    if not node_name:
        node_name, operator = model_path is not None and _find_node_by_index(model_path, error.node()) or ("", "")
    description = " ".join((_call_parser_error_getter(error, "desc") or str(error)).split())
    if not node_name:
        return NetworkParseError(f"{backend_name} {version} refuses this network", description,
                                 "Check the file with onnx.checker, or export it with another opset.")
    location = f" at node {node_name}" + (f" ({operator})" if operator else "")
    next_step = ("Replace the node, export the network with another opset, or give its layer FP32 if it has "
                 "another precision; an operator that TensorRT does not know needs a plugin (--plugins LIB.so).")
    unread = operator and description.removeprefix("Assertion failed: ") == "false"  # RTX's whole message
    if unread:
        description = f"its parser does not read {operator}"
    if unread or _PLUGIN_PATTERN.search(description):
        next_step = "Load its plugin with --plugins LIB.so."
        if operator and onnx.defs.has(operator):
            next_step = (
                f"{backend_name} {version} has no {operator} of ONNX: export the network without it, use another "
                "release, or load a plugin for it with --plugins LIB.so.")
    return NetworkParseError(f"{backend_name} {version} refuses this network{location}", description, next_step,
                             node_name)


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


def translate_engine_load_error(backend_title: str, device: str, messages: PrintedMessages,
                                error: Exception | None) -> TrtTuiError:
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
    return TrtTuiError("the engine could not run", cause,
                       "Check the data's shapes against the profile (--shapes NAME:MIN:OPT:MAX).")


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
        raise BackendUnavailableError(title, "" if missing else str(error),
                                      f"pip install 'trt-tui[{EXTRAS[backend_name]}]'") from None
    oldest, newest = SUPPORTED_RELEASES[backend_name]
    numbers = parse_release_numbers(version)
    if numbers < oldest or numbers[0] > newest[0]:
        raise BackendUnavailableError(f"trt-tui does not support {backend_name} {version}",
                                      f"it supports {'.'.join(map(str, oldest))} to {newest[0]}.x",
                                      f"pip install 'trt-tui[{EXTRAS[backend_name]}]'")
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
        raise BackendUnavailableError("Polygraphy is not installed", str(error),
                                      f"pip install 'trt-tui[{EXTRAS[backend_name]}]'") from None
    rtx = backend_name == "tensorrt-rtx"
    if "polygraphy.backend.trt" in sys.modules and config.USE_TENSORRT_RTX != rtx:
        raise BackendUnavailableError("another TensorRT package is in use", "a process can use only one of them",
                                      f"Start trt-tui again with --backend {backend_name}.")
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


def capabilities_text(capabilities: tuple[tuple[int, int], ...]) -> str:
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
            raise InputError(f"--plugins {path} does not load", str(error),
                             f"Build it for {backend_title}; ldd {path} lists the libraries that it misses.") from None
        if (absolute_path in _loaded_paths or _count_creators(registry) > creator_count
                or not any(hasattr(library, symbol) for symbol in _CREATOR_SYMBOLS)):
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
