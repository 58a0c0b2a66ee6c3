"""The list of backends, and the diagnosis of the backends that do not work on this machine."""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trt_tui.core.runner import Backend, EngineBackend
from trt_tui.errors import BackendUnavailableError, InputError

BUILDER_NAMES = ("tensorrt", "tensorrt-rtx")
"""The names of the backends that build engines."""

BACKEND_NAMES = ("onnxruntime", *BUILDER_NAMES)
"""The names of the backends that a user can select."""


@dataclass(frozen=True)
class BackendDiagnosis:
    """The report of `trt-tui doctor` on one backend.

    Attributes:
        works: True if the backend can be used on this machine.
        version: The installed version; "" if the backend is not installed.
        detail: The uses of the backend on this machine, or the reason why it does not work.
        remedy: The command that installs the missing package; "" if none is missing.
    """

    name: str
    works: bool
    version: str
    detail: str
    remedy: str = ""


def diagnose_backends() -> tuple[BackendDiagnosis, ...]:
    """Returns the diagnosis of every backend, working backends first."""
    diagnoses = [
        _diagnose_onnxruntime("cpu"),
        _diagnose_onnxruntime("cuda"), *(_diagnose_engine_backend(name) for name in BUILDER_NAMES)
    ]
    return tuple(sorted(diagnoses, key=lambda diagnosis: not diagnosis.works))


def get_simulation_backend(threads: int | None = None, *, operators: Sequence[str] = ()) -> Backend:
    """Returns the backend that executes the simulation and the reference.

    Args:
        operators: The paths of custom operator libraries.

    Raises:
        InputError: A library does not load.
        BackendUnavailableError: The backend does not work on this machine.
    """
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(threads=threads, operators=operators)


def get_engine_builder(backend_name: str = "auto", on_unused_backend: Callable[[str], None] | None = None, *,
                       plugins: Sequence[str] = ()) -> EngineBackend | None:
    """Returns the backend that builds engines. "auto" selects TensorRT if it works. Returns None for ONNX Runtime, and
    if "auto" finds no working TensorRT.

    Args:
        on_unused_backend: A function that is called with the reason why "auto" does not use an installed TensorRT.
        plugins: The paths of plugin libraries.

    Raises:
        InputError: There is no backend with that name, or a library does not load.
        BackendUnavailableError: The requested backend does not work on this machine.
    """
    if backend_name not in ("auto", *BACKEND_NAMES):
        raise InputError(f"unknown backend {backend_name}", f"available: auto, {', '.join(BACKEND_NAMES)}",
                         "Choose one with --backend.")
    if backend_name == "onnxruntime" or backend_name == "auto" and importlib.util.find_spec("tensorrt") is None:
        return None
    from trt_tui.backends.tensorrt.backend import TensorRTBackend

    if backend_name != "auto":
        return TensorRTBackend(backend_name, plugins)
    try:
        return TensorRTBackend("tensorrt", plugins)
    except BackendUnavailableError as error:
        if on_unused_backend is not None:
            on_unused_backend(f"TensorRT is installed but not used: {error.title}: {error.cause}")
        return None


def find_tensorrt_version() -> str:
    """Returns the version of the installed TensorRT package, which is not imported; "" if it is not installed."""
    return _find_installed_version("tensorrt")


def _find_installed_version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # the next package may be installed
            continue
    return ""


def _diagnose_onnxruntime(provider: str) -> BackendDiagnosis:
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

    name = f"onnxruntime ({provider})"
    extra = "cpu" if provider == "cpu" else "gpu"
    try:
        backend = OnnxRuntimeBackend(provider)
    except BackendUnavailableError as error:
        return BackendDiagnosis(name, False, _find_installed_version("onnxruntime-gpu", "onnxruntime"),
                                f"{error.title}: {error.cause}", f"pip install 'trt-tui[{extra}]'")
    detail = "reference, simulation and runs; "
    detail += ("FP16 is computed in FP32 here"
               if provider == "cpu" else f"the simulation as {backend.describe_best_execution_mode()}")
    return BackendDiagnosis(name, True, backend.version, detail)


def _diagnose_engine_backend(backend_name: str) -> BackendDiagnosis:
    """Returns the diagnosis of a TensorRT backend. The builder is started for it, but builds nothing."""
    from trt_tui.backends.cuda import find_first_device
    from trt_tui.backends.tensorrt.package import EXTRAS, MODULES, import_tensorrt, startup_failure_reason

    remedy = f"pip install 'trt-tui[{EXTRAS[backend_name]}]'"
    module = MODULES[backend_name]
    if importlib.util.find_spec(module) is None:
        return BackendDiagnosis(backend_name, False, "", "not installed", remedy)
    try:
        trt = import_tensorrt(backend_name)
    except BackendUnavailableError as error:
        return BackendDiagnosis(backend_name, False, _find_installed_version(module),
                                " ".join(filter(None, (error.title, error.cause))), remedy)
    if importlib.util.find_spec("polygraphy") is None:
        return BackendDiagnosis(backend_name, False, trt.__version__, "Polygraphy is not installed", remedy)
    try:
        device = find_first_device()
        if reason := startup_failure_reason(trt):
            return BackendDiagnosis(backend_name, False, trt.__version__,
                                    f"does not start on {device.name}: {' '.join(reason.split())}")
        return BackendDiagnosis(backend_name, True, trt.__version__, f"builds and runs engines on {device.name}")
    except BackendUnavailableError as error:
        reason = f"{error.title} ({error.cause})"
    if hasattr(trt, "ComputeCapability"):
        detail = f"builds engines for a named compute capability, cannot run them: {reason}"
        return BackendDiagnosis(backend_name, True, trt.__version__, detail)
    return BackendDiagnosis(backend_name, False, trt.__version__, reason)
