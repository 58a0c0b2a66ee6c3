"""Moving the cursor over the rows, and opening and closing them."""

from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.state.hint import find_worst_row
from trt_tui.tui.state.tree import VisibleRow


class NavigationController(Controller):
    """See the module's docstring."""

    @register_action(label="up", help="Move up", group="Move")
    def up(self) -> None:
        """One row up."""
        self._move_cursor(-1)

    @register_action(label="down", help="Move down", group="Move")
    def down(self) -> None:
        """One row down."""
        self._move_cursor(1)

    @register_action(label="close", help="Close the row, or go to the scope around it", group="Move")
    def left(self) -> None:
        """Closes, or goes out; a cell to the left in the heat map."""
        tree, layer_list = self.presenter.layer_tree, self.layer_list
        if self.presenter.is_heat_map_focused:
            self.presenter.heat_map.move_cursor(right=-1)
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
            self.presenter.freeze_row_order()
            tree.move_cursor_to(parent_index)

    @register_action(label="open", help="Open the row, or go into it", group="Move")
    def right(self) -> None:
        """Opens, or goes in; a cell to the right in the heat map."""
        if self.presenter.is_heat_map_focused:
            self.presenter.heat_map.move_cursor(right=1)
            return
        row = self.presenter.layer_tree.current_row
        if row is None or row.row is None:
            return
        if not row.is_opened:
            self._set_row_opened(row, True)
        else:
            self._move_cursor(1)

    @register_action(label="open", help="Open or close a scope, a group's nodes, the folded nodes", group="Move",
                     disabled_reason=Controller.no_chosen_row_reason)
    def open(self) -> None:
        """Opens or closes; from the heat map, goes to the row of a cell."""
        if self.presenter.is_heat_map_focused:
            if names := self.presenter.heat_map.cursor_group_names:
                self.presenter.go_to_group(names[0])
            return
        row = self.presenter.layer_tree.current_row
        if row is not None and row.row is not None:
            self._set_row_opened(row, not row.is_opened)

    @register_action(label="page up", help="Move up by a page", group="Move")
    def page_up(self) -> None:
        self._move_cursor(-self.presenter.layer_tree.page_size)

    @register_action(label="page down", help="Move down by a page", group="Move")
    def page_down(self) -> None:
        self._move_cursor(self.presenter.layer_tree.page_size)

    @register_action(label="first", help="Go to the first row", group="Move")
    def first(self) -> None:
        """To the first row."""
        self._move_cursor(-len(self.presenter.layer_tree.rows))

    @register_action(label="last", help="Go to the last row", group="Move")
    def last(self) -> None:
        """To the last row."""
        self._move_cursor(len(self.presenter.layer_tree.rows))

    def bad_row_jump_disabled_reason(self) -> str:
        """Why there is no bad row to go to."""
        if reason := self.network_not_open_reason():
            return reason
        row_values = self.layer_list.row_values
        if not row_values.group_values and not row_values.nonfinite_groups:
            return "nothing was measured yet"
        return "" if row_values.bad_rows else "no row is bad: every share is below 1 %"

    @register_action(label="next bad", help="Go to the next row with a share of 1 % or more, or NaN or Inf",
                     group="Move", disabled_reason=bad_row_jump_disabled_reason, footer=45)
    def next_bad(self) -> None:
        """To the next bad row."""
        self._go_to_bad_row(True)

    @register_action(label="previous bad", help="Go to the bad row before", group="Move",
                     disabled_reason=bad_row_jump_disabled_reason)
    def previous_bad(self) -> None:
        """To the bad row before."""
        self._go_to_bad_row(False)

    def worst_row_jump_disabled_reason(self) -> str:
        """Returns the reason why there is no worst row to go to; "" if there is one."""
        if reason := self.network_not_open_reason():
            return reason
        if find_worst_row(self.session, self.layer_list.row_values) is not None:
            return ""
        return "no row has an error in FP32" if self.session.get_run_results(
            "config").shares else "nothing was measured yet"

    @register_action(
        label="worst", help="Go to the row to raise first: the first with NaN or Inf, else that with the largest "
        "share", group="Move", disabled_reason=worst_row_jump_disabled_reason)
    def first_nan(self) -> None:
        """Goes to the first row with NaN or Inf, else to the worst one that can be raised to FP32."""
        name = find_worst_row(self.session, self.layer_list.row_values)
        if name is not None:
            self.presenter.go_to_group(name)

    def _move_cursor(self, steps: int) -> None:
        self.presenter.freeze_row_order()
        if self.presenter.is_heat_map_focused:
            self.presenter.heat_map.move_cursor(down=steps)
        else:
            self.presenter.layer_tree.move_cursor(steps)

    def _set_row_opened(self, row: VisibleRow, is_opened: bool) -> None:
        self.presenter.freeze_row_order()
        path = {row.key}  # a row's key is its path
        self.layer_list.opened_paths = (self.layer_list.opened_paths
                                        | path if is_opened else self.layer_list.opened_paths - path)
        self.presenter.draw_layer_tree(row.key)

    def _go_to_bad_row(self, forward: bool) -> None:
        name = self.layer_list.find_neighbouring_bad_group(self.presenter.list_chosen_groups(), forward)
        if name is None:
            self.presenter.show_message("no bad row matches the filter")
        else:
            self.presenter.go_to_group(name)
