"""Turns TensorRT's and Polygraphy's errors into a title, the cause in their words, and a next step."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from trt_tui.backends.tensorrt.log import Printed, printed_errors
from trt_tui.core.engines.failures import BuildFailed, ParseFailed
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError

MEMORY = re.compile(r"out ?of ?memory|insufficient memory|Cuda (?:error|initialization failure with error:) 2\b|"
                     r"\bOOM\b", re.I)
_DRIVER = re.compile(r"CUDA initialization failure|CUDA driver version is insufficient|no CUDA-capable device", re.I)
_VERSION = re.compile(r"version tag|serialization|different TensorRT version|incompatible|compute capability|"
                      r"built on|platform|magic", re.I)
_LAUNCHES = re.compile(r"graph_jit\.cpp.*CUDA_SUCCESS", re.S)

_PLUGIN = re.compile(r"plugin|no importer registered|creator", re.I)

FREE = "Free the GPU, or use another one."
COMPARE = "Its CUDA release may need a newer driver: nvidia-smi shows which release the driver supports."


def start_error(name: str, version: str, log: Printed, error: Exception) -> TrtTuiError:
    """Why a builder or runtime does not start."""
    cause = printed_errors(log) or str(error)
    if MEMORY.search(cause):
        return TrtTuiError(f"there is not enough device memory for {name} to start", cause, FREE)
    return BackendUnavailableError(f"{name} {version} does not start", cause, COMPARE)


def build_error(log: Printed, details: Sequence[str], error: Exception, runs: bool = True) -> TrtTuiError:
    """Why a build failed.

    Args:
        details: The last of the builder's most detailed messages.
        runs: There is a GPU here.
    """
    if isinstance(error, TrtTuiError):
        return error
    cause = printed_errors(log, aside=_DRIVER) or str(error)  # builds without a GPU all say that
    if MEMORY.search(cause):
        return BuildFailed("the build ran out of device memory", cause,
                           "Free the GPU, use a smaller batch (--shapes), or build with a lower optimization level.",
                           tuple(details), refused=False)
    if not runs and _LAUNCHES.search(cause):
        return BuildFailed("this engine is built with a GPU only", cause,
                           "Build it where there is one, or leave out --refit and --strip-plan: TensorRT-RTX 1.7 "
                           "builds without a GPU, but no engines whose weights can be replaced.", refused=False)
    return BuildFailed("TensorRT could not build the engine", cause,
                       "Give the layer another precision; the log holds all messages.", tuple(details))


def parse_error(name: str, version: str, found: Sequence[Any], model: Path | None = None) -> ParseFailed:
    """The parser's first error: what it says, and the node; ``model`` is the file that it read, if it was one."""
    if not found:
        read = model.name if model is not None else "this network"
        return ParseFailed(f"{name} {version} cannot read {read}", "its parser gives no reason",
                           "Check the file with onnx.checker.")
    error = found[0]
    node_name, operator = _called(error, "node_name"), _called(error, "node_operator")
    if not node_name:
        node_name, operator = model is not None and _node_at(model, error.node()) or ("", "")
    description = " ".join((_called(error, "desc") or str(error)).split())
    if not node_name:
        return ParseFailed(f"{name} {version} does not take this network", description,
                           "Check the file with onnx.checker, or export it with another opset.")
    where = f" at node {node_name}" + (f" ({operator})" if operator else "")
    next_step = ("Replace the node, export the network with another opset, or give its layer FP32 if it has "
                 "another precision; an operator that TensorRT does not know needs a plugin (--plugins LIB.so).")
    unread = operator and description.removeprefix("Assertion failed: ") == "false"  # all that RTX says then
    if unread:
        description = f"its parser does not read {operator}"
    if unread or _PLUGIN.search(description):
        next_step = "Load its plugin with --plugins LIB.so."
        if operator and onnx.defs.has(operator):
            next_step = (f"{name} {version} has no {operator} of ONNX: export the network without it, use another "
                         "release, or load a plugin for it with --plugins LIB.so.")
    return ParseFailed(f"{name} {version} does not take this network{where}", description, next_step, node_name)


def _node_at(model: Path, index: int) -> tuple[str, str] | None:
    """Name and operator of a node of the file; releases before 10 give its number only."""
    try:
        nodes = onnx.load(model, load_external_data=False).graph.node
    except Exception:  # the parser could not read it either
        return None
    return (nodes[index].name, nodes[index].op_type) if 0 <= index < len(nodes) else None


def _called(error: Any, member: str) -> str:
    method = getattr(error, member, None)
    return str(method()) if method is not None else ""


def load_error(backend: str, device: str, log: Printed, error: Exception | None) -> TrtTuiError:
    """Why an engine does not load; ``backend`` with its version."""
    cause = printed_errors(log) or str(error or "")
    if MEMORY.search(cause):
        return TrtTuiError("the engine does not fit into device memory", cause, FREE)
    if _DRIVER.search(cause):
        return BackendUnavailableError(f"{backend} does not start", cause, COMPARE)
    next_step = "Build it again here." if _VERSION.search(cause) else "Check the file, or build it again here."
    return InputError(f"{backend} on {device} cannot load this engine", cause, next_step)


def run_error(log: Printed, error: Exception) -> TrtTuiError:
    """Why an engine did not run."""
    if isinstance(error, TrtTuiError):
        return error
    cause = printed_errors(log) or str(error)
    if MEMORY.search(cause):
        return TrtTuiError("the engine ran out of device memory", cause, "Free the GPU, or use a smaller batch.")
    return TrtTuiError("the engine could not run", cause,
                       "Check the data's shapes against the profile (--shapes NAME:MIN:OPT:MAX).")
