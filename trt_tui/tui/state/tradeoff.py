"""Accuracy against cost: engines as built by their latency, and configs as simulated by what they keep in FP32."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.measure.comparison import EngineResult, Verdict
from trt_tui.core.measure.target import UPPER
from trt_tui.core.moves.config import PrecisionConfig, compared
from trt_tui.core.precision import Precision
from trt_tui.core.search.front import front
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.known import config_name, headline, met
from trt_tui.tui.spans import Line, clip
from trt_tui.tui.state.figures import Figures
from trt_tui.tui.state.picture import Drawn, Frame, missing
from trt_tui.tui.state.plots import Axis, Spot, plane
from trt_tui.tui.state.tree import TreeModel
from trt_tui.words import (
    RUN_TITLES,
    SIMULATED,
    builder_title,
    cosine,
    decibels,
    differing,
    first_few,
    metric_figure,
    milliseconds,
    number,
    plural,
    rate,
)

FRONT, BEATEN, ESTIMATED, CHOSEN = "●", "○", "+", "◆"
_LEGEND = f"{FRONT} none is better in both   {BEATEN} one is   {CHOSEN} cursor"
_BELOW = 6
_FAR = 30.0
"""An SQNR so many dB above all others, as FP32 has, is drawn at the edge."""


@dataclass(frozen=True)
class Point:
    """A config on the plane.

    Attributes:
        cost: Milliseconds, or the share of the MACs (of the groups, where these are unknown) in FP32.
        figure: What the target bounds; ``verdict`` is where it is from.
        built: Whether the engine was measured; ``estimated`` where its latency was not.
    """

    config: PrecisionConfig
    name: str
    cost: float
    figure: float
    verdict: Verdict
    built: bool = False
    estimated: bool = False


def _figure(session: Session, verdict: Verdict | None) -> float | None:
    """What the target bounds, or the worst output's SQNR; None where there is none, or it is not finite."""
    if verdict is None or verdict.bad:
        return None
    if session.target is not None:
        figure = session.target.figure(verdict)
    else:
        worst = verdict.worst
        figure = None if worst is None else math.inf if worst[1].errors.exact else worst[1].errors.sqnr_db
    return None if figure is None or math.isnan(figure) else figure


def _name(session: Session, config: PrecisionConfig) -> str:
    if config in session.names:
        return config_name(session, config)
    runs = {one: run for run, one in session.run_configs().items() if run != "config"}
    return RUN_TITLES[runs[config]] if config in runs else ""


def timed_points(session: Session) -> list[Point]:
    """Engines that were built in full and as asked, with what they yield as built; and what the search estimated
    between them, with what was simulated."""
    engines: list[tuple[str, PrecisionConfig, EngineResult | None]] = [
        (_name(session, config), config, known.engine) for config, known in session.results.items()]
    engines.append(("FP32", PrecisionConfig.uniform(Precision.FP32), session.results.fp32_engine))
    points = [Point(config, name, engine.latency_ms[0], figure, engine.verdict, built=True)
              for name, config, engine in engines if engine is not None and engine.as_asked and not engine.quick
              and engine.latency_ms is not None and engine.verdict is not None
              and (figure := _figure(session, engine.verdict)) is not None]
    built = {point.config for point in points}
    ended = session.finding.ended if session.finding is not None else None
    for place, config in (ended.front if ended is not None else {}).items():
        one = ended.evaluations[place] if ended is not None else None
        verdict = one.judgement.verdict if one is not None else None
        figure = _figure(session, verdict)
        if one is not None and one.latency is not None and config not in built and verdict and figure is not None:
            points.append(Point(config, _name(session, config), one.latency, figure, verdict, estimated=True))
    return points


def kept_in_fp32(model: TreeModel, config: PrecisionConfig) -> float:
    """The share of the MACs that a config runs in FP32; of the groups, where the MACs are unknown."""
    weights = {group.name: float(model.macs[group.name] or 0) if model.all_macs else 1.0
               for group in model.outline.groups}
    kept = sum(weight for group in model.outline.groups if (weight := weights[group.name])
               and group.stands_for(config.precision_of(group)) is Precision.FP32)
    return kept / (sum(weights.values()) or 1.0)


def simulated_points(session: Session, model: TreeModel) -> list[Point]:
    """All configs with the current one's defaults that were simulated on all samples of the screen, and those with its
    worst groups raised together."""
    wanted = session.data.whatif if session.data is not None else 0
    now, known = session.config, session.measured("config")
    tried = {config: one.verdict for config, one in session.results.items() if one.verdict is not None
             and (config.quantized, config.other) == (now.quantized, now.other)}
    for count, verdict in enumerate(known.raised, 1):
        groups = [model.outline.group_by_name[name] for name in known.raised_order[:count]]
        tried.setdefault(now.with_groups(groups, Precision.FP32), verdict)
    return [Point(config, _name(session, config), kept_in_fp32(model, config), figure, verdict)
            for config, verdict in tried.items() if verdict.samples >= min(wanted, verdict.total)
            and (figure := _figure(session, verdict)) is not None]


def _text(session: Session, value: float) -> str:
    """A figure of the target without a mark, as short as an axis needs it."""
    kind = session.target.kind if session.target is not None else "sqnr"
    shown = {"sqnr": lambda one: decibels(one, mark=""), "agreement": rate, "mismatch": differing, "cosine": cosine,
             "metric": metric_figure}
    return str(shown.get(kind, number)(value))


