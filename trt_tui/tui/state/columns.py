"""The columns of the tree, as wide as there is room, and the lines and titles drawn in them."""

from __future__ import annotations

from dataclasses import dataclass

from trt_tui.formatting import cell_width, pad_right, shorten_number_in_text
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, clip_line, line_width, pad_or_shorten, shorten_path
from trt_tui.tui.state.layer_list import LayerList
from trt_tui.tui.state.row_values import BEST_SET_MARK, TRIED_MARK, ColourMeasure, RowCells, RowValues
from trt_tui.tui.state.sort_order import SortColumn
from trt_tui.tui.state.toggles import toggle_column_title
from trt_tui.tui.state.tree import View


def legend_text(measure: ColourMeasure) -> str:
    """What the glyphs mean."""
    if measure is ColourMeasure.SHARE:
        return "█ ≥20%  ▓ 5–20  ▒ 1–5  ░ .2–1  · less  ! NaN/Inf  ? not measured"
    return "█ <10 dB  ▓ 10–20  ▒ 20–30  ░ 30–40  · more  ! NaN/Inf  ? not measured"


BAR_BLOCKS = " ▏▎▍▌▋▊▉"


def bar_text(fraction: float, width: int) -> str:
    """A bar of eighths of a cell."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    full_cells, eighths_left = divmod(eighths, 8)
    return ("█" * full_cells + (BAR_BLOCKS[eighths_left] if eighths_left else "")).ljust(width)


_MAX_WIDTH_CELLS = 120
"""Cells that all columns take at most."""

_OUTCOME_CELLS = 5
"""Cells of an outcome such as ``FAIL?``."""

PARTIAL_OUTCOME = "part"
"""In place of an outcome on part of the samples, where their number has no room."""

_MIN_NAME_CELLS = 18
"""Cells that the name has before other columns are given up for it."""


@dataclass(frozen=True)
class ColumnWidths:
    """Widths of the list's columns at one total width; a width of 0 leaves the column out."""

    name: int
    operator: int
    asked: int
    made: int
    value: int
    bar: int
    flip: int
    cost: int

    @classmethod
    def fit_columns(cls, width: int, has_engines: bool = False) -> ColumnWidths:
        """The columns for a width; ``has_engines`` adds the one for what the builder makes."""
        width = min(width, _MAX_WIDTH_CELLS)
        column_widths = {
            "operator": 8, "asked": 7, "made": 9 if has_engines else 0, "value": 5, "bar": 5, "flip": 13, "cost": 6
        }

        def count_free_cells() -> int:
            return width - 6 - sum(column_width + 1 for column_width in column_widths.values() if column_width)

        for column, min_width in (("cost", 0), ("bar", 0), ("operator", 6), ("made", 7 * has_engines), ("operator", 0),
                                  ("made", 0), ("flip", 0)):
            if count_free_cells() < (_MIN_NAME_CELLS if column != "cost" else 30):
                column_widths[column] = min_width
        if column_widths["flip"] and count_free_cells() > _MIN_NAME_CELLS + 8:
            column_widths["flip"] = min(20, column_widths["flip"] + count_free_cells() - _MIN_NAME_CELLS - 8)
        return cls(max(8, count_free_cells()), **column_widths)


def column_title_line(column_widths: ColumnWidths, row_values: RowValues,
                      sort_column: SortColumn | None = None) -> Line:
    """The titles of the columns; a click on one sorts by it. That of ``sort_column``, which the rows are ordered by, is
    strong, unless it is the share, by which they mostly are."""
    room = column_widths.value + (column_widths.bar + 1 if column_widths.bar else 0)
    titles = (f"share of {row_values.config_name}", f"share {row_values.config_name}",
              "share") if row_values.measure is ColourMeasure.SHARE else (f"{row_values.measure.value} dB", "dB")
    engine_title = ("preview" if row_values.preview is not None else
                    f"in {row_values.engine_config_name}" if row_values.engine_config_name else "engine")
    parts = [(SortColumn.LAYER, "     layer".ljust(column_widths.name + 5)),
             (SortColumn.OPERATOR, "op".ljust(column_widths.operator)),
             (SortColumn.PRECISION, "prec".ljust(column_widths.asked)),
             (SortColumn.ENGINE, pad_or_shorten(engine_title, column_widths.made)),
             (SortColumn.SHARE, next((candidate for candidate in titles if cell_width(candidate) <= room),
                                     titles[-1]).ljust(room)),
             (SortColumn.TOGGLE, toggle_column_title(row_values.metric_title,
                                                     column_widths.flip).rjust(column_widths.flip)),
             (SortColumn.COST, ("ms" if row_values.group_times else "MACs").rjust(column_widths.cost))]
    widths = (1, column_widths.operator, 1, column_widths.made, 1, column_widths.flip, column_widths.cost)
    shown_columns = [candidate for candidate, width in zip(parts, widths, strict=True) if width]
    highlighted = sort_column if sort_column is not SortColumn.SHARE else None
    return [(title if column is shown_columns[-1][0] else f"{title} ",
             f"{'strong' if column is highlighted else 'dim'}@sort('{column.name}')")
            for column, title in shown_columns]


