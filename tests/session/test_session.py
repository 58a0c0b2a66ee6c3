"""trt_tui.session.session: what is kept, resumed and shown again"""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import LocalSession, of, save_mlp
from tests.schemas import mismatches
from trt_tui.cli.main import main
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.calibration import TensorStats
from trt_tui.core.guards.guards import FloatWorkShare
from trt_tui.core.measure.causes import GROUP_DETAILS, GroupDetails
from trt_tui.core.measure.results import ExportedRun, RunKind
from trt_tui.core.measure.target import Outcome, parse_target
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.moves.constant_moves import RoundingMove, encode_vector, find_sole_weight_site
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.formatting import number_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.session import results, state
from trt_tui.session.comparison_report import comparison_markdown, comparison_record, comparison_text
from trt_tui.session.history import ConfigNames, SearchDoubt
from trt_tui.session.jobs import Job, PendingRequests
from trt_tui.session.results import SessionResults
from trt_tui.session.search_status import SearchStatus, make_search_request
from trt_tui.session.session import Session
from trt_tui.tui.state.detail import loss_reason_texts
from trt_tui.tui.state.rows import RowValues, TreeModel
from trt_tui.tui.state.summary import summary_lines

FP16 = PrecisionConfig.from_precision(Precision.FP16)
INT8 = PrecisionConfig.from_precision(Precision.INT8)


pytestmark = pytest.mark.shares_cache


@pytest.fixture
def session(session):
    """Makes sessions that are answered in this process."""
    return partial(session, kind=LocalSession)


def test_the_time_of_a_job_counts_from_its_begin_to_its_end(monkeypatch):
    now = iter(range(100, 200, 10))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    job = Job(1, None, "a job", sent_time=95.0)
    waiting = job.duration_s
    job.mark_begun()
    running = job.duration_s
    job.end_time = 125.0
    assert (waiting, running, job.duration_s) == (5.0, 10.0, 15.0)


def test_jobs_that_the_user_requested_come_before_those_that_follow_the_cursor():
    """A search is the very first. Of each kind the running ones come first."""
    config = PrecisionConfig()
    jobs = {
        number: Job(number, request, "", begin_time=begin_time, phase_start_time=begin_time or 0.0)
        for number, (request, begin_time) in enumerate(
            [
                (rq.PreviewEngine(config), 1.0),
                (rq.PreviewEngine(config), 3.0),
                (rq.MeasureWhatIf(config), None),
                (rq.MeasureWhatIf(config), 2.0),
                (make_search_request(config, []), None),
            ]
        )
    }
    requests = PendingRequests()
    requests.update(jobs)
    assert [job.number for job in requests.unfinished_jobs] == [4, 3, 2, 1, 0]


