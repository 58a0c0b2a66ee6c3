import json
import math

import onnx
import pytest

from tests import networks
from tests.schemas import mismatches
from trt_tui.core.data.batches import SampleName
from trt_tui.core.measure.error_metrics import AccuracyIntervals, ConfidenceInterval
from trt_tui.core.measure.results import (
    Accuracy,
    ConfigResults,
    EngineResult,
    ErrorMetrics,
    ErrorShare,
    GroupErrors,
    OutputErrors,
    RunKind,
    RunResult,
)
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.report.json_record import (
    accuracy_record,
    comparison_record,
    config_results_record,
    engine_result_record,
    error_metrics_record,
)

BACKEND = {"backend": "ONNX Runtime", "version": "1.0", "provider": "cpu"}
GOOD = ErrorMetrics(12.5, 0.99, 0.1, 1.0, 0.2)


@pytest.fixture
def network(tmp_path):
    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    return open_network(tmp_path / "mlp.onnx")


def full_run(network):
    groups = {
        g.name: GroupErrors(Precision.INT8, GOOD, ErrorMetrics(nan=2), 3.0, "max 1.2e5 exceeds FP16's 65504")
        for g in network.groups
    }
    shares = {g.name: ErrorShare(0.5, 20.0) for g in network.groups}
    sqnr = {"sqnr": ConfidenceInterval(9.5, math.inf)}
    spread = AccuracyIntervals({"y": sqnr}, sqnr, metric_gains={"f1": ConfidenceInterval(-0.5, -0.3)}, metric_draws=100)
    verdict = Accuracy(
        {"y": OutputErrors(GOOD, SampleName(3), 4.5)}, {"f1": 0.5, "f1/a": 0.25}, 0.75, 8, 8, 0.1, spread
    )
    return ConfigResults({RunKind.SIMULATED_CONFIG: RunResult(verdict)}, groups, shares)


def test_a_whole_comparison_fits_its_schema(network):
    runs = {"int8": full_run(network), "fp16": ConfigResults()}
    record = comparison_record(network, "ab", "samples.npz", 8, BACKEND, runs, {"f1": 0.9})
    assert mismatches(record, "comparison-v1") == []
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert list(record["runs"]) == ["int8"] and record["reference"]["metric"] == 0.9
    run = record["runs"]["int8"]
    assert run["metric"] == 0.5 and run["outputs"]["y"]["worst_sample"] == {"index": 3, "sqnr_db": 4.5}
    assert run["intervals"] == {
        "level": 0.95,
        "outputs": {"y": {"sqnr": [9.5, None]}},
        "worst": {"sqnr": [9.5, None]},
        "metric_less_fp32": [-0.5, -0.3],
    }
    assert set(run["layers"]) == {layer.name for layer in network.layers}
    with_errors = [name for name, entry in run["layers"].items() if "accumulated" in entry]
    assert with_errors == [network.producer[group.final_tensor] for group in network.groups]
    assert run["layers"][with_errors[0]]["isolated"]["nan"] == 2


def test_what_was_not_measured_is_absent(network):
    measured = ConfigResults()
    measured.store_accuracy(Accuracy({"y": OutputErrors(GOOD)}, samples=8))
    record = config_results_record(network, measured)
    assert set(record) == {"source", "outputs", "samples"} and "worst_sample" not in record["outputs"]["y"]
    only_shares = config_results_record(network, ConfigResults(shares={network.groups[0].name: ErrorShare(0.0)}))
    assert only_shares["groups"] == {network.groups[0].name: {"owns": 0.0}} and "layers" not in only_shares


def test_an_exact_copy_and_what_is_not_finite():
    assert error_metrics_record(ErrorMetrics(None, 1.0, 0.0, 0.0, 0.0, exact=True)) == {
        "sqnr_db": None,
        "cosine": 1.0,
        "mse": 0.0,
        "max_abs": 0.0,
        "mean_abs": 0.0,
        "nan": 0,
        "inf": 0,
    }
    assert error_metrics_record(ErrorMetrics(nan=3, inf=1)) == {"sqnr_db": None, "cosine": None, "nan": 3, "inf": 1}
    assert error_metrics_record(ErrorMetrics(mismatch=0.5)) == {"mismatch": 0.5}
    bad = accuracy_record(Accuracy({"y": OutputErrors(ErrorMetrics(nan=1), SampleName(0), float("-inf"))}))
    assert bad["outputs"]["y"]["worst_sample"] == {"index": 0, "sqnr_db": None}


def test_a_share_that_is_not_finite_is_null(network):
    record = config_results_record(network, ConfigResults(shares={network.groups[0].name: ErrorShare(float("-inf"))}))
    assert record["groups"][network.groups[0].name] == {"owns": None}


def test_an_engine_is_told_from_a_simulation():
    verdict = Accuracy({"y": OutputErrors(GOOD)})
    record = engine_result_record(EngineResult(verdict, "ONNX Runtime 1", (2.0, 1.0, 3.0), 99, 0.5, "x"))
    assert record["source"] == "engine" and record["latency_ms"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert record["engine_bytes"] == 99 and mismatches(record, "comparison-v1", "run") == []


def test_the_structure_check_finds_what_is_wrong(network):
    record = comparison_record(network, "ab", "samples.npz", 8, BACKEND, {"int8": full_run(network)})
    record["version"] = 2
    del record["samples"]
    record["runs"]["int8"]["outputs"]["y"]["nan"] = -1
    record["runs"]["int8"]["source"] = "guessed"
    assert len(mismatches(record, "comparison-v1")) == 4