def operator_text(operator: str, width: int) -> str:
    """An operator's name, its long words shortened."""
    text = operator.replace("Normalization", "Norm").replace("Average", "Avg").replace("Reduce", "Red").replace(
        "Transpose", "T")
    return pad_right("".join(part for part, _ in clip_line([(text, "")], width)), width)


def row_name_width(depth: int, column_widths: ColumnWidths) -> int:
    """Returns the cells that the name of a row at a depth has."""
    return column_widths.name - 2 * min(depth, max(0, column_widths.name // 4))


def layer_row_line(row_cells: RowCells, depth: int, column_widths: ColumnWidths, has_cursor: bool,
                   short_name: str | None = None) -> Line:
    """One line of the list, as wide as its columns.

    Args:
        short_name: The name as it is shown; `shorten_path` makes it by default.
    """
    room = row_name_width(depth, column_widths)
    indent = " " * (column_widths.name - room)
    mark_style = "key" if row_cells.mark == BEST_SET_MARK else "dim"
    line: Line = [
        (">" if has_cursor else " ", "strong"),
        (row_cells.glyph, row_cells.glyph_style),
        (f" {indent}{row_cells.mark} ", mark_style),
        (pad_right(short_name if short_name is not None else shorten_path(row_cells.name, room), room) + " ",
         row_cells.name_style),
    ]
    if not row_cells.operator and not row_cells.precision_text and not row_cells.value_text:
        return [*line[:-1], (row_cells.name, row_cells.name_style)]
    if column_widths.operator:
        line.append((operator_text(row_cells.operator, column_widths.operator) + " ", "dim"))
    precision_text, _ = clip_line([(row_cells.precision_text, "")], column_widths.asked)[0] if cell_width(
        row_cells.precision_text) > column_widths.asked else (row_cells.precision_text, "")
    line.append((pad_right(precision_text, column_widths.asked) + " ", row_cells.precision_style))
    if column_widths.made:
        line.append((pad_or_shorten(row_cells.engine_text, column_widths.made) + " ", row_cells.engine_style))
    bar = column_widths.bar + 1 if column_widths.bar else 0
    if row_cells.reason:
        line.append((pad_or_shorten(row_cells.reason, column_widths.value + bar +
                                    (column_widths.flip + 1 if column_widths.flip else 0)) + " ", "dim"))
    else:
        line += _share_spans(row_cells, column_widths.value, bar)
        if column_widths.flip:
            toggle = row_cells.toggle
            outcome = toggle.outcome_text if len(
                toggle.outcome_text) <= _OUTCOME_CELLS else PARTIAL_OUTCOME if toggle.is_partial else "…"
            value_cells = column_widths.flip - _OUTCOME_CELLS
            line += [(f"{shorten_number_in_text(toggle.value_text, value_cells):>{value_cells}} ", toggle.value_style),
                     (f"{outcome:<{_OUTCOME_CELLS}}", toggle.outcome_style)]
    if column_widths.cost:
        line.append((shorten_number_in_text(row_cells.cost_text, column_widths.cost).rjust(column_widths.cost), "dim"))
    return line


def _share_spans(row_cells: RowCells, width: int, bar_width: int) -> Line:
    """The share with its bar; in their place a word, or behind a figure of another config that config's name."""
    if row_cells.replacement:
        return [((row_cells.replacement if len(row_cells.replacement) <= width
                  + bar_width else "up").ljust(width + bar_width) + " ", "dim")]
    if row_cells.config_name:
        if not bar_width:
            return [(" " * (width + 1), "")]
        return ([(
            f"{shorten_share_text(row_cells.value_text, width):>{width}} "
            f"{pad_or_shorten(row_cells.config_name, bar_width - 1)} ",
            "stale")])
    if cell_width(row_cells.value_text
                  ) > width:  # a share far below zero, or one with decibels: the bar gives way, then the number
        return [(pad_right(shorten_share_text(row_cells.value_text, width + bar_width), width + bar_width) + " ",
                 row_cells.value_style)]
    line: Line = [(row_cells.value_text.rjust(width) + " ", row_cells.value_style)]
    return [*line,
            (bar_text(row_cells.bar_fraction, bar_width - 1) + " ", row_cells.glyph_style)] if bar_width else line


def shorten_share_text(text: str, width: int) -> str:
    """Returns a share that fits into a width; one far below zero is that if nothing else fits."""
    if cell_width(text) <= width:
        return text
    return "<0" if "-" in text and text.endswith("%") else shorten_number_in_text(text, width)


def _share_sample_count_text(layer_list: LayerList) -> str:
    """How many samples the shares were measured on; "" where it is all of them, or none is known."""
    session = layer_list.session
    sample_counts = [share.samples for share in session.get_run_results("config").shares.values()]
    all_samples = session.data_summary.what_if_count if session.data_summary is not None else 0
    if not sample_counts or min(sample_counts) >= all_samples:
        return ""
    return f"shares on {min(sample_counts)} to {max(sample_counts)} of {all_samples}" if min(sample_counts) < max(
        sample_counts) else (f"shares on {min(sample_counts)} of {all_samples}")


def view_title(layer_list: LayerList) -> str:
    """Returns the title of the view; the rows are called worst first only while they are."""
    if layer_list.view is not View.WORST:
        return str(layer_list.view.value).capitalize()
    row_values = layer_list.row_values
    if (layer_list.sort_column is not SortColumn.SHARE or not layer_list.sort_weights or layer_list.is_row_order_stale
            or row_values.stale_groups):
        return "All layers"
    return "Worst first" if len(row_values.group_values.keys() | row_values.unknown_groups) >= len(
        layer_list.tree_model.rows_by_group) else "Worst so far"


def layer_list_title(layer_list: LayerList, width: int) -> tuple[str, Line]:
    """Left and right words of the list's rule of so many cells; a click on a view shows it. Where not all fits, on how
    many samples shares are is left to the rows' details."""
    model, row_values, search_status = layer_list.tree_model, layer_list.row_values, layer_list.session.search_status
    stale_text = f", old: {shown_key('sort')} sorts" if layer_list.is_row_order_stale else ""
    order_text = (f", {'' if layer_list.sort_column is SortColumn.LAYER else 'by '}{layer_list.sort_column.value}"
                  if layer_list.sort_column is not SortColumn.SHARE else "")
    title = f"{shown_key('pane_tree')} {view_title(layer_list)} in {row_values.config_name}{order_text}{stale_text}"
    extra_text = ""
    if layer_list.matches is not None:
        title += f" ─ {len(layer_list.matches)} of {len(model.group_rows)} match, {shown_key('close')} clears"
    elif layer_list.session.is_searching and search_status is not None and search_status.progress is not None:
        title += f" ─ {BEST_SET_MARK} raised in the best so far, {TRIED_MARK} being tried"
    elif row_values.measure is not ColourMeasure.SHARE or row_values.run != "config":
        title += f" ─ {row_values.measure.value}{' error' if row_values.measure is not ColourMeasure.SHARE else ''}"
    elif layer_list.view is View.BLOCKS:
        title += f" ─ {shown_key('toggle')} on a label: the role everywhere"
    else:
        capable_text = (
            f"{row_values.quantizable_group_count} of "
            f"{len(model.group_rows)} can run {row_values.lowest_precision.label}"
        )
        extra_text = f" ─ {_share_sample_count_text(layer_list) or capable_text}"
    right: Line = [(f"{shown_key('view')}:", "dim@do('view')")]
    for index, view in enumerate(layer_list.available_views):
        right += [(" · " if index else " ", "dim"), (view.value.removesuffix(" first"), f"dim@see('{view.value}')")]
    return title + (extra_text if cell_width(title + extra_text) + line_width(right) + 8 <= width else ""), right
