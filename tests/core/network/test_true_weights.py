"""The FP32 network that a quantized one was made from: its weights are proposed by
trt_tui.core.network.opening, and used if the network with them reproduces its outputs."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests import TESTS, networks
from tests.core.data.test_references import QUICK
from tests.core.network.test_given import AS_GIVEN, content, simulated, sqnr
from tests.core.network.test_given import run as run_model
from tests.files.modelopt.make import plain
from tests.networks.build import Builder, floats
from tests.networks.odd import conv_net
from tests.networks.qdq import product, without_pairs
from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.network.graph import ConstantValues, LayerGraph
from trt_tui.core.network.network import open_network
from trt_tui.core.network.opening import open_model, propose_original_weights
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.options import Options
from trt_tui.workspace import Workspace

FP32 = PrecisionConfig.from_precision(Precision.FP32)


@pytest.fixture
def saved(tmp_path):
    def save(model, name):
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    return save


def checked(path, reference, **options):
    """The network of a workspace, after the check of the weights of the reference on 8 samples."""
    workspace = Workspace(Options(str(path), reference=str(reference), samples=8, threads=1, **options))
    for _ in workspace.check_reference_weights():
        pass
    return workspace.network


def renamed(model):
    """Other names for nodes and weights, as a quantizer that rebuilds the graph gives them."""
    names = {one.name: f"w{number}" for number, one in enumerate(model.graph.initializer)}
    for one in model.graph.initializer:
        one.name = names[one.name]
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
        node.input[:] = [names.get(name, name) for name in node.input]
    return model


@pytest.mark.parametrize("factor", [1, 1.2])
def test_a_weight_gets_the_values_that_it_is_a_rounding_of(factor, saved):
    original = product(inputs=())
    array = numpy_helper.to_array(original.graph.initializer[0])
    original.graph.initializer[0].CopyFrom(numpy_helper.from_array(array * np.float32(factor), "other_name"))
    original.graph.node[0].input[1] = "other_name"
    opened, reference = (open_model(saved(model, "file.onnx")) for model in (product(), original))
    propose_original_weights(opened, reference, "fp32.onnx", None)
    weight = opened.model.graph.node("/fc/MatMul").inputs[1]
    assert np.array_equal(weight.const_value.numpy(), array) is (factor == 1)
    assert opened.source_model.replaced_constants == ({weight.name} if factor == 1 else set())
    assert opened.source_model.changed_layers == (() if factor == 1 else ("/fc/MatMul",))


@pytest.mark.parametrize("change", [lambda model: model, renamed])
@pytest.mark.parametrize(
    "form", [networks.quantized, networks.half, lambda: networks.quantized(extra={"AddQDQPairToWeight": True})]
)
def test_fp32_is_the_network_that_it_was_made_from(form, change, saved, backend):
    model, exact = form(), conv_net(0)
    reference = saved(change(conv_net(0)), "fp32.onnx")
    network = checked(saved(model, "given.onnx"), reference)
    feeds = networks.feeds(exact, 9, n=4)
    own = {
        name: array.astype(np.float16) if network.inputs[0].dtype == np.float16 else array
        for name, array in feeds.items()
    }
    expected = run_model(backend, ir.from_proto(exact), feeds)
    alone = open_network(saved(model, "given.onnx"))
    assert sqnr(expected, simulated(backend, network, FP32, own)) > 50, "but for inputs in 16 bits"
    as_given = [simulated(backend, one, AS_GIVEN, own) for one in (alone, network)]
    np.testing.assert_array_equal(*as_given)
    written = [content(ir.to_proto(lower_from_source_model(one, AS_GIVEN, {}).model)) for one in (alone, network)]
    assert written[0] == written[1]
    raised = run_model(backend, lower_from_source_model(network, FP32, {}).model, own)
    assert sqnr(expected, raised) > 50
    assert any("FP32 means" in note and "of fp32.onnx." in note for note in network.notes)
    assert reference in network.external_files and not any("as quantized values" in note for note in network.notes)
    assert network.structure_sha256 == alone.structure_sha256


@pytest.mark.parametrize("form", [networks.quantized, networks.half])
def test_a_raised_group_is_exported_with_the_weights_that_are_simulated(form, saved, backend):
    """Among groups that are as in the file, too: its constants are those of the network that was named."""
    network = open_network(saved(form(), "given.onnx"), reference=saved(conv_net(0), "fp32.onnx"))
    group = network.get_group("/conv2/Conv")
    model = lower_from_source_model(network, AS_GIVEN.with_group_precision([group], Precision.FP32), {}).model
    graph = LayerGraph(model)
    weight = graph.by_name["/conv2/Conv"].inputs[1]
    np.testing.assert_array_equal(
        ConstantValues(graph, model, lambda: backend).constant_value(weight),
        network.constant_value(network.get_layer("/conv2/Conv").inputs[1]),
    )
    assert np.abs(
        network.constant_value(network.get_layer("/conv2/Conv").inputs[1]).astype(np.float16)
        - network.constant_value(network.get_layer("/conv2/Conv").inputs[1])
    ).any(), "FP16 cannot hold them"


def _changed_arrays(model, change):
    """The model with other values: ``change(array, name)`` of each float weight; None leaves it."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        changed = change(array, tensor.name) if array.dtype == np.float32 and array.size > 1 else None
        if changed is not None:
            tensor.CopyFrom(numpy_helper.from_array(changed.astype(np.float32), tensor.name))
    return model


