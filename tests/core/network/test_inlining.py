import time

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.network.model_editing import MAX_INLINED_NODES, SCOPE_KEY
from trt_tui.core.network.network import open_network
from trt_tui.core.network.opening import open_model
from trt_tui.errors import InputError

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def function(name, nodes, inputs=("a",), outputs=("b",), opsets=None, attributes=(), **more):
    return helper.make_function(
        "local", name, list(inputs), list(outputs), nodes, opsets or OPSETS, list(attributes), **more
    )


def calling(operator, functions, *, size=4, outputs=("y",), inputs=("x",), **attributes):
    node = helper.make_node(operator, list(inputs), list(outputs), name="call", domain="local", **attributes)
    b = Builder()
    b.nodes.append(node)
    return b.model(
        [floats("x", size)], [floats(name, size) for name in outputs if name], domains=["local"], functions=functions
    )


def check(model, tmp_path, backend, feeds):
    """Opens the model and holds what it computes against the file."""
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    opened = open_model(path)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    with backend.load(opened.model, optimize=False) as runner:
        got = runner.run(feeds)
    for value, array in zip(expected, got.values(), strict=True):
        np.testing.assert_allclose(array, value, rtol=1e-5)
    assert [value.name for value in opened.model.graph.outputs] == [value.name for value in model.graph.output]
    return opened


X = {"x": np.float32([-2, -1, 0, 3])}


def test_attributes_go_from_the_call_into_the_nodes(tmp_path):
    leaky = helper.make_node("LeakyRelu", ["a"], ["m"])
    leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    celu = helper.make_node("Celu", ["m"], ["b"])
    celu.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="bend")
    body = function("F", [leaky, celu], attributes=["slope"], attribute_protos=[helper.make_attribute("bend", 0.5)])
    for given in ({"slope": 0.25}, {"slope": 0.25, "bend": 2.0}):
        path = tmp_path / "model.onnx"
        onnx.save(calling("F", [body], **given), path)
        opened = open_model(path)
        assert [node.attributes["alpha"].value for node in opened.model.graph] == [0.25, given.get("bend", 0.5)]


def test_a_function_may_hand_its_input_on(tmp_path, backend):
    body = function("F", [helper.make_node("Relu", ["a"], ["b"])], outputs=("b", "a"))
    opened = check(calling("F", [body], outputs=("y", "z")), tmp_path, backend, X)
    assert [node.op_type for node in opened.model.graph] == ["Relu", "Identity"]


def test_subgraphs_of_a_function_keep_what_they_capture(tmp_path, backend):
    def branch(name, operator):
        return helper.make_graph(
            [helper.make_node("Twice", ["s"], ["t"], domain="local"), helper.make_node(operator, ["t", "m"], [name])],
            name,
            [],
            [floats(name, 4)],
            [numpy_helper.from_array(np.float32([1, 2, 3, 4]), "s")],
        )

    choose = function(
        "Choose",
        [
            helper.make_node("If", ["go"], ["b"], then_branch=branch("p", "Add"), else_branch=branch("q", "Mul")),
            helper.make_node("Relu", ["a"], ["m"]),
        ],
        inputs=("a", "go"),
    )
    twice = function("Twice", [helper.make_node("Add", ["a", "a"], ["b"])])
    b = Builder()
    first = b.node("Choose", ["x", "go"], name="one", domain="local")
    b.node("Choose", [first, "go"], name="two", domain="local", output="y")
    model = b.model(
        [floats("x", 4), helper.make_tensor_value_info("go", TensorProto.BOOL, [])],
        [floats("y", 4)],
        domains=["local"],
        functions=[choose, twice],
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    opened = open_model(path)
    s = np.float32([2, 4, 6, 8])
    for go in (True, False):
        with backend.load(opened.model, optimize=False) as runner:
            got = runner.run({**X, "go": np.array(go)})["y"]
        expected = np.maximum(X["x"], 0)
        expected = s + np.maximum(s + expected, 0) if go else s * np.maximum(s * expected, 0)
        np.testing.assert_allclose(got, expected)


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ([function("F", [helper.make_node("F", ["a"], ["b"], domain="local")])], "has a cycle"),
        (
            [
                function("F", [helper.make_node("G", ["a"], ["b"], domain="local")]),
                function("G", [helper.make_node("F", ["a"], ["b"], domain="local")]),
            ],
            "has a cycle",
        ),
        (
            [function("F", [helper.make_node("Relu", ["a"], ["b"])], opsets=[helper.make_opsetid("", 13)])],
            "mixes opsets",
        ),
        ([function("F", [helper.make_node("Relu", ["c"], ["b"])])], "is damaged"),
        ([function("F", [helper.make_node("Relu", ["a"], ["c"])])], "is damaged"),
        ([function("F", [helper.make_node("Relu", ["a"], ["b"])], inputs=())], "is damaged"),
    ],
)
def test_functions_that_cannot_be_inlined_are_refused(functions, says, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(calling("F", functions).SerializeToString())
    with pytest.raises(InputError) as caught:
        open_model(path)
    assert caught.value.title == f"model.onnx {says}" and caught.value.cause and caught.value.next_step


def doubling(depth):
    """A few lines that stand for 2 ** depth nodes."""
    made = [function("F0", [helper.make_node("Relu", ["a"], ["b"])])]
    for level in range(1, depth + 1):
        made.append(
            function(
                f"F{level}",
                [
                    helper.make_node(f"F{level - 1}", ["a"], ["m"], domain="local"),
                    helper.make_node(f"F{level - 1}", ["m"], ["b"], domain="local"),
                ],
            )
        )
    return calling(f"F{depth}", made)


def chained(depth):
    made = [function("F0", [helper.make_node("Relu", ["a"], ["b"])])]
    for level in range(1, depth + 1):
        made.append(function(f"F{level}", [helper.make_node(f"F{level - 1}", ["a"], ["b"], domain="local")]))
    return calling(f"F{depth}", made)


@pytest.mark.parametrize("model", [doubling(60), chained(3000)])
def test_functions_that_expand_to_too_much_are_refused_before(model, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    start = time.process_time()
    with refused("too large once its local functions are inlined", cause=f"{MAX_INLINED_NODES:,}"):
        open_model(path)
    assert time.process_time() - start < 30


def test_a_deep_chain_of_calls_opens(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(chained(90), path)
    network = open_network(path)
    assert [layer.op_type for layer in network.layers] == ["Relu"]
    assert len(network.layers[0].scope) == 91


def test_names_stay_unique_however_often_a_function_is_called(tmp_path):
    body = function("F", [helper.make_node("Relu", ["a"], ["m"]), helper.make_node("Tanh", ["m"], ["b"])])
    b = Builder()
    tensor = "x"
    for _ in range(50):
        tensor = b.node("F", [tensor], name="same", domain="local", output=f"t{len(b.nodes)}")
    b.node("Relu", [tensor], name="last", output="y")
    path = tmp_path / "model.onnx"
    onnx.save(b.model([floats("x", 4)], [floats("y", 4)], domains=["local"], functions=[body]), path)
    graph = open_model(path).model.graph
    for names in ([node.name for node in graph], [node.outputs[0].name for node in graph]):
        assert len(set(names)) == 101
    assert {node.meta.get(SCOPE_KEY) for node in graph} == {("same",), None}
