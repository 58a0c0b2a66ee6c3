"""The rulebook of lowering: it determines the precision, types and scales of each fusion group in a config.

All lowerings and the simulation use the rulebook and make no such decisions themselves. The rules follow from the
engine layers that TensorRT-RTX 1.7 lists:

- A layer runs in INT8 only if its results have the type of its scales, or if they are 16 bit and its scales FP32. Q/DQ
  with FP16 scales before an FP32 layer leave a Conv in FP32.
- The scales of a layer's operands must have one type. If not, a MatMul is refused ("type mismatch between matmul
  operand scales"). The skip of a residual Add is an operand of the Add and not of the Conv before it.

If ONNX Runtime's quantization of a bias would overflow in a channel, the weight scale of that channel is raised to the
smallest value that avoids the overflow; see `trt_tui.core.network.qdq.source_model`. The raised scale is reported with
its cost in accuracy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.calibration import select_ranges_for_type
from trt_tui.core.lowering.network_rewrite import (
    EditedConstants,
    has_constant_edits,
    list_normalisation_rewrites,
)
from trt_tui.core.moves.config import MOVE_KINDS, PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, QdqSite
from trt_tui.core.network.model_file import get_onnx_schema
from trt_tui.core.network.network import FP16_MASK_VALUE, Network
from trt_tui.core.network.qdq.source_model import (
    BIAS_INPUTS,
    FLOAT_TYPES,
    MAX_BIAS_QUOTIENT,
    MIN_BIAS_SCALE,
    flag_channels_with_bias_overflow,
    measure_bias_channel_magnitudes,
)
from trt_tui.core.precision import FP16_MAX, FP16_MIN, MIN_FP16_SCALE, MIN_OPSETS, Precision
from trt_tui.core.quantized_types import (
    INT8,
    MIN_E4M3,
    QUANTIZED_TYPES,
    TYPES_WITH_RANGES,
    QuantizedType,
    broadcast_scales,
)
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


ONNX_TYPES = {
    Precision.FP32: ir.DataType.FLOAT,
    Precision.FP16: ir.DataType.FLOAT16,
    Precision.BF16: ir.DataType.BFLOAT16,
}
"""The ONNX float type of each precision."""

REDUCED_OPERAND_TYPES = (*QUANTIZED_TYPES, Precision.TF32)
"""The types that operands of a product can be converted to, besides the float type around the product."""

HALF_PRECISIONS = (Precision.FP16, Precision.BF16)
"""The float precisions below FP32."""

MASK_LIMITS = {Precision.FP16: FP16_MASK_VALUE, Precision.BF16: 2.0**127}
"""The magnitude that a mask constant is clamped to if the precision cannot represent it.

The smallest FP32 number becomes -Inf in BF16 too."""

ALL_SAME_TYPE = frozenset("Attention GridSample LinearAttention Pow RMSNormalization".split())
"""Operators whose float inputs and outputs may differ in type in ONNX, but not in TensorRT."""

VALUE_PRESERVING = frozenset(
    "Relu MaxPool GlobalMaxPool Max Min Abs Neg Clip Sign ReduceMax ReduceMin Where ThresholdedRelu Floor Ceil "
    "Round".split()
)
"""Operators whose results can be represented in the precision of their inputs without rounding."""

TF32_SPLIT, TF32_BOUND = 2.0**13 + 1, 2.0**100
"""The factor and the bound of rounding to TF32, which keeps 10 bits of a mantissa of 23.

