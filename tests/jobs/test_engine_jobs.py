"""trt_tui.jobs.engine and .engines: engines built and judged in a real child process, on stand-ins of
TensorRT."""

import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests import standins
from tests.driven import DrivenSession, DrivenWorker, of, save_mlp, values
from tests.texts import lacking
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.measure.engine_agreement import engine_variation_notes, fp32_engine_fault_text
from trt_tui.core.measure.results import FP32_ENGINE
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.engine_build import _add_node_to_error_title
from trt_tui.options import Options
from trt_tui.session.comparison_report import comparison_record

FP32, FP16, INT8 = (PrecisionConfig.from_precision(one) for one in (Precision.FP32, Precision.FP16, Precision.INT8))
TITLES = {
    "8.6.1": "TensorRT 8.6.1",
    "10.16.1": "TensorRT 10.16.1",
    "11.4.0": "TensorRT 11.4.0",
    "rtx-1.7.1": "TensorRT-RTX 1.7.1.116",
}


@pytest.fixture
def session(session, mlp):
    """Opens a small network; nothing is measured by itself."""

    def start(options: Options = mlp, **changes: object) -> DrivenSession:
        made = session(replace(options, **changes), automatic=False)
        made.start()
        made.until_idle()
        return made

    return start


def built(driven: DrivenSession, config: PrecisionConfig, marked: bool = False) -> ev.EngineBuilt:
    """Builds a config; returns what came of it."""
    before = len(driven.seen)
    driven.request_build(config=config, with_marked_engine=marked)
    driven.until_idle()
    assert driven.error is None, driven.error
    return of(driven.seen[before:], ev.EngineBuilt)[0]  # errors inside the engine follow


def failure(driven: DrivenSession, config: PrecisionConfig) -> ev.JobFailed | ev.ChildProcessDied:
    """Builds a config that cannot be built; returns how it ended."""
    driven.error = None
    driven.request_build(config=config)
    driven.until_idle()
    assert driven.error is not None
    return driven.error


def headers(folder: Path) -> list[dict]:
    """What the engines in the cache say of themselves."""
    return [standins.cached_header(path) for path in (folder / "cache" / "trt-tui" / "engines").glob("*/*")]


def phases(events: list[ev.Event]) -> list[str]:
    return list(dict.fromkeys(event.phase for event in of(events, ev.JobProgress)))


@pytest.mark.parametrize("release", standins.RELEASES)
def test_fp32_is_checked_once_and_every_engine_is_judged_as_built(standin, session, tmp_path, release) -> None:
    standin(release)
    driven = session(backend="tensorrt-rtx" if release.startswith("rtx") else "auto", verbose=True)
    builder = driven.builder
    assert (builder.device, builder.can_run) == ("Stand-in GPU", True)
    first = built(driven, INT8).result
    checked = values(driven.seen, FP32_ENGINE)
    order = [type(event) for event in of(driven.seen, ev.ValueMeasured, ev.EngineBuilt)]
    assert order[:2] == [ev.ValueMeasured, ev.EngineBuilt] and of(driven.seen, ev.CalibrationReady)
    check = driven.results.fp32_engine
    assert check == checked[0] and fp32_engine_fault_text(check) == "" and check.accuracy.samples == 16
    assert any(phase.startswith("FP32 engine: building") for phase in phases(driven.seen))
    assert first.builder_name == TITLES[release] and first.device_name == "Stand-in GPU"
    assert first.accuracy.samples == first.accuracy.total == 12 and set(first.accuracy.outputs) == {"y"}
    assert 5 < first.accuracy.worst_output[1].errors.sqnr_db < 60
    median, least, most = first.latency_ms
    assert (
        0 < least <= median <= most
        and first.engine_bytes > 1000
        and first.build_s > 0
        and first.device_memory_bytes > 0
    )
    groups = {group.name for group in driven.outline.groups}
    assert set(first.implementations) == groups and {one.precision for one in first.implementations.values()} == {
        Precision.INT8
    }
    assert (
        all(layer.ms is not None for layer in first.engine_report.layers)
        and "INT8" in first.engine_report.precision_shares()
    )
    assert (
        replace(driven.get_run_results("int8").engine_result, engine_errors=None) == first
        and driven.last_built_config == INT8
    )
    assert any(line.startswith("info: ") for line in driven.log)
    assert all(header["config"]["profiling_verbosity"] == "DETAILED" for header in headers(tmp_path))
    assert all([one["name"] for one in header["outputs"]] == ["y"] for header in headers(tmp_path)), "nothing is marked"

    before = len(driven.seen)
    again = built(driven, INT8).result
    assert again.build_origin == "engine cache" and again.build_s == 0 and again.accuracy == first.accuracy
    assert not [phase for phase in phases(driven.seen[before:]) if "FP32" in phase or "building:" in phase]
    changed = INT8.with_group_precision(driven.outline.groups[:1], Precision.FP32)
    assert built(driven, changed).result.build_origin == "timing cache"
    assert len(headers(tmp_path)) == 3


