"""The search for raised groups as an object: it proposes the next config to evaluate and receives the result.

One `Search` runs one strategy, then the `revert_unneeded_groups` pass. It stores all evaluations, so no config is
evaluated twice: a repeated trial of a strategy is answered from the stored evaluations. Strategies depend only on these
answers. A search is therefore resumed from a list of evaluations by running the strategy again until it requests a new
config. A stricter criterion takes effect in the same way.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from trt_tui.core.measure.results import ErrorShare, GroupErrors
from trt_tui.core.measure.target_outcome import TargetResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.search import strategies
from trt_tui.core.search.ranking import GroupRanking, choose_ranking
from trt_tui.core.search.refinement import assign_intermediate_precisions, revert_unneeded_groups
from trt_tui.core.search.space import SearchSpace
from trt_tui.core.search.strategy_protocol import (
    Evaluation,
    ReductionStep,
    Strategy,
    StrategyContext,
    Trial,
    TrialKey,
)
from trt_tui.core.search.zero_cost_passes import RANGES_STEP, try_changes_without_cost
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, mark_figures_as_simulated, milliseconds_text

T = TypeVar("T")

SEARCH_METHODS: dict[str, Callable[[StrategyContext], Strategy]] = {
    "auto": strategies.run_auto_strategy,
    "greedy": strategies.raise_groups_greedily,
    "bisect": strategies.bisect_from_first_layers,
    "bisect-reverse": strategies.bisect_from_last_layers,
    "linear": strategies.raise_from_first_layers,
    "linear-reverse": strategies.raise_from_last_layers,
    "worst-first": strategies.raise_worst_groups_first,
    "scoped": strategies.reduce_in_network_order,
    "lower": strategies.reduce_slowest_groups_first,
}
"""The search strategies by the names on the command line."""

TOP_DOWN_METHODS = ("scoped", "lower")
"""The methods that begin with all groups raised; see `trt_tui.core.search.strategies`."""


QDQ_STEP, REVERT_STEP = "Q/DQ", "revert"
"""The steps that take unused Q/DQ out of the result, and that revert raised groups."""


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
        reduction_steps: The trials of a strategy of `trt_tui.core.search.strategies`, in their order.
    """

    config: PrecisionConfig
    best_evaluation: Evaluation | None
    outcome: SearchOutcome
    is_met: bool
    raise_reasons: Mapping[str, str]
    evaluation_count: int
    summary: str
    reduction_steps: tuple[ReductionStep, ...] = ()


