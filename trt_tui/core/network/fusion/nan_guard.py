"""What puts zeros in place of the NaN of a Softmax over masked values alone.

Source: PyTorch's exporters write it behind the Softmax of a scaled_dot_product_attention with a mask.
"""

from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState, FusionRuleMatch


def match_nan_masking(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch:
    """Takes IsNaN and Where in, behind a Softmax that nothing else reads."""
    if group_draft.operator_name != "Softmax":
        return FusionRuleMatch(reason=f"{group_draft.operator_name} is no Softmax")
    users = grouping.list_readers_if_few(group_draft.output_tensor)
    if {user.op_type
            for user in users} != {"IsNaN", "Where"} or len(users) != 2 or grouping.is_network_output(
                group_draft.output_tensor):
        return FusionRuleMatch(reason="no IsNaN and Where are all that reads it")
    is_nan_layer, where_layer = sorted(users, key=lambda item: item.op_type)
    if (grouping.find_sole_reader(is_nan_layer.outputs[0]) is not where_layer
            or where_layer.inputs[0] != is_nan_layer.outputs[0]
            or set(grouping.list_dynamic_inputs(where_layer)) != {is_nan_layer.outputs[0], group_draft.output_tensor}):
        return FusionRuleMatch(reason="the Where does not choose between it and a constant")
    return FusionRuleMatch((is_nan_layer, where_layer), where_layer.outputs[0])
