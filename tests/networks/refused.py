"""Small networks in the manner of real exports that TensorRT 8.6 does not build in INT8 with precisions obeyed."""

import numpy as np
import onnx
from onnx import numpy_helper

from .build import Builder, floats


def _shape(b: Builder, name: str, *sizes: int) -> str:
    b.weights.append(numpy_helper.from_array(np.array(sizes, np.int64), name))
    return name


def _silu(b: Builder, source: str, scope: str) -> str:
    return b.node("Mul", [source, b.node("Sigmoid", [source], f"{scope}/act")], f"{scope}/act")


def unet_opset9(seed: int = 0) -> onnx.ModelProto:
    """A U-Net as exporters wrote it at opset 9, both steps up by ConvTranspose; a Conv of one channel at its end.

    Input ``image`` float32 (1, 3, 64, 64), output ``mask`` float32 (1, 1, 64, 64).
    """
    b = Builder(seed, opset=9)

    def block(source: str, channels: tuple[int, int], scope: str) -> str:
        x = b.batch_norm(b.conv(source, channels, f"{scope}/conv1"), channels[1], f"{scope}/bn1")
        return b.node("Relu", [x], f"{scope}/relu1")

    def up(source: str, channels: tuple[int, int], scope: str) -> str:
        kernel = b.kernel(f"{scope.strip('/')}.weight", (*channels, 2, 2), channels[0])
        return b.node(
            "ConvTranspose",
            [source, kernel, b.vector(f"{scope.strip('/')}.bias", channels[1])],
            scope,
            kernel_shape=[2, 2],
            strides=[2, 2],
        )

    def pool(source: str, scope: str) -> str:
        return b.node("MaxPool", [source], scope, kernel_shape=[2, 2], strides=[2, 2])

    high = block("image", (3, 16), "/down1")
    middle = block(pool(high, "/pool1"), (16, 32), "/down2")
    low = block(pool(middle, "/pool2"), (32, 64), "/down3")
    x = block(b.node("Concat", [up(low, (64, 32), "/up1"), middle], "/cat1", axis=1), (64, 32), "/dec1")
    x = block(b.node("Concat", [up(x, (32, 16), "/up2"), high], "/cat2", axis=1), (32, 16), "/dec2")
    kernel = b.kernel("head.weight", (1, 16, 1, 1), 16)
    b.node("Conv", [x, kernel, b.vector("head.bias", 1)], "/head", output="mask", kernel_shape=[1, 1])
    return b.model([floats("image", 1, 3, 64, 64)], [floats("mask", 1, 1, 64, 64)], name="unet_opset9")


def positional(seed: int = 0) -> onnx.ModelProto:
    """wav2vec2's positional Conv: one dimension, an even kernel, groups, weight norm computed from constants.

    Input ``frames`` float32 (1, 48, 64) to ``hidden`` of the same shape.
    """
    b = Builder(seed)
    x = b.node("MatMul", ["frames", b.kernel("proj.weight", (64, 64), 64)], "/proj")
    x = b.node("Add", [x, b.vector("proj.bias", 64)], "/proj")
    direction = b.kernel("pos.v", (64, 16, 16), 256)
    norm = b.node("ReduceL2", [direction], "/pos/parametrization", axes=[0, 1], keepdims=1)
    scale = b.node("Div", [b.weight("pos.g", np.full((1, 1, 16), 6.0, np.float32)), norm], "/pos/parametrization")
    kernel = b.node("Mul", [direction, scale], "/pos/parametrization")
    y = b.node("Transpose", [x], "/pos/in", perm=[0, 2, 1])
    y = b.node("Conv", [y, kernel, b.vector("pos.bias", 64)], "/pos/conv", kernel_shape=[16], pads=[8, 8], group=4)
    y = b.node("Slice", [y, _shape(b, "zero", 0), _shape(b, "end", -1), _shape(b, "axis", 2)], "/pos/pad")
    half = b.node("Div", [y, b.weight("root", np.array(1.4142135, np.float32))], "/pos/act")
    half = b.node("Add", [b.node("Erf", [half], "/pos/act"), b.weight("one", np.array(1.0, np.float32))], "/pos/act")
    y = b.node("Mul", [b.node("Mul", [y, half], "/pos/act"), b.weight("half", np.array(0.5, np.float32))], "/pos/act_1")
    y = b.node("Add", [x, b.node("Transpose", [y], "/pos/out", perm=[0, 2, 1])], "/residual")
    y = b.node("LayerNormalization", [y, b.vector("ln.weight", 64, 1.0), b.vector("ln.bias", 64)], "/ln", axis=-1)
    y = b.node("MatMul", [y, b.kernel("out.weight", (64, 64), 64)], "/out")
    b.node("Add", [y, b.vector("out.bias", 64)], "/out", output="hidden")
    return b.model([floats("frames", 1, 48, 64)], [floats("hidden", 1, 48, 64)], name="positional")


