"""Tests of patterns whose engines lose more than simulated: trt_tui.core.measure.simulation_limits."""

import numpy as np
import onnx
import pytest

from tests import networks
from tests.networks import Builder, floats
from trt_tui.core.measure.results import SIMULATION_GAP, Accuracy, EngineResult, ErrorMetrics, OutputErrors
from trt_tui.core.measure.simulation_limits import GAP_PATTERNS, find_known_gap_caveats
from trt_tui.core.measure.target import Outcome, judge_accuracy, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.jobs.engine import build_spread_caveat

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


def find_pattern_caveats(*arguments):
    return [caveat for caveat in find_known_gap_caveats(*arguments) if caveat.kind != SIMULATION_GAP]


def one_layer(
    operator: str, weight: tuple[int, ...], given: tuple, result: tuple, norm: bool = False, **attributes
) -> onnx.ModelProto:
    b = Builder(0)
    source = "x"
    if norm:
        source = b.node("LayerNormalization", ["x", b.weight("scale", np.ones(given[-1], np.float32))], "/norm")
    b.node(
        operator,
        [source, b.weight("w", b.rng.standard_normal(weight).astype(np.float32))],
        "/layer",
        output="y",
        **attributes,
    )
    return b.model([floats("x", *given)], [floats("y", *result)])


def gru() -> onnx.ModelProto:
    b = Builder(0)
    b.node("GRU", ["x", b.kernel("w", (1, 24, 8), 8), b.kernel("r", (1, 24, 8), 8)], "/gru", output="y", hidden_size=8)
    return b.model([floats("x", 4, "b", 8)], [floats("y", 4, 1, "b", 8)])


CASES = {
    "1-D": (one_layer("Conv", (8, 8, 3), ("b", 8, 32), ("b", 8, 30), kernel_shape=[3]), FP16),
    "depthwise": (
        one_layer("Conv", (8, 1, 7, 7), ("b", 8, 16, 16), ("b", 8, 10, 10), kernel_shape=[7, 7], group=8),
        FP16,
    ),
    "Einsum": (None, FP16),
    "Gemm": (one_layer("Gemm", (16, 8), ("b", 16), ("b", 8), norm=True), INT8),
    "image": (
        one_layer("Conv", (8, 3, 7, 7), ("b", 3, 16, 16), ("b", 8, 5, 5), kernel_shape=[7, 7], strides=[2, 2]),
        FP16,
    ),
}


def network_of(name: str, opened):
    if name == "Attention":
        return opened(networks.attention_operator())
    if name == "GRU":
        return opened(gru())
    model = CASES[name][0]
    if model is None:
        b = Builder(0)
        weight = b.weight("w", b.rng.standard_normal((16, 8)).astype(np.float32))
        b.node("Einsum", ["x", weight], "/layer", output="y", equation="bi,ij->bj")
        model = b.model([floats("x", "b", 16)], [floats("y", "b", 8)])
    return opened(model)


@pytest.mark.parametrize("number,name", enumerate(CASES))
def test_each_pattern_is_found_in_its_precision_alone(number, name, opened):
    network, precision = network_of(name, opened), CASES[name][1]
    caveats = find_pattern_caveats(network, PrecisionConfig.from_precision(precision))
    pattern = GAP_PATTERNS[number]
    assert [caveat.gap_db for caveat in caveats] == [pattern.gap_db] and pattern.text in caveats[0].text
    assert find_known_gap_caveats(network, PrecisionConfig.from_precision(FP32)) == ()


def test_products_that_a_file_has_in_fp16_have_a_gap(tmp_path):
    """Their accumulator is not simulated: the precision of the file says FP16, and the sums are taken in FP32."""
    b = Builder(0)
    weight = b.weight("w", b.rng.standard_normal((64, 8)).astype(np.float16))
    b.node("Cast", ["x"], "/half", output="h", to=int(onnx.TensorProto.FLOAT16))
    b.node("MatMul", ["h", weight], "/layer", output="p")
    b.node("Cast", ["p"], "/single", output="y", to=int(onnx.TensorProto.FLOAT))
    onnx.save(b.model([floats("x", "b", 64)], [floats("y", "b", 8)]), tmp_path / "half.onnx")
    network = open_network(tmp_path / "half.onnx")
    assert network.has_file_precision
    [caveat] = find_pattern_caveats(network, PrecisionConfig.from_precision(Precision.FILE))
    assert caveat.gap_db == 4.8 and "FP16 products of the file" in caveat.text
    assert find_known_gap_caveats(network, PrecisionConfig.from_precision(FP32)) == ()


