"""Small networks with the troubles of public threads, each with samples on which the trouble shows.

Every function returns a network in FP32, unless it says otherwise, and its samples by the name of the input.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.networks import Builder, floats, qdq
from tests.networks.halves import as_half

Case = tuple[onnx.ModelProto, Mapping[str, np.ndarray]]

WIDTH = 16


def vectors(count: int = 12, *shape: int, seed: int = 0) -> np.ndarray:
    """Returns normally distributed samples of a shape, (16,) by default."""
    return np.random.default_rng(seed).standard_normal((count, *(shape or (WIDTH,))), dtype=np.float32)


def number(b: Builder, value: float) -> str:
    return b.weight(f"number{len(b.weights)}", np.float32(value))


def diagonal(b: Builder, first: float, others: float = 1.0) -> str:
    """Adds a diagonal weight whose first value differs."""
    return b.weight(f"weight{len(b.weights)}", np.diag([first, *[others] * (WIDTH - 1)]).astype(np.float32))


def finish(b: Builder, x: str, samples: np.ndarray, name: str = "x", **others: np.ndarray) -> Case:
    """Ends a network of vectors with a layer of four outputs."""
    axes = samples.shape[1:-1]
    b.node("MatMul", [x, b.kernel("head", (WIDTH, 4), WIDTH)], "/head", output="y")
    inputs = [floats(key, "batch", *array.shape[1:]) for key, array in {name: samples, **others}.items()]
    return b.model(inputs, [floats("y", "batch", *axes, 4)]), {name: samples, **others}


def halved(case: Case) -> tuple[onnx.ModelProto, Mapping[str, np.ndarray], onnx.ModelProto]:
    """Returns a network as a file in FP16, its samples in FP16, and the network in FP32 that it was made from."""
    model, samples = case
    file = onnx.ModelProto()
    file.CopyFrom(model)
    return as_half(file), {name: array.astype(np.float16) for name, array in samples.items()}, model


# -- normalisations ---------------------------------------------------------------------------------------------------


def layer_norm(b: Builder, x: str, axis: int = -1, epsilon: float = 1e-5) -> str:
    """Adds a decomposed LayerNormalization along an axis."""
    x = b.node("Sub", [x, b.node("ReduceMean", [x], "/norm/mean", axes=[axis])], "/norm")
    variance = b.node("ReduceMean", [b.node("Pow", [x, number(b, 2)], "/norm")], "/norm/variance", axes=[axis])
    root = b.node("Sqrt", [b.node("Add", [variance, number(b, epsilon)], "/norm")], "/norm")
    x = b.node("Div", [x, root], "/norm")
    shape = (WIDTH,) if axis == -1 else (WIDTH, 1, 1)
    return b.node("Mul", [x, b.weight("gamma", np.ones(shape, np.float32))], "/norm/scale")


def layer_norm_of_large_activations() -> Case:
    b = Builder()
    return finish(b, layer_norm(b, b.node("MatMul", ["x", diagonal(b, 900)], "/dense")), vectors())


def channels_first_layer_norm() -> Case:
    """The LayerNorm of ConvNeXt along the channels of an image."""
    b = Builder()
    x = b.node(
        "Conv", ["x", b.weight("dense", np.diag([900.0, *[1.0] * 15]).astype(np.float32)[..., None, None])], "/dense"
    )
    x = layer_norm(b, x, axis=1)
    b.node("Conv", [x, b.kernel("head", (4, WIDTH, 1, 1), WIDTH)], "/head", output="y")
    return (
        b.model([floats("x", "batch", WIDTH, 4, 4)], [floats("y", "batch", 4, 4, 4)]),
        {"x": vectors(12, WIDTH, 4, 4)},
    )


def rms_norm_of_large_activations() -> Case:
    b = Builder()
    x = b.node("MatMul", ["x", diagonal(b, 900)], "/dense")
    mean = b.node("ReduceMean", [b.node("Pow", [x, number(b, 2)], "/norm")], "/norm", axes=[-1])
    root = b.node("Sqrt", [b.node("Add", [mean, number(b, 1e-6)], "/norm")], "/norm")
    x = b.node("Mul", [x, b.node("Div", [number(b, 1), root], "/norm")], "/norm")
    return finish(b, b.node("Mul", [b.vector("gamma", WIDTH, 1.0), x], "/norm/scale"), vectors())


def l2_normalisation_of_large_activations() -> Case:
    """x · rsqrt(max(sum(x²), 1e-12)), as TensorFlow writes it."""
    b = Builder()
    x = b.node("MatMul", ["x", diagonal(b, 400, 100)], "/dense")
    total = b.node("ReduceSum", [b.node("Mul", [x, x], "/l2/square"), b.weight("axes", np.array([-1]))], "/l2")
    root = b.node("Sqrt", [b.node("Max", [total, number(b, 1e-12)], "/l2")], "/l2")
    return finish(b, b.node("Mul", [x, b.node("Reciprocal", [root], "/l2")], "/l2"), vectors())


def normalisation_with_a_clip() -> Case:
    """torch.nn.functional.normalize: x / max(norm, 1e-12), on samples of which some are 0."""
    b = Builder()
    x = b.node("Relu", ["x"], "/act")
    norm = b.node("ReduceL2", [x], "/normalize", axes=[-1], keepdims=1)
    norm = b.node("Clip", [norm, number(b, 1e-12)], "/normalize")
    norm = b.node("Expand", [norm, b.node("Shape", [x], "/normalize")], "/normalize")
    samples = vectors()
    samples[::3] = -1
    return finish(b, b.node("Div", [x, norm], "/normalize"), samples)


def division_by_a_sum_with_an_epsilon() -> Case:
    """x / (y + 1e-9) with y = 0 in some samples."""
    b = Builder()
    x = b.node("Relu", ["x"], "/act")
    total = b.node("ReduceSum", [x, b.weight("axes", np.array([-1]))], "/total")
    total = b.node("Add", [total, number(b, 1e-9)], "/total")
    samples = vectors()
    samples[::3] = -1
    return finish(b, b.node("Div", [x, total], "/divide"), samples)


def layer_norm_of_tiny_values() -> Case:
    """A decomposed LayerNormalization with an epsilon of 1e-8, of values whose variance is as small."""
    b = Builder()
    x = b.node("MatMul", ["x", diagonal(b, 1e-4, 1e-4)], "/dense")
    return finish(b, layer_norm(b, x, epsilon=1e-8), vectors())


def instance_norm() -> Case:
    """An InstanceNormalization of values with a large mean."""
    b = Builder()
    x = b.node("InstanceNormalization", ["x", b.vector("gamma", WIDTH, 1.0), b.vector("beta", WIDTH)], "/norm")
    b.node("Conv", [x, b.kernel("head", (4, WIDTH, 1, 1), WIDTH)], "/head", output="y")
    return (
        b.model([floats("x", "batch", WIDTH, 8, 8)], [floats("y", "batch", 4, 8, 8)]),
        {"x": vectors(12, WIDTH, 8, 8) + 300},
    )


def variance_of_squares() -> Case:
    """A normalisation whose variance is the mean of the squares minus the square of the mean, of values around 20."""
    b = Builder()
    mean = b.node("ReduceMean", ["x"], "/mean", axes=[-1])
    squares = b.node("ReduceMean", [b.node("Mul", ["x", "x"], "/squares")], "/squares", axes=[-1])
    variance = b.node("Sub", [squares, b.node("Mul", [mean, mean], "/mean/square")], "/variance")
    root = b.node("Sqrt", [b.node("Max", [variance, number(b, 1e-5)], "/variance")], "/variance")
    return finish(b, b.node("Div", [b.node("Sub", ["x", mean], "/centre"), root], "/norm"), vectors() + 20)


# -- masks ------------------------------------------------------------------------------------------------------------


def attention(mask: float, *, multiplied: bool = False, bias: float = 0.0, fully_masked: bool = False) -> Case:
    """An attention whose mask is added to the scores.

    Args:
        mask: The value at padding.
        multiplied: As in GPT-2: scores · kept + mask · (1 - kept); a sum otherwise.
        bias: A constant that is added to the scores, as a relative position.
        fully_masked: Some samples have only padding.
    """
    b = Builder()
    q, k, v = (b.node("MatMul", ["x", b.kernel(f"{name}.weight", (WIDTH, WIDTH), WIDTH)], f"/{name}") for name in "qkv")
    q = b.node("Mul", [q, number(b, 0.25)], "/scale")
    scores = b.node("MatMul", [q, b.node("Transpose", [k], "/keys", perm=[0, 2, 1])], "/scores")
    if bias:
        scores = b.node("Add", [scores, number(b, bias)], "/bias")
    kept = b.node("Unsqueeze", ["kept", b.weight("axis", np.array([1]))], "/mask")
    hidden = b.node("Sub", [number(b, 1), kept], "/mask")
    if multiplied:
        scores = b.node("Mul", [scores, kept], "/mask/kept")
    hidden = b.node("Mul", [hidden, number(b, mask)], "/mask/hidden")
    scores = b.node("Add", [scores, hidden], "/mask/add")
    x = b.node("MatMul", [b.node("Softmax", [scores], "", axis=-1), v], "/values")
    kept_samples = (np.arange(6) < np.random.default_rng(0).integers(2, 6, (12, 1))).astype(np.float32)
    if fully_masked:
        kept_samples[::3] = 0
    return finish(b, x, vectors(12, 6, WIDTH), kept=kept_samples)


def product_of_q_and_k(*, is_scaled_first: bool = False) -> Case:
    """An attention whose product of Q and K exceeds FP16, behind a scale or before it."""
    b = Builder()
    gain = 1200.0 if is_scaled_first else 120.0
    q, k, v = (
        b.node("MatMul", ["x", b.weight(name, np.eye(WIDTH, dtype=np.float32) * gain)], f"/{name}")
        for name, gain in (("q", gain), ("k", gain), ("v", 1.0))
    )
    if is_scaled_first:
        q = b.node("Mul", [q, number(b, 0.25)], "/scale")
    scores = b.node("MatMul", [q, b.node("Transpose", [k], "/keys", perm=[0, 2, 1])], "/scores")
    if not is_scaled_first:
        scores = b.node("Mul", [scores, number(b, 1e-4)], "/scale")
    x = b.node("MatMul", [b.node("Softmax", [scores], "", axis=-1), v], "/values")
    return finish(b, x, 2 * vectors(12, 6, WIDTH))


def layer_norm_with_infinite_bounds() -> Case:
    """tf2onnx's LayerNorm: the variance between Max and a Min with infinity; a mask of -1e12 beside it."""
    b = Builder()
    x = b.node("MatMul", ["x", diagonal(b, 900)], "/dense")
    x = b.node("Sub", [x, b.node("ReduceMean", [x], "/norm/mean", axes=[-1])], "/norm")
    variance = b.node("ReduceMean", [b.node("Mul", [x, x], "/norm")], "/norm/variance", axes=[-1])
    variance = b.node("Max", [b.node("Min", [variance, number(b, np.inf)], "/norm"), number(b, 1e-12)], "/norm")
    x = b.node("Div", [x, b.node("Sqrt", [variance], "/norm")], "/norm")
    return finish(b, x, vectors())


