"""The importer of Python code that calls NVIDIA ModelOpt, which is read as text and never run.

The functions are ``modelopt.onnx.quantization.quantize`` and ``modelopt.onnx.autocast.convert_to_mixed_precision``
under any name that the code imports. The arguments that are read are literals, or names of literals in the module or
in the function of the call.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_tui.core.importers.imported_settings import ImportedSettings
from trt_tui.core.importers.modelopt import LIST_KEYS, READ_KEYS, read_modelopt
from trt_tui.core.importers.python_scripts import UNREADABLE_SCRIPT_ERRORS, find_constants, parse_script
from trt_tui.core.network.network import Network
from trt_tui.formatting import name_list_text

_TOOLS = {
    "quantize": ("quantize", ("onnx_path", "quantize_mode", "calibration_data", "calibration_method",
                              "calibration_cache_path")),
    "convert_to_mixed_precision": ("autocast", ("onnx_path", "low_precision_type", "nodes_to_exclude",
                                                "op_types_to_exclude", "nodes_to_include", "op_types_to_include"))
}
"""The tool of each function, and the names of its first arguments in their order."""

_MODULE_PATTERN = re.compile(r"modelopt\.onnx\.(?:quantization|autocast)\.")


@dataclass(frozen=True)
class ModelOptCall:
    """A call of ModelOpt in a script.

    Attributes:
        tool: ``quantize`` or ``autocast``.
        line_number: The line of the call, from 1.
        arguments: The values of the arguments by name; None for a value that has no effect on precisions.
        unread_arguments: Arguments that the script computes, as texts for the user.
    """

    tool: str
    line_number: int
    arguments: Mapping[str, Any]
    unread_arguments: Sequence[str]

    @property
    def entry_count(self) -> int:
        """Number of entries in the lists of names and operators."""
        return sum(len(value) for key in LIST_KEYS if isinstance(value := self.arguments.get(key), list))


def find_modelopt_calls(text: str) -> list[ModelOptCall]:
    """Finds the calls of ModelOpt in a text; empty if there are none or if the text is not Python."""
    if not any(name in text for name in _TOOLS):
        return []
    try:
        tree = parse_script(text)
    except UNREADABLE_SCRIPT_ERRORS:
        return []
    imported_names = _find_imported_names(tree)
    module_constants = find_constants(tree.body)
    calls: list[ModelOptCall] = []
    pending: list[tuple[ast.AST, dict[str, Any]]] = [(tree, module_constants)]
    while pending:
        node, constants = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            hidden_names = {argument.arg for argument in arguments}
            constants = {name: value for name, value in constants.items() if name not in hidden_names}
            constants |= find_constants(node.body)
        if isinstance(node, ast.Call) and (function_name := _find_modelopt_function(node, imported_names)):
            calls.append(_read_call(node, function_name, constants))
        pending += [(child, constants) for child in ast.iter_child_nodes(node)]
    return sorted(calls, key=lambda call: call.line_number)


def read_modelopt_calls(calls: Sequence[ModelOptCall], network: Network, file: Path) -> ImportedSettings:
    """Reads the settings in calls of ModelOpt.

    If a script calls a tool several times, the call with the most names in its lists is used.

    Raises:
        InputError: An argument has the wrong type or an unknown value.
    """
    used_calls = {
        tool: max((call for call in calls if call.tool == tool), key=lambda call: call.entry_count)
        for tool in dict.fromkeys(call.tool for call in calls)
    }
    settings = read_modelopt({tool: call.arguments for tool, call in used_calls.items()}, network, file)
    for call in used_calls.values():
        settings.unread_lines += [f"line {call.line_number}: {text}" for text in call.unread_arguments]
        if other_lines := [str(other.line_number) for other in calls if other.tool == call.tool and other is not call]:
            settings.notes.append(
                f"line {name_list_text(other_lines)} is another call; line {call.line_number} is used")
    return settings


def _find_imported_names(tree: ast.Module) -> dict[str, str]:
    """Finds the names that a script imports, with the modules or functions that they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}
    return names


def _find_modelopt_function(call: ast.Call, imported_names: Mapping[str, str]) -> str:
    """Returns the name of the function of ModelOpt that a call calls; "" if it calls another function.

    In a piece of code without the import, a function of such a name with arguments of ModelOpt counts.
    """
    parts: list[str] = []
    function: ast.expr = call.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    path = ".".join((imported_names.get(function.id, function.id), *reversed(parts)))
    name = path.rpartition(".")[2]
    if name not in _TOOLS:
        return ""
    if _MODULE_PATTERN.match(path):
        return name
    has_own_argument = any(keyword.arg in READ_KEYS for keyword in call.keywords)
    return name if function.id not in imported_names and has_own_argument else ""


def _read_call(call: ast.Call, function_name: str, constants: Mapping[str, Any]) -> ModelOptCall:
    tool, positional_names = _TOOLS[function_name]
    arguments: dict[str, Any] = {}
    unread_arguments: list[str] = []
    expressions: list[tuple[str | None, ast.expr]] = [(keyword.arg, keyword.value) for keyword in call.keywords]
    for index, expression in enumerate(call.args):
        if index >= len(positional_names) or isinstance(expression, ast.Starred):
            unread_arguments.append(f"arguments without names are not read from here on: {_source_text(expression)}")
            break
        expressions.append((positional_names[index], expression))
    for name, expression in expressions:
        try:
            value = _read_value(expression, constants)
        except ValueError:
            value = None
            if name is None or name in READ_KEYS:
                unread_arguments.append(
                    f"{name + '=' if name else '**'}{_source_text(expression)}: the script computes it")
        if name is not None:
            arguments[name] = value
        elif isinstance(value, Mapping):
            arguments |= {str(key): _as_json_value(item) for key, item in value.items()}
    return ModelOptCall(tool, call.lineno, arguments, unread_arguments)


def _read_value(expression: ast.expr, constants: Mapping[str, Any]) -> Any:
    """Returns the value of an argument, with lists in place of tuples and sets.

    Raises:
        ValueError: The expression is neither a literal nor the name of one.
    """
    if isinstance(expression, ast.Name):
        if expression.id not in constants:
            raise ValueError(expression.id)
        return _as_json_value(constants[expression.id])
    if isinstance(expression, (ast.List, ast.Tuple, ast.Set)):
        return [_read_value(element, constants) for element in expression.elts]
    try:
        return _as_json_value(ast.literal_eval(expression))
    except (TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _source_text(expression: ast.expr) -> str:
    """Returns the beginning of the source text of an expression."""
    try:
        return ast.unparse(expression)[:60]
    except RecursionError:
        return "a long expression"


def _as_json_value(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return list(value) if isinstance(value, tuple) else value
