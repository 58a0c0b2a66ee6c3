"""The table of columns of the layer list, with the functions that draw, title and sort the list by this table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, TypeAlias

from trt_tui.core.network.layer_tree import GroupRow, OtherNodesRow, Scope, UngroupedRow
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.core.report.glossary import explain_word
from trt_tui.formatting import (
    FEW_SAMPLES_MARK,
    SIMULATED_MARK,
    cell_width,
    pad_right,
    percent_text,
    shorten_number_in_text,
)
from trt_tui.tui import table
from trt_tui.tui.spans import Line, Span, choose_fitting_text, clip_line, shorten_middle, shorten_path
from trt_tui.tui.state.config_list import ToggleResult
from trt_tui.tui.state.marks import (
    BAD_GLYPH,
    BARRIER_MARK,
    CLOSED_MARK,
    CURSOR_MARK,
    DIVERGENCE_MARK,
    OPENED_MARK,
    OTHER_PRECISION_MARK,
    RAISED_MARK,
    SAME_VALUE_MARK,
    UNKNOWN_GLYPH,
)
from trt_tui.tui.state.rows import ColourMeasure, RowValues, SmallSharesRow, VisibleRow
from trt_tui.tui.state.text_plots import bar_text
from trt_tui.tui.table import Cell, Column, draw_row, fitting_cell

_MAX_WIDTH_CELLS = 120
"""The maximum width of all columns together."""

_MIN_LIST_CELLS, _MIN_DETAIL_CELLS = 70, 40
"""The minimum widths of the layer list and of the detail pane beside each other."""

_MARK_CELLS = 5
"""The width of cursor and marks before a name."""

_VALUE_CELLS = 5
"""The width of a share. The rest of the share column is a bar."""

_OUTCOME_CELLS = 5
"""The width of a target outcome such as ``FAIL?``."""

ColumnWidths: TypeAlias = dict[str, int]
"""The widths of the displayed columns in cells, by column id and in the order of `LAYER_COLUMNS`."""


@dataclass(frozen=True)
class LayerColumn(Column):
    """A column of the layer list. Its ``title`` is its id.

    Attributes:
        order_title: The name of the row order by this column.
        names: The titles of the column in all forms, without the name of a config.
        word: The word whose explanation is that of the column too; "" if there is none.
        explanation: Sentences for users that say what the column is, behind the explanation of the word.
        next_steps: What the user can do about a value: the effects of actions, by the ids of the actions. The effect is
            "" if it depends on the row.
        title_text: Returns the displayed title, from the row values and the width of the column.
        cell: Returns the value of a row, which is the argument of ``draw``.
        draw: Returns the spans of a cell for a width.
        compute_sort_values: Returns the sort values of groups by name. The group with the largest value is first.
            Groups of equal value are in network order. A group without a key has no value.
        is_additive: If True, the sort value of a scope is the sum of its groups' values, else their maximum.
        needs_engines: If True, the column is displayed only if an engine reports on the groups.
        yields_to_reason: If True, the reason why a layer cannot run in a lower precision replaces the cell.
    """

    order_title: str = field(kw_only=True)
    title_text: Callable[[RowValues, int], str] = field(kw_only=True)
    cell: Callable[[RowValues, VisibleRow], Any] = field(kw_only=True)
    draw: Callable[[Any, int], Line] = field(kw_only=True)
    compute_sort_values: Callable[[RowValues], Mapping[str, float]] = field(kw_only=True)
    is_additive: bool = False
    needs_engines: bool = False
    yields_to_reason: bool = False
    names: tuple[str, ...] = field(kw_only=True)
    word: str = ""
    explanation: str = field(kw_only=True)
    next_steps: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def id(self) -> str:
        """The name of the column in the program."""
        return self.title

    @property
    def full_explanation(self) -> str:
        """The explanation of the word and that of the column."""
        return f"{explain_word(self.word)} {self.explanation}" if self.word else self.explanation


@lru_cache
def fit_columns(width: int, has_engines: bool = False) -> ColumnWidths:
    """Returns the widths of the columns that fit into a total width.

    Args:
        has_engines: If True, the result contains the columns that need engines.
    """
    columns = [column for column in LAYER_COLUMNS if has_engines or not column.needs_engines]
    widths = table.fit_columns(columns, min(width, _MAX_WIDTH_CELLS))
    return {columns[index].id: cells for index, cells in widths.items()}


def choose_list_width(row_values: RowValues, screen_width: int) -> int:
    """Returns the width of the layer list beside a detail pane: that of its columns and of its longest name."""
    needed = (
        _MARK_CELLS
        + row_values.model.longest_name_cells
        + sum(
            column.width + 1
            for column in LAYER_COLUMNS
            if column is not NAME_COLUMN and (row_values.has_engines or not column.needs_engines)
        )
    )
    return max(_MIN_LIST_CELLS, min(needed, _MAX_WIDTH_CELLS, screen_width - _MIN_DETAIL_CELLS))


def _draw_columns(cells: Mapping[str, Cell], widths: ColumnWidths) -> Line:
    """Returns a line of the layer list from its cells by column id."""
    columns = [LAYER_COLUMNS_BY_ID[column_id] for column_id in widths]
    return draw_row([cells[column.id] for column in columns], columns, dict(enumerate(widths.values())))


def column_title_line(widths: ColumnWidths, row_values: RowValues, sort_column: LayerColumn | None = None) -> Line:
    """Returns the line of column titles of the layer list; a click on a title sorts by that column.

    The title of ``sort_column`` is strong. The share column is an exception, because rows are mostly sorted by it.
    """
    return _draw_columns(
        {
            column.id: (
                column.title_text(row_values, widths.get(column.id, 0)),
                f"{'strong' if column is sort_column is not SHARE_COLUMN else 'dim'}@sort('{column.id}')",
            )
            for column in LAYER_COLUMNS
        },
        widths,
    )


# -- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowCells:
    """The contents of a line of the layer list: name, marks and column values.

    Attributes:
        reason: The reason why the layer cannot run in a lower precision; "" if it can.
        cells: The values of the columns by column id; empty for a row that consists of its name.
    """

    mark: str
    glyph: str
    glyph_style: str
    name: str
    name_style: str = ""
    reason: str = ""
    cells: Mapping[str, Any] = field(default_factory=dict)


def build_row_cells(row_values: RowValues, visible_row: VisibleRow, full_names: bool = False) -> RowCells:
    """Returns the contents of one line of the layer list.

    Args:
        full_names: If True, groups are named by their full path, for views without a tree.
    """
    row, open_mark = visible_row.row, OPENED_MARK if visible_row.is_opened else CLOSED_MARK
    if isinstance(row, SmallSharesRow):
        share_text = percent_text(sum(row_values.group_values.get(name, 0.0) for name in row.names))
        total_text = f"{share_text} together" if share_text != "·" else "almost none together"
        return RowCells(open_mark, "·", "dim", f"{row.label}, {total_text}", "dim")
    if isinstance(row, OtherNodesRow):
        return RowCells(open_mark, "·", "dim", row.label, "dim")
    cells = {column.id: column.cell(row_values, visible_row) for column in LAYER_COLUMNS}
    if isinstance(row, Scope):
        _, style = row_values.scope_glyph_span(row)
        is_measured = cells[SHARE_COLUMN.id].text or row.path in row_values.scope_raised_counts
        return RowCells(
            open_mark,
            BAD_GLYPH if row.path in row_values.nonfinite_scopes else " ",
            style,
            row.label,
            "strong" if visible_row.is_opened else "",
            cells=cells if is_measured else {},
        )
    if isinstance(row, GroupRow):
        group, (glyph, style) = row.group, row_values.group_glyph_span(row.group)
        is_quiet = style in ("dim", "band4") and not row_values.config_change_marks(group)
        return RowCells(
            _find_row_mark(row_values, group),
            glyph,
            style,
            row_values.model.titles[group.name] if full_names else row.label,
            "dim" if is_quiet else "",
            row.refusal_reason if Precision.FP16 in group.refusal_reasons else "",
            cells,
        )
    if isinstance(row, UngroupedRow):
        return RowCells(" ", "·", "dim", row.label, "dim", row.refusal_reason, cells)
    layer = row_values.model.outline.layer_by_name[visible_row.node]
    return RowCells(" ", " ", "", visible_row.node, "dim", layer.refusal_reason, cells)


def _find_row_mark(row_values: RowValues, group: FusionGroup) -> str:
    if group.name in row_values.nonfinite_groups and row_values.is_marked_as_raised(group):
        return RAISED_MARK  # the glyph of the row already shows NaN or Inf
    if group.name == row_values.divergence_group:
        return DIVERGENCE_MARK
    return BARRIER_MARK if row_values.has_barrier_behind(group) else " "


def row_name_width(depth: int, widths: ColumnWidths) -> int:
    """Returns the width of a row's name in cells, at a depth of the tree."""
    room = widths[NAME_COLUMN.id] - _MARK_CELLS
    return room - 2 * min(depth, max(0, room // 4))


def layer_row_line(
    row_cells: RowCells, depth: int, widths: ColumnWidths, has_cursor: bool, short_name: str | None = None
) -> Line:
    """Returns one line of the layer list, as wide as its columns.

    Args:
        short_name: The displayed name; None for the result of `shorten_path`.
    """
    room = row_name_width(depth, widths)
    indent = " " * (widths[NAME_COLUMN.id] - _MARK_CELLS - room)
    marks: Line = [
        (CURSOR_MARK if has_cursor else " ", "strong"),
        (row_cells.glyph, row_cells.glyph_style),
        (f" {indent}{row_cells.mark} ", "dim"),
    ]
    if not row_cells.cells:
        return [*marks, (row_cells.name, row_cells.name_style)]
    name = short_name if short_name is not None else shorten_path(row_cells.name, room)
    cells: dict[str, Cell] = {NAME_COLUMN.id: lambda width: [*marks, (pad_right(name, room), row_cells.name_style)]}
    reason: Cell = fitting_cell(row_cells.reason, "")  # whole or not at all: the detail pane has it
    for column_id in widths:
        column = LAYER_COLUMNS_BY_ID[column_id]
        if row_cells.reason and column.yields_to_reason:
            cells[column_id], reason = reason, None
        elif column is not NAME_COLUMN:
            cells[column_id] = partial(column.draw, row_cells.cells[column_id])
    return _draw_columns(cells, widths)


# -- operator, precision, engine ------------------------------------------------------------------------------------


def _operator_cell(row_values: RowValues, visible_row: VisibleRow) -> str:
    """Returns the operator of a fusion group or node."""
    row = visible_row.row
    if isinstance(row, GroupRow):
        return row.group.operator
    if isinstance(row, UngroupedRow):
        return row.layer.op_type
    return "" if row is not None else row_values.model.outline.layer_by_name[visible_row.node].op_type


def _draw_operator(operator: str, width: int) -> Line:
    """Draws the name of an operator, with long words abbreviated."""
    text = (
        operator.replace("Normalization", "Norm")
        .replace("Average", "Avg")
        .replace("Reduce", "Red")
        .replace("Transpose", "T")
    )
    return clip_line([(text, "dim")], width)


@dataclass(frozen=True)
class PrecisionCell:
    """The requested precision of a row.

    Attributes:
        marks: The marks of the changes behind the precision.
        preview_mark: `OTHER_PRECISION_MARK` if the preview of the row differs; else "".
        chip_style: The style of the tint behind the precision, by the size of its values; "" for no tint.
        style: The style of the text.
    """

    text: str = ""
    marks: str = ""
    preview_mark: str = ""
    chip_style: str = ""
    style: str = "dim"


_CHIP_STYLES_BY_BYTES = {4.0: "chip32", 2.0: "chip16", 1.0: "chip8", 0.5: "chip4"}
"""The tints behind precisions, by the size of a value in bytes."""


def _precision_cell(row_values: RowValues, visible_row: VisibleRow) -> PrecisionCell:
    """Returns the requested precision of a group with the marks of its changes; for a scope, the number of raised
    groups."""
    row = visible_row.row
    if isinstance(row, GroupRow):
        group, precision = row.group, row_values.requested_precision(row.group)
        marks, replacement = row_values.config_change_marks(group), row_values.share_replacement_text(group)
        style = "raised" if replacement == "raised" else "strong" if marks or replacement else ""
        chip_style = _CHIP_STYLES_BY_BYTES[group.resolve_file_precision(precision).value_bytes]
        label, _, file_mark = group.precision_label(precision).partition(" ")
        return PrecisionCell(
            label, file_mark + marks, OTHER_PRECISION_MARK * row_values.differs_in_preview(group), chip_style, style
        )
    if isinstance(row, Scope):
        raised_count = row_values.scope_raised_counts.get(row.path, 0)
        return PrecisionCell(
            f"{raised_count} {RAISED_MARK}" if raised_count else "",
            style="strong",
            preview_mark=OTHER_PRECISION_MARK
            * (row_values.preview is not None and (row.path in row_values.scope_other_counts)),
        )
    return PrecisionCell("FP32" if isinstance(row, UngroupedRow) else "")


def list_row_signs(row_values: RowValues, visible_row: VisibleRow) -> list[str]:
    """Returns the glyph before the name of a row, and the marks behind its precision."""
    cell, row = _precision_cell(row_values, visible_row), visible_row.row
    return [
        *(row_values.group_glyph_span(row.group)[:1] if isinstance(row, GroupRow) else cell.text),
        *cell.marks,
        *cell.preview_mark,
    ]


def _draw_precision(cell: PrecisionCell, width: int) -> Line:
    """Draws a precision on its tint, with a blank on both sides if the marks leave room for them."""
    label, marks = f" {cell.text} ", cell.marks + cell.preview_mark
    if cell_width(label + marks) > width:
        label = f"{cell.text} " if cell_width(cell.text + marks) < width else cell.text
    return clip_line(
        [(label, f"{cell.chip_style} {cell.style}".strip()), (cell.marks, cell.style), (cell.preview_mark, "warn")],
        width,
    )


def _engine_cell(row_values: RowValues, visible_row: VisibleRow) -> Span:
    """Returns the precision of a group in the engine; for a scope, the number of groups in another precision."""
    row = visible_row.row
    if isinstance(row, GroupRow):
        text, style = row_values.group_engine_span(row.group)
        return (text, style) if text else (UNKNOWN_GLYPH, "dim")
    if not isinstance(row, Scope):
        return "", ""
    other_count = row_values.scope_other_counts.get(row.path, 0)
    return f"{other_count} {OTHER_PRECISION_MARK}" if other_count else "", row_values.engine_text_style(other_count > 0)


# -- the share ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShareCell:
    """The value that determines the colour of a row: an error share, or an error in dB.

    Attributes:
        bar_fraction: The length of the bar, 0 to 1.
        replacement: A word that replaces value and bar; "" if there is none.
        doubt_mark: `FEW_SAMPLES_MARK` or "".
    """

    text: str = ""
    style: str = ""
    bar_fraction: float = 0.0
    bar_style: str = ""
    replacement: str = ""
    doubt_mark: str = ""


def _share_cell(row_values: RowValues, visible_row: VisibleRow) -> ShareCell:
    row, shows_shares = visible_row.row, row_values.measure is ColourMeasure.SHARE
    missing_text = "…" if row_values.is_measuring_shares else ""
    if isinstance(row, Scope):
        value, is_nonfinite = row_values.scope_values.get(row.path), row.path in row_values.nonfinite_scopes
        _, style = row_values.scope_glyph_span(row)
        bar_fraction, replacement = 0.0, ""
        if row.path in row_values.partial_scopes:
            value, missing_text = None, missing_text or UNKNOWN_GLYPH
    elif isinstance(row, GroupRow):
        name = row.group.name
        value, is_nonfinite = row_values.group_values.get(name), name in row_values.nonfinite_groups
        value = None if name in row_values.early_groups else value
        _, style = row_values.group_glyph_span(row.group)
        missing_text = UNKNOWN_GLYPH if name in row_values.unknown_groups else missing_text
        bar_fraction = 0.0
        has_final_scale = row_values.full_bar_value > 0 and not row_values.is_measuring_shares
        if value is not None and not is_nonfinite and has_final_scale:
            bar_fraction = max(0.0, value / row_values.full_bar_value)
        replacement = row_values.share_replacement_text(row.group)
    else:
        return ShareCell(bar_style="dim" if row is not None else "")
    is_below_all = isinstance(row, Scope) and shows_shares and value is not None and value < -1
    text = "<0" if is_below_all else missing_text if value is None else row_values.row_value_text(value, "")
    has_few_samples = any(share.has_few_samples for share in row_values.shares.values())
    return ShareCell(
        "NaN" if is_nonfinite and not shows_shares else text,
        "dim" if style == "band4" else style,
        bar_fraction,
        style,
        replacement,
        FEW_SAMPLES_MARK if has_few_samples and text.endswith("%") else "",
    )


def _draw_share(cell: ShareCell, width: int) -> Line:
    """Draws a share with its bar.

    A replacement word takes the place of both.
    """
    bar_width, mark = width - _VALUE_CELLS - 1, cell.doubt_mark or " "
    if cell.replacement:
        return [
            (
                cell.replacement if len(cell.replacement) <= width else "up",
                "raised" if cell.replacement == "raised" else "dim",
            )
        ]
    if cell_width(cell.text) > _VALUE_CELLS:  # a large negative share or a value in dB has no bar
        return [(shorten_share_text(cell.text + cell.doubt_mark, width), cell.style)]
    line: Line = [(f"{cell.text:>{_VALUE_CELLS}}{mark}", cell.style)]
    return [*line, (bar_text(cell.bar_fraction, bar_width), cell.bar_style)] if bar_width > 0 else line


def shorten_share_text(text: str, width: int) -> str:
    """Returns the text of a share in at most ``width`` cells. If a negative share does not fit, the text is "<0"."""
    if cell_width(text) <= width:
        return text
    return "<0" if "-" in text and text.endswith("%") else shorten_number_in_text(text, width)


def _error_share_column_title(row_values: RowValues, width: int) -> str:
    titles = (
        ("error share", "share")
        if row_values.measure is ColourMeasure.SHARE
        else (f"{row_values.measure.value} dB", "dB")
    )
    mark = "" if row_values.measure is ColourMeasure.ENGINE else SIMULATED_MARK
    return choose_fitting_text([f"{mark}{title}" for title in titles], width)


# -- the value with the row toggled, the cost -----------------------------------------------------------------------


def _toggle_cell(row_values: RowValues, visible_row: VisibleRow) -> ToggleResult:
    """Returns the judged value after the row is toggled between FP32 and its default precision."""
    groups = row_values.model.list_groups_of_row(visible_row.row)
    return row_values.find_toggle(groups) if groups else ToggleResult()


def _draw_toggle(toggle: ToggleResult, width: int) -> Line:
    value_cells, outcome = width - _OUTCOME_CELLS - 1, toggle.outcome_text
    value_text = (
        ""
        if outcome == SAME_VALUE_MARK and width <= TOGGLE_COLUMN.max_width
        else shorten_number_in_text(toggle.value_text.removeprefix(SIMULATED_MARK), value_cells)
    )
    if toggle.lower_precision and value_text:  # the title of the column does not hold for the row
        text = f"{toggle.lower_precision} {value_text}"
        value_text = choose_fitting_text((f"if {text}", text, value_text), width - len(outcome) - 1)
    value_text = f"{value_text:>{value_cells}} "
    return [(value_text, toggle.value_style), (f"{outcome:<{width - len(value_text)}}", toggle.outcome_style)]


def _cost_cell(row_values: RowValues, visible_row: VisibleRow) -> str:
    """Returns the measured milliseconds of a row; its fraction of all MACs if no times were measured."""
    row, model = visible_row.row, row_values.model
    if isinstance(row, GroupRow):
        return row_values.cost_text(model.group_macs[row.group.name], row_values.group_times.get(row.group.name))
    if isinstance(row, Scope):
        return row_values.cost_text(model.scope_macs.get(row.path), row_values.scope_times.get(row.path))
    return ""


# -- orders ---------------------------------------------------------------------------------------------------------


def _make_sort_value_function(
    sort_key: Callable[[RowValues, FusionGroup], tuple[object, ...] | None],
) -> Callable[[RowValues], dict[str, float]]:
    """Returns a function from row values to the sort value of each group. The group with the smallest key has the
    largest value.

    A group without a key has no sort value.
    """

    def compute_sort_values(row_values: RowValues) -> dict[str, float]:
        keys = {
            group.name: key
            for group in row_values.model.outline.groups
            if (key := sort_key(row_values, group)) is not None
        }
        positions = {key: position for position, key in enumerate(sorted(set(keys.values())))}
        return {name: float(len(positions) - positions[key]) for name, key in keys.items()}

    return compute_sort_values


def _precision_sort_key(row_values: RowValues, group: FusionGroup) -> tuple[object, ...]:
    precision = row_values.requested_precision(group)
    return -group.precision_rank(precision), group.precision_label(precision)


def _engine_sort_key(row_values: RowValues, group: FusionGroup) -> tuple[object, ...] | None:
    """Returns the sort key of the engine column, which puts groups in another precision than requested first."""
    text, _ = row_values.group_engine_span(group)
    return (not text.startswith(OTHER_PRECISION_MARK), text) if text else None


def _toggle_sort_key(row_values: RowValues, group: FusionGroup) -> tuple[object, ...] | None:
    margin = row_values.find_toggle([group]).margin
    return None if margin is None else (-margin,)


# -- the table ------------------------------------------------------------------------------------------------------

NAME_COLUMN = LayerColumn(
    "layer",
    width=23,
    min_width=23,
    fills=True,
    roomy_width=31,
    order_title="network order",
    title_text=lambda row_values, width: f"{' ' * _MARK_CELLS}layer",
    cell=lambda row_values, visible_row: "",
    draw=lambda cell, width: [],
    compute_sort_values=lambda row_values: {},
    names=("layer",),
    explanation="The name of a fused layer or scope, without the scopes above it. Marks before it say how large its "
    "error is and what happened to it.",
    next_steps={"open": "opens or closes the row", "copy": "copies its full name", "filter": "finds rows"},
)

SHARE_COLUMN = LayerColumn(
    "share",
    width=_VALUE_CELLS + 7,
    narrower_widths={1: _VALUE_CELLS + 6, 2: _VALUE_CELLS + 1},
    order_title="worst first",
    title_text=_error_share_column_title,
    cell=_share_cell,
    draw=_draw_share,
    compute_sort_values=lambda row_values: row_values.worst_first_sort_values,
    is_additive=True,
    yields_to_reason=True,
    names=("share", "isolated", "accumulated", "dB"),
    word="error share",
    explanation="Shares need not add up to 100%.",
    next_steps={
        "toggle": "",
        "range": "tries another range",
        "colour": "shows another error",
        "sort": "sorts by share",
    },
)

TOGGLE_COLUMN = LayerColumn(
    "toggle",
    True,
    width=14,
    max_width=21,
    rank=7,
    order_title="value if FP32",
    title_text=lambda row_values, width: choose_fitting_text(
        (f"{SIMULATED_MARK}{row_values.metric_title} if FP32 ", f"{SIMULATED_MARK}if FP32 "), width
    ),  # ends as the values do
    cell=_toggle_cell,
    draw=_draw_toggle,
    compute_sort_values=_make_sort_value_function(_toggle_sort_key),
    yields_to_reason=True,
    names=("if FP32", "toggled"),
    word="if FP32",
    explanation="PASS or FAIL follows if that changes the outcome.",
    next_steps={"toggle": ""},
)

LAYER_COLUMNS = (
    NAME_COLUMN,
    LayerColumn(
        "operator",
        width=9,
        narrower_widths={3: 6, 5: 0},
        order_title="operator",
        title_text=lambda row_values, width: "op",
        cell=_operator_cell,
        draw=_draw_operator,
        compute_sort_values=_make_sort_value_function(lambda row_values, group: (group.operator.lower(),)),
        names=("op",),
        explanation="The operator that gives the fused layer its character: the one that multiplies, or the first one.",
        next_steps={"open": "lists the nodes of the row"},
    ),
    LayerColumn(
        "precision",
        width=7,
        order_title="precision",
        title_text=lambda row_values, width: " prec",
        cell=_precision_cell,
        draw=_draw_precision,
        compute_sort_values=_make_sort_value_function(_precision_sort_key),
        names=("prec",),
        word="precision",
        explanation=f"Letters and arrows behind it are changes, and {OTHER_PRECISION_MARK} is a finding of the preview.",
        next_steps={
            "precision": "chooses a precision",
            "higher": "goes one step up",
            "lower": "goes one step down",
            "toggle": "",
        },
    ),
    LayerColumn(
        "engine",
        width=9,
        narrower_widths={4: 7, 6: 0},
        order_title="engine",
        title_text=lambda row_values, width: (
            f"in {row_values.engine_config_name}" if row_values.engine_config_name else "engine"
        ),
        cell=_engine_cell,
        draw=lambda cell, width: [(shorten_middle(cell[0], width), cell[1])],
        compute_sort_values=_make_sort_value_function(_engine_sort_key),
        needs_engines=True,
        names=("engine",),
        explanation="The precision in which the built engine runs the row. The title names the config of the engine if "
        "it is another one.",
        next_steps={"build": "", "engine": "shows all layers of the engine"},
    ),
    SHARE_COLUMN,
    TOGGLE_COLUMN,
    LayerColumn(
        "cost",
        True,
        width=6,
        rank=1,
        spare_cells=12,
        order_title="cost",
        title_text=lambda row_values, width: "ms " if row_values.group_times else "MACs ",
        cell=_cost_cell,
        draw=lambda text, width: [(f"{shorten_number_in_text(text, width - 1)} ", "dim")],
        compute_sort_values=lambda row_values: {
            name: float(cost) for name, cost in (row_values.group_times or row_values.model.group_macs).items() if cost
        },
        is_additive=True,
        names=("ms", "MACs"),
        explanation="The milliseconds that the engine spends in the row; without times, the row's share of the "
        "multiply-accumulate operations of the network.",
    ),
)
"""All columns, from left to right. Drawing, titles, sorting, clicks and explanations read this table."""

LAYER_COLUMNS_BY_ID = {column.id: column for column in LAYER_COLUMNS}


def find_column_at(widths: ColumnWidths, x: int) -> LayerColumn:
    """Returns the column at a cell of a line. The marks before a name belong to the name column."""
    ends = accumulate(width + 1 for width in widths.values())
    return LAYER_COLUMNS_BY_ID[[*widths, next(reversed(widths))][sum(end <= x for end in ends)]]
