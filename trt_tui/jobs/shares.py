"""What each group owns of a config's error, and the error with the worst groups raised together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from trt_tui.core.measure.comparison import GroupErrors, Share, Verdict
from trt_tui.core.measure.shares import measure_cumulative, measure_shares
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import events as ev
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace

RAISED_ROWS = 12
"""The error is measured with the worst 1, 2, ... up to this many groups raised."""

LEAST_OWNED = 0.002
"""Groups that own less are not raised together with the worst ones."""


def suspects(workspace: Workspace, store: Store, config: PrecisionConfig) -> list[str]:
    """All groups; those with a large error of their own come first, as far as that is known."""
    base = replace(config, moves={})
    known = (store.known(workspace, "layers", config, dict[str, GroupErrors])
             or store.known(workspace, "layers", base, dict[str, GroupErrors]) or {})

    def badness(name: str) -> float:
        errors = known[name].isolated if name in known else None
        if errors is None:
            return 0.0
        if errors.sqnr_db is None:
            return 1e9 if errors.exact else -1e9
        return errors.sqnr_db

    return sorted((group.name for group in workspace.network.groups), key=badness)


def send_shares(workspace: Workspace, store: Store, report: Report, run: str, config: PrecisionConfig
                   ) -> Steps[None]:
    """Sends what each group owns; what was measured before an interruption is not measured again."""
    shares = store.known(workspace, "shares", config, dict[str, Share]) or {}
    order = suspects(workspace, store, config)
    total, before, since = len(order), len(shares), time.monotonic()
    unsent: dict[str, Share] = dict(shares)
    remaining = [name for name in order if name not in shares]
    if remaining:
        if shares:
            report.send(ev.SharesMeasured(report.job, run, config, unsent, before, total))
            unsent = {}
        try:
            for partial in measure_shares(workspace.analysis, config, workspace.ranges, order=remaining,
                                          feeds=workspace.feeds):
                shares.update(partial.value)
                unsent.update(partial.value)
                if unsent and report.due("shares"):
                    report.send(ev.SharesMeasured(report.job, run, config, unsent, len(shares), total))
                    unsent = {}
                report.progress(f"what each group owns ({run})", len(shares) - before, total - before, since)
                if report.due("shares kept"):
                    store.keep(workspace, "shares", config, shares)
                yield Urgency.BACKGROUND
        finally:
            store.keep(workspace, "shares", config, shares)
    report.send(ev.SharesMeasured(report.job, run, config, unsent, len(shares), total))
    yield from _raised(workspace, store, report, config, shares)


def _raised(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig, shares: Mapping[str, Share]
            ) -> Steps[None]:
    """Sends the error with the worst groups raised together."""
    worst = sorted(shares, key=lambda name: -shares[name].owns)
    order = tuple(name for name in worst if shares[name].owns >= LEAST_OWNED)[:RAISED_ROWS]
    if not order:
        return
    verdicts = store.known(workspace, "raised", config, tuple[Verdict, ...])
    if verdicts is None:
        since = time.monotonic()
        for partial in measure_cumulative(workspace.analysis, config, workspace.ranges, order, workspace.feeds):
            verdicts = partial.value
            report.progress("raising the worst groups together", partial.done, partial.total, since)
            yield Urgency.BACKGROUND
        store.keep(workspace, "raised", config, verdicts)
    report.send(ev.RaisedMeasured(report.job, config, order, verdicts or ()))
