"""The plain data of a search: the trials that it requests, their evaluations, and the effort for zero-cost changes.

A list of evaluations suffices to resume a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.target import TargetResult
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.formatting import counted_noun_text

TrialKey = tuple[tuple[str, ...], tuple[tuple[str, float], ...], tuple[tuple[str, str], ...], frozenset[str]]
"""A key that is equal for two trials of the same config: the raised groups, the ranges (amax) by tensor, the
intermediate precisions, and the sets of zero-cost moves."""


@dataclass(frozen=True)
class Trial:
    """A config that a search requests, as a difference from the start config.

    Attributes:
        raised_groups: Groups in the higher precision, in addition to those of the start config; in network order.
        range_moves: Ranges that replace those of the start config, by tensor.
        about: The group that is tried; "" for several groups.
        step_name: The name of the method or search step that requests the trial.
        precisions: The raised groups with an intermediate precision, and that precision.
        zero_cost_sets: Names of the sets of zero-cost moves.
    """

    raised_groups: tuple[str, ...] = ()
    range_moves: Mapping[str, RangeMove] = field(default_factory=dict)
    about: str = ""
    step_name: str = ""
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    zero_cost_sets: tuple[str, ...] = ()

    @property
    def config_key(self) -> TrialKey:
        """A key that is equal for two trials of the same config."""
        ranges = tuple(sorted((tensor, choice.amax) for tensor, choice in self.range_moves.items()))
        precisions = tuple(sorted((name, precision.value) for name, precision in self.precisions.items()))
        return self.raised_groups, ranges, precisions, frozenset(self.zero_cost_sets)

    def without_group(self, group_name: str) -> Trial:
        """Returns the trial of this config with one group reverted."""
        precisions = {name: precision for name, precision in self.precisions.items() if name != group_name}
        return Trial(tuple(name for name in self.raised_groups if name != group_name), self.range_moves, group_name,
                     precisions=precisions, zero_cost_sets=self.zero_cost_sets)

    def count_used_ranges(self, config: PrecisionConfig) -> int:
        """Returns the number of replaced ranges that have an effect in the config of this trial."""
        return len(self.range_moves.keys() & config.range_moves.keys())

    def raised_group_counts_text(self, higher_precision: Precision) -> str:
        """Returns the number of raised groups for each precision as text, the lowest precision first: "2 in FP8, 1 in
        FP32"."""
        counts = Counter(self.precisions.get(name, higher_precision)
                         for name in self.raised_groups) or {higher_precision: 0}
        return ", ".join(
            f"{counts[precision]} in {precision.label}" for precision in sorted(counts, key=precision_rank))


@dataclass(frozen=True, kw_only=True)
class Evaluation(Trial):
    """A trial that a search has evaluated, with its result.

    Attributes:
        estimated_latency: The latency that the caller estimates; None without an estimate.
    """

    target_result: TargetResult
    estimated_latency: float | None = None

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
    def value_text(self) -> str:
        """The measured value as a text with its unit; the score if there is none."""
        return self.target_result.value_text or f"{self.score:+.3g}"

    def with_required_margins(self, required_margins: Sequence[float]) -> Evaluation:
        """Returns the evaluation under a stricter criterion: it passes only if each score is at least its margin."""
        scores = self.target_result.target_scores or (self.score,)
        passed = self.passes and all(score >= margin for score, margin in zip(scores, required_margins, strict=False))
        return self if passed is self.passes else replace(self, target_result=replace(self.target_result,
                                                                                      passes=passed))


@dataclass(frozen=True)
class ReductionStep:
    """One trial of a top-down method: the reduced layer, the similarity at the judged outputs, and whether it stays
    higher.

    Attributes:
        stays_higher: True if the trial failed, so that the layer was raised again for the rest of the search.
    """

    layer_name: str
    similarity_text: str
    stays_higher: bool


DEFAULT_ZERO_COST_BUDGET = 96
"""The maximum number of configs that a search simulates for zero-cost changes and other ranges by default."""


@dataclass
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

    def spend_evaluation(self) -> bool:
        """Returns True and counts an evaluation if the budget allows one more."""
        if not self.has_budget:
            self.is_exhausted = True
            return False
        self.evaluations += 1
        return True

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
