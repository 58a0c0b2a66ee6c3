"""What a strategy asks for, and what it is told: plain data, so that a search resumes from a list of evaluations."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.judgement import Judgement
from trt_tui.core.moves.range_choice import RangeChoice

TrialKey = tuple[frozenset[str], tuple[tuple[str, float], ...]]
"""What two trials of one config have in common: the groups that are raised, and the ranges (amax) by tensor."""


@dataclass(frozen=True)
class Trial:
    """A config to evaluate, as a difference from the start.

    Attributes:
        raised: Groups in the higher precision, beside those of the start.
        ranges: Ranges that replace the start's, by tensor; None for those that the search has settled on.
        about: The group that it is about, "" where it is about several.
        step: Who asks.
    """

    raised: frozenset[str]
    ranges: Mapping[str, RangeChoice] | None = None
    about: str = ""
    step: str = ""

    @property
    def key(self) -> TrialKey:
        """What two trials of one config have in common."""
        return self.raised, tuple(sorted((tensor, choice.amax) for tensor, choice in (self.ranges or {}).items()))


@dataclass(frozen=True)
class Evaluation:
    """A config that was evaluated; encodes with msgspec's msgpack (JSON has no infinities).

    Attributes:
        raised: Names in network order; see `Trial`.
        latency: By the caller's estimate, None without one.
    """

    raised: tuple[str, ...]
    judgement: Judgement
    ranges: Mapping[str, RangeChoice] = field(default_factory=dict)
    about: str = ""
    step: str = ""
    latency: float | None = None

    @property
    def passed(self) -> bool:
        """Whether it meets the tolerance."""
        return self.judgement.passed

    @property
    def score(self) -> float:
        """Higher is better; see `Judgement`."""
        return self.judgement.score

    @property
    def error(self) -> float:
        """The loss that strategies compare; see `Judgement`."""
        return self.judgement.error

    @property
    def key(self) -> TrialKey:
        """What two evaluations of one config have in common; see `Trial`."""
        return Trial(frozenset(self.raised), self.ranges).key

    def judged(self, margins: Sequence[float]) -> Evaluation:
        """The same with a stricter criterion: passed only where each score is at least its margin."""
        scores = self.judgement.scores or (self.score,)
        passed = self.passed and all(score >= margin for score, margin in zip(scores, margins, strict=False))
        return self if passed is self.passed else replace(self, judgement=replace(self.judgement, passed=passed))


Course = Generator[Trial, Evaluation, frozenset[str]]
"""A strategy at work: it yields trials, is sent their evaluations, and returns the set it settled on."""
