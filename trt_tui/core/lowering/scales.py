"""Ranges to INT8 scales, and the type that the target holds them in. `lowering.rules` decides by it.

TensorRT quantizes symmetrically: ``code = clip(round_half_even(x / scale), -128, 127)`` with ``scale = amax / 127`` and
zero point 0 (TensorRT developer guide, "Working with quantized types").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Site
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_MAX, INT8_MAX, Precision
from trt_tui.errors import InputError

FP16_SCALE_MIN = 2.0**-17
"""Below this an FP16 scale is so coarse (subnormal, steps of 2**-24) that FP32 scales are used instead."""


def held_type(scales: Iterable[np.ndarray], around: Precision) -> Precision:
    """The type that the scales of one layer's operands are stored in, given the float type around the layer: FP16 where
    that is FP16 and can hold all of them, else FP32."""
    if around is not Precision.FP16:
        return Precision.FP32
    fits = all(scale.min() >= FP16_SCALE_MIN and scale.max() <= FP16_MAX for scale in scales)
    return Precision.FP16 if fits else Precision.FP32


def from_amax(amax: np.ndarray | float) -> np.ndarray:
    """Scale of a range, float32; 1 where the range is zero, since any scale maps zero to zero."""
    amax = np.asarray(amax, np.float32)
    return np.where(amax > 0, np.maximum(amax / np.float32(INT8_MAX), np.finfo(np.float32).tiny), 1).astype(np.float32)


def weight_scale(network: Network, site: Site) -> np.ndarray:
    """Scale of a weight: ``(channels,)`` along its axis or ``()``, float32, before the target's rounding."""
    return from_amax(network.constant_amax(site.tensor, site.axis))


def activation_ranges(network: Network, ranges: Mapping[str, float], config: PrecisionConfig) -> dict[str, float]:
    """amax of every tensor that INT8 may need, overrides applied, inputs and outputs of a Concat joined.

    A tensor without a range is left out. An override counts for the whole joined set.
    """
    result = {tensor: float(ranges[tensor]) for tensor in network.activations if tensor in ranges}
    for members in {id(together): together for together in network.range_sets.values()}.values():
        known = [float(ranges[t]) for t in members if t in ranges]
        if not known:
            continue
        joined = max(known)
        for tensor in members:
            if tensor in result:
                result[tensor] = joined
    for (_, target), move in config.moves.items():
        together = network.range_sets.get(target, (target,))
        move.adjust(result, [tensor for tensor in together if tensor in result or tensor == target])
    return result


def require(network: Network, amax: Mapping[str, float], tensor: str) -> np.ndarray:
    """The scale of an activation.

    Raises:
        InputError: there is no range for it.
    """
    if tensor not in amax:
        raise InputError(f"no range for tensor {tensor}",
                         "an INT8 layer reads it, and the calibration does not have it",
                         "Calibrate again with --calib-data, or give the range in the config.")
    return from_amax(amax[tensor])
