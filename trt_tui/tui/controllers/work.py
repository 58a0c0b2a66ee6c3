"""The actions that measure: builds, comparisons, the search for a config, and jobs; their results are shown too."""

from collections.abc import Sequence
from functools import partial

from trt_tui.errors import TrtTuiError
from trt_tui.formatting import EXPORTED_NETWORK, duration_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.jobs import Job
from trt_tui.session.search_report import search_text
from trt_tui.session.search_status import SearchStatus
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import Precondition, shown_key
from trt_tui.tui.screens.dialogs import ConfirmDialog, TextPage, input_error_text
from trt_tui.tui.screens.forms import ConfigSearchDialog, find_export_dialog_of_job
from trt_tui.tui.screens.pages import SEARCH_AGAIN, JobsPage, SearchResultPage
from trt_tui.tui.state import config_status, engine_texts
from trt_tui.tui.state.config_status import target_value_span
from trt_tui.tui.state.search_result import SearchOption
from trt_tui.tui.state.status import STOPPED_OPENING_TEXT, best_search_texts, stopped_jobs_text

MIN_CONFIRM_AGE_S = 10.0
"""The job age in seconds above which stopping needs a confirmation."""


class JobController(Presenter):
    """The part of the main screen for running jobs, builds, the page of the engine, and failures."""

    def show_failed_job(self, event: ev.JobFailed) -> None:
        if (dialog := find_export_dialog_of_job(self.app.screen_stack, event.job)) is not None:
            dialog.show_failure(event.error.title, event.error.cause, event.error.next_step)
        elif self.session.error is event:  # replaced files are opened again instead
            self._set_unread_failure(event, event.error)

    def show_child_process_exit(self, event: ev.ChildProcessDied) -> None:
        for job in range(event.job + 1):
            if (dialog := find_export_dialog_of_job(self.app.screen_stack, job)) is not None:
                dialog.show_failure("the background process ended", "", "Try again.")
        self._set_unread_failure(
            event,
            TrtTuiError(
                "The background process ended",
                f"{event.reason} {event.log}".strip(),
                f"Nothing is lost: press {shown_key('compare')} to measure again; {shown_key('log')} shows the log.",
            ),
        )

    def forget_child_process_exit(self, event: ev.JobStarted) -> None:
        """Removes the line about an ended background process when a new one begins a job that the user requested."""
        job, error = self.session.pending_requests.get(event.job), self.session.error
        if isinstance(error, ev.ChildProcessDied) and job is not None and not job.is_automatic:
            self.status.unread_failure = None

    def show_stopped_opening(self, event: ev.JobCancelled) -> None:
        """Offers to open the network again if the user stopped its first opening. Nothing else works without a
        network."""
        job = next((job for job in self.session.pending_requests.jobs if job.number == event.job), None)
        if job is not None and isinstance(job.request, rq.OpenNetwork) and not job.request.structure_hash:
            self.status.failure = event
            self.show_message(f"{STOPPED_OPENING_TEXT}: {shown_key('compare')} opens it again")
            self.draw_all()

    def _set_unread_failure(self, event: ev.JobFailed | ev.ChildProcessDied, failure: TrtTuiError) -> None:
        if self.session.outline is None and self.status.failure is None:
            self.status.failure = event  # the failure is shown in place of the layer list
        self.status.unread_failure, self.status.message = failure, None
        self.draw_status_lines()

    def refuse_compare(self) -> str:
        """Returns the reason why nothing can be measured again; "" if measuring or opening the network again is
        possible."""
        return "" if self.status.failure is not None else self.unmet_precondition_reason(Precondition.SAMPLES)

    def do_compare(self) -> None:
        """Requests a new measurement of all values. If the opening of the network failed, opens it again."""
        if self.status.failure is None:
            self.session.request_comparison()
        else:
            self.status.failure = self.status.unread_failure = None
            self.session.start()
            self.draw_all()
        self.draw_status_lines()

    def refuse_stop(self) -> str:
        """Returns the reason why no job can be stopped; "" if a job can be stopped."""
        return "" if self._list_stoppable_jobs() else "no job is running"

    def do_stop(self) -> None:
        """Stops the job in the status line. If it has run for more than `MIN_CONFIRM_AGE_S`, the user must confirm."""
        self._stop_with_confirmation(self._list_stoppable_jobs()[:1])

    def _list_stoppable_jobs(self) -> list[Job]:
        """Returns the jobs that can be stopped, beginning with the job in the status line."""
        return [job for job in self.session.pending_requests.unfinished_jobs if not job.is_stopping]

    def _stop_with_confirmation(self, jobs: Sequence[Job]) -> None:
        """Stops those of the given jobs that still run or wait. If one of these is old, the user must confirm."""
        stoppable = [job for job in jobs if job in self._list_stoppable_jobs()]
        if not stoppable:
            self.show_message("that job has ended" if jobs else "no job is running")
        elif (age := max(job.duration_s for job in stoppable)) <= MIN_CONFIRM_AGE_S:
            self._stop_jobs_now(stoppable)
        else:
            question = f"Stop {stopped_jobs_text(stoppable)}? It has run for {duration_text(age)}."
            self.open_dialog(
                ConfirmDialog(question, "stop it", "go on"),
                lambda _: self._stop_jobs_now([job for job in stoppable if job in self._list_stoppable_jobs()]),
            )

    def _stop_jobs_now(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            self.show_message("the job has ended; its results are shown", "")
            return
        self.session.stop_jobs([job.number for job in jobs])
        self.show_message(f"stopped: {stopped_jobs_text(jobs)}; the last results stay", "")

    def do_quit(self) -> None:
        """Ends the application. If a search has run for more than `MIN_CONFIRM_AGE_S`, the user must confirm."""
        session = self.session
        age = session.pending_requests.unfinished_jobs[0].duration_s if session.is_searching else 0.0
        if age <= MIN_CONFIRM_AGE_S:
            self.quit_app()
            return
        question = f"Quit? The search has run for {duration_text(age)}, and what it found is lost."
        self.open_dialog(ConfirmDialog(question, "quit", "go on"), lambda _: self.quit_app())

    def do_jobs(self) -> None:
        self.open_dialog(JobsPage(self.session, self._stop_with_confirmation))

    def show_export_result(self, event: ev.ExportedFileExecuted) -> None:
        exported_run = event.result
        if exported_run.missing_reason:
            self.show_message(
                f"{EXPORTED_NETWORK} not executed, {shown_key('log')} shows why: {exported_run.missing_reason}"
            )
        else:
            value = target_value_span(self.session, exported_run.accuracy, False)[0]  # first, so that it is never cut
            self.show_message(f"{value}: {EXPORTED_NETWORK} by {exported_run.executor_name}", "")

    def show_build_result(self, event: ev.EngineBuilt) -> None:
        if event.result.engine_errors is not None:  # the engine was shown before these errors were measured
            return
        alert = engine_texts.engine_alert_text(self.session) if not self.is_wide_screen else ""
        built_text = f"{engine_texts.build_origin_text(event.result)}: {shown_key('engine')} shows its layers"
        self.show_message(f"built: {alert}" if alert else built_text, "")

    def do_build(self) -> None:
        self.session.request_build()
        self.draw_status_lines()

    def refuse_engine(self) -> str:
        """Returns the reason why the page of the engine cannot be shown; "" if it can be shown."""
        has_engine = (
            self.session.results.fp32_engine is not None or engine_texts.find_shown_engine(self.session) is not None
        )
        if not has_engine and self.session.builder is None:
            return "no TensorRT works here, so there is no engine"
        return "" if has_engine else f"nothing was built yet: {shown_key('build')} builds"

    def do_engine(self) -> None:
        width = min(90, self.screen_width * 96 // 100 - 5)
        lines = engine_texts.engine_page_lines(self.session, width)
        self.open_dialog(TextPage(engine_texts.engine_page_title(self.session), lambda _: lines))


class SearchController(Presenter):
    """The part of the main screen for the search, which looks for a config that meets the target with few raised
    layers."""

    _reported_search: SearchStatus | None = None

    def refuse_find(self) -> str:
        """Returns the reason why a search cannot start; "" if it can start, or if the page of the last search can
        open."""
        return (
            ""
            if self.session.is_searching or self.session.has_search_config
            else self.unmet_precondition_reason(Precondition.BUILDER)
        )

    def do_find(self) -> None:
        """Shows the page of the last search, even while the search runs. If there was no search, opens the dialog that
        starts one."""
        search_status = self.session.search_status
        if search_status is None or search_status.best_config is None and not self.session.is_searching:
            self._ask_for_search()
        elif search_status.best_config is None:
            self.show_message("the search has tried no config yet")
        else:
            page = SearchResultPage(self.session, self.layer_list.tree_model, search_status)
            self.open_dialog(
                page,
                lambda answer: (
                    self._ask_for_search()
                    if answer == SEARCH_AGAIN
                    else self._adopt_search_option(search_status, answer)
                ),
            )

    def _adopt_search_option(self, search_status: SearchStatus, option: SearchOption) -> None:
        """Makes a config of the search page the current config, and stops a running search."""
        session = self.session
        self._reported_search = search_status
        if session.is_searching and session.search_status is search_status:
            session.stop_jobs(
                [job.number for job in session.pending_requests.values() if job.request is search_status.request]
            )
        if session.search_status is search_status:
            is_of_search = option.evaluation is not None
            session.set_config(option.config, search_status.find_move_reasons(option.config) if is_of_search else {})
            self.handle_config_change()
            result = f", {option.outcome.outcome.value}" if option.outcome is not None else ""
            origin = " from the search" if is_of_search else ""
            samples = " on its samples" if is_of_search and result else ""
            self.show_notice(
                f"{config_status.config_name(session)}{origin}{result}{samples}: {shown_key('undo')} undoes it, "
                f"{shown_key('find')} shows the other configs"
            )

    def _ask_for_search(self) -> None:
        """Shows the dialog that starts a search, or the reason why a search cannot start now."""
        session = self.session
        if reason := self.unmet_precondition_reason(Precondition.BUILDER):
            self.show_message(f"no other search now: {reason}")
            return

        def start_chosen_search(answer: tuple[str, rq.FindMixedPrecisionConfig]) -> None:
            tolerance, request = answer
            if tolerance != session.targets_text:
                session.set_target(tolerance)
            try:
                session.start_search(request)
            finally:
                self.draw_all()

        self.open_dialog(
            ConfigSearchDialog(
                session,
                partial(input_error_text, session.read_targets),
                config_status.current_config_meets_target(session),
            ),
            start_chosen_search,
        )

    def report_search_result(self, event: ev.SearchEnded | ev.JobCancelled) -> None:
        """Shows the result of a search and the key of its page, once. Cursor and focus do not change."""
        session, search_status = self.session, self.session.search_status
        if (
            search_status is None
            or search_status is self._reported_search
            or search_status.end_event is None
            and session.is_searching
        ):
            return
        self._reported_search = search_status
        if not search_status.is_finished or search_status.end_event is None:
            if search_status.best_config not in (None, session.config):
                best_text = best_search_texts(session, search_status)[0]
                self.show_message(f"{shown_key('find')} shows the best of the stopped search: {best_text}")
            return
        result, outcome = search_status.end_event.result, search_status.end_event.target_outcome
        session.log.extend(search_text(session).splitlines())
        result_text = f"{outcome.outcome.value}, " if outcome is not None else ""
        summary = (
            "no layer has to be raised"
            if result.is_met and result.config == search_status.request.config
            else result.summary
        )
        if outcome is not None and outcome.outcome.passes and not result.is_met and result.best_evaluation:
            counts_text = result.best_evaluation.raised_group_counts_text(search_status.request.higher_precision)
            summary = f"{counts_text}, without the margin that an exported network or an engine lost"
        self.show_message(
            f"{shown_key('find')} shows what the search found: {result_text}{summary}",
            "" if search_status.is_target_met else "warn",
        )
