"""The actions that move the cursor of the layer list, and that open or close its rows."""

from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.state.hint import find_worst_row
from trt_tui.tui.state.tree import VisibleRow


class NavigationController(Controller):
    """The controller of cursor movement in the layer list and the heat map."""

    @register_action(label="up", help="Move up", group="Move")
    def up(self) -> None:
        self._move_cursor(-1)

    @register_action(label="down", help="Move down", group="Move")
    def down(self) -> None:
        self._move_cursor(1)

    @register_action(label="close", help="Close the row, or go to the scope around it", group="Move")
    def left(self) -> None:
        """Closes an open row, or moves to the scope around a closed row. In the heat map, moves one cell to the left.
        """
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
        """Opens a closed row, or moves into an open row. In the heat map, moves one cell to the right."""
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
        """Opens or closes the current row. In the heat map, moves the cursor to the row of the selected cell in the
        tree view."""
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
        self._move_cursor(-len(self.presenter.layer_tree.rows))

    @register_action(label="last", help="Go to the last row", group="Move")
    def last(self) -> None:
        self._move_cursor(len(self.presenter.layer_tree.rows))

    def bad_row_jump_disabled_reason(self) -> str:
        """Returns the reason why the cursor cannot move to a bad row; "" if it can move.

        A row is bad if its error share is at least 1 %, or if its values contain NaN or Inf.
        """
        if reason := self.network_not_open_reason():
            return reason
        row_values = self.layer_list.row_values
        if not row_values.group_values and not row_values.nonfinite_groups:
            return "nothing was measured yet"
        return "" if row_values.bad_rows else "no row is bad: every share is below 1 %"

    @register_action(label="next bad", help="Go to the next row with a share of 1 % or more, or NaN or Inf",
                     group="Move", disabled_reason=bad_row_jump_disabled_reason, footer=45)
    def next_bad(self) -> None:
        presenter = self.presenter
        has_several_groups = presenter.is_heat_map_focused and len(presenter.list_chosen_groups()) > 1
        name = self.layer_list.find_next_bad_group(presenter.current_row, has_several_groups)
        if name is None:
            presenter.show_message("no bad row matches the filter")
        else:
            presenter.go_to_group(name)

    def worst_row_jump_disabled_reason(self) -> str:
        """Returns the reason why the cursor cannot move to the worst row; "" if it can move."""
        if reason := self.network_not_open_reason():
            return reason
        if find_worst_row(self.session, self.layer_list.row_values) is not None:
            return ""
        return "no row has an error in FP32" if self.session.get_run_results(
            "config").shares else "nothing was measured yet"

    @register_action(
        label="worst", help="Go to the row to raise first: the first with NaN or Inf, else that with the largest "
        "share, without rows whose raise was measured and does not help", group="Move",
        disabled_reason=worst_row_jump_disabled_reason)
    def first_nan(self) -> None:
        """Moves the cursor to the first row with NaN or Inf, else to the worst row that can be raised to FP32."""
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
