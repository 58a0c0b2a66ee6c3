"""The parts of a config that a production format has no word for: a file names them, so that the importer takes them up
or says that they are missing."""

from collections.abc import Collection, Mapping
from typing import Any

from trt_tui.core.codes import CODES
from trt_tui.core.lowering.lowered import told_as
from trt_tui.core.lowering.weak import Weak
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.bias_correction import BiasCorrection
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep import Keep
from trt_tui.core.moves.rewrite import Rewrite
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.network.network import Network
from trt_tui.words import first_few, plural


def left_out(network: Network, config: PrecisionConfig, beside: str, ranges: Collection[str]) -> dict[str, Any]:
    """Returns what a file of precisions and ranges lacks of a config; empty if it lacks nothing.

    Args:
        beside: The name of the exported network, which has the changes of the network.
        ranges: The tensors whose ranges the format holds.

    Returns:
        Sentences under "moves", and under "ranges" the tensors whose ranges are those of the changed network.
    """
    lines: list[str] = []
    for kind in (Rewrite, Smooth, BiasCorrection, Barrier):
        targets: dict[str, list[str]] = {}
        moves = config.of(kind)
        for target in kind.subject.ordered(network, moves):
            targets.setdefault(moves[target].note, []).append(target)
        lines += [f"{note}, which {beside} has and this file cannot say: {first_few(names, 3)}"
                  for note, names in targets.items()]
    unread = [tensor for tensor in config.ranges if tensor not in ranges]
    lines += [f"the range that was set for {first_few(unread, 3)}: no layer in INT8 reads it"] if unread else []
    kept = config.of(Keep)
    if kept:
        lines.append(f"that a rule keeps {plural(len(kept), 'row')}: here they have a precision like any other")
    if told_as(network, config) != config:
        lines.append("that rows are as in the quantized file: here they have the nearest precision that can be told")
    scaled = sorted({tensor for move in config.of(Smooth).values() for tensor in move.ranges})
    return {**({"moves": lines} if lines else {}), **({"ranges": scaled} if scaled else {})}


def left_out_weak(network: Network, config: PrecisionConfig, beside: str, weak: Weak,
                  ranges: Collection[str] | None = None) -> Mapping[str, Any]:
    """Returns `left_out` of a weakly typed build, which says nothing of layers that move values.

    Args:
        ranges: The tensors that have ranges in another file; None if all ranges are those of ``weak``.

    Returns:
        Under "rows" also the precisions of these, by layer; and under "around" the precision around quantized layers.
    """
    told = told_as(network, config)
    rows: dict[str, str] = {}
    quantized = False
    for group in network.groups:
        precision = told.precision_of(group)
        quantized = quantized or precision in CODES
        named = [name for name in group.layers if name in group.anchors]
        if precision not in CODES and named and weak.flags and weak.precisions.keys().isdisjoint(named):
            rows[named[0]] = precision.value
    lacking = left_out(network, config, beside, weak.ranges if ranges is None else ranges)
    return {**lacking, **({"rows": rows} if rows else {}), **({"around": told.other.value} if quantized else {})}
