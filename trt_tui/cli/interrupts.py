"""SIGINT, SIGTERM and SIGHUP: each stops a command as ctrl-C does, and none breaks off what is being finished."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

from trt_tui.errors import ExitCode, InputError
from trt_tui.files.scratch import drop_temporaries

PATIENCE_S = 5.0
"""How long interrupts are ignored while a command ends: stopping the child and writing files take less unless something
hangs. Interrupts often come twice: from a shell and then from its terminal that closes, or from an impatient user."""

STUCK_S = 1.5
"""How long the interpreter has to notice a signal; in the middle of native code it does not."""

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_noticed = threading.Event()

_ending: list[float] = []
"""When each end that is under way began: blocks of `held`, and the first interrupt that was raised."""


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt in this block, as SIGINT does; those that are ignored stay so.

    The first one raises it; further ones are ignored, also after the block, since the program is ending already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = {}
    _ending.clear()
    for number in _NUMBERS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            taken[number] = signal.signal(number, _interrupt)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    try:
        yield
    finally:
        if signal.set_wakeup_fd(-1) != writing:
            before_fd = -1
        signal.set_wakeup_fd(before_fd)
        os.close(writing)
        for number, before in taken.items() if not _ending else ():
            signal.signal(number, before)


def leave(code: int) -> None:
    """Ends an interrupted program at once, without waiting for the interpreter to free its memory."""
    if _ending:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, InputError):
                stream.flush()
        os._exit(code)


def release() -> None:
    """Leaves the signals of `raising` to what runs from now on, an event loop with handlers of its own."""
    signal.set_wakeup_fd(-1)
    for number in _NUMBERS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Ignores interrupts in this block, which finishes what was begun; after `PATIENCE_S` they take effect."""
    began = time.monotonic()
    _ending.append(began)
    try:
        yield
    finally:
        _ending.remove(began)


def _watch(reading: int) -> None:
    """Ends the process if it does not notice a signal because it is in the middle of native code."""
    with open(reading, "rb", buffering=0) as signals:
        while number := signals.read(1):
            if number[0] not in _NUMBERS:  # the timer of a budget, which interrupts nothing but a reader
                continue
            if _noticed.wait(STUCK_S):
                _noticed.clear()
                os.set_blocking(reading, False)
                while signals.read(64):  # came before it was noticed
                    pass
                os.set_blocking(reading, True)
            elif not any(time.monotonic() - began < PATIENCE_S for began in _ending):
                drop_temporaries()
                with contextlib.suppress(OSError):
                    os.write(2, b"Stopped.\n")
                os._exit(int(ExitCode.CANCELLED))


def _interrupt(number: int, frame: object) -> None:
    _noticed.set()
    now = time.monotonic()
    if not _ending or now - _ending[0] >= PATIENCE_S:
        _ending.append(now)
        raise KeyboardInterrupt
