"""The report of a comparison as text, Markdown and JSON, the text of precision.json, and the tables of range methods
and of the parts of the user's metric."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trt_tui import formatting
from trt_tui.core.engines.fallback_ladder import limited_list_lines
from trt_tui.core.exporters.preview_report import unbuilt_engine_lines
from trt_tui.core.guards.guards import warning_lines, warning_record
from trt_tui.core.lowering.network_rewrite import leaves_quantized_precision_unused, reduces_precision
from trt_tui.core.measure.causes import cause_lines, fp16_range_note
from trt_tui.core.measure.error_metrics import ERROR_METRICS
from trt_tui.core.measure.results import Accuracy, Cause, ConfigResults, EngineResult, ErrorShare, RunKind
from trt_tui.core.measure.simulation import MIN_DEPENDENCE_DB
from trt_tui.core.measure.stages import PRODUCTION_STAGE, STABILITY, StageResult, worst_output_sqnr_db
from trt_tui.core.measure.user_metric import metric_part_rows
from trt_tui.core.moves import config_file
from trt_tui.core.moves.keep_rules import default_keep_rules_note
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.report import json_record
from trt_tui.core.report.config_report import config_section
from trt_tui.core.report.document import Block, Section, Table, report_markdown, report_text
from trt_tui.core.report.engine_blocks import (
    MAX_ROWS,
    build_attempt_blocks,
    engine_check_lines,
    engine_error_blocks,
    engine_layer_blocks,
    engine_remark_lines,
    fp32_engine_fault_lines,
    precision_share_table,
)
from trt_tui.core.report.json_record import (
    accuracy_record,
    cause_record,
    drop_missing_values,
    error_metrics_record,
    list_run_record_keys,
    preview_record,
    run_result_record,
    stage_record,
    target_outcome_record,
)
from trt_tui.core.report.run_columns import RunColumn, RunRow, list_error_run_columns, list_run_columns
from trt_tui.errors import InputError, NotReadyError
from trt_tui.formatting import (
    EXPORTED,
    FP32_TITLE,
    NOT_MEASURED,
    SIMULATED_MARK,
    counted_noun_text,
    engine_title,
    metric_text,
    name_list_text,
    number_text,
    run_name_in_sentence,
    run_title,
)
from trt_tui.jobs import events as ev
from trt_tui.session.history import SearchDoubt, join_target_texts
from trt_tui.session.loss_causes import find_raise_causes, find_worst_group_causes
from trt_tui.session.state import TOLERANCE_SEPARATOR, SessionState

SHARE_SAMPLES_LEGEND = (
    "samples: number of samples behind a share; ± is its 95 % confidence interval. --exact measures all shares on all "
    "samples."
)


MAX_QUIET_RMS_RATIO = 0.1
"""The rms of a judged part relative to the largest rms of its tensor, below which the part is named as quiet."""

FP32_ENGINE_TITLE = "FP32 engine"


class ReportedRun(NamedTuple):
    """A run in the tables of a report.

    Attributes:
        run: The key of the run, if its row says whether the target is met; "" if not.
        missing_text: The reason why there are no values; "" if there are some.
    """

    title: str
    row: RunRow
    run: str = ""
    missing_text: str = ""


def comparison_text(session: SessionState) -> str:
    """Returns the report of a comparison for a terminal. Its last part shows the layers of the runs that miss the
    target."""
    return report_text([*_comparison_sections(session, _choose_runs_with_group_lines(session)), stage_section(session)])


def comparison_markdown(session: SessionState) -> str:
    """Returns the report of a comparison in Markdown, with the warnings, the judged outputs and the config."""
    head, *sections = _comparison_sections(session, session.list_distinct_runs())
    runs = _list_reported_runs(session)
    output_columns, engine_columns = list_run_columns("outputs"), list_run_columns("engines")
    output_rows = [
        ["run", "output", *(column.title for column in output_columns)],
        *(
            [title, name, *(column.text(output_row).replace(NOT_MEASURED, "") for column in output_columns)]
            for title, row, *_ in runs
            for name, output_row in row.split_by_output().items()
        ),
    ]
    engine_rows = [
        ["engine", *(column.title for column in engine_columns)],
        *(
            [title, *(column.text(row) for column in engine_columns)]
            for title, row, *_ in runs
            if row.engine is not None
        ),
    ]
    return report_markdown(
        f"Precision of {session.opened_network.outline.name}",
        [
            head,
            Section("", [[session.setup_text]]),
            Section("Warnings", [warning_lines(warning) for warning in session.guard_warnings]),
            *sections,
            Section("Judged outputs", [Table(output_rows)]),
            Section("Builds", [Table(engine_rows)]),
            stage_section(session),
            config_section(session.config, session.opened_network.outline),
        ],
    )


def _comparison_sections(session: SessionState, runs_with_groups: Sequence[str]) -> list[Section]:
    """Returns the parts of a report of a comparison; the first names the network, the data and the reference.

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
        outline.reference_weights_text,
        mode.reason if mode is not None else "",
    ]
    if session.results.reference_metric:
        name = next(iter(session.results.reference_metric))
        reference = session.opened_network.reference
        source = FP32_TITLE if reference is not None and not reference.has_metric_outputs else session.reference_name
        head.append(f"{name} in {source}: {_reference_metric_text(session)}")
    if session.target is not None:
        head.append(f"target: {' and '.join(session.target_descriptions)}")
    head.append(
        next(
            filter(None, (default_keep_rules_note(outline, config) for config in session.list_run_configs().values())),
            "",
        )
    )
    parts = metric_part_table(session)
    hidden_count = len(parts) - 1 - MAX_ROWS
    hidden_rows = [[f"{counted_noun_text(hidden_count, 'more part')} with smaller losses"]] if hidden_count > 0 else []
    engines = {
        run: engine
        for run in session.list_distinct_runs()
        if (engine := session.get_run_results(run).engine_result) is not None
    }
    titles = {run: _engine_title_text(session, run) for run in engines}
    engines_by_title = {titles[run]: result for run, result in engines.items()}
    if session.results.fp32_engine is not None:
        engines_by_title = {FP32_ENGINE_TITLE: session.results.fp32_engine, **engines_by_title}
    run_results = map(session.get_run_results, session.list_distinct_runs())
    quiet_parts = dict.fromkeys(quiet_part_text(session, results.accuracy) for results in run_results)
    return [
        Section("", [[*filter(None, head)]]),
        Section("Accuracy", [accuracy_table(session, _list_reported_runs(session))]),
        Section("Metric by part", [Table([*parts[: 1 + MAX_ROWS], *hidden_rows])]),
        Section(
            "Reasons", [_outcome_reason_lines(session), _output_variation_lines(session), [*filter(None, quiet_parts)]]
        ),
        Section(
            "Engines",
            [
                *build_attempt_blocks(engines_by_title),
                precision_share_table(
                    {_engine_row_title(titles[run], result): result for run, result in engines.items()}
                ),
                engine_remark_lines(engines_by_title),
                fp32_engine_fault_lines(session.results.fp32_engine),
                *(
                    engine_check_lines(titles[run], engines[run], session.get_run_results(run).accuracy, checks)
                    for run, checks in session.list_engine_checks().items()
                    if run in engines
                ),
                *(
                    block
                    for run, result in engines.items()
                    for block in engine_error_blocks(
                        outline,
                        titles[run],
                        result.engine_errors,
                        session.get_run_results(run).group_errors,
                        session.find_engine_divergence(run),
                    )
                ),
            ],
        ),
        Section(
            "Engine preview",
            [
                preview_difference_lines(
                    session, {run: _run_title_text(session, run) for run in session.list_distinct_runs()}
                )
            ],
        ),
        *(
            Section(
                f"Where {run_name_in_sentence(run, session.config.uses_only_file_precisions)} loses",
                _worst_group_blocks(session, run),
            )
            for run in runs_with_groups
        ),
    ]


