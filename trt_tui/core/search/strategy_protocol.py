"""The protocol of search strategies: their context, the trials that they request, and the evaluations of these trials.

All of them are plain data, and a list of evaluations suffices to resume a search.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.target_outcome import TargetResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import RangeMove
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.search.ranking import GroupRanking
from trt_tui.formatting import counted_noun_text

TrialKey = tuple[frozenset[str], tuple[tuple[str, float], ...], tuple[tuple[str, str], ...], frozenset[str]]
"""A key that is equal for two trials of the same config: the raised groups, the ranges (amax) by tensor, the
intermediate precisions, and the sets of zero-cost moves."""


@dataclass(frozen=True)
class Trial:
    """A config that a search requests, as a difference from the start config.

    Attributes:
        raised_groups: Groups in the higher precision, in addition to those of the start config.
        range_moves: Ranges that replace those of the start config, by tensor; None for the ranges that the search has
            chosen.
        group: The group that is tried; "" for several groups.
        step_name: The name of the method or search step that requests the trial.
        precisions: The raised groups with an intermediate precision, and that precision.
        zero_cost_sets: Names of the sets of zero-cost moves; None for the sets that the search has chosen.
    """

    raised_groups: frozenset[str]
    range_moves: Mapping[str, RangeMove] | None = None
    group: str = ""
    step_name: str = ""
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    zero_cost_sets: tuple[str, ...] | None = None

    @property
    def config_key(self) -> TrialKey:
        """A key that is equal for two trials of the same config."""
        ranges = tuple(sorted((tensor, choice.amax) for tensor, choice in (self.range_moves or {}).items()))
        precisions = tuple(sorted((name, precision.value) for name, precision in self.precisions.items()))
        return self.raised_groups, ranges, precisions, frozenset(self.zero_cost_sets or ())


DEFAULT_ZERO_COST_BUDGET = 96
"""The maximum number of configs that a search simulates for zero-cost changes and other ranges by default."""


@dataclass(frozen=True)
class ZeroCostEffort:
    """The effort of a search for zero-cost changes.

    Attributes:
        tried: Number of changes that were evaluated.
        total: Number of changes that were proposed.
        evaluations: Number of simulated configs, of which at most ``budget`` are allowed: those that were tried, and
            those that were simulated to choose among variants of a change.
        is_exhausted: True if changes or combinations of changes were not evaluated because of the budget.
        unmeasured_kinds: Titles of the kinds whose changes were not even measured because of the budget.
        seconds: The time that the search took for them. ``predicted_s`` is the prediction for the whole budget, made
            before the first of them. Neither changes a result.
    """

    tried: int = 0
    total: int = 0
    evaluations: int = 0
    budget: int = DEFAULT_ZERO_COST_BUDGET
    is_exhausted: bool = False
    unmeasured_kinds: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    predicted_s: float = field(default=0.0, compare=False)

    @property
    def has_budget(self) -> bool:
        return self.evaluations < self.budget

    @property
    def text(self) -> str:
        """The effort as a text without times; "" if nothing was proposed."""
        if not self.total and not self.unmeasured_kinds:
            return ""
        text = (f"tried {self.tried} of {counted_noun_text(self.total, 'zero-cost change')} in "
                f"{counted_noun_text(self.evaluations, 'simulated config')} of at most {self.budget}")
        if self.is_exhausted:
            rest = "the rest was" if self.tried < self.total or self.unmeasured_kinds else "further combinations were"
            text += f"; the budget is used up, and {rest} not tried"
        elif self.tried < self.total:
            text += "; the tolerance was met without the rest"
        if self.unmeasured_kinds:
            text += f"; not measured: {', '.join(self.unmeasured_kinds)}"
        return text


@dataclass(frozen=True)
class Evaluation:
    """A config that a search has evaluated, with its result. It is encoded with msgspec's msgpack (JSON has no
    infinities).

    Attributes:
        raised_groups: Names in network order; see `Trial`.
        estimated_latency: The latency that the caller estimates; None without an estimate.
        zero_cost_sets: Names of sets of zero-cost moves; see `Trial`.
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
        return self.target_result.passes

    @property
    def score(self) -> float:
        """The lowest score of the targets (`TargetResult.lowest_score`); higher is better."""
        return self.target_result.lowest_score

    @property
    def comparable_loss(self) -> float:
        """The loss that strategies compare (`TargetResult.comparable_loss`)."""
        return self.target_result.comparable_loss

    @property
    def config_key(self) -> TrialKey:
        """A key that is equal for two evaluations of the same config, and for its `Trial`."""
        return self.trial.config_key

    @property
    def trial(self) -> Trial:
        """The trial of this config, without the step that requested it."""
        return Trial(frozenset(self.raised_groups), self.range_moves, precisions=self.precisions,
                     zero_cost_sets=self.zero_cost_sets)

    def trial_without_group(self, group_name: str) -> Trial:
        """Returns the trial of this config with one group reverted."""
        return replace(self.trial, raised_groups=frozenset(self.raised_groups) - {group_name}, group=group_name,
                       precisions={name: precision for name, precision in self.precisions.items()
                                   if name != group_name})

    def count_used_ranges(self, config: PrecisionConfig) -> int:
        """Returns the number of replaced ranges that have an effect in the config of this evaluation."""
        return len(self.range_moves.keys() & config.range_moves.keys())

    @property
    def value_text(self) -> str:
        """The measured value as a text with its unit; the score if there is none."""
        return self.target_result.value_text or f"{self.score:+.3g}"

    def raised_group_counts_text(self, higher_precision: Precision) -> str:
        """Returns the number of raised groups for each precision as text, the lowest precision first: "2 in FP8, 1 in
        FP32"."""
        counts = Counter(self.precisions.get(name, higher_precision)
                         for name in self.raised_groups) or {higher_precision: 0}
        return ", ".join(
            f"{counts[precision]} in {precision.label}" for precision in sorted(counts, key=precision_rank))

    def with_required_margins(self, required_margins: Sequence[float]) -> Evaluation:
        """Returns the evaluation under a stricter criterion: it passes only if each score is at least its margin."""
        scores = self.target_result.target_scores or (self.score,)
        passed = self.passes and all(score >= margin for score, margin in zip(scores, required_margins, strict=False))
        return self if passed is self.passes else replace(self, target_result=replace(self.target_result,
                                                                                      passes=passed))


