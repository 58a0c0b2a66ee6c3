"""The fusion rules that extend a group after its last layer. Each docstring names the source of its rule."""

from trt_tui.core.network.fusion.grouping import (
    FusionGroupDraft,
    FusionGroupingState,
    FusionRuleMatch,
)
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.operators import PRODUCTS

_ADD_OPERATORS = frozenset(("Add", "Sum"))

_MAX_RESHAPES = 4


def match_batch_normalisation(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch | None:
    """Matches a BatchNormalization in inference form that follows a group.

    In training form it has several outputs and is not fused.

    Source: "Convolution and Scale" and "Scale and Activation" of TensorRT's catalog. Its parser makes one Scale layer
    of a BatchNormalization in inference form.
    """
    layer = grouping.find_sole_reader(group_draft.output_tensor)
    if layer is None or layer.op_type != "BatchNormalization" or len(layer.outputs) != 1:
        return None
    return FusionRuleMatch((layer,), layer.outputs[0])


def match_constant_pointwise(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch | None:
    """Matches a pointwise operator with constants that is the only reader of a group's result.

    Source: "Convolution and ReLU", "Convolution and GELU", "Convolution and Clip", "Convolution And ElementWise
    Operation", "Scale and Activation" and "PointWise fusion" of TensorRT's catalog.
    """
    layer = grouping.find_sole_reader(group_draft.output_tensor)
    if layer is None or not grouping.is_pointwise_with_constants(layer):
        return None
    return FusionRuleMatch((layer,), layer.outputs[0])


def match_residual_add(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch | None:
    """Matches a residual Add after a group. A group has at most one.

    The other input of the Add is the skip input of the group.

    Source: "Convolution And ElementWise Operation" of TensorRT's catalog. Groups of later layers grow first, so that
    the Add joins the group that is computed last.
    """
    layer = grouping.find_sole_reader(group_draft.output_tensor)
    if (
        layer is None
        or group_draft.main_layer.op_type not in PRODUCTS
        or group_draft.skip_input is not None
        or not grouping.is_float_operator(layer, _ADD_OPERATORS)
        or len(layer.inputs) != 2
    ):
        return None
    other_indices = [index for index, name in enumerate(layer.inputs) if name != group_draft.output_tensor]
    return (
        FusionRuleMatch((layer,), layer.outputs[0], skip_input=(layer, other_indices[0]))
        if len(other_indices) == 1
        else None
    )


def match_pointwise_region(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch | None:
    """Matches the smallest region of pointwise operators that contains all readers of a group's result.

    Source: "PointWise fusion" of TensorRT's catalog.
    """
    if group_draft.output_tensor in grouping.graph.output_names:
        return None
    region = _find_pointwise_region(grouping, group_draft.output_tensor)
    output_tensor = grouping.find_region_output(region)
    return FusionRuleMatch(tuple(region), output_tensor) if output_tensor is not None else None


def _find_pointwise_region(grouping: FusionGroupingState, start_tensor: str) -> list[Layer]:
    """Returns the pointwise layers that compute only from ``start_tensor`` and constants and have a single result; []
    if there are none.
    """
    region: list[Layer] = []
    for layer in grouping.iterate_derived_layers(start_tensor):
        region.append(layer)
        if grouping.find_region_output(region) and not grouping.find_tensors_read_outside_region(
            (start_tensor,), region
        ):
            return region
    return []


def match_trailing_reshapes(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch | None:
    """Matches copies after a group, such as Reshape and Transpose, if a bias or an activation follows them.

    The bias or activation joins by another rule.

    Source: exports of attention (the heads are split before the bias is added), of Gemms over sequences (flattened
    around the Gemm), and of Convs between layers over tokens. TensorRT-RTX 1.7 lists such MatMuls with their bias as
    one engine layer.
    """
    copies: list[Layer] = []
    output_tensor = group_draft.output_tensor
    while len(copies) < _MAX_RESHAPES:
        layer = grouping.find_sole_reader(output_tensor)
        if layer is None or not grouping.is_fused_copy(layer) or len(layer.outputs) != 1:
            break
        copies.append(layer)
        output_tensor = layer.outputs[0]
    next_layer = grouping.find_sole_reader(output_tensor)
    if copies and (
        next_layer is not None
        and grouping.is_pointwise_with_constants(next_layer)
        or output_tensor not in grouping.graph.output_names
        and _find_pointwise_region(grouping, output_tensor)
    ):
        return FusionRuleMatch(tuple(copies), output_tensor, computes_output=False)
    return None


def match_where_mask(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch | None:
    """Matches a Where that masks the result of a group, or the mask that the group's residual Add adds.

    The rule applies to groups that multiply two activations.

    Source: "PointWise fusion" of TensorRT's catalog; PyTorch's exporters make an additive mask of a boolean one for
    each scaled_dot_product_attention, and a Where of `masked_fill`.
    """
    if not grouping.multiplies_activations(group_draft.main_layer):
        return None
    layer = grouping.find_sole_reader(group_draft.output_tensor)
    if (
        layer is not None
        and layer.op_type == "Where"
        and _list_where_values(grouping, layer) == {group_draft.output_tensor}
    ):
        return FusionRuleMatch((layer,), layer.outputs[0])
    if group_draft.skip_input is None:
        return None
    add, index = group_draft.skip_input
    mask_producer = grouping.graph.find_producer(add.inputs[index])
    if (
        mask_producer is None
        or mask_producer.op_type != "Where"
        or _list_where_values(grouping, mask_producer)
        or mask_producer.name in grouping.draft_by_layer
        or grouping.graph.find_sole_reader(mask_producer.outputs[0]) is not add
    ):
        return None
    return FusionRuleMatch((mask_producer,))


def _list_where_values(grouping: FusionGroupingState, layer: Layer) -> set[str]:
    return set(grouping.list_dynamic_inputs(layer)) - {layer.inputs[0]}


def match_nan_masking(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch | None:
    """Matches the IsNaN and the Where after a Softmax, if no other layer reads the Softmax.

    Source: PyTorch's exporters write these behind the Softmax of a scaled_dot_product_attention with a mask.
    """
    users = grouping.list_readers_if_few(group_draft.output_tensor)
    if (
        group_draft.operator_name != "Softmax"
        or {user.op_type for user in users} != {"IsNaN", "Where"}
        or len(users) != 2
        or group_draft.output_tensor in grouping.graph.output_names
    ):
        return None
    is_nan_layer, where_layer = sorted(users, key=lambda item: item.op_type)
    if (
        grouping.find_sole_reader(is_nan_layer.outputs[0]) is not where_layer
        or where_layer.inputs[0] != is_nan_layer.outputs[0]
        or set(grouping.list_dynamic_inputs(where_layer)) != {is_nan_layer.outputs[0], group_draft.output_tensor}
    ):
        return None
    return FusionRuleMatch((is_nan_layer, where_layer), where_layer.outputs[0])


def find_producer_group_of_copy(grouping: FusionGroupingState, copy_layer: Layer) -> FusionGroupDraft | None:
    """Returns the group that computes the input of a copy; None if the copy has several float inputs, or no group
    computes it.

    Source: "Shuffle and Shuffle", "Shuffle and Reduce" of TensorRT's catalog: copies need no separate precision.
    """
    moved_tensors = grouping.list_float_inputs(copy_layer)
    return (
        grouping.draft_by_layer.get(grouping.graph.producer.get(moved_tensors[0], ""))
        if len(moved_tensors) == 1
        else None
    )


def match_copy(
    grouping: FusionGroupingState, group_draft: FusionGroupDraft, copy_layer: Layer
) -> FusionRuleMatch | None:
    """Matches a copy of a group's values if all other inputs of the copy exist when the group is executed.

    Every other input must be computed at the group's position or before. The only exception is shape arithmetic on the
    group's own tensors, which belongs to the group (`FusionGroup.shape_layers`).
    """
    if not group_draft.accepts_copies or not grouping.is_fused_copy(copy_layer):
        return None
    (moved_tensor,) = grouping.list_float_inputs(copy_layer)
    for name in grouping.graph.input_tensors(copy_layer.name):
        last_position = group_draft.position if name in grouping.graph.static_tensors else group_draft.position - 1
        if name != moved_tensor and grouping.ready_positions.get(name, -1) > last_position:
            return None
    return FusionRuleMatch((copy_layer,))
