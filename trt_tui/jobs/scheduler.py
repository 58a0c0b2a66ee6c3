"""The scheduler of the background process, which runs the next step of the most urgent job, and the steps of jobs.

A what-if or the statistics of a layer are therefore answered in the middle of a long comparison. A newer request of a
kind replaces the older one. A step has an urgency, or a condition that the job waits for.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from trt_tui.core.measure.results import Accuracy, K, ResultKind, V
from trt_tui.core.measure.simulation import PartialResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.runner import Executor, LocalExecutor, Waitable, map_generator_items
from trt_tui.errors import CancelledError, TrtTuiError, convert_memory_error, convert_os_error, exception_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.requests import Urgency as Urgency
from trt_tui.workspace import Workspace

T = TypeVar("T")


@dataclass(frozen=True)
class WaitStep:
    """A step that waits until ``ready`` returns True, while a thread or another process works.

    Attributes:
        blocked_urgencies: The urgencies of other jobs' steps that wait too, so that the awaited work has the processor.
    """

    ready: Callable[[], bool]
    blocked_urgencies: frozenset[Urgency] = frozenset()


Steps = Generator[Urgency | WaitStep, None, T]
"""The type of a job's generator, which executes one step at a time.

Most steps are one batch. The generator yields the urgency of the next step, or the condition to wait for.
"""


@dataclass(frozen=True)
class Progress:
    """The progress of a measurement. A ``total`` of 0 means that the end is unknown."""

    phase: str
    done: int = 0
    total: int = 0


ProgressSteps = Generator[Progress | WaitStep, None, T]
"""The type of a generator that yields its progress. `Reporter.run_steps` runs it as steps of a job."""


def override_urgency(urgency: Urgency, steps: Generator[object, None, T]) -> Steps[T]:
    """Runs steps with the given urgency in place of their own, and returns their result."""
    return map_generator_items(steps, lambda step: step if isinstance(step, WaitStep) else urgency)


def start_thread(function: Callable[[], T], wake: Callable[[], None]) -> Future[T]:
    """Calls a function in a thread. Returns the future of its result. The result is set before ``wake`` is called."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        wake()

    threading.Thread(target=run, daemon=True).start()
    return future


class PreemptionError(Exception):
    """The interruption of a job by a more urgent job. The interrupted job starts again afterwards."""


INTERACTIVE_URGENCIES = frozenset(
    {Urgency.OPENING, Urgency.WHAT_IF, Urgency.TENSOR_STATS, Urgency.REMEDIES, Urgency.FIRST_ACCURACY}
)
"""The urgencies of short steps that the user waits for. Previews pause meanwhile."""

MIN_REPORT_INTERVAL_S = 0.1
"""The minimum time in seconds between two reports of one kind."""


@dataclass
class ScheduledJob:
    """A request with the state of its job.

    Attributes:
        paused_s: The seconds in which other jobs ran although the job was ready for its next step.
        pause_time: The time when its last step ended.
    """

    job: int
    request: rq.Request
    urgency: Urgency
    steps: Steps[None] | None = None
    wait: WaitStep | None = None
    paused_s: float = 0.0
    pause_time: float = 0.0

    @property
    def priority_key(self) -> tuple[int, int]:
        """The sort key of jobs, the next job first: by urgency, then by number.

        For first error shares and background work, the newest job comes first; for other urgencies, the oldest.
        """
        return (self.urgency, -self.job if self.urgency in (Urgency.FIRST_SHARES, Urgency.BACKGROUND) else self.job)


