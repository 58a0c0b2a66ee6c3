"""Comparisons as the JSON record of schema ``comparison-v1``: keys that were not measured are absent, never zero."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from trt_tui.core.engines.preview import Preview
from trt_tui.core.engines.rungs import Rung
from trt_tui.core.measure.bootstrap import LEVEL, Interval, Spread
from trt_tui.core.measure.comparison import (
    EngineErrors,
    EngineResult,
    Errors,
    ExportedRun,
    Measured,
    OneBuild,
    OutputErrors,
    ProfileTimes,
    Verdict,
)
from trt_tui.core.measure.reference import Named
from trt_tui.core.measure.stages import Stage
from trt_tui.core.measure.target_result import TargetResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import FP16_MAX
from trt_tui.words import EXPORTED, executed_key

FORMAT = "trt-tui/comparison"
VERSION = 1


class _Data(Protocol):
    @property
    def whatif(self) -> int: ...
    @property
    def source(self) -> str: ...


class _Backend(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def device(self) -> str: ...


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def errors_record(errors: Errors) -> dict[str, Any]:
    """One tensor's errors: an exact copy has ``sqnr_db`` null and cosine 1; what is not finite is null."""
    if errors.mismatch is not None:
        return {"mismatch": errors.mismatch}
    record: dict[str, Any] = {"sqnr_db": _number(errors.sqnr_db), "cosine": _number(errors.cosine)}
    for name in ("mse", "max_abs", "mean_abs"):
        value = getattr(errors, name)
        if value is not None:
            record[name] = _number(value)
    record["nan"], record["inf"] = errors.nan, errors.inf
    return record


def output_record(output: OutputErrors) -> dict[str, Any]:
    """A judged output's errors and its worst sample."""
    record = errors_record(output.errors)
    if output.worst_index is not None:
        record["worst_sample"] = {"index": output.worst_index, "sqnr_db": _number(output.worst_sqnr_db)}
    if output.variation_db is not None:
        record["variation_db"] = _number(output.variation_db)
    if output.varying_sqnr_db is not None:
        record["varying_sqnr_db"] = _number(output.varying_sqnr_db)
    return record


def result_record(result: TargetResult | None) -> dict[str, Any]:
    """Whether the targets are met, under the key of a run's record; empty if nobody can say."""
    return {"result": {"outcome": result.outcome.value, "reasons": list(result.reasons)}} if result is not None else {}


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """A verdict's judged outputs, the metric, and how many samples they were taken on."""
    record: dict[str, Any] = {"outputs": {name: output_record(one) for name, one in verdict.outputs.items()},
                              "samples": verdict.samples}
    if verdict.metric:
        record["metric"] = verdict.headline
        record["metric_parts"] = dict(verdict.metric)
    if verdict.agreement is not None:
        record["agreement"] = verdict.agreement
    if verdict.spread is not None:
        record["intervals"] = spread_record(verdict.spread)
    if verdict.caveats:
        record["caveats"] = [{"kind": one.kind, "text": one.text} for one in verdict.caveats]
    return record


def spread_record(spread: Spread) -> dict[str, Any]:
    """The intervals of a verdict's figures, each ``[low, high]``; an end that is not finite is null."""
    def ends(kinds: Mapping[str, Interval | None]) -> dict[str, list[float | None]]:
        return {kind: [_number(one.low), _number(one.high)] for kind, one in kinds.items() if one is not None}

    return {"level": LEVEL, "outputs": {name: ends(kinds) for name, kinds in spread.outputs.items()},
            "worst": ends(spread.worst),
            **ends({"agreement": spread.agreement, "metric": spread.metric, "metric_less_fp32": spread.gain})}


