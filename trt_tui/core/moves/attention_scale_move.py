"""The move that takes the scale of an attention's scores to the front of the product of queries and keys.

``(q k) s = (s q) k``: the number goes into the weights and bias that produce the queries or the keys, or its square
root into both. The layers that scaled then multiply by 1 and are left out of exported networks. With the scale behind
it, the product of large queries and keys may overflow in FP16. TensorRT's documents ask for the scale in front. In FP32
 the result is equal for a power of two, and else up to rounding.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np

from trt_tui.core.moves.channel_scaling_move import make_scaling_edits
from trt_tui.core.moves.move import GROUP_SUBJECTS, ConstantEdit, DefaultPrecisions, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.zero_cost_support import AttentionScale, ChannelScaling, Port, ScaledOperand, ScoreScaling


class ScalePlacement(StrEnum):
    """The place of the scale of an attention in front of its product.

    - QUERY, KEY: the constants that produce one operand;
    - BOTH: the square root in the constants of both operands;
    - SCALING: the Mul or Div that the network has in front of the product.
    """

    QUERY = "query"
    KEY = "key"
    BOTH = "both"
    SCALING = "scaling"


PLACEMENT_TEXTS = {
    ScalePlacement.QUERY: "the weights of Q", ScalePlacement.KEY: "the weights of K",
    ScalePlacement.BOTH: "the weights of Q and K", ScalePlacement.SCALING: "the scaling in front of QK"}
"""The places of the scale for users."""

PLACEMENT_LABELS = {ScalePlacement.QUERY: "in Q", ScalePlacement.KEY: "in K", ScalePlacement.BOTH: "in Q and K",
                    ScalePlacement.SCALING: "in front"}
"""The places of the scale, short, for lists."""

SINGLE_PLACEMENTS = (ScalePlacement.QUERY, ScalePlacement.KEY, ScalePlacement.SCALING)
"""The places at one operand, the best first."""


@dataclass(frozen=True)
class AttentionScaleMove(Move):
    """The scale of an attention in front of its product; the subject is the group of the product.

    Attributes:
        placement: A value of `ScalePlacement`.
        factor: The scale: the number by which the scores are multiplied in all.
        range_factors: The factors by which the ranges of tensors change, by tensor.
    """

    edits_constants = True
    kind, subject_kind = "qk_scale", GROUP_SUBJECTS

    placement: Literal["query", "key", "both", "scaling"]
    factor: float
    range_factors: dict[str, float] = field(default_factory=dict)
    reason: str = "user"

    @property
    def effect_key(self) -> tuple[str, float]:
        return self.placement, self.factor

    @property
    def placement_text(self) -> str:
        """The place of the scale for users."""
        return PLACEMENT_TEXTS[ScalePlacement(self.placement)]

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if reason := attention_scale_refusal_reason(network, subject):
            return reason
        scale = network.zero_cost_support.attention_scales[subject]
        if not math.isclose(self.factor, scale.factor, rel_tol=1e-5):
            return f"its scale is {scale.factor:g}"
        if not all(0 < factor < math.inf for factor in self.range_factors.values()):
            return "a factor of a range is a number above 0"
        return placement_refusal_reason(scale, ScalePlacement(self.placement))

    def find_range_factors(self) -> Mapping[str, float]:
        return self.range_factors

    def find_divisors(self, network: NetworkOutline, subject: str) -> Mapping[str, np.ndarray]:
        scale = network.zero_cost_support.attention_scales[subject]
        return find_scale_divisors(scale, ScalePlacement(self.placement))

    def find_constant_edits(self, network: NetworkOutline, subject: str,
                            default_precisions: DefaultPrecisions) -> Mapping[Port, ConstantEdit]:
        """Returns the changes of the constants in front of the product, and of the numbers of the layers that scale.

        Implements `Move.find_constant_edits`.
        """
        scale, placement = network.zero_cost_support.attention_scales[subject], ScalePlacement(self.placement)
        taker = _find_taking_scaling(scale) if placement is ScalePlacement.SCALING else None
        edits: dict[Port, ConstantEdit] = {}
        for scaling in scale.scalings:
            number = 1.0 if scaling is not taker else 1 / scale.factor if scaling.is_division else scale.factor
            edits[scaling.port] = _NumberReplacement(number)
        operands = _list_scaled_operands(scale, placement)
        producers = tuple(producer for operand in operands for producer in operand.producers)
        factor = np.full(1, scale.factor ** (1 / max(len(operands), 1)), np.float32)
        return edits | make_scaling_edits(ChannelScaling(1, producers), factor)

    def find_neutral_layers(self, network: NetworkOutline, subject: str) -> Collection[str]:
        scale, placement = network.zero_cost_support.attention_scales[subject], ScalePlacement(self.placement)
        taker = _find_taking_scaling(scale) if placement is ScalePlacement.SCALING else None
        return [scaling.layer for scaling in scale.scalings if scaling is not taker]


@dataclass(frozen=True, eq=False)
class _NumberReplacement(ConstantEdit):
    number: float

    def edit_constant(self, constant: np.ndarray | None) -> np.ndarray:
        assert constant is not None  # the number by which the layer multiplies
        return np.full(constant.shape, self.number, np.float32)


def attention_scale_refusal_reason(network: NetworkOutline, subject: str) -> str:
    """Returns the reason why the scale of an attention can go to no place in front of its product; "" if it can."""
    scale = network.zero_cost_support.attention_scales.get(subject)
    if scale is None:
        return "it is not the product of queries and keys of an attention"
    reasons = [placement_refusal_reason(scale, placement) for placement in SINGLE_PLACEMENTS]
    return scale.refusal_reason or (reasons[0] if all(reasons) else "")


def placement_refusal_reason(scale: AttentionScale, placement: ScalePlacement) -> str:
    """Returns the reason why the scale of an attention cannot go to a place in front; "" if it can."""
    if placement is ScalePlacement.SCALING:
        if _find_taking_scaling(scale) is None:
            return "no layer in front of the product scales an operand"
        return "" if any(scaling.side == "scores" for scaling in scale.scalings) else "the scale is in front already"
    return next((operand.refusal_reason for operand in _list_scaled_operands(scale, placement)
                 if operand.refusal_reason), "")


def find_scale_divisors(scale: AttentionScale, placement: ScalePlacement) -> dict[str, np.ndarray]:
    """Returns the divisors of the tensors that change with the place of the scale, float32, by tensor."""
    divisors: dict[str, np.ndarray] = {}

    def divide(tensor: str, divisor: np.ndarray) -> None:
        divisors[tensor] = divisors[tensor] * divisor if tensor in divisors else divisor

    operands = _list_scaled_operands(scale, placement)
    factor = np.full(1, scale.factor ** (1 / max(len(operands), 1)), np.float32)
    for operand in operands:
        for tensor in operand.tensors:
            divide(tensor.tensor, tensor.divisors(factor))
    taker = _find_taking_scaling(scale) if placement is ScalePlacement.SCALING else None
    for scaling in scale.scalings:
        remaining = scale.factor if scaling is taker else 1.0
        multiplier = remaining / scaling.multiplier if scaling.side != "scores" else scaling.multiplier
        for name in scaling.tensors:
            divide(name, np.full((), 1 / multiplier, np.float32))
    return divisors


def _list_scaled_operands(scale: AttentionScale, placement: ScalePlacement) -> list[ScaledOperand]:
    """Returns the operands whose constants take the scale, or its square root if there are two."""
    return {ScalePlacement.QUERY: [scale.query], ScalePlacement.KEY: [scale.key],
            ScalePlacement.BOTH: [scale.query, scale.key], ScalePlacement.SCALING: []}[placement]


def _find_taking_scaling(scale: AttentionScale) -> ScoreScaling | None:
    """Returns the layer in front of the product that can take the whole scale; None if there is none."""
    return next((scaling for scaling in scale.scalings if scaling.side != "scores"), None)


def make_attention_scale_move(network: NetworkOutline, subject: str, placement: ScalePlacement,
                              reason: str = "user") -> AttentionScaleMove:
    """Returns the move of the scale of an attention to a place in front, with the changes of ranges that follow.

    The range of a tensor of which a part changes stays, or grows with that part.
    """
    scale = network.zero_cost_support.attention_scales[subject]
    factors = {tensor: float((1 / divisor).max(initial=0.0 if divisor.size == 1 else 1.0))
               for tensor, divisor in find_scale_divisors(scale, placement).items()
               if tensor in network.calibrated_tensors}
    return AttentionScaleMove(placement.value, scale.factor, factors, reason)