# -- values beyond FP16 -----------------------------------------------------------------------------------------------


def feed_forward_beyond_fp16() -> Case:
    """The second layer of T5's feed-forward block reaches 66,000 or more, and a residual and an RMSNorm follow."""
    b = Builder()
    h = b.node("Relu", [b.node("MatMul", ["x", diagonal(b, 200)], "/wi")], "/act")
    h = b.node("MatMul", [h, diagonal(b, 400)], "/wo")
    x = b.node("Add", ["x", h], "/residual")
    mean = b.node("ReduceMean", [b.node("Pow", [x, number(b, 2)], "/norm")], "/norm", axes=[-1])
    root = b.node("Sqrt", [b.node("Add", [mean, number(b, 1e-6)], "/norm")], "/norm")
    return finish(b, b.node("Div", [x, root], "/norm"), vectors())


def residual_beyond_fp16() -> Case:
    """A residual stream whose sum exceeds FP16, and a LayerNormalization behind it."""
    b = Builder(opset=17)
    first = b.node("MatMul", ["x", diagonal(b, 20000)], "/first")
    x = b.node("Add", [first, b.node("MatMul", ["x", diagonal(b, 20000)], "/second")], "/residual")
    x = b.node("LayerNormalization", [x, b.weight("gamma", np.ones(WIDTH, np.float32))], "/norm", axis=-1)
    return finish(b, x, vectors())


