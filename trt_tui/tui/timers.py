"""Timers that always fire, even if they are overdue."""

from textual.message_pump import MessagePump
from textual.timer import Timer, TimerCallback

from trt_tui.tui.textual_internals import allow_late_timer


class ReliableTimers(MessagePump):
    """A base class of screens and apps whose `set_timer` always calls back exactly once.

    A timer of Textual skips a turn that is overdue when Textual checks the clock, and a one-shot timer then never
    fires. This happens if the process is stopped, or gets no processor, between two checks. The screen would never be
    drawn again, and a new terminal size would be ignored.
    """

    def set_timer(self, delay: float, callback: TimerCallback | None = None, *, name: str | None = None,
                  pause: bool = False) -> Timer:
        """Calls a function once after a delay in seconds."""
        timer = super().set_timer(delay, callback, name=name, pause=pause)
        allow_late_timer(timer)
        return timer
