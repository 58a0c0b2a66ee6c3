"""How far from its exact value a sum comes out of kernels that accumulate in FP16, as TensorRT's do in FP16.

Tensor cores add `CHUNK` exact products to an FP16 accumulator at a time and round it (Fasi, Higham, Mikaitis and
Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021). Where partial sums grow like a random walk, the mean square
of the one after ``j`` of ``n`` roundings is ``j/n`` of the result's, and so is the error that rounding it adds: all of
them together add ``(n + 1) / 2`` times what rounding the result once does. TensorRT 8.6 on an H200 was within 0.5 dB of
that in Convs and MatMuls of 32 to 4,608 products, unless it split a long sum over several accumulators, which costs
less.
"""

import math

from trt_tui.core.network.layers import Layer
from trt_tui.core.network.network import Network

CHUNK = 16
"""Products that are added between two roundings."""

_FP16_BITS_FEWER = 2.0**13
"""FP16 keeps 13 bits fewer of a mantissa than FP32."""


def roundings(network: Network, layer: Layer) -> int:
    """How often a kernel that accumulates in FP16 rounds one result of a layer, its last rounding included.

    1 where the layer is no sum of products, or where its length is not known before a run.
    """
    first, second = (*(network.shape(tensor) if tensor else None for tensor in layer.inputs[:2]), None, None)[:2]
    if not first or not second:
        return 1
    attributes = network.node(layer.name).attributes
    chunk, sizes = CHUNK, second[:0]
    if layer.op_type == "Conv":
        sizes = second[1:]
        if second[1] == 1 and attributes.get_int("group", 1) != 1:
            chunk = 1  # a channel on its own: one product after the other
    elif layer.op_type == "ConvTranspose":
        sizes = second[:1]
        chunk *= attributes.get_int("group", 1) or 1
    elif layer.op_type == "MatMul":
        sizes = first[-1:] if isinstance(first[-1], int) else second[-2:][:1]
    elif layer.op_type == "Gemm":
        sizes = second[1:] if attributes.get_int("transB", 0) else second[:1]
    known = [size for size in sizes if isinstance(size, int)]
    return max(1, -(-math.prod(known) // chunk)) if sizes and len(known) == len(sizes) else 1


def splitter(count: int) -> float:
    """What splits a float32 so that its upper part is as far from it as so many roundings of a sum are.

    ``x`` becomes ``c x - (c x - x)`` (Veltkamp's splitting; Dekker, "A floating-point technique for extending the
    available precision", 1971), which rounds it as FP32 rounds numbers ``c - 1`` times its size. The result is a value
    of FP16 as far as FP16 reaches; with ``c = 1`` it is ``x`` itself, with 2**13 + 1 FP16's own rounding.
    """
    return 1 + _FP16_BITS_FEWER * math.sqrt((count + 1) / 2)
