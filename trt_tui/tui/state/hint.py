"""What to do next, in one phrase."""

from trt_tui.core.measure.comparison import Measured
from trt_tui.core.precision import Precision
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.known import config_met, config_name, met
from trt_tui.tui.spans import shorten
from trt_tui.tui.state import built
from trt_tui.tui.state.figures import Figures, Measure
from trt_tui.tui.state.flips import flip_of


def next_step(session: Session, found: Figures | None, cursor: str = "", short: bool = False,
              room: int = 24) -> str:
    """What to do next, in one phrase.

    Args:
        cursor: The group under the cursor.
        short: Leave out what it leads to, for a line that is shared with jobs.
        room: Cells that the name of a row may take.
    """
    if session.outline is None or found is None:
        return ""
    if session.data is None or (session.data.random and session.measured("int8").verdict is None):
        return f"next: reopen with --data for a verdict, or {key('compare')} compares on random inputs"
    verdict = session.measured("config").verdict
    if verdict is None:
        return "" if session.busy else f"next: {key('compare')} compares"
    if session.building:
        return ""
    if session.searching:
        return f"{key('find')} takes the best so far"
    if after := built.engine_step(session):
        return after
    reached = config_met(session, session.config)
    if reached is None and session.target is not None:
        return ""
    does = "builds {} and confirms it" if session.builder is not None else "executes the export of {}"
    return f"next: {key('build')} {does.format(config_name(session))}" if reached else (
        next_raise(session, found, cursor, short, room))


def next_raise(session: Session, found: Figures, cursor: str, short: bool, room: int) -> str:
    """How to reach the target from here: the worst rows that are not yet FP32. See `next_step`."""
    config = session.config
    by_name = found.model.outline.group_by_name
    order = found.worst_first if found.run == "config" and found.measure is Measure.OWNS else ()
    worst = next((name for name in order if config.precision_of(by_name[name]) is not Precision.FP32), None)
    if worst is None:
        return "" if session.busy else f"next: {key('next_bad')} goes to the worst row"
    results = session.results.of(config)
    goal = rows_to_target(session, results)
    if short:
        lead = f"{goal} rows to go: " if goal is not None and goal > 1 else "next: "
    elif goal is not None and goal > 1:
        lead = f"next: {goal} rows to FP32 meet the target: "
    else:
        lead = "next: "
    if cursor == worst and short:
        return f"{lead}{key('toggle')} raises this one"
    if cursor == worst:
        flip = flip_of(session, [by_name[worst]]).figure
        gain = f" → {found.title} {flip}" if flip else ""
        return f"{lead}{key('toggle')} raises this one{gain}"
    return f"{lead}{key('next_bad')}, {key('toggle')} raises {shorten(found.model.titles[worst], room)}"


def rows_to_target(session: Session, results: Measured) -> int | None:
    """How many rows of the worst-first order have to be raised to reach the target; None where that is not known."""
    if session.target is None:
        return None
    return next((n for n, verdict in enumerate(results.raised, 1) if met(session, verdict)), None)
