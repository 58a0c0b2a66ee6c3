"""Gates as control flow: each group stands in an ``If`` whose branches compute it in one float precision each.

On CPUs a branch that is not taken costs nothing, which makes this the faster form there. Whether an activation passes
through Q and DQ, and whether it is rounded before, are further ``If`` nodes inside of a branch.
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
"""Emits nodes into a graph and returns what it computed."""


class ControlFlowEmitter:
    """Emits groups with their gates."""

    def __init__(self, emitter: NodeEmitter, graph_inputs: GraphInputs, rounding: RoundingEmitter) -> None:
        self.emitter = emitter
        self.inputs = graph_inputs
        self.rounding = rounding
        self._qdq_emitter = QdqEmitter(emitter, rounding)

    def emit_group(self, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                   requested_tensors: Sequence[str]) -> dict[str, ir.Value]:
        """Emits a group that has gates into the main graph; returns the tensors wanted of it."""
        reduced = self._build_reduced_precision_graph(
            group, dict.fromkeys(self.inputs.operand_types[group.name], values_by_tensor), requested_tensors)
        fp32 = self._build_precision_branch(group, values_by_tensor, requested_tensors, Precision.FP32)
        gate = self.inputs.gates[group.name]["fp32"]
        outputs = self._add_if_node(gate, fp32, reduced, requested_tensors, group.name, self.emitter.nodes)
        return dict(zip(requested_tensors, outputs, strict=True))

    def emit_reduced_precision_group(
            self, group: FusionGroup,
            values_by_boundary_type: Mapping[Precision, Mapping[str, ir.Value]]) -> tuple[ir.Value, Nodes]:
        """The tail of a group that has gates, in whatever is asked below FP32, and the nodes that compute it.

        Args:
            values_by_boundary_type: The tensors it reads, none of them rounded, by the float type of its results.
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
        """The group in whatever is asked below FP32.

        Args:
            values_by_boundary_type: The tensors it reads, by the float type of its results.
            inputs_may_be_rounded: What it reads may have values of that type already, as the gates say.
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
        assert result is not None  # a group that has gates has a form
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
        """One of two values that stand for a tensor."""
        graphs = []
        for emit in (emit_then_value, emit_else_value):
            inner: Nodes = []
            result = emit(inner)
            self.emitter.copy_type_and_shape(result, tensor)
            graphs.append(self.emitter.build_graph([result], inner, "prepared"))
        return self._add_if_node(gate, graphs[0], graphs[1], (tensor,), tensor, nodes)[0]

    def _build_file_precision_graph(self, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                                    requested_tensors: Sequence[str]) -> ir.Graph:
        """The group as the file has it."""
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
        """The group with results in one float precision; arguments as `_PrecisionBranch` has them."""
        branch = _PrecisionBranch(self, group, values_by_tensor, requested_tensors, boundary_type, type_gates=type_gates
                                  or {}, allow_floats=allow_floats, already_rounded_gate=already_rounded_gate,
                                  already_rounded=already_rounded, norm=norm)
        emit_group_layers(self.emitter, self.inputs, branch)
        return self.emitter.build_branch(branch.branch_tensors, branch.nodes, requested_tensors,
                                         f"{group.name}/{boundary_type.value}")


class _PrecisionBranch:
    """The group with results in one float precision, as the body of an ``If`` that reads outer tensors.

    Args:
        type_gates: What the sites' activations are read as, each where its gate is true, or always.
        allow_floats: They are read as floats where no gate is true; else as the last of these codes.
        already_rounded_gate: Where this is true they have the precision's values already.
        already_rounded: What comes from outside has the precision's values already.
        norm: The normalisation that is computed by its operator.
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
        self._types_by_input: dict[tuple[str, int], tuple[Precision, ...]] = {}  # what each is read as
        for quantized_type in type_gates:
            for site in rulebook.operand_qdq_sites(group, quantized_type):
                layer_input = site.layer, site.index
                self._types_by_input[layer_input] = (*self._types_by_input.get(layer_input, ()), quantized_type)
        self._prepared_values: dict[tuple[str, tuple[Precision, ...]], ir.Value] = {}
        self._pending_sums = PendingSumRoundings(self._network)
        self._sums_gate = flow.inputs.gates[group.name].get("sums") if boundary_type is Precision.FP16 else None
        self._produced_tensors: set[str] = set()
        self._rounded_tensors: set[str] = set(
            group.inputs) if already_rounded else set()  # tensors that have the precision's values
        self.group = group
        self.branch_tensors = BranchTensors(values_by_tensor)
        self.nodes: Nodes = []

    def convert_layer_input(self, layer: Layer, input_index: int, tensor: str, value: ir.Value,
                            has_compute_type: bool) -> ir.Value:
        """The tensor quantized at a site, rounded where it comes from outside, or as it is."""
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
        """Rounds a layer's results where its operator can yield values that the precision does not have."""
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
        """A result rounded to the branch's type, as often as a sum in FP16 is if the group's gate asks for that."""
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
        """A sum with a bias: where the group's gate asks for sums in FP16, the bias is added behind their rounding."""
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
        """An activation rounded to the surrounding type, and to what its gates say of some codes."""
        flow, scale = self._flow, self._flow.inputs.scales.get((self.group.name, tensor))
        rounds, already_rounded_gate = boundary_type is not Precision.FP32, self._already_rounded_gate

        def emit_rounded_value(nodes: Nodes) -> ir.Value:
            if not rounds:
                return flow.emitter.add_operator(nodes, "Identity", [value], "as_is")
            return flow.rounding.round_to_precision(value, boundary_type, nodes)

        def emit_quantized_value(quantized_type: Precision, source: ir.Value, nodes: Nodes) -> ir.Value:
            return flow.rounding.convert_operand(quantized_type, source, scale, nodes)

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
            """Of some codes what its gate says, else floats."""
            if not candidate_types:
                return emit_rounded_value(nodes)
            gate = self._type_gates[candidate_types[0]]
            if gate is None or len(candidate_types) == 1 and not self._allows_floats and len(quantized_types) == len(
                    self._type_gates):
                return emit_rounded_and_quantized_value(candidate_types[0], nodes)
            return flow.select_by_gate(gate, lambda inner: emit_rounded_and_quantized_value(candidate_types[0], inner),
                                       lambda inner: emit_choice_of_types(candidate_types[1:], inner), tensor, nodes)

        return emit_choice_of_types(quantized_types, self.nodes)
