"""The pages of text: the log, and the explanation of a value, a column, a mark or a word."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from trt_tui.formatting import cell_width, escape_hidden_characters
from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import KeyHints, ScrollingDialog, TextPage
from trt_tui.tui.spans import Line, wrap_text
from trt_tui.tui.state.explanations import Explanation
from trt_tui.tui.state.summary import outcome_reason_lines
from trt_tui.tui.widgets.inputs import bind_keys
from trt_tui.tui.widgets.lines import Lines

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


class LogPage(TextPage):
    """The page that shows the log of a session. While its end is visible, the page follows new messages.

    The end has the reasons for the outcome of the current config in full, since the summary table cuts them.
    """

    def __init__(self, session: Session) -> None:
        super().__init__("Log", self._build_log_lines, starts_at_end=True)
        self.session = session
        self._shown_state: tuple[int, list[str]] | None = None

    def update_lines(self) -> None:
        """Shows the newest log messages and reasons, if there are new ones."""
        state = len(self.session.log), outcome_reason_lines(self.session)
        if state != self._shown_state:
            self._shown_state = state
            super().update_lines()

    def _build_log_lines(self, width: int) -> list[Line]:
        reason_lines = [line for text in outcome_reason_lines(self.session) for line in ([], *log_lines([text], width))]
        return [*log_lines(self.session.log, width), *reason_lines]


class ExplanationDialog(ScrollingDialog):
    """A dialog with the explanation of one value or word.

    Arrow keys move to the next column or row; in the explanation of a word they scroll.

    Args:
        get_explanation: Returns the explanation to show.
        move: Moves to another value, by a number of columns and of rows; None for the explanation of a word.
    """

    BINDINGS = bind_keys(quit="close", explain="close", open="close", left="move(-1, 0)",
                         right="move(1, 0)", up="move(0, -1)", down="move(0, 1)")

    def __init__(self, get_explanation: Callable[[], Explanation],
                 move: Callable[[int, int], None] | None = None) -> None:
        super().__init__()
        self.get_explanation, self.move = get_explanation, move
        self._line_count = 0

    def compose(self) -> ComposeResult:
        with Vertical(classes="box explanation"):
            yield Static("", classes="heading", markup=False)
            with VerticalScroll(classes="body", can_focus=False):
                yield Lines()
        yield KeyHints()

    def update_lines(self) -> None:
        """Shows the explanation of the current value, from its beginning."""
        if not self.is_mounted:
            return
        explanation, scroll, pane = self.get_explanation(), self.query_one(VerticalScroll), self.query_one(Lines)
        width = max(20, scroll.size.width - 2)  # the scrollbar
        lines = explanation.build_lines(width)
        self._line_count = max(self._line_count, len(lines))  # the box grows, and never jumps
        height = min(self._line_count, self.size.height // 2)
        scroll.styles.height, pane.styles.height = height, len(lines)
        pane.lines = lines
        self.query_one(".heading", Static).update(escape_hidden_characters(explanation.heading(width)))
        hints = ["{left}{right} columns", "{up}{down} rows"] if self.move is not None else []
        hints += [f"{'{page_down}' if self.move is not None else '{up}{down}'} more"] * (len(lines) > height)
        self.query_one(KeyHints).show_keys("  ".join([*hints, "{close} close"]))

    @property
    def text(self) -> str:
        """The heading and the explanation, without styles."""
        return f"{self.query_one('.heading', Static).content}\n{self.query_one(Lines).text}"

    def action_move(self, columns: int, rows: int) -> None:
        """Shows the explanation of another value, or scrolls the explanation of a word."""
        if self.move is None:
            self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)
            return
        self.move(columns, rows)
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self.update_lines()
