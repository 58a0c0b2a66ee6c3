"""Files that are replaced while a network is open: figures of what was and of what is never stand together"""

import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import DrivenSession, DrivenWorker, LocalSession, of, save_mlp
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.input_files import FileStamps, list_data_files
from trt_tui.core.data.userscript import list_script_files
from trt_tui.core.measure.user_metric import load_metric
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import FileReplacedError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq

INT8 = PrecisionConfig.from_precision(Precision.INT8)


@pytest.fixture
def driven(session):
    """Makes sessions as `session` does, opened and with nothing left to do."""

    def make(options, kind=LocalSession, **arguments):
        return session(options, kind, **arguments).settled()

    return make


def retrain(options, scale=3.0):
    """The same structure with weights that need other ranges."""
    network = networks.mlp(7)
    for tensor in network.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array * scale, tensor.name))
    onnx.save(network, options.model)


def other_samples(options):
    np.savez(options.data, x=5 * np.random.default_rng(5).standard_normal((16, 16), dtype=np.float32))


@pytest.mark.parametrize(("change", "killed"), [(retrain, False), (retrain, True), (other_samples, False)])
def test_all_is_measured_anew_where_network_or_data_were_replaced(driven, tmp_path, change, killed):
    options = save_mlp(tmp_path)
    session = driven(options, DrivenSession if killed else LocalSession)
    before, ranges, old = session.get_run_results("int8").accuracy, session.calibration.ranges, session.source
    tensor = session.outline.groups[0].activation_qdq_sites()[0].tensor
    session.set_config(session.config.with_range(tensor, RangeMove(0.5, "entropy")))
    session.until_idle()
    change(options)
    if killed:
        os.kill(session.child_pid, signal.SIGKILL)
        session.until_type(ev.ChildProcessDied)
        session.error = None
    session.toggle_fp32([session.outline.groups[1]])
    session.until_idle()
    assert session.error is None
    assert session.source != old and session.calibration.ranges != ranges
    assert not session.config.range_moves and session.config.precision_moves, (
        "ranges are of what was; the raised layer stays"
    )
    name = os.path.basename(options.model if change is retrain else options.data)
    assert any(name in text and "replaced" in text for text in session.warnings)
    fresh = driven(options, resume=False)
    for run in ("fp16", "int8"):
        assert session.get_run_results(run).accuracy == fresh.get_run_results(run).accuracy
    assert fresh.get_run_results("int8").accuracy != before
    assert session.results.keys() <= {session.config, *session.list_run_configs().values()}


def test_a_command_ends_where_a_file_was_replaced(driven, tmp_path):
    options = save_mlp(tmp_path)
    session = driven(options, automatic=False)
    retrain(options)
    session.request_comparison()
    session.until_idle()
    assert isinstance(session.error.error, FileReplacedError) and "mlp.onnx" in session.error.error.title
    assert session.get_run_results("int8").accuracy is None


def test_another_network_in_its_place_is_refused_and_the_figures_stay(driven, tmp_path):
    options = save_mlp(tmp_path)
    session = driven(options)
    before = session.get_run_results("int8").accuracy
    onnx.save(networks.small_resnet(), options.model)
    for _ in range(2):
        session.request_comparison()
        session.until_idle()
        assert "another network" in session.error.error.title
        assert session.get_run_results("int8").accuracy is before


def test_a_file_that_was_only_touched_shows_the_same_figures(driven, tmp_path):
    options = save_mlp(tmp_path)
    session = driven(options)
    before = session.get_run_results("int8").accuracy
    os.utime(options.model, ns=(1, 1))
    session.request_comparison()
    session.until_idle()
    assert session.error is None and session.get_run_results("int8").accuracy == before


def test_an_export_takes_no_ranges_of_other_weights(driven, tmp_path):
    options = save_mlp(tmp_path)
    session = driven(options)
    retrain(options)
    session.written("onnx", tmp_path / "out.onnx")
    assert (
        any(isinstance(getattr(event, "error", None), FileReplacedError) for event in session.seen)
        and not (tmp_path / "out.onnx").exists()
    )
    assert str(tmp_path / "out.onnx") in session.written("onnx", tmp_path / "out.onnx")


def test_sessions_and_configs_leave_out_what_was_measured_on_other_weights(driven, tmp_path):
    options = save_mlp(tmp_path)
    first = driven(options)
    tensors = [site.tensor for group in first.outline.groups for site in group.activation_qdq_sites()]
    config = first.config.with_range(tensors[0], RangeMove(0.5, "entropy"))
    first.set_config(config.with_range(tensors[1], RangeMove(0.5, "user")))
    first.until_idle()
    first.written("json", tmp_path / "precision.json")
    first.close()
    retrain(options)
    loaded = read_config(tmp_path / "precision.json", open_network(options.model))
    assert loaded.has_stale_ranges and list(loaded.config.range_moves) == [tensors[1]]
    assert any("are ignored" in text for text in loaded.warnings)
    second = driven(options)
    assert list(second.config.range_moves) == [tensors[1]]
    assert any("other weights" in text for text in second.warnings)


def test_weights_beside_the_network_are_watched_too(tmp_path):
    options = save_mlp(tmp_path)
    onnx.save(networks.mlp(), options.model, save_as_external_data=True, location="w.bin", size_threshold=0)
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(options))
    data = bytearray((tmp_path / "w.bin").read_bytes())
    data[3] ^= 1
    (tmp_path / "w.bin").write_bytes(data)
    ended = worker.answer(rq.CompareRuns({"int8": INT8}, with_group_errors=False))[-1]
    assert isinstance(ended.error, FileReplacedError) and ended.error.files == ("w.bin",)


