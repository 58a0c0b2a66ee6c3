"""Comparisons and configs as text for a terminal or a file."""

import math
from collections.abc import Mapping
from pathlib import Path

from trt_tui import words
from trt_tui.cli.inside import inside_lines, remark_lines
from trt_tui.cli.made import preview_lines
from trt_tui.core.engines.rungs import rung_lines
from trt_tui.core.exporters.markdown import moves_markdown, text_cell
from trt_tui.core.lowering.lowered import lowers, quantizes
from trt_tui.core.measure.agreement import fp32_fault, gap_db
from trt_tui.core.measure.comparison import EngineResult, ExportedRun, Share, Verdict
from trt_tui.core.measure.sample_dependence import LITTLE_DB
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keeping import default_rules_note
from trt_tui.core.network.hierarchy import build_tree, titles
from trt_tui.core.network.layers import Outline
from trt_tui.session.config_results import ENGINE_RUN, EXECUTED_RUN, SIMULATED_RUN
from trt_tui.session.parts import parts_table
from trt_tui.session.session import Session
from trt_tui.words import COMPUTED_IN, EXPORTED, NOTHING, SIMULATED, engine_title, plural, run_named, run_title, table

LAYER_ROWS = 20
PART_ROWS = 20

FEWER = ("on: how many samples a share was taken on; on all of them it is as near as ± says, with 95 % confidence "
         "(--exact takes all shares on all)")


def comparison_table(session: Session) -> str:
    """The verdict of each run, its judged outputs if there are several, and the worst groups."""
    outline, data, level = session.opened.outline, session.opened.data, session.level
    size = f"{plural(len(outline.groups), 'fused layer')} ({plural(len(outline.layers), 'node')})"
    lines = [f"{outline.name}: {size}, {plural(data.whatif, 'sample')} "
             f"of {data.source}{', ' if session.ranges_from else ''}{session.ranges_from}",
             f"against {_against(session)}{f', {level.name}' if level is not None else ''}; ~ marks simulated figures"]
    if level is not None and level.reason:
        lines.append(level.reason)
    if session.results.reference:
        name, value = next(iter(session.results.reference.items()))
        lines.append(f"{name} in {_metric_of(session)}: {words.metric_figure(value)}")
    if session.target is not None:
        lines.append(f"target: {' and '.join(target.shown for target in session.targets)}")
    if note := next(filter(None, (default_rules_note(outline, config) for config in session.run_configs().values())),
                    ""):
        lines.append(note)
    rows = [["run", "output", "SQNR", "cosine", "worst sample", "NaN/Inf", session_metric(session), "ms", "MB", ""]]
    engines = _engines(session)
    if session.results.fp32_engine is not None:
        rows.extend(_engine_rows(session, "FP32 engine", session.results.fp32_engine))
    if session.fp32 is not None:
        rows.extend(_verdict_rows(session, words.FP32_TITLE, session.fp32, ""))
    for run in _shown(session):
        if (verdict := session.measured(run).verdict) is not None:
            rows.extend(_verdict_rows(session, _title(session, run), verdict, run=run))
        if (exported := session.measured(run).exported) is not None:
            rows.extend(_verdict_rows(session, run_title(EXPORTED), exported, run=run))
        if (executed := session.measured(run).executed) is not None:
            rows.extend(_executed_rows(session, executed, run))
        if run in engines:
            rows.extend(_engine_rows(session, _engine(session, run), engines[run], run))
    kept = [i for i in range(len(rows[0])) if i == len(rows[0]) - 1 or any(row[i] for row in rows[1:])]
    lines += ["", *table([[row[i] for i in kept] for row in rows], flush_left=2)]
    if parts := parts_table(session):
        lines += ["", *table(parts[:1 + PART_ROWS])]
        lines += [f"{len(parts) - 1 - PART_ROWS} more parts lose less"] if len(parts) > 1 + PART_ROWS else []
    checked = {"FP32 engine": session.results.fp32_engine} if session.results.fp32_engine is not None else {}
    lines += _reasons(session)
    lines += _variations(session)
    lines += _rungs({**checked, **{_engine(session, run): result for run, result in engines.items()}})
    lines += _computed_in({_titled(_engine(session, run), result): result for run, result in engines.items()})
    lines += remark_lines({**checked, **{_engine(session, run): result for run, result in engines.items()}})
    lines += _checks(session, engines)
    for run, result in engines.items():
        lines += inside_lines(session, run, _engine(session, run), result.inside)
    lines += preview_lines(session, {run: _title(session, run) for run in _shown(session)})
    for run in _explained(session):
        lines += ["", *_worst(session, run)]
    return "\n".join(map(words.visible, lines))


