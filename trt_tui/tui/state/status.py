"""The status lines: jobs, the last message or failure, and the recommended next step; the footer; tables of jobs."""

import enum
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from trt_tui.core.lowering.network_rewrite import reduces_precision
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import counted_noun_text, duration_text, elapsed_text
from trt_tui.jobs import events as ev
from trt_tui.jobs.requests import BuildEngine, FindMixedPrecisionConfig
from trt_tui.session.history import SessionEntry
from trt_tui.session.jobs import DONE, FAILED, Job
from trt_tui.session.search_status import SearchStatus, best_evaluation_text, best_value_text
from trt_tui.session.session import Session
from trt_tui.tui.keys import ACTIONS, ACTIONS_BY_ID, shown_key
from trt_tui.tui.spans import Line, Span, clip_line, justify_line, line_width, shorten_path
from trt_tui.tui.state import engine_texts
from trt_tui.tui.state.config_list import ToggleResult, find_toggle_result
from trt_tui.tui.state.config_status import (
    config_meets_target_simulated,
    config_name,
    has_unfinished_accuracy,
    is_measuring_current_config,
    is_measuring_shares,
    is_measuring_toggles,
    meets_target,
)
from trt_tui.tui.state.marks import CURSOR_MARK, RUNNING_MARK, SAME_VALUE_MARK
from trt_tui.tui.state.rows import RowValues
from trt_tui.tui.table import Column, fit_table

_BAR_CELLS = 20
"""The width of a progress bar."""

_SAME_PREFIX_CHARACTERS = 4
"""The number of equal first letters from which the phase of a job counts as a repetition of its title."""


_MIN_SHOWN_S = 0.5
"""The minimum age of a displayed automatic job. Shorter jobs follow each cursor movement, and the line would flicker.
"""


def list_shown_jobs(session: Session) -> list[Job]:
    """Returns the running and waiting jobs without very short automatic jobs; those that the user requested first."""
    return list(filter(_is_shown, session.pending_requests.unfinished_jobs))


def _is_shown(job: Job) -> bool:
    return not job.is_automatic or job.duration_s >= _MIN_SHOWN_S


def waiting_text(job: Job) -> str:
    """Returns "waits for" with the job that runs in place of the given one; "" if that job does not wait."""
    awaited_job = job.awaited_job
    return f"waits for {awaited_job.title}" if awaited_job is not None and _is_shown(awaited_job) else ""


def _time_left_text(job: Job) -> str:
    """Returns the time left or the job that is waited for, after a comma; "" if neither is known."""
    is_search = isinstance(job.request, FindMixedPrecisionConfig)  # its phases do not foretell its end
    text = waiting_text(job) or (f"{elapsed_text(job.left_s)} left" if job.left_s is not None and not is_search else "")
    return f", {text}" if text else ""


def best_search_texts(session: Session, search_status: SearchStatus) -> list[str]:
    """Returns the best result of a search so far, as a long and a short text."""
    best, outline = search_status.best_config, session.opened_network.outline
    if best is not None and not reduces_precision(outline, best):
        return ["all layers in FP32"] * 2
    return [best_evaluation_text(search_status), best_value_text(search_status)]


def job_texts(session: Session, job: Job, stop_key: str = "") -> list[str]:
    """Returns descriptions of a job with its progress, from the longest to the shortest.

    Args:
        stop_key: The key that stops the job, which the longest form names.
    """
    if job.is_stopping:
        return [f"stopping: {job.title}", "stopping"]
    search_status = session.search_status
    count_text = f" {job.progress.done}/{job.progress.total}" if job.progress is not None else ""
    progress_text = count_text or (f", {elapsed_text(job.duration_s)}" if job.duration_s >= 1 else "")
    if search_status is not None and search_status.request is job.request and search_status.progress is not None:
        best_texts = [f"best: {text}" for text in best_search_texts(session, search_status)]
        long_text, short_text = [waiting] * 2 if (waiting := waiting_text(job)) else best_texts
        time_text = elapsed_text(job.duration_s)
        effort_text = f"{search_status.progress.done} tried in {time_text}"
        phase_text = f"{job.phase}{count_text}, " if job.phase else ""
        texts = [
            f"{job.title}: {long_text}; {phase_text}{effort_text}",
            f"{job.title}: {short_text}; {effort_text}",
            f"search, {time_text}, {short_text}",
            short_text,
            f"search, {effort_text}",
            f"search, {time_text}",
        ]
    else:
        texts = [
            f"{': '.join(filter(None, (job.title, _phase_text(job))))}{progress_text}{_time_left_text(job)}",
            f"{job.title}{progress_text}{_time_left_text(job)}",
            f"{job.title}{progress_text}",
            job.title,
            job.title.partition(" of ")[0],
        ]
    stop_texts = [f"{texts[0]}, {stop_key} stops"] if stop_key and not job.is_automatic else []
    return [*stop_texts, *dict.fromkeys(texts)]


