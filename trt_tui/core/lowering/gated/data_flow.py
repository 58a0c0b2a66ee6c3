"""Gates as data: every fusion group is computed once, and a ``Where`` selects a tensor or its rounded values.

On GPUs an ``If`` waits for the host. This form has no ``If``, so that an execution can be one CUDA graph. All roundings
are computed in every execution, which costs more than control flow on a CPU.

If there is only one float type below FP32, a tensor is rounded once for all groups that read it. Each reader then
selects by its own gate, which is true if the producing group or the reading group has that type.
"""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from trt_tui.core.lowering import fp16_accumulation, rulebook
from trt_tui.core.lowering.gated.emitter import BranchTensors, NodeEmitter
from trt_tui.core.lowering.gated.file_precision import FilePrecisionBranch, QdqEmitter
from trt_tui.core.lowering.gated.graph_inputs import GraphInputs
from trt_tui.core.lowering.gated.group_body import (
    PendingSumRoundings,
    can_defer_rounding_to_reader,
    emit_group_layers,
    emit_normalisation_operator,
    is_cheaper_to_round_after_copy,
)
from trt_tui.core.lowering.gated.rounding import RoundingEmitter
from trt_tui.core.lowering.rulebook import HALF_PRECISIONS
from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.naming import value_name
from trt_tui.core.network.zero_cost_support import Normalisation
from trt_tui.core.precision import Precision


