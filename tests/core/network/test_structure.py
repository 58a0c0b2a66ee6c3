"""Damage, endless constants and wrong sizes are told at opening, by the name of the node or tensor."""

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.defs import OpSchema
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from tests import networks
from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.network import inference
from trt_tui.core.network.network import open_network
from trt_tui.core.network.opening import open_model
from trt_tui.core.network.operators import FOREIGN_SCHEMAS
from trt_tui.errors import InputError


def network() -> onnx.ModelProto:
    """A Conv, a Relu, a Concat with a constant, and an If."""
    b = Builder()
    x = b.conv("x", (2, 2), "/conv", size=1)
    x = b.node("Relu", [x], name="relu", output="r")
    c = b.node("Constant", [], name="constant", output="c", value=numpy_helper.from_array(np.ones((1, 2, 4, 4), "f4")))
    x = b.node("Concat", [x, c], name="concat", output="j", axis=1)
    branches = [
        helper.make_graph(
            [helper.make_node(operator, ["j"], [name], name=name)], f"{name}_graph", [], [floats(name, 1, 4, 4, 4)]
        )
        for name, operator in (("p", "Relu"), ("q", "Tanh"))
    ]
    b.node("If", ["go"], name="choice", output="y", then_branch=branches[0], else_branch=branches[1])
    return b.model(
        [floats("x", 1, 2, 4, 4), helper.make_tensor_value_info("go", TensorProto.BOOL, [])], [floats("y", 1, 4, 4, 4)]
    )


def written(model, folder):
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def node(model, name):
    return next(one for one in model.graph.node if one.name == name)


def attribute(model, name, key):
    return next(one for one in node(model, name).attribute if one.name == key)


def branch(model):
    return attribute(model, "choice", "then_branch").g


def weight(model):
    return model.graph.initializer[0]


def _set(message, **fields):
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)


def _read_text(model):
    model.graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [1], [b"a"]))
    node(model, "/conv/Conv").input[1] = "text"


