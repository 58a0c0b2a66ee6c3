"""A JSON reader for files of any size that leaves long strings in the file and keeps only their positions.

Streaming parsers such as ijson return whole strings, and a tensor in JSON is one string of base64. With such a parser,
a gigabyte of values needs several gigabytes of memory. This reader needs a few numbers for each such string. A list of
numbers, the other form of a tensor in JSON, becomes one array.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import open_regular_file

MAX_KEPT_STRING_BYTES = 4096
"""The maximum length of a string that is kept in memory. Longer strings stay in the file."""

MAX_VALUES = 4_000_000
"""The maximum number of values (strings, numbers, lists, objects) in a file. A list of numbers counts as one."""

_MAX_DEPTH = 64
_BLOCK_BYTES = 1 << 20
_SCALAR_PATTERN = re.compile(rb"[-+0-9.eEA-Za-z]*")
_MAX_SCALAR_BYTES = 64
_SPACE_PATTERN = re.compile(rb"[ \t\r\n]*")
_NUMBER_BEGINNINGS = b"-+.0123456789nNiI"
_NUMBER_LIST_PATTERN = re.compile(rb"[-+.0-9eEaAfFiInNtyY, \t\r\n]*")
"""The characters of a list of numbers. C++ programs write ``nan`` and ``inf``, which are not JSON."""
_CONSTANTS: dict[bytes, object] = {b"true": True, b"false": False, b"null": None, b"NaN": float("nan"),
                                   b"Infinity": float("inf"), b"-Infinity": float("-inf")}


@dataclass(frozen=True)
class FileSpan:
    """A long JSON string that stays in its file, with its position.

    Attributes:
        start: The position of the first byte after the opening quote.
        length: The number of bytes up to the closing quote.
        has_escapes: True if the string contains a backslash.
    """

    path: Path
    start: int
    length: int
    has_escapes: bool

    def iterate_blocks(self, block_bytes: int = _BLOCK_BYTES) -> Iterator[bytes]:
        """Yields the bytes of the string as stored in the file, ``block_bytes`` at a time.

        Raises:
            InputError: The file is shorter than it was.
        """
        with open_regular_file(self.path) as file:
            file.seek(self.start)
            remaining_bytes = self.length
            while remaining_bytes:
                piece = file.read(min(block_bytes, remaining_bytes))
                if not piece:
                    raise InputError(f"{self.path.name} was cut off while it was read", "", "Run the command again.")
                remaining_bytes -= len(piece)
                yield piece


class _JsonText:
    """The text of a JSON file, read one block at a time.

    Attributes:
        offset: The position in the current block.
    """

    def __init__(self, file: BinaryIO, file_name: str) -> None:
        self._file = file
        self._name = file_name
        self._block = b""
        self._block_start = 0
        self.offset = 0

    @property
    def file_position(self) -> int:
        return self._block_start + self.offset

    def invalid_json_error(self, reason: str) -> InputError:
        return InputError(f"{self._name} is not valid JSON", f"{reason} at byte {self.file_position:,}",
                          "Write the file again; it may be another format.")

    def read_next_block(self) -> bool:
        """Reads the next block. Returns False at the end of the file."""
        self._block_start += len(self._block)
        self._block, self.offset = self._file.read(_BLOCK_BYTES), 0
        return bool(self._block)

    def peek_nonblank_byte(self) -> bytes:
        """Skips blanks and returns the next byte without consuming it.

        Raises:
            InputError: The file ends here.
        """
        while True:
            match = _SPACE_PATTERN.match(self._block, self.offset)
            assert match is not None, "the pattern takes nothing, too"
            self.offset = match.end()
            if self.offset < len(self._block):
                return self._block[self.offset:self.offset + 1]
            if not self.read_next_block():
                raise self.invalid_json_error("it ends early, so the file may have been cut off,")

    def take_nonblank_byte(self, allowed_bytes: bytes) -> bytes:
        """Skips blanks, and consumes and returns the next byte.

        Raises:
            InputError: The byte is not one of ``allowed_bytes``.
        """
        byte = self.peek_nonblank_byte()
        if byte not in allowed_bytes:
            raise self.invalid_json_error(f"{' or '.join(map(chr, allowed_bytes))} is missing")
        self.offset += 1
        return byte

    def read_scalar(self) -> object:
        """Reads a number or a constant such as ``true``."""
        text = b""
        while True:
            match = _SCALAR_PATTERN.match(self._block, self.offset)
            assert match is not None, "the pattern takes nothing, too"
            text += match.group()[:_MAX_SCALAR_BYTES + 1]
            self.offset = match.end()
            if self.offset < len(self._block) or len(text) > _MAX_SCALAR_BYTES or not self.read_next_block():
                break
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        try:
            return json.loads(text) if len(text) <= _MAX_SCALAR_BYTES else _refuse_long_number()
        except ValueError:
            raise self.invalid_json_error("neither a string nor a number is found") from None

    def read_number_list(self) -> np.ndarray:
        """Reads a list of numbers after its opening bracket, with the closing bracket, as a float64 array.

        Raises:
            InputError: The list contains anything other than numbers, or does not end.
        """
        pieces: list[np.ndarray] = []
        beginning = b""
        while True:
            end = self._block.find(b"]", self.offset)
            text = beginning + self._block[self.offset:end if end >= 0 else len(self._block)]
            complete, comma, beginning = (text, b"", b"") if end >= 0 else text.rpartition(b",")
            if comma or end >= 0:
                numbers = complete.split(b",")
                if _NUMBER_LIST_PATTERN.fullmatch(complete) is None or max(map(len, numbers)) > _MAX_SCALAR_BYTES:
                    raise self._mixed_list_error()
                try:
                    pieces.append(np.fromiter(map(float, numbers), np.float64, len(numbers)))
                except ValueError:
                    raise self._mixed_list_error() from None
            if end >= 0:
                self.offset = end + 1
                return np.concatenate(pieces)
            if len(beginning) > _MAX_SCALAR_BYTES:
                raise self._mixed_list_error()
            if not self.read_next_block():
                raise self.invalid_json_error("a list of numbers does not end, so the file may have been cut off,")

    def _mixed_list_error(self) -> InputError:
        return InputError(f"{self._name} cannot be read",
                          f"a list of numbers contains something else after byte {self.file_position:,}",
                          "Write the file again; it may be another format.")

    def read_string(self, path: Path) -> str | FileSpan:
        """Reads a string after its opening quote. Returns a `FileSpan` for a string of over `MAX_KEPT_STRING_BYTES`
        bytes."""
        start, length, has_escapes = self.file_position, 0, False
        parts: list[bytes] = []
        while True:
            end = self._block.find(b'"', self.offset)
            end = end if end >= 0 else len(self._block)
            backslash = self._block.find(b"\\", self.offset, end)
            end = backslash if backslash >= 0 else end
            length += end - self.offset
            if length <= MAX_KEPT_STRING_BYTES:
                parts.append(self._block[self.offset:end])
            self.offset = end
            if end == len(self._block):
                if not self.read_next_block():
                    raise self.invalid_json_error("a string does not end, so the file may have been cut off,")
                continue
            self.offset += 1
            if backslash < 0:
                break
            has_escapes = True
            if self.offset >= len(self._block) and not self.read_next_block():
                raise self.invalid_json_error("a string does not end, so the file may have been cut off,")
            parts.append(b"\\" + self._block[self.offset:self.offset + 1])
            self.offset += 1
            length += 2
        if length > MAX_KEPT_STRING_BYTES:
            return FileSpan(path, start, length, has_escapes)
        try:
            return str(json.loads(b'"' + b"".join(parts) + b'"', strict=False))
        except ValueError:
            raise self.invalid_json_error("a string that is not UTF-8 text ends") from None


def _refuse_long_number() -> object:
    raise ValueError("too long for a number")


def read_lazy_json(path: Path, file_name: str) -> Any:
    """Reads a JSON file and returns its value, with each string of over `MAX_KEPT_STRING_BYTES` bytes as a `FileSpan`.

    Objects become dictionaries; of two equal keys the last counts. A list of numbers becomes a float64 array.

    Args:
        file_name: The name of the file in messages.

    Raises:
        InputError: The file is not JSON, is cut off, has over 64 nested levels, has over `MAX_VALUES` values outside
            lists of numbers, or has a list of numbers with other values.
    """
    with limit_file_reading(path), open_regular_file(path) as file:
        text = _JsonText(file, file_name)
        if text.peek_nonblank_byte() == b"\xef":
            text.offset += 3  # a byte order mark
        value_count = [0]
        value = _read_json_value(text, path, 0, value_count)
        try:
            text.peek_nonblank_byte()
        except InputError:
            return value
        raise text.invalid_json_error("text follows after the end")


def _read_json_value(json_text: _JsonText, path: Path, depth: int, value_count: list[int]) -> Any:
    value_count[0] += 1
    if value_count[0] > MAX_VALUES or depth > _MAX_DEPTH:
        reason = f"over {MAX_VALUES:,} values" if depth <= _MAX_DEPTH else "lists in lists without end"
        raise json_text.invalid_json_error(f"{reason}, more than any dump of tensors holds,")
    first_byte = json_text.peek_nonblank_byte()
    if first_byte == b'"':
        json_text.offset += 1
        return json_text.read_string(path)
    if first_byte == b"[":
        return _read_json_list(json_text, path, depth, value_count)
    if first_byte == b"{":
        return _read_json_object(json_text, path, depth, value_count)
    return json_text.read_scalar()


def _read_json_list(json_text: _JsonText, path: Path, depth: int, value_count: list[int]) -> list[Any] | np.ndarray:
    json_text.take_nonblank_byte(b"[")
    values: list[Any] = []
    first_byte = json_text.peek_nonblank_byte()
    if first_byte == b"]":
        json_text.offset += 1
        return values
    if first_byte in _NUMBER_BEGINNINGS:
        return json_text.read_number_list()
    while True:
        values.append(_read_json_value(json_text, path, depth + 1, value_count))
        if json_text.take_nonblank_byte(b",]") == b"]":
            return values


def _read_json_object(json_text: _JsonText, path: Path, depth: int, value_count: list[int]) -> dict[str, Any]:
    json_text.take_nonblank_byte(b"{")
    value_by_key: dict[str, Any] = {}
    if json_text.peek_nonblank_byte() == b"}":
        json_text.offset += 1
        return value_by_key
    while True:
        json_text.take_nonblank_byte(b'"')
        key = json_text.read_string(path)
        if isinstance(key, FileSpan):
            raise json_text.invalid_json_error(f"a name of over {MAX_KEPT_STRING_BYTES} bytes ends")
        json_text.take_nonblank_byte(b":")
        value_by_key[key] = _read_json_value(json_text, path, depth + 1, value_count)
        if json_text.take_nonblank_byte(b",}") == b"}":
            return value_by_key
