"""The importer of Python scripts with the TensorRT API, such as Polygraphy postprocess scripts. Scripts are read as
text and never run.

A script from trt-tui contains a table, which is read. Any other script gives one precision to layers that it lists::

    for layer in network:
        if layer.name in ["/head/Conv", "/fc/Gemm"]:
            layer.precision = trt.float32

The names are literals, or a variable with a literal. Flags of the builder set the default precisions. A script with any
other statement that sets precisions, types of results, ranges or such flags is refused with the line.
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER
from trt_tui.core.importers.command_lines import (
    POLYGRAPHY,
    PRECISION_BY_NAME,
    constraint_notes,
    parse_commands,
    refuse_strongly_typed_build,
)
from trt_tui.core.importers.imported_settings import ImportedSettings, apply_precision_flags
from trt_tui.core.importers.python_scripts import (
    UNREADABLE_SCRIPT_ERRORS,
    find_constants,
    parse_script,
    read_literal,
    source_text,
)
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import MAX_AMAX
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

_PRECISION_BY_NAME = {**PRECISION_BY_NAME, "FLOAT": Precision.FP32, "HALF": Precision.FP16, "BF16": Precision.BF16,
                      "INT8": Precision.INT8, "FP8": Precision.FP8, "INT4": Precision.INT4}

_FLOAT_FLAGS, _QUANTIZED_FLAGS = ("FP16", "BF16"), ("INT8", "FP8", "INT4")
_CONSTRAINT_FLAGS = {"OBEY_PRECISION_CONSTRAINTS": "obey", "STRICT_TYPES": "obey",
                     "PREFER_PRECISION_CONSTRAINTS": "prefer"}
_FLAGS = (*_FLOAT_FLAGS, *_QUANTIZED_FLAGS, "TF32", *_CONSTRAINT_FLAGS)
"""The members of ``trt.BuilderFlag`` that are read."""

_SETTERS = ("precision", "dynamic_range", "set_output_type", "set_dynamic_range")
"""The attributes and methods of TensorRT's layers and tensors that set a precision, a type or a range."""

_LOOP_EXITS = (ast.Break, ast.Continue, ast.Return)


def is_tensorrt_script(text: str) -> bool:
    """Returns True if a text is Python with a function, such as a postprocess script, or Python that sets precisions.

    The file name does not matter.
    """
    first_line = next(iter(text.splitlines()), "")
    if not any(word in text for word in ("def ", *_SETTERS, "BuilderFlag.")) or first_line.startswith("#!") and (
            "python" not in first_line):
        return False
    try:
        tree = parse_script(text)
    except UNREADABLE_SCRIPT_ERRORS:
        return "def postprocess(" in text
    return any(isinstance(statement, ast.FunctionDef) for statement in tree.body) or bool(find_setter_lines(tree))


def read_tensorrt_script(text: str, network: Network, file: Path, function_name: str = "postprocess", *,
                           must_set: bool = True) -> ImportedSettings:
    """Reads the precisions that a script sets for the nodes of a network.

    Args:
        function_name: The function that Polygraphy calls. If the script lacks it, or it sets nothing, the whole script
            is read.
        must_set: True if a script that sets nothing is refused.

    Raises:
        InputError: The text is not valid Python, sets nothing, has a statement that cannot be read, or builds a
            strongly typed network.
    """
    try:
        tree = parse_script(text)
    except UNREADABLE_SCRIPT_ERRORS as error:
        cause = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else (
            str(error) or "it is nested too deep")
        raise InputError(f"{file.name} is not readable Python code", cause,
                         "Name a postprocess script, a trtexec line, or a precision.json.") from None
    constants = find_constants(tree)
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
            isinstance(node, ast.Attribute) and node.attr == "STRONGLY_TYPED" for node in ast.walk(tree)):
        refuse_strongly_typed_build(file, "its precisions are in the ONNX file that it reads, not in the script")
    if reader.unread_lines:
        lines = [f"line {number}: {line}" for number, line in sorted(reader.unread_lines.items())]
        raise InputError(f"{file.name} sets precisions in a way that is not read", name_list_text(lines, 3),
                         "List the layers (if layer.name in [...]: layer.precision = trt.float32), or name a "
                         "trtexec line or a precision.json.")
    if is_empty:
        raise InputError(f"{file.name} sets no precisions that could be read on {network.name}",
                         "it sets layer.precision of no layer",
                         "Name a postprocess script, a trtexec line, or a precision.json.")
    reader.set_default_precisions(settings)
    return settings


