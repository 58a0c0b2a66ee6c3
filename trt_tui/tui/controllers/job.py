"""The actions on jobs: measure again, stop, and the list of jobs. Failed jobs are shown here too."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trt_tui.formatting import counted_noun_text, duration_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.jobs import Job
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import ConfirmDialog
from trt_tui.tui.screens.export import find_export_dialog_of_job
from trt_tui.tui.screens.jobs import JobsPage
from trt_tui.tui.state.job_list import stopped_jobs_text
from trt_tui.tui.state.status import STOPPED_OPENING_TEXT, UnreadFailure

MIN_CONFIRM_AGE_S = 10.0
"""The job age in seconds above which stopping needs a confirmation."""


class JobController(Controller):
    """The controller of running jobs: new measurements, stopping, the page of jobs, and failures."""

    def event_handlers(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Returns the handlers that show a failed job on the main screen, or in the export dialog if an export failed.
        """
        return {ev.JobFailed: self._show_failed_job, ev.ChildProcessDied: self._show_child_process_exit,
                ev.JobCancelled: self._show_stopped_opening}

    def _show_failed_job(self, event: ev.JobFailed) -> None:
        if (dialog := find_export_dialog_of_job(self.presenter.app.screen_stack, event.job)) is not None:
            dialog.show_failure(event.title, event.cause, event.next_step)
        else:
            self._set_unread_failure(event, event.title, event.cause, event.next_step)

    def _show_child_process_exit(self, event: ev.ChildProcessDied) -> None:
        for job in range(event.job + 1):
            if (dialog := find_export_dialog_of_job(self.presenter.app.screen_stack, job)) is not None:
                dialog.show_failure("the background process ended", "", "Try again.")
        self._set_unread_failure(
            event, "The background process ended", f"{event.reason} {event.log}".strip(),
            f"Nothing is lost: press {shown_key('compare')} to measure again; {shown_key('log')} shows the log.")

    def _show_stopped_opening(self, event: ev.JobCancelled) -> None:
        """Offers to open the network again if its first opening was stopped, without which nothing else works."""
        job = next((job for job in self.session.pending_requests.jobs if job.number == event.job), None)
        if job is not None and isinstance(job.request, rq.OpenNetwork) and not job.request.structure_hash:
            self.status.failure = event
            self.presenter.show_message(f"{STOPPED_OPENING_TEXT}: {shown_key('compare')} opens it again")
            self.presenter.draw_all()

    def _set_unread_failure(self, event: ev.JobFailed | ev.ChildProcessDied, title: str, cause: str,
                            next_step: str) -> None:
        if self.session.outline is None and self.status.failure is None:
            self.status.failure = event  # the failure is shown in place of the layer list
        self.status.unread_failure, self.status.message = UnreadFailure(title, cause, next_step), None
        self.presenter.draw_status_lines()

    def compare_disabled_reason(self) -> str:
        """Returns the reason why nothing can be measured again; "" if it can, or if the network was not opened."""
        return "" if self.status.failure is not None else self.missing_samples_reason()

    @register_action(label="compare", help="Measure everything again", group="Work",
                     disabled_reason=compare_disabled_reason)
    def compare(self) -> None:
        """Requests a new measurement of all values, or opens the network again if the opening did not end well."""
        if self.status.failure is None:
            self.session.request_comparison()
        else:
            self.status.failure = self.status.unread_failure = None
            self.session.start()
            self.presenter.draw_all()
        self.presenter.draw_status_lines()

    def stop_disabled_reason(self) -> str:
        """Returns the reason why no job can be stopped; "" if a job can be stopped."""
        return "" if self._list_stoppable_jobs() else "no job is running"

    @register_action(
        label="stop", help="Stop the job shown (asks if it has run for over 10 s); the list of jobs stops any or all",
        group="Work", disabled_reason=stop_disabled_reason, footer=60)
    def stop(self) -> None:
        """Stops the job that the status line names. If it has run for more than `MIN_CONFIRM_AGE_S`, the user must
        confirm."""
        self._stop_with_confirmation(self._list_stoppable_jobs()[:1])

    def _list_stoppable_jobs(self) -> list[Job]:
        """Returns the jobs that can be stopped. The first is the job that the main screen names."""
        pending_requests = self.session.pending_requests
        return [job for job in (*pending_requests.running_jobs, *pending_requests.waiting_jobs) if not job.is_stopping]

    def _stop_with_confirmation(self, jobs: Sequence[Job]) -> None:
        """Stops the given jobs that have not ended. If one of them is old, the user must confirm."""
        stoppable = [job for job in jobs if job in self._list_stoppable_jobs()]
        if not stoppable:
            self.presenter.show_message("that job has ended" if jobs else "no job is running")
            return
        age = max(job.duration_s for job in stoppable)
        if age <= MIN_CONFIRM_AGE_S:
            self._stop_jobs_now(stoppable)
            return

        question = f"Stop {stopped_jobs_text(stoppable)}? It has run for {duration_text(age)}."
        self.open_dialog(
            ConfirmDialog(question, "stop it", "go on"),
            lambda _: self._stop_jobs_now([job for job in stoppable if job in self._list_stoppable_jobs()]))

    def _stop_jobs_now(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            self.presenter.show_message("the job has ended; its results are shown", "")
            return
        self.session.stop_jobs([job.number for job in jobs])
        remaining_count = len(self._list_stoppable_jobs())
        rest_text = (f"; {counted_noun_text(remaining_count, 'job')} {'go' if remaining_count > 1 else 'goes'} on"
                     if remaining_count else "")
        self.presenter.show_message(f"stopped: {stopped_jobs_text(jobs)}; the last results stay{rest_text}", "")

    @register_action(label="jobs", help="All jobs, running and done, with their times; stops one or all",
                     group="Work")
    def jobs(self) -> None:
        self.open_dialog(JobsPage(self.session, self._stop_with_confirmation))
