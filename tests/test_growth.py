"""Tests of trt_tui.core.network.inference: constants that a few bytes ask for are refused, not computed."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.network import inference
from trt_tui.errors import InputError

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
    count = b.node("Range", [b.weight("from", np.int64(0)), b.weight("to", np.int64(MANY * MANY)),
                             b.weight("by", np.int64(1))], name="big")
    return b.node("Cast", [count], name="floats", to=TensorProto.FLOAT)


def _broadcast(b):
    column, row = (b.node("ConstantOfShape", [integers(b, name, *sizes)], name=name)
                   for name, sizes in (("column", (MANY, 1)), ("row", (1, MANY))))
    return b.node("Add", [column, row], name="big")


def _behind_arithmetic(b):
    """Sizes that onnx's inference loses: chosen by a Where."""
    base = integers(b, "base", -1, 1024)
    side = b.node("Constant", [], name="side", value=numpy_helper.from_array(np.array([MANY, 1], np.int64), "v"))
    open_ = b.node("Equal", [base, integers(b, "minus", -1)], name="open")
    sizes = b.node("Where", [open_, side, base], name="where")
    return b.node("Expand", [b.weight("one", np.float32([1])), b.node("Mul", [sizes, sizes], name="square")],
                  name="big")


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
