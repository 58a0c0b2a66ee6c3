"""The SmoothQuant move: it scales channels between their producers and the layers that multiply them.

The source is Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models"
(ICML 2023): ``X W = (X diag(s)^-1) (diag(s) W)`` with ``s_j = max|X_j|^a / max|W_j|^(1-a)``. The division is folded
into the constants of the producers (the scale and bias of a normalisation, or the weights and bias of a layer), the
product into the weights of the readers. Nothing is added at run time, and only the rounding changes.
`trt_tui.core.network.channel_scaling` finds the channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trt_tui.core.moves import vectors
from trt_tui.core.moves.move import GROUP_SUBJECTS, ConstantEdit, DefaultPrecisions, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.zero_cost_support import ChannelScaling, Port, ScaledConstant
from trt_tui.core.quantized_types import MAX_AMAX

DEFAULT_STRENGTH = 0.5
"""The exponent a: 0 leaves the difficulty of quantization in the activations, 1 moves it into the weights."""


@dataclass(frozen=True)
class SmoothQuantMove(Move):
    """The SmoothQuant factors of channels, and the ranges of the divided tensors; the subject produces the channels.

    Attributes:
        strength: The exponent a from which the factors were computed.
        factors: One positive number for each factor of the `ChannelScaling` of the subject, encoded by
            `trt_tui.core.moves.vectors`.
        ranges: The amax of each tensor after the division, in the units of the divided tensor.
        method: The formula of the factors: that of SmoothQuant, or that of AWQ (`trt_tui.core.measure.awq`).
    """

    edits_constants = has_measured_values = scales_channels = True
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
        if reason := scaling_refusal_reason(network, subject):
            return reason
        scaling = network.zero_cost_support.channel_scalings[subject]
        return scaled_ranges_refusal_reason(scaling, self.ranges) or vectors.invalid_vector_reason(
            self.factors, scaling.channels, positive=True)

    @property
    def fixed_ranges(self) -> Mapping[str, float]:
        return self.ranges

    def find_divisors(self, network: NetworkOutline, subject: str) -> Mapping[str, np.ndarray]:
        factors = vectors.decode_vector(self.factors)
        return {tensor.tensor: tensor.divisors(factors)
                for tensor in network.zero_cost_support.channel_scalings[subject].tensors}

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """Returns the changes of the constants of the producers and of the weights of the readers.

        Implements `Move.find_constant_edits`.
        """
        return make_scaling_edits(network.zero_cost_support.channel_scalings[subject],
                                  vectors.decode_vector(self.factors))


def scaling_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why the channels that a fusion group produces cannot be scaled; "" if they can."""
    scaling = network.zero_cost_support.channel_scalings.get(subject)
    if scaling is None:
        return "it has no constant weight or scale by which its channels could be divided"
    return scaling.refusal_reason


def scaled_ranges_refusal_reason(scaling: ChannelScaling, ranges: Mapping[str, float]) -> str:
    """Returns the reason why ranges (amax by tensor) cannot be those of scaled channels; "" if they can."""
    known_tensors = {tensor.tensor for tensor in scaling.tensors}
    if unknown_tensors := [name for name in ranges if name not in known_tensors]:
        return f"{unknown_tensors[0]} is not one of the scaled tensors"
    return "" if all(0 <= amax <= MAX_AMAX for amax in ranges.values()) else (
        "a range is a number from 0 to the largest FP32 value")


def make_scaling_edits(scaling: ChannelScaling, factors: np.ndarray,
                       replaces_clips: bool = False) -> dict[Port, ConstantEdit]:
    """Returns the changes of the constants of a `ChannelScaling` for some factors, float32 ``(channels,)``.

    A weight between two layers of one set is divided along its outputs and multiplied along its inputs.

    Args:
        replaces_clips: True to divide the bounds of Clips too, which become vectors.
    """
    constants_by_port: dict[Port, list[ScaledConstant]] = {}
    bounds = [bound for clip in scaling.clips for bound in clip.bounds] if replaces_clips else []
    for constant in (*scaling.producers, *scaling.readers, *bounds):
        constants_by_port.setdefault(constant.port, []).append(constant)
    return {port: _ChannelDivision(factors, tuple(constants)) for port, constants in constants_by_port.items()}


@dataclass(frozen=True, eq=False)
class _ChannelDivision(ConstantEdit):
    factors: np.ndarray
    constants: tuple[ScaledConstant, ...]

    def edit_constant(self, constant: np.ndarray | None) -> np.ndarray:
        if constant is None:  # the constant of an inserted Mul
            constant = np.ones(self.constants[0].shape, np.float32)
        for scaled_constant in self.constants:
            constant = scaled_constant.divide(constant, self.factors)
        return constant


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
