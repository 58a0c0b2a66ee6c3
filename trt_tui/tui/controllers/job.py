"""The jobs: comparing, stopping, the list of them, and why they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.jobs import events as ev
from trt_tui.session.job import Job
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.keys import key
from trt_tui.tui.screens.dialogs import Question
from trt_tui.tui.screens.export import waiting_for
from trt_tui.tui.screens.jobs import JobsPage
from trt_tui.tui.state.jobs import stopped_words
from trt_tui.words import duration

ASK_AFTER_S = 10.0
"""A job older than this is stopped only after a question."""


class Jobs(Controller):
    """See the module's docstring."""

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Shows why a job failed, that of an export in its dialog."""
        return {ev.Failed: self._failed, ev.Died: self._died}

    def _failed(self, event: ev.Failed) -> None:
        if (dialog := waiting_for(self.desk.app.screen_stack, event.job)) is not None:
            dialog.tell(event.title, event.cause, event.next_step)
        else:
            self._fail(event, event.title, event.cause, event.next_step)

    def _died(self, event: ev.Died) -> None:
        for job in range(event.job + 1):
            if (dialog := waiting_for(self.desk.app.screen_stack, job)) is not None:
                dialog.tell("the worker process ended", "", "Try again.")
        self._fail(event, "The worker process ended", f"{event.why} {event.log}".strip(),
                   f"Nothing is lost: press {key('compare')} to measure again; {key('log')} shows the log.")

    def _fail(self, event: ev.Failed | ev.Died, title: str, cause: str, next_step: str) -> None:
        if self.session.outline is None:
            self.status.failure = event
        self.desk.show_failure(title, cause, next_step)

    @action(label="compare", help="Measure everything again", group="Work", disabled=Controller.nothing_to_ask)
    def compare(self) -> None:
        """Measures again."""
        self.session.compare()
        self.desk.draw_status()

    def no_job(self) -> str:
        """Why there is nothing to stop."""
        return "" if self.session.asked else "no job is running"

    @action(label="stop", help="Stop what runs and waits (asks if it is older than 10 s)", group="Work",
            disabled=no_job, footer=60)
    def stop(self) -> None:
        """Stops the job, an old one after a question."""
        jobs = self._stoppable()
        age = max(job.seconds for job in jobs)
        if age <= ASK_AFTER_S:
            self._stop()
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._stop()

        self.desk.app.push_screen(Question(f"Stop {stopped_words(jobs)}? It has run for {duration(age)}.", "stop it",
                                           "go on"), answered)

    def _stoppable(self) -> list[Job]:
        """What a stop ends, what runs first."""
        return [*self.session.asked.running, *self.session.asked.waiting]

    def _stop(self) -> None:
        jobs = self._stoppable()
        self.session.stop_job()
        self.desk.say(f"stopped: {stopped_words(jobs)}; the last results stay", "")

    @action(label="jobs", help="All jobs: what runs and what was done, with their times", group="Work")
    def jobs(self) -> None:
        """Shows all jobs."""
        self.desk.app.push_screen(JobsPage(self.session, lambda: self.desk.perform("stop")))
