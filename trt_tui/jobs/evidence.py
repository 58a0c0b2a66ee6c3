"""The job that reads the results of engines that were built elsewhere."""

from trt_tui.core.importers.engine_evidence import read_engine_evidence
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_evidence_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                     request: rq.ReadEvidence) -> Steps[None]:
    """Reads the files and sends their results."""
    yield from ()
    reporter.send(ev.EvidenceRead(reporter.job, tuple(read_engine_evidence(path, workspace.network)
                                                      for path in request.paths)))
