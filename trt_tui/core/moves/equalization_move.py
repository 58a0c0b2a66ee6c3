"""The equalization move: it scales the channels between the layers that write activations and those that read them.

A network computes the same values if the output channels of a layer are divided by positive factors and all readers
multiply the channels back, as long as the operators between commute with the factors. Sources of the factors:

- Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section 4.1:
  ``s = sqrt(r1 / r2)``, after which the weights ``r1`` that write a channel and ``r2`` that read it have equal ranges.
- Xiao et al., "SmoothQuant" (ICML 2023), for any producer: ``s = max|X|^a / max|W|^(1-a)``.

No formula is best for every network. `trt_tui.core.measure.equalization` chooses by the judged error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.moves.channel_scaling_move import ChannelScalingMove
from trt_tui.core.moves.smoothquant_move import smoothquant_factors
from trt_tui.core.network.layers import NetworkOutline

WEIGHT_RANGES_FORMULA = "weights"
"""The formula that equalizes the ranges of the weights on both sides of a channel."""

EQUALIZATION_FORMULAS: Mapping[str, float | None] = {
    "0.5": 0.5, WEIGHT_RANGES_FORMULA: None, "0.75": 0.75, "1": 1.0}
"""The formulas of the factors, the usual one first: the exponent of the activations, None for the ranges of weights."""

CLIP_HEADROOM = 1.25
"""The minimum ratio between a bound of a Clip and the values of a channel with another factor than 1, on all
samples."""

MAX_FACTOR = 1024.0
"""The largest factor, and the reciprocal of the smallest one."""


def equalization_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why the channels that a fusion group writes cannot be equalized; "" if they can.

    Channels that a Clip limits can be: channels that reach its bounds keep the factor 1.
    """
    scaling = network.zero_cost_support.channel_scalings.get(subject)
    if scaling is None:
        return "it writes no channels that other layers multiply"
    if not scaling.channels:
        return scaling.refusal_reason
    if scaling.products:
        return "its channels are multiplied by other computed channels, not by weights alone"
    return "SmoothQuant scales its channels" if subject in network.zero_cost_support.norms else ""


def compute_equalization_factors(formula: str, activation_amax: np.ndarray, producer_amax: np.ndarray,
                                 reader_amax: np.ndarray) -> np.ndarray:
    """Returns the factors of one of `EQUALIZATION_FORMULAS`, float32 ``(channels,)``; 1 for dead channels.

    A channel is dead if its activations or the weights of a side that the formula uses are all zero.

    Args:
        activation_amax: Largest magnitude of each channel at the readers.
        producer_amax: Largest magnitude of the weights that write each channel.
        reader_amax: Largest magnitude of the weights that read each channel.
    """
    exponent = EQUALIZATION_FORMULAS[formula]
    if exponent is not None:
        return smoothquant_factors(activation_amax, reader_amax, exponent)
    factors = smoothquant_factors(producer_amax, reader_amax, 0.5)
    return np.where(activation_amax > 0, factors, 1.0).astype(np.float32)


def limit_factors(factors: np.ndarray, min_factors: np.ndarray, is_fixed: np.ndarray) -> np.ndarray:
    """Returns factors with which no range grows, float32 ``(channels,)``.

    All factors are multiplied by one number, which changes no error of a quantized type. It is the smallest with which
    every factor is at least its minimum, or the one that brings the fixed channels nearest to 1. Then the factors are
    limited to `MAX_FACTOR`, its reciprocal and their minima.

    Args:
        factors: Positive factors.
        min_factors: The minimum of each factor: the share of the range of a tensor that the channel uses.
        is_fixed: True for channels whose factor must be 1.
    """
    exact = factors.astype(np.float64)
    if is_fixed.any():
        scale = float(np.exp(-np.log(exact[is_fixed]).mean()))
    else:
        scale = float((min_factors / exact).max(initial=0.0)) or 1.0
    limited = np.maximum(np.clip(exact * scale, 1 / MAX_FACTOR, MAX_FACTOR), min_factors)
    return np.where(is_fixed, 1.0, limited).astype(np.float32)


@dataclass(frozen=True)
class EqualizationMove(ChannelScalingMove):
    """The factors of the channels that a fusion group writes, and the ranges of the divided tensors.

    Attributes:
        formula: The formula of the factors, one of `EQUALIZATION_FORMULAS`.
    """

    kind = "equalize"

    formula: str
    factors: str
    ranges: dict[str, float] = field(default_factory=dict)
    reason: str = "user"

    def subject_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        return equalization_refusal_reason(network, subject)

    def ranges_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        unknown_tensors = [name for name in self.ranges if not network.has_tensor(name)]
        return f"{unknown_tensors[0]} is not a tensor of the network" if unknown_tensors else ""

    def equality_limit_text(self, network: NetworkOutline, subject: str) -> str:
        """Returns a sentence if a Clip limits channels with another factor than 1.

        Implements `Move.equality_limit_text`.
        """
        clipped = {clip.tensor for clip in network.zero_cost_support.channel_scalings[subject].clips}
        is_limited = any((divisors != 1).any()
                         for tensor, divisors in self.find_divisors(network, subject).items()
                         if tensor in clipped)
        return (f"a Clip limits equalized channels at other values if these exceed {CLIP_HEADROOM:g} times those of the"
                " samples" if is_limited else "")