Strategy = Generator[Trial, Evaluation, frozenset[str]]
"""A running search strategy: a generator that yields trials, receives their evaluations, and returns the raised
groups."""


@dataclass(frozen=True)
class ReductionStep:
    """One trial of a top-down strategy: the reduced layer, the similarity at the judged outputs, and whether it stays
    higher.

    Attributes:
        stays_higher: True if the trial failed, so that the layer was raised again for the rest of the search.
    """

    layer_name: str
    similarity_text: str
    stays_higher: bool


@dataclass
class StrategyContext:
    """The data that all strategies of one search share.

    Attributes:
        candidates: Groups that can be raised, in network order.
        is_within_budget: Function that returns True if a set of raised groups is within the budgets.
        start_evaluation: The evaluation of the start config.
        chosen_ranges: Replaced ranges that the search has chosen, by tensor.
        group_costs: The multiply-accumulates of each group in the higher precision; empty if unknown.
        reduction_steps: The trials of a strategy of `trt_tui.core.search.strategies`, in their order.
        fixed_groups: The groups that such a search could not reduce; None before its strategy has run.
        zero_cost_sets: Sets of zero-cost moves that the search has chosen.
        zero_cost_effort: The effort for zero-cost moves and other ranges so far, with the budget.
        ranges_ranking: The ranking by which other ranges are tried; None for ``ranking``. It stays the same when the
            groups are ranked anew for the kept changes.
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
    zero_cost_effort: ZeroCostEffort = ZeroCostEffort()
    ranges_ranking: GroupRanking | None = None

    def order_candidates_by_suspicion(self, excluded_groups: Iterable[str] = ()) -> list[str]:
        """Returns the candidates without excluded groups, by decreasing expected effect on the judged error."""
        left_out = frozenset(excluded_groups)
        return [name for name in self.ranking.candidate_order if name not in left_out]

    def expected_loss_reduction(self, group_name: str, current_evaluation: Evaluation) -> float:
        """Returns the expected reduction of the loss if a fusion group is raised; 0 if nothing is known about the
        group.

        The value is the group's share of the loss at the start, or of the current loss if that at the start is not
        finite.
        """
        total_loss = next((evaluation.comparable_loss
                           for evaluation in (self.start_evaluation, current_evaluation)
                           if evaluation is not None and 0 < evaluation.comparable_loss < math.inf), 1.0)
        return self.ranking.expected_shares.get(group_name, 0.0) * total_loss
