"""The distribution of the error over the depth of the network: error shares of the fusion groups in network order."""

from collections.abc import Sequence

from trt_tui.formatting import SIMULATED_MARK, cell_width, counted_noun_text, percent_text, run_title
from trt_tui.tui.config_status import config_name
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, clip_line, shorten_middle
from trt_tui.tui.state.chart import ChartFrame, DrawnChart
from trt_tui.tui.state.row_values import ColourMeasure, RowValues
from trt_tui.tui.state.text_plots import (
    BarLabel,
    bar_label_lines,
    bar_lines,
    bin_values,
    find_bin_of_index,
    sparkline_text,
)

_LABEL_TEXT = " depth  "
_MAX_SCOPE_LABEL_CELLS = 16
_MAX_SPAN_SHARE = 0.4


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
    shares, room = _list_group_shares(row_values), width - len(_LABEL_TEXT) - 1
    if not shares or room < 10:
        return []
    cell_count = min(room, len(shares))
    order = {group.name: index for index, group in enumerate(row_values.model.outline.groups)}
    bins = {find_bin_of_index(order[name], len(shares), cell_count) for name in group_names if name in order}
    ticks = "".join("▲" if bin_number in bins else " " for bin_number in range(cell_count)).rstrip()
    return [[(_LABEL_TEXT, "dim"), (sparkline_text(shares, cell_count, sum), "plot")],
            [(" " * len(_LABEL_TEXT) + ticks, "strong")]]


def find_missing_shares_reason(chart_frame: ChartFrame) -> str:
    """Returns the reason why there are no error shares to draw; "" if there are some."""
    row_values = chart_frame.row_values
    if _list_group_shares(row_values):
        return ""
    if row_values.measure is not ColourMeasure.SHARE:
        return f"The rows are coloured by errors, which do not add up: {shown_key('colour')} colours them by share."
    return ("Raising any single layer does not reduce the error." if row_values.group_values else
            "No shares are measured yet.")


def _list_scope_spans(paths: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns the scopes that divide the network: the first and the last index of their groups, and a name.

    A scope with more than `_MAX_SPAN_SHARE` of the groups is divided into its own scopes.
    """
    parts = [path.split("/") for path in paths]

    def divide(first: int, last: int, level: int) -> list[tuple[int, int, str]]:
        starts = [index for index in range(first, last + 1)
                  if index == first or parts[index][:level] != parts[index - 1][:level]]
        spans: list[tuple[int, int, str]] = []
        for start, stop in zip(starts, [*starts[1:], last + 1], strict=True):
            is_large = stop - start > max(1, _MAX_SPAN_SHARE * len(parts))
            if is_large and any(len(path) > level for path in parts[start:stop]):
                spans += divide(start, stop - 1, level + 1)
            else:
                names = parts[start][:level]
                spans.append((start, stop - 1, "/".join(names[-2:] if names[-1].isdecimal() else names[-1:])))
        return spans

    return divide(0, len(parts) - 1, 1) if parts else []


def _scope_label_line(paths: Sequence[str], column_of_bar: Sequence[int], width: int) -> Line:
    """Returns a line with the names of scopes, each below its first bar; the largest scopes come first if there is no
    room for all.

    Args:
        paths: The path of each group in network order.
        column_of_bar: The column of the bar of each group.
    """
    cells = [" "] * width
    for first, _, name in sorted(_list_scope_spans(paths), key=lambda span: span[0] - span[1]):
        column, text = column_of_bar[first], f"╵{shorten_middle(name, _MAX_SCOPE_LABEL_CELLS)}"
        end = column + cell_width(text)
        if end < width and len(text) == cell_width(text) and not "".join(cells[max(0, column - 1):end + 1]).strip():
            cells[column:end] = text
    return [("".join(cells).rstrip(), "dim")]


def draw_share_by_depth_chart(chart_frame: ChartFrame) -> DrawnChart:
    """Draws the error shares in network order as bars, with the scopes below them. Enter selects the worst group of the
    selected bar in the layer list."""
    row_values, width = chart_frame.row_values, chart_frame.width
    shares = _list_group_shares(row_values)
    groups = row_values.model.outline.groups
    count = min(width - 2, len(shares))
    sums = bin_values(shares, count, sum)
    bins: list[list[int]] = [[] for _ in range(count)]
    for index in range(len(shares)):
        bins[find_bin_of_index(index, len(shares), count)].append(index)
    worst_indices = [max(bin_indices, key=lambda place: shares[place]) for bin_indices in bins]
    first_cursor = max(range(count), key=lambda run: sums[run])
    if chart_frame.group is not None:
        first_cursor = find_bin_of_index(
            next(index for index, group in enumerate(groups) if group.name == chart_frame.group.name), len(shares),
            count)
    cursor = first_cursor if chart_frame.cursor is None else chart_frame.cursor % count
    cell = max(1, min(4, (width - 2) // count))
    max_sum = max(sums)
    name = (row_values.stale_config_name if row_values.stale_groups else config_name(chart_frame.session)
            ) if row_values.run == "config" else run_title(row_values.run)
    styles = ["strong" if bin_indices == cursor else "plot" for bin_indices in range(count)]
    rows = max(3, min(16, chart_frame.height - 9))
    lines: list[Line] = [clip_line([(f" share of the error of {name} over the depth of the network", "dim"),
                                    (f"   full height {percent_text(max_sum, SIMULATED_MARK)}", "dim")], width)]
    lines += [[(" ", ""), *line] for line in bar_lines([value / max_sum for value in sums], rows, cell, styles)]
    rows_by_group = row_values.model.rows_by_group
    lines.append(_scope_label_line([rows_by_group[group.name].path for group in groups],
                                   [1 + cell * find_bin_of_index(index, len(shares), count)
                                    for index in range(len(shares))], width))
    lines += bar_label_lines([BarLabel(1 + cursor * cell + cell // 2, "▲", "strong")], width)[1:]
    chosen = groups[worst_indices[cursor]]
    other_count = len(bins[cursor]) - 1
    also = (
        f", the worst of "
        f"{counted_noun_text(other_count + 1, 'layer')}, {percent_text(sums[cursor], SIMULATED_MARK)} together"
        if other_count else "")
    lines += [clip_line([(f" {row_values.model.titles[chosen.name]}", "strong"), (f"  {chosen.operator}  ", "dim"),
                         (percent_text(shares[worst_indices[cursor]], SIMULATED_MARK), ""), (also, "dim")], width)]
    ranked = sorted(range(len(shares)), key=lambda place: -shares[place])[:3]
    titles = row_values.model.titles
    top_texts = [f"{titles[groups[index].name]} {percent_text(shares[index], SIMULATED_MARK)}" for index in ranked
                 if shares[index] > 0]
    while len(top_texts) > 1 and cell_width(" · ".join(top_texts)) > width - 9:
        del top_texts[-1]  # whole names only
    lines += [[], clip_line([(" worst  ", "dim"), (" · ".join(top_texts), "")], width)]
    return DrawnChart(lines, [groups[index].name for index in worst_indices], cursor, "selects it")
