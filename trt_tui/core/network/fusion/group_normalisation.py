"""A GroupNorm that an exporter wrote as an InstanceNormalization between two Reshapes; its affine part follows.

Source: PyTorch's exporters below opset 21. TensorRT makes one Normalization layer of an InstanceNormalization, and
fuses what is pointwise behind it.
"""

from trt_tui.core.network.fusion.grouping import FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer


def match_group_normalisation(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch:
    """Takes the Reshape in that gives the channels back; scale, shift and activation follow by rules of their own."""
    if layer.op_type != "InstanceNormalization":
        return FusionRuleMatch(reason=f"no GroupNorm is made of {layer.op_type}")
    producer_name = grouping.graph.producer.get(layer.inputs[0], "")
    if not producer_name or grouping.graph.by_name[producer_name].op_type != "Reshape":
        return FusionRuleMatch(reason="its channels are normalised one by one")
    next_layer = grouping.find_sole_reader(layer.outputs[0])
    if next_layer is None or next_layer.op_type != "Reshape":
        return FusionRuleMatch(reason="no Reshape gives the channels back")
    return FusionRuleMatch((next_layer,), next_layer.outputs[0], computes_output=False, operator_name="GroupNorm")
