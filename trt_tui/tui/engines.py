"""What the builder made of a config: who builds, what became of each group, and what to look at in an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.core.engines.made import COMPUTE, QDQ, REFORMAT, Made
from trt_tui.core.engines.rungs import rung_lines
from trt_tui.core.measure.agreement import GAP_DB, differs, fp32_fault, gap_db, what_to_check
from trt_tui.core.measure.comparison import EngineResult, Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.jobs.messages import BuilderSummary
from trt_tui.session.session import Session
from trt_tui.tui.known import config_name, config_of, distance, engine_of, headline, met, results_of, verdict_of
from trt_tui.tui.spans import Line, Span, decibel, duration, fitted, number, plural, shorten, wrap

CANNOT_RUN = "built, cannot run here"
DIFFERS = "≠"

_TITLES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX"}
_WORDS = {REFORMAT: "reformat", QDQ: "Q/DQ alone", "?": "not told"}
_SLOWEST = 8
_LABEL = 11
_RIGHT = 32
"""Cells beside a name on the page of an engine: precision, milliseconds, share of the time."""


@dataclass(frozen=True)
class Shown:
    """The engine that is shown for a run.

    Attributes:
        config: What it was built from.
        name: That config's name.
        behind: How many edits lie between it and the run's own config; 0 where it is that config's engine.
    """

    result: EngineResult
    config: PrecisionConfig
    name: str
    behind: int = 0

    @property
    def stale(self) -> bool:
        return self.behind > 0


def shown_engine(session: Session, run: str = "config") -> Shown | None:
    """The engine of a run's config; for the current config, where it has none, the engine that was built last."""
    config, result = config_of(session, run), engine_of(session, run)
    if result is not None:
        return Shown(result, config, config_name(session, config))
    built = session.built
    result = results_of(session, built).engine if run == "config" and built is not None else None
    if result is None:
        return None
    return Shown(result, built, config_name(session, built), max(1, distance(built, config)))


# -- the builder ----------------------------------------------------------------------------------------------------


def builder_texts(builder: BuilderSummary) -> list[str]:
    """What builds and on which GPU, the longest text first."""
    title = f"{_TITLES.get(builder.name, builder.name)} {'.'.join(builder.version.split('.')[:2])}"
    if not builder.runs:
        return [f"{title}, builds only"]
    gpu = builder.device.removeprefix("NVIDIA ").removeprefix("GeForce ")
    return [f"{gpu} {title}", title] if gpu else [title]


def has_layers(session: Session) -> bool:
    """Whether engines of this session tell, or will tell, what became of the layers."""
    return session.builder is not None and session.builder.runs


# -- the verdict ----------------------------------------------------------------------------------------------------


def int8_time(result: EngineResult) -> str:
    """The share of the time that INT8 layers take, "" where it was not measured."""
    if result.report is None:
        return ""
    shares = result.report.shares()
    if all(time is None for _, time in shares.values()):
        return ""
    return f"{100 * (shares.get('INT8', (0, 0.0))[1] or 0.0):.0f} %"


def gap_span(simulated: Verdict | None, result: EngineResult) -> Span | None:
    """How many dB worse the engine is than simulated, marked where that is much; None where nobody can say."""
    gap = gap_db(result.beside(simulated), result.verdict)
    if gap is None:
        return None
    return (f"{gap:.1f}!", "warn") if gap > GAP_DB else (f"{gap:.1f}", "dim")


def check_texts(check: EngineResult) -> list[str]:
    """What the FP32 engine says of the graph, the longest text first."""
    if check.failed:
        return [f"not built: {check.failed}", "not built"]
    if not fp32_fault(check):
        return ["graph is sound"]
    if check.verdict.bad:
        how = f"{check.verdict.bad} NaN or Inf"
    else:
        how = f"differs by {check.verdict.worst[1].errors.sqnr_db:.1f} dB"
    return [f"no precision problem: {how}", "no precision problem", "graph differs"]


# -- groups ---------------------------------------------------------------------------------------------------------


