"""The simulated figures of one config."""

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.amended import send_amended
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.comparing import send_layers
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.shares import send_shares
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.jobs.verdicts import settle, verdict_of
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.WhatIf) -> Steps[None]:
    """Measures the verdict; with shares also those and the errors at the groups, in the background; then what is lost
    as the export has it, where that differs."""
    config = request.config
    ensure_ranges(workspace, store, report, [config])
    for verdict in verdict_of(workspace, store, report, config, "what-if"):
        final = verdict.samples >= workspace.judged_count
        if final or report.due("what-if"):
            report.send(ev.VerdictMeasured(report.job, "config", config, verdict, final))
        yield Urgency.WHAT_IF
    yield from settle(workspace, store, report, {"config": config})
    if request.shares:
        yield Urgency.MAP
        yield from send_shares(workspace, store, report, "config", config)
        yield from send_layers(workspace, store, report, {"config": config}, Urgency.BACKGROUND)
    yield from send_amended(workspace, store, report, {"config": config}, Urgency.BACKGROUND)
