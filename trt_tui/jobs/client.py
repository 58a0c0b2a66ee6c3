"""The program's end of the child process: start it, ask it, stop it, notice that it died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

import platformdirs

from trt_tui.jobs import messages as m

GRACE_S = 2.0
"""How long a job has to stop by itself before its process is killed."""

_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
"""Keeps the peak memory of the child down: one malloc arena instead of one a thread."""


def log_path() -> Path:
    """Where the child process of this program writes what libraries print."""
    return Path(platformdirs.user_state_dir("trt-tui")) / "logs" / f"worker-{os.getpid()}.log"


class Client:
    """A child process that answers requests; started with the first one, and again after it died.

    Args:
        deliver: Called with every event, from a thread of the client.
        reopen: Gives the request that opens the network again in a new process, or None.
    """

    def __init__(self, deliver: Callable[[m.Event], None], reopen: Callable[[], m.Open | None] = lambda: None) -> None:
        self._deliver = deliver
        self._reopen = reopen
        self._process: subprocess.Popen | None = None
        self._requests = None
        self._stops = None
        self._lock = threading.Lock()
        self._next = 0
        self._running: set[int] = set()
        self._closing = False
        self._silent: set[int] = set()

    @property
    def pid(self) -> int | None:
        """The child's process id while it lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def send(self, request: m.Request) -> int:
        """Asks for something; returns the job's number, which its events carry."""
        with self._lock:
            if self.pid is None:
                self._start()
                again = self._reopen()
                if again is not None and not isinstance(request, m.Open):
                    job = self._take_number()
                    self._silent.add(job)
                    self._put(job, again)
            job = self._take_number()
            self._put(job, request)
            return job

    def stop(self) -> None:
        """Stops every job: asks first, and kills the process if one still runs after `GRACE_S` seconds."""
        with self._lock:
            if self.pid is None or not self._running:
                return
            waiting = set(self._running)
            process = self._process
            try:
                self._stops.send(self._next + 1)
            except OSError:
                return
        timer = threading.Timer(GRACE_S, self._kill_if_running, (process, waiting))
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Ends the process at once."""
        self._closing = True
        with self._lock:
            process = self._process
            for pipe in (self._requests, self._stops):
                if pipe is not None:
                    pipe.close()
            self._requests = self._stops = None
        if process is not None:
            try:
                process.wait(0.3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log = log_path()
            if log.is_file() and log.stat().st_size == 0:
                log.unlink(missing_ok=True)

    # -- inside -------------------------------------------------------------------------------------------------

    def _take_number(self) -> int:
        self._next += 1
        self._running.add(self._next)
        return self._next

    def _put(self, job: int, request: m.Request) -> None:
        try:
            self._requests.send((job, request))
        except OSError:
            self._running.discard(job)

    def _start(self) -> None:
        path = log_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = Pipe()
        stop_reads, stop_writes = Pipe(duplex=False)
        with open(path, "ab") as log:
            descriptors = (theirs.fileno(), stop_reads.fileno(), log.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trt_tui.jobs.worker", *map(str, descriptors)],
                pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **_ENVIRONMENT}, start_new_session=True)
        theirs.close()
        stop_reads.close()
        self._requests, self._stops = ours, stop_writes
        threading.Thread(target=self._read, args=(self._process, ours), daemon=True).start()

    def _read(self, process: subprocess.Popen, pipe) -> None:
        while True:
            try:
                event = pipe.recv()
            except (EOFError, OSError):
                break
            if isinstance(event, m.Done | m.Cancelled | m.Failed):
                self._running.discard(event.job)
            if event.job in self._silent and not isinstance(event, m.Failed):
                continue
            self._deliver(event)
        code = process.wait()
        if self._closing or process is not self._process:
            return
        running, self._running = set(self._running), set()
        self._process = None
        if code == -signal.SIGKILL and getattr(process, "stopped_by_us", False):
            for job in sorted(running):
                self._deliver(m.Cancelled(job))
            return
        self._deliver(m.Died(max(running, default=self._next), code, _tail(log_path())))

    def _kill_if_running(self, process: subprocess.Popen, waiting: set[int]) -> None:
        if process.poll() is None and waiting & self._running:
            process.stopped_by_us = True
            process.kill()


def _tail(path: Path, lines: int = 20) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
