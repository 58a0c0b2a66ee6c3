"""The server of the background process, which answers the program's requests, one step of a job at a time.

A thread reads the requests from a pipe. When the program at the other end has ended, the process ends.
"""

import contextlib
import os
import pickle
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.runner import ExecutionMode
from trt_tui.files.writing import remove_unused_scratch_folders
from trt_tui.jobs import engine_preview, opening
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.child_exit import connect_to_parent, end_own_process_group
from trt_tui.jobs.opening import WorkspaceSlot
from trt_tui.jobs.scheduler import JobReporter, Scheduler, Steps
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

CHECK_INTERVAL_S = 1.0
"""The minimum time in seconds between two checks for changed input files within a job."""


JobHandler = Callable[[Any, ResultStore, JobReporter, Any], Steps[None]]


def import_handler(request_type: type[rq.Request]) -> JobHandler:
    handler: JobHandler = pkgutil.resolve_name(request_type.job_kind.handler)
    return handler


for _request_type in rq.Request.__subclasses__():  # at start: the program may be updated before a job needs its module
    import_handler(_request_type)


class JobServer:
    """The server that runs the jobs of the requests in the scheduler's inbox.

    Args:
        send: A function that is called with each event.
        store: The store of results; by default in the user's cache folder.
    """

    def __init__(self, send: Callable[[ev.Event], None], store: ResultStore | None = None) -> None:
        self.store = store or ResultStore()
        self.slot = WorkspaceSlot()
        self.scheduler = Scheduler(
            self._run_requested_job, send, pause_others=engine_preview.set_preview_process_paused
        )

    def receive_requests(self, pipe: Connection) -> None:
        """Receives requests from a pipe in a thread. When the other end closes the pipe, the process ends."""
        scheduler = self.scheduler
        with contextlib.suppress(EOFError, OSError):
            while (received := pipe.recv()) is not None:
                if isinstance(received, rq.StopJobs):
                    scheduler.stop_jobs(received.jobs)
                else:
                    scheduler.inbox.append(received)
                scheduler.arrival_event.set()
        end_own_process_group()

    def _run_requested_job(self, request: rq.Request, reporter: JobReporter) -> Steps[None]:
        """Runs the steps of a job. Between two steps, the opened files are checked for changes."""
        try:
            run_job = import_handler(type(request))
            if not request.job_kind.needs_network:
                yield from run_job(self.slot, self.store, reporter, request)
                return
            workspace = self.slot.require_workspace()
            if workspace.fingerprint is None and request.job_kind.needs_hashes:
                yield from opening.hash_workspace(workspace, self.store, reporter)
            workspace.require_unchanged_files()
            with contextlib.closing(run_job(workspace, self.store, reporter, request)) as steps:
                mode = None
                for step in steps:
                    mode = _send_pending_notices(workspace, reporter, mode)
                    yield step
                    workspace.require_unchanged_files(CHECK_INTERVAL_S)
                _send_pending_notices(workspace, reporter, mode)
        finally:
            if self.slot.workspace is not None:
                self.slot.workspace.update_file_stamps()  # the job may have imported modules of the metric


def _send_pending_notices(
    workspace: Workspace, reporter: JobReporter, last_execution_mode: ExecutionMode | None
) -> ExecutionMode | None:
    """Sends new messages of workers and memory fallbacks, and a changed execution mode. Returns the current mode."""
    for log_level, text in workspace.worker_pool.take_new_messages() if workspace.worker_pool is not None else ():
        reporter.log(text, log_level)
    for text in workspace.memory_fallbacks.take_messages():
        reporter.log(text, "warning" if HOST_MODE in text else "info")
    if (mode := workspace.execution_mode) is not None and mode != last_execution_mode:
        reporter.send(ev.ExecutionModeChanged(reporter.job, mode))
    return mode


def _make_event_sender(pipe: Connection) -> Callable[[ev.Event], None]:
    """Returns a function that sends an event from any thread. If the program no longer reads events, the process ends."""
    lock = threading.Lock()

    def send_event(event: ev.Event) -> None:
        message = pickle.dumps(event)
        try:
            with lock:
                pipe.send_bytes(message)
        except OSError:
            end_own_process_group()

    return send_event


def _cancel_executed_job(scheduler: Scheduler, signal_number: int, frame: object) -> None:
    """Handles SIGINT: interrupts a job that is being executed, and does nothing between jobs."""
    if scheduler.is_executing_job:
        raise KeyboardInterrupt


def main(argv: Sequence[str]) -> None:
    """Runs the background process. The arguments are the file descriptors of the pipe, the log, and the pipe that ties
    this process to the program."""
    pipe_descriptor, log, lifeline = (int(text) for text in argv)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    with connect_to_parent(pipe_descriptor, lifeline) as pipe:
        server = JobServer(_make_event_sender(pipe))
        signal.signal(signal.SIGINT, partial(_cancel_executed_job, server.scheduler))
        remove_unused_scratch_folders()
        server.store.trim_to_size_limit()
        threading.Thread(target=server.receive_requests, args=(pipe,), daemon=True).start()
        server.scheduler.serve_requests()


if __name__ == "__main__":
    main(sys.argv[1:])
