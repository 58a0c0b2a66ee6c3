"""The emission of a fusion group layer by layer into a gated graph, for both forms of gates."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import fp16_accumulation, rulebook
from trt_tui.core.lowering.gated.emitter import BranchTensors, NodeEmitter, Nodes
from trt_tui.core.lowering.gated.gated_graph import GatedGraphInputs
from trt_tui.core.lowering.gated.rounding import RoundingEmitter
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind
from trt_tui.core.network.model_editing import iterate_reachable
from trt_tui.core.network.zero_cost_support import Normalisation
from trt_tui.core.precision import Precision


@dataclass
class GroupEmitter(ABC):
    """The base class of emitters of gated fusion groups. Subclasses define the form of the gates."""

    emitter: NodeEmitter
    inputs: GatedGraphInputs
    rounding: RoundingEmitter

    @abstractmethod
    def emit_group(
        self, group: FusionGroup, values_by_tensor: MutableMapping[str, ir.Value], requested_tensors: Sequence[str]
    ) -> dict[str, ir.Value]:
        """Emits a gated fusion group into the main graph; returns the requested tensors of the group."""


class GroupBody(ABC):
    """The base class for the emission of one fusion group. Subclasses convert the inputs and round the results of each
    layer.

    Args:
        values_by_tensor: The tensors that the group reads, by their names in the network.
        requested_tensors: The tensors of the group that are read outside.
        nodes: The list to which the nodes of the group are appended; None for a separate graph.
        norm: The normalisation that is emitted as its operator; None if there is none.

    Attributes:
        branch_tensors: The tensors that the layers read and write.
        rounded_tensors: The tensors whose values have a type below FP32.
    """

    def __init__(
        self,
        group_emitter: GroupEmitter,
        group: FusionGroup,
        values_by_tensor: MutableMapping[str, ir.Value],
        requested_tensors: Sequence[str],
        nodes: Nodes | None = None,
        norm: Normalisation | None = None,
    ) -> None:
        self.emitter, self.inputs, self.rounding = group_emitter.emitter, group_emitter.inputs, group_emitter.rounding
        self.network, self.group, self.norm = self.emitter.network, group, norm
        self.requested_tensors = requested_tensors
        self.branch_tensors = BranchTensors({}, values_by_tensor)
        self.nodes: Nodes = [] if nodes is None else nodes
        self.prepared_values: dict[object, ir.Value] = {}
        self.rounded_tensors: set[str] = set()

    @abstractmethod
    def convert_layer_input(
        self, layer: Layer, input_index: int, tensor: str, value: ir.Value, has_compute_type: bool
    ) -> ir.Value:
        """Returns the value that a layer reads at one of its inputs.

        Args:
            value: The tensor before the conversion.
            has_compute_type: True if the input has the type in which the layer computes.
        """

    @abstractmethod
    def round_layer_results(self, layer: Layer, node: ir.Node, inputs_of_compute_type: Sequence[str]) -> None:
        """Rounds the results of a layer. The caller has emitted its node and stored its outputs in ``branch_tensors``.

        Args:
            inputs_of_compute_type: The activations that the layer reads in the type in which it computes.
        """

    def is_computed_outside(self, tensor: str) -> bool:
        return self.network.producer.get(tensor) not in self.group.layers

    def emit_layers(self) -> None:
        """Emits the layers of the group. Weights that are graph inputs replace the constants."""
        network, norm = self.network, self.norm
        for name in self.group.layers:
            layer = network.get_layer(name)
            if norm is not None and name in norm.layers:
                if name == norm.layers[-1]:
                    node = self.emit_normalisation_operator(norm)
                    self.branch_tensors[norm.result] = node.outputs[0]
                    self.round_layer_results(layer, node, [norm.source])
                continue
            ports = rulebook.flag_tensors_of_result_type(network.node(name), network.opset)[0]
            values: list[ir.Value | None] = []
            typed_inputs: list[str] = []
            for index, tensor in enumerate(layer.inputs):
                fed_value = self.inputs.weights.get((self.group.name, name, index))
                if not tensor or fed_value is not None:
                    values.append(fed_value)
                    continue
                has_layer_type = ports[index] and network.is_fp32(tensor)
                if has_layer_type:
                    typed_inputs.append(tensor)
                values.append(self._read_input(layer, index, has_layer_type))
            if (extra_input := self.inputs.weights.get((self.group.name, name, len(values)))) is not None:
                values.append(extra_input)
            node = self.emitter.clone_node(layer, values, self.branch_tensors, self.emitter.make_unique_name(name))
            self.nodes.append(node)
            self.branch_tensors.update(
                (tensor, output) for tensor, output in zip(layer.outputs, node.outputs, strict=True) if tensor
            )
            self.round_layer_results(layer, node, typed_inputs)

    def _read_input(self, layer: Layer, index: int, has_compute_type: bool) -> ir.Value:
        tensor = layer.inputs[index]
        value = resolve_group_tensor(self.emitter, self.group, self.branch_tensors, tensor, self.nodes)
        return self.convert_layer_input(layer, index, tensor, value, has_compute_type)

    def build_graph(self, type_name: str) -> ir.Graph:
        """Emits the layers, and builds the graph that returns the requested tensors."""
        self.emit_layers()
        own, results = set(self.nodes), list[ir.Value]()
        for tensor in self.requested_tensors:
            value = self.branch_tensors[tensor]
            if value.producer() not in own or value in results:
                value = self.emitter.add_operator(self.nodes, "Identity", [value], f"{tensor}/result")
            self.emitter.copy_type_and_shape(value, tensor)
            results.append(value)
        return self.emitter.build_graph(results, self.nodes, f"{self.group.name}/{type_name}")

    def emit_normalisation_operator(self, normalisation: Normalisation) -> ir.Node:
        """Emits a normalisation that rounds like its operator: its inputs are rounded, its intermediate results are
        not.
        """
        network, emitter = self.network, self.emitter
        source_layer = next(
            layer for name in normalisation.layers if normalisation.source in (layer := network.get_layer(name)).inputs
        )

        def emit_converted_input(layer_name: str, input_index: int) -> ir.Value:
            layer = network.get_layer(layer_name)
            tensor = layer.inputs[input_index]
            fed = self.inputs.weights.get((self.group.name, layer_name, input_index))
            input_value = fed if fed is not None else self._read_input(layer, input_index, True)
            if tensor == normalisation.source or len(network.shape(tensor) or ()) == -normalisation.axis:
                return input_value
            sizes = emitter.get_array_constant(
                np.array(network.shape(tensor), np.int64)[normalisation.axis :], f"last/{tensor}"
            )
            return emitter.add_operator(self.nodes, "Reshape", [input_value, sizes], "last")

        values = [emit_converted_input(source_layer.name, source_layer.inputs.index(normalisation.source))]
        if normalisation.scale is None:
            values.append(
                emitter.get_array_constant(
                    np.ones(normalisation.channels, np.float32), f"ones/{normalisation.channels}"
                )
            )
        values += [
            emit_converted_input(*port) for port in (normalisation.scale, normalisation.bias) if port is not None
        ]
        if normalisation.operator == "LayerNormalization":
            node = ir.node(
                normalisation.operator,
                values,
                {"axis": normalisation.axis, "epsilon": normalisation.epsilon},
                name=emitter.make_unique_name(normalisation.layers[-1]),
            )
            node.outputs[0].name = emitter.make_unique_name(normalisation.result)
            self.nodes.append(node)
        else:
            self._emit_rms_norm(normalisation, *values)
        output = self.nodes[-1].outputs[0]
        output.type, output.shape = network.ir_value(normalisation.result).type, None
        return self.nodes[-1]

    def _emit_rms_norm(self, normalisation: Normalisation, source: ir.Value, scale: ir.Value) -> None:
        """Emits an RMSNorm in FP32 as several operators, because opsets below 23 have no operator for it.

        The square is a Mul. ONNX Runtime would fuse a Pow between roundings into an operator of mixed types, and then
        refuse that operator.
        """

        def add_operator(operator: str, *inputs: ir.Value) -> ir.Value:
            return self.emitter.add_operator(self.nodes, operator, inputs, operator.lower())

        mean = self.emitter.add_reduction(
            self.nodes, "ReduceMean", add_operator("Mul", source, source), *range(normalisation.axis, 0), keepdims=1
        )
        root = add_operator("Sqrt", add_operator("Add", mean, self.emitter.get_scalar_constant(normalisation.epsilon)))
        add_operator("Mul", add_operator("Div", source, root), scale)


class PrecisionBody(GroupBody):
    """The base class for the emission of a group whose results are rounded to its boundary type below FP32.

    The further arguments are those of `GroupBody`.

    Args:
        reduces_precision: True if the boundary type is, or can be, below FP32.
        operand_types: The types that activations at Q/DQ sites can be converted to, in order.
    """

    def __init__(
        self,
        group_emitter: GroupEmitter,
        group: FusionGroup,
        values_by_tensor: MutableMapping[str, ir.Value],
        requested_tensors: Sequence[str],
        reduces_precision: bool,
        operand_types: Iterable[Precision],
        nodes: Nodes | None = None,
        norm: Normalisation | None = None,
    ) -> None:
        super().__init__(group_emitter, group, values_by_tensor, requested_tensors, nodes, norm)
        self.reduces_precision = reduces_precision
        self.types_by_input: dict[tuple[str, int], tuple[Precision, ...]] = {}
        for operand_type in operand_types:
            for site in rulebook.operand_qdq_sites(group, operand_type):
                layer_input = site.layer, site.index
                self.types_by_input[layer_input] = (*self.types_by_input.get(layer_input, ()), operand_type)

    @abstractmethod
    def round_result(self, tensor: str, value: ir.Value, rounding_count: int) -> ir.Value:
        """Returns a result rounded to the boundary type; FP16 accumulation rounds it ``rounding_count`` times."""

    @abstractmethod
    def add_bias_after_rounding(self, layer: Layer, node: ir.Node, bias_index: int, rounding_count: int) -> ir.Value:
        """Returns a sum of products with a bias. FP16 accumulation rounds the sum before it adds the bias."""

    def list_unrounded_results(self, layer: Layer, node: ir.Node) -> Sequence[ir.Value]:
        """Returns the results of a layer before they are rounded."""
        return node.outputs

    def is_rounded_at_input(self, layer: Layer, tensor: str) -> bool:
        """Returns True if a layer must round an input tensor from outside the group.

        A copy of a large constant, such as a look-up in an embedding table, is cheaper to round after the copy.
        """
        network = self.network
        return (
            self.reduces_precision
            and self.is_computed_outside(tensor)
            and (layer.kind is not LayerKind.COPY or tensor in network.constant_tensors and network.is_mask(tensor))
        )

    def round_layer_results(self, layer: Layer, node: ir.Node, inputs_of_compute_type: Sequence[str]) -> None:
        """Rounds the results of a layer unless its operator returns only values that the precision can represent."""
        if not self.reduces_precision:
            return
        own = rulebook.find_compute_type_results(self.network, layer)
        if rulebook.preserves_precision_of_values(layer) and self.rounded_tensors.issuperset(inputs_of_compute_type):
            self.rounded_tensors.update(own)
            return
        rounding_count = fp16_accumulation.count_accumulator_roundings(self.network, layer)
        outputs = self.list_unrounded_results(layer, node)
        if (port := fp16_accumulation.find_bias_input_index(self.network, layer)) is not None:
            outputs, rounding_count = [self.add_bias_after_rounding(layer, node, port, rounding_count)], 1
            self.branch_tensors[layer.outputs[0]] = outputs[0]
        for tensor, output in zip(layer.outputs, outputs, strict=True):
            if tensor in own:
                self.branch_tensors[tensor] = self.round_result(tensor, output, rounding_count)
                self.rounded_tensors.add(tensor)


def emit_ungated_group(
    emitter: NodeEmitter,
    graph_inputs: GatedGraphInputs,
    group: FusionGroup,
    branch_tensors: BranchTensors,
    nodes: Nodes,
) -> None:
    """Emits a fusion group in one fixed precision. A constant that is a graph input replaces the stored one."""
    for name in group.layers:
        layer = emitter.network.get_layer(name)
        for tensor in layer.inputs:
            if tensor:
                resolve_group_tensor(emitter, group, branch_tensors, tensor, nodes)
        scope = branch_tensors.new_child()
        for index, tensor in enumerate(layer.inputs):
            if (fed := graph_inputs.weights.get((group.name, name, index))) is not None:
                scope[tensor] = fed
        emitter.copy_layer(layer, scope, nodes, emitter.make_unique_name(name))
        branch_tensors.update({tensor: scope[tensor] for tensor in layer.outputs if tensor})


def resolve_group_tensor(
    emitter: NodeEmitter, group: FusionGroup, branch_tensors: BranchTensors, tensor: str, nodes: Nodes
) -> ir.Value:
    """Returns the value of a tensor that a fusion group reads. Shape arithmetic on the group's tensors is copied into
    the group.
    """
    network = emitter.network
    producer_name = network.producer.get(tensor)
    if (
        tensor in branch_tensors
        or producer_name is None
        or producer_name not in group.shape_layers
        or tensor in emitter.values
    ):
        return branch_tensors[tensor]

    def list_shape_layers(layer: str) -> list[str]:
        producers = [
            network.producer.get(name, "") for name in network.input_tensors(layer) if name not in branch_tensors
        ]
        return [name for name in producers if name in group.shape_layers]

    needed = set(iterate_reachable([producer_name], list_shape_layers))
    for name in group.shape_layers:
        if name in needed:
            emitter.copy_layer(network.get_layer(name), branch_tensors, nodes, emitter.make_unique_name(name))
    return branch_tensors[tensor]
