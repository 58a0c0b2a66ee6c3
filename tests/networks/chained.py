"""Random chains of layers whose channels can be scaled, and skewed channels in any network."""

from random import Random

import numpy as np
import onnx
from onnx import numpy_helper

from trt_tui.core.network.network import Network

from .build import Builder, floats

BATCH, SIDE = 4, 8

_STEPS = tuple("conv depthwise grouped up relu leaky prelu max_pool average_pool residual concat split".split())


def chained(random: Random) -> onnx.ModelProto:
    """Convs of all kinds with what commutes between them, then Flatten or Reshape, Gemm, MatMul and Gemm; opset 17.

    Input ``x`` float32 (4, 4, 8, 8), output ``y`` float32 (4, 6).
    """
    b = Builder(random.randrange(1 << 16))
    x, channels, side = b.conv("x", (4, 8), "/first", bias=True), 8, SIDE
    for index in range(random.randint(2, 6)):
        x, channels, side = _step(b, random, x, channels, side, f"/s{index}")
    x = b.node("Relu", [b.conv(x, (channels, 8), "/last", bias=random.random() < 0.5)], "/last")
    if random.random() < 0.5:
        x = b.node("Flatten", [x], "/flat", axis=1)
    else:
        x = b.node("Reshape", [x, b.weight("sizes", np.array([BATCH, -1]))], "/flat")
    x = b.node("Relu", [b.gemm(x, (8 * side * side, 16), "/fc1")], "/fc1")
    x = b.node("MatMul", [x, b.kernel("fc2.weight", (16, 12), 16)], "/fc2")
    x = b.node("LeakyRelu", [b.node("Add", [x, b.vector("fc2.bias", 12)], "/fc2")], "/fc2", alpha=0.1)
    b.gemm(x, (12, 6), "/fc3", output="y")
    return b.model([floats("x", BATCH, 4, SIDE, SIDE)], [floats("y", BATCH, 6)])


def _step(b: Builder, random: Random, x: str, channels: int, side: int, scope: str) -> tuple[str, int, int]:
    kind = random.choice(_STEPS)
    if kind in ("conv", "depthwise", "grouped"):
        groups = {"conv": 1, "depthwise": channels, "grouped": 2}[kind]
        after = channels if kind == "depthwise" else random.choice((4, 8))
        return b.conv(x, (channels, after), scope, groups=groups, bias=random.random() < 0.7), after, side
    if kind == "up" and side < 16:
        kernel = b.kernel(f"{scope[1:]}.weight", (channels, 4, 2, 2), channels)
        return (
            b.node(
                "ConvTranspose",
                [x, kernel, b.vector(f"{scope[1:]}.bias", 4)],
                scope,
                kernel_shape=[2, 2],
                strides=[2, 2],
            ),
            4,
            2 * side,
        )
    if kind == "leaky":
        return b.node("LeakyRelu", [x], scope, alpha=0.1), channels, side
    if kind == "prelu":
        slope = b.weight(f"{scope[1:]}.slope", b.rng.uniform(0, 0.5, (channels, 1, 1)).astype(np.float32))
        return b.node("PRelu", [x, slope], scope), channels, side
    if kind == "max_pool":
        return b.node("MaxPool", [x], scope, kernel_shape=[3, 3], pads=[1] * 4), channels, side
    if kind == "average_pool" and side > 4:
        return b.node("AveragePool", [x], scope, kernel_shape=[2, 2], strides=[2, 2]), channels, side // 2
    if kind == "residual":
        inner = b.node("Relu", [b.conv(x, (channels, channels), f"{scope}/a", bias=True)], f"{scope}/a")
        inner = b.conv(inner, (channels, channels), f"{scope}/b", bias=True)
        return b.node("Relu", [b.node("Add", [inner, x], scope)], scope), channels, side
    if kind == "concat":
        other = b.node("Relu", [b.conv(x, (channels, 4), f"{scope}/a", bias=True)], f"{scope}/a")
        return b.node("Concat", [x, other], scope, axis=1), channels + 4, side
    if kind == "split" and channels % 4 == 0:
        sizes = b.weight(f"{scope[1:]}.sizes", np.array([channels // 4, channels - channels // 4]))
        parts = [f"{scope}/part{index}" for index in range(2)]
        b.nodes.append(onnx.helper.make_node("Split", [x, sizes], parts, name=f"{scope}/Split", axis=1))
        return b.node("Concat", parts[::-1], scope, axis=1), channels, side
    return b.node("Relu", [x], scope), channels, side


def inverted_residuals(clip: float | None = None, seed: int = 0) -> onnx.ModelProto:
    """A small MobileNetV2: three inverted residual blocks with depthwise Convs, pool and Gemm; opset 17.

    Input ``image`` float32 (batch, 3, 24, 24), output ``logits`` float32 (batch, 10).

    Args:
        clip: The upper bound of all activations (6 for Relu6); None for Relu.
    """
    b = Builder(seed)

    def activate(x: str, scope: str) -> str:
        if clip is None:
            return b.node("Relu", [x], scope)
        bounds = [b.weight(f"{scope[1:]}.{name}", np.float32(bound)) for name, bound in (("low", 0), ("high", clip))]
        return b.node("Clip", [x, *bounds], scope)

    x = activate(b.conv("image", (3, 16), "/stem", stride=2, bias=True), "/stem")
    for scope, (before, after) in (("/b0", (16, 16)), ("/b1", (16, 24)), ("/b2", (24, 24))):
        wide = 4 * before
        y = activate(b.conv(x, (before, wide), f"{scope}/expand", size=1, bias=True), f"{scope}/expand")
        y = activate(b.conv(y, (wide, wide), f"{scope}/depthwise", groups=wide, bias=True), f"{scope}/depthwise")
        y = b.conv(y, (wide, after), f"{scope}/project", size=1, bias=True, gain=1.0)
        x = b.node("Add", [x, y], scope) if before == after else y
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "/pool")], "", axis=1)
    b.gemm(x, (24, 10), "/head", output="logits")
    return b.model([floats("image", "batch", 3, 24, 24)], [floats("logits", "batch", 10)])


def skewed(model: onnx.ModelProto, network: Network, *, decades: float = 1.0, seed: int = 0) -> onnx.ModelProto:
    """The same function with uneven channels: all that can be scaled is divided by random factors.

    Args:
        network: The opened model.
        decades: The factors lie between 1 and ``10**decades``, so that channels become smaller.
    """
    rng, arrays = np.random.default_rng(seed), {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = {node.name: node for node in model.graph.node}
    for scaling in network.zero_cost_support.channel_scalings.values():
        factors = (10 ** rng.uniform(0, decades, scaling.channels)).astype(np.float32)
        for constant in (*scaling.producers, *scaling.readers):
            tensor = arrays[nodes[constant.port[0]].input[constant.port[1]]]
            array = numpy_helper.to_array(tensor) / constant.compute_divisors(factors)
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    return model
