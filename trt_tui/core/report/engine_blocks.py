"""The parts of reports about engines: build attempts, remarks, checks, layers and errors inside."""

import math
from collections.abc import Mapping, Sequence

from trt_tui.core.engines.fallback_ladder import attempt_lines, limited_list_lines
from trt_tui.core.engines.group_implementations import find_group_implementations, has_unrequested_precision
from trt_tui.core.engines.inspector import ENGINE_PRECISION_TITLES, IDLE, EngineReport
from trt_tui.core.measure.engine_agreement import (
    EngineDivergence,
    engine_errors_text,
    engine_sqnr_gap_db,
    engine_variation_notes,
    fp32_engine_fault_text,
)
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import Accuracy, EngineErrors, EngineResult, GroupErrors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.report.document import Block, Table
from trt_tui.formatting import (
    NOT_MEASURED,
    add_decibel_unit,
    counted_noun_text,
    layer_share_text,
    number_text,
    percent_text,
    simulation_engine_gap_text,
)

MAX_ROWS = 20
"""The maximum number of rows of layers, or of parts of a metric."""

MAX_SLOWEST_LAYERS = 8


def build_attempt_blocks(engine_results: Mapping[str, EngineResult]) -> list[Block]:
    """Returns the build attempts of each engine that was not built as requested, or not built at all.

    Args:
        engine_results: The results of engines by the title of the engine.
    """
    blocks: list[Block] = []
    for name, result in engine_results.items():
        if result.failure_reason and len(result.attempts) < 2:
            blocks.append([f"{name}: not built: {result.failure_reason}"])
        elif not result.is_built_as_requested:
            state_text = "not built" if result.failure_reason else "not an engine of the requested config"
            blocks.append(
                [
                    f"{name}: {state_text}; build attempts:",
                    *(f"  {line}" for line in attempt_lines(result.attempts, result.other_precisions)),
                ]
            )
    return blocks


def precision_share_table(engine_results: Mapping[str, EngineResult]) -> Table:
    """Returns a table of the number of engine layers in each precision, and their share of the time."""
    shares = {
        name: result.engine_report.precision_shares()
        for name, result in engine_results.items()
        if result.engine_report is not None
    }
    kinds = [kind for kind in ENGINE_PRECISION_TITLES if any(kind in entry for entry in shares.values())]
    rows = [["engine layers, share of the time", *(ENGINE_PRECISION_TITLES[kind] for kind in kinds)]]
    return Table(
        [
            *rows,
            *(
                [name, *(layer_share_text(*entry[kind]) if kind in entry else NOT_MEASURED for kind in kinds)]
                for name, entry in shares.items()
                if kinds
            ),
        ]
    )


def fp32_engine_fault_lines(fp32_engine: EngineResult | None) -> list[str]:
    """Returns a line about an FP32 engine that is wrong, because precision is then not the cause; empty without one."""
    fault = fp32_engine_fault_text(fp32_engine)
    return [f"not a precision problem: {fault}"] if fault else []


def engine_check_lines(
    title: str, engine_result: EngineResult, simulated_accuracy: Accuracy | None, checks: Sequence[str]
) -> list[str]:
    """Returns the checks for an engine that is less accurate than simulated; empty without checks."""
    gap = engine_sqnr_gap_db(engine_result.select_comparable_simulation(simulated_accuracy), engine_result.accuracy)
    return (
        [f"{title}: {simulation_engine_gap_text(gap)}; what to check:", *(f"  {line}" for line in checks)]
        if checks
        else []
    )


def engine_layer_blocks(network: NetworkOutline, engine_report: EngineReport) -> list[Block]:
    """Returns the number of engine layers by precision, and a table of the implementation of each fusion group in an
    engine."""
    counts = ", ".join(f"{count} {word}" for word, (count, _) in engine_report.precision_shares().items())
    implementations = find_group_implementations(engine_report, network)
    titles_by_group = group_titles(network)
    rows = [["layer", "operator", "engine", "engine layers"]]
    for group in network.groups:
        implementation = implementations.get(group.name)
        if implementation is None:
            cells = ["", "not listed: folded, or part of another layer"]
        else:
            precision = (
                implementation.precision.label
                if implementation.precision is not None
                else "fused"
                if implementation.in_fused_region
                else "?"
            )
            cells = [precision, "; ".join(implementation.engine_layers)]
        rows.append([titles_by_group.get(group.name, group.name), group.operator, *cells])
    idle = sum(layer.kind == IDLE for layer in engine_report.layers)
    return [
        [f"{len(engine_report.layers)} engine layers: {counts}" + (f", {idle} idle" if idle else "")],
        Table(rows, 4),
    ]


