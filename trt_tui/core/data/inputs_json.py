"""Polygraphy's inputs JSON: a list of feeds, or one; read one feed at a time."""

import base64
import binascii
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trt_tui.core.data.array_files import DATA_FORMATS, convert_damaged_file_errors, read_npy_bytes
from trt_tui.core.data.encoded import polygraphy_object_kind, read_first_npz_array
from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_reading_resources
from trt_tui.files.reading import open_regular_file

MAX_FEED_CHARACTERS = 2 << 30
"""Most characters of one feed."""

_BLOCK_CHARACTERS = 1 << 20
_ENDING_CHARACTERS = 16
"""An error within so many characters of the end of what was read may be one of the cut."""


def read_json_feeds(path: Path, source_title: str) -> Iterator[Any]:
    """The feeds of a file, one at a time.

    Polygraphy writes an array as ``{"array": base64 of an .npy, "polygraphy_class": "ndarray"}``.

    Raises:
        InputError: the file cannot be read, is no such JSON, or holds anything but arrays.
    """
    decoder = json.JSONDecoder(object_hook=lambda value: _decode_json_object(value, source_title))
    with convert_damaged_file_errors(source_title), open_regular_file(path) as raw, io.TextIOWrapper(
            raw, encoding="utf-8") as file:
        text = file.read(_BLOCK_CHARACTERS)
        position = _skip_characters(text, 0, " \t\r\n")
        is_list = text[position : position + 1] == "["
        position += is_list
        while True:
            position = _skip_characters(text, position, " \t\r\n,")
            try:
                if is_list and text[position : position + 1] == "]":
                    return
                with limit_reading_resources(source_title, len(text)):
                    item, position = decoder.raw_decode(text, position)
            except json.JSONDecodeError as error:
                more = ""
                if error.pos >= len(text) - _ENDING_CHARACTERS or error.msg.startswith("Unterminated"):
                    more = file.read(max(_BLOCK_CHARACTERS, len(text) - position))
                if not more:
                    raise InputError(
                        f"{source_title} is no valid JSON",
                        f"{error.msg}; the file may have been cut off.",
                        f"Give {DATA_FORMATS}.",
                    ) from error
                text, position = text[position:] + more, 0
                if len(text) > MAX_FEED_CHARACTERS:
                    raise InputError(f"{source_title}: a feed is too large",
                                     f"it has over {MAX_FEED_CHARACTERS:,} characters",
                                     "Save the arrays as .npz.") from error
                continue
            yield item
            if not is_list:
                return


def _skip_characters(text: str, position: int, skipped_characters: str) -> int:
    while position < len(text) and text[position] in skipped_characters:
        position += 1
    return position


def _decode_json_object(json_object: dict[str, Any], source_title: str) -> Any:
    kind = polygraphy_object_kind(json_object)
    if kind is None:
        return json_object
    if kind != "ndarray" or not isinstance(json_object.get("array"), str):
        raise InputError(
            f"{source_title} holds Polygraphy's {kind}, not feeds of numpy arrays",
            next_step="Save the inputs with polygraphy run --save-inputs, or as .npz.",
        )
    try:
        data = base64.b64decode(json_object["array"], validate=True)
    except (binascii.Error, ValueError):
        data = json_object["array"].encode("latin-1")
    try:
        return read_npy_bytes(read_first_npz_array(data) if data[:2] == b"PK" else data)
    except InputError as error:
        raise InputError(f"{source_title}: {error.title}", error.cause, error.next_step) from error