DAMAGES = {
    "an input nobody makes": (lambda m: _set(node(m, "relu"), input=["nowhere"]), "relu", "nowhere"),
    "an inner input nobody makes": (lambda m: _set(branch(m).node[0], input=["nowhere"]), "p (Relu)", "nowhere"),
    "an output nobody makes": (lambda m: _set(m.graph.output[0], name="nothing"), "nothing"),
    "an inner output nobody makes": (lambda m: _set(branch(m).output[0], name="nothing"), "p_graph", "nothing"),
    "an output made twice": (lambda m: _set(node(m, "concat"), output=["r"]), "concat", "tensor r"),
    "an input made": (lambda m: _set(node(m, "relu"), output=["x"]), "relu", "tensor x"),
    "a weight made": (lambda m: _set(node(m, "relu"), output=[weight(m).name]), "relu", "conv.weight"),
    "a weight twice": (lambda m: m.graph.initializer.append(weight(m)), "conv.weight", "twice"),
    "an input twice": (lambda m: m.graph.input.append(m.graph.input[0]), "input x", "twice"),
    "an unnamed input": (lambda m: _set(m.graph.input[1], name=""), "no name"),
    "an unnamed weight": (lambda m: m.graph.initializer.append(numpy_helper.from_array(np.ones(2))), "no name"),
    "an opset beyond 32 bits": (lambda m: _set(m.opset_import[0], version=2**31), "opset", str(2**31)),
    "a negative opset": (lambda m: m.opset_import.append(helper.make_opsetid("trt", -1)), "opset of trt", "-1"),
    "text in place of numbers": (lambda m: _read_text(m), "/conv/Conv", "text", "STRING"),
    "an attribute that is no text": (
        lambda m: node(m, "/conv/Conv").attribute.append(helper.make_attribute("auto_pad", b"\xff")),
        "/conv/Conv",
        "auto_pad",
    ),
    "a type that does not exist": (
        lambda m: _set(node(m, "relu"), op_type="Cast", attribute=[helper.make_attribute("to", 1000)]),
        "relu (Cast)",
        "1000",
    ),
    "no output at all": (lambda m: _set(node(m, "relu"), output=[]), "relu", "no output"),
    "no operator": (lambda m: _set(node(m, "relu"), op_type=""), "relu", "no operator"),
    "too few inputs": (lambda m: _set(node(m, "/conv/Conv"), input=["x"]), "/conv/Conv (Conv)", "1 inputs"),
    "too many inputs": (lambda m: _set(node(m, "relu"), input=["x", "x"]), "relu", "2 inputs"),
    "too many outputs": (lambda m: node(m, "relu").output.append("more"), "relu", "2 outputs"),
    "a needed input left out": (lambda m: _set(node(m, "/conv/Conv"), input=["x", ""]), "/conv/Conv", "its input W"),
    "a needed attribute": (lambda m: _set(node(m, "concat"), attribute=[]), "concat", "axis"),
    "a constant of nothing": (lambda m: _set(node(m, "constant"), attribute=[]), "constant", "no value"),
    "an attribute of another type": (
        lambda m: _set(node(m, "concat"), attribute=[helper.make_attribute("axis", 1.5)]),
        "concat",
        "axis",
    ),
    "an attribute of no type": (
        lambda m: _set(attribute(m, "concat", "axis"), type=AttributeProto.UNDEFINED),
        "concat",
        "axis",
    ),
    "an attribute twice": (
        lambda m: node(m, "concat").attribute.append(attribute(m, "concat", "axis")),
        "concat",
        "axis",
    ),
    "an empty tensor attribute": (lambda m: attribute(m, "constant", "value").ClearField("t"), "constant", "value"),
    "an empty branch": (lambda m: attribute(m, "choice", "then_branch").ClearField("g"), "choice", "then_branch"),
    "a parameter outside of functions": (
        lambda m: _set(attribute(m, "concat", "axis"), ref_attr_name="axis"),
        "concat",
        "axis",
    ),
    "too few values": (lambda m: _set(weight(m), raw_data=weight(m).raw_data[:-1]), "conv.weight", "16 bytes"),
    "too many values": (lambda m: _set(weight(m), raw_data=weight(m).raw_data * 2), "conv.weight", "32"),
    "too few typed values": (
        lambda m: m.graph.initializer.append(
            TensorProto(name="short", data_type=TensorProto.INT64, dims=[3], int64_data=[1])
        ),
        "short",
        "3 values",
    ),
    "a negative size": (lambda m: _set(weight(m), dims=[-2, -2, 1, 1]), "conv.weight", "-2"),
    "an unknown type": (lambda m: _set(weight(m), data_type=99), "conv.weight", "99"),
    "no type": (lambda m: _set(weight(m), data_type=0), "conv.weight", "type"),
    "an unknown input type": (lambda m: _set(m.graph.input[0].type.tensor_type, elem_type=77), "x", "77"),
    "a sequence of nothing": (lambda m: m.graph.output[0].type.sequence_type.SetInParent(), "y", "sequence"),
    "a damaged constant": (
        lambda m: _set(attribute(m, "constant", "value").t, dims=[7]),
        "constant",
        "value",
        "28 bytes",
    ),
    "a damaged inner constant": (
        lambda m: branch(m).initializer.append(TensorProto(name="w", data_type=1, dims=[2], float_data=[1])),
        "w",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_at_opening_by_name(damage, tmp_path):
    spoil, *says = DAMAGES[damage]
    model = network()
    spoil(model)
    path = written(model, tmp_path)
    with pytest.raises(InputError, match="^model.onnx is damaged") as caught:
        open_model(path)
    assert all(word in caught.value.cause for word in says), caught.value.cause
    assert caught.value.next_step


FOREIGN_DAMAGES = {
    "": lambda one: None,
    "too few inputs": lambda one: one.input.pop(),
    "too many inputs": lambda one: one.input.extend(["x"] * 9),
    "too many outputs": lambda one: one.output.append("more"),
    "a needed input left out": lambda one: one.input.__setitem__(0, ""),
    "a needed attribute": lambda one: _set(one, attribute=[]),
    "an attribute of another type": lambda one: one.attribute[0].CopyFrom(
        helper.make_attribute(one.attribute[0].name, [helper.make_tensor_type_proto(1, [1])])
    ),
}


def can_have(schema, damage):
    if damage == "an attribute of another type":
        return bool(schema.attributes)
    return damage != "a needed attribute" or any(one.required for one in schema.attributes.values())


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        (key, damage)
        for key, schema in FOREIGN_SCHEMAS.items()
        for damage in FOREIGN_DAMAGES
        if can_have(schema, damage) and (damage, schema.max_input) != ("too many inputs", 2**31 - 1)
    ],
)
def test_operators_of_other_domains_are_checked_by_their_schemas(key, damage, tmp_path):
    """Each node reads as little as its operator allows."""
    domain, operator = key
    schema, b = FOREIGN_SCHEMAS[key], Builder()
    values = {
        OpSchema.AttrType.INT: 1,
        OpSchema.AttrType.INTS: [1],
        OpSchema.AttrType.FLOAT: 1.0,
        OpSchema.AttrType.STRING: "VALID",
    }
    b.nodes.append(
        helper.make_node(
            operator,
            ["x"] * schema.min_input,
            ["y", "scales"][: schema.min_output],
            name="odd",
            domain=domain,
            **{name: values[one.type] for name, one in schema.attributes.items()},
        )
    )
    model = b.model([floats("x", 1, 1, 4, 4)], [floats("y", 1, 1, 4, 4)], domains=[domain])
    FOREIGN_DAMAGES[damage](model.graph.node[0])
    path = written(model, tmp_path)
    if not damage:
        assert open_model(path)
        return
    with refused("is damaged", cause=f"odd ({operator})"):
        open_model(path)


