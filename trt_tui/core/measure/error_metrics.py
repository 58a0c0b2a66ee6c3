"""Error metrics over pairs of tensors, pooled over samples in float64.

SQNR is 10·log10(Σref² / Σ(test-ref)²) in dB. The cosine follows from the same sums, since
Σref·test = (Σref² + Σtest² - Σ(test-ref)²) / 2, which loses nothing where the two are close.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trt_tui.core.measure.bootstrap import flatten_each_sample
from trt_tui.core.measure.results import ErrorMetrics
from trt_tui.core.precision import FP16_MAX, FP16_MIN


@dataclass
class ErrorSums:
    """Sums over the elements of a pair of tensors; `add_tensor_pair` and `merge_sums` pool, `compute_error_metrics`
    reads them out."""

    count: float = 0.0
    diff2: float = 0.0
    ref2: float = 0.0
    test2: float = 0.0
    diff1: float = 0.0
    diff_max: float = 0.0
    ref_max: float = 0.0
    nan: float = 0.0
    inf: float = 0.0
    fp16_over: float = 0.0
    fp16_under: float = 0.0

    def add_tensor_pair(self, reference: np.ndarray, test: np.ndarray, counts_values_beyond_fp16: bool = False) -> None:
        """Adds two float arrays of one shape; with ``counts_values_beyond_fp16``, counts the reference's values that
        FP16 cannot hold."""
        expected = np.asarray(reference, np.float64).ravel()
        actual = np.asarray(test, np.float64).ravel()
        with np.errstate(invalid="ignore", over="ignore"):
            difference = actual - expected
            diff2 = _sum_of_squares(difference)
            if not math.isfinite(diff2):
                self.nan += float(np.count_nonzero(np.isnan(actual) & ~np.isnan(expected)))
                self.inf += float(np.count_nonzero(np.isinf(actual) & ~np.isinf(expected)))
                difference[actual == expected] = 0.0
                diff2 = _sum_of_squares(difference)
            self.diff2 += diff2
            ref2, test2 = _sum_of_squares(expected), _sum_of_squares(actual)
            if not math.isfinite(ref2):  # infinities in both, as in a mask, are neither signal nor noise
                same = np.isinf(expected) & (actual == expected)
                ref2, test2 = _sum_of_squares(np.where(same, 0.0,
                                                       expected)), _sum_of_squares(np.where(same, 0.0, actual))
            self.ref2 += ref2
            self.test2 += test2
        size = np.abs(difference, out=difference)
        self.diff1 += float(size.sum())
        if size.size:
            self.diff_max = max(self.diff_max, float(size.max()))
            self.ref_max = max(self.ref_max, -float(expected.min()), float(expected.max()))
        self.count += difference.size
        if counts_values_beyond_fp16:
            size = np.abs(expected)
            self.fp16_over += float(np.count_nonzero((size > FP16_MAX) & np.isfinite(size)))
            self.fp16_under += float(np.count_nonzero((size < FP16_MIN) & (size > 0)))

    def merge_sums(self, other_sums: Mapping[str, float]) -> None:
        """Adds sums taken elsewhere (inside a graph), by field name; maxima are combined, the rest is summed."""
        for name, value in other_sums.items():
            value = float(value)
            if name.endswith("_max"):
                setattr(self, name, max(getattr(self, name), value))
            else:
                setattr(self, name, getattr(self, name) + value)

    @property
    def noise_to_signal_ratio(self) -> float:
        """Σ(test-ref)² / Σref²: 0 for an exact copy, infinite where the test is not finite."""
        if not math.isfinite(self.diff2):
            return math.inf
        if self.diff2 == 0:
            return 0.0
        return self.diff2 / self.ref2 if self.ref2 > 0 else math.inf

    def compute_error_metrics(self) -> ErrorMetrics:
        """The metrics; one that is not finite is None, and what made it so is counted under nan and inf."""
        nan, inf = int(self.nan), int(self.inf)
        if nan or inf or not (math.isfinite(self.diff2) and math.isfinite(self.ref2)):
            return ErrorMetrics(nan=nan, inf=inf)
        exact = self.diff2 == 0
        sqnr = None
        if not exact and self.ref2 > 0:
            sqnr = 10 * math.log10(self.ref2 / self.diff2)
        cosine = 1.0 if exact else None
        if not exact and self.ref2 > 0 and self.test2 > 0 and math.isfinite(self.test2):
            dot = (self.ref2 + self.test2 - self.diff2) / 2
            cosine = max(-1.0, min(1.0, dot / math.sqrt(self.ref2 * self.test2)))
        return ErrorMetrics(
            sqnr_db=sqnr, cosine=cosine,
            mse=self.diff2 / self.count if self.count else None,
            max_abs=self.diff_max if self.count else None,
            mean_abs=self.diff1 / self.count if self.count else None,
            exact=exact)


def _sum_of_squares(values: np.ndarray) -> float:
    # einsum stays on one thread, where a BLAS dot product would wake threads that the next run competes with.
    return float(np.einsum("i,i->", values, values))


def compute_error_sums_by_sample(reference: np.ndarray, test: np.ndarray, sample_count: int) -> np.ndarray:
    """Sums of each of so many samples: Σ(test-ref)², Σref², Σtest², Σ|test-ref| and the count of elements.

    Returns float64 ``(rows, 5)``; a single row if the first axis does not count the samples. Infinities in both arrays
    are left out.
    """
    expected = flatten_each_sample(np.asarray(reference, np.float64), sample_count)
    actual = flatten_each_sample(np.asarray(test, np.float64), sample_count)
    with np.errstate(invalid="ignore", over="ignore"):
        same = expected == actual
        difference = np.where(same, 0.0, actual - expected)
        both = same & np.isinf(expected)
        if both.any():
            expected, actual = np.where(both, 0.0, expected), np.where(both, 0.0, actual)
        squares = (np.einsum("ij,ij->i", values, values) for values in (difference, expected, actual))
        count = np.full(len(difference), difference.shape[1], np.float64)
        return np.stack([*squares, np.abs(difference).sum(axis=1), count], axis=1)


def compute_sqnr_db_by_sample(error_sums_by_sample: np.ndarray) -> np.ndarray:
    """SQNR in dB of each sample by its sums, float64.

    inf for an exact copy, -inf where the test is not finite, NaN where the reference is zero throughout and the test
    is not: no ratio says how bad that is.
    """
    noise, signal = error_sums_by_sample[:, 0], error_sums_by_sample[:, 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        result: np.ndarray = 10 * np.log10(signal / noise)
    result[signal == 0] = np.nan
    result[noise == 0] = np.inf
    result[~np.isfinite(noise)] = -np.inf
    return result
