"""The search for raised groups: it proposes the next config to evaluate and receives the result.

A `Search` has the state. Its steps are functions that receive evaluations from `Search.evaluate`: first zero-cost
changes and other ranges, then one of `SEARCH_METHODS`, then the passes that revert raised groups and assign
intermediate precisions.

No config is evaluated twice: a repeated trial is answered from the stored evaluations, and the steps depend only on
these answers. A search therefore continues after any change of its inputs by running its steps again until they request
a new config. A stricter criterion takes effect in the same way.

Prefix methods raise the first groups of an order, and find the smallest number that meets the tolerance. The greedy
method repeatedly raises the group that reduces the loss most. The default method combines these. Top-down methods start
with all groups in the higher precision, and reduce one group after the other.

The plain data of a search are the trials that it requests, their evaluations, and the effort for zero-cost
changes. A list of evaluations suffices to resume a search. The search space has the fusion groups that a search can
raise, and the config that results from a choice.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from itertools import combinations
from typing import TypeAlias, TypeVar

from trt_tui.core.lowering.network_rewrite import without_stale_roundings
from trt_tui.core.measure.engine_agreement import PREVIEW_REASON
from trt_tui.core.measure.target import TargetResult
from trt_tui.core.measure.zero_cost_kinds import drop_moves_of_raised_groups
from trt_tui.core.moves.config import MoveKey, PrecisionConfig, PrecisionMove, RangeMove
from trt_tui.core.moves.move import Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, mark_figures_as_simulated, milliseconds_text


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Returns the indices of the points on the Pareto front, the cheapest first.

    Each point has a cost and a score. A point is on the front if no other point is better in one of them and at least
    as good in the other. Of equal points the first is returned.
    """
    front_indices: list[int] = []
    best = float("-inf")
    for index in sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1], place)):
        if points[index][1] > best:
            best = points[index][1]
            front_indices.append(index)
    return front_indices


