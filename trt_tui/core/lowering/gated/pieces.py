"""A gated graph with fixed inputs, and its division into pieces that run one after the other."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.gated.gated_graph import GatedGraph
from trt_tui.core.network.model_editing import list_subgraphs, list_values_read_by_node, remove_unused_nodes, value_name


def freeze_inputs(model: ir.Model, arrays: Mapping[str, np.ndarray]) -> None:
    """Turns graph inputs into constants, and replaces each ``If`` that depends on them by the selected branch.

    The model changes in place. Nodes and constants without a reader are removed. Inputs of the network stay.

    Args:
        arrays: The values of inputs by name, such as `GatedGraph.make_feed` returns.
    """
    graph = model.graph
    fixed = {value_name(value): value for value in graph.inputs if value.name in arrays}
    _select_branches(
        graph,
        {
            id(value): bool(arrays[name])
            for name, value in fixed.items()
            if value.dtype == ir.DataType.BOOL and not arrays[name].ndim
        },
    )
    used = remove_unused_nodes(graph)
    graph.inputs[:] = [value for value in graph.inputs if value.name not in fixed]
    for name, value in fixed.items():
        if id(value) in used:
            value.const_value = ir.tensor(np.ascontiguousarray(arrays[name]), name=name)
            value.shape = ir.Shape(arrays[name].shape)
            graph.initializers[name] = value
    for name, value in list(graph.initializers.items()):
        if id(value) not in used:
            del graph.initializers[name]


def _select_branches(graph: ir.Graph, conditions: Mapping[int, bool]) -> None:
    """Replaces each ``If`` with a known condition by the nodes of the selected branch, at any depth.

    Args:
        conditions: The known conditions by the id of their values.
    """
    for node in list(graph):
        condition = node.inputs[0] if node.op_type == "If" and not node.domain else None
        if condition is not None and id(condition) in conditions:
            branch = node.attributes["then_branch" if conditions[id(condition)] else "else_branch"].as_graph()
            _select_branches(branch, conditions)
            results, nodes = list(branch.outputs), list(branch)
            branch.outputs.clear()
            branch.remove(nodes)
            graph.insert_before(node, nodes)
            for output, result in zip(node.outputs, results, strict=True):
                ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
            graph.remove(node)
            continue
        for subgraph in list_subgraphs(node):
            _select_branches(subgraph, conditions)


DEFAULT_PIECES = 6
"""The default number of pieces.