def test_a_replacement_in_the_middle_of_a_job_ends_it(tmp_path, monkeypatch):
    options = save_mlp(tmp_path)
    monkeypatch.setattr("trt_tui.jobs.server.CHECK_INTERVAL_S", 0.0)
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(options))
    worker.wire.on_event = lambda event: retrain(options) if isinstance(event, ev.AccuracyMeasured) else None
    events = worker.answer(rq.CompareRuns({"int8": INT8}, with_group_errors=False))
    assert isinstance(events[-1].error, FileReplacedError)
    assert sum(isinstance(event, ev.AccuracyMeasured) for event in events) == 1


def metric_of(worker, options) -> float:
    """The metric of the reference, on a network opened anew."""
    worker.answer(rq.OpenNetwork(options))
    events = worker.answer(rq.CompareRuns({"int8": INT8}, with_group_errors=False))
    return of(events, ev.ReferenceMetricMeasured)[-1].metric["metric.py:score"]


METRIC = "def score(outputs, labels):\n    import helper\n    return helper.VALUE\n"


def test_what_a_metric_imports_belongs_to_it(tmp_path):
    options = save_mlp(tmp_path)
    np.savez(options.data, x=np.load(options.data)["x"], y=np.zeros(16))
    (tmp_path / "metric.py").write_text("import other\n" + METRIC)
    (tmp_path / "other.py").write_text("")
    (tmp_path / "helper.py").write_text("VALUE = 0.25\n")
    options = replace(options, metric=f"{tmp_path / 'metric.py'}:score")

    worker = DrivenWorker(tmp_path)
    assert metric_of(worker, options) == 0.25
    assert {file.name for file in list_script_files(tmp_path / "metric.py")} == {"metric.py", "other.py", "helper.py"}
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    (tmp_path / "helper.py").write_text("VALUE = 0.75 \n")
    ended = worker.answer(rq.CompareRuns({"int8": INT8}, with_group_errors=False))[-1]
    assert isinstance(ended.error, FileReplacedError) and ended.error.files == ("helper.py",)
    assert metric_of(worker, options) == 0.75, "imported anew, and not taken from what was kept"


@pytest.mark.parametrize("early", [True, False], ids=["when it is imported", "when it is called"])
def test_what_a_metric_reads_belongs_to_it(tmp_path, early):
    options = save_mlp(tmp_path)
    np.savez(options.data, x=np.load(options.data)["x"], y=np.zeros(16))
    folder, read = tmp_path / "script", "np.load(PATH)['value'].item()"
    folder.mkdir()
    (folder / "metric.py").write_text(
        "import numpy as np, pathlib\n"
        f"PATH = {str(tmp_path / 'truth.npz')!r}\n"
        f"{f'VALUE = {read}' if early else ''}\n"
        "LOG = pathlib.Path(__file__).with_name('own.txt')\n"
        "def score(outputs, labels):\n"
        "    LOG.write_text('written')\n"
        "    LOG.read_text()\n"
        f"    return {'VALUE' if early else read}\n"
    )
    np.savez(tmp_path / "truth.npz", value=0.25)
    options = replace(options, metric=f"{folder / 'metric.py'}:score")

    worker = DrivenWorker(tmp_path)
    assert metric_of(worker, options) == 0.25
    assert {file.name for file in list_script_files(folder / "metric.py")} == {"metric.py", "truth.npz"}
    np.savez(tmp_path / "truth.npz", value=0.75)
    ended = worker.answer(rq.CompareRuns({"int8": INT8}, with_group_errors=False))[-1]
    assert isinstance(ended.error, FileReplacedError) and ended.error.files == ("truth.npz",)
    assert metric_of(worker, options) == 0.75, "read anew, and not taken from what was kept"


def test_installed_packages_and_this_program_are_no_part_of_a_script(tmp_path):
    (tmp_path / "metric.py").write_text(
        "import numpy, json, trt_tui.core.measure.error_metrics\ndef score(a, b):\n    return 1.0\n"
    )
    load_metric(f"{tmp_path / 'metric.py'}:score")
    assert list_script_files(tmp_path / "metric.py") == (tmp_path / "metric.py",)


def test_only_what_of_a_folder_is_read_is_watched(tmp_path):
    for name in ("a.npz", "b.json", "notes.txt"):
        (tmp_path / name).write_bytes(b"1")
    assert [os.path.basename(one) for one in list_data_files(str(tmp_path))] == ["a.npz", "b.json"]
    inputs = FileStamps.from_paths([*list_data_files(str(tmp_path)), tmp_path / "absent"])
    (tmp_path / "notes.txt").write_bytes(b"22")
    assert inputs.find_replaced_files() == ()
    (tmp_path / "a.npz").unlink()
    assert [os.path.basename(one) for one in inputs.find_replaced_files()] == ["a.npz"]


def test_no_file_is_written_of_a_network_that_was_replaced_meanwhile(tmp_path):
    options = save_mlp(tmp_path)
    worker = DrivenWorker(tmp_path)
    assert [type(event) for event in worker.answer(rq.OpenNetwork(options, network_only=True))][-2:] == [
        ev.LayersListed,
        ev.JobDone,
    ]
    retrain(options)
    for request in (
        rq.WriteEngine(str(tmp_path / "out.engine"), INT8, config_calibration=Calibration()),
        rq.ExportConfig(str(tmp_path / "out.onnx"), INT8, "onnx", config_calibration=Calibration()),
    ):
        assert isinstance(worker.answer(request)[-1].error, FileReplacedError)
    assert not list(tmp_path.glob("out.*"))
