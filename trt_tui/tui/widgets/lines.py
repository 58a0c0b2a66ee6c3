"""Widgets that draw lines of styled text, and repaint only lines that changed."""

from abc import abstractmethod
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from trt_tui.formatting import cell_width, escape_hidden_characters
from trt_tui.tui.spans import Line, clip_line, find_span, line_text, line_width, shorten_middle

SPAN_STYLES = (
    "dim",
    "strong",
    "bad",
    "good",
    "warn",
    "stale",
    "key",
    "rule",
    "plot",
    "cursor",
    "raised",
    "band0",
    "band1",
    "band2",
    "band3",
    "band4",
    "chip32",
    "chip16",
    "chip8",
    "chip4",
)

SPAN_COMPONENT_CLASSES = {f"span--{name}" for name in SPAN_STYLES}
"""Component classes of the span styles. They belong to the app, and all widgets that draw spans share them. Separate
classes for each widget would dominate the cost of style sheet look-ups at the start and for each new page."""


class SpanLinesWidget(Widget):
    """A base class of widgets that convert lines of spans to Textual strips.

    The style ``name`` of a span is the component class ``span--name`` of the style sheet.
    """

    _span_styles: dict[str, Style]

    def get_span_style(self, name: str) -> Style:
        """Returns the Rich style of a span by its style name.

        The name may consist of several names, separated by blanks: a later style replaces what it shares with an
        earlier one. A suffix with an action makes the span clickable, as the click markup of Textual does.
        """
        if name not in self._span_styles:
            style_names, _, action = name.partition("@")
            parts = [self.app.get_component_styles(f"span--{part}").partial_rich_style for part in style_names.split()]
            click = Style.from_meta({"@click": f"screen.{action}"} if action else {})
            self._span_styles[name] = Style.combine([*parts, click])
        return self._span_styles[name]

    def make_strip(self, line: Line, width: int, *overlays: str) -> Strip:
        """Returns a line as a strip of exactly ``width`` cells.

        A wider line is cut and ends with an ellipsis; a number is never cut in two.

        Args:
            overlays: Names of styles that apply to the whole strip, below the styles of the spans: the background of a
                span stays.
        """
        line = clip_line(line, width)
        base = self.rich_style
        if overlays:
            base += Style.combine([self.get_span_style(name) for name in overlays])
        segments = [Segment(escape_hidden_characters(text), base + self.get_span_style(name)) for text, name in line]
        return Strip(segments).adjust_cell_length(width, base)

    def notify_style_update(self) -> None:
        """Clears the cached styles after a change of theme."""
        self._span_styles = {}
        super().notify_style_update()


