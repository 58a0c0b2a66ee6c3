"""What the screen shows, as plain data made from a session: lines of styled text, rows of the tree, orders.

Nothing here draws. A line is a list of spans, a span a text and the name of a style; `trt_tui.tui.widgets.lines` knows
what the names look like. ``~`` before a number says that it is simulated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from trt_tui.core.calibration import TensorStats
from trt_tui.core.comparison import EngineResult, Errors, GroupErrors, Share, Verdict
from trt_tui.core.hierarchy import Blocks, FoldedRow, GroupRow, LayerRow, Row, Scope, blocks, build_tree
from trt_tui.core.network import Group, Outline
from trt_tui.core.precision import FP16_MAX, Precision, PrecisionConfig, rank
from trt_tui.jobs.messages import Option
from trt_tui.session import ConfigResults, Session

Span: TypeAlias = tuple[str, str]
"""A text and the name of its style: "", "dim", "strong", "bad", "good", "warn", "stale", "key", "rule" or "band0" to
"band4"."""

Line: TypeAlias = list[Span]

SIMULATED = "~"
NOTHING = "–"

RUN_TITLES = {"fp16": "FP16 all", "int8": "INT8 all", "config": "config"}


class Measure(Enum):
    """What the rows are coloured by."""

    OWNS = "owns"
    ISOLATED = "isolated"
    ACCUMULATED = "accumulated"


class View(Enum):
    """What the main pane lists."""

    TREE = "tree"
    WORST = "worst first"
    BLOCKS = "blocks"


# -- text -----------------------------------------------------------------------------------------------------------


def width_of(line: Line) -> int:
    return sum(len(text) for text, _ in line)


def shorten(text: str, width: int) -> str:
    """The text with its middle replaced by an ellipsis where it is longer than ``width``; its end says most."""
    if len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    head = (width - 1) // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head):]}"


def clip(line: Line, width: int) -> Line:
    """The line cut to ``width`` cells, with an ellipsis where something was cut."""
    if width_of(line) <= width:
        return line
    result: Line = []
    room = width - 1
    for text, style in line:
        result.append((text[:room], style))
        room -= len(text)
        if room <= 0:
            break
    return [*result, ("…", "dim")]


def padded(line: Line, width: int, right: Line = ()) -> Line:
    """The line, then blanks, then ``right`` at the right edge; ``right`` goes first where there is no room."""
    gap = width - width_of(line) - width_of(list(right))
    if right and gap >= 1:
        return [*line, (" " * gap, ""), *right]
    line = clip(line, width)
    return [*line, (" " * max(0, width - width_of(line)), "")]


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` cells."""
    lines, current = [], ""
    for word in text.split():
        if current and len(current) + 1 + len(word) > width:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}" if current else word
    return [*lines, current] if current else lines


def number(value: float | None, digits: int = 3) -> str:
    """A figure with so many digits, without a leading zero where it is below 1."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    whole = len(str(int(abs(value))))
    text = f"{value:.{max(0, digits - (whole if abs(value) >= 1 else 0))}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and text.lstrip("-").startswith("0.") else text


def percent(share: float, simulated: bool = True) -> str:
    """A share such as ``~52%``, ``~ 5%``, ``~.4%``, or ``·`` for one that is next to nothing."""
    mark = SIMULATED if simulated else ""
    if abs(share) < 0.002:
        return "·"
    if abs(share) < 0.0095:
        sign = "-" if share < 0 else ""
        return f"{mark}{sign}.{round(abs(share) * 1000)}%"
    return f"{mark}{100 * share:2.0f}%"


def decibel(errors: Errors | None, simulated: bool = True) -> Span:
    """The SQNR in dB, "exact", "NaN" or "Inf", or a dash where it was not measured."""
    if errors is None:
        return (NOTHING, "dim")
    if errors.bad:
        return ("NaN" if errors.nan else "Inf", "bad")
    if errors.exact:
        return ("exact", "")
    if errors.sqnr_db is None:
        return (NOTHING, "dim")
    return (f"{SIMULATED if simulated else ''}{errors.sqnr_db:.1f}", "")


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


# -- what is known of which config ----------------------------------------------------------------------------------


def config_of(session: Session, run: str) -> PrecisionConfig:
    """The config that a run of the verdict measures."""
    return session.run_configs()[run]


def results_of(session: Session, config: PrecisionConfig) -> ConfigResults:
    return session.results.get(config) or ConfigResults()


def verdict_of(session: Session, run: str) -> Verdict | None:
    """The simulated verdict of a run, None where nothing is known of it yet."""
    config = config_of(session, run)
    verdict = results_of(session, config).verdict
    if run == "config":
        if verdict is None and config == config_of(session, "int8"):
            return verdict_of(session, "int8")
        return verdict
    record = session.runs.get(run)
    return record.verdict if record is not None and record.verdict is not None else verdict


def engine_of(session: Session, run: str) -> EngineResult | None:
    """What the build of a run's own config did."""
    record = session.runs.get(run)
    if run != "config" and record is not None and record.engine is not None:
        return record.engine
    return results_of(session, config_of(session, run)).engine


def shares_of(session: Session, run: str) -> Mapping[str, Share]:
    """The shares measured for a run's own config, by group."""
    config = config_of(session, run)
    shares = results_of(session, config).shares
    if shares:
        return shares
    same = ("int8", "fp16") if run == "config" else (run,)
    for name in same:
        record = session.runs.get(name)
        if record is not None and record.shares and config == config_of(session, name):
            return record.shares
    return {}


def errors_of(session: Session, run: str) -> Mapping[str, GroupErrors]:
    """The errors at the groups in a run."""
    record = session.runs.get(run)
    if record is not None and record.groups:
        return record.groups
    if run == "config" and session.config == config_of(session, "int8") and "int8" in session.runs:
        return session.runs["int8"].groups
    return {}


def config_name(session: Session, config: PrecisionConfig | None = None) -> str:
    config = session.config if config is None else config
    return session.names.get(config, "c?")


def is_edited(session: Session) -> bool:
    """Whether the config differs from the one that was built last."""
    return session.built is not None and session.built != session.config


def distance(one: PrecisionConfig, other: PrecisionConfig) -> int:
    """How many groups and ranges differ."""
    groups = {name for name in {*one.groups, *other.groups}
              if (one.groups[name].precision if name in one.groups else None)
              is not (other.groups[name].precision if name in other.groups else None)}
    ranges = {name for name in {*one.ranges, *other.ranges} if one.ranges.get(name) != other.ranges.get(name)}
    return len(groups) + len(ranges) + (one.quantized is not other.quantized) + (one.other is not other.other)


def raised_count(session: Session, config: PrecisionConfig, outline: Outline) -> int:
    by_name = outline.group_by_name
    return sum(1 for name, choice in config.groups.items()
               if name in by_name and rank(choice.precision) > rank(config.default_for(by_name[name])))


def met(session: Session, verdict: Verdict | None) -> bool | None:
    """Whether a verdict meets the target; None where nobody can say yet."""
    if verdict is None or session.target is None:
        return None
    return session.target.reached(verdict)