@pytest.mark.onnxruntime("1.32")
def test_the_schemas_of_onnx_runtimes_operators_are_its_own():
    def form(schema):
        return (
            [parameter.option.name for parameter in schema.inputs],
            schema.min_output,
            schema.max_output,
            {name: (one.type.name, one.required) for name, one in schema.attributes.items()},
        )

    own = {(schema.domain, schema.name): schema for schema in get_all_operator_schema()}
    for key, schema in FOREIGN_SCHEMAS.items():
        assert key[0] == "trt" or form(schema) == form(own[key]), key


def test_what_is_damaged_is_whole_before(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(network(), path)
    assert [layer.name for layer in open_network(path).layers] == ["/conv/Conv", "relu", "constant", "concat", "choice"]


@pytest.mark.parametrize("name", ["relu", "conv.weight", "j", "Tanh", "p_graph", "go"])
def test_names_that_are_no_text_are_refused(name, tmp_path):
    path = tmp_path / "model.onnx"
    content = network().SerializeToString()
    path.write_bytes(content.replace(name.encode(), b"\xff" * len(name)))
    assert path.read_bytes() != content
    with refused("is damaged", cause="not UTF-8 text"):
        open_model(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.graph.node.reverse(),
        lambda m: m.graph.value_info.append(
            helper.make_value_info(
                "r",
                helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [1])),
            )
        ),
        lambda m: m.graph.input.append(floats(m.graph.initializer[0].name, 2, 2, 1, 1)),
        lambda m: m.graph.node.append(helper.make_node("Sparkle", ["r"], ["s"], domain="acme")),
        lambda m: m.graph.node.append(helper.make_node("NoSuchOperator", ["r"], ["s"], many=1)),
        lambda m: _set(m.graph.input[0].type.tensor_type.shape.dim[0], dim_value=-1),
        lambda m: _set(m.opset_import[0], version=999),
        lambda m: _set(m.opset_import[0], domain="ai.onnx"),
        lambda m: m.graph.node.append(helper.make_node("Cast", ["r"], ["s"], domain="acme")),
        lambda m: m.graph.node.append(helper.make_node("DequantizeLinear", ["r"], ["s"], domain="acme")),
    ],
)
def test_what_is_only_odd_still_opens(change, tmp_path):
    model = network()
    change(model)
    path = written(model, tmp_path)
    assert open_network(path).has_layer("/conv/Conv")


