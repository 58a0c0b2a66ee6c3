"""Lines of shell scripts as words; `shlex` takes time quadratic in the length of a word, which lists of layers are."""

import re
from collections.abc import Callable

from trt_tui.errors import InputError
from trt_tui.files.reading import TEXT_BYTES

_PART = re.compile(r"""(?P<blank>\s+)|'(?P<single>[^']*)'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|\\(?P<escaped>.)|"""
                   r"""(?P<plain>[^\s'"\\]+)""", re.S)
_ESCAPED = re.compile(r'\\(["\\$`])')


def shell_words(line: str, where: str) -> list[str]:
    """Returns the words of a line of a POSIX shell, without its comment; variables stay as they are.

    Args:
        where: The place of the line in messages.

    Raises:
        InputError: a quote does not end.
    """
    words: list[str] = []
    parts: list[str] = []
    place = 0
    while place < len(line):
        match = _PART.match(line, place)
        if match is None:
            raise InputError(f"{where}: no command line", "a quote or an escape does not end", "Correct the quotes.")
        kind, text = match.lastgroup, match[match.lastgroup or 0]
        if kind == "blank":
            words += ["".join(parts)] if parts else []
            parts = []
        elif kind == "plain" and not parts and text.startswith("#"):
            break
        else:
            parts.append(_ESCAPED.sub(r"\1", text) if kind == "double" else text)
        place = match.end()
    return [*words, "".join(parts)] if parts else words


def expanded(pattern: re.Pattern[str], value_of: Callable[[re.Match[str]], str], line: str, where: str) -> str:
    """Returns a line with the values of its variables.

    Raises:
        InputError: the line would have over `TEXT_BYTES` characters.
    """
    total = len(line)

    def value(match: re.Match[str]) -> str:
        nonlocal total
        text = value_of(match)
        total += len(text)
        if total > TEXT_BYTES:
            raise InputError(f"{where}: a line is too long",
                             f"with its variables it has over {TEXT_BYTES:,} characters", "Write the command out.")
        return text

    return pattern.sub(value, line)