def image_of_16_bits() -> Case:
    """Pixels up to 255 that the network scales to 65,535 and back."""
    b = Builder()
    x = b.node("MatMul", ["x", diagonal(b, 257, 257)], "/scale")
    x = b.node("MatMul", [x, diagonal(b, 1 / 65535, 1 / 65535)], "/normalise")
    samples = np.random.default_rng(0).integers(0, 256, (12, WIDTH)).astype(np.float32)
    samples[:, 0] = 255
    return finish(b, x, samples)


def quotient_beyond_fp16() -> Case:
    """-1e5 · y / |y|² for small y."""
    b = Builder()
    square = b.node("ReduceSumSquare", ["x"], "/norm", axes=[-1])
    y = b.node("Div", [b.node("Mul", ["x", number(b, -1e5)], "/key"), square], "/key")
    y = b.node("Mul", [y, number(b, 1e-4)], "/scores")
    return finish(b, y, 0.25 * vectors())


def decomposed_softplus() -> Case:
    """log(1 + exp(x)) of values up to 15."""
    b = Builder()
    x = b.node("MatMul", ["x", diagonal(b, 10)], "/dense")
    return finish(
        b, b.node("Log", [b.node("Add", [b.node("Exp", [x], "/act"), number(b, 1)], "/act")], "/act"), vectors()
    )


