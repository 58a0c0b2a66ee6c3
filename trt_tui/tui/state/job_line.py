"""The line that tells what is going on."""

from __future__ import annotations

from trt_tui.session.finding import SEARCHING, Finding, found_so_far
from trt_tui.session.session import Session
from trt_tui.tui.spans import (
    SIMULATED,
    Line,
    duration,
    shorten,
)


def job_line(session: Session, last: str = "", elapsed: float = 0.0) -> Line:
    """The running job, or the last word on the one before.

    Args:
        elapsed: Seconds since its phase began, told where nobody knows how long it takes.
    """
    job = session.job
    if job is None:
        return [(" ⋯ ", "key"), ("starting", "")] if session.busy else [(f" {last}", "dim")]
    if session.searching and job.phase == SEARCHING:
        return _search_line(session.finding)
    line: Line = [(" ⋯ ", "key"), (job.phase, "")]
    if job.total:
        line.append((f" {job.done}/{job.total}", ""))
    elif elapsed >= 1:
        line.append((f", {elapsed:.0f} s" if elapsed < 10 else f", {duration(elapsed)}", ""))
    if job.left_s is not None and job.left_s >= 1:
        line.append((f", {duration(job.left_s)} left", "dim"))
    return line


def _search_line(finding: Finding) -> Line:
    """What a search does, how far it is, and the best so far."""
    progress = finding.progress
    tried = shorten(progress.about, 24) if progress.about else f"{len(progress.trying)} raised"
    return [(" ⋯ ", "key"), (f"{progress.step or 'search'}: {tried}, {progress.done} tried; best so far: ", ""),
            (found_so_far(finding, SIMULATED), "strong" if progress.met else "")]
