"""The exported file as ONNX Runtime executes it: trt_tui.jobs.engine, its titles, and that it is no engine."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests import schemas
from tests.core.measure.test_free import CHANNELS, transformer
from tests.core.network.test_plugins import middle
from tests.driven import DrivenWorker, of, save_mlp, save_resnet
from tests.texts import lacking
from trt_tui.backends import onnxruntime as backend
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.exporters.onnx import NORMALISATION_FUSIONS
from trt_tui.core.measure.results import Accuracy, ErrorMetrics, ExportedRun, OutputErrors, RunKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.report.json_record import exported_run_record, target_outcome_record
from trt_tui.jobs import engine
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.session.comparison_report import (
    comparison_markdown,
    comparison_record,
    comparison_text,
    precision_json_text,
)
from trt_tui.tui.state.summary import summary_lines

INT8 = PrecisionConfig.from_precision(Precision.INT8)
FP16 = PrecisionConfig.from_precision(Precision.FP16)


@pytest.fixture
def worker(tmp_path):
    def open_it(options):
        made = DrivenWorker(tmp_path)
        assert isinstance(made.answer(rq.OpenNetwork(options))[-1], ev.JobDone)
        return made

    return open_it


def executed(worker, config) -> ExportedRun:
    events = worker.answer(rq.BuildEngine(config))
    assert isinstance(events[-1], ev.JobDone), events[-1]
    assert not of(events, ev.EngineBuilt), "nothing was built"
    return of(events, ev.ExportedFileExecuted)[-1].result


def by_hand(worker, config, path: Path) -> float:
    """The SQNR in dB of the file that an export writes, in ONNX Runtime with its default options, on all samples."""
    worker.answer(rq.ExportConfig(str(path), config, "onnx"))
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # INT8 sums do not saturate without VNNI
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    reference = onnxruntime.InferenceSession(str(worker.network.path), providers=["CPUExecutionProvider"])
    signal_, noise = 0.0, 0.0
    for index in worker.workspace.find_judged_feeds(config):
        feed = worker.workspace.data_sets.judged_samples.read_feed(index)
        wanted, found = (one.run(None, feed)[0].astype(np.float64) for one in (reference, session))
        signal_, noise = signal_ + (wanted**2).sum(), noise + ((found - wanted) ** 2).sum()
    return float(10 * np.log10(signal_ / noise))


@pytest.mark.parametrize("is_truncating", [False, True])
def test_fp16_values_are_rounded_where_a_release_truncates_them(worker, tmp_path, monkeypatch, is_truncating):
    opened = worker(save_resnet(tmp_path))
    if is_truncating:
        monkeypatch.setattr(backend, "truncates_fp16_quantization", lambda: True)
        monkeypatch.setattr(engine, "truncates_fp16_quantization", lambda: True)
    path = tmp_path / "exported.onnx"
    opened.answer(rq.ExportConfig(str(path), INT8, "onnx"))
    name = opened.network.outputs[0].name
    feed = opened.workspace.data_sets.judged_samples.read_feed(0)
    found = backend.ExportedFileRunner(str(path), "cpu").run(feed, [name])[name].astype(np.float64)
    *_, partial = opened.workspace.analysis.measure_accuracy(INT8, opened.workspace.ranges, feed_indices=[0])
    with opened.workspace.backend.load(opened.network.model) as runner:
        wanted = runner.run(feed, [name])[name].astype(np.float64)
    sqnr_db = 10 * np.log10((wanted**2).sum() / ((found - wanted) ** 2).sum())
    assert sqnr_db == pytest.approx(partial.value.outputs[name].errors.sqnr_db, abs=3)
    caveats = [item for item in executed(opened, INT8).accuracy.caveats if item.kind == "no engine"]
    assert bool(caveats) == backend.truncates_fp16_quantization()


def test_a_fusion_of_normalisations_that_makes_a_refused_node_is_left_out(worker, tmp_path, monkeypatch):
    opened = worker(save_mlp(tmp_path))
    path = tmp_path / "exported.onnx"
    opened.answer(rq.ExportConfig(str(path), FP16, "onnx"))
    make_session, left_out = onnxruntime.InferenceSession, []

    def refuse_fused(*arguments, disabled_optimizers=(), **options):
        if "LayerNormFusionL1" not in disabled_optimizers:
            raise RuntimeError("Type Error: (LayerNormalization) bound to different types in node (LayerNormFusion/)")
        left_out.extend(disabled_optimizers)
        return make_session(*arguments, disabled_optimizers=list(disabled_optimizers), **options)

    feed, name = opened.workspace.data_sets.judged_samples.read_feed(0), opened.network.outputs[0].name
    plain = backend.ExportedFileRunner(str(path), "cpu").run(feed, [name])[name]
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse_fused)
    np.testing.assert_array_equal(backend.ExportedFileRunner(str(path), "cpu").run(feed, [name])[name], plain)
    assert left_out


def test_a_file_that_needs_options_to_load_names_them_everywhere(session, tmp_path):
    """A LayerNorm of single operators in FP32 among FP16, which ONNX Runtime fuses with the Cast before it."""
    model, data, path = tmp_path / "norm.onnx", tmp_path / "x.npz", tmp_path / "exported.onnx"
    onnx.save(transformer(), model)
    np.savez(data, x=np.random.default_rng(0).standard_normal((16, 6, CHANNELS), np.float32))
    driven = session(Options(str(model), str(data), batch=2)).settled()
    [norm] = [group for group in driven.outline.groups if group.operator == "LayerNorm"]
    driven.set_config(FP16.with_group_precision([norm], Precision.FP32))
    driven.request_build()
    driven.until_idle()
    found = driven.get_run_results("config").exported_run
    written = write_export("onnx", path, open_network(model), driven.config, {})
    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        pytest.skip("this ONNX Runtime loads the file")
    except Exception as error:
        assert "LayerNormFusion" in str(error)
    onnxruntime.InferenceSession(
        str(path), providers=["CPUExecutionProvider"], disabled_optimizers=list(NORMALISATION_FUSIONS)
    )
    record = comparison_record(driven)
    assert schemas.mismatches(json.loads(json.dumps(record)), "comparison-v1") == []
    report = comparison_markdown(driven)
    for name in NORMALISATION_FUSIONS:
        assert name in found.executor_name and any(name in note for note in written.notes)
        assert name in comparison_text(driven) and name in report
    assert record["runs"]["config-exported-network"]["options"]
    assert schemas.mismatches(json.loads(precision_json_text(driven)), "precision-config-v2") == []


@pytest.mark.parametrize(
    "config", [pytest.param(INT8, marks=pytest.mark.onnxruntime("1.31")), FP16], ids=["int8", "fp16"]
)
def test_it_is_the_exported_file_with_default_options(worker, tmp_path, config):
    opened = worker(save_resnet(tmp_path))
    found = executed(opened, config)
    assert found.source_name_in_records == "onnxruntime-cpu" and found.missing_reason == ""
    assert found.executor_name == f"ONNX Runtime {onnxruntime.__version__} CPU"
    name, worst = found.accuracy.worst_output
    assert worst.errors.sqnr_db == pytest.approx(by_hand(opened, config, tmp_path / "typed.onnx"), abs=1e-3)
    assert not hasattr(found, "latency_ms") and not hasattr(found, "bytes")


def test_what_is_executed_are_the_bytes_of_an_export(worker, tmp_path, monkeypatch):
    opened, seen = worker(save_resnet(tmp_path)), []
    real = engine._ExportedRunProcess

    def process(load_file, names, wake):
        seen.append(Path(load_file.args[0]).read_bytes())
        return real(load_file, names, wake)

    monkeypatch.setattr(engine, "_ExportedRunProcess", process)
    executed(opened, INT8)
    written = write_export("onnx", tmp_path / "other.onnx", opened.network, INT8, opened.workspace.ranges).paths
    assert seen == [written[0].read_bytes()]
    executed(opened, INT8)
    assert len(seen) == 1, "what is known is not executed again"


def test_records_name_it_and_hold_no_latency(session, tmp_path):
    driven = session(save_resnet(tmp_path), target="sqnr>=20").settled()
    driven.request_build()
    driven.until_idle()
    known = driven.get_run_results("config")
    assert known.engine_result is None and known.exported_run is not None
    record = comparison_record(driven)
    run = record["runs"]["config-exported-network"]
    assert run["source"] == "onnxruntime-cpu" and run["backend"].startswith("ONNX Runtime")
    outcome = driven.config_target_outcomes(driven.config)[RunKind.EXPORTED_FILE]
    assert run["result"] == target_outcome_record(outcome)["result"]
    assert not {"latency_ms", "engine_bytes", "build_s"} & run.keys() and "config-engine" not in record["runs"]
    assert schemas.mismatches(json.loads(json.dumps(record)), "comparison-v1") == []
    assert json.loads(precision_json_text(driven))["evidence"]["exported_network"]["source"] == "onnxruntime-cpu"
    text, report = comparison_text(driven), comparison_markdown(driven)
    assert all("network (ONNX Runtime" in shown for shown in (text, report)) and " ms" not in text.split("\n\n")[1]
    assert "| ms |" not in report and "## Builds" not in report
    screen = "\n".join("".join(text for text, _ in line) for line in summary_lines(driven, 120))
    assert "exported" in screen.splitlines()[0] and " ms " not in screen and "built" not in screen


def test_a_miss_of_the_exported_network_outweighs_the_simulation(session, tmp_path):
    driven = session(save_resnet(tmp_path), target="sqnr>=20").settled()
    verdict = driven.get_run_results("config").accuracy
    driven.set_target(f"sqnr>={verdict.worst_output[1].errors.sqnr_db - 0.1:.4f}")
    missed = Accuracy(
        {name: OutputErrors(ErrorMetrics(one.errors.sqnr_db - 3.0)) for name, one in verdict.outputs.items()},
        samples=verdict.samples,
        total=verdict.total,
    )
    driven.apply_event(ev.ExportedFileExecuted(1, driven.config, ExportedRun(missed, "ONNX Runtime 1 CPU", "cpu")))
    lines = ["".join(text for text, _ in line) for line in summary_lines(driven, 120)]
    assert any(line.startswith(" c0 ") and " FAIL? ~PASS?" in line for line in lines)
    assert any(line.startswith(" c0") and "exported network FAIL?: " in line for line in lines)
    assert list(driven.missed_target_reasons(driven.config)) == [RunKind.EXPORTED_FILE]


# -- what is not executed ---------------------------------------------------------------------------------------------


def _network(path: Path, nodes, *, opset=17, more=()) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 16]) for name in "xy")
    graph = helper.make_graph(
        nodes, "made", [x], [y], [onnx.numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *more], ir_version=8), path)


def test_an_operator_that_the_provider_lacks_is_the_reason(worker, tmp_path):
    found = executed(worker(middle(tmp_path / "middle.onnx")), INT8)
    assert found.accuracy is None and "ONNX Runtime" in found.missing_reason, found
    assert exported_run_record(found) == {
        "source": "onnxruntime-cpu",
        "backend": found.executor_name,
        "failed": found.missing_reason,
    }


def test_random_numbers_are_the_reason(worker, tmp_path):
    options = save_mlp(tmp_path)
    _network(
        Path(options.model),
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
            helper.make_node("RandomNormalLike", ["m"], ["r"], name="noise"),
            helper.make_node("Add", ["m", "r"], ["y"], name="sum"),
        ],
    )
    assert "noise" in executed(worker(options), INT8).missing_reason


def test_a_crash_ends_that_process_alone_and_is_the_reason(worker, tmp_path, monkeypatch):
    opened = worker(save_mlp(tmp_path))
    real = engine._ExportedRunProcess

    def crashing(*asked):
        process = real(*asked)
        os.kill(process.process.pid, signal.SIGSEGV)
        return process

    monkeypatch.setattr(engine, "_ExportedRunProcess", crashing)
    found = executed(opened, INT8)
    assert found.accuracy is None and "crashed" in found.missing_reason and "SIGSEGV" in found.missing_reason
    monkeypatch.setattr(engine, "_ExportedRunProcess", real)
    assert executed(opened, INT8).accuracy is not None, "a crash is not stored"


def test_a_file_that_cannot_be_written_is_the_reason(worker, tmp_path, monkeypatch):
    opened = worker(save_mlp(tmp_path))

    def full(*args, **kwargs):
        raise engine.TrtTuiError("the disk is full", "no space left")

    monkeypatch.setattr(engine, "write_export", full)
    assert not lacking(executed(opened, INT8).missing_reason, "the disk is full", "no space left")
