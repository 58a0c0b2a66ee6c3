"""Taking changes back, and doing them again."""

from trt_tui.tui.controllers.controller import Controller, register_action


class HistoryController(Controller):
    """See the module's docstring."""

    def undo_disabled_reason(self) -> str:
        """Why nothing can be taken back."""
        return self.network_not_open_reason() or ("" if self.session.history.can_undo else "nothing to undo")

    @register_action(label="undo", help="Undo the last change", group="Change", disabled_reason=undo_disabled_reason,
                     footer=40)
    def undo(self) -> None:
        """Takes the last change back."""
        self.session.undo()
        self.presenter.handle_config_change()

    def redo_disabled_reason(self) -> str:
        """Why nothing can be done again."""
        return self.network_not_open_reason() or ("" if self.session.history.can_redo else "nothing to redo")

    @register_action(label="redo", help="Redo what was undone", group="Change", disabled_reason=redo_disabled_reason)
    def redo(self) -> None:
        """Does again what was taken back."""
        self.session.redo()
        self.presenter.handle_config_change()
