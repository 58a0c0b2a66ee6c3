"""The measurement of a network's dynamic ranges (the amax of each quantized tensor) and of tensor statistics.

Symmetric INT8 maps ``[-amax, amax]`` to quantized values -127 to 127, so the scale is amax / 127. FP8 maps it to -448
to 448. An amax of 0 means that the tensor was zero everywhere; code that computes a scale from it uses 1.

Tensor statistics are magnitudes, the ranges of all methods, FP16 overflow, and dominant channels. The range methods
choose the range of a tensor from the histogram of its values on calibration samples:

- ``minmax``: the largest ``|x|``, computed inside the graph.
- ``percentile``: the value that a given percentage of all ``|x|`` does not exceed.
- ``entropy``: the threshold with the least Kullback-Leibler divergence between the histogram of ``|x|`` and its form in
  128 levels (S. Migacz, "8-bit Inference with TensorRT", GTC 2017). The first bin gets the count of the second, as in
  NVIDIA ModelOpt, so that zeros do not dominate. A threshold that clips more than half of the counts is no candidate.
  If no value is near zero, such a threshold leaves one bin of P and of Q, and these agree whatever was clipped.
- ``mse``: the threshold with the least mean squared quantization error over the histogram.

``minmax`` and ``percentile`` depend on the values alone. ``mse`` uses the rounding error of the quantized type.
``entropy`` assumes 128 equal steps, which only INT8 has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.tensor_collection import (
    AMAX_OPERATORS,
    CalibrationContext,
    CalibrationInputs,
    CollectedTensor,
    NetworkProbe,
    RunProgress,
    collect_tensors,
    compute_amax_from_reductions,
    make_non_finite_error,
    run_items_in_order,
)
from trt_tui.core.data.samples import Samples
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT8, TYPES_WITH_RANGES, QuantizedType
from trt_tui.core.runner import Backend, Executor, LoadingTask, LocalExecutor

_BLOCK_VALUES = 1 << 18


class Histogram:
    """A histogram of ``|x|`` with equal bins from 0. Larger values widen the bins.

    The last bin ends at a power of two above the largest value. If a larger value arrives, this end is doubled as often
    as needed, and neighbouring bins are joined. Counts are therefore exact, and independent of the order and division
    of the data. At least half of the bins are below the largest value.
    """

    BINS = 4096
    _MIN_EXPONENT = -100

    def __init__(self) -> None:
        self.counts = np.zeros(self.BINS, np.int64)
        self.amax = 0.0
        self._exponent = self._MIN_EXPONENT

    @property
    def bin_width(self) -> float:
        return math.ldexp(1.0, self._exponent) / self.BINS

    @property
    def value_count(self) -> int:
        return int(self.counts.sum())

    @property
    def used_bin_count(self) -> int:
        """Number of bins from 0 up to the bin of the largest value."""
        return int(self.amax / self.bin_width) + 1

    def add_values(self, array: np.ndarray) -> None:
        """Counts the magnitudes of a float array of any shape.

        Raises:
            ValueError: The array contains NaN or an infinity.
        """
        for block in iterate_magnitude_blocks(array):
            self.add_magnitudes(block)

    def add_magnitudes(self, magnitudes: np.ndarray) -> None:
        """Counts the magnitudes ``|x|`` in a flat float32 array. Raises the errors of `add_values`."""
        largest = float(magnitudes.max())
        if not math.isfinite(largest):
            raise ValueError("NaN" if math.isnan(largest) else "an infinity")
        self.amax = max(self.amax, largest)
        if largest > 0:
            self._widen_bins(math.frexp(largest)[1])
        bins = (magnitudes * np.float32(1 / self.bin_width)).astype(np.intp)
        self.counts += np.bincount(bins, minlength=self.BINS)

    def merge_values(self, other_histogram: Histogram) -> None:
        """Adds the counts of another histogram.

        The result equals that of one histogram with the values of both. The other histogram is widened to the same
        bins.
        """
        self._widen_bins(other_histogram._exponent)
        other_histogram._widen_bins(self._exponent)
        self.counts += other_histogram.counts
        self.amax = max(self.amax, other_histogram.amax)

    def __getstate__(self) -> dict[str, Any]:
        counts = self.counts[: self.used_bin_count]
        return {**self.__dict__, "counts": counts.astype(np.min_scalar_type(int(counts.max(initial=0))))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.counts = np.pad(state["counts"].astype(np.int64), (0, self.BINS - len(state["counts"])))

    def _widen_bins(self, range_exponent: int) -> None:
        steps = range_exponent - self._exponent
        if steps > 0:
            joined = self.counts.reshape(-1, min(1 << steps, self.BINS)).sum(axis=1)
            self.counts = np.pad(joined, (0, self.BINS - len(joined)))
            self._exponent = range_exponent

    def magnitude_percentile(self, percent: float) -> float:
        """Returns a percentile of the magnitudes: the upper edge of its bin, or the largest value if that is smaller."""
        cumulated = np.cumsum(self.counts)
        if not cumulated[-1]:
            return 0.0
        bin_ = int(np.searchsorted(cumulated, percent / 100 * cumulated[-1]))
        return min((bin_ + 1) * self.bin_width, self.amax)


def iterate_magnitude_blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the magnitudes of an array as flat float32 blocks that fit into a processor cache."""
    flat = np.asarray(array).reshape(-1)
    for start in range(0, flat.size, _BLOCK_VALUES):
        with np.errstate(over="ignore"):
            yield np.abs(flat[start : start + _BLOCK_VALUES].astype(np.float32, copy=False))


