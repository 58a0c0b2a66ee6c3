"""What a lowering adds to a graph: nodes and constants, each under a name that nothing else has."""

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.naming import FreshNames


class Added:
    """See the module's docstring.

    Attributes:
        types: Those of tensors that are in 16 bits, by name.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.names = FreshNames(graph, taken=(node.name for node in graph if node.name))
        self.types: dict[str, ir.DataType] = {}

    def _emit(self, operator: str, inputs: list[ir.Value], attributes: dict[str, int], name: str, dtype: ir.DataType,
              shape: ir.Shape | None, tensor: str = "") -> ir.Value:
        """Adds a node with one result.

        Args:
            name: The name that is wanted for the node.
            tensor: The name that is wanted for the result; "" for that of the node.

        Returns:
            The result.
        """
        node = self._node(operator, inputs, attributes, name)
        output = node.outputs[0]
        name = output.name = self.names.new(tensor) if tensor else node.name or ""
        output.dtype, output.shape = dtype, shape
        if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            self.types[name] = dtype
        return output

    def _node(self, operator: str, inputs: list[ir.Value], attributes: dict[str, int], name: str) -> ir.Node:
        """A node that is added, under a name like this one."""
        node = ir.node(operator, inputs, attributes, name=self.names.new(name))
        self._keep(node)
        return node

    def _keep(self, node: ir.Node) -> None:
        """Takes a node of the lowering's own into the graph."""
        self.graph.append(node)

    def _initializer(self, array: np.ndarray, name: str) -> ir.Value:
        """A constant; one that stands there under this name is taken if it holds the same."""
        shared = self.graph.initializers.get(name)
        held = shared.const_value if shared is not None else None
        if shared is not None and held is not None and held.dtype == ir.DataType.from_numpy(array.dtype) \
                and np.array_equal(held.numpy(), array):
            return shared
        value = ir.Value(name=self.names.new(name), type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                         shape=ir.Shape(array.shape))
        value.const_value = ir.Tensor(array, name=value.name)
        self.graph.register_initializer(value)
        return value
