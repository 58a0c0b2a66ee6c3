"""Unique names for nodes and tensors.

Nodes follow the naming rule of TensorRT's parser. New tensors get a counter behind the name.
"""

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
    """Returns the name of an ONNX value that is known to have one.

    Every value that is read in an opened or lowered network has a name.
    """
    assert value.name is not None
    return value.name


class FreshNames:
    """A generator of tensor names that neither a graph nor its subgraphs use.

    Args:
        taken_names: Further names that must not be returned.
    """

    def __init__(self, graph: ir.Graph, taken_names: Iterable[str] = ()) -> None:
        self._taken_names: set[str | None] = {value.name for value in (*graph.inputs, *graph.initializers.values())}
        self._taken_names.update(taken_names)
        self._taken_names.update(value.name for node in graph.all_nodes() for value in node.outputs)
        for subgraph in graph.subgraphs():
            self._taken_names.update(value.name for value in (*subgraph.inputs, *subgraph.initializers.values()))
        self._counts: dict[str, int] = {}

    def make_unique_name(self, base_name: str) -> str:
        """Returns the base name if it is free, else the first free ``<base name>_<n>``, counted from 2."""
        name, count = base_name, self._counts.get(base_name, 1)
        while name in self._taken_names:
            count += 1
            name = f"{base_name}_{count}"
        self._counts[base_name] = count
        self._taken_names.add(name)
        return name
