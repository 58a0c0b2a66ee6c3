"""The comparison of production stages as text: a row for each stage, and the first stage that diverges."""

from trt_tui import formatting
from trt_tui.cli.engine_report import engine_table
from trt_tui.cli.report import metric_heading
from trt_tui.core.measure.error_metrics import list_error_columns
from trt_tui.core.measure.results import Accuracy, EngineResult
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.stages import PRODUCTION_STAGE, StageResult
from trt_tui.formatting import NOT_MEASURED, table_lines
from trt_tui.session.session import Session


def stage_table_lines(session: Session) -> list[str]:
    """Returns the table of the stages on the way to production; empty if no stage was requested."""
    rows = session.list_stage_accuracies()
    if not rows:
        return []
    production = next((stage for stage, _ in rows if stage.run.name == PRODUCTION_STAGE), None)
    lines = [""]
    for comparison in production.input_differences if production is not None else ():
        lines.append(f"inputs of production: {comparison.description}")
    metric = metric_heading(session)
    errors = [column.column_heading for column in list_error_columns("stages")]
    table_rows = [["stage", *errors, metric, "NaN/Inf", f"to the stage before: {errors[0]}", *errors[1:], "ms", ""]]
    for stage, accuracy in rows:
        table_rows.append(_stage_row(session, stage, accuracy))
        for name, other_accuracy in stage.other_accuracies:
            table_rows.append([
                f"  against {name}", *_error_cells(other_accuracy, ""), "",
                _nonfinite_count_text(other_accuracy), *[""] * (len(errors) + 2)
            ])
    used_columns = [i for i in range(len(table_rows[0])) if any(row[i] for row in table_rows[1:])]
    lines += table_lines([[row[i] for i in used_columns] for row in table_rows])
    lines += [f"{run.name}: not built: {run.unavailable_reason}" for run in (stage.run for stage, _ in rows)
              if run.unavailable_reason]
    results = {stage.run.name: session.target_outcome(accuracy) for stage, accuracy in rows}
    lines += [f"{name}: {result.text}" for name, result in results.items() if result is not None and result.reasons]
    lines += ["", *session.stage_summary_lines()]
    for stage, _ in rows:
        if stage.engine_result is not None and stage.engine_result.engine_report is not None:
            lines += ["", f"layers of {stage.run.name}:",
                      *engine_table(session.opened_network.outline, stage.engine_result.engine_report).splitlines()]
        if stage.engine_result is not None:
            lines += [f"{stage.run.name}: {text}" for text in _engine_latency_lines(stage.engine_result)]
        if stage.engine_result is not None and stage.engine_result.measurement_note:
            lines.append(f"{stage.run.name}: {stage.engine_result.measurement_note}")
    return lines


def _engine_latency_lines(engine: EngineResult) -> list[str]:
    graph = (f"{formatting.milliseconds_text(engine.cuda_graph_ms[0])} as one CUDA graph"
             if engine.cuda_graph_ms is not None else "")
    return [*filter(None, [graph]), *engine.profile_latency_lines]


def _stage_row(session: Session, stage: StageResult, accuracy: Accuracy | None) -> list[str]:
    mark = formatting.SIMULATED_MARK if stage.run.kind is RunKind.SIMULATED_CONFIG else ""
    if accuracy is None:
        return [stage.run.name, *_error_cells(None, ""), *[""] * (len(list_error_columns("stages")) + 4)]
    target = session.target
    metric = ""
    if accuracy.headline_metric is not None:
        metric = formatting.metric_text(accuracy.headline_metric, mark)
    elif accuracy.agreement is not None and target is not None and target.kind == "agreement":
        metric = formatting.agreement_text(accuracy.agreement, mark)
    run_result = session.results.find_stage_result(stage)
    engine = run_result if isinstance(run_result, EngineResult) else None
    ms = formatting.number_text(engine.latency_ms[0]) if engine is not None and engine.latency_ms is not None else ""
    result = session.target_outcome(accuracy)
    texts = [result.outcome.value if result is not None else ""]
    if engine is not None and not engine.is_built_as_requested:
        texts.append("otherwise")
    name = f"{stage.run.name} ({engine.builder_text})" if engine is not None else stage.run.name
    return [
        name, *_error_cells(accuracy, mark), metric,
        _nonfinite_count_text(accuracy),
        *(_error_cells(stage.accuracy_to_previous, mark) if stage.accuracy_to_previous is not None else
          [""] * len(list_error_columns("stages"))), ms,
        ", ".join(filter(None, texts))
    ]


def _error_cells(accuracy: Accuracy | None, simulated_mark: str) -> list[str]:
    """Returns the errors of the worst judged output as table cells."""
    if accuracy is None or accuracy.worst_errors is None:
        return [NOT_MEASURED] * len(list_error_columns("stages"))
    return accuracy.worst_errors.cell_texts("stages", simulated_mark)


def _nonfinite_count_text(accuracy: Accuracy) -> str:
    return str(accuracy.nonfinite_count)
