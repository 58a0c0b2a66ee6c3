"""The name and title of a config, its target result with its gauge, and whether its measurements are complete."""

import math
from collections import Counter
from collections.abc import Mapping

from trt_tui.core.measure.results import Accuracy, RunKind, restrict_to_common_samples
from trt_tui.core.measure.target import Target, TargetOutcome
from trt_tui.core.moves.config import KeepRuleMove, PrecisionConfig, PrecisionMove, RangeMove, find_network_range_method
from trt_tui.core.moves.move import MOVE_TEXTS
from trt_tui.core.precision import Precision
from trt_tui.formatting import (
    NOT_MEASURED,
    SIMULATED_MARK,
    add_decibel_unit,
    cell_width,
    counted_noun_text,
    number_text,
)
from trt_tui.jobs.requests import MeasureToggles
from trt_tui.session.results import find_decisive_outcome, outcome_texts
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, Span, shorten_middle, sqnr_span
from trt_tui.tui.state.marks import MARGIN_MARK
from trt_tui.tui.state.text_plots import bar_text


def config_name(session: Session, config: PrecisionConfig | None = None) -> str:
    """Returns the name of a config in the session; of the current config by default."""
    config = session.config if config is None else config
    return session.config_names.get(config, "c?")


def search_start_name(session: Session, config: PrecisionConfig) -> str:
    """Returns the name of the config that a search starts from, for its dialog and its page."""
    return session.config_names.get(config, "a config without raised layers")


def config_title(session: Session, width: int = 40) -> str:
    """Returns the name of the current config with a summary of its changes to the default precisions.

    Examples are ``c3 · 2 FP32`` and ``c0 = INT8``. If the title is wider than ``width`` cells, a shorter form is
    returned.
    """
    name, config, outline = config_name(session), session.config, session.outline
    same_run = next(
        (choice.label for choice in (Precision.INT8, Precision.FP16) if config == session.get_run_config(choice.value)),
        "",
    )
    if same_run or config.uses_only_file_precisions:
        return shorten_middle(f"{name} = {same_run or 'file'}", width)
    if outline is None:
        return shorten_middle(name, width)
    counts = Counter(
        group.precision_label(precision)
        for group in outline.groups
        if (precision := config.precision_of(group)) is not config.default_precision_of(group)
    )
    changes = [f"{count} {label}" for label, count in counts.items()]
    method = find_network_range_method(config, outline)
    for kind, moves in config.list_moves(outline):
        other_moves = [
            move for _, move in moves if not (method and isinstance(move, RangeMove) and move.method == method)
        ]
        if other_moves and kind not in (PrecisionMove, KeepRuleMove):
            changes.append(counted_noun_text(len(other_moves), MOVE_TEXTS[kind.kind].column))
    ranges = [f"{method} ranges"] * bool(method), [method] * bool(method)
    texts = [
        *(f"{name} · {', '.join([*choice, *changes]) or 'edited'}" for choice in ranges),
        f"{name} · {counted_noun_text(len(config.moves), 'change')}",
        f"{name} +{len(config.moves)}",
        name,
    ]
    return next((text for text in texts if cell_width(text) <= width), shorten_middle(name, width))


def meets_target(session: Session, accuracy: Accuracy | None) -> bool | None:
    """Returns True if an accuracy meets the targets, for PASS and for the uncertain PASS?; None if it is undecided."""
    result = session.target_outcome(accuracy)
    return None if result is None else result.passes


def config_meets_target_simulated(session: Session, config: PrecisionConfig) -> bool | None:
    """Returns True if the simulated accuracy of a config meets the targets.

    None if the simulation is not judged, or if the config reduces no precision, since FP32 would always pass.
    """
    result = session.config_target_outcomes(config).get(RunKind.SIMULATED_CONFIG)
    return None if result is None else result.passes


def is_measuring_current_config(session: Session) -> bool:
    """Returns True while a running or waiting job changes the values of the current config."""
    return any(job.request.job_kind.measures_current_config for job in session.pending_requests.values())


