"""The SmoothQuant move: it scales channels between their producers and the layers that multiply them.

The source is Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models"
(ICML 2023): ``X W = (X diag(s)^-1) (diag(s) W)`` with ``s_j = max|X_j|^a / max|W_j|^(1-a)``. The division is folded
into the constants of the producers (the scale and bias of a normalisation, or the weights and bias of a layer), the
product into the weights of the readers. Nothing is added at run time, and only the rounding changes.
`trt_tui.core.network.channel_scaling` finds the channels.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trt_tui.core.moves.channel_scaling_move import ChannelScalingMove
from trt_tui.core.network.layers import NetworkOutline

DEFAULT_STRENGTH = 0.5
"""The exponent a: 0 leaves the difficulty of quantization in the activations, 1 moves it into the weights."""


@dataclass(frozen=True)
class SmoothQuantMove(ChannelScalingMove):
    """The SmoothQuant factors of channels, and the ranges of the divided tensors; the subject produces the channels.

    Attributes:
        strength: The exponent a from which the factors were computed.
        method: The formula of the factors: that of SmoothQuant, or that of AWQ in configs of earlier versions.
    """

    kind = "smooth"

    strength: float
    factors: str
    ranges: dict[str, float] = field(default_factory=dict)
    reason: str = "user"
    method: Literal["SmoothQuant", "AWQ"] = "SmoothQuant"

    def subject_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        return scaling_refusal_reason(network, subject)


def scaling_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why the channels that a fusion group produces cannot be scaled; "" if they can."""
    scaling = network.zero_cost_support.channel_scalings.get(subject)
    if scaling is None:
        return "it has no constant weight or scale by which its channels could be divided"
    return scaling.refusal_reason


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
