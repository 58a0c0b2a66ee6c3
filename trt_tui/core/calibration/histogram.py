"""The histogram of a tensor's magnitudes, from which every range method except ``minmax`` chooses a range."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

_BLOCK_VALUES = 1 << 18


class Histogram:
    """Counts of ``|x|`` in equal bins that start at 0 and widen as larger values arrive.

    The last bin ends at a power of two above the largest value. A larger value doubles that end as often as needed, and
    neighbouring bins are joined. Counts are therefore exact, and independent of the order and division of the data. At
    least half of the bins are below the largest value.
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
        """Counts magnitudes ``|x|`` of a flat float32 array. Raises the errors of `add_values`."""
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
        counts = self.counts[:self.used_bin_count]
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
        """Returns a percentile of the magnitudes: the upper edge of its bin, but at most the largest value."""
        if not 0 < percent <= 100:
            raise ValueError(f"percentile {percent} is not in (0, 100]")
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
