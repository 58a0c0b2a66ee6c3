"""The importers of trtexec and Polygraphy commands and of Python scripts. Both are read as text and never run.

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

A Python script with the TensorRT API may be a postprocess script of Polygraphy. A script that trt-tui exported contains
a table. Any other script gives one precision to the layers that it lists::

    for layer in network:
        if layer.name in ["/head/Conv", "/fc/Gemm"]:
            layer.precision = trt.float32

The names are literals, or a variable with a literal. Flags of the builder set the default precisions. A script with any
other statement that sets precisions, types of results, ranges or such flags is refused with the line.
"""

import ast
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER, BuilderOptions, BuilderOptionSpec, builder_option_specs
from trt_tui.core.importers.imported_settings import PRECISION_BY_NAME, ImportedSettings, apply_precision_flags
from trt_tui.core.network.model_editing import iterate_reachable
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import MAX_AMAX
from trt_tui.errors import InputError
from trt_tui.files.reading import MAX_SCRIPT_BYTES, MAX_TEXT_BYTES, open_regular_file, read_text
from trt_tui.formatting import find_similar_names, name_list_text, suggestion_question

UNREADABLE_SCRIPT_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
"""The errors of `parse_script` for a text that is not readable Python."""

_COLLECTION_TYPES = ("list", "tuple", "set", "frozenset")


def parse_script(text: str) -> ast.Module:
    """Parses a Python script.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: The text is not valid Python, or is nested too deep.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for numbers and escapes that newer releases of Python refuse
        return ast.parse(text)


def find_script_constants(tree: ast.Module) -> dict[str, Any]:
    """Returns the values of the constants of a script by name: variables that it assigns exactly once, with a
    literal."""
    changes: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            changes[node.arg] += 2
        elif isinstance(node, ast.Name):
            changes[node.id] += not isinstance(node.ctx, ast.Load)
        elif (
            isinstance(node, ast.Attribute | ast.Subscript)
            and isinstance(node.value, ast.Name)
            and (isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load))
        ):
            changes[node.value.id] += 2  # such as NAMES.append("/fc")
    constants: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and changes[target.id] == 1:
                try:
                    constants[target.id] = read_literal(node.value, {})
                except ValueError:  # a computed value is not a constant
                    continue
    return constants


def read_literal(expression: ast.expr, constants: Mapping[str, Any]) -> Any:
    """Returns the value of an expression: a literal, a name in ``constants``, or a collection or ``json.loads`` of
    literals.

    Raises:
        ValueError: The expression is none of them.
    """
    try:
        if isinstance(expression, ast.Name):
            return constants[expression.id]
        if isinstance(expression, ast.Call) and len(expression.args) == 1 and not expression.keywords:
            function, value = source_text(expression.func), ast.literal_eval(expression.args[0])
            if function not in (*_COLLECTION_TYPES, "json.loads"):
                raise ValueError(function)
            return json.loads(value) if function == "json.loads" else list(value)
        return ast.literal_eval(expression)
    except (KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def source_text(node: ast.AST) -> str:
    """Returns the beginning of the source text of a syntax node in one line."""
    try:
        return next(iter(ast.unparse(node).splitlines()), "")[:80]
    except RecursionError:
        return "a long expression"


_WORD_PART = re.compile(
    r"""'(?P<single>[^']*+)'|"(?P<double>(?:[^"\\]++|\\.)*+)"|\\(?P<escaped>.)|"""
    r"""(?P<plain>[^\s'"\\]++)""",
    re.S,
)
_SHELL_WORD = re.compile(rf"(?P<word>(?:{re.sub('P<[a-z]+>', ':', _WORD_PART.pattern)})++)|\S", re.S)
"""A word of a shell script, or the beginning of a quote or an escape that does not end."""

_ESCAPED_CHARACTER = re.compile(r'\\(["\\$`])')

TRTEXEC, POLYGRAPHY = "trtexec", "Polygraphy"

_CONSTRAINTS_OF_OPTIONS = {
    "strictTypeConstraints": "obey",
    "strictTypes": "obey",
    "strict-types": "obey",
    "obey-precision-constraints": "obey",
    "prefer-precision-constraints": "prefer",
}
"""Older options of trtexec and Polygraphy, with their meaning as values of ``--precisionConstraints``."""

CONSTRAINT_OPTIONS = ("precisionConstraints", "precision-constraints", *_CONSTRAINTS_OF_OPTIONS)

