"""The importer of trtexec command lines, which are read as text.

The options are those of NVIDIA/TensorRT ``samples/common/sampleOptions.cpp`` of 8.6 and 10:

- ``--layerPrecisions`` and ``--layerOutputTypes`` are lists of ``name:type`` separated by commas. An entry is split at
  its last colon. Types of several outputs are joined by ``+``. The name ``*`` means all layers that are not named; in
  another name, ``*`` matches any text. Both options have no effect without ``--precisionConstraints``.
- TF32 is on without ``--noTF32``.
- With ``--int8`` and no ``--calib``, trtexec gives all tensors of a network without Q/DQ the same invented range.
"""

from collections.abc import Sequence
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
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.formatting import name_list_text

PRECISION_OPTIONS = ("fp16", "bf16", "int8", "fp8", "int4", "best", "stronglyTyped", "layerPrecisions",
                     "layerOutputTypes", "calib")
_READ_OPTIONS = (*PRECISION_OPTIONS, *CONSTRAINT_OPTIONS, "noTF32", "onnx")


def read_trtexec_command(command: CommandLine, network: Network, file: Path) -> ImportedSettings:
    """Reads the precisions of a trtexec command.

    Raises:
        InputError: The command builds a strongly typed network.
    """
    settings = ImportedSettings("a command of trtexec")
    if command.has_any_of_options("stronglyTyped"):
        refuse_strongly_typed_build(file)
    has_best = command.has_any_of_options("best")
    apply_precision_flags(
        settings,
        [flag for flag in ("fp16", "bf16") if command.has_any_of_options(flag) or has_best and flag == "fp16"],
        [flag for flag in ("int8", "fp8", "int4") if command.has_any_of_options(flag) or has_best and flag == "int8"])
    settings.tf32 = not command.has_any_of_options("noTF32")
    if settings.tf32:
        settings.notes.append("FP32 layers may use TF32, as in trtexec without --noTF32")
    _read_precision_list(command, "layerPrecisions", network, settings.layer_precisions, settings.unread_lines)
    _read_precision_list(command, "layerOutputTypes", network, settings.output_precisions, settings.unread_lines)
    if settings.layer_precisions or settings.output_precisions:
        settings.notes += constraint_notes(command.constraint, "trtexec applies precisions and types of layers",
                                           "--precisionConstraints=obey or prefer")
    if cache := command.find_value_of_options("calib"):
        settings.cache_path = file.parent / cache
    if settings.quantized is Precision.INT8:
        if has_quantized_model(command, network, file):
            if network.source_model is None:
                settings.unread_lines.append(
                    f"{Path(command.model_path).name} has its own Q/DQ nodes, which set the INT8 layers and their "
                    "ranges; open it instead of this network")
        elif not cache:
            option = "--best" if has_best else "--int8"
            settings.notes.append(f"trtexec invents the INT8 ranges for {option} without --calib: its engine is valid "
                                  "for timing only. Here ranges are measured on the data")
    other_options = [f"--{option}" for option in command.options if option not in _READ_OPTIONS]
    if other_options:
        settings.unread_lines.append(f"{name_list_text(other_options, 8)}: no precision settings")
    return settings


def apply_precision_flags(settings: ImportedSettings, float_flags: Sequence[str],
                          quantized_flags: Sequence[str]) -> None:
    """Sets the default precisions from a builder's flags, which are keys of `PRECISION_BY_NAME`."""
    float_precisions, quantized_precisions = [PRECISION_BY_NAME[flag] for flag in float_flags
                                              ], [PRECISION_BY_NAME[flag] for flag in quantized_flags]
    settings.other = float_precisions[0] if float_precisions else Precision.FP32
    settings.quantized = quantized_precisions[0] if quantized_precisions else settings.other
    if len(float_precisions) + bool(quantized_precisions) > 1:
        labels = " and ".join(precision.label for precision in (*quantized_precisions[:1], *float_precisions[:1]))
        settings.notes.append(
            f"TensorRT chooses between {labels} for layers without a setting; here layers that can run in "
            f"{(quantized_precisions or float_precisions)[0].label} do so, the others run in {settings.other.label}")
    settings.unread_lines += [
        f"--{precision.value}: {quantized_precisions[0].label} is used" for precision in quantized_precisions[1:]
    ]


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


def _read_precision_list(command: CommandLine, option: str, network: Network, precisions: dict[str, Precision],
                         unread_lines: list[str]) -> None:
    """Reads a list of ``name:type`` entries in a trtexec option."""
    names = [layer.name for layer in network.layers]
    default_precision: Precision | None = None
    text = ",".join(command.options.get(option, ()))
    for entry in filter(None, (part.strip().strip("'\"") for part in text.split(","))):
        name, precision, are_integers = parse_name_and_types(entry)
        if precision is None:
            if not are_integers:
                unread_lines.append(
                    f"--{option} {entry!r}: not NAME:TYPE with a type of {', '.join(PRECISION_BY_NAME)}")
        elif name == "*":
            default_precision = precision
        elif "*" in name and name not in names and "(Unnamed Layer*" not in name:
            matching_names = [candidate for candidate in names if _matches_wildcard(candidate, name)]
            precisions.update(dict.fromkeys(matching_names, precision))
            if not matching_names:
                unread_lines.append(f"--{option} {entry!r}: no layer matches")
        else:
            precisions[name] = precision
    if default_precision is not None:
        precisions.update({name: default_precision for name in names if name not in precisions})
