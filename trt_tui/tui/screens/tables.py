"""The pages with tables: the configs with their results, the jobs, and the saved sessions of a network."""

from collections.abc import Callable, Sequence

from textual.widgets import OptionList

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError
from trt_tui.session.history import MAX_NAME_LENGTH
from trt_tui.session.jobs import Job
from trt_tui.session.session import Session
from trt_tui.session.session_folder import SessionEntry
from trt_tui.tui.screens.dialogs import ConfirmDialog, KeyHints, Prompt, TablePage
from trt_tui.tui.spans import Line
from trt_tui.tui.state.config_list import config_table
from trt_tui.tui.state.job_list import clock_text, job_table, session_table
from trt_tui.tui.widgets.inputs import bind_keys


class ConfigsPage(TablePage[PrecisionConfig]):
    """The page of all configs with their results. Its result is the config that the user chooses."""

    HEADING, KEY_HINTS = "Configs", "{open} selects it  {name} name  {close} close"
    BINDINGS = bind_keys(quit="close", configs="close", name="name")

    def build_table(self, width: int) -> tuple[Line, list[tuple[PrecisionConfig, Line]]]:
        """Implements `TablePage.build_table`. The cursor is on the current config first."""
        header, rows = config_table(self.session, width)
        self.table.first_value = self.session.config
        return header, rows

    def action_name(self) -> None:
        """Asks for a name of the selected config."""
        config, names = self.table.selected_value, self.session.config_names
        if config is None:
            return

        def save_name(name: str | None) -> None:
            if name is not None:
                self.session.rename_config(config, name.strip())
                self.update_lines()

        def find_name_error(name: str) -> str:
            try:
                names.copy().rename_config(config, name.strip())
            except InputError as error:
                return f"{error.title}: {error.cause}"
            return ""

        self.app.push_screen(Prompt("Name", names[config], f"at most {MAX_NAME_LENGTH} characters", find_name_error),
                             save_name)


class JobsPage(TablePage[Job]):
    """The page of all jobs, on which the user can stop one job or all jobs.

    Args:
        stop_jobs: Stops jobs, after a question if one of them is old.
    """

    HEADING, KEY_HINTS = "Jobs", "{stop} stops this one  {stop_all} all  {close} close"
    BINDINGS = bind_keys(quit="close", jobs="close", stop="stop", stop_all="stop_all")

    def __init__(self, session: Session, stop_jobs: Callable[[Sequence[Job]], None]) -> None:
        super().__init__(session)
        self.stop_jobs = stop_jobs

    def build_table(self, width: int) -> tuple[Line, list[tuple[Job, Line]]]:
        return job_table(self.session, width)

    def take_value(self, value: Job) -> None:
        """Does nothing, because the keys of the page stop jobs."""

    def action_stop(self) -> None:
        """Stops the selected job."""
        job = self.table.selected_value
        self.stop_jobs([job] if job is not None else [])
        self.update_lines()

    def action_stop_all(self) -> None:
        """Stops all running and waiting jobs."""
        self.stop_jobs([*self.session.pending_requests.running_jobs, *self.session.pending_requests.waiting_jobs])
        self.update_lines()


class SessionsPage(TablePage[str]):
    """The page of the saved sessions, the newest first. Its result is the name of the session that the user opens.

    Args:
        show_error: Shows why a session cannot be deleted.
    """

    HEADING = "Sessions of this network"
    BINDINGS = bind_keys(quit="close", sessions="close", delete_session="delete")

    def __init__(self, session: Session, show_error: Callable[[InputError], None]) -> None:
        super().__init__(session)
        self.show_error = show_error
        self._entries: dict[str, SessionEntry] = {}

    def build_table(self, width: int) -> tuple[Line, list[tuple[str, Line]]]:
        """Implements `TablePage.build_table`, after it read the list of sessions."""
        self._entries = {entry.name: entry for entry in self.session.list_saved_sessions()}
        return session_table(self._entries, self.session.opened_network.outline, max(40, width))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Shows the name of the selected session, which the command line takes."""
        name = self.table.values[event.option_index]
        self.query_one(KeyHints).show_keys(
            f"{{open}} opens it  {{delete_session}} deletes it  --session {name}  {{close}} close")

    def take_value(self, value: str) -> None:
        """Closes the page with the chosen session; the current session only closes the page."""
        self.dismiss(None if self._entries[value].is_own else value)

    def action_delete(self) -> None:
        """Deletes the selected session after a question."""
        if (name := self.table.selected_value) is None:
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
            self.update_lines()
