"""The jobs: comparing, stopping, the list of them, and why they fail."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trt_tui.jobs import events as ev
from trt_tui.session.job import Job
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.keys import key
from trt_tui.tui.screens.dialogs import Question
from trt_tui.tui.screens.export import waiting_for
from trt_tui.tui.screens.jobs import JobsPage
from trt_tui.tui.state.jobs import stopped_words
from trt_tui.tui.state.status import Unread
from trt_tui.words import duration, plural

ASK_AFTER_S = 10.0
"""A job older than this is stopped only after a question."""


class Jobs(Controller):
    """See the module's docstring."""

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Returns the handlers that tell of a failed job on the main screen, of an export in its dialog."""
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
            self.status.failure = event  # it stands in place of the rows
        self.status.unread, self.status.message = Unread(title, cause, next_step), None
        self.desk.draw_status()

    @action(label="compare", help="Measure everything again", group="Work", disabled=Controller.nothing_to_ask)
    def compare(self) -> None:
        """Measures again."""
        self.session.compare()
        self.desk.draw_status()

    def no_job(self) -> str:
        """Why there is nothing to stop."""
        return "" if self._stoppable() else "no job is running"

    @action(label="stop", help="Stop the job that is named (asks if it is older than 10 s); the list of jobs stops "
            "any or all", group="Work", disabled=no_job, footer=60)
    def stop(self) -> None:
        """Stops the job that the line of jobs names, an old one after a question."""
        self._stop(self._stoppable()[:1])

    def _stoppable(self) -> list[Job]:
        """What can be stopped; first the one that is named on the main screen."""
        asked = self.session.asked
        return [job for job in (*asked.running, *asked.waiting) if not job.stopping]

    def _stop(self, jobs: Sequence[Job]) -> None:
        """Stops those of some jobs that are under way, after a question where one is old."""
        wanted = [job for job in jobs if job in self._stoppable()]
        if not wanted:
            self.desk.say("that job has ended" if jobs else "no job is running")
            return
        age = max(job.seconds for job in wanted)
        if age <= ASK_AFTER_S:
            self._stop_now(wanted)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._stop_now([job for job in wanted if job in self._stoppable()])

        self.desk.app.push_screen(Question(f"Stop {stopped_words(wanted)}? It has run for {duration(age)}.", "stop it",
                                           "go on"), answered)

    def _stop_now(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            self.desk.say("it has ended meanwhile; its results are there", "")
            return
        self.session.stop([job.number for job in jobs])
        rest = len(self._stoppable())
        more = f"; {plural(rest, 'job')} {'go' if rest > 1 else 'goes'} on" if rest else ""
        self.desk.say(f"stopped: {stopped_words(jobs)}; the last results stay{more}", "")

    @action(label="jobs", help="All jobs: what runs and what was done, with their times; stops one or all",
            group="Work")
    def jobs(self) -> None:
        """Shows all jobs."""
        self.desk.app.push_screen(JobsPage(self.session, self._stop))
