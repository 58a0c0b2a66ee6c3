"""Tables of results: a comparison of range methods, and the parts of the user's metric."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trt_tui import formatting
from trt_tui.core.measure.error_metrics import ERROR_METRICS
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.user_metric import metric_part_rows
from trt_tui.core.report.json_record import target_outcome_record
from trt_tui.errors import InputError
from trt_tui.formatting import NOT_MEASURED, SIMULATED_MARK, engine_title, metric_text, run_title
from trt_tui.jobs import events as ev
from trt_tui.session.state import SessionState


def _require_method_comparison(session: SessionState) -> ev.RangeMethodComparison:
    if session.method_comparison is None:
        raise InputError("no calibration methods were compared", "", "")
    return session.method_comparison


@dataclass(frozen=True)
class _RankingColumn:
    """The table column by which range methods are ranked.

    Attributes:
        title: The heading of the column.
        format_value: Function that formats the cell for an accuracy.
        score: Function from an accuracy to a score, higher is better; None if not measured.
        is_always_shown: True if the table always has the column.
    """

    title: str
    format_value: Callable[[Accuracy], str]
    score: Callable[[Accuracy], float | None]
    is_always_shown: bool = False


def _worst_sqnr_score(accuracy: Accuracy) -> float | None:
    """Returns the SQNR of the worst judged output in dB; infinite if exact, and negative infinity for NaN and Inf."""
    return accuracy.worst_errors.comparable_sqnr_db if accuracy.worst_errors is not None else None


def _worst_sqnr_text(accuracy: Accuracy) -> str:
    errors = accuracy.worst_errors
    output = accuracy.find_output_of_worst_value(ERROR_METRICS["sqnr"])
    return "" if errors is None else f"{formatting.decibels_text(errors.sqnr_db, exact=errors.exact)} {output}".rstrip()


_SQNR_COLUMN = _RankingColumn("SQNR", _worst_sqnr_text, _worst_sqnr_score, is_always_shown=True)


def _choose_ranking_column(session: SessionState) -> _RankingColumn:
    """Returns the column by which range methods are ranked: that of the target's value.

    The SQNR column is returned if there is no target or its value is not measured.
    """
    target, rows = session.target, _require_method_comparison(session).rows
    if target is None or any(target.margin_score(row.accuracy) is None for row in rows):
        return _SQNR_COLUMN
    if target.kind == "sqnr" and target.output_name is None:
        return _SQNR_COLUMN
    if target.kind == "metric" and target.part_name is None:
        headings = {_metric_heading(name) for row in rows for name in list(row.accuracy.metric)[:1]}
        if len(headings) == 1:
            return _RankingColumn(headings.pop(),
                                  lambda accuracy: formatting.metric_text(accuracy.headline_metric, SIMULATED_MARK),
                                  target.margin_score, is_always_shown=True)
    output_text = f" of {target.output_name}" if target.output_name is not None else ""
    return _RankingColumn(f"{target.column_title}{output_text}",
                          lambda accuracy: SIMULATED_MARK + target.measured_value_text(accuracy), target.margin_score)


def _metric_heading(metric_name: str) -> str:
    """Returns the function name of a metric that is given as ``FILE.py:FUNCTION``."""
    return metric_name.rpartition(":")[2]


def method_comparison_table(session: SessionState) -> list[list[str]]:
    """Builds the table that compares range methods, with a header and a row for each method.

    The columns are: SQNR of the worst output, its worst sample, metric, target and calibration seconds. The table
    always has the column by which the methods are ranked. The values are simulated. The seconds are absent if the
    ranges were already known.
    """
    target, comparison, ranking = session.target, _require_method_comparison(session), _choose_ranking_column(session)
    names = list(dict.fromkeys(name for row in comparison.rows for name in list(row.accuracy.metric)[:1]))
    extra_columns = [] if ranking.is_always_shown else [ranking]
    table = [[
        "method", "SQNR", "worst sample", *map(_metric_heading, names), *(column.title for column in extra_columns),
        "target" if target is not None else "", "s"
    ]]
    for row in comparison.rows:
        worst = row.accuracy.worst_output
        errors = worst[1] if worst is not None else None
        result = session.target_outcome(row.accuracy)
        sample = "" if errors is None or errors.worst_sqnr_db is None else (
            formatting.worst_sample_text(errors.worst_sample, errors.worst_sqnr_db))
        table.append([
            row.method,
            _worst_sqnr_text(row.accuracy), sample,
            *(formatting.metric_text(row.accuracy.metric.get(name), SIMULATED_MARK)
              for name in names), *(column.format_value(row.accuracy) for column in extra_columns),
            "" if result is None else result.outcome.value,
            formatting.number_text(row.seconds) if row.seconds >= 0.01 else "known"
        ])
    if target is None:
        table = [[*row[:-2], row[-1]] for row in table]
    return table


def find_best_range_method(session: SessionState) -> str:
    """Returns the range method with the best value in the column of `ranking_column_title`. Ties are decided by the
    SQNR."""
    ranking = _choose_ranking_column(session)

    def ranking_key(row: ev.RangeMethodResult) -> tuple[float, float]:
        values = [score_value(row.accuracy) for score_value in (ranking.score, _worst_sqnr_score)]
        first, second = (-math.inf if value is None else value for value in values)
        return first, second

    return max(_require_method_comparison(session).rows, key=ranking_key).method


def ranking_column_title(session: SessionState) -> str:
    """Returns the heading of the column by which range methods are ranked."""
    return _choose_ranking_column(session).title


def method_missed_target_reason(session: SessionState) -> str:
    """Returns the reason why the best range method misses an explicit target.

    "" if any method meets the target, or the outcome is unknown.
    """
    rows = _require_method_comparison(session).rows
    results = [session.target_outcome(row.accuracy) for row in rows]
    if not session.has_explicit_target or any(result is None or result.passes for result in results):
        return ""
    best = next(row for row in rows if row.method == find_best_range_method(session))
    result = session.target_outcome(best.accuracy)
    return session.missed_target_text(result, best.accuracy) if result is not None else ""


def method_comparison_record(session: SessionState) -> dict[str, Any]:
    """Builds the comparison of range methods as a JSON record."""
    rows = []
    for row in _require_method_comparison(session).rows:
        errors = row.accuracy.worst_errors
        sqnr = errors.sqnr_db if errors is not None else None
        rows.append({"method": row.method, "sqnr_db": sqnr, "metric": dict(row.accuracy.metric),
                     "calibration_seconds": row.seconds, "calibration_samples": row.samples,
                     "samples": row.accuracy.samples,
                     **target_outcome_record(session.target_outcome(row.accuracy))})
    return {
        "calibration_methods": rows, "best": find_best_range_method(session), "ranked_by": ranking_column_title(session)
    }


def metric_titles(session: SessionState) -> dict[str, str]:
    """Returns the titles of the columns of the metric, the agreement and the samples; "" hides a column.

    At most one of metric and agreement is shown, and the samples only if a run is not judged on all that are in use.
    """
    metric = next(iter(session.results.reference_metric), "") if session.metric_name else ""
    judges_agreement = not metric and session.target is not None and session.target.kind == "agreement"
    accuracies = [accuracy for run in session.list_distinct_runs()
                  if (accuracy := session.get_run_results(run).accuracy) is not None]
    names_samples = any(accuracy.total != session.opened_network.data.what_if_count for accuracy in accuracies)
    return {"metric": metric, "top-1 agreement": "top-1 agreement" if judges_agreement else "",
            "samples": "samples" if names_samples else ""}


def list_metric_columns(state: SessionState) -> list[tuple[str, str, Accuracy]]:
    """Returns the title, mark and accuracy of each run and engine with a metric, as columns of a table.

    A config that equals another run is omitted.
    """
    all_columns: list[tuple[str, str, Accuracy | None]] = []
    for run in state.list_distinct_runs():
        results = state.get_run_results(run)
        all_columns.append((run_title(run, state.config.uses_only_file_precisions), SIMULATED_MARK, results.accuracy))
        if results.engine_result is not None and results.engine_result.is_built_as_requested:
            all_columns.append(
                (engine_title(run, state.config.uses_only_file_precisions), "", results.engine_result.accuracy))
    if state.results.fp32_engine is not None:
        all_columns.insert(0, ("FP32 engine", "", state.results.fp32_engine.accuracy))
    return [(title, mark, accuracy)
            for title, mark, accuracy in all_columns
            if accuracy is not None and accuracy.metric]


def metric_part_table(state: SessionState) -> list[list[str]]:
    """Builds the table of the parts of the user's metric: the headline, then the parts by decreasing drop.

    Empty if the metric has no parts.
    """
    reference, runs = state.results.reference_metric, list_metric_columns(state)
    if len(reference) < 2 or not runs:
        return []
    rows = [["metric by part, worst drop first", "FP32", *(title for title, _, _ in runs), "drop"]]
    for row in metric_part_rows(reference, [accuracy.on_compared_samples.metric for _, _, accuracy in runs]):
        figure_texts = [NOT_MEASURED if figure is None else metric_text(figure, mark)
                        for figure, (_, mark, _) in zip(row.run_values, runs, strict=True)]
        rows.append([row.part_name, metric_text(row.reference_value), *figure_texts,
                     NOT_MEASURED if row.max_drop is None else metric_text(row.max_drop)])
    return rows
