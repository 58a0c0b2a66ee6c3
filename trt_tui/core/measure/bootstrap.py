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

from trt_tui.core.measure.error_metrics import (
    ERROR_METRICS,
    MISMATCH_SUMS,
    SAMPLE_SUMS,
    compute_metric_values,
    flatten_each_sample,
)
from trt_tui.core.measure.sample_draws import student_t_quantile

CONFIDENCE = 0.95
"""The confidence of the intervals; half of the rest lies on either side."""

RESAMPLE_COUNT = 999
"""Draws for values that follow from sums of each sample."""

METRIC_RESAMPLE_COUNT = 199
"""Draws for the user's metric, which is called for each: the fewest with which 95 % are reached from 8 samples on, as
the interval's ends are the least and the largest draw there."""

MIN_SAMPLES = 8
"""With fewer samples there is no interval: so few say too little about others."""

MAX_MATRIX_SAMPLES = 4096
"""Up to so many samples the draws are kept as a matrix."""

MIN_VALID_DRAW_SHARE = 0.9
"""The share of the draws on which the metric must have worked; a class that was not drawn may make it fail."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """From ``low`` to ``high``, in the figure's own unit; an end may be infinite (the SQNR of an exact copy)."""

    low: float
    high: float


@dataclass(frozen=True)
class AccuracyIntervals:
    """The intervals of a verdict's figures, each under its kind as targets name it.

    Attributes:
        outputs: By judged output, those of the `ERROR_METRICS` that follow from `SAMPLE_SUMS` or `MISMATCH_SUMS`.
        worst_output: The same of the worst output.
        agreement_interval: Of the share of samples with the reference's largest class.
        metric: Of the user's metric.
        metric_gain: Of the metric minus the FP32 network's on the same draw.
        metric_draws: How often the metric was called; None if it was not.
        metric_parts: As ``metric`` of each part of the metric that has one.
        metric_part_gains: As ``metric_gain`` of each.
    """

    outputs: Mapping[str, Mapping[str, ConfidenceInterval]] = field(default_factory=dict)
    worst_output: Mapping[str, ConfidenceInterval] = field(default_factory=dict)
    agreement_interval: ConfidenceInterval | None = None
    metric: ConfidenceInterval | None = None
    metric_gain: ConfidenceInterval | None = None
    metric_draws: int | None = None
    metric_parts: Mapping[str, ConfidenceInterval] = field(default_factory=dict)
    metric_part_gains: Mapping[str, ConfidenceInterval] = field(default_factory=dict)


def draw_resamples(sample_count: int, resample_count: int) -> Iterator[np.ndarray]:
    """Yields numbers of samples, ``(count,)`` integers from 0 to ``sample_count`` for each draw, seeded by
    ``sample_count`` alone.

    All draws at once of a million samples take 8 GB.
    """
    rng = np.random.default_rng(sample_count)
    return (rng.integers(0, sample_count, sample_count) for _ in range(resample_count))


def pair_each_sample_with_another(sample_count: int) -> np.ndarray:
    """Numbers of samples, ``(count,)``: for each sample another one, by chance and seeded by ``sample_count`` alone."""
    order = np.random.default_rng(sample_count).permutation(sample_count)
    other_samples = np.empty_like(order)
    other_samples[order] = np.roll(order, 1)
    return other_samples


@functools.lru_cache(maxsize=2)
def _count_occurrences_in_resamples(sample_count: int) -> np.ndarray:
    """How often each draw has each sample, float64 ``(RESAMPLES, count)``."""
    return np.stack([
        np.bincount(numbers, minlength=sample_count) for numbers in draw_resamples(sample_count, RESAMPLE_COUNT)
    ]).astype(np.float64)


def _sum_over_resamples(sample_sums: np.ndarray) -> np.ndarray:
    """The sums of each draw, ``(RESAMPLES, columns)``, from those of the samples, ``(samples, columns)``."""
    if len(sample_sums) <= MAX_MATRIX_SAMPLES and np.isfinite(sample_sums).all():
        result: np.ndarray = _count_occurrences_in_resamples(len(sample_sums)) @ sample_sums
        return result
    return np.stack([sample_sums[numbers].sum(0) for numbers in draw_resamples(len(sample_sums), RESAMPLE_COUNT)])


