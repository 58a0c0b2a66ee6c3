"""The walk over the layers of a fusion group in a gated graph, for gates of either form."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import fp16_accumulation, rulebook
from trt_tui.core.lowering.gated.emitter import BranchTensors, NodeEmitter, Nodes
from trt_tui.core.lowering.gated.graph_inputs import GraphInputs
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind
from trt_tui.core.network.network import Network
from trt_tui.core.network.zero_cost_support import Normalisation


class GroupBody(Protocol):
    """The emission of one fusion group in a gated graph, which converts the inputs and rounds the results of each
    layer.

    Attributes:
        group: The fusion group.
        branch_tensors: The tensors that its layers read and write.
        nodes: The nodes that were emitted so far.
        norm: The normalisation that is emitted as its operator; None if there is none.
    """

    group: FusionGroup
    branch_tensors: BranchTensors
    nodes: Nodes
    norm: Normalisation | None

    def convert_layer_input(self, layer: Layer, input_index: int, tensor: str, value: ir.Value,
                            has_compute_type: bool) -> ir.Value:
        """Returns the value that a layer reads at one of its inputs.

        Args:
            value: The tensor before the conversion.
            has_compute_type: True if the input has the type in which the layer computes.
        """

    def round_layer_results(self, layer: Layer, node: ir.Node, inputs_of_compute_type: Sequence[str]) -> None:
        """Rounds the results of a layer; called when its node exists and its outputs are in ``branch_tensors``.

        Args:
            inputs_of_compute_type: Tensors that the layer reads in the type in which it computes, without weights.
        """


def emit_group_layers(emitter: NodeEmitter, graph_inputs: GraphInputs, group_body: GroupBody) -> None:
    """Emits the layers of a fusion group; weights that are inputs of the graph replace the constants."""
    network, group = emitter.network, group_body.group
    norm = group_body.norm
    for name in group.layers:
        if norm is not None and name in norm.layers:
            if name == norm.layers[-1]:
                node = emit_normalisation_operator(emitter, graph_inputs, group_body, norm)
                group_body.branch_tensors[norm.result] = node.outputs[0]
                group_body.round_layer_results(network.get_layer(name), node, [norm.source])
            continue
        layer = network.get_layer(name)
        ports = rulebook.find_same_type_ports(network.node(name), network.opset)[0]
        values: list[ir.Value | None] = []
        typed_inputs: list[str] = []
        for index, tensor in enumerate(layer.inputs):
            fed_value = graph_inputs.weights.get((group.name, name, index))
            if not tensor or fed_value is not None:
                values.append(fed_value)
                continue
            value = resolve_group_tensor(emitter, group, group_body.branch_tensors, tensor, group_body.nodes)
            has_layer_type = ports[index] and network.is_float(tensor)
            if has_layer_type:
                typed_inputs.append(tensor)
            values.append(group_body.convert_layer_input(layer, index, tensor, value, has_layer_type))
        if (extra_input := graph_inputs.weights.get((group.name, name, len(values)))) is not None:
            values.append(extra_input)
        node = emitter.clone_node(layer, values, emitter.make_unique_name(name))
        group_body.nodes.append(node)
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if tensor:
                group_body.branch_tensors[tensor] = output
        group_body.round_layer_results(layer, node, typed_inputs)


def is_cheaper_to_round_after_copy(network: Network, layer: Layer, tensor: str) -> bool:
    """Returns True if rounding the result of a copy is cheaper than rounding its source (an embedding table)."""
    if layer.kind is not LayerKind.COPY:
        return False
    return tensor not in network.constant_tensors or not network.is_mask(tensor)


def can_defer_rounding_to_reader(network: Network, group: FusionGroup, requested_tensors: Sequence[str],
                                 tensor: str) -> bool:
    """Returns True if the rounding of a tensor can move behind its only reader without a change of the result."""
    users = network.consumers.get(tensor, [])
    return (len(users) == 1 and users[0] in group.layers and tensor not in requested_tensors
            and rulebook.commutes_with_rounding(network.get_layer(users[0])))


class PendingSumRoundings:
    """The sums of products of a group whose rounding is deferred, with the number of roundings."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._deferred_counts: dict[str, int] = {}

    def count_accumulator_roundings(self, layer: Layer) -> int:
        """Returns how often FP16 accumulation rounds a layer's result, including deferred roundings of its inputs.

        `fp16_accumulation` has the definition.
        """
        count = fp16_accumulation.count_accumulator_roundings(self._network, layer)
        return max([count, *(self._deferred_counts.get(tensor, 1) for tensor in layer.inputs)])

    def defer_rounding(self, tensor: str, rounding_count: int) -> None:
        self._deferred_counts[tensor] = rounding_count


