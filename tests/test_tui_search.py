"""Finding the fix in the app: trt_tui.tui.screens.find, the key, the marks, the status line, taking over and undo."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial

import pytest
from textual.widgets import Input, Static

from tests.test_tui import RESNET, VIT, press, quick, settle, status  # noqa: F401
from tests.test_tui_snapshots import LARGE, SMALL, keys
from tests.tui_fake import H200, FakeSession
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.measure.shares import Impact
from trt_tui.core.measure.target import parse_target
from trt_tui.core.network.hierarchy import GroupRow
from trt_tui.core.precision import Precision
from trt_tui.core.search import PRESETS, SEARCH_METHODS, Outcome
from trt_tui.jobs import messages as m
from trt_tui.jobs.searching import Bench, SearchJob
from trt_tui.options import Options
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.screens import find as dialog
from trt_tui.tui.screens.dialogs import ErrorDialog, Question
from trt_tui.tui.screens.find import STRATEGIES, FindDialog, Setting, parse_budget
from trt_tui.tui.state.figures import FOUND
from trt_tui.tui.widgets.lines import Lines, Rule


class FakeBench(Bench):
    """Measures by the figures of the fake child process; engines are worse than simulated by what its session says."""

    def __init__(self, session: SearchingSession, events: list[m.Event], job: int) -> None:
        self.session, self.events, self.job = session, events, job
        self.builds = session.known_builder is not None and session.known_builder.runs
        self.checks = False

    def verdict(self, config):
        yield
        return self.session.verdict(config)

    def impacts(self, config, names):
        yield
        part = {group.name: self.session.part(group, config) for group in self.session.known.groups}
        return {name: Impact(share.owns, share.kept_db, share.impact_db, part[name])
                for name, share in self.session.shares(config).items() if name in names}

    def ranges(self, groups):
        return {}

    def build(self, config):
        yield
        verdict = self.session.verdict(config, offset=-self.session.worse_db)
        result = EngineResult(verdict, "TensorRT 11.4", (1.0, 0.9, 1.2), 10**7)
        self.events.append(m.Built(self.job, config, result))
        return result

    def built(self, config):
        return False

    def report(self, work, heard=False):
        self.events.append(work.progress(self.job))


class SearchingSession(FakeSession):
    """The real search over the figures of the fake child process, up to as many evaluations as a test asks for.

    Args:
        evaluations: A search is held there as if it were still running; None lets it end.
        worse_db: How many dB the engines that a search builds are worse than simulated.
    """

    def __init__(self, *args, evaluations: int | None = None, **options) -> None:
        super().__init__(*args, **options)
        self.evaluations = evaluations

    def ask(self, request: m.Request) -> None:
        super().ask(request)
        if isinstance(request, m.FindConfig):
            for event in self.search_events(len(self._client.sent), request):
                self.deliver(event)

    def search_events(self, job: int, request: m.FindConfig) -> list[m.Event]:
        events: list[m.Event] = []
        self.work = SearchJob(self.known, request, [parse_target(text) for text in request.tolerances],
                              FakeBench(self, events, job))
        for _ in self.work.steps():
            if self.evaluations is not None and len(self.work.search.evaluations) >= self.evaluations:
                return events
        return [*events, self.work.ended(job), m.Done(job)]

    def stop_job(self) -> None:
        """Answers as the child process does: with what was found, then that it stopped."""
        jobs = dict(self.asked)
        super().stop_job()
        for job, request in jobs.items():
            if isinstance(request, m.FindConfig):
                self.deliver(self.work.ended(job))
            self.deliver(m.Cancelled(job))


def make_app(folder, outline=VIT, target="sqnr>=20", **fake) -> TrtTuiApp:
    options = Options("vit.onnx", data="samples.npz")
    return TrtTuiApp(options, partial(SearchingSession, outline=outline, store=folder / "store", **fake), target=target,
                     resume=False)


@asynccontextmanager
async def opened(folder, size=(80, 24), **options):
    app = make_app(folder, **options)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        yield app, app.main, pilot


async def find(pilot, *keys: str) -> None:
    """Opens the dialog, presses keys in it, starts."""
    await press(pilot, "a", *keys, "enter")
    await settle(pilot)


def raised(main) -> tuple[str, ...]:
    return main.session.config.raised(main.session.outline)


def test_every_preset_can_be_chosen():
    assert dialog.PRESET_TEXTS.keys() == PRESETS.keys()


def test_every_method_can_be_chosen():
    assert set(STRATEGIES) == set(SEARCH_METHODS) and next(iter(STRATEGIES)) == "auto"


async def test_what_is_found_becomes_the_config_in_one_step(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        before = main.session.config
        await find(pilot)
        assert 1 <= len(raised(main)) <= 4 and main.session.target.reached(main.session.measured("config").verdict)
        assert {choice.reason for choice in main.session.config.groups.values()} == {"search:auto"}
        assert "meet the tolerance" in status(main) and "z takes it back" in status(main)
        await press(pilot, "z")
        assert main.session.config == before and not main.session.history.can_undo
        await press(pilot, "full_stop")
        assert raised(main)


async def test_every_layer_it_set_says_why(tmp_path):
    async with opened(tmp_path, size=(120, 40)) as (app, main, pilot):
        await find(pilot)
        main.desk.go_to(raised(main)[0])
        await settle(pilot)
        text = " ".join(main.query_one("#detail", Lines).text.split())
        assert "by search:auto" in text and "without it" in text and "(fails), with it" in text


async def test_nothing_to_find_where_the_target_is_met(tmp_path):
    async with opened(tmp_path, target="sqnr>=5") as (app, main, pilot):
        await press(pilot, "a")
        assert "meets the target already" in status(main) and app.screen is main
        assert not any(isinstance(request, m.FindConfig) for request in main.session._client.sent)


FROM_FP8 = (Precision.FP32, (Precision.FP8, Precision.FP16))
"""The last choice of what layers are raised to: FP32, or FP8 or FP16 where that does."""


async def test_the_dialog_is_what_is_searched(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "a")
        assert isinstance(app.screen, FindDialog) and app.screen.query_one("#tolerance", Input).value == "sqnr>=20"
        app.screen.query_one("#tolerance", Input).value = "sqnr>=2x"
        await press(pilot, "enter")
        note = app.screen.query_one("#note", Static)
        assert note.has_class("bad") and not main.session.searching
        app.screen.query_one("#tolerance", Input).value = "sqnr>=25"
        await press(pilot, "down", "down", "right", "down", "left", "down", "right", "down", "space")
        assert [one.value for one in app.screen.query(Setting)] == ["greedy", FROM_FP8, ("layernorm",), False]
        await press(pilot, "enter")
        await settle(pilot)
        request = next(one for one in main.session._client.sent if isinstance(one, m.FindConfig))
        assert (request.tolerances, request.method, (request.higher, request.rungs), request.ranges) == (
            ("sqnr>=25",), "greedy", FROM_FP8, False)
        assert request.max_builds == 0 and main.session.target.text == "sqnr>=25"
        assert request.presets == ("layernorm",) and request.max_raised is request.max_latency is None
        assert {choice.reason for choice in main.session.config.groups.values()} == {"search:greedy"}


async def test_a_budget_is_kept_and_its_best_offered(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        before = main.session.config
        await press(pilot, "a", "down", *"2 ms", "enter")
        assert "none runs here" in str(app.screen.query_one("#note", Static).render())
        app.screen.query_one("#budget", Input).value = "two"
        await press(pilot, "enter")
        assert "a budget is like 8 layers" in str(app.screen.query_one("#note", Static).render())
        app.screen.query_one("#budget", Input).value = "2 layers"
        await press(pilot, "enter")
        await settle(pilot)
        assert isinstance(app.screen, Question) and main.session.config == before
        assert main.session.finding.ended.result.outcome is Outcome.SHORT
        await press(pilot, "y")
        await settle(pilot)
        assert len(raised(main)) == 2 and "not met" in status(main)


@pytest.mark.parametrize(("text", "budget"), [
    ("8", (8, None)), ("8 layers", (8, None)), ("1 layer", (1, None)), ("1.5 ms", (None, 1.5)), ("2ms", (None, 2.0)),
    ("", (None, None)), ("1.5", (None, None)), ("1.5 layers", (None, None)), ("-1 ms", (None, None)),
])
def test_budgets_are_read(text, budget):
    assert parse_budget(text) == budget


async def test_escape_starts_nothing(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "a", "escape")
        assert app.screen is main and main.session.finding is None


async def test_while_it_runs_status_and_tree_show_the_best_so_far(tmp_path):
    async with opened(tmp_path, size=(120, 40), evaluations=8) as (app, main, pilot):
        await find(pilot)
        finding = main.session.finding
        assert main.session.searching and finding.met
        assert "tried; best so far: 3 in FP32: met, ~20.2 dB" in status(main) and "a takes the best so far" in status(
            main)
        marks = main.desk.listing.figures.marks
        assert set(finding.best.raised) == {name for name, mark in marks.items() if mark == FOUND}
        marked = [line.row.group.name for line in main.desk.listing.rows() if isinstance(line.row, GroupRow)
                  and main.desk.listing.figures.cells(line).mark == FOUND]
        assert marked and set(marked) <= set(finding.best.raised)
        assert "raised in the best so far" in main.query_one("#tree-rule", Rule).text


async def test_the_best_so_far_can_be_taken_over_while_it_runs(tmp_path):
    async with opened(tmp_path, evaluations=8) as (app, main, pilot):
        before = main.session.config
        await find(pilot)
        best = main.session.finding.config
        await press(pilot, "a")
        assert isinstance(app.screen, Question) and "3 in FP32: met" in app.screen.question
        await press(pilot, "y")
        await settle(pilot)
        assert main.session.config == best and not main.session.searching and app.screen is main
        assert main.session._client.stopped == 1 and not main.desk.listing.figures.marks
        assert main.session.why.keys() == set(raised(main))
        await press(pilot, "z")
        assert main.session.config == before


async def test_stopped_it_offers_what_it_found(tmp_path):
    async with opened(tmp_path, evaluations=8) as (app, main, pilot):
        before = main.session.config
        await find(pilot)
        await press(pilot, "x")
        await settle(pilot)
        assert isinstance(app.screen, Question) and "Take what the search found" in app.screen.question
        assert main.session.config == before and main.session.finding.config in main.session.names
        await press(pilot, "n")
        assert main.session.config == before
        await press(pilot, "c")
        assert len(main.session.names) == 2


async def test_stopped_one_key_takes_it(tmp_path):
    async with opened(tmp_path, evaluations=8) as (app, main, pilot):
        await find(pilot)
        await press(pilot, "x")
        await settle(pilot)
        await press(pilot, "y")
        await settle(pilot)
        assert main.session.config == main.session.finding.config and raised(main)


async def test_killed_it_offers_the_best_that_was_told(tmp_path):
    async with opened(tmp_path, evaluations=8) as (app, main, pilot):
        await find(pilot)
        job = next(number for number, one in main.session.asked.items() if isinstance(one, m.FindConfig))
        app.deliver(m.Cancelled(job))
        await settle(pilot)
        assert isinstance(app.screen, Question) and main.session.finding.ended is None
        await press(pilot, "y")
        await settle(pilot)
        assert raised(main) == main.session.finding.best.raised


async def test_nothing_is_taken_before_there_is_something(tmp_path):
    async with opened(tmp_path, evaluations=0) as (app, main, pilot):
        await find(pilot)
        await press(pilot, "a")
        assert "nothing was found yet" in status(main) and app.screen is main


async def test_a_tolerance_out_of_reach_changes_nothing(tmp_path):
    async with opened(tmp_path, target="max_abs<=0") as (app, main, pilot):
        before = main.session.config
        await press(pilot, "a")
        app.screen.query_one("#tolerance", Input).value = "max_abs<=-1"
        await press(pilot, "enter")
        await settle(pilot)
        assert main.session.config == before and "cannot be met" in status(main)


async def test_a_config_edited_meanwhile_is_not_replaced(tmp_path):
    async with opened(tmp_path, evaluations=8) as (app, main, pilot):
        await find(pilot)
        await press(pilot, "space")
        edited = main.session.config
        job = next(number for number, one in main.session.asked.items() if isinstance(one, m.FindConfig))
        main.session.evaluations = None
        for event in main.session.search_events(job, main.session.finding.request):
            app.deliver(event)
        await settle(pilot)
        assert main.session.config == edited and "c lists it" in status(main)


async def test_engines_confirm_what_was_found(tmp_path):
    async with opened(tmp_path, builder=H200, worse_db=3.0) as (app, main, pilot):
        await press(pilot, "a")
        assert app.screen.query_one("#builds", Setting).value == 3
        await press(pilot, "enter")
        await settle(pilot)
        ended = main.session.finding.ended
        assert ended.confirmed and "margin" in ended.remarks[0] and raised(main)
        engine = main.session.results[main.session.config].engine
        assert main.session.target.reached(engine.verdict)


async def test_a_bad_search_is_told_in_a_dialog(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "a", "enter")
        await settle(pilot)
        app.deliver(m.Failed(99, "no metric", "none was named", "Name one."))
        await settle(pilot)
        assert isinstance(app.screen, ErrorDialog)


# -- pictures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def coloured(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_dialog_picture(snap_compare, tmp_path, coloured, size):
    builder = H200 if size is LARGE else None
    assert snap_compare(make_app(tmp_path, builder=builder), terminal_size=size, run_before=keys("a", "down", "down"))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_running_picture(snap_compare, tmp_path, coloured, size):
    assert snap_compare(make_app(tmp_path, evaluations=8), terminal_size=size, run_before=keys("a", "enter"))


def test_found_picture(snap_compare, tmp_path, coloured):
    assert snap_compare(make_app(tmp_path), terminal_size=LARGE, run_before=keys("a", "enter", "n"))
