"""Texts about engines: group implementations, errors inside an engine, and several builds of one config."""

import math
from collections.abc import Mapping
from typing import Any

from trt_tui.core.engines.builder_warnings import limited_list_lines
from trt_tui.core.engines.group_implementations import find_group_implementations
from trt_tui.core.engines.inspector import IDLE, EngineReport
from trt_tui.core.measure.engine_agreement import engine_errors_text, engine_variation_notes
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import EngineErrors, EngineResult
from trt_tui.core.network.layer_tree import build_scope_tree, group_titles
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.report.document import Block, Table
from trt_tui.core.report.json_record import preview_record
from trt_tui.formatting import NOT_MEASURED, add_decibel_unit, counted_noun_text, name_list_text
from trt_tui.session.reporting_session import ReportingSession

MAX_GROUP_ROWS = 20


def engine_blocks(network: NetworkOutline, engine_report: EngineReport) -> list[Block]:
    """Returns the number of engine layers by precision, and a table of the implementation of each fusion group in an
    engine."""
    counts = ", ".join(f"{count} {word}" for word, (count, _) in engine_report.precision_shares().items())
    implementations = find_group_implementations(engine_report, network)
    titles_by_group = group_titles(build_scope_tree(network.layers, network.groups))
    rows = [["layer", "operator", "engine", "engine layers"]]
    for group in network.groups:
        implementation = implementations.get(group.name)
        if implementation is None:
            cells = ["", "not listed: folded, or part of another layer"]
        else:
            precision = (implementation.precision.label if implementation.precision is not None else
                         "fused" if implementation.in_fused_region else "?")
            cells = [precision, "; ".join(implementation.engine_layers)]
        rows.append([titles_by_group.get(group.name, group.name), group.operator, *cells])
    idle = sum(layer.kind == IDLE for layer in engine_report.layers)
    return [[f"{len(engine_report.layers)} engine layers: {counts}" + (f", {idle} idle" if idle else "")],
            Table(rows, 4)]


def preview_lines(session: ReportingSession, run_titles: Mapping[str, str]) -> list[str]:
    """Returns, for each run, the number of fusion groups in another precision than requested, and the builder's
    warnings.

    If a run has no preview, the line contains the reason.

    Args:
        run_titles: The titles of the runs, by run.
    """
    lines, configs = [], session.list_run_configs()
    for run, title in run_titles.items():
        preview = session.get_run_results(run).preview
        if preview is None or preview.refusal is not None and preview.refusal.is_rtx_missing:
            continue
        if preview.refusal is not None:
            lines.append(f"{title}: no preview of its engine: {preview.refusal.description}")
            continue
        record = preview_record(session.opened_network.outline, configs[run], preview)
        lines.append(f"{title}: {_preview_text(record)}")
        lines += limited_list_lines([f"{name}: {text}" for name, text in record.get("unused_qdq", {}).items()], "layer")
        lines += limited_list_lines(preview.builder_warnings)
    return lines


def _preview_text(preview: Mapping[str, Any]) -> str:
    """Returns a sentence with the number and names of the groups that a preview shows in a precision other than
    requested.

    Args:
        preview: The record of `preview_record`.
    """
    release = ".".join(preview["release"].split(".")[:2])
    other_groups = preview["not_as_asked"]
    group_names = f": {name_list_text(other_groups)}" if other_groups else ""
    return (
        f"{len(other_groups)} of {counted_noun_text(preview['groups'], 'group')} would not run as "
        f"requested{group_names} (preview, RTX {release}, {preview['gpu']}: "
        f"{counted_noun_text(preview['kernels'], 'kernel')})")


def engine_remark_lines(engine_results: Mapping[str, EngineResult]) -> list[str]:
    """Returns remarks about engines: the latency of several profiles, the spread of several builds, and builder
    warnings.

    Different results of one engine on identical samples are reported too.

    Args:
        engine_results: The results of engines by the title of the engine.
    """
    lines = [f"{title}: {remark}" for title, result in engine_results.items()
             for remark in (*result.profile_latency_lines, *engine_variation_notes(result))]
    for title, result in engine_results.items():
        lines += [f"{title}: warnings of parser and builder", *limited_list_lines(result.builder_warnings)
                  ] if result.builder_warnings else []
    return lines


def engine_error_blocks(session: ReportingSession, run: str, engine_title: str,
                        engine_errors: EngineErrors | None) -> list[Block]:
    """Returns a report of the errors inside the engine of a run; empty if they were not measured.

    It states the method of reading, the first divergence from the simulation, and the groups with the largest gaps.

    Args:
        engine_title: The title of the engine.
    """
    if engine_errors is None:
        return []
    outline = session.opened_network.outline
    titles_by_group = group_titles(build_scope_tree(outline.layers, outline.groups))
    lines = [f"{engine_title}, {engine_errors_text(engine_errors, len(outline.groups))}"]
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
            simulated = group_errors.get(group.name)
            simulated_errors = simulated.accumulated if simulated is not None else None
            gap = _compute_sqnr_gap_db(errors, simulated_errors)
            rows.append((-math.inf if gap is None else gap, [
                titles_by_group.get(group.name, group.name), group.operator,
                errors.sqnr_text(""), NOT_MEASURED if simulated_errors is None else simulated_errors.sqnr_text(),
                "" if gap is None else f"{gap:+.1f}"
            ]))
    rows.sort(key=lambda row: -row[0])
    header = ["where the engine is worse than simulated", "operator", "engine", "simulated", "gap, dB"]
    return [lines, Table([header, *(row for _, row in rows[:MAX_GROUP_ROWS])], 2)]


def _compute_sqnr_gap_db(built_errors: ErrorMetrics, simulated_errors: ErrorMetrics | None) -> float | None:
    """Returns by how many dB the SQNR of the engine is lower than simulated; None if either is exact or not finite."""
    if simulated_errors is None or built_errors.sqnr_db is None or simulated_errors.sqnr_db is None:
        return None
    return simulated_errors.sqnr_db - built_errors.sqnr_db
