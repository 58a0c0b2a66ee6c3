"""The table of export formats for the commands, the app and the background process.

The table is plain data and loads no exporter. Therefore help and completion can read it quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ExportFormat:
    """An export format, as the app and the commands offer it.

    Attributes:
        title: The name in the app.
        description: The content or the use of the files.
        suffix: The suffix of the file name that the app proposes.
        writer: The function that writes it, as ``module:function``. The function takes a
            `trt_tui.core.exporters.formats.ExportContext` and returns a `WrittenExport`. "" if a request other than
            `ExportConfig` writes the format.
        companions: Suffixes of the additional files of the format, by role.
        is_folder: True if the export is a new folder instead of a file.
        has_build_commands: True if it contains build commands, with builder options and an optimization profile.
        keeps_file_precision: True if groups can keep the precision of a quantized file, which needs no calibrated
            ranges.
        can_lack_ranges: True if it can be written without the ranges of quantized tensors.
        needs_all_ranges: True if it contains the ranges of all tensors, and not only those that the config needs.
        uses_data: True if it contains values measured on data.
        contains_config: True if it contains the precisions of a whole config for production.
    """

    title: str
    description: str
    suffix: str
    writer: str = ""
    companions: Mapping[str, str] = field(default_factory=dict)
    is_folder: bool = False
    has_build_commands: bool = False
    keeps_file_precision: bool = False
    can_lack_ranges: bool = False
    needs_all_ranges: bool = False
    uses_data: bool = True
    contains_config: bool = True


_FP32_NETWORK_AND_CACHE = {"base": ".base.onnx", "cache": ".cache"}

EXPORT_FORMATS = {
    "json": ExportFormat(
        "precision.json",
        "the config, with its ranges",
        ".precision.json",
        "trt_tui.core.exporters.formats:write_precision_json_export",
        keeps_file_precision=True,
        can_lack_ranges=True,
    ),
    "onnx": ExportFormat(
        "ONNX",
        "the typed network, for a strongly typed TensorRT",
        ".typed.onnx",
        "trt_tui.core.exporters.onnx:write_onnx_export",
        keeps_file_precision=True,
    ),
    "bundle": ExportFormat(
        "bundle",
        "everything for one release, with a check of its engine",
        ".bundle",
        is_folder=True,
        has_build_commands=True,
    ),
    "trtexec": ExportFormat(
        "trtexec",
        "commands that build the engine with TensorRT 10 and 11",
        ".trtexec.sh",
        "trt_tui.core.exporters.build_commands:write_trtexec_export",
        {"typed": ".typed.onnx", **_FP32_NETWORK_AND_CACHE},
        has_build_commands=True,
    ),
    "polygraphy": ExportFormat(
        "Polygraphy",
        "a network postprocess script, for TensorRT up to 10",
        ".polygraphy.py",
        "trt_tui.core.exporters.build_commands:write_polygraphy_export",
        _FP32_NETWORK_AND_CACHE,
        has_build_commands=True,
    ),
    "modelopt": ExportFormat(
        "ModelOpt",
        "lists of excluded nodes, and the ranges as a cache",
        ".modelopt.json",
        "trt_tui.core.exporters.modelopt:write_modelopt_export",
        _FP32_NETWORK_AND_CACHE,
    ),
    "calibration-cache": ExportFormat(
        "calibration",
        "a cache of the ranges, for TensorRT up to 10",
        ".cache",
        "trt_tui.core.exporters.formats:write_calibration_cache_export",
        needs_all_ranges=True,
        contains_config=False,
    ),
    "markdown": ExportFormat("Markdown", "a report", ".report.md", uses_data=False, contains_config=False),
    "subgraph": ExportFormat(
        "subgraph",
        "a part of the network with its inputs, for a bug report",
        ".piece",
        is_folder=True,
        contains_config=False,
    ),
}
"""The export formats by the name that ``--format`` and requests use, in the order of the app."""


def find_companion_files(format_name: str, path: Path) -> dict[str, Path]:
    """Returns the paths of the additional files that an export format has beside ``path``, by role.

    Their names contain the file name of ``path``, so that two exports never share a file.
    """
    return {role: path.with_name(path.name + suffix) for role, suffix in EXPORT_FORMATS[format_name].companions.items()}
