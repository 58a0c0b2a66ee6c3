"""The importer of command lines of trtexec and Polygraphy, which are read as text.

The options of trtexec are those of NVIDIA/TensorRT ``samples/common/sampleOptions.cpp`` of 8.6 and 10:

- ``--layerPrecisions`` and ``--layerOutputTypes`` are lists of ``name:type`` separated by commas. An entry is split at
  its last colon. Types of several outputs are joined by ``+``. The name ``*`` means all layers that are not named; in
  another name, ``*`` matches any text. Both options have no effect without ``--precisionConstraints``.
- TF32 is on without ``--noTF32``.
- With ``--int8`` and no ``--calib``, trtexec gives all tensors of a network without Q/DQ the same invented range.

The options and defaults of Polygraphy are those of its release 0.53 (``tools/args/backend/trt/config.py`` and
``loader.py``, ``backend/trt/config.py``):

- TF32 is cleared without ``--tf32``.
- Layer precisions have no effect without ``--precision-constraints``.
- With ``--int8`` and no cache, TensorRT calibrates on random inputs unless the command names a data loader.
- ``--layer-precisions`` takes ``name:type`` entries separated by spaces, without wildcards.
- With TensorRT-RTX, Polygraphy passes on no precision flag.
"""

from dataclasses import dataclass
from pathlib import Path

from trt_tui.core.importers.command_lines import (
    CONSTRAINT_OPTIONS,
    POLYGRAPHY,
    PRECISION_BY_NAME,
    TRTEXEC,
    CommandLine,
    constraint_notes,
    has_quantized_model,
    parse_name_and_types,
    refuse_strongly_typed_build,
)
from trt_tui.core.importers.imported_settings import ImportedSettings, apply_precision_flags
from trt_tui.core.importers.polygraphy import read_tensorrt_script
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.reading import MAX_SCRIPT_BYTES, read_text
from trt_tui.formatting import name_list_text

SCRIPT_OPTIONS = ("trt-network-postprocess-script", "trt-npps")
_DATA_LOADER_OPTIONS = ("data-loader-script", "load-inputs", "load-input-data", "data-loader-backend-module")
_CONFIG_SCRIPT_OPTIONS = ("trt-config-script", "trt-config-postprocess-script", "trt-config-func-name")


@dataclass(frozen=True)
class _CommandForm:
    """The options of a tool that set precisions.

    Attributes:
        strongly_typed: The option of a strongly typed build.
        quantized_flags: The options that allow quantized types.
        precision_lists: The options with precisions of layers, and with types of their results.
        cache: The option with the calibration cache.
        constraint_texts: The verb and the options in a note on precisions of layers without an effect.
        others: The further options that set precisions, and those that are only read.
    """

    strongly_typed: str
    quantized_flags: tuple[str, ...]
    precision_lists: tuple[str, ...]
    cache: str
    constraint_texts: tuple[str, str]
    others: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def precision_options(self) -> tuple[str, ...]:
        return ("fp16", "bf16", *self.quantized_flags, self.strongly_typed, *self.precision_lists, self.cache,
                *self.others[0])


COMMAND_FORMS = {
    TRTEXEC: _CommandForm(
        "stronglyTyped", ("int8", "fp8", "int4"), ("layerPrecisions", "layerOutputTypes"), "calib",
        ("trtexec applies precisions and types of layers", "--precisionConstraints=obey or prefer"),
        (("best",), ("noTF32", "onnx"))),
    POLYGRAPHY: _CommandForm(
        "strongly-typed", ("int8", "fp8"), ("layer-precisions",), "calibration-cache",
        ("Polygraphy applies precisions of layers", "--precision-constraints obey or prefer"),
        (SCRIPT_OPTIONS, (*_DATA_LOADER_OPTIONS, *_CONFIG_SCRIPT_OPTIONS, "tf32", "calib-base-cls",
                          "calibration-base-class")))
}
"""The options of each tool."""


