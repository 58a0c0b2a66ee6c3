"""trt_tui.cli.main: what goes to stdout and stderr, the exit codes, and the files that commands write"""

import json
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest

from tests.schemas import mismatches
from tests.texts import lacking, numbers
from trt_tui.core.calibration.cache import (
    read_calibration_cache,
    read_calibration_cache_header,
    write_calibration_cache,
)
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import ConfigDoubt, config_text
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

INT8 = PrecisionConfig.from_precision(Precision.INT8)


pytestmark = pytest.mark.shares_cache


def test_compare_prints_a_table(run, mlp, config):
    code, out, err = run("compare", mlp.model, "--data", mlp.data, "--config", config)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split("  ")[0].endswith("accumulated errors in config")
    (header,) = (line for line in lines if line.startswith("mlp.onnx: "))
    assert numbers(header.replace("(", ""))[:4] == [3, 6, 16, 4] and not lacking(header, "of mlp.npz", "(every fourth")
    assert [line.split("  ")[0] for line in lines if line.startswith(("FP16  ", "INT8  ", "config  "))] == [
        "FP16",
        "INT8",
        "config",
    ]
    assert "error shares of" in out and "\nfc1 " in out and "~" in out
    assert "\x1b" not in err and "\r" not in err


def test_a_part_of_the_metric_can_be_bounded(run, mlp, tmp_path):
    """Classes of which one loses: the headline passes, the part does not, and it stands first."""
    data = np.load(mlp.data)
    np.savez(tmp_path / "labelled.npz", **data, label=np.arange(16) % 3)
    (tmp_path / "metric.py").write_text(
        textwrap.dedent("""
        import numpy as np
        def score(outputs, labels):
            y = outputs["y"].astype(np.float64)
            found = {f"class/{one}": 100 + 1e3 * float(y[labels["label"] == one].sum()) for one in range(3)}
            return {"score": 1.0, **found}
        """)
    )
    argv = (
        *f"compare {mlp.model} --data {tmp_path}/labelled.npz --metric".split(),
        tmp_path / "metric.py:score",
        *"--layers none --batch 4".split(),
    )
    code, out, err = run(
        *argv, "--target", "score>=base-1%", "--json", tmp_path / "o.json", "--markdown", tmp_path / "o.md"
    )
    assert code == 0, err
    record = json.loads((tmp_path / "o.json").read_text())
    assert mismatches(record, "comparison-v1") == []
    base, runs = record["reference"]["metric_parts"], record["runs"].values()
    drops = {
        name: max(base[name] - one.get("common_metric_parts", one["metric_parts"])[name] for one in runs)
        for name in base
        if name != "score"
    }
    worst = max(drops, key=drops.get)
    rows = [line.split()[0] for line in out[out.index("worst drop first") :].splitlines()[1:5]]
    assert rows == ["score", *sorted(drops, key=lambda name: -drops[name])]
    assert f"| {worst} |" in (tmp_path / "o.md").read_text()
    code, _, err = run(*argv, "--target", f"metric[{worst}]>={record['runs']['int8']['metric_parts'][worst] + 1:g}")
    assert code == 1 and f"and it has {worst} " in err
    assert run(*argv, "--target", "metric[*]>=base-1e9")[0] == 0
    code, _, err = run(*argv, "--target", "metric[class/7]>=3")
    assert code == 2 and not lacking(err, "part class/7", "mean class/")


@pytest.mark.shares_cache(False)  # another test may have executed an exported network
def test_compare_json_on_stdout_is_nothing_but_json(run, mlp, config, tmp_path):
    code, out, err = run("compare", mlp.model, "--data", mlp.data, "--config", config, "--json", "-")
    assert code == 0, err
    record = json.loads(out)
    assert mismatches(record, "comparison-v1") == []
    assert set(record["runs"]) == {"fp16", "int8", "config"} and record["samples"] == 16
    assert {name: one["samples"] for name, one in record["runs"].items()} == {"fp16": 16, "int8": 12, "config": 16}
    groups = {group.name for group in open_network(mlp.model).groups}
    for run_record in record["runs"].values():
        assert set(run_record["groups"]) == groups
        assert run_record["source"] == "simulated" and run_record["outputs"]["y"]["worst_sample"]["index"] < 16
        assert sum("accumulated" in layer for layer in run_record["layers"].values()) == len(groups)
        assert sum("isolated" in layer for layer in run_record["layers"].values()) == len(groups)
    code, out, _ = run("compare", mlp.model, "--data", mlp.data, "--config", config, "--json", tmp_path / "out.json")
    assert code == 0 and "\nINT8 " in out and json.loads((tmp_path / "out.json").read_text()) == record


