"""trt_tui.core.measure.group_errors: the errors of quantized weights, held against ONNX Runtime's qdq_loss_debug"""

import json

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization.qdq_loss_debug import compute_weight_error

from tests import networks
from tests.driven import save_resnet
from tests.schemas import mismatches
from trt_tui.core.exporters import formats
from trt_tui.core.measure.group_errors import measure_weight_errors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

FP32, FP16, INT8, FP8, INT4 = map(Precision, ("fp32", "fp16", "int8", "fp8", "int4"))


def exported_errors(network, config, ranges, path):
    """The same of the exported network, by ONNX Runtime's function: each weight behind its DequantizeLinear."""
    formats.write_export("onnx", path, network, config, ranges)
    model = onnx.load(path)
    read = {name: (node.name, at) for node in model.graph.node for at, name in enumerate(node.input)}
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = {one.name: one for one in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear" or not network.has_layer(read[node.output[0]][0]):
            continue
        nodes = [node]
        while nodes[0].input[0] in producers:
            nodes.insert(0, producers[nodes[0].input[0]])
        if nodes[0].input[0] not in constants:
            continue
        value = onnx.helper.make_empty_tensor_value_info(node.output[0])
        names = dict.fromkeys(name for one in nodes for name in one.input if name in constants)
        graph = onnx.helper.make_graph(nodes, "part", [], [value], [constants[name] for name in names])
        (dequantized,) = ReferenceEvaluator(
            onnx.helper.make_model(
                graph, opset_imports=[onnx.helper.make_opsetid("", max(19, model.opset_import[0].version))]
            )
        ).run(None, {})
        layer, at = read[node.output[0]]
        found |= compute_weight_error(
            {
                layer: {
                    "float": network.constant_value(network.get_layer(layer).inputs[at]),
                    "dequantized": np.asarray(dequantized, np.float32),
                }
            }
        )
    return found


@pytest.mark.parametrize(
    ("model", "precision", "other"),
    [("small_resnet", INT8, FP32), ("small_resnet", INT8, FP16), ("small_resnet", FP8, FP32), ("mlp", INT8, FP32)],
)
def test_errors_are_those_of_the_exported_network(tmp_path, model, precision, other):
    onnx.save(getattr(networks, model)(), tmp_path / "net.onnx")
    network = open_network(tmp_path / "net.onnx")
    kept = next(group for group in network.groups if precision in group.allowed_precisions)
    config = PrecisionConfig(precision, other).with_group_precision([kept], FP32)
    ranges = dict.fromkeys(network.calibrated_tensors, 2.0)
    errors = measure_weight_errors(network, config, ranges)
    assert errors and kept.name not in errors
    by_layer = {layer: value for layers in errors.values() for layer, value in layers.items()}
    expected = exported_errors(network, config, ranges, tmp_path / "typed.onnx")
    accuracy = 0.1 if other is FP16 else 1e-3  # that of the reference rounds what FP16 scales yield to FP16
    assert by_layer == pytest.approx({layer: expected[layer] for layer in by_layer}, abs=accuracy) and by_layer
    assert measure_weight_errors(network, PrecisionConfig(FP16, FP16), ranges) == {}


def test_an_exact_weight_has_no_number(tmp_path):
    model = networks.mlp()
    for tensor in model.graph.initializer:
        if len(tensor.dims) == 2:
            array = np.sign(onnx.numpy_helper.to_array(tensor)) * np.float32(127)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(model, tmp_path / "net.onnx")
    network = open_network(tmp_path / "net.onnx")
    errors = measure_weight_errors(network, PrecisionConfig(INT8, FP32), dict.fromkeys(network.calibrated_tensors, 1.0))
    assert errors and all(value is None for layers in errors.values() for value in layers.values())


def test_compare_writes_them(run, tmp_path):
    options = save_resnet(tmp_path, size=8)
    code, _, err = run("compare", options.model, "--data", options.data, "--json", tmp_path / "c.json")
    record = json.loads((tmp_path / "c.json").read_text())
    assert code == 0 and mismatches(record, "comparison-v1") == [], err
    layers = record["runs"]["int8"]["layers"]
    weights = {name: entry["weight"]["sqnr_db"] for name, entry in layers.items() if "weight" in entry}
    assert weights.keys() >= {"/conv1/Conv", "/fc/Gemm"} and all(25 < value < 60 for value in weights.values())
    assert not any("weight" in entry for entry in record["runs"]["fp16"]["layers"].values())
