"""Which backends there are, which work on this machine, and why the others do not."""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trt_tui.core.runner import Backend, EngineBackend
from trt_tui.errors import BackendUnavailableError, InputError

BUILDERS = ("tensorrt", "tensorrt-rtx")
"""Backends that build engines."""

NAMES = ("onnxruntime", *BUILDERS)
"""Backends that a user can name."""


@dataclass(frozen=True)
class Diagnosis:
    """What `trt-tui doctor` says of one backend.

    Attributes:
        works: It can be used on this machine.
        version: "" if it is not installed.
        detail: What it does here, or why it does not work.
        remedy: The command that installs what is missing, "" if nothing is.
    """

    name: str
    works: bool
    version: str
    detail: str
    remedy: str = ""


def survey() -> tuple[Diagnosis, ...]:
    """The diagnosis of every backend, working ones first."""
    found = [_onnxruntime("cpu"), _onnxruntime("cuda"), *(_engines(name) for name in BUILDERS)]
    return tuple(sorted(found, key=lambda one: not one.works))


def get_backend(threads: int | None = None, *, operators: Sequence[str] = ()) -> Backend:
    """The backend that simulates and computes the reference.

    Args:
        operators: Libraries of custom operators.

    Raises:
        InputError: one of the libraries does not load.
        BackendUnavailableError: it does not work on this machine.
    """
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(threads=threads, operators=operators)


def get_builder(name: str = "auto", note: Callable[[str], None] | None = None, *, plugins: Sequence[str] = ()
                ) -> EngineBackend | None:
    """The backend that builds engines: the one asked for, with "auto" TensorRT if it works; None for ONNX Runtime.

    Args:
        note: Called with the reason why an installed TensorRT is not used, for "auto".
        plugins: Libraries of plugins.

    Raises:
        InputError: there is no backend of that name, or one of the libraries does not load.
        BackendUnavailableError: the one asked for does not work on this machine.
    """
    if name not in ("auto", *NAMES):
        raise InputError(f"unknown backend {name}", f"there are: auto, {', '.join(NAMES)}",
                         "Choose one with --backend.")
    if name == "onnxruntime" or name == "auto" and importlib.util.find_spec("tensorrt") is None:
        return None
    from trt_tui.backends.tensorrt.backend import TensorRTBackend

    if name != "auto":
        return TensorRTBackend(name, plugins)
    try:
        return TensorRTBackend("tensorrt", plugins)
    except BackendUnavailableError as error:
        if note is not None:
            note(f"TensorRT is installed but not used: {error.title}: {error.cause}")
        return None


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # the next name may be the installed one
            continue
    return ""


def _onnxruntime(provider: str) -> Diagnosis:
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

    name = f"onnxruntime ({provider})"
    extra = "cpu" if provider == "cpu" else "gpu"
    try:
        backend = OnnxRuntimeBackend(provider)
    except BackendUnavailableError as error:
        return Diagnosis(name, False, _version("onnxruntime-gpu", "onnxruntime"), f"{error.title}: {error.cause}",
                     f"pip install 'trt-tui[{extra}]'")
    detail = "reference, simulation and runs; "
    detail += "FP16 is computed in FP32 here" if provider == "cpu" else f"the simulation as {backend.best_level()}"
    return Diagnosis(name, True, backend.version, detail)


def _engines(name: str) -> Diagnosis:
    """Whether TensorRT can build here: its builder is started, but nothing is built."""
    from trt_tui.backends.cuda import first_device
    from trt_tui.backends.tensorrt.package import EXTRAS, MODULES, module_for, not_starting

    remedy = f"pip install 'trt-tui[{EXTRAS[name]}]'"
    module = MODULES[name]
    if importlib.util.find_spec(module) is None:
        return Diagnosis(name, False, "", "not installed", remedy)
    try:
        trt = module_for(name)
    except BackendUnavailableError as error:
        return Diagnosis(name, False, _version(module), " ".join(filter(None, (error.title, error.cause))), remedy)
    if importlib.util.find_spec("polygraphy") is None:
        return Diagnosis(name, False, trt.__version__, "Polygraphy is not installed", remedy)
    try:
        device = first_device()
        if why := not_starting(trt):
            return Diagnosis(name, False, trt.__version__, f"does not start on {device.name}: {' '.join(why.split())}")
        return Diagnosis(name, True, trt.__version__, f"builds and runs engines on {device.name}")
    except BackendUnavailableError as error:
        why = f"{error.title} ({error.cause})"
    if hasattr(trt, "ComputeCapability"):
        what = f"builds engines for a named compute capability, cannot run them: {why}"
        return Diagnosis(name, True, trt.__version__, what)
    return Diagnosis(name, False, trt.__version__, why)
