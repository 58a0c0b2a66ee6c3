"""What QuantizeLinear, DequantizeLinear and Cast nodes of a file do to a tensor, read once and checked.

The arithmetic is ONNX's: ``q = saturate(round_half_even(x / scale) + zero)`` and ``x = (q - zero) * scale``, with one
scale for a tensor, for each index of an axis, or for each block of ``block_size`` along an axis (QuantizeLinear-21).
TensorRT's own operators for the same (domain ``trt``, as ModelOpt writes them) are read as ONNX's.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.words import first_few

LOW_FLOATS = {ir.DataType.FLOAT16: Precision.FP16, ir.DataType.BFLOAT16: Precision.BF16}
"""The float types below FP32."""

FLOATS = {ir.DataType.FLOAT: Precision.FP32, **LOW_FLOATS}
"""The float types that layers compute in."""

WORDS = {ir.DataType.INT8: "INT8", ir.DataType.UINT8: "INT8", ir.DataType.INT16: "INT16", ir.DataType.UINT16: "INT16",
         ir.DataType.INT4: "INT4", ir.DataType.UINT4: "INT4", ir.DataType.INT32: "INT32",
         ir.DataType.FLOAT8E4M3FN: "FP8", ir.DataType.FLOAT8E5M2: "FP8 E5M2", ir.DataType.FLOAT4E2M1: "FP4"}
"""What codes of a type are called."""

ORT_DOMAIN = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

_QUANTIZE = frozenset((("", "QuantizeLinear"), (ORT_DOMAIN, "QuantizeLinear"), ("trt", "TRT_FP8QuantizeLinear"),
                       ("trt", "TRT_INT4QuantizeLinear"), ("trt", "TRT_FP4DynamicQuantize"),
                       ("trt", "TRT_MXFP8DynamicQuantize")))
_DEQUANTIZE = frozenset((("", "DequantizeLinear"), (ORT_DOMAIN, "DequantizeLinear"),
                         ("trt", "TRT_FP8DequantizeLinear"), ("trt", "TRT_INT4DequantizeLinear"),
                         ("trt", "TRT_MXFP8DequantizeLinear")))
_FP8 = ir.DataType.FLOAT8E4M3FN
_OWN_CODES = {"TRT_FP8QuantizeLinear": (_FP8,), "TRT_INT4QuantizeLinear": (ir.DataType.INT4,),
              "TRT_FP4DynamicQuantize": (ir.DataType.FLOAT4E2M1, _FP8),
              "TRT_MXFP8DynamicQuantize": (_FP8, ir.DataType.UINT8)}
"""The codes of operators that name none, by output: those that find scales as they run hand these on as codes too."""


_ORT_ATTRIBUTES = {one: frozenset(names.split()) for one, names in {
    "QuantizeLinear": "axis", "DequantizeLinear": "axis", "QLinearAdd": "", "QLinearMul": "", "QLinearSigmoid": "",
    "QLinearWhere": "", "QLinearLeakyRelu": "alpha", "QLinearSoftmax": "axis opset", "QGemm": "alpha transA transB",
    "QLinearAveragePool": "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides",
    "QLinearConcat": "axis", "QLinearGlobalAveragePool": "channels_last",
    "MatMulNBits": "K N accuracy_level bits block_size weight_prepacked"}.items()}
"""Attributes of ONNX Runtime's own operators that are computed or written otherwise here (ONNX Runtime 1.32)."""


def is_understood(node: ir.Node) -> bool:
    """Whether all attributes of a node are known here.

    A release of ONNX Runtime may give its own operators more of them: such a node is left to it as it is.
    """
    known = _ORT_ATTRIBUTES.get(node.op_type) if node.domain == ORT_DOMAIN else None
    return known is None or all(name in known or name.startswith("__") for name in node.attributes)


def quantizes(node: ir.Node | None) -> bool:
    """Whether a node turns floats into codes."""
    return node is not None and (node.domain, node.op_type) in _QUANTIZE and is_understood(node)


def dequantizes(node: ir.Node | None) -> bool:
    """Whether a node turns codes into floats."""
    return node is not None and (node.domain, node.op_type) in _DEQUANTIZE and is_understood(node)


