"""Jobs of the child process as the user sees them, and the requests that it has not answered yet."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq

DONE, STOPPED, FAILED, REPLACED = "done", "stopped", "failed", "replaced by a newer one"

MAX_JOBS = 300
"""Jobs that are remembered."""


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


class PendingRequests(Mapping[int, rq.Request]):
    """The requests under way, by the number of their job.

    Attributes:
        jobs: The last jobs, in the order in which they were asked for, with those under way.
    """

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque(maxlen=MAX_JOBS)
        self._pending_jobs: dict[int, Job] = {}
        self._stopped_numbers: set[int] = set()

    def __getitem__(self, job: int) -> rq.Request:
        return self._pending_jobs[job].request

    def __iter__(self) -> Iterator[int]:
        return iter(self._pending_jobs)

    def __len__(self) -> int:
        return len(self._pending_jobs)

    def add_request(self, job_number: int, request: rq.Request, title: str) -> None:
        """Counts a request as under way; ``title`` are what its job is called."""
        self._pending_jobs[job_number] = Job(job_number, request, title)
        self.jobs.append(self._pending_jobs[job_number])

    def find_job(self, job_number: int) -> Job | None:
        """A job that is under way."""
        return self._pending_jobs.get(job_number)

    def update_progress(self, progress: ev.JobProgress) -> None:
        """Takes in how far a job is."""
        if (job := self._pending_jobs.get(progress.job)) is not None:
            job.update_progress(progress)

    def end_request(self, job_number: int, outcome: str) -> Job | None:
        """Counts a request as answered; returns its job, or None if it was not under way."""
        job = self._pending_jobs.pop(job_number, None)
        self._stopped_numbers.discard(job_number)
        if job is not None:
            job.end(outcome)
        return job

    def mark_jobs_stopped(self, job_numbers: Iterable[int]) -> None:
        """Counts requests as stopped: of their events only those that end them are taken in."""
        for number in self._pending_jobs.keys() & set(job_numbers):
            self._stopped_numbers.add(number)
            self._pending_jobs[number].is_stopping = True

    def is_job_stopping(self, job_number: int) -> bool:
        """Whether a job was stopped and has not ended yet."""
        return job_number in self._stopped_numbers

    def accepts_event(self, event: ev.Event) -> bool:
        """Returns True if an event is applied: any event of a job that was not stopped, else what ends the job."""
        return event.job not in self._stopped_numbers or isinstance(
            event, ev.SearchEnded | ev.JobDone | ev.JobCancelled | ev.JobFailed | ev.ChildProcessDied)

    @property
    def running_jobs(self) -> list[Job]:
        """The jobs that the child process has begun with, first what somebody waits for, what told last first."""
        begun_jobs = [job for job in self._pending_jobs.values() if job.begin_time is not None]
        return sorted(begun_jobs, key=lambda job: (job.is_automatic, -job.phase_start_time))

    @property
    def waiting_jobs(self) -> list[Job]:
        """The jobs that the child process has not begun with."""
        return [job for job in self._pending_jobs.values() if job.begin_time is None]

    @property
    def last_ended_job(self) -> Job | None:
        """The job that ended last, of those that somebody asked for and that were begun."""
        ended_jobs = [
            job for job in reversed(self.jobs) if job.end_time is not None and job.begin_time is not None
            and not job.is_automatic
        ]
        return max(ended_jobs, key=lambda job: job.end_time or 0.0, default=None)

    @property
    def has_foreground_request(self) -> bool:
        """Whether any are under way that somebody waits for."""
        return any(request.job_kind.is_waited_for for request in self.values())

    def list_job_numbers(self, request_type: type[rq.Request]) -> list[int]:
        """The numbers of the requests of a kind that are under way."""
        return [number for number, job in self._pending_jobs.items() if isinstance(job.request, request_type)]

    def has_request(self, *kinds: type[rq.Request]) -> bool:
        """Whether a request of some kinds is under way."""
        return any(isinstance(job.request, kinds) for job in self._pending_jobs.values())
