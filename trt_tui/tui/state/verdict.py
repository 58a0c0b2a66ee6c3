"""The top of the screen: what is open, and how each run compares with FP32, simulated and as built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trt_tui.core.lowering.lowered import lowers
from trt_tui.core.measure.agreement import fp32_fault
from trt_tui.core.measure.comparison import ExportedRun, Verdict
from trt_tui.core.measure.stages import SIMULATED as SIMULATED_STAGE
from trt_tui.core.measure.target_result import TargetResult
from trt_tui.core.precision import Precision
from trt_tui.session.config_results import ENGINE_RUN, EXECUTED_RUN, SIMULATED_RUN
from trt_tui.session.session import Session
from trt_tui.tui.known import config_name, config_title, is_met, met, outcome_line
from trt_tui.tui.spans import Line, Span, clip, decibel, fitted, padded, shorten, width_of
from trt_tui.tui.state.built import (
    CANNOT_RUN,
    DIFFERS,
    Shown,
    builder_texts,
    built_title,
    codes_time,
    fitting,
    fp32_engine_texts,
    gap_span,
    has_layers,
    shown_engine,
)
from trt_tui.words import (
    EXPORTED,
    EXPORTED_NETWORK,
    FP32_TITLE,
    NOTHING,
    RUN_TITLES,
    SIMULATED,
    cells,
    decibels,
    fit_number,
    megabytes,
    metric_figure,
    number,
    plural,
    rate,
    run_title,
    with_unit,
    worst_sample,
)

_WIDEST = 120
"""Cells that the table takes at most."""


def header_line(session: Session, width: int, failed: bool = False) -> Line:
    """What is open, in which config, the target, on how many samples, on what; what matters least is dropped first.

    Args:
        failed: What was to be opened could not be.
    """
    outline = session.outline
    if outline is None:
        return [(" ", ""), (session.options.model.rpartition("/")[2], "strong"),
                ("  not opened" if failed else "  opening", "dim")]
    table = _Table.fit(session, width)
    right: Line = [(f"{config_title(session, max(20, width // 5))} ", "strong")]
    target = "" if table.target else _target(session)
    groups = f"  {plural(len(outline.groups), 'fused layer')}"
    samples, random = _samples(session, width)
    devices = _devices(session, width)
    counts = (f"{groups} ({plural(len(outline.layers), 'node')})", groups, "")
    choices = [(count, device) for device in devices for count in counts]
    if session.builder is None:
        choices = [(count, device) for count in counts for device in devices]
    wanted = [(some, target, *one) for some in (samples, samples.partition(",")[0]) for one in choices]
    short = target.partition(" (")[0]
    bare = short.replace("target ", "", 1)
    wanted += [(samples, short, "", ""), (samples, bare, "", "")]
    with_config = len(wanted)
    wanted += [(samples, short, "", ""), (samples, bare, "", ""), (samples, "", "", "")]
    for place, (some, goal, count, device) in enumerate(wanted):
        line: Line = [(" ", ""), (outline.name, "strong"), (count, "dim"), (goal, "@do('target')"),
                      (some, "warn" if random else ""), (device, "dim")]
        if width_of(line) + (width_of(right) + 2 if place < with_config else 0) <= width:
            break
    return padded(line, width, right)


def _target(session: Session) -> str:
    """The target, and what FP32 has of a metric that it bounds."""
    target = session.target
    if target is None:
        return ""
    base = session.results.reference if target.kind == "metric" else {}
    figure = next(iter(base.values()), None) if target.part is None else base.get(target.part)
    others = f" and {len(session.further_targets)} more" if session.further_targets else ""
    return f"  target {target.shown}{others}" + (f" (FP32 {metric_figure(figure)})" if figure is not None else "")


def _samples(session: Session, width: int) -> tuple[str, bool]:
    """How many samples figures are on, at most; whether they are random."""
    data = session.data
    if data is None:
        return "", False
    if data.random:
        return f"  {data.judged} random inputs", True
    used = min(data.whatif, data.judged)
    some = f"  {used} of {data.judged} samples" if used < data.judged else f"  {plural(data.judged, 'sample')}"
    if width < 110:
        return some, False
    ranges = session.ranges_from or f"{data.calibrating} calibrate"
    return f"{some}{', labels' if data.labels else ''}, {ranges}", False


def _devices(session: Session, width: int) -> list[str]:
    """What builds, or if nothing does, what simulates; the longest text first."""
    backend = session.backend
    if session.builder is not None:
        return [*(f"  {text}" for text in builder_texts(session.builder)), ""]
    if backend is None:
        return [""]
    plain = f"  {backend.name} {backend.version}" + (f" · {backend.device}" if width >= 100 else "")
    plain += "" if backend.real_fp16 or width < 100 else ", FP16 as FP32"
    return [*([f"{plain}, {session.level.name}"] if session.level is not None else []), plain, ""]


@dataclass(frozen=True)
class _Table:
    """Titles and widths of the columns. They depend on the network, the builder and the width, on no config.

    Attributes:
        target: What stands over the outcome where there is room: the target.
    """

    name: int
    simulated: list[tuple[str, int]]
    built: list[tuple[str, int]]
    figure: str
    wide: bool
    target: str = ""
    codes: Precision = Precision.INT8

    @classmethod
    def fit(cls, session: Session, width: int) -> _Table:
        """The table for a width."""
        width, wide = min(width, _WIDEST), width >= 110
        metric = session.metric or next(iter(session.results.reference), None)
        agreement = metric is None and any(
            verdict is not None and verdict.agreement is not None
            for verdict in (session.measured(run).verdict for run in RUN_TITLES))
        figure = (metric.rpartition(":")[2] if metric else "top-1" if agreement else "")[:7]
        extra = [(figure, 7)] if figure else []
        layers, codes = wide and has_layers(session), session.config.codes_in_use(session.opened.outline)
        simulated = [("SQNR", 7 if wide else 6), ("worst sample", 13) if wide else ("worst", 6), *extra,
                     ("NaN/Inf", 7) if wide else ("bad", 4)]
        title = built_title(session, width < 72)
        built = [(title, max(10, cells(title))), *([("gap", 5)] if layers else []), *extra]
        if session.builder is not None:  # an exported network has neither a latency nor a size
            built += [("ms", 6 if wide else 5), ("MB", 6 if wide else 5),
                      *([(f"{codes.label} time", 9)] if layers else [])]
        for title in ("MB", "ms", figure):  # the outcome stands at every width
            if 13 + _cells(simulated) + len(" │ ") + _cells(built) + len(" PASS?") > width:
                built = [one for one in built if one[0] != title]
        used = _cells(simulated) + len(" │ ") + _cells(built)
        name = max(13, min(24, width - used - (15 if wide else 6)))
        room = width - used - name - 1
        target = session.target.shown if wide and session.target is not None else ""
        return cls(name, simulated, built, figure, wide, target if cells(target) <= room else "", codes)


def _cells(columns: list[tuple[str, int]]) -> int:
    return sum(width + 1 for _, width in columns)


_BAR: Span = (" │ ", "rule")
_TALL = 34
"""Rows of a screen that shows FP32 in a line of its own."""


def verdict_lines(session: Session, width: int, height: int = 40) -> list[Line]:
    """The titles, a line for FP32 where there is room or something to say of it, and one each for FP16, INT8, the
    config, and what is as exported where a file's own network cannot be as it is."""
    if session.outline is None:
        return [[]] * 4
    table = _Table.fit(session, width)
    against = f" vs {session.reference}"
    lines: list[Line] = [
        [(fitted(against, table.name), "dim"), *((f"{title:>{w}} ", "dim") for title, w in table.simulated), _BAR,
         *((f"{title:>{w}} ", "dim") for title, w in table.built), (f" {table.target}", "dim@do('target')")]]
    engine = session.results.fp32_engine
    if session.opened.reference is not None or table.wide and height >= _TALL or (
            engine is not None and (engine.failed or fp32_fault(engine))):
        lines.append(clip(_fp32_line(session, table), width))
    calm = is_met(session)
    for run in RUN_TITLES:
        verdict, last = session.measured(run).verdict, shown_engine(session, run)
        shown = last if last is not None and not last.stale else None  # a row has values of one config
        name = config_title(session, table.name - 1) if run == "config" else run_title(run)
        line: Line = [(f" {name}".ljust(table.name), "strong" if run == "config" else "")]
        line += [*_simulated_cells(verdict, table), _BAR]
        executed = session.measured(run).executed
        built = shown is not None or executed is None
        line += _engine_cells(shown, verdict, table) if built else _executed_cells(executed, table)
        if verdict is not None and not lowers(session.outline, session.run_configs()[run]):
            line.append((" nothing lowered"[:width - width_of(line)], "dim"))
        else:
            results = session.config_results(session.run_configs()[run])
            line += _outcome(session, verdict, results, width - width_of(line), calm and run != "config")
        lines.append(clip(line, width))
        if last is not None and last.stale and height >= _TALL:
            accuracy = session.results.of(last.config).verdict
            before = Shown(last.result, last.config, last.name)
            title = fitting([f" {last.name}, built before", f" {last.name}, built", f" {last.name}"], table.name)
            line = [(fitted(title, table.name), "dim"), *_simulated_cells(accuracy, table),
                    _BAR, *_engine_cells(before, accuracy, table)]
            lines.append(clip([*line, *_outcome(session, accuracy, session.config_results(last.config),
                                                width - width_of(line), calm)], width))
        if (exported := session.measured(run).exported) is not None:
            line = [(f" {run_title(EXPORTED)}".ljust(table.name), ""), *_simulated_cells(exported, table), _BAR,
                    *_engine_cells(None, exported, table)]
            lines.append(clip([*line, *_outcome(session, exported, None, width - width_of(line))], width))
    if table.wide and height >= _TALL:
        lines += [clip([(f" {text}", "dim")], width) for text in result_lines(session)]
    return [*lines, *_stage_lines(session, table, width, height)]


