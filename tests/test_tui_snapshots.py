"""What the application looks like: trt_tui.tui, compared with pictures in ``__snapshots__``."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.widgets import Input

from tests.local import H200, NO_GPU, QKV, Clock
from tests.screen import LARGE, SMALL, answered, make_app, settle, taken_in
from trt_tui.core.precision import Precision
from trt_tui.jobs import engine_build, ranges
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session import event_reducer, jobs
from trt_tui.tui.state import job_list, session_list

pytestmark = pytest.mark.usefixtures("quick")
TINY, HUGE = (60, 15), (200, 60)
SIZES = {TINY: "tiny", SMALL: "small", LARGE: "large", HUGE: "huge"}
OTHERWISE = replace(H200, otherwise={QKV: Precision.FP16})
NOISY = replace(OTHERWISE, worse=0.8)
FAILING = replace(H200, fails="\n".join((
    "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node "
    "{ForeignNode[node_matmul...node_matmul_1]}.)",
    *(f"[optimizer.cpp::computeCosts::{index}] tactic failed: out of memory" for index in range(20)))))
WRONG = ev.JobFailed(1, "vit.onnx is not an ONNX file", "It begins with <html>.",
                     "Download it again: a web page was saved in its place.")
STEP = ev.JobProgress(0, "building: Timing tactics", 34, 128, 61.0)

PICTURES = {
    "compared": ({}, "", (SMALL, LARGE, HUGE)),
    "no_color": ({}, "", (SMALL, LARGE)),
    "loading": ({"held": (rq.OpenNetwork,)}, "", (SMALL,)),
    "empty": ({"random": True, "held": (rq.CompareRuns,)}, "", (SMALL, LARGE)),
    "error": ({"held": (rq.OpenNetwork,)}, "", (SMALL, LARGE)),
    "stale": ({}, "b space", (SMALL, LARGE)),
    "target_met": ({}, "space n space n space", (SMALL,)),
    "nan": ({"network": "overflowing", "metric": False}, "v 6", (LARGE,)),
    "worst_first": ({}, "t", (SMALL, HUGE)),
    "blocks": ({}, "3 down right", (SMALL, LARGE)),
    "detail": ({}, "2", (SMALL,)),
    "light": ({}, "f8", (SMALL, LARGE)),
    "help": ({}, "question_mark", (SMALL,)),
    "explanation": ({}, "w f3", (SMALL, LARGE)),
    "configs": ({}, "c", (SMALL,)),
    "precision": ({}, "p", (SMALL,)),
    "colours": ({}, "v", (SMALL,)),
    "target": ({}, "g", (SMALL,)),
    "exports": ({"builder": H200}, "e", (SMALL,)),
    "engine_fresh": ({"builder": OTHERWISE}, "b", (SMALL, LARGE)),
    "engine_stale": ({"builder": OTHERWISE}, "b space", (SMALL,)),
    "engine_cannot_run": ({"builder": NO_GPU}, "b", (SMALL,)),
    "fp32_engine_fails": ({"builder": replace(H200, check=0.3, worse=0.8)}, "b j", (SMALL,)),
    "values": ({}, "n 8", (SMALL,)),
    "samples": ({}, "8 2 enter", (SMALL,)),
    "methods": ({}, "7 7", (SMALL,)),
    "rules": ({}, "5", (SMALL,)),
    "engine_page": ({"builder": NOISY}, "b i", (SMALL, LARGE)),
    "engine_preview": ({"builder": H200}, "f6", (SMALL,)),
    "engine_no_color": ({"builder": OTHERWISE}, "b space", (LARGE,)),
    "building": ({"builder": H200, "held": (rq.BuildEngine,)}, "b", (SMALL,)),
    "build_failed": ({"builder": FAILING}, "b", (SMALL,)),
    "find": ({}, "a down down", (SMALL,)),
    "find_with_builds": ({"builder": H200}, "a down down", (LARGE,)),
    "searching": ({"searched": 20}, "a enter", (SMALL,)),
    "search_result": ({}, "a enter a", (SMALL, LARGE)),
    "found": ({}, "a enter a enter n", (LARGE,)),
    "classes": ({}, "8 3", (SMALL,)),
    "jobs": ({"builder": H200, "held": (rq.BuildEngine,)}, "b f9", (SMALL,)),
    "log": ({"builder": H200}, "b o", (SMALL,)),
    "sessions": ({}, "space S", (TINY, SMALL)),
}
"""By name: what is opened and how, the keys pressed, and the sizes of the terminal."""


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Builds and runs take the same time on every machine."""
    monkeypatch.setattr(engine_build, "time", Clock(13.0))
    monkeypatch.setattr(ranges, "time", Clock(0.004))
    monkeypatch.setattr(jobs, "time", Clock(0.0))
    noon = SimpleNamespace(localtime=lambda seconds: None, strftime=lambda form, when: "12:00:00")
    monkeypatch.setattr(event_reducer, "time", noon)
    monkeypatch.setattr(job_list, "time", noon)
    monkeypatch.setattr(session_list, "time", SimpleNamespace(localtime=lambda *_: (2026, 1, 1),
                                                              strftime=noon.strftime))


@pytest.mark.parametrize(("name", "size"), [
    pytest.param(name, size, id=f"{name}-{SIZES[size]}") for name, (_, _, sizes) in PICTURES.items() for size in sizes])
def test_picture(snap_compare, tmp_path, monkeypatch, name, size):
    options, keys, _ = PICTURES[name]
    shows_folder = name == "exports"
    monkeypatch.chdir("/" if shows_folder else tmp_path)  # no picture holds a test's folder
    folder = tmp_path if shows_folder else Path()
    if "no_color" in name:
        monkeypatch.setenv("NO_COLOR", "1")

    async def run(pilot) -> None:
        await settle(pilot)
        for key in keys.split():
            await answered(pilot, key)
            for one in pilot.app.session.pending_requests.jobs:
                one.sent_time = 0.0
        if name in ("error", "building"):
            pilot.app.post_session_event(WRONG if name ==
                                         "error" else replace(STEP, job=max(pilot.app.session.pending_requests)))
            await settle(pilot)
        pilot.app.session.group_change_times.clear()
        pilot.app.main_screen.presenter.draw_detail_pane()
        for one in pilot.app.screen.query(Input):
            one.cursor_blink = False  # a picture taken late would miss the cursor
        await taken_in(pilot)

    assert snap_compare(make_app(folder, **options), terminal_size=size, run_before=run)
