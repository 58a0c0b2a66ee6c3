"""Opening takes work linear in the file: the lines of Python that run, counted, double where the file doubles.

What runs in C++ (parsing, onnx's shape inference and opset conversion) is not counted.
"""

import sys
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.networks import Builder, floats
from trt_tui.core.network.layer_tree import build_scope_tree
from trt_tui.core.network.network import open_network


def chain(count: int) -> onnx.ModelProto:
    b = Builder()
    x = "x"
    for index in range(count):
        x = b.node("Sigmoid", [x], name="same", output=f"t{index}")
    return b.model([floats("x", 1)], [floats(x, 1)])


def chained_concats(count: int) -> onnx.ModelProto:
    b = Builder()
    x = "x"
    for index in range(count):
        x = b.node("Concat", [x, "z"], name=f"c{index}", axis=1)
    b.node("Relu", [x], name="relu", output="y")
    return b.model([floats("x", 1, 1), floats("z", 1, 1)], [floats("y", 1, "n")])


def weights(count: int) -> onnx.ModelProto:
    b = Builder()
    b.node(
        "Sum",
        ["x", *(b.weight(f"w{index}", np.zeros(300, np.float32)) for index in range(count))],
        name="sum",
        output="y",
    )
    return b.model([floats("x", 300)], [floats("y", 300)])


def old_weights(count: int) -> onnx.ModelProto:
    model = weights(count)
    model.opset_import[0].version = 11
    model.graph.input.extend(floats(tensor.name, 300) for tensor in model.graph.initializer)
    return model


def constants(count: int) -> onnx.ModelProto:
    b = Builder()
    x = "x"
    for index in range(count):
        value = b.node("Constant", [], name=f"c{index}", value=numpy_helper.from_array(np.float32([1]), "v"))
        x = b.node("Add", [x, value], name=f"a{index}")
    b.node("Relu", [x], name="relu", output="y")
    return b.model([floats("x", 1)], [floats("y", 1)])


def calls(count: int) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17)]
    body = helper.make_function("local", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)
    b = Builder()
    x = "x"
    for index in range(count):
        x = b.node("F", [x], name="call", domain="local", output=f"t{index}")
    b.node("Relu", [x], name="relu", output="y")
    return b.model([floats("x", 1)], [floats("y", 1)], domains=["local"], functions=[body])


def pairs(count: int) -> onnx.ModelProto:
    b = Builder()
    b.weight("scale", np.float32(0.1))
    b.weight("zero", np.int8(0))
    x = "x"
    for index in range(count):
        codes = b.node("QuantizeLinear", [x, "scale", "zero"], name=f"q{index}")
        values = b.node("DequantizeLinear", [codes, "scale", "zero"], name=f"d{index}")
        x = b.node("Sigmoid", [values], name=f"s{index}")
    b.node("Relu", [x], name="relu", output="y")
    return b.model([floats("x", 1)], [floats("y", 1)])


def branches(count: int) -> onnx.ModelProto:
    b = Builder()
    x = "x"
    for index in range(count):
        then, other = (
            helper.make_graph(
                [helper.make_node("Relu", [x], [f"{name}{index}"])], name, [], [floats(f"{name}{index}", 1)]
            )
            for name in "pq"
        )
        x = b.node("If", ["go"], name=f"if{index}", then_branch=then, else_branch=other)
    b.node("Relu", [x], name="relu", output="y")
    return b.model([floats("x", 1), helper.make_tensor_value_info("go", TensorProto.BOOL, [])], [floats("y", 1)])


def unsorted(count: int) -> onnx.ModelProto:
    model = chain(count)
    model.graph.node.reverse()
    return model


def lines(work: Callable[[], object]) -> int:
    """How many lines of Python run while something is done."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "make", [chain, chained_concats, weights, old_weights, constants, calls, pairs, branches, unsorted]
)
def test_twice_the_file_takes_twice_the_work(make, tmp_path):
    def work() -> None:
        network = open_network(path)
        build_scope_tree(network.layers, network.groups)
        network.build_outline()

    path = tmp_path / "model.onnx"
    counted = []
    for count in (10, 100, 200):  # the first fills caches
        onnx.save(make(count), path)
        counted.append(lines(work))
    assert counted[2] < 2.3 * counted[1], counted
