"""Calibration methods beside each other: a config's figures with the ranges that each of them chooses."""

import time

from trt_tui.core.measure.comparison import Verdict
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import measured
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.CompareMethods) -> Steps[None]:
    """Calibrates by each method and judges the config with its ranges; sends the table as it grows.

    Seconds are those of calibrating alone; 0 where the ranges were known from before.
    """
    if workspace.options.calib_cache is not None:
        raise InputError("methods cannot be compared", "ranges are taken from a cache", "Leave out --calib-cache.")
    rows: list[ev.MethodRow] = []
    for method in request.methods:
        before = time.perf_counter()
        found = measured(workspace, store, report, method)
        seconds = time.perf_counter() - before
        yield Urgency.VERDICT
        verdict, since = Verdict({}), time.monotonic()
        for partial in workspace.analysis.verdict(request.config, found.by_codes, workspace.feeds, settle=True):
            verdict = partial.value
            report.progress(f"judging {method}", partial.done, partial.total, since)
            yield Urgency.VERDICT
        rows.append(ev.MethodRow(method, verdict, seconds, found.samples))
        report.send(ev.MethodsCompared(report.job, request.config, tuple(rows)))