def engine_record(engine: EngineResult) -> dict[str, Any]:
    """An engine and its figures; if there is none, why not."""
    record: dict[str, Any] = {"source": "engine", "backend": engine.backend}
    if engine.device:
        record["gpu"] = engine.device
    if engine.verdict is not None:
        record.update(verdict_record(engine.verdict))
    if engine.latency_ms is not None:
        record["latency_ms"] = dict(zip(("median", "min", "max"), engine.latency_ms, strict=True))
    if engine.graph_ms is not None:
        record["cuda_graph_ms"] = dict(zip(("median", "min", "max"), engine.graph_ms, strict=True))
    if engine.profiles:
        record["profiles"] = [_profile_record(one) for one in engine.profiles]
    if engine.bytes is not None:
        record["engine_bytes"] = engine.bytes
    if engine.device_memory is not None:
        record["device_memory_bytes"] = engine.device_memory
    if engine.build_s is not None:
        record["build_s"] = engine.build_s
    if engine.origin:
        record["built_from"] = engine.origin
    if engine.rungs:
        record["rungs"] = [rung_record(rung) for rung in engine.rungs]
    if not engine.as_asked:
        record["as_asked"] = False
    if not engine.as_asked and not engine.failed:
        record["made_otherwise"] = {name: precision.value for name, precision in engine.otherwise.items()}
    if engine.simulated is not None:
        record["made_simulated"] = verdict_record(engine.simulated)
    if engine.failed:
        record["failed"] = engine.failed
    if engine.quick:
        record["quick"] = True
    if engine.report is not None:
        record["computed_in"] = {
            word: {"layers": count, **({"time": share} if share is not None else {})}
            for word, (count, share) in engine.report.shares().items()}
        record["engine_layers"] = {
            name: {"precision": made.precision.value if made.precision is not None else None,
                   **({"region": True} if made.region else {}), **({"ms": made.ms} if made.ms is not None else {})}
            for name, made in engine.made.items()}
    if engine.builds:
        record["builds"] = [_build_record(one) for one in engine.builds]
    if engine.rows_differ:
        record["rows_differ"] = list(engine.rows_differ)
    if engine.remarks:
        record["remarks"] = {name: list(told) for name, told in engine.remarks.items()}
    if engine.inside is not None:
        record |= _inside_record(engine.inside)
    for name, verdict in engine.shapes.items():
        record.setdefault("at_shapes", {})[name] = verdict_record(verdict)
    if engine.note:
        record["note"] = engine.note
    return record


def executed_record(executed: ExportedRun) -> dict[str, Any]:
    """Returns the execution of an exported file; if there is none, the reason. It has no latency and no size."""
    record: dict[str, Any] = {"source": executed.source, "backend": executed.executor}
    if executed.accuracy is not None:
        record.update(verdict_record(executed.accuracy))
    if executed.missing:
        record["failed"] = executed.missing
    return record


def _profile_record(profile: ProfileTimes) -> dict[str, Any]:
    """One optimization profile: its shapes and how fast the engine is at the usual one."""
    ends = ("median", "min", "max")
    times = {"latency_ms": profile.latency_ms, "cuda_graph_ms": profile.graph_ms}
    told = {"samples_per_s": profile.samples_per_s, "missing": profile.missing or None}
    return {"shapes": {name: dict(zip(("min", "opt", "max"), map(list, one), strict=True))
                       for name, one in profile.shapes.items()}, "samples": profile.samples,
            **{name: dict(zip(ends, one, strict=True)) for name, one in times.items() if one is not None},
            **{name: value for name, value in told.items() if value is not None}}


def _build_record(build: OneBuild) -> dict[str, Any]:
    record = {"latency_ms": build.latency_ms, "build_s": build.build_s, "engine_bytes": build.bytes}
    return {**({"errors": errors_record(build.errors)} if build.errors is not None else {}),
            **{name: value for name, value in record.items() if value is not None}}


def _inside_record(inside: EngineErrors) -> dict[str, Any]:
    """Errors inside an engine: at the groups, and how they were read."""
    read: dict[str, Any] = {"how": inside.how, "samples": inside.samples, "hidden": list(inside.hidden)}
    if inside.missing:
        read["missing"] = inside.missing
    if inside.verdict is not None:
        read["marked_engine"] = verdict_record(inside.verdict)
    layers = {name: {"group": name, "accumulated": errors_record(one)} for name, one in inside.groups.items()}
    return {"layers_read": read, **({"layers": layers} if layers else {})}


def stage_record(stage: Stage, verdict: Verdict | None) -> dict[str, Any]:
    """A stage on the way to production: against what errors are taken against, the stage before, and others."""
    record: dict[str, Any] = {"name": stage.name, "kind": stage.kind, "cause": stage.cause}
    if stage.file:
        record["file"] = stage.file
    if verdict is not None:
        record.update(verdict_record(verdict))
    if stage.before is not None:
        record["before"] = verdict_record(stage.before)
    if stage.beside:
        record["beside"] = {name: verdict_record(one) for name, one in stage.beside}
    if stage.engine is not None:
        record["engine"] = engine_record(replace(stage.engine, verdict=None))
    if stage.inputs:
        record["inputs"] = {one.name: {**errors_record(one.errors), "same": one.same, "said": one.said}
                            for one in stage.inputs}
    if stage.failed:
        record["failed"] = stage.failed
    return record


def rung_record(rung: Rung) -> dict[str, Any]:
    """One try at a build: what was changed from what was asked, and why it failed."""
    record: dict[str, Any] = {"rung": rung.name, "said": rung.said}
    if rung.raised:
        record["raised"] = {name: precision.value for name, precision in rung.raised.items()}
    if rung.let_go:
        record["let_go"] = list(rung.let_go)
    if rung.failed:
        record["failed"] = rung.failed
    return record