def _trained_further():
    """The weights of a network before it was trained further with quantized weights, whose biases stayed."""
    rng = np.random.default_rng(1)
    return _changed_arrays(
        conv_net(0),
        lambda array, _: array + 0.03 * array.std() * rng.normal(size=array.shape) if array.ndim > 1 else None,
    )


def _with_constant_nodes(model):
    nodes = [
        helper.make_node("Constant", [], [tensor.name], name=f"c_{tensor.name}", value=tensor)
        for tensor in model.graph.initializer
    ]
    rest = list(model.graph.node)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend([*nodes, *rest])
    return model


def _with_cast_weights(model):
    nodes = []
    for tensor in model.graph.initializer:
        array, name = numpy_helper.to_array(tensor), tensor.name
        if array.dtype == np.float32 and array.ndim > 1:
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), f"{name}_stored"))
            nodes.append(
                helper.make_node("Cast", [f"{name}_stored"], [name], name=f"cast_{name}", to=onnx.TensorProto.FLOAT)
            )
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])
    return model


def _with_fp8_weights(model):
    """The weights are FP8 codes times a scale: computed constants, rather than stored ones."""
    nodes = []
    for tensor in list(model.graph.initializer):
        array, name = numpy_helper.to_array(tensor), tensor.name
        if array.dtype == np.float32 and array.ndim > 1:
            scale = np.float32(np.abs(array).max() / 448)
            codes = helper.make_tensor(
                f"{name}_codes", onnx.TensorProto.FLOAT8E4M3FN, array.shape, (array / scale).ravel()
            )
            model.graph.initializer.remove(tensor)
            model.graph.initializer.extend([codes, numpy_helper.from_array(scale, f"{name}_factor")])
            nodes += [
                helper.make_node("Cast", [codes.name], [f"{name}_cast"], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", [f"{name}_cast", f"{name}_factor"], [name]),
            ]
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])
    model.opset_import[0].version = 19
    return model


def _with_other_output_name(model):
    model.graph.output[0].name = model.graph.node[-1].output[0] = "1234"
    return model


def _with_weights_behind_quantizers():
    return networks.quantized(extra={"AddQDQPairToWeight": True})


def _other_neighbours(model):
    """Every third quantized weight is the other one of the two nearest values, as where the output decides it."""
    exact = {tensor.name: numpy_helper.to_array(tensor) for tensor in conv_net(0).graph.initializer}
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for tensor in model.graph.initializer:
        name, array = tensor.name.removesuffix("_quantized"), numpy_helper.to_array(tensor)
        if name in exact and array.dtype == np.int8:
            scale = scales[f"{name}_scale"]
            exact_steps = exact[name] / scale.reshape(-1, *[1] * (array.ndim - 1))
            moved = np.where(np.arange(array.size).reshape(array.shape) % 3 == 0, np.sign(exact_steps - array), 0)
            tensor.CopyFrom(numpy_helper.from_array((array + moved).clip(-127, 127).astype(np.int8), tensor.name))
    return model


