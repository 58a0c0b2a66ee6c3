"""How far from its exact value a sum comes out of kernels that accumulate in FP16, as TensorRT's do in FP16.

Tensor cores add `CHUNK_PRODUCTS` exact products to an FP16 accumulator at a time and round it (Fasi, Higham, Mikaitis
and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021). Where partial sums grow like a random walk, the mean
square of the one after ``j`` of ``n`` roundings is ``j/n`` of the result's, and so is the error that rounding it adds:
all of them together add ``(n + 1) / 2`` times what rounding the result once does. A bias is added to the rounded sum,
and that is rounded once more.

Kernels of TensorRT 8.6 on an H200 do so to the bit in 53 of 57 Convs, ConvTransposes, MatMuls and Gemms of 9 to 4,608
products (`tests.benchmarks.fidelity` has them); three split a long sum over several accumulators, which costs less. The
formula is within 0.3 dB of them on ResNet-50's activations.
"""

import math

from trt_tui.core.network.layers import Layer
from trt_tui.core.network.network import Network

CHUNK_PRODUCTS = 16
"""Products that are added between two roundings."""

_CHANNEL_MULTIPLE = 4
"""Kernels read channels by fours, missing ones as zeros."""

_FP16_SPLIT_FACTOR = 2.0**13
"""FP16 keeps 13 bits fewer of a mantissa than FP32."""


def is_depthwise(network: Network, layer: Layer) -> bool:
    """Returns True for a Conv in which each channel has its own kernel."""
    weight = network.shape(layer.inputs[1]) if len(layer.inputs) > 1 else None
    return (layer.op_type == "Conv" and weight is not None and len(weight) > 2 and weight[1] == 1
            and network.node(layer.name).attributes.get_int("group", 1) != 1)


def count_accumulator_roundings(network: Network, layer: Layer) -> int:
    """How often a kernel that accumulates in FP16 rounds one result of a layer, its last rounding included.

    1 if the layer is no sum of products, if its length is not known before a run, and if TensorRT has a kernel that
    sums in FP32: 7x7 with a stride of 2 on an image (``image_first_layer_f16f16_f32_f16``), depthwise 3x3 and 7x7
    (``depthwiseHMMA``). For depthwise Convs the builder chooses by time between that kernel and one that adds one
    product after the other in FP16. With 8.6 on an H200 it took the first one for 7x7 in 5 of 5 cases at level 0, and
    in ConvNeXt; in 0 of 3 at level 1. For 3x3 it took the first one in 0 of 5 cases at level 0 and in 5 of 9 at level
    1, for 5x5 in 0 of 5 and in 1 of 5. See `trt_tui.core.measure.known_gaps` for what that costs.
    """
    first, second = (*(network.shape(tensor) if tensor else None for tensor in layer.inputs[:2]), None, None)[:2]
    if not first or not second:
        return 1
    attributes = network.node(layer.name).attributes
    chunk, sizes = CHUNK_PRODUCTS, second[:0]
    if layer.op_type == "Conv":
        sizes = second[1:]
        if is_depthwise(network, layer):
            if second[2:] in ((3, 3), (7, 7)):
                return 1
            chunk = 1  # a channel on its own: one product after the other
        elif isinstance(second[1], int):
            if second[1] <= _CHANNEL_MULTIPLE and second[2:] == (7, 7) and attributes.get_ints("strides", ()) == (2, 2):
                return 1
            sizes = (-(-second[1] // _CHANNEL_MULTIPLE) * _CHANNEL_MULTIPLE, *second[2:])
    elif layer.op_type == "ConvTranspose":
        sizes = second[:1]
        chunk *= attributes.get_int("group", 1) or 1
    elif layer.op_type == "MatMul":
        sizes = first[-1:] if isinstance(first[-1], int) else second[-2:][:1]
    elif layer.op_type == "Gemm":
        sizes = second[1:] if attributes.get_int("transB", 0) else second[:1]
    fixed_sizes = [size for size in sizes if isinstance(size, int)]
    return max(1, -(-math.prod(fixed_sizes) // chunk)) if sizes and len(fixed_sizes) == len(sizes) else 1


def has_repeated_rounding(network: Network, layer: Layer) -> bool:
    """Whether a kernel that accumulates in FP16 rounds a layer's result more often than once."""
    return count_accumulator_roundings(network, layer) > 1 or find_bias_input_index(network, layer) is not None


def find_bias_input_index(network: Network, layer: Layer) -> int | None:
    """The input of a layer that its kernel adds to the rounded sum of products, for a rounding of its own; None where
    it has none."""
    if layer.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(layer.inputs) < 3 or not layer.inputs[2]:
        return None
    if layer.op_type == "Gemm":
        attributes = network.node(layer.name).attributes
        if network.opset < 11 or attributes.get_float("beta", 1.0) != 1:
            return None
    return 2


def veltkamp_split_factor(rounding_count: int) -> float:
    """What splits a float32 so that its upper part is as far from it as so many roundings of a sum are.

    ``x`` becomes ``c x - (c x - x)`` (Veltkamp's splitting; Dekker, "A floating-point technique for extending the
    available precision", 1971), which rounds it as FP32 rounds numbers ``c - 1`` times its size. The result is a value
    of FP16 as far as FP16 reaches; with ``c = 1`` it is ``x`` itself, with 2**13 + 1 FP16's own rounding.
    """
    return 1 + _FP16_SPLIT_FACTOR * math.sqrt((rounding_count + 1) / 2)
