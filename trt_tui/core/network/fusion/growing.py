"""What the rules of fusion work on: groups while they grow, and what is asked about the layers around them."""

from collections.abc import Iterable
from dataclasses import dataclass

from trt_tui.core.network.fusion.shapes_read import ShapesRead
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Kind, Layer
from trt_tui.core.network.operators import FREE_COPIES, POINTWISE

REGION_LIMIT = 16
"""The most layers of a region: what is decomposed in more of them is not looked for."""


@dataclass(frozen=True)
class Match:
    """What a rule takes into a group; false where it declines.

    Attributes:
        layers: What joins, in network order.
        tail: The tensor that leads out of the group then; "" where that does not change.
        computes: Whether the tail is computed there, and so where the group's error is taken; False where it is moved.
        skip: An Add that joins two paths, and the index of the input that comes from the other one.
        operator: What a group that starts with it is called; "" for the name of its first layer's operator.
        reason: Why the rule declines, "" where it does not.
    """

    layers: tuple[Layer, ...] = ()
    tail: str = ""
    computes: bool = True
    skip: tuple[Layer, int] | None = None
    operator: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.layers)


def has_group(graph: LayerGraph, layer: Layer) -> bool:
    """Whether a layer belongs to a group: it makes floats that are no shapes or constants."""
    return (layer.kind in (Kind.COMPUTE, Kind.COPY, Kind.OPAQUE)
            and any(graph.is_float(name) for name in layer.outputs))


class Members:
    """The layers of one group while it grows.

    Attributes:
        leader: The layer that it is named after.
        operator: What it is called.
        tail: The tensor that leads out of it.
        computed: The last tensor that it computes.
        skip: Its residual Add, and the index of the input that comes from elsewhere.
        position: Where the group stands in the order of execution: the index of its last layer before it takes copies.
        takes_copies: Operators behind it that only move its values may join.
    """

    def __init__(self, leader: Layer, tail: str, *, takes_copies: bool = True) -> None:
        self.layers = [leader]
        self.leader = leader
        self.operator = leader.op_type
        self.tail = self.computed = tail
        self.skip: tuple[Layer, int] | None = None
        self.position = leader.index
        self.takes_copies = takes_copies


class Growing:
    """The groups of a network while they grow.

    Attributes:
        owner: The group that a layer belongs to, by layer name.
        ready: Position of the last group that a tensor waits for, by tensor; absent where it waits for none.
        loose: The same of layers in no group, by name.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.owner: dict[str, Members] = {}
        self.ready: dict[str, int] = {}
        self.loose: dict[str, int] = {}
        self._outputs = frozenset(info.name for info in graph.outputs)
        self._shapes = ShapesRead(graph, {layer.name for layer in graph.layers if has_group(graph, layer)})

    def first(self, members: Members, found: Iterable[Match]) -> Match | None:
        """The first match in which no layer waits for a shape that never comes (`ShapesRead`)."""
        return next((match for match in found if match and not self._shapes.wait_for(members.layers, match.layers)),
                    None)

    def take(self, members: Members, match: Match) -> None:
        """Puts what a rule found into a group."""
        for layer in match.layers:
            members.layers.append(layer)
            self.owner[layer.name] = members
        if match.tail:
            members.tail = match.tail
            members.computed = match.tail if match.computes else members.computed
        members.skip = match.skip or members.skip
        members.operator = match.operator or members.operator

    # -- about a tensor -----------------------------------------------------------------------------------------

    def is_output(self, tensor: str) -> bool:
        """Whether the network hands a tensor out."""
        return tensor in self._outputs

    def sole_user(self, tensor: str) -> Layer | None:
        """The layer in no group that alone reads a tensor; None where others, or an output, read it too."""
        users = self.graph.readers.get(tensor, ())
        if len(users) != 1 or users[0] in self.owner or self.is_output(tensor):
            return None
        return self.graph.by_name[users[0]]

    def only_reads(self, layer: Layer, tensor: str) -> bool:
        """Whether a layer alone reads a tensor."""
        return self.graph.readers.get(tensor, []) == [layer.name] and not self.is_output(tensor)

    def users_inside(self, tensor: str) -> list[Layer]:
        """The users of a tensor, where they are few enough to lie in one region; [] where they are not."""
        names = self.graph.readers.get(tensor, ())
        return [self.graph.by_name[name] for name in names] if len(names) <= REGION_LIMIT else []

    # -- about a layer ------------------------------------------------------------------------------------------

    def waits_for(self, layer: Layer) -> int:
        """Position of the last group that a layer waits for; -1 where it waits for none."""
        return max((self.ready.get(name, -1) for name in self.graph.reads(layer.name)), default=-1)

    def dynamic_inputs(self, layer: Layer) -> list[str]:
        """What a layer reads beside constants and shapes."""
        return [name for name in layer.inputs if name and name not in self.graph.static]

    def computes(self, layer: Layer, operators: frozenset[str]) -> bool:
        """Whether a layer is one of some operators and computes floats in one output."""
        return layer.op_type in operators and layer.kind is Kind.COMPUTE and len(layer.outputs) == 1

    def is_pointwise_with_constants(self, layer: Layer) -> bool:
        """Whether a layer computes, value by value, from one tensor and constants."""
        return self.computes(layer, POINTWISE) and len(self.dynamic_inputs(layer)) == 1

    def multiplies_activations(self, layer: Layer) -> bool:
        """Whether a layer is a MatMul and no operand a weight: each is computed, or stored with a matrix a head."""
        operands = [name for name in layer.inputs if name in self.graph.static]
        return (layer.op_type == "MatMul" and len(operands) < 2
                and all(len(self.graph.shape(name) or ()) > 2 for name in operands))

    def moves_only(self, layer: Layer) -> bool:
        """Whether a layer is a copy that stays with what computed its values."""
        return layer.kind is Kind.COPY and layer.op_type in FREE_COPIES

    # -- about a region -----------------------------------------------------------------------------------------

    def escapes(self, tensors: Iterable[str], region: list[Layer]) -> list[str]:
        """Those of some tensors that something outside a region reads, or nothing at all."""
        inside = {layer.name for layer in region}
        escaped = []
        for tensor in tensors:
            users = self.graph.readers.get(tensor, ())
            within = 0 < len(users) <= len(inside) and inside.issuperset(users)
            if not within or self.is_output(tensor):
                escaped.append(tensor)
        return escaped

    def end(self, region: list[Layer]) -> str | None:
        """The one tensor of a region that is read outside; None where there are several."""
        escaped = self.escapes((layer.outputs[0] for layer in region), region)
        return escaped[0] if len(escaped) == 1 else None
