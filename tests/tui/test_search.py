"""Finding the fix in the app: trt_tui.tui.screens.search, the key, the marks, the status line, taking over and undo."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
from textual.widgets import Input, Static

from tests import screen
from tests.driven import LocalSession, save_resnet
from tests.local import H200
from tests.screen import LARGE, SMALL, answered, hint_of, page_text, press, settle, status
from tests.texts import lacking, numbers
from trt_tui.core.engines.group_implementations import Preview
from trt_tui.core.measure.results import ExportedRun, RunKind
from trt_tui.core.measure.target import HeldOutResult, HeldOutValue, Outcome, TargetOutcome, TargetResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.search import SEARCH_METHODS, SearchOutcome
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import duration_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.history import ConfigNames, SavedSession, SearchDoubt
from trt_tui.session.jobs import Job
from trt_tui.session.results import find_decisive_outcome
from trt_tui.session.search_report import search_evidence_lines
from trt_tui.session.search_status import MAX_BUILDS, make_search_request
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import ConfirmDialog, ErrorDialog, FieldsDialog, KeyHints
from trt_tui.tui.screens.forms import STRATEGY_TEXTS, ChoiceField, ConfigSearchDialog, parse_budget
from trt_tui.tui.screens.pages import ExplanationDialog, SearchResultPage
from trt_tui.tui.spans import line_width
from trt_tui.tui.state.config_status import target_value_span
from trt_tui.tui.state.explanations import explain_search_option
from trt_tui.tui.state.rows import TreeModel
from trt_tui.tui.state.search_result import (
    BEST_SO_FAR,
    CHEAPER,
    CURRENT,
    EARLIER,
    MORE_ACCURATE,
    RESULT,
    list_search_options,
    search_change_lines,
    search_check_texts,
    search_page_title,
)
from trt_tui.tui.state.status import best_search_texts, job_table, job_texts
from trt_tui.tui.widgets.lines import Lines

pytestmark = pytest.mark.usefixtures("quick")
opened = partial(screen.opened, network="tiny_resnet", target="sqnr>=40")

EVERY_RUNG = (Precision.FP32, (Precision.FP8, Precision.FP16, Precision.FP16_ACC_FP32, Precision.BF16, Precision.TF32))
"""The last choice of what layers are raised to: FP32, or FP8 or FP16 where that does."""


def raised(main) -> tuple[str, ...]:
    return raised_by(main, main.session.config)


def raised_by(main, config) -> tuple[str, ...]:
    return config.find_raised_groups(main.session.outline)


EXPORT_YIELDS = "the exported network yields"


def finds(main, outcome="") -> bool:
    """True if the status line leads to the result of the search, with its outcome."""
    return f"a shows what the search found{outcome and f': {outcome}'}" in status(main)


def job_of(main) -> Job:
    """The job of the search."""
    jobs = main.session.pending_requests.values()
    return next(one for one in jobs if isinstance(one.request, rq.FindMixedPrecisionConfig))


def test_every_method_can_be_chosen():
    assert set(STRATEGY_TEXTS) == set(SEARCH_METHODS) and next(iter(STRATEGY_TEXTS)) == "auto"


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("8", (8, None)),
        ("8 layers", (8, None)),
        ("1 layer", (1, None)),
        ("1.5 ms", (None, 1.5)),
        ("2ms", (None, 2.0)),
        ("", (None, None)),
        ("1.5", (None, None)),
        ("1.5 layers", (None, None)),
        ("-1 ms", (None, None)),
    ],
)
def test_budgets_are_read(text, budget):
    assert parse_budget(text) == budget


async def test_a_search_has_all_targets_of_the_session(tmp_path):
    targets = "sqnr>=20; cosine>=0.5"
    async with opened(tmp_path, size=LARGE, network="tiny_resnet", target=targets) as (app, main, pilot):
        await press(pilot, "a")
        assert app.screen.query_one("#tolerance", Input).value == targets
        await answered(pilot, "enter")
        assert main.session.search_status.request.tolerances == ("sqnr>=20", "cosine>=0.5")
        assert main.session.targets_text == targets


async def test_what_is_found_becomes_the_config_in_one_step_and_says_why(tmp_path):
    async with opened(tmp_path, size=LARGE) as (app, main, pilot):
        before = main.session.config
        await press(pilot, "a", "escape")
        assert app.screen is main and main.session.search_status is None
        await answered(pilot, "a", "enter")
        assert main.session.config == before and finds(main, "PASS")
        await answered(pilot, "a", "enter")
        assert raised(main) and main.session.target.is_met_by(main.session.get_run_results("config").accuracy)
        assert {choice.reason for choice in main.session.config.precision_moves.values()} == {"search:auto"}
        assert not lacking(status(main), "from the search", "PASS", "z undoes")
        main.go_to_group(raised(main)[0])
        await settle(pilot)
        detail = " ".join(main.query_one("#detail", Lines).text.split())
        assert not lacking(detail, "by search:auto", "without it", "(fails)", "with it")
        await press(pilot, "z")
        assert main.session.config == before and not main.session.history.can_undo
        await press(pilot, "full_stop")
        assert raised(main)
        await press(pilot, "a", "a")
        note_start, _, start_name = str(app.screen.query_one("#note", Static).content).partition("fewer, from ")
        assert note_start.startswith("c1")
        dialog = app.screen
        while dialog.method_field.value != "scoped":
            dialog.method_field.action_change(1)
        await settle(pilot)
        assert dialog.ranges_field.value is False  # they stay as they are, unless they are asked for
        await answered(pilot, "enter")
        request, rows = main.session.search_status.request, main.session.search_status.end_event.result.reduction_steps
        assert (request.method, request.try_ranges, request.try_zero_cost) == ("scoped", False, False) and rows
        assert not request.config.find_raised_groups(main.session.outline), "fewer than in the current config"
        assert f"Search from {start_name}, " in search_page_title(main.session, main.session.search_status)
        log = main.session.log
        header = next(place for place, line in enumerate(log) if "similarity" in line)
        table = log[header + 1 : header + 1 + len(rows)]
        assert [int(line.split()[0]) for line in table] == list(range(len(rows)))
        app.post_session_event(ev.JobFailed(99, TrtTuiError("no metric", "none was named", "Name one.")))
        await settle(pilot)
        assert app.screen is main and not lacking(status(main), "no metric", "o shows")
        await press(pilot, "o")
        assert isinstance(app.screen, ErrorDialog)


async def test_nothing_is_searched_for_a_config_that_passes_without_raised_layers(tmp_path):
    async with opened(tmp_path, target="sqnr>=1") as (app, main, pilot):
        await press(pilot, "a", "enter")
        note = app.screen.query_one("#note", Static)
        (outcome,) = main.session.config_target_outcomes(main.session.config).values()
        assert isinstance(app.screen, ConfigSearchDialog) and outcome.outcome is Outcome.UNCERTAIN_PASS
        assert "passes in doubt (PASS?)" in str(note.content)
        await answered(pilot, "escape", "space", "a", "enter")
        assert finds(main, "PASS?, no layer")
        assert not main.session.search_status.best_config.find_raised_groups(main.session.outline)
        await answered(pilot, "z")
        main.session.search_status = None
        await press(pilot, "a")
        app.screen.query_one("#tolerance", Input).value = "sqnr>=20"
        await press(pilot, "enter")
        assert app.screen is main and main.session.search_status is not None, "another tolerance is searched"


async def test_the_dialog_is_what_is_searched(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "a")
        tolerance = app.screen.query_one("#tolerance", Input)
        assert isinstance(app.screen, ConfigSearchDialog) and tolerance.value == "sqnr>=40"
        tolerance.value = "sqnr>=4x"
        await press(pilot, "enter")
        assert app.screen.query_one("#note", Static).has_class("bad") and not main.session.is_searching
        tolerance.value = "sqnr>=45"
        await press(pilot, "down", "down", "right", "down", "left", "down", "space")
        assert [one.value for one in app.screen.query(ChoiceField)] == ["greedy", EVERY_RUNG, False]
        await answered(pilot, "enter")
        request = next(one for one in main.session.child.sent if isinstance(one, rq.FindMixedPrecisionConfig))
        assert (
            request.tolerances,
            request.method,
            (request.higher_precision, request.intermediate_precisions),
            request.try_ranges,
        ) == (("sqnr>=45",), "greedy", EVERY_RUNG, False)
        assert request.max_builds == MAX_BUILDS and main.session.target.text == "sqnr>=45"
        assert request.max_raised is request.max_latency is None
        assert main.session.search_status.end_event is not None


async def test_a_budget_is_kept_and_its_best_listed(tmp_path):
    async with opened(tmp_path, target="sqnr>=50") as (app, main, pilot):
        before = main.session.config
        await press(pilot, "a", "down", *"2 ms", "enter")
        for wrong, value in (("none can run here", "two"), ("write a budget like 8 layers", "1 layer")):
            assert wrong in str(app.screen.query_one("#note", Static).render())
            app.screen.query_one("#budget", Input).value = value
            await answered(pilot, "enter")
        assert app.screen is main and main.session.config == before
        assert finds(main, "FAIL")
        assert main.session.search_status.end_event.result.outcome is SearchOutcome.SHORT
        await answered(pilot, "c", "home", "enter")
        assert len(raised(main)) == 1


async def test_while_it_runs_its_best_is_shown_and_can_be_taken_over(tmp_path):
    async with opened(tmp_path, size=LARGE, searched=5) as (app, main, pilot):
        before = main.session.config
        await answered(pilot, "a", "enter")
        finding = main.session.search_status
        best, (said, value_text) = finding.best_config, best_search_texts(main.session, finding)
        assert main.session.is_searching and finding.progress.done == 5
        assert said in status(main) and hint_of(main).actions == ("find",)
        long_text = job_texts(main.session, job_of(main))[0]
        assert said in long_text and " 5 tried" in long_text and not job_of(main).phase, "no name of a step"
        for width in (120, 80, 60):
            await pilot.resize_terminal(width, 24)
            await settle(pilot)
            assert value_text in status(main), "the value comes before the effort, and a hint leaves room for it"
            assert ("search" in status(main)) is (width > 60), "name and time stand beside it"
        job = job_of(main)
        job.update_progress(ev.JobProgress(job.number, "held-out samples", 3, 8))
        assert "held-out samples 3/8, 5 tried" in job_texts(main.session, job)[0]
        job.update_progress(ev.JobProgress(job.number, "held-out samples", 4, 8, 30.0))
        assert not any(" left" in "".join(text for text, *_ in line) for _, line in job_table(main.session, 160)[1])
        fp32_config = PrecisionConfig.from_precision(Precision.FP32)
        for text in best_search_texts(main.session, SimpleNamespace(best_config=fp32_config)):
            assert "all layers in FP32" in text, "its value says nothing"
        group = main.session.outline.groups[0].name
        main.session.send_request(rq.MeasureRemedies(group, before))
        remedies = main.session.pending_requests[max(main.session.pending_requests)]
        assert remedies.title.endswith(f" {main.layer_list.tree_model.titles[group]}"), "as the list names the row"
        remedies.begin_time = remedies.sent_time - 60
        for waiting in ((job.number,), ()):  # the row of the cursor goes first, and the search waits
            main.session.apply_event(ev.JobStarted(remedies.number, waiting))
            texts = (job_texts(main.session, job)[0], search_page_title(main.session, finding))
            table = ["".join(text for text, *_ in line) for _, line in job_table(main.session, 160)[1]]
            assert {f"waits for {remedies.title}" in text for text in texts} == {bool(waiting)}
            assert {f"for {remedies.title}" in table[0], "waits" in table[0]} == {bool(waiting)}
            narrow_table = ["".join(text for text, *_ in line) for _, line in job_table(main.session, 52)[1]]
            titles = [job.title for job in (main.session.pending_requests.unfinished_jobs)]
            assert not lacking(" ".join(narrow_table), *titles), "what a job waits for is left out before its title"
        main.session.apply_event(ev.JobDone(remedies.number))
        remarks = ("TensorRT refuses it", "the exported network yields 3 dB: went on with a margin of 1.5")
        finding.progress = replace(finding.progress, remarks=remarks)
        job.begin_time -= 3 * 3600
        await press(pilot, "q")
        assert isinstance(app.screen, ConfirmDialog) and main.session.is_searching, "it does not end with one key"
        await press(pilot, "escape", "a")
        assert isinstance(app.screen, SearchResultPage) and app.screen.selected_search_option.config == best
        for size in (LARGE, (60, 15)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            assert not lacking(page_text(app.screen), " 3 h ", remarks[1][:40]), "since when, and why it goes on"
        await answered(pilot, "enter")
        assert main.session.config == best and not main.session.is_searching and app.screen is main
        assert main.session.child.stops == 1
        assert main.session.history.state.choice_reasons.keys() >= set(raised(main))
        await press(pilot, "z")
        assert main.session.config == before


@pytest.mark.parametrize("killed", [False, True])
async def test_stopped_it_says_where_what_it_found_is_listed(tmp_path, killed):
    async with opened(tmp_path, searched=5) as (app, main, pilot):
        before = main.session.config
        await answered(pilot, "a", "enter")
        if killed:
            app.post_session_event(ev.JobCancelled(job_of(main).number))
            await settle(pilot)
        else:
            await answered(pilot, "x")
        assert app.screen is main and not lacking(status(main), "a shows", "stopped search")
        assert (main.session.search_status.end_event is None) is killed
        assert main.session.config == before and main.session.search_status.best_config in main.session.config_names
        await answered(pilot, "a", "enter")
        assert raised(main) == main.session.search_status.best_evaluation.raised_groups


async def test_a_tolerance_out_of_reach_changes_nothing(tmp_path):
    async with opened(tmp_path, target="max_abs<=0") as (app, main, pilot):
        before = main.session.config
        await press(pilot, "a")
        app.screen.query_one("#tolerance", Input).value = "metric>=base+1"
        await answered(pilot, "enter")
        assert main.session.config == before and "cannot be met" in status(main)


async def test_a_config_edited_meanwhile_is_not_replaced(tmp_path):
    async with opened(tmp_path, searched=5) as (_, main, pilot):
        await answered(pilot, "a", "enter")
        await press(pilot, "space")
        edited, main.session.child.searched = main.session.config, None
        await settle(pilot)
        assert main.session.config == edited and finds(main)


async def test_engines_confirm_what_was_found(tmp_path):
    async with opened(tmp_path, builder=replace(H200, worse=0.0083)) as (app, main, pilot):
        await press(pilot, "a")
        assert app.screen.query_one("#builds", ChoiceField).value == 3
        await answered(pilot, "enter")
        ended = main.session.search_status.end_event
        assert ended.confirmed and "margin" in ended.remarks[0] and not main.session.config.moves
        await press(pilot, "a")
        assert "meets it too" in page_text(app.screen)
        stopped = replace(ended, result=replace(ended.result, outcome=SearchOutcome.SEARCHING))
        for margin, text in ((-1.0, "meets it too"), (1e9, "meets it nevertheless")):
            request = main.session.search_status.request
            lines = search_evidence_lines(main.session, replace(stopped, margins=(margin,)), request)
            assert lines[-1].endswith(text), "the simulation decides, not the end of the search"
        await press(pilot, "pagedown")
        assert "margin" in page_text(app.screen)
        await answered(pilot, "enter")
        assert main.session.target.is_met_by(main.session.results[main.session.config].engine_result.accuracy)


LONG_REASONS = tuple(
    f"the {number}th reason takes {'many, ' * 20} many lines, and ends in word{number}" for number in range(3)
)


async def test_a_result_shows_changes_and_long_reasons_at_every_size_and_waits_until_it_is_taken(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        before, outline = main.session.config, main.session.outline
        titles = main.layer_list.tree_model.titles
        await answered(pilot, "a", "enter")
        search_status = main.session.search_status
        ended = search_status.end_event

        def list_changes():
            return [
                line
                for line in page_text(app.screen).splitlines()
                if line.split()[:1] and line.split()[0] in titles.values()
            ]

        for size in ((60, 15), SMALL, LARGE):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            search_status.end_event = ended
            await answered(pilot, "a")
            page = app.screen
            assert isinstance(page, SearchResultPage) and main.session.config == before
            result, current = page.selected_search_option, page.options[0]
            assert result.config == search_status.best_config and current.config == before
            assert result.outcome.passes and not current.outcome.passes
            values = [target_value_span(main.session, option.accuracy)[0] for option in (current, result)]
            assert all(value in page_text(page) for value in values) and values[0] != values[1]
            group = outline.get_group(raised_by(main, result.config)[0])
            row = next(line for line in page_text(page).splitlines() if line.split()[:1] == [titles[group.name]])
            assert "FP32" in row.split()[1:3]
            await press(pilot, "escape")
            assert app.screen is main and main.session.config == before and not main.session.history.can_undo
            assert finds(main)
            search_status.end_event = replace(
                ended,
                target_outcome=TargetOutcome(Outcome.UNCERTAIN_PASS, LONG_REASONS),
                result=replace(ended.result, config=search_status.request.config.with_toggled_fp32(outline.groups)),
            )
            await press(pilot, "a", "right")
            page, first = app.screen, list_changes()
            height = page.query_one("#page", Lines).size.height
            assert len(first) >= min(len(outline.groups), height // 3)
            assert all(f"the {number}th" in page_text(page) for number in range(3) if size[1] > 15)
            if size == SMALL:
                assert "end checks" in page.query_one("#page-keys", Lines).text
                assert page._page_lines >= 7
            await press(pilot, "pagedown")
            assert size == LARGE or not set(list_changes()) & set(first), "a page further"
            await press(pilot, "end")
            texts = [page_text(page)]
            for _ in range(3):
                await press(pilot, "pageup")
                texts.append(page_text(page))
            assert "word2" in "".join(texts)
            await press(pilot, "home")
            assert list_changes() == first
            await press(pilot, "escape")
        search_status.end_event = ended
        await answered(pilot, "a", "enter")
        assert main.session.config == result.config
        await press(pilot, "z")
        assert main.session.config == before and not main.session.history.can_undo


async def test_each_config_of_the_front_can_be_taken_as_one_change(tmp_path):
    async with opened(tmp_path, size=LARGE, network="tiny_resnet") as (app, main, pilot):
        before = main.session.config
        await answered(pilot, "a", "enter", "a")
        relations = [option.relation for option in app.screen.options]
        place = relations.index(RESULT)
        assert relations[0] == CURRENT and set(relations[1:place]) == {CHEAPER}
        assert set(relations[place + 1 :]) == {MORE_ACCURATE}
        scores = [option.evaluation.score for option in app.screen.options[1:]]
        assert scores == sorted(scores)
        await answered(pilot, "down")
        accurate = app.screen.selected_search_option
        assert accurate.relation == MORE_ACCURATE and "samples of the" in page_text(app.screen)
        assert "kernels" not in page_text(app.screen)
        main.session.results.get_or_create_results(accurate.config).preview = Preview(kernels=(None,) * 77)
        app.screen.update_lines()
        assert "kernels" in page_text(app.screen) and " 77 " in page_text(app.screen)
        await answered(pilot, "enter")
        assert main.session.config == accurate.config and not lacking(status(main), "from the search", "PASS")
        assert main.session.history.state.choice_reasons.keys() >= set(raised_by(main, accurate.config))
        await press(pilot, "a")
        page = app.screen
        assert page.options[0].config == accurate.config
        await press(pilot, "home", *["up"] * len(page.options), "right")
        titles = {group.name: main.layer_list.tree_model.titles[group.name] for group in main.session.outline.groups}
        shown = {line.split()[0] for line in page_text(page).splitlines() if line.strip()}
        assert page.selected_search_option.relation == CURRENT
        assert {titles[name] for name in raised_by(main, accurate.config)} <= shown, (
            "the config is listed, not a change"
        )
        await press(pilot, "f3")
        assert isinstance(app.screen, ExplanationDialog) and "measured on" in page_text(app.screen)
        await press(pilot, "escape")
        assert app.screen is page
        await answered(pilot, *["down"] * place, "enter", "z", "z")
        assert main.session.config == before and not main.session.history.can_undo


async def test_what_is_known_of_a_result_stands_beside_it(tmp_path):
    async with opened(tmp_path, size=LARGE) as (app, main, pilot):
        await answered(pilot, "a", "enter")
        session, search_status = main.session, main.session.search_status
        ended, opened_network = search_status.end_event, session.opened_network
        start = ended.evaluations[0]
        assert not start.target_result.target_outcome.passes and ended.target_outcome.passes
        doubted = replace(
            start,
            target_result=replace(
                start.target_result,
                measured_outcome=TargetOutcome(Outcome.UNCERTAIN_FAIL, ("the metric has no interval",)),
            ),
        )
        doubted_evaluations = (doubted, *ended.evaluations[1:])
        search_status.end_event = replace(
            ended, evaluations=doubted_evaluations, pareto_front=(), has_other_samples=False
        )
        await press(pilot, "a")
        current = next(line for line in page_text(app.screen).splitlines() if CURRENT in line)
        shown = session.config_target_outcomes(session.config)[RunKind.SIMULATED_CONFIG].outcome
        assert shown is Outcome.FAIL and current.endswith(" FAIL") and "±" in page_text(app.screen).splitlines()[1]
        await press(pilot, "escape")
        search_status.end_event = ended
        await press(pilot, "a")

        def update_lines():
            app.screen.update_lines()
            title, header, *lines = page_text(app.screen).splitlines()
            assert any(EXPORT_YIELDS in line for line in lines)
            return title, header

        assert search_status.best_evaluation.target_result.accuracy.samples == 16
        results = session.results.get_or_create_results(search_status.request.config)
        accuracy = results.accuracy
        page_status = app.screen.search_status
        for what_if, judged, text in (
            (8, 16, "all 16 samples"),
            (32, 48, "16 of 48 samples"),
            (16, 48, "other 16 of 48 samples"),
        ):
            page_status.end_event = ended
            data = replace(opened_network.data, what_if_count=what_if, judged_count=judged)
            session._opened_network = replace(opened_network, data=data)
            results.store_accuracy(replace(accuracy, samples=what_if, total=what_if))
            title, header = update_lines()
            assert f", took {duration_text(search_status.duration_s)}, {text}, " in title and f"SQNR, {text}" in header
            session._opened_network = replace(opened_network, data=replace(data, what_if_count=16))
            results.store_accuracy(replace(accuracy, samples=16, total=16))
            page_status.end_event = replace(ended, has_other_samples=False)
            title, header = update_lines()
            assert ", 16 samples" in title and "samples" not in header
        data = replace(opened_network.data, what_if_count=16, judged_count=16)
        session._opened_network, page_status.end_event = replace(opened_network, data=data), ended
        assert ", 16 samples" in update_lines()[0], "a batch with all samples has no other samples"
        session._opened_network = opened_network
        results.store_accuracy(accuracy)
        await press(pilot, "escape")
        search_status.end_event = replace(
            ended,
            result=replace(ended.result, is_met=False, summary="the tolerance (with a margin of 12) cannot be met"),
        )
        session.search_status = replace(search_status)  # another search for the controller
        app.post_session_event(search_status.end_event)
        await settle(pilot)
        assert not lacking(status(main), "PASS, ", "without the margin") and "cannot be met" not in status(main)
        value = HeldOutValue("sqnr>=40", "41 dB", "", "39 dB", "38 to 41 dB")
        held_out = HeldOutResult(
            TargetResult(
                False, -1.0, measured_outcome=TargetOutcome(Outcome.UNCERTAIN_FAIL, ("the interval spans the target",))
            ),
            16,
            48,
            (value,),
        )
        session.search_status.end_event = replace(
            ended, held_out=held_out, target_outcome=TargetOutcome(Outcome.UNCERTAIN_FAIL, (held_out.miss_text,))
        )
        doubt = SearchDoubt(held_out.miss_text, frozenset({RunKind.SIMULATED_CONFIG}))
        session.config_names.search_doubts[ended.result.config, "sqnr>=40"] = doubt
        await press(pilot, "a")
        chosen = next(line for line in page_text(app.screen).splitlines() if line.startswith(">"))
        assert chosen.endswith("FAIL?") and not lacking(page_text(app.screen), "16 held out", "~39 dB")
        await answered(pilot, "enter")
        assert not lacking(status(main), "from the search", "FAIL?")
        outcome = session.config_target_outcomes(session.config)[RunKind.SIMULATED_CONFIG]
        assert outcome.outcome is Outcome.UNCERTAIN_FAIL


async def test_a_certain_result_stays_on_offer_beside_a_cheaper_one_in_doubt(tmp_path):
    async with opened(tmp_path, size=LARGE) as (app, main, pilot):
        session, start = main.session, main.session.config
        await answered(pilot, "a", "enter")
        search_status = session.search_status
        ended, earlier = search_status.end_event, search_status.best_config
        (certain,) = {one.config: one for one in ended.evaluations if one.config == earlier}.values()
        assert ended.target_outcome.outcome is Outcome.PASS
        session.results.get_or_create_results(earlier).store_accuracy(certain.target_result.accuracy)
        doubt = TargetOutcome(Outcome.UNCERTAIN_PASS, ("its interval spans the target",))
        cheaper = replace(
            certain,
            config=start.with_toggled_fp32(session.outline.groups[:1]),
            target_result=replace(certain.target_result, measured_outcome=doubt),
        )
        session.config_names.get_config_name(cheaper.config)

        def list_offers():
            options = list_search_options(session, search_status)[1:]
            return [(option.relation, option.config, option.outcome.outcome) for option in options]

        result = replace(ended.result, config=cheaper.config, best_evaluation=cheaper)
        search_status.end_event = replace(
            ended, result=result, target_outcome=doubt, evaluations=(cheaper,), pareto_front=(0,)
        )
        offers = [(RESULT, cheaper.config, Outcome.UNCERTAIN_PASS), (EARLIER, earlier, Outcome.PASS)]
        assert list_offers() == offers, "of an earlier search"
        await press(pilot, "a", "down")
        assert app.screen.selected_search_option.config == earlier
        await answered(pilot, "enter")
        assert (
            session.config == earlier and not session.history.state.choice_reasons and not lacking(status(main), "PASS")
        )
        for outcome, is_offered in ((ended.target_outcome, True), (TargetOutcome(Outcome.FAIL, ("held out",)), False)):
            search_status.end_event = replace(ended, target_outcome=outcome, evaluations=(cheaper,), pareto_front=(0,))
            assert (CHEAPER in {relation for relation, *_ in list_offers()}) is is_offered
        search_status.end_event, progress = None, replace(search_status.progress, margins=())
        for best in (certain, cheaper):
            best_result = replace(ended.result, config=best.config, best_evaluation=best)
            search_status.add_progress(replace(progress, result=best_result))
        await press(pilot, "z")
        offers = [(BEST_SO_FAR, cheaper.config, Outcome.UNCERTAIN_PASS), (MORE_ACCURATE, earlier, Outcome.PASS)]
        assert list_offers() == offers, "of the same search"
        search_status.add_progress(replace(search_status.progress, margins=(1e3,)))
        assert search_status.certain_evaluation is None, "its export or engine lacks the margin"


async def test_a_config_whose_export_or_engine_missed_the_target_is_no_pass(tmp_path):
    async with opened(tmp_path, size=LARGE, network="small_resnet") as (app, main, pilot):
        await answered(pilot, "a", "enter", "a")
        session, search_status, page = main.session, main.session.search_status, app.screen
        passing = [option for option in page.options if option.relation == MORE_ACCURATE and option.outcome.passes]
        assert passing, "a search offers a config that is more accurate than its result"
        config = passing[0].config
        ended = search_status.end_event
        index = next(index for index in ended.pareto_front if ended.evaluations[index].config == config)
        search_status.end_event = replace(
            ended, missed_checks={index: {RunKind.BUILT_ENGINE: "the engine yields 3 dB"}}
        )
        failed = next(option for option in list_search_options(session, search_status) if option.config == config)
        (reason,) = failed.outcome.reasons
        assert failed.outcome.outcome is Outcome.FAIL and reason.startswith("the engine yields 3 dB ")
        page.options = list_search_options(session, search_status)
        page.update_lines()
        assert (
            sum(line.endswith(f" FAIL ~{passing[0].outcome.outcome.value}") for line in page_text(page).splitlines())
            == 1
        )
        assert reason in search_check_texts(session, search_status, failed)
        explained = explain_search_option(session, search_status, failed)
        assert any("FAIL counts" in text for _, text in explained.texts)
        accuracy = failed.accuracy
        session.results.store_missing_accuracy(config, accuracy)
        doubts = session.config_names.search_doubts
        doubts[config, "sqnr>=40"] = SearchDoubt("the engine yields 3 dB", frozenset({RunKind.BUILT_ENGINE}))
        outcome = session.config_target_outcomes(config)[RunKind.SIMULATED_CONFIG]  # the main screen says the same
        assert outcome.outcome is Outcome.FAIL and "the engine yields 3 dB" in outcome.reasons
        # What the app itself executed counts as well.
        doubts.clear()
        search_status.end_event = replace(search_status.end_event, missed_checks={})
        assert {option.config: option.outcome.passes for option in list_search_options(session, search_status)}[config]
        results = session.results.get_or_create_results(config)
        poor = session.results.get_results_or_empty(search_status.request.config).accuracy
        for accuracy, outcome in (
            (poor, Outcome.FAIL),
            (replace(poor, samples=5, total=5, intervals=None), Outcome.UNCERTAIN_FAIL),
        ):
            results.runs = {**results.runs, RunKind.EXPORTED_FILE: ExportedRun(accuracy, "ONNX Runtime 1 CPU", "cpu")}
            failed = next(option for option in list_search_options(session, search_status) if option.config == config)
            assert failed.outcome.outcome is outcome
            assert find_decisive_outcome(session.config_target_outcomes(config)).outcome is outcome
            assert failed.outcome.reasons[0].startswith(EXPORT_YIELDS) and "~" not in failed.outcome.reasons[0]


async def test_the_samples_of_a_search_are_named_only_if_the_current_config_has_others(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await answered(pilot, "a", "enter", "a", "enter")
        session, search_status = main.session, main.session.search_status
        count, results = search_status.sample_count, session.results[session.config]
        results.store_accuracy(replace(results.accuracy, samples=count, total=count))
        session.results.pop(search_status.request.config)
        data = replace(session.opened_network.data, what_if_count=count + 8, judged_count=count + 8)
        session._opened_network = replace(session.opened_network, data=data)
        search_status.end_event = replace(search_status.end_event, has_other_samples=False)
        assert f", {count} samples" in search_page_title(session, search_status)
        progress = search_status.progress
        search_status.end_event, search_status.progress = None, replace(progress, has_other_samples=True)
        assert f", other {count} of {count + 8} samples" in search_page_title(session, search_status), "while it runs"


async def test_the_outcome_of_another_target_is_none_of_the_search(tmp_path):
    async with opened(tmp_path, searched=0) as (app, main, pilot):
        await answered(pilot, "a", "enter")
        main.session.child.searched = 2
        await settle(pilot)
        session, search_status = main.session, main.session.search_status
        assert list_search_options(session, search_status)[0].outcome is not None
        session.set_target("sqnr>=1")
        await settle(pilot)
        assert session.config_target_outcomes(session.config)
        assert list_search_options(session, search_status)[0].outcome is None


def test_offered_configs_differ_and_each_change_shows_the_value_without_it(session, tmp_path):
    """Raised layers leave ranges without effect, which the search had chosen before."""
    driven = session(save_resnet(tmp_path, samples=12), LocalSession, target="sqnr>=42", resume=False)
    driven.start()
    driven.until_type(ev.NetworkOpened)
    driven.start_search(make_search_request(driven.config, ("sqnr>=42",), try_zero_cost=False))
    driven.until_type(ev.SearchEnded)
    search_status = driven.search_status
    best = search_status.best_evaluation
    options = list_search_options(driven, search_status)
    (result,) = (option for option in options if option.relation == RESULT)
    assert len(result.config.range_moves) < len(best.range_moves)
    effects = {(option.config.find_raised_groups(driven.outline), option.evaluation.score) for option in options}
    assert len(effects) == len(options)
    lines = search_change_lines(driven, TreeModel(driven.outline), search_status, result, 120, True)[1:]
    assert len(lines) == len(best.raised_groups) + len(result.config.range_moves)
    raises = [line[-1][0] for line in lines if any(text.strip() == "FP32" for text, _ in line)]
    assert len(raises) == len(best.raised_groups) and all("FAIL" in text for text in raises)
    for width in (58, 78):
        narrow = search_change_lines(driven, TreeModel(driven.outline), search_status, result, width, True)[1:]
        assert all(line_width(line) <= width for line in narrow)
        names = {text.strip() for line in narrow for text, _ in line}
        assert {TreeModel(driven.outline).titles[name] for name in best.raised_groups} <= names


@pytest.mark.parametrize(
    ("missed_runs", "is_checked"),
    [
        ({RunKind.EXPORTED_FILE}, True),
        ({RunKind.EXPORTED_FILE, RunKind.BUILT_ENGINE}, False),
        ({RunKind.SIMULATED_CONFIG}, False),
        (set(RunKind), False),
    ],
)
def test_a_search_takes_back_the_doubt_that_it_has_checked_again(session, tmp_path, missed_runs, is_checked):
    driven = session(save_resnet(tmp_path, samples=12), LocalSession, target="sqnr>=42", resume=False)
    driven.start()
    driven.until_type(ev.NetworkOpened)
    request = make_search_request(driven.config, ("sqnr>=42",), try_zero_cost=False, try_ranges=False)
    for doubted in (False, True):
        driven.start_search(request)
        driven.until_type(ev.SearchEnded)
        driven.until_idle()
        doubts, result = driven.config_names.search_doubts, driven.search_status.end_event.result.config
        others = {other.config for other in driven.search_status.end_event.evaluations} - {result}
        assert others and {config for config, targets in doubts if targets == "sqnr>=42"} == (
            others | (set() if is_checked else {result}) if doubted else set()
        )
        doubt = SearchDoubt("it missed the target", frozenset(missed_runs))
        doubts.update(dict.fromkeys(((config, "sqnr>=42") for config in (result, *others)), doubt))
        doubts[result, "sqnr>=1"] = doubt
    assert doubts[result, "sqnr>=1"] == doubt, "the doubt of a search for another target stays"


def test_a_doubt_stays_when_a_later_search_misses_another_check(session, tmp_path, monkeypatch):
    driven = session(save_resnet(tmp_path, samples=12), LocalSession, target="sqnr>=42", resume=False)
    driven.start()
    driven.until_type(ev.NetworkOpened)
    for runs in ({RunKind.BUILT_ENGINE}, {RunKind.EXPORTED_FILE}, set()):
        monkeypatch.setattr(ev.SearchEnded, "find_missed_checks", lambda *_, runs=runs: dict.fromkeys(runs, "missed"))
        driven.start_search(make_search_request(driven.config, ("sqnr>=42",), try_zero_cost=False, try_ranges=False))
        driven.until_type(ev.SearchEnded)
        driven.until_idle()
    result = driven.search_status.end_event.result.config
    doubt = driven.config_names.search_doubts[result, "sqnr>=42"]
    assert doubt.missed_runs == {RunKind.BUILT_ENGINE}, "only the exported network was checked again"


async def test_a_resumed_session_remembers_the_doubt_of_a_search(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await answered(pilot, "a", "enter")
        session, config = main.session, main.session.search_status.best_config
        missed_runs = frozenset({RunKind.SIMULATED_CONFIG, RunKind.BUILT_ENGINE})
        doubt = SearchDoubt("on 16 held-out samples it misses the target", missed_runs)
        session.config_names.search_doubts[config, "sqnr>=40"] = doubt
        await answered(pilot, "a", "enter")
        assert session.config == config
        stored = SavedSession.from_state(session.outline, session.history, session.config_names, session.target.text)
        names = msgspec.json.decode(msgspec.json.encode(stored), type=SavedSession).to_config_names()
        assert names.search_doubts == {(config, "sqnr>=40"): doubt} == session.config_names.copy().search_doubts
        session.search_status, session.saved_sha256 = None, "of the network"
        session.config_names = ConfigNames([(PrecisionConfig(), "c0")])  # no layer that a search raised
        await press(pilot, "a")
        assert isinstance(app.screen, ConfigSearchDialog) and app.screen.may_have_lost_result
        await press(pilot, "escape")
        session.config_names = names
        outcome = session.config_target_outcomes(config)[RunKind.SIMULATED_CONFIG]
        assert outcome.outcome is Outcome.FAIL and doubt.text in outcome.reasons
        other = session.config.with_group_precision([session.outline.groups[0]], Precision.BF16)
        values = session.results[config].accuracy
        for change, is_doubted in ((0.0, True), (0.1, False)):
            changed = {
                name: replace(one, errors=replace(one.errors, sqnr_db=one.errors.sqnr_db + change))
                for name, one in values.outputs.items()
            }
            session.results.get_or_create_results(other).store_accuracy(replace(values, outputs=changed))
            reasons = session.config_target_outcomes(other)[RunKind.SIMULATED_CONFIG].reasons
            assert (doubt.text in reasons) is is_doubted, "a change without effect keeps the doubt"
        names.search_doubts[config, "sqnr>=41"] = names.search_doubts.pop((config, "sqnr>=40"))
        outcome = session.config_target_outcomes(config)[RunKind.SIMULATED_CONFIG]
        assert doubt.text not in outcome.reasons, "the search had another target"


async def test_the_page_of_a_search_follows_it(tmp_path):
    async with opened(tmp_path, searched=0) as (app, main, pilot):
        await answered(pilot, "a", "enter")
        await press(pilot, "a")
        assert "no config yet" in status(main) and app.screen is main
        main.session.child.searched = 2
        await settle(pilot)
        await press(pilot, "a")
        page, session, search_status = app.screen, main.session, app.screen.search_status
        current, best = page.options
        assert session.results[session.config].accuracy.samples == 8 != best.accuracy.samples
        assert current.accuracy is None and current.config != best.config, "it has a value of other samples"
        row = next(line for line in page_text(page).splitlines() if CURRENT in line)
        shown_outcome = row.rpartition(current.outcome.outcome.value)[2]
        assert numbers(shown_outcome) == [8] and "main screen" in shown_outcome, "an outcome names them"
        progress = search_status.progress
        search_status.progress = replace(progress, result=replace(progress.result, config=session.config))
        current, best = list_search_options(session, search_status)
        assert current.config == best.config and current.accuracy == best.accuracy
        search_status.progress = progress
        shown = page.selected_search_option
        assert shown.relation == BEST_SO_FAR and "running" in page_text(page)
        assert not lacking(page_text(page), BEST_SO_FAR, "all in FP32"), "the second config shows what is possible"
        main.session.child.searched = None
        await settle(pilot)
        assert page.selected_search_option.config == main.session.search_status.best_config != shown.config
        assert page.selected_search_option.relation == RESULT and RESULT in page_text(page)


async def test_a_dialog_of_fields_names_the_keys_of_a_choice_only_on_a_choice(tmp_path):
    async with opened(tmp_path, size=LARGE) as (app, main, pilot):
        for key, enter_text in (("a", "starts"), ("5", "applies all at once")):
            await answered(pilot, key)
            assert isinstance(app.screen, FieldsDialog)
            kinds = set()
            for _ in app.screen.focus_chain:
                hints = app.screen.query_one(KeyHints).render().plain
                is_choice = isinstance(app.screen.focused, ChoiceField)
                assert (" change" in hints) is is_choice and hints.startswith(f"{shown_key('open')} {enter_text}")
                kinds.add(is_choice)
                await press(pilot, "down")
            assert kinds == {True, False}
            await press(pilot, "escape")
