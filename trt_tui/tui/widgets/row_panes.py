"""The panes of rows: the layer list and the heat map of repeated blocks. They draw only visible lines."""

from collections.abc import Sequence
from itertools import chain

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from trt_tui.core.network.layer_tree import BlockMatrix
from trt_tui.formatting import cell_width
from trt_tui.tui.spans import Line, Span, clip_line, shorten_distinctly
from trt_tui.tui.state.columns import (
    SHARE_COLUMN,
    ColumnWidths,
    build_row_cells,
    find_column_at,
    fit_columns,
    layer_row_line,
    list_row_signs,
    row_name_width,
)
from trt_tui.tui.state.marks import RAISED_MARK
from trt_tui.tui.state.rows import (
    RowValues,
    SmallSharesRow,
    VisibleRow,
    band_legend_text,
    block_cell_span,
    block_cell_text,
    role_precisions_text,
)
from trt_tui.tui.table import Column, draw_row
from trt_tui.tui.widgets.lines import RIGHT_BUTTON, LinePane

_NOTE_CELLS, _MIN_BLOCK_CELLS = 18, 3
"""The width of the precisions behind the blocks, and the minimum width of a block."""
BLOCK_TITLE = "block"
"""The title before the numbers of the columns."""


class BlockMap(LinePane):
    """A heat map widget with a cursor on a cell, or on the label of a role (column -1)."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.blocks = BlockMatrix((), (), ())
        self._row_values: RowValues | None = None
        self.role_index = 0
        self.column_index = -1
        self._first_column = 0

    def show_blocks(self, row_values: RowValues) -> None:
        """Shows the blocks of a network, and repaints only the lines that changed."""
        self.blocks, self._row_values = row_values.model.blocks or self.blocks, row_values
        self.draw_changed_lines(self._line_count)

    @property
    def cursor_group_names(self) -> tuple[str, ...]:
        """The names of the fusion groups under the cursor: the groups of a cell, or of all cells of a role."""
        cells = self.blocks.cells[self.role_index]
        if self.column_index < 0:
            return tuple(chain.from_iterable(cells))
        return cells[self.column_index]

    def move_cursor_to_group(self, group_name: str) -> None:
        """Moves the cursor to the cell of a fusion group, if the group is in a block."""
        places = [
            (role, column)
            for role, cells in enumerate(self.blocks.cells)
            for column, names in enumerate(cells)
            if group_name in names
        ]
        for role, column in places:
            self.move_cursor(role - self.role_index, column - self.column_index)

    def move_cursor(self, down: int = 0, right: int = 0) -> None:
        """Moves the cursor by some roles and blocks, within the bounds of the heat map."""
        role = max(0, min(self.role_index + down, len(self.blocks.roles) - 1))
        column = max(-1, min(self.column_index + right, len(self.blocks.columns) - 1))
        if (role, column) == (self.role_index, self.column_index):
            return
        first_column = max(0, min(max(self._first_column, column - self._visible_column_count + 1), max(0, column)))
        changed = (self.role_index, role) if first_column == self._first_column else range(-1, len(self.blocks.roles))
        for role_row in changed:
            self.redraw_line(role_row + 1)
        self.role_index, self.column_index, self._first_column = role, column, first_column
        self.scroll_to_line(0 if role == 0 else role + 1)
        self.post_message(self.CursorMoved())

    @property
    def _label_width(self) -> int:
        room = self.size.width - _NOTE_CELLS - _MIN_BLOCK_CELLS * len(self.blocks.columns)
        return min(max(20, room), max(map(cell_width, self.blocks.roles), default=0))

    @property
    def _cell_width(self) -> int:
        widest = max(map(len, self.blocks.columns), default=1)
        roomy = self._blocks_width // max(1, len(self.blocks.columns))
        return max(widest + 1, _MIN_BLOCK_CELLS, min(5, roomy))

    @property
    def _blocks_width(self) -> int:
        return max(_MIN_BLOCK_CELLS, self.size.width - self._label_width - _NOTE_CELLS)

    @property
    def _visible_column_count(self) -> int:
        """The number of blocks that fit into the width."""
        return max(1, self._blocks_width // self._cell_width)

    @property
    def _line_count(self) -> int:
        """The number of lines: the header, the roles, the text of the cell and the legend."""
        return len(self.blocks.roles) + 3

    def build_line(self, index: int) -> Line:
        """Implements `LinePane.build_line`."""
        if self._row_values is None:
            return []
        role, shown = index - 1, slice(self._first_column, self._first_column + self._visible_column_count)
        if index == 0:
            titles = [(name, "dim") for name in self.blocks.columns[shown]]
            end = "  ›" if shown.stop < len(self.blocks.columns) else ""
            return self._draw_row(
                (("", ""), (BLOCK_TITLE, "dim"), ("‹" if self._first_column else "", "dim")),
                titles,
                f"{end}   precision",
            )
        if role == len(self.blocks.roles):
            return clip_line([(f"  {block_cell_text(self._row_values)}", "dim")], self.size.width)
        if role == len(self.blocks.roles) + 1:
            return [(f"  {band_legend_text(self._row_values.measure)}", "dim")]
        if role > len(self.blocks.roles):
            return []
        is_current_role = role == self.role_index and self.has_focus
        spans: Line = []
        for column, names in enumerate(self.blocks.cells[role][shown], self._first_column):
            glyph, style = block_cell_span(self._row_values, names)
            is_chosen = is_current_role and column == self.column_index
            end = "]" if is_chosen else " "
            end = end if self._row_values.raised_groups.isdisjoint(names) else RAISED_MARK
            spans.append((f"{'[' if is_chosen else ' '}{glyph}{end}", style))
        precisions_text = role_precisions_text(self._row_values, list(chain.from_iterable(self.blocks.cells[role])))
        label = self.blocks.roles[role], "cursor" if is_current_role and self.column_index < 0 else ""
        return self._draw_row(
            ((">" if is_current_role else "", "strong"), label, ("", "")), spans, f"   {precisions_text}"
        )

    def _draw_row(self, start: Sequence[Span], cells: Sequence[Span], note: str) -> Line:
        columns = [
            Column("", width=2),
            Column("", width=self._label_width),
            Column("", width=1),
            *[Column("", True, width=self._cell_width)] * len(cells),
            Column("", width=self.size.width),
        ]
        widths = {index: column.width for index, column in enumerate(columns)}
        return draw_row([*start, *cells, (note, "dim")], columns, widths, gap=0)

    def on_focus(self) -> None:
        """Redraws the heat map, because the cursor is visible only with the focus."""
        self._drawn_lines = {}
        self.refresh()

    on_blur = on_focus

    def on_resize(self, event: events.Resize) -> None:
        self._drawn_lines = {}
        self.virtual_size = Size(self.size.width, self._line_count)

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the clicked cell, or to the clicked label of a row. A right click also explains the cell."""
        role = event.y + self.scroll_offset.y - 1
        if 0 <= role < len(self.blocks.roles):
            column = self._first_column + (event.x - self._label_width - 3) // self._cell_width
            column = -1 if event.x < self._label_width + 3 else column
            self.move_cursor(role - self.role_index, min(column, len(self.blocks.columns) - 1) - self.column_index)
            if event.button == RIGHT_BUTTON:
                self.focus()
                self.post_message(self.ExplanationRequested(SHARE_COLUMN.id))