_POLYGRAPHY_PATTERN = re.compile(
    r"(?:\bpolygraphy|\$\{?POLYGRAPHY\b[^\s\"]*)\"?\s+(?:-\S+\s+)*(?:convert|run|debug\s+\w+)\b"
)
_TRTEXEC_PATTERN = re.compile(r"\btrtexec\b|\$\{?TRTEXEC\b")
_POLYGRAPHY_OPTIONS = frozenset(
    (
        "tf32",
        "layer-precisions",
        "precision-constraints",
        "calibration-cache",
        "calib-base-cls",
        "calibration-base-class",
        "trt-network-postprocess-script",
        "trt-npps",
        "strongly-typed",
    )
)
_RTX_PATTERN = re.compile(r"\bPOLYGRAPHY_USE_TENSORRT_RTX=[\"']?(?!0\b)\w")
_ASSIGNMENT_PATTERN = re.compile(r"^\s*(?:export\s+)?(\w+)=(?:\"([^\"]*)\"|'([^']*)'|(\S*))\s*$")
_VARIABLE_PATTERN = re.compile(r"\$\{(\w+)(?::-([^{}]*))?\}|\$(\w+)")
_SHELL_OPERATORS = ("&&", "||", "|", ";", "&")
_MAX_SCANNED_BYTES = 64 << 20
"""Number of bytes searched for Q/DQ. The nodes of an ONNX file precede its weights."""


def split_shell_words(line: str, location: str) -> list[str]:
    """Splits a line of a POSIX shell script into words. Comments are dropped, and variables are not expanded.

    Args:
        location: The position of the line in messages.

    Raises:
        InputError: A quote has no end.
    """

    def unquote(part: re.Match[str]) -> str:
        text = part[part.lastgroup or 0]
        return _ESCAPED_CHARACTER.sub(r"\1", text) if part.lastgroup == "double" else text

    words: list[str] = []
    for match in _SHELL_WORD.finditer(line):
        if match[0].startswith("#"):
            break
        if match["word"] is None:
            raise InputError(f"{location}: no command line", "a quote or an escape does not end", "Correct the quotes.")
        words.append(_WORD_PART.sub(unquote, match[0]))
    return words


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

    def find_last_option_value(self, *names: str) -> str:
        """Returns the last value of the first option among the given names that has one; "" if none has one."""
        return next((self.options[name][-1] for name in names if self.options.get(name)), "")

    @property
    def constraint_mode(self) -> str:
        """The effect of layer precisions in the build: "obey", "prefer", or another text for no effect."""
        older_values = [value for name, value in _CONSTRAINTS_OF_OPTIONS.items() if name in self.options]
        return older_values[0] if older_values else self.find_last_option_value(*CONSTRAINT_OPTIONS)


def has_command_line(text: str) -> bool:
    """Returns True if a text contains a trtexec or Polygraphy command, or consists only of options."""
    return bool(_TRTEXEC_PATTERN.search(text) or _POLYGRAPHY_PATTERN.search(text)) or text.lstrip().startswith("--")


def iterate_shell_lines(text: str) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yields each command line of a shell script: its line number, its text with continuation lines, and the variables
    assigned before.
    """
    values: dict[str, str] = {}
    lines = iter(enumerate(text.splitlines(), 1))
    for line_number, first_line in lines:
        parts = [first_line]
        while parts[-1].endswith("\\") and (following := next(lines, None)) is not None:
            parts[-1:] = [parts[-1][:-1], following[1].strip()]
        line = " ".join(parts)
        if (assignment := _ASSIGNMENT_PATTERN.match(line)) is not None:
            values[assignment[1]] = next(value for value in assignment.groups()[1:] if value is not None)
        if not line.lstrip().startswith("#"):
            yield line_number, line, values


def expand_and_split_command(line: str, values: Mapping[str, str], location: str) -> list[str]:
    """Replaces the variables in a command line by their values, and splits it into words.

    Raises:
        InputError: The line has quotes that do not match, or would have more than `MAX_TEXT_BYTES` characters.
    """
    total_length = len(line)

    def replace_variable(match: re.Match[str]) -> str:
        nonlocal total_length
        text = values.get(match[1] or match[3] or "", match[2] or match[0])
        total_length += len(text)
        if total_length > MAX_TEXT_BYTES:
            raise InputError(
                f"{location}: a line is too long",
                f"with its variables it has over {MAX_TEXT_BYTES:,} characters",
                "Write the command out.",
            )
        return text

    return split_shell_words(_VARIABLE_PATTERN.sub(replace_variable, line), location)


def parse_commands(text: str, file_name: str) -> Iterator[CommandLine]:
    """Yields the trtexec and Polygraphy commands of a script.

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
        arguments = expand_and_split_command(line, values, f"{file_name}, line {line_number}")
        options = parse_options(arguments)
        is_polygraphy = (
            bool(_POLYGRAPHY_PATTERN.search(line))
            or not _TRTEXEC_PATTERN.search(line)
            and not (_POLYGRAPHY_OPTIONS.isdisjoint(options))
        )
        onnx_paths = [argument for argument in arguments if argument.endswith(".onnx") and not argument.startswith("-")]
        model = options["onnx"][-1] if options.get("onnx") else onnx_paths[0] if is_polygraphy and onnx_paths else ""
        yield CommandLine(line_number, POLYGRAPHY if is_polygraphy else TRTEXEC, options, model, is_polygraphy and rtx)