@pytest.mark.parametrize(
    ("release", "marked"),
    [("8.6.1", True), ("10.16.1", False), ("11.4.0", True), ("rtx-1.7.1", False), ("8.6.1", False)],
)
def test_errors_inside_an_engine_are_those_of_its_simulation(standin, session, tmp_path, release, marked) -> None:
    """Of the engine as built where the release hands out what its kernels hand on; of a marked one on request."""
    standin(release)
    driven = session(backend="tensorrt-rtx" if release.startswith("rtx") else "auto")
    driven.request_comparison(with_shares=False)
    driven.until_idle()
    result = built(driven, INT8, marked=marked).result
    engine = driven.get_run_results("int8").engine_result
    if release == "8.6.1" and not marked:
        assert engine.engine_errors is None
        return
    assert replace(engine, engine_errors=None) == result and driven.error is None
    inside, groups = engine.engine_errors, driven.outline.groups
    assert (inside.source, inside.samples, inside.missing_reason) == ("marked" if marked else "unfused", 12, "")
    assert (
        set(inside.group_errors) | set(inside.hidden_groups) == {group.name for group in groups}
        and len(inside.group_errors) >= 2
    )
    for name, errors in inside.group_errors.items():
        assert errors.sqnr_db == pytest.approx(
            driven.get_run_results("int8").group_errors[name].accumulated.sqnr_db, abs=1.0
        )
    assert (inside.accuracy is not None) == marked and driven.find_engine_divergence("int8") is None
    outputs = [[one["name"] for one in header["outputs"]] for header in headers(tmp_path)]
    assert (max(map(len, outputs)) == len(groups)) == marked, "the engine that is judged has no other outputs"
    again = len(driven.seen)
    assert built(driven, INT8, marked=marked).result.accuracy == result.accuracy
    assert any("inside" in phase for phase in phases(driven.seen[again:])) != marked, "marked ones are kept"


def test_several_builds_measure_tactics_anew_and_all_are_judged(standin, session, tmp_path) -> None:
    standin("11.4.0")
    driven = session(builds=3)
    result = built(driven, INT8).result
    assert len(result.repeated_builds) == 3 and all(
        one.worst_errors == result.accuracy.worst_output[1].errors for one in result.repeated_builds
    )
    assert result.latency_ms[0] == max(one.latency_ms[0] for one in result.repeated_builds), "the slowest of equal ones"
    assert "built 3 times" in engine_variation_notes(result)[0] and not result.unequal_outputs
    assert any("build 3 of 3" in phase for phase in phases(driven.seen))
    assert not driven.results.fp32_engine.repeated_builds
    (int8,) = [one for one in headers(tmp_path) if "Int8" in str(one["layers"])]
    assert int8["config"]["timing_cache"]["found"] == 0


def test_an_engine_that_treats_identical_samples_unlike_is_told(standin, session) -> None:
    standin("10.16.1", STANDIN_FAULT="rows")
    driven = session()
    result = built(driven, FP16).result
    assert result.unequal_outputs == ("y",) and "identical samples" in engine_variation_notes(result)[-1]


def test_what_was_built_once_is_there_for_the_next_process(standin, session) -> None:
    standin("10.16.1")
    first = session()
    result = built(first, FP16).result
    check = first.results.fp32_engine
    first.close()
    second = session()
    again = built(second, FP16).result
    assert again.build_origin == "engine cache" and again.accuracy == result.accuracy
    assert second.results.fp32_engine == check
    assert not [phase for phase in phases(second.seen) if "FP32 engine" in phase]


def test_the_all_fp32_config_is_the_check(standin, session) -> None:
    standin("11.4.0")
    driven = session()
    event = built(driven, FP32)
    assert event.result == driven.results.fp32_engine and len(of(driven.seen, ev.EngineBuilt)) == 1


def test_going_back_to_a_config_shows_its_engine_at_once_and_no_preview_hides_it(standin, session, tmp_path) -> None:
    standin("10.16.1")
    driven = session()
    driven.set_config(FP16)
    full = replace(
        built(driven, FP16).result, engine_errors=driven.get_run_results("config").engine_result.engine_errors
    )
    assert full.build_origin != "engine cache" and driven.get_run_results("config").engine_result == full
    driven.set_config(INT8)
    assert (
        driven.get_run_results("config").engine_result is None and driven.get_run_results("fp16").engine_result == full
    )
    seen = len(driven.seen)
    driven.undo()
    assert driven.get_run_results("config").engine_result == full and len(driven.seen) == seen


