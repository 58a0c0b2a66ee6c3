"""The progress of commands: one line on stderr in a terminal. If stderr is a file, only improvements of a search are
printed.

The bar is drawn by rich. The live displays of rich and click hide the cursor, and a killed program would leave it
hidden. Therefore this module writes the line itself.
"""

import os
import shutil
import sys
import time
from contextlib import suppress

from trt_tui.formatting import duration_text, escape_hidden_characters, take_first_cells
from trt_tui.jobs import events as ev
from trt_tui.session.search_status import SearchStatus, best_evaluation_text

_BAR_CELLS = 24
"""The width of the progress bar in cells."""

_MIN_DRAW_INTERVAL_S = 0.1
"""The minimum time between two drawings."""


class ProgressLine:
    """One line of progress on stderr, if stderr is a terminal."""

    def __init__(self) -> None:
        self._last_drawn_s = 0.0
        self._is_drawn = False
        self._is_terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        self._best_text = ""

    def show_job_progress(self, event: ev.JobProgress) -> None:
        """Shows the progress of a job: its phase, a bar if its end is known, and the remaining time."""
        if not self._is_redraw_due():
            return
        count_text = f" {event.done}/{event.total}" if event.total else ""
        time_left = f", {duration_text(event.left_s)} left" if event.left_s is not None and event.left_s >= 1 else ""
        self._draw_progress(f"{event.phase}{count_text}{time_left}", event.done, event.total)

    def show_search_progress(self, search_status: SearchStatus) -> None:
        """Shows the progress of a search. If stderr is not a terminal, prints a line for each better config."""
        if search_status.best_evaluation is None or search_status.progress is None:
            return
        best_text = f"best so far: {best_evaluation_text(search_status)}"
        if self._is_terminal:
            if self._is_redraw_due():
                self._draw_progress(f"{search_status.progress.done} tried; {best_text}")
        elif best_text != self._best_text:
            self._best_text = best_text
            print(f"{search_status.progress.done} tried; {best_text}", file=sys.stderr)

    def clear_line(self) -> None:
        if self._is_drawn:
            self._replace_terminal_line("")

    def _is_redraw_due(self) -> bool:
        return self._is_terminal and time.monotonic() - self._last_drawn_s >= _MIN_DRAW_INTERVAL_S

    def _draw_progress(self, text: str, done: int = 0, total: int = 0) -> None:
        self._last_drawn_s, self._is_drawn = time.monotonic(), True
        columns = shutil.get_terminal_size().columns - 1
        bar = f"{_progress_bar_text(done, total)} " if total and columns > 3 * _BAR_CELLS else ""
        self._replace_terminal_line(bar + take_first_cells(escape_hidden_characters(text), columns
                                                           - (_BAR_CELLS + 1 if bar else 0)))

    def _replace_terminal_line(self, text: str) -> None:
        """Replaces the progress line by a text. `sys.stderr` itself passes no control sequences."""
        with suppress(OSError):  # the terminal may be closed
            os.write(2, f"\r\x1b[K{text}".encode())


def _progress_bar_text(done: int, total: int) -> str:
    """Returns a progress bar as text, with colours unless NO_COLOR is set."""
    from rich.console import Console
    from rich.progress_bar import ProgressBar

    console = Console(force_terminal=True, width=_BAR_CELLS, legacy_windows=False)
    with console.capture() as drawn:
        console.print(ProgressBar(total, done, _BAR_CELLS, complete_style="bar.finished"), end="")
    return drawn.get()
