"""Progress of commands: one line on stderr in a terminal; elsewhere only what a search finds.

The bar is rich's. Its live display, like click's, hides the cursor, and a program that is killed would leave it hidden;
therefore the line is written here.
"""

import os
import shutil
import sys
import time
from contextlib import suppress

from trt_tui.jobs import events as ev
from trt_tui.session.finding import Finding, found_so_far
from trt_tui.words import duration, first_cells, visible

_CELLS = 24
"""The width of the bar."""

_PAUSE_S = 0.1
"""The least time between two drawings."""


class Bar:
    """One line of progress on stderr, if that is a terminal."""

    def __init__(self) -> None:
        self._shown = 0.0
        self._wrote = False
        self._live = os.isatty(2) and os.environ.get("TERM") != "dumb"
        self._best = ""

    def show(self, event: ev.Progress) -> None:
        """Shows how far a job is: its phase, a bar if its end is known, and the time left."""
        if not self._due():
            return
        count = f" {event.done}/{event.total}" if event.total else ""
        left = f", {duration(event.left_s)} left" if event.left_s is not None and event.left_s >= 1 else ""
        self._write(f"{event.phase}{count}{left}", event.done, event.total)

    def searched(self, finding: Finding) -> None:
        """Shows how far a search is; if stderr is no terminal, prints a line for each better config."""
        if finding.best is None or finding.progress is None:
            return
        said = f"best so far: {found_so_far(finding)}"
        if self._live:
            if self._due():
                self._write(f"{finding.progress.done} tried; {said}")
        elif said != self._best:
            self._best = said
            print(f"{finding.progress.done} tried; {said}", file=sys.stderr)

    def clear(self) -> None:
        """Removes the line."""
        if self._wrote:
            self._line("")

    def _due(self) -> bool:
        return self._live and time.monotonic() - self._shown >= _PAUSE_S

    def _write(self, text: str, done: int = 0, total: int = 0) -> None:
        self._shown, self._wrote = time.monotonic(), True
        columns = shutil.get_terminal_size().columns - 1
        bar = f"{_bar(done, total)} " if total and columns > 3 * _CELLS else ""
        self._line(bar + first_cells(visible(text), columns - (_CELLS + 1 if bar else 0)))

    def _line(self, text: str) -> None:
        """Replaces the line by a text; `sys.stderr` itself lets no control sequence through."""
        with suppress(OSError):  # a terminal that has gone away
            os.write(2, f"\r\x1b[K{text}".encode())


def _bar(done: int, total: int) -> str:
    """A bar, in colours unless NO_COLOR is set."""
    from rich.console import Console
    from rich.progress_bar import ProgressBar

    console = Console(force_terminal=True, width=_CELLS, legacy_windows=False)
    with console.capture() as drawn:
        console.print(ProgressBar(total, done, _CELLS, complete_style="bar.finished"), end="")
    return drawn.get()
