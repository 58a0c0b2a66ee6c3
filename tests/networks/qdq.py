"""Networks with Q/DQ pairs placed by hand, as TensorRT takes them and in the ways that it does not."""

from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from .build import Builder, floats


class QdqBuilder(Builder):
    """A builder that also writes Q/DQ pairs and quantized weights."""

    def pair(
        self,
        source: str,
        name: str,
        scale: np.ndarray | float = 0.05,
        *,
        zero: int = 0,
        kind: type[np.generic] = np.int8,
        float_type: type[np.floating] = np.float32,
        axis: int = 1,
    ) -> str:
        """Adds ``<name>/q`` and ``<name>/dq`` behind a tensor; returns the dequantized tensor."""
        scales = np.asarray(scale, float_type)
        inputs = [self.weight(f"{name}.scale", scales), self.weight(f"{name}.zero", np.full(scales.shape, zero, kind))]
        attributes = {"axis": axis} if scales.ndim else {}
        quantized = self.node("QuantizeLinear", [source, *inputs], name=f"{name}/q", **attributes)
        return self.node("DequantizeLinear", [quantized, *inputs], name=f"{name}/dq", **attributes)

    def stored(self, name: str, values: np.ndarray, *, axis: int | None = 0, scale_axis: int | None = None) -> str:
        """Adds int8 values behind ``<name>/dq``, with a scale for each index of an axis or (None) one for all.

        Args:
            scale_axis: The axis that the node states, if another than that of the scales.
        """
        others = tuple(index for index in range(values.ndim) if index != axis) if axis is not None else None
        amax = np.abs(values).max(axis=others)
        scale = np.asarray(np.maximum(amax, 1e-6) / 127, np.float32)
        shape = [-1 if index == axis else 1 for index in range(values.ndim)] if axis is not None else ()
        quantized = np.clip(np.rint(values / scale.reshape(shape)), -127, 127).astype(np.int8)
        inputs = [
            self.weight(f"{name}.values", quantized),
            self.weight(f"{name}.scale", scale),
            self.weight(f"{name}.zero", np.zeros(scale.shape, np.int8)),
        ]
        stated = axis if scale_axis is None else scale_axis
        return self.node("DequantizeLinear", inputs, name=f"{name}/dq", **({} if stated is None else {"axis": stated}))

    def values(self, *shape: int) -> np.ndarray:
        """Normal float32 values whose product with unit values has unit size."""
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return (self.rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)

    def quantized_conv(self, source: str, scope: str, weight: str = "", channels: int = 32) -> str:
        """Adds a 3x3 Conv of as many channels as it reads, with a stored per-channel weight if none is named."""
        weight = weight or self.stored(f"{scope}/weight", self.values(channels, channels, 3, 3))
        return self.node(
            "Conv", [source, weight, self.vector(f"{scope}.bias", channels)], scope, kernel_shape=[3, 3], pads=[1] * 4
        )

    def end_in_conv(self, source: str, scope: str, output: str = "out") -> None:
        """Adds a last 3x3 Conv of 32 channels, with a stored weight and no bias."""
        weight = self.stored(f"{scope}/weight", self.values(32, 32, 3, 3))
        self.node("Conv", [source, weight], scope, output=output, kernel_shape=[3, 3], pads=[1] * 4)


def without_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the pairs on computed tensors, in place of which the readers get the tensor; weights stay as they
    are quantized. What the quantizer left out (an activation that a range replaced) stays out."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    producers = {name: node for node in model.graph.node for name in node.output}
    outputs = {value.name for value in model.graph.output}
    sources = {}
    for node in model.graph.node:
        quantize = producers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if quantize is not None and quantize.op_type == "QuantizeLinear":
            if node.output[0] in outputs:
                node.op_type, node.input[:] = "Identity", quantize.input[:1]
                node.ClearField("attribute")
            else:
                sources[node.output[0]] = quantize.input[0]
    for node in model.graph.node:
        node.input[:] = [sources.get(name, name) for name in node.input]
    return model


def residual(*, extra: Collection[str] = (), skip: bool = True, tail: bool = True) -> onnx.ModelProto:
    """A residual block of two Convs with Q/DQ before every Conv; opset 17, (1, 32, 16, 16) to the same.

    Args:
        extra: Where further pairs are: ``add`` between a Conv and the Add, ``relu`` between a Conv and its Relu.
        skip: The skip connection is quantized.
        tail: A Conv that reads quantized values follows the block.
    """
    b = QdqBuilder(0)
    x = b.pair("image", "/in")
    y = b.quantized_conv(x, "/one")
    y = b.pair(y, "/one/extra") if "relu" in extra else y
    y = b.quantized_conv(b.pair(b.node("Relu", [y], "/one"), "/mid"), "/two")
    y = b.pair(y, "/two/extra") if "add" in extra else y
    y = b.node("Relu", [b.node("Add", [y, x if skip else "image"], "/block")], "/block", output="" if tail else "out")
    if tail:
        b.end_in_conv(b.pair(y, "/out"), "/three")
    return b.model([floats("image", 1, 32, 16, 16)], [floats("out", 1, 32, 16, 16)], name="residual")


