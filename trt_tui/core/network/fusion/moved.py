"""Reshapes and Transposes between what a group computed and its bias or activation.

Source: exports of attention (the heads are split before the bias is added), of Gemms over sequences (flattened around
the Gemm), of Convs between layers over tokens; TensorRT-RTX 1.7 lists such MatMuls with their bias as one engine layer.
"""

from trt_tui.core.network.fusion import pointwise_region
from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer

_MAX_RESHAPES = 4


def match_trailing_reshapes(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch:
    """Takes the copies in, where pointwise operators follow that would join; those follow by their own rules."""
    if grouping.find_sole_reader(group_draft.output_tensor) is None:
        return FusionRuleMatch(reason="what the group computes is read elsewhere too")
    copies: list[Layer] = []
    output_tensor = group_draft.output_tensor
    while len(copies) < _MAX_RESHAPES:
        layer = grouping.find_sole_reader(output_tensor)
        if layer is None or not grouping.is_fused_copy(layer) or len(layer.outputs) != 1:
            break
        copies.append(layer)
        output_tensor = layer.outputs[0]
    if not copies:
        return FusionRuleMatch(reason="what follows does more than move values")
    next_layer = grouping.find_sole_reader(output_tensor)
    if next_layer is not None and grouping.is_pointwise_with_constants(
            next_layer) or pointwise_region.is_read_by_closed_region(grouping, output_tensor):
        return FusionRuleMatch(tuple(copies), output_tensor, computes_output=False)
    return FusionRuleMatch(reason="no bias and no activation follows the copies")