def made_text(made: Made | None, asked: Precision) -> str:
    """What became of a group, for a column: ``FP16``, ``FP16≠`` where another precision is asked, ``fused``, ``?``."""
    if made is None:
        return ""
    if made.precision is None:
        return "fused" if made.region else "?"
    return made.precision.label + (DIFFERS if made.precision is not asked else "")


def group_sentences(shown: Shown, group: Group, asked: Precision) -> list[str]:
    """What became of a group: a sentence with precision, time and reformat layers, then where TensorRT tells no more.

    Args:
        asked: What the current config asks for.
    """
    made = shown.result.made.get(group.name)
    if made is None:
        return ["no engine layer bears its name"] if shown.result.made else []
    then = shown.config.precision_of(group)
    text = made.precision.label if made.precision is not None else "precision not told"
    if differs(group, shown.config, shown.result.made):
        text += f", {then.label} was asked" if shown.stale else f", asked {then.label}"
    elif asked is not then:
        text += f", {asked.label} asked since"
    parts = [f"{shown.name}: {text}" if shown.stale else text]
    if made.ms is not None:
        parts.append(f"{number(made.ms)} ms{' in a preview' if shown.result.quick else ''}")
    if made.reformats:
        parts.append(f"{plural(made.reformats, 'reformat')} around it")
    sentences = [" · ".join(parts)]
    if made.region:
        sentences.append("inside a fused region: TensorRT tells no more")
    return sentences


def scope_text(shown: Shown, groups: Sequence[Group], differ: int) -> str:
    """What became of the groups of a scope: how many in what, and how many otherwise than asked."""
    counts: dict[str, int] = {}
    for group in groups:
        made = shown.result.made.get(group.name)
        if made is not None:
            word = made.precision.label if made.precision is not None else "fused" if made.region else "not told"
            counts[word] = counts.get(word, 0) + 1
    text = " · ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    if not text:
        return ""
    return f"{shown.name + ': ' if shown.stale else ''}{text}" + (f" · {differ} {DIFFERS} asked" if differ else "")


def is_marked(shown: Shown, group: Group, asked: Precision) -> bool:
    """Whether an engine made something else of a group than is asked."""
    return made_text(shown.result.made.get(group.name), asked).endswith(DIFFERS)


# -- one engine -----------------------------------------------------------------------------------------------------


def built_text(result: EngineResult) -> str:
    """How it came about: ``built in 26 s with a timing cache``."""
    what = "preview built" if result.quick else "built"
    if result.origin == "engine cache":
        return f"{what}, from the engine cache"
    how = {"timing cache": " with a timing cache", "cold": " cold"}.get(result.origin, "")
    return f"{what} in {duration(result.build_s)}{how}" if result.build_s else what


def latency_texts(result: EngineResult) -> tuple[str, str]:
    """Median with minimum and maximum, and the median alone."""
    median, least, most = (number(ms) for ms in result.latency_ms)
    word = "preview " if result.quick else ""
    return f"{word}{median} ms ({least} to {most})", f"{word}{median} ms"


def shares_texts(result: EngineResult) -> tuple[str, str]:
    """How many layers compute in what and their share of the time, and the shares alone."""
    shares = {word: entry for word, entry in result.report.shares().items() if word not in (REFORMAT, QDQ)}
    layers = [f"{_WORDS.get(word, word)} {plural(count, 'layer')}{_percent(time)}"
              for word, (count, time) in shares.items()]
    if any(time is not None for _, time in shares.values()):
        short = ", ".join(f"{_WORDS.get(word, word)}{_percent(time)}" for word, (_, time) in shares.items())
        return ", ".join(layers) + " of time", short + " of time"
    return ", ".join(layers), ", ".join(f"{_WORDS.get(word, word)} {count}" for word, (count, _) in shares.items())


def _percent(time: float | None) -> str:
    return "" if time is None else f" {100 * time:.0f} %"


