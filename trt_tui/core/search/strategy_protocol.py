"""The protocol of strategies: what one knows at its start, the trials it asks for, and their evaluations.

All of it is plain data, and a list of evaluations is enough to resume a search.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.target_outcome import TargetResult
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.search.ranking import GroupRanking

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


@dataclass(frozen=True)
class ReductionStep:
    """A layer that was lowered, the similarity at the judged outputs then, and whether it was raised again for good."""

    layer_name: str
    similarity_text: str
    stays_higher: bool


@dataclass
class StrategyContext:
    """The board that the strategies of one search share.

    Attributes:
        candidates: Groups that can be raised, in network order.
        is_within_budget: Whether a set of raised groups is within the budgets.
        start_evaluation: The evaluation of the start.
        chosen_ranges: Replaced ranges that the search has decided on, by tensor.
        group_costs: What each group costs in the higher precision, in milliseconds or multiply-accumulates; empty where
            nothing is known.
        reduction_steps: What a strategy of `trt_tui.core.search.top_down` has tried, in that order.
        fixed_groups: The groups that stick after such a strategy; None before.
        zero_cost_sets: Sets of free moves that the search has decided on.
    """

    candidates: tuple[str, ...]
    ranking: GroupRanking
    is_within_budget: Callable[[frozenset[str]], bool]
    start_evaluation: Evaluation | None = None
    chosen_ranges: Mapping[str, RangeMove] = field(default_factory=dict)
    reduction_steps: list[ReductionStep] = field(default_factory=list)
    group_costs: Mapping[str, float] = field(default_factory=dict)
    fixed_groups: frozenset[str] | None = None
    zero_cost_sets: tuple[str, ...] = ()

    def order_candidates_by_suspicion(self, excluded_groups: Iterable[str] = ()) -> list[str]:
        """All candidates except some, the most suspicious first."""
        left_out = frozenset(excluded_groups)
        return [name for name in self.ranking.candidate_order if name not in left_out]

    def expected_loss_reduction(self, group_name: str, current_evaluation: Evaluation) -> float:
        """By how much the loss should fall when a group is raised; 0 if nothing is known about it.

        It is the group's share of the loss at the start, or of the loss now if the start's is not finite.
        """
        total_loss = next((evaluation.comparable_loss
                           for evaluation in (self.start_evaluation, current_evaluation)
                           if evaluation is not None and 0 < evaluation.comparable_loss < math.inf), 1.0)
        return self.ranking.expected_shares.get(group_name, 0.0) * total_loss
