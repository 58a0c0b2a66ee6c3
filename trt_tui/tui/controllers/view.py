"""The actions that look: cursor, filter, views, order, panes and charts; explanations, the log and the help page."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial, partialmethod

from textual import on
from textual.widgets import Input

from trt_tui.core.network.layer_tree import GroupRow, Scope, UngroupedRow
from trt_tui.core.report.glossary import Term
from trt_tui.formatting import escape_hidden_characters, run_title
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import Precondition, shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem
from trt_tui.tui.screens.pages import ChartsPage, ExplanationDialog, HelpPage, LogPage
from trt_tui.tui.spans import Span
from trt_tui.tui.state import summary
from trt_tui.tui.state.columns import (
    LAYER_COLUMNS_BY_ID,
    NAME_COLUMN,
    SHARE_COLUMN,
    LayerColumn,
    find_column_at,
    fit_columns,
)
from trt_tui.tui.state.explanations import (
    Explanation,
    explain_cell,
    explain_column,
    explain_config,
    explain_header,
    explain_line_labels,
    explain_summary_cell,
    explain_term,
    find_line_label,
    find_term_at,
    list_explained_columns,
    list_explained_terms,
)
from trt_tui.tui.state.rows import ColourMeasure, LayerListView, RowValues, VisibleRow, find_engine_errors
from trt_tui.tui.state.status import Focus, find_first_group_to_raise
from trt_tui.tui.state.summary import SummaryRow
from trt_tui.tui.widgets.lines import LinePane, Lines


def _missing_row_reason(row_values: RowValues, final_reason: str) -> str:
    """Returns the reason why no row is found, which is ``final_reason`` only after all rows were measured."""
    return (row_values.missing_groups_text or final_reason) if row_values.group_values else "nothing was measured yet"


class NavigationController(Presenter):
    """The part of the main screen for the cursor in the layer list and in the heat map, and for the filter field."""

    _filter_error: Span | None = None
    """The message about an error in the typed filter; None if the filter has no error."""

    do_up = partialmethod(Presenter.move_cursor, -1)
    do_down = partialmethod(Presenter.move_cursor, 1)
    do_page_up = partialmethod(Presenter.move_cursor, pages=-1)
    do_page_down = partialmethod(Presenter.move_cursor, pages=1)
    do_first = partialmethod(Presenter.move_cursor, -sys.maxsize)
    do_last = partialmethod(Presenter.move_cursor, sys.maxsize)

    def do_left(self) -> None:
        """Closes an open row, or moves to the scope around a closed row. In the heat map, moves one cell to the left."""
        tree, row = self.layer_tree, self.layer_tree.current_row
        if self.is_heat_map_focused:
            self.heat_map.move_cursor(right=-1)
        elif row is not None and row.is_opened and self.layer_list.matches is None and row.row is not None:
            self._set_row_opened(row, False)
        elif row is not None:
            rows_above = range(tree.cursor_index - 1, -1, -1)
            tree.move_cursor_to(
                next((index for index in rows_above if tree.rows[index].depth < row.depth), tree.cursor_index)
            )

    def do_right(self) -> None:
        """Opens a closed row, or moves into an open row. In the heat map, moves one cell to the right."""
        if self.is_heat_map_focused:
            self.heat_map.move_cursor(right=1)
        elif (row := self.layer_tree.current_row) is not None and row.row is not None:
            if row.is_opened:
                self.move_cursor(1)
            else:
                self._set_row_opened(row, True)

    def do_open(self) -> None:
        """Opens or closes the current row. In the heat map, moves the cursor to the row of the selected cell in the
        tree view."""
        if self.is_heat_map_focused:
            if names := self.heat_map.cursor_group_names:
                self.go_to_group(names[0])
        elif (row := self.layer_tree.current_row) is not None and row.row is not None:
            self._set_row_opened(row, not row.is_opened)

    def refuse_next_bad(self) -> str:
        """Returns the reason why the cursor cannot move to a bad row; "" if it can move.

        A row is bad if its error share is at least 1 %, or if its values contain NaN or Inf.
        """
        row_values = self.layer_list.row_values
        return (
            ""
            if row_values.bad_group_names
            else _missing_row_reason(row_values, "no row is bad: every share is below 1 %")
        )

    def do_next_bad(self) -> None:
        name = self.layer_list.find_next_bad_group(
            self.current_row, includes_current=self.is_heat_map_focused and len(self.list_chosen_groups()) > 1
        )
        if name is None:
            self.show_message("no bad row matches the filter")
        else:
            self.go_to_group(name)

    def refuse_first_nan(self) -> str:
        """Returns the reason why the cursor cannot move to the worst row; "" if it can move."""
        values = self.layer_list.share_values
        return (
            ""
            if find_first_group_to_raise(self.session, values) is not None
            else _missing_row_reason(values, "no row is better in FP32")
        )

    def do_first_nan(self) -> None:
        """Moves the cursor to the first row with NaN or Inf, else to the worst row that can be raised to FP32.

        If another row may be worse, or if the list shows no shares of the config, a message states the values used.
        """
        values = self.layer_list.share_values
        name = find_first_group_to_raise(self.session, values)
        if name is not None:
            self.go_to_group(name)
            doubt_text = (
                values.order_doubt_text(name)
                if self.layer_list.row_values is values
                else f"by the error shares of {values.config_name}"
            )
            if doubt_text and name not in values.nonfinite_groups:
                self.show_message(f"perhaps the worst row: {doubt_text}", "")

    def _set_row_opened(self, row: VisibleRow, is_opened: bool) -> None:
        self.layer_list.is_cursor_placed = True
        path = {row.key}  # a row's key is its path
        self.layer_list.opened_paths = (
            self.layer_list.opened_paths | path if is_opened else self.layer_list.opened_paths - path
        )
        self.draw_layer_tree(row.key)

    def do_filter(self) -> None:
        """Shows the filter field and focuses it."""
        self.add_class("-filtering")
        if self.layer_list.view is LayerListView.BLOCKS:
            self.set_view(LayerListView.TREE)
        self.filter_input.focus()

    @on(Input.Changed, "#filter")
    def _apply_typed_filter(self, event: Input.Changed) -> None:
        """Filters the rows by a typed text. If the text is not a valid filter, an error is shown."""
        if not self.layer_list.is_network_open:
            return
        self.layer_list.is_cursor_placed = True
        error_text = self.filter_rows(event.value)
        self.draw_layer_tree()
        self.handle_cursor_move()
        if self._filter_error is not None:
            self.clear_message(self._filter_error)
        self._filter_error = self.show_message(error_text) if error_text else None

    @on(Input.Submitted, "#filter")
    def _close_filter_field(self) -> None:
        """Focuses the tree after enter, and hides the filter field if it contains no filter."""
        if self.layer_list.matches is None:
            self.remove_class("-filtering")
        self.layer_tree.focus()


_ERROR_MEASURE_KEYS = ("oiae", "1237", "4568")
"""The keys of the error measures in the dialog, for the config and two more runs. Those of further runs have no keys.
"""
_MEASURE_TITLES = {
    ColourMeasure.SHARE: "error share",
    ColourMeasure.ISOLATED: "isolated error",
    ColourMeasure.ACCUMULATED: "accumulated error",
    ColourMeasure.ENGINE: "engine error",
}


class ViewController(Presenter):
    """The part of the main screen for views, row colours, row order, pane sizes and charts."""

    _chart_index = 0

    def do_view(self) -> None:
        """Switches to the next view: tree, worst first or blocks."""
        views = self.layer_list.available_views
        self.show_view(views[(views.index(self.layer_list.view) + 1) % len(views)])

    def show_view(self, view: LayerListView) -> None:
        """Shows a view, and keeps the cursor on its row."""
        layer_list = self.layer_list
        row = self.current_row
        self.set_view(view)
        if layer_list.view is LayerListView.WORST and layer_list.row_values.group_values:
            layer_list.sort_rows(SHARE_COLUMN)
        group_name = row.row.group.name if row is not None and isinstance(row.row, GroupRow) else ""
        if layer_list.view is LayerListView.BLOCKS:
            self.heat_map.show_blocks(layer_list.row_values)
            self.heat_map.move_cursor_to_group(group_name)
        self.shown_row_pane.focus()
        if group_name:
            layer_list.reveal_group(group_name)
        self.draw_layer_tree(row.key if row is not None and layer_list.is_cursor_placed else None)
        self.draw_after_layout()

    def do_colour(self) -> None:
        """Asks for an error measure and a run, which determine the colours of the rows."""
        layer_list = self.layer_list
        items = []
        for run_index, run in enumerate(reversed(self.session.list_run_configs())):
            keys = _ERROR_MEASURE_KEYS[run_index] if run_index < len(_ERROR_MEASURE_KEYS) else [""] * 4
            for key, (measure, title) in zip(keys, _MEASURE_TITLES.items(), strict=True):
                row_values = layer_list.build_row_values_of_run(measure, run)
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
            self.draw_all()

        self.open_dialog(Picker("Colour by", items, (layer_list.measure, layer_list.run)), set_colour_measure)

    def marked_engine_disabled_reason(self) -> str:
        """Returns the reason why a marked engine cannot be built; "" if it can be built.

        A marked engine is a second engine that has the result of every fusion group as an output.
        """
        if reason := self.unmet_precondition_reason(Precondition.BUILDER):
            return reason
        builder = self.session.builder
        return "" if builder is not None and builder.can_run else "no engine runs here"

    def _missing_engine_errors_reason(self, run: str) -> str:
        """Returns the reason why errors inside the engine of a run are missing."""
        engine = self.session.get_run_results(run).engine_result
        if engine is not None and engine.engine_errors is not None and engine.engine_errors.missing_reason:
            return engine.engine_errors.missing_reason
        return self.marked_engine_disabled_reason() or "not measured"

    def refuse_sort(self) -> str:
        """Returns the reason why the rows cannot be sorted; "" if they can be sorted."""
        return (
            f"the blocks have a fixed order: {shown_key('view')} shows the list"
            if self.layer_list.view is LayerListView.BLOCKS
            else ""
        )

    def do_sort(self) -> None:
        """Shows the displayed columns from left to right, and sorts the rows by the column that the user chooses."""
        layer_list = self.layer_list
        columns = [
            LAYER_COLUMNS_BY_ID[name]
            for name in fit_columns(self.layer_tree.row_width or self.screen_width, layer_list.row_values.has_engines)
        ]
        items = [
            PickerItem(
                str(index),
                column.order_title,
                column,
                "" if column is NAME_COLUMN or column.compute_sort_values(layer_list.row_values) else "not measured",
            )
            for index, column in enumerate(columns, 1)
        ]
        self.open_dialog(
            Picker("Sort by", items, layer_list.sort_column),
            lambda column: self.sort_rows_by(column, reverts_to_network_order=False),
        )

    def sort_rows_by(self, column: LayerColumn, reverts_to_network_order: bool = True) -> None:
        """Sorts the rows by the newest values of a column.

        Args:
            reverts_to_network_order: If True, rows that have that order already get network order in the tree view.
        """
        layer_list = self.layer_list
        is_sorted = layer_list.sort_column is column and layer_list.sort_values is not None
        layer_list.is_cursor_placed = True
        if column is not NAME_COLUMN and not column.compute_sort_values(layer_list.row_values):
            self.show_message(
                "nothing was measured to sort by"
                if column is SHARE_COLUMN
                else f"nothing is known to sort by {column.order_title}"
            )
        elif column is NAME_COLUMN or (
            reverts_to_network_order and is_sorted and layer_list.view is LayerListView.TREE
        ):
            layer_list.sort_rows(NAME_COLUMN)
            self.show_message("network order", "")
        else:
            layer_list.sort_rows(column)
            self.show_message(column.order_title if column is SHARE_COLUMN else f"sorted by {column.order_title}", "")
        self.draw_layer_tree()

    def do_copy(self) -> None:
        """Copies the full name of the current row to the clipboard."""
        line = self.current_row
        assert line is not None, "the action needs a row"
        row = line.row
        if row is None:
            name = line.node
        elif isinstance(row, GroupRow):
            name = row.group.name
        elif isinstance(row, UngroupedRow):
            name = row.layer.name
        else:
            name = row.path if isinstance(row, Scope) else row.label
        self.app.copy_to_clipboard(escape_hidden_characters(name))
        self.show_message(f"copied {name}", "")

    def do_pane_tree(self) -> None:
        """Focuses the layer list. If the list already has the focus, switches it between normal and full size."""
        pane = self.heat_map if self.layer_list.view is LayerListView.BLOCKS else self.layer_tree
        has_focus = self.zoomed_pane_name != "detail" and pane.has_focus
        pane.focus()
        self.zoom_pane("list" if has_focus and self.zoomed_pane_name != "list" else "")

    def do_pane_detail(self) -> None:
        """Switches the detail pane between normal and full size."""
        self.zoom_pane("" if self.zoomed_pane_name == "detail" else "detail")

    def do_pictures(self) -> None:
        """Shows the page of charts, beginning with the chart that was displayed last."""
        page = ChartsPage(self.session, lambda: self.layer_list.row_values, self.current_group, self._chart_index)

        def store_chart_index(result: None) -> None:
            self._chart_index = page.chart_index

        self.app.push_screen(page, store_chart_index)


class ExplanationController(Presenter):
    """The part of the main screen for explanations, the log, the help page, closing and quitting.

    The arrow keys move the position of the explained value.
    """

    _rows_above = 0
    """The place of the explained value: its number of rows above the row under the cursor."""
    _above_column, _list_column_id = 0, SHARE_COLUMN.id

    def do_explain(self) -> None:
        """Explains what the focused pane shows: lines, a config, or a row in the column that was explained last."""
        self._rows_above = 0
        focus, config = self.focused_screen_part, self.config_list.selected_value
        if focus is Focus.DETAIL:
            self._open_explanation(explain_line_labels(self.text_pane("detail").text.splitlines()))
        elif focus is Focus.CONFIGS and config is not None:
            self._open_explanation(explain_config(self.session, config))
        else:
            self._open_value_dialog()

    @on(LinePane.ExplanationRequested)
    def _explain_clicked_cell(self, event: LinePane.ExplanationRequested) -> None:
        """Explains the value of the current row in a column."""
        self._list_column_id = event.column_id
        self.perform_action("explain")

    @on(Lines.ExplanationRequested)
    def _explain_clicked_text(self, event: Lines.ExplanationRequested) -> None:
        """Explains the clicked value, column title or word."""
        event.stop()
        pane, x, y = event.pane, event.x, event.y
        has_values = self.layer_list.is_network_open
        if pane.id == "tree-header" and has_values:
            column = find_column_at(fit_columns(self.layer_tree.row_width, self.layer_list.row_values.has_engines), x)
            self._open_explanation(explain_column(self.layer_list.row_values, column))
        elif pane.id == "verdict" and y in (explained_lines := list(self._find_explained_summary_rows())):
            columns = summary.list_summary_columns(self.session, self.screen_width)
            self._rows_above = len(explained_lines) - explained_lines.index(y)
            self._above_column = sum(column.start <= x for column in columns) - 1
            self._open_value_dialog()
        elif term := find_term_at(event.text, x) or (
            find_line_label(pane.text.splitlines(), y) if pane.id == "detail" else None
        ):
            self._open_explanation(explain_term(term))

    def _open_explanation(self, explanation: Explanation) -> None:
        self.open_dialog(ExplanationDialog(lambda: explanation))

    def _open_value_dialog(self) -> None:
        self.open_dialog(ExplanationDialog(self._explain_current_value, self._explain_neighbouring_value))

    # -- the explained value ------------------------------------------------------------------------------------

    def _find_explained_summary_rows(self) -> dict[int, SummaryRow]:
        """Returns the rows of the summary table that have values, by their line."""
        rows = summary.summary_rows(self.session, self.screen_width, self.size.height)
        return {line: row for line, row in enumerate(rows) if row.kind not in ("titles", "text", "stage")}

    def _list_explanations_above_rows(self) -> list[list[Callable[[], Explanation]]]:
        """Returns the functions that explain the values of the top line and of the summary table."""
        columns = summary.list_summary_columns(self.session, self.screen_width)
        values: list[list[Callable[[], Explanation]]] = [
            [partial(explain_summary_cell, self.session, row, column) for column in columns]
            for row in self._find_explained_summary_rows().values()
        ]
        return [[partial(replace, explanation) for explanation in explain_header(self.session)], *values]

    def _list_columns_of_row(self) -> list[str]:
        row = self.current_row
        return [column.id for column in list_explained_columns(self.layer_list.row_values, row)] if row else []

    def _explain_current_value(self) -> Explanation:
        above, row = self._list_explanations_above_rows(), self.current_row
        self._rows_above = min(self._rows_above, len(above))
        if self._rows_above:
            values = above[-self._rows_above]
            return values[min(self._above_column, len(values) - 1)]()
        if row is None:
            return Explanation("no row", (("", "The list has no row."),))
        column_id = self._list_column_id if self._list_column_id in self._list_columns_of_row() else NAME_COLUMN.id
        return explain_cell(
            self.session, self.layer_list.row_values, row, LAYER_COLUMNS_BY_ID[column_id], self.disabled_reason
        )

    def _explain_neighbouring_value(self, columns: int, rows: int) -> None:
        """Explains another value in the given direction. The summary table is above the first row, and the top line
        above the table."""
        above, is_top = self._list_explanations_above_rows(), self.layer_tree.cursor_index == 0
        if rows and not self._rows_above and (rows > 0 or self.is_heat_map_focused or not is_top):
            self.move_cursor(rows)
        else:
            self._rows_above = max(0, min(self._rows_above - rows, len(above)))
        if self._rows_above:
            count = len(above[-self._rows_above])
            self._above_column = (min(self._above_column, count - 1) + columns) % count
        elif columns and (listed := self._list_columns_of_row()):
            index = listed.index(self._list_column_id) if self._list_column_id in listed else 0
            self._list_column_id = listed[(index + columns) % len(listed)]

    def do_log(self) -> None:
        """Shows the newest failure if the user has not seen it yet, else the log."""
        if (unread := self.status.unread_failure) is not None:
            self.status.unread_failure = None
            self.draw_status_lines()
            self.show_error(unread)
            return
        self.open_dialog(LogPage(self.session))

    def do_help(self) -> None:
        """Shows the help page. If the user chooses an action there, it is performed; a chosen word is explained.

        Over another page or a dialog, words are explained only.
        """
        is_covered, page_text = self.app.screen is not self, "another page or dialog is open"

        def apply_help_choice(choice: str | Term) -> None:
            if isinstance(choice, Term):
                self._open_explanation(explain_term(choice))
            elif not is_covered:
                self.perform_action(choice)

        disabled_reason = (lambda action_id: page_text) if is_covered else self.disabled_reason
        self.open_dialog(HelpPage(disabled_reason, list_explained_terms()), apply_help_choice)

    def do_close(self) -> None:
        """Closes the first open item: the failure line, the filter, or an enlarged pane. If none is open, focuses the
        tree."""
        layer_list = self.layer_list
        if self.status.unread_failure is not None:
            self.status.unread_failure = None
            self.draw_status_lines()
        elif layer_list.matches is not None or self.has_class("-filtering"):
            self.clear_filter()
            self.layer_tree.focus()
            line = self.layer_tree.current_row
            group = self.current_group
            if group is not None:
                layer_list.reveal_group(group.name)
            self.draw_layer_tree(line.key if line is not None else None)
        elif self.zoomed_pane_name:
            self.zoom_pane("")
        elif (
            self.status.message is None
            and self.focused is not self.layer_tree
            and layer_list.view is not LayerListView.BLOCKS
        ):
            self.layer_tree.focus()
