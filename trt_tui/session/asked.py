"""The requests to the child process: those that it has not answered yet, and the jobs of all of them."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.job import BY_ITSELF, Job

ENDINGS = (ev.SearchEnded, ev.Done, ev.Cancelled, ev.Failed, ev.Died)
"""Events that are taken in even of a stopped job."""

MOST_JOBS = 300
"""Jobs that are remembered."""


class Asked(Mapping[int, rq.Request]):
    """The requests under way, by the number of their job.

    Attributes:
        jobs: The last jobs, in the order in which they were asked for, with those under way.
    """

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque(maxlen=MOST_JOBS)
        self._under_way: dict[int, Job] = {}
        self._stopped: set[int] = set()

    def __getitem__(self, job: int) -> rq.Request:
        return self._under_way[job].request

    def __iter__(self) -> Iterator[int]:
        return iter(self._under_way)

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, job: int, request: rq.Request, words: str) -> None:
        """Counts a request as under way; ``words`` are what its job is called."""
        self._under_way[job] = Job(job, request, words)
        self.jobs.append(self._under_way[job])

    def job(self, number: int) -> Job | None:
        """A job that is under way."""
        return self._under_way.get(number)

    def take(self, progress: ev.Progress) -> None:
        """Takes in how far a job is."""
        if (job := self._under_way.get(progress.job)) is not None:
            job.take(progress)

    def end(self, number: int, how: str) -> Job | None:
        """Counts a request as answered; returns its job, or None if it was not under way."""
        job = self._under_way.pop(number, None)
        self._stopped.discard(number)
        if job is not None:
            job.end(how)
        return job

    def stop(self, numbers: Iterable[int]) -> None:
        """Counts requests as stopped: of their events only those that end them are taken in."""
        for number in self._under_way.keys() & set(numbers):
            self._stopped.add(number)
            self._under_way[number].stopping = True

    def stopped(self, job: int) -> bool:
        """Whether a job was stopped and has not ended yet."""
        return job in self._stopped

    def heeds(self, event: ev.Event) -> bool:
        """Whether an event is to be taken in: all of jobs that were not stopped, the end of those that were."""
        return event.job not in self._stopped or isinstance(event, ENDINGS)

    @property
    def running(self) -> list[Job]:
        """The jobs that the child process has begun with, first what somebody waits for, what told last first."""
        begun = [job for job in self._under_way.values() if job.begun is not None]
        return sorted(begun, key=lambda job: (isinstance(job.request, BY_ITSELF), -job.since))

    @property
    def waiting(self) -> list[Job]:
        """The jobs that the child process has not begun with."""
        return [job for job in self._under_way.values() if job.begun is None]

    @property
    def last(self) -> Job | None:
        """The job that ended last, of those that somebody asked for and that were begun."""
        ended = [job for job in reversed(self.jobs)
                 if job.ended is not None and job.begun is not None and not isinstance(job.request, BY_ITSELF)]
        return max(ended, key=lambda job: job.ended or 0.0, default=None)

    @property
    def keep_busy(self) -> bool:
        """Whether any are under way that somebody waits for: previews and flips are not."""
        return not all(isinstance(job.request, (rq.PreviewEngine, rq.TryFlips)) for job in self._under_way.values())

    def numbers(self, kind: type[rq.Request]) -> list[int]:
        """The numbers of the requests of a kind that are under way."""
        return [number for number, job in self._under_way.items() if isinstance(job.request, kind)]

    def any(self, *kinds: type[rq.Request]) -> bool:
        """Whether a request of some kinds is under way."""
        return any(isinstance(job.request, kinds) for job in self._under_way.values())