@pytest.mark.shares_cache(False)  # another test may have executed an exported network
@pytest.mark.parametrize("layers", ["errors", "none"])
def test_a_comparison_leaves_out_what_is_not_asked_for(run, mlp, tmp_path, layers):
    code, out, err = run("compare", mlp.model, "--data", mlp.data, "--layers", layers, "--json", tmp_path / "out.json")
    assert code == 0, err
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert all(("layers" in run) is (layers == "errors") and "groups" not in run for run in runs.values())
    assert ("largest isolated errors" in out) is (layers == "errors") and "error shares" not in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("compare", "--calib-method", "entropy", "--tf32"),
            "Ranges: calibrated on 4 samples of mlp.npz, entropy. Build flags: TF32 on",
        ),
        (("compare", "--calib-cache", "x.cache", "--samples", "4"), "Ranges: x.cache, minmax. Build"),
        (("compare", "--runs", "fp16"), "\n- Build flags: TF32 off\n"),
        (("preflight",), "Ranges: calibrated on 4 samples of mlp.npz, minmax. Build"),
    ],
)
def test_reports_name_the_ranges_and_the_build(run, mlp, tmp_path, options, said, monkeypatch):
    """With their method and samples, whatever the report and the source of the ranges."""
    monkeypatch.chdir(tmp_path)
    tensors = open_network(mlp.model).calibrated_tensors
    write_calibration_cache(tmp_path / "x.cache", dict.fromkeys(tensors, 2.0), "MinMaxCalibration")
    layers = ("--layers", "none") if options[0] == "compare" else ()
    code, _, err = run(options[0], mlp.model, "--data", mlp.data, *options[1:], *layers, "--markdown", "r.md")
    assert code in (0, 1) and said in (tmp_path / "r.md").read_text(), err


def test_compare_in_markdown(run, mlp, tmp_path):
    code, out, err = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--markdown", "-")
    assert code == 0 and out.startswith("# ") and "| " in out, err
    code, _, err = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--markdown", tmp_path / "out.md")
    assert code == 0 and (tmp_path / "out.md").read_text() == out and "Wrote" in err


@pytest.mark.parametrize(("target", "code"), [("sqnr>=5", 0), ("sqnr>=80", 1), ("", 0)])
def test_a_target_that_is_missed_is_exit_code_1(run, mlp, target, code):
    if not target:
        np.savez(mlp.data, x=1e6 * np.load(mlp.data)["x"])  # FP16 overflows
    given = ["--target", target] if target else []
    found, out, err = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", *given)
    assert found == code and "\nINT8 " in out and ("FAIL" in out or target)
    assert ("Target not met" in err and "int8" in err) is (code == 1)


@pytest.mark.parametrize("target", ["metric>=0.5", "agreement>=0.9"])
def test_a_target_that_cannot_be_judged_is_an_error(run, mlp, target):
    arguments = ["--judge", "y[:, 1:]"]
    code, _, err = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--target", target, *arguments)
    assert code == 2 and "Error: " in err and "metric" in err


def test_compare_with_no_data_warns(run, mlp):
    code, out, err = run("compare", mlp.model, "--layers", "none", "--batch", 4)
    assert code == 0 and "Warning: Random inputs" in err, err


def test_a_metric_is_shown(run, mlp, tmp_path):
    np.savez(mlp.data, x=np.load(mlp.data)["x"], label=np.arange(16) % 4)
    script = "def hits(o, l):\n    return {'hits': float((o['y'].argmax(1) == l['label']).mean())}"
    (tmp_path / "m.py").write_text(script)
    code, out, err = run(
        "compare", mlp.model, "--data", mlp.data, "--layers", "none", "--metric", f"{tmp_path}/m.py:hits"
    )
    assert code == 0 and not lacking(out, "hits in FP32", "0.1667 on 12", "0.1875 on 16"), err
    assert "target: hits ≥" in out


