"""The page of the log: messages of the background process and of the TensorRT builder."""

from trt_tui.formatting import cell_width, escape_hidden_characters
from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import LivePage
from trt_tui.tui.spans import Line, wrap_text
from trt_tui.tui.state.summary import outcome_reason_lines

MAX_LOG_LINES = 5000
"""The maximum number of displayed log lines. Of a longer log, the last lines are displayed."""

_STYLES_BY_LEVEL = {"warning": "warn", "error": "warn", "info": "", "verbose": "dim"}


def log_lines(log: list[str], width: int) -> list[Line]:
    """Returns the log as styled lines, wrapped to a width. A level at the start of a line, such as "warning:", selects
    its style."""
    lines: list[Line] = []
    for text in log[-MAX_LOG_LINES:]:
        style = _STYLES_BY_LEVEL.get(text.partition(":")[0], "")
        for line in escape_hidden_characters(text, keep_line_breaks=True).split("\n"):
            parts = [line] if cell_width(line) <= width else wrap_text(line, width)
            lines += [[("" if index == 0 else "  ", ""), (part, style)] for index, part in enumerate(parts)]
    return lines or [[("nothing was logged", "dim")]]


class LogPage(LivePage):
    """The page that shows the log of a session. While its end is visible, the page follows new messages.

    The end has the reasons for the outcome of the current config in full, since the summary table cuts them.
    """

    def __init__(self, session: Session) -> None:
        super().__init__("Log", starts_at_end=True)
        self.session = session
        self._shown_state: tuple[int, list[str]] | None = None

    def update_lines(self) -> None:
        """Shows the newest log messages and reasons, if there are new ones."""
        state = len(self.session.log), outcome_reason_lines(self.session)
        if state != self._shown_state:
            self._shown_state = state
            super().update_lines()

    def build_page_lines(self, width: int) -> list[Line]:
        reason_lines = [line for text in outcome_reason_lines(self.session) for line in ([], *log_lines([text], width))]
        return [*log_lines(self.session.log, width), *reason_lines]
