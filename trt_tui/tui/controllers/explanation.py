"""The explanation of what is on the screen, by a key and by clicks."""

from trt_tui.core.report.glossary import Term
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.screens.explanation import ExplanationDialog
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
)
from trt_tui.tui.state.summary import SummaryRow
from trt_tui.tui.widgets.lines import Lines

_LIST_ROW = -1
"""The row of the explained value if that is the row under the cursor. The rows above are counted from the top line of
the screen (0), which the lines of the summary table follow."""


class ExplanationController(Controller):
    """The controller of explanations: the position of the explained value, which the arrow keys move."""

    def __init__(self, presenter: Presenter) -> None:
        super().__init__(presenter)
        self._row, self._column = _LIST_ROW, 0
        self._list_column = SHARE_COLUMN

    @register_action(
        label="explain", help="Explain the value under the cursor: what it is and how it came about. A right click "
        "does so for any value, title or word", group="Look", disabled_reason=Controller.no_chosen_row_reason,
        footer=43)
    def explain(self) -> None:
        """Explains the value of the current row in the column that was explained last."""
        self._row = _LIST_ROW
        self._open_value_dialog()

    def explain_cell(self, column_id: str) -> None:
        """Explains the value of the current row in a column."""
        self._list_column = LAYER_COLUMNS_BY_ID[column_id]
        self.presenter.perform_action("explain")

    def explain_term(self, term: Term) -> None:
        self.open_dialog(ExplanationDialog(lambda: explain_term(term)))

    def explain_clicked_text(self, event: Lines.ExplanationRequested) -> None:
        """Explains the clicked value, column title or word."""
        presenter, pane, x, y = self.presenter, event.pane, event.x, event.y
        has_values = self.layer_list.has_row_values
        if pane.id == "tree-header" and has_values:
            column = find_column_at(fit_columns(presenter.layer_tree.row_width, self.layer_list.row_values.has_engines),
                                    x)
            self.open_dialog(ExplanationDialog(lambda: explain_column(self.layer_list.row_values, column)))
        elif pane.id == "verdict" and y + 1 in self._list_explained_rows():
            columns = summary.list_summary_columns(self.session, presenter.screen_width)
            self._row = y + 1
            self._column = next((index for index, column in enumerate(columns) if x < column.end), len(columns) - 1)
            self._open_value_dialog()
        elif term := find_term_at(event.text, x) or (
                find_line_label(pane.text.splitlines(), y) if pane.id == "detail" else None):
            self.explain_term(term)

    def _open_value_dialog(self) -> None:
        self.open_dialog(ExplanationDialog(self._explain_current_value, self._move))

    # -- the explained value ------------------------------------------------------------------------------------

    def _list_summary_rows(self) -> list[SummaryRow]:
        return summary.summary_rows(self.session, self.presenter.screen_width, self.presenter.screen.size.height)

    def _list_explained_rows(self) -> list[int]:
        """Returns the rows that the arrow keys go through, from the top line to the row under the cursor."""
        if self.session.outline is None:
            return [_LIST_ROW]
        rows = self._list_summary_rows()
        return [0, *(index + 1 for index, row in enumerate(rows) if row.kind not in ("titles", "text", "stage")),
                _LIST_ROW]

    def _explain_current_value(self) -> Explanation:
        row, line = self.presenter.current_row, self._row - 1
        if self._row == 0 and (explanations := explain_header(self.session)):
            return explanations[min(self._column, len(explanations) - 1)]
        if self._row != _LIST_ROW and self._row in self._list_explained_rows():
            columns = summary.list_summary_columns(self.session, self.presenter.screen_width)
            return explain_summary_cell(self.session, self._list_summary_rows()[line],
                                        columns[min(self._column, len(columns) - 1)])
        if row is None:
            return Explanation("no row", (("", "The list has no row."),))
        columns_of_row = list_explained_columns(self.layer_list.row_values, row)
        column = self._list_column if self._list_column in columns_of_row else NAME_COLUMN
        return explain_cell(self.session, self.layer_list.row_values, row, column,
                            lambda action: self.presenter.actions[action].disabled_reason())

    def _move(self, columns: int, rows: int) -> None:
        """Moves to another value. Up from the first row of the list is the summary table, and then the top line."""
        presenter, tree = self.presenter, self.presenter.layer_tree
        explained_rows = self._list_explained_rows()
        if self._row not in explained_rows:
            self._row = _LIST_ROW
        if rows and self._row == _LIST_ROW and (rows > 0 or presenter.is_heat_map_focused or tree.cursor_index > 0):
            presenter.freeze_row_order()
            if presenter.is_heat_map_focused:
                presenter.heat_map.move_cursor(down=rows)
            else:
                tree.move_cursor(rows)
        elif rows:
            index = explained_rows.index(self._row) + rows
            self._row = explained_rows[max(0, min(index, len(explained_rows) - 1))]
        if columns and self._row == _LIST_ROW:
            row = presenter.current_row
            listed = list_explained_columns(self.layer_list.row_values, row) if row is not None else [NAME_COLUMN]
            index = (listed.index(self._list_column) if self._list_column in listed else 0) + columns
            self._list_column = listed[index % len(listed)]
        elif columns:
            count = len(explain_header(self.session)) if self._row == 0 else len(
                summary.list_summary_columns(self.session, presenter.screen_width))
            self._column = (min(self._column, count - 1) + columns) % count
