"""Keys that arrive faster than dialogs open: trt_tui.tui.app and screens."""

import asyncio
import itertools
import time

import pytest
import textual._time

from tests.fuzz import keys as fuzz
from tests.screen import key_event, opened, taken_in
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.tui.screens.dialogs import ErrorDialog, Prompt

pytestmark = pytest.mark.usefixtures("quick")


def burst(app, *keys: str) -> None:
    """Keys that the terminal's driver read at once."""
    for key in keys:
        app.post_message(key_event(key))


async def test_a_dialog_is_answered_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path, network="tiny_resnet") as (app, main, pilot):
        for after in (("enter", "enter"), ("escape", "escape", "escape"), ("down", "y", "y")):
            for key in ("g", "p", "e", "v", "c", "f2", "question_mark", "o"):
                burst(app, key, *after)
                await taken_in(pilot)
                for _ in range(4):
                    burst(app, "escape")
                    await taken_in(pilot)
                assert app.screen_stack == [main], (key, after)


async def test_an_answer_that_is_late_does_not_close_what_came_over_it(tmp_path):
    async with opened(tmp_path, network="tiny_resnet") as (app, main, pilot):
        await pilot.press("g")
        prompt = app.screen
        app.push_screen(ErrorDialog("a job failed"))
        prompt.dismiss("sqnr>=3")
        await pilot.pause()
        assert isinstance(app.screen, ErrorDialog) and isinstance(app.screen_stack[1], Prompt)
        assert app.session.target.text != "sqnr>=3"


async def test_keys_after_the_one_that_quits_go_nowhere(tmp_path):
    async with opened(tmp_path, network="tiny_resnet") as (app, _, _pilot):
        burst(app, "q", "space", "g", "t", "enter", "e")
        while not app._exit:
            await asyncio.sleep(0.01)
        app.post_session_event(ev.JobFailed(1, TrtTuiError("too late")))
    assert app._exception is None and app.return_code == 0


async def test_each_key_goes_where_the_one_before_it_led(tmp_path):
    """A key that opens, closes or moves the focus has done so before the next one of the same burst is read."""
    async with opened(tmp_path) as (app, main, pilot):
        for before in ((), ("p", "escape"), ("c", "j", "escape")):
            burst(app, *before, "slash", *"qkv", "enter", "space")
            await taken_in(pilot)
            assert app.screen is main and main.filter_input.value == "qkv" and main.layer_tree.has_focus, before
            burst(app, "z", "escape", "slash", *"norm", "escape")
            await taken_in(pilot)
            assert main.filter_input.value == "" and not main.has_class("-filtering"), before
        past, now, undone = app.session.history.snapshot()
        assert not past and len(undone) == 1 and undone[0].config != now.config, "space and z, each time"
        assert len(app.session.config_names) > 1
        burst(app, "g", "end", "backspace", "backspace", "5", "enter", "p", "b")
        await taken_in(pilot)
        assert app.session.target.value == 5 and app.session.config.precision_moves and app.screen is main


async def test_what_is_put_off_is_done_however_late(tmp_path, monkeypatch):
    async with opened(tmp_path) as (app, main, _):
        for one in (app, main):
            away, fired = itertools.count(1), asyncio.Event()
            monkeypatch.setattr(
                textual._time, "get_time", lambda away=away: time.monotonic() + 0.05 * min(next(away), 30)
            )
            one.set_timer(0.01, fired.set)
            await asyncio.wait_for(fired.wait(), 5)


@pytest.mark.parametrize("seed", [5])
async def test_random_keys_end_nothing(tmp_path, monkeypatch, seed):
    monkeypatch.chdir(tmp_path)
    result = fuzz.Result()
    await fuzz.episode(seed, fuzz.local_apps(tmp_path), result, keys=70)
    assert not result.failures and result.keys >= 70
