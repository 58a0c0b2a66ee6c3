"""A rotary embedding that an exporter took apart: x·cos + rotated(x)·sin.

Source: Su et al., "RoFormer"; halves are swapped (Llama) or neighbours (GPT-J), the sine's part negated.
"""

from collections.abc import Sequence

from trt_tui.core.network.fusion.growing import REGION_LIMIT, Growing, Match
from trt_tui.core.network.layers import Kind, Layer

_FIRST = frozenset(("Mul", "Neg"))
_FARTHEST = 8  # layers from the first to the Add


def match(growing: Growing, layer: Layer) -> Match:
    """Takes the rotation in, from its first product or negation to the Add: a match without ``layer``."""
    if layer.op_type not in _FIRST or layer.kind is not Kind.COMPUTE:
        return Match(reason=f"no rotation starts with {layer.op_type}")
    add = _add_behind(growing, layer)
    if add is None:
        return Match(reason="no Add follows that only it leads to")
    products = [growing.graph.by_name.get(growing.graph.producer.get(name, "")) for name in add.inputs]
    for plain, turned in (products, products[::-1]):
        if plain is None or turned is None or {plain.op_type, turned.op_type} != {"Mul"}:
            continue
        region = _rotation(growing, plain, turned, add)
        if layer in region and growing.end(region) == add.outputs[0]:
            return Match(tuple(one for one in region if one is not layer), add.outputs[0], operator="RotaryEmbedding")
    return Match(reason="the Add does not join a tensor's product with that of its halves turned")


def _add_behind(growing: Growing, layer: Layer) -> Layer | None:
    """The Add of two tensors to which layers lead one behind the other."""
    for _ in range(_FARTHEST):
        behind = growing.sole_user(layer.outputs[0])
        if behind is None or behind.kind is Kind.OPAQUE:
            return None
        if behind.op_type == "Add":
            return behind if len(behind.inputs) == 2 else None
        layer = behind
    return None


def _rotation(growing: Growing, plain: Layer, turned: Layer, add: Layer) -> list[Layer]:
    """The layers of a rotation that are in no group, in network order; [] where it is none."""
    for factor in turned.inputs:
        turn = _turn(growing, factor)
        if turn is None:
            continue
        source, passed = turn
        if source in (_source(growing, name) for name in plain.inputs):
            layers = {one.name: one for one in (*passed, plain, turned, add) if one.name not in growing.owner}
            return sorted(layers.values(), key=lambda one: one.index)
    return []


def _turn(growing: Growing, tensor: str) -> tuple[str, Sequence[Layer]] | None:
    """What a tensor is a Concat of pieces of, some negated and some not, and the layers that make it of them."""
    passed: dict[str, Layer] = {}
    sources: set[str] = set()
    stack = [tensor]
    while stack and len(passed) < REGION_LIMIT:
        name = stack.pop()
        layer = growing.graph.by_name.get(growing.graph.producer.get(name, ""))
        if layer is not None and (layer.op_type in ("Concat", "Neg") or _copies_unread(growing, layer, name)):
            passed[layer.name] = layer
            stack.extend(growing.dynamic_inputs(layer))
        else:
            sources.add(_source(growing, name))
    kinds = [one.op_type for one in passed.values()]
    return (sources.pop(), list(passed.values())) if len(sources) == 1 and {"Concat", "Neg"} <= set(kinds) else None


def _copies_unread(growing: Growing, layer: Layer, tensor: str) -> bool:
    """Whether a layer in no group moves values, in one output that one layer reads."""
    return (layer.name not in growing.owner and growing.moves_only(layer) and len(layer.outputs) == 1
            and len(growing.dynamic_inputs(layer)) == 1 and growing.sole_user(tensor) is not None)


def _source(growing: Growing, tensor: str) -> str:
    """The tensor that copies, one behind the other, took a tensor's values from."""
    for _ in range(_FARTHEST):
        layer = growing.graph.by_name.get(growing.graph.producer.get(tensor, ""))
        if layer is None or not growing.moves_only(layer):
            break
        moved = [name for name in growing.dynamic_inputs(layer) if growing.graph.is_float(name)]
        if len(moved) != 1:
            break
        tensor = moved[0]
    return tensor
