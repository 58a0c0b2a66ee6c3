"""Tables of styled text that fit into a width: columns are left out and shortened by one rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.formatting import cell_width, escape_hidden_characters, pad_left, pad_right
from trt_tui.tui.spans import Line, Span, clip_line, shorten_distinctly, shorten_middle


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        width: The width in cells; 0 for that of its widest text.
        min_width: The width to which its texts are shortened before columns are left out; 0 if they stay whole.
        rank: Without enough room, the columns with the lowest rank are left out first. A column of rank 0 stays.
        fills: True if the column has all cells that other columns leave.
        long_title: A longer title, for which columns are not left out; "" if there is none.
    """

    title: str
    is_right_aligned: bool = False
    width: int = 0
    min_width: int = 0
    rank: int = 0
    fills: bool = False
    long_title: str = ""


def fit_table(columns: Sequence[Column], rows: Sequence[Sequence[Span]], width: int, gap: int = 2) -> list[Line]:
    """Returns the line of titles and a line for each row, in at most ``width`` cells.

    Without enough room, columns are left out by rank, then the texts of columns with a minimum width are shortened, and
    the gap between columns is a single cell. Lines that are too long even then lose their end.
    """
    texts = [[escape_hidden_characters(text) for text in (column.title, *(row[index][0] for row in rows))]
             for index, column in enumerate(columns)]
    widths = [column.width or max(map(cell_width, texts[index])) for index, column in enumerate(columns)]
    least_widths = [min(cells, column.min_width or cells) for cells, column in zip(widths, columns, strict=True)]
    shown = list(range(len(columns)))

    def count_free_cells(cells: Sequence[int], gap_cells: int) -> int:
        return width - sum(cells[index] + gap_cells for index in shown) + gap_cells

    for rank in sorted({column.rank for column in columns} - {0}):
        if count_free_cells(least_widths, gap) < 0:
            shown = [index for index in shown if columns[index].rank != rank]
    for index in shown:
        titles = texts[index]
        widths[index] += max(0, count_free_cells(widths, gap)) if columns[index].fills else 0
        if columns[index].min_width and (missing := -count_free_cells(widths, gap)) > 0:
            widths[index] = max(8, widths[index] - missing)
            short_texts = shorten_distinctly(titles, widths[index])
            texts[index] = [short_texts[text] for text in titles]
        elif (long_title := columns[index].long_title) and count_free_cells(widths, gap) >= (
                more_cells := max(0, cell_width(long_title) - widths[index])):
            titles[0], widths[index] = long_title, widths[index] + more_cells
    gap_text = " " * (gap if count_free_cells(widths, gap) >= 0 else 1)

    def build_line(number: int, styles: Sequence[str]) -> Line:
        line: Line = []
        for index in shown:
            pad = pad_left if columns[index].is_right_aligned else pad_right
            text = shorten_middle(texts[index][number], widths[index])
            line += [(gap_text, ""), (pad(text, widths[index]), styles[index])]
        return clip_line(line[1:], width)

    return [build_line(0, ["dim"] * len(columns)),
            *(build_line(number, [style for _, style in row]) for number, row in enumerate(rows, 1))]