@pytest.mark.parametrize(
    ("given", "reference"),
    [
        (lambda: _with_constant_nodes(_with_weights_behind_quantizers()), lambda: conv_net(0)),
        (lambda: _with_constant_nodes(networks.quantized()), lambda: _with_constant_nodes(conv_net(0))),
        (lambda: _with_cast_weights(_with_weights_behind_quantizers()), lambda: conv_net(0)),
        (lambda: _with_constant_nodes(_with_cast_weights(conv_net(0))), lambda: conv_net(0)),
        (lambda: _other_neighbours(networks.quantized()), lambda: conv_net(0)),
        (lambda: networks.quantized(nodes_to_exclude=["/conv2/Conv"]), lambda: renamed(conv_net(0))),
        (networks.quantized, lambda: _with_other_output_name(conv_net(0))),
    ],
    ids=[
        "constants behind quantizers",
        "constants in both",
        "casts",
        "casts of constants",
        "chosen rounding",
        "partly",
        "other output name",
    ],
)
def test_weights_are_found_in_every_form_of_the_file(given, reference, saved, backend):
    exact = reference()
    network = checked(saved(given(), "given.onnx"), saved(exact, "fp32.onnx"))
    assert network.weights_source_name == "fp32.onnx", network.notes
    feeds = networks.feeds(exact, 9, n=4)
    assert sqnr(run_model(backend, ir.from_proto(exact), feeds), simulated(backend, network, FP32, feeds)) > 100


@pytest.mark.parametrize("path", sorted((TESTS / "files" / "modelopt").glob("*.onnx")), ids=lambda path: path.stem)
def test_files_of_modelopt_have_the_weights_of_their_original(path, saved):
    assert checked(path, saved(plain(), "plain.onnx")).weights_source_name == "plain.onnx"


@pytest.mark.parametrize(
    ("reference", "cause"),
    [
        (_trained_further, "/conv1/Conv"),
        # A scale of a norm near 1 that was folded into one Conv
        (
            lambda: _changed_arrays(conv_net(0), lambda array, name: array * 1.1 if name == "conv2.weight" else None),
            "lacks the weights of /conv2/Conv,",
        ),
        # Weights that round to those of the file, with other biases
        (
            lambda: _changed_arrays(conv_net(0), lambda array, _: array + 0.02 if array.ndim == 1 else None),
            "with its weights logits differs",
        ),
        (networks.quantized, "is itself quantized"),
        (networks.half, "in 16 bits"),
        (lambda: _with_fp8_weights(conv_net(0)), "only outputs are compared"),
        (lambda: _with_cast_weights(conv_net(0)), "only outputs are compared"),
    ],
    ids=["trained further", "folded", "other biases", "quantized", "16 bits", "FP8 codes", "casts"],
)
def test_weights_that_do_not_reproduce_the_reference_are_refused_for_the_whole_network(
    reference, cause, saved, backend
):
    path, exact = saved(networks.quantized(), "given.onnx"), conv_net(0)
    network, alone = checked(path, saved(reference(), "fp32.onnx")), open_network(path)
    note = network.reference_weights_text
    assert note in network.notes and not lacking(note, "FP32 means", "of given.onnx", cause)
    assert not network.weights_source_name and not any("--reference" in text for text in network.notes)
    feeds = networks.feeds(exact, 9, n=4)
    np.testing.assert_array_equal(*(simulated(backend, one, FP32, feeds) for one in (network, alone)))


