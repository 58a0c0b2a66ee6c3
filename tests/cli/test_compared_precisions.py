"""The precisions that `--runs` names: in the tables, the records, the exit code, the stages and on screen"""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import pytest

from tests import networks
from tests.core.data.test_references import QUICK
from tests.networks.build import Builder, floats
from tests.networks.odd import conv_net
from tests.schemas import mismatches
from tests.test_agreement_of_results import outcomes, save_config
from trt_tui.core.precision import Precision
from trt_tui.core.report.run_columns import list_error_run_columns
from trt_tui.formatting import RUN_TITLES
from trt_tui.options import Options
from trt_tui.session.comparison_report import stage_table
from trt_tui.tui.state.explanations import explain_summary_cell
from trt_tui.tui.state.summary import list_summary_columns, summary_rows

pytestmark = pytest.mark.shares_cache
ERRORS_TITLE = "largest {} errors in {}"
ACCUMULATED_IN_INT8 = ERRORS_TITLE.format("accumulated", "INT8")


def test_each_precision_below_fp32_has_a_title():
    precisions = [precision for precision in Precision if precision not in (Precision.FP32, Precision.FILE)]
    assert {precision.value: precision.label for precision in precisions} | {"config": "config"} == RUN_TITLES


def compare(run, mlp, path, *options):
    code, out, err = run("compare", mlp.model, "--data", mlp.data, "--batch", 4, "--json", path, *options)
    assert code in (0, 1), err
    record = json.loads(path.read_text())
    assert mismatches(record, "comparison-v1") == []
    return code, out, record


def test_the_named_precisions_alone_are_measured_and_equal_the_default_runs(run, mlp, tmp_path):
    _, _, default = compare(run, mlp, tmp_path / "a.json", "--layers", "errors", "--no-preview")
    _, out, record = compare(
        run, mlp, tmp_path / "b.json", "--layers", "errors", "--no-preview", "--runs", "tf32,bf16,int8"
    )
    assert list(record["runs"]) == ["tf32", "bf16", "int8"] and "FP16" not in out.split("largest")[0]
    own, other = record["runs"]["int8"], default["runs"]["int8"]
    assert own.keys() == other.keys()
    assert {key: value for key, value in own.items() if key != "layers"} == {
        key: value for key, value in other.items() if key != "layers"
    }
    accumulated = [{name: layer.get("accumulated") for name, layer in one["layers"].items()} for one in (own, other)]
    assert accumulated[0] == accumulated[1] and any("isolated" in layer for layer in other["layers"].values())
    assert not any("isolated" in layer for one in record["runs"].values() for layer in one["layers"].values())
    assert ACCUMULATED_IN_INT8 in out
    assert all(run_record["layers"] for run_record in record["runs"].values())
    errors = {name: run_record["outputs"]["y"]["sqnr_db"] for name, run_record in record["runs"].items()}
    assert errors["tf32"] > errors["bf16"] > errors["int8"], "10 bits of the mantissa, 7 bits, 7 bits with one scale"


def test_the_exit_code_is_that_of_the_last_precision_or_of_the_config(run, mlp, tmp_path):
    options = (*QUICK, "--target", "sqnr>=40")
    assert compare(run, mlp, tmp_path / "a.json", *options, "--runs", "int8,fp16")[0] == 0
    assert compare(run, mlp, tmp_path / "a.json", *options, "--runs", "fp16,int8")[0] == 1
    config = save_config(tmp_path / "p.json", mlp.model, "", raised=2)
    code, out, record = compare(run, mlp, tmp_path / "a.json", *options, "--runs", "fp16", "--config", config)
    assert list(record["runs"]) == ["fp16", "config"] and outcomes(out, "FP16", "config")[0] == "PASS"
    assert (code == 0) is (outcomes(out, "config") == ["PASS"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fp32", "fp32 is not a precision"),
        ("int8,,fp16", "nothing is not"),
        ("int8,file", "file is not"),
        ("INT8", "INT8 is not"),
    ],
)
def test_what_is_no_precision_of_a_run_is_refused(run, mlp, text, said):
    code, _, err = run("compare", mlp.model, "--data", mlp.data, *QUICK, "--runs", text)
    assert code == 2 and said in err and "Available: tf32, bf16" in err


