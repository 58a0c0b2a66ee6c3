"""The actions that explain: values by a key and by clicks, the log and the help page; and those on the app itself."""

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
from trt_tui.tui.widgets.block_map import BlockMap
from trt_tui.tui.widgets.layer_tree import LayerTree
from trt_tui.tui.widgets.lines import Lines

_LIST_ROW = -1
"""The row of the explained value if that is the row under the cursor. The rows above are counted from the top line of
the screen (0), which the lines of the summary table follow."""


class ExplanationController(Presenter):
    """The part of the main screen for explanations, the log, the help page, closing and quitting.

    The arrow keys move the position of the explained value.
    """

    _explained_row, _explained_column = _LIST_ROW, 0
    _explained_list_column = SHARE_COLUMN

    def do_explain(self) -> None:
        """Explains the value of the current row in the column that was explained last."""
        self._explained_row = _LIST_ROW
        self._open_value_dialog()

    def explain_cell(self, column_id: str) -> None:
        """Explains the value of the current row in a column."""
        self._explained_list_column = LAYER_COLUMNS_BY_ID[column_id]
        self.perform_action("explain")

    @on(LayerTree.ExplanationRequested)
    def _explain_clicked_cell(self, event: LayerTree.ExplanationRequested) -> None:
        self.explain_cell(event.column_id)

    @on(BlockMap.ExplanationRequested)
    def _explain_clicked_block(self) -> None:
        self.explain_cell(SHARE_COLUMN.id)

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
        elif pane.id == "verdict" and y + 1 in self._list_explained_rows():
            columns = summary.list_summary_columns(self.session, self.screen_width)
            self._explained_row = y + 1
            self._explained_column = sum(column.start <= x for column in columns) - 1
            self._open_value_dialog()
        elif term := find_term_at(event.text, x) or (
                find_line_label(pane.text.splitlines(), y) if pane.id == "detail" else None):
            self.open_dialog(ExplanationDialog(lambda: explain_term(term)))

    def _open_value_dialog(self) -> None:
        self.open_dialog(ExplanationDialog(self._explain_current_value, self._move_explanation))

    # -- the explained value ------------------------------------------------------------------------------------

    def _list_summary_rows(self) -> list[SummaryRow]:
        return summary.summary_rows(self.session, self.screen_width, self.size.height)

    def _list_explained_rows(self) -> list[int]:
        """Returns the rows that the arrow keys go through, from the top line to the row under the cursor."""
        if self.session.outline is None:
            return [_LIST_ROW]
        rows = self._list_summary_rows()
        return [0, *(index + 1 for index, row in enumerate(rows) if row.kind not in ("titles", "text", "stage")),
                _LIST_ROW]

    def _explain_current_value(self) -> Explanation:
        row, line = self.current_row, self._explained_row - 1
        if self._explained_row == 0 and (explanations := explain_header(self.session)):
            return explanations[min(self._explained_column, len(explanations) - 1)]
        if self._explained_row != _LIST_ROW and self._explained_row in self._list_explained_rows():
            columns = summary.list_summary_columns(self.session, self.screen_width)
            return explain_summary_cell(self.session, self._list_summary_rows()[line],
                                        columns[min(self._explained_column, len(columns) - 1)])
        if row is None:
            return Explanation("no row", (("", "The list has no row."),))
        columns_of_row = list_explained_columns(self.layer_list.row_values, row)
        column = self._explained_list_column if self._explained_list_column in columns_of_row else NAME_COLUMN
        return explain_cell(self.session, self.layer_list.row_values, row, column, self.disabled_reason)

    def _move_explanation(self, columns: int, rows: int) -> None:
        """Moves to another value. Up from the first row of the list is the summary table, and then the top line."""
        explained_rows, is_top = self._list_explained_rows(), self.layer_tree.cursor_index == 0
        if self._explained_row not in explained_rows:
            self._explained_row = _LIST_ROW
        if rows and self._explained_row == _LIST_ROW and (rows > 0 or self.is_heat_map_focused or not is_top):
            self.move_cursor(rows)
        elif rows:
            index = explained_rows.index(self._explained_row) + rows
            self._explained_row = explained_rows[max(0, min(index, len(explained_rows) - 1))]
        if columns and self._explained_row == _LIST_ROW:
            row = self.current_row
            listed = list_explained_columns(self.layer_list.row_values, row) if row is not None else [NAME_COLUMN]
            index = listed.index(self._explained_list_column) if self._explained_list_column in listed else 0
            self._explained_list_column = listed[(index + columns) % len(listed)]
        elif columns:
            count = len(explain_header(self.session)) if self._explained_row == 0 else len(
                summary.list_summary_columns(self.session, self.screen_width))
            self._explained_column = (min(self._explained_column, count - 1) + columns) % count

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
