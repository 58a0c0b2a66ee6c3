"""The running job: comparing, stopping, and how jobs end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.controllers.desk import Desk
from trt_tui.tui.screens.dialogs import Question
from trt_tui.words import duration

ASK_AFTER_S = 10.0
"""A job older than this is stopped only after a question."""


class Jobs(Controller):
    """See the module's docstring."""

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Notes how the job ended, and shows why it failed."""
        return {ev.Progress: self._progressed, ev.Done: self._done, ev.Cancelled: self._cancelled,
                ev.Replaced: self._replaced, ev.Failed: self._failed, ev.Died: self._died}

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._looks: set[int] = set()

    def _progressed(self, event: ev.Progress) -> None:
        self.status.enter(event.phase)
        if isinstance(self.session.asked.get(event.job), (rq.Stats, rq.TryWaysOut, rq.TryFlips)):
            self._looks.add(event.job)

    def _done(self, event: ev.Done) -> None:
        """A look at a row, which nobody asked for by a key, leaves the last word to the job before."""
        if event.job in self._looks:
            self._looks.remove(event.job)
            return
        self.status.last_word = f"✓ {self.status.phase}" if self.status.phase else "✓ done"

    def _cancelled(self, event: ev.Cancelled) -> None:
        self.status.last_word = "stopped; the last results stay"

    def _replaced(self, event: ev.Replaced) -> None:
        self.status.last_word = event.title

    def _failed(self, event: ev.Failed) -> None:
        self._fail(event, event.title, event.cause, event.next_step)

    def _died(self, event: ev.Died) -> None:
        self._fail(event, "The worker process ended", f"{event.why} {event.log}".strip(),
                   "Nothing is lost: press f5 to measure again; o shows the log.")

    def _fail(self, event: ev.Failed | ev.Died, title: str, cause: str, next_step: str) -> None:
        self.status.last_word = f"failed: {title}"
        if self.session.outline is None:
            self.status.failure = event
        self.desk.show_failure(title, cause, next_step)

    @action("f5", label="compare", help="Measure everything again", group="Work", disabled=Controller.nothing_to_ask)
    def compare(self) -> None:
        """Measures again."""
        self.session.compare()
        self.status.last_word = ""
        self.desk.draw_status()

    def no_job(self) -> str:
        """Why there is nothing to stop."""
        return "" if self.session.busy or self.session.job is not None else "no job is running"

    @action("x", label="stop", help="Stop the running job (asks if it is older than 10 s)", group="Work",
            disabled=no_job, footer=60)
    def stop(self) -> None:
        """Stops the job, an old one after a question."""
        started = self.session.job_started
        age = time.monotonic() - started if started is not None else 0.0
        if age <= ASK_AFTER_S:
            self._stop()
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._stop()

        phase = self.session.job.phase if self.session.job is not None else "job"
        self.desk.app.push_screen(Question(f"Stop {phase}? It has run for {duration(age)}.", "stop it", "go on"),
                                  answered)

    def _stop(self) -> None:
        self.session.stop_job()
        self.status.last_word = "stopping …" if self.session.busy else "stopped; the last results stay"
        self.desk.draw_status()
