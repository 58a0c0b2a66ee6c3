"""The program's end of the child process: starts it, sends requests, stops it, and notices when it dies."""

import contextlib
import os
import pickle
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import BinaryIO

import platformdirs

from trt_tui.files.folders import make_private
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.death import oom_kills, why_it_ended
from trt_tui.jobs.lifeline import bury, kill_group
from trt_tui.module_path import python_command

GRACE_S = 1.0
"""How long a job has to stop by itself before its process is killed and it is reported as stopped."""

LEAVING_S = 0.5
"""How long the program waits at its end for a killed process, which may have much memory to free."""

KEPT_LOGS = 10

_DAY_S = 86400.0

_TAIL_BYTES = 1 << 16

_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
"""Keeps the peak memory of the child down: one malloc arena instead of one a thread."""


def log_path() -> Path:
    """Where the child process of this program writes what libraries print."""
    return Path(platformdirs.user_state_dir("trt-tui")) / "logs" / f"worker-{os.getpid()}.log"


class _Child:
    """A process, the pipe to it, and the jobs that it was given and has not finished."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        tied, held = os.pipe()
        self.lifeline = open(held, "wb")  # the process ends when this is closed, see `trt_tui.jobs.lifeline`
        self._oom_before = oom_kills()
        with _log() as log, open(tied, "rb"):
            self._log_before = log.tell()
            descriptors = (theirs.fileno(), log.fileno(), tied)
            self.process = subprocess.Popen(
                python_command("trt_tui.jobs.worker", *descriptors),
                pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **_ENVIRONMENT}, start_new_session=True)
        theirs.close()
        self._outgoing = queue.SimpleQueue[bytes]()
        threading.Thread(target=bury, args=(self.process.pid,), daemon=True).start()
        threading.Thread(target=self._write, daemon=True).start()
        self.running: dict[int, rq.Request] = {}
        self.preparing: set[int] = set()
        self.last = 0
        self.gone = False
        self.killed = False

    def died(self, code: int) -> ev.Died:
        """The event that reports its end."""
        log = _tail(log_path(), self._log_before)
        death = why_it_ended(code, log, self._oom_before, oom_kills())
        return ev.Died(self.last, code, log, death.why, death.next_step)

    @property
    def alive(self) -> bool:
        return not self.gone and self.process.poll() is None

    def ask(self, job: int, request: rq.Request, silent: bool = False) -> bool:
        """Passes a request on; False if it can no longer reach the process."""
        self.last = max(self.last, job)
        if silent:
            self.preparing.add(job)
        else:
            self.running[job] = request
        self.tell((job, request))
        return not self.gone

    def tell(self, message: object) -> None:
        """Has a message sent, by a thread: a process that is only starting does not read a long one yet."""
        self._outgoing.put(pickle.dumps(message))

    def ended(self) -> None:
        """Has the thread that sends messages end."""
        self._outgoing.put(b"")

    def kill(self) -> None:
        """Ends the process, and what it has started, at once."""
        self.gone = True
        kill_group(self.process.pid)

    def _write(self) -> None:
        try:
            while message := self._outgoing.get():
                self.pipe.send_bytes(message)
        except OSError:
            self.gone = True


class Client:
    """A child process that answers requests; started with the first one, and again after it died.

    Args:
        deliver: Called with every event, from a thread of the client.
        reopen: Returns the requests that bring a new process to the state of the last one; their events are dropped.
    """

    def __init__(self, deliver: Callable[[ev.Event], None], reopen: Callable[[], Iterable[rq.Request]] = tuple) -> None:
        self._deliver = deliver
        self._reopen = reopen
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._last = 0
        self._closing = False

    def send(self, request: rq.Request) -> int:
        """Sends a request; returns the number of its job, which its events carry."""
        with self._lock:
            child = self._living(opens=isinstance(request, rq.Open))
            if not child.ask(self._number(), request):
                child.running.pop(self._last)
                self._living(opens=isinstance(request, rq.Open)).ask(self._number(), request)
            return self._last

    def stop(self, jobs: Collection[int] | None = None) -> None:
        """Stops jobs, by default all: asks first, and kills the process if one of them still runs after `GRACE_S`
        seconds; the other jobs then begin anew in another process."""
        with self._lock:
            child = self._child
            stopped = frozenset(child.running if jobs is None else jobs) if child is not None else frozenset()
            if child is None or stopped.isdisjoint(child.running):
                return
            child.tell(rq.Stop(stopped))
        timer = threading.Timer(GRACE_S, self._kill_if_running, (child, stopped))
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Ends the process: at once if it is idle, by force if it does not stop."""
        with self._lock:
            self._closing = True
            child, self._child = self._child, None
            if child is None:
                return
            child.tell(None)
        if not child.killed:
            try:
                child.process.wait(0.3)
            except subprocess.TimeoutExpired:
                child.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(LEAVING_S)
        log = log_path()
        with contextlib.suppress(OSError):
            if log.stat().st_size == 0:
                log.unlink()

    # -- inside -------------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._last += 1
        return self._last

    def _living(self, opens: bool = False) -> _Child:
        """The child, a new one if need be, which is brought to where the last one was unless the request opens."""
        if self._child is None or not self._child.alive:
            self._child = child = _Child()
            if not opens:
                for request in self._reopen():
                    child.ask(self._number(), request, silent=True)
            threading.Thread(target=self._read, args=(child,), daemon=True).start()
        return self._child

    def _read(self, child: _Child) -> None:
        while True:
            try:
                event = child.pipe.recv()
            except (EOFError, OSError):  # the process has ended; why is said below
                break
            if event.job in child.preparing:
                continue
            if isinstance(event, ev.Done | ev.Cancelled | ev.Failed):
                with self._lock:
                    child.running.pop(event.job, None)
            if not self._closing and not child.killed:
                self._deliver(event)
        child.ended()
        code = child.process.wait()
        if not self._closing and not child.killed:
            self._deliver(child.died(code))

    def _kill_if_running(self, child: _Child, stopped: frozenset[int]) -> None:
        """Kills a child that works on a job that was stopped; what was not stopped goes to a new one.

        The job is reported as stopped at once, since a process may take long to free much memory.
        """
        with self._lock:
            if not child.alive or stopped.isdisjoint(child.running):
                return
            child.killed = True
            child.kill()
            ended = sorted(stopped.intersection(child.running))
            waiting = {job: request for job, request in child.running.items() if job not in stopped}
            for job, request in waiting.items():
                self._living(opens=isinstance(request, rq.Open)).ask(job, request)
        for job in ended:
            self._deliver(ev.Cancelled(job))


@contextlib.contextmanager
def _log() -> Iterator[BinaryIO]:
    """The log file, or nowhere where none can be written; logs of earlier programs are cleared away."""
    path = log_path()
    try:
        make_private(path.parent)
        _clear_logs(path.parent)
        stream = open(path, "ab", opener=partial(os.open, mode=0o600))
    except OSError:
        stream = open(os.devnull, "ab")
    with stream:
        yield stream


def _clear_logs(folder: Path) -> None:
    """Removes all logs but the latest, and those of a day: programs that are running write some of them."""
    logs = {}
    for path in folder.glob("worker-*.log"):
        with contextlib.suppress(OSError):  # another program clears too
            logs[path] = path.stat().st_mtime
    for path in sorted(logs, key=logs.__getitem__)[:-KEPT_LOGS]:
        if logs[path] < time.time() - _DAY_S:
            with contextlib.suppress(OSError):
                path.unlink()


def _tail(path: Path, start: int, lines: int = 30) -> str:
    """The last lines of a log, of what was written after its first ``start`` bytes."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(start, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(stream.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:  # no log could be written, so there are no last words
        return ""
