"""trt_tui.tui.state.hint: the keys of a hint do what it says, in the real app, from any cursor and any state."""

import pytest
from textual.widgets import Input

from tests import local
from tests.local import H200
from tests.screen import answered, current, opened, press, settle, status
from trt_tui.core.precision import Precision
from trt_tui.jobs import requests as rq
from trt_tui.tui.keys import key, keys
from trt_tui.tui.known import is_measuring
from trt_tui.tui.state.figures import Measure, figures_of
from trt_tui.tui.state.hint import Hint, next_step, worst_row
from trt_tui.tui.state.tree import TreeModel

pytestmark = pytest.mark.usefixtures("quick")


def hint_of(main) -> Hint:
    """The hint of the main screen, which stands on it."""
    main.desk.draw_status()
    group, desk = main.desk.current_group, main.desk
    here = group.name if group is not None and desk.rows.has_focus else ""
    hint = next_step(main.session, desk.listing.figures, here, desk.filter.has_focus)
    assert any(form in status(main) for form in hint.forms), (hint, status(main))
    for action in hint.actions:
        assert key(action) in hint.text
    return hint


async def follow(app, main, pilot) -> Hint:
    """Presses the keys that the hint names, and checks that what it says has happened."""
    hint = hint_of(main)
    await answered(pilot, *(keys(one)[0] for one in hint.actions))
    if hint.group:
        assert app.screen is main and current(main) == hint.group
        assert app.session.config.precision_of(app.session.outline.group(hint.group)) is Precision.FP32, hint
    return hint


WAYS = {"as it opens": (), "from the end": ("end",), "worst first": ("t", "s", "home", "down"),
        "in a cell of the blocks": ("t", "t", "right", "down"), "by INT8's errors": ("v", "1", "down"),
        "among the configs": ("4",), "the configs alone": ("4", "4"), "the detail alone": ("2", "end"),
        "a row's nodes": ("enter", "down"), "filtered": ("slash", "c", "enter"), "typing": ("slash", "c")}


@pytest.mark.parametrize("way", WAYS)
async def test_the_keys_of_a_hint_raise_the_row_that_it_names(tmp_path, way):
    repeats = "blocks" in way
    network, target = ("vit", "sqnr>=20") if repeats else ("small_resnet", "sqnr>=60")
    async with opened(tmp_path, size=(120, 40), network=network, target=target) as (app, main, pilot):
        await answered(pilot, *WAYS[way])
        if not hint_of(main).actions:
            await press(pilot, "enter")  # it says that enter leaves the filter
        first = await follow(app, main, pilot)
        await answered(pilot, *WAYS[way][:1] if WAYS[way][:1] in (("end",), ("4",)) else ())
        second = await follow(app, main, pilot)
        assert first.group and second.group and first.group != second.group


@pytest.mark.parametrize(("target", "builder", "changes", "leads_to"), [
    ("sqnr>=1", None, 0, rq.Build), ("sqnr>=1", H200, 0, rq.Build), ("sqnr>=200", None, -1, None),
    ("sqnr>=20", None, 1, None)])
async def test_the_keys_of_other_hints_ask_for_what_they_say(tmp_path, target, builder, changes, leads_to):
    async with opened(tmp_path, target=target, builder=builder) as (app, main, pilot):
        if changes:
            app.session.set_precision(app.session.outline.groups[:changes], Precision.FP32)
            await settle(pilot)
        hint = await follow(app, main, pilot)
        if leads_to is not None:
            assert hint.actions == ("build",) and any(isinstance(one, leads_to) for one in app.session.child.sent)
        elif hint.actions == ("find",):
            assert app.screen is not main


async def test_a_filter_that_hides_the_worst_row_gives_way_to_it(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        worst = worst_row(app.session, main.desk.listing.figures)
        await answered(pilot, "slash", *"head", "enter")
        assert worst not in main.desk.listing.matches
        await follow(app, main, pilot)
        assert main.desk.listing.matches is None and main.query_one("#filter", Input).value == ""


async def test_nothing_is_advised_while_values_are_partial(tmp_path):
    async with opened(tmp_path, held=(rq.WhatIf,)) as (app, main, pilot):
        await press(pilot, "space")
        assert is_measuring(app.session) and "still measuring" in status(main)
        assert not hint_of(main).actions
    async with opened(tmp_path, held=(rq.Compare,)) as (app, main, pilot):
        assert "still measuring" in status(main)


async def test_a_stopped_comparison_is_not_called_final(tmp_path):
    async with opened(tmp_path, held=(rq.Compare,)) as (app, main, pilot):
        app.session.asked.end(next(iter(app.session.asked.numbers(rq.Compare))), "stopped")
        assert hint_of(main).actions == ("compare",)


def test_every_hint_of_many_configs_names_a_row_that_can_be_raised(tmp_path, measured_before):
    session = local.measured(tmp_path)
    model = TreeModel(session.outline)
    for group in (None, *session.outline.groups[::12]):
        if group is not None:
            session.toggle([group])
            session.rest()
        hint = next_step(session, figures_of(session, model, Measure.OWNS, "config"))
        if hint.group:
            row = session.outline.group(hint.group)
            assert session.config.precision_of(row) is not Precision.FP32
            assert session.config.toggled([row]).precision_of(row) is Precision.FP32
            assert hint.group not in session.config.held


async def test_the_hint_follows_the_focus(tmp_path):
    async with opened(tmp_path, size=(120, 40), network="small_resnet", target="sqnr>=60") as (_, main, pilot):
        for keys, said in (((), "raises this one"), (("slash",), "goes to the rows"), (("escape",), "raises this one"),
                           (("tab",), "raises fc"), (("tab",), "raises this one"), (("2",), "raises fc"),
                           (("c", "escape"), "raises fc")):
            await press(pilot, *keys)
            assert said in status(main), keys


async def test_the_hint_is_drawn_anew_behind_a_dialog(tmp_path):
    async with opened(tmp_path, size=(120, 40), network="small_resnet", target="sqnr>=60") as (app, main, pilot):
        await press(pilot, "p")
        assert "raises this one" in status(main)
        app.session.toggle([main.desk.current_group])
        await settle(pilot)
        assert app.screen is not main and "raises this one" not in status(main) and "raises" in status(main)
