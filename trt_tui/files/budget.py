"""The budget of time and memory that the reading of one file has.

A file below 1 MB can keep a reader busy for years: by a pattern that backtracks, by lists that double, by names that
repeat. A timer of the CPU time that this process uses interrupts the main thread, regular expressions included, and
the reading ends with an error that names the file.
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
"""CPU time for a small file; a large one has `MIN_BYTES_PER_S` on top."""
MIN_BYTES_PER_S = 10 << 20
MAX_MEMORY_BYTES = 2 << 30
"""Growth of this process's memory for a small file; a large one has `MEMORY_PER_BYTE` times its size on top."""
MEMORY_PER_BYTE = 32
_TICK_S = 0.05

_NEXT = "Check that it is the file meant; if it is, leave out or shorten what repeats in it."


class _SpentError(BaseException):
    """The budget is spent; no reader takes it for an error of its own."""


_is_running = False


@contextlib.contextmanager
def reading_budget(title: str, size_bytes: int = 0, *, seconds: float | None = None, next_step: str = _NEXT
                   ) -> Iterator[None]:
    """Ends the block with an error if it takes too much time or memory, or is nested too deep.

    A block within another one shares the budget of the outer one. Outside of the main thread there is no limit, since
    no other thread can be interrupted; every reader of this program runs in one.

    Args:
        title: The name of the file in messages.
        size_bytes: The size of the file.
        seconds: CPU time for a small file; `MAX_READ_S` by default.
        next_step: The advice if the budget is spent.

    Raises:
        InputError: the budget is spent; or the block raised a RecursionError or a MemoryError.
    """
    global _is_running
    if _is_running or threading.current_thread() is not threading.main_thread():
        with _too_much(title):
            yield
        return
    max_s = (MAX_READ_S if seconds is None else seconds) + size_bytes / MIN_BYTES_PER_S
    max_bytes = MAX_MEMORY_BYTES + size_bytes * MEMORY_PER_BYTE
    begin_s, begin_bytes = time.thread_time(), _resident_bytes()

    def check(*_: object) -> None:
        if _is_running and time.thread_time() - begin_s > max_s:
            raise _SpentError(f"it was stopped after {max_s:.3g} s of computing")
        if _is_running and _resident_bytes() - begin_bytes > max_bytes:
            raise _SpentError(f"it was stopped at {max_bytes / 2**30:.1f} GB of memory")

    before = signal.signal(signal.SIGVTALRM, check)
    _is_running = True
    try:
        with _too_much(title):
            signal.setitimer(signal.ITIMER_VIRTUAL, _TICK_S, _TICK_S)
            yield
    except _SpentError as error:
        _is_running = False
        raise InputError(f"{title} takes too much time or memory", str(error), next_step) from None
    finally:
        _is_running = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def file_budget(path: Path | str) -> Iterator[None]:
    """Is the `reading_budget` of a file of that size, called by its name in messages."""
    size = 0
    with contextlib.suppress(OSError, ValueError):
        size = os.stat(path).st_size
    with reading_budget(Path(path).name, size):
        yield


@contextlib.contextmanager
def _too_much(title: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise InputError(f"{title} cannot be read", "it is nested too deep", _NEXT) from None
    except MemoryError:
        raise InputError(f"{title} takes too much time or memory", "the memory does not suffice", _NEXT) from None


def _resident_bytes() -> int:
    """Returns the memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
