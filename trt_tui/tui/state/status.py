"""The lines that show what is going on, the last message, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.jobs import events as ev
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.spans import Line, Span, clip, padded, shorten, width_of
from trt_tui.tui.state.hint import Hint
from trt_tui.tui.state.jobs import jobs_line, place_forms
from trt_tui.words import cells


@dataclass(frozen=True)
class Unread:
    """The failure of a job that the user has not looked at yet: what went wrong, why, and what to do now."""

    title: str
    cause: str
    next_step: str


@dataclass
class Status:
    """What the status lines show that the session does not know.

    Attributes:
        message: The last message; the next key removes it.
        failure: Why nothing was opened.
        unread: The last failure of a job, until the user asks for it or closes it.
    """

    message: Span | None = None
    failure: ev.Failed | ev.Died | None = None
    unread: Unread | None = None

    def instead_of_rows(self, model: str) -> list[Line]:
        """What is shown in place of rows while there are none.

        Args:
            model: Path of the network.
        """
        if isinstance(self.failure, ev.Failed):
            lines: list[Line] = [[], [("   " + self.failure.title, "strong")]]
            lines += [[("   " + text, "dim")] for text in (self.failure.cause, self.failure.next_step) if text]
            return [*lines, [(f"   {key('quit')} quits", "dim")]]
        if self.failure is not None:
            return [[], [("   The worker process ended while the network was being opened.", "strong")],
                    [(f"   {key('log')} shows the log, {key('quit')} quits", "dim")]]
        return [[], [(f"   opening {model} …", "dim")]]


def first_warning(warned: Sequence[tuple[str, str]]) -> str:
    """The first warning in full, or in short with how many more the log holds.

    Args:
        warned: All of them, in short and in full.
    """
    if not warned:
        return ""
    short, full = warned[0]
    return f"1 of {len(warned)} ({key('log')}): {short}" if len(warned) > 1 else full


def status_lines(session: Session, status: Status, step: Hint, width: int, wide: bool) -> list[Line]:
    """The jobs, and beside them the last message or else the next step: on a line each if ``wide``, else on one.

    Neither hides the other: both are told in fewer words where they do not fit, the hint so that no key is cut.
    """
    texts: list[Span] = [(text, "strong") for text in step.forms or ("",)]
    if status.message is not None:
        texts = [status.message]
    elif status.unread is not None:
        asks = f"{key('log')} shows why"
        texts = [(f"{status.unread.title}: {asks}", "bad"), (f"a job failed: {asks}", "bad")]
    if wide:
        said = next((one for one in texts if cells(one[0]) < width), texts[-1])
        return [jobs_line(session, width, key("stop")), clip([(" ", ""), said], width)]
    forms = place_forms(session, key("stop"))
    narrowest = next((form for form in reversed(forms) if form), forms[-1])
    said = next((one for one in texts if width_of(narrowest) + cells(one[0]) + 2 <= width), texts[-1])
    fits = next((form for form in forms if width_of(form) + cells(said[0]) + 2 <= width), forms[-1])
    room = width - width_of(fits) - 2
    if not width_of(fits) and status.message is not None:
        return [clip([(" ", ""), said], width)]
    return [padded(fits, width, [(f"{shorten(said[0], room)} ", said[1])] if said[0] else [])]
