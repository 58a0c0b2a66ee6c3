"""Statistics of tensors: what a range leaves of them, and which channels set it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.histogram import Histogram, magnitudes
from trt_tui.core.calibration.methods import chosen, methods_of
from trt_tui.core.calibration.not_finite import explained
from trt_tui.core.calibration.sweep import MEMORY_LIMIT, Calibrating, OnRun, sweep
from trt_tui.core.codes import FP8, INT8
from trt_tui.core.data.samples import Samples
from trt_tui.core.hands import Hands
from trt_tui.core.precision import FP16_MAX, Precision
from trt_tui.core.runner import Backend

LARGEST = 16
"""How many of the largest magnitudes are kept."""

CHANNEL_RUNS = 1024
"""Of more channels than this the ranges are kept by runs of neighbours."""


@dataclass(frozen=True)
class TopChannels:
    """The channels that set a tensor's range: those without which its amax would be at most half.

    Attributes:
        axis: The channel axis.
        channels: Size of that axis.
        indices: These channels, largest first.
        amaxes: The amax of each channel, in their order; of more than `CHANNEL_RUNS` of each of so many runs of them.
    """

    axis: int
    channels: int
    indices: tuple[int, ...]
    amaxes: tuple[float, ...] = ()

    @classmethod
    def of(cls, axis: int, amaxes: np.ndarray) -> TopChannels | None:
        """Those of a flat array of the amax of each channel; None where all of them are 0."""
        if not amaxes.size or not amaxes.max():
            return None
        order = np.argsort(-amaxes, kind="stable")
        top = int(np.count_nonzero(amaxes > amaxes.max() / 2))
        runs = amaxes if amaxes.size <= CHANNEL_RUNS else np.maximum.reduceat(
            amaxes, np.arange(CHANNEL_RUNS) * amaxes.size // CHANNEL_RUNS)
        return cls(axis, amaxes.size, tuple(order[:top].tolist()), tuple(runs.astype(np.float64).tolist()))


@dataclass(frozen=True)
class TensorStats:
    """What a tensor holds over all samples.

    Attributes:
        amax: Largest ``|x|``.
        rms: Root mean square.
        p99: The 99th percentile of ``|x|``.
        p9999: The 99.99th percentile of ``|x|``.
        count: Number of values.
        zeros: Number of values that are exactly zero.
        log_histogram: Counts of nonzero ``|x|``: bin i for [2^(i - 40), 2^(i - 39)), i from 0 to 63; the first and the
            last bin hold what lies beyond too.
        share_below_fp16_subnormal: Share of the nonzero values below 2^-24, FP16's least magnitude.
        share_subnormal: Share of the nonzero values below 2^-14, FP16's least normal magnitude.
        over_fp16: Number of values above 65504, FP16's largest.
        ranges: The amax of each of `RANGE_METHODS`, for INT8.
        fp8_ranges: The amax of each method that chooses for FP8.
        top_channels: None where the tensor has no channel axis of constant size.
        largest: The `LARGEST` largest ``|x|``, the largest first; fewer where there are fewer values.
        histogram: Counts of ``|x|``, for any percentile.
    """

    amax: float
    rms: float
    p99: float
    p9999: float
    count: int
    zeros: int
    log_histogram: tuple[int, ...]
    share_below_fp16_subnormal: float
    share_subnormal: float
    over_fp16: int
    ranges: dict[str, float]
    top_channels: TopChannels | None
    fp8_ranges: dict[str, float] = field(default_factory=dict)
    largest: tuple[float, ...] = ()
    histogram: Histogram | None = None

    def percentile(self, percent: float) -> float:
        """A percentile of ``|x|``, in (0, 100], as `Histogram.percentile`; the largest where nothing was counted."""
        return self.histogram.percentile(percent) if self.histogram is not None else self.amax

    def ranges_for(self, precision: Precision) -> dict[str, float]:
        """The amax by method for the codes of a precision."""
        return self.fp8_ranges if precision is Precision.FP8 else self.ranges

    def below(self, magnitude: float) -> float:
        """The approximate share of the nonzero values below a magnitude: bins are taken to be even in log2."""
        total = sum(self.log_histogram)
        if magnitude <= 0 or not total:
            return 0.0
        place = math.log2(magnitude) + 40
        whole = min(64, max(0, math.floor(place)))
        part = self.log_histogram[whole] * (place - whole) if 0 <= whole < 64 and place > whole else 0.0
        return (sum(self.log_histogram[:whole]) + part) / total


class Accumulator:
    """Sums up a tensor's arrays for `TensorStats`.

    Args:
        channel_axis: None for the usual one, see `collect_stats`.
    """

    _BIAS = 127  # of a float32's exponent

    def __init__(self, channel_axis: int | None) -> None:
        self.histogram = Histogram()
        self._exponents = np.zeros(256, np.int64)
        self._zeros = 0
        self._squares = 0.0
        self._largest = np.zeros(0, np.float32)
        self._over_fp16 = 0
        self._axis = channel_axis
        self._channels: np.ndarray | None = None
        self._has_channels = True

    def add(self, array: np.ndarray) -> None:
        """Takes a float array of any shape; raises as `Histogram.add`."""
        for block in magnitudes(array):
            self.histogram.add_magnitudes(block)
            self._exponents += np.bincount(block.view(np.uint32) >> 23, minlength=256)
            self._zeros += block.size - int(np.count_nonzero(block))
            self._squares += float(np.square(block, dtype=np.float64).sum())
            self._add_largest(block)
            self._over_fp16 += int(np.count_nonzero(block > FP16_MAX))
        self._add_channels(array)

    def merge(self, later: Accumulator) -> None:
        """Takes what another has summed up of later feeds."""
        self.histogram.merge(later.histogram)
        self._exponents += later._exponents
        self._zeros += later._zeros
        self._squares += later._squares
        self._largest = np.sort(np.concatenate([self._largest, later._largest]))[-LARGEST:]
        self._over_fp16 += later._over_fp16
        self._axis = later._axis if self._axis is None else self._axis
        self._has_channels &= later._has_channels
        if later._channels is not None:
            self._take_channels(later._channels)

    def _add_largest(self, block: np.ndarray) -> None:
        least = self._largest.min() if len(self._largest) == LARGEST else -1.0
        above = block[block > least]
        if above.size:
            values = np.concatenate([self._largest, np.partition(above, -LARGEST)[-LARGEST:] if above.size > LARGEST
                                     else above])
            self._largest = np.sort(values)[-LARGEST:]

    def _add_channels(self, array: np.ndarray) -> None:
        if self._axis is None:
            self._axis = {0: None, 1: None, 2: 1, 3: 2}.get(array.ndim, 1)
        axis = self._axis
        if axis is None or axis >= array.ndim or not array.size:
            self._has_channels = axis is not None and axis < array.ndim and self._has_channels
            return
        others = tuple(other for other in range(array.ndim) if other != axis)
        self._take_channels(np.maximum(array.max(axis=others), -array.min(axis=others)).astype(np.float64))

    def _take_channels(self, amax: np.ndarray) -> None:
        if self._channels is None:
            self._channels = amax
        elif self._channels.shape == amax.shape:
            np.maximum(self._channels, amax, out=self._channels)
        else:
            self._has_channels = False

    def result(self) -> TensorStats:
        """The statistics of all that was taken so far."""
        histogram = self.histogram
        count = histogram.total
        exponents = self._exponents.copy()
        exponents[0] -= self._zeros
        nonzero = max(count - self._zeros, 1)
        bins = np.clip(np.arange(256) - self._BIAS + 40, 0, 63)
        return TensorStats(
            amax=histogram.amax,
            rms=math.sqrt(self._squares / max(count, 1)),
            p99=histogram.percentile(99),
            p9999=histogram.percentile(99.99),
            count=count,
            zeros=self._zeros,
            log_histogram=tuple(np.bincount(bins, exponents, minlength=64).astype(int).tolist()),
            share_below_fp16_subnormal=float(exponents[: self._BIAS - 24].sum() / nonzero),
            share_subnormal=float(exponents[: self._BIAS - 14].sum() / nonzero),
            over_fp16=self._over_fp16,
            ranges={method: chosen(histogram, method) for method in methods_of(INT8)},
            top_channels=self._top_channels(),
            fp8_ranges={method: chosen(histogram, method, FP8) for method in methods_of(FP8)},
            largest=tuple(self._largest[::-1].tolist()),
            histogram=histogram,
        )

    def _top_channels(self) -> TopChannels | None:
        if self._channels is None or self._axis is None or not self._has_channels:
            return None
        return TopChannels.of(self._axis, self._channels)


def collect_stats(
    network_model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    *,
    channel_axes: Mapping[str, int] | None = None,
    progress: OnRun | None = None,
    hands: Hands[Calibrating] | None = None,
) -> dict[str, TensorStats]:
    """Statistics of each tensor, the ranges of all methods included. Arguments and errors as `calibrate`.

    Args:
        channel_axes: The channel axis by tensor name; by default axis 1 of tensors with two, four or more dimensions,
            axis 2 of those with three.
    """
    axes = channel_axes or {}
    accumulators = {tensor: Accumulator(axes.get(tensor)) for tensor in tensors}
    with explained(network_model, samples, backend):
        sweep(network_model, accumulators, samples, backend, progress, MEMORY_LIMIT, hands)
    return {tensor: accumulator.result() for tensor, accumulator in accumulators.items()}
