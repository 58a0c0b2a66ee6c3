"""A calibration cache that does not exist yet: it is written after calibration, and later commands read it"""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.driven import save_mlp
from tests.networks import Builder, floats
from tests.texts import lacking, numbers
from trt_tui.core.calibration.cache import (
    read_calibration_cache,
    read_calibration_cache_header,
    write_calibration_cache,
)
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

pytestmark = pytest.mark.usefixtures("placed")

INT8 = ("--precision", "int8")
UNWRITTEN = "Warning: new.cache is not"
COMMANDS = {
    "compare": ("--layers", "none"),
    "search": ("--tolerance", "sqnr>=-100", "-o", "found.json"),
    "build": (*INT8, "-o", "typed.onnx"),
    "export": (*INT8, "--format", "trtexec", "-o", "build.sh"),
    "preflight": (),
}


def save_joined(folder: Path):
    """A network whose Concat joins two tensors of different ranges; its inputs share one range."""
    b, rng = Builder(), np.random.default_rng(0)
    weights = [
        b.weight(name, rng.standard_normal(shape, dtype=np.float32))
        for name, shape in (("a", (8, 4)), ("b", (8, 4)), ("c", (8, 3)))
    ]
    first = b.node("MatMul", ["x", weights[0]], "/first")
    second = b.node("Mul", [b.node("MatMul", ["x", weights[1]], "/second"), b.weight("seven", np.float32([7]))], "/mul")
    b.node("MatMul", [b.node("Concat", [first, second], "/join", axis=1), weights[2]], "/last", output="y")
    onnx.save(b.model([floats("x", "batch", 8)], [floats("y", "batch", 3)]), folder / "joined.onnx")
    np.savez(folder / "joined.npz", x=rng.standard_normal((16, 8), dtype=np.float32))
    return replace(save_mlp(folder), model=str(folder / "joined.onnx"), data=str(folder / "joined.npz"))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_that_calibrate_write_what_an_export_writes(run, mlp, command):
    code, _, said = run(
        "export", mlp.model, "--data", mlp.data, *INT8, "--format", "calibration-cache", "-o", "exported.cache"
    )
    assert code == 0, said
    code, _, said = run(command, mlp.model, "--data", mlp.data, *COMMANDS[command], "--calib-cache", "new.cache")
    (note,) = (line for line in said.splitlines() if line.startswith("Note: Wrote new.cache"))
    assert code == 0 and numbers(note) == [3], said
    assert Path("new.cache").read_bytes() == Path("exported.cache").read_bytes()


@pytest.mark.parametrize(("save", "method"), [(save_joined, "percentile"), (save_joined, "minmax")])
def test_what_is_written_is_read_by_the_next_run_with_the_same_results(run, tmp_path, save, method):
    options = save(tmp_path)
    samples = ("--data", options.data, "--calib-data", options.data)  # both runs judge all samples
    shared = ("compare", options.model, *samples, "--layers", "none", "--calib-method", method)
    assert run(*shared, "--calib-cache", "new.cache", "--json", "first.json")[0] == 0
    tensors = open_network(options.model).calibrated_tensors
    written = Path("new.cache").read_bytes()
    assert (
        set(read_calibration_cache("new.cache")) == set(tensors)
        and read_calibration_cache_header("new.cache").range_method == method
    )
    code, out, said = run(*shared, "--calib-cache", "new.cache", "--json", "second.json")
    assert code == 0 and "ranges of new.cache" in out and "Wrote new.cache" not in said, said
    assert Path("new.cache").read_bytes() == written
    first, second = (
        json.loads(Path(name).read_text())["runs"]["int8"]["outputs"] for name in ("first.json", "second.json")
    )
    for name, errors in first.items():
        assert second[name]["sqnr_db"] == pytest.approx(errors["sqnr_db"], abs=0.05)
    code, _, said = run(
        "export",
        options.model,
        *samples,
        *INT8,
        *f"--calib-method {method} --format calibration-cache -o exported.cache".split(),
    )
    assert code == 0 and Path("exported.cache").read_bytes() == written, said


