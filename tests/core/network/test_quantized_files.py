"""Networks that ONNX Runtime's own quantizers write open, run, and compare; weights over 1 KiB, as real ones are."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from tests import networks
from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.simulation_limits import find_unsimulated_layer_caveats
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision


def float_network() -> onnx.ModelProto:
    """Two Convs with a skip and a MatMul, weights of 9 to 64 KiB."""
    b = Builder(0)
    x = b.node("Relu", [b.conv("image", (16, 32), "/conv1", bias=True)], "/relu1")
    y = b.conv(x, (32, 32), "/conv2", bias=True)
    x = b.node("Relu", [b.node("Add", [y, x], "/skip")], "/relu2")
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "/pool")], "/flatten", axis=1)
    x = b.node("MatMul", [x, b.kernel("fc1.weight", (32, 64), 32)], "/fc1")
    b.gemm(x, (64, 256), "/fc2", output="logits")
    return b.model([floats("image", "batch", 16, 8, 8)], [floats("logits", "batch", 256)])


QDQ = {"quant_format": QuantFormat.QDQ}
KINDS = {
    "defaults": {},
    "per channel": {**QDQ, "per_channel": True},
    "unsigned weights": {**QDQ, "weight_type": QuantType.QUInt8, "activation_type": QuantType.QUInt8},
    "symmetric": {**QDQ, "extra_options": {"ActivationSymmetric": True}, "activation_type": QuantType.QInt8},
    "float bias": {**QDQ, "extra_options": {"QuantizeBias": False}},
    "Q and DQ on weights": {**QDQ, "extra_options": {"AddQDQPairToWeight": True}},
    "pairs of their own": {**QDQ, "extra_options": {"DedicatedQDQPair": True}},
}


@pytest.fixture(params=KINDS)
def quantized(request, tmp_path):
    source, path = tmp_path / "float.onnx", tmp_path / "model.onnx"
    onnx.save(float_network(), source)
    feeds = networks.Handed(networks.feeds(float_network(), seed, n=4) for seed in range(2))
    quantize_static(source, path, feeds, **KINDS[request.param])
    return path


def test_what_a_quantizer_wrote_runs_as_opened(quantized, backend):
    network = open_network(quantized)
    assert all(value.uses() or value.is_graph_output() for value in network.model.graph.initializers.values())
    feeds = networks.feeds(float_network(), 7, n=4)
    expected = networks.quiet_session(onnx.load(quantized)).run(None, feeds)[0]
    for lean in (False, True):
        with backend.load(network.model, low_memory=lean) as runner:
            got = runner.run(feeds)["logits"]
        assert 10 * np.log10(np.mean(expected**2) / np.mean((got - expected) ** 2 + 1e-12)) > 15


@pytest.mark.parametrize("quantized", ["per channel"], indirect=True)
def test_what_a_quantizer_wrote_compares(quantized, tmp_path, run):
    data, out = tmp_path / "data.npz", tmp_path / "out.json"
    np.savez(data, **networks.feeds(float_network(), 3, n=8))
    assert run("compare", quantized, "--data", data, "--json", out)[0] == 0
    assert {"fp16", "int8"} <= set(json.loads(out.read_text())["runs"])


def _with_unused(size: int) -> onnx.ModelProto:
    b = Builder()
    b.weight("unused", np.ones(size, np.float32))
    b.node("Add", ["x", b.weight("w", np.ones(300, np.float32))], name="add", output="y")
    return b.model([floats("x", 300)], [floats("y", 300)])


@pytest.mark.parametrize("size", [1, 256, 300])
def test_weights_that_nothing_reads_go_at_opening(size, opened, backend):
    network = opened(_with_unused(size))
    assert list(network.model.graph.initializers) == ["w"]
    with backend.load(network.model) as runner:
        np.testing.assert_array_equal(runner.run({"x": np.ones(300, np.float32)})["y"], np.full(300, 2))


def test_weights_that_nothing_reads_are_part_of_the_structure(opened):
    assert opened(_with_unused(1)).structure_sha256 != opened(_with_unused(300)).structure_sha256


@pytest.mark.parametrize("lean", [False, True])
def test_a_lowered_network_may_hold_weights_that_nothing_reads(lean, backend):
    model = ir.from_proto(_with_unused(300))
    with backend.load(model, low_memory=lean) as runner:
        np.testing.assert_array_equal(runner.run({"x": np.ones(300, np.float32)})["y"], np.full(300, 2))
    assert list(model.graph.initializers) == ["unused", "w"]


def test_a_loop_in_half_precision_has_the_type_of_its_body_and_is_not_raised_alone(opened):
    """The first value that the Loop carries is a counter; only the second is in FP16."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        half (float16[n, 8] x) => (float16[n, 8] y)
        <int64 turns = {3}, bool go = {1}, int64 zero = {0}> {
            [scale] scaled = Add(x, x)
            [loop] count, state = Loop(turns, go, zero, scaled) <body: graph = b (
                int64 turn, bool kept, int64 counted, float16[n, 8] old
            ) => (bool on, int64 next, float16[n, 8] new) {
                on = Identity(kept)
                next = Add(counted, turn)
                new = Add(old, scaled)
            }>
            [last] y = Add(state, x)
        }""")
    network = opened(model)
    loop = network.get_group("loop")
    assert loop.file_precision.result_type is Precision.FP16
    file = PrecisionConfig.from_precision(Precision.FILE)
    (caveat,) = find_unsimulated_layer_caveats(network, file)
    assert "strongly typed" not in caveat.text, "an engine of the file does not run the body in FP32"
    with refused("loop cannot be exported in FP32 alone"):
        lower_from_source_model(network, file.with_group_precision([loop], Precision.FP32), {})
