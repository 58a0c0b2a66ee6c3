"""What a session's configs are called, how far they are from each other, and whether they meet the target."""

from collections import Counter
from collections.abc import Mapping

from trt_tui.core.measure.results import Accuracy, ExportedRun
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.target_outcome import TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep_move import KeepMove
from trt_tui.core.moves.move_texts import MOVE_TEXTS
from trt_tui.core.moves.network_method import find_network_range_method
from trt_tui.core.moves.precision_move import PrecisionMove
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.precision import Precision
from trt_tui.formatting import (
    NOT_MEASURED,
    SIMULATED_MARK,
    add_decibel_unit,
    cell_width,
    counted_noun_text,
)
from trt_tui.session.results import find_decisive_outcome, outcome_texts
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, Span, shorten_middle, sqnr_span


def config_name(session: Session, config: PrecisionConfig | None = None) -> str:
    """What a config is called, the current one by default."""
    config = session.config if config is None else config
    return session.config_names.get(config, "c?")


def config_title(session: Session, width: int = 40) -> str:
    """What a config is called and how it differs from its defaults: ``c3 · 2 FP32``, ``c0 = INT8``; shorter where that
    is wider than so many cells."""
    name, config, outline = config_name(session), session.config, session.outline
    same_run = next((choice.label for choice in (Precision.INT8, Precision.FP16)
                     if config == session.list_run_configs()[choice.value]), "")
    if same_run or config.uses_only_file_precisions:
        return shorten_middle(f"{name} = {same_run or 'file'}", width)
    if outline is None:
        return shorten_middle(name, width)
    counts = Counter(group.precision_label(precision) for group in outline.groups
                     if (precision := config.precision_of(group)) is not config.default_precision_of(group))
    changes = [f"{count} {label}" for label, count in counts.items()]
    method = find_network_range_method(config, outline)
    for kind, moves in config.list_moves(outline):
        other_moves = [move for _, move in moves if not (method and isinstance(move, RangeMove)
                                                        and move.method == method)]
        if other_moves and kind not in (PrecisionMove, KeepMove):
            changes.append(counted_noun_text(len(other_moves), MOVE_TEXTS[kind.kind].column))
    ranges = [f"{method} ranges"] * bool(method), [method] * bool(method)
    texts = [*(f"{name} · {', '.join([*choice, *changes]) or 'edited'}" for choice in ranges),
             f"{name} · {counted_noun_text(len(config.moves), 'change')}", f"{name} +{len(config.moves)}", name]
    return next((text for text in texts if cell_width(text) <= width), shorten_middle(name, width))


def meets_target(session: Session, accuracy: Accuracy | None) -> bool | None:
    """Whether a verdict meets the targets, with or without a question mark; None where nobody can say yet."""
    result = session.target_outcome(accuracy)
    return None if result is None else result.passes


def target_outcome_text(session: Session, accuracy: Accuracy | None) -> str:
    """The outcome of a verdict in a word; "" where nobody can say yet."""
    result = session.target_outcome(accuracy)
    return "" if result is None else result.outcome.value


def config_meets_target_simulated(session: Session, config: PrecisionConfig) -> bool | None:
    """Whether a config meets the targets as simulated; None where it lowers nothing, which proves nothing."""
    result = session.config_target_outcomes(config).get(RunKind.SIMULATED_CONFIG)
    return None if result is None else result.passes


def is_measuring_current_config(session: Session) -> bool:
    """Returns True while a job runs or waits that changes the values of the config in hand."""
    return any(request.job_kind.measures_current_config for request in session.pending_requests.values())


def has_unfinished_accuracy(session: Session, config: PrecisionConfig) -> bool:
    """Returns True if the accuracy of a config is not final: samples or the interval of its metric are missing."""
    accuracy = session.results.get_results_or_empty(config).accuracy
    if accuracy is None:
        return True
    required_samples = min(accuracy.total,
                           session.data_summary.what_if_count) if session.data_summary is not None else accuracy.total
    if accuracy.samples < required_samples:
        return True
    bounds_metric = any(target.kind == "metric" for target in session.targets)
    spread = accuracy.intervals
    return bounds_metric and is_measuring_current_config(session) and spread is not None and spread.metric_draws is None


def is_confirmed_by_execution(session: Session) -> bool:
    """Returns True if the config meets the targets as simulated, and as built or exported and executed too."""
    results = session.config_target_outcomes(session.config)
    return current_config_meets_target(session) and (RunKind.BUILT_ENGINE in results
                                                     or RunKind.EXPORTED_FILE in results)


def current_config_meets_target(session: Session) -> bool:
    """Whether the config meets the targets in simulation, and as exported and as built where that is known."""
    results = session.config_target_outcomes(session.config)
    return RunKind.SIMULATED_CONFIG in results and all(result.passes for result in results.values())


def exported_run_meets_target(session: Session, exported_run: ExportedRun | None) -> bool | None:
    """Returns False if an exported network misses the target; it never confirms more than was simulated."""
    return meets_target(session, exported_run.accuracy) if exported_run is not None else None


def target_outcome_line(target_results: Mapping[RunKind, TargetOutcome], dim_failures: bool = False) -> Line:
    """The outcome of a config and what says otherwise; see `trt_tui.session.results.outcome_texts`.

    Args:
        dim_failures: A target that is missed here is nobody's trouble.
    """
    texts, result = outcome_texts(target_results), find_decisive_outcome(target_results)
    if result is None:
        return []
    return [(texts[0], "good" if result.passes else "dim" if dim_failures else "bad"),
            *((f" {word}", "dim") for word in texts[1:])]


def target_value_span(session: Session, accuracy: Accuracy | None, is_simulated: bool = True) -> Span:
    """The figure of a verdict that the target is about; a dash where that was not measured."""
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
