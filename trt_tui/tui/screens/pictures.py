"""The page of pictures: one at a time, chosen by number; points by arrows, and enter takes what a point stands for."""

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.session.session import Session
from trt_tui.tui.keys import worded
from trt_tui.tui.screens.dialogs import CLOSE, QUIT, Answered
from trt_tui.tui.spans import Line
from trt_tui.tui.state.figures import Figures
from trt_tui.tui.state.picture import Drawn, Frame
from trt_tui.tui.state.pictures import PICTURES
from trt_tui.tui.widgets.lines import Lines

_END = 10 ** 6


class PicturesPage(Answered):
    """See the module's docstring; dismisses with the config of a point, or the name of a group to go to.

    Its parts keep their places whatever is shown, since a new layout would repaint all.

    Args:
        figures: Gives those of the rows.
        group: The one under the cursor.
        shown: Which picture is shown first.
    """

    BINDINGS = [CLOSE, QUIT, Binding("right,l", "move(1)", id="right"), Binding("left,h", "move(-1)", id="left"),
                Binding("enter", "take", id="open"), Binding("a", "axis", id="axis"),
                Binding("tab,n", "turn(1)", id="next_picture"),
                Binding("down,j", "scroll(1)", id="down"), Binding("up,k", "scroll(-1)", id="up"),
                Binding("pagedown", "scroll(10)", id="page_down"), Binding("pageup", "scroll(-10)", id="page_up"),
                Binding("home", f"scroll({-_END})", id="first"), Binding("end", f"scroll({_END})", id="last")]

    def __init__(self, session: Session, figures: Callable[[], Figures], group: Group | None, shown: int = 0) -> None:
        super().__init__()
        self.session, self.figures, self.group, self.shown = session, figures, group, shown
        self._place: int | None = None
        self._turn = self._top = 0
        self._drawn = Drawn([])

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box whole"):
            yield Lines(id="pictures")
            yield Lines(id="picture")
            yield Lines(id="picture-keys")

    def on_mount(self) -> None:
        """Draws once there is a size to draw in."""
        self.call_after_refresh(lambda: self.show(self.shown))  # a key may have chosen another one meanwhile

    def on_resize(self, event: events.Resize) -> None:
        """There is more or less room."""
        self.call_after_refresh(self.follow)

    @property
    def text(self) -> str:
        """What stands on it, without styles."""
        return self.query_one("#picture", Lines).text

    def show(self, shown: int) -> None:
        """Shows another picture, and asks for what it needs."""
        self.shown, self._place, self._turn, self._top = shown, None, 0, 0
        if (ask := PICTURES[shown].ask) is not None:
            ask(self.session)
        self.follow()

    def follow(self) -> None:
        """Draws it as things are now."""
        pane = self.query_one("#picture", Lines)
        width, height = pane.size.width, pane.size.height
        if width < 20:
            return
        frame = Frame(self.session, self.figures(), self.group, width, height, self._place, self._turn)
        self._drawn = drawn = PICTURES[self.shown].draw(frame)
        self._top = max(0, min(self._top, len(drawn.lines) - height))
        heads: Line = []
        for place, picture in enumerate(PICTURES):
            here = place == self.shown
            heads += [(f"{place + 1}", "key"), (f" {picture.label}" if not here else f"[{picture.label}]",
                                               "strong" if here else "dim"), (" ", "")]
        pane.lines = drawn.lines[self._top:self._top + height]
        below = len(drawn.lines) - self._top - height
        hints = ["1-8 picture"] + [f"{{left}}{{right}} point  {{open}} {drawn.enter}"] * bool(drawn.values)
        hints += ["{axis} axis"] * drawn.axes
        hints += [f"{{up}}{{down}} scroll, {max(0, below)} lines below"] * (len(drawn.lines) > height)
        hints += ["{close} close"]
        self.query_one("#pictures", Lines).lines = [heads]
        self.query_one("#picture-keys", Lines).lines = [[(worded("  ".join(hints)), "dim")]]

    def on_key(self, event: events.Key) -> None:
        """A number shows its picture."""
        if event.character and event.character in "123456789"[:len(PICTURES)]:
            event.stop()
            self.show(int(event.character) - 1)

    def wheel(self, by: int) -> None:
        """The wheel."""
        self.action_scroll(by)

    def action_scroll(self, by: int) -> None:
        """Shows lines further down or up."""
        self._top = max(0, self._top + by)
        self.follow()

    def action_turn(self, by: int) -> None:
        """Goes on to the next picture."""
        self.show((self.shown + by) % len(PICTURES))

    def action_move(self, by: int) -> None:
        """The cursor goes to another point."""
        if self._drawn.values:
            self._place = (self._drawn.place + by) % len(self._drawn.values)
            self.follow()

    def action_axis(self) -> None:
        """Takes the other axis."""
        if self._drawn.axes:
            self._turn, self._place = self._turn + 1, None
            self.follow()

    def action_take(self) -> None:
        """Takes what the point stands for."""
        if not self._drawn.values:
            return
        value = self._drawn.values[self._drawn.place]
        if isinstance(value, (PrecisionConfig, str)):
            self.dismiss(value)
        elif isinstance(value, int):
            self.session.judge_sample(value)
            self._place = self._drawn.place
            self.follow()
