"""The Add that joins a residual path and what a Conv, ConvTranspose, Gemm or MatMul computed.

Source: "Convolution And ElementWise Operation" of TensorRT's catalog. Groups of later layers grow first, so that the
Add goes to the one that is computed last.
"""

from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.operators import PRODUCTS

_ADD_OPERATORS = frozenset(("Add", "Sum"))


def match_residual_add(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch:
    """Takes the Add in, once for a group; its other input is the skip."""
    layer = grouping.find_sole_reader(group_draft.output_tensor)
    if layer is None:
        return FusionRuleMatch(reason="what the group computes is read elsewhere too")
    if group_draft.main_layer.op_type not in PRODUCTS:
        return FusionRuleMatch(reason=f"{group_draft.main_layer.op_type} has no kernel that adds another tensor")
    if not grouping.is_float_operator(layer, _ADD_OPERATORS) or len(layer.inputs) != 2:
        return FusionRuleMatch(reason="no Add of two tensors follows")
    if group_draft.skip_input is not None:
        return FusionRuleMatch(reason="the group has a residual Add already")
    other_indices = [index for index, name in enumerate(layer.inputs) if name != group_draft.output_tensor]
    if len(other_indices) != 1:
        return FusionRuleMatch(reason="both inputs of the Add are the group's own")
    return FusionRuleMatch((layer,), layer.outputs[0], skip_input=(layer, other_indices[0]))