def _read_exported_script(tree: ast.Module, constants: Mapping[str, Any], network: Network,
                          file: Path) -> ImportedSettings | None:
    """Reads the settings of a script that trt-tui exported; None for any other script.

    The script contains a table of layers. The command in its heading contains the other settings.
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
            str(name): Precision(precision_name)
            for name, precision_name in layer_table["precisions"].items()
        }
        settings.output_precisions = {
            str(name): Precision(precision_name)
            for name, precision_name in layer_table.get("output_types", {}).items()
        }
        settings.ranges = {str(name): abs(float(amax)) for name, amax in layer_table.get("ranges", {}).items()
                           if abs(float(amax)) <= MAX_AMAX}
    except (ValueError, TypeError, AttributeError):  # the user edited the script: it is read like any other
        return None
    float_types = [item for item in (Precision.FP16, Precision.BF16) if item.value in flags]
    settings.other = float_types[0] if float_types else Precision.FP32
    settings.quantized = Precision.INT8 if Precision.INT8.value in flags else settings.other
    settings.restore_omitted_settings(constants.get(OMISSION_MARKER))
    return settings


def _find_called_functions(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    """Finds a function of a script, and the functions that it names; empty if the script lacks it."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    called: dict[str, ast.FunctionDef] = {}
    pending = [name]
    while pending:
        function = functions.get(pending.pop())
        if function is not None and function.name not in called:
            called[function.name] = function
            pending += [node.id for node in ast.walk(function) if isinstance(node, ast.Name)]
    return list(called.values())


