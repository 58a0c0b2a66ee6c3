"""The jobs as they are shown: in a place of the status line, on a line of their own where there is room, as a list."""

import time
from collections.abc import Sequence

from trt_tui.session.finding import SEARCHING, found_so_far
from trt_tui.session.job import BY_ITSELF, DONE, Job
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, clip, fitted, shorten, width_of
from trt_tui.words import cells, duration, elapsed, plural

_BAR = 20
"""Cells of a bar."""

_SAME = 4
"""A phase that begins with as many letters of the job's words as these says no more than they do."""


_AT_ONCE_S = 0.5
"""What follows the cursor and is over by then is not told: the line would flicker with each key."""


def shown_jobs(session: Session) -> tuple[list[Job], list[Job]]:
    """The jobs to tell of: those that run, and those that wait."""
    running, waiting = ([job for job in jobs if not isinstance(job.request, BY_ITSELF) or job.seconds >= _AT_ONCE_S]
                        for jobs in (session.asked.running, session.asked.waiting))
    return running, waiting


def _phase(job: Job) -> str:
    phase = job.phase.removeprefix("building: ")
    known = phase == SEARCHING or phase[:_SAME] == job.words[:_SAME]
    return "" if known else phase


def _far(job: Job) -> tuple[str, str]:
    """How far a job is, or how long it has run if nobody knows; and how much time is left."""
    done = job.progress
    if done is None:
        seconds = job.seconds_of_phase
        return (f", {elapsed(seconds)}" if seconds >= 1 else "", "")
    return (f" {done.done}/{done.total}",
            f", {elapsed(done.left_s)} left" if done.left_s is not None and done.left_s >= 1 else "")


def job_forms(session: Session, job: Job, key: str = "") -> list[str]:
    """What a job does and how far it is, in ever fewer words.

    Args:
        key: The one that stops it; named in the first form only.
    """
    if job.stopping:
        return [f"stopping: {job.words}", "stopping"]
    far, left = _far(job)
    phase = _phase(job)
    full = f"{job.words}: {phase}" if phase else job.words
    finding = session.finding
    if finding is not None and finding.request is job.request and finding.progress is not None:
        said = finding.progress
        tried = shorten(said.about, 24) if said.about else f"{len(said.trying)} raised"
        short = f"{job.words}, {said.done} tried"
        best = f"best: {found_so_far(finding)}"
        forms = [f"{said.step or 'search'}: {tried}, {said.done} tried; {best}", f"{short}; {best}", short]
    else:
        forms = [f"{full}{far}{left}", f"{job.words}{far}{left}", f"{job.words}{far}", job.words,
                 job.words.partition(" of ")[0]]
    stops = [f"{forms[0]}, {key} stops"] if key and not isinstance(job.request, BY_ITSELF) else []
    return [*stops, *dict.fromkeys(forms)]


def _last(session: Session) -> str:
    """The job that ended last, and how; "" where none has."""
    job = session.asked.last
    if job is None:
        return ""
    return f"{'✓' if job.how == DONE else job.how + ':'} {job.words} {duration(job.seconds)}"


def place_forms(session: Session, key: str) -> list[Line]:
    """What stands in the place of jobs on a line that they share, in ever fewer words; the last job while none runs.

    Args:
        key: The one that stops jobs.
    """
    running, waiting = shown_jobs(session)
    shown = running or waiting
    if not shown:
        return [[(f" {_last(session)}", "dim")], []] if session.asked.last is not None else [[]]
    waited_for = [job for job in (*running, *waiting) if not isinstance(job.request, BY_ITSELF)]
    more = len(waited_for) - (shown[0] in waited_for)
    others: Line = [(f" +{more}", "dim")] if more else []
    return [[(" ⋯ ", "key"), (text, ""), *others] for text in job_forms(session, shown[0], key)]


def jobs_line(session: Session, width: int, key: str) -> Line:
    """The last job, then those that run, with bars, as many as fit; then how many wait."""
    begun, held_up = shown_jobs(session)
    running = begun or held_up[:1]
    waiting = len(begun) + len(held_up) - len(running)
    end: Line = [(f"   {waiting} wait{'s' if waiting == 1 else ''}", "dim")] if waiting else []
    start: Line = [(f" {_last(session)} ", "dim")] if session.asked.last is not None else []
    parts = [_with_bar(session, job, key if place == 0 else "") for place, job in enumerate(running)]
    line = [*start, *(span for part in parts for span in part), *end]
    if width_of(line) > width:
        line = [*(span for part in parts for span in part), *end]
    return clip(line, width)


def _with_bar(session: Session, job: Job, key: str) -> Line:
    far = job.progress
    text = job_forms(session, job, key)[0]
    if far is None or not far.total:
        return [(" ⋯ ", "key"), (f"{text}  ", "")]
    before, count, after = text.partition(f" {far.done}/{far.total}")
    full = round(_BAR * far.done / far.total)
    return [(" ⋯ ", "key"), (f"{before}{count} ", ""), ("█" * full, "plot"), ("░" * (_BAR - full), "rule"),
            (f"{after.removeprefix(',')}  ", "")]


def job_header() -> Line:
    """The titles of the columns of `job_rows`; a line of a list stands one cell in."""
    return [(f" {'asked at':<10}{'time':>11}  what", "dim")]


def job_rows(session: Session, width: int) -> list[tuple[Job, Line]]:
    """All jobs with when they were asked for, their time, what they are and how they went; those under way first,
    then the newest first."""
    asked = session.asked
    open_ = [*asked.running, *asked.waiting]
    ended = [job for job in reversed(asked.jobs) if job.ended is not None]
    lines: list[tuple[Job, Line]] = []
    for job in (*open_, *ended):
        clock = time.strftime("%H:%M:%S", time.localtime(job.sent_at))
        words, style = _told(job)
        took = elapsed(job.seconds) if job.ended is None else duration(job.seconds) if job.begun is not None else ""
        room = max(10, width - 23 - cells(words) - 2)
        lines.append((job, [
            (f"{clock:<10}", "dim"), (f"{took:>11}  ", "" if job.ended is None else "dim"),
            (fitted(_called(job), room), "strong" if job in asked.running else ""), (f"  {words}", style)]))
    return lines


def _called(job: Job) -> str:
    phase = _phase(job)
    return f"{job.words}: {phase}" if phase and job.ended is None else job.words


def _told(job: Job) -> tuple[str, str]:
    if job.ended is not None:
        return job.how, "dim" if job.how == DONE else "warn"
    if job.stopping:
        return "is stopping", "warn"
    if job.begun is None:
        return "waits", "dim"
    far = job.progress
    left = f", {elapsed(far.left_s)} left" if far is not None and far.left_s is not None and far.left_s >= 1 else ""
    return (f"{far.done}/{far.total}{left}", "key") if far is not None and far.total else ("runs", "key")


def stopped_words(jobs: Sequence[Job]) -> str:
    """Jobs that a stop ends, in words: "the search from c3 and 2 others"."""
    first = next((job for job in jobs if not isinstance(job.request, BY_ITSELF)), jobs[0])
    return f"{first.words} and {plural(len(jobs) - 1, 'other')}" if len(jobs) > 1 else first.words
