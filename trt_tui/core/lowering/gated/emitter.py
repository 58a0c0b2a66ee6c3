"""The emission of nodes into a gated graph: unique names, constants, and copies of the network's layers."""

from collections import ChainMap
from collections.abc import MutableMapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.layers import Layer
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.network import Network

Nodes = list[ir.Node]
"""The nodes of a graph under construction, in order."""


BranchTensors = ChainMap[str, ir.Value]
"""The tensors of a branch, by their names in the network; absent names are looked up outside the branch."""


class NodeEmitter:
    """A builder of the nodes, inputs and constants of one gated graph.

    Attributes:
        nodes: The nodes of the main graph.
        inputs: The inputs of the main graph.
        initializers: The constants of the main graph, by name.
        values: The tensors that all branches can read, by their names in the network: inputs, constants, tensors
            computed only from constants and, with a reference branch, its tensors.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.nodes: Nodes = []
        self.inputs: list[ir.Value] = []
        self.initializers: dict[str, ir.Value] = {}
        self.values: dict[str, ir.Value] = {}
        self._name_count = 0

    def make_unique_name(self, name_prefix: str) -> str:
        """Returns a name that is unique in the gated graph."""
        self._name_count += 1
        return f"{name_prefix}#{self._name_count}"

    def add_operator(
        self, nodes: Nodes, operator: str, inputs: Sequence[ir.Value], name_prefix: str, **attributes: int
    ) -> ir.Value:
        """Appends an operator with one output and returns the output. Its name begins with ``name_prefix``."""
        node = ir.node(operator, inputs, attributes, name=self.make_unique_name(name_prefix))
        output = node.outputs[0]
        output.name = node.name
        nodes.append(node)
        return output

    def add_reduction(self, nodes: Nodes, operator: str, value: ir.Value, *axes: int, keepdims: int = 0) -> ir.Value:
        """Appends a reduction over some axes and returns the result. Before opset 18 the axes are an attribute."""
        attributes: dict[str, Sequence[int] | int] = {"keepdims": keepdims}
        inputs = [value]
        if self.network.opset < 18:
            attributes["axes"] = axes
        else:
            inputs.append(self.get_array_constant(np.array(axes, np.int64), f"int64/{'/'.join(map(str, axes))}"))
        node = ir.node(operator, inputs, attributes, name=self.make_unique_name(operator.lower()))
        node.outputs[0].name = node.name
        nodes.append(node)
        return node.outputs[0]

    def add_if_node(
        self,
        nodes: Nodes,
        condition: ir.Value,
        then_graph: ir.Graph,
        else_graph: ir.Graph,
        name_prefix: str,
        output_count: int = 1,
    ) -> Sequence[ir.Value]:
        """Appends an ``If`` and returns its outputs, which the caller must name."""
        node = ir.node(
            "If",
            [condition],
            {"then_branch": then_graph, "else_branch": else_graph},
            num_outputs=output_count,
            name=self.make_unique_name(name_prefix),
        )
        nodes.append(node)
        return node.outputs

    def build_graph(self, results: Sequence[ir.Value], nodes: Nodes, name_prefix: str) -> ir.Graph:
        return ir.Graph([], results, nodes=nodes, name=self.make_unique_name(name_prefix))

    def copy_type_and_shape(self, value: ir.Value, source_tensor: str) -> None:
        """Copies the type and shape of a network tensor to a value, and the name too if the value has none."""
        original = self.network.ir_value(source_tensor)
        if value.name is None:
            value.name = self.make_unique_name(source_tensor)
        value.type = original.type
        value.shape = _remove_dimension_names(original.shape)

    # -- inputs and constants -----------------------------------------------------------------------------------

    def add_input(self, name: str, dtype: ir.DataType, shape: ir.Shape | None = None) -> ir.Value:
        """Adds an input to the gated graph, by default a scalar."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]) if shape is None else shape)
        self.inputs.append(value)
        return value

    def add_shared_constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Adds a constant of the network to the gated graph. Its data are shared, not copied."""
        self.initializers[name] = ir.val(name, const_value=tensor)
        return self.initializers[name]

    def get_array_constant(self, array: np.ndarray, name: str) -> ir.Value:
        """Returns a constant of the gated graph by name. The first call adds it."""
        name = f"gated/{name}"
        return self.initializers[name] if name in self.initializers else self.add_constant(array, name)

    def add_constant(self, array: np.ndarray, name: str) -> ir.Value:
        return self.add_shared_constant(name, ir.tensor(array))

    def get_scalar_constant(self, number: float) -> ir.Value:
        return self.get_array_constant(np.array(number, np.float32), f"scalar/{number!r}")

    # -- layers of the network ----------------------------------------------------------------------------------

    def clone_node(
        self,
        layer: Layer,
        inputs: Sequence[ir.Value | None],
        values_by_tensor: MutableMapping[str, ir.Value],
        name: str,
    ) -> ir.Node:
        """Returns a copy of a layer's node with other inputs. The copy is not yet part of a graph.

        Args:
            values_by_tensor: The tensors that subgraphs of the node read.
        """
        original = self.network.node(layer.name)
        node = ir.Node(
            original.domain,
            original.op_type,
            inputs,
            list(original.attributes.values()),
            num_outputs=len(original.outputs),
            overload=original.overload,
            name=name,
        )
        for source, output in zip(original.outputs, node.outputs, strict=True):
            output.name = self.make_unique_name(source.name) if source.name else ""
            output.type, output.shape = source.type, _remove_dimension_names(source.shape)
        for attr in original.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                node.attributes[attr.name] = ir.AttrGraph(
                    attr.name, _rebind_subgraph_inputs(attr.as_graph(), values_by_tensor)
                )
            elif attr.type == ir.AttributeType.GRAPHS:
                node.attributes[attr.name] = ir.AttrGraphs(
                    attr.name, [_rebind_subgraph_inputs(subgraph, values_by_tensor) for subgraph in attr.as_graphs()]
                )
        return node

    def copy_layer(
        self, layer: Layer, values_by_tensor: MutableMapping[str, ir.Value], nodes: Nodes, name: str
    ) -> None:
        """Appends a copy of a layer that reads its inputs from ``values_by_tensor`` and stores its results there.

        A Cast back from a wider type yields the value before both Casts. ONNX Runtime 1.32 removes such a pair, and with
        it the value that the branches of an If read.
        """
        source = _find_value_before_lossless_casts(self.network.node(layer.name))
        if source is not None and value_name(source) in values_by_tensor:
            values_by_tensor[layer.outputs[0]] = values_by_tensor[value_name(source)]
            return
        inputs = [values_by_tensor[input_name] if input_name else None for input_name in layer.inputs]
        node = self.clone_node(layer, inputs, values_by_tensor, name)
        nodes.append(node)
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if tensor:
                values_by_tensor[tensor] = output


def _find_value_before_lossless_casts(node: ir.Node) -> ir.Value | None:
    """Returns the value that a Cast yields unchanged, because a Cast before it has only widened its type; None if there
    is none."""
    wide = node.inputs[0] if node.op_type == "Cast" else None
    widening = wide.producer() if wide is not None else None
    source = widening.inputs[0] if widening is not None and widening.op_type == "Cast" else None
    if source is None or wide is None or source.dtype is None or wide.dtype is None:
        return None
    narrow_type, wide_type = source.dtype.numpy(), wide.dtype.numpy()
    is_lossless = np.can_cast(narrow_type, wide_type, "safe") and (
        narrow_type.kind == wide_type.kind or narrow_type.itemsize < 8  # FP64 rounds integers of 64 bits
    )
    return source if is_lossless and source.dtype == node.outputs[0].dtype else None


def _remove_dimension_names(shape: ir.Shape | None) -> ir.Shape | None:
    """Returns a shape without the names of its open sizes.

    A runtime treats equal names as equal sizes, but an operator such as NonZero may return different sizes in two
    branches.
    """
    return None if shape is None else ir.Shape([size if isinstance(size, int) else None for size in shape])


def _rebind_subgraph_inputs(subgraph: ir.Graph, values_by_tensor: MutableMapping[str, ir.Value]) -> ir.Graph:
    """Returns a copy of a subgraph whose outer tensors, at any depth, are replaced by those of ``values_by_tensor``."""
    copy = subgraph.clone(allow_outer_scope_values=True)
    graphs = [copy, *copy.subgraphs()]
    inner_values = {
        id(inner_value)
        for nested_graph in graphs
        for inner_value in (*nested_graph.inputs, *nested_graph.initializers.values())
    }
    inner_values.update(id(inner_value) for node in copy.all_nodes() for inner_value in node.outputs)
    for node in copy.all_nodes():
        for index, value in enumerate(node.inputs):
            if value is not None and id(value) not in inner_values and value.graph is not None:
                mapped = values_by_tensor.get(value_name(value))
                if mapped is not None:
                    node.replace_input_with(index, mapped)
    for nested_graph in graphs:
        for value in (*nested_graph.outputs, *(inner_value for node in nested_graph for inner_value in node.outputs)):
            if id(value) in inner_values:
                value.shape = _remove_dimension_names(value.shape)
        for index, value in enumerate(nested_graph.outputs):
            mapped = values_by_tensor.get(value_name(value)) if id(value) not in inner_values else None
            if mapped is not None:
                nested_graph.outputs[index] = mapped
    return copy
