"""The top of the screen: what is open, and how each run compares with FP32, simulated and as built."""

from __future__ import annotations

from dataclasses import dataclass

from trt_tui.core.lowering.lowered import lowers
from trt_tui.core.measure.agreement import fp32_fault
from trt_tui.core.measure.comparison import EngineResult, Verdict
from trt_tui.core.measure.stages import SIMULATED as SIMULATED_STAGE
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.keep import Keep
from trt_tui.core.precision import Precision
from trt_tui.session.session import Session
from trt_tui.tui.known import config_name, engine_met, is_edited, met, verdict_outcome
from trt_tui.tui.spans import Line, Span, clip, decibel, padded, width_of
from trt_tui.tui.state.built import (
    CANNOT_RUN,
    DIFFERS,
    Shown,
    builder_texts,
    codes_time,
    fitting,
    fp32_engine_texts,
    gap_span,
    has_layers,
    shown_engine,
)
from trt_tui.words import (
    EXPORTED,
    FP32_TITLE,
    NOTHING,
    RUN_TITLES,
    SIMULATED,
    megabytes,
    metric_figure,
    number,
    plural,
    rate,
    run_title,
    with_unit,
    worst_sample,
)

_NAME = 15
"""Cells of a run's name, with the blanks around it."""


def header_line(session: Session, width: int) -> Line:
    """What is open, on how many samples, on what, in which config; what matters least is dropped first."""
    outline = session.outline
    if outline is None:
        return [(" ", ""), (session.options.model.rpartition("/")[2], "strong"), ("  opening", "dim")]
    right: Line = [(f"config {config_name(session)}{'*' if is_edited(session) else ''} ", "strong")]
    groups = f"  {plural(len(outline.groups), 'group')}"
    samples = _samples(session, width)
    counts = (f"{groups} ({plural(len(outline.layers), 'node')})", groups, "")
    devices = _devices(session, width)
    if session.builder is not None:
        choices = [(count, device) for device in devices for count in counts]
    else:
        choices = [(count, device) for count in counts for device in devices]
    for count, device in choices:
        line: Line = [(" ", ""), (outline.name, "strong"), (count, "dim"), *samples, (device, "dim")]
        if width_of(line) + width_of(right) + 2 <= width:
            return padded(line, width, right)
    return padded([(" ", ""), (outline.name, "strong"), (groups, "dim"), *samples], width, right)


def _samples(session: Session, width: int) -> Line:
    data = session.data
    if data is None:
        return []
    if data.random:
        return [(f"  {data.judged} random inputs", "warn")]
    used = min(data.whatif, data.judged)
    some = f"{used} of {data.judged} samples" if used < data.judged else plural(data.judged, "sample")
    if width < 120:
        return [(f"  {some}", "")]
    ranges = session.ranges_from.replace("calibrated on ", "calibration ") or f"calibration {data.calibrating}"
    return [(f"  {some}", ""), (f"{', labels' if data.labels else ''}; {ranges}", "dim")]


def _devices(session: Session, width: int) -> list[str]:
    """What builds, or if nothing does, what simulates; the longest text first."""
    backend = session.backend
    if session.builder is not None:
        return [f"  {text}" for text in builder_texts(session.builder)]
    if backend is None:
        return [""]
    plain = f"  {backend.name} {backend.version}" + (f" · {backend.device}" if width >= 100 else "")
    return [*([f"{plain}, {session.level.name}"] if session.level is not None else []), plain, ""]


def verdict_title(session: Session) -> tuple[str, str]:
    """Left and right text of the verdict's rule."""
    left = f" Verdict against {session.reference}"
    metric = next(iter(session.results.reference.items()), None)
    if metric is not None:
        left += f", {metric[0]} {metric_figure(metric[1])}"
    return left, f"target: {session.target.shown}" if session.target is not None else ""