def percentile_interval(resample_values: np.ndarray, sample_count: int) -> ConfidenceInterval | None:
    """The interval of a value, from one of its draws to another; None if one is not a number.

    Args:
        resample_values: The value on each draw, one axis.
        sample_count: How many samples were drawn from, at least 2.
    """
    if not len(resample_values) or np.isnan(resample_values).any():
        return None
    ordered = np.sort(resample_values)
    below = NormalDist().cdf(-math.sqrt(sample_count / (sample_count - 1)) * student_t_quantile(sample_count - 1))
    lower_rank = max(1, math.floor((len(ordered) + 1) * below))
    return ConfidenceInterval(float(ordered[lower_rank - 1]), float(ordered[-lower_rank]))


def upper_bound_of_rate(event_count: int, sample_count: int) -> float:
    """The upper end of the exact interval of a rate: with it, so few events in so many samples have 2.5 % probability.

    Source: Clopper and Pearson, The Use of Confidence or Fiducial Limits, 1934.
    """
    if event_count >= sample_count:
        return 1.0
    numbers = np.arange(event_count + 1, dtype=np.float64)
    ways = np.array([math.lgamma(sample_count + 1) - math.lgamma(number + 1) - math.lgamma(sample_count - number + 1)
                     for number in numbers])
    low, high = event_count / sample_count, 1.0
    while high - low > 1e-9:
        rate = (low + high) / 2
        at_most = np.exp(ways + numbers * math.log(rate) + (sample_count - numbers) * math.log1p(-rate)).sum()
        low, high = (rate, high) if at_most > (1 - CONFIDENCE) / 2 else (low, rate)
    return high


def rate_interval(event_count: int, sample_count: int) -> ConfidenceInterval:
    """The exact interval of a rate of which so many events were seen in so many samples."""
    return ConfidenceInterval(1 - upper_bound_of_rate(sample_count - event_count, sample_count),
                              upper_bound_of_rate(event_count, sample_count))


