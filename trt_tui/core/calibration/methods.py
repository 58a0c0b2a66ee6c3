"""Methods: how the range of a tensor is chosen from what calibration saw of it.

- ``minmax``: the largest ``|x|``, computed inside the graph.
- ``percentile``: the value that a given percentage of all ``|x|`` does not exceed.
- ``entropy``: the threshold with the least Kullback-Leibler divergence between the histogram of ``|x|`` and its form
  in 128 levels (S. Migacz, "8-bit Inference with TensorRT", GTC 2017; the first bin gets the second one's count, as
  NVIDIA ModelOpt does, so that zeros do not decide).
- ``mse``: the threshold with the least mean squared quantization error over the histogram.

``minmax`` and ``percentile`` look at the values alone. ``mse`` takes the error of the code type that the range is for.
``entropy`` assumes equal steps, which FP8 does not have: it is for INT8 alone.
"""

import math
from collections.abc import Callable

import numpy as np

from trt_tui.core.calibration.histogram import Histogram
from trt_tui.core.codes import CODES, INT8, CodeType

PERCENTILE = 99.99
"""The percentage of all values that ``percentile`` covers."""

_LEVELS = 128
_FINE_BINS, _FINE_PARTS = 32, 16


def entropy(histogram: Histogram) -> float:
    """The threshold of least Kullback-Leibler divergence; between 1/32 of the largest value and that value."""
    used = histogram.used
    if histogram.amax == 0 or used <= _LEVELS:
        return histogram.amax
    counts = histogram.counts[:used].astype(np.float64)
    counts[0] = counts[1]
    kept = np.arange(_LEVELS, used + 1)
    divergence = np.concatenate([_divergence(counts, part) for part in np.array_split(kept, len(kept) // 512 + 1)])
    best = len(kept) - 1 - int(np.argmin(divergence[::-1]))
    return min(int(kept[best]) * histogram.width, histogram.amax)


def mse(histogram: Histogram, code: CodeType = INT8) -> float:
    """The threshold of least mean squared error in codes of a type; between 1/32 of the largest value and that value.

    The values of a bin are taken to lie at its centre; in the lowest bins, where FP8's steps are finer than a bin,
    evenly within it.
    """
    if histogram.amax == 0:
        return 0.0
    used = np.flatnonzero(histogram.counts)
    low, high = used[used < _FINE_BINS], used[used >= _FINE_BINS]
    within = (np.arange(_FINE_PARTS) + 0.5) / _FINE_PARTS
    values = np.concatenate([(low[:, None] + within).ravel(), high + 0.5]) * histogram.width
    counts = np.concatenate([np.repeat(histogram.counts[low] / _FINE_PARTS, _FINE_PARTS), histogram.counts[high]])
    thresholds = np.append(np.arange(_LEVELS, histogram.used, 16) * histogram.width, histogram.amax)
    errors = [_squared_error(values, counts, threshold, code) for threshold in thresholds]
    return float(thresholds[len(errors) - 1 - int(np.argmin(errors[::-1]))])


_CHOOSE: dict[str, Callable[[Histogram, CodeType], float]] = {
    "minmax": lambda histogram, code: histogram.amax,
    "percentile": lambda histogram, code: histogram.percentile(PERCENTILE),
    "entropy": lambda histogram, code: entropy(histogram),
    "mse": lambda histogram, code: mse(histogram, code),
}

RANGE_METHODS = tuple(_CHOOSE)
"""The methods by name, the default first."""


OTHER_CODES = tuple(code for code in CODES.values() if code.activations and code is not INT8)
"""The code types beside INT8 that activations are held in."""


def methods_of(code: CodeType) -> tuple[str, ...]:
    """The methods that choose ranges for codes of a type, the default first."""
    return tuple(method for method in RANGE_METHODS if code is INT8 or method != "entropy")


def chosen(histogram: Histogram, method: str, code: CodeType = INT8) -> float:
    """The amax that one of `RANGE_METHODS` chooses, in the tensor's own units; 0 where all values are zero.

    Args:
        code: What the range is for; ``minmax`` takes the place of a method that `methods_of` it lacks.
    """
    return _CHOOSE[method if method in methods_of(code) else "minmax"](histogram, code)


def _divergence(counts: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """KL(P || Q) for each number of bins kept.

    P is the histogram cut at that number, with all that lies above added to its last bin. Q is the cut histogram
    without that, in 128 levels, each level's count spread evenly over its bins that are not empty. Written with running
    sums, so that a candidate costs 128 terms. Infinite where values were clipped into an empty bin.
    """
    cumulated = np.concatenate([[0.0], np.cumsum(counts)])
    filled = np.concatenate([[0.0], np.cumsum(counts > 0)])
    logs = np.concatenate([[0.0], np.cumsum(_times_log(counts))])
    total, inside, last = cumulated[-1], cumulated[kept], counts[kept - 1]
    clipped = total - inside
    edges = kept[:, None] * np.arange(_LEVELS + 1) // _LEVELS
    level_sums, level_bins = np.diff(cumulated[edges], axis=1), np.diff(filled[edges], axis=1)
    level_logs = np.log(np.divide(level_sums, level_bins, where=level_bins > 0, out=np.ones_like(level_sums)))
    p_log_p = logs[kept - 1] + _times_log(last + clipped)
    p_log_q = (level_sums * level_logs).sum(axis=1) + clipped * level_logs[:, -1]
    with np.errstate(divide="ignore"):
        divergence = (p_log_p - p_log_q) / total - math.log(total) + np.log(inside)
    return np.where((clipped > 0) & (last == 0), np.inf, divergence)


def _times_log(values: np.ndarray) -> np.ndarray:
    return values * np.log(np.where(values > 0, values, 1))


def _squared_error(values: np.ndarray, counts: np.ndarray, amax: float, code: CodeType) -> float:
    scale = amax / code.greatest
    return float(counts @ np.square(values - code.rounded(values / scale) * scale))
