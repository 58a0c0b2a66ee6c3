"""A mask of a product of activations: a Where that puts a constant in its place, or that makes the mask it adds.

Source: "PointWise fusion" of TensorRT's catalog; PyTorch's exporters make an additive mask of a boolean one for each
scaled_dot_product_attention, and a Where of `masked_fill`.
"""

from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer


def match_where_mask(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch:
    """Takes the Where in that alone reads what the group computed, or whose result the group alone adds."""
    if not grouping.multiplies_activations(group_draft.main_layer):
        return FusionRuleMatch(reason=f"{group_draft.main_layer.op_type} does not multiply two activations")
    layer = grouping.find_sole_reader(group_draft.output_tensor)
    if layer is not None and layer.op_type == "Where" and _list_where_values(grouping,
                                                                             layer) == {group_draft.output_tensor}:
        return FusionRuleMatch((layer,), layer.outputs[0])
    if group_draft.skip_input is None:
        return FusionRuleMatch(reason="no mask follows")
    add, index = group_draft.skip_input
    mask_producer = grouping.graph.by_name.get(grouping.graph.producer.get(add.inputs[index], ""))
    if mask_producer is None or mask_producer.op_type != "Where" or _list_where_values(
            grouping, mask_producer) or mask_producer.name in grouping.draft_by_layer:
        return FusionRuleMatch(reason="what it adds is no choice between constants")
    if not grouping.is_sole_reader(add, mask_producer.outputs[0]):
        return FusionRuleMatch(reason="the mask that it adds is read elsewhere too")
    return FusionRuleMatch((mask_producer,))


def _list_where_values(grouping: FusionGroupingState, layer: Layer) -> set[str]:
    """What a layer chooses from beside constants."""
    return set(grouping.list_dynamic_inputs(layer)) - {layer.inputs[0]}