def result_text(result: EngineResult, width: int) -> str:
    """What a build made, as much of it as fits: how it was built, latency, shares of layers and time, memory."""
    parts: list[tuple[str, str]] = [(built_text(result),) * 2]
    if result.verdict is None:
        parts.append((result.note or "cannot run here", "cannot run here"))
    if result.latency_ms is not None:
        parts.append(latency_texts(result))
    if result.report is not None:
        parts.append(shares_texts(result))
        parts += [(text, text) for text in _apart(result)]
    if result.bytes is not None:
        parts.append((f"{result.bytes / 1e6:.1f} MB",) * 2)
    if result.device_memory:
        memory = _megabytes(result.device_memory)
        parts.append((f"{memory} of device memory", f"{memory} memory"))
    if result.note and result.report is None and result.verdict is not None:
        parts.append((result.note,) * 2)
    chosen: list[str] = []
    for _, short in parts:
        if len(" · ".join((*chosen, short))) > width:
            break
        chosen.append(short)
    for index, (long, short) in enumerate(parts[:len(chosen)]):
        if len(" · ".join(chosen)) - len(short) + len(long) <= width:
            chosen[index] = long
    return " · ".join(chosen) or shorten(parts[0][1], width)


def _apart(result: EngineResult) -> list[str]:
    """The layers that only change a layout or type, counted; nothing where there are none."""
    reformats, alone = result.report.count(REFORMAT), result.report.count(QDQ)
    return [*([plural(reformats, "reformat")] if reformats else []), *([f"{alone} Q/DQ alone"] if alone else [])]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{number(count / 1e6)} MB"


# -- the page -------------------------------------------------------------------------------------------------------


def page_title(session: Session) -> str:
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
    if session.check is not None:
        figure = f"{_worst(session.check.verdict, False)} against ONNX Runtime: " if session.check.verdict else ""
        lines += _labelled("FP32 check", figure + check_texts(session.check)[0], width,
                           "warn" if fp32_fault(session.check) else "")
    if shown is None:
        return lines
    lines += _checks(session, shown, width)
    if shown.result.report is not None:
        lines += _computed_in(shown.result)
        lines += _otherwise(session, shown, width)
        lines += _slowest(shown.result, width)
    return lines


