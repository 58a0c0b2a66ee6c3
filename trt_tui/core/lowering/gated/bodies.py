"""The walk over a group's layers, whatever implements its gates."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import accumulation, rules
from trt_tui.core.lowering.gated.emitter import BranchTensors, Emitter, Nodes
from trt_tui.core.lowering.gated.inputs import GatedInputs
from trt_tui.core.network.free import Norm
from trt_tui.core.network.layers import Group, Kind, Layer
from trt_tui.core.network.network import Network


class Body(Protocol):
    """Takes a group's layers one by one.

    Attributes:
        group: The group.
        local: The tensors that its layers see.
        nodes: The nodes that were emitted so far.
        norm: The normalisation that is emitted as its operator, None where none is.
    """

    group: Group
    local: BranchTensors
    nodes: Nodes
    norm: Norm | None

    def read(self, layer: Layer, index: int, tensor: str, value: ir.Value, follows: bool) -> ir.Value:
        """What a layer is given as one of its inputs.

        Args:
            value: The tensor as the group sees it.
            follows: The input has the type that the layer computes in.
        """

    def computed(self, layer: Layer, node: ir.Node, typed: Sequence[str]) -> None:
        """Called with a layer's node once it stands and its outputs are in ``local``.

        Args:
            typed: Tensors that it reads in the type it computes in, weights aside.
        """


def emit_layers(emitter: Emitter, inputs: GatedInputs, body: Body) -> None:
    """Emits a group's layers; weights that are fed stand in their places."""
    network, group = emitter.network, body.group
    norm = body.norm
    for name in group.layers:
        if norm is not None and name in norm.layers:
            if name == norm.layers[-1]:
                node = emit_operator(emitter, inputs, body, norm)
                body.local[norm.result] = node.outputs[0]
                body.computed(network.layer(name), node, [norm.source])
            continue
        layer = network.layer(name)
        ports = rules.typed_ports(network.node(name), network.opset)[0]
        values: list[ir.Value | None] = []
        typed: list[str] = []
        for index, tensor in enumerate(layer.inputs):
            fed = inputs.weights.get((group.name, name, index))
            if not tensor or fed is not None:
                values.append(fed)
                continue
            value = tensor_inside(emitter, group, body.local, tensor, body.nodes)
            follows = ports[index] and network.is_float(tensor)
            if follows:
                typed.append(tensor)
            values.append(body.read(layer, index, tensor, value, follows))
        if (further := inputs.weights.get((group.name, name, len(values)))) is not None:
            values.append(further)
        node = emitter.clone(layer, values, emitter.name(name))
        body.nodes.append(node)
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if tensor:
                body.local[tensor] = output
        body.computed(layer, node, typed)


def rounds_after(network: Network, layer: Layer, tensor: str) -> bool:
    """Whether rounding what a layer copies is cheaper than rounding what it copies from (an embedding table)."""
    if layer.kind is not Kind.COPY:
        return False
    return tensor not in network.constants or not network.is_mask(tensor)


def rounded_later(network: Network, group: Group, wanted: Sequence[str], tensor: str) -> bool:
    """Whether the one layer that reads a tensor yields the same when rounded in its place."""
    users = network.consumers.get(tensor, [])
    return (len(users) == 1 and users[0] in group.layers and tensor not in wanted
            and rules.commutes_with_rounding(network.layer(users[0])))


