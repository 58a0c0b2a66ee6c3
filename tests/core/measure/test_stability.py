"""trt_tui.core.measure.stages: the spread between engines of one network, and between batch sizes."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.driven import save_mlp
from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui.core.data.batches import SampleName
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.judged_outputs import JudgedOutput
from trt_tui.core.measure.stages import OutputSpread, Variation, batch_difference_text, measure_output_spreads


@pytest.fixture
def engine(command, tmp_path):
    """Builds an FP16 engine with a planted fault; returns its file."""

    def build(options, name: str, fault: str = "") -> Path:
        path = tmp_path / name
        done = command(
            "8.6.1",
            *f"build {options.model} --data {options.data} --precision fp16 --shapes x:1x16:4x16:8x16".split(),
            *f"-o {path} --trtexec=--timingCacheFile={path}.cache".split(),
            STANDIN_FAULT=fault,
        )
        assert done.returncode == 0, done.stderr
        return path

    return build


EQUAL = "equal in every bit"


def crossing_engines(text: str) -> set[str]:
    """The engines that miss a target which others meet."""
    return {line.split("crosses the target: ")[1].split()[0] for line in text.splitlines() if "crosses the" in line}


def compared(command, options, tmp_path, *arguments):
    record = tmp_path / "record.json"
    done = command(
        "8.6.1",
        *f"compare {options.model} --data {options.data} --batch 4 --layers none --no-preview".split(),
        *f"--json {record}".split(),
        *arguments,
    )
    return done, json.loads(record.read_text())


def test_two_engines_are_compared_at_each_output_and_sample(command, engine, tmp_path) -> None:
    options = save_mlp(tmp_path)
    first = engine(options, "a.plan", "other tactic: /fc1/Gemm")
    second = engine(options, "b.plan", "wrong: /fc3/Gemm")
    done, record = compared(
        command, options, tmp_path, "--engine", first, "--engine", second, "--target", "sqnr>=40", "--runs", "fp16"
    )
    stability = record["stability"]
    assert not mismatches(record, "comparison-v1") and stability["engines"] == ["a.plan", "b.plan"]
    spread = stability["outputs"]["y"]
    assert spread["sqnr_db"]["b.plan"] == pytest.approx(12, abs=0.1) and spread["spread_db"] is None
    assert spread["worst_sample"] is None and spread["max_difference"] > 0.1, "the first engine is exact"
    assert 0 < spread["different_elements"] <= spread["elements"] and not spread["nonfinite_differences"]
    assert "/fc1/Gemm" in stability["first_different_kernel"] and "other_kernel" in stability["first_different_kernel"]
    assert crossing_engines(done.stdout) == {"b.plan"}
    assert not lacking(done.stdout, stability["first_different_kernel"], "batch 4", "batch 1")


def test_equal_engines_are_said_to_be_equal(command, engine, tmp_path) -> None:
    options = save_mlp(tmp_path)
    first, second = engine(options, "a.plan"), engine(options, "b.plan")
    done, record = compared(command, options, tmp_path, "--engine", first, "--engine", second)
    assert record["stability"]["outputs"]["y"]["spread_db"] == 0 and EQUAL in done.stdout
    assert not record["stability"]["first_different_kernel"] and not crossing_engines(done.stdout)


def test_a_batch_of_which_a_sample_differs_alone_is_named(command, engine, tmp_path) -> None:
    options = save_mlp(tmp_path)
    path = engine(options, "rows.plan", "wrong row: /fc2/MatMul")
    done, record = compared(command, options, tmp_path, "--engine", path)
    (text,) = (line for line in done.stdout.splitlines() if "rows.plan: batch 4" in line)
    assert text.rpartition(": ")[2].startswith("y") and EQUAL not in text and record["stability"]["batches"]


def test_a_spread_has_its_largest_sample_and_says_which_engine_has_nan() -> None:
    errors = {"a": ErrorMetrics(sqnr_db=50.0), "b": ErrorMetrics(nan=3)}
    spread = OutputSpread("y", errors, 3, 7.25, 0.5, 8, 3)
    assert not lacking(spread.spread_text, "b NaN", "sample 3", "7.2 dB")
    infinite = OutputSpread("y", {"a": ErrorMetrics(inf=2), "b": ErrorMetrics()}, elements=8, different_elements=2)
    assert not lacking(infinite.spread_text, "a Inf", "b –"), "Inf and an unknown SQNR are not called NaN"


NAN, INF = np.nan, np.inf


def spread_of(first, second, reference=((1, 2, 3), (4, 5, 6)), dtype=np.float32) -> OutputSpread:
    """The spread between two engines at an output of two samples."""
    arrays = [np.array(rows, dtype) for rows in (reference, first, second)]
    analysis = SimpleNamespace(
        judged_outputs=[JudgedOutput("y", "y")],
        samples=SimpleNamespace(count_samples_of_feed=lambda index: 2, sample_name=lambda index, row: SampleName(row)),
        get_reference_outputs=lambda index: {"y": arrays[0]},
    )
    runs = [
        SimpleNamespace(
            run=SimpleNamespace(name=name), available_tensors={"y"}, get_outputs=lambda index, array=array: {"y": array}
        )
        for name, array in zip("ab", arrays[1:], strict=True)
    ]
    return measure_output_spreads(analysis, runs, [0])[0]


@pytest.mark.parametrize(
    ("first", "second", "different", "nonfinite", "largest"),
    [
        (((1, 2, NAN), (4, 5, 6)), ((1, NAN, NAN), (NAN, NAN, 6)), 3, 3, 0),
        (((1, 2, 3), (4, 5, 6)), ((NAN,) * 3,) * 2, 6, 6, 0),
        (((1, 2, INF), (4, 5, 6)), ((1, 2, NAN), (4, 5, 6)), 1, 1, 0),
        (((1, 2, INF), (4, 5, 6)), ((1, 2, -INF), (4, 5, 6)), 1, 1, 0),
        (((1, 2, INF), (4, 5, 6)), ((1, 2, INF), (4, 5, INF)), 1, 1, 0),
        (((1, 2, NAN), (4, 5, 6)), ((1, 2, NAN), (4, 5, 8)), 1, 0, 2),
    ],
)
def test_engines_that_differ_in_nan_or_inf_are_not_equal(first, second, different, nonfinite, largest) -> None:
    for spread in (spread_of(first, second), spread_of(second, first)):
        assert not spread.has_equal_results and spread.different_elements == different and spread.elements == 6
        assert spread.nonfinite_differences == nonfinite and spread.max_difference == largest
        assert spread.spread_db == INF and "equal" not in spread.spread_text
        assert not lacking(spread.spread_text, "limit", f"a {spread.errors['a'].sqnr_text('')}", f"{different} of 6")
        assert ("NaN or Inf" in spread.spread_text) == (nonfinite > 0)
        record = Variation(("a", "b"), (spread,)).to_record()
        output = json.loads(json.dumps(record, allow_nan=False))["outputs"]["y"]
        assert output["different_elements"] == different and output["nonfinite_differences"] == nonfinite
        assert output["spread_db"] is None and output["nonfinite"]["a"] + output["nonfinite"]["b"] > 0


def test_a_sample_with_nan_in_one_engine_is_the_worst() -> None:
    spread = spread_of(((1, 2, 3.5), (4, 5, 6)), ((1, 2, 3.1), (4, 5, NAN)))
    assert spread.worst_sample == SampleName(1) and "sample #1" in spread.spread_text


def test_engines_with_the_same_nan_and_inf_are_equal() -> None:
    same = ((NAN, INF, -INF), (4, 5, 7))
    assert spread_of(same, same).spread_text == f"y: {EQUAL}" and spread_of(same, same).has_equal_results
    assert spread_of(same, same).spread_db == 0.0
    large = spread_of(((1, 2, 2**60), (4, 5, 6)), ((1, 2, 2**60 + 1), (4, 5, 6)), dtype=np.int64)
    assert large.different_elements == 1, "float64 cannot distinguish these integers"


def test_a_batch_is_equal_only_if_each_output_was_compared_and_is_equal() -> None:
    equal = {"y": np.array([[1, NAN, INF]] * 2, np.float32), "z": np.ones((2, 3), np.float32)}
    shorter = {**equal, "z": np.ones((2, 2), np.float32)}
    broken = {**equal, "z": np.array([[1, 1, NAN], [1, 1, 1]], np.float32)}
    for batch, alone, values in (
        (equal, equal, ["equal", "bit"]),
        (equal, shorter, ["z ", "2x3", "2x2"]),
        (equal, {"y": equal["y"]}, ["z ", "missing"]),
        ({}, {}, ["no output"]),
        (broken, equal, ["z NaN", "1 of 6"]),
    ):
        text = batch_difference_text("e", 2, batch, alone)
        assert not lacking(text, *values) and ("equal" in text) is (batch is alone)


def test_engine_files_that_differ_in_nan_alone_are_not_called_equal(command, engine, tmp_path) -> None:
    options = save_mlp(tmp_path)
    first, second = engine(options, "a.plan"), engine(options, "b.plan", "nan: /fc3/Gemm")
    done, record = compared(
        command, options, tmp_path, "--engine", first, "--engine", second, "--target", "sqnr>=20", "--runs", "fp16"
    )
    spread = record["stability"]["outputs"]["y"]
    assert not mismatches(record, "comparison-v1") and spread["nonfinite_differences"] > 0
    assert spread["nonfinite"]["a.plan"] == 0 < spread["nonfinite"]["b.plan"]
    assert "NaN or Inf" in done.stdout and crossing_engines(done.stdout) == {"b.plan"}


def test_builds_of_one_config_name_the_first_kernel_that_differs(command, tmp_path) -> None:
    options, record = save_mlp(tmp_path), tmp_path / "record.json"
    done = command(
        "8.6.1",
        *f"compare {options.model} --data {options.data} --batch 4 --layers none --no-preview --runs fp16".split(),
        *f"--engines --builds 3 --json {record}".split(),
        STANDIN_FAULT="flaky: /fc2/MatMul",
        STANDIN_COUNTER=str(tmp_path / "counter"),
    )
    assert done.returncode == 0, done.stderr
    builds = json.loads(record.read_text())["runs"]["fp16-engine"]["builds"]
    assert len({build["outputs_db"]["y"] for build in builds}) == 2
    assert any("/fc2/MatMul" in build.get("different_kernel", "") for build in builds)
