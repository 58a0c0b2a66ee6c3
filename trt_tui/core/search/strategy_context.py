"""What a strategy knows when it starts."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.search.evaluation import Evaluation
from trt_tui.core.search.ranking import GroupRanking


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
