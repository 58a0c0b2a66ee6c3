"""Sums over pairs of tensors, taken inside the graph, so that no activation leaves the session."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.gated.control_flow import ControlFlow
from trt_tui.core.lowering.gated.emitter import BranchTensors, Emitter, Nodes
from trt_tui.core.lowering.rules import MASKS
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import FP16_LEAST, FP16_MAX, Precision

SUMS = ("diff2", "ref2", "test2", "diff1", "diff_max", "ref_max", "nan", "inf", "count", "fp16_over", "fp16_under")
"""What the reductions yield for each pair of tensors, in this order: sums of squares of difference, reference and
test, sum and maximum of the absolute difference, maximum of the absolute reference, counts of NaN and of Inf that only
test has, number of elements, and, where a run asks for them, how many values of the reference FP16 cannot hold: those
beyond its largest, infinities aside, and those below its least magnitude (both 0 where it does not ask). Sums are
accurate to 1e-4 of their value up to a million elements, to 2e-3 at ten."""

_MEASURED = SUMS.index("count")
"""How many columns of a row depend on the test."""

_FINITE = float(np.finfo(np.float32).max)
_ABOVE_FP16 = float(np.nextafter(np.float32(FP16_MAX), np.float32(np.inf)))


class Reference(NamedTuple):
    """What the rows of a tensor share: its sum of squares, its largest magnitude, the tensor as one row, and the last
    columns of `SUMS`: its length and what FP16 cannot hold, float64 ``(3,)``."""

    squares: ir.Value
    largest: ir.Value
    flat: ir.Value
    counts: ir.Value


class Rows(ABC):
    """Emits the sums of groups' tails against the reference; how a row is taken its kinds decide.

    Args:
        present: By tensor which of its elements count (bool, broadcast to it); all of those that are not named.
        share: How many do, of one: float64.
    """

    def __init__(self, emitter: Emitter, present: Mapping[str, ir.Value], share: ir.Value | None) -> None:
        self._emitter = emitter
        self._present, self._share = present, share
        self._references: dict[str, Reference] = {}
        self._kept: dict[str, ir.Value] = {}

    def tables(self, groups: Sequence[Group], test: Mapping[str, ir.Value], kinds: Sequence[str]) -> list[ir.Value]:
        """The sums of all groups, one table ``(len(groups), len(SUMS))`` for each kind.

        ONNX Runtime computes the inputs of an operator one after the other, the one whose node stands last first. So
        rows stand last to first: a group's tensors then live until its row is there, and no longer.

        Args:
            test: The test branch's tensors by the network's names.
            kinds: "accumulated" takes the tails from the test branch; "isolated" computes each from the reference.
        """
        emitter, nodes = self._emitter, self._emitter.nodes
        rows: Nodes = []
        for group in groups:
            counts = self._reference(group.tail).counts
            for kind in kinds:
                row = self._isolated(group) if kind == "isolated" else self._row(group.tail, test[group.tail], nodes)
                emitter.add(rows, "Concat", [row, counts], f"row/{kind}", axis=0)
        columns = [node.outputs[0] for node in rows]
        nodes.extend(reversed(rows))
        joined = emitter.add(nodes, "Concat", columns, "rows", axis=0)
        shape = emitter.array(np.array([-1, len(kinds), len(SUMS)], np.int64), f"shape/{len(kinds)}")
        table = emitter.add(nodes, "Reshape", [joined, shape], "table")
        results = []
        for index, kind in enumerate(kinds):
            which = emitter.array(np.array(index, np.int64), f"index/{index}")
            result = emitter.add(nodes, "Gather", [table, which], f"sums/{kind}", axis=1)
            result.name = f"sums/{kind}"
            result.dtype, result.shape = ir.DataType.DOUBLE, ir.Shape([len(groups), len(SUMS)])
            results.append(result)
        return results

    @abstractmethod
    def _isolated(self, group: Group) -> ir.Value:
        """The row of a group whose inputs come from the reference; no error where it runs in FP32."""

    @abstractmethod
    def _row(self, tensor: str, test: ir.Value, nodes: Nodes) -> ir.Value:
        """The row of `SUMS`, without the count, of a tensor of the reference and its counterpart: float64 ``(8,)``."""

    @abstractmethod
    def _counted(self, counts: ir.Value, nodes: Nodes) -> ir.Value:
        """The counts that nodes compute, where they are asked for."""

    # -- what the rows of a tensor share ------------------------------------------------------------------------

    def _reference(self, tensor: str) -> Reference:
        if tensor not in self._references:
            nodes = self._emitter.nodes
            whole = self._unpadded(tensor, self._emitter.values[tensor], nodes)
            flat = self._unmasked(tensor, self._flat(whole, nodes), nodes)
            squares = self._reduce("ReduceSumSquare", flat, nodes)
            length = self._double(self._length(flat, nodes), nodes)
            if tensor in self._present and self._share is not None:
                length = self._emitter.add(nodes, "Mul", [length, self._share], "present")
                length = self._emitter.add(nodes, "Round", [length], "length")
            largest = self._largest(flat, nodes)
            counts = self._emitter.add(nodes, "Concat", [length, self._fp16_counts(flat, largest)], "counts", axis=0)
            self._references[tensor] = Reference(squares, largest, flat, counts)
        return self._references[tensor]

    def _fp16_counts(self, flat: ir.Value, largest: ir.Value) -> ir.Value:
        """How many values FP16 cannot hold, too large and too small ones: float64 ``(2,)``; zeros unless asked for."""
        emitter = self._emitter
        nodes: Nodes = []
        size = emitter.add(nodes, "Abs", [flat], "size")
        under = emitter.add(nodes, "And", [
            emitter.add(nodes, "Less", [size, emitter.scalar(FP16_LEAST)], "small"),
            emitter.add(nodes, "Greater", [size, emitter.scalar(0.0)], "nonzero")], "under")
        over = self._over(size, largest, nodes)
        counts = emitter.add(nodes, "Concat", [over, self._number_of(under, nodes)], "counts", axis=0)
        return self._counted(self._double(counts, nodes), nodes)

    def _over(self, size: ir.Value, largest: ir.Value, nodes: Nodes) -> ir.Value:
        """How many magnitudes are too large for FP16, infinities aside: int32 ``(1,)``."""
        emitter = self._emitter
        over = emitter.add(nodes, "And", [
            emitter.add(nodes, "Greater", [size, emitter.scalar(FP16_MAX)], "large"),
            emitter.add(nodes, "Less", [size, emitter.scalar(np.inf)], "finite")], "over")
        return self._number_of(over, nodes)

    def _number_of(self, flags: ir.Value, nodes: Nodes) -> ir.Value:
        """How many flags are set: int32 ``(1,)``."""
        ones = self._emitter.add(nodes, "Cast", [flags], "flags", to=int(ir.DataType.INT32))
        return self._reduce("ReduceSum", ones, nodes)

    def _unmasked(self, tensor: str, flat: ir.Value, nodes: Nodes) -> ir.Value:
        """The flat tensor without what a mask hides: those elements say nothing about precision."""
        emitter = self._emitter
        if tensor not in emitter.network.masked:
            return flat
        if tensor not in self._kept:
            reference = self._flat(emitter.values[tensor], emitter.nodes)
            size = emitter.add(emitter.nodes, "Abs", [reference], "size")
            self._kept[tensor] = emitter.add(emitter.nodes, "Less", [size, emitter.scalar(FP16_MAX)], "kept")
        return self._like(flat, emitter.add(
            nodes, "Where", [self._kept[tensor], flat, emitter.scalar(0.0)], "unmasked"))

    def _aligned(self, tensor: str, test: ir.Value, nodes: Nodes) -> ir.Value:
        """The test's tensor with as many values as the reference's: what a selection left out counts as 0."""
        emitter = self._emitter
        if tensor not in emitter.network.selected:
            return test
        reference, start = emitter.values[tensor], emitter.array(np.zeros(1, np.int64), "start")
        flat = emitter.array(np.array([-1], np.int64), "flat")
        size = emitter.add(nodes, "Reshape", [emitter.add(nodes, "Size", [reference], "size"), flat], "size")
        zeros = emitter.add(nodes, "CastLike", [emitter.add(nodes, "ConstantOfShape", [size], "zeros"), test], "zeros")
        longer = emitter.add(nodes, "Concat", [emitter.add(nodes, "Reshape", [test, flat], "flat"), zeros], "longer",
                             axis=0)
        cut = emitter.add(nodes, "Slice", [longer, start, size], "cut")
        shape = emitter.add(nodes, "Shape", [reference], "shape")
        return self._like(reference, emitter.add(nodes, "Reshape", [cut, shape], "aligned"))

    def _unpadded(self, tensor: str, value: ir.Value, nodes: Nodes) -> ir.Value:
        """The tensor with 0 where padding is, whatever that holds."""
        if tensor not in self._present:
            return value
        return self._like(value, self._emitter.add(
            nodes, "Where", [self._present[tensor], value, self._emitter.scalar(0.0)], "unpadded"))

    def _like(self, value: ir.Value, other: ir.Value) -> ir.Value:
        """The other with the type and shape of a value."""
        other.type, other.shape = value.type, value.shape
        return other

    # -- pieces -------------------------------------------------------------------------------------------------

    def _none(self) -> ir.Value:
        return self._emitter.array(np.zeros(1, np.float32), "none")

    def _double(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emitter.add(nodes, "Cast", [value], "double", to=int(ir.DataType.DOUBLE))

    def _flat(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emitter.add(nodes, "Reshape", [value, self._emitter.array(np.array([-1], np.int64), "flat")],
                                 "flat")

    def _length(self, flat: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emitter.add(nodes, "Shape", [flat], "shape")

    def _reduce(self, operator: str, flat: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emitter.add(nodes, operator, [flat], operator.lower(), keepdims=1)

    def _largest(self, flat: ir.Value, nodes: Nodes) -> ir.Value:
        least = self._emitter.add(nodes, "Neg", [self._reduce("ReduceMin", flat, nodes)], "negated")
        return self._emitter.add(nodes, "Max", [self._reduce("ReduceMax", flat, nodes), least], "largest")

    def _joined(self, columns: Sequence[ir.Value], nodes: Nodes) -> ir.Value:
        """A row of float32 columns, in float64."""
        row = self._double(self._emitter.add(nodes, "Concat", columns, "columns", axis=0), nodes)
        self._declare(row)
        return row

    def _declare(self, row: ir.Value) -> None:
        if row.name is None:
            row.name = self._emitter.name("row")
        row.type, row.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([_MEASURED])


class SumsEmitter(Rows):
    """Takes rows by control flow: in float32 where that holds them.

    Args:
        counting: The gate for counting what FP16 cannot hold.
        present: See `Rows`, as ``share``.
    """

    def __init__(self, emitter: Emitter, flow: ControlFlow, counting: ir.Value, present: Mapping[str, ir.Value],
                 share: ir.Value | None) -> None:
        super().__init__(emitter, present, share)
        self._flow = flow
        self._counting = counting

    # -- rows ---------------------------------------------------------------------------------------------------

    def _isolated(self, group: Group) -> ir.Value:
        """The row of a group whose inputs come from the reference; no error where it runs in FP32."""
        emitter, tail = self._emitter, group.tail
        exact: Nodes = []
        reference = self._reference(tail)
        none = self._none()
        fast: Nodes = []
        row = self._joined([none, reference.squares, reference.squares, none, none, reference.largest, none, none],
                           fast)
        finite = emitter.add(exact, "Less", [reference.squares, emitter.scalar(_FINITE)], "finite")
        row = self._choice(finite, emitter.graph([row], fast, "fast"), self._careful(reference.flat, reference.flat),
                           exact)
        gates = self._flow.inputs.gates.get(group.name)
        if gates is None:
            emitter.nodes.extend(exact)
            return row
        scopes = {around: self._as_held(group, around) for around in self._flow.inputs.forms[group.name]}
        alone, nodes = self._flow.below_fp32(group, scopes)
        alone = self._flow.rounding.scaled("Mul", alone, self._flow.inputs.factors.get(tail), nodes)
        measured = self._row(tail, alone, nodes)
        return self._choice(gates["fp32"], emitter.graph([row], exact, "exact"),
                            emitter.graph([measured], nodes, "alone"), emitter.nodes)

    def _as_held(self, group: Group, around: Precision) -> Mapping[str, ir.Value]:
        """The reference's tensors as the target holds those that the group reads: masks clamped, channels scaled."""
        emitter = self._emitter
        masked = [tensor for tensor in group.inputs if tensor in emitter.network.masked]
        limit, factors = MASKS.get(around), self._flow.inputs.factors
        divided = [tensor for tensor in group.inputs if tensor in factors]
        if limit is None or not masked:
            limit, masked = 0.0, []
        if not masked and not divided:
            return emitter.values
        scope = BranchTensors(emitter.values)
        for tensor in divided:
            scope[tensor] = self._flow.rounding.scaled("Div", emitter.values[tensor], factors[tensor], emitter.nodes)
        for tensor in masked:
            scope[tensor] = self._flow.rounding.clamped(emitter.values[tensor], limit, emitter.nodes)
        return scope

    def _row(self, tensor: str, test: ir.Value, nodes: Nodes) -> ir.Value:
        """The row of `SUMS`, without the count, of a tensor of the reference and its counterpart: float64 ``(8,)``.

        Sums are taken in float32. Where squares of large numbers (masks) are beyond it, those are taken in float64;
        where the difference is not finite either, everything is, and NaN and Inf are counted.
        """
        emitter = self._emitter
        squares, largest, reference, _ = self._reference(tensor)
        whole = self._unpadded(tensor, self._aligned(tensor, test, nodes), nodes)
        flat = self._unmasked(tensor, self._flat(whole, nodes), nodes)
        difference = emitter.add(nodes, "Sub", [flat, reference], "difference")
        diff2 = self._reduce("ReduceSumSquare", difference, nodes)
        test2 = self._reduce("ReduceSumSquare", flat, nodes)
        diff1 = self._reduce("ReduceL1", difference, nodes)
        diff_max = self._largest(difference, nodes)
        probe = emitter.add(nodes, "Add", [emitter.add(nodes, "Add", [diff2, test2], "probe"), squares], "probe")
        finite = emitter.add(nodes, "Less", [probe, emitter.scalar(_FINITE)], "finite")
        none = self._none()
        fast: Nodes = []
        row = self._joined([diff2, squares, test2, diff1, diff_max, largest, none, none], fast)
        wide: Nodes = []
        two = [self._reduce("ReduceSumSquare", self._double(value, wide), wide) for value in (reference, flat)]
        wide_row = emitter.add(wide, "Concat", [
            self._double(diff2, wide), *two,
            self._double(emitter.add(wide, "Concat", [diff1, diff_max, largest, none, none], "rest", axis=0), wide),
        ], "row", axis=0)
        self._declare(wide_row)
        slow: Nodes = []
        agrees = emitter.add(slow, "Less", [diff2, emitter.scalar(_FINITE)], "agrees")
        slow_row = self._choice(agrees, emitter.graph([wide_row], wide, "wide"),
                                self._careful(flat, reference), slow)
        return self._choice(finite, emitter.graph([row], fast, "fast"), emitter.graph([slow_row], slow, "slow"), nodes)

    def _careful(self, test: ir.Value, reference: ir.Value) -> ir.Graph:
        """The row in float64, NaN and Inf that only the test has left out of the sums and counted."""
        nodes: Nodes = []

        def add(operator: str, *inputs: ir.Value) -> ir.Value:
            return self._emitter.add(nodes, operator, inputs, operator.lower())

        def only_in_test(operator: str) -> ir.Value:
            flags = add("And", add(operator, test), add("Not", add(operator, reference)))
            return self._reduce("ReduceSum", self._double(flags, nodes), nodes)

        wide, expected = self._double(test, nodes), self._double(reference, nodes)
        zero = self._emitter.array(np.zeros((), np.float64), "zero64")
        equal = add("Equal", wide, expected)
        difference = add("Where", equal, zero, add("Sub", wide, expected))
        absolute = add("Abs", difference)
        both = add("And", equal, add("IsInf", expected))  # as in a mask: neither signal nor noise
        signal, found = (add("Where", both, zero, one) for one in (expected, wide))
        row = self._emitter.add(nodes, "Concat", [
            self._reduce("ReduceSumSquare", difference, nodes), self._reduce("ReduceSumSquare", signal, nodes),
            self._reduce("ReduceSumSquare", found, nodes), self._reduce("ReduceSum", absolute, nodes),
            self._reduce("ReduceMax", absolute, nodes), self._reduce("ReduceMax", add("Abs", expected), nodes),
            only_in_test("IsNaN"), only_in_test("IsInf")], "row", axis=0)
        self._declare(row)
        return self._emitter.graph([row], nodes, "careful")

    def _over(self, size: ir.Value, largest: ir.Value, nodes: Nodes) -> ir.Value:
        """Counted where there may be any: where the largest magnitude is too large, or NaN and so not known."""
        emitter = self._emitter
        counting: Nodes = []
        uncounted: Nodes = []
        over = super()._over(size, largest, counting)
        none = emitter.add(uncounted, "Identity", [emitter.array(np.zeros(1, np.int32), "none32")], "none")
        for value in (over, none):
            value.type, value.shape = ir.TensorType(ir.DataType.INT32), ir.Shape([1])
        within = emitter.add(nodes, "Less", [largest, emitter.scalar(_ABOVE_FP16)], "within")
        beyond = emitter.add(nodes, "Not", [within], "beyond")
        found = emitter.choose(nodes, beyond, emitter.graph([over], counting, "over"),
                               emitter.graph([none], uncounted, "none"), "if/over")[0]
        found.name = emitter.name("if/over")
        found.type, found.shape = over.type, over.shape
        return found

    def _counted(self, counts: ir.Value, nodes: Nodes) -> ir.Value:
        """The counts where they are asked for, else zeros."""
        emitter = self._emitter
        uncounted: Nodes = []
        none = emitter.add(uncounted, "Identity", [emitter.array(np.zeros(2, np.float64), "none64")], "none")
        for value in (counts, none):
            value.type, value.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([2])
        found = emitter.choose(emitter.nodes, self._counting, emitter.graph([counts], nodes, "counted"),
                               emitter.graph([none], uncounted, "uncounted"), "if/counts")[0]
        found.name = emitter.name("if/counts")
        found.type, found.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([2])
        return found

    def _choice(self, condition: ir.Value, then: ir.Graph, otherwise: ir.Graph, nodes: Nodes) -> ir.Value:
        row = self._emitter.choose(nodes, condition, then, otherwise, "if/row")[0]
        self._declare(row)
        return row
