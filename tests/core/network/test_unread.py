"""Operators that TensorRT does not read are named; those on quantized values are refused."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnxruntime.quantization import QuantFormat, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from tests import networks, rtx
from tests.networks import Builder, floats
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.network.operators import UNSUPPORTED
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

FILE = PrecisionConfig.from_precision(Precision.FILE)


@pytest.mark.rtx("1.7")
def test_tensorrt_rtx_reads_none_of_the_table_and_all_else():
    import tensorrt_rtx as trt

    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    network = builder.create_network()
    parser = trt.OnnxParser(network, log)
    # opsets up to 25: what is younger no release knows
    known = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and schema.since_version <= 25
    }
    unread = {name for name in known if not parser.supports_operator(name)}
    assert unread - {"DeformConv"} == UNSUPPORTED & known


@pytest.mark.parametrize(
    ("operator", "domain", "said"),
    [
        ("SimplifiedLayerNormalization", "", False),
        ("Gelu", "com.microsoft", False),
        ("QuickGelu", "com.microsoft", True),
        ("Det", "", True),
    ],
)
def test_only_what_none_reads_is_said(operator, domain, said, tmp_path):
    """What ONNX Runtime writes among ONNX's operators is no plugin."""
    b = Builder()
    inputs = ["x", b.vector("scale", 8, 1.0)] if operator.endswith("tion") else ["x"]
    x = b.node(operator, inputs, "/it", domain=domain)
    b.node("Relu", [x], "/behind", output="y")
    model = b.model([floats("x", 4, 8, 8)], [floats("y", 4) if operator == "Det" else floats("y", 4, 8, 8)])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path := tmp_path / "model.onnx")
    network = open_network(path)
    assert any(operator in note for note in network.notes) == said and not network.blocking_plugins
    assert network.get_layer("/behind/Relu").refusal_reason == ""


@pytest.mark.rtx("1.7")
@pytest.mark.parametrize(
    ("operator", "attributes", "said"),
    [
        ("AveragePool", {"kernel_shape": [2, 2], "dilations": [2, 2]}, "with dilations"),
        ("AveragePool", {"kernel_shape": [2, 2], "dilations": [1, 1]}, ""),
        ("LpPool", {"kernel_shape": [2, 2], "p": 3}, "another norm"),
        ("LpPool", {"kernel_shape": [2, 2]}, ""),
        ("Resize", {"antialias": 1, "mode": "linear"}, "antialiasing"),
        ("Resize", {"mode": "linear"}, ""),
        ("ScatterND", {"reduction": "add"}, "reduction"),
        ("ScatterND", {}, ""),
        ("Transpose", {"perm": [0, 2, 3, 1]}, "of UINT8"),
        ("Cast", {"to": 1}, ""),
    ],
)
def test_forms_that_tensorrt_rtx_refuses_are_said_at_opening(operator, attributes, said, tmp_path):
    b = Builder(opset=19 if operator == "AveragePool" else 18)
    byte = operator in ("Transpose", "Cast")
    inputs = {
        "Resize": ["x", "", b.weight("by", np.float32([1, 1, 0.5, 0.5]))],
        "ScatterND": ["x", b.weight("at", np.int64([[0]])), b.weight("new", np.ones((1, 4, 8, 8), np.float32))],
    }
    x = b.node(operator, inputs.get(operator, ["x"]), "/it", **attributes)
    if operator == "Transpose":
        x = b.node("Cast", [x], "/float", to=1)
    b.node("Relu", [x], "/behind", output="y")
    given = helper.make_tensor_value_info("x", 2 if byte else 1, [1, 4, 8, 8])
    onnx.save(model := b.model([given], [floats("y", *[None] * 4)]), path := tmp_path / "model.onnx")
    assert any(said in note and "/it/" in note for note in open_network(path).notes) == bool(said)
    if said:
        with pytest.raises(AssertionError, match="TensorRT-RTX cannot"):
            rtx.build(ir.from_proto(model))
    else:
        rtx.build(ir.from_proto(model))