_TREE_ROWS = 21
"""Rows of a screen that are kept free of stages: for the tree, the detail, and the runs of the verdict."""


def stage_table(session: Session, width: int) -> list[Line]:
    """All stages on the way to production, with the titles of the columns; nothing where there are none."""
    if session.outline is None or not session.stage_rows():
        return []
    table = _Table.fit(session, width)
    titles: Line = [(" stage".ljust(table.name), "dim"), *((f"{title:>{w}} ", "dim") for title, w in table.simulated)]
    return [clip(titles, width), *_stage_lines(session, table, width, _TREE_ROWS + len(session.stage_rows()) + 9)]


def _stage_lines(session: Session, table: _Table, width: int, height: int) -> list[Line]:
    """A line for each stage on the way to production, and where it first goes wrong.

    On a low screen those that meet the target are left out, the last ones first.
    """
    rows, said = session.stage_rows(), session.stage_summary()
    room = max(1, height - _TREE_ROWS - len(said))
    fine = [stage.name for stage, verdict in rows if verdict is not None and met(session, verdict) is not False]
    wrong = [stage.name for stage, _ in rows if stage.name not in fine]
    shown = {*wrong[:room], *fine[:max(0, room - len(wrong))]}
    beside, lines = _cells(table.built), list[Line]()
    for stage, verdict in rows:
        if stage.name not in shown:
            continue
        mark = stage.kind == SIMULATED_STAGE
        cells = zip(_verdict_cells(verdict, table, mark), table.simulated, strict=True)
        line: Line = [(f" {fitted(stage.name, table.name - 1)}", ""),
                      *((f"{fit_number(text, w):>{w}} ", style) for (text, style), (_, w) in cells), _BAR]
        change: Line = []
        if stage.failed:
            line.append((f" {stage.failed}", "dim"))
        elif stage.before is not None and stage.before.worst is not None:
            text, style = decibel(stage.before.worst[1].errors, mark)
            words = (" from the one before", " from before", "")
            change = [(fitting([f" {with_unit(text)}{one}" for one in words], beside), style)]
        if verdict is not None:
            line += padded(change, beside)
            line += _outcome(session, verdict, None, width - width_of(line))
        lines.append(clip(line, width))
    if rows and len(shown) < len(rows):
        lines.append(clip([(f" {plural(len(rows) - len(shown), 'more stage')} on a taller screen", "dim")], width))
    return [*lines, *(clip([(f" {text}", "strong")], width) for text in said)]