def product(*, inputs: Collection[str] = ("x", "w"), between: str = "") -> onnx.ModelProto:
    """A MatMul of 64 columns with a weight of 64 by 128; opset 17.

    Args:
        inputs: Which of ``x`` and ``w`` are quantized.
        between: An operator between the DequantizeLinear of the weight and the MatMul: Transpose, Mul or "".
    """
    b = QdqBuilder(1)
    x = b.pair("x", "/in") if "x" in inputs else "x"
    values = b.values(64, 128)
    if between == "Transpose":
        w = b.node("Transpose", [b.stored("/fc/weight", values.T.copy(), axis=0)], "/fc", perm=[1, 0])
    elif "w" in inputs:
        w = b.stored("/fc/weight", values, axis=1)
        if between == "Mul":
            w = b.node("Mul", [w, b.weight("factor", np.array(0.5, np.float32))], "/fc")
    else:
        w = b.weight("/fc/weight", values)
    y = b.node("MatMul", [x, w], "/fc")
    b.node("Add", [y, b.vector("bias", 128)], "/fc", output="y")
    return b.model([floats("x", 1, 16, 64)], [floats("y", 1, 16, 128)], name="product")


def attention(quantized: Collection[str] = ("QK", "PV")) -> onnx.ModelProto:
    """An attention of 4 heads with quantized projections, of which QK and PV are quantized as named; opset 17."""
    b = QdqBuilder(2)
    x = b.pair("x", "/in")

    def linear(source: str, scope: str) -> str:
        product = b.node("MatMul", [source, b.stored(f"{scope}/weight", b.values(64, 64), axis=1)], scope)
        return b.node("Add", [b.vector(f"{scope}.bias", 64), product], scope)

    def heads(name: str, *perm: int) -> str:
        split = b.node(
            "Reshape", [linear(x, f"/{name}"), b.weight(f"{name}.heads", np.array([2, 16, 4, 16]))], f"/{name}"
        )
        return b.node("Transpose", [split], f"/{name}", perm=perm)

    def operand(role: str, tensor: str, scope: str) -> str:
        return b.pair(tensor, scope, 1 / 127 if "weights" in scope else 0.05) if role in quantized else tensor

    scores = b.node(
        "MatMul",
        [operand("QK", heads("q", 0, 2, 1, 3), "/scores/q"), operand("QK", heads("k", 0, 2, 3, 1), "/scores/k")],
        "/scores",
    )
    scores = b.node("Div", [scores, b.weight("root", np.array(4, np.float32))], "/scores")
    weights = b.node("Softmax", [scores], "", axis=-1)
    merged = b.node(
        "MatMul",
        [operand("PV", weights, "/values/weights"), operand("PV", heads("v", 0, 2, 1, 3), "/values/v")],
        "/values",
    )
    merged = b.node("Transpose", [merged], "/merge", perm=[0, 2, 1, 3])
    merged = b.node("Reshape", [merged, b.weight("merged", np.array([2, 16, 64]))], "/merge")
    out = linear(b.pair(merged, "/o/in"), "/o")
    b.node("Add", ["x", out], "/residual", output="y")
    return b.model([floats("x", 2, 16, 64)], [floats("y", 2, 16, 64)], name="attention")


