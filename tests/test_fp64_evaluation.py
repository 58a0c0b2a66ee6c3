"""trt_tui.core.measure.fp64_evaluation: equal to onnx's reference operators, and nearer to the truth than FP32."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests import networks
from trt_tui.core.measure.fp64_evaluation import Fp64Evaluator, UnsupportedOperatorError, measure_relative_difference
from trt_tui.errors import TrtTuiError

RNG = np.random.default_rng(0)


def of_one(op: str, inputs: list[np.ndarray | None], opset: int = 18, **attributes: object) -> onnx.ModelProto:
    """A model of one node; its first input is fed, the others are constants."""
    names = [f"i{index}" if array is not None else "" for index, array in enumerate(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], f"/{op}", **attributes)], "g",
        [helper.make_tensor_value_info("i0", TensorProto.FLOAT, inputs[0].shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for array, name in zip(inputs[1:], names[1:], strict=True) if name])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("op", "inputs", "attributes"), [
    ("Conv", [random(2, 4, 9, 8), random(6, 4, 3, 3), random(6)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("Conv", [random(2, 4, 9, 8), random(6, 2, 3, 2)], {"group": 2, "dilations": [2, 1]}),
    ("Conv", [random(1, 4, 9, 8), random(4, 1, 3, 3), random(4)], {"group": 4, "auto_pad": "SAME_UPPER"}),
    ("Conv", [random(2, 4, 20), random(6, 4, 7)], {"pads": [9, 9], "dilations": [3]}),
    ("ConvTranspose", [random(2, 4, 5, 6), random(4, 3, 3, 3), random(3)],
     {"strides": [2, 2], "pads": [1, 0, 1, 1], "output_padding": [1, 1]}),
    ("ConvTranspose", [random(2, 4, 10), random(4, 1, 4)], {"strides": [2], "pads": [1, 1], "group": 2}),
    ("MaxPool", [random(2, 3, 9, 8)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ("AveragePool", [random(2, 3, 9, 8)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("AveragePool", [random(2, 3, 9, 8)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("Resize", [random(1, 2, 5, 4), None, np.array([1, 1, 2, 2], np.float32)],
     {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
    ("Resize", [random(1, 2, 5, 4), None, None, np.array([1, 2, 8, 9])],
     {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ("Resize", [random(1, 2, 5, 4), None, np.array([1, 1, 2, 1.5], np.float32)], {"mode": "cubic"}),
], ids=lambda item: item if isinstance(item, str) else "")
def test_a_fast_operator_equals_the_reference_operator(op, inputs, attributes) -> None:
    model = of_one(op, inputs, **attributes)
    expected = [networks.quiet_session(model).run(None, {"i0": inputs[0]})[0]]
    if op != "ConvTranspose" or "group" not in attributes:  # the reference operator fails on groups
        expected.append(ReferenceEvaluator(model).run(None, {"i0": inputs[0]})[0])
    actual = Fp64Evaluator(ir.from_proto(model)).evaluate({"i0": inputs[0]})["y"]
    for array in expected:
        assert actual.dtype == np.float64 and actual.shape == array.shape
        np.testing.assert_allclose(actual, array, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "mlp", "bert", "vit"])
def test_a_network_is_as_onnx_runtime_computes_it(name) -> None:
    model = getattr(networks, name)()
    feed = {}
    for info in model.graph.input:
        shape = [size.dim_value or 2 for size in info.type.tensor_type.shape.dim]
        is_float = info.type.tensor_type.elem_type == TensorProto.FLOAT
        feed[info.name] = random(*shape) if is_float else np.ones(shape, np.int64)
    expected = networks.quiet_session(model).run(None, feed)
    outputs = Fp64Evaluator(ir.from_proto(model)).evaluate(feed)
    for array, output in zip(expected, outputs.values(), strict=True):
        difference = np.linalg.norm(array - output) / np.linalg.norm(output)
        assert 0 < difference < 1e-5


def test_it_sees_a_sum_that_fp32_loses() -> None:
    model = of_one("MatMul", [np.array([[1e8, 1, -1e8]], np.float32), np.ones((3, 1), np.float32)])
    assert Fp64Evaluator(ir.from_proto(model)).evaluate({"i0": np.array([[1e8, 1, -1e8]], np.float32)})["y"] == 1


@pytest.mark.parametrize(("op", "domain"), [("Foreign", "com.example"), ("GroupNormalization", "")])
def test_an_operator_without_a_reference_is_named(op, domain) -> None:
    inputs = [random(1, 4, 2, 2), np.ones(4, np.float32), np.zeros(4, np.float32)]
    model = of_one(op, inputs, 21, domain=domain, **({"num_groups": 2} if not domain else {}))
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(UnsupportedOperatorError, match=op) as raised:
        Fp64Evaluator(ir.from_proto(model)).evaluate({"i0": inputs[0]})
    assert raised.value.operator == op


def test_random_errors_stay_within_their_largest_relative_error_and_repeat() -> None:
    model = ir.from_proto(of_one("Tanh", [random(64, 64)]))
    feed = {"i0": random(64, 64)}
    exact, first, second = (Fp64Evaluator(model).evaluate(feed, relative_errors=errors)["y"]
                            for errors in (None, {"Tanh": 2.0**-11}, {"Tanh": 2.0**-11}))
    errors = np.abs(first / exact - 1)
    assert 2**-12 < errors.max() <= 2**-11 and np.array_equal(first, second)
    assert np.array_equal(exact, Fp64Evaluator(model).evaluate(feed, relative_errors={"Sigmoid": 0.5})["y"])


def test_an_evaluation_ends_with_its_time() -> None:
    model = ir.from_proto(of_one("Tanh", [random(2, 2)]))
    with pytest.raises(TrtTuiError, match="FP64 has not ended"):
        Fp64Evaluator(model).evaluate({"i0": random(2, 2)}, has_time=lambda: False)


def test_the_first_node_that_fp32_computes_differently_is_named() -> None:
    """Nodes behind it get the same inputs in both, so that they are not accused."""
    matrix = numpy_helper.from_array(random(6, 6), "matrix")
    nodes = [helper.make_node("MatMul", ["x", "matrix"], ["a"], "first"),
             helper.make_node("Tanh", ["a"], ["b"], "second"),
             helper.make_node("MatMul", ["b", "matrix"], ["y"], "third")]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 6]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:], [matrix]), ir_version=9,
                              opset_imports=[helper.make_opsetid("", 18)])
    evaluator, feed = Fp64Evaluator(ir.from_proto(model)), {"x": random(4, 6)}
    values = {name: array.astype(np.float32) for name, array in evaluator.evaluate(feed, ["a", "b", "y"]).items()}
    assert evaluator.find_mismatch({**feed, **values}, 1e-3) is None
    wrong_b = values["b"] * np.float32(1.1)
    wrong_y = wrong_b @ numpy_helper.to_array(matrix)
    found = evaluator.find_mismatch({**feed, **values, "b": wrong_b, "y": wrong_y}, 1e-3)
    assert found is not None and found.title.startswith("Tanh of second differs by 0.1")


def test_differences_are_relative_to_the_reference() -> None:
    reference = np.array([3.0, 4.0, np.nan])
    assert measure_relative_difference(np.array([3.3, 4.4, 5.0], np.float32), reference) == pytest.approx(0.1)
    assert measure_relative_difference(np.zeros(2, np.float32), np.zeros(2)) == 0.0
    assert measure_relative_difference(np.ones(2, np.float32), np.zeros(2)) == np.inf
    assert measure_relative_difference(np.ones(2, np.float32), np.zeros(3)) == np.inf, "another shape"
    assert measure_relative_difference(None, reference) == 0.0
    assert measure_relative_difference(np.ones(2, np.int64), np.zeros(2, np.int64)) == 0.0
