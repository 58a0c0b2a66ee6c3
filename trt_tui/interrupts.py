"""SIGINT, SIGTERM and SIGHUP: each stops a command as ctrl-C does, and none tears what is being finished."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

PATIENCE_S = 5.0
"""How long `held` keeps interrupts away: stopping a child and writing files take less, unless something hangs."""

_held: list[float] = []
"""When each block of `held` that is running began."""


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt in this block, as SIGINT does; those that are ignored stay so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            taken[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, before in taken.items():
            signal.signal(number, before)


def release() -> None:
    """Leaves the signals of `raising` to what runs from now on, an event loop with handlers of its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """No interrupt in this block: it finishes what an interrupt began. One that comes after `PATIENCE_S` goes through.

    Signals come in twos: a terminal that closes sends SIGHUP after the shell did, an impatient user ctrl-C.
    """
    _held.append(time.monotonic())
    try:
        yield
    finally:
        _held.pop()


def _interrupt(number: int, frame: object) -> None:
    if not _held or time.monotonic() - _held[0] >= PATIENCE_S:
        raise KeyboardInterrupt
