import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import networks
from tests.lowered import run, sqnr
from tests.networks import Builder, floats
from tests.texts import numbers
from trt_tui.core.network.graph_editor import remove_unread_values, replace_value
from trt_tui.core.network.model_editing import SCOPE_KEY, assign_node_names
from trt_tui.core.network.model_file import SMALL_TENSOR_BYTES, read_model
from trt_tui.core.network.opening import open_model
from trt_tui.core.network.opset_conversion import convert_opset
from trt_tui.core.network.qdq.rewrites import (
    Fp32Conversion,
    drop_identity_casts,
    has_half_precision,
    remove_qdq_pairs,
    rewrite_quantized_copies,
    upcast_to_fp32,
)
from trt_tui.core.network.rotary_caches import expand_rotary_caches
from trt_tui.errors import InputError

ODD = ("badly_named", "half", "opset7", "with_if", "with_local_function", "with_loop", "with_sequence")


def save(model, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def operators(model):
    return [node.op_type for node in model.graph]


def _text(path):
    path.write_text("this is no network\n")


def _truncated(path):
    onnx.save(networks.small_resnet(), path)
    path.write_bytes(path.read_bytes()[:-1000])


def _opset6(path):
    model = networks.opset7()
    model.opset_import[0].version = 6
    onnx.save(model, path)


def _no_opset(path):
    model = networks.mlp()
    del model.opset_import[:]
    path.write_bytes(model.SerializeToString())


def _no_nodes(path):
    onnx.save(helper.make_model(helper.make_graph([], "empty", [floats("x", 1)], [floats("x", 1)])), path)


def _cycle(path):
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    path.write_bytes(
        helper.make_model(helper.make_graph(nodes, "g", [floats("x", 1)], [floats("b", 1)])).SerializeToString()
    )


def _old_scan(path):
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [floats("s", 2), floats("e", 2)],
        [floats("t", 2), floats("o", 2)],
    )
    node = helper.make_node("Scan", ["", "start", "x"], ["end", "y"], num_scan_inputs=1, body=body)
    graph = helper.make_graph(
        [node], "g", [floats("start", 1, 2), floats("x", 1, 3, 2)], [floats("end", 1, 2), floats("y", 1, 3, 2)]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4), path)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.touch(), "is empty"),
        (_text, "is not"),
        (lambda path: path.write_bytes(bytes(4096)), "is not"),
        (_truncated, "is not a complete ONNX file"),
        (_opset6, "uses opset 6"),
        (_no_opset, "has no opset"),
        (_no_nodes, "has no nodes"),
        (_cycle, "has a cycle"),
        (_old_scan, "uses opset 8"),
    ],
)
def test_bad_file_is_named_with_a_next_step(write, says, tmp_path):
    path = tmp_path / "broken.onnx"
    write(path)
    with pytest.raises(InputError) as caught:
        open_model(path)
    assert "broken.onnx" in caught.value.title and says in caught.value.title
    assert caught.value.next_step


