"""The comparison of production stages as text: a row for each stage, and the first stage that diverges."""

from collections.abc import Sequence

from trt_tui import formatting
from trt_tui.core.exporters.preview_report import unbuilt_engine_lines
from trt_tui.core.measure.results import Accuracy, EngineResult, RunKind
from trt_tui.core.measure.stages import PRODUCTION_STAGE, StageResult
from trt_tui.core.report.document import Block, Section, Table
from trt_tui.core.report.run_columns import RunColumn, RunRow, list_error_run_columns, list_run_columns
from trt_tui.formatting import NOT_MEASURED
from trt_tui.session.engine_report import engine_blocks
from trt_tui.session.reporting_session import ReportingSession
from trt_tui.session.result_tables import metric_titles


def stage_section(session: ReportingSession) -> Section:
    """Returns the table of the stages on the way to production; empty if no stage was requested."""
    stages = session.list_stage_accuracies()
    if not stages:
        return Section("", [])
    production = next((stage for stage, _ in stages if stage.run.name == PRODUCTION_STAGE), None)
    columns, errors = list_run_columns("stages", metric_titles(session)), list_error_run_columns("stages")
    titles, previous_titles = [column.title for column in columns], [column.title for column in errors]
    rows = [["stage", *titles[:-1], f"to the stage before: {previous_titles[0]}", *previous_titles[1:], titles[-1],
             ""]]
    lines, engine_parts = [], list[Block]()
    for stage, accuracy in stages:
        name, run, engine = stage.run.name, stage.run, stage.engine_result
        rows.append(_stage_row(session, columns, stage, accuracy))
        rows += [[f"  against {other_name}", *(column.text(RunRow(Accuracy(other.outputs))) for column in columns)]
                 for other_name, other in stage.other_accuracies]
        if run.unavailable_reason:
            lines.append(f"{name}: not built: {run.unavailable_reason}")
            preview = session.results.get_results_or_empty(run.config).preview if run.config is not None else None
            if run.config is not None and preview is not None:
                lines += [f"  {line}"
                          for line in unbuilt_engine_lines(session.opened_network.outline, run.config, preview)]
        if engine is not None and engine.engine_report is not None:
            engine_parts += [[f"layers of {name}:"], *engine_blocks(session.opened_network.outline,
                                                                    engine.engine_report)]
        if engine is not None:
            engine_parts.append([f"{name}: {text}" for text in (*_engine_latency_lines(engine),
                                                                *filter(None, [engine.measurement_note]))])
    results = {stage.run.name: session.target_outcome(accuracy) for stage, accuracy in stages}
    lines += [f"{name}: {result.text}" for name, result in results.items() if result is not None and result.reasons]
    return Section("Stages", [
        [f"inputs of production: {comparison.description}"
         for comparison in (production.input_differences if production is not None else ())],
        Table(rows), lines, [*session.stage_summary_lines(), *session.stability_lines()], *engine_parts])


def _engine_latency_lines(engine: EngineResult) -> list[str]:
    graph = (f"{formatting.milliseconds_text(engine.cuda_graph_ms[0])} as one CUDA graph"
             if engine.cuda_graph_ms is not None else "")
    return [*filter(None, [graph]), *engine.profile_latency_lines]


def _stage_row(session: ReportingSession, columns: Sequence[RunColumn], stage: StageResult,
               accuracy: Accuracy | None) -> list[str]:
    errors = list_error_run_columns("stages")
    if accuracy is None:
        return [stage.run.name, *[NOT_MEASURED] * len(errors)]
    mark = formatting.SIMULATED_MARK if stage.run.kind is RunKind.SIMULATED_CONFIG else ""
    run_result = session.results.find_stage_result(stage)
    engine = run_result if isinstance(run_result, EngineResult) else None
    result = session.target_outcome(accuracy)
    texts = [result.outcome.value if result is not None else ""]
    if engine is not None and not engine.is_built_as_requested:
        texts.append("otherwise")
    cells = [column.text(RunRow(accuracy, mark, engine)) for column in columns]
    return [f"{stage.run.name} ({engine.builder_text})" if engine is not None else stage.run.name, *cells[:-1],
            *(column.text(RunRow(stage.accuracy_to_previous, mark)) for column in errors), cells[-1],
            ", ".join(filter(None, texts))]
