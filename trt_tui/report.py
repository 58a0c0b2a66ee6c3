"""Comparisons and configs as text for a terminal or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trt_tui.core.agreement import fp32_fault, gap_db
from trt_tui.core.comparison import EngineResult, Verdict
from trt_tui.core.engine import IDLE, EngineReport
from trt_tui.core.hierarchy import build_tree, titles
from trt_tui.core.network import Network
from trt_tui.core.precision import PrecisionConfig
from trt_tui.session import Session

LAYER_ROWS = 20
RUN_NAMES = {"fp16": "FP16 all", "int8": "INT8 all", "config": "config"}
COMPUTED_IN = {"INT8": "INT8", "FP16": "FP16", "BF16": "BF16", "FP32": "FP32", "?": "not told",
               "reformat": "reformats", "qdq": "Q/DQ alone"}
"""Titles of what engine layers compute in, by the words of `EngineReport.shares`."""


def decibels(value: float | None, exact: bool = False, mark: str = "~") -> str:
    """An SQNR as it is shown: ``~12.3`` simulated, ``12.3`` as built, ``exact``, or ``–`` where there is none."""
    if exact:
        return "exact"
    return "–" if value is None else f"{mark}{value:.1f}"


def table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Columns padded to their widest cell; the first ``left`` are flush left, the rest right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in cells).rstrip()

    return [line(row) for row in rows]


def comparison_table(session: Session) -> str:
    """The verdict of each run, its judged outputs where there are several, and the worst groups."""
    outline, data, backend = session.outline, session.data, session.backend
    lines = [f"{outline.name}: {len(outline.groups)} groups ({len(outline.layers)} nodes), {data.whatif} samples of "
             f"{data.source}, calibrated on {data.calibrating}",
             f"against FP32 on {backend.name} {backend.version} {backend.device}; ~ marks simulated figures"]
    if session.reference_metric:
        name, value = next(iter(session.reference_metric.items()))
        lines.append(f"{name} in FP32: {value:.4g}")
    if session.target is not None:
        lines.append(f"target: {session.target.shown}")
    rows = [["run", "output", "dB", "cosine", "worst sample", "NaN/Inf", session_metric(session), "ms", "MB", ""]]
    engines = _engines(session)
    if session.check is not None:
        rows.extend(_engine_rows(session, "FP32 engine", session.check, judged=False))
    for run in _shown(session):
        if (verdict := session.runs[run].verdict) is not None:
            rows.extend(_verdict_rows(session, RUN_NAMES[run], verdict))
        if run in engines:
            rows.extend(_engine_rows(session, engine_name(run), engines[run]))
    kept = [i for i in range(len(rows[0])) if i == len(rows[0]) - 1 or any(row[i] for row in rows[1:])]
    lines += ["", *table([[row[i] for i in kept] for row in rows], left=2)]
    lines += _computed_in({engine_name(run): result for run, result in engines.items()})
    lines += _checks(session, engines)
    for run in _explained(session):
        lines += ["", *_worst(session, run)]
    return "\n".join(lines)


def _explained(session: Session) -> list[str]:
    """The runs whose loss is laid out by group: those that miss the target, else the last one with shares."""
    configs = session.run_configs()
    known = [run for run, record in session.runs.items() if record.shares and record.verdict is not None
             and not (run == "config" and configs[run] in (configs["fp16"], configs["int8"]))]
    missed = [run for run in known if session.target is None
              or session.target.reached(session.runs[run].verdict) is False]
    return missed or known[-1:]


def session_metric(session: Session) -> str:
    if session.metric and session.reference_metric:
        return next(iter(session.reference_metric))
    return "same class" if session.target is not None and session.target.kind == "agreement" else ""


def engine_name(run: str) -> str:
    """What the engine of a run is called: ``INT8 engine``."""
    return f"{RUN_NAMES[run].removesuffix(' all')} engine"


def _shown(session: Session) -> list[str]:
    """The runs, without the config where it is one of the others."""
    configs = session.run_configs()
    return [run for run in session.runs if run != "config" or configs[run] not in (configs["fp16"], configs["int8"])]


def _engines(session: Session) -> dict[str, EngineResult]:
    return {run: session.runs[run].engine for run in _shown(session) if session.runs[run].engine is not None}


def _verdict_rows(session: Session, title: str, verdict: Verdict, sign: str = "~", judged: bool = True
                  ) -> list[list[str]]:
    """A row for each judged output; ``sign`` marks simulated figures, ``judged`` adds whether the target is met."""
    passed = session.target.reached(verdict) if session.target is not None and judged else None
    mark = {True: "passes", False: "FAILS", None: ""}[passed]
    if verdict.headline is not None:
        metric = f"{sign}{verdict.headline:.4g}"
    elif verdict.agreement is not None and session.target is not None and session.target.kind == "agreement":
        metric = f"{sign}{100 * verdict.agreement:.1f} %"
    else:
        metric = ""
    rows = []
    for position, (name, one) in enumerate(verdict.outputs.items()):
        errors = one.errors
        if errors.mismatch is not None:
            figures = [f"{sign}{100 * errors.mismatch:.2g} % differ", "", "", "0"]
        else:
            worst = "–"
            if one.worst_sqnr_db is not None:
                worst = f"{decibels(one.worst_sqnr_db, mark=sign)} #{one.worst_index}"
            cosine = "–" if errors.cosine is None else f"{errors.cosine:.5f}"
            figures = [decibels(errors.sqnr_db, errors.exact, sign), cosine, worst, str(errors.bad)]
        first = position == 0
        rows.append([title if first else "", name, *figures, metric if first else "", "", "", mark if first else ""])
    return rows


def _engine_rows(session: Session, title: str, result: EngineResult, judged: bool = True) -> list[list[str]]:
    """The rows of an engine, with its latency and size; one that cannot run here has the size alone."""
    if result.verdict is None:
        rows = [[title, "built, cannot run here", *[""] * 8]]
    else:
        rows = _verdict_rows(session, title, result.verdict, "", judged)
    if result.latency_ms is not None:
        rows[0][7] = f"{result.latency_ms[0]:.3g}" + (" preview" if result.quick else "")
    if result.bytes is not None:
        rows[0][8] = f"{result.bytes / 1e6:.1f}"
    return rows


def _computed_in(engines: Mapping[str, EngineResult]) -> list[str]:
    """How many layers of each engine compute in what, and their share of the time."""
    shares = {name: result.report.shares() for name, result in engines.items() if result.report is not None}
    words = [word for word in COMPUTED_IN if any(word in one for one in shares.values())]
    if not words:
        return []
    rows = [["engine layers, share of the time", *(COMPUTED_IN[word] for word in words)]]
    for name, one in shares.items():
        rows.append([name, *(_share(*one[word]) if word in one else "–" for word in words)])
    return ["", *table(rows)]


def _share(count: int, time: float | None) -> str:
    return str(count) if time is None else f"{count}, {100 * time:.0f} %"


def _checks(session: Session, engines: Mapping[str, EngineResult]) -> list[str]:
    """Whether the FP32 engine computes something else, and what to look at where an engine is worse than simulated."""
    lines = ["", f"no precision problem: {fault}"] if (fault := fp32_fault(session.check)) else []
    for run, found in session.to_check().items():
        gap = gap_db(session.runs[run].verdict, engines[run].verdict)
        worse = f"{gap:.1f} dB worse than simulated" if gap is not None else "not finite where the simulation is"
        lines += ["", f"{engine_name(run)}: {worse}; what to check:", *(f"  {line}" for line in found)]
    return lines


def _worst(session: Session, run: str) -> list[str]:
    record, config = session.runs[run], session.run_configs()[run]
    order = sorted(record.shares, key=lambda name: -record.shares[name].owns)[:LAYER_ROWS]
    rows = [[f"what owns the loss of {RUN_NAMES[run]}", "operator", "precision", "owns", "isolated", "accumulated",
             "alone in FP32"]]
    notes = []
    places = titles(build_tree(session.outline.layers, session.outline.groups))
    for name in order:
        share, group = record.shares[name], session.outline.group(name)
        errors = record.groups.get(name)
        isolated = errors.isolated if errors else None
        accumulated = errors.accumulated if errors else None
        rows.append([places.get(name, name), group.operator, config.precision_of(group).label,
                     f"~{100 * share.owns:.1f} %",
                     decibels(isolated.sqnr_db, isolated.exact) if isolated else "–",
                     decibels(accumulated.sqnr_db, accumulated.exact) if accumulated else "–", decibels(share.kept_db)])
    for name, errors in record.groups.items():
        if errors.warning:
            notes.append(f"{places.get(name, name)}: {errors.warning}")
    return [*table(rows, left=3), *(["", *notes[:LAYER_ROWS]] if notes else [])]


def config_markdown(network: Network, config: PrecisionConfig, path: str) -> str:
    """A config as a table in Markdown."""
    lines = [f"# Precision config {Path(path).name}", "",
             f"For {network.name} ({len(network.layers)} nodes, structure {network.structure_sha256[:12]}). "
             f"Layers that can be quantized run in {config.quantized.label}, the others in {config.other.label}; "
             f"TF32 is {'on' if config.tf32 else 'off'}.", ""]
    rows = [(group.name, group.operator, config.precision_of(group).label, config.groups[group.name].reason)
            for group in network.groups if group.name in config.groups]
    if rows:
        lines += ["| layer | operator | precision | set by |", "| --- | --- | --- | --- |"]
        lines += [f"| `{name}` | {operator} | {precision} | {reason} |" for name, operator, precision, reason in rows]
    else:
        lines.append("No layer differs from the defaults.")
    if config.ranges:
        lines += ["", "| tensor | range (amax) | method |", "| --- | --- | --- |"]
        lines += [f"| `{tensor}` | {choice.amax:.6g} | {choice.method} |" for tensor, choice in config.ranges.items()]
    return "\n".join(lines) + "\n"


def engine_table(network: Network, report: EngineReport) -> str:
    """What an engine made of a network's groups, and its layers counted by what they compute in."""
    counts = ", ".join(f"{count} {word}" for word, (count, _) in report.shares().items())
    made = report.made(network)
    places = titles(build_tree(network.layers, network.groups))
    rows = [["layer", "operator", "engine", "engine layers"]]
    for group in network.groups:
        found = made.get(group.name)
        if found is None:
            cells = ["", "not named: folded, or part of another layer"]
        else:
            precision = found.precision.label if found.precision is not None else "fused" if found.region else "?"
            cells = [precision, "; ".join(found.layers)]
        rows.append([places.get(group.name, group.name), group.operator, *cells])
    idle = sum(layer.kind == IDLE for layer in report.layers)
    return "\n".join([f"{len(report.layers)} engine layers: {counts}" + (f", {idle} idle" if idle else ""), "",
                      *table(rows, left=4)])
