"""Pictures drawn in text: bars, marks below them, strips, points on a plane. Plain data to lines.

Only block elements and box drawing are used, so that they are legible without colours, in 16 of them and when copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trt_tui.tui.spans import Line, Span, clip
from trt_tui.words import cells, left, right

BLOCKS = " ▁▂▃▄▅▆▇█"
"""Heights of a cell in eighths."""


def height_of(fraction: float, rows: int = 1) -> int:
    """A fraction of so many rows in eighths of a row; what is more than nothing is seen."""
    if not fraction > 0:
        return 0
    return max(1, round(min(1.0, fraction) * rows * 8))


def bars(fractions: Sequence[float], rows: int, cell: int = 1, styles: Sequence[str] = ()) -> list[Line]:
    """Upright bars beside each other, each ``cell`` wide, as so many lines.

    Args:
        fractions: Heights from 0 to 1.
        styles: Of each bar; all are "plot" where there are none.
    """
    lines: list[Line] = []
    for level in reversed(range(rows)):
        lines.append(joined((BLOCKS[max(0, min(8, height_of(fraction, rows) - level * 8))] * cell,
                             styles[place] if styles else "plot") for place, fraction in enumerate(fractions)))
    return lines


def joined(spans: Iterable[Span]) -> Line:
    """The spans with neighbours of one style put together; blanks take any, so that little is written."""
    line: Line = []
    for text, style in spans:
        if line and (line[-1][1] == style or text.isspace()):
            line[-1] = (line[-1][0] + text, line[-1][1])
        else:
            line.append((text, style))
    return line


def binned(values: Sequence[float], most: int, how: Callable[[Iterable[float]], float] = max) -> list[float]:
    """The values, or where there are more than ``most`` what ``how`` makes of each of so many runs of neighbours."""
    if len(values) <= most:
        return list(values)
    ends = [place * len(values) // most for place in range(most + 1)]
    return [how(values[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def bin_of(place: int, count: int, most: int) -> int:
    """Which of the runs of `binned` a value lies in."""
    return place if count <= most else next(run for run in range(most) if place < (run + 1) * count // most)


def sparkline(values: Sequence[float], width: int, how: Callable[[Iterable[float]], float] = max) -> str:
    """One line of bars, the highest full; values below 0 are drawn as none."""
    shown = binned(values, width, how)
    top = max(shown, default=0.0)
    return "".join(BLOCKS[height_of(value / top if top > 0 else 0.0)] for value in shown)


def strip(amaxes: Sequence[float], width: int) -> str:
    """Ranges of channels as one line: the largest is full, and each eighth less is half of it, which codes of one scale
    hold with a bit less. Channels that hold nothing are empty; of more than fit the largest of each run is drawn."""
    shown = binned(amaxes, width)
    top = max(shown, default=0.0)
    cell = max(1, min(3, width // max(1, len(shown))))
    return "".join(BLOCKS[0 if value <= 0 else max(1, 8 + round(math.log2(value / top)))] * cell for value in shown)


@dataclass(frozen=True)
class Mark:
    """A word below a bar, in the column that it is about."""

    column: int
    text: str
    style: str = "dim"


def mark_lines(marks: Sequence[Mark], width: int) -> list[Line]:
    """A tick under the column of each mark, then their words in the same order, as near to their ticks as there is
    room; on as many lines as it takes where the width does not hold them beside each other."""
    inside = sorted((mark for mark in marks if 0 <= mark.column < width), key=lambda one: one.column)
    if not inside:
        return []
    ticks: Line = []
    for mark in inside:
        gap = mark.column - sum(len(text) for text, _ in ticks)
        if gap >= 0:
            ticks += [(" " * gap, ""), ("╵", mark.style)]
    rows: list[Line] = []
    while inside:
        fit = len(inside)
        while fit > 1 and sum(cells(mark.text) + 2 for mark in inside[:fit]) - 2 > width:
            fit -= 1
        rows.append(_words(inside[:fit], width))
        inside = inside[fit:]
    return [clip(line, width) for line in (ticks, *rows)]


def _words(marks: Sequence[Mark], width: int) -> Line:
    """The words of marks on one line, each moved no further than the others need."""
    starts: list[int] = []
    free = 0
    for mark in marks:
        starts.append(max(free, mark.column - cells(mark.text) // 2))
        free = starts[-1] + cells(mark.text) + 2
    end = width
    for place in reversed(range(len(marks))):
        starts[place] = max(0, min(starts[place], end - cells(marks[place].text)))
        end = starts[place] - 2
    line: Line = []
    for start, mark in zip(starts, marks, strict=True):
        line += [(" " * (start - sum(cells(text) for text, _ in line)), ""), (mark.text, mark.style)]
    return line


@dataclass(frozen=True)
class Spot:
    """A point of a plot: where it is, how it is drawn, and what is written beside it if there is room.

    Attributes:
        across, up: In the units of the axes; ``up`` may be infinite, which is drawn at the edge.
    """

    across: float
    up: float
    glyph: str
    style: str = ""
    label: str = ""


@dataclass(frozen=True)
class Axis:
    """One axis: where it begins and ends, and how its figures are written."""

    low: float
    high: float
    text: Callable[[float], str]

    @classmethod
    def around(cls, values: Iterable[float], text: Callable[[float], str], zero: bool = False) -> Axis:
        """An axis with some room around finite values; from 0 where asked."""
        known = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(known), max(known)
        room = (high - low or abs(high) or 1.0) * 0.08
        return cls(0.0 if zero and low >= 0 else low - room, high + room, text)

    def part(self, value: float) -> float:
        """How far along it a value lies, from 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def plane(spots: Sequence[Spot], across: Axis, up: Axis, width: int, height: int, level: float | None = None,
          title: str = "") -> list[Line]:
    """Points on a plane, of which the later ones lie over the earlier, in so many cells with the figures at the axes.

    Args:
        level: Drawn as a broken line across.
        title: Of the lower axis.
    """
    label = max(cells(up.text(value)) for value in (up.low, up.high, *([level] if level is not None else [])))
    wide, high = max(10, width - label - 2), max(3, height - 2)
    grid: list[list[tuple[str, str]]] = [[(" ", "")] * wide for _ in range(high)]
    sides = {0: up.text(up.high), high - 1: up.text(up.low)}

    bound = None if level is None else high - 1 - round(up.part(level) * (high - 1))

    def row_of(value: float) -> int:
        row = high - 1 - round(up.part(value) * (high - 1))
        if level is not None and row == bound:  # what reaches it lies above it
            row += -1 if value >= level else 1
        return min(high - 1, max(0, row))

    if level is not None and bound is not None:
        grid[bound] = [("┄", "rule")] * wide
        sides |= {bound: up.text(level)}
    places = [(row_of(spot.up), round(across.part(spot.across) * (wide - 1)), spot) for spot in spots]
    for row, column, spot in places:
        grid[row][column] = (spot.glyph, spot.style)
    taken = {(row, column) for row, column, _ in places}
    for row, column, spot in reversed(places):
        text = f" {spot.label}"
        for start in (column + 1, column - len(text)):
            room = range(start - 1 if start < column else start, start + len(text) + 1)
            if spot.label and start >= 0 and start + len(text) <= wide and not any((row, at) in taken for at in room):
                shown = text if start > column else text[1:] + " "
                for at, letter in enumerate(shown, start):
                    grid[row][at] = (letter, "dim")
                    taken.add((row, at))
                break
    lines: list[Line] = [[(right(sides.get(row, ""), label), "dim"), ("┤" if row in sides else "│", "rule"),
                          *joined(line)] for row, line in enumerate(grid)]
    ends = left(across.text(across.low), wide // 3), right(across.text(across.high), wide // 3)
    middle = wide - cells(ends[0]) - cells(ends[1])
    lines.append([(" " * label, ""), ("└" + "─" * wide, "rule")])
    lines.append([(" " * (label + 1), ""), (ends[0], "dim"), (title[:middle].center(middle), "dim"), (ends[1], "dim")])
    return lines
