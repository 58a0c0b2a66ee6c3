"""Bad input: each ends as an error that names the thing, its cause and the next step, and leaves nothing behind."""

import os
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import networks
from trt_tui.cli.main import main
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

INT8 = PrecisionConfig.from_precision(Precision.INT8)

pytestmark = pytest.mark.usefixtures("placed")


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
        error = shown.err[shown.err.index("Error: ") :].splitlines()
        assert any(line.startswith("  Next: ") and len(line) > 16 for line in error), shown.err
        assert files(tmp_path) == before, "something was left behind"
        return shown.err

    return run


def files(folder: Path) -> dict[str, bytes]:
    """What lies in a folder, the user's cache and state apart."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in ("cache", "state", "__pycache__")
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-400]),
        Path.unlink,
        lambda path: path.write_text("not a network\n" * 50),
    ],
)
@pytest.mark.parametrize("command", ["compare", "inspect", "build"])
def test_a_file_that_is_no_network(refused, mlp, spoil, command):
    spoil(Path(mlp.model))
    more = {"compare": ["--data", mlp.data], "inspect": [], "build": ["--precision", "fp16", "-o", "typed.onnx"]}
    assert "mlp.onnx" in refused(command, mlp.model, *more[command])


def test_external_data_that_is_missing(refused, tmp_path):
    model = networks.save_with_external_data(tmp_path)
    model.with_name("model.onnx.data").unlink()
    assert "model.onnx.data" in refused("compare", model, "--data", images(tmp_path))


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"image": np.zeros((8, 16), np.float32)}, "x"),
        ({"x": np.zeros((8, 17), np.float32)}, "17"),
        ({}, "no arrays"),
        ({"x": np.where(np.arange(256) == 147, np.nan, 1).reshape(16, 16)}, "'x' holds nan at sample 9"),
    ],
)
def test_data_that_do_not_fit(refused, mlp, arrays, named):
    np.savez(mlp.data, **arrays)
    assert named in refused("compare", mlp.model, "--data", mlp.data)


def test_nan_that_only_build_reads(refused, mlp):
    np.savez(mlp.data, x=np.full((16, 16), np.nan, np.float32))
    refused("build", mlp.model, "--precision", "int8", "--data", mlp.data, "-o", "typed.onnx")


@pytest.mark.parametrize("what", ["a pipe", "a device"])
@pytest.mark.parametrize(
    "option", ["MODEL", "--data", "--calib-data", "--config", "--calib-cache", "--metric", "--engine"]
)
def test_what_never_ends_is_not_read(refused, mlp, tmp_path_factory, option, what):
    place = tmp_path_factory.mktemp("special") / ("special.py" if option == "--metric" else "special")
    os.mkfifo(place) if what == "a pipe" else place.symlink_to("/dev/zero")
    int8 = ["--precision", "int8", "-o", "typed.onnx"]
    arguments = {
        "MODEL": ["inspect", place],
        "--engine": ["inspect", mlp.model, "--engine", place],
        "--config": ["build", mlp.model, "--config", place, "-o", "typed.onnx"],
        "--metric": ["compare", mlp.model, "--data", mlp.data, "--metric", f"{place}:f"],
        "--calib-cache": ["build", mlp.model, "--calib-cache", place, *int8],
    }
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


@pytest.mark.parametrize("name", ["golden.pkl", "golden", "golden.json", "golden.npz"])
@pytest.mark.parametrize(
    "options",
    [
        ("--data", "{golden}"),
        ("--data", "{data}", "--reference", "{golden}"),
        ("--data", "{data}", "--outputs", "{golden}"),
    ],
)
def test_a_pickle_is_refused_with_its_conversion(refused, mlp, tmp_path, name, options):
    golden = tmp_path / name
    golden.write_bytes(pickle.dumps({"y": np.zeros((4, 10), np.float32)}))
    if name != "golden" or "--outputs" not in options:  # the kind of outputs is that of their name
        text = refused(
            "compare",
            mlp.model,
            "--runs",
            "fp16",
            "--layers",
            "none",
            *(option.format(golden=golden, data=mlp.data) for option in options),
        )
        assert f"{name} is a pickle" in text and "numpy.savez(" in text


def test_a_pickle_is_no_dump(refused, tmp_path):
    (tmp_path / "golden.pickle").write_bytes(b"(dp0\n.")
    np.savez(tmp_path / "y.npz", y=np.zeros(3, np.float32))
    assert "is a pickle" in refused("compare", tmp_path / "golden.pickle", tmp_path / "y.npz")


def metric(tmp_path, body):
    (tmp_path / "metric.py").write_text(f"def score(outputs, labels):\n    {body}\n")
    return f"{tmp_path}/metric.py:score"


def test_a_metric_without_labels(refused, mlp, tmp_path):
    text = refused("compare", mlp.model, "--data", mlp.data, "--metric", metric(tmp_path, "return 1.0"))
    assert "labels" in text and "mlp.npz" in text


def test_labels_without_a_metric_are_a_warning(mlp, capfd):
    np.savez(mlp.data, x=np.load(mlp.data)["x"], classes=np.zeros(16, np.int64))
    with pytest.raises(SystemExit) as stop:
        main(["compare", mlp.model, "--data", mlp.data, "--layers", "none"])
    shown = capfd.readouterr()
    assert stop.value.code == 0 and "Warning: " in shown.err and "classes" in shown.err and "--metric" in shown.err


def test_labels_that_are_one_short_are_refused_where_a_metric_reads_them(refused, run, mlp, tmp_path):
    np.savez(mlp.data, x=np.load(mlp.data)["x"], classes=np.zeros(15, np.int64))
    common = "compare", mlp.model, "--data", mlp.data, "--layers", "none"
    said = "'classes' has 15 rows for 16 samples"
    assert said in refused(*common, "--metric", metric(tmp_path, "return 1.0"))
    code, _, err = run(*common)
    assert code == 0 and said in err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--judge", "no_such"], "no_such"),
        (["--judge", "y[9:]"], "y[9:]"),
        (["--target", "sqnr>20"], "sqnr>20"),
        (["--shapes", "x:4"], "x:4"),
        (["--shapes", "z:4x16"], "z"),
        (["--calib-cache", "no/such/folder/new.cache"], "no/such/folder"),
        (["--calib-cache", "-"], "--calib-cache - is not a file"),
        (["--json", "no/such/folder/out.json"], "no/such/folder"),
        (["--markdown", "."], "."),
    ],
)
def test_options_that_cannot_be_met(refused, mlp, options, named):
    assert named in refused("compare", mlp.model, "--data", mlp.data, *options)


def test_a_remainder_of_a_static_batch_without_a_row_for_each_sample(refused, mlp):
    model = networks.mlp()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 5
    model.graph.node.append(onnx.helper.make_node("Flatten", [model.graph.output[0].name], ["flat"], axis=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("flat", onnx.TensorProto.FLOAT, None))
    onnx.save(model, mlp.model)
    assert "5" in refused("compare", mlp.model, "--data", mlp.data)


def test_a_batch_on_another_axis_than_the_first(refused, tmp_path, capfd):
    b = networks.Builder()
    summed = b.node("ReduceSum", ["state", b.weight("axes", np.array([0]))], "/sum", keepdims=0)
    y = b.node("MatMul", [b.node("Add", ["x", summed], "/add"), b.weight("w", np.eye(4, dtype=np.float32))], "/product")
    inputs = [networks.floats("x", "batch", 4), networks.floats("state", 2, "batch", 4)]
    model = b.model(inputs, [networks.floats(y, "batch", 4)])
    onnx.save(model, tmp_path / "state.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((16, 4), np.float32), state=np.ones((2, 16, 4), np.float32))
    command = ["compare", str(tmp_path / "state.onnx"), "--data", str(tmp_path / "data.npz"), "--layers", "none"]
    assert "--batch" in refused(*command)
    with pytest.raises(SystemExit) as stop:
        main([*command, "--batch", "16", "--runs", "fp16"])
    assert stop.value.code == 0, capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda text: text.replace('"version": 2', '"version": 3'), "version 3"),
        (lambda text: text.replace('"fp32"', '"fp7"'), "fp7"),
        (lambda text: text[:-3], "not valid JSON"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "build", "export"])
def test_a_config_that_cannot_be_used(refused, mlp, config, command, change, named):
    config.write_text(change(config.read_text()))
    more = {"compare": ["--data", mlp.data], "build": ["-o", "t.onnx"], "export": ["--format", "onnx", "-o", "t.onnx"]}
    text = refused(command, mlp.model, "--config", config, *more[command])
    assert "precision.json" in text and named in text


def test_a_config_of_another_structure(refused, mlp, config, tmp_path):
    onnx.save(networks.small_resnet(), tmp_path / "other.onnx")
    text = refused("build", tmp_path / "other.onnx", "--config", config, "-o", "t.onnx")
    assert "another structure" in text and "--force" in text


def test_force_names_what_it_ignores(mlp, config, tmp_path, capfd):
    onnx.save(networks.small_resnet(), tmp_path / "other.onnx")
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "build",
                str(tmp_path / "other.onnx"),
                "--config",
                str(config),
                "--force",
                "-o",
                "t.onnx",
                "--calib-data",
                str(images(tmp_path)),
            ]
        )
    shown = capfd.readouterr()
    assert stop.value.code == 0 and "Warning: " in shown.err and "/fc1/Gemm" in shown.err, shown.err


def images(folder):
    path = folder / "images.npz"
    np.savez(path, image=networks.random_images(np.random.default_rng(0), (4, 3, 32, 32)))
    return path


@pytest.mark.parametrize("place", ["no/folder/t.onnx", "here", "/sys/t.onnx"])  # root writes nothing there either
@pytest.mark.parametrize("command", ["build", "export"])
def test_a_place_that_is_none(refused, mlp, config, tmp_path, command, place):
    (tmp_path / "here").mkdir()
    more = ["--format", "onnx"] if command == "export" else []
    assert place in refused(command, mlp.model, "--config", config, *more, "-o", place)
