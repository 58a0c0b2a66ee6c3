"""The action on the row filter."""

from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.spans import Span
from trt_tui.tui.state.tree import View


class FilterController(Controller):
    """The controller of the filter field."""

    _shown_error: Span | None = None
    """The message about an error in the typed filter; None if the filter has no error."""

    @register_action(label="find", help="Show only rows that match: text, !text, /regex/, share>1%, prec:int8, op:conv",
                     group="Move", disabled_reason=Controller.network_not_open_reason, footer=30)
    def filter(self) -> None:
        """Shows the filter field and focuses it."""
        self.presenter.screen.add_class("-filtering")
        if self.layer_list.view is View.BLOCKS:
            self.presenter.set_view(View.TREE)
        self.presenter.filter_input.focus()

    def apply_typed_filter(self, text: str) -> None:
        """Filters the rows by a typed text, and shows an error as long as the text is not a valid filter."""
        if not self.layer_list.is_network_open:
            return
        self.presenter.freeze_row_order()
        error_text = self.presenter.filter_rows(text)
        self.presenter.draw_layer_tree()
        self.presenter.handle_cursor_move()
        if self._shown_error is not None:
            self.presenter.clear_message(self._shown_error)
        self._shown_error = self.presenter.show_message(error_text) if error_text else None

    def keep_typed_filter(self) -> None:
        """Makes the typed filter a change of the session, which undo takes back."""
        if self.layer_list.is_network_open:
            has_filter = self.layer_list.row_filter is not None
            self.session.set_filter(self.presenter.filter_input.value.strip() if has_filter else "")

    def close_filter_field(self) -> None:
        """Focuses the tree after enter, and hides the filter field if it contains no filter."""
        if self.layer_list.matches is None:
            self.presenter.screen.remove_class("-filtering")
        self.presenter.layer_tree.focus()