def test_ranges_of_the_user_are_not_calibrated_ranges(run, mlp):
    """They apply to what a run reads from the cache, so the cache does not repeat them."""
    shared = ("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--calib-cache")
    assert run(*shared, "plain.cache")[0] == run(*shared, "ranged.cache", "--range", "*=50")[0] == 0
    assert Path("plain.cache").read_bytes() == Path("ranged.cache").read_bytes()
    for name in ("compare", "build"):
        code, _, said = run(
            name, mlp.model, "--data", mlp.data, *COMMANDS[name], "--range", "*=50", "--calib-cache", f"{name}.cache"
        )
        assert code == 0 and Path(f"{name}.cache").read_bytes() == Path("plain.cache").read_bytes(), said


@pytest.mark.parametrize("command", ["compare", "build", "export"])
def test_the_ranges_of_a_config_are_written_with_their_method(run, mlp, command):
    network = open_network(mlp.model)
    ranges = {tensor: 3.0 + place for place, tensor in enumerate(network.calibrated_tensors)}
    Path("c.json").write_text(config_text(network, PrecisionConfig(), Calibration("mse", 9, "", ranges)))
    options = ("--layers", "none") if command == "compare" else COMMANDS[command][2:]
    code, _, said = run(
        command, mlp.model, "--data", mlp.data, "--config", "c.json", *options, "--calib-cache", "new.cache"
    )
    assert code == 0 and "Wrote new.cache" in said, said
    assert read_calibration_cache("new.cache") == pytest.approx(ranges)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        *(("compare", path) for path in ("-", "no/such/folder/new.cache", "closed/new.cache", "circle")),
        *((command, "closed/new.cache") for command in COMMANDS if command != "compare"),
    ],
)
def test_a_cache_that_cannot_be_written_is_refused_before_anything_is_read(run, command, path, monkeypatch):
    os.mkdir("closed")
    os.symlink("circle", "circle")
    Path("net.onnx").write_bytes(b"not a network")
    access = os.access
    monkeypatch.setattr(os, "access", lambda name, mode: "closed" not in str(name) and access(name, mode))
    code, out, said = run(command, "net.onnx", "--data", "d.npz", *COMMANDS[command], "--calib-cache", path)
    assert code == 2 and out == "" and path in said and "Next: " in said and "net.onnx" not in said, said


def test_a_wrong_name_is_not_calibrated_on_random_inputs(run, mlp):
    for command, more in COMMANDS.items():
        code, _, said = run(command, mlp.model, *more, "--calib-cache", "typo.cache")
        assert code == 2 and said.startswith("Error: typo.cache ") and "Correct the name" in said, said
    assert not Path("typo.cache").exists()


def test_two_outputs_are_not_one_file(run, mlp):
    for command in ("search", "build", "export"):
        *more, output = COMMANDS[command]
        code, _, said = run(command, mlp.model, "--data", mlp.data, *more, output, "--calib-cache", output)
        assert code == 2 and not lacking(said, "two outputs", output) and not Path(output).exists(), said


def test_a_file_that_exists_is_read_and_never_written(run, mlp):
    shared = ("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--calib-cache")
    ranges = dict.fromkeys(open_network(mlp.model).calibrated_tensors, 9.0)
    write_calibration_cache("mine.cache", ranges)
    os.chmod("mine.cache", 0o444)
    before = Path("mine.cache").read_bytes()
    code, out, said = run(*shared, "mine.cache")
    assert code == 0 and "ranges of mine.cache" in out and Path("mine.cache").read_bytes() == before, said
    Path("empty.cache").touch()
    os.mkfifo("pipe")
    for path, reason in (
        ("empty.cache", "not a TensorRT calibration cache"),
        ("pipe", "a regular file is needed"),
        (".", "."),
    ):
        code, _, said = run(*shared, path)
        assert code == 2 and reason in said, said
    assert Path("empty.cache").read_bytes() == b""