TrialKey = tuple[
    tuple[str, ...], tuple[tuple[str, float], ...], tuple[tuple[str, str], ...], frozenset[str], tuple[str, ...]
]
"""A key that is equal for two trials of the same config: the raised groups, the ranges (amax) by tensor, the
intermediate precisions, the sets of zero-cost moves, and the groups without them."""


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
        plain_groups: Groups without the moves of these sets that raising would remove.
    """

    raised_groups: tuple[str, ...] = ()
    range_moves: Mapping[str, RangeMove] = field(default_factory=dict)
    about: str = ""
    step_name: str = ""
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    zero_cost_sets: tuple[str, ...] = ()
    plain_groups: tuple[str, ...] = ()

    @property
    def config_key(self) -> TrialKey:
        """A key that is equal for two trials of the same config."""
        ranges = tuple(sorted((tensor, choice.amax) for tensor, choice in self.range_moves.items()))
        precisions = tuple(sorted((name, precision.value) for name, precision in self.precisions.items()))
        return self.raised_groups, ranges, precisions, frozenset(self.zero_cost_sets), self.plain_groups

    def raised_group_counts_text(self, higher_precision: Precision) -> str:
        """Returns the number of raised groups for each precision as text, the lowest precision first: "2 in FP8, 1 in
        FP32"."""
        counts = Counter(self.precisions.get(name, higher_precision) for name in self.raised_groups) or {
            higher_precision: 0
        }
        return ", ".join(
            f"{counts[precision]} in {precision.label}" for precision in sorted(counts, key=precision_rank)
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation(Trial):
    """A trial that a search has evaluated, with its result.

    Attributes:
        estimated_latency: The latency that the caller estimates; None without an estimate.
        config: The config of the trial.
    """

    target_result: TargetResult
    estimated_latency: float | None = None
    config: PrecisionConfig = PrecisionConfig()

    @property
    def used_ranges(self) -> dict[str, RangeMove]:
        """The replaced ranges that have an effect in the config, by tensor."""
        used_moves = self.config.range_moves
        return {tensor: move for tensor, move in self.range_moves.items() if used_moves.get(tensor) == move}

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
        return (
            self if passed is self.passes else replace(self, target_result=replace(self.target_result, passes=passed))
        )


@dataclass(frozen=True)
class ReductionStep:
    """One trial of a top-down method: the reduced layer, the similarity at the judged outputs, and True if the layer
    stays higher.

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
        seconds: The time that the search took for them, which changes no result.
    """

    tried: int = 0
    total: int = 0
    evaluations: int = 0
    budget: int = DEFAULT_ZERO_COST_BUDGET
    is_exhausted: bool = False
    unmeasured_kinds: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

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
        text = (
            f"tried {self.tried} of {counted_noun_text(self.total, 'zero-cost change')} in "
            f"{counted_noun_text(self.evaluations, 'simulated config')} of at most {self.budget}"
        )
        if self.is_exhausted:
            rest = "the rest was" if self.tried < self.total or self.unmeasured_kinds else "further combinations were"
            text += f"; the budget is used up, and {rest} not tried"
        elif self.tried < self.total:
            text += "; the tolerance was met without the rest"
        if self.unmeasured_kinds:
            text += f"; not measured: {', '.join(self.unmeasured_kinds)}"
        return text


@dataclass(frozen=True)
class SearchSpace:
    """The set of configs between the start config of a search and the config with every group raised.

    Attributes:
        start_config: The config at which the search starts. Groups that it raises, and groups that a keep rule fixes,
            are left unchanged.
        higher_precision: The precision to which groups are raised.
        intermediate: Lower precisions that a raised group may have instead, lowest first. TF32 applies to all FP32
            layers.
        zero_cost_stages: Sets of zero-cost moves by the name of the set, one mapping for each stage, with the number of
            configs that were simulated to measure the sets. Each move has its kind and subject as its key. Names are
            unique over all stages.
        fixed_groups: Names of groups that keep the precision of the start config.
        unquantized_groups: Names of groups whose unused Q/DQ were taken out of the start config. They do not count as
            raised, because the engine ran them in this precision before.
        qdq_removals: The float precisions of groups whose unused Q/DQ a result can lose too, by the name of the set.
            `build_config` applies them like `zero_cost_sets`, as the last moves.
        candidates: Names of the groups that can be raised, in network order.

    Raises:
        InputError: No group can be raised, or TF32 cannot be an intermediate precision of this search.
    """

    network: NetworkOutline
    start_config: PrecisionConfig
    higher_precision: Precision = Precision.FP32
    intermediate: tuple[Precision, ...] = ()
    zero_cost_stages: tuple[tuple[Mapping[str, Mapping[MoveKey, Move]], int], ...] = ()
    fixed_groups: frozenset[str] = frozenset()
    unquantized_groups: frozenset[str] = frozenset()
    qdq_removals: Mapping[str, Mapping[str, Precision]] = field(default_factory=dict)
    candidates: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if Precision.TF32 in self.intermediate and (
            self.start_config.tf32 or self.higher_precision is not Precision.FP32
        ):
            reason = (
                "every FP32 layer already uses it"
                if self.start_config.tf32
                else f"layers are raised to {self.higher_precision.label}, and TF32 is a setting for all layers in FP32"
            )
            raise InputError(
                "TF32 cannot be an intermediate precision here",
                reason,
                "Leave it out of --rungs" + (", or start without --tf32." if self.start_config.tf32 else "."),
            )
        names = tuple(
            group.name
            for group in self.network.groups
            if self.higher_precision in group.allowed_precisions
            and group.name not in self.start_config.groups_fixed_by_rule | self.fixed_groups
            and group.precision_rank(self.start_config.precision_of(group)) < precision_rank(self.higher_precision)
        )
        if not names:
            raise InputError(
                f"{self.network.name} has no layer to raise to {self.higher_precision.label}",
                "it has no float layer"
                if not self.network.groups
                else "no layer runs in a lower precision"
                + (" except those kept by rule" if self.start_config.groups_fixed_by_rule | self.fixed_groups else ""),
                "Start from a config with quantized layers (--precision int8 or fp8), or raise to FP32.",
            )
        object.__setattr__(self, "candidates", names)

    @cached_property
    def zero_cost_sets(self) -> Mapping[str, Mapping[MoveKey, Move]]:
        """The sets of zero-cost moves of all stages, by name."""
        return {name: moves for stage, _ in self.zero_cost_stages for name, moves in stage.items()}

    def find_fixed_range_tensors(self, zero_cost_set_names: Iterable[str]) -> frozenset[str]:
        """Returns the tensors whose range belongs to a move of the start config or of some sets."""
        moves = [move for name in zero_cost_set_names for move in self.zero_cost_sets.get(name, {}).values()]
        return self.start_config.fixed_range_tensors.union(*(move.fixed_ranges for move in moves))

    @cached_property
    def groups_raised_at_start(self) -> frozenset[str]:
        """The fusion groups whose precision in the start config is higher than their default.

        A group that runs in a float type because its unused Q/DQ were removed is not among them.
        """
        return frozenset(self.start_config.find_raised_groups(self.network)) - self.unquantized_groups

    def intermediate_precisions(self, group_name: str) -> tuple[Precision, ...]:
        """Returns the precisions of a fusion group between that of the start config and the highest, lowest first."""
        group = self.network.get_group(group_name)
        return tuple(
            precision
            for precision in self.intermediate
            if precision in group.allowed_precisions
            and precision_rank(self.start_config.precision_of(group))
            < precision_rank(precision)
            < precision_rank(self.higher_precision)
        )

    def build_config(
        self,
        raised_groups: Iterable[str],
        range_moves: Mapping[str, RangeMove] | None = None,
        reason: str = "search",
        precisions: Mapping[str, Precision] | None = None,
        zero_cost_set_names: Iterable[str] = (),
        plain_groups: Iterable[str] = (),
    ) -> PrecisionConfig:
        """Returns the start config with zero-cost moves, raised groups and replaced ranges of a search.

        If all readers of a tensor are raised, its range has no effect and is left out. Choices with the same effect
        therefore have equal configs.
        """
        raised_groups, zero_cost_set_names, config = tuple(raised_groups), tuple(zero_cost_set_names), self.start_config
        for name in zero_cost_set_names:
            config = replace(config, moves={**config.moves, **self.zero_cost_sets.get(name, {})})
        config = without_stale_roundings(self.network, config) if zero_cost_set_names else config
        config = config.with_group_precision(
            (self.network.get_group(name) for name in raised_groups), self.higher_precision, reason
        )
        if Precision.TF32 in (precisions or {}).values():
            config = replace(config, tf32=True)
        for name, precision in (precisions or {}).items():
            config = config.with_group_precision([self.network.get_group(name)], precision, reason)
        if zero_cost_set_names:
            config = drop_moves_of_raised_groups(config, (*raised_groups, *plain_groups))
        for name in zero_cost_set_names:
            for group_name, precision in self.qdq_removals.get(name, {}).items():
                config = config.with_group_precision([self.network.get_group(group_name)], precision, PREVIEW_REASON)
        if range_moves:
            read_tensors = {
                site.tensor
                for group in self.network.groups
                for site in group.calibrated_qdq_sites(config.precision_of(group))
            }
            config = config.with_moves(
                {tensor: choice for tensor, choice in range_moves.items() if tensor in read_tensors}
            )
        return config

    def sort_candidates_in_network_order(self, group_names: Iterable[str]) -> tuple[str, ...]:
        """Returns the names that are candidates of the search, in network order."""
        selected = set(group_names)
        return tuple(name for name in self.candidates if name in selected)


def lowest_precision_config(
    network: NetworkOutline, precisions: Sequence[Precision], boundary_type: Precision, uses_tf32: bool = False
) -> PrecisionConfig:
    """Returns the config with each fusion group in the lowest of the given precisions that it can have.

    If the lowest precision is a quantized type, groups that cannot be quantized have ``boundary_type``.
    """
    config = PrecisionConfig.from_precision(precisions[0], boundary_type, uses_tf32)
    for group in network.groups:
        if group.is_quantizable and precisions[0] in QUANTIZED_TYPES:
            lowest_precision = next(
                (precision for precision in precisions if precision in group.allowed_precisions), boundary_type
            )
            config = config.with_group_precision([group], lowest_precision, "search:rungs")
    return config


def build_reduced_start_config(
    network: NetworkOutline, config: PrecisionConfig, higher_precision: Precision
) -> tuple[PrecisionConfig, tuple[str, ...]]:
    """Returns the start config of a search that reduces groups, and the groups that this search leaves unchanged.

    Groups below ``higher_precision`` keep their precision. Every other group that no keep rule fixes is reduced to the
    lowest precision in use. INT8 is used if the config has no quantized type.
    """
    fixed = [
        group
        for group in network.groups
        if group.precision_rank(config.precision_of(group)) < precision_rank(higher_precision)
    ]
    start = replace(config, quantized=config.precision_steps[0]).without_group_precision(network.groups)
    for group in fixed:
        start = start.with_group_precision(
            [group],
            config.precision_of(group),
            config.precision_moves[group.name].reason if group.name in config.precision_moves else "user",
        )
    return start, tuple(group.name for group in fixed)


def find_added_moves(
    network: NetworkOutline, start_config: PrecisionConfig, config: PrecisionConfig
) -> dict[MoveKey, Move]:
    """Returns the moves that a config has in addition to those of a start config.

    A group whose precision move was removed has a move to its default precision in the result.
    """
    back = {
        key: PrecisionMove(config.precision_of(network.get_group(key[1])), start_config.moves[key].origin_text)
        for key in start_config.moves.keys() - config.moves.keys()
        if key[0] == PrecisionMove.kind
    }
    return {**back, **{key: move for key, move in config.moves.items() if start_config.moves.get(key) is not move}}


T = TypeVar("T")

Trials: TypeAlias = Generator[Trial, None, T]
"""The steps of a search: a generator that yields each trial that is not evaluated yet, and continues when it is."""

ALONE_STEP, RANGES_STEP, COMBINED_STEP = "zero-cost change", "other ranges", "combined changes"
"""The search steps that try a set of zero-cost moves alone, another range, and a set on top of kept changes."""

QDQ_STEP, REVERT_STEP = "unused Q/DQ", "revert"
"""The steps that take unused Q/DQ out of the result, and that revert raised groups."""

TOP_DOWN_METHODS = ("scoped", "lower")
"""The methods that begin with all groups raised. A start config that passes does not end their search."""

MIN_ERROR_SHARE = 0.01
"""The error share below which the ranges of a group are not tried."""

SCALED_CHANNELS = "scaled channels"
"""The kind of all moves that scale channels. A subject has at most one of them."""

INITIAL_FRACTION = 0.5
"""The fraction of the sufficient suspects that the greedy method raises without a trial. Bisection finds how many
suspects are sufficient."""

MAX_SWAPPED_PAIRS = 2
MAX_SWAP_CANDIDATES = 8
"""The maximum number of pairs of raised groups that are tried, and of replacement groups for each pair."""

GAIN_MARGIN = 1.5
"""The factor by which the gain of a group may exceed its expectation. A group is not tried in a swap if even such a
gain would be too small."""


MAX_COPIES_PER_CONFIG = 4
"""The maximum number of search copies with a guessed result, for each config that is predicted."""


class SearchOutcome(StrEnum):
    """The outcome of a search, or its state while the search is running."""

    SEARCHING = "searching"
    MET = "met"
    NOTHING_TO_DO = "nothing to do"
    UNREACHABLE = "unreachable"
    SHORT = "short"


@dataclass(frozen=True)
class SearchResult:
    """The best result of a search so far. The result is final unless ``outcome`` is `SearchOutcome.SEARCHING`.

    Attributes:
        config: The start config with raised groups and replaced ranges, whose reason is ``search:<method>``.
        best_evaluation: The evaluation of the config; None if nothing is evaluated yet.
        is_met: True if the config meets the tolerance with the margin, within the budgets.
        raise_reasons: The reason why each group is raised, by group name, in network order.
        summary: The outcome in one line.
        reduction_steps: The trials of a method of `TOP_DOWN_METHODS`, in their order.
    """

    config: PrecisionConfig
    best_evaluation: Evaluation | None
    outcome: SearchOutcome
    is_met: bool
    raise_reasons: Mapping[str, str]
    summary: str
    reduction_steps: tuple[ReductionStep, ...] = ()


@dataclass(eq=False)
class Search:
    """A search for the groups to raise: it proposes configs, receives their results, and reports the best config so
    far.

    The owner may change the arguments, and then calls `restart`.

    Args:
        method_name: A name in `SEARCH_METHODS`.
        sensitivities: The sensitivities of the groups, by group name. They rank the groups by suspicion.
        ranges: Ranges to try before groups are raised: amax by tensor and range method.
        max_raised: Budget: the maximum number of groups above their defaults, including those of the start config.
        max_latency: Budget in the unit of ``estimate_latency``.
        estimate_latency: Function that estimates the latency of a config.
        costs: The cost of each group in the higher precision; empty if unknown.

    Attributes:
        margins: The lowest passing score of each tolerance. The criterion itself must be met too.
        ranges_order: The groups whose other ranges are tried, the most suspicious first. The order stays the same when
            the groups are ranked anew for the kept changes.
        initial_effort: The effort for zero-cost changes that does not come from trials of this search.
        expected_shares: The expected share of each group in the judged error; infinite for NaN and Inf. Empty if no
            sensitivity is known.
        current_trial: The proposed config as a difference from the start config; None if the search is finished.
        start_evaluation: The evaluation of the start config.
        zero_cost_sets: Sets of zero-cost moves that the search has chosen; ``chosen_ranges`` are the replaced ranges.
        zero_cost_effort: The effort for zero-cost moves and other ranges so far, with the budget.
        reduction_steps: The trials of a method of `TOP_DOWN_METHODS`, in their order.
        fixed_groups: The groups that such a method could not reduce; None before it has run.

    Raises:
        InputError: The method is unknown, or a budget cannot be used.
    """

    search_space: SearchSpace
    method_name: str = "auto"
    sensitivities: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    max_raised: int | None = None
    max_latency: float | None = None
    estimate_latency: Callable[[PrecisionConfig], float] | None = None
    costs: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        raised_at_start = len(self.search_space.groups_raised_at_start)
        if self.method_name not in SEARCH_METHODS:
            raise InputError(
                f"unknown search method {self.method_name!r}", "", f"Choose from {', '.join(SEARCH_METHODS)}."
            )
        if self.max_latency is not None and self.estimate_latency is None:
            raise InputError(
                "a latency budget needs a latency",
                "no latency was measured or can be estimated here",
                "Use --max-fp32, or a backend that times what it builds.",
            )
        if self.max_raised is not None and self.max_raised < raised_at_start:
            raise InputError(
                f"a budget of {counted_noun_text(self.max_raised, 'layer')} is used before the search starts",
                f"the start raises {raised_at_start} already",
                "Increase --max-fp32, or reduce layers in the start.",
            )
        self.margins: tuple[float, ...] = ()
        self.initial_effort = ZeroCostEffort()
        self._evaluations_by_key: dict[TrialKey, Evaluation] = {}
        self.restart()
        self.ranges_order = self.list_influential_groups()

    # -- proposals and results ------------------------------------------------------------------------------------

    @property
    def evaluations(self) -> list[Evaluation]:
        """All evaluations so far, in their order."""
        return [*self._evaluations_by_key.values()]

    def restart(self, evaluations: Iterable[Evaluation] | None = None) -> None:
        """Runs the steps again after a change of the search. No config is evaluated again, but latencies are estimated
        again.

        Args:
            evaluations: The evaluations to continue from; None for all evaluations so far.
        """
        known_evaluations = self.evaluations if evaluations is None else evaluations
        self._evaluations_by_key = {}
        self._latencies: dict[TrialKey, float] = {}
        for evaluation in known_evaluations:
            self._store_evaluation(evaluation)
        self._start_steps()

    def _start_steps(self) -> None:
        self.outcome = SearchOutcome.SEARCHING
        self.candidates = self.search_space.candidates
        shares = loss_shares(self.sensitivities)
        self.expected_shares = shares if any(shares.get(name, 0.0) > 0 for name in self.candidates) else {}
        self.start_evaluation: Evaluation | None = None
        self.chosen_ranges: Mapping[str, RangeMove] = {}
        self.zero_cost_sets: tuple[str, ...] = ()
        self.zero_cost_effort = replace(self.initial_effort)
        self.reduction_steps: list[ReductionStep] = []
        self.fixed_groups: frozenset[str] | None = None
        self._step_name = "start"
        self._steps: Trials[None] = self._run_steps()
        self.current_trial: Trial | None = next(self._steps, None)

    def require_score_margins(self, required_margins: Sequence[float]) -> None:
        """Continues the search with a stricter criterion: each score must reach its required margin."""
        self.margins = tuple(required_margins)
        self.restart()

    def propose_config(self) -> PrecisionConfig | None:
        """Returns the next config to evaluate; None if the search is finished.

        The config stays the same until `record_target_result` is called.
        """
        return None if self.current_trial is None else self.build_config(self.current_trial)

    def record_target_result(self, target_result: TargetResult) -> Evaluation:
        """Stores the result of the proposed config, continues the search and returns the evaluation."""
        if self.current_trial is None:
            raise ValueError("nothing was requested")
        evaluation = self._store_evaluation(Evaluation(**vars(self.current_trial), target_result=target_result))
        self.current_trial = next(self._steps, None)
        return evaluation

    def propose_qdq_removal(self, set_name: str) -> None:
        """Proposes the best config of the finished search without the unused Q/DQ of a set of the search space.

        The removal raises nothing, so of two configs that meet the tolerance with the same raised groups,
        `best_evaluation` is the one with the higher score.
        """
        best = self.best_evaluation
        if best is None or self.current_trial is not None:
            raise ValueError("the search is not finished")
        self._steps = self._run_qdq_steps(best, set_name)
        self.current_trial = next(self._steps, None)

    def evaluate(
        self,
        raised_groups: Iterable[str] = (),
        about: str = "",
        *,
        step_name: str = "",
        range_moves: Mapping[str, RangeMove] | None = None,
        precisions: Mapping[str, Precision] | None = None,
        zero_cost_sets: tuple[str, ...] | None = None,
    ) -> Trials[Evaluation]:
        """Returns the evaluation of a config under the criterion of the search, stored or new.

        Args:
            about: The group that is tried; "" for several groups.
            step_name: The search step; "" for the current one.
            range_moves: The replaced ranges; None for those that the search has chosen.
            zero_cost_sets: The sets of zero-cost moves; None for those that the search has chosen.
        """
        trial = Trial(
            self.search_space.sort_candidates_in_network_order(raised_groups),
            self.chosen_ranges if range_moves is None else range_moves,
            about,
            step_name or self._step_name,
            precisions or {},
            self.zero_cost_sets if zero_cost_sets is None else zero_cost_sets,
        )
        return (yield from self._evaluate_trial(trial))

    def _evaluate_trial(self, trial: Trial) -> Trials[Evaluation]:
        if trial.config_key not in self._evaluations_by_key:
            yield trial
        return self._evaluations_by_key[trial.config_key].with_required_margins(self.margins)

    def _store_evaluation(self, evaluation: Evaluation) -> Evaluation:
        latency = self._estimate_latency(evaluation.raised_groups, evaluation.precisions)
        evaluation = replace(evaluation, estimated_latency=latency, config=self.build_config(evaluation))
        self._evaluations_by_key[evaluation.config_key] = evaluation
        return evaluation

    # -- prediction -----------------------------------------------------------------------------------------------

    def predict_next_configs(self, max_configs: int, step_names: Collection[str] = ()) -> list[PrecisionConfig]:
        """Returns the config that the search requests now, and configs that it may request next, for evaluations at the
        same time.

        Likelier and earlier configs come first. There are at most ``max_configs``. The search depends only on the
        results of its trials, so a copy with a guessed result continues like the search itself if the guess is right.
        Guesses only decide which configs are evaluated early.

        Args:
            step_names: Names of the search steps whose configs are useful; empty for all steps.
        """
        configs_by_key: dict[TrialKey, PrecisionConfig] = {}
        open_searches = deque([self])
        copies_left = MAX_COPIES_PER_CONFIG * max_configs
        while open_searches and len(configs_by_key) < max_configs:
            search = open_searches.popleft()
            trial = search.current_trial
            if trial is None or step_names and trial.step_name not in step_names:
                continue
            configs_by_key.setdefault(trial.config_key, search.build_config(trial))
            if copies_left > 0 and len(configs_by_key) < max_configs:
                open_searches.extend(search._copy_with_guesses(trial))
                copies_left -= 2
        return list(configs_by_key.values())

    def _copy_with_guesses(self, trial: Trial) -> list[Search]:
        """Returns two copies of the search in which a trial passes and fails, the likelier one first.

        The guessed loss is that at the start without the error shares of the raised groups. The trial is likely to pass
        if this loss is at most the largest loss that has passed.
        """
        start, copies = self.start_evaluation, []
        whole = start.comparable_loss if start is not None and math.isfinite(start.comparable_loss) else 1.0
        loss = whole * max(0.0, 1 - sum(self.expected_shares.get(name, 0.0) for name in trial.raised_groups))
        likely = loss <= max(
            (
                evaluation.comparable_loss
                for evaluation in self.evaluations
                if evaluation.with_required_margins(self.margins).passes
            ),
            default=0,
        )
        for passes in (likely, not likely):
            search = copy.copy(self)
            search._evaluations_by_key = dict(self._evaluations_by_key)
            search._start_steps()
            if search.current_trial is not None:
                search.record_target_result(TargetResult(passes, math.inf if passes else -math.inf, loss=loss))
            copies.append(search)
        return copies

    # -- the steps of a search ------------------------------------------------------------------------------------

    def _run_steps(self) -> Trials[None]:
        is_top_down = self.method_name in TOP_DOWN_METHODS
        start = self.start_evaluation = yield from self.evaluate()
        if start.passes and not is_top_down:  # further raised groups would only cost time
            self.outcome = SearchOutcome.NOTHING_TO_DO if self.is_within_budget(()) else SearchOutcome.SHORT
            return
        full_evaluation = yield from self.evaluate(self.candidates, step_name="all raised")
        if not full_evaluation.passes and self.max_raised is None and self.max_latency is None:
            self.outcome = SearchOutcome.UNREACHABLE
            return
        yield from try_zero_cost_changes(self)
        if full_evaluation.passes:
            raised: frozenset[str] = frozenset()
            evaluation = yield from self.evaluate(step_name=RANGES_STEP)
            self._step_name = self.method_name
            if is_top_down or not evaluation.passes:
                raised = yield from SEARCH_METHODS[self.method_name](self)
            self._step_name = REVERT_STEP
            if not is_top_down:
                raised = yield from revert_unneeded_groups(self, raised)
            self._step_name = "intermediate precision"
            yield from assign_intermediate_precisions(self, raised)
        self._step_name = "one more raised"
        if not self.meets_tolerance(self.best_evaluation):
            yield from _raise_groups_one_by_one(self, frozenset(), math.inf)
        yield from self._revert_changes_one_by_one()
        self.outcome = SearchOutcome.MET if self.meets_tolerance(self.best_evaluation) else SearchOutcome.SHORT

    def _run_qdq_steps(self, best: Evaluation, set_name: str) -> Trials[None]:
        zero_cost_sets = (*best.zero_cost_sets, set_name)
        yield from self._evaluate_trial(
            Trial(
                best.raised_groups,
                best.range_moves,
                "",
                QDQ_STEP,
                best.precisions,
                zero_cost_sets,
                best.plain_groups,
            )
        )
        yield from self._revert_changes_one_by_one()

    def _revert_changes_one_by_one(self) -> Trials[None]:
        """Tries the best config without each of its raised groups, until none of them can be left out.

        The best config need not be the result of the method: it is the best of all evaluations. The value without
        each group is the reason why the group is raised.
        """
        tried = None
        while (best := self.best_evaluation) is not None and best is not tried:
            tried = best
            for name in best.raised_groups:
                evaluation = yield from self._evaluate_trial(self._without_group(best, name))
                if evaluation.passes and self.fixed_groups == frozenset(best.raised_groups):
                    self.fixed_groups = frozenset(evaluation.raised_groups)
                    self.reduction_steps.append(ReductionStep(name, evaluation.value_text, False))

    def _without_group(self, evaluation: Evaluation, group_name: str) -> Trial:
        """Returns the trial of a config with one group reverted and no other change.

        Raising the group may have taken ranges and zero-cost moves out of the config. They stay out of it.
        """
        trial = Trial(
            tuple(name for name in evaluation.raised_groups if name != group_name),
            evaluation.used_ranges,
            group_name,
            REVERT_STEP,
            {name: precision for name, precision in evaluation.precisions.items() if name != group_name},
            evaluation.zero_cost_sets,
            evaluation.plain_groups,
        )
        config = evaluation.config.with_move_of(self.search_space.start_config, (PrecisionMove.kind, group_name))
        is_plain = self.build_config(trial) == config
        return trial if is_plain else replace(trial, plain_groups=(*trial.plain_groups, group_name))

    # -- what the steps read --------------------------------------------------------------------------------------

    @property
    def method_text(self) -> str:
        """The description of the search method for users; for `auto` with the chosen method and its reason."""
        if self.method_name != "auto":
            return self.method_name
        return (
            "the worst first, then exchanges, by each layer's error alone"
            if self.expected_shares
            else "halving from both ends of the network: no values of its layers are known"
        )

    def order_by_expected_effect(self, excluded_groups: Collection[str] = ()) -> list[str]:
        """Returns the candidates without excluded groups, by decreasing expected effect on the judged error.

        Groups without a measured effect come last, and ties are in network order.
        """
        return sorted(
            (name for name in self.candidates if name not in excluded_groups),
            key=lambda name: -self.expected_shares.get(name, -math.inf),
        )

    def list_influential_groups(self) -> list[str]:
        """Returns the candidates whose ranges are tried, by decreasing expected effect on the judged error."""
        return [
            name
            for name in self.order_by_expected_effect()
            if not self.expected_shares or self.expected_shares.get(name, 0.0) >= MIN_ERROR_SHARE
        ]

    def expected_loss_reduction(self, group_name: str, current_evaluation: Evaluation) -> float:
        """Returns the expected reduction of the loss if a fusion group is raised; 0 if nothing is known about the
        group.

        The value is the group's share of the loss at the start, or of the current loss if that at the start is not
        finite.
        """
        total_loss = next(
            (
                evaluation.comparable_loss
                for evaluation in (self.start_evaluation, current_evaluation)
                if evaluation is not None and 0 < evaluation.comparable_loss < math.inf
            ),
            1.0,
        )
        return self.expected_shares.get(group_name, 0.0) * total_loss

    def is_within_budget(
        self, raised_groups: Collection[str], precisions: Mapping[str, Precision] | None = None
    ) -> bool:
        """Returns True if raised groups, some of them with an intermediate precision, are within the budgets."""
        return (
            self.max_raised is None
            or len(self.search_space.groups_raised_at_start.union(raised_groups)) <= self.max_raised
        ) and (
            self.max_latency is None
            or (self._estimate_latency(raised_groups, precisions or {}) or 0.0) <= self.max_latency
        )

    def _estimate_latency(self, raised_groups: Collection[str], precisions: Mapping[str, Precision]) -> float | None:
        if self.estimate_latency is None:
            return None
        trial = Trial(self.search_space.sort_candidates_in_network_order(raised_groups), precisions=precisions)
        if trial.config_key not in self._latencies:
            self._latencies[trial.config_key] = self.estimate_latency(self.build_config(trial))
        return self._latencies[trial.config_key]

    def meets_tolerance(self, evaluation: Evaluation | None) -> bool:
        """Returns True if an evaluation meets the tolerance with its safety margins, and exceeds no budget."""
        return (
            evaluation is not None
            and evaluation.with_required_margins(self.margins).passes
            and self.is_within_budget(evaluation.raised_groups, evaluation.precisions)
        )

    # -- the result -----------------------------------------------------------------------------------------------

    def build_config(self, trial: Trial) -> PrecisionConfig:
        return self.search_space.build_config(
            trial.raised_groups,
            trial.range_moves,
            f"search:{self.method_name}",
            trial.precisions,
            trial.zero_cost_sets,
            trial.plain_groups,
        )

    @property
    def best_evaluation(self) -> Evaluation | None:
        """The best evaluation of the search so far; None if there is none.

        Evaluations that meet the tolerance within the budgets come first. They are compared by latency if known, then
        by the number of raised groups, their precisions (lower first), and the score. If no evaluation meets the
        tolerance, the best is that with the highest score within the budgets.

        After a method of `TOP_DOWN_METHODS`, the raised groups are those that could not be reduced.
        """
        fixed_evaluations = [
            evaluation
            for evaluation in self.evaluations
            if frozenset(evaluation.raised_groups) == self.fixed_groups
            and self.is_within_budget(evaluation.raised_groups, evaluation.precisions)
        ]
        return min(fixed_evaluations or self.evaluations, key=self._sort_key, default=None)

    def _sort_key(self, evaluation: Evaluation) -> tuple[float, ...]:
        count, score = len(evaluation.raised_groups), -evaluation.score
        if self.meets_tolerance(evaluation):
            height = sum(
                precision_rank(evaluation.precisions.get(name, self.search_space.higher_precision))
                for name in evaluation.raised_groups
            )
            return 0, evaluation.estimated_latency or 0.0, count, height, score
        fits = self.is_within_budget(evaluation.raised_groups, evaluation.precisions)
        return (1, score, count) if fits else (2, count, score)

    @property
    def result(self) -> SearchResult:
        """The best result so far, available at any moment of the search."""
        best = self.best_evaluation
        if best is None:
            return SearchResult(self.search_space.start_config, None, self.outcome, False, {}, "nothing was evaluated")
        is_met = self.meets_tolerance(best)
        raise_reasons = {name: self._explain_raised_group(name, best) for name in best.raised_groups}
        return SearchResult(
            best.config,
            best,
            self.outcome,
            is_met,
            raise_reasons,
            self._summary_text(best, is_met),
            tuple(self.reduction_steps),
        )

    def _explain_raised_group(self, group_name: str, evaluation: Evaluation) -> str:
        """Returns the reason why a fusion group of an evaluation is raised: the result without the group.

        If it was not measured, the text names the search method.
        """
        low = self._evaluations_by_key.get(self._without_group(evaluation, group_name).config_key)
        if low is None:
            return f"raised by {self.method_name}"
        verb = (
            "passes"
            if low.with_required_margins(self.margins).passes
            else "passes, but without the margin"
            if low.passes
            else "fails"
        )
        return f"without it {_measured_value_text(low)} ({verb}), with it {_measured_value_text(evaluation)}"

    def _summary_text(self, evaluation: Evaluation, is_met: bool) -> str:
        value_text = _measured_value_text(evaluation)
        if self.outcome is SearchOutcome.NOTHING_TO_DO:
            return f"the start already meets the tolerance: {value_text}"
        higher, total = self.search_space.higher_precision.label, len(self.candidates)
        margins = [f"{margin:.2g}" for margin in self.margins if math.isfinite(margin)]
        beyond = f" (with a margin of {' and '.join(margins)})" if margins else ""
        full_evaluation = next((other for other in self.evaluations if len(other.raised_groups) == total), None)
        full_text = _measured_value_text(full_evaluation) if full_evaluation is not None else ""
        if self.outcome is SearchOutcome.UNREACHABLE and full_text and not is_met:
            layers_text = f"{'all ' * (total > 1)}{counted_noun_text(total, 'fused layer')}"
            return f"the tolerance{beyond} cannot be met, even with {layers_text} in {higher}: {full_text}"
        changed_text, verb = self._changes_text(evaluation)
        latency_text = (
            f", about {milliseconds_text(evaluation.estimated_latency)}"
            if self.max_latency is not None and evaluation.estimated_latency is not None
            else ""
        )
        if is_met:
            summary = f"{changed_text} {verb} the tolerance{beyond}: {value_text}{latency_text}"
        elif not self.is_within_budget(evaluation.raised_groups, evaluation.precisions):
            summary = f"no config stays within the budget: {changed_text}: {value_text}{latency_text}"
        else:
            summary = f"tolerance{beyond} not met with {changed_text}: {value_text}"
            if full_evaluation is not None and not full_evaluation.with_required_margins(self.margins).passes:
                summary += f"; even with all {total}: {full_text}"
        return summary + ("; the search has not finished" if self.outcome is SearchOutcome.SEARCHING else "")

    def _changes_text(self, evaluation: Evaluation) -> tuple[str, str]:
        """Returns the changes of an evaluation as text, and the verb for them, "meet" or "meets"."""
        higher_precision, count = self.search_space.higher_precision, len(evaluation.raised_groups)
        ranges = len(evaluation.used_ranges)
        count_text = f"{count} of {counted_noun_text(len(self.candidates), 'fused layer')}"
        changes = [*evaluation.zero_cost_sets, *[counted_noun_text(ranges, "other range")] * bool(ranges)]
        verb = "meets" if ranges + len(evaluation.zero_cost_sets) == 1 and not count else "meet"
        if evaluation.precisions:
            raised_text = f"{count_text} raised, {evaluation.raised_group_counts_text(higher_precision)}"
            changes.insert(0, raised_text if changes else f"{raised_text},")
        elif count or not changes:
            changes.insert(0, f"{count_text} in {higher_precision.label}")
        return " and ".join(filter(None, (", ".join(changes[:-1]), changes[-1]))), verb


def _measured_value_text(evaluation: Evaluation) -> str:
    return mark_figures_as_simulated(evaluation.target_result.value_text) or f"score {evaluation.score:+.3g}"


def loss_shares(sensitivities: Mapping[str, float]) -> dict[str, float]:
    """Returns the judged error of each fusion group if it alone is reduced, as a fraction of the sum over all groups.

    The value of a group is infinite if its error contains NaN or Inf.

    Sensitivities correlate best with the effect of groups on the error. Their Spearman correlation with Shapley values
    is 0.98 on a BERT encoder, 0.93 on a vision transformer, 0.82 on ResNet-50 and 0.58 on the bundled network. In the
    same order, error shares have 0.93, 0.69, 0.60 and 0.67, and isolated errors at most 0.38
    (tests/benchmarks/search.py).

    An error share is a small difference of two large errors, in which one changed quantized value can outweigh a whole
    group. An isolated error does not show which part of it reaches the outputs.
    """
    total = sum(filter(math.isfinite, sensitivities.values())) or 1.0
    return {name: sensitivity / total for name, sensitivity in sensitivities.items()}


# -- zero-cost changes and other ranges -------------------------------------------------------------------------------


def try_zero_cost_changes(search: Search) -> Trials[None]:
    """Chooses the sets of zero-cost moves and the ranges that reduce the loss, and stores them in the search.

    Each set of a stage is first tried alone, on top of the changes of earlier stages that were kept. The other ranges
    are a pass of the first stage. Then the passes that gain are combined, those that gain most first. No fixed order is
    best for every network: factors of channels fix ranges that would have gained more, and other ranges can leave
    nothing for the factors to gain.

    A pass is kept if it gains by `_gain_key`. At most one of several sets with moves on the same subject is kept. Each
    set is tried as a whole: its moves act on different layers and hardly influence each other.

    The budget of the effort limits the number of evaluations, with those that measured the sets. A limit in seconds
    would change results.
    """
    effort = search.zero_cost_effort
    best = yield from search.evaluate(step_name=ALONE_STEP)
    for index, (stage, measured_count) in enumerate(search.search_space.zero_cost_stages or (({}, 0),)):
        tries_ranges = index == 0 and bool(search.ranges)
        effort.total += len(stage) + tries_ranges
        effort.evaluations += measured_count
        if not best.passes:
            best = yield from _try_stage(search, stage, tries_ranges, best)
        search.zero_cost_sets, search.chosen_ranges = best.zero_cost_sets, best.range_moves


def _try_stage(
    search: Search, stage: Mapping[str, Mapping[MoveKey, Move]], tries_ranges: bool, before: Evaluation
) -> Trials[Evaluation]:
    """Returns the evaluation after one stage of zero-cost moves and ranges, with those that reduced the loss.

    Args:
        before: The evaluation with the kept passes of the earlier stages.
    """
    effort = search.zero_cost_effort
    gains: list[tuple[str, Evaluation]] = []  # by the name of the set, "" for the other ranges
    for name in stage:
        if not effort.spend_evaluation():
            break
        effort.tried += 1
        evaluation = yield from _try_zero_cost_set(search, before, name, ALONE_STEP)
        if evaluation.passes:
            return evaluation
        gains.append((name, evaluation))
    if tries_ranges:
        effort.tried += effort.has_budget
        gains.append(("", (yield from _try_other_ranges(search, before))))
    best, kept_subjects = before, set[MoveKey]()
    for name, evaluation in sorted(
        (gain for gain in gains if _is_gain(gain[1], before)), key=lambda gain: _gain_key(gain[1]), reverse=True
    ):
        # Groups in file precision get a precision move for a zero-cost move, and these moves are the same in every set.
        subjects = {
            (SCALED_CHANNELS if move.scales_channels else kind, subject)
            for (kind, subject), move in stage.get(name, {}).items()
            if kind != PrecisionMove.kind
        }
        if best.passes or not kept_subjects.isdisjoint(subjects):
            continue
        if best is not before and name:
            if not effort.spend_evaluation():
                break
            evaluation = yield from _try_zero_cost_set(search, best, name, COMBINED_STEP)
        elif best is not before:
            evaluation = yield from _try_other_ranges(search, best)
        if _is_gain(evaluation, best):
            best, kept_subjects = evaluation, kept_subjects | subjects
    return best


def _try_zero_cost_set(search: Search, kept: Evaluation, set_name: str, step_name: str) -> Trials[Evaluation]:
    """Returns an evaluation with a set of zero-cost moves added. Its chosen ranges stay, except for tensors whose range
    the set fixes."""
    fixed_tensors = search.search_space.find_fixed_range_tensors((set_name,))
    ranges = {tensor: choice for tensor, choice in kept.range_moves.items() if tensor not in fixed_tensors}
    return search.evaluate(step_name=step_name, range_moves=ranges, zero_cost_sets=(*kept.zero_cost_sets, set_name))


def _gain_key(evaluation: Evaluation) -> tuple[float, float]:
    """Returns the key by which changes are compared: the value that the target bounds, and for equal values the loss.

    For a bound on an error metric both have the same order. A metric of the user can rise although the error grows.
    """
    return evaluation.score, -evaluation.comparable_loss


def _is_gain(evaluation: Evaluation, before: Evaluation) -> bool:
    return evaluation.passes or _gain_key(evaluation) > _gain_key(before)


def _try_other_ranges(search: Search, before: Evaluation) -> Trials[Evaluation]:
    """Returns an evaluation with the replaced ranges that reduce the loss added to its changes.

    The pass takes one evaluation for each range method and quantized group. The source is setting ranges by the error
    that they cause (Nagel et al., "A White Paper on Neural Network Quantization", 2021). Here the error is that at the
    judged outputs. The method is a coordinate descent over groups, the most suspicious first, among the ranges that the
    range methods propose. Tensors whose range belongs to a zero-cost move keep it.
    """
    space, best = search.search_space, before
    fixed_tensors = space.find_fixed_range_tensors(before.zero_cost_sets)
    for name in search.ranges_order:
        group = space.network.get_group(name)
        sites = group.calibrated_qdq_sites(space.start_config.precision_of(group))
        ranges = {site.tensor: search.ranges.get(site.tensor, {}) for site in sites if site.tensor not in fixed_tensors}
        best_of_group = best
        for method in dict.fromkeys(method for by_method in ranges.values() for method in by_method):
            if best_of_group.passes or not search.zero_cost_effort.spend_evaluation():
                return best_of_group
            choices = {
                tensor: RangeMove(by_method[method], method)
                for tensor, by_method in ranges.items()
                if method in by_method
            }
            evaluation = yield from search.evaluate(
                (),
                name,
                step_name=RANGES_STEP,
                range_moves={**best.range_moves, **choices},
                zero_cost_sets=before.zero_cost_sets,
            )
            if _is_gain(evaluation, best_of_group):
                best_of_group = evaluation
        best = best_of_group
    return best


# -- methods ----------------------------------------------------------------------------------------------------------


def bisect_prefix_length(
    group_order: Sequence[str], evaluate: Callable[[Sequence[str]], Trials[Evaluation]], *, passes: int, fails: int
) -> Trials[int]:
    """Returns how many of the first groups of an order must be raised to meet the target, by bisection between two numbers.

    The bisection takes at most ceil(log2(n)) evaluations for n numbers in between. The result passes, and its neighbour
    in the direction of ``fails`` fails.

    Args:
        evaluate: A function that evaluates the first groups.
        passes: A number that is known to pass; ``fails`` is a number that is known to fail.
    """
    while abs(passes - fails) > 1:
        middle = (passes + fails) // 2
        if (yield from evaluate(group_order[:middle])).passes:
            passes = middle
        else:
            fails = middle
    return passes


def bisect_raised_prefix(search: Search, group_order: Sequence[str]) -> Trials[frozenset[str]]:
    """Finds by bisection how many fusion groups at the start of an order must be raised to meet the tolerance.

    Raising all of ``group_order`` must be known to pass, and raising none must be known to fail. The result is exact if
    every prefix longer than a passing prefix passes too.

    Source: Polygraphy's ``debug precision --mode bisect`` (``--dir forward`` and ``reverse``), which uses the network
    order.
    """
    count = yield from bisect_prefix_length(group_order, search.evaluate, passes=len(group_order), fails=0)
    return frozenset(group_order[:count])


def raise_growing_prefix(search: Search, group_order: Sequence[str]) -> Trials[frozenset[str]]:
    """Raises the fusion groups of an order one after the other until the tolerance is met.

    Raising all groups of ``group_order`` must be known to pass. The method takes one evaluation for each raised group,
    at most n. A larger set need not have a smaller error.

    Source: Polygraphy's ``debug precision --mode linear`` (``--dir forward`` and ``reverse``), which uses the network
    order. Its former mode ``worst-first`` compares layers with FP32 one by one and raises them in the order of their
    errors. Here the order is the ranking of the search, which stays the same throughout.
    """
    for count, name in enumerate(group_order, 1):
        if (yield from search.evaluate(group_order[:count], name)).passes:
            return frozenset(group_order[:count])
    return frozenset(group_order)


def raise_groups_greedily(search: Search) -> Trials[frozenset[str]]:
    """Finds a small set of fusion groups to raise so that the tolerance is met, by bisection and then greedily.

    Bisection finds how many of the most suspicious groups are sufficient. The greedy part starts from a fraction of
    them and searches for a smaller set.

    The gain of a group is measured again only if the new value may matter. Source: Minoux, "Accelerated greedy
    algorithms for maximizing submodular set functions" (1978), known as lazy greedy (CELF in Leskovec et al.,
    "Cost-effective outbreak detection in networks", KDD 2007). The last measured gain of a group is an upper bound of
    its present gain. Groups are measured again in the order of these bounds, until the best gain exceeds the bound of
    the next group. The energy of the judged error is nearly additive over groups, so few groups are measured again.
    """
    suspects = search.order_by_expected_effect()
    prefix = yield from bisect_raised_prefix(search, suspects)
    begin = frozenset(suspects[: int(INITIAL_FRACTION * len(prefix))])
    return (yield from _raise_groups_one_by_one(search, begin, len(prefix))) or prefix


def _raise_groups_one_by_one(
    search: Search, raised_groups: frozenset[str], count_limit: float
) -> Trials[frozenset[str] | None]:
    """Raises one fusion group at a time and returns the first set that meets the tolerance, within the budgets.

    The group with the largest gain is raised. The result is None if no set with fewer than ``count_limit`` groups
    passes. While the error is not finite, groups are raised in the order of suspicion.
    """
    evaluation = yield from search.evaluate(raised_groups)
    gain = {
        name: search.expected_loss_reduction(name, evaluation)
        for name in search.order_by_expected_effect(raised_groups)
    }
    while not evaluation.passes:
        best: tuple[bool, float, Evaluation] | None = None
        for name in sorted(gain, key=lambda candidate: -gain[candidate]):
            if best is not None and (best[0] or math.isinf(evaluation.comparable_loss) or best[1] >= gain[name]):
                break
            tried_groups = raised_groups | {name}
            if len(tried_groups) >= count_limit or not search.is_within_budget(tried_groups):
                continue
            trial_evaluation = yield from search.evaluate(tried_groups, name)
            measured_gain = evaluation.comparable_loss - trial_evaluation.comparable_loss
            if math.isfinite(evaluation.comparable_loss):
                gain[name] = measured_gain
            if best is None or (trial_evaluation.passes, measured_gain) > best[:2]:
                best = (trial_evaluation.passes, measured_gain, trial_evaluation)
        if best is None:
            return None
        evaluation = best[2]
        raised_groups = frozenset(evaluation.raised_groups)
        gain = {name: value for name, value in gain.items() if name not in raised_groups}
    return raised_groups


def run_auto_method(search: Search) -> Trials[frozenset[str]]:
    """Runs the default search method, whose parts depend on the available measurements of the fusion groups.

    - With sensitivities: greedy, then swaps.
    - Without: bisection from both ends of the network; the smaller set is the result.

    After greedy and swaps, prefixes of first and of last layers with one group fewer are tried too. The method `bisect`
    therefore never finds a smaller set, provided that raising more groups never increases the error.

    On 20 networks small enough for brute force, greedy with swaps found the smallest set, or a set with one group more.
    On an encoder and on ResNet-50, the sets were no larger than those of greedy leave-one-out, with at most a tenth of
    the evaluations (tests/benchmarks/search.py).
    """
    orders = search.candidates, search.candidates[::-1]
    if not search.expected_shares:
        first = yield from bisect_raised_prefix(search, orders[0])
        last = yield from bisect_raised_prefix(search, orders[1])
        return min(first, last, key=len)
    raised = yield from raise_groups_greedily(search)
    raised = yield from swap_raised_groups(search, raised)
    for order in orders:
        fewer = order[: max(0, len(raised) - 1)]
        if fewer and (yield from search.evaluate(fewer)).passes:
            raised = yield from bisect_raised_prefix(search, fewer)
    return raised


def reduce_groups_in_order(search: Search, group_order: Sequence[str]) -> Trials[frozenset[str]]:
    """Reduces the fusion groups one after the other, with one evaluation for each candidate.

    A group that fails the tolerance when it is reduced stays in the higher precision. Reducing in network order follows
    eLinux's layer_analyzer (elinux.org, TensorRT/LayerDumpAndAnalyze). If the similarity at the judged outputs falls
    below the threshold, the layer is raised again for the rest of the search. If not, the layer stays reduced. Early
    layers use up the tolerance, so late layers tend to stay higher.

    The result is the set of groups that stay higher.
    """
    raised = frozenset(search.candidates)
    for name in group_order:
        evaluation = yield from search.evaluate(raised - {name}, name)
        search.reduction_steps.append(ReductionStep(name, evaluation.value_text, not evaluation.passes))
        if evaluation.passes:
            raised = raised - {name}
    search.fixed_groups = raised
    return raised


SEARCH_METHODS: dict[str, Callable[[Search], Trials[frozenset[str]]]] = {
    "auto": run_auto_method,
    "greedy": raise_groups_greedily,
    "bisect": lambda search: bisect_raised_prefix(search, search.candidates),
    "bisect-reverse": lambda search: bisect_raised_prefix(search, search.candidates[::-1]),
    "linear": lambda search: raise_growing_prefix(search, search.candidates),
    "linear-reverse": lambda search: raise_growing_prefix(search, search.candidates[::-1]),
    "worst-first": lambda search: raise_growing_prefix(search, search.order_by_expected_effect()),
    "scoped": lambda search: reduce_groups_in_order(search, search.candidates),
    "lower": lambda search: reduce_groups_in_order(
        search, sorted(search.candidates, key=lambda name: -search.costs.get(name, 0.0))
    ),
}
"""The search methods by the names on the command line. Each returns the raised groups."""


# -- passes after a method --------------------------------------------------------------------------------------------


def revert_unneeded_groups(search: Search, raised_groups: frozenset[str]) -> Trials[frozenset[str]]:
    """Returns raised fusion groups to their lower precision if the tolerance is still met without them.

    The pass takes at most ceil(log2(k)) + k evaluations for a passing set of k groups. Source: backward elimination,
    the second half of forward-backward selection (Zhang, "Adaptive forward-backward greedy algorithm", NIPS 2008).

    First, bisection finds how many of the least suspicious groups can be reverted together. Then each remaining group
    is tried alone, the least suspicious first. If a larger set of raised groups never has a larger error, no single
    group of the result can be reverted.
    """
    order = [name for name in reversed(search.order_by_expected_effect()) if name in raised_groups]
    count = yield from bisect_prefix_length(
        order,
        lambda names: search.evaluate(raised_groups.difference(names), names[0] if len(names) == 1 else ""),
        passes=0,
        fails=len(order),
    )  # without all of them the config is the start, which fails
    raised = raised_groups.difference(order[:count])
    for name in order[count:]:
        if (len(raised) > 1 or search.chosen_ranges or search.zero_cost_sets) and (
            yield from search.evaluate(raised - {name}, name)
        ).passes:
            raised = raised - {name}
    return raised


def swap_raised_groups(search: Search, raised_groups: frozenset[str]) -> Trials[frozenset[str]]:
    """Replaces two raised fusion groups by another one, again and again, while the tolerance is still met.

    The start must be a set that passes. An exchange takes at most 16 evaluations and a `revert_unneeded_groups` pass.

    Source: local search by swaps (Teitz and Bart, "Heuristic methods for estimating the generalized vertex median of a
    weighted graph", 1968). The groups with the smallest loss are reverted. Other groups replace them in the order of
    suspicion. A swap is tried only if the expected gain compensates for the more costly of the groups that it reverts.
    """
    smaller: frozenset[str] | None = raised_groups
    while smaller is not None:
        raised_groups = yield from revert_unneeded_groups(search, smaller)
        smaller = yield from _find_smaller_set_by_swap(search, raised_groups)
    return raised_groups


def _find_smaller_set_by_swap(search: Search, raised_groups: frozenset[str]) -> Trials[frozenset[str] | None]:
    """Returns a set that meets the tolerance and in which one new group replaces two; None if no such set is found."""
    now = yield from search.evaluate(raised_groups)
    losses: dict[str, float] = {}  # the increase of the loss without each group alone
    for name in now.raised_groups:
        evaluation = yield from search.evaluate(raised_groups - {name}, name)
        losses[name] = evaluation.comparable_loss - now.comparable_loss
    pairs = sorted(
        combinations(sorted(losses, key=lambda name: losses[name])[: MAX_SWAPPED_PAIRS + 1], 2),
        key=lambda pair: losses[pair[0]] + losses[pair[1]],
    )
    for pair in pairs[:MAX_SWAPPED_PAIRS]:
        for name in search.order_by_expected_effect(raised_groups)[:MAX_SWAP_CANDIDATES]:
            if GAIN_MARGIN * search.expected_loss_reduction(name, now) < max(losses[member] for member in pair):
                break
            tried = raised_groups.difference(pair) | {name}
            if search.is_within_budget(tried) and (yield from search.evaluate(tried, name)).passes:
                return tried
    return None


def assign_intermediate_precisions(search: Search, raised_groups: frozenset[str]) -> Trials[None]:
    """Tries intermediate precisions of the raised fusion groups.

    The set of raised groups is already fixed, with the highest precision. Each intermediate precision, the lowest
    first, takes as many of the least suspicious groups as can have it together, which bisection finds. Then each
    remaining group is tried alone.

    The pass takes at most ceil(log2(k + 1)) + k evaluations for each precision and k groups. TF32 takes one evaluation:
    as a setting of the whole engine it applies to all remaining groups or to none.
    """
    space, settled = search.search_space, dict[str, Precision]()

    def evaluate(names: Sequence[str], precision: Precision) -> Trials[Evaluation]:
        return search.evaluate(
            raised_groups,
            names[0] if len(names) == 1 else "",
            precisions={**settled, **dict.fromkeys(names, precision)},
        )

    for precision in space.intermediate:
        rest = space.sort_candidates_in_network_order(raised_groups - settled.keys())
        if precision is Precision.TF32:
            if any(space.network.get_group(name).qdq_sites_of_multiplied_inputs() for name in rest):
                evaluation = yield from search.evaluate(
                    raised_groups, precisions={**settled, **dict.fromkeys(rest, precision)}
                )
                settled |= dict.fromkeys(rest if evaluation.passes else (), precision)
            continue
        names = [
            name
            for name in reversed(search.order_by_expected_effect())
            if name in rest and precision in space.intermediate_precisions(name)
        ]
        count = len(names)
        if names and not (yield from evaluate(names, precision)).passes:
            count = yield from bisect_prefix_length(
                names, partial(evaluate, precision=precision), passes=0, fails=count
            )
        settled |= dict.fromkeys(names[:count], precision)
        for name in names[count + 1 :]:  # bisection has shown that the first group behind them fails
            if (yield from evaluate((name,), precision)).passes:
                settled[name] = precision
