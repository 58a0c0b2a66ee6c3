import hashlib
import pickle

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import networks
from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.hashes import hash_files, hash_layers
from trt_tui.core.network.layers import IRRELEVANT_KINDS, LayerKind
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import BackendUnavailableError, InputError


@pytest.fixture
def kinds(opened):
    """One network with a layer of each kind."""
    b = Builder()
    size = b.node("Shape", ["x"], name="shape")
    batch = b.node("Gather", [size, b.weight("zero", np.array([0], np.int64))], name="batch")
    target = b.node("Concat", [batch, b.weight("rest", np.array([-1], np.int64))], name="target", axis=0)
    x = b.node("Reshape", ["x", target], name="reshape")
    weight = b.node("Transpose", [b.weight("w", np.ones((6, 8), np.float32))], name="turn", perm=[1, 0])
    x = b.node("MatMul", [x, weight], name="matmul")
    where = b.node("Greater", [x, b.weight("limit", np.float32(0))], name="greater")
    x = b.node("Where", [where, x, b.weight("low", np.float32(-1))], name="where")
    wide = b.node("Cast", [x], name="wide", to=TensorProto.DOUBLE)
    wide = b.node("Sin", [wide], name="fp64")
    x = b.node("Cast", [wide], name="narrow", to=TensorProto.FLOAT)
    branch = [
        helper.make_graph([helper.make_node("Relu", [x], [name])], name, [], [floats(name, "n", 6)])
        for name in ("a", "b")
    ]
    go = b.weight("go", np.array(True))
    x = b.node("If", [go], name="if", then_branch=branch[0], else_branch=branch[1])
    b.node("RandomNormalLike", [x], name="random", output="noise")
    x = b.node("Sparkle", [x], name="sparkle", domain="acme")
    b.node("Relu", [x], name="after", output="y")
    return opened(b.model([floats("x", "n", 8)], [floats("y", "n", 6), floats("noise", "n", 6)], domains=["acme"]))


def test_every_layer_has_its_kind(kinds):
    assert {layer.name: layer.kind for layer in kinds.layers} == {
        "shape": LayerKind.SHAPE,
        "batch": LayerKind.SHAPE,
        "target": LayerKind.SHAPE,
        "reshape": LayerKind.COPY,
        "turn": LayerKind.CONSTANT,
        "matmul": LayerKind.COMPUTE,
        "greater": LayerKind.INTEGER,
        "where": LayerKind.COMPUTE,
        "wide": LayerKind.CAST,
        "fp64": LayerKind.OPAQUE,
        "narrow": LayerKind.CAST,
        "if": LayerKind.OPAQUE,
        "random": LayerKind.COMPUTE,
        "sparkle": LayerKind.OPAQUE,
        "after": LayerKind.OPAQUE,
    }


def test_a_layer_that_cannot_take_less_says_why(kinds):
    for layer in kinds.layers:
        assert bool(layer.refusal_reason) == (layer.kind in IRRELEVANT_KINDS or layer.kind is LayerKind.OPAQUE), (
            layer.name
        )
    assert "subgraph" in kinds.get_layer("if").refusal_reason and "FP64" in kinds.get_layer("fp64").refusal_reason
    assert (
        "acme" in kinds.get_layer("sparkle").refusal_reason
        and "after the plugin sparkle" in kinds.get_layer("after").refusal_reason
    )


def test_what_reads_a_sequence_is_opaque(named_network):
    network = named_network("with_sequence")
    assert network.get_layer("/split/SequenceAt").kind is LayerKind.OPAQUE
    assert Precision.FP16 in network.get_group("/split/SequenceAt").refusal_reasons


def test_captured_tensors_count_as_read(named_network):
    network = named_network("with_if")
    assert "/before/Conv_output_0" in network.input_tensors("/switch/If")
    assert "/switch/If" in network.consumers["/before/Conv_output_0"]


def test_multiply_accumulates_by_hand(named_network, opened):
    network = named_network("unet_small")
    assert network.get_layer("/encoder.0/conv/Conv").macs == 32 * 32 * 8 * 9
    assert network.get_layer("/up.0/ConvTranspose").macs == 32 * 8 * 8 * 16 * 2 * 2
    assert network.get_layer("/pool.0/MaxPool").macs == 0
    assert named_network("mlp").get_layer("/fc1/Gemm").macs == 16 * 32
    assert named_network("mlp").get_layer("/fc2/MatMul").macs == 32 * 32
    assert named_network("bert").get_layer("/layers.0/attention/query/MatMul").macs is None  # open sequence length