def short_jobs_line_forms(session: Session, stop_key: str) -> list[Line]:
    """Returns texts for jobs on a shared status line, from the longest to the shortest; empty if no job runs.

    Args:
        stop_key: The key that stops jobs.
    """
    jobs = list_shown_jobs(session)
    if not jobs:
        return [[]]
    more_count = sum(not job.is_automatic for job in jobs[1:])
    more_spans: Line = [(f" +{more_count}", "dim")] if more_count else []
    return [[(f" {RUNNING_MARK} ", "key"), (text, ""), *more_spans] for text in job_texts(session, jobs[0], stop_key)]


def wide_jobs_line(session: Session, width: int, stop_key: str) -> Line:
    """Returns a line with the unfinished jobs and their progress bars. Without jobs, the line is empty."""
    jobs = enumerate(list_shown_jobs(session))
    parts = [_job_bar_spans(session, job, "" if index else stop_key) for index, job in jobs]
    return clip_line([span for part in parts for span in part], width)


def _job_bar_spans(session: Session, job: Job, stop_key: str) -> Line:
    progress = job.progress
    text = job_texts(session, job, stop_key)[0]
    if progress is None or not progress.total:
        return [(f" {RUNNING_MARK} ", "key"), (f"{text}  ", "")]
    text_before, count, text_after = text.partition(f" {progress.done}/{progress.total}")
    full_cells = round(_BAR_CELLS * progress.done / progress.total)
    return [
        (f" {RUNNING_MARK} ", "key"),
        (f"{text_before}{count} ", ""),
        ("█" * full_cells, "plot"),
        ("░" * (_BAR_CELLS - full_cells), "rule"),
        (f"{text_after.removeprefix(',')}  ", ""),
    ]


def job_table(session: Session, width: int) -> tuple[Line, list[tuple[Job, Line]]]:
    """Returns the titles and all jobs with a line each: time of the request, duration, title, phase and state.

    Running and waiting jobs come first, then ended jobs from the newest to the oldest.
    """
    pending_requests = session.pending_requests
    ended_jobs = [job for job in reversed(pending_requests.jobs) if job.end_time is not None]
    jobs, rows = [*pending_requests.unfinished_jobs, *ended_jobs], list[list[Span]]()
    for job in jobs:
        time_text = (
            elapsed_text(job.duration_s)
            if job.end_time is None
            else duration_text(job.duration_s)
            if job.begin_time is not None
            else ""
        )
        rows.append(
            [
                (time.strftime("%H:%M:%S", time.localtime(job.sent_unix_time)), "dim"),
                (time_text, "" if job.end_time is None else "dim"),
                (job.title, "strong" if job.begin_time is not None and job.end_time is None else ""),
                (waiting_text(job).removeprefix("waits ") or _phase_text(job), "dim"),
                _job_state_text(job),
            ]
        )
    columns = [
        Column("asked at", width=8, rank=1, spare_cells=24),
        Column("time", True, width=11),
        Column("what", min_width=10, fills=True),
        Column("", rank=2, spare_cells=24),
        Column("", True),
    ]
    header, *lines = fit_table(columns, rows, width)
    return header, list(zip(jobs, lines, strict=True))


def _phase_text(job: Job) -> str:
    """Returns the phase of a job; "" if the job has ended, or if its title says the same."""
    phase = job.phase.removeprefix("building: ")
    is_repeated = phase[:_SAME_PREFIX_CHARACTERS] == job.title[:_SAME_PREFIX_CHARACTERS]
    return "" if is_repeated or job.end_time is not None else phase


