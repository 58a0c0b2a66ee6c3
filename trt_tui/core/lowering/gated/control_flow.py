"""Gates as control flow: each fusion group is an ``If`` whose branches compute it in one float precision each.

On CPUs a branch that is not taken costs nothing, which makes this the faster form there. Further ``If`` nodes inside a
branch decide if an activation passes through Q and DQ, and if it is rounded before.
"""

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from trt_tui.core.lowering import fp16_accumulation, rulebook
from trt_tui.core.lowering.gated.emitter import BranchTensors, NodeEmitter, Nodes
from trt_tui.core.lowering.gated.file_precision import FilePrecisionBranch, QdqEmitter
from trt_tui.core.lowering.gated.graph_inputs import GraphInputs
from trt_tui.core.lowering.gated.group_body import (
    PendingSumRoundings,
    can_defer_rounding_to_reader,
    emit_group_layers,
    is_cheaper_to_round_after_copy,
)
from trt_tui.core.lowering.gated.rounding import RoundingEmitter
from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.zero_cost_support import Normalisation
from trt_tui.core.precision import Precision

EmitFunction = Callable[[Nodes], ir.Value]
"""A function that emits nodes into a graph and returns the value that they compute."""


class ControlFlowEmitter:
    """An emitter of fusion groups whose gates are ``If`` nodes."""

    def __init__(self, emitter: NodeEmitter, graph_inputs: GraphInputs, rounding: RoundingEmitter) -> None:
        self.emitter = emitter
        self.inputs = graph_inputs
        self.rounding = rounding
        self._qdq_emitter = QdqEmitter(emitter, rounding)

    def emit_group(self, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                   requested_tensors: Sequence[str]) -> dict[str, ir.Value]:
        """Emits a gated fusion group into the main graph; returns the requested tensors of the group."""
        reduced = self._build_reduced_precision_graph(
            group, dict.fromkeys(self.inputs.operand_types[group.name], values_by_tensor), requested_tensors)
        fp32 = self._build_precision_branch(group, values_by_tensor, requested_tensors, Precision.FP32)
        gate = self.inputs.gates[group.name]["fp32"]
        outputs = self._add_if_node(gate, fp32, reduced, requested_tensors, group.name, self.emitter.nodes)
        return dict(zip(requested_tensors, outputs, strict=True))

    def emit_reduced_precision_group(
            self, group: FusionGroup,
            values_by_boundary_type: Mapping[Precision, Mapping[str, ir.Value]]) -> tuple[ir.Value, Nodes]:
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

    def _build_reduced_precision_graph(self, group: FusionGroup, values_by_boundary_type: Mapping[Precision,
                                                                                                  Mapping[str,
                                                                                                          ir.Value]],
                                       requested_tensors: Sequence[str],
                                       inputs_may_be_rounded: bool = True) -> ir.Graph:
        """Builds the graph of a fusion group in any of its precisions below FP32; its gates select one.

        Args:
            values_by_boundary_type: The tensors that the group reads, by boundary type.
            inputs_may_be_rounded: True if the inputs may already have values of the boundary type, as the gates state.
        """
        gates = self.inputs.gates[group.name]
        result: ir.Graph | None = None
        for boundary_type, precisions in reversed(self.inputs.operand_types[group.name].items()):
            scope = values_by_boundary_type[boundary_type]
            if boundary_type is Precision.FILE:
                branch = self._build_file_precision_graph(group, scope, requested_tensors)
                result = branch if result is None else self._build_if_graph(gates[boundary_type.value], branch,
                                                                            result, requested_tensors, group.name)
                continue
            type_gates = {quantized_type: gates[quantized_type.value] if len(precisions) > 1 else None
                          for quantized_type in rulebook.REDUCED_OPERAND_TYPES if quantized_type in precisions}
            branch = self._build_precision_branch(
                group, scope, requested_tensors, boundary_type, type_gates=type_gates, allow_floats=boundary_type
                in precisions,
                already_rounded_gate=gates["clean"] if inputs_may_be_rounded and len(precisions) > 1 else None)
            if inputs_may_be_rounded and boundary_type in precisions:
                as_is = self._build_precision_branch(group, scope, requested_tensors, boundary_type,
                                                     already_rounded=True)
                branch = self._build_if_graph(gates["direct"], as_is, branch, requested_tensors, group.name)
            norm = self.inputs.find_normalisation_operator(group.name)
            if norm is not None and boundary_type is not Precision.FP32:
                norm_branch = self._build_precision_branch(group, scope, requested_tensors, boundary_type, norm=norm)
                branch = self._build_if_graph(gates["operator"], norm_branch, branch, requested_tensors, group.name)
            result = branch if result is None else self._build_if_graph(gates[boundary_type.value], branch, result,
                                                                        requested_tensors, group.name)
        assert result is not None  # a gated group has at least one precision below FP32
        return result

    def _build_if_graph(self, gate: ir.Value, then_graph: ir.Graph, else_graph: ir.Graph,
                        requested_tensors: Sequence[str], name: str) -> ir.Graph:
        nodes: Nodes = []
        outputs = self._add_if_node(gate, then_graph, else_graph, requested_tensors, name, nodes)
        return self.emitter.build_graph(outputs, nodes, "coarse")

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

    def _build_file_precision_graph(self, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                                    requested_tensors: Sequence[str]) -> ir.Graph:
        source_model = self.emitter.network.source_model
        assert source_model is not None, "a group has this form where the file has precisions"
        branch = FilePrecisionBranch(self._qdq_emitter, source_model, group, values_by_tensor)
        emit_group_layers(self.emitter, self.inputs, branch)
        return self.emitter.build_branch(branch.branch_tensors, branch.nodes, requested_tensors, f"{group.name}/file")

    def _build_precision_branch(self, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                                requested_tensors: Sequence[str], boundary_type: Precision, *,
                                type_gates: Mapping[Precision, ir.Value | None] | None = None,
                                allow_floats: bool = True, already_rounded_gate: ir.Value | None = None,
                                already_rounded: bool = False, norm: Normalisation | None = None) -> ir.Graph:
        """Builds the graph of a fusion group for one boundary type; the arguments are those of `_PrecisionBranch`."""
        branch = _PrecisionBranch(self, group, values_by_tensor, requested_tensors, boundary_type, type_gates=type_gates
                                  or {}, allow_floats=allow_floats, already_rounded_gate=already_rounded_gate,
                                  already_rounded=already_rounded, norm=norm)
        emit_group_layers(self.emitter, self.inputs, branch)
        return self.emitter.build_branch(branch.branch_tensors, branch.nodes, requested_tensors,
                                         f"{group.name}/{boundary_type.value}")


