"""Range methods, which choose the range of a tensor from the histogram of its calibration values.

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

import math
from collections.abc import Callable

import numpy as np

from trt_tui.core.calibration.histogram import Histogram
from trt_tui.core.quantized_types import INT8, TYPES_WITH_RANGES, QuantizedType

DEFAULT_PERCENTILE = 99.99
"""The percentage of all values that ``percentile`` covers."""

_QUANTIZATION_LEVELS = 128
_SUBDIVIDED_BINS, _PARTS_PER_BIN = 32, 16


def find_entropy_threshold(histogram: Histogram) -> float:
    """Returns the amax of least Kullback-Leibler divergence, between 1/32 of the largest magnitude and that magnitude.
    """
    used = histogram.used_bin_count
    if histogram.amax == 0 or used <= _QUANTIZATION_LEVELS:
        return histogram.amax
    counts = histogram.counts[:used].astype(np.float64)
    counts[0] = counts[1]
    cumulated = np.cumsum(counts)
    fewest_bins = int(np.searchsorted(cumulated, cumulated[-1] / 2)) + 1
    kept_bins = np.arange(max(_QUANTIZATION_LEVELS, fewest_bins), used + 1)
    divergence = np.concatenate(
        [_kl_divergence(counts, part) for part in np.array_split(kept_bins,
                                                                 len(kept_bins) // 512 + 1)])
    best_index = len(kept_bins) - 1 - int(np.argmin(divergence[::-1]))
    return min(int(kept_bins[best_index]) * histogram.bin_width, histogram.amax)


def find_mse_threshold(histogram: Histogram, quantized_type: QuantizedType = INT8) -> float:
    """Returns the amax of least mean squared quantization error, between 1/32 of the largest magnitude and that
    magnitude.

    All values of a bin count as its centre. In the lowest bins, where the steps of FP8 are finer than a bin, they count
    as evenly distributed.
    """
    if histogram.amax == 0:
        return 0.0
    used = np.flatnonzero(histogram.counts)
    low, high = used[used < _SUBDIVIDED_BINS], used[used >= _SUBDIVIDED_BINS]
    within = (np.arange(_PARTS_PER_BIN) + 0.5) / _PARTS_PER_BIN
    values = np.concatenate([(low[:, None] + within).ravel(), high + 0.5]) * histogram.bin_width
    counts = np.concatenate([np.repeat(histogram.counts[low] / _PARTS_PER_BIN, _PARTS_PER_BIN), histogram.counts[high]])
    thresholds = np.append(
        np.arange(_QUANTIZATION_LEVELS, histogram.used_bin_count, 16) * histogram.bin_width, histogram.amax)
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
    """Lists the range methods that a quantized type supports, the default first.

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
        histogram, quantized_type)


def _kl_divergence(counts: np.ndarray, kept_bin_counts: np.ndarray) -> np.ndarray:
    """Returns the Kullback-Leibler divergence KL(P || Q) for each candidate number of kept bins.

    P is the histogram cut at that number, with all counts above added to its last bin. Q is the cut histogram without
    those counts, in 128 levels; the count of a level is spread evenly over its bins that are not empty. Running sums
    reduce the cost of a candidate to 128 terms. The result is infinite if values were clipped into an empty bin.
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


def _quantization_squared_error(values: np.ndarray, counts: np.ndarray, amax: float,
                                quantized_type: QuantizedType) -> float:
    scale = amax / quantized_type.max_value
    return float(counts @ np.square(values - quantized_type.quantize(values / scale) * scale))
