"""The main screen: composes the panes, and passes keys and events on to the controllers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input

from trt_tui.jobs import events as ev
from trt_tui.session.session import Session
from trt_tui.tui.controllers import ACTIONS, CONTROLLERS
from trt_tui.tui.controllers.configs import Configs
from trt_tui.tui.controllers.controller import Controller
from trt_tui.tui.controllers.desk import Desk
from trt_tui.tui.controllers.filtering import Filtering
from trt_tui.tui.controllers.view import Looks
from trt_tui.tui.keys import worded
from trt_tui.tui.punctual import Punctual
from trt_tui.tui.screens.dialogs import Following
from trt_tui.tui.screens.jobs import JobsPage
from trt_tui.tui.screens.pictures import PicturesPage
from trt_tui.tui.state.order import Column
from trt_tui.tui.state.tree import View
from trt_tui.tui.walk import Walk
from trt_tui.tui.widgets.blocks import BlockMap
from trt_tui.tui.widgets.choices import ConfigList
from trt_tui.tui.widgets.field import Field
from trt_tui.tui.widgets.layer_tree import LayerTree
from trt_tui.tui.widgets.lines import WHEEL, Lines, Rule

C = TypeVar("C", bound=Controller)

UPDATE_S = 0.1
"""Events of a job are drawn at most this often."""

NOTICE_S = 8.0
"""What is said without a key having been pressed gives way to the hint after so long."""

TICK_S = 1.0
"""The seconds of what runs are counted this often."""


class MainScreen(Punctual, Screen[None]):
    """See the module's docstring.

    Args:
        session: What is shown and driven.
        leave: Ends the application.
        walk: The walk that a newcomer is taken on, if any.
    """

    AUTO_FOCUS = ""  # nothing has the focus where the detail has all the room; Textual would take a hidden line to type
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (60, "-narrow"), (120, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (15, "-short"), (34, "-tall")]

    @classmethod
    def with_keys_in_use(cls) -> type[MainScreen]:
        """Returns the class with the keys as its bindings: those of the user's file, which are known by now."""
        return type(cls.__name__, (cls,), {"BINDINGS": [
            Binding(key, f"do('{action.id}')", action.label, show=False) for action in ACTIONS for key in action.keys]})

    def __init__(self, session: Session, leave: Callable[[], None], walk: Walk | None = None) -> None:
        super().__init__()
        self.session = session
        self.desk = Desk(session, self, leave, walk)
        self.controllers = [kind(self.desk) for kind in CONTROLLERS]
        self.desk.offers = {offer.action.id: offer for one in self.controllers for offer in one.offers()}
        self._heeding: defaultdict[type[ev.Event], list[Callable[[Any], None]]] = defaultdict(list)
        for controller in self.controllers:
            for kind, heed in controller.heeds().items():
                self._heeding[kind].append(heed)
        self._noticed = ""
        self._update: Timer | None = None

    def _the(self, kind: type[C]) -> C:
        return next(one for one in self.controllers if isinstance(one, kind))

    def compose(self) -> ComposeResult:
        """The panes."""
        yield Lines(id="small")
        yield Lines(id="header")
        yield Lines(id="verdict")
        with Container(id="body"):
            with Vertical(id="left"):
                yield Rule(id="tree-rule")
                yield Field(placeholder="text  !text  /regex/  share>1%  prec:int8  op:conv", id="filter", compact=True)
                yield Lines(id="tree-header")
                yield LayerTree(id="tree")
                yield BlockMap(id="blocks")
            with Vertical(id="right"):
                yield Rule(id="detail-rule")
                yield Lines(id="detail")
                yield Rule(worded("{pane_configs} Configs"), worded("{mark} marks A/B, {diff} diff"), id="configs-rule")
                yield Lines(id="configs-header")
                yield ConfigList(id="configs")
        yield Rule(id="job-rule")
        yield Lines(id="status")
        yield Lines(id="footer")

    def on_mount(self) -> None:
        """Draws for the first time, and begins to count seconds."""
        self.desk.tree.focus()
        self.desk.draw()
        self.watch(self, "focused", self.desk.draw_status, init=False)  # the hint follows what has the keys
        self.set_interval(TICK_S, self._tick)

    # -- events of the session ----------------------------------------------------------------------------------

    def take(self, event: ev.Event) -> None:
        """Passes an event on to who asked for it, and draws soon. The session has taken it in already."""
        for heed in self._heeding[type(event)]:
            heed(event)
        if self.session.notice != self._noticed:
            self._noticed = self.session.notice
            if self.desk.status.message is None:
                said = self.desk.say(self.session.notice, "")
                self.set_timer(NOTICE_S, lambda: self.desk.unsay(said))
        if self._update is None:
            self._update = self.set_timer(UPDATE_S, self._updated)

    def _updated(self) -> None:
        self._update = None
        self.desk.draw(figures=self.desk.stale_figures)
        self._follow()

    def _follow(self) -> None:
        """The page that is open shows what has come since."""
        if isinstance(self.app.screen, (Following, JobsPage, PicturesPage)) and self.app.screen.is_mounted:
            self.app.screen.follow()

    def _tick(self) -> None:
        if self.session.asked:
            self.desk.draw_status()
            self._follow()

    def on_screen_resume(self) -> None:
        """Nothing lies over it any more."""
        self.desk.uncovered()

    # -- events of the panes ------------------------------------------------------------------------------------

    def action_do(self, action_id: str) -> None:
        """A key was pressed."""
        self.desk.perform(action_id)

    def action_see(self, view: str) -> None:
        """The name of a view was clicked."""
        self._the(Looks).see(View(view))

    def action_sort(self, column: str) -> None:
        """The title of a column was clicked."""
        self._the(Looks).sort_by(Column[column])

    def on_mouse_scroll_down(self) -> None:
        """The wheel, over what does not scroll itself."""
        self.desk.rows.scroll_relative(y=WHEEL, animate=False)

    def on_mouse_scroll_up(self) -> None:
        """The wheel."""
        self.desk.rows.scroll_relative(y=-WHEEL, animate=False)

    @on(LayerTree.Resized)
    def _tree_resized(self) -> None:
        self.desk.draw_tree_header()
        self.desk.draw_detail()  # under a dialog it was drawn for the room of before

    @on(LayerTree.Moved)
    @on(BlockMap.Moved)
    def _moved(self) -> None:
        self.desk.moved()

    @on(LayerTree.Opened)
    def _double_clicked(self) -> None:
        self.desk.perform("open")

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self._the(Filtering).changed(event.value)

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self._the(Filtering).submitted()

    @on(ConfigList.Taken)
    def _config_taken(self, event: ConfigList.Taken) -> None:
        self._the(Configs).take(event.config)

    def on_resize(self, event: events.Resize) -> None:
        """There is more or less room."""
        self.desk.draw_soon()
