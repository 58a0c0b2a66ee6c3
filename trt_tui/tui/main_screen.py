"""The main screen, which composes the panes and passes keys and events to the controllers."""

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
from trt_tui.tui.controllers import CONTROLLERS
from trt_tui.tui.controllers.configs import ConfigController
from trt_tui.tui.controllers.controller import Controller
from trt_tui.tui.controllers.explanation import ExplanationController
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.controllers.row_filter import FilterController
from trt_tui.tui.controllers.view import ViewController
from trt_tui.tui.keys import KEYS, REMOVED_KEYS, fill_in_keys, key_text
from trt_tui.tui.screens.charts import ChartsPage
from trt_tui.tui.screens.dialogs import LivePage
from trt_tui.tui.screens.jobs import JobsPage
from trt_tui.tui.screens.search_result import SearchResultPage
from trt_tui.tui.state.columns import LAYER_COLUMNS_BY_ID, SHARE_COLUMN
from trt_tui.tui.state.tree import View
from trt_tui.tui.timers import ReliableTimers
from trt_tui.tui.widgets.block_map import BlockMap
from trt_tui.tui.widgets.inputs import ConfigList, TextField
from trt_tui.tui.widgets.layer_tree import LayerTree
from trt_tui.tui.widgets.lines import WHEEL_LINES, Lines, TitleRule

ControllerT = TypeVar("ControllerT", bound=Controller)

MIN_DRAW_INTERVAL_S = 0.1
"""The minimum time between two draws that job events cause."""

TICK_INTERVAL_S = 1.0
"""The time between two updates of the elapsed seconds of jobs."""


