"""The action that finds a mixed-precision config which meets the target: start, offer and report of a search."""

from collections.abc import Mapping
from types import MappingProxyType

from trt_tui.errors import TrtTuiError
from trt_tui.formatting import duration_text, table_lines
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.search_status import (
    SearchStatus,
    best_evaluation_text,
    evaluation_table,
    reduction_table,
)
from trt_tui.tui import config_status
from trt_tui.tui.actions import Need
from trt_tui.tui.controllers.configs import target_error_text
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.fields import SearchDialog
from trt_tui.tui.screens.search_result import SEARCH_AGAIN, SearchResultPage
from trt_tui.tui.state.row_values import find_search_marks
from trt_tui.tui.state.search_result import SearchOption


class SearchController(Presenter):
    """The part of the main screen for the search for a config that meets the target with the fewest raised layers."""

    _search_marks: Mapping[str, str] = MappingProxyType({})
    _reported_search: SearchStatus | None = None

    def update_search_marks(self, event: ev.SearchProgress) -> None:
        if self.session.is_searching:
            if (marks := find_search_marks(self.session)) != self._search_marks:
                self._search_marks, self.has_stale_values = marks, True

    def refuse_find(self) -> str:
        """Returns the reason why a search cannot start; "" if it can start, or if there is a search to look at."""
        search_status = self.session.search_status
        has_search = self.session.is_searching or search_status is not None and search_status.best_config is not None
        return "" if has_search else self.missing_reason(Need.BUILDER)

    def do_find(self) -> None:
        """Shows what the last search found, or has found so far. Without a search, shows the dialog that starts one."""
        search_status = self.session.search_status
        if search_status is None or search_status.best_config is None and not self.session.is_searching:
            self._ask_for_search()
        elif search_status.best_config is None:
            self.show_message("the search has tried no config yet")
        else:
            page = SearchResultPage(self.session, self.layer_list.tree_model, search_status)
            self.open_dialog(page, lambda answer: self._ask_for_search() if answer == SEARCH_AGAIN else
                             self._adopt_option(search_status, answer))

    def _adopt_option(self, search_status: SearchStatus, option: SearchOption) -> None:
        """Makes a config that a search offers the current config. A running search is stopped."""
        session = self.session
        self._reported_search = search_status
        if session.is_searching and session.search_status is search_status:
            session.stop_jobs(session.pending_requests.list_job_numbers(rq.FindMixedPrecisionConfig))
        if session.search_status is search_status and session.adopt_search_config(option.config, option.evaluation):
            self.handle_config_change()
            result = f", {option.outcome.outcome.value} on its samples" if option.outcome is not None else ""
            self.show_notice(
                f"{config_status.config_name(session)} from the search{result}: {shown_key('undo')} undoes it, "
                f"{shown_key('find')} shows the other configs")

    def _ask_for_search(self) -> None:
        """Shows the dialog that starts a search, or the reason why a search cannot start now."""
        session = self.session
        if reason := self.missing_reason(Need.BUILDER):
            self.show_message(f"no other search now: {reason}")
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
            self.show_error(error)
        self.draw_all()

    def report_search_result(self, event: ev.SearchEnded | ev.JobCancelled) -> None:
        """Shows the result of a search once, and where the result is listed. Cursor and focus do not change."""
        session, search_status = self.session, self.session.search_status
        if (search_status is None or search_status is self._reported_search
                or search_status.end_event is None and session.is_searching):
            return
        self._reported_search = search_status
        if not search_status.is_finished or search_status.end_event is None:
            if search_status.best_config not in (None, session.config):
                self.show_message(f"{shown_key('find')} shows the best of the stopped search: "
                                            f"{best_evaluation_text(search_status)}")
            return
        result = search_status.end_event.result
        session.log.extend(
            table_lines(
                evaluation_table(search_status.end_event, session.opened_network.outline, search_status.request,
                                 session.results.reference_metric), left_aligned_columns=4))
        if effort_text := search_status.end_event.zero_cost_effort.text:
            session.log.append(f"{effort_text} ({duration_text(search_status.end_event.zero_cost_effort.seconds)})")
        if rows := reduction_table(result.reduction_steps, session.opened_network.outline, search_status.request):
            session.log.extend(table_lines(rows, left_aligned_columns=3))
        if result.config == search_status.request.config:
            self.show_message(f"nothing to do: {result.summary}{_missing_execution_text(search_status)}", "")
        else:
            outcome = search_status.end_event.target_outcome
            result_text = f"{outcome.outcome.value}, " if outcome is not None else ""
            summary = result.summary
            if outcome is not None and outcome.outcome.passes and not result.is_met and result.best_evaluation:
                counts_text = result.best_evaluation.raised_group_counts_text(search_status.request.higher_precision)
                summary = f"{counts_text}, without the margin that an exported network or an engine lost"
            self.show_message(f"{shown_key('find')} shows what the search found: {result_text}"
                                        f"{summary}", "" if search_status.is_target_met else "warn")


def _missing_execution_text(search_status: SearchStatus) -> str:
    """Returns the reason why the exported network was not executed, for the end of a search message; "" if it was."""
    exported = search_status.end_event.exported if search_status.end_event is not None else None
    return f"; PASS?: {exported.exported_result_text}" if exported is not None and exported.is_met is None else ""