def _norm_net():
    """Four Convs with a norm, whose scale is near 1, and a Relu each: ``image`` (batch, 3, 16, 16) to ``logits``."""
    b, x = Builder(0), "image"
    for index, channels in enumerate(((3, 16), (16, 16), (16, 32), (32, 32))):
        x = b.batch_norm(b.conv(x, channels, f"/conv{index}"), channels[1], f"/norm{index}")
        x = b.node("Relu", [x], f"/relu{index}")
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "/pool")], "/flatten", axis=1)
    b.gemm(x, (32, 10), "/fc", output="logits")
    return b.model([floats("image", "batch", 3, 16, 16)], [floats("logits", "batch", 10)])


def test_norms_folded_before_the_quantization(saved, tmp_path, run, backend):
    """The original network is not what was quantized: FP32 has the weights of the file, and every report says so."""
    exact = saved(_norm_net(), "fp32.onnx")
    images = networks.random_images(np.random.default_rng(2), (16, 3, 16, 16))
    np.savez(tmp_path / "data.npz", image=images)
    quant_pre_process(str(exact), str(tmp_path / "folded.onnx"))
    quantize_static(
        tmp_path / "folded.onnx",
        tmp_path / "q.onnx",
        networks.Handed([{"image": images}]),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": True},
    )
    assert checked(tmp_path / "q.onnx", tmp_path / "folded.onnx").weights_source_name == "folded.onnx"
    code, out, err = run(
        *f"compare {tmp_path}/q.onnx --data {tmp_path}/data.npz --calib-data {tmp_path}/data.npz".split(),
        *f"--reference {exact}".split(),
        *QUICK,
        *f"--runs fp16 --json {tmp_path}/r.json --markdown {tmp_path}/r.md".split(),
    )
    record = json.loads((tmp_path / "r.json").read_text())
    assert code in (0, 1) and mismatches(record, "comparison-v1") == [], err
    weights = record["reference"]["weights"]
    assert weights["of"] == "q.onnx" and "/conv0/Conv" in weights["text"]
    assert all(weights["text"] in text for text in (out, err, (tmp_path / "r.md").read_text()))
    stripped = run_model(backend, ir.from_proto(without_pairs(onnx.load(tmp_path / "q.onnx"))), {"image": images})
    expected = sqnr(run_model(backend, ir.load(exact), {"image": images}), stripped)
    assert record["runs"]["fp32"]["outputs"]["logits"]["sqnr_db"] == pytest.approx(expected, abs=0.1)


def test_an_fp32_file_keeps_its_weights(saved):
    path = saved(conv_net(0), "given.onnx")
    network, alone = checked(path, saved(conv_net(5), "fp32.onnx")), open_network(path)
    assert not network.reference_weights_text
    for name in network.constant_tensors:
        np.testing.assert_array_equal(network.constant_value(name), alone.constant_value(name))


def test_a_reference_without_outputs_of_the_network_is_refused_unless_its_weights_are_used(saved):
    path = saved(networks.quantized(), "given.onnx")
    with pytest.raises(InputError, match="no tensor in common"):
        checked(path, saved(_with_other_output_name(conv_net(5)), "fp32.onnx"))


def test_a_config_moves_between_a_network_and_its_quantized_twin(saved, tmp_path):
    exact = open_network(saved(conv_net(0), "fp32.onnx"))
    given = open_network(saved(networks.quantized(), "given.onnx"))
    assert exact.structure_sha256 != given.structure_sha256
    file = tmp_path / "precision.json"

    def moved(config, source, target):
        file.write_text(config_text(source, config))
        return read_config(file, target)

    config = AS_GIVEN.with_group_precision([given.get_group("/conv2/Conv")], Precision.FP32).with_group_precision(
        [given.get_group("/fc/Gemm")], Precision.FP16
    )
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
    assert any("as their ranges" in note for note in network.notes) == (restored != "Relu")
    feeds = {"x": np.random.default_rng(0).normal(0, 8, (1, 4, 8, 8)).astype(np.float32)}
    expected = run_model(backend, ir.load(exact), feeds)
    assert sqnr(expected, simulated(backend, network, FP32, feeds)) > 100
    assert sqnr(expected, run_model(backend, lower_from_source_model(network, FP32, {}).model, feeds)) > 100
