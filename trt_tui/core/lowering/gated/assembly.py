"""The assembly of a gated graph from inputs, the reference branch, the gated test branch and error sums.

An assembled graph can get fixed inputs, and can be divided into pieces that run one after the other.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.gated.error_sums import (
    SUMS_OUTPUTS,
    ComparedTensor,
    ControlFlowErrorSumsEmitter,
    DataFlowErrorSumsEmitter,
    ErrorSumsEmitter,
    emit_error_sums_per_sample,
)
from trt_tui.core.lowering.gated.gated_graph import BranchTensors, GatedGraph, GatedGraphInputs, NodeEmitter
from trt_tui.core.lowering.gated.gates import ControlFlowEmitter, DataFlowEmitter, emit_ungated_group
from trt_tui.core.lowering.rulebook import GatedFeatures, find_compute_type_results
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind
from trt_tui.core.network.model_editing import (
    list_subgraphs,
    list_values_read_by_node,
    prune_model,
    remove_node,
    value_name,
)
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError

_MAX_KEPT_WEIGHT_BYTES = 1 << 28
"""The maximum size of weights of which two feeds are kept instead of one."""


def sort_by_dependency(network: Network) -> list[FusionGroup | Layer]:
    """Returns fusion groups and ungrouped layers in dependency order: each follows the producers of its inputs.

    Raises:
        TrtTuiError: the groups depend on each other in a cycle.
    """
    units = {layer.name: network.find_group(layer.name) or layer for layer in network.layers}
    order: dict[str, FusionGroup | Layer] = {}
    begun: dict[str, None] = {}
    stack = [units[layer.name] for layer in reversed(network.layers)]
    while stack:
        unit = stack[-1]
        pending = [units[name] for name in _list_layer_dependencies(network, unit) if units[name].name not in order]
        if not pending:
            order.setdefault(unit.name, stack.pop())
        elif unit.name in begun:
            path = [name for name in begun if name not in order]
            cycle = path[path.index(unit.name) :]
            raise TrtTuiError(
                f"fused layers of {network.name} depend on each other",
                " → ".join((*cycle, cycle[0])),
                "This is a defect of trt-tui; please report it with the network's structure.",
            )
        else:
            begun[unit.name] = None
            stack += pending
    return list(order.values())


def _list_layer_dependencies(network: Network, group_or_layer: FusionGroup | Layer) -> Iterable[str]:
    """Yields the outside layers that compute the inputs of a group or layer."""
    layer_names = (
        (*group_or_layer.layers, *group_or_layer.shape_layers)
        if isinstance(group_or_layer, FusionGroup)
        else (group_or_layer.name,)
    )
    own = set(layer_names)
    for name in layer_names:
        for tensor in network.input_tensors(name):
            producer = network.producer.get(tensor)
            if producer is not None and producer not in own:
                yield producer


def build_gated_graph(
    network: Network,
    *,
    float_types: Collection[Precision] = (Precision.FP16,),
    boundary_types: Collection[Precision] = (Precision.FP16,),
    quantized_types: Collection[Precision] = (Precision.INT8,),
    outputs: Sequence[str] = (),
    with_reference: bool = False,
    with_isolated: bool = False,
    with_accumulated: bool = True,
    measured_groups: Sequence[str] | None = None,
    editable_constants: bool = False,
    norm_operators: bool = False,
    gates_as_data: bool = False,
    compared_tensors: Sequence[ComparedTensor] = (),
    mask_axes: Mapping[str, tuple[bool, ...]] | None = None,
    expects_finite_sums: bool = False,
    extreme_tensors: Mapping[str, Sequence[str]] | None = None,
    shape_tensors: Sequence[str] = (),
) -> GatedGraph:
    """Builds the gated graph of a network with the requested precisions, branches and error sums.

    Args:
        float_types: The float precisions below FP32 that groups can have.
        boundary_types: The float types that can surround quantized layers.
        quantized_types: The quantized types that layers can have, and TF32.
        outputs: Tensors that each branch returns; by default the outputs of the network.
        with_reference: Adds the FP32 branch and the sums of errors at each measured group.
        with_isolated: Adds the isolated branch and its sums; needs ``with_reference``.
        with_accumulated: Adds the sums of the accumulated error at each measured group; needs ``with_reference``. False
            leaves out the test branch.
        measured_groups: Groups whose errors are summed; by default all that can be simulated.
        editable_constants: Makes scales and biases that moves change inputs of the graph; see `GatedFeatures`.
        norm_operators: Lets decomposed normalisations be computed with the roundings of the operator.
        gates_as_data: Builds gates as Where nodes instead of If nodes; see `trt_tui.core.lowering.gated.gates`. Sums of
            tensors with NaN or infinities are then not finite. Values that FP16 cannot represent are always counted.
        compared_tensors: Tensors that are compared in the graph with a reference input; only with ``gates_as_data``.
        mask_axes: The axes of the presence mask of a tensor, by tensor name. The mask is an input of the graph and
            selects the elements that count in the sums.
        expects_finite_sums: Computes the sums in float32 only, where gates are control flow. They are not finite if
            float32 cannot represent them.
        extreme_tensors: Tensors of the FP32 branch whose extremes are an output, by measured group; see
            `trt_tui.core.lowering.gated.error_sums.ErrorSumsEmitter.emit_error_tables`.
        shape_tensors: Tensors of the FP32 branch whose shapes are outputs, named ``shape/<tensor>``.

    Raises:
        TrtTuiError: the groups depend on each other in a cycle.
    """
    features = replace(
        GatedFeatures.from_precisions(float_types, boundary_types, quantized_types),
        editable_constants=editable_constants,
        norm_operators=norm_operators,
    )
    outputs = tuple(outputs) or tuple(info.name for info in network.outputs)
    names = (
        tuple(measured_groups)
        if measured_groups is not None
        else tuple(group.name for group in network.groups if group.final_tensor not in network.blocking_plugins)
    )
    emitter = NodeEmitter(network)
    _add_network_inputs(emitter)
    inputs = GatedGraphInputs(emitter, features, gates_as_data=gates_as_data)
    flow = (DataFlowEmitter if gates_as_data else ControlFlowEmitter)(emitter, inputs)
    for layer in network.layers:
        # Without a reference branch, shape arithmetic uses the tensors of the test branch.
        if with_reference or layer.kind is LayerKind.CONSTANT:
            emitter.copy_layer(
                layer, emitter.values, emitter.nodes, f"{'ref' if with_reference else 'shared'}/{layer.name}"
            )
    test_tensors = _emit_test_branch(emitter, flow, frozenset(outputs))
    for tensor, value in test_tensors.items():  # errors are measured in the units of the network
        test_tensors[tensor] = emitter.scale_channels(
            "Mul", value, inputs.find_channel_divisor_input(tensor), emitter.nodes
        )
    graph_outputs: list[ir.Value] = []
    for tensor in outputs:
        if with_accumulated:
            graph_outputs.append(_add_output(emitter, test_tensors[tensor], f"test/{tensor}"))
        if with_reference:
            graph_outputs.append(_add_output(emitter, emitter.values[tensor], f"reference/{tensor}"))
    for compared_tensor in compared_tensors:
        rank = len(network.shape(compared_tensor.tensor) or ())
        reference_value = emitter.add_input(
            f"reference/{compared_tensor.name}", ir.DataType.FLOAT, ir.Shape([None] * rank)
        )
        sums = emit_error_sums_per_sample(
            emitter, compared_tensor, test_tensors[compared_tensor.tensor], reference_value
        )
        graph_outputs.append(_add_output(emitter, sums, f"compared/{compared_tensor.name}"))
    counting: str | None = None
    padding: dict[tuple[bool, ...], ir.Value] = {}
    kinds = ["accumulated"] * with_accumulated + ["isolated"] * with_isolated if with_reference else []
    if with_reference:
        for tensor in shape_tensors:  # in front of the sums, which ONNX Runtime then computes first
            shape = emitter.add_operator(emitter.nodes, "Shape", [emitter.values[tensor]], f"shape/{tensor}")
            shape.name, shape.dtype, shape.shape = f"shape/{tensor}", ir.DataType.INT64, ir.Shape([None])
            graph_outputs.append(shape)
        padding = {
            axes: emitter.add_input(
                f"present/{''.join('01'[has] for has in axes)}",
                ir.DataType.BOOL,
                ir.Shape([None if has else 1 for has in axes]),
            )
            for axes in dict.fromkeys((mask_axes or {}).values())
        }
        share = _emit_true_fraction(emitter, next(iter(padding.values()))) if padding else None
        present = {tensor: padding[axes] for tensor, axes in (mask_axes or {}).items()}
        sums_emitter: ErrorSumsEmitter
        if isinstance(flow, DataFlowEmitter):
            sums_emitter = DataFlowErrorSumsEmitter(flow, present, share)
        else:
            gate = emitter.add_input("counting", ir.DataType.BOOL)
            counting, sums_emitter = (
                value_name(gate),
                ControlFlowErrorSumsEmitter(flow, gate, present, share, expects_finite_sums),
            )
        graph_outputs += sums_emitter.emit_error_tables(
            [network.get_group(name) for name in names], test_tensors, kinds, extreme_tensors
        )
    return GatedGraph(
        _build_model(emitter, graph_outputs),
        network,
        features,
        gates={
            group: {kind: value_name(value) for kind, value in gates.items()} for group, gates in inputs.gates.items()
        },
        scale_inputs={key: value_name(value) for key, value in inputs.scales.items()},
        weight_inputs=inputs.weight_inputs,
        factor_inputs=inputs.factor_input_names,
        compared_outputs={
            compared_tensor.name: f"compared/{compared_tensor.name}" for compared_tensor in compared_tensors
        },
        reference_inputs={
            compared_tensor.name: f"reference/{compared_tensor.name}" for compared_tensor in compared_tensors
        },
        edge_gates=flow.edge_gates if isinstance(flow, DataFlowEmitter) else {},
        split_inputs={value_name(value): group_and_count for group_and_count, value in inputs.split_factors.items()},
        results_by_group={
            name: frozenset(
                tensor
                for layer in network.get_group(name).layers
                for tensor in find_compute_type_results(network, network.get_layer(layer))
            )
            for name in inputs.operand_types
        },
        test_outputs={tensor: f"test/{tensor}" for tensor in outputs} if with_accumulated else {},
        reference_outputs={tensor: f"reference/{tensor}" for tensor in outputs} if with_reference else {},
        sums_outputs={kind: SUMS_OUTPUTS[kind] for kind in kinds},
        measured_groups=names,
        counting_gate=counting,
        mask_inputs={axes: value_name(value) for axes, value in padding.items()},
        kept_feeds=2 if gates_as_data or inputs.weight_input_bytes <= _MAX_KEPT_WEIGHT_BYTES else 1,
    )


def _emit_true_fraction(emitter: NodeEmitter, mask: ir.Value) -> ir.Value:
    """Returns the fraction of true elements of a mask, float64."""
    numbers = emitter.add_operator(emitter.nodes, "Cast", [mask], "present/numbers", to=int(ir.DataType.DOUBLE))
    return emitter.add_operator(emitter.nodes, "ReduceMean", [numbers], "present/share", keepdims=0)


def _add_network_inputs(emitter: NodeEmitter) -> None:
    graph = emitter.network.model.graph
    for value in graph.inputs:
        copy = ir.Value(name=value.name, type=value.type, shape=value.shape)
        emitter.values[value_name(value)] = copy
        emitter.inputs.append(copy)
    for name, value in graph.initializers.items():
        assert value.const_value is not None  # initializers among the inputs were removed
        emitter.values[name] = emitter.add_shared_constant(name, value.const_value)


def _emit_test_branch(
    emitter: NodeEmitter, flow_emitter: ControlFlowEmitter | DataFlowEmitter, requested_outputs: frozenset[str]
) -> dict[str, ir.Value]:
    """Emits the branch that executes the config and is compared with the reference. Returns its tensors by network
    name."""
    network = emitter.network
    shared = {info.name for info in network.inputs} | network.static_tensors
    test_tensors = {name: value for name, value in emitter.values.items() if name in shared}
    for unit in sort_by_dependency(network):
        if not isinstance(unit, FusionGroup):
            if not all(not tensor or tensor in test_tensors for tensor in unit.outputs):
                emitter.copy_layer(unit, test_tensors, emitter.nodes, f"test/{unit.name}")
            continue
        inner = [
            output for name in unit.layers for output in network.get_layer(name).outputs if output in requested_outputs
        ]
        requested_tensors = tuple(dict.fromkeys((*unit.outputs, unit.final_tensor, *inner)))
        if unit.name in flow_emitter.inputs.gates:
            test_tensors.update(flow_emitter.emit_group(unit, test_tensors, requested_tensors))
        else:
            local = BranchTensors({}, test_tensors)
            emit_ungated_group(emitter, flow_emitter.inputs, unit, local, emitter.nodes)
            test_tensors.update({tensor: local[tensor] for tensor in requested_tensors})
    return test_tensors


def _add_output(emitter: NodeEmitter, value: ir.Value, name: str) -> ir.Value:
    result = emitter.add_operator(emitter.nodes, "Identity", [value], name, like=value)
    result.name = name
    return result


def _build_model(emitter: NodeEmitter, outputs: Sequence[ir.Value]) -> ir.Model:
    base = emitter.network.model
    graph = ir.Graph(
        emitter.inputs,
        outputs,
        nodes=emitter.nodes,
        initializers=list(emitter.initializers.values()),
        opset_imports=dict(base.graph.opset_imports),
        name="gated",
    )
    graph.sort()
    model = ir.Model(graph, ir_version=max(base.ir_version, 8))
    prune_model(model)
    return model


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
    prune_model(model)
    graph.inputs[:] = [value for value in graph.inputs if value.name not in fixed]
    for name, value in fixed.items():
        if value.uses():
            value.const_value = ir.tensor(np.ascontiguousarray(arrays[name]), name=name)
            value.shape = ir.Shape(arrays[name].shape)
            graph.initializers[name] = value


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
            remove_node(graph, node)
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
    for start, stop in zip([0, *cuts], [*cuts, len(nodes)], strict=True):
        kept = {*model.graph.outputs, *(value for node in nodes[stop:] for value in list_values_read_by_node(node))}
        earlier = [value for node in nodes[:start] for value in node.outputs if value.uses()]
        results = [value for node in nodes[start:stop] for value in node.outputs if value in kept]
        piece = ir.convenience.extract(model.graph, [*model.graph.inputs, *earlier], results)
        piece.inputs[:] = [value for value in piece.inputs if value.uses()]
        yield ir.Model(piece, ir_version=model.ir_version)


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
    last = {id(value): position for position, node in enumerate(nodes) for value in list_values_read_by_node(node)}
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
