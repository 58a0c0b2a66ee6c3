import numpy as np
import onnx
import pytest
from onnx import helper

from tests.networks import LIGHT_NAMES, Builder, floats
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import LayerKind
from trt_tui.core.network.supported_precisions import (
    find_precision_refusal_reasons,
    find_qdq_sites,
    find_tensors_with_shared_range,
)
from trt_tui.core.precision import Precision

IMAGE = floats("x", 1, 4, 8, 8)
NAMES = (
    "small_resnet",
    "unet_small",
    "mlp",
    "bert",
    "vit",
    "decoder",
    "opset7",
    "half",
    "quantized",
    "with_if",
    "with_loop",
    "with_local_function",
    "with_sequence",
    "with_custom_operator",
    "demo",
    *(f"light_{name}" for name in LIGHT_NAMES if name in ("squeezenet", "shufflenet", "inception_v2")),
)


def layers_of(network):
    return [[network.get_layer(name).op_type for name in group.layers] for group in network.groups]


def finish(b, tensor, inputs=(IMAGE,), shape=(1, 4, 8, 8)):
    """The model whose output ``y`` is ``tensor``."""
    for node in b.nodes:
        for index, name in enumerate(node.output):
            if name == tensor:
                node.output[index] = "y"
        for index, name in enumerate(node.input):
            if name == tensor:
                node.input[index] = "y"
    return b.model(list(inputs), [floats("y", *shape)])


@pytest.mark.parametrize("name", NAMES)
def test_groups_partition_the_float_layers(name, named_network):
    network = named_network(name)
    grouped = [layer for group in network.groups for layer in group.layers]
    floats_ = [
        layer.name
        for layer in network.layers
        if layer.kind in (LayerKind.COMPUTE, LayerKind.COPY, LayerKind.OPAQUE)
        and any(network.is_fp32(output) for output in layer.outputs)
        or layer.op_type == "IsNaN"
    ]  # of a guard behind a Softmax
    assert sorted(grouped) == sorted(floats_) and len(set(grouped)) == len(grouped)
    for group in network.groups:
        produced = {output for layer in group.layers for output in network.get_layer(layer).outputs}
        assert group.final_tensor in produced and set(group.outputs) <= produced and not produced & set(group.inputs)
        assert group.name in group.layers and network.find_group(group.name) is group
        assert Precision.FP32 in group.allowed_precisions


def test_an_add_goes_to_its_later_conv_and_the_other_input_is_the_skip(named_network):
    network = named_network("small_resnet")
    group = network.get_group("/layer2/downsample.0/Conv")
    assert [network.get_layer(name).op_type for name in group.layers] == ["Conv", "BatchNormalization", "Add", "Relu"]
    skip = group.sites[-1]
    assert (skip.layer, skip.role) == ("/layer2/Add", "skip")
    assert network.producer[skip.tensor] == "/layer2/bn2/BatchNormalization"


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (1, 4, 8, 8)])
def test_a_skip_that_is_broadcast_carries_no_scale_of_its_own(shape, opened):
    b = Builder()
    x = b.node("Add", [b.conv("x", (4, 4), "/a"), "skip"], "/sum")
    network = opened(finish(b, x, [IMAGE, floats("skip", *shape)]))
    assert layers_of(network) == [["Conv", "Add"]]
    roles = [site.role for site in network.groups[0].sites]
    assert roles == ["input", "weight", *(["skip"] if shape[2] == 8 else [])]


@pytest.mark.parametrize(
    ("between", "has_skip"),
    [
        ([], True),
        ([("BatchNormalization", "shift", "shift", "shift", "shift")], True),
        ([("Mul", "scale")], True),
        ([("Relu",)], False),
        ([("Mul", "")], False),
        ([("Reshape", "shape"), ("Mul", "scale")], False),
    ],
)
def test_a_skip_has_a_scale_only_if_the_add_is_fused_with_the_conv(between, has_skip, opened):
    b = Builder()
    b.weight("scale", np.full((4, 1, 1), 2, np.float32))
    b.weight("shift", np.zeros(4, np.float32))
    b.weight("shape", np.array([1, 4, 8, 8]))
    x = b.conv("x", (4, 4), "/a")
    for operator, *inputs in between:
        x = b.node(operator, [x, *(name or x for name in inputs)], name=f"/{operator}")
    group = opened(finish(b, b.node("Add", [x, "skip"], name="/sum"), [IMAGE, floats("skip", 1, 4, 8, 8)])).groups[0]
    assert group.layers == ("/a/Conv", *(f"/{operator}" for operator, *_ in between), "/sum")
    assert [site.role for site in group.sites] == ["input", "weight", *(["skip"] if has_skip else [])]


