"""A group as the file has it, in FP32 arithmetic: its own Q/DQ with their scales and zero points, its own types."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rules
from trt_tui.core.lowering.gated.emitter import BranchTensors, Emitter, Nodes
from trt_tui.core.lowering.gated.rounding import Rounding
from trt_tui.core.network.free import Norm
from trt_tui.core.network.given import Given
from trt_tui.core.network.layers import Group, Layer
from trt_tui.core.network.steps import LOW_FLOATS, Step


class Steps:
    """Emits what the file does to tensors; scales and zero points are constants of the graph."""

    def __init__(self, emitter: Emitter, rounding: Rounding) -> None:
        self.emitter = emitter
        self.rounding = rounding
        self._held: dict[Step, tuple[ir.Value, ir.Value]] = {}

    def emit(self, step: Step, value: ir.Value, nodes: Nodes) -> ir.Value:
        """What a step makes of a value: codes, or float32 with values of the step's type."""
        if step.operator == "cast":
            return self.rounded(value, step.dtype, nodes)
        if step.scale is None or step.zero is None:  # a run computes them
            return value
        if step not in self._held:
            number = len(self._held)
            self._held[step] = (self.emitter.array(step.scale, f"file/scale/{number}"),
                                self.emitter.array(step.zero, f"file/zero/{number}"))
        operator = "QuantizeLinear" if step.operator == "quantize" else "DequantizeLinear"
        attributes = {"axis": step.axis} if step.scale.ndim else {}
        if step.block:
            attributes["block_size"] = step.block
        result = self.emitter.add(nodes, operator, [value, *self._held[step]], "file", **attributes)
        return result if step.operator == "quantize" else self.rounded(result, step.dtype, nodes)

    def rounded(self, value: ir.Value, dtype: ir.DataType, nodes: Nodes) -> ir.Value:
        """A value rounded to a float type of the file; as it is where that is no lower one."""
        return self.rounding.rounded(value, LOW_FLOATS[dtype], nodes) if dtype in LOW_FLOATS else value


class GivenBranch:
    """The group as the file has it, as the body of an ``If`` that reads outer tensors.

    Args:
        scope: The tensors it reads, by the network's names.
    """

    def __init__(self, steps: Steps, given: Given, group: Group, scope: Mapping[str, ir.Value]) -> None:
        self._steps = steps
        self._network = steps.emitter.network
        self._given = given
        self._prepared: dict[str | Step, ir.Value] = {}
        self._made: set[str] = set()
        self._low: set[str] = set()  # tensors that have values of the file's type
        self.group = group
        self.norm: Norm | None = None
        self.local = BranchTensors(scope)
        self.nodes: Nodes = []

    def read(self, layer: Layer, index: int, tensor: str, value: ir.Value, follows: bool) -> ir.Value:
        """The tensor with the file's type, and what the file does to it before the layer reads it."""
        if tensor in self._network.constants:
            return self._constant(layer, index, value) if self._network.is_float(tensor) else value
        if not self._network.is_float(tensor):
            return value
        dtype = self._given.dtype(tensor)
        if tensor not in self._made and dtype in LOW_FLOATS:
            if tensor not in self._prepared:
                self._prepared[tensor] = self._steps.rounded(value, dtype, self.nodes)
            self._low.add(tensor)
            value = self._prepared[tensor]
        for step in self._given.chain(layer, index):
            if step not in self._prepared:
                self._prepared[step] = self._steps.emit(step, value, self.nodes)
            value = self._prepared[step]
        return value

    def computed(self, layer: Layer, node: ir.Node, typed: Sequence[str]) -> None:
        """Rounds a layer's results to the types that the file has them in."""
        self._made.update(tensor for tensor in layer.outputs if tensor)
        keeps = rules.keeps_precision(layer) and bool(typed) and self._low.issuperset(typed)
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if not tensor or not self._network.is_float(tensor) or self._given.dtype(tensor) not in LOW_FLOATS:
                continue
            if not keeps:
                self.local[tensor] = self._steps.rounded(output, self._given.dtype(tensor), self.nodes)
            self._low.add(tensor)

    def _constant(self, layer: Layer, index: int, value: ir.Value) -> ir.Value:
        array = self._given.constant(layer, index)
        if array is None or array.dtype != np.float32:
            return value
        return self._steps.emitter.array(array, f"file/{layer.name}/{index}")
