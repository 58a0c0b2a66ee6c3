"""The common interface of all export formats, the writers of trt-tui's own formats, and the omissions of a format.

The writer of a format receives an `ExportContext` and returns a `WrittenExport`; `trt_tui.core.exporters.registry`
lists the formats. This module has the writers of precision.json and of a calibration cache. Omissions are the parts of
a config that a format cannot represent. The exported file lists them, so that an importer can restore them or report
them.
"""

import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trt_tui import __version__
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.cache import calibration_algorithm, calibration_cache_text
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.batches import ShapeRange
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.exporters.registry import EXPORT_FORMATS, find_companion_files
from trt_tui.core.lowering.network_rewrite import replace_all_file_precisions
from trt_tui.core.lowering.rulebook import compute_activation_ranges
from trt_tui.core.lowering.weak_typing import ImplicitQuantizationConstraints
from trt_tui.core.measure.zero_cost_kinds import ZERO_COST_MOVE_CLASSES
from trt_tui.core.moves.config import BarrierMove, KeepRuleMove, PrecisionConfig
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.moves.move import Move
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.network import Network
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.files.writing import file_transaction, write_file_atomically
from trt_tui.formatting import counted_noun_text, name_list_text


@dataclass(frozen=True)
class ExportContext:
    """The network, config and options from which an export is written.

    Attributes:
        path: The first file.
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        companion_paths: The other files that the format may have, by role.
        shapes: The optimization profile by input name.
        builder_options: The options of the builder, which some formats contain.
        calibration: The measured ranges with their origin, without ranges that the config sets.
        target_entries: The tolerance and the doubt of the config, which precision.json contains.
    """

    path: Path
    network: Network
    config: PrecisionConfig
    ranges: Mapping[str, float]
    companion_paths: Mapping[str, Path] = field(default_factory=dict)
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)
    builder_options: BuilderOptions = field(default_factory=BuilderOptions)
    calibration: Calibration = field(default_factory=Calibration)
    target_entries: Mapping[str, Any] = field(default_factory=dict)


class WrittenExport(NamedTuple):
    """The files of an export, beginning with ``ExportContext.path``, and notes for the user."""

    paths: list[Path]
    notes: tuple[str, ...] = ()


def write_export(
    format_name: str,
    path: Path,
    network: Network,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    *,
    shapes: Mapping[str, ShapeRange] | None = None,
    builder_options: BuilderOptions | None = None,
    calibration: Calibration | None = None,
    target_entries: Mapping[str, Any] | None = None,
) -> WrittenExport:
    """Writes a config in an export format that has a writer. `ExportContext` describes the arguments.

    Either all files are written or none. In case of an error, existing files are unchanged.

    Raises:
        InputError: The format cannot represent the config, a range is missing, or a file cannot be written.
    """
    writers = {name: export_format.writer for name, export_format in EXPORT_FORMATS.items() if export_format.writer}
    if format_name not in writers:
        raise InputError(f"unknown format {format_name}", f"available: {', '.join(writers)}", "")
    write: Callable[[ExportContext], WrittenExport] = pkgutil.resolve_name(writers[format_name])
    companion_paths = find_companion_files(format_name, path)
    refuse_overwriting_inputs([path, *companion_paths.values()], [network.path, *network.external_files])
    with file_transaction():
        return write(
            ExportContext(
                path,
                network,
                config,
                ranges,
                companion_paths,
                shapes or {},
                builder_options or BuilderOptions(),
                calibration or Calibration(),
                target_entries or {},
            )
        )


