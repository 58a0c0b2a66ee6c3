"""The report of a comparison, as text for a terminal and as Markdown."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trt_tui import formatting
from trt_tui.core.engines.fallback_ladder import attempt_lines
from trt_tui.core.engines.inspector import ENGINE_PRECISION_TITLES
from trt_tui.core.guards.guards import warning_lines
from trt_tui.core.lowering.lowering_checks import leaves_quantized_precision_unused, reduces_precision
from trt_tui.core.measure.causes import cause_lines, fp16_range_note
from trt_tui.core.measure.engine_agreement import fp32_engine_fault_text, sqnr_gap_of_engine_db
from trt_tui.core.measure.results import Accuracy, EngineResult, ErrorShare, RunKind
from trt_tui.core.measure.simulation import MIN_DEPENDENCE_DB
from trt_tui.core.moves.keep_rules import default_keep_rules_note
from trt_tui.core.network.layer_tree import build_scope_tree, group_titles
from trt_tui.core.report.config_report import config_section
from trt_tui.core.report.document import Block, Section, Table, report_markdown, report_text
from trt_tui.core.report.run_columns import RunRow, list_run_columns
from trt_tui.formatting import (
    EXPORTED,
    NOT_MEASURED,
    SIMULATED_MARK,
    counted_noun_text,
    engine_title,
    run_name_in_sentence,
    run_title,
)
from trt_tui.session.engine_report import engine_error_blocks, engine_remark_lines, preview_lines
from trt_tui.session.loss_causes import find_worst_group_causes
from trt_tui.session.reporting_session import ReportingSession
from trt_tui.session.result_tables import metric_part_table, metric_titles
from trt_tui.session.stage_report import stage_section

MAX_LAYER_ROWS = 20
MAX_PART_ROWS = 20

SHARE_SAMPLES_LEGEND = (
    "samples: number of samples behind a share; ± is its 95 % confidence interval. --exact measures all shares on all "
    "samples.")


_FP32_ENGINE_TITLE = "FP32 engine"


class _ReportedRun(NamedTuple):
    """A run in the tables of a report.

    Attributes:
        run: The key of the run, if its row says whether the target is met; "" if not.
        missing_text: The reason why there are no values; "" if there are some.
    """

    title: str
    row: RunRow
    run: str = ""
    missing_text: str = ""


def comparison_text(session: ReportingSession) -> str:
    """Returns the report of a comparison for a terminal. Its last part shows the layers of the runs that miss the
    target."""
    return report_text([*_comparison_sections(session, _choose_runs_with_group_lines(session)),
                        stage_section(session)])


def comparison_markdown(session: ReportingSession) -> str:
    """Returns the report of a comparison in Markdown. It has also warnings, the judged outputs and the config."""
    head, *sections = _comparison_sections(session, session.list_distinct_runs())
    runs = _list_reported_runs(session)
    output_columns, engine_columns = list_run_columns("outputs"), list_run_columns("engines")
    output_rows = [["run", "output", *(column.title for column in output_columns)], *(
        [title, name, *(column.text(output_row).replace(NOT_MEASURED, "") for column in output_columns)]
        for title, row, *_ in runs for name, output_row in row.split_by_output().items())]
    engine_rows = [["engine", *(column.title for column in engine_columns)], *(
        [title, *(column.text(row) for column in engine_columns)]
        for title, row, *_ in runs if row.engine is not None)]
    return report_markdown(f"Precision of {session.opened_network.outline.name}", [
        head, Section("", [[session.setup_text]]),
        Section("Warnings", [warning_lines(warning) for warning in session.guard_warnings]),
        *sections, Section("Judged outputs", [Table(output_rows)]), Section("Builds", [Table(engine_rows)]),
        stage_section(session), config_section(session.config, session.opened_network.outline)])


def _comparison_sections(session: ReportingSession, runs_with_groups: Sequence[str]) -> list[Section]:
    """Returns the parts of a report of a comparison; the first states what is compared.

    Args:
        runs_with_groups: The runs whose worst groups are listed.
    """
    outline, data, mode = session.opened_network.outline, session.opened_network.data, session.execution_mode
    size = f"{counted_noun_text(len(outline.groups), 'fused layer')} ({counted_noun_text(len(outline.layers), 'node')})"
    head = [
        session.fp32_miss_text,
        f"{outline.name}: {size}, {counted_noun_text(data.what_if_count, 'sample')} "
        f"of {data.source}{', ' if session.ranges_source_text else ''}{session.ranges_source_text}",
        f"against {_reference_text(session)}{f', {mode.name}' if mode is not None else ''}; ~ marks simulated values",
        outline.reference_weights_text, mode.reason if mode is not None else ""
    ]
    if session.results.reference_metric:
        name = next(iter(session.results.reference_metric))
        head.append(f"{name} in {_metric_source_text(session)}: {_reference_metric_text(session)}")
    if session.target is not None:
        head.append(f"target: {' and '.join(session.target_descriptions)}")
    head.append(next(filter(None, (default_keep_rules_note(outline, config)
                                   for config in session.list_run_configs().values())), ""))
    parts = metric_part_table(session)
    hidden_count = len(parts) - 1 - MAX_PART_ROWS
    hidden_rows = [[f"{hidden_count} more parts with smaller losses"]] if hidden_count > 0 else []
    engines = {run: engine for run in session.list_distinct_runs()
               if (engine := session.get_run_results(run).engine_result) is not None}
    titles = {run: _engine_title_text(session, run) for run in engines}
    engines_by_title = {titles[run]: result for run, result in engines.items()}
    if session.results.fp32_engine is not None:
        engines_by_title = {_FP32_ENGINE_TITLE: session.results.fp32_engine, **engines_by_title}
    return [
        Section("", [[*filter(None, head)]]),
        Section("Accuracy", [Table(_accuracy_rows(session), 2)]),
        Section("Metric by part", [Table([*parts[:1 + MAX_PART_ROWS], *hidden_rows])]),
        Section("Reasons", [_outcome_reason_lines(session), _output_variation_lines(session)]),
        Section("Engines", [
            *_build_attempt_blocks(engines_by_title),
            _precision_share_table({_engine_row_title(titles[run], result): result for run, result in engines.items()}),
            engine_remark_lines(engines_by_title), *_engine_check_blocks(session, engines),
            *(block for run, result in engines.items()
              for block in engine_error_blocks(session, run, titles[run], result.engine_errors))]),
        Section("Engine preview", [
            preview_lines(session, {run: _run_title_text(session, run) for run in session.list_distinct_runs()})]),
        *(Section(f"Where {run_name_in_sentence(run, session.config.uses_only_file_precisions)} loses",
                  _worst_group_blocks(session, run)) for run in runs_with_groups)]


def _run_title_text(session: ReportingSession, run: str) -> str:
    return run_title(run, session.config.uses_only_file_precisions)


def _engine_title_text(session: ReportingSession, run: str) -> str:
    return engine_title(run, session.config.uses_only_file_precisions)


def _reference_text(session: ReportingSession) -> str:
    """Returns a text about the reference that errors are computed against, and the backend that computed it."""
    backend = session.opened_network.backend
    fp32_text = f"FP32 on {backend.name} {backend.version} {backend.device}"
    if session.opened_network.reference is None:
        return fp32_text
    return f"{session.reference_name}; layers and the FP32 engine against {fp32_text}"


def _reference_metric_text(session: ReportingSession) -> str:
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


def _metric_source_text(session: ReportingSession) -> str:
    """Returns the name of the run whose metric is printed above the table: the reference, or FP32."""
    reference = session.opened_network.reference
    return session.reference_name if reference is None or reference.has_metric_outputs else formatting.FP32_TITLE


def _choose_runs_with_group_lines(session: ReportingSession) -> list[str]:
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


def _has_layer_results(session: ReportingSession, run: str) -> bool:
    """Returns True if error shares or errors at the groups of a run are known."""
    measured = session.get_run_results(run)
    return bool(measured.shares or measured.group_errors)


def _target_outcome_text(session: ReportingSession, run: str, accuracy: Accuracy) -> str:
    """Returns the target result of a run as text, or a note that all its layers are in FP32 or none is in INT8."""
    config = session.get_run_config(run)
    if not reduces_precision(session.opened_network.outline, config):
        return "all in FP32"
    result = session.target_outcome(accuracy)
    texts = [result.outcome.value if result is not None else ""]
    if leaves_quantized_precision_unused(session.opened_network.outline, config):
        texts.append(f"nothing in {config.quantized.label}")
    return ", ".join(filter(None, texts))


def _outcome_reason_lines(session: ReportingSession) -> list[str]:
    """Returns a line for each uncertain result, and for each that fails for other reasons than its value alone."""
    lines = []
    for run in session.list_distinct_runs():
        title = _run_title_text(session, run)
        titles = {RunKind.SIMULATED_CONFIG: title, RunKind.TYPED_NETWORK: run_title(EXPORTED),
                  RunKind.BUILT_ENGINE: _engine_title_text(session, run),
                  RunKind.EXPORTED_FILE: f"{title}, {formatting.EXPORTED_NETWORK}"}
        outcomes = session.config_target_outcomes(session.get_run_config(run))
        lines += [f"{titles[kind]}: {result.text}" for kind, result in outcomes.items() if result.reasons]
    return lines


def _output_variation_lines(session: ReportingSession) -> list[str]:
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
    return lines


def _list_reported_runs(session: ReportingSession) -> list[_ReportedRun]:
    """Returns all runs of a comparison in the order of its tables.

    An engine that was not built as requested says so in its title, and the simulation of the built config comes before
    it.
    """
    runs: list[_ReportedRun] = []

    def add_engine(title: str, engine_result: EngineResult, run: str = "") -> None:
        if engine_result.failure_reason:
            runs.append(_ReportedRun(title, RunRow(), missing_text="not built"))
            return
        title = _engine_row_title(title, engine_result)
        runs.append(_ReportedRun(f"{title}, simulated", RunRow(engine_result.simulated_accuracy, SIMULATED_MARK)))
        runs.append(_ReportedRun(title, RunRow(engine_result.accuracy, engine=engine_result), run,
                                 "built, cannot run here" if engine_result.accuracy is None else ""))

    if session.results.fp32_engine is not None:
        add_engine(_FP32_ENGINE_TITLE, session.results.fp32_engine)
    runs.append(_ReportedRun(formatting.FP32_TITLE, RunRow(session.fp32_accuracy)))
    for run in session.list_distinct_runs():
        results = session.get_run_results(run)
        runs += [_ReportedRun(title, RunRow(accuracy, SIMULATED_MARK), run)
                 for title, accuracy in ((_run_title_text(session, run), results.accuracy),
                                         (run_title(EXPORTED), results.get_accuracy(RunKind.TYPED_NETWORK)))]
        if (exported := results.exported_run) is not None:
            key = formatting.executed_run_key(run)
            title = f"{run_title(key, session.config.uses_only_file_precisions)} ({exported.executor_name})"
            runs.append(_ReportedRun(title, RunRow(exported.accuracy), run, "" if exported.accuracy is not None else
                                     f"not executed: {exported.missing_reason}"))
        if results.engine_result is not None:
            add_engine(_engine_title_text(session, run), results.engine_result, run)
    return runs


def _accuracy_rows(session: ReportingSession) -> list[list[str]]:
    """Returns the table of the runs: a header, and a row for each judged output of a run."""
    columns = list_run_columns("runs", metric_titles(session))
    rows = [["run", "output", *(column.title for column in columns), ""]]
    for title, row, run, missing_text in _list_reported_runs(session):
        if missing_text:
            rows.append([title, missing_text, *(column.text(row) for column in columns)])
        for name, output_row in row.split_by_output().items():
            outcome = _target_outcome_text(session, run, row.accuracy) if title and run and row.accuracy else ""
            rows.append([title, name, *(column.text(output_row) for column in columns), outcome])
            title = ""
    return rows


def _engine_row_title(title: str, engine_result: EngineResult) -> str:
    title = f"{title} ({engine_result.builder_text})"
    return title if engine_result.is_built_as_requested else f"{title}, other precision"


def _build_attempt_blocks(engine_results: Mapping[str, EngineResult]) -> list[Block]:
    """Returns the build attempts of each engine that was not built as requested, or not built at all."""
    blocks: list[Block] = []
    for name, result in engine_results.items():
        if result.failure_reason and len(result.attempts) < 2:
            blocks.append([f"{name}: not built: {result.failure_reason}"])
        elif not result.is_built_as_requested:
            state_text = "not built" if result.failure_reason else "not an engine of the requested config"
            blocks.append([f"{name}: {state_text}; build attempts:", *(
                f"  {line}" for line in attempt_lines(result.attempts, result.other_precisions))])
    return blocks


def _precision_share_table(engine_results: Mapping[str, EngineResult]) -> Table:
    """Returns a table of the number of engine layers in each precision, and their share of the time."""
    shares = {
        name: result.engine_report.precision_shares()
        for name, result in engine_results.items()
        if result.engine_report is not None
    }
    kinds = [kind for kind in ENGINE_PRECISION_TITLES if any(kind in entry for entry in shares.values())]
    rows = [["engine layers, share of the time", *(ENGINE_PRECISION_TITLES[kind] for kind in kinds)]]
    return Table([*rows, *([name, *(formatting.layer_share_text(*entry[kind]) if kind in entry else NOT_MEASURED
                                    for kind in kinds)] for name, entry in shares.items() if kinds)])


def _engine_check_blocks(session: ReportingSession, engine_results: Mapping[str, EngineResult]) -> list[Block]:
    """Returns a line about a wrong FP32 engine, and the checks for engines that are less accurate than simulated."""
    fault = fp32_engine_fault_text(session.results.fp32_engine)
    blocks: list[Block] = [[f"not a precision problem: {fault}"] if fault else []]
    for run, checks in session.list_engine_checks().items():
        if run not in engine_results:
            continue  # the config equals another run in the list
        gap = sqnr_gap_of_engine_db(
            engine_results[run].select_comparable_simulation(session.get_run_results(run).accuracy),
            engine_results[run].accuracy)
        blocks.append([f"{_engine_title_text(session, run)}: {formatting.engine_gap_text(gap)}; what to check:",
                       *(f"  {line}" for line in checks)])
    return blocks


_GROUP_COLUMNS = {"share": ("share", "samples", "isolated", "accumulated", "SQNR if raised"),
                  "isolated": ("isolated", "accumulated"), "accumulated": ("accumulated",)}
"""The columns of the tables of groups with the largest error shares, isolated errors or accumulated errors."""


def _worst_group_blocks(session: ReportingSession, run: str) -> list[Block]:
    """Returns a table of the groups with the largest error shares in a run, or with the largest errors.

    Isolated errors are used if no error shares were measured, accumulated errors if no isolated ones were. Notes and
    the causes of the largest losses follow.
    """
    results, config, outline = session.get_run_results(run), session.get_run_config(run), session.opened_network.outline
    shares, titles_by_group = results.shares, group_titles(build_scope_tree(outline.layers, outline.groups))
    has_isolated = any(item.isolated is not None for item in results.group_errors.values())
    measure = "share" if shares else "isolated" if has_isolated else "accumulated"
    causes = find_worst_group_causes(session, config)
    worst_names = _find_worst_groups(session, run, measure)
    notes = [f"{titles_by_group.get(name, name)}: {note}" for name, errors in results.group_errors.items()
             if (name in worst_names or not errors.has_overflow)
             and (note := fp16_range_note(errors, causes.get(name, ())))]
    notes += [
        f"{titles_by_group.get(name, name)}: its share is unknown: {item.unknown_reason}"
        for name, item in shares.items()
        if item.unknown_reason
    ]
    if any(share.samples < session.count_judging_samples(config) for share in shares.values()):
        notes.append(SHARE_SAMPLES_LEGEND)
    lines = cause_lines({titles_by_group.get(name, name): causes for name, causes in causes.items()})
    run_name = run_name_in_sentence(run, session.config.uses_only_file_precisions)
    return [_worst_group_table(session, run, measure), notes[:MAX_LAYER_ROWS],
            [f"causes of the largest losses in {run_name}", *lines] if lines else []]


def accumulated_error_text(session: ReportingSession, run: str) -> str:
    """Returns a table of the groups with the largest accumulated errors in a run; "" if no group has an error."""
    return report_text([Section("", [_worst_group_table(session, run, "accumulated")])])


def _worst_group_table(session: ReportingSession, run: str, measure: str) -> Table:
    """Returns the table of the groups with the largest values of a measure of `_GROUP_COLUMNS`, worst first."""
    results, config, outline = session.get_run_results(run), session.get_run_config(run), session.opened_network.outline
    titles_by_group = group_titles(build_scope_tree(outline.layers, outline.groups))
    run_name = run_name_in_sentence(run, session.config.uses_only_file_precisions)
    title = f"error shares of {run_name}" if measure == "share" else f"largest {measure} errors in {run_name}"
    rows = [[title, "operator", "precision", *_GROUP_COLUMNS[measure]]]
    for name in _find_worst_groups(session, run, measure):
        share, errors, group = results.shares.get(name), results.group_errors.get(name), outline.get_group(name)
        isolated, accumulated = (metrics.sqnr_text() if metrics is not None else NOT_MEASURED for metrics in (
            (errors.isolated, errors.accumulated) if errors else (None, None)))
        share_text, samples_text = _error_share_cells(share)
        cells = {"share": share_text, "samples": samples_text, "isolated": isolated, "accumulated": accumulated,
                 "SQNR if raised": formatting.decibels_text(share.sqnr_if_raised_db) if share is not None else ""}
        rows.append([titles_by_group.get(name, name), group.operator, group.precision_label(config.precision_of(group)),
                     *(cells[column] for column in _GROUP_COLUMNS[measure])])
    return Table(rows, 3)


def _find_worst_groups(session: ReportingSession, run: str, measure: str) -> list[str]:
    """Returns the names of the groups with the largest values of a measure of `_GROUP_COLUMNS`, worst first."""
    results = session.get_run_results(run)
    if measure == "share":
        keys = {name: math.inf if share.unknown_reason else -share.fraction for name, share in results.shares.items()}
    else:
        keys = {name: metrics.sqnr_db or -math.inf for name, item in results.group_errors.items()
                if (metrics := getattr(item, measure)) is not None and not metrics.exact}
    return sorted(keys, key=lambda name: keys[name])[:MAX_LAYER_ROWS]


def _error_share_cells(error_share: ErrorShare | None) -> tuple[str, str]:
    """Returns the error share of a group and the number of samples behind it, as table cells."""
    if error_share is None:
        return "", ""
    if error_share.unknown_reason:
        return "unknown", str(error_share.samples)
    share_text = formatting.percent_with_margin_text(error_share.fraction, error_share.half_width, SIMULATED_MARK,
                                                     error_share.has_few_samples)
    return share_text if math.isfinite(error_share.fraction) else "NaN/Inf in FP32", str(error_share.samples)
