"""The application driven by its keys: trt_tui.tui.app, main_screen, controllers and screens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from textual.widgets import Input

from tests import networks
from tests.tui_fake import H200, NO_GPU, FakeSession, outline_of
from trt_tui import words
from trt_tui.core.network.hierarchy import GroupRow, Scope
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.jobs import messages
from trt_tui.options import Options
from trt_tui.tui import main_screen, spans
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.controllers import ACTIONS, desk
from trt_tui.tui.screens.configs import ConfigsPage
from trt_tui.tui.screens.dialogs import ErrorDialog, Page, Picker, Prompt, Question
from trt_tui.tui.screens.export import FORMATS, ExportDialog
from trt_tui.tui.screens.help import HelpPage
from trt_tui.tui.screens.log import LogPage
from trt_tui.tui.screens.palette import Palette
from trt_tui.tui.state.figures import Measure
from trt_tui.tui.state.tree import View
from trt_tui.tui.widgets.choices import Choices, ConfigList
from trt_tui.tui.widgets.lines import Lines, Rule

VIT = outline_of(networks.vit(), "vit.onnx")
RESNET = outline_of(networks.small_resnet(), "resnet.onnx")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Timers that do not keep tests waiting."""
    monkeypatch.setattr(main_screen, "UPDATE_S", 0.01)
    monkeypatch.setattr(desk, "REST_S", 0.03)


def make_app(folder: Path, outline=VIT, target: str | None = "sqnr>=20", **fake: object) -> TrtTuiApp:
    options = Options("vit.onnx", data="samples.npz")
    return TrtTuiApp(options, partial(FakeSession, outline=outline, store=folder / "store", **fake), target=target,
                     resume=False)


@asynccontextmanager
async def opened(folder: Path, size=(80, 24), **options: object) -> AsyncIterator[tuple]:
    app = make_app(folder, **options)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        yield app, app.main, pilot


async def settle(pilot) -> None:
    """Waits until what was asked is answered and drawn."""
    main, quiet = pilot.app.main, 0
    for _ in range(200):
        await pilot.pause(0.02)
        quiet = quiet + 1 if main._update is None and main.desk.resting else 0
        if quiet == 3:
            return
    raise AssertionError("the screen does not come to rest")


