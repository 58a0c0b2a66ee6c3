"""The state of fusion groups while fusion rules add layers to them, and the dependencies on shapes.

A reader of a shape reads no values, so a tensor whose shape is read can be inside a group. The shape is available after
the group is computed. A layer that depends on the shape must therefore belong to the group or run after its last layer.
If not, groups would wait for each other.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from trt_tui.core.network.graph import LayerGraph, reads_only_shape
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.operators import FUSED_COPIES, POINTWISE

_MAX_TRACKED_READERS = 8
"""The maximum number of waiting layers that are recorded per shape; a group that contains all of them does not grow."""


class ShapeDependencies:
    """The layers that need the shape of each tensor before they can run.

    Args:
        graph: Layers and tensors.
        grouped_layers: Names of the layers that belong to groups.
    """

    def __init__(self, graph: LayerGraph, grouped_layers: Collection[str]) -> None:
        self._waiting_by_tensor: dict[str, list[int]] = {}
        self._layer_names = [layer.name for layer in graph.layers]
        waiting_by_tensor: dict[str, list[int]] = {}
        ungrouped_tensors = {
            name for layer in graph.layers if layer.name not in grouped_layers for name in layer.outputs
        }
        for layer in reversed(graph.layers):
            if layer.name in grouped_layers:
                indices = [layer.index]
            else:
                indices = _merge_sorted_index_lists(waiting_by_tensor.pop(name, []) for name in layer.outputs)
            if reads_only_shape(layer) and indices:
                self._waiting_by_tensor[layer.inputs[0]] = _merge_sorted_index_lists(
                    (indices, self._waiting_by_tensor.get(layer.inputs[0], []))
                )
            elif indices:
                for name in graph.input_tensors(layer.name):
                    if name in ungrouped_tensors:
                        waiting_by_tensor[name] = _merge_sorted_index_lists((indices, waiting_by_tensor.get(name, [])))

    def find_deadlocked_layer(self, group_layers: Collection[Layer], joining_layers: Collection[Layer]) -> str:
        """Returns a layer that would wait forever for a shape inside a group if more layers joined it; "" if there is
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


def _merge_sorted_index_lists(sorted_index_lists: Iterable[list[int]]) -> list[int]:
    """Returns the smallest distinct indices of several sorted lists, at most `_MAX_TRACKED_READERS`."""
    return list(islice(dict.fromkeys(merge(*sorted_index_lists)), _MAX_TRACKED_READERS))


MAX_REGION_LAYERS = 16
"""The maximum number of layers of a region; larger decompositions are not recognised."""


@dataclass(frozen=True)
class FusionRuleMatch:
    """The layers that a fusion rule adds to a group.

    Attributes:
        layers: The layers that join, in network order.
        output_tensor: The new last tensor of the group; "" if it does not change.
        computes_output: True if the new last tensor is computed; the error of the group is then measured there. False
            if its values are only copied.
        skip_input: A residual Add, and the index of the input from outside the group.
        operator_name: The name of the operator that the group represents; "" for the operator of its first layer.
    """

    layers: tuple[Layer, ...]
    output_tensor: str = ""
    computes_output: bool = True
    skip_input: tuple[Layer, int] | None = None
    operator_name: str = ""


def needs_fusion_group(graph: LayerGraph, layer: Layer) -> bool:
    """Returns True if a layer must be in a fusion group because it computes floats other than shapes and constants."""
    return layer.kind in (LayerKind.COMPUTE, LayerKind.COPY, LayerKind.OPAQUE) and any(
        graph.is_fp32(name) for name in layer.outputs
    )


class FusionGroupDraft:
    """A fusion group under construction.

    Attributes:
        main_layer: The layer that gives the group its name.
        operator_name: The operator that the group represents.
        output_tensor: The tensor that later layers read.
        computed_tensor: The last tensor that the group computes.
        skip_input: The residual Add, and the index of the input from outside the group.
        position: The position in the order of execution, which is the index of the group's last layer without joined
            copies.
        accepts_copies: True if copies after the group may join.
    """

    def __init__(self, main_layer: Layer, output_tensor: str, *, accepts_copies: bool = True) -> None:
        self.layers = [main_layer]
        self.main_layer = main_layer
        self.operator_name = main_layer.op_type
        self.output_tensor = self.computed_tensor = output_tensor
        self.skip_input: tuple[Layer, int] | None = None
        self.position = main_layer.index
        self.accepts_copies = accepts_copies


