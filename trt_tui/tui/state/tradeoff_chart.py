"""The chart of accuracy against cost: built engines by latency, and simulated configs by the share that stays in FP32.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.measure.error_metrics import ERROR_METRICS
from trt_tui.core.measure.results import Accuracy, EngineResult
from trt_tui.core.moves.config import PrecisionConfig, list_config_differences
from trt_tui.core.precision import Precision
from trt_tui.core.search.pareto import pareto_front
from trt_tui.formatting import (
    SIMULATED_MARK,
    builder_title,
    counted_noun_text,
    milliseconds_text,
    name_list_text,
    number_text,
    run_title,
)
from trt_tui.session.session import Session
from trt_tui.tui.config_status import config_name, meets_target, target_value_span
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, clip_line, wrap_text
from trt_tui.tui.state.chart import ChartFrame, DrawnChart
from trt_tui.tui.state.marks import BEATEN_GLYPH, CURSOR_GLYPH, ESTIMATED_GLYPH, FRONT_GLYPH
from trt_tui.tui.state.row_values import RowValues
from trt_tui.tui.state.text_plots import PlotAxis, PlotPoint, scatter_lines
from trt_tui.tui.state.tree import TreeModel

_GLYPH_LEGEND = f"{FRONT_GLYPH} no config is better in both   {BEATEN_GLYPH} beaten   {CURSOR_GLYPH} cursor"
_DETAIL_LINES = 6
_MAX_SQNR_GAP_DB = 30.0
"""An SQNR that exceeds all others by more than this, such as that of FP32, is drawn at the edge."""


@dataclass(frozen=True)
class TradeoffPoint:
    """A config in the chart of accuracy against cost.

    Attributes:
        cost: The latency in milliseconds, or the share of the MACs in FP32 (of the groups, if MACs are unknown).
        value: The value that the target bounds, from ``accuracy``.
        is_built: True if the engine of the config was measured.
        is_estimated: True if the latency was estimated.
    """

    config: PrecisionConfig
    name: str
    cost: float
    value: float
    accuracy: Accuracy
    is_built: bool = False
    is_estimated: bool = False


def _find_plotted_accuracy_value(session: Session, accuracy: Accuracy | None) -> float | None:
    """Returns the value that the target bounds; without a target, the SQNR of the worst output. None if the value is
    unknown.

    Values of outputs with NaN or Inf count as unknown.
    """
    if accuracy is None or accuracy.nonfinite_count:
        return None
    if session.target is not None:
        value = session.target.measured_value(accuracy)
    else:
        value = accuracy.find_worst_value(ERROR_METRICS["sqnr"])
    return None if value is None or math.isnan(value) else value


def _point_name(session: Session, config: PrecisionConfig) -> str:
    if config in session.config_names:
        return config_name(session, config)
    runs = {run_config: run for run, run_config in session.list_run_configs().items() if run != "config"}
    return run_title(runs[config]) if config in runs else ""


def list_built_points(session: Session) -> list[TradeoffPoint]:
    """Returns points for fully built engines of unchanged configs, and for configs with a latency that the search
    estimated.

    The first have the accuracy as built, the second the simulated accuracy.
    """
    engines: list[tuple[str, PrecisionConfig, EngineResult | None]] = [
        (_point_name(session, config), config, results.engine_result) for config, results in session.results.items()]
    engines.append(("FP32", PrecisionConfig.from_precision(Precision.FP32), session.results.fp32_engine))
    points = [
        TradeoffPoint(config, name, engine.latency_ms[0], value, engine.accuracy, is_built=True)
        for name, config, engine in engines
        if engine is not None and engine.is_built_as_requested and not engine.is_quick_build
        and engine.latency_ms is not None and engine.accuracy is not None and (
            value := _find_plotted_accuracy_value(session, engine.accuracy)) is not None
    ]
    built_configs = {point.config for point in points}
    end_event = session.search_status.end_event if session.search_status is not None else None
    for index, config in (end_event.pareto_configs if end_event is not None else {}).items():
        evaluation = end_event.evaluations[index] if end_event is not None else None
        accuracy = evaluation.target_result.accuracy if evaluation is not None else None
        value = _find_plotted_accuracy_value(session, accuracy)
        if (evaluation is not None and evaluation.estimated_latency is not None and config not in built_configs
                and accuracy and value is not None):
            points.append(
                TradeoffPoint(config, _point_name(session, config), evaluation.estimated_latency, value, accuracy,
                              is_estimated=True))
    return points


def compute_fp32_share(tree_model: TreeModel, config: PrecisionConfig) -> float:
    """Returns the share of the MACs that a config runs in FP32; the share of the groups if the MACs are unknown."""
    weights = {group.name: float(tree_model.group_macs[group.name] or 0) if tree_model.total_macs else 1.0
               for group in tree_model.outline.groups}
    fp32_weight = sum(weight for group in tree_model.outline.groups if (weight := weights[group.name])
                      and group.resolve_file_precision(config.precision_of(group)) is Precision.FP32)
    return fp32_weight / (sum(weights.values()) or 1.0)


def find_missing_points_reason(chart_frame: ChartFrame) -> str:
    """Returns the reason why there are no configs to draw on either axis; "" if there are some."""
    session = chart_frame.session
    has_points = bool(list_built_points(session)) or any(
        results.accuracy is not None and _find_plotted_accuracy_value(session, results.accuracy) is not None
        for results in session.results.values())
    return "" if has_points else _no_points_text(session, is_by_latency=False)


def list_simulated_points(session: Session, tree_model: TreeModel) -> list[TradeoffPoint]:
    """Returns points for simulated configs with the default precisions of the current config.

    Configs that were simulated on fewer samples than required are omitted. The measured configs with the worst groups
    of the current config raised together are included.
    """
    required_samples = session.data_summary.what_if_count if session.data_summary is not None else 0
    current_config, results = session.config, session.get_run_results("config")
    accuracies = {config: entry.accuracy for config, entry in session.results.items() if entry.accuracy is not None
                  and (config.quantized, config.other) == (current_config.quantized, current_config.other)}
    for count, accuracy in enumerate(results.cumulative, 1):
        groups = [tree_model.outline.group_by_name[name] for name in results.raised_order[:count]]
        accuracies.setdefault(current_config.with_group_precision(groups, Precision.FP32), accuracy)
    return [TradeoffPoint(config, _point_name(session, config), compute_fp32_share(tree_model, config), value, accuracy)
            for config, accuracy in accuracies.items() if accuracy.samples >= min(required_samples, accuracy.total)
            and (value := _find_plotted_accuracy_value(session, accuracy)) is not None]


def _target_value_text(session: Session, value: float) -> str:
    """Returns the short text of a value on the target axis, without a simulation mark."""
    return (session.target.bounded_value if session.target is not None else ERROR_METRICS["sqnr"]).value_text(value)


def draw_tradeoff_chart(chart_frame: ChartFrame) -> DrawnChart:
    """Draws accuracy against cost. The cost is the latency if two engines were timed, else the share in FP32.

    `ChartFrame.axis_turns` selects the other cost. The cursor starts at the current config, and enter makes the
    selected config the current one.
    """
    session, row_values, width = chart_frame.session, chart_frame.row_values, chart_frame.width
    engine_points, config_points = list_built_points(session), list_simulated_points(session, row_values.model)
    is_by_latency = (len(engine_points) >= 2) is (chart_frame.axis_turns % 2 == 0)
    points = engine_points if is_by_latency else config_points
    if not points:
        return DrawnChart([[(part, "dim")] for part in wrap_text(_no_points_text(session, is_by_latency), width)],
                          has_axes=True)
    is_lower_better = session.target is not None and not session.target.is_higher_better
    sign = -1.0 if is_lower_better else 1.0
    front_configs = {
        points[index].config
        for index in pareto_front([(point.cost, sign * point.value) for point in points])
    }
    points = sorted(points, key=lambda item: (item.cost, sign * item.value))
    current_index = next((index for index, point in enumerate(points) if point.config == session.config), 0)
    cursor = current_index if chart_frame.cursor is None else chart_frame.cursor % len(points)
    limit = session.target.bound if session.target is not None else None
    values = sorted([sign * point.value for point in points] + ([sign * limit] if limit is not None else []))
    if session.target is None or session.target.kind == "sqnr":
        while len(values) > 2 and values[-1] > values[-2] + _MAX_SQNR_GAP_DB:
            values.pop()
    y_axis = PlotAxis.from_values(values, lambda value: _target_value_text(session, sign * value))
    x_axis = PlotAxis.from_values([point.cost for point in points], number_text if is_by_latency else _percent_text,
                                  starts_at_zero=not is_by_latency)
    lines: list[Line] = [clip_line([(f" {_axes_title(session, is_by_latency)}", "dim")], width)]
    estimate_legend = f"   {ESTIMATED_GLYPH} time estimated between engines" if any(point.is_estimated
                                                                                    for point in points) else ""
    plot_points = [
        PlotPoint(
            point.cost, sign * point.value,
            ESTIMATED_GLYPH if point.is_estimated else FRONT_GLYPH if point.config in front_configs else BEATEN_GLYPH,
            _point_style(session, point), _point_label(session, point, y_axis, sign)) for point in points
    ]
    plot_points.append(replace(plot_points.pop(cursor), glyph=CURSOR_GLYPH, style="key"))
    title = "ms, median" if is_by_latency else f"{'MACs' if row_values.model.total_macs else 'layers'} in FP32"
    lines += scatter_lines(plot_points, x_axis, y_axis, width, max(6, chart_frame.height - _DETAIL_LINES - 1),
                           sign * limit if limit is not None else None, title)
    lines.append(clip_line([(f" {_GLYPH_LEGEND}{estimate_legend}", "dim")], width))
    lines += _chosen_point_lines(session, row_values, points[cursor], cursor, len(points), is_by_latency, width)
    lines += [
        clip_line([(f" {text}", "dim")], width)
        for text in _omission_texts(session, engine_points, config_points, is_by_latency)
    ]
    return DrawnChart(lines, [point.config for point in points], cursor, "selects it", True)


def _point_style(session: Session, point: TradeoffPoint) -> str:
    is_reached = meets_target(session, point.accuracy)
    return "" if is_reached is None else "good" if is_reached else "bad"


def _percent_text(share: float) -> str:
    return f"{100 * share:.3g}%"


def _point_label(session: Session, point: TradeoffPoint, y_axis: PlotAxis, sign: float) -> str:
    """Returns the name of a point, with its value if the point is beyond the upper edge."""
    above = point.name and sign * point.value > y_axis.high
    return f"{point.name}, {_target_value_text(session, point.value)}" if above else point.name


def _axes_title(session: Session, is_by_latency: bool) -> str:
    kind = session.target.kind if session.target is not None else "sqnr"
    metric = next(iter(session.results.reference_metric), "metric").rpartition(":")[2]
    value_title = {"sqnr": "SQNR, dB", "metric": metric, "agreement": "top-1 agreement"}.get(kind, kind)
    if not is_by_latency:
        return f"{value_title}, simulated, against the part in FP32"
    builder = session.builder
    builder_text = (builder_title(builder.name, ".".join(builder.version.split(".")[:2])) if builder is not None else
                    f"ONNX Runtime, {session.backend_summary.device}" if session.backend_summary is not None else "")
    return f"{value_title}, against latency, as built by {builder_text}"


def _no_points_text(session: Session, is_by_latency: bool) -> str:
    if not is_by_latency:
        return "No config is simulated yet."
    return (f"No engine was timed, so there are no milliseconds: {shown_key('build')} builds one."
            if session.builder is None or session.builder.can_run else
            "Engines cannot run here, so there are no milliseconds.")


def _chosen_point_lines(session: Session, row_values: RowValues, point: TradeoffPoint, index: int, count: int,
                        is_by_latency: bool, width: int) -> Iterator[Line]:
    text, _ = target_value_span(session, point.accuracy, is_simulated=not point.is_built)
    cost = (
        f"{SIMULATED_MARK if point.is_estimated else ''}{milliseconds_text(point.cost)}"
        f"{' estimated' if point.is_estimated else ''}"
        if is_by_latency else
        f"{_percent_text(point.cost)} of the {'MACs' if row_values.model.total_macs else 'layers'} in FP32")
    result = session.target_outcome(point.accuracy)
    current_mark = " (now)" if point.config == session.config else ""
    yield []
    yield clip_line([(f" {point.name or 'what-if'}{current_mark}", "strong"), (f"  {text}  {cost}  ", ""),
                     ("" if result is None else result.outcome.value,
                                                         "good" if result is not None and result.passes else "bad"),
                 (f"   {index + 1} of {count}", "dim")], width)
    titles = row_values.model.titles
    changes = [f"{line.move_class.difference_title(titles.get(line.subject, line.subject))} {line.second_text}"
               for line in list_config_differences(session.config, point.config, row_values.model.outline)]
    yield clip_line([(f" from {config_name(session)}: {name_list_text(changes, 4)}" if changes else "", "dim")],
                    width)


def _omission_texts(session: Session, engine_points: Sequence[TradeoffPoint], config_points: Sequence[TradeoffPoint],
                    is_by_latency: bool) -> list[str]:
    """Returns sentences about the configs that the chart omits, and why."""
    built_configs = {point.config for point in engine_points}
    if is_by_latency:
        untimed_count = sum(point.config not in built_configs for point in config_points)
        return [f"{counted_noun_text(untimed_count, 'simulated config')} without milliseconds left out: a shows "
                f"{'it' if untimed_count == 1 else 'them'}"] if untimed_count else []
    drawn_configs = {point.config for point in config_points}
    run_titles = [
        run_title(run) for run, config in session.list_run_configs().items() if run != "config"
        and config not in drawn_configs and session.results.get_results_or_empty(config).accuracy is not None
    ]
    return [f"{' and '.join(run_titles)} left out: other defaults, so FP32 does not show their "
            "cost"] if run_titles else []