class Scheduler:
    """The scheduler that turns requests into jobs and runs their steps.

    Args:
        start_job: A function that returns the steps of a request.
        send: A function that is called with each event.
        pause_others: A function that is called with True when the user waits for the next step, and with False
            afterwards. Other processes of this program then leave the processor to the step.

    Attributes:
        inbox: The new requests, each with the number of its job. Another thread fills it.
        arrival_event: An event that is set when there is something to do.
        jobs_to_stop: The numbers of the jobs that must end.
    """

    def __init__(
        self,
        start_job: Callable[[rq.Request, JobReporter], Steps[None]],
        send: Callable[[ev.Event], None],
        *,
        pause_others: Callable[[bool], None] = lambda is_paused: None,
    ) -> None:
        self.inbox: deque[tuple[int, rq.Request]] = deque()
        self.arrival_event = threading.Event()
        self.jobs_to_stop: set[int] = set()
        self.scheduled_jobs: list[ScheduledJob] = []
        self.send = send
        self._lock = threading.Lock()
        self._current_job: ScheduledJob | None = None
        self._reported_stopped: set[int] = set()
        self._start_job = start_job
        self._pause_others, self._others_paused = pause_others, False
        self._last_report_times: dict[str, float] = {}
        self._last_started: ev.JobStarted | None = None

    def serve_requests(self) -> None:
        """Runs steps and waits for requests, without end."""
        while True:
            self.arrival_event.clear()
            if not self.run_next_step():
                self.arrival_event.wait()

    @property
    def is_executing_job(self) -> bool:
        return self._current_job is not None

    def stop_jobs(self, jobs: Collection[int]) -> None:
        """Stops jobs. Another thread calls this method.

        A job that waits while another job executes a step is reported as stopped at once, and ended after that step. A
        job that answers when it is stopped is only ended after the step.
        """
        with self._lock:
            self.jobs_to_stop.update(jobs)
            if self._current_job is None or self._current_job.job in self.jobs_to_stop:
                return
            waiting = [*((scheduled.job, scheduled.request) for scheduled in self.scheduled_jobs), *self.inbox]
            stopped_early = {
                job for job, request in waiting if job in jobs and not request.job_kind.answers_when_stopped
            }
            for job in sorted(stopped_early - self._reported_stopped):
                self._reported_stopped.add(job)
                self.send(ev.JobCancelled(job))

    def run_next_step(self) -> bool:
        """Runs one step of the most urgent job. Returns False if no job can run."""
        self._accept_requests()
        waiting_jobs = [
            scheduled_job
            for scheduled_job in self.scheduled_jobs
            if scheduled_job.wait is not None and not _is_wait_over(scheduled_job.wait)
        ]
        blocked = {
            urgency
            for scheduled_job in waiting_jobs
            if scheduled_job.wait is not None
            for urgency in scheduled_job.wait.blocked_urgencies
        }
        ready_jobs = [
            scheduled_job
            for scheduled_job in self.scheduled_jobs
            if scheduled_job not in waiting_jobs and scheduled_job.urgency not in blocked
        ]
        next_job = min(ready_jobs, key=lambda task: task.priority_key, default=None)
        is_interactive = next_job is not None and next_job.urgency in INTERACTIVE_URGENCIES
        if is_interactive != self._others_paused:
            self._others_paused = is_interactive
            self._pause_others(is_interactive)
        if next_job is not None:
            paused_jobs = tuple(ready_job.job for ready_job in ready_jobs if ready_job is not next_job)
            if (started := ev.JobStarted(next_job.job, paused_jobs)) != self._last_started:
                self._last_started = started
                self.send(started)
            self._advance_job(next_job)
        return next_job is not None

    def is_report_due(self, report_kind: str) -> bool:
        """Returns True if enough time has passed since the last report of a kind. If True, this call counts as a
        report."""
        now = time.monotonic()
        if now - self._last_report_times.get(report_kind, 0.0) < MIN_REPORT_INTERVAL_S:
            return False
        self._last_report_times[report_kind] = now
        return True

    def _accept_requests(self) -> None:
        """Turns new requests into jobs, and ends the jobs that were replaced or stopped."""
        while self.inbox:
            self._end_stopped_jobs()
            with self._lock:
                job, request = self.inbox.popleft()
                replaced = [
                    scheduled_job
                    for scheduled_job in self.scheduled_jobs
                    if type(scheduled_job.request) is type(request) and request.job_kind.is_replaceable
                ]
                self.scheduled_jobs.append(ScheduledJob(job, request, request.job_kind.urgency))
            for older in replaced:
                self._end_job(older, ev.JobDone(older.job, was_replaced=True))
        self._end_stopped_jobs()

    def _end_stopped_jobs(self) -> None:
        for scheduled_job in [
            scheduled_job for scheduled_job in self.scheduled_jobs if scheduled_job.job in self.jobs_to_stop
        ]:
            self._end_job(scheduled_job, ev.JobCancelled(scheduled_job.job))

    def _advance_job(self, scheduled_job: ScheduledJob) -> None:
        """Runs one step of a job, and ends the job after its last step."""
        with self._lock:
            self._current_job = scheduled_job
        try:
            if scheduled_job.steps is None:
                scheduled_job.steps = self._start_job(scheduled_job.request, JobReporter(self, scheduled_job))
            elif scheduled_job.wait is None:
                scheduled_job.paused_s += time.monotonic() - scheduled_job.pause_time
            step = next(scheduled_job.steps)
            scheduled_job.pause_time = time.monotonic()
            scheduled_job.wait = step if isinstance(step, WaitStep) else None
            if not isinstance(step, WaitStep):
                scheduled_job.urgency = step
            return
        except StopIteration:
            ending: ev.Event = ev.JobDone(scheduled_job.job)
        except PreemptionError:
            scheduled_job.steps = None
            return
        except (CancelledError, KeyboardInterrupt):  # a SIGINT to this process alone stops the job that it meets
            ending = ev.JobCancelled(scheduled_job.job)
        except BaseException as error:  # a user's script may raise any exception
            if isinstance(error, TrtTuiError) and error.raw_message:
                self.send(ev.LogMessage(scheduled_job.job, error.raw_message, "raw"))
            ending = _make_failed_event(scheduled_job.job, error)
        finally:
            with self._lock:
                self._current_job = None
        self._end_job(scheduled_job, ending)

    def _end_job(self, scheduled_job: ScheduledJob, end_event: ev.Event) -> None:
        """Ends a job. An error while its steps are closed is printed to the log and does not affect other jobs."""
        with self._lock:
            self.scheduled_jobs.remove(scheduled_job)
            was_reported = scheduled_job.job in self._reported_stopped
            self._reported_stopped.discard(scheduled_job.job)
        try:
            if scheduled_job.steps is not None:
                scheduled_job.steps.close()
        except BaseException:
            traceback.print_exc()
        if not was_reported:
            self.send(end_event)


