"""The common part of all exports of a config: the context that a format's writer receives, and its result.

`trt_tui.core.exporters.registry` lists the formats.
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.batches import ShapeRange
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.exporters.registry import EXPORT_FORMATS, find_companion_files
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.writing import file_transaction


@dataclass(frozen=True)
class ExportContext:
    """The network, config and options from which an export is written.

    Attributes:
        path: The first file.
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        companion_paths: The other files that the format may have, by role.
        shapes: The optimization profile by input name.
        builder_options: The options of the builder, which some formats contain.
        calibration: The origin of the ranges, without ranges that the config sets itself.
    """

    path: Path
    network: Network
    config: PrecisionConfig
    ranges: Mapping[str, float]
    companion_paths: Mapping[str, Path] = field(default_factory=dict)
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)
    builder_options: BuilderOptions = field(default_factory=BuilderOptions)
    calibration: Calibration = field(default_factory=Calibration)


class WrittenExport(NamedTuple):
    """The files of an export, ``ExportContext.path`` first, and notes for the user."""

    paths: list[Path]
    notes: tuple[str, ...] = ()


def write_export(format_name: str, path: Path, network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                 *, shapes: Mapping[str, ShapeRange] | None = None, builder_options: BuilderOptions | None = None,
                 calibration: Calibration | None = None) -> WrittenExport:
    """Writes a config in one of the export formats that have a writer. `ExportContext` describes the arguments.

    All files are written, or none. If one cannot be written, existing files are unchanged.

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
        return write(ExportContext(path, network, config, ranges, companion_paths, shapes or {},
                                   builder_options or BuilderOptions(), calibration or Calibration()))
