"""JSON of any size, read in pieces: long strings stay in the file, and only where they stand is kept.

Parsers that stream (ijson, among others) hand over whole strings, and a tensor in JSON is one string of base64: with
them a gigabyte of values takes several of memory. Here one takes a few numbers.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trt_tui.errors import InputError
from trt_tui.files.budget import file_budget
from trt_tui.files.reading import open_regular

KEPT_BYTES = 4096
"""Longer strings stay in the file."""

MOST_VALUES = 4_000_000
"""Most values (strings, numbers, lists, objects) of a file."""

_DEEPEST = 64
_BLOCK = 1 << 20
_SCALAR = re.compile(rb"[-+0-9.eEA-Za-z]*")
_SCALAR_BYTES = 64
_SPACE = re.compile(rb"[ \t\r\n]*")
_CONSTANTS: dict[bytes, object] = {b"true": True, b"false": False, b"null": None, b"NaN": float("nan"),
                                   b"Infinity": float("inf"), b"-Infinity": float("-inf")}


@dataclass(frozen=True)
class Span:
    """A long string that stays in its file.

    Attributes:
        start: The first byte behind the opening quote.
        length: Bytes up to the closing quote.
        escaped: Whether a backslash stands in it.
    """

    path: Path
    start: int
    length: int
    escaped: bool

    def pieces(self, size: int = _BLOCK) -> Iterator[bytes]:
        """Its bytes as they stand in the file, ``size`` at a time.

        Raises:
            InputError: the file is shorter than it was.
        """
        with open_regular(self.path) as file:
            file.seek(self.start)
            left = self.length
            while left:
                piece = file.read(min(size, left))
                if not piece:
                    raise InputError(f"{self.path.name} was cut off while it was read", "", "Run the command again.")
                left -= len(piece)
                yield piece


class _Text:
    """A file as text to be parsed, a block at a time.

    Attributes:
        at: Position in the block.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._block = b""
        self._start = 0
        self.at = 0

    @property
    def position(self) -> int:
        """Position in the file."""
        return self._start + self.at

    def damaged(self, why: str) -> InputError:
        """That the text is no JSON where it is now."""
        return InputError(f"{self._name} is no valid JSON", f"{why} at byte {self.position:,}",
                          "Write the file again; it may be another format.")

    def more(self) -> bool:
        """Goes on to the next block; False at the end."""
        self._start += len(self._block)
        self._block, self.at = self._file.read(_BLOCK), 0
        return bool(self._block)

    def following(self) -> bytes:
        """The next byte that is no blank, which is not taken.

        Raises:
            InputError: the file ends here.
        """
        while True:
            match = _SPACE.match(self._block, self.at)
            assert match is not None, "the pattern takes nothing, too"
            self.at = match.end()
            if self.at < len(self._block):
                return self._block[self.at:self.at + 1]
            if not self.more():
                raise self.damaged("it ends early, so the file may have been cut off,")

    def take(self, wanted: bytes) -> bytes:
        """The next byte that is no blank, one of ``wanted``."""
        found = self.following()
        if found not in wanted:
            raise self.damaged(f"{' or '.join(map(chr, wanted))} is missing")
        self.at += 1
        return found

    def scalar(self) -> object:
        """A number or a constant."""
        text = b""
        while True:
            match = _SCALAR.match(self._block, self.at)
            assert match is not None, "the pattern takes nothing, too"
            text += match.group()[:_SCALAR_BYTES + 1]
            self.at = match.end()
            if self.at < len(self._block) or len(text) > _SCALAR_BYTES or not self.more():
                break
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        try:
            return json.loads(text) if len(text) <= _SCALAR_BYTES else _no_number()
        except ValueError:
            raise self.damaged("neither a string nor a number stands") from None

    def string(self, path: Path) -> str | Span:
        """A string whose opening quote was taken."""
        start, length, escaped = self.position, 0, False
        kept: list[bytes] = []
        while True:
            end = self._block.find(b'"', self.at)
            end = end if end >= 0 else len(self._block)
            backslash = self._block.find(b"\\", self.at, end)
            end = backslash if backslash >= 0 else end
            length += end - self.at
            if length <= KEPT_BYTES:
                kept.append(self._block[self.at:end])
            self.at = end
            if end == len(self._block):
                if not self.more():
                    raise self.damaged("a string does not end, so the file may have been cut off,")
                continue
            self.at += 1
            if backslash < 0:
                break
            escaped = True
            if self.at >= len(self._block) and not self.more():
                raise self.damaged("a string does not end, so the file may have been cut off,")
            kept.append(b"\\" + self._block[self.at:self.at + 1])
            self.at += 1
            length += 2
        if length > KEPT_BYTES:
            return Span(path, start, length, escaped)
        try:
            return str(json.loads(b'"' + b"".join(kept) + b'"', strict=False))
        except ValueError:
            raise self.damaged("a string that is no text in UTF-8 ends") from None


def _no_number() -> object:
    raise ValueError("too long for a number")


def read_spans(path: Path, name: str) -> Any:
    """The value of a JSON file: objects as dictionaries (of two equal keys the last counts), lists, and so on.

    Strings of over `KEPT_BYTES` are `Span`.

    Args:
        name: What messages call the file.

    Raises:
        InputError: it is no JSON, is cut off, is nested over 64 deep, or holds over `MOST_VALUES` values.
    """
    with file_budget(path), open_regular(path) as file:
        text = _Text(file, name)
        if text.following() == b"\xef":
            text.at += 3  # a byte order mark
        counted = [0]
        value = _value(text, path, 0, counted)
        try:
            text.following()
        except InputError:
            return value
        raise text.damaged("more follows behind the end")


def _value(text: _Text, path: Path, depth: int, counted: list[int]) -> Any:
    counted[0] += 1
    if counted[0] > MOST_VALUES or depth > _DEEPEST:
        why = f"over {MOST_VALUES:,} values" if depth <= _DEEPEST else "lists in lists without end"
        raise text.damaged(f"{why}, more than any dump of tensors holds,")
    first = text.following()
    if first == b'"':
        text.at += 1
        return text.string(path)
    if first == b"[":
        return _list(text, path, depth, counted)
    if first == b"{":
        return _object(text, path, depth, counted)
    return text.scalar()


def _list(text: _Text, path: Path, depth: int, counted: list[int]) -> list[Any]:
    text.take(b"[")
    found: list[Any] = []
    if text.following() == b"]":
        text.at += 1
        return found
    while True:
        found.append(_value(text, path, depth + 1, counted))
        if text.take(b",]") == b"]":
            return found


def _object(text: _Text, path: Path, depth: int, counted: list[int]) -> dict[str, Any]:
    text.take(b"{")
    found: dict[str, Any] = {}
    if text.following() == b"}":
        text.at += 1
        return found
    while True:
        text.take(b'"')
        key = text.string(path)
        if isinstance(key, Span):
            raise text.damaged(f"a name of over {KEPT_BYTES} bytes ends")
        text.take(b":")
        found[key] = _value(text, path, depth + 1, counted)
        if text.take(b",}") == b"}":
            return found