class MainScreen(ReliableTimers, Screen[None]):
    """The screen with layer list, detail pane, config list, job line and footer.

    Args:
        quit_app: Ends the application.
    """

    AUTO_FOCUS = ""  # else Textual focuses the hidden filter field while the detail pane fills the screen
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (60, "-narrow"), (120, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (15, "-short"), (20, "-medium"), (34, "-tall")]
    BINDINGS = [*(Binding(",".join(names), f"do('{action}')", show=False, id=action) for action, names in KEYS.items()),
                *(Binding(key, f"show_way_round('{key}')", show=False) for key in REMOVED_KEYS)]

    def __init__(self, session: Session, quit_app: Callable[[], None]) -> None:
        super().__init__()
        self.session = session
        self.presenter = Presenter(session, self, quit_app)
        self.controllers = [kind(self.presenter) for kind in CONTROLLERS]
        self.presenter.actions = {
            bound_action.action.id: bound_action
            for owner in self.controllers
            for bound_action in owner.list_bound_actions()
        }
        self._event_handlers: defaultdict[type[ev.Event], list[Callable[[Any], None]]] = defaultdict(list)
        for controller in self.controllers:
            for kind, handle_event in controller.event_handlers().items():
                self._event_handlers[kind].append(handle_event)
        self._shown_notice = ""
        self._draw_timer: Timer | None = None

    def _get_controller(self, controller_type: type[ControllerT]) -> ControllerT:
        return next(controller for controller in self.controllers if isinstance(controller, controller_type))

    def compose(self) -> ComposeResult:
        yield Lines(id="small")
        yield Lines(id="header")
        yield Lines(id="verdict")
        with Container(id="body"):
            with Vertical(id="left"):
                yield TitleRule(id="tree-rule")
                yield TextField(placeholder="text  !text  /regex/  share>1%  prec:int8  op:conv", id="filter",
                                compact=True)
                yield Lines(id="tree-header")
                yield LayerTree(id="tree")
                yield BlockMap(id="blocks")
            with Vertical(id="right"):
                yield TitleRule(id="detail-rule")
                yield Lines(id="detail")
                yield TitleRule(fill_in_keys("{configs} Configs"), id="configs-rule")
                yield Lines(id="configs-header")
                yield ConfigList(id="configs")
        yield TitleRule(id="job-rule")
        yield Lines(id="status")
        yield Lines(id="footer")

    def on_mount(self) -> None:
        """Draws the screen for the first time, and starts the timer that updates elapsed times."""
        self.presenter.layer_tree.focus()
        self.presenter.draw_all()
        self.watch(self, "focused", self._handle_focus_change, init=False)
        self.set_interval(TICK_INTERVAL_S, self._update_elapsed_times)

    def _handle_focus_change(self) -> None:
        """Draws the hint and the footer, which follow the focus. A typed filter is a change once its field is left."""
        if self.focused is not self.presenter.filter_input:
            self._get_controller(FilterController).keep_typed_filter()
        self.presenter.draw_status_lines()

    # -- events of the session ----------------------------------------------------------------------------------

    def handle_session_event(self, event: ev.Event) -> None:
        """Passes an event to the controllers that handle its type, and schedules a draw.

        The session has already applied the event.
        """
        self.presenter.has_stale_values |= event.changes_rows
        for handle_event in self._event_handlers[type(event)]:
            handle_event(event)
        if self.session.notice != self._shown_notice:
            self._shown_notice = self.session.notice
            if self.presenter.status.message is None:
                self.presenter.show_notice(self.session.notice)
        if self._draw_timer is None:
            self._draw_timer = self.set_timer(MIN_DRAW_INTERVAL_S, self._draw_pending_changes)

    def _draw_pending_changes(self) -> None:
        self._draw_timer = None
        self.presenter.draw_all(with_row_values=self.presenter.has_stale_values)
        self._update_open_page()

    def _update_open_page(self) -> None:
        """Updates an open page of charts, jobs, log or search with the newest data."""
        page = self.app.screen
        if isinstance(page, (LivePage, JobsPage, ChartsPage, SearchResultPage)) and page.is_mounted:
            page.update_lines()

    def _update_elapsed_times(self) -> None:
        if self.presenter.layer_list.is_sort_postponed:
            self.presenter.draw_all()
        if self.session.pending_requests:
            self.presenter.draw_status_lines()
            self._update_open_page()

    def on_screen_resume(self) -> None:
        """Draws what was postponed or hidden while a page or a dialog was open over the main screen."""
        self.presenter.draw_after_overlay_closed()

    def on_screen_suspend(self) -> None:
        """Hides the hint, whose keys do not work in the dialog that has opened."""
        self.presenter.draw_status_lines()

    # -- events of the panes ------------------------------------------------------------------------------------

    def action_do(self, action_id: str) -> None:
        """Performs the action of a pressed key or a clicked text."""
        self.presenter.perform_action(action_id)

    def action_show_way_round(self, key: str) -> None:
        """Shows what replaces the action that a key had in an earlier release."""
        self.presenter.show_message(f"{key_text(key)}: {fill_in_keys(REMOVED_KEYS[key])}")

    def action_see(self, view: str) -> None:
        """Shows the view whose name was clicked."""
        self._get_controller(ViewController).show_view(View(view))

    def action_sort(self, column_id: str) -> None:
        """Sorts the layer list by the column whose title was clicked."""
        self._get_controller(ViewController).sort_rows_by(LAYER_COLUMNS_BY_ID[column_id])

    def on_mouse_scroll_down(self) -> None:
        """Scrolls the layer list or heat map if the mouse is over a widget that does not scroll."""
        self.presenter.shown_row_pane.scroll_relative(y=WHEEL_LINES, animate=False)

    def on_mouse_scroll_up(self) -> None:
        self.presenter.shown_row_pane.scroll_relative(y=-WHEEL_LINES, animate=False)

    @on(LayerTree.Resized)
    def _handle_tree_resize(self) -> None:
        self.presenter.draw_layer_tree_header()
        self.presenter.draw_detail_pane()  # a draw under a dialog used the earlier size

    @on(LayerTree.Moved)
    @on(BlockMap.Moved)
    def _handle_cursor_move(self) -> None:
        self.presenter.handle_cursor_move()

    @on(LayerTree.Opened)
    def _open_clicked_row(self) -> None:
        self.presenter.perform_action("open")

    @on(LayerTree.ExplanationRequested)
    def _explain_clicked_cell(self, event: LayerTree.ExplanationRequested) -> None:
        self._get_controller(ExplanationController).explain_cell(event.column_id)

    @on(BlockMap.ExplanationRequested)
    def _explain_clicked_block(self) -> None:
        self._get_controller(ExplanationController).explain_cell(SHARE_COLUMN.id)

    @on(Lines.ExplanationRequested)
    def _explain_clicked_text(self, event: Lines.ExplanationRequested) -> None:
        event.stop()
        self._get_controller(ExplanationController).explain_clicked_text(event)

    @on(Input.Changed, "#filter")
    def _apply_typed_filter(self, event: Input.Changed) -> None:
        self._get_controller(FilterController).apply_typed_filter(event.value)

    @on(Input.Submitted, "#filter")
    def _close_filter_field(self) -> None:
        self._get_controller(FilterController).close_filter_field()

    @on(ConfigList.Taken)
    def _select_config(self, event: ConfigList.Taken) -> None:
        self._get_controller(ConfigController).select_config(event.config)

    def on_resize(self, event: events.Resize) -> None:
        self.presenter.draw_after_layout()