def test_an_add_of_a_conv_and_what_comes_from_it_makes_no_cycle(opened):
    b = Builder()
    x = b.conv("x", (4, 4), "/a")
    pooled = b.node("GlobalAveragePool", [x], "/pool")
    network = opened(finish(b, b.node("Add", [x, pooled], "/sum")))
    assert layers_of(network) == [["Conv"], ["GlobalAveragePool"], ["Add"]]


def test_a_recurrent_layer_without_its_first_output_has_a_tail(opened):
    b = Builder()
    weights = [b.kernel("w", (1, 12, 4), 4), b.kernel("r", (1, 12, 4), 4)]
    b.nodes.append(helper.make_node("GRU", ["x", *weights], ["", "y"], name="gru", hidden_size=4))
    network = opened(b.model([floats("x", 3, 1, 4)], [floats("y", 1, 1, 4)]))
    assert [(group.name, group.final_tensor, group.outputs) for group in network.groups] == [("gru", "y", ("y",))]


@pytest.mark.parametrize(
    ("sides", "roles"),
    [(("x", "x"), ["input", "input"]), (("w", "x"), ["weight", "input"]), (("x", "w3"), ["input", "weight"])],
)
def test_every_matmul_can_be_quantized_and_odd_weights_per_tensor(sides, roles, opened):
    b = Builder()
    b.kernel("w", (8, 8), 8)
    b.kernel("w3", (3, 8, 8), 8)
    network = opened(finish(b, b.node("MatMul", list(sides), "/a"), [floats("x", 3, 8, 8)], (3, 8, 8)))
    sites, reason = find_qdq_sites(network.graph, network.layers[0], None, "MatMul")
    assert (sites, reason) == (network.groups[0].sites, "")
    assert [site.role for site in sites] == roles and {site.axis for site in sites} == {None}


def test_a_conv_with_a_computed_kernel_quantizes_both_inputs(opened):
    b = Builder()
    b.node("Conv", ["x", "k"], "/a", output="y")
    network = opened(b.model([IMAGE, floats("k", 5, 4, 3, 3)], [floats("y", 1, 5, 6, 6)]))
    assert [site.role for site in network.groups[0].sites] == ["input", "input"]


@pytest.mark.parametrize("operator", ["Softmax", "Sigmoid", "MaxPool", "GlobalAveragePool"])
def test_other_operators_say_that_tensorrt_does_not_quantize_them(operator, opened):
    b = Builder()
    attributes = {"kernel_shape": [1, 1]} if operator == "MaxPool" else {}
    shape = (1, 4, 1, 1) if operator == "GlobalAveragePool" else (1, 4, 8, 8)
    group = opened(finish(b, b.node(operator, ["x"], "/a", **attributes), shape=shape)).groups[0]
    assert not group.is_quantizable and not group.sites
    assert operator in group.refusal_reasons[Precision.INT8] and Precision.FP16 in group.allowed_precisions


def refusals_of(opened, operator, inputs=("x",), outputs=("y",), opset=22, **attributes):
    b = Builder(opset=opset)
    b.weight("k", np.array([2], np.int64))
    b.weight("low", np.zeros((), np.float32))
    b.nodes.append(helper.make_node(operator, list(inputs), list(outputs), name="one", **attributes))
    declared = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs[:1]]
    network = opened(b.model([floats("x", 1, 4, 8, 8)], declared, ir_version=10))
    layer = network.get_layer("one")
    return find_precision_refusal_reasons(network.graph, [layer], layer, (), "no INT8")


