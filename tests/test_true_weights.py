"""trt_tui.core.network.original_network: the FP32 network that a quantized one was made from"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests import networks
from tests.networks.build import Builder, floats
from tests.networks.odd import conv_net
from tests.refusals import refused
from tests.test_given import AS_GIVEN, content, run, simulated, sqnr
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.network.constants import ConstantValues
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

FP32 = PrecisionConfig.from_precision(Precision.FP32)


@pytest.fixture
def saved(tmp_path):
    def save(model, name):
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    return save


def renamed(model):
    """Other names for nodes and weights, as a quantizer that rebuilds the graph gives them."""
    names = {one.name: f"w{number}" for number, one in enumerate(model.graph.initializer)}
    for one in model.graph.initializer:
        one.name = names[one.name]
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
        node.input[:] = [names.get(name, name) for name in node.input]
    return model


@pytest.mark.parametrize("change", [lambda model: model, renamed])
@pytest.mark.parametrize("form", [networks.quantized, networks.half,
                                  lambda: networks.quantized(extra={"AddQDQPairToWeight": True})])
def test_fp32_is_the_network_that_it_was_made_from(form, change, saved, backend):
    model, exact = form(), conv_net(0)
    reference = saved(change(conv_net(0)), "fp32.onnx")
    network = open_network(saved(model, "given.onnx"), reference=reference)
    feeds = networks.feeds(exact, 9, n=4)
    own = {name: array.astype(np.float16) if network.inputs[0].dtype == np.float16 else array
           for name, array in feeds.items()}
    expected = run(backend, ir.from_proto(exact), feeds)
    alone = open_network(saved(model, "given.onnx"))
    assert sqnr(expected, simulated(backend, network, FP32, own)) > 50, "but for inputs in 16 bits"
    as_given = [simulated(backend, one, AS_GIVEN, own) for one in (alone, network)]
    np.testing.assert_array_equal(*as_given)
    written = [content(ir.to_proto(lower_from_source_model(one, AS_GIVEN, {}).model)) for one in (alone, network)]
    assert written[0] == written[1]
    raised = run(backend, lower_from_source_model(network, FP32, {}).model, own)
    assert sqnr(expected, raised) > 50
    assert any("FP32 means the weights of fp32.onnx." == note for note in network.notes)
    assert reference in network.external_files and not any("only as quantized values" in note for note in network.notes)
    assert network.structure_sha256 == alone.structure_sha256


@pytest.mark.parametrize("form", [networks.quantized, networks.half])
def test_a_raised_group_is_exported_with_the_weights_that_are_simulated(form, saved, backend):
    """Among groups that are as in the file, too: its constants are those of the network that was named."""
    network = open_network(saved(form(), "given.onnx"), reference=saved(conv_net(0), "fp32.onnx"))
    group = network.get_group("/conv2/Conv")
    model = lower_from_source_model(network, AS_GIVEN.with_group_precision([group], Precision.FP32), {}).model
    graph = LayerGraph(model)
    weight = graph.by_name["/conv2/Conv"].inputs[1]
    np.testing.assert_array_equal(ConstantValues(graph, model, lambda: backend).constant_value(weight),
                                  network.constant_value(network.get_layer("/conv2/Conv").inputs[1]))
    assert np.abs(network.constant_value(network.get_layer("/conv2/Conv").inputs[1]).astype(np.float16)
                  - network.constant_value(network.get_layer("/conv2/Conv").inputs[1])).any(), "FP16 cannot hold them"


def test_weights_without_a_counterpart_keep_those_of_their_codes(saved, backend):
    exact = conv_net(0)
    for one in exact.graph.initializer:
        if "conv2" in one.name and len(one.dims) == 4:  # as where a BatchNormalization was folded into it
            folded = onnx.numpy_helper.to_array(one) * np.linspace(-3, 3, 8, dtype=np.float32)[:, None, None, None]
            one.CopyFrom(onnx.numpy_helper.from_array(folded, one.name))
    network = open_network(saved(networks.quantized(), "given.onnx"), reference=saved(exact, "fp32.onnx"))
    note, = (note for note in network.notes if "fp32.onnx" in note)
    assert "but for 1 layer without matching weights" in note and "/conv2" in note


def _on_integers():
    b = Builder()
    b.weight("codes", np.ones((8, 3), np.uint8))
    summed = b.node("MatMulInteger", [b.node("Cast", ["x"], to=onnx.TensorProto.UINT8), "codes"])
    b.node("Cast", [summed], "sum", output="y", to=onnx.TensorProto.FLOAT)
    return b.model([floats("x", 2, 8)], [floats("y", 2, 3)])


@pytest.mark.parametrize("reference", [lambda: conv_net(5), networks.mlp])
def test_a_network_without_weights_like_its_own_is_refused(reference, saved):
    with refused("fp32.onnx is not a reference of given.onnx"):
        open_network(saved(networks.quantized(), "given.onnx"), reference=saved(reference(), "fp32.onnx"))


@pytest.mark.parametrize(("given", "reference", "said"), [
    (lambda: conv_net(0), lambda: conv_net(5), ""),  # what its outputs are held against is no matter of its weights
    (networks.quantized, networks.quantized, "keeps its own dequantized weights"),
    (_on_integers, networks.mlp, ""),
])
def test_weights_are_taken_where_there_are_any_to_take(given, reference, said, saved):
    path, other = saved(given(), "given.onnx"), saved(reference(), "fp32.onnx")
    network, alone = open_network(path, reference=other), open_network(path)
    assert [note for note in network.notes if note not in alone.notes and said in note] == (
        [note for note in network.notes if said in note] if said else [])
    for name in network.constant_tensors:
        np.testing.assert_array_equal(network.constant_value(name), alone.constant_value(name))


def test_a_config_moves_between_a_network_and_its_quantized_twin(saved, tmp_path):
    exact = open_network(saved(conv_net(0), "fp32.onnx"))
    given = open_network(saved(networks.quantized(), "given.onnx"))
    assert exact.structure_sha256 != given.structure_sha256
    file = tmp_path / "precision.json"

    def moved(config, source, target):
        file.write_text(config_text(source, config))
        return read_config(file, target)

    config = AS_GIVEN.with_group_precision([given.get_group("/conv2/Conv")], Precision.FP32).with_group_precision(
        [given.get_group("/fc/Gemm")], Precision.FP16)
    loaded = moved(config, given, exact)
    asked = {group.name: loaded.config.precision_of(group) for group in exact.groups}
    assert asked.pop("/conv2/Conv") is Precision.FP32 and asked.pop("/fc/Gemm") is Precision.FP16
    coded = {group.name for group in given.groups if group.file_precision.nearest_precision is Precision.INT8}
    assert {name for name, one in asked.items() if one is Precision.INT8} == coded - {"/conv2/Conv", "/fc/Gemm"}
    assert loaded.config.other is Precision.FP32 and any("given.onnx" in one for one in loaded.warnings)
    back = moved(PrecisionConfig().with_group_precision([exact.get_group("/conv2/Conv")], Precision.FP32), exact, given)
    assert back.config.precision_of(given.get_group("/conv2/Conv")) is Precision.FP32
    assert back.config.precision_of(given.get_group("/conv1/Conv")) is Precision.INT8
    with pytest.raises(InputError, match="another structure"):
        moved(PrecisionConfig(), exact, open_network(saved(networks.mlp(), "mlp.onnx")))


def _cut(activation, quantized):
    """Two Convs with an activation between; quantized: a pair in its place, whose range is [0, 4]."""
    b = Builder()
    x = b.conv("x", (4, 4), "/conv1", bias=True)
    if quantized:
        held = [b.weight("scale", np.float32(4 / 255)), b.weight("zero", np.uint8(0))]
        x = b.node("DequantizeLinear", [b.node("QuantizeLinear", [x, *held], "/act"), *held], "/act")
    elif activation:
        limits = [b.weight(f"limit{number}", np.float32(number)) for number in (0, 6)]
        x = b.node(activation, [x, *(limits if activation == "Clip" else [])], "/act")
    x = b.conv(x, (4, 4), "/conv2", bias=True)
    return b.model([floats("x", 1, 4, 8, 8)], [floats(b.node("Identity", [x], output="y"), 1, 4, 8, 8)])


@pytest.mark.parametrize(("activation", "restored"), [("Clip", "Clip"), ("Relu", "Relu"), ("", "Identity")])
def test_activations_left_to_a_range_are_those_of_the_reference(activation, restored, saved, backend):
    given, exact = saved(_cut(activation, True), "given.onnx"), saved(_cut(activation, False), "fp32.onnx")
    network = open_network(given, reference=exact)
    assert network.layers[1].op_type == restored and open_network(given).layers[1].op_type == "Relu"
    assert any("not as their ranges" in note for note in network.notes) == (restored != "Relu")
    feeds = {"x": np.random.default_rng(0).normal(0, 8, (1, 4, 8, 8)).astype(np.float32)}
    expected = run(backend, ir.load(exact), feeds)
    assert sqnr(expected, simulated(backend, network, FP32, feeds)) > 100
    assert sqnr(expected, run(backend, lower_from_source_model(network, FP32, {}).model, feeds)) > 100
