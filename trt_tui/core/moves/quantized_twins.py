"""The comparison of a network with its quantized twin, for configs that were made for the other of the two.

Twins have the same quantizable layers, by name and operator. Quantizers add, remove and rename nodes around these
layers: Casts, Identities, or an activation that a range replaces.
"""

import hashlib
from collections import Counter, defaultdict

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES


def quantizable_layers_sha256(network: NetworkOutline) -> str:
    """Returns the hash of the names and operators of all quantizable layers, which is equal for twins; "" without such
    layers."""
    layers = sorted((layer.name, layer.op_type) for layer in network.layers if layer.op_type in PRODUCTS)
    return hashlib.sha256(repr(layers).encode()).hexdigest() if layers else ""


def has_file_precision(network: NetworkOutline) -> bool:
    """Returns True if the network's file is quantized or typed, so that its groups have file precisions."""
    return any(group.file_precision is not None for group in network.groups)


def find_layers_in_file_precision(network: NetworkOutline, config: PrecisionConfig) -> dict[str, list[str]]:
    """Returns the layers that a config leaves in file precision, by the nearest precision; {} if there are none."""
    layers_by_precision: dict[str, list[str]] = defaultdict(list)
    for group in network.groups:
        if group.file_precision is not None and config.precision_of(group) is Precision.FILE:
            layers_by_precision[group.file_precision.nearest_precision.value].extend(group.layers)
    return dict(layers_by_precision)


def find_float_type_of_quantized_layers(network: NetworkOutline) -> Precision:
    """Returns the float type that most quantized layers of the file have; FP32 if the file has no quantized layers."""
    counts = Counter(group.file_precision.float_type for group in network.groups
                     if group.file_precision is not None and group.file_precision.nearest_precision in QUANTIZED_TYPES)
    return counts.most_common(1)[0][0] if counts else Precision.FP32
