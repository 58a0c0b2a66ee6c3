"""Memory fallbacks: the batch sizes and execution modes found after memory ran out, by kind of execution.

`trt_tui.core.data.adaptive_runner` finds them.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

HOST_MODE = "on the CPU"
"""Name of the execution mode in which a network for a device is executed on the CPU instead."""


@dataclass
class MemoryFallbackState:
    """The memory fallback of one kind of execution.

    Attributes:
        form_index: Index of the form in which the network is lowered.
        strategy: Index of the execution mode among the strategies of `AdaptiveRunner`.
        max_rows: Maximum number of samples at a time; None for all samples of a feed.
        reason: The memory that did not suffice, as text.
    """

    form_index: int = 0
    strategy: int = 0
    max_rows: int | None = None
    reason: str = ""


class MemoryFallbacks:
    """The memory fallbacks of a session, by kind of execution.

    Attributes:
        has_freed_sessions: True if inference sessions of one kind of execution were freed for another, because memory
            does not suffice for both.
    """

    def __init__(self) -> None:
        self.has_freed_sessions = False
        self._states: dict[str, MemoryFallbackState] = {}
        self._holders: list[tuple[str, weakref.WeakMethod[Callable[[], bool]]]] = []
        self._last_messages: dict[str, str] = {}
        self._new_messages: dict[str, str] = {}

    def get_fallback_state(self, run_kind: str) -> MemoryFallbackState:
        """Returns the memory fallback of one kind of execution, which the runner of that kind may change."""
        return self._states.setdefault(run_kind, MemoryFallbackState())

    def register_session_release(self, run_kind: str, free_sessions: Callable[[], bool]) -> None:
        """Registers a method that frees the inference sessions of one kind of execution.

        The method returns True if anything was freed. Only a weak reference to it is kept.
        """
        self._holders = [holder for holder in self._holders if holder[1]() is not None] + [
            (run_kind, weakref.WeakMethod(free_sessions))
        ]

    def free_sessions_of_other_runs(self, run_kind: str) -> bool:
        """Frees the inference sessions of all kinds of execution but one.

        A freed session is loaded again before its next use. Returns True if anything was freed.
        """
        methods = [
            method for holder_kind, reference in self._holders if holder_kind != run_kind and (method := reference())
        ]
        freed = any([method() for method in methods])
        self.has_freed_sessions |= freed
        return freed

    def add_message(self, run_kind: str, text: str) -> None:
        """Adds a message for the user about one kind of execution, unless it equals the last one of that kind."""
        if self._last_messages.get(run_kind) != text:
            self._last_messages[run_kind] = self._new_messages[run_kind] = text

    def take_messages(self) -> Iterator[str]:
        """Yields and removes the messages added since the last call, the latest of each kind of execution."""
        while self._new_messages:
            kind = next(iter(self._new_messages))
            yield f"{kind[:1].upper()}{kind[1:]}: {self._new_messages.pop(kind)}"
