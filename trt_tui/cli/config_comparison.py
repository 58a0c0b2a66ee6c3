"""The comparison of several configs: `compare --config A --config B`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trt_tui.cli.headless_session import measure_comparison, open_session
from trt_tui.cli.output_files import write_report
from trt_tui.cli.streams import print_messages
from trt_tui.core.lowering.network_rewrite import no_lower_precision_reason, reduces_precision
from trt_tui.core.measure.engine_agreement import KernelDiff, diff_kernels
from trt_tui.core.measure.results import ConfigResults, RunKind
from trt_tui.core.measure.target import TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig, list_config_differences
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.report.document import Section, Table
from trt_tui.core.report.json_record import exported_run_record, target_outcome_record
from trt_tui.core.report.run_columns import RunRow, list_run_columns
from trt_tui.errors import ExitCode, InputError
from trt_tui.formatting import NOT_MEASURED, SIMULATED_MARK
from trt_tui.options import Options
from trt_tui.session.results import RECORD_KEYS, RESULT_SUFFIXES, outcome_texts
from trt_tui.session.session import Session

_MAX_LISTED_KERNELS = 12
"""The maximum number of listed kernels of each kind."""


@dataclass(frozen=True)
class ComparedConfig:
    """A config of a comparison, with its measured results and target results.

    Attributes:
        reduces_no_precision: True if all layers of the config run in FP32.
    """

    name: str
    config: PrecisionConfig
    measured: ConfigResults
    reduces_no_precision: bool
    results: Mapping[RunKind, TargetOutcome]
    setup_text: str
    target_misses: Mapping[RunKind, str]


def require_reduced_precision(session: Session, run: str, target: str) -> None:
    """Checks that a run reduces the precision of a layer, so that its target can be missed.

    Raises:
        InputError: All layers of the run are in FP32.
    """
    outline = session.opened_network.outline
    if not reduces_precision(outline, session.get_run_config(run)):
        reason = no_lower_precision_reason(outline) or "every layer of the config is in FP32"
        raise InputError(
            f"{run} meets {target} only because all layers are in FP32",
            reason,
            "No result here shows the cost of lower precision.",
        )


def require_measurable_target(session: Session, config: PrecisionConfig, target: str) -> None:
    """Checks that the value that a target bounds was measured for a config.

    Raises:
        InputError: The value was not measured.
    """
    if RunKind.SIMULATED_CONFIG not in session.config_target_outcomes(config):
        kind = session.target.kind if session.target is not None else "target"
        raise InputError(
            f"{target} cannot be checked",
            f"{kind} was not measured",
            "A metric needs --metric and labels, agreement a classifier, sqnr and cosine a float output.",
        )


def compare_configs(
    options: Options,
    config_paths: Sequence[str],
    target: str | None,
    force: bool,
    *,
    build_engines: bool,
    json_path: str | None,
    markdown_path: str | None,
) -> ExitCode:
    """Measures each config on the same samples, and writes the results and the layers in which the configs differ.

    Returns:
        `ExitCode.TOLERANCE_NOT_MET` if a config misses the target of the command line, or its own.

    Raises:
        InputError: The command line names a target, but no config reduces a precision, or a config has no value for it.
    """
    compared_configs: list[ComparedConfig] = []
    for index, path in enumerate(config_paths):
        measure = partial(measure_comparison, target=target, build_engines=build_engines)
        with open_session(options, measure, config_path=path, target=target, force=force) as session:
            name = Path(path).name if [Path(entry).name for entry in config_paths].count(Path(path).name) == 1 else path
            is_reduced = reduces_precision(session.opened_network.outline, session.config)
            if target is not None and is_reduced:
                require_measurable_target(session, session.config, target)
            compared_configs.append(
                ComparedConfig(
                    name,
                    session.config,
                    session.get_run_results("config"),
                    not is_reduced,
                    session.config_target_outcomes(session.config),
                    session.setup_text,
                    session.missed_target_reasons(session.config),
                )
            )
            if index < len(config_paths) - 1:
                continue
            if target is not None and all(entry.reduces_no_precision for entry in compared_configs):
                require_reduced_precision(session, "config", target)
            _write_report(session, compared_configs, json_path, markdown_path)
    for entry in compared_configs:
        for kind, reason in entry.target_misses.items():
            print_messages(f"Target not met by {entry.name}{RESULT_SUFFIXES[kind]}: {reason}")
    return ExitCode.TOLERANCE_NOT_MET if any(entry.target_misses for entry in compared_configs) else ExitCode.DONE


def _write_report(
    session: Session, compared_configs: Sequence[ComparedConfig], json_path: str | None, markdown_path: str | None
) -> None:
    """Prints and writes the report of a comparison of configs."""
    outline = session.opened_network.outline
    sections = [
        Section("", [list(filter(None, [session.fp32_miss_text]))]),
        *_comparison_sections(outline, compared_configs),
    ]
    write_report(
        f"Configs of {outline.name}",
        [f"{entry.name}: {entry.setup_text}" for entry in compared_configs],
        sections,
        _comparison_record(outline, compared_configs),
        json_path,
        markdown_path,
    )


def _comparison_sections(outline: NetworkOutline, compared_configs: Sequence[ComparedConfig]) -> list[Section]:
    """Returns the report: the results, a line for each result with reasons, and the differences of layers and
    kernels."""
    reason_lines = [
        f"{compared_config.name}{RESULT_SUFFIXES[kind]}: {result.text}"
        for compared_config in compared_configs
        for kind, result in compared_config.results.items()
        if result.reasons
    ]
    differences = _config_difference_rows(outline, compared_configs)
    kernels = [
        [
            f"{compared_configs[0].name} and {name}: kernels ({change.source}): {change.kernels_before} and "
            f"{change.kernels_after}, {len(change.removed)} lost, {len(change.added)} gained",
            *change.diff_lines(_MAX_LISTED_KERNELS),
        ]
        for name, change in _list_kernel_changes(compared_configs)
    ]
    return [
        Section("Accuracy", [Table(_config_table_rows(compared_configs)), reason_lines]),
        Section(
            "Layers that differ",
            [Table(differences, len(differences[0])) if len(differences) > 1 else ["They are the same."]],
        ),
        Section("Kernels", kernels),
    ]


def _config_table_rows(compared_configs: Sequence[ComparedConfig]) -> list[list[str]]:
    """Returns the table of compared configs: a header, and a row for each config."""
    run_rows = [
        RunRow(entry.measured.accuracy, SIMULATED_MARK, entry.measured.engine_result, entry.measured.exported_run)
        for entry in compared_configs
    ]
    builders = dict.fromkeys(row.engine.builder_text for row in run_rows if row.engine is not None)
    metric_names = (next(iter(row.accuracy.metric), "") for row in run_rows if row.accuracy is not None)
    sample_counts = {row.accuracy.samples for row in run_rows if row.accuracy is not None}
    columns = [
        column
        for column in list_run_columns(
            "configs",
            {
                "metric": next(filter(None, metric_names), ""),
                "engine": f"built by {' and '.join(builders)}",
                "samples": "samples" if len(sample_counts) > 1 else "",
            },
        )
        if column.source == "accuracy" or any(getattr(row, column.source) is not None for row in run_rows)
    ]
    kernel_counts: dict[str, str] = {}
    for name, change in _list_kernel_changes(compared_configs):
        kernel_counts |= {compared_configs[0].name: str(change.kernels_before), name: str(change.kernels_after)}
    rows = [
        ["config", "raised", *(column.title for column in columns), *(["kernels"] if kernel_counts else []), "target"]
    ]
    for compared_config, run_row in zip(compared_configs, run_rows, strict=True):
        raised_count = sum(move.group_precision is not None for move in compared_config.config.moves.values())
        kernel_cells = [kernel_counts.get(compared_config.name, NOT_MEASURED)] if kernel_counts else []
        rows.append(
            [
                compared_config.name,
                str(raised_count),
                *(column.text(run_row) or NOT_MEASURED for column in columns),
                *kernel_cells,
                "all in FP32"
                if compared_config.reduces_no_precision
                else " ".join(outcome_texts(compared_config.results)),
            ]
        )
    return rows


def _config_difference_rows(outline: NetworkOutline, compared_configs: Sequence[ComparedConfig]) -> list[list[str]]:
    """Returns the table of the layers and tensors in which a config differs from the first config, with a header."""
    titles_by_group = group_titles(outline)
    changed_values: dict[str, dict[int, str]] = {}
    first_values: dict[str, str] = {}
    for index, compared_config in enumerate(compared_configs[1:], 1):
        for line in list_config_differences(compared_configs[0].config, compared_config.config, outline):
            subject_title = line.move_class.difference_title(titles_by_group.get(line.subject, line.subject))
            first_values[subject_title] = line.first_text
            changed_values.setdefault(subject_title, {})[index] = line.second_text
    rows = [["differs", *(compared_config.name for compared_config in compared_configs)]]
    for subject_title, values in changed_values.items():
        rows.append(
            [
                subject_title,
                first_values[subject_title],
                *(values.get(index, first_values[subject_title]) for index in range(1, len(compared_configs))),
            ]
        )
    return rows


def _list_kernel_changes(compared_configs: Sequence[ComparedConfig]) -> list[tuple[str, KernelDiff]]:
    """Returns the differences between the kernels of the first config and of each other config, with the other's name.

    Configs without known kernels are omitted.
    """
    changes = [
        (compared_config.name, diff_kernels(compared_configs[0].measured, compared_config.measured))
        for compared_config in compared_configs[1:]
    ]
    return [(name, change) for name, change in changes if change is not None]


def _comparison_record(outline: NetworkOutline, compared_configs: Sequence[ComparedConfig]) -> dict[str, Any]:
    """Builds the JSON record of the tables and kernels of a comparison; unknown values are null."""
    config_records = []
    for compared_config in compared_configs:
        accuracy, engine = compared_config.measured.accuracy, compared_config.measured.engine_result
        errors = accuracy.worst_errors if accuracy is not None else None
        outcomes = compared_config.results
        results = {RECORD_KEYS[kind]: target_outcome_record(result)["result"] for kind, result in outcomes.items()}
        config_records.append(
            {
                "name": compared_config.name,
                "sqnr_db": errors.sqnr_db if errors is not None else None,
                "output": accuracy.worst_output[0]
                if accuracy is not None and accuracy.worst_output is not None
                else None,
                "metric": dict(accuracy.metric) if accuracy is not None else {},
                "met": all(result.passes for result in outcomes.values()) if outcomes else None,
                "results": results,
                "latency_ms": engine.latency_ms[0] if engine is not None and engine.latency_ms else None,
                "engine_bytes": engine.engine_bytes if engine is not None else None,
                "builder": engine.builder_text if engine is not None else None,
                "exported_network": exported_run_record(compared_config.measured.exported_run)
                if compared_config.measured.exported_run is not None
                else None,
            }
        )
    header, *rows = _config_difference_rows(outline, compared_configs)
    return {
        "configs": config_records,
        "differ": [dict(zip(header, row, strict=True)) for row in rows],
        "kernels": {name: change.to_record() for name, change in _list_kernel_changes(compared_configs)},
    }
