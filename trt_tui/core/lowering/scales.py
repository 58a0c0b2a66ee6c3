"""The conversion of ranges to scales of quantized types, and the choice of the type in which scales are stored.

If ONNX Runtime's quantization of a bias would overflow in a channel, the weight scale of that channel is raised to the
smallest value that avoids the overflow; see `trt_tui.core.network.qdq.bias_quantization`. All lowerings and the
simulation get the raised scale from `trt_tui.core.lowering.rulebook`, with its cost in accuracy.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_tui.core.lowering.network_rewrite import EditedConstants
from trt_tui.core.moves.config import MOVE_KINDS, PrecisionConfig
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
from trt_tui.core.precision import FP16_MAX, MIN_FP16_SCALE, Precision
from trt_tui.core.quantized_types import INT8, MIN_E4M3, QuantizedType
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, name_list_text


def choose_scale_type(
    scales: Iterable[np.ndarray], boundary_type: Precision, quantized_type: QuantizedType = INT8
) -> Precision:
    """Returns the type in which the scales of a layer's operands are stored.

    The type is FP16 if the boundary type is FP16 and FP16 can represent all scales, else FP32. If only weights are
    quantized, BF16 layers have BF16 scales, because TensorRT-RTX fuses only a DQ whose result has the type of the
    product. FP32 represents the scales of blocks that have a type of their own.
    """
    if quantized_type.block_scale_type:
        return Precision.FP32
    if boundary_type is Precision.BF16 and not quantized_type.quantizes_activations:
        return Precision.BF16
    if boundary_type is not Precision.FP16:
        return Precision.FP32
    fits = all(scale.min() >= MIN_FP16_SCALE and scale.max() <= FP16_MAX for scale in scales)
    return Precision.FP16 if fits else Precision.FP32


def scale_from_amax(amax: np.ndarray | float, quantized_type: QuantizedType = INT8) -> np.ndarray:
    """Returns the scale for an amax, float32. It is 1 for an amax of 0, because any scale maps zero to zero.

    The product of the scale with an E4M3 value, as NVFP4 has for each block, is a normal FP32 number too.
    """
    amax = np.asarray(amax, np.float32)
    min_scale = np.finfo(np.float32).tiny / np.float32(MIN_E4M3 if quantized_type.block_scale_type else 1)
    return np.where(amax > 0, np.maximum(amax / np.float32(quantized_type.max_tensor_value), min_scale), 1).astype(
        np.float32
    )


def find_weight_scale_layout(
    network: Network, qdq_site: QdqSite, quantized_type: QuantizedType
) -> tuple[int | None, int | None]:
    """Returns the axis along which the scales of a weight differ, and the number of values along it that share a scale.

    The axis is None for a single scale, and the number is None for one scale per index.
    """
    shape = network.shape(qdq_site.tensor) or ()
    return quantized_type.find_weight_scale_layout(
        [size if isinstance(size, int) else None for size in shape], qdq_site.axis
    )


def compute_weight_scale(
    edited_constants: EditedConstants,
    qdq_site: QdqSite,
    quantized_type: QuantizedType = INT8,
    fixed_scales: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the scale of a weight, float32, before it is rounded to its stored type.

    `rulebook.QdqScale` describes the layout.

    Args:
        fixed_scales: The scales that a move fixes, flat; None if they follow from the weight.

    Raises:
        InputError: The fixed scales do not fit the weight.
    """
    network = edited_constants.network
    axis, block = find_weight_scale_layout(network, qdq_site, quantized_type)
    if fixed_scales is not None:
        sizes = [size for size in network.shape(qdq_site.tensor) or () if isinstance(size, int)]
        layout = (
            ()
            if axis is None
            else (sizes[axis],)
            if block is None
            else tuple(size // block if index == axis else size for index, size in enumerate(sizes))
        )
        if math.prod(layout) != fixed_scales.size:
            raise InputError(
                f"the fixed scales of {qdq_site.layer} do not fit its weight",
                f"there are {fixed_scales.size} of them for {math.prod(layout)} channels or blocks",
                "Take its rounding out of the config, and measure it again.",
            )
        return fixed_scales.reshape(layout)
    amax = edited_constants.weight_amax(qdq_site, axis, block)
    if not quantized_type.block_scale_type:
        return scale_from_amax(amax, quantized_type)
    return quantized_type.compute_block_scales(amax, compute_tensor_scale(edited_constants, qdq_site, quantized_type))


def compute_tensor_scale(
    edited_constants: EditedConstants, qdq_site: QdqSite, quantized_type: QuantizedType
) -> np.ndarray:
    """Returns the scale of a whole weight, which multiplies the scales of its blocks; 1 if the type does not use
    ranges.
    """
    return (
        scale_from_amax(edited_constants.weight_amax(qdq_site, None, None), quantized_type)
        if quantized_type.needs_ranges
        else np.ones((), np.float32)
    )


def compute_activation_ranges(
    network: Network, calibrated_ranges: Mapping[str, float], config: PrecisionConfig
) -> dict[str, float]:
    """Returns the amax of every tensor that may be quantized, after the range changes of the config's moves.

    The inputs and the output of a Concat all get the largest amax among them, and share range moves. Tensors without a
    range are left out.
    """
    ranges = {
        **calibrated_ranges,
        **{tensor: amax for move in config.moves.values() for tensor, amax in move.fixed_ranges.items()},
    }
    result = {tensor: float(ranges[tensor]) for tensor in network.calibrated_tensors if tensor in ranges}
    for tensors in {
        id(joined_tensors): joined_tensors for joined_tensors in network.tensors_with_shared_range.values()
    }.values():
        amaxes = [float(ranges[name]) for name in tensors if name in ranges]
        result.update((tensor, max(amaxes)) for tensor in tensors if tensor in result)
    order = {kind: position for position, kind in enumerate(MOVE_KINDS)}
    for (_, subject), move in sorted(config.moves.items(), key=lambda item: order.get(item[0][0], len(order))):
        joined_tensors = network.tensors_with_shared_range.get(subject, (subject,))
        move.adjust_ranges(result, [tensor for tensor in joined_tensors if tensor in result or tensor == subject])
    for move in config.moves.values():
        for tensor, factor in move.find_range_factors().items():
            if tensor in result:
                result[tensor] *= factor
    return result


def divide_inner_ranges(network: Network, ranges: Mapping[str, float], config: PrecisionConfig) -> dict[str, float]:
    """Returns ranges in which those of tensors inside groups are divided by the same divisors as the tensors.

    The ranges of other tensors come from moves; see `compute_activation_ranges`. If the divisors of a tensor differ,
    its range contains all quotients.

    Args:
        network: The network before the changes of the config.
    """
    scaled_ranges, calibrated_tensors = dict(ranges), set(network.calibrated_tensors)
    for tensor, divisor in config.find_divisors(network).items():
        if tensor in scaled_ranges and tensor not in calibrated_tensors:
            scaled_ranges[tensor] /= float(divisor.min())
    return scaled_ranges


def compute_activation_scale(
    amax_by_tensor: Mapping[str, float], tensor: str, quantized_type: QuantizedType = INT8
) -> np.ndarray:
    """Returns the scale of an activation; 1 if the type does not use ranges.

    Raises:
        InputError: the activation has no range.
    """
    if not quantized_type.needs_ranges:
        return np.ones((), np.float32)
    if tensor not in amax_by_tensor:
        raise InputError(
            f"no range for tensor {tensor}",
            f"an {quantized_type.precision.label} layer reads it, and the calibration does not have it",
            "Calibrate again with --calib-data, or give the range in the config.",
        )
    return scale_from_amax(amax_by_tensor[tensor], quantized_type)


# -- raised weight scales --------------------------------------------------------------------------------------------

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
    return np.asarray(np.nextafter(values, np.full_like(values, np.inf)))


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
        original_text, raised_text = (f"{value_db:.1f}" for value_db in self.weight_sqnr_db)
        cost = (
            "the weight stays exact"
            if not math.isfinite(self.weight_sqnr_db[1])
            else f"the SQNR of the weight goes from {original_text} to {raised_text} dB"
            if original_text != raised_text
            else f"the weight keeps its SQNR of {raised_text} dB"
        )
        return (
            f"{self.layer}: ONNX Runtime cannot quantize its bias under default options, so {scale_text} from "
            f"{self.original_scales[worst]:.3g} to {self.raised_scales[worst]:.3g}{channel_text}; it loses "
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