class _PrecisionBranch:
    """A fusion group with one boundary type, as the body of an ``If`` that reads outer tensors; implements `GroupBody`.

    Args:
        type_gates: The types that activations at Q/DQ sites can be converted to, each with its gate; None for always.
        allow_floats: True if activations stay floats when no gate is true. If False, they are converted to the last of
            the types.
        already_rounded_gate: A gate that is true if the activations already have values of the boundary type.
        already_rounded: True if all inputs of the group already have values of the boundary type.
        norm: The normalisation that is computed by its operator; None if there is none.
    """

    def __init__(self, flow: ControlFlowEmitter, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                 requested_tensors: Sequence[str], boundary_type: Precision, *,
                 type_gates: Mapping[Precision, ir.Value | None], allow_floats: bool,
                 already_rounded_gate: ir.Value | None, already_rounded: bool, norm: Normalisation | None) -> None:
        self._flow = flow
        self.norm = norm
        self._network = flow.emitter.network
        self._requested_tensors = requested_tensors
        self._boundary_type = boundary_type
        self._reduces_precision = boundary_type is not Precision.FP32
        self._type_gates, self._allows_floats, self._already_rounded_gate, self._is_already_rounded = (
            type_gates, allow_floats, already_rounded_gate, already_rounded)
        self._types_by_input: dict[tuple[str, int], tuple[Precision, ...]] = {}  # types by layer input
        for quantized_type in type_gates:
            for site in rulebook.operand_qdq_sites(group, quantized_type):
                layer_input = site.layer, site.index
                self._types_by_input[layer_input] = (*self._types_by_input.get(layer_input, ()), quantized_type)
        self._prepared_values: dict[tuple[str, tuple[Precision, ...]], ir.Value] = {}
        self._pending_sums = PendingSumRoundings(self._network)
        self._sums_gate = flow.inputs.gates[group.name].get("sums") if boundary_type is Precision.FP16 else None
        self._produced_tensors: set[str] = set()
        self._rounded_tensors: set[str] = set(
            group.inputs) if already_rounded else set()  # tensors with values of the boundary type
        self.group = group
        self.branch_tensors = BranchTensors(values_by_tensor)
        self.nodes: Nodes = []

    def convert_layer_input(self, layer: Layer, input_index: int, tensor: str, value: ir.Value,
                            has_compute_type: bool) -> ir.Value:
        """Returns the input quantized if it is a Q/DQ site, rounded if it is computed outside the group, or unchanged.
        """
        outside = tensor not in self._produced_tensors
        quantized_types = self._types_by_input.get((layer.name, input_index), ())
        if quantized_types:
            key = (tensor, quantized_types)
            if key not in self._prepared_values:
                self._prepared_values[key] = self._quantize_input(value, tensor,
                                                                  self._boundary_type if outside else Precision.FP32,
                                                                  quantized_types)
            return self._prepared_values[key]
        if (outside and self._reduces_precision and has_compute_type
                and not (self._is_already_rounded and tensor in self.group.inputs)
                and not is_cheaper_to_round_after_copy(self._network, layer, tensor)):
            key = (tensor, ())
            if key not in self._prepared_values:
                self._prepared_values[key] = self._flow.rounding.round_input(value, tensor, self._boundary_type,
                                                                             self.nodes)
            self._rounded_tensors.add(tensor)
            return self._prepared_values[key]
        return value

    def round_layer_results(self, layer: Layer, node: ir.Node, inputs_of_compute_type: Sequence[str]) -> None:
        """Rounds the results of a layer if its operator can return values that the precision cannot represent."""
        self._produced_tensors.update(tensor for tensor in layer.outputs if tensor)
        if not self._reduces_precision:
            return
        own = rulebook.find_compute_type_results(self._network, layer)
        if rulebook.preserves_precision_of_values(layer) and self._rounded_tensors.issuperset(inputs_of_compute_type):
            self._rounded_tensors.update(own)
            return
        rounding_count = self._pending_sums.count_accumulator_roundings(layer)
        outputs: Sequence[ir.Value] = node.outputs
        if (port := fp16_accumulation.find_bias_input_index(self._network,
                                                            layer)) is not None and self._sums_gate is not None:
            outputs, rounding_count = [
                self._add_bias_after_rounding(layer, node, port, rounding_count, self._sums_gate)
            ], 1
            self.branch_tensors[layer.outputs[0]] = outputs[0]
        for tensor, output in zip(layer.outputs, outputs, strict=True):
            if tensor not in own:
                continue
            if can_defer_rounding_to_reader(self._network, self.group, self._requested_tensors, tensor):
                self._pending_sums.defer_rounding(tensor, rounding_count)
                continue
            self.branch_tensors[tensor] = self._round_result(tensor, output, rounding_count)
            self._rounded_tensors.add(tensor)

    def _round_result(self, tensor: str, value: ir.Value, rounding_count: int) -> ir.Value:
        """Returns a result rounded to the boundary type.

        If the gate of the group requests FP16 accumulation, the roundings of the accumulator are added.
        """
        flow, gate = self._flow, self._sums_gate
        if gate is None or rounding_count == 1:
            return flow.rounding.round_to_precision(value, self._boundary_type, self.nodes)

        def emit_rounded_sum(nodes: Nodes) -> ir.Value:
            sums = flow.rounding.round_fp16_sum(
                value, flow.emitter.get_scalar_constant(fp16_accumulation.veltkamp_split_factor(rounding_count)), nodes)
            return flow.rounding.round_to_precision(sums, self._boundary_type, nodes)

        return flow.select_by_gate(gate, emit_rounded_sum,
                                   lambda nodes: flow.rounding.round_to_precision(value, self._boundary_type, nodes),
                                   tensor, self.nodes)

    def _add_bias_after_rounding(self, layer: Layer, node: ir.Node, bias_index: int, rounding_count: int,
                                 gate: ir.Value) -> ir.Value:
        """Returns a sum of products with a bias; if its gate requests FP16 accumulation, the bias is added after the
        rounding."""
        flow, bias = self._flow, node.inputs[bias_index]
        assert bias is not None, "a layer that has a port for a bias reads one"
        self.nodes.remove(node)

        def emit_rounded_sum_with_bias(nodes: Nodes) -> ir.Value:
            unbiased_node = flow.emitter.clone_node(layer, node.inputs[:bias_index],
                                                    flow.emitter.make_unique_name(layer.name))
            nodes.append(unbiased_node)
            factor = flow.emitter.get_scalar_constant(fp16_accumulation.veltkamp_split_factor(rounding_count))
            return flow.rounding.add_bias(layer, flow.rounding.round_fp16_sum(unbiased_node.outputs[0], factor, nodes),
                                          bias, nodes)

        def emit_unchanged_node(nodes: Nodes) -> ir.Value:
            nodes.append(node)
            return node.outputs[0]

        return flow.select_by_gate(gate, emit_rounded_sum_with_bias, emit_unchanged_node, layer.outputs[0], self.nodes)

    def _quantize_input(self, value: ir.Value, tensor: str, boundary_type: Precision,
                        quantized_types: Sequence[Precision]) -> ir.Value:
        """Returns an activation rounded to the boundary type and converted to the quantized type that its gates select.
        """
        flow, scale = self._flow, self._flow.inputs.scales.get((self.group.name, tensor))
        rounds, already_rounded_gate = boundary_type is not Precision.FP32, self._already_rounded_gate

        def emit_rounded_value(nodes: Nodes) -> ir.Value:
            if not rounds:
                return flow.emitter.add_operator(nodes, "Identity", [value], "as_is")
            return flow.rounding.round_to_precision(value, boundary_type, nodes)

        def emit_quantized_value(quantized_type: Precision, source: ir.Value, nodes: Nodes) -> ir.Value:
            return flow.rounding.convert_operand(quantized_type, self.group, tensor, source, scale, nodes)

        def emit_rounded_and_quantized_value(quantized_type: Precision, nodes: Nodes) -> ir.Value:
            if not rounds:
                return emit_quantized_value(quantized_type, value, nodes)
            if already_rounded_gate is None:
                return emit_quantized_value(quantized_type,
                                            flow.rounding.round_to_precision(value, boundary_type, nodes), nodes)
            return flow.select_by_gate(
                already_rounded_gate,
                lambda inner: emit_quantized_value(quantized_type, value, inner), lambda inner: emit_quantized_value(
                    quantized_type, flow.rounding.round_to_precision(value, boundary_type, inner), inner), tensor,
                nodes)

        def emit_choice_of_types(candidate_types: Sequence[Precision], nodes: Nodes) -> ir.Value:
            """Emits the conversion to the candidate type whose gate is true, or else to floats."""
            if not candidate_types:
                return emit_rounded_value(nodes)
            gate = self._type_gates[candidate_types[0]]
            if gate is None or len(candidate_types) == 1 and not self._allows_floats and len(quantized_types) == len(
                    self._type_gates):
                return emit_rounded_and_quantized_value(candidate_types[0], nodes)
            return flow.select_by_gate(gate, lambda inner: emit_rounded_and_quantized_value(candidate_types[0], inner),
                                       lambda inner: emit_choice_of_types(candidate_types[1:], inner), tensor, nodes)

        return emit_choice_of_types(quantized_types, self.nodes)
