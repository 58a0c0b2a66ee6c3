"""trt_tui.tui.state.status: the keys of a hint do what it says, in the real app, from any cursor and any state."""

from dataclasses import replace

import pytest
from textual.widgets import Input

from tests import local
from tests.local import H200
from tests.screen import answered, current, hint_of, opened, press, settle, status
from tests.texts import lacking
from trt_tui.core.measure.results import ExportedRun, RunKind
from trt_tui.core.network.layer_tree import GroupRow
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.session import Session
from trt_tui.tui.keys import get_action_keys, shown_key
from trt_tui.tui.screens.dialogs import Dialog, Picker
from trt_tui.tui.screens.pages import HelpPage
from trt_tui.tui.state import detail
from trt_tui.tui.state.columns import LAYER_COLUMNS_BY_ID
from trt_tui.tui.state.config_status import is_measuring_current_config
from trt_tui.tui.state.rows import ColourMeasure, LayerListView, TreeModel, build_row_values
from trt_tui.tui.state.status import Hint, find_first_group_to_raise, next_step_hint

pytestmark = pytest.mark.usefixtures("quick")


async def add_config(main, pilot) -> None:
    """Adds a config to the list of configs, which the screen shows if there are several."""
    main.session.toggle_fp32(main.session.outline.groups[:1])
    main.session.undo()
    main.draw_all()
    await settle(pilot)


async def follow(app, main, pilot) -> Hint:
    """Presses the keys that the hint names, and checks that what it says has happened."""
    hint = hint_of(main)
    await answered(pilot, *(get_action_keys(one)[0] for one in hint.actions))
    if hint.group:
        assert app.screen is main and current(main) == hint.group
        assert app.session.config.precision_of(app.session.outline.get_group(hint.group)) is Precision.FP32, hint
    return hint


WAYS = {
    "as it opens": (),
    "from the end": ("end",),
    "worst first": ("t", "home", "down"),
    "by INT8's errors": ("v", "1", "down"),
    "among the configs": ("4",),
    "the detail alone": ("2", "end"),
    "a row's nodes": ("enter", "down"),
    "filtered": ("slash", "c", "enter"),
    "typing": ("slash", "c"),
}


@pytest.mark.parametrize(
    ("network", "target", "ways"),
    [("tiny_resnet", "sqnr>=60", WAYS), ("vit", "sqnr>=20", {"in a cell of the blocks": ("t", "t", "right", "down")})],
)
async def test_the_keys_of_a_hint_raise_the_row_that_it_names(tmp_path, network, target, ways):
    options = {"size": (120, 40), "network": network, "target": target, "sweeps": True}
    async with opened(tmp_path, **options) as (app, main, pilot):
        for way, keys in ways.items():
            await answered(pilot, *keys)
            if not hint_of(main).actions:
                await press(pilot, "enter")  # it says that enter leaves the filter
            first = await follow(app, main, pilot)
            await answered(pilot, *keys[:1] if keys[:1] in (("end",), ("4",)) else ())
            second = await follow(app, main, pilot)
            assert first.group and second.group and first.group != second.group, way
            await press(pilot, "escape", "escape", "1")
            main.set_view(LayerListView.TREE)
            main.layer_list.measure = ColourMeasure.SHARE
            main.layer_list.run = "config"
            while app.session.undo():
                await settle(pilot)
            main.draw_all()
            await answered(pilot, "home", "w")


