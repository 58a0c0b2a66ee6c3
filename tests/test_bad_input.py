"""Bad input: each ends as an error that names the thing, its cause and the next step, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import isolate, save_mlp
from trt_tui.cli.main import main
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.file import config_text
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

INT8 = PrecisionConfig.uniform(Precision.INT8)


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mlp(tmp_path):
    return save_mlp(tmp_path)


@pytest.fixture
def refused(capfd, tmp_path):
    """Runs a command that must fail; checks the form of the error and returns its text."""

    def run(*arguments, code=2):
        before = files(tmp_path)
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        shown = capfd.readouterr()
        assert stop.value.code == code, shown.err
        assert shown.out == "" and "Traceback" not in shown.err and "defect" not in shown.err, shown.err
        error = shown.err[shown.err.index("Error: "):].splitlines()
        assert any(line.startswith("  Next: ") and len(line) > 16 for line in error), shown.err
        assert files(tmp_path) == before, "something was left behind"
        return shown.err

    return run


def files(folder: Path) -> dict[str, bytes]:
    """What lies in a folder, the user's cache and state apart."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.relative_to(folder).parts[0] not in ("cache", "state", "__pycache__")}


# -- networks -----------------------------------------------------------------------------------------------------


def truncated(path):
    path.write_bytes(path.read_bytes()[:-400])


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("not a network\n" * 50)


def image(path):
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)


def folder(path):
    path.unlink()
    path.mkdir()


def gone(path):
    path.unlink()


@pytest.mark.parametrize("spoil", [truncated, empty, text, image, folder, gone])
@pytest.mark.parametrize("command", ["compare", "inspect", "build"])
def test_a_file_that_is_no_network(refused, mlp, spoil, command):
    spoil(Path(mlp.model))
    more = {"compare": ["--data", mlp.data], "inspect": [], "build": ["--precision", "fp16", "-o", "typed.onnx"]}
    assert "mlp.onnx" in refused(command, mlp.model, *more[command])


@pytest.fixture
def external(tmp_path):
    """A network and the file that holds its weights."""
    model = networks.save_with_external_data(tmp_path)
    return model, model.with_name("model.onnx.data")


def test_external_data_that_is_missing(refused, external, tmp_path):
    model, data = external
    data.unlink()
    assert data.name in refused("compare", model, "--data", images(tmp_path))


def test_external_data_outside_of_its_folder(refused, external, tmp_path):
    model, data = external
    inside = tmp_path / "inside"
    inside.mkdir()
    proto = onnx.load(model, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"../{data.name}"
    (inside / "model.onnx").write_bytes(proto.SerializeToString())
    assert f"../{data.name}" in refused("compare", inside / "model.onnx", "--data", images(tmp_path))


def test_external_data_that_is_too_short(refused, external, tmp_path):
    model, data = external
    data.write_bytes(data.read_bytes()[:10])
    assert data.name in refused("compare", model, "--data", images(tmp_path))


# -- data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arrays", "named"), [
    ({"image": np.zeros((8, 16), np.float32)}, "x"),
    ({"x": np.zeros((8, 17), np.float32)}, "17"),
    ({"x": np.zeros((8,), np.float32)}, "x"),
    ({"x": np.zeros((8, 16), np.complex64)}, "complex64"),
    ({"x": np.full((8, 16), "text")}, "x"),
    ({"x": np.zeros((0, 16), np.float32)}, "no samples"),
    ({}, "no arrays"),
])
def test_data_that_do_not_fit(refused, mlp, arrays, named):
    np.savez(mlp.data, **arrays)
    assert named in refused("compare", mlp.model, "--data", mlp.data)


@pytest.mark.parametrize("row", [0, 9, 15])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_are_not_finite(refused, mlp, row, value):
    x = np.load(mlp.data)["x"]
    x[row, 3] = value
    np.savez(mlp.data, x=x)
    text = refused("compare", mlp.model, "--data", mlp.data, "--batch", 4)
    assert "'x'" in text and f"sample {row}" in text


def test_nan_that_only_build_reads(refused, mlp):
    np.savez(mlp.data, x=np.full((16, 16), np.nan, np.float32))
    refused("build", mlp.model, "--precision", "int8", "--data", mlp.data, "-o", "typed.onnx")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"{]"])
