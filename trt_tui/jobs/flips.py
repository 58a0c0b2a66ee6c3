"""What a config's judged figures become when one row is flipped: raised to FP32, or taken back where it is there."""

from __future__ import annotations

import time

from trt_tui.core.measure.comparison import Share, Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.shares import LEAST_OWNED, known_shares
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.jobs.verdicts import verdict_of
from trt_tui.workspace import Workspace

MOST = 40
"""Rows that are flipped at most: each takes a what-if on all samples."""


def run(workspace: Workspace, store: Store, report: Report, request: rq.TryFlips) -> Steps[None]:
    """Measures the config with each row flipped that matters, after all that anybody waits for.

    The rows that were changed come first, then those of the largest shares; without shares there are no others.
    """
    config = request.config
    yield Urgency.FLIPS
    ensure_ranges(workspace, store, report, [config])
    worth = flipped(config, workspace.network.groups, known_shares(workspace, store, config))
    since = time.monotonic()
    for done, changed in enumerate(worth, 1):
        verdict: Verdict | None = None
        for measured in verdict_of(workspace, store, report, changed):
            verdict = measured
            yield Urgency.FLIPS
        if verdict is not None:
            report.send(ev.VerdictMeasured(report.job, "flip", changed, verdict, True))
        report.progress("each row if flipped", done, len(worth), since)


def flipped(config: PrecisionConfig, groups: tuple[Group, ...], shares: dict[str, Share]) -> list[PrecisionConfig]:
    """The configs that differ from this one in one row each, that of most interest first."""
    def interest(group: Group) -> float:
        return 2.0 if group.name in config.groups else shares[group.name].owns if group.name in shares else 0.0

    order = sorted((group for group in groups if interest(group) >= LEAST_OWNED), key=interest, reverse=True)
    return [changed for group in order[:MOST] if (changed := config.toggled([group])) != config]