def _is_wait_over(wait: WaitStep) -> bool:
    """Returns True if the condition that a job waits for is met, or cannot be evaluated.

    In the second case, the next step of the job reports the error.
    """
    try:
        return wait.ready()
    except Exception:
        traceback.print_exc()
        return True


def _make_failed_event(job: int, error: BaseException) -> ev.JobFailed:
    """Returns the event that reports an error. The traceback of an unexpected error is printed to the log."""
    if not isinstance(error, TrtTuiError):
        traceback.print_exc()
    if isinstance(error, MemoryError):
        error = convert_memory_error(error)
    elif isinstance(error, OSError):
        error = convert_os_error(error)
    if isinstance(error, TrtTuiError):
        return ev.JobFailed(job, error)
    defect = TrtTuiError(
        f"unexpected {type(error).__name__}",
        exception_text(error),
        "This is a defect of trt-tui; the log has the traceback.",
    )
    return ev.JobFailed(job, defect, traceback.format_exc())


def run_to_last_value(partials: Iterable[PartialResult[T] | Waitable], phase: str = "") -> ProgressSteps[T]:
    """Runs a measurement to its end, yields its progress, and returns its last value."""
    for partial in partials:
        if isinstance(partial, PartialResult):
            value = partial.value
            yield Progress(phase, partial.done_count, partial.total_count)
        elif isinstance(partial, WaitStep):
            yield partial
    return value