def is_measuring_shares(session: Session) -> bool:
    """Returns True while error shares of the current config can still change."""
    return is_measuring_current_config(session) and not session.get_run_results("config").has_all_shares


def is_measuring_toggles(session: Session) -> bool:
    """Returns True while values of toggled rows of the current config are measured. New values can change the worst
    row."""
    return any(
        isinstance(job.request, MeasureToggles) and job.request.config == session.config
        for job in session.pending_requests.values()
    )


def missing_samples_text(session: Session, accuracy: Accuracy) -> str:
    """Returns the number of measured samples if samples are missing, such as "on 8 of 32"; "" if all are measured."""
    data = session.data_summary
    required_samples = min(accuracy.total, data.what_if_count) if data is not None else accuracy.total
    return f"on {accuracy.samples} of {required_samples}" if accuracy.samples < required_samples else ""


def has_unfinished_accuracy(session: Session, config: PrecisionConfig) -> bool:
    """Returns True if the accuracy of a config is not final: samples or the confidence interval of its metric are
    missing."""
    accuracy = session.results.get_results_or_empty(config).accuracy
    if accuracy is None or missing_samples_text(session, accuracy):
        return True
    bounds_metric = any(target.kind == "metric" for target in session.targets)
    spread = accuracy.intervals
    return bounds_metric and is_measuring_current_config(session) and spread is not None and spread.metric_draws is None


def current_config_meets_target(session: Session) -> bool:
    """Returns True if the simulation, the executed export and the built engine of the current config meet the targets.

    The simulation is required. The other two count if they were measured.
    """
    results = session.config_target_outcomes(session.config)
    return RunKind.SIMULATED_CONFIG in results and all(result.passes for result in results.values())


def target_outcome_line(target_results: Mapping[RunKind, TargetOutcome], dim_failures: bool = False) -> Line:
    """Returns a styled line with the target outcome of a config and the runs that disagree with it.

    The texts come from `trt_tui.session.results.outcome_texts`.

    Args:
        dim_failures: If True, a missed target is dim instead of red, because the user need not act on it.
    """
    texts, result = outcome_texts(target_results), find_decisive_outcome(target_results)
    if result is None:
        return []
    return [
        (texts[0], "good" if result.passes else "dim" if dim_failures else "bad"),
        *((f" {word}", "dim") for word in texts[1:]),
    ]


MIN_DISTINCT_SQNR_DB = 0.5
"""The difference of two SQNRs from which they are distinct, for values without a confidence interval.

A smaller difference decides nothing, because an engine may differ more from its simulation."""

MAX_NOISE_SQNR_DB = 1.0
"""The difference of two SQNRs from which they are distinct despite their confidence intervals.

Both are measured on the same samples, so most of the spread between samples is common to them."""


def is_within_noise(session: Session, first: Accuracy, second: Accuracy, both_ways: bool = True) -> bool:
    """Returns True if the values of two accuracies that the target bounds do not differ by more than their noise.

    Each value is then in the confidence interval of the other, and the SQNRs of the worst judged outputs differ by less
    than `MAX_NOISE_SQNR_DB`. Without both intervals, these SQNRs differ by less than `MIN_DISTINCT_SQNR_DB`, and the
    metric or the agreement, if the target bounds it, is equal or in the only interval. A run that fails whatever its
    values are, for example by an overflow, equals no run that does not.

    Args:
        both_ways: False if only the interval of the first accuracy counts, so that one distance decides about all
            accuracies that are compared with it: `noise_distance_text`.
    """
    target = session.target or Target("sqnr", 0.0)
    if first.nonfinite_count or second.nonfinite_count or first.fails_every_target != second.fails_every_target:
        return False
    first, second = restrict_to_common_samples([first, second])
    first_errors, second_errors = first.worst_errors, second.worst_errors
    if first_errors is None or second_errors is None or first_errors.exact or second_errors.exact:
        return first_errors is not None and second_errors is not None and first_errors.exact == second_errors.exact
    if first_errors.sqnr_db is None or second_errors.sqnr_db is None:
        return False
    difference_db = abs(first_errors.sqnr_db - second_errors.sqnr_db)
    first_interval, second_interval = target.confidence_interval(first), target.confidence_interval(second)
    first_value, second_value = target.measured_value(first), target.measured_value(second)
    if first_interval and (second_interval or not both_ways) and first_value is not None and second_value is not None:
        return (
            difference_db < MAX_NOISE_SQNR_DB
            and first_interval.low <= second_value <= first_interval.high
            and (
                not both_ways
                or second_interval is not None
                and second_interval.low <= first_value <= second_interval.high
            )
        )
    is_inside = any(
        interval is not None and value is not None and interval.low <= value <= interval.high
        for interval, value in ((first_interval, second_value), (second_interval, first_value))
    )
    return difference_db < MIN_DISTINCT_SQNR_DB and (
        target.error_metric is not None or first_value == second_value or is_inside
    )


