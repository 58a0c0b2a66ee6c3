"""A parser of trtexec and Polygraphy command lines in scripts, which splits them into options without running them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.reading import MAX_TEXT_BYTES, open_regular_file

_WORD_PART = re.compile(r"""(?P<blank>\s+)|'(?P<single>[^']*)'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|\\(?P<escaped>.)|"""
                        r"""(?P<plain>[^\s'"\\]+)""", re.S)

_ESCAPED_CHARACTER = re.compile(r'\\(["\\$`])')

PRECISION_BY_NAME = {
    "fp32": Precision.FP32, "float32": Precision.FP32, "float": Precision.FP32, "fp16": Precision.FP16,
    "float16": Precision.FP16, "half": Precision.FP16, "bf16": Precision.BF16, "bfloat16": Precision.BF16,
    "int8": Precision.INT8, "fp8": Precision.FP8, "int4": Precision.INT4
}
"""Precisions by the names that the tools use."""

TRTEXEC, POLYGRAPHY = "trtexec", "Polygraphy"

_CONSTRAINTS_OF_OPTIONS = {"strictTypeConstraints": "obey", "strictTypes": "obey", "strict-types": "obey",
                           "obey-precision-constraints": "obey", "prefer-precision-constraints": "prefer"}
"""Older options of trtexec and Polygraphy, with their meaning as values of ``--precisionConstraints``."""

CONSTRAINT_OPTIONS = ("precisionConstraints", "precision-constraints", *_CONSTRAINTS_OF_OPTIONS)

_POLYGRAPHY_PATTERN = re.compile(
    r"(?:\bpolygraphy|\$\{?POLYGRAPHY\b[^\s\"]*)\"?\s+(?:-\S+\s+)*(?:convert|run|debug\s+\w+)\b")
_TRTEXEC_PATTERN = re.compile(r"\btrtexec\b|\$\{?TRTEXEC\b")
_POLYGRAPHY_OPTIONS = frozenset((
    "tf32", "layer-precisions", "precision-constraints", "calibration-cache", "calib-base-cls",
    "calibration-base-class", "trt-network-postprocess-script", "trt-npps", "strongly-typed"))
_RTX_PATTERN = re.compile(r"\bPOLYGRAPHY_USE_TENSORRT_RTX=[\"']?(?!0\b)\w")
_ASSIGNMENT_PATTERN = re.compile(r"^\s*(?:export\s+)?(\w+)=(?:\"([^\"]*)\"|'([^']*)'|(\S*))\s*$")
_VARIABLE_PATTERN = re.compile(r"\$\{(\w+)(?::-([^{}]*))?\}|\$(\w+)")
_SHELL_OPERATORS = ("&&", "||", "|", ";", "&")
_MAX_SCANNED_BYTES = 64 << 20
"""Number of bytes searched for Q/DQ. The nodes of an ONNX file precede its weights."""


def split_shell_words(line: str, location: str) -> list[str]:
    """Splits a line of a POSIX shell script into words. Comments are dropped, and variables stay unexpanded.

    Args:
        location: The position of the line in messages.

    Raises:
        InputError: A quote has no end.
    """
    words: list[str] = []
    parts: list[str] = []
    position = 0
    while position < len(line):
        match = _WORD_PART.match(line, position)
        if match is None:
            raise InputError(f"{location}: no command line", "a quote or an escape does not end", "Correct the quotes.")
        group_name, text = match.lastgroup, match[match.lastgroup or 0]
        if group_name == "blank":
            words += ["".join(parts)] if parts else []
            parts = []
        elif group_name == "plain" and not parts and text.startswith("#"):
            break
        else:
            parts.append(_ESCAPED_CHARACTER.sub(r"\1", text) if group_name == "double" else text)
        position = match.end()
    return [*words, "".join(parts)] if parts else words


def expand_variables(pattern: re.Pattern[str], find_value: Callable[[re.Match[str]], str], line: str,
                     location: str) -> str:
    """Returns a command line with its variables replaced by their values.

    Raises:
        InputError: The line would have more than `MAX_TEXT_BYTES` characters.
    """
    total_length = len(line)

    def replace_variable(match: re.Match[str]) -> str:
        nonlocal total_length
        text = find_value(match)
        total_length += len(text)
        if total_length > MAX_TEXT_BYTES:
            raise InputError(f"{location}: a line is too long",
                             f"with its variables it has over {MAX_TEXT_BYTES:,} characters", "Write the command out.")
        return text

    return pattern.sub(replace_variable, line)


@dataclass(frozen=True)
class CommandLine:
    """One command line of trtexec or Polygraphy.

    Attributes:
        line_number: The number of its first line in the file, from 1.
        tool: `TRTEXEC` or `POLYGRAPHY`.
        options: The values of each option, by its name without dashes; empty for a flag.
        model_path: The ONNX file in the command; "" if there is none.
        uses_rtx: True if Polygraphy builds with TensorRT-RTX.
    """

    line_number: int
    tool: str
    options: dict[str, list[str]]
    model_path: str = ""
    uses_rtx: bool = False

    def find_value_of_options(self, *names: str) -> str:
        """Returns the last value of the first of these options that has a value; "" if none has one."""
        return next((self.options[name][-1] for name in names if self.options.get(name)), "")

    def has_any_of_options(self, *names: str) -> bool:
        return not self.options.keys().isdisjoint(names)

    @property
    def constraint(self) -> str:
        """The effect of the precisions of layers: obey, prefer, or another text if they have none."""
        older_values = [value for name, value in _CONSTRAINTS_OF_OPTIONS.items() if name in self.options]
        return older_values[0] if older_values else self.find_value_of_options(*CONSTRAINT_OPTIONS)


