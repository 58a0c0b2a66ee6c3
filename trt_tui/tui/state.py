"""The tree of a network and its figures as plain data: rows, orders, columns; configs, the job, what to do next.

Nothing here draws: lines are those of `trt_tui.tui.spans`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from trt_tui.core.engines.made import COMPUTE, EngineReport, Made
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.hierarchy import Blocks, FoldedRow, GroupRow, LayerRow, Row, Scope, blocks, build_tree
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.precision import Precision, rank
from trt_tui.session.session import SEARCHING, ConfigResults, Finding, Session, found_so_far
from trt_tui.tui import engines
from trt_tui.tui.known import (
    RUN_TITLES,
    config_name,
    config_of,
    engine_met,
    engine_of,
    errors_of,
    headline,
    met,
    raised_count,
    results_of,
    shares_of,
    verdict_of,
)
from trt_tui.tui.spans import (
    NOTHING,
    SIMULATED,
    Line,
    Span,
    clip,
    decibel,
    duration,
    fitted,
    number,
    percent,
    shorten,
    width_of,
)
from trt_tui.words import left as flush_left


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


# -- the tree -------------------------------------------------------------------------------------------------------

GLYPHS = "█▓▒░·"
BAD_GLYPH = "!"
UNKNOWN_GLYPH = "?"
FOUND = "↑"
TRIED = "»"
"""Marks of a search: in the best set so far, about to be tried."""
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
    """The tree of an outline with the look-ups that the screen needs; it does not change after construction."""

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
        self._timed: tuple[EngineReport | None, dict[str, float]] = (None, {})

    def groups_of(self, row: Row | None) -> tuple[Group, ...]:
        """The groups that a change on a row acts on."""
        by_name = self.outline.group_by_name
        if isinstance(row, Scope):
            return tuple(by_name[name] for name in row.groups)
        return (row.group,) if isinstance(row, GroupRow) else ()

    def scope_times(self, report: EngineReport | None) -> Mapping[str, float]:
        """Milliseconds of the engine layers that lie in a scope with all of their groups, by path; kept for the report
        asked last."""
        if self._timed[0] is not report:
            group_of = self.outline.group_by_layer
            sums: dict[str, float] = {}
            for layer in report.layers if report is not None else ():
                if layer.kind != COMPUTE or layer.ms is None:
                    continue
                groups = {group_of[node].name for node in layer.nodes if node in group_of}
                chains = [{scope.path for scope in self.ancestors[name]} for name in groups]
                for path in set.intersection(*chains) if chains else ():
                    sums[path] = sums.get(path, 0.0) + layer.ms
            self._timed = (report, sums)
        return self._timed[1]

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
    """What one line of the tree says; ``bar`` is 0 to 1, ``reason`` stands in place of owns, bar and raised, ``made``
    is what the engine made of it, ``cost`` milliseconds or a share of the MACs."""

    mark: str
    glyph: str
    glyph_style: str
    name: str
    name_style: str = ""
    operator: str = ""
    asked: str = ""
    asked_style: str = ""
    made: str = ""
    made_style: str = ""
    value: str = ""
    value_style: str = ""
    bar: float = 0.0
    raised: str = ""
    cost: str = ""
    reason: str = ""


@dataclass
class Figures:
    """The figures of one view (measure and run), taken from the session once; rows ask it as they are drawn.

    Attributes:
        has_engines: Whether there is a column for what the engine made.
        made: What the engine made of each group, by name.
        made_of: Name of the config that the engine was built from where that is another one, "" where it is this one.
        scope_differs: How many groups below a scope run in another precision than asked, by path.
        marks: `FOUND` or `TRIED` of groups, by name, while a search runs.
        times: Measured milliseconds by group, and ``scope_times`` by scope; both empty where none were measured.
    """

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
    has_engines: bool = False
    made: Mapping[str, Made] = field(default_factory=dict)
    made_of: str = ""
    scope_differs: dict[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    scope_times: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)

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
        up, differ = self.scope_raised.get(scope.path, 0), self.scope_differs.get(scope.path, 0)
        text = "NaN" if bad and self.measure is not Measure.OWNS else "" if value is None else self.value_text(value)
        return Cells("▾" if line.opened else "▸", BAD_GLYPH if bad else " ", style, scope.label,
                     "strong" if line.opened else "", asked=f"{up}↑" if up else "", asked_style="strong",
                     made=f"{differ}{engines.DIFFERS}" if differ else "", made_style=self._made_style(bool(differ)),
                     value=text, value_style="dim" if style == "band4" else style,
                     cost=self._cost(self.model.scope_macs.get(scope.path), self.scope_times.get(scope.path)))

    def _group_cells(self, row: GroupRow, full: bool) -> Cells:
        group = row.group
        value = self.values.get(group.name)
        bad = group.name in self.bad
        glyph, style = self._style(value, bad, group.name in self.stale)
        asked, default = self.asked(group), self.config.default_for(group)
        arrow = ""
        if self.run == "config":
            arrow = "↑" if rank(asked) > rank(default) else "↓" if rank(asked) < rank(default) else ""
        made = engines.made_text(self.made.get(group.name), asked)
        quiet = style in ("dim", "band4") and not arrow
        bar = 0.0
        if value is not None and not bad and self.measure is Measure.OWNS and self.top > 0:
            bar = max(0.0, value / self.top)
        position, raised = self.raised.get(group.name, (0, ""))
        reason = row.refused if Precision.FP16 in group.refusals else ""
        text = "NaN" if bad and self.measure is not Measure.OWNS else "" if value is None else self.value_text(value)
        name = self.model.titles[group.name] if full else row.label
        return Cells(self.marks.get(group.name, " "), glyph, style, name, "dim" if quiet else "", group.operator,
                     f"{asked.label}{arrow}", "strong" if arrow else "dim",
                     made, self._made_style(made.endswith(engines.DIFFERS)), text, "dim" if style == "band4" else style,
                     bar, raised, self._cost(self.model.macs[group.name], self.times.get(group.name)), reason)

    def asked(self, group: Group) -> Precision:
        """What a group is asked to run in, in this run."""
        return self.config.precision_of(group) if self.run == "config" else config_precision(
            self.run, group, self.config)

    def _made_style(self, differs: bool) -> str:
        return "stale" if self.made_of else "strong" if differs else "dim"

    def _cost(self, macs: int | None, ms: float | None) -> str:
        """Measured milliseconds; the share of the MACs where no time was measured at all."""
        if self.times:
            return "" if ms is None else "·" if ms < 5e-4 else number(ms)
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
        measured = shares_of(session, run)
        values = {name: share.owns for name, share in measured.items() if math.isfinite(share.owns)}
        if run == "config":
            for name, value in (last or {}).items():
                if name not in measured:
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
                     calm=run == "config" and is_met(session))
    result.top = max([0.05, *(value for value in values.values())]) if measure is Measure.OWNS else 0.0
    if session.searching and run == "config":
        result.marks = search_marks(session)
    _add_engine(session, result)
    _sum_scopes(result)
    return result


def search_marks(session: Session) -> dict[str, str]:
    """What a search that runs says of groups: those of the best so far, and the one that is tried."""
    progress = session.finding.progress
    if progress is None:
        return {}
    best = progress.best.raised if progress.best is not None else ()
    return {**({progress.about: TRIED} if progress.about else {}), **dict.fromkeys(best, FOUND)}


def is_met(session: Session) -> bool:
    """Whether the config meets the target, in simulation and as built where it was built."""
    engine = engine_of(session, "config")
    return met(session, verdict_of(session, "config")) is True and engine_met(session, engine) is not False


def _add_engine(session: Session, result: Figures) -> None:
    """What the engine made of the groups. The times of a preview say nothing of production and stay out."""
    shown = engines.shown_engine(session, result.run)
    result.has_engines = engines.has_layers(session)
    if shown is None or not shown.result.made:
        return
    result.has_engines = True
    result.made, result.made_of = shown.result.made, shown.name if shown.stale else ""
    for name, made in shown.result.made.items():
        group = result.model.outline.group_by_name.get(name)
        if group is not None and made.precision is not None and made.precision is not result.asked(group):
            for scope in result.model.ancestors[name]:
                result.scope_differs[scope.path] = result.scope_differs.get(scope.path, 0) + 1
    if not shown.result.quick:
        result.times = {name: made.ms for name, made in shown.result.made.items() if made.ms is not None}
        result.scope_times = result.model.scope_times(shown.result.report)


def _raised(results: ConfigResults) -> dict[str, tuple[int, str]]:
    """Position in the worst-first order and the output error when everything down to it is raised, by group."""
    texts = {}
    for position, (name, verdict) in enumerate(zip(results.raised_order, results.raised, strict=False), 1):
        text = decibel(verdict.worst[1].errors if verdict.worst is not None else None)[0]
        texts[name] = (position, f"{text} dB" if text[-1:].isdigit() else text)
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
    made: int
    value: int
    bar: int
    raised: int
    cost: int

    @classmethod
    def fit(cls, width: int, made: bool = False) -> Columns:
        """The columns for a width; ``made`` adds the one for what the engine made."""
        if width >= 76:
            fixed = (9, 6, 6, 6, 6, 9, 5) if made else (9, 6, 0, 6, 9, 9, 5)
        elif width >= 64:
            fixed = (8, 6, 6, 6, 0, 9, 5 if width >= 70 else 0) if made else (9, 6, 0, 6, 6, 9, 0)
        else:
            fixed = (8, 6, 5, 6, 0, 0, 0) if made else (9, 6, 0, 6, 0, 0, 0)
        used = 4 + sum(w + 1 for w in fixed if w)
        return cls(max(8, width - used), *fixed)


def tree_header(columns: Columns, found: Figures) -> Line:
    """The titles of the columns."""
    value = "owns" if found.measure is Measure.OWNS else "dB"
    parts = ["   " + "  layer".ljust(columns.name), "op".ljust(columns.operator), "asked".ljust(columns.asked)]
    if columns.made:
        title = f"in {found.made_of}" if found.made_of else "engine" if columns.made > 5 else "built"
        parts.append(title[:columns.made].ljust(columns.made))
    parts.append(value.rjust(columns.value))
    if columns.bar:
        parts.append(" " * columns.bar)
    if columns.raised:
        parts.append("raised to".rjust(columns.raised))
    if columns.cost:
        parts.append(("ms" if found.times else "MACs").rjust(columns.cost))
    return [(" ".join(parts), "dim")]


def operator_text(operator: str, width: int) -> str:
    """An operator's name, its long words shortened."""
    text = operator.replace("Normalization", "Norm").replace("Average", "Avg").replace("Reduce", "Red")
    return flush_left("".join(part for part, _ in clip([(text, "")], width)), width)


