"""The client of the background process, which starts the process, sends requests, stops jobs and detects a crash."""

import contextlib
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import platformdirs

from trt_tui.files.writing import make_private_folder
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.child_exit import (
    ChildProcess,
    diagnose_exit,
    kill_process_group,
    wait_and_end_process_group,
)

STOP_GRACE_S = 1.0
"""The time in seconds that a stopped job has to end by itself before its process is killed."""

KILL_WAIT_S = 0.5
"""The time in seconds that the program waits at its end for a killed process, which may have much memory to free."""

MAX_KEPT_LOGS = 10

_DAY_S = 86400.0

_TAIL_BYTES = 1 << 16

_CHILD_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
"""The environment variables of the background process: a single malloc arena keeps the peak memory low."""


def child_log_path() -> Path:
    """Returns the path of the log file for the output of libraries in the background process."""
    return Path(platformdirs.user_state_dir("trt-tui")) / "logs" / f"worker-{os.getpid()}.log"


class _BackgroundProcess(ChildProcess):
    """The background process with its unfinished jobs."""

    def __init__(self) -> None:
        with _open_log_file() as log:
            self._log_size_before = log.tell()
            super().__init__(
                "trt_tui.jobs.server",
                files=[log.fileno()],
                stdout=log,
                stderr=log,
                env={**os.environ, **_CHILD_ENVIRONMENT},
                start_new_session=True,
            )
        threading.Thread(target=wait_and_end_process_group, args=(self.process.pid,), daemon=True).start()
        self.running_jobs: dict[int, rq.Request] = {}
        self.silent_jobs: set[int] = set()
        self.last_job = 0
        self.was_killed = False

    def make_exit_event(self, exit_code: int) -> ev.ChildProcessDied:
        """Returns the event that reports the end of the process."""
        log = _read_log_tail(child_log_path(), self._log_size_before)
        death = diagnose_exit(exit_code, log)
        return ev.ChildProcessDied(self.last_job, exit_code, log, death.reason, death.next_step)

    @property
    def is_alive(self) -> bool:
        return not self.is_unreachable and self.process.poll() is None

    def send_request(self, job_number: int, request: rq.Request, is_silent: bool = False) -> None:
        """Sends a request to the process.

        Args:
            is_silent: True to drop the events of its job.
        """
        self.last_job = max(self.last_job, job_number)
        if is_silent:
            self.silent_jobs.add(job_number)
        else:
            self.running_jobs[job_number] = request
        self.send((job_number, request))

    def kill(self) -> None:
        """Kills the process and its process group at once."""
        self.is_unreachable = True
        kill_process_group(self.process.pid)