def test_sizes_that_the_file_leaves_open_are_those_of_the_samples(named_network):
    network = named_network("bert")
    fed = {info.name: (4, 24) for info in network.inputs}
    outline = network.build_outline_for_input_sizes(fed)
    query = network.get_layer("/layers.0/attention/query/MatMul")
    hidden = network.shape(query.inputs[1])[0]
    assert outline.get_layer(query.name).macs == 24 * hidden * hidden  # a batch of 1
    assert outline.shape(query.outputs[0]) == (1, 24, hidden)
    assert all(layer.macs is not None for layer in outline.layers)
    assert network.build_outline_for_input_sizes({}).get_layer(query.name).macs is None


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_recurrent_layer_multiplies_its_inputs_and_its_state_at_each_step(operator, gates, opened) -> None:
    b = Builder()
    weights = [b.kernel("w", (2, gates * 8, 5), 5), b.kernel("r", (2, gates * 8, 8), 8)]
    b.node(operator, ["x", *weights], "/cell", output="y", hidden_size=8, direction="bidirectional")
    network = opened(b.model([floats("x", 7, 3, 5)], [floats("y", 7, 2, 3, 8)]))
    assert [layer.macs for layer in network.layers] == [7 * 3 * 2 * gates * 8 * (5 + 8)]


def test_constants_are_found_as_initializers_nodes_and_expressions(opened):
    b = Builder()
    stored = b.weight("stored", np.arange(6, dtype=np.float32).reshape(2, 3))
    node = b.node("Constant", [], name="constant", value=numpy_helper.from_array(np.float32([[1, -9, 2]]), "v"))
    added = b.node("Add", [stored, node], name="add")
    turned = b.node("Transpose", [added], name="turn", perm=[1, 0])
    b.node("MatMul", ["x", turned], name="matmul", output="y")
    network = opened(b.model([floats("x", 4, 3)], [floats("y", 4, 2)]))
    expected = (np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32([[1, -9, 2]])).T
    np.testing.assert_array_equal(network.constant_value(turned), expected)
    np.testing.assert_array_equal(network.constant_amax(turned, 1), np.abs(expected).max(0))
    assert network.constant_amax(turned) == 8 and network.constant_amax(turned).dtype == np.float32
    assert network.get_group("matmul").weight_qdq_sites()[0].tensor == turned


def test_infinite_masks_are_no_magnitude(opened):
    b = Builder()
    mask = b.weight("mask", np.array([[0, -np.inf, 3], [-np.inf, -np.inf, -np.inf]], np.float32))
    b.node("Add", ["x", mask], name="add", output="y")
    network = opened(b.model([floats("x", 2, 3)], [floats("y", 2, 3)]))
    assert network.constant_amax(mask) == 3
    np.testing.assert_array_equal(network.constant_amax(mask, 0), [3, 0])


@pytest.fixture
def expressions(tmp_path):
    """The file of a network with two weights that it computes, one by GatherElements."""
    b = Builder()
    table = b.weight("table", np.arange(12, dtype=np.float32)[None])
    picked = b.node("GatherElements", [table, b.weight("which", np.array([[3, 0, 7, 11]]))], name="pick", axis=1)
    turned = b.node("Transpose", [b.weight("square", np.float32([[1, 2, 3, 4]] * 4))], name="turn", perm=[1, 0])
    b.node("MatMul", [b.node("Add", ["x", picked], name="add"), turned], name="matmul", output="y")
    path = tmp_path / "model.onnx"
    onnx.save(b.model([floats("x", 4, 4)], [floats("y", 4, 4)]), path)
    return path, picked, turned


def test_constant_expressions_are_computed_by_what_runs_the_network_all_at_once(expressions, backend):
    path, picked, turned = expressions
    loads = []

    class Counting:
        def load(self, model, **options):
            loads.append(model)
            return backend.load(model, **options)

    network = open_network(path, Counting)
    assert not loads
    np.testing.assert_array_equal(network.constant_value(picked), [[3, 0, 7, 11]])
    np.testing.assert_array_equal(network.constant_value(turned)[2], [3, 3, 3, 3])
    assert len(loads) == 1


def test_one_expression_that_fails_leaves_the_others(opened):
    b = Builder()
    bad = b.node(
        "Reshape", [b.weight("six", np.ones(6, np.float32)), b.weight("to", np.array([4], np.int64))], name="reshape"
    )
    good = b.node("Neg", [b.weight("four", np.ones(4, np.float32))], name="neg")
    b.node("Add", [b.node("Add", ["x", bad], name="add"), good], name="more", output="y")
    network = opened(b.model([floats("x", 4)], [floats("y", 4)]))
    np.testing.assert_array_equal(network.constant_value(good), [-1] * 4)
    with pytest.raises(InputError, match="could not be computed"):
        network.constant_value(bad)


