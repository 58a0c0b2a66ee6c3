"""Undo and redo: trt_tui.session.history, session, tui.state.config_list."""

import random

import pytest

from tests import local
from tests.screen import answered, opened, press, status
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.jobs import requests as rq
from trt_tui.session.history import UserState
from trt_tui.tui.keys import ACTIONS
from trt_tui.tui.state.config_list import change_text
from trt_tui.tui.state.status import clock_text

pytestmark = pytest.mark.usefixtures("quick")

CHANGES = {
    "toggle": ("space",),
    "higher": ("equals_sign",),
    "lower": ("equals_sign", "equals_sign", "minus"),
    "precision": ("slash", *"conv", "enter", "p", "0", "3"),
    "barrier": ("slash", *"conv", "enter", "home", "down", "f"),
    "rules": ("5", "right", "enter"),
    "range": ("r",),
    "type_range": ("6", *["backspace"] * 9, "2", "full_stop", "5", "enter"),
    "methods": ("7", "7", "3"),
    "target": ("g", "end", "backspace", "5", "enter"),
    "configs": ("space", "down", "space", "c", "end", "enter", "1"),
    "name": ("c", "c", "n", *"best", "enter", "escape", "1"),
}
"""The keys of each action that changes what is kept in a session: config, target, names and notes."""

UNDONE_ELSEWHERE = {"free", "find"}
"""Changes of configs that need long measurements or previews. They are undone in test_unused_qdq.py,
test_tui_controllers.py and test_tui_search.py."""

NO_CHANGES = {
    *(
        "up down left right open page_up page_down first last first_nan undo redo view colour sort copy "
        "pane_tree pane_detail pictures build engine compare stop jobs export log help explain quit "
        "sessions filter close next_bad"
    ).split()
}
"""Actions that look, measure or write, and leave what the user has decided as it is."""


def test_every_action_that_changes_a_session_is_undone_here():
    ids = {action.id for action in ACTIONS}
    assert {*CHANGES} & NO_CHANGES == set() and ids - NO_CHANGES - UNDONE_ELSEWHERE <= {*CHANGES}


async def test_each_change_is_undone_and_redone(tmp_path):
    held = (rq.MeasureWhatIf, rq.MeasureToggles, rq.MeasureRemedies)
    options = {"network": "tiny_resnet", "size": (120, 40), "target": "sqnr>=40", "held": held}
    async with opened(tmp_path, **options) as (app, main, pilot):
        session, filter_input = app.session, main.filter_input
        for action, keys in CHANGES.items():
            before, index = session.history.state, len(session.history.snapshot()[0])
            await answered(pilot, "w", *keys)
            assert app.screen is main, action
            after, count = session.history.state, len(session.history.snapshot()[0]) - index
            assert count > 0, f"{action} changes something"
            for _ in range(count):
                await press(pilot, "z")
            assert session.history.state == before, action
            assert bool(filter_input.value) is ("slash" in keys), "a filter is no change to undo"
            for _ in range(count):
                await press(pilot, "full_stop")
            assert session.history.state == after and "redone: " in status(main), action
            for _ in range(count):
                await press(pilot, "z")
            await press(pilot, "escape")
        assert not session.history.can_undo


def change_at_random(session, chance) -> None:
    """Makes one of the changes of a session."""
    groups = session.outline.groups
    group, config = chance.choice(groups), chance.choice(list(session.config_names))
    chance.choice(
        [
            lambda: session.toggle_fp32([group]),
            lambda: session.set_precision([group], Precision.FP16),
            lambda: session.step_precisions(groups[:3], False),
            lambda: session.set_config(config),
            lambda: session.set_target(f"sqnr>={chance.randint(5, 30)}"),
            lambda: session.rename_config(config, f"name{chance.randint(0, 999)}"),
        ]
    )()


@pytest.mark.parametrize("seed", range(4))
def test_n_changes_are_undone_by_n_undos_and_come_back_by_n_redos(tmp_path, measured_before, seed):
    session, chance = local.measured(tmp_path, "tiny_resnet"), random.Random(seed)
    session.request_preview = session.request_toggles = lambda *_: None  # nothing is to be measured here
    states, names = [session.history.state], []
    while len(states) < 25:
        names.append(dict(session.config_names))
        try:
            change_at_random(session, chance)
        except InputError:
            continue  # a name that is taken
        if session.history.state != states[-1]:
            states.append(session.history.state)
    count = len(states) - 1
    for state in reversed(states[:-1]):
        assert session.undo() and session.history.state == state
        assert len({*session.config_names.values()}) == len(session.config_names), "names stay unique"
    assert not session.undo() and session.history.state == states[0]
    for _ in range(count):
        assert session.redo()
    assert not session.redo() and session.history.state == states[-1]
    session.child.scheduler.inbox.clear()


def test_changes_in_plain_words(tmp_path, measured_before):
    session = local.measured(tmp_path, "tiny_resnet")
    config, groups = session.config, session.outline.groups
    start = session.history.state
    raised = config.with_group_precision(groups[:2], Precision.FP32)
    name = session.config_names[config]
    for state, text in (
        (UserState(raised, start.target_text), "2 layers: INT8 → FP32"),
        (UserState(config, "sqnr>=3"), f"target: {start.target_text} → sqnr>=3"),
        (UserState(config, start.target_text, {config: "best"}), f"{name} named best"),
        (start, ""),
    ):
        assert change_text(session, start, state, {}) == text
    back = UserState(PrecisionConfig.from_precision(Precision.FP32), "", {config: "best"})
    assert change_text(session, back, start, {}).count("→") == 3
    assert change_text(session, back, start, {}).endswith(", 1 more")


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, ""), (1e300, ""), (float("inf"), ""), (86400.0 * 366, "1971")])
def test_the_time_of_a_step_may_make_no_sense(tmp_path, seconds, shown):
    text = clock_text(seconds, 1.7e9)
    assert (text == "") == (shown == "")