class Reporter:
    """The reporter of work outside a job, such as work on a worker. It sends nothing.

    Attributes:
        job: The number of the job; 0 without a job.
        send: A function that sends an event.
        wake: A function that another thread calls when the work can continue.
    """

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self.job = 0
        self.send: Callable[[ev.Event], None] = lambda event: None
        self.wake: Callable[[], None] = wake or (lambda: None)

    def log(self, text: str, level: str = "info") -> None:
        """Sends a line for the log pane. The levels are those of `LogMessage`."""
        self.send(ev.LogMessage(self.job, text, level))

    def send_value(
        self, kind: ResultKind[K, V], key: K, value: V, accuracies: Mapping[PrecisionConfig, Accuracy] | None = None
    ) -> None:
        """Sends a measured value, as `ValueMeasured` describes it."""
        self.send(ev.ValueMeasured(self.job, kind, key, value, accuracies or {}))

    def send_progress(self, phase: str, done: int, total: int) -> None:
        """Sends the progress of a job."""

    def run_steps(self, steps: ProgressSteps[T], urgency: Urgency = Urgency.BUILD, phase_prefix: str = "") -> Steps[T]:
        """Runs the steps of a measurement, sends their progress, and returns their result.

        Progress without a phase is not sent.

        Args:
            urgency: The urgency of all steps.
            phase_prefix: The text before each phase.
        """

        def report_progress(step: Progress | WaitStep) -> Urgency | WaitStep:
            if isinstance(step, WaitStep):
                return step
            if step.phase:
                self.send_progress(phase_prefix + step.phase, step.done, step.total)
            return urgency

        return map_generator_items(steps, report_progress)


class JobReporter(Reporter):
    """The reporter of a job. It sends the events and the progress of the job, and ends measurements of a stopped job."""

    def __init__(self, scheduler: Scheduler, scheduled_job: ScheduledJob) -> None:
        super().__init__(scheduler.arrival_event.set)
        self._scheduler, self._scheduled_job = scheduler, scheduled_job
        self.job, self.send, self.is_report_due = scheduled_job.job, scheduler.send, scheduler.is_report_due
        self._phase_progress: dict[str, tuple[int, float]] = {}
        self._last_run_time_s = self._run_time_s

    @property
    def _run_time_s(self) -> float:
        """The time on the monotonic clock without the pauses of the job."""
        return time.monotonic() - self._scheduled_job.paused_s

    def send_progress(self, phase: str, done: int, total: int) -> None:
        """Sends the progress of a job, at most every `MIN_REPORT_INTERVAL_S` seconds.

        The time left follows from the time in which the job ran before each report of the phase, without its pauses.
        """
        last_done, phase_s = self._phase_progress.get(phase, (0, 0.0))
        run_time_s = self._run_time_s
        phase_s = run_time_s - self._last_run_time_s + (phase_s if done >= last_done else 0.0)
        self._phase_progress[phase], self._last_run_time_s = (done, phase_s), run_time_s
        if done == total or self.is_report_due("progress"):
            seconds_left = phase_s / done * (total - done) if done and total > done else None
            self.send(ev.JobProgress(self.job, phase, done, total, seconds_left))

    def make_progress_callback(
        self, phase: str, is_preemptible: bool = False, executor: Executor[Any] | None = None
    ) -> Callable[[int, int], None]:
        """Returns a progress callback. If the job is stopped, the callback ends the pass over the samples.

        Args:
            is_preemptible: True to end the pass also when a more urgent request, or a newer request of the same type,
                arrives.
            executor: The executor of the pass, whose location becomes part of the phase; None for no location.
        """
        scheduler, request = self._scheduler, self._scheduled_job.request

        def on_progress(done: int, total: int) -> None:
            self.send_progress(phase + (executor.location_text if executor is not None else ""), done, total)
            if self.job in scheduler.jobs_to_stop:
                raise CancelledError("stopped")
            if is_preemptible and any(
                type(later) is type(request) or later.job_kind.urgency < request.job_kind.urgency
                for _, later in tuple(scheduler.inbox)
            ):
                raise PreemptionError

        return on_progress


def get_executor(workspace: Workspace, reporter: JobReporter, *, for_engines: bool = False) -> Executor[Workspace]:
    """Returns the executor of a job's tasks.

    Args:
        for_engines: True for tasks whose results depend on the builder and the GPU.
    """
    if workspace.worker_pool is None:
        return LocalExecutor(workspace)
    return workspace.worker_pool.make_executor(workspace, reporter.wake, for_engines)


def choose_next_job_step(executor: Executor[Workspace], urgency: Urgency) -> Urgency | WaitStep:
    """Returns the next step of a job with a running task. If a result is ready, this is the urgency, else a wait."""
    return urgency if executor.is_ready() else WaitStep(executor.is_ready)