def test_build_is_the_same_byte_for_byte(run, mlp, config, tmp_path):
    written = []
    for name in ("one.onnx", "two.onnx"):
        code, out, err = run("build", mlp.model, "--config", config, "-o", tmp_path / name)
        assert code == 0 and out == f"{tmp_path / name}\n", err
        assert re.findall(r"(\d) fused layers? in (\w+)", err) == [("1", "FP32"), ("2", "INT8")]
        written.append((tmp_path / name).read_bytes())
    script = [
        *f"{sys.executable} -m trt_tui export {mlp.model} --config {config} --format onnx".split(),
        *f"-o {tmp_path}/three.onnx".split(),
    ]
    subprocess.run(script, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert written[0] == written[1] == (tmp_path / "three.onnx").read_bytes()
    onnx.checker.check_model(str(tmp_path / "one.onnx"), full_check=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_build_in_one_precision(run, mlp, tmp_path, precision):
    code, _, err = run("build", mlp.model, "--precision", precision, "--data", mlp.data, "-o", tmp_path / "typed.onnx")
    assert code == 0, err
    operators = {node.op_type for node in onnx.load(tmp_path / "typed.onnx").graph.node}
    assert ("QuantizeLinear" in operators) is (precision == "int8")


def test_build_takes_exactly_one_of_config_and_precision(run, mlp, config, tmp_path):
    for arguments in ([], ["--config", config, "--precision", "fp16"]):
        code, _, err = run("build", mlp.model, *arguments, "-o", tmp_path / "typed.onnx")
        assert code == 2 and "exactly one of" in err


def test_int8_without_ranges_or_data_is_an_error(run, mlp, tmp_path):
    code, _, err = run("build", mlp.model, "--precision", "int8", "-o", tmp_path / "typed.onnx")
    assert code == 2 and "INT8 needs ranges" in err and "--calib-data" in err
    assert not (tmp_path / "typed.onnx").exists()


def test_a_calibration_cache_goes_out_and_comes_in(run, mlp, config, tmp_path):
    cache = tmp_path / "calibration.cache"
    code, out, err = run(
        "export", mlp.model, "--config", config, "--format", "calibration-cache", "--data", mlp.data, "-o", cache
    )
    assert code == 0 and out == f"{cache}\n", err
    assert set(read_calibration_cache(cache)) >= set(open_network(mlp.model).calibrated_tensors)
    code, _, err = run("build", mlp.model, "--precision", "int8", "--calib-cache", cache, "-o", tmp_path / "t.onnx")
    assert code == 0, err
    network, ranges = open_network(mlp.model), read_calibration_cache(cache)
    measured = Calibration("minmax", 8, "", {tensor: ranges[tensor] for tensor in network.calibrated_tensors})
    (tmp_path / "own.json").write_text(config_text(network, PrecisionConfig(), measured))
    code, _, err = run(
        "export", mlp.model, "--config", tmp_path / "own.json", "--format", "calibration-cache", "-o", cache
    )
    assert code == 0 and read_calibration_cache_header(cache).range_method == "minmax", err


def test_inspect_prints_the_tree(run, mlp):
    code, out, err = run("inspect", mlp.model)
    assert code == 0 and err == "" and numbers(out.splitlines()[0]) == [6, 3, 17]
    assert "fc1" in out and "INT8" in out
    code, more, _ = run("inspect", mlp.model, "--nodes")
    assert code == 0 and len(more.splitlines()) > len(out.splitlines())


def test_no_backend_is_exit_code_3(mlp, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("onnxruntime", "tensorrt", "tensorrt_rtx"):
        (blocked / f"{name}.py").write_text(f"raise ImportError('no {name} on this machine')")
    environment = {**os.environ, "PYTHONPATH": str(blocked)}

    def command(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "trt_tui", *map(str, arguments)], env=environment, capture_output=True, text=True
        )

    doctor = command("doctor")
    assert doctor.returncode == 3 and "pip install 'trt-tui[cpu]'" in doctor.stdout and "yes" not in doctor.stdout
    compare = command("compare", mlp.model, "--data", mlp.data)
    assert compare.returncode == 3 and "pip install 'trt-tui[cpu]'" in compare.stderr
    build = command("build", mlp.model, "--precision", "int8", "--data", mlp.data, "-o", tmp_path / "t.onnx")
    assert build.returncode == 3 and not (tmp_path / "t.onnx").exists()


def test_help_and_version(run):
    code, out, _ = run("--help")
    assert code == 0
    for name in ("open", "demo", "compare", "build", "export", "inspect", "doctor"):
        assert f"  {name} " in out
    assert run("--version")[0] == 0
    assert run("compare", "--help")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare"],
        ["compare", "m", "--no-such"],
        ["build", "m"],
        ["export", "m", "-o", "x"],
        ["compare", "m", "--samples", "0"],
        ["compare", "m", "--backend", "tpu"],
    ],
)
def test_wrong_usage_is_exit_code_2(run, arguments):
    code, out, err = run(*arguments)
    assert code == 2 and out == "" and "Traceback" not in err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["comparr"], "compare"),
        (["comapre", "{model}"], "compare"),
        (["comapre", "{model}", "--data", "{data}"], "compare"),
        (["expotr", "--help"], "export"),
        (["{folder}/mpl.onnx"], "{folder}/mlp.onnx"),
        (["open", "{folder}/mlp.onx"], "{folder}/mlp.onnx"),
        (["--data", "{data}", "{folder}/ml.onnx"], "{folder}/mlp.onnx"),
        (["compare", "{folder}/mlp2.onnx"], "{folder}/mlp.onnx"),
        (["compare", "{model}", "--data", "{folder}/mpl.npz"], "{folder}/mlp.npz"),
        (["search", "{folder}/mpl.onnx", "--tolerance", "nonsense"], "{folder}/mlp.onnx"),
        (["compare", "{model}", "--metric", "{folder}/metrc.py:f"], "{folder}/metric.py"),
    ],
)
def test_what_was_mistyped_is_suggested(run, mlp, tmp_path, typed, meant):
    (tmp_path / "metric.py").write_text("def f(outputs, labels):\n    return 1.0\n")
    names = {"model": mlp.model, "data": mlp.data, "folder": str(tmp_path)}
    code, _, err = run(*(one.format(**names) for one in typed))
    assert code == 2 and f"Did you mean {meant.format(**names)}?" in err, err


