"""Comparisons and configs as text for a terminal or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trt_tui.core.comparison import Verdict
from trt_tui.core.hierarchy import build_tree, titles
from trt_tui.core.network import Network
from trt_tui.core.precision import PrecisionConfig
from trt_tui.session import Session

LAYER_ROWS = 20
RUN_NAMES = {"fp16": "FP16 all", "int8": "INT8 all", "config": "config"}


def decibels(value: float | None, exact: bool = False) -> str:
    """A simulated SQNR as it is shown: ``~12.3``, ``exact``, or ``–`` where there is none."""
    if exact:
        return "exact"
    return "–" if value is None else f"~{value:.1f}"


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
    rows = [["run", "output", "dB", "cosine", "worst sample", "NaN/Inf", session_metric(session), ""]]
    for run, record in session.runs.items():
        if record.verdict is None or run == "config" and session.config in (
                session.run_configs()["fp16"], session.run_configs()["int8"]):
            continue
        rows.extend(_verdict_rows(session, run, record.verdict))
    if not any(row[6] for row in rows):
        rows = [[*row[:6], row[7]] for row in rows]
    lines += ["", *table(rows, left=2)]
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


def _verdict_rows(session: Session, run: str, verdict: Verdict) -> list[list[str]]:
    passed = session.target.reached(verdict) if session.target is not None else None
    mark = {True: "passes", False: "FAILS", None: ""}[passed]
    if verdict.headline is not None:
        metric = f"~{verdict.headline:.4g}"
    elif verdict.agreement is not None and session.target is not None and session.target.kind == "agreement":
        metric = f"~{100 * verdict.agreement:.1f} %"
    else:
        metric = ""
    rows = []
    for position, (name, one) in enumerate(verdict.outputs.items()):
        errors = one.errors
        if errors.mismatch is not None:
            figures = [f"~{100 * errors.mismatch:.2g} % differ", "", "", "0"]
        else:
            worst = f"{decibels(one.worst_sqnr_db)} #{one.worst_index}" if one.worst_sqnr_db is not None else "–"
            cosine = "–" if errors.cosine is None else f"{errors.cosine:.5f}"
            figures = [decibels(errors.sqnr_db, errors.exact), cosine, worst, str(errors.bad)]
        rows.append([RUN_NAMES[run] if position == 0 else "", name, *figures, metric if position == 0 else "",
                     mark if position == 0 else ""])
    return rows


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
