"""Pictures drawn in text: bars, marks below them, strips, points on a plane. Plain data to lines.

Only block elements and box drawing are used, so that they are legible without colours, in 16 of them and when copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trt_tui.formatting import cell_width, pad_left, pad_right
from trt_tui.tui.spans import Line, Span, clip_line

HEIGHT_BLOCKS = " ▁▂▃▄▅▆▇█"
"""Heights of a cell in eighths."""


def bar_height_in_eighths(fraction: float, row_count: int = 1) -> int:
    """A fraction of so many rows in eighths of a row; what is more than nothing is seen."""
    if not fraction > 0:
        return 0
    return max(1, round(min(1.0, fraction) * row_count * 8))


def bar_lines(fractions: Sequence[float], row_count: int, cell_width: int = 1,
              styles: Sequence[str] = ()) -> list[Line]:
    """Upright bars beside each other, each ``cell_width`` wide, as so many lines.

    Args:
        fractions: Heights from 0 to 1.
        styles: Of each bar; all are "plot" where there are none.
    """
    lines: list[Line] = []
    for row in reversed(range(row_count)):
        lines.append(
            join_spans((HEIGHT_BLOCKS[max(0, min(8,
                                                 bar_height_in_eighths(fraction, row_count) - row * 8))] * cell_width,
                        styles[index] if styles else "plot") for index, fraction in enumerate(fractions)))
    return lines


def join_spans(spans: Iterable[Span]) -> Line:
    """The spans with neighbours of one style put together; blanks take any, so that little is written."""
    line: Line = []
    for text, style in spans:
        if line and (line[-1][1] == style or text.isspace()):
            line[-1] = (line[-1][0] + text, line[-1][1])
        else:
            line.append((text, style))
    return line


def bin_values(values: Sequence[float], max_bins: int, reduce_bin: Callable[[Iterable[float]],
                                                                            float] = max) -> list[float]:
    """The values, or where there are more than ``max_bins`` what ``reduce_bin`` makes of each of so many runs of
    neighbours."""
    if len(values) <= max_bins:
        return list(values)
    ends = [index * len(values) // max_bins for index in range(max_bins + 1)]
    return [reduce_bin(values[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def find_bin_of_index(value_index: int, value_count: int, max_bins: int) -> int:
    """Which of the runs of `bin_values` a value lies in."""
    return value_index if value_count <= max_bins else next(bin_number for bin_number in range(max_bins)
                                                            if value_index < (bin_number + 1) * value_count // max_bins)


def sparkline_text(values: Sequence[float], width: int, reduce_bin: Callable[[Iterable[float]], float] = max) -> str:
    """One line of bars, the highest full; values below 0 are drawn as none."""
    bins = bin_values(values, width, reduce_bin)
    max_value = max(bins, default=0.0)
    return "".join(HEIGHT_BLOCKS[bar_height_in_eighths(value / max_value if max_value > 0 else 0.0)] for value in bins)


def channel_range_strip(amaxes: Sequence[float], width: int) -> str:
    """Ranges of channels as one line: the largest is full, and each eighth less is half of it, which codes of one scale
    hold with a bit less. Channels that hold nothing are empty; of more than fit the largest of each run is drawn."""
    bins = bin_values(amaxes, width)
    max_value = max(bins, default=0.0)
    cell_width = max(1, min(3, width // max(1, len(bins))))
    return "".join(HEIGHT_BLOCKS[0 if value <= 0 else max(1, 8 + round(math.log2(value / max_value)))] * cell_width
                   for value in bins)


@dataclass(frozen=True)
class BarLabel:
    """A word below a bar, in the column that it is about."""

    column: int
    text: str
    style: str = "dim"


def bar_label_lines(labels: Sequence[BarLabel], width: int) -> list[Line]:
    """A tick under the column of each mark, then their words in the same order, as near to their ticks as there is
    room; on as many lines as it takes where the width does not hold them beside each other."""
    inside = sorted((bar_label for bar_label in labels if 0 <= bar_label.column < width),
                    key=lambda entry: entry.column)
    if not inside:
        return []
    ticks: Line = []
    for bar_label in inside:
        gap = bar_label.column - sum(len(text) for text, _ in ticks)
        if gap >= 0:
            ticks += [(" " * gap, ""), ("╵", bar_label.style)]
    rows: list[Line] = []
    while inside:
        fitting_count = len(inside)
        while fitting_count > 1 and sum(cell_width(bar_label.text) + 2
                                        for bar_label in inside[:fitting_count]) - 2 > width:
            fitting_count -= 1
        rows.append(_bar_label_line(inside[:fitting_count], width))
        inside = inside[fitting_count:]
    return [clip_line(line, width) for line in (ticks, *rows)]


def _bar_label_line(labels: Sequence[BarLabel], width: int) -> Line:
    """The words of marks on one line, each moved no further than the others need."""
    starts: list[int] = []
    next_free = 0
    for bar_label in labels:
        starts.append(max(next_free, bar_label.column - cell_width(bar_label.text) // 2))
        next_free = starts[-1] + cell_width(bar_label.text) + 2
    end = width
    for index in reversed(range(len(labels))):
        starts[index] = max(0, min(starts[index], end - cell_width(labels[index].text)))
        end = starts[index] - 2
    line: Line = []
    for start, bar_label in zip(starts, labels, strict=True):
        line += [(" " * (start - sum(cell_width(text) for text, _ in line)), ""), (bar_label.text, bar_label.style)]
    return line


@dataclass(frozen=True)
class PlotPoint:
    """A point of a plot: where it is, how it is drawn, and what is written beside it if there is room.

    Attributes:
        x, y: In the units of the axes; ``y`` may be infinite, which is drawn at the edge.
    """

    x: float
    y: float
    glyph: str
    style: str = ""
    label: str = ""


@dataclass(frozen=True)
class PlotAxis:
    """One axis: where it begins and ends, and how its figures are written."""

    low: float
    high: float
    format_value: Callable[[float], str]

    @classmethod
    def from_values(cls, values: Iterable[float], format_value: Callable[[float], str],
                    starts_at_zero: bool = False) -> PlotAxis:
        """An axis with some room around finite values; from 0 where asked."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        room = (high - low or abs(high) or 1.0) * 0.08
        return cls(0.0 if starts_at_zero and low >= 0 else low - room, high + room, format_value)

    def relative_position(self, value: float) -> float:
        """How far along it a value lies, from 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def scatter_lines(points: Sequence[PlotPoint], x_axis: PlotAxis, y_axis: PlotAxis, width: int, height: int,
                  target_level: float | None = None, title: str = "") -> list[Line]:
    """Points on a plane, of which the later ones lie over the earlier, in so many cells with the figures at the axes.

    Args:
        target_level: Drawn as a broken line across.
        title: Of the lower axis.
    """
    label = max(
        cell_width(y_axis.format_value(value))
        for value in (y_axis.low, y_axis.high, *([target_level] if target_level is not None else [])))
    plot_width, plot_height = max(10, width - label - 2), max(3, height - 2)
    grid: list[list[tuple[str, str]]] = [[(" ", "")] * plot_width for _ in range(plot_height)]
    row_labels = {0: y_axis.format_value(y_axis.high), plot_height - 1: y_axis.format_value(y_axis.low)}

    level_row = None if target_level is None else plot_height - 1 - round(
        y_axis.relative_position(target_level) * (plot_height - 1))

    def find_grid_row(value: float) -> int:
        row = plot_height - 1 - round(y_axis.relative_position(value) * (plot_height - 1))
        if target_level is not None and row == level_row:  # what reaches it lies above it
            row += -1 if value >= target_level else 1
        return min(plot_height - 1, max(0, row))

    if target_level is not None and level_row is not None:
        grid[level_row] = [("┄", "rule")] * plot_width
        row_labels |= {level_row: y_axis.format_value(target_level)}
    placed_points = [(find_grid_row(point.y), round(x_axis.relative_position(point.x) * (plot_width - 1)), point)
                     for point in points]
    for row, column, point in placed_points:
        grid[row][column] = (point.glyph, point.style)
    occupied = {(row, column) for row, column, _ in placed_points}
    for row, column, point in reversed(placed_points):
        text = f" {point.label}"
        for start in (column + 1, column - len(text)):
            room = range(start - 1 if start < column else start, start + len(text) + 1)
            if point.label and start >= 0 and start + len(text) <= plot_width and not any(
                (row, x) in occupied for x in room):
                label_text = text if start > column else text[1:] + " "
                for x, letter in enumerate(label_text, start):
                    grid[row][x] = (letter, "dim")
                    occupied.add((row, x))
                break
    lines: list[Line] = [[(pad_left(row_labels.get(row, ""), label), "dim"),
                          ("┤" if row in row_labels else "│", "rule"), *join_spans(line)]
                         for row, line in enumerate(grid)]
    ends = pad_right(x_axis.format_value(x_axis.low), plot_width // 3), pad_left(x_axis.format_value(x_axis.high),
                                                                                 plot_width // 3)
    middle = plot_width - cell_width(ends[0]) - cell_width(ends[1])
    lines.append([(" " * label, ""), ("└" + "─" * plot_width, "rule")])
    lines.append([(" " * (label + 1), ""), (ends[0], "dim"), (title[:middle].center(middle), "dim"), (ends[1], "dim")])
    return lines
