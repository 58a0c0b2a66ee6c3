"""What analysis and calibration are given to run networks with: protocols, no backend.

A backend (``trt_tui.backends``) implements `Backend`; what it loads is a `Runner`. Nothing in ``trt_tui.core``
imports a backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir

Dimension = int | str | None
"""One dimension of a shape: a size, a symbolic name, or unknown."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, element type and shape of one network input or output."""

    name: str
    dtype: np.dtype
    shape: tuple[Dimension, ...] | None


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; decisions ask these, never a version number."""

    runs: bool
    """It can execute what it loads on this machine."""
    builds: bool
    """It makes an engine file of its own."""
    simulates: bool
    """It runs the gated graph (explicit FP32 operators, Cast pairs, If, QuantizeLinear)."""
    real_fp16: bool
    """FP16-typed operators are computed in FP16 (ONNX Runtime's CPU provider computes them in FP32)."""


@runtime_checkable
class Runner(Protocol):
    """A loaded network, used as a context manager."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Runs once; returns the outputs named in ``fetch`` (all by default) by name.

        Raises:
            TrtTuiError: the backend refused to run these feeds.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Runner: ...

    def __exit__(self, *exc: object) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """Loads ONNX networks for running."""

    name: str
    version: str
    capabilities: Capabilities

    def load(self, model: ir.Model, *, lean: bool = False) -> Runner:
        """Loads a network without writing it anywhere the user sees.

        Args:
            model: The network; its weights may lie in external data files.
            lean: Trade a little speed for the lowest peak memory (used for graphs that hold several branches).

        Raises:
            TrtTuiError: the backend refuses the network; names the node where it can.
        """
