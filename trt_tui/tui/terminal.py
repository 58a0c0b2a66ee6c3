"""The terminal driver of the app: the output stream, suspension and resumption, and signals that end the process."""

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
from typing import Any, cast

from textual.app import App

from trt_tui.tui.terminal_output import TerminalCells
from trt_tui.tui.textual_internals import DrawingDriver

_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_MAX_END_S = 3.0
"""The maximum time for an orderly end after a signal. A terminal that is gone or stalled accepts no output, so the
process then ends without restoring the terminal."""


def _can_erase_in_colour() -> bool:
    """Returns True if the terminal can erase cells in the current background colour, according to terminfo."""
    try:
        import curses

        curses.setupterm()
    except Exception:  # Python has no curses, or terminfo has no entry for this TERM
        return False
    return curses.tigetflag("bce") > 0 and curses.tigetstr("ech") is not None


class TerminalDriver(DrawingDriver):
    """A Textual driver that draws on standard error, or on standard output if standard error is redirected.

    The driver redraws the screen after every suspension, also after SIGSTOP, which a process cannot detect in advance.
    Input bytes that are not UTF-8 are ignored.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        file = sys.__stderr__ if os.isatty(2) else sys.__stdout__
        assert file is not None, "the command refuses to open the app where it could not be drawn"
        file.reconfigure(errors="replace")  # a locale that has no "│" gets a "?"
        self.set_output_stream(file)
        self.terminal_cells = TerminalCells(_can_erase_in_colour())
        cast(Any, app).terminal_cells = self.terminal_cells
        self._is_drawn = False
        for signal_number, callback in ((signal.SIGTSTP, self._suspend_process), (signal.SIGCONT, self._resume_app)):
            signal.signal(signal_number, functools.partial(self._call_in_event_loop, callback))

    def start_application_mode(self) -> None:
        """Takes control of the terminal, and marks all terminal cells as unknown."""
        self.terminal_cells.forget_cells()
        self._is_drawn = True
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        """Returns control of the terminal, and resets its colours."""
        self._is_drawn = False
        self.write("\x1b[m")
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        """Reads keys until the app ends, also after bytes that cannot be decoded."""
        while True:
            try:
                return super().run_input_thread()
            except UnicodeDecodeError:  # the bytes are not a key
                continue

    def _call_in_event_loop(self, callback: Callable[[], None], *_: object) -> None:
        """Schedules a callback in the app's event loop; for signal handlers.

        A signal handler must not write to the terminal itself. It can interrupt a write to the same queue, and would
        then wait for the lock of that queue forever.
        """
        asyncio.get_running_loop().call_soon_threadsafe(callback)

    def _suspend_process(self) -> None:
        """Returns control of the terminal and stops the process until SIGCONT."""
        if self._is_drawn:
            self.suspend_application_mode()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _resume_app(self) -> None:
        """Takes control of the terminal again after SIGCONT, and redraws the screen.

        After SIGSTOP the driver still counts as drawing, so it is suspended first.
        """
        if self._is_drawn:
            self.suspend_application_mode()
        self.resume_application_mode()
        self.drawn_app.call_later(self.drawn_app.refresh, layout=True)


def call_on_termination_signal(on_signal: Callable[[signal.Signals], None]) -> None:
    """Calls a function in the running event loop at SIGTERM and SIGHUP, and ends the process if that takes too long.

    The forced end uses SIGALRM, not the loop, because the loop blocks while a terminal accepts no output.
    """
    loop = asyncio.get_running_loop()

    def handle_signal(number: int, _: object) -> None:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))
        signal.setitimer(signal.ITIMER_REAL, _MAX_END_S)
        loop.call_soon_threadsafe(on_signal, signal.Signals(number))

    for signal_number in _END_SIGNALS:
        if signal.getsignal(signal_number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(signal_number, handle_signal)
    threading.Thread(target=_wait_for_terminal_loss, args=(loop, on_signal), name="terminal", daemon=True).start()


def _wait_for_terminal_loss(loop: asyncio.AbstractEventLoop, on_signal: Callable[[signal.Signals], None]) -> None:
    """Waits until the terminal is gone, then ends the process.

    SIGHUP alone does not suffice: it does not always wake the main thread, and nohup ignores it. An app without its
    terminal cannot be used again, and would use a whole core to read keys.
    """
    poller = select.poll()
    poller.register(0, 0)  # poll always reports a hang-up, without a requested event
    poller.poll()
    with contextlib.suppress(RuntimeError):  # the loop is closed, because the app is ending
        loop.call_soon_threadsafe(on_signal, signal.SIGHUP)
    time.sleep(_MAX_END_S)
    os._exit(128 + signal.SIGHUP)