def _job_state_text(job: Job) -> tuple[str, str]:
    if job.end_time is not None:
        return job.outcome, "dim" if job.outcome == DONE else "warn"
    if job.is_stopping:
        return "is stopping", "warn"
    progress, has_begun = job.progress, job.begin_time is not None
    if progress is not None and progress.total:
        end_text = ", waits" if waiting_text(job) else _time_left_text(job)
        return f"{progress.done}/{progress.total}{end_text}", "key"
    return "runs" if has_begun and not waiting_text(job) else "waits", "key" if has_begun else "dim"


def stopped_jobs_text(jobs: Sequence[Job]) -> str:
    """Returns a phrase for jobs, such as "the search from c3 and 2 others"."""
    first = next((job for job in jobs if not job.is_automatic), jobs[0])
    return f"{first.title} and {counted_noun_text(len(jobs) - 1, 'other')}" if len(jobs) > 1 else first.title


def session_table(
    entries: Mapping[str, SessionEntry], outline: NetworkOutline, width: int
) -> tuple[Line, list[tuple[str, Line]]]:
    """Returns the titles and a line for each session: when it was saved, config, result with its samples, and target."""
    rows: list[list[Span]] = []
    for entry in entries.values():
        saved = entry.saved_session
        config = saved.current.to_precision_config()
        raised_count = len(config.find_raised_groups(outline))
        name = saved.to_config_names().get(config, "c?")
        outcome = saved.outcome or "not measured"
        own_style = "strong" if entry.is_own else ""
        rows.append(
            [
                (f" {CURSOR_MARK if entry.is_own else ' '}", "strong"),
                (clock_text(entry.modified_time), "dim"),
                (f"{name} · {raised_count} raised" if raised_count else name, own_style),
                (outcome, "good" if outcome.startswith("PASS") else "bad" if outcome.startswith("FAIL") else "dim"),
                (saved.samples, "dim"),
                (f"{'current, ' if entry.is_own else ''}{saved.target or 'default'}", ""),
            ]
        )
    columns = [
        Column(""),
        Column("saved"),
        Column("config"),
        Column("result"),
        Column("samples", rank=1),
        Column("target"),
    ]
    header, *lines = fit_table(columns, rows, width)
    return header, list(zip(entries, lines, strict=True))


def clock_text(seconds: float, current_time: float | None = None) -> str:
    """Returns a Unix time as text: "14:02:11" for today, else with the day; "" for 0, or for an impossible time."""
    try:
        moment = time.localtime(seconds)
        today = time.localtime(current_time)[:3]
    except (OverflowError, ValueError, OSError):  # a time from a file
        return ""
    return "" if not seconds else time.strftime("%H:%M:%S" if moment[:3] == today else "%d %b %H:%M", moment)


_MAX_JUDGED_RAISES = 20
"""The maximum number of rows whose raise is judged at each key."""

MAX_NAME_CELLS = 60, 24
"""The maximum width of a row name in the longest form of a hint, and in all other forms."""


@dataclass(frozen=True)
class Hint:
    """A recommended next step, in several lengths.

    Attributes:
        forms: The text from the longest to the shortest form; empty if there is no hint.
        actions: The ids of the actions whose keys the text names, in the order of the key presses.
        group: The name of the fusion group that the actions raise; "" if they raise no group.
    """

    forms: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    group: str = ""

    @property
    def text(self) -> str:
        """The longest form of the hint; "" if there is no hint."""
        return self.forms[0] if self.forms else ""

    def __bool__(self) -> bool:
        return bool(self.forms)


_MEASURING_HINT = Hint(("still measuring",))
"""The hint while values are not final, when no step can be recommended."""


