"""The options of the builder in arguments of trtexec.

The options are those of NVIDIA/TensorRT ``samples/common/sampleOptions.cpp`` of 8.6 and 10.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from trt_tui.core.builder_options import BuilderOptions, BuilderOptionSpec, builder_option_specs
from trt_tui.core.importers.command_lines import CONSTRAINT_OPTIONS, TRTEXEC, split_shell_words
from trt_tui.core.importers.commands import COMMAND_FORMS
from trt_tui.errors import InputError
from trt_tui.formatting import find_similar_names, suggestion_question


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
    **dict.fromkeys((*COMMAND_FORMS[TRTEXEC].precision_options, *CONSTRAINT_OPTIONS, "noTF32"),
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