def test_a_type_that_no_layer_can_have_is_not_taken_for_a_result(run, tmp_path):
    onnx.save(conv_net(0), tmp_path / "conv.onnx")
    shape = [dim.dim_value or 4 for dim in conv_net(0).graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(0).random((8, *shape[1:]), np.float32)
    np.savez(tmp_path / "x.npz", **{conv_net(0).graph.input[0].name: data})
    _, out, _ = run(
        "compare", tmp_path / "conv.onnx", "--data", tmp_path / "x.npz", *QUICK, "--runs", "int4,mxfp8,nvfp4,int8"
    )
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert {name: rows[name].endswith(f"nothing in {name}") for name in ("INT4", "MXFP8", "NVFP4", "INT8")} == {
        "INT4": True,
        "MXFP8": True,
        "NVFP4": True,
        "INT8": False,
    }


def test_a_precision_is_a_stage_too(run, mlp, tmp_path):
    _, _, runs = compare(run, mlp, tmp_path / "a.json", *QUICK, "--runs", "bf16")
    _, out, record = compare(run, mlp, tmp_path / "b.json", *QUICK, "--stage", "bf16")
    (stage,) = record["stages"]
    assert stage["name"] == "bf16" and "bf16" in out
    assert stage["outputs"]["y"]["sqnr_db"] == runs["runs"]["bf16"]["outputs"]["y"]["sqnr_db"]


def test_the_outputs_of_a_precision_are_saved_without_its_row(run, mlp, tmp_path):
    _, out, _ = compare(run, mlp, tmp_path / "a.json", *QUICK, "--save-outputs", f"{tmp_path / 'o.json'}:fp8")
    assert "FP8" not in out and "fp8" in (tmp_path / "o.json").read_text()


def test_the_app_has_a_row_for_each_precision_and_for_the_config(session, mlp):
    driven = session(replace(mlp, runs=("bf16", "fp8"))).settled()
    rows = summary_rows(driven, 120, 40)
    kinds = [row.kind for row in rows if row.kind in RUN_TITLES]
    assert kinds == ["bf16", "fp8", "config"]
    row = next(row for row in rows if row.kind == "fp8")
    explanation = explain_summary_cell(driven, row, list_summary_columns(driven, 120)[0])
    assert any(driven.get_run_config("fp8").defaults_text in text and "FP8" in text for _, text in explanation.texts)


def test_the_accumulated_errors_come_first_and_are_those_of_the_run_alone(run, mlp, tmp_path):
    """The first table is that of ``--layers errors --runs int8``; the report with all other values follows."""

    def accumulated_rows(out):
        return out.split(ACCUMULATED_IN_INT8)[1].split("\n\n")[0].strip().splitlines()

    _, alone, _ = compare(run, mlp, tmp_path / "a.json", "--layers", "errors", "--no-preview", "--runs", "int8")
    _, out, record = compare(run, mlp, tmp_path / "b.json", "--no-preview")
    assert out.startswith(ACCUMULATED_IN_INT8) and "largest" not in alone.splitlines()[0]
    assert accumulated_rows(out) == accumulated_rows(alone) != []
    assert out.index("largest accumulated") < out.index("against FP32 on") < out.index("error shares of INT8")
    assert out.count("largest accumulated") == alone.count("largest accumulated") == 1
    _, out, quiet = compare(run, mlp, tmp_path / "c.json", "--no-preview", "--markdown", "-")
    assert out.startswith("# ") and quiet == record
    config = save_config(tmp_path / "p.json", mlp.model, "", raised=2)
    _, out, _ = compare(run, mlp, tmp_path / "d.json", "--no-preview", "--config", config)
    assert out.startswith(ERRORS_TITLE.format("accumulated", "config"))
    _, out, _ = compare(run, mlp, tmp_path / "e.json", "--layers", "none", "--no-preview")
    assert "largest" not in out


COUNTS_EXECUTIONS = """
import os, traceback
from trt_tui.backends.onnxruntime import OnnxRuntimeRunner

def run(self, feed, fetch=None, execute=OnnxRuntimeRunner.run):
    parts = {os.path.basename(frame.filename)[:-3] for frame in traceback.extract_stack()}
    with open(os.environ["EXECUTIONS"], "a") as file:
        print(next((part for part in PARTS if part in parts), "other"), file=file)
    return execute(self, feed, fetch)

PARTS = ("calibration", "magnitudes", "group_errors", "cause_facts", "statistics", "group_sweep", "simulation")
OnnxRuntimeRunner.run = run
"""


def log_executions(folder, monkeypatch):
    """Makes all processes that start from now on log each execution; returns the path of the log."""
    (folder / "sitecustomize.py").write_text(COUNTS_EXECUTIONS)
    log = folder / "executions"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("EXECUTIONS", str(log))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return log


@pytest.mark.spawned
@pytest.mark.parametrize("runs", ["tf32", "int8", "mxfp8", "nvfp4,bf16", "fp16,fp8,int4"])
def test_errors_of_layers_are_measured_for_these_runs_and_nothing_else_is(run, tmp_path, monkeypatch, runs):
    """Per run and feed one execution of a graph with FP32 and the run; at most four passes of one run in all.

    The magnitudes in FP32 tell which values FP16 cannot hold.
    """
    model, data = wide_mlp(tmp_path)
    log = log_executions(tmp_path, monkeypatch)
    code, out, err = run("compare", model, "--data", data, "--batch", 16, "--layers", "errors", "--runs", runs)
    assert code in (0, 1), err
    counts, feeds, count = Counter(log.read_text().split()), 4, len(runs.split(","))  # one of them calibrates
    assert counts["group_errors"] == feeds * count and counts["magnitudes"] <= feeds
    assert counts["calibration"] == (any(name in runs.split(",") for name in ("int8", "fp8", "nvfp4")))
    assert set(counts) <= {"group_errors", "magnitudes", "calibration"} and "preview" not in out


@pytest.mark.spawned
def test_errors_are_printed_before_the_rest_is_measured_and_are_not_measured_again(run, tmp_path, monkeypatch):
    model, data = wide_mlp(tmp_path)
    log = log_executions(tmp_path, monkeypatch)
    printed = []
    monkeypatch.setattr(
        "trt_tui.cli.compare.print_report", lambda text: printed.append((text, Counter(log.read_text().split())))
    )
    code, _, err = run("compare", model, "--data", data, "--batch", 16, "--layers", "errors", "--no-preview")
    assert code in (0, 1), err
    (table, first), (report, whole) = printed
    feeds = 4
    assert table.startswith(ACCUMULATED_IN_INT8) and ERRORS_TITLE.format("isolated", "INT8") in report
    assert first["group_errors"] == feeds and set(first) <= {"group_errors", "magnitudes", "calibration"}
    assert whole["simulation"] == feeds, "the accuracy of FP16 alone: that of INT8 came with its errors"
    assert whole["group_errors"] == feeds + 3 + 3, "both errors of FP16, and the isolated ones of INT8"


def wide_mlp(folder):
    """Three layers whose sizes divide into all blocks, with 64 samples."""
    b, tensor, sizes = Builder(), "x", (128, 128, 256, 10)
    for index, (size, width) in enumerate(pairwise(sizes)):
        tensor = b.node(
            "Gemm",
            [tensor, b.kernel(f"w{index}", (size, width), size)],
            f"/{index}",
            output="y" if width == sizes[-1] else "",
        )
    onnx.save(b.model([floats("x", "batch", 128)], [floats("y", "batch", 10)]), folder / "wide.onnx")
    np.savez(folder / "x.npz", x=np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32))
    return folder / "wide.onnx", folder / "x.npz"


