"""The main screen, which composes the panes and passes keys and events to its parts in `trt_tui.tui.controllers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.timer import Timer

from trt_tui.jobs import events as ev
from trt_tui.tui.controllers.changes import PrecisionController, RangeController, ZeroCostController
from trt_tui.tui.controllers.configs import ConfigController, ExportController
from trt_tui.tui.controllers.view import ExplanationController, NavigationController, ViewController
from trt_tui.tui.controllers.work import JobController, SearchController
from trt_tui.tui.keys import ACTIONS, fill_in_keys
from trt_tui.tui.screens.dialogs import TextPage
from trt_tui.tui.screens.pages import ChartsPage, JobsPage, SearchResultPage
from trt_tui.tui.state.columns import LAYER_COLUMNS_BY_ID
from trt_tui.tui.state.rows import LayerListView
from trt_tui.tui.widgets.lines import WHEEL_LINES, LinePane, Lines, TitleRule
from trt_tui.tui.widgets.row_panes import LayerTree

MIN_DRAW_INTERVAL_S = 0.1
"""The minimum time between two draws that job events cause."""

TICK_INTERVAL_S = 1.0
"""The time between two updates of the elapsed seconds of jobs."""


class MainScreen(
    NavigationController,
    PrecisionController,
    RangeController,
    ZeroCostController,
    ExplanationController,
    ViewController,
    JobController,
    SearchController,
    ConfigController,
    ExportController,
):
    """The screen with layer list, detail pane, config list, job line and footer."""

    AUTO_FOCUS = ""  # else Textual focuses the hidden filter field while the detail pane fills the screen
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (60, "-slim"), (80, "-narrow"), (120, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (15, "-short"), (20, "-medium"), (34, "-tall")]
    BINDINGS = [Binding(action.keys, f"do('{action.id}')", show=False, id=action.id) for action in ACTIONS]

    _shown_notice = ""
    _draw_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Lines(id="small")
        yield Lines(id="header")
        yield Lines(id="verdict")
        with Container(id="body"):
            with Vertical(id="left"):
                yield TitleRule(id="tree-rule")
                yield self.filter_input
                yield Lines(id="tree-header")
                yield self.layer_tree
                yield self.heat_map
            with Vertical(id="right"):
                yield TitleRule(id="detail-rule")
                yield Lines(id="detail")
                yield TitleRule([[(fill_in_keys("{configs} Configs"), "strong")]], id="configs-rule")
                yield Lines(id="configs-header")
                yield self.config_list
        yield TitleRule(id="job-rule")
        yield Lines(id="status")
        yield Lines(id="footer")

    def on_mount(self) -> None:
        """Draws the screen for the first time, and starts the timer that updates elapsed times."""
        self.layer_tree.focus()
        self.draw_all()
        self.watch(self, "focused", self.draw_status_lines, init=False)  # hint and footer depend on it
        self.set_interval(TICK_INTERVAL_S, self._update_elapsed_times)

    # -- events of the session ----------------------------------------------------------------------------------

    def handle_session_event(self, event: ev.Event) -> None:
        """Passes an event to the controllers that handle its type, and schedules a draw.

        The session has already applied the event.
        """
        self.has_stale_values |= event.changes_rows
        for handle_event in EVENT_HANDLERS.get(type(event), ()):
            handle_event(self, event)
        if self.session.notice != self._shown_notice:
            self._shown_notice = self.session.notice
            if self.status.message is None:
                self.show_notice(self.session.notice)
        if self._draw_timer is None:
            self._draw_timer = self.set_timer(MIN_DRAW_INTERVAL_S, self._draw_pending_changes)

    def _draw_pending_changes(self) -> None:
        self._draw_timer = None
        self.draw_all(with_row_values=self.has_stale_values or self.layer_list.is_sort_due)
        self._update_open_page()

    def _update_open_page(self) -> None:
        """Updates an open page of charts, jobs, log or search with the newest data."""
        page = self.app.screen
        if isinstance(page, (TextPage, JobsPage, ChartsPage, SearchResultPage)) and page.is_mounted:
            page.update_lines()

    def _update_elapsed_times(self) -> None:
        if self.session.pending_requests:
            self.draw_status_lines()
            self._update_open_page()

    def on_screen_resume(self) -> None:
        """Stops the jobs of a closed page or dialog, and draws the changes that were postponed while it was open."""
        self.session.stop_jobs_of_closed_list()
        self.draw_after_overlay_closed()

    def on_screen_suspend(self) -> None:
        """Hides the hint, whose keys do not work in the dialog that has opened."""
        self.draw_status_lines()

    # -- events of the panes ------------------------------------------------------------------------------------

    def action_do(self, action_id: str) -> None:
        """Performs the action of a pressed key or a clicked text."""
        self.perform_action(action_id)

    def action_show_view(self, view: str) -> None:
        """Shows the view whose name was clicked."""
        self.show_view(LayerListView(view))

    def action_sort(self, column_id: str) -> None:
        """Sorts the layer list by the column whose title was clicked."""
        self.sort_rows_by(LAYER_COLUMNS_BY_ID[column_id])

    def on_mouse_scroll_down(self) -> None:
        """Scrolls the layer list or heat map if the mouse is over a widget that does not scroll."""
        self.shown_row_pane.scroll_relative(y=WHEEL_LINES, animate=False)

    def on_mouse_scroll_up(self) -> None:
        self.shown_row_pane.scroll_relative(y=-WHEEL_LINES, animate=False)

    @on(LayerTree.RowSpaceChanged)
    def _handle_tree_resize(self) -> None:
        self.draw_layer_tree_header()
        self.draw_detail_pane()  # a draw under a dialog used the earlier size

    @on(LinePane.CursorMoved)
    def _follow_moved_cursor(self) -> None:
        self.handle_cursor_move()

    @on(LayerTree.RowDoubleClicked)
    def _open_clicked_row(self) -> None:
        self.perform_action("open")

    def on_resize(self, event: events.Resize) -> None:
        self.draw_after_layout()


EVENT_HANDLERS: Mapping[type[ev.Event], tuple[Callable[[MainScreen, Any], None], ...]] = {
    ev.CalibrationReady: (MainScreen.apply_awaited_range,),
    ev.ValueMeasured: (
        MainScreen.show_compared_methods,
        MainScreen.apply_awaited_range,
        MainScreen.fill_in_zero_cost_values,
    ),
    ev.AccuracyMeasured: (MainScreen.fill_in_zero_cost_values,),
    ev.UnusedQdqRemoved: (MainScreen.show_qdq_removal,),
    ev.RequestedRangesReady: (MainScreen.show_applied_ranges,),
    ev.EngineBuilt: (MainScreen.show_build_result,),
    ev.ExportedFileExecuted: (MainScreen.show_export_result,),
    ev.SearchEnded: (MainScreen.report_search_result,),
    ev.JobFailed: (MainScreen.show_failed_job,),
    ev.ChildProcessDied: (MainScreen.show_child_process_exit,),
    ev.JobStarted: (MainScreen.forget_child_process_exit,),
    ev.JobCancelled: (
        MainScreen.forget_awaited_range,
        MainScreen.report_search_result,
        MainScreen.show_stopped_opening,
        MainScreen.show_cancelled_export,
    ),
    ev.ConfigExported: (MainScreen.show_finished_export,),
}
"""The methods that handle events of the background process, by type of event.

The session has applied an event before, and the screen is drawn shortly after."""
