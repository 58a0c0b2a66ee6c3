import json
import math
from types import SimpleNamespace

import onnx
import pytest

from tests import networks
from tests.schemas import mismatches
from trt_tui.core.measure.bootstrap import Interval, Spread
from trt_tui.core.measure.comparison import EngineResult, Errors, GroupErrors, Measured, OutputErrors, Share, Verdict
from trt_tui.core.measure.record import comparison_record, engine_record, errors_record, run_record, verdict_record
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

DATA = SimpleNamespace(whatif=8, source="samples.npz")
BACKEND = SimpleNamespace(name="ONNX Runtime", version="1.0", device="CPU")
GOOD = Errors(12.5, 0.99, 0.1, 1.0, 0.2)


@pytest.fixture
def network(tmp_path):
    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    return open_network(tmp_path / "mlp.onnx")


def full_run(network):
    groups = {g.name: GroupErrors(Precision.INT8, GOOD, Errors(nan=2), 3.0, "max 1.2e5 exceeds FP16's 65504")
              for g in network.groups}
    shares = {g.name: Share(0.5, 20.0) for g in network.groups}
    sqnr = {"sqnr": Interval(9.5, math.inf)}
    spread = Spread({"y": sqnr}, sqnr, gain=Interval(-0.5, -0.3), draws=100)
    verdict = Verdict({"y": OutputErrors(GOOD, 3, 4.5)}, {"f1": 0.5, "f1/a": 0.25}, 0.75, 8, 8, 0.1, spread)
    return Measured(verdict, groups, shares)


def test_a_whole_comparison_fits_its_schema(network):
    runs = {"int8": full_run(network), "fp16": Measured()}
    record = comparison_record(network, "ab", DATA, BACKEND, runs, {"f1": 0.9})
    assert mismatches(record, "comparison-v1") == []
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert list(record["runs"]) == ["int8"] and record["reference"]["metric"] == 0.9
    run = record["runs"]["int8"]
    assert run["metric"] == 0.5 and run["outputs"]["y"]["worst_sample"] == {"index": 3, "sqnr_db": 4.5}
    assert run["intervals"] == {"level": 0.95, "outputs": {"y": {"sqnr": [9.5, None]}}, "worst": {"sqnr": [9.5, None]},
                                "metric_less_fp32": [-0.5, -0.3]}
    assert set(run["layers"]) == {layer.name for layer in network.layers}
    with_errors = [name for name, entry in run["layers"].items() if "accumulated" in entry]
    assert with_errors == [network.producer[group.tail] for group in network.groups]
    assert run["layers"][with_errors[0]]["isolated"]["nan"] == 2


def test_what_was_not_measured_is_absent(network):
    record = run_record(network, Measured(Verdict({"y": OutputErrors(GOOD)}, samples=8)))
    assert set(record) == {"source", "outputs", "samples"} and "worst_sample" not in record["outputs"]["y"]
    only_shares = run_record(network, Measured(shares={network.groups[0].name: Share(0.0)}))
    assert only_shares["groups"] == {network.groups[0].name: {"owns": 0.0}} and "layers" not in only_shares


def test_an_exact_copy_and_what_is_not_finite():
    assert errors_record(Errors(None, 1.0, 0.0, 0.0, 0.0, exact=True)) == {
        "sqnr_db": None, "cosine": 1.0, "mse": 0.0, "max_abs": 0.0, "mean_abs": 0.0, "nan": 0, "inf": 0}
    assert errors_record(Errors(nan=3, inf=1)) == {"sqnr_db": None, "cosine": None, "nan": 3, "inf": 1}
    assert errors_record(Errors(mismatch=0.5)) == {"mismatch": 0.5}
    bad = verdict_record(Verdict({"y": OutputErrors(Errors(nan=1), 0, float("-inf"))}))
    assert bad["outputs"]["y"]["worst_sample"] == {"index": 0, "sqnr_db": None}


def test_a_share_that_is_not_finite_is_null(network):
    record = run_record(network, Measured(Verdict({}), shares={network.groups[0].name: Share(float("-inf"))}))
    assert record["groups"][network.groups[0].name] == {"owns": None}


def test_an_engine_is_told_from_a_simulation():
    verdict = Verdict({"y": OutputErrors(GOOD)})
    record = engine_record(EngineResult(verdict, "ONNX Runtime 1", (2.0, 1.0, 3.0), 99, 0.5, "x"))
    assert record["source"] == "engine" and record["latency_ms"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert record["engine_bytes"] == 99 and mismatches(record, "comparison-v1", "run") == []


def test_the_structure_check_finds_what_is_wrong(network):
    record = comparison_record(network, "ab", DATA, BACKEND, {"int8": full_run(network)})
    record["version"] = 2
    del record["samples"]
    record["runs"]["int8"]["outputs"]["y"]["nan"] = -1
    record["runs"]["int8"]["source"] = "guessed"
    assert len(mismatches(record, "comparison-v1")) == 4
