"""The quantization of biases by ONNX Runtime, and the scales that it cannot work with.

Under its default options ONNX Runtime quantizes the bias of a Conv, ConvTranspose, Gemm or MatMul of INT8 values whose
result is quantized. It computes ``bias / (s_in * s_w)`` in the type of the scales, rounds the quotient to INT32 and
dequantizes it with the product of the scales (``WeightBiasQuantization``; seen with 1.31 and 1.32). The result is wrong
where the quotient overflows that type or INT32, and where the product is 0. TensorRT adds the bias in a float type.

A product that is subnormal in FP16 but not 0 does no harm: the same rounded product divides and multiplies, and the
quotient keeps the 11 bits of an FP16 bias.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.given import Given
from trt_tui.core.network.steps import FLOATS, casts, dequantizes
from trt_tui.core.precision import FP16_LEAST, FP16_MAX, Precision

MAX_BIAS_QUOTIENT = {Precision.FP16: FP16_MAX, Precision.FP32: 2.0**30}
"""The largest quotient of a bias and the product of its scales by the type of the scales: the largest FP16
value, and half of INT32's range, since an INT8 kernel adds up to 65,536 products of 2^14 to it in INT32."""

MIN_BIAS_SCALE = {Precision.FP16: FP16_LEAST, Precision.FP32: float(np.finfo(np.float32).tiny)}
"""The least product of an input scale and a weight scale, by their type."""

FLOAT_TYPES: Mapping[Precision, np.dtype[Any]] = {Precision.FP16: np.dtype(np.float16),
                                                  Precision.FP32: np.dtype(np.float32)}
"""The types of scales for which this holds."""

BIAS_INPUTS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}
"""The index of the bias, by operator; that of a MatMul is added behind it."""

_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)


def overflows(weight_scale: np.ndarray, input_scale: float, magnitude: np.ndarray, held: Precision) -> np.ndarray:
    """Returns True for each channel whose bias ONNX Runtime cannot quantize.

    Providers round the product of the scales before they divide, or not: both are looked at.

    Args:
        magnitude: Of the bias, by channel; see `magnitude_by_channel`.
        held: The type of the scales, one of `FLOAT_TYPES`.
    """
    exact = weight_scale.astype(np.float64) * input_scale
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        rounded = exact.astype(FLOAT_TYPES[held]).astype(np.float64)
        over = np.maximum(magnitude / exact, magnitude / rounded) > MAX_BIAS_QUOTIENT[held]
    harmful: np.ndarray = over | (rounded < MIN_BIAS_SCALE[held])
    return harmful


def magnitude_by_channel(bias: np.ndarray, channels: int) -> np.ndarray:
    """Returns the largest magnitude of a bias by the channel of a weight scale, float64.

    A bias whose size is no multiple of the channels counts with its largest magnitude for all of them.
    """
    magnitude = np.abs(np.nan_to_num(bias.astype(np.float64))).ravel()
    if channels == 1 or magnitude.size == 0 or magnitude.size % channels:
        return np.full(channels, magnitude.max(initial=0))
    largest: np.ndarray = magnitude.reshape(-1, channels).max(0)
    return largest


def overflowing_biases(given: Given) -> list[str]:
    """Returns the nodes of a quantized file whose bias ONNX Runtime cannot quantize, in the file's order."""
    found = []
    for node in given.model.graph:
        bias = _bias(node)
        steps = [given.step(maker) for value in node.inputs[:2] if value is not None
                 and (maker := value.producer()) is not None and dequantizes(maker)]
        if bias is None or len(steps) < 2 or any(step.codes not in _EIGHT_BITS or step.block for step in steps):
            continue
        held = FLOATS.get(steps[1].dtype)
        read, weight = (step.scale for step in steps)
        if held is None or held not in FLOAT_TYPES or read is None or weight is None or read.size != 1:
            continue
        magnitude = magnitude_by_channel(bias.numpy().astype(FLOAT_TYPES[held]), weight.size)
        if overflows(weight.ravel(), float(read.reshape(())), magnitude, held).any():
            found.append(node.name or "")
    return found


def _bias(node: ir.Node) -> ir.TensorProtocol | None:
    """Returns the constant bias of a product, None if it has none."""
    if node.domain:
        return None
    if (index := BIAS_INPUTS.get(node.op_type)) is not None:
        return _stored(node.inputs[index]) if len(node.inputs) > index else None
    users = list(node.outputs[0].uses()) if node.op_type == "MatMul" else []
    if len(users) != 1 or users[0].node.op_type != "Add":
        return None
    return next(filter(None, map(_stored, users[0].node.inputs)), None)


def _stored(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Returns a stored constant, also one behind a Cast."""
    maker = value.producer() if value is not None else None
    return constant_tensor(maker.inputs[0] if maker is not None and casts(maker) else value)
