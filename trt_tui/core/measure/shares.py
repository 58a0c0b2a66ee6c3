"""What single groups do to the judged outputs: their shares, their impacts, and the worst ones raised together.

All of it runs on the loaded session of an `Analysis`; every function is a generator, as the methods there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trt_tui.core.measure.analysis import Analysis, Partial
from trt_tui.core.measure.comparison import Share, Verdict
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class Impact(Share):
    """What one group does to the judged outputs: if it alone is raised (`Share`), and if it alone is lowered.

    ``owns`` is NaN if all-but-this was not asked for.

    Attributes:
        energy: The judged error (`Verdict.energy`) with this group alone as in the run and all others in FP32; infinite
            if that leads to NaN or Inf, 0 if the group changes no value, None if it was not measured.
        alone_on: On how many samples that was measured.
    """

    energy: float | None = None
    alone_on: int = 0


def share_of(sweep: GroupSweep, name: str) -> Share:
    """What a sweep with groups raised knows of one."""
    known = sweep.of(name)
    half = known.figure.half
    return Share(known.figure.value, known.worst_db, samples=known.samples,
                 margin=half if math.isfinite(half) and known.samples < sweep.samples else None)


def measure_shares(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], *,
                   order: Sequence[str] | None = None, feeds: Sequence[int] | None = None, exact: bool = False
                   ) -> Iterator[Partial[dict[str, Share]]]:
    """Yields ``{group: Share}`` of what is new since the last yield: what a group owns of the judged error.

    All groups are measured on a few samples, then those that may matter on more (`trt_tui.core.measure.sweep`). It
    yields after each run of one batch, so many yields hold nothing new. Groups that already run in FP32, and those
    that only pass on values of their own precision, own nothing and are not run. If the config's judged error is not
    finite, a group that makes it finite owns all of it, any other group nothing.

    Args:
        order: Groups to measure, most suspicious first; all by default.
        exact: Measure all of them on all samples.
    """
    yield from _figures(GroupSweep(analysis, config, ranges, order=order, feeds=feeds, exact=exact))


def _figures(sweep: GroupSweep) -> Iterator[Partial[dict[str, Share]]]:
    for done, total in sweep.steps():
        found = {name: share_of(sweep, name) for name in sweep.fresh}
        sweep.fresh.clear()
        yield Partial(found, round(done), max(round(total), round(done) + 1))
    yield Partial({name: share_of(sweep, name) for name in sweep.fresh}, 1, 1)


def impact_of(sweep: GroupSweep, name: str, share: Share | None = None) -> Impact:
    """What a sweep with groups lowered alone knows of one, beside its share."""
    known, energy = sweep.of(name), sweep.energy
    scale = energy if 0 < energy < math.inf else 1.0
    alone = math.inf if math.isinf(known.figure.value) else known.figure.value * scale
    share = share or Share(math.nan)
    return Impact(share.owns, share.kept_db, known.worst_db, share.samples, share.margin, alone, known.samples)


def measure_cumulative(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float],
                       order: Sequence[str], feeds: Sequence[int] | None = None
                       ) -> Iterator[Partial[tuple[Verdict, ...]]]:
    """Yields a growing tuple: the verdicts with the first 1, 2, ... groups of ``order`` raised to FP32."""
    indices = analysis.indices(feeds)
    verdicts: tuple[Verdict, ...] = ()
    for name in order:
        config = config.with_groups([analysis.network.group(name)], Precision.FP32)
        for partial in analysis.verdict(config, ranges, indices):
            if partial.final:
                verdicts += (partial.value,)
            yield Partial(verdicts, len(verdicts), len(order))
