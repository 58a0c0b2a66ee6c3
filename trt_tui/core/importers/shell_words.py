"""Lines of shell scripts as words; `shlex` takes time quadratic in the length of a word, which lists of layers are."""

import re
from collections.abc import Callable

from trt_tui.errors import InputError
from trt_tui.files.reading import MAX_TEXT_BYTES

_WORD_PART = re.compile(r"""(?P<blank>\s+)|'(?P<single>[^']*)'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|\\(?P<escaped>.)|"""
                        r"""(?P<plain>[^\s'"\\]+)""", re.S)
_ESCAPED_CHARACTER = re.compile(r'\\(["\\$`])')


def split_shell_words(line: str, location: str) -> list[str]:
    """Returns the words of a line of a POSIX shell, without its comment; variables stay as they are.

    Args:
        location: The place of the line in messages.

    Raises:
        InputError: a quote does not end.
    """
    words: list[str] = []
    parts: list[str] = []
    position = 0
    while position < len(line):
        match = _WORD_PART.match(line, position)
        if match is None:
            raise InputError(f"{location}: no command line", "a quote or an escape does not end", "Correct the quotes.")
        group_name, text = match.lastgroup, match[match.lastgroup or 0]
        if group_name == "blank":
            words += ["".join(parts)] if parts else []
            parts = []
        elif group_name == "plain" and not parts and text.startswith("#"):
            break
        else:
            parts.append(_ESCAPED_CHARACTER.sub(r"\1", text) if group_name == "double" else text)
        position = match.end()
    return [*words, "".join(parts)] if parts else words


def expand_variables(pattern: re.Pattern[str], find_value: Callable[[re.Match[str]], str], line: str,
                     location: str) -> str:
    """Returns a line with the values of its variables.

    Raises:
        InputError: the line would have over `MAX_TEXT_BYTES` characters.
    """
    total_length = len(line)

    def replace_variable(match: re.Match[str]) -> str:
        nonlocal total_length
        text = find_value(match)
        total_length += len(text)
        if total_length > MAX_TEXT_BYTES:
            raise InputError(f"{location}: a line is too long",
                             f"with its variables it has over {MAX_TEXT_BYTES:,} characters", "Write the command out.")
        return text

    return pattern.sub(replace_variable, line)