def picture(frame: Frame) -> Drawn:
    """The points on a plane: by latency where two engines were timed, else by what stays in FP32; `Frame.turn` takes
    the other axis. The cursor begins on the current config, and enter takes a point's up."""
    session, found, width = frame.session, frame.found, frame.width
    timed, simulated = timed_points(session), simulated_points(session, found.model)
    by_time = (len(timed) >= 2) is (frame.turn % 2 == 0)
    points = timed if by_time else simulated
    if not points:
        return Drawn(missing(_none(session, by_time), width).lines, axes=True)
    lower = session.target is not None and session.target.kind in UPPER
    sign = -1.0 if lower else 1.0
    best = {points[place].config for place in front([(one.cost, sign * one.figure) for one in points])}
    points = sorted(points, key=lambda one: (one.cost, sign * one.figure))
    mine = next((place for place, one in enumerate(points) if one.config == session.config), 0)
    at = mine if frame.place is None else frame.place % len(points)
    bound = session.target.bound if session.target is not None else None
    figures = sorted([sign * one.figure for one in points] + ([sign * bound] if bound is not None else []))
    if session.target is None or session.target.kind == "sqnr":
        while len(figures) > 2 and figures[-1] > figures[-2] + _FAR:
            figures.pop()
    up = Axis.around(figures, lambda value: _text(session, sign * value))
    across = Axis.around([one.cost for one in points], number if by_time else _percent, zero=not by_time)
    lines: list[Line] = [clip([(f" {_what(session, by_time)}", "dim")], width)]
    guessed = f"   {ESTIMATED} time estimated between engines" if any(one.estimated for one in points) else ""
    spots = [Spot(one.cost, sign * one.figure, ESTIMATED if one.estimated else FRONT if one.config in best else BEATEN,
                  _style(session, one), _label(session, one, up, sign)) for one in points]
    spots.append(replace(spots.pop(at), glyph=CHOSEN, style="key"))
    title = "ms, median" if by_time else f"{'MACs' if found.model.all_macs else 'layers'} in FP32"
    lines += plane(spots, across, up, width, max(6, frame.height - _BELOW - 1),
                   sign * bound if bound is not None else None, title)
    lines.append(clip([(f" {_LEGEND}{guessed}", "dim")], width))
    lines += _chosen(session, found, points[at], at, len(points), by_time, width)
    lines += [clip([(f" {text}", "dim")], width) for text in _left_out(session, timed, simulated, by_time)]
    return Drawn(lines, [one.config for one in points], at, "takes it up", True)


def _style(session: Session, point: Point) -> str:
    reached = met(session, point.verdict)
    return "" if reached is None else "good" if reached else "bad"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _label(session: Session, point: Point, up: Axis, sign: float) -> str:
    """Its name, with the figure where it lies above the plane."""
    above = point.name and sign * point.figure > up.high
    return f"{point.name}, {_text(session, point.figure)}" if above else point.name


def _what(session: Session, by_time: bool) -> str:
    kind = session.target.kind if session.target is not None else "sqnr"
    metric = next(iter(session.results.reference), "metric").rpartition(":")[2]
    what = {"sqnr": "SQNR, dB", "metric": metric, "agreement": "same top class"}.get(kind, kind)
    if not by_time:
        return f"{what}, simulated, against what stays in FP32"
    builder = session.builder
    by = (builder_title(builder.name, ".".join(builder.version.split(".")[:2])) if builder is not None else
          f"ONNX Runtime, {session.backend.device}" if session.backend is not None else "")
    return f"{what}, against latency, as built by {by}"


def _none(session: Session, by_time: bool) -> str:
    if not by_time:
        return "No config is simulated yet."
    return (f"No engine was timed, so there are no milliseconds: {key('build')} builds one."
            if session.builder is None or session.builder.runs else
            "Engines cannot run here, so there are no milliseconds.")


def _chosen(session: Session, found: Figures, point: Point, at: int, count: int, by_time: bool, width: int
            ) -> Iterator[Line]:
    text, _ = headline(session, point.verdict, simulated=not point.built)
    cost = (f"{SIMULATED if point.estimated else ''}{milliseconds(point.cost)}{' estimated' if point.estimated else ''}"
            if by_time else f"{_percent(point.cost)} of the {'MACs' if found.model.all_macs else 'layers'} in FP32")
    result = session.target_result(point.verdict)
    now = " (now)" if point.config == session.config else ""
    yield []
    yield clip([(f" {point.name or 'what-if'}{now}", "strong"), (f"  {text}  {cost}  ", ""),
                ("" if result is None else result.outcome.value,
                                                         "good" if result is not None and result.passes else "bad"),
                 (f"   {at + 1} of {count}", "dim")], width)
    titles = found.model.titles
    told = [f"{line.kind.about(titles.get(line.target, line.target))} {line.there}"
            for line in compared(session.config, point.config, found.model.outline)]
    yield clip([(f" from {config_name(session)}: {first_few(told, 4)}" if told else "", "dim")], width)


def _left_out(session: Session, timed: Sequence[Point], simulated: Sequence[Point], by_time: bool) -> list[str]:
    """What is not drawn, and why."""
    known = {one.config for one in timed}
    if by_time:
        without = sum(one.config not in known for one in simulated)
        return [f"{plural(without, 'simulated config')} without milliseconds left out: a shows "
                f"{'it' if without == 1 else 'them'}"] if without else []
    drawn = {one.config for one in simulated}
    others = [RUN_TITLES[run] for run, config in session.run_configs().items()
              if run != "config" and config not in drawn and session.results.of(config).verdict is not None]
    return [f"{' and '.join(others)} left out: other defaults, whose cost FP32 does not tell"] if others else []