def next_step_hint(
    session: Session, row_values: RowValues | None, cursor_group: str = "", is_typing: bool = False
) -> Hint:
    """Returns the hint for the current state of the session. No step is recommended while its values are not final.

    Args:
        cursor_group: The name of the fusion group under the cursor of the focused layer list; "" if there is none.
        is_typing: True if the filter field has the focus.
    """
    if session.outline is None or row_values is None:
        return Hint()
    if is_typing:
        return Hint((f"{shown_key('open')} goes to the rows, {shown_key('close')} shows all of them again",))
    if session.data_summary is None:
        return Hint(("next: reopen with --data to measure accuracy",))
    if (
        session.data_summary.is_random
        and session.get_run_results("int8").accuracy is None
        and not is_measuring_current_config(session)
    ):
        return Hint(
            (
                f"next: reopen with --data to measure accuracy, or {shown_key('compare')} compares on random inputs",
                f"next: reopen with --data, or {shown_key('compare')} compares",
            ),
            ("compare",),
        )
    if session.is_building:
        return Hint()
    if session.is_searching:
        return Hint((f"{shown_key('find')} shows the best so far",), ("find",)) if session.has_search_config else Hint()
    if _has_search_result_for_config(session):
        return Hint((f"next: {_search_key_text(session)}",), ("find",))
    if has_unfinished_accuracy(session, session.config):
        if is_measuring_current_config(session):
            return _MEASURING_HINT
        return _failed_measurement_hint(session) or Hint((f"next: {shown_key('compare')} compares",), ("compare",))
    if engine_hint := _engine_hint(session, row_values, cursor_group):
        return engine_hint
    is_reached = config_meets_target_simulated(session, session.config)
    if is_reached is None and session.target is not None:
        return (
            Hint()
            if reduces_precision(session.outline, session.config)
            else Hint(
                (
                    f"every row is in FP32: {shown_key('undo')} undoes, or {shown_key('toggle')} lowers a row",
                    f"{shown_key('toggle')} lowers a row",
                ),
                ("toggle",),
            )
        )
    if not is_reached:
        return _raise_row_hint(session, row_values, cursor_group)
    if _has_failed_build(session):
        return Hint(
            (
                f"{shown_key('log')} shows why {config_name(session)} was not "
                f"{'built' if session.builder is not None else 'executed'}",
            ),
            ("log",),
        )
    if is_measuring_current_config(session) and (exported_hint := _exported_config_hint(session)):
        return exported_hint  # the comparison after a resume sends the stored builds and executed exports
    action_text = "builds {} and confirms it" if session.builder is not None else "executes the export of {}"
    return Hint((f"next: {shown_key('build')} {action_text.format(config_name(session))}",), ("build",))


def _failed_measurement_hint(session: Session) -> Hint | None:
    """Returns the hint that names the error of the last measurement of a config; None if it did not fail."""
    jobs = [job for job in session.pending_requests.jobs if job.request.job_kind.measures_current_config]
    if not isinstance(session.error, ev.JobFailed) or not jobs or jobs[-1].outcome != FAILED:
        return None
    return Hint(_failure_texts(session.error.error), ("log",))


def _failure_texts(error: TrtTuiError) -> tuple[str, str]:
    """Returns the texts that name the failure of a job and the key of its details, the longest first."""
    log_text = f"{shown_key('log')} shows why"
    return f"{error.title}: {log_text}", f"a job failed: {log_text}"


def _has_search_result_for_config(session: Session) -> bool:
    """Returns True if a search from the current config ended with another config that meets the target."""
    return (
        (search_status := session.search_status) is not None
        and search_status.end_event is not None
        and search_status.is_target_met
        and search_status.request.config == session.config
        and search_status.best_config != session.config
    )


def _exported_config_hint(session: Session) -> Hint:
    """Returns the hint for a config that was exported; an empty hint for other configs."""
    is_exported = session.config in session.config_names.exported_configs
    return Hint((f"{config_name(session)} is exported",)) if is_exported else Hint()


def _has_failed_build(session: Session) -> bool:
    """Returns True if the last build of the current config, or the last execution of its export, failed."""
    outcomes = [
        job.outcome
        for job in session.pending_requests.jobs
        if isinstance(job.request, BuildEngine) and job.request.config == session.config
    ]
    return outcomes[-1:] == [FAILED]


def _search_key_text(session: Session) -> str:
    """Returns the effect of the search key: it starts a search, or shows the last one."""
    return f"{shown_key('find')} {'shows what the search found' if session.has_search_config else 'finds a fix'}"


