"""Ranges to scales of codes, and the type that the target holds them in. `lowering.rules` decides by it."""

from collections.abc import Iterable, Mapping

import numpy as np

from trt_tui.core.codes import INT8, CodeType
from trt_tui.core.lowering.folds import Folds
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.kinds import KINDS
from trt_tui.core.network.layers import Site
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_MAX, Precision
from trt_tui.errors import InputError

FP16_SCALE_MIN = 2.0**-17
"""Below this an FP16 scale is so coarse (subnormal, steps of 2**-24) that FP32 scales are used instead."""


def held_type(scales: Iterable[np.ndarray], around: Precision, code: CodeType = INT8) -> Precision:
    """The type that the scales of one layer's operands are stored in, given the float type around the layer: FP16 where
    that is FP16 and can hold all of them, else FP32. Where weights alone are codes BF16 holds any of its own, since
    TensorRT-RTX fuses only a DQ that yields what the layer multiplies in."""
    if around is Precision.BF16 and not code.activations:
        return Precision.BF16
    if around is not Precision.FP16:
        return Precision.FP32
    fits = all(scale.min() >= FP16_SCALE_MIN and scale.max() <= FP16_MAX for scale in scales)
    return Precision.FP16 if fits else Precision.FP32


def from_amax(amax: np.ndarray | float, code: CodeType = INT8) -> np.ndarray:
    """Scale of a range, float32; 1 where the range is zero, since any scale maps zero to zero."""
    amax = np.asarray(amax, np.float32)
    least = np.finfo(np.float32).tiny
    return np.where(amax > 0, np.maximum(amax / np.float32(code.greatest), least), 1).astype(np.float32)


def laid_out(network: Network, site: Site, code: CodeType) -> tuple[int | None, int | None]:
    """The axis along which the scales of a weight differ, and how many values along it share one; None for either."""
    if code.per_channel or site.axis is None:
        return site.axis, None
    sizes = network.shape(site.tensor) or ()
    if code.blocks and len(sizes) == 2 and isinstance(size := sizes[1 - site.axis], int):
        return 1 - site.axis, code.block(size)
    return None, None


def weight_scale(network: Network, site: Site, code: CodeType = INT8, constants: Folds | None = None) -> np.ndarray:
    """Scale of a weight as it is laid out, float32, before the target's rounding; see `rules.Scale`.

    Args:
        constants: The weights as a config changes them, where the network has them unchanged.
    """
    axis, block = laid_out(network, site, code)
    return from_amax(network.constant_amax(site.tensor, axis, block) if constants is None
                     else constants.amax(site, axis, block), code)


def activation_ranges(network: Network, ranges: Mapping[str, float], config: PrecisionConfig) -> dict[str, float]:
    """amax of every tensor that codes may need, overrides applied, inputs and outputs of a Concat joined.

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
    order = {kind: place for place, kind in enumerate(KINDS)}
    for (_, target), move in sorted(config.moves.items(), key=lambda one: order.get(one[0][0], len(order))):
        together = network.range_sets.get(target, (target,))
        move.adjust(result, [tensor for tensor in together if tensor in result or tensor == target])
    return result


def require(amax: Mapping[str, float], tensor: str, code: CodeType = INT8) -> np.ndarray:
    """The scale of an activation.

    Raises:
        InputError: there is no range for it.
    """
    if tensor not in amax:
        raise InputError(f"no range for tensor {tensor}",
                         f"an {code.precision.label} layer reads it, and the calibration does not have it",
                         "Calibrate again with --calib-data, or give the range in the config.")
    return from_amax(amax[tensor], code)
