"""What the builder made of a config: who builds, what became of each group, and what follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.core.engines.inspector import QDQ, REFORMAT, EngineReport
from trt_tui.core.engines.made import Made, differs
from trt_tui.core.measure.agreement import GAP_DB, fp32_fault, gap_db
from trt_tui.core.measure.comparison import EngineResult, Verdict
from trt_tui.core.moves.config import PrecisionConfig, distance
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.jobs.summaries import BuilderSummary
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.known import config_name
from trt_tui.tui.spans import Span, shorten
from trt_tui.words import (
    COMPUTED_IN,
    EXPORTED_NETWORK,
    builder_title,
    byte_size,
    cells,
    decibels,
    duration,
    milliseconds,
    number,
    percent,
    plural,
    with_unit,
    worse_by,
)

CANNOT_RUN = "built, cannot run here"
DIFFERS = "≠"


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
        """Whether it is another config's."""
        return self.behind > 0


def shown_engine(session: Session, run: str = "config") -> Shown | None:
    """The engine of a run's config; if the current config has none, the engine that was built last."""
    config, result = session.run_configs()[run], session.measured(run).engine
    if result is not None:
        return Shown(result, config, config_name(session, config))
    built = session.built if run == "config" else None
    result = session.results.of(built).engine if built is not None else None
    if built is None or result is None:
        return None
    return Shown(result, built, config_name(session, built), max(1, distance(built, config)))


# -- the builder ----------------------------------------------------------------------------------------------------


def builder_texts(builder: BuilderSummary) -> list[str]:
    """What builds and on which GPU, the longest text first."""
    title = builder_title(builder.name, ".".join(builder.version.split(".")[:2]))
    if not builder.runs:
        return [f"{title}, builds only"]
    gpu = builder.device.removeprefix("NVIDIA ").removeprefix("GeForce ")
    return [f"{gpu} {title}", title] if gpu else [title]


def built_title(session: Session, short: bool = False) -> str:
    """Returns the title of the column of built values: the builder, or the exported network where nothing builds."""
    builder = session.builder
    if builder is None:
        return "exported" if short else EXPORTED_NETWORK
    major = ".".join(builder.version.split(".")[:2])
    return f"{'RTX' if builder.name == 'tensorrt-rtx' else 'TRT'} {major}"


def has_layers(session: Session) -> bool:
    """Whether engines of this session show, or will show, what became of the layers."""
    return session.builder is not None and session.builder.runs


# -- the verdict ----------------------------------------------------------------------------------------------------


def codes_time(result: EngineResult, codes: Precision) -> str:
    """The share of the time that layers in INT8, or other codes, take, "" where it was not measured."""
    if result.report is None:
        return ""
    shares = result.report.shares()
    if all(time is None for _, time in shares.values()):
        return ""
    return percent(shares.get(codes.label, (0, 0.0))[1] or 0.0)


def gap_span(simulated: Verdict | None, result: EngineResult) -> Span | None:
    """How many dB worse the engine is than simulated, marked if that is much; None if it is unknown."""
    gap = gap_db(result.beside(simulated), result.verdict)
    if gap is None:
        return None
    return (f"{decibels(gap, mark='')}!", "warn") if gap > GAP_DB else (decibels(gap, mark=""), "dim")


def fp32_engine_texts(fp32_engine: EngineResult) -> list[str]:
    """What the FP32 engine says of the graph, the longest text first."""
    if fp32_engine.failed:
        return [f"not built: {fp32_engine.failed}", "not built"]
    verdict = fp32_engine.verdict
    if not fp32_fault(fp32_engine) or verdict is None or verdict.worst is None:
        return ["graph is sound"]
    how = f"{verdict.bad} NaN or Inf" if verdict.bad else f"differs by {with_unit(verdict.worst[1].errors.figure(''))}"
    return [f"no precision problem: {how}", "no precision problem", "graph differs"]


# -- groups ---------------------------------------------------------------------------------------------------------


def made_text(made: Made | None, asked: Precision) -> str:
    """What became of a group, for a column: ``FP16``, ``≠ FP16`` where another precision is asked, ``fused``, ``?``."""
    if made is None:
        return ""
    seen = made.seen(asked)
    if seen is None:
        return "fused" if made.region or made.among else "?"
    return f"{DIFFERS} {seen.label}" if seen is not asked else seen.label


