"""Moves as entries of files: the kind of a move, its fields under their own names, and what is said of a wrong one."""

import json
import re
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from trt_tui.core.moves.kinds import KINDS
from trt_tui.core.moves.move import Move
from trt_tui.errors import InputError

T = TypeVar("T")

_PLACE = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_TYPES = {"object": "an object", "array": "a list", "str": "a text", "bool": "true or false", "int": "a whole number",
          "float": "a number"}


class UnknownKindError(ValueError):
    """A move of a kind that this program does not know; its text names it."""


def encoded(move: Move) -> dict[str, Any]:
    """The entry of a move, without its target."""
    return {"kind": move.kind, **msgspec.to_builtins(move)}


def decoded(entry: Mapping[str, Any]) -> Move:
    """The move of an entry.

    Raises:
        UnknownKindError: there is no such kind.
        msgspec.ValidationError: a field is missing or of another type.
    """
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnknownKindError(f"it has a move of kind {_shown(kind)}, and this trt-tui knows {', '.join(KINDS)}")
    return msgspec.convert(dict(entry), KINDS[kind])


def shaped(value: Any, shape: type[T], file: str, where: str = "") -> T:
    """A value of a file in the shape that it must have.

    Args:
        where: Its place in the file, "" for the whole.

    Raises:
        InputError: it does not have it; the error names the place, what stands there and what should.
    """
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise nonsense(error, value, shape, file, where) from None


def nonsense(error: msgspec.ValidationError, value: Any, shape: Any, file: str, where: str) -> InputError:
    """The error for a ``value`` that does not have the shape that it must have."""
    said, path = found.groups() if (found := _PLACE.fullmatch(str(error))) else (str(error), "")
    if missing := _MISSING.fullmatch(said):
        path += f".{missing[1]}"
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", path)
    for name, index in steps:
        value = value.get(name) if name else value[int(index)]
        hints = typing.get_type_hints(shape) if name and isinstance(shape, type) else {}
        shape = hints.get(name, Any)
    place = (where + path).lstrip(".") or "it"
    if missing:
        wanted = "it has to be given"
    elif (words := _words(shape)) and "enum" in said:
        wanted = f"it has to be one of {words}"
    elif expected := re.match(r"Expected `(\w+)", said):
        bounded = expected[1] == "float" and "=" in said
        number = "a number from 0 up that FP32 holds"
        wanted = f"it has to be {number if bounded else _TYPES.get(expected[1], expected[1])}"
    else:
        wanted = said
    return InputError(f"{file}: {place} is {_shown(value)}", wanted, "Correct the file, or export the config again.")


def _words(shape: Any) -> str:
    """The words that a choice of words offers, "" for any other shape."""
    if isinstance(shape, type) and issubclass(shape, Enum):
        return ", ".join(str(one.value) for one in shape)
    return ", ".join(map(str, typing.get_args(shape))) if typing.get_origin(shape) is typing.Literal else ""


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
