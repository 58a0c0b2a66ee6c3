"""What TensorRT does not read is named; a MatMulNBits becomes what it does: network.unread and network.qoperators."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from tests import rtx
from tests.networks import Builder, floats
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.network.unsupported_operators import UNSUPPORTED
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
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()
             if schema.domain == "" and schema.since_version <= 25}
    unread = {name for name in known if not parser.supports_operator(name)}
    assert unread - {"DeformConv"} == UNSUPPORTED & known


def test_a_dynamically_quantized_network_is_no_engine_and_loses_nothing_to_fp16(tmp_path, backend):
    b = Builder()
    b.node("MatMul", ["x", b.kernel("w", (64, 64), 64)], "/fc", output="y")
    onnx.save(b.model([floats("x", 8, 64)], [floats("y", 8, 64)]), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", path := tmp_path / "model.onnx")
    network = open_network(path)
    note, = (note for note in network.notes if "No TensorRT reads" in note)
    assert "MatMulInteger" in note and "quantize_static" in note
    sums = next(layer for layer in network.layers if layer.op_type == "MatMulInteger")
    assert sums.refusal_reason == "no TensorRT has MatMulInteger: only the simulation runs it"
    scaled = network.groups[-1]
    assert "INT32 sums" in scaled.refusal_reasons[Precision.FP16] and scaled.refusal_reasons.keys() >= {Precision.BF16}
    feeds = {"x": np.random.default_rng(0).uniform(0, 400, (8, 64)).astype(np.float32)}  # sums beyond FP16
    gated = build_gated_graph(network)
    with backend.load(gated.model, low_memory=True) as runner:
        (got,) = runner.run({**feeds, **gated.make_feed(PrecisionConfig.from_precision(Precision.FP16), {})},
                            list(gated.test_outputs.values())).values()
    assert np.isfinite(got).all()


@pytest.mark.parametrize(("operator", "domain", "said"), [
    ("SimplifiedLayerNormalization", "", False), ("Gelu", "com.microsoft", False), ("QuickGelu", "com.microsoft", True),
    ("Det", "", True)])
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
@pytest.mark.parametrize(("operator", "attributes", "said"), [
    ("AveragePool", {"kernel_shape": [2, 2], "dilations": [2, 2]}, "with dilations"),
    ("AveragePool", {"kernel_shape": [2, 2], "dilations": [1, 1]}, ""),
    ("LpPool", {"kernel_shape": [2, 2], "p": 3}, "another norm"), ("LpPool", {"kernel_shape": [2, 2]}, ""),
    ("Resize", {"antialias": 1, "mode": "linear"}, "antialiasing"), ("Resize", {"mode": "linear"}, ""),
    ("ScatterND", {"reduction": "add"}, "reduction"), ("ScatterND", {}, ""),
    ("Transpose", {"perm": [0, 2, 3, 1]}, "of UINT8"), ("Cast", {"to": 1}, "")])
def test_forms_that_tensorrt_rtx_refuses_are_said_at_opening(operator, attributes, said, tmp_path):
    b = Builder(opset=19 if operator == "AveragePool" else 18)
    byte = operator in ("Transpose", "Cast")
    inputs = {"Resize": ["x", "", b.weight("by", np.float32([1, 1, .5, .5]))],
              "ScatterND": ["x", b.weight("at", np.int64([[0]])), b.weight("new", np.ones((1, 4, 8, 8), np.float32))]}
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


def packed(path, block, size=64, symmetric=True, bias=True):
    """A MatMul by a weight of 4 bits, as ONNX Runtime's quantizer writes it, with a bias in it."""
    b = Builder()
    b.node("MatMul", ["x", b.kernel("w", (size, 48), size)], "/fc", output="y")
    quantizer = MatMulNBitsQuantizer(b.model([floats("x", "n", size)], [floats("y", "n", 48)]), block_size=block,
                                     is_symmetric=symmetric)
    quantizer.process()
    model = quantizer.model.model
    node = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    if bias:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(48, dtype=np.float32) / 48, "bias"))
        node.input.extend(["", "", "bias"][len(node.input) - 3:])
    onnx.save(model, path)
    return {"x": np.random.default_rng(1).standard_normal((5, size)).astype(np.float32)}


@pytest.mark.parametrize(("block", "size"), [(32, 64), (128, 256), (128, 64)])
def test_weights_in_blocks_around_0_are_read_as_int4(block, size, tmp_path, backend):
    """Some scales are negative: ONNX Runtime gives the largest weight the code -8."""
    feeds = packed(path := tmp_path / "model.onnx", block, size)
    network = open_network(path)
    (group,) = network.groups
    assert group.file_precision.label == "INT4 w" and not any("No TensorRT" in note for note in network.notes)
    written = lower_from_source_model(network, FILE, {}).model
    with backend.load(ir.load(path)) as original, backend.load(written) as runner:
        np.testing.assert_allclose(runner.run(feeds)["y"], original.run(feeds)["y"], atol=1e-4)
    assert [node.op_type for node in written.graph] == ["DequantizeLinear", "MatMul", "Add"]


def test_negative_scales_of_int8_are_refused(opened):
    b = Builder()
    weight = b.node("DequantizeLinear", [b.weight("codes", np.ones((4, 4), np.int8)), b.weight(
        "scale", np.array(-0.5, np.float32))], "/dq")
    b.node("MatMul", ["x", weight], "/fc", output="y")
    with pytest.raises(InputError, match="is -0.5"):
        opened(b.model([floats("x", 2, 4)], [floats("y", 2, 4)]))


def test_weights_in_blocks_around_another_number_stay_packed(tmp_path):
    packed(path := tmp_path / "model.onnx", 32, symmetric=False, bias=False)
    network = open_network(path)
    assert [layer.op_type for layer in network.layers] == ["MatMulNBits"]
    assert any("is_symmetric=True" in note for note in network.notes)


def test_attention_in_fp32_is_said_where_the_network_is_written(opened):
    b = Builder(opset=23)
    b.node("Attention", ["x", "x", "x"], "/attention", output="y")
    shape = (1, 2, 4, 8)
    network = opened(b.model([floats("x", *shape)], [floats("y", *shape)], ir_version=11))
    for precision, count in ((Precision.FP32, 1), (Precision.FP16, 0)):
        notes = lower_from_source_model(network, PrecisionConfig.from_precision(precision), {}).notes
        assert len([note for note in notes if "TRT_decomposable" in note]) == count
