"""What TensorRT-RTX lists of an engine that it builds without a GPU; the engine itself is dropped."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.backends.tensorrt.build import let_attention_be_taken_apart
from trt_tui.backends.tensorrt.failures import build_error, parse_error
from trt_tui.backends.tensorrt.log import Printed
from trt_tui.backends.tensorrt.package import buildable, module_for
from trt_tui.backends.tensorrt.plugins import load_plugins
from trt_tui.core.engines.listing import HEADING
from trt_tui.core.engines.remarks import LAYERNORMS
from trt_tui.core.engines.sources import Sums, sums_of
from trt_tui.core.runner import Profile
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError

_LARGEST = 1 << 30
"""Bytes of the largest plan that is looked through."""

_THREADS = min(os.cpu_count() or 1, 4)
"""Of a build, which makes the same engine with any number; what else this machine measures waits for it."""

_DETAILS = 400
"""How many of the verbose messages are kept, for a build that fails without naming a layer."""


@dataclass(frozen=True)
class Lister:
    """TensorRT-RTX as what tells of engines.

    Attributes:
        release: Its version.
        targets: The compute capabilities that it builds for, as (major, minor).
    """

    trt: Any
    release: str
    targets: tuple[tuple[int, int], ...]

    @classmethod
    def load(cls) -> Lister:
        """Loads the package.

        Raises:
            BackendUnavailableError: it is not installed, does not load, or is of an unsupported release.
        """
        trt = module_for("tensorrt-rtx")
        if not hasattr(trt.OnnxParser, "load_initializer"):
            raise BackendUnavailableError(f"TensorRT-RTX {trt.__version__} is too old to ask what it makes of layers",
                                          "it takes no weights from memory", "pip install -U 'trt-tui[rtx]'")
        return cls(trt, str(trt.__version__), buildable(trt))

    def load_plugins(self, paths: Sequence[str]) -> None:
        """Loads libraries of plugins; see `trt_tui.backends.tensorrt.plugins.load_plugins`.

        Raises:
            InputError: one does not load, or is not taken.
        """
        load_plugins(self.trt, f"tensorrt-rtx {self.release}", paths)

    def listing(self, model: bytes, weights: Mapping[str, np.ndarray], beside: Path, profile: Profile, tf32: bool,
                target: tuple[int, int], going_on: Callable[[], bool]) -> tuple[str, Printed, Sums]:
        """Builds a strongly typed network for a GPU; returns the list of the engine's layers, what was printed,
        and what its products are summed in.

        Args:
            model: An ONNX file less its weights, which the parser reads where they lie, as the builder does.
            beside: The file in whose folder others lie that it refers to.
            going_on: Asked between two steps; the build ends where it returns False.

        Raises:
            ParseFailed: the file is refused; names the node.
            BuildFailed: the build failed.
            CancelledError: ``going_on`` returned False.
            InputError: it does not list the layers.
        """
        trt = self.trt
        log = _log(trt)
        builder = trt.Builder(log)
        builder.max_threads = _THREADS
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, log)
        trt.init_libnvinfer_plugins(log, "")
        taken = parser.load_model_proto(model, str(beside)) and all(
            parser.load_initializer(name, array.ctypes.data, array.nbytes) for name, array in weights.items())
        if not taken or not parser.parse_model_proto() or parser.num_errors:
            found = [parser.get_error(index) for index in range(parser.num_errors)]
            raise parse_error("tensorrt-rtx", self.release, found)
        let_attention_be_taken_apart(trt, network)
        config = builder.create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{target[0]}{target[1]}"), 0)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        (config.set_flag if tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
        if profile:
            shapes = builder.create_optimization_profile()
            for name, (least, usual, most) in profile.items():
                shapes.set_shape(name, least, usual, most)
            config.add_optimization_profile(shapes)
        monitor = _monitor(trt, going_on)
        config.progress_monitor = monitor
        built = builder.build_serialized_network(network, config)
        if monitor.stopped:
            raise CancelledError("stopped")
        if built is None:
            raise build_error(log.said, tuple(log.details), RuntimeError("the builder gives no reason"))
        if not log.listings:
            raise InputError("TensorRT-RTX does not list the layers of the engine",
                             f"release {self.release} prints no message that begins with {HEADING}",
                             "Another release may; a build on a GPU tells through the inspector.")
        # A plan is looked through in a copy, which a very large one is spared.
        return str(log.listings[-1]), log.said, sums_of(bytes(built)) if built.nbytes <= _LARGEST else Sums()


def _log(trt: Any) -> Any:
    verbose, info, warning = trt.ILogger.VERBOSE, trt.ILogger.INFO, trt.ILogger.WARNING

    class Log(trt.ILogger):  # type: ignore[misc]
        """Keeps the listing, errors and warnings, and the last of the rest: tens of thousands of messages a build."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.listings: list[str] = []
            self.said: list[tuple[str, str]] = []
            self.details: deque[str] = deque(maxlen=_DETAILS)
            self.names_follow = False

        def log(self, severity: Any, message: str) -> None:
            if severity == verbose:
                if self.names_follow:
                    self.said[-1] = ("warning", f"{LAYERNORMS}: {message}")
                    self.names_follow = False
                if message.startswith(HEADING):
                    self.listings.append(message)
                else:
                    self.details.append(message)
            elif severity != info:
                self.said.append(("warning" if severity == warning else "error", message))
                self.names_follow = message.rstrip(".") == LAYERNORMS

    return Log()


def _monitor(trt: Any, going_on: Callable[[], bool]) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Ends a build that nobody wants any more; TensorRT calls it from several threads."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.stopped = False

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            """Nothing is counted."""

        def step_complete(self, phase_name: str, step: int) -> bool:
            self.stopped = self.stopped or not going_on()
            return not self.stopped

        def phase_finish(self, phase_name: str) -> None:
            """Nothing is counted."""

    return Monitor()
