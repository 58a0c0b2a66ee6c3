"""Why a child process ended: by the signal, by what it printed, and by the kernel's count of out-of-memory kills."""

import contextlib
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from trt_tui.errors import FAILED_ALLOCATION

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)

LESS_MEMORY = "Use fewer samples (--samples) or a smaller batch (--batch)."


_SCRIPT = re.compile(
    r'File "(?P<file>[^"<][^"]*)", line (?P<line>\d+) in (?P<function>\S+)\n'
    r'(?:\s*File "<frozen [^\n]*\n)*\s*File "[^"]*\btrt_tui\b[^"]*\buserscript\.py"')
"""The frame of a user's script that this program has called, in what `faulthandler` prints (the latest call first)."""


@dataclass(frozen=True)
class Death:
    """What to say about it: why it ended, in a sentence, and what to do."""

    why: str
    next_step: str


def oom_kills() -> int | None:
    """How many processes of this control group the kernel has killed because memory ran out; None if it does not say.

    Read from ``memory.events`` (cgroup v2) or ``memory.oom_control`` (v1).
    """
    for path in _counters():
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.M)
            if found:
                return int(found[1])
    return None


def _counters() -> list[Path]:
    root, lines = Path("/sys/fs/cgroup"), []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if not controllers:
            found += [root / inside / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            found += [root / "memory" / inside / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return found


def why_it_ended(exit_code: int | None, log: str, killed_before: int | None, killed_after: int | None) -> Death:
    """What is known about the end of a process.

    Args:
        exit_code: As `subprocess` gives it: negative for a signal.
        log: The last that it printed.
        killed_before: `oom_kills` when it started.
        killed_after: The same when it had ended.
    """
    if exit_code == -signal.SIGKILL:
        if killed_before is not None and killed_after is not None:
            if killed_after > killed_before:
                return Death("The kernel killed it: memory ran out.", LESS_MEMORY)
            return Death("It was killed from outside (SIGKILL); memory did not run out.", "Run it again.")
        return Death("It was killed from outside (SIGKILL).", f"Memory may have run out. {LESS_MEMORY}")
    if exit_code is None or exit_code >= 0:
        code = "" if exit_code is None else f" with exit code {exit_code}"
        return Death(f"It ended by itself{code}.", "A script or library ended it: what it printed stands above.")
    number = -exit_code
    name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
    if number not in CRASHES:
        return Death(f"It was ended from outside by {name}.", "Run it again.")
    if FAILED_ALLOCATION.search(log):
        return Death(f"Memory ran out in it, and a library crashed ({name}).", LESS_MEMORY)
    if script := _SCRIPT.search(log):
        return Death(f"{Path(script['file']).name} crashed in it, or a library that it calls ({name}; line "
                     f"{script['line']}, in {script['function']}).", f"Correct {script['file']}.")
    return Death(f"A library crashed in it ({name}).",
                 "What it printed stands above; try another config or backend.")
