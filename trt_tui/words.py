"""Text from files, as it is shown to a person."""

from __future__ import annotations

from unicodedata import category

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


def is_hidden(character: str) -> bool:
    """Whether `visible` writes a character out."""
    return category(character) in _HIDDEN


def _shown(character: str, lines: bool) -> str:
    if not is_hidden(character) or lines and character == "\n":
        return character
    return character.encode("unicode_escape").decode("ascii")
