"""A GELU, SiLU, Mish or HardSwish that an exporter took apart, of a tensor that is no group's own.

Source: "PointWise fusion" of TensorRT's catalog. Spellings of GELU: Hendrycks and Gimpel, "Gaussian Error Linear Units"
(erf, tanh, and x·sigmoid(1.702x)).
"""

from collections.abc import Collection, Sequence

from trt_tui.core.network.fusion.grouping import MAX_REGION_LAYERS, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.operators import POINTWISE

_ACTIVATION_BY_CURVE = {
    "Erf": "GELU", "Softplus": "Mish", "Tanh": "GELU", "Sigmoid": "SiLU", "HardSigmoid": "HardSwish",
    "Clip": "HardSwish"
}


def match_activation(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch:
    """Takes in what computes x·f(x), of x and constants alone: a match without ``layer``, where it is the first of it.

    The tensor x may be used elsewhere too.
    """
    source_tensors = set(grouping.list_dynamic_inputs(layer))
    if not grouping.is_float_operator(layer, POINTWISE) or len(source_tensors) != 1:
        return FusionRuleMatch(reason="it is not pointwise, or reads several tensors")
    (start_tensor,) = source_tensors
    derived_layers = _find_derived_layers(grouping, start_tensor)
    for last_layer in derived_layers:
        if last_layer.op_type != "Mul" or len(set(grouping.list_dynamic_inputs(last_layer))) != 2:
            continue
        region = _trace_region(grouping, last_layer, start_tensor, derived_layers)
        activation_name = _activation_name(grouping, region, start_tensor)
        if activation_name and region[0] is layer and grouping.find_region_output(region) == last_layer.outputs[0]:
            return FusionRuleMatch(tuple(region[1:]), last_layer.outputs[0], operator_name=activation_name)
    return FusionRuleMatch(reason="nothing that ends in a product of it and a curve over it starts there")


def _find_derived_layers(grouping: FusionGroupingState, start_tensor: str) -> list[Layer]:
    """The first layers in no group that compute from a tensor and constants alone, in network order."""
    layer_by_name: dict[str, Layer] = {}
    tensors = {start_tensor}
    while len(layer_by_name) < MAX_REGION_LAYERS:
        next_layers = [
            user for tensor in tensors for user in grouping.list_readers_if_few(tensor)
            if user.name not in layer_by_name and user.name not in grouping.draft_by_layer
            and grouping.is_float_operator(user, POINTWISE) and tensors.issuperset(grouping.list_dynamic_inputs(user))
        ]
        nearest_layer = min(next_layers, key=lambda layer: layer.index, default=None)
        if nearest_layer is None:
            break
        layer_by_name[nearest_layer.name] = nearest_layer
        tensors.add(nearest_layer.outputs[0])
    return sorted(layer_by_name.values(), key=lambda layer: layer.index)


def _trace_region(grouping: FusionGroupingState, last_layer: Layer, start_tensor: str,
                  derived_layers: Collection[Layer]) -> list[Layer]:
    """What computes the result of a layer from a tensor, in network order."""
    producers = {layer.outputs[0]: layer for layer in derived_layers}
    region, stack = {last_layer.name: last_layer}, [last_layer]
    while stack:
        for name in grouping.list_dynamic_inputs(stack.pop()):
            if name != start_tensor and producers[name].name not in region:
                region[producers[name].name] = producers[name]
                stack.append(producers[name])
    return sorted(region.values(), key=lambda layer_in_region: layer_in_region.index)


def _activation_name(grouping: FusionGroupingState, region: Sequence[Layer], start_tensor: str) -> str:
    """What a region is called; "" where there is no curve in it that such activations have."""
    by_type = {layer.op_type: layer for layer in region}
    curve = next((curve_operator for curve_operator in _ACTIVATION_BY_CURVE if curve_operator in by_type), "")
    if curve == "Sigmoid" and grouping.list_dynamic_inputs(by_type[curve]) != [start_tensor]:
        return "GELU"
    return _ACTIVATION_BY_CURVE.get(curve, "")
