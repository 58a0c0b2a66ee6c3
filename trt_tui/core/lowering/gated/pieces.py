"""A gated graph cut into pieces that run one after the other, so that configs share what they have in common."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

import onnx_ir as ir

from trt_tui.core.lowering.gated.emitter import reads
from trt_tui.core.lowering.gated.gated import Gated
from trt_tui.core.network.naming import name_of

PIECES = 6
"""Where one group at a time is changed, so many pieces of equal cost save 5/12 of all runs."""

GROUPS = 3
"""A piece has as many groups with gates at least."""

_ELEMENT_MACS, _LAYER_MACS = 50, 100_000
"""What an element of a result, and a layer, cost beside multiply-accumulates, in these."""


def in_pieces(gated: Gated, count: int = PIECES) -> Iterator[ir.Model]:
    """Yields the graph of a gated network as models that run in this order: each reads inputs of the graph and what
    earlier ones yield, by name. One where it is too small to be cut, or what would be cut has no known type.

    Each is a copy that is made when it is asked for, so that they need not be in memory together."""
    model = gated.model
    static = _static(model.graph)
    nodes = [node for node in model.graph if node not in static]
    count = min(count, len(gated.gates) // GROUPS)
    cuts = _cuts(gated, nodes, count) if count > 1 else []
    if not cuts:
        yield model
        return
    outputs = {id(value) for value in model.graph.outputs}
    bounds = list(zip([0, *cuts], [*cuts, len(nodes)], strict=True))
    needed = [_needed(nodes[start:stop], static) for start, stop in bounds]
    for place, (start, stop) in enumerate(bounds):
        made = [value for node in nodes[start:stop] for value in node.outputs]
        known = [node for node in static if any(id(value) in needed[place] for value in node.outputs)]
        held = [value for value in model.graph.initializers.values() if id(value) in needed[place]]
        given = [value for value in model.graph.inputs if id(value) in needed[place]]
        given += [value for node in nodes[:start] for value in node.outputs if id(value) in needed[place]]
        yielded = [value for value in made if id(value) in outputs
                   or any(id(value) in later for later in needed[place + 1:])]
        view = ir.GraphView(given, yielded, nodes=[*known, *nodes[start:stop]], initializers=held,
                            opset_imports=dict(model.graph.opset_imports), name=f"piece {place}")
        yield ir.Model(view.clone(), ir_version=model.ir_version)


def _static(graph: ir.Graph) -> dict[ir.Node, None]:
    """Nodes that compute from constants alone: each piece has those that it needs."""
    known = {id(value) for value in graph.initializers.values()}
    found: dict[ir.Node, None] = {}
    outputs = {id(value) for value in graph.outputs}
    for node in graph:
        own = {id(value) for value in node.outputs}
        if outputs.isdisjoint(own) and all(id(value) in known for value in reads(node)):
            found[node] = None
            known |= own
    return found


def _needed(nodes: Sequence[ir.Node], static: dict[ir.Node, None]) -> set[int]:
    """The values that nodes read, and what these are computed from where that is constants alone."""
    needed = {id(value) for node in nodes for value in reads(node)}
    for node in reversed(static):
        if any(id(value) in needed for value in node.outputs):
            needed.update(id(value) for value in reads(node))
    return needed


def _cuts(gated: Gated, nodes: list[ir.Node], count: int) -> list[int]:
    """Where to cut: near equal parts of the cost, at the fewest values that go from one side to the other."""
    done = list(accumulate(_costs(gated, nodes)))
    found: list[int] = []
    crossing = list(_crossing(nodes))
    for part in range(1, count):
        middle, reach = done[-1] * part / count, done[-1] / (4 * count)
        near = [place for place in range(1, len(nodes)) if abs(done[place - 1] - middle) <= reach
                and math.isfinite(crossing[place])]
        if near:
            found.append(min(near, key=lambda place: crossing[place]))
    return sorted(set(found))


def _costs(gated: Gated, nodes: list[ir.Node]) -> Iterator[float]:
    """What each node of the main graph costs, in multiply-accumulates: each layer within it counts once."""
    network, known = gated.network, set[str]()
    for node in nodes:
        cost = 0.0
        for name in dict.fromkeys(layer.rpartition("#")[0] for layer in _names(node)):
            if name not in known and network.has_layer(name):
                known.add(name)
                layer = network.layer(name)
                elements = sum(_elements(network.shape(tensor)) for tensor in layer.outputs if tensor)
                cost += (layer.macs or 0) + _ELEMENT_MACS * elements + _LAYER_MACS
        yield cost


def _names(node: ir.Node) -> Iterator[str]:
    yield node.name or ""
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            for inner in attr.as_graph():
                yield from _names(inner)


def _crossing(nodes: list[ir.Node]) -> Iterator[float]:
    """By place the elements that nodes before it make and nodes from it on read; infinite where a type is not known."""
    last: dict[int, int] = {}
    for place, node in enumerate(nodes):
        last.update((id(value), place) for value in reads(node))
    ending: dict[int, list[float]] = {}
    now, unknown = 0.0, 0
    for place in range(len(nodes) + 1):
        for size in ending.pop(place, []):
            unknown, now = (unknown - 1, now) if math.isinf(size) else (unknown, now - size)
        yield math.inf if unknown else now
        for value in nodes[place].outputs if place < len(nodes) else ():
            if last.get(id(value), -1) > place:
                known = isinstance(value.type, ir.TensorType) and value.dtype is not None and bool(name_of(value))
                size = float(_elements(value.shape)) if known else math.inf
                ending.setdefault(last[id(value)] + 1, []).append(size)
                unknown, now = (unknown, now + size) if known else (unknown + 1, now)


def _elements(shape: ir.Shape | tuple[int | str | None, ...] | None) -> int:
    """Elements of a tensor, open sizes taken as 1."""
    return math.prod(size for size in shape or () if isinstance(size, int))
