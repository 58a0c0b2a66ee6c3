"""The search as a job: the search proposes configs, an evaluator measures them, and engines confirm the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from trt_tui.core.engines.preview import Preview
from trt_tui.core.measure.results import Accuracy, Caveat, ExportedResult, ExportedRun
from trt_tui.core.measure.shares import GroupSensitivity
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_outcome import (
    HeldOutResult,
    Outcome,
    TargetOutcome,
    TargetResult,
    check_targets,
    judge_accuracy,
)
from trt_tui.core.measure.unused_qdq import PREVIEW_REASON, QdqRemoval
from trt_tui.core.measure.zero_cost_kind import TrialBudget, ZeroCostKind
from trt_tui.core.measure.zero_cost_kinds import list_searched_stages
from trt_tui.core.moves.config import MoveKey, PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.network.known_defects import match_known_defects
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.core.network.target_release import BuildTarget
from trt_tui.core.search import TOP_DOWN_METHODS, Evaluation, Search, SearchSpace, predict_next_configs
from trt_tui.core.search.pareto import pareto_front
from trt_tui.core.search.ranking import GroupRanking
from trt_tui.core.search.space import find_added_moves
from trt_tui.core.search.strategy_protocol import TrialKey, ZeroCostEffort
from trt_tui.core.search.zero_cost_passes import ALONE_STEP, COMBINED_STEP, MIN_ERROR_SHARE, RANGES_STEP
from trt_tui.errors import CancelledError, InputError, TrtTuiError
from trt_tui.formatting import milliseconds_text, name_list_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.check_command import CheckResult
from trt_tui.jobs.search_builds import EngineProvider, SearchBuilds, config_without_ranges
from trt_tui.jobs.steps import Steps
from trt_tui.jobs.triage import EngineErrorProvider, EngineTriage, engine_gap_text, is_unexplained_gap
from trt_tui.jobs.zero_cost_moves import remove_previewed_qdq

MAX_EXPORT_ROUNDS = 4
"""The maximum number of times that a search continues because the exported file of its result misses the target."""

_MISSES_TOLERANCE = "because the result would miss the tolerance"

STEPS_WITHOUT_RANKING = ("start", "all raised")
"""The first steps of a search, which show if there is anything to find. They need no ranking of the groups."""


class SearchEvaluator(EngineErrorProvider, EngineProvider, Protocol):
    """The measurements that a search requests.

    Attributes:
        can_build: True if engines can run here.
        has_check: True if the user has given a command that accepts or rejects configs.
    """

    can_build: bool
    has_check: bool

    def measure_accuracy(self, config: PrecisionConfig) -> Steps[Accuracy]:
        """Returns the complete accuracy of a config at the judged outputs."""

    def measure_accuracies_in_parallel(
            self, choose_configs: Callable[[int, float], Sequence[PrecisionConfig]]) -> Steps[None]:
        """Measures the requested config in parallel with configs that may be requested next, if there are workers.

        Args:
            choose_configs: A function that returns up to a number of configs within a number of seconds, the requested
                config first.
        """

    def measure_candidate_times(self, search_space: SearchSpace) -> Mapping[str, float]:
        """Returns the time in ms of each candidate in the engine with all candidates raised.

        The result is empty if there is no such engine, or its layers were not timed.
        """

    def count_candidate_macs(self, search_space: SearchSpace) -> Mapping[str, float]:
        """Returns the multiply-accumulates of each candidate; 0 if they are unknown."""

    def measure_sensitivities(self, config: PrecisionConfig,
                              group_names: Sequence[str]) -> Steps[Mapping[str, GroupSensitivity]]:
        """Returns the sensitivities of some groups of a config, by name."""

    def propose_zero_cost_moves(self, config: PrecisionConfig, kinds: Sequence[ZeroCostKind],
                                budget: TrialBudget) -> Mapping[str, PrecisionConfig]:
        """Returns the configs with further zero-cost moves of some kinds, by the label of the moves.

        Args:
            budget: The budget of the configs that are simulated to measure the moves.
        """

    def report_zero_cost_budget(self, effort: ZeroCostEffort) -> None:
        """Reports the budget of the zero-cost changes and its predicted time, before they are measured."""

    def measure_alternative_ranges(self, groups: Sequence[FusionGroup],
                                   config: PrecisionConfig) -> Mapping[str, Mapping[str, float]]:
        """Returns ranges (amax) other than the calibrated ones for the quantized tensors of some groups, by tensor and
        method."""

    def execute_exported_file(self, config: PrecisionConfig) -> Steps[ExportedRun]:
        """Executes the exported file of a config on the samples of the search. Returns the result."""

    def preview_config(self, config: PrecisionConfig) -> Steps[Preview | None]:
        """Returns the preview of a config; None if no preview is possible here."""

    def preview_engine(self, config: PrecisionConfig) -> Steps[Preview | None]:
        """Returns the preview of a config with the effects of its moves; None if no preview is possible here."""

    def run_check_command(self, config: PrecisionConfig) -> Steps[CheckResult]:
        """Runs the user's check command on a config."""

    def report_progress(self, search_job: SearchJob, must_send: bool = False) -> None:
        """Reports the progress of a search before each evaluation and before each build.

        Args:
            must_send: True before a build, to send the progress even if it was just sent.
        """


