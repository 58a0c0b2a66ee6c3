"""The job that sends the stored results of configs from an earlier program. Nothing is executed."""

from trt_tui.core.measure.results import Accuracy, RunResult
from trt_tui.core.measure.runs import RunKind
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.exported_run import find_stored_exported_run
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_stored_results_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                           request: rq.LoadStoredResults) -> Steps[None]:
    """Sends the stored results of each config. Results with other ranges or on other samples are not sent."""
    yield Urgency.TENSOR_STATS  # the first accuracy comes before
    ensure_ranges(workspace, store, reporter, request.configs)
    for config in request.configs:
        accuracy = store.load_result(workspace, "verdict", config, Accuracy)
        stored = {RunKind.SIMULATED_CONFIG: RunResult(accuracy) if accuracy is not None else None,
                  RunKind.EXPORTED_FILE: find_stored_exported_run(workspace, store, config),
                  RunKind.BUILT_ENGINE: store.load_engine_result(workspace, config)}
        if runs := {kind: result for kind, result in stored.items() if result is not None}:
            reporter.send(ev.StoredResultsLoaded(reporter.job, config, runs))
        yield Urgency.TENSOR_STATS