def test_ordinary_layers_have_no_known_gap(opened):
    for model in (
        one_layer("Conv", (8, 8, 3, 3), ("b", 8, 8, 8), ("b", 8, 6, 6), kernel_shape=[3, 3]),
        one_layer("Conv", (8, 1, 3, 3), ("b", 8, 8, 8), ("b", 8, 6, 6), kernel_shape=[3, 3], group=8),
        one_layer("Conv", (8, 3, 7, 7), ("b", 3, 16, 16), ("b", 8, 10, 10), kernel_shape=[7, 7]),
        one_layer("Conv", (8, 8, 7, 7), ("b", 8, 16, 16), ("b", 8, 5, 5), kernel_shape=[7, 7], strides=[2, 2]),
        one_layer("MatMul", (16, 8), ("b", 16), ("b", 8)),
        one_layer("Gemm", (16, 8), ("b", 16), ("b", 8)),
    ):
        for precision in (FP16, INT8):
            assert find_pattern_caveats(opened(model), PrecisionConfig.from_precision(precision)) == []


def accuracy(sqnr_db: float, *caveats) -> Accuracy:
    """An accuracy whose interval is far on one side of the bounds used here."""
    from trt_tui.core.measure.error_metrics import AccuracyIntervals, ConfidenceInterval

    between = {"sqnr": ConfidenceInterval(sqnr_db - 0.1, sqnr_db + 0.1)}
    return Accuracy(
        {"y": OutputErrors(ErrorMetrics(sqnr_db=sqnr_db))},
        samples=32,
        total=32,
        intervals=AccuracyIntervals({"y": between}, between),
        caveats=caveats,
    )


@pytest.mark.parametrize(("name", "gap_db"), [("1-D", 4.9), ("image", 5.9), ("GRU", 3.8), ("Attention", 4.8)])
def test_a_margin_within_a_gap_is_uncertain(opened, name, gap_db):
    """A GRU was 3.8 dB away from its simulation."""
    caveats = find_known_gap_caveats(network_of(name, opened), PrecisionConfig.from_precision(FP16))
    target = [parse_target("sqnr>=30")]
    assert judge_accuracy(target, accuracy(30 + gap_db - 0.1, *caveats)).outcome is Outcome.UNCERTAIN_PASS
    assert judge_accuracy(target, accuracy(36, *caveats)).outcome is Outcome.PASS
    assert judge_accuracy(target, accuracy(29, *caveats)).outcome is Outcome.FAIL


@pytest.mark.parametrize(("precision", "gap_db"), [(INT8, 1.1), (FP16, 1.4), (Precision.BF16, None), (FP32, None)])
def test_ordinary_layers_have_the_gap_of_their_lowest_precision(opened, precision, gap_db):
    model = one_layer("MatMul", (16, 8), ("b", 16), ("b", 8))
    caveats = find_known_gap_caveats(opened(model), PrecisionConfig.from_precision(precision))
    assert [caveat.gap_db for caveat in caveats] == ([] if gap_db is None else [gap_db])
    outcome = judge_accuracy([parse_target("sqnr>=30")], accuracy(31, *caveats)).outcome
    assert outcome is (Outcome.PASS if gap_db is None else Outcome.UNCERTAIN_PASS)


def test_builds_further_apart_than_the_margin_are_uncertain():
    builds = [EngineResult(accuracy(value), "TensorRT") for value in (59.4, 56.7)]
    caveat = build_spread_caveat(builds)
    assert caveat.gap_db == pytest.approx(2.7) and "2 builds of this config differ by 2.7 dB" in caveat.text
    target = [parse_target("sqnr>=55")]
    assert judge_accuracy(target, accuracy(56.7, caveat)).outcome is Outcome.UNCERTAIN_PASS
    assert judge_accuracy([parse_target("sqnr>=50")], accuracy(56.7, caveat)).outcome is Outcome.PASS
    for single in (builds[:1], [builds[0], EngineResult(None, "TensorRT")]):
        assert build_spread_caveat(single) is None
