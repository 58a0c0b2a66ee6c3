"""Names of nodes and tensors: unique, and by TensorRT's rule where TensorRT has one."""

from collections.abc import Iterable

import onnx_ir as ir


def name_nodes(graph: ir.Graph) -> None:
    """Gives every node the unique name that TensorRT's parser would give its layer.

    The rule: the node's own name, else ``node_of_<first output>``; a repeated name gets ``_<n>`` appended.
    """
    taken: set[str] = set()
    suffix = 0
    for node in graph:
        wanted = node.name or "node_of_" + next((o.name for o in node.outputs if o.name), node.op_type)
        name = wanted
        while name in taken:
            name = f"{wanted}_{suffix}"
            suffix += 1
        taken.add(name)
        node.name = name


def name_of(value: ir.Value) -> str:
    """The name of a tensor of a network: once one is opened or lowered, all that are read have one."""
    assert value.name is not None
    return value.name


class FreshNames:
    """Gives tensors names that are new to a graph and those inside of it.

    Args:
        taken: Further names that are not to be given.
    """

    def __init__(self, graph: ir.Graph, taken: Iterable[str] = ()) -> None:
        self._taken: set[str | None] = {value.name for value in (*graph.inputs, *graph.initializers.values())}
        self._taken.update(taken)
        self._taken.update(value.name for node in graph.all_nodes() for value in node.outputs)
        for inner in graph.subgraphs():
            self._taken.update(value.name for value in (*inner.inputs, *inner.initializers.values()))
        self._counts: dict[str, int] = {}

    def new(self, wanted: str) -> str:
        """The wanted name or, where it is taken, the first ``<wanted>_<n>`` from 2 on that is not."""
        name, count = wanted, self._counts.get(wanted, 1)
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._counts[wanted] = count
        self._taken.add(name)
        return name