``x`` becomes ``c - (c - x)`` with ``c = (2**13 + 1) x`` (Veltkamp's splitting; Dekker, "A floating-point technique for
extending the available precision", 1971) if its magnitude is below the bound."""

ARITHMETIC_VERSION = 18
"""The version of the arithmetic; stored results of another version are measured again.

It must be increased if a change here, or in the fusion rules, gives other results for the same config."""


# -- types ---------------------------------------------------------------------------------------------------------


def find_boundary_type(group: FusionGroup, precision: Precision, other_precision: Precision) -> Precision:
    """Returns the boundary type of a fusion group: the float type of its inputs and outputs.

    For a float precision it is that precision. For a quantized group it is the float type of the other layers if the
    group supports it, and FP32 if not. For a group in file precision it is the float type of its results in the file.
    """
    if precision not in QUANTIZED_TYPES and precision is not Precision.FILE:
        return precision.value_type
    if Precision.FILE in (precision, other_precision):
        return group.file_precision.result_type if group.file_precision is not None else Precision.FP32
    return other_precision if other_precision in group.allowed_precisions else Precision.FP32


def precision_refusal_reason(group: FusionGroup, config: PrecisionConfig) -> str:
    """Returns the reason why a fusion group does not get its requested precision; "" if it does."""
    requested = config.requested_precision(group)
    return (
        group.refusal_reasons.get(config.other, group.refusal_reasons[requested])
        if requested in group.refusal_reasons
        else ""
    )


def required_opset(float_types: Collection[Precision], quantized_types: Collection[Precision] = ()) -> int:
    return max(
        [
            MIN_OPSETS[Precision.FP32],
            *(MIN_OPSETS[precision] for precision in float_types),
            *(QUANTIZED_TYPES[precision].min_opset for precision in quantized_types),
        ]
    )


def flag_tensors_of_result_type(node: ir.Node, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Returns a flag for each input and each output of a node: True if its type must equal that of the first output.

    The flags come from the schema of the operator.
    """
    return _flag_schema_parameters_of_result_type(node.op_type, opset, len(node.inputs), len(node.outputs))


@functools.cache
def _flag_schema_parameters_of_result_type(
    op_type: str, opset: int, input_count: int, output_count: int
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    schema = get_onnx_schema(op_type, opset)
    main = schema.outputs[0].type_str
    inputs, outputs = (
        tuple(
            op_type in ALL_SAME_TYPE or parameters[min(index, len(parameters) - 1)].type_str == main
            for index in range(count)
        )
        for parameters, count in ((schema.inputs, input_count), (schema.outputs, output_count))
    )
    return inputs, outputs


def find_compute_type_results(network: Network, layer: Layer) -> list[str]:
    """Returns the float results of a layer whose type is that of its computation."""
    if layer.kind is LayerKind.OPAQUE:
        return []
    is_typed_output = flag_tensors_of_result_type(network.node(layer.name), network.opset)[1]
    return [
        tensor
        for tensor, is_typed in zip(layer.outputs, is_typed_output, strict=True)
        if is_typed and tensor and network.is_fp32(tensor)
    ]


def round_to_precision(array: np.ndarray, precision: Precision) -> np.ndarray:
    """Returns float32 values rounded to a float precision, as float32."""
    if precision is Precision.FP32:
        return array
    if precision is Precision.TF32:
        with np.errstate(over="ignore", invalid="ignore"):
            split = array * np.float32(TF32_SPLIT)
            return np.where(np.abs(array) < TF32_BOUND, split - (split - array), array)
    with np.errstate(over="ignore"):
        return array.astype(ONNX_TYPES[precision].numpy()).astype(np.float32)


def mask_clamp_limit(network: Network, tensor: str, precision: Precision) -> float | None:
    """Returns the magnitude to which a mask is clamped before rounding to a precision; None for constants that are not
    clamped.

    Masks are clamped only if the precision cannot represent them. Weights are never clamped.
    """
    limit = MASK_LIMITS.get(precision)
    is_clamped = (
        limit is not None
        and tensor in network.constant_tensors
        and network.is_mask(tensor)
        and not np.isfinite(round_to_precision(network.constant_amax(tensor), precision))
    )
    return limit if is_clamped else None


def min_divisor_epsilon(network: Network, tensor: str, precision: Precision) -> float | None:
    """Returns the lower limit of an epsilon that is rounded to a precision; None if the constant needs no limit.

    Only epsilons are raised, which keep a divisor from being zero, and only if FP16 would round them to zero.
    """
    return FP16_MIN if precision is Precision.FP16 and "Div" in network.epsilon_readers.get(tensor, ()) else None


def preserves_precision_of_values(layer: Layer) -> bool:
    """Returns True if a layer with inputs in a lower precision has results that the precision represents exactly."""
    return layer.kind is LayerKind.COPY or layer.op_type in VALUE_PRESERVING


# -- lowering of a group ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class QdqScale:
    """The scale of a tensor at one Q/DQ site.

    Attributes:
        values: The stored values, float32: ``()``, ``(channels,)``, or for blocks the shape of the weight with its axis
            divided by the block size.
        stored_type: The float type of the stored values.
        quantized_type: The quantized type of the tensor.
        axis: The axis along which the values differ; None for one scale.
        block_size: Number of values along the axis that share a scale; None if each index has its own.
        dequantized_type: The float type in which the layer reads dequantized values; None if it multiplies quantized
            values.
        original_values: The values before they were raised for a bias; None if they were not raised. See
            `trt_tui.core.lowering.rulebook`.
        tensor_scale: The scale of the whole tensor for NVFP4 and MXFP8; ``values`` already contain it.
    """

    values: np.ndarray
    stored_type: Precision
    quantized_type: QuantizedType
    axis: int | None = None
    block_size: int | None = None
    dequantized_type: Precision | None = None
    original_values: np.ndarray | None = None
    tensor_scale: float = 1.0

    @property
    def weight_cache_key(self) -> tuple[object, ...]:
        """The part of a quantized weight's cache key that depends on the scale."""
        return (
            self.stored_type,
            self.quantized_type.precision,
            self.axis,
            self.block_size,
            self.dequantized_type,
            self.values.tobytes() if self.original_values is not None else None,
        )

    def broadcast_to_shape(self, shape: Sequence[int]) -> np.ndarray:
        """Returns the scale values in a form that broadcasts to the shape of the tensor."""
        return broadcast_scales(self.values, shape, self.axis, self.block_size)


@dataclass(frozen=True, eq=False)
class GroupLowering:
    """The precision, boundary type and scales of one fusion group in a config.

    Attributes:
        precision: The requested precision; TF32 for a product in FP32 if the engine may use TF32.
        boundary_type: The float type of all inputs and results of the group.
        scales: The scales of sites with Q/DQ; empty if the precision is not a quantized type.
    """

    precision: Precision
    boundary_type: Precision
    scales: Mapping[QdqSite, QdqScale] = field(default_factory=dict)

    @property
    def accumulator(self) -> Precision:
        """The type in which the kernel of the fusion group accumulates products.

        TensorRT's kernels for FP16 may accumulate in FP16, unless Casts around a product request FP32. Products of
        quantized values are summed in INT32 or FP32.
        """
        return Precision.FP16 if self.precision is Precision.FP16 else Precision.FP32

    @property
    def operand_type(self) -> Precision | None:
        """The type of `REDUCED_OPERAND_TYPES` to which activations are converted; None if they are not converted."""
        quantized_type = QUANTIZED_TYPES.get(self.precision)
        return (
            self.precision
            if self.precision is Precision.TF32 or quantized_type is not None and quantized_type.quantizes_activations
            else None
        )


_NO_SCALES: Mapping[QdqSite, QdqScale] = {}

ScaleCache = dict[tuple[object, ...], Mapping[QdqSite, QdqScale]]
"""The scales of fusion groups, by everything that determines them."""


def operand_qdq_sites(group: FusionGroup, precision: Precision) -> tuple[QdqSite, ...]:
    """Returns the inputs of a fusion group whose activations are converted to a type of `REDUCED_OPERAND_TYPES`."""
    return (
        group.qdq_sites_of_multiplied_inputs()
        if precision is Precision.TF32
        else group.activation_qdq_sites_at_precision(precision)
    )


def uses_tf32(group: FusionGroup, config: PrecisionConfig) -> bool:
    return config.tf32 and bool(group.qdq_sites_of_multiplied_inputs())


def plan_lowering(
    network: Network,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    *,
    with_casts: bool = True,
    edited_constants: EditedConstants | None = None,
    scale_cache: ScaleCache | None = None,
) -> dict[str, GroupLowering]:
    """Returns the precision, boundary type and scales of each fusion group in a config, by group name, in network
    order.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        with_casts: False for a release that takes float precisions as layer constraints; all scales are then FP32.
        edited_constants: The constants with the edits of the config; None if the network already has them.
        scale_cache: A cache of scales that several configs of this network share.

    Raises:
        InputError: an input of a quantized layer has no range.
    """
    common_ranges = compute_activation_ranges(network, ranges, config)
    amax = {
        quantized_type.precision: common_ranges
        if (type_ranges := select_ranges_for_type(ranges, quantized_type)) is ranges
        else compute_activation_ranges(network, type_ranges, config)
        for quantized_type in TYPES_WITH_RANGES
    }
    fixed_scales = {
        (subject, precision): weight_scales
        for (_, subject), move in config.moves.items()
        for precision in QUANTIZED_TYPES
        if (weight_scales := move.find_weight_scales(precision)) is not None
    }
    edited_constants = edited_constants or EditedConstants(network)
    group_lowerings = {}
    for group in network.groups:
        precision = config.precision_of(group)
        boundary_type = find_boundary_type(group, precision, config.other)
        if precision is Precision.FP32 and uses_tf32(group, config):
            precision = Precision.TF32
        quantized_type = QUANTIZED_TYPES.get(precision)
        group_scales = (
            _NO_SCALES
            if quantized_type is None
            else _compute_qdq_scales(
                edited_constants,
                group,
                quantized_type,
                amax.get(precision, {}),
                boundary_type if with_casts else Precision.FP32,
                scale_cache,
                fixed_scales.get((group.name, precision)),
            )
        )
        group_lowerings[group.name] = GroupLowering(precision, boundary_type, group_scales)
    return group_lowerings


def _compute_qdq_scales(
    edited_constants: EditedConstants,
    group: FusionGroup,
    quantized_type: QuantizedType,
    amax_by_tensor: Mapping[str, float],
    boundary_type: Precision,
    scale_cache: ScaleCache | None = None,
    fixed_scales: np.ndarray | None = None,
) -> Mapping[QdqSite, QdqScale]:
    """Returns the scales of a fusion group by Q/DQ site. All operands of one layer get scales of the same type.

    Args:
        fixed_scales: The scales that a move fixes for the only weight of the group, flat; None if there is none.
    """
    network = edited_constants.network
    sites = group.qdq_sites_at_precision(quantized_type.precision)
    biases = (
        {site: find_bias_input(network, group, site) for site in sites if site.role == "weight"}
        if quantized_type.precision is Precision.INT8
        else {}
    )
    if scale_cache is not None:
        cache_key = (
            group.name,
            quantized_type.precision,
            boundary_type,
            *(
                edited_constants.constant_edit_key((site.layer, site.index))
                if site.role == "weight"
                else amax_by_tensor.get(site.tensor)
                for site in sites
            ),
            *(edited_constants.constant_edit_key(port) for port in biases.values() if port is not None),
        )
        if cache_key not in scale_cache:
            scale_cache[cache_key] = _compute_qdq_scales(
                edited_constants, group, quantized_type, amax_by_tensor, boundary_type, fixed_scales=fixed_scales
            )
        return scale_cache[cache_key]
    exact_scales = {
        site: compute_weight_scale(edited_constants, site, quantized_type, fixed_scales)
        if site.role == "weight"
        else compute_activation_scale(amax_by_tensor, site.tensor, quantized_type)
        for site in sites
    }
    scale_types = {
        layer: choose_scale_type(
            (scale for site, scale in exact_scales.items() if site.layer == layer), boundary_type, quantized_type
        )
        for layer in dict.fromkeys(site.layer for site in sites)
    }
    scales_by_site = {}
    for site, scale in exact_scales.items():
        axis, block = find_weight_scale_layout(network, site, quantized_type) if site.role == "weight" else (None, None)
        tensor_scale = (
            float(compute_tensor_scale(edited_constants, site, quantized_type))
            if quantized_type.block_scale_type and site.role == "weight"
            else 1.0
        )
        scales_by_site[site] = QdqScale(
            round_to_precision(scale, scale_types[site.layer]),
            scale_types[site.layer],
            quantized_type,
            axis,
            block,
            None if quantized_type.quantizes_activations else boundary_type,
            tensor_scale=tensor_scale,
        )
    for site, port in biases.items():
        if (
            port is not None and scale_types[site.layer] is boundary_type
        ):  # if Casts are between, ONNX Runtime does not quantize the bias
            scales_by_site[site] = _raise_weight_scale_for_bias(edited_constants, scales_by_site, site, port)
    return scales_by_site


def _raise_weight_scale_for_bias(
    edited_constants: EditedConstants,
    scales_by_site: Mapping[QdqSite, QdqScale],
    qdq_site: QdqSite,
    bias_input: tuple[str, int],
) -> QdqScale:
    """Returns the scale of a weight, raised if ONNX Runtime could otherwise not quantize the bias of the layer."""
    scale = scales_by_site[qdq_site]
    input_scales = [
        site_scale
        for other_site, site_scale in scales_by_site.items()
        if other_site.layer == qdq_site.layer and other_site.role == "input"
    ]
    bias = edited_constants.compute_constant(bias_input)
    if len(input_scales) != 1 or bias is None:
        return scale
    values = raise_weight_scales_for_bias(
        scale.values, float(input_scales[0].values), round_to_precision(bias, scale.stored_type), scale.stored_type
    )
    return scale if values is scale.values else replace(scale, values=values, original_values=scale.values)


def find_raised_weight_scales(
    network: Network, group_lowerings: Mapping[str, GroupLowering], edited_constants: EditedConstants | None = None
) -> list[RaisedWeightScales]:
    """Returns the weight scales that were raised for a bias, with their cost in accuracy, in network order.

    Args:
        edited_constants: The constants with the edits of the config; None if the network already has them.
    """
    edited_constants = edited_constants or EditedConstants(network)
    raised = []
    for group_lowering in group_lowerings.values():
        for site, scale in group_lowering.scales.items():
            if scale.original_values is None:
                continue
            weight = edited_constants.compute_constant((site.layer, site.index))
            assert weight is not None
            costs = [
                weight_sqnr_db(weight, quantize_dequantize_weight(weight, used_scale))
                for used_scale in (replace(scale, values=scale.original_values), scale)
            ]
            changed = np.flatnonzero(scale.values != scale.original_values)
            raised.append(
                RaisedWeightScales(
                    site.layer,
                    tuple(map(int, changed)) if scale.axis is not None else (),
                    scale.original_values.ravel()[changed],
                    scale.values.ravel()[changed],
                    (costs[0], costs[1]),
                )
            )
    return raised


def quantize_dequantize_weight(weight_array: np.ndarray, qdq_scale: QdqScale) -> np.ndarray:
    """Returns a weight after quantization and dequantization, float32.

    The weight is rounded to the type of its scale before it is quantized. If only weights are quantized, the result is
    rounded to the float type in which the layer multiplies.
    """
    weight = round_to_precision(weight_array, qdq_scale.stored_type)
    step = qdq_scale.broadcast_to_shape(weight.shape)
    result: np.ndarray = qdq_scale.quantized_type.quantize(weight / step)
    result *= step
    return (
        result
        if qdq_scale.dequantized_type is None
        else round_to_precision(round_to_precision(result, qdq_scale.stored_type), qdq_scale.dequantized_type)
    )


def round_constant(network: Network, tensor: str, precision: Precision) -> np.ndarray:
    """Rounds a constant to a float precision, and returns the result as float32. Masks out of range are clamped, and
    epsilons that would become 0 are raised.
    """
    array = network.constant_value(tensor)
    limit = mask_clamp_limit(network, tensor, precision)
    if limit is not None:
        array = np.clip(array, np.float32(-limit), np.float32(limit))
    if (min_value := min_divisor_epsilon(network, tensor, precision)) is not None:
        array = np.maximum(array, np.float32(min_value))
    return round_to_precision(array, precision)


# -- features of a gated graph -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GatedFeatures:
    """The precisions and edits that a gated graph supports at run time.

    Attributes:
        float_types: The float precisions below FP32 that groups can be set to, and the file precision.
        boundary_types: Float types that can surround quantized layers.
        quantized_types: The supported quantized types, and TF32 for products in FP32.
        editable_constants: True if scales and biases of normalisations, and biases of quantizable groups, are inputs.
        norm_operators: True if decomposed normalisations can be computed with the roundings of the operator.
    """

    float_types: frozenset[Precision]
    boundary_types: frozenset[Precision]
    quantized_types: frozenset[Precision]
    editable_constants: bool = False
    norm_operators: bool = False

    @classmethod
    def from_precisions(
        cls,
        float_types: Iterable[Precision],
        boundary_types: Iterable[Precision],
        quantized_types: Iterable[Precision] = (Precision.INT8,),
    ) -> GatedFeatures:
        """Builds the features for some precisions. FP32 is ignored, because every group supports it."""
        return cls(frozenset(float_types) - {Precision.FP32}, frozenset(boundary_types), frozenset(quantized_types))

    @classmethod
    def from_config(cls, network: Network, config: PrecisionConfig) -> GatedFeatures:
        """Builds the smallest set of features that a config needs."""
        requested = {precision.value_type for precision in config.precision_by_group(network).values()}
        quantized_types = requested & QUANTIZED_TYPES.keys()
        tf32 = any(uses_tf32(group, config) for group in network.groups)
        precisions = cls.from_precisions(
            requested & {*HALF_PRECISIONS, Precision.FILE},
            {config.other} if quantized_types else (),
            quantized_types | ({Precision.TF32} if tf32 else set()),
        )
        return replace(
            precisions,
            editable_constants=has_constant_edits(config),
            norm_operators=bool(list_normalisation_rewrites(config)),
        )

    def __or__(self, more: GatedFeatures) -> GatedFeatures:
        return GatedFeatures(
            self.float_types | more.float_types,
            self.boundary_types | more.boundary_types,
            self.quantized_types | more.quantized_types,
            self.editable_constants or more.editable_constants,
            self.norm_operators or more.norm_operators,
        )

    def includes_features(self, required_features: GatedFeatures) -> bool:
        return (
            self.float_types >= required_features.float_types
            and self.boundary_types >= required_features.boundary_types
            and self.quantized_types >= required_features.quantized_types
            and self.editable_constants >= required_features.editable_constants
            and self.norm_operators >= required_features.norm_operators
        )

    def find_operand_types(self, group: FusionGroup) -> dict[Precision, frozenset[Precision]]:
        """Returns the types to which the activations of a group can be converted, by boundary type.

        They are the boundary type itself, quantized types and TF32. A group that quantizes only weights counts as one
        in its float type, because its weights are inputs of the graph.
        """
        operand_types: dict[Precision, set[Precision]] = {}
        if (
            Precision.FILE in self.float_types
            and group.file_precision is not None
            and not group.file_precision.is_plain_fp32
        ):
            operand_types[Precision.FILE] = {Precision.FILE}
        for precision in HALF_PRECISIONS:
            if precision in self.float_types and precision in group.allowed_precisions:
                operand_types.setdefault(precision, set()).add(precision)
        for precision, quantized_type in QUANTIZED_TYPES.items():
            if precision in self.quantized_types and precision in group.allowed_precisions:
                for other_precision in sorted(self.boundary_types):
                    boundary_type = find_boundary_type(group, precision, other_precision)
                    operand_types.setdefault(boundary_type, set()).add(
                        precision if quantized_type.quantizes_activations else boundary_type
                    )
        if Precision.TF32 in self.quantized_types and group.qdq_sites_of_multiplied_inputs():
            operand_types.setdefault(Precision.FP32, set()).add(Precision.TF32)
        return {boundary_type: frozenset(precisions) for boundary_type, precisions in operand_types.items()}


# -- accumulation in FP16 ---------------------------------------------------------------------------------------------

CHUNK_PRODUCTS = 16
"""The number of products that a tensor core adds between two roundings of the accumulator.

Tensor cores add these exact products to an FP16 accumulator at a time and round it (Fasi, Higham, Mikaitis and Pranesh,
"Numerical behavior of NVIDIA tensor cores", 2021). If partial sums grow like a random walk, the mean square of the
partial sum after ``j`` of ``n`` roundings is ``j/n`` of the result's. The error of rounding it has the same ratio. All
roundings together add ``(n + 1) / 2`` times the mean square error of one rounding of the result. A bias is added to the
rounded sum, and the result is rounded again.

Kernels of TensorRT 8.6 on an H200 do exactly this, to the bit, in 53 of 57 Convs, ConvTransposes, MatMuls and Gemms of
9 to 4,608 products (measured by `tests.benchmarks.fidelity`). Three kernels split a long sum over several accumulators,
which has a smaller error. On ResNet-50's activations, the formula is within 0.3 dB of the kernels.
"""

_CHANNEL_MULTIPLE = 4
"""The number to a multiple of which kernels pad the channels, with zeros."""

_FP16_SPLIT_FACTOR = 2.0**13
"""FP16 keeps 13 bits fewer of a mantissa than FP32."""


def is_depthwise(network: Network, layer: Layer) -> bool:
    """Returns True if a layer is a Conv in which each channel has its own kernel."""
    weight = network.shape(layer.inputs[1]) if len(layer.inputs) > 1 else None
    return (
        layer.op_type == "Conv"
        and weight is not None
        and len(weight) > 2
        and weight[1] == 1
        and network.node(layer.name).attributes.get_int("group", 1) != 1
    )


def is_image_convolution(network: Network, layer: Layer) -> bool:
    """Returns True if a layer is a 7x7 Conv with a stride of 2 on few channels, like the first Conv of an image
    network.
    """
    weight = network.shape(layer.inputs[1]) if layer.op_type == "Conv" and len(layer.inputs) > 1 else None
    return (
        weight is not None
        and weight[2:] == (7, 7)
        and isinstance(weight[1], int)
        and weight[1] <= _CHANNEL_MULTIPLE
        and network.node(layer.name).attributes.get_ints("strides", ()) == (2, 2)
    )


def count_accumulator_roundings(network: Network, layer: Layer) -> int:
    """Returns the number of times that a kernel with an FP16 accumulator rounds each value of a layer's result.

    The last rounding of the result is included. The count is 1 if the layer is not a sum of products, if the length of
    the sum is unknown, or if TensorRT has a kernel that accumulates in FP32. Such kernels exist for 7x7 Convs with a
    stride of 2 on an image (``image_first_layer_f16f16_f32_f16``) and for depthwise 3x3 and 7x7 Convs
    (``depthwiseHMMA``).

    For depthwise Convs the builder chooses by time between ``depthwiseHMMA`` and a kernel that adds one product after
    the other in FP16. TensorRT 8.6 on an H200 chose ``depthwiseHMMA`` as follows: for 7x7 in 5 of 5 cases at level 0
    and in ConvNeXt, in 0 of 3 at level 1; for 3x3 in 0 of 5 cases at level 0 and in 5 of 9 at level 1; for 5x5 in 0 of
    5 and in 1 of 5. `trt_tui.core.measure.simulation_limits` describes the resulting error.
    """
    first, second = (*(network.shape(tensor) if tensor else None for tensor in layer.inputs[:2]), None, None)[:2]
    if not first or not second:
        return 1
    attributes = network.node(layer.name).attributes
    is_depthwise_conv = is_depthwise(network, layer)
    if is_depthwise_conv and second[2:] in ((3, 3), (7, 7)) or is_image_convolution(network, layer):
        return 1
    padded_channels = tuple(
        -(-size // _CHANNEL_MULTIPLE) * _CHANNEL_MULTIPLE if isinstance(size, int) and not is_depthwise_conv else size
        for size in second[1:2]
    )
    sizes = {
        "Conv": (*padded_channels, *second[2:]),
        "ConvTranspose": second[:1],
        "MatMul": first[-1:] if isinstance(first[-1], int) else second[-2:][:1],
        "Gemm": second[1:] if attributes.get_int("transB", 0) else second[:1],
    }.get(layer.op_type, ())
    chunk = CHUNK_PRODUCTS * (attributes.get_int("group", 1) or 1 if layer.op_type == "ConvTranspose" else 1)
    if is_depthwise_conv:
        chunk = 1  # a depthwise kernel adds one product after the other
    fixed_sizes = [size for size in sizes if isinstance(size, int)]
    return max(1, -(-math.prod(fixed_sizes) // chunk)) if sizes and len(fixed_sizes) == len(sizes) else 1


def find_bias_input_index(network: Network, layer: Layer) -> int | None:
    """Returns the input index of the bias that a kernel adds after it has rounded the sum of products.

    Returns None if there is no such bias.
    """
    if layer.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(layer.inputs) < 3 or not layer.inputs[2]:
        return None
    if layer.op_type == "Gemm":
        attributes = network.node(layer.name).attributes
        if network.opset < 11 or attributes.get_float("beta", 1.0) != 1:
            return None
    return 2


def veltkamp_split_factor(rounding_count: int) -> float:
    """Returns the factor for Veltkamp's splitting whose error equals that of a sum with an FP16 rounding at each step.

    ``x`` becomes ``c x - (c x - x)`` (Dekker, "A floating-point technique for extending the available precision",
    1971), which rounds it as FP32 rounds numbers ``c - 1`` times its size. The result is an FP16 value within the range
    of FP16. With ``c = 1`` it is ``x`` itself, with 2**13 + 1 it is FP16's own rounding.
    """
    return 1 + _FP16_SPLIT_FACTOR * math.sqrt((rounding_count + 1) / 2)
