"""What scales the operands of an attention's scores, in front of the MatMul that makes them.

Source: TensorRT-RTX 1.7, whose fused attention takes the scaling in (`_gemm_mha_v2`); PyTorch's exporters scale both
operands of a scaled_dot_product_attention.
"""

from trt_tui.core.network.fusion.growing import Growing, Match
from trt_tui.core.network.layers import Kind, Layer
from trt_tui.core.network.operators import POINTWISE, SAME_RANGE

_FARTHEST = 8  # layers between the MatMul and its Softmax: a scale, a mask, copies
_COPIES = 3
_SCALES = frozenset(("Mul", "Div"))


def match(growing: Growing, layer: Layer) -> Match:
    """Takes each Mul or Div by constants that only the MatMul reads, through copies; the MatMul starts the group."""
    if not growing.multiplies_activations(layer):
        return Match(reason="it does not multiply two activations")
    if not leads_to_softmax(growing, layer):
        return Match(reason="no Softmax reads what it computes")
    found = [one for operand in layer.inputs for one in _scaled(growing, layer, operand)]
    if not found:
        return Match(reason="its operands are not scaled by constants")
    return Match(tuple(sorted(set(found), key=lambda one: one.index)), layer.outputs[0])


def leads_to_softmax(growing: Growing, layer: Layer) -> bool:
    """Whether pointwise operators and copies, one behind the other, lead from a layer to a Softmax."""
    tensor = layer.outputs[0]
    for _ in range(_FARTHEST):
        users = [one for one in growing.users_inside(tensor) if one.kind is not Kind.SHAPE]
        if len(users) == 1 and (users[0].op_type in POINTWISE or users[0].op_type in SAME_RANGE):
            tensor = users[0].outputs[0]
        else:
            return bool(users) and all(one.op_type in ("Softmax", "ReduceMax", "Sub") for one in users)
    return False


def _scaled(growing: Growing, product: Layer, operand: str) -> list[Layer]:
    """The scaling of an operand and the copies behind it; [] where it is not scaled for this alone."""
    passed: list[Layer] = []
    reader, tensor = product, operand
    while len(passed) < _COPIES and growing.only_reads(reader, tensor):
        layer = growing.graph.by_name.get(growing.graph.producer.get(tensor, ""))
        if layer is None or layer.name in growing.owner:
            break
        passed.append(layer)
        if layer.op_type in _SCALES and growing.is_pointwise_with_constants(layer):
            return passed
        if layer.op_type not in SAME_RANGE or len(growing.dynamic_inputs(layer)) != 1:
            break
        reader, tensor = layer, layer.inputs[0]
    return []
