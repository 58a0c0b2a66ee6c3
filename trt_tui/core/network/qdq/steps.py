"""The effects of QuantizeLinear, DequantizeLinear and Cast nodes of a file on the tensors that they read.

Each node is read once and checked. The arithmetic is ONNX's (QuantizeLinear-21): ``q = saturate(round_half_even(x /
scale) + zero)`` and ``x = (q - zero) * scale``. There is one scale for a tensor, for each index of an axis, or for each
block of ``block_size`` along an axis. TensorRT's own operators for the same purpose (domain ``trt``, as ModelOpt writes
them) are read in the same way.

TensorRT's operators for MXFP8 and NVFP4 compute the scales of blocks at run time. `trt_tui.core.quantized_types`
defines their arithmetic.
"""

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import stored_tensor
from trt_tui.core.network.operators import FOREIGN_SCHEMAS, ORT_DOMAIN, TENSORRT_DOMAIN
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import MXFP8, NVFP4, QuantizedType, broadcast_scales
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

PRECISION_BY_HALF_TYPE = {ir.DataType.FLOAT16: Precision.FP16, ir.DataType.BFLOAT16: Precision.BF16}
"""The float types below FP32, with their precisions."""

PRECISION_BY_FLOAT_TYPE = {ir.DataType.FLOAT: Precision.FP32, **PRECISION_BY_HALF_TYPE}
"""The float types that layers compute in, with their precisions."""

TYPE_NAMES = {
    ir.DataType.INT8: "INT8",
    ir.DataType.UINT8: "INT8",
    ir.DataType.INT16: "INT16",
    ir.DataType.UINT16: "INT16",
    ir.DataType.INT4: "INT4",
    ir.DataType.UINT4: "INT4",
    ir.DataType.INT32: "INT32",
    ir.DataType.FLOAT8E4M3FN: "FP8",
    ir.DataType.FLOAT8E5M2: "FP8 E5M2",
    ir.DataType.FLOAT4E2M1: "FP4",
}
"""The names of quantized types for users."""

_QUANTIZE_OPERATORS = frozenset(
    (
        ("", "QuantizeLinear"),
        (ORT_DOMAIN, "QuantizeLinear"),
        *(
            (TENSORRT_DOMAIN, f"TRT_{name}")
            for name in ("FP8QuantizeLinear", "INT4QuantizeLinear", "FP4DynamicQuantize", "MXFP8DynamicQuantize")
        ),
    )
)
_DEQUANTIZE_OPERATORS = frozenset(
    (
        ("", "DequantizeLinear"),
        (ORT_DOMAIN, "DequantizeLinear"),
        *((TENSORRT_DOMAIN, f"TRT_{name}DequantizeLinear") for name in ("FP8", "INT4", "MXFP8")),
    )
)
_FP8 = ir.DataType.FLOAT8E4M3FN
_IMPLICIT_TYPES = {
    "TRT_FP8QuantizeLinear": (_FP8,),
    "TRT_INT4QuantizeLinear": (ir.DataType.INT4,),
    "TRT_FP4DynamicQuantize": (ir.DataType.FLOAT4E2M1, _FP8),
    "TRT_MXFP8DynamicQuantize": (_FP8, ir.DataType.UINT8),
}
"""The types of the outputs of operators that do not state a quantized type, by operator.

Operators that compute scales at run time return these as quantized values, too."""


_BLOCK_TYPES = {"TRT_MXFP8DynamicQuantize": MXFP8, "TRT_FP4DynamicQuantize": NVFP4}
"""The block types by TensorRT's operator that quantizes to them."""

_DEFAULT_AXES = {"TRT_MXFP8DynamicQuantize": -1, "TRT_FP4DynamicQuantize": 1}
"""The axis that TensorRT's parser assumes if these operators state none (onnx-tensorrt, onnxOpImporters.cpp)."""


