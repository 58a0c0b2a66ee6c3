"""What controllers declare: actions with handlers, reasons and words, and the events they ask for."""

from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from textual.widgets.option_list import Option

from tests.local import NullSession
from tests.networks import qdq
from tests.screen import answered, make_app, opened, page_text, press, screen_text, settle, status
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.tui import keys
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import ACTIONS
from trt_tui.tui.main_screen import EVENT_HANDLERS, MainScreen
from trt_tui.tui.screens.dialogs import ChoiceField, KeyHints, OverlayScreen, Picker, PickerItem
from trt_tui.tui.screens.pages import HelpPage
from trt_tui.tui.state.columns import build_row_cells
from trt_tui.tui.state.config_status import target_value_span
from trt_tui.tui.state.marks import BARRIER_MARK
from trt_tui.tui.table import Column
from trt_tui.tui.widgets.inputs import KeyedOptionList, ValueList
from trt_tui.tui.widgets.lines import Lines

pytestmark = pytest.mark.usefixtures("quick")


def subclasses(kind: type) -> list[type]:
    return [one for sub in kind.__subclasses__() for one in (sub, *subclasses(sub))]


async def test_every_action_has_a_handler_a_reason_and_words(tmp_path):
    app = make_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        main = app.main_screen
        before = {action.id: main.disabled_reason(action.id) for action in ACTIONS}
        await settle(pilot)
        after = {action.id: main.disabled_reason(action.id) for action in ACTIONS}
        refusals = {name.removeprefix("refuse_") for name in dir(main) if name.startswith("refuse_")}
        assert all(callable(getattr(main, f"do_{action.id}")) for action in ACTIONS)
        assert refusals <= {action.id for action in ACTIONS}
    assert before["toggle"] == "the network is not open yet" and before["help"] == "" and after["toggle"] == ""
    assert after["undo"] == "nothing to undo"
    for action in ACTIONS:
        assert isinstance(before[action.id], str) and isinstance(after[action.id], str)
        assert action.label and action.help and action.group, action.id


SHIFTED = set('~!@#$%^&*()_+{}|:"<>?')


CAPITALS = {"sessions"}
"""Actions with a capital letter alone: few need them often, and the list of commands has them without a key."""


def test_every_action_has_a_plain_key_first_and_no_key_two_actions():
    assert {action.id for action in ACTIONS} == set(keys.KEYS) and len(ACTIONS) == len(keys.KEYS)
    names = [name for one in keys.KEYS.values() for name in one]
    assert len(names) == len(set(names))
    assert not {"left_square_bracket", "[", "O", "A", "B", "C", "D"} & set(names)
    for action, (first, *_) in keys.KEYS.items():
        shown = keys.key_text(first)
        assert "+" not in first and first.isupper() == (action in CAPITALS) and not SHIFTED & {shown}, action


