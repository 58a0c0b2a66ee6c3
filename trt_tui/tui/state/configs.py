"""The list of configs with their results, and what differs between two of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trt_tui.core.measure.comparison import EngineResult, ExportedRun, Verdict
from trt_tui.core.measure.target import EVERY
from trt_tui.core.moves.config import PrecisionConfig, compared
from trt_tui.session.history import Note
from trt_tui.session.session import Session
from trt_tui.tui.known import config_name, headline, outcome_line
from trt_tui.tui.spans import Line, Span, clip, decibel, shorten_apart, width_of
from trt_tui.tui.state import built
from trt_tui.tui.state.previewed import kernel_lines
from trt_tui.tui.state.tree import TreeModel
from trt_tui.words import NOTHING, SIMULATED, byte_size, cells, left, megabytes, metric_figure, number, right


@dataclass(frozen=True)
class ConfigLine:
    """One row of the list of configs."""

    config: PrecisionConfig
    name: str
    line: Line


class Marks:
    """Up to two configs that the user has marked as A and B, by letter."""

    def __init__(self) -> None:
        self.configs: dict[str, PrecisionConfig] = {}

    def mark(self, config: PrecisionConfig) -> str:
        """Marks a config as A where there is no A or both are set, else as B; takes a mark off again.

        Returns:
            Its letter, "" where it has none any more.
        """
        letter = next((letter for letter, one in self.configs.items() if one == config), None)
        if letter is not None:
            del self.configs[letter]
            return ""
        if "A" not in self.configs or "B" in self.configs:
            self.configs = {"A": config}
            return "A"
        self.configs["B"] = config
        return "B"


def config_table(session: Session, marks: Mapping[str, PrecisionConfig], width: int) -> tuple[Line, list[ConfigLine]]:
    """The header and the configs of the session, the newest first, in as many columns as the width holds."""
    if session.outline is None:
        return [], []
    letters = {config: mark for mark, config in marks.items()}
    kind = session.target.kind if session.target is not None else "sqnr"
    metric = next(iter(session.results.reference), "metric")[:8]
    if session.target is not None and session.target.part is not None:
        metric = "worst" if session.target.part == EVERY else session.target.part[-8:]
    title = {"metric": metric, "sqnr": ""}.get(kind, kind[:8])
    notes = session.names.notes
    comment = "comment" if any(note.comment for note in notes.values()) else ""
    ms = "ms" if session.builder is not None else ""  # an exported network has none
    header = ["", "raised", "SQNR", title, built.built_title(session, width < 60), ms, "", comment]
    rows: list[tuple[PrecisionConfig, str, list[Span]]] = []
    for config, name in session.names.newest_first():
        results, note = session.results.of(config), notes.get(config, Note())
        verdict, engine = results.verdict, results.engine
        worst = verdict.worst if verdict is not None else None
        now = config == session.config
        rows.append((config, name, [
            (f"{letters.get(config, '•' if note.pinned else ' ')}{'>' if now else ' '}{name}", "strong" if now else ""),
            (f"{len(config.raised(session.outline))}", "dim"),
            (decibel(worst[1].errors if worst else None)[0], "bad" if verdict and verdict.bad else ""),
            (headline(session, verdict)[0] if title else "", ""),
            *(_built_cells(session, engine) if engine is not None else _executed_cells(session, results.executed)),
            _one_span(outcome_line(session.config_results(config))),
            (note.comment, "dim"),
        ]))
    kept = [i for i in range(len(header)) if header[i] or i in (0, 6)]
    widths = {i: max(cells(header[i]), *(cells(row[i][0]) for _, _, row in rows)) for i in kept}
    # Dropped first if there is no room: how many are raised, then the decibels if the target is another figure.
    for column in (7, 1, 2):
        if sum(widths[i] + 2 for i in kept) - 2 > width and column in kept and (column != 2 or title):
            kept.remove(column)

    def line(row: Sequence[Span]) -> Line:
        spans = [((left if i in (0, 6, 7) else right)(row[i][0], widths[i]), row[i][1]) for i in kept]
        return clip([span for one in spans for span in (("  ", ""), one)][1:], width)

    lines = [ConfigLine(config, name, line(row)) for config, name, row in rows]
    return line([(text, "dim") for text in header]), lines


def _one_span(line: Line) -> Span:
    """A line as a single span, in the style of its first one."""
    return "".join(text for text, _ in line), line[0][1] if line else ""


def _executed_cells(session: Session, executed: ExportedRun | None) -> tuple[Span, Span]:
    """The value of a config's exported network, and no milliseconds; a dash where engines stand in the column."""
    if executed is None or session.builder is not None:
        return (NOTHING, "dim"), (NOTHING, "dim")
    if executed.accuracy is None:
        return ("not executed", "dim"), (NOTHING, "dim")
    return (headline(session, executed.accuracy, False)[0].removesuffix(" dB"), ""), (NOTHING, "dim")


