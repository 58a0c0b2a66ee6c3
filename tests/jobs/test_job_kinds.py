"""What a request declares of its jobs, and the kind of its result, are all that the child process and the app need in
order to run a job, to show it and to keep what it measures."""

from dataclasses import dataclass
from typing import get_type_hints

import pytest

from tests.screen import LARGE, opened, press, settle, status
from trt_tui.core.measure.results import ResultKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import Urgency
from trt_tui.jobs.server import import_handler


@dataclass(frozen=True)
class CountGroups(rq.Request):
    job_kind = rq.JobKind(
        "tests.jobs.test_job_kinds.run_count_job", "count of {config}", Urgency.BUILD, phase="groups in {file}"
    )
    config: PrecisionConfig
    path: str


GROUP_COUNTS = ResultKind[PrecisionConfig, int]("group counts")


def run_count_job(workspace, store, reporter, request: CountGroups):
    groups = workspace.network.groups
    for done in range(len(groups)):
        reporter.send_progress(request.phase, done, len(groups))
        yield Urgency.BUILD
    reporter.send(ev.ValueMeasured(reporter.job, GROUP_COUNTS, request.config, len(groups)))


@pytest.mark.parametrize("request_type", rq.Request.__subclasses__(), ids=lambda kind: kind.__name__)
def test_a_handler_takes_the_request_that_names_it(request_type):
    assert get_type_hints(import_handler(request_type))["request"] is request_type


async def test_a_job_that_is_only_declared_runs_is_shown_and_is_stopped(tmp_path, quick):
    async with opened(tmp_path, LARGE) as (app, main, pilot):
        session = app.session
        group_count = len(session.outline.groups)
        request = CountGroups(session.config, "folder/counts.txt")
        session.send_request(request)
        session.child.work(steps=3)
        await pilot.pause(0.2)
        assert f"count of c0: groups in counts.txt 2/{group_count}" in status(main)
        await press(pilot, "x")
        await settle(pilot)
        assert "stopped: count of c0" in status(main) and session.pending_requests.jobs[-1].outcome == "stopped"
        assert session.results.find_value(GROUP_COUNTS, session.config) is None
        session.send_request(request)
        await settle(pilot)
        assert session.results.find_value(GROUP_COUNTS, session.config) == group_count
        assert session.pending_requests.jobs[-1].outcome == "done"
