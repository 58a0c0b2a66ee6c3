"""Operators that only move values stay with what computed them.

Source: "Shuffle and Shuffle", "Shuffle and Reduce" of TensorRT's catalog: moving values takes no precision of its own.
"""

from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer


def find_producer_group_of_copy(grouping: FusionGroupingState, copy_layer: Layer) -> FusionGroupDraft | None:
    """The group that computed the one float tensor a layer reads."""
    moved_tensors = _list_float_inputs(grouping, copy_layer)
    return grouping.draft_by_layer.get(grouping.graph.producer.get(moved_tensors[0],
                                                                   "")) if len(moved_tensors) == 1 else None


def match_copy(grouping: FusionGroupingState, group_draft: FusionGroupDraft, copy_layer: Layer) -> FusionRuleMatch:
    """Takes a copy in, where it can wait for the group.

    Whatever else it reads must be there at the group's position, shape arithmetic on the group itself apart: that is
    the group's own (`FusionGroup.shape_layers`).
    """
    if not group_draft.accepts_copies:
        return FusionRuleMatch(reason=f"{group_draft.main_layer.op_type} is kept as it is")
    if not grouping.is_fused_copy(copy_layer):
        return FusionRuleMatch(reason="it does more than move values")
    (moved_tensor,) = _list_float_inputs(grouping, copy_layer)
    for name in grouping.graph.input_tensors(copy_layer.name):
        last_position = group_draft.position if name in grouping.graph.static_tensors else group_draft.position - 1
        if name != moved_tensor and grouping.ready_positions.get(name, -1) > last_position:
            return FusionRuleMatch(reason=f"it reads {name}, which the group would have to wait for")
    return FusionRuleMatch((copy_layer,))


def _list_float_inputs(grouping: FusionGroupingState, layer: Layer) -> list[str]:
    return [name for name in grouping.list_dynamic_inputs(layer) if grouping.graph.is_float(name)]
