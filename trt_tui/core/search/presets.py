"""Groups that are known to lose much, as a start for any strategy.

Sources: TensorRT's builder, which warns of LayerNorm in FP16 (its sums of squares overflow) and asks for FP32 there;
and the practice of quantizing neither the first nor the last layer (Zhou et al., "DoReFa-Net", 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trt_tui.core.network.layers import Outline
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError

_NORMS = frozenset("LayerNorm RMSNorm GroupNorm L2Norm LayerNormalization RMSNormalization GroupNormalization "
                   "InstanceNormalization LpNormalization".split())


def _by_operator(*operators: str) -> Callable[[Network | Outline], list[str]]:
    return lambda network: [group.name for group in network.groups if group.operator in operators]


def _ends(network: Network | Outline) -> list[str]:
    quantizable = [group.name for group in network.groups if group.quantizable]
    return [*quantizable[:1], *quantizable[1:][-1:]]


def _embeddings(network: Network | Outline) -> list[str]:
    return [group.name for group in network.groups if group.operator == "Gather" and not group.inputs]


PRESETS: dict[str, Callable[[Network | Outline], list[str]]] = {
    "layernorm": _by_operator(*_NORMS),
    "softmax": _by_operator("Softmax", "LogSoftmax"),
    "ends": _ends,
    "embeddings": _embeddings,
}
"""Names of groups by preset: normalisations, softmax, the first and the last layer that can be INT8, look-ups in a
constant table."""


def preset_groups(network: Network | Outline, presets: Iterable[str]) -> tuple[str, ...]:
    """The groups of some presets, in network order.

    Raises:
        InputError: a preset is unknown.
    """
    names: set[str] = set()
    for preset in presets:
        if preset not in PRESETS:
            raise InputError(f"there is no preset {preset!r}", "", f"Choose from {', '.join(PRESETS)}.")
        names.update(PRESETS[preset](network))
    return tuple(group.name for group in network.groups if group.name in names)
