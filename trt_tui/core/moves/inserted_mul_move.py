"""The move that inserts a Mul between operators that do not commute with factors and the weights that read them.

It scales channels as SmoothQuant does where no constant can be divided, such as behind a Gelu. The inserted Mul
multiplies each channel by the reciprocal of its factor. TensorRT computes it in the kernel of the operator in front of
it in most networks. A preview has to show that, since a Mul in a kernel of its own costs run time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.moves import vectors
from trt_tui.core.moves.move import GROUP_SUBJECTS, ConstantEdit, DefaultPrecisions, Move
from trt_tui.core.moves.smoothquant_move import make_scaling_edits, scaled_ranges_refusal_reason
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.zero_cost_support import Port


@dataclass(frozen=True)
class InsertedMulMove(Move):
    """The factors of the channels of a group's result, and the range of the divided result.

    Attributes:
        strength: The exponent of SmoothQuant from which the factors were computed.
        factors: One positive number for each channel, encoded by `trt_tui.core.moves.vectors`.
        ranges: The amax of the result after the division, by tensor, in the units of the divided tensor.
    """

    edits_constants = has_measured_values = scales_channels = True
    kind, subject_kind = "insert_mul", GROUP_SUBJECTS

    strength: float
    factors: str
    ranges: dict[str, float] = field(default_factory=dict)
    reason: str = "user"

    @property
    def effect_key(self) -> tuple[str, tuple[tuple[str, float], ...]]:
        return self.factors, tuple(sorted(self.ranges.items()))

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if reason := insertion_refusal_reason(network, subject):
            return reason
        scaling = network.zero_cost_support.inserted_scalings[subject]
        return scaled_ranges_refusal_reason(scaling, self.ranges) or vectors.invalid_vector_reason(
            self.factors, scaling.channels, positive=True)

    @property
    def fixed_ranges(self) -> Mapping[str, float]:
        return self.ranges

    def find_divisors(self, network: NetworkOutline, subject: str) -> Mapping[str, np.ndarray]:
        factors = vectors.decode_vector(self.factors)
        return {tensor.tensor: tensor.divisors(factors)
                for tensor in network.zero_cost_support.inserted_scalings[subject].tensors}

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """Returns the constant of the inserted Mul and the changes of the weights that read the channels.

        Implements `Move.find_constant_edits`.
        """
        return make_scaling_edits(network.zero_cost_support.inserted_scalings[subject],
                                  vectors.decode_vector(self.factors))


def insertion_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why no Mul can be inserted behind a fusion group; "" if one can."""
    return "" if subject in network.zero_cost_support.inserted_scalings else (
        "other layers than those with weights read its result, or constants can scale its channels without a Mul")
