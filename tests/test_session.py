"""trt_tui.session.session: what is kept, resumed and shown again"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import LocalSession, save_mlp
from tests.schemas import mismatches
from trt_tui.cli.main import main
from trt_tui.cli.report import comparison_table
from trt_tui.core.calibration.statistics import TensorStats
from trt_tui.core.exporters.markdown import comparison_markdown
from trt_tui.core.guards.facts import InFloat
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.file import config_text, read_config
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.production import Production
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.options import Options
from trt_tui.session import state
from trt_tui.session.events import Events
from trt_tui.session.history import ConfigNames
from trt_tui.tui.state.detail import reasons
from trt_tui.tui.state.figures import Figures
from trt_tui.tui.state.tree import TreeModel
from trt_tui.tui.state.verdict import verdict_lines
from trt_tui.words import number

FP16 = PrecisionConfig.uniform(Precision.FP16)
INT8 = PrecisionConfig.uniform(Precision.INT8)


pytestmark = pytest.mark.shares_cache


@pytest.fixture
def session(session):
    """Makes sessions that are answered in this process."""
    return partial(session, kind=LocalSession)


def test_everything_is_compared_without_being_asked(session):
    driven = session().settled()
    groups = {group.name for group in driven.outline.groups}
    for run in ("fp16", "int8", "config"):
        record = driven.measured(run)
        assert record.verdict.samples == record.verdict.total == 12
        assert set(record.groups) == groups == set(record.shares) and record.complete
    assert driven.measured("config").verdict is driven.measured("int8").verdict
    assert driven.results[INT8].raised_order and set(driven.results[INT8].shares) == groups
    assert driven.target.kind == "sqnr" and driven.sha256 == open_network(driven.options.model).sha256()


def test_a_quantized_network_opens_as_in_its_file_and_goes_back_to_it(session, tmp_path):
    onnx.save(networks.quantized(symmetric=False), tmp_path / "quantized.onnx")
    np.savez(tmp_path / "images.npz", image=networks.random_images(np.random.default_rng(0), (8, 3, 16, 16)))
    driven = session(Options(str(tmp_path / "quantized.onnx"), str(tmp_path / "images.npz"), batch=4)).settled()
    as_given = PrecisionConfig.uniform(Precision.FILE)
    assert driven.config == as_given and driven.measured("config").complete
    assert driven.measured("config").verdict.energy > 0
    exported = driven.measured("config").exported
    assert exported.outputs.keys() == driven.measured("config").verdict.outputs.keys()
    assert 0 < exported.energy != driven.measured("config").verdict.energy
    runs = driven.record()["runs"]
    assert runs["config"]["as_in_file"] and runs["exported"]["source"] == "simulated" and not mismatches(
        driven.record(), "comparison-v1")
    report = comparison_markdown(driven.record(), driven.outline, driven.config)
    assert all(f"\n| {name} | simulated | ~" in report for name in ("as in the file", "as exported"))
    assert "## Where the file loses" in report and "| config |" not in report
    table = [row.split("  ")[0] for row in comparison_table(driven).splitlines() if row.startswith("as ")]
    assert table[:2] == ["as in the file", "as exported"]
    group = next(group for group in driven.outline.groups if group.activations()
                 and group.activations()[0].tensor in driven.outline.quantized_ranges)
    tensor = group.activations()[0].tensor
    stats = TensorStats(9e3, 1.0, 1.0, 1.0, 9, 0, (0,) * 30 + (9,) + (0,) * 33, 0.0, 0.0, 0, {}, None)
    driven.results.statistics[group.name] = {tensor: stats}
    said = " ".join(reasons(driven, Figures(TreeModel(driven.outline), driven.config), group))
    assert f"the file's range {number(driven.outline.quantized_ranges[tensor])} of amax 9000" in said
    lines = ["".join(part for part, _ in line) for line in verdict_lines(driven, 80)]
    assert lines[-1].startswith(" as exported ") and "~" in lines[-1] and all(len(line) <= 80 for line in lines)
    driven.toggle(driven.outline.groups[:1])
    driven.until_idle()
    assert 0 < driven.measured("config").exported.energy < exported.energy, "one is raised, the others as in the file"
    driven.undo()
    driven.toggle(driven.outline.groups)
    assert driven.measured("config").exported is None, "nothing is as in the file"
    assert {driven.config.precision_of(group) for group in driven.outline.groups} == {Precision.FP32}
    driven.toggle(driven.outline.groups)
    assert driven.config == as_given


def test_a_change_is_measured_and_undo_shows_the_old_results_at_once(session):
    driven = session().settled()
    group = driven.outline.groups[0]
    before = driven.measured("config")
    driven.toggle([group])
    assert driven.config.precision_of(group) is Precision.FP32
    assert driven.measured("config").verdict is None and driven.measured("int8").verdict is not None
    driven.until_idle()
    changed = driven.measured("config")
    assert changed.verdict.energy < before.verdict.energy
    assert set(changed.groups) == set(changed.shares) == {g.name for g in driven.outline.groups} and changed.complete
    driven.undo()
    assert driven.measured("config").verdict == before.verdict and driven.measured("config").shares == before.shares
    assert driven.measured("config").groups == before.groups
    driven.redo()
    assert driven.measured("config").verdict == changed.verdict and driven.measured("config").groups == changed.groups
    driven.until_idle()


def test_the_work_in_floats_is_counted_once_for_a_config(session, monkeypatch):
    driven, counted = session().settled(), []
    monkeypatch.setattr(state, "in_float", lambda *of: counted.append(of) or InFloat(len(counted) / 2, False, 1, 2))
    for share, group in zip((0.5, 1.0), driven.outline.groups, strict=False):
        driven.toggle([group])
        assert {driven.guarded().in_float.share for _ in range(3)} == {share}
        assert counted[-1][1] == driven.config


def test_late_events_of_stopped_jobs_are_dropped(session):
    driven = session(automatic=False)
    driven.settled()
    driven.compare(layers=False)
    job = max(driven.asked)
    verdict = driven.until_type(ev.VerdictMeasured)
    driven.stop()
    log = len(driven.log)
    stray = replace(verdict, job=job, config=FP16.with_range("x", None), run="stray")
    driven.apply(replace(stray, config=PrecisionConfig.uniform(Precision.FP32)))
    assert PrecisionConfig.uniform(Precision.FP32) not in driven.results and len(driven.log) == log
    driven.until_idle()
    assert not driven.busy and driven.error is None


def events_of(base: type[ev.Event] = ev.Event) -> list[type[ev.Event]]:
    """All classes of events."""
    return [one for direct in base.__subclasses__() for one in (direct, *events_of(direct))]


@pytest.mark.parametrize("event", events_of(), ids=lambda event: event.__name__)
def test_a_session_takes_every_event(event):
    handlers = vars(Events)["take"].dispatcher
    assert handlers.dispatch(event) is not handlers.dispatch(object), f"a session does not know {event.__name__}"


def test_an_event_of_no_known_type_does_not_vanish(session):
    class Unheard(ev.Event):
        pass

    with pytest.raises(TypeError, match="Unheard"):
        session().apply(Unheard(1))


def test_stopping_the_opening_starts_no_comparison(session):
    driven = session()
    driven.start()
    driven.stop()
    driven.until_idle()
    assert not any(isinstance(event, ev.VerdictMeasured) for event in driven.seen)


def test_a_new_name_is_none_that_is_taken():
    names = ConfigNames({FP16: "c1", FP16.with_range("x", RangeChoice(1.0)): "best"})
    assert names.give(INT8) == "c2" and names.give(INT8) == "c2"
    assert ConfigNames({FP16: "c1"}).give(INT8) == "c2"


def test_history_names_and_target_are_resumed(session):
    first = session().settled()
    groups = first.outline.groups
    first.toggle([groups[0]])
    first.toggle([groups[1]])
    first.undo()
    first.set_target("cosine>=0.9")
    names, config = dict(first.names), first.config
    first.saver.close()  # nothing else is closed here: a session is saved as it changes
    second = session().settled()
    assert second.config == config and second.names == names
    assert second.target.text == "cosine>=0.9" and second.notice.startswith(f"Resumed: {names[config]}, 1 change")
    assert second.history.can_redo and second.redo() and second.config.precision_of(groups[1]) is Precision.FP32
    assert second.undo() and second.undo() and second.config == INT8 and not second.history.can_undo
    second.until_idle()


def test_no_export_takes_the_place_of_what_is_read(session, tmp_path):
    options = replace(save_mlp(tmp_path), calib_cache=str(tmp_path / "out.sh.cache"), metric=f"{tmp_path / 'm.py'}:f")
    config = tmp_path / "config.json"
    for path in (Path(options.calib_cache), tmp_path / "m.py", config):
        path.write_bytes(b"read")
    made = session(options, config_path=str(config))
    read = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for kind, path in (("markdown", options.model), ("precision.json", options.data), ("onnx", options.calib_cache),
                       ("markdown", tmp_path / "m.py"), ("trtexec", tmp_path / "out.sh"), ("markdown", config)):
        with pytest.raises(InputError, match="is read from"):
            made.export(kind, Path(path), overwrite=True)
    assert {path: path.read_bytes() for path in read} == read


def test_what_was_measured_is_shown_again_on_resuming(session):
    first = session().settled()
    first.toggle([first.outline.groups[0]])
    first.build()
    first.until_idle()
    known, built = first.measured("config"), first.built
    first.close()
    second = session()
    second.start()
    second.until(lambda e: isinstance(e, ev.Done) and not second.busy)
    again = second.measured("config")
    assert again is not known and (again.verdict, again.shares, again.executed) == (
        known.verdict, known.shares, known.executed)
    assert known.executed is not None and known.engine is None and second.built == built


def test_other_samples_do_not_keep_the_config_from_being_resumed(session, tmp_path):
    first = session().settled()
    first.toggle([first.outline.groups[0]])
    config = first.config
    first.close()
    options = save_mlp(tmp_path)
    np.savez(tmp_path / "more.npz", x=np.ones((8, 16), np.float32))
    assert session(replace(options, data=str(tmp_path / "more.npz"))).settled().config == config


def test_a_new_session_leaves_the_saved_one_alone(session):
    first = session().settled()
    first.toggle([first.outline.groups[0]])
    config = first.config
    first.close()
    fresh = session(resume=False).settled()
    assert fresh.config == INT8 and not fresh.notice
    fresh.toggle([fresh.outline.groups[1]])
    fresh.close()
    saved = [msgspec.json.decode(path.read_bytes()) for path in fresh.store.folder.glob("*.json")]
    moved = {move["target"] for one in saved for move in one["current"]["moves"]}
    assert moved == {*config.groups, *fresh.config.groups}


def test_two_terminals_on_one_network_do_not_overwrite_each_other(session):
    first = session().settled()
    first.toggle([first.outline.groups[0]])
    first.saver.flush()
    second = session().settled()
    assert second.config == first.config and any("another terminal" in text for text in second.warnings)
    second.toggle([second.outline.groups[1]])
    first.toggle([first.outline.groups[2]])
    ones, others = first.config, second.config
    first.close()
    second.close()
    assert session().settled().config == others
    kept = [{move["target"] for move in msgspec.json.decode(path.read_bytes())["current"]["moves"]}
            for path in first.store.folder.glob("*.json")]
    assert sorted(map(sorted, kept)) == sorted(map(sorted, (ones.groups, others.groups)))


@pytest.mark.parametrize("content", [b"nonsense", b'{"format": "trt-tui/session", "version": 99}'])
def test_a_session_that_cannot_be_taken_up_is_left_to_the_user(session, content):
    """One of another version stays where it is; a damaged one is kept aside, and its place is taken."""
    first = session().settled()
    first.toggle([first.outline.groups[0]])
    first.close()
    path, = first.store.folder.glob("*.json")
    path.write_bytes(content)
    second = session().settled()
    assert second.config == INT8 and not second.notice
    assert sum(str(path) in text for text in second.warnings) == 1
    second.toggle([second.outline.groups[0]])
    second.close()
    kept = path if b"version" in content else path.with_name(f"{path.name}.damaged")
    assert kept.read_bytes() == content
    third = session().settled()
    assert third.config == second.config != INT8


def test_a_full_disk_keeps_the_last_whole_session(session, monkeypatch):
    driven = session().settled()
    driven.toggle([driven.outline.groups[0]])
    driven.saver.flush()
    path, = driven.store.folder.glob("*.json")
    whole = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    driven.toggle([driven.outline.groups[1]])
    driven.until_idle()
    driven.saver.flush()
    assert path.read_bytes() == whole and [p.suffix for p in driven.store.folder.iterdir() if p.suffix == ".tmp"] == []


def test_a_config_file_brings_its_ranges_and_target(session, tmp_path):
    first = session().settled()
    first.toggle([first.outline.groups[0]])
    first.until_idle()
    first.set_target("sqnr>=12")
    path = tmp_path / "precision.json"
    assert str(path) in first.written("precision.json", path)
    with pytest.raises(InputError, match="exists"):
        first.export("precision.json", path)
    first.close()
    data = str(tmp_path / "mlp.npz")
    np.savez(data, x=np.full((16, 16), 1e-3, np.float32))
    second = session(config_path=str(path), resume=False).settled()
    assert second.config == first.config and second.target.text == "sqnr>=12"
    assert second.calibration.ranges == first.calibration.ranges, "not calibrated on the other data"
    loaded = read_config(path, open_network(second.options.model))
    assert loaded.calibration.ranges == first.calibration.ranges and loaded.evidence["simulated"]["outputs"]


def test_ranges_of_other_weights_are_measured_anew(session, tmp_path):
    first = session().settled()
    path = tmp_path / "precision.json"
    first.written("precision.json", path)
    first.close()
    onnx.save(networks.mlp(7), first.options.model)
    second = session(first.options, config_path=str(path), resume=False).settled()
    assert second.calibration.ranges != first.calibration.ranges
    assert any("range" in warning for warning in second.warnings)


def test_what_was_resumed_comes_back_by_undoing_the_config_file(session, tmp_path):
    first = session().settled()
    first.toggle([first.outline.groups[0]])
    first.close()
    network = open_network(first.options.model)
    path = tmp_path / "precision.json"
    path.write_text(config_text(network, INT8.with_groups([network.groups[1]], Precision.FP32)))
    second = session(config_path=str(path)).settled()
    assert set(second.config.groups) == {network.groups[1].name}
    assert second.undo() and second.config == first.config
    second.until_idle()


def test_a_config_that_cannot_be_read_is_an_error_and_the_network_is_compared(session, tmp_path):
    path = tmp_path / "precision.json"
    path.write_text("{}")
    driven = session(config_path=str(path))
    driven.start()
    driven.until_idle()
    assert "precision.json" in driven.error.title
    assert driven.config == INT8 and driven.measured("int8").complete


def test_exports_are_whole_and_say_where_they_are(session, tmp_path):
    driven = session().settled()
    for kind, name in (("onnx", "typed.onnx"), ("markdown", "report.md")):
        assert driven.written(kind, tmp_path / name) == f"Wrote {tmp_path / name}"
    onnx.checker.check_model(str(tmp_path / "typed.onnx"), full_check=True)
    assert "| " in (tmp_path / "report.md").read_text()
    with pytest.raises(InputError, match="unknown format"):
        driven.export("pdf", tmp_path / "report.pdf")
    there = sorted(tmp_path.iterdir())
    for length in (247, 300):  # that of a companion is too long, and that of the file itself
        driven.error = None
        driven.export("polygraphy", tmp_path / ("n" * length))
        driven.until_idle()
        assert driven.error.cause == "File name too long" and "shorter name" in driven.error.next_step
        assert sorted(tmp_path.iterdir()) == there


def test_the_next_range_goes_round_the_methods(session):
    driven = session().settled()
    group = driven.outline.groups[0]
    with pytest.raises(InputError, match="still being measured"):
        driven.next_range(group)
    driven.until_idle()
    seen = [driven.next_range(group) for _ in range(4)]
    assert seen == ["percentile", "entropy", "mse", "minmax"] and driven.config == INT8
    driven.set_precision([group], Precision.FP8)
    assert [driven.next_range(group) for _ in range(3)] == ["percentile", "mse", "minmax"]
    driven.until_idle()


@pytest.mark.parametrize("text", ["nothing:sqnr>=20", "metric>=0.5", "mismatch<=0.1"])
def test_a_target_of_what_is_not_measured_is_not_taken(session, tmp_path, text):
    driven = session(automatic=False, target=text).settled()
    assert driven.target.kind == "sqnr" and any("target is not taken" in one for one in driven.warnings)
    before = driven.target
    with pytest.raises(InputError):
        driven.set_target(text)
    assert driven.target is before


def test_an_export_from_the_app_is_the_one_of_the_command(session, tmp_path, monkeypatch):
    """With the profile that the data have, and the effort asked for."""
    options = replace(save_mlp(tmp_path), production=Production(optimization_level=1, tactic_sources=("CUBLAS",)))
    driven = session(options).settled()
    shared = ("--precision", "int8", "--data", options.data, "--batch", "4")
    for kind in ("trtexec", "polygraphy"):
        for folder in ("app", "command"):
            (tmp_path / folder).mkdir(exist_ok=True)
        driven.written(kind, tmp_path / "app" / "net.out", overwrite=True)
        with pytest.raises(SystemExit) as stop:
            main(["export", options.model, *shared, "--format", kind, "-o", str(tmp_path / "command" / "net.out"),
                  "--optimization-level", "1", "--tactic-sources", "CUBLAS"])
        assert stop.value.code == 0
        texts = [(tmp_path / folder / "net.out").read_text() for folder in ("app", "command")]
        assert texts[0] == texts[1]
        assert ("--optShapes" in texts[0] or "--trt-opt-shapes" in texts[0]) and "CUBLAS" in texts[0].upper()