def has_known_attributes(node: ir.Node) -> bool:
    """Returns True if a node has no attributes that the program does not know.

    A release of ONNX Runtime may add attributes to its own operators. Nodes with unknown attributes are not changed.
    """
    schema = FOREIGN_SCHEMAS.get((node.domain, node.op_type)) if node.domain == ORT_DOMAIN else None
    return schema is None or all(name in schema.attributes or name.startswith("__") for name in node.attributes)


def is_quantize(node: ir.Node | None) -> bool:
    return node is not None and (node.domain, node.op_type) in _QUANTIZE_OPERATORS and has_known_attributes(node)


def is_dequantize(node: ir.Node | None) -> bool:
    return node is not None and (node.domain, node.op_type) in _DEQUANTIZE_OPERATORS and has_known_attributes(node)


def is_cast(node: ir.Node | None) -> bool:
    return node is not None and node.domain == "" and node.op_type == "Cast"


@dataclass(frozen=True, eq=False)
class QdqStep:
    """The effect of a QuantizeLinear, DequantizeLinear or Cast node on the tensor that it reads.

    Attributes:
        operator: "cast", "quantize" or "dequantize".
        dtype: The type of the result.
        scale: Float32; None for a Cast.
        zero_point: Has the quantized type and the shape of the scale; None for a Cast.
        axis: The axis along which there is more than one scale.
        block_size: Number of values along the axis that share a scale; 0 if all do.
        is_constant: True if scale and zero point are constants, or are the computed scales of ``block_type``. Other
            steps are not simulated.
        node_name: The name of the node.
        block_type: MXFP8 or NVFP4 for scales of that type; None for others. A step that quantizes then computes the
            scales of its blocks, and ``scale`` is the scale of the tensor. A step that dequantizes the result has no
            scale. A step that dequantizes a constant has the scales of the blocks.
        shape: The shape of the tensor that a step with ``block_type`` quantizes.
    """

    operator: str
    dtype: ir.DataType
    scale: np.ndarray | None = None
    zero_point: np.ndarray | None = None
    axis: int = 1
    block_size: int = 0
    is_constant: bool = True
    node_name: str = ""
    block_type: QuantizedType | None = None
    shape: tuple[int | str | None, ...] = ()

    @property
    def computes_scales(self) -> bool:
        """True if the step quantizes in blocks and computes their scales."""
        return self.block_type is not None and self.operator == "quantize"

    @property
    def type_name(self) -> str:
        """The name of the quantized type for users; "" for a Cast."""
        if self.quantized_dtype is None:
            return ""
        return (
            self.block_type.precision.label
            if self.block_type is not None
            else TYPE_NAMES.get(self.quantized_dtype, self.quantized_dtype.name)
        )

    @property
    def quantized_dtype(self) -> ir.DataType | None:
        """The quantized type of the values that the step writes or reads; None for a Cast."""
        return None if self.zero_point is None else ir.DataType.from_numpy(self.zero_point.dtype)


def read_qdq_step(node: ir.Node) -> QdqStep:
    """Reads the effect of a QuantizeLinear, DequantizeLinear or Cast node.

    Raises:
        InputError: the scale is zero, negative or NaN, or sizes do not match; the error names the node.
    """
    if is_cast(node):
        return QdqStep("cast", ir.DataType(node.attributes["to"].as_int()), node_name=node.name or "")
    operator = "quantize" if is_quantize(node) else "dequantize"
    scale, zero_point = (stored_tensor(node.inputs[index]) if len(node.inputs) > index else None for index in (1, 2))
    has_zero_point = len(node.inputs) > 2 and node.inputs[2] is not None
    quantized_dtype = _find_quantized_dtype(node, zero_point)
    scale_type = (
        scale.dtype if scale is not None else node.inputs[1].dtype if len(node.inputs) > 1 and node.inputs[1] else None
    )
    output = node.attributes.get_int("output_dtype", 0)
    if operator == "dequantize":
        dtype = (
            ir.DataType(output)
            if output
            else scale_type
            if scale_type in PRECISION_BY_FLOAT_TYPE
            else ir.DataType.FLOAT
        )
    else:
        dtype = quantized_dtype
    axis = node.attributes.get_int("axis", 1 if node.domain == "" else 0)
    block_size = node.attributes.get_int("block_size", 0)
    if (block_step := _read_block_qdq_step(node, quantized_dtype, dtype)) is not None:
        return block_step
    if (
        scale is None
        or has_zero_point
        and zero_point is None
        or "Dynamic" in node.op_type
        or scale.dtype not in PRECISION_BY_FLOAT_TYPE
    ):
        return QdqStep(
            operator,
            dtype,
            None,
            np.zeros((), quantized_dtype.numpy()),
            axis,
            block_size,
            is_constant=False,
            node_name=node.name or "",
        )
    values = scale.numpy().astype(np.float32)
    zero_points = zero_point.numpy() if zero_point is not None else np.zeros(values.shape, quantized_dtype.numpy())
    _check_scales(node, values, zero_points, axis, block_size)
    if values.size == 1 and not block_size:
        values, zero_points = values.reshape(()), zero_points.reshape(())
    return QdqStep(operator, dtype, values, zero_points, axis, block_size, node_name=node.name or "")