def test_expressions_without_anything_to_run_them_are_refused_by_name(expressions):
    path, picked, _ = expressions
    with refused(title=picked, cause="no backend is available"):
        open_network(path).constant_value(picked)

    def missing():
        raise BackendUnavailableError("ONNX Runtime is not installed", "no module", "pip install it")

    with pytest.raises(BackendUnavailableError) as raised:
        open_network(path, missing).constant_value(picked)
    assert picked in raised.value.title and "not installed" in raised.value.cause
    assert raised.value.next_step == "pip install it"


@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "bert", "light_squeezenet"])
def test_higher_opsets_have_the_same_nodes(name, named_network):
    network = named_network(name)
    before = list(network.model.graph.initializers)
    for opset in (19, 21, 22):
        model = network.convert_model_to_opset(opset)
        assert model.graph.opset_imports[""] == opset and network.convert_model_to_opset(opset) is model
        converted = {node.name: node.op_type for node in model.graph}
        for layer in network.layers:
            if layer.kind in (LayerKind.COMPUTE, LayerKind.COPY, LayerKind.OPAQUE):
                assert converted[layer.name] == layer.op_type
    assert network.convert_model_to_opset(7) is network.model
    assert list(network.model.graph.initializers) == before


def test_structure_hash_ignores_weights_and_sees_everything_else(opened):
    def digest(change=None, seed=0):
        model = networks.small_resnet(seed)
        if change:
            change(model.graph)
        return opened(model).structure_sha256

    def stride(graph):
        attr = next(a for n in graph.node if n.op_type == "Conv" for a in n.attribute if a.name == "strides")
        attr.ints[:] = [2, 2]

    def rename(graph):
        graph.node[0].name = "other"

    def batch(graph):
        graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4

    base = digest()
    assert digest(seed=5) == base
    assert len({base, digest(stride), digest(rename), digest(batch)}) == 4


def test_layer_digests_tell_what_differs(opened):
    model = networks.small_resnet()
    one = hash_layers(LayerGraph(ir.from_proto(model)))
    assert opened(model).layer_digests == {name: digest[:3] for name, digest in one.items()}
    conv = next(node for node in model.graph.node if node.name == "/layer1/conv1/Conv")
    next(a for a in conv.attribute if a.name == "pads").ints[:] = [2, 2, 0, 0]
    other = hash_layers(LayerGraph(ir.from_proto(model)))
    assert [name for name in one if one[name] != other[name]] == ["/layer1/conv1/Conv"]


def test_file_hash_covers_external_data(tmp_path):
    path = networks.save_with_external_data(tmp_path)
    before = open_network(path).sha256()
    content = path.read_bytes() + (tmp_path / "model.onnx.data").read_bytes()
    assert before == hash_files([path, tmp_path / "model.onnx.data"]) == hashlib.sha256(content).hexdigest()
    data = tmp_path / "model.onnx.data"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    assert open_network(path).sha256() != before


def test_outline_travels_between_processes(named_network):
    network = named_network("small_resnet")
    outline = pickle.loads(pickle.dumps(network.build_outline()))
    assert outline.structure_sha256 == network.structure_sha256
    assert outline.groups == network.groups and outline.layers == network.layers
    assert outline.find_group("/relu/Relu").name == "/conv1/Conv"
    assert len(pickle.dumps(outline)) < 100_000


def test_network_reports_its_ends(named_network):
    network = named_network("bert")
    assert [(info.name, info.dtype, info.shape) for info in network.inputs] == [
        ("input_ids", np.int64, ("batch", "sequence")),
        ("attention_mask", np.int64, ("batch", "sequence")),
    ]
    assert [info.name for info in network.outputs] == ["last_hidden_state", "logits"]
    assert named_network("half").inputs[0].dtype == np.float16


def test_a_quantized_file_names_the_groups_it_runs_in_int8(named_network):
    network = named_network("quantized")
    int8 = {group.name for group in network.groups if group.file_precision.nearest_precision is Precision.INT8}
    assert int8 == {"/conv1/Conv", "/conv2/Conv", "/conv3/Conv", "/fc/Gemm"}
    assert set(network.quantized_ranges) <= {t for layer in network.layers for t in layer.outputs} | {"image"}


def test_a_file_is_left_as_it_is(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(networks.opset7(), path)
    before = path.read_bytes()
    open_network(path).convert_model_to_opset(22)
    assert path.read_bytes() == before
