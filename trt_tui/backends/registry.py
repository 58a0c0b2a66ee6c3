"""Which backends there are, which work on this machine, and why the others do not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from trt_tui.core.runner import Backend
from trt_tui.errors import BackendUnavailableError, InputError

NAMES = ("onnxruntime",)
"""Backends that can be asked for by name."""


@dataclass(frozen=True)
class State:
    """What `trt-tui doctor` says of one backend.

    Attributes:
        works: It can be used on this machine.
        version: "" where it is not installed.
        detail: What it does here, or why it cannot.
        remedy: The command that would bring it, "" where nothing is missing.
    """

    name: str
    works: bool
    version: str
    detail: str
    remedy: str = ""


def survey() -> tuple[State, ...]:
    """The state of every backend, working ones first."""
    states = [_onnxruntime("cpu"), _onnxruntime("cuda"), _tensorrt(), _rtx()]
    return tuple(sorted(states, key=lambda state: not state.works))


def get_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """The backend asked for, or the best that works here.

    Raises:
        InputError: there is no backend of that name.
        BackendUnavailableError: it does not work on this machine.
    """
    if name not in ("auto", *NAMES):
        if name in ("tensorrt", "tensorrt-rtx"):
            raise BackendUnavailableError(
                f"{name} engines cannot be built yet", "this version simulates and runs with ONNX Runtime alone",
                "Export the typed network (--format onnx) and build it with trtexec --stronglyTyped.")
        raise InputError(f"unknown backend {name}", f"there are: auto, {', '.join(NAMES)}",
                         "Choose one with --backend.")
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(threads=threads)


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _onnxruntime(provider: str) -> State:
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

    name = f"onnxruntime ({provider})"
    extra = "cpu" if provider == "cpu" else "gpu"
    try:
        backend = OnnxRuntimeBackend(provider)
    except BackendUnavailableError as error:
        return State(name, False, _version("onnxruntime-gpu", "onnxruntime"), f"{error.title}: {error.cause}",
                     f"pip install 'trt-tui[{extra}]'")
    detail = "reference, simulation and runs" + ("" if provider == "cuda" else "; FP16 is computed in FP32 here")
    return State(name, True, backend.version, detail)


def _tensorrt() -> State:
    version = _version("tensorrt", "tensorrt_cu13", "tensorrt_cu12")
    if not version or importlib.util.find_spec("tensorrt") is None:
        return State("tensorrt", False, "", "not installed", "pip install 'trt-tui[tensorrt]'")
    return State("tensorrt", False, version, "installed; engines are not built by this version: export typed ONNX")


def _rtx() -> State:
    version = _version("tensorrt_rtx")
    if not version or importlib.util.find_spec("tensorrt_rtx") is None:
        return State("tensorrt-rtx", False, "", "not installed", "pip install 'trt-tui[rtx]'")
    return State("tensorrt-rtx", False, version, "installed; engines are not built by this version: export typed ONNX")