def casts(node: ir.Node | None) -> bool:
    """Whether a node changes the type of a tensor."""
    return node is not None and node.domain == "" and node.op_type == "Cast"


@dataclass(frozen=True, eq=False)
class Step:
    """What one such node does.

    Attributes:
        operator: "cast", "quantize" or "dequantize".
        dtype: The type of its result.
        scale: Float32, None for a Cast.
        zero: Of the codes' type and the scale's shape; None for a Cast.
        axis: That scales lie along, where there is more than one.
        block: How many values along the axis share a scale, 0 where all do.
        known: Whether scale and zero point are constants; what a run makes of the others is not simulated.
        node: The node's name.
    """

    operator: str
    dtype: ir.DataType
    scale: np.ndarray | None = None
    zero: np.ndarray | None = None
    axis: int = 1
    block: int = 0
    known: bool = True
    node: str = ""

    @property
    def codes(self) -> ir.DataType | None:
        """The type of the codes that it makes or reads; None for a Cast."""
        return None if self.zero is None else ir.DataType.from_numpy(self.zero.dtype)


def read_step(node: ir.Node) -> Step:
    """What a node of the file does; see the module.

    Raises:
        InputError: its scale is zero, negative or NaN, or its sizes do not fit; names the node.
    """
    if casts(node):
        return Step("cast", ir.DataType(node.attributes["to"].as_int()), node=node.name or "")
    operator = "quantize" if quantizes(node) else "dequantize"
    scale, zero = (constant_tensor(node.inputs[index]) if len(node.inputs) > index else None for index in (1, 2))
    given = len(node.inputs) > 2 and node.inputs[2] is not None
    codes = _codes(node, zero)
    floats = scale.dtype if scale is not None else node.inputs[1].dtype if len(node.inputs) > 1 and node.inputs[1] \
        else None
    output = node.attributes.get_int("output_dtype", 0)
    if operator == "dequantize":
        dtype = ir.DataType(output) if output else floats if floats in FLOATS else ir.DataType.FLOAT
    else:
        dtype = codes
    axis = node.attributes.get_int("axis", 1 if node.domain == "" else 0)
    block = node.attributes.get_int("block_size", 0)
    if scale is None or given and zero is None or "Dynamic" in node.op_type or scale.dtype not in FLOATS:
        return Step(operator, dtype, None, np.zeros((), codes.numpy()), axis, block, known=False, node=node.name or "")
    values = scale.numpy().astype(np.float32)
    points = zero.numpy() if zero is not None else np.zeros(values.shape, codes.numpy())
    _check(node, values, points, axis, block)
    if values.size == 1 and not block:
        values, points = values.reshape(()), points.reshape(())
    return Step(operator, dtype, values, points, axis, block, node=node.name or "")


def _codes(node: ir.Node, zero: ir.TensorProtocol | None) -> ir.DataType:
    """The type of the codes that a node makes or reads."""
    if zero is not None:
        return zero.dtype
    if dequantizes(node):
        codes = node.inputs[0]
        stored = constant_tensor(codes)
        if stored is not None:
            return stored.dtype
        producer = codes.producer() if codes is not None else None
        if producer is not None and producer.op_type in _OWN_CODES and codes is not None:
            return _OWN_CODES[producer.op_type][codes.index() or 0]
        if quantizes(producer):
            assert producer is not None
            return _codes(producer, constant_tensor(producer.inputs[2]) if len(producer.inputs) > 2 else None)
        return codes.dtype if codes is not None and codes.dtype is not None else ir.DataType.UINT8
    named = node.attributes.get_int("output_dtype", 0)
    return ir.DataType(named) if named else _OWN_CODES.get(node.op_type, (ir.DataType.UINT8,))[0]