def test_external_data_stays_outside_until_it_is_read(tmp_path, backend):
    path = networks.save_with_external_data(tmp_path)
    model, external_files = read_model(path)
    assert external_files == [tmp_path / "model.onnx.data"]
    weights = [v.const_value for v in model.graph.initializers.values()]
    stay_outside = [isinstance(weight, ir.ExternalTensor) for weight in weights]
    assert stay_outside == [weight.nbytes > SMALL_TENSOR_BYTES for weight in weights] and any(stay_outside)
    feeds = networks.feeds(networks.small_resnet(), n=2)
    expected = networks.quiet_session(networks.small_resnet()).run(None, feeds)[0]
    np.testing.assert_allclose(run(backend, model, feeds)["logits"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ODD)
def test_odd_network_computes_what_its_file_computes(name, tmp_path, backend):
    model = getattr(networks, name)()
    opened = open_model(save(model, tmp_path))
    if name == "badly_named":
        for node in model.graph.node:
            node.name = ""
    feeds = networks.feeds(model, 3, n=2)
    expected = networks.quiet_session(model).run(None, feeds)
    tolerance = 1e-2 if name == "half" else 1e-4
    for value, (key, got) in zip(expected, run(backend, opened.model, feeds).items(), strict=True):
        assert got.dtype == value.dtype, key
        np.testing.assert_allclose(got.astype(np.float64), value, rtol=tolerance, atol=tolerance)
    names = [node.name for node in opened.model.graph]
    assert len(set(names)) == len(names) and all(names)


def test_nodes_are_named_by_tensorrts_rule():
    def node(name, output):
        return ir.Node("", "Relu", [ir.Value(name="x")], name=name, outputs=[ir.Value(name=output)])

    graph = ir.Graph([], [], nodes=[node("relu", "a"), node("", "b"), node("relu", "c"), node("relu", "d")])
    assign_node_names(graph)
    assert [one.name for one in graph] == ["relu", "node_of_b", "relu_0", "relu_1"]


def test_odd_names_survive(tmp_path):
    b = Builder()
    x = b.node("Relu", ["x"], name="a name/with space", output="größe 图")
    x = b.node("Sigmoid", [x], name="n" * 2000, output="o" * 2000)
    b.node("Tanh", [x], name="a.b:0/c d", output="y")
    opened = open_model(save(b.model([floats("x", 2, 2)], [floats("y", 2, 2)]), tmp_path))
    assert [node.name for node in opened.model.graph] == ["a name/with space", "n" * 2000, "a.b:0/c d"]
    assert opened.model.graph[0].outputs[0].name == "größe 图"


def test_nested_functions_nest_their_scopes(tmp_path):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    inner = helper.make_function("local", "Inner", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)
    outer = helper.make_function(
        "local",
        "Outer",
        ["a"],
        ["c"],
        [
            helper.make_node("Inner", ["a"], ["b"], name="first", domain="local"),
            helper.make_node("Tanh", ["b"], ["c"], name="tanh"),
        ],
        opsets,
    )
    b = Builder()
    b.node("Outer", ["x"], name="call", domain="local", output="y")
    model = b.model([floats("x", 2)], [floats("y", 2)], domains=["local"], functions=[inner, outer])
    opened = open_model(save(model, tmp_path))
    assert [(node.op_type, node.meta[SCOPE_KEY]) for node in opened.model.graph] == [
        ("Relu", ("call", "first")),
        ("Tanh", ("call",)),
    ]


def test_old_opset_is_converted_and_its_weights_are_no_inputs(tmp_path):
    opened = open_model(save(networks.opset7(), tmp_path))
    assert [value.name for value in opened.model.graph.inputs] == ["image"]
    assert opened.model.graph.opset_imports[""] == 17 and opened.model.ir_version >= 8
    assert [numbers(note.rstrip(".")) for note in opened.notes] == [[7, 17]]
    resize = next(node for node in opened.model.graph if node.op_type == "Resize")
    assert (resize.name, resize.outputs[0].name) == ("up1/Upsample", "up1/Upsample_output_0")


@pytest.mark.parametrize(("batch", "more_inputs"), [("n", []), (1, []), ("n", [""])])
def test_one_row_of_angles_is_spread_to_the_batch(batch, more_inputs, tmp_path, backend):
    """As PyTorch exports Llama at opset 23; each sample has what it has in a batch of 1."""
    b = Builder(opset=23)
    angles = [
        b.weight(name, values[None].astype(np.float32))
        for name, values in zip(
            ("cos", "sin"), (of(np.outer(np.arange(3), [1, 0.1])) for of in (np.cos, np.sin)), strict=True
        )
    ]
    b.node("RotaryEmbedding", [b.node("Identity", ["x"], "/q"), *angles, *more_inputs], "/rotary", output="y")
    shape = (batch, 2, 3, 4)
    path = save(b.model([floats("x", *shape)], [floats("y", *shape)], ir_version=11), tmp_path)
    model = ir.load(path)
    note = expand_rotary_caches(model)
    assert open_model(path).notes == ([note] if batch == "n" else []) and bool(note) == (batch == "n")
    x = np.random.default_rng(0).standard_normal((3, 2, 3, 4)).astype(np.float32)
    one_by_one = [run(backend, ir.load(path), {"x": x[i : i + 1]})["y"] for i in range(3)]
    got = run(backend, model, {"x": x if batch == "n" else x[:1]})["y"]
    np.testing.assert_allclose(got, np.concatenate(one_by_one)[: len(got)], atol=1e-6)


@pytest.mark.parametrize("symmetric", [True, False])
def test_quantized_network_is_read_as_the_float_one_it_was_made_from(symmetric, tmp_path, backend):
    model = networks.quantized(symmetric=symmetric)
    opened = open_model(save(model, tmp_path))
    kinds = operators(opened.model)
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(kinds)
    assert kinds.count("Relu") == 3  # the asymmetric quantizer left them to its ranges
    assert any("precisions (INT8)" in note for note in opened.notes)
    assert ("zero point" in " ".join(opened.notes)) is not symmetric
    assert opened.quantized_ranges["image"] == pytest.approx(4.03, abs=0.1)
    feeds = networks.feeds(model, 9, n=4)
    expected = networks.quiet_session(model, has_exact_sums=True).run(None, feeds)[0]
    assert sqnr(expected, run(backend, opened.model, feeds)["logits"]) > 20


def _pair(b, tensor, scale, zero, name):
    for suffix, value in (("scale", np.float32(scale)), ("zero", zero)):
        b.weight(f"{name}_{suffix}", np.asarray(value))
    ends = [f"{name}_scale", f"{name}_zero"]
    codes = b.node("QuantizeLinear", [tensor, *ends], name=f"{name}_q")
    return b.node("DequantizeLinear", [codes, *ends], name=f"{name}_dq", output=f"{name}_out")


@pytest.mark.parametrize(
    ("scale", "zero", "after", "amax"),
    [
        (6 / 255, np.uint8(0), "Clip", 6.0),
        (4 / 255, np.int8(-128), "Relu", 4.0),
        (0.01, np.int8(0), None, 1.27),
        (0.01, np.uint8(128), None, 1.27),
        (0.01, np.int8(-28), None, 1.55),
    ],
)
def test_a_range_that_starts_at_zero_stands_for_an_activation(scale, zero, after, amax):
    b = Builder()
    x = _pair(b, b.conv("x", (2, 2), "/conv", size=1), scale, zero, "mid")
    b.conv(x, (2, 2), "/last", size=1)
    b.nodes[-1].output[0] = "y"
    model, conversion = ir.from_proto(b.model([floats("x", 1, 2, 4, 4)], [floats("y", 1, 2, 4, 4)])), Fp32Conversion()
    remove_qdq_pairs(model.graph, conversion)
    assert operators(model) == ["Conv", *([after] if after else []), "Conv"] and conversion.has_changes
    assert conversion.ranges == {model.graph[-1].inputs[0].name: pytest.approx(amax, rel=1e-3)}


def test_no_activation_is_made_up_where_nothing_can_be_negative(tmp_path):
    b = Builder()
    x = _pair(b, "x", 1 / 255, np.uint8(0), "image")
    x = b.node("MaxPool", [x], "/pool", kernel_shape=[2, 2])
    x = _pair(b, x, 1 / 255, np.uint8(0), "pooled")
    b.conv(x, (2, 2), "/conv", size=1)
    b.nodes[-1].output[0] = "y"
    opened = open_model(save(b.model([floats("x", 1, 2, 4, 4)], [floats("y", 1, 2, 3, 3)]), tmp_path))
    assert operators(opened.model) == ["MaxPool", "Conv"]


def test_a_quantized_output_keeps_its_name(tmp_path):
    b = Builder()
    x = b.conv("x", (2, 2), "/conv", size=1)
    _pair(b, x, 0.1, np.int8(0), "y")
    opened = open_model(save(b.model([floats("x", 1, 2, 4, 4)], [floats("y_out", 1, 2, 4, 4)]), tmp_path))
    assert [value.name for value in opened.model.graph.outputs] == ["y_out"]
    assert operators(opened.model) == ["Conv", "Identity"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_a_stored_weight_is_dequantized_when_it_is_read(dtype, tmp_path):
    b = Builder()
    codes = b.rng.integers(0, 100, (3, 4)).astype(dtype)
    scale, zero = np.array([0.1, 0.2, 0.3, 0.4], np.float32), np.arange(4).astype(dtype)
    ends = [b.weight("codes", codes), b.weight("scale", scale)]
    if dtype is not np.int32:
        ends.append(b.weight("zero", zero))
    weight = b.node("DequantizeLinear", ends, name="dq", axis=1)
    b.node("MatMul", ["x", weight], name="matmul", output="y")
    opened = open_model(save(b.model([floats("x", 2, 3)], [floats("y", 2, 4)]), tmp_path))
    assert operators(opened.model) == ["MatMul"]
    stored = opened.model.graph.initializers[weight].const_value
    shift = 0 if dtype is np.int32 else zero.astype(np.float32)
    np.testing.assert_allclose(stored.numpy(), (codes - shift) * scale, rtol=1e-6)


def test_a_copy_of_codes_becomes_one_of_floats_with_the_same_values(backend):
    b = Builder()
    ends = [b.weight("scale", np.float32(0.1)), b.weight("zero", np.uint8(9))]
    codes = b.node("QuantizeLinear", ["x", *ends], name="q")
    turned = b.node("Transpose", [codes], name="turn", perm=[1, 0])
    b.node("DequantizeLinear", [turned, *ends], name="dq", output="y")
    model = ir.from_proto(b.model([floats("x", 2, 3)], [floats("y", 3, 2)]))
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 3
    expected = run(backend, model, {"x": x})["y"]
    assert rewrite_quantized_copies(model.graph) == 1
    pair = ["QuantizeLinear", "DequantizeLinear"]
    assert operators(model) == [*pair, "Transpose", *pair] and model.graph[2].name == "turn"
    assert [value.name for value in model.graph[1].inputs[1:]] == ["scale", "zero"]
    np.testing.assert_array_equal(run(backend, model, {"x": x})["y"], expected)
    assert rewrite_quantized_copies(model.graph) == 0


@pytest.mark.parametrize("is_output", [False, True])
def test_a_value_is_replaced_for_all_readers_and_what_nothing_reads_goes(is_output):
    b = Builder()
    old = b.node("Mul", ["x", b.weight("w", np.ones(4, np.float32))], name="old")
    b.node("Add", [old, old], name="reader", output="y")
    outputs = [floats("y", 4), *([floats(old, 4)] if is_output else [])]
    graph = ir.from_proto(b.model([floats("x", 4)], outputs)).graph
    value = graph[0].outputs[0]
    replace_value(graph, value, graph.inputs[0], "kept")
    assert [use.name for use in graph[1].inputs] == ["x", "x"]
    remove_unread_values(graph, [value])
    assert [node.name for node in graph] == ["reader", *(["kept"] if is_output else [])] and not graph.initializers
    assert [value.name for value in graph.outputs] == [info.name for info in outputs]
    assert all(node.inputs[0] is graph.inputs[0] for node in graph)


def test_half_network_keeps_the_types_of_inputs_and_outputs(tmp_path):
    opened = open_model(save(networks.half(), tmp_path))
    graph = opened.model.graph
    assert {value.dtype for value in (*graph.inputs, *graph.outputs)} == {ir.DataType.FLOAT16}
    assert {v.const_value.dtype for v in graph.initializers.values()} <= {ir.DataType.FLOAT, ir.DataType.INT64}
    inner = [o.dtype for node in graph for o in node.outputs if node.op_type != "Cast"]
    assert set(inner) == {ir.DataType.FLOAT}
    assert "precisions (FP16)" in opened.notes[0]


def test_casts_of_a_mixed_network_go(tmp_path):
    b = Builder()
    weight = b.weight("w", b.rng.standard_normal((4, 4)).astype(np.float16))
    up = b.node("Cast", [weight], name="weight_up", to=TensorProto.FLOAT)
    x = b.node("MatMul", ["x", up], name="matmul")
    x = b.node("Cast", [x], name="down", to=TensorProto.FLOAT16)
    x = b.node("Relu", [x], name="relu")
    b.node("Cast", [x], name="up", to=TensorProto.FLOAT, output="y")
    proto = b.model([floats("x", 2, 4)], [floats("y", 2, 4)])
    assert operators(open_model(save(proto, tmp_path)).model) == ["MatMul", "Relu", "Cast"]
    model, conversion = ir.from_proto(onnx.shape_inference.infer_shapes(proto)), Fp32Conversion()
    upcast_to_fp32(model.graph, conversion)
    assert conversion.has_changes and has_half_precision(ir.from_proto(proto).graph)
    assert not has_half_precision(model.graph)
    assert drop_identity_casts(model.graph) == {up: weight, "down_output_0": "matmul_output_0"}
    stored = model.graph[0].inputs[1].const_value
    assert stored.dtype == ir.DataType.FLOAT
    np.testing.assert_array_equal(stored.numpy(), numpy_helper.to_array(b.weights[0]).astype(np.float32))


def test_subgraphs_of_a_half_network_are_raised_too(tmp_path, backend):
    b = Builder()
    half = np.float16
    bias = b.weight("bias", np.ones(4, half))
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(operator, ["x", "inner"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2, 4])],
            [numpy_helper.from_array(np.full(4, 2, half), "inner")],
        )
        for name, operator in (("then", "Mul"), ("else", "Sub"))
    }
    chosen = b.node("If", ["go"], name="choice", **branches)
    b.node("Add", [chosen, bias], name="add", output="y")
    model = b.model(
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, 4]),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, 4])],
    )
    opened = open_model(save(model, tmp_path))
    x = np.arange(8, dtype=half).reshape(2, 4)
    for go, expected in ((True, x * 2 + 1), (False, x - 1)):
        got = run(backend, opened.model, {"x": x, "go": np.array(go)})["y"]
        assert got.dtype == half
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_may_return_what_the_graph_around_it_holds(taken, tmp_path, backend):
    """An initializer from one branch and an input from the other; no runtime takes that as it is."""
    model = networks.with_if()
    (switch,) = [node for node in model.graph.node if node.op_type == "If"]
    for attribute, name in zip(switch.attribute, ("kept", "x"), strict=True):
        del attribute.g.node[:]
        attribute.g.output[0].name = name
    kept = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(kept, "kept"))
    for node in model.graph.node:  # the mean is over 0 or under it, whatever is fed
        if node.op_type == "Greater":
            node.input[0] = "sign"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1 if taken else -1), "sign"))
    onnx.save(model, tmp_path / "branches.onnx")
    opened = open_model(tmp_path / "branches.onnx")
    x = np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)
    returned = {attribute.name: one for attribute, one in zip(switch.attribute, (kept, x), strict=True)}
    weight = numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == "after.weight"))
    source = returned["then_branch" if taken else "else_branch"]
    expected = np.einsum("oi,nihw->nohw", weight[..., 0, 0], source)
    for lean in (False, True):
        with backend.load(opened.model, low_memory=lean) as runner:
            np.testing.assert_allclose(runner.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_inputs_and_constants_may_be_outputs(tmp_path, backend):
    b = Builder()
    constant = b.weight("constant", np.arange(3, dtype=np.float32))
    b.node("Relu", ["x"], name="relu", output="y")
    b.node("Tanh", ["x"], name="unused")
    model = b.model([floats("x", 2)], [floats("y", 2), floats("x", 2), floats(constant, 3)])
    opened = open_model(save(model, tmp_path))
    x = np.array([-1, 2], np.float32)
    got = run(backend, opened.model, {"x": x})
    np.testing.assert_array_equal(got["x"], x)
    np.testing.assert_array_equal(got["constant"], np.arange(3))
    np.testing.assert_array_equal(got["y"], [0, 2])


def _scaled(values, **attributes):
    return lambda b: b.node("Resize", ["x", b.weight("scales", np.array(values, np.float32))], "/resize", **attributes)


def _per_group(stored):
    def build(b):
        vectors = [b.vector(name, 2) for name in "sb"]
        if not stored:
            vectors = [b.node("Identity", [one], f"/{one}") for one in vectors]
        return b.node("GroupNormalization", ["x", *vectors], "/norm", num_groups=2)

    return build


def _bodies(b):
    """An If whose branches hold operators of an old form and read what lies outside."""
    then = [
        helper.make_node("Unsqueeze", ["x"], ["u"], axes=[0]),
        helper.make_node("Squeeze", ["u"], ["s"], axes=[0]),
        helper.make_node("Softmax", ["s"], ["a"], axis=1),
    ]
    graphs = [
        helper.make_graph(nodes, "branch", [], [helper.make_empty_tensor_value_info(nodes[-1].output[0])])
        for nodes in (then, [helper.make_node("Relu", ["x"], ["b"])])
    ]
    large = b.node("ReduceMax", ["x"], "/max", keepdims=0)
    return b.node(
        "If",
        [b.node("Greater", [large, b.weight("zero", np.float32(0))], "/some")],
        "/if",
        then_branch=graphs[0],
        else_branch=graphs[1],
    )


@pytest.mark.parametrize(
    ("before", "after", "build"),
    [
        (10, 17, _scaled([1, 1, 2, 2], mode="linear")),
        (10, 17, _scaled([1, 1, 1.3, 2.6], mode="nearest")),
        (10, 17, _scaled([1, 1, 0.3, 0.7], mode="nearest")),
        (9, 17, lambda b: b.node("Upsample", ["x", b.weight("scales", np.array([1, 1, 1.5, 1.7], np.float32))], "/up")),
        (11, 17, lambda b: b.node("Hardmax", ["x"], "/hard", axis=3)),
        (18, 21, _per_group(stored=True)),
        (11, 17, _bodies),
    ],
)
def test_a_conversion_keeps_the_meaning(before, after, build, backend):
    b = Builder(opset=before)
    last = build(b)
    model = b.model([floats("x", 1, 4, 8, 8)], [helper.make_empty_tensor_value_info(last)])
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    ours = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model))
    expected, got = (run(backend, one, feeds).values() for one in (ours, convert_opset(ours, after)))
    np.testing.assert_allclose(*expected, *got, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("before", "after", "build", "says"),
    [
        (10, 17, _scaled([1, 1, 0.5, 2], mode="nearest"), "/resize/Resize"),
        (
            18,
            21,
            lambda b: b.node("GroupNormalization", ["open", b.vector("s", 2), b.vector("b", 2)], "/norm", num_groups=2),
            "/norm/GroupNormalization",
        ),
        (18, 22, _per_group(stored=False), "/norm/GroupNormalization"),
        (11, 17, lambda b: b.node("Hardmax", ["x"], "/hard", axis=2), "/hard/Hardmax"),
        (11, 17, lambda b: b.node("Hardmax", ["x"], "/hard"), "/hard/Hardmax"),
        (9, 17, lambda b: _batch_norm(b, read=True), "/bn/BatchNormalization"),
    ],
)
def test_what_the_new_opset_cannot_say_is_refused_with_its_node(before, after, build, says):
    b = Builder(opset=before)
    last = build(b)
    model = b.model([floats("x", 1, 4, 8, 8), floats("open", 1, "c", 8)], [helper.make_empty_tensor_value_info(last)])
    with pytest.raises(ValueError, match=says):
        convert_opset(ir.serde.deserialize_model(model), after)


