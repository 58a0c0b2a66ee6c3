"""Which group is measured next, and on which samples: all on a few, then those that may matter on more.

A `SweepPlanner` runs nothing. It plans measurements of what groups add to a sum on some samples, takes the results, and
estimates at any time the contribution of a group and the samples that remain.
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
    student_t_quantile,
)

MIN_RELEVANT_SHARE = 0.01
"""A group that owns less does not matter: it is not measured further once its interval lies below."""

MAX_HALF_WIDTH = 0.02
"""A figure is known well enough with an interval of so much to either side."""

ORDER_TOLERANCE = 0.02
"""Two groups are in order once neither can own so much more than the other than the estimate says."""

DECISION_STRETCH = 1.3
"""Decisions stretch the intervals by this much, from 95 % to 99 %: they are taken at every stage anew."""

ORDER_SHRINK = 0.65
"""Those on the order of two groups shrink theirs, to 80 %: what each owns is known to `MAX_HALF_WIDTH` besides."""

MIN_DECISION_SAMPLES = 8
"""On fewer samples nothing is decided."""

POOL_WEIGHT = 2
"""The spread of a group's samples is forecast from its own with as many degrees of freedom as there are, and from that
of all groups with so many."""

UNKNOWN_GROUP_FRACTION, PRIOR_WEIGHT = 0.5, 4
"""A group of which nothing is known is forecast to need this part of the samples, until more than so many others tell
otherwise."""

_DRAW_SIZES = (8, 16, 24)
"""Sizes of the stages, and these times 2, 4, ... above 8."""


@dataclass(frozen=True)
class GroupContributionEstimate:
    """What is known of one group.

    Attributes:
        value: The estimate; exact where it was taken on all samples.
        half_width: Half the width of the 95 % interval; 0 where it is exact, NaN where there are too few samples for
        one.
        samples: On how many samples.
    """

    value: float
    half_width: float
    samples: int


def choose_draw_sizes(sample_count: int, first_size: int, step: int = 1) -> list[int]:
    """How many of so many samples the stages take, the first one apart multiples of ``step``, up to all."""
    ladder = list(_DRAW_SIZES)
    while ladder[-1] < sample_count:
        ladder.append(ladder[-2] * 2)
    sizes_so_far = [min(sample_count, max(1, -(-first_size // step) * step))]
    for size in (-(-size // step) * step for size in ladder):
        if sizes_so_far[-1] < size < sample_count:
            sizes_so_far.append(size)
    return sizes_so_far if sizes_so_far[-1] == sample_count else [*sizes_so_far, sample_count]


class SweepPlanner:
    """See the module's docstring.

    Args:
        group_names: The groups, the most suspicious first.
        sample_errors: The error that each sample is known to have, finite, ``(samples,)``; some are positive.
        first_size: On how many samples all groups are measured first.
        step: Samples are run so many at a time.
        measures_all_samples: Measure all groups on all samples.

    Attributes:
        settled_groups: Groups that are not measured any further.
        measured_count: How many samples were told of, over all groups.
        values: What was told of each group: what it adds on the samples of its stages, in their order.
    """

    def __init__(self, group_names: Sequence[str], sample_errors: np.ndarray, *, first_size: int, step: int = 1,
                 measures_all_samples: bool = False) -> None:
        self.sample_count = len(sample_errors)
        enough = not measures_all_samples and self.sample_count > MIN_DECISION_SAMPLES
        self.sample_draws = draw_stratified_samples(
            sample_errors,
            choose_draw_sizes(self.sample_count, first_size, step) if enough else [self.sample_count])
        self.group_names = tuple(group_names)
        self.contributions: dict[str, np.ndarray] = {}
        self.measured_count = 0.0
        self._draw_index = 0
        self._queued_groups = list(group_names)
        self.settled_groups: set[str] = set()
        self._needed_samples: dict[tuple[str, int], int] = {}
        self._variances: dict[str, float] = {}

    @property
    def has_estimate_of_every_group(self) -> bool:
        """Whether every group was measured on some samples."""
        return self._draw_index > 0 or not self._queued_groups

    def plan_next_measurements(self) -> dict[str, tuple[int, ...]]:
        """The groups that are measured next, in any order, with the samples that each is to be measured on; none at the
        end. They do not depend on the order in which groups were told of."""
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
        """What a group that was asked for adds on those samples; what is not finite settles it."""
        self._queued_groups.remove(group_name)
        self.contributions[group_name] = np.concatenate(
            [self.contributions.get(group_name, np.zeros(0)), contributions])
        self.measured_count += len(contributions)
        if self._draw_index + 1 == len(self.sample_draws) or not np.isfinite(contributions).all():
            self.settled_groups.add(group_name)

    def estimate_group_contribution(self, group_name: str) -> GroupContributionEstimate:
        """What is known of a group that was told of."""
        values = self.contributions[group_name]
        if not np.isfinite(values).all():
            return GroupContributionEstimate(-math.inf, 0.0, len(values))
        return GroupContributionEstimate(*estimate_sum_over_all_samples(values, self.last_sample_draw(group_name)),
                                         len(values))

    def last_sample_draw(self, group_name: str) -> StratifiedSampleDraw:
        """The stage whose samples a group was measured on."""
        count = len(self.contributions[group_name])
        return next(stage for stage in self.sample_draws if len(stage.samples) >= count)

    def estimate_remaining_samples(self) -> dict[str, float]:
        """How many more samples are expected to be run, of each group that is not settled.

        A group is expected to need so many that the spread of its samples so far would let it be settled; those that
        the first stage has not come to are expected to need as many as those that it has (in the geometric mean: the
        first ones are the most suspicious).
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
        """How many more samples a group is expected to need."""
        values, sample_draw = self.contributions[group_name], self.last_sample_draw(group_name)
        key = group_name, len(values)
        if key not in self._needed_samples:
            value, freedom = max(0.0, estimate_sum_over_all_samples(values, sample_draw)[0]), max(1, len(values) - 1)
            variance = self._variances[group_name] = estimate_standard_deviation(values,
                                                                                 sample_draw)**2 * len(values) / freedom
            # The median of variances of so few samples is too small: Wilson and Hilferty, 1931, for chi-squared.
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
        """The groups that the next stage measures, those that own most first; settles the others."""
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
        self.settled_groups.update(name for name in measured if name not in going_on)
        return [name for name in measured if name in going_on]
