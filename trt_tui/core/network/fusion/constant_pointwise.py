"""A bias, a scale, an activation: one pointwise operator on what a group computed and constants.

Source: "Convolution and ReLU", "Convolution and GELU", "Convolution and Clip", "Convolution And ElementWise Operation",
"Scale and Activation" and "PointWise fusion" of TensorRT's catalog.
"""

from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState, FusionRuleMatch


def match_constant_pointwise(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch:
    """Takes the operator in that alone reads what the group computed."""
    layer = grouping.find_sole_reader(group_draft.output_tensor)
    if layer is None:
        return FusionRuleMatch(reason="what the group computes is read elsewhere too")
    if not grouping.is_pointwise_with_constants(layer):
        return FusionRuleMatch(reason="what follows is not pointwise, or reads another tensor")
    return FusionRuleMatch((layer,), layer.outputs[0])
