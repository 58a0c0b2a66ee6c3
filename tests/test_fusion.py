"""Each rule of trt_tui.core.network.fusion: a case where it applies, and one for each reason it declines for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.networks import Builder, floats
from trt_tui.core.network.fusion import (
    batch_normalisation,
    constant_pointwise,
    copies,
    moved_bias,
    normalisation,
    pointwise_region,
    residual,
)
from trt_tui.core.network.fusion.growing import Growing, Members


def growing_of(opened, build):
    """A network whose last tensor is its output, with no group yet."""
    b = Builder()
    last = build(b)
    return Growing(opened(b.model([floats("x", 1, 4, 8, 8), floats("z", 1, 4, 8, 8)],
                                  [floats(last, None, None, None, None)])).graph)


def behind_first(opened, build):
    """The same, and a group of its first layer."""
    growing = growing_of(opened, build)
    first = growing.graph.layers[0]
    members = growing.owner[first.name] = Members(first, first.outputs[0])
    return growing, members


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


def added(b, other="z", first=None):
    return b.node("Add", [(first or conv)(b), other], "/add")


def twice(b):
    x = conv(b)
    return b.node("Add", [x, x], "/add")


@pytest.mark.parametrize(("rule", "build", "taken"), [
    (batch_normalisation, lambda b: norm(b, conv(b)), "BatchNormalization"),
    (constant_pointwise, lambda b: relu(b, conv(b)), "Relu"),
    (residual, added, "Add"),
    (moved_bias, lambda b: copied(b, lambda b, x: b.node("Add", [x, b.vector("bias", 8)], "/add")), "Transpose"),
    (pointwise_region, silu, "Sigmoid Mul"),
])
def test_a_group_grows(rule, build, taken, opened):
    growing, members = behind_first(opened, build)
    match = rule.match(growing, members)
    assert match and not match.reason and " ".join(layer.op_type for layer in match.layers) == taken
    growing.take(members, match)
    assert members.tail == match.layers[-1].outputs[0] and all(growing.owner[one.name] is members
                                                               for one in match.layers)
    assert (members.computed == members.tail) is (rule is not moved_bias)
    assert (members.skip is not None) is (rule is residual)


@pytest.mark.parametrize(("rule", "build", "reason"), [
    (batch_normalisation, lambda b: relu(b, conv(b)), "no BatchNormalization"),
    (batch_normalisation, two_readers, "read elsewhere"),
    (constant_pointwise, added, "another tensor"),
    (constant_pointwise, two_readers, "read elsewhere"),
    (residual, two_readers, "read elsewhere"),
    (residual, lambda b: added(b, first=lambda b: relu(b, "x")), "Relu has no kernel"),
    (residual, lambda b: relu(b, conv(b)), "no Add of two"),
    (moved_bias, two_readers, "read elsewhere"),
    (moved_bias, lambda b: relu(b, conv(b)), "more than move"),
    (moved_bias, lambda b: copied(b, lambda b, x: b.node("Softmax", [x], "/soft")), "no bias"),
    (pointwise_region, two_readers, "no pointwise operators"),
    (pointwise_region, conv, "an output of the network"),
])
def test_a_rule_declines_with_its_reason(rule, build, reason, opened):
    match = rule.match(*behind_first(opened, build))
    assert not match and not match.layers and reason in match.reason


def test_a_group_has_one_residual_add(opened):
    growing, members = behind_first(opened, lambda b: b.node("Add", [added(b), "x"], "/again"))
    growing.take(members, residual.match(growing, members))
    assert "already" in residual.match(growing, members).reason


def test_a_tensor_added_to_itself_is_no_residual(opened):
    growing, members = behind_first(opened, twice)
    assert "own" in residual.match(growing, members).reason


def softmax(b):
    x = b.node("Exp", [b.node("Sub", ["x", b.node("ReduceMax", ["x"], "/max", axes=[-1])], "/sub")], "/exp")
    return b.node("Div", [x, b.node("ReduceSum", [x, b.weight("last", np.array([-1]))], "/sum")], "/div")


def test_a_normalisation_that_was_taken_apart_is_found_at_its_first_layer(opened):
    growing = growing_of(opened, softmax)
    first, *others = growing.graph.layers
    match = normalisation.match(growing, first)
    assert list(match.layers) == others and match.tail == others[-1].outputs[0]
    assert normalisation.operator(growing.graph.layers) == "Softmax"


@pytest.mark.parametrize(("build", "reason"), [
    (lambda b: relu(b, "x"), "starts with Relu"),
    (lambda b: b.node("Mul", ["x", "z"], "/mul"), "several tensors"),
    (lambda b: b.node("Softmax", [b.node("ReduceMax", ["x"], "/max", axes=[-1])], "/soft"), "before it is scaled"),
])
def test_what_is_no_normalisation_says_why(build, reason, opened):
    growing = growing_of(opened, build)
    match = normalisation.match(growing, growing.graph.layers[0])
    assert not match and reason in match.reason
    assert normalisation.operator(growing.graph.layers) == ""


def test_a_copy_joins_what_computed_its_values(opened):
    growing, members = behind_first(opened, lambda b: copied(b, relu))
    copy, behind = growing.graph.layers[1:]
    assert copies.source(growing, copy) is members and copies.match(growing, members, copy).layers == (copy,)
    assert "more than move" in copies.match(growing, members, behind).reason
    members.takes_copies = False
    assert "kept as it is" in copies.match(growing, members, copy).reason


def test_a_copy_that_waits_for_a_later_group_does_not_join(opened):
    def picks(b):
        x = conv(b)
        which = b.node("ArgMax", [b.node("Softmax", [x], "/soft")], "/pick", axis=-1, keepdims=0)
        return b.node("Gather", [x, which], "/gather", axis=0)

    growing, members = behind_first(opened, picks)
    copy = growing.graph.layers[-1]
    growing.ready[copy.inputs[1]] = members.position + 1
    assert copies.source(growing, copy) is members
    assert copy.inputs[1] in copies.match(growing, members, copy).reason