def read_command(command: CommandLine, network: Network, file: Path) -> ImportedSettings:
    """Reads the precisions of a command, and of the postprocess scripts that it names.

    Raises:
        InputError: The command builds a strongly typed network, or a script cannot be read.
    """
    form, settings = COMMAND_FORMS[command.tool], ImportedSettings(f"a command of {command.tool}")
    if command.has_any_of_options(form.strongly_typed):
        refuse_strongly_typed_build(file)
    if command.uses_rtx:
        refuse_strongly_typed_build(file, "TensorRT-RTX supports no other, and Polygraphy passes no precision to it")
    options = {*command.options, *(("fp16", "int8") if command.tool == TRTEXEC and "best" in command.options else ())}
    apply_precision_flags(settings, *([flag for flag in flags if flag in options]
                                      for flags in (("fp16", "bf16"), form.quantized_flags)))
    settings.tf32 = "noTF32" not in options if command.tool == TRTEXEC else "tf32" in options
    if settings.tf32 and command.tool == TRTEXEC:
        settings.notes.append("FP32 layers may use TF32, as in trtexec without --noTF32")
    for option, precisions in zip(form.precision_lists, (settings.layer_precisions, settings.output_precisions),
                                  strict=False):
        _read_precision_list(command, option, network, precisions, settings.unread_lines)
    for script in (script for option in SCRIPT_OPTIONS for script in command.options.get(option, ())):
        _add_script_settings(settings, script, network, file)
    if settings.layer_precisions or settings.output_precisions and command.tool == TRTEXEC:
        settings.notes += constraint_notes(command.constraint, *form.constraint_texts)
    if cache := command.find_value_of_options(form.cache):
        settings.cache_path = file.parent / cache
    if settings.quantized is Precision.INT8:
        _add_range_notes(settings, command, network, file)
    if command.has_any_of_options(*_CONFIG_SCRIPT_OPTIONS) and command.tool == POLYGRAPHY:
        settings.unread_lines.append("a script that changes builder settings: its effect is unknown")
    read_options = (*form.precision_options, *form.others[1], *CONSTRAINT_OPTIONS)
    if other_options := [f"--{option}" for option in command.options if option not in read_options]:
        settings.unread_lines.append(f"{name_list_text(other_options, 8)}: no precision settings")
    return settings


def _add_range_notes(settings: ImportedSettings, command: CommandLine, network: Network, file: Path) -> None:
    """Adds a note on the source of the INT8 ranges unless the command names a calibration cache."""
    if has_quantized_model(command, network, file):
        if network.source_model is None:
            settings.unread_lines.append(
                f"{Path(command.model_path).name} has its own Q/DQ nodes, which set the INT8 layers and their ranges; "
                "open it instead of this network")
    elif settings.cache_path is None and command.tool == TRTEXEC:
        option = "--best" if command.has_any_of_options("best") else "--int8"
        settings.notes.append(f"trtexec invents the INT8 ranges for {option} without --calib: its engine is valid "
                              "for timing only. Here ranges are measured on the data")
    elif settings.cache_path is None and not settings.ranges:
        data_text = "on the samples of its data loader" if command.has_any_of_options(*_DATA_LOADER_OPTIONS) else \
            "on random inputs, for it names no --calibration-cache and no data loader"
        settings.notes.append(f"Polygraphy calibrates INT8 {data_text}. Here ranges are measured on the data")


def _read_precision_list(command: CommandLine, option: str, network: Network, precisions: dict[str, Precision],
                         unread_lines: list[str]) -> None:
    """Reads a list of ``name:type`` entries in an option. Entries of trtexec are separated by commas, and may have
    wildcards."""
    names, entries = [layer.name for layer in network.layers], command.options.get(option, ())
    is_trtexec = command.tool == TRTEXEC
    default_precision: Precision | None = None
    for entry in filter(None, (part.strip().strip("'\"") for part in ",".join(entries).split(","))
                        ) if is_trtexec else entries:
        name, precision, are_integers = parse_name_and_types(entry)
        if precision is None:
            if not are_integers:
                unread_lines.append(
                    f"--{option} {entry!r}: not NAME:TYPE with a type of {', '.join(PRECISION_BY_NAME)}")
        elif name == "*" and is_trtexec:
            default_precision = precision
        elif is_trtexec and "*" in name and name not in names and "(Unnamed Layer*" not in name:
            matching_names = [candidate for candidate in names if _matches_wildcard(candidate, name)]
            precisions.update(dict.fromkeys(matching_names, precision))
            if not matching_names:
                unread_lines.append(f"--{option} {entry!r}: no layer matches")
        else:
            precisions[name] = precision
    if default_precision is not None:
        precisions.update({name: default_precision for name in names if name not in precisions})


def _matches_wildcard(name: str, pattern: str) -> bool:
    """Returns True if a name matches a pattern in which each ``*`` matches any text. The time is linear."""
    prefix, *parts, suffix = pattern.split("*")
    position, end = len(prefix), len(name) - len(suffix)
    if position > end or not (name.startswith(prefix) and name.endswith(suffix)):
        return False
    for part in parts:  # the first match of a part leaves the most text for the parts after it
        if (position := name.find(part, position, end)) < 0:
            return False
        position += len(part)
    return True


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
