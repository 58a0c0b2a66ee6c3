"""Confidence intervals of the values of an accuracy, by the bootstrap over samples with expanded percentile intervals.

As many samples as there are get drawn with replacement, and each value is computed from each draw (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). The percentiles are chosen so that the interval of a
mean is as wide as Student's t interval (Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 5.3).
With 8 samples the plain percentiles cover 88 %, the expanded ones 95 %. As with every interval of few samples, coverage
is lower for values that a few samples dominate. Noise energies with a lognormal distribution of sigma 1 are covered in
85 % of cases with 8 samples, and in 95 % with 256. All runs on the same samples use the same draws, so the intervals of
two runs can be compared.

If all samples have the same value, all draws have that value too, and the interval would have no width. Rates of
samples, such as the top-1 agreement, therefore have the exact binomial interval of Clopper and Pearson (1934). A metric
that is equal on all draws is widened by the rate of losses that this interval allows if none was observed.
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
from trt_tui.core.measure.sweep_plan import student_t_quantile

CONFIDENCE = 0.95
"""The confidence of all intervals. Each of the two tails has half of the remaining probability."""

RESAMPLE_COUNT = 999
"""The number of draws for values that are computed from sums of each sample."""

METRIC_RESAMPLE_COUNT = 199
"""The number of draws for the user's metric, which is called once for each. With 8 samples the ends of the interval are
the smallest and the largest draw. This is the smallest number of draws that then covers 95 %."""

MIN_SAMPLES = 8
"""The minimum number of samples for an interval. Fewer samples say too little about others."""

MAX_MATRIX_SAMPLES = 4096
"""The maximum number of samples for which the draws are kept as a matrix."""

MIN_VALID_DRAW_SHARE = 0.9
"""The minimum share of draws on which the metric must succeed. It may fail on a draw that lacks a class."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """The 95 % confidence interval of one value, from ``low`` to ``high`` in the unit of the value.

    An end may be infinite, as the SQNR of an exact copy is.
    """

    low: float
    high: float


@dataclass(frozen=True)
class AccuracyIntervals:
    """The confidence intervals of all values of an accuracy. The keys of error metrics are their names in targets.

    Attributes:
        outputs: By judged output and error metric: the intervals of the `ERROR_METRICS` that follow from `SAMPLE_SUMS`
            or `MISMATCH_SUMS`.
        worst_output: By error metric: the interval of the worst value over the judged outputs.
        agreement_interval: The interval of the top-1 agreement.
        metric: The interval of the user's metric.
        metric_gain: The interval of the difference between the metric and that of the FP32 network on the same draw.
        metric_draws: How often the metric was called; None if it was not called.
        metric_parts: By part of the metric: the interval of the part.
        metric_part_gains: By part of the metric: the interval of its difference from the FP32 network.
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
    """Yields bootstrap draws: sample indices with repetitions, ``(sample_count,)`` integers for each draw.

    The random seed is ``sample_count``. The draws are yielded one by one, because all draws of a million samples take 8
    GB.
    """
    rng = np.random.default_rng(sample_count)
    return (rng.integers(0, sample_count, sample_count) for _ in range(resample_count))


def pair_each_sample_with_another(sample_count: int) -> np.ndarray:
    """Returns for each sample the index of another, randomly chosen sample, ``(sample_count,)``.

    The random seed is ``sample_count``.
    """
    order = np.random.default_rng(sample_count).permutation(sample_count)
    other_samples = np.empty_like(order)
    other_samples[order] = np.roll(order, 1)
    return other_samples


@functools.lru_cache(maxsize=2)
def _count_occurrences_in_resamples(sample_count: int) -> np.ndarray:
    """Returns how often each bootstrap draw contains each sample, float64 ``(RESAMPLE_COUNT, sample_count)``."""
    return np.stack([
        np.bincount(numbers, minlength=sample_count) for numbers in draw_resamples(sample_count, RESAMPLE_COUNT)
    ]).astype(np.float64)


def _sum_over_resamples(sample_sums: np.ndarray) -> np.ndarray:
    """Returns the sums over the samples of each bootstrap draw, float64 ``(RESAMPLE_COUNT, columns)``.

    Args:
        sample_sums: The sums of each sample, ``(samples, columns)``.
    """
    if len(sample_sums) <= MAX_MATRIX_SAMPLES and np.isfinite(sample_sums).all():
        result: np.ndarray = _count_occurrences_in_resamples(len(sample_sums)) @ sample_sums
        return result
    return np.stack([sample_sums[numbers].sum(0) for numbers in draw_resamples(len(sample_sums), RESAMPLE_COUNT)])


def percentile_interval(resample_values: np.ndarray, sample_count: int) -> ConfidenceInterval | None:
    """Returns the confidence interval of a value from its bootstrap draws, by expanded percentiles; None if a draw is
    NaN.

    Args:
        resample_values: The value on each draw, one axis.
        sample_count: The number of samples that were drawn from, at least 2.
    """
    if not len(resample_values) or np.isnan(resample_values).any():
        return None
    ordered = np.sort(resample_values)
    below = NormalDist().cdf(-math.sqrt(sample_count / (sample_count - 1)) * student_t_quantile(sample_count - 1))
    lower_rank = max(1, math.floor((len(ordered) + 1) * below))
    return ConfidenceInterval(float(ordered[lower_rank - 1]), float(ordered[-lower_rank]))


