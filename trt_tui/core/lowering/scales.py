"""Ranges to scales of codes, and the type that the target holds them in. `rulebook` decides by it."""

from collections.abc import Iterable, Mapping

import numpy as np

from trt_tui.core.lowering.folded_constants import FoldedConstants
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.move_kinds import MOVE_KINDS
from trt_tui.core.network.layers import QdqSite
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_MAX, Precision
from trt_tui.core.quantized_types import INT8, QuantizedType
from trt_tui.errors import InputError

MIN_FP16_SCALE = 2.0**-17
"""Below this an FP16 scale is so coarse (subnormal, steps of 2**-24) that FP32 scales are used instead."""


def choose_scale_type(scales: Iterable[np.ndarray], boundary_type: Precision,
                      quantized_type: QuantizedType = INT8) -> Precision:
    """The type that the scales of one layer's operands are stored in, given the float type around the layer: FP16 where
    that is FP16 and can hold all of them, else FP32. Where weights alone are codes BF16 holds any of its own, since
    TensorRT-RTX fuses only a DQ that yields what the layer multiplies in."""
    if boundary_type is Precision.BF16 and not quantized_type.quantizes_activations:
        return Precision.BF16
    if boundary_type is not Precision.FP16:
        return Precision.FP32
    fits = all(scale.min() >= MIN_FP16_SCALE and scale.max() <= FP16_MAX for scale in scales)
    return Precision.FP16 if fits else Precision.FP32


def scale_from_amax(amax: np.ndarray | float, quantized_type: QuantizedType = INT8) -> np.ndarray:
    """Scale of a range, float32; 1 where the range is zero, since any scale maps zero to zero."""
    amax = np.asarray(amax, np.float32)
    min_scale = np.finfo(np.float32).tiny
    return np.where(amax > 0, np.maximum(amax / np.float32(quantized_type.max_value), min_scale), 1).astype(np.float32)


def find_weight_scale_layout(network: Network, qdq_site: QdqSite,
                             quantized_type: QuantizedType) -> tuple[int | None, int | None]:
    """The axis along which the scales of a weight differ, and how many values along it share one; None for either."""
    if quantized_type.per_channel or qdq_site.axis is None:
        return qdq_site.axis, None
    shape = network.shape(qdq_site.tensor) or ()
    if quantized_type.block_sizes and len(shape) == 2 and isinstance(reduced_size := shape[1 - qdq_site.axis], int):
        return 1 - qdq_site.axis, quantized_type.find_block_size(reduced_size)
    return None, None


def compute_weight_scale(network: Network, qdq_site: QdqSite, quantized_type: QuantizedType = INT8,
                         folded_constants: FoldedConstants | None = None) -> np.ndarray:
    """Scale of a weight as it is laid out, float32, before the target's rounding; see `rulebook.QdqScale`.

    Args:
        folded_constants: The weights as a config changes them, where the network has them unchanged.
    """
    axis, block = find_weight_scale_layout(network, qdq_site, quantized_type)
    return scale_from_amax(network.constant_amax(qdq_site.tensor, axis, block) if folded_constants is None
                           else folded_constants.weight_amax(qdq_site, axis, block), quantized_type)


def compute_activation_ranges(network: Network, calibrated_ranges: Mapping[str, float],
                              config: PrecisionConfig) -> dict[str, float]:
    """amax of every tensor that codes may need, overrides applied, inputs and outputs of a Concat joined.

    A tensor without a range is left out. An override counts for the whole joined set.
    """
    result = {
        tensor: float(calibrated_ranges[tensor])
        for tensor in network.calibrated_tensors
        if tensor in calibrated_ranges
    }
    for tensors in {
            id(joined_tensors): joined_tensors
            for joined_tensors in network.tensors_with_shared_range.values()
    }.values():
        amaxes = [float(calibrated_ranges[name]) for name in tensors if name in calibrated_ranges]
        if not amaxes:
            continue
        joined = max(amaxes)
        for tensor in tensors:
            if tensor in result:
                result[tensor] = joined
    order = {kind: position for position, kind in enumerate(MOVE_KINDS)}
    for (_, subject), move in sorted(config.moves.items(), key=lambda item: order.get(item[0][0], len(order))):
        joined_tensors = network.tensors_with_shared_range.get(subject, (subject,))
        move.adjust_ranges(result, [tensor for tensor in joined_tensors if tensor in result or tensor == subject])
    return result


def compute_activation_scale(amax_by_tensor: Mapping[str, float], tensor: str,
                             quantized_type: QuantizedType = INT8) -> np.ndarray:
    """The scale of an activation.

    Raises:
        InputError: there is no range for it.
    """
    if tensor not in amax_by_tensor:
        raise InputError(f"no range for tensor {tensor}",
                         f"an {quantized_type.precision.label} layer reads it, and the calibration does not have it",
                         "Calibrate again with --calib-data, or give the range in the config.")
    return scale_from_amax(amax_by_tensor[tensor], quantized_type)
