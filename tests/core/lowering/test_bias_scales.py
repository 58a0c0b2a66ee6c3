"""Weight scales that let ONNX Runtime quantize biases: lowering.scales, network.qdq.bias_quantization."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lowered import gated_values, inner_values, sqnr
from tests.networks import Builder, floats
from trt_tui import demo
from trt_tui.backends.onnxruntime import ExportedFileRunner
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.network_rewrite import EditedConstants
from trt_tui.core.lowering.rulebook import RaisedWeightScales, raise_weight_scales_for_bias
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import BiasCorrectionMove, encode_vector
from trt_tui.core.network.network import open_network
from trt_tui.core.network.qdq.source_model import FLOAT_TYPES, flag_channels_with_bias_overflow
from trt_tui.core.precision import Precision

FP16, FP32, INT8 = Precision.FP16, Precision.FP32, Precision.INT8
DEAD = 3
"""The channel whose weights are tiny and whose bias is not, as a BatchNormalization leaves dead channels."""


@pytest.mark.parametrize(("raised_db", "count"), [(41.62, 1), (38.0, 2)])
def test_a_cost_below_the_printed_digits_is_no_change(raised_db, count):
    scales = RaisedWeightScales("conv", (1,), np.array([0.5]), np.array([0.75]), (41.58, raised_db))
    values = {"41.6", "38.0"} & set(scales.scale_change_text.split())
    assert len(values) == count and scales.scale_change_text.count("41.6") == 1


# -- the least scale ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([FP16, FP32]),
    st.floats(-16, 4),
    st.floats(-22, 3),
    st.lists(st.floats(-20, 15), min_size=4, max_size=4),
)
def test_a_raised_scale_is_the_least_that_works(held, input_power, weight_power, bias_powers):
    dtype = FLOAT_TYPES[held]
    input_scale = float(np.asarray(2.0**input_power, dtype))
    scale = np.full(4, 2.0**weight_power, dtype).astype(np.float32)
    bias = np.array([2.0**power for power in bias_powers], dtype).astype(np.float32)
    found = raise_weight_scales_for_bias(scale, input_scale, bias, held)
    assert (found >= scale).all() and (found == found.astype(dtype).astype(np.float32)).all()
    assert not flag_channels_with_bias_overflow(found, input_scale, np.abs(bias), held).any()
    below = np.nextafter(found.astype(dtype), np.zeros(4, dtype)).astype(np.float32)
    changed = found != scale
    two_below = np.nextafter(below.astype(dtype), np.zeros(4, dtype)).astype(np.float32)
    assert flag_channels_with_bias_overflow(two_below, input_scale, np.abs(bias), held)[changed].all()


def test_a_scale_that_works_stays_the_same_array():
    scale = np.array([0.01, 0.02], np.float32)
    assert raise_weight_scales_for_bias(scale, 0.05, np.array([1.0, -2.0], np.float32), FP16) is scale
    assert raise_weight_scales_for_bias(scale, 0.05, np.array([1e5, -2.0], np.float32), FP32) is scale


@pytest.mark.parametrize("other", [FP16, FP32])
def test_an_infinite_bias_leaves_its_scale_and_the_export_is_written(other, backend, opened):
    """No scale is large enough for it; behind an Elu or a Sigmoid the network is finite all the same."""
    b = Builder(0)
    bias = np.zeros(4, np.float32)
    bias[1] = -np.inf
    weight = b.weight("w", b.rng.standard_normal((8, 4)).astype(np.float32))
    y = b.node("Gemm", ["x", weight, b.weight("b", bias)], "/fc")
    b.node("Sigmoid", [y], "/out", output="y")
    network = opened(b.model([floats("x", 16, 8)], [floats("y", 16, 4)]))
    config, ranges = PrecisionConfig.from_precision(INT8, other), {"x": 4.0}
    rulings = rulebook.plan_lowering(network, config, ranges)
    assert all(np.isfinite(scale.raised_scales).all() for scale in rulebook.find_raised_weight_scales(network, rulings))
    assert [scale.channels for scale in rulebook.find_raised_weight_scales(network, rulings)] in ([], [(1,)])
    assert lower_to_typed_network(network, config, ranges).model.graph is not None


# -- what ONNX Runtime computes -------------------------------------------------------------------------------------


def network_of(kind, seed, tiny, bias):
    """A product with a dead channel, and one that reads it, so that its result is quantized."""
    b = Builder(seed)
    channels = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}[kind]
    shape = {"Conv": (8, 4, 3, 3), "ConvTranspose": (4, 8, 3, 3), "Gemm": (16, 8), "MatMul": (16, 8)}[kind]
    b.kernel("w", shape, 16)
    weight = onnx.numpy_helper.to_array(b.weights[-1]).copy()
    weight[(slice(None),) * channels + (DEAD,)] *= tiny
    b.weights[-1] = onnx.numpy_helper.from_array(weight, "w")
    biases = b.rng.standard_normal(8).astype(np.float32) * 0.1
    biases[DEAD] = bias
    b.weight("bias", biases)
    if kind == "MatMul":
        x = b.node("Add", [b.node("MatMul", ["x", "w"], "/one"), "bias"], "/one")
    else:
        padded = {"pads": [1, 1, 1, 1]} if "Conv" in kind else {}
        x = b.node(kind, ["x", "w", "bias"], "/one", **padded)
    if "Conv" in kind:
        b.node("Conv", [x, b.kernel("v", (4, 8, 1, 1), 8)], "/two", output="y")
        return b.model([floats("x", 2, 4, 6, 6)], [floats("y", 2, 4, 6, 6)])
    b.node("MatMul", [x, b.kernel("v", (8, 4), 8)], "/two", output="y")
    return b.model([floats("x", 6, 16)], [floats("y", 6, 4)])


def run_as_exported(model, feeds, folder):
    """Executes a typed network with the fusions and INT8 kernels of ONNX Runtime's default options."""
    path = str(folder / "exported.onnx")
    ir.save(model, path)
    return ExportedFileRunner(path, "cpu").run(feeds, [value.name for value in model.graph.outputs])


