"""The walk over a group's layers, whatever its gates are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from trt_tui.core.lowering import rules
from trt_tui.core.lowering.gated.emitter import BranchTensors, Emitter, Nodes
from trt_tui.core.lowering.gated.inputs import GatedInputs
from trt_tui.core.network.layers import Group, Layer


class Body(Protocol):
    """Takes a group's layers one by one.

    Attributes:
        group: The group.
        local: The tensors that its layers see.
        nodes: The nodes that were emitted so far.
    """

    group: Group
    local: BranchTensors
    nodes: Nodes

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
    for name in group.layers:
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
        node = emitter.clone(layer, values, emitter.name(name))
        body.nodes.append(node)
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if tensor:
                body.local[tensor] = output
        body.computed(layer, node, typed)


def emit_as_is(emitter: Emitter, group: Group, local: BranchTensors, nodes: Nodes) -> None:
    """Emits a group that has no gates."""
    for name in group.layers:
        layer = emitter.network.layer(name)
        for tensor in layer.inputs:
            if tensor:
                tensor_inside(emitter, group, local, tensor, nodes)
        emitter.copy_layer(layer, local, nodes, emitter.name(name))


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