def _simulated_cells(verdict: Verdict | None, table: _Table) -> Line:
    """The cells of the simulation, padded to their columns."""
    cells = zip(_verdict_cells(verdict, table, True), table.simulated, strict=True)
    return [(f"{fit_number(text, width):>{width}} ", style) for (text, style), (_, width) in cells]


def _fp32_line(session: Session, table: _Table) -> Line:
    """FP32 itself, simulated where errors are taken against something else, and its engine, whose error is not caused
    by low precision."""
    line: Line = [(f" {FP32_TITLE}".ljust(table.name), "")]
    engine, verdict, room = session.results.fp32_engine, session.fp32, _cells(table.simulated)
    if engine is not None and (engine.failed or fp32_fault(engine)):
        words = fitting(fp32_engine_texts(engine), room)
        line.append((words[:room].ljust(room), "warn"))
    elif verdict is not None:
        line += _plain_cells(verdict, table)
    else:
        metric = metric_figure(next(iter(session.results.reference.values()), None)) if session.metric else NOTHING
        line += [(f"{metric:>{width}} ", "") if title == table.figure else (f"{NOTHING:>{width}} ", "dim")
                 for title, width in table.simulated]
    shown = Shown(engine, session.config, FP32_TITLE) if engine is not None else None
    line += [_BAR, *_engine_cells(shown, None, table)]
    if engine is not None and not engine.failed and not fp32_fault(engine):
        line.append((" graph sound", "dim"))
    return line


