"""The conversion of ranges to scales of quantized types, and the choice of the type in which scales are stored."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from trt_tui.core.lowering.edited_constants import EditedConstants
from trt_tui.core.moves.config import MOVE_KINDS, PrecisionConfig
from trt_tui.core.network.layers import QdqSite
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_MAX, MIN_FP16_SCALE, Precision
from trt_tui.core.quantized_types import INT8, MIN_E4M3, QuantizedType
from trt_tui.errors import InputError


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
