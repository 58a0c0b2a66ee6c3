"""The measurement of each group's effect on the judged outputs, in the order that a `SweepPlanner` plans.

Error shares, sensitivities and the accuracy with groups raised follow from it. The errors of single samples, and the
error shares of the groups on one sample, are here too.

A unit is what one measurement covers: a sample, or a whole feed. Samples are executed apart from their feeds if the
result stays the same. The rows of every input and judged output must then be the samples. Samples of several feeds in
one batch must also have the same FP32 outputs as in their own feeds.

A sweep estimates a sum over all samples from a few of them.

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
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.samples import SamplePosition, can_mix_samples
from trt_tui.core.lowering.rulebook import find_boundary_type, preserves_precision_of_values
from trt_tui.core.measure.error_metrics import compute_noise_to_signal_ratios, student_t_quantile
from trt_tui.core.measure.judged_outputs import INTEGER_KIND
from trt_tui.core.measure.results import MAX_RECENT_RESULTS, Accuracy, ErrorShare, ResultKind
from trt_tui.core.measure.simulation import Analysis, PartialResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import AnalysisContext, AnalysisProvider, Executor, LocalExecutor
from trt_tui.formatting import counted_noun_text

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


def draw_stratified_samples(
    sample_errors: np.ndarray, draw_sizes: Sequence[int], seed: int = 0
) -> list[StratifiedSampleDraw]:
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
            own_half, other_half = (
                (mixed[:half_size], mixed[half_size:])
                if unit in mixed[:half_size]
                else (mixed[half_size:], mixed[:half_size])
            )
            parts[unit] = own_half
            parts[draw_one_sample(other_half)] = other_half
        stages.append(_make_sample_draw(parts, chance))
    return stages


def _make_sample_draw(samples_by_part: dict[int, np.ndarray], probabilities: np.ndarray) -> StratifiedSampleDraw:
    units = list(samples_by_part)
    sums = np.array([probabilities[part].sum() for part in samples_by_part.values()])
    sizes, count = np.array([len(part) for part in samples_by_part.values()], np.float64), len(probabilities)
    squares = float((sizes**2).sum())
    spread = (squares - count) / (count**2 - squares) if len(units) > 1 else math.nan
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

    def __init__(
        self,
        group_names: Sequence[str],
        sample_errors: np.ndarray,
        *,
        step: int = 1,
        measures_all_samples: bool = False,
    ) -> None:
        self.sample_count = len(sample_errors)
        sizes = (
            {self.sample_count}
            if measures_all_samples
            else {min(self.sample_count, -(-size // step) * step) for size in (FIRST_SAMPLES, SECOND_SAMPLES)}
        )
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
        return {name: units[len(self.contributions.get(name, ())) :] for name in self._queued_groups}

    def add_error_contributions(self, group_name: str, contributions: np.ndarray) -> None:
        """Stores the measured error contributions of a group on its planned samples.

        The group is settled after the last stage, if its share is known well enough, or if it is not finite.
        """
        self._queued_groups.remove(group_name)
        self.contributions[group_name] = np.concatenate(
            [self.contributions.get(group_name, np.zeros(0)), contributions]
        )
        self.measured_count += len(contributions)
        value, half_width = self.estimate_group_contribution(group_name)
        needs_more = value + half_width >= MIN_RELEVANT_SHARE and half_width > MAX_HALF_WIDTH
        if self._draw_index + 1 == len(self.sample_draws) or not needs_more:
            self.settled_groups.add(group_name)

    def estimate_group_contribution(self, group_name: str) -> tuple[float, float]:
        """Returns the estimated contribution of a measured group to the judged error, and half the width of its 95 %
        interval, as `estimate_sum_over_all_samples`; -inf if it is not finite on a sample."""
        values = self.contributions[group_name]
        if not np.isfinite(values).all():
            return -math.inf, 0.0
        return estimate_sum_over_all_samples(values, self.last_sample_draw(group_name))

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
        return {
            name: last - len(self.contributions[name]) if name in self.contributions else first + share * (last - first)
            for name in unsettled
        }


EQUAL_ENERGY_FRACTION = 1e-6
"""The maximum energy of the difference between two equal FP32 runs, as a fraction of the signal energy."""


@dataclass
class GroupSweepState:
    """The results of a sweep over groups, from which a later sweep can continue.

    Attributes:
        config_noise: Σ(test-ref)² of the config by sample (or feed) and output; empty before it is measured.
        signal_energies: Σref² over all samples by output.
        by_sample: True if samples were executed apart from their feeds.
        base_noise: The noise of the config by sample, measured in the same batches as the groups.
        group_noise: By group, the noise of the config with that group changed, for the samples of its stages.
    """

    config_noise: list[list[float]] = field(default_factory=list)
    signal_energies: list[float] = field(default_factory=list)
    by_sample: bool = False
    base_noise: dict[int, list[float]] = field(default_factory=dict)
    group_noise: dict[str, list[list[float]]] = field(default_factory=dict)


GroupMeasurement = tuple[str, tuple[int, ...]]
"""The name of the changed group ("" for the unchanged config), and the indices of the samples or of the feed."""


class _GroupNoiseTask:
    """A task that changes the precision of one group in a config, and measures the noise (squared output error) and the
    signal energy of each sample. The values are those of `Analysis.measure_noise_by_sample`.

    Args:
        sample_positions: The positions of the samples, feed by feed. The numbers in a `GroupMeasurement` are indices of
            these samples, or of the feeds if ``by_sample`` is False.
    """

    item_text = "the error of a config with one fused layer changed"

    def __init__(
        self,
        config: PrecisionConfig,
        ranges: Mapping[str, float],
        sample_positions: Sequence[Sequence[SamplePosition]],
        by_sample: bool,
        reduces_group: bool,
    ) -> None:
        self._config, self._ranges, self._sample_positions = config, ranges, tuple(map(tuple, sample_positions))
        self._by_sample, self._reduces_group = by_sample, reduces_group
        self._batches: dict[tuple[int, ...], tuple[Analysis, list[int]]] = {}
        self._fp32: PrecisionConfig | None = None
        self._rounded: object = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": {}, "_rounded": None}

    def run_item(
        self, context: AnalysisProvider[Analysis], measurement: GroupMeasurement
    ) -> Generator[None, None, tuple[np.ndarray, np.ndarray]]:
        (name, units), full_analysis = measurement, context.analysis
        if self._rounded is None:
            self._rounded = full_analysis.make_config_feed(
                self._config, self._ranges
            )  # kept, so that weights are rounded only once
        if units not in self._batches:
            if self._by_sample:
                positions = [position for feed in self._sample_positions for position in feed]
                self._batches[units] = full_analysis.copy_with_batches([[positions[unit] for unit in units]]), [0]
            else:
                self._batches[units] = full_analysis, [self._sample_positions[units[0]][0][0]]
        analysis, feeds = self._batches[units]
        noise_and_signal = np.zeros((0, 0)), np.zeros((0, 0))
        for partial in analysis.measure_noise_by_sample(
            self._build_config_with_changed_group(full_analysis.network, name), self._ranges, feeds
        ):
            noise_and_signal = partial.value
            yield
        return noise_and_signal

    def _build_config_with_changed_group(self, network: Network, group_name: str) -> PrecisionConfig:
        if not group_name:
            return self._config
        group = network.get_group(group_name)
        if not self._reduces_group:
            return self._config.with_group_precision([group], Precision.FP32)
        if self._fp32 is None:
            self._fp32 = replace(self._config.with_group_precision(network.groups, Precision.FP32), tf32=False)
        return self._fp32.with_group_precision([group], self._config.precision_of(group))


class GroupSweep:
    """One sweep over a config: the effect of changing the precision of each single group is measured.

    Args:
        group_order: Names of the groups, those with the largest expected error first; all groups by default.
        feed_indices: The feeds to measure on; all by default.
        reduces_groups: If True, measure the error with only one group in the precision of the config and all others in
            FP32. If False, measure the error that disappears if only one group is raised to FP32.
        measures_all_samples: Measure all groups on all samples.
        earlier_state: The results of an earlier sweep.
        executor: The executor of the measurements; this process by default.

    Attributes:
        state: The results so far.
        unchanged_groups: Groups that change no value in the config. They are not executed.
        updated_groups: Groups with a new estimate. The reader of this list clears it.
    """

    def __init__(
        self,
        analysis: Analysis,
        config: PrecisionConfig,
        ranges: Mapping[str, float],
        *,
        group_order: Sequence[str] | None = None,
        feed_indices: Sequence[int] | None = None,
        reduces_groups: bool = False,
        measures_all_samples: bool = False,
        earlier_state: GroupSweepState | None = None,
        executor: Executor[AnalysisProvider[Analysis]] | None = None,
    ) -> None:
        self.analysis, self.config, self.ranges = analysis, config, ranges
        self.feed_indices = analysis.resolve_feed_indices(feed_indices)
        network = analysis.network
        names = list(group_order) if group_order is not None else [group.name for group in network.groups]
        self.measured_groups = [name for name in names if has_rounded_values(network, network.get_group(name), config)]
        self.unchanged_groups = [name for name in names if name not in set(self.measured_groups)]
        self.state = earlier_state if earlier_state is not None else GroupSweepState()
        self.updated_groups: list[str] = []
        self.planner: SweepPlanner | None = None
        self.executor = executor if executor is not None else LocalExecutor(AnalysisContext(analysis))
        self._reduces_groups, self._measures_all_samples = reduces_groups, measures_all_samples
        self._spent_samples = 0.0
        self._rows_by_feed = [analysis.samples.count_samples_of_feed(index) for index in self.feed_indices]
        self._sample_positions = [
            [(index, row) for row in range(rows)]
            for index, rows in zip(self.feed_indices, self._rows_by_feed, strict=True)
        ]

    @property
    def sample_count(self) -> int:
        return sum(self._rows_by_feed)

    @property
    def _config_errors(self) -> np.ndarray:
        """The noise of the config by sample (or feed) and output, as a fraction of the signal energy of all samples."""
        return self._divide_by_signal_energy(np.array(self.state.config_noise))

    @property
    def judged_error(self) -> float:
        return float(self._config_errors.sum())

    @property
    def fully_measured_groups(self) -> list[str]:
        """The names of the groups whose measurement is complete."""
        planner = self.planner
        return self.unchanged_groups + [
            name for name in self.measured_groups if planner is not None and name in planner.settled_groups
        ]

    @property
    def has_estimate_of_every_group(self) -> bool:
        return not self.measured_groups or self.planner is not None and self.planner.has_estimate_of_every_group

    def measure_groups(self) -> Iterator[tuple[float, float]]:
        """Measures the effect of each group.

        Yields the number of samples executed so far, and the expected number in all, after each execution.
        """
        swept = self.state
        if not swept.config_noise:
            yield from self._measure_config_noise()
        if self.judged_error == 0 and not self._reduces_groups:  # without an error there are no shares
            self.unchanged_groups, self.measured_groups = [*self.unchanged_groups, *self.measured_groups], []
        self.updated_groups += self.unchanged_groups
        if not self.measured_groups:
            return
        if (
            not swept.by_sample
            and not self._measures_all_samples
            and self.sample_count > FIRST_SAMPLES
            and len(swept.config_noise) == self.sample_count
            and can_mix_samples(self.analysis.samples, self.feed_indices)
        ):
            swept.by_sample = yield from self._verify_mixed_batch_results()
        noise = swept.config_noise if swept.by_sample else self._get_config_noise(range(len(self.feed_indices)))
        energies = self._divide_by_signal_energy(np.array(noise)).sum(1)
        scale = energies[np.isfinite(energies)].sum() or 1.0
        weights = np.where(np.isfinite(energies), energies, scale) if energies.any() else np.ones(len(energies))
        finite = bool(np.isfinite(energies).all())
        step = self._draw_size_multiple if swept.by_sample else 1
        planner = self.planner = SweepPlanner(
            self.measured_groups,
            weights,
            step=step,
            measures_all_samples=self._measures_all_samples or not (finite or self._reduces_groups),
        )
        task = self._make_noise_task(swept.by_sample)
        while requested := planner.plan_next_measurements():
            yield from self._measure_requested_groups(planner, task, requested, finite)

    def _measure_requested_groups(
        self,
        planner: SweepPlanner,
        task: _GroupNoiseTask,
        samples_by_group: Mapping[str, tuple[int, ...]],
        has_finite_config: bool,
    ) -> Iterator[tuple[float, float]]:
        """Measures groups on the requested samples, and passes the results to the planner.

        The noise of a group is joined in the order of its batches, in whichever order they are finished. If the noise
        is not finite and that settles the group, its rows end with the first such batch: no further sample can change
        the result.
        """
        swept, keeps_nonfinite = self.state, self._reduces_groups or has_finite_config
        noise_by_measurement: dict[GroupMeasurement, np.ndarray] = {}
        open_batches: dict[str, list[tuple[int, ...]]] = {}
        for name, units in samples_by_group.items():
            measured_count = len(planner.contributions.get(name, ()))
            if len(swept.group_noise.get(name, ())) < measured_count + len(units):
                swept.group_noise[name] = swept.group_noise.get(name, [])[:measured_count]
                open_batches[name] = self._split_into_batches(units)
            else:
                self._report_noise_to_planner(planner, name, units)
                yield self._count_executed_and_expected_samples()
        all_batches = dict.fromkeys(batch for batches in open_batches.values() for batch in batches)

        def list_measurements() -> Iterator[GroupMeasurement]:
            yield from [("", batch) for batch in all_batches if not self._has_config_noise(batch)]
            for name, batches in open_batches.items():
                yield from ((name, batch) for batch in tuple(batches) if batch in batches)

        for result in self.executor.map(task, list_measurements()):
            if result is not None:
                measurement, (noise, _) = result
                group_name, batch = measurement
                noise = noise if swept.by_sample else noise.sum(0, keepdims=True)
                self._spent_samples += len(batch) * self._samples_per_measured_item
                if group_name:
                    noise_by_measurement[measurement] = noise
                else:
                    swept.base_noise.update(zip(batch, noise.tolist(), strict=True))
                for name in [group_name] if group_name else open_batches:
                    batches = open_batches[name]
                    while batches and (name, batches[0]) in noise_by_measurement and self._has_config_noise(batches[0]):
                        noise = noise_by_measurement.pop((name, batches.pop(0)))
                        swept.group_noise[name] += noise.tolist()
                        if not (keeps_nonfinite or np.isfinite(noise).all()):
                            batches.clear()
                        if not batches:
                            self._report_noise_to_planner(planner, name, samples_by_group[name])
            yield self._count_executed_and_expected_samples()

    def _has_config_noise(self, samples: Sequence[int]) -> bool:
        """Returns True if the noise of the unchanged config is known on some samples or feeds."""
        return not self.state.by_sample or all(unit in self.state.base_noise for unit in samples)

    def _report_noise_to_planner(self, planner: SweepPlanner, group_name: str, samples: Sequence[int]) -> None:
        """Tells the planner the noise of a group, measured on the samples that the planner requested."""
        measured_count = len(planner.contributions.get(group_name, ()))
        noise = np.array(self.state.group_noise[group_name][measured_count : measured_count + len(samples)])
        planner.add_error_contributions(group_name, self._compute_error_contributions(samples[: len(noise)], noise))
        self.updated_groups.append(group_name)

    def estimate_error_share(self, group_name: str) -> ErrorShare:
        """Returns the current estimate of a group's share in the judged error, with its interval however wide.

        The half width is 0 if the value is exact, and NaN with too few samples. In a sweep that reduces groups, the
        value is the error of the group alone as a fraction of the config's error.
        """
        planner = self.planner
        if group_name in set(self.unchanged_groups) or planner is None:
            db = self._worst_output_sqnr_db(self._config_errors.sum(0))
            return ErrorShare(0.0, db, self.sample_count, 0.0)
        fraction, half_width = planner.estimate_group_contribution(group_name)
        noise = np.array(self.state.group_noise[group_name][: len(planner.contributions[group_name])])
        units = planner.last_sample_draw(group_name).samples[: len(noise)]
        samples = len(units) if self.state.by_sample else sum(self._rows_by_feed[unit] for unit in units)
        outputs = self._divide_by_signal_energy(noise)
        if not np.isfinite(self._config_errors).all() and not self._reduces_groups:
            is_finite_when_raised = len(units) == planner.sample_count and np.isfinite(outputs).all()
            fraction, half_width = float(is_finite_when_raised), 0.0
        if len(units) < planner.sample_count:
            stage = planner.last_sample_draw(group_name)
            weights = (stage.part_probabilities / stage.probabilities)[
                : len(units)
            ]  # a group that is not finite has fewer samples
            outputs = outputs * weights[:, None]
            if not self._reduces_groups:  # scaled by the noise of the config, which is known for all samples
                base = (self._divide_by_signal_energy(self._get_config_noise(units)) * weights[:, None]).sum(0)
                whole = self._config_errors.sum(0)
                with np.errstate(invalid="ignore"):  # a config that is not finite has no finite estimate
                    outputs = outputs * np.where(base > 0, whole / np.where(base > 0, base, 1.0), 1.0)
        return ErrorShare(fraction, self._worst_output_sqnr_db(outputs.sum(0)), samples, half_width)

    def _count_executed_and_expected_samples(self) -> tuple[float, float]:
        """Returns the number of executed samples without those of earlier sweeps, and the expected number in all."""
        if self.planner is None:
            expected = self.sample_count * UNKNOWN_GROUP_FRACTION * len(self.measured_groups)
            return self._spent_samples, max(self.sample_count, self._spent_samples) + expected
        remaining = sum(self.planner.estimate_remaining_samples().values())
        return self._spent_samples, self._spent_samples + remaining * self._samples_per_measured_item

    @property
    def _samples_per_measured_item(self) -> float:
        return 1.0 if self.state.by_sample else self.sample_count / len(self.feed_indices)

    # -- execution ----------------------------------------------------------------------------------------------------

    def _measure_config_noise(self) -> Iterator[tuple[float, float]]:
        sums_by_feed: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for result in self.executor.map(
            self._make_noise_task(False), [("", (feed,)) for feed in range(len(self.feed_indices))]
        ):
            if result is not None:
                (_, (feed,)), sums = result
                sums_by_feed[feed] = sums
                self._spent_samples += self._rows_by_feed[feed]
            yield self._count_executed_and_expected_samples()
        is_by_sample = all(len(sums_by_feed[feed][0]) == rows for feed, rows in enumerate(self._rows_by_feed))
        noise, signal = (
            np.concatenate(
                [
                    sums[column] if is_by_sample else sums[column].sum(0, keepdims=True)
                    for _, sums in sorted(sums_by_feed.items())
                ]
            )
            for column in (0, 1)
        )
        self.state.config_noise, self.state.signal_energies = noise.tolist(), signal.sum(0).tolist()

    def _make_noise_task(self, by_sample: bool) -> _GroupNoiseTask:
        return _GroupNoiseTask(self.config, self.ranges, self._sample_positions, by_sample, self._reduces_groups)

    @property
    def _draw_size_multiple(self) -> int:
        """The number of samples in one execution: a full feed if the batch size is fixed or a device is used, and 1 if
        not."""
        network, full = self.analysis.network, max(self._rows_by_feed)
        by_sample = self.analysis.samples.per_sample_array_names
        fixed = any(
            isinstance(size, int)
            for info in network.inputs
            if info.name in by_sample
            for size in (info.shape or ())[:1]
        )
        return full if fixed or self.analysis.backend.capabilities.has_device else 1

    def _verify_mixed_batch_results(self) -> Generator[tuple[float, float], None, bool]:
        """Returns True if samples of several feeds in one batch have the same FP32 outputs as in their own feeds."""
        positions = [position for feed in self._sample_positions for position in feed]
        rows = sorted(reversed(positions), key=lambda place: place[1])
        rows = (rows if len(self.feed_indices) > 1 else rows[::-1])[: max(self._rows_by_feed)]
        mixed = self.analysis.copy_with_batches([rows])
        mixed_outputs = mixed.get_fp32_outputs(0)
        yield self._count_executed_and_expected_samples()
        return all(
            # The first axis of an output may be another than that of the samples, such as the time of a sequence.
            mixed_outputs[output.tensor].shape[:1] == (len(rows),)
            and all(
                _has_equal_energy(self.analysis.get_fp32_outputs(index)[output.tensor][row], mixed_row)
                for (index, row), mixed_row in zip(rows, mixed_outputs[output.tensor], strict=True)
            )
            for output in mixed.judged_outputs
        )

    def _split_into_batches(self, samples_or_feeds: Sequence[int]) -> list[tuple[int, ...]]:
        size = max(self._rows_by_feed) if self.state.by_sample else 1
        return [tuple(samples_or_feeds[start : start + size]) for start in range(0, len(samples_or_feeds), size)]

    # -- estimates ----------------------------------------------------------------------------------------------------

    def _get_config_noise(self, samples: Sequence[int]) -> np.ndarray:
        """Returns the noise (squared error) of the unchanged config on some samples or feeds, in the same batches as
        the groups."""
        if self.state.by_sample:
            return np.array([self.state.base_noise[unit] for unit in samples])
        noise = np.array(self.state.config_noise)
        if len(noise) != len(self.feed_indices):
            noise = np.add.reduceat(noise, np.cumsum([0, *self._rows_by_feed[:-1]]))
        chosen: np.ndarray = noise[list(samples)]
        return chosen

    def _divide_by_signal_energy(self, noise: np.ndarray) -> np.ndarray:
        """Returns the noise (squared error) as a fraction of the signal energy of all samples; infinite if it is not
        finite."""
        return compute_noise_to_signal_ratios(noise, np.array(self.state.signal_energies))

    def _compute_error_contributions(self, samples: Sequence[int], noise: np.ndarray) -> np.ndarray:
        """Returns the contribution of each sample to the estimate of a group; -inf if the error with the change is not
        finite."""
        total, changed = self.judged_error, self._divide_by_signal_energy(noise).sum(1)
        if self._reduces_groups:
            return np.where(np.isfinite(changed), changed / (total if 0 < total < math.inf else 1.0), -math.inf)
        base = self._divide_by_signal_energy(self._get_config_noise(samples)).sum(1)
        with np.errstate(invalid="ignore"):
            added = (base - changed) / (total or 1.0)
        return np.where(np.isfinite(added), added, -math.inf)

    def _worst_output_sqnr_db(self, noise_by_output: np.ndarray) -> float | None:
        """Returns the SQNR of the worst output in dB; None if all are exact, one is not finite, or all outputs are
        integers."""
        integers = all(judged_output.kind == INTEGER_KIND for judged_output in self.analysis.judged_outputs)
        worst = float(noise_by_output.max(initial=0.0))
        return None if integers or not 0 < worst < math.inf else -10 * math.log10(worst)


def _has_equal_energy(expected: np.ndarray, actual: np.ndarray) -> bool:
    """Returns True if two outputs of one sample are equal, apart from the order of FP32 sums."""
    if expected.shape != actual.shape or expected.dtype.kind != "f":
        return np.array_equal(expected, actual)
    wide = expected.astype(np.float64)
    both = np.isfinite(wide) & np.isfinite(actual)
    return np.array_equal(np.isfinite(wide), np.isfinite(actual)) and bool(
        ((actual - wide)[both] ** 2).sum() <= EQUAL_ENERGY_FRACTION * (wide[both] ** 2).sum()
    )


def has_rounded_values(network: Network, group: FusionGroup, config: PrecisionConfig) -> bool:
    """Returns True if a group changes any value in a config by rounding."""
    precision = config.precision_of(group)
    if precision is Precision.FP32:
        return False
    if precision is Precision.FILE:
        return group.file_precision is not None and not group.file_precision.is_plain_fp32
    if precision in QUANTIZED_TYPES:
        return True
    sources = [network.find_group(network.producer.get(tensor, "")) for tensor in group.inputs]
    return not all(preserves_precision_of_values(network.get_layer(name)) for name in group.layers) or any(
        source is None or find_boundary_type(source, config.precision_of(source), config.other) is not precision
        for source in sources
    )


MAX_SHARE_HALF_WIDTH = 1.0
"""The half width of the interval, as a fraction of the error, above which a share is unknown."""


def error_share_from_sweep(group_sweep: GroupSweep, group_name: str) -> ErrorShare:
    """Returns the error share of a group, from a sweep in which each group alone is raised to FP32.

    The share is unknown if it is measured on fewer than `FIRST_SAMPLES` of more samples, or if its interval is
    too wide. A share that is not finite stays so on any further sample.
    """
    share = group_sweep.estimate_error_share(group_name)
    half = share.half_width or 0.0
    if (
        share.samples >= group_sweep.sample_count
        or not math.isfinite(share.fraction)
        or math.isinf(group_sweep.judged_error)
    ):
        return replace(share, half_width=None)
    if share.samples >= FIRST_SAMPLES and half <= MAX_SHARE_HALF_WIDTH:
        return share
    samples_text = counted_noun_text(share.samples, "sample")
    return replace(
        share,
        fraction=math.nan,
        half_width=None,
        unknown_reason=(
            f"its interval on {samples_text} is ±{100 * half:,.0f} points"
            if math.isfinite(half)
            else f"{samples_text}, too few for an interval"
        ),
    )


def sensitivity_from_sweep(group_sweep: GroupSweep, group_name: str) -> float:
    """Returns the sensitivity of a group, from a sweep in which each group alone is reduced.

    It is the judged error (`Accuracy.judged_error`) with this group alone as in the run and all others in FP32.
    Infinite if that leads to NaN or Inf, 0 if the group changes no value.
    """
    fraction, judged_error = group_sweep.estimate_error_share(group_name).fraction, group_sweep.judged_error
    return math.inf if math.isinf(fraction) else fraction * (judged_error if 0 < judged_error < math.inf else 1.0)


def measure_accuracy_per_raised_group(
    analysis: Analysis,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    group_order: Sequence[str],
    feed_indices: Sequence[int] | None = None,
) -> Iterator[PartialResult[tuple[Accuracy, ...]]]:
    """Yields a growing tuple of accuracies: with the first 1, 2, ... groups of ``group_order`` raised to FP32."""
    indices = analysis.resolve_feed_indices(feed_indices)
    accuracies: tuple[Accuracy, ...] = ()
    for name in group_order:
        config = config.with_group_precision([analysis.network.get_group(name)], Precision.FP32)
        for partial in analysis.measure_accuracy(config, ranges, indices):
            if partial.is_final_result:
                accuracies += (partial.value,)
            yield PartialResult(accuracies, len(accuracies), len(group_order))


@dataclass(frozen=True)
class SampleErrors:
    """The error of each sample in one run.

    Attributes:
        values: SQNR of the worst judged output in dB; infinite if it is exact, NaN if it is not finite. If all judged
            outputs are integers, the fraction that differs.
        are_mismatch_shares: True if the values are fractions that differ.
        is_by_feed: True if the values are those of whole batches, because the rows of an output are not samples.
        names: The name of each sample; of a batch, the name of its first sample.
    """

    values: tuple[float, ...]
    are_mismatch_shares: bool = False
    is_by_feed: bool = False
    names: tuple[SampleName, ...] = ()

    def sortable_sample_error(self, position: int) -> float:
        """Returns the error of a sample as a sort key: higher is worse, and NaN is the worst."""
        value = self.values[position]
        return np.inf if np.isnan(value) else value if self.are_mismatch_shares else -value

    @property
    def worst_position(self) -> int:
        """The position of the worst sample in ``values``; the first of several."""
        return max(range(len(self.values)), key=self.sortable_sample_error)


@dataclass(frozen=True)
class SingleSampleResult:
    """The results for one sample judged alone, with values as in `SampleErrors`.

    Attributes:
        name: The name of the sample.
        values_by_run: The value of the sample in each run.
        shares_by_group: The share of each group in this sample's error, by group name, for the groups measured so far.
            1 if raising the group alone makes a result finite that was not.
        is_complete: True if all groups are measured.
    """

    name: SampleName
    values_by_run: Mapping[str, float]
    shares_by_group: Mapping[str, float] = field(default_factory=dict)
    is_complete: bool = False


SAMPLE_ERRORS = ResultKind[PrecisionConfig, SampleErrors]("sample errors", MAX_RECENT_RESULTS)
"""The errors of all samples, by config."""

SINGLE_SAMPLES = ResultKind[tuple[PrecisionConfig, SampleName], SingleSampleResult](
    "single samples", MAX_RECENT_RESULTS
)
"""The results of single samples, by config and sample."""


def _compute_sample_errors(noise: np.ndarray, signal: np.ndarray, are_mismatch_shares: bool) -> np.ndarray:
    """Returns the SQNR of each sample from its noise and signal sums, or the fraction that differs for integers.

    Args:
        noise, signal: Sums of each sample at each output, float64 ``(samples, outputs)``.
    """
    worst = compute_noise_to_signal_ratios(noise, signal).max(1)
    with np.errstate(divide="ignore"):
        values = worst if are_mismatch_shares else -10 * np.log10(worst)
    return np.where(np.isfinite(worst), values, np.nan)


def measure_sample_errors(
    analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], feed_indices: Sequence[int]
) -> Iterator[PartialResult[SampleErrors]]:
    """Yields the errors of all samples so far after each feed.

    Raises:
        InputError: an input of an INT8 layer has no range.
    """
    are_mismatch_shares = all(judged_output.kind == INTEGER_KIND for judged_output in analysis.judged_outputs)
    names: list[SampleName] = []
    samples = analysis.samples
    for partial in analysis.measure_noise_by_sample(config, ranges, feed_indices):
        feed = feed_indices[partial.done_count - 1]
        names += [samples.sample_name(feed, row) for row in range(samples.count_samples_of_feed(feed))]
        row_errors = _compute_sample_errors(*partial.value, are_mismatch_shares)
        is_by_feed = len(row_errors) != len(names)
        yield PartialResult(
            SampleErrors(
                tuple(row_errors.tolist()),
                are_mismatch_shares,
                is_by_feed,
                tuple(map(samples.sample_name, feed_indices[: partial.done_count]) if is_by_feed else names),
            ),
            partial.done_count,
            partial.total_count,
        )


def measure_single_sample(
    analysis: Analysis,
    configs_by_run: Mapping[str, PrecisionConfig],
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    feed_index: int,
    row_index: int,
) -> Iterator[PartialResult[SingleSampleResult]]:
    """Yields the results for one sample after each execution of its feed.

    The runs are measured first, then the config with each single group raised to FP32.

    Raises:
        InputError: an input of an INT8 layer has no range.
    """
    network, name = analysis.network, analysis.samples.sample_name(feed_index, row_index)
    are_mismatch_shares = all(judged_output.kind == INTEGER_KIND for judged_output in analysis.judged_outputs)

    def measure_sample_noise(changed_config: PrecisionConfig) -> tuple[np.ndarray, np.ndarray]:
        noise, signal = next(iter(analysis.measure_noise_by_sample(changed_config, ranges, [feed_index]))).value
        row_position = row_index if len(noise) == analysis.samples.count_samples_of_feed(feed_index) else 0
        return noise[row_position : row_position + 1], signal[row_position : row_position + 1]

    groups = [group for group in network.groups if has_rounded_values(network, group, config)]
    total = len(configs_by_run) + len(groups)
    values_by_run: dict[str, float] = {}
    for run, requested_config in configs_by_run.items():
        values_by_run[run] = float(
            _compute_sample_errors(*measure_sample_noise(requested_config), are_mismatch_shares)[0]
        )
        yield PartialResult(SingleSampleResult(name, dict(values_by_run)), len(values_by_run), total)
    total_error = float(compute_noise_to_signal_ratios(*measure_sample_noise(config)).sum())
    shares: dict[str, float] = {}
    for group in groups if total_error else ():
        noise_and_signal = measure_sample_noise(config.with_group_precision([group], Precision.FP32))
        remaining_error = float(compute_noise_to_signal_ratios(*noise_and_signal).sum())
        shares[group.name] = (
            (total_error - remaining_error) / total_error
            if np.isfinite(total_error)
            else float(np.isfinite(remaining_error))
        )
        yield PartialResult(
            SingleSampleResult(name, values_by_run, dict(shares)), len(values_by_run) + len(shares), total
        )
    yield PartialResult(SingleSampleResult(name, values_by_run, shares, True), total, total)
