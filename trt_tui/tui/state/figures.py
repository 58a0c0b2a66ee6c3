"""What the rows show: measured figures, their bands and glyphs, what is asked and what the engine made."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial

from trt_tui.core.engines.made import Made, other_than
from trt_tui.core.engines.preview import Preview
from trt_tui.core.measure.comparison import Errors
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep import Keep
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.network_method import network_method
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.hierarchy import GroupRow, LayerRow, Scope
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.session.session import Session
from trt_tui.tui.known import config_name, is_met
from trt_tui.tui.spans import Span
from trt_tui.tui.state import built, previewed
from trt_tui.tui.state.flips import Flip, flip_of
from trt_tui.tui.state.tree import Tail, TreeModel, VisibleRow
from trt_tui.words import RUN_TITLES, SIMULATED, decibels, number, percent


class Measure(Enum):
    """What the rows are coloured by."""

    OWNS = "share"
    ISOLATED = "isolated"
    ACCUMULATED = "accumulated"
    ENGINE = "engine"


GLYPHS = "█▓▒░·"
BAD_GLYPH = "!"
UNKNOWN_GLYPH = "?"
RAISED = FOUND = "↑"
TRIED = "»"
"""Marks of a search: in the best set so far, about to be tried; the first also of a row that is raised."""

PARTS = "↯"
"""The mark of the first row at which the engine does something that is not simulated."""

MARKS = {"entropy": "e", "percentile": "p", "mse": "m", "minmax": "x"}
"""What stands behind a row's precision where it has another range than the calibrated one, by method; ``u`` for one by
hand."""
BARRED = "┤"
"""The mark of a row with a fusion barrier behind it."""
SHARE_BANDS = (0.20, 0.05, 0.01, 0.002)
DECIBEL_BANDS = (10.0, 20.0, 30.0, 40.0)
LOUD = 2
"""Rows up to this band are the bad rows that keys jump between."""


def band_of(value: float, measure: Measure) -> int:
    """0 (worst) to 4 (almost nothing); shares are 0 to 1, errors in dB."""
    if measure is Measure.OWNS:
        return next((i for i, least in enumerate(SHARE_BANDS) if value >= least), 4)
    return next((i for i, most in enumerate(DECIBEL_BANDS) if value < most), 4)


@dataclass(frozen=True)
class Cells:
    """The texts of one line of the tree.

    ``bar`` is 0 to 1; ``reason`` replaces share, bar and flip, ``instead`` share and bar; ``of`` names the config that
    the share is of where that is another; ``made`` is what the builder makes of it, ``cost`` milliseconds or a share of
    the MACs.
    """

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
    flip: Flip = Flip()
    cost: str = ""
    reason: str = ""
    instead: str = ""
    of: str = ""


@dataclass
class Figures:
    """The figures of one view (measure and run), taken from the session once; rows ask it as they are drawn.

    Attributes:
        stale: Groups whose share is of another config, that of the name ``stale_of``; ``of`` is this one's.
        scope_part: Scopes whose sums lack what is still being measured, by path.
        flip: What the judged figure, of the name ``title``, becomes with groups flipped; asked as their row is drawn.
        has_engines: Whether there is a column for what the builder makes: it may come to tell, or has told.
        made: What the engine made of each group, by name.
        preview: What the builder would make of the groups, where no engine tells.
        made_of: Name of the config that the engine was built from where that is another one, "" where it is this one.
        scope_differs: How many groups below a scope run in another precision than asked, by path.
        unknown: Groups whose share was measured and says nothing.
        run_config: The config of the run, if it is not ``config``.
        parts: Name of the first group at which the engine of the run does something that is not simulated, or "".
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
    of: str = ""
    stale_of: str = ""
    flip: Callable[[Sequence[Group]], Flip] = field(default=lambda groups: Flip())
    title: str = "SQNR"
    calm: bool = False
    scope_values: dict[str, float] = field(default_factory=dict)
    scope_bad: frozenset[str] = frozenset()
    scope_stale: frozenset[str] = frozenset()
    scope_part: frozenset[str] = frozenset()
    scope_raised: dict[str, int] = field(default_factory=dict)
    top: float = 0.0
    has_engines: bool = False
    made: Mapping[str, Made] = field(default_factory=dict)
    made_of: str = ""
    preview: Preview | None = None
    scope_differs: dict[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    scope_times: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    parts: str = ""
    run_config: PrecisionConfig | None = None
    unknown: frozenset[str] = frozenset()

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Tensors that are fusion barriers."""
        return frozenset(self.config.of(Barrier))

    @cached_property
    def network_method(self) -> str:
        """The calibration method of the whole network, if the config changes it; it marks no single row."""
        return network_method(self.config, self.model.outline)

    @cached_property
    def codes(self) -> Precision:
        """The codes in use, see `PrecisionConfig.codes_in_use`."""
        return self.config.codes_in_use(self.model.outline)

    @cached_property
    def lowest(self) -> Precision:
        """The lowest precision in use, see `PrecisionConfig.lowest_in_use`."""
        return self.config.lowest_in_use(self.model.outline)

    @cached_property
    def able(self) -> int:
        """How many groups can run in the lowest precision in use."""
        return sum(self.lowest in group.allowed for group in self.model.outline.groups)

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
    def small(self) -> frozenset[str]:
        """Groups of next to no share on which nothing was chosen."""
        if self.measure is not Measure.OWNS or self.run != "config":
            return frozenset()
        groups = self.model.outline.group_by_name
        return frozenset(name for name, value in self.values.items() if abs(value) < SHARE_BANDS[-1]
                         and name in groups and name not in self.bad and not self._marks(groups[name])
                         and name not in self.config.groups)

    @cached_property
    def raised(self) -> frozenset[str]:
        """Groups that the config in hand runs in a higher precision than by default, whatever rows are coloured by."""
        return frozenset(self.config.raised(self.model.outline))

    @cached_property
    def loud(self) -> frozenset[str]:
        """The bad rows: NaN or Inf, or a value in the first bands."""
        if self.measure is Measure.OWNS:
            loud = {name for name, value in self.values.items() if value >= SHARE_BANDS[LOUD]}
        else:
            loud = {name for name, value in self.values.items() if value < DECIBEL_BANDS[LOUD]}
        return frozenset((loud | self.bad) & self.model.rows.keys())

    def value_text(self, value: float) -> str:
        """A value as the rows show it."""
        if self.measure is Measure.OWNS:
            return percent(value, SIMULATED)
        return decibels(value, exact=value == math.inf, mark="" if self.measure is Measure.ENGINE else SIMULATED)

    def style_of(self, value: float | None, bad: bool, stale: bool) -> tuple[str, str]:
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
        if isinstance(row, Tail):
            together = sum(max(0.0, self.values.get(name, 0.0)) for name in row.names)
            said = percent(together, SIMULATED)
            return Cells("▾" if line.opened else "▸", "·", "dim",
                         row.label + (f", {said} together" if said != "·" else ", next to nothing together"), "dim")
        if isinstance(row, LayerRow):
            return Cells(" ", "·", "dim", row.label, "dim", row.layer.op_type, "FP32", "dim", reason=row.refused)
        return Cells("▾" if line.opened else "▸", "·", "dim", row.label, "dim")

    def _node_cells(self, line: VisibleRow) -> Cells:
        layer = self.model.outline.layer_by_name[line.node]
        return Cells(" ", " ", "", line.node, "dim", layer.op_type, reason=layer.note)

    def _scope_cells(self, line: VisibleRow, scope: Scope) -> Cells:
        value = self.scope_values.get(scope.path)
        bad = scope.path in self.scope_bad
        _, style = self.style_of(value, bad, scope.path in self.scope_stale)
        up, differ = self.scope_raised.get(scope.path, 0), self.scope_differs.get(scope.path, 0)
        text = "NaN" if bad and self.measure is not Measure.OWNS else "" if value is None else self.value_text(value)
        return Cells("▾" if line.opened else "▸", BAD_GLYPH if bad else " ", style, scope.label,
                     "strong" if line.opened else "", asked=f"{up} {RAISED}" if up else "", asked_style="strong",
                     made=f"{differ} {built.DIFFERS}" if differ else "", made_style=self._made_style(bool(differ)),
                     value=text, value_style="dim" if style == "band4" else style,
                     of=self.stale_of if scope.path in self.scope_stale else "…" * (scope.path in self.scope_part),
                     flip=self.flip(self.model.groups_of(scope)) if self.run == "config" else Flip(),
                     cost=self._cost(self.model.scope_macs.get(scope.path), self.scope_times.get(scope.path)))

    def _group_cells(self, row: GroupRow, full: bool) -> Cells:
        group = row.group
        value = self.values.get(group.name)
        bad = group.name in self.bad
        glyph, style = self.style_of(value, bad, group.name in self.stale)
        asked, stale = self.asked(group), group.name in self.stale
        marks, instead = self._marks(group, asked), self.instead(group)
        raised = group.name in self.raised and RAISED not in marks
        if raised and not bad:
            glyph, style = RAISED, "strong" if instead else style
        made_cell = self.made_cell(group)
        quiet = style in ("dim", "band4") and not marks
        bar = 0.0
        if value is not None and not bad and self.measure is Measure.OWNS and self.top > 0:
            bar = max(0.0, value / self.top)
        reason = row.refused if Precision.FP16 in group.refusals else ""
        missing = UNKNOWN_GLYPH if group.name in self.unknown else ""
        nan = bad and self.measure is not Measure.OWNS
        text = "NaN" if nan else missing if value is None else self.value_text(value)
        name = self.model.titles[group.name] if full else row.label
        barred = self.run == "config" and not self.hidden.isdisjoint(Barrier.subject.of(group))
        mark = self.marks.get(group.name, RAISED if raised and bad else PARTS if group.name == self.parts else
                              BARRED if barred else " ")
        label = group.label(asked)
        gap = " " if marks and " " not in label else ""
        return Cells(mark, glyph, style, name, "dim" if quiet else "", group.operator,
                     f"{label}{gap}{marks}", "strong" if marks or instead else "dim",
                     made_cell[0] or UNKNOWN_GLYPH, made_cell[1] if made_cell[0] else "dim",
                     text, "dim" if style == "band4" else style, bar,
                     self.flip([group]) if self.run == "config" else Flip(),
                     self._cost(self.model.macs[group.name], self.times.get(group.name)), reason, instead,
                     self.stale_of if stale else "")

    def made_cell(self, group: Group) -> Span:
        """What the builder makes of a group, or would make; "" where nothing tells."""
        asked = self.asked(group)
        if self.preview is not None:
            return previewed.cell(self.preview, group, asked)
        made = built.made_text(self.made.get(group.name), group.seen_as(asked))
        return made, self._made_style(made.startswith(built.DIFFERS))

    def _marks(self, group: Group, asked: Precision | None = None) -> str:
        """What was changed on a row: `MARKS`, and an arrow where it is not simply raised to FP32."""
        if self.run != "config":
            return ""
        asked = asked if asked is not None else self.asked(group)
        default = self.config.default_for(group)
        marks = "" if asked is Precision.FP32 else RAISED if group.rank(asked) > group.rank(default) else \
            "↓" if group.rank(asked) < group.rank(default) else ""
        found = [mark_of(move) for _, move in self.config.moves_on(group)
                 if not (self.network_method and isinstance(move, RangeChoice) and move.method == self.network_method)]
        return marks + "".join(dict.fromkeys(found))

    def instead(self, group: Group) -> str:
        """A row in FP32 by choice or by rule has no share of what is lost."""
        if self.run != "config" or self.measure is not Measure.OWNS or self.asked(group) is not Precision.FP32:
            return ""
        return "kept" if group.name in self.config.held else "raised" if group.name in self.config.groups else ""

    def asked(self, group: Group) -> Precision:
        """What a group is asked to run in, in this run."""
        return (self.run_config or self.config).precision_of(group)

    def _made_style(self, differs: bool) -> str:
        return "stale" if self.made_of else "strong" if differs else "dim"

    def _cost(self, macs: int | None, ms: float | None) -> str:
        """Measured milliseconds; the share of the MACs where no time was measured at all."""
        if self.times:
            return "" if ms is None else "·" if ms < 5e-4 else number(ms)
        if macs is None or not self.model.all_macs:
            return ""
        share = macs / self.model.all_macs
        return percent(share)


def figures_of(session: Session, model: TreeModel, measure: Measure, run: str,
            last: PrecisionConfig | None = None) -> Figures:
    """The figures of a view.

    Args:
        last: A config whose shares stand, under its name, where those of the current one are not measured yet.
    """
    errors = session.measured(run).groups
    stale: set[str] = set()
    values: dict[str, float] = {}
    unknown: set[str] = set()
    bad = set()
    inside = engine_errors(session, run)
    for name, one in errors.items():
        at = one.isolated if measure is Measure.ISOLATED else one.accumulated
        if measure is not Measure.ENGINE and at is not None and at.bad:
            bad.add(name)
    if measure is Measure.OWNS:
        measured = session.measured(run).shares
        values = {name: share.owns for name, share in measured.items() if math.isfinite(share.owns)}
        unknown = {name for name, share in measured.items() if share.unknown}
        if run == "config" and last is not None:
            for name, share in session.results.of(last).shares.items():
                if name not in measured and math.isfinite(share.owns):
                    values[name] = share.owns
                    stale.add(name)
    elif measure is Measure.ENGINE:
        bad = {name for name, one in inside.items() if one.bad}
        told = {name: math.inf if one.exact else one.sqnr_db for name, one in inside.items()}
        values = {name: value for name, value in told.items() if value is not None}
    else:
        for name, one in errors.items():
            at = one.isolated if measure is Measure.ISOLATED else one.accumulated
            decibels = None if at is None else math.inf if at.exact else at.sqnr_db
            if decibels is not None:
                values[name] = decibels
    config = session.config
    result = Figures(
        model, config, measure, run, values, frozenset(stale), frozenset(bad),
        of=config_name(session) if run == "config" else RUN_TITLES[run],
        stale_of=config_name(session, last) if last is not None else "", flip=partial(flip_of, session),
        title=session.target.title if session.target is not None else "SQNR",
        calm=run == "config" and is_met(session), run_config=session.run_configs()[run],
        unknown=frozenset(unknown))
    result.top = max([0.05, *(value for value in values.values())]) if measure is Measure.OWNS else 0.0
    if session.searching and run == "config":
        result.marks = search_marks(session)
    parts = session.parting(run)
    result.parts = parts.group if parts is not None else ""
    _add_engine(session, result)
    _sum_scopes(result)
    return result


def engine_errors(session: Session, run: str) -> Mapping[str, Errors]:
    """Errors inside the engine of a run, by group name."""
    engine = session.measured(run).engine
    return engine.inside.groups if engine is not None and engine.inside is not None else {}


def search_marks(session: Session) -> dict[str, str]:
    """The marks of a running search: groups of the best set so far, and the one that is being tried."""
    progress = session.finding.progress if session.finding is not None else None
    if progress is None:
        return {}
    best = progress.best.raised if progress.best is not None else ()
    return {**({progress.about: TRIED} if progress.about else {}), **dict.fromkeys(best, FOUND)}


def _add_engine(session: Session, result: Figures) -> None:
    """What the engine made of the groups, without the times of a preview, which say nothing about production."""
    shown = built.shown_engine(session, result.run)
    result.has_engines = built.has_layers(session) or session.may_preview
    preview = previewed.shown_preview(session, result.run)
    if preview is not None and (preview.refused is None or preview.refused.node):
        result.has_engines, result.preview = True, preview
        _count_otherwise(result, preview.made)
        return
    if shown is None or not shown.result.made:
        return
    result.has_engines = True
    result.made, result.made_of = shown.result.made, shown.name if shown.stale else ""
    _count_otherwise(result, shown.result.made)
    if not shown.result.quick:
        result.times = {name: made.ms for name, made in shown.result.made.items() if made.ms is not None}
        result.scope_times = result.model.scope_times(shown.result.report)


def _count_otherwise(result: Figures, made: Mapping[str, Made]) -> None:
    """How many groups of each scope run in another precision than asked."""
    for name, one in made.items():
        group = result.model.outline.group_by_name.get(name)
        if group is not None and other_than(group, result.asked(group), one):
            for scope in result.model.ancestors[name]:
                result.scope_differs[scope.path] = result.scope_differs.get(scope.path, 0) + 1


def mark_of(move: Move) -> str:
    """The letter behind a row's precision that a move has: a range's, ``k`` for kept by rule, ``+`` for another one."""
    if isinstance(move, RangeChoice):
        return MARKS.get(move.method, "p" if re.fullmatch(r"p\d.*", move.method) else "u")
    return "" if isinstance(move, (Choice, Barrier)) else "k" if isinstance(move, Keep) else "+"


def _sum_scopes(result: Figures) -> None:
    """A scope owns the sum of what its groups own, without groups whose raising alone makes the error larger: negative
    shares have no bound and would hide the others. As its error it has the worst of theirs."""
    model = result.model
    sums: dict[str, float] = {}
    bad: set[str] = set()
    stale: set[str] = set()
    for name, value in result.values.items():
        for scope in model.ancestors.get(name, ()):
            path = scope.path
            if result.measure is Measure.OWNS:
                sums[path] = sums.get(path, 0.0) + max(value, 0.0)
            else:
                sums[path] = min(sums.get(path, math.inf), value)
            if name in result.stale:
                stale.add(path)
    for name in result.bad:
        bad.update(scope.path for scope in model.ancestors.get(name, ()))
    for name in result.config.raised(model.outline):
        for scope in model.ancestors[name]:
            result.scope_raised[scope.path] = result.scope_raised.get(scope.path, 0) + 1
    if result.measure is Measure.OWNS and result.values:
        known = result.values.keys() | result.unknown
        result.scope_part = frozenset(scope.path for name in model.rows if name not in known
                                      for scope in model.ancestors[name])
    result.scope_values, result.scope_bad, result.scope_stale = sums, frozenset(bad), frozenset(stale)


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
    return found.style_of(value, False, any(name in found.stale for name in names))


def block_note(found: Figures, names: Sequence[str]) -> str:
    """What the groups of a role are asked to run in: ``INT8, 2 raised``."""
    by_name = found.model.outline.group_by_name
    groups = [by_name[name] for name in names]
    defaults = {group.label(found.config.default_for(group)) for group in groups}
    up = sum(group.rank(found.config.precision_of(group)) > group.rank(found.config.default_for(group))
             for group in groups)
    text = "/".join(sorted(defaults))
    return f"{text}, {up} raised" if up else text
