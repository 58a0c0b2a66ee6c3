"""The terminal beneath the app: what it is drawn on, how it is stopped and gone on with, what signals end it."""

import asyncio
import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from textual.app import App

from trt_tui.tui.painting import Painted
from trt_tui.tui.textual_parts import DrawingDriver

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_LONGEST_END_S = 3.0
"""A terminal that is gone, or stalled, takes no more writing: then the process ends without having restored it."""


def _erases_in_colour() -> bool:
    """Whether the terminal's erased cells have the colour behind its text, by what is known of its TERM."""
    try:
        import curses
        curses.setupterm()
    except Exception:  # Python is built without it, or nothing describes this TERM
        return False
    return curses.tigetflag("bce") > 0 and curses.tigetstr("ech") is not None


class Draws(Protocol):
    """The app that is drawn."""

    painted: Painted | None


class TerminalDriver(DrawingDriver):
    """Textual's driver, which draws on stderr, made to draw on stdout where stderr goes elsewhere.

    It comes back from every stop painted, from one that no process can see coming (SIGSTOP) too, and takes bytes that
    are no UTF-8 for no key.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        file = sys.__stderr__ if os.isatty(2) else sys.__stdout__
        assert file is not None, "the command refuses to open the app where it could not be drawn"
        file.reconfigure(errors="replace")  # a locale that has no "│" gets a "?"
        self.draw_on(file)
        self.painted = Painted(_erases_in_colour())
        cast(Draws, app).painted = self.painted
        self._is_drawn = False
        for number, call in ((signal.SIGTSTP, self._stop_process), (signal.SIGCONT, self._go_on)):
            signal.signal(number, functools.partial(self._in_loop, call))

    def start_application_mode(self) -> None:
        """Takes the terminal, on which nothing of the app stands yet."""
        self.painted.forget()
        self._is_drawn = True
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        """Gives the terminal back, with its own colours."""
        self._is_drawn = False
        self.write("\x1b[m")
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        """Reads keys until the app ends."""
        while True:
            try:
                return super().run_input_thread()
            except UnicodeDecodeError:  # bytes that are no keys
                continue

    def _in_loop(self, call: Callable[[], None], *_: object) -> None:
        """Calls what writes to the terminal from the app's loop.

        A signal's handler may not: it runs amid anything, also a writing to the same queue, whose lock it would wait
        for without end.
        """
        asyncio.get_running_loop().call_soon_threadsafe(call)

    def _stop_process(self) -> None:
        """Gives the terminal back and stops the process, until SIGCONT."""
        if self._is_drawn:
            self.suspend_application_mode()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        """Takes the terminal again; one that was stopped unseen has it still, as it was."""
        if self._is_drawn:
            self.suspend_application_mode()
        self.resume_application_mode()
        self.drawn_app.call_later(self.drawn_app.refresh, layout=True)


def on_ending(end: Callable[[signal.Signals], None]) -> None:
    """Calls a function from the running loop at SIGTERM and SIGHUP, and ends the process if that takes too long.

    The second part asks nothing of the loop, which stands still while a terminal takes no writing.
    """
    loop = asyncio.get_running_loop()

    def ending(number: int, _: object) -> None:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))
        signal.setitimer(signal.ITIMER_REAL, _LONGEST_END_S)
        loop.call_soon_threadsafe(end, signal.Signals(number))

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, ending)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        threading.Thread(target=_await_loss, args=(loop, end), name="terminal", daemon=True).start()


def _await_loss(loop: asyncio.AbstractEventLoop, end: Callable[[signal.Signals], None]) -> None:
    """Ends the process once its terminal is gone, whether or not the signal of that wakes the main thread."""
    line = select.poll()
    line.register(0, 0)  # a hang-up is told unasked
    line.poll()
    with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending
        loop.call_soon_threadsafe(end, signal.SIGHUP)
    time.sleep(_LONGEST_END_S)
    os._exit(128 + signal.SIGHUP)
