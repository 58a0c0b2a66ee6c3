"""The groups of one attention: the product that makes its scores, the Softmax over them, the product with its values.

Source: TensorRT-RTX 1.7, which makes one engine layer of them (`_gemm_mha_v2`) where all are 16 bit; each can be
given a precision of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.operators import POINTWISE

_NeighbourStep: TypeAlias = Callable[[FusionGroupingState, FusionGroupDraft], "FusionGroupDraft | None"]

_PRODUCT_OPERATORS = frozenset(("MatMul", "Einsum"))
_MAX_GROUPS_BETWEEN = 3  # groups between a product and the Softmax: masks that are no group's own

SCORES_ROLE, SOFTMAX_ROLE, VALUES_ROLE, MASK_ROLE = "QK", "Softmax", "PV", "mask"
"""What the groups of an attention are called in it."""


@dataclass(frozen=True)
class AttentionGroups:
    """The groups of one attention; false where a rule declines.

    Attributes:
        role_by_group: What each group is in it, by group.
        reason: Why the rule declines, "" where it does not.
    """

    role_by_group: Mapping[FusionGroupDraft, str] = field(default_factory=dict)
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.role_by_group)


def match_attention(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> AttentionGroups:
    """The attention around a group that is a Softmax, all groups being complete."""
    if group_draft.operator_name != "Softmax":
        return AttentionGroups(reason=f"{group_draft.operator_name} is no Softmax")
    groups_before = _trace_groups_to_product(grouping, group_draft, _find_producer_group)
    if groups_before is None:
        return AttentionGroups(reason="no product of two activations makes its scores")
    groups_behind = _trace_groups_to_product(grouping, group_draft, _find_consumer_group)
    if groups_behind is None:
        return AttentionGroups(reason="no product of two activations is all that reads it")
    *masks_before, scores = groups_before
    *masks_behind, values = groups_behind
    return AttentionGroups({
        scores: SCORES_ROLE, **dict.fromkeys(masks_before[::-1], MASK_ROLE), group_draft: SOFTMAX_ROLE,
        **dict.fromkeys(masks_behind, MASK_ROLE), values: VALUES_ROLE
    })


def _trace_groups_to_product(grouping: FusionGroupingState, group_draft: FusionGroupDraft,
                             find_neighbour_group: _NeighbourStep) -> list[FusionGroupDraft] | None:
    """The groups from one to the next product, that one last; None where another kind of group comes first."""
    passed_drafts: list[FusionGroupDraft] = []
    while len(passed_drafts) <= _MAX_GROUPS_BETWEEN:
        next_draft = find_neighbour_group(grouping, passed_drafts[-1] if passed_drafts else group_draft)
        if next_draft is None:
            return None
        passed_drafts.append(next_draft)
        main_layer = next_draft.main_layer
        if grouping.multiplies_activations(main_layer) or main_layer.op_type == "Einsum" and len(
                main_layer.inputs) == 2:
            return passed_drafts
        if main_layer.op_type not in POINTWISE:
            return None
    return None


def _find_producer_group(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionGroupDraft | None:
    """The group that alone computes what a group reads of what leads to no shape."""
    own_tensors = {name for layer in group_draft.layers for name in layer.outputs}
    candidates = {
        grouping.draft_by_layer[producer]
        for layer in group_draft.layers
        for name in _list_float_inputs(grouping, layer)
        if name not in own_tensors and (producer := grouping.graph.producer.get(name, "")) in grouping.draft_by_layer
    }
    products = [candidate for candidate in candidates
                if candidate.main_layer.op_type in _PRODUCT_OPERATORS] if len(candidates) > 1 else list(candidates)
    return products[0] if len(products) == 1 else None


def _find_consumer_group(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionGroupDraft | None:
    """The group that alone reads what a group computes."""
    names = {layer.name for layer in group_draft.layers}
    user_names = {user for layer in group_draft.layers for name in layer.outputs
                  for user in grouping.graph.consumers.get(name, ()) if user not in names}
    groups = {
        grouping.draft_by_layer.get(user)
        for user in user_names
        if grouping.graph.by_name[user].kind is not LayerKind.SHAPE
    }
    is_output = any(grouping.is_network_output(name) for layer in group_draft.layers for name in layer.outputs)
    return groups.pop() if len(groups) == 1 and not is_output else None


def _list_float_inputs(grouping: FusionGroupingState, layer: Layer) -> list[str]:
    return [name for name in grouping.list_dynamic_inputs(layer) if grouping.graph.is_float(name)]