def headline(session: Session, verdict: Verdict | None, simulated: bool = True) -> Span:
    """The figure of a verdict that the target is about."""
    if verdict is None:
        return (NOTHING, "dim")
    mark = SIMULATED if simulated else ""
    kind = session.target.kind if session.target is not None else "sqnr"
    if kind == "metric" and verdict.headline is not None:
        return (f"{mark}{number(verdict.headline)}", "")
    if kind == "agreement" and verdict.agreement is not None:
        return (f"{mark}{100 * verdict.agreement:.1f}%", "")
    worst = verdict.worst
    if kind == "cosine" and worst is not None and worst[1].errors.cosine is not None and not verdict.bad:
        return (f"{mark}{worst[1].errors.cosine:.4f}", "")
    text, style = decibel(worst[1].errors if worst else None, simulated)
    return (f"{text} dB" if text[-1:].isdigit() else text, style)


# -- top ------------------------------------------------------------------------------------------------------------


def header_line(session: Session, width: int) -> Line:
    """What is open, on how many samples, on what, in which config."""
    outline = session.outline
    if outline is None:
        return [(" ", ""), (session.options.model.rpartition("/")[2], "strong"), ("  opening", "dim")]
    left: Line = [(" ", ""), (outline.name, "strong"),
                  (f"  {plural(len(outline.groups), 'group')} ({plural(len(outline.layers), 'node')})", "dim")]
    data, backend = session.data, session.backend
    if data is not None:
        if data.random:
            left.append((f"  {data.judged} random inputs", "warn"))
        else:
            used = min(data.whatif, data.judged)
            some = f"{used} of {data.judged} samples" if used < data.judged else plural(data.judged, "sample")
            left.append((f"  {some}", ""))
            if width >= 120:
                labels = ", labels" if data.labels else ""
                left.append((f"{labels}; calibration {data.calibrating}", "dim"))
    right: Line = [(f"config {config_name(session)}{'*' if is_edited(session) else ''} ", "strong")]
    if backend is not None:
        device: Line = [(f"  {backend.name} {backend.version}", "dim")]
        if width >= 100:
            device.append((f" · {backend.device}", "dim"))
        if width_of(left) + width_of(device) + width_of(right) + 2 <= width:
            left += device
    return padded(left, width, right)


def verdict_title(session: Session) -> tuple[str, str]:
    """Left and right text of the verdict's rule."""
    left = " Verdict against FP32"
    metric = next(iter(session.reference_metric.items()), None)
    if metric is not None:
        left += f", {metric[0]} {number(metric[1])}"
    return left, f"target: {session.target.shown}" if session.target is not None else ""


def verdict_lines(session: Session, width: int) -> list[Line]:
    """Header and one line for each run: two lines, then FP16, INT8, config."""
    if session.outline is None:
        return [[]] * 5
    metric = next(iter(session.reference_metric), None)
    verdicts = {run: verdict_of(session, run) for run in RUN_TITLES}
    agreement = metric is None and any(v is not None and v.agreement is not None for v in verdicts.values())
    figure = (metric or ("agree" if agreement else ""))[:8]
    wide = width >= 110
    name_width = 14
    columns: list[tuple[str, int]] = [("dB", 7)]
    if wide:
        columns.append(("worst sample", 13))
    if figure:
        columns.append((figure, 8))
    columns.append(("NaN/Inf" if wide else "bad", 8 if wide else 5))
    built: list[tuple[str, int]] = [("dB", 6)]
    if figure:
        built.append((figure, 8))
    built += [("ms", 7), ("MB", 6)]
    simulated_width = sum(w + 1 for _, w in columns)
    title = f"as built, {session.backend.name}" if session.backend is not None else "as built"
    if session.backend is not None and not session.backend.real_fp16:
        title += ", FP16 as FP32"
    bar: Span = (" │", "rule")
    lines: list[Line] = [
        [(" run".ljust(name_width + 1), "dim"), ("simulated".ljust(simulated_width), "dim"), bar, (f" {title}", "dim")],
        [(" " * (name_width + 1), ""), *((f"{t:>{w}} ", "dim") for t, w in columns), bar,
         *((f"{t:>{w}} ", "dim") for t, w in built)],
    ]
    for run in RUN_TITLES:
        verdict, engine = verdicts[run], engine_of(session, run)
        line: Line = [(f" {_run_name(session, run)}".ljust(name_width + 1), "strong" if run == "config" else "")]
        for (text, style), (_, w) in zip(_verdict_cells(verdict, figure, wide, True), columns, strict=True):
            line.append((f"{text:>{w}} ", style))
        line.append(bar)
        if engine is None and run == "config" and is_edited(session):
            line += _stale_engine(session, figure, sum(w + 1 for _, w in built))
        else:
            for (text, style), (_, w) in zip(_engine_cells(engine, figure), built, strict=True):
                line.append((f"{text:>{w}} ", style))
        line += _outcome(session, run, verdict, engine)
        lines.append(clip(line, width))
    return lines


def _run_name(session: Session, run: str) -> str:
    if run != "config":
        return RUN_TITLES[run]
    name = f"{config_name(session)}{'*' if is_edited(session) else ''}"
    config = session.config
    if config == config_of(session, "int8"):
        return f"{name} = INT8"
    if config == config_of(session, "fp16"):
        return f"{name} = FP16"
    up = raised_count(session, config, session.outline)
    changes = [f"{up} up"] if up else []
    if config.ranges:
        changes.append(plural(len(config.ranges), "range"))
    return f"{name} {', '.join(changes) or 'edited'}"


def _verdict_cells(verdict: Verdict | None, figure: str, wide: bool, simulated: bool) -> list[Span]:
    mark = SIMULATED if simulated else ""
    if verdict is None:
        return [(NOTHING, "dim")] * (2 + wide + bool(figure))
    worst = verdict.worst
    cells = [decibel(worst[1].errors if worst else None, simulated)]
    if wide:
        sample = worst[1] if worst else None
        if sample is None or sample.worst_index is None:
            cells.append((NOTHING, "dim"))
        else:
            value = "NaN" if sample.worst_sqnr_db is None else f"{mark}{sample.worst_sqnr_db:.1f}"
            cells.append((f"{value} #{sample.worst_index}", "dim"))
    if figure:
        cells.append(_figure(verdict, mark))
    cells.append((str(verdict.bad) if verdict.bad < 1e5 else number(float(verdict.bad)),
                  "bad" if verdict.bad else "dim"))
    return cells


def _figure(verdict: Verdict, mark: str) -> Span:
    if verdict.headline is not None:
        return (f"{mark}{number(verdict.headline)}", "")
    if verdict.agreement is not None:
        return (f"{mark}{100 * verdict.agreement:.1f}%", "")
    return (NOTHING, "dim")


def _engine_cells(engine: EngineResult | None, figure: str) -> list[Span]:
    if engine is None:
        return [(NOTHING, "dim")] * (3 + bool(figure))
    worst = engine.verdict.worst
    cells = [decibel(worst[1].errors if worst else None, simulated=False)]
    if figure:
        cells.append(_figure(engine.verdict, ""))
    cells.append((number(engine.latency_ms[0]) if engine.latency_ms else NOTHING, ""))
    cells.append((f"{engine.bytes / 1e6:.1f}" if engine.bytes is not None else NOTHING, ""))
    return cells


