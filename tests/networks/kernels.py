"""Networks whose layers builders fuse, split or run in another precision than asked."""

import numpy as np
import onnx

from .build import Builder, floats


def attention_block(seed: int = 0) -> onnx.ModelProto:
    """Q, K and V, an attention of 4 heads, its projection, the residual and a LayerNorm; opset 17.

    Input ``x`` float32 (2, 16, 64), output ``y`` alike.
    """
    b = Builder(seed)

    def linear(source: str, scope: str) -> str:
        product = b.node("MatMul", [source, b.kernel(f"{scope}.weight", (64, 64), 64, 1.0)], scope)
        return b.node("Add", [b.vector(f"{scope}.bias", 64), product], scope)

    def heads(name: str, *perm: int) -> str:
        split = b.node(
            "Reshape", [linear("x", f"/{name}"), b.weight(f"{name}.heads", np.array([2, 16, 4, 16]))], f"/{name}"
        )
        return b.node("Transpose", [split], f"/{name}", perm=perm)

    scores = b.node("MatMul", [heads("q", 0, 2, 1, 3), heads("k", 0, 2, 3, 1)], "/scores")
    scores = b.node("Div", [scores, b.weight("root", np.array(4, np.float32))], "/scores")
    values = b.node("MatMul", [b.node("Softmax", [scores], "", axis=-1), heads("v", 0, 2, 1, 3)], "/values")
    values = b.node("Transpose", [values], "/merge", perm=[0, 2, 1, 3])
    values = b.node("Reshape", [values, b.weight("merged", np.array([2, 16, 64]))], "/merge")
    x = b.node("Add", ["x", linear(values, "/o")], "/residual")
    b.node(
        "LayerNormalization",
        [x, b.vector("norm.weight", 64, 1.0), b.vector("norm.bias", 64)],
        "/norm",
        output="y",
        axis=-1,
    )
    return b.model([floats("x", 2, 16, 64)], [floats("y", 2, 16, 64)], name="attention_block")


def attention_operator(
    seed: int = 0, *, gain: float = 1.0, has_past: bool = False, mask: np.ndarray | None = None, **attributes: float
) -> onnx.ModelProto:
    """Q, K and V of two heads of 8 channels, one operator Attention, and a MatMul behind it; opset 23.

    Input ``x`` float32 (batch, 6, 16), output ``y`` alike. With a past also ``past_k`` and ``past_v`` (batch, 2, 5, 8)
    and the outputs ``present_k`` and ``present_v``.

    Args:
        gain: The factor of Q and of K.
        mask: Values that are added to the scores.
    """
    b = Builder(seed, opset=23)
    sizes, merged = b.weight("sizes", np.array([0, -1, 2, 8])), b.weight("merged", np.array([0, -1, 16]))

    def heads(name: str) -> str:
        product = b.node(
            "MatMul", ["x", b.kernel(f"{name}.weight", (16, 16), 16, 1.0 if name == "v" else gain**2)], f"/{name}"
        )
        return b.node("Transpose", [b.node("Reshape", [product, sizes], f"/{name}")], f"/{name}", perm=[0, 2, 1, 3])

    past, present = (["past_k", "past_v"], ["present_k", "present_v"]) if has_past else ([], [])
    inputs = [*map(heads, "qkv"), b.weight("mask", mask) if mask is not None else "", *past]
    b.nodes.append(onnx.helper.make_node("Attention", inputs, ["attended", *present], name="/Attention", **attributes))
    values = b.node("Reshape", [b.node("Transpose", ["attended"], "/merge", perm=[0, 2, 1, 3]), merged], "/merge")
    b.node("MatMul", [values, b.kernel("o.weight", (16, 16), 16, 1.0)], "/o", output="y")
    return b.model(
        [floats("x", "batch", 6, 16), *(floats(name, "batch", 2, 5, 8) for name in past)],
        [floats("y", "batch", 6, 16), *(floats(name, "batch", 2, "all", 8) for name in present)],
        name="attention_operator",
        ir_version=11,
    )


def upsampler(seed: int = 0) -> onnx.ModelProto:
    """A generator of images: a Conv, three ConvTransposes that double the size, a Conv and a Tanh; opset 17.

    Input ``latent`` float32 (1, 8, 4, 4), output ``image`` float32 (1, 3, 32, 32).
    """
    b = Builder(seed)
    x = b.node("Relu", [b.conv("latent", (8, 16), "/stem", bias=True)], "/stem")
    for index, (inputs, outputs) in enumerate(((16, 32), (32, 16), (16, 8))):
        kernel = b.kernel(f"up.{index}.weight", (inputs, outputs, 4, 4), inputs * 4)
        x = b.node(
            "ConvTranspose",
            [x, kernel, b.vector(f"up.{index}.bias", outputs)],
            f"/up.{index}",
            kernel_shape=[4, 4],
            strides=[2, 2],
            pads=[1, 1, 1, 1],
        )
        x = b.node("Relu", [x], f"/up.{index}")
    b.node("Tanh", [b.conv(x, (8, 3), "/to_image", bias=True)], "/to_image", output="image")
    return b.model([floats("latent", 1, 8, 4, 4)], [floats("image", 1, 3, 32, 32)], name="upsampler")


def odd_kernels(seed: int = 0) -> onnx.ModelProto:
    """A residual block, a depthwise Conv, a ConvTranspose, one with a Celu behind it, a 1×1 Conv; opset 17.

    Input ``image`` float32 (1, 3, 16, 16), output ``scores`` float32 (1, 8, 64, 64).
    """
    b = Builder(seed)

    def up(source: str, scope: str) -> str:
        return b.node(
            "ConvTranspose",
            [source, b.kernel(f"{scope}.weight", (32, 32, 2, 2), 32), b.vector(f"{scope}.bias", 32)],
            scope,
            kernel_shape=[2, 2],
            strides=[2, 2],
        )

    x = b.node("Relu", [b.conv("image", (3, 32), "/stem", bias=True)], "/stem")
    y = b.node("Relu", [b.conv(x, (32, 32), "/block/one", bias=True)], "/block/one")
    x = b.node("Relu", [b.node("Add", [b.conv(y, (32, 32), "/block/two", bias=True), x], "/block")], "/block")
    x = b.node("Relu", [b.conv(x, (32, 32), "/depthwise", groups=32, bias=True)], "/depthwise")
    x = b.node("Celu", [up(b.node("Relu", [up(x, "/up")], "/up"), "/celu")], "/celu")
    b.node(
        "Conv",
        [x, b.kernel("head.weight", (8, 32, 1, 1), 32), b.vector("head.bias", 8)],
        "/head",
        output="scores",
        kernel_shape=[1, 1],
    )
    return b.model([floats("image", 1, 3, 16, 16)], [floats("scores", 1, 8, 64, 64)], name="odd_kernels")
