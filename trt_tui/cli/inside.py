"""Errors inside engines, and what is to be said of several builds, as text."""

import math
from collections.abc import Mapping

from trt_tui.cli.made import builder_warning_lines
from trt_tui.core.measure.engine_agreement import engine_errors_text, engine_variation_notes
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import EngineErrors, EngineResult, GroupErrors
from trt_tui.core.network.hierarchy import build_scope_tree, group_titles
from trt_tui.formatting import NOT_MEASURED, add_decibel_unit, table_lines
from trt_tui.session.session import Session

MAX_GROUP_ROWS = 20


def engine_remark_lines(engine_results: Mapping[str, EngineResult]) -> list[str]:
    """How fast several profiles are, what several builds of a config came to, what engines do to identical samples, and
    what parser and builder warned of, by their titles."""
    lines = [f"{title}: {remark}" for title, result in engine_results.items()
             for remark in (*result.profile_latency_lines, *engine_variation_notes(result))]
    for title, result in engine_results.items():
        lines += [f"{title}: warnings of parser and builder", *builder_warning_lines(result.builder_warnings)
                  ] if result.builder_warnings else []
    return ["", *lines] if lines else []


def engine_error_lines(session: Session, run: str, engine_title: str, engine_errors: EngineErrors | None) -> list[str]:
    """How the errors inside the engine of a run were read, where it parts from its simulation, and the groups at which
    it is worse by most; nothing where they were not measured.

    Args:
        engine_title: The engine's.
    """
    if engine_errors is None:
        return []
    outline = session.opened_network.outline
    titles_by_group = group_titles(build_scope_tree(outline.layers, outline.groups))
    lines = ["", f"{engine_title}, {engine_errors_text(engine_errors, len(outline.groups))}"]
    if engine_errors.accuracy is not None and engine_errors.accuracy.worst_output is not None:
        name, worst = engine_errors.accuracy.worst_output
        lines.append(f"  the marked engine: {add_decibel_unit(worst.errors.sqnr_text(''))} at {name}")
    if (divergence := session.find_engine_divergence(run)) is not None:
        lines.append(
            f"  "
            f"{titles_by_group.get(divergence.group_name, divergence.group_name)}: {divergence.divergence_description}"
        )
    group_errors = session.get_run_results(run).group_errors
    rows = []
    for group in outline.groups:
        if (errors := engine_errors.group_errors.get(group.name)) is not None:
            simulated_errors = _get_accumulated_errors(group_errors.get(group.name))
            gap = _compute_sqnr_gap_db(errors, simulated_errors)
            rows.append((-math.inf if gap is None else gap, [
                titles_by_group.get(group.name, group.name), group.operator,
                errors.sqnr_text(""), NOT_MEASURED if simulated_errors is None else simulated_errors.sqnr_text(),
                "" if gap is None else f"{gap:+.1f}"
            ]))
    rows.sort(key=lambda row: -row[0])
    header = ["where the engine is worse than simulated", "operator", "engine", "simulated", "gap, dB"]
    return [*lines, *table_lines([header, *(row for _, row in rows[:MAX_GROUP_ROWS])], left_aligned_columns=2)
            ] if rows else lines


def _get_accumulated_errors(group_errors: GroupErrors | None) -> ErrorMetrics | None:
    return None if group_errors is None else group_errors.accumulated


def _compute_sqnr_gap_db(built_errors: ErrorMetrics, simulated_errors: ErrorMetrics | None) -> float | None:
    """By how many dB the engine is worse; None where either is exact or not finite."""
    if simulated_errors is None or built_errors.sqnr_db is None or simulated_errors.sqnr_db is None:
        return None
    return simulated_errors.sqnr_db - built_errors.sqnr_db