def _batch_norm(b, read=False):
    """In training mode, as opset 9 writes it."""
    last = b.batch_norm("x", 4, "/bn")
    b.nodes[-1].output.extend(["mean", "var", "saved_mean", "saved_var"])
    return b.node("Identity", ["saved_mean"], "/read") if read else last


def test_a_batch_norm_in_training_mode_stays_in_it_and_is_told_of(tmp_path, backend):
    b = Builder(opset=9)
    model = b.model([floats("x", 2, 4, 8, 8)], [floats(_batch_norm(b), 2, 4, 8, 8)])
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)}
    opened = open_model(save(model, tmp_path))
    (got,) = run(backend, opened.model, feeds).values()
    weight = {one.name: numpy_helper.to_array(one).reshape(-1, 1, 1) for one in model.graph.initializer}
    scale, bias = (weight[name] for name in model.graph.node[0].input[1:3])
    mean, spread = (of(feeds["x"], axis=(0, 2, 3), keepdims=True) for of in (np.mean, np.var))
    np.testing.assert_allclose(got, (feeds["x"] - mean) / np.sqrt(spread + 1e-5) * scale + bias, rtol=1e-3, atol=1e-4)
    assert any("training mode" in note for note in opened.notes)


def test_types_behind_an_operator_of_another_domain_are_what_those_behind_it_ask_for(tmp_path):
    b = Builder()
    x = b.node("Mine", ["x"], "/mine", domain="acme")
    x = b.node("Relu", [b.conv(x, (4, 4), "/conv")], "/relu")
    also = b.node(
        "Relu",
        [b.node("BiasGelu", [b.node("Relu", ["x"], "/r"), b.vector("bias", 8)], "/bg", domain="com.microsoft")],
        "/behind",
    )
    lost = b.node("Identity", [b.node("Mine", [x], "/last", domain="acme")], "/lost")
    model = b.model([floats("x", 1, 4, 8, 8)], [floats(also, 1, 4, 8, 8), helper.make_empty_tensor_value_info(lost)])
    model.opset_import.extend([helper.make_opsetid("acme", 1), helper.make_opsetid("com.microsoft", 1)])
    types = {node.name: node.outputs[0].dtype for node in open_model(save(model, tmp_path)).model.graph}
    unknown = {name for name, dtype in types.items() if dtype is None}
    assert unknown == {"/last/Mine", "/lost/Identity"}  # nothing says what they are
    assert {dtype for name, dtype in types.items() if name not in unknown} == {ir.DataType.FLOAT}
