"""Lines of styled text as plain data, with functions that shorten, clip and wrap texts to a number of terminal cells.

A line is a list of spans. A span is a text and the name of a style. `trt_tui.tui.widgets.lines` maps style names to
colours, and `trt_tui.formatting` formats numbers. This module draws nothing.
"""

import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.formatting import (
    NOT_MEASURED,
    SIMULATED_MARK,
    cell_width,
    escape_hidden_characters,
    take_first_cells,
    take_last_cells,
)

Span: TypeAlias = tuple[str, str]
"""A text and the name of its style: "", "dim", "strong", "bad", "good", "warn", "stale", "key", "rule", "plot",
"raised", "band0" to "band4", or "chip32" to "chip4". Several names are separated by blanks. A suffix such as
"@do('build')" names the action of the main screen that a click on the text performs: "key@do('build')"."""

Line: TypeAlias = list[Span]

_MAX_MEASURED_CHARACTERS = 2000
"""The maximum length of a text whose width is measured. A longer text is cut before."""

_MAX_PATH_NAMES = 16
"""The maximum number of names in a path that `shorten_path` shortens name by name. The number of trials is quadratic in
it."""


def line_width(line: Line) -> int:
    """Returns the width of a line in terminal cells, with hidden characters escaped."""
    return sum(cell_width(escape_hidden_characters(text)) for text, _ in line)


def find_span(line: Line, cell: int) -> Span | None:
    """Returns the span at a cell of a line; None behind its end."""
    ends = accumulate(line_width([span]) for span in line)
    return next((span for span, end in zip(line, ends, strict=True) if cell < end), None)


def line_text(line: Line) -> str:
    """Returns the text of a line, without styles and with hidden characters escaped."""
    return "".join(escape_hidden_characters(text) for text, _ in line)


def choose_fitting_text(texts: Sequence[str], width: int) -> str:
    """Returns the first text that fits into ``width`` cells; the last text if none fits."""
    return next((text for text in texts if cell_width(text) <= width), texts[-1])


def shorten_middle(text: str, width: int) -> str:
    """Returns a text in at most ``width`` cells, with an ellipsis in place of its middle if it is too wide.

    About two thirds of the cells show the end of the text, because the end distinguishes names best.
    """
    if len(text) > _MAX_MEASURED_CHARACTERS:  # so that an extremely long text is never measured whole
        text = f"{text[: _MAX_MEASURED_CHARACTERS // 2]}…{text[-_MAX_MEASURED_CHARACTERS // 2 :]}"
    text = escape_hidden_characters(text)
    if cell_width(text) <= width:
        return text
    if width <= 1:
        return "…"[: max(0, width)]
    head = (width - 1) // 3
    first, last = take_first_cells(text, head), take_last_cells(text, width - 1 - head)
    first = text[: move_index_outside_number(text, len(first))]
    return f"{first}…{text[move_index_outside_number(text, len(text) - len(last), False) :]}"


_NUMBER_PATTERN = re.compile(r"[~<≥≤±+-]{0,2}(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?%?")
"""A number with its marks, as the program writes numbers."""

_MAX_NUMBER_CELLS = 12
"""The maximum width of a number that is never cut. A longer number is part of a name."""


def move_index_outside_number(text: str, index: int, moves_back: bool = True) -> int:
    """Returns an index at which a text can be cut without cutting a number.

    If the given index is inside a number, the result is the start of that number, or its end if ``moves_back`` is
    False.
    """
    if not 0 < index < len(text) or not (_is_numeric(text[index - 1]) and _is_numeric(text[index])):
        return index
    for match in _NUMBER_PATTERN.finditer(text, max(0, index - _MAX_NUMBER_CELLS), index + _MAX_NUMBER_CELLS):
        if match.start() < index < match.end() and match.end() - match.start() <= _MAX_NUMBER_CELLS:
            return match.start() if moves_back else match.end()
    return index


def _is_numeric(character: str) -> bool:
    return character.isdigit() or character in "~<≥≤±+-.%e"


