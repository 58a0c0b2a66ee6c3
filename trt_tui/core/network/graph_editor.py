"""Changes of a graph: nodes and constants with unique names, the replacement of values, and the removal of unread ones."""

from collections.abc import Collection, Iterable
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import register_constant, stored_tensor
from trt_tui.core.network.model_editing import FreshNames, value_name


class GraphEditor:
    """An editor that adds nodes and constants with unique names to a graph.

    Attributes:
        types: The types of 16-bit tensors, by name.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.types: dict[str, ir.DataType] = {}

    @cached_property
    def names(self) -> FreshNames:
        """The generator of names that no node and no tensor of the graph has."""
        return FreshNames(self.graph, taken_names=(node.name for node in self.graph if node.name))

    def _add_operator(
        self,
        operator: str,
        inputs: list[ir.Value],
        attributes: dict[str, int],
        node_name: str,
        dtype: ir.DataType,
        shape: ir.Shape | None,
        result_name: str = "",
        domain: str = "",
    ) -> ir.Value:
        """Adds a node with one result and returns the result.

        Args:
            node_name: The requested name of the node; a suffix makes it unique.
            result_name: The requested name of the result; "" for the name of the node.
        """
        node = self._add_node(operator, inputs, attributes, node_name, domain)
        output = node.outputs[0]
        node_name = output.name = self.names.make_unique_name(result_name) if result_name else node.name or ""
        output.dtype, output.shape = dtype, shape
        if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            self.types[node_name] = dtype
        return output

    def _add_node(
        self,
        operator: str,
        inputs: list[ir.Value],
        attributes: dict[str, int],
        node_name: str,
        domain: str = "",
        output_count: int = 1,
    ) -> ir.Node:
        """Adds a node under a unique name that begins with ``node_name``."""
        node = ir.node(
            operator,
            inputs,
            attributes,
            domain=domain,
            num_outputs=output_count,
            name=self.names.make_unique_name(node_name),
        )
        self.graph.append(node)
        return node

    def _add_constant(self, array: np.ndarray, name: str) -> ir.Value:
        """Adds a constant to the graph; an initializer with the same name, type and values is reused."""
        shared = self.graph.initializers.get(name)
        tensor = stored_tensor(shared)
        if (
            shared is not None
            and tensor is not None
            and tensor.dtype == ir.DataType.from_numpy(array.dtype)
            and np.array_equal(tensor.numpy(), array)
        ):
            return shared
        return register_constant(self.graph, self.names.make_unique_name(name), ir.Tensor(array))


def replace_value(
    graph: ir.Graph,
    old_value: ir.Value,
    new_value: ir.Value,
    identity_name: str,
    identity_uses: Collection[tuple[ir.Node, int]] = (),
) -> None:
    """Replaces all uses of a value by another value.

    Args:
        identity_name: The name of an Identity, which keeps the name of the old value. It is added if the old value is
            a graph output or has ``identity_uses``.
        identity_uses: Uses, as node and input index, that read the result of the Identity instead.
    """
    for use in tuple(old_value.uses()):
        if use not in identity_uses:
            use.node.replace_input_with(use.idx, new_value)
    if old_value.is_graph_output() or identity_uses:
        identity = ir.node(
            "Identity",
            [new_value],
            name=identity_name,
            outputs=[ir.val(old_value.name, shape=old_value.shape, type=old_value.type)],
        )
        producer = old_value.producer()
        if identity_uses and producer is not None:
            graph.insert_after(producer, identity)
        else:
            graph.append(identity)
        old_value.replace_all_uses_with(identity.outputs[0], replace_graph_outputs=True)


def remove_unread_values(graph: ir.Graph, values: Iterable[ir.Value]) -> None:
    """Removes values without readers, with the nodes that compute them. Nodes that become unused by this are removed
    too.
    """
    pending = list(values)
    while pending:
        value = pending.pop()
        node = value.producer()
        if any(result.uses() or result.is_graph_output() for result in ((value,) if node is None else node.outputs)):
            continue
        if node is not None and node.graph is graph:
            pending += filter(None, node.inputs)
            graph.remove(node, safe=True)
        elif graph.initializers.get(value_name(value)) is value:
            del graph.initializers[value_name(value)]
