"""The move that scales the channels between a normalisation and what multiplies its result: SmoothQuant.

Source: Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models" (ICML
2023): ``X W = (X diag(s)^-1) (diag(s) W)`` with ``s_j = max|X_j|^a / max|W_j|^(1-a)``. The division goes into the
normalisation's scale and bias, the product into the weights, so that nothing is added at run time and only rounding
sees a difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.codes import MAX_AMAX
from trt_tui.core.moves import vectors
from trt_tui.core.moves.move import GROUPS, Change, Decided, Defaults
from trt_tui.core.network.free import Port
from trt_tui.core.network.layers import Outline

DEFAULT_STRENGTH = 0.5
"""The exponent a: 0 leaves all difficulty in the activations, 1 moves it into the weights."""


@dataclass(frozen=True)
class Smooth(Decided):
    """The factors by which the channels behind a normalisation are divided, and the ranges that they have then.

    Attributes:
        strength: The exponent a that the factors were made with.
        factors: One for each channel, above 0; see `trt_tui.core.moves.vectors`.
        ranges: amax behind the division by tensor, in the units that it has there.
    """

    folding = measured = True
    infinitive = "have its channels scaled"
    kind, subject, column, absent = "smooth", GROUPS, "smoothing", "none"

    strength: float
    factors: str
    ranges: dict[str, float] = field(default_factory=dict)
    reason: str = "user"

    @property
    def decides(self) -> tuple[str, tuple[tuple[str, float], ...]]:
        """The factors and the ranges."""
        return self.factors, tuple(sorted(self.ranges.items()))

    def refused(self, network: Outline, target: str) -> str:
        """Why the channels cannot be scaled so; see `Move.refused`."""
        norm = network.free.norms.get(target)
        if norm is None:
            return "it holds no LayerNorm or RMSNorm"
        if norm.no_smooth:
            return norm.no_smooth
        known = {read.activation for read in norm.reads}
        if strange := [name for name in self.ranges if name not in known]:
            return f"{strange[0]} is not among the tensors that it feeds"
        if not all(0 <= amax <= MAX_AMAX for amax in self.ranges.values()):
            return "a range is a number from 0 up that FP32 holds"
        return vectors.refused(self.factors, norm.channels, positive=True)

    def adjust(self, amax: dict[str, float], tensors: Sequence[str]) -> None:
        """Sets the ranges behind the division; see `Move.adjust`."""
        amax.update(self.ranges)

    def folds(self, network: Outline, target: str, defaults: Defaults) -> Mapping[Port, Change]:
        """The normalisation's scale and bias, and the weights behind; see `Move.folds`."""
        norm = network.free.norms[target]
        factors = vectors.unpacked(self.factors)
        found: dict[Port, Change] = {port: _Divided(factors) for port in (norm.scale, norm.bias) if port is not None}
        found.update((read.port, _Scaled(factors, read.axis)) for read in norm.reads)
        return found

    @property
    def divides(self) -> np.ndarray:
        """The factors."""
        return vectors.unpacked(self.factors)

    @property
    def label(self) -> str:
        """``SmoothQuant 0.5``."""
        return f"SmoothQuant {self.strength:g}"

    @property
    def note(self) -> str:
        """``smoothed (0.5)``."""
        return f"smoothed ({self.strength:g})"


@dataclass(frozen=True, eq=False)
class _Divided(Change):
    factors: np.ndarray

    def apply(self, constant: np.ndarray | None) -> np.ndarray:
        assert constant is not None  # a scale or bias that the network has
        divided: np.ndarray = constant / self.factors  # channels are the last axis, or all there is
        return divided.reshape(constant.shape)


@dataclass(frozen=True, eq=False)
class _Scaled(Change):
    factors: np.ndarray
    axis: int

    def apply(self, constant: np.ndarray | None) -> np.ndarray:
        assert constant is not None  # a weight
        result: np.ndarray = constant * (self.factors[:, None] if self.axis == 0 else self.factors)
        return result


def factors(activation: np.ndarray, weight: np.ndarray, strength: float = DEFAULT_STRENGTH) -> np.ndarray:
    """The factors of the channels, float32 ``(channels,)``: ``max|X_j|^a / max|W_j|^(1-a)``.

    A channel that is zero on either side keeps its size.

    Args:
        activation: Largest magnitude of each channel in front of the weights.
        weight: The same of the weights that it meets, over all layers that read it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = activation.astype(np.float64) ** strength / weight.astype(np.float64) ** (1 - strength)
    usable = np.isfinite(found) & (found > 0) & (activation > 0)
    return np.where(usable, found, 1.0).astype(np.float32)
