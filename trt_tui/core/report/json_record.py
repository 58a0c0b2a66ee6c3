"""Comparisons as the JSON record of schema ``comparison-v1``. Keys of values that were not measured are absent."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trt_tui.core.engines.fallback_ladder import BuildAttempt
from trt_tui.core.engines.group_implementations import Preview
from trt_tui.core.measure.engine_agreement import unused_qdq_record
from trt_tui.core.measure.error_metrics import (
    CONFIDENCE,
    ERROR_METRICS,
    AccuracyIntervals,
    ConfidenceInterval,
    ErrorMetrics,
    finite_or_none,
)
from trt_tui.core.measure.results import (
    Accuracy,
    Cause,
    ConfigResults,
    EngineErrors,
    EngineResult,
    ExportedRun,
    OutputErrors,
    ProfileLatency,
    RunKind,
    RunResult,
)
from trt_tui.core.measure.run_sources import ReferenceInfo
from trt_tui.core.measure.stages import StageResult
from trt_tui.core.measure.target import TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import FP16_MAX
from trt_tui.core.report import run_columns
from trt_tui.core.report.run_columns import RunRow
from trt_tui.formatting import EXPORTED, executed_run_key

FORMAT = "trt-tui/comparison"
VERSION = 1


def drop_missing_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record without the unmeasured values, which are None."""
    return {key: value for key, value in record.items() if value is not None}


def error_metrics_record(error_metrics: ErrorMetrics) -> dict[str, Any]:
    """Returns the JSON record of the error metrics of one tensor.

    An exact copy has ``sqnr_db`` null and cosine 1. A value that is not finite is null.
    """
    is_for_integers_only = error_metrics.mismatch is not None
    values = {
        metric: error_metrics.recorded_value(metric)
        for metric in ERROR_METRICS.values()
        if metric.is_for_integers_only is is_for_integers_only
    }
    record: dict[str, Any] = {
        metric.key: finite_or_none(value)
        for metric, value in values.items()
        if value is not None or metric.is_always_recorded
    }
    return record if is_for_integers_only else {**record, "nan": error_metrics.nan, "inf": error_metrics.inf}


def output_errors_record(output_errors: OutputErrors) -> dict[str, Any]:
    """Returns the JSON record of the errors of a judged output, with its worst sample."""
    record = error_metrics_record(output_errors.errors)
    if (worst := output_errors.worst_sample) is not None:
        record["worst_sample"] = {
            "index": worst.index,
            **({"file": worst.file} if worst.file else {}),
            "sqnr_db": finite_or_none(output_errors.worst_sqnr_db),
        }
    if output_errors.variation_db is not None:
        record["variation_db"] = finite_or_none(output_errors.variation_db)
    if output_errors.sqnr_against_variation_db is not None:
        record["varying_sqnr_db"] = finite_or_none(output_errors.sqnr_against_variation_db)
    return record


def target_outcome_record(target_outcome: TargetOutcome | None) -> dict[str, Any]:
    """Returns the JSON record of an outcome against the targets; empty if the outcome is unknown."""
    return (
        {"result": {"outcome": target_outcome.outcome.value, "reasons": list(target_outcome.reasons)}}
        if target_outcome is not None
        else {}
    )


_LATENCY_KEYS = ("median", "min", "max")


def _column_record(run_row: RunRow) -> dict[str, Any]:
    """Returns the values of the columns that have a key in records, by that key."""
    values = {column.key: column.value(run_row) for column in run_columns.RUN_COLUMNS if column.key}
    return {
        key: dict(zip(_LATENCY_KEYS, value, strict=True)) if key.endswith("_ms") else value
        for key, value in values.items()
        if value is not None
    }


def accuracy_record(accuracy: Accuracy) -> dict[str, Any]:
    """Returns the JSON record of an accuracy: judged outputs, metric, and number of samples."""
    record: dict[str, Any] = {
        "outputs": {name: output_errors_record(entry) for name, entry in accuracy.outputs.items()},
        "samples": accuracy.samples,
        **_column_record(RunRow(accuracy)),
    }
    if accuracy.compared_metric:
        record |= {
            "common_metric_parts": dict(accuracy.compared_metric),
            "reference_metric": next(iter(accuracy.reference_metric.values()), None),
        }
    return record | drop_missing_values(
        {
            "intervals": accuracy_intervals_record(accuracy.intervals, next(iter(accuracy.metric), ""))
            if accuracy.intervals is not None
            else None,
            "caveats": [{"kind": entry.kind, "text": entry.text} for entry in accuracy.caveats] or None,
        }
    )


