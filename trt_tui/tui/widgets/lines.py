"""Widgets that draw lines of styled text, and repaint only the lines that changed."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from trt_tui.tui.spans import Line, clip, padded, width_of
from trt_tui.words import cells, visible

STYLES = ("dim", "strong", "bad", "good", "warn", "stale", "key", "rule", "plot", "cursor",
          "band0", "band1", "band2", "band3", "band4")

COMPONENTS = {f"span--{name}" for name in STYLES}
"""Component classes of the app, which all that draw spans ask: were they of each widget, they would be most of what the
style sheet is asked for at the start and whenever a page opens."""


class Styled(Widget):
    """Turns a line into a strip, with the component classes ``span--<style>`` of the style sheet."""

    _span_styles: dict[str, Style]

    def span_style(self, name: str) -> Style:
        """What a style of a span looks like."""
        if not (look := name.partition("@")[0]):
            return Style.null()
        if look not in self._span_styles:
            self._span_styles[look] = self.app.get_component_styles(f"span--{look}").partial_rich_style
        return self._span_styles[look]

    def strip_of(self, line: Line, width: int, *overlays: str) -> Strip:
        """The line as a strip of exactly ``width`` cells; ``overlays`` are styles laid over all of it.

        A line that is wider ends in an ellipsis, before which no number is cut.
        """
        line = clip(line, width)
        base = self.rich_style
        over = Style.combine([self.span_style(name) for name in overlays]) if overlays else None
        segments = []
        for text, name in line:
            style = base + self.span_style(name)
            segments.append(Segment(visible(text), style + over if over else style))
        blank = base + over if over else base
        return Strip(segments).adjust_cell_length(width, blank)

    def notify_style_update(self) -> None:
        """The theme changed."""
        self._span_styles = {}
        super().notify_style_update()


WHEEL = 3
"""Lines that a turn of the wheel goes."""


class Lines(Styled):
    """A block of lines; setting ``lines`` repaints those that differ. The wheel shows those that have no room.

    Attributes:
        top: How many lines are above the first one that is shown.
    """

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None, classes: str | None = None) -> None:
        self._span_styles = {}
        self._lines: list[Line] = list(lines)
        self.top = 0
        super().__init__(id=id, classes=classes)

    @property
    def lines(self) -> list[Line]:
        """The lines that are shown."""
        return self._lines

    @lines.setter
    def lines(self, lines: Sequence[Line]) -> None:
        old, self._lines = self._lines, list(lines)
        if self.top:
            self.turn(0)
        for y in range(max(len(old), len(self._lines))):
            before = old[y] if y < len(old) else None
            if before != (self._lines[y] if y < len(self._lines) else None):
                self.refresh(Region(0, y - self.top, self.size.width, 1))

    def turn(self, by: int) -> bool:
        """Shows lines further down or up; whether there were any."""
        before, self.top = self.top, max(0, min(self.top + by, len(self._lines) - self.size.height))
        if self.top != before:
            self.refresh()
        return self.top != before

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel; where nothing is below, what is around it may scroll."""
        if self.turn(WHEEL):
            event.stop()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        if self.turn(-WHEEL):
            event.stop()

    @property
    def text(self) -> str:
        """The text shown, without styles."""
        return "\n".join("".join(visible(text) for text, _ in line).rstrip() for line in self._lines)

    def line_at(self, y: int) -> Line:
        """The line that is drawn at a height."""
        y += self.top
        return self._lines[y] if y < len(self._lines) else []

    def render_line(self, y: int) -> Strip:
        """One line as it is drawn."""
        return self.strip_of(self.line_at(y), self.size.width)

    async def on_click(self, event: events.Click) -> None:
        """Does the action of the text that is clicked."""
        end = 0
        for text, name in self.line_at(event.y):
            end += cells(visible(text))
            if event.x < end:
                if action := name.partition("@")[2]:
                    await self.run_action(f"screen.{action}")
                return


class Rule(Lines):
    """A horizontal rule with a title at the left and words at the right."""

    def __init__(self, title: str = "", right: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._right: Line = [(right, "dim")] if right else []

    def set(self, title: str, right: str | Line = "") -> None:
        """Changes its texts."""
        words: Line = right if not isinstance(right, str) else [(right, "dim")] if right else []
        if (title, words) != (self._title, self._right):
            self._title, self._right = title, words
            self.refresh()

    @property
    def text(self) -> str:
        """Its text, without styles."""
        return f"{self._title} {''.join(text for text, _ in self._right)}".strip()

    def line_at(self, y: int) -> Line:
        """The title, the rule and the words."""
        width = self.size.width
        title, right = self._title, self._right
        end = [(" ", "dim"), *right, (" ", "dim"), ("─", "rule")] if right else []
        start = [("─", "rule"), (f"{title} ", "strong")] if title else []
        room = width - width_of(end)
        if room < width_of(start) + 2:
            end, room = [], width
        start = padded(start, min(room, width_of(start)))
        fill = room - width_of(start)
        return [*start, ("─" * max(0, fill), "rule"), *end]
