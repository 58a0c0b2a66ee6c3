"""Timers that fire however late."""

from textual.message_pump import MessagePump
from textual.timer import Timer, TimerCallback

from trt_tui.tui.textual_internals import allow_late_timer


class ReliableTimers(MessagePump):
    """Calls back once for every `set_timer`.

    Textual's own leave out a turn that is overdue when they look, and of a timer of one turn that is all: where the
    process is stopped, or another has the processor, between two looks at the clock, a screen is never drawn again and
    a terminal's new size never heeded.
    """

    def set_timer(self, delay: float, callback: TimerCallback | None = None, *, name: str | None = None,
                  pause: bool = False) -> Timer:
        """Calls a function after a delay in seconds."""
        timer = super().set_timer(delay, callback, name=name, pause=pause)
        allow_late_timer(timer)
        return timer
