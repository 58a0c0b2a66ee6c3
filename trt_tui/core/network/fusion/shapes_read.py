"""Who waits for the shapes of tensors inside a group: reading a shape takes no value, so that it ends no group.

A shape is there once its group is computed. What reads one, through other shape arithmetic, therefore has to be a
member of that group or to stand behind its last layer, or groups would wait for each other.
"""

from collections.abc import Collection, Iterable
from heapq import merge
from itertools import islice

from trt_tui.core.network.graph import LayerGraph, reads_shape
from trt_tui.core.network.layers import Layer

_FOLLOWED = 8
"""How many of those that wait for a shape are known; a group whose own layers are more of them does not grow."""


class ShapesRead:
    """What waits for the shape of each tensor.

    Args:
        graph: Layers and tensors.
        grouped: Names of the layers that are in groups.
    """

    def __init__(self, graph: LayerGraph, grouped: Collection[str]) -> None:
        self._first: dict[str, list[int]] = {}
        self._names = [layer.name for layer in graph.layers]
        waiting: dict[str, list[int]] = {}
        between = {name for layer in graph.layers if layer.name not in grouped for name in layer.outputs}
        for layer in reversed(graph.layers):
            if layer.name in grouped:
                found = [layer.index]
            else:
                found = _first_of(waiting.pop(name, []) for name in layer.outputs)
            if reads_shape(layer) and found:
                self._first[layer.inputs[0]] = _first_of((found, self._first.get(layer.inputs[0], [])))
            elif found:
                for name in graph.reads(layer.name):
                    if name in between:
                        waiting[name] = _first_of((found, waiting.get(name, [])))

    def wait_for(self, layers: Collection[Layer], joining: Collection[Layer]) -> str:
        """A layer that would wait in vain for the shape of a tensor inside a group, were it all of some layers.

        Args:
            layers: Those of the group.
            joining: Those that would join.
        """
        if not self._first:
            return ""
        names = {layer.name for one in (layers, joining) for layer in one}
        position = max(layer.index for one in (layers, joining) for layer in one)
        for layer in (*layers, *joining):
            for tensor in layer.outputs:
                first = self._first.get(tensor, [])
                for index in first:
                    if index > position:
                        break
                    if self._names[index] not in names:
                        return self._names[index]
                else:
                    if len(first) == _FOLLOWED:
                        return self._names[first[-1]]
        return ""


def _first_of(found: Iterable[list[int]]) -> list[int]:
    """The first few of some sorted indices, each once."""
    return list(islice(dict.fromkeys(merge(*found)), _FOLLOWED))