def _stale_engine(session: Session, figure: str, width: int) -> Line:
    engine = results_of(session, session.built).engine
    worst = engine.verdict.worst if engine is not None else None
    value = decibel(worst[1].errors if worst else None, simulated=False)[0]
    behind = plural(distance(session.built, session.config), "edit")
    text = f"{value:>6}  is {config_name(session, session.built)}, {behind} behind"
    if len(text) > width:
        text = f"{value:>6}  is {config_name(session, session.built)}"
    return [(text[:width].ljust(width), "stale")]


def _outcome(session: Session, run: str, verdict: Verdict | None, engine: EngineResult | None) -> Line:
    if verdict is None:
        return [(" …" if session.busy else "", "dim")]
    line: Line = []
    reached = met(session, verdict)
    if reached is not None:
        line.append((" passes" if reached else " FAILS", "good" if reached else "bad"))
        if engine is not None and met(session, engine.verdict) is (not reached):
            line.append((" built: " + ("FAILS" if reached else "passes"), "bad" if reached else "good"))
    wanted = min(verdict.total, session.data.whatif) if session.data is not None else verdict.total
    if verdict.samples < wanted:
        line = [(f" on {verdict.samples}/{wanted}", "dim")]
    return line


# -- the tree -------------------------------------------------------------------------------------------------------

GLYPHS = "█▓▒░·"
BAD_GLYPH = "!"
UNKNOWN_GLYPH = "?"
SHARE_BANDS = (0.20, 0.05, 0.01, 0.002)
DECIBEL_BANDS = (10.0, 20.0, 30.0, 40.0)
LOUD = 2
"""Rows up to this band are the bad rows that keys jump between."""


def band_of(value: float, measure: Measure) -> int:
    """0 (worst) to 4 (next to nothing); shares are 0 to 1, errors in dB."""
    if measure is Measure.OWNS:
        return next((i for i, least in enumerate(SHARE_BANDS) if value >= least), 4)
    return next((i for i, most in enumerate(DECIBEL_BANDS) if value < most), 4)


def legend(measure: Measure) -> str:
    if measure is Measure.OWNS:
        return "█ ≥20%  ▓ 5–20  ▒ 1–5  ░ .2–1  · less  ! NaN/Inf  ? not measured"
    return "█ <10 dB  ▓ 10–20  ▒ 20–30  ░ 30–40  · more  ! NaN/Inf  ? not measured"


@dataclass(frozen=True)
class VisibleRow:
    """One line of the tree. ``row`` is None for a node of an opened group or of the folded row; ``node`` names it."""

    key: str
    depth: int
    row: Row | None
    node: str = ""
    opened: bool = False


class TreeModel:
    """The tree of an outline with the look-ups that the screen needs. Immutable after construction."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.tree: Scope = build_tree(outline.layers, outline.groups)
        self.blocks: Blocks | None = blocks(self.tree)
        self.rows: dict[str, GroupRow] = {}
        self.ancestors: dict[str, tuple[Scope, ...]] = {}
        self.titles: dict[str, str] = {}
        self.group_rows: list[GroupRow] = []
        self.layer_rows: list[LayerRow] = []
        self.folded: FoldedRow | None = None
        self.scopes: list[Scope] = []
        stack: list[tuple[Row, tuple[Scope, ...]]] = [(row, ()) for row in reversed(self.tree.children)]
        while stack:
            row, above = stack.pop()
            if isinstance(row, Scope):
                self.scopes.append(row)
                inner = (*above, row)
                stack.extend((child, inner) for child in reversed(row.children))
            elif isinstance(row, GroupRow):
                self.group_rows.append(row)
                self.rows[row.group.name] = row
                self.ancestors[row.group.name] = above
                self.titles[row.group.name] = "/".join((*(scope.label for scope in above), row.label))
            elif isinstance(row, LayerRow):
                self.layer_rows.append(row)
            else:
                self.folded = row
        self.quantizable = sum(group.quantizable for group in outline.groups)
        self.macs: dict[str, int | None] = {}
        for group in outline.groups:
            known = [outline.layer_by_name[name].macs for name in group.layers]
            self.macs[group.name] = None if None in known else sum(known)
        self.scope_macs: dict[str, int] = {}
        for name, value in self.macs.items():
            for scope in self.ancestors[name]:
                self.scope_macs[scope.path] = self.scope_macs.get(scope.path, 0) + (value or 0)
        self.all_macs = sum(value or 0 for value in self.macs.values())

    def groups_of(self, row: Row | None) -> tuple[Group, ...]:
        """The groups that a change on a row acts on."""
        by_name = self.outline.group_by_name
        if isinstance(row, Scope):
            return tuple(by_name[name] for name in row.groups)
        return (row.group,) if isinstance(row, GroupRow) else ()

    def first_open(self, most: int = 40) -> set[str]:
        """Scopes to open at first: whole levels from the outside in, as long as at most ``most`` rows show."""
        opened: set[str] = set()
        level = [row for row in self.tree.children if isinstance(row, Scope)]
        shown = len(self.tree.children)
        while level:
            shown += sum(len(scope.children) for scope in level)
            if shown > most:
                break
            opened.update(scope.path for scope in level)
            level = [child for scope in level for child in scope.children if isinstance(child, Scope)]
        return opened

    def matching(self, text: str) -> set[str] | None:
        """Names of the groups that hold every word of a filter in name, path or operator; None for no filter."""
        words = text.lower().split()
        if not words:
            return None
        found = set()
        for row in self.group_rows:
            name = row.group.name
            full = f"{self.titles[name]} {row.path} {name} {row.group.operator}".lower()
            if all(word in full for word in words):
                found.add(name)
        return found

    def weights_of_scopes(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Sum of the weights below each scope, by path."""
        sums: dict[str, float] = {}
        for name, weight in weights.items():
            for scope in self.ancestors.get(name, ()):
                sums[scope.path] = sums.get(scope.path, 0.0) + weight
        return sums

    def visible(self, opened: set[str], weights: Mapping[str, float] | None = None,
                matches: set[str] | None = None) -> list[VisibleRow]:
        """The lines of the tree view: siblings by weight where weights are given, else in network order."""
        sums = self.weights_of_scopes(weights) if weights else {}
        allowed = None
        if matches is not None:
            allowed = {scope.path for name in matches for scope in self.ancestors[name]}

        def weigh(row: Row) -> float:
            if isinstance(row, Scope):
                return -sums.get(row.path, 0.0)
            if isinstance(row, GroupRow):
                return -weights.get(row.group.name, 0.0)
            return math.inf if isinstance(row, FoldedRow) else 0.0

        lines: list[VisibleRow] = []
        stack: list[tuple[Row, int]] = []

        def push(rows: Sequence[Row], depth: int) -> None:
            if matches is not None:
                rows = [row for row in rows
                        if (isinstance(row, Scope) and row.path in allowed)
                        or (isinstance(row, GroupRow) and row.group.name in matches)]
            if weights:
                rows = sorted(rows, key=weigh)
            stack.extend((row, depth) for row in reversed(rows))

        push(self.tree.children, 0)
        while stack:
            row, depth = stack.pop()
            if isinstance(row, Scope):
                is_open = matches is not None or row.path in opened
                lines.append(VisibleRow(row.path, depth, row, opened=is_open))
                if is_open:
                    push(row.children, depth + 1)
            else:
                lines.extend(self._leaf(row, depth, opened))
        return lines

    def worst_first(self, opened: set[str], weights: Mapping[str, float] | None,
                    matches: set[str] | None = None) -> list[VisibleRow]:
        """The lines of the worst-first view: all groups, the heaviest first, then those of unknown weight."""
        weights = weights or {}
        rows = [row for row in self.group_rows if matches is None or row.group.name in matches]
        rows.sort(key=lambda row: -weights.get(row.group.name, -math.inf))
        lines: list[VisibleRow] = []
        for row in rows:
            lines.extend(self._leaf(row, 0, opened))
        if matches is None:
            for row in (*self.layer_rows, *((self.folded,) if self.folded else ())):
                lines.extend(self._leaf(row, 0, opened))
        return lines

    @staticmethod
    def _leaf(row: GroupRow | LayerRow | FoldedRow, depth: int, opened: set[str]) -> Iterable[VisibleRow]:
        names: tuple[str, ...] = ()
        if isinstance(row, FoldedRow):
            names = row.layers
        elif isinstance(row, GroupRow) and len(row.group.layers) > 1:
            names = row.group.layers
        is_open = bool(names) and row.path in opened
        yield VisibleRow(row.path, depth, row, opened=is_open)
        if is_open:
            for name in names:
                yield VisibleRow(f"{row.path}\0{name}", depth + 1, None, node=name)