@pytest.mark.parametrize("name", ["bad.npz", "bad.json", "bad.txt"])
def test_data_that_cannot_be_read(refused, mlp, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert name in refused("compare", mlp.model, "--data", tmp_path / name)


@pytest.mark.parametrize("what", ["a pipe", "a device"])
@pytest.mark.parametrize("option", ["MODEL", "--data", "--calib-data", "--config", "--calib-cache", "--metric",
                                    "--engine"])
def test_what_never_ends_is_not_read(refused, mlp, tmp_path_factory, option, what):
    place = tmp_path_factory.mktemp("special") / ("special.py" if option == "--metric" else "special")
    os.mkfifo(place) if what == "a pipe" else place.symlink_to("/dev/zero")
    int8 = ["--precision", "int8", "-o", "typed.onnx"]
    arguments = {"MODEL": ["inspect", place], "--engine": ["inspect", mlp.model, "--engine", place],
                 "--config": ["build", mlp.model, "--config", place, "-o", "typed.onnx"],
                 "--metric": ["compare", mlp.model, "--data", mlp.data, "--metric", f"{place}:f"],
                 "--calib-cache": ["build", mlp.model, "--calib-cache", place, *int8]}
    error = refused(*arguments.get(option, ["build", mlp.model, option, place, *int8]))
    assert (f"it is {what}; a regular file is needed" in error or option == "--metric") and place.name in error


def test_reports_go_into_pipes(mlp, config, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(SystemExit) as stop:
        main(["export", mlp.model, "--config", str(config), "--format", "markdown", "-o", str(pipe)])
    assert stop.value.code == 0 and b"/fc1/Gemm" in os.read(reader, 1 << 16) and pipe.is_fifo()
    os.close(reader)


def test_data_that_are_not_there(refused, mlp):
    assert "none.npz" in refused("compare", mlp.model, "--data", "none.npz")
    assert "none.npz" in refused("compare", mlp.model, "--data", mlp.data, "--calib-data", "none.npz")


@pytest.mark.parametrize(("body", "named"), [
    ("raise RuntimeError('no disk')", "no disk"),
    ("return 7", "int"),
    ("return [7]", "int"),
    ("return []", "no samples"),
    ("return [{'x': 'nonsense'}]", "x"),
    ("return [{'y': np.zeros((4, 16), np.float32)}]", "x"),
    ("return [{'x': np.zeros((4, 9), np.float32)}]", "9"),
    ("import sys; sys.exit(0)", "SystemExit"),
    ("yield {'x': np.zeros((4, 16), np.float32)}; raise KeyError('second')", "second"),
])
def test_a_data_script_that_raises_or_returns_nonsense(refused, mlp, tmp_path, body, named):
    (tmp_path / "data.py").write_text(f"import numpy as np\n\ndef load_data():\n    {body}\n")
    text = refused("compare", mlp.model, "--data", tmp_path / "data.py")
    assert "data.py" in text and named in text


@pytest.mark.parametrize(("script", "named"), [
    ("def load_data(:\n", "SyntaxError"), ("import no_such_module\n", "no_such_module"), ("x = 1\n", "load_data")])
def test_a_data_script_that_cannot_be_loaded(refused, mlp, tmp_path, script, named):
    (tmp_path / "data.py").write_text(script)
    text = refused("compare", mlp.model, "--data", tmp_path / "data.py")
    assert "data.py" in text and named in text


# -- labels and metrics -------------------------------------------------------------------------------------------


def metric(tmp_path, body):
    (tmp_path / "metric.py").write_text(f"def score(outputs, labels):\n    {body}\n")
    return f"{tmp_path}/metric.py:score"


def test_a_metric_without_labels(refused, mlp, tmp_path):
    text = refused("compare", mlp.model, "--data", mlp.data, "--metric", metric(tmp_path, "return 1.0"))
    assert "labels" in text and "mlp.npz" in text


def test_labels_without_a_metric_are_a_warning(mlp, capfd):
    np.savez(mlp.data, x=np.load(mlp.data)["x"], classes=np.zeros(16, np.int64))
    with pytest.raises(SystemExit) as stop:
        main(["compare", mlp.model, "--data", mlp.data, "--no-layers"])
    shown = capfd.readouterr()
    assert stop.value.code == 0 and "Warning: " in shown.err and "classes" in shown.err and "--metric" in shown.err


@pytest.mark.parametrize(("body", "named"), [
    ("raise ValueError('bad labels')", "bad labels"), ("return 'high'", "str"), ("return None", "None"),
    ("return {}", "empty"), ("return {1: 2.0}", "key"), ("return outputs['y']", "array"),
    ("return float('nan')", "nan"),
    ("return outputs['z']", "z")])
def test_a_metric_that_raises_or_returns_nonsense(refused, mlp, tmp_path, body, named):
    np.savez(mlp.data, x=np.load(mlp.data)["x"], classes=np.zeros(16, np.int64))
    text = refused("compare", mlp.model, "--data", mlp.data, "--metric", metric(tmp_path, body))
    assert "metric.py" in text and named in text


@pytest.mark.parametrize("spec", ["metric.py", "none.py:score", "metric.txt:score"])
def test_a_metric_that_is_none(refused, mlp, spec):
    np.savez(mlp.data, x=np.load(mlp.data)["x"], classes=np.zeros(16, np.int64))
    assert spec.partition(":")[0] in refused("compare", mlp.model, "--data", mlp.data, "--metric", spec)


# -- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "named"), [
    (["--judge", "no_such"], "no_such"),
    (["--judge", "y[9:]"], "y[9:]"),
    (["--target", "sqnr>20"], "sqnr>20"),
    (["--shapes", "x:4"], "x:4"),
    (["--shapes", "z:4x16"], "z"),
    (["--calib-cache", "none.cache"], "none.cache"),
    (["--json", "no/such/folder/out.json"], "no/such/folder"),
    (["--markdown", "."], "."),
])
def test_options_that_cannot_be_met(refused, mlp, options, named):
    assert named in refused("compare", mlp.model, "--data", mlp.data, *options)


