"""Whether a config lowers anything: a run in which nothing is lowered is exact by construction and proves nothing."""

from __future__ import annotations

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision


def lowers(network: Network | Outline, config: PrecisionConfig) -> bool:
    """Whether any group runs below FP32 in a config."""
    return any(config.precision_of(group) is not Precision.FP32 for group in network.groups)


def quantizes(network: Network | Outline, config: PrecisionConfig) -> bool:
    """Whether any group of a config reads activations as codes, and so takes scales from ranges."""
    return any(group.ranged(config.precision_of(group)) for group in network.groups)


def cannot_lower(network: Network | Outline) -> str:
    """Why nothing of a network can be lowered, or nothing quantized; "" where something can."""
    if not any(group.allowed - {Precision.FP32} for group in network.groups):
        refusals = [reason for group in network.groups for reason in group.refusals.values()]
        notes = [layer.note for layer in network.layers if layer.note]
        why = next(iter(refusals or notes), "it has no layer in FP32")
        return f"Nothing of this network can be lowered ({why}): every run is FP32, and exact for that reason"
    if not any(Precision.INT8 in group.allowed for group in network.groups):
        return "No layer of this network can run in INT8: the INT8 run is what the other layers lose"
    return ""
