"""The status lines: running jobs, the last message or failure, and the hint; and the footer with the keys."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from trt_tui.jobs import events as ev
from trt_tui.session.session import Session
from trt_tui.tui.actions import ACTIONS, ACTIONS_BY_ID
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, Span, clip_line, justify_line, line_width
from trt_tui.tui.state.hint import Hint
from trt_tui.tui.state.job_list import jobs_line, jobs_status_lines


@dataclass(frozen=True)
class UnreadFailure:
    """The failure of a job that the user has not seen yet, with title, cause and next step."""

    title: str
    cause: str
    next_step: str


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
    unread_failure: UnreadFailure | None = None

    def placeholder_lines(self, model_path: str) -> list[Line]:
        """Returns the lines that replace the layer list while no network is open."""
        if isinstance(self.failure, ev.JobFailed):
            lines: list[Line] = [[], [("   " + self.failure.title, "strong")]]
            lines += [[("   " + text, "dim")] for text in (self.failure.cause, self.failure.next_step) if text]
            return [*lines, [(f"   {shown_key('quit')} quits", "dim")]]
        if self.failure is not None:
            title = (f"{STOPPED_OPENING_TEXT}." if isinstance(self.failure, ev.JobCancelled) else
                     "The background process ended while the network was being opened.")
            return [[], [(f"   {title}", "strong")],
                    [(f"   {shown_key('compare')} opens it again, {shown_key('log')} shows the log, "
                      f"{shown_key('quit')} quits", "dim")]]
        return [[], [(f"   opening {model_path} …", "dim")]]


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
        log_text = f"{shown_key('log')} shows why"
        texts = [[(f"{status.unread_failure.title}: {log_text}", "bad")], [(f"a job failed: {log_text}", "bad")]]
    if is_wide:
        shown = next((candidate for candidate in texts if line_width(candidate) < width), texts[-1])
        return [jobs_line(session, width, shown_key("stop")), clip_line([(" ", ""), *shown], width)]
    job_lines = jobs_status_lines(session, shown_key("stop"))
    job_mark, shortest_job_line = job_lines[-1][:1], job_lines[-1]
    shown = next((candidate for job_line in (shortest_job_line, job_mark) for candidate in texts
                  if line_width(job_line) + line_width(candidate) + 2 <= width), texts[-1])
    job_line = next((line for line in (*job_lines, job_mark) if line_width(line) + line_width(shown) + 2 <= width),
                    shortest_job_line if 2 * line_width(shortest_job_line) <= width else job_mark)
    if not job_line and status.message is not None:
        return [clip_line([(" ", ""), *shown], width)]
    shown_line = clip_line(shown, width - line_width(job_line) - 2)
    return [justify_line(job_line, width, [*shown_line, (" ", "")] if line_width(shown) else [])]


class Focus(enum.Enum):
    """The part of the main screen that has the keys. The footer shows the actions of this part."""

    LIST = "list"
    BLOCKS = "blocks"
    DETAIL = "detail"
    CONFIGS = "configs"
    FILTER = "filter"


_FOOTERS: Mapping[Focus, Mapping[str, str]] = {
    Focus.BLOCKS: {"open": "go to row", "toggle": "", "higher": "", "lower": "", "precision": "", "undo": "",
                   "view": "", "explain": "", "next_bad": "", "colour": "", "build": "", "find": "", "quit": ""},
    Focus.DETAIL: {"pane_detail": "less", "next_bad": "", "toggle": "", "higher": "", "lower": "",
                   "range": "", "free": "", "undo": "", "explain": "", "precision": "", "pictures": "charts",
                   "quit": ""},
    Focus.CONFIGS: {"open": "select", "configs": "name", "pane_tree": "list", "undo": "", "build": "", "export": "",
                    "quit": ""},
    Focus.FILTER: {"open": "keep", "close": "clear"}}
"""The actions in the footer by focus, in the order of their ranks, with their labels there; "" for the usual label.

The layer list has the actions with a rank in `Action.footer`."""

_WIDGET_FOCUSES = {Focus.CONFIGS, Focus.FILTER}
"""The parts whose widget performs the action of the enter key itself, so that a click in the footer cannot."""


def footer_action_line(width: int, disabled_reason: Callable[[str], str], focus: Focus = Focus.LIST,
                       current_labels: Mapping[str, str] = MappingProxyType({})) -> Line:
    """Returns the footer line: the keys of the actions of the focused part, as many as fit into the width.

    The help page is at the right edge. Impossible actions are dim. A click on a key performs the action.

    Args:
        disabled_reason: Returns the reason why an action is impossible now, by its id; "" if it is possible.
        current_labels: The labels of actions that do something else now, by action.
    """
    labels = _FOOTERS.get(focus) or {action.id: "" for action in sorted(
        ACTIONS, key=lambda action: action.footer or 0) if action.footer}
    right: Line = [(shown_key("help"), "key@do('help')"), (f" {ACTIONS_BY_ID['help'].label} ", "@do('help')")]
    room = width - line_width(right) - 1
    line: Line = [(" ", "")]
    used = 1
    for action_id, own_label in labels.items():
        key = shown_key(action_id)
        label = own_label or current_labels.get(action_id) or ACTIONS_BY_ID[action_id].label
        size = len(key) + 1 + len(label) + 2
        if used + size > room:
            continue
        is_of_widget = focus in _WIDGET_FOCUSES and action_id == "open"
        click_markup = "" if is_of_widget else f"@do('{action_id}')"
        is_disabled = not is_of_widget and bool(disabled_reason(action_id))
        line += [(key, f"{'dim' if is_disabled else 'key'}{click_markup}"),
                 (f" {label}  ", f"{'dim' if is_disabled else ''}{click_markup}")]
        used += size
    return justify_line(line, width, right)
