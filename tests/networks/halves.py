"""Half-precision exports that lost a value on the way: masks that became infinite, epsilons that became zero."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.networks.build import Builder, floats


def masked_half(seed: int = 0, *, mask: float = -np.inf) -> onnx.ModelProto:
    """Attention in FP16 over tokens of which some are padding: ``(1 - kept) * mask`` is added to the scores.

    With a mask of -inf, as -3.4e38 becomes in FP16, the product is NaN where a token is kept.

    ``x`` float16 (batch, 6, 8), ``kept`` float16 (batch, 6) to ``y`` float16 (batch, 6, 4).
    """
    b = Builder(seed)
    q, k, v = (b.node("MatMul", ["x", b.kernel(f"{name}.weight", (8, 8), 8)], f"/{name}") for name in "qkv")
    scores = b.node("MatMul", [q, b.node("Transpose", [k], "/keys", perm=[0, 2, 1])], "/scores")
    hidden = b.node("Sub", [b.weight("one", np.array(1, np.float32)), "kept"], "/mask")
    hidden = b.node("Mul", [hidden, b.weight("mask_value", np.array(mask, np.float32))], "/mask")
    hidden = b.node("Unsqueeze", [hidden, b.weight("axis", np.array([1], np.int64))], "/mask")
    weights = b.node("Softmax", [b.node("Add", [scores, hidden], "/masked")], "/softmax", axis=-1)
    x = b.node("MatMul", [weights, v], "/values")
    b.node("MatMul", [x, b.kernel("head.weight", (8, 4), 8)], "/head", output="y")
    return as_half(b.model([floats("x", "batch", 6, 8), floats("kept", "batch", 6)], [floats("y", "batch", 6, 4)]))


def divided_half(seed: int = 0, *, epsilon: float = 1e-12) -> onnx.ModelProto:
    """A layer, its result divided by its norm and an epsilon, and a layer, in FP16; an epsilon of 1e-12 is 0 there.

    ``x`` float16 (batch, 8) to ``y`` float16 (batch, 4).
    """
    b = Builder(seed)
    x = b.node("Relu", [b.node("MatMul", ["x", b.kernel("fc.weight", (8, 8), 8)], "/fc")], "/act")
    norm = b.node("ReduceL2", [x], "/norm", axes=[-1])
    norm = b.node("Add", [norm, b.weight("epsilon", np.array(epsilon, np.float32))], "/norm")
    x = b.node("Div", [x, norm], "/norm")
    b.node("MatMul", [x, b.kernel("head.weight", (8, 4), 8)], "/head", output="y")
    return as_half(b.model([floats("x", "batch", 8)], [floats("y", "batch", 4)]))


def infinite_weight_half(seed: int = 0, *, weight: float = np.inf) -> onnx.ModelProto:
    """Two layers in FP16 with an infinite weight in the second, as a weight beyond 65504 becomes.

    ``x`` float16 (batch, 8) to ``y`` float16 (batch, 4).
    """
    b = Builder(seed)
    x = b.node("Relu", [b.node("MatMul", ["x", b.kernel("fc.weight", (8, 8), 8)], "/fc")], "/act")
    b.kernel("head.weight", (8, 4), 8)
    head = numpy_helper.to_array(b.weights[-1]).copy()
    head[3, 1] = weight
    b.weights[-1] = numpy_helper.from_array(head, "head.weight")
    b.node("MatMul", [x, "head.weight"], "/head", output="y")
    return as_half(b.model([floats("x", "batch", 8)], [floats("y", "batch", 4)]))


def mixed_half(norm: int, product: int, *, gain: float = 1.0) -> onnx.ModelProto:
    """A decomposed RMSNorm, a MatMul, and a Cast to FP32 with a factor and the residual Add behind it; opset 17.

    Input ``x`` float16 (batch, 32), output ``y`` float32 alike. The last Mul of the norm has the type of the product.

    Args:
        norm, product: The types of the two, such as ``TensorProto.FLOAT``.
        gain: The factor of the weight; its inverse is behind the product.
    """
    b = Builder(0)
    norm_dtype, product_dtype = map(helper.tensor_dtype_to_np_dtype, (norm, product))
    x = b.node("Cast", ["x"], "/in", output="x_norm", to=norm)
    square = b.node("Pow", [x, b.weight("two", norm_dtype.type(2))], "/norm")
    mean = b.node(
        "Add", [b.node("ReduceMean", [square], "/norm", axes=[-1]), b.weight("epsilon", norm_dtype.type(1e-5))], "/norm"
    )
    root = b.node("Div", [b.weight("one", norm_dtype.type(1)), b.node("Sqrt", [mean], "/norm")], "/norm")
    normed = b.node("Cast", [b.node("Mul", [x, root], "/norm")], "/norm", to=product)
    scaled = b.node("Mul", [b.weight("gamma", np.ones(32, product_dtype)), normed], "/norm", name="/norm/Mul_1")
    weight = (np.abs(b.rng.standard_normal((32, 32))) * gain).astype(product_dtype)
    dense = b.node("Cast", [b.node("MatMul", [scaled, b.weight("w", weight)], "/fc")], "/fc", to=TensorProto.FLOAT)
    dense = b.node("Mul", [dense, b.weight("inverse", np.array(1 / gain, np.float32))], "/fc")
    b.node("Add", [dense, b.node("Cast", ["x"], "/skip", to=TensorProto.FLOAT)], "/fc", output="y")
    half = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", 32])
    return b.model([half], [floats("y", "batch", 32)])


def as_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same in FP16, inputs, weights and outputs."""
    with np.errstate(over="ignore"):
        for tensor in model.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model
