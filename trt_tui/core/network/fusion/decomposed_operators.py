"""The fusion rules that start a group from a decomposed operator, such as a LayerNorm or a GELU of several nodes."""

from collections.abc import Collection, Mapping, Sequence

from trt_tui.core.network.fusion.grouping import MAX_REGION_LAYERS, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.model_editing import iterate_reachable
from trt_tui.core.network.operators import POINTWISE, REDUCTIONS

_START_OPERATORS = REDUCTIONS | {"Pow", "Mul", "Exp"}
_REGION_OPERATORS = POINTWISE | REDUCTIONS
_NONLINEAR_OPERATORS = frozenset(("Sqrt", "Exp", "Pow", "ReduceL2"))
_SCALING_OPERATORS = frozenset(("Div", "Mul"))
_SQUARE_OPERATORS = frozenset(("Pow", "Mul"))

_ACTIVATION_BY_CURVE = {
    "Erf": "GELU",
    "Softplus": "Mish",
    "Tanh": "GELU",
    "Sigmoid": "SiLU",
    "HardSigmoid": "HardSwish",
    "Clip": "HardSwish",
}

_FIRST_OPERATORS = frozenset(("Mul", "Neg"))
_MAX_DISTANCE = 8  # number of layers from the first one of a rotation to its Add