def omission_record(
    network: Network, config: PrecisionConfig, network_file: str, range_tensors: Collection[str]
) -> dict[str, Any]:
    """Returns the omissions of a format that contains only precisions and ranges; {} if there are none.

    Args:
        network_file: The name of the exported network, which contains the changes of moves.
        range_tensors: The tensors whose ranges the format contains.

    Returns:
        Under "moves", sentences on omitted moves. Under "ranges", the tensors whose ranges are valid only for the
            changed network.
    """
    lines: list[str] = []
    move_classes: tuple[type[Move], ...] = (*ZERO_COST_MOVE_CLASSES, BarrierMove)
    for kind in move_classes:
        moves = config.get_moves(kind)
        subjects_by_note = collect_by_key(
            (moves[subject].row_note, subject) for subject in kind.subject_kind.sort_subjects(network, moves)
        )
        lines += [
            f"{note}, which {network_file} contains and this file cannot express: {name_list_text(names, 3)}"
            for note, names in subjects_by_note.items()
        ]
    unread_tensors = [tensor for tensor in config.range_moves if tensor not in range_tensors]
    lines += (
        [f"the range that was set for {name_list_text(unread_tensors, 3)}: no layer in INT8 reads it"]
        if unread_tensors
        else []
    )
    keep_moves = config.get_moves(KeepRuleMove)
    if keep_moves:
        lines.append(
            f"the keep rule of {counted_noun_text(len(keep_moves), 'row')}: here they have a precision like any other"
        )
    if replace_all_file_precisions(network, config) != config:
        lines.append(
            "the file precision of rows of the quantized file: here they have the nearest precision that "
            "this format knows"
        )
    scaled_tensors = sorted(config.fixed_range_tensors)
    return {**({"moves": lines} if lines else {}), **({"ranges": scaled_tensors} if scaled_tensors else {})}


def implicit_omission_record(
    network: Network,
    config: PrecisionConfig,
    network_file: str,
    constraints: ImplicitQuantizationConstraints,
    range_tensors: Collection[str] | None = None,
) -> Mapping[str, Any]:
    """Returns the omissions of an export for a weakly typed build. Such a build sets no precision for copies.

    Args:
        range_tensors: The tensors that have ranges in another file; None if all ranges are those of ``constraints``.

    Returns:
        The entries of `omission_record`. Under "rows", the precisions of layers that only copy values. Under "around",
            the float precision around quantized layers.
    """
    nearest_config = replace_all_file_precisions(network, config)
    rows: dict[str, str] = {}
    has_quantized = False
    for group in network.groups:
        precision = nearest_config.precision_of(group)
        has_quantized = has_quantized or precision in QUANTIZED_TYPES
        main_layers = [name for name in group.layers if name in group.main_layers]
        if (
            precision not in QUANTIZED_TYPES
            and main_layers
            and constraints.precision_flags
            and constraints.precisions.keys().isdisjoint(main_layers)
        ):
            rows[main_layers[0]] = precision.value
    record = omission_record(
        network, config, network_file, constraints.ranges if range_tensors is None else range_tensors
    )
    return {
        **record,
        **({"rows": rows} if rows else {}),
        **({"around": nearest_config.other.value} if has_quantized else {}),
    }


def write_precision_json_export(context: ExportContext) -> WrittenExport:
    """Writes the config with the ranges of ``context.calibration``. It adds a note on quantized tensors without a
    range.
    """
    network, config, calibration = context.network, context.config, context.calibration
    text = config_text(
        network,
        config,
        calibration if calibration.ranges else None,
        **context.target_entries,
        made_with={"trt_tui": __version__},
        weights_of=network.weights_source_name,
    )
    write_file_atomically(context.path, text)
    quantized_config = replace_all_file_precisions(network, config)
    tensors = {
        site.tensor
        for group in network.groups
        for site in group.calibrated_qdq_sites(quantized_config.precision_of(group))
    }
    missing_count = len(tensors - calibration.ranges.keys() - quantized_config.range_moves.keys())
    notes = (
        [
            f"{context.path.name} has no range for {counted_noun_text(missing_count, 'quantized tensor')}; --data, "
            "--calib-data or --calib-cache adds the ranges, here or in the command that reads the "
            "file."
        ]
        if missing_count
        else []
    )
    return WrittenExport([context.path], tuple(notes))


def write_calibration_cache_export(context: ExportContext) -> WrittenExport:
    """Writes the calibration cache of a config."""
    write_file_atomically(
        context.path,
        config_calibration_cache_text(context.network, context.config, context.ranges, context.calibration.method),
    )
    return WrittenExport([context.path])


def config_calibration_cache_text(
    network: Network, config: PrecisionConfig, ranges: Mapping[str, float], range_method: str
) -> str:
    """Returns the text of a calibration cache for a config. Channel factors are removed from the ranges.

    Args:
        ranges: The calibrated amax by tensor name.
        range_method: The method of the ranges; "" if unknown.
    """
    config = replace_all_file_precisions(network, config).without_fixed_ranges()
    return calibration_cache_text(
        {**ranges, **compute_activation_ranges(network, ranges, config)}, calibration_algorithm(range_method)
    )