def has_command_line(text: str) -> bool:
    """Returns True if a text contains a command line of trtexec or Polygraphy, or consists of options only."""
    return bool(_TRTEXEC_PATTERN.search(text) or _POLYGRAPHY_PATTERN.search(text)) or text.lstrip().startswith("--")


def iterate_shell_lines(text: str) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yields the lines of a shell script that are no comments: the number, the line with those that continue it, and
    the variables that were assigned before."""
    values: dict[str, str] = {}
    line_index, lines = 0, text.splitlines()
    while line_index < len(lines):
        line_number, parts = line_index + 1, [lines[line_index]]
        while parts[-1].endswith("\\") and line_index + 1 < len(lines):
            line_index += 1
            parts[-1:] = [parts[-1][:-1], lines[line_index].strip()]
        line_index += 1
        line = " ".join(parts)
        if (assignment := _ASSIGNMENT_PATTERN.match(line)) is not None:
            values[assignment[1]] = next(value for value in assignment.groups()[1:] if value is not None)
        if not line.lstrip().startswith("#"):
            yield line_number, line, values


def split_command(line: str, values: Mapping[str, str], location: str) -> list[str]:
    """Splits a line into words after its variables are replaced by their values.

    Raises:
        InputError: The line has quotes that do not match, or is too long.
    """
    return split_shell_words(expand_variables(
        _VARIABLE_PATTERN, lambda match: values.get(match[1] or match[3] or "", match[2] or match[0]), line,
        location), location)


def parse_commands(text: str, file_name: str) -> Iterator[CommandLine]:
    """Yields the trtexec and Polygraphy command lines of a script.

    Args:
        file_name: The name of the file in messages.

    Raises:
        InputError: A command line has quotes that do not match.
    """
    rtx = False
    for line_number, line, values in iterate_shell_lines(text):
        rtx = rtx or bool(_RTX_PATTERN.search(line))
        if not has_command_line(line):
            continue
        arguments = split_command(line, values, f"{file_name}, line {line_number}")
        options = parse_options(arguments)
        is_polygraphy = bool(_POLYGRAPHY_PATTERN.search(line)) or not _TRTEXEC_PATTERN.search(line) and not (
            _POLYGRAPHY_OPTIONS.isdisjoint(options))
        onnx_paths = [argument for argument in arguments if argument.endswith(".onnx") and not argument.startswith("-")]
        model = options["onnx"][-1] if options.get("onnx") else onnx_paths[0] if is_polygraphy and onnx_paths else ""
        yield CommandLine(line_number, POLYGRAPHY if is_polygraphy else TRTEXEC, options, model, is_polygraphy and rtx)


def parse_options(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Returns the values of each option in a list of arguments, by its name without dashes."""
    options: dict[str, list[str]] = {}
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        if not argument.startswith("--"):
            continue
        option, separator, value = argument[2:].partition("=")
        values = options.setdefault(option, [])
        values += [value] if separator else []
        while not separator and index < len(arguments) and not arguments[index].startswith("-"):
            if arguments[index] in _SHELL_OPERATORS:
                break
            values.append(arguments[index])
            index += 1
    return options


def constraint_notes(constraint: str, setting: str, condition: str) -> list[str]:
    """Returns a note on precisions of layers that TensorRT need not obey; empty if it obeys them.

    Args:
        constraint: obey, prefer, or another text if the precisions have no effect.
        setting: The tool and the option that sets the precisions, with a verb.
        condition: The options with which they have an effect.
    """
    if constraint == "prefer":
        return ["prefer allows TensorRT another precision where the requested one has no kernel; here the precisions "
                "are applied, as with obey"]
    return [] if constraint == "obey" else [
        f"{setting} only with {condition}, which is not set; here the precisions are applied"]


def refuse_strongly_typed_build(
        file: Path, reason: str = "its precisions are in the ONNX file that it names, not in the command") -> None:
    """Raises an error for a command that builds a strongly typed network, because such a command contains no
    precisions.

    Args:
        file: The file with the command.
        reason: The cause in the error message.

    Raises:
        InputError: Always.
    """
    raise InputError(f"{file.name} builds a strongly typed network", reason,
                     config_beside_text(file, "Open that file: --precision file uses its own precisions."))


def config_beside_text(file: Path, next_step: str) -> str:
    """Returns the next step that names the precision.json beside a file; ``next_step`` if there is none."""
    config_path = file.parent / "precision.json"
    return f"Name {config_path}, which is in the same folder." if config_path.is_file() else next_step


def has_quantized_model(command: CommandLine, network: Network, file: Path) -> bool:
    """Returns True if the ONNX file of a command contains Q/DQ. The file is the one in the command, or the opened
    network."""
    if network.source_model is not None:
        return True
    try:
        with open_regular_file(file.parent / command.model_path) as stream:
            return b"QuantizeLinear" in stream.read(_MAX_SCANNED_BYTES)
    except (InputError, OSError):  # only the command is imported, and its network may be on another machine
        return False


def parse_name_and_types(entry_text: str) -> tuple[str, Precision | None, bool]:
    """Parses an entry ``name:type``. The types of several outputs are joined by ``+``.

    Returns:
        The name; the precision, or None if there is none; True if all types are integers, which have no precision.
    """
    name, colon, types_text = entry_text.rpartition(":")
    precisions = {PRECISION_BY_NAME.get(type_name.lower()) for type_name in types_text.split("+")}
    precision = precisions.pop() if len(precisions) == 1 and colon else None
    are_integers = all(type_name.lower() in ("int32", "int64", "bool", "uint8") for type_name in types_text.split("+"))
    return name, precision, are_integers