def accuracy_intervals_record(intervals: AccuracyIntervals, metric_name: str) -> dict[str, Any]:
    """Returns the JSON record of confidence intervals, each ``[low, high]``. An end that is not finite is null.

    Args:
        metric_name: The name of the headline of the metric, whose intervals are recorded; "" without a metric.
    """

    def interval_ends(intervals_by_kind: Mapping[str, ConfidenceInterval | None]) -> dict[str, list[float | None]]:
        return {
            kind: [finite_or_none(entry.low), finite_or_none(entry.high)]
            for kind, entry in intervals_by_kind.items()
            if entry is not None
        }

    return {
        "level": CONFIDENCE,
        "outputs": {name: interval_ends(kinds) for name, kinds in intervals.outputs.items()},
        "worst": interval_ends(intervals.worst_output),
        **interval_ends(
            {
                "agreement": intervals.agreement_interval,
                "metric": intervals.metric.get(metric_name),
                "metric_less_fp32": intervals.metric_gains.get(metric_name),
            }
        ),
    }


def engine_result_record(engine_result: EngineResult) -> dict[str, Any]:
    """Returns the JSON record of an engine with its measured values; if there is no engine, the reason."""
    accuracy, simulated = engine_result.accuracy, engine_result.simulated_accuracy
    report, has_other_precisions = engine_result.engine_report, not engine_result.is_built_as_requested
    return drop_missing_values(
        {
            "source": "engine",
            "backend": engine_result.builder_name,
            **(accuracy_record(accuracy) if accuracy is not None else {}),
            **_column_record(RunRow(engine=engine_result)),
            "profiles": list(map(_profile_record, engine_result.profile_latencies)) or None,
            "rungs": list(map(build_attempt_record, engine_result.attempts)) or None,
            "as_asked": False if has_other_precisions else None,
            "made_otherwise": {name: precision.value for name, precision in engine_result.other_precisions.items()}
            if has_other_precisions and not engine_result.failure_reason
            else None,
            "made_simulated": accuracy_record(simulated) if simulated is not None else None,
            "failed": engine_result.failure_reason or None,
            "computed_in": {
                label: drop_missing_values({"layers": count, "time": share})
                for label, (count, share) in report.precision_shares().items()
            }
            if report is not None
            else None,
            "engine_layers": {
                name: {
                    "precision": implementation.precision.value if implementation.precision is not None else None,
                    **drop_missing_values(
                        {"region": implementation.in_fused_region or None, "ms": implementation.latency_ms}
                    ),
                }
                for name, implementation in engine_result.implementations.items()
            }
            if report is not None
            else None,
            "builds": [
                drop_missing_values(
                    {
                        "errors": error_metrics_record(build.worst_errors) if build.worst_errors is not None else None,
                        "latency_ms": build.latency_ms[0] if build.latency_ms is not None else None,
                        "build_s": build.build_s,
                        "engine_bytes": build.engine_bytes,
                        "outputs_db": {name: output.errors.sqnr_db for name, output in build.accuracy.outputs.items()}
                        or None
                        if build.accuracy is not None
                        else None,
                        "different_kernel": kernel or None,
                    }
                )
                for build, kernel in zip(engine_result.repeated_builds, engine_result.different_kernels, strict=True)
            ]
            or None,
            "rows_differ": list(engine_result.unequal_outputs) or None,
            "remarks": list(engine_result.builder_warnings) or None,
            **(_engine_errors_record(engine_result.engine_errors) if engine_result.engine_errors is not None else {}),
            "at_shapes": {
                name: accuracy_record(shape_accuracy) for name, shape_accuracy in engine_result.shape_accuracies.items()
            }
            or None,
        }
    )


def list_run_record_keys(results_by_config: Mapping[str, ConfigResults]) -> dict[tuple[str, RunKind], str]:
    """Returns the names of all runs in the record, in its order, by the name of the config and the kind of the run."""
    keys: dict[tuple[str, RunKind], str] = {}
    for kind in RunKind:
        for name in (name for name, results in results_by_config.items() if kind in results.runs):
            is_first = not any(other_kind is kind for _, other_kind in keys)
            keys[name, kind] = {
                RunKind.TYPED_NETWORK: EXPORTED if is_first else f"{name}-{EXPORTED}",
                RunKind.EXPORTED_FILE: executed_run_key(name),
                RunKind.BUILT_ENGINE: f"{name}-engine",
            }.get(kind, name)
    return keys


def run_result_record(run_result: RunResult) -> dict[str, Any]:
    """Returns the JSON record of a run, by the class of its result."""
    if isinstance(run_result, EngineResult):
        return engine_result_record(run_result)
    if isinstance(run_result, ExportedRun):
        return exported_run_record(run_result)
    return {"source": "simulated", **(accuracy_record(run_result.accuracy) if run_result.accuracy is not None else {})}


