"""Child processes of this program: their start, their end with the program, and the diagnosis of a crash."""

import contextlib
import faulthandler
import fcntl
import os
import pickle
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trt_tui.errors import FAILED_ALLOCATION
from trt_tui.module_path import python_command

CRASH_SIGNALS = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
)

LESS_MEMORY_STEP = "Use fewer samples (--samples) or a smaller batch (--batch)."

_MAX_KILL_ROUNDS, _KILL_INTERVAL_S = 100, 0.01

_SCRIPT_FRAME = re.compile(
    r'File "(?P<file>[^"<][^"]*)", line (?P<line>\d+) in (?P<function>\S+)\n'
    r'(?:\s*File "<frozen [^\n]*\n)*\s*File "[^"]*\btrt_tui\b[^"]*\buserscript\.py"'
)
"""The pattern of a user script's stack frame, called by trt-tui, in the output of `faulthandler` (the latest call
first)."""


class ChildProcess:
    """A process that runs a module of this program and is connected to this process by a pipe. It ends with this
    process.

    The module gets file descriptors as its arguments: of the pipe for messages, of further files, and of the pipe that
    ties it to this process (`tie_process_to_parent`). Other arguments follow.

    Args:
        files: The descriptors of further files that the process inherits.
        options: The further options of `subprocess.Popen`.

    Attributes:
        is_unreachable: True if a message could not be sent.
    """

    def __init__(self, module: str, *arguments: object, files: Sequence[int] = (), **options: Any) -> None:
        self.pipe, child_pipe = Pipe()
        read_end, write_end = os.pipe()
        self.lifeline = open(write_end, "wb")  # closing it ends the process, even if it is paused
        with child_pipe, open(read_end, "rb"):
            descriptors = (child_pipe.fileno(), *files, read_end)
            self.process = subprocess.Popen(
                python_command(module, *descriptors, *arguments),
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                **options,
            )
        self.is_unreachable = False
        self._outgoing_messages = queue.SimpleQueue[bytes]()
        threading.Thread(target=self._send_queued_messages, daemon=True).start()

    def send(self, message: object) -> None:
        """Queues a message for the thread that writes to the pipe. A starting or paused process would not read a long
        message yet."""
        self._outgoing_messages.put(pickle.dumps(message))

    def stop_sending(self) -> None:
        self._outgoing_messages.put(b"")

    def close(self) -> None:
        """Closes the files of a process that has ended."""
        self.stop_sending()
        self.pipe.close()
        self.lifeline.close()

    def receive_messages(self) -> Iterator[Any]:
        """Yields the messages of the process until it has ended."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                yield self.pipe.recv()

    def _send_queued_messages(self) -> None:
        try:
            while message := self._outgoing_messages.get():
                self.pipe.send_bytes(message)
        except OSError:
            self.is_unreachable = True


def connect_to_parent(pipe_descriptor: int, lifeline: int) -> Connection:
    """Returns this process's end of the pipe of its `ChildProcess`, and ties this process to its parent. Crashes are
    written to the log."""
    tie_process_to_parent(lifeline)
    os.set_inheritable(pipe_descriptor, False)
    faulthandler.enable(sys.stderr, all_threads=False)
    return Connection(pipe_descriptor)


def tie_process_to_parent(pipe_descriptor: int) -> None:
    """Ties this process to its parent: when the parent's end of a pipe closes, the kernel kills this process.

    A process that leads a process group is killed with its group. The parent holds the writing end of the pipe, to
    which nothing is ever written. The kill works even in native code, or in a loop that never releases the interpreter.
    It also ends the processes started by a user's script or command. On systems without ``F_SETSIG`` (all but Linux),
    the thread of `trt_tui.jobs.server` that reads requests ends the process as soon as it can run.

    Args:
        pipe_descriptor: The reading end of the pipe, which stays open as long as this process lives.
    """
    os.set_inheritable(pipe_descriptor, False)
    if not hasattr(fcntl, "F_SETSIG"):
        return
    with contextlib.suppress(OSError):  # a kernel without F_SETSIG
        fcntl.fcntl(pipe_descriptor, fcntl.F_SETOWN, -os.getpid() if os.getpgrp() == os.getpid() else os.getpid())
        fcntl.fcntl(pipe_descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe_descriptor, fcntl.F_SETFL, fcntl.fcntl(pipe_descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    poller = select.poll()
    poller.register(pipe_descriptor, 0)
    if poller.poll(0):  # the pipe was closed before the calls above
        end_own_process_group()


def end_own_process_group() -> None:
    """Ends this process, and all processes of its group if it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def wait_and_end_process_group(pid: int) -> None:
    """Waits for the end of a child that leads a process group, and then ends the group. The exit code is not read.

    A process forked by the child may hold the child's end of a pipe. The pipe alone therefore does not show the end of
    the child.
    """
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # its exit code was already read
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        kill_process_group(pid)


def kill_process_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_process_tree(pid: int, variable: str, value: str) -> None:
    """Kills a process and all processes that it has started, even if their parents have ended.

    All of them have inherited an environment variable whose value no other process has. Without ``/proc`` (all but
    Linux), the process alone is killed.
    """
    entry, process_ids = os.fsencode(f"{variable}={value}"), [pid]
    for _ in range(_MAX_KILL_ROUNDS):  # a process can start another one until it is killed
        for process_id in process_ids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process_id, signal.SIGKILL)
        process_ids = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # the process has ended, or another user owns it
                if entry in path.read_bytes().split(b"\0"):
                    process_ids.append(int(path.parent.name))
        if not process_ids:
            return
        time.sleep(_KILL_INTERVAL_S)


@dataclass(frozen=True)
class ExitDiagnosis:
    """The reason why a process ended, and the next step of the user, each in sentences."""

    reason: str
    next_step: str


def diagnose_exit(exit_code: int, printed_text: str) -> ExitDiagnosis:
    """Returns the diagnosis of an ended process.

    Args:
        exit_code: The exit code as in `subprocess`, negative for a signal.
        printed_text: The last output of the process.
    """
    if exit_code == -signal.SIGKILL:
        return ExitDiagnosis("It was killed from outside (SIGKILL).", f"Memory may have run out. {LESS_MEMORY_STEP}")
    if exit_code >= 0:
        return ExitDiagnosis(
            f"It ended by itself with exit code {exit_code}.", "A script or library ended it: its output is above."
        )
    signal_number = -exit_code
    name = signal.Signals(signal_number).name if signal_number in list(signal.Signals) else f"signal {signal_number}"
    if signal_number not in CRASH_SIGNALS:
        return ExitDiagnosis(f"It was ended from outside by {name}.", "Run it again.")
    if FAILED_ALLOCATION.search(printed_text):
        return ExitDiagnosis(f"Memory ran out in it, and a library crashed ({name}).", LESS_MEMORY_STEP)
    if script := _SCRIPT_FRAME.search(printed_text):
        return ExitDiagnosis(
            f"{Path(script['file']).name} crashed in it, or a library that it calls ({name}; line "
            f"{script['line']}, in {script['function']}).",
            f"Correct {script['file']}.",
        )
    return ExitDiagnosis(f"A library crashed in it ({name}).", "Its output is above; try another config or backend.")
