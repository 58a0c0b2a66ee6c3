"""Lines of styled text.

Nothing here draws. A line is a list of spans, a span a text and the name of a style; `trt_tui.tui.widgets.lines` knows
what the names look like. Figures are written by `trt_tui.formatting`.
"""

import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import Accuracy
from trt_tui.formatting import (
    NOT_MEASURED,
    SIMULATED_MARK,
    cell_width,
    escape_hidden_characters,
    pad_right,
    take_first_cells,
    take_last_cells,
)

Span: TypeAlias = tuple[str, str]
"""A text and the name of its style: "", "dim", "strong", "bad", "good", "warn", "stale", "key", "rule", "plot" or
"band0" to "band4". What stands behind an "@" is an action of the main screen, done when the text is clicked:
"key@do('build')"."""

Line: TypeAlias = list[Span]

_MAX_MEASURED_CHARACTERS = 2000
"""Characters of a text that is shortened before it is measured."""

_MAX_PATH_NAMES = 16
"""Names of a path of which it is tried which to leave out; the trials grow with their square."""


def line_width(line: Line) -> int:
    """How many cells a line takes as it is drawn."""
    return sum(cell_width(escape_hidden_characters(text)) for text, _ in line)


def shorten_middle(text: str, width: int) -> str:
    """The text with its middle replaced by an ellipsis where it is wider than ``width`` cells; its end says most."""
    if len(text) > _MAX_MEASURED_CHARACTERS:  # before it is looked at as a whole
        text = f"{text[:_MAX_MEASURED_CHARACTERS // 2]}…{text[-_MAX_MEASURED_CHARACTERS // 2:]}"
    text = escape_hidden_characters(text)
    if cell_width(text) <= width:
        return text
    if width <= 1:
        return "…"[:max(0, width)]
    head = (width - 1) // 3
    first, last = take_first_cells(text, head), take_last_cells(text, width - 1 - head)
    first = text[:move_index_outside_number(text, len(first))]
    return f"{first}…{text[move_index_outside_number(text, len(text) - len(last), False):]}"


_NUMBER_PATTERN = re.compile(r"[~<≥≤±+-]{0,2}(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?%?")
"""A number as the program writes one, with its marks."""

_MAX_NUMBER_CELLS = 12
"""Cells of a number that is kept whole; a longer one is rather a name."""


def move_index_outside_number(text: str, index: int, moves_back: bool = True) -> int:
    """Returns a place to cut a text at: before or behind the number that the given place lies in, else that place."""
    if not 0 < index < len(text) or not (_is_numeric(text[index - 1]) and _is_numeric(text[index])):
        return index
    for match in _NUMBER_PATTERN.finditer(text, max(0, index - _MAX_NUMBER_CELLS), index + _MAX_NUMBER_CELLS):
        if match.start() < index < match.end() and match.end() - match.start() <= _MAX_NUMBER_CELLS:
            return match.start() if moves_back else match.end()
    return index


def _is_numeric(character: str) -> bool:
    return character.isdigit() or character in "~<≥≤±+-.%e"


def shorten_distinctly(texts: Iterable[str], width: int) -> dict[str, str]:
    """Returns each of some texts as `shorten_path` has it, or otherwise where two of them would look alike.

    Texts that would be alike show the part in which they differ; where there is no room for that they are numbered.
    """
    short_texts = {
        text: text if text.isascii() and text.isprintable() and len(text) <= width else shorten_path(text, width)
        for text in dict.fromkeys(texts)
    }
    texts_by_short: dict[str, list[str]] = {}
    for text, short_text in short_texts.items():
        texts_by_short.setdefault(short_text, []).append(text)
    used_texts = {short_text for short_text, equal_texts in texts_by_short.items() if len(equal_texts) == 1}
    for short_text, equal_texts in texts_by_short.items():
        if len(equal_texts) == 1:
            continue
        start, end = len(os.path.commonprefix(equal_texts)), len(
            os.path.commonprefix([text[::-1] for text in equal_texts]))
        end = min(end, min(map(len, equal_texts)) - start)
        for text in equal_texts:
            candidate = _shorten_around_part(text, start, len(text) - end, width)
            number = 1
            while candidate is None or candidate in used_texts:
                tag = f"#{number}"
                place = move_index_outside_number(short_text, len(take_first_cells(short_text, width - len(tag))))
                candidate, number = f"{short_text[:place]}{tag}", number + 1
            short_texts[text] = candidate
            used_texts.add(candidate)
    return short_texts


