"""The list of jobs: what runs, what waits and what was done, with the time that each took."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.binding import Binding

from trt_tui.session.session import Session
from trt_tui.tui.keys import key, keys
from trt_tui.tui.screens.dialogs import CLOSE, Following
from trt_tui.tui.spans import Line
from trt_tui.tui.state.jobs import job_rows


class JobsPage(Following):
    """See the module's docstring.

    Args:
        stop: Stops what runs, after a question where it is old.
    """

    BINDINGS = [CLOSE, Binding("q", "close", show=False)]

    def __init__(self, session: Session, stop: Callable[[], None]) -> None:
        super().__init__("Jobs", f"{key('stop')} stops what runs  ↑↓ scroll  esc close")
        self.session, self.stop = session, stop

    def lines_now(self, width: int) -> list[Line]:
        """The jobs."""
        return job_rows(self.session, width)

    def on_key(self, event: events.Key) -> None:
        """Stops what runs."""
        if event.key in keys("stop"):
            event.stop()
            self.stop()