@dataclass(frozen=True)
class _Table:
    """Titles and widths of the columns."""

    simulated: list[tuple[str, int]]
    built: list[tuple[str, int]]
    figure: str
    wide: bool
    codes: Precision = Precision.INT8

    @classmethod
    def fit(cls, session: Session, width: int) -> _Table:
        metric = next(iter(session.results.reference), None)
        agreement = metric is None and any(
            verdict is not None and verdict.agreement is not None
            for verdict in (session.measured(run).verdict for run in RUN_TITLES))
        figure = (metric.rpartition(".py:")[2] if metric else "agree" if agreement else "")[:8]
        wide = width >= 110
        extra = [(figure, 8)] if figure else []
        simulated = [("dB", 7), *([("worst sample", 13)] if wide else []), *extra,
                     ("NaN/Inf", 8) if wide else ("bad", 5)]
        built = [("dB", 6 if figure or session.builder is None else 7), *extra, ("ms", 7), ("MB", 6)]
        codes = session.config.codes_in_use(session.opened.outline)
        more = [(_time_title(codes), 9), ("gap", 5)]
        table = cls(simulated, built, figure, wide)
        if has_layers(session) and table.width + _cells(more) + len(" PASS?") <= width:
            return cls(simulated, [*built, *more], figure, wide, codes)
        return table

    @property
    def width(self) -> int:
        return _NAME + _cells(self.simulated) + 2 + _cells(self.built)


def _time_title(codes: Precision) -> str:
    return f"{codes.label} time"


def _cells(columns: list[tuple[str, int]]) -> int:
    return sum(width + 1 for _, width in columns)


_BAR: Span = (" │", "rule")


def verdict_lines(session: Session, width: int, height: int = 40) -> list[Line]:
    """Two header lines, a line for the FP32 engine and one for FP32 itself where there are any, and one each for FP16,
    INT8, the config, and what is as exported where a file's own network cannot be as it is."""
    if session.outline is None:
        return [[]] * 5
    table = _Table.fit(session, width)
    lines: list[Line] = [
        [(" run".ljust(_NAME), "dim"), ("simulated".ljust(_cells(table.simulated)), "dim"), _BAR,
         (f" {_built_title(session, table)}", "dim")],
        [(" " * _NAME, ""), *((f"{title:>{w}} ", "dim") for title, w in table.simulated), _BAR,
         *((f"{title:>{w}} ", "dim") for title, w in table.built)],
    ]
    if session.results.fp32_engine is not None:
        lines.append(clip(_fp32_engine_line(session.results.fp32_engine, table), width))
    if session.opened.reference is not None:
        lines.append(clip([(f" {FP32_TITLE}".ljust(_NAME), ""), *_plain_cells(session.fp32, table), _BAR], width))
    for run in RUN_TITLES:
        verdict, shown = session.measured(run).verdict, shown_engine(session, run)
        line: Line = [(f" {_run_name(session, run)}".ljust(_NAME), "strong" if run == "config" else "")]
        line += [*_simulated_cells(verdict, table), _BAR]
        if shown is not None and shown.stale:
            line += _stale_engine(shown, _cells(table.built))
        else:
            line += _engine_cells(shown.result if shown is not None else None, verdict, table)
        fresh = shown.result if shown is not None and not shown.stale else None
        if verdict is not None and not lowers(session.outline, session.run_configs()[run]):
            line.append((" nothing lowered", "dim"))
        else:
            line += _outcome(session, verdict, fresh, width - width_of(line))
        lines.append(clip(line, width))
        if (exported := session.measured(run).exported) is not None:
            line = [(f" {run_title(EXPORTED)}".ljust(_NAME), ""), *_simulated_cells(exported, table), _BAR,
                    *_engine_cells(None, exported, table)]
            lines.append(clip([*line, *_outcome(session, exported, None, width - width_of(line))], width))
    return [*lines, *_stage_lines(session, table, width, height)]


_TREE_ROWS = 21
"""Rows of a screen that are kept free of stages: for the tree, the detail, and the runs of the verdict."""


