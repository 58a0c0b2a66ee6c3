"""What single groups do to the judged outputs: their shares, their impacts, and the worst ones raised together.

All of it runs on the loaded session of an `Analysis`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trt_tui.core.measure.analysis import Analysis, Partial
from trt_tui.core.measure.comparison import Share, Verdict
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.words import plural

MAX_MARGIN = 1.0
"""A share whose interval reaches further to each side, as a part of the error, is unknown."""


@dataclass(frozen=True)
class Impact(Share):
    """What one group does to the judged outputs: if it alone is raised (`Share`), and if it alone is lowered.

    ``owns`` is NaN if all-but-this was not asked for.

    Attributes:
        energy: The judged error (`Verdict.energy`) with this group alone as in the run and all others in FP32; infinite
            if that leads to NaN or Inf, 0 if the group changes no value, None if it was not measured.
    """

    energy: float | None = None


def share_of(sweep: GroupSweep, name: str) -> Share:
    """What a sweep with groups raised knows of one."""
    known = sweep.of(name)
    half = known.figure.half
    margin = half if math.isfinite(half) and known.samples < sweep.samples else None
    if margin is not None and margin > MAX_MARGIN:
        return Share(math.nan, known.worst_db, samples=known.samples,
                     unknown=f"its interval on {plural(known.samples, 'sample')} is ±{100 * margin:,.0f} points")
    return Share(known.figure.value, known.worst_db, samples=known.samples, margin=margin)


def impact_of(sweep: GroupSweep, name: str, share: Share | None = None) -> Impact:
    """What a sweep with groups lowered alone knows of one, beside its share."""
    known, energy = sweep.of(name), sweep.energy
    scale = energy if 0 < energy < math.inf else 1.0
    alone = math.inf if math.isinf(known.figure.value) else known.figure.value * scale
    share = share or Share(math.nan, samples=known.samples)
    return Impact(share.owns, share.kept_db, known.worst_db, share.samples, share.margin, share.unknown, alone)


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
