"""The base class of the moves that scale channels: they divide tensors by factors that the readers multiply back."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trt_tui.core.moves import vectors
from trt_tui.core.moves.move import GROUP_SUBJECTS, ConstantEdit, DefaultPrecisions, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.zero_cost_support import ChannelScaling, Port, ScaledConstant
from trt_tui.core.quantized_types import MAX_AMAX


class ChannelScalingMove(Move):
    """A move with the factors of the channels that its subject produces, and the ranges of the divided tensors.

    Each move is a dataclass that declares the attributes as fields, in the order of their keys in files.

    Attributes:
        factors: One positive number for each factor of the scaling, encoded by `trt_tui.core.moves.vectors`.
        ranges: The amax of each tensor after the division, in the units of the divided tensor.
    """

    edits_constants = has_measured_values = scales_channels = True
    subject_kind = GROUP_SUBJECTS

    factors: str
    ranges: dict[str, float]

    @property
    def effect_key(self) -> tuple[object, ...]:
        return self.factors, tuple(sorted(self.ranges.items()))

    @abstractmethod
    def subject_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Returns the reason why no factors fit the channels of a fusion group; "" if some do."""

    def ranges_refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Returns the reason why the ranges cannot be those of divided tensors; "" if they can."""
        tensors = {tensor.tensor for tensor in network.zero_cost_support.channel_scalings[subject].tensors}
        if unknown_tensors := [name for name in self.ranges if name not in tensors]:
            return f"{unknown_tensors[0]} is not one of the scaled tensors"
        return ""

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if reason := self.subject_refusal_reason(network, subject) or self.ranges_refusal_reason(network, subject):
            return reason
        if not all(0 <= amax <= MAX_AMAX for amax in self.ranges.values()):
            return "a range is a number from 0 to the largest FP32 value"
        channels = network.zero_cost_support.channel_scalings[subject].channels
        return vectors.invalid_vector_reason(self.factors, channels, positive=True)

    @property
    def fixed_ranges(self) -> Mapping[str, float]:
        return self.ranges

    def find_divisors(self, network: NetworkOutline, subject: str) -> Mapping[str, np.ndarray]:
        factors = vectors.decode_vector(self.factors)
        return {tensor.tensor: tensor.divisors(factors)
                for tensor in network.zero_cost_support.channel_scalings[subject].tensors}

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """Returns the division of the constants that produce the channels, and the product of the weights that read
        them.

        Implements `Move.find_constant_edits`.
        """
        return make_scaling_edits(network.zero_cost_support.channel_scalings[subject],
                                  vectors.decode_vector(self.factors))


def make_scaling_edits(scaling: ChannelScaling, factors: np.ndarray) -> dict[Port, ConstantEdit]:
    """Returns the changes of the constants of a `ChannelScaling` for some factors, float32 ``(channels,)``.

    A weight between two layers of one set is divided along its outputs and multiplied along its inputs.
    """
    constants_by_port: dict[Port, list[ScaledConstant]] = {}
    for constant in (*scaling.producers, *scaling.readers):
        constants_by_port.setdefault(constant.port, []).append(constant)
    return {port: _ChannelDivision(factors, tuple(constants)) for port, constants in constants_by_port.items()}


@dataclass(frozen=True, eq=False)
class _ChannelDivision(ConstantEdit):
    factors: np.ndarray
    constants: tuple[ScaledConstant, ...]

    def edit_constant(self, constant: np.ndarray | None) -> np.ndarray:
        assert constant is not None, "channels are scaled by constants of the network"
        for scaled_constant in self.constants:
            constant = scaled_constant.divide(constant, self.factors)
        return constant
