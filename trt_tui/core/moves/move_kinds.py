"""The kinds of move by their words in files, and the conversion between moves and their entries in files."""

import json
import re
import typing
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

import msgspec

from trt_tui.core.moves.constant_moves import (
    AttentionScaleMove,
    BiasCorrectionMove,
    EqualizationMove,
    RoundingMove,
    SmoothQuantMove,
)
from trt_tui.core.moves.layer_moves import BarrierMove, KeepMove, PrecisionMove, RangeMove, RewriteMove
from trt_tui.core.moves.move import Move
from trt_tui.errors import InputError

MOVE_KINDS: dict[str, type[Move]] = {
    kind.kind: kind
    for kind in (KeepMove, PrecisionMove, RewriteMove, AttentionScaleMove, SmoothQuantMove,
                 EqualizationMove, RangeMove, RoundingMove, BiasCorrectionMove, BarrierMove)
}
"""The kinds of move in the order of files and reports. If several moves set the precision of a group, the first kind in
this order decides. Edits of one constant apply in this order: a rounding is behind all other edits of weights."""


T = TypeVar("T")

_ERROR_LOCATION = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
_TYPE_TEXTS = {
    "object": "an object", "array": "a list", "str": "a text", "bool": "true or false", "int": "a whole number",
    "float": "a number"
}


class UnknownMoveKindError(ValueError):
    """A file entry has a kind of move that this version does not have; the text of the error names the kind.

    Attributes:
        next_step: The next step for the user.
    """

    def __init__(self, cause: str, next_step: str = "Update trt-tui, or take the move out of the file.") -> None:
        super().__init__(cause)
        self.next_step = next_step


def encode_move(move: Move) -> dict[str, Any]:
    """Returns the file entry of a move, without the group or tensor that the move changes.

    Options that are turned off, and texts that are empty, are left out if that is their default.
    """
    defaults = {field.name: field.default for field in fields(move)}
    return {"kind": move.kind, **{name: value for name, value in msgspec.to_builtins(move).items()
                                  if value or defaults[name] != value}}


def decode_move(entry: Mapping[str, Any]) -> Move:
    """Returns the move of a file entry.

    Raises:
        UnknownMoveKindError: The kind of move does not exist. msgspec.ValidationError: A field is missing or has
            another type.
    """
    kind = entry.get("kind")
    removed_move = ("an inserted Mul" if kind == "insert_mul" else "a Min or Max in place of a Clip"
                    if kind == "equalize" and entry.get("replaces_clips") else "")
    if removed_move:
        names = entry.get("target", entry.get("layers"))
        raise UnknownMoveKindError(
            f"it has {removed_move} at {_value_text(names[:1] if isinstance(names, list) else names)}, a change that "
            "trt-tui no longer makes", "Search again, or take the move out of the file: its layers then lose more.")
    if not isinstance(kind, str) or kind not in MOVE_KINDS:
        raise UnknownMoveKindError(
            f"it has a move of kind {_value_text(kind)}, and this trt-tui knows {', '.join(MOVE_KINDS)}")
    return msgspec.convert(dict(entry), MOVE_KINDS[kind])


def convert_file_value(value: Any, expected_type: type[T], file_name: str, location: str = "") -> T:
    """Converts a value of a file to its expected type.

    Args:
        location: The location of the value in the file; "" for the whole file.

    Raises:
        InputError: The value does not fit the type. The error names the location, the value and the expected type.
    """
    try:
        return msgspec.convert(value, expected_type)
    except msgspec.ValidationError as error:
        raise entry_type_error(error, value, expected_type, file_name, location) from None


def entry_type_error(error: msgspec.ValidationError, value: Any, expected_type: Any, file_name: str,
                     location: str) -> InputError:
    """Builds the error for a file entry that does not have the expected type."""
    message, path = match.groups() if (match := _ERROR_LOCATION.fullmatch(str(error))) else (str(error), "")
    if missing_match := _MISSING_FIELD.fullmatch(message):
        path += f".{missing_match[1]}"
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", path)
    for name, index in steps:
        value = value.get(name) if name else value[int(index)]
        hints = typing.get_type_hints(expected_type) if name and isinstance(expected_type, type) else {}
        expected_type = hints.get(name, Any)
    location_text = (location + path).lstrip(".") or "it"
    if missing_match:
        next_step = "the entry is required"
    elif (choices_text := _choices_text(expected_type)) and "enum" in message:
        next_step = f"it must be one of {choices_text}"
    elif expected := re.match(r"Expected `(\w+)", message):
        bounded = expected[1] == "float" and "=" in message
        number = "a number from 0 to the largest FP32 value"
        next_step = f"it must be {number if bounded else _TYPE_TEXTS.get(expected[1], expected[1])}"
    else:
        next_step = message
    return InputError(f"{file_name}: {location_text} is {_value_text(value)}", next_step,
                      "Correct the file, or export the config again.")


def _choices_text(expected_type: Any) -> str:
    """Returns the allowed words of an enumeration or literal type, separated by commas; "" for any other type."""
    if isinstance(expected_type, type) and issubclass(expected_type, Enum):
        return ", ".join(str(member.value) for member in expected_type)
    return ", ".join(map(str,
                         typing.get_args(expected_type))) if typing.get_origin(expected_type) is typing.Literal else ""


def _value_text(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