def _check(node: ir.Node, scale: np.ndarray, zero: np.ndarray, axis: int, block: int) -> None:
    def refuse(cause: str) -> InputError:
        readers = first_few([use.node.name or use.node.op_type for use in node.outputs[0].uses()], most=2)
        return InputError(f"{node.op_type} {node.name} cannot be computed", cause,
                          f"Quantize the network again without {readers or 'the layer'}, which reads it (ModelOpt: "
                          "--nodes_to_exclude), or repair this node.")

    flat = scale.reshape(-1)
    # TensorRT-RTX 1.7 takes negative scales of INT4 blocks (ONNX Runtime writes them to use code -8), and no others.
    codes = node.inputs[0] if block and dequantizes(node) else None
    signed = codes is not None and codes.dtype is ir.DataType.INT4
    bad = np.flatnonzero(~((np.abs(flat) if signed else flat) > 0))  # NaN is not above 0 either
    if bad.size or not scale.size:
        which = f" (number {bad[0]} of {scale.size})" if scale.size > 1 else ""
        raise refuse(f"its scale{which} is {flat[bad[0]]:.6g}, and scales are numbers above 0" if bad.size
                     else "it has no scale")
    if zero.shape != scale.shape and not (zero.size == scale.size == 1):
        raise refuse(f"its scale has the shape {scale.shape} and its zero point {zero.shape}")
    value = node.inputs[0]
    shape = value.shape if value is not None else None
    if shape is None or scale.size == 1 and not block:
        return
    rank = len(shape)
    if not -rank <= axis < rank:
        raise refuse(f"its axis is {axis}, and its tensor has {rank} axes")
    size = shape[axis]
    if not isinstance(size, int):
        return
    if block:
        if scale.ndim != rank:
            raise refuse(f"its scales have {scale.ndim} axes, and the tensor they are blocks of has {rank}")
        count = scale.shape[axis]
        if block > size and count == 1:  # as ModelOpt writes short weights
            return
        along = [one for one, total in enumerate(shape) if isinstance(total, int)
                 and total in (scale.shape[one] * block, total if scale.shape[one] == 1 and total < block else 0)]
        if size != count * block and along:
            raise refuse(f"its blocks of {block} lie along axis {along[0]} by the shape of its scales {scale.shape}, "
                         f"and it says axis {axis}")
        if size != count * block:
            raise refuse(f"its blocks of {block} do not divide the {size} values along axis {axis} into {count}")
    elif scale.size != size:
        raise refuse(f"it has {scale.size} scales for the {size} indices of axis {axis}")


# -- arithmetic -----------------------------------------------------------------------------------------------------


def spread(values: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray:
    """Scales or zero points in a form that broadcasts to a tensor's shape."""
    if block:
        return np.repeat(values, block, axis=axis)[tuple(slice(size) for size in shape)]
    if values.size == 1:
        return values.reshape(())
    sizes = [1] * len(shape)
    sizes[axis] = values.size
    return values.reshape(sizes)


def applied(step: Step, array: np.ndarray) -> np.ndarray:
    """What a step makes of an array; floats are float32 with values of the step's type.

    Args:
        array: Float32, or codes for a step that dequantizes.
    """
    if step.operator == "cast":
        return rounded(array, step.dtype)
    assert step.scale is not None and step.zero is not None
    scale = spread(step.scale, array.shape, step.axis, step.block)
    zero = spread(step.zero.astype(np.float32), array.shape, step.axis, step.block)
    if step.operator == "dequantize":
        return rounded((array.astype(np.float32) - zero) * scale, step.dtype)
    codes = step.zero.dtype
    result = np.asarray(array / scale)
    if step.dtype.is_floating_point():
        return saturated(result, step.dtype)
    np.rint(result, out=result)
    result += zero
    low, high = limits(step.dtype)
    return np.asarray(np.clip(result, low, high, out=result)).astype(np.int32).astype(codes)


def limits(dtype: ir.DataType) -> tuple[float, float]:
    """The least and the greatest finite value of a type of codes."""
    if dtype.is_floating_point():
        greatest = float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]
        return -greatest, greatest
    unsigned = dtype in (ir.DataType.UINT4, ir.DataType.UINT8, ir.DataType.UINT16)
    bits = dtype.bitwidth
    return (0.0, 2.0**bits - 1) if unsigned else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)


def saturated(array: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    """Floats as codes of a float type; what lies beyond its greatest is that."""
    low, high = limits(dtype)
    return np.asarray(np.clip(array, low, high).astype(dtype.numpy()))


def rounded(array: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    """Float32 values rounded to a float type, as float32; as they are where it is no lower one."""
    if dtype not in LOW_FLOATS:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype.numpy()).astype(np.float32)
