"""Names of nodes and tensors: unique, and by TensorRT's rule where TensorRT has one."""

from collections.abc import Iterable

import onnx_ir as ir


def assign_node_names(graph: ir.Graph) -> None:
    """Gives every node the unique name that TensorRT's parser would give its layer.

    The rule: the node's own name, else ``node_of_<first output>``; a repeated name gets ``_<n>`` appended.
    """
    taken_names: set[str] = set()
    suffix = 0
    for node in graph:
        base_name = node.name or "node_of_" + next(
            (output.name for output in node.outputs if output.name), node.op_type)
        name = base_name
        while name in taken_names:
            name = f"{base_name}_{suffix}"
            suffix += 1
        taken_names.add(name)
        node.name = name


def value_name(value: ir.Value) -> str:
    """The name of a tensor of a network: once one is opened or lowered, all that are read have one."""
    assert value.name is not None
    return value.name


class FreshNames:
    """Gives tensors names that are new to a graph and those inside of it.

    Args:
        taken_names: Further names that are not to be given.
    """

    def __init__(self, graph: ir.Graph, taken_names: Iterable[str] = ()) -> None:
        self._taken_names: set[str | None] = {value.name for value in (*graph.inputs, *graph.initializers.values())}
        self._taken_names.update(taken_names)
        self._taken_names.update(value.name for node in graph.all_nodes() for value in node.outputs)
        for subgraph in graph.subgraphs():
            self._taken_names.update(value.name for value in (*subgraph.inputs, *subgraph.initializers.values()))
        self._counts: dict[str, int] = {}

    def make_unique_name(self, base_name: str) -> str:
        """The wanted name or, where it is taken, the first ``<wanted>_<n>`` from 2 on that is not."""
        name, count = base_name, self._counts.get(base_name, 1)
        while name in self._taken_names:
            count += 1
            name = f"{base_name}_{count}"
        self._counts[base_name] = count
        self._taken_names.add(name)
        return name
