"""Errors of single samples, and the error shares of the groups on one sample."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.data.batches import SampleName
from trt_tui.core.measure.analysis import Analysis, PartialResult
from trt_tui.core.measure.group_sweep import has_rounded_values
from trt_tui.core.measure.judged_outputs import INTEGER_KIND
from trt_tui.core.measure.results import MAX_RECENT_RESULTS, ResultKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision


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

SINGLE_SAMPLES = ResultKind[tuple[PrecisionConfig, SampleName], SingleSampleResult]("single samples",
                                                                              MAX_RECENT_RESULTS)
"""The results of single samples, by config and sample."""


def _compute_sample_errors(noise: np.ndarray, signal: np.ndarray, are_mismatch_shares: bool) -> np.ndarray:
    """Returns the SQNR of each sample from its noise and signal sums, or the fraction that differs for integers.

    Args:
        noise, signal: Sums of each sample at each output, float64 ``(samples, outputs)``.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(noise == 0, 0.0, noise / signal)
        worst = np.where(np.isfinite(parts).all(1), parts.max(1), np.nan)
        row_errors: np.ndarray = worst if are_mismatch_shares else -10 * np.log10(worst)
    return row_errors


def measure_sample_errors(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float],
                          feed_indices: Sequence[int]) -> Iterator[PartialResult[SampleErrors]]:
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
            SampleErrors(tuple(row_errors.tolist()), are_mismatch_shares, is_by_feed, tuple(
                map(samples.sample_name, feed_indices[:partial.done_count]) if is_by_feed else names)),
            partial.done_count, partial.total_count)


def measure_single_sample(analysis: Analysis, configs_by_run: Mapping[str, PrecisionConfig], config: PrecisionConfig,
                          ranges: Mapping[str, float], feed_index: int,
                          row_index: int) -> Iterator[PartialResult[SingleSampleResult]]:
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
        return noise[row_position:row_position + 1], signal[row_position:row_position + 1]

    def sum_noise_to_signal(noise: np.ndarray, signal: np.ndarray) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.where(noise == 0, 0.0, noise / signal).sum())

    groups = [group for group in network.groups if has_rounded_values(network, group, config)]
    total = len(configs_by_run) + len(groups)
    values_by_run: dict[str, float] = {}
    for run, requested_config in configs_by_run.items():
        values_by_run[run] = float(
            _compute_sample_errors(*measure_sample_noise(requested_config), are_mismatch_shares)[0])
        yield PartialResult(SingleSampleResult(name, dict(values_by_run)), len(values_by_run), total)
    total_error = sum_noise_to_signal(*measure_sample_noise(config))
    shares: dict[str, float] = {}
    for group in groups if total_error else ():
        remaining_error = sum_noise_to_signal(
            *measure_sample_noise(config.with_group_precision([group], Precision.FP32)))
        shares[group.name] = (total_error - remaining_error) / total_error if np.isfinite(total_error) else float(
            np.isfinite(remaining_error))
        yield PartialResult(SingleSampleResult(name, values_by_run, dict(shares)),
                            len(values_by_run) + len(shares), total)
    yield PartialResult(SingleSampleResult(name, values_by_run, shares, True), total, total)