def log_of_a_softmax() -> Case:
    """Log behind a Softmax in which one class dominates."""
    b = Builder()
    x = b.node("Softmax", [b.node("MatMul", ["x", diagonal(b, 30)], "/logits")], "/probabilities", axis=-1)
    return finish(b, b.node("Log", [x], "/log"), vectors())


def complement_of_probabilities() -> Case:
    """log(1 - p), with p limited to 1 - 1e-6, which is 1 in FP16."""
    b = Builder()
    p = b.node("Sigmoid", [b.node("MatMul", ["x", diagonal(b, 8, 4)], "/logits")], "/probabilities")
    p = b.node("Clip", [p, "", number(b, 1 - 1e-6)], "/clip")
    return finish(b, b.node("Log", [b.node("Sub", [number(b, 1), p], "/survival")], "/log"), vectors(64))


def argmax_of_large_logits() -> Case:
    """The class of logits beyond FP16."""
    b = Builder()
    x = b.node("MatMul", [b.node("MatMul", ["x", diagonal(b, 300, 300)], "/dense"), diagonal(b, 300, 250)], "/logits")
    b.node("ArgMax", [x], "/class", output="y", axis=-1, keepdims=0)
    output = helper.make_tensor_value_info("y", TensorProto.INT64, ["batch"])
    return b.model([floats("x", "batch", WIDTH)], [output]), {"x": 2 * vectors()}