def _title(session: Session, run: str) -> str:
    return run_title(run, session.config.as_in_file)


def _engine(session: Session, run: str) -> str:
    return engine_title(run, session.config.as_in_file)


def _exported(session: Session, run: str) -> str:
    return run_title(EXPORTED)


def _executed(session: Session, run: str) -> str:
    return f"{_title(session, run)}, {words.EXPORTED_NETWORK}"


def _against(session: Session) -> str:
    """What errors are taken against, and on what it was computed."""
    backend = session.opened.backend
    own = f"FP32 on {backend.name} {backend.version} {backend.device}"
    if session.opened.reference is None:
        return own
    return f"{session.reference}; layers and the FP32 engine against {own}"


def _metric_of(session: Session) -> str:
    """Whose metric stands above the figures."""
    named = session.opened.reference
    return session.reference if named is None or named.metric else words.FP32_TITLE


def _explained(session: Session) -> list[str]:
    """The runs whose loss is broken down by group: those that miss the target, else the last that is measured there."""
    if session.opened.outline.has_own_precisions and _broken_down(session, "config"):
        return ["config"]
    known = {run: verdict for run in _shown(session)
             if (verdict := session.measured(run).verdict) is not None and _broken_down(session, run)}
    missed = [run for run, verdict in known.items()
              if (result := session.target_result(verdict)) is None or not result.passes]
    return missed or list(known)[-1:]


def _broken_down(session: Session, run: str) -> bool:
    """Whether anything is known of the groups of a run."""
    measured = session.measured(run)
    return bool(measured.shares or measured.groups)


def session_metric(session: Session) -> str:
    """The heading of the metric's column: its name, "same class" for agreement, or "" where there is neither."""
    if session.metric and session.results.reference:
        return next(iter(session.results.reference))
    return "same class" if session.target is not None and session.target.kind == "agreement" else ""


def _shown(session: Session) -> list[str]:
    """The runs, without the config if it equals one of the others."""
    configs = session.run_configs()
    return [run for run in configs if run != "config" or configs[run] not in (configs["fp16"], configs["int8"])]


def _engines(session: Session) -> dict[str, EngineResult]:
    return {run: engine for run in _shown(session) if (engine := session.measured(run).engine) is not None}


def _mark(session: Session, run: str, verdict: Verdict) -> str:
    """Whether a run meets the target; or that nothing was lowered or quantized in it."""
    config = session.run_configs()[run]
    if not lowers(session.opened.outline, config):
        return "nothing lowered"
    result = session.target_result(verdict)
    said = [result.outcome.value if result is not None else ""]
    if run == "int8" and not quantizes(session.opened.outline, config):
        said.append("nothing in INT8")
    return ", ".join(filter(None, said))


def _reasons(session: Session) -> list[str]:
    """Why a result has a question mark, or fails for another reason than its value alone; a line for each row."""
    titles = {SIMULATED_RUN: _title, EXPORTED: _exported, ENGINE_RUN: _engine,
              EXECUTED_RUN: _executed}
    lines = [f"{titles[kind](session, run)}: {result.text}" for run in _shown(session)
             for kind, result in session.config_results(session.run_configs()[run]).items() if result.reasons]
    return lines and ["", *lines]


