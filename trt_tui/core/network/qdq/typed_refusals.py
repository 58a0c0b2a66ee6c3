"""The nodes of a quantized file that strongly typed TensorRT refuses, and the rewrite that replaces each.

TensorRT quantizes symmetrically to INT8, FP8, INT4 and FP4. A zero point must be 0. Unsigned and 16-bit quantized types
are refused, and so is a DequantizeLinear on an INT32 bias (TensorRT developer guide, "Working with quantized types").

- Zero point other than 0: the range is widened to its larger side. UINT8 values around 128 become INT8 values around 0,
  which represent the same numbers. If a quantizer replaced a Relu by a range that begins at 0, the Relu is restored.
- INT32 bias: the bias is stored as equal floats.
- 4-bit weights that are unsigned, or have one scale per tensor: stored in 8 bits, which represent the same weights.
  TensorRT-RTX 1.7 does not build them beside INT8.
- 16-bit quantized types: removed. The tensor stays in floats, behind the Relu or ReLU6 that its range stood for.
- An operator in a float type without a kernel (`operators.UNSUPPORTED_FLOAT_TYPES`): computed in FP32.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import largest_magnitude, stored_tensor
from trt_tui.core.network.graph_editor import GraphEditor, remove_unread_values, replace_value
from trt_tui.core.network.model_editing import list_subgraphs, value_name
from trt_tui.core.network.operators import UNSUPPORTED_FLOAT_TYPES
from trt_tui.core.network.qdq.removal import can_be_negative
from trt_tui.core.network.qdq.steps import (
    PRECISION_BY_HALF_TYPE,
    QdqStep,
    apply_qdq_step,
    is_dequantize,
    is_quantize,
    read_qdq_step,
    round_to_type,
    type_limits,
)
from trt_tui.core.quantized_types import broadcast_scales
from trt_tui.formatting import counted_noun_text, name_list_text

_WIDE_TYPES = (ir.DataType.INT16, ir.DataType.UINT16)

ASYMMETRIC = "a zero point other than 0"
UNSIGNED = "unsigned quantized types"
BIAS = "a DequantizeLinear on an int32 bias"
WIDE = "16-bit quantized types"
NARROW = "4-bit quantized types with one scale for the tensor"

_WORKAROUND_TEXTS = {
    ASYMMETRIC: "the export widens the range to its larger side",
    UNSIGNED: "the export has the same quantized values, signed",
    BIAS: "the export stores the bias in floats",
    WIDE: "the export leaves the tensor in floats",
    NARROW: "the export has them in 8 bits",
}
"""The rewrite by the typed export for users, by the reason for the refusal."""


def refusal_workaround_text(refusal_reason: str) -> str:
    return _WORKAROUND_TEXTS.get(refusal_reason, "the export has it in FP32")


def float_type_refusal_reason(node: ir.Node, dtype_by_tensor: Mapping[str, ir.DataType]) -> str:
    """Returns the reason why TensorRT refuses the float type of an operator; "" if it accepts the type.

    Args:
        dtype_by_tensor: The types of tensors, by name.
    """
    precision = (
        PRECISION_BY_HALF_TYPE.get(dtype_by_tensor.get(node.outputs[0].name or "", ir.DataType.UNDEFINED))
        if node.outputs
        else None
    )
    if precision is None or node.domain or node.op_type not in UNSUPPORTED_FLOAT_TYPES[precision]:
        return ""
    return f"{node.op_type} in {precision.label}"


def qdq_refusal_reason(step: QdqStep) -> str:
    """Returns the reason why TensorRT refuses a Q or DQ node; "" if it accepts the node."""
    if not step.is_constant:
        return ""
    if step.quantized_dtype is ir.DataType.INT32:
        return BIAS
    if step.quantized_dtype in _WIDE_TYPES:
        return WIDE
    if step.zero_point is None:
        return ""
    zero_point = step.zero_point.astype(np.float32)
    if step.quantized_dtype is ir.DataType.UINT8 and (zero_point == 128).all():
        return UNSIGNED
    if step.quantized_dtype in (ir.DataType.UINT8, ir.DataType.UINT4) or zero_point.any():
        return ASYMMETRIC
    return NARROW if step.quantized_dtype is ir.DataType.INT4 and not zero_point.shape else ""


def find_node_refusals(nodes: Iterable[ir.Node], dtype_by_tensor: Mapping[str, ir.DataType]) -> dict[ir.Node, str]:
    """Returns all nodes with a quantized or float type that TensorRT refuses, in order, with the reasons.

    Args:
        dtype_by_tensor: The types of tensors, by name.
    """
    reasons = ((node, _node_refusal_reason(node, dtype_by_tensor)) for node in nodes)
    return {node: reason for node, reason in reasons if reason}


def _node_refusal_reason(node: ir.Node, dtype_by_tensor: Mapping[str, ir.DataType]) -> str:
    return (
        qdq_refusal_reason(read_qdq_step(node))
        if is_quantize(node) or is_dequantize(node)
        else float_type_refusal_reason(node, dtype_by_tensor)
    )


def refusal_summary_lines(node_refusals: Mapping[str, str]) -> list[str]:
    """Returns notes for users on refused nodes: one sentence for each reason, with the rewrite and the first nodes.

    Args:
        node_refusals: The reasons by the name of the node.
    """
    lines = []
    for reason in dict.fromkeys((*_WORKAROUND_TEXTS, *node_refusals.values())):
        nodes = [name for name, node_reason in node_refusals.items() if node_reason == reason]
        if nodes:
            lines.append(
                f"TensorRT refuses {reason} ({name_list_text(nodes, max_count=2)}); it is simulated as stored, and "
                f"{refusal_workaround_text(reason)}."
            )
    return lines


def replace_refused_nodes(
    graph: ir.Graph, file_nodes: Collection[ir.Node], dtype_by_tensor: Mapping[str, ir.DataType]
) -> list[str]:
    """Rewrites all nodes that TensorRT refuses, in place; returns a sentence for each kind of rewrite.

    Args:
        file_nodes: The nodes of the file; other nodes do not change.
        dtype_by_tensor: The types of the graph's tensors below FP32, by name.
    """
    reason_by_node = find_node_refusals([node for node in graph if node in file_nodes], dtype_by_tensor)
    workarounds = _RefusedNodeRewriter(graph)
    steps = {node: read_qdq_step(node) for node in reason_by_node if is_quantize(node) or is_dequantize(node)}
    for node, reason in reason_by_node.items():
        if node in steps:
            workarounds.replace_refused_qdq_node(node, steps[node], reason)
        else:
            workarounds.add_fp32_casts_around_node(node, dtype_by_tensor)
    remove_unread_values(graph, workarounds.released_values)
    counts = {
        reason: sum(node_reason == reason for node_reason in reason_by_node.values())
        for reason in dict.fromkeys((*_WORKAROUND_TEXTS, *reason_by_node.values()))
    }
    return [
        f"TensorRT refuses "
        f"{reason}, which occurs {counted_noun_text(count, 'time')}: {refusal_workaround_text(reason)}."
        for reason, count in counts.items()
        if count
    ]


def add_fp32_casts_to_operators(graph: ir.Graph, dtype_by_tensor: Mapping[str, ir.DataType]) -> None:
    """Makes every operator compute in FP32, in place. Casts around it round to its original types.

    ONNX Runtime's CPU provider lacks most operators in BF16, and computes FP16 operators in FP32 without rounding
    between them.

    Args:
        dtype_by_tensor: The types of the graph's tensors below FP32, by name.
    """
    workarounds = _RefusedNodeRewriter(graph)
    for node in list(graph):
        if not node.domain and node.op_type != "Cast" and not list_subgraphs(node):
            workarounds.add_fp32_casts_around_node(node, dtype_by_tensor)


class _RefusedNodeRewriter(GraphEditor):
    """A rewriter that replaces the nodes of one graph that TensorRT refuses by nodes that it accepts.

    Attributes:
        released_values: The values that rewritten nodes no longer read.
    """

    def __init__(self, graph: ir.Graph) -> None:
        super().__init__(graph)
        self._relu_by_source: dict[tuple[ir.Value, bool], ir.Value] = {}
        self.released_values: list[ir.Value] = []

    def replace_refused_qdq_node(self, node: ir.Node, step: QdqStep, reason: str) -> None:
        value = node.inputs[0]
        if value is None:
            return
        constant = stored_tensor(value) if is_dequantize(node) else None
        if reason == BIAS or constant is not None and reason == WIDE:
            if constant is not None:
                array = round_to_type(apply_qdq_step(step, constant.numpy()), step.dtype).astype(step.dtype.numpy())
                self._replace_node_by_value(
                    node, self._add_constant(np.ascontiguousarray(array), f"{value_name(node.outputs[0])}__float")
                )
        elif reason == WIDE:
            quantize = value.producer() if is_dequantize(node) else None
            if quantize is not None and is_quantize(quantize) and quantize.inputs[0] is not None:
                self._restore_dropped_relu(quantize, read_qdq_step(quantize), drops_quantization=True)
                self._replace_node_by_value(node, quantize.inputs[0])
        elif constant is not None:
            self._convert_weight_to_int8(node, step, constant, reason)
        else:
            self._convert_qdq_node_to_int8(node, step, reason)

    def add_fp32_casts_around_node(self, node: ir.Node, dtype_by_tensor: Mapping[str, ir.DataType]) -> None:
        """Inserts Casts before and behind a node that computes in a float type below FP32."""
        for index, value in enumerate(node.inputs):
            if value is not None and dtype_by_tensor.get(value.name or "") in PRECISION_BY_HALF_TYPE:
                cast = self._create_cast(value, ir.DataType.FLOAT, f"{value.name}__fp32")
                self.graph.insert_before(node, cast)
                node.replace_input_with(index, cast.outputs[0])
        for output in node.outputs:
            dtype = dtype_by_tensor.get(output.name or "")
            if dtype not in PRECISION_BY_HALF_TYPE or dtype is None:
                continue
            name = value_name(output)
            cast = self._create_cast(output, dtype, name)
            self.graph.insert_after(node, cast)
            ir.convenience.replace_all_uses_with(output, cast.outputs[0], replace_graph_outputs=True)
            cast.replace_input_with(0, output)
            cast.outputs[0].name, output.name = name, self.names.make_unique_name(f"{name}__fp32")
            output.type = ir.TensorType(ir.DataType.FLOAT)

    def _create_cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
        return ir.node(
            "Cast",
            [value],
            {"to": int(dtype)},
            name=self.names.make_unique_name(f"{name}__cast"),
            outputs=[ir.val(self.names.make_unique_name(name), dtype, value.shape)],
        )

    def _convert_qdq_node_to_int8(self, node: ir.Node, step: QdqStep, reason: str) -> None:
        """Converts the Q or DQ node of an activation to symmetric INT8."""
        assert step.scale is not None and step.zero_point is not None and step.quantized_dtype is not None
        scale = step.scale
        if reason != UNSIGNED:
            low, high = type_limits(step.quantized_dtype)
            zero_point = step.zero_point.astype(np.float32)
            scale = np.maximum(high - zero_point, zero_point - low) * step.scale / np.float32(127)
            if is_quantize(node):
                self._restore_dropped_relu(node, step)
        self._set_symmetric_scale(node, scale.astype(np.float32))

    def _convert_weight_to_int8(self, node: ir.Node, step: QdqStep, weight: ir.TensorProtocol, reason: str) -> None:
        """Replaces the quantized values and the scale of a weight by symmetric INT8 ones."""
        assert step.scale is not None and step.zero_point is not None
        shape, scale = tuple(weight.shape.numpy()), step.scale
        values = weight.numpy().astype(np.int32) - broadcast_scales(
            step.zero_point.astype(np.int32), shape, step.axis, step.block_size
        )
        if reason != UNSIGNED:
            axis = None if scale.size == 1 and not step.block_size else step.axis % max(len(shape), 1)
            block_size = min(step.block_size, shape[axis]) if axis is not None and step.block_size else None
            amax = np.maximum(largest_magnitude(values.astype(np.float32), axis, block_size), 1).reshape(scale.shape)
            factor = np.maximum(amax / np.float32(127), 1)  # values that fit into INT8 do not change
            scale = (scale * factor).astype(np.float32)
            values = np.clip(np.rint(values / broadcast_scales(factor, shape, step.axis, step.block_size)), -128, 127)
        self._replace_input(node, 0, np.ascontiguousarray(values.astype(np.int8)), f"{node.name}__codes")
        self._set_symmetric_scale(node, scale)

    def _set_symmetric_scale(self, node: ir.Node, scale: np.ndarray) -> None:
        old_scale, constant = node.inputs[1], stored_tensor(node.inputs[1])
        assert old_scale is not None and constant is not None, "a step that is known has a scale"
        node.resize_inputs(3)
        self._replace_input(node, 1, scale.astype(constant.dtype.numpy()), f"{old_scale.name}__scale")
        self._replace_input(node, 2, np.zeros(scale.shape, np.int8), f"{old_scale.name}__zero_point")
        if is_quantize(node):
            node.outputs[0].type = ir.TensorType(ir.DataType.INT8)
            node.attributes.pop("output_dtype", None)

    def _replace_input(self, node: ir.Node, index: int, array: np.ndarray, name: str) -> None:
        self.released_values += filter(None, [node.inputs[index]])
        node.replace_input_with(index, self._add_constant(array, name))

    def _restore_dropped_relu(self, node: ir.Node, step: QdqStep, drops_quantization: bool = False) -> None:
        """Restores the Relu that a quantizer replaced by a range from 0.

        Args:
            drops_quantization: True if the quantization is removed. Then no range clips at 6, so a ReLU6 is restored
                too.
        """
        source = node.inputs[0]
        if (
            source is None
            or not can_be_negative(source)
            or not step.is_constant
            or step.quantized_dtype is None
            or step.scale is None
            or step.zero_point is None
        ):
            return
        low, high = type_limits(step.quantized_dtype)
        if not (step.zero_point.astype(np.float32) == low).all():
            return
        is_relu6 = drops_quantization and bool((np.abs((high - low) * step.scale - 6) < 0.01).all())
        if (source, is_relu6) not in self._relu_by_source:
            scale = stored_tensor(node.inputs[1])
            float_dtype = (source.dtype or (scale.dtype if scale is not None else ir.DataType.FLOAT)).numpy()
            bounds = (
                [self._add_constant(np.array(bound, float_dtype), f"{source.name}__{bound}") for bound in (0, 6)]
                if is_relu6
                else []
            )
            relu = ir.node(
                "Clip" if is_relu6 else "Relu",
                [source, *bounds],
                name=self.names.make_unique_name(f"{node.name}__relu"),
                outputs=[
                    ir.val(self.names.make_unique_name(f"{source.name}__relu"), shape=source.shape, type=source.type)
                ],
            )
            self.graph.insert_before(node, relu)
            self._relu_by_source[source, is_relu6] = relu.outputs[0]
        node.replace_input_with(0, self._relu_by_source[source, is_relu6])

    def _replace_node_by_value(self, node: ir.Node, value: ir.Value) -> None:
        is_output = node.outputs[0].is_graph_output()
        replace_value(
            self.graph,
            node.outputs[0],
            value,
            self.names.make_unique_name(f"{node.name}__identity") if is_output else "",
        )
        self.released_values += filter(None, node.inputs)
        self.graph.remove(node, safe=True)