def _shorten_around_part(text: str, part_start: int, part_end: int, width: int) -> str | None:
    """Returns a text with a part of it whole and as much of its end and beginning as fits; None if there is no room."""
    part_start, part_end = move_index_outside_number(text, part_start), move_index_outside_number(text, part_end, False)
    if text != escape_hidden_characters(text) or cell_width(text[part_start:part_end]) + 2 > width:
        return None
    room = width - cell_width(text[part_start:part_end])
    end_text = text[part_end:]
    if cell_width(end_text) > room - 1:
        cut = len(end_text) - len(take_last_cells(end_text, room - 2))
        end_text = f"…{end_text[move_index_outside_number(end_text, cut, False):]}"
    start_text, room = text[:part_start], room - cell_width(end_text)
    if cell_width(start_text) > room:
        start_text = take_first_cells(start_text, room - 1)
        start_text = f"{start_text[:move_index_outside_number(text, len(start_text))]}…"
    return f"{start_text}{text[part_start:part_end]}{end_text}"


@lru_cache(maxsize=8192)
def shorten_path(text: str, width: int) -> str:
    """A path with names replaced by ellipses where it is wider than ``width`` cells: those after the first, then with
    it, then any but the last; numbers, which tell layers apart, go last. As `shorten_middle` where that leaves too
    much, and for paths that are long or of many names."""
    if len(text) > _MAX_MEASURED_CHARACTERS:
        return shorten_middle(text, width)
    text = escape_hidden_characters(text)
    parts = text.split("/")
    if cell_width(text) <= width or not 2 <= len(parts) <= _MAX_PATH_NAMES:
        return shorten_middle(text, width)
    middle = range(1, len(parts) - 1)
    runs = [range(first, end) for first in (1, 0) for end in range(first + 1, len(parts))]
    word_indices = [index for index in (*middle, 0) if not parts[index].isdigit()]
    for dropped_indices in (*(run for run in runs if not any(parts[index].isdigit() for index in run)),
                            *(word_indices[:count] for count in range(1, len(word_indices) + 1)), *runs):
        names = ["…" if index in dropped_indices else part for index, part in enumerate(parts)]
        shorter = "/".join(part for index, part in enumerate(names)
                           if part != "…" or index == 0 or names[index - 1] != "…")
        if cell_width(shorter) <= width:
            return shorter
    return shorten_middle(text, width)


def pad_or_shorten(text: str, width: int) -> str:
    """The text shortened to ``width`` cells, or with blanks up to it."""
    return pad_right(shorten_middle(text, width), width)


def clip_line(line: Line, width: int) -> Line:
    """The line cut to ``width`` cells, with an ellipsis where something was cut."""
    if line_width(line) <= width:
        return line
    result: Line = []
    room = width - 1
    for text, style in line:
        visible_text = escape_hidden_characters(text)
        first = take_first_cells(visible_text, room)
        first = first[:move_index_outside_number(visible_text, len(first))]
        result.append((first, style))
        room -= cell_width(first)
        if first != visible_text:
            break
    return [*result, ("…", "dim")]


def justify_line(line: Line, width: int, right_spans: Sequence[Span] = ()) -> Line:
    """The line, then blanks, then ``right_spans`` at the right edge; ``right_spans`` goes first where there is no room.
    """
    gap = width - line_width(line) - line_width(list(right_spans))
    if right_spans and gap >= 1:
        return [*line, (" " * gap, ""), *right_spans]
    line = clip_line(line, width)
    return [*line, (" " * max(0, width - line_width(line)), "")]


def wrap_text(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` cells."""
    lines, current = [], ""
    for word in escape_hidden_characters(text, keep_line_breaks=True).split():
        if current and cell_width(current) + 1 + cell_width(word) > width:
            lines.append(current)
            current = ""
        while not current and width > 1 and (part := take_first_cells(word, width)) != word:
            lines.append(part)
            word = word[len(part):]
        current = f"{current} {word}" if current else word
    return [*lines, current] if current else lines


def sqnr_span(errors: ErrorMetrics | None, is_simulated: bool = True) -> Span:
    """The SQNR in dB, "exact", "NaN" or "Inf", or a dash where it was not measured."""
    if errors is None:
        return (NOT_MEASURED, "dim")
    text = errors.sqnr_text(SIMULATED_MARK if is_simulated else "")
    return (text, "bad" if errors.nonfinite_count else "dim" if text == NOT_MEASURED else "")


def worst_sqnr_span(accuracy: Accuracy | None, is_simulated: bool = True) -> Span:
    """The SQNR of the worst output; a dash where nothing was measured."""
    worst_output = accuracy.worst_output if accuracy is not None else None
    return sqnr_span(worst_output[1].errors if worst_output is not None else None, is_simulated)
