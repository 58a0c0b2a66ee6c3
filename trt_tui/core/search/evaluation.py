"""What a strategy asks for and what it is told, as plain data: a list of evaluations is enough to resume a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.judgement import Judgement
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.precision import Precision, rank

TrialKey = tuple[frozenset[str], tuple[tuple[str, float], ...], tuple[tuple[str, str], ...], frozenset[str]]
"""Equal for two trials of the same config: the groups that are raised, the ranges (amax) by tensor, the rungs, and the
sets of free moves."""


@dataclass(frozen=True)
class Trial:
    """A config to evaluate, as a difference from the start.

    Attributes:
        raised: Groups in the higher precision, in addition to those of the start.
        ranges: Ranges that replace the start's, by tensor; None for those that the search has decided on.
        about: The group that is tried, "" if it is several.
        step: Who asks: the name of a method or of a step.
        rungs: Which of them have a lower precision than the highest, and which.
        free: Sets of moves that cost nothing at run time, by name; None for those that the search has decided on.
    """

    raised: frozenset[str]
    ranges: Mapping[str, RangeChoice] | None = None
    about: str = ""
    step: str = ""
    rungs: Mapping[str, Precision] = field(default_factory=dict)
    free: tuple[str, ...] | None = None

    @property
    def key(self) -> TrialKey:
        """Equal for two trials of the same config."""
        ranges = tuple(sorted((tensor, choice.amax) for tensor, choice in (self.ranges or {}).items()))
        rungs = tuple(sorted((name, rung.value) for name, rung in self.rungs.items()))
        return self.raised, ranges, rungs, frozenset(self.free or ())


@dataclass(frozen=True)
class Evaluation:
    """A config that was evaluated; encodes with msgspec's msgpack (JSON has no infinities).

    Attributes:
        raised: Names in network order; see `Trial`.
        latency: As the caller estimates it; None without an estimate.
        free: Names of sets of free moves; see `Trial`.
    """

    raised: tuple[str, ...]
    judgement: Judgement
    ranges: Mapping[str, RangeChoice] = field(default_factory=dict)
    about: str = ""
    step: str = ""
    latency: float | None = None
    rungs: Mapping[str, Precision] = field(default_factory=dict)
    free: tuple[str, ...] = ()

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
        """Equal for two evaluations of the same config; see `Trial`."""
        return Trial(frozenset(self.raised), self.ranges, rungs=self.rungs, free=self.free).key

    def in_words(self, higher: Precision) -> str:
        """How many groups were raised to what, the lowest first: "2 in FP8, 1 in FP32"."""
        counts = Counter(self.rungs.get(name, higher) for name in self.raised) or {higher: 0}
        return ", ".join(f"{counts[one]} in {one.label}" for one in sorted(counts, key=rank))

    def judged(self, margins: Sequence[float]) -> Evaluation:
        """The same evaluation under a stricter criterion: it passes only if each score is at least its margin."""
        scores = self.judgement.scores or (self.score,)
        passed = self.passed and all(score >= margin for score, margin in zip(scores, margins, strict=False))
        return self if passed is self.passed else replace(self, judgement=replace(self.judgement, passed=passed))


Course = Generator[Trial, Evaluation, frozenset[str]]
"""A running strategy: it yields trials, is sent their evaluations, and returns the groups that it has chosen."""
