"""No job opens, closes or moves what has the focus: what it leads to waits on the main screen for a key."""

import pytest
from textual.widgets import Input

from tests.local import H200
from tests.screen import answered, opened, press, settle, status, verdict
from trt_tui.core.measure.results import ExportedRun, RunKind
from trt_tui.core.moves.config import find_network_range_method
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.tui.screens.dialogs import ErrorDialog, KeyHints, Picker
from trt_tui.tui.screens.forms import ExportDialog

pytestmark = pytest.mark.usefixtures("quick")

PLACES = {
    "the rows": ("end", "up"),
    "a dialog": ("p",),
    "a line to type": ("g",),
    "a page": ("o",),
    "the jobs": ("f9",),
    "the configs": ("4",),
    "the filter": ("slash", "c"),
}
"""Where the keys may be, and how they get there."""


def place(app):
    """What has the keys, and where its cursor stands."""
    line = app.main_screen.layer_tree.current_row
    return (app.screen, app.focused, line.key if line is not None else None, len(app.screen_stack))


async def test_no_job_moves_what_has_the_focus(tmp_path):
    """Every kind of job that a user asks for ends, well, badly and stopped, while the keys are somewhere."""
    held = (rq.CompareRangeMethods, rq.BuildEngine, rq.FindMixedPrecisionConfig, rq.WriteTextFile, rq.SetRanges)
    options = {"network": "tiny_resnet", "size": (120, 40), "builder": H200}
    async with opened(tmp_path, **options) as (app, main, pilot):
        session, first = app.session, app.session.config
        for where, keys in PLACES.items():
            session.child.held.update(held)
            session.compare_range_methods()
            session.request_build()
            session.set_ranges(session.outline.calibrated_tensors[:1], "2.5")
            session.export_config("json", tmp_path / f"{where}.json")
            await press(pilot, *keys)
            before = place(app)
            session.last_built_config = None
            session.child.release()
            await settle(pilot)
            assert place(app) == before and session.method_comparison is not None, where
            assert session.last_built_config == first != session.config and (tmp_path / f"{where}.json").exists()
            for event in (
                ev.JobFailed(99, TrtTuiError("out of memory", "it is full", "Free some.")),
                ev.ChildProcessDied(99, -9, "Killed"),
                ev.JobCancelled(99),
            ):
                app.post_session_event(event)
                await settle(pilot)
                assert place(app) == before, (where, event)
            await press(pilot, "escape", "escape", "escape", "z")
            assert app.screen is main and main.layer_tree.has_focus and session.config == first, where


async def test_a_search_that_ends_leaves_the_keys_where_they_are(tmp_path):
    async with opened(tmp_path, network="tiny_resnet", target="sqnr>=40", searched=5) as (app, main, pilot):
        await answered(pilot, "a", "enter")
        await press(pilot, "p")
        before = place(app)
        session = app.session
        session.child.searched = None
        await settle(pilot)
        assert place(app) == before and isinstance(app.screen, Picker) and not session.is_searching


async def test_keys_typed_while_methods_are_compared_choose_no_method(tmp_path):
    async with opened(tmp_path, network="tiny_resnet", held=(rq.CompareRangeMethods,)) as (app, main, pilot):
        await press(pilot, "7", "p")
        group = main.current_group
        app.session.child.release()
        await settle(pilot)
        await answered(pilot, "3")
        assert app.session.config.precision_of(group) is Precision.FP32
        assert not find_network_range_method(app.session.config, app.session.outline)
        await answered(pilot, "z")
        await press(pilot, "7")
        assert isinstance(app.screen, Picker) and "Calibration methods" in app.screen.heading


async def test_a_failure_waits_until_it_is_asked_for_or_closed(tmp_path):
    async with opened(tmp_path, network="tiny_resnet") as (app, main, pilot):
        for closing in ("o", "escape"):
            app.post_session_event(ev.JobFailed(99, TrtTuiError("out of memory", "it is full", "Free some.")))
            await settle(pilot)
            await press(pilot, "down")
            assert "out of memory: o shows why" in status(main)
            await press(pilot, closing)
            assert isinstance(app.screen, ErrorDialog) is (closing == "o")
            await press(pilot, "escape")
            assert app.screen is main and "shows why" not in status(main)


async def test_the_dialog_of_an_export_closes_when_its_file_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path, network="tiny_resnet") as (app, main, pilot):

        def keys():
            return str(app.screen.query_one(KeyHints).render())

        await press(pilot, "e")
        assert keys().startswith("enter chooses the format")
        await press(pilot, "enter")
        app.screen.query_one(Input).value = str(tmp_path / "c.json")
        await answered(pilot, "enter")
        assert app.screen is main and "Wrote" in status(main) and (tmp_path / "c.json").exists()
        await press(pilot, "e", "enter")
        app.screen.query_one(Input).value = str(tmp_path / "nowhere" / "d.json")
        await answered(pilot, "enter")
        assert isinstance(app.screen, ExportDialog) and keys().startswith("enter writes it")
        await press(pilot, "escape")
        exported_run = ExportedRun(None, "ONNX Runtime 1 CPU", "cpu", options="without its optimizer A")
        results = main.session.results.get_or_create_results(main.session.config)
        results.runs = {**results.runs, RunKind.EXPORTED_FILE: exported_run}
        await press(pilot, "e")
        note = app.screen.query_one("#note")
        assert exported_run.options in str(note.render()) and "--shapes" not in str(note.render())
        is_open = any(info.has_open_size for info in main.session.outline.inputs)
        await press(pilot, "down", "down")
        assert ("--shapes" in str(note.render())) is is_open is True, "a bundle has the shapes of the samples"


async def test_a_change_of_the_calibration_is_named_undone_and_saved(tmp_path):
    async with opened(tmp_path, network="tiny_resnet") as (app, main, pilot):
        session, before = app.session, app.session.config
        old = session.get_run_results("config").accuracy
        await answered(pilot, "7", "7", "3")
        assert find_network_range_method(session.config, session.outline) == "entropy"
        assert {one.method for one in session.config.range_moves.values()} == {"entropy"}
        assert session.config.range_moves.keys() == set(session.outline.calibrated_tensors)
        assert "c1 · entropy" in verdict(main)[-1]
        best = {row.method: row.accuracy for row in session.method_comparison.rows}["entropy"]
        assert session.get_run_results("config").accuracy.outputs == best.outputs, "it has the figures of the table"
        assert session.get_run_results("int8").accuracy == old
        assert not main.layer_list.row_values.config_change_marks(session.outline.groups[0])
        await answered(pilot, "z")
        assert session.config == before and session.get_run_results("config").accuracy == old
        await answered(pilot, "full_stop", "7", "7")
        assert app.screen.chosen_value == "entropy" if isinstance(app.screen, Picker) else True
        await answered(pilot, "1")
        assert session.config == before, "its own method is the file's calibration"
        await answered(pilot, "z")
        assert find_network_range_method(session.config, session.outline) == "entropy"
