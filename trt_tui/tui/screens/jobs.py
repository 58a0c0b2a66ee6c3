"""The list of jobs: what runs, what waits and what was done, with the time that each took."""

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static

from trt_tui.session.job import Job
from trt_tui.session.session import Session
from trt_tui.tui.keys import worded
from trt_tui.tui.screens.dialogs import CLOSE, QUIT, Dialog
from trt_tui.tui.state.jobs import job_header, job_rows
from trt_tui.tui.widgets.choices import Listed
from trt_tui.tui.widgets.lines import Lines


class JobList(Listed[Job]):
    """Jobs, those under way first."""


class JobsPage(Dialog):
    """All jobs; the one under the cursor can be stopped.

    Args:
        stop: Stops jobs, after a question where one is old.
    """

    BINDINGS = [CLOSE, QUIT, Binding("f9", "close", id="jobs"), Binding("x", "stop", id="stop"),
                Binding("a", "stop_all", id="stop_all")]

    def __init__(self, session: Session, stop: Callable[[Sequence[Job]], None]) -> None:
        super().__init__()
        self.session, self.stop = session, stop

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box page"):
            yield Static("Jobs", classes="heading")
            yield Lines([job_header()], id="jobs-header")
            yield JobList()
            yield Static(worded("{stop} stops this one  {stop_all} all  {up}{down} go  {close} close"),
                         classes="hint")

    def on_mount(self) -> None:
        """Fills it once its size is known, and gives the keys to the list."""
        self.query_one(JobList).focus()
        self.call_after_refresh(self.follow)

    def follow(self) -> None:
        """Shows how far the jobs are now."""
        pane = self.query_one(JobList)
        rows = job_rows(self.session, max(20, pane.size.width - 3))
        pane.fill([job for job, _ in rows], [line for _, line in rows])

    @property
    def text(self) -> str:
        """What is listed, without styles."""
        return self.query_one(JobList).text

    def action_stop(self) -> None:
        """Stops the job under the cursor."""
        job = self.query_one(JobList).chosen
        self.stop([job] if job is not None else [])
        self.follow()

    def action_stop_all(self) -> None:
        """Stops all jobs."""
        self.stop([*self.session.asked.running, *self.session.asked.waiting])
        self.follow()
