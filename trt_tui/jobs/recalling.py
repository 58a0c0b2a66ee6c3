"""What an earlier program measured of configs, read from disk; nothing runs."""

from trt_tui.core.measure.comparison import Verdict
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.exported_run import known_run
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.Recall) -> Steps[None]:
    """Sends what is known of each config; what was measured with other ranges or on other samples is not."""
    yield Urgency.STATS  # the first verdict goes before
    ensure_ranges(workspace, store, report, request.configs)
    for config in request.configs:
        verdict, engine = store.known(workspace, "verdict", config, Verdict), store.engine(workspace, config)
        executed = known_run(workspace, store, config)
        if verdict is not None or engine is not None or executed is not None:
            report.send(ev.Recalled(report.job, config, verdict, engine, executed))
        yield Urgency.STATS
