"""The layer tree: draws only the lines that show, and repaints only those that a key changed."""

from collections.abc import Sequence

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from trt_tui.tui.spans import Line, shorten_apart
from trt_tui.tui.state.columns import Columns, name_room, row_line
from trt_tui.tui.state.figures import Figures
from trt_tui.tui.state.tree import Tail, VisibleRow
from trt_tui.tui.widgets.lines import Styled
from trt_tui.words import cells, visible


class LayerTree(ScrollView, Styled, can_focus=True, inherit_bindings=False):
    """Rows of a `TreeModel` with a cursor.

    The rows and their figures are given with `show`; the widget keeps the cursor on the row with the same key.
    """

    class Moved(Message):
        """The cursor moved to another row."""

    class Resized(Message):
        """The room for rows changed, if only because of the scrollbar."""

    class Opened(Message):
        """The row under the cursor was double-clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        self._span_styles = {}
        super().__init__(id=id)
        self.rows: list[VisibleRow] = []
        self.cursor = 0
        self._figures: Figures | None = None
        self._full = False
        self._empty: list[Line] = []
        self._drawn: dict[int, Line] = {}
        self._drawn_width = 0
        self._names: dict[int, dict[str, str]] = {}

    # -- contents -----------------------------------------------------------------------------------------------

    def show(self, rows: Sequence[VisibleRow], figures: Figures | None, full: bool = False,
             cursor_key: str | None = None) -> None:
        """Shows rows. The cursor goes to the row of ``cursor_key``, else stays on its row, else on its line."""
        key = cursor_key if cursor_key is not None else (self.current.key if self.current else None)
        same = rows is self.rows
        if not same or full != self._full or figures is None or self._figures is None or (
                figures.has_engines != self._figures.has_engines):
            self._names = {}
        self.rows = rows if isinstance(rows, list) else list(rows)
        self._full = full
        old_drawn, self._drawn = self._drawn, {}
        self._figures = figures
        if not same or cursor_key is not None:
            found = next((index for index, row in enumerate(self.rows) if row.key == key), None)
            self.cursor = found if found is not None else min(self.cursor, max(0, len(self.rows) - 1))
        size = Size(self.size.width, len(self.rows))
        if size != self.virtual_size:
            self.virtual_size = size
        top = self.scroll_offset.y
        for y in range(self.size.height):
            index = top + y
            if old_drawn.get(index) is None or old_drawn[index] != self._line(index):
                self.refresh(Region(0, y, self.size.width, 1))
        self._keep_cursor_visible()

    def show_empty(self, lines: Sequence[Line]) -> None:
        """Shows lines in place of rows: what is missing and what to do."""
        self._empty = list(lines)
        self.rows, self._drawn, self.cursor = [], {}, 0
        self.virtual_size = Size(self.size.width, 0)
        self.refresh()

    @property
    def current(self) -> VisibleRow | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def text_of(self, index: int) -> str:
        """A line as it is drawn, without styles."""
        return "".join(visible(text) for text, _ in self._line(index)).rstrip()

    # -- the cursor ---------------------------------------------------------------------------------------------

    def move_to(self, index: int) -> None:
        """Puts the cursor on a line; repaints the line it left and the one it is on."""
        index = max(0, min(index, len(self.rows) - 1))
        if index == self.cursor or not self.rows:
            return
        old, self.cursor = self.cursor, index
        for line in (old, index):
            self._drawn.pop(line, None)
            self._refresh_line(line)
        self._keep_cursor_visible()
        self.post_message(self.Moved())

    def move(self, steps: int) -> None:
        """Moves the cursor by some rows."""
        self.move_to(self.cursor + steps)

    @property
    def row_width(self) -> int:
        """The cells of a row: those that the scrollbar leaves, so that it covers no question mark of an outcome."""
        return self.scrollable_content_region.width

    @property
    def page(self) -> int:
        """How many rows a page has."""
        return max(1, self.size.height - 1)

    def _refresh_line(self, index: int) -> None:
        y = index - self.scroll_offset.y
        if 0 <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def _keep_cursor_visible(self) -> None:
        height, top = self.size.height, self.scroll_offset.y
        if not height:
            return
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)

    # -- drawing ------------------------------------------------------------------------------------------------

    def _short(self, line: VisibleRow, columns: Columns) -> str | None:
        """The name of a line as it is shown, unlike that of any other line of the list; None for the usual form."""
        if self._figures is None:
            return None
        model, room = self._figures.model, name_room(line.depth, columns)
        if cells(model.name_of(line, self._full)) <= room:
            return None
        if room not in self._names:
            names = (model.name_of(one, self._full) for one in self.rows if name_room(one.depth, columns) == room
                     and not isinstance(one.row, Tail))
            self._names[room] = shorten_apart(names, room)
        return self._names[room].get(model.name_of(line, self._full))

    def _line(self, index: int) -> Line:
        if self._drawn_width != self.row_width:  # the scrollbar came or went
            self._drawn, self._drawn_width, self._names = {}, self.row_width, {}
        if index not in self._drawn:
            if not 0 <= index < len(self.rows) or self._figures is None:
                self._drawn[index] = []
            else:
                row, columns = self.rows[index], Columns.fit(self.row_width, self._figures.has_engines)
                self._drawn[index] = row_line(self._figures.cells(row, self._full), row.depth, columns,
                                              index == self.cursor, self._short(row, columns))
        return self._drawn[index]

    def render_line(self, y: int) -> Strip:
        """One line as it is drawn."""
        width = self.size.width
        if not self.rows:
            return self.strip_of(self._empty[y] if y < len(self._empty) else [], width)
        index = y + self.scroll_offset.y
        line = self._line(index)
        return self.strip_of(line, width, "cursor") if index == self.cursor else self.strip_of(line, width)

    def notify_style_update(self) -> None:
        """The theme changed."""
        super().notify_style_update()
        self._drawn = {}

    def on_resize(self, event: events.Resize) -> None:
        """The widget was resized."""
        self._drawn = {}
        self.virtual_size = Size(self.size.width, len(self.rows))
        self._keep_cursor_visible()
        self.post_message(self.Resized())

    def on_click(self, event: events.Click) -> None:
        """A click selects a row."""
        if not self.rows:
            return
        index = event.y + self.scroll_offset.y
        if index < len(self.rows):
            self.move_to(index)
            if event.chain == 2:
                self.post_message(self.Opened())