class JobClient:
    """The program's connection to the background process, which starts with the first request and again after a crash.

    Args:
        on_event: A function that a thread of the client calls with every event.
        list_reopen_requests: A function that returns the requests that bring a new process to the state of the last
            one. Events of these requests are dropped.
    """

    def __init__(
        self, on_event: Callable[[ev.Event], None], list_reopen_requests: Callable[[], Iterable[rq.Request]] = tuple
    ) -> None:
        self._on_event = on_event
        self._list_reopen_requests = list_reopen_requests
        self._child: _BackgroundProcess | None = None
        self._lock = threading.Lock()
        self._job_numbers = itertools.count(1)
        self._is_closing = False

    def send_request(self, request: rq.Request) -> int:
        """Sends a request. Returns the number of its job. All events of the job contain this number."""
        with self._lock:
            child = self._ensure_child_process(is_opening=isinstance(request, rq.OpenNetwork))
            job_number = next(self._job_numbers)
            child.send_request(job_number, request)
            return job_number

    def stop_jobs(self, jobs: Collection[int] | None = None, is_urgent: bool = True) -> None:
        """Stops some jobs; by default all.

        If a stopped job still runs after `STOP_GRACE_S` seconds, the process is killed. The other jobs then start again
        in a new process.

        Args:
            is_urgent: False lets each job complete its current step, however long it takes.
        """
        with self._lock:
            child = self._child
            stopped_jobs = frozenset(child.running_jobs if jobs is None else jobs) if child is not None else frozenset()
            if child is None or stopped_jobs.isdisjoint(child.running_jobs):
                return
            child.send(rq.StopJobs(stopped_jobs))
        if is_urgent:
            timer = threading.Timer(STOP_GRACE_S, self._kill_child_running_jobs, (child, stopped_jobs))
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """Ends the background process: an idle process at once, a busy process by force."""
        with self._lock:
            self._is_closing = True
            child, self._child = self._child, None
            if child is None:
                return
            child.send(None)
        if not child.was_killed:
            try:
                child.process.wait(0.3)
            except subprocess.TimeoutExpired:
                child.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(KILL_WAIT_S)
        log = child_log_path()
        with contextlib.suppress(OSError):
            if log.stat().st_size == 0:
                log.unlink()

    # -- private ------------------------------------------------------------------------------------------------

    def _ensure_child_process(self, is_opening: bool = False) -> _BackgroundProcess:
        """Returns the running background process, or starts a new one.

        A new process first receives the requests that restore the state of the last one, unless a network is being
        opened.
        """
        if self._child is None or not self._child.is_alive:
            self._child = child = _BackgroundProcess()
            if not is_opening:
                for request in self._list_reopen_requests():
                    child.send_request(next(self._job_numbers), request, is_silent=True)
            threading.Thread(target=self._read_events, args=(child,), daemon=True).start()
        return self._child

    def _read_events(self, child: _BackgroundProcess) -> None:
        for event in child.receive_messages():
            if event.job in child.silent_jobs:
                continue
            if isinstance(event, ev.JobDone | ev.JobCancelled | ev.JobFailed):
                with self._lock:
                    child.running_jobs.pop(event.job, None)
            if not self._is_closing and not child.was_killed:
                self._on_event(event)
        child.stop_sending()
        exit_code = child.process.wait()
        if not self._is_closing and not child.was_killed:
            self._on_event(child.make_exit_event(exit_code))

    def _kill_child_running_jobs(self, child: _BackgroundProcess, stopped_jobs: frozenset[int]) -> None:
        """Kills a process that still works on a stopped job. Its other requests are sent to a new process.

        The job is reported as stopped at once, since a process may take long to free much memory.
        """
        with self._lock:
            if not child.is_alive or stopped_jobs.isdisjoint(child.running_jobs):
                return
            child.was_killed = True
            child.kill()
            ended_jobs = sorted(stopped_jobs.intersection(child.running_jobs))
            waiting_requests = {job: request for job, request in child.running_jobs.items() if job not in stopped_jobs}
            for job, request in waiting_requests.items():
                self._ensure_child_process(is_opening=isinstance(request, rq.OpenNetwork)).send_request(job, request)
        for job in ended_jobs:
            self._on_event(ev.JobCancelled(job))


@contextlib.contextmanager
def _open_log_file() -> Iterator[BinaryIO]:
    """Opens the log file, or the null device if no log can be written. Old log files are removed first."""
    path = child_log_path()
    try:
        make_private_folder(path.parent)
        _remove_old_logs(path.parent)
        stream = open(path, "ab", opener=partial(os.open, mode=0o600))
    except OSError:
        stream = open(os.devnull, "ab")
    with stream:
        yield stream


def _remove_old_logs(folder: Path) -> None:
    """Removes old log files. The latest logs and all logs of the last 24 hours stay, since running programs may write
    to them."""
    logs = {}
    for path in folder.glob("worker-*.log"):
        with contextlib.suppress(OSError):  # another program may remove logs at the same time
            logs[path] = path.stat().st_mtime
    for path in sorted(logs, key=logs.__getitem__)[:-MAX_KEPT_LOGS]:
        if logs[path] < time.time() - _DAY_S:
            with contextlib.suppress(OSError):
                path.unlink()


def _read_log_tail(path: Path, start_byte: int, line_count: int = 30) -> str:
    """Returns the last lines of a log file, without its first ``start_byte`` bytes."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(start_byte, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(stream.read().decode(errors="replace").splitlines()[-line_count:])
    except OSError:  # no log could be written
        return ""
