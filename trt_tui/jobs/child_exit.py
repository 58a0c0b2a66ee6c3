"""The end of a child process: it ends with its program, and the program finds out why it ended."""

import contextlib
import fcntl
import os
import re
import select
import signal
from dataclasses import dataclass
from pathlib import Path

from trt_tui.errors import FAILED_ALLOCATION

CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP,
                 signal.SIGSYS)

LESS_MEMORY_STEP = "Use fewer samples (--samples) or a smaller batch (--batch)."

_SCRIPT_FRAME = re.compile(
    r'File "(?P<file>[^"<][^"]*)", line (?P<line>\d+) in (?P<function>\S+)\n'
    r'(?:\s*File "<frozen [^\n]*\n)*\s*File "[^"]*\btrt_tui\b[^"]*\buserscript\.py"')
"""The frame of a user's script that this program has called, in what `faulthandler` prints (the latest call first)."""


def tie_process_to_parent(pipe_descriptor: int) -> None:
    """Ties this process, and as a leader its group, to the process that holds the pipe's other end.

    The program holds the writing end of a pipe on which nothing is ever written. The kernel kills the process group of
    the child when that end is closed, even in the middle of native code or of a loop that never releases the
    interpreter, and with it what a user's script or command has started. On systems without ``F_SETSIG`` (all but
    Linux), the thread of `trt_tui.jobs.server` that reads requests ends the process as soon as it gets to run.

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


@dataclass(frozen=True)
class ExitDiagnosis:
    """What to say about it: why it ended, in a sentence, and what to do."""

    reason: str
    next_step: str


def count_oom_kills() -> int | None:
    """How many processes of this control group the kernel has killed because memory ran out; None if it does not say.

    Read from ``memory.events`` (cgroup v2) or ``memory.oom_control`` (v1).
    """
    for path in _list_oom_counter_paths():
        with contextlib.suppress(OSError):
            match = re.search(r"^oom_kill (\d+)$", path.read_text(), re.M)
            if match:
                return int(match[1])
    return None


def _list_oom_counter_paths() -> list[Path]:
    root, lines = Path("/sys/fs/cgroup"), []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    paths = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        cgroup_path = path.lstrip("/")
        if not controllers:
            paths += [root / cgroup_path / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            paths += [root / "memory" / cgroup_path / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return paths


def diagnose_exit(exit_code: int | None, printed_text: str, oom_kills_before: int | None,
                  oom_kills_after: int | None) -> ExitDiagnosis:
    """What is known about the end of a process.

    Args:
        exit_code: As `subprocess` gives it: negative for a signal.
        printed_text: The last that it printed.
        oom_kills_before: `count_oom_kills` when it started.
        oom_kills_after: The same when it had ended.
    """
    if exit_code == -signal.SIGKILL:
        if oom_kills_before is not None and oom_kills_after is not None:
            if oom_kills_after > oom_kills_before:
                return ExitDiagnosis("The kernel killed it: memory ran out.", LESS_MEMORY_STEP)
            return ExitDiagnosis("It was killed from outside (SIGKILL); memory did not run out.", "Run it again.")
        return ExitDiagnosis("It was killed from outside (SIGKILL).", f"Memory may have run out. {LESS_MEMORY_STEP}")
    if exit_code is None or exit_code >= 0:
        exit_text = "" if exit_code is None else f" with exit code {exit_code}"
        return ExitDiagnosis(f"It ended by itself{exit_text}.",
                             "A script or library ended it: its output is above.")
    signal_number = -exit_code
    name = signal.Signals(signal_number).name if signal_number in list(signal.Signals) else f"signal {signal_number}"
    if signal_number not in CRASH_SIGNALS:
        return ExitDiagnosis(f"It was ended from outside by {name}.", "Run it again.")
    if FAILED_ALLOCATION.search(printed_text):
        return ExitDiagnosis(f"Memory ran out in it, and a library crashed ({name}).", LESS_MEMORY_STEP)
    if script := _SCRIPT_FRAME.search(printed_text):
        return ExitDiagnosis(f"{Path(script['file']).name} crashed in it, or a library that it calls ({name}; line "
                             f"{script['line']}, in {script['function']}).", f"Correct {script['file']}.")
    return ExitDiagnosis(f"A library crashed in it ({name}).",
                         "Its output is above; try another config or backend.")
