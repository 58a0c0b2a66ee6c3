"""The conversion of TensorRT and Polygraphy errors to errors with a title, the original message as cause, and a next
step."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from trt_tui.backends.tensorrt.log import PrintedMessages, printed_error_text
from trt_tui.core.engines.fallback_ladder import BuildError, NetworkParseError
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError

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