def _verdict_cells(verdict: Verdict | None, table: _Table, simulated: bool) -> list[Span]:
    mark = SIMULATED if simulated else ""
    if verdict is None:
        return [(NOTHING, "dim")] * len(table.simulated)
    worst = verdict.worst
    found = [decibel(worst[1].errors if worst else None, simulated)]
    sample = worst[1] if worst else None
    if sample is None or sample.worst_index is None:
        found.append((NOTHING, "dim"))
    elif table.wide:
        found.append((worst_sample(sample.worst_index, sample.worst_sqnr_db, mark), "dim"))
    else:
        found.append((decibels(sample.worst_sqnr_db, nan=sample.worst_sqnr_db is None, mark=mark), "dim"))
    if table.figure:
        found.append(_figure(verdict, mark))
    found.append((str(verdict.bad) if verdict.bad < 1e5 else number(float(verdict.bad)),
                  "bad" if verdict.bad else "dim"))
    return found


def _plain_cells(verdict: Verdict | None, table: _Table) -> Line:
    """The cells of what is neither simulated nor built, padded to their columns."""
    cells = zip(_verdict_cells(verdict, table, False), table.simulated, strict=True)
    return [(f"{fit_number(text, width):>{width}} ", style) for (text, style), (_, width) in cells]


def _figure(verdict: Verdict, mark: str) -> Span:
    if verdict.headline is not None:
        return (metric_figure(verdict.headline, mark), "")
    if verdict.agreement is not None:
        return (rate(verdict.agreement, mark), "")
    return (NOTHING, "dim")


