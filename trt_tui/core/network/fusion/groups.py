"""The construction of a network's fusion groups by the fusion rules."""

from collections.abc import Callable, Iterable

from trt_tui.core.network import supported_precisions
from trt_tui.core.network.fusion import attention, decomposed_operators, epilogues
from trt_tui.core.network.fusion.grouping import (
    FusionGroupDraft,
    FusionGroupingState,
    FusionRuleMatch,
    needs_fusion_group,
)
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind
from trt_tui.core.network.model_editing import iterate_reachable
from trt_tui.core.network.operators import FUSED_COPIES, NORMALISATIONS, POINTWISE, PRODUCTS
from trt_tui.core.precision import Precision

EPILOGUE_RULES: tuple[Callable[[FusionGroupingState, FusionGroupDraft], FusionRuleMatch | None], ...] = (
    epilogues.match_batch_normalisation,
    epilogues.match_constant_pointwise,
    epilogues.match_residual_add,
    epilogues.match_trailing_reshapes,
    epilogues.match_pointwise_region,
    epilogues.match_where_mask,
    epilogues.match_nan_masking,
)
"""The rules by which a group grows behind its last layer, in the order in which they are tried."""

START_RULES: tuple[Callable[[FusionGroupingState, Layer], FusionRuleMatch | None], ...] = (
    attention.match_attention_scaling,
    decomposed_operators.match_normalisation,
    decomposed_operators.match_group_normalisation,
    decomposed_operators.match_activation,
    decomposed_operators.match_rotary_embedding,
)
"""The rules by which a layer starts a group of several layers, in the order in which they are tried."""

_GROWING_OPERATORS = PRODUCTS | POINTWISE | NORMALISATIONS | {"Softmax"}


def build_fusion_groups(graph: LayerGraph) -> tuple[FusionGroup, ...]:
    """Partitions the float layers of a network into fusion groups, in network order and in linear time.

    No group depends on its own result, not even through other groups. While a group grows, layers outside read only its
    last tensor, and every member leads to that tensor. Therefore groups run in the order of their last layers (their
    positions). A copy joins only if it does not change this order.
    """
    grouping = FusionGroupingState(graph)
    product_layers = [layer for layer in graph.layers if layer.op_type in PRODUCTS and layer.kind is LayerKind.COMPUTE]
    # Groups of later layers grow first, so that a residual Add joins the Conv that is computed last.
    drafts = [_start_group(grouping, layer) for layer in reversed(product_layers)]
    for layer in graph.layers:
        # The position of the last group that the layer depends on; -1 if there is none.
        position = max((grouping.ready_positions.get(name, -1) for name in graph.input_tensors(layer.name)), default=-1)
        if needs_fusion_group(graph, layer):
            if layer.name not in grouping.draft_by_layer and not _add_copy_to_producer_group(grouping, layer):
                drafts.append(_start_group(grouping, layer))
            position = grouping.draft_by_layer[layer.name].position
        else:
            grouping.ungrouped_positions[layer.name] = position
        grouping.ready_positions.update((name, position) for name in layer.outputs if name)
    drafts.sort(key=lambda members: min(layer.index for layer in members.layers))
    attention_roles = {
        member_draft: (draft.main_layer.name, role)
        for draft in drafts
        for member_draft, role in attention.match_attention(grouping, draft).items()
    }
    return tuple(_build_group(grouping, draft, *attention_roles.get(draft, ("", ""))) for draft in drafts)


def _add_copy_to_producer_group(grouping: FusionGroupingState, copy_layer: Layer) -> bool:
    """Adds a copy to the group that computes the copied values; returns True if it joined."""
    draft = epilogues.find_producer_group_of_copy(grouping, copy_layer)
    copy_match = epilogues.match_copy(grouping, draft, copy_layer) if draft is not None else None
    if draft is None or copy_match is None:
        return False
    grouping.apply_match(draft, copy_match)
    return True


def _start_group(grouping: FusionGroupingState, first_layer: Layer) -> FusionGroupDraft:
    """Builds a group: its first layer, the layers that a start rule adds, and the epilogues that follow."""
    is_isolated = (
        first_layer.kind is LayerKind.OPAQUE
        or len(first_layer.outputs) != 1
        and first_layer.op_type not in FUSED_COPIES
    )
    output_tensor = next(name for name in first_layer.outputs if grouping.graph.is_fp32(name))
    draft = FusionGroupDraft(first_layer, output_tensor, accepts_copies=not is_isolated)
    start_match = grouping.find_first_valid_match(draft, (rule(grouping, first_layer) for rule in START_RULES))
    grouping.draft_by_layer[first_layer.name] = draft
    if start_match is not None:
        grouping.apply_match(draft, start_match)
    if not is_isolated and (start_match or first_layer.op_type in _GROWING_OPERATORS):
        while epilogue_match := grouping.find_first_valid_match(
            draft, (rule(grouping, draft) for rule in EPILOGUE_RULES)
        ):
            grouping.apply_match(draft, epilogue_match)
    draft.position = max(member.index for member in draft.layers)
    return draft


# -- description ----------------------------------------------------------------------------------------------------


def _build_group(
    grouping: FusionGroupingState, group_draft: FusionGroupDraft, attention_name: str, attention_role: str
) -> FusionGroup:
    graph, main_layer = grouping.graph, group_draft.main_layer
    layers = sorted(group_draft.layers, key=lambda member: member.index)
    own_tensors = {output for layer in layers for output in layer.outputs if output}
    names = {layer.name for layer in layers}
    inputs = dict.fromkeys(
        name
        for layer in layers
        for name in layer.inputs
        if name and name not in own_tensors and name not in graph.static_tensors and graph.is_fp32(name)
    )
    outputs = tuple(
        output
        for layer in layers
        for output in layer.outputs
        if output and (output in grouping.graph.output_names or not names.issuperset(graph.consumers.get(output, ())))
    )
    sites, no_int8_reason = supported_precisions.find_qdq_sites(
        graph, main_layer, group_draft.skip_input, group_draft.operator_name
    )
    refusals = supported_precisions.find_precision_refusal_reasons(graph, layers, main_layer, sites, no_int8_reason)
    return FusionGroup(
        name=main_layer.name,
        operator=group_draft.operator_name,
        layers=tuple(layer.name for layer in layers),
        inputs=tuple(inputs),
        outputs=outputs or (group_draft.computed_tensor,),
        final_tensor=group_draft.computed_tensor,
        sites=sites if Precision.INT8 not in refusals else (),
        refusal_reasons=refusals,
        shape_layers=_find_shape_layers(grouping, group_draft),
        attention=attention_name,
        attention_role=attention_role,
    )


def _find_shape_layers(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> tuple[str, ...]:
    """Returns the ungrouped layers that compute shapes for a group from tensors of this group, in network order."""
    graph = grouping.graph

    def list_shape_layers(tensors: Iterable[str]) -> list[str]:
        producers = [graph.producer.get(name, "") for name in tensors]
        return [name for name in producers if grouping.ungrouped_positions.get(name) == group_draft.position]

    starts = list_shape_layers(
        name for layer in group_draft.layers for name in graph.input_tensors(layer.name) if name in graph.static_tensors
    )
    return tuple(
        sorted(
            iterate_reachable(starts, lambda layer: list_shape_layers(graph.input_tensors(layer))),
            key=lambda name: graph.by_name[name].index,
        )
    )