If one group at a time is changed, this number of pieces of equal cost saves 5/12 of all computation."""

MIN_GROUPS_PER_PIECE = 3
"""The minimum number of gated groups in a piece."""

_MACS_PER_ELEMENT, _MACS_PER_LAYER = 50, 100_000
"""The cost of an element of a result, and of a layer, in multiply-accumulates, besides its own multiply-accumulates."""


def split_graph_into_pieces(
    gated_graph: GatedGraph, piece_count: int = DEFAULT_PIECES, *, for_device: bool = False
) -> Iterator[ir.Model]:
    """Yields the graph of a gated network in pieces: models that run in this order.

    A piece reads inputs of the graph and results of earlier pieces, by name. There is a single piece if the graph is
    small, or if the types at all possible cuts are unknown. A piece is copied only when it is requested, so that not
    all pieces are in memory together.

    Args:
        for_device: True if no tensor that holds sizes may cross a cut. A CUDA graph needs sizes as constants. Within a
            piece they are constant, because its inputs have fixed shapes.
    """
    model = gated_graph.model
    constant_nodes_of_graph = _find_constant_nodes(model.graph)
    nodes = [node for node in model.graph if node not in constant_nodes_of_graph]
    piece_count = min(piece_count, len(gated_graph.gates) // MIN_GROUPS_PER_PIECE)
    cuts = _choose_cut_positions(gated_graph, nodes, piece_count, for_device) if piece_count > 1 else []
    if not cuts:
        yield model
        return
    outputs = {id(value) for value in model.graph.outputs}
    bounds = list(zip([0, *cuts], [*cuts, len(nodes)], strict=True))
    needed = [_find_ids_of_needed_values(nodes[start:stop], constant_nodes_of_graph) for start, stop in bounds]
    for piece, (start, stop) in enumerate(bounds):
        piece_values = [value for node in nodes[start:stop] for value in node.outputs]
        constant_nodes = [
            node for node in constant_nodes_of_graph if any(id(value) in needed[piece] for value in node.outputs)
        ]
        initializers = [value for value in model.graph.initializers.values() if id(value) in needed[piece]]
        inputs = [value for value in model.graph.inputs if id(value) in needed[piece]]
        inputs += [value for node in nodes[:start] for value in node.outputs if id(value) in needed[piece]]
        yielded = [
            value
            for value in piece_values
            if id(value) in outputs or any(id(value) in later for later in needed[piece + 1 :])
        ]
        view = ir.GraphView(
            inputs,
            yielded,
            nodes=[*constant_nodes, *nodes[start:stop]],
            initializers=initializers,
            opset_imports=dict(model.graph.opset_imports),
            name=f"piece {piece}",
        )
        yield ir.Model(view.clone(), ir_version=model.ir_version)


def _find_constant_nodes(graph: ir.Graph) -> dict[ir.Node, None]:
    """Returns the nodes that compute only from constants. Each piece contains those that it needs."""
    constant_values = {id(value) for value in graph.initializers.values()}
    constant_nodes: dict[ir.Node, None] = {}
    outputs = {id(value) for value in graph.outputs}
    for node in graph:
        own = {id(value) for value in node.outputs}
        if outputs.isdisjoint(own) and all(id(value) in constant_values for value in list_values_read_by_node(node)):
            constant_nodes[node] = None
            constant_values |= own
    return constant_nodes


def _find_ids_of_needed_values(nodes: Sequence[ir.Node], constant_nodes: dict[ir.Node, None]) -> set[int]:
    """Returns the ids of all values that some nodes and the constant nodes before them read."""
    needed = {id(value) for node in nodes for value in list_values_read_by_node(node)}
    for node in reversed(constant_nodes):
        if any(id(value) in needed for value in node.outputs):
            needed.update(id(value) for value in list_values_read_by_node(node))
    return needed


def _choose_cut_positions(
    gated_graph: GatedGraph, nodes: list[ir.Node], piece_count: int, for_device: bool
) -> list[int]:
    """Returns positions that cut the graph into pieces of similar cost, where few elements cross the cut."""
    cumulated_costs = list(accumulate(_iterate_node_costs(gated_graph, nodes)))
    cuts: list[int] = []
    crossing = list(_iterate_element_counts_at_cuts(nodes, for_device))
    for piece in range(1, piece_count):
        middle, reach = cumulated_costs[-1] * piece / piece_count, cumulated_costs[-1] / (4 * piece_count)
        near = [
            position
            for position in range(1, len(nodes))
            if abs(cumulated_costs[position - 1] - middle) <= reach and math.isfinite(crossing[position])
        ]
        if near:
            cuts.append(min(near, key=lambda place: crossing[place]))
    return sorted(set(cuts))


def _iterate_node_costs(gated_graph: GatedGraph, nodes: list[ir.Node]) -> Iterator[float]:
    """Yields the cost of each node of the main graph in multiply-accumulates. The cost of a layer counts once."""
    network, counted_layers = gated_graph.network, set[str]()
    for node in nodes:
        cost = 0.0
        nested_nodes = (node, *(inner for graph in list_subgraphs(node) for inner in graph.all_nodes()))
        for name in dict.fromkeys((inner.name or "").rpartition("#")[0] for inner in nested_nodes):
            if name not in counted_layers and network.has_layer(name):
                counted_layers.add(name)
                layer = network.get_layer(name)
                elements = sum(_count_elements(network.shape(tensor)) for tensor in layer.outputs if tensor)
                cost += (layer.macs or 0) + _MACS_PER_ELEMENT * elements + _MACS_PER_LAYER
        yield cost


def _iterate_element_counts_at_cuts(nodes: list[ir.Node], for_device: bool) -> Iterator[float]:
    """Yields the number of elements that cross each position; infinity if the position cannot be a cut.

    An element crosses a position if a node before the position writes it and a node after the position reads it.
    """
    last: dict[int, int] = {}
    for position, node in enumerate(nodes):
        last.update((id(value), position) for value in list_values_read_by_node(node))
    ending: dict[int, list[float]] = {}
    crossing, unknown = 0.0, 0
    for position in range(len(nodes) + 1):
        for size in ending.pop(position, []):
            unknown, crossing = (unknown - 1, crossing) if math.isinf(size) else (unknown, crossing - size)
        yield math.inf if unknown else crossing
        for value in nodes[position].outputs if position < len(nodes) else ():
            if last.get(id(value), -1) > position:
                has_known_size = (
                    isinstance(value.type, ir.TensorType)
                    and value.dtype is not None
                    and bool(value_name(value))
                    and not (for_device and _must_stay_in_piece(value))
                )
                size = float(_count_elements(value.shape)) if has_known_size else math.inf
                ending.setdefault(last[id(value)] + 1, []).append(size)
                unknown, crossing = (unknown, crossing + size) if has_known_size else (unknown + 1, crossing)


def _must_stay_in_piece(value: ir.Value) -> bool:
    """Returns True for a value that may be a tensor size, and for text, which cannot be stored on a device."""
    is_integer = value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    return is_integer and (value.shape is None or len(value.shape) <= 1) or value.dtype is ir.DataType.STRING


def _count_elements(shape: ir.Shape | tuple[int | str | None, ...] | None) -> int:
    """Returns the number of elements of a shape, with open sizes as 1."""
    return math.prod(size for size in shape or () if isinstance(size, int))
