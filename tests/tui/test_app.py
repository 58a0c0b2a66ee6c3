"""The application driven by its keys: trt_tui.tui.app, main_screen, controllers and screens."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import onnx
import pytest
from click.testing import CliRunner
from textual.events import MouseScrollDown
from textual.widgets import Input, Static

from tests import local
from tests.driven import LIMIT_S
from tests.local import CORE, H200, QKV
from tests.screen import (
    answered,
    current,
    hint_of,
    opened,
    page_text,
    press,
    refusal,
    screen_text,
    settle,
    status,
    taken_in,
    title,
    verdict,
)
from tests.texts import lacking
from trt_tui.cli.main import main
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.measure.causes import GROUP_DETAILS
from trt_tui.core.measure.results import RunKind
from trt_tui.core.measure.target import Outcome, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layer_tree import GroupRow, Scope
from trt_tui.core.precision import Precision
from trt_tui.formatting import decibels_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.jobs import Job
from trt_tui.tui import main_screen, spans
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.controllers import presenter
from trt_tui.tui.keys import ACTIONS
from trt_tui.tui.screens.dialogs import ConfirmDialog, ErrorDialog, Picker, Prompt
from trt_tui.tui.screens.pages import ConfigsPage, HelpPage, LogPage
from trt_tui.tui.spans import line_text
from trt_tui.tui.state import config_status
from trt_tui.tui.state.columns import LAYER_COLUMNS_BY_ID, NAME_COLUMN, SHARE_COLUMN, build_row_cells
from trt_tui.tui.state.rows import SMALL_SHARES_KEY, ColourMeasure, LayerListView
from trt_tui.tui.widgets.inputs import ConfigList, KeyedOptionList, ValueList
from trt_tui.tui.widgets.lines import Lines

pytestmark = pytest.mark.usefixtures("quick")
VIT = local.outline()


def text(main, name: str) -> str:
    return main.query_one(f"#{name}", Lines).text


def scope_at(main) -> int:
    return next(index for index, line in enumerate(main.layer_tree.rows) if isinstance(line.row, Scope))


def asked(app, kind: type) -> int:
    """How often a kind of request was sent."""
    return sum(isinstance(request, kind) for request in app.session.child.sent)


def worst_db(measured) -> str:
    return decibels_text(measured.worst_output[1].errors.sqnr_db, mark="")


@pytest.mark.parametrize("ends_by", ["x", "the list of jobs", "a killed process"])
async def test_a_network_whose_opening_was_stopped_is_opened_again(tmp_path, ends_by):
    async with opened(tmp_path, held=(rq.OpenNetwork,)) as (app, main, pilot):
        app.session.child.held.clear()
        if ends_by == "a killed process":
            app.session.child.release()
            app.session.child.scheduler.inbox.clear()
            app.post_session_event(ev.ChildProcessDied(1, -9, "killed"))
            await settle(pilot)
        else:
            await answered(pilot, *(["x"] if ends_by == "x" else ["f9", "a", "escape"]))
        assert app.screen is main and "not opened" in text(main, "header")
        assert not lacking(screen_text(app), "f5 opens", "q quits")
        await answered(pilot, "space")
        assert "not open yet" in status(main)
        await answered(pilot, "f5")
        assert main.layer_list.is_network_open and "FAIL" in verdict(main)[2]
        await answered(pilot, "f5")
        assert [type(request) for request in app.session.child.sent].count(rq.OpenNetwork) == 2


async def test_an_opening_that_is_stopped_near_its_end_is_repeated_with_its_config(tmp_path):
    """The network is open by then, but the config of the command line is not read."""
    config = tmp_path / "precision.json"
    async with opened(tmp_path) as (app, _, pilot):
        await answered(pilot, "space")
        app.session.export_config("json", config)
        await settle(pilot)
    async with opened(tmp_path, held=(rq.OpenNetwork,), config_path=str(config)) as (app, main, pilot):
        app.session.child.release()
        while app.session.outline is None:
            app.session.child.work(1)
            await taken_in(pilot)
        await answered(pilot, "x")
        assert "f5 opens" in status(main) and not app.session.config.precision_moves
        await answered(pilot, "f5")
        assert len(app.session.config.precision_moves) == 1 and "1 FP32" in verdict(main)[-1]


async def test_answers_the_first_questions_without_a_key(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        fp16, config = verdict(main)[1:]
        measured = app.session.get_run_results("config")
        assert worst_db(measured.accuracy) in config and "FAIL" in config and "PASS" in fp16
        assert config.startswith(" c0 = INT8")
        assert current(main) == max(measured.shares, key=lambda name: measured.shares[name].fraction) == QKV
        for keys, is_told in (((), True), (("space",), False), (("f5",), False)):
            app.post_session_event(ev.ChildProcessDied(99, -9, "killed"))
            await settle(pilot)
            assert app.screen is main and not lacking(status(main), "background process", "o shows")
            await answered(pilot, *keys)
            assert ("background process" in status(main)) is is_told, "another process answers"
        assert "1 FP32" in verdict(main)[-1], "the app lives on"
        app.post_session_event(ev.ChildProcessDied(99, -9, "killed"))
        await press(pilot, "o")
        assert isinstance(app.screen, ErrorDialog)


async def test_moves_opens_and_goes_to_rows_by_key_and_mouse(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        tree, group = main.layer_tree, main.current_group
        await press(pilot, "enter")
        assert tuple(line.node for line in tree.rows if line.node) == group.layers
        await press(pilot, "down")
        assert main.current_row.node == group.layers[0] and current(main) == group.name
        await press(pilot, "left", "left")
        assert not any(line.node for line in tree.rows)
        for down, up in (("down", "up"), ("j", "k")):
            start = tree.cursor_index
            await press(pilot, down, down)
            assert tree.cursor_index == start + 2
            await press(pilot, up)
            assert tree.cursor_index == start + 1
        for key, row in (
            ("end", len(tree.rows) - 1),
            ("pageup", len(tree.rows) - 1 - tree.page_size),
            ("home", 0),
            ("pagedown", tree.page_size),
        ):
            await press(pilot, key)
            assert tree.cursor_index == row
        loud, sent = main.layer_list.row_values.bad_group_names, len(app.session.child.sent)
        await press(pilot, "n")
        seen = [current(main)]
        for _ in loud:
            await press(pilot, "n")
            seen.append(current(main))
        assert len(loud) > 2 and set(seen) == loud and seen[-1] == seen[0]
        await press(pilot, "n")
        assert current(main) == seen[1]
        await settle(pilot)
        assert rq.MeasureTensorStats(current(main)) in app.session.child.sent[sent:]
        assert main.layer_list.tree_model.titles[current(main)] in title(main, "detail")
        await press(pilot, "w")
        assert current(main) == QKV, "without NaN, w goes to the row with the largest share"
        results, count = app.session.results[app.session.config], len(main.layer_list.tree_model.rows_by_group)
        for is_final in (True, False):
            results.has_all_shares = is_final
            main.draw_all()
            await press(pilot, "w")
            assert ("perhaps" in status(main)) is not is_final and f"{count} rows" not in status(main)
        results.has_all_shares = True
        await press(pilot, "y")
        assert app.clipboard == current(main)
        await press(pilot, "home")
        tree.move_cursor_to(scope_at(main))
        count = len(tree.rows)
        for key, shut in (("enter", True), ("right", False), ("h", True), ("l", False)):
            await press(pilot, key)
            assert (len(tree.rows) < count) is shut
        await pilot.click("#tree", offset=(10, 3))
        assert tree.cursor_index == 3 + tree.scroll_offset.y
        await pilot.click("#tree", offset=(10, scope_at(main) - tree.scroll_offset.y), times=2)
        await taken_in(pilot)
        assert len(tree.rows) != count


async def test_the_worst_row_is_that_of_the_config_whatever_run_is_displayed(tmp_path):
    async with opened(tmp_path, sweeps=True) as (app, main, pilot):
        listing, first = main.layer_list, main.current_group.name
        await answered(pilot, "space", "w")
        worst = main.current_group.name
        listing.measure, listing.run = ColourMeasure.SHARE, "int8"
        main.draw_all()
        assert listing.row_values.group_names_worst_first[0] == first != worst
        await answered(pilot, "slash", *"share>0", "enter")
        assert first not in listing.matches and worst in listing.matches, "a raised row has no share"
        await answered(pilot, "w")
        assert main.current_group.name == worst and "shares of c1" in status(main)


async def test_space_raises_and_returns_a_group_or_a_scope_while_the_last_order_holds(tmp_path):
    async with opened(tmp_path, sweeps=True) as (app, main, pilot):
        listing, tree, group = main.layer_list, main.layer_tree, main.current_group
        order, first = [line.key for line in tree.rows], app.session.config
        app.session.child.held.add(rq.MeasureWhatIf)
        await answered(pilot, "space")
        assert app.session.config.precision_of(group) is Precision.FP32
        assert not listing.row_values.group_values and [line.key for line in tree.rows] == order
        await answered(pilot, "w")
        assert "shares of c0" in status(main) and main.current_group is not group
        main.go_to_group(group.name)
        app.session.child.release()
        await settle(pilot)
        row = verdict(main)[-1]
        assert not lacking(row, "c1 ·", "1 FP32", worst_db(app.session.get_run_results("config").accuracy))
        assert listing.row_values.group_values[group.name] == 0
        assert tree.show_vertical_scrollbar and tree.row_width < tree.region.width
        drawn = [line_text(tree.get_line(index)).rstrip() for index in range(len(tree.rows))]
        assert max(map(len, drawn)) <= tree.row_width
        await press(pilot, "c", "j", "enter")
        assert app.screen is main and app.session.config == first, "another config is taken up"
        await press(pilot, "z", "space")
        assert app.session.config.precision_of(group) is Precision.INT8
        tree.move_cursor_to(scope_at(main))
        groups = main.list_chosen_groups()
        await press(pilot, "space")
        assert len(groups) > 1
        assert {app.session.config.precision_of(group) for group in groups} == {Precision.FP32}
        await press(pilot, "z")
        assert "layers" in status(main) and " is " not in status(main), "several layers are plural"


async def test_steps_chooses_undoes_redoes_and_tries_ranges(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        group = main.current_group
        for key, precision in (
            ("=", Precision.FP16),
            ("=", Precision.FP32),
            ("=", Precision.FP32),
            ("-", Precision.FP16),
            ("z", Precision.FP32),
            ("z", Precision.FP16),
            ("z", Precision.INT8),
            (".", Precision.FP16),
            ("z", Precision.INT8),
            ("z", Precision.INT8),
        ):
            before = app.session.config
            await press(pilot, key)
            assert app.session.config.precision_of(group) is precision
            if app.session.config == before:
                assert ("highest" if key == "=" else "nothing to undo") in status(main)
        tensor = group.activation_qdq_sites()[0].tensor
        await press(pilot, "r")
        choice = app.session.config.range_moves[tensor]
        assert "percentile" in status(main) and choice.method == "percentile"
        assert choice.amax == app.session.results.get_values(GROUP_DETAILS)[QKV].tensors[tensor].ranges["percentile"]
        await settle(pilot)
        assert "1 range" in verdict(main)[-1]
        main.go_to_group(CORE)
        await press(pilot, "r")
        assert "r range: ranges" in status(main)
        app.session.results.get_values(GROUP_DETAILS).clear()
        main.go_to_group(QKV)
        await press(pilot, "r")
        assert app.screen is main and app.session.config.range_moves[tensor] == choice
        await settle(pilot)
        assert "input range: entropy" in status(main) and app.session.config.range_moves[tensor].method == "entropy"
        await press(pilot, "p")
        assert isinstance(app.screen, Picker)
        await press(pilot, "b", "p", "escape")
        assert app.screen is main and app.session.config.precision_of(group) is Precision.BF16


async def test_the_measurement_of_a_closed_list_stops_and_begins_again_with_the_list(tmp_path):
    async with opened(tmp_path, held=(rq.MeasureZeroCostChanges, rq.PreviewEngine)) as (app, main, pilot):
        app.session.send_request(rq.PreviewEngine(PrecisionConfig.from_precision(Precision.FP16)))
        for _ in range(2):
            await answered(pilot, "9")
            assert isinstance(app.screen, Picker)
            assert app.session.pending_requests.has_request(rq.MeasureZeroCostChanges)
            await press(pilot, "escape")
        assert app.session.pending_requests.has_request(rq.MeasureZeroCostChanges)
        await answered(pilot, "9", "escape")
        assert app.screen is main and not app.session.pending_requests
        assert asked(app, rq.MeasureZeroCostChanges) == 3


async def test_the_details_of_a_row_are_measured_until_the_cursor_moves_on(tmp_path):
    async with opened(tmp_path, sweeps=True, held=(rq.MeasureRemedies,)) as (app, main, pilot):
        main.go_to_group(QKV)
        await settle(pilot)
        assert app.session.is_measuring_remedies(main.current_group) and "measuring …" in main.text_pane("detail").text
        group = main.current_group
        main.layer_tree.move_cursor_to(scope_at(main))
        await settle(pilot)
        assert not app.session.pending_requests.has_request(rq.MeasureRemedies, rq.MeasureTensorStats)
        main.go_to_group(QKV)
        await settle(pilot)
        assert app.session.is_measuring_remedies(group), "it begins again with the row"


async def test_rows_are_sorted_after_a_change_and_after_the_last_value_and_the_cursor_keeps_its_row(tmp_path):
    async with opened(tmp_path, sweeps=True) as (app, main, pilot):
        listing, tree, session = main.layer_list, main.layer_tree, app.session
        await press(pilot, "t", "down", "down", "down")
        chosen, order = current(main), [line.key for line in tree.rows]
        with mock.patch.object(presenter, "MIN_CURSOR_REST_S", LIMIT_S):
            await press(pilot, "space", "down")
            assert [line.key for line in tree.rows] == order, "keys arrive"
        await answered(pilot, "up")
        assert current(main) == chosen and tree.cursor_index == 0, "raised rows come first"
        rows = [line.row.group.name for line in tree.rows if isinstance(line.row, GroupRow)]
        assert rows[1:4] == list(listing.row_values.group_names_worst_first[:3])
        results = session.results.get_results_or_empty(session.config)
        best, order = min(results.shares, key=lambda name: results.shares[name].fraction), list(tree.rows)
        line = next(line for line in order if isinstance(line.row, GroupRow) and line.row.group.name == best)
        share = replace(results.shares[best], fraction=9.0)
        total = len(listing.tree_model.rows_by_group)
        with mock.patch.object(
            session.pending_requests, "values", lambda: [Job(0, rq.MeasureWhatIf(session.config), "")]
        ):
            for done in (total - 1, total):
                session.apply_event(ev.ErrorSharesMeasured(0, "config", session.config, {best: share}, done, total))
                main.draw_all()
                bar_fraction = build_row_cells(listing.row_values, line).cells["share"].bar_fraction
                assert (bar_fraction > 0) is (done == total), "no bar shrinks later"
                assert (tree.rows == order) is (done < total) and current(main) == chosen
        assert tree.rows[1].row.group.name == best
        await press(pilot, "v")
        assert isinstance(app.screen, Picker)
        await press(pilot, "i")
        assert listing.measure is ColourMeasure.ISOLATED and "isolated error" in title(main)
        await press(pilot, "v", "6")
        assert (listing.measure, listing.run) == (ColourMeasure.ACCUMULATED, "fp16")
        assert all(
            session.get_run_results("fp16").group_errors[name].accumulated for name in listing.row_values.group_values
        )
        main.sort_rows_by(LAYER_COLUMNS_BY_ID["operator"])
        await press(pilot, *["t"] * (2 if listing.view is LayerListView.TREE else 1))
        assert title(main).startswith("1 Blocks in FP16")
        await press(pilot, "s")
        assert main.app.screen is main and refusal(main, "sort")


@pytest.mark.parametrize(
    ("view", "words"), [(LayerListView.WORST, "more"), (LayerListView.TREE, "layers without weights")]
)
async def test_small_shares_stand_in_one_row(tmp_path, view, words):
    async with opened(tmp_path) as (app, main, pilot):
        session, tree, listing = app.session, main.layer_tree, main.layer_list
        main.show_view(view)
        shares = session.results.get_results_or_empty(session.config).shares
        groups = session.outline.groups
        assert listing.tree_model.groups_without_constants == {
            group.name for group in groups if group.operator in ("Softmax", "Concat")
        }
        quiet = [group.name for group in groups if group.operator == "LayerNormalization"]
        listing.tree_model.groups_without_constants = frozenset(quiet)
        main.go_to_group(quiet[0])
        await settle(pilot)
        shares.update((name, replace(shares[name], fraction=0.0001)) for name in quiet)
        main.draw_all()
        assert current(main) == quiet[0], "the cursor keeps its row"
        tail = next(index for index, line in enumerate(tree.rows) if line.key == SMALL_SHARES_KEY)
        shown = {line.row.group.name for line in tree.rows if isinstance(line.row, GroupRow)}
        tree.move_cursor_to(tail)
        await press(pilot, "enter")
        count = next(len(line.row.names) for line in tree.rows if line.key == SMALL_SHARES_KEY)
        names = {line.row.group.name for line in tree.rows if isinstance(line.row, GroupRow)}
        assert names.isdisjoint(quiet) and len(names) + count == len(shown) and shown >= names | set(quiet)
        assert any(
            f"▸ {count} {words}, " in line_text(tree.get_line(index)).rstrip() for index in range(len(tree.rows))
        )
        main.go_to_group(quiet[1])
        assert current(main) == quiet[1], "what is looked for is not hidden"
        values, (first, *_) = listing.row_values, quiet
        for change in (
            {"divergence_group": first},
            {"nonfinite_groups": {first}},
            {"warned_groups": {first}},
            {"group_values": {**values.group_values, first: 0.01}},
        ):
            assert first not in replace(values, **change).small_groups_without_constants, (
                "a row with a finding is not hidden"
            )


@pytest.mark.parametrize("view", [LayerListView.TREE, LayerListView.WORST])
async def test_the_order_of_each_column_follows_its_values(tmp_path, view):
    async with opened(tmp_path, (120, 40)) as (_, main, pilot):
        listing = main.layer_list
        main.set_view(view)
        await press(pilot, "s")
        picker = main.app.screen
        assert isinstance(picker, Picker)
        await press(pilot, "escape")
        items = [item for item in picker.items if item.value is not NAME_COLUMN and not item.refusal]
        assert SHARE_COLUMN in [item.value for item in items] and len(items) >= 4
        for item in items:
            column = item.value
            await press(pilot, "s", item.key)
            assert column.order_title in status(main)
            assert listing.sort_column is column
            assert (column.order_title in title(main)) is (column is not SHARE_COLUMN), column.id
            newest = listing.sort_values
            listing.sort_values = {name: -weight for name, weight in newest.items()}
            main.draw_all()
            assert listing.sort_column is column and listing.sort_values == newest, column.id


async def test_worst_first_agrees_with_the_shares_of_raised_rows(tmp_path):
    async with opened(tmp_path, (120, 40), sweeps=True) as (app, main, pilot):
        session, listing = app.session, main.layer_list
        worst = listing.row_values.group_names_worst_first
        groups = [session.outline.get_group(name) for name in (worst[0], worst[3], worst[5])]
        session.set_precision(groups[:2], Precision.FP16)
        session.set_precision(groups[2:], Precision.FP32)
        await settle(pilot)
        await press(pilot, "t")
        assert title(main).startswith("1 Worst") and "in c2" in title(main)
        rows = [line for line in main.layer_tree.rows if isinstance(line.row, GroupRow)]
        cells = [build_row_cells(listing.row_values, line).cells["share"] for line in rows]
        assert rows[0].row.group == groups[2] and [cell.replacement for cell in cells] == ["raised"] + [""] * (
            len(cells) - 1
        )
        shown = [line.row.group.name for line in rows[1:]]
        assert {group.name for group in groups[:2]} < set(shown)
        assert shown == sorted(shown, key=lambda name: -listing.row_values.group_values[name])


def model_rows(listing):
    """The rows of groups in the order of the list, whatever scopes they are in."""
    lines = listing.tree_model.list_worst_first_rows(set(), listing.sort_values)
    return [line for line in lines if isinstance(line.row, GroupRow)]


async def test_views(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "t")
        assert main.layer_list.view is LayerListView.WORST and title(main).startswith("1 Worst")
        shares = [
            main.layer_list.row_values.group_values[line.row.group.name]
            for line in main.layer_tree.rows
            if isinstance(line.row, GroupRow)
        ]
        assert shares == sorted(shares, reverse=True)
        await press(pilot, "t")
        assert main.layer_list.view is LayerListView.BLOCKS and main.is_heat_map_focused
        assert "attn/qkv" in line_text(main.heat_map.get_line(2)).rstrip()
        await press(pilot, "t")
        assert main.layer_list.view is LayerListView.TREE and main.layer_tree.has_focus
        name = current(main)
        await press(pilot, "t", "t")
        assert current(main) == name, "the cursor keeps its row in every view"
        await press(pilot, *["left"] * 3)
        groups = main.list_chosen_groups()
        assert len(groups) == 3
        await press(pilot, "space", "right", "right")
        assert {app.session.config.precision_of(group) for group in groups} == {Precision.FP32}
        (group,) = main.list_chosen_groups()
        await press(pilot, "space", "enter")
        assert app.session.config.precision_of(group) is Precision.INT8
        assert main.layer_tree.has_focus and current(main) == group.name


async def test_filters_live(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        await press(pilot, "slash", *"qkv")
        names = [line.row.group.name for line in main.layer_tree.rows if isinstance(line.row, GroupRow)]
        assert len(names) == 3 and all("qkv" in main.layer_list.tree_model.titles[name] for name in names)
        assert "3 of 32" in title(main)
        await press(pilot, "enter")
        assert main.layer_tree.has_focus and main.layer_list.matches is not None
        await press(pilot, "escape")
        assert main.layer_list.matches is None and main.query_one("#filter", Input).value == ""
        assert len(main.layer_tree.rows) > 6
        await press(pilot, "slash", *"share")
        assert "share>1%" in status(main)
        await press(pilot, *">1%")
        assert "share>1%" not in status(main), "that is typed now"
        await press(pilot, "enter")
        assert "share is compared" not in status(main) and main.layer_list.matches
        await press(pilot, "escape", "slash", *"prec:int")
        assert "prec: takes" in status(main)
        await press(pilot, "8")
        assert "prec: takes" not in status(main)
        await press(pilot, "escape")
        await press(pilot, "slash", *"zzz")
        assert main.layer_tree.rows == []
        await press(pilot, "escape")
        assert main.layer_tree.rows


async def test_panes_take_the_whole_screen_and_give_it_back(tmp_path):
    async with opened(tmp_path, size=(140, 60)) as (_, main, pilot):
        await answered(pilot, "2")
        assert main.zoomed_pane_name == "detail"
        await answered(pilot, "escape")
        for key, name in {"1": "#tree", "2": "#detail"}.items():
            await answered(pilot, *([key] if key != "2" and not main.query_one(name).has_focus else []))
            before = main.query_one(name).size
            await answered(pilot, key)
            after = main.query_one(name).size
            assert after.width >= before.width and after.height >= before.height and after != before, name
            assert after.width <= 120
            await answered(pilot, key)
            assert main.query_one(name).size == before and not main.zoomed_pane_name
        main.session.toggle_fp32(main.session.outline.groups[:1])
        main.session.undo()
        main.draw_all()
        await settle(pilot)
        await press(pilot, "4")
        assert isinstance(main.focused, ConfigList)
        await press(pilot, "4")
        assert isinstance(main.app.screen, ConfigsPage)
        await press(pilot, "escape", "t", "t")
        assert main.is_heat_map_focused
        await press(pilot, "t")
        assert main.layer_tree.has_focus


async def test_the_current_config_is_always_visible_among_the_configs(tmp_path):
    async with opened(tmp_path, (120, 40), held=(rq.MeasureWhatIf,)) as (app, main, pilot):
        session, configs = app.session, main.config_list

        def is_current_visible() -> bool:
            region = configs.region
            lines = screen_text(app).splitlines()[region.y : region.bottom]
            return any(f">{session.config_names[session.config]} " in f"{line[region.x :]} " for line in lines)

        for _ in range(10):
            await press(pilot, "space", "down")
            assert is_current_visible()
        assert configs.max_scroll_y >= 2
        for _ in range(10):
            await press(pilot, "z")
            assert is_current_visible()
        await press(pilot, "4", "up", "up")
        chosen = configs.selected_value
        assert chosen not in (None, session.config)
        await press(pilot, "f1", "escape")
        assert configs.has_focus and configs.selected_value == chosen, "a page leaves the cursor where it is"
        configs.action_first()
        main.draw_all()
        assert configs.selected_value == configs.values[0], "with the focus, the cursor is the user's"
        await press(pilot, "escape")
        await pilot.pause()
        assert is_current_visible() and configs.selected_value == session.config
        await pilot.resize_terminal(80, 24)
        await press(pilot, *["."] * 10)
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        await pilot.pause()
        assert is_current_visible()


async def test_one_build_at_a_time_that_counts_seconds_and_can_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(main_screen, "TICK_INTERVAL_S", 0.01)
    async with opened(tmp_path, builder=H200) as (app, main, pilot):
        await press(pilot, "i")
        assert app.screen is main and refusal(main, "engine")
        await answered(pilot, "b")
        before = verdict(main)[-1]
        app.session.child.held.add(rq.BuildEngine)
        for key in ("b", "b"):
            await press(pilot, key)
        assert "x stops" in status(main) and asked(app, rq.BuildEngine) == 2
        job = max(app.session.pending_requests)
        app.post_session_event(ev.JobProgress(job, "building", 0, 0))
        await settle(pilot)
        await press(pilot, "escape", "escape")
        app.session.pending_requests.get(job).begin_time -= 5
        await pilot.pause(0.05)
        assert re.search("build of c0, [5-9] s", status(main))
        assert app.session.child.stops == 0 and app.session.is_building, "escape never stops a job"
        await press(pilot, "o")
        long = "verbose: " + "a tactic " * 30
        app.post_session_event(ev.LogMessage(job, long))
        await settle(pilot)
        assert long.strip() in " ".join(page_text(app.screen).split())  # the reason of the outcome follows
        assert max(len(line) for line in page_text(app.screen).splitlines()) <= 78
        await answered(pilot, "escape", "x")
        assert app.session.child.stops == 1 and "build of c0" in status(main)
        assert app.session.pending_requests.jobs[-1].outcome == "stopped"
        assert verdict(main)[-1] == before and not app.session.is_building


async def test_a_failed_build_shows_the_builders_lines_and_scrolls(tmp_path):
    lines = [f"[E] tactic {index} failed: out of memory" for index in range(40)]
    async with opened(tmp_path, builder=replace(H200, fails="\n".join(lines))) as (app, main, pilot):
        await answered(pilot, "b", "o")
        dialog = app.screen
        assert isinstance(dialog, ErrorDialog) and dialog.texts[1].splitlines() == lines
        box = dialog.query_one(".box").region
        assert box.contains_region(dialog.query_one(".next").region) and dialog.query_one(".hint").region.y == 23
        await press(pilot, "j", "pagedown")
        assert dialog.query_one(".body").scroll_offset.y > 1
        await press(pilot, "y")
        assert lines[-1] in app.clipboard
        await answered(pilot, "o")
        assert isinstance(app.screen, LogPage)
        assert "MemUsageChange" in page_text(app.screen) and lines[-1] in page_text(app.screen)
        await press(pilot, "escape")
        assert app.screen is main and not app.session.is_building
        reasons = (f"a reason of {'many ' * 80} words", "the last reason")
        outcome = TargetOutcome(Outcome.UNCERTAIN_PASS, reasons)
        app.session.config_target_outcomes = lambda config: {RunKind.SIMULATED_CONFIG: outcome}
        await press(pilot, "o")
        assert f"c0 PASS?: {' '.join('; '.join(reasons).split())}" in " ".join(page_text(app.screen).split())


async def test_the_hint_leads_a_newcomer_to_an_export_that_passes(tmp_path):
    async with opened(tmp_path, network="tiny_resnet", target="sqnr>=40") as (app, main, pilot):
        for effect in ("finds", "shows"):
            assert f"next: a {effect}" in status(main)
            await answered(pilot, "a", "enter", "down")
        assert config_status.current_config_meets_target(app.session)
        assert "next: e exports" in status(main), "the search has executed the export"
        del app.session.results[app.session.config].runs[RunKind.EXPORTED_FILE]
        assert hint_of(main).actions == ("build",)
        await answered(pilot, "b")
        result = app.session.results[app.session.config].exported_run
        figure = f"{result.accuracy.worst_output[1].errors.sqnr_db:.1f}"
        assert f"{figure} dB: " in status(main)
        assert figure in verdict(main)[-1].partition("│")[2] and "ms" not in verdict(main)[0]
        await press(pilot, "down")
        assert "next: e exports" in status(main)
        await answered(pilot, "e", "enter")
        app.screen.query_one(Input).value = str(tmp_path / "good.json")
        await answered(pilot, "enter", "enter", "down")
        assert (tmp_path / "good.json").exists() and "c1 is exported" in status(main)
        await answered(pilot, "space")
        assert figure not in verdict(main)[-1], "another config"


async def test_stop_asks_only_for_old_jobs(tmp_path):
    async with opened(tmp_path, held=(rq.CompareRuns,)) as (app, main, pilot):
        await press(pilot, "x")
        assert app.session.child.stops == 1 and "stopped: comparison" in status(main)
        await settle(pilot)
        assert [job.outcome for job in app.session.pending_requests.jobs if job.title == "comparison"] == ["stopped"]
        await press(pilot, "f5")
        app.session.pending_requests.jobs[-1].sent_time -= 60
        await press(pilot, "x")
        assert isinstance(app.screen, ConfirmDialog) and app.screen.heading.startswith("Stop comparison?")
        await press(pilot, "n")
        assert app.session.child.stops == 1
        await press(pilot, "x", "y")
        assert app.session.child.stops == 2
        await answered(pilot, "f5")
        assert asked(app, rq.CompareRuns) == 3


async def test_the_list_of_jobs_stops_the_one_under_the_cursor_or_all(tmp_path):
    async with opened(tmp_path, builder=H200, held=(rq.BuildEngine, rq.CompareRangeMethods)) as (app, main, pilot):
        await press(pilot, "b", "7", "f9")
        jobs = app.screen.query_one(ValueList)
        assert [job.title for job in jobs.values[:2]] == ["build of c0", "calibration methods"]
        await answered(pilot, "down", "x")
        assert not lacking(status(main), "stopped: calibration methods", "build of c0")
        assert app.session.is_building and jobs.selected_value.outcome == "stopped"
        await answered(pilot, "a")
        assert not app.session.pending_requests and "stopped" in page_text(app.screen).splitlines()[0]
        await answered(pilot, "a", "escape")
        assert app.screen is main and refusal(main, "stop")


async def test_changes_the_target(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "g")
        for keys, kind in (("nonsense", Prompt), (("ctrl+u", *"sqnr>=8"), main_screen.MainScreen)):
            await press(pilot, *keys, "enter")
            assert isinstance(app.screen, kind)
        assert app.session.target.value == 8 and "PASS" in verdict(main)[2]
        assert "≥ 8 dB" in text(main, "header")
        await press(pilot, "g", "right", "5", "enter")
        assert app.session.target.value == 85, "the arrow keys keep the text"
        for output_count in (1, 2):  # of two outputs, none is known to hold the scores of classes
            app.session._opened_network = replace(
                app.session._opened_network, judged_outputs=app.session.judged_outputs * output_count
            )
            await press(pilot, "g")
            note = str(app.screen.query_one("#note", Static).content)
            *examples, _ = note.replace(" (dB, worst output)", "").split(" or ")
            assert len(app.session.read_targets("; ".join(examples))) == len(examples) > 3
            assert ("agreement>=0.99" in examples) is (output_count == 1)
            await press(pilot, "escape")
        await press(pilot, "a", *"sqnr>=9")
        assert app.screen.query_one("#tolerance", Input).value == "sqnr>=9"


async def test_a_bundle_asks_before_samples_go_in_and_a_row_is_written_as_a_piece(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    formats = list(EXPORT_FORMATS)
    async with opened(tmp_path) as (app, main, pilot):
        group = main.current_group
        assert group.main_layers
        await answered(pilot, "e", *["down"] * formats.index("subgraph"), "enter", "enter")
        assert app.session.child.sent[-1].group == group.name and "Wrote" in status(main)
        made = onnx.load(tmp_path / "vit.piece" / "typed.onnx")
        assert [one.name for one in made.graph.output] == [group.final_tensor]
        await press(pilot, "enter")
        app.session.child.held.add(rq.WriteBundle)
        for answer, samples in (("y", True), ("n", False), ("enter", False), ("escape", None)):
            await press(pilot, "e", "home", *["down"] * formats.index("bundle"), "enter", "enter")
            assert isinstance(app.screen, Picker)
            await press(pilot, "0")
            assert isinstance(app.screen, Picker)
            sent = len(app.session.child.sent)
            await press(pilot, answer)
            if samples is None:
                assert not any(isinstance(request, rq.WriteBundle) for request in app.session.child.sent[sent:])
                continue
            asked = app.session.child.sent[sent]
            assert (asked.release, asked.with_samples, Path(asked.path)) == ("10", samples, tmp_path / "vit.bundle")
            await answered(pilot, "escape")


async def test_log_help_theme_and_palette(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        assert app.theme == "trt-dark"
        app.session.log.append("a native message")
        await press(pilot, "o")
        assert "a native message" in page_text(app.screen)
        await press(pilot, "escape", "question_mark")
        assert isinstance(app.screen, HelpPage)
        words = " ".join(page_text(app.screen).split())
        assert all(action.help in words for action in ACTIONS)
        await press(pilot, "escape", "f2", *"undo the")
        assert page_text(app.screen).splitlines()[0] == "Change" and main.disabled_reason("undo") in page_text(
            app.screen
        )
        await press(pilot, "enter")
        assert app.screen is main and refusal(main, "undo")
        await press(pilot, "f2", *"fp32 for a layer", "enter")
        assert app.session.config.precision_moves
        await press(pilot, "f2", "down", "up", *"zzzzzz", "enter")
        assert (
            isinstance(app.screen, HelpPage) and "zzzzzz" in page_text(app.screen) and "?" not in page_text(app.screen)
        )
        await press(pilot, "escape", "f2", *"calibratoin", "enter")
        assert isinstance(app.screen, HelpPage) and "calibration" in page_text(app.screen)
        await press(pilot, "escape", "q")
        assert app.session.child.closed


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_clicks_on_keys_views_target_and_heads(tmp_path, size):
    async with opened(tmp_path, size=size) as (app, main, pilot):

        def place(name: str, word: str) -> tuple[int, int]:
            pane = main.query_one(f"#{name}")
            rows = [pane.render_line(y).text for y in range(pane.size.height)]
            y = next(y for y, row in enumerate(rows) if word in row)
            return pane.region.x + rows[y].rindex(word) + 1, pane.region.y + y

        async def click(name: str, word: str) -> None:
            await pilot.click(offset=place(name, word))
            await taken_in(pilot)

        await click("tree-rule", "worst")
        assert main.layer_list.view is LayerListView.WORST
        await click("tree-rule", "tree")
        assert main.layer_list.view is LayerListView.TREE
        before = main.layer_list.sort_values
        await click("tree-header", "share")
        assert main.layer_list.sort_values != before or "sort_values" in status(main)
        for word, column in (("op", "operator"), ("prec", "precision")):
            await click("tree-header", word)
            listing = main.layer_list
            rows = model_rows(listing)
            told = [build_row_cells(listing.row_values, row).cells[column] for row in rows]
            changes = [1 for one, two in itertools.pairwise(told) if one != two]
            assert told and len(changes) == len(set(told)) - 1, told
            assert f", by {listing.sort_column.order_title}" in title(main)
        await click("tree-header", "layer")
        assert "network order" in title(main) and [row.row.group.name for row in model_rows(listing)] == [
            row.group.name for row in listing.tree_model.rows_by_group.values()
        ]
        tree, detail = main.layer_tree, main.query_one("#detail", Lines)
        tree.scroll_to(y=0, animate=False)
        for pane in ("#verdict", "#footer"):
            await pilot._post_mouse_events([MouseScrollDown], pane)
        assert tree.scroll_offset.y == min(6, tree.max_scroll_y) > 0
        detail.lines = [*detail.lines, *[[("more", "")]] * 60]
        first = detail.render_line(0).text
        await pilot._post_mouse_events([MouseScrollDown], "#detail")
        assert detail.top_line == 3 and detail.render_line(0).text != first
        await press(pilot, "f1")
        await pilot._post_mouse_events([MouseScrollDown], ".heading")
        assert app.screen.query_one(KeyedOptionList).scroll_offset.y == 3
        await press(pilot, "escape")
        await click("footer", "FP32")
        assert app.session.config.precision_moves
        await click("footer", "undo")
        assert not app.session.config.precision_moves
        where = next(
            name
            for name in ("verdict", "header")
            if any("≥ 20 dB" in main.query_one(f"#{name}").render_line(y).text for y in range(2))
        )
        await click(where, "≥ 20 dB")
        assert isinstance(app.screen, Prompt)
        await press(pilot, "escape")
        await click("footer", "keys")
        assert isinstance(app.screen, HelpPage)


@pytest.mark.parametrize("flags", [[], ["--no-mouse"]])
def test_the_mouse_can_be_left_to_the_terminal(monkeypatch, flags):
    ran = []
    monkeypatch.setattr(TrtTuiApp, "run", lambda self, mouse: ran.append(mouse))
    monkeypatch.setattr("trt_tui.cli.app._require_terminal", lambda: None)
    assert CliRunner().invoke(main, ["demo", *flags], standalone_mode=False).exit_code == 0 and ran == [not flags]


async def test_resizes_live(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        for size in ((80, 24), (100, 30), (119, 24), (120, 40), (140, 40), (60, 20)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            assert main.has_class("-wide") is (size[0] >= 120) and main.layer_tree.size.height >= 3
            assert max(spans.line_width(main.layer_tree.get_line(i)) for i in range(3)) <= main.layer_tree.size.width
            assert main.layer_tree.size.height >= (26 if size == (120, 40) else 3) and main.layer_tree.size.width <= 120
        await pilot.resize_terminal(70, 24)
        await settle(pilot)
        assert len(verdict(main)) == 2 and main.query_one("#detail").size.height == 1
        for size in ((59, 24), (80, 14)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            assert [one.id for one in main.displayed_children] == ["small"]
            assert not lacking(text(main, "small"), "60×15", f"{size[0]}×{size[1]}")


async def test_a_network_without_blocks_has_none_and_a_filter_keeps_its_rows_until_new_shares_are_measured(tmp_path):
    async with opened(tmp_path, network="tiny_resnet", sweeps=True) as (app, main, pilot):
        await press(pilot, "t", "t")
        assert main.layer_list.view is LayerListView.TREE
        await answered(pilot, "slash", *"share>1%", "enter")
        shown = main.layer_list.matches
        assert shown
        main.session.child.held |= {rq.MeasureWhatIf, rq.CompareRuns}
        await press(pilot, "space")
        assert main.session.config.precision_moves and main.layer_list.matches == shown
