"""The panes of the main screen, found by their names, and what is chosen in them."""

from textual.app import App
from textual.screen import Screen
from textual.widgets import Input

from trt_tui.core.network.layers import Group
from trt_tui.tui.state.listing import Listing
from trt_tui.tui.state.tree import View, VisibleRow
from trt_tui.tui.widgets.blocks import BlockMap
from trt_tui.tui.widgets.choices import ConfigList
from trt_tui.tui.widgets.layer_tree import LayerTree
from trt_tui.tui.widgets.lines import Lines, Rule


class Panes:
    """See the module's docstring.

    Args:
        screen: The one that the panes stand in.
        listing: What the tree and the heat map list.
    """

    def __init__(self, screen: Screen[None], listing: Listing) -> None:
        self.screen, self.listing = screen, listing

    @property
    def app(self) -> App[object]:
        """The application."""
        return self.screen.app

    @property
    def width(self) -> int:
        """Cells of the screen."""
        return self.screen.size.width

    @property
    def wide(self) -> bool:
        """Whether there is room for the detail beside the tree."""
        return self.screen.has_class("-wide")

    @property
    def tree(self) -> LayerTree:
        """The tree, or the rows worst first."""
        return self.screen.query_one("#tree", LayerTree)

    @property
    def block_map(self) -> BlockMap:
        """The heat map."""
        return self.screen.query_one("#blocks", BlockMap)

    @property
    def rows(self) -> LayerTree | BlockMap:
        """The one of the two that is shown."""
        return self.block_map if self.listing.view is View.BLOCKS else self.tree

    @property
    def filter(self) -> Input:
        """The words that rows are filtered by."""
        return self.screen.query_one("#filter", Input)

    @property
    def configs(self) -> ConfigList:
        """The list of configs."""
        return self.screen.query_one("#configs", ConfigList)

    def lines(self, name: str) -> Lines:
        """A pane of text."""
        return self.screen.query_one(f"#{name}", Lines)

    def rule(self, name: str) -> Rule:
        """The title line of a pane."""
        return self.screen.query_one(f"#{name}-rule", Rule)

    @property
    def in_blocks(self) -> bool:
        """Whether keys act on the heat map."""
        return self.screen.focused is self.block_map

    @property
    def current_line(self) -> VisibleRow | None:
        """The row that the detail is about; in the heat map, of a cell's group or of a role's first."""
        if self.in_blocks and self.listing.is_open:
            names = self.block_map.names
            if not names:
                return None
            row = self.listing.model.rows[names[0]]
            return VisibleRow(row.path, 0, row)
        return self.tree.current

    def chosen_groups(self) -> tuple[Group, ...]:
        """The groups that a change acts on."""
        if not self.listing.is_open:
            return ()
        model = self.listing.model
        if self.in_blocks:
            return tuple(model.outline.group_by_name[name] for name in self.block_map.names)
        line = self.tree.current
        if line is None:
            return ()
        if line.row is None:
            group = model.outline.group_by_layer.get(line.node)
            return (group,) if group is not None else ()
        return model.groups_of(line.row)

    @property
    def current_group(self) -> Group | None:
        """The one group that is chosen, None where it is none or several."""
        groups = self.chosen_groups()
        return groups[0] if len(groups) == 1 else None
