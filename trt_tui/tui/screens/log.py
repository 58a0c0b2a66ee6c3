"""The log: what the child process and the builder said."""

from __future__ import annotations

from textual.containers import VerticalScroll

from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import Page
from trt_tui.tui.spans import Line, wrap
from trt_tui.tui.widgets.lines import Lines
from trt_tui.words import cells, visible

MOST_LINES = 5000
"""Of a longer log the end is shown."""

_STYLES = {"warning": "warn", "error": "warn", "info": "", "verbose": "dim"}


def log_lines(log: list[str], width: int) -> list[Line]:
    """The log, long lines wrapped; those that begin with a level of the builder have its style."""
    lines: list[Line] = []
    for text in log[-MOST_LINES:]:
        style = _STYLES.get(text.partition(":")[0], "")
        for line in visible(text, lines=True).split("\n"):
            parts = [line] if cells(line) <= width else wrap(line, width)
            lines += [[("" if index == 0 else "  ", ""), (part, style)] for index, part in enumerate(parts)]
    return lines or [[("nothing was logged", "dim")]]


class LogPage(Page):
    """The log of a session; while its end is in sight it follows what comes."""

    def __init__(self, session: Session) -> None:
        super().__init__("Log", [], "↑↓ scroll  esc close", at_end=True)
        self.session = session
        self._shown = 0

    def on_mount(self) -> None:
        """Fills it and gives the keys to where they are wanted."""
        self.call_after_refresh(self._fill)

    def follow(self) -> None:
        """Shows what has been logged since."""
        if len(self.session.log) != self._shown:
            self._fill()

    def _fill(self) -> None:
        scroll, pane = self.query_one(VerticalScroll), self.query_one(Lines)
        at_end = not self._shown or scroll.scroll_offset.y >= scroll.max_scroll_y
        self._shown = len(self.session.log)
        lines = log_lines(self.session.log, max(20, scroll.size.width - 3))
        pane.styles.height = len(lines)
        pane.lines = lines
        if at_end:
            self.call_after_refresh(scroll.scroll_end, animate=False)
