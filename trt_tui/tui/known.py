"""What a session's configs are called, how far they are from each other, and whether they meet the target."""

from __future__ import annotations

from trt_tui.core.lowering.lowered import lowers
from trt_tui.core.measure.comparison import EngineResult, Verdict
from trt_tui.core.measure.target import PER_OUTPUT
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.session.session import Session
from trt_tui.tui.spans import Span, decibel
from trt_tui.words import NOTHING, SIMULATED, cosine, differing, metric_figure, number, outcome, rate, with_unit


def config_name(session: Session, config: PrecisionConfig | None = None) -> str:
    """What a config is called, the current one by default."""
    config = session.config if config is None else config
    return session.names.get(config, "c?")


def is_edited(session: Session) -> bool:
    """Whether the config differs from the one that was built last."""
    return session.built is not None and session.built != session.config


def met(session: Session, verdict: Verdict | None) -> bool | None:
    """Whether a verdict meets the target; None where nobody can say yet."""
    if verdict is None or session.target is None:
        return None
    return session.target.reached(verdict)


def verdict_outcome(session: Session, verdict: Verdict | None) -> str:
    """Whether a verdict meets the target, in a word."""
    settled = verdict is None or session.target is None or session.target.settled(verdict)
    return outcome(met(session, verdict), settled)


def config_met(session: Session, config: PrecisionConfig) -> bool | None:
    """Whether a config meets the target as simulated; None where it lowers nothing, which proves nothing."""
    if session.outline is None or not lowers(session.outline, config):
        return None
    return met(session, session.results.of(config).verdict)


def engine_met(session: Session, engine: EngineResult | None) -> bool | None:
    """Whether a config's engine meets the target; None where that is not known, or it is not of what was asked."""
    return met(session, engine.verdict) if engine is not None and engine.as_asked else None


def headline(session: Session, verdict: Verdict | None, simulated: bool = True) -> Span:
    """The figure of a verdict that the target is about; a dash where that was not measured."""
    if verdict is None:
        return (NOTHING, "dim")
    mark, target = SIMULATED if simulated else "", session.target
    if target is None or target.kind == "sqnr":
        output = None if target is None else target.output
        worst = verdict.worst if output is None else (output, verdict.outputs.get(output))
        text, style = decibel(worst[1].errors if worst is not None and worst[1] is not None else None, simulated)
        return (with_unit(text), style)
    figure = target.figure(verdict)
    if figure is None or verdict.bad and target.kind in PER_OUTPUT:
        worst = verdict.worst
        return decibel(worst[1].errors) if verdict.bad and worst is not None else (NOTHING, "dim")
    shown = {"agreement": rate, "mismatch": differing, "cosine": cosine, "metric": metric_figure}
    return (f"{mark}{shown.get(target.kind, number)(figure)}", "")
