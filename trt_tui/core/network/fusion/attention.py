"""The fusion rules of attention: the scaling of its scores, and the search for the groups of one attention.

Their source is TensorRT-RTX 1.7, which builds one engine layer from these groups (`_gemm_mha_v2`) if all of them are 16
bit. Each group can be given a separate precision.
"""

from collections.abc import Callable, Mapping

from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.operators import POINTWISE, RANGE_PRESERVING_COPIES

_MAX_SOFTMAX_DISTANCE = 8  # number of layers between a MatMul and its Softmax: a scale, a mask, copies
_MAX_COPIES = 3
_SCALE_OPERATORS = frozenset(("Mul", "Div"))

_PRODUCT_OPERATORS = frozenset(("MatMul", "Einsum"))
_MAX_GROUPS_BETWEEN = 3  # number of groups between a product and the Softmax: masks that no other group contains

SCORES_ROLE, SOFTMAX_ROLE, VALUES_ROLE, MASK_ROLE = "QK", "Softmax", "PV", "mask"
"""The roles of groups in an attention."""


def match_attention_scaling(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch | None:
    """Matches a Mul or Div by constants that scales an operand of an attention's first MatMul. The MatMul starts the
    group.

    Copies may be between the two, and the MatMul must be the only reader.

    Source: TensorRT-RTX 1.7, whose fused attention contains the scaling (`_gemm_mha_v2`); PyTorch's exporters scale
    both operands of a scaled_dot_product_attention.
    """
    if not grouping.multiplies_activations(layer) or not leads_to_softmax(grouping, layer):
        return None
    scaling_layers = [
        scaling_layer for operand in layer.inputs for scaling_layer in _find_scaling_layers(grouping, layer, operand)
    ]
    return (
        FusionRuleMatch(tuple(sorted(set(scaling_layers), key=lambda item: item.index)), layer.outputs[0])
        if scaling_layers
        else None
    )


def leads_to_softmax(grouping: FusionGroupingState, layer: Layer) -> bool:
    """Returns True if a chain of pointwise operators and copies leads from a layer to a Softmax."""
    tensor = layer.outputs[0]
    for _ in range(_MAX_SOFTMAX_DISTANCE):
        users = [user for user in grouping.list_readers_if_few(tensor) if user.kind is not LayerKind.SHAPE]
        if len(users) == 1 and (users[0].op_type in POINTWISE or users[0].op_type in RANGE_PRESERVING_COPIES):
            tensor = users[0].outputs[0]
        else:
            return bool(users) and all(user.op_type in ("Softmax", "ReduceMax", "Sub") for user in users)
    return False


def _find_scaling_layers(grouping: FusionGroupingState, product: Layer, operand: str) -> list[Layer]:
    """Returns the Mul or Div that scales an operand of a product, with the copies after it; [] if other layers also
    read them.
    """
    passed_layers: list[Layer] = []
    reader, tensor = product, operand
    while len(passed_layers) < _MAX_COPIES and grouping.graph.find_sole_reader(tensor) is reader:
        layer = grouping.graph.find_producer(tensor)
        if layer is None or layer.name in grouping.draft_by_layer:
            break
        passed_layers.append(layer)
        if layer.op_type in _SCALE_OPERATORS and grouping.is_pointwise_with_constants(layer):
            return passed_layers
        if layer.op_type not in RANGE_PRESERVING_COPIES or len(grouping.list_dynamic_inputs(layer)) != 1:
            break
        reader, tensor = layer, layer.inputs[0]
    return []


def match_attention(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> Mapping[FusionGroupDraft, str]:
    """Returns the groups of the attention around a Softmax, each with its role; {} if there is no attention.

    All groups of the network must be complete.
    """
    groups_before, groups_behind = (
        _trace_groups_to_product(grouping, group_draft, step) if group_draft.operator_name == "Softmax" else None
        for step in (_find_producer_group, _find_consumer_group)
    )
    if groups_before is None or groups_behind is None:
        return {}
    *masks_before, scores = groups_before
    *masks_behind, values = groups_behind
    return {
        scores: SCORES_ROLE,
        **dict.fromkeys(masks_before[::-1], MASK_ROLE),
        group_draft: SOFTMAX_ROLE,
        **dict.fromkeys(masks_behind, MASK_ROLE),
        values: VALUES_ROLE,
    }


def _trace_groups_to_product(
    grouping: FusionGroupingState,
    group_draft: FusionGroupDraft,
    find_neighbour_group: Callable[[FusionGroupingState, FusionGroupDraft], FusionGroupDraft | None],
) -> list[FusionGroupDraft] | None:
    """Returns the groups from the given one up to and including the next matrix product.

    Returns None if any other group on the way is not pointwise.
    """
    passed_drafts: list[FusionGroupDraft] = []
    while len(passed_drafts) <= _MAX_GROUPS_BETWEEN:
        next_draft = find_neighbour_group(grouping, passed_drafts[-1] if passed_drafts else group_draft)
        if next_draft is None:
            return None
        passed_drafts.append(next_draft)
        main_layer = next_draft.main_layer
        if (
            grouping.multiplies_activations(main_layer)
            or main_layer.op_type == "Einsum"
            and len(main_layer.inputs) == 2
        ):
            return passed_drafts
        if main_layer.op_type not in POINTWISE:
            return None
    return None


def _find_producer_group(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionGroupDraft | None:
    """Returns the group that computes the float inputs of a group; None if there are several.

    If exactly one of several groups is a product, the product is returned.
    """
    own_tensors = {name for layer in group_draft.layers for name in layer.outputs}
    candidates = {
        grouping.draft_by_layer[producer]
        for layer in group_draft.layers
        for name in grouping.list_float_inputs(layer)
        if name not in own_tensors and (producer := grouping.graph.producer.get(name, "")) in grouping.draft_by_layer
    }
    products = (
        [candidate for candidate in candidates if candidate.main_layer.op_type in _PRODUCT_OPERATORS]
        if len(candidates) > 1
        else list(candidates)
    )
    return products[0] if len(products) == 1 else None


def _find_consumer_group(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionGroupDraft | None:
    """Returns the group that reads the results of a group; None if there are several.

    Layers that read only shapes do not count.
    """
    names = {layer.name for layer in group_draft.layers}
    user_names = {
        user
        for layer in group_draft.layers
        for name in layer.outputs
        for user in grouping.graph.consumers.get(name, ())
        if user not in names
    }
    groups = {
        grouping.draft_by_layer.get(user)
        for user in user_names
        if grouping.graph.by_name[user].kind is not LayerKind.SHAPE
    }
    is_output = any(name in grouping.graph.output_names for layer in group_draft.layers for name in layer.outputs)
    return groups.pop() if len(groups) == 1 and not is_output else None