def parse_options(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Parses command arguments into the values of each option, by its name without dashes."""
    options: dict[str, list[str]] = {}
    open_values: list[str] | None = None  # those of the last option, as long as its values follow
    for argument in arguments:
        if argument.startswith("--"):
            option, separator, value = argument[2:].partition("=")
            values = options.setdefault(option, [])
            values += [value] if separator else []
            open_values = None if separator else values
        elif argument.startswith("-") or argument in _SHELL_OPERATORS:
            open_values = None
        elif open_values is not None:
            open_values.append(argument)
    return options


def constraint_notes(constraint: str, setting: str, condition: str) -> list[str]:
    """Returns a note that TensorRT need not obey layer precisions; [] if it obeys them.

    Args:
        constraint: "obey", "prefer", or another text if the precisions have no effect.
        setting: The beginning of the note: the tool and the option that sets the precisions, with a verb.
        condition: The options with which the precisions have an effect.
    """
    if constraint == "prefer":
        return [
            "prefer allows TensorRT another precision where the requested one has no kernel; here the precisions "
            "are applied, as with obey"
        ]
    return (
        []
        if constraint == "obey"
        else [f"{setting} only with {condition}, which is not set; here the precisions are applied"]
    )


def refuse_strongly_typed_build(
    file: Path, reason: str = "its precisions are in the ONNX file that it names, not in the command"
) -> None:
    """Raises the error for a command that builds a strongly typed network. Such a command contains no precisions.

    Args:
        file: The file with the command.
        reason: The cause for the error message.

    Raises:
        InputError: Always.
    """
    raise InputError(
        f"{file.name} builds a strongly typed network",
        reason,
        adjacent_config_text(file, "Open that file: --precision file uses its own precisions."),
    )


def adjacent_config_text(file: Path, next_step: str) -> str:
    """Returns the advice to read the precision.json beside a file; ``next_step`` if there is no such file."""
    config_path = file.parent / "precision.json"
    return f"Name {config_path}, which is in the same folder." if config_path.is_file() else next_step


def has_quantized_model(command: CommandLine, network: Network, file: Path) -> bool:
    """Returns True if the ONNX file of a command has Q/DQ nodes. If the command names no file, it is the opened
    network.
    """
    if network.source_model is not None:
        return True
    try:
        with open_regular_file(file.parent / command.model_path) as stream:
            return b"QuantizeLinear" in stream.read(_MAX_SCANNED_BYTES)
    except (InputError, OSError):  # only the command is imported, and its network may be on another machine
        return False


def parse_name_and_types(entry_text: str) -> tuple[str, Precision | None, bool]:
    """Parses an entry ``name:type`` of a precision list. Types of several outputs are joined by ``+``.

    Returns:
        The name, the precision (None if there is none), and True if all types are integers, which have no precision.
    """
    name, colon, types_text = entry_text.rpartition(":")
    precisions = {PRECISION_BY_NAME.get(type_name.lower()) for type_name in types_text.split("+")}
    precision = precisions.pop() if len(precisions) == 1 and colon else None
    are_integers = all(type_name.lower() in ("int32", "int64", "bool", "uint8") for type_name in types_text.split("+"))
    return name, precision, are_integers


_FLOAT_FLAGS, _QUANTIZED_FLAGS = ("FP16", "BF16"), ("INT8", "FP8", "INT4")
_CONSTRAINT_FLAGS = {
    "OBEY_PRECISION_CONSTRAINTS": "obey",
    "STRICT_TYPES": "obey",
    "PREFER_PRECISION_CONSTRAINTS": "prefer",
}
_FLAGS = (*_FLOAT_FLAGS, *_QUANTIZED_FLAGS, "TF32", *_CONSTRAINT_FLAGS)
"""The members of ``trt.BuilderFlag`` that are read."""

_SETTERS = ("precision", "dynamic_range", "set_output_type", "set_dynamic_range")
"""The attributes and methods of TensorRT's layers and tensors that set a precision, a type or a range."""

_LOOP_EXITS = (ast.Break, ast.Continue, ast.Return)


def is_tensorrt_script(text: str) -> bool:
    """Returns True if a text is a Python script that defines a function or sets precisions.

    A postprocess script of Polygraphy defines a function. The file name does not matter.
    """
    first_line = next(iter(text.splitlines()), "")
    if (
        not any(word in text for word in ("def ", *_SETTERS, "BuilderFlag."))
        or first_line.startswith("#!")
        and ("python" not in first_line)
    ):
        return False
    try:
        tree = parse_script(text)
    except UNREADABLE_SCRIPT_ERRORS:
        return "def postprocess(" in text
    return any(isinstance(statement, ast.FunctionDef) for statement in tree.body) or bool(find_setter_lines(tree))


def read_tensorrt_script(
    text: str, network: Network, file: Path, function_name: str = "postprocess", *, must_set: bool = True
) -> ImportedSettings:
    """Reads the layer precisions that a Python script with the TensorRT API sets.

    Args:
        function_name: The function that Polygraphy calls. If the script lacks the function, or the function sets
            nothing, the whole script is read.
        must_set: True to refuse a script that sets nothing.

    Raises:
        InputError: The text is not valid Python, sets nothing, has a statement that cannot be read, or builds a
            strongly typed network.
    """
    try:
        tree = parse_script(text)
    except UNREADABLE_SCRIPT_ERRORS as error:
        cause = (
            f"line {error.lineno}: {error.msg}"
            if isinstance(error, SyntaxError)
            else (str(error) or "it is nested too deep")
        )
        raise InputError(
            f"{file.name} is not readable Python code",
            cause,
            "Name a postprocess script, a trtexec line, or a precision.json.",
        ) from None
    constants = find_script_constants(tree)
    settings = _read_exported_script(tree, constants, network, file)
    if settings is not None:
        return settings
    functions = _find_called_functions(tree, function_name)
    is_postprocess = any(map(find_setter_lines, functions))
    reader = _ScriptReader(tree, constants)
    for root in functions if is_postprocess else [tree]:
        reader.read_statements(root)
    settings = ImportedSettings("a Polygraphy script" if is_postprocess else "a TensorRT script")
    if reader.precision is not None:
        settings.layer_precisions = dict.fromkeys(reader.layer_names, reader.precision)
        settings.output_precisions = dict.fromkeys(reader.output_layer_names, reader.precision)
        settings.optional_names = set(reader.layer_names)
    is_empty = must_set and not settings.layer_precisions and not reader.has_precision_flags
    if (reader.unread_lines or is_empty) and any(
        isinstance(node, ast.Attribute) and node.attr == "STRONGLY_TYPED" for node in ast.walk(tree)
    ):
        refuse_strongly_typed_build(file, "its precisions are in the ONNX file that it reads, not in the script")
    if reader.unread_lines:
        lines = [f"line {number}: {line}" for number, line in sorted(reader.unread_lines.items())]
        raise InputError(
            f"{file.name} sets precisions in a way that is not read",
            name_list_text(lines, 3),
            "List the layers (if layer.name in [...]: layer.precision = trt.float32), or name a "
            "trtexec line or a precision.json.",
        )
    if is_empty:
        raise InputError(
            f"{file.name} sets no precisions that could be read on {network.name}",
            "it sets layer.precision of no layer",
            "Name a postprocess script, a trtexec line, or a precision.json.",
        )
    reader.set_default_precisions(settings)
    return settings


def _read_exported_script(
    tree: ast.Module, constants: Mapping[str, Any], network: Network, file: Path
) -> ImportedSettings | None:
    """Reads the settings of a script that trt-tui exported; returns None for any other script.

    The script has a table of layers. The other settings are in the command in its heading.
    """
    layer_table, flags = constants.get("TOLD"), constants.get("FLAGS")
    settings, heading = ImportedSettings("a Polygraphy script of trt-tui"), ast.get_docstring(tree) or ""
    try:
        command = next((item for item in parse_commands(heading, "") if item.tool == POLYGRAPHY), None)
    except InputError:  # the user edited the script
        command = None
    options = command.options if command is not None else {}
    settings.tf32 = "tf32" in options
    if cache := options.get("calibration-cache"):
        settings.cache_path = file.parent / cache[-1]
    if not isinstance(layer_table, Mapping) or not isinstance(flags, list) or "precisions" not in layer_table:
        return None
    try:
        settings.layer_precisions = {
            str(name): Precision(precision_name) for name, precision_name in layer_table["precisions"].items()
        }
        settings.output_precisions = {
            str(name): Precision(precision_name) for name, precision_name in layer_table.get("output_types", {}).items()
        }
        settings.ranges = {
            str(name): abs(float(amax))
            for name, amax in layer_table.get("ranges", {}).items()
            if abs(float(amax)) <= MAX_AMAX
        }
    except (ValueError, TypeError, AttributeError):  # the user edited the script: it is read like any other
        return None
    float_types = [item for item in (Precision.FP16, Precision.BF16) if item.value in flags]
    settings.other = float_types[0] if float_types else Precision.FP32
    settings.quantized = Precision.INT8 if Precision.INT8.value in flags else settings.other
    settings.restore_omitted_settings(constants.get(OMISSION_MARKER))
    return settings


def _find_called_functions(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    """Finds a function of a script and the functions that it calls; [] if the script lacks it."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return (
        [
            functions[called]
            for called in iterate_reachable(
                [name],
                lambda caller: [
                    node.id
                    for node in ast.walk(functions[caller])
                    if isinstance(node, ast.Name) and node.id in functions
                ],
            )
        ]
        if name in functions
        else []
    )


class _ScriptReader:
    """A reader of the statements of a Python script that sets precisions.

    Attributes:
        layer_names: The names of the layers whose precision the script sets.
        output_layer_names: The names of the layers whose types of results the script sets.
        precision: The precision of these layers; None if there are none.
        flags: The members of ``trt.BuilderFlag`` that the script sets (True) or clears (False).
        unread_lines: The statements that the reader cannot read, by line.
    """

    def __init__(self, tree: ast.Module, constants: Mapping[str, Any]) -> None:
        self._constants = constants
        self._layer_texts = {
            source_text(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in (*_SETTERS, "name")
        }
        self.layer_names: list[str] = []
        self.output_layer_names: list[str] = []
        self.precision: Precision | None = None
        self.flags: dict[str, bool] = {}
        self.unread_lines: dict[int, str] = {}

    def read_statements(self, root: ast.AST) -> None:
        """Reads all statements of a script or function.

        Statements in a loop with an exit, or under a condition that does not compare layer names, cannot be read.
        """
        pending: list[tuple[ast.AST, tuple[str, list[str]] | None, bool]] = [(root, None, True)]
        while pending:
            node, condition, is_readable = pending.pop()
            children = [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case)
            ]
            if isinstance(node, ast.If):
                names = self._read_name_condition(node.test)
                is_gpu_check = "platform_has_fast_" in source_text(node.test)
                is_branch_readable = is_readable and (is_gpu_check or names is not None and condition is None)
                pending += [(child, None, False) for child in reversed(node.orelse)]
                pending += [(child, names or condition, is_branch_readable) for child in reversed(node.body)]
                continue
            if isinstance(node, ast.For | ast.While) and find_setter_lines(node):
                self.unread_lines |= {
                    child.lineno: f"{source_text(child)} in a loop over layers"
                    for child in ast.walk(node)
                    if isinstance(child, _LOOP_EXITS)
                }
            is_readable = is_readable and not isinstance(node, ast.ExceptHandler | ast.match_case)
            pending += [(child, condition, is_readable) for child in reversed(children)]
            if (
                not children
                and isinstance(node, ast.stmt)
                and self._may_set_precision(node)
                and not (is_readable and self._read_setter(node, condition))
            ):
                self.unread_lines[node.lineno] = source_text(node)

    def _may_set_precision(self, statement: ast.stmt) -> bool:
        """Returns True if a statement may set a precision, directly or in a function that it calls with a layer."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        return (
            bool(find_setter_lines(statement))
            or isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id != "print"
            and any(source_text(argument) in self._layer_texts for argument in call.args)
        )

    def _read_name_condition(self, test: ast.expr) -> tuple[str, list[str]] | None:
        """Reads a condition on the name of a layer; returns the source text of the layer, and the names.

        Returns None unless the form is ``layer.name in [...]`` or ``layer.name == "..."``.
        """
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
            parts = [self._read_name_condition(value) for value in test.values]
            names = [name for part in parts if part is not None for name in part[1]]
            return (
                (parts[0][0], names)
                if parts[0] is not None and all(part is not None and part[0] == parts[0][0] for part in parts)
                else None
            )
        if not (
            isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and isinstance(test.left, ast.Attribute)
            and test.left.attr == "name"
        ):
            return None
        try:
            value = read_literal(test.comparators[0], self._constants)
        except ValueError:
            return None
        if isinstance(test.ops[0], ast.Eq) and isinstance(value, str):
            value = [value]
        elif not isinstance(test.ops[0], ast.In) or not isinstance(value, list | tuple | set | dict):
            return None
        return (source_text(test.left.value), list(value)) if all(isinstance(name, str) for name in value) else None

    def _read_setter(self, statement: ast.stmt, condition: tuple[str, list[str]] | None) -> bool:
        """Reads a statement that sets a precision, an output type or a flag; returns False if it cannot be read.

        Args:
            condition: The layer and the names of the condition above the statement; None if there is none.
        """
        call = statement.value if isinstance(statement, ast.Expr) else None
        if flags := [node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute) and _is_flag(node)]:
            is_or = (
                isinstance(statement, ast.AugAssign)
                and isinstance(statement.op, ast.BitOr)
                and not any(isinstance(node, ast.IfExp) for node in ast.walk(statement))
            )
            method = (
                call.func.attr
                if isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and [type(argument) for argument in call.args] == [ast.Attribute]
                else ""
            )
            self.flags |= dict.fromkeys(flags, method != "clear_flag")
            return condition is None and (is_or or method in ("set_flag", "clear_flag"))
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(call, ast.Call) and len(call.args) == 2:
            target, value = call.func, call.args[1]
        else:
            return False
        precision = PRECISION_BY_NAME.get(source_text(value).rpartition(".")[2].lower())
        if (
            precision is None
            or self.precision not in (None, precision)
            or condition is None
            or not isinstance(target, ast.Attribute)
            or target.attr not in ("precision", "set_output_type")
            or source_text(target.value) != condition[0]
        ):
            return False
        self.precision = precision
        (self.layer_names if target.attr == "precision" else self.output_layer_names).extend(condition[1])
        return True

    @property
    def has_precision_flags(self) -> bool:
        """True if the script sets or clears a builder flag that allows a precision."""
        return not self.flags.keys().isdisjoint((*_FLOAT_FLAGS, *_QUANTIZED_FLAGS))

    def set_default_precisions(self, settings: ImportedSettings) -> None:
        """Sets the default precisions from the builder flags, or from the precision of the layers."""
        flags = [name for name, is_set in self.flags.items() if is_set]
        if self.has_precision_flags:
            apply_precision_flags(
                settings,
                *([name.lower() for name in names if name in flags] for names in (_FLOAT_FLAGS, _QUANTIZED_FLAGS)),
            )
            settings.tf32 = self.flags.get("TF32", True)
            if settings.tf32:
                settings.notes.append(
                    "FP32 layers may use TF32, which TensorRT allows unless the script clears BuilderFlag.TF32"
                )
        else:
            settings.quantized = self.precision if self.precision not in (None, Precision.FP32) else Precision.FP16
            settings.other = Precision.BF16 if self.precision is Precision.BF16 else Precision.FP16
            other_text = f" in {settings.other.label}" if settings.quantized is not settings.other else ""
            settings.notes.append(
                f"it does not set the other layers, which are read as {settings.quantized.label}{other_text}; "
                "the flags of a build command set them (--int8 --fp16)"
            )
        constraints = {value for flag, value in _CONSTRAINT_FLAGS.items() if flag in flags}
        if settings.layer_precisions and (self.has_precision_flags or constraints):
            settings.notes += constraint_notes(
                max(constraints, default=""),
                "TensorRT applies layer.precision",
                "BuilderFlag.OBEY_PRECISION_CONSTRAINTS or PREFER_PRECISION_CONSTRAINTS",
            )