@pytest.mark.parametrize("typed", [["nope.onnx"], ["compare", "nope.onnx"], ["xyzzy"], ["compare", "no/nope.onnx"]])
def test_nothing_is_suggested_that_is_unlike_what_was_typed(run, mlp, monkeypatch, tmp_path, typed):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*typed)
    assert code == 2 and "Did you mean" not in err and typed[-1] in err


@pytest.mark.parametrize(
    ("named", "said", "unsaid"),
    [
        ("foolayer", "the rules are layernorm, softmax", "Did you mean"),
        ("layernrm", "Did you mean layernorm?", None),
        ("fc1/gem", "Did you mean /fc1/Gemm", "layernorm?"),
        ("/fc9/Gemm", "Did you mean /fc", None),
    ],
)
def test_a_mistyped_layer_suggests_layers_and_rules(run, mlp, named, said, unsaid):
    code, _, err = run("compare", mlp.model, "--data", mlp.data, "--keep", named, "--layers", "none")
    assert code == 2 and said in err and (unsaid is None or unsaid not in err), err


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        (["--tolerance", "sqrn>20"], "'sqrn>20' is not a valid target"),
        (["--rungs", "int8,nonsense"], "nonsense is not a precision"),
        (["--sample", "last", "--tolerance", "nonsense"], "--sample last"),
        (["--tolerance", "nonsense", "--sample", "last"], "'nonsense' is not a valid target"),
        (["--tolerance", "sqnr>=20"], "Missing option '-o'"),
    ],
)
def test_the_first_wrong_value_is_told_first(run, mlp, typed, first):
    code, _, err = run("search", mlp.model, *typed)
    assert code == 2 and first in err, err


def test_the_app_needs_a_terminal(run, mlp):
    for arguments in ([mlp.model], ["open", mlp.model], ["--data", mlp.data, mlp.model], ["demo"]):
        code, _, err = run(*arguments)
        assert code == 2 and "needs a terminal" in err


def test_a_defect_is_exit_code_2_with_its_traceback(run, mlp, monkeypatch):
    monkeypatch.setattr("trt_tui.core.network.layer_tree.build_scope_tree", lambda *args: 1 / 0)
    code, _, err = run("inspect", mlp.model)
    assert code == 2 and "ZeroDivisionError" in err and "defect" in err


def test_each_of_several_targets_decides_the_exit_code(run, mlp):
    command = ("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--runs", "fp16")
    for targets in (("sqnr>=1", "sqnr>=200"), ("sqnr>=200", "sqnr>=1")):
        assert run(*command, *(word for target in targets for word in ("--target", target)))[0] == 1
    assert run(*command, "--target", "sqnr>=1", "--target", "cosine>=0.1")[0] == 0


def test_random_inputs_never_pass_without_doubt(run, mlp):
    command = ("compare", mlp.model, "--samples", 16, "--layers", "none", "--runs", "fp16", "--target", "sqnr>=1")
    code, out, _ = run(*command)
    assert code == 0 and "PASS?" in out and "inputs are random" in out


@pytest.mark.parametrize("command", [("export", "--format", "json"), ("build",), ("bundle", "--for", "10")])
def test_a_config_that_is_written_again_keeps_its_tolerance_and_its_doubt(run, mlp, tmp_path, command):
    """Without them the copy would pass where the config is in doubt, or by the default target."""
    network, config = open_network(mlp.model), PrecisionConfig.from_precision(Precision.FP16)
    doubt = ConfigDoubt("the engine yields 19 dB", "sqnr>=20", ["built"])
    source, output = tmp_path / "source.json", tmp_path / ("folder" if command[0] == "bundle" else "copy.json")
    source.write_text(config_text(network, config, tolerance="sqnr>=20", doubt=doubt))
    assert run(command[0], mlp.model, "--config", source, *command[1:], "-o", output)[0] == 0
    written = output / "precision.json" if output.is_dir() else output
    records = [json.loads(path.read_text()) for path in (source, written)]
    assert {records[0][key] == records[1][key] for key in ("tolerance", "doubt")} == {True}
