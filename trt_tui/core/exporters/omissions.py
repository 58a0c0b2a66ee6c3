"""Omissions: the parts of a config that an export format cannot represent.

An exported file lists them. The importer then restores them, or reports that they are missing.
"""

from collections.abc import Collection, Mapping
from typing import Any

from trt_tui.core.lowering.implicit_quantization import ImplicitQuantizationConstraints
from trt_tui.core.lowering.lowering_checks import replace_file_precision
from trt_tui.core.measure.zero_cost_kinds import ZERO_COST_MOVE_CLASSES
from trt_tui.core.moves.config import BarrierMove, KeepMove, PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.network.network import Network
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import counted_noun_text, name_list_text


def omission_record(network: Network, config: PrecisionConfig, network_file: str,
                    range_tensors: Collection[str]) -> dict[str, Any]:
    """Returns the parts of a config that a file of precisions and ranges cannot represent; empty if there are none.

    Args:
        network_file: The name of the exported network, which contains the changes of the network.
        range_tensors: The tensors whose ranges the format contains.

    Returns:
        Sentences under "moves". Under "ranges", the tensors whose ranges are those of the changed network.
    """
    lines: list[str] = []
    move_classes: tuple[type[Move], ...] = (*ZERO_COST_MOVE_CLASSES, BarrierMove)
    for kind in move_classes:
        subjects_by_note: dict[str, list[str]] = {}
        moves = config.get_moves(kind)
        for subject in kind.subject_kind.sort_subjects(network, moves):
            subjects_by_note.setdefault(moves[subject].row_note, []).append(subject)
        lines += [f"{note}, which {network_file} contains and this file cannot express: {name_list_text(names, 3)}"
                  for note, names in subjects_by_note.items()]
    unread_tensors = [tensor for tensor in config.range_moves if tensor not in range_tensors]
    lines += [f"the range that was set for {name_list_text(unread_tensors, 3)}: no layer in INT8 reads it"
              ] if unread_tensors else []
    keep_moves = config.get_moves(KeepMove)
    if keep_moves:
        lines.append(
            f"the keep rule of {counted_noun_text(len(keep_moves), 'row')}: here they have a precision like any other")
    if replace_file_precision(network, config) != config:
        lines.append("the file precision of rows of the quantized file: here they have the nearest precision that "
                     "this format knows")
    scaled_tensors = sorted(config.fixed_range_tensors)
    return {**({"moves": lines} if lines else {}), **({"ranges": scaled_tensors} if scaled_tensors else {})}


def implicit_omission_record(network: Network, config: PrecisionConfig, network_file: str,
                             constraints: ImplicitQuantizationConstraints,
                             range_tensors: Collection[str] | None = None) -> Mapping[str, Any]:
    """Returns the omissions of an export for a weakly typed build, which sets no precision for layers that only move
    values.

    Args:
        range_tensors: The tensors that have ranges in another file; None if all ranges are those of ``constraints``.

    Returns:
        The entries of `omission_record`. Under "rows" also the precisions of the layers that only move values, by
            layer. Under "around", the float precision around quantized layers.
    """
    nearest_config = replace_file_precision(network, config)
    rows: dict[str, str] = {}
    has_quantized = False
    for group in network.groups:
        precision = nearest_config.precision_of(group)
        has_quantized = has_quantized or precision in QUANTIZED_TYPES
        main_layers = [name for name in group.layers if name in group.main_layers]
        if (precision not in QUANTIZED_TYPES and main_layers and constraints.precision_flags
                and constraints.precisions.keys().isdisjoint(main_layers)):
            rows[main_layers[0]] = precision.value
    record = omission_record(network, config, network_file,
                             constraints.ranges if range_tensors is None else range_tensors)
    return {
        **record, **({"rows": rows} if rows else {}),
        **({"around": nearest_config.other.value} if has_quantized else {})
    }
