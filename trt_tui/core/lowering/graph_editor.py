"""What a lowering adds to a graph: nodes and constants, each under a name that nothing else has."""

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.naming import FreshNames


class GraphEditor:
    """See the module's docstring.

    Attributes:
        types: Those of tensors that are in 16 bits, by name.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.names = FreshNames(graph, taken_names=(node.name for node in graph if node.name))
        self.types: dict[str, ir.DataType] = {}

    def _add_operator(self, operator: str, inputs: list[ir.Value], attributes: dict[str, int], node_name: str,
                      dtype: ir.DataType, shape: ir.Shape | None, result_name: str = "") -> ir.Value:
        """Adds a node with one result.

        Args:
            node_name: The name that is wanted for the node.
            result_name: The name that is wanted for the result; "" for that of the node.

        Returns:
            The result.
        """
        node = self._add_node(operator, inputs, attributes, node_name)
        output = node.outputs[0]
        node_name = output.name = self.names.make_unique_name(result_name) if result_name else node.name or ""
        output.dtype, output.shape = dtype, shape
        if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            self.types[node_name] = dtype
        return output

    def _add_node(self, operator: str, inputs: list[ir.Value], attributes: dict[str, int], node_name: str) -> ir.Node:
        """A node that is added, under a name like this one."""
        node = ir.node(operator, inputs, attributes, name=self.names.make_unique_name(node_name))
        self._append_node(node)
        return node

    def _append_node(self, node: ir.Node) -> None:
        """Takes a node of the lowering's own into the graph."""
        self.graph.append(node)

    def _add_constant(self, array: np.ndarray, name: str) -> ir.Value:
        """A constant; one that stands there under this name is taken if it holds the same."""
        shared = self.graph.initializers.get(name)
        shared_tensor = shared.const_value if shared is not None else None
        if (shared is not None and shared_tensor is not None
                and shared_tensor.dtype == ir.DataType.from_numpy(array.dtype)
                and np.array_equal(shared_tensor.numpy(), array)):
            return shared
        value = ir.Value(name=self.names.make_unique_name(name),
                         type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape))
        value.const_value = ir.Tensor(array, name=value.name)
        self.graph.register_initializer(value)
        return value
