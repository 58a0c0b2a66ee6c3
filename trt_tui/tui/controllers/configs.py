"""The actions on configs: switch, mark, compare, undo and redo."""

from collections.abc import Callable

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import requests
from trt_tui.session.history import UserState
from trt_tui.tui import config_status
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.configs import ConfigsPage
from trt_tui.tui.screens.dialogs import TextPage
from trt_tui.tui.screens.history import HistoryPage
from trt_tui.tui.screens.sessions import SessionsPage
from trt_tui.tui.state.change_texts import change_text
from trt_tui.tui.state.config_list import config_difference_lines


class ConfigController(Controller):
    """The controller of the config list: switching to a config, marking configs, and the difference of two configs."""

    @register_action(label="configs", help="All configs with their results; enter selects one", group="Configs",
                     disabled_reason=Controller.network_not_open_reason, footer=55)
    def configs(self) -> None:
        """Shows the page of all configs, and switches to the config that the user chooses there."""
        page = ConfigsPage(self.session, self.presenter.config_marks, lambda: self.presenter.perform_action("diff"))
        self.open_dialog(page, self.select_config)

    def select_config(self, config: PrecisionConfig) -> None:
        """Makes a config the current one."""
        if config != self.session.config:
            self.session.set_config(config)
            self.presenter.handle_config_change()

    @register_action(label="mark A/B", help="Mark a config as A, the next one as B", group="Configs",
                     disabled_reason=Controller.network_not_open_reason)
    def mark(self) -> None:
        """Marks a config as A or B: the selected entry of the focused config list, else the current config."""
        configs = self.presenter.config_list
        config = (configs.selected_value
                  if configs.has_focus and configs.selected_value is not None else self.session.config)
        letter = self.presenter.config_marks.toggle_mark(config)
        self.presenter.draw_config_list()
        name = config_status.config_name(self.session, config)
        self.presenter.show_message(f"{name} is {letter}" if letter else f"{name} is no longer marked", "")

    def diff_disabled_reason(self) -> str:
        """Returns the reason why two configs cannot be compared; "" if they can."""
        return self.network_not_open_reason() or ("" if len(self.session.config_names) > 1 else
                                                  "there is only one config yet")

    @register_action(label="diff", help="The differences between A and B, or from the config before", group="Configs",
                     disabled_reason=diff_disabled_reason)
    def diff(self) -> None:
        """Shows the difference between the configs marked A and B.

        Without a B, the second config is the current one. Without an A, the first config is the one before the second.
        """
        marks = self.presenter.config_marks.configs_by_letter
        first = marks.get("A")
        second = marks.get("B", self.session.config)
        if first is None or first == second:
            configs = list(self.session.config_names)
            index = configs.index(second) if second in configs else len(configs)
            first = configs[index - 1] if index else configs[1]
        without_preview = [
            config for config in (first, second) if self.session.results.get_results_or_empty(config).preview is None
        ]
        if without_preview and not self.session.pending_requests.has_request(
                requests.PreviewEngine):  # a second request would replace the first
            self.session.request_preview(without_preview[-1], with_effects=False)
        names = " and ".join(config_status.config_name(self.session, config) for config in (first, second))
        lines = config_difference_lines(self.session, self.layer_list.tree_model, first, second)
        self.open_dialog(TextPage(f"Differences: {names}", lines))


class HistoryController(Controller):
    """The controller of undo, redo and the page of the history."""

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

    def history_disabled_reason(self) -> str:
        """Returns the reason why the history cannot be shown; "" if it can be shown."""
        has_steps = len(self.session.history.steps) > 1
        return self.network_not_open_reason() or ("" if has_steps else "nothing was changed yet")

    @register_action(label="history", help="All changes with their times and accuracies; enter goes back to one",
                     group="Change", disabled_reason=history_disabled_reason)
    def history(self) -> None:
        """Shows the page of the history, and goes back to the step that the user chooses there."""
        def return_to_step(index: int) -> None:
            before = self.session.history.state
            if self.session.return_to_step(index):
                text = self._change_text(before, self.session.history.state)
                self._show_restored_state(f"went back: {text}; {shown_key('undo')} undoes it")

        self.open_dialog(HistoryPage(self.session, self.presenter.layer_list.tree_model.titles), return_to_step)

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
