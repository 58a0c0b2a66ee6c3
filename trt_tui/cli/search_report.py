"""The report of a search as text and Markdown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from trt_tui import words
from trt_tui.core.exporters.markdown import search_markdown
from trt_tui.core.guards.guard import alarm_record
from trt_tui.core.measure.metric_parts import part_rows
from trt_tui.core.measure.target import UPPER
from trt_tui.core.moves.config import tables
from trt_tui.core.network.hierarchy import build_tree, titles
from trt_tui.core.search import Evaluation, Outcome
from trt_tui.core.search.front import front as search_front
from trt_tui.errors import InputError
from trt_tui.jobs.events import SearchEnded
from trt_tui.session.config_results import ENGINE_RUN
from trt_tui.session.finding import Finding, held_out_words, iteration_table, lowered_table
from trt_tui.session.session import Session
from trt_tui.words import NOTHING, SIMULATED, table

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
    return iteration_table(ended.evaluations, ended.built, session.opened.outline, _finding(session).request,
                           session.results.reference)


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
    """Where the figures come from: the reference if one is named, the outcome as simulated and on held-out samples,
    confirmed by an engine or simulated only."""
    held_out, result = _ended(session).held_out, _ended(session).target_result
    told = [f"simulated: {result.text}"] if result is not None else []
    against = [f"against {session.reference}"] if session.opened.reference is not None else []
    exported = _ended(session).exported
    executed = [exported.text] if exported is not None and (
        result is None or exported.text not in result.reasons) else []
    return [*against, *told, *executed, *([held_out_words(held_out)] if held_out is not None else []),
            *_confirmation(session)]


def _confirmation(session: Session) -> list[str]:
    confirmed = _ended(session).confirmed
    if confirmed is not None:
        checked = _finding(session).request.check is not None
        met = "meets the tolerance too; --check has judged the simulation only" if checked else "meets it too"
        if not _ended(session).result.met:
            met = "meets it all the same"
        result, builder = session.config_results(_ended(session).result.config).get(ENGINE_RUN), session.builder
        title = words.builder_title(builder.name, builder.version) if builder is not None else ""
        by = words.built_by(title, builder.device) if builder is not None else ""
        return [f"its engine{f' ({by})' if by else ''} {met if confirmed else 'does NOT meet it'}"
                + (f": {result.text}" if result is not None and result.reasons else "")]
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
