"""The detail pane as a whole: its title, and its text with charts below or beside it."""

from collections.abc import Sequence

from trt_tui.core.network.hierarchy import GroupRow, Scope
from trt_tui.core.network.layers import FusionGroup
from trt_tui.formatting import cell_width, counted_noun_text
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, justify_line, shorten_path
from trt_tui.tui.state.detail import detail_lines, worst_input_lines
from trt_tui.tui.state.row_values import ColourMeasure, RowValues
from trt_tui.tui.state.text_plots import find_bin_of_index, sparkline_text
from trt_tui.tui.state.tree import TreeModel, VisibleRow
from trt_tui.tui.state.value_charts import group_channel_range_lines

MIN_CHART_ROWS = 8
"""The minimum height of a pane with charts. A lower pane has a short text only."""

MIN_SPLIT_CELLS = 84
"""The minimum width of a pane with charts beside its text. A narrower pane has them below."""

_MIN_TEXT_CELLS, _MAX_TEXT_CELLS = 46, 90
"""The minimum and the maximum width of a text with charts beside it."""

_MAX_HISTOGRAM_ROWS = 12
_DEPTH_TITLE = " depth  "


def detail_title(tree_model: TreeModel, visible_row: VisibleRow | None, width: int) -> str:
    """Returns the title of the detail pane for a row, in at most ``width`` cells.

    A long name is shortened in its middle, so that the end of the title stays.
    """
    if visible_row is None:
        return "Detail"
    row = visible_row.row
    if row is None:
        layer = tree_model.outline.layer_by_name[visible_row.node]
        name, ends = layer.name, [f" ─ {layer.op_type}"]
    elif isinstance(row, GroupRow):
        name, end = tree_model.titles[row.group.name], f" ─ {row.group.operator}"
        ends = [f"{end}, {counted_noun_text(len(row.group.layers), 'node')}", end]
    elif isinstance(row, Scope):
        name, ends = row.path, [f" ─ {counted_noun_text(len(row.groups), 'fused layer')}"]
    else:
        name, ends = row.label, [""]
    end = next((end for end in ends if cell_width(name + end) <= width), ends[-1])
    return f"{shorten_path(name, max(8, width - cell_width(end)))}{end}"


def detail_pane_lines(session: Session, row_values: RowValues, visible_row: VisibleRow | None,
                      group: FusionGroup | None, width: int, height: int) -> list[Line]:
    """Returns the text of the detail pane with charts: beside the text in a wide pane, else below it if there is room.

    The charts show the worst input and the channel ranges of a group, and the position of a group or scope in the
    network.
    """
    if height < MIN_CHART_ROWS:
        return detail_lines(session, row_values, visible_row, width, height)
    text_width = min(_MAX_TEXT_CELLS, max(_MIN_TEXT_CELLS, width * 11 // 20))
    if width < MIN_SPLIT_CELLS:
        text = detail_lines(session, row_values, visible_row, width, height)
        rows = 4 if height >= len(text) + 9 else 2
        return _stack_fitting([text, *_list_charts(session, row_values, visible_row, group, width, rows)], height)
    charts = _stack_fitting(_list_charts(session, row_values, visible_row, group, width - text_width - 3,
                                         min(_MAX_HISTOGRAM_ROWS, max(2, height // 4))), height)
    if not charts:
        return detail_lines(session, row_values, visible_row, width, height)
    text = detail_lines(session, row_values, visible_row, text_width, height)
    return [[*justify_line(text[index] if index < len(text) else [], text_width), (" │ ", "rule"),
             *(charts[index] if index < len(charts) else [])] for index in range(max(len(text), len(charts)))]


def _stack_fitting(blocks: Sequence[list[Line]], height: int) -> list[Line]:
    """Returns blocks of lines below each other, with a blank line between them. Later blocks without room are omitted.
    """
    lines: list[Line] = []
    for block in blocks:
        if block and (not lines or len(lines) + len(block) + 1 <= height):
            lines = [*lines, [], *block] if lines else list(block)
    return lines


def _list_charts(session: Session, row_values: RowValues, visible_row: VisibleRow | None, group: FusionGroup | None,
                 width: int, row_count: int) -> list[list[Line]]:
    """Returns the charts of a row, the most useful chart first."""
    if group is None:
        row = visible_row.row if visible_row is not None else None
        return [share_by_depth_lines(row_values, row.groups, width)] if isinstance(row, Scope) else []
    return [worst_input_lines(session, row_values, group, width, row_count),
            group_channel_range_lines(session, group, width), share_by_depth_lines(row_values, [group.name], width)]


def _list_group_shares(row_values: RowValues) -> list[float]:
    """Returns the error share of each fusion group in network order, or an empty list if no share is positive.

    Unknown and negative shares count as 0.
    """
    if row_values.measure is not ColourMeasure.SHARE:
        return []
    shares = [max(0.0, row_values.network_values.get(group.name, 0.0)) for group in row_values.model.outline.groups]
    return shares if any(shares) else []


def share_by_depth_lines(row_values: RowValues, group_names: Sequence[str], width: int) -> list[Line]:
    """Returns a sparkline of the error shares in network order, with marks below it at the given groups.

    The list is empty if no shares are known.
    """
    shares, room = _list_group_shares(row_values), width - len(_DEPTH_TITLE) - 1
    if not shares or room < 10:
        return []
    cell_count = min(room, len(shares))
    order = {group.name: index for index, group in enumerate(row_values.model.outline.groups)}
    bins = {find_bin_of_index(order[name], len(shares), cell_count) for name in group_names if name in order}
    ticks = "".join("▲" if bin_number in bins else " " for bin_number in range(cell_count)).rstrip()
    return [[(_DEPTH_TITLE, "dim"), (sparkline_text(shares, cell_count), "plot")],
            [(" " * len(_DEPTH_TITLE) + ticks, "strong")]]
