"""The list of backends, and the diagnosis of the backends that do not work on this machine."""

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trt_tui.core.runner import Backend, EngineBackend
from trt_tui.errors import BackendUnavailableError

BUILDER_NAMES = ("tensorrt", "tensorrt-rtx")
"""The names of the backends that build engines."""


@dataclass(frozen=True)
class BackendDiagnosis:
    """The report of `trt-tui doctor` on one backend.

    Attributes:
        works: True if the backend can be used on this machine.
        version: The installed version; "" if the backend is not installed.
        detail: The uses of the backend on this machine, or the reason why it does not work.
        remedy: The command that installs the missing package; "" if none is missing.
        raw_message: The message of a library whose short form is in `detail`; "" if there is none.
    """

    name: str
    works: bool
    version: str
    detail: str
    remedy: str = ""
    raw_message: str = ""


def diagnose_backends() -> tuple[BackendDiagnosis, ...]:
    """Returns the diagnosis of every backend, working backends first."""
    diagnoses = [
        _diagnose_onnxruntime("cpu"),
        _diagnose_onnxruntime("cuda"),
        *(_diagnose_engine_backend(name) for name in BUILDER_NAMES),
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


def get_engine_builder(
    backend_name: str = "auto",
    on_unused_backend: Callable[[BackendUnavailableError], None] | None = None,
    *,
    plugins: Sequence[str] = (),
) -> EngineBackend | None:
    """Returns the backend that builds engines. "auto" selects TensorRT if it works. If "auto" finds no TensorRT, or for
    ONNX Runtime, returns None.

    Args:
        backend_name: "auto", "onnxruntime", or one of `BUILDER_NAMES`.
        on_unused_backend: A function that is called with the error because of which "auto" does not use an installed
            TensorRT.
        plugins: The paths of plugin libraries.

    Raises:
        InputError: A library does not load.
        BackendUnavailableError: The requested backend does not work on this machine.
    """
    if backend_name == "onnxruntime" or backend_name == "auto" and importlib.util.find_spec("tensorrt") is None:
        return None
    from trt_tui.backends.tensorrt import TensorRTBackend

    if backend_name != "auto":
        return TensorRTBackend(backend_name, plugins)
    try:
        return TensorRTBackend("tensorrt", plugins)
    except BackendUnavailableError as error:
        if on_unused_backend is not None:
            on_unused_backend(error)
        return None


def missing_builder_reason(backend_name: str = "auto") -> str:
    """Returns the reason why no TensorRT builds engines on this machine: the missing package, its releases, and the
    missing GPU.

    Args:
        backend_name: The backend that the user selected, for which `get_engine_builder` returns None.
    """
    from trt_tui.backends.tensorrt import MODULES, SUPPORTED_RELEASES

    if backend_name == "onnxruntime":
        return "--backend onnxruntime builds no engines"
    diagnosis = _diagnose_engine_backend("tensorrt")
    if diagnosis.version:
        return f"no TensorRT works here: tensorrt {diagnosis.version} is installed, and {diagnosis.detail}"
    (oldest, newest), remedy = SUPPORTED_RELEASES["tensorrt"], diagnosis.remedy
    return (
        f"no TensorRT works here: the package {MODULES['tensorrt']} (release {'.'.join(map(str, oldest))} to "
        f"{newest[0]}) is not installed, and {find_gpu_text()}; {remedy} on a machine with an NVIDIA GPU"
    )


def find_gpu_text() -> str:
    """Returns the GPU of this machine as text, or the reason why there is none: ``no NVIDIA driver was found``."""
    from trt_tui.backends.cuda import find_first_device

    try:
        device = find_first_device()
    except BackendUnavailableError as error:
        return error.title
    return f"the GPU here is {device.name} (compute capability {'.'.join(map(str, device.compute_capability))})"


def find_installed_version(*distributions: str) -> str:
    """Returns the version of the first of some packages that is installed, without an import; "" if none is."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def _diagnose_onnxruntime(provider: str) -> BackendDiagnosis:
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

    name = f"onnxruntime ({provider})"
    extra = "cpu" if provider == "cpu" else "gpu"
    try:
        backend = OnnxRuntimeBackend(provider)
    except BackendUnavailableError as error:
        return BackendDiagnosis(
            name,
            False,
            find_installed_version("onnxruntime-gpu", "onnxruntime"),
            f"{error.title}: {error.cause}",
            f"pip install 'trt-tui[{extra}]'",
        )
    detail = "reference, simulation and runs" + ("; FP16 is computed in FP32 here" if provider == "cpu" else "")
    return BackendDiagnosis(name, True, backend.version, detail)


def _diagnose_engine_backend(backend_name: str) -> BackendDiagnosis:
    """Returns the diagnosis of a TensorRT backend. The builder is started for it, but builds nothing."""
    from trt_tui.backends.cuda import find_first_device
    from trt_tui.backends.tensorrt import (
        EXTRAS,
        MODULES,
        import_tensorrt,
        shorten_cuda_error,
        startup_failure_reason,
    )

    remedy = f"pip install 'trt-tui[{EXTRAS[backend_name]}]'"
    module = MODULES[backend_name]
    if importlib.util.find_spec(module) is None:
        return BackendDiagnosis(backend_name, False, "", "not installed", remedy)
    try:
        trt = import_tensorrt(backend_name)
    except BackendUnavailableError as error:
        return BackendDiagnosis(
            backend_name,
            False,
            find_installed_version(module),
            " ".join(filter(None, (error.title, error.cause))),
            remedy,
        )
    if importlib.util.find_spec("polygraphy") is None:
        return BackendDiagnosis(backend_name, False, trt.__version__, "Polygraphy is not installed", remedy)
    try:
        device = find_first_device()
        if reason := startup_failure_reason(trt):
            return BackendDiagnosis(
                backend_name,
                False,
                trt.__version__,
                f"does not start on {device.name}: {' '.join(shorten_cuda_error(reason).split())}",
                raw_message=reason,
            )
        return BackendDiagnosis(backend_name, True, trt.__version__, f"builds and runs engines on {device.name}")
    except BackendUnavailableError as error:
        reason, raw_message = f"{error.title} ({error.cause})", error.raw_message
    if hasattr(trt, "ComputeCapability"):
        detail = f"builds engines for a named compute capability, cannot run them: {reason}"
        return BackendDiagnosis(backend_name, True, trt.__version__, detail, raw_message=raw_message)
    return BackendDiagnosis(backend_name, False, trt.__version__, reason, raw_message=raw_message)