class Sums:
    """Which tensors of a group are sums of products that wait for their rounding, and how often kernels round them."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._waiting: dict[str, int] = {}

    def of(self, layer: Layer) -> int:
        """How often a layer's result is rounded where products are summed in FP16, see `accumulation.roundings`; that
        of the sum that it hands on where rounding commutes with it."""
        count = accumulation.roundings(self._network, layer)
        return max([count, *(self._waiting.get(tensor, 1) for tensor in layer.inputs)])

    def wait(self, tensor: str, count: int) -> None:
        """A tensor is rounded only behind the layer that reads it."""
        self._waiting[tensor] = count


def emit_operator(emitter: Emitter, inputs: GatedInputs, body: Body, norm: Norm) -> ir.Node:
    """Emits a normalisation as its operator: what goes in is rounded, and nothing between that and its result."""
    network, group = emitter.network, body.group
    last = network.layer(norm.layers[-1])
    source = next((network.layer(name), network.layer(name).inputs.index(norm.source)) for name in norm.layers
                  if norm.source in network.layer(name).inputs)

    def value(layer: Layer, index: int) -> ir.Value:
        fed = inputs.weights.get((group.name, layer.name, index))
        tensor = layer.inputs[index]
        found = fed if fed is not None else body.read(
            layer, index, tensor, tensor_inside(emitter, group, body.local, tensor, body.nodes), True)
        if tensor == norm.source or len(network.shape(tensor) or ()) == -norm.axis:
            return found
        sizes = emitter.array(np.array(network.shape(tensor), np.int64)[norm.axis:], f"last/{tensor}")
        return emitter.add(body.nodes, "Reshape", [found, sizes], "last")

    values = [value(*source)]
    if norm.scale is None:
        values.append(emitter.array(np.ones(norm.channels, np.float32), f"ones/{norm.channels}"))
    values += [value(network.layer(port[0]), port[1]) for port in (norm.scale, norm.bias) if port is not None]
    if norm.operator == "LayerNormalization":
        node = ir.node(norm.operator, values, {"axis": norm.axis, "epsilon": norm.epsilon},
                       name=emitter.name(last.name))
        node.outputs[0].name = emitter.name(norm.result)
        body.nodes.append(node)
    else:
        node = _emit_rms(emitter, body.nodes, norm, *values)
    output = node.outputs[0]
    output.type, output.shape = network.value(norm.result).type, None
    return node


def _emit_rms(emitter: Emitter, nodes: Nodes, norm: Norm, source: ir.Value, scale: ir.Value) -> ir.Node:
    """Emits an RMSNorm in FP32. Opsets below 23 have no operator for it, and the square is a Mul, since ONNX Runtime
    fuses a Pow between roundings into an operator of mixed types that it then refuses."""
    def add(operator: str, inputs: Sequence[ir.Value]) -> ir.Value:
        return emitter.add(nodes, operator, inputs, operator.lower())

    axes = np.arange(norm.axis, 0, dtype=np.int64)
    squares = add("Mul", [source, source])
    if emitter.network.opset < 18:
        node = ir.node("ReduceMean", [squares], {"axes": axes.tolist()}, name=emitter.name("mean"))
        node.outputs[0].name = node.name
        nodes.append(node)
        mean = node.outputs[0]
    else:
        mean = add("ReduceMean", [squares, emitter.array(axes, f"axes/{norm.axis}")])
    root = add("Sqrt", [add("Add", [mean, emitter.scalar(norm.epsilon)])])
    add("Mul", [add("Div", [source, root]), scale])
    return nodes[-1]


def emit_as_is(emitter: Emitter, inputs: GatedInputs, group: Group, local: BranchTensors, nodes: Nodes) -> None:
    """Emits a group that has no gates; constants that are fed stand in their places."""
    for name in group.layers:
        layer = emitter.network.layer(name)
        for tensor in layer.inputs:
            if tensor:
                tensor_inside(emitter, group, local, tensor, nodes)
        scope = BranchTensors(local)
        for index, tensor in enumerate(layer.inputs):
            if (fed := inputs.weights.get((group.name, name, index))) is not None:
                scope[tensor] = fed
        emitter.copy_layer(layer, scope, nodes, emitter.name(name))
        local.update({tensor: scope[tensor] for tensor in layer.outputs if tensor})


def tensor_inside(emitter: Emitter, group: Group, local: BranchTensors, tensor: str, nodes: Nodes) -> ir.Value:
    """A tensor as a group sees it; shape arithmetic on the group's own tensors is copied to it."""
    network = emitter.network
    wanted = network.producer.get(tensor)
    if tensor in local or wanted is None or wanted not in group.inner or tensor in emitter.values:
        return local[tensor]
    inner = set(group.inner)
    needed, stack = {wanted}, [wanted]
    while stack:
        producers = {network.producer.get(t, "") for t in network.reads(stack.pop()) if t not in local}
        found = (producers & inner) - needed
        needed |= found
        stack.extend(found)
    for name in group.inner:
        if name in needed:
            emitter.copy_layer(network.layer(name), local, nodes, emitter.name(name))
    return local[tensor]
