"""Networks with what makes opening hard: subgraphs, functions, foreign operators, odd names, old opsets, odd types."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from .build import Builder, floats
from .feeding import Handed, feeds
from .small import small_resnet


def with_if(seed: int = 0) -> onnx.ModelProto:
    """Conv, then an If on the sign of the mean (a Conv in one branch, a Relu in the other), then Conv; opset 17.

    Both branches read a tensor of the outer graph. ``x`` float32 (1, 4, 8, 8) to ``y`` of the same shape.
    """
    b = Builder(seed)
    shape = (1, 4, 8, 8)
    x = b.conv("x", (4, 4), "/before")
    mean = b.node("ReduceMean", [x], "/switch", keepdims=0)
    positive = b.node("Greater", [mean, b.weight("zero", np.zeros((), np.float32))], "/switch")
    kernel = b.kernel("branch.weight", (4, 4, 1, 1), 4)
    then_branch = helper.make_graph(
        [helper.make_node("Conv", [x, kernel], ["then_out"], name="/then/Conv", kernel_shape=[1, 1])],
        "then",
        [],
        [floats("then_out", *shape)],
    )
    else_branch = helper.make_graph(
        [helper.make_node("Relu", [x], ["else_out"], name="/else/Relu")], "else", [], [floats("else_out", *shape)]
    )
    x = b.node("If", [positive], "/switch", then_branch=then_branch, else_branch=else_branch)
    kernel = b.kernel("after.weight", (4, 4, 1, 1), 4)
    b.node("Conv", [x, kernel], "/after", output="y", kernel_shape=[1, 1])
    return b.model([floats("x", *shape)], [floats("y", *shape)], name="with_if")


def with_loop(seed: int = 0) -> onnx.ModelProto:
    """Gemm, a Loop of three turns with a MatMul and a Tanh in its body, Gemm; opset 17. (batch, 8) to (batch, 4)."""
    b = Builder(seed)
    state = b.gemm("x", (8, 8), "/before")
    kernel = b.kernel("body.weight", (8, 8), 8)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state_in", kernel], ["product"], name="/loop/MatMul"),
            helper.make_node("Tanh", ["product"], ["state_out"], name="/loop/Tanh"),
            helper.make_node("Identity", ["go_in"], ["go_out"], name="/loop/Identity"),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            floats("state_in", "batch", 8),
        ],
        [helper.make_tensor_value_info("go_out", TensorProto.BOOL, []), floats("state_out", "batch", 8)],
    )
    turns, go = b.weight("turns", np.array(3, np.int64)), b.weight("go", np.array(True))
    state = b.node("Loop", [turns, go, state], "/loop", body=body)
    b.gemm(state, (8, 4), "/after", output="y")
    return b.model([floats("x", "batch", 8)], [floats("y", "batch", 4)], name="with_loop")


def with_local_function(seed: int = 0) -> onnx.ModelProto:
    """Two calls of a function ``local.Block`` (MatMul, Add, Relu) of the model's own, then Gemm; opset 17.

    ``x`` float32 (batch, 8) to ``y`` float32 (batch, 4); the calls are named ``/blocks.0`` and ``/blocks.1``.
    """
    b = Builder(seed)
    block = helper.make_function(
        "local",
        "Block",
        ["data", "weight", "bias"],
        ["out"],
        [
            helper.make_node("MatMul", ["data", "weight"], ["product"], name="MatMul"),
            helper.make_node("Add", ["product", "bias"], ["sum"], name="Add"),
            helper.make_node("Relu", ["sum"], ["out"], name="Relu"),
        ],
        [helper.make_opsetid("", b.opset)],
    )
    x = "x"
    for index in range(2):
        weights = [b.kernel(f"blocks.{index}.weight", (8, 8), 8), b.vector(f"blocks.{index}.bias", 8)]
        x = b.node("Block", [x, *weights], name=f"/blocks.{index}", domain="local")
    b.gemm(x, (8, 4), "/head", output="y")
    inputs, outputs = [floats("x", "batch", 8)], [floats("y", "batch", 4)]
    return b.model(inputs, outputs, name="with_local_function", domains=["local"], functions=[block])


def badly_named(seed: int = 0) -> onnx.ModelProto:
    """`small_resnet` in which no Conv has a name and every Relu is named ``relu``.

    ONNX Runtime may refuse it until names are unique or absent.
    """
    model = small_resnet(seed)
    for node in model.graph.node:
        if node.op_type == "Conv":
            node.name = ""
        elif node.op_type == "Relu":
            node.name = "relu"
    return model


def with_custom_operator(seed: int = 0) -> onnx.ModelProto:
    """Gemm, an operator ``acme.Sparkle`` that only its maker can run, Gemm; opset 17. (batch, 8) to (batch, 4)."""
    b = Builder(seed)
    x = b.gemm("x", (8, 8), "/before")
    x = b.node("Sparkle", [x], "/custom", domain="acme", amount=2.0)
    b.gemm(x, (8, 4), "/after", output="y")
    return b.model([floats("x", "batch", 8)], [floats("y", "batch", 4)], name="with_custom_operator", domains=["acme"])


def save_with_external_data(directory: Path, seed: int = 0) -> Path:
    """Writes `small_resnet` to ``directory/model.onnx`` with its weights in ``model.onnx.data``; returns the path."""
    path = Path(directory) / "model.onnx"
    onnx.save_model(
        small_resnet(seed),
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="model.onnx.data",
        size_threshold=64,
    )
    return path


def quantized(
    seed: int = 0, *, symmetric: bool = True, extra: Mapping[str, bool] | None = None, **options: object
) -> onnx.ModelProto:
    """A small residual CNN as ONNX Runtime's static quantizer writes it in Q/DQ format.

    INT8 weight initializers with a DequantizeLinear per channel, QuantizeLinear and DequantizeLinear on activations,
    int32 biases with a DequantizeLinear. ``image`` float32 (batch, 3, 16, 16) to ``logits`` float32 (batch, 10).

    Args:
        seed: Of the weights and the calibration images.
        symmetric: Zero points of activations are 0; otherwise they are where the ranges put them.
        extra: Further extra options of the quantizer.
        options: Other arguments of it.
    """
    model = conv_net(seed)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "quantized.onnx"
        quantize_static(
            model,
            path,
            Handed(feeds(model, seed + index, n=4) for index in range(2)),
            **{
                "quant_format": QuantFormat.QDQ,
                "per_channel": True,
                "activation_type": QuantType.QInt8,
                "weight_type": QuantType.QInt8,
                **options,
            },
            extra_options={"ActivationSymmetric": symmetric, **(extra or {})},
        )
        return onnx.load(path)


def opset7(seed: int = 0) -> onnx.ModelProto:
    """Opset 7, IR 3: BatchNormalization with ``spatial``, Dropout, Upsample with a ``scales`` attribute.

    Its weights are graph inputs too, with initializers.

    ``image`` float32 (1, 3, 8, 8) to ``out`` float32 (1, 4, 16, 16).
    """
    b = Builder(seed, opset=7)
    x = b.conv("image", (3, 8), "conv1", bias=True)
    x = b.batch_norm(x, 8, "bn1")
    b.nodes[-1].attribute.append(helper.make_attribute("spatial", 1))
    x = b.node("Dropout", [b.node("Relu", [x], "relu1")], "drop1", ratio=0.5)
    x = b.node("Upsample", [x], "up1", mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
    kernel = b.kernel("conv2.weight", (4, 8, 1, 1), 8)
    b.node("Conv", [x, kernel], "conv2", output="out", kernel_shape=[1, 1])
    weights = [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in b.weights]
    inputs = [floats("image", 1, 3, 8, 8), *weights]
    return b.model(inputs, [floats("out", 1, 4, 16, 16)], name="opset7", ir_version=3)


def half(seed: int = 0) -> onnx.ModelProto:
    """A small residual CNN all in FP16, inputs, weights and outputs; (batch, 3, 16, 16) to (batch, 10); opset 17."""
    model = conv_net(seed)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    model.graph.name = "half"
    return model


def with_sequence(seed: int = 0) -> onnx.ModelProto:
    """Gemm, SplitToSequence, SequenceAt, Gemm; opset 17. ``x`` float32 (batch, 8) to ``y`` float32 (batch, 4)."""
    b = Builder(seed)
    x = b.gemm("x", (8, 16), "/before")
    halves = b.node("SplitToSequence", [x, b.weight("sizes", np.array([8, 8], np.int64))], "/split", axis=1)
    x = b.node("SequenceAt", [halves, b.weight("which", np.array(1, np.int64))], "/split")
    b.gemm(x, (8, 4), "/after", output="y")
    return b.model([floats("x", "batch", 8)], [floats("y", "batch", 4)], name="with_sequence")


def conv_net(seed: int) -> onnx.ModelProto:
    """Convs with bias, one skip, no batch norm: ``image`` (batch, 3, 16, 16) to ``logits`` (batch, 10)."""
    b = Builder(seed)
    x = b.node("Relu", [b.conv("image", (3, 8), "/conv1", bias=True)], "/relu1")
    y = b.node("Relu", [b.conv(x, (8, 8), "/conv2", bias=True)], "/relu2")
    y = b.conv(y, (8, 8), "/conv3", bias=True)
    x = b.node("Relu", [b.node("Add", [y, x], "/skip")], "/relu3")
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "/pool")], "/flatten", axis=1)
    b.gemm(x, (8, 10), "/fc", output="logits")
    return b.model([floats("image", "batch", 3, 16, 16)], [floats("logits", "batch", 10)], name="conv_net")
