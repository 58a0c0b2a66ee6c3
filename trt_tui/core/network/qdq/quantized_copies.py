"""The rewriting of copies of quantized values, such as a Transpose between Q and DQ, as copies of floats.

ONNX Runtime's quantizer leaves such copies, but TensorRT reads only adjacent Q/DQ pairs. The quantized values do not
change.
"""

import onnx_ir as ir

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.graph_editor import GraphEditor, remove_unread_values
from trt_tui.core.network.qdq.steps import has_known_attributes, is_dequantize

_COPY_OPERATORS = frozenset("MaxPool Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Gather Expand".split())
"""Operators that copy quantized values unchanged, so that they have the same effect on dequantized values."""


def rewrite_quantized_copies(graph: ir.Graph) -> int:
    """Rewrites copies of quantized values as copies of floats between a DQ and a Q, in place; returns their number."""
    has_quantized_values = any(node.op_type == "QuantizeLinear" or is_dequantize(node) for node in graph)
    return _CopyRewriter(graph).rewrite_copies() if has_quantized_values else 0


class _CopyRewriter(GraphEditor):
    def __init__(self, graph: ir.Graph) -> None:
        super().__init__(graph)
        self._parameters_by_value: dict[ir.Value | None, list[ir.Value]] = {}  # scale, and zero point if stated

    def rewrite_copies(self) -> int:
        count = 0
        for node in filter(has_known_attributes, list(self.graph)):
            if node.op_type == "QuantizeLinear" and len(node.inputs) > 1 and node.inputs[1] is not None:
                self._parameters_by_value[node.outputs[0]] = _list_parameters(node)
            elif (
                node.domain == ""
                and node.op_type in _COPY_OPERATORS
                and node.inputs
                and node.inputs[0] in self._parameters_by_value
                and len([output for output in node.outputs if output.name]) == 1
            ):
                self._rewrite_copy(node, self._parameters_by_value[node.inputs[0]])
                count += 1
        for node in [candidate for candidate in self.graph if is_dequantize(candidate)]:
            count += self._rewrite_constant_copy(node)
        return count

    def _rewrite_constant_copy(self, node: ir.Node) -> bool:
        """Moves the DequantizeLinear of a constant before the node that copies the constant, which then copies floats."""
        copy_node = node.inputs[0].producer() if node.inputs[0] is not None else None
        quantized_value = copy_node.inputs[0] if copy_node is not None and copy_node.inputs else None
        if (
            copy_node is None
            or quantized_value is None
            or node.inputs[1] is None
            or copy_node.domain != ""
            or copy_node.op_type not in _COPY_OPERATORS
            or stored_tensor(quantized_value) is None
            or len(copy_node.outputs) != 1
            or _has_many_scales(node.inputs[1])
        ):
            return False
        new_node = self._insert_float_copy(copy_node, node, _list_parameters(node))
        new_node.name = self.names.make_unique_name(f"{copy_node.name}__float")
        new_node.outputs[0].name = node.outputs[0].name
        ir.convenience.replace_all_uses_with(node.outputs[0], new_node.outputs[0], replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        remove_unread_values(self.graph, copy_node.outputs)
        if copy_node.graph is None:
            new_node.name = copy_node.name
        return True

    def _rewrite_copy(self, node: ir.Node, parameters: list[ir.Value]) -> None:
        """Inserts a DequantizeLinear before a copy of quantized values and a QuantizeLinear after it."""
        new_node, copied_value = self._insert_float_copy(node, node, parameters), node.outputs[0]
        new_node.outputs[0].name = self.names.make_unique_name(f"{copied_value.name}__float")
        zero_point = stored_tensor(parameters[1]) if len(parameters) > 1 else None
        quantize = ir.node(
            "QuantizeLinear",
            [new_node.outputs[0], *parameters],
            name=self.names.make_unique_name(f"{copied_value.name}_QuantizeLinear"),
            outputs=[
                ir.val(
                    copied_value.name,
                    zero_point.dtype if zero_point is not None else ir.DataType.UINT8,
                    copied_value.shape,
                )
            ],
        )
        self.graph.insert_before(node, quantize)
        self._parameters_by_value[quantize.outputs[0]] = parameters
        copied_value.replace_all_uses_with(quantize.outputs[0], replace_graph_outputs=True)
        self.graph.remove(node, safe=True)

    def _insert_float_copy(self, node: ir.Node, position: ir.Node, parameters: list[ir.Value]) -> ir.Node:
        """Inserts a copy of dequantized values that takes over the name of the original copy."""
        quantized_value = node.inputs[0]
        assert quantized_value is not None, "it has a scale"
        scale = stored_tensor(parameters[0])
        float_type = scale.dtype if scale is not None else parameters[0].dtype or ir.DataType.FLOAT
        dequantize = ir.node(
            "DequantizeLinear",
            [quantized_value, *parameters],
            name=self.names.make_unique_name(f"{quantized_value.name}_DequantizeLinear"),
            outputs=[
                ir.val(
                    self.names.make_unique_name(f"{quantized_value.name}__dequantized"),
                    float_type,
                    quantized_value.shape,
                )
            ],
        )
        self.graph.insert_before(node, dequantize)
        new_node = ir.Node(
            "",
            node.op_type,
            [dequantize.outputs[0], *node.inputs[1:]],
            list(node.attributes.values()),
            name=node.name,
            metadata_props=dict(node.metadata_props),
            outputs=[ir.val(None, float_type, node.outputs[0].shape)],
        )
        new_node.meta.update(node.meta)
        self.graph.insert_before(position, new_node)
        return new_node


def _list_parameters(node: ir.Node) -> list[ir.Value]:
    """Returns the scale of a Q or DQ node, and its zero point if it has one."""
    return [value for value in node.inputs[1:3] if value is not None]


def _has_many_scales(scale: ir.Value | None) -> bool:
    """Returns True if a stored scale has more than one element."""
    constant = stored_tensor(scale)
    return constant is not None and constant.size > 1