def tanh_gelu_of_large_activations() -> Case:
    """The cube inside the tanh approximation of GELU is infinite in FP16, and its result is correct."""
    b = Builder()
    x = b.node("MatMul", ["x", diagonal(b, 30)], "/dense")
    cube = b.node("Mul", [b.node("Pow", [x, number(b, 3)], "/gelu"), number(b, 0.044715)], "/gelu/cube")
    inner = b.node("Mul", [b.node("Add", [x, cube], "/gelu"), number(b, 0.7978845608)], "/gelu/inner")
    y = b.node("Add", [b.node("Tanh", [inner], "/gelu"), number(b, 1)], "/gelu/outer")
    x = b.node("Mul", [b.node("Mul", [x, y], "/gelu/product"), number(b, 0.5)], "/gelu/half")
    return finish(b, x, vectors())


def sum_over_many_pixels() -> Case:
    """A mean that is computed as a sum over 64 x 64 pixels, divided by their number."""
    b = Builder()
    total = b.node("ReduceSum", ["x", b.weight("axes", np.array([2, 3]))], "/pool", keepdims=0)
    x = b.node("Div", [total, number(b, 64 * 64)], "/pool")
    b.node("MatMul", [x, b.kernel("head", (4, 4), 4)], "/head", output="y")
    samples = vectors(12, 4, 64, 64) + 30 * vectors(12, 4, 1, 1, seed=1)
    return b.model([floats("x", "batch", 4, 64, 64)], [floats("y", "batch", 4)]), {"x": samples}


# -- weights ----------------------------------------------------------------------------------------------------------


def weights_beyond_fp16() -> Case:
    b = Builder()
    samples = vectors()
    samples[:, 0] *= 1e-3
    return finish(b, b.node("MatMul", ["x", diagonal(b, 90000)], "/dense"), samples)


def subnormal_weights() -> Case:
    b = Builder()
    x = b.node("MatMul", ["x", b.weight("small", (2e-8 * vectors(WIDTH, seed=1)))], "/dense")
    return finish(b, b.node("Mul", [x, number(b, 5e3)], "/scale"), vectors())


# -- coordinates, positions and lengths -------------------------------------------------------------------------------


def grid_sample(width: int = 2048) -> Case:
    b = Builder(opset=16)
    b.node("GridSample", ["x", b.node("Tanh", ["grid"], "/grid")], "/sample", output="y")
    model = b.model(
        [floats("x", "batch", 1, 4, width), floats("grid", "batch", 8, 8, 2)], [floats("y", "batch", 1, 8, 8)]
    )
    return model, {"x": vectors(12, 1, 4, width), "grid": vectors(12, 8, 8, 2)}


def flow_lookup() -> Case:
    """RAFT: pixel positions plus a flow, scaled to the grid of a lookup in a wide image."""
    b = Builder(opset=16)
    width, height = 1024, 4
    steps = np.stack(np.meshgrid(np.linspace(0, width - 1, 64), np.arange(height)), -1).astype(np.float32)
    points = b.node("Add", ["flow", b.weight("pixels", steps)], "/coords")
    points = b.node("Mul", [points, b.weight("size", np.float32([2 / (width - 1), 2 / (height - 1)]))], "/scaled")
    points = b.node("Sub", [points, number(b, 1)], "/grid")
    b.node("GridSample", ["x", points], "/lookup", output="y", align_corners=1)
    model = b.model(
        [floats("x", "batch", 1, height, width), floats("flow", "batch", height, 64, 2)],
        [floats("y", "batch", 1, height, 64)],
    )
    return model, {"x": vectors(12, 1, height, width), "flow": vectors(12, height, 64, 2)}