@dataclass(frozen=True)
class Cells:
    """What one line of the tree says; ``bar`` is 0 to 1, ``reason`` stands in place of owns, bar and raised."""

    mark: str
    glyph: str
    glyph_style: str
    name: str
    name_style: str = ""
    operator: str = ""
    asked: str = ""
    asked_style: str = ""
    value: str = ""
    value_style: str = ""
    bar: float = 0.0
    raised: str = ""
    cost: str = ""
    reason: str = ""


@dataclass
class Figures:
    """The figures of one view (measure and run), taken from the session once; rows ask it as they are drawn."""

    model: TreeModel
    config: PrecisionConfig
    measure: Measure = Measure.OWNS
    run: str = "config"
    values: Mapping[str, float] = field(default_factory=dict)
    stale: frozenset[str] = frozenset()
    bad: frozenset[str] = frozenset()
    raised: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    calm: bool = False
    scope_values: dict[str, float] = field(default_factory=dict)
    scope_bad: frozenset[str] = frozenset()
    scope_stale: frozenset[str] = frozenset()
    scope_raised: dict[str, int] = field(default_factory=dict)
    top: float = 0.0

    @cached_property
    def weights(self) -> dict[str, float]:
        """How much each group weighs in a worst-first order; NaN and Inf weigh most."""
        if self.measure is Measure.OWNS:
            weights = dict(self.values)
        else:
            weights = {name: 10 ** (-value / 10) for name, value in self.values.items()}
        if self.bad:
            weights.update((name, 1e9) for name in self.model.outline.group_by_name if name in self.bad)
        return weights

    def band(self, group: str) -> int | None:
        """Band of a group; None where it was not measured."""
        value = self.values.get(group)
        return None if value is None else band_of(value, self.measure)

    @cached_property
    def worst_first(self) -> tuple[str, ...]:
        """Names of the groups that weigh anything, the heaviest first."""
        return tuple(name for name, weight in sorted(self.weights.items(), key=lambda item: -item[1]) if weight > 0)

    @cached_property
    def loud(self) -> frozenset[str]:
        """The bad rows: NaN or Inf, or a value in the first bands."""
        if self.measure is Measure.OWNS:
            loud = {name for name, value in self.values.items() if value >= SHARE_BANDS[LOUD]}
        else:
            loud = {name for name, value in self.values.items() if value < DECIBEL_BANDS[LOUD]}
        return frozenset((loud | self.bad) & self.model.rows.keys())

    def value_text(self, value: float) -> str:
        if self.measure is Measure.OWNS:
            return percent(value)
        return "exact" if value == math.inf else f"{SIMULATED}{value:.1f}"

    def _style(self, value: float | None, bad: bool, stale: bool) -> tuple[str, str]:
        """Glyph and style of a value."""
        if bad:
            return BAD_GLYPH, "bad"
        if value is None:
            return UNKNOWN_GLYPH, "dim"
        band = band_of(value, self.measure)
        if stale or self.calm:
            return GLYPHS[band], "dim"
        return GLYPHS[band], f"band{band}"

    def cells(self, line: VisibleRow, full: bool = False) -> Cells:
        """What a line says; ``full`` gives groups their path, for views that are no tree."""
        row = line.row
        if row is None:
            return self._node_cells(line)
        if isinstance(row, Scope):
            return self._scope_cells(line, row)
        if isinstance(row, GroupRow):
            return self._group_cells(row, full)
        if isinstance(row, LayerRow):
            return Cells(" ", "·", "dim", row.label, "dim", row.layer.op_type, "FP32", "dim", reason=row.refused)
        return Cells("▾" if line.opened else "▸", "·", "dim", row.label, "dim")

    def _node_cells(self, line: VisibleRow) -> Cells:
        layer = self.model.outline.layer_by_name[line.node]
        return Cells(" ", " ", "", line.node, "dim", layer.op_type, reason=layer.note)

    def _scope_cells(self, line: VisibleRow, scope: Scope) -> Cells:
        value = self.scope_values.get(scope.path)
        bad = scope.path in self.scope_bad
        _, style = self._style(value, bad, scope.path in self.scope_stale)
        up = self.scope_raised.get(scope.path, 0)
        text = "NaN" if bad and self.measure is not Measure.OWNS else "" if value is None else self.value_text(value)
        return Cells("▾" if line.opened else "▸", BAD_GLYPH if bad else " ", style, scope.label,
                     "strong" if line.opened else "", asked=f"{up}↑" if up else "", asked_style="strong",
                     value=text, value_style="dim" if style == "band4" else style,
                     cost=self._cost(self.model.scope_macs.get(scope.path)))

    def _group_cells(self, row: GroupRow, full: bool) -> Cells:
        group = row.group
        value = self.values.get(group.name)
        bad = group.name in self.bad
        glyph, style = self._style(value, bad, group.name in self.stale)
        asked = self.config.precision_of(group)
        default = self.config.default_for(group)
        arrow = "↑" if rank(asked) > rank(default) else "↓" if rank(asked) < rank(default) else ""
        if self.run != "config":
            asked, arrow = config_precision(self.run, group, self.config), ""
        quiet = style in ("dim", "band4") and not arrow
        bar = 0.0
        if value is not None and not bad and self.measure is Measure.OWNS and self.top > 0:
            bar = max(0.0, value / self.top)
        position, raised = self.raised.get(group.name, (0, ""))
        reason = row.refused if Precision.FP16 in group.refusals else ""
        text = "NaN" if bad and self.measure is not Measure.OWNS else "" if value is None else self.value_text(value)
        return Cells(" ", glyph, style, self.model.titles[group.name] if full else row.label,
                     "dim" if quiet else "", group.operator, f"{asked.label}{arrow}", "strong" if arrow else "dim",
                     text, "dim" if style == "band4" else style, bar, raised, self._cost(self.model.macs[group.name]),
                     reason)

    def _cost(self, macs: int | None) -> str:
        if macs is None or not self.model.all_macs:
            return ""
        share = macs / self.model.all_macs
        return "·" if share < 0.005 else f"{100 * share:.0f}%"