def exported_run_record(exported_run: ExportedRun) -> dict[str, Any]:
    """Returns the JSON record of an exported file's execution; if it was not executed, the reason.

    The record has no latency and no size.
    """
    return drop_missing_values(
        {
            "source": exported_run.source_name_in_records,
            "backend": exported_run.executor_name,
            **(accuracy_record(exported_run.accuracy) if exported_run.accuracy is not None else {}),
            "options": exported_run.options or None,
            "failed": exported_run.missing_reason or None,
        }
    )


def _profile_record(profile_latency: ProfileLatency) -> dict[str, Any]:
    """Returns the JSON record of an optimization profile: its shapes, and the engine's speed at the optimal shapes."""
    times = {"latency_ms": profile_latency.latency_ms, "cuda_graph_ms": profile_latency.cuda_graph_ms}
    return drop_missing_values(
        {
            "shapes": {
                name: dict(zip(("min", "opt", "max"), map(list, values), strict=True))
                for name, values in profile_latency.shapes.items()
            },
            "samples": profile_latency.batch_samples,
            **{name: dict(zip(_LATENCY_KEYS, values, strict=True)) for name, values in times.items() if values},
            "samples_per_s": profile_latency.samples_per_s,
            "missing": profile_latency.missing_reason or None,
        }
    )


def _engine_errors_record(engine_errors: EngineErrors) -> dict[str, Any]:
    """Returns the JSON record of the errors inside an engine: at the groups, and the way in which they were read."""
    read: dict[str, Any] = {
        "how": engine_errors.source,
        "samples": engine_errors.samples,
        "hidden": list(engine_errors.hidden_groups),
    }
    if engine_errors.missing_reason:
        read["missing"] = engine_errors.missing_reason
    if engine_errors.accuracy is not None:
        read["marked_engine"] = accuracy_record(engine_errors.accuracy)
    layers = {
        name: {"group": name, "accumulated": error_metrics_record(errors)}
        for name, errors in engine_errors.group_errors.items()
    }
    return {"layers_read": read, **({"layers": layers} if layers else {})}


def stage_record(stage_result: StageResult, accuracy: Accuracy | None) -> dict[str, Any]:
    """Returns the JSON record of a stage on the way to production.

    The record compares the stage with the reference, with the previous stage and with others.
    """
    run, previous, engine = stage_result.run, stage_result.accuracy_to_previous, stage_result.engine_result
    return drop_missing_values(
        {
            "name": run.name,
            "kind": run.kind.value,
            "cause": stage_result.effect_text,
            "file": run.file_path or None,
            **(accuracy_record(accuracy) if accuracy is not None else {}),
            "before": accuracy_record(previous) if previous is not None else None,
            "beside": {name: accuracy_record(entry) for name, entry in stage_result.other_accuracies} or None,
            "engine": engine_result_record(replace(engine, accuracy=None)) if engine is not None else None,
            "inputs": {
                entry.input_name: {
                    **error_metrics_record(entry.errors),
                    "same": entry.is_equal_except_rounding,
                    "said": entry.description,
                }
                for entry in stage_result.input_differences
            }
            or None,
            "failed": run.unavailable_reason or None,
        }
    )


def build_attempt_record(build_attempt: BuildAttempt) -> dict[str, Any]:
    """Returns the JSON record of one build attempt: its changes to the requested config, and the reason if it failed."""
    return drop_missing_values(
        {
            "rung": build_attempt.name,
            "said": build_attempt.changes_text,
            "raised": {name: precision.value for name, precision in build_attempt.raised_groups.items()} or None,
            "let_go": list(build_attempt.unconstrained) or None,
            "failed": build_attempt.failure_reason or None,
        }
    )


def preview_record(network: NetworkOutline, config: PrecisionConfig, preview: Preview) -> dict[str, Any]:
    """Returns the JSON record of a preview, with the groups that the builder would not run in the requested precision."""
    return {
        "builder": "TensorRT-RTX",
        "release": preview.builder_release,
        "gpu": f"SM{preview.compute_capability[0]}{preview.compute_capability[1]}",
        "seconds": round(preview.preview_s, 3),
        "kernels": len(preview.kernels),
        "groups": len(network.groups),
        "not_as_asked": list(preview.find_groups_in_unrequested_precision(network, config)),
        **unused_qdq_record(network, config, preview),
        **({"remarks": list(preview.builder_warnings)} if preview.builder_warnings else {}),
    }


