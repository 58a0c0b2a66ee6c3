"""Operators in opsets that do not have them: those that ONNX Runtime runs are opened, others are refused plainly."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.refusals import refused
from trt_tui.core.network.network import open_network
from trt_tui.core.network.structure_check import get_onnx_schema

FLOATS = {"LayerNormalization": ["scale"], "MeanVarianceNormalization": [], "ThresholdedRelu": []}


def saved(folder, operator, opset, others=(), nested=False, **attributes):
    """A network of one operator behind a MatMul, and within a branch of an If if it is nested."""
    values = {"weight": np.eye(4, dtype=np.float32), "scale": np.ones(4, np.float32)}
    node = helper.make_node(operator, ["a", *others], ["y"], name="it", **attributes)
    shape = [4, 4]
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["a"], name="product")]
    if nested:
        branch = helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("y", 1, shape)])
        values["yes"] = np.array(True)
        nodes.append(helper.make_node("If", ["yes"], ["z"], name="if", then_branch=branch, else_branch=branch))
    else:
        nodes.append(node)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("z" if nested else "y", 1, shape)],
        [numpy_helper.from_array(value, name) for name, value in values.items() if nested or name != "yes"])
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


@pytest.mark.parametrize(("operator", "opset"), [
    *(("LayerNormalization", opset) for opset in (7, 9, 13, 15, 16)), ("ThresholdedRelu", 7), ("ThresholdedRelu", 9)])
def test_what_onnx_runtime_runs_in_every_opset_is_opened(tmp_path, operator, opset):
    network = open_network(saved(tmp_path, operator, opset, FLOATS[operator]))
    assert [layer.op_type for layer in network.layers] == ["MatMul", operator]
    assert network.model.graph.opset_imports[""] == 17 and any("Converted" in note for note in network.notes)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("operator", "opset", "first"), [
    ("Gelu", 13, 20), ("Trilu", 13, 14), ("HardSwish", 13, 14), ("Mish", 17, 18), ("Bernoulli", 13, 15),
    ("Swish", 17, 24), ("RMSNormalization", 9, 23)])
def test_what_is_newer_than_the_opset_is_refused_plainly(tmp_path, operator, opset, first, nested):
    with refused(title=f"uses {operator} in opset {opset}", cause=f"opset {first} or higher",
                 next_step=f"opset {first} or higher"):
        open_network(saved(tmp_path, operator, opset, ["scale"] if "Norm" in operator else [], nested))


def test_what_onnx_has_ended_is_refused_plainly(tmp_path):
    with refused(title="uses Upsample in opset 13", cause="removed with opset 10", next_step="Resize"):
        open_network(saved(tmp_path, "Upsample", 13, ["scale"]))


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_every_operator_of_the_newest_opset_is_opened_or_refused(tmp_path, opset):
    """A node of each operator that is newer, with as many inputs as it has at least."""
    newest = {one.name: one for one in onnx.defs.get_all_schemas() if one.domain == ""}
    later = [one for one in newest.values() if not onnx.defs.has(one.name, opset, "")]
    assert len(later) > 15
    for schema in later:
        others = ["scale"] * (schema.min_input - 1)
        try:
            open_network(saved(tmp_path, schema.name, opset, others))
        except Exception as error:
            assert getattr(error, "title", ""), (schema.name, error)
            continue
        assert schema.name in FLOATS


def test_the_schema_of_an_operator_is_that_of_the_opset_or_the_first():
    assert get_onnx_schema("Relu", 13).since_version == 13 and get_onnx_schema("Relu", 15).since_version == 14
    assert get_onnx_schema("LayerNormalization", 13).since_version == 17


@pytest.mark.parametrize(("operator", "domain", "attributes", "opset"), [
    ("DequantizeLinear", "", {"foo": 1}, 21), ("DequantizeLinear", "", {"block_size": 2}, 19),
    ("DequantizeLinear", "com.microsoft", {"foo": 1}, 21), ("QuantizeLinear", "com.microsoft", {"foo": 1}, 21)])
def test_an_attribute_that_the_operator_does_not_know_is_refused_or_left_to_onnx_runtime(
        tmp_path, operator, domain, attributes, opset):
    onnxruntime = pytest.importorskip("onnxruntime")
    codes = onnx.TensorProto.INT4 if opset == 21 else onnx.TensorProto.INT8
    stored = operator == "DequantizeLinear"
    node = helper.make_node(operator, ["codes" if stored else "x", "step"], ["w"], name="codes_of", domain=domain,
                            **attributes)
    nodes = [node, *([helper.make_node("MatMul", ["x", "w"], ["y"], name="product")] if stored else [
        helper.make_node("DequantizeLinear", ["w", "step"], ["y"], name="back", domain=domain)])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 4])], [helper.make_tensor_value_info("y", 1, [2, 4])],
        [helper.make_tensor("codes", codes, [4, 4], list(range(-8, 8))),
         numpy_helper.from_array(np.float32(0.5), "step")])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    with pytest.raises(Exception, match="ttribute"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    onnx.save(model, tmp_path / "net.onnx")
    if domain:  # a newer release may have it in its own operators
        network = open_network(tmp_path / "net.onnx")
        assert "foo" in next(one for one in network.model.graph if one.name == "codes_of").attributes
    else:
        with refused(title="an attribute that its operator does not have", cause=next(iter(attributes))):
            open_network(tmp_path / "net.onnx")
    del graph.node[0].attribute[:]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "net.onnx")
    open_network(tmp_path / "net.onnx")