async def press(pilot, *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause(0.02)


def current(main) -> str:
    """The name of the group under the cursor."""
    return main.desk.current_group.name


def status(main) -> str:
    return main.query_one("#status", Lines).text


def verdict(main) -> list[str]:
    return main.query_one("#verdict", Lines).text.splitlines()


def title(main, rule: str = "tree") -> str:
    return main.query_one(f"#{rule}-rule", Rule).text


# -- opening --------------------------------------------------------------------------------------------------------


async def test_paints_before_the_network_is_open(tmp_path):
    async with opened(tmp_path, answers=()) as (app, main, pilot):
        assert not main.desk.listing.is_open
        assert "opening" in main.query_one("#header", Lines).text
        assert [type(request) for request in app.session._client.sent] == [messages.Open]
        await press(pilot, "space")
        assert "not open yet" in status(main)


async def test_a_big_network_shows_its_rows_before_it_is_open(tmp_path):
    async with opened(tmp_path, answers=()) as (app, main, pilot):
        app.deliver(messages.Previewed(1, VIT))
        await settle(pilot)
        assert app.session.outline is None and main.desk.tree.rows
        assert "patch_embed" in main.desk.tree.text_of(0)


async def test_answers_the_first_questions_without_a_key(tmp_path):
    async with opened(tmp_path) as (app, main, _):
        fp16, int8, config = verdict(main)[2:]
        assert "~10.7" in int8 and "FAILS" in int8 and "passes" in fp16
        assert config.startswith(" c0 = INT8")
        worst = max(app.session.noise, key=app.session.noise.get)
        assert current(main) == worst
        assert "3 rows to FP32 meet the target" in status(main)
        assert "3 of 384 input channels set the range" in main.query_one("#detail", Lines).text
        assert "32 of 64 samples" in main.query_one("#header", Lines).text


async def test_a_verdict_on_few_samples_says_so(tmp_path):
    async with opened(tmp_path, partial=True) as (_, main, _pilot):
        assert "on 4/32" in verdict(main)[3]
        assert "FAILS" not in verdict(main)[3]


async def test_a_failed_opening_says_why_and_closes_with_escape(tmp_path):
    async with opened(tmp_path, answers=()) as (app, main, pilot):
        app.deliver(messages.Failed(1, "x.onnx is not ONNX", "bad magic", "Export it again."))
        await settle(pilot)
        assert isinstance(app.screen, ErrorDialog)
        await press(pilot, "escape")
        assert app.screen is main
        assert "x.onnx is not ONNX" in "".join(text for line in main.desk.tree._empty for text, _ in line)


async def test_a_dead_worker_is_reported_and_the_app_lives_on(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        app.deliver(messages.Died(99, -9, "killed"))
        await settle(pilot)
        assert isinstance(app.screen, ErrorDialog)
        await press(pilot, "escape", "space")
        await settle(pilot)
        assert "1 up" in verdict(main)[4]


async def test_random_inputs_are_a_lasting_warning(tmp_path):
    async with opened(tmp_path, random=True) as (_, main, pilot):
        await press(pilot, "down", "down")
        assert "random inputs" in main.query_one("#header", Lines).text
        assert "random inputs" in title(main, "job")


# -- moving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("down", "up"), [("down", "up"), ("j", "k")])
async def test_moves_by_rows(tmp_path, down, up):
    async with opened(tmp_path) as (_, main, pilot):
        start = main.desk.tree.cursor
        await press(pilot, down, down)
        assert main.desk.tree.cursor == start + 2
        await press(pilot, up)
        assert main.desk.tree.cursor == start + 1


async def test_moves_by_pages_and_to_the_ends(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        await press(pilot, "end")
        assert main.desk.tree.cursor == len(main.desk.tree.rows) - 1
        await press(pilot, "pageup")
        assert main.desk.tree.cursor == len(main.desk.tree.rows) - 1 - main.desk.tree.page
        await press(pilot, "home")
        assert main.desk.tree.cursor == 0
        await press(pilot, "pagedown")
        assert main.desk.tree.cursor == main.desk.tree.page


async def test_opens_and_closes_scopes_and_groups(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        await press(pilot, "home")
        index = next(i for i, line in enumerate(main.desk.tree.rows) if isinstance(line.row, Scope))
        main.desk.tree.move_to(index)
        count = len(main.desk.tree.rows)
        await press(pilot, "enter")
        assert len(main.desk.tree.rows) < count
        await press(pilot, "right")
        assert len(main.desk.tree.rows) == count
        await press(pilot, "h")
        assert len(main.desk.tree.rows) < count
        await press(pilot, "l")
        assert len(main.desk.tree.rows) == count


async def test_enter_on_a_group_lists_its_nodes(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        group = main.desk.current_group
        await press(pilot, "enter")
        below = [line.node for line in main.desk.tree.rows if line.node]
        assert tuple(below) == group.layers
        await press(pilot, "down")
        assert main.desk.current_line.node == group.layers[0]
        assert current(main) == group.name
        await press(pilot, "left", "left")
        assert not any(line.node for line in main.desk.tree.rows)


async def test_goes_to_bad_rows(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        loud = main.desk.listing.figures.loud
        first = current(main)
        seen = [first]
        for _ in range(len(loud)):
            await press(pilot, "n")
            seen.append(current(main))
        assert set(seen) == loud and seen[-1] == first
        await press(pilot, "comma")
        assert current(main) == seen[-2]


async def test_goes_to_the_first_nan(tmp_path):
    worst = tuple(group.name for group in VIT.groups if group.operator == "Softmax")[1:2]
    async with opened(tmp_path, nan=worst) as (_, main, pilot):
        await press(pilot, "end", "w")
        assert current(main) == worst[0]
        assert "NaN" in main.query_one("#verdict", Lines).text


async def test_without_nan_the_key_says_so(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        await press(pilot, "w")
        assert "no NaN or Inf" in status(main)


async def test_the_detail_follows_a_resting_cursor(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        sent = app.session._client.sent
        asked = len(sent)
        await press(pilot, "n")
        await settle(pilot)
        assert messages.Stats(current(main)) in sent[asked:]
        assert main.desk.listing.model.titles[current(main)] in title(main, "detail")


async def test_mouse_selects_and_scrolls(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        await pilot.click("#tree", offset=(10, 3))
        assert main.desk.tree.cursor == 3 + main.desk.tree.scroll_offset.y
        scope = next(i for i, line in enumerate(main.desk.tree.rows) if isinstance(line.row, Scope))
        count = len(main.desk.tree.rows)
        await pilot.click("#tree", offset=(10, scope - main.desk.tree.scroll_offset.y), times=2)
        await pilot.pause(0.05)
        assert len(main.desk.tree.rows) != count


# -- changing -------------------------------------------------------------------------------------------------------


async def test_space_raises_and_returns_a_group(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        group = main.desk.current_group
        await press(pilot, "space")
        await settle(pilot)
        assert app.session.config.precision_of(group) is Precision.FP32
        assert "c1 1 up" in verdict(main)[4] and "~14.1" in verdict(main)[4]
        assert main.desk.listing.figures.values[group.name] == 0
        await press(pilot, "space")
        assert app.session.config.precision_of(group) is Precision.INT8


async def test_space_on_a_scope_raises_all_of_it(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        index = next(i for i, line in enumerate(main.desk.tree.rows) if isinstance(line.row, Scope))
        main.desk.tree.move_to(index)
        groups = main.desk.chosen_groups()
        await press(pilot, "space")
        assert len(groups) > 1
        assert {app.session.config.precision_of(group) for group in groups} == {Precision.FP32}


async def test_steps_undo_and_redo(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        group = main.desk.current_group

        def precision() -> Precision:
            return app.session.config.precision_of(group)

        await press(pilot, "=")
        assert precision() is Precision.FP16
        await press(pilot, "=")
        assert precision() is Precision.FP32
        await press(pilot, "=")
        assert "highest" in status(main)
        await press(pilot, "-")
        assert precision() is Precision.FP16
        await press(pilot, "z", "z", "z")
        assert precision() is Precision.INT8
        await press(pilot, ".")
        assert precision() is Precision.FP16
        await press(pilot, "z", "z")
        assert "nothing to undo" in status(main)


async def test_chooses_a_precision(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        group = main.desk.current_group
        await press(pilot, "p")
        assert isinstance(app.screen, Picker)
        await press(pilot, "b")
        assert app.session.config.precision_of(group) is Precision.BF16
        await press(pilot, "p", "escape")
        assert app.screen is main and app.session.config.precision_of(group) is Precision.BF16


async def test_next_range(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        group = main.desk.current_group
        await press(pilot, "r")
        assert "percentile" in status(main)
        assert app.session.config.ranges[group.activations()[0].tensor].method == "percentile"
        await settle(pilot)
        assert "1 range" in verdict(main)[4]


async def test_a_range_where_there_is_none_says_why(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        main.desk.go_to(next(group.name for group in VIT.groups if not group.quantizable))
        await press(pilot, "r")
        assert "INT8 only" in status(main)


async def test_shares_being_measured_again_are_dimmed_and_keep_their_order(tmp_path):
    async with opened(tmp_path, answers=("Open", "Compare", "WhatIf")) as (app, main, pilot):
        order = [line.key for line in main.desk.tree.rows]
        app.session.answers.discard("WhatIf")
        await press(pilot, "space")
        await settle(pilot)
        assert main.desk.listing.figures.stale == frozenset(main.desk.listing.figures.values)
        assert [line.key for line in main.desk.tree.rows] == order
        assert "…" in verdict(main)[4]


# -- looking --------------------------------------------------------------------------------------------------------


async def test_views(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        await press(pilot, "t")
        assert main.desk.listing.view is View.WORST and title(main).startswith("1 Worst first")
        shares = [main.desk.listing.figures.values[line.row.group.name] for line in main.desk.tree.rows
                   if isinstance(line.row, GroupRow)]
        assert shares == sorted(shares, reverse=True)
        await press(pilot, "t")
        assert main.desk.listing.view is View.BLOCKS and main.desk.in_blocks
        assert "attn/qkv" in main.desk.block_map.text_of(2)
        await press(pilot, "t")
        assert main.desk.listing.view is View.TREE and main.desk.tree.has_focus


async def test_blocks_change_a_cell_or_a_role(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "3", "down")
        assert len(main.desk.chosen_groups()) == 3
        await press(pilot, "space")
        assert all(app.session.config.precision_of(g) is Precision.FP32 for g in main.desk.chosen_groups())
        await press(pilot, "right", "right")
        (group,) = main.desk.chosen_groups()
        await press(pilot, "space")
        assert app.session.config.precision_of(group) is Precision.INT8
        await press(pilot, "enter")
        assert main.desk.tree.has_focus and current(main) == group.name


async def test_blocks_of_a_network_that_does_not_repeat(tmp_path):
    async with opened(tmp_path, outline=RESNET) as (_, main, pilot):
        await press(pilot, "3")
        assert "does not repeat" in status(main)
        await press(pilot, "t", "t")
        assert main.desk.listing.view is View.TREE


async def test_colours_by_other_errors_and_runs(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "v")
        assert isinstance(app.screen, Picker)
        await press(pilot, "i")
        assert main.desk.listing.measure is Measure.ISOLATED
        assert "isolated error in config" in title(main)
        await press(pilot, "v", "6")
        assert (main.desk.listing.measure, main.desk.listing.run) == (Measure.ACCUMULATED, "fp16")
        assert all(app.session.measured("fp16").groups[n].accumulated for n in main.desk.listing.figures.values)


async def test_sorts_on_demand(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        worst = [line.key for line in main.desk.tree.rows]
        await press(pilot, "s")
        assert "network order" in status(main)
        network = [line.key for line in main.desk.tree.rows]
        assert network != worst
        await press(pilot, "s")
        assert [line.key for line in main.desk.tree.rows] == worst


async def test_filters_live(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        await press(pilot, "slash", *"qkv")
        names = [line.row.group.name for line in main.desk.tree.rows if isinstance(line.row, GroupRow)]
        assert len(names) == 3 and all("qkv" in main.desk.listing.model.titles[name] for name in names)
        assert "3 of 32 match" in title(main)
        await press(pilot, "enter")
        assert main.desk.tree.has_focus and main.desk.listing.matches is not None
        await press(pilot, "escape")
        assert main.desk.listing.matches is None and main.query_one("#filter", Input).value == ""
        assert len(main.desk.tree.rows) > 6


async def test_a_filter_that_matches_nothing(tmp_path):
    async with opened(tmp_path) as (_, main, pilot):
        await press(pilot, "slash", *"zzz")
        assert main.desk.tree.rows == []
        await press(pilot, "escape")
        assert main.desk.tree.rows


async def test_copies_the_full_name(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        name = current(main)
        await press(pilot, "y")
        assert app.clipboard == name


async def test_panes(tmp_path):
    async with opened(tmp_path, size=(140, 44)) as (_, main, pilot):
        await press(pilot, "4")
        assert isinstance(main.focused, ConfigList)
        await press(pilot, "3")
        assert main.desk.in_blocks
        await press(pilot, "1")
        assert main.desk.tree.has_focus
        await press(pilot, "2")
        assert main.has_class("-large-detail")
        await press(pilot, "escape")
        assert not main.has_class("-large-detail")


async def test_large_detail_shows_the_histogram(tmp_path):
    async with opened(tmp_path, size=(80, 30)) as (_, main, pilot):
        assert "log counts" not in main.query_one("#detail", Lines).text
        await press(pilot, "2")
        await settle(pilot)
        assert "log counts" in main.query_one("#detail", Lines).text


# -- work -----------------------------------------------------------------------------------------------------------


async def test_builds_and_marks_the_figures_stale_after_a_change(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "b")
        await settle(pilot)
        assert "4.21" in verdict(main)[4] and "23.0" in verdict(main)[4]
        assert "computed in FP32" in status(main)
        await press(pilot, "space")
        await settle(pilot)
        assert "is c0, 1 edit behind" in verdict(main)[4]
        assert verdict(main)[4].startswith(" c1* 1 up")


async def test_leads_from_the_verdict_to_the_export(tmp_path):
    async with opened(tmp_path, target="sqnr>=19.5") as (app, main, pilot):
        for _ in range(3):
            await press(pilot, "n") if app.session.config.groups else None
            await press(pilot, "space")
            await settle(pilot)
        assert "passes" in verdict(main)[4]
        assert "b builds c3 and confirms" in status(main)
        assert main.desk.listing.figures.calm
        await press(pilot, "b")
        await settle(pilot)
        await press(pilot, "escape")
        assert "e exports precision.json" in status(main)


async def test_builds_an_engine_and_tells_what_it_made(tmp_path):
    async with opened(tmp_path, builder=H200, otherwise={VIT.groups[0].name: Precision.FP16}) as (app, main, pilot):
        assert not main.has_class("-checked")
        await press(pilot, "b")
        await settle(pilot)
        result = app.session.results[app.session.config].engine
        assert "built in 26 s with a timing cache" in status(main)
        assert main.has_class("-checked") and "graph is sound" in verdict(main)[2]
        assert main.query_one("#verdict").size.height == 6
        assert words.number(result.latency_ms[0]) in verdict(main)[5]
        rows = [main.desk.tree.text_of(index) for index in range(len(main.desk.tree.rows))]
        assert any("FP16≠" in row for row in rows) and any("fused" in row for row in rows)
        assert main.query_one("#tree-header", Lines).text.endswith("ms")
        await press(pilot, "escape")
        assert main.desk.status.message is None and main.desk.status.last_word == "✓ built c0"


async def test_the_titles_stand_over_their_columns(tmp_path):
    async with opened(tmp_path, builder=H200) as (_, main, pilot):
        await press(pilot, "b", "t")
        await settle(pilot)
        header = main.query_one("#tree-header", Lines).text
        row = main.desk.tree.text_of(0)
        assert row[header.index("engine"):].startswith("INT8") and row[header.index("asked"):].startswith("INT8")
        assert len(row) == len(header)


async def test_a_gap_leads_to_what_to_check(tmp_path):
    async with opened(tmp_path, builder=H200, worse_db=5.2) as (app, main, pilot):
        await press(pilot, "i")
        assert app.screen is main and "nothing was built yet" in status(main)
        await press(pilot, "b")
        await settle(pilot)
        assert "5.2 dB worse than simulated: i shows what to check" in status(main)
        await press(pilot, "i")
        assert isinstance(app.screen, Page)
        assert "What to check: it is 5.2 dB worse than simulated" in app.screen.text
        await press(pilot, "escape")
        assert app.screen is main and "i shows what to check" in status(main)


async def test_a_quick_preview(tmp_path):
    async with opened(tmp_path, builder=H200) as (app, main, pilot):
        await press(pilot, "f6")
        await settle(pilot)
        assert messages.Build(app.session.config, True) in app.session._client.sent
        assert "preview" in verdict(main)[5] and "preview built in 5.1 s" in status(main)


async def test_onnx_runtime_has_no_preview(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "f6")
        assert "ONNX Runtime builds in a moment" in status(main)
        assert not any(isinstance(request, messages.Build) for request in app.session._client.sent)


async def test_an_engine_that_cannot_run_here(tmp_path):
    async with opened(tmp_path, builder=NO_GPU) as (_, main, pilot):
        assert "TensorRT-RTX 1.7, builds only" in main.query_one("#header", Lines).text
        await press(pilot, "b")
        await settle(pilot)
        assert "built, cannot run here" in verdict(main)[4] and "cannot run here · 23.0 MB" in status(main)


async def test_one_build_at_a_time(tmp_path):
    async with opened(tmp_path, builder=H200, answers=("Open", "Compare")) as (app, main, pilot):
        await press(pilot, "b", "b")
        assert "a build is going on: x stops it" in status(main)
        await press(pilot, "f6")
        assert "a build is going on: x stops it" in status(main)
        assert sum(isinstance(request, messages.Build) for request in app.session._client.sent) == 1


async def test_a_build_of_unknown_length_counts_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(main_screen, "TICK_S", 0.02)
    async with opened(tmp_path, builder=H200, answers=("Open", "Compare")) as (app, main, pilot):
        await press(pilot, "b")
        app.deliver(messages.Progress(max(app.session.asked), "building", 0, 0))
        await settle(pilot)
        main.desk.status.since -= 34
        await pilot.pause(0.1)
        assert "building, 34 s" in status(main) and "x stops the build" in status(main)
        app.deliver(messages.Progress(max(app.session.asked), "building: Timing tactics", 3, 98))
        await settle(pilot)
        assert "building: Timing tactics 3/98" in status(main)


async def test_a_stopped_build_leaves_the_last_results(tmp_path):
    async with opened(tmp_path, builder=H200) as (app, main, pilot):
        await press(pilot, "b")
        await settle(pilot)
        before = verdict(main)[5]
        app.session.answers.discard("Build")
        await press(pilot, "b", "x")
        assert app.session._client.stopped == 1
        app.deliver(messages.Cancelled(max(app.session.asked)))
        await settle(pilot)
        assert "the last results stay" in main.desk.status.last_word
        assert verdict(main)[5] == before and not app.session.building


async def test_a_failed_build_shows_the_builders_lines_and_scrolls(tmp_path):
    lines = [f"[E] tactic {index} failed: out of memory" for index in range(40)]
    async with opened(tmp_path, builder=H200, answers=("Open", "Compare", "WhatIf")) as (app, main, pilot):
        await press(pilot, "b")
        app.deliver(messages.Note(max(app.session.asked), "error: the last thing it said"))
        app.deliver(messages.Failed(max(app.session.asked), "TensorRT could not build the engine", "\n".join(lines),
                                    "Free device memory."))
        await settle(pilot)
        dialog = app.screen
        assert isinstance(dialog, ErrorDialog) and dialog.parts[1].splitlines() == lines
        box, hint = dialog.query_one(".box"), dialog.query_one(".hint")
        assert box.region.contains_region(hint.region) and box.region.contains_region(
            dialog.query_one(".next").region)
        scroll = dialog.query_one(".body")
        await press(pilot, "j", "pagedown")
        assert scroll.scroll_offset.y > 1
        await press(pilot, "y")
        assert lines[-1] in app.clipboard
        await press(pilot, "o")
        assert isinstance(app.screen, LogPage)
        await pilot.pause(0.05)
        assert "the last thing it said" in app.screen.text and lines[-1] in app.screen.text
        await press(pilot, "escape")
        assert app.screen is main and not app.session.building


async def test_the_log_follows_a_build(tmp_path):
    async with opened(tmp_path, builder=H200, answers=("Open", "Compare")) as (app, main, pilot):
        await press(pilot, "b", "o")
        long = "verbose: " + "a tactic " * 30
        app.deliver(messages.Note(max(app.session.asked), long))
        await settle(pilot)
        await pilot.pause(0.05)
        assert " ".join(app.screen.text.split()).endswith(long.strip())
        assert max(len(line) for line in app.screen.text.splitlines()) <= 78


async def test_stop_asks_only_for_old_jobs(tmp_path):
    async with opened(tmp_path, answers=("Open",)) as (app, main, pilot):
        await press(pilot, "x")
        assert app.session._client.stopped == 1
        app.session.asked.started -= 60
        await press(pilot, "x")
        assert isinstance(app.screen, Question)
        await press(pilot, "n")
        assert app.session._client.stopped == 1
        await press(pilot, "x", "y")
        assert app.session._client.stopped == 2


async def test_escape_never_stops_a_job(tmp_path):
    async with opened(tmp_path, answers=("Open",)) as (app, main, pilot):
        await press(pilot, "escape", "escape", "[", "B")
        assert app.session._client.stopped == 0 and app.session.busy and app.screen is main


async def test_compares_again(tmp_path):
    async with opened(tmp_path) as (app, _, pilot):
        before = sum(isinstance(r, messages.Compare) for r in app.session._client.sent)
        await press(pilot, "f5")
        assert sum(isinstance(r, messages.Compare) for r in app.session._client.sent) == before + 1


async def test_changes_the_target(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "g")
        assert isinstance(app.screen, Prompt)
        app.screen.query_one(Input).value = "nonsense"
        await press(pilot, "enter")
        assert isinstance(app.screen, Prompt)
        app.screen.query_one(Input).value = "sqnr>=8"
        await press(pilot, "enter")
        assert app.session.target.value == 8 and "passes" in verdict(main)[3]
        assert "≥ 8 dB" in title(main, "verdict")


# -- configs and files ----------------------------------------------------------------------------------------------


async def test_takes_up_an_earlier_config(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        first = app.session.config
        await press(pilot, "space")
        await settle(pilot)
        await press(pilot, "c")
        assert isinstance(app.screen, ConfigsPage)
        await press(pilot, "j", "enter")
        assert app.screen is main and app.session.config == first


async def test_marks_two_configs_and_shows_what_differs(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "d")
        assert "only one config" in status(main)
        name = main.desk.listing.model.titles[current(main)]
        await press(pilot, "m", "space", "m")
        assert [app.session.names[main.desk.marks.configs[letter]] for letter in "AB"] == ["c0", "c1"]
        await press(pilot, "d")
        assert isinstance(app.screen, Page)
        assert name in app.screen.text and "INT8" in app.screen.text and "FP32" in app.screen.text


@pytest.mark.parametrize("kind", ["precision.json", "onnx", "markdown"])
async def test_exports(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "e")
        assert isinstance(app.screen, ExportDialog)
        await press(pilot, *["down"] * app.screen.kinds.index(kind), "enter", "enter")
        asked = app.session._client.sent[-1]
        assert isinstance(asked, messages.Export if kind == "onnx" else messages.WriteText)
        assert Path(asked.path).parent == tmp_path and "Wrote" in status(main)


async def test_offers_what_the_session_exports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FakeSession, "EXPORTS", tuple(FORMATS), raising=False)
    written: list[tuple] = []
    async with opened(tmp_path) as (app, main, pilot):
        app.session.export = lambda *answer: written.append(answer)
        await press(pilot, "e", *["down"] * list(FORMATS).index("trtexec"), "enter", "enter")
        assert [(kind, path.name) for kind, path, _ in written] == [("trtexec", "vit.trtexec.sh")]
    monkeypatch.setattr(FakeSession, "EXPORTS", ("onnx", "trtexec"))
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "e")
        assert app.screen.kinds == ["onnx", "trtexec"]


async def test_export_asks_before_it_overwrites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vit.precision.json").write_text("{}")
    written: list[tuple] = []
    async with opened(tmp_path) as (app, main, pilot):
        app.session.export = lambda *answer: written.append(answer)
        await press(pilot, "e", "enter", "enter")
        assert isinstance(app.screen, Question)
        await press(pilot, "n")
        assert written == [] and app.screen is main
        await press(pilot, "e", "enter", "enter", "y")
        assert [one[2] for one in written] == [True]


async def test_an_export_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def refuse(*answer):
        raise InputError("the disk is full", "no space left", "Free some space.")

    async with opened(tmp_path) as (app, _, pilot):
        app.session.export = refuse
        await press(pilot, "e", "enter", "enter")
        assert isinstance(app.screen, ErrorDialog) and app.screen.parts[0] == "the disk is full"
        await press(pilot, "y")
        assert "Free some space." in app.clipboard


async def test_log_help_and_theme(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        app.session.log.append("a native message")
        await press(pilot, "o")
        assert "a native message" in app.screen.text
        await press(pilot, "escape", "question_mark")
        assert isinstance(app.screen, HelpPage)
        words = " ".join(app.screen.text.split())
        assert all(action.help in words for action in ACTIONS)
        await press(pilot, "escape", "f8")
        assert app.theme == "trt-light"
        await press(pilot, "f8")
        assert app.theme == "trt-dark"


async def test_the_palette_does_what_the_keys_do(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "f2")
        assert isinstance(app.screen, Palette)
        await press(pilot, *"undo the")
        choices = app.screen.query_one(Choices)
        assert "nothing to undo" in choices.get_option_at_index(0).prompt.plain
        await press(pilot, "enter")
        assert app.screen is main and "nothing to undo" in status(main)
        await press(pilot, "f2", *"fp32 on", "enter")
        assert app.session.config.groups
        await press(pilot, "f2", "down", "up", *"zzzzzz", "enter")
        assert isinstance(app.screen, Palette)
        await press(pilot, "escape")
        assert app.screen is main


async def test_quits_at_once_and_closes_the_session(tmp_path):
    async with opened(tmp_path, answers=("Open",)) as (app, _, pilot):
        await press(pilot, "q")
        assert app.session._client.closed


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (119, 24), (120, 40), (140, 40), (60, 20)])
async def test_resizes_live(tmp_path, size):
    async with opened(tmp_path) as (_, main, pilot):
        await pilot.resize_terminal(*size)
        await settle(pilot)
        assert main.has_class("-wide") is (size[0] >= 120)
        assert main.desk.tree.size.height >= 3
        widths = {spans.width_of(main.desk.tree._line(i)) for i in range(3)}
        assert max(widths) <= main.desk.tree.size.width
