"""Confidence intervals of the values of an accuracy, by the bootstrap over samples: expanded percentile intervals.

As many samples as there are get drawn with replacement, and each value is computed from each draw (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). The percentiles are those that make the interval of a
mean as wide as Student's t does (Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 5.3): with 8
samples the plain percentiles cover 88 %, these 95 %. Values that a few samples dominate are covered less, as by every
interval of few samples: noise energies of a lognormal distribution with sigma 1 in 85 % of cases with 8 samples, in
95 % with 256. The draws are the same for every run on the same samples, so the
intervals of two runs can be compared.

Draws of samples that are all alike are all alike too, and would give an interval without width. So shares
of samples, such as those with the reference's class, have the exact binomial interval of Clopper and Pearson (1934),
and a metric that no draw changes is given the room that this interval gives to losses that were not seen.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from trt_tui.core.measure.sampling import t_quantile

LEVEL = 0.95
"""The confidence of the intervals; half of the rest lies on either side."""

RESAMPLES = 999
"""Draws for values that follow from sums of each sample."""

METRIC_RESAMPLES = 199
"""Draws for the user's metric, which is called for each: the fewest with which 95 % are reached from 8 samples on, as
the interval's ends are the least and the largest draw there."""

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


def drawn(count: int, resamples: int) -> Iterator[np.ndarray]:
    """Yields numbers of samples, ``(count,)`` integers from 0 to ``count`` for each draw, seeded by ``count`` alone.

    All draws at once of a million samples take 8 GB.
    """
    rng = np.random.default_rng(count)
    return (rng.integers(0, count, count) for _ in range(resamples))


def other_of_each(count: int) -> np.ndarray:
    """Numbers of samples, ``(count,)``: for each sample another one, by chance and seeded by ``count`` alone."""
    order = np.random.default_rng(count).permutation(count)
    others = np.empty_like(order)
    others[order] = np.roll(order, 1)
    return others


@functools.lru_cache(maxsize=2)
def _times(count: int) -> np.ndarray:
    """How often each draw has each sample, float64 ``(RESAMPLES, count)``."""
    return np.stack([np.bincount(numbers, minlength=count) for numbers in drawn(count, RESAMPLES)]
                    ).astype(np.float64)


def _pooled(sums: np.ndarray) -> np.ndarray:
    """The sums of each draw, ``(RESAMPLES, columns)``, from those of the samples, ``(samples, columns)``."""
    if len(sums) <= MATRIX_SAMPLES and np.isfinite(sums).all():
        result: np.ndarray = _times(len(sums)) @ sums
        return result
    return np.stack([sums[numbers].sum(0) for numbers in drawn(len(sums), RESAMPLES)])


def interval(figures: np.ndarray, count: int) -> Interval | None:
    """The interval of a value, from one of its draws to another; None if one is not a number.

    Args:
        figures: The value on each draw, one axis.
        count: How many samples were drawn from, at least 2.
    """
    if not len(figures) or np.isnan(figures).any():
        return None
    ordered = np.sort(figures)
    below = NormalDist().cdf(-math.sqrt(count / (count - 1)) * t_quantile(count - 1))
    place = max(1, math.floor((len(ordered) + 1) * below))
    return Interval(float(ordered[place - 1]), float(ordered[-place]))


def largest_rate(events: int, count: int) -> float:
    """The upper end of the exact interval of a rate: with it, so few events in so many samples have 2.5 % probability.

    Source: Clopper and Pearson, The Use of Confidence or Fiducial Limits, 1934.
    """
    if events >= count:
        return 1.0
    numbers = np.arange(events + 1, dtype=np.float64)
    ways = np.array([math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)
                     for number in numbers])
    low, high = events / count, 1.0
    while high - low > 1e-9:
        rate = (low + high) / 2
        at_most = np.exp(ways + numbers * math.log(rate) + (count - numbers) * math.log1p(-rate)).sum()
        low, high = (rate, high) if at_most > (1 - LEVEL) / 2 else (low, rate)
    return high


def rate_interval(events: int, count: int) -> Interval:
    """The exact interval of a rate of which so many events were seen in so many samples."""
    return Interval(1 - largest_rate(count - events, count), largest_rate(events, count))


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
        rates = {name: rate_interval(round(unit[:, 0].sum()), count) for name, unit in zip(names, units, strict=False)
                 if name in self._differ and (unit[:, 1] == 1).all()}
        worst = {}
        for kind, of in (("sqnr", np.min), ("cosine", np.min), ("mse", np.max), ("mean_abs", np.max),
                         ("mismatch", np.max)):
            if found := [one[kind] for one in figures.values() if kind in one]:
                worst[kind] = interval(of(found, 0), count)
        if rates and (drawn_worst := worst["mismatch"]) is not None:
            worst["mismatch"] = Interval(drawn_worst.low, max(drawn_worst.high, *(one.high for one in rates.values())))
        agreement = rate_interval(round(units[-1].sum()), count) if self._agreed and alike else None
        return Spread({name: {"mismatch": rates[name]} if name in rates else
                       _known({kind: interval(values, count) for kind, values in one.items()})
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


def of_draws(draws: Sequence[float | None], count: int, loss: float | None = None) -> Interval | None:
    """The interval of a metric that was computed on draws; None if that failed on too many.

    Args:
        count: How many samples were drawn from.
        loss: What the metric would lose if all samples were lost. It widens an interval that no draw changes: as many
            samples may be lost as `largest_rate` allows where none was. None if it is unknown.
    """
    known = [draw for draw in draws if draw is not None]
    if not known or len(known) < math.ceil(LEAST_DONE * len(draws)):
        return None
    found = interval(np.array(known), count)
    if found is None or found.low < found.high:
        return found
    return None if loss is None else Interval(found.low - max(0.0, loss) * largest_rate(0, count), found.high)
