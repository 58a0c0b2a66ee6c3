"""The filter of the rows."""

from __future__ import annotations

from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.state.tree import View


class Filtering(Controller):
    """See the module's docstring."""

    @action("slash", label="find", help="Show only groups whose name, path or operator holds the words typed",
            group="Move", disabled=Controller.not_open, footer=30)
    def filter(self) -> None:
        """Asks for words."""
        self.desk.screen.add_class("-filtering")
        if self.listing.view is View.BLOCKS:
            self.desk.set_view(View.TREE)
        self.desk.filter.focus()

    def changed(self, words: str) -> None:
        """Other words were typed."""
        if not self.listing.is_open:
            return
        self.desk.touched()
        self.listing.matches = self.listing.model.matching(words)
        self.desk.draw_tree()
        self.desk.moved()

    def submitted(self) -> None:
        """Enter was pressed after the words."""
        if self.listing.matches is None:
            self.desk.screen.remove_class("-filtering")
        self.desk.tree.focus()