DEFAULT_PERCENTILE = 99.99
"""The percentage of all values that ``percentile`` covers."""

_QUANTIZATION_LEVELS = 128
_SUBDIVIDED_BINS, _PARTS_PER_BIN = 32, 16


def find_entropy_threshold(histogram: Histogram) -> float:
    """Returns the amax with the least Kullback-Leibler divergence. It is at least 1/32 of the largest magnitude."""
    used = histogram.used_bin_count
    if histogram.amax == 0 or used <= _QUANTIZATION_LEVELS:
        return histogram.amax
    counts = histogram.counts[:used].astype(np.float64)
    counts[0] = counts[1]
    cumulated = np.cumsum(counts)
    fewest_bins = int(np.searchsorted(cumulated, cumulated[-1] / 2)) + 1
    kept_bins = np.arange(max(_QUANTIZATION_LEVELS, fewest_bins), used + 1)
    divergence = np.concatenate(
        [_kl_divergence(counts, part) for part in np.array_split(kept_bins, len(kept_bins) // 512 + 1)]
    )
    best_index = len(kept_bins) - 1 - int(np.argmin(divergence[::-1]))
    return min(int(kept_bins[best_index]) * histogram.bin_width, histogram.amax)


def find_mse_threshold(histogram: Histogram, quantized_type: QuantizedType = INT8) -> float:
    """Returns the amax with the least mean squared quantization error. It is at least 1/32 of the largest magnitude.

    All values of a bin count as its centre. In the lowest bins, the steps of FP8 are finer than a bin. Values there
    count as evenly distributed.
    """
    if histogram.amax == 0:
        return 0.0
    used = np.flatnonzero(histogram.counts)
    low, high = used[used < _SUBDIVIDED_BINS], used[used >= _SUBDIVIDED_BINS]
    within = (np.arange(_PARTS_PER_BIN) + 0.5) / _PARTS_PER_BIN
    values = np.concatenate([(low[:, None] + within).ravel(), high + 0.5]) * histogram.bin_width
    counts = np.concatenate([np.repeat(histogram.counts[low] / _PARTS_PER_BIN, _PARTS_PER_BIN), histogram.counts[high]])
    thresholds = np.append(
        np.arange(_QUANTIZATION_LEVELS, histogram.used_bin_count, 16) * histogram.bin_width, histogram.amax
    )
    errors = [_quantization_squared_error(values, counts, threshold, quantized_type) for threshold in thresholds]
    return float(thresholds[len(errors) - 1 - int(np.argmin(errors[::-1]))])


_AMAX_CHOOSERS: dict[str, Callable[[Histogram, QuantizedType], float]] = {
    "minmax": lambda histogram, code: histogram.amax,
    "percentile": lambda histogram, code: histogram.magnitude_percentile(DEFAULT_PERCENTILE),
    "entropy": lambda histogram, code: find_entropy_threshold(histogram),
    "mse": lambda histogram, code: find_mse_threshold(histogram, code),
}

RANGE_METHODS = tuple(_AMAX_CHOOSERS)
"""The range methods by name, the default first."""


TYPES_WITH_OWN_RANGES = tuple(code for code in TYPES_WITH_RANGES if code is not INT8)
"""Quantized types with ranges of their own: all except INT8, whose ranges are the default entries of a table."""


def list_range_methods(quantized_type: QuantizedType) -> tuple[str, ...]:
    """Returns the range methods that a quantized type supports, the default method first.

    ``entropy`` assumes equal steps, and ``mse`` one scale for the tensor.
    """
    undefined = {"entropy": quantized_type is not INT8, "mse": bool(quantized_type.block_scale_type)}
    return tuple(method for method in RANGE_METHODS if not undefined.get(method, False))


def choose_amax(histogram: Histogram, range_method: str, quantized_type: QuantizedType = INT8) -> float:
    """Returns the amax that a range method chooses from a histogram, in the tensor's own units.

    The amax is 0 if all values are zero. If the quantized type does not support the method (`list_range_methods`),
    ``minmax`` is used.
    """
    return _AMAX_CHOOSERS[range_method if range_method in list_range_methods(quantized_type) else "minmax"](
        histogram, quantized_type
    )


def _kl_divergence(counts: np.ndarray, kept_bin_counts: np.ndarray) -> np.ndarray:
    """Returns the Kullback-Leibler divergence KL(P || Q) for each candidate number of kept bins.

    P is the histogram cut at that number, with all counts above added to its last bin. Q is the cut histogram without
    those counts, in 128 levels. The count of a level is spread evenly over its nonempty bins. Running sums reduce the
    cost of a candidate to 128 terms. The result is infinite if values were clipped into an empty bin.
    """
    cumulated = np.concatenate([[0.0], np.cumsum(counts)])
    filled = np.concatenate([[0.0], np.cumsum(counts > 0)])
    logs = np.concatenate([[0.0], np.cumsum(_x_log_x(counts))])
    total, inside, last = cumulated[-1], cumulated[kept_bin_counts], counts[kept_bin_counts - 1]
    clipped = total - inside
    edges = kept_bin_counts[:, None] * np.arange(_QUANTIZATION_LEVELS + 1) // _QUANTIZATION_LEVELS
    level_sums, level_bins = np.diff(cumulated[edges], axis=1), np.diff(filled[edges], axis=1)
    level_logs = np.log(np.divide(level_sums, level_bins, where=level_bins > 0, out=np.ones_like(level_sums)))
    p_log_p = logs[kept_bin_counts - 1] + _x_log_x(last + clipped)
    p_log_q = (level_sums * level_logs).sum(axis=1) + clipped * level_logs[:, -1]
    with np.errstate(divide="ignore"):
        divergence = (p_log_p - p_log_q) / total - math.log(total) + np.log(inside)
    return np.where((clipped > 0) & (last == 0), np.inf, divergence)


def _x_log_x(values: np.ndarray) -> np.ndarray:
    return values * np.log(np.where(values > 0, values, 1))


def _quantization_squared_error(
    values: np.ndarray, counts: np.ndarray, amax: float, quantized_type: QuantizedType
) -> float:
    scale = amax / quantized_type.max_value
    return float(counts @ np.square(values - quantized_type.quantize(values / scale) * scale))


LARGEST_VALUE_COUNT = 16
"""Number of the largest magnitudes that the statistics keep."""

MAX_CHANNEL_RUNS = 1024
"""Maximum number of amax values kept by channel. If there are more channels, each value is that of a run of neighbours.
"""


@dataclass(frozen=True)
class DominantChannels:
    """The channels that dominate a tensor's range. Without them, its amax would be at most half as large.

    Attributes:
        axis: The channel axis.
        channel_count: Size of the channel axis.
        indices: The dominant channels, the largest amax first.
        amaxes: The amax of each channel, in order. If there are more than `MAX_CHANNEL_RUNS` channels, each entry is
            for a run of neighbouring channels.
    """

    axis: int
    channel_count: int
    indices: tuple[int, ...]
    amaxes: tuple[float, ...] = ()

    @classmethod
    def from_channel_amaxes(cls, axis: int, channel_amaxes: np.ndarray) -> DominantChannels | None:
        """Finds the dominant channels of a tensor from the amax of each channel (a flat array); None if every amax is
        0."""
        if not channel_amaxes.size or not channel_amaxes.max():
            return None
        order = np.argsort(-channel_amaxes, kind="stable")
        top = int(np.count_nonzero(channel_amaxes > channel_amaxes.max() / 2))
        runs = (
            channel_amaxes
            if channel_amaxes.size <= MAX_CHANNEL_RUNS
            else np.maximum.reduceat(
                channel_amaxes, np.arange(MAX_CHANNEL_RUNS) * channel_amaxes.size // MAX_CHANNEL_RUNS
            )
        )
        return cls(axis, channel_amaxes.size, tuple(order[:top].tolist()), tuple(runs.astype(np.float64).tolist()))


@dataclass(frozen=True)
class TensorStats:
    """The statistics of one tensor over all samples: magnitudes, percentiles, ranges by method, and dominant channels.

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
        """Returns a percentile, in (0, 100], of ``|x|``; the amax if there is no histogram."""
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
        part = (
            self.log_histogram[full_bins] * (bin_position - full_bins)
            if 0 <= full_bins < 64 and bin_position > full_bins
            else 0.0
        )
        return (sum(self.log_histogram[:full_bins]) + part) / total


class StatsReducer:
    """A reducer that receives the arrays of one tensor and computes its `TensorStats`.

    Args:
        channel_axis: The channel axis; None for the default, as in `collect_tensor_stats`.
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
        """Adds the values of another reducer, which received later feeds."""
        self.histogram.merge_values(later_reducer.histogram)
        self._exponent_counts += later_reducer._exponent_counts
        self._zero_count += later_reducer._zero_count
        self._sum_of_squares += later_reducer._sum_of_squares
        self._largest_magnitudes = np.sort(
            np.concatenate([self._largest_magnitudes, later_reducer._largest_magnitudes])
        )[-LARGEST_VALUE_COUNT:]
        self._channel_axis = later_reducer._channel_axis if self._channel_axis is None else self._channel_axis
        self._has_channels &= later_reducer._has_channels
        if later_reducer._channel_amax is not None:
            self._merge_channel_amaxes(later_reducer._channel_amax)

    def _update_largest_magnitudes(self, magnitudes: np.ndarray) -> None:
        min_kept = self._largest_magnitudes.min() if len(self._largest_magnitudes) == LARGEST_VALUE_COUNT else -1.0
        above = magnitudes[magnitudes > min_kept]
        if above.size:
            values = np.concatenate(
                [
                    self._largest_magnitudes,
                    np.partition(above, -LARGEST_VALUE_COUNT)[-LARGEST_VALUE_COUNT:]
                    if above.size > LARGEST_VALUE_COUNT
                    else above,
                ]
            )
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
            np.maximum(array.max(axis=reduced_axes), -array.min(axis=reduced_axes)).astype(np.float64)
        )

    def _merge_channel_amaxes(self, channel_amaxes: np.ndarray) -> None:
        if self._channel_amax is None:
            self._channel_amax = channel_amaxes
        elif self._channel_amax.shape == channel_amaxes.shape:
            np.maximum(self._channel_amax, channel_amaxes, out=self._channel_amax)
        else:
            self._has_channels = False

    def compute_stats(self) -> TensorStats:
        """Returns the statistics of all values so far."""
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
            other_ranges={
                code.precision.value: {
                    method: choose_amax(histogram, method, code) for method in list_range_methods(code)
                }
                for code in TYPES_WITH_OWN_RANGES
            },
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
    """Measures the statistics of each tensor over all samples, with the ranges of all range methods.

    The arguments and errors are those of `calibrate`.

    Args:
        channel_axes: The channel axis by tensor name. The default is axis 2 for tensors with three dimensions, and axis
            1 for tensors with two, four or more.
    """
    axes = channel_axes or {}
    accumulators = {tensor: StatsReducer(axes.get(tensor)) for tensor in tensors}
    collect_tensors(
        network_model, [*starmap(CollectedTensor, accumulators.items())], samples, backend, progress, executor
    )
    return {tensor: accumulator.compute_stats() for tensor, accumulator in accumulators.items()}


class RangeTable(dict[str, float]):
    """The calibrated amax by tensor name, in the tensors' own units.

    The mapping itself is for INT8, and for every quantized type without separate ranges.

    Attributes:
        by_type: The amax by tensor name for each quantized type with separate ranges, by precision.
    """

    def __init__(self, ranges: Mapping[str, float], ranges_by_type: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__(ranges)
        self.by_type = {precision: dict(type_ranges) for precision, type_ranges in ranges_by_type.items()}


def select_ranges_for_type(ranges: Mapping[str, float], quantized_type: QuantizedType) -> Mapping[str, float]:
    """Returns the amax by tensor name for a quantized type.

    Separate ranges of the type replace the general ranges.
    """
    type_ranges = ranges.by_type.get(quantized_type.precision.value) if isinstance(ranges, RangeTable) else None
    return {**ranges, **type_ranges} if type_ranges else ranges


def override_ranges(ranges: Mapping[str, float], overrides: Mapping[str, float]) -> Mapping[str, float]:
    """Returns a copy of ranges in which the overrides replace the amax of their tensors, for every quantized type."""
    merged = {**ranges, **overrides}
    if not isinstance(ranges, RangeTable):
        return merged
    return RangeTable(
        merged,
        {
            precision: {tensor: amax for tensor, amax in type_ranges.items() if tensor not in overrides}
            for precision, type_ranges in ranges.by_type.items()
        },
    )


def ranges_comparison_key(ranges: Mapping[str, float]) -> tuple[object, ...]:
    """Returns a key of a range table. Two tables have equal keys if and only if all their ranges are equal."""
    ranges_by_type = ranges.by_type if isinstance(ranges, RangeTable) else {}
    return (
        *sorted(ranges.items()),
        *((precision, *sorted(type_ranges.items())) for precision, type_ranges in sorted(ranges_by_type.items())),
    )


@dataclass(frozen=True)
class Calibration:
    """The ranges of a network, with their range method and the samples on which they were measured.

    Attributes:
        method: One of `RANGE_METHODS`; "" if it is unknown.
        samples: Number of samples.
        data_sha256: Hash of the samples from `Samples.hash_inputs`.
        ranges: The amax by tensor name, for INT8 and every quantized type without separate ranges.
        ranges_by_type: The amax by tensor name for each quantized type with separate ranges, by precision.
        given_tensors: The tensors whose range is given, and not measured on the calibration samples in use.
    """

    method: str = ""
    samples: int = 0
    data_sha256: str = ""
    ranges: dict[str, float] = field(default_factory=dict)
    ranges_by_type: dict[str, dict[str, float]] = field(default_factory=dict)
    given_tensors: tuple[str, ...] = field(default=(), compare=False)

    @property
    def range_table(self) -> Mapping[str, float]:
        """The ranges for the lowerings: a `RangeTable` if any quantized type has separate ranges, or else a plain
        mapping.
        """
        return RangeTable(self.ranges, self.ranges_by_type) if self.ranges_by_type else self.ranges

    def with_ranges(self, overrides: Mapping[str, float]) -> Calibration:
        """Returns a copy in which the given ranges replace the amax of their tensors, for every quantized type."""
        return replace(
            self,
            ranges={**self.ranges, **overrides},
            ranges_by_type={
                precision: {tensor: amax for tensor, amax in type_ranges.items() if tensor not in overrides}
                for precision, type_ranges in self.ranges_by_type.items()
            },
            given_tensors=(*self.given_tensors, *overrides),
        )


def calibrate(
    network_model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    *,
    method: str = "minmax",
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> Calibration:
    """Measures each tensor over all samples, and chooses its range by a range method.

    ``minmax`` reduces tensors inside the graph, in one pass over the samples. Only scalars leave the inference session.
    The other methods read the tensors as outputs. One pass over the samples reads as many tensors as the memory limit
    allows, but at least one. The sizes of the tensors are taken from the first feed.

    Args:
        network_model: The FP32 network. The model is not changed, and its weights are shared, not copied.
        tensors: Names of float tensors of the main graph.
        samples: The calibration samples.
        backend: The backend that executes the network.
        method: One of `RANGE_METHODS`.
        progress: A callback after each execution. An exception from the callback ends the calibration.
        executor: The executor of the feeds; this process by default.

    Raises:
        InputError: A tensor is unknown or contains NaN or an infinity, or the data cannot be read.
        TrtTuiError: The backend refuses the network or the feeds.
    """
    if method == "minmax":
        ranges = _measure_minmax_ranges(network_model, tensors, samples, backend, executor, progress)
        return Calibration(method, samples.count, samples.hash_inputs(), ranges)
    histograms = {tensor: Histogram() for tensor in tensors}
    collect_tensors(
        network_model, [*starmap(CollectedTensor, histograms.items())], samples, backend, progress, executor
    )
    ranges = {tensor: choose_amax(histogram, method) for tensor, histogram in histograms.items()}
    ranges_by_type = {
        quantized_type.precision.value: {
            tensor: choose_amax(tensor_histogram, method, quantized_type)
            for tensor, tensor_histogram in histograms.items()
        }
        for quantized_type in TYPES_WITH_OWN_RANGES
        if method != "percentile"
    }
    return Calibration(method, samples.count, samples.hash_inputs(), ranges, ranges_by_type)


class MinMaxTask(LoadingTask):
    """A task that computes the amax of each tensor in one feed, by reductions inside the graph.

    The amax of a tensor with NaN or an infinity is NaN or infinite.
    """

    item_text = "the ranges of feed {}"

    def __init__(self, tensors: Sequence[str]) -> None:
        self._tensors = tuple(tensors)

    def run_item(self, context: CalibrationContext, item: int) -> Generator[None, None, dict[str, float]]:
        if self._loaded is None:
            probe = NetworkProbe(context.fp32_model)
            self._reductions = {
                tensor: probe.add_reductions(probe.find_or_add_fp32_value(tensor), *AMAX_OPERATORS)
                for tensor in self._tensors
            }
            self._loaded = probe.load_output_runner(context.backend, context.calibration_samples)
        scalars = self._loaded.run(context.calibration_samples.read_feed(item))
        yield
        return {tensor: compute_amax_from_reductions(scalars, names) for tensor, names in self._reductions.items()}


def _measure_minmax_ranges(
    model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    executor: Executor[CalibrationContext] | None,
    progress: RunProgress | None,
) -> dict[str, float]:
    ranges = dict.fromkeys(tensors, 0.0)
    if not ranges:
        return ranges
    task = MinMaxTask(tensors)
    try:
        for feed_index, amaxes in run_items_in_order(
            executor or LocalExecutor(CalibrationInputs(model, samples, backend)),
            task,
            range(len(samples)),
            lambda item: 1,
            progress,
        ):
            for tensor, amax in amaxes.items():
                if not math.isfinite(amax):
                    raise make_non_finite_error(
                        model, samples, backend, tensor, "NaN" if math.isnan(amax) else "an infinity", feed_index
                    )
                ranges[tensor] = max(ranges[tensor], amax)
    finally:
        task.close()
    return ranges
