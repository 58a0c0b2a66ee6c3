"""What the application looks like: trt_tui.tui, compared with ``__snapshots__``, as text or, where colours matter, SVG.

``TRT_TUI_GOLDEN=write`` writes the pictures anew.
"""

import re
import time
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual import constants
from textual.widgets import Input

from tests import TESTS
from tests.local import H200, NO_GPU, QKV, Clock
from tests.screen import LARGE, SMALL, answered, make_app, screen_text, settle, taken_in
from tests.test_golden import WRITE
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import comparison, engine_build
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session import jobs, session
from trt_tui.tui.state import status

pytestmark = pytest.mark.usefixtures("quick")
SNAPSHOTS = TESTS / "__snapshots__"
SIZES = {"tiny": (60, 15), "small": SMALL, "large": LARGE, "huge": (200, 60)}
OTHERWISE = replace(H200, otherwise={QKV: Precision.FP16})
NOISY = replace(OTHERWISE, worse=0.8)
FAILING = replace(
    H200,
    fails="\n".join(
        (
            "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node "
            "{ForeignNode[node_matmul...node_matmul_1]}.)",
            *(f"[optimizer.cpp::computeCosts::{index}] tactic failed: out of memory" for index in range(20)),
        )
    ),
)
EVENTS = {
    "error-small": ev.JobFailed(
        0,
        TrtTuiError(
            "vit.onnx is not an ONNX file",
            "It begins with <html>.",
            "Download it again: a web page was saved in its place.",
        ),
    ),
    "building-small": ev.JobProgress(0, "building: Timing tactics", 34, 128, 61.0),
}

IN_COLOUR = {
    *(
        "compared-large light-large target_met-small worst_first-small blocks-small error-small "
        "search_result-large nan-large engine_fresh-large engine_stale-small engine_no_color-large "
        "building-small"
    ).split()
}

WALKS = {
    "pages": (
        {},
        {
            "compared-small": "",
            "colours-small": "v",
            "precision-small": "escape p",
            "target-small": "escape g",
            "configs-small": "escape c",
            "help-small": "escape question_mark",
            "rules-small": "escape 5",
            "find-small": "escape a down down",
            "explanation-small": "escape w f3",
            "values-small": "escape n 8",
            "samples-small": "2 enter",
            "classes-small": "3",
            "methods-small": "escape 7 7",
            "detail-small": "escape w 2",
            "worst_first-small": "2 t",
            "blocks-small": "t down right",
            "target_met-small": "t w space w space w space",
            "sessions-small": "S",
            "sessions-tiny": "",
            "search_result-small": "escape z z z a enter a",
            "stale-small": "escape w b space",
        },
    ),
    "wide pages": (
        {},
        {
            "compared-large": "",
            "compared-huge": "",
            "explanation-large": "w f3",
            "worst_first-huge": "escape t",
            "blocks-large": "t down right",
            "search_result-large": "t w a enter a",
            "found-large": "enter n",
            "stale-large": "z w b space",
        },
    ),
    "the light theme": ({}, {"light-large": ""}),
    "a failed opening": ({"held": (rq.OpenNetwork,)}, {"loading-small": "", "error-small": "", "error-large": ""}),
    "no values": ({"random": True, "held": (rq.CompareRuns,)}, {"empty-small": "", "empty-large": ""}),
    "NaN": ({"network": "overflowing", "metric": False}, {"nan-large": "v 6"}),
    "an engine": (
        {"builder": OTHERWISE},
        {"engine_fresh-small": "b", "engine_fresh-large": "", "log-small": "o", "engine_stale-small": "escape space"},
    ),
    "without colours": ({"builder": OTHERWISE}, {"engine_no_color-large": "b space"}),
    "an engine that loses": ({"builder": NOISY}, {"engine_page-small": "b i", "engine_page-large": "escape i"}),
    "an engine for elsewhere": ({"builder": NO_GPU}, {"engine_cannot_run-small": "b"}),
    "FP32 that loses": ({"builder": replace(H200, check=0.3, worse=0.8)}, {"fp32_engine_fails-small": "b j"}),
    "before a build": ({"builder": H200}, {"exports-small": "e", "find_with_builds-large": "escape a down down"}),
    "a build": ({"builder": H200, "held": (rq.BuildEngine,)}, {"building-small": "b", "jobs-small": "f9"}),
    "a failed build": ({"builder": FAILING}, {"build_failed-small": "b"}),
    "a search": ({"searched": 20}, {"searching-small": "a enter"}),
}
"""What is opened and how, and by the name of each picture the keys that lead to it from the one before."""


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Builds and runs take the same time on every machine."""
    monkeypatch.setattr(engine_build, "time", Clock(13.0))
    monkeypatch.setattr(comparison, "time", Clock(0.004))
    monkeypatch.setattr(jobs, "time", Clock(0.0))
    noon = SimpleNamespace(**vars(time) | {"localtime": lambda *_: None, "strftime": lambda *_: "12:00:00"})
    monkeypatch.setattr(session, "time", noon)
    monkeypatch.setattr(status, "time", SimpleNamespace(localtime=lambda *_: (2026, 1, 1), strftime=noon.strftime))


async def take_picture(pilot, name: str, keys: str) -> str:
    """Presses keys and returns what the terminal shows then."""
    app = pilot.app
    await pilot.resize_terminal(*SIZES[name.partition("-")[2]])
    for key in keys.split():
        await answered(pilot, key)
        for one in app.session.pending_requests.jobs:
            one.sent_time = 0.0
    if name in EVENTS:
        app.post_session_event(replace(EVENTS[name], job=max(app.session.pending_requests)))
    await settle(pilot)
    app.main_screen.draw_detail_pane()
    for one in app.screen.query(Input):
        one.cursor_blink = False  # a picture taken late would miss the cursor
    await taken_in(pilot)
    if name not in IN_COLOUR:
        return screen_text(app) + "\n"
    await pilot.wait_for_scheduled_animations()
    return re.sub(r"\bterminal-\d+-([\w-]+)", r"terminal-\1", app.export_screenshot(title=app.title, simplify=True))


@pytest.mark.parametrize("walk", WALKS)
async def test_pictures(tmp_path, monkeypatch, walk):
    options, pictures = WALKS[walk]
    shows_folder, wrong = "exports-small" in pictures, []
    monkeypatch.chdir("/" if shows_folder else tmp_path)  # no picture holds a test's folder
    if walk == "without colours":
        monkeypatch.setenv("NO_COLOR", "1")
    if walk == "the light theme":
        monkeypatch.setattr(constants, "DEFAULT_THEME", "trt-light")
    app = make_app(tmp_path if shows_folder else Path(), **options)
    async with app.run_test(size=SIZES[next(iter(pictures)).partition("-")[2]]) as pilot:
        await settle(pilot)
        for name, keys in pictures.items():
            path = SNAPSHOTS / f"{name}.{'svg' if name in IN_COLOUR else 'txt'}"
            shown = await take_picture(pilot, name, keys)
            if WRITE:
                path.write_text(shown)
            if (kept := path.read_text()) != shown:
                (tmp_path / path.name).write_text(shown)
                lines = unified_diff(kept.splitlines(), shown.splitlines(), path.name, "now", "", "", 0, "")
                wrong += [f"{name}, now {tmp_path / path.name}:", *list(lines)[:30]]
    assert not wrong, "\n".join(wrong)