def drawn(kind, seed, tiny, bias, backend, opened):
    network = opened(network_of(kind, seed, tiny, bias))
    shape = [int(size) for size in network.inputs[0].shape]
    feeds = {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
    plain = inner_values(backend, network, feeds)
    return network, feeds, plain, {name: float(np.abs(plain[name]).max()) for name in network.calibrated_tensors}


@pytest.mark.parametrize("other", [FP16, FP32])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize(("seed", "tiny", "bias"), [(0, 2e-3, 2.0), (1, 1e-6, -1.5), (2, 1e-12, 0.7), (3, 1.0, 0.1)])
def test_onnx_runtime_computes_what_is_simulated_with_its_fusions(
    kind, seed, tiny, bias, other, backend, opened, tmp_path
):
    network, feeds, plain, ranges = drawn(kind, seed, tiny, bias, backend, opened)
    config = PrecisionConfig(INT8, other)
    typed = lower_to_typed_network(network, config, ranges)
    got = run_as_exported(typed.model, feeds, tmp_path)["y"]
    simulated = gated_values(backend, network, config, ranges, feeds)["y"]
    assert abs(sqnr(plain["y"], got) - sqnr(plain["y"], simulated)) < 3
    assert min(sqnr(plain["y"], got), sqnr(plain["y"], simulated)) > 20
    # scales below FP16 are held in FP32 behind Casts, where ONNX Runtime quantizes no bias
    assert any("channel 3" in note for note in typed.notes) == (tiny == 2e-3 if other is FP16 else tiny <= 1e-6)


# -- what a config makes of it --------------------------------------------------------------------------------------


def first_scale(network, config, ranges, constants=None):
    ruling = rulebook.plan_lowering(network, config, ranges, edited_constants=constants)[network.groups[0].name]
    return next(scale for site, scale in ruling.scales.items() if site.role == "weight")


def test_a_corrected_bias_counts(backend, opened):
    network, _, _, ranges = drawn("Conv", 3, 1.0, 0.1, backend, opened)
    config = PrecisionConfig(INT8, FP16)
    assert first_scale(network, config, ranges).original_values is None
    shift = np.zeros(8, np.float32)
    shift[5] = 6e4
    moved = config.with_moves({network.groups[0].name: BiasCorrectionMove(encode_vector(shift))})
    scale = first_scale(network, moved, ranges, EditedConstants(network, moved))
    assert np.flatnonzero(scale.values != scale.original_values).tolist() == [5]
    typed = lower_to_typed_network(network, moved, ranges)
    assert any("channel 5" in note for note in typed.notes)


def test_another_range_gives_another_scale_and_other_fed_weights(backend, opened):
    from trt_tui.core.lowering.gated.assembly import build_gated_graph

    network, _, _, ranges = drawn("Conv", 0, 2e-3, 2.0, backend, opened)
    config, gated = PrecisionConfig(INT8, FP16), build_gated_graph(network)
    narrow = {**ranges, "x": ranges["x"] / 8}
    scales = [first_scale(network, config, one) for one in (ranges, narrow)]
    assert (
        scales[1].values[DEAD] > 4 * scales[0].values[DEAD] and scales[0].weight_cache_key != scales[1].weight_cache_key
    )
    fed = [gated.make_feed(config, one) for one in (ranges, narrow)]
    name = next(name for name, weight in gated.weight_inputs.items() if weight.site.tensor == "w")
    constant = network.constant_value("w")
    for scale, feeds in zip(scales, fed, strict=True):
        np.testing.assert_array_equal(feeds[name], rulebook.quantize_dequantize_weight(constant, scale))


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.INT4])
def test_other_codes_have_no_int32_bias(precision, backend, opened):
    network, _, _, ranges = drawn("Conv", 0, 2e-3, 2.0, backend, opened)
    rulings = rulebook.plan_lowering(network, PrecisionConfig(precision, FP16), ranges)
    assert not rulebook.find_raised_weight_scales(network, rulings)