class BootstrapSampler:
    """What each sample adds to the figures of one run, and the intervals that follow.

    If the rows of a judged output are not those of the batch, samples cannot be told apart: the whole feed is drawn.
    """

    def __init__(self) -> None:
        self._float_sums: dict[str, list[np.ndarray]] = {}
        self._mismatch_sums: dict[str, list[np.ndarray]] = {}
        self._agreements: list[np.ndarray] = []

    def add_float_output_sums(self, output_name: str, sample_sums: np.ndarray) -> None:
        """Adds a feed of a judged float output by `trt_tui.core.measure.error_metrics.compute_error_sums_by_sample`."""
        self._float_sums.setdefault(output_name, []).append(sample_sums)

    def add_integer_output(self, output_name: str, reference: np.ndarray, output: np.ndarray,
                           sample_count: int) -> None:
        """Adds a feed of a judged integer output; in arrays of different shapes every element differs."""
        if reference.shape == output.shape:
            differ = flatten_each_sample(np.asarray(reference != output),
                                         sample_count)  # of two single texts the comparison is a bool
            sums = np.stack([differ.sum(1), np.full(len(differ), differ.shape[1])], 1).astype(np.float64)
        else:
            sums = np.full((1, 2), float(reference.size))
        self._mismatch_sums.setdefault(output_name, []).append(sums)

    def add_top1_agreement(self, is_same_class: np.ndarray) -> None:
        """Adds a feed of a classifier: a bool for each sample, whether its largest class is the reference's."""
        self._agreements.append(is_same_class.astype(np.float64)[:, None])

    def noise_and_signal_by_sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Noise and signal of each sample at each float output, Σ(test-ref)² and Σref², float64 ``(samples, outputs)``.

        Of feeds in place of samples where these cannot be told apart. Where integers alone are judged: how many differ
        and how many there are.
        """
        _, units = self._join_sums_by_sample_or_feed([*(self._float_sums or self._mismatch_sums).values()])
        return np.stack([unit_sums[:, 0] for unit_sums in units], 1), np.stack([unit_sums[:, 1] for unit_sums in units],
                                                                               1)

    @staticmethod
    def _join_sums_by_sample_or_feed(sums_by_output: Sequence[Sequence[np.ndarray]]) -> tuple[bool, list[np.ndarray]]:
        """Whether samples can be told apart in all of some sums, and these by samples, or else by feeds."""
        alike = all(len({len(sums) for sums in feed}) == 1 for feed in zip(*sums_by_output, strict=True))
        return alike, [np.concatenate(feed_sums if alike else [sums.sum(0, keepdims=True) for sums in feed_sums])
                       for feed_sums in sums_by_output]

    def compute_intervals(self) -> AccuracyIntervals | None:
        """The intervals; None with fewer than `MIN_SAMPLES` samples."""
        names = [*self._float_sums, *self._mismatch_sums]
        sums_by_output = [
            *self._float_sums.values(), *self._mismatch_sums.values(), *([self._agreements] if self._agreements else [])
        ]
        if not sums_by_output:
            return None
        is_by_sample, units = self._join_sums_by_sample_or_feed(sums_by_output)
        count = len(units[0])
        if count < MIN_SAMPLES:
            return None
        pooled = _sum_over_resamples(np.concatenate(units, 1))
        columns = np.split(pooled, np.cumsum([unit.shape[1] for unit in units])[:-1], 1)
        values_by_output = {
            name: compute_metric_values(
                dict(zip(SAMPLE_SUMS if name in self._float_sums else MISMATCH_SUMS, sums.T, strict=True)))
            for name, sums in zip(names, columns, strict=False)
        }
        rates = {name: rate_interval(round(unit[:, 0].sum()), count) for name, unit in zip(names, units, strict=False)
                 if name in self._mismatch_sums and (unit[:, 1] == 1).all()}
        worst = {}
        for kind, metric in ERROR_METRICS.items():
            if kind_values := [
                    output_values[kind] for output_values in values_by_output.values() if kind in output_values
            ]:
                reduce_worst = np.min if metric.is_higher_better else np.max
                worst[kind] = percentile_interval(reduce_worst(kind_values, 0), count)
        if rates and (drawn_worst := worst["mismatch"]) is not None:
            worst["mismatch"] = ConfidenceInterval(
                drawn_worst.low, max(drawn_worst.high, *(output_values.high for output_values in rates.values())))
        agreement = rate_interval(round(units[-1].sum()), count) if self._agreements and is_by_sample else None
        return AccuracyIntervals(
            {
                name: {"mismatch": rates[name]} if name in rates else _drop_missing_intervals(
                    {kind: percentile_interval(values, count)
                     for kind, values in output_values.items()})
                for name, output_values in values_by_output.items()
            }, _drop_missing_intervals(worst), agreement)


def _drop_missing_intervals(intervals: Mapping[str, ConfidenceInterval | None]) -> dict[str, ConfidenceInterval]:
    return {kind: interval for kind, interval in intervals.items() if interval is not None}


def compute_metric_interval(resample_values: Sequence[float | None], sample_count: int,
                            max_metric_loss: float | None = None) -> ConfidenceInterval | None:
    """The interval of a metric that was computed on draws; None if that failed on too many.

    Args:
        sample_count: How many samples were drawn from.
        max_metric_loss: What the metric would lose if all samples were lost. It widens an interval that no draw
            changes: as many samples may be lost as `upper_bound_of_rate` allows where none was. None if it is unknown.
    """
    valid_values = [draw for draw in resample_values if draw is not None]
    if not valid_values or len(valid_values) < math.ceil(MIN_VALID_DRAW_SHARE * len(resample_values)):
        return None
    metric_interval = percentile_interval(np.array(valid_values), sample_count)
    if metric_interval is None or metric_interval.low < metric_interval.high:
        return metric_interval
    return None if max_metric_loss is None else ConfidenceInterval(
        metric_interval.low - max(0.0, max_metric_loss) * upper_bound_of_rate(0, sample_count), metric_interval.high)
