"""The page of the saved sessions of a network, one of which the user can open or delete."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static

from trt_tui.errors import InputError
from trt_tui.session.session import Session
from trt_tui.session.session_folder import SessionEntry
from trt_tui.tui.screens.dialogs import ConfirmDialog, Dialog, KeyHints
from trt_tui.tui.state.session_list import clock_text, session_line, session_title_line
from trt_tui.tui.widgets.inputs import ValueList, bind_keys
from trt_tui.tui.widgets.lines import Lines


class SessionList(ValueList[str]):
    """The list of sessions by their names, the newest first."""


class SessionsPage(Dialog):
    """The page of the saved sessions. Its result is the name of the session that the user opens.

    Args:
        show_error: Shows why a session cannot be deleted.
    """

    BINDINGS = bind_keys(quit="close", sessions="close", delete_session="delete")

    def __init__(self, session: Session, show_error: Callable[[InputError], None]) -> None:
        super().__init__()
        self.session, self.show_error = session, show_error
        self._entries: dict[str, SessionEntry] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="box page"):
            yield Static("Sessions of this network", classes="heading")
            yield Lines(id="sessions-header")
            yield SessionList()
        yield KeyHints()

    def on_mount(self) -> None:
        self.query_one(SessionList).focus()
        self.call_after_refresh(self.update_session_list)

    def update_session_list(self) -> None:
        """Reads the list of sessions and shows it."""
        pane = self.query_one(SessionList)
        outline = self.session.opened_network.outline
        self._entries = {entry.name: entry for entry in self.session.list_saved_sessions()}
        width = max(40, pane.size.width - 3)
        self.query_one("#sessions-header", Lines).lines = [session_title_line(width)]
        pane.fill_list(list(self._entries),
                       [session_line(entry, outline, width) for entry in self._entries.values()])

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Shows the name of the selected session, which the command line takes."""
        name = self.query_one(SessionList).values[event.option_index]
        self.query_one(KeyHints).show_keys(
            f"{{open}} opens it  {{delete_session}} deletes it  --session {name}  {{close}} close")

    @property
    def text(self) -> str:
        return self.query_one(SessionList).text

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Closes the page with the chosen session; the current session only closes the page."""
        name = self.query_one(SessionList).values[event.option_index]
        self.dismiss(None if self._entries[name].is_own else name)

    def action_delete(self) -> None:
        """Deletes the selected session after a question."""
        if (name := self.query_one(SessionList).selected_value) is None:
            return
        if self._entries[name].is_own:
            self._delete(name)  # it cannot be deleted, and the error says why
            return

        def delete_if_confirmed(is_confirmed: bool | None) -> None:
            if is_confirmed:
                self._delete(name)

        saved_text = clock_text(self._entries[name].modified_time)
        self.app.push_screen(ConfirmDialog(f"Delete the session saved at {saved_text}? It cannot be brought back.",
                                           "delete it", "keep it"), delete_if_confirmed)

    def _delete(self, name: str) -> None:
        try:
            self.session.session_folder.delete_session(name)
        except InputError as error:
            self.show_error(error)
        else:
            self.update_session_list()
