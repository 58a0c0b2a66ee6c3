"""Typed networks: their scales, arithmetic and types, and that TensorRT-RTX takes them as strongly typed ones."""

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests import lowered, networks, rtx
from tests.lowered import fake_quantized, run
from tests.networks import Builder, floats
from tests.refusals import refused
from tests.texts import lacking
from trt_tui.core.calibration.calibration import RangeTable, override_ranges, ranges_comparison_key
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.network_rewrite import EditedConstants, rewrite_network_for_config
from trt_tui.core.lowering.typed_network import lower_rewritten_network, lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig, PrecisionMove, RangeMove
from trt_tui.core.precision import Precision

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
FP16_SUMS = Precision.FP16_ACC_FP32
SMALL = ("mlp", "small_resnet", "unet_small", "with_if", "with_loop", "with_local_function", "opset7", "quantized")
STEPS = ("Cast", "QuantizeLinear", "DequantizeLinear")
IMAGE = floats("x", 1, 4, 8, 8)


def ranges(network, amax=4.0):
    return dict.fromkeys(network.calibrated_tensors, amax)


def lower(network, quantized=INT8, other=FP16, **options):
    chosen = {name: PrecisionMove(precision) for name, precision in options.pop("groups", {}).items()}
    config = PrecisionConfig(quantized, other).with_moves(chosen).with_moves(options.pop("overrides", {}))
    return lower_to_typed_network(network, config, options.pop("ranges", None) or ranges(network), **options)


def by_name(model):
    return {node.name: node for node in model.graph}


def producers(model):
    """Output name to node."""
    return {output.name: node for node in model.graph for output in node.outputs}


def behind(model, layer, index):
    """Operators on the way up from an input of a layer, as long as they are Casts, Q or DQ; and the tensor above."""
    value, path = by_name(model)[layer].inputs[index], []
    while value.producer() is not None and value.producer().op_type in STEPS:
        path.append(value.producer().op_type)
        value = value.producer().inputs[0]
    return path, value.name


def scale_of(model, layer, index):
    """The scale and the axis of the DQ behind an input."""
    node = by_name(model)[layer].inputs[index].producer()
    while node.op_type != "DequantizeLinear":
        node = node.inputs[0].producer()
    axis = node.attributes.get("axis")
    return node.inputs[1].const_value, None if axis is None else axis.as_int()


def quantized_tensors(model):
    return {node.inputs[0].name for node in model.graph if node.op_type == "QuantizeLinear"}


