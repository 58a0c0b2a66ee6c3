"""Command lines of trtexec and Polygraphy in scripts, taken apart as text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_tui.core.importers.shell import expanded, shell_words
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.reading import open_regular

TYPES = {"fp32": Precision.FP32, "float32": Precision.FP32, "float": Precision.FP32, "fp16": Precision.FP16,
         "float16": Precision.FP16, "half": Precision.FP16, "bf16": Precision.BF16, "bfloat16": Precision.BF16,
         "int8": Precision.INT8, "fp8": Precision.FP8, "int4": Precision.INT4}
"""Precisions by what the tools call them."""

TRTEXEC, POLYGRAPHY = "trtexec", "Polygraphy"

_POLYGRAPHY = re.compile(r"(?:\bpolygraphy|\$\{?POLYGRAPHY\b[^\s\"]*)\"?\s+(?:-\S+\s+)*(?:convert|run|debug\s+\w+)\b")
_TRTEXEC = re.compile(r"\btrtexec\b|\$\{?TRTEXEC\b")
_OPTIONS_OF_POLYGRAPHY = frozenset((
    "tf32", "layer-precisions", "precision-constraints", "calibration-cache", "calib-base-cls",
    "calibration-base-class", "trt-network-postprocess-script", "trt-npps", "strongly-typed"))
_RTX = re.compile(r"\bPOLYGRAPHY_USE_TENSORRT_RTX=[\"']?(?!0\b)\w")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)=(?:\"([^\"]*)\"|'([^']*)'|(\S*))\s*$")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^{}]*))?\}|\$(\w+)")
_HEAD_BYTES = 64 << 20
"""The nodes of an ONNX file stand before its weights; they are looked for in this many bytes."""


@dataclass(frozen=True)
class Command:
    """One command line.

    Attributes:
        line: The number of its first line in the file, from 1.
        tool: `TRTEXEC` or `POLYGRAPHY`.
        options: The values of each option by its name without dashes; empty for a flag.
        model: The ONNX file that it names; "" if it names none.
        rtx: True if Polygraphy builds with TensorRT-RTX.
    """

    line: int
    tool: str
    options: dict[str, list[str]]
    model: str = ""
    rtx: bool = False

    def value(self, *names: str) -> str:
        """Returns the last value of the first of these options that has one; "" without."""
        return next((self.options[name][-1] for name in names if self.options.get(name)), "")

    def has(self, *names: str) -> bool:
        """Returns True if any of these options is given."""
        return not self.options.keys().isdisjoint(names)


def is_command(text: str) -> bool:
    """Returns True for a text with a command line of trtexec or Polygraphy, or with options alone."""
    return bool(_TRTEXEC.search(text) or _POLYGRAPHY.search(text)) or text.lstrip().startswith("--")


def commands(text: str, name: str) -> Iterator[Command]:
    """Yields the command lines of a script.

    Args:
        name: The name of the file, for messages.

    Raises:
        InputError: a command line has quotes that do not match.
    """
    values: dict[str, str] = {}
    number, lines, rtx = 0, text.splitlines(), False
    while number < len(lines):
        start, parts = number + 1, [lines[number]]
        while parts[-1].endswith("\\") and number + 1 < len(lines):
            number += 1
            parts[-1:] = [parts[-1][:-1], lines[number].strip()]
        number += 1
        line = " ".join(parts)
        if (assigned := _ASSIGNED.match(line)) is not None:
            values[assigned[1]] = next(value for value in assigned.groups()[1:] if value is not None)
        comment = line.lstrip().startswith("#")
        rtx = rtx or not comment and bool(_RTX.search(line))
        if comment or not is_command(line):
            continue
        where = f"{name}, line {start}"
        line = expanded(_VARIABLE, lambda match: values.get(match[1] or match[3] or "", match[2] or match[0]), line,
                        where)
        words = shell_words(line, where)
        options = _options(words)
        polygraphy = bool(_POLYGRAPHY.search(line)) or not _TRTEXEC.search(line) and not (
            _OPTIONS_OF_POLYGRAPHY.isdisjoint(options))
        before = [word for word in words if word.endswith(".onnx") and not word.startswith("-")]
        model = options["onnx"][-1] if options.get("onnx") else before[0] if polygraphy and before else ""
        yield Command(start, POLYGRAPHY if polygraphy else TRTEXEC, options, model, polygraphy and rtx)


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    """Returns the values of each option by its name without dashes."""
    found: dict[str, list[str]] = {}
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--"):
            continue
        option, given, value = word[2:].partition("=")
        own = found.setdefault(option, [])
        own += [value] if given else []
        while not given and place < len(words) and not words[place].startswith("-"):
            own.append(words[place])
            place += 1
    return found


def refuse_typed(file: Path, why: str = "its precisions are in the ONNX file that it names, not in the command"
                 ) -> None:
    """Refuses a command that builds a strongly typed network.

    Args:
        file: The file that holds the command.
        why: The cause.

    Raises:
        InputError: always.
    """
    beside = file.parent / "precision.json"
    raise InputError(f"{file.name} builds a strongly typed network", why,
                     f"Name {beside}, which is in the same folder." if beside.is_file() else
                     "Open that file: --precision file takes the precisions that it has.")


def quantized_model(command: Command, network: Network, file: Path) -> bool:
    """Returns True if the ONNX file of a command has Q/DQ: the file that is named, or the network that is open."""
    if network.given is not None:
        return True
    try:
        with open_regular(file.parent / command.model) as stream:
            return b"QuantizeLinear" in stream.read(_HEAD_BYTES)
    except (InputError, OSError):  # the command alone is asked for, and its network may be on another machine
        return False


def typed_words(text: str) -> tuple[str, Precision | None, bool]:
    """Takes ``name:type`` apart, with types of several outputs joined by ``+``.

    Returns:
        The name; the precision, None if there is none; True if all types are integers, which take no precision.
    """
    name, colon, word = text.rpartition(":")
    kinds = {TYPES.get(one.lower()) for one in word.split("+")}
    kind = kinds.pop() if len(kinds) == 1 and colon else None
    integers = all(one.lower() in ("int32", "int64", "bool", "uint8") for one in word.split("+"))
    return name, kind, integers