def _summary(session: Session, shown: Shown, width: int) -> list[Line]:
    result = shown.result
    on = f" on {result.device}" if result.device else ""
    lines = _labelled("builder", result.backend + on, width)
    size = f", {result.bytes / 1e6:.1f} MB" if result.bytes is not None else ""
    lines += _labelled("build", built_text(result) + size, width)
    if not result.as_asked:
        for index, text in enumerate(rung_lines(result.rungs, result.otherwise)):
            lines += _labelled("" if index else "tried", text, width, "warn")
    if result.quick:
        lines += _labelled("", "a preview: neither latency nor size is that of production; b builds in full", width)
    if result.verdict is None:
        return lines + _labelled("run", result.note or CANNOT_RUN, width)
    if result.latency_ms is not None:
        median, least, most = (number(ms) for ms in result.latency_ms)
        word = ", of the preview" if result.quick else ""
        lines += _labelled("latency", f"median {median} ms, {least} to {most}{word}", width)
    if result.device_memory:
        lines += _labelled("memory", f"{_megabytes(result.device_memory)} on the device, beside weights and tensors",
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
    if result.note:
        lines += _labelled("note", result.note, width, "dim")
    return lines


def _simulated(session: Session, shown: Shown) -> Verdict | None:
    """What was simulated of what an engine is of: the config it was built from, or what was made in its place."""
    asked = results_of(session, shown.config).verdict if shown.stale else verdict_of(session, "config")
    return shown.result.beside(asked)


def _worst(verdict: Verdict, simulated: bool) -> str:
    worst = verdict.worst
    text = decibel(worst[1].errors if worst else None, simulated)[0]
    return f"{text} dB" if text[-1:].isdigit() else text


def _checks(session: Session, shown: Shown, width: int) -> list[Line]:
    simulated = _simulated(session, shown)
    known = what_to_check(session.outline, shown.config, simulated, shown.result, session.check)
    if not known:
        return []
    gap = gap_db(simulated, shown.result.verdict)
    why = f"{gap:.1f} dB worse than simulated" if gap is not None else "NaN or Inf that were not simulated"
    lines: list[Line] = [[], [(f"What to check: it is {why}", "warn")]]
    for text in known:
        lines += [[("  · " if index == 0 else "    ", "dim"), (part, "")]
                  for index, part in enumerate(wrap(text, width - 4))]
    return lines


def _computed_in(result: EngineResult) -> list[Line]:
    lines: list[Line] = [[], [(f"{'Computed in':<16}{'layers':>8}{'time':>8}", "strong")]]
    for word, (count, time) in result.report.shares().items():
        lines.append([(f"  {_WORDS.get(word, word):<14}", "dim" if word in _WORDS else ""), (f"{count:>8}", ""),
                      (f"{'–' if time is None else f'{100 * time:.0f} %':>8}", "")])
    return lines


def _otherwise(session: Session, shown: Shown, width: int) -> list[Line]:
    """The groups that run in another precision than asked."""
    groups = [group for group in session.outline.groups if differs(group, shown.config, shown.result.made)]
    if not groups:
        return [[], [("Every group that TensorRT tells of runs as asked.", "dim")]]
    lines: list[Line] = [[], [(f"Asked {DIFFERS} made: {plural(len(groups), 'group')}", "strong")]]
    room = max(10, width - _RIGHT)
    for group in groups:
        made = shown.result.made[group.name]
        time = f"{number(made.ms)} ms" if made.ms is not None else ""
        lines.append([("  " + fitted(group.name, room), ""),
                      (f"{f'{shown.config.precision_of(group).label} → {made.precision.label}':>13}", ""),
                      (f"{time:>11}", "dim")])
    return lines


def _slowest(result: EngineResult, width: int) -> list[Line]:
    timed = sorted((layer for layer in result.report.layers if layer.ms), key=lambda layer: -layer.ms)
    if not timed:
        return []
    total = sum(layer.ms for layer in timed)
    lines: list[Line] = [[], [("Slowest layers" + (" of the preview" if result.quick else ""), "strong")]]
    room = max(10, width - _RIGHT)
    for layer in timed[:_SLOWEST]:
        precision = layer.precision.label if layer.precision is not None else ""
        word = precision or "?" if layer.kind == COMPUTE else layer.kind
        lines.append([("  " + fitted(layer.name, room), ""), (f"{word:>13}", "dim"),
                      (f"{number(layer.ms):>8} ms", ""), (f"{100 * layer.ms / total:>4.0f} %", "dim")])
    return lines


def _labelled(label: str, text: str, width: int, style: str = "") -> list[Line]:
    return [[(f"{label if index == 0 else '':<{_LABEL}} ", "dim"), (part, style)]
            for index, part in enumerate(wrap(text, max(10, width - _LABEL - 1)))]


# -- what to do next ------------------------------------------------------------------------------------------------


def alert(session: Session) -> str:
    """What is wrong with the engine of the current config beside its precision, and the key that tells more; or ""."""
    result = engine_of(session, "config")
    if result is None:
        return ""
    if fp32_fault(session.check):
        return "FP32 differs too, no precision problem: i tells more"
    if not result.as_asked:
        return "not built as asked: i says what was made"
    simulated = verdict_of(session, "config")
    gap = gap_db(simulated, result.verdict)
    broken = result.verdict is not None and result.verdict.bad and simulated is not None and not simulated.bad
    if not broken and (gap is None or gap <= GAP_DB):
        return ""
    return (f"{gap:.1f} dB worse than simulated" if gap is not None else "NaN or Inf") + ": i says what to check"


def next_step(session: Session) -> str:
    """What an engine of the current config leads to, "" where there is none or nothing to say of it."""
    result = engine_of(session, "config")
    if result is None:
        return ""
    if wrong := alert(session):
        return f"engine: {wrong}"
    verdict = verdict_of(session, "config")
    simulated, built = met(session, verdict), met(session, result.verdict)
    if result.verdict is None:
        return "next: e exports; the engine was built and cannot run here" if simulated else ""
    if built is False:
        return "next: the build misses the target: raise one more row, then b" if simulated else ""
    if built is None:
        return ""
    if result.quick:
        return f"next: b builds {config_name(session)} in full, this was a preview"
    return "next: e exports precision.json"


def fitting(texts: Sequence[str], width: int) -> str:
    """The first of some texts that fits, the last one where none does."""
    return next((text for text in texts if len(text) <= width), texts[-1])
