"""trt_tui.core.measure.stability: the spread between engines of one network, and between batch sizes."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.driven import save_mlp
from tests.schemas import mismatches
from trt_tui.core.measure.stability import OutputSpread, batch_difference_text


@pytest.fixture
def engine(command, tmp_path):
    """Builds an FP16 engine with a planted fault; returns its file."""

    def build(options, name: str, fault: str = "") -> Path:
        path = tmp_path / name
        done = command("8.6.1", "build", options.model, "--data", options.data, "--precision", "fp16", "--shapes",
                       "x:1x16:4x16:8x16", "-o", path, "--timing-cache", f"{path}.cache", STANDIN_FAULT=fault)
        assert done.returncode == 0, done.stderr
        return path

    return build


def compared(command, options, tmp_path, *arguments):
    record = tmp_path / "record.json"
    done = command("8.6.1", "compare", options.model, "--data", options.data, "--batch", 4, "--layers", "none",
                   "--no-preview", "--json", record, *arguments)
    return done, json.loads(record.read_text())


def test_two_engines_are_compared_at_each_output_and_sample(command, engine, tmp_path) -> None:
    options = save_mlp(tmp_path)
    first = engine(options, "a.plan", "other tactic: /fc1/Gemm")
    second = engine(options, "b.plan", "wrong: /fc3/Gemm")
    done, record = compared(command, options, tmp_path, "--engine", first, "--engine", second, "--target", "sqnr>=40",
                            "--runs", "fp16")
    stability = record["stability"]
    assert not mismatches(record, "comparison-v1") and stability["engines"] == ["a.plan", "b.plan"]
    spread = stability["outputs"]["y"]
    assert spread["sqnr_db"]["b.plan"] == pytest.approx(12, abs=0.1) and spread["spread_db"] is None
    assert spread["worst_sample"] is None and spread["max_difference"] > 0.1, "the first engine is exact"
    assert "/fc1/Gemm" in stability["first_different_kernel"] and "kernel_3" in stability["first_different_kernel"]
    assert "the spread crosses the target: b.plan of 2 engines miss it" in done.stdout
    assert "first kernel that differs" in done.stdout and "a.plan: batch 4 and batch 1" in done.stdout


def test_equal_engines_are_said_to_be_equal(command, engine, tmp_path) -> None:
    options = save_mlp(tmp_path)
    first, second = engine(options, "a.plan"), engine(options, "b.plan")
    done, record = compared(command, options, tmp_path, "--engine", first, "--engine", second)
    assert record["stability"]["outputs"]["y"]["spread_db"] == 0 and "equal in every bit" in done.stdout
    assert not record["stability"]["first_different_kernel"] and "crosses the target" not in done.stdout


def test_a_batch_of_which_a_sample_differs_alone_is_named(command, engine, tmp_path) -> None:
    options = save_mlp(tmp_path)
    path = engine(options, "rows.plan", "wrong row: /fc2/MatMul")
    done, record = compared(command, options, tmp_path, "--engine", path)
    assert "rows.plan: batch 4 and batch 1 differ: y" in done.stdout and record["stability"]["batches"]


def test_a_spread_has_its_largest_sample_and_says_which_engine_has_nan() -> None:
    spread = OutputSpread("y", {"a": 50.0, "b": float("-inf")}, 3, 7.25, 0.5)
    assert "NaN" in spread.description and "most at sample 3: 7.2 dB" in spread.description
    equal = {"y": np.ones((2, 3), np.float32)}
    assert "equal results in every bit" in batch_difference_text("e", 2, equal, equal)


def test_builds_of_one_config_name_the_first_kernel_that_differs(command, tmp_path) -> None:
    options, record = save_mlp(tmp_path), tmp_path / "record.json"
    done = command("8.6.1", "compare", options.model, "--data", options.data, "--batch", 4, "--layers", "none",
                   "--no-preview", "--runs", "fp16", "--engines", "--builds", 3, "--json", record,
                   STANDIN_FAULT="flaky: /fc2/MatMul", STANDIN_COUNTER=str(tmp_path / "counter"))
    assert done.returncode == 0, done.stderr
    builds = json.loads(record.read_text())["runs"]["fp16-engine"]["builds"]
    assert len({build["outputs_db"]["y"] for build in builds}) == 2
    assert any("/fc2/MatMul" in build.get("different_kernel", "") for build in builds)