def test_the_bundled_network_has_such_a_channel(backend, run):
    network = open_network(demo.network_path(), lambda: backend)
    with np.load(demo.calibration_path()) as data:
        feeds = {"image": data["image"].astype(np.float32)}
    plain = inner_values(backend, network, feeds)
    ranges = {name: float(np.abs(plain[name]).max()) for name in network.calibrated_tensors}
    config = PrecisionConfig(INT8, FP16)
    (found,) = rulebook.find_raised_weight_scales(network, rulebook.plan_lowering(network, config, ranges))
    assert found.layer == "/bottom/widen/conv/Conv" and found.channels == (15,) and 0 < found.max_channel_bit_loss < 1
    assert found.weight_sqnr_db[1] <= found.weight_sqnr_db[0]
    (note,) = (note for note in lower_to_typed_network(network, config, ranges).notes if "bias" in note)
    assert "channel 15" in note and "bits" in note and "dB" in note
    code, _, said = run(
        *f"compare {demo.network_path()} --data {demo.samples_path()}".split(),
        *f"--calib-data {demo.calibration_path()} --samples 2 --layers none".split(),
    )
    assert code == 0 and "/bottom/widen/conv/Conv" in said and "channel 15" in said


def test_a_quantized_file_keeps_its_scales_and_is_warned_of(tmp_path, backend, opened, monkeypatch):
    network, _, _, ranges = drawn("Conv", 0, 2e-3, 2.0, backend, opened)
    onnx.save(
        ir.to_proto(lower_to_typed_network(network, PrecisionConfig(INT8, FP16), ranges).model),
        tmp_path / "raised.onnx",
    )
    monkeypatch.setattr("trt_tui.core.lowering.rulebook.raise_weight_scales_for_bias", lambda scale, *_: scale)
    model = lower_to_typed_network(network, PrecisionConfig(INT8, FP16), ranges).model
    onnx.save(ir.to_proto(model), tmp_path / "model.onnx")
    notes = open_network(tmp_path / "model.onnx").notes
    assert any("cannot quantize the bias of /one/Conv" in note and "disable_quant_qdq" in note for note in notes)
    assert not any("cannot quantize the bias" in note for note in open_network(tmp_path / "raised.onnx").notes)