@pytest.mark.parametrize("opset", [17, 999, 2**31 - 1])
@pytest.mark.parametrize("operator", ["Cast", "Conv", "MatMul", "QuantizeLinear", "DequantizeLinear", "Constant"])
def test_operators_that_are_taken_apart_are_whole_in_any_opset(operator, opset, tmp_path):
    b = Builder(opset=opset)
    b.node(operator, ["x"], name="odd", output="y")
    path = written(b.model([floats("x", 2)], [floats("y", 2)]), tmp_path)
    with refused("is damaged", cause=f"odd ({operator})"):
        open_model(path)


@pytest.mark.parametrize("dtype", sorted(TensorProto.DataType.values()))
def test_inputs_of_every_type_open(dtype, tmp_path):
    b = Builder()
    b.node("Identity", ["x"], name="copy", output="y")
    path = written(
        b.model([helper.make_tensor_value_info("x", dtype, [2])], [helper.make_tensor_value_info("y", dtype, [2])]),
        tmp_path,
    )
    network = open_network(path)
    assert network.inputs[0].shape == (2,) and network.build_outline().inputs == network.inputs


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("maps", helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))),
        (
            "maps",
            helper.make_sequence_type_proto(
                helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
            ),
        ),
        ("sparse tensors", helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2])),
    ],
)
def test_types_that_are_not_read_are_named(kind, given, tmp_path):
    b = Builder()
    b.node("ZipMap", ["x"], name="zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1], output="y")
    model = b.model([floats("x", 1, 2)], [helper.make_value_info("y", given)], domains=["ai.onnx.ml"])
    path = written(model, tmp_path)
    with pytest.raises(InputError) as caught:
        open_model(path)
    assert caught.value.title == f"model.onnx works on {kind}" and "y" in caught.value.cause and caught.value.next_step


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m.graph.sparse_initializer.add().values.CopyFrom(numpy_helper.from_array(np.ones(1, "f4"), "s")),
        lambda m: (
            node(m, "constant")
            .attribute[0]
            .CopyFrom(
                AttributeProto(
                    name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=onnx.SparseTensorProto()
                )
            )
        ),
    ],
)
def test_sparse_tensors_are_refused_by_name(spoil, tmp_path):
    model = network()
    spoil(model)
    path = written(model, tmp_path)
    with pytest.raises(InputError, match="holds sparse"):
        open_model(path)


@pytest.mark.parametrize("inner", [False, True])
def test_a_cycle_names_a_node_of_it(inner, tmp_path):
    model = network()
    if inner:
        branch(model).node[0].input[0] = "t"
        branch(model).node.append(helper.make_node("Tanh", ["p"], ["t"], name="back"))
    else:
        node(model, "/conv/Conv").input[0] = "j"
    path = written(model, tmp_path)
    with pytest.raises(InputError, match="has a cycle") as caught:
        open_model(path)
    members = {"p (Relu)", "back (Tanh)"} if inner else {"/conv/Conv (Conv)", "relu (Relu)", "concat (Concat)"}
    assert any(caught.value.cause.startswith(one) for one in members), caught.value.cause


@pytest.mark.parametrize(
    ("operator", "shape"),
    [("Conv", (2, 2)), ("ConvTranspose", (2,)), ("Gemm", (2,)), ("Gemm", (2, 2, 2)), ("MatMul", ())],
)
def test_operands_of_an_impossible_rank_are_told_by_the_node(operator, shape, tmp_path):
    b = Builder()
    turned = b.node("Identity", [b.weight("w", np.ones(shape, "f4"))], name="turn")
    b.node(operator, ["x", turned], name="odd", output="y")
    path = tmp_path / "model.onnx"
    onnx.save(
        b.model(
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        ),
        path,
    )
    with refused("is damaged", cause=f"odd ({operator})"):
        open_model(path)


