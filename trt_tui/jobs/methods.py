"""Calibration methods beside each other: a config's figures with the ranges that each of them chooses."""

import time

from trt_tui.core.measure.results import Accuracy
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import measure_ranges
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_method_comparison_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                              request: rq.CompareRangeMethods) -> Steps[None]:
    """Calibrates by each method and judges the config with its ranges; sends the table as it grows.

    Seconds are those of calibrating alone; 0 where the ranges were known from before.
    """
    if workspace.options.calib_cache is not None:
        raise InputError("methods cannot be compared", "ranges are taken from a cache", "Leave out --calib-cache.")
    rows: list[ev.RangeMethodResult] = []
    for method in request.methods:
        start = time.perf_counter()
        calibration = measure_ranges(workspace, store, reporter, method)
        seconds = time.perf_counter() - start
        yield Urgency.ACCURACY
        accuracy, start_time = Accuracy({}), time.monotonic()
        for partial in workspace.analysis.measure_accuracy(request.config, calibration.range_table, workspace.feeds,
                                                           with_metric_interval=True):
            accuracy = partial.value
            reporter.send_progress(f"judging {method}", partial.done_count, partial.total_count, start_time)
            yield Urgency.ACCURACY
        rows.append(ev.RangeMethodResult(method, accuracy, seconds, calibration.samples))
        reporter.send(ev.RangeMethodsCompared(reporter.job, request.config, tuple(rows)))
