"""The handling of SIGINT, SIGTERM and SIGHUP: each stops a command as ctrl-C does, but does not cut off its final
writes."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

from trt_tui.errors import ExitCode, InputError
from trt_tui.files.writing import remove_temporary_files

MAX_END_S = 5.0
"""The time for which interrupts are ignored while a command ends. Stopping the background process and writing files
take less time unless a call hangs. Interrupts often come twice: from a shell and from its terminal that closes, or from
an impatient user."""

MAX_NOTICE_S = 1.5
"""The time in which the interpreter must notice a signal; it does not notice a signal during native code."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_signal_noticed = threading.Event()

_end_start_times: list[float] = []
"""The start times of all ends in progress: blocks of `defer_interrupts`, and the first interrupt that was raised."""


@contextlib.contextmanager
def raise_signals_as_interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt for SIGTERM and SIGHUP inside a block, as for SIGINT. Ignored signals stay ignored.

    Only the first signal raises KeyboardInterrupt. Later signals are ignored, also after the block, because the program
    is ending already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    replaced_handlers = {}
    _end_start_times.clear()
    for signal_number in _STOP_SIGNALS:
        if signal.getsignal(signal_number) in (signal.SIG_DFL, signal.default_int_handler):
            replaced_handlers[signal_number] = signal.signal(signal_number, _raise_interrupt)
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    old_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    threading.Thread(target=_watch_signals, args=(read_fd,), daemon=True).start()
    try:
        yield
    finally:
        if signal.set_wakeup_fd(-1) != write_fd:
            old_fd = -1
        signal.set_wakeup_fd(old_fd)
        os.close(write_fd)
        for signal_number, old_handler in replaced_handlers.items() if not _end_start_times else ():
            signal.signal(signal_number, old_handler)


def exit_now(exit_code: int) -> None:
    """Ends an interrupted program at once, without waiting for the interpreter to free its memory."""
    if _end_start_times:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, InputError):
                stream.flush()
        os._exit(exit_code)


def restore_signal_handlers() -> None:
    """Restores the default signal handlers, for an event loop that installs handlers later."""
    signal.set_wakeup_fd(-1)
    for signal_number in _STOP_SIGNALS:
        if signal.getsignal(signal_number) is _raise_interrupt:
            signal.signal(
                signal_number, signal.default_int_handler if signal_number == signal.SIGINT else signal.SIG_DFL
            )


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Ignores interrupts inside a block that finishes work in progress. After `MAX_END_S` interrupts take effect
    again."""
    began = time.monotonic()
    _end_start_times.append(began)
    try:
        yield
    finally:
        _end_start_times.remove(began)


def _watch_signals(read_fd: int) -> None:
    """Ends the process if the interpreter does not notice a signal because native code is running."""
    with open(read_fd, "rb", buffering=0) as signals:
        while signal_byte := signals.read(1):
            if signal_byte[0] not in _STOP_SIGNALS:  # the timer of a read budget, which interrupts only a reader
                continue
            if _signal_noticed.wait(MAX_NOTICE_S):
                _signal_noticed.clear()
                os.set_blocking(read_fd, False)
                while signals.read(64):  # drops signals that arrived before the interpreter noticed the first
                    pass
                os.set_blocking(read_fd, True)
            elif not any(time.monotonic() - began < MAX_END_S for began in _end_start_times):
                remove_temporary_files()
                with contextlib.suppress(OSError):
                    os.write(2, b"Stopped.\n")
                os._exit(int(ExitCode.CANCELLED))


def _raise_interrupt(signal_number: int, frame: object) -> None:
    _signal_noticed.set()
    time_now = time.monotonic()
    if not _end_start_times or time_now - _end_start_times[0] >= MAX_END_S:
        _end_start_times.append(time_now)
        raise KeyboardInterrupt
