"""What the application looks like: trt_tui.tui, compared with pictures in ``__snapshots__``."""

from __future__ import annotations

import pytest
from textual.widgets import Input

from tests.test_tui import VIT, make_app, press, settle
from tests.tui_fake import H200, NO_GPU
from trt_tui.core.precision import Precision
from trt_tui.jobs import messages
from trt_tui.tui import main_screen
from trt_tui.tui.controllers import desk

SMALL, LARGE = (80, 24), (120, 40)
OTHERWISE = {"node_MatMul_12": Precision.FP16}


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """The same picture on every machine."""
    monkeypatch.setattr(main_screen, "UPDATE_S", 0.01)
    monkeypatch.setattr(desk, "REST_S", 0.03)
    monkeypatch.delenv("NO_COLOR", raising=False)


def keys(*pressed: str):
    async def run(pilot) -> None:
        await settle(pilot)
        for key in pressed:
            await press(pilot, key)
            await settle(pilot)
        pilot.app.session.changed_at.clear()
        pilot.app.main.desk.draw_detail()
        await pilot.pause(0.05)
        for one in pilot.app.screen.query(Input):
            one.cursor_blink = False  # a picture taken late would miss the cursor
        await pilot.pause()

    return run


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_compared(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path), terminal_size=size, run_before=keys())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_no_color(snap_compare, tmp_path, monkeypatch, size):
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make_app(tmp_path), terminal_size=size, run_before=keys())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_loading(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path, answers=()), terminal_size=size, run_before=keys())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_empty(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path, random=True, answers=("Open",)), terminal_size=size, run_before=keys())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_error(snap_compare, tmp_path, size):
    async def fail(pilot) -> None:
        await settle(pilot)
        pilot.app.deliver(messages.Failed(1, "vit.onnx is not an ONNX file", "It begins with <html>.",
                                          "Download it again: a web page was saved in its place."))
        await settle(pilot)

    assert snap_compare(make_app(tmp_path, answers=()), terminal_size=size, run_before=fail)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_stale(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path), terminal_size=size, run_before=keys("b", "space"))


def test_target_met(snap_compare, tmp_path):
    assert snap_compare(make_app(tmp_path), terminal_size=SMALL,
                        run_before=keys("space", "n", "space", "n", "space"))


def test_nan(snap_compare, tmp_path):
    app = make_app(tmp_path, nan=("node_MatMul_12",), metric=False)
    assert snap_compare(app, terminal_size=LARGE, run_before=keys("v", "6"))


def test_worst_first(snap_compare, tmp_path):
    assert snap_compare(make_app(tmp_path), terminal_size=SMALL, run_before=keys("t"))


def test_blocks(snap_compare, tmp_path):
    assert snap_compare(make_app(tmp_path), terminal_size=SMALL, run_before=keys("3", "down", "right"))


def test_detail(snap_compare, tmp_path):
    assert snap_compare(make_app(tmp_path), terminal_size=SMALL, run_before=keys("2"))


def test_light(snap_compare, tmp_path):
    assert snap_compare(make_app(tmp_path), terminal_size=LARGE, run_before=keys("f8"))


@pytest.mark.parametrize("key", ["question_mark", "c", "p", "v", "g"])
def test_dialogs(snap_compare, tmp_path, key):
    assert snap_compare(make_app(tmp_path), terminal_size=SMALL, run_before=keys(key))


# -- engines --------------------------------------------------------------------------------------------------------


def test_the_otherwise_group_is_one():
    assert set(OTHERWISE) <= {group.name for group in VIT.groups if group.quantizable}


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_engine_fresh(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path, builder=H200, otherwise=OTHERWISE), terminal_size=size,
                        run_before=keys("b"))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_engine_stale(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path, builder=H200, otherwise=OTHERWISE), terminal_size=size,
                        run_before=keys("b", "space"))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_engine_cannot_run(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path, builder=NO_GPU), terminal_size=size, run_before=keys("b"))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_fp32_engine_fails(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path, builder=H200, check_db=12.3, worse_db=5.2), terminal_size=size,
                        run_before=keys("b", "j"))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_engine_page(snap_compare, tmp_path, size):
    assert snap_compare(make_app(tmp_path, builder=H200, otherwise=OTHERWISE, worse_db=5.2), terminal_size=size,
                        run_before=keys("b", "i"))


def test_engine_preview(snap_compare, tmp_path):
    assert snap_compare(make_app(tmp_path, builder=H200), terminal_size=SMALL, run_before=keys("f6"))


def test_engine_no_color(snap_compare, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make_app(tmp_path, builder=H200, otherwise=OTHERWISE), terminal_size=LARGE,
                        run_before=keys("b", "space"))


UNANSWERED = ("Open", "Compare", "WhatIf", "TryWaysOut", "Stats")


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_building(snap_compare, tmp_path, size):
    async def run(pilot) -> None:
        await keys("b")(pilot)
        pilot.app.deliver(messages.Progress(max(pilot.app.session.asked), "building: Timing tactics", 34, 128, 61.0))
        await settle(pilot)

    assert snap_compare(make_app(tmp_path, builder=H200, answers=UNANSWERED), terminal_size=size, run_before=run)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_build_failed(snap_compare, tmp_path, size):
    lines = ["IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for "
             "node {ForeignNode[/blocks.0/attn/qkv/MatMul.../blocks.0/attn/Softmax]}.)",
             *(f"[optimizer.cpp::computeCosts::{index}] tactic failed: out of memory" for index in range(20))]

    async def run(pilot) -> None:
        await keys("b")(pilot)
        pilot.app.deliver(messages.Failed(
            max(pilot.app.session.asked),
            "TensorRT could not build the engine: it failed at /blocks.0/attn/qkv/MatMul (MatMul)", "\n".join(lines),
            "Free device memory, or build with a smaller batch."))
        await settle(pilot)

    assert snap_compare(make_app(tmp_path, builder=H200, answers=UNANSWERED), terminal_size=size, run_before=run)


def test_exports(snap_compare, tmp_path, monkeypatch):
    from tests.tui_fake import FakeSession
    from trt_tui.tui.screens import export

    monkeypatch.chdir("/")
    monkeypatch.setattr(FakeSession, "EXPORTS", tuple(export.FORMATS), raising=False)
    assert snap_compare(make_app(tmp_path, builder=H200), terminal_size=SMALL, run_before=keys("e"))