def test_a_what_if_is_answered_while_a_build_goes_on_and_another_build_is_not_begun(standin, session) -> None:
    standin("8.6.1", STANDIN_STEP_SECONDS="0.3")
    driven = session()
    driven.request_build(config=FP32)
    driven.until(lambda event: isinstance(event, ev.JobProgress) and "building" in event.phase)
    with pytest.raises(InputError, match="a build is going on"):
        driven.request_build(config=INT8)
    driven.send_request(rq.MeasureWhatIf(driven.config, with_shares=True))
    driven.until_idle()
    kinds = [type(event) for event in of(driven.seen, ev.AccuracyMeasured, ev.ValueMeasured, ev.EngineBuilt)]
    assert kinds.index(ev.AccuracyMeasured) < kinds.index(ev.ValueMeasured) < kinds.index(ev.EngineBuilt)


def test_a_builder_that_heeds_a_stop_leaves_the_child_alive(standin, session, tmp_path) -> None:
    standin("10.16.1", STANDIN_STEP_SECONDS="0.3")
    driven = session()
    pid = driven.child_pid
    driven.request_build(config=FP32)
    driven.until(lambda event: isinstance(event, ev.JobProgress) and "Timing graph nodes" in event.phase)
    driven.stop_jobs()
    driven.until_type(ev.JobCancelled)
    assert driven.child_pid == pid and not driven.is_busy and driven.error is None
    assert not of(driven.seen, ev.EngineBuilt) and not values(driven.seen, FP32_ENGINE) and headers(tmp_path) == []
    assert built(driven, FP32).result.accuracy is not None and driven.child_pid == pid


def test_a_builder_that_does_not_heed_is_killed_and_the_session_builds_again(standin, session) -> None:
    standin("8.6.1", STANDIN_STEP_SECONDS="60")
    driven = session()
    driven.request_comparison(with_group_errors=False)
    driven.until_idle()
    known, calibration = driven.get_run_results("int8").accuracy, driven.calibration
    pid = driven.child_pid
    driven.request_build(config=INT8)
    driven.until(lambda event: isinstance(event, ev.LogMessage) and "timing cache in use" in event.text)
    driven.stop_jobs()
    driven.until_type(ev.JobCancelled)
    assert driven.child_pid is None and not driven.is_busy and driven.error is None
    assert driven.get_run_results("int8").accuracy is known
    standin("8.6.1")
    assert built(driven, INT8).result.accuracy is not None
    assert driven.child_pid != pid and driven.calibration is calibration


def test_a_crash_of_the_library_leaves_the_results_and_the_next_build_works(standin, session) -> None:
    standin("10.16.1", STANDIN_FAULT="segfault")
    driven = session()
    driven.request_comparison(with_group_errors=False)
    driven.until_idle()
    known = driven.get_run_results("int8").accuracy
    died = failure(driven, INT8)
    assert isinstance(died, ev.ChildProcessDied) and died.exit_code == -signal.SIGSEGV and not driven.is_busy
    assert driven.get_run_results("int8").accuracy is known and driven.get_run_results("int8").engine_result is None
    standin("10.16.1")
    driven.error = None
    assert built(driven, INT8).result.accuracy is not None


@pytest.mark.parametrize(
    ("release", "fault", "title", "cause"),
    [
        (
            "8.6.1",
            "fail: /fc2/Add",
            r"could not build the engine: it failed at /fc2/MatMul \(MatMul\)",
            "Could not find any implementation",
        ),
        (
            "11.4.0",
            "fail: /fc2/MatMul",
            r"could not build the engine: it failed at /fc2/MatMul \(MatMul\)",
            "Could not find any implementation",
        ),
        ("10.16.1", "out of memory", r"ran out of device memory: it was at /fc1/Gemm \(Gemm\)", "17179869184"),
    ],
)
def test_a_failed_build_says_what_and_where(standin, session, release, fault, title, cause) -> None:
    standin(release, STANDIN_FAULT=fault)
    driven = session()
    failed = failure(driven, FP32 if fault == "out of memory" else FP16)
    assert isinstance(failed, ev.JobFailed) and re.search(title, failed.error.title), failed
    assert (
        cause in failed.error.cause
        and "Invalid" not in failed.error.cause
        and failed.error.next_step
        and not failed.detail
    )
    assert failed.error.exit_code == 2
    assert driven.child_pid is not None and not driven.is_busy


def test_what_a_release_cannot_honour_is_said_before_a_build(standin, session) -> None:
    standin("11.4.0")
    failed = failure(session(weak=True), FP16)
    assert failed.error.title.startswith("--weak ") and "11.4.0" in failed.error.cause and failed.error.exit_code == 2