def _run_title_text(session: SessionState, run: str) -> str:
    return run_title(run, session.config.uses_only_file_precisions)


def _engine_title_text(session: SessionState, run: str) -> str:
    return engine_title(run, session.config.uses_only_file_precisions)


def _reference_text(session: SessionState) -> str:
    """Returns a text about the reference that errors are computed against, and the backend that computed it."""
    backend = session.opened_network.backend
    fp32_text = f"FP32 on {backend.name} {backend.version} {backend.device}"
    if session.opened_network.reference is None:
        return fp32_text
    return f"{session.reference_name}; layers and the FP32 engine against {fp32_text}"


def _reference_metric_text(session: SessionState) -> str:
    """Returns the metric of the reference, with its samples if runs are judged on others: ``0.5 on 12 samples``."""
    results = session.results
    values = {results.reference_sample_count: next(iter(results.reference_metric.values()))}
    for run in session.list_distinct_runs():
        accuracy = session.get_run_results(run).accuracy
        if accuracy is not None and accuracy.reference_metric and accuracy.samples == accuracy.total:
            values[accuracy.total] = next(iter(accuracy.reference_metric.values()))
    names_samples = [*values] != [session.opened_network.data.what_if_count]
    return ", ".join(
        formatting.metric_text(value) + f" on {counted_noun_text(count, 'sample')}" * names_samples
        for count, value in values.items()
    )


def _choose_runs_with_group_lines(session: SessionState) -> list[str]:
    """Returns the runs whose worst groups are listed: those that miss the target, or the last measured run if none
    does."""
    if session.opened_network.outline.has_file_precision and _has_layer_results(session, "config"):
        return ["config"]
    accuracies = {
        run: accuracy
        for run in session.list_distinct_runs()
        if (accuracy := session.get_run_results(run).accuracy) is not None and _has_layer_results(session, run)
    }
    missed_runs = [
        run
        for run, accuracy in accuracies.items()
        if (result := session.target_outcome(accuracy, session.get_run_config(run))) is None or not result.passes
    ]
    return missed_runs or list(accuracies)[-1:]