class LinePane(ScrollView, SpanLinesWidget, can_focus=True, inherit_bindings=False):
    """A base class of panes with a cursor that scroll lines. Only visible lines are built, and drawn if they changed."""

    class CursorMoved(Message):
        """A message that the cursor of the pane moved."""

    class ExplanationRequested(Message):
        """A message that the user asked for an explanation of the value under the cursor in a column."""

        def __init__(self, column_id: str) -> None:
            super().__init__()
            self.column_id = column_id

    def __init__(self, *, id: str | None = None) -> None:
        self._span_styles = {}
        super().__init__(id=id)
        self._drawn_lines: dict[int, Line] = {}

    @abstractmethod
    def build_line(self, index: int) -> Line:
        """Returns a line of the pane; an empty line below the end."""

    def get_line(self, index: int) -> Line:
        """Returns a line as it is drawn."""
        if index not in self._drawn_lines:
            self._drawn_lines[index] = self.build_line(index)
        return self._drawn_lines[index]

    def draw_changed_lines(self, line_count: int) -> None:
        """Builds the visible lines of new contents, and repaints those that differ from the drawn ones."""
        size = Size(self.size.width, line_count)
        if size != self.virtual_size:
            self.virtual_size = size
        old_lines, self._drawn_lines = self._drawn_lines, {}
        top = self.scroll_offset.y
        for index in range(top, top + self.size.height):
            if old_lines.get(index) is None or old_lines[index] != self.get_line(index):
                self.refresh(Region(0, index - top, self.size.width, 1))

    def redraw_line(self, index: int) -> None:
        """Builds a line again, and repaints it if it is visible."""
        self._drawn_lines.pop(index, None)
        if 0 <= (y := index - self.scroll_offset.y) < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def scroll_to_line(self, index: int) -> None:
        """Scrolls as little as is necessary to make a line visible."""
        height, top = self.size.height, self.scroll_offset.y
        if height and not top <= index < top + height:
            self.scroll_to(y=index if index < top else index - height + 1, animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        return self.make_strip(self.get_line(y + self.scroll_offset.y), self.size.width)

    def notify_style_update(self) -> None:
        """Builds all lines again after a change of theme."""
        super().notify_style_update()
        self._drawn_lines = {}


RIGHT_BUTTON = 3
"""The mouse button that asks for an explanation, as Textual numbers it. The left button selects, sorts and opens."""

WHEEL_LINES = 3
"""The number of lines that one turn of the mouse wheel scrolls."""


class Lines(SpanLinesWidget):
    """A block of styled lines that scrolls with the mouse wheel. New values of ``lines`` repaint only the lines that
    differ.

    Attributes:
        top_line: The number of lines above the first visible line.
    """

    class ExplanationRequested(Message):
        """A message that the user asked for an explanation of the text at a cell.

        Attributes:
            pane: The clicked block of lines.
            text: The line as it is drawn.
            x: The cell in the line.
            y: The index of the line in the block.
        """

        def __init__(self, pane: "Lines", text: str, x: int, y: int) -> None:
            super().__init__()
            self.pane, self.text, self.x, self.y = pane, text, x, y

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None, classes: str | None = None) -> None:
        self._span_styles = {}
        self._lines: list[Line] = list(lines)
        self.top_line = 0
        super().__init__(id=id, classes=classes)

    @property
    def lines(self) -> list[Line]:
        """All lines of the block, including the lines that have no room."""
        return self._lines

    @lines.setter
    def lines(self, lines: Sequence[Line]) -> None:
        old_lines, self._lines = self._lines, list(lines)
        if self.top_line:
            self.scroll_lines(0)
        for y in range(max(len(old_lines), len(self._lines))):
            old_line = old_lines[y] if y < len(old_lines) else None
            if old_line != (self._lines[y] if y < len(self._lines) else None):
                self.refresh(Region(0, y - self.top_line, self.size.width, 1))

    def scroll_lines(self, line_count: int) -> bool:
        """Scrolls by a number of lines, up if negative, and returns True if the visible part changed."""
        old_top, self.top_line = (
            self.top_line,
            max(0, min(self.top_line + line_count, len(self._lines) - self.size.height)),
        )
        if self.top_line != old_top:
            self.refresh()
        return self.top_line != old_top

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scrolls down. At the end of the block, the event goes on to the surrounding widgets."""
        if self.scroll_lines(WHEEL_LINES):
            event.stop()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if self.scroll_lines(-WHEEL_LINES):
            event.stop()

    @property
    def text(self) -> str:
        """The text of all lines, without styles."""
        return "\n".join(line_text(line).rstrip() for line in self._lines)

    def get_drawn_line(self, y: int) -> Line:
        """Returns the line at a vertical position of the widget; an empty line below the end."""
        y += self.top_line
        return self._lines[y] if y < len(self._lines) else []

    def render_line(self, y: int) -> Strip:
        return self.make_strip(self.get_drawn_line(y), self.size.width)

    def on_click(self, event: events.Click) -> None:
        """Asks for an explanation of the clicked text; a left click on a clickable span is left to Textual."""
        if event.button == RIGHT_BUTTON or "@click" not in event.style.meta:
            event.prevent_default().stop()
            line = self.get_drawn_line(event.y)
            if find_span(line, event.x) is not None:
                self.post_message(self.ExplanationRequested(self, line_text(line), event.x, event.y + self.top_line))


class TitleRule(Lines):
    """A horizontal rule with a title at the left end and a text at the right end: the first span of its line, and all
    others."""

    def get_drawn_line(self, y: int) -> Line:
        """Returns the line with the title, the rule and the right text.

        The right text is omitted if it does not fit. A title without enough room is shortened in its middle.
        """
        width = self.size.width
        (title, style), *right = super().get_drawn_line(y) or [("", "")]
        end = [(" ", "dim"), *right, (" ", "dim"), ("─", "rule")] if any(text for text, _ in right) else []
        room = width - line_width(end)
        if room < cell_width(escape_hidden_characters(title)) + 4:
            end, room = [], width
        start = [("─", "rule"), (f"{shorten_middle(title, room - 3)} ", style)] if title else []
        return [*start, ("─" * max(0, room - line_width(start)), "rule"), *end]
