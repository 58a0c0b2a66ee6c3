"""The dialog that explains a value, a column, a mark or a word."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from trt_tui.formatting import escape_hidden_characters
from trt_tui.tui.screens.dialogs import KeyHints, ScrollingDialog
from trt_tui.tui.state.explanations import Explanation
from trt_tui.tui.widgets.inputs import bind_keys
from trt_tui.tui.widgets.lines import Lines


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

    def on_mount(self) -> None:
        """Fills the dialog after its size is known."""
        self.call_after_refresh(self.update_lines)

    def on_resize(self) -> None:
        self.call_after_refresh(self.update_lines)

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