class FusionGroupingState:
    """The fusion groups of a network under construction, with queries for the fusion rules.

    Attributes:
        draft_by_layer: The group of each grouped layer, by layer name.
        ready_positions: The position of the last group that a tensor depends on, by tensor; absent if there is none.
        ungrouped_positions: The position of the last group that an ungrouped layer depends on, by layer name.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.draft_by_layer: dict[str, FusionGroupDraft] = {}
        self.ready_positions: dict[str, int] = {}
        self.ungrouped_positions: dict[str, int] = {}
        self._shape_dependencies = ShapeDependencies(
            graph, {layer.name for layer in graph.layers if needs_fusion_group(graph, layer)}
        )

    def find_first_valid_match(
        self, group_draft: FusionGroupDraft, matches: Iterable[FusionRuleMatch | None]
    ) -> FusionRuleMatch | None:
        """Returns the first rule match that does not make any layer wait forever for a shape; None if there is none.

        `ShapeDependencies` finds such layers.
        """
        return next(
            (
                match
                for match in matches
                if match and not self._shape_dependencies.find_deadlocked_layer(group_draft.layers, match.layers)
            ),
            None,
        )

    def apply_match(self, group_draft: FusionGroupDraft, match: FusionRuleMatch) -> None:
        """Adds the layers of a rule match to a group and updates its last tensor, skip input and operator."""
        for layer in match.layers:
            group_draft.layers.append(layer)
            self.draft_by_layer[layer.name] = group_draft
        if match.output_tensor:
            group_draft.output_tensor = match.output_tensor
            group_draft.computed_tensor = match.output_tensor if match.computes_output else group_draft.computed_tensor
        group_draft.skip_input = match.skip_input or group_draft.skip_input
        group_draft.operator_name = match.operator_name or group_draft.operator_name

    # -- queries on a tensor ------------------------------------------------------------------------------------

    def find_sole_reader(self, tensor: str) -> Layer | None:
        """Returns the only reader of a tensor.

        Returns None if there are several readers, if the reader is in a group, or if the tensor is a network output.
        """
        layer = self.graph.find_sole_reader(tensor)
        return layer if layer is not None and layer.name not in self.draft_by_layer else None

    def list_readers_if_few(self, tensor: str) -> list[Layer]:
        """Returns the readers of a tensor; [] if there are more than `MAX_REGION_LAYERS`."""
        names = self.graph.readers.get(tensor, ())
        return [self.graph.by_name[name] for name in names] if len(names) <= MAX_REGION_LAYERS else []

    # -- queries on a layer -------------------------------------------------------------------------------------

    def list_dynamic_inputs(self, layer: Layer) -> list[str]:
        """Returns the inputs of a layer that are neither constants nor shapes."""
        return [name for name in layer.inputs if name and name not in self.graph.static_tensors]

    def list_float_inputs(self, layer: Layer) -> list[str]:
        return [name for name in self.list_dynamic_inputs(layer) if self.graph.is_fp32(name)]

    def is_float_operator(self, layer: Layer, operators: frozenset[str]) -> bool:
        """Returns True if a layer has one of the operators and a single float output."""
        return layer.op_type in operators and layer.kind is LayerKind.COMPUTE and len(layer.outputs) == 1

    def is_pointwise_with_constants(self, layer: Layer) -> bool:
        """Returns True if a layer is pointwise with one computed input and otherwise constants."""
        return self.is_float_operator(layer, POINTWISE) and len(self.list_dynamic_inputs(layer)) == 1

    def multiplies_activations(self, layer: Layer) -> bool:
        """Returns True if a layer is a MatMul of two activations.

        A constant with one matrix per head counts as an activation.
        """
        operands = [name for name in layer.inputs if name in self.graph.static_tensors]
        return (
            layer.op_type == "MatMul"
            and len(operands) < 2
            and all(len(self.graph.shape(name) or ()) > 2 for name in operands)
        )

    def is_fused_copy(self, layer: Layer) -> bool:
        return layer.kind is LayerKind.COPY and layer.op_type in FUSED_COPIES

    # -- queries on a region ------------------------------------------------------------------------------------

    def iterate_derived_layers(self, start_tensor: str) -> Iterator[Layer]:
        """Yields the first ungrouped pointwise layers that compute only from a tensor and constants, in network order."""
        layer_by_tensor: dict[str, Layer] = {}
        while len(layer_by_tensor) < MAX_REGION_LAYERS:
            next_layers = [
                user
                for tensor in (start_tensor, *layer_by_tensor)
                for user in self.list_readers_if_few(tensor)
                if user.outputs[0] not in layer_by_tensor
                and user.name not in self.draft_by_layer
                and self.is_float_operator(user, POINTWISE)
                and all(name == start_tensor or name in layer_by_tensor for name in self.list_dynamic_inputs(user))
            ]
            if not next_layers:
                return
            layer = min(next_layers, key=lambda candidate: candidate.index)
            layer_by_tensor[layer.outputs[0]] = layer
            yield layer

    def find_tensors_read_outside_region(self, tensor_names: Iterable[str], region: list[Layer]) -> list[str]:
        """Returns those of the given tensors that are network outputs, have readers outside a region, or have no
        reader.
        """
        layer_names = {layer.name for layer in region}
        return [
            tensor
            for tensor in tensor_names
            if tensor in self.graph.output_names
            or not 0 < len(users := self.graph.readers.get(tensor, ())) <= len(layer_names)
            or not layer_names.issuperset(users)
        ]

    def find_region_output(self, region: list[Layer]) -> str | None:
        """Returns the tensor of a region that layers outside read; None if there are several."""
        escaping_tensors = self.find_tensors_read_outside_region((layer.outputs[0] for layer in region), region)
        return escaping_tensors[0] if len(escaping_tensors) == 1 else None