def match_normalisation(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch | None:
    """Matches the layers of a decomposed normalisation that begins with ``layer``.

    The region consists of reductions, pointwise operators and copies over one tensor, with a square root or an
    exponential. It ends with the scaling of unreduced values by reduced ones. Layers outside may also read the first
    tensor, as a residual Add does. The match does not include ``layer``, which starts the group.

    Source: "Reduce" fusions and Normalization of TensorRT's catalog; TensorRT-RTX 1.7 lists them as one engine layer.
    """
    source_tensors = set(grouping.list_dynamic_inputs(layer))
    if layer.op_type not in _START_OPERATORS or layer.kind is not LayerKind.COMPUTE or len(source_tensors) != 1:
        return None
    (start_tensor,) = source_tensors
    region = [layer]
    # The tensors of the region, each with True if it is reduced.
    reduced_by_tensor = {start_tensor: False, layer.outputs[0]: layer.op_type in REDUCTIONS}
    while len(region) < MAX_REGION_LAYERS:
        nearest_layer = min(
            _find_region_candidates(grouping, start_tensor, reduced_by_tensor, region),
            key=lambda item: item.index,
            default=None,
        )
        if nearest_layer is None:
            return None
        region.append(nearest_layer)
        region.sort(key=lambda item: item.index)
        reduced_flags = {
            reduced_by_tensor[name] for name in grouping.list_dynamic_inputs(nearest_layer) if name in reduced_by_tensor
        }
        reduced_by_tensor[nearest_layer.outputs[0]] = nearest_layer.op_type in REDUCTIONS or reduced_flags == {True}
        operators = {member.op_type for member in region}
        if (
            nearest_layer.op_type in _SCALING_OPERATORS
            and len(reduced_flags) == 2
            and operators & REDUCTIONS
            and operators & _NONLINEAR_OPERATORS
        ):
            output_tensor = grouping.find_region_output(region)
            if output_tensor is not None:
                return FusionRuleMatch(
                    tuple(member for member in region if member is not layer),
                    output_tensor,
                    operator_name=_normalisation_name(region),
                )
    return None


def _find_region_candidates(
    grouping: FusionGroupingState, start_tensor: str, reduced_by_tensor: Mapping[str, bool], region: Sequence[Layer]
) -> list[Layer]:
    """Returns ungrouped layers that compute only from tensors of the region, or copy reduced tensors of the region."""
    layer_names = {member.name for member in region}
    candidates = []
    for tensor, is_reduced in reduced_by_tensor.items():
        for user in grouping.list_readers_if_few(tensor):
            if user.name in layer_names or user.name in grouping.draft_by_layer:
                continue
            if grouping.is_float_operator(user, _REGION_OPERATORS):
                input_names = grouping.list_dynamic_inputs(user)
                can_join = all(name in reduced_by_tensor for name in input_names) and (
                    tensor != start_tensor
                    or user.op_type in REDUCTIONS
                    or any(name != start_tensor for name in input_names)
                    or _is_square_before_reduction(grouping, user)
                )
            else:
                can_join = (
                    is_reduced and grouping.is_fused_copy(user) and len(user.outputs) == 1 and user.inputs[0] == tensor
                )
            if can_join:
                candidates.append(user)
    return candidates


def _is_square_before_reduction(grouping: FusionGroupingState, layer: Layer) -> bool:
    """Returns True if a layer computes a square that only reductions read.

    This occurs in a variance that is computed as the mean of squares minus the square of the mean.
    """
    next_layer = grouping.find_sole_reader(layer.outputs[0])
    return layer.op_type in _SQUARE_OPERATORS and next_layer is not None and next_layer.op_type in REDUCTIONS


def _normalisation_name(region: Sequence[Layer]) -> str:
    """Returns the name of a decomposed normalisation: LayerNorm, RMSNorm, L2Norm or Softmax; "" for any other region."""
    operators = [layer.op_type for layer in region]
    if "ReduceL2" in operators:
        return "L2Norm"
    if not {"Sqrt", "Pow", "Reciprocal"}.isdisjoint(operators):
        mean_count = operators.count("ReduceMean")
        return ("L2Norm", "RMSNorm", "LayerNorm")[min(mean_count, 2)]
    return "Softmax" if "Exp" in operators else ""


def match_group_normalisation(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch | None:
    """Matches the Reshape after an InstanceNormalization that computes a GroupNorm.

    The Reshape restores the channels. Scale, shift and activation join by other rules.

    Source: PyTorch's exporters below opset 21. TensorRT makes one Normalization layer of an InstanceNormalization, and
    fuses pointwise operators behind it.
    """
    if layer.op_type != "InstanceNormalization":
        return None
    producer = grouping.graph.find_producer(layer.inputs[0])
    next_layer = grouping.find_sole_reader(layer.outputs[0])
    if producer is None or producer.op_type != "Reshape" or next_layer is None or next_layer.op_type != "Reshape":
        return None
    return FusionRuleMatch((next_layer,), next_layer.outputs[0], computes_output=False, operator_name="GroupNorm")


def match_activation(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch | None:
    """Matches the layers of a decomposed activation x·f(x) that begins with ``layer``. They read only x and constants.

    Layers outside may also read the tensor x. The match does not include ``layer``, which starts the group.

    Source: "PointWise fusion" of TensorRT's catalog. Spellings of GELU: Hendrycks and Gimpel, "Gaussian Error Linear
    Units" (erf, tanh, and x·sigmoid(1.702x)).
    """
    source_tensors = set(grouping.list_dynamic_inputs(layer))
    if not grouping.is_float_operator(layer, POINTWISE) or len(source_tensors) != 1:
        return None
    (start_tensor,) = source_tensors
    derived_layers = list(grouping.iterate_derived_layers(start_tensor))
    for last_layer in derived_layers:
        if last_layer.op_type != "Mul" or len(set(grouping.list_dynamic_inputs(last_layer))) != 2:
            continue
        region = _trace_region(grouping, last_layer, start_tensor, derived_layers)
        activation_name = _activation_name(grouping, region, start_tensor)
        if activation_name and region[0] is layer and grouping.find_region_output(region) == last_layer.outputs[0]:
            return FusionRuleMatch(tuple(region[1:]), last_layer.outputs[0], operator_name=activation_name)
    return None


def _trace_region(
    grouping: FusionGroupingState, last_layer: Layer, start_tensor: str, derived_layers: Collection[Layer]
) -> list[Layer]:
    """Returns the layers that compute the result of a layer from a start tensor, in network order."""
    producers = {layer.outputs[0]: layer for layer in derived_layers}
    region = iterate_reachable(
        [last_layer],
        lambda layer: [producers[name] for name in grouping.list_dynamic_inputs(layer) if name != start_tensor],
    )
    return sorted(region, key=lambda layer_in_region: layer_in_region.index)


def _activation_name(grouping: FusionGroupingState, region: Sequence[Layer], start_tensor: str) -> str:
    """Returns the name of a decomposed activation, such as GELU; "" if its function is not known."""
    by_type = {layer.op_type: layer for layer in region}
    curve = next((curve_operator for curve_operator in _ACTIVATION_BY_CURVE if curve_operator in by_type), "")
    if curve == "Sigmoid" and grouping.list_dynamic_inputs(by_type[curve]) != [start_tensor]:
        return "GELU"
    return _ACTIVATION_BY_CURVE.get(curve, "")


def match_rotary_embedding(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch | None:
    """Matches the layers of a rotary embedding, from its first product or negation (``layer``) to its Add.

    The match does not include ``layer``, which starts the group.

    Source: Su et al., "RoFormer"; halves are swapped (Llama) or neighbours (GPT-J), and the part of the sine is
    negated.
    """
    is_start = layer.op_type in _FIRST_OPERATORS and layer.kind is LayerKind.COMPUTE
    add = _find_final_add(grouping, layer) if is_start else None
    if add is None:
        return None
    products = [grouping.graph.find_producer(name) for name in add.inputs]
    for direct_product, rotated_product in (products, products[::-1]):
        if (
            direct_product is None
            or rotated_product is None
            or {direct_product.op_type, rotated_product.op_type} != {"Mul"}
        ):
            continue
        region = _find_rotation_layers(grouping, direct_product, rotated_product, add)
        if layer in region and grouping.find_region_output(region) == add.outputs[0]:
            return FusionRuleMatch(
                tuple(member for member in region if member is not layer),
                add.outputs[0],
                operator_name="RotaryEmbedding",
            )
    return None


def _find_final_add(grouping: FusionGroupingState, layer: Layer) -> Layer | None:
    """Returns the Add of two tensors at the end of a chain of layers; None if there is none."""
    for _ in range(_MAX_DISTANCE):
        next_layer = grouping.find_sole_reader(layer.outputs[0])
        if next_layer is None or next_layer.kind is LayerKind.OPAQUE:
            return None
        if next_layer.op_type == "Add":
            return next_layer if len(next_layer.inputs) == 2 else None
        layer = next_layer
    return None


def _find_rotation_layers(
    grouping: FusionGroupingState, direct_product: Layer, rotated_product: Layer, add: Layer
) -> list[Layer]:
    """Returns the ungrouped layers of a rotary embedding, in network order; [] if they do not form a rotary embedding."""
    for factor in rotated_product.inputs:
        rotated_concat = _match_rotated_concat(grouping, factor)
        if rotated_concat is None:
            continue
        source_tensor, passed_layers = rotated_concat
        if source_tensor in (_find_copy_source_tensor(grouping, name) for name in direct_product.inputs):
            layers = {
                member.name: member
                for member in (*passed_layers, direct_product, rotated_product, add)
                if member.name not in grouping.draft_by_layer
            }
            return sorted(layers.values(), key=lambda item: item.index)
    return []


def _match_rotated_concat(grouping: FusionGroupingState, tensor: str) -> tuple[str, Sequence[Layer]] | None:
    """Returns the source of a Concat that swaps and negates parts of one tensor, with the layers that compute it.

    Returns None if there is no such Concat.
    """
    passed_layers: dict[str, Layer] = {}
    source_tensors: set[str] = set()
    stack = [tensor]
    while stack and len(passed_layers) < MAX_REGION_LAYERS:
        name = stack.pop()
        layer = grouping.graph.find_producer(name)
        if layer is not None and (
            layer.op_type in ("Concat", "Neg") or _is_copy_with_sole_reader(grouping, layer, name)
        ):
            passed_layers[layer.name] = layer
            stack.extend(grouping.list_dynamic_inputs(layer))
        else:
            source_tensors.add(_find_copy_source_tensor(grouping, name))
    operators = [member.op_type for member in passed_layers.values()]
    return (
        (source_tensors.pop(), list(passed_layers.values()))
        if len(source_tensors) == 1 and {"Concat", "Neg"} <= set(operators)
        else None
    )


def _is_copy_with_sole_reader(grouping: FusionGroupingState, layer: Layer, tensor: str) -> bool:
    """Returns True if a layer is ungrouped, only copies values, and has a single output with a single reader."""
    return (
        layer.name not in grouping.draft_by_layer
        and grouping.is_fused_copy(layer)
        and len(layer.outputs) == 1
        and len(grouping.list_dynamic_inputs(layer)) == 1
        and grouping.find_sole_reader(tensor) is not None
    )


def _find_copy_source_tensor(grouping: FusionGroupingState, tensor: str) -> str:
    """Returns the tensor whose values a tensor copies, through a chain of copies."""
    for _ in range(_MAX_DISTANCE):
        layer = grouping.graph.find_producer(tensor)
        if layer is None or not grouping.is_fused_copy(layer):
            break
        moved_tensors = grouping.list_float_inputs(layer)
        if len(moved_tensors) != 1:
            break
        tensor = moved_tensors[0]
    return tensor
