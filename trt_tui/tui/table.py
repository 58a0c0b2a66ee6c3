"""Tables of styled text that fit into a width: columns are left out, narrowed and widened by one rule."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from trt_tui.core.report.document import Block, Table, nonempty_blocks
from trt_tui.formatting import (
    cell_width,
    drop_empty_columns,
    escape_hidden_characters,
    pad_right,
    shorten_number_in_text,
)
from trt_tui.tui.spans import (
    Line,
    Span,
    choose_fitting_text,
    clip_line,
    labelled_lines,
    line_width,
    shorten_distinctly,
    shorten_middle,
)

Cell: TypeAlias = Span | Callable[[int], Line] | None
"""The content of a cell: a styled text, a function that draws it for a width, or None where the cell to the left
extends over the column."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        width: The width in cells; 0 for that of its widest text.
        min_width: The width to which its texts are shortened before columns are left out; 0 if they stay whole.
        max_width: The width to which the column grows if the filling column has cells to spare.
        rank: Without enough room, the columns with the lowest rank are left out first. A column of rank 0 stays.
        narrower_widths: Narrower widths, each by the rank at which the column is narrowed to it; 0 leaves it out.
        spare_cells: The column is left out or narrowed if fewer cells than these are free.
        fills: True if the column has all cells that other columns leave.
        roomy_width: The width of a filling column from which other columns grow.
        long_title: A longer title, for which columns are not left out; "" if there is none.
    """

    title: str
    is_right_aligned: bool = False
    width: int = 0
    min_width: int = 0
    rank: int = 0
    fills: bool = False
    long_title: str = ""
    max_width: int = 0
    narrower_widths: Mapping[int, int] = field(default_factory=dict)
    spare_cells: int = 0
    roomy_width: int = 0


def fit_columns(columns: Sequence[Column], width: int, gap: int = 1) -> dict[int, int]:
    """Returns the widths of the columns that fit into a total width, by their position.

    Without enough room, columns are narrowed and left out by rank, then columns with a minimum width are narrowed.
    """
    widths = {index: column.width for index, column in enumerate(columns)}
    least_widths = {index: min(cells, columns[index].min_width or cells) for index, cells in widths.items()}

    def count_free_cells(cells: Mapping[int, int]) -> int:
        return width + gap - sum(count + gap for count in cells.values() if count)

    steps = sorted(
        (rank, index, narrower_width)
        for index, column in enumerate(columns)
        for rank, narrower_width in {column.rank: 0, **column.narrower_widths}.items()
        if rank
    )
    for _, index, narrower_width in steps:
        if count_free_cells(least_widths) < columns[index].spare_cells:
            widths[index] = least_widths[index] = narrower_width
    widths = {index: cells for index, cells in widths.items() if cells}
    reserve = sum(max(0, column.roomy_width - column.width) for column in columns)
    for index in widths:
        free_cells, column = count_free_cells(widths), columns[index]
        if column.min_width and free_cells < 0:
            widths[index] = max(8, widths[index] + free_cells)
        widths[index] += max(0, min(column.max_width - column.width, free_cells - reserve))
    for index in widths:
        widths[index] += max(0, count_free_cells(widths)) if columns[index].fills else 0
    return widths


def draw_row(cells: Sequence[Cell], columns: Sequence[Column], widths: Mapping[int, int], gap: int = 1) -> Line:
    """Returns a line of a table, whose columns have the widths that `fit_columns` returned."""
    line: Line = []
    room = -gap
    for index in reversed(range(len(cells))):
        cell, room = cells[index], room + (widths[index] + gap if index in widths else 0)
        if cell is None:
            continue
        if room >= 0:
            is_right = columns[index].is_right_aligned
            shorten = shorten_number_in_text if is_right else shorten_middle
            spans = cell(room) if callable(cell) else [(shorten(cell[0], room), cell[1])]
            blanks = " " * (room - line_width(spans))
            if is_right:
                spans[0] = blanks + spans[0][0], spans[0][1]
            if line:  # only a cell with cells to its right is padded
                text, style = spans[-1]
                spans[-1] = f"{text}{'' if is_right else blanks}{' ' * gap}", style
            line = spans + line
        room = -gap
    return line


def fitting_cell(*texts: str, style: str = "dim", is_left_aligned: bool = False) -> Callable[[int], Line]:
    """Returns a cell with the longest of several texts that fits, the last of which is shortened.

    Args:
        is_left_aligned: True for the left edge of the cell whatever its column is.
    """

    def draw(width: int) -> Line:
        text = shorten_middle(choose_fitting_text(texts, width), width)
        return [(pad_right(text, width) if is_left_aligned else text, style)]

    return draw


def fit_table(columns: Sequence[Column], rows: Sequence[Sequence[Span]], width: int, gap: int = 2) -> list[Line]:
    """Returns the line of titles and a line for each row, in at most ``width`` cells.

    The columns are those of `fit_columns`. Where they do not fit, the gap between columns is a single cell. Lines that
    are too long even then lose their end.
    """
    texts = [
        [escape_hidden_characters(text) for text in (column.title, *(row[index][0] for row in rows))]
        for index, column in enumerate(columns)
    ]
    columns = [
        replace(column, width=column.width or max(map(cell_width, texts[index])))
        for index, column in enumerate(columns)
    ]
    widths = fit_columns(columns, width, gap)
    for index, cells in widths.items():
        if columns[index].min_width:
            short_texts = shorten_distinctly(texts[index], cells)
            texts[index] = [short_texts[text] for text in texts[index]]
        free_cells = width + gap - sum(count + gap for count in widths.values())
        if (long_title := columns[index].long_title) and free_cells >= cell_width(long_title) - cells:
            texts[index][0], widths[index] = long_title, max(cells, cell_width(long_title))
    gap = gap if sum(count + gap for count in widths.values()) - gap <= width else 1
    styles = [["dim"] * len(columns), *([style for _, style in row] for row in rows)]
    return [
        clip_line(draw_row(list(zip(row_texts, row_styles, strict=True)), columns, widths, gap), width)
        for row_texts, row_styles in zip(zip(*texts, strict=True), styles, strict=True)
    ]


_MIN_NAME_CELLS = 16
"""The width to which the first column of a table of a report is shortened."""


def block_lines(blocks: Iterable[Block], width: int) -> list[Line]:
    """Returns blocks of a report as lines, with an empty line between two blocks.

    Texts are wrapped. Where a table does not fit, its columns are left out from the fourth on; the last one stays.
    """
    lines: list[Line] = []
    for block in nonempty_blocks(blocks):
        lines += [[]] * bool(lines)
        if isinstance(block, Table):
            header, *rows = drop_empty_columns(block.rows)
            columns = [
                Column(
                    title,
                    index >= block.left_aligned_columns,
                    min_width=0 if index else _MIN_NAME_CELLS,
                    rank=index if 2 < index < len(header) - 1 else 0,
                )
                for index, title in enumerate(header)
            ]
            cells = [[(text, "") for text in (*row, *[""] * (len(header) - len(row)))] for row in rows]
            lines += fit_table(columns, cells, width)
            continue
        for text in block:
            lines += (
                labelled_lines("  · ", text.lstrip(), width, label_width=4)
                if text.startswith("  ")
                else labelled_lines("", text, width, label_width=0)
            )
    return lines