def find_first_group_to_raise(session: Session, row_values: RowValues) -> str | None:
    """Returns the name of the fusion group that the hint suggests to raise first.

    This is the first group, in network order, with NaN or Inf. Without such a group, it is the group with the largest
    error share of all groups that can be raised to FP32. Groups whose raise is known not to improve the value that the
    target bounds come last. None if there is neither.
    """
    groups = row_values.model.outline.groups
    if row_values.nonfinite_groups:
        return next(group.name for group in groups if group.name in row_values.nonfinite_groups)
    config, shares = session.config, row_values.shares
    harmful_groups = [group for group in groups if group.name in shares and shares[group.name].fraction > 0]
    harmful_groups.sort(key=lambda group: -shares[group.name].fraction)
    raisable_groups = (
        group for group in harmful_groups if config.with_toggled_fp32([group]).precision_of(group) is Precision.FP32
    )
    first: str | None = None
    for group in itertools.islice(raisable_groups, _MAX_JUDGED_RAISES):
        if _can_toggle_improve(session, find_toggle_result(session, [group])):
            return group.name
        first = first or group.name
    return first


def _can_toggle_improve(session: Session, toggle: ToggleResult) -> bool:
    """Returns False if the toggle of a row did not improve the value by more than noise, or is still to be measured."""
    accuracy = session.get_run_results("config").accuracy
    if session.target is None or accuracy is None or toggle.margin is None or toggle.is_partial:
        return toggle.outcome_text != "…"
    margin = session.target.margin_to_bound(accuracy)
    return toggle.outcome_text != SAME_VALUE_MARK and (margin is None or toggle.margin > margin)


def _raise_row_hint(session: Session, row_values: RowValues, cursor_group: str, prefix: str = "next: ") -> Hint:
    """Returns the hint for a config that misses the target: start a search, or raise the worst row."""
    if is_measuring_shares(session):
        return Hint(
            (
                f"still measuring {'the shares' if not session.get_run_results('config').shares else 'all shares'}",
                *_MEASURING_HINT.forms,
            )
        )
    if session.fp32_miss_text:
        return Hint((f"{session.fp32_miss_text}: no raised row meets it", session.fp32_miss_text))
    search_text = _search_key_text(session)
    worst = find_first_group_to_raise(session, row_values)
    outline, config = row_values.model.outline, session.config
    forms = [prefix + search_text]
    if not is_measuring_toggles(session) and all(
        group.name in session.get_run_results("config").shares for group in outline.groups
    ):
        forms.insert(0, f"{prefix.removeprefix('next: ')}no single raise helps, {search_text}")
    search_hint = Hint(tuple(forms), ("find",))
    if (
        worst is None
        or config.with_toggled_fp32([outline.get_group(worst)]).precision_of(outline.get_group(worst))
        is not Precision.FP32
    ):
        return search_hint
    toggle = find_toggle_result(session, [outline.get_group(worst)])
    if worst not in row_values.nonfinite_groups and not _can_toggle_improve(session, toggle):
        return search_hint
    is_simulated_met = config_meets_target_simulated(session, config)
    row_count = (
        None
        if is_simulated_met
        else count_rows_to_raise_for_target(session, session.results.find_value(ev.RAISED_ACCURACIES, config) or ())
    )
    actions: tuple[str, ...] = ("toggle",) if cursor_group == worst else ("first_nan", "toggle")
    if cursor_group == worst:
        action_texts = [f"{shown_key('toggle')} raises this one"] * 2
    else:
        keys = ", ".join(shown_key(action) for action in actions)
        action_texts = [
            f"{keys} raises {shorten_path(row_values.model.titles[worst], width)}" for width in MAX_NAME_CELLS
        ]
    gain = f" → {row_values.metric_title} {toggle.value_text}" if toggle.value_text and not toggle.is_partial else ""
    sure_gain = f"{gain} {toggle.margin_of_error_text}".rstrip() if gain else ""
    rows_text = f"; {row_count} rows to FP32 meet the target" if row_count is not None and row_count > 1 else ""
    return Hint(
        (
            f"{prefix}{search_text}, or {action_texts[0]}{sure_gain}{rows_text}",
            f"{prefix}{search_text}, or {action_texts[1]}{gain}",
            f"{prefix}{search_text}, or {action_texts[1]}",
            f"{prefix}{action_texts[1]}",
        ),
        actions,
        worst,
    )


