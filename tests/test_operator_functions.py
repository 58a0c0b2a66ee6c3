"""trt_tui.core.network.operator_functions: operators written as their ONNX function compute the same."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from trt_tui.core.network.operator_functions import (
    list_function_operators,
    list_operators_with_function,
    write_operators_as_functions,
)

OPSET = 20
pytestmark = pytest.mark.skipif(not list_operators_with_function(["Mish"], OPSET), reason="onnx is older than 1.19")


def two_of(operator: str, attributes: dict, constants: int, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A MatMul between two nodes of an operator, which reads some constants of the last axis."""
    rng, array = np.random.default_rng(0), helper.tensor_dtype_to_np_dtype(dtype)
    weights = [numpy_helper.from_array(rng.uniform(0.5, 1.5, 32).astype(array), f"c{index}")
               for index in range(constants)]
    matrix = numpy_helper.from_array(rng.normal(size=(32, 32)).astype(array), "matrix")
    names = [item.name for item in weights]
    nodes = [helper.make_node(operator, ["x", *names], ["a"], "first", **attributes),
             helper.make_node("MatMul", ["a", "matrix"], ["b"], "product"),
             helper.make_node(operator, ["b", *names], ["y"], "second", **attributes)]
    info = [helper.make_tensor_value_info(name, dtype, [4, 32]) for name in "xy"]
    return helper.make_model(helper.make_graph(nodes, "two", info[:1], info[1:], [*weights, matrix]), ir_version=10,
                             opset_imports=[helper.make_opsetid("", OPSET)])


@pytest.mark.parametrize("operator, attributes, constants", [
    ("Mish", {}, 0), ("HardSwish", {}, 0), ("Softmax", {"axis": -1}, 0), ("Gelu", {"approximate": "tanh"}, 0),
    ("LayerNormalization", {}, 2), ("PRelu", {}, 1), ("LeakyRelu", {}, 0), ("Elu", {}, 0), ("HardSigmoid", {}, 0),
    ("Selu", {}, 0), ("Shrink", {"lambd": 0.3}, 0), ("ThresholdedRelu", {}, 0), ("LogSoftmax", {}, 0),
])
@pytest.mark.parametrize("dtype, decimals", [(TensorProto.FLOAT, 4), (TensorProto.FLOAT16, 1)], ids=["fp32", "fp16"])
def test_a_function_computes_what_its_operator_computes(operator, attributes, constants, dtype, decimals) -> None:
    proto = two_of(operator, attributes, constants, dtype)
    model = ir.from_proto(proto)
    written = write_operators_as_functions(model, [operator])
    assert operator not in {node.op_type for node in written.graph}
    assert ir.to_proto(model).SerializeToString() == ir.to_proto(ir.from_proto(proto)).SerializeToString(), "a copy"
    feed = {"x": np.random.default_rng(1).normal(size=(4, 32)).astype(helper.tensor_dtype_to_np_dtype(dtype))}
    expected, result = (onnxruntime.InferenceSession(item.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feed)[0] for item in (proto, ir.to_proto(written)))
    np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), rtol=0,
                               atol=10.0 ** -decimals)


def test_the_nodes_of_a_function_bear_the_name_of_their_node_and_a_number() -> None:
    written = write_operators_as_functions(ir.from_proto(two_of("Mish", {}, 0)), ["Mish"])
    assert [node.name for node in written.graph] == ["first_1", "first_2", "first_3", "product",
                                                     "second_1", "second_2", "second_3"]
    assert written.graph.initializers["matrix"].const_value is not None


def test_a_name_that_exists_is_not_given_twice() -> None:
    model = ir.from_proto(two_of("Mish", {}, 0))
    next(node for node in model.graph if node.name == "product").name = "first_2"
    names = [node.name for node in write_operators_as_functions(model, ["Mish"]).graph]
    assert names[:4] == ["first_1", "first_3", "first_4", "first_2"] and len(set(names)) == len(names)


def test_a_function_is_described_by_its_operators() -> None:
    assert list_function_operators(ir.from_proto(two_of("Mish", {}, 0)), "Mish") == ["Softplus", "Tanh", "Mul"]
    assert "ReduceMean" in list_function_operators(ir.from_proto(two_of("LayerNormalization", {}, 2)),
                                                   "LayerNormalization")


def test_only_operators_that_onnx_defines_by_others_have_a_function() -> None:
    assert list_operators_with_function(["Mish", "Conv", "Softmax", "Mish", "NoOperator"], OPSET) == ["Mish", "Softmax"]
    assert list_operators_with_function(["Mish", "Softmax"], 13) == ["Softmax"], "Mish came with opset 18"
    model = ir.from_proto(two_of("Mish", {}, 0))
    assert write_operators_as_functions(model, []) is model