def _matmul():
    b = Builder()
    b.node("MatMul", ["x", b.kernel("w", (64, 48), 64)], "/fc", output="y")
    return b.model([floats("x", "n", 64)], [floats("y", "n", 48)])


def _quantize_dynamically(folder):
    onnx.save(_matmul(), folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "model.onnx")
    return onnx.load(folder / "model.onnx")


def _pack(quant_format=QuantFormat.QOperator):
    quantizer = MatMulNBitsQuantizer(_matmul(), block_size=32, is_symmetric=True, quant_format=quant_format)
    quantizer.process()
    return quantizer.model.model


def _move_into_branch(model):
    """The nodes of a network in both branches of an If."""
    branch = helper.make_graph(list(model.graph.node), "branch", [], list(model.graph.output))
    node = helper.make_node("If", ["flag"], ["out"], "/if", then_branch=branch, else_branch=branch)
    model.graph.input.append(helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.append(node)
    model.graph.output.append(floats("out", "n", 48))
    return model


@pytest.mark.parametrize(
    ("make_model", "operators"),
    [
        (lambda folder: networks.quantized(quant_format=QuantFormat.QOperator), "QLinearConv"),
        (_quantize_dynamically, "DynamicQuantizeLinear"),
        (lambda folder: _pack(), "MatMulNBits"),
        (lambda folder: _move_into_branch(_pack()), "MatMulNBits"),
    ],
)
def test_operators_on_quantized_values_are_refused(make_model, operators, run, tmp_path):
    onnx.save(model := make_model(tmp_path), path := tmp_path / "model.onnx")
    feeds = {
        value.name: np.ones((8, *(size.dim_value for size in value.type.tensor_type.shape.dim[1:])), np.float32)
        for value in model.graph.input[:1]
    }
    np.savez(data := tmp_path / "data.npz", **feeds)
    for command in (
        ("inspect", path),
        ("lint", path),
        ("preflight", path, "--data", data),
        ("compare", path, "--data", data),
        ("search", path, "--data", data, "--tolerance", "sqnr>=9", "-o", tmp_path / "out.json"),
        ("export", path, "--precision", "int8", "--format", "onnx", "-o", tmp_path / "out.onnx"),
    ):
        code, out, err = run(*command)
        assert code == 2 and f"model.onnx is quantized with {operators}" in err and "QuantFormat.QDQ" in err, err


@pytest.mark.parametrize("option", ["--reference=", "--stage=given="])
def test_a_reference_with_operators_on_quantized_values_is_refused(option, run, mlp, tmp_path):
    onnx.save(_pack(), path := tmp_path / "packed.onnx")
    code, _, err = run("compare", mlp.model, "--data", mlp.data, f"{option}{path}")
    assert code == 2 and "packed.onnx is quantized with MatMulNBits (/fc" in err and "defect" not in err, err


def test_packed_weights_in_qdq_format_are_read_as_int4(opened):
    (group,) = opened(_pack(QuantFormat.QDQ)).groups
    assert group.file_precision.label == "INT4 w"


def test_negative_scales_of_int8_are_refused(opened):
    b = Builder()
    weight = b.node(
        "DequantizeLinear",
        [b.weight("codes", np.ones((4, 4), np.int8)), b.weight("scale", np.array(-0.5, np.float32))],
        "/dq",
    )
    b.node("MatMul", ["x", weight], "/fc", output="y")
    with pytest.raises(InputError, match="is -0.5"):
        opened(b.model([floats("x", 2, 4)], [floats("y", 2, 4)]))


def test_attention_in_fp32_is_said_where_the_network_is_written(opened):
    b = Builder(opset=23)
    b.node("Attention", ["x", "x", "x"], "/attention", output="y")
    shape = (1, 2, 4, 8)
    network = opened(b.model([floats("x", *shape)], [floats("y", *shape)], ir_version=11))
    for precision, count in ((Precision.FP32, 1), (Precision.FP16, 0)):
        notes = lower_from_source_model(network, PrecisionConfig.from_precision(precision), {}).notes
        assert len([note for note in notes if "TRT_decomposable" in note]) == count