def _read_block_qdq_step(node: ir.Node, quantized_dtype: ir.DataType, dtype: ir.DataType) -> QdqStep | None:
    """Returns the effect of a node that quantizes to MXFP8 or NVFP4, or dequantizes from it; None for any other node."""
    zero_point = np.zeros((), quantized_dtype.numpy())
    if is_quantize(node):
        block_type, value = find_block_type(node), node.inputs[0]
        uses = node.outputs[0].uses()
        if (
            block_type is None
            or value is None
            or value.shape is None
            or not uses
            or any(use.idx or _find_scale_source(use.node) is not node for use in uses)
        ):
            return None
        scale = _read_scalar(node.inputs[1]) if block_type.needs_ranges else np.ones((), np.float32)
        assert scale is not None, "find_block_type has found it"
        axis = node.attributes.get_int("axis", _DEFAULT_AXES[node.op_type]) % len(value.shape)
        return QdqStep(
            "quantize",
            dtype,
            scale,
            zero_point,
            axis,
            block_type.block_sizes[0],
            node_name=node.name or "",
            block_type=block_type,
            shape=tuple(size if isinstance(size, int) else None for size in value.shape),
        )
    source = _find_scale_source(node)
    if source is not None and (step := _read_block_qdq_step(source, quantized_dtype, quantized_dtype)) is not None:
        return replace(step, operator="dequantize", dtype=dtype, scale=None, node_name=node.name or "")
    scales = _read_block_scales(node)
    if scales is None or stored_tensor(node.inputs[0]) is None:
        return None
    values, block_type = scales
    axis = node.attributes.get_int("axis", 1)
    block_size = node.attributes.get_int("block_size", block_type.block_sizes[0])
    zero_points = np.zeros(values.shape, quantized_dtype.numpy())
    _check_scales(node, values, zero_points, axis, block_size)
    return QdqStep(
        "dequantize", dtype, values, zero_points, axis, block_size, node_name=node.name or "", block_type=block_type
    )


def find_block_type(node: ir.Node) -> QuantizedType | None:
    """Returns the block type of one of TensorRT's quantizing nodes; None if the node is not simulated.

    The blocked axis must be one of the last two, and the block size must divide it. The scale of the tensor must be
    constant.
    """
    block_type = _BLOCK_TYPES.get(node.op_type) if node.domain == TENSORRT_DOMAIN else None
    shape = node.inputs[0].shape if block_type is not None and node.inputs[0] is not None else None
    if block_type is None or shape is None or len(shape) < 2:
        return None
    axis = node.attributes.get_int("axis", _DEFAULT_AXES[node.op_type])
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    (block_size,) = block_type.block_sizes
    if (
        axis % len(shape) < len(shape) - 2
        or not isinstance(size, int)
        or size % block_size
        or node.attributes.get_int("block_size", block_size) != block_size
    ):
        return None
    return block_type if not block_type.needs_ranges or _read_scalar(node.inputs[1]) is not None else None


