"""Gates as data: every fusion group is computed once, and a ``Where`` selects a tensor or its rounded values.

On GPUs an ``If`` waits for the host. This form has no ``If``, so that an execution can be one CUDA graph. All roundings
are computed in every execution, which costs more than control flow on a CPU.

If there is only one float type below FP32, a tensor is rounded once for all groups that read it. Each reader then
selects by its own gate, which is true if the producing group or the reading group has that type.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.file_precision import FilePrecisionBody
from trt_tui.core.lowering.gated.group_body import GroupEmitter, PrecisionBody
from trt_tui.core.lowering.rulebook import HALF_PRECISIONS
from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.precision import Precision


@dataclass
class DataFlowEmitter(GroupEmitter):
    """An emitter of fusion groups whose gates are ``Where`` nodes in the main graph.

    Attributes:
        edge_gates: The producing group and the reading group of each reader's gate, by the name of the gate.
        converted_values: The converted values, by type, source value and scale.
        unrounded_results: The producing group, the unrounded value and the rounded value, by tensor.
    """

    edge_gates: dict[str, tuple[str, str]] = field(default_factory=dict)
    converted_values: dict[tuple[Precision, int | None, ir.Value, ir.Value | None], ir.Value] = field(
        default_factory=dict)
    unrounded_results: dict[str, tuple[str, ir.Value, ir.Value]] = field(default_factory=dict)

    def emit_group(self, group: FusionGroup, values_by_tensor: MutableMapping[str, ir.Value],
                   requested_tensors: Sequence[str]) -> dict[str, ir.Value]:
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
        result = self.emitter.add_operator(self.emitter.nodes, "Where", [gate, then_value, else_value],
                                           f"{tensor}/chosen")
        result.type, result.shape = else_value.type, else_value.shape
        return result

    @cached_property
    def has_one_half_type(self) -> bool:
        """True if groups can have only one float type below FP32."""
        operand_types = self.inputs.operand_types.values()
        return len({boundary_type for types in operand_types for boundary_type in types}.intersection(
            HALF_PRECISIONS)) == 1


class _DataFlowBody(PrecisionBody):
    """The layers of a fusion group in the main graph, each followed by the roundings of its results."""

    def __init__(self, flow: DataFlowEmitter, group: FusionGroup, values_by_tensor: MutableMapping[str, ir.Value],
                 requested_tensors: Sequence[str]) -> None:
        operand_types = flow.inputs.operand_types[group.name]
        self._gates = flow.inputs.gates[group.name]
        self._boundary_types = sorted(set(operand_types).intersection(HALF_PRECISIONS))
        offered = {operand_type for types in operand_types.values() for operand_type in types}
        super().__init__(flow, group, values_by_tensor, requested_tensors, bool(self._boundary_types),
                         sorted(offered.intersection(rulebook.REDUCED_OPERAND_TYPES)), flow.emitter.nodes)
        self._flow = flow

    def convert_layer_input(self, layer: Layer, input_index: int, tensor: str, value: ir.Value,
                            has_compute_type: bool) -> ir.Value:
        """Returns the input rounded if it is computed outside the group, and quantized if it is a Q/DQ site."""
        operand_types = self.types_by_input.get((layer.name, input_index), ())
        rounds = self.reduces_precision and self.is_computed_outside(tensor) if operand_types \
            else has_compute_type and self.is_rounded_at_input(layer, tensor)
        if rounds and (tensor, ()) not in self.prepared_values:
            self.rounded_tensors.add(tensor)
            self.prepared_values[tensor, ()] = self._round_input(tensor, value)
        if operand_types and (tensor, operand_types) not in self.prepared_values:
            self.prepared_values[tensor, operand_types] = self._quantize_input(
                tensor, self.prepared_values[tensor, ()] if rounds else value, operand_types)
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
        """Returns the value that a layer reads at a Q/DQ site, quantized if a gate is true."""
        unquantized, scale = value, self.inputs.scales.get((self.group.name, tensor))
        converted_values = self._flow.converted_values
        for operand_type in operand_types:
            axis = self.rounding.find_block_axis(operand_type, self.group, tensor)
            if (key := (operand_type, axis, unquantized, scale)) not in converted_values:
                converted_values[key] = self.rounding.convert_operand(operand_type, self.group, tensor, unquantized,
                                                                      scale, self.nodes)
            value = self._flow.select_by_gate(self._gates[operand_type.value], converted_values[key], value, tensor)
        return value

    def round_result(self, tensor: str, value: ir.Value, rounding_count: int) -> ir.Value:
        """Implements `PrecisionBody.round_result`."""
        for boundary_type in self._boundary_types:
            rounded_sum = self._round_fp16_sum(
                value, rounding_count) if boundary_type is Precision.FP16 and rounding_count > 1 else value
            low = self.rounding.round_to_precision(rounded_sum, boundary_type, self.nodes)
            low.type, low.shape = value.type, value.shape  # a graph is divided into pieces where types are known
            if self._flow.has_one_half_type:
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

    def select_results(self, layer: Layer, node: ir.Node) -> Sequence[ir.Value]:
        """Implements `PrecisionBody.select_results`; a gate selects the operator of a normalisation or its layers."""
        norm = self.inputs.find_normalisation_operator(self.group.name)
        if norm is None or layer.name != norm.layers[-1]:
            return node.outputs
        norm_output = self.emit_normalisation_operator(norm).outputs[0]
        selected = self.branch_tensors[norm.result] = self._flow.select_by_gate(
            self._gates["operator"], norm_output, node.outputs[0], norm.result)
        return [selected]