class Search:
    """A search for the groups to raise: it proposes configs, receives their results, and reports the best config so
    far.

    Args:
        method_name: A name in `SEARCH_METHODS`.
        sensitivities: Error shares or sensitivities of the groups in the start config, by group name.
        errors_by_group: Errors at the groups. The ranking is based on them if there are no sensitivities.
        ranking: The ranking to use instead of the best ranking that sensitivities and errors allow.
        ranges: Ranges to try before groups are raised: amax by tensor and range method.
        max_raised: Budget: the maximum number of groups above their defaults, including those of the start config.
        max_latency: Budget in the unit of ``estimate_latency``.
        estimate_latency: Function that estimates the latency of a config.
        margins: The lowest passing score of each tolerance. The criterion itself must be met too.
        earlier_evaluations: Earlier evaluations in the same search space, under the same criterion.
        reverts_unneeded: True runs the passes that revert unneeded groups.
        costs: The ``group_costs`` of `StrategyContext`.
        ranges_ranking: The ranking by which other ranges are tried; that of the groups by default.

    Raises:
        InputError: The method is unknown, or a budget cannot be used.
    """

    def __init__(
        self,
        search_space: SearchSpace,
        *,
        method_name: str = "auto",
        sensitivities: Mapping[str, ErrorShare] | None = None,
        errors_by_group: Mapping[str, GroupErrors] | None = None,
        ranking: GroupRanking | None = None,
        ranges: Mapping[str, Mapping[str, float]] | None = None,
        max_raised: int | None = None,
        max_latency: float | None = None,
        estimate_latency: Callable[[PrecisionConfig], float] | None = None,
        margins: Sequence[float] = (),
        earlier_evaluations: Sequence[Evaluation] = (),
        reverts_unneeded: bool = True,
        costs: Mapping[str, float] | None = None,
        ranges_ranking: GroupRanking | None = None,
    ) -> None:
        if method_name not in SEARCH_METHODS:
            raise InputError(f"unknown search method {method_name!r}", "",
                             f"Choose from {', '.join(SEARCH_METHODS)}.")
        if max_latency is not None and estimate_latency is None:
            raise InputError("a latency budget needs a latency", "no latency was measured or can be estimated here",
                             "Use --max-fp32, or a backend that times what it builds.")
        if max_raised is not None and max_raised < len(search_space.groups_raised_at_start):
            raise InputError(f"a budget of {max_raised} layers is used before the search starts",
                             f"the start raises {len(search_space.groups_raised_at_start)} already",
                             "Increase --max-fp32, or reduce layers in the start.")
        self.search_space = search_space
        self.method_name = method_name
        self.margins = tuple(margins)
        self.estimate_latency = estimate_latency
        self.max_raised = max_raised
        self.max_latency = max_latency
        self.reverts_unneeded = reverts_unneeded
        self.costs = dict(costs or {})
        self._ranges_ranking = ranges_ranking
        self.sensitivities = dict(sensitivities or {})
        self.ranges_by_method = {tensor: dict(methods) for tensor, methods in (ranges or {}).items()}
        self.ranking = ranking or choose_ranking(search_space.candidates, self.sensitivities, errors_by_group)
        self.evaluations: list[Evaluation] = []
        self._current_trial: Trial | None = None
        self._evaluations_by_key: dict[TrialKey, Evaluation] = {}
        self._latencies: dict[tuple[frozenset[str], tuple[tuple[str, Precision], ...]], float] = {}
        for evaluation in earlier_evaluations:
            self._store_evaluation(evaluation)
        self._restart_strategy()

    # -- proposals and results ------------------------------------------------------------------------------------

    def propose_config(self) -> PrecisionConfig | None:
        """Returns the next config to evaluate; None if the search is finished.

        The config stays the same until `record_target_result` is called.
        """
        return None if self._current_trial is None else self.build_config(self._current_trial)

    @property
    def current_trial(self) -> Trial | None:
        """The proposed config as a difference from the start config; None if the search is finished."""
        return self._current_trial

    def record_target_result(self, target_result: TargetResult) -> Evaluation:
        """Stores the result of the proposed config, continues the search and returns the evaluation."""
        trial = self._current_trial
        if trial is None:
            raise ValueError("nothing was requested")
        evaluation = Evaluation(self.search_space.sort_candidates_in_network_order(trial.raised_groups), target_result,
                                dict(trial.range_moves or {}), trial.group, trial.step_name,
                                precisions=dict(trial.precisions), zero_cost_sets=trial.zero_cost_sets or ())
        evaluation = self._store_evaluation(evaluation)
        self._advance_strategy(evaluation)
        return evaluation

    def propose_qdq_removal(self, set_name: str) -> None:
        """Proposes the best config of the finished search without the unused Q/DQ of a set of the search space.

        The removal raises nothing, so of two configs that meet the tolerance with the same raised groups,
        `best_evaluation` is the one with the higher score.
        """
        best = self.best_evaluation
        if best is None or self._current_trial is not None:
            raise ValueError("the search is not finished")
        self._trials = self._run_qdq_steps(replace(best.trial, step_name=QDQ_STEP,
                                                   zero_cost_sets=(*best.zero_cost_sets, set_name)))
        self._advance_strategy(None)

    def require_score_margins(self, required_margins: Sequence[float]) -> None:
        """Continues the search with a stricter criterion: each score must be at least its margin.

        No config is evaluated again, but latencies are estimated again.
        """
        self.margins = tuple(required_margins)
        self._latencies.clear()
        earlier_evaluations, self.evaluations, self._evaluations_by_key = self.evaluations, [], {}
        for evaluation in earlier_evaluations:
            self._store_evaluation(evaluation)
        self._restart_strategy()

    def copy(self) -> Search:
        """Returns an independent copy of the search in the same state."""
        copied_search = copy.copy(self)
        copied_search.evaluations, copied_search._evaluations_by_key = list(self.evaluations), dict(
            self._evaluations_by_key)
        copied_search._restart_strategy()
        return copied_search

    def _store_evaluation(self, evaluation: Evaluation) -> Evaluation:
        if evaluation.config_key not in self._evaluations_by_key:
            if self.estimate_latency is not None:
                evaluation = replace(
                    evaluation, estimated_latency=self._estimate_latency(frozenset(evaluation.raised_groups),
                                                                         evaluation.precisions))
            self._evaluations_by_key[evaluation.config_key] = evaluation
            self.evaluations.append(evaluation)
        return self._evaluations_by_key[evaluation.config_key]

    def _restart_strategy(self) -> None:
        self.outcome = SearchOutcome.SEARCHING
        self.context = StrategyContext(self.search_space.candidates, self.ranking, self._are_groups_within_budget,
                                       group_costs=self.costs, ranges_ranking=self._ranges_ranking or self.ranking)
        self._trials = self._run_search_steps()
        self._advance_strategy(None)

    def _advance_strategy(self, evaluation: Evaluation | None) -> None:
        """Continues the strategy until it requests a config without a stored evaluation."""
        while True:
            try:
                trial = next(self._trials) if evaluation is None else self._trials.send(
                    evaluation.with_required_margins(self.margins))
            except StopIteration:
                self._current_trial = None
                return
            ranges = self.context.chosen_ranges if trial.range_moves is None else trial.range_moves
            free = self.context.zero_cost_sets if trial.zero_cost_sets is None else trial.zero_cost_sets
            self._current_trial = replace(trial, range_moves=dict(ranges), zero_cost_sets=free)
            evaluation = self._evaluations_by_key.get(self._current_trial.config_key)
            if evaluation is None:
                return

    # -- the steps of a search ------------------------------------------------------------------------------------

    def _run_search_steps(self) -> Generator[Trial, Evaluation, None]:
        context, all_candidates = self.context, frozenset(self.search_space.candidates)
        context.start_evaluation = yield Trial(frozenset(), step_name="start")
        is_top_down = self.method_name in TOP_DOWN_METHODS
        if context.start_evaluation.passes and not is_top_down:  # further raised groups would only cost time
            self.outcome = SearchOutcome.NOTHING_TO_DO if self._are_groups_within_budget(
                frozenset()) else SearchOutcome.SHORT
            return
        full_evaluation = yield Trial(all_candidates, step_name="all raised", zero_cost_sets=())
        if not full_evaluation.passes and not self.has_limited_budget:
            self.outcome = SearchOutcome.UNREACHABLE
            return
        yield from try_changes_without_cost(context, self.search_space, self.ranges_by_method)
        if full_evaluation.passes:
            raised: frozenset[str] = frozenset()
            if not (yield Trial(raised, step_name=RANGES_STEP)).passes or is_top_down:
                raised = yield from _label_trials(SEARCH_METHODS[self.method_name](context), self.method_name)
            if self.reverts_unneeded and not is_top_down:
                raised = yield from _label_trials(revert_unneeded_groups(context, raised), REVERT_STEP)
            yield from _label_trials(assign_intermediate_precisions(context, self.search_space, raised), "rungs")
        if not self._meets_tolerance(self.best_evaluation):
            yield from _label_trials(strategies.raise_groups_within_budget(context), "budget")
        yield from self._revert_one_by_one()
        self.outcome = SearchOutcome.MET if self._meets_tolerance(self.best_evaluation) else SearchOutcome.SHORT

    def _run_qdq_steps(self, trial: Trial) -> Generator[Trial, Evaluation, None]:
        yield trial
        yield from self._revert_one_by_one()

    def _revert_one_by_one(self) -> Generator[Trial, Evaluation, None]:
        """Tries the best config without each of its raised groups, until none of them can be left out.

        The best config need not be the result of the strategy: it is the best of all evaluations. The value without
        each group is the reason why the group is raised.
        """
        context, tried = self.context, None
        while self.reverts_unneeded and (best := self.best_evaluation) is not None and best is not tried:
            tried = best
            for name in best.raised_groups:
                evaluation = yield replace(best.trial_without_group(name), step_name=REVERT_STEP)
                if evaluation.passes and context.fixed_groups == frozenset(best.raised_groups):
                    context.fixed_groups = frozenset(evaluation.raised_groups)
                    context.reduction_steps.append(ReductionStep(name, evaluation.value_text, False))

    @property
    def method_text(self) -> str:
        """The description of the search method for users; for `auto` with the chosen strategy and its reason."""
        return strategies.describe_auto_strategy(self.context) if self.method_name == "auto" else self.method_name

    # -- budgets and results --------------------------------------------------------------------------------------

    @property
    def has_limited_budget(self) -> bool:
        """True if the search has a limit on raised groups or on latency."""
        return self.max_raised is not None or self.max_latency is not None

    def is_within_budget(self, evaluation: Evaluation) -> bool:
        return self._are_groups_within_budget(frozenset(evaluation.raised_groups), evaluation.precisions)

    def _are_groups_within_budget(self, raised_groups: frozenset[str],
                                  precisions: Mapping[str, Precision] | None = None) -> bool:
        if self.max_raised is not None and len(self.search_space.groups_raised_at_start
                                               | raised_groups) > self.max_raised:
            return False
        if self.max_latency is None:
            return True
        latency = self._estimate_latency(raised_groups, precisions or {})
        return latency is None or latency <= self.max_latency

    def _estimate_latency(self, raised_groups: frozenset[str], precisions: Mapping[str, Precision]) -> float | None:
        if self.estimate_latency is None:
            return None
        key = raised_groups, tuple(sorted(precisions.items()))
        if key not in self._latencies:
            self._latencies[key] = self.estimate_latency(
                self.build_config(Trial(raised_groups, precisions=dict(precisions))))
        return self._latencies[key]

    def _meets_tolerance(self, evaluation: Evaluation | None) -> bool:
        return (evaluation is not None and evaluation.with_required_margins(self.margins).passes
                and self.is_within_budget(evaluation))

    def build_config(self, trial: Trial | Evaluation) -> PrecisionConfig:
        return self.search_space.build_config(self.search_space.sort_candidates_in_network_order(trial.raised_groups),
                                              trial.range_moves, f"search:{self.method_name}", trial.precisions,
                                              trial.zero_cost_sets or ())

    @property
    def best_evaluation(self) -> Evaluation | None:
        """The best evaluation of the search so far; None if there is none.

        Evaluations that meet the tolerance within the budgets come first. They are compared by latency if known, then
        by the number of raised groups, their precisions (lower first), and the score. If no evaluation meets the
        tolerance, the best is that with the highest score within the budgets.

        After a strategy of `TOP_DOWN_METHODS`, the raised groups are those that could not be reduced.
        """
        fixed_groups = self.context.fixed_groups
        fixed_evaluations = [
            evaluation for evaluation in self.evaluations
            if frozenset(evaluation.raised_groups) == fixed_groups and self.is_within_budget(evaluation)
        ]
        return min(fixed_evaluations or self.evaluations, key=self._sort_key, default=None)

    def _sort_key(self, evaluation: Evaluation) -> tuple[float, ...]:
        fits = self.is_within_budget(evaluation)
        count, score = len(evaluation.raised_groups), -evaluation.score
        if fits and evaluation.with_required_margins(self.margins).passes:
            height = sum(
                precision_rank(evaluation.precisions.get(name, self.search_space.higher_precision))
                for name in evaluation.raised_groups)
            return 0, evaluation.estimated_latency or 0.0, count, height, score
        return (1, score, count) if fits else (2, count, score)

    @property
    def result(self) -> SearchResult:
        """The best result so far, available at any moment of the search."""
        best_evaluation, is_met = self.best_evaluation, self._meets_tolerance(self.best_evaluation)
        config = self.build_config(best_evaluation) if best_evaluation is not None else self.search_space.start_config
        raise_reasons = {name: self.explain_raised_group(name, best_evaluation)
                         for name in best_evaluation.raised_groups} if best_evaluation is not None else {}
        return SearchResult(config, best_evaluation, self.outcome, is_met, raise_reasons, len(self.evaluations),
                            self._summary_text(best_evaluation, is_met), tuple(self.context.reduction_steps))

    def explain_raised_group(self, group_name: str, evaluation: Evaluation) -> str:
        """Returns the reason why a fusion group of an evaluation is raised: the result without the group.

        If it was not measured, the text names the search method.
        """
        reasons = []
        low = self._evaluations_by_key.get(evaluation.trial_without_group(group_name).config_key)
        if low is not None:
            verb = ("passes" if low.with_required_margins(self.margins).passes else
                    "passes, but without the margin" if low.passes else "fails")
            reasons.append(
                f"without it {_measured_value_text(low)} ({verb}), with it {_measured_value_text(evaluation)}")
        return "; ".join(reasons) or f"raised by {self.method_name}"

    def _summary_text(self, evaluation: Evaluation | None, is_met: bool) -> str:
        if evaluation is None:
            return "nothing was evaluated"
        higher, total = self.search_space.higher_precision.label, len(self.search_space.candidates)
        count, ranges = len(evaluation.raised_groups), evaluation.count_used_ranges(self.build_config(evaluation))
        value_text = _measured_value_text(evaluation)
        changed = [f"{count} of {total} groups in {higher}"
                   ] if count or not (ranges or evaluation.zero_cost_sets) else []
        if evaluation.precisions:
            changed = ([
                f"{count} of "
                f"{total} groups raised, {evaluation.raised_group_counts_text(self.search_space.higher_precision)},"
            ])
        changed += evaluation.zero_cost_sets
        changed += [f"{counted_noun_text(ranges, 'other range')}"] if ranges else []
        first = ", ".join(text.rstrip(",") for text in changed[:-1])
        set_so = f"{first} and {changed[-1]}" if first else changed[-1]
        verb = "s" if ranges + len(evaluation.zero_cost_sets) == 1 and not count else ""
        margins = [f"{margin:.2g}" for margin in self.margins if math.isfinite(margin)]
        beyond = f" (with a margin of {' and '.join(margins)})" if margins else ""
        if self.outcome is SearchOutcome.NOTHING_TO_DO:
            return f"the start already meets the tolerance: {value_text}"
        full_evaluation = next((text for text in self.evaluations if len(text.raised_groups) == total), None)
        if self.outcome is SearchOutcome.UNREACHABLE and full_evaluation is not None and not is_met:
            return (
                f"the "
                f"tolerance{beyond} cannot be met, even with all "
                f"{total} groups in {higher}: {_measured_value_text(full_evaluation)}"
            )
        if is_met:
            summary = f"{set_so} meet{verb} the tolerance{beyond}: {value_text}"
            if self.max_latency is not None and evaluation.estimated_latency is not None:
                summary += f", about {milliseconds_text(evaluation.estimated_latency)}"
        elif not self.is_within_budget(evaluation):
            summary = f"no config stays within the budget: {set_so}: {value_text}"
            if evaluation.estimated_latency is not None:
                summary += f", about {milliseconds_text(evaluation.estimated_latency)}"
        else:
            summary = f"tolerance{beyond} not met with {set_so}: {value_text}"
            if full_evaluation is not None and not full_evaluation.with_required_margins(self.margins).passes:
                summary += f"; even with all {total}: {_measured_value_text(full_evaluation)}"
        if self.outcome is SearchOutcome.SEARCHING:
            summary += "; the search has not finished"
        return summary


def _measured_value_text(evaluation: Evaluation) -> str:
    return mark_figures_as_simulated(evaluation.target_result.value_text) or f"score {evaluation.score:+.3g}"


def _label_trials(trials: Generator[Trial, Evaluation, T], step_name: str) -> Generator[Trial, Evaluation, T]:
    """Yields the trials of a search step, labelled with the name of the step."""
    try:
        trial = next(trials)
        while True:
            trial = trials.send((yield trial if trial.step_name else replace(trial, step_name=step_name)))
    except StopIteration as stop:
        result: T = stop.value
        return result
