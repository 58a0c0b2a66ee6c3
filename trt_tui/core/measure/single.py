"""Errors sample by sample, and one sample judged alone: what each run yields on it, and which groups own that error."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.measure.analysis import Analysis, Partial
from trt_tui.core.measure.group_sweep import matters
from trt_tui.core.measure.judge import INTEGER
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class SampleErrors:
    """The error of each sample in one run.

    Attributes:
        figures: SQNR of the worst judged output in dB, infinite where it is exact, NaN where it is not finite; where
            integers alone are judged the share that differs.
        differs: Whether they are such shares.
        by_feed: Whether they are of whole batches, which the outputs do not let tell apart.
    """

    figures: tuple[float, ...]
    differs: bool = False
    by_feed: bool = False

    def badness(self, place: int) -> float:
        """How bad a sample is, in dB below or as a share: more is worse, NaN the worst of all."""
        figure = self.figures[place]
        return np.inf if np.isnan(figure) else figure if self.differs else -figure

    @property
    def worst(self) -> int:
        """The number of the worst one; the first of several."""
        return max(range(len(self.figures)), key=self.badness)


@dataclass(frozen=True)
class OneSample:
    """One sample judged alone; see `SampleErrors` for the figures.

    Attributes:
        sample: Its number among the judged ones; of its batch where these cannot be told apart.
        figures: By run.
        shares: What each group of the config owns of this sample's error, by name, as far as it is measured: 1 where
            it alone makes what is not finite finite.
        complete: Whether all groups are measured.
    """

    sample: int
    figures: Mapping[str, float]
    shares: Mapping[str, float] = field(default_factory=dict)
    complete: bool = False


def _figures(noise: np.ndarray, signal: np.ndarray, differs: bool) -> np.ndarray:
    """The figure of each row of sums, float64 ``(rows, outputs)``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(noise == 0, 0.0, noise / signal)
        worst = np.where(np.isfinite(parts).all(1), parts.max(1), np.nan)
        figures: np.ndarray = worst if differs else -10 * np.log10(worst)
    return figures


def sample_errors(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], feeds: Sequence[int]
                  ) -> Iterator[Partial[SampleErrors]]:
    """Yields the errors of the samples so far after each feed.

    Raises:
        InputError: an INT8 layer's input has no range.
    """
    differs = all(one.kind == INTEGER for one in analysis.judged)
    rows = 0
    for partial in analysis.noise(config, ranges, feeds):
        rows += analysis.samples.rows(feeds[partial.done - 1])
        figures = _figures(*partial.value, differs)
        yield Partial(SampleErrors(tuple(figures.tolist()), differs, len(figures) != rows), partial.done, partial.total)


def judge_alone(analysis: Analysis, runs: Mapping[str, PrecisionConfig], config: PrecisionConfig,
                ranges: Mapping[str, float], feed: int, row: int, sample: int) -> Iterator[Partial[OneSample]]:
    """Yields what is known of one sample after each run of its feed: the runs first, then each group of the config
    raised to FP32 alone.

    Raises:
        InputError: an INT8 layer's input has no range.
    """
    network = analysis.network
    differs = all(one.kind == INTEGER for one in analysis.judged)

    def sums(asked: PrecisionConfig) -> tuple[np.ndarray, np.ndarray]:
        noise, signal = next(iter(analysis.noise(asked, ranges, [feed]))).value
        place = row if len(noise) == analysis.samples.rows(feed) else 0
        return noise[place:place + 1], signal[place:place + 1]

    def energy(noise: np.ndarray, signal: np.ndarray) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.where(noise == 0, 0.0, noise / signal).sum())

    groups = [group for group in network.groups if matters(network, group, config)]
    total = len(runs) + len(groups)
    figures: dict[str, float] = {}
    for run, asked in runs.items():
        figures[run] = float(_figures(*sums(asked), differs)[0])
        yield Partial(OneSample(sample, dict(figures)), len(figures), total)
    whole = energy(*sums(config))
    shares: dict[str, float] = {}
    for group in groups if whole else ():
        left = energy(*sums(config.with_groups([group], Precision.FP32)))
        shares[group.name] = (whole - left) / whole if np.isfinite(whole) else float(np.isfinite(left))
        yield Partial(OneSample(sample, figures, dict(shares)), len(figures) + len(shares), total)
    yield Partial(OneSample(sample, figures, shares, True), total, total)
