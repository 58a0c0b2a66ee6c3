"""The simulation of a fusion group in file precision, in FP32 arithmetic with the file's scales, zero points and types.
"""

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
    """An emitter of the file's conversions (Cast, Q, DQ); scales and zero points become constants of the graph."""

    def __init__(self, emitter: NodeEmitter, rounding: RoundingEmitter) -> None:
        self.emitter = emitter
        self.rounding = rounding

    def emit_qdq_step(self, step: QdqStep, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Emits a conversion step and returns its result: quantized values, or float32 with values of the step's type.

        A step that computes the scales of its blocks returns dequantized values, and the next step returns these.
        """
        if step.operator == "cast":
            return self.round_to_type(value, step.dtype, nodes)
        if step.computes_scales and step.block_type is not None and step.scale is not None:
            tensor_scale = self.emitter.get_scalar_constant(float(step.scale)) if step.block_type.needs_ranges else None
            return self.rounding.quantize_dequantize_blocks(value, tensor_scale, step.block_type, step.axis, step.shape,
                                                            nodes)
        if step.scale is None or step.zero_point is None:  # they are computed at run time
            return self.round_to_type(value, step.dtype, nodes)
        pair = [self.emitter.get_array_constant(array, f"file/{step.node_name}/{name}")
                for name, array in (("scale", step.scale), ("zero", step.zero_point))]
        operator = "QuantizeLinear" if step.operator == "quantize" else "DequantizeLinear"
        attributes = {"axis": step.axis} if step.scale.ndim else {}
        if step.block_size:
            attributes["block_size"] = step.block_size
        result = self.emitter.add_operator(nodes, operator, [value, *pair], "file", **attributes)
        return result if step.operator == "quantize" else self.round_to_type(result, step.dtype, nodes)

    def round_to_type(self, value: ir.Value, dtype: ir.DataType, nodes: Nodes) -> ir.Value:
        """Rounds a value to FP16 or BF16; for any other type, the value does not change."""
        return self.rounding.round_to_precision(value, PRECISION_BY_HALF_TYPE[dtype],
                                                nodes) if dtype in PRECISION_BY_HALF_TYPE else value


class FilePrecisionBranch:
    """A fusion group in file precision, as a branch that reads outer tensors; implements `GroupBody`.

    Args:
        values_by_tensor: The tensors that the group reads, by their names in the network.
    """

    def __init__(self, qdq_emitter: QdqEmitter, source_model: SourceModel, group: FusionGroup,
                 values_by_tensor: Mapping[str, ir.Value]) -> None:
        self._qdq_emitter = qdq_emitter
        self._network = qdq_emitter.emitter.network
        self._source_model = source_model
        self._prepared_values: dict[str | QdqStep, ir.Value] = {}
        self._produced_tensors: set[str] = set()
        self._half_tensors: set[str] = set()  # tensors with values of the file's 16-bit type
        self.group = group
        self.norm: Normalisation | None = None
        self.branch_tensors = BranchTensors(values_by_tensor)
        self.nodes: Nodes = []

    def convert_layer_input(self, layer: Layer, input_index: int, tensor: str, value: ir.Value,
                            has_compute_type: bool) -> ir.Value:
        """Returns the input with the type and the conversions that the file has before the layer."""
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
        """Rounds the results of a layer to their types in the file."""
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