def noise_distance_text(session: Session, best: Accuracy) -> str:
    """Returns the distance from the best accuracy within which another accuracy counts as equal: ``0.4 dB``.

    `is_within_noise` decides by this distance, with ``both_ways`` False.
    """
    target = session.target or Target("sqnr", 0.0)
    interval, value = target.confidence_interval(best), target.measured_value(best)
    if interval is None or value is None:
        return f"{MIN_DISTINCT_SQNR_DB} dB{'' if target.kind == 'sqnr' else ' of SQNR'}"
    distance = value - interval.low if target.is_higher_better else interval.high - value
    if target.kind == "sqnr":
        return f"{number_text(max(0.0, min(distance, MAX_NOISE_SQNR_DB)), 2)} dB"
    return f"{target.bounded_value.value_with_unit_text(max(0.0, distance))} and {MAX_NOISE_SQNR_DB:g} dB of SQNR"


def accuracy_sort_key(session: Session, accuracy: Accuracy | None) -> tuple[float, float]:
    """Returns the key by which accuracies are compared, the highest for the best: the lowest score of the targets, then
    the negative judged error. A missing value is -inf."""
    if accuracy is None:
        return -math.inf, -math.inf
    scores = [target.margin_score(accuracy) for target in session.targets]
    return (
        min((-math.inf if score is None else score for score in scores), default=-math.inf),
        -math.inf if accuracy.judged_error is None else -accuracy.judged_error,
    )


def target_value_span(session: Session, accuracy: Accuracy | None, is_simulated: bool = True) -> Span:
    """Returns the styled text of the value that the target bounds; a dash if that value was not measured.

    Without a target the value is the SQNR of the worst judged output.
    """
    if accuracy is None:
        return (NOT_MEASURED, "dim")
    mark, target = SIMULATED_MARK if is_simulated else "", session.target
    if target is None or target.kind == "sqnr":
        errors = accuracy.worst_errors
        if target is not None and target.output_name is not None:
            output = accuracy.outputs.get(target.output_name)
            errors = output.errors if output is not None else None
        text, style = sqnr_span(errors, is_simulated)
        return (add_decibel_unit(text), style)
    value = target.measured_value(accuracy)
    if value is None or accuracy.nonfinite_count and target.error_metric is not None:
        return sqnr_span(accuracy.worst_errors if accuracy.nonfinite_count else None)
    return (target.bounded_value.value_text(value, mark), "")


def value_margin_text(target: Target, accuracy: Accuracy) -> str:
    """Returns the distance of a value from the farther end of its confidence interval, in its unit: ``±2.1``.

    An interval is rarely symmetric; the farther end never makes a value look surer than it is. The text is ``±?`` if
    the value has no interval. It is "" if the value was not measured, and if all judged outputs are floats that equal
    those of the FP32 network, because a metric of them then equals FP32's on any samples.
    """
    value, interval, errors = (
        target.measured_value(accuracy),
        target.confidence_interval(accuracy),
        accuracy.worst_errors,
    )
    if value is None or accuracy.nonfinite_count or errors is not None and errors.exact and errors.mismatch is None:
        return ""
    margin = max(value - interval.low, interval.high - value) if interval is not None else math.inf
    if not math.isfinite(margin):
        return f"{MARGIN_MARK}?"
    margin = max(0.0, margin) * (100 if target.bounded_value.is_share and target.kind == "agreement" else 1)
    margin_text = number_text(margin, 2) if margin >= 0.005 or not margin else f"{margin:.0e}".replace("e-0", "e-")
    return MARGIN_MARK + margin_text