def find_setter_lines(tree: ast.AST) -> list[int]:
    """Finds the lines of a script that set a precision, an output type, a range or a builder flag."""
    return sorted({node.lineno for node in ast.walk(tree) if isinstance(node, ast.expr) and _is_setter(node)})


def _is_flag(node: ast.Attribute) -> bool:
    return node.attr in _FLAGS and source_text(node.value).endswith("BuilderFlag")


def _is_setter(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and source_text(node.func) == "setattr":
        return any(isinstance(argument, ast.Constant) and argument.value in _SETTERS for argument in node.args)
    return isinstance(node, ast.Attribute) and (
        _is_flag(node) or node.attr in _SETTERS and (isinstance(node.ctx, ast.Store) or node.attr.startswith("set_"))
    )


SCRIPT_OPTIONS = ("trt-network-postprocess-script", "trt-npps")
_DATA_LOADER_OPTIONS = ("data-loader-script", "load-inputs", "load-input-data", "data-loader-backend-module")
_CONFIG_SCRIPT_OPTIONS = ("trt-config-script", "trt-config-postprocess-script", "trt-config-func-name")


@dataclass(frozen=True)
class _PrecisionOptionNames:
    """The names of the options with which a tool sets precisions.

    Attributes:
        strongly_typed: The option of a strongly typed build.
        quantized_flags: The options that allow quantized types.
        precision_lists: The option for layer precisions, and the option for layer output types.
        cache: The option for the calibration cache.
        constraint_texts: The verb and the options for the note that layer precisions have no effect.
        others: The other options that set precisions, and the options that are only read.
    """

    strongly_typed: str
    quantized_flags: tuple[str, ...]
    precision_lists: tuple[str, ...]
    cache: str
    constraint_texts: tuple[str, str]
    others: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def precision_options(self) -> tuple[str, ...]:
        return (
            "fp16",
            "bf16",
            *self.quantized_flags,
            self.strongly_typed,
            *self.precision_lists,
            self.cache,
            *self.others[0],
        )


COMMAND_FORMS = {
    TRTEXEC: _PrecisionOptionNames(
        "stronglyTyped",
        ("int8", "fp8", "int4"),
        ("layerPrecisions", "layerOutputTypes"),
        "calib",
        ("trtexec applies precisions and types of layers", "--precisionConstraints=obey or prefer"),
        (("best",), ("noTF32", "onnx")),
    ),
    POLYGRAPHY: _PrecisionOptionNames(
        "strongly-typed",
        ("int8", "fp8"),
        ("layer-precisions",),
        "calibration-cache",
        ("Polygraphy applies precisions of layers", "--precision-constraints obey or prefer"),
        (
            SCRIPT_OPTIONS,
            (*_DATA_LOADER_OPTIONS, *_CONFIG_SCRIPT_OPTIONS, "tf32", "calib-base-cls", "calibration-base-class"),
        ),
    ),
}
"""The options of each tool."""


def read_command_settings(command: CommandLine, network: Network, file: Path) -> ImportedSettings:
    """Reads the precisions that a command sets by its options and by its postprocess scripts.

    Raises:
        InputError: The command builds a strongly typed network, or a script cannot be read.
    """
    form, settings = COMMAND_FORMS[command.tool], ImportedSettings(f"a command of {command.tool}")
    if form.strongly_typed in command.options:
        refuse_strongly_typed_build(file)
    if command.uses_rtx:
        refuse_strongly_typed_build(file, "TensorRT-RTX supports no other, and Polygraphy passes no precision to it")
    options = {*command.options, *(("fp16", "int8") if command.tool == TRTEXEC and "best" in command.options else ())}
    apply_precision_flags(
        settings, *([flag for flag in flags if flag in options] for flags in (("fp16", "bf16"), form.quantized_flags))
    )
    settings.tf32 = "noTF32" not in options if command.tool == TRTEXEC else "tf32" in options
    if settings.tf32 and command.tool == TRTEXEC:
        settings.notes.append("FP32 layers may use TF32, as in trtexec without --noTF32")
    for option, precisions in zip(
        form.precision_lists, (settings.layer_precisions, settings.output_precisions), strict=False
    ):
        _read_precision_list(command, option, network, precisions, settings.unread_lines)
    for script in (script for option in SCRIPT_OPTIONS for script in command.options.get(option, ())):
        _add_script_settings(settings, script, network, file)
    if settings.layer_precisions or settings.output_precisions and command.tool == TRTEXEC:
        settings.notes += constraint_notes(command.constraint_mode, *form.constraint_texts)
    if cache := command.find_last_option_value(form.cache):
        settings.cache_path = file.parent / cache
    if settings.quantized is Precision.INT8:
        _add_range_notes(settings, command, network, file)
    if command.tool == POLYGRAPHY and not command.options.keys().isdisjoint(_CONFIG_SCRIPT_OPTIONS):
        settings.unread_lines.append("a script that changes builder settings: its effect is unknown")
    read_options = (*form.precision_options, *form.others[1], *CONSTRAINT_OPTIONS)
    if other_options := [f"--{option}" for option in command.options if option not in read_options]:
        settings.unread_lines.append(f"{name_list_text(other_options, 8)}: no precision settings")
    return settings


def _add_range_notes(settings: ImportedSettings, command: CommandLine, network: Network, file: Path) -> None:
    """Adds a note on the source of the INT8 ranges if the command names no calibration cache."""
    if has_quantized_model(command, network, file):
        if network.source_model is None:
            settings.unread_lines.append(
                f"{Path(command.model_path).name} has its own Q/DQ nodes, which set the INT8 layers and their ranges; "
                "open it instead of this network"
            )
    elif settings.cache_path is None and command.tool == TRTEXEC:
        option = "--best" if "best" in command.options else "--int8"
        settings.notes.append(
            f"trtexec invents the INT8 ranges for {option} without --calib: its engine is valid "
            "for timing only. Here ranges are measured on the data"
        )
    elif settings.cache_path is None and not settings.ranges:
        data_text = (
            "on random inputs, for it names no --calibration-cache and no data loader"
            if command.options.keys().isdisjoint(_DATA_LOADER_OPTIONS)
            else "on the samples of its data loader"
        )
        settings.notes.append(f"Polygraphy calibrates INT8 {data_text}. Here ranges are measured on the data")


def _read_precision_list(
    command: CommandLine, option: str, network: Network, precisions: dict[str, Precision], unread_lines: list[str]
) -> None:
    """Reads the ``name:type`` entries of an option. Those of trtexec are separated by commas and may have wildcards."""
    names, entries = [layer.name for layer in network.layers], command.options.get(option, ())
    is_trtexec = command.tool == TRTEXEC
    default_precision: Precision | None = None
    for entry in (
        filter(None, (part.strip().strip("'\"") for part in ",".join(entries).split(","))) if is_trtexec else entries
    ):
        name, precision, are_integers = parse_name_and_types(entry)
        if precision is None:
            if not are_integers:
                unread_lines.append(
                    f"--{option} {entry!r}: not NAME:TYPE with a type of {', '.join(PRECISION_BY_NAME)}"
                )
        elif name == "*" and is_trtexec:
            default_precision = precision
        elif is_trtexec and "*" in name and name not in names and "(Unnamed Layer*" not in name:
            matching_names = [*filter(_compile_wildcard(name).fullmatch, names)]
            precisions.update(dict.fromkeys(matching_names, precision))
            if not matching_names:
                unread_lines.append(f"--{option} {entry!r}: no layer matches")
        else:
            precisions[name] = precision
    if default_precision is not None:
        precisions.update({name: default_precision for name in names if name not in precisions})


def _compile_wildcard(wildcard: str) -> re.Pattern[str]:
    """Returns a pattern in which each ``*`` matches any text.

    Matching takes linear time: the first match of each part is final, because it leaves the most text for the parts
    after it.
    """
    first, *parts, last = map(re.escape, wildcard.split("*"))
    return re.compile(first + "".join(f"(?>.*?{part})" for part in parts) + f".*{last}", re.DOTALL)


def _add_script_settings(settings: ImportedSettings, script_file: str, network: Network, file: Path) -> None:
    """Adds the precisions and ranges of a postprocess script to the settings of the command.

    Args:
        script_file: The path in the command, optionally with a function after a colon.

    Raises:
        InputError: The script does not exist or cannot be read.
    """
    script_name, _, function_name = (
        script_file.rpartition(":") if not script_file.endswith(".py") else (script_file, "", "")
    )
    path = file.parent / (script_name or script_file)
    if not path.is_file():
        raise InputError(
            f"{file.name} names the script {script_name or script_file}, which is not there",
            "the precisions of layers are in that script",
            f"Put it beside {file.name}, or name the script itself with --config.",
        )
    script_settings = read_tensorrt_script(
        read_text(path, max_bytes=MAX_SCRIPT_BYTES), network, path, function_name or "postprocess", must_set=False
    )
    settings.layer_precisions.update(script_settings.layer_precisions)
    settings.optional_names |= script_settings.optional_names
    settings.output_precisions.update(script_settings.output_precisions)
    settings.ranges.update(script_settings.ranges)
    settings.unread_lines += [f"{path.name}: {line}" for line in script_settings.unread_lines]
    settings.excluded_ranges |= script_settings.excluded_ranges


def read_builder_options(text: str) -> BuilderOptions:
    """Reads builder options from trtexec arguments, such as ``--refit --memPoolSize=workspace:512``.

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
                _OTHER_WAYS.get(
                    option.removeprefix("--"),
                    f"Use {', '.join(specs)}, or --profile=N with {', '.join(_SHAPE_BOUNDS)}.",
                ),
            )
        else:
            name, spec = specs[option]
            if (value := _parse_builder_value(spec, value_text)) is None:
                choices = f", with {' or '.join(spec.choices)}" if spec.choices else ""
                raise InputError(
                    f"--trtexec: {argument} is not valid",
                    f"the form is {spec.trtexec.format('VALUE')}{choices}",
                    "Write it as trtexec takes it.",
                )
            values[name] = (*values.get(name, ()), value) if spec.value_kind == "files" else value
    if "0" in shapes_by_profile:
        raise InputError(
            "--trtexec: the shapes of the first profile are those of --shapes",
            "",
            "Use --shapes, or write --profile=1 before the shapes of a further profile.",
        )
    if empty := [number for number, shapes in shapes_by_profile.items() if not shapes]:
        raise InputError(
            f"--trtexec: --profile={empty[0]} has no shapes",
            "",
            f"Write {', '.join(_SHAPE_BOUNDS)} behind it, or leave it out.",
        )
    return BuilderOptions(**values, profiles=tuple(map(_profile_text, shapes_by_profile.values())))


_SHAPE_BOUNDS = ("--minShapes", "--optShapes", "--maxShapes")
_OTHER_WAYS = {
    **dict.fromkeys(
        (*COMMAND_FORMS[TRTEXEC].precision_options, *CONSTRAINT_OPTIONS, "noTF32"),
        "The config sets precisions: give --precision, or write the command of trtexec to a file and give "
        "--config FILE.",
    ),
    "onnx": "Leave it out: MODEL is the network.",
    "shapes": "Use --shapes of trt-tui.",
    "saveEngine": "Use trt-tui build with -o model.engine.",
    "loadEngine": "Use trt-tui compare with --engine FILE.",
    "workspace": "Use --memPoolSize=workspace:MIB.",
    "plugins": "Use --staticPlugins=LIB.so.",
}
"""The next step for an option of trtexec that is not one of `BuilderOptions`."""
_MIB_BY_SUFFIX = {"B": 2.0**-20, "K": 2.0**-10, "M": 1, "": 1, "G": 1 << 10}
"""The MiB of a size with one of the suffixes of trtexec."""


def _profile_text(shape_texts: Mapping[str, str]) -> str:
    """Returns an optimization profile in the form of ``--shapes``. Missing minimum, optimum or maximum shapes are
    copied from another.
    """
    default = next(
        (text for bound in ("--optShapes", "--maxShapes", *_SHAPE_BOUNDS) if (text := shape_texts.get(bound))), ""
    )
    bounds = [
        dict(entry.rpartition(":")[::2] for entry in re.split(r"(?<=\d),", shape_texts.get(bound) or default))
        for bound in _SHAPE_BOUNDS
    ]
    return ",".join(
        ":".join((name, *(shapes.get(name, "") for shapes in bounds)))
        for name in {**bounds[1], **bounds[0], **bounds[2]}
    )


def _parse_builder_value(spec: BuilderOptionSpec, text: str) -> Any:
    """Parses the value of a builder option for its field in `BuilderOptions`; returns None if it is not valid."""
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
