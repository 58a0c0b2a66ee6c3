"""Moving the cursor over the rows, and opening and closing them."""

from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.state.hint import worst_row
from trt_tui.tui.state.tree import VisibleRow


class Navigate(Controller):
    """See the module's docstring."""

    @action(label="up", help="Move up", group="Move")
    def up(self) -> None:
        """One row up."""
        self._move(-1)

    @action(label="down", help="Move down", group="Move")
    def down(self) -> None:
        """One row down."""
        self._move(1)

    @action(label="close", help="Close the row, or go to the scope around it", group="Move")
    def left(self) -> None:
        """Closes, or goes out; a cell to the left in the heat map."""
        tree, listing = self.desk.tree, self.listing
        if self.desk.in_blocks:
            self.desk.block_map.move(right=-1)
            return
        line = tree.current
        if line is None:
            return
        if line.opened and listing.matches is None and line.row is not None:
            self._open(line, False)
            return
        above = next((index for index in range(tree.cursor - 1, -1, -1) if tree.rows[index].depth < line.depth), None)
        if above is not None:
            self.desk.touched()
            tree.move_to(above)

    @action(label="open", help="Open the row, or go into it", group="Move")
    def right(self) -> None:
        """Opens, or goes in; a cell to the right in the heat map."""
        if self.desk.in_blocks:
            self.desk.block_map.move(right=1)
            return
        line = self.desk.tree.current
        if line is None or line.row is None:
            return
        if not line.opened:
            self._open(line, True)
        else:
            self._move(1)

    @action(label="open", help="Open or close a scope, a group's nodes, the folded nodes", group="Move",
            disabled=Controller.no_row)
    def open(self) -> None:
        """Opens or closes; from the heat map, goes to the row of a cell."""
        if self.desk.in_blocks:
            if names := self.desk.block_map.names:
                self.desk.go_to(names[0])
            return
        line = self.desk.tree.current
        if line is not None and line.row is not None:
            self._open(line, not line.opened)

    @action(label="page up", help="Move up by a page", group="Move")
    def page_up(self) -> None:
        """One page up."""
        self._move(-self.desk.tree.page)

    @action(label="page down", help="Move down by a page", group="Move")
    def page_down(self) -> None:
        """One page down."""
        self._move(self.desk.tree.page)

    @action(label="first", help="Go to the first row", group="Move")
    def first(self) -> None:
        """To the first row."""
        self._move(-len(self.desk.tree.rows))

    @action(label="last", help="Go to the last row", group="Move")
    def last(self) -> None:
        """To the last row."""
        self._move(len(self.desk.tree.rows))

    def no_bad_rows(self) -> str:
        """Why there is no bad row to go to."""
        if reason := self.not_open():
            return reason
        found = self.listing.figures
        if not found.values and not found.bad:
            return "nothing was measured yet"
        return "" if found.loud else "no row is bad: every share is below 1 %"

    @action(label="next bad", help="Go to the next row with a share of 1 % or more, or NaN or Inf", group="Move",
            disabled=no_bad_rows, footer=45)
    def next_bad(self) -> None:
        """To the next bad row."""
        self._step(True)

    @action(label="previous bad", help="Go to the bad row before", group="Move", disabled=no_bad_rows)
    def previous_bad(self) -> None:
        """To the bad row before."""
        self._step(False)

    def no_worst_row(self) -> str:
        """Returns the reason why there is no worst row to go to; "" if there is one."""
        if reason := self.not_open():
            return reason
        if worst_row(self.session, self.listing.figures) is not None:
            return ""
        return "no row loses anything in FP32" if self.session.measured("config").shares else "nothing was measured yet"

    @action(label="worst", help="Go to the row to raise first: the first with NaN or Inf, else that with the largest "
            "share", group="Move", disabled=no_worst_row)
    def first_nan(self) -> None:
        """Goes to the first row with NaN or Inf, else to the worst one that can be raised to FP32."""
        name = worst_row(self.session, self.listing.figures)
        if name is not None:
            self.desk.go_to(name)

    def _move(self, steps: int) -> None:
        self.desk.touched()
        if self.desk.in_blocks:
            self.desk.block_map.move(down=steps)
        else:
            self.desk.tree.move(steps)

    def _open(self, line: VisibleRow, opened: bool) -> None:
        self.desk.touched()
        path = {line.key}  # a row's key is its path
        self.listing.opened = self.listing.opened | path if opened else self.listing.opened - path
        self.desk.draw_tree(line.key)

    def _step(self, forward: bool) -> None:
        name = self.listing.beside(self.desk.chosen_groups(), forward)
        if name is None:
            self.desk.say("no bad row matches the filter")
        else:
            self.desk.go_to(name)
