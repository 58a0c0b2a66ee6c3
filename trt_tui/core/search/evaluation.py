"""What a strategy asks for and what it is told, as plain data: a list of evaluations is enough to resume a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.target_result import TargetResult
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.precision import Precision, precision_rank

TrialKey = tuple[frozenset[str], tuple[tuple[str, float], ...], tuple[tuple[str, str], ...], frozenset[str]]
"""Equal for two trials of the same config: the groups that are raised, the ranges (amax) by tensor, the rungs, and the
sets of free moves."""


@dataclass(frozen=True)
class Trial:
    """A config to evaluate, as a difference from the start.

    Attributes:
        raised_groups: Groups in the higher precision, in addition to those of the start.
        range_moves: Ranges that replace the start's, by tensor; None for those that the search has decided on.
        group: The group that is tried, "" if it is several.
        step_name: Who asks: the name of a method or of a step.
        precisions: Which of them have a lower precision than the highest, and which.
        zero_cost_sets: Sets of moves that cost nothing at run time, by name; None for those that the search has decided
    on.
    """

    raised_groups: frozenset[str]
    range_moves: Mapping[str, RangeMove] | None = None
    group: str = ""
    step_name: str = ""
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    zero_cost_sets: tuple[str, ...] | None = None

    @property
    def config_key(self) -> TrialKey:
        """Equal for two trials of the same config."""
        ranges = tuple(sorted((tensor, choice.amax) for tensor, choice in (self.range_moves or {}).items()))
        precisions = tuple(sorted((name, precision.value) for name, precision in self.precisions.items()))
        return self.raised_groups, ranges, precisions, frozenset(self.zero_cost_sets or ())


@dataclass(frozen=True)
class Evaluation:
    """A config that was evaluated; encodes with msgspec's msgpack (JSON has no infinities).

    Attributes:
        raised_groups: Names in network order; see `Trial`.
        estimated_latency: As the caller estimates it; None without an estimate.
        zero_cost_sets: Names of sets of free moves; see `Trial`.
    """

    raised_groups: tuple[str, ...]
    target_result: TargetResult
    range_moves: Mapping[str, RangeMove] = field(default_factory=dict)
    about: str = ""
    step_name: str = ""
    estimated_latency: float | None = None
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    zero_cost_sets: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether it meets the tolerance."""
        return self.target_result.passes

    @property
    def score(self) -> float:
        """Higher is better; see `TargetResult`."""
        return self.target_result.lowest_score

    @property
    def comparable_loss(self) -> float:
        """The loss that strategies compare; see `TargetResult`."""
        return self.target_result.comparable_loss

    @property
    def config_key(self) -> TrialKey:
        """Equal for two evaluations of the same config; see `Trial`."""
        return Trial(frozenset(self.raised_groups), self.range_moves, precisions=self.precisions,
                     zero_cost_sets=self.zero_cost_sets).config_key

    def raised_group_counts_text(self, higher_precision: Precision) -> str:
        """How many groups were raised to what, the lowest first: "2 in FP8, 1 in FP32"."""
        counts = Counter(self.precisions.get(name, higher_precision)
                         for name in self.raised_groups) or {higher_precision: 0}
        return ", ".join(
            f"{counts[precision]} in {precision.label}" for precision in sorted(counts, key=precision_rank))

    def with_required_margins(self, required_margins: Sequence[float]) -> Evaluation:
        """The same evaluation under a stricter criterion: it passes only if each score is at least its margin."""
        scores = self.target_result.target_scores or (self.score,)
        passed = self.passes and all(score >= margin for score, margin in zip(scores, required_margins, strict=False))
        return self if passed is self.passes else replace(self, target_result=replace(self.target_result,
                                                                                      passes=passed))


Strategy = Generator[Trial, Evaluation, frozenset[str]]
"""A running strategy: it yields trials, is sent their evaluations, and returns the groups that it has chosen."""
