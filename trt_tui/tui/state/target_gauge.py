"""The distance of a value from the target as a gauge, and its confidence interval as a margin of error."""

import math

from trt_tui.core.measure.results import Accuracy, RunKind
from trt_tui.core.measure.target import Target
from trt_tui.formatting import SIMULATED_MARK, cell_width, number_text
from trt_tui.session.results import find_decisive_outcome
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line
from trt_tui.tui.state.marks import MARGIN_MARK
from trt_tui.tui.state.text_plots import bar_text


def value_margin_text(target: Target, accuracy: Accuracy) -> str:
    """Returns the distance of a value from the farther end of its confidence interval, in its unit: ``±2.1``.

    An interval is rarely symmetric; the farther end never makes a value look surer than it is. The text is ``±?`` if
    the value has no interval. It is "" if the value was not measured, and if all judged outputs are floats that equal
    those of the FP32 network, because a metric of them then equals FP32's on any samples.
    """
    value, interval, errors = (target.measured_value(accuracy), target.confidence_interval(accuracy),
                               accuracy.worst_errors)
    if value is None or accuracy.nonfinite_count or errors is not None and errors.exact and errors.mismatch is None:
        return ""
    if interval is None:
        return f"{MARGIN_MARK}?"
    margin = max(value - interval.low, interval.high - value)
    if not math.isfinite(margin):
        return f"{MARGIN_MARK}?"
    margin = max(0.0, margin) * (100 if target.bounded_value.is_share and target.kind == "agreement" else 1)
    margin_text = number_text(margin, 2) if margin >= 0.005 or not margin else f"{margin:.0e}".replace("e-0", "e-")
    return MARGIN_MARK + margin_text


def find_displayed_target(session: Session) -> Target:
    """Returns the target if the summary table has a column for its value; if not, a target on the SQNR."""
    target = session.target
    if target is not None and target.part_name is None and target.output_name is None and target.kind in (
            "sqnr", "metric", "agreement"):
        return target
    return Target("sqnr", 0.0)


MIN_GAUGE_CELLS, MAX_GAUGE_CELLS = 3, 12
"""The minimum and the maximum length of the bar of a gauge."""

_MIN_SHOWN_DB = 0.1
"""The distance to a target in dB from which it is shown as a number."""


def target_gauge_line(session: Session, width: int) -> Line:
    """Returns a gauge of the value that decides about the current config, in at most ``width`` cells.

    A full bar is the target. The text behind it says how far the value is from the target. Of several targets the gauge
    shows the one with the lowest margin. Without room for both, the bar is shortened first and left out next. The text
    is whole or left out. The line is empty if nothing decides, or if there is no room.
    """
    outcomes, results = session.config_target_outcomes(session.config), session.get_run_results("config")
    engine, exported_run = results.engine_result, results.exported_run
    outcome, accuracy, mark = find_decisive_outcome(outcomes), results.accuracy, SIMULATED_MARK
    if engine is not None and RunKind.BUILT_ENGINE in outcomes:
        accuracy, mark = engine.accuracy, ""
    elif exported_run is not None and outcome is outcomes.get(RunKind.EXPORTED_FILE):
        accuracy, mark = exported_run.accuracy, ""
    if outcome is None or accuracy is None:
        return []
    scores = [(score, target) for target in session.targets if (score := target.margin_score(accuracy)) is not None]
    target = min(scores, key=lambda entry: entry[0])[1] if scores else None
    margin = target.margin_to_bound(accuracy) if target is not None else None
    if target is None or margin is None or not math.isfinite(margin):
        return []
    distance = abs(margin)
    distance_text = target.bounded_value.value_with_unit_text(distance, mark)
    if target.bounded_value.unit:
        decibel_text = f"{distance:.1f}" if distance >= _MIN_SHOWN_DB else f"<{_MIN_SHOWN_DB}"
        distance_text = f"{mark}{decibel_text} {target.bounded_value.unit}"
    text = f" {distance_text} {'to go' if margin < 0 else 'to spare'}"
    text_style = "dim" if margin >= 0 else ""
    text = text if width >= cell_width(text) else ""
    if text and width - 1 - cell_width(text) < MIN_GAUGE_CELLS:
        return [(text, text_style)]
    bar_width = min(MAX_GAUGE_CELLS, width - 1 - cell_width(text))
    if bar_width < MIN_GAUGE_CELLS:
        return []
    bar = bar_text(_reached_fraction(target, accuracy, margin), bar_width)
    filled = bar.rstrip()
    return [(f" {filled}", "good" if margin >= 0 else "plot"), ("░" * (bar_width - len(filled)), "rule"),
            (text, text_style)]


def _reached_fraction(target: Target, accuracy: Accuracy, margin: float) -> float:
    """Returns the fraction of the way to a target that a value has reached, from 0 to 1. The way begins at the value 0,
    or for an upper bound at infinity."""
    value = target.measured_value(accuracy)
    if margin >= 0:
        return 1.0
    bound = (value or 0.0) + (-margin if target.is_higher_better else margin)
    smaller, larger = (value or 0.0, bound) if target.is_higher_better else (bound, value or 0.0)
    return max(0.0, smaller / larger) if larger > 0 else 0.0