def config_results_record(network: NetworkOutline, config_results: ConfigResults) -> dict[str, Any]:
    """Returns the JSON record of the results of one config, by layer and by group."""
    record: dict[str, Any] = {"source": "simulated"}
    if config_results.accuracy is not None:
        record.update(accuracy_record(config_results.accuracy))
    layers: dict[str, Any] = {}
    for group in network.groups:
        errors = config_results.group_errors.get(group.name)
        if errors is None:
            continue
        entry: dict[str, Any] = {
            "precision": errors.precision.value,
            "group": group.name,
            **{
                key: error_metrics_record(metrics)
                for key, metrics in (("accumulated", errors.accumulated), ("isolated", errors.isolated))
                if metrics is not None
            },
        }
        if errors.fp16_over is not None:
            entry["fp16_range"] = drop_missing_values(
                {
                    "state": errors.fp16_state,
                    "over": errors.fp16_over,
                    "under": errors.fp16_under,
                    "overflow": errors.fp16_finding if errors.has_overflow else None,
                }
            )
            if errors.fp16_largest:
                entry["fp16_range"] |= {"headroom": FP16_MAX / errors.fp16_largest, "at": errors.fp16_largest_layer}
        if errors.warning_text:
            entry["warning"] = errors.warning_text
        for name in group.layers:
            # Errors are measured at the last computed tensor of a group. Its other layers have only the precision.
            at_tail = group.final_tensor in network.get_layer(name).outputs
            layers[name] = entry if at_tail else {"precision": errors.precision.value, "group": group.name}
            if name in errors.weight_sqnr_db:
                layers[name]["weight"] = {"sqnr_db": errors.weight_sqnr_db[name]}
    groups: dict[str, dict[str, Any]] = {}
    for name in (group.name for group in network.groups if group.name in config_results.shares):
        share = config_results.shares[name]
        groups[name] = {
            "owns": finite_or_none(share.fraction),
            **drop_missing_values({"samples": share.samples or None, "owns_unknown": share.unknown_reason or None}),
        }
        if share.half_width is not None:
            groups[name]["owns_margin"] = finite_or_none(share.half_width)
        if share.sqnr_if_raised_db is not None:
            groups[name]["impact_kept"] = {"sqnr_db": share.sqnr_if_raised_db}
    return record | drop_missing_values({"layers": layers or None, "groups": groups or None})


def cause_record(cause: Cause) -> dict[str, str]:
    """Returns the JSON record of a cause of the loss at a group."""
    return {"kind": cause.kind, "cause": cause.sentence, "evidence": cause.evidence, "remedy": cause.remedy}


def comparison_record(
    network: NetworkOutline,
    model_sha256: str,
    data_source: str,
    sample_count: int,
    backend: Mapping[str, str],
    results_by_config: Mapping[str, ConfigResults],
    reference_metric: Mapping[str, float] | None = None,
    reference_metric_samples: int = 0,
    reference_info: ReferenceInfo | None = None,
) -> dict[str, Any]:
    """Returns the JSON record of a whole comparison, in schema ``comparison-v1``.

    An engine is listed as a separate run, in addition to the simulated run of its config.

    Args:
        data_source: The source of the judged samples.
        sample_count: Their number.
        backend: The backend of the reference with its version and provider, by the keys of the record.
        reference_metric: The metric of the reference and its parts, headline first, on the samples that judge all runs;
            ``reference_metric_samples`` is their number.
        reference_info: The reference; None if it is FP32 of the network itself.
    """
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": {
            "name": network.name,
            "structure_sha256": network.structure_sha256,
            "sha256": model_sha256,
            "nodes": len(network.layers),
        },
        "data": data_source,
        "samples": sample_count,
        "reference": {**backend, "precision": "fp32"},
        "runs": {
            key: config_results_record(network, results_by_config[name])
            if kind is RunKind.SIMULATED_CONFIG
            else run_result_record(results_by_config[name].runs[kind])
            for (name, kind), key in list_run_record_keys(results_by_config).items()
        },
    }
    if reference_metric:
        record["reference"] |= {
            "metric": next(iter(reference_metric.values())),
            "metric_parts": dict(reference_metric),
            "metric_samples": reference_metric_samples,
        }
    if reference_info is not None:
        record["reference"] |= {
            "source": reference_info.name,
            "only_there": list(reference_info.missing_in_network),
            "only_here": list(reference_info.missing_in_reference),
        }
    if network.reference_weights is not None:
        record["reference"]["weights"] = {
            "of": network.weights_source_name or network.name,
            "text": network.reference_weights_text,
        }
    return record
