"""The rewriting of operators that copy quantized values to operators that copy their dequantized values.

ONNX Runtime's quantizer leaves such copies between Q and DQ, and TensorRT reads Q/DQ pairs only. The quantized values
do not change.
"""

from functools import cached_property

import onnx_ir as ir

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.naming import FreshNames
from trt_tui.core.network.qdq_steps import has_known_attributes, is_dequantize

_COPY_OPERATORS = frozenset("MaxPool Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Gather Expand".split())
"""Operators that copy quantized values unchanged, so that they have the same effect on dequantized values."""


def rewrite_quantized_copies(graph: ir.Graph) -> int:
    """Rewrites copies of quantized values as copies between DQ and Q, in place; returns their number."""
    return _CopyRewriter(graph).rewrite_all_copies()


class _CopyRewriter:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._scale_by_value: dict[ir.Value, tuple[ir.Value, ir.Value | None]] = {}  # scale and zero point

    @cached_property
    def _fresh_names(self) -> FreshNames:
        return FreshNames(self._graph, taken_names=(node.name for node in self._graph if node.name))

    def rewrite_all_copies(self) -> int:
        count = 0
        for node in filter(has_known_attributes, list(self._graph)):
            if node.op_type == "QuantizeLinear" and len(node.inputs) > 1 and node.inputs[1] is not None:
                self._scale_by_value[node.outputs[0]] = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
            elif node.domain == "" and node.op_type in _COPY_OPERATORS and node.inputs and node.inputs[
                    0] in self._scale_by_value:
                count += self._rewrite_copy(node)
        for node in [candidate for candidate in self._graph if is_dequantize(candidate)]:
            count += self._rewrite_constant_copy(node)
        return count

    def _rewrite_constant_copy(self, node: ir.Node) -> bool:
        """Moves a DequantizeLinear of a copied constant before the copy operator, which then copies floats."""
        copy_node = node.inputs[0].producer() if node.inputs[0] is not None else None
        quantized_value = copy_node.inputs[0] if copy_node is not None and copy_node.inputs else None
        scale, zero_point = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        if (copy_node is None or quantized_value is None or scale is None or copy_node.domain != ""
                or copy_node.op_type not in _COPY_OPERATORS or stored_tensor(quantized_value) is None
                or len(copy_node.outputs) != 1 or _has_many_scales(scale)):
            return False
        output, copied_value = node.outputs[0], copy_node.outputs[0]
        new_node = ir.Node(
            "", copy_node.op_type,
            [self._insert_dequantize(copy_node, quantized_value, scale, zero_point), *copy_node.inputs[1:]],
            list(copy_node.attributes.values()), name=self._fresh_names.make_unique_name(f"{copy_node.name}__float"),
            metadata_props=dict(copy_node.metadata_props))
        new_node.meta.update(copy_node.meta)
        new_value = new_node.outputs[0]
        new_value.type, new_value.shape = ir.TensorType(ir.DataType.FLOAT), copied_value.shape
        self._graph.insert_before(node, new_node)
        ir.convenience.replace_all_uses_with(output, new_value, replace_graph_outputs=True)
        new_value.name, output.name = output.name, f"{output.name}__behind"
        self._graph.remove(node, safe=True)
        if not copied_value.uses() and not copied_value.is_graph_output():
            self._graph.remove(copy_node, safe=True)
            new_node.name = copy_node.name
        return True

    def _rewrite_copy(self, node: ir.Node) -> bool:
        """Converts an operator that copies quantized values to one that copies dequantized values, followed by a
        quantization."""
        quantized_value = node.inputs[0]
        if quantized_value is None or len([output for output in node.outputs if output.name]) != 1:
            return False
        scale, zero_point = self._scale_by_value[quantized_value]
        inputs = [self._insert_dequantize(node, quantized_value, scale, zero_point), *node.inputs[1:]]
        new_node = ir.Node("", node.op_type, inputs, list(node.attributes.values()), name=node.name,
                           metadata_props=dict(node.metadata_props))
        new_node.meta.update(node.meta)
        result, copied_value = new_node.outputs[0], node.outputs[0]
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), copied_value.shape
        result.name = self._fresh_names.make_unique_name(f"{copied_value.name}__float")
        quantize = ir.Node("", "QuantizeLinear", [result, scale] if zero_point is None else [result, scale, zero_point],
                           name=self._fresh_names.make_unique_name(f"{copied_value.name}_QuantizeLinear"))
        new_value = quantize.outputs[0]
        new_value.shape = copied_value.shape
        new_value.type = ir.TensorType(_find_zero_point_type(zero_point))
        self._graph.insert_before(node, [new_node, quantize])
        self._scale_by_value[new_value] = scale, zero_point
        copied_value.replace_all_uses_with(new_value, replace_graph_outputs=True)
        new_value.name, copied_value.name = copied_value.name, f"{copied_value.name}__codes"
        self._graph.remove(node, safe=True)
        return True

    def _insert_dequantize(self, node: ir.Node, quantized_value: ir.Value, scale: ir.Value,
                           zero_point: ir.Value | None) -> ir.Value:
        inputs = [quantized_value, scale] if zero_point is None else [quantized_value, scale, zero_point]
        dequantize = ir.Node("", "DequantizeLinear", inputs,
                             name=self._fresh_names.make_unique_name(f"{quantized_value.name}_DequantizeLinear"))
        output = dequantize.outputs[0]
        output.name = self._fresh_names.make_unique_name(f"{quantized_value.name}__dequantized")
        output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), quantized_value.shape
        self._graph.insert_before(node, dequantize)
        return output


def _has_many_scales(scale: ir.Value | None) -> bool:
    """Returns True if a stored scale has more than one element."""
    constant = stored_tensor(scale)
    return constant is not None and constant.size > 1


def _find_zero_point_type(zero_point: ir.Value | None) -> ir.DataType:
    constant = stored_tensor(zero_point)
    return constant.dtype if constant is not None else ir.DataType.UINT8
