"""Lines of styled text.

Nothing here draws. A line is a list of spans, a span a text and the name of a style; `trt_tui.tui.widgets.lines` knows
what the names look like. Figures are written by `trt_tui.words`.
"""

import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

from trt_tui.core.measure.comparison import Errors
from trt_tui.words import NOTHING, SIMULATED, cells, first_cells, last_cells, left, visible

Span: TypeAlias = tuple[str, str]
"""A text and the name of its style: "", "dim", "strong", "bad", "good", "warn", "stale", "key", "rule", "plot" or
"band0" to "band4". What stands behind an "@" is an action of the main screen, done when the text is clicked:
"key@do('build')"."""

Line: TypeAlias = list[Span]

_LONG = 2000
"""Characters of a text that is shortened before it is measured."""

_MOST_NAMES = 16
"""Names of a path of which it is tried which to leave out; the trials grow with their square."""


def width_of(line: Line) -> int:
    """How many cells a line takes as it is drawn."""
    return sum(cells(visible(text)) for text, _ in line)


def shorten(text: str, width: int) -> str:
    """The text with its middle replaced by an ellipsis where it is wider than ``width`` cells; its end says most."""
    if len(text) > _LONG:  # before it is looked at as a whole
        text = f"{text[:_LONG // 2]}…{text[-_LONG // 2:]}"
    text = visible(text)
    if cells(text) <= width:
        return text
    if width <= 1:
        return "…"[:max(0, width)]
    head = (width - 1) // 3
    first, last = first_cells(text, head), last_cells(text, width - 1 - head)
    first = text[:outside_number(text, len(first))]
    return f"{first}…{text[outside_number(text, len(text) - len(last), False):]}"


_NUMBER = re.compile(r"[~<≥≤±+-]{0,2}(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?%?")
"""A number as the program writes one, with its marks."""

_MAX_DIGITS = 12
"""Cells of a number that is kept whole; a longer one is rather a name."""


def outside_number(text: str, place: int, before: bool = True) -> int:
    """Returns a place to cut a text at: before or behind the number that the given place lies in, else that place."""
    if not 0 < place < len(text) or not (_is_numeric(text[place - 1]) and _is_numeric(text[place])):
        return place
    for found in _NUMBER.finditer(text, max(0, place - _MAX_DIGITS), place + _MAX_DIGITS):
        if found.start() < place < found.end() and found.end() - found.start() <= _MAX_DIGITS:
            return found.start() if before else found.end()
    return place


def _is_numeric(character: str) -> bool:
    return character.isdigit() or character in "~<≥≤±+-.%e"


def shorten_apart(texts: Iterable[str], width: int) -> dict[str, str]:
    """Returns each of some texts as `shorten_path` has it, or otherwise where two of them would look alike.

    Texts that would be alike show the part in which they differ; where there is no room for that they are numbered.
    """
    shown = {text: text if text.isascii() and text.isprintable() and len(text) <= width else shorten_path(text, width)
             for text in dict.fromkeys(texts)}
    alike: dict[str, list[str]] = {}
    for text, short in shown.items():
        alike.setdefault(short, []).append(text)
    taken = {short for short, same in alike.items() if len(same) == 1}
    for short, same in alike.items():
        if len(same) == 1:
            continue
        start, end = len(os.path.commonprefix(same)), len(os.path.commonprefix([text[::-1] for text in same]))
        end = min(end, min(map(len, same)) - start)
        for text in same:
            other = _around(text, start, len(text) - end, width)
            number = 1
            while other is None or other in taken:
                tag = f"#{number}"
                place = outside_number(short, len(first_cells(short, width - len(tag))))
                other, number = f"{short[:place]}{tag}", number + 1
            shown[text] = other
            taken.add(other)
    return shown


def _around(text: str, start: int, end: int, width: int) -> str | None:
    """Returns a text with a part of it whole and as much of its end and beginning as fits; None if there is no room."""
    start, end = outside_number(text, start), outside_number(text, end, False)
    if text != visible(text) or cells(text[start:end]) + 2 > width:
        return None
    room = width - cells(text[start:end])
    behind = text[end:]
    if cells(behind) > room - 1:
        cut = len(behind) - len(last_cells(behind, room - 2))
        behind = f"…{behind[outside_number(behind, cut, False):]}"
    first, room = text[:start], room - cells(behind)
    if cells(first) > room:
        first = first_cells(first, room - 1)
        first = f"{first[:outside_number(text, len(first))]}…"
    return f"{first}{text[start:end]}{behind}"


@lru_cache(maxsize=8192)
def shorten_path(text: str, width: int) -> str:
    """A path with names replaced by ellipses where it is wider than ``width`` cells: those after the first, then with
    it, then any but the last; numbers, which tell layers apart, go last. As `shorten` where that leaves too much, and
    for paths that are long or of many names."""
    if len(text) > _LONG:
        return shorten(text, width)
    text = visible(text)
    parts = text.split("/")
    if cells(text) <= width or not 2 <= len(parts) <= _MOST_NAMES:
        return shorten(text, width)
    middle = range(1, len(parts) - 1)
    runs = [range(first, end) for first in (1, 0) for end in range(first + 1, len(parts))]
    loose = [at for at in (*middle, 0) if not parts[at].isdigit()]
    for dropped in (*(run for run in runs if not any(parts[at].isdigit() for at in run)),
                    *(loose[:count] for count in range(1, len(loose) + 1)), *runs):
        kept = ["…" if at in dropped else part for at, part in enumerate(parts)]
        shorter = "/".join(part for at, part in enumerate(kept) if part != "…" or at == 0 or kept[at - 1] != "…")
        if cells(shorter) <= width:
            return shorter
    return shorten(text, width)


def fitted(text: str, width: int) -> str:
    """The text shortened to ``width`` cells, or with blanks up to it."""
    return left(shorten(text, width), width)


def clip(line: Line, width: int) -> Line:
    """The line cut to ``width`` cells, with an ellipsis where something was cut."""
    if width_of(line) <= width:
        return line
    result: Line = []
    room = width - 1
    for text, style in line:
        shown = visible(text)
        first = first_cells(shown, room)
        first = first[:outside_number(shown, len(first))]
        result.append((first, style))
        room -= cells(first)
        if first != shown:
            break
    return [*result, ("…", "dim")]


def padded(line: Line, width: int, right: Sequence[Span] = ()) -> Line:
    """The line, then blanks, then ``right`` at the right edge; ``right`` goes first where there is no room."""
    gap = width - width_of(line) - width_of(list(right))
    if right and gap >= 1:
        return [*line, (" " * gap, ""), *right]
    line = clip(line, width)
    return [*line, (" " * max(0, width - width_of(line)), "")]


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` cells."""
    lines, current = [], ""
    for word in visible(text, lines=True).split():
        if current and cells(current) + 1 + cells(word) > width:
            lines.append(current)
            current = ""
        while not current and width > 1 and (part := first_cells(word, width)) != word:
            lines.append(part)
            word = word[len(part):]
        current = f"{current} {word}" if current else word
    return [*lines, current] if current else lines


def decibel(errors: Errors | None, simulated: bool = True) -> Span:
    """The SQNR in dB, "exact", "NaN" or "Inf", or a dash where it was not measured."""
    if errors is None:
        return (NOTHING, "dim")
    text = errors.figure(SIMULATED if simulated else "")
    return (text, "bad" if errors.bad else "dim" if text == NOTHING else "")
