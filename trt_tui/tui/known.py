"""What a session knows of which config: verdicts, engines, shares, errors, and how far a config is from another."""

from __future__ import annotations

from collections.abc import Mapping

from trt_tui.core.measure.comparison import EngineResult, GroupErrors, Share, Verdict
from trt_tui.core.measure.target import PER_OUTPUT
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import rank
from trt_tui.session.session import ConfigResults, Session
from trt_tui.tui.spans import NOTHING, SIMULATED, Span, decibel, number

RUN_TITLES = {"fp16": "FP16 all", "int8": "INT8 all", "config": "config"}


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
        return (f"{text} dB" if text[-1:].isdigit() else text, style)
    figure = target.figure(verdict)
    if figure is None or verdict.bad and target.kind in PER_OUTPUT:
        return decibel(verdict.worst[1].errors) if verdict.bad else (NOTHING, "dim")
    text = {"agreement": f"{100 * figure:.1f}%", "mismatch": f"{100 * figure:.2g}%",
            "cosine": f"{figure:.4f}"}.get(target.kind, number(figure))
    return (f"{mark}{text}", "")
