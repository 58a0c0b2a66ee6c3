"""The texts of jobs, for status lines and the page of jobs; and the list of the saved sessions of a network."""

import time
from collections.abc import Mapping, Sequence

from trt_tui.core.network.layers import NetworkOutline
from trt_tui.formatting import counted_noun_text, duration_text, elapsed_text
from trt_tui.session.jobs import DONE, Job
from trt_tui.session.search_status import best_evaluation_text
from trt_tui.session.session import Session
from trt_tui.session.session_folder import SessionEntry
from trt_tui.tui.spans import Line, Span, clip_line, line_width, shorten_middle
from trt_tui.tui.state.marks import CURSOR_MARK, DONE_MARK, RUNNING_MARK
from trt_tui.tui.table import Column, fit_table

_BAR_CELLS = 20
"""The width of a progress bar."""

_SAME_PREFIX_CHARACTERS = 4
"""The number of equal first letters from which the phase of a job counts as a repetition of its title."""


_MIN_SHOWN_S = 0.5
"""The minimum age of a displayed automatic job. Shorter jobs follow each cursor movement, and the line would flicker.
"""


def split_running_and_waiting_jobs(session: Session) -> tuple[list[Job], list[Job]]:
    """Returns the running jobs and the waiting jobs, without very short automatic jobs."""
    running, waiting = ([
        job for job in jobs if not job.is_automatic or job.duration_s >= _MIN_SHOWN_S
    ] for jobs in (session.pending_requests.running_jobs, session.pending_requests.waiting_jobs))
    return running, waiting


def _job_phase_text(job: Job) -> str:
    phase = job.phase.removeprefix("building: ")
    return "" if phase[:_SAME_PREFIX_CHARACTERS] == job.title[:_SAME_PREFIX_CHARACTERS] else phase


def _job_progress_texts(job: Job) -> tuple[str, str]:
    """Returns the progress of a job, or its elapsed time if its progress is unknown, and the remaining time."""
    progress = job.progress
    if progress is None:
        seconds = job.phase_duration_s
        return (f", {elapsed_text(seconds)}" if seconds >= 1 else "", "")
    return f" {progress.done}/{progress.total}", _time_left_text(job)


def _time_left_text(job: Job) -> str:
    return f", {elapsed_text(job.left_s)} left" if job.left_s is not None else ""


def job_texts(session: Session, job: Job, stop_key: str = "") -> list[str]:
    """Returns descriptions of a job with its progress, from the longest to the shortest.

    Args:
        stop_key: The key that stops the job, which the longest form names.
    """
    if job.is_stopping:
        return [f"stopping: {job.title}", "stopping"]
    progress_text, time_left = _job_progress_texts(job)
    phase = _job_phase_text(job)
    full_title = f"{job.title}: {phase}" if phase else job.title
    search_status = session.search_status
    if search_status is not None and search_status.request is job.request and search_status.progress is not None:
        progress = search_status.progress
        tried = shorten_middle(progress.group, 24) if progress.group else f"{len(progress.trial_groups)} raised"
        short_title = f"{job.title}, {progress.done} tried"
        best = f"best: {best_evaluation_text(search_status)}"
        texts = [
            f"{progress.pass_name or 'search'}: {tried}, {progress.done} tried; {best}", f"{short_title}; {best}",
            short_title
        ]
    else:
        texts = [
            f"{full_title}{progress_text}{time_left}", f"{job.title}{progress_text}{time_left}",
            f"{job.title}{progress_text}", job.title,
            job.title.partition(" of ")[0]
        ]
    stop_texts = [f"{texts[0]}, {stop_key} stops"
                  ] if stop_key and not job.is_automatic else []
    return [*stop_texts, *dict.fromkeys(texts)]


def _last_job_text(session: Session) -> str:
    """Returns the title, outcome and duration of the job that ended last; "" if no job has ended."""
    job = session.pending_requests.last_ended_job
    if job is None:
        return ""
    return f"{DONE_MARK if job.outcome == DONE else job.outcome + ':'} {job.title} {duration_text(job.duration_s)}"


def jobs_status_lines(session: Session, stop_key: str) -> list[Line]:
    """Returns texts for jobs on a shared status line, from the longest to the shortest.

    If no job runs, the text is about the job that ended last.

    Args:
        stop_key: The key that stops jobs.
    """
    running, waiting = split_running_and_waiting_jobs(session)
    listed_jobs = running or waiting
    if not listed_jobs:
        return [[(f" {_last_job_text(session)}",
                  "dim")], []] if session.pending_requests.last_ended_job is not None else [[]]
    waited_for = [job for job in (*running, *waiting) if not job.is_automatic]
    more_count = len(waited_for) - (listed_jobs[0] in waited_for)
    more_spans: Line = [(f" +{more_count}", "dim")] if more_count else []
    return [[(f" {RUNNING_MARK} ", "key"), (text, ""), *more_spans]
            for text in job_texts(session, listed_jobs[0], stop_key)]


