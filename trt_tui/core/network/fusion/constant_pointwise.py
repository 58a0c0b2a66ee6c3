"""A bias, a scale, an activation: one pointwise operator on what a group computed and constants.

Source: "Convolution and ReLU", "Convolution and GELU", "Convolution and Clip", "Convolution And ElementWise Operation",
"Scale and Activation" and "PointWise fusion" of TensorRT's catalog.
"""

from trt_tui.core.network.fusion.growing import Growing, Match, Members


def match(growing: Growing, members: Members) -> Match:
    """Takes the operator in that alone reads what the group computed."""
    layer = growing.sole_user(members.tail)
    if layer is None:
        return Match(reason="what the group computes is read elsewhere too")
    if not growing.is_pointwise_with_constants(layer):
        return Match(reason="what follows is not pointwise, or reads another tensor")
    return Match((layer,), layer.outputs[0])
