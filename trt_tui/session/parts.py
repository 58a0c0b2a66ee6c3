"""The parts of the user's metric, such as one for each class, in FP32, each run and each engine."""

from trt_tui.core.measure.metric_parts import metric_part_rows
from trt_tui.core.measure.results import Accuracy
from trt_tui.formatting import NOT_MEASURED, SIMULATED_MARK, engine_title, metric_text, run_title
from trt_tui.session.state import SessionState


def list_metric_columns(state: SessionState) -> list[tuple[str, str, Accuracy]]:
    """Title, mark and verdict of each run that has parts of a metric, and of its engine; a config that is another run
    is left out."""
    configs = state.list_run_configs()
    all_columns: list[tuple[str, str, Accuracy | None]] = []
    for run, config in configs.items():
        if run == "config" and config in (configs["fp16"], configs["int8"]):
            continue
        results = state.results.get_results_or_empty(config)
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
    """A row for each part, that with the worst drop first, below the headline's and a header; none of a metric without
    parts."""
    reference, runs = state.results.reference_metric, list_metric_columns(state)
    if len(reference) < 2 or not runs:
        return []
    rows = [["metric by part, worst drop first", "FP32", *(title for title, _, _ in runs), "drop"]]
    for row in metric_part_rows(reference, [accuracy.metric for _, _, accuracy in runs]):
        figure_texts = [NOT_MEASURED if figure is None else metric_text(figure, mark)
                        for figure, (_, mark, _) in zip(row.run_values, runs, strict=True)]
        rows.append([row.part_name, metric_text(row.reference_value), *figure_texts,
                     NOT_MEASURED if row.max_drop is None else metric_text(row.max_drop)])
    return rows
