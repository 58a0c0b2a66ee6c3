"""Why a child process ended: by the signal, by what it printed, and by the kernel's count of out-of-memory kills."""

import contextlib
import re
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
                             "A script or library ended it: what it printed stands above.")
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
                         "What it printed stands above; try another config or backend.")
