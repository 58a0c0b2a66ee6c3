"""The widget of the layer list. It draws only visible lines, and repaints only lines that changed."""

from collections.abc import Sequence

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from trt_tui.formatting import cell_width
from trt_tui.tui.spans import Line, shorten_distinctly
from trt_tui.tui.state.columns import (
    ColumnWidths,
    build_row_cells,
    find_column_at,
    fit_columns,
    layer_row_line,
    row_name_width,
)
from trt_tui.tui.state.row_values import RowValues
from trt_tui.tui.state.tree import SmallSharesRow, VisibleRow
from trt_tui.tui.widgets.lines import RIGHT_BUTTON, LinePane


class LayerTree(LinePane):
    """A scrollable list of the rows of a `TreeModel`, with a cursor.

    `show_rows` sets the rows and their values. The cursor stays on the row with the same key.
    """

    class Resized(Message):
        """A message that the room for rows changed, for example because a scrollbar appeared."""

    class Opened(Message):
        """A message that the row under the cursor was double-clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: list[VisibleRow] = []
        self.cursor_index = 0
        self._row_values: RowValues | None = None
        self._shows_full_names = False
        self._placeholder_lines: list[Line] = []
        self._drawn_width = 0
        self._short_names: dict[int, dict[str, str]] = {}

    # -- contents -----------------------------------------------------------------------------------------------

    def show_rows(self, rows: Sequence[VisibleRow], row_values: RowValues | None, full_names: bool = False,
                  cursor_key: str | None = None) -> None:
        """Shows rows with their values, and repaints the lines that changed.

        Args:
            cursor_key: The key of the row that gets the cursor. None keeps the cursor on its row, or on its line if the
                row is gone.
        """
        key = cursor_key if cursor_key is not None else (self.current_row.key if self.current_row else None)
        is_same = rows is self.rows
        if not is_same or full_names != self._shows_full_names or row_values is None or self._row_values is None or (
                row_values.has_engines != self._row_values.has_engines):
            self._short_names = {}
        self.rows = rows if isinstance(rows, list) else list(rows)
        self._shows_full_names = full_names
        self._row_values = row_values
        if not is_same or cursor_key is not None:
            cursor_index = next((index for index, row in enumerate(self.rows) if row.key == key), None)
            last_index = max(0, len(self.rows) - 1)
            self.cursor_index = cursor_index if cursor_index is not None else min(self.cursor_index, last_index)
        self.draw_changed_lines(len(self.rows))
        self.scroll_to_line(self.cursor_index)

    def show_placeholder(self, lines: Sequence[Line]) -> None:
        """Shows lines in place of rows, which explain why there are no rows and which step comes next."""
        self._placeholder_lines = list(lines)
        self.rows, self._drawn_lines, self.cursor_index = [], {}, 0
        self.virtual_size = Size(self.size.width, 0)
        self.refresh()

    @property
    def current_row(self) -> VisibleRow | None:
        """The row under the cursor; None if there are no rows."""
        return self.rows[self.cursor_index] if self.cursor_index < len(self.rows) else None

    # -- the cursor ---------------------------------------------------------------------------------------------

    def move_cursor_to(self, index: int) -> None:
        """Moves the cursor to a line, and repaints the old and the new line."""
        index = max(0, min(index, len(self.rows) - 1))
        if index == self.cursor_index or not self.rows:
            return
        old_index, self.cursor_index = self.cursor_index, index
        for line in (old_index, index):
            self.redraw_line(line)
        self.scroll_to_line(index)
        self.post_message(self.Moved())

    def move_cursor(self, steps: int) -> None:
        self.move_cursor_to(self.cursor_index + steps)

    @property
    def row_width(self) -> int:
        """The width of a row in cells. The scrollbar is not part of the width: it would cover the last mark of a row.
        """
        return self.scrollable_content_region.width

    @property
    def page_size(self) -> int:
        """The number of rows that the page-up and page-down keys move the cursor by."""
        return max(1, self.size.height - 1)

    # -- drawing ------------------------------------------------------------------------------------------------

    def _find_short_name(self, visible_row: VisibleRow, column_widths: ColumnWidths) -> str | None:
        """Returns a shortened row name that differs from all other displayed names; None if the full name fits."""
        if self._row_values is None:
            return None
        model, room = self._row_values.model, row_name_width(visible_row.depth, column_widths)
        if cell_width(model.get_row_name(visible_row, self._shows_full_names)) <= room:
            return None
        if room not in self._short_names:
            names = (model.get_row_name(row, self._shows_full_names)
                     for row in self.rows
                     if row_name_width(row.depth, column_widths) == room and not isinstance(row.row, SmallSharesRow))
            self._short_names[room] = shorten_distinctly(names, room)
        return self._short_names[room].get(model.get_row_name(visible_row, self._shows_full_names))

    def get_line(self, index: int) -> Line:
        if self._drawn_width != self.row_width:  # the scrollbar appeared or disappeared
            self._drawn_lines, self._drawn_width, self._short_names = {}, self.row_width, {}
        return super().get_line(index)

    def build_line(self, index: int) -> Line:
        """Implements `LinePane.build_line`."""
        if not 0 <= index < len(self.rows) or self._row_values is None:
            return []
        row, columns = self.rows[index], fit_columns(self.row_width, self._row_values.has_engines)
        cells = build_row_cells(self._row_values, row, self._shows_full_names)
        return layer_row_line(cells, row.depth, columns, index == self.cursor_index,
                              self._find_short_name(row, columns))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if not self.rows:
            return self.make_strip(self._placeholder_lines[y] if y < len(self._placeholder_lines) else [], width)
        index = y + self.scroll_offset.y
        overlays = ("cursor",) if index == self.cursor_index else ()
        return self.make_strip(self.get_line(index), width, *overlays)

    def on_resize(self, event: events.Resize) -> None:
        self._drawn_lines = {}
        self.virtual_size = Size(self.size.width, len(self.rows))
        self.scroll_to_line(self.cursor_index)
        self.post_message(self.Resized())

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the clicked row. A double click also opens or closes the row, and a right click explains
        the clicked value."""
        if not self.rows:
            return
        index = event.y + self.scroll_offset.y
        if index < len(self.rows):
            self.move_cursor_to(index)
            if event.button == RIGHT_BUTTON and self._row_values is not None:
                columns = fit_columns(self.row_width, self._row_values.has_engines)
                self.post_message(self.ExplanationRequested(find_column_at(columns, event.x).id))
            elif event.chain == 2:
                self.post_message(self.Opened())
