"""The actions on configs, their history and the accuracy target: switch, undo and redo, saved sessions."""

from collections.abc import Callable

from textual import on
from textual.widgets import OptionList

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import TrtTuiError
from trt_tui.session.history import UserState
from trt_tui.session.session import Session
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Prompt
from trt_tui.tui.screens.tables import ConfigsPage, SessionsPage
from trt_tui.tui.state.config_list import change_text
from trt_tui.tui.state.summary import outcome_reason_lines


def target_error_text(session: Session, text: str) -> str:
    """Returns the error in a typed target; "" if the target is valid."""
    try:
        session.read_targets(text)
    except TrtTuiError as error:
        return f"{error.cause.rstrip('.')}. {error.next_step}"
    return ""


class ConfigController(Presenter):
    """The part of the main screen for the config list, undo, redo, saved sessions and the target."""

    def do_configs(self) -> None:
        """Focuses the config list. If the list has the focus already, or no room, the page of all configs opens."""
        if self.has_class("-wide", "-tall") and not self.config_list.has_focus:
            self.zoom_pane("")
            self.config_list.focus()
        else:
            self.open_dialog(ConfigsPage(self.session), self._select_config)

    @on(OptionList.OptionSelected, "#configs")
    def _select_listed_config(self, event: OptionList.OptionSelected) -> None:
        self._select_config(self.config_list.values[event.option_index])

    def _select_config(self, config: PrecisionConfig) -> None:
        if config != self.session.config:
            self.session.set_config(config)
            self.handle_config_change()

    def _change_text(self, before: UserState, after: UserState) -> str:
        return change_text(self.session, before, after, self.layer_list.tree_model.titles)

    def refuse_undo(self) -> str:
        """Returns the reason why undo is impossible; "" if it is possible."""
        return "" if self.session.history.can_undo else "nothing to undo"

    def do_undo(self) -> None:
        before = self.session.history.state
        self.session.undo()
        self._show_restored_state(f"undone: {self._change_text(self.session.history.state, before)}")

    def refuse_redo(self) -> str:
        """Returns the reason why redo is impossible; "" if it is possible."""
        return "" if self.session.history.can_redo else "nothing to redo"

    def do_redo(self) -> None:
        before = self.session.history.state
        self.session.redo()
        self._show_restored_state(f"redone: {self._change_text(before, self.session.history.state)}")

    def do_sessions(self) -> None:
        """Shows the page of saved sessions, and goes on with the session that the user chooses there."""
        def resume_session(name: str) -> None:
            self.session.resume_session(name)
            self._show_restored_state(f"{self.session.notice} {shown_key('sessions')} leads back")

        self.open_dialog(SessionsPage(self.session, self.show_error),
                         lambda name: self._show_errors(lambda: resume_session(name)))

    def _show_errors(self, change_session: Callable[[], None]) -> None:
        try:
            change_session()
        except TrtTuiError as error:
            self.show_error(error)

    def _show_restored_state(self, message: str) -> None:
        self.show_session_filter()
        self.handle_config_change()
        self.show_message(message, "")

    def do_target(self) -> None:
        session = self.session

        def set_typed_target(text: str) -> None:
            session.set_target(text)
            self.draw_all()

        note = "sqnr>=20 (dB, worst output), cosine>=0.999, agreement>=0.99"
        if session.results.reference_metric:
            note += ", metric>=base-0.01, metric>=base-1%"
        if len(session.results.reference_metric) > 1:
            part = list(session.results.reference_metric)[1]
            note += f", metric[{part}]>=base-1%, metric[*]>=base-2%"
        note = ". ".join((*outcome_reason_lines(session), note))
        text = session.targets_text or "sqnr>=20"
        self.open_dialog(Prompt("Target", text, note, lambda text: target_error_text(session, text)), set_typed_target)