def _has_layer_results(session: SessionState, run: str) -> bool:
    """Returns True if error shares or errors at the groups of a run are known."""
    measured = session.get_run_results(run)
    return bool(measured.shares or measured.group_errors)


def _target_outcome_text(session: SessionState, run: str, accuracy: Accuracy) -> str:
    """Returns the target result of a run as text, or a note that all its layers are in FP32 or none is in INT8."""
    config = session.get_run_config(run)
    if not reduces_precision(session.opened_network.outline, config):
        return "all in FP32"
    result = session.target_outcome(accuracy, config)
    texts = [result.outcome.value if result is not None else ""]
    if leaves_quantized_precision_unused(session.opened_network.outline, config):
        texts.append(f"nothing in {config.quantized.label}")
    return ", ".join(filter(None, texts))


def _outcome_reason_lines(session: SessionState) -> list[str]:
    """Returns a line of reasons for each uncertain result, and for each failure that the value alone does not explain."""
    lines = []
    for run in session.list_distinct_runs():
        title = _run_title_text(session, run)
        titles = {
            RunKind.SIMULATED_CONFIG: title,
            RunKind.TYPED_NETWORK: run_title(EXPORTED),
            RunKind.BUILT_ENGINE: _engine_title_text(session, run),
            RunKind.EXPORTED_FILE: f"{title}, {formatting.EXPORTED_NETWORK}",
        }
        outcomes = session.config_target_outcomes(session.get_run_config(run))
        lines += [f"{titles[kind]}: {result.text}" for kind, result in outcomes.items() if result.reasons]
    return lines


def _output_variation_lines(session: SessionState) -> list[str]:
    """Returns a line for each judged output that varies little between samples, with the SQNR of the varying part."""
    lines = []
    for run in session.list_distinct_runs():
        accuracy = session.get_run_results(run).accuracy
        for name, output in accuracy.outputs.items() if accuracy is not None else ():
            variation_db = output.variation_db
            if variation_db is not None and variation_db < MIN_DEPENDENCE_DB:
                varying_db = output.sqnr_against_variation_db
                varying_text = (
                    "" if varying_db is None else f"; SQNR of what varies: {SIMULATED_MARK}{varying_db:.1f} dB"
                )
                lines.append(
                    f"{_run_title_text(session, run)}: variation of "
                    f"{name} between samples: {formatting.output_variation_text(variation_db)}"
                    f"{varying_text}"
                )
    return lines


def quiet_part_text(session: SessionState, accuracy: Accuracy | None) -> str:
    """Returns the origin and the rms of the worst judged output if it is a quiet part of its tensor; "" if it is not."""
    name = accuracy.worst_output[0] if accuracy is not None and accuracy.worst_output is not None else ""
    part = next((output for output in session.judged_outputs if output.name == name), None)
    if accuracy is None or part is None:
        return ""
    parts = [output.name for output in session.judged_outputs if output.tensor == part.tensor]
    levels = {name: accuracy.outputs[name].errors.reference_rms or 0.0 for name in parts if name in accuracy.outputs}
    if not 0 < levels[part.name] < MAX_QUIET_RMS_RATIO * max(levels.values()):
        return ""
    return (
        f"{part.name} is judged separately: its rms is {number_text(levels[part.name])}, the largest rms of a part "
        f"{number_text(max(levels.values()))} ({part.note})"
    )


def _list_reported_runs(session: SessionState) -> list[ReportedRun]:
    """Returns all runs of a comparison in the order of its tables."""
    fp32_engine = session.results.fp32_engine
    runs = (
        list_engine_runs(_engine_row_title(FP32_ENGINE_TITLE, fp32_engine), fp32_engine)
        if fp32_engine is not None
        else []
    )
    runs.append(ReportedRun(FP32_TITLE, RunRow(session.fp32_accuracy)))
    for run in session.list_distinct_runs():
        results = session.get_run_results(run)
        runs += [
            ReportedRun(title, RunRow(accuracy, SIMULATED_MARK), run)
            for title, accuracy in (
                (_run_title_text(session, run), results.accuracy),
                (run_title(EXPORTED), results.get_accuracy(RunKind.TYPED_NETWORK)),
            )
        ]
        if (exported := results.exported_run) is not None:
            key = formatting.executed_run_key(run)
            title = f"{run_title(key, session.config.uses_only_file_precisions)} ({exported.executor_name})"
            runs.append(
                ReportedRun(
                    title,
                    RunRow(exported.accuracy),
                    run,
                    "" if exported.accuracy is not None else f"not executed: {exported.missing_reason}",
                )
            )
        if results.engine_result is not None:
            title = _engine_row_title(_engine_title_text(session, run), results.engine_result)
            runs += list_engine_runs(title, results.engine_result, run)
    return runs


