"""The error of sums of products that kernels accumulate in FP16, as TensorRT's FP16 kernels do.

Tensor cores add `CHUNK_PRODUCTS` exact products to an FP16 accumulator at a time and round it (Fasi, Higham, Mikaitis
and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021). If partial sums grow like a random walk, the mean
square of the partial sum after ``j`` of ``n`` roundings is ``j/n`` of the result's. The error of rounding it has the
same ratio. All roundings together add ``(n + 1) / 2`` times the mean square error of one rounding of the result. A bias
is added to the rounded sum, and the result is rounded again.

Kernels of TensorRT 8.6 on an H200 do exactly this, to the bit, in 53 of 57 Convs, ConvTransposes, MatMuls and Gemms of
9 to 4,608 products (measured by `tests.benchmarks.fidelity`). Three kernels split a long sum over several accumulators,
which has a smaller error. On ResNet-50's activations, the formula is within 0.3 dB of the kernels.
"""

import math

from trt_tui.core.network.layers import Layer
from trt_tui.core.network.network import Network

CHUNK_PRODUCTS = 16
"""The number of products that a tensor core adds between two roundings of the accumulator."""

_CHANNEL_MULTIPLE = 4
"""The number to a multiple of which kernels pad the channels, with zeros."""

_FP16_SPLIT_FACTOR = 2.0**13
"""FP16 keeps 13 bits fewer of a mantissa than FP32."""


def is_depthwise(network: Network, layer: Layer) -> bool:
    """Returns True if a layer is a Conv in which each channel has its own kernel."""
    weight = network.shape(layer.inputs[1]) if len(layer.inputs) > 1 else None
    return (
        layer.op_type == "Conv"
        and weight is not None
        and len(weight) > 2
        and weight[1] == 1
        and network.node(layer.name).attributes.get_int("group", 1) != 1
    )


def is_image_convolution(network: Network, layer: Layer) -> bool:
    """Returns True if a layer is a 7x7 Conv with a stride of 2 on few channels, like the first Conv of an image
    network.
    """
    weight = network.shape(layer.inputs[1]) if layer.op_type == "Conv" and len(layer.inputs) > 1 else None
    return (
        weight is not None
        and weight[2:] == (7, 7)
        and isinstance(weight[1], int)
        and weight[1] <= _CHANNEL_MULTIPLE
        and network.node(layer.name).attributes.get_ints("strides", ()) == (2, 2)
    )


def count_accumulator_roundings(network: Network, layer: Layer) -> int:
    """Returns the number of times that a kernel with an FP16 accumulator rounds each value of a layer's result.

    The last rounding of the result is included. The count is 1 if the layer is not a sum of products, if the length of
    the sum is unknown, or if TensorRT has a kernel that accumulates in FP32. Such kernels exist for 7x7 Convs with a
    stride of 2 on an image (``image_first_layer_f16f16_f32_f16``) and for depthwise 3x3 and 7x7 Convs
    (``depthwiseHMMA``).

    For depthwise Convs the builder chooses by time between ``depthwiseHMMA`` and a kernel that adds one product after
    the other in FP16. TensorRT 8.6 on an H200 chose ``depthwiseHMMA`` as follows: for 7x7 in 5 of 5 cases at level 0
    and in ConvNeXt, in 0 of 3 at level 1; for 3x3 in 0 of 5 cases at level 0 and in 5 of 9 at level 1; for 5x5 in 0 of
    5 and in 1 of 5. `trt_tui.core.measure.simulation_limits` describes the resulting error.
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
            chunk = 1  # a depthwise kernel adds one product after the other
        elif is_image_convolution(network, layer):
            return 1
        elif isinstance(second[1], int):
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
    return count_accumulator_roundings(network, layer) > 1 or find_bias_input_index(network, layer) is not None


def find_bias_input_index(network: Network, layer: Layer) -> int | None:
    """Returns the input index of the bias that a kernel adds after it has rounded the sum of products.

    Returns None if there is no such bias.
    """
    if layer.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(layer.inputs) < 3 or not layer.inputs[2]:
        return None
    if layer.op_type == "Gemm":
        attributes = network.node(layer.name).attributes
        if network.opset < 11 or attributes.get_float("beta", 1.0) != 1:
            return None
    return 2


def veltkamp_split_factor(rounding_count: int) -> float:
    """Returns the factor for Veltkamp's splitting whose error equals that of a sum with an FP16 rounding at each step.

    ``x`` becomes ``c x - (c x - x)`` (Dekker, "A floating-point technique for extending the available precision",
    1971), which rounds it as FP32 rounds numbers ``c - 1`` times its size. The result is an FP16 value within the range
    of FP16. With ``c = 1`` it is ``x`` itself, with 2**13 + 1 it is FP16's own rounding.
    """
    return 1 + _FP16_SPLIT_FACTOR * math.sqrt((rounding_count + 1) / 2)
