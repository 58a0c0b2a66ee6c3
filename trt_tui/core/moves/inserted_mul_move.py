"""The move that inserts a Mul between operators that do not commute with factors and the weights that read them.

It scales channels as SmoothQuant does where no constant can be divided, such as behind a Gelu. The inserted Mul
multiplies each channel by the reciprocal of its factor. TensorRT computes it in the kernel of the operator in front of
it in most networks. A preview has to show that, since a Mul in a kernel of its own costs run time.
"""

from dataclasses import dataclass, field

from trt_tui.core.moves.channel_scaling_move import ChannelScalingMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.zero_cost_support import ChannelScaling


@dataclass(frozen=True)
class InsertedMulMove(ChannelScalingMove):
    """The factors of the channels of a group's result, and the range of the divided result.

    Attributes:
        strength: The exponent of SmoothQuant from which the factors were computed.
    """

    kind = "insert_mul"

    strength: float
    factors: str
    ranges: dict[str, float] = field(default_factory=dict)
    reason: str = "user"

    def find_scaling(self, network: NetworkOutline, subject: str) -> ChannelScaling:
        return network.zero_cost_support.inserted_scalings[subject]

    def subject_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        return insertion_refusal_reason(network, subject)


def insertion_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why no Mul can be inserted behind a fusion group; "" if one can."""
    return "" if subject in network.zero_cost_support.inserted_scalings else (
        "other layers than those with weights read its result, or constants can scale its channels without a Mul")
