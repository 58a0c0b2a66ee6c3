"""The list of all charts and tables of the chart page, in the order of their number keys."""

from collections.abc import Callable
from dataclasses import dataclass

from trt_tui.formatting import table_lines
from trt_tui.session.result_tables import metric_part_table
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, clip_line, wrap_text
from trt_tui.tui.state import depth_chart, engine_page, sample_chart, tradeoff_chart
from trt_tui.tui.state.chart import ChartFrame, DrawnChart, missing_chart_notice
from trt_tui.tui.state.detail import worst_input_lines
from trt_tui.tui.state.summary import stage_table_lines
from trt_tui.tui.state.value_charts import group_channel_range_lines


def metric_part_lines(session: Session, width: int) -> list[Line]:
    """Returns a table of the metric's parts, such as classes, with the largest drop first.

    Middle columns are omitted if the table is wider than ``width``.
    """
    rows = metric_part_table(session)
    if not rows:
        return [[("the metric has no parts", "dim")]]
    rows[0][0] = "part"
    while len(rows[0]) > 4 and max(map(len, table_lines(rows))) > width:
        rows = [[*row[:2], *row[3:]] for row in rows]
    header, headline, *parts = table_lines(rows)
    lines: list[Line] = [clip_line([(header, "dim")], width), clip_line([(headline, "strong")], width)]
    lines += [clip_line([(text, "bad" if number == 0 else "")], width) for number, text in enumerate(parts)]
    note = (f"drop: distance of the worst run below FP32. {shown_key('target')} takes metric[PART]>=base-1% and "
            "metric[*]>=base-2%.")
    return [*lines, [], *([(text, "dim")] for text in wrap_text(note, width))]


def _draw_input_value_chart(chart_frame: ChartFrame) -> DrawnChart:
    """Draws the inputs of the selected fusion group: a histogram with the range, and the ranges of channels."""
    group = chart_frame.group
    if group is None:
        return missing_chart_notice("Several layers are chosen: put the cursor on one of them.", chart_frame.width)
    channels = group_channel_range_lines(chart_frame.session, group, chart_frame.width)
    rows = max(4, min(12, chart_frame.height - len(channels) - 6))
    lines = worst_input_lines(chart_frame.session, chart_frame.row_values, group, chart_frame.width, rows)
    if not lines and not channels:
        return missing_chart_notice(
            "Its values are being measured …" if chart_frame.session.data_summary is not None else
            "There are no samples: reopen with --data.", chart_frame.width)
    return DrawnChart([[(f" {chart_frame.row_values.model.titles[group.name]}", "strong")], *lines, [], *channels])


def _draw_metric_part_table(chart_frame: ChartFrame) -> DrawnChart:
    if chart_frame.session.metric_name is None:
        return missing_chart_notice("Without --metric there are no parts of a metric.", chart_frame.width)
    return DrawnChart(metric_part_lines(chart_frame.session, chart_frame.width))


def _draw_stage_table(chart_frame: ChartFrame) -> DrawnChart:
    lines = stage_table_lines(chart_frame.session, chart_frame.width)
    return DrawnChart(lines) if lines else missing_chart_notice(
        "No stages towards production are measured: name them with --stage, --engine or --outputs.", chart_frame.width)


def _draw_warning_list(chart_frame: ChartFrame) -> DrawnChart:
    lines: list[Line] = []
    for _, text in chart_frame.session.shown_warnings:
        lines += [[("! " if index == 0 else "  ", "warn"), (part, "")]
                  for index, part in enumerate(wrap_text(text, chart_frame.width - 3))]
    return DrawnChart(lines) if lines else missing_chart_notice("No warnings.", chart_frame.width)


@dataclass(frozen=True)
class Chart:
    """An entry of the chart page.

    Attributes:
        label: The title of the chart, one word.
        draw: Draws the chart.
        request_data: Requests missing data from the background process when the chart is shown; None if not needed.
    """

    label: str
    draw: Callable[[ChartFrame], DrawnChart]
    request_data: Callable[[Session], None] | None = None


CHARTS = (
    Chart("values", _draw_input_value_chart),
    Chart("depth", depth_chart.draw_share_by_depth_chart),
    Chart("samples", sample_chart.draw_sample_error_chart, Session.request_sample_errors),
    Chart("trade", tradeoff_chart.draw_tradeoff_chart),
    Chart("layers", engine_page.draw_engine_layer_chart),
    Chart("classes", _draw_metric_part_table),
    Chart("stages", _draw_stage_table),
    Chart("warnings", _draw_warning_list),
)
"""All charts, selected by the number keys from 1 on."""
