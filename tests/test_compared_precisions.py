"""The precisions that `--runs` names: in the tables, the records, the exit code, the stages and on screen"""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.networks.odd import conv_net
from tests.schemas import mismatches
from tests.test_agreement_of_results import outcomes, save_config
from tests.test_references import QUICK
from trt_tui.core.precision import Precision
from trt_tui.formatting import RUN_TITLES
from trt_tui.tui.state.explanations import explain_summary_cell
from trt_tui.tui.state.summary import list_summary_columns, summary_rows

pytestmark = pytest.mark.shares_cache


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
    _, out, record = compare(run, mlp, tmp_path / "b.json", "--layers", "errors", "--no-preview", "--runs",
                             "tf32,bf16,int8")
    assert list(record["runs"]) == ["tf32", "bf16", "int8"] and "FP16" not in out.split("largest")[0]
    assert record["runs"]["int8"] == default["runs"]["int8"]
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


@pytest.mark.parametrize(("text", "said"), [("fp32", "fp32 is not a precision"), ("int8,,fp16", "nothing is not"),
                                            ("int8,file", "file is not"), ("INT8", "INT8 is not")])
def test_what_is_no_precision_of_a_run_is_refused(run, mlp, text, said):
    code, _, err = run("compare", mlp.model, "--data", mlp.data, *QUICK, "--runs", text)
    assert code == 2 and said in err and "Available: tf32, bf16" in err


def test_a_type_that_no_layer_can_have_is_not_taken_for_a_result(run, tmp_path):
    onnx.save(conv_net(0), tmp_path / "conv.onnx")
    shape = [dim.dim_value or 4 for dim in conv_net(0).graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(0).random((8, *shape[1:]), np.float32)
    np.savez(tmp_path / "x.npz", **{conv_net(0).graph.input[0].name: data})
    _, out, _ = run("compare", tmp_path / "conv.onnx", "--data", tmp_path / "x.npz", *QUICK, "--runs", "int4,int8")
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(("INT4", "INT8"))}
    assert rows["INT4"].endswith("nothing in INT4") and "nothing" not in rows["INT8"]


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
    assert any("FP8: every fused layer runs in FP8 if it can; all others run in FP16." in text
               for _, text in explanation.texts)
