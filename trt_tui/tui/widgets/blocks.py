"""Roles × blocks as a heat map, for networks that repeat."""

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from trt_tui.core.network.blocks import Blocks
from trt_tui.tui.spans import Line, fitted, width_of
from trt_tui.tui.state.columns import legend
from trt_tui.tui.state.figures import RAISED, Figures, block_cell, block_note
from trt_tui.tui.widgets.lines import Styled
from trt_tui.words import right, visible


class BlockMap(ScrollView, Styled, can_focus=True, inherit_bindings=False):
    """The heat map with a cursor on a cell, or on a role's label (column -1)."""

    class Moved(Message):
        """The cursor moved to another cell."""

    def __init__(self, *, id: str | None = None) -> None:
        self._span_styles = {}
        super().__init__(id=id)
        self.blocks: Blocks | None = None
        self._figures: Figures | None = None
        self.role = 0
        self.column = -1
        self._first = 0
        self._drawn: dict[int, Line] = {}
        self._notes: dict[int, str] = {}

    def show(self, blocks: Blocks | None, figures: Figures) -> None:
        """Shows a network's blocks; lines that stay the same are not repainted."""
        if blocks is not self.blocks or self._figures is None or figures.config != self._figures.config:
            self._notes = {}
        self.blocks, self._figures = blocks, figures
        size = Size(self.size.width, len(blocks.roles) + 2 if blocks else 1)
        if size != self.virtual_size:
            self.virtual_size = size
        before, self._drawn = self._drawn, {}
        top = self.scroll_offset.y
        for y in range(self.size.height):
            if self._drawn_line(top + y) != before.get(top + y):
                self.refresh(Region(0, y, self.size.width, 1))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups under the cursor: one cell's, or the whole role's."""
        if self.blocks is None:
            return ()
        cells = self.blocks.cells[self.role]
        if self.column < 0:
            return tuple(name for cell in cells for name in cell)
        return cells[self.column]

    def point_at(self, group: str) -> None:
        """Puts the cursor on the cell that a group lies in, if it lies in one."""
        for role, cells in enumerate(self.blocks.cells if self.blocks is not None else ()):
            for column, names in enumerate(cells):
                if group in names:
                    self.move(role - self.role, column - self.column)
                    return

    def move(self, down: int = 0, right: int = 0) -> None:
        """Moves the cursor."""
        if self.blocks is None:
            return
        role = max(0, min(self.role + down, len(self.blocks.roles) - 1))
        column = max(-1, min(self.column + right, len(self.blocks.columns) - 1))
        if (role, column) == (self.role, self.column):
            return
        first = max(0, min(max(self._first, column - self._fitting + 1), max(0, column)))
        changed = (self.role, role) if first == self._first else range(-1, len(self.blocks.roles))
        for one in changed:
            self._drawn.pop(one + 1, None)
            self.refresh(Region(0, one + 1 - self.scroll_offset.y, self.size.width, 1))
        self.role, self.column, self._first = role, column, first
        self._keep_cursor_visible()
        self.post_message(self.Moved())

    def _keep_cursor_visible(self) -> None:
        line, height, top = self.role + 1, self.size.height, self.scroll_offset.y
        if self.role == 0 and top:
            self.scroll_to(y=0, animate=False, force=True)
        elif line < top:
            self.scroll_to(y=line, animate=False, force=True)
        elif height and line >= top + height:
            self.scroll_to(y=line - height + 1, animate=False, force=True)

    @property
    def _label_width(self) -> int:
        roles = self.blocks.roles if self.blocks is not None else ()
        return min(20, max((width_of([(role, "")]) for role in roles), default=0))

    @property
    def _cell_width(self) -> int:
        columns = self.blocks.columns if self.blocks is not None else ()
        widest = max((len(column) for column in columns), default=1)
        roomy = self._room // max(1, len(columns))
        return max(widest + 1, 3, min(5, roomy))

    @property
    def _room(self) -> int:
        return max(3, self.size.width - self._label_width - 18)

    @property
    def _fitting(self) -> int:
        """How many blocks fit beside each other."""
        return max(1, self._room // self._cell_width)

    def _drawn_line(self, y: int) -> Line:
        if y not in self._drawn:
            self._drawn[y] = self._line(y)
        return self._drawn[y]

    def text_of(self, y: int) -> str:
        """A line as it is drawn, without styles."""
        return "".join(visible(text) for text, _ in self._line(y)).rstrip()

    def _line(self, y: int) -> Line:
        if self.blocks is None or self._figures is None:
            return [(" This network does not repeat: no scope occurs three times or more.", "dim")] if y == 0 else []
        label, cell = self._label_width, self._cell_width
        shown = slice(self._first, self._first + self._fitting)
        before, after = self._first > 0, shown.stop < len(self.blocks.columns)
        if y == 0:
            titles = "".join(right(name, cell) for name in self.blocks.columns[shown])
            return [(" " * (label + 2), ""), (f"{'‹' if before else ' '}{titles}{'  ›' if after else ''}", "dim")]
        role = y - 1
        if role == len(self.blocks.roles):
            return [(f"  {legend(self._figures.measure)}", "dim")]
        if role > len(self.blocks.roles):
            return []
        here = role == self.role and self.has_focus
        on_label = here and self.column < 0
        line: Line = [(">" if here else " ", "strong"), (" ", ""),
                      (fitted(self.blocks.roles[role], label), "cursor" if on_label else ""), (" ", "")]
        for column, names in enumerate(self.blocks.cells[role][shown], self._first):
            glyph, style = block_cell(self._figures, names)
            picked = here and column == self.column
            up = not self._figures.raised.isdisjoint(names)
            text = f"{'[' if picked else ' '}{glyph}{RAISED if up else ']' if picked else ' '}"
            line.append((text.rjust(cell + 1)[-cell:] if cell < 3 else " " * (cell - 3) + text, style))
        if role not in self._notes:
            self._notes[role] = block_note(self._figures, [name for names in self.blocks.cells[role] for name in names])
        line.append((f"   {self._notes[role]}", "dim"))
        return line

    def render_line(self, y: int) -> Strip:
        """One line as it is drawn."""
        return self.strip_of(self._drawn_line(y + self.scroll_offset.y), self.size.width)

    def on_focus(self) -> None:
        """The cursor shows."""
        self._drawn = {}
        self.refresh()

    def on_blur(self) -> None:
        """The cursor hides."""
        self._drawn = {}
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """The widget was resized."""
        self._drawn = {}
        if self.blocks is not None:
            self.virtual_size = Size(self.size.width, len(self.blocks.roles) + 2)

    def on_click(self, event: events.Click) -> None:
        """A click selects a row."""
        if self.blocks is None:
            return
        role = event.y + self.scroll_offset.y - 1
        if 0 <= role < len(self.blocks.roles):
            column = self._first + (event.x - self._label_width - 3) // self._cell_width
            column = -1 if event.x < self._label_width + 3 else column
            self.move(role - self.role, min(column, len(self.blocks.columns) - 1) - self.column)