def engine_remark_lines(engine_results: Mapping[str, EngineResult]) -> list[str]:
    """Returns remarks about engines: the latency of several profiles, the spread of several builds, and builder
    warnings.

    Different results of one engine on identical samples are reported too.

    Args:
        engine_results: The results of engines by the title of the engine.
    """
    lines = [
        f"{title}: {remark}"
        for title, result in engine_results.items()
        for remark in (*result.profile_latency_lines, *engine_variation_notes(result))
    ]
    for title, result in engine_results.items():
        lines += (
            [f"{title}: warnings of parser and builder", *limited_list_lines(result.builder_warnings)]
            if result.builder_warnings
            else []
        )
    return lines


def engine_error_blocks(
    network: NetworkOutline,
    title: str,
    engine_errors: EngineErrors | None,
    group_errors: Mapping[str, GroupErrors],
    divergence: EngineDivergence | None,
) -> list[Block]:
    """Returns a report of the errors inside an engine; empty if they were not measured.

    It states the method of reading, the first divergence from the simulation, and the groups with the largest gaps.

    Args:
        title: The title of the engine.
        group_errors: The simulated errors at the groups.
    """
    if engine_errors is None:
        return []
    titles_by_group = group_titles(network)
    lines = [f"{title}, {engine_errors_text(engine_errors, len(network.groups))}"]
    if engine_errors.accuracy is not None and engine_errors.accuracy.worst_output is not None:
        name, worst = engine_errors.accuracy.worst_output
        lines.append(f"  the marked engine: {add_decibel_unit(worst.errors.sqnr_text(''))} at {name}")
    if divergence is not None:
        lines.append(f"  {titles_by_group[divergence.group_name]}: {divergence.divergence_description}")
    rows = []
    for group in network.groups:
        if (errors := engine_errors.group_errors.get(group.name)) is not None:
            simulated = group_errors.get(group.name)
            simulated_errors = simulated.accumulated if simulated is not None else None
            gap = _compute_sqnr_gap_db(errors, simulated_errors)
            rows.append(
                (
                    -math.inf if gap is None else gap,
                    [
                        titles_by_group.get(group.name, group.name),
                        group.operator,
                        errors.sqnr_text(""),
                        NOT_MEASURED if simulated_errors is None else simulated_errors.sqnr_text(),
                        "" if gap is None or math.isinf(gap) else f"{gap:+.1f}",
                    ],
                )
            )
    rows.sort(key=lambda row: -row[0])
    header = ["fused layer, largest gap first", "operator", "engine", "simulated", "gap, dB"]
    return [lines, Table([header, *(row for _, row in rows[:MAX_ROWS])], 2)]


def _compute_sqnr_gap_db(built_errors: ErrorMetrics, simulated_errors: ErrorMetrics | None) -> float | None:
    """Returns by how many dB the SQNR of the engine is lower than simulated: infinite if the engine alone has NaN or Inf.

    None if the simulation is unknown, or if both are exact or have NaN or Inf.
    """
    if simulated_errors is None:
        return None
    gap_db = simulated_errors.comparable_sqnr_db - built_errors.comparable_sqnr_db
    return None if math.isnan(gap_db) else gap_db


def unrequested_group_blocks(
    network: NetworkOutline, config: PrecisionConfig, engine_result: EngineResult
) -> list[Block]:
    """Returns a table of the groups that run in another precision than requested, or that there are none."""
    rows = [["in another precision than requested", "requested", "built", "ms"]]
    implementations = engine_result.implementations
    for group in network.groups:
        if has_unrequested_precision(group, config, implementations):
            implementation = implementations[group.name]
            rows.append(
                [
                    group.name,
                    group.precision_label(config.precision_of(group)),
                    implementation.precision.label if implementation.precision is not None else "?",
                    number_text(implementation.latency_ms) if implementation.latency_ms is not None else "",
                ]
            )
    return [Table(rows)] if len(rows) > 1 else [["All fused layers that TensorRT lists run as requested."]]


def slowest_layer_table(engine_report: EngineReport) -> Table:
    """Returns the table of the slowest engine layers, with a row for all others; without times it has no rows."""
    timed = sorted(((layer.ms, layer) for layer in engine_report.layers if layer.ms), key=lambda entry: -entry[0])
    total = sum(ms for ms, _ in timed)
    rows = [["slowest layers", "precision", "ms", "of time"]]
    rows += [
        [layer.name, layer.precision_key, number_text(ms), percent_text(ms / total)]
        for ms, layer in timed[:MAX_SLOWEST_LAYERS]
    ]
    if others := timed[MAX_SLOWEST_LAYERS:]:
        others_ms = sum(ms for ms, _ in others)
        rows.append(
            [counted_noun_text(len(others), "more layer"), "", number_text(others_ms), percent_text(others_ms / total)]
        )
    return Table(rows)