def _stage_lines(session: Session, table: _Table, width: int, height: int) -> list[Line]:
    """A line for each stage on the way to production, and where it first goes wrong.

    On a low screen those that meet the target are left out, the last ones first.
    """
    rows, said = session.stage_rows(), session.stage_summary()
    room = max(1, height - _TREE_ROWS - len(said))
    fine = [stage.name for stage, verdict in rows if verdict is not None and met(session, verdict) is not False]
    wrong = [stage.name for stage, _ in rows if stage.name not in fine]
    shown = {*wrong[:room], *fine[:max(0, room - len(wrong))]}
    lines: list[Line] = []
    for stage, verdict in rows:
        if stage.name not in shown:
            continue
        mark = stage.kind == SIMULATED_STAGE
        cells = zip(_verdict_cells(verdict, table, mark), table.simulated, strict=True)
        name = f" {stage.name}" if len(stage.name) < _NAME - 1 else f" {stage.name[:_NAME - 3]}…"
        line: Line = [(name.ljust(_NAME), ""), *((f"{text:>{w}} ", style) for (text, style), (_, w) in cells), _BAR]
        if stage.failed:
            line.append((f" {stage.failed}", "dim"))
        elif stage.before is not None and stage.before.worst is not None:
            text, style = decibel(stage.before.worst[1].errors, mark)
            line += [(f" {with_unit(text)} from the one before", style)]
        if verdict is not None:
            line += _outcome(session, verdict, None, width - width_of(line))
        lines.append(clip(line, width))
    if rows and len(shown) < len(rows):
        lines.append(clip([(f" {plural(len(rows) - len(shown), 'more stage')} on a taller screen", "dim")], width))
    return [*lines, *(clip([(f" {text}", "strong")], width) for text in said)]


def _simulated_cells(verdict: Verdict | None, table: _Table) -> Line:
    """The cells of the simulation, padded to their columns."""
    cells = zip(_verdict_cells(verdict, table, True), table.simulated, strict=True)
    return [(f"{text:>{width}} ", style) for (text, style), (_, width) in cells]


def _built_title(session: Session, table: _Table) -> str:
    if session.builder is not None:
        if not session.builder.runs:
            return "engine, built only"
        return "engine as built, outputs unmarked" if _cells(table.built) > 33 else "engine as built"
    title = f"as built, {session.backend.name}" if session.backend is not None else "as built"
    return f"{title}, FP16 as FP32" if session.backend is not None and not session.backend.real_fp16 else title


def _fp32_engine_line(fp32_engine: EngineResult, table: _Table) -> Line:
    """The FP32 engine; its error is not caused by low precision."""
    room = _cells(table.simulated)
    words = fitting(fp32_engine_texts(fp32_engine), room)
    return [(" FP32 engine".ljust(_NAME), ""), (words[:room].ljust(room), "warn" if fp32_fault(fp32_engine) else "dim"),
            _BAR, *_engine_cells(fp32_engine, None, table)]


def _run_name(session: Session, run: str) -> str:
    if run != "config":
        return RUN_TITLES[run]
    name = f"{config_name(session)}{'*' if is_edited(session) else ''}"
    config, outline = session.config, session.outline
    if config == session.run_configs()["int8"]:
        return f"{name} = INT8"
    if config == session.run_configs()["fp16"]:
        return f"{name} = FP16"
    if config.quantized is Precision.FILE and not config.moves:
        return f"{name} = file"
    if outline is None:
        return name
    up = len(config.raised(outline))
    changes = [f"{up} up"] if up else []
    changes += [plural(len(moves), kind.column) for kind, moves in config.shown(outline) if kind not in (Choice, Keep)]
    return fitting((f"{name} {', '.join(changes) or 'edited'}", f"{name} edited", name), _NAME - 2)


def _verdict_cells(verdict: Verdict | None, table: _Table, simulated: bool) -> list[Span]:
    mark = SIMULATED if simulated else ""
    if verdict is None:
        return [(NOTHING, "dim")] * len(table.simulated)
    worst = verdict.worst
    cells = [decibel(worst[1].errors if worst else None, simulated)]
    if table.wide:
        sample = worst[1] if worst else None
        if sample is None or sample.worst_index is None:
            cells.append((NOTHING, "dim"))
        else:
            cells.append((worst_sample(sample.worst_index, sample.worst_sqnr_db, mark), "dim"))
    if table.figure:
        cells.append(_figure(verdict, mark))
    cells.append((str(verdict.bad) if verdict.bad < 1e5 else number(float(verdict.bad)),
                  "bad" if verdict.bad else "dim"))
    return cells


