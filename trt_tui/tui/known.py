"""What a session's configs are called, how far they are from each other, and whether they meet the target."""

from collections import Counter
from collections.abc import Mapping

from trt_tui.core.measure.comparison import ExportedRun, Verdict
from trt_tui.core.measure.target import PER_OUTPUT
from trt_tui.core.measure.target_result import TargetResult
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep import Keep
from trt_tui.core.moves.network_method import network_method
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.precision import Precision
from trt_tui.jobs import requests as rq
from trt_tui.session.config_results import ENGINE_RUN, EXECUTED_RUN, SIMULATED_RUN, outcome_words, shown_result
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, Span, decibel, shorten
from trt_tui.words import (
    NOTHING,
    SIMULATED,
    cells,
    cosine,
    differing,
    metric_figure,
    number,
    plural,
    rate,
    with_unit,
)


def config_name(session: Session, config: PrecisionConfig | None = None) -> str:
    """What a config is called, the current one by default."""
    config = session.config if config is None else config
    return session.names.get(config, "c?")


def config_title(session: Session, width: int = 40) -> str:
    """What a config is called and how it differs from its defaults: ``c3 · 2 FP32``, ``c0 = INT8``; shorter where that
    is wider than so many cells."""
    name, config, outline = config_name(session), session.config, session.outline
    same = next((one.label for one in (Precision.INT8, Precision.FP16)
                 if config == session.run_configs()[one.value]), "")
    if same or config.as_in_file:
        return shorten(f"{name} = {same or 'file'}", width)
    if outline is None:
        return shorten(name, width)
    counts = Counter(group.label(now) for group in outline.groups
                     if (now := config.precision_of(group)) is not config.default_for(group))
    changes = [f"{count} {label}" for label, count in counts.items()]
    method = network_method(config, outline)
    for kind, moves in config.shown(outline):
        some = [move for _, move in moves if not (method and isinstance(move, RangeChoice)
                                                        and move.method == method)]
        if some and kind not in (Choice, Keep):
            changes.append(plural(len(some), kind.column))
    ranges = [f"{method} ranges"] * bool(method), [method] * bool(method)
    texts = [*(f"{name} · {', '.join([*one, *changes]) or 'edited'}" for one in ranges),
             f"{name} · {plural(len(config.moves), 'move')}", f"{name} +{len(config.moves)}", name]
    return next((text for text in texts if cells(text) <= width), shorten(name, width))


def met(session: Session, verdict: Verdict | None) -> bool | None:
    """Whether a verdict meets the targets, with or without a question mark; None where nobody can say yet."""
    result = session.target_result(verdict)
    return None if result is None else result.passes


def verdict_outcome(session: Session, verdict: Verdict | None) -> str:
    """The outcome of a verdict in a word; "" where nobody can say yet."""
    result = session.target_result(verdict)
    return "" if result is None else result.outcome.value


def config_met(session: Session, config: PrecisionConfig) -> bool | None:
    """Whether a config meets the targets as simulated; None where it lowers nothing, which proves nothing."""
    result = session.config_results(config).get(SIMULATED_RUN)
    return None if result is None else result.passes


def is_measuring(session: Session) -> bool:
    """Returns True while a job runs or waits that changes the values of the config in hand."""
    return session.asked.any(rq.Open, rq.Calibrate, rq.SetRanges, rq.Compare, rq.WhatIf)


def is_unfinished(session: Session, config: PrecisionConfig) -> bool:
    """Returns True if the accuracy of a config is not final: samples or the interval of its metric are missing."""
    accuracy = session.results.of(config).verdict
    if accuracy is None:
        return True
    wanted = min(accuracy.total, session.data.whatif) if session.data is not None else accuracy.total
    if accuracy.samples < wanted:
        return True
    bounds_metric = any(target.kind == "metric" for target in session.targets)
    spread = accuracy.spread
    return bounds_metric and is_measuring(session) and spread is not None and spread.draws is None


def is_confirmed(session: Session) -> bool:
    """Returns True if the config meets the targets as simulated, and as built or exported and executed too."""
    known = session.config_results(session.config)
    return is_met(session) and not known.keys().isdisjoint((ENGINE_RUN, EXECUTED_RUN))


def is_met(session: Session) -> bool:
    """Whether the config meets the targets in simulation, and as exported and as built where that is known."""
    results = session.config_results(session.config)
    return SIMULATED_RUN in results and all(result.passes for result in results.values())


def executed_met(session: Session, executed: ExportedRun | None) -> bool | None:
    """Returns False if an exported network misses the target; it never confirms more than was simulated."""
    return met(session, executed.accuracy) if executed is not None else None


def outcome_line(results: Mapping[str, TargetResult], calm: bool = False) -> Line:
    """The outcome of a config and what says otherwise; see `trt_tui.session.config_results.outcome_words`.

    Args:
        calm: A target that is missed here is nobody's trouble.
    """
    words, shown = outcome_words(results), shown_result(results)
    if shown is None:
        return []
    return [(words[0], "good" if shown.passes else "dim" if calm else "bad"),
            *((f" {word}", "dim") for word in words[1:])]


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
