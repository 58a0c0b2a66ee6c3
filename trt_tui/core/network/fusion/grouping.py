"""What the rules of fusion work on: groups while they grow, and what is asked about the layers around them."""

from collections.abc import Iterable
from dataclasses import dataclass

from trt_tui.core.network.fusion.shape_dependencies import ShapeDependencies
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.operators import FUSED_COPIES, POINTWISE

MAX_REGION_LAYERS = 16
"""The most layers of a region: what is decomposed in more of them is not looked for."""


@dataclass(frozen=True)
class FusionRuleMatch:
    """What a rule takes into a group; false where it declines.

    Attributes:
        layers: What joins, in network order.
        output_tensor: The tensor that leads out of the group then; "" where that does not change.
        computes_output: Whether the tail is computed there, and so where the group's error is taken; False where it is
        moved.
        skip_input: An Add that joins two paths, and the index of the input that comes from the other one.
        operator_name: What a group that starts with it is called; "" for the name of its first layer's operator.
        reason: Why the rule declines, "" where it does not.
    """

    layers: tuple[Layer, ...] = ()
    output_tensor: str = ""
    computes_output: bool = True
    skip_input: tuple[Layer, int] | None = None
    operator_name: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.layers)


def belongs_to_group(graph: LayerGraph, layer: Layer) -> bool:
    """Whether a layer belongs to a group: it makes floats that are no shapes or constants."""
    return (layer.kind in (LayerKind.COMPUTE, LayerKind.COPY, LayerKind.OPAQUE)
            and any(graph.is_float(name) for name in layer.outputs))


class FusionGroupDraft:
    """The layers of one group while it grows.

    Attributes:
        main_layer: The layer that it is named after.
        operator_name: What it is called.
        output_tensor: The tensor that leads out of it.
        computed_tensor: The last tensor that it computes.
        skip_input: Its residual Add, and the index of the input that comes from elsewhere.
        position: Where the group stands in the order of execution: the index of its last layer before it takes copies.
        accepts_copies: Operators behind it that only move its values may join.
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
    """The groups of a network while they grow.

    Attributes:
        draft_by_layer: The group that a layer belongs to, by layer name.
        ready_positions: Position of the last group that a tensor waits for, by tensor; absent where it waits for none.
        ungrouped_positions: The same of layers in no group, by name.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.draft_by_layer: dict[str, FusionGroupDraft] = {}
        self.ready_positions: dict[str, int] = {}
        self.ungrouped_positions: dict[str, int] = {}
        self._network_outputs = frozenset(info.name for info in graph.outputs)
        self._shape_dependencies = ShapeDependencies(
            graph, {layer.name
                    for layer in graph.layers
                    if belongs_to_group(graph, layer)})

    def find_first_valid_match(self, group_draft: FusionGroupDraft,
                               matches: Iterable[FusionRuleMatch]) -> FusionRuleMatch | None:
        """The first match in which no layer waits for a shape that never comes (`ShapeDependencies`)."""
        return next((match for match in matches
                     if match and not self._shape_dependencies.find_deadlocked_layer(group_draft.layers, match.layers)),
                    None)

    def apply_match(self, group_draft: FusionGroupDraft, match: FusionRuleMatch) -> None:
        """Puts what a rule found into a group."""
        for layer in match.layers:
            group_draft.layers.append(layer)
            self.draft_by_layer[layer.name] = group_draft
        if match.output_tensor:
            group_draft.output_tensor = match.output_tensor
            group_draft.computed_tensor = match.output_tensor if match.computes_output else group_draft.computed_tensor
        group_draft.skip_input = match.skip_input or group_draft.skip_input
        group_draft.operator_name = match.operator_name or group_draft.operator_name

    # -- about a tensor -----------------------------------------------------------------------------------------

    def is_network_output(self, tensor: str) -> bool:
        """Whether the network hands a tensor out."""
        return tensor in self._network_outputs

    def find_sole_reader(self, tensor: str) -> Layer | None:
        """The layer in no group that alone reads a tensor; None where others, or an output, read it too."""
        users = self.graph.readers.get(tensor, ())
        if len(users) != 1 or users[0] in self.draft_by_layer or self.is_network_output(tensor):
            return None
        return self.graph.by_name[users[0]]

    def is_sole_reader(self, layer: Layer, tensor: str) -> bool:
        """Whether a layer alone reads a tensor."""
        return self.graph.readers.get(tensor, []) == [layer.name] and not self.is_network_output(tensor)

    def list_readers_if_few(self, tensor: str) -> list[Layer]:
        """The users of a tensor, where they are few enough to lie in one region; [] where they are not."""
        names = self.graph.readers.get(tensor, ())
        return [self.graph.by_name[name] for name in names] if len(names) <= MAX_REGION_LAYERS else []

    # -- about a layer ------------------------------------------------------------------------------------------

    def find_last_dependency_position(self, layer: Layer) -> int:
        """Position of the last group that a layer waits for; -1 where it waits for none."""
        return max((self.ready_positions.get(name, -1) for name in self.graph.input_tensors(layer.name)), default=-1)

    def list_dynamic_inputs(self, layer: Layer) -> list[str]:
        """What a layer reads beside constants and shapes."""
        return [name for name in layer.inputs if name and name not in self.graph.static_tensors]

    def is_float_operator(self, layer: Layer, operators: frozenset[str]) -> bool:
        """Whether a layer is one of some operators and computes floats in one output."""
        return layer.op_type in operators and layer.kind is LayerKind.COMPUTE and len(layer.outputs) == 1

    def is_pointwise_with_constants(self, layer: Layer) -> bool:
        """Whether a layer computes, value by value, from one tensor and constants."""
        return self.is_float_operator(layer, POINTWISE) and len(self.list_dynamic_inputs(layer)) == 1

    def multiplies_activations(self, layer: Layer) -> bool:
        """Whether a layer is a MatMul and no operand a weight: each is computed, or stored with a matrix a head."""
        operands = [name for name in layer.inputs if name in self.graph.static_tensors]
        return (layer.op_type == "MatMul" and len(operands) < 2
                and all(len(self.graph.shape(name) or ()) > 2 for name in operands))

    def is_fused_copy(self, layer: Layer) -> bool:
        """Whether a layer is a copy that stays with what computed its values."""
        return layer.kind is LayerKind.COPY and layer.op_type in FUSED_COPIES

    # -- about a region -----------------------------------------------------------------------------------------

    def find_tensors_read_outside_region(self, tensor_names: Iterable[str], region: list[Layer]) -> list[str]:
        """Those of some tensors that something outside a region reads, or nothing at all."""
        layer_names = {layer.name for layer in region}
        escaping_tensors = []
        for tensor in tensor_names:
            users = self.graph.readers.get(tensor, ())
            is_internal = 0 < len(users) <= len(layer_names) and layer_names.issuperset(users)
            if not is_internal or self.is_network_output(tensor):
                escaping_tensors.append(tensor)
        return escaping_tensors

    def find_region_output(self, region: list[Layer]) -> str | None:
        """The one tensor of a region that is read outside; None where there are several."""
        escaping_tensors = self.find_tensors_read_outside_region((layer.outputs[0] for layer in region), region)
        return escaping_tensors[0] if len(escaping_tensors) == 1 else None
