"""Statistics of tensors: what a range leaves of them, and which channels set it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.histogram import Histogram, iterate_magnitude_blocks
from trt_tui.core.calibration.non_finite import explain_non_finite_errors
from trt_tui.core.calibration.range_methods import TYPES_WITH_OWN_RANGES, choose_amax, list_range_methods
from trt_tui.core.calibration.tensor_collection import (
    DEFAULT_MEMORY_LIMIT_BYTES,
    CalibrationContext,
    RunProgress,
    collect_tensors,
)
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Executor
from trt_tui.core.precision import FP16_MAX, Precision
from trt_tui.core.quantized_types import INT8
from trt_tui.core.runner import Backend

LARGEST_VALUE_COUNT = 16
"""How many of the largest magnitudes are kept."""

MAX_CHANNEL_RUNS = 1024
"""Of more channels than this the ranges are kept by runs of neighbours."""


@dataclass(frozen=True)
class DominantChannels:
    """The channels that set a tensor's range: those without which its amax would be at most half.

    Attributes:
        axis: The channel axis.
        channel_count: Size of that axis.
        indices: These channels, largest first.
        amaxes: The amax of each channel, in their order; of more than `MAX_CHANNEL_RUNS` of each of so many runs of
    them.
    """

    axis: int
    channel_count: int
    indices: tuple[int, ...]
    amaxes: tuple[float, ...] = ()

    @classmethod
    def from_channel_amaxes(cls, axis: int, channel_amaxes: np.ndarray) -> DominantChannels | None:
        """Those of a flat array of the amax of each channel; None where all of them are 0."""
        if not channel_amaxes.size or not channel_amaxes.max():
            return None
        order = np.argsort(-channel_amaxes, kind="stable")
        top = int(np.count_nonzero(channel_amaxes > channel_amaxes.max() / 2))
        runs = channel_amaxes if channel_amaxes.size <= MAX_CHANNEL_RUNS else np.maximum.reduceat(
            channel_amaxes, np.arange(MAX_CHANNEL_RUNS) * channel_amaxes.size // MAX_CHANNEL_RUNS)
        return cls(axis, channel_amaxes.size, tuple(order[:top].tolist()), tuple(runs.astype(np.float64).tolist()))


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
        count_over_fp16: Number of values above 65504, FP16's largest.
        ranges: The amax of each of `RANGE_METHODS`, for INT8.
        other_ranges: The amax of each method by each of `TYPES_WITH_OWN_RANGES`, named by its precision.
        dominant_channels: None where the tensor has no channel axis of constant size.
        largest: The `LARGEST_VALUE_COUNT` largest ``|x|``, the largest first; fewer where there are fewer values.
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
    count_over_fp16: int
    ranges: dict[str, float]
    dominant_channels: DominantChannels | None
    other_ranges: dict[str, dict[str, float]] = field(default_factory=dict)
    largest: tuple[float, ...] = ()
    histogram: Histogram | None = None

    def magnitude_percentile(self, percent: float) -> float:
        """A percentile of ``|x|``, in (0, 100], as `Histogram.magnitude_percentile`; the largest where nothing was
        counted."""
        return self.histogram.magnitude_percentile(percent) if self.histogram is not None else self.amax

    def amax_by_range_method(self, precision: Precision) -> dict[str, float]:
        """The amax by method for the codes of a precision."""
        return self.other_ranges.get(precision.value, self.ranges)

    def estimate_value_share_below(self, magnitude: float) -> float:
        """The approximate share of the nonzero values below a magnitude: bins are taken to be even in log2."""
        total = sum(self.log_histogram)
        if magnitude <= 0 or not total:
            return 0.0
        bin_position = math.log2(magnitude) + 40
        full_bins = min(64, max(0, math.floor(bin_position)))
        part = self.log_histogram[full_bins] * (
            bin_position - full_bins) if 0 <= full_bins < 64 and bin_position > full_bins else 0.0
        return (sum(self.log_histogram[:full_bins]) + part) / total


class StatsReducer:
    """Sums up a tensor's arrays for `TensorStats`.

    Args:
        channel_axis: None for the usual one, see `collect_tensor_stats`.
    """

    _EXPONENT_BIAS = 127  # of a float32's exponent

    def __init__(self, channel_axis: int | None) -> None:
        self.histogram = Histogram()
        self._exponent_counts = np.zeros(256, np.int64)
        self._zero_count = 0
        self._sum_of_squares = 0.0
        self._largest_magnitudes = np.zeros(0, np.float32)
        self._count_over_fp16 = 0
        self._channel_axis = channel_axis
        self._channel_amax: np.ndarray | None = None
        self._has_channels = True

    def add_values(self, array: np.ndarray) -> None:
        """Takes a float array of any shape; raises as `Histogram.add_values`."""
        for block in iterate_magnitude_blocks(array):
            self.histogram.add_magnitudes(block)
            self._exponent_counts += np.bincount(block.view(np.uint32) >> 23, minlength=256)
            self._zero_count += block.size - int(np.count_nonzero(block))
            self._sum_of_squares += float(np.square(block, dtype=np.float64).sum())
            self._update_largest_magnitudes(block)
            self._count_over_fp16 += int(np.count_nonzero(block > FP16_MAX))
        self._update_channel_amaxes(array)

    def merge_values(self, later_reducer: StatsReducer) -> None:
        """Takes what another has summed up of later feeds."""
        self.histogram.merge_values(later_reducer.histogram)
        self._exponent_counts += later_reducer._exponent_counts
        self._zero_count += later_reducer._zero_count
        self._sum_of_squares += later_reducer._sum_of_squares
        self._largest_magnitudes = np.sort(np.concatenate([self._largest_magnitudes,
                                                           later_reducer._largest_magnitudes]))[-LARGEST_VALUE_COUNT:]
        self._count_over_fp16 += later_reducer._count_over_fp16
        self._channel_axis = later_reducer._channel_axis if self._channel_axis is None else self._channel_axis
        self._has_channels &= later_reducer._has_channels
        if later_reducer._channel_amax is not None:
            self._merge_channel_amaxes(later_reducer._channel_amax)

    def _update_largest_magnitudes(self, magnitudes: np.ndarray) -> None:
        min_kept = self._largest_magnitudes.min() if len(self._largest_magnitudes) == LARGEST_VALUE_COUNT else -1.0
        above = magnitudes[magnitudes > min_kept]
        if above.size:
            values = np.concatenate([
                self._largest_magnitudes,
                np.partition(above, -LARGEST_VALUE_COUNT)[-LARGEST_VALUE_COUNT:]
                if above.size > LARGEST_VALUE_COUNT else above
            ])
            self._largest_magnitudes = np.sort(values)[-LARGEST_VALUE_COUNT:]

    def _update_channel_amaxes(self, array: np.ndarray) -> None:
        if self._channel_axis is None:
            self._channel_axis = {0: None, 1: None, 2: 1, 3: 2}.get(array.ndim, 1)
        axis = self._channel_axis
        if axis is None or axis >= array.ndim or not array.size:
            self._has_channels = axis is not None and axis < array.ndim and self._has_channels
            return
        reduced_axes = tuple(reduced_axis for reduced_axis in range(array.ndim) if reduced_axis != axis)
        self._merge_channel_amaxes(
            np.maximum(array.max(axis=reduced_axes), -array.min(axis=reduced_axes)).astype(np.float64))

    def _merge_channel_amaxes(self, channel_amaxes: np.ndarray) -> None:
        if self._channel_amax is None:
            self._channel_amax = channel_amaxes
        elif self._channel_amax.shape == channel_amaxes.shape:
            np.maximum(self._channel_amax, channel_amaxes, out=self._channel_amax)
        else:
            self._has_channels = False

    def compute_stats(self) -> TensorStats:
        """The statistics of all that was taken so far."""
        histogram = self.histogram
        count = histogram.value_count
        exponents = self._exponent_counts.copy()
        exponents[0] -= self._zero_count
        nonzero = max(count - self._zero_count, 1)
        bins = np.clip(np.arange(256) - self._EXPONENT_BIAS + 40, 0, 63)
        return TensorStats(
            amax=histogram.amax,
            rms=math.sqrt(self._sum_of_squares / max(count, 1)),
            p99=histogram.magnitude_percentile(99),
            p9999=histogram.magnitude_percentile(99.99),
            count=count,
            zeros=self._zero_count,
            log_histogram=tuple(np.bincount(bins, exponents, minlength=64).astype(int).tolist()),
            share_below_fp16_subnormal=float(exponents[: self._EXPONENT_BIAS - 24].sum() / nonzero),
            share_subnormal=float(exponents[: self._EXPONENT_BIAS - 14].sum() / nonzero),
            count_over_fp16=self._count_over_fp16,
            ranges={method: choose_amax(histogram, method) for method in list_range_methods(INT8)},
            dominant_channels=self._find_dominant_channels(),
            other_ranges={code.precision.value: {method: choose_amax(histogram, method, code)
                                                 for method in list_range_methods(code)}
                          for code in TYPES_WITH_OWN_RANGES},
            largest=tuple(self._largest_magnitudes[::-1].tolist()),
            histogram=histogram,
        )

    def _find_dominant_channels(self) -> DominantChannels | None:
        if self._channel_amax is None or self._channel_axis is None or not self._has_channels:
            return None
        return DominantChannels.from_channel_amaxes(self._channel_axis, self._channel_amax)


def collect_tensor_stats(
    network_model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    *,
    channel_axes: Mapping[str, int] | None = None,
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> dict[str, TensorStats]:
    """Statistics of each tensor, the ranges of all methods included. Arguments and errors as `calibrate`.

    Args:
        channel_axes: The channel axis by tensor name; by default axis 1 of tensors with two, four or more dimensions,
            axis 2 of those with three.
    """
    axes = channel_axes or {}
    accumulators = {tensor: StatsReducer(axes.get(tensor)) for tensor in tensors}
    with explain_non_finite_errors(network_model, samples, backend):
        collect_tensors(network_model, accumulators, samples, backend, progress, DEFAULT_MEMORY_LIMIT_BYTES, executor)
    return {tensor: accumulator.compute_stats() for tensor, accumulator in accumulators.items()}