class DataFlowEmitter:
    """An emitter of fusion groups whose gates are ``Where`` nodes in the main graph.

    Attributes:
        edge_gates: The producing group and the reading group of each reader's gate, by the name of the gate.
    """

    def __init__(self, emitter: NodeEmitter, graph_inputs: GraphInputs, rounding: RoundingEmitter) -> None:
        self.emitter = emitter
        self.inputs = graph_inputs
        self.rounding = rounding
        self.edge_gates: dict[str, tuple[str, str]] = {}
        self._qdq_emitter = QdqEmitter(emitter, rounding)
        self._half_types = {
            boundary_type
            for operand_types in graph_inputs.operand_types.values()
            for boundary_type in operand_types
        }.intersection(HALF_PRECISIONS)
        self._converted_values: dict[tuple[Precision, int | None, ir.Value, ir.Value | None], ir.Value] = {}
        """The converted values, by type, source value and scale."""
        self._unrounded_results: dict[str, tuple[str, ir.Value, ir.Value]] = {}
        """The producing group, the unrounded value and the rounded value, by tensor."""

    def emit_group(self, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                   requested_tensors: Sequence[str]) -> dict[str, ir.Value]:
        """Emits a gated fusion group into the main graph; returns the requested tensors of the group."""
        body = _DataFlowGroupBody(self, group, values_by_tensor, requested_tensors)
        emit_group_layers(self.emitter, self.inputs, body)
        results = {tensor: body.branch_tensors[tensor] for tensor in requested_tensors}
        if Precision.FILE in self.inputs.operand_types[group.name]:
            self._select_file_precision_results(group, values_by_tensor, results)
        return results

    def _select_file_precision_results(self, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                                       result_by_tensor: dict[str, ir.Value]) -> None:
        """Replaces the results of a group by those in file precision if its gate is true, in place."""
        source_model = self.emitter.network.source_model
        assert source_model is not None, "a group has this form where the file has precisions"
        branch = FilePrecisionBranch(self._qdq_emitter, source_model, group, values_by_tensor)
        emit_group_layers(self.emitter, self.inputs, branch)
        self.emitter.nodes.extend(branch.nodes)
        for tensor, value in result_by_tensor.items():
            self._unrounded_results.pop(tensor, None)
            if (file_result := branch.branch_tensors[tensor]) is not value:
                result_by_tensor[tensor] = self.select_by_gate(self._find_boundary_type_gate(group, Precision.FILE),
                                                               file_result, value, tensor)

    def select_by_gate(self, gate: ir.Value, then_value: ir.Value, else_value: ir.Value, tensor: str) -> ir.Value:
        """Emits a ``Where`` that returns one of two values for a tensor."""
        result = self.emitter.add_operator(self.emitter.nodes, "Where", [gate, then_value, else_value],
                                           f"{tensor}/chosen")
        result.type, result.shape = else_value.type, else_value.shape
        return result

    def round_result(self, group: FusionGroup, tensor: str, value: ir.Value, rounding_count: int = 1) -> ir.Value:
        """Returns a result of a group rounded to its boundary type; a sum in FP16 is rounded ``rounding_count`` times.
        """
        for boundary_type in self._list_boundary_types(group):
            rounded_sum = self._round_fp16_sum(
                group, value, rounding_count) if boundary_type is Precision.FP16 and rounding_count > 1 else value
            low = self.rounding.round_to_precision(rounded_sum, boundary_type, self.emitter.nodes)
            low.type, low.shape = value.type, value.shape  # a graph is divided into pieces where types are known
            if len(self._half_types) == 1:
                self._unrounded_results[tensor] = (group.name, value, low)
            value = self.select_by_gate(self._find_boundary_type_gate(group, boundary_type), low, value, tensor)
        return value

    def add_bias_after_rounding(self, group: FusionGroup, layer: Layer, node: ir.Node, bias_index: int,
                                rounding_count: int) -> ir.Value:
        """Returns a sum of products with a bias, which is added after the roundings of FP16 accumulation."""
        value, bias = node.outputs[0], node.inputs[bias_index]
        if bias is None or group.name not in self.inputs.summing_groups:
            return value
        node.replace_input_with(bias_index, None)
        result = self.rounding.add_bias(layer, self._round_fp16_sum(group, value, rounding_count), bias,
                                        self.emitter.nodes)
        result.type, result.shape = value.type, value.shape
        return result

    def _round_fp16_sum(self, group: FusionGroup, value: ir.Value, rounding_count: int) -> ir.Value:
        if group.name not in self.inputs.summing_groups:
            return value
        if (group.name, rounding_count) not in self.inputs.split_factors:
            factor = self.emitter.add_input(f"splitter/{len(self.inputs.split_factors)}", ir.DataType.FLOAT)
            self.inputs.split_factors[group.name, rounding_count] = factor
        return self.rounding.round_fp16_sum(value, self.inputs.split_factors[group.name, rounding_count],
                                            self.emitter.nodes)

    def round_input(self, group: FusionGroup, tensor: str, value: ir.Value) -> ir.Value:
        """Returns a tensor from outside a group rounded to the boundary type of the group."""
        if tensor in self._unrounded_results and self._list_boundary_types(group):
            producer, unrounded, low = self._unrounded_results[tensor]
            gate = self.emitter.add_input(f"edge/{len(self.edge_gates)}", ir.DataType.BOOL)
            self.edge_gates[value_name(gate)] = (producer, group.name)
            return self.select_by_gate(gate, low, unrounded, tensor)
        for boundary_type in self._list_boundary_types(group):
            low = self.rounding.round_input(value, tensor, boundary_type, self.emitter.nodes)
            value = self.select_by_gate(self._find_boundary_type_gate(group, boundary_type), low, value, tensor)
        return value

    def quantize_input(self, group: FusionGroup, tensor: str, value: ir.Value,
                       quantized_types: Sequence[Precision]) -> ir.Value:
        """Returns the value that a layer reads at a Q/DQ site, quantized if a gate is true."""
        unquantized = value
        for quantized_type in quantized_types:
            scale = self.inputs.scales.get((group.name, tensor))
            axis = self.rounding.find_block_axis(quantized_type, group, tensor)
            if (key := (quantized_type, axis, unquantized, scale)) not in self._converted_values:
                self._converted_values[key] = self.rounding.convert_operand(quantized_type, group, tensor, unquantized,
                                                                            scale, self.emitter.nodes)
            converted = self._converted_values[key]
            value = self.select_by_gate(self.inputs.gates[group.name][quantized_type.value], converted, value, tensor)
        return value

    def _find_boundary_type_gate(self, group: FusionGroup, boundary_type: Precision) -> ir.Value:
        return self.inputs.gates[group.name][boundary_type.value]

    def _list_boundary_types(self, group: FusionGroup) -> list[Precision]:
        return sorted(boundary_type for boundary_type in self.inputs.operand_types[group.name]
                      if boundary_type in HALF_PRECISIONS)


