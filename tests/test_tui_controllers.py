"""What controllers declare: actions with handlers, reasons and words, and the events they ask for."""

from __future__ import annotations

import pytest

from tests.screen import make_app, opened, press, settle
from trt_tui.jobs import events as ev
from trt_tui.tui.controllers import ACTIONS, CONTROLLERS, DRAWN_ONLY
from trt_tui.tui.controllers.controller import Controller
from trt_tui.tui.state.figures import BARRED

pytestmark = pytest.mark.usefixtures("quick")


def events(kind: type = ev.Event) -> list[type]:
    return [one for sub in kind.__subclasses__() for one in (sub, *events(sub))]


async def test_every_action_has_a_handler_a_reason_and_words(tmp_path):
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        offers = app.main.desk.offers
        assert tuple(offer.action for offer in offers.values()) == ACTIONS
        before = {id: offer.reason() for id, offer in offers.items()}
        await settle(pilot)
        after = {id: offer.reason() for id, offer in offers.items()}
    assert before["toggle"] == "the network is not open yet" and before["help"] == "" and after["toggle"] == ""
    assert after["undo"] == "nothing to undo"
    for offer in offers.values():
        action = offer.action
        assert callable(offer.do) and isinstance(before[action.id], str) and isinstance(after[action.id], str)
        assert action.label and action.help and action.group, action.id


def test_every_action_has_a_plain_key_and_no_key_two_actions():
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys))
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    assert not {"left_square_bracket", "[", "O", "A", "B", "C", "D"} & set(keys)
    for action in ACTIONS:
        plain = [key for key in action.keys if "+" not in key and not key.isupper() and key != "question_mark"]
        assert plain, action.id


def test_every_event_is_asked_for_or_only_drawn(tmp_path):
    """An event that is new is given to a controller, or it is said that drawing the screen is enough."""
    heeded = {one for controller in make_app(tmp_path).main.controllers for one in controller.heeds()}
    assert heeded.isdisjoint(DRAWN_ONLY) and heeded | set(DRAWN_ONLY) == set(events())


def test_controllers_are_listed():
    assert set(Controller.__subclasses__()) == set(CONTROLLERS)


async def test_what_is_free_is_measured_chosen_undone_and_taken_back(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        session, desk = app.session, main.desk
        before, group = session.config, desk.current_group
        assert desk.offers["free"].reason() == ""
        await press(pilot, "9")
        shown = {item.text.split("  ")[0]: item for item in app.screen.items}
        assert {"SmoothQuant 0.5", "bias correction"} <= shown.keys() and shown["operator"].refused
        await press(pilot, "1")
        (key, move), = session.config.moves.items()
        assert key == ("smooth", session.outline.free.before(group.name, group.layers)) and move.reason == "user"
        await settle(pilot)
        assert session.results[session.config].verdict is not None
        await press(pilot, "9")
        assert app.screen.items[0].text == f"take back: SmoothQuant 0.5 of {key[1]}"
        await press(pilot, "1")
        assert session.config == before
        await press(pilot, "z")
        assert session.config.moves
        await press(pilot, "z", "f")
        assert list(session.config.moves) == [("barrier", group.tail)]
        assert desk.listing.figures.cells(desk.current_line).mark == BARRED
        await press(pilot, "f")
        assert session.config == before