FILES = {
    "none": (None, {}, ""),
    "a key and keys": (
        '{"build": "f4", "help": "h,?", "left": "left"}',
        {"build": ("f4",), "help": ("h", "question_mark"), "left": ("left",)},
        "",
    ),
    "two swap": ('{"build": "g", "target": "b"}', {"build": ("g",), "target": ("b",)}, ""),
    "the key of another action": ('{"undo": "g"}', {"undo": ("g",), "target": ()}, ""),
    "a key of dialogs": ('{"stop": "n", "name": "b"}', {"stop": ("n",), "next_bad": (), "name": ("b",)}, ""),
    "actions of earlier versions": ('{"build": "f4", "mark": "f10", "pin": "p"}', {"build": ("f4",)}, "mark, pin"),
    "no key": ('{"quit": ""}', {}, ""),
    "a list of keys": ('{"help": ["h", "f1"]}', {}, "h,question_mark"),
    "no JSON": ('{"build": "f4",\n"undo" "f10"}', {}, "cannot be read"),
    "no object": ("[1]", {}, "cannot be read"),
    "nested deep": ("[" * 5000, {}, "cannot be read"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_changes_keys_or_is_warned_of_once(tmp_path, name):
    text, changed, warning = FILES[name]
    path = tmp_path / "keys.json"
    if text is not None:
        path.write_text(text)
    keymap, told = keys.read_key_file(path)
    keys.use_keymap(keymap)
    try:
        current = {action: keys.get_action_keys(action) for action in keys.DEFAULT_KEYS}
        assert {action: names for action, names in current.items() if names != keys.DEFAULT_KEYS[action]} == changed
        assert bool(told) == bool(warning) and warning in told and all(map(keys.shown_key, keys.DEFAULT_KEYS))
    finally:
        keys.use_keymap({})


async def test_a_list_without_room_for_a_letter_takes_its_keys(tmp_path):
    async with opened(tmp_path, (80, 24), held=(rq.OpenNetwork,)) as (app, _, pilot):
        await app.push_screen(HelpPage(str, {}))
        await pilot.pause()
        choices = app.screen.query_one(KeyedOptionList)
        choices.set_options([Option(str(number)) for number in range(40)])
        choices.highlighted = 0
        await pilot.resize_terminal(1, 24)
        await pilot.pause()
        assert not choices.scrollable_content_region
        choices.action_page_down()
        choices.action_page_up()
        assert choices.highlighted == 0


def test_dialogs_bind_what_the_table_has():
    dialogs = [one for one in subclasses(OverlayScreen) if one.__module__.startswith("trt_tui")]
    assert len(dialogs) > 10
    for kind in (*dialogs, KeyedOptionList, ChoiceField):
        bound = [
            one
            for base in kind.__mro__
            if base.__module__.startswith("trt_tui")
            for one in base.__dict__.get("BINDINGS", ())
        ]
        for one in bound:
            assert set(one.key.split(",")) <= set(keys.DEFAULT_KEYS[one.id]), (kind, one)


async def test_the_users_keys_are_bound_shown_and_named_in_words(tmp_path):
    keys.user_keys_path().parent.mkdir(parents=True)
    keys.user_keys_path().write_text(
        '{"toggle": "f4", "build": "f10", "undo": "g", "configs": "m", "name": "f11", '
        '"pane_detail": "f13", "biuld": "f5"}'
    )
    async with opened(tmp_path) as (app, main, pilot):
        assert "biuld" in app.session.log[0] and "biuld" in status(main)
        await press(pilot, "down", "up")
        assert "f4 raises" in status(main) and "f10 build" in main.query_one("#footer", Lines).text
        await answered(pilot, "f4")
        assert app.session.config.precision_moves
        await answered(pilot, "space", "b")
        assert app.session.config.precision_moves and app.session.get_run_results("config").exported_run is None
        await press(pilot, "f1", *"undo the")
        assert "g" in page_text(app.screen).splitlines()[1] and 'keys.json: "undo"' in str(
            app.screen.query_one(".hint").render()
        )
        await answered(pilot, "enter", "f10")
        assert not app.session.config.precision_moves and app.session.get_run_results("config").exported_run is not None
        await press(pilot, "f4", "g")
        assert not app.session.config.precision_moves and app.screen is main, "the key of the target undoes now"
        await answered(pilot, "m")
        configs = app.screen.query_one(ValueList)
        assert configs.selected_value == app.session.config == configs.values[1], "it opens at the current config"
        assert "f11 name" in str(app.screen.query_one(".hint").render())
        await press(pilot, "f11", *"best", "enter")
        assert app.session.config_names[app.session.config] == "best"
    keys.use_keymap({})


def test_all_parts_are_in_the_main_screen():
    assert {*Presenter.__subclasses__(), MainScreen} - {*MainScreen.__mro__} == set()


async def test_the_list_shows_changes_of_the_network_and_the_kernels_that_they_add(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        session, desk = app.session, main
        while desk.current_group is not None:
            await press(pilot, "up")
        assert desk.disabled_reason("free") == ""
        await press(pilot, "9")
        await settle(pilot)
        before = session.config
        event = session.results.get_values(ev.ZERO_COST_CHANGES)["", before]
        assert event.is_complete and all(change.is_for_network for change in event.changes)
        first = app.screen.items[1].value
        changes = tuple(replace(change, added_kernels=2 if change.config == first else -1) for change in event.changes)
        complete = ev.ValueMeasured(0, ev.ZERO_COST_CHANGES, ("", before), replace(event, changes=changes))
        session.apply_event(complete)
        for handle in EVENT_HANDLERS[ev.ValueMeasured]:
            handle(main, complete)
        session.apply_event(replace(complete, value=replace(event, is_complete=False)))
        assert not any(item.key for item in main._list_zero_cost_items()), "still moving"
        session.apply_event(complete)
        costs = [item.cells[-1] for item in app.screen.items[1 : len(changes) + 1]]
        assert costs == ["+2 kernels", *["none"] * (len(changes) - 1)]
        await press(pilot, "1")
        assert session.config == first
        await press(pilot, "z")
        assert session.config == before


async def test_a_table_to_choose_from_never_wraps(tmp_path):
    async with opened(tmp_path, size=(60, 15)) as (app, main, pilot):
        for keys, titles in (
            (("9",), ["change", "layers", "SQNR", "run time"]),
            (("7", "7"), ["method", "SQNR", "target"]),
        ):
            await answered(pilot, *keys)
            for size in ((60, 15), (200, 60), (60, 15)):
                await pilot.resize_terminal(*size)
                await settle(pilot)
                lines = screen_text(app).splitlines()
                header = next(line for line in lines if f" {titles[0]} " in line)
                assert all(title in header for title in titles)
                assert size[0] == 60 or all(column.title in header for column in app.screen.columns)
                for item in [item for item in app.screen.items if item.cells][:5]:
                    shown = [
                        cell
                        for cell, column in zip(item.cells, app.screen.columns, strict=True)
                        if column.title in titles[1:]
                    ]
                    assert any(all(cell in line for cell in shown) for line in lines), shown
            shown = len([item for item in app.screen.items if item.key])
            assert str(app.screen.query_one(KeyHints).render()).startswith(f"enter or 1-{min(9, shown)} selects")
            await press(pilot, "escape")
        columns = [Column("change"), Column("f1\x1b[31m", is_right_aligned=True)]
        app.push_screen(Picker("a list", [PickerItem("1", "", 0, cells=("one", "93.4"))], None, columns))
        await settle(pilot)
        assert not any("\x1b" in line for line in app.screen._fit_rows()) and "\x1b" not in screen_text(app)


async def test_what_is_free_is_measured_chosen_undone_and_taken_back(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        session, desk = app.session, main
        before, group = session.config, desk.current_group
        assert desk.disabled_reason("free") == ""
        await press(pilot, "9")
        assert [item.refusal for item in app.screen.items if item.text == "further values"] == ["are being measured"]
        remedies = session.results.get_values(ev.REMEDIES)[group.name, before]
        known = {
            remedy.config: target_value_span(session, remedy.accuracy)[0]
            for remedy in remedies
            if remedy.key == ev.ZERO_COST_KEY
        }
        assert (
            known and known.items() <= {item.value: item.cells[2] for item in app.screen.items if item.cells}.items()
        ), "values of the detail pane"
        await settle(pilot)
        shown = {item.cells[0] if item.cells else item.text: item for item in app.screen.items}
        assert not any(item.text == "further values" for item in app.screen.items)
        assert "bias correction" in shown and any(
            item.refusal for name, item in shown.items() if name.startswith("norm as operator,")
        )
        table = [line for line in screen_text(app).splitlines() if " none" in line]
        assert table and not any("…" in line for line in table), "no label is cut"
        (smooth,) = (item for item in app.screen.items if "SmoothQuant" in "".join(item.cells) and "this" in item.cells)
        assert "~" in smooth.cells[2] and smooth.cells[-1] == "none"
        event = session.results.get_values(ev.ZERO_COST_CHANGES)[group.name, before]
        values = {change.config: change.accuracy.judged_error for change in event.changes}
        errors = [values[item.value] for item in app.screen.items if item.value in values]
        assert len(errors) == len(values) and errors == sorted(errors), "the best comes first"
        assert {change.is_for_network for change in event.changes} == {False, True}
        await press(pilot, smooth.key)
        ((key, move),) = session.config.moves.items()
        assert (
            key == ("smooth", session.outline.zero_cost_support.find_channel_scaling_key(group.name, group.layers))
            and move.reason == "user"
        )
        await settle(pilot)
        assert session.results[session.config].accuracy is not None
        await press(pilot, "9")
        assert app.screen.items[0].cells[0] == "as it is" and app.screen.items[0].value == session.config
        assert app.screen.items[1].text == f"undo: SmoothQuant {move.strength:g} of {key[1]}"
        await press(pilot, "1")
        assert session.config == before
        await press(pilot, "z")
        assert session.config.moves
        await press(pilot, "z", "f")
        assert list(session.config.moves) == [("barrier", group.final_tensor)]
        assert build_row_cells(desk.layer_list.row_values, desk.current_row).mark == BARRIER_MARK
        await press(pilot, "f")
        assert session.config == before


async def test_a_step_up_and_a_step_down_lead_back_to_the_scales_of_the_file(tmp_path):
    onnx.save(qdq.residual(skip=False), tmp_path / "q.onnx")
    np.savez(tmp_path / "x.npz", image=np.random.default_rng(1).standard_normal((8, 32, 16, 16)).astype("f4"))
    app = TrtTuiApp(
        Options(str(tmp_path / "q.onnx"), str(tmp_path / "x.npz")),
        partial(NullSession, folder=tmp_path, sweeps=False),
        target="sqnr>=20",
        resume=False,
    )
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        session, presenter = app.session, app.main_screen
        while presenter.current_group is None or presenter.current_group.name != "/two/Conv":
            await press(pilot, "down")
        group, before = presenter.current_group, session.config
        assert before.precision_of(group) is Precision.FILE and not before.moves
        for steps in (1, 2):
            await answered(pilot, *["equals_sign"] * steps)
            assert session.config.precision_of(group) is (Precision.FP16, Precision.FP32)[steps - 1]
            await answered(pilot, *["minus"] * steps)
            assert session.config == before
        await answered(pilot, "minus")
        assert session.config == before and "lowest precision" in status(app.main_screen)
        session.set_precision([group], Precision.INT8)
        await answered(pilot, "minus")
        assert session.config.precision_of(group) is Precision.INT8, "the file precision is not lower"
