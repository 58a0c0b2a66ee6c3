"""Operators that compute on codes, as ONNX Runtime's quantizer writes them, as Q/DQ with the same codes.

TensorRT takes Q/DQ only. ``QLinearConv(x, w)`` is a Conv of what the codes stand for, quantized again; the definitions
are ONNX's (QLinearConv-10, QLinearMatMul-21) and ONNX Runtime's (``docs/ContribOperators.md``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.naming import FreshNames
from trt_tui.core.network.steps import ORT_DOMAIN, dequantizes, is_understood
from trt_tui.errors import InputError

_NBITS = {4: (ir.DataType.INT4, 8), 8: (ir.DataType.INT8, 128)}
"""By the bits of a MatMulNBits: the codes that it stores without a zero point, and the number that stands for 0."""
_MOVES = frozenset("MaxPool Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Gather Expand".split())
"""Operators that hand on codes as they are, so that they do the same on what these stand for."""


@dataclass(frozen=True)
class _Form:
    """How an operator on codes is read.

    Attributes:
        operator: What it computes on floats.
        operands: Where codes, scale and zero point of each operand lie.
        result: Where scale and zero point of the result lie.
        others: Inputs that are handed on, in front of the operands.
        drops: Attributes that the float operator does not have.
    """

    operator: str
    operands: tuple[int, ...]
    result: tuple[int, int]
    others: tuple[int, ...] = ()
    drops: tuple[str, ...] = ()


_ONE, _TWO = ((0,), (3, 4)), ((0, 3), (6, 7))
_FORMS = {
    ("", "QLinearConv"): _Form("Conv", *_TWO),
    ("", "QLinearMatMul"): _Form("MatMul", *_TWO),
    (ORT_DOMAIN, "QLinearAdd"): _Form("Add", *_TWO),
    (ORT_DOMAIN, "QLinearMul"): _Form("Mul", *_TWO),
    (ORT_DOMAIN, "QLinearAveragePool"): _Form("AveragePool", *_ONE, drops=("channels_last",)),
    (ORT_DOMAIN, "QLinearGlobalAveragePool"): _Form("GlobalAveragePool", *_ONE, drops=("channels_last",)),
    (ORT_DOMAIN, "QLinearSigmoid"): _Form("Sigmoid", *_ONE),
    (ORT_DOMAIN, "QLinearLeakyRelu"): _Form("LeakyRelu", *_ONE),
    (ORT_DOMAIN, "QLinearSoftmax"): _Form("Softmax", *_ONE, drops=("opset",)),
    (ORT_DOMAIN, "QLinearWhere"): _Form("Where", (1, 4), (7, 8), others=(0,)),
    (ORT_DOMAIN, "QGemm"): _Form("Gemm", (0, 3), (7, 8)),
}


def read_as_pairs(graph: ir.Graph) -> int:
    """Turns operators on codes into float operators between DequantizeLinear and QuantizeLinear, in place; returns how
    many. Those with another layout or meaning, and those whose ranges a run computes, are left as they are.

    Raises:
        InputError: stored codes have a type that the operator does not take; names the node.
    """
    return _Reading(graph).run()


class _Reading:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._held_by: dict[ir.Value, tuple[ir.Value, ir.Value | None]] = {}  # scale and zero point of codes

    @cached_property
    def _names(self) -> FreshNames:
        return FreshNames(self._graph, taken=(node.name for node in self._graph if node.name))

    def run(self) -> int:
        count = 0
        for node in filter(is_understood, list(self._graph)):
            if node.op_type == "QuantizeLinear" and len(node.inputs) > 1 and node.inputs[1] is not None:
                self._held_by[node.outputs[0]] = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
            elif node.op_type == "QLinearConcat" and node.domain == ORT_DOMAIN:
                count += self._concat(node)
            elif node.op_type == "MatMulNBits" and node.domain == ORT_DOMAIN:
                count += self._blocks(node)
            elif (form := _FORMS.get((node.domain, node.op_type))) is not None:
                count += self._operator(node, form)
            elif node.domain == "" and node.op_type in _MOVES and node.inputs and node.inputs[0] in self._held_by:
                count += self._moved(node)
        for node in [one for one in self._graph if dequantizes(one)]:
            count += self._stored(node)
        return count

    # -- one operator -------------------------------------------------------------------------------------------

    def _operator(self, node: ir.Node, form: _Form) -> bool:
        attributes = node.attributes
        old = form.operator == "Softmax" and attributes.get_int("opset", 13) < 13
        if attributes.get_int("channels_last", 0) or old:
            return False
        given = _padded(node.inputs, max(*form.result, 8) + 1)
        for first in form.operands:
            _check_type(node, given[first], "codes", lambda dtype: dtype != ir.DataType.INT32)
        constant = [given[first + 1] is not None and constant_tensor(given[first + 1]) is not None
                    for first in form.operands]
        if not all(constant) or given[form.result[0]] is None and form.operator != "Gemm":
            return False
        inputs: list[ir.Value | None] = [given[index] for index in form.others]
        for position, first in enumerate(form.operands):
            inputs.append(self._dequantized(node, *given[first:first + 3], axis=_axis(node, form, position)))
        bias = given[8] if form.operator == "Conv" else given[6] if form.operator == "Gemm" else None
        if bias is not None:
            _check_type(node, bias, "a bias", lambda dtype: dtype == ir.DataType.INT32)
            inputs.append(self._bias(node, bias, given[1], given[4]))
        kept = [one for one in attributes.values() if one.name not in form.drops]
        self._put(node, form.operator, inputs, kept, given[form.result[0]], given[form.result[1]])
        return True

    def _concat(self, node: ir.Node) -> bool:
        given = _padded(node.inputs, len(node.inputs))
        parts = [given[index:index + 3] for index in range(2, len(given), 3)]
        if any(len(part) < 3 or constant_tensor(part[1]) is None for part in parts):
            return False
        inputs: list[ir.Value | None] = [self._dequantized(node, *part) for part in parts]
        self._put(node, "Concat", inputs, list(node.attributes.values()), given[0], given[1])
        return True

    def _blocks(self, node: ir.Node) -> bool:
        """A MatMul by a weight in blocks of 4 or 8 bits, stored column by column, that lie around 0."""
        found = stored_blocks(node)
        if found is None:
            return False
        data, codes, scale, block = found
        inputs = []
        for array, word in ((codes, "codes"), (scale, "scales")):
            name = self._names.new(f"{node.name}_{word}")
            value = ir.Value(name=name, type=ir.TensorType(array.dtype), shape=ir.Shape(array.shape.numpy()),
                             const_value=array)
            self._graph.register_initializer(value)
            inputs.append(value)
        dequantize = ir.node("DequantizeLinear", inputs, {"axis": 0, "block_size": block},
                             name=self._names.new(f"{node.name}_DequantizeLinear"))
        weight = dequantize.outputs[0]
        weight.name = self._names.new(f"{node.name}_weight")
        weight.type, weight.shape = ir.TensorType(scale.dtype), ir.Shape(codes.shape.numpy())
        self._graph.insert_before(node, dequantize)
        bias = node.inputs[5] if len(node.inputs) > 5 else None
        result = node.outputs[0]
        product = ir.Node("", "MatMul", [data, weight], name=node.name, metadata_props=dict(node.metadata_props))
        product.meta.update(node.meta)
        added = [product]
        if bias is not None:
            product.outputs[0].name = self._names.new(f"{result.name}__product")
            product.outputs[0].type, product.outputs[0].shape = result.type, result.shape
            added.append(ir.Node("", "Add", [product.outputs[0], bias], name=self._names.new(f"{node.name}_bias"),
                                 metadata_props=dict(node.metadata_props)))
        self._graph.insert_before(node, added)
        made = added[-1].outputs[0]
        made.type, made.shape = result.type, result.shape
        ir.convenience.replace_all_uses_with(result, made, replace_graph_outputs=True)
        made.name, result.name = result.name, f"{result.name}__packed"
        self._graph.remove(node, safe=True)
        return True

    def _stored(self, node: ir.Node) -> bool:
        """A DequantizeLinear behind an operator that hands on stored codes, in front of it."""
        moves = node.inputs[0].producer() if node.inputs[0] is not None else None
        codes = moves.inputs[0] if moves is not None and moves.inputs else None
        if moves is None or codes is None or moves.domain != "" or moves.op_type not in _MOVES \
                or constant_tensor(codes) is None or len(moves.outputs) != 1 or _many(node.inputs[1]):
            return False
        output, moved = node.outputs[0], moves.outputs[0]
        scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        new = ir.Node("", moves.op_type, [self._dequantized(moves, codes, scale, zero), *moves.inputs[1:]],
                      list(moves.attributes.values()), name=self._names.new(f"{moves.name}__float"),
                      metadata_props=dict(moves.metadata_props))
        new.meta.update(moves.meta)
        made = new.outputs[0]
        made.type, made.shape = ir.TensorType(ir.DataType.FLOAT), moved.shape
        self._graph.insert_before(node, new)
        ir.convenience.replace_all_uses_with(output, made, replace_graph_outputs=True)
        made.name, output.name = output.name, f"{output.name}__behind"
        self._graph.remove(node, safe=True)
        if not moved.uses() and not moved.is_graph_output():
            self._graph.remove(moves, safe=True)
            new.name = moves.name
        return True

    def _moved(self, node: ir.Node) -> bool:
        """An operator that hands on codes, on what they stand for."""
        codes = node.inputs[0]
        if codes is None or len([output for output in node.outputs if output.name]) != 1:
            return False
        scale, zero = self._held_by[codes]
        inputs = [self._dequantized(node, codes, scale, zero), *node.inputs[1:]]
        self._put(node, node.op_type, inputs, list(node.attributes.values()), scale, zero)
        return True

    def _put(self, node: ir.Node, operator: str, inputs: Sequence[ir.Value | None], attributes: list[ir.Attr],
             scale: ir.Value | None, zero: ir.Value | None) -> None:
        """The float operator under the node's name, and a QuantizeLinear that makes the node's codes of its result."""
        new = ir.Node("", operator, list(inputs), attributes, name=node.name, metadata_props=dict(node.metadata_props))
        new.meta.update(node.meta)
        result, codes = new.outputs[0], node.outputs[0]
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), codes.shape
        self._graph.insert_before(node, new)
        made = result
        if scale is not None:
            result.name = self._names.new(f"{codes.name}__float")
            pair = [result, scale] if zero is None else [result, scale, zero]
            quantize = ir.Node("", "QuantizeLinear", pair, name=self._names.new(f"{codes.name}_QuantizeLinear"))
            made = quantize.outputs[0]
            made.shape = codes.shape
            made.type = ir.TensorType(_zero_type(zero))
            self._graph.insert_before(node, quantize)
            self._held_by[made] = scale, zero
        ir.convenience.replace_all_uses_with(codes, made, replace_graph_outputs=True)
        made.name, codes.name = codes.name, f"{codes.name}__codes"
        self._graph.remove(node, safe=True)

    # -- operands -----------------------------------------------------------------------------------------------

    def _dequantized(self, node: ir.Node, codes: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None, *,
                     axis: int | None = None) -> ir.Value | None:
        if codes is None or scale is None:
            return None
        inputs = [codes, scale] if zero is None else [codes, scale, zero]
        attributes = [ir.AttrInt64("axis", axis)] if axis is not None and _many(scale) else []
        dequantize = ir.Node("", "DequantizeLinear", inputs, attributes,
                             name=self._names.new(f"{codes.name}_DequantizeLinear"))
        output = dequantize.outputs[0]
        output.name = self._names.new(f"{codes.name}__dequantized")
        output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), codes.shape
        self._graph.insert_before(node, dequantize)
        return output

    def _bias(self, node: ir.Node, bias: ir.Value, of_input: ir.Value | None, of_weight: ir.Value | None) -> ir.Value:
        """An int32 bias, whose scale is the product of those of input and weight."""
        scales = [constant_tensor(value) for value in (of_input, of_weight)]
        assert scales[0] is not None and scales[1] is not None  # as was looked at
        array = np.asarray(scales[0].numpy().reshape(-1)[:1] * scales[1].numpy().reshape(-1), np.float32)
        name = self._names.new(f"{bias.name}_scale")
        scale = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape),
                         const_value=ir.tensor(array if array.size > 1 else array.reshape(()), name=name))
        if array.size == 1:
            scale.shape = ir.Shape([])
        self._graph.register_initializer(scale)
        made = self._dequantized(node, bias, scale, None, axis=0)
        assert made is not None
        return made


def stored_blocks(node: ir.Node) -> tuple[ir.Value, ir.TensorProtocol, ir.TensorProtocol, int] | None:
    """What a MatMulNBits multiplies: data, codes (K, N), their scales (blocks of K, N), and how long a block is.

    None where it has zero points other than the middle, another order of its rows, weights that are computed, or scales
    that no TensorRT takes.
    ONNX Runtime's ContribOperators.md: codes are (N, blocks, bytes of a block), the lower half of a byte first.
    """
    attributes = node.attributes
    k, n, block = (attributes.get_int(name, 0) for name in ("K", "N", "block_size"))
    given = _padded(node.inputs, 6)
    stored, scales = constant_tensor(given[1]), constant_tensor(given[2])
    bits = attributes.get_int("bits", 4)
    if given[0] is None or stored is None or scales is None or bits not in _NBITS or k < 1 or n < 1 or block < 1 \
            or k > block and k % block or given[4] is not None:
        return None
    floats = scales.numpy()
    if not (np.abs(floats) > 0 if bits == 4 else floats > 0).all():
        return None
    dtype, middle = _NBITS[bits]
    codes = stored.numpy().reshape(-1)
    if given[3] is not None:
        zero = constant_tensor(given[3])
        if zero is None or zero.dtype != ir.DataType.UINT8 or (zero.numpy() != (0x88 if bits == 4 else middle)).any():
            return None
    if bits == 4:
        codes = np.stack((codes & 15, codes >> 4), -1)
    blocks = -(-k // block)
    if codes.size != n * blocks * block or scales.size != n * blocks:
        return None
    held = codes.reshape(n, blocks * block)[:, :k].astype(np.int16) - middle
    signed = np.ascontiguousarray(held.T.astype(dtype.numpy()))
    spread = np.ascontiguousarray(floats.reshape(n, blocks).T)
    return (given[0], ir.Tensor(signed, dtype=dtype, name=f"{node.name}_codes"),
            ir.Tensor(spread, dtype=scales.dtype, name=f"{node.name}_scales"), min(block, k))


def _check_type(node: ir.Node, value: ir.Value | None, what: str, fits: Callable[[ir.DataType], bool]) -> None:
    stored = constant_tensor(value)
    if value is not None and stored is not None and not fits(stored.dtype):
        raise InputError(f"{node.op_type} {node.name} cannot be computed",
                         f"it reads {value.name} as {what}, and that is stored in {stored.dtype.name}",
                         "Quantize the network again in Q/DQ format, or without constants that several layers share "
                         "(ONNX Runtime: quant_pre_process with skip_optimization).")


def _padded(inputs: Sequence[ir.Value | None], count: int) -> list[ir.Value | None]:
    return [*inputs, *([None] * (count - len(inputs)))]


def _many(scale: ir.Value | None) -> bool:
    """Whether there is more than one scale."""
    stored = constant_tensor(scale)
    return stored is not None and stored.size > 1


def _axis(node: ir.Node, form: _Form, position: int) -> int | None:
    """The axis that the scales of an operand lie along."""
    if position == 0:
        return None
    if form.operator == "Conv":
        return 0
    if form.operator == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return -1 if form.operator == "MatMul" else None


def _zero_type(zero: ir.Value | None) -> ir.DataType:
    stored = constant_tensor(zero)
    return stored.dtype if stored is not None else ir.DataType.UINT8
