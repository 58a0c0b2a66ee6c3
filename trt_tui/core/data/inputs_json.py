"""Polygraphy's inputs JSON: a list of feeds, or one; read one feed at a time."""

import base64
import binascii
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trt_tui.core.data.encoded import first_member, kind_of
from trt_tui.core.data.stored import DATA_FORMATS, npy_array, reading
from trt_tui.errors import InputError
from trt_tui.files.budget import reading_budget
from trt_tui.files.reading import open_regular

MOST_FEED_TEXT = 2 << 30
"""Most characters of one feed."""

_BLOCK = 1 << 20
_ENDING = 16
"""An error within so many characters of the end of what was read may be one of the cut."""


def polygraphy_feeds(path: Path, source: str) -> Iterator[Any]:
    """The feeds of a file, one at a time.

    Polygraphy writes an array as ``{"array": base64 of an .npy, "polygraphy_class": "ndarray"}``.

    Raises:
        InputError: the file cannot be read, is no such JSON, or holds anything but arrays.
    """
    decoder = json.JSONDecoder(object_hook=lambda value: _decoded(value, source))
    with reading(source), open_regular(path) as raw, io.TextIOWrapper(raw, encoding="utf-8") as file:
        text = file.read(_BLOCK)
        position = _skip(text, 0, " \t\r\n")
        many = text[position : position + 1] == "["
        position += many
        while True:
            position = _skip(text, position, " \t\r\n,")
            try:
                if many and text[position : position + 1] == "]":
                    return
                with reading_budget(source, len(text)):
                    item, position = decoder.raw_decode(text, position)
            except json.JSONDecodeError as error:
                more = ""
                if error.pos >= len(text) - _ENDING or error.msg.startswith("Unterminated"):
                    more = file.read(max(_BLOCK, len(text) - position))
                if not more:
                    raise InputError(
                        f"{source} is no valid JSON",
                        f"{error.msg}; the file may have been cut off.",
                        f"Give {DATA_FORMATS}.",
                    ) from error
                text, position = text[position:] + more, 0
                if len(text) > MOST_FEED_TEXT:
                    raise InputError(f"{source}: a feed is too large", f"it has over {MOST_FEED_TEXT:,} characters",
                                     "Save the arrays as .npz.") from error
                continue
            yield item
            if not many:
                return


def _skip(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position


def _decoded(value: dict[str, Any], source: str) -> Any:
    kind = kind_of(value)
    if kind is None:
        return value
    if kind != "ndarray" or not isinstance(value.get("array"), str):
        raise InputError(
            f"{source} holds Polygraphy's {kind}, not feeds of numpy arrays",
            next_step="Save the inputs with polygraphy run --save-inputs, or as .npz.",
        )
    try:
        data = base64.b64decode(value["array"], validate=True)
    except (binascii.Error, ValueError):
        data = value["array"].encode("latin-1")
    try:
        return npy_array(first_member(data) if data[:2] == b"PK" else data)
    except InputError as error:
        raise InputError(f"{source}: {error.title}", error.cause, error.next_step) from error
