"""A network and its quantized twin: what a config for one means on the other.

Twins have the same layers that can be quantized, by name and operator. Quantizers add, drop and rename what stands
around these: Casts, Identities, an activation that they had left to a range.
"""

import hashlib
from collections import Counter, defaultdict

from trt_tui.core.codes import CODES
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.network.operators import ANCHORS
from trt_tui.core.precision import Precision


def twin_sha256(network: Outline) -> str:
    """Hash of the names and operators of the layers that can be quantized, which twins share; "" without any."""
    layers = sorted((layer.name, layer.op_type) for layer in network.layers if layer.op_type in ANCHORS)
    return hashlib.sha256(repr(layers).encode()).hexdigest() if layers else ""


def has_own_precisions(network: Outline) -> bool:
    """Whether the network's file has precisions of its own."""
    return any(group.given is not None for group in network.groups)


def in_file(network: Outline, config: PrecisionConfig) -> dict[str, list[str]]:
    """The layers that a config leaves as they are in the file, by the precision that comes nearest; {} without any."""
    found: dict[str, list[str]] = defaultdict(list)
    for group in network.groups:
        if group.given is not None and config.precision_of(group) is Precision.FILE:
            found[group.given.stands_for.value].extend(group.layers)
    return dict(found)


def around_codes(network: Outline) -> Precision:
    """The float type that most layers of the file have which read codes."""
    found = Counter(group.given.floats for group in network.groups
                    if group.given is not None and group.given.stands_for in CODES)
    return found.most_common(1)[0][0] if found else Precision.FP32
