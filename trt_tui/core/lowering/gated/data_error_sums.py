"""Error sums of fusion groups without control flow, for gated graphs whose gates are data.

Every row is computed in the same way, and is not finite if a tensor is not.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.gated.data_flow import DataFlowEmitter
from trt_tui.core.lowering.gated.emitter import Nodes
from trt_tui.core.lowering.gated.error_sums import ErrorSumsEmitter
from trt_tui.core.lowering.rulebook import HALF_PRECISIONS, MASK_LIMITS
from trt_tui.core.network.layers import FusionGroup


class DataFlowErrorSumsEmitter(ErrorSumsEmitter):
    """An emitter of error sums in float64 without control flow; values that FP16 cannot represent are always counted.

    Tensors keep their shapes, because on a GPU the maximum of a long row is slower than reductions of one axis after
    the other.
    """

    _flow: DataFlowEmitter

    def _emit_isolated_error_row(self, group: FusionGroup) -> ir.Value:
        """Implements `ErrorSumsEmitter._emit_isolated_error_row`; the errors are 0 if no gate of the group is true."""
        emitter, flow, nodes, tail = self._emitter, self._flow, self._emitter.nodes, group.final_tensor
        exact = self._concatenate_exact_columns(self._get_reference_sums(tail), nodes)
        gate_by_kind = flow.inputs.gates.get(group.name, {})
        gates = [gate for kind, gate in gate_by_kind.items() if kind != "operator"]
        if not gates:
            return exact

        def clamp_mask(value: ir.Value, tensor: str) -> ir.Value:
            for boundary_type in HALF_PRECISIONS:
                if boundary_type in flow.inputs.operand_types[group.name]:
                    clamped = flow.rounding.clamp(value, MASK_LIMITS[boundary_type], nodes)
                    value = flow.select_by_gate(gate_by_kind[boundary_type.value], clamped, value, tensor)
            return value

        # an emitter of its own, which does not reuse rounded values of the test branch
        isolated_value = DataFlowEmitter(emitter, flow.inputs, flow.rounding).emit_group(
            group, self._prepare_reference_inputs(group, clamp_mask), (tail, ))[tail]
        measured = self._emit_error_sums_row(tail, self._restore_channels(tail, isolated_value, nodes), nodes)
        lowered = gates[0]
        for gate in gates[1:]:
            lowered = emitter.add_operator(nodes, "Or", [lowered, gate], "lowered")
        return self._set_row_type_and_shape(emitter.add_operator(nodes, "Where", [lowered, measured, exact], "row"))

    def _emit_error_sums_row(self, tensor: str, test_value: ir.Value, nodes: Nodes) -> ir.Value:
        squares, largest, reference, _ = self._get_reference_sums(tensor)
        test_tensor = self._prepare_test_tensor(tensor, test_value, nodes)
        difference = self._emitter.add_operator(nodes, "Sub", [test_tensor, reference], "difference")
        magnitudes = self._emitter.add_operator(nodes, "Abs", [self._cast_to_float64(difference, nodes)], "size")
        magnitudes.shape = reference.shape
        return self._concatenate_columns({
            "diff2": self._sum_squares(magnitudes, nodes), "ref2": squares,
            "test2": self._emit_reduction("ReduceSumSquare", test_tensor, nodes),
            "diff1": self._emit_reduction("ReduceSum", magnitudes, nodes),
            "diff_max": self._emit_maximum(magnitudes, nodes), "ref_max": largest}, nodes)

    def _apply_counting_gate(self, counts: ir.Value, nodes: Nodes) -> ir.Value:
        self._emitter.nodes.extend(nodes)
        return counts

    # -- columns ------------------------------------------------------------------------------------------------

    def _get_column_of_zeros(self) -> ir.Value:
        return self._emitter.get_array_constant(np.zeros(1, np.float64), "none/double")

    def _flatten(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        return value

    def _emit_element_count(self, flat_tensor: ir.Value, nodes: Nodes) -> ir.Value:
        return self._reshape_to_one_element(self._emitter.add_operator(nodes, "Size", [flat_tensor], "size"), nodes)

    def _emit_reduction(self, operator: str, flat_tensor: ir.Value, nodes: Nodes) -> ir.Value:
        if operator == "ReduceSumSquare":
            return self._sum_squares(self._cast_to_float64(flat_tensor, nodes), nodes)
        return self._reshape_to_one_element(
            self._emitter.add_operator(nodes, operator, [flat_tensor], operator.lower(), keepdims=0), nodes)

    def _sum_squares(self, float64_value: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emit_reduction("ReduceSum",
                                    self._emitter.add_operator(nodes, "Mul", [float64_value, float64_value], "squares"),
                                    nodes)

    def _emit_max_magnitude(self, flat_tensor: ir.Value, nodes: Nodes) -> ir.Value:
        size = self._copy_type_and_shape(flat_tensor, self._emitter.add_operator(nodes, "Abs", [flat_tensor], "size"))
        return self._cast_to_float64(self._emit_maximum(size, nodes), nodes)

    def _emit_maximum(self, magnitudes: ir.Value, nodes: Nodes) -> ir.Value:
        value = magnitudes
        for axis in reversed(range(1, len(magnitudes.shape) if magnitudes.shape is not None else 0)):
            value = self._emitter.add_reduction(nodes, "ReduceMax", value, axis)
        return self._emit_reduction("ReduceMax", value, nodes)

    def _concatenate_columns(self, columns: Mapping[str, ir.Value], nodes: Nodes) -> ir.Value:
        return self._set_row_type_and_shape(
            self._emitter.add_operator(nodes, "Concat", self._order_columns(columns), "row", axis=0))

    def _reshape_to_one_element(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emitter.add_operator(
            nodes, "Reshape", [value, self._emitter.get_array_constant(np.array([1], np.int64), "single")], "single")
