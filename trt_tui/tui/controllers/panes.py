"""Access to the panes of the main screen, and to the row and groups selected in them."""

from textual.app import App
from textual.screen import Screen
from textual.widgets import Input

from trt_tui.core.network.layers import FusionGroup
from trt_tui.tui.state.layer_list import LayerList
from trt_tui.tui.state.tree import View, VisibleRow
from trt_tui.tui.widgets.block_map import BlockMap
from trt_tui.tui.widgets.inputs import ConfigList
from trt_tui.tui.widgets.layer_tree import LayerTree
from trt_tui.tui.widgets.lines import Lines, TitleRule


class ScreenPanes:
    """The panes of the main screen, with the current selection in the layer list or heat map.

    Args:
        screen: The screen that contains the panes.
        layer_list: The contents of the tree and the heat map.
    """

    def __init__(self, screen: Screen[None], layer_list: LayerList) -> None:
        self.screen, self.layer_list = screen, layer_list

    @property
    def app(self) -> App[object]:
        return self.screen.app

    @property
    def screen_width(self) -> int:
        """The width of the screen in cells without its last column, which stays blank."""
        return self.screen.size.width

    @property
    def is_wide_screen(self) -> bool:
        """True if the screen has room for the detail pane beside the tree."""
        return self.screen.has_class("-wide")

    @property
    def layer_tree(self) -> LayerTree:
        """The widget of the layer list, for the tree view and the worst-first view."""
        return self.screen.query_one("#tree", LayerTree)

    @property
    def heat_map(self) -> BlockMap:
        return self.screen.query_one("#blocks", BlockMap)

    @property
    def shown_row_pane(self) -> LayerTree | BlockMap:
        """The displayed pane with rows: the layer list or the heat map."""
        return self.heat_map if self.layer_list.view is View.BLOCKS else self.layer_tree

    @property
    def filter_input(self) -> Input:
        """The text field of the row filter."""
        return self.screen.query_one("#filter", Input)

    @property
    def config_list(self) -> ConfigList:
        return self.screen.query_one("#configs", ConfigList)

    def text_pane(self, pane_id: str) -> Lines:
        return self.screen.query_one(f"#{pane_id}", Lines)

    def title_rule(self, pane_id: str) -> TitleRule:
        return self.screen.query_one(f"#{pane_id}-rule", TitleRule)

    @property
    def is_heat_map_focused(self) -> bool:
        return self.screen.focused is self.heat_map

    @property
    def current_row(self) -> VisibleRow | None:
        """The row that the detail pane describes; None if no row is selected.

        In the heat map this is the row of the first group under the cursor.
        """
        if self.is_heat_map_focused and self.layer_list.is_network_open:
            names = self.heat_map.cursor_group_names
            if not names:
                return None
            row = self.layer_list.tree_model.rows_by_group[names[0]]
            return VisibleRow(row.path, 0, row)
        return self.layer_tree.current_row

    def list_chosen_groups(self) -> tuple[FusionGroup, ...]:
        """Returns the fusion groups on which a change acts: those of the selected row, or of the heat map's cell or
        line."""
        if not self.layer_list.is_network_open:
            return ()
        model = self.layer_list.tree_model
        if self.is_heat_map_focused:
            return tuple(model.outline.group_by_name[name] for name in self.heat_map.cursor_group_names)
        row = self.layer_tree.current_row
        if row is None:
            return ()
        if row.row is None:
            group = model.outline.group_by_layer.get(row.node)
            return (group,) if group is not None else ()
        return model.list_groups_of_row(row.row)

    @property
    def current_group(self) -> FusionGroup | None:
        """The selected fusion group; None if no group or several groups are selected."""
        groups = self.list_chosen_groups()
        return groups[0] if len(groups) == 1 else None
