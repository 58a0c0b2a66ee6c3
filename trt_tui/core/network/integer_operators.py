"""The conversion of operators on quantized values, such as QLinearConv, to float operators with Q/DQ.

ONNX Runtime's quantizer writes such operators, and TensorRT reads Q/DQ only. The quantized values do not change.
``QLinearConv(x, w)`` is a Conv of the dequantized values, whose result is quantized again. The definitions are ONNX's
(QLinearConv-10, QLinearMatMul-21) and ONNX Runtime's (``docs/ContribOperators.md``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.foreign_operators import ORT_DOMAIN
from trt_tui.core.network.naming import FreshNames
from trt_tui.core.network.qdq_steps import has_known_attributes, is_dequantize
from trt_tui.errors import InputError

_TYPE_AND_MIDDLE_BY_BITS = {4: (ir.DataType.INT4, 8), 8: (ir.DataType.INT8, 128)}
"""The type of the values that a MatMulNBits stores, and the stored number for 0 if there is no zero point, by bits."""
_COPY_OPERATORS = frozenset("MaxPool Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Gather Expand".split())
"""Operators that copy quantized values unchanged, so that they have the same effect on dequantized values."""


@dataclass(frozen=True)
class _IntegerOperatorLayout:
    """The layout of the inputs of an operator on quantized values.

    Attributes:
        float_operator: The same operator on floats.
        operand_indices: For each operand, the index of its quantized values; scale and zero point follow.
        result_indices: The indices of scale and zero point of the result.
        passed_indices: Inputs that are passed unchanged, before the operands.
        dropped_attributes: Attributes that the float operator does not have.
    """

    float_operator: str
    operand_indices: tuple[int, ...]
    result_indices: tuple[int, int]
    passed_indices: tuple[int, ...] = ()
    dropped_attributes: tuple[str, ...] = ()


_ONE_OPERAND, _TWO_OPERANDS = ((0,), (3, 4)), ((0, 3), (6, 7))
_OPERATOR_FORMS = {
    ("", "QLinearConv"): _IntegerOperatorLayout("Conv", *_TWO_OPERANDS),
    ("", "QLinearMatMul"): _IntegerOperatorLayout("MatMul", *_TWO_OPERANDS),
    (ORT_DOMAIN, "QLinearAdd"): _IntegerOperatorLayout("Add", *_TWO_OPERANDS),
    (ORT_DOMAIN, "QLinearMul"): _IntegerOperatorLayout("Mul", *_TWO_OPERANDS),
    (ORT_DOMAIN, "QLinearAveragePool"): _IntegerOperatorLayout("AveragePool", *_ONE_OPERAND,
                                                               dropped_attributes=("channels_last", )),
    (ORT_DOMAIN, "QLinearGlobalAveragePool"): _IntegerOperatorLayout("GlobalAveragePool", *_ONE_OPERAND,
                                                                     dropped_attributes=("channels_last", )),
    (ORT_DOMAIN, "QLinearSigmoid"): _IntegerOperatorLayout("Sigmoid", *_ONE_OPERAND),
    (ORT_DOMAIN, "QLinearLeakyRelu"): _IntegerOperatorLayout("LeakyRelu", *_ONE_OPERAND),
    (ORT_DOMAIN, "QLinearSoftmax"): _IntegerOperatorLayout("Softmax", *_ONE_OPERAND, dropped_attributes=("opset", )),
    (ORT_DOMAIN, "QLinearWhere"): _IntegerOperatorLayout("Where", (1, 4), (7, 8), passed_indices=(0, )),
    (ORT_DOMAIN, "QGemm"): _IntegerOperatorLayout("Gemm", (0, 3), (7, 8)),
}


def convert_integer_operators_to_qdq(graph: ir.Graph) -> int:
    """Converts operators on quantized values to float operators between Q/DQ nodes, in place; returns their number.

    Operators with another layout or meaning do not change, nor do operators whose scales are computed at run time.

    Raises:
        InputError: stored quantized values have a type that the operator does not accept; the error names the node.
    """
    return _QdqConverter(graph).convert_all_operators()


class _QdqConverter:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._scale_by_value: dict[ir.Value, tuple[ir.Value, ir.Value | None]] = {}  # scale and zero point

    @cached_property
    def _fresh_names(self) -> FreshNames:
        return FreshNames(self._graph, taken_names=(node.name for node in self._graph if node.name))

    def convert_all_operators(self) -> int:
        count = 0
        for node in filter(has_known_attributes, list(self._graph)):
            if node.op_type == "QuantizeLinear" and len(node.inputs) > 1 and node.inputs[1] is not None:
                self._scale_by_value[node.outputs[0]] = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
            elif node.op_type == "QLinearConcat" and node.domain == ORT_DOMAIN:
                count += self._convert_concat(node)
            elif node.op_type == "MatMulNBits" and node.domain == ORT_DOMAIN:
                count += self._convert_nbits_matmul(node)
            elif (form := _OPERATOR_FORMS.get((node.domain, node.op_type))) is not None:
                count += self._convert_operator(node, form)
            elif node.domain == "" and node.op_type in _COPY_OPERATORS and node.inputs and node.inputs[
                    0] in self._scale_by_value:
                count += self._convert_copy_of_quantized_values(node)
        for node in [candidate for candidate in self._graph if is_dequantize(candidate)]:
            count += self._convert_quantized_constant_copy(node)
        return count

    # -- one operator -------------------------------------------------------------------------------------------

    def _convert_operator(self, node: ir.Node, operator_layout: _IntegerOperatorLayout) -> bool:
        attributes = node.attributes
        is_legacy = operator_layout.float_operator == "Softmax" and attributes.get_int("opset", 13) < 13
        if attributes.get_int("channels_last", 0) or is_legacy:
            return False
        padded_inputs = _pad_inputs(node.inputs, max(*operator_layout.result_indices, 8) + 1)
        for operand_index in operator_layout.operand_indices:
            _check_stored_type(node, padded_inputs[operand_index], "codes", lambda dtype: dtype != ir.DataType.INT32)
        is_constant = [
            padded_inputs[operand_index + 1] is not None and stored_tensor(padded_inputs[operand_index + 1]) is not None
            for operand_index in operator_layout.operand_indices
        ]
        if not all(is_constant) or padded_inputs[
                operator_layout.result_indices[0]] is None and operator_layout.float_operator != "Gemm":
            return False
        inputs: list[ir.Value | None] = [padded_inputs[index] for index in operator_layout.passed_indices]
        for position, operand_index in enumerate(operator_layout.operand_indices):
            inputs.append(
                self._insert_dequantize(node, *padded_inputs[operand_index:operand_index + 3],
                                        axis=_find_scale_axis(node, operator_layout, position)))
        bias = padded_inputs[8] if operator_layout.float_operator == "Conv" else padded_inputs[
            6] if operator_layout.float_operator == "Gemm" else None
        if bias is not None:
            _check_stored_type(node, bias, "a bias", lambda dtype: dtype == ir.DataType.INT32)
            inputs.append(self._dequantize_bias(node, bias, padded_inputs[1], padded_inputs[4]))
        kept_attributes = [
            attribute for attribute in attributes.values() if attribute.name not in operator_layout.dropped_attributes
        ]
        self._replace_node(node, operator_layout.float_operator, inputs, kept_attributes,
                           padded_inputs[operator_layout.result_indices[0]],
                           padded_inputs[operator_layout.result_indices[1]])
        return True

    def _convert_concat(self, node: ir.Node) -> bool:
        padded_inputs = _pad_inputs(node.inputs, len(node.inputs))
        parts = [padded_inputs[index:index + 3] for index in range(2, len(padded_inputs), 3)]
        if any(len(part) < 3 or stored_tensor(part[1]) is None for part in parts):
            return False
        inputs: list[ir.Value | None] = [self._insert_dequantize(node, *part) for part in parts]
        self._replace_node(node, "Concat", inputs, list(node.attributes.values()), padded_inputs[0], padded_inputs[1])
        return True

    def _convert_nbits_matmul(self, node: ir.Node) -> bool:
        """Converts a MatMulNBits to a MatMul with a dequantized weight of INT4 or INT8, in blocks and symmetric around
        0."""
        nbits_weights = read_nbits_weights(node)
        if nbits_weights is None:
            return False
        data, quantized_weight, scale, block_size = nbits_weights
        inputs = []
        for array, role in ((quantized_weight, "codes"), (scale, "scales")):
            name = self._fresh_names.make_unique_name(f"{node.name}_{role}")
            value = ir.Value(name=name, type=ir.TensorType(array.dtype), shape=ir.Shape(array.shape.numpy()),
                             const_value=array)
            self._graph.register_initializer(value)
            inputs.append(value)
        dequantize = ir.node("DequantizeLinear", inputs, {"axis": 0, "block_size": block_size},
                             name=self._fresh_names.make_unique_name(f"{node.name}_DequantizeLinear"))
        weight = dequantize.outputs[0]
        weight.name = self._fresh_names.make_unique_name(f"{node.name}_weight")
        weight.type, weight.shape = ir.TensorType(scale.dtype), ir.Shape(quantized_weight.shape.numpy())
        self._graph.insert_before(node, dequantize)
        bias = node.inputs[5] if len(node.inputs) > 5 else None
        result = node.outputs[0]
        product = ir.Node("", "MatMul", [data, weight], name=node.name, metadata_props=dict(node.metadata_props))
        product.meta.update(node.meta)
        new_nodes = [product]
        if bias is not None:
            product.outputs[0].name = self._fresh_names.make_unique_name(f"{result.name}__product")
            product.outputs[0].type, product.outputs[0].shape = result.type, result.shape
            new_nodes.append(
                ir.Node("", "Add", [product.outputs[0], bias],
                        name=self._fresh_names.make_unique_name(f"{node.name}_bias"),
                        metadata_props=dict(node.metadata_props)))
        self._graph.insert_before(node, new_nodes)
        new_value = new_nodes[-1].outputs[0]
        new_value.type, new_value.shape = result.type, result.shape
        ir.convenience.replace_all_uses_with(result, new_value, replace_graph_outputs=True)
        new_value.name, result.name = result.name, f"{result.name}__packed"
        self._graph.remove(node, safe=True)
        return True

    def _convert_quantized_constant_copy(self, node: ir.Node) -> bool:
        """Moves a DequantizeLinear of a copied constant before the copy operator, which then copies floats."""
        copy_node = node.inputs[0].producer() if node.inputs[0] is not None else None
        quantized_value = copy_node.inputs[0] if copy_node is not None and copy_node.inputs else None
        if (copy_node is None or quantized_value is None or copy_node.domain != ""
                or copy_node.op_type not in _COPY_OPERATORS or stored_tensor(quantized_value) is None
                or len(copy_node.outputs) != 1 or _has_many_scales(node.inputs[1])):
            return False
        output, copied_value = node.outputs[0], copy_node.outputs[0]
        scale, zero_point = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
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

    def _convert_copy_of_quantized_values(self, node: ir.Node) -> bool:
        """Converts an operator that copies quantized values to one that copies dequantized values, followed by a
        quantization."""
        quantized_value = node.inputs[0]
        if quantized_value is None or len([output for output in node.outputs if output.name]) != 1:
            return False
        scale, zero_point = self._scale_by_value[quantized_value]
        inputs = [self._insert_dequantize(node, quantized_value, scale, zero_point), *node.inputs[1:]]
        self._replace_node(node, node.op_type, inputs, list(node.attributes.values()), scale, zero_point)
        return True

    def _replace_node(self, node: ir.Node, operator: str, inputs: Sequence[ir.Value | None], attributes: list[ir.Attr],
                      scale: ir.Value | None, zero_point: ir.Value | None) -> None:
        """Replaces a node by its float operator and a QuantizeLinear that restores the quantized result."""
        new_node = ir.Node("", operator, list(inputs), attributes, name=node.name,
                           metadata_props=dict(node.metadata_props))
        new_node.meta.update(node.meta)
        result, quantized_value = new_node.outputs[0], node.outputs[0]
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), quantized_value.shape
        self._graph.insert_before(node, new_node)
        new_value = result
        if scale is not None:
            result.name = self._fresh_names.make_unique_name(f"{quantized_value.name}__float")
            quantize_inputs = [result, scale] if zero_point is None else [result, scale, zero_point]
            quantize = ir.Node("", "QuantizeLinear", quantize_inputs,
                               name=self._fresh_names.make_unique_name(f"{quantized_value.name}_QuantizeLinear"))
            new_value = quantize.outputs[0]
            new_value.shape = quantized_value.shape
            new_value.type = ir.TensorType(_find_zero_point_type(zero_point))
            self._graph.insert_before(node, quantize)
            self._scale_by_value[new_value] = scale, zero_point
        ir.convenience.replace_all_uses_with(quantized_value, new_value, replace_graph_outputs=True)
        new_value.name, quantized_value.name = quantized_value.name, f"{quantized_value.name}__codes"
        self._graph.remove(node, safe=True)

    # -- operands -----------------------------------------------------------------------------------------------

    def _insert_dequantize(self, node: ir.Node, quantized_value: ir.Value | None, scale: ir.Value | None,
                           zero_point: ir.Value | None, *, axis: int | None = None) -> ir.Value | None:
        if quantized_value is None or scale is None:
            return None
        inputs = [quantized_value, scale] if zero_point is None else [quantized_value, scale, zero_point]
        attributes = [ir.AttrInt64("axis", axis)] if axis is not None and _has_many_scales(scale) else []
        dequantize = ir.Node("", "DequantizeLinear", inputs, attributes,
                             name=self._fresh_names.make_unique_name(f"{quantized_value.name}_DequantizeLinear"))
        output = dequantize.outputs[0]
        output.name = self._fresh_names.make_unique_name(f"{quantized_value.name}__dequantized")
        output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), quantized_value.shape
        self._graph.insert_before(node, dequantize)
        return output

    def _dequantize_bias(self, node: ir.Node, bias: ir.Value, input_scale: ir.Value | None,
                         weight_scale: ir.Value | None) -> ir.Value:
        """Inserts a DequantizeLinear for an INT32 bias, whose scale is the product of the scales of input and weight.
        """
        scales = [stored_tensor(value) for value in (input_scale, weight_scale)]
        assert scales[0] is not None and scales[1] is not None  # checked by _convert_operator
        array = np.asarray(scales[0].numpy().reshape(-1)[:1] * scales[1].numpy().reshape(-1), np.float32)
        name = self._fresh_names.make_unique_name(f"{bias.name}_scale")
        scale = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape),
                         const_value=ir.tensor(array if array.size > 1 else array.reshape(()), name=name))
        if array.size == 1:
            scale.shape = ir.Shape([])
        self._graph.register_initializer(scale)
        new_value = self._insert_dequantize(node, bias, scale, None, axis=0)
        assert new_value is not None
        return new_value


def read_nbits_weights(node: ir.Node) -> tuple[ir.Value, ir.TensorProtocol, ir.TensorProtocol, int] | None:
    """Returns the operands of a MatMulNBits: data, quantized values (K, N), their scales (blocks of K, N), and block
    size.

    Returns None for another operator, for zero points that are not the middle of the range, and for scales that no
    TensorRT accepts. The result is also None for reordered rows and for computed weights. ONNX Runtime's
    ContribOperators.md: the stored array is (N, blocks, bytes of a block), with the lower half of each byte first.
    """
    if (node.domain, node.op_type) != (ORT_DOMAIN, "MatMulNBits"):
        return None
    attributes = node.attributes
    row_count, column_count, block_size = (attributes.get_int(name, 0) for name in ("K", "N", "block_size"))
    padded_inputs = _pad_inputs(node.inputs, 6)
    stored_weight, scales = stored_tensor(padded_inputs[1]), stored_tensor(padded_inputs[2])
    bits = attributes.get_int("bits", 4)
    if (padded_inputs[0] is None or stored_weight is None or stored_weight.dtype is not ir.DataType.UINT8
            or scales is None or bits not in _TYPE_AND_MIDDLE_BY_BITS or row_count < 1 or column_count < 1
            or block_size < 1 or row_count > block_size and row_count % block_size or padded_inputs[4] is not None):
        return None
    scale_values = scales.numpy()
    if not (np.abs(scale_values) > 0 if bits == 4 else scale_values > 0).all():
        return None
    dtype, middle_value = _TYPE_AND_MIDDLE_BY_BITS[bits]
    quantized_values = stored_weight.numpy().reshape(-1)
    if padded_inputs[3] is not None:
        zero_point = stored_tensor(padded_inputs[3])
        if zero_point is None or zero_point.dtype != ir.DataType.UINT8 or (zero_point.numpy() != (0x88 if bits == 4 else
                                                                                                  middle_value)).any():
            return None
    if bits == 4:
        quantized_values = np.stack((quantized_values & 15, quantized_values >> 4), -1)
    block_count = -(-row_count // block_size)
    if quantized_values.size != column_count * block_count * block_size or scales.size != column_count * block_count:
        return None
    centred_values = quantized_values.reshape(column_count, block_count * block_size)[:, :row_count].astype(
        np.int16) - middle_value
    signed_values = np.ascontiguousarray(centred_values.T.astype(dtype.numpy()))
    scale_matrix = np.ascontiguousarray(scale_values.reshape(column_count, block_count).T)
    return (padded_inputs[0], ir.Tensor(signed_values, dtype=dtype, name=f"{node.name}_codes"),
            ir.Tensor(scale_matrix, dtype=scales.dtype, name=f"{node.name}_scales"), min(block_size, row_count))


def _check_stored_type(node: ir.Node, value: ir.Value | None, role: str, is_allowed: Callable[[ir.DataType],
                                                                                              bool]) -> None:
    constant = stored_tensor(value)
    if value is not None and constant is not None and not is_allowed(constant.dtype):
        raise InputError(f"{node.op_type} {node.name} cannot be computed",
                         f"it reads {value.name} as {role}, and that is stored in {constant.dtype.name}",
                         "Quantize the network again in Q/DQ format, or without constants that several layers share "
                         "(ONNX Runtime: quant_pre_process with skip_optimization).")


def _pad_inputs(inputs: Sequence[ir.Value | None], count: int) -> list[ir.Value | None]:
    return [*inputs, *([None] * (count - len(inputs)))]


def _has_many_scales(scale: ir.Value | None) -> bool:
    """Returns True if a stored scale has more than one element."""
    constant = stored_tensor(scale)
    return constant is not None and constant.size > 1


def _find_scale_axis(node: ir.Node, operator_layout: _IntegerOperatorLayout, operand_position: int) -> int | None:
    """Returns the axis along which the scales of an operand are stored; None for one scale."""
    if operand_position == 0:
        return None
    if operator_layout.float_operator == "Conv":
        return 0
    if operator_layout.float_operator == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return -1 if operator_layout.float_operator == "MatMul" else None


def _find_zero_point_type(zero_point: ir.Value | None) -> ir.DataType:
    constant = stored_tensor(zero_point)
    return constant.dtype if constant is not None else ir.DataType.UINT8
