"""The two forms of a gate: control flow (an If per group) and data (a Where per value).

On CPUs an ``If`` is faster, because a branch that is not taken costs nothing. Further ``If`` nodes inside a branch
select whether an activation is rounded and whether it passes through Q and DQ.

On GPUs an ``If`` waits for the host. A graph with ``Where`` instead can be executed as one CUDA graph. All roundings
are computed in every execution. On CPUs that takes 1.2 to 1.8 times the time of control flow (what-ifs of BERT, ViT, a
U-Net and ResNet-50, processor seconds).

If there is only one float type below FP32, a tensor is rounded once for all groups that read it. The gate of each
reader then selects the rounded or the unrounded tensor. It is true if the producing group or the reading group has that
type.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import onnx_ir as ir

from trt_tui.core.lowering import fp16_accumulation, rulebook
from trt_tui.core.lowering.gated.emitter import Nodes
from trt_tui.core.lowering.gated.file_precision import FilePrecisionBody
from trt_tui.core.lowering.gated.group_body import GroupEmitter, PrecisionBody
from trt_tui.core.lowering.rulebook import HALF_PRECISIONS
from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.zero_cost_support import Normalisation
from trt_tui.core.precision import Precision

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
                else self.rounding.round_input(value, tensor, self._boundary_type, self.nodes)
            )
        if not operand_types:
            self.rounded_tensors.add(tensor)
        return self.prepared_values[key]

    def round_result(self, tensor: str, value: ir.Value, rounding_count: int) -> ir.Value:
        """Implements `PrecisionBody.round_result`. A gate of the group requests FP16 accumulation."""
        round_value = partial(self.rounding.round_to_precision, value, self._boundary_type)
        if self._sums_gate is None or rounding_count == 1:
            return round_value(self.nodes)
        return self._flow.select_by_gate(
            self._sums_gate,
            lambda nodes: self.rounding.round_to_precision(
                self._round_fp16_sum(value, rounding_count, nodes), self._boundary_type, nodes
            ),
            round_value,
            tensor,
            self.nodes,
        )

    def _round_fp16_sum(self, value: ir.Value, rounding_count: int, nodes: Nodes) -> ir.Value:
        factor = self.emitter.get_scalar_constant(fp16_accumulation.veltkamp_split_factor(rounding_count))
        return self.rounding.round_fp16_sum(value, factor, nodes)

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
            return self.rounding.add_bias(
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
            return self.rounding.round_to_precision(value, self._boundary_type, nodes) if rounds else value

        def convert_value(operand_type: Precision, source: ir.Value, nodes: Nodes) -> ir.Value:
            return self.rounding.convert_operand(operand_type, self.group, tensor, source, scale, nodes)

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
        result = self.emitter.add_operator(
            self.emitter.nodes, "Where", [gate, then_value, else_value], f"{tensor}/chosen"
        )
        result.type, result.shape = else_value.type, else_value.shape
        return result

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
            low = self.rounding.round_input(value, tensor, boundary_type, self.nodes)
            value = self._flow.select_by_gate(self._gates[boundary_type.value], low, value, tensor)
        return value

    def _quantize_input(self, tensor: str, value: ir.Value, operand_types: Sequence[Precision]) -> ir.Value:
        """Returns the value that a layer reads at a Q/DQ site. It is quantized if a gate is true."""
        unquantized, scale = value, self.inputs.scales.get((self.group.name, tensor))
        converted_values = self._flow.converted_values
        for operand_type in operand_types:
            axis = self.rounding.find_block_axis(operand_type, self.group, tensor)
            if (key := (operand_type, axis, unquantized, scale)) not in converted_values:
                converted_values[key] = self.rounding.convert_operand(
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
            low = self.rounding.round_to_precision(rounded_sum, boundary_type, self.nodes)
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
        result = self.rounding.add_bias(layer, self._round_fp16_sum(value, rounding_count), bias, self.nodes)
        result.type, result.shape = value.type, value.shape
        return result

    def _round_fp16_sum(self, value: ir.Value, rounding_count: int) -> ir.Value:
        factors, key = self.inputs.split_factors, (self.group.name, rounding_count)
        if self.group.name not in self.inputs.summing_groups:
            return value
        if key not in factors:
            factors[key] = self.emitter.add_input(f"splitter/{len(factors)}", ir.DataType.FLOAT)
        return self.rounding.round_fp16_sum(value, factors[key], self.nodes)

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
