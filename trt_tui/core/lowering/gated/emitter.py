"""Emitting nodes: names, constants and copies of the network's layers."""

from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.layers import Layer
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.network import Network

Nodes = list[ir.Node]
"""The nodes of a graph that is being made, in order."""


class BranchTensors(dict[str, ir.Value]):
    """Tensors of a branch, by the network's names, on top of those outside it."""

    def __init__(self, outer: Mapping[str, ir.Value]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, tensor: str) -> ir.Value:
        return self.outer[tensor]


class Emitter:
    """Makes the nodes of one gated graph.

    Attributes:
        nodes: Those of the main graph.
        inputs: The main graph's inputs.
        initializers: Its constants by name.
        values: What all branches can read, by the network's names: inputs, constants, what is computed from constants
            alone and, with a reference, its tensors.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.nodes: Nodes = []
        self.inputs: list[ir.Value] = []
        self.initializers: dict[str, ir.Value] = {}
        self.values: dict[str, ir.Value] = {}
        self._count = 0

    def name(self, base: str) -> str:
        """A name that nothing else in the graph has."""
        self._count += 1
        return f"{base}#{self._count}"

    def add(self, nodes: Nodes, operator: str, inputs: Sequence[ir.Value], base: str, **attributes: int) -> ir.Value:
        """Appends an operator with one output, and returns that; ``base`` begins its name."""
        node = ir.node(operator, inputs, attributes, name=self.name(base))
        output = node.outputs[0]
        output.name = node.name
        nodes.append(node)
        return output

    def reduce(self, nodes: Nodes, operator: str, value: ir.Value, axis: int) -> ir.Value:
        """The result of a reduction of one axis, which goes; opsets before 18 have it as an attribute."""
        inputs: list[ir.Value] = [value]
        attributes: dict[str, Sequence[int] | int] = {"keepdims": 0}
        if self.network.opset < 18:
            attributes["axes"] = [axis]
        else:
            inputs.append(self.array(np.array([axis], np.int64), f"int64/{axis}"))
        node = ir.node(operator, inputs, attributes, name=self.name(operator.lower()))
        node.outputs[0].name = node.name
        nodes.append(node)
        return node.outputs[0]

    def choose(self, nodes: Nodes, condition: ir.Value, then: ir.Graph, otherwise: ir.Graph, base: str,
               outputs: int = 1) -> Sequence[ir.Value]:
        """Appends an ``If``, and returns its outputs, which are yet to be named."""
        node = ir.node("If", [condition], {"then_branch": then, "else_branch": otherwise}, num_outputs=outputs,
                       name=self.name(base))
        nodes.append(node)
        return node.outputs

    def graph(self, results: Sequence[ir.Value], nodes: Nodes, base: str) -> ir.Graph:
        """A branch that reads outer tensors."""
        return ir.Graph([], results, nodes=nodes, name=self.name(base))

    def branch(self, local: BranchTensors, nodes: Nodes, wanted: Sequence[str], base: str) -> ir.Graph:
        """A branch that yields tensors of the network, which its nodes have put into ``local``."""
        own, results = set(nodes), list[ir.Value]()
        for tensor in wanted:
            value = local[tensor]
            if value.producer() not in own or value in results:
                value = self.add(nodes, "Identity", [value], f"{tensor}/result")
            self.describe(value, tensor)
            results.append(value)
        return self.graph(results, nodes, base)

    def describe(self, value: ir.Value, tensor: str) -> None:
        """Gives a value the type and shape of a tensor of the network, and a name where it has none."""
        original = self.network.value(tensor)
        if value.name is None:
            value.name = self.name(tensor)
        value.type = original.type
        value.shape = _without_names(original.shape)

    # -- inputs and constants -----------------------------------------------------------------------------------

    def input(self, name: str, dtype: ir.DataType, shape: ir.Shape | None = None) -> ir.Value:
        """A new input of the graph, a scalar by default."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]) if shape is None else shape)
        self.inputs.append(value)
        return value

    def constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """A constant of the network, shared and not copied."""
        shape = ir.Shape([int(size) for size in tensor.shape.numpy()])
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self.initializers[name] = value
        return value

    def array(self, array: np.ndarray, name: str) -> ir.Value:
        """A constant of our own; one name is one constant."""
        name = f"gated/{name}"
        return self.initializers[name] if name in self.initializers else self.held(array, name)

    def held(self, array: np.ndarray, name: str) -> ir.Value:
        """An array as a constant under the name given."""
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                         shape=ir.Shape(array.shape), const_value=ir.tensor(array, name=name))
        self.initializers[name] = value
        return value

    def scalar(self, number: float) -> ir.Value:
        """A float32 constant."""
        return self.array(np.array(number, np.float32), f"scalar/{number!r}")

    # -- layers of the network ----------------------------------------------------------------------------------

    def clone(self, layer: Layer, inputs: Sequence[ir.Value | None], name: str) -> ir.Node:
        """A layer's node on other inputs, in no graph yet."""
        original = self.network.node(layer.name)
        node = ir.Node(original.domain, original.op_type, inputs, list(original.attributes.values()),
                       num_outputs=len(original.outputs), overload=original.overload, name=name)
        for source, output in zip(original.outputs, node.outputs, strict=True):
            output.name = self.name(source.name) if source.name else ""
            output.type, output.shape = source.type, _without_names(source.shape)
        return node

    def copy_layer(self, layer: Layer, scope: MutableMapping[str, ir.Value], nodes: Nodes, name: str) -> None:
        """A layer as it is, reading from and writing to ``scope``; subgraphs are cloned onto the scope's tensors."""
        node = self.clone(layer, [scope[t] if t else None for t in layer.inputs], name)
        original = self.network.node(layer.name)
        for attr in original.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                node.attributes[attr.name] = ir.AttrGraph(attr.name, _rescoped(attr.as_graph(), scope))
            elif attr.type == ir.AttributeType.GRAPHS:
                node.attributes[attr.name] = ir.AttrGraphs(attr.name, [_rescoped(g, scope) for g in attr.as_graphs()])
        nodes.append(node)
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if tensor:
                scope[tensor] = output

    def used(self, outputs: Sequence[ir.Value]) -> tuple[Nodes, list[ir.Value]]:
        """Nodes and initializers of the main graph that the outputs depend on."""
        used = {id(value) for value in outputs}
        producers = {id(value): node for node in self.nodes for value in node.outputs}
        stack = [producers[id(value)] for value in outputs]
        kept: set[int] = set()
        while stack:
            node = stack.pop()
            if id(node) in kept:
                continue
            kept.add(id(node))
            for value in reads(node):
                used.add(id(value))
                if id(value) in producers:
                    stack.append(producers[id(value)])
        return ([node for node in self.nodes if id(node) in kept],
                [value for value in self.initializers.values() if id(value) in used])