class _DataFlowGroupBody:
    """The layers of a fusion group, each followed by the roundings of its results; implements `GroupBody`."""

    norm: Normalisation | None = None

    def __init__(self, flow: DataFlowEmitter, group: FusionGroup, values_by_tensor: Mapping[str, ir.Value],
                 requested_tensors: Sequence[str]) -> None:
        self._flow = flow
        self._network = flow.emitter.network
        self._requested_tensors = requested_tensors
        self._reduces_precision = any(boundary_type in HALF_PRECISIONS
                                      for boundary_type in flow.inputs.operand_types[group.name])
        self._types_by_input: dict[tuple[str, int], tuple[Precision, ...]] = {}
        offered = {
            quantized_type
            for operand_types in flow.inputs.operand_types[group.name].values()
            for quantized_type in operand_types
        }
        for quantized_type in sorted(offered.intersection(rulebook.REDUCED_OPERAND_TYPES)):
            for site in rulebook.operand_qdq_sites(group, quantized_type):
                layer_input = site.layer, site.index
                self._types_by_input[layer_input] = (*self._types_by_input.get(layer_input, ()), quantized_type)
        self._prepared_values: dict[tuple[str, tuple[Precision, ...]], ir.Value] = {}
        self._pending_sums = PendingSumRoundings(self._network)
        self._produced_tensors: set[str] = set()
        self._rounded_tensors: set[str] = set()  # tensors with values of the boundary type
        self.group = group
        self.branch_tensors = BranchTensors(values_by_tensor)
        self.nodes = flow.emitter.nodes

    def convert_layer_input(self, layer: Layer, input_index: int, tensor: str, value: ir.Value,
                            has_compute_type: bool) -> ir.Value:
        """Returns the input rounded if it is computed outside the group, and quantized if it is a Q/DQ site."""
        quantized_types = self._types_by_input.get((layer.name, input_index), ())
        rounds = tensor not in self._produced_tensors and self._reduces_precision and (
            bool(quantized_types)
            or has_compute_type and not is_cheaper_to_round_after_copy(self._network, layer, tensor))
        if not rounds and not quantized_types:
            return value
        if (tensor, quantized_types) not in self._prepared_values:
            source = value
            if rounds:
                self._rounded_tensors.add(tensor)
                if (tensor, ()) not in self._prepared_values:
                    self._prepared_values[tensor, ()] = self._flow.round_input(self.group, tensor, value)
                source = self._prepared_values[tensor, ()]
            self._prepared_values[tensor, quantized_types] = self._flow.quantize_input(self.group, tensor, source,
                                                                                       quantized_types)
        return self._prepared_values[tensor, quantized_types]

    def round_layer_results(self, layer: Layer, node: ir.Node, inputs_of_compute_type: Sequence[str]) -> None:
        """Rounds the results of a layer if its operator can return values that the precision cannot represent."""
        self._produced_tensors.update(tensor for tensor in layer.outputs if tensor)
        if not self._reduces_precision:
            return
        own = rulebook.find_compute_type_results(self._network, layer)
        if rulebook.preserves_precision_of_values(layer) and self._rounded_tensors.issuperset(inputs_of_compute_type):
            self._rounded_tensors.update(own)
            return
        rounding_count, outputs = self._pending_sums.count_accumulator_roundings(
            layer), self._select_normalisation_output(layer, node)
        if (port := fp16_accumulation.find_bias_input_index(self._network, layer)) is not None:
            outputs, rounding_count = [
                self._flow.add_bias_after_rounding(self.group, layer, node, port, rounding_count)
            ], 1
            self.branch_tensors[layer.outputs[0]] = outputs[0]
        for tensor, output in zip(layer.outputs, outputs, strict=True):
            if tensor not in own:
                continue
            if can_defer_rounding_to_reader(self._network, self.group, self._requested_tensors, tensor):
                self._pending_sums.defer_rounding(tensor, rounding_count)
                continue
            self.branch_tensors[tensor] = self._flow.round_result(self.group, tensor, output, rounding_count)
            self._rounded_tensors.add(tensor)

    def _select_normalisation_output(self, layer: Layer, node: ir.Node) -> list[ir.Value]:
        """Returns the results of a layer; the result of a normalisation is selected between its layers and its
        operator."""
        norm = self._flow.inputs.find_normalisation_operator(self.group.name)
        if norm is None or layer.name != norm.layers[-1]:
            return list(node.outputs)
        flow = self._flow
        norm_output = emit_normalisation_operator(flow.emitter, flow.inputs, self, norm).outputs[0]
        gate = flow.inputs.gates[self.group.name]["operator"]
        selected = self.branch_tensors[norm.result] = flow.select_by_gate(gate, norm_output, node.outputs[0],
                                                                          norm.result)
        return [selected]
