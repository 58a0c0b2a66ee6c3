"""The supported TensorRT packages and releases, and the package in use."""

import importlib
import re
import sys
from dataclasses import dataclass
from typing import Any

from trt_tui.backends.tensorrt.log import TensorRTLog, printed_error_text
from trt_tui.core.runner import BackendCapabilities
from trt_tui.errors import BackendUnavailableError

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""The Python modules of TensorRT, by backend name."""

EXTRAS = {"tensorrt": "tensorrt", "tensorrt-rtx": "rtx"}
"""The extras of trt-tui that install TensorRT, by backend name."""

SUPPORTED_RELEASES = {"tensorrt": ((8, 6), (11,)), "tensorrt-rtx": ((1, 0), (1,))}
"""The oldest supported release and the newest known major version, by backend name."""

CUBIC_GRID_RELEASE = (1, 7)
"""The TensorRT-RTX release whose parser reads the cubic mode of GridSample (observed). Release 1.4 reads it as nearest.
"""


@dataclass(frozen=True)
class TensorRTPackage:
    """A TensorRT package with Polygraphy's loaders for it.

    Attributes:
        name: The backend name, "tensorrt" or "tensorrt-rtx".
        trt: The Python module of the package.
        loaders: Polygraphy's module ``polygraphy.backend.trt``.
        log: The log of TensorRT and Polygraphy messages.
        capabilities: The features of this release on this machine.
    """

    name: str
    trt: Any
    loaders: Any
    log: TensorRTLog
    capabilities: BackendCapabilities

    @property
    def version(self) -> str:
        return str(self.trt.__version__)


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
