"""The jobs that measure the error of each sample, and the results of a single sample."""

import time

from trt_tui.core.measure.single_sample import SampleErrors, measure_sample_errors, measure_single_sample
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_sample_error_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.MeasureSampleErrors) -> Steps[None]:
    """Measures and sends the error of each sample in a config. Stored errors are sent at once."""
    config = request.config
    ensure_ranges(workspace, store, reporter, [config])
    errors = store.load_result(workspace, "samples", config, SampleErrors)
    start_time, partials = time.monotonic(), measure_sample_errors(workspace.analysis, config, workspace.ranges,
                                                                   workspace.find_judged_feeds(config))
    for partial in partials if errors is None else ():
        reporter.send_progress(request.phase, partial.done_count, partial.total_count, start_time)
        if partial.is_final_result:
            errors = partial.value
            store.save_result(workspace, "samples", config, errors)
        yield Urgency.ACCURACY
    if errors is not None:
        reporter.send(ev.SampleErrorsMeasured(reporter.job, config, errors))


def run_single_sample_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                          request: rq.MeasureSingleSample) -> Steps[None]:
    """Measures a single sample, and sends its results as more groups are measured."""
    ensure_ranges(workspace, store, reporter, request.runs.values())
    position = workspace.analysis.samples.find_sample(request.sample)
    start_time = time.monotonic()
    for partial in measure_single_sample(workspace.analysis, request.runs, request.config, workspace.ranges,
                                         *position):
        reporter.send_progress(request.phase, partial.done_count, partial.total_count, start_time)
        if partial.value.is_complete or reporter.is_report_due("one sample"):
            reporter.send(ev.SingleSampleMeasured(reporter.job, request.config, partial.value))
        yield Urgency.FIRST_SHARES
