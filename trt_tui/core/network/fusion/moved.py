"""Reshapes and Transposes between what a group computed and its bias or activation.

Source: exports of attention (the heads are split before the bias is added), of Gemms over sequences (flattened around
the Gemm), of Convs between layers over tokens; TensorRT-RTX 1.7 lists such MatMuls with their bias as one engine layer.
"""

from trt_tui.core.network.fusion import pointwise_region
from trt_tui.core.network.fusion.growing import Growing, Match, Members
from trt_tui.core.network.layers import Layer

_MOST = 4


def match(growing: Growing, members: Members) -> Match:
    """Takes the copies in, where pointwise operators follow that would join; those follow by their own rules."""
    if growing.sole_user(members.tail) is None:
        return Match(reason="what the group computes is read elsewhere too")
    copies: list[Layer] = []
    tail = members.tail
    while len(copies) < _MOST:
        layer = growing.sole_user(tail)
        if layer is None or not growing.moves_only(layer) or len(layer.outputs) != 1:
            break
        copies.append(layer)
        tail = layer.outputs[0]
    if not copies:
        return Match(reason="what follows does more than move values")
    behind = growing.sole_user(tail)
    if behind is not None and growing.is_pointwise_with_constants(behind) or pointwise_region.hides(growing, tail):
        return Match(tuple(copies), tail, computes=False)
    return Match(reason="no bias and no activation follows the copies")
