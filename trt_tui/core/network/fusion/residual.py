"""The Add that joins a residual path and what a Conv, ConvTranspose, Gemm or MatMul computed.

Source: "Convolution And ElementWise Operation" of TensorRT's catalog. Groups of later layers grow first, so that the
Add goes to the one that is computed last.
"""

from trt_tui.core.network.fusion.growing import Growing, Match, Members
from trt_tui.core.network.operators import ANCHORS

_JOINING = frozenset(("Add", "Sum"))


def match(growing: Growing, members: Members) -> Match:
    """Takes the Add in, once for a group; its other input is the skip."""
    layer = growing.sole_user(members.tail)
    if layer is None:
        return Match(reason="what the group computes is read elsewhere too")
    if members.leader.op_type not in ANCHORS:
        return Match(reason=f"{members.leader.op_type} has no kernel that adds another tensor")
    if not growing.computes(layer, _JOINING) or len(layer.inputs) != 2:
        return Match(reason="no Add of two tensors follows")
    if members.skip is not None:
        return Match(reason="the group has a residual Add already")
    others = [index for index, name in enumerate(layer.inputs) if name != members.tail]
    if len(others) != 1:
        return Match(reason="both inputs of the Add are the group's own")
    return Match((layer,), layer.outputs[0], skip=(layer, others[0]))