def check(model):
    """The model passes onnx's checker, and no operator's inputs of one type parameter differ in type."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    for value in (*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info):
        types[value.name] = value.type.tensor_type.elem_type
    opset = next(one.version for one in proto.opset_import if one.domain == "")
    for node in proto.graph.node:
        if node.domain == "trt":
            continue  # onnx knows no such operator
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        bound = {}
        for formals, actuals in ((schema.inputs, node.input), (schema.outputs, node.output)):
            for index, name in enumerate(actuals):
                parameter = formals[min(index, len(formals) - 1)]
                if name in types and not parameter.type_str.startswith("tensor(") and parameter.is_homogeneous:
                    first = bound.setdefault(parameter.type_str, (name, types[name]))
                    assert first[1] == types[name], f"{node.name}: {first[0]} and {name} differ in type"


def two_convs():
    """Conv, Relu, Conv: ``x`` to ``y``, both (1, 4, 8, 8)."""
    b = Builder()
    x = b.node("Relu", [b.conv("x", (4, 4), "/a", bias=True)], "/act")
    b.conv(x, (4, 4), "/b")
    b.nodes[-1].output[0] = "y"
    return b.model([IMAGE], [floats("y", 1, 4, 8, 8)])


def weights_of(model):
    return {value.name: value.const_value for value in model.graph.initializers.values()}


@pytest.mark.parametrize("name", [*SMALL, "bert_block", "vit_block", "decoder", "half"])
def test_all_fp32_is_the_identity(name, named_network, backend):
    network = named_network(name)
    typed = lower(network, FP32, FP32)
    assert [(n.name, n.op_type) for n in typed.model.graph] == [(n.name, n.op_type) for n in network.model.graph]
    for made, base in zip(typed.model.graph, network.model.graph, strict=True):
        assert [v and v.name for v in made.inputs] == [v and v.name for v in base.inputs]
        assert [v.name for v in made.outputs] == [v.name for v in base.outputs]
    assert {**weights_of(typed.model)} == {**weights_of(network.model)}
    assert not typed.refused_layers and not typed.notes
    feeds = networks.feeds(ir.to_proto(network.model), 1, n=2, sequence=12)
    for one, other in zip(
        run(backend, network.model, feeds).values(), run(backend, typed.model, feeds).values(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    ("quantized", "other"), [(FP16, FP16), (FP16_SUMS, FP16), (INT8, FP16), (INT8, FP32), (BF16, BF16), (INT8, BF16)]
)
def test_every_uniform_config_is_valid_and_near_fp32(name, quantized, other, named_network, backend):
    network = named_network(name)
    feeds = networks.feeds(ir.to_proto(network.model), 1, n=2)
    values = lowered.inner_values(backend, network, feeds)
    amax = {name: float(np.abs(values[name]).max()) for name in network.calibrated_tensors}
    typed = lower(network, quantized, other, ranges=amax)
    check(typed.model)
    ends, base = (
        [(v.name, v.dtype, str(v.shape)) for v in (*model.graph.inputs, *model.graph.outputs)]
        for model in (typed.model, network.model)
    )
    assert ends == base
    if BF16 in (quantized, other):
        return  # ONNX Runtime's CPU provider has no BF16 Conv or MatMul
    for key, got in run(backend, typed.model, feeds).items():
        expected = values[key].astype(np.float64)
        noise = np.mean((got - expected) ** 2) / np.mean(expected**2)
        assert got.dtype == values[key].dtype and noise < (1e-2 if quantized is INT8 else 1e-5), key


@pytest.mark.parametrize(
    ("quantized", "other", "groups", "opset"),
    [
        (FP32, FP32, {}, 17),
        (INT8, FP32, {}, 17),
        (FP16, FP16, {}, 19),
        (INT8, FP16, {}, 19),
        (BF16, BF16, {}, 22),
        (INT8, BF16, {}, 22),
        (FP32, FP32, {"/fc2/MatMul": FP16}, 19),
        (FP16, FP16, {"/fc2/MatMul": BF16}, 22),
    ],
)
def test_opset_is_the_lowest_that_holds_the_types(quantized, other, groups, opset, named_network):
    typed = lower(named_network("mlp"), quantized, other, groups=groups)
    assert typed.model.graph.opset_imports[""] == opset
    assert typed.model.ir_version == {17: 8, 19: 9, 22: 10}[opset]
    if quantized is other is FP32:
        assert lower(named_network("vit"), FP32, FP32).model.graph.opset_imports[""] == 20, "the network's own is newer"


@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "bert_block"])
def test_weights_are_the_networks_own(name, named_network):
    network = named_network(name)
    for other in (FP32, FP16, BF16):
        lowered = weights_of(lower(network, other=other).model)
        for tensor, value in weights_of(network.model).items():
            if value.nbytes > 1024:
                assert lowered[tensor] is value or lowered[tensor].numpy() is value.numpy()


def test_lowering_leaves_the_network_as_it_was(named_network):
    network = named_network("unet_small")
    before = ir.to_proto(network.model).SerializeToString(deterministic=True)
    first = ir.to_proto(lower(network, FP32, FP32).model).SerializeToString(deterministic=True)
    for quantized, other in ((FP16, FP16), (INT8, BF16), (BF16, BF16), (INT8, FP16)):
        lower(network, quantized, other)
    assert ir.to_proto(network.model).SerializeToString(deterministic=True) == before
    assert ir.to_proto(lower(network, FP32, FP32).model).SerializeToString(deterministic=True) == first


@pytest.mark.parametrize("name", ["unet_small", "bert_block"])
def test_the_same_config_gives_the_same_bytes(name, named_network, opened):
    network = named_network(name)
    again = opened(getattr(networks, name)())
    for other in (FP32, FP16, BF16):
        one, two = (ir.to_proto(lower(n, other=other).model) for n in (network, again))
        one.graph.name = two.graph.name
        assert one.SerializeToString() == two.SerializeToString()


@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "bert_block", "vit_block"])
def test_q_dq_stand_in_front_of_the_sites_of_groups_and_nowhere_else(name, named_network):
    """So none on biases, norms, activations or what moves values; a residual Add has them on its skip alone."""
    network = named_network(name)
    model = lower(network).model
    read = {
        (node.name, index): behind(model, node.name, index)
        for node in model.graph
        if node.op_type not in STEPS
        for index, value in enumerate(node.inputs)
        if value is not None
    }
    assert {(*place, tensor) for place, (path, tensor) in read.items() if "DequantizeLinear" in path} == {
        (site.layer, site.index, site.tensor) for group in network.groups for site in group.sites
    }


@pytest.mark.parametrize(
    ("operator", "trans_b", "axis", "over"),
    [
        ("Conv", 0, 0, (1, 2, 3)),
        ("ConvTranspose", 0, 1, (0, 2, 3)),
        ("MatMul", 0, 1, (0,)),
        ("Gemm", 0, 1, (0,)),
        ("Gemm", 1, 0, (1,)),
    ],
)
def test_weight_scales_follow_the_output_channel(operator, trans_b, axis, over, opened):
    b = Builder()
    attributes = {}
    if operator in ("Conv", "ConvTranspose"):
        x, shape = IMAGE, (4, 4, 3, 3)
    else:
        x, shape, attributes = floats("x", 2, 4), (4, 4), {"transB": trans_b} if operator == "Gemm" else {}
    weight = b.rng.standard_normal(shape).astype(np.float32)
    b.node(operator, ["x", b.weight("w", weight)], "/a", output="y", **attributes)
    network = opened(b.model([x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]))
    scale, held_axis = scale_of(lower(network, other=FP32).model, f"/a/{operator}", 1)
    assert held_axis == axis
    np.testing.assert_allclose(scale.numpy(), np.abs(weight).max(over) / 127, rtol=1e-6)
    scale, held_axis = scale_of(lower(network, other=FP32).model, f"/a/{operator}", 0)
    assert held_axis is None and scale.shape.rank() == 0 and scale.numpy() == np.float32(4 / 127)


def test_concat_inputs_and_output_share_one_scale(named_network):
    network = named_network("unet_small")
    amax = {tensor: float(index + 1) for index, tensor in enumerate(network.calibrated_tensors)}
    model = lower(network, other=FP32, ranges=amax).model
    scales = {}
    for node in model.graph:
        if node.op_type == "QuantizeLinear" and node.inputs[0].name in network.tensors_with_shared_range:
            step = float(node.inputs[1].const_value.numpy())
            scales.setdefault(network.tensors_with_shared_range[node.inputs[0].name], set()).add(step)
    assert scales and all(len(values) == 1 for values in scales.values())
    concat = by_name(model)["/cat.0/Concat"]
    members = network.tensors_with_shared_range[concat.outputs[0].name]
    assert {v.name for v in concat.inputs} <= set(members)
    largest = max(amax[tensor] for tensor in members if tensor in amax)
    assert scales[members] == {float(np.float32(largest) / np.float32(127))}


def test_one_tensor_on_both_sides_of_a_matmul(opened, backend):
    b = Builder()
    b.node("MatMul", ["x", "x"], "/a", output="y")
    network = opened(b.model([floats("x", 4, 4)], [floats("y", 4, 4)]))
    model = lower(network, other=FP32).model
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph) == 1
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    once = fake_quantized(x, np.float32(4) / np.float32(127))
    np.testing.assert_allclose(run(backend, model, {"x": x})["y"], once @ once, rtol=1e-5, atol=1e-5)


def test_int8_is_the_arithmetic_of_codes_times_scales(named_network, backend):
    network = named_network("mlp")
    amax = {tensor: 3.0 + index for index, tensor in enumerate(network.calibrated_tensors)}
    x = networks.feeds(networks.mlp(), 2, n=5)["x"]

    def quantized(array, axis=None, limit=None):
        limit = np.abs(array).max(axis, keepdims=axis is not None) if limit is None else limit
        return fake_quantized(array, np.asarray(limit, np.float32) / np.float32(127))

    w = {name: network.constant_value(name) for name in network.constant_tensors}
    h = np.maximum(quantized(x, limit=amax["x"]) @ quantized(w["fc1.weight"], 1).T + w["fc1.bias"], 0)
    read = [site.tensor for group in network.groups for site in group.activation_qdq_sites()]
    h = np.maximum(quantized(h, limit=amax[read[1]]) @ quantized(w["fc2.weight"], 0) + w["fc2.bias"], 0)
    h = quantized(h, limit=amax[read[2]]) @ quantized(w["fc3.weight"], 1).T + w["fc3.bias"]
    model = lower(network, other=FP32, ranges=amax).model
    np.testing.assert_allclose(run(backend, model, {"x": x})["y"], h, rtol=1e-4, atol=1e-4)


def test_missing_range_names_the_tensor(named_network):
    network = named_network("mlp")
    have = ranges(network)
    gone = network.calibrated_tensors[1]
    del have[gone]
    with refused("no range", title=gone):
        lower(network, ranges=have)
    lower(network, FP16, FP16, ranges=have)


@pytest.mark.parametrize(
    ("other", "held"), [(FP16, ir.DataType.FLOAT16), (FP32, ir.DataType.FLOAT), (BF16, ir.DataType.FLOAT)]
)
def test_scales_have_the_surrounding_type_where_it_can_hold_them(other, held, named_network):
    model = lower(named_network("unet_small"), other=other).model
    check(model)
    scales = [n.inputs[1].const_value.dtype for n in model.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert scales and set(scales) == {held}
    zeros = [node.inputs[2].const_value for node in model.graph if node.op_type in STEPS[1:]]
    assert all(zero.dtype == ir.DataType.INT8 and not zero.numpy().any() for zero in zeros)


def test_without_casts_every_tensor_stays_fp32_and_masks_are_clamped(named_network, backend):
    network = named_network("bert")
    config = PrecisionConfig(INT8, FP16)
    typed = lower_rewritten_network(
        rewrite_network_for_config(network, config), config, ranges(network), with_casts=False
    )
    check(typed.model)
    assert typed.model.graph.opset_imports[""] == 17
    assert not any(
        node.op_type == "Cast" and node.name not in {layer.name for layer in network.layers}
        for node in typed.model.graph
    )
    assert any(node.op_type == "QuantizeLinear" for node in typed.model.graph)
    assert any("clamped" in note for note in typed.notes)
    assert all(value.dtype != ir.DataType.FLOAT16 for node in typed.model.graph for value in node.outputs)
    feeds = networks.feeds(ir.to_proto(network.model), 1)
    for value in run(backend, typed.model, feeds).values():
        assert np.isfinite(value).all()


def test_an_fp32_island_casts_each_float_input_and_loses_its_q_dq(opened, backend):
    network = opened(two_convs())
    typed = lower(network, groups={"/b/Conv": FP32})
    model, conv = typed.model, by_name(typed.model)["/b/Conv"]
    assert behind(model, "/b/Conv", 0) == (["Cast"], "/act/Relu_output_0")
    assert conv.inputs[0].dtype == ir.DataType.FLOAT
    assert conv.inputs[1] is model.graph.initializers["b.weight"]
    assert quantized_tensors(model).isdisjoint({"b.weight", "/act/Relu_output_0"})
    check(model)
    run(backend, model, networks.feeds(two_convs()))


def test_a_q_dq_that_others_share_survives_an_island(opened):
    b = Builder()
    b.weight("w", b.rng.standard_normal((4, 4)).astype(np.float32))
    for name in "ab":
        b.node("MatMul", ["x", "w"], f"/{name}", output=name)
    network = opened(b.model([floats("x", 2, 4)], [floats("a", 2, 4), floats("b", 2, 4)]))
    whole = lower(network, other=FP32).model
    assert quantized_tensors(whole) == {"x", "w"}
    assert by_name(whole)["/a/MatMul"].inputs[0] is by_name(whole)["/b/MatMul"].inputs[0]
    model = lower(network, other=FP32, groups={"/b/MatMul": FP32}).model
    assert quantized_tensors(model) == {"x", "w"}
    assert [v.name for v in by_name(model)["/b/MatMul"].inputs] == ["x", "w"]
    none = lower(network, other=FP32, groups={"/a/MatMul": FP32, "/b/MatMul": FP32}).model
    assert not quantized_tensors(none)


def test_one_island_casts_a_shared_input_once(opened):
    b = Builder()
    x = b.node("Relu", ["x"], "/first")
    for name in "ab":
        b.node("Sigmoid", [x], f"/{name}", output=name)
    network = opened(b.model([floats("x", 2)], [floats("a", 2), floats("b", 2)]))
    model = lower(network, groups={"/a/Sigmoid": FP32, "/b/Sigmoid": FP32}).model
    nodes = by_name(model)
    assert nodes["/a/Sigmoid"].inputs[0] is nodes["/b/Sigmoid"].inputs[0]


def test_output_that_is_read_inside_too(opened, backend):
    b = Builder()
    b.node("Relu", [b.conv("x", (4, 4), "/a")], "/act", output="mid")
    b.conv("mid", (4, 4), "/b")
    b.nodes[-1].output[0] = "y"
    network = opened(b.model([IMAGE], [floats("mid", 1, 4, 8, 8), floats("y", 1, 4, 8, 8)]))
    for quantized in (FP16, INT8):
        model = lower(network, quantized, FP16).model
        check(model)
        got = run(backend, model, {"x": np.ones((1, 4, 8, 8), np.float32)})
        assert list(got) == ["mid", "y"] and got["mid"].dtype == np.float32
        assert by_name(model)["/b/Conv"].inputs[0].dtype == ir.DataType.FLOAT16


def test_foreign_operators_get_fp32(named_network):
    model = lower(named_network("with_custom_operator"), FP16, FP16).model
    sparkle = by_name(model)["/custom/Sparkle"]
    assert sparkle.inputs[0].dtype == ir.DataType.FLOAT and sparkle.inputs[0].producer().op_type == "Cast"


def test_subgraphs_and_those_in_them_get_fp32(opened, backend):
    inner = [
        helper.make_graph([helper.make_node(op, ["t", "t"], [f"{op}_out"])], op, [], [floats(f"{op}_out", 2)])
        for op in ("Add", "Mul")
    ]
    same = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["again"]),
            helper.make_node("If", ["again"], ["nested"], name="nested", then_branch=inner[0], else_branch=inner[1]),
        ],
        "outer",
        [],
        [floats("nested", 2)],
    )
    plain = helper.make_graph([helper.make_node("Identity", ["t"], ["plain"])], "plain", [], [floats("plain", 2)])
    b = Builder()
    b.node("Sigmoid", ["x"], "/first", output="t")
    b.node("If", ["go"], "/switch", output="y", then_branch=same, else_branch=plain)
    go = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    network = opened(b.model([floats("x", 2), go], [floats("y", 2)]))
    model = lower(network, FP16, FP16).model
    x = np.array([0.5, -1], np.float32)
    got = run(backend, model, {"x": x, "go": np.array(True)})["y"]
    np.testing.assert_allclose(got, 2 / (1 + np.exp(-x)), atol=2e-3)


def test_inputs_that_must_stay_fp32_do(named_network, opened):
    model = lower(named_network("unet_small"), FP16, FP16).model
    resize = by_name(model)["/up.1/Resize"]
    assert resize.inputs[0].dtype == ir.DataType.FLOAT16 and resize.inputs[2].name == "up.1.scales"
    b = Builder()
    x = b.node("Sigmoid", ["x"], "/first")
    b.nodes.append(helper.make_node("TopK", [x, b.weight("k", np.array([2], np.int64))], ["y", "i"], name="top"))
    network = opened(b.model([floats("x", 1, 4)], [floats("y", 1, 2)]))
    model = lower(network, FP16, FP16).model
    assert by_name(model)["top"].inputs[0].dtype == ir.DataType.FLOAT
    check(model)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Pow", [np.float32(2)], {}),
        ("Clip", [np.float32(0), np.float32(6)], {}),
        ("Clip", [None, np.float32(6)], {}),
        ("Pad", [np.array([0, 1], np.int64), np.float32(3)], {}),
        ("Where", None, {}),
        ("PRelu", [np.float32([0.1])], {}),
        ("Max", [np.float32(1)], {}),
        ("Gemm", [np.ones((4, 4), np.float32), np.ones(4, np.float32)], {}),
        ("LayerNormalization", [np.ones(4, np.float32), np.zeros(4, np.float32)], {}),
        ("InstanceNormalization", [np.ones(3, np.float32), np.zeros(3, np.float32)], {}),
        ("Tile", [np.array([1, 2, 1], np.int64)], {}),
        ("CumSum", [np.array(1, np.int64)], {}),
        ("Softmax", [], {}),
        ("Einsum", [np.ones((4, 4), np.float32)], {"equation": "bij,jk->bik"}),
        ("ReduceMean", [], {"axes": [1]}),
    ],
)
@pytest.mark.parametrize("other", [FP16, BF16])
def test_operators_with_constants_beside_their_input(operator, inputs, attributes, other, opened, backend):
    b = Builder()
    shape = (2, 4) if operator == "Gemm" else (1, 4) if operator == "Pad" else (2, 3, 4)
    if operator == "Pad":
        inputs = [np.array([0, 1, 0, 1], np.int64), np.float32(3)]
    names = ["x", *("" if value is None else b.weight(f"c{i}", value) for i, value in enumerate(inputs or []))]
    if operator == "Where":
        names = [b.node("Greater", ["x", b.weight("zero", np.float32(0))], "/g"), "x", "zero"]
    b.node(operator, names, "/one", output="y", **attributes)
    network = opened(b.model([floats("x", *shape)], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]))
    model = lower(network, other, other).model
    check(model)
    node = by_name(model)[f"/one/{operator}"]
    assert (
        node.outputs[0].dtype is {FP16: ir.DataType.FLOAT16, BF16: ir.DataType.BFLOAT16}[other]
        or other not in network.groups[0].allowed_precisions
    )
    x = np.random.default_rng(0).uniform(0.1, 1, shape).astype(np.float32)
    if other is FP16:
        got, expected = (run(backend, m, {"x": x})["y"] for m in (model, network.model))
        np.testing.assert_allclose(got, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(("operator", "opset"), [("RMSNormalization", 23), ("Attention", 23), ("Swish", 24)])
def test_operators_of_newer_opsets_are_typed_throughout(operator, opset, opened):
    b = Builder(opset=opset)
    inputs, attributes = {
        "RMSNormalization": (["x", b.vector("g", 8, 1.0)], {}),
        "Swish": (["x"], {}),
        "Attention": (
            ["x", "x", "x", b.weight("mask", np.zeros((4, 4), np.float32))],
            {"q_num_heads": 2, "kv_num_heads": 2},
        ),
    }[operator]
    b.node(operator, inputs, "/a", output="y", **attributes)
    network = opened(b.model([floats("x", 1, 4, 8)], [floats("y", 1, 4, 8)], ir_version=11))
    model = lower(network, FP16, FP16).model
    check(model)
    assert {v.dtype for v in by_name(model)[f"/a/{operator}"].inputs} == {ir.DataType.FLOAT16}
    assert model.graph.opset_imports[""] == opset


def test_group_that_lacks_the_surrounding_type_stands_in_fp32(named_network):
    network = named_network("unet_small")
    group = network.get_group("/up.0/ConvTranspose")
    assert BF16 not in group.allowed_precisions and group.is_quantizable
    model = lower(network, other=BF16).model
    check(model)
    node = by_name(model)["/up.0/ConvTranspose"]
    assert {v.dtype for v in (*node.inputs, *node.outputs)} == {ir.DataType.FLOAT}
    assert "QuantizeLinear" in behind(model, "/up.0/ConvTranspose", 0)[0]


def test_a_mask_beyond_fp16_is_clamped_and_said(opened, backend):
    b = Builder()
    mask = b.weight("mask", np.array([[0, -3.4e38], [-3.4e38, 0]], np.float32))
    b.node("Softmax", [b.node("Add", ["x", mask], "/masked")], "/soft", output="y")
    network = opened(b.model([floats("x", 2, 2)], [floats("y", 2, 2)]))
    typed = lower(network, FP16, FP16)
    (note,) = typed.notes
    assert not lacking(note, "Constant mask", "±32752")
    x = np.ones((2, 2), np.float32)
    np.testing.assert_allclose(run(backend, typed.model, {"x": x})["y"], np.eye(2), atol=1e-6)
    reference = ReferenceEvaluator(ir.to_proto(typed.model)).run(None, {"x": x})[0]
    assert np.isfinite(reference).all()
    typed = lower(network, FP32, FP32)
    assert not typed.notes and not any(node.op_type == "Clip" for node in typed.model.graph)
    typed = lower(network, BF16, BF16)  # -3.4e38 is -Inf in BF16 too
    assert len(typed.notes) == 1 and "BF16" in typed.notes[0]
    assert np.isfinite(ReferenceEvaluator(ir.to_proto(typed.model)).run(None, {"x": x})[0].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("between", "operator", "constant", "mask"),
    [
        ("MatMul", "Mul", 1.2e5, False),
        ("MatMul", "Add", 1.2e5, False),
        ("MatMul", "Mul", -1.2e5, True),
        ("Sub", "Mul", 1.2e5, True),
        ("MatMul", "Min", 1.2e5, True),
    ],
)
def test_what_scales_or_shifts_an_activation_is_no_mask(between, operator, constant, mask, opened):
    b = Builder()
    inner = b.node(between, ["x", b.weight("other", np.ones((2, 2), np.float32))], "/inner")
    b.node(operator, [b.node("Relu", [inner], "/relu"), b.weight("c", np.float32(constant))], "/last", output="y")
    network = opened(b.model([floats("x", 2, 2)], [floats("y", 2, 2)]))
    assert network.is_mask("c") is mask and ("y" in network.masked_tensors) is mask
    assert bool(lower(network, FP16, FP16).notes) is mask


@pytest.mark.parametrize("held", [-1e30, -3.3895314e38])
def test_a_mask_that_bf16_holds_is_not_clamped(held, opened):
    b = Builder()
    mask = b.weight("mask", np.array([[0, held], [held, 0]], np.float32))
    b.node("Add", ["x", mask], "/masked", output="y")
    network = opened(b.model([floats("x", 2, 2)], [floats("y", 2, 2)]))
    assert not lower(network, BF16, BF16).notes and lower(network, FP16, FP16).notes


def test_the_map_says_what_became_of_each_layer(named_network):
    network = named_network("small_resnet")
    typed = lower(network, groups={"/layer1/conv1/Conv": FP32, "/avgpool/GlobalAveragePool": INT8})
    assert set(typed.layer_changes) == {layer.name for layer in network.layers}
    changes = {
        "/conv1/Conv": ("INT8: ", "input 0 (input)", "input 1 (weight)"),
        "/bn1/BatchNormalization": ("FP16, fused",),
        "/layer1/Add": ("INT8: ", "(skip)"),
    }
    for name, (start, *inputs) in changes.items():
        assert typed.layer_changes[name].startswith(start) and not lacking(typed.layer_changes[name], *inputs)
    assert typed.layer_changes["/layer1/relu1/Relu"] == "FP32"
    assert set(typed.refused_layers) == {"/avgpool/GlobalAveragePool", "/Flatten"}
    assert "GlobalAveragePool" in typed.refused_layers["/avgpool/GlobalAveragePool"]


def test_what_is_kept_whole_is_left_alone_with_its_reason(named_network):
    typed = lower(named_network("with_loop"), FP16, FP16)
    assert "subgraph" in typed.refused_layers["/loop/Loop"]
    assert typed.layer_changes["/loop/Loop"] == "FP32" and "/before/Gemm" not in typed.refused_layers


@pytest.mark.parametrize("name", ["mlp", "small_resnet", "unet_small", "with_if", "quantized"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_assignment_is_valid_and_runs(name, named_network, backend, data):
    network = named_network(name)
    config = PrecisionConfig(INT8, data.draw(st.sampled_from([FP16, BF16, FP32])))
    kept = frozenset() if data.draw(st.booleans()) or config.other is BF16 else {BF16}
    for group in network.groups:
        config = config.with_group_precision(
            [group], data.draw(st.sampled_from(sorted(group.allowed_precisions - kept)))
        )
    assignment = config.precision_by_group(network)
    typed = lower_rewritten_network(
        rewrite_network_for_config(network, config), config, ranges(network), with_casts=data.draw(st.booleans())
    )
    check(typed.model)
    for group in network.groups:
        assert typed.layer_changes[group.name].split()[0].rstrip(":,") == assignment[group.name].label
    if not any(
        value.dtype == ir.DataType.BFLOAT16 or node.domain == "trt"
        for node in typed.model.graph
        for value in node.outputs
    ):  # ONNX Runtime's CPU provider has neither
        for value in run(backend, typed.model, networks.feeds(ir.to_proto(network.model), 1)).values():
            assert np.isfinite(value).all()


FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
NETWORKS = (
    "demo",
    "light_resnet50:r66",
    "light_densenet121:r135",
    "light_squeezenet",
    "light_shufflenet:r88",
    "light_inception_v1",
    "bert_block",
    "vit_block",
)
"""Of those whose blocks repeat, the first of each kind, up to a tensor."""


def _third_in_fp32(network):
    groups = random.Random(1).sample(network.groups, len(network.groups) // 3)
    return PrecisionConfig(INT8, FP16).with_group_precision(groups, FP32)


def _anything(network):
    drawn = random.Random(2)
    config = PrecisionConfig(INT8, FP16)
    for group in network.groups:
        config = config.with_group_precision([group], drawn.choice(sorted(group.allowed_precisions - {BF16})))
    return config


CONFIGS = {
    "all FP32": lambda network: PrecisionConfig.from_precision(FP32),
    "all FP16": lambda network: PrecisionConfig.from_precision(FP16),
    "all INT8": lambda network: PrecisionConfig.from_precision(INT8, FP16),
    "all BF16": lambda network: PrecisionConfig.from_precision(BF16),
    "INT8, others FP32": lambda network: PrecisionConfig.from_precision(INT8, FP32),
    "INT8, a third FP32": _third_in_fp32,
    "INT8, FP16 and FP32": _anything,
}


@dataclass
class Case:
    """A network with two feeds, the ranges of its activations over them, and what it was lowered to."""

    name: str
    network: object
    feeds: list[dict[str, np.ndarray]]
    ranges: dict[str, float]
    lowered: dict[str, ir.Model] = field(default_factory=dict)


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, named_network, backend) -> Case:
    network = named_network(request.param)
    feeds = [networks.feeds(ir.to_proto(network.model), seed, sequence=16) for seed in range(2)]
    runs = [lowered.inner_values(backend, network, feed) for feed in feeds]
    ranges = {name: max(float(np.abs(values[name]).max()) for values in runs) for name in network.calibrated_tensors}
    return Case(request.param, network, feeds, ranges)


@pytest.fixture(params=CONFIGS)
def typed(request, case) -> ir.Model:
    if case.name.startswith("light_") and request.param not in ("all INT8", "INT8, FP16 and FP32", "all FP16"):
        pytest.skip("of the large networks few configs are lowered: the others have no layer that these do not have")
    if request.param not in case.lowered:
        config = CONFIGS[request.param](case.network)
        assert "all " in request.param or FP32 in config.precision_by_group(case.network).values()
        case.lowered[request.param] = lower_to_typed_network(case.network, config, case.ranges).model
    return case.lowered[request.param]


def test_passes_the_checker_and_its_output_depends_on_its_input(typed, case, backend):
    onnx.checker.check_model(ir.to_proto(typed), full_check=True)
    if any(
        value.dtype == ir.DataType.BFLOAT16 or node.domain == "trt" for node in typed.graph for value in node.outputs
    ):
        return  # ONNX Runtime's CPU provider has no BF16 Conv or MatMul, and no operators of TensorRT
    with backend.load(typed, optimize=False) as runner:
        first, second = (runner.run(feed) for feed in case.feeds)
    for name in first:
        assert np.isfinite(first[name]).all() and np.isfinite(second[name]).all()
        assert np.abs(first[name] - second[name]).max() > 1e-2 * np.abs(first[name]).max(), name


@pytest.mark.rtx
def test_builds_with_tensorrt_rtx(typed):
    has_fp4 = any(value.dtype == ir.DataType.FLOAT4E2M1 for value in typed.graph.initializers.values())
    rtx.hold_buildable(typed, "SM120" if has_fp4 else "SM89")


@pytest.mark.rtx
def test_tensorrt_rtx_refuses_what_is_not_strongly_typed(named_network):
    model = named_network("mlp").convert_model_to_opset(21).clone()
    matmul = next(node for node in model.graph if node.name == "/fc2/MatMul")
    cast = ir.node("Cast", [matmul.inputs[0]], {"to": int(ir.DataType.FLOAT16)}, name="cast")
    model.graph.insert_before(matmul, cast)
    matmul.replace_input_with(0, cast.outputs[0])
    with pytest.raises(AssertionError, match="fc2"):
        rtx.build(model)


@pytest.mark.rtx
@pytest.mark.parametrize("precision", [FP16, FP32])
def test_a_window_that_the_parser_wants_as_weights_is_stored_in_its_type(precision, opened):
    b = networks.Builder(opset=18)
    window = b.weight("window", np.hanning(16).astype(np.float32))
    b.node("STFT", ["x", b.weight("step", np.int64(4)), window], "/spectrum", output="y", onesided=1)
    network = opened(b.model([networks.floats("x", 1, 64, 1)], [networks.floats("y", 1, 13, 9, 2)]))
    typed = lower_to_typed_network(network, PrecisionConfig.from_precision(precision), {}).model
    assert len(rtx.build(typed)) > 10_000


AMAX = st.floats(0, float(np.float32(3e38)), width=32)


@given(AMAX)
def test_a_scale_maps_its_range_to_127_codes(amax):
    scale = rulebook.scale_from_amax(amax)
    assert scale.dtype == np.float32 and scale > 0 and np.isfinite(scale)
    codes = np.rint(np.float64(amax) / scale) if amax else 0
    assert abs(codes) <= 127 and (codes == 127 or amax < 127 * np.finfo(np.float32).tiny)


def test_a_range_of_zero_has_scale_one():
    np.testing.assert_array_equal(rulebook.scale_from_amax(np.array([0, 127.0])), np.float32([1, 1]))


@pytest.mark.parametrize(
    ("scale", "other", "held"),
    [
        (0.02, Precision.FP16, Precision.FP16),
        (0.02, Precision.FP32, Precision.FP32),
        (0.02, Precision.BF16, Precision.FP32),
        (2.0**-17, Precision.FP16, Precision.FP16),
        (2.0**-17.1, Precision.FP16, Precision.FP32),
        (65504.0, Precision.FP16, Precision.FP16),
        (65600.0, Precision.FP16, Precision.FP32),
    ],
)
def test_fp16_holds_a_scale_only_where_it_can(scale, other, held):
    array = np.array([scale], np.float32)
    assert rulebook.choose_scale_type([array], other) is held


def test_one_small_channel_keeps_all_operands_of_a_layer_in_fp32():
    fits, small = np.array(0.1, np.float32), np.array([0.1, 1e-7], np.float32)
    assert rulebook.choose_scale_type([fits], Precision.FP16) is Precision.FP16
    assert (
        rulebook.choose_scale_type([fits, small], Precision.FP16)
        is rulebook.choose_scale_type([small, fits], Precision.FP16)
        is Precision.FP32
    )


def test_weight_scales_are_per_channel(named_network):
    network = named_network("mlp")
    site = network.get_group("/fc1/Gemm").weight_qdq_sites()[0]
    weight = network.constant_value(site.tensor)
    scale = rulebook.compute_weight_scale(EditedConstants(network), site)
    np.testing.assert_allclose(scale, np.abs(weight).max(1) / 127, rtol=1e-6)


@pytest.fixture(scope="module")
def joining(opened):
    """``one`` is read by a Conv and by a Concat with ``two``, whose output ``both`` another Conv reads."""
    b = Builder()
    for name in ("one", "two"):
        b.conv("x", (4, 4), f"/{name}")
        b.nodes[-1].output[0] = name
    b.node("Concat", ["one", "two"], "/cat", output="both", axis=1)
    b.node("Add", [b.conv("one", (4, 4), "/c"), b.conv("both", (8, 4), "/d")], "/sum", output="y")
    return opened(b.model([floats("x", 1, 4, 8, 8)], [floats("y", 1, 4, 8, 8)]))


def test_ranges_of_a_concat_are_joined_by_the_largest(joining):
    assert set(joining.calibrated_tensors) == {"x", "one", "both", "/c/Conv_output_0"}
    ranges = {"x": 1.0, "one": 2.0, "both": 3.0, "/c/Conv_output_0": 9.0}
    assert rulebook.compute_activation_ranges(joining, ranges, PrecisionConfig()) == {**ranges, "one": 3.0}
    # the range of a tensor that no layer reads in INT8 counts too, once it is known
    with_two = rulebook.compute_activation_ranges(joining, {**ranges, "two": 5.0}, PrecisionConfig())
    assert with_two == {**ranges, "one": 5.0, "both": 5.0}


def test_a_range_of_the_config_holds_for_all_that_share_it(joining):
    config = PrecisionConfig().with_moves({"one": RangeMove(0.5)})
    joined = rulebook.compute_activation_ranges(joining, dict.fromkeys(joining.calibrated_tensors, 2.0), config)
    assert joined == {"x": 2.0, "one": 0.5, "both": 0.5, "/c/Conv_output_0": 2.0}


def test_codes_take_the_ranges_that_were_chosen_for_them(named_network):
    network = named_network("mlp")
    first, second = "/fc1/Gemm", "/fc2/MatMul"
    ranges = RangeTable(
        dict.fromkeys(network.calibrated_tensors, 1.0), {"fp8": dict.fromkeys(network.calibrated_tensors, 3.0)}
    )
    config = PrecisionConfig().with_group_precision([network.get_group(second)], Precision.FP8)

    def steps(given):
        ruled = rulebook.plan_lowering(network, config, given)
        return [
            float(scale.values)
            for name in (first, second)
            for site, scale in ruled[name].scales.items()
            if site.role == "input"
        ]

    np.testing.assert_allclose(steps(ranges), [1 / 127, 3 / 448], rtol=1e-3)
    np.testing.assert_allclose(steps(dict(ranges)), [1 / 127, 1 / 448], rtol=1e-3)
    known = override_ranges(ranges, {network.get_group(second).activation_qdq_sites()[0].tensor: 2.0})
    np.testing.assert_allclose(steps(known), [1 / 127, 2 / 448], rtol=1e-3)
    assert ranges_comparison_key(ranges) != ranges_comparison_key(dict(ranges)) and ranges_comparison_key(
        ranges
    ) != ranges_comparison_key(known)


def test_tensors_without_a_range_are_left_out_and_then_asked_for(joining):
    known = dict.fromkeys(joining.calibrated_tensors, 1.0)
    gone = "x"
    del known[gone]
    known["no tensor of this network"] = 3.0
    amax = rulebook.compute_activation_ranges(joining, known, PrecisionConfig())
    assert set(amax) == set(joining.calibrated_tensors) - {gone}
    with refused("no range", title=gone):
        rulebook.compute_activation_scale(amax, gone)
    assert rulebook.compute_activation_scale({gone: 12.7}, gone) == np.float32(12.7) / np.float32(127)
