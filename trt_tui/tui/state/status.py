"""The lines that show what is going on, the last message, and what to do next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui import words
from trt_tui.jobs import events as ev
from trt_tui.session.finding import SEARCHING, Finding, found_so_far
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, Span, padded, shorten, width_of


@dataclass
class Status:
    """What the status lines show that the session does not know.

    Attributes:
        message: The last message; the next key removes it.
        last_word: How the job before ended.
        phase: Of the running job, or how the one before ended.
        since: When that phase began, by the monotonic clock.
        failure: Why nothing was opened.
    """

    message: Span | None = None
    last_word: str = ""
    phase: str = ""
    since: float = 0.0
    failure: ev.Failed | ev.Died | None = None

    def enter(self, phase: str) -> None:
        """Begins a phase, unless it is going on."""
        if phase != self.phase:
            self.phase, self.since = phase, time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the phase began."""
        return time.monotonic() - self.since

    def instead_of_rows(self, model: str) -> list[Line]:
        """What is shown in place of rows while there are none.

        Args:
            model: Path of the network.
        """
        if isinstance(self.failure, ev.Failed):
            lines: list[Line] = [[], [("   " + self.failure.title, "strong")]]
            lines += [[("   " + text, "dim")] for text in (self.failure.cause, self.failure.next_step) if text]
            return [*lines, [("   q quits", "dim")]]
        if self.failure is not None:
            return [[], [("   The worker process ended while the network was being opened.", "strong")],
                    [("   o shows the log, q quits", "dim")]]
        return [[], [(f"   opening {model} …", "dim")]]


def job_line(session: Session, last: str = "", elapsed: float = 0.0) -> Line:
    """The running job, or the last word on the one before.

    Args:
        elapsed: Seconds since its phase began, shown if it is unknown how long it takes.
    """
    job = session.job
    if job is None:
        return [(" ⋯ ", "key"), ("starting", "")] if session.busy else [(f" {last}", "dim")]
    if session.searching and job.phase == SEARCHING and session.finding is not None and session.finding.progress:
        return _search_line(session.finding, session.finding.progress)
    line: Line = [(" ⋯ ", "key"), (job.phase, "")]
    if job.total:
        line.append((f" {job.done}/{job.total}", ""))
    elif elapsed >= 1:
        line.append((f", {words.elapsed(elapsed)}", ""))
    if job.left_s is not None and job.left_s >= 1:
        line.append((f", {words.duration(job.left_s)} left", "dim"))
    return line


def _search_line(finding: Finding, progress: ev.SearchProgress) -> Line:
    """What a search does, how far it is, and the best so far."""
    tried = shorten(progress.about, 24) if progress.about else f"{len(progress.trying)} raised"
    return [(" ⋯ ", "key"), (f"{progress.step or 'search'}: {tried}, {progress.done} tried; best: ", ""),
            (found_so_far(finding, words.SIMULATED), "strong" if progress.met else "")]


def first_warning(warned: Sequence[tuple[str, str]]) -> str:
    """The first warning in full, or in short with how many more the log holds.

    Args:
        warned: All of them, in short and in full.
    """
    if not warned:
        return ""
    short, full = warned[0]
    return f"1 of {len(warned)} (o): {short}" if len(warned) > 1 else full


def status_lines(session: Session, status: Status, step: str, warning: str, width: int, wide: bool) -> list[Line]:
    """The last message or else the job, and the next step; on one line unless ``wide``, which shows the warning too."""
    if status.message is not None:
        first = padded([(" ", ""), status.message], width)
    else:
        first = job_line(session, status.last_word, status.elapsed)
    if wide:
        right: Line = [(f"{warning} ", "warn")] if warning else []
        return [padded(first, width, right), [(" " + step, "strong" if step else "")]]
    if status.message is not None:
        return [first]
    if width_of(first) + len(step) + 2 > width and not session.busy:
        first = []
    return [padded(first, width, [(f"{step} ", "strong")] if step else [])]