def config_precision(run: str, group: Group, config: PrecisionConfig) -> Precision:
    """What a group runs in in one of the uniform runs."""
    return PrecisionConfig.uniform(Precision(run), config.other).precision_of(group)


def figures(session: Session, model: TreeModel, measure: Measure, run: str,
            last: Mapping[str, float] | None = None) -> Figures:
    """The figures of a view.

    Args:
        last: Shares of an earlier config, shown dimmed for groups whose share is being measured again.
    """
    errors = errors_of(session, run)
    stale: set[str] = set()
    values: dict[str, float] = {}
    bad = set()
    for name, one in errors.items():
        at = one.isolated if measure is Measure.ISOLATED else one.accumulated
        if at is not None and at.bad:
            bad.add(name)
    if measure is Measure.OWNS:
        values = {name: share.owns for name, share in shares_of(session, run).items() if math.isfinite(share.owns)}
        if run == "config":
            for name, value in (last or {}).items():
                if name not in values:
                    values[name] = value
                    stale.add(name)
    else:
        for name, one in errors.items():
            at = one.isolated if measure is Measure.ISOLATED else one.accumulated
            if at is not None and (at.exact or at.sqnr_db is not None):
                values[name] = math.inf if at.exact else at.sqnr_db
    config = session.config
    result = Figures(model, config, measure, run, values, frozenset(stale), frozenset(bad),
                     _raised(results_of(session, config_of(session, run))),
                     calm=run == "config" and met(session, verdict_of(session, run)) is True)
    result.top = max([0.05, *(value for value in values.values())]) if measure is Measure.OWNS else 0.0
    _sum_scopes(result)
    return result


def _raised(results: ConfigResults) -> dict[str, tuple[int, str]]:
    """Position in the worst-first order and the output error when everything down to it is raised, by group."""
    texts = {}
    for position, (name, value) in enumerate(zip(results.raised_order, results.raised_db, strict=False), 1):
        texts[name] = (position, "exact" if value is None else f"{SIMULATED}{value:.1f} dB")
    return texts


def _sum_scopes(result: Figures) -> None:
    model = result.model
    sums: dict[str, float] = {}
    bad, stale = set(), set()
    for name, value in result.values.items():
        for scope in model.ancestors.get(name, ()):
            path = scope.path
            if result.measure is Measure.OWNS:
                sums[path] = sums.get(path, 0.0) + value
            else:
                sums[path] = min(sums.get(path, math.inf), value)
            if name in result.stale:
                stale.add(path)
    for name in result.bad:
        bad.update(scope.path for scope in model.ancestors.get(name, ()))
    for name, choice in result.config.groups.items():
        group = model.outline.group_by_name.get(name)
        if group is not None and rank(choice.precision) > rank(result.config.default_for(group)):
            for scope in model.ancestors[name]:
                result.scope_raised[scope.path] = result.scope_raised.get(scope.path, 0) + 1
    result.scope_values, result.scope_bad, result.scope_stale = sums, frozenset(bad), frozenset(stale)


BAR_BLOCKS = " ▏▎▍▌▋▊▉"


def bar_text(fraction: float, width: int) -> str:
    """A bar of eighths of a cell."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (BAR_BLOCKS[rest] if rest else "")).ljust(width)


@dataclass(frozen=True)
class Columns:
    """Widths of the tree's columns at one total width; a width of 0 leaves the column out."""

    name: int
    operator: int
    asked: int
    value: int
    bar: int
    raised: int
    cost: int

    @classmethod
    def fit(cls, width: int) -> Columns:
        if width >= 76:
            fixed = cls(0, 9, 6, 6, 9, 9, 5)
        elif width >= 64:
            fixed = cls(0, 9, 6, 6, 6, 9, 0)
        else:
            fixed = cls(0, 9, 6, 6, 0, 0, 0)
        used = 4 + sum(w + 1 for w in (fixed.operator, fixed.asked, fixed.value, fixed.bar, fixed.raised, fixed.cost)
                       if w)
        return cls(max(8, width - used), fixed.operator, fixed.asked, fixed.value, fixed.bar, fixed.raised, fixed.cost)


def tree_header(columns: Columns, measure: Measure) -> Line:
    """The titles of the columns."""
    value = "owns" if measure is Measure.OWNS else "dB"
    parts = ["   " + "  layer".ljust(columns.name), "op".ljust(columns.operator), "asked".ljust(columns.asked),
             value.rjust(columns.value)]
    if columns.bar:
        parts.append(" " * columns.bar)
    if columns.raised:
        parts.append("raised to".rjust(columns.raised))
    if columns.cost:
        parts.append("MACs".rjust(columns.cost))
    return [(" ".join(parts), "dim")]


def operator_text(operator: str, width: int) -> str:
    """An operator's name, its long words shortened."""
    text = operator.replace("Normalization", "Norm").replace("Average", "Avg").replace("Reduce", "Red")
    return text if len(text) <= width else text[:width - 1] + "…"