def _find_scale_source(node: ir.Node) -> ir.Node | None:
    """Returns the node that computes the scales of a DequantizeLinear at run time for its blocks; None if there is
    none.

    In NVFP4 another DequantizeLinear multiplies the scales by the scale of the tensor.
    """
    if not is_dequantize(node) or len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    scales, source = node.inputs[1], node.inputs[1].producer()
    if source is not None and source.op_type == "DequantizeLinear" and source.inputs[0] is not None:
        scales, tensor_scale = source.inputs[0], source.inputs[1]
        source = scales.producer()
        if (
            source is None
            or len(source.inputs) < 2
            or _read_scalar(source.inputs[1]) is None
            or _read_scalar(source.inputs[1]) != _read_scalar(tensor_scale)
        ):
            return None
    if (
        source is None
        or source.op_type not in _BLOCK_TYPES
        or scales is not source.outputs[1]
        or node.inputs[0] is not source.outputs[0]
        or source.inputs[0] is None
    ):
        return None
    rank = len(source.inputs[0].shape or ())
    axes = (node.attributes.get_int("axis", 1), source.attributes.get_int("axis", _DEFAULT_AXES[source.op_type]))
    return source if rank and axes[0] % rank == axes[1] % rank else None


def _read_scalar(value: ir.Value | None) -> np.ndarray | None:
    """Returns the FP32 scalar that a value stores if it is positive and finite; None otherwise."""
    tensor = stored_tensor(value)
    array = tensor.numpy().astype(np.float32) if tensor is not None and tensor.size == 1 else np.zeros(1, np.float32)
    return array.reshape(()) if 0 < array.reshape(()) < np.inf else None


def _read_block_scales(node: ir.Node) -> tuple[np.ndarray, QuantizedType] | None:
    """Returns the constant scales of MXFP8 or NVFP4 blocks, float32, and that type; None for other scales.

    MXFP8 stores exponents as bytes, with a bias of 127; 255 is NaN. NVFP4 stores E4M3 values before another
    DequantizeLinear.
    """
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is None:
        return None
    if node.op_type == "TRT_MXFP8DequantizeLinear":
        exponents = stored_tensor(value)
        return (
            None
            if exponents is None
            else (exponents.numpy().view(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32), MXFP8)
        )
    source = value.producer()
    if source is None or not is_dequantize(source) or _find_quantized_dtype(node, None) is not ir.DataType.FLOAT4E2M1:
        return None
    scales, tensor_scale = (stored_tensor(item) for item in source.inputs[:2])
    if scales is None or tensor_scale is None or scales.dtype is not _FP8 or tensor_scale.size != 1:
        return None
    return scales.numpy().astype(np.float32) * tensor_scale.numpy().astype(np.float32).reshape(()), NVFP4


def _find_quantized_dtype(node: ir.Node, zero_point: ir.TensorProtocol | None) -> ir.DataType:
    """Returns the quantized type that a node writes or reads."""
    if zero_point is not None:
        return zero_point.dtype
    if is_dequantize(node):
        quantized_value = node.inputs[0]
        constant = stored_tensor(quantized_value)
        if constant is not None:
            return constant.dtype
        producer = quantized_value.producer() if quantized_value is not None else None
        if producer is not None and producer.op_type in _IMPLICIT_TYPES and quantized_value is not None:
            return _IMPLICIT_TYPES[producer.op_type][quantized_value.index() or 0]
        if is_quantize(producer):
            assert producer is not None
            return _find_quantized_dtype(
                producer, stored_tensor(producer.inputs[2]) if len(producer.inputs) > 2 else None
            )
        return (
            quantized_value.dtype
            if quantized_value is not None and quantized_value.dtype is not None
            else ir.DataType.UINT8
        )
    declared_type = node.attributes.get_int("output_dtype", 0)
    return ir.DataType(declared_type) if declared_type else _IMPLICIT_TYPES.get(node.op_type, (ir.DataType.UINT8,))[0]