def test_nothing_is_logged_with_names_from_a_file(tmp_path, caplog):
    model = network()
    info = model.graph.value_info.add(name="r")
    info.type.tensor_type.shape.dim.add(dim_param="\x1b[2J")
    path = written(model, tmp_path)
    open_network(path)
    assert not [record for record in caplog.records if record.name.startswith("onnx_ir")]


def test_a_network_that_inference_gives_up_says_so(tmp_path):
    model = network()
    path = written(model, tmp_path)
    assert not open_network(path).notes
    model.graph.node.append(helper.make_node("Cast", ["r"], ["s"], domain="acme"))
    path.write_bytes(model.SerializeToString())
    note, plugin = open_network(path).notes
    assert "could not be inferred" in note and "acme" in note and plugin.startswith("Plugins")


MANY = 1 << 20


def integers(b, name, *values):
    return b.weight(name, np.array(values, np.int64))


def _zeros(b):
    return b.node("ConstantOfShape", [integers(b, "sizes", MANY, MANY)], name="big")


def _expanded(b):
    return b.node("Expand", [b.weight("one", np.float32([1])), integers(b, "sizes", MANY, MANY)], name="big")


def _tiled(b):
    return b.node("Tile", [b.weight("one", np.float32([[1]])), integers(b, "repeats", MANY, MANY)], name="big")


def _counted(b):
    count = b.node(
        "Range",
        [b.weight("from", np.int64(0)), b.weight("to", np.int64(MANY * MANY)), b.weight("by", np.int64(1))],
        name="big",
    )
    return b.node("Cast", [count], name="floats", to=TensorProto.FLOAT)


def _broadcast(b):
    column, row = (
        b.node("ConstantOfShape", [integers(b, name, *sizes)], name=name)
        for name, sizes in (("column", (MANY, 1)), ("row", (1, MANY)))
    )
    return b.node("Add", [column, row], name="big")


def _behind_arithmetic(b):
    """Sizes that onnx's inference loses: chosen by a Where."""
    base = integers(b, "base", -1, 1024)
    side = b.node("Constant", [], name="side", value=numpy_helper.from_array(np.array([MANY, 1], np.int64), "v"))
    open_ = b.node("Equal", [base, integers(b, "minus", -1)], name="open")
    sizes = b.node("Where", [open_, side, base], name="where")
    return b.node(
        "Expand", [b.weight("one", np.float32([1])), b.node("Mul", [sizes, sizes], name="square")], name="big"
    )


def _doubled(b):
    x = b.weight("seed", np.ones(1024, np.float32))
    for step in range(30):
        x = b.node("Concat", [x, x], name="big" if step == 29 else f"double{step}", axis=0)
    return x


def opened_with(opened, constant):
    b = Builder()
    total = b.node("ReduceSum", [constant(b)], name="total", keepdims=0)
    b.node("Add", ["x", total], name="add", output="y")
    return opened(b.model([floats("x", 4)], [floats("y", 4)]))


@pytest.mark.parametrize("constant", [_zeros, _expanded, _tiled, _counted, _broadcast, _behind_arithmetic, _doubled])
def test_a_constant_without_bound_is_refused_by_name(constant, opened):
    with pytest.raises(InputError, match="do not fit in memory") as raised:
        opened_with(opened, constant)
    assert "big" in raised.value.cause and "GB" in raised.value.cause


def test_what_a_network_may_grow_by_follows_its_size(opened, monkeypatch):
    def unpacked(b):
        codes = b.weight("codes", np.ones((256, 256), np.int8))
        return b.node("Cast", [codes], name="unpack", to=TensorProto.FLOAT)

    monkeypatch.setattr(inference, "MAX_GROWTH_BYTES", 0)
    assert opened_with(opened, unpacked).constant_tensors
    monkeypatch.setattr(inference, "MAX_GROWTH_FACTOR", 2)
    with refused("do not fit in memory", cause="unpack"):
        opened_with(opened, unpacked)


