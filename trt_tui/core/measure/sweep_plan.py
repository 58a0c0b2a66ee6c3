"""The order in which a sweep measures groups and samples.

All groups are measured on a few samples first. Groups whose error share may exceed `MIN_RELEVANT_SHARE` are measured on
more. A `SweepPlanner` executes nothing. It plans measurements of the contributions of groups to a sum over samples, and
takes the results. At any time it estimates the contribution of a group and the number of samples that remain.

A sweep ends early once the sets that a reader acts on are known. These are the groups with a share above
`MIN_RELEVANT_SHARE`, and the first `FIRST_ROW_COUNT` of them. Only shares with an interval that is too wide to be shown
are measured further. Both sets of all samples equal those of the estimates if
each group is on the estimated side of `MIN_RELEVANT_SHARE`, and each of the first groups is above each later one. Each
of these statements has a one-sided t test on the samples that its groups have in common. The sum of the p-values bounds
the probability that any statement is wrong (Bonferroni). It may be `MAX_SET_RISK` in all looks together. A stage with
enough samples for a decision is one look, and all looks have equal parts. The samples are drawn from a fixed seed, so
the decision depends on nothing but the data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trt_tui.core.measure.sample_draws import (
    StratifiedSampleDraw,
    draw_stratified_samples,
    estimate_standard_deviation,
    estimate_sum_over_all_samples,
    p_value_of_sum_at_most,
    student_t_quantile,
)

MIN_RELEVANT_SHARE = 0.01
"""The error share below which a group is not relevant. A group is settled once its whole interval is below this share.
"""

MAX_HALF_WIDTH = 0.02
"""The half width of the interval at which an estimate is accurate enough."""

ORDER_TOLERANCE = 0.02
"""The tolerance in the order of two groups. Their order is settled once the share of the second group cannot exceed
that of the first by more than this."""

DECISION_STRETCH = 1.3
"""The factor by which decisions widen intervals, from 95 % to 99 %, because they are taken again at every stage."""

ORDER_SHRINK = 0.65
"""The factor by which decisions about the order of two groups narrow the interval of their difference, to 80 %. The
share of each group is known to `MAX_HALF_WIDTH` in any case."""

FIRST_ROW_COUNT, MAX_SET_RISK = 20, 0.05
"""The number of first groups in a list of shares, and the maximum probability that a sweep ends with other sets of
groups than all samples give."""

MIN_DECISION_SAMPLES = 8
"""The minimum number of samples for a decision, and for a share that is shown, unless there are fewer samples."""

MAX_SHOWN_HALF_WIDTH = 0.2
"""The half width of the interval, as a fraction of the error, above which a share is not shown while it is measured."""

POOL_WEIGHT = 2
"""The weight of the spread of all groups in the forecast of a group's spread, in degrees of freedom. The spread of the
group's own samples has as many degrees of freedom as its samples provide."""

UNKNOWN_GROUP_FRACTION, PRIOR_WEIGHT = 0.5, 4
"""The fraction of the samples that an unmeasured group is expected to need, and the weight of this expectation as a
number of measured groups."""

_DRAW_SIZES = (8, 16, 24)
"""The numbers of samples in the stages. Further stages double the last but one."""


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