def _engine_cells(shown: Shown | None, simulated: Verdict | None, table: _Table) -> Line:
    """The cells of an engine, padded to their columns."""
    engine = shown.result if shown is not None else None
    first = table.built[0][0]
    cells_of: dict[str, Span] = {title: (NOTHING, "dim") for title, _ in table.built}
    if engine is not None and engine.bytes is not None:
        cells_of["MB"] = (megabytes(engine.bytes), "")
    verdict = engine.verdict if engine is not None else None
    if shown is not None and engine is not None and verdict is None:
        before = _cells([one for one in table.built if one[0] in (first, "gap", table.figure, "ms")]) - 1
        said = ("not built",) if engine.failed else (CANNOT_RUN, "cannot run here", "cannot run")
        words = shorten(fitting(said, before), before)
        size = next((width for title, width in table.built if title == "MB"), 0)
        return padded([(f"{words:>{before}} ", "dim"),
                       *([(f"{cells_of['MB'][0]:>{size}} ", "")] if size else [])], _cells(table.built))
    if shown is not None and engine is not None and verdict is not None:
        worst = verdict.worst
        value, style = decibel(worst[1].errors if worst else None, simulated=False)
        if not engine.as_asked:
            value, style = f"{DIFFERS}{value}", "warn"
        cells_of[first] = (value, style)
        if table.figure:
            cells_of[table.figure] = _figure(verdict, "")
        if engine.latency_ms is not None:
            cells_of["ms"] = (number(engine.latency_ms[0]), "dim" if engine.quick else "")
        if engine.quick:
            cells_of["MB"] = ("quick", "dim")
        if text := codes_time(engine, table.codes):
            cells_of[f"{table.codes.label} time"] = (text, "")
        cells_of["gap"] = gap_span(simulated, engine) or (NOTHING, "dim")
    return [(f"{fit_number(cells_of[title][0], w):>{w}} ", cells_of[title][1]) for title, w in table.built]


def _executed_cells(executed: ExportedRun | None, table: _Table) -> Line:
    """The cells of an exported network that ONNX Runtime executed, padded to their columns."""
    verdict = executed.accuracy if executed is not None else None
    found: dict[str, Span] = {title: (NOTHING, "dim") for title, _ in table.built}
    if verdict is None:
        return padded([(" not executed", "dim")], _cells(table.built))
    found[table.built[0][0]] = decibel(verdict.worst[1].errors if verdict.worst else None, simulated=False)
    if table.figure:
        found[table.figure] = _figure(verdict, "")
    return [(f"{fit_number(found[title][0], w):>{w}} ", found[title][1]) for title, w in table.built]


def _outcome(session: Session, verdict: Verdict | None, results: Mapping[str, TargetResult] | None, room: int,
             calm: bool = False) -> Line:
    """Whether the target is met.

    Args:
        results: Those of the config; None for a verdict that stands alone.
        calm: A target that is missed here is nobody's trouble: the config meets it.
    """
    if verdict is None:
        return [(" …" if session.busy else "", "dim")]
    wanted = min(verdict.total, session.data.whatif) if session.data is not None else verdict.total
    if verdict.samples < wanted:
        said = f" on {verdict.samples}/{wanted}"
        return [(next((one for one in (said, f" on {verdict.samples}") if len(one) <= room), " …"), "dim")]
    if results is None:
        result = session.target_result(verdict)
        results = {SIMULATED_RUN: result} if result is not None else {}
    line = outcome_line({run: one for run, one in results.items() if run != EXPORTED}, calm)  # it has its own line
    line = [(f" {line[0][0]}", line[0][1]), *line[1:]] if line else []
    return line if width_of(line) <= room else line[:1]


def result_lines(session: Session) -> list[str]:
    """Why the outcome of the config has a question mark, or fails for another reason than its value; a line each."""
    titles = {SIMULATED_RUN: "", ENGINE_RUN: "as built ", EXPORTED: f"{EXPORTED} ",
              EXECUTED_RUN: f"{EXPORTED_NETWORK} "}
    return [f"{config_name(session)} {titles[run]}{result.text}"
            for run, result in session.config_results(session.config).items() if result.reasons]
