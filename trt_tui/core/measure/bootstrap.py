"""How far a verdict's figures may be off because there are few samples: bootstrap intervals, percentile method.

As many samples as there are get drawn with replacement, and each figure is computed from each draw (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). The draws are the same for every run on the same
samples, so the intervals of two runs can be compared.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

LEVEL = 0.95
"""The share of the draws that an interval covers; half of the rest lies on either side of it."""

RESAMPLES = 1000
"""Draws for figures that follow from sums of each sample."""

METRIC_RESAMPLES = 100
"""Draws for the user's metric, which is called for each."""

FEWEST = 8
"""With fewer samples there is no interval: so few say too little about others."""

MATRIX_SAMPLES = 4096
"""Up to so many samples the draws are kept as a matrix."""

LEAST_DONE = 0.9
"""The share of the draws on which the metric must have worked; a class that was not drawn may make it fail."""


@dataclass(frozen=True)
class Interval:
    """From ``low`` to ``high``, in the figure's own unit; an end may be infinite (the SQNR of an exact copy)."""

    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """The intervals of a verdict's figures, each under its kind as targets name it.

    Attributes:
        outputs: "sqnr" (dB), "cosine", "mse" and "mean_abs", or "mismatch", by judged output. Maxima have no interval:
            samples that were not seen may be larger by any amount.
        worst: The same of the worst output.
        agreement: Of the share of samples with the reference's largest class.
        metric: Of the user's metric.
        gain: Of the metric minus the FP32 network's on the same draw.
        draws: How often the metric was called; None if it was not.
        parts: As ``metric`` of each part of the metric that has one.
        part_gains: As ``gain`` of each.
    """

    outputs: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    worst: Mapping[str, Interval] = field(default_factory=dict)
    agreement: Interval | None = None
    metric: Interval | None = None
    gain: Interval | None = None
    draws: int | None = None
    parts: Mapping[str, Interval] = field(default_factory=dict)
    part_gains: Mapping[str, Interval] = field(default_factory=dict)


def drawn(count: int, resamples: int) -> np.ndarray:
    """Numbers of samples, ``(resamples, count)`` integers from 0 to ``count``, seeded by ``count`` alone."""
    return np.random.default_rng(count).integers(0, count, (resamples, count))


@functools.lru_cache(maxsize=2)
def _times(count: int) -> np.ndarray:
    """How often each draw has each sample, float64 ``(RESAMPLES, count)``."""
    return np.stack([np.bincount(numbers, minlength=count) for numbers in drawn(count, RESAMPLES)]).astype(np.float64)


def _pooled(sums: np.ndarray) -> np.ndarray:
    """The sums of each draw, ``(RESAMPLES, columns)``, from those of the samples, ``(samples, columns)``."""
    if len(sums) <= MATRIX_SAMPLES and np.isfinite(sums).all():
        result: np.ndarray = _times(len(sums)) @ sums
        return result
    return np.stack([sums[numbers].sum(0) for numbers in drawn(len(sums), RESAMPLES)])


def interval(figures: np.ndarray) -> Interval | None:
    """The middle `LEVEL` of some figures (one axis), from one of them to another; None if one is not a number."""
    if not len(figures) or np.isnan(figures).any():
        return None
    ordered = np.sort(figures)
    skipped = int((1 - LEVEL) / 2 * len(ordered))
    return Interval(float(ordered[skipped]), float(ordered[-1 - skipped]))