class SearchJob:
    """One search, from the first evaluation to the confirmation by an engine.

    Args:
        targets: The tolerances, with their baselines.
        target: The release and the GPU that engines are built for; None if they are unknown.

    Raises:
        InputError: An option has no meaning for this network (`trt_tui.core.search.Search` and `SearchSpace`).
    """

    def __init__(self, network: Network, request: rq.FindMixedPrecisionConfig, targets: Sequence[Target],
                 evaluator: SearchEvaluator, target: BuildTarget | None = None) -> None:
        if not targets and not evaluator.has_check:
            raise InputError("a search needs a tolerance", "", "Give --tolerance, or --check.")
        self._target = target = target or BuildTarget()
        self.network, self.request, self.targets, self.evaluator = network, request, tuple(targets), evaluator
        self.search_space = SearchSpace(
            network, request.config, request.higher_precision, request.intermediate_precisions,
            fixed_groups=frozenset(request.fixed_groups))
        self.sensitivities: Mapping[str, GroupSensitivity] = {}
        self.costs = evaluator.count_candidate_macs(self.search_space)
        self.search_builds = SearchBuilds(evaluator, lambda: self.targets,
                                          lambda: evaluator.report_progress(self, must_send=True))
        self.estimate_latency: Callable[[PrecisionConfig], float] | None = None
        self._use_preview = request.use_preview
        self._can_triage = True
        self._max_judging_s = 0.0
        self._zero_cost_effort = ZeroCostEffort()
        self._ranges_ranking: GroupRanking | None = None
        self._before_withdrawal: tuple[SearchSpace, Search] | None = None
        self.confirmed: bool | None = None
        self.exported_result: ExportedResult | None = None
        self._engine_values_text = ""
        self._missed_checks: dict[TrialKey, str] = {}
        self._export_rounds = 0
        self.remarks: list[str] = []
        self._check_results: dict[PrecisionConfig, CheckResult] = {}
        self.qdq_removals: list[QdqRemoval] = []
        # An impossible search is refused before any measurement.
        has_latency_budget = request.max_latency is not None and evaluator.can_build
        if has_latency_budget and request.max_builds < 2:
            raise InputError("a latency budget needs engines", "latencies are estimated from two of them, at least",
                             "Raise --max-builds, or use --max-fp32.")
        self.search = self._make_search(
            estimate_latency=(lambda config: 0.0) if has_latency_budget else self.estimate_latency)

    def _make_search(self, evaluations: Sequence[Evaluation] = (),
                     estimate_latency: Callable[[PrecisionConfig], float] | None = None,
                     ranges: Mapping[str, Mapping[str, float]] | None = None, margins: Sequence[float] = ()) -> Search:
        request = self.request
        return Search(self.search_space, method_name=request.method, costs=self.costs, sensitivities=self.sensitivities,
                      ranges=ranges, max_raised=request.max_raised, max_latency=request.max_latency,
                      estimate_latency=estimate_latency, earlier_evaluations=evaluations, margins=margins,
                      ranges_ranking=self._ranges_ranking)

    def run_search_steps(self) -> Steps[None]:
        """Runs the search. `make_progress_event` and `make_end_event` report its state at any time."""
        yield from self._remove_unused_qdq_of_start()
        if self.request.max_latency is not None:
            yield from self._prepare_latency_estimates()
        if self.request.method == "lower":
            yield from self._order_groups_by_cost()
        is_going_on = True
        while is_going_on:
            yield from self._evaluate_proposed_configs(STEPS_WITHOUT_RANKING)
            if self.search.current_trial is not None and not self.sensitivities and self._needs_group_ranking:
                if self.request.try_zero_cost or self.request.try_ranges:
                    yield from self._try_changes_without_cost()
                if self.search.current_trial is not None:
                    yield from self._rank_groups_by_sensitivity()
            yield from self._evaluate_proposed_configs()
            is_going_on = yield from self._withdraw_ineffective_raises()
            if not is_going_on:
                yield from self._remove_unused_qdq_of_result()
                is_going_on = (yield from self._check_exported_file()) or (yield from self._confirm_with_engine())

    @property
    def _needs_group_ranking(self) -> bool:
        """True if this search uses the sensitivities of groups."""
        request = self.request
        return request.method not in TOP_DOWN_METHODS or request.try_zero_cost or request.try_ranges

    def _evaluate_proposed_configs(self, step_names: Sequence[str] = ()) -> Steps[None]:
        """Measures the configs that the search proposes. If ``step_names`` are given, only configs of these steps are
        measured."""
        while (config := self.search.propose_config()) is not None and (
                candidate := self.search.current_trial) is not None and (not step_names
                                                                         or candidate.step_name in step_names):
            self.evaluator.report_progress(self)
            yield from self.evaluator.measure_accuracies_in_parallel(
                partial(predict_next_configs, self.search, step_names=step_names))
            start_time = time.monotonic()
            self.search.record_target_result((yield from self._judge_config(config)))
            self._max_judging_s = max(self._max_judging_s, time.monotonic() - start_time)

    def _judge_config(self, config: PrecisionConfig) -> Steps[TargetResult]:
        """Returns the result of a config against the tolerances and the user's check command."""
        target_result = self._check_targets((yield from self.evaluator.measure_accuracy(config)))
        if not self.evaluator.has_check:
            return target_result
        check_result = yield from self.evaluator.run_check_command(config)
        self._check_results[config] = check_result
        check_text = f"{target_result.value_text}, {check_result.text}" if self.targets else check_result.text
        return replace(target_result, passes=target_result.passes and check_result.passes, value_text=check_text,
                       measured_outcome=_combine_with_check(target_result.target_outcome, check_result))

    def _check_targets(self, accuracy: Accuracy) -> TargetResult:
        if self.targets:
            return check_targets(self.targets, accuracy)
        is_broken = accuracy.nonfinite_count > 0 or any(caveat.fails_run for caveat in accuracy.caveats)
        energy = accuracy.judged_error if accuracy.judged_error is not None and not is_broken else math.inf
        score = math.inf if energy == 0 else -10 * math.log10(energy) if math.isfinite(energy) else -math.inf
        return TargetResult(not is_broken, score, accuracy, energy)

    def _try_changes_without_cost(self) -> Steps[None]:
        """Tries zero-cost moves and other ranges stage by stage, each stage for the config with the accepted changes of
        earlier stages.

        The other ranges belong to the first stage. Their order needs the sensitivities of the groups, which are
        measured only if no set of the first stage meets the tolerance alone.
        """
        start_time = time.monotonic()
        stages = list_searched_stages() if self.request.try_zero_cost else [()]
        effort = replace(self.search.context.zero_cost_effort,
                         predicted_s=self._max_judging_s * self.search.context.zero_cost_effort.budget)
        if self.request.try_zero_cost or self.request.try_ranges:
            self.evaluator.report_zero_cost_budget(effort)
        for index, kinds in enumerate(stages):
            if self.search.current_trial is None:
                break
            effort = self._propose_stage(kinds, effort)
            yield from self._evaluate_proposed_configs((ALONE_STEP,))
            if index == 0 and self.request.try_ranges and self.search.current_trial is not None:
                yield from self._measure_alternative_ranges()
            yield from self._evaluate_proposed_configs((ALONE_STEP, RANGES_STEP, COMBINED_STEP))
        self._zero_cost_effort = replace(effort, seconds=time.monotonic() - start_time)

    def _propose_stage(self, kinds: Sequence[ZeroCostKind], effort: ZeroCostEffort) -> ZeroCostEffort:
        """Adds the sets of zero-cost moves of a stage to the search.

        At most half of the configs that the budget still allows are simulated to measure the sets, so that the others
        can try them.

        Returns:
            The effort with the kinds that the budget left unmeasured, or measured in part.
        """
        spent = self.search.context.zero_cost_effort
        budget = TrialBudget((spent.budget - spent.evaluations) // 2)
        start = self.search_space.build_config((), self.search.context.chosen_ranges,
                                               zero_cost_set_names=self.search.context.zero_cost_sets)
        new_moves: dict[str, Mapping[MoveKey, Move]] = {}
        for kind in kinds:
            budget.is_exceeded = False
            proposals = self.evaluator.propose_zero_cost_moves(start, [kind], budget) if spent.has_budget else {}
            new_moves |= {name: find_added_moves(self.network, start, config) for name, config in proposals.items()}
            if not spent.has_budget or budget.is_exceeded and not proposals:
                effort = replace(effort, unmeasured_kinds=(*effort.unmeasured_kinds, kind.title))
            elif budget.is_exceeded:
                effort = replace(effort, is_exhausted=True)
        self.search_space = replace(
            self.search_space, zero_cost_stages=(*self.search_space.zero_cost_stages, new_moves),
            stage_evaluation_counts=(*self.search_space.stage_evaluation_counts, budget.used))
        self._remake_search()
        return effort

    def _remake_search(self, ranges: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Makes the search anew from what is known now. Earlier evaluations stay.

        Args:
            ranges: Other ranges by tensor and method; None for those of the search before.
        """
        self.search = self._make_search(self.search.evaluations, self.estimate_latency,
                                        self.search.ranges_by_method if ranges is None else ranges, self.search.margins)

    def _measure_alternative_ranges(self) -> Steps[None]:
        """Measures the sensitivity of each group of the start config, and other ranges for the groups with the largest
        shares."""
        start = self.search_space.start_config
        yield from self._measure_sensitivities(start)
        self._ranges_ranking = ranking = self.search.ranking
        groups = [self.network.get_group(name) for name in ranking.candidate_order
                  if not ranking.expected_shares or ranking.expected_shares.get(name, 0.0) >= MIN_ERROR_SHARE]
        groups = [group for group in groups if any(
            site.tensor not in start.fixed_range_tensors
            for site in group.calibrated_qdq_sites(start.precision_of(group)))]
        if groups:
            self._remake_search(self.evaluator.measure_alternative_ranges(groups, start))

    def _rank_groups_by_sensitivity(self) -> Steps[None]:
        """Measures the sensitivity of each group with the zero-cost moves that were kept."""
        kept_sets = self.search.context.zero_cost_sets
        if kept_sets or not self.sensitivities:
            yield from self._measure_sensitivities(self.search_space.build_config((), zero_cost_set_names=kept_sets))

    def _measure_sensitivities(self, config: PrecisionConfig) -> Steps[None]:
        self.sensitivities = yield from self.evaluator.measure_sensitivities(config, self.search_space.candidates)
        self._remake_search()

    # -- the exported file ----------------------------------------------------------------------------------------

    def _check_exported_file(self) -> Steps[bool]:
        """Executes the exported file of the result. Returns True if the file misses the target and the search
        continues.

        The search continues with a margin, the difference between the simulation and the exported file. After
        `MAX_EXPORT_ROUNDS`, the result counts as not met as exported. A result that meets the target without the
        required margin is executed too, because its simulation alone would pass.
        """
        result, best = self.search.result, self.search.best_evaluation
        simulated_accuracy = best.target_result.accuracy if best is not None else None
        self.exported_result = None
        if not self.targets or best is None or not best.passes or simulated_accuracy is None:
            return False
        exported_run = yield from self.evaluator.execute_exported_file(result.config)
        accuracy = exported_run.accuracy
        target_outcome = judge_accuracy(self.targets, accuracy) if accuracy is not None else None
        if accuracy is None or target_outcome is None:
            reason = exported_run.missing_reason or "it has no value for this target, which is inside the network"
            self.exported_result = ExportedResult(exported_run.executor_name, None, reason)
            return False
        missed_targets = [target for target in self.targets if not target.is_met_by(accuracy)]
        measured_text = ", ".join(target.measured_value_text(accuracy) for target in missed_targets or self.targets)
        expected_text = ", ".join(
            target.measured_value_text(simulated_accuracy) for target in missed_targets or self.targets)
        self.exported_result = ExportedResult(exported_run.executor_name, target_outcome.outcome.passes, measured_text,
                                              expected_text)
        if not target_outcome.outcome.passes:
            self._missed_checks[best.config_key] = (
                f"the exported network yields {measured_text} in {exported_run.executor_name}")
        if target_outcome.outcome.passes or not result.is_met or self._export_rounds >= MAX_EXPORT_ROUNDS:
            return False
        margins = list(self.search.margins or [-math.inf] * len(self.targets))
        for index, target in enumerate(self.targets):
            gap = _target_score_gap(target, simulated_accuracy, accuracy)
            if target in missed_targets and not math.isfinite(gap):
                return False
            if target in missed_targets:
                margins[index] = max(gap, margins[index])
        self._export_rounds += 1
        margins_text = " and ".join(f"{margin:.2g}" for margin in margins if math.isfinite(margin))
        self.remarks.append(
            f"the exported network with {len(result.config.find_raised_groups(self.network))} raised yields "
            f"{measured_text} in {exported_run.executor_name} "
            f"where {expected_text} was simulated; went on with a margin of {margins_text}")
        self.search.require_score_margins(margins)
        return True

    # -- unused Q/DQ ----------------------------------------------------------------------------------------------

    def _remove_unused_qdq_of_start(self) -> Steps[None]:
        """Takes unused Q/DQ out of the start config before anything is raised.

        Without them the error is smaller at no cost, so that fewer groups need a higher precision.
        """
        start = self.search_space.start_config
        removal = yield from self._plan_qdq_removal(start)
        if removal is None:
            return
        names = frozenset(unused.group_name for unused in removal.groups)
        try:
            search_space = replace(self.search_space, start_config=removal.config, unquantized_groups=names)
        except InputError:  # no other group can be raised
            return
        before, after = (yield from self._judge_config(start)), (yield from self._judge_config(removal.config))
        needs_all_raised = self.request.max_latency is not None or self.request.method == "lower"
        builds_needed_later = 2 if needs_all_raised else 1
        removal = yield from self._judge_qdq_removal(removal, start, before, after, builds_needed_later)
        self.qdq_removals.append(removal)
        if not removal.rejection:
            self.search_space = search_space
            self.costs = self.evaluator.count_candidate_macs(self.search_space)
            self.search = self._make_search(estimate_latency=self.search.estimate_latency)

    def _remove_unused_qdq_of_result(self) -> Steps[None]:
        """Takes Q/DQ out of the result that are unused only because groups were raised."""
        result, best = self.search.result, self.search.best_evaluation
        if not result.is_met or best is None or result.config == self.search_space.start_config:
            return
        removal = yield from self._plan_qdq_removal(result.config)
        if removal is None:
            return
        precisions = {unused.group_name: unused.implemented for unused in removal.groups}
        name = f"Q/DQ out of {name_list_text([*precisions], 2)}"
        while self.search_space.qdq_removals.get(name, precisions) != precisions:
            name += " again"
        search_space = replace(self.search_space, qdq_removals={**self.search_space.qdq_removals, name: precisions})
        after = yield from self._judge_config(removal.config)
        removal = yield from self._judge_qdq_removal(removal, result.config, best.target_result, after, 0)
        if not removal.rejection:
            self.search_space = self.search.search_space = search_space
            self.search.propose_qdq_removal(name)
            self.search.record_target_result(after)
            if self.search.result.config != removal.config:
                removal = replace(removal, rejection=_MISSES_TOLERANCE)
        self.qdq_removals.append(removal)
        yield from self._evaluate_proposed_configs()

    def _plan_qdq_removal(self, config: PrecisionConfig) -> Steps[QdqRemoval | None]:
        """Returns the removal of the unused Q/DQ of a config as far as previews show it.

        None if no Q/DQ can be taken out, no preview is possible here, or this removal was tried before. Groups whose
        Q/DQ had to stay are not tried again.
        """
        fixed_reasons = dict.fromkeys(self.request.fixed_groups, "fixed for this search") | {
            unused.group_name: removal.rejection
            for removal in self.qdq_removals if removal.rejection
            for unused in removal.groups}
        preview = (yield from self.evaluator.preview_config(config)) if self._use_preview else None
        if preview is None:
            return None
        removal = yield from remove_previewed_qdq(self.network, config, preview, self.evaluator.preview_config,
                                                  fixed_reasons)
        is_tried = any(removal.config == earlier.config for earlier in self.qdq_removals)
        return removal if removal.groups and not is_tried else None

    def _judge_qdq_removal(self, removal: QdqRemoval, config: PrecisionConfig, before: TargetResult,
                           after: TargetResult, builds_needed_later: int) -> Steps[QdqRemoval]:
        """Returns a removal with its accuracies and latencies, and with the reason if it is rejected.

        It is rejected if the error grows, or if an engine is slower without the Q/DQ.

        Args:
            config: The config with the Q/DQ.
            before: The result of this config; ``after`` is the result without the Q/DQ.
            builds_needed_later: Number of builds that stay for the rest of the search.
        """
        if before.accuracy is not None and after.accuracy is not None:
            removal = replace(removal, accuracies=(before.accuracy, after.accuracy))
        if after.comparable_loss > before.comparable_loss:
            return replace(removal, rejection="because the error would grow")
        if before.passes and not after.passes:
            return replace(removal, rejection=_MISSES_TOLERANCE)
        return (yield from self._compare_engine_latencies(removal, config, builds_needed_later))

    def _compare_engine_latencies(self, removal: QdqRemoval, config: PrecisionConfig,
                                  builds_needed_later: int) -> Steps[QdqRemoval]:
        """Returns a removal with the latencies of the engines before and after, if both can be built.

        Without them the previews alone decide.
        """
        configs = (config, removal.config)
        new_build_count = sum(not self.search_builds.has_requested_engine(item) for item in configs)
        if not self.evaluator.can_build or (self.search_builds.build_count + new_build_count + builds_needed_later
                                            > self.request.max_builds):
            return removal
        latencies = []
        for engine_config in configs:
            try:
                engine = yield from self.search_builds.get_engine(engine_config)
            except CancelledError:
                raise
            except TrtTuiError as error:
                return (removal if engine_config is config else
                        replace(removal, rejection=f"because no engine can be built without them ({error.title})"))
            if engine.latency_ms is None or not engine.is_built_as_requested:
                return (removal if engine_config is config or engine.is_built_as_requested else
                        replace(removal, rejection="because no engine can be built as requested without them"))
            latencies.append(engine.latency_ms[0])
        is_slower = latencies[1] > latencies[0]
        return replace(removal, latencies_ms=(latencies[0], latencies[1]),
                       rejection="because the engine would be slower" if is_slower else "")

    # -- engines ------------------------------------------------------------------------------------------------

    def _prepare_latency_estimates(self) -> Steps[None]:
        self.estimate_latency = yield from self.search_builds.make_latency_estimator(self.search_space, self.remarks)
        self.search = self._make_search(self.search.evaluations, self.estimate_latency)

    def _order_groups_by_cost(self) -> Steps[None]:
        """Orders the groups by the time they can save. The precision of the group with the largest saving is reduced
        first.

        The saving is the layer time in the engine with all candidates raised. It is built only if a further build is
        left to confirm the result. Without such times, the order follows the multiply-accumulates.
        """
        times: Mapping[str, float] = {}
        all_raised = self.search_space.build_config(self.search_space.candidates)
        is_built = self.search_builds.has_requested_engine(all_raised)  # built for a latency budget
        if self.evaluator.can_build and (is_built or self.search_builds.build_count + 2 <= self.request.max_builds):
            try:
                yield from self.search_builds.get_engine(all_raised)
                times = self.evaluator.measure_candidate_times(self.search_space)
            except CancelledError:
                raise
            except TrtTuiError as error:
                self.remarks.append(f"the engine of all raised could not be built: {error.title}")
        self.costs = times or self.evaluator.count_candidate_macs(self.search_space)
        order_text = (
            "the time that each takes in the engine of all raised" if times else "multiply-accumulates, since no "
            "engine's layers were timed" if any(self.costs.values()) else "the network alone: its sizes are open")
        self.remarks.append(f"reduced in the order of {order_text}")
        self.search = self._make_search(self.search.evaluations, self.estimate_latency)

    def _withdraw_ineffective_raises(self) -> Steps[bool]:
        """Undoes raises that do not change the previewed engine. Returns True if there are any and the search continues
        without them.

        If nothing else meets the tolerance, the raises are kept, and a remark says so.
        """
        result = self.search.result
        if self._before_withdrawal is not None and not result.is_met:
            self.search_space, self.search = self._before_withdrawal
            self._before_withdrawal, self._use_preview = None, False
            self.remarks[-1] += "; kept, because no other config meets the tolerance"
            return False
        if (not self._use_preview or not result.is_met or result.best_evaluation is None
                or not result.best_evaluation.raised_groups):
            return False
        preview = yield from self.evaluator.preview_engine(result.config)
        idle_groups = [
            name for name in result.best_evaluation.raised_groups
            if preview is not None and name in (preview.ineffective_groups or ())
        ]
        if preview is None or not idle_groups:
            return False
        self.remarks.append(
            f"{name_list_text(idle_groups)} in "
            f"{self.request.higher_precision.label}: no effect on the engine (preview "
            f"{preview.builder_text})")
        previous = (self.search_space, self.search)
        try:
            self.search_space = replace(self.search_space,
                                        fixed_groups=self.search_space.fixed_groups | frozenset(idle_groups))
        except InputError:  # no other group can be raised
            self._use_preview = False
            return False
        self._before_withdrawal = self._before_withdrawal or previous
        self.remarks[-1] += ": searched without"
        evaluations = [
            evaluation for evaluation in self.search.evaluations
            if not set(idle_groups).intersection(evaluation.raised_groups)
        ]
        self.search = self._make_search(evaluations, self.estimate_latency, self.search.ranges_by_method,
                                        self.search.margins)
        return True

    def _confirm_with_engine(self) -> Steps[bool]:
        """Builds the engine of the result. Returns True if the engine misses the simulated or estimated values and the
        search continues.

        With a latency budget, a result that misses the tolerance is built too. The search then continues with better
        latency estimates until it finds the same result again. A result that meets the target without the required
        margin is built, because its simulation alone would pass. If the build fails, the result is kept.
        """
        result, budget = self.search.result, self.request.max_latency
        best = result.best_evaluation
        if best is None:
            return False
        is_timed = budget is not None and best.estimated_latency is not None and best.estimated_latency <= budget
        if not self.evaluator.can_build or not (self.targets and best.passes or is_timed):
            return False
        is_known = is_timed and config_without_ranges(result.config) in self.search_builds.latencies
        if not self.search_builds.has_requested_engine(
                result.config) and self.search_builds.build_count >= self.request.max_builds:
            if self.request.max_builds:
                self.remarks.append(f"not confirmed by an engine: {self.search_builds.build_count} builds are used up "
                                    "(--max-builds)")
            return False
        try:
            engine = yield from self.search_builds.get_engine(result.config)
        except CancelledError:
            raise
        except TrtTuiError as error:
            cause = f" ({error.cause})" if error.cause else ""
            self.remarks.append(f"its engine could not be built: {error.title}{cause}")
            return False
        if not engine.is_built_as_requested:
            self.remarks.append(self.search_builds.deviating_engine_remark(engine))
            return False
        raised_count = len(result.config.find_raised_groups(self.network))
        if budget is not None and best.estimated_latency is not None and is_timed and engine.latency_ms is not None:
            latency = engine.latency_ms[0]
            if latency > budget:
                self.remarks.append(
                    f"the engine with {raised_count} raised takes {milliseconds_text(latency)} where "
                    f"{milliseconds_text(best.estimated_latency)} were estimated: more than "
                    f"{milliseconds_text(budget)}; "
                    "went on with better estimates")
            if latency > budget or not result.is_met and not is_known:
                self.search.require_score_margins(self.search.margins)
                return True
        if not self.targets:
            return False
        if engine.accuracy is None or any(target.is_met_by(engine.accuracy) is None for target in self.targets):
            self.remarks.append("its engine was built, but the tolerance cannot be measured on it")
            return False
        target_outcome = judge_accuracy(self.targets, engine.accuracy)
        assert target_outcome is not None, "all values that the targets need were measured"
        self.confirmed = target_outcome.outcome.passes
        self._engine_values_text = ", ".join(target.measured_value_text(engine.accuracy) for target in self.targets)
        if not self.confirmed:
            self._missed_checks[best.config_key] = f"the engine yields {self._engine_values_text}"
        simulated_accuracy = best.target_result.accuracy
        if self.confirmed or not result.is_met or simulated_accuracy is None:
            return False
        if is_unexplained_gap(simulated_accuracy, engine.accuracy):
            return (yield from self._triage_engine(result.config, simulated_accuracy, engine.accuracy))
        margins, gaps = list(self.search.margins or [-math.inf] * len(self.targets)), []
        for index, target in enumerate(self.targets):
            if not target.is_met_by(engine.accuracy):
                gap = _target_score_gap(target, simulated_accuracy, engine.accuracy)
                if not math.isfinite(gap):
                    self.remarks.append(
                        f"its engine yields {target.measured_value_text(engine.accuracy)}, which the simulation "
                        "does not: no margin helps")
                    return False
                margins[index] = gap
                gaps.append(
                    f"{target.measured_value_text(engine.accuracy)} where "
                    f"{target.measured_value_text(simulated_accuracy)} was simulated; went "
                    f"on with a margin of {gap:.2g}")
        if not gaps:  # the engine fails for a reason other than its values, so no margin helps
            self.remarks.append(f"its engine: {target_outcome.text}")
            return False
        self.remarks.append(f"the engine with {raised_count} raised: {'; '.join(gaps)}")
        self.confirmed = None
        self.search.require_score_margins(margins)
        return True

    def _triage_engine(self, config: PrecisionConfig, simulated_accuracy: Accuracy,
                       engine_accuracy: Accuracy) -> Steps[bool]:
        """Finds the group at which an engine deviates from its simulation more than rounding explains.

        Returns True if fusion barriers remove the deviation and the search continues with them. Such a deviation is not
        used as a margin.
        """
        gap_remark = f"its engine: {engine_gap_text(simulated_accuracy, engine_accuracy)}"
        if not self._can_triage:
            self.remarks.append(gap_remark)
            return False
        self._can_triage = False
        triage = EngineTriage(self.network, config, simulated_accuracy, self.evaluator, self.search_builds.get_engine,
                              lambda: self.request.max_builds - self.search_builds.build_count)
        triage_result = yield from triage.run_triage()
        self.remarks.append("; ".join((gap_remark, *triage_result.remarks)))
        if not triage_result.barriers:
            return False
        evaluations, trial_ranges, margins = self.search.evaluations, self.search.ranges_by_method, self.search.margins
        self.search_space = replace(self.search_space,
                                    start_config=self.search_space.start_config.with_moves(triage_result.barriers))
        self.search = self._make_search(evaluations, self.estimate_latency, trial_ranges, margins)
        self.confirmed = None
        return True

    # -- progress -----------------------------------------------------------------------------------------------

    def make_progress_event(self, job_number: int) -> ev.SearchProgress:
        search, best = self.search, self.search.best_evaluation
        candidate = search.current_trial
        config = search.build_config(best) if best is not None else self.search_space.start_config
        return ev.SearchProgress(
            job_number, len(search.evaluations), tuple(candidate.raised_groups) if candidate is not None else (),
            candidate.group if candidate is not None else "", candidate.step_name if candidate is not None else "",
            best, config,
            best is not None and best.with_required_margins(search.margins).passes and search.is_within_budget(best))

    def make_end_event(self, job_number: int, was_stopped: bool = False, held_out_result: HeldOutResult | None = None,
                       accuracy_with_interval: Accuracy | None = None) -> ev.SearchEnded:
        """Returns the event that reports the result so far.

        Args:
            accuracy_with_interval: The accuracy of the result with the confidence interval of the metric; None without
                a metric.
        """
        tried_configs = [self.search.build_config(evaluation) for evaluation in self.search.evaluations]
        result = self.search.result
        removals = [removal for removal in self.qdq_removals
                    if removal.rejection or not removal.find_quantized_groups(self.network, result.config)]
        qdq_reasons = {
            name: reason for removal in removals if not removal.rejection
            for name, reason in removal.move_reasons.items()
            if name in result.config.precision_moves and result.config.precision_moves[name].reason == PREVIEW_REASON
        }
        result = replace(result, raise_reasons={**qdq_reasons, **result.raise_reasons})
        target_outcome: TargetOutcome | None = None
        best = result.best_evaluation
        if best is not None and best.target_result.accuracy is not None:
            # The interval of the metric cannot change a failed command or a missed target.
            measured = (accuracy_with_interval
                        if accuracy_with_interval is not None and best.passes else best.target_result.accuracy)
            accuracy = self._add_run_caveats(measured)
            if held_out_result is not None and held_out_result.miss_text:
                accuracy = replace(accuracy, caveats=(*accuracy.caveats,
                                                      Caveat("held-out samples", held_out_result.miss_text)))
            result = replace(
                result, best_evaluation=replace(best, target_result=replace(best.target_result, accuracy=accuracy)))
            if measured is accuracy and measured is not accuracy_with_interval:
                target_outcome = best.target_result.target_outcome
            elif (target_outcome := judge_accuracy(self.targets, accuracy)) is not None and (
                    check_result := self._check_results.get(result.config)) is not None:
                target_outcome = _combine_with_check(target_outcome, check_result)
        return ev.SearchEnded(job_number, result, self.search.method_text, tuple(self.search.evaluations),
                              len(self.search_space.candidates), bool(self.sensitivities), self.confirmed,
                              (*(removal.report_text for removal in removals), *self.remarks,
                               *self._known_defect_texts(result.config)),
                              was_stopped, held_out_result, self.search_builds.engine_result_texts(tried_configs),
                              self._pareto_configs(), self.search.margins, target_outcome, self.exported_result,
                              qdq_removals=tuple(removals), zero_cost_effort=self._describe_zero_cost_effort(),
                              missed_checks={index: self._missed_checks[evaluation.config_key]
                                             for index, evaluation in enumerate(self.search.evaluations)
                                             if evaluation.config_key in self._missed_checks})

    def _describe_zero_cost_effort(self) -> ZeroCostEffort:
        """Returns the effort for zero-cost changes with its times, which change no result."""
        times = self._zero_cost_effort
        effort = self.search.context.zero_cost_effort
        return replace(effort, unmeasured_kinds=times.unmeasured_kinds, seconds=times.seconds,
                       predicted_s=times.predicted_s,
                       is_exhausted=effort.is_exhausted or times.is_exhausted or bool(times.unmeasured_kinds))

    def _known_defect_texts(self, config: PrecisionConfig) -> list[str]:
        """Returns the known defects of the target release that a config has."""
        return [match.warning_text(self.network)
                for match in match_known_defects(self.network, self._target, config.precision_of)
                if match.is_certain and match.defect.is_in_exports]

    def _add_run_caveats(self, accuracy: Accuracy) -> Accuracy:
        """Returns an accuracy with caveats if the exported file was not executed or misses the target, or if the engine
        misses it."""
        exported, caveats = self.exported_result, []
        if exported is not None and not exported.is_met:
            kind = "not executed" if exported.is_met is None else "not met as exported"
            caveats.append(Caveat(kind, exported.exported_result_text, fails_run=exported.is_met is False))
        if self.confirmed is False:
            caveats.append(Caveat("not met by its engine", f"not met by its engine: {self._engine_values_text}",
                                  fails_run=True))
        return replace(accuracy, caveats=(*accuracy.caveats, *caveats)) if caveats else accuracy

    def _pareto_configs(self) -> dict[int, PrecisionConfig]:
        """Returns the configs of the Pareto front, by index of the evaluation.

        Of equal points the best evaluation is returned, or the first. Evaluations with a non-finite score are left out.
        """
        best = self.search.best_evaluation
        finite = [(index, evaluation)
                  for index, evaluation in sorted(enumerate(self.search.evaluations), key=lambda item: item[1]
                                                  is not best)
                  if evaluation.score > -math.inf]
        costs = [
            evaluation.estimated_latency if evaluation.estimated_latency is not None else sum(
                self.costs.get(name, 0.0) for name in evaluation.raised_groups) for _, evaluation in finite
        ]
        return {
            finite[index][0]: self.search.build_config(finite[index][1])
            for index in pareto_front([(cost, evaluation.score)
                                       for cost, (_, evaluation) in zip(costs, finite, strict=True)])
        }


def _combine_with_check(outcome: TargetOutcome, check_result: CheckResult) -> TargetOutcome:
    """Returns the outcome of the tolerances combined with the outcome of the user's check command."""
    if not check_result.passes:
        return TargetOutcome(Outcome.FAIL, (check_result.text, *outcome.reasons))
    if check_result.doubt_reason and outcome.passes:
        return TargetOutcome(Outcome.UNCERTAIN_PASS, (check_result.text, *outcome.reasons))
    return outcome


def _target_score_gap(target: Target, simulated_accuracy: Accuracy, engine_accuracy: Accuracy) -> float:
    """Returns the difference of a target's scores between the simulation and the engine; NaN if either has no score.

    Only outputs that the engine has are compared, since judged outputs may be inside the network.
    """
    outputs = {name: output for name, output in simulated_accuracy.outputs.items() if name in engine_accuracy.outputs}
    before, after = target.margin_score(replace(simulated_accuracy,
                                                outputs=outputs)), target.margin_score(engine_accuracy)
    return math.nan if before is None or after is None else before - after
