"""trtexec command lines and scripts that hold them, read as text.

The options are those of NVIDIA/TensorRT ``samples/common/sampleOptions.cpp`` of 8.6 and 10: ``--layerPrecisions`` and
``--layerOutputTypes`` are lists of ``name:type`` with commas between, split at the last colon; types of several outputs
are joined by ``+``; ``*`` stands for the layers that are not named, and in a name for any text. Without
``--precisionConstraints`` they have no effect. Polygraphy's ``--layer-precisions name:type ...`` is read too.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from trt_tui.core.importers.asked import Asked
from trt_tui.core.importers.shell import expanded, shell_words
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.words import first_few

TYPES = {"fp32": Precision.FP32, "float32": Precision.FP32, "float": Precision.FP32, "fp16": Precision.FP16,
         "float16": Precision.FP16, "half": Precision.FP16, "bf16": Precision.BF16, "bfloat16": Precision.BF16,
         "int8": Precision.INT8, "fp8": Precision.FP8, "int4": Precision.INT4}
"""Precisions by what the tools call them."""

_INTEGERS = frozenset(("int32", "int64", "bool", "uint8"))
_PRECISION = ("fp16", "bf16", "int8", "fp8", "int4", "best", "stronglyTyped", "layerPrecisions", "layerOutputTypes",
              "layer-precisions", "calib", "calibration-cache")
_READ = (*_PRECISION, "precisionConstraints", "precision-constraints", "noTF32", "tf32", "onnx")
_TOOL = re.compile(r"\btrtexec\b|\$\{?TRTEXEC|\bpolygraphy\s+(?:convert|run)\b")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)=(?:\"([^\"]*)\"|'([^']*)'|(\S*))\s*$")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^{}]*))?\}|\$(\w+)")


def is_command(text: str) -> bool:
    """Whether a text holds a command line of trtexec or Polygraphy, or options of one alone."""
    return bool(_TOOL.search(text)) or text.lstrip().startswith("--")


def read_commands(text: str, network: Network, file: Path) -> Asked:
    """What the command of a script asks for; of several that which says most of precisions.

    Raises:
        InputError: it holds no command that says anything of precisions, or one that cannot be taken apart.
    """
    commands = list(_commands(text, file.name))
    telling = [one for one in commands if any(option in _PRECISION for option, _ in one[1])]
    if not telling:
        raise InputError(f"{file.name} says nothing of precisions",
                         f"it holds {len(commands)} commands of trtexec or Polygraphy, and none has any of "
                         "--fp16, --int8, --layerPrecisions", "Name a config, or a line that has one of them.")

    def says(options: Sequence[tuple[str, str]]) -> tuple[int, int]:
        named = dict(options)
        lists = sum(len(named.get(one, "")) for one in ("layerPrecisions", "layer-precisions"))
        return (lists, sum(one in ("fp16", "int8", "best", "bf16", "calib") for one in named))

    line, options = max(telling, key=lambda one: says(one[1]))
    asked = _asked(options, network, file)
    if others := [str(other) for other, _ in telling if other != line]:
        asked.notes.append(f"line {first_few(others)} is another command; line {line} is taken")
    return asked


def _commands(text: str, name: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """The commands by their line number, each as options and values."""
    values: dict[str, str] = {}
    number, lines = 0, text.splitlines()
    while number < len(lines):
        start, parts = number + 1, [lines[number]]
        while parts[-1].endswith("\\") and number + 1 < len(lines):
            number += 1
            parts[-1:] = [parts[-1][:-1], lines[number].strip()]
        number += 1
        line = " ".join(parts)
        if (assigned := _ASSIGNED.match(line)) is not None:
            values[assigned[1]] = next(value for value in assigned.groups()[1:] if value is not None)
        if line.lstrip().startswith("#") or not is_command(line):
            continue
        where = f"{name}, line {start}"
        line = expanded(_VARIABLE, lambda match: values.get(match[1] or match[3] or "", match[2] or match[0]), line,
                        where)
        words = shell_words(line, where)
        yield start, list(_options(words))


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options without their dashes, each with its value or values, "" without."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--"):
            continue
        option, given, value = word[2:].partition("=")
        rest = []
        while not given and place < len(words) and not words[place].startswith("-"):
            rest.append(words[place])
            place += 1
        yield option, value if given else ",".join(rest)


def _asked(options: Sequence[tuple[str, str]], network: Network, file: Path) -> Asked:
    named = dict(options)
    asked = Asked("a command of trtexec" if "layer-precisions" not in named else "a command of Polygraphy")
    if "stronglyTyped" in named:
        raise InputError(f"{file.name} builds a strongly typed network", "its precisions are in the ONNX file that it "
                         "names, not in the command", "Open that file: --precision file takes what it has.")
    floats = [TYPES[word] for word in ("fp16", "bf16") if word in named or word == "fp16" and "best" in named]
    asked.other = floats[0] if floats else Precision.FP32
    codes = [TYPES[word] for word in ("int8", "fp8", "int4") if word in named or word == "int8" and "best" in named]
    asked.quantized = codes[0] if codes else asked.other
    asked.tf32 = "noTF32" not in named and "layer-precisions" not in named or "tf32" in named
    if asked.tf32:
        asked.notes.append("FP32 layers may use TF32, as trtexec has it without --noTF32")
    if len(floats) + bool(codes) > 1 or codes and floats:
        labels = " and ".join(one.label for one in (*codes[:1], *floats[:1]))
        asked.notes.append(f"TensorRT chooses between {labels} where nothing is told; here what can runs in "
                           f"{(codes or floats)[0].label}, the rest in {asked.other.label}")
    asked.unread += [f"--{one.value}: {codes[0].label} is taken" for one in codes[1:]]
    for key in ("layerPrecisions", "layer-precisions"):
        _listed(named.get(key, ""), key, network, asked.layers, asked.unread)
    _listed(named.get("layerOutputTypes", ""), "layerOutputTypes", network, asked.outputs, asked.unread)
    if asked.layers and not {"precisionConstraints", "precision-constraints"} & named.keys():
        asked.notes.append("trtexec heeds --layerPrecisions only with --precisionConstraints=obey or prefer, which it "
                           "lacks; here they count")
    for key in ("calib", "calibration-cache"):
        if named.get(key):
            asked.cache = file.parent / named[key]
    others = [f"--{option}" for option, _ in options if option not in _READ]
    if others:
        asked.unread.append(f"{first_few(list(dict.fromkeys(others)), 8)}: not about precisions")
    return asked


def _fits(name: str, pattern: str) -> bool:
    """Returns True if a name fits a pattern in which each ``*`` stands for any text, in linear time."""
    first, *between, last = pattern.split("*")
    place, end = len(first), len(name) - len(last)
    if place > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for part in between:  # the first place where a part fits leaves most to those behind it
        if (place := name.find(part, place, end)) < 0:
            return False
        place += len(part)
    return True


def _listed(text: str, option: str, network: Network, into: dict[str, Precision], unread: list[str]) -> None:
    """Takes a list of ``name:type`` apart."""
    names = [layer.name for layer in network.layers]
    rest: Precision | None = None
    for entry in filter(None, (part.strip().strip("'\"") for part in text.split(","))):
        name, colon, word = entry.rpartition(":")
        kinds = [TYPES.get(one.lower()) for one in word.split("+")]
        kind = kinds[0]
        if not colon or kind is None or any(one is not kind for one in kinds):
            if not all(one.lower() in _INTEGERS for one in word.split("+")):
                unread.append(f"--{option} {entry!r}: no name:type, with a type of {', '.join(TYPES)}")
        elif name == "*":
            rest = kind
        elif "*" in name and name not in names and "(Unnamed Layer*" not in name:
            matched = [one for one in names if _fits(one, name)]
            into.update(dict.fromkeys(matched, kind))
            if not matched:
                unread.append(f"--{option} {entry!r}: no layer matches")
        else:
            into[name] = kind
    if rest is not None:
        into.update({name: rest for name in names if name not in into})
