"""Errors sample by sample, and one sample judged alone."""

import time

from trt_tui.core.measure.single import SampleErrors, judge_alone, sample_errors
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.bench import feed_of
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.MeasureSamples) -> Steps[None]:
    """Measures the error of each sample in a config; what was measured before is sent at once."""
    config = request.config
    ensure_ranges(workspace, store, report, [config])
    known = store.known(workspace, "samples", config, SampleErrors)
    since, measuring = time.monotonic(), sample_errors(workspace.analysis, config, workspace.ranges, workspace.feeds)
    for partial in measuring if known is None else ():
        report.progress("errors sample by sample", partial.done, partial.total, since)
        if partial.final:
            known = partial.value
            store.keep(workspace, "samples", config, known)
        yield Urgency.VERDICT
    if known is not None:
        report.send(ev.SamplesMeasured(report.job, config, known))


def alone(workspace: Workspace, store: Store, report: Report, request: rq.JudgeSample) -> Steps[None]:
    """Judges one sample alone; sends what is known as it grows."""
    ensure_ranges(workspace, store, report, request.runs.values())
    feed = feed_of(workspace, request.sample)
    before = sum(workspace.data.judged.rows(index) for index in workspace.feeds[:workspace.feeds.index(feed)])
    since = time.monotonic()
    for partial in judge_alone(workspace.analysis, request.runs, request.config, workspace.ranges, feed,
                               request.sample - before, request.sample):
        report.progress(f"judging sample {request.sample} alone", partial.done, partial.total, since)
        if partial.value.complete or report.due("one sample"):
            report.send(ev.SampleJudged(report.job, request.config, partial.value))
        yield Urgency.MAP