def frame_count() -> Case:
    """floor((length - 1) / 2) + 1 in floats, and a mask of the frames below it."""
    b = Builder()
    frames = b.node(
        "Add",
        [
            b.node(
                "Floor",
                [b.node("Div", [b.node("Sub", ["length", number(b, 1)], "/len"), number(b, 2)], "/len")],
                "/len",
            ),
            number(b, 1),
        ],
        "/len/frames",
    )
    count = b.node("Cast", [frames], "/len", to=TensorProto.INT64)
    positions = b.weight("positions", np.arange(4096)[None])
    kept = b.node("Cast", [b.node("Less", [positions, count], "/mask")], "/mask", to=TensorProto.FLOAT)
    x = b.node("Mul", ["x", kept], "/masked")
    b.node("MatMul", [x, b.kernel("head", (4096, 4), 4096)], "/head", output="y")
    model = b.model([floats("x", "batch", 4096), floats("length", "batch", 1)], [floats("y", "batch", 4)])
    lengths = np.random.default_rng(1).integers(4097, 8191, (12, 1)).astype(np.float32)
    return model, {"x": vectors(12, 4096), "length": lengths}


def sinusoidal_positions() -> Case:
    """sin and cos of a time step up to 1,000 times a frequency."""
    b = Builder()
    frequencies = b.weight("frequencies", np.float32(10000.0 ** -(np.arange(8) / 8))[None])
    angles = b.node("Mul", ["t", frequencies], "/angles")
    x = b.node("Concat", [b.node("Sin", [angles], "/emb"), b.node("Cos", [angles], "/emb")], "/emb", axis=-1)
    b.node("MatMul", [x, b.kernel("head", (WIDTH, 4), WIDTH)], "/head", output="y")
    t = np.random.default_rng(0).uniform(0, 1000, (12, 1)).astype(np.float32)
    return b.model([floats("t", "batch", 1)], [floats("y", "batch", 4)]), {"t": t}


def cumulative_sum() -> Case:
    """A CumSum over 4,096 steps."""
    b = Builder()
    x = b.node("CumSum", ["x", b.weight("axis", np.array(1, np.int64))], "/phase")
    x = b.node("Sin", [x], "/wave")
    b.node("MatMul", [x, b.kernel("head", (4096, 4), 4096)], "/head", output="y")
    x = np.abs(vectors(12, 4096)) * 0.3
    return b.model([floats("x", "batch", 4096)], [floats("y", "batch", 4)]), {"x": x}


def angle_of_silent_bins() -> Case:
    """atan(imag / real) of a spectrum whose silent bins are about 1e-9."""
    b = Builder()
    real, imag = (
        b.node("MatMul", ["x", b.kernel(name, (WIDTH, WIDTH), WIDTH)], f"/{name}") for name in ("real", "imag")
    )
    x = b.node("Atan", [b.node("Div", [imag, real], "/angle")], "/angle")
    samples = vectors()
    samples[::2] *= 1e-9
    return finish(b, x, samples)


def lstm() -> Case:
    """An LSTM of ordinary weights over 32 steps."""
    b, size, steps = Builder(), 8, 32
    names = [b.kernel("W", (1, 4 * size, size), size, 1.0), b.kernel("R", (1, 4 * size, size), size, 1.0)]
    b.nodes.append(helper.make_node("LSTM", ["x", *names], ["steps"], name="/lstm", hidden_size=size))
    b.node("MatMul", ["steps", b.kernel("head", (size, 2), size)], "/head", output="y")
    model = b.model([floats("x", steps, 8, size)], [floats("y", steps, 1, 8, 2)])
    return model, {"x": np.random.default_rng(0).standard_normal((steps, 8, size), dtype=np.float32)}


# -- quantized networks -----------------------------------------------------------------------------------------------


def images() -> np.ndarray:
    return vectors(12, WIDTH, 8, 8)


def scaled_weight(b: qdq.QdqBuilder, name: str, weight: np.ndarray, axis: int | None) -> str:
    """Adds a weight in floats behind a Q/DQ pair, with a scale for each index of an axis, or (None) one for all."""
    others = None if axis is None else tuple(other for other in range(weight.ndim) if other != axis)
    scales = np.asarray(np.abs(weight).max(axis=others) / 127, np.float32)
    return b.pair(b.weight(f"{name}.floats", weight.astype(np.float32)), name, scales, axis=axis or 0)


