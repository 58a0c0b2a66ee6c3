"""The importer of Polygraphy command lines, which are read as text, and of the postprocess scripts in them.

The options and defaults are those of Polygraphy 0.53 (``tools/args/backend/trt/config.py`` and ``loader.py``,
``backend/trt/config.py``):

- TF32 is cleared without ``--tf32``.
- Layer precisions have no effect without ``--precision-constraints``.
- With ``--int8`` and no cache, TensorRT calibrates on random inputs unless the command names a data loader.
- ``--layer-precisions`` takes ``name:type`` entries separated by spaces, without wildcards.
- With TensorRT-RTX, Polygraphy passes on no precision flag.
"""

from pathlib import Path

from trt_tui.core.importers.command_lines import (
    CONSTRAINT_OPTIONS,
    PRECISION_BY_NAME,
    CommandLine,
    constraint_notes,
    has_quantized_model,
    parse_name_and_types,
    refuse_strongly_typed_build,
)
from trt_tui.core.importers.imported_settings import ImportedSettings
from trt_tui.core.importers.polygraphy import read_tensorrt_script
from trt_tui.core.importers.trtexec import apply_precision_flags
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.reading import MAX_SCRIPT_BYTES, read_text
from trt_tui.formatting import name_list_text

SCRIPT_OPTIONS = ("trt-network-postprocess-script", "trt-npps")
PRECISION_OPTIONS = ("fp16", "bf16", "int8", "fp8", "strongly-typed", "layer-precisions", "calibration-cache",
                     *SCRIPT_OPTIONS)
_DATA_LOADER_OPTIONS = ("data-loader-script", "load-inputs", "load-input-data", "data-loader-backend-module")
_CONFIG_SCRIPT_OPTIONS = ("trt-config-script", "trt-config-postprocess-script", "trt-config-func-name")
_READ_OPTIONS = (*PRECISION_OPTIONS, *_DATA_LOADER_OPTIONS, *CONSTRAINT_OPTIONS, "tf32", "calib-base-cls",
                 "calibration-base-class")


def read_polygraphy_command(command: CommandLine, network: Network, file: Path) -> ImportedSettings:
    """Reads the precisions of a Polygraphy command and of the postprocess scripts that it names.

    Raises:
        InputError: The command builds a strongly typed network, or a script cannot be read.
    """
    settings = ImportedSettings("a command of Polygraphy")
    if command.has_any_of_options("strongly-typed"):
        refuse_strongly_typed_build(file)
    if command.uses_rtx:
        refuse_strongly_typed_build(file, "TensorRT-RTX supports no other, and Polygraphy passes no precision to it")
    apply_precision_flags(settings, [flag for flag in ("fp16", "bf16") if command.has_any_of_options(flag)],
                          [flag for flag in ("int8", "fp8") if command.has_any_of_options(flag)])
    settings.tf32 = command.has_any_of_options("tf32")
    for entry in command.options.get("layer-precisions", ()):
        name, precision, are_integers = parse_name_and_types(entry)
        if precision is not None:
            settings.layer_precisions[name] = precision
        elif not are_integers:
            settings.unread_lines.append(
                f"--layer-precisions {entry!r}: not NAME:TYPE with a type of {', '.join(PRECISION_BY_NAME)}")
    scripts = [script for option in SCRIPT_OPTIONS for script in command.options.get(option, ())]
    for script in scripts:
        _add_script_settings(settings, script, network, file)
    if settings.layer_precisions:
        settings.notes += constraint_notes(command.constraint, "Polygraphy applies precisions of layers",
                                           "--precision-constraints obey or prefer")
    if cache := command.find_value_of_options("calibration-cache"):
        settings.cache_path = file.parent / cache
    if settings.quantized is Precision.INT8:
        _add_range_notes(settings, command, network, file)
    if command.has_any_of_options(*_CONFIG_SCRIPT_OPTIONS):
        settings.unread_lines.append("a script that changes builder settings: its effect is unknown")
    other_options = [
        f"--{option}" for option in command.options if option not in (*_READ_OPTIONS, *_CONFIG_SCRIPT_OPTIONS)
    ]
    if other_options:
        settings.unread_lines.append(f"{name_list_text(other_options, 8)}: no precision settings")
    return settings


def _add_script_settings(settings: ImportedSettings, script_file: str, network: Network, file: Path) -> None:
    """Adds the precisions and ranges of a postprocess script to the settings of the command.

    Args:
        script_file: The path in the command, optionally with a function after a colon.

    Raises:
        InputError: The script does not exist or cannot be read.
    """
    script_name, _, function_name = script_file.rpartition(":") if not script_file.endswith(".py") else (script_file,
                                                                                                         "", "")
    path = file.parent / (script_name or script_file)
    if not path.is_file():
        raise InputError(f"{file.name} names the script {script_name or script_file}, which is not there",
                         "the precisions of layers are in that script",
                         f"Put it beside {file.name}, or name the script itself with --config.")
    script_settings = read_tensorrt_script(read_text(path, max_bytes=MAX_SCRIPT_BYTES), network, path, function_name
                                             or "postprocess", must_set=False)
    settings.layer_precisions.update(script_settings.layer_precisions)
    settings.optional_names |= script_settings.optional_names
    settings.output_precisions.update(script_settings.output_precisions)
    settings.ranges.update(script_settings.ranges)
    settings.unread_lines += [f"{path.name}: {line}" for line in script_settings.unread_lines]
    settings.excluded_ranges |= script_settings.excluded_ranges


def _add_range_notes(settings: ImportedSettings, command: CommandLine, network: Network, file: Path) -> None:
    """Adds a note on the source of the INT8 ranges unless the command names a calibration cache."""
    if has_quantized_model(command, network, file):
        if network.source_model is None:
            settings.unread_lines.append(
                f"{Path(command.model_path).name} has its own Q/DQ nodes, which set the INT8 layers and their ranges; "
                "open it instead of this network")
    elif settings.cache_path is None and not settings.ranges:
        data_text = "on the samples of its data loader" if command.has_any_of_options(*_DATA_LOADER_OPTIONS) else \
            "on random inputs, for it names no --calibration-cache and no data loader"
        settings.notes.append(f"Polygraphy calibrates INT8 {data_text}. Here ranges are measured on the data")