def strided_attention(seed: int = 0) -> onnx.ModelProto:
    """SegFormer's attention: keys and values from tokens that a strided Conv has reduced, queries from all of them.

    Input ``image`` float32 (1, 3, 32, 32), output ``tokens`` float32 (1, 256, 32).
    """
    b = Builder(seed)

    def norm(source: str, scope: str) -> str:
        name = scope.strip("/")
        return b.node(
            "LayerNormalization",
            [source, b.vector(f"{name}.weight", 32, 1.0), b.vector(f"{name}.bias", 32)],
            scope,
            axis=-1,
        )

    def linear(source: str, scope: str) -> str:
        name = scope.strip("/").replace("/", ".")
        x = b.node("MatMul", [source, b.kernel(f"{name}.weight", (32, 32), 32)], scope)
        return b.node("Add", [x, b.vector(f"{name}.bias", 32)], scope)

    def heads(source: str, scope: str, tokens: int, perm: list[int]) -> str:
        x = b.node("Reshape", [source, _shape(b, f"{scope}.shape", 1, tokens, 2, 16)], scope)
        return b.node("Transpose", [x], scope, perm=perm)

    x = b.conv("image", (3, 32), "/patch", size=3, stride=2, bias=True)
    x = b.node("Transpose", [b.node("Reshape", [x, _shape(b, "flat", 1, 32, 256)], "/flat")], "/flat", perm=[0, 2, 1])
    y = norm(x, "/ln1")
    small = b.node("Transpose", [y], "/sr/in", perm=[0, 2, 1])
    small = b.node("Reshape", [small, _shape(b, "sr.shape", 1, 32, 16, 16)], "/sr/in")
    small = b.node(
        "Conv",
        [small, b.kernel("sr.weight", (32, 32, 4, 4), 512), b.vector("sr.bias", 32)],
        "/sr",
        kernel_shape=[4, 4],
        strides=[4, 4],
    )
    small = b.node("Reshape", [small, _shape(b, "sr.flat", 1, 32, 16)], "/sr/out")
    small = norm(b.node("Transpose", [small], "/sr/out", perm=[0, 2, 1]), "/sr_ln")
    q = heads(linear(y, "/attn/query"), "/attn/q", 256, [0, 2, 1, 3])
    k = heads(linear(small, "/attn/key"), "/attn/k", 16, [0, 2, 3, 1])
    v = heads(linear(small, "/attn/value"), "/attn/v", 16, [0, 2, 1, 3])
    scores = b.node("Div", [b.node("MatMul", [q, k], "/attn"), b.weight("scale", np.array(4.0, np.float32))], "/attn")
    y = b.node("MatMul", [b.node("Softmax", [scores], "/attn", axis=-1), v], "/attn/context")
    y = b.node("Transpose", [y], "/attn/out", perm=[0, 2, 1, 3])
    y = linear(b.node("Reshape", [y, _shape(b, "merged", 1, 256, 32)], "/attn/out"), "/attn/dense")
    y = b.node("Add", [x, y], "/residual")
    b.node("Add", [y, linear(norm(y, "/ln2"), "/mlp")], "/out", output="tokens")
    return b.model([floats("image", 1, 3, 32, 32)], [floats("tokens", 1, 256, 32)], name="strided_attention")


def detector_head(seed: int = 0) -> onnx.ModelProto:
    """YOLOv8's parts: SiLU, a split block with its Concat, and a head whose boxes come from a Softmax over bins.

    Input ``images`` float32 (1, 3, 64, 64), output ``output0`` float32 (1, 12, 256): 4 coordinates, 8 scores.
    """
    b = Builder(seed)

    def unit(source: str, channels: tuple[int, int], scope: str, size: int = 3, stride: int = 1) -> str:
        return _silu(b, b.conv(source, channels, f"{scope}/conv", size=size, stride=stride, bias=True), scope)

    x = unit(unit("images", (3, 16), "/model.0", stride=2), (16, 32), "/model.1", stride=2)
    x = unit(x, (32, 32), "/model.2/cv1", size=1)
    b.nodes.append(
        onnx.helper.make_node(
            "Split", [x, _shape(b, "halves", 16, 16)], ["left", "right"], name="/model.2/Split", axis=1
        )
    )
    y = unit(unit("right", (16, 16), "/model.2/m.0/cv1"), (16, 16), "/model.2/m.0/cv2")
    y = b.node("Add", ["right", y], "/model.2/m.0")
    x = unit(b.node("Concat", ["left", "right", y], "/model.2", axis=1), (48, 32), "/model.2/cv2", size=1)
    boxes = b.conv(unit(x, (32, 64), "/head/cv2.0"), (64, 64), "/head/cv2.1", size=1, bias=True)
    scores = b.conv(unit(x, (32, 32), "/head/cv3.0"), (32, 8), "/head/cv3.1", size=1, bias=True)
    bins = b.node("Reshape", [boxes, _shape(b, "bins", 1, 4, 16, 256)], "/head/dfl")
    bins = b.node("Softmax", [b.node("Transpose", [bins], "/head/dfl", perm=[0, 2, 1, 3])], "/head/dfl", axis=1)
    places = b.weight("dfl.weight", np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    distances = b.node("Conv", [bins, places], "/head/dfl/conv", kernel_shape=[1, 1])
    distances = b.node("Reshape", [distances, _shape(b, "four", 1, 4, 256)], "/head/dfl_1")
    distances = b.node("Mul", [distances, b.weight("stride", np.array(4.0, np.float32))], "/head")
    scores = b.node("Sigmoid", [b.node("Reshape", [scores, _shape(b, "eight", 1, 8, 256)], "/head")], "/head")
    b.node("Concat", [distances, scores], "/head", output="output0", axis=1)
    return b.model([floats("images", 1, 3, 64, 64)], [floats("output0", 1, 12, 256)], name="detector_head")


REFUSED = (unet_opset9, positional, strided_attention, detector_head)
