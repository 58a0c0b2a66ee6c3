"""The list of the saved sessions of a network."""

import time
from collections.abc import Mapping

from trt_tui.core.network.layers import NetworkOutline
from trt_tui.session.session_folder import SessionEntry
from trt_tui.tui.spans import Line, Span
from trt_tui.tui.state.marks import CURSOR_MARK
from trt_tui.tui.table import Column, fit_table

_MIN_SAMPLES_WIDTH = 70
"""The width of the list from which it has the number of samples."""


def session_table(entries: Mapping[str, SessionEntry], outline: NetworkOutline, width: int
                  ) -> tuple[Line, list[tuple[str, Line]]]:
    """Returns the titles and a line for each session: when it was saved, config, result with its samples, and target.
    """
    rows: list[list[Span]] = []
    for entry in entries.values():
        saved = entry.saved_session
        config = saved.current.to_precision_config()
        raised_count = len(config.find_raised_groups(outline))
        name = saved.to_config_names().get(config, "c?")
        outcome = saved.outcome or "not measured"
        own_style = "strong" if entry.is_own else ""
        rows.append([
            (f" {CURSOR_MARK if entry.is_own else ' '}", "strong"), (clock_text(entry.modified_time), "dim"),
            (f"{name} · {raised_count} raised" if raised_count else name, own_style),
            (outcome, "good" if outcome.startswith("PASS") else "bad" if outcome.startswith("FAIL") else "dim"),
            (saved.samples, "dim"),
            (f"{'current, ' if entry.is_own else ''}{saved.target or 'default'}", "")])
    columns = [Column(""), Column("saved", width=12), Column("config", width=13), Column("result", width=12),
               Column("samples", width=8), Column("target")]
    if width < _MIN_SAMPLES_WIDTH:
        del columns[4]
        rows = [[*row[:4], row[5]] for row in rows]
    header, *lines = fit_table(columns, rows, width, gap=1)
    return header, list(zip(entries, lines, strict=True))


def clock_text(seconds: float, current_time: float | None = None) -> str:
    """Returns a Unix time as text: "14:02:11" for today, else with the day; "" for 0, or for an impossible time."""
    try:
        moment = time.localtime(seconds)
        today = time.localtime(current_time)[:3]
    except (OverflowError, ValueError, OSError):  # a time from a file
        return ""
    return "" if not seconds else time.strftime("%H:%M:%S" if moment[:3] == today else "%d %b %H:%M", moment)
