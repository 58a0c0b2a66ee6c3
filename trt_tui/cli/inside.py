"""Errors inside engines, and what is to be said of several builds, as text."""

import math
from collections.abc import Mapping

from trt_tui.cli.made import warned
from trt_tui.core.measure.agreement import engine_remarks, inside_words
from trt_tui.core.measure.comparison import EngineErrors, EngineResult, Errors, GroupErrors
from trt_tui.core.network.hierarchy import build_tree, titles
from trt_tui.session.session import Session
from trt_tui.words import NOTHING, table, with_unit

ROWS = 20


def remark_lines(engines: Mapping[str, EngineResult]) -> list[str]:
    """How fast several profiles are, what several builds of a config came to, what engines do to identical samples, and
    what parser and builder warned of, by their titles."""
    lines = [f"{title}: {remark}" for title, result in engines.items()
             for remark in (*result.profiles_said, *engine_remarks(result))]
    for title, result in engines.items():
        lines += [f"{title}: warnings of parser and builder", *warned(result.remarks)] if result.remarks else []
    return ["", *lines] if lines else []


def inside_lines(session: Session, run: str, title: str, inside: EngineErrors | None) -> list[str]:
    """How the errors inside the engine of a run were read, where it parts from its simulation, and the groups at which
    it is worse by most; nothing where they were not measured.

    Args:
        title: The engine's.
    """
    if inside is None:
        return []
    outline = session.opened.outline
    places = titles(build_tree(outline.layers, outline.groups))
    lines = ["", f"{title}, {inside_words(inside, len(outline.groups))}"]
    if inside.verdict is not None and inside.verdict.worst is not None:
        name, worst = inside.verdict.worst
        lines.append(f"  the marked engine: {with_unit(worst.errors.figure(''))} at {name}")
    if (parts := session.parting(run)) is not None:
        lines.append(f"  {places.get(parts.group, parts.group)}: {parts.said}")
    known = session.measured(run).groups
    rows = []
    for group in outline.groups:
        if (one := inside.groups.get(group.name)) is not None:
            wanted = _accumulated(known.get(group.name))
            gap = _gap(one, wanted)
            rows.append((-math.inf if gap is None else gap, [
                places.get(group.name, group.name), group.operator, one.figure(""),
                NOTHING if wanted is None else wanted.figure(), "" if gap is None else f"{gap:+.1f}"]))
    rows.sort(key=lambda row: -row[0])
    header = ["where the engine is worse than simulated", "operator", "engine", "simulated", "gap, dB"]
    return [*lines, *table([header, *(row for _, row in rows[:ROWS])], flush_left=2)] if rows else lines


def _accumulated(known: GroupErrors | None) -> Errors | None:
    return None if known is None else known.accumulated


def _gap(built: Errors, simulated: Errors | None) -> float | None:
    """By how many dB the engine is worse; None where either is exact or not finite."""
    if simulated is None or built.sqnr_db is None or simulated.sqnr_db is None:
        return None
    return simulated.sqnr_db - built.sqnr_db
