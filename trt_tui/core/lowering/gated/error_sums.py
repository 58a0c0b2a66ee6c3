"""The error sums that a gated graph returns for fusion groups and judged outputs, for both forms of gates.

The sums of one tensor are a row of a table. With gates as data, all rows are computed in the same way. A row is not
finite if the tensor has NaN or infinities.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.gated.gated_graph import BranchTensors, NodeEmitter, Nodes, Operand
from trt_tui.core.lowering.gated.gates import ControlFlowEmitter, DataFlowEmitter, GroupEmitter
from trt_tui.core.lowering.rulebook import HALF_PRECISIONS, MASK_LIMITS
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_MAX, FP16_MIN, Precision

ERROR_SUM_COLUMNS = (
    "diff2",
    "ref2",
    "test2",
    "diff1",
    "diff_max",
    "ref_max",
    "nan",
    "inf",
    "count",
    "fp16_over",
    "fp16_under",
)
"""The columns of the sums for each pair of tensors (test and reference).

- diff2, ref2, test2: sums of squares of the difference, the reference and the test;
- diff1, diff_max: sum and maximum of the absolute difference;
- ref_max: maximum of the absolute reference;
- nan, inf: number of NaN and of Inf that only the test has;
- count: number of elements;
- fp16_over, fp16_under: number of reference values beyond the largest FP16 value, without infinities, and below its
  smallest magnitude. Both are 0 if the execution does not request them.

