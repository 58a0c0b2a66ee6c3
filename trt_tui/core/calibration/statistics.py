"""Statistics of tensors over samples: magnitudes, candidate ranges, FP16 overflow, and the channels that determine a
range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.range_methods import (
    TYPES_WITH_OWN_RANGES,
    Histogram,
    choose_amax,
    iterate_magnitude_blocks,
    list_range_methods,
)
from trt_tui.core.calibration.tensor_collection import CalibrationContext, RunProgress, collect_tensors
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Executor
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT8
from trt_tui.core.runner import Backend

LARGEST_VALUE_COUNT = 16
"""Number of the largest magnitudes that the statistics keep."""

MAX_CHANNEL_RUNS = 1024
"""Maximum number of amax values kept by channel. If there are more channels, each value is that of a run of neighbours.
"""


@dataclass(frozen=True)
class DominantChannels:
    """The channels that determine a tensor's range: without them its amax would be at most half as large.

    Attributes:
        axis: The channel axis.
        channel_count: Size of the channel axis.
        indices: The dominant channels, the largest amax first.
        amaxes: The amax of each channel of the axis, in order. With more than `MAX_CHANNEL_RUNS` channels, the amax of
            each of that many runs of neighbouring channels.
    """

    axis: int
    channel_count: int
    indices: tuple[int, ...]
    amaxes: tuple[float, ...] = ()

    @classmethod
    def from_channel_amaxes(cls, axis: int, channel_amaxes: np.ndarray) -> DominantChannels | None:
        """Builds the dominant channels from a flat array of the amax of each channel; None if every amax is 0."""
        if not channel_amaxes.size or not channel_amaxes.max():
            return None
        order = np.argsort(-channel_amaxes, kind="stable")
        top = int(np.count_nonzero(channel_amaxes > channel_amaxes.max() / 2))
        runs = channel_amaxes if channel_amaxes.size <= MAX_CHANNEL_RUNS else np.maximum.reduceat(
            channel_amaxes, np.arange(MAX_CHANNEL_RUNS) * channel_amaxes.size // MAX_CHANNEL_RUNS)
        return cls(axis, channel_amaxes.size, tuple(order[:top].tolist()), tuple(runs.astype(np.float64).tolist()))


@dataclass(frozen=True)
class TensorStats:
    """The statistics of one tensor over all samples: magnitudes, percentiles, candidate ranges and dominant channels.

    Attributes:
        amax: Largest ``|x|``.
        rms: Root mean square.
        p99: The 99th percentile of ``|x|``.
        p9999: The 99.99th percentile of ``|x|``.
        count: Number of values.
        log_histogram: Counts of nonzero ``|x|`` in 64 bins. Bin i covers [2^(i - 40), 2^(i - 39)); the first and last
            bin also hold the values beyond.
        ranges: The amax that each of `RANGE_METHODS` chooses for INT8.
        other_ranges: The amax by range method for each of `TYPES_WITH_OWN_RANGES`, keyed by the precision.
        dominant_channels: None if the tensor has no channel axis of constant size.
        largest: The `LARGEST_VALUE_COUNT` largest ``|x|``, the largest first; fewer if the tensor has fewer values.
        histogram: Counts of ``|x|``, for any percentile.
    """

    amax: float
    rms: float
    p99: float
    p9999: float
    count: int
    log_histogram: tuple[int, ...]
    ranges: dict[str, float]
    dominant_channels: DominantChannels | None
    other_ranges: dict[str, dict[str, float]] = field(default_factory=dict)
    largest: tuple[float, ...] = ()
    histogram: Histogram | None = None

    def magnitude_percentile(self, percent: float) -> float:
        """Returns a percentile in (0, 100] of ``|x|`` from the histogram; the amax if the statistics have no histogram.
        """
        return self.histogram.magnitude_percentile(percent) if self.histogram is not None else self.amax

    def amax_by_range_method(self, precision: Precision) -> dict[str, float]:
        """Returns the amax that each range method chooses for the quantized values of a precision."""
        return self.other_ranges.get(precision.value, self.ranges)

    def estimate_value_share_below(self, magnitude: float) -> float:
        """Estimates the share of the nonzero values below a magnitude.

        Values are assumed to be evenly distributed in log2 within each bin of `log_histogram`.
        """
        total = sum(self.log_histogram)
        if magnitude <= 0 or not total:
            return 0.0
        bin_position = math.log2(magnitude) + 40
        full_bins = min(64, max(0, math.floor(bin_position)))
        part = self.log_histogram[full_bins] * (
            bin_position - full_bins) if 0 <= full_bins < 64 and bin_position > full_bins else 0.0
        return (sum(self.log_histogram[:full_bins]) + part) / total


class StatsReducer:
    """A reducer that accumulates the arrays of a tensor and computes its `TensorStats`.

    Args:
        channel_axis: The channel axis; None for the default axis that `collect_tensor_stats` describes.
    """

    _EXPONENT_BIAS = 127  # of a float32's exponent

    def __init__(self, channel_axis: int | None) -> None:
        self.histogram = Histogram()
        self._exponent_counts = np.zeros(256, np.int64)
        self._zero_count = 0
        self._sum_of_squares = 0.0
        self._largest_magnitudes = np.zeros(0, np.float32)
        self._channel_axis = channel_axis
        self._channel_amax: np.ndarray | None = None
        self._has_channels = True

    def add_values(self, array: np.ndarray) -> None:
        """Adds the values of a float array of any shape. Raises the errors of `Histogram.add_values`."""
        for block in iterate_magnitude_blocks(array):
            self.histogram.add_magnitudes(block)
            self._exponent_counts += np.bincount(block.view(np.uint32) >> 23, minlength=256)
            self._zero_count += block.size - int(np.count_nonzero(block))
            self._sum_of_squares += float(np.square(block, dtype=np.float64).sum())
            self._update_largest_magnitudes(block)
        self._update_channel_amaxes(array)

    def merge_values(self, later_reducer: StatsReducer) -> None:
        """Adds the sums and counts of another reducer, which holds later feeds."""
        self.histogram.merge_values(later_reducer.histogram)
        self._exponent_counts += later_reducer._exponent_counts
        self._zero_count += later_reducer._zero_count
        self._sum_of_squares += later_reducer._sum_of_squares
        self._largest_magnitudes = np.sort(np.concatenate([self._largest_magnitudes,
                                                           later_reducer._largest_magnitudes]))[-LARGEST_VALUE_COUNT:]
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
        """Returns the statistics of all values added so far."""
        histogram = self.histogram
        count = histogram.value_count
        exponents = self._exponent_counts.copy()
        exponents[0] -= self._zero_count
        bins = np.clip(np.arange(256) - self._EXPONENT_BIAS + 40, 0, 63)
        return TensorStats(
            amax=histogram.amax,
            rms=math.sqrt(self._sum_of_squares / max(count, 1)),
            p99=histogram.magnitude_percentile(99),
            p9999=histogram.magnitude_percentile(99.99),
            count=count,
            log_histogram=tuple(np.bincount(bins, exponents, minlength=64).astype(int).tolist()),
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
    """Measures the statistics of each tensor over all samples, including the ranges of all range methods.

    The arguments and errors are those of `calibrate`.

    Args:
        channel_axes: The channel axis by tensor name. The default is axis 2 for tensors with three dimensions, and axis
            1 for tensors with two, four or more.
    """
    axes = channel_axes or {}
    accumulators = {tensor: StatsReducer(axes.get(tensor)) for tensor in tensors}
    collect_tensors(network_model, accumulators, samples, backend, progress, executor)
    return {tensor: accumulator.compute_stats() for tensor, accumulator in accumulators.items()}
