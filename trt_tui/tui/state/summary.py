"""The header and the summary table: the open network, and the accuracy of each run, simulated and as built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.lowering.lowering_checks import leaves_quantized_precision_unused, reduces_precision
from trt_tui.core.measure.engine_agreement import fp32_engine_fault_text, sqnr_gap_of_engine_db
from trt_tui.core.measure.judged_outputs import FLOAT_KIND
from trt_tui.core.measure.results import Accuracy, ExportedRun, RunKind
from trt_tui.core.measure.target import TargetOutcome
from trt_tui.core.report.run_columns import RunColumn, RunRow, list_run_columns
from trt_tui.formatting import (
    EXPORTED,
    EXPORTED_NETWORK,
    FP32_TITLE,
    NOT_MEASURED,
    SIMULATED_MARK,
    add_decibel_unit,
    cell_width,
    counted_noun_text,
    metric_text,
    run_title,
    shorten_number_in_text,
    take_first_cells,
)
from trt_tui.session.results import collect_run_accuracies, find_decisive_outcome
from trt_tui.session.session import Session
from trt_tui.tui.config_status import (
    config_name,
    config_title,
    current_config_meets_target,
    has_unfinished_accuracy,
    meets_target,
    target_outcome_line,
)
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import (
    Line,
    Span,
    choose_fitting_text,
    clip_line,
    justify_line,
    line_width,
    move_index_outside_number,
    pad_or_shorten,
    shorten_middle,
    worst_sqnr_span,
    wrap_text,
)
from trt_tui.tui.state.engine_texts import (
    CANNOT_RUN_TEXT,
    ShownEngine,
    builder_texts,
    built_column_title,
    find_shown_engine,
    fp32_engine_texts,
    quantized_time_share_text,
    shows_engine_layers,
)
from trt_tui.tui.state.marks import MARGIN_MARK, OTHER_PRECISION_MARK
from trt_tui.tui.state.target_gauge import find_displayed_target, target_gauge_line, value_margin_text

_MAX_TABLE_CELLS = 120
"""The maximum width of the summary table."""

_OUTCOME_AND_GAUGE_CELLS = 28
"""The cells for an outcome and a gauge. Names of runs are shortened to 13 cells before a gauge has fewer."""


def header_line(session: Session, width: int, has_failed: bool = False) -> Line:
    """Returns the top line: network, config, target, samples and devices. The least important parts are dropped first.

    Args:
        has_failed: True if the network could not be opened.
    """
    outline = session.outline
    if outline is None:
        return [(" ", ""), (session.options.model.rpartition("/")[2], "strong"),
                ("  not opened" if has_failed else "  opening", "dim")]
    table = _SummaryTable.fit_columns(session, width)
    right: Line = [(f"{config_title(session, max(20, width // 5))} ", "strong")]
    target_text = "" if table.target_text else _target_text(session)
    groups = f"  {counted_noun_text(len(outline.groups), 'fused layer')}"
    samples, is_random = _sample_count_text(session, width)
    devices = _device_texts(session, width)
    counts = (f"{groups} ({counted_noun_text(len(outline.layers), 'node')})", groups, "")
    choices = [(count, device) for device in devices for count in counts]
    if session.builder is None:
        choices = [(count, device) for count in counts for device in devices]
    candidates = [(sample_text, target_text, *choice)
                  for sample_text in (samples, samples.partition(",")[0])
                  for choice in choices]
    short_target = target_text.partition(" (")[0]
    bare_target = short_target.replace("target ", "", 1)
    candidates += [(samples, short_target, "", ""), (samples, bare_target, "", "")]
    with_config = len(candidates)
    candidates += [(samples, short_target, "", ""), (samples, bare_target, "", ""), (samples, "", "", "")]
    for index, (sample_text, shown_target, count, device) in enumerate(candidates):
        line: Line = [(" ", ""), (outline.name, "strong"), (count, "dim"), (shown_target, "@do('target')"),
                      (sample_text, "warn" if is_random else ""), (device, "dim")]
        if line_width(line) + (line_width(right) + 2 if index < with_config else 0) <= width:
            break
    return justify_line(line, width, right)


def _target_text(session: Session) -> str:
    """Returns the target, and the FP32 value of the metric that it bounds."""
    target = session.target
    if target is None:
        return ""
    baseline = session.results.reference_metric if target.kind == "metric" else {}
    baseline_value = next(iter(baseline.values()), None) if target.part_name is None else baseline.get(target.part_name)
    more_text = f" and {len(session.further_targets)} more" if session.further_targets else ""
    return f"  target {session.target_descriptions[0]}{more_text}" + (f" (FP32 {metric_text(baseline_value)})"
                                                          if baseline_value is not None else "")


def _sample_count_text(session: Session, width: int) -> tuple[str, bool]:
    """Returns the maximum number of samples that values are measured on, and True if the samples are random."""
    data = session.data_summary
    if data is None:
        return "", False
    if data.is_random:
        return f"  {data.judged_count} random inputs", True
    used = min(data.what_if_count, data.judged_count)
    samples_text = (f"  {used} of {data.judged_count} samples"
                    if used < data.judged_count else f"  {counted_noun_text(data.judged_count, 'sample')}")
    if width < 110:
        return samples_text, False
    ranges = f", {session.ranges_source_text}" if session.ranges_source_text else ""
    return f"{samples_text}{', labels' if data.label_names else ''}{ranges}", False


def _device_texts(session: Session, width: int) -> list[str]:
    """Returns descriptions of the builder, or of the simulation backend if there is none, from longest to shortest."""
    backend = session.backend_summary
    if session.builder is not None:
        return [*(f"  {text}" for text in builder_texts(session.builder)), ""]
    if backend is None:
        return [""]
    backend_text = f"  {backend.name} {backend.version}" + (f" · {backend.device}" if width >= 100 else "")
    backend_text += "" if backend.real_fp16 or width < 100 else ", FP16 as FP32"
    return [
        *([f"{backend_text}, {session.execution_mode.name}"] if session.execution_mode is not None else []),
        backend_text, ""
    ]


@dataclass(frozen=True)
class _SummaryTable:
    """The titles and widths of the columns of the summary table.

    They depend on the network, the builder and the width, but on no config.

    Attributes:
        target_text: The target, as the title of the outcome column; "" if it does not fit.
    """

    name_width: int
    simulated_columns: list[RunColumn]
    built_columns: list[RunColumn]
    metric_title: str
    is_wide: bool
    target_text: str = ""

    @classmethod
    def fit_columns(cls, session: Session, width: int) -> _SummaryTable:
        """Returns the columns that fit into a width."""
        width, is_wide = min(width, _MAX_TABLE_CELLS), width >= 110
        metric = session.metric_name or next(iter(session.results.reference_metric), None)
        agreement = metric is None and any(
            accuracy is not None and accuracy.agreement is not None
            for accuracy in (session.get_run_results(run).accuracy for run in session.list_run_configs()))
        metric_title = (metric.rpartition(":")[2] if metric else "top-1" if agreement else "")[:7]
        titles = {"metric": metric_title}
        simulated_columns = list_run_columns("simulated", titles)
        displayed_target = find_displayed_target(session)
        value_title = "SQNR" if displayed_target.kind == "sqnr" else metric_title
        position = next((index for index, column in enumerate(simulated_columns, 1) if column.title == value_title), 1)
        simulated_columns.insert(position, RunColumn(
            MARGIN_MARK, "accuracy", lambda accuracy, mark: value_margin_text(displayed_target, accuracy), width=5))
        shows_layers = is_wide and shows_engine_layers(session)
        hidden_titles = [*([] if shows_layers else ["gap"]), *([] if session.builder is not None else ["ms", "MB"])]
        built_column, *built_columns = list_run_columns("built", titles | dict.fromkeys(hidden_titles, ""))
        if shows_layers:
            quantized_type = session.config.find_main_quantized_type(session.opened_network.outline)
            built_columns.append(RunColumn(
                f"{quantized_type.label} time", "engine",
                lambda engine, mark: quantized_time_share_text(engine, quantized_type), width=9))
        if sum(output.kind == FLOAT_KIND for output in session.judged_outputs) > 1:
            simulated_columns.insert(1 + (position == 1), RunColumn(
                "output", "accuracy.worst_output", lambda output, mark: shorten_middle(output[0], _OUTPUT_CELLS),
                width=_OUTPUT_CELLS))
        if not is_wide:
            simulated_columns, built_columns = (
                [replace(column, title=column.narrow_title or column.title, width=column.narrow_width or column.width)
                 for column in columns] for columns in (simulated_columns, built_columns))
        title = built_column_title(session, width < 72)
        if is_wide and metric_title and title == EXPORTED_NETWORK:  # the metric has a column too
            title = f"{EXPORTED} SQNR"
        built_columns = [replace(built_column, title=title, width=max(8, cell_width(title))),
                         *built_columns]
        if not has_built_values(session):
            built_columns = []
        for columns, column_title in (
                (simulated_columns, MARGIN_MARK), (built_columns, "MB"), (built_columns, "ms"),
                (simulated_columns, "output"), (built_columns, metric_title)):  # the outcome must fit at every width
            if 13 + _total_columns_width(simulated_columns) + len(" │ ") + _total_columns_width(built_columns) + len(
                    " PASS?") > width:
                left_out, columns[:] = columns[:], [column for column in columns if column.title != column_title]
                if column_title and column_title == metric_title == value_title:  # the value of the target stays
                    columns[:1] = [replace(column, title=columns[0].title, width=columns[0].width)
                                   for column in left_out if column.title == column_title][:1] or columns[:1]
        used_cells = _total_columns_width(simulated_columns) + len(" │ ") + _total_columns_width(built_columns)
        name = max(13, min(24, width - used_cells - (15 if is_wide else _OUTCOME_AND_GAUGE_CELLS)))
        room = width - used_cells - name - 1
        target_text = session.target_descriptions[0] if is_wide and session.target is not None else ""
        return cls(name, simulated_columns, built_columns, metric_title, is_wide,
                   target_text if cell_width(target_text) <= room else "")


_OUTPUT_CELLS = 8
"""The width of the name of the worst judged output, if there are several."""


def has_built_values(session: Session) -> bool:
    """Returns True if the table needs columns for values of engines, executed exports or differences of stages."""
    if session.results.fp32_engine is not None or session.list_stage_accuracies():
        return True
    runs = session.list_run_configs()
    return any(find_shown_engine(session, run) is not None or session.get_run_results(run).exported_run is not None
               for run in runs)


def _total_columns_width(columns: Sequence[RunColumn]) -> int:
    return sum(column.width + 1 for column in columns)


def _title_cells(columns: Sequence[RunColumn]) -> Line:
    return [(f"{column.title:>{column.width}} ", "dim") for column in columns]


def _run_spans(run_row: RunRow, columns: Sequence[RunColumn]) -> Line:
    """The cells of a run, a dash where nothing was measured; the narrow column of the worst sample omits its name."""
    texts = [column.text(run_row) or NOT_MEASURED for column in columns]
    for position, (text, column) in enumerate(zip(texts, columns, strict=True)):
        if column.title == "worst":
            texts[position] = text.split(" ")[0]
        elif column.title == "worst sample" and cell_width(text) > column.width and " #" in text:
            value, _, file = text.rpartition(" #")[0].partition(" ")
            index = text.rpartition(" ")[2]
            shown_file = shorten_middle(file.removesuffix(".npz"), column.width - cell_width(f"{value}  {index}"))
            texts[position] = " ".join(filter(None, (value, shown_file, index)))
    return [(text, _cell_style(column, run_row, text)) for column, text in zip(columns, texts, strict=True)]


def _cell_style(column: RunColumn, run_row: RunRow, text: str) -> str:
    if text.endswith("!"):
        return "warn"
    if column.title == MARGIN_MARK or column.path in ("accuracy.worst_output", "sqnr_gap_db") or (
            text == NOT_MEASURED):
        return "dim"
    if column.path == "accuracy.nonfinite_count":
        return "dim" if text == "0" else "bad"
    return "bad" if text in ("NaN", "Inf") else ""


def _padded_cells(spans: Iterable[Span], columns: Sequence[RunColumn]) -> Line:
    """Returns texts as cells of a table, each shortened or padded to the width of its column."""
    return [(f"{shorten_number_in_text(text, column.width):>{column.width}} ", style)
            for (text, style), column in zip(spans, columns, strict=True)]


_SEPARATOR: Span = (" │ ", "rule")
FULL_WIDTH = 79
"""The width from which the table has all runs: 80 columns without the last one, which stays blank. A narrower screen
has room for the current config alone."""
_MIN_TALL_ROWS = 34
"""The minimum height of a screen that always shows a line for FP32."""


@dataclass(frozen=True)
class SummaryRow:
    """A line of the summary table.

    Attributes:
        kind: What the line shows: "titles", "fp32", a run key, "exported" for the exported network of the
            run above, "engine" for the engine that was built last, "stage", or "text".
        run: The key of the run of the config; "" if the line belongs to none.
    """

    kind: str
    line: Line
    run: str = ""


@dataclass(frozen=True)
class SummaryColumn:
    """A column of the summary table, from cell ``start`` up to cell ``end``.

    Attributes:
        kind: "run" for the name of the run, "simulated", "built", or "outcome".
    """

    kind: str
    title: str
    start: int
    end: int


def list_summary_columns(session: Session, width: int) -> list[SummaryColumn]:
    """Returns the columns of the summary table for a width."""
    table = _SummaryTable.fit_columns(session, width)
    columns = [SummaryColumn("run", "run", 0, table.name_width)]
    for kind, run_columns in (("simulated", table.simulated_columns), ("built", table.built_columns)):
        for run_column in run_columns:
            start = columns[-1].end
            columns.append(SummaryColumn(kind, run_column.title, start, start + run_column.width + 1))
        if kind == "simulated":
            columns[-1] = replace(columns[-1], end=columns[-1].end + len(_SEPARATOR[0]))
    return [*columns, SummaryColumn("outcome", "outcome", columns[-1].end, width)]


def summary_lines(session: Session, width: int, height: int = 40) -> list[Line]:
    """Returns the lines of the summary table."""
    return [row.line for row in summary_rows(session, width, height)]


def summary_rows(session: Session, width: int, height: int = 40) -> list[SummaryRow]:
    """Returns the summary table: titles, then a line for FP32, FP16, INT8 and the current config.

    The FP32 line is omitted if there is no room and no problem to report, and the lines of FP16 and INT8 below
    `FULL_WIDTH`. Further lines show the last built engine, and
    the exported network if the file's own network cannot be exported unchanged.
    """
    if session.outline is None:
        return [SummaryRow("text", [])] * 4
    table = _SummaryTable.fit_columns(session, width)
    reference_text = f" vs {session.reference_name}"
    rows = [SummaryRow("titles", [(pad_or_shorten(reference_text, table.name_width), "dim"),
                                  *_title_cells(table.simulated_columns), _SEPARATOR,
                                  *_title_cells(table.built_columns), (f" {table.target_text}", "dim@do('target')")])]
    engine = session.results.fp32_engine
    if session.opened_network.reference is not None or table.is_wide and height >= _MIN_TALL_ROWS or (
            engine is not None and (engine.failure_reason or fp32_engine_fault_text(engine))):
        rows.append(SummaryRow("fp32", clip_line(_fp32_run_line(session, table, width), width)))
    is_target_met = current_config_meets_target(session)

    def build_run_line(title: Span, accuracy: Accuracy | None, built_cells: Line) -> Line:
        text, style = title
        return [(pad_or_shorten(f" {text}", table.name_width), style), *_accuracy_cells(accuracy, table), _SEPARATOR,
                *built_cells]

    def add_row(kind: str, line: Line, accuracy: Accuracy | None, outcomes: Mapping[RunKind, TargetOutcome] | None,
                dim_failures: bool = False) -> None:
        outcome_spans = _target_outcome_spans(session, accuracy, outcomes, width - line_width(line), dim_failures)
        rows.append(SummaryRow(kind, clip_line([*line, *outcome_spans], width), run))

    for run, config in session.list_run_configs().items():
        if width < FULL_WIDTH and run != "config":
            continue
        results = session.get_run_results(run)
        last_engine = find_shown_engine(session, run)
        old_engine = last_engine if last_engine is not None and last_engine.is_stale else None
        shown_engine = last_engine if old_engine is None else None  # a row shows values of one config only
        title = (config_title(session, table.name_width - 1), "strong") if run == "config" else (run_title(run), "")
        if session.data_summary is not None and session.count_judging_samples(
                config) < session.data_summary.what_if_count:
            longer_text = f"{title[0]} on {session.count_judging_samples(config)}"
            title = (longer_text if cell_width(longer_text) < table.name_width else title[0]), title[1]
        has_engine_cells = shown_engine is not None or results.exported_run is None
        line = build_run_line(title, results.accuracy,
                              _engine_cells(shown_engine, results.accuracy, table) if has_engine_cells else
                              _exported_run_cells(results.exported_run, table))
        if results.accuracy is not None and not reduces_precision(session.outline, config):
            line = [*line, (" all in FP32"[:width - line_width(line)], "dim")]
            rows.append(SummaryRow(run, clip_line(line, width), run))
        else:
            add_row(run, line, results.accuracy, session.config_target_outcomes(config),
                    is_target_met and run != "config")
            if leaves_quantized_precision_unused(session.outline, config):
                line = [*rows[-1].line, (f" nothing in {config.quantized.label}", "dim")]
                rows[-1] = replace(rows[-1], line=clip_line(line, width))
            if run == "config" and not has_unfinished_accuracy(session, config):
                line = rows[-1].line
                rows[-1] = replace(rows[-1], line=[*line, *target_gauge_line(session, width - line_width(line))])
        if old_engine is not None and height >= _MIN_TALL_ROWS:
            accuracy, name = session.results.get_results_or_empty(old_engine.config).accuracy, old_engine.name
            texts = [f"{name}, built before", f"{name}, built", name]
            fresh_engine = ShownEngine(old_engine.result, old_engine.config, name)
            line = build_run_line((choose_fitting_text(texts, table.name_width - 1), "dim"), accuracy,
                                  _engine_cells(fresh_engine, accuracy, table))
            add_row("engine", line, accuracy, session.config_target_outcomes(old_engine.config), is_target_met)
        if (accuracy := results.get_accuracy(RunKind.TYPED_NETWORK)) is not None:
            line = build_run_line((run_title(EXPORTED), ""), accuracy, _engine_cells(None, accuracy, table))
            add_row("exported", line, accuracy, None)
    if table.is_wide and height >= _MIN_TALL_ROWS:
        rows += [SummaryRow("text", line) for heading, reasons in _list_outcome_reasons(session)
                 for line in _outcome_reason_rows(heading, reasons, width, height // 20)]
    return [*rows, *(SummaryRow("stage", line) for line in _stage_lines(session, table, width, height))]


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
    lines = lines[:max(1, max_lines)]
    end = take_first_cells(lines[-1], width - 4 - cell_width(key_text))
    lines[-1] = f"{end[:move_index_outside_number(lines[-1], len(end))]}{key_text}"
    return [[(f" {'  ' if index else ''}{line}", "dim@do('log')")] for index, line in enumerate(lines)]


_RESERVED_ROWS = 21
"""The rows of the screen that stages do not use: for the layer list, the detail pane and the runs of the summary."""


def _stage_lines(session: Session, table: _SummaryTable, width: int, height: int) -> list[Line]:
    """Returns a line for each stage on the way to production, and a summary of the first stage with a fault.

    If the screen is low, stages that meet the target are omitted, the last of them first.
    """
    rows, summary = session.list_stage_accuracies(), session.stage_summary_lines()
    room = max(1, height - _RESERVED_ROWS - len(summary))
    met_stages = [stage.run.name for stage, accuracy in rows
                  if accuracy is not None and meets_target(session, accuracy) is not False]
    missed_stages = [stage.run.name for stage, _ in rows if stage.run.name not in met_stages]
    shown_stages = {*missed_stages[:room], *met_stages[:max(0, room - len(missed_stages))]}
    built_width, lines = _total_columns_width(table.built_columns), list[Line]()
    for stage, accuracy in rows:
        if stage.run.name not in shown_stages:
            continue
        is_simulated = stage.run.kind is RunKind.SIMULATED_CONFIG
        line: Line = [(f" {pad_or_shorten(stage.run.name, table.name_width - 1)}", ""),
                      *_accuracy_cells(accuracy, table, is_simulated), _SEPARATOR]
        change_spans: Line = []
        if stage.run.unavailable_reason:
            line.append((f" {stage.run.unavailable_reason}", "dim"))
        elif stage.accuracy_to_previous is not None and stage.accuracy_to_previous.worst_output is not None:
            text, style = worst_sqnr_span(stage.accuracy_to_previous, is_simulated)
            suffixes = (" from the one before", " from before", "")
            change_spans = [(choose_fitting_text([f" {add_decibel_unit(text)}{suffix}" for suffix in suffixes],
                                                 built_width), style)]
        if accuracy is not None:
            line += justify_line(change_spans, built_width)
            line += _target_outcome_spans(session, accuracy, None, width - line_width(line))
        lines.append(clip_line(line, width))
    if rows and len(shown_stages) < len(rows):
        lines.append(
            clip_line(
                [(f" {counted_noun_text(len(rows) - len(shown_stages), 'more stage')} on a taller screen", "dim")],
                width))
    return [*lines, *(clip_line([(f" {text}", "strong")], width) for text in summary)]


def _fp32_run_line(session: Session, table: _SummaryTable, width: int) -> Line:
    """Returns the line of FP32: its simulation if the reference is not FP32 itself, and its engine.

    The error of an FP32 engine is not caused by low precision.
    """
    line: Line = [(f" {FP32_TITLE}".ljust(table.name_width), "")]
    engine, accuracy, room = session.results.fp32_engine, session.fp32_accuracy, _total_columns_width(
        table.simulated_columns)
    if engine is not None and (engine.failure_reason or fp32_engine_fault_text(engine)):
        warning = choose_fitting_text(fp32_engine_texts(engine), room)
        line.append((warning[:room].ljust(room), "warn"))
    elif accuracy is not None:
        line += _accuracy_cells(accuracy, table, is_simulated=False)
    else:
        metric = metric_text(next(iter(session.results.reference_metric.values()),
                                  None)) if session.metric_name else NOT_MEASURED
        titles = [column.title for column in table.simulated_columns]
        metric_index = titles.index(table.metric_title) if session.metric_name else len(titles)
        before, after = table.simulated_columns[:metric_index], table.simulated_columns[metric_index:]
        line.append(("reference ".rjust(_total_columns_width(before)), "dim"))
        line += [(f"{metric if column.title == table.metric_title else '':>{column.width}} ", "") for column in after]
    shown_engine = ShownEngine(engine, session.config, FP32_TITLE) if engine is not None else None
    line += [_SEPARATOR, *_engine_cells(shown_engine, None, table)]
    if engine is not None and not engine.failure_reason and not fp32_engine_fault_text(engine):
        texts = [" FP32 engine OK", " FP32 OK", ""]
        line.append((choose_fitting_text(texts, width - line_width(line)), "dim"))
    return line


def _accuracy_cells(accuracy: Accuracy | None, table: _SummaryTable, is_simulated: bool = True) -> Line:
    """Returns the error cells of a run, with a mark on simulated values."""
    run_row = RunRow(accuracy, SIMULATED_MARK if is_simulated else "")
    return _padded_cells(_run_spans(run_row, table.simulated_columns), table.simulated_columns)


def _engine_cells(shown_engine: ShownEngine | None, simulated_accuracy: Accuracy | None, table: _SummaryTable) -> Line:
    """Returns the cells of a built engine, padded to their columns."""
    columns = table.built_columns
    if shown_engine is None:
        return _padded_cells([(NOT_MEASURED if column is columns[0] else "", "dim") for column in columns], columns)
    engine, accuracy = shown_engine.result, shown_engine.result.accuracy
    if accuracy is None:
        size_columns = [column for column in columns if column.title == "MB"]
        text_width = _total_columns_width([column for column in columns if column.source != "engine"
                                           or column.title == "ms"]) - 1
        texts = ("not built",) if engine.failure_reason else (CANNOT_RUN_TEXT, "cannot run here", "cannot run")
        shown_text = shorten_middle(choose_fitting_text(texts, text_width), text_width)
        sizes = [(column.text(RunRow(engine=engine)) or NOT_MEASURED, "") for column in size_columns]
        return justify_line([(f"{shown_text:>{text_width}} ", "dim"), *_padded_cells(sizes, size_columns)],
                            _total_columns_width(columns))
    gap_db = sqnr_gap_of_engine_db(engine.select_comparable_simulation(simulated_accuracy), accuracy)
    spans = _run_spans(RunRow(accuracy, engine=engine, sqnr_gap_db=gap_db), columns)
    if not engine.is_built_as_requested:
        spans[0] = f"{OTHER_PRECISION_MARK}{spans[0][0]}", "warn"
    return _padded_cells(spans, columns)


def _exported_run_cells(exported_run: ExportedRun | None, table: _SummaryTable) -> Line:
    """Returns the cells of an exported network that ONNX Runtime executed, padded to their columns."""
    accuracy = exported_run.accuracy if exported_run is not None else None
    if accuracy is None:
        return justify_line([(" not executed", "dim")], _total_columns_width(table.built_columns))
    return _padded_cells(_run_spans(RunRow(accuracy), table.built_columns), table.built_columns)


def _target_outcome_spans(session: Session, accuracy: Accuracy | None,
                          target_results: Mapping[RunKind, TargetOutcome] | None, max_cells: int,
                          dim_failures: bool = False) -> Line:
    """Returns the styled target outcome of a run, or the number of measured samples if samples are missing.

    Args:
        target_results: The target outcomes of the config; None if only ``accuracy`` is judged.
        dim_failures: If True, a missed target is dim, because the current config meets the target.
    """
    if accuracy is None:
        return [(" …" if session.is_busy else "", "dim")]
    required_samples = min(accuracy.total,
                           session.data_summary.what_if_count) if session.data_summary is not None else accuracy.total
    if accuracy.samples < required_samples:
        samples_text = f" on {accuracy.samples} of {required_samples}"
        return [(next(
            (candidate for candidate in (samples_text, f" on {accuracy.samples}") if len(candidate) <= max_cells),
            " …"), "dim")]
    if target_results is None:
        result = session.target_outcome(accuracy)
        target_results = {RunKind.SIMULATED_CONFIG: result} if result is not None else {}
    line = target_outcome_line({run: candidate
                                for run, candidate in target_results.items()
                                if run is not RunKind.TYPED_NETWORK}, dim_failures)  # with its own line
    line = [(f" {line[0][0]}", line[0][1]), *line[1:]] if line else []
    return line if line_width(line) <= max_cells else line[:1]


def outcome_reason_lines(session: Session) -> list[str]:
    """Returns the reasons why the target outcome of the config is uncertain (PASS?, FAIL?), or fails despite its value.
    """
    return [f"{heading}: {'; '.join(reasons)}" for heading, reasons in _list_outcome_reasons(session)]


def _list_outcome_reasons(session: Session) -> list[tuple[str, tuple[str, ...]]]:
    """Returns the outcomes of the config that have reasons, as in "c2 as built PASS?", each with its reasons.

    The outcome that counts is the first. A failed engine or exported network has its missed target as the reason.
    """
    titles = {RunKind.SIMULATED_CONFIG: "", RunKind.BUILT_ENGINE: "as built ", RunKind.TYPED_NETWORK: f"{EXPORTED} ",
              RunKind.EXPORTED_FILE: f"{EXPORTED_NETWORK} "}
    outcomes = session.config_target_outcomes(session.config)
    decisive = find_decisive_outcome(outcomes)
    accuracies = collect_run_accuracies(session.results.get_results_or_empty(session.config))
    listed: list[tuple[str, tuple[str, ...]]] = []
    for run, result in sorted(outcomes.items(), key=lambda item: item[1] is not decisive):
        is_outvoted = run is RunKind.SIMULATED_CONFIG and result is not decisive
        reasons = result.reasons
        if result is decisive and run is not RunKind.SIMULATED_CONFIG and not result.passes and not reasons:
            reasons = (session.missed_target_text(result, accuracies[run]), )
        if reasons:
            mark = SIMULATED_MARK if is_outvoted else ""
            listed.append((f"{config_name(session)} {titles[run]}{mark}{result.outcome.value}", reasons))
    return listed
