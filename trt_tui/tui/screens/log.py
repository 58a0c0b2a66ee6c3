"""The log: what the child process and the builder said."""

from trt_tui.formatting import cell_width, escape_hidden_characters
from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import LivePage
from trt_tui.tui.spans import Line, wrap_text

MAX_LOG_LINES = 5000
"""Of a longer log the end is shown."""

_STYLES_BY_LEVEL = {"warning": "warn", "error": "warn", "info": "", "verbose": "dim"}


def log_lines(log: list[str], width: int) -> list[Line]:
    """The log, long lines wrapped; those that begin with a level of the builder have its style."""
    lines: list[Line] = []
    for text in log[-MAX_LOG_LINES:]:
        style = _STYLES_BY_LEVEL.get(text.partition(":")[0], "")
        for line in escape_hidden_characters(text, keep_line_breaks=True).split("\n"):
            parts = [line] if cell_width(line) <= width else wrap_text(line, width)
            lines += [[("" if index == 0 else "  ", ""), (part, style)] for index, part in enumerate(parts)]
    return lines or [[("nothing was logged", "dim")]]


class LogPage(LivePage):
    """The log of a session; while its end is in sight it follows what comes."""

    def __init__(self, session: Session) -> None:
        super().__init__("Log", starts_at_end=True)
        self.session, self._shown_length = session, -1

    def update_lines(self) -> None:
        """Shows what has been logged since."""
        if len(self.session.log) != self._shown_length:
            self._shown_length = len(self.session.log)
            super().update_lines()

    def build_page_lines(self, width: int) -> list[Line]:
        return log_lines(self.session.log, width)