def jobs_line(session: Session, width: int, stop_key: str) -> Line:
    """Returns a line with the last ended job, the running jobs with progress bars, and the number of waiting jobs.

    The last ended job is omitted if there is no room.
    """
    running_jobs, waiting_jobs = split_running_and_waiting_jobs(session)
    listed_jobs = running_jobs or waiting_jobs[:1]
    unlisted_count = len(running_jobs) + len(waiting_jobs) - len(listed_jobs)
    end: Line = [(f"   {unlisted_count} wait{'s' if unlisted_count == 1 else ''}", "dim")] if unlisted_count else []
    start: Line = [(f" {_last_job_text(session)} ",
                    "dim")] if session.pending_requests.last_ended_job is not None else []
    parts = [_job_bar_spans(session, job, stop_key if index == 0 else "") for index, job in enumerate(listed_jobs)]
    line = [*start, *(span for part in parts for span in part), *end]
    if line_width(line) > width:
        line = [*(span for part in parts for span in part), *end]
    return clip_line(line, width)


def _job_bar_spans(session: Session, job: Job, stop_key: str) -> Line:
    progress = job.progress
    text = job_texts(session, job, stop_key)[0]
    if progress is None or not progress.total:
        return [(f" {RUNNING_MARK} ", "key"), (f"{text}  ", "")]
    text_before, count, text_after = text.partition(f" {progress.done}/{progress.total}")
    full_cells = round(_BAR_CELLS * progress.done / progress.total)
    return [(f" {RUNNING_MARK} ", "key"), (f"{text_before}{count} ", ""), ("█" * full_cells, "plot"),
            ("░" * (_BAR_CELLS - full_cells), "rule"), (f"{text_after.removeprefix(',')}  ", "")]


def job_table(session: Session, width: int) -> tuple[Line, list[tuple[Job, Line]]]:
    """Returns the titles and all jobs with a line each: time of the request, duration, title and state.

    Running and waiting jobs come first, then ended jobs from the newest to the oldest.
    """
    pending_requests = session.pending_requests
    ended_jobs = [job for job in reversed(pending_requests.jobs) if job.end_time is not None]
    jobs, rows = [*pending_requests.running_jobs, *pending_requests.waiting_jobs, *ended_jobs], list[list[Span]]()
    for job in jobs:
        time_text = elapsed_text(job.duration_s) if job.end_time is None else duration_text(
            job.duration_s) if job.begin_time is not None else ""
        rows.append([(time.strftime("%H:%M:%S", time.localtime(job.sent_unix_time)), "dim"),
                     (time_text, "" if job.end_time is None else "dim"),
                     (_job_title_text(job), "strong" if job in pending_requests.running_jobs else ""),
                     _job_state_text(job)])
    columns = [Column("asked at", width=8), Column("time", True, width=11),
               Column("what", min_width=10, fills=True), Column("", True)]
    header, *lines = fit_table(columns, rows, width)
    return header, list(zip(jobs, lines, strict=True))


def _job_title_text(job: Job) -> str:
    phase = _job_phase_text(job)
    return f"{job.title}: {phase}" if phase and job.end_time is None else job.title


def _job_state_text(job: Job) -> tuple[str, str]:
    if job.end_time is not None:
        return job.outcome, "dim" if job.outcome == DONE else "warn"
    if job.is_stopping:
        return "is stopping", "warn"
    if job.begin_time is None:
        return "waits", "dim"
    progress = job.progress
    return (f"{progress.done}/{progress.total}{_time_left_text(job)}",
            "key") if progress is not None and progress.total else ("runs", "key")


def stopped_jobs_text(jobs: Sequence[Job]) -> str:
    """Returns a phrase for the jobs that a stop ends, such as "the search from c3 and 2 others"."""
    first = next((job for job in jobs if not job.is_automatic), jobs[0])
    return f"{first.title} and {counted_noun_text(len(jobs) - 1, 'other')}" if len(jobs) > 1 else first.title


_MIN_SAMPLES_WIDTH = 70
"""The width of the list from which it has the number of samples."""


def session_table(entries: Mapping[str, SessionEntry], outline: NetworkOutline, width: int
                  ) -> tuple[Line, list[tuple[str, Line]]]:
    """Returns the titles and a line for each session: when it was saved, config, result with its samples, and target.
    """
    rows: list[list[Span]] = []
    for entry in entries.values():
        saved = entry.saved_session
        config = saved.current.to_precision_config()
        raised_count = len(config.find_raised_groups(outline))
        name = saved.to_config_names().get(config, "c?")
        outcome = saved.outcome or "not measured"
        own_style = "strong" if entry.is_own else ""
        rows.append([
            (f" {CURSOR_MARK if entry.is_own else ' '}", "strong"), (clock_text(entry.modified_time), "dim"),
            (f"{name} · {raised_count} raised" if raised_count else name, own_style),
            (outcome, "good" if outcome.startswith("PASS") else "bad" if outcome.startswith("FAIL") else "dim"),
            (saved.samples, "dim"),
            (f"{'current, ' if entry.is_own else ''}{saved.target or 'default'}", "")])
    columns = [Column(""), Column("saved", width=12), Column("config", width=13), Column("result", width=12),
               Column("samples", width=8), Column("target")]
    if width < _MIN_SAMPLES_WIDTH:
        del columns[4]
        rows = [[*row[:4], row[5]] for row in rows]
    header, *lines = fit_table(columns, rows, width, gap=1)
    return header, list(zip(entries, lines, strict=True))


def clock_text(seconds: float, current_time: float | None = None) -> str:
    """Returns a Unix time as text: "14:02:11" for today, else with the day; "" for 0, or for an impossible time."""
    try:
        moment = time.localtime(seconds)
        today = time.localtime(current_time)[:3]
    except (OverflowError, ValueError, OSError):  # a time from a file
        return ""
    return "" if not seconds else time.strftime("%H:%M:%S" if moment[:3] == today else "%d %b %H:%M", moment)
