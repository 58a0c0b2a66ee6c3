"""Gates as control flow: each fusion group is an ``If`` whose branches compute it in one float precision each.

On CPUs a branch that is not taken costs nothing, which makes this the faster form there. Further ``If`` nodes inside a
branch decide if an activation passes through Q and DQ, and if it is rounded before.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial

import onnx_ir as ir

from trt_tui.core.lowering import fp16_accumulation, rulebook
from trt_tui.core.lowering.gated.emitter import Nodes
from trt_tui.core.lowering.gated.file_precision import FilePrecisionBody
from trt_tui.core.lowering.gated.group_body import GroupEmitter, PrecisionBody
from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.zero_cost_support import Normalisation
from trt_tui.core.precision import Precision

EmitFunction = Callable[[Nodes], ir.Value]
"""A function that emits nodes into a graph and returns the value that they compute."""


class ControlFlowEmitter(GroupEmitter):
    """An emitter of fusion groups whose gates are ``If`` nodes."""

    def emit_group(self, group: FusionGroup, values_by_tensor: MutableMapping[str, ir.Value],
                   requested_tensors: Sequence[str]) -> dict[str, ir.Value]:
        """Implements `GroupEmitter.emit_group`."""
        reduced = self._build_reduced_precision_graph(
            group, dict.fromkeys(self.inputs.operand_types[group.name], values_by_tensor), requested_tensors)
        fp32 = _PrecisionBranch(self, group, values_by_tensor, requested_tensors, Precision.FP32).build_graph("fp32")
        gate = self.inputs.gates[group.name]["fp32"]
        outputs = self._add_if_node(gate, fp32, reduced, requested_tensors, group.name, self.emitter.nodes)
        return dict(zip(requested_tensors, outputs, strict=True))

    def emit_reduced_precision_group(
            self, group: FusionGroup,
            values_by_boundary_type: Mapping[Precision, MutableMapping[str, ir.Value]]) -> tuple[ir.Value, Nodes]:
        """Returns the final tensor of a gated group in its requested precision below FP32, and the nodes that compute
        it.

        Args:
            values_by_boundary_type: The tensors that the group reads, unrounded, by boundary type.
        """
        reduced = self._build_reduced_precision_graph(group, values_by_boundary_type, (group.final_tensor, ),
                                                      inputs_may_be_rounded=False)
        tail, nodes = reduced.outputs[0], list(reduced)
        reduced.outputs.clear()
        reduced.remove(nodes)
        return tail, nodes

    def _build_reduced_precision_graph(self, group: FusionGroup, values_by_boundary_type: Mapping[
                                           Precision, MutableMapping[str, ir.Value]],
                                       requested_tensors: Sequence[str],
                                       inputs_may_be_rounded: bool = True) -> ir.Graph:
        """Builds the graph of a fusion group in any of its precisions below FP32; its gates select one.

        Args:
            values_by_boundary_type: The tensors that the group reads, by boundary type.
            inputs_may_be_rounded: True if the inputs may already have values of the boundary type, as the gates state.
        """
        gates = self.inputs.gates[group.name]
        result: ir.Graph | None = None

        def choose(gate: str, then_graph: ir.Graph, else_graph: ir.Graph) -> ir.Graph:
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
                    type_gates={quantized_type: gates[quantized_type.value] if len(precisions) > 1 else None
                                for quantized_type in rulebook.REDUCED_OPERAND_TYPES if quantized_type in precisions},
                    allow_floats=boundary_type in precisions,
                    already_rounded_gate=gates["clean"] if inputs_may_be_rounded and len(precisions) > 1 else None
                ).build_graph(boundary_type.value)
                if inputs_may_be_rounded and boundary_type in precisions:
                    branch = choose("direct", body(already_rounded=True).build_graph(boundary_type.value), branch)
                norm = self.inputs.find_normalisation_operator(group.name)
                if norm is not None and boundary_type is not Precision.FP32:
                    branch = choose("operator", body(norm=norm).build_graph(boundary_type.value), branch)
            result = branch if result is None else choose(boundary_type.value, branch, result)
        assert result is not None  # a gated group has at least one precision below FP32
        return result

    def _add_if_node(self, gate: ir.Value, then_graph: ir.Graph, else_graph: ir.Graph, requested_tensors: Sequence[str],
                     name: str, nodes: Nodes) -> Sequence[ir.Value]:
        outputs = self.emitter.add_if_node(nodes, gate, then_graph, else_graph, f"if/{name}", len(requested_tensors))
        for tensor, output in zip(requested_tensors, outputs, strict=True):
            self.emitter.copy_type_and_shape(output, tensor)
        return outputs

    def select_by_gate(self, gate: ir.Value, emit_then_value: EmitFunction, emit_else_value: EmitFunction, tensor: str,
                       nodes: Nodes) -> ir.Value:
        """Emits an ``If`` that returns one of two values for a tensor."""
        graphs = []
        for emit in (emit_then_value, emit_else_value):
            inner: Nodes = []
            result = emit(inner)
            self.emitter.copy_type_and_shape(result, tensor)
            graphs.append(self.emitter.build_graph([result], inner, "prepared"))
        return self._add_if_node(gate, graphs[0], graphs[1], (tensor,), tensor, nodes)[0]


class _PrecisionBranch(PrecisionBody):
    """A fusion group with one boundary type, as the body of an ``If`` that reads outer tensors.

    Args:
        type_gates: The types that activations at Q/DQ sites can be converted to, each with its gate; None for always.
        allow_floats: True if activations stay floats when no gate is true. If False, they are converted to the last of
            the types.
        already_rounded_gate: A gate that is true if the activations already have values of the boundary type.
        already_rounded: True if all inputs of the group already have values of the boundary type.
        norm: The normalisation that is computed by its operator; None if there is none.
    """

    def __init__(self, flow: ControlFlowEmitter, group: FusionGroup, values_by_tensor: MutableMapping[str, ir.Value],
                 requested_tensors: Sequence[str], boundary_type: Precision, *,
                 type_gates: Mapping[Precision, ir.Value | None] | None = None, allow_floats: bool = True,
                 already_rounded_gate: ir.Value | None = None, already_rounded: bool = False,
                 norm: Normalisation | None = None) -> None:
        self._type_gates = type_gates or {}
        super().__init__(flow, group, values_by_tensor, requested_tensors, boundary_type is not Precision.FP32,
                         self._type_gates, norm=norm)
        self._flow, self._boundary_type = flow, boundary_type
        self._allows_floats, self._already_rounded_gate = allow_floats, already_rounded_gate
        self._known_inputs = group.inputs if already_rounded else ()
        self._sums_gate = self.inputs.gates[group.name].get("sums") if boundary_type is Precision.FP16 else None
        self.rounded_tensors.update(self._known_inputs)

    def convert_layer_input(self, layer: Layer, input_index: int, tensor: str, value: ir.Value,
                            has_compute_type: bool) -> ir.Value:
        """Returns the input quantized if it is a Q/DQ site, rounded if it is computed outside the group, or unchanged.
        """
        operand_types = self.types_by_input.get((layer.name, input_index), ())
        rounds = has_compute_type and tensor not in self._known_inputs and self.is_rounded_at_input(layer, tensor)
        if not operand_types and not rounds:
            return value
        key = (tensor, operand_types)
        if key not in self.prepared_values:
            self.prepared_values[key] = self._quantize_input(value, tensor, operand_types) if operand_types \
                else self.rounding.round_input(value, tensor, self._boundary_type, self.nodes)
        if not operand_types:
            self.rounded_tensors.add(tensor)
        return self.prepared_values[key]

    def round_result(self, tensor: str, value: ir.Value, rounding_count: int) -> ir.Value:
        """Implements `PrecisionBody.round_result`; the gate of the group requests FP16 accumulation."""
        round_value = partial(self.rounding.round_to_precision, value, self._boundary_type)
        if self._sums_gate is None or rounding_count == 1:
            return round_value(self.nodes)
        return self._flow.select_by_gate(
            self._sums_gate, lambda nodes: self.rounding.round_to_precision(
                self._round_fp16_sum(value, rounding_count, nodes), self._boundary_type, nodes), round_value, tensor,
            self.nodes)

    def _round_fp16_sum(self, value: ir.Value, rounding_count: int, nodes: Nodes) -> ir.Value:
        factor = self.emitter.get_scalar_constant(fp16_accumulation.veltkamp_split_factor(rounding_count))
        return self.rounding.round_fp16_sum(value, factor, nodes)

    def add_bias_after_rounding(self, layer: Layer, node: ir.Node, bias_index: int, rounding_count: int) -> ir.Value:
        """Implements `PrecisionBody.add_bias_after_rounding`; the gate of the group requests FP16 accumulation."""
        bias = node.inputs[bias_index]
        if self._sums_gate is None:
            return node.outputs[0]
        assert bias is not None, "a layer that has a port for a bias reads one"
        self.nodes.remove(node)

        def emit_rounded_sum_with_bias(nodes: Nodes) -> ir.Value:
            unbiased_node = self.emitter.clone_node(layer, node.inputs[:bias_index],
                                                    self.emitter.make_unique_name(layer.name))
            nodes.append(unbiased_node)
            return self.rounding.add_bias(
                layer, self._round_fp16_sum(unbiased_node.outputs[0], rounding_count, nodes), bias, nodes)

        def emit_unchanged_node(nodes: Nodes) -> ir.Value:
            nodes.append(node)
            return node.outputs[0]

        return self._flow.select_by_gate(self._sums_gate, emit_rounded_sum_with_bias, emit_unchanged_node,
                                         layer.outputs[0], self.nodes)

    def _quantize_input(self, value: ir.Value, tensor: str, operand_types: Sequence[Precision]) -> ir.Value:
        """Returns an activation rounded to the boundary type and converted to the type that its gates select."""
        select, scale = self._flow.select_by_gate, self.inputs.scales.get((self.group.name, tensor))
        rounds = self.reduces_precision and self.is_computed_outside(tensor)

        def emit_rounded_value(nodes: Nodes) -> ir.Value:
            return self.rounding.round_to_precision(value, self._boundary_type, nodes) if rounds else value

        def convert(operand_type: Precision, source: ir.Value, nodes: Nodes) -> ir.Value:
            return self.rounding.convert_operand(operand_type, self.group, tensor, source, scale, nodes)

        def emit_converted_value(operand_type: Precision, nodes: Nodes) -> ir.Value:
            if not rounds or self._already_rounded_gate is None:
                return convert(operand_type, emit_rounded_value(nodes), nodes)
            return select(self._already_rounded_gate, lambda inner: convert(operand_type, value, inner),
                          lambda inner: convert(operand_type, emit_rounded_value(inner), inner), tensor, nodes)

        def emit_choice_of_types(candidate_types: Sequence[Precision], nodes: Nodes) -> ir.Value:
            """Emits the conversion to the candidate type whose gate is true, or else to floats."""
            if not candidate_types:
                return emit_rounded_value(nodes) if rounds else self.emitter.add_operator(nodes, "Identity", [value],
                                                                                          "as_is")
            gate = self._type_gates[candidate_types[0]]
            if gate is None or len(candidate_types) == 1 and not self._allows_floats and len(operand_types) == len(
                    self._type_gates):
                return emit_converted_value(candidate_types[0], nodes)
            return select(gate, partial(emit_converted_value, candidate_types[0]),
                          partial(emit_choice_of_types, candidate_types[1:]), tensor, nodes)

        return emit_choice_of_types(operand_types, self.nodes)
