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
    FIRST_VERDICT = 2
    BUILD = 3
    VERDICT = 4
    MAP = 5
    STATS = 6
    WAYS_OUT = 7
    SEARCH = 8
    LAYERS = 9
    BACKGROUND = 10
    FLIPS = 11


@dataclass(frozen=True)
class Wait:
    """There is nothing to do until ``ready`` returns True: a thread or another process is at work.

    Attributes:
        ahead_of: Steps of these urgencies wait too, so that what is waited for has the processor.
    """

    ready: Callable[[], bool]
    ahead_of: frozenset[Urgency] = frozenset()


Steps = Generator[Urgency | Wait, None, T]
"""Does one step at a time, mostly one run of one batch, and yields how urgent the next one is or what it waits for."""


def at(urgency: Urgency, steps: Steps[T]) -> Steps[T]:
    """The same steps at another urgency."""
    try:
        while True:
            step = next(steps)
            yield step if isinstance(step, Wait) else urgency
    except StopIteration as stop:
        found: T = stop.value
        return found
    finally:
        steps.close()


class GiveWay(Exception):
    """Something more urgent waits; the job starts anew after that."""
