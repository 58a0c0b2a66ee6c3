"""The charts of the chart page, in the order of their number keys: values, errors by sample, parts of the metric."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trt_tui.core.data.batches import SampleName
from trt_tui.core.measure.causes import GROUP_DETAILS
from trt_tui.core.measure.group_sweep import SAMPLE_ERRORS, SINGLE_SAMPLES, SampleErrors, SingleSampleResult
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.report.document import Table
from trt_tui.formatting import (
    SIMULATED_MARK,
    add_decibel_unit,
    counted_noun_text,
    decibels_text,
    mismatch_text,
    percent_text,
    run_title,
)
from trt_tui.session.comparison_report import metric_part_table
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, clip_line, labelled_lines, wrap_text
from trt_tui.tui.state.config_status import config_name
from trt_tui.tui.state.detail import worst_input_lines
from trt_tui.tui.state.rows import RowValues
from trt_tui.tui.state.text_plots import (
    BarLabel,
    bar_label_lines,
    bar_lines,
    group_channel_range_lines,
    split_into_bins,
)
from trt_tui.tui.table import block_lines


@dataclass(frozen=True)
class ChartFrame:
    """The input of a function that draws a chart: the data to draw, the room, and the user's choices.

    Attributes:
        group: The fusion group under the cursor; None if no group or several groups are selected.
        width, height: The room in cells.
        cursor: The index of the selected point; None until the user moves the cursor.
    """

    session: Session
    row_values: RowValues
    group: FusionGroup | None
    width: int
    height: int
    cursor: int | None = None


@dataclass(frozen=True)
class DrawnChart:
    """A drawn chart with its selectable samples.

    Attributes:
        samples: The names of the samples that the user can select; empty if the chart has none.
        cursor: The index of the selected sample in ``samples``.
    """

    lines: Sequence[Line]
    samples: Sequence[SampleName] = field(default_factory=tuple)
    cursor: int = 0


_DETAIL_LINES = 8
"""The number of lines below the bars, for the selected sample and its results."""

_MAX_LISTED_SHARES = 6


def sample_error_text(value: float, is_mismatch: bool) -> str:
    """Returns the displayed form of a sample's error: the share of differing values, or an SQNR in dB."""
    if is_mismatch and not math.isnan(value):
        return f"{mismatch_text(value, SIMULATED_MARK)} differs"
    return add_decibel_unit(decibels_text(value, exact=value == math.inf, nan=int(math.isnan(value))))


def find_missing_samples_reason(chart_frame: ChartFrame) -> str:
    """Returns the reason why there are no errors of samples to draw; "" if there are some."""
    session = chart_frame.session
    if session.data_summary is None:
        return "There are no samples: reopen with --data."
    errors = session.results.find_value(SAMPLE_ERRORS, session.config)
    if errors is None:
        return "The errors are being measured sample by sample …"
    return "" if errors.values else "No sample was measured."


