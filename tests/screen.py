"""The app on a session that is answered in the test's process, and what a test presses and reads."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from textual import events
from textual._compositor import Compositor
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from tests import local
from tests.driven import LIMIT_S
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.keys import shown_key
from trt_tui.tui.main_screen import MainScreen
from trt_tui.tui.screens.dialogs import OverlayScreen
from trt_tui.tui.screens.pages import ExplanationDialog
from trt_tui.tui.spans import line_text
from trt_tui.tui.state.status import Hint, next_step_hint
from trt_tui.tui.widgets.lines import Lines, TitleRule

SMALL, LARGE = (80, 24), (120, 40)
_DRAW = Compositor.render_update
_NAMED = {
    "slash": "/",
    "full_stop": ".",
    "comma": ",",
    "question_mark": "?",
    "equals_sign": "=",
    "minus": "-",
    "space": " ",
}


def make_app(
    folder: Path,
    network: str = "vit",
    target: str | None = "sqnr>=20",
    *,
    metric: bool = True,
    random: bool = False,
    **session: Any,
) -> TrtTuiApp:
    """An app on one of the networks of `tests.local`; ``session`` goes to its `NullSession`."""
    options = local.options(folder, network, metric, random)
    return TrtTuiApp(options, partial(local.NullSession, folder=folder, **session), target=target, resume=False)


@asynccontextmanager
async def opened(
    folder: Path, size: tuple[int, int] = SMALL, *, sweeps: bool = False, **options: Any
) -> AsyncIterator[tuple[TrtTuiApp, MainScreen, Pilot]]:
    """Runs an app until what is not held is answered."""
    app = make_app(folder, sweeps=sweeps, **options)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        yield app, app.main_screen, pilot


async def settle(pilot: Pilot) -> None:
    """Waits until what was asked is answered, and draws what changed since the last time."""
    app, desk, quiet = pilot.app, pilot.app.main_screen, 0
    end = asyncio.get_running_loop().time() + 3 * LIMIT_S
    while quiet < 2:
        assert asyncio.get_running_loop().time() < end, "the screen does not come to rest"
        app.session.child.work()
        await taken_in(pilot)
        calm = (
            app.session.child.sent
            and app.session.child.idle
            and app.main_screen._draw_timer is None
            and desk.is_cursor_resting
        )
        quiet = quiet + 1 if calm else 0
        if not calm:
            await asyncio.sleep(0.002)
    _DRAW(app.screen._compositor, screen_stack=app._background_screens)


async def taken_in(pilot: Pilot) -> None:
    """Waits until all messages so far are heeded and what they changed is drawn, or the app ends."""
    for _ in range(3):
        heeded = asyncio.Event()
        pilot.app.call_later(heeded.set)
        while not heeded.is_set() and not pilot.app._exit:
            if pilot.app._exception is not None:
                raise pilot.app._exception
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(heeded.wait(), 0.1)
        queue = pilot.app.type_ahead_queue
        while (
            (queue._waiting_keys or queue._current_task is not None)
            and not pilot.app._exit
            and pilot.app._exception is None
        ):
            await asyncio.sleep(0.001)
        if not pilot.app._exit:
            await pilot.pause(0)


def key_event(key: str) -> events.Key:
    """The event that the terminal's driver makes of a key."""
    if len(key) == 1:
        return events.Key(_character_to_key(key), key)
    return events.Key(key, _NAMED.get(key))


async def press(pilot: Pilot, *keys: str) -> None:
    """Presses keys, each once the one before is heeded."""
    for key in keys:
        pilot.app.post_message(key_event(key))
        await taken_in(pilot)


async def answered(pilot: Pilot, *keys: str) -> None:
    """Presses keys and waits for what each asks."""
    for key in keys:
        await press(pilot, key)
        await settle(pilot)


def current(main: MainScreen) -> str:
    """The name of the group under the cursor."""
    return main.current_group.name


def status(main: MainScreen) -> str:
    return main.query_one("#status", Lines).text


def refusal(main: MainScreen, action: str) -> str:
    """Why an action is not possible now, which the status line says; "" if it is possible."""
    reason = main.disabled_reason(action)
    assert reason in status(main)
    return reason


def hint_of(main: MainScreen) -> Hint:
    """The hint of the main screen, which stands on it."""
    main.draw_status_lines()
    group, desk = main.current_group, main
    here = group.name if group is not None and desk.shown_row_pane.has_focus else ""
    hint = next_step_hint(main.session, desk.layer_list.share_values, here, desk.filter_input.has_focus)
    assert any(form in status(main) for form in hint.forms), (hint, status(main))
    for action in hint.actions:
        assert shown_key(action) in hint.text
    return hint


def verdict(main: MainScreen) -> list[str]:
    """The rows of the summary table, without the reasons of outcomes."""
    lines = main.query_one("#verdict", Lines).text.splitlines()
    return [line for line in lines if not re.match(r" [^│]* (PASS|FAIL)\??: ", line)]


def title(main: MainScreen, rule: str = "tree") -> str:
    shown = main.query_one(f"#{rule}-rule", TitleRule)
    (shown_title, _), *right = shown.lines[0]
    return f"{shown_title} {line_text(right)}".strip()


def page_text(page: OverlayScreen) -> str:
    """The entries of the list of a page, or its lines below its heading, without its keys."""
    for choices in page.query(OptionList):
        prompts = (choices.get_option_at_index(index).prompt for index in range(choices.option_count))
        return "\n".join(str(prompt).rstrip() for prompt in prompts)
    headings = page.query(".heading").results(Static) if isinstance(page, ExplanationDialog) else ()
    return "\n".join([*(str(heading.content) for heading in headings), page.query(Lines).first().text])


def screen_text(app: TrtTuiApp) -> str:
    """The lines that the terminal shows, without colours."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())
