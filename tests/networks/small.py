"""Small networks of a few layers with seeded weights."""

import numpy as np
import onnx

from .build import Builder, floats
from .seeding import settle_batch_norms


def small_resnet(seed: int = 0, size: int = 32) -> onnx.ModelProto:
    """A residual CNN: an identity block, a block of stride 2 with a 1×1 Conv on its skip, pool, Gemm; opset 17.

    Input ``image`` float32 (batch, 3, size, size), output ``logits`` float32 (batch, 10); node names such as
    ``/layer1/conv1/Conv``.
    """
    b = Builder(seed)

    def unit(source: str, channels: tuple[int, int], conv: str, norm: str, **options: int) -> str:
        return b.batch_norm(b.conv(source, channels, conv, **options), channels[1], norm)

    x = b.node("Relu", [unit("image", (3, 16), "/conv1", "/bn1")], "/relu")
    for scope, (before, after), stride in (("/layer1", (16, 16), 1), ("/layer2", (16, 32), 2)):
        y = unit(x, (before, after), f"{scope}/conv1", f"{scope}/bn1", stride=stride)
        y = b.node("Relu", [y], f"{scope}/relu1")
        y = unit(y, (after, after), f"{scope}/conv2", f"{scope}/bn2")
        if stride > 1:
            down = f"{scope}/downsample"
            x = b.batch_norm(b.conv(x, (before, after), f"{down}.0", size=1, stride=stride), after, f"{down}.1")
        x = b.node("Relu", [b.node("Add", [y, x], scope)], f"{scope}/relu2")
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "/avgpool")], "", axis=1)
    b.gemm(x, (32, 10), "/fc", output="logits")
    model = b.model([floats("image", "batch", 3, size, size)], [floats("logits", "batch", 10)], name="small_resnet")
    settle_batch_norms(model, seed)
    return model


def unet_small(seed: int = 0) -> onnx.ModelProto:
    """A U-Net of three levels: one step up by ConvTranspose, one by Resize, Concat of each skip; opset 17.

    Input ``image`` float32 (batch, 1, 32, 32), output ``scores`` float32 (batch, 4, 32, 32).
    """
    b = Builder(seed)

    def block(source: str, channels: tuple[int, int], scope: str) -> str:
        x = b.batch_norm(b.conv(source, channels, f"{scope}/conv"), channels[1], f"{scope}/bn")
        return b.node("Relu", [x], f"{scope}/relu")

    def pool(source: str, scope: str) -> str:
        return b.node("MaxPool", [source], scope, kernel_shape=[2, 2], strides=[2, 2])

    high = block("image", (1, 8), "/encoder.0")
    middle = block(pool(high, "/pool.0"), (8, 16), "/encoder.1")
    low = block(pool(middle, "/pool.1"), (16, 32), "/bottleneck")
    kernel = b.kernel("up.0.weight", (32, 16, 2, 2), 32)
    up = b.node("ConvTranspose", [low, kernel, b.vector("up.0.bias", 16)], "/up.0", kernel_shape=[2, 2], strides=[2, 2])
    x = block(b.node("Concat", [up, middle], "/cat.0", axis=1), (32, 16), "/decoder.0")
    scales = b.weight("up.1.scales", np.array([1, 1, 2, 2], np.float32))
    up = b.node(
        "Resize",
        [x, "", scales],
        "/up.1",
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    x = block(b.node("Concat", [up, high], "/cat.1", axis=1), (24, 8), "/decoder.1")
    kernel = b.kernel("head.weight", (4, 8, 1, 1), 8)
    b.node("Conv", [x, kernel, b.vector("head.bias", 4)], "/head", output="scores", kernel_shape=[1, 1])
    model = b.model([floats("image", "batch", 1, 32, 32)], [floats("scores", "batch", 4, 32, 32)], name="unet_small")
    settle_batch_norms(model, seed)
    return model


def mlp(seed: int = 0) -> onnx.ModelProto:
    """Gemm, Relu, MatMul + Add, Relu, Gemm; opset 17. ``x`` float32 (batch, 16) to ``y`` float32 (batch, 4)."""
    b = Builder(seed)
    x = b.node("Relu", [b.gemm("x", (16, 32), "/fc1")], "/act1")
    x = b.node("MatMul", [x, b.kernel("fc2.weight", (32, 32), 32)], "/fc2")
    x = b.node("Relu", [b.node("Add", [x, b.vector("fc2.bias", 32)], "/fc2")], "/act2")
    b.gemm(x, (32, 4), "/fc3", output="y")
    return b.model([floats("x", "batch", 16)], [floats("y", "batch", 4)], name="mlp")


def chain(seed: int = 0, depth: int = 6, width: int = 16) -> onnx.ModelProto:
    """Gemm with Relu or Tanh, a residual Add behind every third, a head: ``depth`` + 1 groups that can be INT8.

    ``x`` float32 (batch, width) to ``y`` float32 (batch, 8); opset 17.
    """
    b = Builder(seed)
    x = "x"
    for number in range(depth):
        y = b.gemm(x, (width, width), f"/fc{number}")
        y = b.node(("Relu", "Tanh")[b.rng.integers(2)], [y], f"/act{number}")
        x = b.node("Add", [y, x], f"/residual{number}") if number % 3 == 2 else y
    b.gemm(x, (width, 8), "/head", output="y")
    return b.model([floats("x", "batch", width)], [floats("y", "batch", 8)])