@pytest.mark.parametrize("layers", ["none", "shares"])
def test_the_types_with_scales_of_blocks_are_runs(run, tmp_path, layers):
    model, data = wide_mlp(tmp_path)
    code, out, err = run(
        *f"compare {model} --data {data} --batch 8 --no-preview --runs fp8,mxfp8,int8,nvfp4".split(),
        *f"--layers {layers} --stage mxfp8 --json {tmp_path}/a.json".split(),
    )
    assert code in (0, 1), err
    record = json.loads((tmp_path / "a.json").read_text())
    assert mismatches(record, "comparison-v1") == []
    errors = {name: one["outputs"]["y"]["sqnr_db"] for name, one in record["runs"].items()}
    assert errors["mxfp8"] > errors["fp8"] - 3 and 10 < errors["nvfp4"] < min(errors["int8"], errors["mxfp8"]) - 5
    assert record["stages"][0]["outputs"]["y"]["sqnr_db"] == errors["mxfp8"]
    assert ("error shares of NVFP4" in out) is (layers == "shares")


def test_the_types_are_config_moves_that_files_keep(session, run, tmp_path):
    model, data = wide_mlp(tmp_path)
    driven = session(Options(model=str(model), data=str(data), runs=("mxfp8", "nvfp4"))).settled()
    first, second, _ = driven.opened_network.outline.groups
    driven.set_precision([first], Precision.MXFP8)
    driven.set_precision([second], Precision.NVFP4)
    config = driven.config
    assert config.precision_of(first) is Precision.MXFP8 and config.precision_of(second) is Precision.NVFP4
    assert [step for step in config.precision_steps if step in (Precision.NVFP4, Precision.MXFP8)] == [
        Precision.NVFP4,
        Precision.MXFP8,
    ], "the lower one first"
    driven.settled()
    driven.export_config("json", tmp_path / "p.json")
    driven.settled()
    record = json.loads((tmp_path / "p.json").read_text())
    assert mismatches(record, "precision-config-v2") == []
    assert {move["precision"] for move in record["moves"]} == {"mxfp8", "nvfp4"}
    code, out, err = run("compare", model, "--data", data, "--config", tmp_path / "p.json", *QUICK)
    assert code in (0, 1), err