def group_sentences(shown: Shown, group: Group, asked: Precision) -> list[str]:
    """What became of a group: a sentence with precision, time and reformat layers, then where TensorRT reports no more.

    Args:
        asked: What the current config asks for.
    """
    made = shown.result.made.get(group.name)
    if made is None:
        return ["no engine layer has its name"] if shown.result.made else []
    then = shown.config.precision_of(group)
    text = made.precision.label if made.precision is not None else "precision not told"
    if differs(group, shown.config, shown.result.made):
        text += f", {group.label(then)} was asked" if shown.stale else f", asked {group.label(then)}"
    elif asked is not then:
        text += f", {group.label(asked)} asked since"
    parts = [f"{shown.name}: {text}" if shown.stale else text]
    if made.ms is not None:
        parts.append(f"{milliseconds(made.ms)}{' in a quick build' if shown.result.quick else ''}")
    if made.reformats:
        parts.append(f"{plural(made.reformats, 'reformat')} around it")
    sentences = [" · ".join(parts)]
    if made.region:
        sentences.append("inside a fused region: TensorRT reports no more")
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
    """Whether an engine runs a group otherwise than asked."""
    return made_text(shown.result.made.get(group.name), asked).startswith(DIFFERS)


# -- one engine -----------------------------------------------------------------------------------------------------


def built_text(result: EngineResult) -> str:
    """How it was made: ``built in 26 s with a timing cache``."""
    what = "built quickly" if result.quick else "built"
    if result.origin == "engine cache":
        return f"{what}, from the engine cache"
    how = {"timing cache": " with a timing cache", "cold": " cold"}.get(result.origin, "")
    return f"{what} in {duration(result.build_s)}{how}" if result.build_s else what


def latency_texts(latency_ms: tuple[float, float, float], quick: bool) -> tuple[str, str]:
    """Median with minimum and maximum, and the median alone."""
    median, least, most = latency_ms
    short = f"{'quick ' if quick else ''}{milliseconds(median)}"
    return f"{short} ({number(least)} to {number(most)})", short


def shares_texts(report: EngineReport) -> tuple[str, str]:
    """How many layers compute in what and their share of the time, and the shares alone."""
    shares = {word: entry for word, entry in report.shares().items() if word not in (REFORMAT, QDQ)}
    layers = [f"{COMPUTED_IN.get(word, word)} {plural(count, 'layer')}{_percent(time)}"
              for word, (count, time) in shares.items()]
    if any(time is not None for _, time in shares.values()):
        short = ", ".join(f"{COMPUTED_IN.get(word, word)}{_percent(time)}" for word, (_, time) in shares.items())
        return ", ".join(layers) + " of time", short + " of time"
    return ", ".join(layers), ", ".join(f"{COMPUTED_IN.get(word, word)} {count}" for word, (count, _) in shares.items())


def _percent(time: float | None) -> str:
    return "" if time is None else f" {percent(time)}"


def result_text(result: EngineResult, width: int) -> str:
    """What a build made, as much of it as fits: how it was built, latency, shares of layers and time, memory."""
    parts: list[tuple[str, str]] = [(built_text(result),) * 2]
    if result.verdict is None:
        parts.append((result.note or "cannot run here", "cannot run here"))
    if result.latency_ms is not None:
        parts.append(latency_texts(result.latency_ms, result.quick))
    if result.report is not None:
        parts.append(shares_texts(result.report))
        parts += [(text, text) for text in _apart(result.report)]
    if result.bytes is not None:
        parts.append((byte_size(result.bytes),) * 2)
    if result.device_memory:
        memory = byte_size(result.device_memory)
        parts.append((f"{memory} of device memory", f"{memory} memory"))
    if result.note and result.report is None and result.verdict is not None:
        parts.append((result.note,) * 2)
    chosen: list[str] = []
    for _, short in parts:
        if cells(" · ".join((*chosen, short))) > width:
            break
        chosen.append(short)
    for index, (long, _) in enumerate(parts[:len(chosen)]):
        if cells(" · ".join((*chosen[:index], long, *chosen[index + 1:]))) <= width:
            chosen[index] = long
    return " · ".join(chosen) or shorten(parts[0][1], width)


def _apart(report: EngineReport) -> list[str]:
    """The layers that only change a layout or type, counted; nothing where there are none."""
    reformats, alone = report.count(REFORMAT), report.count(QDQ)
    return [*([plural(reformats, "reformat")] if reformats else []), *([f"{alone} Q/DQ alone"] if alone else [])]


# -- what to do next ------------------------------------------------------------------------------------------------


def alert(session: Session) -> str:
    """What is wrong with the engine of the current config apart from precision, and the key that shows more; or ""."""
    result = session.measured("config").engine
    if result is None:
        return ""
    if fp32_fault(session.results.fp32_engine):
        return f"FP32 differs too, no precision problem: {key('engine')} shows more"
    if not result.as_asked:
        return f"not built as asked: {key('engine')} shows what was built"
    simulated = session.measured("config").verdict
    gap = gap_db(simulated, result.verdict)
    broken = result.verdict is not None and result.verdict.bad and simulated is not None and not simulated.bad
    if not broken and (gap is None or gap <= GAP_DB):
        return ""
    return worse_by(gap) + f": {key('engine')} shows what to check"


def fitting(texts: Sequence[str], width: int) -> str:
    """The first of some texts that fits, or else the last one."""
    return next((text for text in texts if cells(text) <= width), texts[-1])
