"""Comparisons and configs as text for a terminal or a file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trt_tui import words
from trt_tui.cli.inside import inside_lines, remark_lines
from trt_tui.cli.made import preview_lines
from trt_tui.core.engines.rungs import rung_lines
from trt_tui.core.exporters.markdown import moves_markdown, search_markdown, text_cell
from trt_tui.core.guards.guard import alarm_record
from trt_tui.core.lowering.lowered import lowers, quantizes
from trt_tui.core.measure.agreement import fp32_fault, gap_db
from trt_tui.core.measure.comparison import EngineResult, ExportedRun, Share, Verdict
from trt_tui.core.measure.metric_parts import part_rows
from trt_tui.core.measure.target import UPPER
from trt_tui.core.moves.config import PrecisionConfig, tables
from trt_tui.core.network.hierarchy import build_tree, titles
from trt_tui.core.network.layers import Outline
from trt_tui.core.search import Evaluation, Outcome
from trt_tui.core.search.front import front as search_front
from trt_tui.errors import InputError
from trt_tui.jobs.events import SearchEnded
from trt_tui.session.finding import Finding, held_out_words, iteration_table, lowered_table
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
        lines.append(f"target: {session.target.shown}")
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
    lines += _unsettled(session)
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
              if session.target is None or session.target.reached(verdict) is False]
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
    reached = session.target.reached(verdict) if session.target is not None else None
    said = [words.outcome(reached, session.target is None or session.target.settled(verdict))]
    if run == "int8" and not quantizes(session.opened.outline, config):
        said.append("nothing in INT8")
    return ", ".join(filter(None, said))


def _unsettled(session: Session) -> list[str]:
    """What to know of runs of which other samples might say otherwise."""
    target, lines = session.target, []
    for run in _shown(session):
        verdict = session.measured(run).verdict
        if target is not None and verdict is not None and not target.settled(verdict):
            lines.append(f"{_title(session, run)}: other samples might say otherwise; 95 % of resamples of these "
                         f"{verdict.samples} give {target.between(verdict)}")
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
    order = sorted(record.shares, key=lambda name: -record.shares[name].owns)[:LAYER_ROWS]
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
    if not record.shares:
        rows = [[*row[:3], *row[5:7]] for row in rows]
    elif any(share.samples < session.opened.data.whatif for share in record.shares.values()):
        notes.append(FEWER)
    return [*(table(rows, flush_left=3) if order else []), *(["", *notes[:LAYER_ROWS]] if notes else [])]


def _owned(share: Share | None) -> tuple[str, str]:
    """What a group owns, and on how many samples that was taken."""
    if share is None:
        return "", ""
    figure = words.near(share.owns, share.margin, SIMULATED)
    return figure if math.isfinite(share.owns) else "brings NaN/Inf in FP32", str(share.samples)


# -- a search ---------------------------------------------------------------------------------------------------------

PLOT_WIDTH, PLOT_HEIGHT = 48, 8


def search_table(session: Session) -> str:
    """What a search found: the layers with the reason, ranges, the metric's parts, and the engines that were built."""
    ended, outline = _ended(session), session.opened.outline
    result = ended.result
    how = f"{ended.how}; " if ended.ranked else ""
    lines = [search_headline(session), f"  {how}{words.plural(result.evaluations, 'evaluation')}"]
    lines += [f"  {line}" for line in (*search_source(session), *ended.remarks)]
    lowered = lowered_rows(session)
    lines += ["", *table(lowered or iteration_rows(session), flush_left=3 if lowered else 4)]
    places = titles(build_tree(outline.layers, outline.groups))
    for header, rows in tables(result.config, outline):
        lines += ["", *table([(*header, "why"), *((places.get(row[0], row[0]), *row[1:], result.why.get(row[0], ""))
                                                 for row in rows)],
                             flush_left=len(header) + 1)]
    if len(parts := metric_parts(session)) > 1:
        lines += ["", *table(parts)]
    if points := front(session):
        lines += ["", *table(front_rows(points)), *([""] + plot(points) if len(points) > 1 else [])]
    return "\n".join(map(partial(words.visible, lines=True), lines))