def count_rows_to_raise_for_target(session: Session, raised_accuracies: tuple[Accuracy, ...]) -> int | None:
    """Returns the number of worst rows that must be raised together to meet the target; None if it is unknown.

    Args:
        raised_accuracies: The accuracies after the worst 1, 2, ... rows are raised.
    """
    return next(
        (
            count
            for count, accuracy in enumerate(raised_accuracies, 1)
            if all(target.is_met_by(accuracy) for target in session.targets) and meets_target(session, accuracy)
        ),
        None,
    )


def _engine_hint(session: Session, row_values: RowValues, cursor_group: str) -> Hint:
    """Returns the hint that follows from the engine or the executed export of the config; empty if neither exists."""
    results = session.get_run_results("config")
    engine, is_simulated_met = results.engine_result, config_meets_target_simulated(session, session.config)
    run = engine if engine is not None else results.exported_run
    if run is None:
        return Hint()
    if alert_line := engine_texts.engine_alert_text(session):
        return Hint((f"engine: {alert_line}",))
    passes = meets_target(session, run.accuracy)
    if not is_simulated_met and not (passes and engine is not None):
        return Hint()
    if passes is False:
        run_name = "build" if engine is not None else "exported network"
        return _raise_row_hint(session, row_values, cursor_group, f"the {run_name} misses the target: ")
    key_text = f"next: {shown_key('export')} exports"
    cannot_run = engine is not None and engine.accuracy is None
    long_text = f"{key_text}; the engine was built but cannot run here" if cannot_run else f"{key_text} precision.json"
    return _exported_config_hint(session) or Hint((long_text, key_text), ("export",))


STOPPED_OPENING_TEXT = "The opening of the network was stopped"


@dataclass
class StatusLines:
    """The contents of the status lines that are not part of the session.

    Attributes:
        message: The last message; the next key press removes it.
        failure: The event that ended the opening of the network, by a failure or because the user stopped it; None
            if there is none.
        unread_failure: The last failure of a job, until the user opens or closes it.
    """

    message: Span | None = None
    failure: ev.JobFailed | ev.ChildProcessDied | ev.JobCancelled | None = None
    unread_failure: TrtTuiError | None = None

    def placeholder_lines(self, model_path: str) -> list[Line]:
        """Returns the lines that replace the layer list while no network is open."""
        if self.failure is None:
            return [[], [(f"   opening {model_path} …", "dim")]]
        if isinstance(self.failure, ev.JobFailed):
            error = self.failure.error
            title, *texts = error.title, error.cause, error.next_step, f"{shown_key('quit')} quits"
        else:
            ended_text = "The background process ended while the network was being opened"
            title = f"{STOPPED_OPENING_TEXT if isinstance(self.failure, ev.JobCancelled) else ended_text}."
            texts = [
                f"{shown_key('compare')} opens it again, {shown_key('log')} shows the log, {shown_key('quit')} quits"
            ]
        return [[], [(f"   {title}", "strong")], *([(f"   {text}", "dim")] for text in texts if text)]


def first_warning_text(warnings: Sequence[tuple[str, str]]) -> str:
    """Returns the first warning: the full text of a single warning, else the short text with the number of warnings.

    Args:
        warnings: Short and full text of each warning.
    """
    if not warnings:
        return ""
    short_text, full_text = warnings[0]
    return f"1 of {len(warnings)} ({shown_key('log')}): {short_text}" if len(warnings) > 1 else full_text