def row_line(cells: Cells, depth: int, columns: Columns, cursor: bool) -> Line:
    """One line of the tree."""
    indent = "  " * min(depth, max(0, columns.name // 4))
    room = columns.name - len(indent) - 2
    line: Line = [
        (">" if cursor else " ", "strong"), (cells.glyph, cells.glyph_style), (f" {indent}{cells.mark} ", "dim"),
        (shorten(cells.name, room).ljust(room) + " ", cells.name_style),
    ]
    if not cells.operator and not cells.asked and not cells.value:
        return line
    line.append((operator_text(cells.operator, columns.operator).ljust(columns.operator) + " ", "dim"))
    line.append((cells.asked.ljust(columns.asked) + " ", cells.asked_style))
    rest = columns.value + sum(width + 1 for width in (columns.bar, columns.raised) if width) + 1
    if cells.reason:
        line.append((" " + shorten(cells.reason, rest - 1).ljust(rest - 1), "dim"))
    else:
        line.append((cells.value.rjust(columns.value) + " ", cells.value_style))
        if columns.bar:
            line.append((bar_text(cells.bar, columns.bar) + " ", cells.glyph_style))
        if columns.raised:
            line.append((cells.raised.rjust(columns.raised), ""))
    if columns.cost:
        line.append((" " + cells.cost.rjust(columns.cost), "dim"))
    return line


def tree_title(model: TreeModel | None, view: View, session: Session, shown: int | None, measure: Measure,
               run: str) -> tuple[str, str]:
    """Left and right text of the tree's rule."""
    if model is None:
        return "1 Tree", ""
    left = {View.TREE: "1 Tree", View.WORST: "1 Worst first", View.BLOCKS: "1 Blocks"}[view]
    if shown is not None:
        left += f" ─ {shown} of {len(model.group_rows)} match, esc clears"
    elif measure is not Measure.OWNS or run != "config":
        left += f" ─ {measure.value}{' error' if measure is not Measure.OWNS else ''} in {RUN_TITLES[run]}"
    else:
        left += f" ─ {model.quantizable} of {len(model.group_rows)} groups can run INT8"
    views = [one for one in View if one is not view and (one is not View.BLOCKS or model.blocks is not None)]
    return left, "t: " + " · ".join(one.value for one in views)


# -- blocks ---------------------------------------------------------------------------------------------------------


def block_cell(found: Figures, names: Sequence[str]) -> Span:
    """Glyph and style of one cell of the heat map."""
    if not names:
        return (" ", "")
    if any(name in found.bad for name in names):
        return (BAD_GLYPH, "bad")
    known = [found.values[name] for name in names if name in found.values]
    if not known:
        return (UNKNOWN_GLYPH, "dim")
    value = max(known) if found.measure is Measure.OWNS else min(known)
    return found._style(value, False, any(name in found.stale for name in names))


def block_note(found: Figures, names: Sequence[str]) -> str:
    """What the groups of a role are asked to run in: ``INT8, 2 up``."""
    by_name = found.model.outline.group_by_name
    groups = [by_name[name] for name in names]
    defaults = {found.config.default_for(group).label for group in groups}
    up = sum(rank(found.config.precision_of(group)) > rank(found.config.default_for(group)) for group in groups)
    text = "/".join(sorted(defaults))
    return f"{text}, {up} up" if up else text


# -- detail ---------------------------------------------------------------------------------------------------------


def bits_used(stats: TensorStats, amax: float | None = None) -> float | None:
    """How many of 8 bits a tensor's values use under a range: 8 − log2(amax / (√3·rms)).

    A uniform distribution between -amax and amax has an rms of amax/√3 and uses all 8.
    """
    amax = stats.amax if amax is None else amax
    if amax <= 0 or stats.rms <= 0:
        return None
    return max(0.0, min(8.0, 8.0 - math.log2(amax / (math.sqrt(3) * stats.rms))))


def worst_input(group: Group, stats: Mapping[str, TensorStats]) -> tuple[str, TensorStats] | None:
    """The input of an INT8 group whose range leaves the fewest bits; the first tensor known where none is INT8."""
    found = []
    for tensor in dict.fromkeys(site.tensor for site in group.activations()):
        if tensor in stats and (bits := bits_used(stats[tensor])) is not None:
            found.append((bits, tensor))
    if found:
        tensor = min(found)[1]
        return tensor, stats[tensor]
    return next(((tensor, stats[tensor]) for tensor in (*group.inputs, group.tail) if tensor in stats), None)


def range_sentence(stats: TensorStats) -> str:
    """Which channels set the range, and what it leaves: the reason why INT8 loses."""
    bits = bits_used(stats)
    figures_ = f"amax {number(stats.amax)}, rms {number(stats.rms)}"
    tail = f"{figures_}: {bits:.1f} of 8 bits" if bits is not None else figures_
    top = stats.top_channels
    if top is not None and 0 < len(top.indices) <= top.channels // 4:
        sets = "sets" if len(top.indices) == 1 else "set"
        return f"{len(top.indices)} of {top.channels} input channels {sets} the range: {tail}"
    if stats.p9999 > 0 and stats.amax > 4 * stats.p9999:
        return f"outliers set the range (99.99 % lie below {number(stats.p9999)}): {tail}"
    return f"range: {tail}"


def fp16_sentence(stats: Mapping[str, TensorStats]) -> str:
    """FP16 overflow or underflow in the tensors of a group, "" where there is none worth a word."""
    for name, one in stats.items():
        if one.over_fp16:
            return f"overflow: max {number(one.amax)} exceeds FP16's {FP16_MAX:.0f} in {name}"
    for name, one in stats.items():
        if one.share_below_fp16_subnormal > 0.01:
            return f"underflow: {100 * one.share_below_fp16_subnormal:.0f} % of {name} is below FP16's least magnitude"
    for name, one in stats.items():
        if one.share_subnormal > 0.1:
            return f"{100 * one.share_subnormal:.0f} % of {name} is subnormal in FP16"
    return ""


def reasons(session: Session, found: Figures, group: Group) -> list[str]:
    """Why a group loses, the weightiest reason first."""
    lines: list[str] = []
    errors = errors_of(session, found.run).get(group.name)
    stats = session.stats.get(group.name, {})
    if errors is not None:
        at = errors.accumulated
        if at is not None and at.bad:
            counts = [f"{count} {word}" for count, word in ((at.nan, "NaN"), (at.inf, "Inf")) if count]
            lines.append(f"{' and '.join(counts)} at its output in {RUN_TITLES[found.run]}")
        if errors.warning:
            lines.append(errors.warning)
    half = fp16_sentence(stats)
    asked = found.config.precision_of(group)
    if half and asked in (Precision.FP16, Precision.INT8) and not any("FP16" in line for line in lines):
        lines.append(half)
    worst = worst_input(group, stats)
    if group.quantizable and worst is not None:
        lines.append(range_sentence(worst[1]))
    for precision in (Precision.FP16, Precision.INT8):
        if precision in group.refusals:
            lines.append(f"cannot run {precision.label}: {group.refusals[precision]}")
            break
    return lines


def option_spans(session: Session, group: Group, width: int) -> list[Line]:
    """The ways out of a group, each with its what-if result; one line each."""
    lines = []
    for option in session.tried.get((group.name, session.config), ()):
        text, style = headline(session, option.verdict)
        reached = met(session, option.verdict)
        line: Line = [(f"{option.key:<6}", "key"), (f"{option.label:<18} ", ""), (f"{text:>9}", style)]
        if reached:
            line.append(("  meets the target", "good"))
        lines.append(clip(line, width))
    return lines


def detail_title(model: TreeModel, line: VisibleRow | None) -> str:
    if line is None:
        return "2 Detail"
    row = line.row
    if row is None:
        layer = model.outline.layer_by_name[line.node]
        return f"2 {layer.name} ─ {layer.op_type}"
    if isinstance(row, GroupRow):
        return f"2 {model.titles[row.group.name]} ─ {row.group.operator}, {plural(len(row.group.layers), 'node')}"
    if isinstance(row, Scope):
        return f"2 {row.path} ─ {plural(len(row.groups), 'group')}"
    return f"2 {row.label}"


def detail_lines(session: Session, found: Figures, line: VisibleRow | None, width: int, height: int) -> list[Line]:
    """The detail pane. Short panes (under 8 lines) get why, try and set by in a line each."""
    if line is None:
        return []
    row, model = line.row, found.model
    if isinstance(row, Scope):
        return _scope_detail(found, row, width, height)
    if isinstance(row, LayerRow):
        return [_labelled("why", row.refused or "it has no precision to choose", width)]
    if isinstance(row, FoldedRow):
        return [_labelled("why", "constants, shapes, integers, casts and Q/DQ make no difference to precision", width)]
    if row is None:
        layer = model.outline.layer_by_name[line.node]
        group = model.outline.group_by_layer.get(line.node)
        lines = [_labelled("in", ", ".join(name for name in layer.inputs if name) or "nothing", width),
                 _labelled("out", ", ".join(name for name in layer.outputs if name) or "nothing", width)]
        if group is not None:
            lines.append(_labelled("part", f"of {group.name}: the group takes one precision", width))
        elif layer.note:
            lines.append(_labelled("why", layer.note, width))
        return lines
    group = row.group
    if height < 8:
        return _short_detail(session, found, group, width)[:height]
    return _long_detail(session, found, group, width)


def _labelled(label: str, text: str, width: int, style: str = "") -> Line:
    return clip([(f" {label:<5}", "dim"), (text, style)], width)


def _wrapped(label: str, text: str, width: int, style: str = "") -> list[Line]:
    parts = wrap(text, max(10, width - 10))
    return [[(f" {label if index == 0 else '':<8} ", "dim"), (part, style)] for index, part in enumerate(parts)]


def _set_by(session: Session, config: PrecisionConfig, group: Group) -> str:
    choice = config.groups.get(group.name)
    default = config.default_for(group).label
    if choice is None:
        return f"default {default}"
    who = {"user": "you", "file": "the file"}.get(choice.reason, choice.reason.replace("search:", "search, method "))
    at = session.changed_at.get(group.name)
    when = time.strftime(", %H:%M", time.localtime(at)) if at is not None else ""
    return f"{choice.precision.label} by {who}{when}; default {default}"


def _range_note(config: PrecisionConfig, group: Group) -> str:
    methods = {config.ranges[site.tensor].method for site in group.activations() if site.tensor in config.ranges}
    return f"range by {', '.join(sorted(methods))}" if methods else ""


def _best_ranges(session: Session, options: Sequence[Option]) -> list[Option]:
    """The options with only the best of the other ranges."""
    def figure(option: Option) -> float:
        value = session.target.figure(option.verdict) if session.target is not None else None
        return -math.inf if value is None else value

    ranges = [option for option in options if option.key == "r"]
    best = max(ranges, key=figure, default=None)
    return [option for option in options if option.key != "r" or option is best]


def _short_detail(session: Session, found: Figures, group: Group, width: int) -> list[Line]:
    known = reasons(session, found, group)
    lines: list[Line] = []
    if known:
        lines.append(_labelled("why", known[0], width))
    elif session.busy or group.name not in session.stats:
        lines.append(_labelled("why", "measuring …" if session.data is not None else NOTHING, width, "dim"))
    else:
        lines.append(_labelled("why", "nothing stands out", width, "dim"))
    options = _best_ranges(session, session.tried.get((group.name, session.config), ()))
    if options:
        line: Line = [(" try  ", "dim")]
        for index, option in enumerate(options):
            text, style = headline(session, option.verdict)
            line += [(" · " if index else "", "dim"), (f"{option.key}: ", "key"), (f"{option.label} ", ""),
                     (text, "good" if met(session, option.verdict) else style)]
        lines.append(clip(line, width))
    elif len(known) > 1:
        lines.append(_labelled("also", known[1], width))
    note = _range_note(found.config, group)
    lines.append(_labelled("set", _set_by(session, found.config, group) + (f"; {note}" if note else ""), width, "dim"))
    return lines


def _long_detail(session: Session, found: Figures, group: Group, width: int) -> list[Line]:
    lines: list[Line] = []
    errors = errors_of(session, found.run).get(group.name)
    if errors is not None and (errors.isolated is not None or errors.accumulated is not None):
        isolated, accumulated = decibel(errors.isolated), decibel(errors.accumulated)
        lines.append(clip([(" error    ", "dim"), ("isolated ", "dim"), isolated, (" · accumulated ", "dim"),
                           accumulated, (" dB", "dim")], width))
    share = shares_of(session, found.run).get(group.name)
    if share is not None:
        line: Line = [(" owns     ", "dim"), (percent(share.owns), "")]
        if share.impact_db is not None:
            line += [("   only it lowered: ", "dim"), (f"{SIMULATED}{share.impact_db:.1f} dB", "")]
        lines.append(clip(line, width))
    known = reasons(session, found, group)
    for index, text in enumerate(known):
        lines += _wrapped("why" if index == 0 else "", text, width)
    if not known:
        empty = "nothing stands out" if group.name in session.stats else "measuring …"
        lines += _wrapped("why", empty if session.data is not None else NOTHING, width, "dim")
    for index, option in enumerate(option_spans(session, group, max(10, width - 10))):
        lines.append([(" try      " if index == 0 else " " * 10, "dim"), *option])
    note = _range_note(found.config, group)
    lines += _wrapped("set", _set_by(session, found.config, group) + (f"; {note}" if note else ""), width)
    shape = found.model.outline.shapes.get(group.tail)
    if shape is not None:
        lines += _wrapped("output", "×".join(str(size or "?") for size in shape), width, "dim")
    return lines


def _scope_detail(found: Figures, scope: Scope, width: int, height: int) -> list[Line]:
    by_name = found.model.outline.group_by_name
    groups = [by_name[name] for name in scope.groups]
    counts: dict[str, int] = {}
    for group in groups:
        label = found.config.precision_of(group).label
        counts[label] = counts.get(label, 0) + 1
    asked = " · ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    lines = [_labelled("asked", asked, width)]
    ranked = sorted((name for name in scope.groups if name in found.values),
                    key=lambda name: -found.weights.get(name, 0.0))
    if ranked:
        worst = " · ".join(f"{found.model.titles[name]} {found.value_text(found.values[name])}"
                           for name in ranked[:1 if height < 8 else 3])
        lines.append(_labelled("worst", worst, width))
    fixed = sum(not group.quantizable for group in groups)
    if fixed:
        lines.append(_labelled("fixed", f"{fixed} of {len(groups)} cannot run INT8", width, "dim"))
    return lines[:height]


HISTOGRAM_BLOCKS = " ▁▂▃▄▅▆▇█"


def histogram_lines(tensor: str, stats: TensorStats, width: int, rows: int = 3) -> list[Line]:
    """A histogram of ``|x|`` over powers of two with logarithmic counts; the amax stands at the right edge."""
    counts = list(stats.log_histogram)
    present = [index for index, count in enumerate(counts) if count]
    if not present or width < 30:
        return []
    last = present[-1]
    first = max(present[0], last - min(31, width - 6))
    shown = counts[first:last + 1]
    cell = max(1, min(3, (width - 4) // len(shown)))
    peak = math.log1p(max(shown))
    heights = [math.log1p(count) / peak * rows * 8 for count in shown]
    lines: list[Line] = [clip([(" |x| of ", "dim"), (tensor, ""), ("  log counts", "dim")], width)]
    for level in reversed(range(rows)):
        text = ""
        for height in heights:
            eighths = max(0, min(8, math.ceil(height - level * 8)))
            text += HISTOGRAM_BLOCKS[eighths] * cell
        lines.append([("  " + text, "plot")])
    across = cell * len(shown)
    axis = [" "] * across

    def put(text: str, value: float, right: bool = False) -> None:
        place = (math.log2(value) + 40 - first) * cell if value > 0 else 0
        start = int(min(max(0, place - (len(text) if right else len(text) // 2)), across - len(text)))
        if start >= 0 and all(c == " " for c in axis[max(0, start - 1):start + len(text) + 1]):
            axis[start:start + len(text)] = text

    put(f"amax {number(stats.amax)}", stats.amax, right=True)
    put(number(2.0 ** (first - 40)), 2.0 ** (first - 40))
    lines.append([("  " + "".join(axis), "dim")])
    lines.append([(f"  p99 {number(stats.p99)}   p99.99 {number(stats.p9999)}   rms {number(stats.rms)}", "dim")])
    return lines


# -- configs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfigLine:
    """One row of the list of configs."""

    config: PrecisionConfig
    name: str
    line: Line


def config_table(session: Session, marks: Mapping[str, PrecisionConfig], width: int) -> tuple[Line, list[ConfigLine]]:
    """The header and the configs of the session, the newest first, in as many columns as the width holds."""
    if session.outline is None:
        return [], []
    letters = {config: mark for mark, config in marks.items()}
    kind = session.target.kind if session.target is not None else "sqnr"
    title = {"metric": next(iter(session.reference_metric), "metric")[:8], "sqnr": ""}.get(kind, kind[:8])
    header = ["", "raised", "dB", title, "built", "ms", ""]
    rows: list[tuple[PrecisionConfig, str, list[Span]]] = []
    for config, name in reversed(list(session.names.items())):
        results = results_of(session, config)
        verdict = results.verdict
        if verdict is None and config == session.config:
            verdict = verdict_of(session, "config")
        if verdict is None and config == config_of(session, "int8"):
            verdict = verdict_of(session, "int8")
        engine = results.engine
        worst = verdict.worst if verdict is not None else None
        now = config == session.config
        reached = met(session, verdict)
        rows.append((config, name, [
            (f"{letters.get(config, ' ')}{'>' if now else ' '}{name}", "strong" if now else ""),
            (f"{raised_count(session, config, session.outline)}", "dim"),
            (decibel(worst[1].errors if worst else None)[0], "bad" if verdict and verdict.bad else ""),
            (headline(session, verdict)[0] if title else "", ""),
            (headline(session, engine.verdict, False)[0] if engine else NOTHING, "" if engine else "dim"),
            (number(engine.latency_ms[0]) if engine and engine.latency_ms else NOTHING, "" if engine else "dim"),
            ({True: "passes", False: "FAILS", None: ""}[reached], "good" if reached else "bad"),
        ]))
    kept = [i for i in range(len(header)) if header[i] or i in (0, 6)]
    widths = {i: max(len(header[i]), *(len(cells[i][0]) for _, _, cells in rows)) for i in kept}
    # What goes first where there is no room: how many are raised, then the decibels where the target is another figure.
    for column in (1, 2):
        if sum(widths[i] + 2 for i in kept) - 2 > width and column in kept and (column != 2 or title):
            kept.remove(column)

    def line(cells: Sequence[Span]) -> Line:
        spans = [(f"{cells[i][0]:<{widths[i]}}" if i in (0, 6) else f"{cells[i][0]:>{widths[i]}}", cells[i][1])
                 for i in kept]
        return clip([span for one in spans for span in (("  ", ""), one)][1:], width)

    return line([(text, "dim") for text in header]), [ConfigLine(config, name, line(cells)) for config, name, cells in rows]


def diff_lines(session: Session, model: TreeModel, one: PrecisionConfig, other: PrecisionConfig) -> list[Line]:
    """What differs between two configs: one line for each group and range."""
    names = config_name(session, one), config_name(session, other)
    changed = []
    for group in model.outline.groups:
        here, there = one.precision_of(group), other.precision_of(group)
        if here is not there:
            changed.append((model.titles.get(group.name, group.name), here.label, there.label))
    for tensor in {**one.ranges, **other.ranges}:
        here, there = one.ranges.get(tensor), other.ranges.get(tensor)
        if here != there:
            changed.append((f"range of {tensor}", *(f"{c.method} {number(c.amax)}" if c else "calibrated"
                                                    for c in (here, there))))
    if not changed:
        return [[("They are the same.", "dim")]]
    width = max(len(name) for name, *_ in changed)
    width = min(width, 48)
    lines: list[Line] = [[(" " * (width + 2), ""), (f"{names[0]:<18}", "strong"), (names[1], "strong")]]
    lines += [[(shorten(name, width).ljust(width + 2), ""), (f"{here:<18}", ""), (there, "")]
              for name, here, there in changed]
    verdicts = [results_of(session, config).verdict for config in (one, other)]
    if any(verdict is not None for verdict in verdicts):
        lines.append([("output".ljust(width + 2), "dim"),
                      *((f"{headline(session, verdict)[0]:<18}", "") for verdict in verdicts)])
    return lines


# -- what is going on, what to do next ------------------------------------------------------------------------------


def job_line(session: Session, last: str = "") -> Line:
    """The running job, or the last word on the one before."""
    job = session.job
    if job is None:
        return [(" ⋯ ", "key"), ("starting", "")] if session.busy else [(f" {last}", "dim")]
    line: Line = [(" ⋯ ", "key"), (job.phase, "")]
    if job.total:
        line.append((f" {job.done}/{job.total}", ""))
    if job.left_s is not None and job.left_s >= 1:
        line.append((f", {duration(job.left_s)} left", "dim"))
    return line


def next_step(session: Session, found: Figures | None, cursor: str = "") -> str:
    """What to do next, in one phrase; ``cursor`` is the group under the cursor."""
    if session.outline is None or found is None:
        return ""
    if session.data is None or (session.data.random and verdict_of(session, "int8") is None):
        return "next: reopen with --data for a verdict, or f5 compares on random inputs"
    verdict = verdict_of(session, "config")
    if verdict is None:
        return "" if session.busy else "next: f5 compares"
    reached = met(session, verdict)
    if reached is None and session.target is not None:
        return ""
    if reached:
        engine = engine_of(session, "config")
        if engine is None:
            return f"next: b builds {config_name(session)} and confirms it"
        if met(session, engine.verdict) is False:
            return "next: the build misses the target: raise one more row, then b"
        return "next: e exports precision.json"
    return _next_raise(session, found, cursor)


def _next_raise(session: Session, found: Figures, cursor: str) -> str:
    """How to reach the target from here: the worst rows that are not yet FP32."""
    config = session.config
    by_name = found.model.outline.group_by_name
    order = found.worst_first if found.run == "config" and found.measure is Measure.OWNS else ()
    worst = next((name for name in order if config.precision_of(by_name[name]) is not Precision.FP32), None)
    if worst is None:
        return "" if session.busy else "next: n goes to the worst row"
    results = results_of(session, config)
    goal = _reaching(session, results)
    if goal is not None and goal > 1:
        lead = f"next: {goal} rows to FP32 meet the target: "
    else:
        lead = "next: "
    if cursor == worst:
        share = shares_of(session, "config").get(worst)
        gain = f" → {SIMULATED}{share.kept_db:.1f} dB" if share is not None and share.kept_db is not None else ""
        return f"{lead}space raises this one{gain}"
    return f"{lead}n, space raises {shorten(found.model.titles[worst], 24)}"


def _reaching(session: Session, results: ConfigResults) -> int | None:
    """How many rows of the worst-first order have to be raised to reach a target on SQNR or the metric."""
    target = session.target
    if target is None or target.bound is None:
        return None
    if target.kind == "metric":
        measured = results.raised_metric
        return next((n for n, value in enumerate(measured, 1) if value is not None and value >= target.bound), None)
    if target.kind != "sqnr":
        return None
    return next((n for n, value in enumerate(results.raised_db, 1) if value is None or value >= target.bound), None)