Sums are accurate to 1e-4 of their value up to a million elements, and to 2e-3 at ten million."""

_TEST_COLUMN_COUNT = ERROR_SUM_COLUMNS.index("count")
"""The number of columns of a row that depend on the test."""

_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_NEXT_ABOVE_FP16_MAX = float(np.nextafter(np.float32(FP16_MAX), np.float32(np.inf)))


SUMS_OUTPUTS = {kind: f"sums/{kind}" for kind in ("accumulated", "isolated")}
"""The names of the graph outputs with the tables of error sums, by the kind of error."""

EXTREME_COLUMNS = ("max", "min", "unpadded_max", "unpadded_min")
"""The columns of the extremes of a reference tensor. Those with "unpadded" have 0 at the elements that a mask hides."""

EXTREMES_OUTPUT = "extremes"
"""The name of the graph output with the extremes."""


class ReferenceSums(NamedTuple):
    """The sums of a reference tensor. All error sums for this tensor share them.

    Attributes:
        sum_of_squares: The sum of squares of the tensor.
        max_magnitude: The largest magnitude of the tensor.
        tensor: The tensor, with 0 at the elements that do not count.
        counts: The last columns of `ERROR_SUM_COLUMNS`, float64 ``(3,)``: the length, and the numbers of values that
            FP16 cannot represent.
    """

    sum_of_squares: ir.Value
    max_magnitude: ir.Value
    tensor: ir.Value
    counts: ir.Value


class ErrorSumsEmitter(ABC):
    """The base class of emitters of error sums. Subclasses define the computation of one row.

    Args:
        flow: The emitter of the test branch.
        presence_masks: Masks of the elements that count, bool, by tensor name; they broadcast to the tensor. All
            elements of a tensor without a mask count.
        present_share: The fraction of elements that count, float64.
    """

    _column_type: ClassVar[type[np.floating[Any]]] = np.float32

    def __init__(
        self, flow: GroupEmitter, presence_masks: Mapping[str, ir.Value], present_share: ir.Value | None
    ) -> None:
        self._emitter, self._flow = flow.emitter, flow
        self._presence_masks, self._present_share = presence_masks, present_share
        self._reference_sums: dict[str, ReferenceSums] = {}
        self._unmasked_flags: dict[str, ir.Value] = {}

    def emit_error_tables(
        self,
        groups: Sequence[FusionGroup],
        test_tensors: Mapping[str, ir.Value],
        error_kinds: Sequence[str],
        extreme_tensors: Mapping[str, Sequence[str]] | None = None,
    ) -> list[ir.Value]:
        """Emits a table of error sums for each kind of error, with one row per group: ``(len(groups),
        len(ERROR_SUM_COLUMNS))``.

        A table of the extremes of reference tensors follows, with `EXTREME_COLUMNS` as the first columns.

        ONNX Runtime computes the inputs of an operator one after the other, beginning with the input whose node is last
        in the graph. Therefore the rows are emitted in reverse order, so that the tensors of a group are freed after
        its row.

        Args:
            test_tensors: The tensors of the test branch, by their names in the network.
            error_kinds: "accumulated" takes the final tensors from the test branch; "isolated" computes each from the
                reference.
            extreme_tensors: Float tensors of the reference whose extremes are measured, by the group before or after
                whose row they are computed.
        """
        emitter, nodes = self._emitter, self._emitter.nodes
        rows: Nodes = []
        row_numbers: dict[str, list[int]] = {**{SUMS_OUTPUTS[kind]: [] for kind in error_kinds}, EXTREMES_OUTPUT: []}
        padding = emitter.get_array_constant(np.zeros(len(ERROR_SUM_COLUMNS) - len(EXTREME_COLUMNS)), "none/extremes")
        for group in groups:
            counts = self._get_reference_sums(group.final_tensor).counts
            for kind in error_kinds:
                row = (
                    self._emit_isolated_error_row(group)
                    if kind == "isolated"
                    else self._emit_error_sums_row(group.final_tensor, test_tensors[group.final_tensor], nodes)
                )
                row_numbers[SUMS_OUTPUTS[kind]].append(len(rows))
                emitter.add_operator(rows, "Concat", [row, counts], f"row/{kind}", axis=0)
            for tensor in (extreme_tensors or {}).get(group.name, ()):
                row_numbers[EXTREMES_OUTPUT].append(len(rows))
                emitter.add_operator(
                    rows, "Concat", [self._emit_extremes(tensor), padding], f"extremes/{tensor}", axis=0
                )
        columns = [node.outputs[0] for node in rows]
        nodes.extend(reversed(rows))
        joined = emitter.add_operator(nodes, "Concat", columns, "rows", axis=0)
        table = emitter.add_operator(nodes, "Reshape", [joined, [-1, len(ERROR_SUM_COLUMNS)]], "table")
        results = []
        for name, numbers in row_numbers.items():
            if not numbers:
                continue
            which = emitter.get_array_constant(np.array(numbers, np.int64), f"numbers/{name}")
            result = emitter.add_operator(nodes, "Gather", [table, which], name, axis=0)
            result.name = name
            result.dtype, result.shape = ir.DataType.DOUBLE, ir.Shape([len(numbers), len(ERROR_SUM_COLUMNS)])
            results.append(result)
        return results

    def _emit_extremes(self, tensor: str) -> ir.Value:
        """Emits the `EXTREME_COLUMNS` of a reference tensor, float64."""
        emitter, nodes, value = self._emitter, self._emitter.nodes, self._emitter.values[tensor]
        if value.dtype != ir.DataType.FLOAT:
            value = emitter.add_operator(nodes, "Cast", [value], "float", to=int(ir.DataType.FLOAT))
        columns = [
            self._emit_reduction(operator, masked, nodes)
            for masked in dict.fromkeys((value, self._set_padding_to_zero(tensor, value, nodes)))
            for operator in ("ReduceMax", "ReduceMin")
        ]
        columns = (columns * 2)[: len(EXTREME_COLUMNS)]
        return self._cast_to_float64(emitter.add_operator(nodes, "Concat", columns, "extremes", axis=0), nodes)

    @abstractmethod
    def _emit_isolated_error_row(self, group: FusionGroup) -> ir.Value:
        """Emits the error sums of a group whose inputs come from the reference. They are 0 if the group runs in FP32."""

    @abstractmethod
    def _emit_error_sums_row(self, tensor: str, test_value: ir.Value, nodes: Nodes) -> ir.Value:
        """Emits the error sums of a tensor of the test branch against its reference, without the counts, float64
        ``(8,)``.
        """

    @abstractmethod
    def _zero_counts_unless_requested(self, counts: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the counts that the given nodes compute; zeros if the execution does not request counts."""

    # -- shared values of the rows of a tensor-------------------------------------------------------------------

    def _prepare_reference_inputs(
        self, group: FusionGroup, clamp_mask: Callable[[ir.Value, str], ir.Value]
    ) -> BranchTensors:
        """Returns the reference tensors that a group reads, with scaled channels and clamped masks like those of the
        test branch.

        Args:
            clamp_mask: Returns the clamped value of a masked tensor.
        """
        emitter = self._emitter
        scope = BranchTensors({}, emitter.values)
        for tensor in group.inputs:
            scope[tensor] = self._emitter.scale_channels(
                "Div", emitter.values[tensor], self._flow.inputs.find_channel_divisor_input(tensor), emitter.nodes
            )
            if tensor in emitter.network.masked_tensors:
                scope[tensor] = clamp_mask(scope[tensor], tensor)
        return scope

    def _restore_channels(self, tensor: str, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns a tensor of the test branch with its channel scaling undone."""
        return self._emitter.scale_channels("Mul", value, self._flow.inputs.find_channel_divisor_input(tensor), nodes)

    def _prepare_test_tensor(self, tensor: str, test_value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the test tensor in the form of the reference tensor in `ReferenceSums`."""
        unpadded = self._set_padding_to_zero(tensor, self._align_size_with_reference(tensor, test_value, nodes), nodes)
        return self._set_masked_values_to_zero(tensor, unpadded, nodes)

    def _get_reference_sums(self, tensor: str) -> ReferenceSums:
        if tensor not in self._reference_sums:
            nodes = self._emitter.nodes
            unpadded = self._set_padding_to_zero(tensor, self._emitter.values[tensor], nodes)
            counted = self._set_masked_values_to_zero(tensor, unpadded, nodes)
            squares = self._emit_reduction("ReduceSumSquare", counted, nodes)
            size = self._emitter.add_operator(nodes, "Size", [counted], "size")
            length = self._cast_to_float64(self._reshape_to_one_element(size, nodes), nodes)
            if tensor in self._presence_masks and self._present_share is not None:
                length = self._emitter.add_operator(nodes, "Mul", [length, self._present_share], "present")
                length = self._emitter.add_operator(nodes, "Round", [length], "length")
            largest = self._emit_max_magnitude(counted, nodes)
            counts = self._emitter.add_operator(
                nodes, "Concat", [length, self._count_values_beyond_fp16(counted, largest)], "counts", axis=0
            )
            self._reference_sums[tensor] = ReferenceSums(squares, largest, counted, counts)
        return self._reference_sums[tensor]

    def _count_values_beyond_fp16(self, tensor: ir.Value, max_magnitude: ir.Value) -> ir.Value:
        """Returns the numbers of values that are too large and too small for FP16, float64 ``(2,)``; zeros unless
        requested.
        """
        emitter = self._emitter
        nodes: Nodes = []
        size = emitter.add_operator(nodes, "Abs", [tensor], "size")
        below_fp16 = emitter.add_operator(
            nodes,
            "And",
            [
                emitter.add_operator(nodes, "Less", [size, FP16_MIN], "small"),
                emitter.add_operator(nodes, "Greater", [size, 0.0], "nonzero"),
            ],
            "under",
        )
        over = self._count_magnitudes_above_fp16(size, max_magnitude, nodes)
        counts = emitter.add_operator(
            nodes, "Concat", [over, self._count_true_flags(below_fp16, nodes)], "counts", axis=0
        )
        return self._zero_counts_unless_requested(self._cast_to_float64(counts, nodes), nodes)

    def _count_magnitudes_above_fp16(self, magnitudes: ir.Value, max_magnitude: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the number of magnitudes that are too large for FP16, without infinities, int32 ``(1,)``."""
        emitter = self._emitter
        over = emitter.add_operator(
            nodes,
            "And",
            [
                emitter.add_operator(nodes, "Greater", [magnitudes, FP16_MAX], "large"),
                emitter.add_operator(nodes, "Less", [magnitudes, np.inf], "finite"),
            ],
            "over",
        )
        return self._count_true_flags(over, nodes)

    def _count_true_flags(self, flags: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the number of true flags, int32 ``(1,)``."""
        ones = self._emitter.add_operator(nodes, "Cast", [flags], "flags", to=int(ir.DataType.INT32))
        return self._emit_reduction("ReduceSum", ones, nodes)

    def _set_masked_values_to_zero(self, tensor: str, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns a tensor with 0 for mask values, whose errors do not matter."""
        emitter = self._emitter
        if tensor not in emitter.network.masked_tensors:
            return value
        if tensor not in self._unmasked_flags:
            size = emitter.add_operator(emitter.nodes, "Abs", [emitter.values[tensor]], "size")
            self._unmasked_flags[tensor] = emitter.add_operator(emitter.nodes, "Less", [size, FP16_MAX], "kept")
        return emitter.add_operator(
            nodes,
            "Where",
            [self._unmasked_flags[tensor], value, 0.0],
            "unmasked",
            like=value,
        )

    def _align_size_with_reference(self, tensor: str, test_value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the test tensor cut, or extended with zeros, to the size of the reference.

        Only tensors whose size depends on computed values are changed, such as the result of a NonZero.
        """
        emitter = self._emitter
        if tensor not in emitter.network.value_sized_tensors:
            return test_value
        reference = emitter.values[tensor]
        size = emitter.add_operator(
            nodes, "Reshape", [emitter.add_operator(nodes, "Size", [reference], "size"), [-1]], "size"
        )
        zeros = emitter.add_operator(
            nodes, "CastLike", [emitter.add_operator(nodes, "ConstantOfShape", [size], "zeros"), test_value], "zeros"
        )
        longer = emitter.add_operator(
            nodes,
            "Concat",
            [emitter.add_operator(nodes, "Reshape", [test_value, [-1]], "flat"), zeros],
            "longer",
            axis=0,
        )
        cut = emitter.add_operator(nodes, "Slice", [longer, [0], size], "cut")
        shape = emitter.add_operator(nodes, "Shape", [reference], "shape")
        return emitter.add_operator(nodes, "Reshape", [cut, shape], "aligned", like=reference)

    def _set_padding_to_zero(self, tensor: str, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the tensor with 0 for padding elements."""
        if tensor not in self._presence_masks:
            return value
        return self._emitter.add_operator(
            nodes,
            "Where",
            [self._presence_masks[tensor], value, 0.0],
            "unpadded",
            like=value,
        )

    # -- columns ------------------------------------------------------------------------------------------------

    def _cast_to_float64(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emitter.add_operator(nodes, "Cast", [value], "double", to=int(ir.DataType.DOUBLE))

    def _emit_reduction(self, operator: str, tensor: ir.Value, nodes: Nodes) -> ir.Value:
        """Emits the reduction of a whole tensor, with the shape ``(1,)``.

        The tensor is not flattened before, because on a GPU a reduction over one long axis is slower than reductions
        over one axis after the other.
        """
        result = self._emitter.add_operator(nodes, operator, [tensor], operator.lower(), keepdims=0)
        return self._reshape_to_one_element(result, nodes)

    def _reshape_to_one_element(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emitter.add_operator(nodes, "Reshape", [value, [1]], "single")

    def _emit_max_magnitude(self, tensor: ir.Value, nodes: Nodes) -> ir.Value:
        negated_minimum = self._emitter.add_operator(
            nodes, "Neg", [self._emit_reduction("ReduceMin", tensor, nodes)], "negated"
        )
        return self._emitter.add_operator(
            nodes, "Max", [self._emit_reduction("ReduceMax", tensor, nodes), negated_minimum], "largest"
        )

    def _arrange_test_columns(self, columns: Mapping[str, ir.Value]) -> list[ir.Value]:
        """Returns the columns that depend on the test branch in the order of `ERROR_SUM_COLUMNS`; zeros for absent
        columns.
        """
        zeros = self._emitter.get_array_constant(np.zeros(1, self._column_type), "none")
        return [columns.get(name) or zeros for name in ERROR_SUM_COLUMNS[:_TEST_COLUMN_COUNT]]

    def _concatenate_exact_columns(self, reference: ReferenceSums, nodes: Nodes) -> ir.Value:
        return self._concatenate_columns(
            {"ref2": reference.sum_of_squares, "test2": reference.sum_of_squares, "ref_max": reference.max_magnitude},
            nodes,
        )

    def _concatenate_columns(self, columns: Mapping[str, ir.Value], nodes: Nodes) -> ir.Value:
        """Returns a row of the named float32 columns, converted to float64."""
        row = self._cast_to_float64(
            self._emitter.add_operator(nodes, "Concat", self._arrange_test_columns(columns), "columns", axis=0), nodes
        )
        return self._set_row_type_and_shape(row)

    def _set_row_type_and_shape(self, row: ir.Value) -> ir.Value:
        row.type, row.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([_TEST_COLUMN_COUNT])
        return row


class ControlFlowErrorSumsEmitter(ErrorSumsEmitter):
    """An emitter of error sums with If nodes. Rows are computed in float32 if float32 can represent them.

    Args:
        counting_gate: The gate for counting values that FP16 cannot represent.
        expects_finite_sums: True to compute all rows in float32. They are not finite if float32 cannot represent the sums.
    """

    _flow: ControlFlowEmitter

    def __init__(
        self,
        flow: ControlFlowEmitter,
        counting_gate: ir.Value,
        presence_masks: Mapping[str, ir.Value],
        present_share: ir.Value | None,
        expects_finite_sums: bool = False,
    ) -> None:
        super().__init__(flow, presence_masks, present_share)
        self._counting_gate = counting_gate
        self._expects_finite_sums = expects_finite_sums

    # -- rows ---------------------------------------------------------------------------------------------------

    def _emit_isolated_error_row(self, group: FusionGroup) -> ir.Value:
        emitter, flow, tail = self._emitter, self._flow, group.final_tensor
        reference = self._get_reference_sums(tail)
        exact: Nodes = []
        row = self._concatenate_exact_columns(reference, exact)
        if not self._expects_finite_sums:
            fast, exact = exact, []
            finite = self._emit_comparison(reference.sum_of_squares, _MAX_FLOAT32, "finite", exact)
            row = self._emit_if(finite, (row, fast), self._emit_float64_row(reference.tensor, reference.tensor), exact)
        gates = flow.inputs.gates.get(group.name)
        if gates is None:
            emitter.nodes.extend(exact)
            return row

        def prepare_inputs(boundary_type: Precision) -> BranchTensors:
            limit = MASK_LIMITS.get(boundary_type)
            return self._prepare_reference_inputs(
                group,
                lambda value, tensor: value if limit is None else emitter.clamp(value, limit, emitter.nodes),
            )

        isolated_value, nodes = flow.emit_reduced_precision_group(
            group,
            {boundary_type: prepare_inputs(boundary_type) for boundary_type in flow.inputs.operand_types[group.name]},
        )
        measured = self._emit_error_sums_row(tail, self._restore_channels(tail, isolated_value, nodes), nodes)
        return self._emit_if(gates["fp32"], (row, exact), (measured, nodes), emitter.nodes)

    def _emit_error_sums_row(self, tensor: str, test_value: ir.Value, nodes: Nodes) -> ir.Value:
        """Implements `ErrorSumsEmitter._emit_error_sums_row` with sums in float32 if these are finite.

        If a square exceeds float32, or a value is not finite, all sums are computed in float64, and NaN and Inf are
        counted.
        """
        emitter = self._emitter
        squares, largest, counted, _ = self._get_reference_sums(tensor)
        test, reference = (  # flat, because ONNX Runtime keeps more tensors of several axes at the same time
            emitter.add_operator(nodes, "Reshape", [value, [-1]], "flat")
            for value in (self._prepare_test_tensor(tensor, test_value, nodes), counted)
        )
        difference = emitter.add_operator(nodes, "Sub", [test, reference], "difference")
        columns = {
            "diff2": self._emit_reduction("ReduceSumSquare", difference, nodes),
            "ref2": squares,
            "test2": self._emit_reduction("ReduceSumSquare", test, nodes),
            "diff1": self._emit_reduction("ReduceL1", difference, nodes),
            "diff_max": self._emit_max_magnitude(difference, nodes),
            "ref_max": largest,
        }
        if self._expects_finite_sums:
            return self._concatenate_columns(columns, nodes)
        probe = emitter.add_operator(
            nodes,
            "Add",
            [emitter.add_operator(nodes, "Add", [columns["diff2"], columns["test2"]], "probe"), squares],
            "probe",
        )
        finite = self._emit_comparison(probe, _MAX_FLOAT32, "finite", nodes)
        fast: Nodes = []
        row = self._concatenate_columns(columns, fast)
        return self._emit_if(finite, (row, fast), self._emit_float64_row(test, reference), nodes)

    def _emit_float64_row(self, test_value: ir.Value, reference_value: ir.Value) -> tuple[ir.Value, Nodes]:
        """Returns a row in float64 and the nodes that compute the row. NaN and Inf of the test tensor alone are counted
        and excluded."""
        nodes: Nodes = []

        def add_operator(operator: str, *inputs: ir.Value) -> ir.Value:
            return self._emitter.add_operator(nodes, operator, inputs, operator.lower())

        def count_values_only_in_test(operator: str) -> ir.Value:
            flags = add_operator(
                "And", add_operator(operator, test_value), add_operator("Not", add_operator(operator, reference_value))
            )
            return self._emit_reduction("ReduceSum", self._cast_to_float64(flags, nodes), nodes)

        wide, expected = self._cast_to_float64(test_value, nodes), self._cast_to_float64(reference_value, nodes)
        zero = self._emitter.get_array_constant(np.zeros((), np.float64), "zero64")
        equal = add_operator("Equal", wide, expected)
        difference = add_operator("Where", equal, zero, add_operator("Sub", wide, expected))
        absolute = add_operator("Abs", difference)
        both = add_operator("And", equal, add_operator("IsInf", expected))  # masks: neither signal nor noise
        signal, test_values = (add_operator("Where", both, zero, float64_tensor) for float64_tensor in (expected, wide))
        return self._emitter.add_operator(
            nodes,
            "Concat",
            self._arrange_test_columns(
                {
                    "diff2": self._emit_reduction("ReduceSumSquare", difference, nodes),
                    "ref2": self._emit_reduction("ReduceSumSquare", signal, nodes),
                    "test2": self._emit_reduction("ReduceSumSquare", test_values, nodes),
                    "diff1": self._emit_reduction("ReduceSum", absolute, nodes),
                    "diff_max": self._emit_reduction("ReduceMax", absolute, nodes),
                    "ref_max": self._emit_reduction("ReduceMax", add_operator("Abs", expected), nodes),
                    "nan": count_values_only_in_test("IsNaN"),
                    "inf": count_values_only_in_test("IsInf"),
                }
            ),
            "row",
            axis=0,
        ), nodes

    def _count_magnitudes_above_fp16(self, magnitudes: ir.Value, max_magnitude: ir.Value, nodes: Nodes) -> ir.Value:
        """Implements `ErrorSumsEmitter._count_magnitudes_above_fp16`. It counts only if the largest magnitude is too
        large or NaN.
        """
        counting: Nodes = []
        over = super()._count_magnitudes_above_fp16(magnitudes, max_magnitude, counting)
        within = self._emit_comparison(max_magnitude, _NEXT_ABOVE_FP16_MAX, "within", nodes)
        return self._emit_if(
            within, self._emit_zeros(np.zeros(1, np.int32)), (over, counting), nodes, ir.DataType.INT32, 1
        )

    def _zero_counts_unless_requested(self, counts: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emit_if(
            self._counting_gate, (counts, nodes), self._emit_zeros(np.zeros(2)), self._emitter.nodes, size=2
        )

    # -- choices ------------------------------------------------------------------------------------------------

    def _emit_comparison(self, value: ir.Value, bound: float, name: str, nodes: Nodes) -> ir.Value:
        return self._emitter.add_operator(nodes, "Less", [value, bound], name)

    def _emit_zeros(self, zeros: np.ndarray) -> tuple[ir.Value, Nodes]:
        nodes: Nodes = []
        constant = self._emitter.get_array_constant(zeros, f"none/{zeros.dtype}/{zeros.size}")
        return self._emitter.add_operator(nodes, "Identity", [constant], "none"), nodes

    def _emit_if(
        self,
        condition: ir.Value,
        then_branch: tuple[ir.Value, Nodes],
        else_branch: tuple[ir.Value, Nodes],
        nodes: Nodes,
        dtype: ir.DataType = ir.DataType.DOUBLE,
        size: int = _TEST_COLUMN_COUNT,
    ) -> ir.Value:
        """Emits an ``If`` that returns one of two values of the same type and size, by default rows.

        Args:
            then_branch: The value if the condition is true, with the nodes that compute it.
        """
        emitter, graphs = self._emitter, []
        for value, branch_nodes in (then_branch, else_branch):
            value.type, value.shape = ir.TensorType(dtype), ir.Shape([size])
            graphs.append(emitter.build_graph([value], branch_nodes, "row"))
        (result,) = emitter.add_if_node(nodes, condition, graphs[0], graphs[1], "if/row")
        result.name = emitter.make_unique_name("row")
        result.type, result.shape = ir.TensorType(dtype), ir.Shape([size])
        return result


class DataFlowErrorSumsEmitter(ErrorSumsEmitter):
    """An emitter of error sums in float64 without If nodes. Values that FP16 cannot represent are always counted."""

    _flow: DataFlowEmitter
    _column_type = np.float64

    def _emit_isolated_error_row(self, group: FusionGroup) -> ir.Value:
        """Implements `ErrorSumsEmitter._emit_isolated_error_row`. The errors are 0 if no gate of the group is true."""
        emitter, flow, nodes, tail = self._emitter, self._flow, self._emitter.nodes, group.final_tensor
        exact = self._concatenate_exact_columns(self._get_reference_sums(tail), nodes)
        gate_by_kind = flow.inputs.gates.get(group.name, {})
        gates = [gate for kind, gate in gate_by_kind.items() if kind != "operator"]
        if not gates:
            return exact

        def clamp_mask(value: ir.Value, tensor: str) -> ir.Value:
            for boundary_type in HALF_PRECISIONS:
                if boundary_type in flow.inputs.operand_types[group.name]:
                    clamped = emitter.clamp(value, MASK_LIMITS[boundary_type], nodes)
                    value = flow.select_by_gate(gate_by_kind[boundary_type.value], clamped, value, tensor)
            return value

        # an emitter of its own, which does not reuse rounded values of the test branch
        isolated_value = DataFlowEmitter(emitter, flow.inputs).emit_group(
            group, self._prepare_reference_inputs(group, clamp_mask), (tail,)
        )[tail]
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
        return self._concatenate_columns(
            {
                "diff2": self._sum_squares(magnitudes, nodes),
                "ref2": squares,
                "test2": self._emit_reduction("ReduceSumSquare", test_tensor, nodes),
                "diff1": self._emit_reduction("ReduceSum", magnitudes, nodes),
                "diff_max": self._emit_maximum(magnitudes, nodes),
                "ref_max": largest,
            },
            nodes,
        )

    def _zero_counts_unless_requested(self, counts: ir.Value, nodes: Nodes) -> ir.Value:
        self._emitter.nodes.extend(nodes)
        return counts

    # -- columns ------------------------------------------------------------------------------------------------

    def _emit_reduction(self, operator: str, tensor: ir.Value, nodes: Nodes) -> ir.Value:
        if operator == "ReduceSumSquare":
            return self._sum_squares(self._cast_to_float64(tensor, nodes), nodes)
        return super()._emit_reduction(operator, tensor, nodes)

    def _sum_squares(self, float64_value: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emit_reduction(
            "ReduceSum", self._emitter.add_operator(nodes, "Mul", [float64_value, float64_value], "squares"), nodes
        )

    def _emit_max_magnitude(self, tensor: ir.Value, nodes: Nodes) -> ir.Value:
        size = self._emitter.add_operator(nodes, "Abs", [tensor], "size", like=tensor)
        return self._cast_to_float64(self._emit_maximum(size, nodes), nodes)

    def _emit_maximum(self, magnitudes: ir.Value, nodes: Nodes) -> ir.Value:
        value = magnitudes
        for axis in reversed(range(1, len(magnitudes.shape) if magnitudes.shape is not None else 0)):
            value = self._emitter.add_reduction(nodes, "ReduceMax", value, axis)
        return self._emit_reduction("ReduceMax", value, nodes)

    def _concatenate_columns(self, columns: Mapping[str, ir.Value], nodes: Nodes) -> ir.Value:
        return self._set_row_type_and_shape(
            self._emitter.add_operator(nodes, "Concat", self._arrange_test_columns(columns), "row", axis=0)
        )


SAMPLE_SUM_COLUMNS = ("diff2", "test2", "diff1", "diff_max")
"""The columns of each row: Σ(test-ref)², Σtest², Σ|test-ref| and the largest |test-ref|.

If values of the tensors are not finite, the columns are not finite either."""


@dataclass(frozen=True)
class ComparedTensor:
    """A tensor, or a part of one, that the graph compares with a reference input.

    Attributes:
        name: A unique name.
        tensor: The tensor, with at least one axis; the first axis is that of the samples.
        slices: The compared part: axis, first index, and index behind the last (None: to the end).
    """

    name: str
    tensor: str
    slices: tuple[tuple[int, int, int | None], ...] = ()


def _find_chunk_length(network: Network, compared_tensor: ComparedTensor) -> int:
    """Returns a divisor of the row length near its square root."""
    left_out_axes = {0, *(axis for axis, _, _ in compared_tensor.slices)}
    row_length = math.prod(
        max(1, size)
        for axis, size in enumerate(network.shape(compared_tensor.tensor) or ())
        if axis not in left_out_axes and isinstance(size, int)
    )
    return max(size for size in range(1, math.isqrt(row_length) + 1) if row_length % size == 0)


def emit_error_sums_per_sample(
    emitter: NodeEmitter, compared_tensor: ComparedTensor, test_value: ir.Value, reference_value: ir.Value
) -> ir.Value:
    """Emits the error sums of a compared tensor for each sample, float64 ``(rows, len(SAMPLE_SUM_COLUMNS))``.

    Args:
        reference_value: The reference, with the shape of the compared part.
    """
    nodes = emitter.nodes

    def add_operator(operator: str, *inputs: Operand, **attributes: Any) -> ir.Value:
        return emitter.add_operator(nodes, operator, inputs, operator.lower(), **attributes)

    def reshape_to_rows(value: ir.Value) -> ir.Value:
        wide = add_operator("Cast", value, to=int(ir.DataType.DOUBLE))
        return add_operator("Reshape", wide, [0, -1])

    def emit_row_maximum(value: ir.Value) -> ir.Value:
        """Emits the maximum of each row in two steps, because the CUDA provider reduces each row in a single thread
        block."""
        part = _find_chunk_length(emitter.network, compared_tensor)
        split = add_operator("Reshape", value, [0, -1, part])
        row_maximum = emitter.add_reduction(nodes, "ReduceMax", emitter.add_reduction(nodes, "ReduceMax", split, 2), 1)
        return add_operator("Reshape", row_maximum, [-1, 1])

    for axis, start, stop in compared_tensor.slices:
        end = np.iinfo(np.int64).max if stop is None else stop
        test_value = add_operator("Slice", test_value, [start], [end], [axis])
    test_rows = reshape_to_rows(test_value)
    difference = add_operator("Sub", test_rows, reshape_to_rows(reference_value))
    size = add_operator("Abs", difference)
    columns = {
        name: add_operator("ReduceSum", add_operator("Mul", row_values, row_values), [1], keepdims=1)
        for name, row_values in (("diff2", difference), ("test2", test_rows))
    }
    columns |= {"diff1": add_operator("ReduceSum", size, [1], keepdims=1), "diff_max": emit_row_maximum(size)}
    result = add_operator("Concat", *(columns[name] for name in SAMPLE_SUM_COLUMNS), axis=1)
    result.type, result.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([None, len(SAMPLE_SUM_COLUMNS)])
    return result