def row_line(cells: Cells, depth: int, columns: Columns, cursor: bool) -> Line:
    """One line of the tree."""
    indent = "  " * min(depth, max(0, columns.name // 4))
    room = columns.name - len(indent) - 2
    mark_style = "key" if cells.mark == FOUND else "dim"
    line: Line = [
        (">" if cursor else " ", "strong"), (cells.glyph, cells.glyph_style), (f" {indent}{cells.mark} ", mark_style),
        (fitted(cells.name, room) + " ", cells.name_style),
    ]
    if not cells.operator and not cells.asked and not cells.value:
        return line
    line.append((operator_text(cells.operator, columns.operator) + " ", "dim"))
    line.append((cells.asked.ljust(columns.asked) + " ", cells.asked_style))
    if columns.made:
        line.append((cells.made.ljust(columns.made) + " ", cells.made_style))
    rest = columns.value + sum(width + 1 for width in (columns.bar, columns.raised) if width) + 1
    if cells.reason:
        line.append((" " + fitted(cells.reason, rest - 1), "dim"))
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
    elif session.searching and session.finding.progress is not None:
        left += f" ─ {FOUND} raised in the best so far, {TRIED} being tried"
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
            *_built_cells(session, engine),
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

    lines = [ConfigLine(config, name, line(cells)) for config, name, cells in rows]
    return line([(text, "dim") for text in header]), lines


def _built_cells(session: Session, engine: EngineResult | None) -> tuple[Span, Span]:
    """The figure of a config's engine and its milliseconds; the size alone where it cannot run here."""
    if engine is None:
        return (NOTHING, "dim"), (NOTHING, "dim")
    if engine.verdict is None:
        return (f"{engine.bytes / 1e6:.1f} MB" if engine.bytes is not None else "built", "dim"), (NOTHING, "dim")
    latency = number(engine.latency_ms[0]) if engine.latency_ms else NOTHING
    figure = ("" if engine.as_asked else engines.DIFFERS) + headline(session, engine.verdict, False)[0]
    return (figure, ""), ("preview", "dim") if engine.quick else (latency, "")


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
    width = min(48, max(width_of([(name, "")]) for name, *_ in changed))
    lines: list[Line] = [[(" " * (width + 2), ""), (f"{names[0]:<18}", "strong"), (names[1], "strong")]]
    lines += [[(fitted(name, width) + "  ", ""), (f"{here:<18}", ""), (there, "")]
              for name, here, there in changed]
    verdicts = [results_of(session, config).verdict for config in (one, other)]
    if any(verdict is not None for verdict in verdicts):
        lines.append([("output".ljust(width + 2), "dim"),
                      *((f"{headline(session, verdict)[0]:<18}", "") for verdict in verdicts)])
    return lines


# -- what is going on, what to do next ------------------------------------------------------------------------------


def job_line(session: Session, last: str = "", elapsed: float = 0.0) -> Line:
    """The running job, or the last word on the one before.

    Args:
        elapsed: Seconds since its phase began, told where nobody knows how long it takes.
    """
    job = session.job
    if job is None:
        return [(" ⋯ ", "key"), ("starting", "")] if session.busy else [(f" {last}", "dim")]
    if session.searching and job.phase == SEARCHING:
        return _search_line(session.finding)
    line: Line = [(" ⋯ ", "key"), (job.phase, "")]
    if job.total:
        line.append((f" {job.done}/{job.total}", ""))
    elif elapsed >= 1:
        line.append((f", {elapsed:.0f} s" if elapsed < 10 else f", {duration(elapsed)}", ""))
    if job.left_s is not None and job.left_s >= 1:
        line.append((f", {duration(job.left_s)} left", "dim"))
    return line


def _search_line(finding: Finding) -> Line:
    """What a search does, how far it is, and the best so far."""
    progress = finding.progress
    tried = shorten(progress.about, 24) if progress.about else f"{len(progress.trying)} raised"
    return [(" ⋯ ", "key"), (f"{progress.step or 'search'}: {tried}, {progress.done} tried; best so far: ", ""),
            (found_so_far(finding, SIMULATED), "strong" if progress.met else "")]


def next_step(session: Session, found: Figures | None, cursor: str = "") -> str:
    """What to do next, in one phrase; ``cursor`` is the group under the cursor."""
    if session.outline is None or found is None:
        return ""
    if session.data is None or (session.data.random and verdict_of(session, "int8") is None):
        return "next: reopen with --data for a verdict, or f5 compares on random inputs"
    verdict = verdict_of(session, "config")
    if verdict is None:
        return "" if session.busy else "next: f5 compares"
    if session.building:
        return "x stops the build"
    if session.searching:
        return "a takes the best so far"
    if after := engines.next_step(session):
        return after
    reached = met(session, verdict)
    if reached is None and session.target is not None:
        return ""
    return f"next: b builds {config_name(session)} and confirms it" if reached else _next_raise(session, found, cursor)


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
    """How many rows of the worst-first order have to be raised to reach the target; None where that is not known."""
    if session.target is None:
        return None
    return next((n for n, verdict in enumerate(results.raised, 1) if session.target.reached(verdict)), None)