def upper_bound_of_rate(event_count: int, sample_count: int) -> float:
    """Returns the upper end of the exact 95 % confidence interval of a rate (Clopper and Pearson).

    At this rate, ``event_count`` events or fewer in ``sample_count`` samples have a probability of 2.5 %. Source:
    Clopper and Pearson, The Use of Confidence or Fiducial Limits, 1934.
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
    """Returns the exact 95 % confidence interval of a rate (Clopper and Pearson), from the events counted in some
    samples."""
    return ConfidenceInterval(1 - upper_bound_of_rate(sample_count - event_count, sample_count),
                              upper_bound_of_rate(event_count, sample_count))


class BootstrapSampler:
    """The error sums of each sample in one run, and the confidence intervals that follow from them.

    If the rows of a judged output are not the samples of the batch, whole feeds are drawn instead of samples.
    """

    def __init__(self) -> None:
        self._float_sums: dict[str, list[np.ndarray]] = {}
        self._mismatch_sums: dict[str, list[np.ndarray]] = {}
        self._agreements: list[np.ndarray] = []

    def add_float_output_sums(self, output_name: str, sample_sums: np.ndarray) -> None:
        """Adds the error sums of one feed at a judged float output.

        Args:
            sample_sums: Sums by `trt_tui.core.measure.error_metrics.compute_error_sums_by_sample`.
        """
        self._float_sums.setdefault(output_name, []).append(sample_sums)

    def add_integer_output(self, output_name: str, reference: np.ndarray, output: np.ndarray,
                           sample_count: int) -> None:
        """Adds the mismatches of one feed at a judged integer output. If two arrays differ in shape, every element is a
        mismatch."""
        if reference.shape == output.shape:
            differ = flatten_each_sample(np.asarray(reference != output),
                                         sample_count)  # comparing two single texts gives a bool
            sums = np.stack([differ.sum(1), np.full(len(differ), differ.shape[1])], 1).astype(np.float64)
        else:
            sums = np.full((1, 2), float(reference.size))
        self._mismatch_sums.setdefault(output_name, []).append(sums)

    def count_mismatches(self, output_name: str) -> tuple[float, float]:
        """Returns the number of elements that differ at a judged integer output, and the number of all its elements."""
        totals = sum((sums.sum(0) for sums in self._mismatch_sums.get(output_name, ())), np.zeros(2))
        return float(totals[0]), float(totals[1])

    def add_top1_agreement(self, is_same_class: np.ndarray) -> None:
        """Adds the top-1 agreement of the samples of one feed.

        Args:
            is_same_class: One bool a sample: True if run and reference have the same top class.
        """
        self._agreements.append(is_same_class.astype(np.float64)[:, None])

    def noise_and_signal_by_sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns Σ(test-ref)² and Σref² of each sample at each float output, two float64 arrays ``(samples,
        outputs)``.

        If the rows of an output are not samples, each row of the arrays is a feed. If all judged outputs are integers,
        the arrays count the differing elements and all elements.
        """
        _, units = self._join_sums_by_sample_or_feed([*(self._float_sums or self._mismatch_sums).values()])
        return np.stack([unit_sums[:, 0] for unit_sums in units], 1), np.stack([unit_sums[:, 1] for unit_sums in units],
                                                                               1)

    @staticmethod
    def _join_sums_by_sample_or_feed(sums_by_output: Sequence[Sequence[np.ndarray]]) -> tuple[bool, list[np.ndarray]]:
        """Joins the error sums of each output over all feeds, with one row for each sample, or one row for each feed.

        The bool is True if all outputs have one row for each sample. The rows are feeds if not.
        """
        alike = all(len({len(sums) for sums in feed}) == 1 for feed in zip(*sums_by_output, strict=True))
        return alike, [np.concatenate(feed_sums if alike else [sums.sum(0, keepdims=True) for sums in feed_sums])
                       for feed_sums in sums_by_output]

    def compute_intervals(self) -> AccuracyIntervals | None:
        """Returns the confidence intervals of the accuracy; None with fewer than `MIN_SAMPLES` samples."""
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
    """Returns the confidence interval of the user's metric from its bootstrap draws; None if it failed on too many
    draws.

    Args:
        resample_values: The metric on each draw; None for a draw on which it failed.
        sample_count: The number of samples that were drawn from.
        max_metric_loss: The loss of the metric if all samples were lost; None if unknown. It widens an interval without
            width by the rate that `upper_bound_of_rate` allows if no sample was lost.
    """
    valid_values = [draw for draw in resample_values if draw is not None]
    if not valid_values or len(valid_values) < math.ceil(MIN_VALID_DRAW_SHARE * len(resample_values)):
        return None
    metric_interval = percentile_interval(np.array(valid_values), sample_count)
    if metric_interval is None or metric_interval.low < metric_interval.high:
        return metric_interval
    return None if max_metric_loss is None else ConfidenceInterval(
        metric_interval.low - max(0.0, max_metric_loss) * upper_bound_of_rate(0, sample_count), metric_interval.high)