def conv_transpose_scales(axis: int | None) -> Case:
    """A file with a ConvTranspose whose weight has scales along an axis, 0 for the input channels, or None for one."""
    b = qdq.QdqBuilder(0)
    weight = b.rng.standard_normal((WIDTH, WIDTH, 3, 3)) * np.geomspace(1, 1e-3, WIDTH).reshape(1, WIDTH, 1, 1)
    x = b.pair("x", "/in", 4 / 127)
    x = b.node("ConvTranspose", [x, scaled_weight(b, "/up/weight", weight, axis)], "/up", kernel_shape=[3, 3])
    b.node(
        "Mul",
        [x, b.weight("levels", np.geomspace(1, 30, WIDTH).astype(np.float32).reshape(-1, 1, 1))],
        "/levels",
        output="y",
    )
    return b.model([floats("x", "batch", WIDTH, 8, 8)], [floats("y", "batch", WIDTH, 10, 10)]), {"x": images()}


def depthwise_scales(axis: int | None) -> Case:
    """A file with a depthwise Conv of MobileNet, with one scale or a scale per channel."""
    b = qdq.QdqBuilder(0)
    weight = b.rng.standard_normal((WIDTH, 1, 3, 3)).astype(np.float32)
    weight[5] *= 100
    x = b.node(
        "Conv",
        [b.pair("x", "/in", 4 / 127), scaled_weight(b, "/depthwise/weight", weight, axis)],
        "/depthwise",
        kernel_shape=[3, 3],
        group=WIDTH,
    )
    factors = np.ones((WIDTH, 1, 1), np.float32)
    factors[5] = 0.01
    b.node("Mul", [x, b.weight("levels", factors)], "/levels", output="y")
    return b.model([floats("x", "batch", WIDTH, 8, 8)], [floats("y", "batch", WIDTH, 6, 6)]), {"x": images()}


def boxes_beside_scores(quantized: bool = True) -> Case:
    """A detection head: boxes in pixels and scores below 1 in one Concat, with a Q/DQ pair behind it or without."""
    b = qdq.QdqBuilder(0)
    boxes = b.node("MatMul", ["x", b.kernel("boxes", (WIDTH, 4), WIDTH)], "/boxes")
    boxes = b.node("Mul", [b.node("Sigmoid", [boxes], "/boxes"), number(b, 640)], "/boxes/pixels")
    scores = b.node("Sigmoid", [b.node("MatMul", ["x", b.kernel("scores", (WIDTH, 8), WIDTH)], "/scores")], "/scores")
    if quantized:
        b.pair(b.node("Concat", [boxes, scores], "/head", axis=-1), "/head", 640 / 127)
        b.nodes[-1].output[0] = "y"
    else:
        b.node("Concat", [boxes, scores], "/head", axis=-1, output="y")
    return b.model([floats("x", "batch", 20, WIDTH)], [floats("y", "batch", 20, 12)]), {"x": vectors(12, 20, WIDTH)}


def rare_large_values() -> Case:
    """A layer whose rare large inputs carry the result, which an entropy range clips."""
    b = Builder()
    x = b.node("Relu", [b.node("MatMul", ["x", diagonal(b, 1)], "/one")], "/act")
    x = b.node("Pow", [x, number(b, 3)], "/cube")
    return finish(b, x, vectors(64, 8, WIDTH))


def outlier_channel() -> Case:
    """A layer of which one input channel is 100 times as large as the others, as in OPT and ViT."""
    b = Builder()
    x = b.node("MatMul", ["x", diagonal(b, 100)], "/dense")
    weight = b.rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    weight[0] /= 100
    return finish(b, b.node("MatMul", [x, b.weight("fc", weight)], "/fc"), vectors(64, 8, WIDTH))
