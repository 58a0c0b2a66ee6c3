"""Decides which job goes on: after each step the most urgent one.

So a what-if or a look at a layer is answered in the middle of a long comparison. A newer request of a kind replaces the
older one.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trt_tui.core.engines.failures import NoEngine
from trt_tui.core.hands import Hands
from trt_tui.errors import CancelledError, TrtTuiError, memory_error, system_error, text_of
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.steps import GiveWay, Steps, Urgency, Wait
from trt_tui.workspace import ReplacedError

WAITED_FOR = Urgency.FIRST_VERDICT
"""What is as urgent as this, or more, is what a person waits for."""

REPORT_S = 0.1
"""Least time between two reports of one kind."""


@dataclass
class Task:
    """A request, and how far its job is."""

    job: int
    request: rq.Request
    urgency: Urgency
    steps: Steps[None] | None = None
    waits: Wait | None = None
    begun: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Tasks of one urgency run in the order of their numbers, in the background and of shares newest first."""
        return (self.urgency, -self.job if self.urgency in (Urgency.MAP, Urgency.BACKGROUND) else self.job)


class Scheduler:
    """Turns requests into tasks, and runs their steps.

    Args:
        start: Returns the steps of a request.
        urgencies: How urgent the first step of a request is, by its type; `Urgency.OPENING` by default.
        send: Called with each event.
        lasting: Types of requests that are not replaced by a newer one.
        hold: Called with whether a person waits for the next step, where that changes: other processes at work for this
            one are to keep off the processor until it is done.

    Attributes:
        inbox: Requests that have come in, with the numbers of their jobs; filled by another thread.
        arrived: Set when there is something to do.
        to_stop: Numbers of jobs that are to end; see `stop`.
    """

    def __init__(self, start: Callable[[rq.Request, Report], Steps[None]],
                 urgencies: Mapping[type[rq.Request], Urgency], send: Callable[[ev.Event], None], *,
                 lasting: Collection[type[rq.Request]] = (), hold: Callable[[bool], None] = lambda held: None) -> None:
        self.inbox: deque[tuple[int, rq.Request]] = deque()
        self.arrived = threading.Event()
        self.to_stop: set[int] = set()
        self.tasks: list[Task] = []
        self.send = send
        self._lock = threading.Lock()
        self._current: Task | None = None
        self._answered: set[int] = set()
        self._start = start
        self._urgencies = urgencies
        self._lasting = lasting
        self._hold, self._held = hold, False
        self._reported: dict[str, float] = {}

    def serve(self) -> None:
        """Runs steps, and waits for requests, without end."""
        while True:
            self.arrived.clear()
            if not self.step():
                self.arrived.wait()

    def stop(self, jobs: Collection[int]) -> None:
        """Has jobs end; called by another thread.

        A job that waits for the step of another one is reported as stopped at once, and ended after that step. A search
        is not: its end tells what it found.
        """
        with self._lock:
            self.to_stop.update(jobs)
            if self._current is None or self._current.job in self.to_stop:
                return
            waiting = [*((task.job, task.request) for task in self.tasks), *self.inbox]
            early = {job for job, request in waiting if job in jobs and not isinstance(request, rq.FindConfig)}
            for job in sorted(early - self._answered):
                self._answered.add(job)
                self.send(ev.Cancelled(job))

    def step(self) -> bool:
        """Does one step of the most urgent task; False where there is none to do."""
        self._take_in()
        waiting = [task for task in self.tasks if task.waits is not None and not _is_ready(task.waits)]
        behind = {one for task in waiting if task.waits is not None for one in task.waits.ahead_of}
        ready = [task for task in self.tasks if task not in waiting and task.urgency not in behind]
        following = min(ready, key=lambda task: task.rank, default=None)
        held = following is not None and following.urgency <= WAITED_FOR
        if held != self._held:
            self._held = held
            self._hold(held)
        if following is not None:
            self._advance(following)
        return following is not None

    def urgency(self, request: rq.Request) -> Urgency:
        """How urgent the first step of a request is."""
        return self._urgencies.get(type(request), Urgency.OPENING)

    def due(self, kind: str) -> bool:
        """Whether enough time has passed since the last report of a kind."""
        now = time.monotonic()
        if now - self._reported.get(kind, 0.0) < REPORT_S:
            return False
        self._reported[kind] = now
        return True

    def _take_in(self) -> None:
        """Turns the requests that have come in into tasks, and ends those that were replaced or stopped."""
        while self.inbox:
            self._end_stopped()
            with self._lock:
                job, request = self.inbox.popleft()
                replaced = [task for task in self.tasks
                            if type(task.request) is type(request) and type(request) not in self._lasting]
                self.tasks.append(Task(job, request, self.urgency(request)))
            for older in replaced:
                self._end(older, ev.Done(older.job, replaced=True))
        self._end_stopped()

    def _end_stopped(self) -> None:
        for task in [task for task in self.tasks if task.job in self.to_stop]:
            self._end(task, ev.Cancelled(task.job))

    def _advance(self, task: Task) -> None:
        """Does one step of a task."""
        with self._lock:
            self._current = task
        try:
            if not task.begun:
                task.begun = True
                self.send(ev.Begun(task.job))
            if task.steps is None:
                task.steps = self._start(task.request, Report(self, task))
            following = next(task.steps)
            task.waits = following if isinstance(following, Wait) else None
            if not isinstance(following, Wait):
                task.urgency = following
            return
        except StopIteration:
            ending: ev.Event = ev.Done(task.job)
        except GiveWay:
            task.steps = None
            return
        except CancelledError:
            ending = ev.Cancelled(task.job)
        except BaseException as error:  # a user's script may raise whatever it likes
            ending = _failed(task.job, error)
        finally:
            with self._lock:
                self._current = None
        self._end(task, ending)

    def _end(self, task: Task, ending: ev.Event) -> None:
        """Ends a task. What fails while its steps are closed is printed to the log, and changes no other task."""
        with self._lock:
            self.tasks.remove(task)
            answered = task.job in self._answered
            self._answered.discard(task.job)
        try:
            if task.steps is not None:
                task.steps.close()
        except BaseException:
            traceback.print_exc()
        if not answered:
            self.send(ending)


