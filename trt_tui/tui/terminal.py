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

from trt_tui.tui.terminal_output import TerminalCells
from trt_tui.tui.textual_internals import DrawingDriver

_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_MAX_END_S = 3.0
"""A terminal that is gone, or stalled, takes no more writing: then the process ends without having restored it."""


def _can_erase_in_colour() -> bool:
    """Whether the terminal's erased cells have the colour behind its text, by what is known of its TERM."""
    try:
        import curses
        curses.setupterm()
    except Exception:  # Python is built without it, or nothing describes this TERM
        return False
    return curses.tigetflag("bce") > 0 and curses.tigetstr("ech") is not None


class AppWithTerminalCells(Protocol):
    """The app that is drawn."""

    terminal_cells: TerminalCells | None


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
        self.set_output_stream(file)
        self.terminal_cells = TerminalCells(_can_erase_in_colour())
        cast(AppWithTerminalCells, app).terminal_cells = self.terminal_cells
        self._is_drawn = False
        for signal_number, callback in ((signal.SIGTSTP, self._suspend_process), (signal.SIGCONT, self._resume_app)):
            signal.signal(signal_number, functools.partial(self._call_in_loop, callback))

    def start_application_mode(self) -> None:
        """Takes the terminal, on which nothing of the app stands yet."""
        self.terminal_cells.forget_cells()
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

    def _call_in_loop(self, callback: Callable[[], None], *_: object) -> None:
        """Calls what writes to the terminal from the app's loop.

        A signal's handler may not: it runs amid anything, also a writing to the same queue, whose lock it would wait
        for without end.
        """
        asyncio.get_running_loop().call_soon_threadsafe(callback)

    def _suspend_process(self) -> None:
        """Gives the terminal back and stops the process, until SIGCONT."""
        if self._is_drawn:
            self.suspend_application_mode()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _resume_app(self) -> None:
        """Takes the terminal again; one that was stopped unseen has it still, as it was."""
        if self._is_drawn:
            self.suspend_application_mode()
        self.resume_application_mode()
        self.drawn_app.call_later(self.drawn_app.refresh, layout=True)


def call_on_termination_signal(on_signal: Callable[[signal.Signals], None]) -> None:
    """Calls a function from the running loop at SIGTERM and SIGHUP, and ends the process if that takes too long.

    The second part asks nothing of the loop, which stands still while a terminal takes no writing.
    """
    loop = asyncio.get_running_loop()

    def handle_signal(number: int, _: object) -> None:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))
        signal.setitimer(signal.ITIMER_REAL, _MAX_END_S)
        loop.call_soon_threadsafe(on_signal, signal.Signals(number))

    for signal_number in _END_SIGNALS:
        if signal.getsignal(signal_number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal_number, handle_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        threading.Thread(target=_wait_for_terminal_loss, args=(loop, on_signal), name="terminal", daemon=True).start()


def _wait_for_terminal_loss(loop: asyncio.AbstractEventLoop, on_signal: Callable[[signal.Signals], None]) -> None:
    """Ends the process once its terminal is gone, whether or not the signal of that wakes the main thread."""
    poller = select.poll()
    poller.register(0, 0)  # a hang-up is told unasked
    poller.poll()
    with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending
        loop.call_soon_threadsafe(on_signal, signal.SIGHUP)
    time.sleep(_MAX_END_S)
    os._exit(128 + signal.SIGHUP)