class LayerTree(LinePane):
    """A scrollable list of the rows of a `TreeModel`, with a cursor.

    `show_rows` sets the rows and their values. The cursor stays on the row with the same key.
    """

    class RowSpaceChanged(Message):
        """A message that the room for rows changed, for example because a scrollbar appeared."""

    class RowDoubleClicked(Message):
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

    def show_rows(
        self,
        rows: Sequence[VisibleRow],
        row_values: RowValues | None,
        full_names: bool = False,
        cursor_key: str | None = None,
    ) -> None:
        """Shows rows with their values, and repaints the lines that changed.

        Args:
            cursor_key: The key of the row that gets the cursor. None keeps the cursor on its row, or on its line if the
                row is gone.
        """
        key = cursor_key if cursor_key is not None else (self.current_row.key if self.current_row else None)
        is_same = rows is self.rows
        if (
            not is_same
            or full_names != self._shows_full_names
            or row_values is None
            or self._row_values is None
            or (row_values.has_engines != self._row_values.has_engines)
        ):
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

    @property
    def visible_signs(self) -> set[str]:
        """The glyphs before the names of the visible rows, and the marks behind their precisions."""
        top = self.scroll_offset.y
        return {
            sign
            for row in self.rows[top : top + self.size.height]
            if self._row_values is not None
            for sign in list_row_signs(self._row_values, row)
        }

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
        self.post_message(self.CursorMoved())

    def move_cursor(self, steps: int) -> None:
        self.move_cursor_to(self.cursor_index + steps)

    @property
    def row_width(self) -> int:
        """The width of a row in cells. The scrollbar is not part of the width: it would cover the last mark of a row."""
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
            names = (
                model.get_row_name(row, self._shows_full_names)
                for row in self.rows
                if row_name_width(row.depth, column_widths) == room and not isinstance(row.row, SmallSharesRow)
            )
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
        return layer_row_line(
            cells, row.depth, columns, index == self.cursor_index, self._find_short_name(row, columns)
        )

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
        self.post_message(self.RowSpaceChanged())

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
                self.post_message(self.RowDoubleClicked())