def test_errors_of_a_file_that_tensorrt_refuses_in_part_stand_beside_the_exported_network(run, tmp_path):
    onnx.save(networks.quantized(symmetric=False), tmp_path / "quantized.onnx")
    np.savez(tmp_path / "x.npz", image=networks.random_images(np.random.default_rng(0), (8, 3, 16, 16)))
    code, _, err = run(
        *f"compare {tmp_path}/quantized.onnx --data {tmp_path}/x.npz --batch 4 --layers errors --runs fp16".split(),
        *f"--json {tmp_path}/a.json".split(),
    )
    assert code in (0, 1), err
    runs = json.loads((tmp_path / "a.json").read_text())["runs"]
    assert runs["config"]["as_in_file"] and runs["exported"]["outputs"] != runs["config"]["outputs"]


def test_the_app_has_the_table_of_stages_of_the_report(session, mlp):
    driven = session(replace(mlp, stages=("bf16", "int8"))).settled()
    table = stage_table(driven, list_error_run_columns("stages")[:1]).rows
    lines = [
        ["".join(text for text, _ in row.line) for row in summary_rows(driven, *size) if row.kind == "stage"]
        for size in ((140, 40), (80, 22))
    ]
    assert len(table) == 3 and all(
        row[0] in line and row[1] in line for row, line in zip(table, lines[0], strict=False)
    )
    assert len(lines[1]) < len(table) and "2 stages" in lines[1][0]