class Drawing:
    """What each sample adds to the figures of one run, and the intervals that follow.

    If the rows of a judged output are not those of the batch, samples cannot be told apart: the whole feed is drawn.
    """

    def __init__(self) -> None:
        self._floats: dict[str, list[np.ndarray]] = {}
        self._differ: dict[str, list[np.ndarray]] = {}
        self._agreed: list[np.ndarray] = []

    def add_float(self, name: str, sums: np.ndarray) -> None:
        """Adds a feed of a judged float output by `trt_tui.core.measure.metrics.sample_sums`."""
        self._floats.setdefault(name, []).append(sums)

    def add_integer(self, name: str, reference: np.ndarray, test: np.ndarray, rows: int) -> None:
        """Adds a feed of a judged integer output; in arrays of different shapes every element differs."""
        if reference.shape == test.shape:
            differ = rows_of(np.asarray(reference != test), rows)  # of two single texts the comparison is a bool
            sums = np.stack([differ.sum(1), np.full(len(differ), differ.shape[1])], 1).astype(np.float64)
        else:
            sums = np.full((1, 2), float(reference.size))
        self._differ.setdefault(name, []).append(sums)

    def add_agreement(self, same: np.ndarray) -> None:
        """Adds a feed of a classifier: a bool for each sample, whether its largest class is the reference's."""
        self._agreed.append(same.astype(np.float64)[:, None])

    def noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Noise and signal of each sample at each float output, Σ(test-ref)² and Σref², float64 ``(samples, outputs)``.

        Of feeds in place of samples where these cannot be told apart. Where integers alone are judged: how many differ
        and how many there are.
        """
        _, units = self._units([*(self._floats or self._differ).values()])
        return np.stack([one[:, 0] for one in units], 1), np.stack([one[:, 1] for one in units], 1)

    @staticmethod
    def _units(every: Sequence[Sequence[np.ndarray]]) -> tuple[bool, list[np.ndarray]]:
        """Whether samples can be told apart in all of some sums, and these by samples, or else by feeds."""
        alike = all(len({len(one) for one in feed}) == 1 for feed in zip(*every, strict=True))
        return alike, [np.concatenate(feeds if alike else [one.sum(0, keepdims=True) for one in feeds])
                       for feeds in every]

    def spread(self) -> Spread | None:
        """The intervals; None with fewer than `FEWEST` samples."""
        names = [*self._floats, *self._differ]
        every = [*self._floats.values(), *self._differ.values(), *([self._agreed] if self._agreed else [])]
        if not every:
            return None
        alike, units = self._units(every)
        count = len(units[0])
        if count < FEWEST:
            return None
        pooled = _pooled(np.concatenate(units, 1))
        columns = np.split(pooled, np.cumsum([unit.shape[1] for unit in units])[:-1], 1)
        figures = {name: _float_figures(sums) if name in self._floats else {"mismatch": sums[:, 0] / sums[:, 1]}
                   for name, sums in zip(names, columns, strict=False)}
        worst = {}
        for kind, of in (("sqnr", np.min), ("cosine", np.min), ("mse", np.max), ("mean_abs", np.max),
                         ("mismatch", np.max)):
            if found := [one[kind] for one in figures.values() if kind in one]:
                worst[kind] = interval(of(found, 0))
        agreement = interval(columns[-1][:, 0] / count) if self._agreed and alike else None
        return Spread({name: _known({kind: interval(values) for kind, values in one.items()})
                       for name, one in figures.items()}, _known(worst), agreement)


def rows_of(array: np.ndarray, rows: int) -> np.ndarray:
    """A row for each of so many samples; a single row if the first axis does not count them."""
    return array.reshape(rows if array.ndim and len(array) == rows else 1, -1)


def _known(intervals: Mapping[str, Interval | None]) -> dict[str, Interval]:
    return {kind: one for kind, one in intervals.items() if one is not None}


def _float_figures(sums: np.ndarray) -> dict[str, np.ndarray]:
    """The figures of each draw, from its sums; see `trt_tui.core.measure.metrics`."""
    diff2, ref2, test2, diff1, count = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        sqnr = np.where(diff2 == 0, np.inf, 10 * np.log10(ref2 / diff2))
        cosine = np.where(diff2 == 0, 1.0, (ref2 + test2 - diff2) / 2 / np.sqrt(ref2 * test2))
        return {"sqnr": np.where(np.isfinite(diff2), sqnr, -np.inf), "cosine": np.clip(cosine, -1, 1),
                "mse": diff2 / count, "mean_abs": diff1 / count}


def of_draws(draws: Sequence[float | None]) -> Interval | None:
    """The interval of a figure that was computed on draws; None if that failed on too many."""
    known = [draw for draw in draws if draw is not None]
    return interval(np.array(known)) if len(known) >= math.ceil(LEAST_DONE * len(draws)) else None
