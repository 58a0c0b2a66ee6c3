"""The log: what the child process and the builder said."""

from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import Following
from trt_tui.tui.spans import Line, wrap
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


class LogPage(Following):
    """The log of a session; while its end is in sight it follows what comes."""

    def __init__(self, session: Session) -> None:
        super().__init__("Log", at_end=True)
        self.session, self._length = session, -1

    def follow(self) -> None:
        """Shows what has been logged since."""
        if len(self.session.log) != self._length:
            self._length = len(self.session.log)
            super().follow()

    def lines_now(self, width: int) -> list[Line]:
        """The log."""
        return log_lines(self.session.log, width)
