"""Figures of whole arrays and of every group, as tests and benchmarks take them."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from trt_tui.core.measure.analysis import Analysis, Partial
from trt_tui.core.measure.comparison import Errors, Share
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.measure.shares import Impact, impact_of, share_of
from trt_tui.core.moves.config import PrecisionConfig


def errors_between(reference: np.ndarray, test: np.ndarray) -> Errors:
    """Metrics of one pair of float arrays of one shape."""
    sums = Sums()
    sums.add(reference, test)
    return sums.errors()


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
    sweep = GroupSweep(analysis, config, ranges, order=order, feeds=feeds, exact=exact)
    yield from _figures(sweep, lambda name: share_of(sweep, name))


def measure_impacts(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], *,
                    order: Sequence[str] | None = None, feeds: Sequence[int] | None = None, owns: bool = True,
                    exact: bool = False) -> Iterator[Partial[dict[str, Impact]]]:
    """Yields ``{group: Impact}`` of what is new since the last yield: each group lowered alone, and before that raised.

    Args:
        order: Groups to measure, most suspicious first; all by default.
        owns: Whether all-but-this is measured too; only-this, by which a search ranks, takes half the runs.
        exact: Measure all of them on all samples.
    """
    shares: dict[str, Share] = {}
    if owns:
        for partial in measure_shares(analysis, config, ranges, order=order, feeds=feeds, exact=exact):
            shares.update(partial.value)
            yield Partial({}, partial.done, 2 * partial.total)
    sweep = GroupSweep(analysis, config, ranges, order=order, feeds=feeds, exact=exact, lowered=True)
    yield from _figures(sweep, lambda name: impact_of(sweep, name, shares.get(name)))


def _figures(sweep: GroupSweep, told: Callable[[str], Share]) -> Iterator[Partial[dict[str, Share]]]:
    for done, total in sweep.steps():
        found = {name: told(name) for name in sweep.fresh}
        sweep.fresh.clear()
        yield Partial(found, round(done), max(round(total), round(done) + 1))
    yield Partial({name: told(name) for name in sweep.fresh}, 1, 1)
