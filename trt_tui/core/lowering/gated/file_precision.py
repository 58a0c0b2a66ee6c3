"""The simulation of a fusion group in file precision, in FP32 arithmetic with the file's scales, zero points and types."""

from collections.abc import MutableMapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.emitter import Nodes
from trt_tui.core.lowering.gated.group_body import GroupBody, GroupEmitter
from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.qdq.steps import PRECISION_BY_HALF_TYPE


class FilePrecisionBody(GroupBody):
    """The emitter of a fusion group with the types of the model file. The arguments are those of `GroupBody`."""

    def __init__(
        self,
        group_emitter: GroupEmitter,
        group: FusionGroup,
        values_by_tensor: MutableMapping[str, ir.Value],
        requested_tensors: Sequence[str],
        nodes: Nodes | None = None,
    ) -> None:
        super().__init__(group_emitter, group, values_by_tensor, requested_tensors, nodes)
        assert self.network.source_model is not None, "a group has this form where the file has precisions"
        self._source_model = self.network.source_model

    def convert_layer_input(
        self, layer: Layer, input_index: int, tensor: str, value: ir.Value, has_compute_type: bool
    ) -> ir.Value:
        """Returns an input with the type and the conversions that it has in the file before the layer."""
        if not self.network.is_fp32(tensor):
            return value
        if tensor in self.network.constant_tensors:
            array = self._source_model.constant_value(layer, input_index)
            return (
                value
                if array is None or array.dtype != np.float32
                else self.emitter.get_array_constant(array, f"file/{layer.name}/{input_index}")
            )
        dtype = self._source_model.find_dtype(tensor)
        if self.is_computed_outside(tensor) and dtype in PRECISION_BY_HALF_TYPE:
            if tensor not in self.prepared_values:
                self.prepared_values[tensor] = self.rounding.round_to_type(value, dtype, self.nodes)
            self.rounded_tensors.add(tensor)
            value = self.prepared_values[tensor]
        for step in self._source_model.find_conversion_steps(layer, input_index) or ():
            if step not in self.prepared_values:
                self.prepared_values[step] = self.rounding.emit_qdq_step(step, value, self.nodes)
            value = self.prepared_values[step]
        return value

    def round_layer_results(self, layer: Layer, node: ir.Node, inputs_of_compute_type: Sequence[str]) -> None:
        """Rounds the results of a layer to their types in the file."""
        keeps_type = (
            rulebook.preserves_precision_of_values(layer)
            and bool(inputs_of_compute_type)
            and self.rounded_tensors.issuperset(inputs_of_compute_type)
        )
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            dtype = self._source_model.find_dtype(tensor)
            if not tensor or not self.network.is_fp32(tensor) or dtype not in PRECISION_BY_HALF_TYPE:
                continue
            if not keeps_type:
                self.branch_tensors[tensor] = self.rounding.round_to_type(output, dtype, self.nodes)
            self.rounded_tensors.add(tensor)
