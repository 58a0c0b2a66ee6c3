"""Sums at the groups with no control flow: every row is taken in one way, and is not finite where a tensor is not."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.gated.data_flow import DataFlow
from trt_tui.core.lowering.gated.emitter import BranchTensors, Emitter, Nodes
from trt_tui.core.lowering.gated.sums import Rows
from trt_tui.core.lowering.rules import LOW_FLOATS, MASKS
from trt_tui.core.network.layers import Group


class DataSums(Rows):
    """Emits the sums of groups' tails against the reference, in float64, what FP16 cannot hold always counted.

    Tensors keep their shapes: on a GPU the maximum of a long row is slow, and that of one axis after the other is not.
    """

    def __init__(self, emitter: Emitter, flow: DataFlow, present: Mapping[str, ir.Value],
                 share: ir.Value | None) -> None:
        super().__init__(emitter, present, share)
        self._flow = flow

    def _isolated(self, group: Group) -> ir.Value:
        """The row of a group whose inputs come from the reference; no error where no gate of it is open."""
        emitter, nodes, flow = self._emitter, self._emitter.nodes, self._flow
        reference, none = self._reference(group.tail), self._none()
        exact = self._joined([none, reference.squares, reference.squares, none, none, reference.largest, none, none],
                             nodes)
        gates = [gate for kind, gate in flow.inputs.gates.get(group.name, {}).items() if kind != "operator"]
        if not gates:
            return exact
        own = DataFlow(emitter, flow.inputs, flow.rounding)  # it reads nothing of what the test branch has rounded
        alone = own.group(group, self._held_by(group), (group.tail,))[group.tail]
        alone = flow.rounding.scaled("Mul", alone, flow.inputs.factors.get(group.tail), nodes)
        lowered = gates[0]
        for gate in gates[1:]:
            lowered = emitter.add(nodes, "Or", [lowered, gate], "lowered")
        row = emitter.add(nodes, "Where", [lowered, self._row(group.tail, alone, nodes), exact], "row")
        self._declare(row)
        return row

    def _held_by(self, group: Group) -> Mapping[str, ir.Value]:
        """The reference's tensors as the target holds those that the group reads, as its gates say."""
        flow, emitter = self._flow, self._emitter
        scope = BranchTensors(emitter.values)
        for tensor in group.inputs:
            value = flow.rounding.scaled("Div", emitter.values[tensor], flow.inputs.factors.get(tensor), emitter.nodes)
            for around in LOW_FLOATS if tensor in emitter.network.masked else ():
                if around in flow.inputs.forms[group.name]:
                    clamped = flow.rounding.clamped(value, MASKS[around], emitter.nodes)
                    value = flow.chosen(flow.inputs.gates[group.name][around.value], clamped, value, tensor)
            scope[tensor] = value
        return scope

    def _row(self, tensor: str, test: ir.Value, nodes: Nodes) -> ir.Value:
        squares, largest, reference, _ = self._reference(tensor)
        whole = self._unpadded(tensor, self._aligned(tensor, test, nodes), nodes)
        found = self._unmasked(tensor, whole, nodes)
        difference = self._emitter.add(nodes, "Sub", [found, reference], "difference")
        size = self._emitter.add(nodes, "Abs", [self._double(difference, nodes)], "size")
        size.shape = reference.shape
        none = self._none()
        return self._joined([
            self._squares(size, nodes), squares, self._reduce("ReduceSumSquare", found, nodes),
            self._reduce("ReduceSum", size, nodes), self._maximum(size, nodes), largest, none, none], nodes)

    def _counted(self, counts: ir.Value, nodes: Nodes) -> ir.Value:
        self._emitter.nodes.extend(nodes)
        return counts

    # -- pieces -------------------------------------------------------------------------------------------------

    def _none(self) -> ir.Value:
        return self._emitter.array(np.zeros(1, np.float64), "none/double")

    def _flat(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        return value

    def _length(self, flat: ir.Value, nodes: Nodes) -> ir.Value:
        return self._single(self._emitter.add(nodes, "Size", [flat], "size"), nodes)

    def _reduce(self, operator: str, flat: ir.Value, nodes: Nodes) -> ir.Value:
        if operator == "ReduceSumSquare":
            return self._squares(self._double(flat, nodes), nodes)
        return self._single(self._emitter.add(nodes, operator, [flat], operator.lower(), keepdims=0), nodes)

    def _squares(self, wide: ir.Value, nodes: Nodes) -> ir.Value:
        return self._reduce("ReduceSum", self._emitter.add(nodes, "Mul", [wide, wide], "squares"), nodes)

    def _largest(self, flat: ir.Value, nodes: Nodes) -> ir.Value:
        size = self._like(flat, self._emitter.add(nodes, "Abs", [flat], "size"))
        return self._double(self._maximum(size, nodes), nodes)

    def _maximum(self, size: ir.Value, nodes: Nodes) -> ir.Value:
        value = size
        for axis in reversed(range(1, len(size.shape) if size.shape is not None else 0)):
            value = self._emitter.reduce(nodes, "ReduceMax", value, axis)
        return self._single(self._emitter.add(nodes, "ReduceMax", [value], "largest", keepdims=0), nodes)

    def _joined(self, columns: Sequence[ir.Value], nodes: Nodes) -> ir.Value:
        row = self._emitter.add(nodes, "Concat", columns, "row", axis=0)
        self._declare(row)
        return row

    def _single(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        return self._emitter.add(nodes, "Reshape", [value, self._emitter.array(np.array([1], np.int64), "single")],
                                 "single")
