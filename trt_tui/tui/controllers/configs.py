"""The actions on configs: switch, undo and redo."""

from collections.abc import Callable

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import TrtTuiError
from trt_tui.session.history import UserState
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.configs import ConfigsPage
from trt_tui.tui.screens.sessions import SessionsPage
from trt_tui.tui.state.change_texts import change_text


class ConfigController(Controller):
    """The controller of the config list."""

    @register_action(label="configs", help="Go to the configs; again: all of them with their results. Enter selects "
                     "one", group="Configs", disabled_reason=Controller.network_not_open_reason, footer=55)
    def configs(self) -> None:
        """Focuses the config list. If the list has the focus already, or no room, the page of all configs opens."""
        presenter = self.presenter
        if presenter.screen.has_class("-wide", "-tall") and not presenter.config_list.has_focus:
            presenter.zoom_pane("")
            presenter.config_list.focus()
        else:
            self.open_dialog(ConfigsPage(self.session), self.select_config)

    def select_config(self, config: PrecisionConfig) -> None:
        """Makes a config the current one."""
        if config != self.session.config:
            self.session.set_config(config)
            self.presenter.handle_config_change()


class HistoryController(Controller):
    """The controller of undo, redo and the saved sessions."""

    def _change_text(self, before: UserState, after: UserState) -> str:
        return change_text(self.session, before, after, self.presenter.layer_list.tree_model.titles)

    def undo_disabled_reason(self) -> str:
        """Returns the reason why undo is impossible; "" if it is possible."""
        return self.network_not_open_reason() or ("" if self.session.history.can_undo else "nothing to undo")

    @register_action(label="undo", help="Undo the last change", group="Change", disabled_reason=undo_disabled_reason,
                     footer=40)
    def undo(self) -> None:
        before = self.session.history.state
        self.session.undo()
        self._show_restored_state(f"undone: {self._change_text(self.session.history.state, before)}")

    def redo_disabled_reason(self) -> str:
        """Returns the reason why redo is impossible; "" if it is possible."""
        return self.network_not_open_reason() or ("" if self.session.history.can_redo else "nothing to redo")

    @register_action(label="redo", help="Redo what was undone", group="Change", disabled_reason=redo_disabled_reason)
    def redo(self) -> None:
        before = self.session.history.state
        self.session.redo()
        self._show_restored_state(f"redone: {self._change_text(before, self.session.history.state)}")

    @register_action(label="sessions", help="The saved sessions of this network; enter opens one, and one can be "
                     "deleted", group="Files", disabled_reason=Controller.network_not_open_reason)
    def sessions(self) -> None:
        """Shows the page of saved sessions, and goes on with the session that the user chooses there."""
        def resume_session(name: str) -> None:
            self.session.resume_session(name)
            self._show_restored_state(f"{self.session.notice} {shown_key('sessions')} leads back")

        self.open_dialog(SessionsPage(self.session, self.presenter.show_error),
                         lambda name: self._show_errors(lambda: resume_session(name)))

    def _show_errors(self, change_session: Callable[[], None]) -> None:
        try:
            change_session()
        except TrtTuiError as error:
            self.presenter.show_error(error)

    def _show_restored_state(self, message: str) -> None:
        self.presenter.show_session_filter()
        self.presenter.handle_config_change()
        self.presenter.show_message(message, "")
