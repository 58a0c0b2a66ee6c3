"""A network and its quantized twin: what a config for one means on the other.

Twins have the same layers that can be quantized, by name and operator. Quantizers add, drop and rename what stands
around these: Casts, Identities, an activation that they had left to a range.
"""

import hashlib
from collections import Counter, defaultdict

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES


def quantizable_layers_sha256(network: NetworkOutline) -> str:
    """Hash of the names and operators of the layers that can be quantized, which twins share; "" without any."""
    layers = sorted((layer.name, layer.op_type) for layer in network.layers if layer.op_type in PRODUCTS)
    return hashlib.sha256(repr(layers).encode()).hexdigest() if layers else ""


def has_file_precision(network: NetworkOutline) -> bool:
    """Whether the network's file has precisions of its own."""
    return any(group.file_precision is not None for group in network.groups)


def find_layers_in_file_precision(network: NetworkOutline, config: PrecisionConfig) -> dict[str, list[str]]:
    """The layers that a config leaves as they are in the file, by the precision that comes nearest; {} without any."""
    layers_by_precision: dict[str, list[str]] = defaultdict(list)
    for group in network.groups:
        if group.file_precision is not None and config.precision_of(group) is Precision.FILE:
            layers_by_precision[group.file_precision.nearest_precision.value].extend(group.layers)
    return dict(layers_by_precision)


def find_float_type_of_quantized_layers(network: NetworkOutline) -> Precision:
    """The float type that most layers of the file have which read codes."""
    counts = Counter(group.file_precision.float_type for group in network.groups
                     if group.file_precision is not None and group.file_precision.nearest_precision in QUANTIZED_TYPES)
    return counts.most_common(1)[0][0] if counts else Precision.FP32
