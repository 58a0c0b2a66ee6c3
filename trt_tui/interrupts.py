"""SIGINT, SIGTERM and SIGHUP: each stops a command as ctrl-C does, and none tears what is being finished."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

PATIENCE_S = 5.0
"""How long interrupts are kept away from an end that is under way: stopping a child and writing files take less, unless
something hangs. They come in twos: a terminal that closes sends SIGHUP after the shell did, an impatient user."""

_ending: list[float] = []
"""When each end that is under way began: blocks of `held`, and the first interrupt that was raised."""


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt in this block, as SIGINT does; those that are ignored stay so.

    One raises it; further ones find the program on its way out, and are left alone after the block too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = {}
    _ending.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            taken[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, before in taken.items() if not _ending else ():
            signal.signal(number, before)


def release() -> None:
    """Leaves the signals of `raising` to what runs from now on, an event loop with handlers of its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """No interrupt in this block, which finishes what was begun; one that comes after `PATIENCE_S` goes through."""
    began = time.monotonic()
    _ending.append(began)
    try:
        yield
    finally:
        _ending.remove(began)


def _interrupt(number: int, frame: object) -> None:
    now = time.monotonic()
    if not _ending or now - _ending[0] >= PATIENCE_S:
        _ending.append(now)
        raise KeyboardInterrupt
