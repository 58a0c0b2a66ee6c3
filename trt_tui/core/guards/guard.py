"""What a guard is, and what it says."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from trt_tui.core.guards.facts import GuardFacts


@dataclass(frozen=True)
class GuardWarning:
    """What a guard warns of.

    Attributes:
        guard_name: The guard's name.
        summary: What is so, in a line.
        reason: Why it matters, with the figures, in a sentence.
        next_step: What to do now, in a sentence.
    """

    guard_name: str
    summary: str
    reason: str
    next_step: str

    @property
    def warning_line(self) -> str:
        """All of it in a line."""
        return f"{self.summary}: {self.reason}. {self.next_step}"


def warning_record(warning: GuardWarning) -> dict[str, str]:
    """An alarm as files hold it."""
    return {"guard": warning.guard_name, "what": warning.summary, "why": warning.reason, "next": warning.next_step}


class Guard(ABC):
    """Looks at facts and warns, or says why it cannot tell.

    Attributes:
        name: By which files and `preflight` call it.
        description: What it looks at, in a few words.
    """

    name: ClassVar[str]
    description: ClassVar[str]

    @abstractmethod
    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing, "" where they do."""

    @abstractmethod
    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        """Yields what it warns of; called only where nothing lacks."""

    def make_warning(self, summary: str, reason: str, next_step: str) -> GuardWarning:
        """An alarm of this guard."""
        return GuardWarning(self.name, summary, reason, next_step)


@dataclass(frozen=True)
class GuardResult:
    """What one guard makes of some facts.

    Attributes:
        missing_facts_reason: Why it could not look, "" where it did.
    """

    guard: Guard
    alarms: tuple[GuardWarning, ...]
    missing_facts_reason: str = ""
