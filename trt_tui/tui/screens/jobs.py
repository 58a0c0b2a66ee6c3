"""The page of jobs: running, waiting and finished jobs with their durations."""

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from trt_tui.session.jobs import Job
from trt_tui.session.session import Session
from trt_tui.tui.screens.dialogs import Dialog, KeyHints
from trt_tui.tui.state.job_list import job_table_header, job_table_rows
from trt_tui.tui.widgets.inputs import ValueList, bind_keys
from trt_tui.tui.widgets.lines import Lines


class JobList(ValueList[Job]):
    """The list of jobs, with running and waiting jobs first."""


class JobsPage(Dialog):
    """The page of all jobs, on which the user can stop one job or all jobs.

    Args:
        stop_jobs: Stops jobs, after a question if one of them is old.
    """

    BINDINGS = bind_keys(quit="close", jobs="close", stop="stop", stop_all="stop_all")

    def __init__(self, session: Session, stop_jobs: Callable[[Sequence[Job]], None]) -> None:
        super().__init__()
        self.session, self.stop_jobs = session, stop_jobs

    def compose(self) -> ComposeResult:
        with Vertical(classes="box page"):
            yield Static("Jobs", classes="heading")
            yield Lines([job_table_header()], id="jobs-header")
            yield JobList()
        yield KeyHints("{stop} stops this one  {stop_all} all  {close} close")

    def on_mount(self) -> None:
        self.query_one(JobList).focus()
        self.call_after_refresh(self.update_lines)

    def update_lines(self) -> None:
        """Updates the list with the current jobs and their progress."""
        pane = self.query_one(JobList)
        rows = job_table_rows(self.session, max(20, pane.size.width - 3))
        pane.fill_list([job for job, _ in rows], [line for _, line in rows])

    @property
    def text(self) -> str:
        return self.query_one(JobList).text

    def action_stop(self) -> None:
        """Stops the selected job."""
        job = self.query_one(JobList).selected_value
        self.stop_jobs([job] if job is not None else [])
        self.update_lines()

    def action_stop_all(self) -> None:
        """Stops all running and waiting jobs."""
        self.stop_jobs([*self.session.pending_requests.running_jobs, *self.session.pending_requests.waiting_jobs])
        self.update_lines()