def _plain_cells(verdict: Verdict | None, table: _Table) -> Line:
    """The cells of what is neither simulated nor built, padded to their columns."""
    cells = zip(_verdict_cells(verdict, table, False), table.simulated, strict=True)
    return [(f"{text:>{width}} ", style) for (text, style), (_, width) in cells]


def _figure(verdict: Verdict, mark: str) -> Span:
    if verdict.headline is not None:
        return (metric_figure(verdict.headline, mark), "")
    if verdict.agreement is not None:
        return (rate(verdict.agreement, mark), "")
    return (NOTHING, "dim")


def _engine_cells(engine: EngineResult | None, simulated: Verdict | None, table: _Table) -> Line:
    """The cells of an engine, padded to their columns. A preview is marked as such beside its latency."""
    cells: dict[str, Span] = {title: (NOTHING, "dim") for title, _ in table.built}
    if engine is not None and engine.bytes is not None:
        cells["MB"] = (megabytes(engine.bytes), "")
    verdict = engine.verdict if engine is not None else None
    if engine is not None and verdict is None:
        before = _cells(table.built[:list(cells).index("MB")]) - 1
        words = "not built" if engine.failed else fitting((CANNOT_RUN, "cannot run here"), before)
        return padded([(f"{words:>{before}} ", "dim"), (f"{cells['MB'][0]:>6} ", "")], _cells(table.built))
    if engine is not None and verdict is not None:
        worst = verdict.worst
        cells["dB"] = decibel(worst[1].errors if worst else None, simulated=False)
        if not engine.as_asked:
            cells["dB"] = (f"{DIFFERS}{cells['dB'][0]}", "warn")
        if table.figure:
            cells[table.figure] = _figure(verdict, "")
        if engine.latency_ms is not None:
            cells["ms"] = (number(engine.latency_ms[0]), "dim" if engine.quick else "")
        if engine.quick:
            cells["MB"] = ("quick", "dim")
        if text := codes_time(engine, table.codes):
            cells[_time_title(table.codes)] = (text, "")
        cells["gap"] = gap_span(simulated, engine) or (NOTHING, "dim")
    return [(f"{cells[title][0]:>{w}} "[:w + 1], cells[title][1]) for title, w in table.built]


def _stale_engine(shown: Shown, width: int) -> Line:
    worst = shown.result.verdict.worst if shown.result.verdict is not None else None
    value = decibel(worst[1].errors if worst else None, simulated=False)[0]
    value = value if shown.result.as_asked else f"{DIFFERS}{value}"
    of = f"{value:>6}  is {shown.name}{', a quick build' if shown.result.quick else ''}"
    text = fitting((f"{of}, {plural(shown.behind, 'edit')} behind", of, f"{value:>6}  is {shown.name}"), width)
    return [(text[:width].ljust(width), "stale")]


def _outcome(session: Session, verdict: Verdict | None, engine: EngineResult | None, room: int) -> Line:
    """Whether the target is met: by the engine if there is one, and by the simulation if that differs."""
    if verdict is None:
        return [(" …" if session.busy else "", "dim")]
    wanted = min(verdict.total, session.data.whatif) if session.data is not None else verdict.total
    if verdict.samples < wanted:
        return [(f" on {verdict.samples}/{wanted}", "dim")]
    simulated = met(session, verdict)
    built = engine_met(session, engine)
    reached = simulated if built is None else built
    if reached is None:
        return []
    judged = verdict if built is None or engine is None else engine.verdict
    line: Line = [(f" {verdict_outcome(session, judged)}", "good" if reached else "bad")]
    other = f" {SIMULATED}{verdict_outcome(session, verdict)}"
    if simulated is not None and simulated is not reached and width_of(line) + len(other) <= room:
        line.append((other, "dim"))
    return line