def conv(form: str = "") -> onnx.ModelProto:
    """A 3x3 Conv with a Relu between quantized values, in a form; opset 17, (1, 32, 8, 8) to the same.

    Args:
        form: ``axis`` (weight scales of the input channels), ``activation axis`` (a scale per channel of the input),
            ``zero point``, ``unsigned`` (UINT8, zero point 0), ``no zero point`` (the same by default),
            ``bias`` (int32), ``clipped bias`` (the same, with a value at the limit), ``tanh``,
            ``mul`` (a factor per output channel), ``reshape`` (between the DequantizeLinear of the weight and the
            Conv), ``computed`` (weight), ``tensor`` (one weight scale), ``small channel`` (the same,
            and a channel of 1/16), ``pair`` (the same, as Q/DQ on stored floats),
            ``int16``, or "" for the form that TensorRT takes.
    """
    b = QdqBuilder(3, opset=21 if form == "int16" else 17)
    pairs = {
        "activation axis": {"scale": np.full(32, 0.05)},
        "zero point": {"zero": 3},
        "unsigned": {"kind": np.uint8},
        "int16": {"kind": np.int16},
    }
    if form == "no zero point":
        quantized = b.node("QuantizeLinear", ["x", b.weight("scale", np.float32(0.05))], name="/in/q")
        x = b.node("DequantizeLinear", [quantized, "scale"], name="/in/dq")
    else:
        x = b.pair("x", "/in", **pairs.get(form, {}))
    values = b.values(32, 32, 3, 3)
    if form in ("small channel", "pair"):
        values[5] *= np.abs(values).max() / 16 / np.abs(values[5]).max()
    if form == "computed":
        mean = b.node("ReduceMean", ["x"], "/mean", axes=[0, 1, 2, 3], keepdims=1)
        w = b.pair(b.node("Expand", [mean, b.weight("shape", np.array([32, 32, 3, 3]))], "/mean"), "/weight", 0.01)
    elif form == "pair":
        w = b.pair(b.weight("floats", values), "/weight", float(np.abs(values).max()) / 127)
    elif form == "reshape":
        w = b.node(
            "Reshape",
            [b.stored("/weight", values.reshape(32, -1)), b.weight("shape", np.array(values.shape))],
            "/weight",
        )
    else:
        w = b.stored(
            "/weight", values, axis=1 if form == "axis" else None if form in ("tensor", "small channel") else 0
        )
    if form == "tanh":
        w = b.node("Tanh", [w], "/weight")
    if form == "mul":
        factor = np.linspace(0.5, 2, 32, dtype=np.float32).reshape(32, 1, 1, 1)
        w = b.node("Mul", [w, b.weight("factor", factor)], "/weight")
    inputs = [x, w]
    if form in ("bias", "clipped bias"):
        bias = np.arange(32, dtype=np.int32)
        bias[7] = np.iinfo(np.int32).max if form == "clipped bias" else 7
        stored = [b.weight("bias", bias), b.weight("bias.scale", np.float32(1e-4)), b.weight("bias.zero", np.int32(0))]
        inputs.append(b.node("DequantizeLinear", stored, name="/bias/dq"))
    y = b.node("Conv", inputs, "", kernel_shape=[3, 3], pads=[1] * 4)
    b.node("Relu", [y], "", output="y")
    return b.model([floats("x", 1, 32, 8, 8)], [floats("y", 1, 32, 8, 8)], name="conv", ir_version=10)


def half_product(
    *, activation_scale: float = 0.05, weight_in_fp32: bool = False, batch: Sequence[int] = (1,)
) -> onnx.ModelProto:
    """A MatMul of FP16 between Q/DQ nodes; opset 19.

    Args:
        weight_in_fp32: The weight has FP32 scales, with a Cast to FP16 behind its DequantizeLinear.
        batch: The sizes before the rows of the activation.
    """
    b = QdqBuilder(4, opset=19)
    x = b.pair("x", "/in", activation_scale, float_type=np.float16)
    w = b.stored("/fc/weight", b.values(64, 128), axis=1)
    if weight_in_fp32:
        w = b.node("Cast", [w], "/fc", to=onnx.TensorProto.FLOAT16)
    else:
        scale = next(tensor for tensor in b.weights if tensor.name == "/fc/weight.scale")
        scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale).astype(np.float16), scale.name))
    b.node("MatMul", [x, w], "/fc", output="y")
    model = b.model([floats("x", *batch, 16, 64)], [floats("y", *batch, 16, 128)], name="half_product", ir_version=9)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return model


def between(operator: str) -> onnx.ModelProto:
    """Two quantized Convs with a float operator between them: AveragePool, Conv, Resize or Softmax; opset 17."""
    b = QdqBuilder(5)
    y = b.quantized_conv(b.pair("x", "/in"), "/one")
    if operator == "Resize":
        y = b.node(
            "Resize",
            [y, "", b.weight("sizes", np.array([1, 1, 2, 2], np.float32))],
            "/mid",
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
        )
    elif operator == "AveragePool":
        y = b.node("AveragePool", [y], "/mid", kernel_shape=[2, 2], strides=[2, 2])
    elif operator == "Conv":
        y = b.quantized_conv(y, "/mid", b.weight("/mid/weight", b.values(32, 32, 3, 3)))
    else:
        y = b.node(operator, [y], "/mid", axis=1)
    b.end_in_conv(b.pair(y, "/next"), "/two", "y")
    return b.model([floats("x", 1, 32, 8, 8)], [floats("y", 1, 32, "h", "w")], name="between")


def branches(second_scale: float = 0.08, operator: str = "Relu", chained: bool = False) -> onnx.ModelProto:
    """A Conv and an operator whose result two Convs read, each behind its own Q/DQ pair; opset 17.

    Args:
        second_scale: The scale of the second pair; that of the first one is 0.05.
        operator: The operator whose result is quantized: Relu or AveragePool.
        chained: The second pair quantizes the dequantized values of the first one.
    """
    b = QdqBuilder(4)
    y = b.quantized_conv(b.pair("x", "/in"), "/one")
    y = b.node(operator, [y], "/one", **({} if operator == "Relu" else {"kernel_shape": [2, 2], "strides": [2, 2]}))
    left = b.pair(y, "/left", 0.05)
    right = b.pair(left if chained else y, "/right", second_scale)
    b.node("Add", [b.quantized_conv(left, "/two"), b.quantized_conv(right, "/three")], "/sum", output="y")
    return b.model([floats("x", 1, 32, 8, 8)], [floats("y", 1, 32, "h", "w")], name="branches")