def test_a_phase_begins_once_and_ends_with_its_last_item(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    job, started = Job(1, None, "a job"), []
    for phase, done, total in (("a", 0, 0), ("a", 0, 0), ("b", 1, 2), ("b", 2, 2), ("b", 0, 0)):
        job.update_progress(ev.JobProgress(1, phase, done, total))
        started.append((job.phase_start_time, job.progress is not None))
        now += 10
    assert started == [(100.0, False), (100.0, False), (120.0, True), (130.0, False), (130.0, False)]


def test_everything_is_compared_without_being_asked(session):
    driven = session().settled()
    groups = {group.name for group in driven.outline.groups}
    for run in ("fp16", "int8", "config"):
        record = driven.get_run_results(run)
        assert record.accuracy.samples == record.accuracy.total == (16 if run == "fp16" else 12)
        assert set(record.group_errors) == groups == set(record.shares) and record.has_all_group_errors
    assert driven.get_run_results("config").accuracy is driven.get_run_results("int8").accuracy
    assert driven.results.find_value(ev.RAISED_ACCURACIES, INT8) and set(driven.results[INT8].shares) == groups
    assert driven.target.kind == "sqnr" and driven.network_sha256 == open_network(driven.options.model).sha256()


def test_a_quantized_network_opens_as_in_its_file_and_goes_back_to_it(session, tmp_path):
    onnx.save(networks.quantized(symmetric=False), tmp_path / "quantized.onnx")
    np.savez(tmp_path / "images.npz", image=networks.random_images(np.random.default_rng(0), (8, 3, 16, 16)))
    driven = session(Options(str(tmp_path / "quantized.onnx"), str(tmp_path / "images.npz"), batch=4)).settled()
    as_given = PrecisionConfig.from_precision(Precision.FILE)
    assert driven.config == as_given and driven.get_run_results("config").has_all_group_errors
    assert driven.get_run_results("config").accuracy.judged_error > 0
    exported = driven.get_run_results("config").get_accuracy(RunKind.TYPED_NETWORK)
    assert exported.outputs.keys() == driven.get_run_results("config").accuracy.outputs.keys()
    assert 0 < exported.judged_error != driven.get_run_results("config").accuracy.judged_error
    runs = comparison_record(driven)["runs"]
    assert (
        runs["config"]["as_in_file"]
        and runs["exported"]["source"] == "simulated"
        and not mismatches(comparison_record(driven), "comparison-v1")
    )
    report = comparison_markdown(driven)
    assert all(f"\n| {name} | logits | ~" in report for name in ("file precision", "as exported"))
    assert "\n## Where the" in report and "| config |" not in report
    table = [row.split("  ")[0] for row in comparison_text(driven).splitlines() if row.startswith(("as ", "file "))]
    assert table[:2] == ["file precision", "as exported"]
    group = next(
        group
        for group in driven.outline.groups
        if group.activation_qdq_sites() and group.activation_qdq_sites()[0].tensor in driven.outline.quantized_ranges
    )
    tensor = group.activation_qdq_sites()[0].tensor
    stats = TensorStats(9e3, 1.0, 1.0, 1.0, 9, (0,) * 30 + (9,) + (0,) * 33, {}, None)
    driven.results.store_value(GROUP_DETAILS, group.name, GroupDetails({tensor: stats}))
    said = " ".join(loss_reason_texts(driven, RowValues(TreeModel(driven.outline), driven.config), group))
    assert f"the file's range {number_text(driven.outline.quantized_ranges[tensor])} of amax 9000" in said
    lines = ["".join(part for part, _ in line) for line in summary_lines(driven, 80)]
    assert (
        any(line.startswith(" as exported ") for line in lines)
        and "~" in lines[0]
        and all(len(line) <= 80 for line in lines)
    )
    driven.toggle_fp32(driven.outline.groups[:1])
    driven.until_idle()
    raised = driven.get_run_results("config").get_accuracy(RunKind.TYPED_NETWORK)
    assert 0 < raised.judged_error < exported.judged_error, "one is raised"
    driven.undo()
    driven.toggle_fp32(driven.outline.groups)
    assert RunKind.TYPED_NETWORK not in driven.get_run_results("config").runs, "nothing is in file precision"
    assert {driven.config.precision_of(group) for group in driven.outline.groups} == {Precision.FP32}
    driven.toggle_fp32(driven.outline.groups)
    assert driven.config == as_given


def test_a_change_is_measured_and_undo_shows_the_old_results_at_once(session):
    driven = session().settled()
    group = driven.outline.groups[0]
    before = driven.get_run_results("config")
    driven.toggle_fp32([group])
    assert driven.config.precision_of(group) is Precision.FP32
    assert driven.get_run_results("config").accuracy is None and driven.get_run_results("int8").accuracy is not None
    driven.until_idle()
    changed = driven.get_run_results("config")
    assert changed.accuracy.judged_error < before.accuracy.judged_error
    assert (
        set(changed.group_errors) == set(changed.shares) == {g.name for g in driven.outline.groups}
        and changed.has_all_group_errors
    )
    driven.undo()
    assert (
        driven.get_run_results("config").accuracy == before.accuracy
        and driven.get_run_results("config").shares == before.shares
    )
    assert driven.get_run_results("config").group_errors == before.group_errors
    driven.redo()
    assert (
        driven.get_run_results("config").accuracy == changed.accuracy
        and driven.get_run_results("config").group_errors == changed.group_errors
    )
    driven.until_idle()


def test_what_is_dropped_of_an_earlier_config_comes_back_with_it(session, monkeypatch):
    monkeypatch.setattr(results, "MAX_RECENT_CONFIGS", 3)
    driven = session().settled()
    for group in driven.outline.groups:
        driven.toggle_fp32([group])
        driven.until_idle()
        if len(driven.config.precision_moves) == 1:
            before, first = driven.get_run_results("config"), driven.config
    dropped = driven.results[first]
    assert dropped.accuracy == before.accuracy and not dropped.shares and not dropped.group_errors
    while driven.config != first:
        driven.undo()
    driven.until_idle()
    again = driven.get_run_results("config")
    assert (again.shares, again.group_errors) == (before.shares, before.group_errors) and again.shares


def test_a_rounding_of_a_weight_that_is_now_another_goes_with_a_word(session):
    driven = session().settled()
    group = next(group for group in driven.outline.groups if find_sole_weight_site(group) is not None)
    config = PrecisionConfig.from_precision(Precision.INT8)
    stale = RoundingMove("scales", Precision.INT8, encode_vector(np.ones(3)), weight_edits="of another change")
    driven.set_config(config.with_moves({group.name: stale}))
    assert not driven.config.get_moves(RoundingMove) and "1 rounding removed" in driven.notice
    driven.until_idle()


def test_the_work_in_floats_is_counted_once_for_a_config(session, monkeypatch):
    driven, counted = session().settled(), []
    monkeypatch.setattr(
        state,
        "measure_float_work_share",
        lambda *of: counted.append(of) or FloatWorkShare(len(counted) / 2, False, 1, 2),
    )
    for share, group in zip((0.5, 1.0), driven.outline.groups, strict=False):
        driven.toggle_fp32([group])
        assert {driven.collect_guard_facts().float_work.float_share for _ in range(3)} == {share}
        assert counted[-1][1] == driven.config


def test_late_events_of_stopped_jobs_are_dropped(session):
    driven = session(automatic=False)
    driven.settled()
    driven.request_comparison(with_group_errors=False)
    job = max(driven.pending_requests)
    verdict = driven.until_type(ev.AccuracyMeasured)
    driven.stop_jobs()
    log = len(driven.log)
    stray = replace(verdict, job=job, config=FP16.with_range("x", None), run="stray")
    driven.apply_event(replace(stray, config=PrecisionConfig.from_precision(Precision.FP32)))
    assert PrecisionConfig.from_precision(Precision.FP32) not in driven.results and len(driven.log) == log
    driven.until_idle()
    assert not driven.is_busy and driven.error is None


@pytest.mark.parametrize("was_replaced", [False, True])
def test_the_log_has_no_job_that_a_newer_one_has_replaced(session, was_replaced):
    driven = session()
    driven.send_request(rq.MeasureWhatIf(driven.config))
    number, log = max(driven.pending_requests), list(driven.log)
    driven.apply_event(ev.JobStarted(number))
    driven.apply_event(ev.JobDone(number, was_replaced))
    assert (driven.log == log) is was_replaced


def events_of(base: type[ev.Event] = ev.Event) -> list[type[ev.Event]]:
    """All classes of events."""
    return [one for direct in base.__subclasses__() for one in (direct, *events_of(direct))]


@pytest.mark.parametrize("event", events_of(), ids=lambda event: event.__name__)
def test_a_session_takes_every_event(event):
    handlers = vars(Session)["_apply"].dispatcher
    assert handlers.dispatch(event) is not handlers.dispatch(object), f"a session does not know {event.__name__}"


@pytest.mark.parametrize("event", ev.ResultEvent.__subclasses__(), ids=lambda event: event.__name__)
def test_results_keep_every_measurement(event):
    handlers = vars(SessionResults)["store_event_results"].dispatcher
    assert handlers.dispatch(event) is not handlers.dispatch(object), f"no results keep {event.__name__}"


def test_an_event_of_no_known_type_does_not_vanish(session):
    class Unheard(ev.Event):
        pass

    with pytest.raises(TypeError, match="Unheard"):
        session().apply_event(Unheard(1))


@pytest.mark.parametrize("automatic", [True, False])
def test_only_the_app_measures_the_worst_groups_raised_together(session, automatic):
    driven = session(automatic=automatic).settled()
    driven.request_comparison()
    driven.until_idle()
    assert of(driven.seen, ev.ErrorSharesMeasured)
    assert bool(driven.results.get_values(ev.RAISED_ACCURACIES)) is automatic


def test_stopping_the_opening_starts_no_comparison(session):
    driven = session()
    driven.start()
    driven.stop_jobs()
    driven.until_idle()
    assert not any(isinstance(event, ev.AccuracyMeasured) for event in driven.seen)


def test_a_new_name_is_none_that_is_taken():
    names = ConfigNames({FP16: "c1", FP16.with_range("x", RangeMove(1.0)): "best"})
    assert names.get_config_name(INT8) == "c2" and names.get_config_name(INT8) == "c2"
    assert ConfigNames({FP16: "c1"}).get_config_name(INT8) == "c2"


def test_history_names_and_target_are_resumed(session):
    first = session().settled()
    groups, default_target = first.outline.groups, first.target.text
    first.toggle_fp32([groups[0]])
    first.set_target("cosine>=0.9")
    first.toggle_fp32([groups[1]])
    first.undo()
    names, config = dict(first.config_names), first.config
    first.session_writer.close()  # nothing else is closed here: a session is saved as it changes
    second = session().settled()
    assert second.config == config and second.config_names == names
    assert second.target.text == "cosine>=0.9" and second.notice.startswith(f"Resumed: {names[config]}, 1 change")
    assert second.history.can_redo and second.redo() and second.config.precision_of(groups[1]) is Precision.FP32
    assert second.undo() and second.undo() and second.target.text == default_target and second.config == config
    assert second.undo() and second.config == INT8 and not second.history.can_undo
    second.until_idle()


def test_no_export_takes_the_place_of_what_is_read(session, tmp_path):
    options = replace(save_mlp(tmp_path), calib_cache=str(tmp_path / "out.sh.cache"), metric=f"{tmp_path / 'm.py'}:f")
    config = tmp_path / "config.json"
    for path in (Path(options.calib_cache), tmp_path / "m.py", config):
        path.write_bytes(b"read")
    made = session(options, config_path=str(config))
    read = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for kind, path in (
        ("markdown", options.model),
        ("json", options.data),
        ("onnx", options.calib_cache),
        ("markdown", tmp_path / "m.py"),
        ("trtexec", tmp_path / "out.sh"),
        ("markdown", config),
    ):
        with pytest.raises(InputError, match="is an input file"):
            made.export_config(kind, Path(path), overwrite=True)
    assert {path: path.read_bytes() for path in read} == read


def test_what_was_measured_is_shown_again_on_resuming(session):
    first = session().settled()
    first.toggle_fp32([first.outline.groups[0]])
    first.request_build()
    first.until_idle()
    known, built = first.get_run_results("config"), first.last_built_config
    first.close()
    second = session()
    second.start()
    second.until(lambda e: isinstance(e, ev.JobDone) and not second.is_busy)
    again = second.get_run_results("config")
    assert again is not known and (again.accuracy, again.shares, again.exported_run) == (
        known.accuracy,
        known.shares,
        known.exported_run,
    )
    assert known.exported_run is not None and known.engine_result is None and second.last_built_config == built


def test_other_samples_do_not_keep_the_config_from_being_resumed(session, tmp_path):
    first = session().settled()
    first.toggle_fp32([first.outline.groups[0]])
    config = first.config
    first.close()
    options = save_mlp(tmp_path)
    np.savez(tmp_path / "more.npz", x=np.ones((8, 16), np.float32))
    assert session(replace(options, data=str(tmp_path / "more.npz"))).settled().config == config


def test_a_new_session_leaves_the_saved_one_alone(session):
    first = session().settled()
    first.toggle_fp32([first.outline.groups[0]])
    config = first.config
    first.close()
    fresh = session(resume=False).settled()
    assert fresh.config == INT8 and not fresh.notice
    fresh.toggle_fp32([fresh.outline.groups[1]])
    fresh.close()
    saved = [msgspec.json.decode(path.read_bytes()) for path in fresh.session_folder.folder.glob("*.json")]
    moved = {move["target"] for one in saved for move in one["current"]["moves"]}
    assert moved == {*config.precision_moves, *fresh.config.precision_moves}


@pytest.mark.parametrize("content", [b"nonsense", b'{"format": "trt-tui/session", "version": 99}'])
def test_a_session_that_cannot_be_taken_up_is_left_to_the_user(session, content):
    """One of another version stays where it is; a damaged one is kept aside, and its place is taken."""
    first = session().settled()
    first.toggle_fp32([first.outline.groups[0]])
    first.close()
    (path,) = first.session_folder.folder.glob("*.json")
    path.write_bytes(content)
    second = session().settled()
    assert second.config == INT8 and not second.notice
    assert sum(str(path) in text for text in second.warnings) == 1
    second.toggle_fp32([second.outline.groups[0]])
    second.close()
    kept = path if b"version" in content else path.with_name(f"{path.name}.damaged")
    assert kept.read_bytes() == content
    third = session().settled()
    assert third.config == second.config != INT8


def test_a_full_disk_keeps_the_last_whole_session(session, monkeypatch):
    driven = session().settled()
    driven.toggle_fp32([driven.outline.groups[0]])
    driven.session_writer.flush()
    (path,) = driven.session_folder.folder.glob("*.json")
    whole = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    driven.toggle_fp32([driven.outline.groups[1]])
    driven.until_idle()
    driven.session_writer.flush()
    assert (
        path.read_bytes() == whole
        and [p.suffix for p in driven.session_folder.folder.iterdir() if p.suffix == ".tmp"] == []
    )


def test_a_config_file_brings_its_ranges_and_target(session, tmp_path):
    first = session().settled()
    first.toggle_fp32([first.outline.groups[0]])
    first.until_idle()
    first.set_target("sqnr>=12")
    path = tmp_path / "precision.json"
    assert str(path) in first.written("json", path)
    with pytest.raises(InputError, match="exists"):
        first.export_config("json", path)
    first.close()
    data = str(tmp_path / "mlp.npz")
    np.savez(data, x=np.full((16, 16), 1e-3, np.float32))
    second = session(config_path=str(path), resume=False).settled()
    assert second.config == first.config and second.target.text == "sqnr>=12"
    assert second.calibration.ranges == first.calibration.ranges, "not calibrated on the other data"
    loaded = read_config(path, open_network(second.options.model))
    assert loaded.calibration.ranges == first.calibration.ranges


def worsened(accuracy, lost_db):
    """An accuracy whose outputs all have a lower SQNR."""
    outputs = {
        name: replace(values, errors=replace(values.errors, sqnr_db=values.errors.sqnr_db - lost_db))
        for name, values in accuracy.outputs.items()
    }
    return replace(accuracy, outputs=outputs, intervals=None)


@pytest.mark.parametrize("is_of_search", [False, True])
@pytest.mark.parametrize(
    ("lost_part", "outcome"),
    [(0.4, Outcome.PASS), (0.6, Outcome.UNCERTAIN_PASS), (-2.0, Outcome.PASS), (math.inf, Outcome.PASS)],
)
def test_a_simulated_pass_is_in_doubt_where_other_exports_are_worse_than_simulated(
    session, tmp_path, lost_part, outcome, is_of_search
):
    """They lost a part of its margin. The doubt is gone once the export of the config itself was executed. A file of
    the config has it too."""
    one = session(save_mlp(tmp_path, samples=32), target="sqnr>=9").settled()
    first = one.config
    one.toggle_fp32([one.outline.groups[0]])
    one.until_idle()
    simulated, others = one.results[one.config].accuracy, one.results[first]
    lost_db = lost_part * one.target.margin_score(simulated)
    (before,) = one.config_target_outcomes(one.config).values()
    assert before.outcome is Outcome.PASS
    if is_of_search:
        one.search_status = SearchStatus(make_search_request(first, [one.target.text]))
        one.search_status.progress = ev.SearchProgress(1, 1, None, None, True, (lost_db,))
    else:
        run = ExportedRun(worsened(others.accuracy, lost_db), "ONNX Runtime 1 CPU", "cpu")
        others.runs = {**others.runs, RunKind.EXPORTED_FILE: run}
    (shown,) = one.config_target_outcomes(one.config).values()
    assert shown.outcome is outcome and bool(shown.reasons) is (outcome is not Outcome.PASS)
    one.written("json", path := tmp_path / "precision.json")
    other = session(one.options, config_path=str(path), target=None, resume=False).settled()
    assert other.config_target_outcomes(other.config)[RunKind.SIMULATED_CONFIG] == shown
    own = one.results[one.config]
    own.runs = {**own.runs, RunKind.EXPORTED_FILE: ExportedRun(worsened(simulated, 0.1), "ONNX Runtime 1 CPU", "cpu")}
    assert one.config_target_outcomes(one.config)[RunKind.SIMULATED_CONFIG].outcome is Outcome.PASS


def change_first_range(record):
    ranges = record["calibration"]["ranges"]
    ranges[next(iter(ranges))] *= 1.5


@pytest.mark.parametrize(
    ("change", "target", "outcome"),
    [
        (lambda record: None, None, Outcome.UNCERTAIN_FAIL),
        (lambda record: record.update(made_with={}), "sqnr >= 9.0", Outcome.UNCERTAIN_FAIL),
        (lambda record: None, "sqnr>=9.1", Outcome.UNCERTAIN_FAIL),
        (lambda record: None, "sqnr>=8", Outcome.PASS),
        (lambda record: None, "cosine>=0.7", Outcome.PASS),
        (lambda record: record["moves"].clear(), None, Outcome.PASS),
        (change_first_range, None, Outcome.PASS),
        (lambda record: record["model"].update(sha256="0" * 64), None, Outcome.PASS),
    ],
    ids=["same", "spelling", "stricter", "looser", "another value", "other config", "other range", "other weights"],
)
def test_a_config_file_brings_the_doubt_in_its_config(session, tmp_path, change, target, outcome):
    first = session(save_mlp(tmp_path, samples=32), target="sqnr>=9").settled()
    first.toggle_fp32([first.outline.groups[0]])
    first.until_idle()
    (first_outcome,) = first.config_target_outcomes(first.config).values()
    assert first_outcome.outcome is Outcome.PASS
    doubt = SearchDoubt("the engine yields 8.5 dB", frozenset({RunKind.BUILT_ENGINE}))
    first.config_names.search_doubts[first.config, "sqnr>=9"] = doubt
    path = tmp_path / "precision.json"
    first.written("json", path)
    first.close()
    record = json.loads(path.read_text())
    assert not mismatches(record)
    change(record)
    path.write_text(json.dumps(record))
    second = session(first.options, config_path=str(path), target=target, resume=False).settled()
    (second_outcome,) = second.config_target_outcomes(second.config).values()
    assert second_outcome.outcome is outcome
    assert (doubt.text in second_outcome.reasons) is (outcome is not Outcome.PASS)
    assert bool(second.missed_target_reasons(second.config)) is (outcome is not Outcome.PASS)
    rows = [line for line in comparison_text(second).splitlines() if line.startswith(("INT8  ", "config  "))]
    assert rows[-1].endswith(f"  {outcome.value}")


def test_ranges_of_other_weights_are_measured_anew(session, tmp_path):
    first = session().settled()
    path = tmp_path / "precision.json"
    first.written("json", path)
    first.close()
    onnx.save(networks.mlp(7), first.options.model)
    second = session(first.options, config_path=str(path), resume=False).settled()
    assert second.calibration.ranges != first.calibration.ranges
    assert any("other weights" in warning for warning in second.warnings)


def test_what_was_resumed_comes_back_by_undoing_the_config_file(session, tmp_path):
    first = session().settled()
    first.toggle_fp32([first.outline.groups[0]])
    first.close()
    network = open_network(first.options.model)
    path = tmp_path / "precision.json"
    path.write_text(config_text(network, INT8.with_group_precision([network.groups[1]], Precision.FP32)))
    second = session(config_path=str(path)).settled()
    assert set(second.config.precision_moves) == {network.groups[1].name}
    assert second.undo() and second.config == first.config
    second.until_idle()


def test_a_config_that_cannot_be_read_is_an_error_and_the_network_is_compared(session, tmp_path):
    path = tmp_path / "precision.json"
    path.write_text("{}")
    driven = session(config_path=str(path))
    driven.start()
    driven.until_idle()
    assert "precision.json" in driven.error.error.title
    assert driven.config == INT8 and driven.get_run_results("int8").has_all_group_errors


def test_exports_are_whole_and_say_where_they_are(session, tmp_path):
    driven = session().settled()
    for kind, name in (("onnx", "typed.onnx"), ("markdown", "report.md")):
        assert driven.written(kind, tmp_path / name) == f"Wrote {tmp_path / name}"
    onnx.checker.check_model(str(tmp_path / "typed.onnx"), full_check=True)
    assert "| " in (tmp_path / "report.md").read_text()
    with pytest.raises(InputError, match="unknown format"):
        driven.export_config("pdf", tmp_path / "report.pdf")
    there = sorted(tmp_path.iterdir())
    for length in (247, 300):  # that of a companion is too long, and that of the file itself
        driven.error = None
        driven.export_config("polygraphy", tmp_path / ("n" * length))
        driven.until_idle()
        assert "too long" in driven.error.error.cause and "shorter name" in driven.error.error.next_step
        assert sorted(tmp_path.iterdir()) == there


def test_the_next_range_goes_round_the_methods(session):
    driven = session().settled()
    group = driven.outline.groups[0]
    with pytest.raises(InputError, match="still being measured"):
        driven.apply_next_range_method(group)
    driven.until_idle()
    seen = [driven.apply_next_range_method(group) for _ in range(4)]
    assert seen == ["percentile", "entropy", "mse", "minmax"] and driven.config == INT8
    driven.set_precision([group], Precision.FP8)
    assert [driven.apply_next_range_method(group) for _ in range(3)] == ["percentile", "mse", "minmax"]
    driven.until_idle()


@pytest.mark.parametrize("text", ["nothing:sqnr>=20", "metric>=0.5", "mismatch<=0.1"])
def test_a_target_of_what_is_not_measured_is_not_taken(session, tmp_path, text):
    driven = session(automatic=False, target=text).settled()
    assert driven.target.kind == "sqnr" and text.partition(":")[0] in driven.guard_warnings[0].warning_line
    before = driven.target
    with pytest.raises(InputError):
        driven.set_target(text)
    assert driven.target is before and driven.guard_warnings[0].guard_name == "rejected-target"
    driven.set_target("sqnr>=30")
    assert all(warning.guard_name != "rejected-target" for warning in driven.guard_warnings)
    assert driven.undo() and driven.target.kind == "sqnr" and driven.guard_warnings[0].guard_name == "rejected-target"


def test_only_a_metric_of_all_samples_tells_which_parts_exist(session):
    driven = session(automatic=False).settled()
    driven._opened_network = replace(driven.opened_network, metric="f1")
    driven.targets = (parse_target("metric[f1/8]>=0.5"),)
    for final in (False, True):
        driven.apply_event(ev.ReferenceMetricMeasured(0, {"f1": 1.0}, 4, final))
        assert (driven.error is not None) is final
        if not final:
            driven.set_target("metric[f1/8]>=0.4")
    assert "no part f1/8" in driven.error.error.title


SOURCES = "+CUBLAS", "-CUBLAS_LT", "-CUDNN", "+EDGE_MASK_CONVOLUTIONS", "+JIT_CONVOLUTIONS"


def test_an_export_from_the_app_is_the_one_of_the_command(session, tmp_path, monkeypatch):
    """With the profile that the data have, and the effort asked for."""
    options = replace(save_mlp(tmp_path), production=BuilderOptions(optimization_level=1, tactic_sources=SOURCES))
    driven = session(options).settled()
    shared = ("--precision", "int8", "--data", options.data, "--batch", "4")
    for kind in ("trtexec", "polygraphy"):
        for folder in ("app", "command"):
            (tmp_path / folder).mkdir(exist_ok=True)
        driven.written(kind, tmp_path / "app" / "net.out", overwrite=True)
        with pytest.raises(SystemExit) as stop:
            main(
                [
                    "export",
                    options.model,
                    *shared,
                    "--format",
                    kind,
                    "-o",
                    str(tmp_path / "command" / "net.out"),
                    "--trtexec",
                    f"--builderOptimizationLevel=1 --tacticSources={','.join(SOURCES)}",
                ]
            )
        assert stop.value.code == 0
        texts = [(tmp_path / folder / "net.out").read_text() for folder in ("app", "command")]
        assert texts[0] == texts[1]
        assert ("--optShapes" in texts[0] or "--trt-opt-shapes" in texts[0]) and "CUBLAS" in texts[0].upper()