def preview_record(network: Outline, config: PrecisionConfig, preview: Preview) -> dict[str, Any]:
    """How many groups of a config a builder would not run as asked, by what it says without a GPU."""
    return {"builder": "TensorRT-RTX", "release": preview.release, "gpu": f"SM{preview.target[0]}{preview.target[1]}",
            "seconds": round(preview.seconds, 3), "kernels": len(preview.kernels), "groups": len(network.groups),
            "not_as_asked": list(preview.otherwise(network, config)),
            **({"remarks": {name: list(told) for name, told in preview.remarks.items()}} if preview.remarks else {})}


def run_record(network: Outline, run: Measured) -> dict[str, Any]:
    """What was measured of one config, by layer and by group."""
    record: dict[str, Any] = {"source": "simulated"}
    if run.verdict is not None:
        record.update(verdict_record(run.verdict))
    layers: dict[str, Any] = {}
    for group in network.groups:
        errors = run.groups.get(group.name)
        if errors is None:
            continue
        entry: dict[str, Any] = {"precision": errors.precision.value, "group": group.name}
        if errors.accumulated is not None:
            entry["accumulated"] = errors_record(errors.accumulated)
        if errors.isolated is not None:
            entry["isolated"] = errors_record(errors.isolated)
        if errors.fp16_over is not None:
            entry["fp16_range"] = {"state": errors.fp16_state, "over": errors.fp16_over, "under": errors.fp16_under}
            if errors.fp16_largest:
                entry["fp16_range"] |= {"headroom": FP16_MAX / errors.fp16_largest, "at": errors.fp16_at}
        if errors.warning:
            entry["warning"] = errors.warning
        for name in group.layers:
            # Errors are measured at the group's last computed tensor; for its other layers only the precision is given.
            at_tail = group.tail in network.layer(name).outputs
            layers[name] = entry if at_tail else {"precision": errors.precision.value, "group": group.name}
    if layers:
        record["layers"] = layers
    groups: dict[str, Any] = {}
    for name in (group.name for group in network.groups if group.name in run.shares):
        share = run.shares[name]
        entry = {"owns": _number(share.owns)}
        if share.samples:
            entry["samples"] = share.samples
        if share.unknown:
            entry["owns_unknown"] = share.unknown
        if share.margin is not None:
            entry["owns_margin"] = _number(share.margin)
        if share.kept_db is not None:
            entry["impact_kept"] = {"sqnr_db": share.kept_db}
        if share.impact_db is not None:
            entry["impact"] = {"sqnr_db": share.impact_db}
        groups[name] = entry
    if groups:
        record["groups"] = groups
    return record


def comparison_record(network: Outline, sha256: str, data: _Data, backend: _Backend,
                      runs: Mapping[str, Measured], metric: Mapping[str, float] | None = None,
                      fp32_engine: EngineResult | None = None, reference: Named | None = None) -> dict[str, Any]:
    """The record of schema ``comparison-v1``: simulated runs, and engines beside them as runs of their own.

    Args:
        metric: The reference's own metric and its parts, the headline first.
        fp32_engine: The FP32 engine.
        reference: What errors are taken against; None for FP32 of the network itself.
    """
    engines = {f"{name}-engine": engine_record(run.engine) for name, run in runs.items() if run.engine is not None}
    if fp32_engine is not None:
        engines = {"fp32-engine": engine_record(fp32_engine), **engines}
    executed = {executed_key(name): executed_record(run.executed) for name, run in runs.items()
                if run.executed is not None}
    as_exported = {name: run.exported for name, run in runs.items() if run.exported is not None}
    exported = {f"{name}-{EXPORTED}" if number else EXPORTED: {"source": "simulated", **verdict_record(verdict)}
                for number, (name, verdict) in enumerate(as_exported.items())}
    record: dict[str, Any] = {
        "format": FORMAT, "version": VERSION,
        "model": {"name": network.name, "structure_sha256": network.structure_sha256, "sha256": sha256,
                  "nodes": len(network.layers)},
        "data": data.source,
        "samples": data.whatif,
        "reference": {"backend": backend.name, "version": backend.version, "provider": backend.device.lower(),
                      "precision": "fp32"},
        "runs": {name: run_record(network, run) for name, run in runs.items() if run.verdict is not None}
                | exported | executed | engines,
    }
    if metric:
        record["reference"] |= {"metric": next(iter(metric.values())), "metric_parts": dict(metric)}
    if reference is not None:
        record["reference"] |= {"source": reference.name, "only_there": list(reference.only_there),
                                "only_here": list(reference.only_here)}
    return record
