"""Python scripts of other tools, which are parsed as text and never run."""

import ast
import json
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

UNREADABLE_SCRIPT_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
"""The errors of `parse_script` for a text that is not readable Python."""

_CHANGING_METHODS = frozenset(("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "add",
                               "update", "discard", "setdefault", "popitem", "difference_update",
                               "intersection_update", "symmetric_difference_update"))
"""Methods of lists, sets and dicts that change them."""


def parse_script(text: str) -> ast.Module:
    """Parses a Python script.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: The text is not valid Python, or is nested too deep.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for numbers and escapes that newer releases of Python refuse
        return ast.parse(text)


def find_constants(body: Iterable[ast.stmt]) -> dict[str, Any]:
    """Finds the variables that are assigned a literal, a collection of literals, or ``json.loads`` of one.

    Variables that the statements assign or change a second time are left out.

    Args:
        body: The statements of a module or function.
    """
    body = list(body)
    constants: dict[str, Any] = {}
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(
            statement, ast.AnnAssign) else []
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        if value is None or len(targets) != 1 or not isinstance(targets[0], ast.Name):
            continue
        is_json = isinstance(value, ast.Call) and ast.unparse(value.func) == "json.loads" and len(value.args) == 1
        is_collection = isinstance(value, ast.Call) and ast.unparse(value.func) in ("set", "frozenset", "tuple", "list")
        try:
            if is_json and isinstance(value, ast.Call):
                constants[targets[0].id] = json.loads(ast.literal_eval(value.args[0]))
            elif is_collection and isinstance(value, ast.Call) and len(value.args) == 1:
                constants[targets[0].id] = ast.literal_eval(value.args[0])
            else:
                constants[targets[0].id] = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # a computed value is not a constant
            continue
    change_counts: dict[str, int] = {}
    for name in (name for statement in body for name in iterate_changed_names(statement)):
        change_counts[name] = change_counts.get(name, 0) + 1
    return {name: value for name, value in constants.items() if change_counts[name] == 1}


def iterate_changed_names(tree: ast.AST) -> Iterator[str]:
    """Yields the name of a variable for each part of a script that assigns or changes it.

    Functions have their own variables, and yield only those that they change in the module.
    """
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, is_in_function = pending.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)) and not is_in_function:
            yield node.id
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)) and isinstance(
                node.value, ast.Name):
            yield node.value.id
        elif (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
              and node.func.attr in _CHANGING_METHODS and isinstance(node.func.value, ast.Name)):
            yield node.func.value.id
        is_in_function = is_in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        pending += [(child, is_in_function) for child in ast.iter_child_nodes(node)]
