"""The actions that move the cursor of the layer list, open or close its rows, and filter them."""

import sys
from functools import partialmethod

from textual import on
from textual.widgets import Input

from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.spans import Span
from trt_tui.tui.state.hint import find_worst_row
from trt_tui.tui.state.tree import View, VisibleRow


class NavigationController(Presenter):
    """The part of the main screen that moves the cursor in the layer list and the heat map, and the filter field."""

    _filter_error: Span | None = None
    """The message about an error in the typed filter; None if the filter has no error."""

    do_up = partialmethod(Presenter.move_cursor, -1)
    do_down = partialmethod(Presenter.move_cursor, 1)
    do_page_up = partialmethod(Presenter.move_cursor, pages=-1)
    do_page_down = partialmethod(Presenter.move_cursor, pages=1)
    do_first = partialmethod(Presenter.move_cursor, -sys.maxsize)
    do_last = partialmethod(Presenter.move_cursor, sys.maxsize)

    def do_left(self) -> None:
        """Closes an open row, or moves to the scope around a closed row. In the heat map, moves one cell to the left.
        """
        tree, layer_list = self.layer_tree, self.layer_list
        if self.is_heat_map_focused:
            self.heat_map.move_cursor(right=-1)
            return
        row = tree.current_row
        if row is None:
            return
        if row.is_opened and layer_list.matches is None and row.row is not None:
            self._set_row_opened(row, False)
            return
        parent_index = next(
            (index for index in range(tree.cursor_index - 1, -1, -1) if tree.rows[index].depth < row.depth), None)
        if parent_index is not None:
            self.freeze_row_order()
            tree.move_cursor_to(parent_index)

    def do_right(self) -> None:
        """Opens a closed row, or moves into an open row. In the heat map, moves one cell to the right."""
        if self.is_heat_map_focused:
            self.heat_map.move_cursor(right=1)
            return
        row = self.layer_tree.current_row
        if row is None or row.row is None:
            return
        if not row.is_opened:
            self._set_row_opened(row, True)
        else:
            self.move_cursor(1)

    def do_open(self) -> None:
        """Opens or closes the current row. In the heat map, moves the cursor to the row of the selected cell in the
        tree view."""
        if self.is_heat_map_focused:
            if names := self.heat_map.cursor_group_names:
                self.go_to_group(names[0])
            return
        row = self.layer_tree.current_row
        if row is not None and row.row is not None:
            self._set_row_opened(row, not row.is_opened)

    def refuse_next_bad(self) -> str:
        """Returns the reason why the cursor cannot move to a bad row; "" if it can move.

        A row is bad if its error share is at least 1 %, or if its values contain NaN or Inf.
        """
        row_values = self.layer_list.row_values
        if not row_values.group_values and not row_values.nonfinite_groups:
            return "nothing was measured yet"
        return "" if row_values.bad_rows else "no row is bad: every share is below 1 %"

    def do_next_bad(self) -> None:
        has_several_groups = self.is_heat_map_focused and len(self.list_chosen_groups()) > 1
        name = self.layer_list.find_next_bad_group(self.current_row, has_several_groups)
        if name is None:
            self.show_message("no bad row matches the filter")
        else:
            self.go_to_group(name)

    def refuse_first_nan(self) -> str:
        """Returns the reason why the cursor cannot move to the worst row; "" if it can move."""
        if find_worst_row(self.session, self.layer_list.row_values) is not None:
            return ""
        return "no row has an error in FP32" if self.session.get_run_results(
            "config").shares else "nothing was measured yet"

    def do_first_nan(self) -> None:
        """Moves the cursor to the first row with NaN or Inf, else to the worst row that can be raised to FP32."""
        name = find_worst_row(self.session, self.layer_list.row_values)
        if name is not None:
            self.go_to_group(name)

    def _set_row_opened(self, row: VisibleRow, is_opened: bool) -> None:
        self.freeze_row_order()
        path = {row.key}  # a row's key is its path
        self.layer_list.opened_paths = (self.layer_list.opened_paths
                                        | path if is_opened else self.layer_list.opened_paths - path)
        self.draw_layer_tree(row.key)

    def do_filter(self) -> None:
        """Shows the filter field and focuses it."""
        self.add_class("-filtering")
        if self.layer_list.view is View.BLOCKS:
            self.set_view(View.TREE)
        self.filter_input.focus()

    @on(Input.Changed, "#filter")
    def _apply_typed_filter(self, event: Input.Changed) -> None:
        """Filters the rows by a typed text, and shows an error as long as the text is not a valid filter."""
        if not self.layer_list.is_network_open:
            return
        self.freeze_row_order()
        error_text = self.filter_rows(event.value)
        self.draw_layer_tree()
        self.handle_cursor_move()
        if self._filter_error is not None:
            self.clear_message(self._filter_error)
        self._filter_error = self.show_message(error_text) if error_text else None

    def keep_typed_filter(self) -> None:
        """Makes the typed filter a change of the session, which undo takes back."""
        if self.layer_list.is_network_open:
            has_filter = self.layer_list.row_filter is not None
            self.session.set_filter(self.filter_input.value.strip() if has_filter else "")

    @on(Input.Submitted, "#filter")
    def _close_filter_field(self) -> None:
        """Focuses the tree after enter, and hides the filter field if it contains no filter."""
        if self.layer_list.matches is None:
            self.remove_class("-filtering")
        self.layer_tree.focus()