def test_what_the_inputs_decide_is_no_constant(opened):
    b = Builder()
    big = b.node("ConstantOfShape", ["sizes"], name="zeros")
    b.node("ReduceSum", [big], name="total", keepdims=0, output="y")
    sizes = helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, [2])
    assert opened(b.model([sizes], [floats("y")])).layers


def _declaring(inner=None, output=("N", 8), read=("N", 16)):
    """Two products with a shape declared between them, or at an end."""
    b = networks.Builder()
    hidden = b.node("Relu", [b.node("MatMul", ["x", b.kernel("w1", (16, 32), 16)], "/first")], "/act")
    b.node("MatMul", [hidden, b.kernel("w2", (32, 8), 32)], "/second", output="y")
    model = b.model([networks.floats("x", *read)], [networks.floats("y", *output)])
    if inner is not None:
        model.graph.value_info.append(networks.floats("/first/MatMul_output_0", *inner))
    return model


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"inner": ("N", 31)}, ("MatMul /first", "dimension 1: (32) vs (31)")),
        ({"output": ("N", 7)}, ("MatMul /second", "dimension 1: (8) vs (7)")),
        ({"output": ("N", 8, 1)}, ("MatMul /second", "rank: (2) vs (3)")),
        ({"read": ("N", 15)}, ("MatMul /first", "Incompatible dimensions")),
        ({"read": (4, 16), "output": (1, 8)}, ("dimension 0: (4) vs (1)",)),
    ],
)
def test_a_file_that_declares_a_wrong_size_is_refused_with_both(more, words, tmp_path):
    onnx.save(_declaring(**more), tmp_path / "wrong.onnx")
    with pytest.raises(InputError, match=r"wrong.onnx declares a wrong size") as error:
        open_network(tmp_path / "wrong.onnx")
    assert error.value.next_step and all(word in error.value.cause for word in words), error.value.cause


@pytest.mark.parametrize(
    "more", [{}, {"inner": ("N", 32)}, {"inner": ("M", "K")}, {"output": ("M", "K")}, {"output": (1, 8)}]
)
def test_a_declared_size_that_may_be_right_is_none(more, tmp_path):
    onnx.save(_declaring(**more), tmp_path / "right.onnx")
    assert len(open_network(tmp_path / "right.onnx").groups) == 2


def test_an_output_of_another_size_than_declared_is_refused_as_that_once_it_is_run(run, tmp_path):
    onnx.save(_declaring(output=(1, 8)), tmp_path / "batch.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((32, 16), np.float32))
    code, _, err = run("compare", tmp_path / "batch.onnx", "--data", tmp_path / "x.npz", "--layers", "none")
    names = "wrong shape for y", "wrong shape for the result of /second/MatMul"  # as ONNX Runtime names either
    assert code == 2 and any(name in err for name in names) and "1×8" in err and "8×8" in err and "the data" not in err


def test_an_output_that_one_sample_makes_a_single_value_is_refused_for_more(run, tmp_path):
    """The error names a layer of the network, not a tensor of the simulation, and a batch of one sample works."""
    b = networks.Builder()
    squeezed = b.node("Squeeze", [b.node("MatMul", ["x", b.kernel("w", (16, 1), 16)], "/product")], "/squeeze")
    model = b.model([networks.floats("x", "N", 16)], [networks.floats(b.node("Sigmoid", [squeezed], "/score"))])
    onnx.save(model, tmp_path / "score.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((32, 16)).astype(np.float32))
    command = ("compare", tmp_path / "score.onnx", "--data", tmp_path / "x.npz", "--layers", "none")
    code, _, err = run(*command)
    assert code == 2 and "/product" in err and "a single value" in err and "--batch 1" in err, err
    code, text, err = run(*command, "--batch", "1")
    assert code in (0, 1) and "SQNR" in text, err
