"""The actions that explain: values by a key and by clicks, the log and the help page; and those on the app itself."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from textual import on

from trt_tui.core.report.glossary import Term
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.screens.help import HelpPage
from trt_tui.tui.screens.texts import ExplanationDialog, LogPage
from trt_tui.tui.state import summary
from trt_tui.tui.state.columns import LAYER_COLUMNS_BY_ID, NAME_COLUMN, SHARE_COLUMN, find_column_at, fit_columns
from trt_tui.tui.state.explanations import (
    Explanation,
    explain_cell,
    explain_column,
    explain_header,
    explain_summary_cell,
    explain_term,
    find_line_label,
    find_term_at,
    list_explained_columns,
    list_explained_terms,
)
from trt_tui.tui.state.summary import SummaryRow
from trt_tui.tui.state.tree import View
from trt_tui.tui.widgets.lines import LinePane, Lines


class ExplanationController(Presenter):
    """The part of the main screen for explanations, the log, the help page, closing and quitting.

    The arrow keys move the position of the explained value.
    """

    _rows_above = 0
    """The place of the explained value: its number of rows above the row under the cursor."""
    _above_column, _list_column_id = 0, SHARE_COLUMN.id

    def do_explain(self) -> None:
        """Explains the value of the current row in the column that was explained last."""
        self._rows_above = 0
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
        has_values = self.layer_list.has_row_values
        if pane.id == "tree-header" and has_values:
            column = find_column_at(fit_columns(self.layer_tree.row_width, self.layer_list.row_values.has_engines),
                                    x)
            self.open_dialog(ExplanationDialog(lambda: explain_column(self.layer_list.row_values, column)))
        elif pane.id == "verdict" and y in (explained_lines := list(self._find_explained_summary_rows())):
            columns = summary.list_summary_columns(self.session, self.screen_width)
            self._rows_above = len(explained_lines) - explained_lines.index(y)
            self._above_column = sum(column.start <= x for column in columns) - 1
            self._open_value_dialog()
        elif term := find_term_at(event.text, x) or (
                find_line_label(pane.text.splitlines(), y) if pane.id == "detail" else None):
            self.open_dialog(ExplanationDialog(lambda: explain_term(term)))

    def _open_value_dialog(self) -> None:
        self.open_dialog(ExplanationDialog(self._explain_current_value, self._move_explanation))

    # -- the explained value ------------------------------------------------------------------------------------

    def _find_explained_summary_rows(self) -> dict[int, SummaryRow]:
        """Returns the rows of the summary table that have values, by their line."""
        rows = summary.summary_rows(self.session, self.screen_width, self.size.height)
        return {line: row for line, row in enumerate(rows) if row.kind not in ("titles", "text", "stage")}

    def _list_values_above(self) -> list[list[Callable[[], Explanation]]]:
        """Returns functions that explain the values of the top line and of the rows of the summary table."""
        if self.session.outline is None:
            return []
        columns = summary.list_summary_columns(self.session, self.screen_width)
        values: list[list[Callable[[], Explanation]]] = [
            [partial(explain_summary_cell, self.session, row, column) for column in columns]
            for row in self._find_explained_summary_rows().values()]
        return [[partial(replace, explanation) for explanation in explain_header(self.session)], *values]

    def _list_columns_of_row(self) -> list[str]:
        row = self.current_row
        return [column.id for column in list_explained_columns(self.layer_list.row_values, row)] if row else []

    def _explain_current_value(self) -> Explanation:
        above, row = self._list_values_above(), self.current_row
        self._rows_above = min(self._rows_above, len(above))
        if self._rows_above:
            values = above[-self._rows_above]
            return values[min(self._above_column, len(values) - 1)]()
        if row is None:
            return Explanation("no row", (("", "The list has no row."),))
        column_id = self._list_column_id if self._list_column_id in self._list_columns_of_row() else NAME_COLUMN.id
        return explain_cell(self.session, self.layer_list.row_values, row, LAYER_COLUMNS_BY_ID[column_id],
                            self.disabled_reason)

    def _move_explanation(self, columns: int, rows: int) -> None:
        """Moves to another value. Up from the first row of the list is the summary table, and then the top line."""
        above, is_top = self._list_values_above(), self.layer_tree.cursor_index == 0
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
            self.show_failure_dialog(unread.title, unread.cause, unread.next_step)
            return
        self.open_dialog(LogPage(self.session))

    def do_help(self) -> None:
        """Shows the help page, and performs the action or explains the word that the user chooses there."""
        def apply_choice(choice: str | Term) -> None:
            if isinstance(choice, Term):
                self.open_dialog(ExplanationDialog(lambda: explain_term(choice)))
            else:
                self.perform_action(choice)

        self.open_dialog(HelpPage(self.disabled_reason, list_explained_terms()), apply_choice)

    def do_close(self) -> None:
        """Closes the failure line, else the filter, else an enlarged pane. If none is open, the tree gets the focus."""
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
        elif (self.status.message is None and self.focused is not self.layer_tree
              and layer_list.view is not View.BLOCKS):
            self.layer_tree.focus()

    def do_quit(self) -> None:
        self.quit_app()
