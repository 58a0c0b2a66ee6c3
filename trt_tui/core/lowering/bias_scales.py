"""Raised weight scales, with which ONNX Runtime can quantize biases without overflow, and their cost in accuracy.

If the quantized bias of a channel would overflow, its weight scale is raised to the smallest value that avoids the
overflow; see `trt_tui.core.network.qdq.bias_quantization`. All lowerings and the simulation get the raised scale from
`trt_tui.core.lowering.rulebook`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_tui.core.network.layers import FusionGroup, QdqSite
from trt_tui.core.network.network import Network
from trt_tui.core.network.qdq.bias_quantization import (
    BIAS_INPUTS,
    FLOAT_TYPES,
    MAX_BIAS_QUOTIENT,
    MIN_BIAS_SCALE,
    flag_channels_with_bias_overflow,
    measure_bias_channel_magnitudes,
)
from trt_tui.core.precision import Precision
from trt_tui.formatting import counted_noun_text, name_list_text, number_text

MIN_WARNED_BITS = 1.0
"""The minimum loss of a channel, in bits, that is a warning; smaller losses are a note."""


def find_bias_input(network: Network, group: FusionGroup, qdq_site: QdqSite) -> tuple[str, int] | None:
    """Returns the layer input for the constant bias of a product, present or absent; None if the product cannot have
    such a bias."""
    layer = network.get_layer(qdq_site.layer)
    if (index := BIAS_INPUTS.get(layer.op_type)) is not None:
        tensor = layer.inputs[index] if len(layer.inputs) > index else ""
        return (layer.name, index) if not tensor or tensor in network.constant_tensors else None
    users = network.consumers.get(layer.outputs[0], ())
    reader = network.get_layer(users[0]) if len(users) == 1 else None
    if layer.op_type != "MatMul" or reader is None or reader.op_type != "Add" or reader.name not in group.layers:
        return None
    return next(
        ((reader.name, index) for index, name in enumerate(reader.inputs) if name in network.constant_tensors), None
    )


def raise_weight_scales_for_bias(
    weight_scales: np.ndarray, input_scale: float, bias: np.ndarray, scale_type: Precision
) -> np.ndarray:
    """Returns weight scales with which ONNX Runtime can quantize a bias, float32; the same array if no scale is raised.

    Args:
        weight_scales: One scale per output channel, or one for all, rounded to `scale_type`.
        input_scale: The scale of the input, rounded to `scale_type`.
        bias: Of any shape, rounded to `scale_type`.
        scale_type: The type of the scales, FP16 or FP32.
    """
    magnitude = measure_bias_channel_magnitudes(bias, weight_scales.size).reshape(weight_scales.shape)
    overflowing = flag_channels_with_bias_overflow(weight_scales, input_scale, magnitude, scale_type)
    if not overflowing.any():
        return weight_scales
    dtype = FLOAT_TYPES[scale_type]
    with np.errstate(over="ignore"):
        product = magnitude / MAX_BIAS_QUOTIENT[scale_type]
        rounded = _round_up_to_type(np.maximum(product, MIN_BIAS_SCALE[scale_type]), dtype)
        tie = (rounded.astype(np.float64) + np.nextafter(rounded, np.zeros_like(rounded))) / 2
        candidate = _round_up_to_type(np.maximum(product, tie) / input_scale, dtype)  # the product is rounded, too
        candidate = np.where(
            flag_channels_with_bias_overflow(candidate, input_scale, magnitude, scale_type),
            _next_larger_floats(candidate),
            candidate,
        )  # the rounding is exactly at a tie
    overflowing &= np.isfinite(candidate)  # no scale is large enough for an infinite bias
    result: np.ndarray = np.where(overflowing, candidate, weight_scales).astype(np.float32)
    return result if overflowing.any() else weight_scales


def _round_up_to_type(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns the values rounded up to the next value of a NumPy float type."""
    rounded: np.ndarray = values.astype(dtype)
    return np.where(rounded.astype(np.float64) < values, _next_larger_floats(rounded), rounded)


def _next_larger_floats(values: np.ndarray) -> np.ndarray:
    """Returns, for each value, the next larger value of the same type."""
    larger: np.ndarray = np.nextafter(values, np.full_like(values, np.inf))
    return larger


@dataclass(frozen=True)
class RaisedWeightScales:
    """The raised weight scales of one layer, with their cost.

    Attributes:
        layer: The layer that multiplies by the weight.
        channels: The output channels; empty if the weight has a single scale.
        original_scales: The scales of these channels before they were raised.
        raised_scales: The raised scales.
        weight_sqnr_db: The SQNR of the quantized weight with the original and with the raised scales, in dB; infinite
            if it is exact.
    """

    layer: str
    channels: tuple[int, ...]
    original_scales: np.ndarray
    raised_scales: np.ndarray
    weight_sqnr_db: tuple[float, float]

    @property
    def max_channel_bit_loss(self) -> float:
        return float(np.log2(self.raised_scales / self.original_scales).max())

    @property
    def scale_change_text(self) -> str:
        """The change of the weight scales and its cost in accuracy, as a sentence for users."""
        worst = int(np.argmax(self.raised_scales / self.original_scales))
        channels = [str(channel) for channel in self.channels]
        scale_text = (
            f"the weight scales of {counted_noun_text(len(channels), 'channel')} ({name_list_text(channels)}) go"
            if channels[1:]
            else f"the weight scale of channel {channels[0]} goes"
            if channels
            else "its one weight scale goes"
        )
        channel_text = "" if len(self.channels) < 2 else f" at channel {self.channels[worst]}"
        original_db, raised_db = self.weight_sqnr_db
        cost = (
            f"the SQNR of the weight goes from {original_db:.1f} to {raised_db:.1f} dB"
            if math.isfinite(raised_db)
            else "the weight stays exact"
        )
        return (
            f"{self.layer}: ONNX Runtime cannot quantize its bias under default options, so {scale_text} from "
            f"{number_text(float(self.original_scales[worst]))} to "
            f"{number_text(float(self.raised_scales[worst]))}{channel_text}; it loses "
            f"{self.max_channel_bit_loss:.1f} bits, and {cost}."
        )


def raised_scales_text(scales: Sequence[RaisedWeightScales]) -> str:
    """Returns the largest raise of weight scales as text, with the number of other layers that have raised scales."""
    worst = max(scales, key=lambda scale: scale.max_channel_bit_loss)
    other_count = len({scale.layer for scale in scales}) - 1
    others = counted_noun_text(other_count, "other layer")
    return worst.scale_change_text + (f" The same holds for {others}, with no larger loss." if other_count else "")


_SUMMED_VALUES = 1 << 20
"""Number of values of a weight that are summed at a time in float64."""


def weight_sqnr_db(weight: np.ndarray, dequantized_weight: np.ndarray) -> float:
    """Returns the SQNR of a quantized weight in dB; infinite if it is exact."""
    signal, noise, values, rounded = 0.0, 0.0, weight.reshape(-1), dequantized_weight.reshape(-1)
    for start in range(0, len(values), _SUMMED_VALUES):
        part = values[start : start + _SUMMED_VALUES].astype(np.float64)
        signal += float(np.square(part).sum())
        noise += float(np.square(part - rounded[start : start + _SUMMED_VALUES]).sum())
    return 10 * math.log10(signal / noise) if noise else math.inf
