"""The layers that wait for the shapes of tensors inside a fusion group.

Reading a shape takes no value, so a tensor whose shape is read can be inside a group. The shape is available once the
group is computed. A layer that depends on the shape through shape arithmetic must therefore be a member of the group or
come after its last layer. If not, groups would wait for each other.
"""

from collections.abc import Collection, Iterable
from heapq import merge
from itertools import islice

from trt_tui.core.network.graph import LayerGraph, reads_only_shape
from trt_tui.core.network.layers import Layer

_MAX_TRACKED_READERS = 8
"""The maximum number of waiting layers that are recorded per shape; a group that contains all of them does not grow."""


class ShapeDependencies:
    """The layers that wait for the shape of each tensor.

    Args:
        graph: Layers and tensors.
        grouped_layers: Names of the layers that belong to groups.
    """

    def __init__(self, graph: LayerGraph, grouped_layers: Collection[str]) -> None:
        self._waiting_by_tensor: dict[str, list[int]] = {}
        self._layer_names = [layer.name for layer in graph.layers]
        waiting_by_tensor: dict[str, list[int]] = {}
        ungrouped_tensors = {
            name
            for layer in graph.layers if layer.name not in grouped_layers for name in layer.outputs
        }
        for layer in reversed(graph.layers):
            if layer.name in grouped_layers:
                indices = [layer.index]
            else:
                indices = _merge_smallest_indices(waiting_by_tensor.pop(name, []) for name in layer.outputs)
            if reads_only_shape(layer) and indices:
                self._waiting_by_tensor[layer.inputs[0]] = _merge_smallest_indices(
                    (indices, self._waiting_by_tensor.get(layer.inputs[0], [])))
            elif indices:
                for name in graph.input_tensors(layer.name):
                    if name in ungrouped_tensors:
                        waiting_by_tensor[name] = _merge_smallest_indices((indices, waiting_by_tensor.get(name, [])))

    def find_deadlocked_layer(self, group_layers: Collection[Layer], joining_layers: Collection[Layer]) -> str:
        """Returns a layer that would wait forever for a shape inside a group if more layers joined; "" if there is
        none.

        Args:
            group_layers: The present layers of the group.
            joining_layers: The layers that would join.
        """
        if not self._waiting_by_tensor:
            return ""
        layer_names = {layer.name for layer_set in (group_layers, joining_layers) for layer in layer_set}
        position = max(layer.index for layer_set in (group_layers, joining_layers) for layer in layer_set)
        for layer in (*group_layers, *joining_layers):
            for tensor in layer.outputs:
                waiting_indices = self._waiting_by_tensor.get(tensor, [])
                for index in waiting_indices:
                    if index > position:
                        break
                    if self._layer_names[index] not in layer_names:
                        return self._layer_names[index]
                else:
                    if len(waiting_indices) == _MAX_TRACKED_READERS:
                        return self._layer_names[waiting_indices[-1]]
        return ""


def _merge_smallest_indices(sorted_index_lists: Iterable[list[int]]) -> list[int]:
    """Returns the smallest distinct indices of several sorted lists, at most `_MAX_TRACKED_READERS`."""
    return list(islice(dict.fromkeys(merge(*sorted_index_lists)), _MAX_TRACKED_READERS))