def lowered_rows(session: Session) -> list[list[str]]:
    """What a strategy that goes downwards has tried, layer by layer, with a header; [] for any other."""
    finding, outline = _finding(session), session.opened.outline
    return lowered_table(_ended(session).result.rows, outline, finding.request)


def iteration_rows(session: Session) -> list[list[str]]:
    """Every config that a search has tried; see `trt_tui.session.finding.iteration_table`."""
    ended = _ended(session)
    return iteration_table(ended.evaluations, ended.built, session.opened.outline, _finding(session).request)


def _finding(session: Session) -> Finding:
    if session.finding is None:
        raise InputError("nothing was searched", "", "")
    return session.finding


def _ended(session: Session) -> SearchEnded:
    if (ended := _finding(session).ended) is None:
        raise InputError("the search has not ended", "", "")
    return ended


def _best(session: Session) -> Evaluation:
    if (best := _ended(session).result.best) is None:
        raise InputError("the search has evaluated nothing", "", "")
    return best


def search_headline(session: Session) -> str:
    """The outcome in one line."""
    request, result = _finding(session).request, _ended(session).result
    said = result.said
    if result.outcome is Outcome.NOTHING_TO_DO:
        start = result.config
        name = "the file" if start.as_in_file else "the config" if start.moves else start.quantized.label
        said = f"{name} meets it already: nothing to do ({words.simulated(_best(session).judgement.figure)})"
    tolerances = " and ".join((*request.tolerances,
                               *([f"check {request.check!r}"] if request.check is not None else [])))
    return f"{tolerances}: {said}"


def search_source(session: Session) -> list[str]:
    """Where the figures come from: the reference if one is named, on held-out samples or not, confirmed by an engine or
    simulated only."""
    held_out = _ended(session).held_out
    against = [f"against {session.reference}"] if session.opened.reference is not None else []
    told, exported = _ended(session).told, _ended(session).exported
    outcome = [": ".join(filter(None, (told.outcome.value, "; ".join(told.reasons))))] if told is not None else []
    executed = [exported.text] if exported is not None and (told is None or exported.text not in told.reasons) else []
    return [*against, *outcome, *executed, *([held_out_words(held_out)] if held_out is not None else []),
            *_confirmation(session)]


def _confirmation(session: Session) -> list[str]:
    confirmed = _ended(session).confirmed
    if confirmed is not None:
        checked = _finding(session).request.check is not None
        met = "meets the tolerance too; --check has judged the simulation only" if checked else "meets it too"
        if not _ended(session).result.met:
            met = "meets it all the same"
        builder = session.builder
        title = words.builder_title(builder.name, builder.version) if builder is not None else ""
        by = words.built_by(title, builder.device) if builder is not None else ""
        return [f"its engine{f' ({by})' if by else ''} {met if confirmed else 'does NOT meet it'}"]
    if session.builder is None or not session.builder.runs:
        return ["simulated only: no TensorRT runs here to confirm it"]
    return ["simulated only: no engine that was built as asked was judged"]


def metric_parts(session: Session) -> list[list[str]]:
    """The metric's parts in FP32, at the start of the search and as found, that with the worst drop first."""
    ended = _ended(session)
    found, start = (verdict.metric if (verdict := one.judgement.verdict) is not None else {}
                    for one in (_best(session), ended.evaluations[0]))
    rows = part_rows(session.results.reference, [found])
    return [["metric", "FP32", "start", "found"],
            *([row.name, *(words.metric_figure(one) for one in (row.reference, start.get(row.name), *row.figures))]
              for row in rows)]


@dataclass(frozen=True)
class Point:
    """A config that was built: its figure simulated and as built (in the target's unit), and its latency in ms.

    Attributes:
        best: No other one is as fast and as accurate.
    """

    name: str
    raised: int
    simulated: str
    built: str
    figure: float
    ms: float
    bytes: int | None
    best: bool = False