def find_displayed_target(session: Session) -> Target:
    """Returns the target if the summary table has a column for its value; if not, a target on the SQNR."""
    target = session.target
    if (
        target is not None
        and target.part_name is None
        and target.output_name is None
        and target.kind in ("sqnr", "metric", "agreement")
    ):
        return target
    return Target("sqnr", 0.0)


MIN_GAUGE_CELLS, MAX_GAUGE_CELLS = 3, 12
"""The minimum and the maximum length of the bar of a gauge."""

_MIN_SHOWN_DB = 0.1
"""The distance to a target in dB from which it is shown as a number."""


def target_gauge_line(session: Session, width: int, is_marked: bool = True) -> Line:
    """Returns a gauge of the value that decides about the current config, in at most ``width`` cells.

    A full bar is the target. The text behind it says how far the value is from the target. Of several targets the gauge
    shows the one with the lowest margin, and of the simulation and the exported network the worse. Without room for
    both, the bar is shortened first and left out next. The text is whole or left out. The line is empty if no value
    decides, or if there is no room.

    Args:
        is_marked: True if a simulated value has its mark.
    """
    outcomes, results = session.config_target_outcomes(session.config), session.get_run_results("config")
    engine, exported_run, outcome = results.engine_result, results.exported_run, find_decisive_outcome(outcomes)
    measured = [(results.accuracy, SIMULATED_MARK * is_marked)]
    if engine is not None and RunKind.BUILT_ENGINE in outcomes:
        measured = [(engine.accuracy, "")]
    elif exported_run is not None and RunKind.EXPORTED_FILE in outcomes:
        measured.append((exported_run.accuracy, ""))
    scores = [
        (score, target, accuracy, mark)
        for accuracy, mark in measured
        for target in session.targets
        if accuracy is not None and (score := target.margin_score(accuracy)) is not None
    ]
    if outcome is None or not scores:
        return []
    _, target, accuracy, mark = min(scores, key=lambda entry: entry[0])
    margin = target.margin_to_bound(accuracy)
    if margin is None or not math.isfinite(margin) or margin >= 0 and not outcome.passes:
        return []
    distance = abs(margin)
    distance_text = target.bounded_value.value_with_unit_text(distance, mark)
    if target.bounded_value.unit:
        decibel_text = f"{distance:.1f}" if distance >= _MIN_SHOWN_DB else f"<{_MIN_SHOWN_DB}"
        distance_text = f"{mark}{decibel_text} {target.bounded_value.unit}"
    if target is not session.target:
        distance_text = f"{distance_text} {target.column_title}"
    text = f" {distance_text} {'missing' if margin < 0 else 'margin'}"
    text_style = "dim" if margin >= 0 else ""
    text = text if width >= cell_width(text) else ""
    bar_width = min(MAX_GAUGE_CELLS, width - 1 - cell_width(text))
    if bar_width < MIN_GAUGE_CELLS:
        return [(text, text_style)] if text else []
    bar = bar_text(_reached_target_fraction(target, accuracy, margin), bar_width)
    filled = bar.rstrip()
    return [
        (f" {filled}", "good" if margin >= 0 else "plot"),
        ("░" * (bar_width - len(filled)), "rule"),
        (text, text_style),
    ]


def _reached_target_fraction(target: Target, accuracy: Accuracy, margin: float) -> float:
    """Returns the fraction of the way to a target that a value has reached, from 0 to 1. The way begins at the value 0,
    or for an upper bound at infinity."""
    value = target.measured_value(accuracy)
    if margin >= 0:
        return 1.0
    bound = (value or 0.0) + (-margin if target.is_higher_better else margin)
    smaller, larger = (value or 0.0, bound) if target.is_higher_better else (bound, value or 0.0)
    return max(0.0, smaller / larger) if larger > 0 else 0.0
