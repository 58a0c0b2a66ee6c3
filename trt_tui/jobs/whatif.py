"""The what-if job, which measures the simulated accuracy of one config."""

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.accuracy import add_metric_intervals, measure_accuracy
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.comparison import send_group_errors
from trt_tui.jobs.export_accuracy import measure_export_accuracy
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.shares import send_error_shares
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_what_if_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                    request: rq.MeasureWhatIf) -> Steps[None]:
    """Measures the simulated accuracy of a config, then its error shares and its errors at the groups if requested.

    The accuracy of the exported network follows if the export differs from the file. All but the accuracy of the config
    runs in the background.
    """
    config = request.config
    ensure_ranges(workspace, store, reporter, [config])
    for accuracy in measure_accuracy(workspace, store, reporter, config, "what-if"):
        final = accuracy.samples >= accuracy.total
        if final or reporter.is_report_due("what-if"):
            reporter.send(ev.AccuracyMeasured(reporter.job, "config", config, accuracy, final))
        yield Urgency.WHAT_IF
    yield from add_metric_intervals(workspace, store, reporter, {"config": config})
    if request.with_shares:
        yield Urgency.FIRST_SHARES
        yield from send_error_shares(workspace, store, reporter, "config", config)
        yield from send_group_errors(workspace, store, reporter, {"config": config}, Urgency.BACKGROUND)
    yield from measure_export_accuracy(workspace, store, reporter, {"config": config}, Urgency.BACKGROUND)
