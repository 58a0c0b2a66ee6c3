"""The steps of a job, with the urgency of each step and the conditions that a job waits for."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from trt_tui.core.execution import translate_steps

T = TypeVar("T")


class Urgency(IntEnum):
    """The urgency of a step. A lower number goes first."""

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
    """A step that waits until ``ready`` returns True, because a thread or another process is at work.

    Attributes:
        blocked_urgencies: The urgencies of other jobs' steps that wait too, so that the awaited work has the processor.
    """

    ready: Callable[[], bool]
    blocked_urgencies: frozenset[Urgency] = frozenset()


Steps = Generator[Urgency | Wait, None, T]
"""The type of a job's generator, which executes one step at a time.

A step is mostly one batch. The generator yields the urgency of the next step, or the condition to wait for.
"""


@dataclass(frozen=True)
class Progress:
    """The progress of a measurement. A ``total`` of 0 means that the end is unknown."""

    phase: str
    done: int = 0
    total: int = 0


ProgressSteps = Generator[Progress | Wait, None, T]
"""The type of a generator that yields its progress, from which `trt_tui.jobs.scheduler.Reporter.follow` makes steps."""


def override_urgency(urgency: Urgency, steps: Generator[object, None, T]) -> Steps[T]:
    """Yields the same steps with another urgency, and returns their result."""
    return translate_steps(steps, lambda step: step if isinstance(step, Wait) else urgency)


def start_thread(function: Callable[[], T], wake: Callable[[], None]) -> Future[T]:
    """Calls a function in a thread. Returns the future of its result, which is known before ``wake`` is called."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        wake()

    threading.Thread(target=run, daemon=True).start()
    return future


class PreemptionError(Exception):
    """The interruption of a job by a more urgent job. The interrupted job starts again afterwards."""