def status_lines(session: Session, status: StatusLines, hint: Hint, width: int, is_wide: bool) -> list[Line]:
    """Returns the status of jobs, and the last message or the hint: two lines on a wide screen, else one line.

    The hint follows the message if both fit.
    If the texts do not fit beside each other, the text about jobs is shortened first, down to the mark of a running
    job. A text that is too long even then loses its end.
    """
    texts: list[Line] = [[(text, "strong")] for text in hint.forms or ("",)]
    if status.message is not None:
        texts = [*([status.message, (f"   {text}", "strong")] for text in hint.forms), [status.message]]
    elif status.unread_failure is not None:
        texts = [[(text, "bad")] for text in _failure_texts(status.unread_failure)]
    if is_wide:
        shown = next((candidate for candidate in texts if line_width(candidate) < width), texts[-1])
        return [wide_jobs_line(session, width, shown_key("stop")), clip_line([(" ", ""), *shown], width)]
    job_lines = short_jobs_line_forms(session, shown_key("stop"))
    job_mark, shortest_job_line = job_lines[-1][:1], job_lines[-1]
    shown = next(
        (
            candidate
            for job_line in (shortest_job_line, job_mark)
            for candidate in texts
            if line_width(job_line) + line_width(candidate) + 2 <= width
        ),
        texts[-1],
    )
    job_line = next(
        (line for line in (*job_lines, job_mark) if line_width(line) + line_width(shown) + 2 <= width),
        shortest_job_line if 2 * line_width(shortest_job_line) <= width else job_mark,
    )
    if not job_line and status.message is not None:
        return [clip_line([(" ", ""), *shown], width)]
    shown_line = clip_line(shown, width - line_width(job_line) - 2)
    return [justify_line(job_line, width, [*shown_line, (" ", "")] if line_width(shown) else [])]


class Focus(enum.Enum):
    """The parts of the main screen that can receive the keys. The footer shows the actions of the focused part."""

    LIST = "list"
    BLOCKS = "blocks"
    DETAIL = "detail"
    CONFIGS = "configs"
    FILTER = "filter"


_FOOTERS: Mapping[Focus, Mapping[str, str]] = {
    Focus.BLOCKS: {
        "open": "go to row",
        "toggle": "",
        "higher": "",
        "lower": "",
        "precision": "",
        "undo": "",
        "view": "",
        "explain": "",
        "next_bad": "",
        "colour": "",
        "build": "",
        "find": "",
        "quit": "",
    },
    Focus.DETAIL: {
        "pane_detail": "less",
        "next_bad": "",
        "toggle": "",
        "higher": "",
        "lower": "",
        "range": "",
        "free": "",
        "undo": "",
        "explain": "",
        "precision": "",
        "pictures": "charts",
        "quit": "",
    },
    Focus.CONFIGS: {
        "open": "select",
        "configs": "name",
        "pane_tree": "list",
        "explain": "",
        "undo": "",
        "build": "",
        "export": "",
        "quit": "",
    },
    Focus.FILTER: {"open": "keep", "close": "clear"},
}
"""The actions in the footer by focus, in the order of their ranks, with their labels there; "" for the usual label.

The layer list has the actions with a rank in `Action.footer`."""

_WIDGET_FOCUSES = {Focus.CONFIGS, Focus.FILTER}
"""The parts whose widget performs the action of the enter key itself, so that a click in the footer cannot."""


def footer_action_line(
    width: int,
    disabled_reason: Callable[[str], str],
    focus: Focus = Focus.LIST,
    current_labels: Mapping[str, str] = MappingProxyType({}),
) -> Line:
    """Returns the footer line: the keys of the actions of the focused part, as many as fit into the width.

    The help page is at the right edge. Impossible actions are dim; without a job, there is no key that stops one. A
    click on a key performs the action.

    Args:
        disabled_reason: Returns the reason why an action is impossible now, by its id; "" if it is possible.
        current_labels: The labels of actions that do something else now, by action.
    """
    labels = _FOOTERS.get(focus) or {
        action.id: "" for action in sorted(ACTIONS, key=lambda action: action.footer or 0) if action.footer
    }
    right: Line = [(shown_key("help"), "key@do('help')"), (f" {ACTIONS_BY_ID['help'].label} ", "@do('help')")]
    room = width - line_width(right) - 1
    line: Line = [(" ", "")]
    used = 1
    for action_id, own_label in labels.items():
        key = shown_key(action_id)
        label = own_label or current_labels.get(action_id) or ACTIONS_BY_ID[action_id].label
        size = len(key) + 1 + len(label) + 2
        is_of_widget = focus in _WIDGET_FOCUSES and action_id == "open"
        click_markup = "" if is_of_widget else f"@do('{action_id}')"
        is_disabled = not is_of_widget and bool(disabled_reason(action_id))
        if used + size > room or is_disabled and action_id == "stop":
            continue
        line += [
            (key, f"{'dim' if is_disabled else 'key'}{click_markup}"),
            (f" {label}  ", f"{'dim' if is_disabled else ''}{click_markup}"),
        ]
        used += size
    return justify_line(line, width, right)
