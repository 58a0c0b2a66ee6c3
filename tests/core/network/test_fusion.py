"""Each rule of trt_tui.core.network.fusion: a case where it applies, and one for each reason it declines for.

The reasons are the names of the cases."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.networks import Builder, floats
from tests.networks.decoder import attention as core
from tests.networks.decoder import rotary as rotated
from trt_tui.core.network.fusion import attention, decomposed_operators, epilogues
from trt_tui.core.network.fusion.attention import match_attention_scaling
from trt_tui.core.network.fusion.decomposed_operators import (
    match_activation,
    match_group_normalisation,
    match_normalisation,
    match_rotary_embedding,
)
from trt_tui.core.network.fusion.epilogues import (
    match_batch_normalisation,
    match_constant_pointwise,
    match_pointwise_region,
    match_residual_add,
    match_trailing_reshapes,
)
from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState
from trt_tui.core.network.fusion.groups import build_fusion_groups

STARTS = (
    match_activation,
    match_group_normalisation,
    match_normalisation,
    match_rotary_embedding,
    match_attention_scaling,
)
"""The rules that make a group of a layer; the others let one grow."""


def growing_of(opened, build):
    """A network whose last tensor is its output, with no group yet."""
    b = Builder()
    last = build(b)
    output = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
    return FusionGroupingState(opened(b.model([floats("x", 1, 4, 8, 8), floats("z", 1, 4, 8, 8)], [output])).graph)


def behind_first(opened, build):
    """The same, and a group of its first layer."""
    growing = growing_of(opened, build)
    return growing, started(growing, growing.graph.layers[0].name)


def started(growing, name):
    """A group of the layer of a name."""
    layer = growing.graph.by_name[name]
    members = growing.draft_by_layer[name] = FusionGroupDraft(layer, layer.outputs[0])
    return members


def node(b, operator, *inputs, **attributes):
    """A layer named after its place; numbers are constants."""
    read = [one if isinstance(one, str) else b.weight(f"c{len(b.nodes)}", np.float32(one)) for one in inputs]
    return b.node(operator, read, f"/{len(b.nodes)}", **attributes)


def conv(b):
    return b.conv("x", (4, 4), "/conv")


def relu(b, x, name="/relu"):
    return b.node("Relu", [x], name)


def norm(b, x):
    return b.batch_norm(x, 4, "/bn")


def two_readers(b):
    x = conv(b)
    return b.node("Mul", [relu(b, x), b.node("Softmax", [x], "/soft")], "/mul")


def copied(b, then):
    x = b.node("Transpose", [b.node("MatMul", ["x", b.kernel("w", (8, 8), 8)], "/fc")], "/move", perm=[0, 2, 1, 3])
    return then(b, x)


def silu(b):
    x = conv(b)
    return b.node("Mul", [x, b.node("Sigmoid", [x], "/sigmoid")], "/mul")


def gelu(b, x):
    """By the error function."""
    gate = node(b, "Add", node(b, "Erf", node(b, "Div", x, 1.414)), 1)
    return node(b, "Mul", node(b, "Mul", x, gate), 0.5)


def gelu_tanh(b, x, cube=lambda b, x: node(b, "Pow", x, 3)):
    curve = node(b, "Mul", node(b, "Add", x, node(b, "Mul", cube(b, x), 0.044715)), 0.798)
    return node(b, "Mul", node(b, "Mul", x, 0.5), node(b, "Add", node(b, "Tanh", curve), 1))


def swish(b, x, gate="Sigmoid", scale=None, **attributes):
    return node(b, "Mul", x, node(b, gate, x if scale is None else node(b, "Mul", x, scale), **attributes))


def with_reader(b, x):
    """The tensor is read by something else too."""
    return b.node("Add", [swish(b, x), b.node("Softmax", [x], "/soft")], "/add")


def added(b, other="z", first=None):
    return b.node("Add", [(first or conv)(b), other], "/add")


def twice(b):
    x = conv(b)
    return b.node("Add", [x, x], "/add")


@pytest.mark.parametrize(
    ("rule", "build", "taken"),
    [
        (match_batch_normalisation, lambda b: norm(b, conv(b)), "BatchNormalization"),
        (match_constant_pointwise, lambda b: relu(b, conv(b)), "Relu"),
        (match_residual_add, added, "Add"),
        (
            match_trailing_reshapes,
            lambda b: copied(b, lambda b, x: b.node("Add", [x, b.vector("bias", 8)], "/add")),
            "Transpose",
        ),
        (
            match_trailing_reshapes,
            lambda b: copied(b, lambda b, x: gelu(b, b.node("Identity", [x], "/same"))),
            "Transpose Identity",
        ),
        (match_pointwise_region, silu, "Sigmoid Mul"),
    ],
)
def test_a_group_grows(rule, build, taken, opened):
    growing, members = behind_first(opened, build)
    match = rule(growing, members)
    assert " ".join(layer.op_type for layer in match.layers) == taken
    growing.apply_match(members, match)
    assert members.output_tensor == match.layers[-1].outputs[0] and all(
        growing.draft_by_layer[one.name] is members for one in match.layers
    )
    assert (members.computed_tensor == members.output_tensor) is (rule is not match_trailing_reshapes)
    assert (members.skip_input is not None) is (rule is match_residual_add)


def test_a_group_has_one_residual_add(opened):
    growing, members = behind_first(opened, lambda b: b.node("Add", [added(b), "x"], "/again"))
    growing.apply_match(members, epilogues.match_residual_add(growing, members))
    assert epilogues.match_residual_add(growing, members) is None


def test_a_tensor_added_to_itself_is_no_residual(opened):
    growing, members = behind_first(opened, twice)
    assert epilogues.match_residual_add(growing, members) is None


def mean(b, x, operator="ReduceMean"):
    return node(b, operator, x, axes=[-1])


def softmax(b):
    x = node(b, "Exp", node(b, "Sub", "x", mean(b, "x", "ReduceMax")))
    return node(b, "Div", x, b.node("ReduceSum", [x, b.weight("last", np.array([-1]))], "/sum"))


def rms(b, root=lambda b, x: node(b, "Div", 1, node(b, "Sqrt", x)), square=lambda b: node(b, "Pow", "x", 2)):
    return node(b, "Mul", "x", root(b, node(b, "Add", mean(b, square(b)), 1e-6)))


def l2(b):
    length = node(b, "Clip", mean(b, "x", "ReduceL2"), 1e-12)
    return node(b, "Div", "x", b.node("Expand", [length, b.weight("to", np.array([1, 4, 8, 8]))], "/expand"))


def mean_of_squares(b):
    middle = mean(b, "x")
    spread = node(b, "Sub", mean(b, node(b, "Mul", "x", "x")), node(b, "Mul", middle, middle))
    return node(b, "Div", node(b, "Sub", "x", middle), node(b, "Sqrt", node(b, "Add", spread, 1e-5)))


def group_norm(b, split=True, back=True):
    x = b.node("Reshape", ["x", b.weight("groups", np.array([1, 2, -1]))], "/split") if split else "x"
    ones = b.weight("ones", np.ones(2 if split else 4, np.float32))
    x = node(b, "InstanceNormalization", x, ones, ones)
    return b.node("Reshape", [x, b.weight("whole", np.array([1, 4, 8, 8]))], "/back") if back else x


@pytest.mark.parametrize(
    ("rule", "build", "name"),
    [
        (match_normalisation, softmax, "Softmax"),
        (match_normalisation, rms, "RMSNorm"),
        (
            match_normalisation,
            lambda b: rms(
                b, lambda b, x: node(b, "Reciprocal", node(b, "Sqrt", x)), lambda b: node(b, "Mul", "x", "x")
            ),
            "RMSNorm",
        ),
        (match_normalisation, lambda b: rms(b, lambda b, x: node(b, "Pow", x, -0.5)), "RMSNorm"),
        (match_normalisation, l2, "L2Norm"),
        (match_normalisation, mean_of_squares, "LayerNorm"),
        (match_group_normalisation, group_norm, "GroupNorm"),
        (match_activation, lambda b: gelu_tanh(b, "x"), "GELU"),
        (match_activation, lambda b: gelu_tanh(b, "x", lambda b, x: node(b, "Mul", node(b, "Mul", x, x), x)), "GELU"),
        (match_activation, lambda b: swish(b, "x", scale=1.702), "GELU"),
        (match_activation, lambda b: swish(b, "x"), "SiLU"),
        (match_activation, lambda b: swish(b, "x", "HardSigmoid"), "HardSwish"),
        (match_activation, lambda b: node(b, "Mul", "x", node(b, "Tanh", node(b, "Softplus", "x"))), "Mish"),
    ],
)
def test_what_was_taken_apart_is_found_at_its_first_layer(rule, build, name, opened):
    growing = growing_of(opened, build)
    first, *others = [layer for layer in growing.graph.layers if not layer.name.startswith("/split")]
    match = rule(growing, first)
    assert list(match.layers) == others and match.output_tensor == others[-1].outputs[0] and match.operator_name == name


@pytest.mark.parametrize("build", [lambda b: gelu(b, "x"), lambda b: with_reader(b, "x")])
def test_an_activation_ends_in_its_product(build, opened):
    """What scales it follows by a rule of its own; others may read what it is of."""
    growing = growing_of(opened, build)
    match = decomposed_operators.match_activation(growing, growing.graph.layers[0])
    end = growing.graph.by_name[growing.graph.producer[match.output_tensor]]
    assert end.op_type == "Mul" and end is match.layers[-1]
    assert len(match.layers) == {"GELU": 3, "SiLU": 1}[match.operator_name]


def test_a_copy_joins_what_computed_its_values(opened):
    growing, members = behind_first(opened, lambda b: copied(b, relu))
    copy, behind = growing.graph.layers[1:]
    assert epilogues.find_producer_group_of_copy(growing, copy) is members and epilogues.match_copy(
        growing, members, copy
    ).layers == (copy,)
    assert epilogues.match_copy(growing, members, behind) is None
    members.accepts_copies = False
    assert epilogues.match_copy(growing, members, copy) is None


def test_a_copy_that_waits_for_a_later_group_does_not_join(opened):
    def picks(b):
        x = conv(b)
        which = b.node("ArgMax", [b.node("Softmax", [x], "/soft")], "/pick", axis=-1, keepdims=0)
        return b.node("Gather", [x, which], "/gather", axis=0)

    growing, members = behind_first(opened, picks)
    copy = growing.graph.layers[-1]
    assert epilogues.find_producer_group_of_copy(growing, copy) is members
    growing.ready_positions[copy.inputs[1]] = members.position + 1
    assert epilogues.match_copy(growing, members, copy) is None
    growing.ready_positions[copy.inputs[1]] = members.position - 1
    assert epilogues.match_copy(growing, members, copy).layers == (copy,)


def seen(b):
    return node(b, "Greater", "z", 0)


def products(b, **options):
    """An attention over the inputs; what it is masked by comes with them."""
    return core(b, *(b.node("Relu", ["x"], f"/{name}") for name in "qkv"), seen(b), **options)


def turned(b, **options):
    return rotated(b, "x", *(b.weight(name, np.ones(8, np.float32)) for name in ("cos", "sin")), "/rotary", **options)


def turned_in_pairs(b):
    """As GPT-J does: neighbours are swapped."""
    pieces = (
        b.node(
            "Slice",
            [
                "x",
                *(
                    b.weight(f"{part}{name}", np.array([value]))
                    for name, value in (("from", part), ("to", 8), ("axis", 3), ("step", 2))
                ),
            ],
            f"/{part}",
        )
        for part in range(2)
    )
    even, odd = (b.node("Unsqueeze", [one, b.weight(f"{one}.at", np.array([-1]))], one) for one in pieces)
    x = b.node("Concat", [node(b, "Neg", odd), even], "/join", axis=-1)
    x = b.node("Reshape", [x, b.weight("whole", np.array([1, 4, 8, 8]))], "/join")
    return node(b, "Add", node(b, "Mul", "x", "z"), node(b, "Mul", x, "z"))


def scores_of(opened, build):
    growing = growing_of(opened, build)
    return growing, growing.graph.by_name["/attn/scores/MatMul"]


def test_the_scaling_of_scores_joins_them(opened):
    growing, product = scores_of(opened, products)
    assert [one.name for one in attention.match_attention_scaling(growing, product).layers] == [
        "/attn/scale_q/Mul",
        "/attn/scale_k/Mul",
    ]


@pytest.mark.parametrize(("masked", "taken", "moves"), [("chosen", "Where", True), ("added", "Where", False)])
def test_a_mask_joins_the_scores(masked, taken, moves, opened):
    growing, product = scores_of(opened, lambda b: products(b, masked=masked))
    members = started(growing, product.name)
    if residual := epilogues.match_residual_add(growing, members):
        growing.apply_match(members, residual)
    match = epilogues.match_where_mask(growing, members)
    assert [one.op_type for one in match.layers] == [taken] and bool(match.output_tensor) is moves


def chosen_by_nan(b, x):
    return node(b, "Where", node(b, "IsNaN", x), "z", x)


def mask_read_twice(b):
    x = products(b)
    return node(b, "Add", node(b, "Exp", "/attn/mask/Where_output_0"), x)


@pytest.mark.parametrize(
    ("build", "name", "reason"),
    [
        (lambda b: relu(b, conv(b)), "/conv/Conv", "two activations"),
        (lambda b: products(b, masked=""), "/attn/scores/MatMul", "no mask"),
        (
            lambda b: added(b, first=lambda b: b.node("MatMul", ["x", "z"], "/product")),
            "/product/MatMul",
            "not a choice",
        ),
        (mask_read_twice, "/attn/scores/MatMul", "the added mask has other readers"),
    ],
)
def test_what_is_no_mask_does_not_join(build, name, reason, opened):
    growing = growing_of(opened, build)
    members = started(growing, name)
    if residual := epilogues.match_residual_add(growing, members):
        growing.apply_match(members, residual)
    assert epilogues.match_where_mask(growing, members) is None


@pytest.mark.parametrize(
    ("build", "name", "reason"),
    [
        (products, "/attn/Softmax", ""),
        (products, "/q/Relu", "Relu is not a Softmax"),
        (lambda b: products(b, guarded=False), "/attn/Softmax", "not an IsNaN"),
        (lambda b: chosen_by_nan(b, b.node("Softmax", ["x"], "/attn")), "/attn/Softmax", "a constant"),
    ],
)
def test_a_guard_against_nan_joins_its_softmax(build, name, reason, opened):
    growing = growing_of(opened, build)
    match = epilogues.match_nan_masking(growing, started(growing, name))
    assert match is None if reason else [one.op_type for one in match.layers] == ["IsNaN", "Where"]


@pytest.mark.parametrize("build", [turned, turned_in_pairs])
def test_a_rotation_is_found_at_its_first_layer(build, opened):
    growing = growing_of(opened, build)
    first = next(one for one in growing.graph.layers if one.op_type in ("Mul", "Neg"))
    match = decomposed_operators.match_rotary_embedding(growing, first)
    assert {first, *match.layers} == {one for one in growing.graph.layers} and match.operator_name == "RotaryEmbedding"


@pytest.mark.parametrize(
    ("rule", "build", "reason"),
    [
        (match_batch_normalisation, lambda b: relu(b, conv(b)), "no BatchNormalization"),
        (match_batch_normalisation, two_readers, "other readers"),
        (match_constant_pointwise, added, "another tensor"),
        (match_constant_pointwise, two_readers, "other readers"),
        (match_residual_add, two_readers, "other readers"),
        (match_residual_add, lambda b: added(b, first=lambda b: relu(b, "x")), "Relu has no kernel"),
        (match_residual_add, lambda b: relu(b, conv(b)), "no Add of two"),
        (match_trailing_reshapes, two_readers, "other readers"),
        (match_trailing_reshapes, lambda b: relu(b, conv(b)), "more than copy"),
        (match_trailing_reshapes, lambda b: copied(b, lambda b, x: b.node("Softmax", [x], "/soft")), "no bias"),
        (match_pointwise_region, two_readers, "not pointwise operators"),
        (match_pointwise_region, conv, "is a network output"),
        (match_activation, lambda b: b.node("Mul", ["x", "z"], "/mul"), "several tensors"),
        (match_activation, lambda b: node(b, "Mul", "x", relu(b, "x")), "no"),
        (match_activation, lambda b: node(b, "Mul", "z", node(b, "Sigmoid", "x")), "no activation of the form"),
        (match_normalisation, lambda b: relu(b, "x"), "starts with Relu"),
        (match_normalisation, lambda b: b.node("Mul", ["x", "z"], "/mul"), "several tensors"),
        (match_normalisation, lambda b: b.node("Softmax", [mean(b, "x", "ReduceMax")], "/soft"), "intermediate result"),
        (match_normalisation, lambda b: node(b, "Div", 1, node(b, "Sqrt", mean(b, "x"))), "intermediate result"),
        (match_group_normalisation, lambda b: relu(b, "x"), "start with Relu"),
        (match_group_normalisation, lambda b: group_norm(b, split=False, back=False), "one by one"),
        (match_group_normalisation, lambda b: group_norm(b, back=False), "no Reshape"),
        (match_attention_scaling, products, "two activations"),
        (match_attention_scaling, lambda b: b.node("MatMul", ["x", "z"], "/product"), "no Softmax"),
        (
            match_attention_scaling,
            lambda b: b.node("Softmax", [b.node("MatMul", ["x", "z"], "/product")], "/soft"),
            "not scaled",
        ),
        (match_rotary_embedding, lambda b: relu(b, "x"), "starts with Relu"),
        (match_rotary_embedding, lambda b: relu(b, node(b, "Mul", "x", "z")), "no Add"),
        (
            match_rotary_embedding,
            lambda b: node(b, "Add", node(b, "Mul", "x", "z"), node(b, "Mul", node(b, "Neg", "x"), "z")),
            "halves",
        ),
    ],
)
def test_a_rule_declines(rule, build, reason, opened):
    growing = growing_of(opened, build)
    first = next(layer for layer in growing.graph.layers if not layer.name.startswith("/split"))
    assert rule(growing, first if rule in STARTS else started(growing, first.name)) is None


@pytest.mark.parametrize(
    ("options", "roles"),
    [
        ({}, ["QK", "Softmax", "PV"]),
        ({"masked": "chosen", "guarded": False}, ["QK", "Softmax", "PV"]),
        ({"guarded": False, "between": ["Mul", "z"]}, ["QK", "Softmax", "mask", "PV"]),
        ({"guarded": False, "between": ["LogSoftmax"]}, []),
    ],
)
def test_the_groups_of_an_attention_know_their_roles(options, roles, opened):
    growing = growing_of(opened, lambda b: products(b, **options))
    groups = [group for group in build_fusion_groups(growing.graph) if group.attention]
    assert [group.attention_role for group in groups] == roles and {group.attention for group in groups} <= {
        "/attn/Softmax"
    }


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda b: relu(b, "x"), "Relu is not a Softmax"),
        (lambda b: b.node("Softmax", [relu(b, "x")], "/soft"), "its scores are not"),
        (
            lambda b: b.node("Softmax", [b.node("MatMul", ["x", "z"], "/product")], "/soft"),
            "other layers than a product",
        ),
    ],
)
def test_what_is_no_attention_has_no_roles(build, reason, opened):
    growing = growing_of(opened, build)
    for layer in growing.graph.layers:
        members = started(growing, layer.name)
    assert not attention.match_attention(growing, members)
