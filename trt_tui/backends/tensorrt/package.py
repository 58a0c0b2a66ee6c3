"""The TensorRT packages and releases that are supported, and the package in use."""

import importlib
import re
import sys
from dataclasses import dataclass
from typing import Any

from trt_tui.backends.tensorrt.log import Log, printed_errors
from trt_tui.core.runner import Capabilities
from trt_tui.errors import BackendUnavailableError

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""Packages by backend name."""

EXTRAS = {"tensorrt": "tensorrt", "tensorrt-rtx": "rtx"}
"""Extras of this project that install them."""

KNOWN = {"tensorrt": ((8, 6), (11,)), "tensorrt-rtx": ((1, 0), (1,))}
"""The oldest supported release and the newest known major version, by backend name."""

CUBIC_GRIDS = (1, 7)
"""The TensorRT-RTX release whose parser was seen to read the mode cubic of a GridSample; 1.4 reads it as nearest."""


@dataclass(frozen=True)
class Package:
    """A TensorRT package with Polygraphy's loaders for it.

    Attributes:
        name: The backend's name, "tensorrt" or "tensorrt-rtx".
        trt: The module.
        loaders: Polygraphy's ``polygraphy.backend.trt``.
        log: Takes what both print.
        capabilities: What this release can do here.
    """

    name: str
    trt: Any
    loaders: Any
    log: Log
    capabilities: Capabilities

    @property
    def version(self) -> str:
        """The release, like "8.6.1"."""
        return str(self.trt.__version__)


def module_for(name: str) -> Any:
    """The TensorRT package of a backend, checked.

    Raises:
        BackendUnavailableError: it is not installed, does not load, or is of an unsupported release.
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
    numbers = release_of(version)
    if numbers < oldest or numbers[0] > newest[0]:
        raise BackendUnavailableError(
            f"trt-tui does not support {name} {version}",
            f"it supports {'.'.join(map(str, oldest))} to {newest[0]}.x", f"pip install 'trt-tui[{EXTRAS[name]}]'")
    return module


def release_of(version: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def not_starting(trt: Any) -> str:
    """Why the builder of a TensorRT package does not start on this machine, "" where it does."""
    log = Log.installed()
    with log.collecting(None) as said:
        try:
            trt.Builder(log.for_tensorrt(trt))
        except Exception as error:  # bindings raise a TypeError if the library returns nothing
            return printed_errors(said) or str(error)
    return ""


def load_polygraphy(name: str, trt: Any) -> tuple[Any, Log]:
    """Polygraphy's loaders for a package, and the log that takes what both print.

    Raises:
        BackendUnavailableError: it is not installed, or is in use with another package in this process.
    """
    try:
        from polygraphy import config
    except ImportError as error:
        raise BackendUnavailableError("Polygraphy is not installed", str(error),
                                      f"pip install 'trt-tui[{EXTRAS[name]}]'") from None
    rtx = name == "tensorrt-rtx"
    if "polygraphy.backend.trt" in sys.modules and config.USE_TENSORRT_RTX != rtx:
        raise BackendUnavailableError("another TensorRT package is in use", "a process can use only one of them",
                                      f"Start trt-tui again with --backend {name}.")
    config.USE_TENSORRT_RTX = rtx
    log = Log.installed()
    from polygraphy.backend import trt as loaders
    from polygraphy.backend.trt import util

    util.TRT_LOGGER = log.for_tensorrt(trt)
    return loaders, log


def buildable(trt: Any) -> tuple[tuple[int, int], ...]:
    """The compute capabilities that a package can build for without such a GPU, as (major, minor)."""
    names = [name for name in dir(getattr(trt, "ComputeCapability", None)) if re.fullmatch(r"SM\d+", name)]
    return tuple(sorted((int(name[2:-1]), int(name[-1])) for name in names))


def dotted(capability: tuple[int, int]) -> str:
    """A compute capability as NVIDIA writes it: "8.9"."""
    return f"{capability[0]}.{capability[1]}"


def dotted_all(capabilities: tuple[tuple[int, int], ...]) -> str:
    """Compute capabilities as a list in a sentence: "8.6, 8.9"."""
    return ", ".join(dotted(one) for one in capabilities)
