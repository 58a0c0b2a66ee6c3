"""Comparisons and configs as text for a terminal or a file."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from trt_tui import formatting
from trt_tui.cli.engine_report import engine_error_lines, engine_remark_lines, preview_lines
from trt_tui.core.engines.fallback_ladder import attempt_lines
from trt_tui.core.engines.inspector import ENGINE_PRECISION_TITLES
from trt_tui.core.exporters.markdown import moves_markdown, setup_text, text_cell
from trt_tui.core.lowering.lowering_checks import leaves_quantized_precision_unused, reduces_precision
from trt_tui.core.measure.causes import cause_lines, fp16_range_note
from trt_tui.core.measure.engine_agreement import fp32_engine_fault_text, sqnr_gap_of_engine_db
from trt_tui.core.measure.results import Accuracy, EngineResult, ErrorShare, ExportedRun, GroupErrors
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.sample_dependence import MIN_DEPENDENCE_DB
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep_rules import default_keep_rules_note
from trt_tui.core.network.hierarchy import build_scope_tree, group_titles
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.report.run_columns import RunColumn, RunRow, list_run_columns
from trt_tui.formatting import (
    EXPORTED,
    NOT_MEASURED,
    SIMULATED_MARK,
    counted_noun_text,
    drop_empty_columns,
    engine_title,
    run_name_in_sentence,
    run_title,
    table_lines,
)
from trt_tui.session.loss_causes import find_worst_group_causes
from trt_tui.session.result_tables import metric_part_table
from trt_tui.session.session import Session

MAX_LAYER_ROWS = 20
MAX_PART_ROWS = 20

SHARE_SAMPLES_LEGEND = (
    "samples: number of samples behind a share; ± is its 95 % confidence interval. --exact measures all shares on all "
    "samples.")


def comparison_table(session: Session) -> str:
    """Returns the report of a comparison: the accuracy of each run, its judged outputs if there are several, and the
    worst groups."""
    outline, data, mode = session.opened_network.outline, session.opened_network.data, session.execution_mode
    size = f"{counted_noun_text(len(outline.groups), 'fused layer')} ({counted_noun_text(len(outline.layers), 'node')})"
    lines = [
        *filter(None, [session.fp32_miss_text]),
        f"{outline.name}: {size}, {counted_noun_text(data.what_if_count, 'sample')} "
        f"of {data.source}{', ' if session.ranges_source_text else ''}{session.ranges_source_text}",
        f"against {_reference_text(session)}{f', {mode.name}' if mode is not None else ''}; ~ marks simulated values"
    ]
    lines += filter(None, [outline.reference_weights_text, mode.reason if mode is not None else ""])
    if session.results.reference_metric:
        name = next(iter(session.results.reference_metric))
        lines.append(f"{name} in {_metric_source_text(session)}: {_reference_metric_text(session)}")
    if session.target is not None:
        lines.append(f"target: {' and '.join(session.target_descriptions)}")
    if note := next(
            filter(None, (default_keep_rules_note(outline, config) for config in session.list_run_configs().values())),
            ""):
        lines.append(note)
    columns = list_run_columns("runs", metric_titles(session))
    rows = [["run", "output", *(column.title for column in columns), ""]]
    engines = _find_engine_results(session)
    if session.results.fp32_engine is not None:
        rows += _engine_rows(session, columns, "FP32 engine", session.results.fp32_engine)
    if session.fp32_accuracy is not None:
        rows += _run_rows(session, columns, formatting.FP32_TITLE, RunRow(session.fp32_accuracy))
    for run in session.list_distinct_runs():
        results = session.get_run_results(run)
        for title, accuracy in ((_run_title_text(session, run), results.accuracy),
                                (run_title(EXPORTED), results.get_accuracy(RunKind.TYPED_NETWORK))):
            if accuracy is not None:
                rows += _run_rows(session, columns, title, RunRow(accuracy, SIMULATED_MARK), run)
        if results.exported_run is not None:
            rows += _exported_run_rows(session, columns, results.exported_run, run)
        if run in engines:
            rows += _engine_rows(session, columns, _engine_title_text(session, run), engines[run], run)
    lines += ["", *table_lines(drop_empty_columns(rows), left_aligned_columns=2)]
    if parts := metric_part_table(session):
        lines += ["", *table_lines(parts[:1 + MAX_PART_ROWS])]
        hidden_count = len(parts) - 1 - MAX_PART_ROWS
        lines += [f"{hidden_count} more parts with smaller losses"] if hidden_count > 0 else []
    engines_by_title = {_engine_title_text(session, run): result for run, result in engines.items()}
    if session.results.fp32_engine is not None:
        engines_by_title = {"FP32 engine": session.results.fp32_engine, **engines_by_title}
    lines += _outcome_reason_lines(session)
    lines += _output_variation_lines(session)
    lines += _build_attempt_lines(engines_by_title)
    lines += _precision_share_lines({_engine_row_title(_engine_title_text(session, run), result): result
                                     for run, result in engines.items()})
    lines += engine_remark_lines(engines_by_title)
    lines += _engine_check_lines(session, engines)
    for run, result in engines.items():
        lines += engine_error_lines(session, run, _engine_title_text(session, run), result.engine_errors)
    lines += preview_lines(session, {run: _run_title_text(session, run) for run in session.list_distinct_runs()})
    for run in _choose_runs_with_group_lines(session):
        lines += ["", *_worst_group_lines(session, run)]
    return "\n".join(map(formatting.escape_hidden_characters, lines))


def _run_title_text(session: Session, run: str) -> str:
    return run_title(run, session.config.uses_only_file_precisions)


def _engine_title_text(session: Session, run: str) -> str:
    return engine_title(run, session.config.uses_only_file_precisions)


def _reference_text(session: Session) -> str:
    """Returns a text about the reference that errors are computed against, and the backend that computed it."""
    backend = session.opened_network.backend
    fp32_text = f"FP32 on {backend.name} {backend.version} {backend.device}"
    if session.opened_network.reference is None:
        return fp32_text
    return f"{session.reference_name}; layers and the FP32 engine against {fp32_text}"


def _reference_metric_text(session: Session) -> str:
    """Returns the metric of the reference, with its samples if runs are judged on others: ``0.5 on 12 samples``."""
    results = session.results
    values = {results.reference_sample_count: next(iter(results.reference_metric.values()))}
    for run in session.list_distinct_runs():
        accuracy = session.get_run_results(run).accuracy
        if accuracy is not None and accuracy.reference_metric and accuracy.samples == accuracy.total:
            values[accuracy.total] = next(iter(accuracy.reference_metric.values()))
    names_samples = [*values] != [session.opened_network.data.what_if_count]
    return ", ".join(formatting.metric_text(value) + f" on {counted_noun_text(count, 'sample')}" * names_samples
                     for count, value in values.items())


def _metric_source_text(session: Session) -> str:
    """Returns the name of the run whose metric is printed above the table: the reference, or FP32."""
    reference = session.opened_network.reference
    return session.reference_name if reference is None or reference.has_metric_outputs else formatting.FP32_TITLE


def _choose_runs_with_group_lines(session: Session) -> list[str]:
    """Returns the runs whose worst groups are listed: those that miss the target, or the last measured run if none
    does."""
    if session.opened_network.outline.has_file_precision and _has_layer_results(session, "config"):
        return ["config"]
    accuracies = {
        run: accuracy
        for run in session.list_distinct_runs()
        if (accuracy := session.get_run_results(run).accuracy) is not None and _has_layer_results(session, run)
    }
    missed_runs = [run for run, accuracy in accuracies.items()
                   if (result := session.target_outcome(accuracy)) is None or not result.passes]
    return missed_runs or list(accuracies)[-1:]


def _has_layer_results(session: Session, run: str) -> bool:
    """Returns True if error shares or errors at the groups of a run are known."""
    measured = session.get_run_results(run)
    return bool(measured.shares or measured.group_errors)


def metric_titles(session: Session) -> dict[str, str]:
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


def _find_engine_results(session: Session) -> dict[str, EngineResult]:
    return {
        run: engine
        for run in session.list_distinct_runs()
        if (engine := session.get_run_results(run).engine_result) is not None
    }


def _target_outcome_text(session: Session, run: str, accuracy: Accuracy) -> str:
    """Returns the target result of a run as text, or a note that all its layers are in FP32 or none is in INT8."""
    config = session.get_run_config(run)
    if not reduces_precision(session.opened_network.outline, config):
        return "all in FP32"
    result = session.target_outcome(accuracy)
    texts = [result.outcome.value if result is not None else ""]
    if leaves_quantized_precision_unused(session.opened_network.outline, config):
        texts.append(f"nothing in {config.quantized.label}")
    return ", ".join(filter(None, texts))


def _outcome_reason_lines(session: Session) -> list[str]:
    """Returns a line for each uncertain result, and for each that fails for other reasons than its value alone."""
    lines = []
    for run in session.list_distinct_runs():
        title = _run_title_text(session, run)
        titles = {RunKind.SIMULATED_CONFIG: title, RunKind.TYPED_NETWORK: run_title(EXPORTED),
                  RunKind.BUILT_ENGINE: _engine_title_text(session, run),
                  RunKind.EXPORTED_FILE: f"{title}, {formatting.EXPORTED_NETWORK}"}
        outcomes = session.config_target_outcomes(session.get_run_config(run))
        lines += [f"{titles[kind]}: {result.text}" for kind, result in outcomes.items() if result.reasons]
    return lines and ["", *lines]


def _output_variation_lines(session: Session) -> list[str]:
    """Returns a line for each judged output that varies little between samples, with the SQNR of the varying part."""
    lines = []
    for run in session.list_distinct_runs():
        accuracy = session.get_run_results(run).accuracy
        for name, output in accuracy.outputs.items() if accuracy is not None else ():
            variation_db = output.variation_db
            if variation_db is not None and variation_db < MIN_DEPENDENCE_DB:
                varying_db = output.sqnr_against_variation_db
                varying_text = ("" if varying_db is None else
                                f"; SQNR of what varies: {SIMULATED_MARK}{varying_db:.1f} dB")
                lines.append(
                    f"{_run_title_text(session, run)}: variation of "
                    f"{name} between samples: {formatting.output_variation_text(variation_db)}"
                    f"{varying_text}")
    return lines and ["", *lines]


def _run_rows(session: Session, columns: Sequence[RunColumn], title: str, run_row: RunRow,
              run: str = "") -> list[list[str]]:
    """A row for each judged output; a ``run`` adds whether the target is met."""
    outcome = _target_outcome_text(session, run, run_row.accuracy) if run and run_row.accuracy is not None else ""
    rows = [["", name, *(column.text(row) for column in columns), ""]
            for name, row in run_row.split_by_output().items()]
    return [[title, *rows[0][1:-1], outcome], *rows[1:]] if rows else []


def _engine_rows(session: Session, columns: Sequence[RunColumn], title: str, engine_result: EngineResult,
                 run: str = "") -> list[list[str]]:
    """Returns the table rows of an engine, with its latency and size. An engine that cannot run here has only its size.

    The title of an engine that was not built as requested says so. A row with the simulation of the built config comes
    before it.
    """
    if engine_result.failure_reason:
        return [[title, "not built"]]
    title = _engine_row_title(title, engine_result)
    simulated_row = RunRow(engine_result.simulated_accuracy, SIMULATED_MARK)
    rows = _run_rows(session, columns, f"{title}, simulated", simulated_row)
    engine_row = RunRow(engine_result.accuracy, engine=engine_result)
    if engine_result.accuracy is None:
        return [*rows, [title, "built, cannot run here", *(column.text(engine_row) for column in columns)]]
    return rows + _run_rows(session, columns, title, engine_row, run)


def _exported_run_rows(session: Session, columns: Sequence[RunColumn], exported_run: ExportedRun,
                       run: str) -> list[list[str]]:
    """Returns the table rows of an exported file that ONNX Runtime executed. They have no latency and no size."""
    title = (
        f"{run_title(formatting.executed_run_key(run), session.config.uses_only_file_precisions)} "
        f"({exported_run.executor_name})"
    )
    if exported_run.accuracy is None:
        return [[title, f"not executed: {exported_run.missing_reason}"]]
    return _run_rows(session, columns, title, RunRow(exported_run.accuracy), run)


def _engine_row_title(title: str, engine_result: EngineResult) -> str:
    title = f"{title} ({engine_result.builder_text})"
    return title if engine_result.is_built_as_requested else f"{title}, other precision"


def _build_attempt_lines(engine_results: Mapping[str, EngineResult]) -> list[str]:
    """Returns the build attempts of each engine that was not built as requested, or not built at all."""
    lines = []
    for name, result in engine_results.items():
        if result.failure_reason and len(result.attempts) < 2:
            lines += ["", f"{name}: not built: {result.failure_reason}"]
        elif not result.is_built_as_requested:
            state_text = "not built" if result.failure_reason else "not an engine of the requested config"
            lines += ["", f"{name}: {state_text}; build attempts:"]
            lines += [f"  {line}" for line in attempt_lines(result.attempts, result.other_precisions)]
    return lines


def _precision_share_lines(engine_results: Mapping[str, EngineResult]) -> list[str]:
    """Returns a table of the number of engine layers in each precision, and their share of the time."""
    shares = {
        name: result.engine_report.precision_shares()
        for name, result in engine_results.items()
        if result.engine_report is not None
    }
    kinds = [
        kind for kind in ENGINE_PRECISION_TITLES
        if any(kind in precision_shares for precision_shares in shares.values())
    ]
    if not kinds:
        return []
    rows = [["engine layers, share of the time", *(ENGINE_PRECISION_TITLES[kind] for kind in kinds)]]
    for name, precision_shares in shares.items():
        rows.append([
            name, *(formatting.layer_share_text(*precision_shares[kind]) if kind in precision_shares else NOT_MEASURED
                    for kind in kinds)
        ])
    return ["", *table_lines(rows)]


def _engine_check_lines(session: Session, engine_results: Mapping[str, EngineResult]) -> list[str]:
    """Returns a line about a wrong FP32 engine, and the checks for engines that are less accurate than simulated."""
    lines = ["", f"not a precision problem: {fault}"] if (fault := fp32_engine_fault_text(
        session.results.fp32_engine)) else []
    for run, checks in session.list_engine_checks().items():
        if run not in engine_results:
            continue  # the config equals another run in the list
        gap = sqnr_gap_of_engine_db(
            engine_results[run].select_comparable_simulation(session.get_run_results(run).accuracy),
            engine_results[run].accuracy)
        lines += ["", f"{_engine_title_text(session, run)}: {formatting.engine_gap_text(gap)}; what to check:",
                  *(f"  {line}" for line in checks)]
    return lines


def _worst_group_lines(session: Session, run: str) -> list[str]:
    """Returns a table of the groups with the largest error shares in a run, or with the largest errors.

    Isolated errors are used if no error shares were measured, accumulated errors if no isolated ones were.
    """
    results, config = session.get_run_results(run), session.get_run_config(run)
    shares, outline = results.shares, session.opened_network.outline
    worst_names = sorted(shares, key=lambda name: math.inf
                         if shares[name].unknown_reason else -shares[name].fraction)[:MAX_LAYER_ROWS]
    run_name = run_name_in_sentence(run, session.config.uses_only_file_precisions)
    title = f"error shares of {run_name}"
    if not worst_names:
        kind = "isolated" if any(item.isolated is not None for item in results.group_errors.values()) else "accumulated"
        worst_names = _find_worst_groups(results.group_errors, kind)
        title = f"largest {kind} errors in {run_name}"
    rows = [[title, "operator", "precision", "share", "samples", "isolated", "accumulated", "SQNR if raised"]]
    titles_by_group = group_titles(build_scope_tree(outline.layers, outline.groups))
    for name in worst_names:
        share, group = shares.get(name), outline.get_group(name)
        errors = results.group_errors.get(name)
        error_cells = [item.sqnr_text() if item is not None else NOT_MEASURED for item in (
            (errors.isolated, errors.accumulated) if errors else (None, None))]
        rows.append([
            titles_by_group.get(name, name), group.operator,
            group.precision_label(config.precision_of(group)), *_error_share_cells(share), *error_cells,
            formatting.decibels_text(share.sqnr_if_raised_db) if share is not None else ""
        ])
    causes = find_worst_group_causes(session, config)
    notes = [f"{titles_by_group.get(name, name)}: {note}" for name, errors in results.group_errors.items()
             if (name in worst_names or not errors.overflow_text)
             and (note := fp16_range_note(errors, causes.get(name, ())))]
    notes += [
        f"{titles_by_group.get(name, name)}: its share is unknown: {item.unknown_reason}"
        for name, item in shares.items()
        if item.unknown_reason
    ]
    if not shares:
        rows = [[*row[:3], *row[5 if kind == "isolated" else 6:7]] for row in rows]
    elif any(share.samples < session.count_judging_samples(config) for share in shares.values()):
        notes.append(SHARE_SAMPLES_LEGEND)
    return [
        *(table_lines(rows, left_aligned_columns=3) if worst_names else []),
        *(["", *notes[:MAX_LAYER_ROWS]] if notes else []), *_cause_lines(session, run, titles_by_group)
    ]


def _find_worst_groups(group_errors: Mapping[str, GroupErrors], kind: str) -> list[str]:
    """Returns the names of the groups with the largest errors of a kind, "isolated" or "accumulated", worst first."""
    lossy = {name: metrics for name, item in group_errors.items()
             if (metrics := getattr(item, kind)) is not None and not metrics.exact}
    return sorted(lossy, key=lambda name: lossy[name].sqnr_db or -math.inf)[:MAX_LAYER_ROWS]


def accumulated_error_table(session: Session, run: str) -> str:
    """Returns a table of the groups with the largest accumulated errors in a run; "" if no group has an error."""
    config, outline = session.get_run_config(run), session.opened_network.outline
    group_errors = session.get_run_results(run).group_errors
    titles_by_group = group_titles(build_scope_tree(outline.layers, outline.groups))
    run_name = run_name_in_sentence(run, session.config.uses_only_file_precisions)
    rows = [[f"largest accumulated errors in {run_name}", "operator", "precision", "accumulated"]]
    for name in _find_worst_groups(group_errors, "accumulated"):
        group, errors = outline.get_group(name), group_errors[name].accumulated
        assert errors is not None, "the listed groups have errors"
        rows.append([titles_by_group.get(name, name), group.operator, group.precision_label(config.precision_of(group)),
                     errors.sqnr_text()])
    return "\n".join(map(formatting.escape_hidden_characters,
                         table_lines(rows, left_aligned_columns=3))) if rows[1:] else ""


def _cause_lines(session: Session, run: str, titles_by_group: Mapping[str, str]) -> list[str]:
    """Returns the causes at the groups with the largest losses in a run, and the next step for each."""
    causes_by_group = find_worst_group_causes(session, session.list_run_configs()[run])
    run_name = run_name_in_sentence(run, session.config.uses_only_file_precisions)
    lines = cause_lines({titles_by_group.get(name, name): causes for name, causes in causes_by_group.items()})
    return ["", f"causes of the largest losses in {run_name}", *lines] if lines else []


def _error_share_cells(error_share: ErrorShare | None) -> tuple[str, str]:
    """Returns the error share of a group and the number of samples behind it, as table cells."""
    if error_share is None:
        return "", ""
    if error_share.unknown_reason:
        return "unknown", str(error_share.samples)
    share_text = formatting.percent_with_margin_text(error_share.fraction, error_share.half_width, SIMULATED_MARK,
                                                     error_share.has_few_samples)
    return share_text if math.isfinite(error_share.fraction) else "NaN/Inf in FP32", str(error_share.samples)


def config_markdown(network: NetworkOutline, config: PrecisionConfig, path: str, setup: Mapping[str, str]) -> str:
    """Returns the report of a config that is not measured; ``setup`` is that of `SessionState.setup_record`."""
    lines = [f"# Precision config {text_cell(Path(path).name)}".rstrip(), "",
             f"For {text_cell(network.name)} ({len(network.layers)} nodes, structure {network.structure_sha256[:12]}). "
             f"{config.defaults_text}; "
             f"TF32 is {'on' if config.tf32 else 'off'}.", "", f"{text_cell(setup_text(setup))}.", ""]
    return "\n".join(lines + (moves_markdown(config, network) or ["No layer differs from the defaults."])) + "\n"