def test_a_link_to_a_file_that_does_not_exist_stays_a_link(run, mlp):
    os.symlink("real.cache", "link.cache")
    code, _, said = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--calib-cache", "link.cache")
    assert code == 0 and Path("link.cache").is_symlink() and read_calibration_cache("real.cache"), said


def save_script(mlp, meanwhile: str) -> str:
    """A script of the same samples that does something else after it has given them all."""
    Path("load.py").write_text(
        f"import os, shutil\nimport numpy as np\n\ndef load_data():\n"
        f"    yield from ({{'x': rows}} for rows in np.split(np.load({mlp.data!r})['x'], 4))\n"
        f"    {meanwhile}\n"
    )
    return "load.py"


@pytest.mark.parametrize("same", [False, True])
def test_a_file_that_appears_while_it_calibrates_is_kept(run, mlp, same):
    ranges = dict.fromkeys(open_network(mlp.model).calibrated_tensors, 9.0)
    write_calibration_cache("other.cache", ranges)
    data = save_script(mlp, "shutil.copy('other.cache', 'new.cache')")
    if same:
        run("export", mlp.model, "--data", mlp.data, *INT8, "--format", "calibration-cache", "-o", "other.cache")
    code, out, said = run("compare", mlp.model, "--data", data, "--layers", "none", "--calib-cache", "new.cache")
    assert code == 0 and "calibrated on 4" in out and "Wrote new.cache" not in said, said
    assert ("Warning: new.cache exists" in said) is not same
    assert Path("new.cache").read_bytes() == Path("other.cache").read_bytes()


@pytest.mark.parametrize("command", ["compare", "build"])
def test_a_folder_that_goes_away_is_an_error(run, mlp, command):
    os.mkdir("gone")
    data = save_script(mlp, "shutil.rmtree('gone', ignore_errors=True)")
    code, _, said = run(command, mlp.model, "--data", data, *COMMANDS[command], "--calib-cache", "gone/new.cache")
    assert code == 2 and said.startswith("Error: gone/new.cache ") and "is not written" not in said, said


@pytest.mark.parametrize("what", ["nothing in INT8", "no layer that can be"])
def test_where_nothing_is_quantized_no_cache_is_written_and_that_is_said(run, mlp, tmp_path, what):
    model, data, more = mlp.model, mlp.data, ("--precision", "fp16", "-o", "t.onnx")
    if what != "nothing in INT8":
        b = Builder()
        b.node("Sigmoid", [b.node("Relu", ["x"], "/relu")], "/sigmoid", output="y")
        onnx.save(b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)]), tmp_path / "plain.onnx")
        model, more = "plain.onnx", (*INT8, "-o", "t.onnx")
        code, _, said = run("compare", model, "--data", data, "--layers", "none", "--calib-cache", "new.cache")
        assert code == 0 and UNWRITTEN in said and not Path("new.cache").exists(), said
    code, _, said = run("build", model, "--data", data, *more, "--calib-cache", "new.cache")
    assert code == 0 and UNWRITTEN in said and not Path("new.cache").exists(), said
    assert not Path("new.cache").exists()


def test_several_methods_have_no_one_cache(run, mlp):
    code, _, said = run("methods", mlp.model, "--data", mlp.data, "--calib-cache", "n.cache")
    assert code == 2 and "one method" in said and not Path("n.cache").exists(), said


def test_several_configs_share_the_cache_of_the_first(run, mlp):
    network = open_network(mlp.model)
    for place in (0, 1):
        config = PrecisionConfig().with_group_precision(network.groups[place : place + 1], Precision.FP32)
        Path(f"{place}.json").write_text(config_text(network, config))
    code, _, said = run(
        *f"compare {mlp.model} --data {mlp.data} --config 0.json --config 1.json --calib-cache new.cache".split()
    )
    assert code == 0 and said.count("Wrote new.cache") == 1 and "exists now" not in said, said


def test_the_app_writes_it_too(session, mlp):
    session(replace(mlp, new_calib_cache="new.cache")).settled()
    assert set(read_calibration_cache("new.cache")) == set(open_network(mlp.model).calibrated_tensors)
