"""Text from files, as it is shown to a person."""

from __future__ import annotations

import json
from typing import Any, TextIO
from unicodedata import category

from rich.cells import cell_len

_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode's categories of what is not drawn and may steer what is: C0, C1 and DEL; bidi, zero-width and other format
characters; lone surrogates; line and paragraph separators."""


def visible(text: object, lines: bool = False) -> str:
    r"""The text with every character that would steer a terminal or hide in it written out, as ``\x1b`` or ``\u202e``.

    What this gives can be shown anywhere, encoded as UTF-8, and given to this again, which changes nothing more. Names
    are compared and looked up as they are, and shown as this.

    Args:
        text: From a network, data, a config, a script, a session, a library or the command line.
        lines: Keep line breaks, and write tabs as blanks: for texts of several lines. A name has one line.
    """
    text = str(text)
    if text.isprintable():
        return text
    if lines:
        text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(_shown(one, lines) for one in text)


def visible_json(text: str) -> str:
    """JSON that means the same, every hidden character of its strings as JSON's own escape; it has lines."""
    if text.isascii():
        return text
    return "".join(json.dumps(one)[1:-1] if one != "\n" and is_hidden(one) else one for one in text)


def cells(text: str) -> int:
    """How many cells of a terminal a visible text takes: two for each of 漢字, none for a combining accent."""
    return cell_len(text)


def left(text: str, width: int) -> str:
    """The text with blanks after it up to a width in cells."""
    return text + " " * (width - cells(text))


def right(text: str, width: int) -> str:
    """The text with blanks before it up to a width in cells."""
    return " " * (width - cells(text)) + text


def first_cells(text: str, width: int) -> str:
    """As much of a visible text as fits into a width in cells, from its beginning."""
    if text.isascii():
        return text[:max(0, width)]
    kept, used = 0, 0
    for character in text[:max(0, width) * 8]:  # more than combining marks make of a name
        used += cell_len(character)
        if used > width:
            break
        kept += 1
    return text[:kept]


def last_cells(text: str, width: int) -> str:
    """As much of a visible text as fits into a width in cells, up to its end."""
    if text.isascii():
        return text[max(0, len(text) - max(0, width)):]
    kept, used = 0, 0
    for character in reversed(text[-max(1, width) * 8:]):
        used += cell_len(character)
        if used > width:
            break
        kept += 1
    return text[len(text) - kept:]


def is_hidden(character: str) -> bool:
    """Whether `visible` writes a character out."""
    return category(character) in _HIDDEN


def _shown(character: str, lines: bool) -> str:
    if not is_hidden(character) or lines and character == "\n":
        return character
    return character.encode("unicode_escape").decode("ascii")


class VisibleStream:
    """Stands before a text stream and passes on only what can be seen and what its encoding holds.

    No control sequence gets through, so it says that it is no terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"a text is written here, not {type(text).__name__}")
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(visible(text, lines=True).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