def _built_cells(session: Session, engine: EngineResult) -> tuple[Span, Span]:
    """The figure of a config's engine and its milliseconds; the size alone where it cannot run here."""
    if engine.verdict is None:
        return (byte_size(engine.bytes) if engine.bytes is not None else "built", "dim"), (NOTHING, "dim")
    latency = number(engine.latency_ms[0]) if engine.latency_ms else NOTHING
    figure = headline(session, engine.verdict, False)[0].removesuffix(" dB")
    figure = figure if engine.as_asked else f"{built.DIFFERS}{figure}"
    return (figure, ""), ("quick", "dim") if engine.quick else (latency, "")


def diff_lines(session: Session, model: TreeModel, one: PrecisionConfig, other: PrecisionConfig) -> list[Line]:
    """What differs between two configs: one line for each group and range."""
    names = config_name(session, one), config_name(session, other)
    changed = [(line.kind.about(model.titles.get(line.target, line.target)), line.here, line.there)
               for line in compared(one, other, model.outline)]
    if not changed:
        return [[("They are the same.", "dim")]]
    width = min(48, max(width_of([(name, "")]) for name, *_ in changed))
    lines: list[Line] = [[(" " * (width + 2), ""), (left(names[0], 18), "strong"), (names[1], "strong")]]
    apart = shorten_apart((name for name, *_ in changed), width)
    lines += [[(left(apart[name], width) + "  ", ""), (f"{here:<18}", ""), (there, "")]
              for name, here, there in changed]
    verdicts = [session.results.of(config).verdict for config in (one, other)]
    metric = next(iter(session.results.reference), "")
    figures = [("SQNR", [_sqnr(verdict) for verdict in verdicts]),
               (metric, [metric_figure(verdict.metric.get(metric) if verdict is not None else None, SIMULATED)
                         for verdict in verdicts] if metric else []),
               ("ms", [_ms(session, config) for config in (one, other)]),
               ("MB", [_mb(session, config) for config in (one, other)])]
    for label, texts in figures:
        if any(text not in ("", NOTHING) for text in texts):
            lines.append([(label.ljust(width + 2), "dim"), *((f"{text or NOTHING:<18}", "") for text in texts)])
    if any(verdict is not None for verdict in verdicts) and not metric and session.target is not None and (
            session.target.kind != "sqnr"):
        lines.append([("output".ljust(width + 2), "dim"),
                      *((f"{headline(session, verdict)[0]:<18}", "") for verdict in verdicts)])
    return lines + kernel_lines(session, one, other)


def _sqnr(verdict: Verdict | None) -> str:
    worst = verdict.worst if verdict is not None else None
    return decibel(worst[1].errors)[0] if worst is not None else NOTHING


def _ms(session: Session, config: PrecisionConfig) -> str:
    engine = session.results.of(config).engine
    return number(engine.latency_ms[0]) if engine is not None and engine.latency_ms else NOTHING


def _mb(session: Session, config: PrecisionConfig) -> str:
    engine = session.results.of(config).engine
    return megabytes(engine.bytes) if engine is not None and engine.bytes is not None else NOTHING
