"""The requests to the child process that it has not answered yet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq

ENDINGS = (ev.SearchEnded, ev.Done, ev.Cancelled, ev.Failed, ev.Died)
"""Events that are taken in even of a stopped job."""


class Asked(Mapping[int, rq.Request]):
    """The requests under way, by the number of their job.

    Attributes:
        progress: How far the running job is; None while that is unknown.
        started: When the first of them was sent, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.progress: ev.Progress | None = None
        self.started: float | None = None
        self._requests: dict[int, rq.Request] = {}
        self._stopped: set[int] = set()

    def __getitem__(self, job: int) -> rq.Request:
        return self._requests[job]

    def __iter__(self) -> Iterator[int]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, job: int, request: rq.Request) -> None:
        """Counts a request as under way."""
        self._requests[job] = request
        if self.started is None:
            self.started = time.monotonic()

    def end(self, job: int) -> rq.Request | None:
        """Counts a request as answered; returns it, or None if it was not under way."""
        request = self._requests.pop(job, None)
        self._stopped.discard(job)
        if not self.keep_busy:
            self.progress = self.started = None
        return request

    def stop(self) -> None:
        """Counts all as stopped: of their events only those that end them are taken in."""
        self._stopped.update(self._requests)

    def stopped(self, job: int) -> bool:
        """Whether a job was stopped and has not ended yet."""
        return job in self._stopped

    def heeds(self, event: ev.Event) -> bool:
        """Whether an event is to be taken in: all of jobs that were not stopped, the end of those that were."""
        return event.job not in self._stopped or isinstance(event, ENDINGS)

    @property
    def keep_busy(self) -> bool:
        """Whether any are under way that somebody waits for: previews and flips are not."""
        return not all(isinstance(request, (rq.PreviewEngine, rq.TryFlips)) for request in self._requests.values())

    def any(self, *kinds: type[rq.Request]) -> bool:
        """Whether a request of some kinds is under way."""
        return any(isinstance(request, kinds) for request in self._requests.values())