@pytest.mark.parametrize(
    ("operator", "options", "precision", "says"),
    [
        ("TopK", {"inputs": ("x", "k"), "outputs": ("y", "i")}, Precision.FP16, "selects by order"),
        ("HardSwish", {}, Precision.BF16, "TensorRT has no BF16 HardSwish"),
        ("Mish", {}, Precision.BF16, "TensorRT has no BF16 Mish"),
        ("Celu", {}, Precision.FP16, "TensorRT has no FP16 Celu"),
        ("ConstantOfShape", {"inputs": ("shape",)}, Precision.FP16, "cannot have the type"),
        ("RandomNormalLike", {"dtype": 1}, Precision.FP16, "cannot have the type"),
    ],
)
def test_what_has_no_16_bit_form_says_why(operator, options, precision, says, opened):
    if operator == "ConstantOfShape":
        b = Builder()
        b.node(operator, ["shape"], "/fill", output="y")
        shape = helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [2])
        refusals = opened(b.model([shape], [floats("y", "a", "b")])).groups[0].refusal_reasons
    else:
        refusals = refusals_of(opened, operator, **options)
    assert says in refusals[precision]


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul"])
def test_a_scatter_that_reduces_stays_fp32_and_its_fp16_network_runs(operator, reduction, opened, backend):
    b = Builder()
    rows = np.array([[0], [3]]) if operator == "ScatterND" else np.full((2, 4), 3)
    attributes = {} if reduction == "none" else {"reduction": reduction}
    table = b.node("Mul", ["x", "x"], "/square")
    b.node(
        operator,
        [table, b.weight("rows", rows), b.weight("new", np.full((2, 4), 0.1, np.float32))],
        "/put",
        output="y",
        **attributes,
    )
    network = opened(b.model([floats("x", 4, 4)], [floats("y", 4, 4)]))
    group = network.get_group(network.producer["y"])
    assert (
        (Precision.FP16 in group.allowed_precisions)
        == (Precision.BF16 in group.allowed_precisions)
        == (reduction == "none")
    )
    x = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)
    with backend.load(
        lower_to_typed_network(network, PrecisionConfig.from_precision(Precision.FP16), {}).model
    ) as typed:
        got = typed.run({"x": x})["y"]
    with backend.load(network.model) as plain:
        np.testing.assert_allclose(got, plain.run({"x": x})["y"], rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("operator", ["HardSwish", "Mish"])
def test_what_has_fp16_only_keeps_it(operator, opened):
    refusals = refusals_of(opened, operator)
    assert Precision.FP16 not in refusals and Precision.BF16 in refusals


@pytest.mark.parametrize(("peepholes", "refused"), [(False, False), (True, True)])
def test_a_lstm_with_peepholes_stays_fp32(peepholes, refused, opened):
    b = Builder()
    inputs = ["x", b.kernel("w", (1, 16, 4), 4), b.kernel("r", (1, 16, 4), 4)]
    if peepholes:
        inputs += ["", "", "", "", b.kernel("p", (1, 12), 4)]
    b.nodes.append(helper.make_node("LSTM", inputs, ["", "y"], name="lstm", hidden_size=4))
    network = opened(b.model([floats("x", 3, 1, 4)], [floats("y", 1, 1, 4)]))
    assert (Precision.FP16 in network.groups[0].refusal_reasons) is refused


def test_concats_share_ranges_transitively_and_through_copies(opened):
    b = Builder()
    one, two, three = (b.conv("x", (4, 4), f"/{name}") for name in "abc")
    first = b.node("Concat", [one, two], "/cat1", axis=1)
    moved = b.node("Transpose", [first], "/move", perm=[0, 1, 3, 2])
    second = b.node("Concat", [moved, three], "/cat2", axis=1)
    x = b.conv(second, (12, 4), "/d")
    x = b.conv(x, (4, 4), "/e")
    network = opened(finish(b, x))
    joined = find_tensors_with_shared_range(network.graph)
    assert set(joined) == {one, two, three, first, moved, second}
    assert len(set(joined.values())) == 1
    assert set(joined[one]) == set(joined)


def test_without_a_concat_nothing_is_shared(named_network):
    assert named_network("small_resnet").tensors_with_shared_range == {}
