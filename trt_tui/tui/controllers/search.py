"""The action that finds a mixed-precision config which meets the target: start, adoption and report of a search."""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.errors import TrtTuiError
from trt_tui.formatting import duration_text, table_lines
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.search_status import (
    SearchStatus,
    best_evaluation_text,
    evaluation_table,
    held_out_result_text,
    reduction_table,
)
from trt_tui.tui import config_status
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.controllers.target import target_error_text
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import ConfirmDialog
from trt_tui.tui.screens.search import SearchDialog
from trt_tui.tui.state.row_values import find_search_marks


class SearchController(Controller):
    """The controller of the search for a config that meets the target with the fewest raised layers."""

    def __init__(self, presenter: Presenter) -> None:
        super().__init__(presenter)
        self._search_marks: Mapping[str, str] = {}
        self._reported_search: SearchStatus | None = None

    def event_handlers(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Returns the handlers that mark the groups under test, and report the result of a search once."""
        return {ev.SearchProgress: self._update_search_marks, ev.SearchEnded: self._report_search_end,
                ev.JobCancelled: self._report_stopped_search}

    def _update_search_marks(self, event: ev.SearchProgress) -> None:
        if self.session.is_searching:
            if (marks := find_search_marks(self.session)) != self._search_marks:
                self._search_marks, self.presenter.has_stale_values = marks, True

    def _report_search_end(self, event: ev.SearchEnded) -> None:
        self._report_search_result()

    def _report_stopped_search(self, event: ev.JobCancelled) -> None:
        self._report_search_result()

    def search_disabled_reason(self) -> str:
        """Returns the reason why a search cannot start; "" if it can start.

        The reason is also "" while a search runs, because the action then offers to adopt the best config of that
        search.
        """
        return "" if self.session.is_searching else self.build_disabled_reason()

    @register_action(label="fix", help="Find the fewest layers to raise so that the target is met; again: use the best "
                                       "so far", group="Work", disabled_reason=search_disabled_reason, footer=18)
    def find(self) -> None:
        """Shows the dialog that starts a search. While a search runs, asks whether to adopt its best config."""
        session = self.session
        if session.is_searching and session.search_status is not None:
            self._ask_to_adopt_search_result(session.search_status, "Use the best config so far and end the search? "
                                             f"{best_evaluation_text(session.search_status)}.")
            return

        def start_chosen_search(answer: tuple[str, rq.FindMixedPrecisionConfig]) -> None:
            tolerance, request = answer
            if session.target is None or tolerance != session.target.text:
                session.set_target(tolerance)
            self._start_search(request)

        self.open_dialog(SearchDialog(session, config_status.config_name(session),
                                      lambda text: target_error_text(session, text),
                                      config_status.current_config_meets_target(session)), start_chosen_search)

    def _start_search(self, request: rq.FindMixedPrecisionConfig) -> None:
        try:
            self.session.start_search(request)
        except TrtTuiError as error:
            self.presenter.show_error(error)
        self.presenter.draw_all()

    def _ask_to_adopt_search_result(self, search_status: SearchStatus, question: str) -> None:
        """Asks whether the best config of a search becomes the current config; if so, a running search is stopped."""
        if search_status.best_config is None:
            self.presenter.show_message("no config meets the target yet")
            return

        def adopt_result(_: bool) -> None:
            self._reported_search = search_status
            if self.session.is_searching and self.session.search_status is search_status:
                self.session.stop_jobs(self.session.pending_requests.list_job_numbers(rq.FindMixedPrecisionConfig))
            if self.session.adopt_search_result():
                self.presenter.handle_config_change()
            self.presenter.show_message(
                f"{config_status.config_name(self.session)}, {shown_key('undo')} undoes it: "
                f"{best_evaluation_text(search_status)}", "")

        self.open_dialog(ConfirmDialog(question, "use it", "go on"), adopt_result)

    def _report_search_result(self) -> None:
        """Shows the result of a search once, and where the result is listed. Cursor and focus do not change."""
        session, search_status = self.session, self.session.search_status
        if (search_status is None or search_status is self._reported_search
                or search_status.end_event is None and session.is_searching):
            return
        self._reported_search = search_status
        if not search_status.is_finished or search_status.end_event is None:
            if search_status.best_config not in (None, session.config):
                self.presenter.show_message(
                    f"{shown_key('configs')} lists the best of the stopped search as "
                    f"{config_status.config_name(session, search_status.best_config)}: "
                    f"{best_evaluation_text(search_status)}"
                )
            return
        result = search_status.end_event.result
        session.log.extend(
            table_lines(
                evaluation_table(search_status.end_event.evaluations, search_status.end_event.engine_texts,
                                 session.opened_network.outline, search_status.request,
                                 session.results.reference_metric), left_aligned_columns=4))
        if effort_text := search_status.end_event.zero_cost_effort.text:
            session.log.append(f"{effort_text} ({duration_text(search_status.end_event.zero_cost_effort.seconds)})")
        if rows := reduction_table(result.reduction_steps, session.opened_network.outline, search_status.request):
            session.log.extend(table_lines(rows, left_aligned_columns=3))
        if result.config == session.config:
            if result.config == search_status.request.config:
                self.presenter.show_message(f"nothing to do: {result.summary}{_missing_execution_text(search_status)}",
                                            "")
            else:
                self.presenter.show_message(
                    f"{config_status.config_name(session)}, {shown_key('undo')} undoes it: {result.summary}"
                    f"{_missing_execution_text(search_status)}", "")
        else:
            exported = search_status.end_event.exported
            reason = "; its engine misses it" if search_status.end_event.confirmed is False else ""
            reason += (f"; {exported.exported_result_text}"
                       if exported is not None and exported.is_met is not True else "")
            if search_status.end_event.held_out is not None:
                reason += f"; {held_out_result_text(search_status.end_event.held_out)}"
            name = config_status.config_name(session, result.config)
            self.presenter.show_message(f"{shown_key('configs')} lists it as {name}: {result.summary}{reason}")


def _missing_execution_text(search_status: SearchStatus) -> str:
    """Returns the reason why the exported network was not executed, for the end of a search message; "" if it was."""
    exported = search_status.end_event.exported if search_status.end_event is not None else None
    return f"; PASS?: {exported.exported_result_text}" if exported is not None and exported.is_met is None else ""
