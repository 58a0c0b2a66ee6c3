"""What a job consists of: steps, how urgent each is, and what it waits for."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

T = TypeVar("T")


class Urgency(IntEnum):
    """Which step goes first: the lower number."""

    OPENING = 0
    WHAT_IF = 1
    FIRST_ACCURACY = 2
    BUILD = 3
    ACCURACY = 4
    FIRST_SHARES = 5
    TENSOR_STATS = 6
    REMEDIES = 7
    SEARCH = 8
    GROUP_ERRORS = 9
    BACKGROUND = 10
    TOGGLES = 11


@dataclass(frozen=True)
class Wait:
    """There is nothing to do until ``ready`` returns True: a thread or another process is at work.

    Attributes:
        blocked_urgencies: Steps of these urgencies wait too, so that what is waited for has the processor.
    """

    ready: Callable[[], bool]
    blocked_urgencies: frozenset[Urgency] = frozenset()


Steps = Generator[Urgency | Wait, None, T]
"""Does one step at a time, mostly one run of one batch, and yields how urgent the next one is or what it waits for."""


def override_urgency(urgency: Urgency, steps: Steps[T]) -> Steps[T]:
    """The same steps at another urgency."""
    try:
        while True:
            step = next(steps)
            yield step if isinstance(step, Wait) else urgency
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


class PreemptionError(Exception):
    """Something more urgent waits; the job starts anew after that."""
