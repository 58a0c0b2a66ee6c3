"""Which releases and GPUs take the code types of a config: refused by name where one does not, with the way out."""

from __future__ import annotations

from collections.abc import Collection

from trt_tui.core.codes import CODES
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.words import plural

WEAK = frozenset((Precision.INT8,))
"""The code types of releases and manners that are told precisions layer by layer."""


def asked_codes(network: Network | Outline, config: PrecisionConfig) -> dict[Precision, list[str]]:
    """The groups of a config that read codes, by precision."""
    found: dict[Precision, list[str]] = {}
    for group in network.groups:
        precision = config.precision_of(group)
        if precision in CODES:
            found.setdefault(precision, []).append(group.name)
    return found


def refuse_codes(network: Network | Outline, config: PrecisionConfig, takes: Collection[Precision], who: str,
                 gpu: tuple[int, int] | None = None) -> None:
    """Checks that a release and a GPU support what a config asks for.

    Args:
        takes: The code types that the release takes.
        who: The release, for messages.
        gpu: The compute capability that is built for, None where it is not known.

    Raises:
        InputError: one of them does not; names the precision and a layer.
    """
    for precision, groups in asked_codes(network, config).items():
        code = CODES[precision]
        least = code.compute_capability
        if precision not in takes:
            why, way = f"{who} has no {precision.label}", "or build with a release that has it: " + code.needs
        elif gpu is not None and least is not None and gpu < least:
            why = f"a GPU of compute capability {gpu[0]}.{gpu[1]} has no {precision.label}"
            way = f"or build for {least[0]}.{least[1]} or later"
        else:
            continue
        rest = f", {groups[0]} among them" if len(groups) > 1 else f", {groups[0]}"
        raise InputError(why, f"this config has {plural(len(groups), 'layer')} in {precision.label}{rest}",
                         f"Put them in FP16 or INT8, {way}.")
