"""The page of an engine: figures, what to check, its layers."""

from trt_tui.core.engines.inspector import COMPUTE, QDQ, REFORMAT, EngineReport
from trt_tui.core.engines.made import differs
from trt_tui.core.engines.rungs import rung_lines
from trt_tui.core.measure.agreement import engine_remarks, fp32_fault, gap_db, inside_words, what_to_check
from trt_tui.core.measure.comparison import Verdict
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.known import config_name, headline
from trt_tui.tui.spans import Line, clip, decibel, fitted, wrap
from trt_tui.tui.state.built import CANNOT_RUN, DIFFERS, Shown, built_text, fp32_engine_texts, shown_engine
from trt_tui.tui.state.columns import bar_text
from trt_tui.tui.state.picture import Drawn, Frame, missing
from trt_tui.words import (
    COMPUTED_IN,
    NOTHING,
    byte_size,
    milliseconds,
    number,
    percent,
    plural,
    with_unit,
    worse_by,
)

_SLOWEST = 8
_LABEL = 11
_RIGHT = 32
"""Cells beside a name on the page of an engine: precision, milliseconds, share of the time."""


def page_title(session: Session) -> str:
    """The title of the page."""
    shown = shown_engine(session)
    if shown is None:
        return "The FP32 engine"
    behind = f", {plural(shown.behind, 'edit')} behind {config_name(session)}" if shown.stale else ""
    return f"The engine of {shown.name}{behind}"


def page_lines(session: Session, width: int) -> list[Line]:
    """All that is known of the engine shown for the current config: figures, what to check, layers."""
    shown = shown_engine(session)
    lines: list[Line] = []
    if shown is not None:
        lines += _summary(session, shown, width)
    if session.results.fp32_engine is not None:
        verdict = session.results.fp32_engine.verdict
        figure = f"{_worst(verdict, False)} against ONNX Runtime: " if verdict else ""
        lines += _labelled("FP32 engine", figure + fp32_engine_texts(session.results.fp32_engine)[0], width,
                           "warn" if fp32_fault(session.results.fp32_engine) else "")
    if shown is None:
        return lines
    lines += _checks(session, shown, width)
    report = shown.result.report
    if report is not None:
        lines += _computed_in(report)
        lines += _otherwise(session, shown, width)
        if slowest := layer_lines(report, shown.result.quick, width):
            lines += [[], *slowest]
    return lines


def _summary(session: Session, shown: Shown, width: int) -> list[Line]:
    result = shown.result
    on = f" on {result.device}" if result.device else ""
    lines = _labelled("builder", result.backend + on, width)
    room = f", {byte_size(result.bytes)}" if result.bytes is not None else ""
    lines += _labelled("build", built_text(result) + room, width)
    if not result.as_asked:
        for index, text in enumerate(rung_lines(result.rungs, result.otherwise)):
            lines += _labelled("" if index else "tried", text, width, "warn")
    if result.quick:
        lines += _labelled("", "a preview: neither latency nor size is that of production; "
                           f"{key('build')} builds in full", width)
    if result.verdict is None:
        return lines + _labelled("run", result.note or CANNOT_RUN, width)
    if result.latency_ms is not None:
        median, least, most = result.latency_ms
        word = ", of the quick build" if result.quick else ""
        lines += _labelled("latency", f"median {milliseconds(median)}, {number(least)} to {number(most)}{word}", width)
    if result.graph_ms is not None:
        median, least, most = result.graph_ms
        lines += _labelled("", f"{milliseconds(median)}, {number(least)} to {number(most)} as one CUDA graph, as "
                           "trtexec 11 measures", width)
    for index, said in enumerate(result.profiles_said):
        lines += _labelled("" if index else "profiles", said, width)
    if result.device_memory:
        lines += _labelled("memory", f"{byte_size(result.device_memory)} on the device, beside weights and tensors",
                           width)
    simulated = _simulated(session, shown)
    text = f"{_worst(result.verdict, False)} as built"
    if simulated is not None:
        text += f", {_worst(simulated, True)} simulated"
    if session.target is not None and session.target.kind != "sqnr":
        text += f"; {headline(session, result.verdict, False)[0]} as built, {headline(session, simulated)[0]} simulated"
    lines += _labelled("output", text, width)
    for name, verdict in result.shapes.items():
        lines += _labelled(f"at {name}", _worst(verdict, False), width)
    for remark in engine_remarks(result):
        lines += _labelled("builds", remark, width, "warn" if result.rows_differ else "")
    if result.inside is not None:
        lines += _labelled("layers", inside_words(result.inside, len(session.opened.outline.groups)), width)
    if result.note:
        lines += _labelled("note", result.note, width, "dim")
    return lines


def _simulated(session: Session, shown: Shown) -> Verdict | None:
    """The simulation of what an engine was built from: a config, or what was built in place of one."""
    asked = session.results.of(shown.config).verdict if shown.stale else session.measured("config").verdict
    return shown.result.beside(asked)