def accuracy_table(session: SessionState, runs: Sequence[ReportedRun]) -> Table:
    """Returns the table of some runs: a header, and a row for each judged output of a run."""
    columns = list_run_columns("runs", metric_column_titles(session))
    rows = [["run", "output", *(column.title for column in columns), ""]]
    for title, row, run, missing_text in runs:
        if missing_text:
            rows.append([title, missing_text, *(column.text(row) for column in columns)])
        for name, output_row in row.split_by_output().items():
            outcome = _target_outcome_text(session, run, row.accuracy) if title and run and row.accuracy else ""
            rows.append([title, name, *(column.text(output_row) for column in columns), outcome])
            title = ""
    return Table(rows, 2)


def list_engine_runs(title: str, engine_result: EngineResult, run: str = "") -> list[ReportedRun]:
    """Returns an engine as table rows: the simulation of the built config, if it differs from the requested one, and
    the engine."""
    if engine_result.failure_reason:
        return [ReportedRun(title, RunRow(), missing_text="not built")]
    return [
        ReportedRun(f"{title}, simulated", RunRow(engine_result.simulated_accuracy, SIMULATED_MARK)),
        ReportedRun(
            title,
            RunRow(engine_result.accuracy, engine=engine_result),
            run,
            "built, cannot run here" if engine_result.accuracy is None else "",
        ),
    ]


def _engine_row_title(title: str, engine_result: EngineResult) -> str:
    """Returns the title of an engine with its builder. An engine that was not built as requested says so."""
    if engine_result.failure_reason:
        return title
    title = f"{title} ({engine_result.builder_text})"
    return title if engine_result.is_built_as_requested else f"{title}, other precision"


_GROUP_COLUMNS = {
    "share": ("share", "samples", "isolated", "accumulated", "SQNR if FP32"),
    "isolated": ("isolated", "accumulated"),
    "accumulated": ("accumulated",),
}
"""The columns of the tables of groups with the largest error shares, isolated errors or accumulated errors."""


def _worst_group_blocks(session: SessionState, run: str) -> list[Block]:
    """Returns a table of the groups with the largest error shares in a run, or with the largest errors.

    Isolated errors are used if no error shares were measured, accumulated errors if no isolated ones were. Notes and
    the causes of the largest losses follow.
    """
    results, config, outline = session.get_run_results(run), session.get_run_config(run), session.opened_network.outline
    shares, titles_by_group = results.shares, group_titles(outline)
    has_isolated = any(item.isolated is not None for item in results.group_errors.values())
    measure = "share" if shares else "isolated" if has_isolated else "accumulated"
    causes = find_worst_group_causes(session, config)
    worst_names = _find_worst_groups(session, run, measure)
    is_partial, all_count = bool(shares) and not results.has_all_shares, len(outline.groups)
    partial_text = (
        f"{len(shares)} of {all_count} error shares"
        if len(shares) < all_count
        else "not all samples of the error shares"
    )
    notes = [f"{partial_text} are measured"] * is_partial + [
        f"{titles_by_group.get(name, name)}: {note}"
        for name, errors in results.group_errors.items()
        if (name in worst_names or not errors.has_overflow) and (note := fp16_range_note(errors, causes.get(name, ())))
    ]
    notes += [
        f"{titles_by_group.get(name, name)}: its share is unknown: {item.unknown_reason}"
        for name, item in shares.items()
        if item.unknown_reason
    ]
    if any(share.samples < session.count_judging_samples(config) for share in shares.values()):
        notes.append(SHARE_SAMPLES_LEGEND)
    lines = cause_lines({titles_by_group.get(name, name): causes for name, causes in causes.items()})
    run_name = run_name_in_sentence(run, session.config.uses_only_file_precisions)
    return [
        _worst_group_table(session, run, measure),
        notes[:MAX_ROWS],
        [f"causes of the largest losses in {run_name}", *lines] if lines else [],
    ]


def accumulated_error_text(session: SessionState, run: str) -> str:
    """Returns a table of the groups with the largest accumulated errors in a run; "" if no group has an error."""
    return report_text([Section("", [_worst_group_table(session, run, "accumulated")])])


def _worst_group_table(session: SessionState, run: str, measure: str) -> Table:
    """Returns the table of the groups with the largest values of a measure of `_GROUP_COLUMNS`, worst first."""
    results, config, outline = session.get_run_results(run), session.get_run_config(run), session.opened_network.outline
    titles_by_group = group_titles(outline)
    run_name = run_name_in_sentence(run, session.config.uses_only_file_precisions)
    title = f"error shares of {run_name}" if measure == "share" else f"largest {measure} errors in {run_name}"
    rows = [[title, "operator", "prec", *_GROUP_COLUMNS[measure]]]
    for name in _find_worst_groups(session, run, measure):
        share, errors, group = results.shares.get(name), results.group_errors.get(name), outline.get_group(name)
        isolated, accumulated = (
            metrics.sqnr_text() if metrics is not None else NOT_MEASURED
            for metrics in ((errors.isolated, errors.accumulated) if errors else (None, None))
        )
        share_text, samples_text = _error_share_cells(share)
        cells = {
            "share": share_text,
            "samples": samples_text,
            "isolated": isolated,
            "accumulated": accumulated,
            "SQNR if FP32": formatting.decibels_text(share.sqnr_if_raised_db) if share is not None else "",
        }
        rows.append(
            [
                titles_by_group.get(name, name),
                group.operator,
                group.precision_label(config.precision_of(group)),
                *(cells[column] for column in _GROUP_COLUMNS[measure]),
            ]
        )
    return Table(rows, 3)


