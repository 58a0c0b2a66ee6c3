"""A job of the child process as people see it: what it is called, how far it is, how long it took and how it ended."""

import time
from dataclasses import dataclass, field

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq

DONE, STOPPED, FAILED, REPLACED = "done", "stopped", "failed", "replaced by a newer one"


@dataclass
class Job:
    """A request from when it was sent; times are seconds of the monotonic clock, None while they are to come.

    Attributes:
        title: What it is called.
        sent_unix_time: Unix time when it was sent.
        begin_time: When the child process began with it.
        outcome: How it ended; "" until then.
        phase: What it does, "" where that is not told.
        phase_start_time: When that phase began.
        progress: How far the phase is; None where that is unknown, or it is over and the next is not told.
        is_stopping: Whether it was told to stop.
    """

    number: int
    request: rq.Request
    title: str
    sent_time: float = field(default_factory=time.monotonic)
    sent_unix_time: float = field(default_factory=time.time)
    begin_time: float | None = None
    end_time: float | None = None
    outcome: str = ""
    phase: str = ""
    phase_start_time: float = 0.0
    progress: ev.JobProgress | None = None
    is_stopping: bool = False

    def begin(self) -> None:
        """The child process works on it."""
        if self.begin_time is None:
            self.begin_time = self.phase_start_time = time.monotonic()

    def update_progress(self, progress: ev.JobProgress) -> None:
        """Takes in how far it is."""
        self.begin()
        if progress.phase != self.phase:
            self.phase, self.phase_start_time = progress.phase, time.monotonic()
        is_over = progress.total > 0 and progress.done >= progress.total
        if is_over:
            self.phase_start_time = time.monotonic()
        self.progress = progress if progress.total and not is_over else None

    def end(self, outcome: str) -> None:
        """It ended."""
        self.outcome, self.end_time, self.progress = outcome, time.monotonic(), None

    @property
    def is_automatic(self) -> bool:
        """Whether it follows the cursor or a change: nobody asked for it by a key."""
        return self.request.job_kind.is_automatic

    @property
    def duration_s(self) -> float:
        """How long it has run or ran; before it began, how long it waits."""
        start = self.begin_time if self.begin_time is not None else self.sent_time
        return (self.end_time if self.end_time is not None else time.monotonic()) - start

    @property
    def phase_duration_s(self) -> float:
        """How long its phase has run; before it began, how long it waits."""
        return time.monotonic() - (self.phase_start_time if self.begin_time is not None else self.sent_time)
