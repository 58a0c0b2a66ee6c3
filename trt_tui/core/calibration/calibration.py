"""The measurement of a network's dynamic ranges (the amax of each quantized tensor) and of tensor statistics.

Symmetric INT8 maps ``[-amax, amax]`` to quantized values -127 to 127, so the scale is amax / 127. FP8 maps it to -448
to 448. An amax of 0 means that the tensor was zero everywhere; code that computes a scale from it uses 1.

Tensor statistics are magnitudes, the ranges of all methods, FP16 overflow, and dominant channels.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.range_methods import (
    TYPES_WITH_OWN_RANGES,
    Histogram,
    choose_amax,
    iterate_magnitude_blocks,
    list_range_methods,
)
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
from trt_tui.core.execution import Executor, LoadingTask, LocalExecutor
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT8, QuantizedType
from trt_tui.core.runner import Backend

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
