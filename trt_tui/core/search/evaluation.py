"""What a strategy asks for, and what it is told: plain data, so that a search resumes from a list of evaluations."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.comparison import Verdict
from trt_tui.core.precision import RangeChoice


@dataclass(frozen=True)
class Judgement:
    """What the caller says of one config.

    Attributes:
        passed: Whether it meets every tolerance.
        score: Higher is better; the signed margin to the tolerance where there is one (0 is just enough).
        verdict: What it was judged by.
        loss: What raising groups lowers, as nearly additive over groups as there is, lower is better; by default the
            verdict's energy, else the negative score.
        figure: What was measured, in words with its unit ("18.3 dB at logits").
        scores: Of each tolerance, where there are several; the least is ``score``.
    """

    passed: bool
    score: float
    verdict: Verdict | None = None
    loss: float | None = None
    figure: str = ""
    scores: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        """The loss as strategies use it; infinite where it is not a number."""
        loss = self.loss
        if loss is None and self.verdict is not None:
            loss = self.verdict.energy
        if loss is None:
            loss = -self.score
        return math.inf if math.isnan(loss) else loss


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
    def key(self) -> tuple:
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
        return self.judgement.passed

    @property
    def score(self) -> float:
        return self.judgement.score

    @property
    def error(self) -> float:
        return self.judgement.error

    @property
    def key(self) -> tuple:
        return Trial(frozenset(self.raised), self.ranges).key

    def judged(self, margins: Sequence[float]) -> Evaluation:
        """The same with a stricter criterion: passed only where each score is at least its margin."""
        scores = self.judgement.scores or (self.score,)
        passed = self.passed and all(score >= margin for score, margin in zip(scores, margins, strict=False))
        return self if passed is self.passed else replace(self, judgement=replace(self.judgement, passed=passed))


Steps = Generator[Trial, Evaluation, frozenset[str]]
"""A strategy at work: it yields trials, is sent their evaluations, and returns the set it settled on."""
