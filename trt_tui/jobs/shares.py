"""What each group owns of a config's error, and the error with the worst groups raised together."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trt_tui.core.measure.comparison import GroupErrors, Share, Verdict
from trt_tui.core.measure.group_sweep import GroupSweep, Swept
from trt_tui.core.measure.shares import measure_cumulative, share_of
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import events as ev
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.spreading import following, hands_of
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
                ) -> Steps[dict[str, Share]]:
    """Sends what each group owns, and returns it; what was measured before an interruption is not measured again. Then
    sends the error with the worst groups raised together.

    Every group is measured on a few samples first, and until then the steps are urgent.
    """
    names = suspects(workspace, store, config)
    shares = known_shares(workspace, store, config)
    if shares.keys() >= set(names):
        shares = {name: shares[name] for name in names}
        report.send(ev.SharesMeasured(report.job, run, config, shares, len(names), len(names)))
    else:
        shares = yield from _measured(workspace, store, report, run, config, names)
    yield from _raised(workspace, store, report, config, shares)
    return shares


def known_shares(workspace: Workspace, store: Store, config: PrecisionConfig) -> dict[str, Share]:
    """What is known for good of each group: on all samples, or on as many as it takes unless all are asked for."""
    exact = store.known(workspace, "shares, exact", config, dict[str, Share])
    if exact is not None or workspace.options.exact:
        return exact or {}
    return store.known(workspace, "shares", config, dict[str, Share]) or {}


def _measured(workspace: Workspace, store: Store, report: Report, run: str, config: PrecisionConfig,
              names: Sequence[str]) -> Steps[dict[str, Share]]:
    exact = workspace.options.exact
    kind = "swept, exact" if exact else "swept"
    hands = hands_of(workspace, report)
    sweep = GroupSweep(workspace.analysis, config, workspace.ranges, order=names, feeds=workspace.feeds, exact=exact,
                       known=store.known(workspace, kind, config, Swept), hands=hands)
    since, mapped = time.monotonic(), False

    def send() -> None:
        unsent = {name: share_of(sweep, name) for name in sweep.fresh}
        sweep.fresh.clear()
        report.send(ev.SharesMeasured(report.job, run, config, unsent, len(sweep.settled), len(names)))

    try:
        for done, total in sweep.steps():
            complete = sweep.mapped and not mapped
            mapped = sweep.mapped
            if sweep.fresh and done and (complete or report.due("shares")):  # what was known is told in the end
                send()
            report.progress(("shares" if run == "config" else f"shares ({run})") + hands.words, round(done),
                            max(round(total), round(done) + 1), since)
            if report.due("shares kept"):
                store.keep(workspace, kind, config, sweep.swept)
            paused = time.monotonic()
            yield following(hands, Urgency.BACKGROUND if sweep.mapped else Urgency.MAP)
            if complete:  # all that is more urgent than the rest of the shares has come in between
                since += time.monotonic() - paused
    finally:
        store.keep(workspace, kind, config, sweep.swept)
    send()
    shares = {name: share_of(sweep, name) for name in names}
    store.keep(workspace, "shares, exact" if exact else "shares", config, shares)
    return shares


def _raised(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig, shares: Mapping[str, Share]
            ) -> Steps[None]:
    """Sends the error with the worst groups raised together."""
    worst = sorted((name for name in shares if not shares[name].unknown), key=lambda name: -shares[name].owns)
    order = tuple(name for name in worst if shares[name].owns >= LEAST_OWNED)[:RAISED_ROWS]
    if not order:
        return
    verdicts = store.known(workspace, "raised", config, tuple[Verdict, ...])
    if verdicts is None:
        since = time.monotonic()
        for partial in measure_cumulative(workspace.analysis, config, workspace.ranges, order, workspace.feeds):
            verdicts = partial.value
            report.progress("cumulative FP32 sweep", partial.done, partial.total, since)
            yield Urgency.BACKGROUND
        store.keep(workspace, "raised", config, verdicts)
    report.send(ev.RaisedMeasured(report.job, config, order, verdicts or ()))