def _is_ready(waits: Wait) -> bool:
    """Returns True if a task can go on, also where that cannot be told: its next step says why."""
    try:
        return waits.ready()
    except Exception:
        traceback.print_exc()
        return True


def _failed(job: int, error: BaseException) -> ev.Failed:
    """The event that reports an error; the traceback of an unexpected one is printed to the log."""
    if isinstance(error, ReplacedError):
        return ev.Replaced(job, error.title, error.cause, error.next_step, int(error.exit_code), files=error.files)
    if not isinstance(error, TrtTuiError):
        traceback.print_exc()
    if isinstance(error, MemoryError):
        error = memory_error(error)
    elif isinstance(error, OSError):
        error = system_error(error)
    if isinstance(error, TrtTuiError):
        rungs = error.rungs if isinstance(error, NoEngine) else ()
        return ev.Failed(job, error.title, error.cause, error.next_step, int(error.exit_code), rungs=rungs)
    return ev.Failed(job, f"unexpected {type(error).__name__}", text_of(error),
                     "This is a defect of trt-tui; the log has the traceback.", detail=traceback.format_exc())


class Report:
    """Sends what a job reports, and tells it whether it may go on."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler, self._task = scheduler, task
        self.job = task.job
        self.send = scheduler.send
        self.due = scheduler.due
        self.wake = scheduler.arrived.set

    def progress(self, phase: str, done: int, total: int, since: float) -> None:
        """Reports how far the job is, at most every `REPORT_S` seconds; ``since`` is when the phase began."""
        if done == total or self.due("progress"):
            left = (time.monotonic() - since) / done * (total - done) if done and total > done else None
            self.send(ev.Progress(self.job, phase, done, total, left))

    def sweeping(self, phase: str, gives_way: bool = False, hands: Hands[Any] | None = None
                 ) -> Callable[[int, int], None]:
        """A progress callback that ends a sweep over the samples when its job is stopped.

        Args:
            gives_way: The sweep also ends when something more urgent or a newer request of this kind has come in.
            hands: Who does it, which is said.
        """
        since, scheduler, request = time.monotonic(), self._scheduler, self._task.request

        def progress(done: int, total: int) -> None:
            self.progress(phase + (hands.words if hands is not None else ""), done, total, since)
            if self.job in scheduler.to_stop:
                raise CancelledError("stopped")
            if gives_way and any(
                    type(later) is type(request) or scheduler.urgency(later) < scheduler.urgency(request)
                    for _, later in tuple(scheduler.inbox)):
                raise GiveWay

        return progress
