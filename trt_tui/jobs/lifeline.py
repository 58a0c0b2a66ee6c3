"""Ties a child process to its program: when the program ends, in whatever way, so does the child.

The program holds the writing end of a pipe on which nothing is ever written. The kernel kills the process group of the
child when that end is closed, even in the middle of native code or of a loop that never releases the interpreter, and
with it what a user's script or command has started. On systems without ``F_SETSIG`` (all but Linux), the thread of
`trt_tui.jobs.server` that reads requests ends the process as soon as it gets to run.
"""

import contextlib
import fcntl
import os
import select
import signal


def tie_process_to_parent(pipe_descriptor: int) -> None:
    """Ties this process, and as a leader its group, to the process that holds the pipe's other end.

    Args:
        pipe_descriptor: The reading end, which stays open for as long as this process lives.
    """
    os.set_inheritable(pipe_descriptor, False)
    if not hasattr(fcntl, "F_SETSIG"):
        return
    with contextlib.suppress(OSError):  # a kernel without it
        fcntl.fcntl(pipe_descriptor, fcntl.F_SETOWN, -os.getpid() if os.getpgrp() == os.getpid() else os.getpid())
        fcntl.fcntl(pipe_descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe_descriptor, fcntl.F_SETFL, fcntl.fcntl(pipe_descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    poller = select.poll()
    poller.register(pipe_descriptor, 0)
    if poller.poll(0):  # before the kernel was asked
        end_own_process_group()


def end_own_process_group() -> None:
    """Ends this process and, as the leader of its group, what it has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def wait_and_end_process_group(pid: int) -> None:
    """Waits for the end of a child that leads a group, without taking its exit code, and ends the group.

    What it has forked may hold its end of a pipe, so the pipe alone does not show that it is gone.
    """
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # its exit code was taken already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        kill_process_group(pid)


def kill_process_group(pid: int) -> None:
    """Ends a group at once, if there is anything left of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