def choose_draw_sizes(sample_count: int, first_size: int, step: int = 1) -> list[int]:
    """Returns the number of samples on which groups are measured in each stage of a sweep, increasing up to all
    samples.

    Args:
        first_size: The number of samples in the first stage.
        step: The number of samples in one execution. The sizes are multiples of it, except the last.
    """
    ladder = list(_DRAW_SIZES)
    while ladder[-1] < sample_count:
        ladder.append(ladder[-2] * 2)
    sizes_so_far = [min(sample_count, max(1, -(-first_size // step) * step))]
    for size in (-(-size // step) * step for size in ladder):
        if sizes_so_far[-1] < size < sample_count:
            sizes_so_far.append(size)
    return sizes_so_far if sizes_so_far[-1] == sample_count else [*sizes_so_far, sample_count]


class SweepPlanner:
    """The planner of a sweep, which chooses the next groups and samples to measure from the results so far.

    Args:
        group_names: The groups, those with the largest expected error first.
        sample_errors: The known error of each sample, ``(samples,)``: finite, and not all zero.
        first_size: The number of samples on which all groups are measured first.
        step: The number of samples in one execution.
        measures_all_samples: Measure all groups on all samples.
        ends_with_known_sets: End once the set of relevant groups and the set of the first ones are known.

    Attributes:
        settled_groups: Groups that are not measured any further.
        measured_count: Number of measured samples, summed over all groups.
        contributions: By group, its contribution on each sample of its stages, in their order.
    """

    def __init__(self, group_names: Sequence[str], sample_errors: np.ndarray, *, first_size: int, step: int = 1,
                 measures_all_samples: bool = False, ends_with_known_sets: bool = False) -> None:
        self.sample_count = len(sample_errors)
        enough = not measures_all_samples and self.sample_count > MIN_DECISION_SAMPLES
        self.sample_draws = draw_stratified_samples(
            sample_errors,
            choose_draw_sizes(self.sample_count, first_size, step) if enough else [self.sample_count])
        self.group_names = tuple(group_names)
        self.contributions: dict[str, np.ndarray] = {}
        self.measured_count = 0.0
        self._draw_index, self._ends_with_known_sets = 0, ends_with_known_sets
        self._queued_groups = list(group_names)
        self.settled_groups: set[str] = set()
        self._needed_samples: dict[tuple[str, int], int] = {}
        self._variances: dict[str, float] = {}

    @property
    def has_estimate_of_every_group(self) -> bool:
        return self._draw_index > 0 or not self._queued_groups

    def plan_next_measurements(self) -> dict[str, tuple[int, ...]]:
        """Returns the groups to measure next, each with the samples to measure it on; empty at the end.

        The groups may be measured in any order, and the plan does not depend on the order of the results.
        """
        while not self._queued_groups:
            if self._draw_index + 1 >= len(
                    self.sample_draws) or not (going_on := self._select_groups_to_measure_further()):
                self.settled_groups.update(self.group_names)
                return {}
            self._draw_index += 1
            self._queued_groups = going_on
        units = self.sample_draws[self._draw_index].samples
        return {name: units[len(self.contributions.get(name, ())):] for name in self._queued_groups}

    def add_error_contributions(self, group_name: str, contributions: np.ndarray) -> None:
        """Stores the measured error contributions of a group on its planned samples. A group that is not finite is
        finished."""
        self._queued_groups.remove(group_name)
        self.contributions[group_name] = np.concatenate(
            [self.contributions.get(group_name, np.zeros(0)), contributions])
        self.measured_count += len(contributions)
        if self._draw_index + 1 == len(self.sample_draws) or not np.isfinite(contributions).all():
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
        """Returns the expected number of samples still to be measured, for each group whose measurement is not
        finished.

        A measured group is expected to need as many samples as would settle it with the spread of its samples so far. A
        group that the first stage has not measured yet is expected to need as many as the measured ones. This is their
        geometric mean, because the groups with the largest expected error come first.
        """
        queued = set(self._queued_groups)
        ahead: dict[str, float] = {name: self._estimate_needed_samples(name) for name in self.contributions
                                   if name not in self.settled_groups and name not in queued}
        size = len(self.sample_draws[self._draw_index].samples)
        expected_counts = [math.log1p(ahead.get(name, 0.0)) for name in self.contributions if name not in queued]
        prior = PRIOR_WEIGHT * math.log1p(UNKNOWN_GROUP_FRACTION * (self.sample_count - size))
        usual_count = math.expm1((prior + sum(expected_counts)) / (PRIOR_WEIGHT + len(expected_counts)))
        ahead.update((name, self._estimate_needed_samples(name) if name in self.contributions else size + usual_count)
                     for name in queued)
        return ahead

    def _estimate_needed_samples(self, group_name: str) -> float:
        """Returns the expected number of further samples that a measured group needs."""
        values, sample_draw = self.contributions[group_name], self.last_sample_draw(group_name)
        key = group_name, len(values)
        if key not in self._needed_samples:
            value, freedom = max(0.0, estimate_sum_over_all_samples(values, sample_draw)[0]), max(1, len(values) - 1)
            variance = self._variances[group_name] = estimate_standard_deviation(values,
                                                                                 sample_draw)**2 * len(values) / freedom
            # The median of variances from few samples is too small. Source: Wilson and Hilferty, 1931, for chi-squared.
            usual = float(np.median([*self._variances.values()])) / (1 - 2 / (9 * freedom)) ** 3
            spread = math.sqrt((freedom * variance + POOL_WEIGHT * usual) / (freedom + POOL_WEIGHT))
            self._needed_samples[key] = next(
                (len(stage.samples)
                 for stage in self.sample_draws
                 if max(MIN_DECISION_SAMPLES - 1, len(values)) < len(stage.samples) and (
                     (half := DECISION_STRETCH * student_t_quantile(len(stage.samples) - 1) * spread
                      * math.sqrt(stage.variance_factor)) <= MAX_HALF_WIDTH or value + half < MIN_RELEVANT_SHARE)),
                self.sample_count) - len(values)
        return self._needed_samples[key]

    def _select_groups_to_measure_further(self) -> list[str]:
        """Selects the groups that need more samples, by decreasing error share, and marks all others as finished."""
        stage = self.sample_draws[self._draw_index]
        measured = [name for name in self.group_names if name not in self.settled_groups]
        estimates = {name: self.estimate_group_contribution(name) for name in measured}
        measured.sort(key=lambda name: -estimates[name].value)
        if len(stage.samples) < MIN_DECISION_SAMPLES:
            return measured
        going_on = {name for name in measured
                    if estimates[name].value + DECISION_STRETCH * estimates[name].half_width >= MIN_RELEVANT_SHARE
                    and DECISION_STRETCH * estimates[name].half_width > MAX_HALF_WIDTH}
        may_matter = [
            name for name in measured
            if estimates[name].value + DECISION_STRETCH * estimates[name].half_width >= MIN_RELEVANT_SHARE
        ]
        for more, less in zip(may_matter, may_matter[1:], strict=False):
            gap, half = estimate_sum_over_all_samples(self.contributions[more] - self.contributions[less], stage)
            if ORDER_SHRINK * half > gap + ORDER_TOLERANCE:
                going_on |= {more, less}
        if going_on and self._ends_with_known_sets and self.estimate_set_risk() <= MAX_SET_RISK / sum(
                MIN_DECISION_SAMPLES <= len(draw.samples) < self.sample_count for draw in self.sample_draws):
            going_on = {name for name in going_on if estimates[name].half_width > MAX_SHOWN_HALF_WIDTH}
        self.settled_groups.update(name for name in measured if name not in going_on)
        return [name for name in measured if name in going_on]

    def estimate_set_risk(self) -> float:
        """Returns a bound of the probability that all samples give other sets of groups than the estimates.

        The sets are the groups with a share above `MIN_RELEVANT_SHARE`, and the first `FIRST_ROW_COUNT` of them.
        """
        values = {name: self.estimate_group_contribution(name).value for name in self.group_names}
        relevant = sorted((name for name in values if values[name] >= MIN_RELEVANT_SHARE),
                          key=lambda name: -values[name])
        risk = 0.0
        for name in self.group_names:
            if math.isfinite(values[name]):  # a group that is not finite stays so on all samples
                side = 1 if values[name] >= MIN_RELEVANT_SHARE else -1
                risk += p_value_of_sum_at_most(side * self.contributions[name], self.last_sample_draw(name),
                                               side * MIN_RELEVANT_SHARE)
        for first in relevant[:FIRST_ROW_COUNT]:
            for later in relevant[FIRST_ROW_COUNT:]:
                fewer = min(first, later, key=lambda name: len(self.contributions[name]))
                common = len(self.contributions[fewer])
                risk += p_value_of_sum_at_most(self.contributions[first][:common] - self.contributions[later][:common],
                                               self.last_sample_draw(fewer), 0.0)
        return risk