def draw_sample_error_chart(chart_frame: ChartFrame) -> DrawnChart:
    """Draws a bar for each sample, taller for a larger error. Enter measures the selected sample alone.

    The cursor starts at the worst sample.
    """
    session, width = chart_frame.session, chart_frame.width
    errors = session.results.get_values(SAMPLE_ERRORS)[session.config]
    bins = split_into_bins(len(errors.values), width - 2)
    worst = [max(bin_samples, key=errors.sortable_sample_error) for bin_samples in bins]
    cursor = (
        next(index for index, bin_samples in enumerate(bins) if errors.worst_position in bin_samples)
        if chart_frame.cursor is None
        else chart_frame.cursor % len(bins)
    )
    cell = max(1, min(3, (width - 2) // len(bins)))
    heights, low, high = _sample_bar_heights(errors)
    styles: list[str] = ["bad" if math.isnan(errors.values[index]) else "plot" for index in worst]
    styles[cursor] = "strong"
    unit = "batch" if errors.is_by_feed else "sample"
    name = config_name(session)
    title = (
        f" error of {name} over {counted_noun_text(len(heights), unit).replace('batchs', 'batches')}, taller is worse"
    )
    lines: list[Line] = [clip_line([(title, "dim"), (f"   {high} to {low}", "dim")], width)]
    rows = max(3, min(16, chart_frame.height - _DETAIL_LINES - 3))
    lines += [[(" ", ""), *line] for line in bar_lines([heights[index] for index in worst], rows, cell, styles)]
    chosen = worst[cursor]
    lines += bar_label_lines([BarLabel(1 + cursor * cell + cell // 2, str(errors.names[chosen]), "strong")], width)
    worst_text = ", the worst" if chosen == errors.worst_position else ""
    more_text = f", the worst of {len(bins[cursor])} in this column" if len(bins[cursor]) > 1 and not worst_text else ""
    lines.append(
        clip_line(
            [
                (f" {errors.names[chosen]}", "strong"),
                ("  ", ""),
                (sample_error_text(errors.values[chosen], errors.are_mismatch_shares), ""),
                (f"{worst_text}{more_text}", "dim"),
            ],
            width,
        )
    )
    if errors.is_by_feed:
        lines.append([(" the samples of a batch cannot be separated in the outputs; its first one names it", "dim")])
        return DrawnChart(lines)
    sample = session.results.find_value(SINGLE_SAMPLES, (session.config, errors.names[chosen]))
    lines += _single_sample_lines(chart_frame, sample, errors.are_mismatch_shares) if sample is not None else []
    return DrawnChart(lines, [errors.names[position] for position in worst], cursor)


def _sample_bar_heights(sample_errors: SampleErrors) -> tuple[list[float], str, str]:
    """Returns the bar heights from 0 to 1, and the texts of the smallest and the largest error on the axis."""
    errors = [sample_errors.sortable_sample_error(position) for position in range(len(sample_errors.values))]
    finite = [error for error in errors if math.isfinite(error)]
    best, worst = min(finite, default=0.0), max(finite, default=0.0)
    room = (worst if sample_errors.are_mismatch_shares else (worst - best) * 1.15) or 1.0
    base = 0.0 if sample_errors.are_mismatch_shares else worst - room
    worst_text, best_text = (
        sample_error_text(sample_errors.values[position], sample_errors.are_mismatch_shares)
        for position in (sample_errors.worst_position, errors.index(min(errors)))
    )
    return [max(0.0, min(1.0, (error - base) / room)) for error in errors], worst_text, best_text


def _single_sample_lines(chart_frame: ChartFrame, sample: SingleSampleResult, is_mismatch: bool) -> list[Line]:
    """Returns the results of one sample: its error in each run, and the groups with the largest error shares."""
    session, titles = chart_frame.session, chart_frame.row_values.model.titles
    values = [
        f"{config_name(session) if run == 'config' else run_title(run)} {sample_error_text(value, is_mismatch)}"
        for run, value in sample.values_by_run.items()
    ]
    ranked = sorted(sample.shares_by_group.items(), key=lambda item: -item[1])[:_MAX_LISTED_SHARES]
    owners = [f"{titles[name]} {percent_text(share, SIMULATED_MARK)}" for name, share in ranked if share >= 0.002]
    owners += ["… being measured"] * (not sample.is_complete)
    config_shares = session.results.get_results_or_empty(session.config).shares
    shared = [
        f"{titles[name]} {percent_text(config_shares[name].fraction, SIMULATED_MARK)}"
        for name, share in ranked[:3]
        if sample.is_complete and name in config_shares and share - config_shares[name].fraction > 0.1
    ]
    entries = [
        (" alone", " · ".join(values)),
        (" shares", " · ".join(owners) or "no layer contributes to this error"),
        (" of all", f"samples together: {', '.join(shared)}" if shared else ""),
    ]
    return [line for label, text in entries for line in labelled_lines(label, text, chart_frame.width, label_width=8)]


def draw_metric_part_table(chart_frame: ChartFrame) -> DrawnChart:
    """Draws the table of the metric's parts, such as classes, as reports have it."""
    note = (
        f"drop: distance of the worst run below FP32. {shown_key('target')} takes metric[PART]>=base-1% and "
        "metric[*]>=base-2%."
    )
    return DrawnChart(block_lines([Table(metric_part_table(chart_frame.session)), [note]], chart_frame.width))


def _find_missing_values_reason(chart_frame: ChartFrame) -> str:
    """Returns the reason why there are no values of the selected group to draw; "" if there are some."""
    group, session = chart_frame.group, chart_frame.session
    if group is None:
        return "Several layers are chosen: put the cursor on one of them."
    details = session.results.find_value(GROUP_DETAILS, group.name)
    if details is not None and (details.tensors or details.weights):
        return ""
    return (
        "Its values are being measured …"
        if session.data_summary is not None
        else "There are no samples: reopen with --data."
    )


def _draw_input_value_chart(chart_frame: ChartFrame) -> DrawnChart:
    """Draws the inputs of the selected fusion group: a histogram with the range, and the ranges of channels."""
    group = chart_frame.group
    assert group is not None, "without a group there are no values to draw"
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
    return "The metric has no parts." if session.results.reference_metric else "The metric is not measured yet."


@dataclass(frozen=True)
class Chart:
    """An entry of the chart page.

    Attributes:
        label: The title of the chart, one word.
        draw_content: Draws the chart if its data exist.
        find_missing_data_reason: Returns the reason why the data do not exist, for the text in place of the chart; "" if
            they exist.
        request_data: Requests missing data from the background process when the chart is shown; None if not needed.
    """

    label: str
    draw_content: Callable[[ChartFrame], DrawnChart]
    find_missing_data_reason: Callable[[ChartFrame], str]
    request_data: Callable[[Session], None] | None = None

    def draw(self, chart_frame: ChartFrame) -> DrawnChart:
        """Draws the chart, or the reason why there is none."""
        if reason := self.find_missing_data_reason(chart_frame):
            return DrawnChart([[(part, "dim")] for part in wrap_text(reason, chart_frame.width)])
        return self.draw_content(chart_frame)


CHARTS = (
    Chart("values", _draw_input_value_chart, _find_missing_values_reason),
    Chart("samples", draw_sample_error_chart, find_missing_samples_reason, Session.request_sample_errors),
    Chart("classes", draw_metric_part_table, _find_missing_parts_reason),
)
"""All charts, selected by the number keys from 1 on."""


def chart_title_line(chart_frame: ChartFrame, current_index: int) -> Line:
    """Returns the line with the number and the title of each chart; charts without data are grey.

    A chart that requests its data when it is opened is grey only if there are no samples.
    """
    has_samples = chart_frame.session.data_summary is not None
    line: Line = []
    for index, chart in enumerate(CHARTS):
        is_current = index == current_index
        has_data = has_samples and chart.request_data is not None or not chart.find_missing_data_reason(chart_frame)
        line += [
            (f"{index + 1}", "key" if has_data or is_current else "dim"),
            (
                f"[{chart.label}]" if is_current else f" {chart.label}",
                "strong" if is_current else "" if has_data else "dim",
            ),
            (" ", ""),
        ]
    return clip_line(line, chart_frame.width)