@pytest.mark.parametrize(("release", "fault"), [("8.6.1", "tensorrt 8.6.1 has no STRIP_PLAN"), ("10.16.1", "")])
def test_an_option_that_only_production_gets_is_refused_as_in_production(standin, session, release, fault) -> None:
    """The engine that is measured has its weights, and so has the one of an earlier build in the cache."""
    standin(release)
    assert built(session(), FP16).config == FP16
    stripped = session(production=BuilderOptions(strip_plan=True))
    if fault:
        assert failure(stripped, FP16).error.title == fault
    else:
        assert built(stripped, FP16).result.accuracy is not None


def test_without_a_gpu_rtx_builds_and_nothing_is_judged(standin, session, tmp_path) -> None:
    standin("rtx-1.7.1", STANDIN_FAULT="no gpu")
    driven = session(backend="tensorrt-rtx", compute_capability=(8, 9))
    assert driven.builder.can_run is False and driven.builder.device == ""
    result = built(driven, INT8).result
    assert result.accuracy is result.latency_ms is result.engine_report is None and result.engine_bytes > 1000
    assert not lacking(result.measurement_note, "compute capability 8.9", "cannot run")
    assert not values(driven.seen, FP32_ENGINE)
    assert [header["config"]["compute_capabilities"] for header in headers(tmp_path)] == [["SM89"]]
    assert "int8-engine" in comparison_record(driven)["runs"]


@pytest.mark.parametrize(
    ("release", "fault", "said"),
    [
        ("10.16.1", "no gpu", "TensorRT is installed but not used: no GPU is visible"),
        ("8.6.1", "wrong driver", "tensorrt 8.6.1 does not start"),
        ("11.4.0", "wrong driver", "tensorrt 11.4.0 does not start"),
    ],
)
def test_auto_falls_back_to_onnx_runtime_and_says_why(standin, session, release, fault, said) -> None:
    standin(release, STANDIN_FAULT=fault)
    driven = session()
    assert driven.builder is None and [line for line in driven.log if said in line]
    driven.request_build(config=FP16)
    executed = driven.until_type(ev.ExportedFileExecuted).result
    assert (
        executed.source_name_in_records == "onnxruntime-cpu"
        and executed.accuracy is not None
        and not of(driven.seen, ev.EngineBuilt)
    )


def test_a_backend_that_was_named_and_does_not_work_is_an_error(standin, session) -> None:
    standin("10.16.1", STANDIN_FAULT="no gpu")
    driven = session(backend="tensorrt")
    assert driven.error.error.exit_code == 3 and "no GPU" in driven.error.error.title


def test_the_profile_is_that_of_the_data_where_none_is_given(standin, session, tmp_path) -> None:
    standin("10.16.1")
    built(session(save_mlp(tmp_path, samples=14)), FP16)
    assert [header["profiles"] for header in headers(tmp_path)] == [[{"x": [[2, 16], [4, 16], [4, 16]]}]] * 2


def test_engines_are_judged_at_other_shapes_on_request(standin, session, tmp_path) -> None:
    standin("11.4.0")
    options = replace(
        save_mlp(tmp_path), data=None, batch=None, shapes=("x:1x16:4x16:8x16",), samples=8, judge_at=("min", "max")
    )
    result = built(session(options), FP16).result
    assert [header["profiles"] for header in headers(tmp_path)] == [[{"x": [[1, 16], [4, 16], [8, 16]]}]] * 2
    assert set(result.shape_accuracies) == {"min", "max"}
    for verdict in result.shape_accuracies.values():
        assert verdict.samples > 0 and verdict.worst_output[1].errors.sqnr_db > 20


def test_other_shapes_need_a_profile(tmp_path) -> None:
    failed = DrivenWorker(tmp_path).answer(rq.OpenNetwork(replace(save_mlp(tmp_path), judge_at=("max",))))[-1]
    assert "no max shape" in failed.error.title and "--shapes" in failed.error.next_step


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("Could not find any implementation for node /conv1/Conv + /relu/Relu.", "/conv1/Conv"),
        ("10: Could not find any implementation for node {ForeignNode[/layer1/Add.../fc/Gemm]}.", "/layer1/Add"),
        ("Computing costs for /layer1/conv2/Conv_myl0_3", "/layer1/conv2/Conv"),
        ("/fc/Gemm: bad, there is not enough memory for it", "/fc/Gemm"),
        ("/layer2/conv1/Conv2 and a/conv1/Conv and /fc/Gemm/x", None),
        ("", None),
    ],
)
def test_the_node_that_a_message_names(named_network, text, node) -> None:
    error = _add_node_to_error_title(TrtTuiError("it failed", text), named_network("small_resnet"))
    parts = [f" {node} ", f"({node.rpartition('/')[2]})"] if node else []
    assert (
        error.title.startswith("it failed") and not lacking(error.title, *parts) and ("(" in error.title) is bool(node)
    )
    assert str(error).startswith(error.title) and error.args == (error.title,)
