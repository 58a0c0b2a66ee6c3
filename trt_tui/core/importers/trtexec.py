"""The importer of trtexec command lines, which are read as text.

The options are those of NVIDIA/TensorRT ``samples/common/sampleOptions.cpp`` of 8.6 and 10:

- ``--layerPrecisions`` and ``--layerOutputTypes`` are lists of ``name:type`` separated by commas. An entry is split at
  its last colon. Types of several outputs are joined by ``+``. The name ``*`` means all layers that are not named; in
  another name, ``*`` matches any text. Both options have no effect without ``--precisionConstraints``.
- TF32 is on without ``--noTF32``.
- With ``--int8`` and no ``--calib``, trtexec gives all tensors of a network without Q/DQ the same invented range.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import BuilderOptions, BuilderOptionSpec, builder_option_specs
from trt_tui.core.importers.command_lines import (
    CONSTRAINT_OPTIONS,
    PRECISION_BY_NAME,
    CommandLine,
    constraint_notes,
    has_quantized_model,
    parse_name_and_types,
    refuse_strongly_typed_build,
    split_shell_words,
)
from trt_tui.core.importers.imported_settings import ImportedSettings
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.formatting import find_similar_names, name_list_text, suggestion_question

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


def read_builder_options(text: str) -> BuilderOptions:
    """Reads the options of the builder from arguments of trtexec, such as ``--refit --memPoolSize=workspace:512``.

    Raises:
        InputError: An argument is not an option of `BuilderOptions`, or its value is not valid.
    """
    specs = {spec.option: (name, spec) for name, spec in builder_option_specs().items() if spec.trtexec}
    values: dict[str, Any] = {}
    shapes_by_profile: dict[str, dict[str, str]] = {}
    profile = "0"
    for argument in split_shell_words(text, "--trtexec"):
        option, _, value_text = argument.partition("=")
        option = "--versionCompatible" if option == "--vc" else option
        if option == "--profile" and value_text.isdecimal():
            profile = value_text
            shapes_by_profile.setdefault(profile, {})
        elif option in _SHAPE_BOUNDS:
            shapes_by_profile.setdefault(profile, {})[option] = value_text.replace("'", "")
        elif option not in specs:
            known = (*specs, "--profile", *_SHAPE_BOUNDS)
            raise InputError(
                f"--trtexec: {option} is not an option of the builder that trt-tui passes on",
                suggestion_question(find_similar_names(option, known)),
                _OTHER_WAYS.get(option.removeprefix("--"), f"Use {', '.join(specs)}, or --profile=N with "
                                                           f"{', '.join(_SHAPE_BOUNDS)}."))
        else:
            name, spec = specs[option]
            if (value := _parse_builder_value(spec, value_text)) is None:
                choices = f", with {' or '.join(spec.choices)}" if spec.choices else ""
                raise InputError(f"--trtexec: {argument} is not valid",
                                 f"the form is {spec.trtexec.format('VALUE')}{choices}",
                                 "Write it as trtexec takes it.")
            values[name] = (*values.get(name, ()), value) if spec.value_kind == "files" else value
    if "0" in shapes_by_profile:
        raise InputError("--trtexec: the shapes of the first profile are those of --shapes", "",
                         "Use --shapes, or write --profile=1 before the shapes of a further profile.")
    if empty := [number for number, shapes in shapes_by_profile.items() if not shapes]:
        raise InputError(f"--trtexec: --profile={empty[0]} has no shapes", "",
                         f"Write {', '.join(_SHAPE_BOUNDS)} behind it, or leave it out.")
    return BuilderOptions(**values, profiles=tuple(map(_profile_text, shapes_by_profile.values())))


_SHAPE_BOUNDS = ("--minShapes", "--optShapes", "--maxShapes")
_OTHER_WAYS = {
    **dict.fromkeys((*PRECISION_OPTIONS, *CONSTRAINT_OPTIONS, "noTF32"),
                    "The config sets precisions: give --precision, or write the command of trtexec to a file and give "
                    "--config FILE."),
    "onnx": "Leave it out: MODEL is the network.", "shapes": "Use --shapes of trt-tui.",
    "saveEngine": "Use trt-tui build with -o model.engine.", "loadEngine": "Use trt-tui compare with --engine FILE.",
    "workspace": "Use --memPoolSize=workspace:MIB.", "plugins": "Use --staticPlugins=LIB.so."}
"""The next step for an option of trtexec that is not one of `BuilderOptions`."""
_MIB_BY_SUFFIX = {"B": 2.0 ** -20, "K": 2.0 ** -10, "M": 1, "": 1, "G": 1 << 10}
"""The MiB of a size with one of the suffixes of trtexec."""


def _profile_text(shape_texts: Mapping[str, str]) -> str:
    """Returns an optimization profile in the form of ``--shapes``. A bound without shapes is equal to another one."""
    default = next((text for bound in ("--optShapes", "--maxShapes", *_SHAPE_BOUNDS)
                    if (text := shape_texts.get(bound))), "")
    bounds = [dict(entry.rpartition(":")[::2] for entry in re.split(r"(?<=\d),", shape_texts.get(bound) or default))
              for bound in _SHAPE_BOUNDS]
    return ",".join(":".join((name, *(shapes.get(name, "") for shapes in bounds)))
                    for name in {**bounds[1], **bounds[0], **bounds[2]})


def _parse_builder_value(spec: BuilderOptionSpec, text: str) -> Any:
    """Returns the value of a builder option in the form of its field in `BuilderOptions`; None if it is not valid."""
    prefix = spec.trtexec.partition("=")[2].partition("{")[0]  # such as "workspace:", or the word of a flag
    value = text.removeprefix(prefix)
    if not spec.value_kind:
        return {prefix: True, "disable": False}.get(text) if prefix else True if not text else None
    if not text.startswith(prefix) or not value:
        return None
    if spec.value_kind == "number":
        match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)([BKMG]?)(?:i?B)?" if prefix else r"(\d{1,12})()", value)
        number = float(match[1]) * _MIB_BY_SUFFIX[match[2]] if match is not None else math.nan
        low, high = spec.number_range
        return int(number) if low <= number <= high else None
    if spec.value_kind == "names":
        sources = tuple(value.split(","))
        return sources if all(re.fullmatch(r"[+-]\w+", source) for source in sources) else None
    if spec.choices:
        return {"none": "", **{word: word for word in spec.choices}}.get(value)
    return value
