"""The table of the columns of runs, from which the printed tables, Markdown, the app and the records select."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trt_tui.core.measure.engine_agreement import UNEXPLAINED_GAP_DB
from trt_tui.core.measure.error_metrics import ErrorMetric, RunTable, list_error_columns
from trt_tui.core.measure.results import Accuracy, EngineResult, ExportedRun, OutputErrors
from trt_tui.formatting import (
    EXPORTED_NETWORK,
    NOT_MEASURED,
    agreement_text,
    byte_size_text,
    decibels_text,
    duration_text,
    megabytes_text,
    metric_text,
    mismatch_text,
    number_text,
    output_variation_text,
    worst_sample_text,
)


@dataclass(frozen=True)
class RunRow:
    """A run as the row of a table.

    Attributes:
        accuracy: The values at the judged outputs. None if nothing was measured.
        mark: The mark before the values of ``accuracy``; "" if they are not simulated.
        engine: The engine of the run; of a config, the engine that was built from it.
        exported_run: The execution of the exported file of a config.
        sqnr_gap_db: The difference of the SQNR as simulated and as built, where the app shows it.
    """

    accuracy: Accuracy | None = None
    mark: str = ""
    engine: EngineResult | None = None
    exported_run: ExportedRun | None = None
    sqnr_gap_db: float | None = None

    def split_by_output(self) -> dict[str, RunRow]:
        """Returns a row for each judged output, by its name; only the first has values of the run as a whole."""
        accuracy = self.accuracy
        if accuracy is None:
            return {}
        rows = {name: RunRow(Accuracy({name: output}), self.mark) for name, output in accuracy.outputs.items()}
        return rows | {
            name: replace(self, accuracy=replace(accuracy, outputs={name: accuracy.outputs[name]}))
            for name in list(rows)[:1]
        }


@dataclass(frozen=True)
class RunColumn:
    """A column of tables of runs.

    Attributes:
        path: The attribute of a `RunRow` that holds the value, as ``engine.latency_ms``.
        format_value: The cell of a value, with the mark of the row.
        tables: The tables that have the column.
        key: The key of the value in the record of a run; "" if records do not have the value there.
        missing_text: The cell of a row without a value.
        width: Cells in the app.
        narrow_title: The title in the app where there is less room; "" for ``title``.
        narrow_width: Cells in the app where there is less room; 0 for ``width``.
    """

    title: str
    path: str
    format_value: Callable[[Any, str], str]
    tables: tuple[RunTable, ...] = ()
    key: str = ""
    missing_text: str = ""
    width: int = 7
    narrow_title: str = ""
    narrow_width: int = 0

    @property
    def source(self) -> str:
        """The attribute of a `RunRow` that the path begins with: ``accuracy``, ``engine`` or ``exported_run``."""
        return self.path.partition(".")[0]

    def value(self, row: RunRow) -> Any:
        """Returns the value of a row; None if the row has none, or an empty one."""
        value: Any = row
        for name in self.path.split("."):
            value = getattr(value, name) if value is not None else None
        return value if value or (value == 0 and value is not False) else None

    def text(self, row: RunRow) -> str:
        value = self.value(row)
        return self.missing_text if value is None else self.format_value(value, row.mark)


_SUMMED_UP_TABLES = ("configs", "config list", "simulated", "built")
"""Tables with a row for all outputs of a run, which show the worst value of each error metric."""


def _error_column(metric: ErrorMetric, table: RunTable) -> RunColumn:
    is_first = metric is list_error_columns(table)[0]

    def error_text(accuracy: Accuracy, mark: str) -> str:
        errors = accuracy.worst_errors
        if errors is None:
            return NOT_MEASURED
        if errors.mismatch is not None and not metric.is_for_integers_only and table not in _SUMMED_UP_TABLES:
            return f"{mismatch_text(errors.mismatch, mark)} differ" if is_first and table in ("runs", "stages") else ""
        if metric.key == "sqnr_db" and table == "configs":
            return f"{errors.value_text(metric, mark)} {accuracy.find_output_of_worst_value(metric)}".rstrip()
        if metric.key == "sqnr_db" or table not in _SUMMED_UP_TABLES:
            return errors.value_text(metric, mark if is_first or table == "outputs" else "")
        value = accuracy.find_worst_value(metric)
        return NOT_MEASURED if value is None else metric.value_text(value, mark)

    return RunColumn(metric.column_heading, "accuracy", error_text, (table,), narrow_width=6)


def _worst_sample_text(accuracy: Accuracy, mark: str) -> str:
    if (worst := accuracy.worst_sample_errors) is not None:
        return worst_sample_text(worst.worst_sample, worst.worst_sqnr_db, mark)
    return _text_of_floats(accuracy.worst_output[1], NOT_MEASURED) if accuracy.worst_output is not None else ""


def _text_of_floats(output: OutputErrors, text: str) -> str:
    return text if output.errors.mismatch is None else ""


def _output_column(
    title: str, output_text: Callable[[str, OutputErrors, str], str], table: RunTable, **app_layout: Any
) -> RunColumn:
    """Returns a column of values of the worst judged output of a run."""
    return RunColumn(
        title,
        "accuracy.worst_output",
        lambda output, mark: output_text(output[0], output[1], mark),
        (table,),
        **app_layout,
    )


def _sqnr_against_variation_text(name: str, output: OutputErrors, mark: str) -> str:
    value_db = output.sqnr_against_variation_db
    return decibels_text(value_db, mark=mark) if value_db is not None and math.isfinite(value_db) else ""


def _metric_or_agreement_text(accuracy: Accuracy, mark: str) -> str:
    if accuracy.headline_metric is not None:
        return metric_text(accuracy.headline_metric, mark)
    return agreement_text(accuracy.agreement, mark) if accuracy.agreement is not None else ""


def _plain_text(value: object, _: str) -> str:
    return str(value)


def _median_text(latency_ms: tuple[float, float, float], _: str) -> str:
    return number_text(latency_ms[0])


def _sqnr_as_executed_text(accuracy: Accuracy, _: str) -> str:
    return _error_column(list_error_columns("configs")[0], "configs").format_value(accuracy, "")


RUN_COLUMNS: tuple[RunColumn, ...] = (
    _output_column("NaN", lambda name, output, mark: _text_of_floats(output, str(output.errors.nan)), "outputs"),
    _output_column("Inf", lambda name, output, mark: _text_of_floats(output, str(output.errors.inf)), "outputs"),
    RunColumn("samples", "accuracy", lambda accuracy, mark: str(accuracy.samples or ""), ("runs", "configs")),
    RunColumn("worst sample", "accuracy", _worst_sample_text, ("runs", "outputs")),
    _output_column(
        "worst sample",
        lambda name, output, mark: _worst_sample_text(Accuracy({name: output}), mark),
        "simulated",
        width=13,
        narrow_title="worst",
        narrow_width=6,
    ),
    _output_column(
        "variation",
        lambda name, output, mark: (
            output_variation_text(output.variation_db) if output.variation_db is not None else ""
        ),
        "outputs",
    ),
    _output_column("SQNR of what varies", _sqnr_against_variation_text, "outputs"),
    RunColumn("NaN/Inf", "accuracy.nonfinite_count", _plain_text, ("runs",)),
    RunColumn(
        "gap",
        "sqnr_gap_db",
        lambda gap_db, mark: decibels_text(gap_db, mark="") + ("!" if gap_db > UNEXPLAINED_GAP_DB else ""),
        ("built",),
        width=5,
    ),
    RunColumn("metric", "accuracy.headline_metric", metric_text, ("runs", "stages", "configs"), key="metric"),
    RunColumn("metric by part", "accuracy.metric", _plain_text, key="metric_parts"),
    RunColumn("top-1 agreement", "accuracy.agreement", agreement_text, ("runs", "stages"), key="agreement"),
    RunColumn("metric", "accuracy", _metric_or_agreement_text, ("simulated", "built")),
    RunColumn("NaN/Inf", "accuracy.nonfinite_count", _plain_text, ("stages",)),
    RunColumn(
        "NaN/Inf",
        "accuracy.nonfinite_count",
        lambda count, mark: str(count) if count < 1e5 else number_text(float(count)),
        ("simulated",),
        narrow_title="bad",
        narrow_width=4,
    ),
    RunColumn("engine", "engine.accuracy", _sqnr_as_executed_text, ("configs",)),
    RunColumn(
        "ms",
        "engine.latency_ms",
        _median_text,
        ("runs", "stages", "configs", "search", "built"),
        key="latency_ms",
        width=6,
        narrow_width=5,
    ),
    RunColumn(
        "MB",
        "engine.engine_bytes",
        lambda byte_count, mark: megabytes_text(byte_count),
        ("runs", "configs", "search", "built"),
        key="engine_bytes",
        width=6,
        narrow_width=5,
    ),
    RunColumn(
        EXPORTED_NETWORK, "exported_run.accuracy", _sqnr_as_executed_text, ("configs",), missing_text="not executed"
    ),
    RunColumn("builder", "engine.builder_name", _plain_text, ("engines",)),
    RunColumn("GPU", "engine.device_name", _plain_text, ("engines",), key="gpu"),
    RunColumn("built in", "engine.build_s", lambda seconds, mark: duration_text(seconds), ("engines",), key="build_s"),
    RunColumn("from", "engine.build_origin", _plain_text, ("engines",), key="built_from"),
    RunColumn(
        "device memory",
        "engine.device_memory_bytes",
        lambda byte_count, mark: byte_size_text(byte_count),
        ("engines",),
        key="device_memory_bytes",
    ),
    RunColumn("ms, CUDA graph", "engine.cuda_graph_ms", _median_text, ("engines",), key="cuda_graph_ms"),
    RunColumn("note", "engine.measurement_note", _plain_text, ("engines",), key="note"),
)
"""All columns but those of error metrics, which `list_run_columns` adds, in the order of every table. A title stands
more than once if tables differ in the place or the words of its column."""


def list_error_run_columns(table: RunTable) -> list[RunColumn]:
    """Returns the columns of the error metrics alone."""
    return [_error_column(metric, table) for metric in list_error_columns(table)]


def list_run_columns(table: RunTable, titles: Mapping[str, str] | None = None) -> list[RunColumn]:
    """Returns the columns of a table: the columns of the error metrics, followed by the entries of `RUN_COLUMNS`.

    Args:
        titles: Titles that replace the default titles, by default title. A column with the title "" is left out.
    """
    columns = [*list_error_run_columns(table), *(column for column in RUN_COLUMNS if table in column.tables)]
    new_titles = {column.title: column.title for column in columns} | dict(titles or {})
    return [replace(column, title=new_titles[column.title]) for column in columns if new_titles[column.title]]
