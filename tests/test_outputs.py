"""Outputs that are no float tensors, and networks of which nothing can be lowered: said, and never a figure"""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from trt_tui.core.lowering.lowering_checks import no_lower_precision_reason, quantizes_activations, reduces_precision
from trt_tui.core.measure.judged_outputs import list_tensor_outputs, unjudged_output_notes
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
SEQUENCE = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
OPTIONAL = helper.make_value_info("o", helper.make_optional_type_proto(
    helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 8])))
TEXTS = helper.make_tensor_value_info("t", TensorProto.STRING, ["n"])
TEXT = helper.make_tensor_value_info("t", TensorProto.STRING, [])

pytestmark = [pytest.mark.shares_cache, pytest.mark.usefixtures("placed")]


def save(path, nodes, outputs, dtype=TensorProto.FLOAT):
    weight = np.random.default_rng(0).standard_normal((16, 8)).astype(helper.tensor_dtype_to_np_dtype(dtype))
    stored = [numpy_helper.from_array(weight, "W"), numpy_helper.from_array(np.array(0), "zero"),
              helper.make_tensor("words", TensorProto.STRING, [8], [b"a" * (i + 1) for i in range(8)])]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", dtype, ["n", 16])], outputs,
                              [one for one in stored if one.name in used])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(path.with_suffix(".npz"), x=np.random.default_rng(1).standard_normal((8, 16)).astype(weight.dtype),
             label=np.zeros(8))
    return ("compare", path, "--data", path.with_suffix(".npz"), "--batch", "4", "--layers", "none")


MATMUL = helper.make_node("MatMul", ["x", "W"], ["y"], name="mm")
CASES = {
    "sequence": ([helper.make_node("SplitToSequence", ["y"], ["s"], axis=1)], [Y, SEQUENCE],
                 "s: a sequence of tensors"),
    "optional": ([helper.make_node("Optional", ["y"], ["o"])], [Y, OPTIONAL], "o: an optional value"),
    "texts": ([helper.make_node("ArgMax", ["y"], ["a"], axis=1, keepdims=0),
               helper.make_node("Gather", ["words", "a"], ["t"])], [Y, TEXTS], "t: text: judged by the fraction"),
    "text": ([helper.make_node("ArgMax", ["y"], ["a"], axis=1, keepdims=0),
              helper.make_node("Gather", ["a", "zero"], ["b"]),
              helper.make_node("Gather", ["words", "b"], ["t"])], [Y, TEXT], "t: text: judged by the fraction"),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_that_are_no_float_tensors_are_judged_by_what_differs_or_left_out(run, tmp_path, case):
    nodes, outputs, said = CASES[case]
    command = save(tmp_path / "net.onnx", [MATMUL, *nodes], outputs)
    (tmp_path / "metric.py").write_text("def count(outputs, labels):\n    return float(len(outputs))\n")
    code, out, err = run(*command, "--json", "-", "--metric", f"{tmp_path / 'metric.py'}:count")
    assert code == 0, err
    assert f"Warning: {said}" in err
    record = json.loads(out)
    judged = {"y", "t"} if "text" in case else {"y"}
    assert set(record["runs"]["int8"]["outputs"]) == judged
    assert record["reference"]["metric"] == len(judged), "the metric gets what is a tensor"


def test_a_network_of_sequences_alone_is_refused_with_the_reason(run, tmp_path):
    command = save(tmp_path / "net.onnx", [MATMUL, *CASES["sequence"][0]], [SEQUENCE])
    code, _, err = run(*command)
    assert code == 2 and "no output that can be judged" in err and "s: a sequence of tensors" in err
    network = open_network(tmp_path / "net.onnx")
    assert list_tensor_outputs(network) == () and len(unjudged_output_notes(network)) == 1


DOUBLE = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", 8])


def test_a_run_in_which_nothing_is_lowered_does_not_pass(run, tmp_path):
    command = save(tmp_path / "net.onnx", [MATMUL], [DOUBLE], TensorProto.DOUBLE)
    code, out, err = run(*command)
    assert code == 0 and "PASS" not in out and out.count("all in FP32") == 2
    assert "No layer of this network can run in lower precision (computes in FP64)" in err
    code, _, err = run(*command, "--target", "sqnr>=20")
    assert code == 2 and "only because all layers are in FP32" in err
    code, _, err = run("search", *command[1:-2], "--tolerance", "sqnr>=20", "-o", "c.json")
    assert code == 2 and "nothing to do" in err and not (tmp_path / "c.json").exists()


def test_a_run_without_int8_is_not_called_one_that_passes_in_it(run, tmp_path):
    command = save(tmp_path / "net.onnx", [helper.make_node("Relu", ["x"], ["y"])],
                   [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])])
    code, out, err = run(*command)
    assert code == 0 and "No layer of this network can run in INT8" in err
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert rows["INT8"].endswith("  PASS, nothing in INT8") and rows["FP16"].endswith("  PASS")


def test_what_a_config_lowers(tmp_path):
    save(tmp_path / "net.onnx", [MATMUL], [Y])
    network = open_network(tmp_path / "net.onnx")
    int8, fp32 = PrecisionConfig.from_precision(Precision.INT8), PrecisionConfig.from_precision(Precision.FP32)
    raised = int8.with_group_precision(network.groups, Precision.FP32)
    assert reduces_precision(network, int8) and quantizes_activations(network,
                                                                      int8) and no_lower_precision_reason(network) == ""
    assert not reduces_precision(network, fp32) and not reduces_precision(
        network, raised) and not quantizes_activations(network, raised)