def _worst(verdict: Verdict, simulated: bool) -> str:
    worst = verdict.worst
    text = decibel(worst[1].errors if worst else None, simulated)[0]
    return with_unit(text)


def _checks(session: Session, shown: Shown, width: int) -> list[Line]:
    simulated = _simulated(session, shown)
    if session.outline is None:
        return []
    known = what_to_check(session.outline, shown.config, simulated, shown.result, session.results.fp32_engine,
                          None if shown.stale else session.parting("config"))
    if not known:
        return []
    gap = gap_db(simulated, shown.result.verdict)
    why = worse_by(gap)
    lines: list[Line] = [[], [(f"What to check: it is {why}", "warn")]]
    for text in known:
        lines += [[("  · " if index == 0 else "    ", "dim"), (part, "")]
                  for index, part in enumerate(wrap(text, width - 4))]
    return lines


def _computed_in(report: EngineReport) -> list[Line]:
    lines: list[Line] = [[], [(f"{'Computed in':<16}{'layers':>8}{'time':>8}", "strong")]]
    for word, (count, time) in report.shares().items():
        style = "dim" if word in ("?", REFORMAT, QDQ) else ""
        lines.append([(f"  {COMPUTED_IN.get(word, word):<14}", style), (f"{count:>8}", ""),
                      (f"{NOTHING if time is None else percent(time):>8}", "")])
    return lines


def _otherwise(session: Session, shown: Shown, width: int) -> list[Line]:
    """The groups that run in another precision than asked."""
    config, all_made = shown.config, shown.result.made
    groups = session.outline.groups if session.outline is not None else ()
    changed = [(group, made, made.precision) for group in groups if differs(group, config, all_made)
               and (made := all_made[group.name]).precision is not None]
    if not changed:
        return [[], [("All groups that TensorRT lists run as asked.", "dim")]]
    lines: list[Line] = [[], [(f"Asked {DIFFERS} made: {plural(len(changed), 'group')}", "strong")]]
    room = max(10, width - _RIGHT)
    for group, made, precision in changed:
        time = milliseconds(made.ms) if made.ms is not None else ""
        lines.append([("  " + fitted(group.name, room), ""),
                      (f"{f'{group.label(config.precision_of(group))} → {precision.label}':>13}", ""),
                      (f"{time:>11}", "dim")])
    return lines


def layer_lines(report: EngineReport, quick: bool, width: int, most: int = _SLOWEST) -> list[Line]:
    """The slowest engine layers with their times and, where there is room, a bar; nothing where none was timed."""
    timed = sorted(((layer.ms, layer) for layer in report.layers if layer.ms), key=lambda one: -one[0])
    if not timed:
        return []
    total = sum(ms for ms, _ in timed)
    bar = max(0, min(20, width - _RIGHT - 24))
    room = max(10, width - _RIGHT - bar)
    lines: list[Line] = [[("Slowest layers" + (" of the quick build" if quick else ""), "strong")]]
    for ms, layer in timed[:most]:
        precision = layer.precision.label if layer.precision is not None else ""
        word = precision or "?" if layer.kind == COMPUTE else layer.kind
        lines.append([("  " + fitted(layer.name, room - 2), ""), (f"{word:>13}", "dim"),
                      (f"{milliseconds(ms):>11}", ""), (f"{percent(ms / total):>6}  ", "dim"),
                      (bar_text(ms / timed[0][0], bar), "plot")])
    if len(timed) > most:
        rest = sum(ms for ms, _ in timed[most:])
        lines.append([(f"  {plural(len(timed) - most, 'more layer')}: {milliseconds(rest)}", "dim")])
    return lines


def picture(frame: Frame) -> Drawn:
    """The engine's layers by their times, all of them."""
    shown, width = shown_engine(frame.session), frame.width
    report = shown.result.report if shown is not None else None
    if shown is None:
        return missing(f"No engine was built yet: {key('build')} builds one, and its layers are timed where it can "
                       "run.", width)
    if report is None:
        return missing(f"{shown.result.backend}, which built {shown.name}, lists no layers.", width)
    lines = layer_lines(report, shown.result.quick, width, len(report.layers))
    if not lines:
        return missing(f"The layers of the engine of {shown.name} were not timed. "
                       f"{shown.result.note or 'It cannot run here.'}", width)
    of = [f"engine of {shown.name}", shown.result.backend, shown.result.device]
    behind = f", {plural(shown.behind, 'edit')} behind" if shown.stale else ""
    return Drawn([clip([(f" {', '.join(filter(None, of))}{behind}", "stale" if shown.stale else "dim")], width),
                  *lines, *_computed_in(report)])


def _labelled(label: str, text: str, width: int, style: str = "") -> list[Line]:
    return [[(f"{label if index == 0 else '':<{_LABEL}} ", "dim"), (part, style)]
            for index, part in enumerate(wrap(text, max(10, width - _LABEL - 1)))]
