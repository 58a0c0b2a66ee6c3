"""The header and the summary table: the open network, and the accuracy of each run, simulated and as built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from trt_tui.core.lowering.network_rewrite import leaves_quantized_precision_unused, reduces_precision
from trt_tui.core.measure.engine_agreement import engine_sqnr_gap_db, fp32_engine_fault_text
from trt_tui.core.measure.error_metrics import ERROR_METRICS
from trt_tui.core.measure.judged_outputs import FLOAT_KIND
from trt_tui.core.measure.results import Accuracy, RunKind
from trt_tui.core.measure.target import TargetOutcome
from trt_tui.core.report.run_columns import RunColumn, RunRow, list_error_run_columns, list_run_columns
from trt_tui.formatting import (
    EXPORTED,
    EXPORTED_NETWORK,
    FP32_TITLE,
    NOT_MEASURED,
    SIMULATED_MARK,
    cell_width,
    counted_noun_text,
    metric_text,
    run_title,
    take_first_cells,
)
from trt_tui.session.comparison_report import quiet_part_text, stage_table
from trt_tui.session.results import RESULT_SUFFIXES, collect_run_accuracies, find_decisive_outcome
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import (
    Line,
    Span,
    choose_fitting_text,
    clip_line,
    justify_line,
    line_width,
    move_index_outside_number,
    shorten_distinctly,
    shorten_middle,
    wrap_text,
)
from trt_tui.tui.state.config_status import (
    config_name,
    config_title,
    current_config_meets_target,
    find_displayed_target,
    has_unfinished_accuracy,
    missing_samples_text,
    target_gauge_line,
    target_outcome_line,
    value_margin_text,
)
from trt_tui.tui.state.engine_texts import (
    CANNOT_RUN_TEXT,
    ShownEngine,
    builder_texts,
    built_column_title,
    find_shown_engine,
    fp32_engine_texts,
    quantized_time_share_text,
)
from trt_tui.tui.state.marks import MARGIN_MARK, OTHER_PRECISION_MARK
from trt_tui.tui.table import Cell, Column, block_lines, draw_row, fit_columns, fitting_cell

_OUTCOME_AND_GAUGE_CELLS = 28
"""The cells for an outcome and a gauge. Names of runs are shortened to 13 cells before a gauge has fewer."""


def header_line(session: Session, width: int, has_failed: bool = False) -> Line:
    """Returns the top line: network, config, target, samples and devices. The least important parts are dropped first.

    Args:
        has_failed: True if the network could not be opened.
    """
    outline = session.outline
    if outline is None:
        return [
            (" ", ""),
            (session.options.model.rpartition("/")[2], "strong"),
            ("  not opened" if has_failed else "  opening", "dim"),
        ]
    table = fit_summary_table(session, width)
    right: Line = [(f"{config_title(session, max(20, width // 5))} ", "strong")]
    target_texts = [""] * 3 if table.target_text else _target_texts(session)
    sample_text, is_random = _sample_count_text(session)
    devices = [f"  {text}" for text in builder_texts(session.builder)] if session.builder is not None else []
    choices = [
        *((target_texts[0], device) for device in (*devices, "")),
        *((target_text, "") for target_text in (*target_texts[1:], "")),
    ]
    lines: list[Line] = [
        [
            (" ", ""),
            (outline.name, "strong"),
            (shown_target, "@do('target')"),
            (sample_text, "warn" if is_random else ""),
            (device, "dim"),
        ]
        for shown_target, device in choices
    ]
    candidates = [*((line, line_width(right) + 2) for line in lines[:-1]), *((line, 0) for line in lines[-3:])]
    return justify_line(
        next((line for line, end_cells in candidates if line_width(line) + end_cells <= width), lines[-1]), width, right
    )


def _target_texts(session: Session) -> list[str]:
    """Returns the target with the FP32 value of the metric that it bounds, and shorter forms."""
    target = session.target
    if target is None:
        return [""] * 3
    baseline = session.results.reference_metric if target.kind == "metric" else {}
    baseline_value = next(iter(baseline.values()), None) if target.part_name is None else baseline.get(target.part_name)
    text = session.first_target_text
    baseline_text = f" (FP32 {metric_text(baseline_value)})" if baseline_value is not None else ""
    return [f"  target {text}{baseline_text}", f"  target {text}", f"  {text}"]


def _sample_count_text(session: Session) -> tuple[str, bool]:
    """Returns the maximum number of samples that values are measured on, and True if the samples are random."""
    data = session.data_summary
    if data is None:
        return "", False
    if data.is_random:
        return f"  {counted_noun_text(data.judged_count, 'random input')}", True
    used = min(data.what_if_count, data.judged_count)
    return (
        f"  {used} of {counted_noun_text(data.judged_count, 'sample')}"
        if used < data.judged_count
        else f"  {counted_noun_text(data.judged_count, 'sample')}"
    ), False


@dataclass(frozen=True)
class SummaryColumn(Column):
    """A column of the summary table.

    Attributes:
        kind: "run" for the name of the run, "simulated", "bar", "built", or "outcome".
        run_column: The values of a simulated or built column.
        start: The first cell of the column in a line.
    """

    kind: str = "run"
    run_column: RunColumn = RunColumn("", "accuracy", lambda accuracy, mark: "")
    start: int = 0

    def value_span(self, run_row: RunRow) -> Span:
        """Returns the cell of a run: a dash where nothing was measured."""
        column = self.run_column
        text = column.text(run_row) or NOT_MEASURED
        if self.title == "worst":  # the narrow column of the worst sample omits its name
            text = text.split(" ")[0]
        elif self.title == "worst sample" and cell_width(text) > self.width and " #" in text:
            value, _, file = text.rpartition(" #")[0].partition(" ")
            index = text.rpartition(" ")[2]
            shown_file = shorten_middle(file.removesuffix(".npz"), self.width - cell_width(f"{value}  {index}"))
            text = " ".join(filter(None, (value, shown_file, index)))
        if text.endswith("!"):
            return text, "warn"
        if (
            text == NOT_MEASURED
            or column.title == MARGIN_MARK
            or column.path in ("accuracy.worst_output", "sqnr_gap_db")
        ):
            return text, "dim"
        if column.path == "accuracy.nonfinite_count":
            return text, "dim" if text == "0" else "bad"
        return text, "bad" if text in ("NaN", "Inf") else ""


@dataclass(frozen=True)
class SummaryTable:
    """The displayed columns of the summary table.

    They depend on the network, the builder and the width, but on no config.

    Attributes:
        target_text: The target, as the title of the outcome column; "" if it does not fit.
        mark: The mark of simulated values; "" if no other values are beside them, so that the titles have the mark.
    """

    columns: Sequence[SummaryColumn]
    metric_title: str
    is_wide: bool
    target_text: str
    mark: str

    def select_columns(self, kind: str) -> list[SummaryColumn]:
        return [column for column in self.columns if column.kind == kind]

    def draw_line(
        self, title: Span, simulated: RunRow | Sequence[Cell], built: RunRow | Sequence[Cell], outcome: Cell = ("", "")
    ) -> Line:
        """Returns a line of the table. The last of too few cells extends over the other columns of its kind."""
        cells: list[Cell] = [title]
        for kind, values in (("simulated", simulated), ("bar", [("│", "rule")]), ("built", built)):
            columns = self.select_columns(kind)
            cells += (
                [column.value_span(values) for column in columns]
                if isinstance(values, RunRow)
                else [*values, *[None] * len(columns)][: len(columns)]
            )
        return draw_row(
            [*cells, outcome], self.columns, {index: column.width for index, column in enumerate(self.columns)}
        )


def fit_summary_table(session: Session, width: int) -> SummaryTable:
    """Returns the columns of the summary table that fit into a width."""
    is_wide = width >= 110
    metric = session.metric_name or next(iter(session.results.reference_metric), None)
    accuracies = [
        accuracy
        for run in session.list_run_configs()
        if (accuracy := session.get_run_results(run).accuracy) is not None
    ]
    agreement = metric is None and any(accuracy.agreement is not None for accuracy in accuracies)
    metric_title = (metric.rpartition(":")[2] if metric else "top-1" if agreement else "")[:7]
    titles, displayed_target = {"metric": metric_title}, find_displayed_target(session)
    simulated_columns = list_run_columns(
        "simulated", titles if any(accuracy.nonfinite_count for accuracy in accuracies) else titles | {"NaN/Inf": ""}
    )
    value_title = "SQNR" if displayed_target.kind == "sqnr" else metric_title
    position = next((index for index, column in enumerate(simulated_columns, 1) if column.title == value_title), 1)
    simulated_columns.insert(
        position,
        RunColumn(
            MARGIN_MARK, "accuracy", lambda accuracy, mark: value_margin_text(displayed_target, accuracy), width=5
        ),
    )
    output_names = [output.name for output in session.judged_outputs]
    if sum(output.kind == FLOAT_KIND for output in session.judged_outputs) > 1:
        simulated_columns.insert(
            1 + (position == 1),
            RunColumn(
                "output",
                "accuracy.worst_output",
                lambda output, mark: shorten_distinctly([*output_names, output[0]], _OUTPUT_CELLS)[output[0]],
                width=_OUTPUT_CELLS,
            ),
        )
    shows_layers = is_wide and session.builder is not None and session.builder.can_run
    hidden_titles = [*([] if shows_layers else ["gap"]), *([] if session.builder is not None else ["ms", "MB"])]
    built_columns = list_run_columns("built", titles | dict.fromkeys(hidden_titles, ""))
    if shows_layers:
        quantized_type = session.config.find_main_quantized_type(session.opened_network.outline)
        built_columns.append(
            RunColumn(
                f"{quantized_type.label} time",
                "engine",
                lambda engine, mark: quantized_time_share_text(engine, quantized_type),
                width=9,
            )
        )
    title = built_column_title(session, width < 72)
    if is_wide and metric_title and title == EXPORTED_NETWORK:  # the metric has a column too
        title = f"{EXPORTED} SQNR"
    title_cells = max(8, cell_width(title))
    built_columns[0] = replace(built_columns[0], title=title, width=title_cells, narrow_width=title_cells)
    ranks = {"simulated": {MARGIN_MARK: 1, "output": 4}, "built": {"MB": 2, "ms": 3, metric_title: 5}}
    has_built = has_engine_values(session)
    columns = {
        kind: [
            SummaryColumn(
                column.title if is_wide else column.narrow_title or column.title,
                True,
                column.width if is_wide else column.narrow_width or column.width,
                rank=ranks[kind].get(column.title, 0),
                kind=kind,
                run_column=column,
            )
            for column in run_columns
        ]
        for kind, run_columns in (("simulated", simulated_columns), ("built", built_columns if has_built else []))
    }
    every_column = [
        SummaryColumn("run", width=12, max_width=23),
        *columns["simulated"],
        SummaryColumn("│", True, 2, kind="bar"),
        *columns["built"],
        SummaryColumn(
            "outcome", width=6, fills=True, kind="outcome", roomy_width=15 if is_wide else _OUTCOME_AND_GAUGE_CELLS
        ),
    ]
    widths = fit_columns(every_column, width)
    starts = accumulate((cells + 1 for cells in widths.values()), initial=0)
    shown = [
        replace(every_column[index], width=cells, start=start)
        for (index, cells), start in zip(widths.items(), starts, strict=False)
    ]
    lost_metric = [
        column
        for column in columns["built"]
        if column.title == metric_title == value_title
        and all(column.run_column is not other.run_column for other in shown)
    ]
    if lost_metric:  # the value of the target stays
        first = next(index for index, column in enumerate(shown) if column.kind == "built")
        shown[first] = replace(shown[first], run_column=lost_metric[0].run_column)
    target_text = session.first_target_text if is_wide else ""
    return SummaryTable(
        shown,
        metric_title,
        is_wide,
        target_text if cell_width(target_text) < shown[-1].width else "",
        SIMULATED_MARK if has_built else "",
    )


def list_summary_columns(session: Session, width: int) -> list[SummaryColumn]:
    """Returns the displayed columns of the summary table that have values."""
    return [column for column in fit_summary_table(session, width).columns if column.kind != "bar"]


_OUTPUT_CELLS = 8
"""The width of the name of the worst judged output, if there are several."""


def has_engine_values(session: Session) -> bool:
    """Returns True if the table needs columns for values of engines or executed exports."""
    if session.results.fp32_engine is not None:
        return True
    runs = session.list_run_configs()
    return any(
        find_shown_engine(session, run) is not None or session.get_run_results(run).exported_run is not None
        for run in runs
    )


FULL_WIDTH = 79
"""The width from which the table has all runs: 80 columns without the last one, which stays blank. A narrower screen
has room for the current config alone."""
_MIN_ROWS_WITH_REASON = 20
"""The minimum height of a screen that shows the reason of an uncertain outcome."""
_MIN_TALL_ROWS = 34
"""The minimum height of a screen that always shows a line for FP32."""


@dataclass(frozen=True)
class SummaryRow:
    """A line of the summary table.

    Attributes:
        kind: What the line shows: "titles", "fp32", a run key, "exported" for the exported network of the
            run above, "engine" for the engine that was built last, "stage", or "text".
        run: The key of the run of the config; "" if the line belongs to none.
        values: The measured values of the line.
    """

    kind: str
    line: Line
    run: str = ""
    values: RunRow = RunRow()


def summary_lines(session: Session, width: int, height: int = 40) -> list[Line]:
    """Returns the lines of the summary table."""
    return [row.line for row in summary_rows(session, width, height)]


def summary_rows(session: Session, width: int, height: int = 40) -> list[SummaryRow]:
    """Returns the summary table: titles, then a line for FP32, FP16, INT8 and the current config.

    The FP32 line is omitted if there is no room and no problem to report. The lines of FP16 and INT8 are omitted below
    `FULL_WIDTH`, and if the config is the same. Further lines show the last built engine, and the exported network if
    the file's own network cannot be exported unchanged.
    """
    if session.outline is None:
        return [SummaryRow("text", [])] * 4
    table = fit_summary_table(session, width)
    simulated_titles, built_titles = (
        [(column.title, "dim") for column in table.select_columns(kind)] for kind in ("simulated", "built")
    )
    heading = f" {'' if table.mark else f'{SIMULATED_MARK} '}vs {session.reference_name}"
    rows = [
        SummaryRow(
            "titles",
            table.draw_line(
                (heading, "dim"), simulated_titles, built_titles, (f" {table.target_text}", "dim@do('target')")
            ),
        )
    ]
    engine = session.results.fp32_engine
    has_fault = engine is not None and bool(engine.failure_reason or fp32_engine_fault_text(engine))
    if session.opened_network.reference is not None or has_fault or table.is_wide and height >= _MIN_TALL_ROWS:
        rows.append(_fp32_row(session, table, has_fault))
    is_target_met = current_config_meets_target(session)

    for run, config in session.list_run_configs().items():
        is_current = run == "config"
        if not is_current and (width < FULL_WIDTH or config == session.config):
            continue
        results = session.get_run_results(run)
        last_engine = find_shown_engine(session, run)
        old_engine = last_engine if last_engine is not None and last_engine.is_stale else None
        title_width = table.columns[0].width - 1
        count = session.count_judging_samples(config)
        has_fewer_samples = session.data_summary is not None and count < session.data_summary.what_if_count
        count_text = f" on {count}" if has_fewer_samples else ""
        name = config_title(session, title_width - cell_width(count_text)) if is_current else run_title(run)
        title = f"{name}{count_text}", "strong" if is_current else ""
        values = RunRow(results.accuracy, table.mark, results.engine_result, results.exported_run)
        built: RunRow | Sequence[Cell] = _engine_cells(
            None if old_engine is not None else last_engine, results.accuracy, table
        )
        if results.exported_run is not None and results.engine_result is None:
            built = (
                RunRow(results.exported_run.accuracy)
                if results.exported_run.accuracy is not None
                else [fitting_cell(" not executed", is_left_aligned=True)]
            )
        entries = [
            (
                run,
                title,
                values,
                built,
                partial(_run_outcome_line, session, run, results.accuracy, is_target_met and not is_current),
            )
        ]
        if old_engine is not None and height >= _MIN_TALL_ROWS:
            accuracy, name = session.results.get_results_or_empty(old_engine.config).accuracy, old_engine.name
            texts = [f"{name}, built before", f"{name}, built", name]
            outcomes = session.config_target_outcomes(old_engine.config)
            entries.append(
                (
                    "engine",
                    (choose_fitting_text(texts, title_width), "dim"),
                    RunRow(accuracy, table.mark, old_engine.result),
                    _engine_cells(old_engine, accuracy, table),
                    partial(_target_outcome_spans, session, accuracy, outcomes, is_target_met),
                )
            )
        if (accuracy := results.get_accuracy(RunKind.TYPED_NETWORK)) is not None:
            entries.append(
                (
                    "exported",
                    (run_title(EXPORTED), ""),
                    RunRow(accuracy, table.mark),
                    _engine_cells(None, accuracy, table),
                    partial(_target_outcome_spans, session, accuracy, None, False),
                )
            )
        rows += [
            SummaryRow(kind, table.draw_line((f" {title}", style), values, built, outcome), run, values)
            for kind, (title, style), values, built, outcome in entries
        ]
        if is_current and results.accuracy is not None:
            rows += _list_output_rows(session, table, results.accuracy)[: height // 8]
    if height >= _MIN_ROWS_WITH_REASON and not has_unfinished_accuracy(session, session.config):
        rows += [
            SummaryRow("text", line)
            for heading, reasons in _list_outcome_reasons(session)[: height // 10 - 1]
            if height >= _MIN_TALL_ROWS or heading.endswith("?")
            for line in _outcome_reason_rows(heading, reasons, width, height // 20)
        ]
    return [*rows, *(_stage_rows(session, width, height) if session.list_stage_accuracies() else ())]


def _list_output_rows(session: Session, table: SummaryTable, accuracy: Accuracy) -> list[SummaryRow]:
    """Returns a line for each judged output with a target of its own if there are several targets, the worst first."""
    targets = [target for target in session.targets if target.output_name is not None and len(session.targets) > 1]
    rows: list[SummaryRow] = []
    for target in sorted(targets, key=lambda target: target.margin_score(accuracy) or 0.0):
        value, outcomes = target.measured_value(accuracy), session.config_target_outcomes(session.config, [target])
        if value is not None and outcomes:
            value_text = target.bounded_value.value_with_unit_text(value, table.mark)
            rows.append(
                SummaryRow(
                    "text",
                    table.draw_line(
                        (f"   {shorten_middle(target.output_name or '', table.columns[0].width - 3)}", "dim"),
                        [fitting_cell(f"{value_text}: {target.description}", value_text, is_left_aligned=True)],
                        [],
                        partial(_target_outcome_spans, session, accuracy, outcomes, False),
                    ),
                )
            )
    return rows


def _run_outcome_line(session: Session, run: str, accuracy: Accuracy | None, dim_failures: bool, width: int) -> Line:
    """Returns the outcome of a run, or a note if it has no meaning. The line of the current config also has a gauge."""
    config, outline = session.get_run_config(run), session.opened_network.outline
    if accuracy is not None and not reduces_precision(outline, config):
        return clip_line([(" all in FP32", "dim")], width)
    line = _target_outcome_spans(session, accuracy, session.config_target_outcomes(config), dim_failures, width)
    if leaves_quantized_precision_unused(outline, config):
        line = clip_line([*line, (f" nothing in {config.quantized.label}", "dim")], width)
    if run == "config" and not has_unfinished_accuracy(session, config):
        line = [*line, *target_gauge_line(session, width - line_width(line), has_engine_values(session))]
    return line


def _outcome_reason_rows(heading: str, reasons: Sequence[str], width: int, max_lines: int) -> list[Line]:
    """Returns the reasons of an outcome in at most ``max_lines`` lines. If they do not fit, the last line ends with the
    key of the log, which has them in full; a click on it opens the log.

    On one line, only whole reasons are shown if the first one fits.
    """
    text = f"{heading}: {'; '.join(reasons)}"
    lines = wrap_text(text, width - 4)
    if len(lines) <= max_lines:
        return [[(f" {'  ' if index else ''}{line}", "dim")] for index, line in enumerate(lines)]
    key_text = f"… ({shown_key('log')})"
    if max_lines <= 1:
        texts = [f"{heading}: {'; '.join(reasons[:count])}; {key_text}" for count in range(len(reasons) - 1, 0, -1)]
        fitting_text = next((candidate for candidate in texts if cell_width(candidate) <= width - 4), "")
        lines = [fitting_text.removesuffix(key_text) or text]
    lines = lines[: max(1, max_lines)]
    end = take_first_cells(lines[-1], width - 4 - cell_width(key_text))
    lines[-1] = f"{end[: move_index_outside_number(lines[-1], len(end))]}{key_text}"
    return [[(f" {'  ' if index else ''}{line}", "dim@do('log')")] for index, line in enumerate(lines)]


_RESERVED_ROWS = 21
"""The rows of the screen that stages do not use: for the layer list, the detail pane and the runs of the summary."""


def _stage_rows(session: Session, width: int, height: int) -> list[SummaryRow]:
    """Returns the table of the stages on the way to production as reports have it, and a summary of the first stage
    with a fault.

    Of the errors to the stage before, the table has the first. A screen that is too low for it has the summary alone.
    """
    table = block_lines([stage_table(session, list_error_run_columns("stages")[:1])], width - 1)
    unbuilt = [stage.run for stage, _ in session.list_stage_accuracies() if stage.run.unavailable_reason]
    texts = [*(f"{run.name}: not built: {run.unavailable_reason}" for run in unbuilt), *session.stage_summary_lines()]
    ends = [[(text, "strong")] for text in texts]
    if len(table) + len(ends) > height - _RESERVED_ROWS:
        table = [[(f"{counted_noun_text(len(table) - 1, 'stage')} on a taller screen", "dim")]]
    return [SummaryRow("stage", clip_line([(" ", ""), *line], width)) for line in (*table, *ends)]


def _fp32_row(session: Session, table: SummaryTable, has_fault: bool) -> SummaryRow:
    """Returns the line of FP32: its simulation if the reference is not FP32 itself, and its engine.

    The error of an FP32 engine is not caused by low precision.
    """
    engine, accuracy = session.results.fp32_engine, session.fp32_accuracy
    shown_engine = ShownEngine(engine, session.config, FP32_TITLE) if engine is not None else None
    simulated: RunRow | list[Cell] = RunRow(accuracy)
    if has_fault and engine is not None:
        simulated = [fitting_cell(*fp32_engine_texts(engine), style="warn", is_left_aligned=True)]
    elif accuracy is None:
        metric = metric_text(next(iter(session.results.reference_metric.values()), None)) if session.metric_name else ""
        simulated = [
            (metric if column.title == table.metric_title else "", "") for column in table.select_columns("simulated")
        ]
    outcome_texts = [" FP32 engine OK", " FP32 OK", ""] if engine is not None and not has_fault else [""]
    line = table.draw_line(
        (f" {FP32_TITLE}", ""), simulated, _engine_cells(shown_engine, None, table), fitting_cell(*outcome_texts)
    )
    return SummaryRow("fp32", line, values=RunRow(accuracy, engine=engine))


def _engine_cells(
    shown_engine: ShownEngine | None, simulated_accuracy: Accuracy | None, table: SummaryTable
) -> list[Cell]:
    """Returns the cells of a built engine."""
    columns = table.select_columns("built")
    if shown_engine is None:
        return [(NOT_MEASURED if column is columns[0] else "", "dim") for column in columns]
    engine, accuracy = shown_engine.result, shown_engine.result.accuracy
    if accuracy is None:
        texts = ("not built",) if engine.failure_reason else (CANNOT_RUN_TEXT, "cannot run here", "cannot run")
        sizes: list[Cell] = [
            (column.run_column.text(RunRow(engine=engine)) or NOT_MEASURED, "")
            if column.title == "MB"
            else ("", "")
            if column.title.endswith(" time")
            else None
            for column in columns
        ]
        return [fitting_cell(*texts), *sizes[1:]]
    gap_db = engine_sqnr_gap_db(engine.select_comparable_simulation(simulated_accuracy), accuracy)
    spans = [column.value_span(RunRow(accuracy, engine=engine, sqnr_gap_db=gap_db)) for column in columns]
    if spans and not engine.is_built_as_requested:
        spans[0] = f"{OTHER_PRECISION_MARK}{spans[0][0]}", "warn"
    return [*spans]


def _target_outcome_spans(
    session: Session,
    accuracy: Accuracy | None,
    target_results: Mapping[RunKind, TargetOutcome] | None,
    dim_failures: bool,
    max_cells: int,
) -> Line:
    """Returns the styled target outcome of a run, or the number of measured samples if samples are missing.

    Args:
        target_results: The target outcomes of the config; None if only ``accuracy`` is judged.
        dim_failures: If True, a missed target is dim, because the current config meets the target.
    """
    if accuracy is None:
        return [(" …" if session.is_busy else "", "dim")]
    if samples_text := missing_samples_text(session, accuracy):
        candidates = f" {samples_text}", f" on {accuracy.samples}", " …"
        return [(next((text for text in candidates if len(text) <= max_cells), " …"), "dim")]
    if target_results is None:
        result = session.target_outcome(accuracy)
        target_results = {RunKind.SIMULATED_CONFIG: result} if result is not None else {}
    line = target_outcome_line(
        {run: candidate for run, candidate in target_results.items() if run is not RunKind.TYPED_NETWORK}, dim_failures
    )  # with its own line
    line = [(f" {line[0][0]}", line[0][1]), *line[1:]] if line else []
    return line if line_width(line) <= max_cells else line[:1]


def outcome_reason_lines(session: Session) -> list[str]:
    """Returns the reasons why the target outcome of a run is uncertain (PASS?, FAIL?), or fails despite its value."""
    return [
        f"{heading}: {'; '.join(reasons)}"
        for run in session.list_distinct_runs()
        for heading, reasons in _list_outcome_reasons(session, run)
    ]


def _list_outcome_reasons(session: Session, run: str = "config") -> list[tuple[str, tuple[str, ...]]]:
    """Returns each outcome of a run that has reasons, such as "c2 engine PASS?", with these reasons.

    The outcome that counts is the first. A failed engine or exported network has its missed target as the reason. Any
    failure names the quiet part of an output that decides it.
    """
    config = session.get_run_config(run)
    outcomes = session.config_target_outcomes(config)
    decisive, accuracies = find_decisive_outcome(outcomes), collect_run_accuracies(session.get_run_results(run))
    name = config_name(session) if config == session.config else run_title(run)
    listed: list[tuple[str, tuple[str, ...]]] = []
    for kind, result in sorted(outcomes.items(), key=lambda item: item[1] is not decisive):
        is_outvoted = kind is RunKind.SIMULATED_CONFIG and result is not decisive
        reasons = result.reasons
        if result is decisive and kind is not RunKind.SIMULATED_CONFIG and not result.passes and not reasons:
            reasons = (session.missed_target_text(result, accuracies[kind]),)
        if not result.passes and any(target.kind in ERROR_METRICS for target in session.targets):
            reasons = (*reasons, *filter(None, [quiet_part_text(session, accuracies[kind])]))
        if reasons:
            mark = SIMULATED_MARK if is_outvoted else ""
            listed.append((f"{name}{RESULT_SUFFIXES[kind]} {mark}{result.outcome.value}", reasons))
    return listed
