"""The order in which a sweep measures groups and samples, and the estimate of a sum over all samples from a few.

All groups are measured on `FIRST_SAMPLES` samples. Groups whose error share may exceed `MIN_RELEVANT_SHARE`, and is not
known to `MAX_HALF_WIDTH`, are then measured on `SECOND_SAMPLES`. A `SweepPlanner` executes nothing. It plans
measurements of the contributions of groups to a sum over samples, and takes the results. At any time it estimates the
contribution of a group and the number of samples that remain.

The judged error is a sum over samples, and one execution shows the contribution of each sample. An error share is a sum
of contributions too, which grow with the error of the sample. So a sample is drawn with a probability that grows with
its error, by the scheme of Rao, Hartley and Cochran ("On a simple procedure of unequal probability sampling without
replacement", 1962). All samples are divided at random into as many parts as are to be drawn. One sample is drawn from
each part, in proportion to these probabilities. Let y be the contribution of a drawn sample, p its probability and P
that of its part. The sum over parts of y·P/p is then an unbiased estimate of the whole sum. Its variance has an
unbiased estimate that is never negative. Once every sample is a part by itself, the estimate is the exact sum without
variance.

More samples are drawn by splitting parts at random. The drawn sample stays in the half that contains it, because it was
drawn in proportion from that half. Only the other half is drawn from. So the samples of the second stage include those
of the first, and each stage is a valid draw by itself. The seed is fixed, so a result depends on nothing but the data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FIRST_SAMPLES, SECOND_SAMPLES = 8, 64
"""The numbers of samples in the two stages, at most all samples. A share on fewer than the first is not shown."""

MIN_RELEVANT_SHARE, MAX_HALF_WIDTH = 0.01, 0.02
"""The error share below which a group is not relevant, and the half width of the interval of an accurate estimate."""

MAX_SHOWN_HALF_WIDTH = 0.2
"""The half width of the interval, as a fraction of the error, above which a share is not shown while it is measured."""

UNKNOWN_GROUP_FRACTION = 0.5
"""The fraction of groups that are expected to need the second stage, before any group is measured."""

UNIFORM_FRACTION = 0.3
"""The fraction of the probability that is spread evenly over samples. The error of a sample is known from one config
only. It may be small there by chance and much larger in another config."""

MIN_SAMPLES_FOR_INTERVAL = 4
"""The minimum number of samples for an interval. Fewer samples give an estimate alone."""

_NORMAL_QUANTILE = 1.959964
"""Half the width, in standard deviations, of the interval that contains 95 % of a normal distribution."""


@dataclass(frozen=True)
class StratifiedSampleDraw:
    """A random draw of samples: all samples are divided into random parts, and one sample is drawn from each part.

    Attributes:
        samples: Indices of the drawn samples; the samples of the previous stage come first.
        probabilities: The probability of each drawn sample.
        part_probabilities: The probability of each part; they add up to 1.
        variance_factor: The factor of the variance of an estimate; 0 if all samples are drawn.
    """

    samples: tuple[int, ...]
    probabilities: np.ndarray
    part_probabilities: np.ndarray
    variance_factor: float


def draw_stratified_samples(sample_errors: np.ndarray, draw_sizes: Sequence[int],
                            seed: int = 0) -> list[StratifiedSampleDraw]:
    """Draws samples at random in stages, with a probability that grows with their error. Each stage includes the
    previous one.

    Args:
        sample_errors: The error of each sample, ``(samples,)``: finite, not negative, and not all zero.
        draw_sizes: The number of samples in each stage, increasing, at most the number of samples.
    """
    rng, count = np.random.default_rng(seed), len(sample_errors)
    chance = (1 - UNIFORM_FRACTION) * sample_errors / sample_errors.sum() + UNIFORM_FRACTION / count

    def draw_one_sample(part: np.ndarray) -> int:
        return int(rng.choice(part, p=chance[part] / chance[part].sum()))

    parts = {draw_one_sample(part): part for part in np.array_split(rng.permutation(count), draw_sizes[0])}
    stages = [_make_sample_draw(parts, chance)]
    for size in draw_sizes[1:]:
        while len(parts) < size:
            max_part_size = max(map(len, parts.values()))
            largest = [unit for unit, part in parts.items() if len(part) == max_part_size]
            unit = largest[rng.integers(len(largest))]
            mixed = rng.permutation(parts[unit])
            half_size = max_part_size // 2 + int(max_part_size % 2 and rng.random() < 0.5)
            own_half, other_half = (mixed[:half_size],
                                    mixed[half_size:]) if unit in mixed[:half_size] else (mixed[half_size:],
                                                                                          mixed[:half_size])
            parts[unit] = own_half
            parts[draw_one_sample(other_half)] = other_half
        stages.append(_make_sample_draw(parts, chance))
    return stages


def _make_sample_draw(samples_by_part: dict[int, np.ndarray], probabilities: np.ndarray) -> StratifiedSampleDraw:
    units = list(samples_by_part)
    sums = np.array([probabilities[part].sum() for part in samples_by_part.values()])
    sizes, count = np.array([len(part) for part in samples_by_part.values()], np.float64), len(probabilities)
    squares = float((sizes ** 2).sum())
    spread = (squares - count) / (count ** 2 - squares) if len(units) > 1 else math.nan
    return StratifiedSampleDraw(tuple(units), probabilities[units], sums, spread if len(units) < count else 0.0)


def estimate_sum_over_all_samples(values: np.ndarray, sample_draw: StratifiedSampleDraw) -> tuple[float, float]:
    """Returns the estimate of a sum over all samples from a draw, and half the width of its 95 % interval.

    The half width is 0 if all samples were drawn, and NaN with fewer than `MIN_SAMPLES_FOR_INTERVAL` samples.

    Args:
        values: The contribution of each drawn sample, finite, ``(samples,)``.
    """
    total = float(sample_draw.part_probabilities @ (values / sample_draw.probabilities))
    if sample_draw.variance_factor == 0:
        return total, 0.0
    if len(values) < MIN_SAMPLES_FOR_INTERVAL:
        return total, math.nan
    probabilities, scaled = sample_draw.part_probabilities, values / sample_draw.probabilities
    variance = sample_draw.variance_factor * float(probabilities @ (scaled - total) ** 2)
    degrees_of_freedom = 1 / float(probabilities @ probabilities) - 1  # as if all parts were equally probable
    return total, student_t_quantile(degrees_of_freedom) * math.sqrt(variance)


def student_t_quantile(degrees_of_freedom: float) -> float:
    """Returns half the width of the 95 % interval of Student's t distribution.

    Accurate to 1 % from 3 degrees of freedom on. Source: Abramowitz and Stegun, Handbook of Mathematical Functions,
    26.7.5.

    Args:
        degrees_of_freedom: At least 1.
    """
    if degrees_of_freedom < 1.5:
        return 12.706
    if degrees_of_freedom < 2.5:
        return 4.303
    normal_quantile = _NORMAL_QUANTILE
    terms = ((normal_quantile**3 + normal_quantile) / 4,
             (5 * normal_quantile**5 + 16 * normal_quantile**3 + 3 * normal_quantile) / 96,
             (3 * normal_quantile**7 + 19 * normal_quantile**5 + 17 * normal_quantile**3 - 15 * normal_quantile) / 384,
             (79 * normal_quantile**9 + 776 * normal_quantile**7 + 1482 * normal_quantile**5 - 1920 * normal_quantile**3
              - 945 * normal_quantile) / 92160)
    return normal_quantile + sum(term / degrees_of_freedom**power for power, term in enumerate(terms, 1))

@dataclass(frozen=True)
class GroupContributionEstimate:
    """The estimated contribution of one group to the judged error, from the samples measured so far.

    Attributes:
        value: The estimate; exact if all samples were measured.
        half_width: Half the width of the 95 % interval; 0 if the value is exact, NaN if there are too few samples.
        samples: Number of measured samples.
    """

    value: float
    half_width: float
    samples: int


class SweepPlanner:
    """The planner of a sweep, which chooses the next groups and samples to measure from the results so far.

    Args:
        group_names: The groups, those with the largest expected error first.
        sample_errors: The known error of each sample, ``(samples,)``: finite, and not all zero.
        step: The number of samples in one execution. The stages are multiples of it, or all samples.
        measures_all_samples: Measure all groups on all samples.

    Attributes:
        settled_groups: Groups that are not measured any further.
        measured_count: Number of measured samples, summed over all groups.
        contributions: By group, its contribution on each sample of its stages, in their order.
    """

    def __init__(self, group_names: Sequence[str], sample_errors: np.ndarray, *, step: int = 1,
                 measures_all_samples: bool = False) -> None:
        self.sample_count = len(sample_errors)
        sizes = {self.sample_count} if measures_all_samples else {
            min(self.sample_count, -(-size // step) * step) for size in (FIRST_SAMPLES, SECOND_SAMPLES)}
        self.sample_draws = draw_stratified_samples(sample_errors, sorted(sizes))
        self.group_names = tuple(group_names)
        self.contributions: dict[str, np.ndarray] = {}
        self.measured_count = 0.0
        self.settled_groups: set[str] = set()
        self._draw_index, self._queued_groups = 0, list(group_names)

    @property
    def has_estimate_of_every_group(self) -> bool:
        return self._draw_index > 0 or not self._queued_groups

    def plan_next_measurements(self) -> dict[str, tuple[int, ...]]:
        """Returns the groups to measure next, each with the samples to measure it on; empty at the end.

        The groups may be measured in any order, and the plan does not depend on the order of the results.
        """
        if not self._queued_groups and self._draw_index + 1 < len(self.sample_draws):
            self._draw_index += 1
            self._queued_groups = [name for name in self.group_names if name not in self.settled_groups]
        units = self.sample_draws[self._draw_index].samples
        return {name: units[len(self.contributions.get(name, ())):] for name in self._queued_groups}

    def add_error_contributions(self, group_name: str, contributions: np.ndarray) -> None:
        """Stores the measured error contributions of a group on its planned samples.

        The group is settled after the last stage, if its share is known well enough, or if it is not finite.
        """
        self._queued_groups.remove(group_name)
        self.contributions[group_name] = np.concatenate(
            [self.contributions.get(group_name, np.zeros(0)), contributions])
        self.measured_count += len(contributions)
        estimate = self.estimate_group_contribution(group_name)
        needs_more = estimate.value + estimate.half_width >= MIN_RELEVANT_SHARE and estimate.half_width > MAX_HALF_WIDTH
        if self._draw_index + 1 == len(self.sample_draws) or not needs_more:
            self.settled_groups.add(group_name)

    def estimate_group_contribution(self, group_name: str) -> GroupContributionEstimate:
        """Returns the estimated contribution of a measured group to the judged error."""
        values = self.contributions[group_name]
        if not np.isfinite(values).all():
            return GroupContributionEstimate(-math.inf, 0.0, len(values))
        return GroupContributionEstimate(*estimate_sum_over_all_samples(values, self.last_sample_draw(group_name)),
                                         len(values))

    def last_sample_draw(self, group_name: str) -> StratifiedSampleDraw:
        """Returns the draw of samples on which a group was last measured."""
        count = len(self.contributions[group_name])
        return next(stage for stage in self.sample_draws if len(stage.samples) >= count)

    def estimate_remaining_samples(self) -> dict[str, float]:
        """Returns the expected number of samples still to be measured, for each group that is not settled.

        Of the groups that are not measured yet, as many are expected to need the second stage as of the others.
        """
        first, last = (len(self.sample_draws[index].samples) for index in (0, -1))
        unsettled = [name for name in self.group_names if name not in self.settled_groups]
        going_on = sum(name in self.contributions for name in unsettled)
        share = (going_on + 2 * UNKNOWN_GROUP_FRACTION) / (len(self.contributions) + 2)
        return {name: last - len(self.contributions[name]) if name in self.contributions else
                first + share * (last - first) for name in unsettled}
