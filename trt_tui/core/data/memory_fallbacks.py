"""What is known of runs that memory does not suffice for; `trt_tui.core.data.adaptive_runner` finds it out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

HOST_MODE = "on the CPU"
"""The name of a level: what was to run on a device does not."""


@dataclass
class MemoryFallbackState:
    """What was found out about one kind of runs.

    Attributes:
        form_index: In which form the network is lowered, by its number.
        strategy: How that is run, by its number among the ways.
        max_rows: The most samples at a time; None for all of a feed.
        reason: What did not suffice.
    """

    form_index: int = 0
    strategy: int = 0
    max_rows: int | None = None
    reason: str = ""


class MemoryFallbacks:
    """What was found out in a session about runs that memory does not suffice for, by what is run.

    Attributes:
        has_freed_sessions: Sessions of one kind of runs were freed for those of another: memory does not suffice for
            both.
    """

    def __init__(self) -> None:
        self.has_freed_sessions = False
        self._states: dict[str, MemoryFallbackState] = {}
        self._holders: list[tuple[str, weakref.WeakMethod[Callable[[], bool]]]] = []
        self._last_messages: dict[str, str] = {}
        self._new_messages: dict[str, str] = {}

    def get_fallback_state(self, run_kind: str) -> MemoryFallbackState:
        """What is known of a kind of runs; to be changed by whoever runs them."""
        return self._states.setdefault(run_kind, MemoryFallbackState())

    def register_session_release(self, run_kind: str, free_sessions: Callable[[], bool]) -> None:
        """Takes in a method of whoever keeps something loaded for a kind of runs; it frees that, and says whether there
        was anything."""
        self._holders = [holder for holder in self._holders if holder[1]() is not None
                         ] + [(run_kind, weakref.WeakMethod(free_sessions))]

    def free_sessions_of_other_runs(self, run_kind: str) -> bool:
        """Frees what is kept loaded for other kinds of runs, which is loaded again when they go on; whether there was
        anything."""
        methods = [
            method for holder_kind, reference in self._holders if holder_kind != run_kind and (method := reference())
        ]
        freed = any([method() for method in methods])
        self.has_freed_sessions |= freed
        return freed

    def add_message(self, run_kind: str, text: str) -> None:
        """Takes in what is to be said of a kind of runs."""
        if self._last_messages.get(run_kind) != text:
            self._last_messages[run_kind] = self._new_messages[run_kind] = text

    def take_messages(self) -> Iterator[str]:
        """What there is to say since it was asked last, the latest of each kind of runs."""
        while self._new_messages:
            kind = next(iter(self._new_messages))
            yield f"{kind[:1].upper()}{kind[1:]}: {self._new_messages.pop(kind)}"
