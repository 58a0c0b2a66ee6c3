"""A group as the file has it, in FP32 arithmetic: its own Q/DQ with their scales and zero points, its own types."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.emitter import BranchTensors, NodeEmitter, Nodes
from trt_tui.core.lowering.gated.rounding import RoundingEmitter
from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.qdq_steps import PRECISION_BY_HALF_TYPE, QdqStep
from trt_tui.core.network.source_model import SourceModel
from trt_tui.core.network.zero_cost_support import Normalisation


class QdqEmitter:
    """Emits what the file does to tensors; scales and zero points are constants of the graph."""

    def __init__(self, emitter: NodeEmitter, rounding: RoundingEmitter) -> None:
        self.emitter = emitter
        self.rounding = rounding
        self._step_constants: dict[QdqStep, tuple[ir.Value, ir.Value]] = {}

    def emit_qdq_step(self, step: QdqStep, value: ir.Value, nodes: Nodes) -> ir.Value:
        """What a step makes of a value: codes, or float32 with values of the step's type."""
        if step.operator == "cast":
            return self.round_to_type(value, step.dtype, nodes)
        if step.scale is None or step.zero_point is None:  # a run computes them
            return value
        if step not in self._step_constants:
            number = len(self._step_constants)
            self._step_constants[step] = (self.emitter.get_array_constant(step.scale, f"file/scale/{number}"),
                                          self.emitter.get_array_constant(step.zero_point, f"file/zero/{number}"))
        operator = "QuantizeLinear" if step.operator == "quantize" else "DequantizeLinear"
        attributes = {"axis": step.axis} if step.scale.ndim else {}
        if step.block_size:
            attributes["block_size"] = step.block_size
        result = self.emitter.add_operator(nodes, operator, [value, *self._step_constants[step]], "file", **attributes)
        return result if step.operator == "quantize" else self.round_to_type(result, step.dtype, nodes)

    def round_to_type(self, value: ir.Value, dtype: ir.DataType, nodes: Nodes) -> ir.Value:
        """A value rounded to a float type of the file; as it is where that is no lower one."""
        return self.rounding.round_to_precision(value, PRECISION_BY_HALF_TYPE[dtype],
                                                nodes) if dtype in PRECISION_BY_HALF_TYPE else value


class FilePrecisionBranch:
    """The group as the file has it, as the body of an ``If`` that reads outer tensors.

    Args:
        values_by_tensor: The tensors it reads, by the network's names.
    """

    def __init__(self, qdq_emitter: QdqEmitter, source_model: SourceModel, group: FusionGroup,
                 values_by_tensor: Mapping[str, ir.Value]) -> None:
        self._qdq_emitter = qdq_emitter
        self._network = qdq_emitter.emitter.network
        self._source_model = source_model
        self._prepared_values: dict[str | QdqStep, ir.Value] = {}
        self._produced_tensors: set[str] = set()
        self._half_tensors: set[str] = set()  # tensors that have values of the file's type
        self.group = group
        self.norm: Normalisation | None = None
        self.branch_tensors = BranchTensors(values_by_tensor)
        self.nodes: Nodes = []

    def convert_layer_input(self, layer: Layer, input_index: int, tensor: str, value: ir.Value,
                            has_compute_type: bool) -> ir.Value:
        """The tensor with the file's type, and what the file does to it before the layer reads it."""
        if tensor in self._network.constant_tensors:
            return self._replace_by_file_constant(layer, input_index,
                                                  value) if self._network.is_float(tensor) else value
        if not self._network.is_float(tensor):
            return value
        dtype = self._source_model.find_dtype(tensor)
        if tensor not in self._produced_tensors and dtype in PRECISION_BY_HALF_TYPE:
            if tensor not in self._prepared_values:
                self._prepared_values[tensor] = self._qdq_emitter.round_to_type(value, dtype, self.nodes)
            self._half_tensors.add(tensor)
            value = self._prepared_values[tensor]
        for step in self._source_model.input_conversion_steps(layer, input_index):
            if step not in self._prepared_values:
                self._prepared_values[step] = self._qdq_emitter.emit_qdq_step(step, value, self.nodes)
            value = self._prepared_values[step]
        return value

    def round_layer_results(self, layer: Layer, node: ir.Node, inputs_of_compute_type: Sequence[str]) -> None:
        """Rounds a layer's results to the types that the file has them in."""
        self._produced_tensors.update(tensor for tensor in layer.outputs if tensor)
        keeps_type = rulebook.preserves_precision_of_values(layer) and bool(
            inputs_of_compute_type) and self._half_tensors.issuperset(inputs_of_compute_type)
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if not tensor or not self._network.is_float(tensor) or self._source_model.find_dtype(
                    tensor) not in PRECISION_BY_HALF_TYPE:
                continue
            if not keeps_type:
                self.branch_tensors[tensor] = self._qdq_emitter.round_to_type(output,
                                                                              self._source_model.find_dtype(tensor),
                                                                              self.nodes)
            self._half_tensors.add(tensor)

    def _replace_by_file_constant(self, layer: Layer, input_index: int, value: ir.Value) -> ir.Value:
        array = self._source_model.constant_value(layer, input_index)
        if array is None or array.dtype != np.float32:
            return value
        return self._qdq_emitter.emitter.get_array_constant(array, f"file/{layer.name}/{input_index}")
