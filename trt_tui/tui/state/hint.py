"""The hint: what to do next, with the keys that do it."""

from dataclasses import dataclass

from trt_tui.core.measure.comparison import Measured
from trt_tui.core.precision import Precision
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.known import (
    config_met,
    config_name,
    executed_met,
    is_measuring,
    is_unfinished,
    met,
)
from trt_tui.tui.spans import shorten_path
from trt_tui.tui.state import built
from trt_tui.tui.state.figures import Figures
from trt_tui.tui.state.flips import flip_of

NAME_CELLS = 60, 24
"""Cells that the name of a row may take in a hint, in its longest form and in all others."""


@dataclass(frozen=True)
class Hint:
    """What to do next.

    Attributes:
        forms: The text in ever fewer words; empty if there is nothing to say.
        actions: The ids of the actions whose keys the text names, in the order in which they are to be pressed.
        group: The name of the group that they raise, "" if they raise none.
    """

    forms: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    group: str = ""

    @property
    def text(self) -> str:
        """The longest form; "" if there is nothing to say."""
        return self.forms[0] if self.forms else ""

    def __bool__(self) -> bool:
        return bool(self.forms)


MEASURING = Hint(("still measuring",))
"""In place of advice whose values are not final."""


def next_step(session: Session, found: Figures | None, cursor: str = "", typing: bool = False) -> Hint:
    """Returns what to do next; nothing is advised on values that are not final.

    Args:
        cursor: The group whose row has the cursor and the keys, "" if there is none.
        typing: Keys go to the filter.
    """
    if session.outline is None or found is None:
        return Hint()
    if typing:
        return Hint((f"{key('open')} goes to the rows, {key('close')} shows all of them again",))
    if session.data is None:
        return Hint(("next: reopen with --data for a verdict",))
    if session.data.random and session.measured("int8").verdict is None and not is_measuring(session):
        return Hint((f"next: reopen with --data for a verdict, or {key('compare')} compares on random inputs",
                     f"next: reopen with --data, or {key('compare')} compares"), ("compare",))
    if session.building:
        return Hint()
    if session.searching:
        so_far = session.finding is not None and session.finding.config is not None
        return Hint((f"{key('find')} offers the best so far",), ("find",)) if so_far else Hint()
    if is_unfinished(session, session.config):
        return MEASURING if is_measuring(session) else Hint((f"next: {key('compare')} compares",), ("compare",))
    if after := _after_build(session, found, cursor):
        return after
    reached = config_met(session, session.config)
    if reached is None:
        return _raise(session, found, cursor) if session.target is None else Hint()
    if not reached:
        return _raise(session, found, cursor)
    does = "builds {} and confirms it" if session.builder is not None else "executes the export of {}"
    return Hint((f"next: {key('build')} {does.format(config_name(session))}",), ("build",))


def worst_row(session: Session, found: Figures) -> str | None:
    """Returns the name of the row to look at first.

    The first row, in network order, with NaN or Inf; else, of the rows that can be raised to FP32, the one with the
    largest share of the error. None if there is neither.
    """
    groups = found.model.outline.groups
    if found.bad:
        return next(group.name for group in groups if group.name in found.bad)
    shares, config = session.measured("config").shares, session.config
    weights = {group.name: shares[group.name].owns for group in groups if group.name in shares
               and shares[group.name].owns > 0
               and config.toggled([group]).precision_of(group) is Precision.FP32}
    return max(weights, key=lambda name: weights[name], default=None)


def _raise(session: Session, found: Figures, cursor: str, lead: str = "next: ") -> Hint:
    """Returns the hint that leads to the target from a config that misses it."""
    if is_measuring(session):
        return Hint((f"still measuring {'the shares' if not session.measured('config').shares else 'all shares'}",
                     *MEASURING.forms))
    fix = f"{key('find')} finds a fix"
    worst = worst_row(session, found)
    outline, config = found.model.outline, session.config
    if worst is None or config.toggled([outline.group(worst)]).precision_of(outline.group(worst)) is not Precision.FP32:
        return Hint((lead + fix,), ("find",))
    goal = rows_to_target(session, session.results.of(config))
    actions: tuple[str, ...] = ("toggle",) if cursor == worst else ("first_nan", "toggle")
    if cursor == worst:
        does = [f"{key('toggle')} raises this one"] * 2
    else:
        keys = ", ".join(key(one) for one in actions)
        does = [f"{keys} raises {shorten_path(found.model.titles[worst], width)}" for width in NAME_CELLS]
    flip = flip_of(session, [outline.group(worst)])
    gain = f" → {found.title} {flip.figure}" if flip.figure and not flip.partial else ""
    more = f"; {goal} rows to FP32 meet the target" if goal is not None and goal > 1 else ""
    return Hint((f"{lead}{fix}, or {does[0]}{gain}{more}", f"{lead}{fix}, or {does[1]}{gain}",
                 f"{lead}{fix}, or {does[1]}", f"{lead}{does[1]}"), actions, worst)


def rows_to_target(session: Session, results: Measured) -> int | None:
    """How many rows of the worst-first order have to be raised to reach the target; None where that is not known."""
    if session.target is None:
        return None
    return next((n for n, verdict in enumerate(results.raised, 1) if met(session, verdict)), None)


def _after_build(session: Session, found: Figures, cursor: str) -> Hint:
    """Returns what the engine of the config, or the execution of its export, leads to; nothing if there is none."""
    result, executed = session.measured("config").engine, session.measured("config").executed
    simulated = config_met(session, session.config)
    export = Hint((f"next: {key('export')} exports precision.json",), ("export",))
    if result is None and executed is not None:
        if simulated and executed_met(session, executed) is False:
            return _raise(session, found, cursor, "the exported network misses the target: ")
        return export if simulated else Hint()
    if result is None:
        return Hint()
    if wrong := built.alert(session):
        return Hint((f"engine: {wrong}",))
    if result.verdict is None:
        texts = (f"next: {key('export')} exports; the engine was built but cannot run here",
                 f"next: {key('export')} exports")
        return Hint(texts, ("export",)) if simulated else Hint()
    passes = met(session, result.verdict)
    if passes is None:
        return Hint()
    if not passes:
        return _raise(session, found, cursor, "the build misses the target: ") if simulated else Hint()
    if result.quick:
        return Hint((f"next: {key('build')} builds {config_name(session)} in full, this was a quick build",
                     f"next: {key('build')} builds {config_name(session)} in full"), ("build",))
    return export
