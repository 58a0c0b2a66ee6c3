"""`export --format json` and `build -o x.json`: a config as a precision.json, without a search."""

import json

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import save_resnet
from tests.networks.odd import conv_net
from tests.schemas import mismatches
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision


def exported(run, out, *arguments, command="export"):
    """The record that a command writes, and what it prints on stderr."""
    formats = ("--format", "json") if command == "export" else ()
    code, stdout, err = run(command, *arguments, *formats, "-o", out)
    assert code == 0, err
    assert stdout == f"{out}\n"
    record = json.loads(out.read_text())
    assert not mismatches(record)
    return record, err


@pytest.mark.parametrize("command", ["export", "build"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "fp8"])
def test_a_uniform_config_is_written_and_read_back(run, mlp, tmp_path, command, precision):
    out = tmp_path / "precision.json"
    record, err = exported(run, out, mlp.model, "--precision", precision, command=command)
    assert "calibration" not in record and not record["moves"]
    count = 3 if precision in ("int8", "fp8") else 0
    assert ("has no range for 3 quantized tensors; --data" in err) is bool(count), err
    assert read_config(out, open_network(mlp.model)).config == PrecisionConfig.from_precision(Precision(precision))


def test_it_has_the_ranges_of_the_data_and_gives_the_same_network(run, tmp_path):
    options = save_resnet(tmp_path, size=8)
    data = ("--data", options.data, "--batch", "4", "--calib-method", "entropy")
    record, err = exported(run, tmp_path / "c.json", options.model, "--precision", "int8", *data)
    assert "no range" not in err and record["model"]["sha256"]
    assert record["calibration"]["method"] == "entropy" and record["calibration"]["samples"] == 4
    tensors = open_network(options.model).calibrated_tensors
    assert [*record["calibration"]["ranges"]] == [tensor for tensor in tensors]
    assert set(record["calibration"]["others"]["fp8"]) == set(tensors)
    for source, name in ((("--config", tmp_path / "c.json"), "a.onnx"), (("--precision", "int8", *data), "b.onnx")):
        code, _, err = run("build", options.model, *source, "-o", tmp_path / name)
        assert code == 0, err
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_moves_of_the_command_line_are_in_it(run, mlp, tmp_path):
    network = open_network(mlp.model)
    tensor, group = network.calibrated_tensors[1], network.groups[0].name
    record, err = exported(run, tmp_path / "c.json", mlp.model, "--precision", "int8", "--range", f"{tensor}=2.5",
                           "--keep", f"{group}=fp16")
    kinds = {entry["kind"]: entry for entry in record["moves"]}
    assert set(kinds) == {"range", "keep"} and kinds["range"]["tensors"] == [tensor]
    assert "calibration" not in record and "no range for 1 quantized tensor;" in err
    read = read_config(tmp_path / "c.json", network).config
    assert read.range_moves[tensor].amax == 2.5 and read.precision_of(network.groups[0]) is Precision.FP16


def test_it_converts_configs_of_other_tools_and_takes_the_ranges_of_a_cache(run, mlp, tmp_path):
    network = open_network(mlp.model)
    cache = tmp_path / "net.cache"
    code, _, err = run("export", mlp.model, "--precision", "int8", "--data", mlp.data, "--format", "calibration-cache",
                       "-o", cache)
    assert code == 0, err
    name = network.groups[0].name
    (tmp_path / "line.sh").write_text(f"trtexec --onnx=mlp.onnx --int8 --fp16 --layerPrecisions={name}:fp16\n")
    record, err = exported(run, tmp_path / "c.json", mlp.model, "--config", tmp_path / "line.sh", "--calib-cache",
                           cache)
    assert record["calibration"]["method"] == "minmax"
    assert set(record["calibration"]["ranges"]) == set(network.calibrated_tensors)
    first, second = tmp_path / "c.json", tmp_path / "d.json"
    record, err = exported(run, second, mlp.model, "--config", first, "--data", mlp.data)
    assert "--data: not read, since the ranges are known" in err
    assert record["calibration"]["ranges"] == json.loads(first.read_text())["calibration"]["ranges"]


def test_a_quantized_network_keeps_its_own_precisions(run, tmp_path):
    for name, model in (("fp32.onnx", conv_net(0)), ("quantized.onnx", networks.quantized())):
        onnx.save(model, tmp_path / name)
    record, err = exported(run, tmp_path / "c.json", tmp_path / "quantized.onnx", "--precision", "file",
                           "--reference", tmp_path / "fp32.onnx")
    assert record["default"] == {"quantized": "file", "other": "file"}
    assert record["model"]["weights_of"] == "fp32.onnx" and "no range" not in err


@pytest.mark.parametrize(("arguments", "message"), [
    (("export", "--precision", "int8", "--format", "json", "-o", "mlp.onnx"), "is an input file"),
    (("export", "--config", "c.json", "--format", "json", "-o", "c.json"), "is an input file"),
    (("export", "--precision", "int8", "--format", "json", "-o", "-"), "an export goes to a file"),
    (("export", "--format", "json", "-o", "new.json"), "needs a config or a precision"),
    (("build", "--precision", "int8", "--trtexec=--refit", "-o", "new.json"), "--trtexec has no effect here"),
    (("build", "--precision", "int8", "-o", "new.txt"), "new.txt is not an engine, a network or a config"),
    (("export", "--precision", "int8", "--format", "json", "-o", "none/new.json"), "none/new.json"),
    (("export", "--precision", "fp16", "--other", "fp32", "--format", "json", "-o", "new.json"), "--other"),
])
def test_what_cannot_be_written_is_refused_and_nothing_changes(run, mlp, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    command, *others = arguments
    code, out, err = run(command, mlp.model, *others)
    assert code == 2 and message in err and not out, err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_fp16_reads_no_data(run, mlp, tmp_path):
    np.savez(tmp_path / "none.npz")  # is not opened
    record, err = exported(run, tmp_path / "c.json", mlp.model, "--precision", "fp16", "--data", tmp_path / "none.npz")
    assert "--data: not read, since no layer needs a range" in err and "calibration" not in record


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_ranges_that_a_config_has_are_exported_and_only_the_others_are_measured(run, tmp_path, precision):
    options = save_resnet(tmp_path, size=8)
    data = ("--data", options.data, "--calib-data", options.data, "--batch", "4")
    record, _ = exported(run, tmp_path / "all.json", options.model, "--precision", precision, *data)
    measured = dict(record["calibration"]["ranges"])
    kept, left_out = [*measured][0], [*measured][-1]
    record["calibration"]["ranges"] = {tensor: 3 * amax for tensor, amax in measured.items() if tensor != left_out}
    record["calibration"].pop("others", None)
    (tmp_path / "part.json").write_text(json.dumps(record))
    part, _ = exported(run, tmp_path / "again.json", options.model, "--config", tmp_path / "part.json", *data)
    ranges = part["calibration"]["ranges"]
    assert ranges[kept] == 3 * measured[kept] and ranges[left_out] == measured[left_out]
    assert kept not in part["calibration"].get("others", {}).get("fp8", {}), "one range for every type"

    compared = {}
    for name in ("part.json", "again.json"):
        code, _, err = run("compare", options.model, *data, "--config", tmp_path / name, "--layers", "none", "--json",
                           tmp_path / "o.json")
        assert code == 0, err
        compared[name] = json.loads((tmp_path / "o.json").read_text())["runs"]["config"]["outputs"]
    assert compared["part.json"] == compared["again.json"], "what was judged is what is exported"
