"""Networks of many nodes, for benchmarks of the screen and of the lowerings."""

from collections.abc import Callable

import onnx

from .build import Builder, floats

_STAGES = 10
_BLOCKS_PER_STAGE = 20


def synthetic_tree(nodes: int = 20_000, seed: int = 0) -> onnx.ModelProto:
    """A network of exactly ``nodes`` cheap nodes (4 channels) in nested scopes such as ``/stages.3/blocks.7/layers.2``.

    Input ``image`` float32 (batch, 4, 8, 8), output ``logits`` float32 (batch, 4); opset 17.
    """

    def scope(layer: int, layers: int) -> str:
        per_block = -(-layers // (_STAGES * _BLOCKS_PER_STAGE))
        block, place = divmod(layer, per_block)
        return f"/stages.{block // _BLOCKS_PER_STAGE}/blocks.{block % _BLOCKS_PER_STAGE}/layers.{place}"

    return _residual_chain(
        "synthetic_tree", nodes, seed, channels=4, size=1, side=8, scope=scope, activation="LeakyRelu"
    )


def many_layers(nodes: int = 2000, seed: int = 0) -> onnx.ModelProto:
    """A residual CNN of exactly ``nodes`` nodes, with about 100 MB of weights at 2,000.

    Input ``image`` float32 (batch, 72, 16, 16), output ``logits`` float32 (batch, 72); opset 17.
    """
    return _residual_chain(
        "many_layers", nodes, seed, channels=72, size=3, side=16, scope=lambda layer, layers: f"/layers.{layer}"
    )


def _residual_chain(
    name: str,
    nodes: int,
    seed: int,
    *,
    channels: int,
    size: int,
    side: int,
    scope: Callable[[int, int], str],
    activation: str = "Relu",
) -> onnx.ModelProto:
    """Layers of Conv, BatchNorm, activation, Conv, BatchNorm, Add, Relu; then Relus up to ``nodes``; a head."""
    per_layer, head = 7, 3
    if nodes < per_layer + head:
        raise ValueError(f"at least {per_layer + head} nodes, not {nodes}")
    layers, rest = divmod(nodes - head, per_layer)
    b = Builder(seed)
    x = "image"
    for layer in range(layers):
        place = scope(layer, layers)
        y = b.conv(x, (channels, channels), f"{place}/conv1", size=size)
        y = b.node(activation, [b.batch_norm(y, channels, f"{place}/bn1")], f"{place}/act1")
        y = b.conv(y, (channels, channels), f"{place}/conv2", size=size)
        # The branches of all layers add up to about the variance of the input.
        y = b.batch_norm(y, channels, f"{place}/bn2", gamma=layers**-0.5)
        x = b.node("Relu", [b.node("Add", [y, x], place)], f"{place}/act2")
    for index in range(rest):
        x = b.node("Relu", [x], f"/tail.{index}")
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "/head/pool")], "/head", axis=1)
    b.gemm(x, (channels, channels), "/head/fc", output="logits")
    return b.model([floats("image", "batch", channels, side, side)], [floats("logits", "batch", channels)], name=name)