def _check_scales(node: ir.Node, scale: np.ndarray, zero_point: np.ndarray, axis: int, block_size: int) -> None:
    def unusable_scale_error(cause: str) -> InputError:
        readers = name_list_text([use.node.name or use.node.op_type for use in node.outputs[0].uses()], max_count=2)
        return InputError(
            f"{node.op_type} {node.name} cannot be computed",
            cause,
            f"Quantize the network again without {readers or 'the layer'}, which reads it (ModelOpt: "
            "--nodes_to_exclude), or repair this node.",
        )

    flat_scale = scale.reshape(-1)
    # TensorRT-RTX 1.7 accepts negative scales only for INT4 blocks; ONNX Runtime writes them to use the value -8.
    quantized_input = node.inputs[0] if block_size and is_dequantize(node) else None
    allows_negative = quantized_input is not None and quantized_input.dtype is ir.DataType.INT4
    invalid_indices = np.flatnonzero(~((np.abs(flat_scale) if allows_negative else flat_scale) > 0))  # also finds NaN
    if invalid_indices.size or not scale.size:
        position_text = f" (number {invalid_indices[0]} of {scale.size})" if scale.size > 1 else ""
        raise unusable_scale_error(
            f"its scale{position_text} is {flat_scale[invalid_indices[0]]:.6g}, and a scale must be above 0"
            if invalid_indices.size
            else "it has no scale"
        )
    if zero_point.shape != scale.shape and not (zero_point.size == scale.size == 1):
        raise unusable_scale_error(f"its scale has the shape {scale.shape} and its zero point {zero_point.shape}")
    value = node.inputs[0]
    shape = value.shape if value is not None else None
    if shape is None or scale.size == 1 and not block_size:
        return
    rank = len(shape)
    if not -rank <= axis < rank:
        raise unusable_scale_error(f"its axis is {axis}, and its tensor has {rank} axes")
    size = shape[axis]
    if not isinstance(size, int):
        return
    if block_size:
        if scale.ndim != rank:
            raise unusable_scale_error(
                f"its scales have {scale.ndim} axes, and the tensor they are blocks of has {rank}"
            )
        count = scale.shape[axis]
        if block_size > size and count == 1:  # ModelOpt writes short weights in this form
            return
        if size != count * block_size:
            raise unusable_scale_error(
                f"its blocks of {block_size} do not divide the {size} values along axis {axis} into {count}"
            )
    elif scale.size != size:
        raise unusable_scale_error(f"it has {scale.size} scales for the {size} indices of axis {axis}")


# -- arithmetic -----------------------------------------------------------------------------------------------------


def apply_qdq_step(step: QdqStep, array: np.ndarray) -> np.ndarray:
    """Returns the result of a conversion step on an array. Float results are float32, rounded to the type of the step.

    Args:
        array: Float32, or quantized values if the step dequantizes.
    """
    if step.operator == "cast":
        return round_to_type(array, step.dtype)
    assert step.scale is not None and step.zero_point is not None
    scale = broadcast_scales(step.scale, array.shape, step.axis, step.block_size)
    zero_point = broadcast_scales(step.zero_point.astype(np.float32), array.shape, step.axis, step.block_size)
    if step.operator == "dequantize":
        return round_to_type((array.astype(np.float32) - zero_point) * scale, step.dtype)
    quantized_dtype = step.zero_point.dtype
    result = np.asarray(array / scale)
    low, high = type_limits(step.dtype)
    if step.dtype.is_floating_point():
        return np.asarray(np.clip(result, low, high).astype(step.dtype.numpy()))
    np.rint(result, out=result)
    result += zero_point
    return np.asarray(np.clip(result, low, high, out=result)).astype(np.int32).astype(quantized_dtype)


def type_limits(dtype: ir.DataType) -> tuple[float, float]:
    """Returns the smallest and the largest finite value of a quantized type."""
    find_limits = ml_dtypes.finfo if dtype.is_floating_point() else ml_dtypes.iinfo
    limits = find_limits(dtype.numpy())
    return float(limits.min), float(limits.max)


def round_to_type(array: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    """Returns float32 values rounded to FP16 or BF16, as float32; for any other type the values do not change."""
    if dtype not in PRECISION_BY_HALF_TYPE:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype.numpy()).astype(np.float32)
