"""The range methods. They choose the range of a tensor from the histogram of its values on calibration samples.

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
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trt_tui.core.quantized_types import INT8, TYPES_WITH_RANGES, QuantizedType

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
