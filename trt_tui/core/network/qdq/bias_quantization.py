"""The quantization of biases by ONNX Runtime, and the scales with which its result is wrong.

Under its default options ONNX Runtime quantizes the bias of a Conv, ConvTranspose, Gemm or MatMul of INT8 values whose
result is quantized. It computes ``bias / (s_in * s_w)`` in the type of the scales, rounds the quotient to INT32 and
dequantizes it with the product of the scales (``WeightBiasQuantization``; seen with 1.31 and 1.32). The result is wrong
if the quotient overflows that type or INT32, or if the product is 0. TensorRT adds the bias in a float type.

A product that is subnormal in FP16 but not 0 does no harm. The division and the multiplication use the same rounded
product, and the quotient keeps the 11 bits of an FP16 bias.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.qdq.source_model import SourceModel
from trt_tui.core.network.qdq.steps import PRECISION_BY_FLOAT_TYPE, is_cast, is_dequantize
from trt_tui.core.precision import FP16_MAX, FP16_MIN, Precision

MAX_BIAS_QUOTIENT = {Precision.FP16: FP16_MAX, Precision.FP32: 2.0**30}
"""The maximum quotient of a bias and the product of its scales, by the type of the scales.

For FP16 this is the largest FP16 value. For FP32 it is half of INT32's range, because an INT8 kernel adds up to 65,536
products of 2^14 to the bias in INT32."""

MIN_BIAS_SCALE = {Precision.FP16: FP16_MIN, Precision.FP32: float(np.finfo(np.float32).tiny)}
"""The minimum product of an input scale and a weight scale, by their type."""

FLOAT_TYPES: Mapping[Precision, np.dtype[Any]] = {
    Precision.FP16: np.dtype(np.float16),
    Precision.FP32: np.dtype(np.float32),
}
"""The NumPy type of a scale, by precision; the limits above apply to these types."""

BIAS_INPUTS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}
"""The index of the bias input, by operator; a MatMul has no such input, and an Add behind it adds its bias."""

_EIGHT_BIT_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


def flag_channels_with_bias_overflow(
    weight_scale: np.ndarray, input_scale: float, bias_magnitudes: np.ndarray, scale_precision: Precision
) -> np.ndarray:
    """Returns a flag for each channel: True if ONNX Runtime cannot quantize its bias.

    Some execution providers round the product of the scales before the division, and some do not; both cases are
    checked.

    Args:
        bias_magnitudes: Largest magnitude of the bias by channel, from `measure_bias_channel_magnitudes`.
        scale_precision: The type of the scales, one of `FLOAT_TYPES`.
    """
    exact_scale = weight_scale.astype(np.float64) * input_scale
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        rounded_scale = exact_scale.astype(FLOAT_TYPES[scale_precision]).astype(np.float64)
        is_too_large = (
            np.maximum(bias_magnitudes / exact_scale, bias_magnitudes / rounded_scale)
            > MAX_BIAS_QUOTIENT[scale_precision]
        )
    return np.asarray(is_too_large | (rounded_scale < MIN_BIAS_SCALE[scale_precision]))


def measure_bias_channel_magnitudes(bias: np.ndarray, channel_count: int) -> np.ndarray:
    """Returns the largest magnitude of a bias for each channel of the weight scale, float64.

    If the size of the bias is not a multiple of the number of channels, all channels get its largest magnitude.
    """
    magnitude = np.abs(np.nan_to_num(bias.astype(np.float64))).ravel()
    if channel_count == 1 or magnitude.size == 0 or magnitude.size % channel_count:
        return np.full(channel_count, magnitude.max(initial=0))
    return np.asarray(magnitude.reshape(-1, channel_count).max(0))


def find_overflowing_biases(source_model: SourceModel) -> list[str]:
    """Returns the nodes of a quantized file whose bias ONNX Runtime cannot quantize, in file order."""
    node_names = []
    for node in source_model.model.graph:
        bias = _find_constant_bias(node)
        steps = [
            source_model.get_qdq_step(producer)
            for value in node.inputs[:2]
            if value is not None and (producer := value.producer()) is not None and is_dequantize(producer)
        ]
        if (
            bias is None
            or len(steps) < 2
            or any(step.quantized_dtype not in _EIGHT_BIT_TYPES or step.block_size for step in steps)
        ):
            continue
        scale_precision = PRECISION_BY_FLOAT_TYPE.get(steps[1].dtype)
        input_scale, weight_scale = (step.scale for step in steps)
        if (
            scale_precision is None
            or scale_precision not in FLOAT_TYPES
            or input_scale is None
            or weight_scale is None
            or input_scale.size != 1
        ):
            continue
        magnitude = measure_bias_channel_magnitudes(
            bias.numpy().astype(FLOAT_TYPES[scale_precision]), weight_scale.size
        )
        if flag_channels_with_bias_overflow(
            weight_scale.ravel(), float(input_scale.reshape(())), magnitude, scale_precision
        ).any():
            node_names.append(node.name or "")
    return node_names


def _find_constant_bias(node: ir.Node) -> ir.TensorProtocol | None:
    """Returns the constant bias of a product; None if there is none."""
    if node.domain:
        return None
    if (index := BIAS_INPUTS.get(node.op_type)) is not None:
        return _find_stored_tensor(node.inputs[index]) if len(node.inputs) > index else None
    users = list(node.outputs[0].uses()) if node.op_type == "MatMul" else []
    if len(users) != 1 or users[0].node.op_type != "Add":
        return None
    return next(filter(None, map(_find_stored_tensor, users[0].node.inputs)), None)


def _find_stored_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Returns the stored tensor of a constant, or of a Cast of a constant; None for any other value."""
    producer = value.producer() if value is not None else None
    return stored_tensor(producer.inputs[0] if producer is not None and is_cast(producer) else value)