class _ScriptReader:
    """A reader of a script's statements.

    Attributes:
        layer_names: The names of the layers whose precision the script sets.
        output_layer_names: The names of the layers whose types of results the script sets.
        precision: The precision of these layers; None if there are none.
        flags: The members of ``trt.BuilderFlag`` that the script sets (True) or clears (False).
        unread_lines: The statements that the reader cannot read, by line.
    """

    def __init__(self, tree: ast.Module, constants: Mapping[str, Any]) -> None:
        self._constants = constants
        self._layer_texts = {source_text(node.value) for node in ast.walk(tree)
                             if isinstance(node, ast.Attribute) and node.attr in (*_SETTERS, "name")}
        self.layer_names: list[str] = []
        self.output_layer_names: list[str] = []
        self.precision: Precision | None = None
        self.flags: dict[str, bool] = {}
        self.unread_lines: dict[int, str] = {}

    def read_statements(self, root: ast.AST) -> None:
        """Reads all statements of a script or function.

        A statement below a condition that is not a list of names, or beside the exit of a loop, cannot be read.
        """
        pending: list[tuple[ast.AST, tuple[str, list[str]] | None, bool]] = [(root, None, True)]
        while pending:
            node, condition, is_readable = pending.pop()
            children = [child for child in ast.iter_child_nodes(node)
                        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case)]
            if isinstance(node, ast.If):
                names = self._read_name_condition(node.test)
                is_gpu_check = "platform_has_fast_" in source_text(node.test)
                is_branch_readable = is_readable and (is_gpu_check or names is not None and condition is None)
                pending += [(child, None, False) for child in reversed(node.orelse)]
                pending += [(child, names or condition, is_branch_readable) for child in reversed(node.body)]
                continue
            if isinstance(node, ast.For | ast.While) and find_setter_lines(node):
                self.unread_lines |= {child.lineno: f"{source_text(child)} in a loop over layers"
                                      for child in ast.walk(node) if isinstance(child, _LOOP_EXITS)}
            is_readable = is_readable and not isinstance(node, ast.ExceptHandler | ast.match_case)
            pending += [(child, condition, is_readable) for child in reversed(children)]
            if not children and isinstance(node, ast.stmt) and self._sets_anything(node) and not (
                    is_readable and self._read_setter(node, condition)):
                self.unread_lines[node.lineno] = source_text(node)

    def _sets_anything(self, statement: ast.stmt) -> bool:
        """Returns True if a statement may set a precision: itself, or in a function that it calls with a layer."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        return bool(find_setter_lines(statement)) or isinstance(call, ast.Call) and isinstance(
            call.func, ast.Name) and call.func.id != "print" and any(
                source_text(argument) in self._layer_texts for argument in call.args)

    def _read_name_condition(self, test: ast.expr) -> tuple[str, list[str]] | None:
        """Returns the source text of a layer and the names in a condition on the layer's name.

        None if the condition is of any other form than ``layer.name in [...]`` and ``layer.name == "..."``.
        """
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
            parts = [self._read_name_condition(value) for value in test.values]
            names = [name for part in parts if part is not None for name in part[1]]
            return (parts[0][0], names) if parts[0] is not None and all(
                part is not None and part[0] == parts[0][0] for part in parts) else None
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Attribute)
                and test.left.attr == "name"):
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
        """Reads a statement that sets a precision, a type of a result, or a flag; returns False if it cannot be read.

        Args:
            condition: The layer and the names of the condition above the statement; None if there is none.
        """
        call = statement.value if isinstance(statement, ast.Expr) else None
        if flags := [node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute) and _is_flag(node)]:
            is_or = isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.BitOr) and not any(
                isinstance(node, ast.IfExp) for node in ast.walk(statement))
            method = call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and [
                type(argument) for argument in call.args] == [ast.Attribute] else ""
            self.flags |= dict.fromkeys(flags, method != "clear_flag")
            return condition is None and (is_or or method in ("set_flag", "clear_flag"))
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(call, ast.Call) and len(call.args) == 2:
            target, value = call.func, call.args[1]
        else:
            return False
        precision = _PRECISION_BY_NAME.get(source_text(value).rpartition(".")[2])
        if (precision is None or self.precision not in (None, precision) or condition is None
                or not isinstance(target, ast.Attribute) or target.attr not in ("precision", "set_output_type")
                or source_text(target.value) != condition[0]):
            return False
        self.precision = precision
        (self.layer_names if target.attr == "precision" else self.output_layer_names).extend(condition[1])
        return True

    @property
    def has_precision_flags(self) -> bool:
        """True if the script sets or clears a flag of the builder that allows a precision."""
        return not self.flags.keys().isdisjoint((*_FLOAT_FLAGS, *_QUANTIZED_FLAGS))

    def set_default_precisions(self, settings: ImportedSettings) -> None:
        """Sets the default precisions from the flags of the builder, or from the precision of the layers."""
        flags = [name for name, is_set in self.flags.items() if is_set]
        if self.has_precision_flags:
            apply_precision_flags(settings, *([name.lower() for name in names if name in flags]
                                              for names in (_FLOAT_FLAGS, _QUANTIZED_FLAGS)))
            settings.tf32 = self.flags.get("TF32", True)
            if settings.tf32:
                settings.notes.append("FP32 layers may use TF32, which TensorRT allows unless the script clears "
                                      "BuilderFlag.TF32")
        else:
            settings.quantized = self.precision if self.precision not in (None, Precision.FP32) else Precision.FP16
            settings.other = Precision.BF16 if self.precision is Precision.BF16 else Precision.FP16
            other_text = f" in {settings.other.label}" if settings.quantized is not settings.other else ""
            settings.notes.append(
                f"it does not set the other layers, which are read as {settings.quantized.label}{other_text}; "
                "the flags of a build command set them (--int8 --fp16)")
        constraints = {value for flag, value in _CONSTRAINT_FLAGS.items() if flag in flags}
        if settings.layer_precisions and (self.has_precision_flags or constraints):
            settings.notes += constraint_notes(
                max(constraints, default=""), "TensorRT applies layer.precision",
                "BuilderFlag.OBEY_PRECISION_CONSTRAINTS or PREFER_PRECISION_CONSTRAINTS")


def find_setter_lines(tree: ast.AST) -> list[int]:
    """Finds the lines of a script that set a precision, a type of a result, a range, or a flag of the builder."""
    return sorted({node.lineno for node in ast.walk(tree) if isinstance(node, ast.expr) and _is_setter(node)})


def _is_flag(node: ast.Attribute) -> bool:
    return node.attr in _FLAGS and source_text(node.value).endswith("BuilderFlag")


def _is_setter(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and source_text(node.func) == "setattr":
        return any(isinstance(argument, ast.Constant) and argument.value in _SETTERS for argument in node.args)
    return isinstance(node, ast.Attribute) and (_is_flag(node) or node.attr in _SETTERS and (
        isinstance(node.ctx, ast.Store) or node.attr.startswith("set_")))
