"""The page of charts, which shows one chart at a time.

A number key selects a chart. The arrow keys select a sample of the chart, and enter measures that sample.
"""

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical

from trt_tui.core.network.layers import FusionGroup
from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import OverlayScreen, fit_key_hints
from trt_tui.tui.state.charts import CHARTS, ChartFrame, DrawnChart, chart_title_line
from trt_tui.tui.state.row_values import RowValues
from trt_tui.tui.widgets.inputs import bind_keys
from trt_tui.tui.widgets.lines import Lines

_MAX_SCROLL_LINES = 10 ** 6


class ChartsPage(OverlayScreen):
    """A page that shows one chart at a time.

    The widgets of the page keep their places for all charts, because a new layout would repaint the whole page.

    Args:
        get_row_values: Returns the current values of the rows.
        group: The fusion group under the cursor of the main screen.
        chart_index: The index of the first displayed chart.
    """

    BINDINGS = bind_keys(quit="close", right="move(1)", left="move(-1)", open="take",
                         next_picture="turn(1)", down="scroll(1)", up="scroll(-1)", page_down="scroll(10)",
                         page_up="scroll(-10)", first=f"scroll({-_MAX_SCROLL_LINES})",
                         last=f"scroll({_MAX_SCROLL_LINES})")

    def __init__(self, session: Session, get_row_values: Callable[[], RowValues], group: FusionGroup | None,
                 chart_index: int = 0) -> None:
        super().__init__()
        self.session, self.get_row_values, self.group, self.chart_index = session, get_row_values, group, chart_index
        self._cursor_index: int | None = None
        self._top_line = 0
        self._drawn_chart = DrawnChart([])

    def compose(self) -> ComposeResult:
        with Vertical(classes="box whole"):
            yield Lines(id="pictures")
            yield Lines(id="picture")
            yield Lines(id="picture-keys")

    def on_mount(self) -> None:
        self.show_chart(self.chart_index)

    @property
    def text(self) -> str:
        """The text of the displayed chart, without styles."""
        return self.query_one("#picture", Lines).text

    def show_chart(self, chart_index: int) -> None:
        """Shows another chart, and requests the data that the chart needs."""
        self.chart_index, self._cursor_index, self._top_line = chart_index, None, 0
        if (request_data := CHARTS[chart_index].request_data) is not None:
            request_data(self.session)
        self.update_lines()

    def update_lines(self) -> None:
        """Draws the chart with the newest values, its list of titles and its key hints."""
        pane = self.query_one("#picture", Lines)
        width, height = pane.size.width, pane.size.height
        if width < 20:
            return
        frame = ChartFrame(self.session, self.get_row_values(), self.group, width, height, self._cursor_index)
        self._drawn_chart = chart = CHARTS[self.chart_index].draw(frame)
        self._top_line = max(0, min(self._top_line, len(chart.lines) - height))
        pane.lines = chart.lines[self._top_line:self._top_line + height]
        below = len(chart.lines) - self._top_line - height
        hints = [f"1-{len(CHARTS)} chart"]
        hints += ["{left}{right} sample  {open} measures it alone"] * bool(chart.samples)
        hints += [f"{{up}}{{down}} scroll, {max(0, below)} lines below"] * (len(chart.lines) > height)
        hints += ["{close} close"]
        self.query_one("#pictures", Lines).lines = [chart_title_line(frame, self.chart_index, width)]
        self.query_one("#picture-keys", Lines).lines = [[(fit_key_hints("  ".join(hints), width - 2).plain, "dim")]]

    def on_key(self, event: events.Key) -> None:
        """Shows the chart whose number was typed."""
        if event.character and event.character in "123456789"[:len(CHARTS)]:
            event.stop()
            self.show_chart(int(event.character) - 1)

    def scroll_by_wheel(self, line_count: int) -> None:
        self.action_scroll(line_count)

    def action_scroll(self, line_count: int) -> None:
        """Scrolls the chart down by some lines; negative counts scroll up."""
        self._top_line = max(0, self._top_line + line_count)
        self.update_lines()

    def action_turn(self, step: int) -> None:
        """Shows the next chart (step 1) or the previous chart (step -1)."""
        self.show_chart((self.chart_index + step) % len(CHARTS))

    def action_move(self, step: int) -> None:
        """Moves the cursor of the chart to the next or previous sample."""
        if self._drawn_chart.samples:
            self._cursor_index = (self._drawn_chart.cursor + step) % len(self._drawn_chart.samples)
            self.update_lines()

    def action_take(self) -> None:
        """Requests a measurement of the selected sample alone."""
        if self._drawn_chart.samples:
            self._cursor_index = self._drawn_chart.cursor
            self.session.request_single_sample(self._drawn_chart.samples[self._cursor_index])
            self.update_lines()