def _variations(session: Session) -> list[str]:
    """The judged outputs that vary little between samples, with the SQNR of the part that varies."""
    lines = []
    for run in _shown(session):
        verdict = session.measured(run).verdict
        for name, one in verdict.outputs.items() if verdict is not None else ():
            level = one.variation_db
            if level is not None and level < LITTLE_DB:
                varying = one.varying_sqnr_db
                known = "" if varying is None else f"; SQNR of what varies: {SIMULATED}{varying:.1f} dB"
                lines.append(f"{_title(session, run)}: variation of {name} between samples: {words.variation(level)}"
                             f"{known}")
    return lines and ["", *lines]


def _verdict_rows(session: Session, title: str, verdict: Verdict, sign: str = "~", run: str = "") -> list[list[str]]:
    """A row for each judged output; ``sign`` marks simulated figures, a ``run`` adds whether the target is met."""
    mark = _mark(session, run, verdict) if run else ""
    if verdict.headline is not None:
        metric = words.metric_figure(verdict.headline, sign)
    elif verdict.agreement is not None and session.target is not None and session.target.kind == "agreement":
        metric = words.rate(verdict.agreement, sign)
    else:
        metric = ""
    rows = []
    for position, (name, one) in enumerate(verdict.outputs.items()):
        errors = one.errors
        if errors.mismatch is not None:
            figures = [f"{words.differing(errors.mismatch, sign)} differ", "", "", "0"]
        else:
            worst = NOTHING
            if one.worst_index is not None:
                worst = words.worst_sample(one.worst_index, one.worst_sqnr_db, sign)
            figures = [errors.figure(sign), words.cosine(errors.cosine), worst, str(errors.bad)]
        first = position == 0
        rows.append([title if first else "", name, *figures, metric if first else "", "", "", mark if first else ""])
    return rows


def _engine_rows(session: Session, title: str, result: EngineResult, run: str = "") -> list[list[str]]:
    """The rows of an engine, with its latency and size; one that cannot run here has the size only.

    One that was not built as asked says so, after a row with the simulation of what was built instead.
    """
    if result.failed:
        return [[title, "not built", *[""] * 8]]
    title = _titled(title, result)
    simulated = []
    if result.simulated is not None:
        simulated = _verdict_rows(session, f"{title}, simulated", result.simulated)
    if result.verdict is None:
        rows = [[title, "built, cannot run here", *[""] * 8]]
    else:
        rows = _verdict_rows(session, title, result.verdict, "", run)
    if result.latency_ms is not None:
        rows[0][7] = words.number(result.latency_ms[0]) + (" quick" if result.quick else "")
    if result.bytes is not None:
        rows[0][8] = words.megabytes(result.bytes)
    return simulated + rows


def _executed_rows(session: Session, executed: ExportedRun, run: str) -> list[list[str]]:
    """Returns the rows of an exported file that ONNX Runtime executed; they have no latency and no size."""
    title = f"{run_title(words.executed_key(run), session.config.as_in_file)} ({executed.executor})"
    if executed.accuracy is None:
        return [[title, f"not executed: {executed.missing}", *[""] * 8]]
    return _verdict_rows(session, title, executed.accuracy, "", run)


def _titled(title: str, result: EngineResult) -> str:
    title = f"{title} ({result.builder})"
    return title if result.as_asked else f"{title}, otherwise"


def _rungs(engines: Mapping[str, EngineResult]) -> list[str]:
    """What was tried for the engines that were not built as asked, or not at all."""
    lines = []
    for name, result in engines.items():
        if result.failed and len(result.rungs) < 2:
            lines += ["", f"{name}: not built: {result.failed}"]
        elif not result.as_asked:
            about = "not built" if result.failed else "NOT of the config asked for"
            lines += ["", f"{name}: {about}; what was tried:"]
            lines += [f"  {line}" for line in rung_lines(result.rungs, result.otherwise)]
    return lines


