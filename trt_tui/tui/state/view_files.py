"""The tables and charts of the screen as files: text, Markdown, CSV and SVG.

A file shows what the screen shows, with the marks of simulated values, but with full names and all columns.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_tui.core.exporters.markdown import markdown_table, text_cell
from trt_tui.core.exporters.svg_charts import text_svg
from trt_tui.errors import InputError
from trt_tui.formatting import escape_hidden_characters, take_first_cells, take_last_cells
from trt_tui.session.session import Session
from trt_tui.tui.config_status import config_title
from trt_tui.tui.spans import Line, line_width
from trt_tui.tui.state.columns import LAYER_COLUMNS, NAME_COLUMN, build_row_cells
from trt_tui.tui.state.config_list import config_table
from trt_tui.tui.state.row_values import RowValues
from trt_tui.tui.state.summary import list_summary_columns, summary_rows
from trt_tui.tui.state.text_plots import BAR_BLOCKS
from trt_tui.tui.state.tree import VisibleRow

Table = Sequence[Sequence[str]]
"""The header and the rows of a table."""

FILE_WIDTH, _CELL_WIDTH = 1000, 40
"""Widths in cells from which the lists of the screen, and the cells of the layer list, cut nothing."""

_NOT_IN_CELLS = dict.fromkeys(map(ord, f"{BAR_BLOCKS.strip()}█"))
"""The characters of bars, which a cell of a table does not contain."""

_STYLE_COLOURS = {
    "dim": "#6c7078", "stale": "#6c7078", "bad": "#c4181f", "good": "#2f6b3a", "warn": "#7a5d00", "key": "#1f5c91",
    "rule": "#c9c6bf", "plot": "#4f7ba6", "raised": "#00707a", "band0": "#9a5b00", "band1": "#a86f00",
    "band2": "#ab7d1a", "band3": "#8e8258", "band4": "#8b8e94"}
"""The colours of the styles of spans on a white background."""


@dataclass(frozen=True)
class ViewContent:
    """A table or a chart of the screen, as it can be written to a file.

    Attributes:
        label: The name of the view in one or two words, also in the proposed file name.
        title: The heading in the file.
        lines: The view as lines; empty for a table, whose text is made from its cells.
        table: The header and the rows; empty for a chart.
        notes: Sentences below the table.
    """

    label: str
    title: str
    lines: Sequence[Line] = ()
    table: Table = ()
    notes: Sequence[str] = ()


def _format_text(content: ViewContent) -> str:
    return "\n".join([escape_hidden_characters(content.title), "", *_plain_lines(content)]) + "\n"


def _format_markdown(content: ViewContent) -> str:
    if content.table:
        header, *rows = [[text_cell(cell) for cell in row] for row in content.table]
        body = [*markdown_table(header, rows), *(line for note in content.notes for line in ("", text_cell(note)))]
    else:
        lines = _plain_lines(content)
        fence = "`" * max(3, *(len(run) + 1 for line in lines for run in re.findall("`+", line)), 3)
        body = [f"{fence}text", *lines, fence]
    return "\n".join([f"# {text_cell(content.title)}", "", *body]) + "\n"


def _format_csv(content: ViewContent) -> str:
    if not content.table:
        raise InputError(f"{content.label} cannot be written as CSV", "it has no columns",
                         "Choose .txt, .md or .svg.")
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(
        [_csv_cell(cell) for cell in row] for row in (*content.table, *([note] for note in content.notes)))
    return stream.getvalue()


def _csv_cell(text: str) -> str:
    """Returns a cell that no spreadsheet takes for a formula, which a name in a network file could contain."""
    text = escape_hidden_characters(text)
    is_number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?( ?%| dB)?", text) is not None
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) and not is_number else text


def _format_svg(content: ViewContent) -> str:
    lines = content.lines or [[(line, "strong" if index == 0 else "")]
                              for index, line in enumerate(_plain_lines(content))]
    return text_svg(content.title, [
        [(escape_hidden_characters(text), _STYLE_COLOURS.get(style.partition("@")[0], ""), style == "strong")
         for text, style in line] for line in lines], [line_width(line) for line in lines])


def _plain_lines(content: ViewContent) -> list[str]:
    """Returns the view as lines without styles. The cells of a table are padded to columns, and its notes follow."""
    if not content.table:
        return ["".join(escape_hidden_characters(text) for text, _ in line).rstrip() for line in content.lines]
    rows = [[(cell, "") for cell in row] for row in content.table]
    widths = [max(line_width([row[index]]) for row in rows if len(row) > index) for index in range(len(rows[0]))]
    table_lines = ["  ".join(escape_hidden_characters(text) + " " * (width - line_width([(text, "")]))
                             for (text, _), width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return [*table_lines, *map(escape_hidden_characters, content.notes)]


VIEW_FORMATS: Mapping[str, tuple[str, Callable[[ViewContent], str]]] = {
    ".txt": ("text", _format_text), ".md": ("Markdown", _format_markdown), ".csv": ("CSV", _format_csv),
    ".svg": ("SVG", _format_svg)}
"""The name and the writer of each format of a view, by the suffix of the file."""


def format_view(content: ViewContent, path: Path) -> str:
    """Returns the text of the file of a view, in the format of the suffix of the path.

    Raises:
        InputError: The suffix belongs to no format, or the view has no columns for CSV.
    """
    if (view_format := VIEW_FORMATS.get(path.suffix.lower())) is None:
        raise InputError(f"{path.name} has no suffix of a format", "",
                         f"End the name in {', '.join(VIEW_FORMATS)}.")
    return view_format[1](content)


# -- the views of the main screen -----------------------------------------------------------------------------------


def view_title(session: Session, label: str) -> str:
    """Returns the heading of a file: network, view, config, target and samples."""
    outline, data = session.outline, session.data_summary
    network_name = Path(outline.path if outline is not None else session.options.model).name
    parts = [f"{network_name}: {label}", config_title(session)]
    if session.target is not None:
        parts.append(f"target {session.target.description}")
    if data is not None:
        parts.append(f"{min(data.what_if_count, data.judged_count)} of {data.judged_count} samples")
    return "; ".join([*parts, "~ is simulated"])


def layer_view(session: Session, row_values: RowValues, rows: Sequence[VisibleRow]) -> ViewContent:
    """Returns the layer list as it is filtered, sorted and opened, with full names and all columns."""
    columns = [column for column in LAYER_COLUMNS
               if column is not NAME_COLUMN and (row_values.has_engines or not column.needs_engines)]
    table = [["layer", *(_cell_text([(column.title(row_values, _CELL_WIDTH), "")]) for column in columns)]]
    for row in rows:
        cells = build_row_cells(row_values, row, True)
        drawn = [_cell_text(column.draw(cells.cells[column.id], _CELL_WIDTH)) if cells.cells else ""
                 for column in columns]
        table.append([f"{'  ' * row.depth}{cells.name}", *drawn])
    return ViewContent("layers", view_title(session, "layers"), table=table)


def _cell_text(line: Line) -> str:
    return " ".join("".join(text for text, _ in line).translate(_NOT_IN_CELLS).split())


def accuracy_view(session: Session) -> ViewContent:
    """Returns the accuracy table of the top of the screen."""
    columns = list_summary_columns(session, FILE_WIDTH)
    table, notes = [], []
    for row in summary_rows(session, FILE_WIDTH):
        text = "".join(part for part, _ in row.line)
        if row.kind == "text":
            notes += [text.strip()] if text.strip() else []
            continue
        cells = [take_last_cells(take_first_cells(text, column.end), min(
            column.end, line_width([(text, "")])) - column.start) if line_width([(text, "")]) > column.start else ""
                 for column in columns]
        table.append([_cell_text([(cell.replace("│", ""), "")]) for cell in cells])
    table[0][-1] = session.target.description if session.target is not None else "target"
    return ViewContent("accuracy", view_title(session, "accuracy"), table=[row for row in table if any(row)],
                       notes=notes)


def config_view(session: Session) -> ViewContent:
    """Returns the list of configs with their results."""
    titles, lines = config_table(session, {}, FILE_WIDTH)
    table = [[_cell_text([cell]) for cell in line[::2]] for line in (titles, *(line.line for line in lines))]
    table[0] = ["config", *table[0][1:-1], table[0][-1] or "result"]
    return ViewContent("configs", view_title(session, "configs"), table=table)
