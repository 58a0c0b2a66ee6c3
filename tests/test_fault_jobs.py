"""trt_tui.jobs.fault_location: wrong kernels planted in stand-ins of TensorRT are located by a command."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.driven import save_mlp, save_resnet
from trt_tui.jobs.fault_location import repeat_first_sample

RESNET = "8.6.1"


@pytest.fixture
def locate(command, tmp_path):
    """Runs ``compare --locate`` on a network; returns exit code, record and what was printed."""

    def run(release: str, options, *arguments: object, fault: str = "", **variables: str):
        record = tmp_path / "located.json"
        record.unlink(missing_ok=True)
        backend = ["--backend", "tensorrt-rtx"] if release.startswith("rtx") else []
        done = command(release, "compare", options.model, "--data", options.data, "--batch", 4, "--locate", "--json",
                       record, *backend, *arguments, STANDIN_FAULT=fault, STANDIN_COUNTER=str(tmp_path / "counter"),
                       **variables)
        return done.returncode, json.loads(record.read_text()) if record.exists() else {}, done.stdout + done.stderr

    return run


@pytest.fixture
def build(command, tmp_path):
    """Builds an engine in one precision; returns its file."""

    def run(release: str, options, precision: str, fault: str = "") -> Path:
        engine = tmp_path / "prod.plan"
        done = command(release, "build", options.model, "--data", options.data, "--precision", precision, "-o", engine,
                       STANDIN_FAULT=fault, STANDIN_COUNTER=str(tmp_path / "counter"))
        assert done.returncode == 0, done.stderr
        return engine

    return run


@pytest.mark.parametrize("node", ["/conv1/Conv", "/fc/Gemm", "/layer1/conv2/Conv"])
def test_a_wrong_kernel_is_found_wherever_it_is(locate, tmp_path, node) -> None:
    code, record, text = locate("8.6.1", save_resnet(tmp_path), "--runs", "fp16", fault=f"wrong: {node}")
    assert code == 1 and record["outcome"] == "found", text
    assert node in [entry["name"] for entry in record["nodes"]] and len(record["piece"]) == 1
    assert record["errors"][0]["times"] > 4 and record["factor"] == 4 and record["builds"] > 5
    assert all(entry["result"] == "shows the fault" for entry in record["tried"][:4])


def test_an_engine_file_in_fp32_is_judged_by_what_onnx_runtime_errs(locate, build, tmp_path) -> None:
    options, fault = save_resnet(tmp_path), "wrong: /layer1/conv2/Conv"
    engine = build("8.6.1", options, "fp32", fault)
    code, record, text = locate("8.6.1", options, "--engine", engine, fault=fault)
    assert code == 1 and record["outcome"] == "found" and record["engine"] == "prod.plan", text
    assert record["errors"][0]["times"] > 1e4, "FP32 explains no more than 1e-7"
    assert "/layer1/conv2/Conv (Conv)" in text


@pytest.mark.parametrize("release", ["10.16.1", "rtx-1.7.1"])
def test_where_values_inside_an_engine_can_be_read_no_piece_is_built(locate, tmp_path, release) -> None:
    code, record, text = locate(release, save_resnet(tmp_path), "--runs", "fp16", fault="wrong: /layer2/conv1/Conv")
    assert code == 1 and record["outcome"] == "found", text
    assert "/layer2/conv1/Conv" in [entry["name"] for entry in record["nodes"]]
    assert all(entry["read"] for entry in record["tried"][4:])


@pytest.mark.parametrize(("release", "precision"), [("8.6.1", "fp32"), ("8.6.1", "fp16"), ("11.4.0", "fp16"),
                                                    ("11.4.0", "int8"), ("8.6.1", "int8")])
def test_a_sound_engine_has_no_fault(locate, build, tmp_path, release, precision) -> None:
    options = save_mlp(tmp_path)
    code, record, text = locate(release, options, "--engine", build(release, options, precision))
    assert code == 0 and record["outcome"] == "no fault" and len(record["tried"]) == 1, text
