"""The page of the history: all changes of the session, to one of which the user can go back."""

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import OptionList, Static

from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import CLOSE_BINDING, QUIT_BINDING, Dialog, KeyHints
from trt_tui.tui.state.change_texts import history_lines, history_title_line
from trt_tui.tui.widgets.inputs import ValueList
from trt_tui.tui.widgets.lines import Lines


class StepList(ValueList[int]):
    """The list of the steps of the history by their indices, the newest first."""


class HistoryPage(Dialog):
    """The page of the history. Its result is the index of the step that the user goes back to.

    Args:
        titles: The displayed names of fusion groups, by name.
    """

    BINDINGS = [CLOSE_BINDING, QUIT_BINDING, Binding("Z", "close", id="history")]

    def __init__(self, session: Session, titles: Mapping[str, str]) -> None:
        super().__init__()
        self.session, self.titles = session, titles

    def compose(self) -> ComposeResult:
        with Vertical(classes="box page"):
            yield Static("History", classes="heading")
            yield Lines(id="history-header")
            yield StepList()
        yield KeyHints("{open} goes back to it, {undo} undoes that  {close} close")

    def on_mount(self) -> None:
        self.query_one(StepList).focus()
        self.call_after_refresh(self._show_steps)

    def _show_steps(self) -> None:
        """Fills the list after its size is known, with the cursor on the current step."""
        self.update_lines()
        pane = self.query_one(StepList)
        pane.highlighted = pane.values.index(self.session.history.current_index)

    def update_lines(self) -> None:
        """Updates the list with the newest changes and accuracies."""
        pane, header = self.query_one(StepList), self.query_one("#history-header", Lines)
        width = max(40, pane.size.width - 3)
        header.lines = [history_title_line(width)]
        lines = history_lines(self.session, self.titles, width)
        pane.fill_list([index for index, _ in lines], [line for _, line in lines])

    @property
    def text(self) -> str:
        return self.query_one(StepList).text

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.query_one(StepList).values[event.option_index])