def reads(node: ir.Node) -> list[ir.Value]:
    """Values that a node and its subgraphs read."""
    found = [value for value in node.inputs if value is not None]
    for attr in node.attributes.values():
        if attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            for graph in (attr.as_graph(),) if attr.type == ir.AttributeType.GRAPH else attr.as_graphs():
                found.extend(value for inner in graph for value in reads(inner))
                found.extend(graph.outputs)
    return found


def _without_names(shape: ir.Shape | None) -> ir.Shape | None:
    """A shape whose open sizes have no names: a selection may keep another number of values in another branch, and a
    runtime takes what has one name for one size."""
    return None if shape is None else ir.Shape([size if isinstance(size, int) else None for size in shape])


def _rescoped(graph: ir.Graph, scope: Mapping[str, ir.Value]) -> ir.Graph:
    """A copy of a subgraph whose captured tensors, those of graphs nested in it too, are those of ``scope``."""
    copy = graph.clone(allow_outer_scope_values=True)
    graphs = [copy, *copy.subgraphs()]
    inner = {id(v) for one in graphs for v in (*one.inputs, *one.initializers.values())}
    inner.update(id(v) for node in copy.all_nodes() for v in node.outputs)
    for node in copy.all_nodes():
        for index, value in enumerate(node.inputs):
            if value is not None and id(value) not in inner and value.graph is not None:
                mapped = _find(scope, name_of(value))
                if mapped is not None:
                    node.replace_input_with(index, mapped)
    for one in graphs:
        for value in (*one.outputs, *(v for node in one for v in node.outputs)):
            if id(value) in inner:
                value.shape = _without_names(value.shape)
        for index, value in enumerate(one.outputs):
            mapped = _find(scope, name_of(value)) if id(value) not in inner else None
            if mapped is not None:
                one.outputs[index] = mapped
    return copy


def _find(scope: Mapping[str, ir.Value], name: str) -> ir.Value | None:
    try:
        return scope[name]
    except KeyError:
        return None
