"""A GroupNorm that an exporter wrote as an InstanceNormalization between two Reshapes; its affine part follows.

Source: PyTorch's exporters below opset 21. TensorRT makes one Normalization layer of an InstanceNormalization, and
fuses what is pointwise behind it.
"""

from trt_tui.core.network.fusion.growing import Growing, Match
from trt_tui.core.network.layers import Layer


def match(growing: Growing, layer: Layer) -> Match:
    """Takes the Reshape in that gives the channels back; scale, shift and activation follow by rules of their own."""
    if layer.op_type != "InstanceNormalization":
        return Match(reason=f"no GroupNorm is made of {layer.op_type}")
    before = growing.graph.producer.get(layer.inputs[0], "")
    if not before or growing.graph.by_name[before].op_type != "Reshape":
        return Match(reason="its channels are normalised one by one")
    behind = growing.sole_user(layer.outputs[0])
    if behind is None or behind.op_type != "Reshape":
        return Match(reason="no Reshape gives the channels back")
    return Match((behind,), behind.outputs[0], computes=False, operator="GroupNorm")
