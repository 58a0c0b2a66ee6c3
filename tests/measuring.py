"""Figures of whole arrays and of every group, as tests and benchmarks take them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import Errors, OutputErrors, Share, Verdict
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.measure.shares import Impact, impact_of, share_of
from trt_tui.core.moves.config import PrecisionConfig


def verdict(sqnr_db: float | None, cosine: float | None = 1.0, samples: int = 8, total: int = 8) -> Verdict:
    """One of an output ``y`` alone."""
    return Verdict({"y": OutputErrors(Errors(sqnr_db, cosine))}, samples=samples, total=total)


def errors_between(reference: np.ndarray, test: np.ndarray) -> Errors:
    """Metrics of one pair of float arrays of one shape."""
    sums = Sums()
    sums.add(reference, test)
    return sums.errors()


def measure_shares(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], **options: Any
                   ) -> dict[str, Share]:
    """What groups own of the judged error, in the order in which it is told; ``options`` are those of `GroupSweep`."""
    sweep = GroupSweep(analysis, config, ranges, **options)
    return _figures(sweep, lambda name: share_of(sweep, name))


def measure_impacts(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], *, owns: bool = True,
                    **options: Any) -> dict[str, Impact]:
    """Each group lowered alone, and before that raised.

    Args:
        owns: Whether all-but-this is measured too; only-this, by which a search ranks, takes half the runs.
    """
    shares = measure_shares(analysis, config, ranges, **options) if owns else {}
    sweep = GroupSweep(analysis, config, ranges, lowered=True, **options)
    return _figures(sweep, lambda name: impact_of(sweep, name, shares.get(name)))


def _figures(sweep: GroupSweep, told: Callable[[str], Share]) -> dict[str, Share]:
    found = {}
    for _ in sweep.steps():
        found |= {name: told(name) for name in sweep.fresh}
        sweep.fresh.clear()
    return found | {name: told(name) for name in sweep.fresh}