def front(session: Session) -> list[Point]:
    """The configs that were built and timed, the fastest first, those on the accuracy-against-latency front marked.

    The front is Pareto's: no other config is faster at the same figure or better at the same latency.
    """
    target, points = session.target, []
    for config, known in session.results.items():
        engine = known.engine
        if engine is None or not engine.as_asked or engine.verdict is None or engine.latency_ms is None or not target:
            continue
        figure = target.figure(engine.verdict)
        if figure is None or engine.quick:
            continue
        raised = len(config.raised(session.opened.outline))
        name = session.names.get(config, "")
        simulated = f"{SIMULATED}{target.measured(known.verdict)}" if known.verdict is not None else NOTHING
        points.append(Point(name, raised, simulated,
                            target.measured(engine.verdict), -figure if target.kind in UPPER else figure,
                            engine.latency_ms[0], engine.bytes))
    points.sort(key=lambda point: (point.ms, -point.figure))
    best = search_front([(point.ms, point.figure) for point in points])
    return [replace(point, best=place in best) for place, point in enumerate(points)]


def front_rows(points: Sequence[Point]) -> list[list[str]]:
    """The points with a letter each, and a header."""
    rows = [["built", "raised", "simulated", "engine", "ms", "MB", ""]]
    return rows + [[f"{letter} {point.name}", str(point.raised), point.simulated, point.built, words.number(point.ms),
                    NOTHING if point.bytes is None else words.megabytes(point.bytes), "front" if point.best else ""]
                   for letter, point in zip(_letters(points), points, strict=True)]


def plot(points: Sequence[Point]) -> list[str]:
    """The points by their letters: latency to the right, accuracy upwards."""
    finite = [point.figure for point in points if math.isfinite(point.figure)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    left, right = min(point.ms for point in points), max(point.ms for point in points)

    def place(value: float, least: float, most: float, cells: int) -> int:
        share = (min(max(value, least), most) - least) / (most - least) if most > least else 0.5
        return round(share * (cells - 1))

    grid = [[" "] * PLOT_WIDTH for _ in range(PLOT_HEIGHT)]
    for letter, point in zip(_letters(points), points, strict=True):
        row = PLOT_HEIGHT - 1 - place(point.figure, low, high, PLOT_HEIGHT)
        grid[row][place(point.ms, left, right, PLOT_WIDTH)] = letter
    lines = [f"  │{''.join(row).rstrip()}" for row in grid]
    fastest, slowest = words.milliseconds(left), words.milliseconds(right)
    return ["  better", *lines, f"  └{'─' * PLOT_WIDTH}", f"   {fastest}{slowest:>{PLOT_WIDTH - len(fastest)}}"]


def _letters(points: Sequence[Point]) -> list[str]:
    return [chr(ord("A") + index % 26) for index in range(len(points))]


def search_report(session: Session) -> str:
    """What a search found, with the evidence, in Markdown."""
    points = front(session)
    ended = _ended(session)
    lines = [*([ended.how] if ended.ranked else []), *search_source(session), *ended.remarks]
    return search_markdown(session.opened.outline, ended.result, iteration_rows(session), lowered_rows(session),
                           search_headline(session), lines,
                           metric_parts(session), front_rows(points), plot(points) if len(points) > 1 else [],
                           [alarm_record(alarm) for alarm in session.alarms])


def config_markdown(network: Outline, config: PrecisionConfig, path: str) -> str:
    """A config as a table in Markdown."""
    lines = [f"# Precision config {text_cell(Path(path).name)}".rstrip(), "",
             f"For {text_cell(network.name)} ({len(network.layers)} nodes, structure {network.structure_sha256[:12]}). "
             f"{config.defaults_said}; "
             f"TF32 is {'on' if config.tf32 else 'off'}.", ""]
    return "\n".join(lines + (moves_markdown(config, network) or ["No layer differs from the defaults."])) + "\n"
