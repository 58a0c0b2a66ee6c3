"""The list of the saved sessions of a network."""

import time

from trt_tui.core.network.layers import NetworkOutline
from trt_tui.formatting import escape_hidden_characters
from trt_tui.session.session_folder import SessionEntry
from trt_tui.tui.spans import Line, clip_line, pad_or_shorten
from trt_tui.tui.state.marks import CURSOR_MARK

_TIME_WIDTH, _CONFIG_WIDTH, _OUTCOME_WIDTH, _SAMPLES_WIDTH = 13, 14, 13, 9
"""The widths of the columns of the list in cells."""

_MIN_SAMPLES_WIDTH = 70
"""The width of the list from which it has the number of samples."""


def session_title_line(width: int) -> Line:
    """Returns the column titles of the list of sessions."""
    samples_title = f"{'samples':<{_SAMPLES_WIDTH}}" if width >= _MIN_SAMPLES_WIDTH else ""
    return [(f"   {'saved':<{_TIME_WIDTH}}{'config':<{_CONFIG_WIDTH}}{'result':<{_OUTCOME_WIDTH}}"
             f"{samples_title}target", "dim")]


def session_line(entry: SessionEntry, outline: NetworkOutline, width: int) -> Line:
    """Returns the line of a session: when it was saved, config, result with its samples, and target."""
    saved = entry.saved_session
    config = saved.current.to_precision_config()
    raised_count = len(config.find_raised_groups(outline))
    name = saved.to_config_names().get(config, "c?")
    title = f"{name} \u00b7 {raised_count} raised" if raised_count else name
    samples = (pad_or_shorten(saved.samples, _SAMPLES_WIDTH - 1) + " ") if width >= _MIN_SAMPLES_WIDTH else ""
    room = max(8, width - 3 - _TIME_WIDTH - _CONFIG_WIDTH - _OUTCOME_WIDTH - len(samples))
    end_text = f"{'current, ' if entry.is_own else ''}{saved.target or 'default'}"
    outcome = saved.outcome or "not measured"
    style = "good" if outcome.startswith("PASS") else "bad" if outcome.startswith("FAIL") else "dim"
    return [(f" {CURSOR_MARK if entry.is_own else ' '} ", "strong"),
            (f"{clock_text(entry.modified_time):<{_TIME_WIDTH}}", "dim"),
            (pad_or_shorten(title, _CONFIG_WIDTH - 1) + " ", "strong" if entry.is_own else ""),
            (pad_or_shorten(outcome, _OUTCOME_WIDTH - 1) + " ", style),
            (samples, "dim"),
            *clip_line([(escape_hidden_characters(end_text), "")], room)]


def clock_text(seconds: float, current_time: float | None = None) -> str:
    """Returns a Unix time as text: "14:02:11" for today, else with the day; "" for 0, or for an impossible time."""
    try:
        moment = time.localtime(seconds)
        today = time.localtime(current_time)[:3]
    except (OverflowError, ValueError, OSError):  # a time from a file
        return ""
    return "" if not seconds else time.strftime("%H:%M:%S" if moment[:3] == today else "%d %b %H:%M", moment)
