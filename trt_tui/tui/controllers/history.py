"""Taking changes back, and doing them again."""

from trt_tui.tui.controllers.controller import Controller, action


class Changes(Controller):
    """See the module's docstring."""

    def nothing_to_undo(self) -> str:
        """Why nothing can be taken back."""
        return self.not_open() or ("" if self.session.history.can_undo else "nothing to undo")

    @action(label="undo", help="Undo the last change", group="Change", disabled=nothing_to_undo, footer=40)
    def undo(self) -> None:
        """Takes the last change back."""
        self.session.undo()
        self.desk.changed()

    def nothing_to_redo(self) -> str:
        """Why nothing can be done again."""
        return self.not_open() or ("" if self.session.history.can_redo else "nothing to redo")

    @action(label="redo", help="Redo what was undone", group="Change", disabled=nothing_to_redo)
    def redo(self) -> None:
        """Does again what was taken back."""
        self.session.redo()
        self.desk.changed()
