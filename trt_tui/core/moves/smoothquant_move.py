"""The SmoothQuant move: it scales the channels between a normalisation and the layers that multiply its result.

The source is Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models"
(ICML 2023): ``X W = (X diag(s)^-1) (diag(s) W)`` with ``s_j = max|X_j|^a / max|W_j|^(1-a)``. The division is folded
into the scale and bias of the normalisation, the product into the weights. Nothing is added at run time, and only the
rounding changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trt_tui.core.moves import vectors
from trt_tui.core.moves.move import GROUP_SUBJECTS, ConstantEdit, DefaultPrecisions, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.zero_cost_support import Port
from trt_tui.core.quantized_types import MAX_AMAX

DEFAULT_STRENGTH = 0.5
"""The exponent a: 0 leaves the difficulty of quantization in the activations, 1 moves it into the weights."""


@dataclass(frozen=True)
class SmoothQuantMove(Move):
    """The SmoothQuant factors of the channels behind a normalisation, and the ranges of the divided tensors.

    Attributes:
        strength: The exponent a from which the factors were computed.
        factors: One positive number for each channel, encoded by `trt_tui.core.moves.vectors`.
        ranges: The amax of each tensor after the division, in the units of the divided tensor.
        method: The formula of the factors: that of SmoothQuant, or that of AWQ (`trt_tui.core.measure.awq`).
    """

    edits_constants = has_measured_values = True
    kind, subject_kind = "smooth", GROUP_SUBJECTS

    strength: float
    factors: str
    ranges: dict[str, float] = field(default_factory=dict)
    reason: str = "user"
    method: Literal["SmoothQuant", "AWQ"] = "SmoothQuant"

    @property
    def effect_key(self) -> tuple[str, tuple[tuple[str, float], ...]]:
        return self.factors, tuple(sorted(self.ranges.items()))

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        norm = network.zero_cost_support.norms.get(subject)
        if norm is None:
            return "it contains no LayerNorm or RMSNorm"
        if norm.no_smoothquant_reason:
            return norm.no_smoothquant_reason
        known_tensors = {read.activation for read in norm.consumers}
        if unknown_tensors := [name for name in self.ranges if name not in known_tensors]:
            return f"{unknown_tensors[0]} is not one of its outputs"
        if not all(0 <= amax <= MAX_AMAX for amax in self.ranges.values()):
            return "a range is a number from 0 to the largest FP32 value"
        return vectors.invalid_vector_reason(self.factors, norm.channels, positive=True)

    @property
    def fixed_ranges(self) -> Mapping[str, float]:
        return self.ranges

    def list_scaled_tensors(self, network: NetworkOutline, subject: str) -> Sequence[str]:
        """Returns the result of the normalisation, its copies, and the result of the layer that reads the scale.

        Implements `Move.list_scaled_tensors`.
        """
        norm = network.zero_cost_support.norms[subject]
        return [*norm.scaled_tensors, *(network.get_layer(norm.scale[0]).outputs[:1] if norm.scale else ())]

    def adjust_ranges(self, amax_by_tensor: dict[str, float], tensors: Sequence[str]) -> None:
        """Sets the ranges of the tensors whose channels SmoothQuant divides.

        Implements `Move.adjust_ranges`.
        """
        amax_by_tensor.update(self.ranges)

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """Returns the changes of the scale and bias of the normalisation and of the weights behind the normalisation.

        Implements `Move.find_constant_edits`.
        """
        norm = network.zero_cost_support.norms[subject]
        factors = vectors.decode_vector(self.factors)
        edits: dict[Port, ConstantEdit] = {
            port: _ChannelDivision(factors)
            for port in (norm.scale, norm.bias)
            if port is not None
        }
        edits.update((read.port, _ChannelScaling(factors, read.axis)) for read in norm.consumers)
        return edits

    @property
    def channel_divisors(self) -> np.ndarray:
        return vectors.decode_vector(self.factors)


@dataclass(frozen=True, eq=False)
class _ChannelDivision(ConstantEdit):
    factors: np.ndarray

    def edit_constant(self, constant: np.ndarray | None) -> np.ndarray:
        assert constant is not None  # the constant is a scale or bias of the network
        divided: np.ndarray = constant / self.factors  # the channels are the last axis, or the only axis
        return divided.reshape(constant.shape)


@dataclass(frozen=True, eq=False)
class _ChannelScaling(ConstantEdit):
    factors: np.ndarray
    axis: int

    def edit_constant(self, constant: np.ndarray | None) -> np.ndarray:
        assert constant is not None  # a weight
        result: np.ndarray = constant * (self.factors[:, None] if self.axis == 0 else self.factors)
        return result


def smoothquant_factors(activation_amax: np.ndarray, weight_amax: np.ndarray,
                        strength: float = DEFAULT_STRENGTH) -> np.ndarray:
    """Returns the SmoothQuant factors of the channels, float32 ``(channels,)``: ``max|X_j|^a / max|W_j|^(1-a)``.

    The factor is 1 for a channel whose activations or weights are all zero.

    Args:
        activation_amax: Largest magnitude of each channel in front of the weights.
        weight_amax: Largest magnitude of the weights of each channel, over all layers that read the channel.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = activation_amax.astype(np.float64) ** strength / weight_amax.astype(np.float64) ** (1 - strength)
    usable = np.isfinite(ratios) & (ratios > 0) & (activation_amax > 0)
    return np.where(usable, ratios, 1.0).astype(np.float32)
