"""A mask of a product of activations: a Where that puts a constant in its place, or that makes the mask it adds.

Source: "PointWise fusion" of TensorRT's catalog; PyTorch's exporters make an additive mask of a boolean one for each
scaled_dot_product_attention, and a Where of `masked_fill`.
"""

from trt_tui.core.network.fusion.growing import Growing, Match, Members
from trt_tui.core.network.layers import Layer


def match(growing: Growing, members: Members) -> Match:
    """Takes the Where in that alone reads what the group computed, or whose result the group alone adds."""
    if not growing.multiplies_activations(members.leader):
        return Match(reason=f"{members.leader.op_type} does not multiply two activations")
    layer = growing.sole_user(members.tail)
    if layer is not None and layer.op_type == "Where" and _floats(growing, layer) == {members.tail}:
        return Match((layer,), layer.outputs[0])
    if members.skip is None:
        return Match(reason="no mask follows")
    add, index = members.skip
    made_by = growing.graph.by_name.get(growing.graph.producer.get(add.inputs[index], ""))
    if made_by is None or made_by.op_type != "Where" or _floats(growing, made_by) or made_by.name in growing.owner:
        return Match(reason="what it adds is no choice between constants")
    if not growing.only_reads(add, made_by.outputs[0]):
        return Match(reason="the mask that it adds is read elsewhere too")
    return Match((made_by,))


def _floats(growing: Growing, layer: Layer) -> set[str]:
    """What a layer chooses from beside constants."""
    return set(growing.dynamic_inputs(layer)) - {layer.inputs[0]}