def test_a_remainder_of_a_static_batch(refused, mlp):
    model = networks.mlp()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 5
    onnx.save(model, mlp.model)
    assert "5" in refused("compare", mlp.model, "--data", mlp.data)


# -- configs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path, mlp):
    network = open_network(mlp.model)
    made = INT8.with_groups(network.groups[:1], Precision.FP32)
    for tensor in network.activations:
        made = made.with_range(tensor, RangeChoice(4.0))
    (tmp_path / "precision.json").write_text(config_text(network, made))
    return tmp_path / "precision.json"


def changed(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def unknown_layer(record):
    record["moves"].append({"kind": "precision", "layers": ["/no/such/Conv"], "precision": "fp32"})


def wrong_version(record):
    record["version"] = 3


def wrong_format(record):
    record["format"] = "somebody/else"


def unknown_precision(record):
    record["moves"][0]["precision"] = "fp7"


def reserved_precision(record):
    record["moves"][0]["precision"] = "fp8"


def no_list(record):
    record["moves"] = {"/fc1/Gemm": "fp32"}


def negative_range(record):
    next(move for move in record["moves"] if move["kind"] == "range")["amax"] = -1


@pytest.mark.parametrize(("change", "named"), [
    (unknown_layer, "/no/such/Conv"), (wrong_version, "version 3"), (wrong_format, "somebody/else"),
    (unknown_precision, "fp7"), (reserved_precision, "fp8"), (no_list, "moves"), (negative_range, "-1")])
@pytest.mark.parametrize("command", ["compare", "build", "export"])
def test_a_config_that_cannot_be_used(refused, mlp, config, command, change, named):
    changed(config, change)
    more = {"compare": ["--data", mlp.data], "build": ["-o", "t.onnx"], "export": ["--format", "onnx", "-o", "t.onnx"]}
    text = refused(command, mlp.model, "--config", config, *more[command])
    assert "precision.json" in text and named in text


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1, "format": 2}', "\x00\xff"])
def test_a_config_that_is_no_json(refused, mlp, tmp_path, content):
    (tmp_path / "precision.json").write_text(content)
    assert "precision.json" in refused("build", mlp.model, "--config", tmp_path / "precision.json", "-o", "t.onnx")


def test_a_config_of_another_structure(refused, mlp, config, tmp_path):
    onnx.save(networks.small_resnet(), tmp_path / "other.onnx")
    text = refused("build", tmp_path / "other.onnx", "--config", config, "-o", "t.onnx")
    assert "another structure" in text and "--force" in text


def test_force_names_what_it_ignores(mlp, config, tmp_path, capfd):
    onnx.save(networks.small_resnet(), tmp_path / "other.onnx")
    with pytest.raises(SystemExit) as stop:
        main(["build", str(tmp_path / "other.onnx"), "--config", str(config), "--force", "-o", "t.onnx",
              "--calib-data", str(images(tmp_path))])
    shown = capfd.readouterr()
    assert stop.value.code == 0 and "Warning: " in shown.err and "/fc1/Gemm" in shown.err, shown.err


def images(folder):
    path = folder / "images.npz"
    np.savez(path, image=networks.random_images(np.random.default_rng(0), (4, 3, 32, 32)))
    return path


# -- places that cannot be written --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["no/folder/t.onnx", "here"])
@pytest.mark.parametrize("command", ["build", "export"])
def test_a_place_that_is_none(refused, mlp, config, tmp_path, command, place):
    (tmp_path / "here").mkdir()
    more = ["--format", "onnx"] if command == "export" else []
    assert place in refused(command, mlp.model, "--config", config, *more, "-o", place)


def test_a_limit_on_file_sizes_leaves_nothing(mlp, config, tmp_path):
    before = files(tmp_path)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    run = subprocess.run([sys.executable, "-m", "trt_tui", "build", mlp.model, "--config", config, "-o", "typed.onnx"],
                         preexec_fn=limit, capture_output=True, text=True)
    assert run.returncode == 2 and "typed.onnx cannot be written" in run.stderr and "Traceback" not in run.stderr
    assert files(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
def test_a_read_only_folder(refused, mlp, config, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "locked" in refused("build", mlp.model, "--config", config, "-o", "locked/t.onnx")
