"""The list of all charts and tables of the chart page, in the order of their number keys."""

from collections.abc import Callable
from dataclasses import dataclass

from trt_tui.core.measure.causes import GROUP_DETAILS
from trt_tui.formatting import table_lines
from trt_tui.session.result_tables import metric_part_table
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, clip_line, line_width, wrap_text
from trt_tui.tui.state import sample_chart
from trt_tui.tui.state.chart import ChartFrame, DrawnChart
from trt_tui.tui.state.detail import worst_input_lines
from trt_tui.tui.state.value_charts import group_channel_range_lines


def metric_part_lines(session: Session, width: int) -> list[Line]:
    """Returns a table of the metric's parts, such as classes, with the largest drop first; [] if there are no parts.

    Middle columns are omitted if the table is wider than ``width``.
    """
    rows = metric_part_table(session)
    if not rows:
        return []
    rows[0][0] = "part"
    while len(rows[0]) > 4 and max(map(len, table_lines(rows))) > width:
        rows = [[*row[:2], *row[3:]] for row in rows]
    header, headline, *parts = table_lines(rows)
    lines: list[Line] = [clip_line([(header, "dim")], width), clip_line([(headline, "strong")], width)]
    lines += [clip_line([(text, "bad" if number == 0 else "")], width) for number, text in enumerate(parts)]
    note = (f"drop: distance of the worst run below FP32. {shown_key('target')} takes metric[PART]>=base-1% and "
            "metric[*]>=base-2%.")
    return [*lines, [], *([(text, "dim")] for text in wrap_text(note, width))]


def _find_missing_values_reason(chart_frame: ChartFrame) -> str:
    """Returns the reason why there are no values of the selected group to draw; "" if there are some."""
    group, session = chart_frame.group, chart_frame.session
    if group is None:
        return "Several layers are chosen: put the cursor on one of them."
    details = session.results.find(GROUP_DETAILS, group.name)
    if details is not None and (details.tensors or details.weights):
        return ""
    return ("Its values are being measured …" if session.data_summary is not None else
            "There are no samples: reopen with --data.")


def _draw_input_value_chart(chart_frame: ChartFrame) -> DrawnChart:
    """Draws the inputs of the selected fusion group: a histogram with the range, and the ranges of channels."""
    group = chart_frame.group
    if group is None:
        return DrawnChart([])
    channels = group_channel_range_lines(chart_frame.session, group, chart_frame.width)
    rows = max(4, min(12, chart_frame.height - len(channels) - 6))
    lines = worst_input_lines(chart_frame.session, chart_frame.row_values, group, chart_frame.width, rows)
    return DrawnChart([[(f" {chart_frame.row_values.model.titles[group.name]}", "strong")], *lines, [], *channels])


def _find_missing_parts_reason(chart_frame: ChartFrame) -> str:
    """Returns the reason why there are no parts of the metric; "" if there are some."""
    session = chart_frame.session
    if session.metric_name is None:
        return "Without --metric there are no parts of a metric."
    if len(session.results.reference_metric) >= 2:
        return ""
    return ("The metric has no parts." if session.results.reference_metric else "The metric is not measured yet.")


def _draw_metric_part_table(chart_frame: ChartFrame) -> DrawnChart:
    return DrawnChart(metric_part_lines(chart_frame.session, chart_frame.width))


@dataclass(frozen=True)
class Chart:
    """An entry of the chart page.

    Attributes:
        label: The title of the chart, one word.
        draw_content: Draws the chart if its data exist.
        find_missing_reason: Returns the reason why the data do not exist, for the text in place of the chart; "" if
            they exist.
        request_data: Requests missing data from the background process when the chart is shown; None if not needed.
    """

    label: str
    draw_content: Callable[[ChartFrame], DrawnChart]
    find_missing_reason: Callable[[ChartFrame], str]
    request_data: Callable[[Session], None] | None = None

    def draw(self, chart_frame: ChartFrame) -> DrawnChart:
        """Draws the chart, or the reason why there is none."""
        if reason := self.find_missing_reason(chart_frame):
            return DrawnChart([[(part, "dim")] for part in wrap_text(reason, chart_frame.width)])
        return self.draw_content(chart_frame)


CHARTS = (
    Chart("values", _draw_input_value_chart, _find_missing_values_reason),
    Chart("samples", sample_chart.draw_sample_error_chart, sample_chart.find_missing_samples_reason,
          Session.request_sample_errors),
    Chart("classes", _draw_metric_part_table, _find_missing_parts_reason),
)
"""All charts, selected by the number keys from 1 on."""


def chart_title_line(chart_frame: ChartFrame, current_index: int, width: int) -> Line:
    """Returns the line with the number and the title of each chart; charts without data are grey.

    A chart that requests its data when it is opened is grey only if there are no samples. Without enough room, the
    titles of charts without data are left out, and then those of all other charts.
    """
    has_samples = chart_frame.session.data_summary is not None
    has_data = [has_samples and chart.request_data is not None or not chart.find_missing_reason(chart_frame)
                for chart in CHARTS]

    def build_line(has_title: Callable[[int], bool]) -> Line:
        line: Line = []
        for index, chart in enumerate(CHARTS):
            is_current = index == current_index
            title = f"[{chart.label}]" if is_current else f" {chart.label}" if has_title(index) else ""
            line += [(f"{index + 1}", "key" if has_data[index] or is_current else "dim"),
                     (title, "strong" if is_current else "" if has_data[index] else "dim"), (" ", "")]
        return line

    lines = [build_line(lambda index: True), build_line(lambda index: has_data[index]), build_line(lambda index: False)]
    return next((line for line in lines if line_width(line) <= width), lines[-1])
