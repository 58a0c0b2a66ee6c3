"""What scales the operands of an attention's scores, in front of the MatMul that makes them.

Source: TensorRT-RTX 1.7, whose fused attention takes the scaling in (`_gemm_mha_v2`); PyTorch's exporters scale both
operands of a scaled_dot_product_attention.
"""

from trt_tui.core.network.fusion.grouping import FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.operators import POINTWISE, RANGE_PRESERVING_COPIES

_MAX_SOFTMAX_DISTANCE = 8  # layers between the MatMul and its Softmax: a scale, a mask, copies
_MAX_COPIES = 3
_SCALE_OPERATORS = frozenset(("Mul", "Div"))


def match_attention_scaling(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch:
    """Takes each Mul or Div by constants that only the MatMul reads, through copies; the MatMul starts the group."""
    if not grouping.multiplies_activations(layer):
        return FusionRuleMatch(reason="it does not multiply two activations")
    if not leads_to_softmax(grouping, layer):
        return FusionRuleMatch(reason="no Softmax reads what it computes")
    scaling_layers = [
        scaling_layer for operand in layer.inputs for scaling_layer in _find_scaling_layers(grouping, layer, operand)
    ]
    if not scaling_layers:
        return FusionRuleMatch(reason="its operands are not scaled by constants")
    return FusionRuleMatch(tuple(sorted(set(scaling_layers), key=lambda item: item.index)), layer.outputs[0])


def leads_to_softmax(grouping: FusionGroupingState, layer: Layer) -> bool:
    """Whether pointwise operators and copies, one behind the other, lead from a layer to a Softmax."""
    tensor = layer.outputs[0]
    for _ in range(_MAX_SOFTMAX_DISTANCE):
        users = [user for user in grouping.list_readers_if_few(tensor) if user.kind is not LayerKind.SHAPE]
        if len(users) == 1 and (users[0].op_type in POINTWISE or users[0].op_type in RANGE_PRESERVING_COPIES):
            tensor = users[0].outputs[0]
        else:
            return bool(users) and all(user.op_type in ("Softmax", "ReduceMax", "Sub") for user in users)
    return False


def _find_scaling_layers(grouping: FusionGroupingState, product: Layer, operand: str) -> list[Layer]:
    """The scaling of an operand and the copies behind it; [] where it is not scaled for this alone."""
    passed_layers: list[Layer] = []
    reader, tensor = product, operand
    while len(passed_layers) < _MAX_COPIES and grouping.is_sole_reader(reader, tensor):
        layer = grouping.graph.by_name.get(grouping.graph.producer.get(tensor, ""))
        if layer is None or layer.name in grouping.draft_by_layer:
            break
        passed_layers.append(layer)
        if layer.op_type in _SCALE_OPERATORS and grouping.is_pointwise_with_constants(layer):
            return passed_layers
        if layer.op_type not in RANGE_PRESERVING_COPIES or len(grouping.list_dynamic_inputs(layer)) != 1:
            break
        reader, tensor = layer, layer.inputs[0]
    return []