def shorten_distinctly(texts: Iterable[str], width: int) -> dict[str, str]:
    """Returns a short form of each text, so that different texts have different short forms.

    The usual short form is the result of `shorten_path`. Texts with equal short forms show the part in which they
    differ. If that part does not fit, the short forms are numbered.
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
        start, end = (
            len(os.path.commonprefix(equal_texts)),
            len(os.path.commonprefix([text[::-1] for text in equal_texts])),
        )
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
    """Returns a short form with the given part whole, and as much of the end and beginning as fits.

    None if the part does not fit.
    """
    part_start, part_end = move_index_outside_number(text, part_start), move_index_outside_number(text, part_end, False)
    if text != escape_hidden_characters(text) or cell_width(text[part_start:part_end]) + 2 > width:
        return None
    room = width - cell_width(text[part_start:part_end])
    end_text = text[part_end:]
    if cell_width(end_text) > room - 1:
        cut = len(end_text) - len(take_last_cells(end_text, room - 2))
        end_text = f"…{end_text[move_index_outside_number(end_text, cut, False) :]}"
    start_text, room = text[:part_start], room - cell_width(end_text)
    if cell_width(start_text) > room:
        start_text = take_first_cells(start_text, room - 1)
        start_text = f"{start_text[: move_index_outside_number(text, len(start_text))]}…"
    return f"{start_text}{text[part_start:part_end]}{end_text}"


@lru_cache(maxsize=8192)
def shorten_path(text: str, width: int) -> str:
    """Returns a path in at most ``width`` cells, with ellipses in place of some names if it is too wide.

    Names after the first are replaced first, then names including the first, then any except the last. Names that are
    numbers are kept longest, because numbers distinguish layers. If this is not short enough, or the path is very long,
    the result is that of `shorten_middle`.
    """
    if len(text) > _MAX_MEASURED_CHARACTERS:
        return shorten_middle(text, width)
    text = escape_hidden_characters(text)
    parts = text.split("/")
    if cell_width(text) <= width or not 2 <= len(parts) <= _MAX_PATH_NAMES:
        return shorten_middle(text, width)
    middle = range(1, len(parts) - 1)
    runs = [range(first, end) for first in (1, 0) for end in range(first + 1, len(parts))]
    word_indices = [index for index in (*middle, 0) if not parts[index].isdigit()]
    for dropped_indices in (
        *(run for run in runs if not any(parts[index].isdigit() for index in run)),
        *(word_indices[:count] for count in range(1, len(word_indices) + 1)),
        *runs,
    ):
        names = ["…" if index in dropped_indices else part for index, part in enumerate(parts)]
        shorter = "/".join(
            part for index, part in enumerate(names) if part != "…" or index == 0 or names[index - 1] != "…"
        )
        if cell_width(shorter) <= width:
            return shorter
    return shorten_middle(text, width)


def clip_line(line: Line, width: int) -> Line:
    """Returns a line in at most ``width`` cells, with an ellipsis at its end if it was cut."""
    if line_width(line) <= width:
        return line
    result: Line = []
    room = width - 1
    for text, style in line:
        visible_text = escape_hidden_characters(text)
        first = take_first_cells(visible_text, room)
        first = first[: move_index_outside_number(visible_text, len(first))]
        result.append((first, style))
        room -= cell_width(first)
        if first != visible_text:
            break
    return [*result, ("…", "dim")]


def justify_line(line: Line, width: int, right_spans: Sequence[Span] = ()) -> Line:
    """Returns a line of ``width`` cells: the given spans, blanks, and ``right_spans`` at the right edge.

    If there is no room, ``right_spans`` is omitted.
    """
    gap = width - line_width(line) - line_width(list(right_spans))
    if right_spans and gap >= 1:
        return [*line, (" " * gap, ""), *right_spans]
    line = clip_line(line, width)
    return [*line, (" " * max(0, width - line_width(line)), "")]


def wrap_text(text: str, width: int) -> list[str]:
    """Returns a text wrapped into lines of at most ``width`` cells."""
    lines, current = [], ""
    for word in escape_hidden_characters(text, keep_line_breaks=True).split():
        if current and cell_width(current) + 1 + cell_width(word) > width:
            lines.append(current)
            current = ""
        while not current and width > 1 and (part := take_first_cells(word, width)) != word:
            lines.append(part)
            word = word[len(part) :]
        current = f"{current} {word}" if current else word
    return [*lines, current] if current else lines


def labelled_lines(
    label: str, texts: str | Sequence[str], width: int, style: str = "", label_width: int = 10, label_style: str = "dim"
) -> list[Line]:
    """Returns wrapped texts behind a label, which stands in a column of its own on the first line."""
    parts = [
        part
        for text in ([texts] if isinstance(texts, str) else texts)
        for part in wrap_text(text, max(10, width - label_width))
    ]
    return [
        [(f"{'' if index else label:<{label_width}}", label_style), (part, style)] for index, part in enumerate(parts)
    ]


def sqnr_span(errors: ErrorMetrics | None, is_simulated: bool = True) -> Span:
    """Returns the styled text of an SQNR in dB: a number, "exact", "NaN" or "Inf"; a dash if it was not measured."""
    if errors is None:
        return (NOT_MEASURED, "dim")
    text = errors.sqnr_text(SIMULATED_MARK if is_simulated else "")
    return (text, "bad" if errors.nonfinite_count else "dim" if text == NOT_MEASURED else "")
