"""The two forms of a gate: control flow (an If per group) and data (a Where per value).

On CPUs an ``If`` is faster, because a branch that is not taken costs nothing. Further ``If`` nodes inside a branch
select whether an activation is rounded and whether it passes through Q and DQ.

On GPUs an ``If`` waits for the host. A graph with ``Where`` instead can be executed as one CUDA graph. All roundings
are computed in every execution. On CPUs that takes 1.2 to 1.9 times the processor time of control flow (what-ifs of
BERT, ViT, a U-Net, YOLOv8n and ResNet-50 in two widths). It takes 1.0 to 1.4 times its memory (the same without ViT
and U-Net). One form for all devices may cost CPUs 1.3 times at most, so both forms stay.

If there is only one float type below FP32, a tensor is rounded once for all groups that read it. The gate of each
reader then selects the rounded or the unrounded tensor. It is true if the producing group or the reading group has that
type.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.gated_graph import BranchTensors, GatedGraphInputs, NodeEmitter, Nodes, Operand
from trt_tui.core.lowering.rulebook import HALF_PRECISIONS
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, Normalisation
from trt_tui.core.network.model_editing import collect_by_key, iterate_reachable, value_name
from trt_tui.core.network.qdq.source_model import SourceModel
from trt_tui.core.network.qdq.steps import PRECISION_BY_HALF_TYPE
from trt_tui.core.precision import Precision


@dataclass
class GroupEmitter(ABC):
    """The base class of emitters of gated fusion groups. Subclasses define the form of the gates."""

    emitter: NodeEmitter
    inputs: GatedGraphInputs

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
        self.emitter, self.inputs = group_emitter.emitter, group_emitter.inputs
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

        def add_operator(operator: str, *inputs: Operand) -> ir.Value:
            return self.emitter.add_operator(self.nodes, operator, inputs, operator.lower())

        mean = self.emitter.add_reduction(
            self.nodes, "ReduceMean", add_operator("Mul", source, source), *range(normalisation.axis, 0), keepdims=1
        )
        root = add_operator("Sqrt", add_operator("Add", mean, normalisation.epsilon))
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
        types_by_input = collect_by_key(
            ((site.layer, site.index), operand_type)
            for operand_type in operand_types
            for site in rulebook.operand_qdq_sites(group, operand_type)
        )
        self.types_by_input = {layer_input: tuple(types) for layer_input, types in types_by_input.items()}

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
        rounding_count = rulebook.count_accumulator_roundings(self.network, layer)
        outputs = self.list_unrounded_results(layer, node)
        if (port := rulebook.find_bias_input_index(self.network, layer)) is not None:
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
        scope = branch_tensors.new_child(
            {
                tensor: fed
                for index, tensor in enumerate(layer.inputs)
                if (fed := graph_inputs.weights.get((group.name, name, index))) is not None
            }
        )
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


EmitFunction = Callable[[Nodes], ir.Value]
"""A function that emits nodes into a graph and returns the value that they compute."""


class ControlFlowEmitter(GroupEmitter):
    """An emitter of fusion groups whose gates are ``If`` nodes."""

    def emit_group(
        self, group: FusionGroup, values_by_tensor: MutableMapping[str, ir.Value], requested_tensors: Sequence[str]
    ) -> dict[str, ir.Value]:
        """Implements `GroupEmitter.emit_group`."""
        reduced = self._build_reduced_precision_graph(
            group, dict.fromkeys(self.inputs.operand_types[group.name], values_by_tensor), requested_tensors
        )
        fp32 = _PrecisionBranch(self, group, values_by_tensor, requested_tensors, Precision.FP32).build_graph("fp32")
        gate = self.inputs.gates[group.name]["fp32"]
        outputs = self._add_if_node(gate, fp32, reduced, requested_tensors, group.name, self.emitter.nodes)
        return dict(zip(requested_tensors, outputs, strict=True))

    def emit_reduced_precision_group(
        self, group: FusionGroup, values_by_boundary_type: Mapping[Precision, MutableMapping[str, ir.Value]]
    ) -> tuple[ir.Value, Nodes]:
        """Emits a gated group in its requested precision below FP32; returns its final tensor and the nodes that
        compute it.

        Args:
            values_by_boundary_type: The tensors that the group reads, unrounded, by boundary type.
        """
        reduced = self._build_reduced_precision_graph(
            group, values_by_boundary_type, (group.final_tensor,), inputs_may_be_rounded=False
        )
        tail, nodes = reduced.outputs[0], list(reduced)
        reduced.outputs.clear()
        reduced.remove(nodes)
        return tail, nodes

    def _build_reduced_precision_graph(
        self,
        group: FusionGroup,
        values_by_boundary_type: Mapping[Precision, MutableMapping[str, ir.Value]],
        requested_tensors: Sequence[str],
        inputs_may_be_rounded: bool = True,
    ) -> ir.Graph:
        """Builds the graph of a fusion group in all of its precisions below FP32, one of which its gates select.

        Args:
            values_by_boundary_type: The tensors that the group reads, by boundary type.
            inputs_may_be_rounded: True if the inputs may already be rounded to the boundary type, depending on the
                gates.
        """
        gates = self.inputs.gates[group.name]
        result: ir.Graph | None = None

        def build_if_graph(gate: str, then_graph: ir.Graph, else_graph: ir.Graph) -> ir.Graph:
            nodes: Nodes = []
            outputs = self._add_if_node(gates[gate], then_graph, else_graph, requested_tensors, group.name, nodes)
            return self.emitter.build_graph(outputs, nodes, "coarse")

        for boundary_type, precisions in reversed(self.inputs.operand_types[group.name].items()):
            scope = values_by_boundary_type[boundary_type]
            if boundary_type is Precision.FILE:
                branch = FilePrecisionBody(self, group, scope, requested_tensors).build_graph("file")
            else:
                body = partial(_PrecisionBranch, self, group, scope, requested_tensors, boundary_type)
                branch = body(
                    type_gates={
                        quantized_type: gates[quantized_type.value] if len(precisions) > 1 else None
                        for quantized_type in rulebook.REDUCED_OPERAND_TYPES
                        if quantized_type in precisions
                    },
                    allow_floats=boundary_type in precisions,
                    already_rounded_gate=gates["clean"] if inputs_may_be_rounded and len(precisions) > 1 else None,
                ).build_graph(boundary_type.value)
                if inputs_may_be_rounded and boundary_type in precisions:
                    branch = build_if_graph(
                        "direct", body(already_rounded=True).build_graph(boundary_type.value), branch
                    )
                norm = self.inputs.find_normalisation_operator(group.name)
                if norm is not None and boundary_type is not Precision.FP32:
                    branch = build_if_graph("operator", body(norm=norm).build_graph(boundary_type.value), branch)
            result = branch if result is None else build_if_graph(boundary_type.value, branch, result)
        assert result is not None  # a gated group has at least one precision below FP32
        return result

    def _add_if_node(
        self,
        gate: ir.Value,
        then_graph: ir.Graph,
        else_graph: ir.Graph,
        requested_tensors: Sequence[str],
        name: str,
        nodes: Nodes,
    ) -> Sequence[ir.Value]:
        outputs = self.emitter.add_if_node(nodes, gate, then_graph, else_graph, f"if/{name}", len(requested_tensors))
        for tensor, output in zip(requested_tensors, outputs, strict=True):
            self.emitter.copy_type_and_shape(output, tensor)
        return outputs

    def select_by_gate(
        self, gate: ir.Value, emit_then_value: EmitFunction, emit_else_value: EmitFunction, tensor: str, nodes: Nodes
    ) -> ir.Value:
        """Emits an ``If`` that returns one of two values for a tensor."""
        graphs = []
        for emit in (emit_then_value, emit_else_value):
            inner: Nodes = []
            result = emit(inner)
            self.emitter.copy_type_and_shape(result, tensor)
            graphs.append(self.emitter.build_graph([result], inner, "prepared"))
        return self._add_if_node(gate, graphs[0], graphs[1], (tensor,), tensor, nodes)[0]


class _PrecisionBranch(PrecisionBody):
    """The emission of a fusion group with one boundary type, as a branch of an ``If``.

    Args:
        type_gates: The types that activations at Q/DQ sites can be converted to, each with its gate. A type without a
            gate is always selected.
        allow_floats: True if activations stay floats when no gate is true. If False, they are converted to the last of
            the types.
        already_rounded_gate: A gate that is true if the activations are already rounded to the boundary type.
        already_rounded: True if all inputs of the group are always rounded to the boundary type.
        norm: The normalisation that is computed by its operator; None if there is none.
    """

    def __init__(
        self,
        flow: ControlFlowEmitter,
        group: FusionGroup,
        values_by_tensor: MutableMapping[str, ir.Value],
        requested_tensors: Sequence[str],
        boundary_type: Precision,
        *,
        type_gates: Mapping[Precision, ir.Value | None] | None = None,
        allow_floats: bool = True,
        already_rounded_gate: ir.Value | None = None,
        already_rounded: bool = False,
        norm: Normalisation | None = None,
    ) -> None:
        self._type_gates = type_gates or {}
        super().__init__(
            flow,
            group,
            values_by_tensor,
            requested_tensors,
            boundary_type is not Precision.FP32,
            self._type_gates,
            norm=norm,
        )
        self._flow, self._boundary_type = flow, boundary_type
        self._allows_floats, self._already_rounded_gate = allow_floats, already_rounded_gate
        self._known_inputs = group.inputs if already_rounded else ()
        self._sums_gate = self.inputs.gates[group.name].get("sums") if boundary_type is Precision.FP16 else None
        self.rounded_tensors.update(self._known_inputs)

    def convert_layer_input(
        self, layer: Layer, input_index: int, tensor: str, value: ir.Value, has_compute_type: bool
    ) -> ir.Value:
        """Returns an input of a layer: quantized at a Q/DQ site, rounded if it comes from outside the group, or else
        unchanged.
        """
        operand_types = self.types_by_input.get((layer.name, input_index), ())
        rounds = has_compute_type and tensor not in self._known_inputs and self.is_rounded_at_input(layer, tensor)
        if not operand_types and not rounds:
            return value
        key = (tensor, operand_types)
        if key not in self.prepared_values:
            self.prepared_values[key] = (
                self._quantize_input(value, tensor, operand_types)
                if operand_types
                else self.emitter.round_input(value, tensor, self._boundary_type, self.nodes)
            )
        if not operand_types:
            self.rounded_tensors.add(tensor)
        return self.prepared_values[key]

    def round_result(self, tensor: str, value: ir.Value, rounding_count: int) -> ir.Value:
        """Implements `PrecisionBody.round_result`. A gate of the group requests FP16 accumulation."""
        round_value = partial(self.emitter.round_to_precision, value, self._boundary_type)
        if self._sums_gate is None or rounding_count == 1:
            return round_value(self.nodes)
        return self._flow.select_by_gate(
            self._sums_gate,
            lambda nodes: self.emitter.round_to_precision(
                self._round_fp16_sum(value, rounding_count, nodes), self._boundary_type, nodes
            ),
            round_value,
            tensor,
            self.nodes,
        )

    def _round_fp16_sum(self, value: ir.Value, rounding_count: int, nodes: Nodes) -> ir.Value:
        return self.emitter.round_fp16_sum(value, rulebook.veltkamp_split_factor(rounding_count), nodes)

    def add_bias_after_rounding(self, layer: Layer, node: ir.Node, bias_index: int, rounding_count: int) -> ir.Value:
        """Implements `PrecisionBody.add_bias_after_rounding`. A gate of the group requests FP16 accumulation."""
        bias = node.inputs[bias_index]
        if self._sums_gate is None:
            return node.outputs[0]
        assert bias is not None, "a layer that has a port for a bias reads one"
        self.nodes.remove(node)

        def emit_rounded_sum_with_bias(nodes: Nodes) -> ir.Value:
            unbiased_node = self.emitter.clone_node(
                layer, node.inputs[:bias_index], self.branch_tensors, self.emitter.make_unique_name(layer.name)
            )
            nodes.append(unbiased_node)
            return self.emitter.add_bias(
                layer, self._round_fp16_sum(unbiased_node.outputs[0], rounding_count, nodes), bias, nodes
            )

        def emit_unchanged_node(nodes: Nodes) -> ir.Value:
            nodes.append(node)
            return node.outputs[0]

        return self._flow.select_by_gate(
            self._sums_gate, emit_rounded_sum_with_bias, emit_unchanged_node, layer.outputs[0], self.nodes
        )

    def _quantize_input(self, value: ir.Value, tensor: str, operand_types: Sequence[Precision]) -> ir.Value:
        """Returns an activation rounded to the boundary type and converted to the type that the gates select."""
        select, scale = self._flow.select_by_gate, self.inputs.scales.get((self.group.name, tensor))
        rounds = self.reduces_precision and self.is_computed_outside(tensor)

        def emit_rounded_value(nodes: Nodes) -> ir.Value:
            return self.emitter.round_to_precision(value, self._boundary_type, nodes) if rounds else value

        def convert_value(operand_type: Precision, source: ir.Value, nodes: Nodes) -> ir.Value:
            return self.emitter.convert_operand(operand_type, self.group, tensor, source, scale, nodes)

        def emit_converted_value(operand_type: Precision, nodes: Nodes) -> ir.Value:
            if not rounds or self._already_rounded_gate is None:
                return convert_value(operand_type, emit_rounded_value(nodes), nodes)
            return select(
                self._already_rounded_gate,
                lambda inner: convert_value(operand_type, value, inner),
                lambda inner: convert_value(operand_type, emit_rounded_value(inner), inner),
                tensor,
                nodes,
            )

        def emit_choice_of_types(candidate_types: Sequence[Precision], nodes: Nodes) -> ir.Value:
            """Emits the conversion to the candidate type whose gate is true, or else to floats."""
            if not candidate_types:
                return (
                    emit_rounded_value(nodes)
                    if rounds
                    else self.emitter.add_operator(nodes, "Identity", [value], "as_is")
                )
            gate = self._type_gates[candidate_types[0]]
            if (
                gate is None
                or len(candidate_types) == 1
                and not self._allows_floats
                and len(operand_types) == len(self._type_gates)
            ):
                return emit_converted_value(candidate_types[0], nodes)
            return select(
                gate,
                partial(emit_converted_value, candidate_types[0]),
                partial(emit_choice_of_types, candidate_types[1:]),
                tensor,
                nodes,
            )

        return emit_choice_of_types(operand_types, self.nodes)


@dataclass
class DataFlowEmitter(GroupEmitter):
    """An emitter of fusion groups whose gates are ``Where`` nodes in the main graph.

    Attributes:
        edge_gates: The producing group and the reading group of each gate for a rounded input, by the name of the gate.
        converted_values: The converted values, by type, source value and scale.
        unrounded_results: The producing group, the unrounded value and the rounded value, by tensor.
    """

    edge_gates: dict[str, tuple[str, str]] = field(default_factory=dict)
    converted_values: dict[tuple[Precision, int | None, ir.Value, ir.Value | None], ir.Value] = field(
        default_factory=dict
    )
    unrounded_results: dict[str, tuple[str, ir.Value, ir.Value]] = field(default_factory=dict)

    def emit_group(
        self, group: FusionGroup, values_by_tensor: MutableMapping[str, ir.Value], requested_tensors: Sequence[str]
    ) -> dict[str, ir.Value]:
        """Implements `GroupEmitter.emit_group`."""
        body = _DataFlowBody(self, group, values_by_tensor, requested_tensors)
        body.emit_layers()
        results = {tensor: body.branch_tensors[tensor] for tensor in requested_tensors}
        if Precision.FILE in self.inputs.operand_types[group.name]:
            file_body = FilePrecisionBody(self, group, values_by_tensor, requested_tensors, self.emitter.nodes)
            file_body.emit_layers()
            gate = self.inputs.gates[group.name][Precision.FILE.value]
            for tensor, value in results.items():
                self.unrounded_results.pop(tensor, None)
                if (file_result := file_body.branch_tensors[tensor]) is not value:
                    results[tensor] = self.select_by_gate(gate, file_result, value, tensor)
        return results

    def select_by_gate(self, gate: ir.Value, then_value: ir.Value, else_value: ir.Value, tensor: str) -> ir.Value:
        """Emits a ``Where`` that returns one of two values for a tensor."""
        return self.emitter.add_operator(
            self.emitter.nodes, "Where", [gate, then_value, else_value], f"{tensor}/chosen", like=else_value
        )

    @cached_property
    def has_single_half_type(self) -> bool:
        """True if the groups use only one float type below FP32."""
        operand_types = self.inputs.operand_types.values()
        return (
            len({boundary_type for types in operand_types for boundary_type in types}.intersection(HALF_PRECISIONS))
            == 1
        )


class _DataFlowBody(PrecisionBody):
    """The emission of a fusion group into the main graph, where Where nodes select the rounded results of its layers."""

    def __init__(
        self,
        flow: DataFlowEmitter,
        group: FusionGroup,
        values_by_tensor: MutableMapping[str, ir.Value],
        requested_tensors: Sequence[str],
    ) -> None:
        operand_types = flow.inputs.operand_types[group.name]
        self._gates = flow.inputs.gates[group.name]
        self._boundary_types = sorted(set(operand_types).intersection(HALF_PRECISIONS))
        offered = {operand_type for types in operand_types.values() for operand_type in types}
        super().__init__(
            flow,
            group,
            values_by_tensor,
            requested_tensors,
            bool(self._boundary_types),
            sorted(offered.intersection(rulebook.REDUCED_OPERAND_TYPES)),
            flow.emitter.nodes,
        )
        self._flow = flow

    def convert_layer_input(
        self, layer: Layer, input_index: int, tensor: str, value: ir.Value, has_compute_type: bool
    ) -> ir.Value:
        """Returns an input of a layer: rounded if it comes from outside the group, and quantized at a Q/DQ site."""
        operand_types = self.types_by_input.get((layer.name, input_index), ())
        rounds = (
            self.reduces_precision and self.is_computed_outside(tensor)
            if operand_types
            else has_compute_type and self.is_rounded_at_input(layer, tensor)
        )
        if rounds and (tensor, ()) not in self.prepared_values:
            self.rounded_tensors.add(tensor)
            self.prepared_values[tensor, ()] = self._round_input(tensor, value)
        if operand_types and (tensor, operand_types) not in self.prepared_values:
            self.prepared_values[tensor, operand_types] = self._quantize_input(
                tensor, self.prepared_values[tensor, ()] if rounds else value, operand_types
            )
        return self.prepared_values[tensor, operand_types] if rounds or operand_types else value

    def _round_input(self, tensor: str, value: ir.Value) -> ir.Value:
        """Returns a tensor from outside the group rounded to the boundary type of the group."""
        if tensor in self._flow.unrounded_results:
            producer, unrounded, low = self._flow.unrounded_results[tensor]
            gate = self.emitter.add_input(f"edge/{len(self._flow.edge_gates)}", ir.DataType.BOOL)
            self._flow.edge_gates[value_name(gate)] = (producer, self.group.name)
            return self._flow.select_by_gate(gate, low, unrounded, tensor)
        for boundary_type in self._boundary_types:
            low = self.emitter.round_input(value, tensor, boundary_type, self.nodes)
            value = self._flow.select_by_gate(self._gates[boundary_type.value], low, value, tensor)
        return value

    def _quantize_input(self, tensor: str, value: ir.Value, operand_types: Sequence[Precision]) -> ir.Value:
        """Returns the value that a layer reads at a Q/DQ site. It is quantized if a gate is true."""
        unquantized, scale = value, self.inputs.scales.get((self.group.name, tensor))
        converted_values = self._flow.converted_values
        for operand_type in operand_types:
            axis = self.emitter.find_block_axis(operand_type, self.group, tensor)
            if (key := (operand_type, axis, unquantized, scale)) not in converted_values:
                converted_values[key] = self.emitter.convert_operand(
                    operand_type, self.group, tensor, unquantized, scale, self.nodes
                )
            value = self._flow.select_by_gate(self._gates[operand_type.value], converted_values[key], value, tensor)
        return value

    def round_result(self, tensor: str, value: ir.Value, rounding_count: int) -> ir.Value:
        """Implements `PrecisionBody.round_result`."""
        for boundary_type in self._boundary_types:
            rounded_sum = (
                self._round_fp16_sum(value, rounding_count)
                if boundary_type is Precision.FP16 and rounding_count > 1
                else value
            )
            low = self.emitter.round_to_precision(rounded_sum, boundary_type, self.nodes)
            low.type, low.shape = value.type, value.shape  # a graph is divided into pieces where types are known
            if self._flow.has_single_half_type:
                self._flow.unrounded_results[tensor] = (self.group.name, value, low)
            value = self._flow.select_by_gate(self._gates[boundary_type.value], low, value, tensor)
        return value

    def add_bias_after_rounding(self, layer: Layer, node: ir.Node, bias_index: int, rounding_count: int) -> ir.Value:
        """Implements `PrecisionBody.add_bias_after_rounding`."""
        value, bias = node.outputs[0], node.inputs[bias_index]
        if bias is None or self.group.name not in self.inputs.summing_groups:
            return value
        node.replace_input_with(bias_index, None)
        result = self.emitter.add_bias(layer, self._round_fp16_sum(value, rounding_count), bias, self.nodes)
        result.type, result.shape = value.type, value.shape
        return result

    def _round_fp16_sum(self, value: ir.Value, rounding_count: int) -> ir.Value:
        factors, key = self.inputs.split_factors, (self.group.name, rounding_count)
        if self.group.name not in self.inputs.summing_groups:
            return value
        if key not in factors:
            factors[key] = self.emitter.add_input(f"splitter/{len(factors)}", ir.DataType.FLOAT)
        return self.emitter.round_fp16_sum(value, factors[key], self.nodes)

    def list_unrounded_results(self, layer: Layer, node: ir.Node) -> Sequence[ir.Value]:
        """Implements `PrecisionBody.list_unrounded_results`. A gate selects the operator of a normalisation, or its
        layers.
        """
        norm = self.inputs.find_normalisation_operator(self.group.name)
        if norm is None or layer.name != norm.layers[-1]:
            return node.outputs
        norm_output = self.emit_normalisation_operator(norm).outputs[0]
        selected = self.branch_tensors[norm.result] = self._flow.select_by_gate(
            self._gates["operator"], norm_output, node.outputs[0], norm.result
        )
        return [selected]


class FilePrecisionBody(GroupBody):
    """The emitter of a fusion group with the types of the model file. The arguments are those of `GroupBody`."""

    @property
    def _source_model(self) -> SourceModel:
        assert self.network.source_model is not None, "a group has this form where the file has precisions"
        return self.network.source_model

    def convert_layer_input(
        self, layer: Layer, input_index: int, tensor: str, value: ir.Value, has_compute_type: bool
    ) -> ir.Value:
        """Returns an input with the type and the conversions that it has in the file before the layer."""
        if not self.network.is_fp32(tensor):
            return value
        if tensor in self.network.constant_tensors:
            array = self._source_model.constant_value(layer, input_index)
            return (
                value
                if array is None or array.dtype != np.float32
                else self.emitter.get_array_constant(array, f"file/{layer.name}/{input_index}")
            )
        dtype = self._source_model.find_dtype(tensor)
        if self.is_computed_outside(tensor) and dtype in PRECISION_BY_HALF_TYPE:
            if tensor not in self.prepared_values:
                self.prepared_values[tensor] = self.emitter.round_to_type(value, dtype, self.nodes)
            self.rounded_tensors.add(tensor)
            value = self.prepared_values[tensor]
        for step in self._source_model.find_conversion_steps(layer, input_index) or ():
            if step not in self.prepared_values:
                self.prepared_values[step] = self.emitter.emit_qdq_step(step, value, self.nodes)
            value = self.prepared_values[step]
        return value

    def round_layer_results(self, layer: Layer, node: ir.Node, inputs_of_compute_type: Sequence[str]) -> None:
        """Rounds the results of a layer to their types in the file."""
        keeps_type = (
            rulebook.preserves_precision_of_values(layer)
            and bool(inputs_of_compute_type)
            and self.rounded_tensors.issuperset(inputs_of_compute_type)
        )
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            dtype = self._source_model.find_dtype(tensor)
            if not tensor or not self.network.is_fp32(tensor) or dtype not in PRECISION_BY_HALF_TYPE:
                continue
            if not keeps_type:
                self.branch_tensors[tensor] = self.emitter.round_to_type(output, dtype, self.nodes)
            self.rounded_tensors.add(tensor)
