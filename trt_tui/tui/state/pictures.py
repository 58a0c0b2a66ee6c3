"""All pictures and tables that stand beside the list, each by the number that shows it."""

from collections.abc import Callable
from dataclasses import dataclass

from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, wrap_text
from trt_tui.tui.state import depth_chart, engine_page, parts, sample_chart, tradeoff_chart
from trt_tui.tui.state.chart import ChartFrame, DrawnChart, missing_chart_notice
from trt_tui.tui.state.detail import worst_input_lines
from trt_tui.tui.state.summary import stage_table_lines
from trt_tui.tui.state.value_charts import group_channel_range_lines


def _draw_input_value_chart(chart_frame: ChartFrame) -> DrawnChart:
    """What the row under the cursor reads: its histogram with the range, and the ranges of channels."""
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
        return missing_chart_notice("There is no --metric, so there are no parts of one.", chart_frame.width)
    return DrawnChart(parts.metric_part_lines(chart_frame.session, chart_frame.width))


def _draw_stage_table(chart_frame: ChartFrame) -> DrawnChart:
    lines = stage_table_lines(chart_frame.session, chart_frame.width)
    return DrawnChart(lines) if lines else missing_chart_notice(
        "No stages on the way to production are measured: --stage, --engine and "
        "--outputs name them.", chart_frame.width)


def _draw_warning_list(chart_frame: ChartFrame) -> DrawnChart:
    lines: list[Line] = []
    for _, text in chart_frame.session.shown_warnings:
        lines += [[("! " if index == 0 else "  ", "warn"), (part, "")]
                  for index, part in enumerate(wrap_text(text, chart_frame.width - 3))]
    return DrawnChart(lines) if lines else missing_chart_notice("Nothing is to be warned of.", chart_frame.width)


@dataclass(frozen=True)
class Chart:
    """A picture: its word, what draws it, and what is asked of the child process when it is shown."""

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
"""Shown by the numbers from 1 on."""
