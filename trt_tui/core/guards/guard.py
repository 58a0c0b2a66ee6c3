"""What a guard is, and what it says."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from trt_tui.core.guards.facts import Facts


@dataclass(frozen=True)
class Alarm:
    """What a guard warns of.

    Attributes:
        guard: The guard's name.
        what: What is so, in a line.
        why: Why it matters, with the figures, in a sentence.
        next_step: What to do now, in a sentence.
    """

    guard: str
    what: str
    why: str
    next_step: str

    @property
    def line(self) -> str:
        """All of it in a line."""
        return f"{self.what}: {self.why}. {self.next_step}"


def alarm_record(alarm: Alarm) -> dict[str, str]:
    """An alarm as files hold it."""
    return {"guard": alarm.guard, "what": alarm.what, "why": alarm.why, "next": alarm.next_step}


class Guard(ABC):
    """Looks at facts and warns, or says why it cannot tell.

    Attributes:
        name: By which files and `preflight` call it.
        about: What it looks at, in a few words.
    """

    name: ClassVar[str]
    about: ClassVar[str]

    @abstractmethod
    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing, "" where they do."""

    @abstractmethod
    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of; called only where nothing lacks."""

    def alarm(self, what: str, why: str, next_step: str) -> Alarm:
        """An alarm of this guard."""
        return Alarm(self.name, what, why, next_step)


@dataclass(frozen=True)
class Checked:
    """What one guard makes of some facts.

    Attributes:
        lacks: Why it could not look, "" where it did.
    """

    guard: Guard
    alarms: tuple[Alarm, ...]
    lacks: str = ""
