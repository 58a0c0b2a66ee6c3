"""The actions on the views: tree, worst-first and heat map, row colours and order, pane layout, and the page of charts.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.core.measure.causes import GROUP_DETAILS
from trt_tui.core.network.hierarchy import GroupRow, Scope, UngroupedRow
from trt_tui.formatting import escape_hidden_characters, run_title
from trt_tui.jobs import events as ev
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.charts import ChartsPage
from trt_tui.tui.screens.dialogs import Picker, PickerItem
from trt_tui.tui.state.columns import LAYER_COLUMNS_BY_ID, NAME_COLUMN, SHARE_COLUMN, LayerColumn, fit_columns
from trt_tui.tui.state.row_values import ColourMeasure, find_engine_errors
from trt_tui.tui.state.tree import View

_ERROR_MEASURE_KEYS = ("oiae", "1237", "4568")
"""The keys of the error measures in the dialog, for the config and two more runs. Those of further runs have no keys.
"""
_MEASURE_TITLES = {ColourMeasure.SHARE: "share of the judged error", ColourMeasure.ISOLATED: "isolated error",
                   ColourMeasure.ACCUMULATED: "accumulated error", ColourMeasure.ENGINE: "engine error"}


class ViewController(Controller):
    """The controller of views, row colours, row order and pane sizes."""

    def event_handlers(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Returns the handlers that draw received details of the selected row, and rows that are sorted by new values.
        """
        return {ev.ValueMeasured: self._draw_received_details,
                ev.JobDone: self._mark_followed_values_stale}

    def _mark_followed_values_stale(self, event: ev.JobDone) -> None:
        self.presenter.has_stale_values |= self.layer_list.follows_values

    def _draw_received_details(self, event: ev.ValueMeasured) -> None:
        if event.kind in (GROUP_DETAILS, ev.REMEDIES) and self.presenter.is_cursor_resting:
            self.presenter.draw_detail_pane()

    @register_action(label="view", help="Tree, worst first, blocks", group="Look",
                     disabled_reason=Controller.network_not_open_reason, footer=41)
    def view(self) -> None:
        """Switches to the next view: tree, worst first or blocks."""
        views = self.layer_list.available_views
        self.show_view(views[(views.index(self.layer_list.view) + 1) % len(views)])

    def show_view(self, view: View) -> None:
        """Shows a view, and keeps the cursor on its row."""
        presenter, layer_list = self.presenter, self.layer_list
        row = presenter.current_row
        presenter.set_view(view)
        if layer_list.view is View.WORST and layer_list.row_values.group_values:
            layer_list.sort_rows(SHARE_COLUMN)
        if layer_list.view is View.BLOCKS:
            presenter.focus_heat_map(row.row.group.name if row is not None and isinstance(row.row, GroupRow) else "")
        else:
            presenter.layer_tree.focus()
        if row is not None and isinstance(row.row, GroupRow):
            layer_list.reveal_group(row.row.group.name)
        presenter.draw_layer_tree(row.key if row is not None and layer_list.is_cursor_placed else None)
        presenter.draw_after_layout()

    @register_action(label="colour by",
                     help="Colour by share, isolated or accumulated error; of FP16, INT8 or the config", group="Look",
                     disabled_reason=Controller.network_not_open_reason, footer=42)
    def colour(self) -> None:
        """Asks which error measure of which run determines the colours of the rows."""
        layer_list = self.layer_list
        items = []
        for run_index, run in enumerate(reversed(self.session.list_run_configs())):
            keys = _ERROR_MEASURE_KEYS[run_index] if run_index < len(_ERROR_MEASURE_KEYS) else [""] * 4
            for key, (measure, title) in zip(keys, _MEASURE_TITLES.items(), strict=True):
                row_values = layer_list.build_run_values(measure, run)
                missing_reason = "" if row_values.group_values or row_values.nonfinite_groups else "not measured"
                if measure is ColourMeasure.ENGINE and missing_reason:
                    if run == "config" and not self.marked_engine_disabled_reason():
                        title, missing_reason = "engine error: builds a second engine, marked", ""
                    else:
                        missing_reason = self._missing_engine_errors_reason(run)
                items.append(PickerItem(key, f"{run_title(run):<6} {title}", (measure, run), missing_reason))

        def set_colour_measure(choice: tuple[ColourMeasure, str]) -> None:
            layer_list.measure, layer_list.run = choice
            if choice == (ColourMeasure.ENGINE, "config") and not find_engine_errors(self.session, "config"):
                self.session.request_build(with_marked_engine=True)
            self.presenter.draw_all()

        self.open_dialog(Picker("Colour by", items, (layer_list.measure, layer_list.run)), set_colour_measure)

    def marked_engine_disabled_reason(self) -> str:
        """Returns the reason why a marked engine cannot be built; "" if it can be built.

        A marked engine is a second engine that has the result of every fusion group as an output.
        """
        if reason := self.build_disabled_reason():
            return reason
        builder = self.session.builder
        return "" if builder is not None and builder.can_run else "no engine runs here"

    def _missing_engine_errors_reason(self, run: str) -> str:
        """Returns the reason why errors inside the engine of a run are missing."""
        engine = self.session.get_run_results(run).engine_result
        if engine is not None and engine.engine_errors is not None and engine.engine_errors.missing_reason:
            return engine.engine_errors.missing_reason
        return self.marked_engine_disabled_reason() or "not measured"

    def sort_disabled_reason(self) -> str:
        """Returns the reason why the rows cannot be sorted; "" if they can be sorted."""
        return self.network_not_open_reason() or (
            f"the blocks have a fixed order: {shown_key('view')} shows the list"
            if self.layer_list.view is View.BLOCKS else "")

    @register_action(
        label="sort", help="Sort again if the order is out of date; else choose the column that sorts the rows. A "
                           "click on a column title sorts by it", group="Look",
        disabled_reason=sort_disabled_reason)
    def sort(self) -> None:
        """Sorts the rows again by their column if their order is out of date, as the title of the list says.

        Otherwise a dialog lists the displayed columns, from left to right.
        """
        layer_list = self.layer_list
        if not layer_list.has_row_values:
            return
        if layer_list.is_row_order_stale:
            self.sort_rows_by(layer_list.sort_column)
            return
        columns = [LAYER_COLUMNS_BY_ID[name] for name in fit_columns(
            self.presenter.layer_tree.row_width or self.presenter.screen_width, layer_list.row_values.has_engines)]
        items = [PickerItem(str(index), column.order_title, column,
                            "" if column is NAME_COLUMN or column.weigh_groups(layer_list.row_values) else
                            "not measured") for index, column in enumerate(columns, 1)]
        self.open_dialog(Picker("Sort by", items, layer_list.sort_column),
                         lambda column: self.sort_rows_by(column, reverts_to_network_order=False))

    def sort_rows_by(self, column: LayerColumn, reverts_to_network_order: bool = True) -> None:
        """Sorts the rows by the newest values of a column.

        Args:
            reverts_to_network_order: If True, rows that have that order already get network order in the tree view.
        """
        presenter, layer_list = self.presenter, self.layer_list
        if not layer_list.has_row_values:
            return
        is_sorted = (layer_list.sort_column is column and layer_list.sort_weights is not None
                     and not layer_list.is_row_order_stale)
        presenter.freeze_row_order()
        weights = column.weigh_groups(layer_list.row_values)
        if not weights and column is not NAME_COLUMN:
            presenter.show_message("nothing was measured to sort by" if column is SHARE_COLUMN else
                                   f"nothing is known to sort by {column.order_title}")
            return
        if column is NAME_COLUMN or (reverts_to_network_order and is_sorted and layer_list.view is View.TREE):
            layer_list.sort_rows(NAME_COLUMN)
            presenter.show_message("network order", "")
        else:
            layer_list.sort_rows(column)
            layer_list.follows_values = True
            order_title = column.order_title if column is SHARE_COLUMN else f"sorted by {column.order_title}"
            presenter.show_message(f"{order_title}, and follows new values until the cursor moves", "")
        presenter.draw_layer_tree()

    @register_action(label="copy name", help="Copy the full name to the clipboard (OSC 52)", group="Look",
                     disabled_reason=Controller.no_chosen_row_reason)
    def copy(self) -> None:
        """Copies the full name of the current row to the clipboard."""
        line = self.presenter.current_row
        if line is None:
            return
        row = line.row
        if row is None:
            name = line.node
        elif isinstance(row, GroupRow):
            name = row.group.name
        elif isinstance(row, UngroupedRow):
            name = row.layer.name
        else:
            name = row.path if isinstance(row, Scope) else row.label
        self.presenter.app.copy_to_clipboard(escape_hidden_characters(name))
        self.presenter.show_message(f"copied {name}", "")

    @register_action(label="list", help="Go to the list; again: full screen, and back", group="Look")
    def pane_tree(self) -> None:
        """Focuses the layer list. If the list already has the focus, switches it between normal and full size."""
        presenter = self.presenter
        pane = presenter.heat_map if self.layer_list.view is View.BLOCKS else presenter.layer_tree
        has_focus = presenter.zoomed_pane_name != "detail" and pane.has_focus
        pane.focus()
        presenter.zoom_pane("list" if has_focus and presenter.zoomed_pane_name != "list" else "")

    @register_action(label="detail", help="Detail pane full screen, and back", group="Look",
                     disabled_reason=Controller.no_chosen_row_reason)
    def pane_detail(self) -> None:
        """Switches the detail pane between normal and full size."""
        self.presenter.zoom_pane("" if self.presenter.zoomed_pane_name == "detail" else "detail")


class ChartController(Controller):
    """The controller of the page of charts."""

    _chart_index = 0

    def charts_disabled_reason(self) -> str:
        """Returns the reason why charts cannot be shown; "" if they can be shown."""
        return self.network_not_open_reason() or ("" if self.layer_list.has_row_values else "nothing was measured yet")

    @register_action(label="pictures", help="Charts: values and channels, errors over samples, classes", group="Look",
                     disabled_reason=charts_disabled_reason)
    def pictures(self) -> None:
        """Shows the page of charts, beginning with the chart that was displayed last."""
        page = ChartsPage(self.session, lambda: self.layer_list.row_values, self.presenter.current_group,
                          self._chart_index)

        def keep_chart_index(result: None) -> None:
            self._chart_index = page.chart_index

        self.presenter.app.push_screen(page, keep_chart_index)
