"""A Reshape or Transpose between a MatMul and its bias.

Source: exports of attention (the heads are split before the bias is added); TensorRT-RTX 1.7 lists such MatMuls with
their bias as one engine layer.
"""

from __future__ import annotations

from trt_tui.core.network.fusion.growing import Growing, Match, Members


def match(growing: Growing, members: Members) -> Match:
    """Takes the copy in, where a pointwise operator with constants alone reads it; that follows by its own rule."""
    layer = growing.sole_user(members.tail)
    if layer is None:
        return Match(reason="what the group computes is read elsewhere too")
    if not growing.moves_only(layer) or len(layer.outputs) != 1:
        return Match(reason="what follows does more than move values")
    behind = growing.sole_user(layer.outputs[0])
    if behind is None or not growing.is_pointwise_with_constants(behind):
        return Match(reason="no bias follows the copy")
    return Match((layer,), layer.outputs[0], computes=False)
