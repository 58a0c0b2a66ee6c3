"""Python scripts of other tools, which are parsed as text and never run."""

import ast
import json
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

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


def find_constants(tree: ast.Module) -> dict[str, Any]:
    """Finds the variables that a script assigns a literal once and does not change, with their values."""
    changes: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            changes[node.arg] += 2
        elif isinstance(node, ast.Name):
            changes[node.id] += not isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name) and (
                isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load)):
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
    """Returns the value of a literal, of a name in ``constants``, or of a collection or ``json.loads`` of a literal.

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
    """Returns the beginning of the source text of a syntax node, on one line."""
    try:
        return next(iter(ast.unparse(node).splitlines()), "")[:80]
    except RecursionError:
        return "a long expression"
