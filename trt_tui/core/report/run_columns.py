"""Columns of tables with configs side by side: their titles, and what they say of a config's results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trt_tui.core.measure.error_metrics import ErrorMetric, list_error_columns
from trt_tui.core.measure.results import Accuracy, ConfigResults, worst_value_text
from trt_tui.formatting import (
    EXPORTED_NETWORK,
    NOT_MEASURED,
    SIMULATED_MARK,
    megabytes_text,
    metric_text,
    number_text,
)


@dataclass(frozen=True)
class RunColumn:
    """One column: its title and its cell, a dash if nothing was measured."""

    title: str
    text: Callable[[ConfigResults], str]


def _error_column(metric: ErrorMetric) -> RunColumn:
    return RunColumn(metric.column_heading, lambda results: worst_value_text(results.accuracy, metric, SIMULATED_MARK))


def _metric_column(name: str) -> RunColumn:
    return RunColumn(name, lambda results: NOT_MEASURED if results.accuracy is None else metric_text(
        results.accuracy.metric.get(name), SIMULATED_MARK))


def _latency_text(results: ConfigResults) -> str:
    engine = results.engine_result
    return NOT_MEASURED if engine is None or engine.latency_ms is None else number_text(engine.latency_ms[0])


def _size_text(results: ConfigResults) -> str:
    engine = results.engine_result
    return NOT_MEASURED if engine is None or engine.engine_bytes is None else megabytes_text(engine.engine_bytes)


def _worst_error_text(accuracy: Accuracy | None) -> str:
    return worst_value_text(accuracy, list_error_columns("configs")[0])


def _exported_text(results: ConfigResults) -> str:
    accuracy = results.exported_run.accuracy if results.exported_run is not None else None
    return _worst_error_text(accuracy) if accuracy is not None else "not executed"


ENGINE_COLUMNS = (RunColumn("ms", _latency_text), RunColumn("MB", _size_text))
"""Latency and size of the config's engine."""


def list_simulated_columns(metric_names: Sequence[str]) -> list[RunColumn]:
    """Returns the columns of what was simulated: the errors of the worst output, and the metrics by name."""
    return [*map(_error_column, list_error_columns("configs")), *map(_metric_column, metric_names)]


def list_run_columns(runs: Sequence[ConfigResults]) -> list[RunColumn]:
    """Returns all columns: those of engines and of exported networks if one of the runs has such a thing."""
    metric_names = dict.fromkeys(name for results in runs if results.accuracy is not None
                                 for name in list(results.accuracy.metric)[:1])
    builders = dict.fromkeys(results.engine_result.builder_text for results in runs
                             if results.engine_result is not None)
    columns = list_simulated_columns(list(metric_names))
    if builders:
        columns += [RunColumn(f"built by {' and '.join(builders)}", lambda results: _worst_error_text(
            results.engine_result.accuracy if results.engine_result is not None else None)), *ENGINE_COLUMNS]
    return columns + [RunColumn(EXPORTED_NETWORK, _exported_text)
                      ] * any(results.exported_run is not None for results in runs)
