"""The limits of CPU time and memory for reading one file.

A file below 1 MB can keep a reader busy for years, for example with a backtracking pattern, doubling lists or repeated
names. A timer of the CPU time of this process interrupts the main thread, even within a regular expression. The reading
then ends with an error that names the file.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from trt_tui.errors import InputError

MAX_READ_S = 5.0
"""The CPU time in seconds for reading a small file. A large file gets additional time: its size divided by
`MIN_BYTES_PER_S`."""
MIN_BYTES_PER_S = 10 << 20
MAX_MEMORY_BYTES = 2 << 30
"""The growth of process memory for reading a small file. A large file gets additional memory: `MAX_MEMORY_PER_BYTE`
times its size."""
MAX_MEMORY_PER_BYTE = 32
_TICK_S = 0.05

_DEFAULT_NEXT_STEP = "Check that this is the right file; if it is, shorten its repetitions."


class _BudgetExceededError(BaseException):
    """The reading of a file has used up its CPU time or memory. The class is a BaseException, so that no reader catches
    it."""


_is_running = False


@contextlib.contextmanager
def limit_reading_resources(input_title: str, size_bytes: int = 0, *, max_seconds: float | None = None,
                            next_step: str = _DEFAULT_NEXT_STEP) -> Iterator[None]:
    """Stops the ``with`` block with an error if it uses too much CPU time or memory, or reads too deeply nested data.

    A block within another one shares the budget of the outer block. Only the main thread can be interrupted, so there
    is no limit in other threads. Every reader of this program runs in a main thread.

    Args:
        input_title: The name of the file in messages.
        size_bytes: The size of the file.
        max_seconds: The CPU time for a small file; `MAX_READ_S` by default.
        next_step: The advice if a limit is exceeded.

    Raises:
        InputError: A limit is exceeded, or the block raised a RecursionError or a MemoryError.
    """
    global _is_running
    if _is_running or threading.current_thread() is not threading.main_thread():
        with _convert_exhaustion_errors(input_title):
            yield
        return
    max_s = (MAX_READ_S if max_seconds is None else max_seconds) + size_bytes / MIN_BYTES_PER_S
    max_bytes = MAX_MEMORY_BYTES + size_bytes * MAX_MEMORY_PER_BYTE
    begin_s, begin_bytes = time.thread_time(), _read_resident_memory_bytes()

    def check_budget(*_: object) -> None:
        if _is_running and time.thread_time() - begin_s > max_s:
            raise _BudgetExceededError(f"it was stopped after {max_s:.3g} s of computing")
        if _is_running and _read_resident_memory_bytes() - begin_bytes > max_bytes:
            raise _BudgetExceededError(f"it was stopped at {max_bytes / 2**30:.1f} GB of memory")

    previous_handler = signal.signal(signal.SIGVTALRM, check_budget)
    _is_running = True
    try:
        with _convert_exhaustion_errors(input_title):
            signal.setitimer(signal.ITIMER_VIRTUAL, _TICK_S, _TICK_S)
            yield
    except _BudgetExceededError as error:
        _is_running = False
        raise InputError(f"{input_title} takes too much time or memory", str(error), next_step) from None
    finally:
        _is_running = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous_handler)


@contextlib.contextmanager
def limit_file_reading(path: Path | str) -> Iterator[None]:
    """Applies `limit_reading_resources` to the ``with`` block, with the size and the name of a file."""
    size = 0
    with contextlib.suppress(OSError, ValueError):
        size = os.stat(path).st_size
    with limit_reading_resources(Path(path).name, size):
        yield


@contextlib.contextmanager
def _convert_exhaustion_errors(input_title: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise InputError(f"{input_title} cannot be read", "it is nested too deep", _DEFAULT_NEXT_STEP) from None
    except MemoryError:
        raise InputError(f"{input_title} takes too much time or memory", "the memory is too small",
                         _DEFAULT_NEXT_STEP) from None


def _read_resident_memory_bytes() -> int:
    """Returns the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
