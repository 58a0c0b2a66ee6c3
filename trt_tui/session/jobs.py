"""The jobs of the background process as the user interface shows them, and the requests whose jobs have not ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq

DONE, STOPPED, FAILED, REPLACED = "done", "stopped", "failed", "replaced by a newer one"

MAX_JOBS = 300
"""The number of last jobs that a session remembers."""


@dataclass
class Job:
    """One request to the background process, from the time when it is sent, with its progress and outcome.

    Times are seconds of the monotonic clock, and None if they are in the future.

    Attributes:
        title: The name of the job for users.
        sent_unix_time: Unix time when the request was sent.
        begin_time: The time when the background process began the job.
        outcome: The outcome of the job; "" until it ends.
        phase: The current phase of the job; "" if unknown.
        phase_start_time: The time when the phase began.
        progress: The progress of the phase. None if it is unknown, or the phase is over and the next is not known yet.
        progress_time: The time when the progress arrived.
        is_stopping: True if the job has been asked to stop.
        awaited_job: The job that runs while this one is ready for its next step; None if it does not wait.
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
    progress_time: float = 0.0
    is_stopping: bool = False
    awaited_job: Job | None = None

    def mark_begun(self) -> None:
        """Records that the background process has begun the job."""
        if self.begin_time is None:
            self.begin_time = self.phase_start_time = time.monotonic()

    def update_progress(self, progress: ev.JobProgress) -> None:
        self.mark_begun()
        if progress.phase != self.phase:
            self.phase, self.phase_start_time = progress.phase, time.monotonic()
        is_over = progress.total > 0 and progress.done >= progress.total
        if is_over:
            self.phase_start_time = time.monotonic()
        self.progress = progress if progress.total and not is_over else None
        self.progress_time = time.monotonic()

    @property
    def left_s(self) -> float | None:
        """The last estimate of the time left in seconds; None if there is none, or the estimate has expired."""
        estimate = self.progress.left_s if self.progress is not None else None
        return estimate if estimate is not None and estimate >= max(1, time.monotonic() - self.progress_time) else None

    @property
    def is_automatic(self) -> bool:
        """True if the job follows the cursor or a change of the config, without a key press that requests it."""
        return self.request.job_kind.is_automatic

    @property
    def duration_s(self) -> float:
        """The run time of the job in seconds; before the job begins, the waiting time."""
        start = self.begin_time if self.begin_time is not None else self.sent_time
        return (self.end_time if self.end_time is not None else time.monotonic()) - start


class PendingRequests(dict[int, Job]):
    """The requests without a final answer from the background process, with their jobs, by job number.

    Attributes:
        jobs: The last jobs in the order of their requests, including the pending jobs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jobs: deque[Job] = deque(maxlen=MAX_JOBS)

    def add_request(self, job_number: int, request: rq.Request, title: str) -> None:
        """Adds a request as pending, with the title of its job."""
        self[job_number] = Job(job_number, request, title)
        self.jobs.append(self[job_number])

    def end_request(self, job_number: int, outcome: str) -> Job | None:
        """Removes a request that has ended. Returns its job, or None if the request was not pending."""
        if (job := self.pop(job_number, None)) is not None:
            job.outcome, job.end_time, job.progress = outcome, time.monotonic(), None
        return job

    def mark_jobs_stopped(self, job_numbers: Iterable[int]) -> None:
        """Marks jobs as stopped. Of the later events of these jobs, only the events that end them are applied."""
        for number in self.keys() & set(job_numbers):
            self[number].is_stopping = True

    def is_job_stopping(self, job_number: int) -> bool:
        """Returns True if a job was stopped and has not ended yet."""
        return job_number in self and self[job_number].is_stopping

    def accepts_event(self, event: ev.Event) -> bool:
        """Returns True if an event is applied. Of a stopped job, only the events that end the job are applied."""
        return not self.is_job_stopping(event.job) or isinstance(
            event, ev.SearchEnded | ev.JobDone | ev.JobCancelled | ev.JobFailed | ev.ChildProcessDied
        )

    @property
    def unfinished_jobs(self) -> list[Job]:
        """The running and waiting jobs.

        A search comes first, then other jobs that the user requested, and automatic jobs last. Of each kind, running
        jobs come first, beginning with the one that reported a new phase last.
        """

        def sort_key(job: Job) -> tuple[bool, bool, bool, float]:
            is_search = isinstance(job.request, rq.FindMixedPrecisionConfig)
            return not is_search, job.is_automatic, job.begin_time is None, -job.phase_start_time

        return sorted(self.values(), key=sort_key)

    def has_request(self, *kinds: type[rq.Request]) -> bool:
        return any(isinstance(job.request, kinds) for job in self.values())