def _find_worst_groups(session: SessionState, run: str, measure: str) -> list[str]:
    """Returns the names of the groups with the largest values of a measure of `_GROUP_COLUMNS`, worst first."""
    results = session.get_run_results(run)
    if measure == "share":
        keys = {name: math.inf if share.unknown_reason else -share.fraction for name, share in results.shares.items()}
    else:
        keys = {
            name: metrics.sqnr_db or -math.inf
            for name, item in results.group_errors.items()
            if (metrics := getattr(item, measure)) is not None and not metrics.exact
        }
    return sorted(keys, key=lambda name: keys[name])[:MAX_ROWS]


def _error_share_cells(error_share: ErrorShare | None) -> tuple[str, str]:
    """Returns the error share of a group and the number of samples behind it, as table cells."""
    if error_share is None:
        return "", ""
    if error_share.unknown_reason:
        return "unknown", str(error_share.samples)
    share_text = formatting.percent_with_margin_text(
        error_share.fraction, error_share.half_width, SIMULATED_MARK, error_share.has_few_samples
    )
    return share_text if math.isfinite(error_share.fraction) else "NaN/Inf in FP32", str(error_share.samples)


def preview_difference_lines(session: SessionState, run_titles: Mapping[str, str]) -> list[str]:
    """Returns a line for each run: the number of fusion groups whose previewed precision differs from the requested
    one, and the builder's warnings.

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
            first_sentence = preview.refusal.refusal_text.partition(". ")[
                0
            ]  # a builder's message has a thousand characters
            lines.append(f"{title}: no preview of its engine: {first_sentence}")
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
        f"{len(other_groups)} of {counted_noun_text(preview['groups'], 'fused layer')} would not run as "
        f"requested{group_names} (preview, RTX {release}, {preview['gpu']}: "
        f"{counted_noun_text(preview['kernels'], 'kernel')})"
    )


def stage_table(session: SessionState, errors: Sequence[RunColumn]) -> Table:
    """Returns the table of the stages on the way to production, with the references of each stage below it.

    Args:
        errors: The columns of the errors to the stage before.
    """
    columns = list_run_columns("stages", metric_column_titles(session))
    titles, previous_titles = [column.title for column in columns], [column.title for column in errors]
    rows = [["stage", *titles[:-1], f"to the stage before: {previous_titles[0]}", *previous_titles[1:], titles[-1], ""]]
    for stage, accuracy in session.list_stage_accuracies():
        rows.append(_stage_row(session, columns, errors, stage, accuracy))
        rows += [
            [f"  against {other_name}", *(column.text(RunRow(Accuracy(other.outputs))) for column in columns)]
            for other_name, other in stage.other_accuracies
        ]
    return Table(rows)


def stage_section(session: SessionState) -> Section:
    """Returns the table of the stages on the way to production; empty if no stage was requested."""
    stages = session.list_stage_accuracies()
    if not stages:
        return Section("", [])
    production = next((stage for stage, _ in stages if stage.run.name == PRODUCTION_STAGE), None)
    lines, engine_parts = [], list[Block]()
    for stage, _ in stages:
        name, run, engine = stage.run.name, stage.run, stage.engine_result
        if run.unavailable_reason:
            lines.append(f"{name}: not built: {run.unavailable_reason}")
            preview = session.results.get_results_or_empty(run.config).preview if run.config is not None else None
            if run.config is not None and preview is not None:
                lines += [
                    f"  {line}" for line in unbuilt_engine_lines(session.opened_network.outline, run.config, preview)
                ]
        if engine is not None and engine.engine_report is not None:
            engine_parts += [
                [f"layers of {name}:"],
                *engine_layer_blocks(session.opened_network.outline, engine.engine_report),
            ]
        if engine is not None:
            graph_ms = engine.cuda_graph_ms
            graph_text = (
                f"{formatting.milliseconds_text(graph_ms[0])} as one CUDA graph" if graph_ms is not None else ""
            )
            texts = filter(None, [graph_text, *engine.profile_latency_lines, engine.measurement_note])
            engine_parts.append([f"{name}: {text}" for text in texts])
    results = {stage.run.name: session.target_outcome(accuracy, stage.run.config) for stage, accuracy in stages}
    lines += [f"{name}: {result.text}" for name, result in results.items() if result is not None and result.reasons]
    return Section(
        "Stages",
        [
            [
                f"inputs of production: {comparison.description}"
                for comparison in (production.input_differences if production is not None else ())
            ],
            stage_table(session, list_error_run_columns("stages")),
            lines,
            [*session.stage_summary_lines(), *session.engine_spread_lines()],
            *engine_parts,
        ],
    )


def _stage_row(
    session: SessionState,
    columns: Sequence[RunColumn],
    errors: Sequence[RunColumn],
    stage: StageResult,
    accuracy: Accuracy | None,
) -> list[str]:
    if accuracy is None:
        return [stage.run.name, *[NOT_MEASURED] * len(list_error_run_columns("stages"))]
    mark = formatting.SIMULATED_MARK if stage.run.kind is RunKind.SIMULATED_CONFIG else ""
    run_result = session.results.find_stage_result(stage)
    engine = run_result if isinstance(run_result, EngineResult) else None
    result = session.target_outcome(accuracy, stage.run.config)
    texts = [result.outcome.value if result is not None else ""]
    if engine is not None and not engine.is_built_as_requested:
        texts.append("otherwise")
    cells = [column.text(RunRow(accuracy, mark, engine)) for column in columns]
    return [
        f"{stage.run.name} ({engine.builder_text})" if engine is not None else stage.run.name,
        *cells[:-1],
        *(column.text(RunRow(stage.accuracy_to_previous, mark)) for column in errors),
        cells[-1],
        ", ".join(filter(None, texts)),
    ]


def _causes_record(causes_by_group: Mapping[str, tuple[Cause, ...]]) -> dict[str, Any]:
    """Returns the record of the causes at some groups; empty without a cause."""
    return (
        {"causes": {name: list(map(cause_record, causes)) for name, causes in causes_by_group.items()}}
        if causes_by_group
        else {}
    )


def comparison_record(session: SessionState) -> dict[str, Any]:
    """Builds the record of all measured results that `compare --json` writes."""
    opened = session.opened_network
    runs = _collect_results_by_run_name(session)
    backend = {
        "backend": opened.backend.name,
        "version": opened.backend.version,
        "provider": opened.backend.device.lower(),
    }
    record = json_record.comparison_record(
        opened.outline,
        session.network_sha256,
        opened.data.source,
        opened.data.what_if_count,
        backend,
        runs,
        session.results.reference_metric,
        session.results.reference_sample_count,
        opened.reference,
    )
    mode, stability = session.execution_mode, session.results.find_value(STABILITY, None)
    stages = [
        stage_record(stage, accuracy) | target_outcome_record(session.target_outcome(accuracy, stage.run.config))
        for stage, accuracy in session.list_stage_accuracies()
    ]
    record |= drop_missing_values(
        {
            "setup": session.setup_record,
            "target": session.targets_text or None,
            "simulation": {"level": mode.name, "reason": mode.reason} if mode is not None else None,
            "guards": list(map(warning_record, session.guard_warnings)) or None,
            "stability": stability.to_record() if stability is not None else None,
            "stages": stages or None,
            "stages_say": session.stage_summary_lines() if stages else None,
        }
    )
    engine_checks, record_keys = session.list_engine_checks(), list_run_record_keys(runs)
    for run, config in session.list_run_configs().items():
        for kind, result in session.config_target_outcomes(config).items():
            record["runs"][record_keys[run, kind]] |= target_outcome_record(result)
        run_record, engine_record = record["runs"].get(run, {}), record["runs"].get(f"{run}-engine", {})
        preview = session.results.get_results_or_empty(config).preview
        run_record |= drop_missing_values(
            {
                "as_in_file": run == "config" and session.config.uses_only_file_precisions or None,
                "preview": preview_record(opened.outline, config, preview)
                if preview is not None and preview.refusal is None
                else None,
                **_causes_record(find_worst_group_causes(session, config)),
            }
        )
        if engine_record and (divergence := session.find_engine_divergence(run)) is not None:
            engine_record["layers_read"]["parts_at"] = {
                "group": divergence.group_name,
                "engine": error_metrics_record(divergence.engine_errors),
                "simulated": error_metrics_record(divergence.simulated_errors),
            }
        if run in engine_checks:
            engine_record["to_check"] = engine_checks[run]
    return record


def _collect_results_by_run_name(session: SessionState) -> dict[str, ConfigResults]:
    """Returns the results of FP32 and of each run."""
    fp32_results = ConfigResults()
    fp32_results.store_accuracy(session.fp32_accuracy)
    if session.results.fp32_engine is not None:
        fp32_results.runs[RunKind.BUILT_ENGINE] = session.results.fp32_engine
    return {"fp32": fp32_results, **{run: session.get_run_results(run) for run in session.list_run_configs()}}


def precision_json_text(session: SessionState, sha256: str = "") -> str:
    """Returns the text of precision.json: the config with ranges, tolerance and evidence.

    Args:
        sha256: The hash of the network and its external data, if the session does not measure it.
    """
    if session.outline is None:
        raise NotReadyError("nothing is open yet", "", "Wait for the network.")
    evidence = _evidence_record(session)
    targets = [target.text for target in session.targets]
    search_status = session.search_status
    if (
        search_status is not None
        and search_status.end_event is not None
        and search_status.best_config == session.config
    ):
        evidence["search"] = search_status.make_search_record(session.outline)
        evidence["search"] |= _causes_record(find_raise_causes(session, session.config))
        targets = [*search_status.request.tolerances]
    calibration = session.calibration
    if session.network_only and calibration is None:
        calibration = session.config_calibration
    return config_file.config_text(
        session.outline,
        session.config,
        calibration,
        evidence=evidence,
        **make_target_entries(session, targets),
        made_with=session.list_component_versions(),
        sha256=sha256 or session.network_sha256,
        weights_of=session.outline.weights_source_name,
    )


def make_target_entries(session: SessionState, targets: Sequence[str]) -> dict[str, Any]:
    """Builds the entries of precision.json that state what the config shall meet, and the doubt whether it does."""
    doubt = session.find_search_doubt(session.config, targets)
    results = session.results.get_results_or_empty(session.config)
    if not doubt.text and results.accuracy is not None and len(results.runs) == 1:
        doubt = SearchDoubt(session.find_simulation_gap_text(results.accuracy, session.targets))
    runs = [kind.value for kind in RunKind if kind in doubt.missed_runs]
    return {
        "tolerance": TOLERANCE_SEPARATOR.join(targets),
        "doubt": config_file.ConfigDoubt(doubt.text, join_target_texts(targets), runs) if doubt.text else None,
    }


def _evidence_record(session: SessionState) -> dict[str, Any]:
    """Builds the record of the measured accuracies of the config, separately for simulation, engine and exported
    network."""
    results = session.results.get_results_or_empty(session.config)
    evidence = {"simulated": accuracy_record(results.accuracy)} if results.accuracy is not None else {}
    keys = {RunKind.BUILT_ENGINE: "engine", RunKind.EXPORTED_FILE: "exported_network"}
    return evidence | {key: run_result_record(results.runs[kind]) for kind, key in keys.items() if kind in results.runs}


def unbuilt_run_lines(session: SessionState) -> list[str]:
    """Returns a sentence for each engine of a comparison that was not built, and for each exported network not
    executed."""
    run_results = _collect_results_by_run_name(session)
    return [
        *(
            f"Engine of {run} not built: {results.engine_result.failure_reason}"
            for run, results in run_results.items()
            if results.engine_result and results.engine_result.failure_reason
        ),
        *(
            f"{formatting.EXPORTED_NETWORK.capitalize()} of {run} not executed: {results.exported_run.missing_reason}"
            for run, results in run_results.items()
            if results.exported_run and results.exported_run.missing_reason
        ),
    ]


def _require_method_comparison(session: SessionState) -> ev.RangeMethodComparison:
    if session.method_comparison is None:
        raise InputError("no calibration methods were compared", "", "")
    return session.method_comparison


def _choose_method_ranking(session: SessionState) -> tuple[str, Callable[[Accuracy], float | None]]:
    """Returns the column by which range methods are ranked, and a function that scores a method. A higher score is
    better.

    The column is that of the SQNR if there is no target or its value is not measured.
    """
    target, rows = session.target, _require_method_comparison(session).rows
    if (
        target is None
        or any(target.margin_score(row.accuracy) is None for row in rows)
        or target.kind == "sqnr"
        and target.output_name is None
    ):
        return "SQNR", worst_output_sqnr_db
    headings = {_metric_function_name(name) for row in rows for name in list(row.accuracy.metric)[:1]}
    if target.kind == "metric" and target.part_name is None and len(headings) == 1:
        return headings.pop(), target.margin_score
    output_text = f" of {target.output_name}" if target.output_name is not None else ""
    return f"{target.column_title}{output_text}", target.margin_score


def _metric_function_name(metric_name: str) -> str:
    """Returns the function name of a metric that is given as ``FILE.py:FUNCTION``."""
    return metric_name.rpartition(":")[2]


def method_comparison_table(session: SessionState) -> list[list[str]]:
    """Builds the table that compares range methods, with a header and a row for each method.

    The columns are: SQNR of the worst output, its worst sample, metric, target and calibration seconds. The table
    always has the column by which the methods are ranked. The values are simulated. The seconds are absent if the
    ranges were already known.
    """
    comparison, target, ranking_title = (
        _require_method_comparison(session),
        session.target,
        _choose_method_ranking(session)[0],
    )
    names = list(dict.fromkeys(name for row in comparison.rows for name in list(row.accuracy.metric)[:1]))
    titles = ["method", "SQNR", "worst sample", *map(_metric_function_name, names)]
    own_targets = [target] if target is not None and ranking_title not in titles else []
    table = [[*titles, *[ranking_title] * len(own_targets), *(["target"] if target is not None else []), "s"]]
    for row in comparison.rows:
        accuracy, errors = row.accuracy, row.accuracy.worst_errors
        output = accuracy.find_output_of_worst_value(ERROR_METRICS["sqnr"])
        sqnr_text = formatting.decibels_text(errors.sqnr_db, exact=errors.exact) if errors is not None else ""
        result, worst = session.target_outcome(accuracy), accuracy.worst_output
        table.append(
            [
                row.method,
                f"{sqnr_text} {output}".rstrip() if errors is not None else "",
                ""
                if worst is None or worst[1].worst_sqnr_db is None
                else formatting.worst_sample_text(worst[1].worst_sample, worst[1].worst_sqnr_db),
                *(formatting.metric_text(accuracy.metric.get(name), SIMULATED_MARK) for name in names),
                *(SIMULATED_MARK + own_target.measured_value_text(accuracy) for own_target in own_targets),
                *([result.outcome.value if result is not None else ""] if target is not None else []),
                formatting.number_text(row.seconds) if row.seconds >= 0.01 else "known",
            ]
        )
    return table


def find_best_range_method(session: SessionState) -> tuple[ev.RangeMethodResult, str]:
    """Returns the best range method, and the title of the column that ranks it first. The SQNR decides ties."""
    title, score = _choose_method_ranking(session)

    def ranking_key(row: ev.RangeMethodResult) -> tuple[float, float]:
        first, second = (
            -math.inf if value is None else value for value in (score(row.accuracy), worst_output_sqnr_db(row.accuracy))
        )
        return first, second

    return max(_require_method_comparison(session).rows, key=ranking_key), title


def best_method_missed_target_reason(session: SessionState) -> str:
    """Returns the reason why the best range method misses an explicit target.

    "" if any method meets the target, or the outcome is unknown.
    """
    results = [session.target_outcome(row.accuracy) for row in _require_method_comparison(session).rows]
    best, _ = find_best_range_method(session)
    result = session.target_outcome(best.accuracy)
    if not session.has_explicit_target or result is None or any(other is None or other.passes for other in results):
        return ""
    return session.missed_target_text(result, best.accuracy)


def method_comparison_record(session: SessionState) -> dict[str, Any]:
    """Builds the comparison of range methods as a JSON record."""
    best, title = find_best_range_method(session)
    rows = [
        {
            "method": row.method,
            "sqnr_db": errors.sqnr_db if (errors := row.accuracy.worst_errors) is not None else None,
            "metric": dict(row.accuracy.metric),
            "calibration_seconds": row.seconds,
            "calibration_samples": row.samples,
            "samples": row.accuracy.samples,
            **target_outcome_record(session.target_outcome(row.accuracy)),
        }
        for row in _require_method_comparison(session).rows
    ]
    return {"calibration_methods": rows, "best": best.method, "ranked_by": title}


def metric_column_titles(session: SessionState) -> dict[str, str]:
    """Returns the titles of the columns of the metric, the agreement and the samples. The title "" hides a column.

    At most one of metric and agreement is shown, and the samples only if a run is not judged on all that are in use.
    """
    metric = next(iter(session.results.reference_metric), "") if session.metric_name else ""
    judges_agreement = not metric and session.target is not None and session.target.kind == "agreement"
    accuracies = [
        accuracy
        for run in session.list_distinct_runs()
        if (accuracy := session.get_run_results(run).accuracy) is not None
    ]
    names_samples = any(accuracy.total != session.opened_network.data.what_if_count for accuracy in accuracies)
    return {
        "metric": metric,
        "top-1 agreement": "top-1 agreement" if judges_agreement else "",
        "samples": "samples" if names_samples else "",
    }


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
                (engine_title(run, state.config.uses_only_file_precisions), "", results.engine_result.accuracy)
            )
    if state.results.fp32_engine is not None:
        all_columns.insert(0, ("FP32 engine", "", state.results.fp32_engine.accuracy))
    return [
        (title, mark, accuracy) for title, mark, accuracy in all_columns if accuracy is not None and accuracy.metric
    ]


def metric_part_table(state: SessionState) -> list[list[str]]:
    """Builds the table of the parts of the user's metric: the headline, then the parts by decreasing drop.

    Empty if the metric has no parts.
    """
    reference, runs = state.results.reference_metric, list_metric_columns(state)
    if len(reference) < 2 or not runs:
        return []
    rows = [["metric by part, worst drop first", "FP32", *(title for title, _, _ in runs), "drop"]]
    for row in metric_part_rows(reference, [accuracy.accuracy_on_compared_samples.metric for _, _, accuracy in runs]):
        figure_texts = [
            NOT_MEASURED if figure is None else metric_text(figure, mark)
            for figure, (_, mark, _) in zip(row.run_values, runs, strict=True)
        ]
        rows.append(
            [
                row.part_name,
                metric_text(row.reference_value),
                *figure_texts,
                NOT_MEASURED if row.max_drop is None else metric_text(row.max_drop),
            ]
        )
    return rows