async def test_the_keys_of_other_hints_ask_for_what_they_say(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        for target, changes in (("sqnr>=20", 1), ("sqnr>=200", -1)):
            app.session.set_target(target)
            app.session.set_precision(app.session.outline.groups[:changes], Precision.FP32)
            await settle(pilot)
            if (await follow(app, main, pilot)).actions == ("find",):
                assert app.screen is not main
                await press(pilot, "escape")


@pytest.mark.parametrize("builder", [None, H200])
async def test_a_hint_that_was_followed_does_not_come_back(tmp_path, builder):
    async with opened(tmp_path, target="sqnr>=1", builder=builder) as (app, main, pilot):
        first = await follow(app, main, pilot)
        assert first.actions == ("build",) and any(isinstance(one, rq.BuildEngine) for one in app.session.child.sent)
        await press(pilot, "down")
        assert hint_of(main).actions == ("export",)
        await press(pilot, "e", "enter")
        app.screen.query_one(Input).value = str(tmp_path / "c.json")
        await answered(pilot, "enter")
        await press(pilot, "escape", "down")
        assert hint_of(main) == Hint(("c0 is exported",))
        await answered(pilot, "space")
        assert hint_of(main).actions == ("build",), "another config"
        await answered(pilot, "z", "down")
        assert hint_of(main) == Hint(("c0 is exported",))
        results = app.session.results[app.session.config]
        runs, results.runs = results.runs, {RunKind.SIMULATED_CONFIG: results.runs[RunKind.SIMULATED_CONFIG]}
        assert hint_of(main).actions == ("build",), "exported without a build"
        app.session.child.held = {rq.CompareRuns}
        app.session.request_comparison()
        assert hint_of(main) == Hint(("c0 is exported",)), "stored builds are not loaded yet"
        results.runs = runs
        names = app.session.config_names.copy()
        assert names.exported_configs == {app.session.config}, "the session that is saved has it"


async def test_a_build_that_failed_is_not_offered_again(tmp_path):
    async with opened(tmp_path, target="sqnr>=1", builder=replace(H200, fails="no memory")) as (app, main, pilot):
        await follow(app, main, pilot)
        await answered(pilot, "o", "escape", "down")
        assert hint_of(main).actions == ("log",) and "c0" in hint_of(main).text


def test_an_engine_without_a_value_of_the_target_leads_to_the_export(tmp_path, measured_before):
    session = local.measured(tmp_path, target="sqnr>=1", builder=H200)
    session.request_build()
    engine = session.rest().results[session.config].engine_result
    model = TreeModel(session.outline)
    for accuracy in (None, replace(engine.accuracy, outputs={})):
        session.results[session.config].runs[RunKind.BUILT_ENGINE] = replace(engine, accuracy=accuracy)
        hint = next_step_hint(session, build_row_values(session, model, ColourMeasure.SHARE, "config"))
        assert hint.actions == ("export",), hint


async def test_bad_rows_are_passed_in_the_order_of_the_list(tmp_path):
    async with opened(tmp_path, size=(120, 40)) as (app, main, pilot):
        listing = main.layer_list
        for view in (LayerListView.TREE, LayerListView.WORST):
            main.set_view(view)
            listing.opened_paths = {scope.path for scope in listing.tree_model.scopes}
            main.draw_layer_tree()
            bad = [
                line.row.group.name
                for line in main.layer_tree.rows
                if isinstance(line.row, GroupRow) and line.row.group.name in listing.row_values.bad_group_names
            ]
            assert len(bad) > 3
            main.go_to_group(bad[0])
            for name in bad:
                assert current(main) == name
                await press(pilot, "n")
            assert current(main) == bad[0], "behind the last comes the first"
        worst = find_first_group_to_raise(app.session, listing.row_values)
        await answered(pilot, "slash", *"head", "enter")
        assert worst not in listing.matches
        await follow(app, main, pilot)
        assert listing.matches is None and main.query_one("#filter", Input).value == "", "it gives way to the worst"


async def test_nothing_is_advised_while_values_are_partial(tmp_path):
    async with opened(tmp_path, held=(rq.MeasureWhatIf,)) as (app, main, pilot):
        await press(pilot, "space")
        assert is_measuring_current_config(app.session) and "still measuring" in status(main)
        assert not hint_of(main).actions
    async with opened(tmp_path, held=(rq.CompareRuns,)) as (app, main, pilot):
        assert "still measuring" in status(main)
        requests = app.session.pending_requests
        comparison = next(job for job in requests.values() if isinstance(job.request, rq.CompareRuns))
        requests.end_request(comparison.number, "stopped")
        assert hint_of(main).actions == ("compare",), "a comparison that was stopped is not final"


def test_every_hint_of_many_configs_names_a_row_that_can_be_raised(tmp_path, measured_before):
    session = local.measured(tmp_path)
    model = TreeModel(session.outline)
    for group in (None, *session.outline.groups[::12]):
        if group is not None:
            session.toggle_fp32([group])
            session.rest()
        hint = next_step_hint(session, build_row_values(session, model, ColourMeasure.SHARE, "config"))
        if hint.group:
            row = session.outline.get_group(hint.group)
            assert session.config.precision_of(row) is not Precision.FP32
            assert session.config.with_toggled_fp32([row]).precision_of(row) is Precision.FP32
            assert hint.group not in session.config.groups_fixed_by_rule


async def test_the_hint_follows_the_focus_dialogs_and_messages(tmp_path):
    options = {"size": (120, 40), "network": "tiny_resnet", "target": "sqnr>=60", "sweeps": True}
    async with opened(tmp_path, **options) as (app, main, pilot):
        await add_config(main, pilot)
        for keys, said in (
            ((), "raises this one"),
            (("slash",), "goes to the rows"),
            (("escape",), "raises this one"),
            (("tab",), "raises fc"),
            (("tab",), "raises this one"),
            (("2",), "raises fc"),
            (("c", "c", "escape", "2"), "raises fc"),
            (("2", "1"), "raises this one"),
        ):
            await press(pilot, *keys)
            assert said in status(main), keys
        for key in ("p", "9", "5", "a", "e"):
            assert "raises this one" in status(main)
            await answered(pilot, key)
            assert isinstance(app.screen, Dialog) and "raises" not in status(main) and "finds" not in status(main)
            main.show_message("a message")
            assert status(main).splitlines()[-1].strip() == "a message"
            main.clear_message(main.status.message)
            await answered(pilot, "escape")
            assert app.screen is main
        hint = hint_of(main)
        main.show_message("a message")
        assert status(main).splitlines()[-1].strip() == f"a message   {hint.text}"
        main.show_message("a long message " * 7)
        assert status(main).splitlines()[-1].strip() == ("a long message " * 7).strip()
        main.clear_message(main.status.message)
        await press(pilot, "p")
        app.session.toggle_fp32([main.current_group])
        await settle(pilot)
        assert app.screen is not main and "raises" not in status(main)
        await press(pilot, "escape")
        assert "raises" in status(main) and "raises this one" not in status(main), "it is drawn anew"
        await press(pilot, "s")
        assert isinstance(app.screen, Picker)
        await answered(pilot, "2")
        assert app.screen is main and main.layer_list.sort_column is LAYER_COLUMNS_BY_ID["operator"]
        await press(pilot, "colon")
        assert isinstance(app.screen, HelpPage)
        await press(pilot, "escape")
        await pilot.resize_terminal(60, 15)
        await settle(pilot)
        assert main.layer_tree.size.height >= 5 and main.query_one("#right").size.height == 1
        await answered(pilot, "2")
        assert main.query_one("#detail").size.height >= 2


async def test_a_row_whose_raise_is_known_to_lower_the_value_is_not_recommended(tmp_path):
    async with opened(tmp_path, size=(120, 40), network="small_resnet", target="sqnr>=60") as (app, main, pilot):
        session, row_values = app.session, main.layer_list.row_values
        accuracy, shares = session.get_run_results("config").accuracy, session.get_run_results("config").shares
        outline, config = session.outline, session.config
        name, values = accuracy.worst_output

        def measure_raise(group: str, gain_db: float) -> None:
            errors = replace(values.errors, sqnr_db=values.errors.sqnr_db + gain_db)
            raised = replace(accuracy, outputs={**accuracy.outputs, name: replace(values, errors=errors)})
            toggled = config.with_toggled_fp32([outline.get_group(group)])
            session.results.store_event_results(ev.AccuracyMeasured(1, "config", toggled, raised, True))

        order = sorted(
            (group for group in shares if shares[group].fraction > 0), key=lambda group: -shares[group].fraction
        )
        for group in order:
            measure_raise(group, 5)
        seen = []
        for gain_db in (-5, *[0.01] * (len(order) - 1)):  # the second one is noise
            seen.append(find_first_group_to_raise(session, row_values))
            measure_raise(seen[-1], gain_db)
        assert seen == order and len(order) > 2
        assert find_first_group_to_raise(session, row_values) == order[0]
        hint = next_step_hint(session, row_values, order[0])
        assert hint.actions == ("find",) and "no single raise" in hint.text
        shares.pop(order[-1])  # without all shares, nothing is known about the other rows
        assert "no single raise" not in next_step_hint(session, row_values, order[0]).text


@pytest.mark.parametrize(("held", "is_named"), [((), True), ((rq.MeasureToggles, rq.MeasureRemedies), False)])
async def test_a_hint_names_only_a_row_whose_raise_is_measured(tmp_path, monkeypatch, held, is_named):
    monkeypatch.setattr(Session, "requests_toggles", bool(held))
    options = {"network": "tiny_resnet", "target": "cosine>=0.9999999"}  # a share gives no value of this target
    async with opened(tmp_path, size=(120, 40), held=held, **options) as (_, main, pilot):
        await add_config(main, pilot)
        await answered(pilot, "4")  # from the configs, the hint has to name the row
        hint = hint_of(main)
        assert hint.actions == (("first_nan", "toggle") if is_named else ("find",))
        assert not is_named or f"raises {main.layer_list.row_values.model.titles[hint.group]}" in hint.text
        assert "no single raise" not in hint.text


async def test_after_a_failed_comparison_the_hint_names_the_failure_and_nothing_is_measured(tmp_path):
    held = (rq.CompareRuns, rq.MeasureTensorStats)
    async with opened(tmp_path, size=(120, 40), held=held) as (app, main, pilot):
        assert detail.MEASURING_TEXT in main.text_pane("detail").text
        for number in sorted(app.session.pending_requests, reverse=True):
            app.post_session_event(ev.JobFailed(number, TrtTuiError("wrong shape", "it is 8", "Correct it.")))
        await settle(pilot)
        assert not app.session.pending_requests and detail.MEASURING_TEXT not in main.text_pane("detail").text
        await press(pilot, "escape")
        assert hint_of(main).actions == ("log",) and "wrong shape" in status(main)


def test_a_hint_counts_no_rows_for_a_target_that_only_the_export_misses(tmp_path, measured_before, monkeypatch):
    session = local.measured(tmp_path, target="sqnr>=1")
    row_values = build_row_values(session, TreeModel(session.outline), ColourMeasure.SHARE, "config")
    results = session.results[session.config]
    name, values = results.accuracy.worst_output
    low = replace(
        results.accuracy, intervals=None, outputs={name: replace(values, errors=replace(values.errors, sqnr_db=-20.0))}
    )
    results.runs = {**results.runs, RunKind.EXPORTED_FILE: ExportedRun(low, "ONNX Runtime 1 CPU", "cpu")}
    monkeypatch.setattr("trt_tui.tui.state.status.count_rows_to_raise_for_target", lambda *_: 3)
    missed = next_step_hint(session, row_values)
    assert missed.text.startswith("the exported network misses") and "rows to FP32" not in missed.text
    session.set_target("sqnr>=60")
    assert "3 rows to FP32" in next_step_hint(session.rest(), row_values).text


def test_a_hint_advises_as_soon_as_the_shares_are_final(tmp_path, measured_before):
    session = local.measured(tmp_path, target="sqnr>=60")
    session.pending_requests.add_request(99, rq.CompareRuns({}), "comparison")
    row_values = build_row_values(session, TreeModel(session.outline), ColourMeasure.SHARE, "config")
    for is_final in (True, False):
        session.results[session.config].has_all_shares = is_final
        hint = next_step_hint(session, row_values)
        assert bool(hint.actions) is is_final and hint.text.startswith("still measuring") is not is_final


def test_a_config_all_in_fp32_leads_back_to_lower_precisions(tmp_path, measured_before):
    session = local.measured(tmp_path)
    session.set_precision(session.outline.groups, Precision.FP32)
    hint = next_step_hint(
        session.rest(), build_row_values(session, TreeModel(session.outline), ColourMeasure.SHARE, "config")
    )
    assert hint.actions == ("toggle",) and not lacking(hint.text, "FP32", *map(shown_key, ("undo", "toggle")))
