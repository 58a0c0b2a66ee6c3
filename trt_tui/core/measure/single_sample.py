"""Errors sample by sample, and one sample judged alone: what each run yields on it, and which groups own that error."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.measure.analysis import Analysis, PartialResult
from trt_tui.core.measure.group_sweep import has_rounded_values
from trt_tui.core.measure.judged_outputs import INTEGER_KIND
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class SampleErrors:
    """The error of each sample in one run.

    Attributes:
        values: SQNR of the worst judged output in dB, infinite where it is exact, NaN where it is not finite; where
            integers alone are judged the share that differs.
        are_mismatch_shares: Whether they are such shares.
        is_by_feed: Whether they are of whole batches, which the outputs do not let tell apart.
    """

    values: tuple[float, ...]
    are_mismatch_shares: bool = False
    is_by_feed: bool = False

    def sortable_sample_error(self, sample_index: int) -> float:
        """How bad a sample is, in dB below or as a share: more is worse, NaN the worst of all."""
        value = self.values[sample_index]
        return np.inf if np.isnan(value) else value if self.are_mismatch_shares else -value

    @property
    def worst_sample_index(self) -> int:
        """The number of the worst one; the first of several."""
        return max(range(len(self.values)), key=self.sortable_sample_error)


@dataclass(frozen=True)
class SingleSampleResult:
    """One sample judged alone; see `SampleErrors` for the figures.

    Attributes:
        sample_index: Its number among the judged ones; of its batch where these cannot be told apart.
        values_by_run: By run.
        shares_by_group: What each group of the config owns of this sample's error, by name, as far as it is measured: 1
            where it alone makes what is not finite finite.
        is_complete: Whether all groups are measured.
    """

    sample_index: int
    values_by_run: Mapping[str, float]
    shares_by_group: Mapping[str, float] = field(default_factory=dict)
    is_complete: bool = False


def _compute_sample_errors(noise: np.ndarray, signal: np.ndarray, are_mismatch_shares: bool) -> np.ndarray:
    """The figure of each row of sums, float64 ``(rows, outputs)``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(noise == 0, 0.0, noise / signal)
        worst = np.where(np.isfinite(parts).all(1), parts.max(1), np.nan)
        row_errors: np.ndarray = worst if are_mismatch_shares else -10 * np.log10(worst)
    return row_errors


def measure_sample_errors(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float],
                          feed_indices: Sequence[int]) -> Iterator[PartialResult[SampleErrors]]:
    """Yields the errors of the samples so far after each feed.

    Raises:
        InputError: an INT8 layer's input has no range.
    """
    are_mismatch_shares = all(judged_output.kind == INTEGER_KIND for judged_output in analysis.judged_outputs)
    rows = 0
    for partial in analysis.measure_noise_by_sample(config, ranges, feed_indices):
        rows += analysis.samples.count_samples_of_feed(feed_indices[partial.done_count - 1])
        row_errors = _compute_sample_errors(*partial.value, are_mismatch_shares)
        yield PartialResult(SampleErrors(tuple(row_errors.tolist()), are_mismatch_shares,
                                         len(row_errors) != rows), partial.done_count, partial.total_count)


def measure_single_sample(analysis: Analysis, configs_by_run: Mapping[str, PrecisionConfig], config: PrecisionConfig,
                          ranges: Mapping[str, float], feed_index: int, row_index: int,
                          sample_index: int) -> Iterator[PartialResult[SingleSampleResult]]:
    """Yields what is known of one sample after each run of its feed: the runs first, then each group of the config
    raised to FP32 alone.

    Raises:
        InputError: an INT8 layer's input has no range.
    """
    network = analysis.network
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
        yield PartialResult(SingleSampleResult(sample_index, dict(values_by_run)), len(values_by_run), total)
    total_error = sum_noise_to_signal(*measure_sample_noise(config))
    shares: dict[str, float] = {}
    for group in groups if total_error else ():
        remaining_error = sum_noise_to_signal(
            *measure_sample_noise(config.with_group_precision([group], Precision.FP32)))
        shares[group.name] = (total_error - remaining_error) / total_error if np.isfinite(total_error) else float(
            np.isfinite(remaining_error))
        yield PartialResult(SingleSampleResult(sample_index, values_by_run, dict(shares)),
                            len(values_by_run) + len(shares), total)
    yield PartialResult(SingleSampleResult(sample_index, values_by_run, shares, True), total, total)
