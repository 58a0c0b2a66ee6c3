"""Several pointwise operators on what a group computed that end in one tensor: SiLU, GELU, chains of arithmetic.

Source: "PointWise fusion" of TensorRT's catalog.
"""

from trt_tui.core.network.fusion.grouping import (
    MAX_REGION_LAYERS,
    FusionGroupDraft,
    FusionGroupingState,
    FusionRuleMatch,
)
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.operators import POINTWISE


def match_pointwise_region(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch:
    """Takes the smallest region in that hides what the group computed."""
    if grouping.is_network_output(group_draft.output_tensor):
        return FusionRuleMatch(reason="what the group computes is an output of the network")
    region = _find_pointwise_region(grouping, group_draft.output_tensor)
    output_tensor = grouping.find_region_output(region)
    if output_tensor is None:
        return FusionRuleMatch(reason="no pointwise operators that end in one tensor are all that reads it")
    return FusionRuleMatch(tuple(region), output_tensor)


def is_read_by_closed_region(grouping: FusionGroupingState, tensor: str) -> bool:
    """Whether pointwise operators that end in one tensor are all that reads a tensor."""
    return not grouping.is_network_output(tensor) and bool(_find_pointwise_region(grouping, tensor))


def _find_pointwise_region(grouping: FusionGroupingState, start_tensor: str) -> list[Layer]:
    """Layers computed from ``start_tensor`` and constants alone that end in one tensor; [] where there are none."""
    region: list[Layer] = []
    derived_tensors = {start_tensor}
    frontier = [start_tensor]
    while frontier and len(region) < MAX_REGION_LAYERS:
        tensor = frontier.pop(0)
        for layer in grouping.list_readers_if_few(tensor):
            if (layer in region or layer.name in grouping.draft_by_layer
                    or not grouping.is_float_operator(layer, POINTWISE)
                    or any(name not in derived_tensors for name in grouping.list_dynamic_inputs(layer))):
                continue
            region.append(layer)
            region.sort(key=lambda member: member.index)
            derived_tensors.add(layer.outputs[0])
            frontier.append(layer.outputs[0])
            # A layer that waited for this result can follow now.
            frontier.extend(name for name in derived_tensors if name not in frontier and name != tensor)
        if region and grouping.find_region_output(region) and not grouping.find_tensors_read_outside_region(
            (start_tensor, ), region):
            return region
    return []