def _computed_in(engines: Mapping[str, EngineResult]) -> list[str]:
    """How many layers of each engine compute in what, and their share of the time."""
    shares = {name: result.report.shares() for name, result in engines.items() if result.report is not None}
    kinds = [kind for kind in COMPUTED_IN if any(kind in one for one in shares.values())]
    if not kinds:
        return []
    rows = [["engine layers, share of the time", *(COMPUTED_IN[kind] for kind in kinds)]]
    for name, one in shares.items():
        rows.append([name, *(words.share_of_layers(*one[kind]) if kind in one else NOTHING for kind in kinds)])
    return ["", *table(rows)]


def _checks(session: Session, engines: Mapping[str, EngineResult]) -> list[str]:
    """Whether the FP32 engine computes something else, and what to look at if an engine is worse than simulated."""
    lines = ["", f"no precision problem: {fault}"] if (fault := fp32_fault(session.results.fp32_engine)) else []
    for run, found in session.to_check().items():
        if run not in engines:
            continue  # the config equals another run, which is listed
        gap = gap_db(engines[run].beside(session.measured(run).verdict), engines[run].verdict)
        lines += ["", f"{_engine(session, run)}: {words.worse_by(gap)}; what to check:",
                  *(f"  {line}" for line in found)]
    return lines


def _worst(session: Session, run: str) -> list[str]:
    """The groups that own most of a run's error; those that lose most by themselves where shares were not measured."""
    record, config, outline = session.measured(run), session.run_configs()[run], session.opened.outline
    shares = record.shares
    order = sorted(shares, key=lambda name: math.inf if shares[name].unknown else -shares[name].owns)[:LAYER_ROWS]
    title = f"error shares of {run_named(run, session.config.as_in_file)}"
    if not order:
        lossy = {name: one.isolated for name, one in record.groups.items()
                 if one.isolated is not None and not one.isolated.exact}
        order = sorted(lossy, key=lambda name: lossy[name].sqnr_db or -math.inf)[:LAYER_ROWS]
        title = f"what loses most by itself in {run_named(run, session.config.as_in_file)}"
    rows = [[title, "operator", "precision", "share", "on", "isolated", "accumulated", "alone in FP32"]]
    notes = []
    places = titles(build_tree(outline.layers, outline.groups))
    for name in order:
        share, group = record.shares.get(name), outline.group(name)
        errors = record.groups.get(name)
        figures = [one.figure() if one is not None else NOTHING for one in (
            (errors.isolated, errors.accumulated) if errors else (None, None))]
        rows.append([places.get(name, name), group.operator, group.label(config.precision_of(group)),
                     *_owned(share), *figures, words.decibels(share.kept_db) if share is not None else ""])
    for name, errors in record.groups.items():
        if errors.warning:
            notes.append(f"{places.get(name, name)}: {errors.warning}")
    notes += [f"{places.get(name, name)}: its share is unknown, as {one.unknown}" for name, one in shares.items()
              if one.unknown]
    if not record.shares:
        rows = [[*row[:3], *row[5:7]] for row in rows]
    elif any(share.samples < session.opened.data.whatif for share in record.shares.values()):
        notes.append(FEWER)
    return [*(table(rows, flush_left=3) if order else []), *(["", *notes[:LAYER_ROWS]] if notes else [])]


def _owned(share: Share | None) -> tuple[str, str]:
    """What a group owns, and on how many samples that was taken."""
    if share is None:
        return "", ""
    if share.unknown:
        return "unknown", str(share.samples)
    figure = words.near(share.owns, share.margin, SIMULATED)
    return figure if math.isfinite(share.owns) else "brings NaN/Inf in FP32", str(share.samples)


def config_markdown(network: Outline, config: PrecisionConfig, path: str) -> str:
    """A config as a table in Markdown."""
    lines = [f"# Precision config {text_cell(Path(path).name)}".rstrip(), "",
             f"For {text_cell(network.name)} ({len(network.layers)} nodes, structure {network.structure_sha256[:12]}). "
             f"{config.defaults_said}; "
             f"TF32 is {'on' if config.tf32 else 'off'}.", ""]
    return "\n".join(lines + (moves_markdown(config, network) or ["No layer differs from the defaults."])) + "\n"