def emit_normalisation_operator(emitter: NodeEmitter, graph_inputs: GraphInputs, group_body: GroupBody,
                                normalisation: Normalisation) -> ir.Node:
    """Emits a normalisation with the roundings of its operator: only its inputs are rounded, not its intermediate
    results."""
    network, group = emitter.network, group_body.group
    last = network.get_layer(normalisation.layers[-1])
    source = next((network.get_layer(name), network.get_layer(name).inputs.index(normalisation.source))
                  for name in normalisation.layers
                  if normalisation.source in network.get_layer(name).inputs)

    def emit_converted_input(layer: Layer, input_index: int) -> ir.Value:
        fed = graph_inputs.weights.get((group.name, layer.name, input_index))
        tensor = layer.inputs[input_index]
        input_value = fed if fed is not None else group_body.convert_layer_input(
            layer, input_index, tensor,
            resolve_group_tensor(emitter, group, group_body.branch_tensors, tensor, group_body.nodes), True)
        if tensor == normalisation.source or len(network.shape(tensor) or ()) == -normalisation.axis:
            return input_value
        sizes = emitter.get_array_constant(
            np.array(network.shape(tensor), np.int64)[normalisation.axis:], f"last/{tensor}")
        return emitter.add_operator(group_body.nodes, "Reshape", [input_value, sizes], "last")

    values = [emit_converted_input(*source)]
    if normalisation.scale is None:
        values.append(
            emitter.get_array_constant(np.ones(normalisation.channels, np.float32), f"ones/{normalisation.channels}"))
    values += [
        emit_converted_input(network.get_layer(port[0]), port[1])
        for port in (normalisation.scale, normalisation.bias)
        if port is not None
    ]
    if normalisation.operator == "LayerNormalization":
        node = ir.node(normalisation.operator, values, {"axis": normalisation.axis, "epsilon": normalisation.epsilon},
                       name=emitter.make_unique_name(last.name))
        node.outputs[0].name = emitter.make_unique_name(normalisation.result)
        group_body.nodes.append(node)
    else:
        node = _emit_rms_norm(emitter, group_body.nodes, normalisation, *values)
    output = node.outputs[0]
    output.type, output.shape = network.ir_value(normalisation.result).type, None
    return node


def _emit_rms_norm(emitter: NodeEmitter, nodes: Nodes, normalisation: Normalisation, source: ir.Value,
                   scale: ir.Value) -> ir.Node:
    """Emits an RMSNorm in FP32 as several operators, because opsets below 23 have no operator for it.

    The square is a Mul: ONNX Runtime would fuse a Pow between roundings into an operator of mixed types that it then
    refuses.
    """
    def add_operator(operator: str, inputs: Sequence[ir.Value]) -> ir.Value:
        return emitter.add_operator(nodes, operator, inputs, operator.lower())

    axes = np.arange(normalisation.axis, 0, dtype=np.int64)
    squares = add_operator("Mul", [source, source])
    if emitter.network.opset < 18:
        node = ir.node("ReduceMean", [squares], {"axes": axes.tolist()}, name=emitter.make_unique_name("mean"))
        node.outputs[0].name = node.name
        nodes.append(node)
        mean = node.outputs[0]
    else:
        mean = add_operator("ReduceMean", [squares, emitter.get_array_constant(axes, f"axes/{normalisation.axis}")])
    root = add_operator("Sqrt", [add_operator("Add", [mean, emitter.get_scalar_constant(normalisation.epsilon)])])
    add_operator("Mul", [add_operator("Div", [source, root]), scale])
    return nodes[-1]


def emit_ungated_group(emitter: NodeEmitter, graph_inputs: GraphInputs, group: FusionGroup,
                       branch_tensors: BranchTensors, nodes: Nodes) -> None:
    """Emits a fusion group without gates; constants that are inputs of the graph replace those of the network."""
    for name in group.layers:
        layer = emitter.network.get_layer(name)
        for tensor in layer.inputs:
            if tensor:
                resolve_group_tensor(emitter, group, branch_tensors, tensor, nodes)
        scope = BranchTensors(branch_tensors)
        for index, tensor in enumerate(layer.inputs):
            if (fed := graph_inputs.weights.get((group.name, name, index))) is not None:
                scope[tensor] = fed
        emitter.copy_layer(layer, scope, nodes, emitter.make_unique_name(name))
        branch_tensors.update({tensor: scope[tensor] for tensor in layer.outputs if tensor})


def resolve_group_tensor(emitter: NodeEmitter, group: FusionGroup, branch_tensors: BranchTensors, tensor: str,
                         nodes: Nodes) -> ir.Value:
    """Returns a tensor that a fusion group reads; shape arithmetic on the group's own tensors is copied into the group.
    """
    network = emitter.network
    producer_name = network.producer.get(tensor)
    if (tensor in branch_tensors or producer_name is None or producer_name not in group.shape_layers
            or tensor in emitter.values):
        return branch_tensors[tensor]
    inner = set(group.shape_layers)
    needed, stack = {producer_name}, [producer_name]
    while stack:
        producers = {
            network.producer.get(name_read, "")
            for name_read in network.input_tensors(stack.pop())
            if name_read not in branch_tensors
        }
        new_layers = (producers & inner) - needed
        needed |= new_layers
        stack.extend(new_layers)
    for name in group.shape_layers:
        if name in needed:
            emitter.copy_layer(network.get_layer(name), branch_tensors, nodes, emitter.make_unique_name(name))
    return branch_tensors[tensor]
