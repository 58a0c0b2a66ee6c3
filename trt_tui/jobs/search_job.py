"""The job of a search. The search proposes configs, the job measures them, and engines confirm the result.

An engine may deviate from its simulation by more than rounding explains. Such a deviation is not used as a margin. A
kernel computes something else, and raising more layers avoids that kernel only by chance.
"""

import copy
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from trt_tui.core.calibration.calibration import Calibration, select_ranges_for_type
from trt_tui.core.data.batches import SampleName, join_batches
from trt_tui.core.data.samples import MIN_HELD_OUT_SAMPLES, MIN_SEARCH_SAMPLES, JudgedFeeds
from trt_tui.core.engines.fallback_ladder import unrequested_precisions_text
from trt_tui.core.engines.group_implementations import Preview
from trt_tui.core.lowering.network_rewrite import no_lower_precision_reason, reduces_precision
from trt_tui.core.measure.engine_agreement import (
    ACCUMULATION_GAP_DB,
    PREVIEW_REASON,
    QdqRemoval,
    engine_sqnr_gap_db,
    remove_all_unused_qdq,
)
from trt_tui.core.measure.group_sweep import sensitivity_from_sweep
from trt_tui.core.measure.results import (
    FP32_ENGINE,
    GAP_KINDS,
    Accuracy,
    Caveat,
    EngineResult,
    ExportedResult,
    ExportedRun,
    RunKind,
)
from trt_tui.core.measure.target import (
    HeldOutResult,
    HeldOutValue,
    Target,
    TargetOutcome,
    TargetResult,
    check_targets,
    judge_accuracy,
    parse_target,
)
from trt_tui.core.measure.zero_cost_kinds import TrialBudget, ZeroCostKind, list_searched_stages
from trt_tui.core.moves.config import MoveKey, PrecisionConfig, RangeMove, replace_file_precision_of_groups
from trt_tui.core.moves.move import Move
from trt_tui.core.network.known_defects import match_known_defects
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.search import TOP_DOWN_METHODS, Search, SearchSpace, Trial, ZeroCostEffort
from trt_tui.core.search.search import ALONE_STEP, COMBINED_STEP, RANGES_STEP, find_added_moves, pareto_front
from trt_tui.errors import CancelledError, InputError, TrtTuiError
from trt_tui.files.writing import create_scratch_folder
from trt_tui.formatting import (
    add_decibel_unit,
    counted_noun_text,
    decibels_text,
    milliseconds_text,
    name_list_text,
)
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges, measure_ranges_by_method
from trt_tui.jobs.check_command import (
    CheckResult,
    combine_with_check,
    run_check_command,
    shown_error_text,
    validate_check_command,
    write_check_files,
)
from trt_tui.jobs.comparison import (
    add_metric_intervals,
    measure_accuracies_in_parallel,
    measure_final_accuracy,
    propose_zero_cost_moves,
    run_group_sweep,
    send_reference_metric,
)
from trt_tui.jobs.engine import (
    build_engines_in_parallel,
    execute_exported_file,
    get_or_build_engine,
)
from trt_tui.jobs.engine_preview import PreviewClient, is_tensorrt_rtx_installed, preview_mismatch_reason
from trt_tui.jobs.scheduler import (
    JobReporter,
    Steps,
    Urgency,
    override_urgency,
    run_to_last_value,
)
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace, can_run_engines

MIN_PARALLEL_S = 0.1
"""The duration in seconds of the evaluation of one config from which workers measure further configs in advance."""


def _value_and_interval_texts(target: Target, accuracy: Accuracy | None) -> tuple[str, str]:
    """Returns the value that a target bounds and its confidence interval as texts; "" if they are unknown."""
    if accuracy is None:
        return "", ""
    return target.measured_value_text(accuracy), target.confidence_interval_text(accuracy)


# -- latencies -------------------------------------------------------------------------------------------------------


def count_macs(network: NetworkOutline, group_names: Iterable[str]) -> dict[str, float]:
    """Returns the number of multiply-accumulates of each of some groups, by name; 0 if it is unknown."""
    return {
        name: float(sum(network.get_layer(layer).macs or 0 for layer in network.get_group(name).layers))
        for name in group_names
    }


def list_group_times(engine: EngineResult, group_names: Iterable[str]) -> dict[str, float]:
    """Returns the run time in ms of each of some groups in an engine. Groups whose layers were not timed are left out."""
    return {
        name: ms
        for name in group_names
        if name in engine.implementations and (ms := engine.implementations[name].latency_ms) is not None
    }


def drop_ranges_and_measured_moves(config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config without its ranges and measured moves, which do not affect latency."""
    return config.without_moves(RangeMove).without_measured_moves()


@dataclass
class LatencyModel:
    """The latencies of configs, estimated from the engines of a search.

    The difference between the median latencies of the start engine and the engine with all candidates raised is divided
    among the raised groups. The division follows the differences of their engine layers' times, or the
    multiply-accumulates of the groups if layers were not timed. A group in an intermediate precision gets a fraction of
    its part, by the bytes of a value (`Precision.value_bytes`). The estimate is exact for every measured config.

    Attributes:
        measured: The latencies in ms of the engines built as requested, by `drop_ranges_and_measured_moves`.
    """

    measured: dict[PrecisionConfig, float] = field(default_factory=dict)

    def fit_to_engines(
        self, search_space: SearchSpace, start_engine: EngineResult, raised_engine: EngineResult
    ) -> None:
        """Fits the model to the timed engines of two configs: the start config, and all candidates raised."""
        assert start_engine.latency_ms is not None and raised_engine.latency_ms is not None, "both are timed"
        self._search_space, names = search_space, search_space.candidates
        self._end_points = {0.0: start_engine.latency_ms[0], 1.0: raised_engine.latency_ms[0]}
        start_ms, raised_ms = list_group_times(start_engine, names), list_group_times(raised_engine, names)
        self._weights = {
            name: max(0.0, raised_ms[name] - start_ms[name]) if name in start_ms.keys() & raised_ms.keys() else 0.0
            for name in names
        }
        if not any(self._weights.values()):
            self._weights = count_macs(search_space.network, names)

    def estimate_latency_ms(self, config: PrecisionConfig) -> float:
        """Returns the latency of a config in ms."""
        if (measured_ms := self.measured.get(drop_ranges_and_measured_moves(config))) is not None:
            return measured_ms
        measured_points = {self._raised_time_fraction(other): latency for other, latency in self.measured.items()}
        points = self._end_points | {
            fraction: latency for fraction, latency in measured_points.items() if 0.0 < fraction < 1.0
        }
        positions = sorted(points)
        return float(
            np.interp(self._raised_time_fraction(config), positions, [points[position] for position in positions])
        )

    def _raised_time_fraction(self, config: PrecisionConfig) -> float:
        return sum(weight * self._raised_precision_fraction(name, config) for name, weight in self._weights.items()) / (
            sum(self._weights.values()) or 1.0
        )

    def _raised_precision_fraction(self, group_name: str, config: PrecisionConfig) -> float:
        """Returns the fraction of the way from a group's start precision (0) to the highest precision (1), by bytes per
        value."""
        group, highest = self._search_space.network.get_group(group_name), self._search_space.higher_precision
        current, start = config.precision_of(group), self._search_space.start_config.precision_of(group)
        start_width, highest_width, current_width = (
            group.resolve_file_precision(precision).value_bytes for precision in (start, highest, current)
        )
        if highest_width <= start_width:
            return float(current is highest)
        return min(1.0, max(0.0, (current_width - start_width) / (highest_width - start_width)))


# -- engines ----------------------------------------------------------------------------------------------------------


def unexplained_gap_text(simulated_accuracy: Accuracy, engine_accuracy: Accuracy) -> str:
    """Returns the deviation of an engine from its simulation as text; "" if rounding and FP16 accumulators explain
    it."""
    if simulated_accuracy.nonfinite_count:
        return ""
    if engine_accuracy.nonfinite_count:
        return f"{engine_accuracy.nonfinite_count} NaN or Inf, which the simulation does not have"
    gap = engine_sqnr_gap_db(simulated_accuracy, engine_accuracy)
    if gap is None or gap <= ACCUMULATION_GAP_DB:
        return ""
    return f"{add_decibel_unit(decibels_text(gap, mark=''))} worse than simulated, which rounding does not explain"


MAX_EXPORT_ROUNDS = 4
"""The maximum number of times that a search continues because the exported file of its result misses the target."""

_MISSES_TOLERANCE = "because the result would miss the tolerance"

STEPS_WITHOUT_RANKING = ("start", "all raised")
"""The first steps of a search, which show if there is anything to find. They need no ranking of the groups."""


_SAMPLE_BOUND_EVENTS = (
    ev.AccuracyMeasured,
    ev.EngineBuilt,
    ev.GroupErrorsMeasured,
    ev.ReferenceMetricMeasured,
    ev.ExportedFileExecuted,
)
"""The events whose values depend on the samples that they were measured on."""


def run_search_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.FindMixedPrecisionConfig
) -> Steps[None]:
    """Searches for a small set of groups to raise. Stored results, also of an interrupted search, are not measured
    again.

    The result depends on the network, the data, the targets and the seed. It does not depend on stored results, on the
    number of workers, or on durations. Engines are the exception, since their latencies are measured.
    """
    network, metric = workspace.network, workspace.metric
    targets = [parse_target(text) for text in request.tolerances]
    for target in targets:
        target.refuse_if_unmeasurable(workspace.judged_outputs, network, metric.name if metric is not None else None)
    if not reduces_precision(network, request.config):
        raise InputError(
            "the search has nothing to do",
            no_lower_precision_reason(network) or "every layer is in FP32 already",
            "Start with a config in lower precision, such as --precision int8.",
        )
    if request.check_command is not None:
        validate_check_command(request.check_command)
    ensure_ranges(workspace, store, reporter, [request.config])
    shown_workspace, full_reporter = workspace, reporter
    workspace = workspace.make_search_view(
        _uses_calibration_samples(workspace, request), request.hold_out and not request.sample
    )
    has_other_samples = workspace.feeds != shown_workspace.find_judged_feeds(request.config)
    holds_out = request.hold_out and not request.sample and not workspace.held_out_feeds
    refusal_reason = workspace.choose_held_out_feeds().refusal_reason if holds_out else ""
    if has_other_samples:
        reporter = _mute_measurement_events(reporter)
    job = SearchJob(workspace, store, reporter, request, targets, has_other_samples)
    if refusal_reason and workspace.judged_sample_count >= MIN_SEARCH_SAMPLES + MIN_HELD_OUT_SAMPLES:
        job.remarks.append(f"not checked on held-out samples: {refusal_reason}")
    judges_metric = any(target.kind == "metric" for target in targets)
    if judges_metric:
        reference_values = yield from send_reference_metric(workspace, store, reporter, [request.config])
        job.targets = tuple(target.with_base_values(reference_values) for target in targets)
    settled_accuracy, held_out = None, None
    try:
        yield from job.run_search_steps()
        result = job.search.result
        if result.best_evaluation is not None:
            if judges_metric and not request.sample:
                runs = {"config": result.config}
                yield from override_urgency(Urgency.SEARCH, add_metric_intervals(workspace, store, reporter, runs))
                settled_accuracy = store.load_result(workspace, "verdict", result.config, Accuracy)
            held_out = yield from job.measure_held_out_samples(
                result.config, settled_accuracy or result.best_evaluation.target_result.accuracy
            )
    except (GeneratorExit, CancelledError):
        reporter.send(job.make_end_event(was_stopped=True))
        raise
    if has_other_samples and result.is_met:
        # The engine and the exported file are measured again, on the samples of the session.
        if result.config in job.requested_configs:
            yield from get_or_build_engine(shown_workspace, store, full_reporter, result.config, rebuild=True)
        full_reporter.send(
            ev.ExportedFileExecuted(
                reporter.job,
                result.config,
                (
                    yield from execute_exported_file(
                        shown_workspace, store, full_reporter, result.config, Urgency.SEARCH
                    )
                ),
            )
        )
    reporter.send(job.make_end_event(held_out_result=held_out, accuracy_with_interval=settled_accuracy))


def _uses_calibration_samples(workspace: Workspace, request: rq.FindMixedPrecisionConfig) -> bool:
    """Returns True if the calibration samples determine a config of a search.

    The config may be its start, or one with other ranges or zero-cost changes.
    """
    if not request.try_zero_cost and not request.try_ranges:
        return workspace.is_calibrated_on_data(request.config)
    config = replace_file_precision_of_groups(request.config, workspace.network.groups)
    return any(config.precision_of(group) in QUANTIZED_TYPES for group in workspace.network.groups)


def _mute_measurement_events(reporter: JobReporter) -> JobReporter:
    """Returns a reporter that drops values measured on other samples than the session uses."""
    filtered = copy.copy(reporter)

    def send_other_events(event: ev.Event) -> None:
        is_engine = isinstance(event, ev.ValueMeasured) and event.kind == FP32_ENGINE
        if not is_engine and not isinstance(event, _SAMPLE_BOUND_EVENTS):
            reporter.send(event)

    filtered.send = send_other_events
    return filtered


class SearchJob:
    """One search in its workspace, from the first evaluation to the confirmation by an engine.

    Args:
        targets: The tolerances, with their baselines.
        has_other_samples: True if the search uses other samples than the session. A search on a single one always does.

    Attributes:
        can_build: True if engines can run here.
        feed_index: The only feed of the search; None for all feeds, or if the worst sample is not known yet.
        search: The search, with the evaluations so far.
        engines: The engines that this search has built; ``requested_configs`` are those that it has requested. Engines
            from the store count too, so that the steps of a search do not depend on stored results.
        confirmed: True if the engine of the result meets the tolerance; None if it was not measured.
        remarks: Texts for the user.

    Raises:
        InputError: An option has no meaning for this network (`trt_tui.core.search.Search` and `SearchSpace`). The
            selected sample does not exist, or it does not judge the search.
    """

    def __init__(
        self,
        workspace: Workspace,
        store: ResultStore,
        reporter: JobReporter,
        request: rq.FindMixedPrecisionConfig,
        targets: Sequence[Target],
        has_other_samples: bool = False,
    ) -> None:
        self.workspace, self.store, self.reporter, self.request = workspace, store, reporter, request
        self.network, self.targets = workspace.network, tuple(targets)
        self._has_other_samples = has_other_samples or bool(request.sample)
        self.can_build = workspace.builder is not None and can_run_engines(
            workspace.builder, workspace.build_plan.settings
        )
        self.feed_index: int | None = None
        if request.sample not in ("", "worst"):
            name = SampleName.from_text(request.sample)
            assert name is not None, "the text was checked"
            self.feed_index, _ = workspace.data_sets.judged_samples.find_sample(name)
            if self.feed_index not in workspace.feeds:
                raise InputError(
                    f"sample {name} cannot be searched on",
                    "it calibrates",
                    "Name another sample, or calibrate on other data with --calib-data.",
                )
        if not targets and request.check_command is None:
            raise InputError("a search needs a tolerance", "", "Give --tolerance, or --check.")
        feeds = workspace.feeds  # those that calibrate are searched at the end, unless nothing is measured then
        self._searched_feeds = feeds.searched_feeds if len(feeds) == 1 else ()
        self._max_judging_s = 0.0
        self._shown_check_errors = ""
        self._has_named_file_layers = False
        self.engines: dict[PrecisionConfig, EngineResult] = {}
        self.requested_configs: set[PrecisionConfig] = set()
        self._latency_model = LatencyModel()
        self._use_preview = request.use_preview
        self._before_withdrawal: Search | None = None
        self.confirmed: bool | None = None
        self.exported_result: ExportedResult | None = None
        self._engine_values_text = ""
        self._unjudged_engine_text = ""
        self._missed_checks = defaultdict[PrecisionConfig, dict[RunKind, str]](dict)
        self._export_rounds = 0
        self.remarks: list[str] = []
        self._check_results: dict[PrecisionConfig, CheckResult] = {}
        self.qdq_removals: list[QdqRemoval] = []
        # An impossible search is refused before any measurement.
        search_space = SearchSpace(
            self.network,
            request.config,
            request.higher_precision,
            request.intermediate_precisions,
            fixed_groups=frozenset(request.fixed_groups),
        )
        has_latency_budget = request.max_latency is not None and self.can_build
        if has_latency_budget and request.max_builds < 2:
            raise InputError(
                "a latency budget needs engines",
                "latencies are estimated from two of them, at least",
                "Raise --max-builds, or use --max-fp32.",
            )
        self.search = Search(
            search_space,
            request.method,
            max_raised=request.max_raised,
            max_latency=request.max_latency,
            estimate_latency=self._latency_model.estimate_latency_ms if has_latency_budget else None,
            costs=count_macs(workspace.outline, search_space.candidates),
        )

    def run_search_steps(self) -> Steps[None]:
        """Runs the search. `make_end_event` reports its state at any time."""
        request = self.request
        yield from self._remove_unused_qdq_of_start()
        if request.max_latency is not None:
            yield from self._fit_latency_model()
        if request.method == "lower":
            yield from self._order_groups_by_cost()
        tries_changes = request.try_zero_cost or request.try_ranges
        is_going_on = True
        while is_going_on:
            self.exported_result = None  # of an earlier result
            yield from self._evaluate_proposed_configs(STEPS_WITHOUT_RANKING)
            if (
                self.search.current_trial is not None
                and not self.search.sensitivities
                and (request.method not in TOP_DOWN_METHODS or tries_changes)
            ):
                if tries_changes:
                    yield from self._try_zero_cost_changes_and_ranges()
                kept_sets = self.search.zero_cost_sets
                if self.search.current_trial is not None and (kept_sets or not self.search.sensitivities):
                    yield from self._measure_sensitivities(
                        self.search.search_space.build_config((), zero_cost_set_names=kept_sets)
                    )
            yield from self._evaluate_proposed_configs()
            is_going_on = yield from self._withdraw_ineffective_raises()
            if not is_going_on:
                yield from self._remove_unused_qdq_of_result()
                is_going_on = yield from self._check_exported_file()
            if not is_going_on:
                is_going_on, remark = yield from self._check_engine_of_result()
                self.remarks += [remark] * bool(remark)

    def _evaluate_proposed_configs(self, step_names: Sequence[str] = ()) -> Steps[None]:
        """Measures the configs that the search proposes. If ``step_names`` are given, only configs of these steps are
        measured."""
        while (trial := self.search.current_trial) is not None and (not step_names or trial.step_name in step_names):
            self._report_progress()
            yield from self.measure_accuracies_in_parallel(
                partial(self.search.predict_next_configs, step_names=step_names)
            )
            start_time = time.monotonic()
            self.search.record_target_result((yield from self._evaluate_config(self.search.build_config(trial))))
            self._max_judging_s = max(self._max_judging_s, time.monotonic() - start_time)

    def _evaluate_config(self, config: PrecisionConfig) -> Steps[TargetResult]:
        """Measures a config. Returns its result against the tolerances and the user's check command."""
        target_result = self._compare_with_targets((yield from self.measure_accuracy(config)))
        if self.request.check_command is None:
            return target_result
        check_result = yield from self.run_check_command(config)
        self._check_results[config] = check_result
        check_text = f"{target_result.value_text}, {check_result.text}" if self.targets else check_result.text
        return replace(
            target_result,
            passes=target_result.passes and check_result.passes,
            value_text=check_text,
            measured_outcome=combine_with_check(target_result.target_outcome, check_result),
        )

    def _compare_with_targets(self, accuracy: Accuracy) -> TargetResult:
        if self.targets:
            return check_targets(self.targets, accuracy)
        is_broken = accuracy.nonfinite_count > 0 or any(caveat.fails_run for caveat in accuracy.caveats)
        energy = accuracy.judged_error if accuracy.judged_error is not None and not is_broken else math.inf
        score = math.inf if energy == 0 else -10 * math.log10(energy) if math.isfinite(energy) else -math.inf
        return TargetResult(not is_broken, score, accuracy, energy)

    def _try_zero_cost_changes_and_ranges(self) -> Steps[None]:
        """Tries zero-cost moves and other ranges stage by stage, each stage for the config with the accepted changes of
        earlier stages.

        The other ranges belong to the first stage. Their order needs the sensitivities of the groups, which are
        measured only if no set of the first stage meets the tolerance alone.
        """
        start_time, search = time.monotonic(), self.search
        effort = search.initial_effort = ZeroCostEffort(is_exhausted=search.zero_cost_effort.is_exhausted)
        self.reporter.log(
            "Zero-cost changes and other ranges: at most "
            f"{counted_noun_text(effort.budget, 'simulated config')}, besides the measurement of the changes.",
            "info",
        )
        for index, kinds in enumerate(list_searched_stages() if self.request.try_zero_cost else [()]):
            if search.current_trial is None:
                break
            self._propose_zero_cost_stage(kinds)
            yield from self._evaluate_proposed_configs((ALONE_STEP,))
            if index == 0 and self.request.try_ranges and search.current_trial is not None:
                yield from self._measure_alternative_ranges()
            yield from self._evaluate_proposed_configs((ALONE_STEP, RANGES_STEP, COMBINED_STEP))
        effort.seconds = search.zero_cost_effort.seconds = time.monotonic() - start_time

    def _propose_zero_cost_stage(self, kinds: Sequence[ZeroCostKind]) -> None:
        """Adds the sets of zero-cost moves of a stage to the search.

        At most half of the configs that the budget still allows are simulated to measure the sets, so that the others
        can try them.
        """
        search, effort, spent = self.search, self.search.initial_effort, self.search.zero_cost_effort
        budget = TrialBudget((spent.budget - spent.evaluations) // 2)
        start = search.search_space.build_config((), search.chosen_ranges, zero_cost_set_names=search.zero_cost_sets)
        new_moves: dict[str, Mapping[MoveKey, Move]] = {}
        for kind in kinds:
            budget.is_exceeded = not spent.has_budget
            proposals = self.propose_zero_cost_moves(start, kind, budget) if spent.has_budget else {}
            new_moves |= {name: find_added_moves(self.network, start, config) for name, config in proposals.items()}
            effort.is_exhausted |= budget.is_exceeded
            if budget.is_exceeded and not proposals:
                effort.unmeasured_kinds += (kind.title,)
        search.search_space = replace(
            search.search_space, zero_cost_stages=(*search.search_space.zero_cost_stages, (new_moves, budget.used))
        )
        search.restart()

    def _measure_alternative_ranges(self) -> Steps[None]:
        """Measures the sensitivity of each group of the start config, and the ranges that other range methods give to
        the quantized tensors of the groups with the largest shares. Ranges equal to the current one are omitted."""
        search, start = self.search, self.search.search_space.start_config
        yield from self._measure_sensitivities(start)
        search.ranges_order = search.list_influential_groups()
        groups = [
            group
            for group in map(self.network.get_group, search.ranges_order)
            if any(
                site.tensor not in start.fixed_range_tensors
                for site in group.calibrated_qdq_sites(start.precision_of(group))
            )
        ]
        if not groups:
            return
        method_ranges = measure_ranges_by_method(self.workspace, self.reporter, groups, start, in_separate_pass=True)
        other_ranges: dict[str, dict[str, float]] = {}
        for group in groups:
            precision = start.precision_of(group)
            current = select_ranges_for_type(self.workspace.ranges, QUANTIZED_TYPES[precision])
            for tensor in dict.fromkeys(site.tensor for site in group.calibrated_qdq_sites(precision)):
                other_ranges[tensor] = {
                    method: amax for method, amax in method_ranges[tensor].items() if amax != current.get(tensor)
                }
        search.ranges = other_ranges
        search.restart()

    def _measure_sensitivities(self, config: PrecisionConfig) -> Steps[None]:
        """Measures the sensitivity of each candidate in a config, and ranks the candidates by it.

        All groups are measured on a few samples, and groups that may matter on more. The groups are in network order,
        independent of known errors.
        """
        sweep = yield from run_group_sweep(
            self.workspace,
            self.store,
            self.reporter,
            config,
            "alone",
            "sensitivity of each layer",
            lambda *_: Urgency.SEARCH,
            group_order=self.search.candidates,
            feed_indices=self.workspace.feeds,
            reduces_groups=True,
        )
        self.search.sensitivities = {name: sensitivity_from_sweep(sweep, name) for name in self.search.candidates}
        self.search.restart()

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
        exported_run = yield from self.execute_exported_file(result.config)
        accuracy = exported_run.accuracy
        target_outcome = judge_accuracy(self.targets, accuracy) if accuracy is not None else None
        if accuracy is None or target_outcome is None:
            reason = exported_run.missing_reason or "it has no value for this target, which is inside the network"
            self.exported_result = ExportedResult(exported_run.executor_name, None, reason)
            return False
        gaps = self._find_score_gaps(simulated_accuracy, accuracy)
        shown_targets = [self.targets[index] for index in gaps] or self.targets
        measured_text, expected_text = (
            ", ".join(target.measured_value_text(shown) for target in shown_targets)
            for shown in (accuracy, simulated_accuracy)
        )
        self.exported_result = ExportedResult(
            exported_run.executor_name, target_outcome.outcome.passes, measured_text, expected_text, accuracy.samples
        )
        if not target_outcome.outcome.passes:
            self._missed_checks[best.config][RunKind.EXPORTED_FILE] = (
                f"the exported network yields {measured_text} in {exported_run.executor_name}"
            )
        if (
            target_outcome.outcome.passes
            or not result.is_met
            or self._export_rounds >= MAX_EXPORT_ROUNDS
            or not all(math.isfinite(gap) for gap in gaps.values())
        ):
            return False
        margins = [max(margin, gaps.get(index, margin)) for index, margin in enumerate(self._required_margins)]
        self._export_rounds += 1
        margins_text = " and ".join(f"{margin:.2g}" for margin in margins if math.isfinite(margin))
        remark = (
            f"the exported network with {len(result.config.find_raised_groups(self.network))} raised yields "
            f"{measured_text} in {exported_run.executor_name} "
            f"where {expected_text} was simulated; went on with a margin of {margins_text}"
        )
        self.remarks.append(remark)
        self.reporter.log(remark)  # why the best config so far no longer counts
        self.search.require_score_margins(margins)
        return True

    @property
    def _required_margins(self) -> Sequence[float]:
        """The margin that the search requires for each tolerance; -inf for a tolerance without a margin."""
        return self.search.margins or [-math.inf] * len(self.targets)

    def _find_score_gaps(self, simulated_accuracy: Accuracy, accuracy: Accuracy) -> dict[int, float]:
        """Returns the difference between the simulated and the measured score of each missed tolerance, by its index.

        The difference is NaN if either has no score. Only outputs of the run are compared, since judged outputs may be
        inside the network.
        """
        outputs = {name: output for name, output in simulated_accuracy.outputs.items() if name in accuracy.outputs}
        simulated_accuracy = replace(simulated_accuracy, outputs=outputs)
        scores = {
            index: (target.margin_score(simulated_accuracy), target.margin_score(accuracy))
            for index, target in enumerate(self.targets)
            if not target.is_met_by(accuracy)
        }
        return {
            index: math.nan if before is None or after is None else before - after
            for index, (before, after) in scores.items()
        }

    # -- unused Q/DQ ----------------------------------------------------------------------------------------------

    def _remove_unused_qdq_of_start(self) -> Steps[None]:
        """Takes unused Q/DQ out of the start config before anything is raised.

        Without them the error is smaller at no cost, so that fewer groups need a higher precision.
        """
        search, start = self.search, self.search.search_space.start_config
        removal = yield from self._find_qdq_removal(start)
        if removal is None:
            return
        names = frozenset(unused.group_name for unused in removal.groups)
        try:
            search_space = replace(search.search_space, start_config=removal.config, unquantized_groups=names)
        except InputError:  # no other group can be raised
            return
        before, after = (yield from self._evaluate_config(start)), (yield from self._evaluate_config(removal.config))
        needs_all_raised = self.request.max_latency is not None or self.request.method == "lower"
        builds_needed_later = 2 if needs_all_raised else 1
        removal = yield from self._evaluate_qdq_removal(removal, start, before, after, builds_needed_later)
        self.qdq_removals.append(removal)
        if not removal.rejection:
            search.search_space = search_space
            search.costs = count_macs(self.workspace.outline, search_space.candidates)
            search.restart()

    def _remove_unused_qdq_of_result(self) -> Steps[None]:
        """Takes Q/DQ out of the result that are unused only because groups were raised."""
        result, best = self.search.result, self.search.best_evaluation
        if not result.is_met or best is None or result.config == self.search.search_space.start_config:
            return
        removal = yield from self._find_qdq_removal(result.config)
        if removal is None:
            return
        precisions = {unused.group_name: unused.implemented for unused in removal.groups}
        name = f"Q/DQ out of {name_list_text([*precisions], 2)}"
        search_space = self.search.search_space
        while search_space.qdq_removals.get(name, precisions) != precisions:
            name += " again"
        after = yield from self._evaluate_config(removal.config)
        removal = yield from self._evaluate_qdq_removal(removal, result.config, best.target_result, after, 0)
        if not removal.rejection:
            self.search.search_space = replace(
                search_space, qdq_removals={**search_space.qdq_removals, name: precisions}
            )
            self.search.propose_qdq_removal(name)
            self.search.record_target_result(after)
            if self.search.result.config != removal.config:
                removal = replace(removal, rejection=_MISSES_TOLERANCE)
        self.qdq_removals.append(removal)
        yield from self._evaluate_proposed_configs()

    def _find_qdq_removal(self, config: PrecisionConfig) -> Steps[QdqRemoval | None]:
        """Returns a removal of the Q/DQ of a config that its previews show as unused.

        None if no Q/DQ can be taken out, no preview is possible here, or this removal was tried before. Groups whose
        Q/DQ had to stay are not tried again.
        """
        fixed_reasons = dict.fromkeys(self.request.fixed_groups, "fixed for this search") | {
            unused.group_name: removal.rejection
            for removal in self.qdq_removals
            if removal.rejection
            for unused in removal.groups
        }
        preview = (yield from self.preview_config(config)) if self._use_preview else None
        if preview is None:
            return None
        removal = yield from remove_all_unused_qdq(self.network, config, preview, self.preview_config, fixed_reasons)
        is_tried = any(removal.config == earlier.config for earlier in self.qdq_removals)
        return removal if removal.groups and not is_tried else None

    def _evaluate_qdq_removal(
        self,
        removal: QdqRemoval,
        config: PrecisionConfig,
        before: TargetResult,
        after: TargetResult,
        builds_needed_later: int,
    ) -> Steps[QdqRemoval]:
        """Measures a removal of Q/DQ. Returns the removal with its accuracies and latencies, and with the reason if it
        is rejected.

        A removal is rejected if the error grows, or if the engine is slower without the Q/DQ.

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
        configs = (config, removal.config)  # the previews alone decide if the engine of either cannot be built
        new_build_count = len(self.requested_configs.union(configs)) + builds_needed_later
        if not self.can_build or new_build_count > self.request.max_builds:
            return removal
        latencies = []
        for engine_config in configs:
            engine = yield from self._build_engine(engine_config)
            rejection = ""
            if isinstance(engine, TrtTuiError):
                rejection = f"because no engine can be built without them ({engine.title})"
            elif not engine.is_built_as_requested:
                rejection = "because no engine can be built as requested without them"
            if isinstance(engine, TrtTuiError) or rejection or engine.latency_ms is None:
                return removal if engine_config is config else replace(removal, rejection=rejection)
            latencies.append(engine.latency_ms[0])
        is_slower = latencies[1] > latencies[0]
        return replace(
            removal,
            latencies_ms=(latencies[0], latencies[1]),
            rejection="because the engine would be slower" if is_slower else "",
        )

    # -- engines ------------------------------------------------------------------------------------------------

    def _build_engine(self, config: PrecisionConfig) -> Steps[EngineResult | TrtTuiError]:
        """Builds the engine of a config and records its latency. Returns the engine, or the error of the build.

        A stored engine is not built again. Its simulated accuracy is sent too, unless the search has a single sample.
        """
        self.requested_configs.add(config)
        self._report_progress(must_send=True)
        try:
            accuracy = yield from self.measure_accuracy(config)
            if not self.request.sample:
                self.reporter.send(ev.AccuracyMeasured(self.reporter.job, "config", config, accuracy, True))
            engine = yield from get_or_build_engine(self.workspace, self.store, self.reporter, config)
        except CancelledError:
            raise
        except TrtTuiError as error:
            return error
        self.engines[config] = engine
        if engine.latency_ms is not None and engine.is_built_as_requested:
            self._latency_model.measured[drop_ranges_and_measured_moves(config)] = engine.latency_ms[0]
        return engine

    def _fit_latency_model(self) -> Steps[None]:
        """Fits the latency model to the engines of the start config and of the config with all candidates raised.

        Raises:
            TrtTuiError: An engine cannot be built, or its latency was not measured.
        """
        search_space = self.search.search_space
        all_raised = search_space.build_config(search_space.candidates)
        yield from build_engines_in_parallel(
            self.workspace, self.store, self.reporter, (search_space.start_config, all_raised)
        )
        engines = []
        for config in (search_space.start_config, all_raised):
            engine = yield from self._build_engine(config)
            if isinstance(engine, TrtTuiError):
                raise engine
            engines.append(engine)
        for name, engine in zip(("the start", "all raised"), engines, strict=True):
            if engine.latency_ms is None:
                raise InputError(
                    "latencies cannot be estimated",
                    f"the engine of {name} was not timed: {engine.measurement_note}",
                    "Leave the latency budget out, or use --max-fp32.",
                )
            if not engine.is_built_as_requested:
                self.remarks.append(
                    f"latencies are estimated from an engine of {name} that is not as requested: "
                    f"{_engine_deviation_text(engine)}"
                )
        if search_space.intermediate:
            labels = " and ".join(precision.label for precision in search_space.intermediate)
            self.remarks.append(
                f"latencies with layers in {labels} are estimates between the engines of the start and "
                "of all raised, by the bytes of a value, until engines with such layers are built"
            )
        self._latency_model.fit_to_engines(search_space, *engines)

    def _order_groups_by_cost(self) -> Steps[None]:
        """Orders the groups by the run time that a lower precision can save, the largest saving first.

        The saving is the time of the group in the engine with all candidates raised. This engine is built only if a
        further build is left to confirm the result. Without such times, the order follows the multiply-accumulates.
        """
        times: Mapping[str, float] = {}
        candidates = self.search.candidates
        all_raised = self.search.search_space.build_config(candidates)
        is_built = all_raised in self.requested_configs  # built for a latency budget
        if self.can_build and (is_built or len(self.requested_configs) + 2 <= self.request.max_builds):
            engine = yield from self._build_engine(all_raised)
            if isinstance(engine, TrtTuiError):
                self.remarks.append(f"the engine of all raised could not be built: {engine.title}")
            else:
                times = list_group_times(engine, candidates)
        costs = self.search.costs = times or self.search.costs
        order_text = (
            "the time that each takes in the engine of all raised"
            if times
            else "multiply-accumulates, since no engine's layers were timed"
            if any(costs.values())
            else "the network alone: its sizes are open"
        )
        self.remarks.append(f"reduced in the order of {order_text}")

    def _withdraw_ineffective_raises(self) -> Steps[bool]:
        """Undoes raises that do not change the previewed engine. Returns True if the search continues without them.

        If nothing else meets the tolerance, the raises are kept, and a remark says so.
        """
        result = self.search.result
        if self._before_withdrawal is not None and not result.is_met:
            self.search, self._before_withdrawal, self._use_preview = self._before_withdrawal, None, False
            self.remarks[-1] += "; kept, because no other config meets the tolerance"
            return False
        if (
            not self._use_preview
            or not result.is_met
            or result.best_evaluation is None
            or not result.best_evaluation.raised_groups
        ):
            return False
        preview = yield from self.preview_engine(result.config)
        idle_groups = [
            name
            for name in result.best_evaluation.raised_groups
            if preview is not None and name in (preview.ineffective_groups or ())
        ]
        if preview is None or not idle_groups:
            return False
        self.remarks.append(
            f"{name_list_text(idle_groups)} in "
            f"{self.request.higher_precision.label}: no effect on the engine (preview "
            f"{preview.builder_text})"
        )
        search = self.search
        try:
            search_space = replace(
                search.search_space, fixed_groups=search.search_space.fixed_groups.union(idle_groups)
            )
        except InputError:  # no other group can be raised
            self._use_preview = False
            return False
        self.remarks[-1] += ": searched without"
        self._before_withdrawal = self._before_withdrawal or copy.copy(search)
        search.search_space = search_space
        search.restart(
            evaluation
            for evaluation in search.evaluations
            if not set(idle_groups).intersection(evaluation.raised_groups)
        )
        return True

    def _check_engine_of_result(self) -> Steps[tuple[bool, str]]:
        """Builds the engine of the result. Returns True if the search continues, and a remark for the user.

        The search continues if the engine misses the simulated or estimated values. The remark is "" if there is none.

        With a latency budget, a result that misses the tolerance is built too. The search then continues with better
        latency estimates until it finds the same result again. A result that meets the target without the required
        margin is built, because its simulation alone would pass. If the build fails, the result is kept.
        """
        self._unjudged_engine_text = ""
        result, budget = self.search.result, self.request.max_latency
        best = result.best_evaluation
        is_timed = (
            best is not None
            and budget is not None
            and best.estimated_latency is not None
            and best.estimated_latency <= budget
        )
        if best is None or not self.can_build or not (self.targets and best.passes or is_timed):
            return False, ""
        is_known = is_timed and drop_ranges_and_measured_moves(result.config) in self._latency_model.measured
        if result.config not in self.requested_configs and len(self.requested_configs) >= self.request.max_builds:
            return False, (
                f"not confirmed by an engine: --max-builds allows {counted_noun_text(self.request.max_builds, 'build')}"
            ) if self.request.max_builds else ""
        engine = yield from self._build_engine(result.config)
        if isinstance(engine, TrtTuiError):
            self._unjudged_engine_text = "its engine could not be built"
            cause = f" ({engine.cause})" if engine.cause else ""
            return False, f"its engine could not be built: {engine.title}{cause}"
        if not engine.is_built_as_requested:
            self._unjudged_engine_text = "TensorRT does not build it as requested"
            return False, self._deviating_engine_remark(engine)
        raised_count = len(result.config.find_raised_groups(self.network))
        if budget is not None and best.estimated_latency is not None and is_timed and engine.latency_ms is not None:
            latency = engine.latency_ms[0]
            if latency > budget or not result.is_met and not is_known:
                self.search.restart()
                return True, (
                    f"the engine with {raised_count} raised takes {milliseconds_text(latency)} where "
                    f"{milliseconds_text(best.estimated_latency)} were estimated: more than "
                    f"{milliseconds_text(budget)}; went on with better estimates"
                ) if latency > budget else ""
        if not self.targets:
            return False, ""
        if engine.accuracy is None or any(target.is_met_by(engine.accuracy) is None for target in self.targets):
            self._unjudged_engine_text = "the tolerance cannot be measured on its engine"
            return False, "its engine was built, but the tolerance cannot be measured on it"
        target_outcome = judge_accuracy(self.targets, engine.accuracy)
        assert target_outcome is not None, "all values that the targets need were measured"
        self.confirmed = target_outcome.outcome.passes
        self._engine_values_text = ", ".join(target.measured_value_text(engine.accuracy) for target in self.targets)
        if not self.confirmed:
            self._missed_checks[best.config][RunKind.BUILT_ENGINE] = f"the engine yields {self._engine_values_text}"
        simulated_accuracy = best.target_result.accuracy
        if self.confirmed or not result.is_met or simulated_accuracy is None:
            return False, ""
        if gap_text := unexplained_gap_text(simulated_accuracy, engine.accuracy):
            return False, (
                f"its engine: {gap_text}; errors inside the engine "
                "show the fused layer where it begins, and a fusion barrier there may help"
            )
        gaps = self._find_score_gaps(simulated_accuracy, engine.accuracy)
        gap_texts = []
        for index, gap in gaps.items():
            measured_text, expected_text = (
                self.targets[index].measured_value_text(accuracy) for accuracy in (engine.accuracy, simulated_accuracy)
            )
            if not math.isfinite(gap):
                return False, f"its engine yields {measured_text}, which the simulation does not: no margin helps"
            gap_texts.append(f"{measured_text} where {expected_text} was simulated; went on with a margin of {gap:.2g}")
        if not gaps:  # the engine fails for a reason other than its values, so no margin helps
            return False, f"its engine: {target_outcome.text}"
        self.confirmed = None
        self.search.require_score_margins(
            [gaps.get(index, margin) for index, margin in enumerate(self._required_margins)]
        )
        return True, f"the engine with {raised_count} raised: {'; '.join(gap_texts)}"

    def _deviating_engine_remark(self, engine: EngineResult) -> str:
        """Returns the remark on an engine that was not built as requested, and therefore does not confirm the result."""
        text = (
            f"TensorRT refuses the config as requested ({engine.attempts[0].failure_reason}) and built it with "
            f"{_engine_deviation_text(engine)}"
        )
        result = judge_accuracy(self.targets, engine.accuracy) if engine.accuracy is not None else None
        if engine.accuracy is None or result is None:
            return f"{text}: that engine is no confirmation"
        value_texts = ", ".join(target.measured_value_text(engine.accuracy) for target in self.targets)
        result_text = "meets" if result.passes else "does not meet"
        values = f" ({value_texts})" if value_texts else ""
        return f"{text}: that engine, which does not have the config of the result, {result_text} it{values}"

    # -- accuracies -----------------------------------------------------------------------------------------------

    def measure_accuracy(self, config: PrecisionConfig) -> Steps[Accuracy]:
        """Returns the accuracy of a config on all samples of the search, or on the batch of the selected sample."""
        workspace = self.workspace
        if not self.request.sample:
            return (yield from measure_final_accuracy(workspace, self.store, self.reporter, config, Urgency.SEARCH))
        if self.feed_index is None:
            full_accuracy = yield from measure_final_accuracy(
                workspace, self.store, self.reporter, self.request.config, Urgency.SEARCH
            )
            worst, feeds = full_accuracy.worst_sample_errors, workspace.feeds
            name = worst.worst_sample if worst is not None else None
            worst_feed = workspace.data_sets.judged_samples.find_sample(name)[0] if name is not None else feeds[0]
            self.feed_index = worst_feed if worst_feed in feeds else feeds[0]
            self._searched_feeds = () if worst_feed in feeds else (worst_feed,)
        return (
            yield from override_urgency(
                Urgency.SEARCH,
                run_to_last_value(
                    workspace.analysis.measure_accuracy(
                        config, workspace.ranges, JudgedFeeds.from_indices([self.feed_index], self._searched_feeds)
                    )
                ),
            )
        )

    def measure_accuracies_in_parallel(self, choose_configs: Callable[[int], Sequence[PrecisionConfig]]) -> Steps[None]:
        """Measures the requested config. If there are workers, they measure configs that may be requested next at the
        same time.

        Nothing is measured in advance if one evaluation takes less than `MIN_PARALLEL_S`, since a request to a worker
        takes longer.

        Args:
            choose_configs: A function that returns up to a number of configs, the requested config first.
        """
        worker_pool = self.workspace.worker_pool
        if (
            worker_pool is None
            or worker_pool.failure_reason
            or self.request.sample
            or self._max_judging_s < MIN_PARALLEL_S
        ):
            return
        worker_count = worker_pool.count_workers()
        if (
            worker_count > 1
            and self.store.load_result(self.workspace, "verdict", choose_configs(1)[0], Accuracy) is None
        ):
            yield from measure_accuracies_in_parallel(
                self.workspace, self.store, self.reporter, choose_configs(worker_count), Urgency.SEARCH
            )

    def measure_held_out_samples(
        self, config: PrecisionConfig, accuracy: Accuracy | None
    ) -> Steps[HeldOutResult | None]:
        """Returns the accuracy of a result on samples that the search has not used; None if there are too few.

        Samples that calibrate the start of the search judge a result without measured ranges.

        Args:
            accuracy: The accuracy on the samples of the search.
        """
        workspace, analysis = self.workspace, self.workspace.analysis
        others = (
            workspace.held_out_feeds
            if self.feed_index is None
            else [index for index in workspace.feeds if index != self.feed_index]
        )
        calibrating, is_calibrated = workspace.feeds.searched_feeds, workspace.is_calibrated_on_data(config)
        feed_indices = JudgedFeeds.from_indices(
            sorted((*others, *(() if is_calibrated else calibrating))),
            calibrating if is_calibrated and self.feed_index is not None else (),
        )
        if not feed_indices or not self.targets:
            return None
        held_out_targets = self.targets
        if any(target.kind == "metric" for target in self.targets):
            for index in feed_indices:
                analysis.get_reference_outputs(index)
                yield Urgency.SEARCH
            base = analysis.measure_reference_metric(feed_indices)
            held_out_targets = tuple(target.with_base_values(base, covers_all_samples=False) for target in self.targets)
        partials = analysis.measure_accuracy(config, workspace.ranges, feed_indices, with_metric_interval=True)
        held_out_accuracy = yield from self.reporter.run_steps(
            run_to_last_value(partials, "held-out samples"), Urgency.SEARCH
        )
        selection_count = (
            workspace.judged_sample_count
            if self.feed_index is None
            else workspace.data_sets.judged_samples.count_samples_of_feed(self.feed_index)
        )
        values = tuple(
            HeldOutValue(
                held_out_target.text,
                *_value_and_interval_texts(target, accuracy),
                *_value_and_interval_texts(held_out_target, held_out_accuracy),
            )
            for target, held_out_target in zip(self.targets, held_out_targets, strict=True)
        )
        return HeldOutResult(
            check_targets(held_out_targets, held_out_accuracy), held_out_accuracy.samples, selection_count, values
        )

    # -- groups, changes and ranges -------------------------------------------------------------------------------

    def propose_zero_cost_moves(
        self, config: PrecisionConfig, kind: ZeroCostKind, budget: TrialBudget
    ) -> dict[str, PrecisionConfig]:
        """Returns the configs with further zero-cost moves of a kind, by the label of the moves.

        Args:
            budget: The budget of the configs that are simulated to measure the moves.
        """
        workspace, leaves_file = self.workspace, False
        if workspace.network.source_model is not None:
            try:
                ensure_ranges(
                    workspace,
                    self.store,
                    self.reporter,
                    [replace_file_precision_of_groups(config, workspace.network.groups)],
                )
                leaves_file = True
            except InputError as error:
                if not self._has_named_file_layers:
                    self.reporter.log(
                        f"Zero-cost changes are not tried on layers in file precision: {error.title}.", "warning"
                    )
                self._has_named_file_layers = True
        proposals = propose_zero_cost_moves(
            workspace,
            self.store,
            self.reporter,
            workspace.network.groups,
            config,
            [kind],
            reason=f"search:{self.request.method}",
            may_replace_file_precision=leaves_file,
            in_separate_pass=True,
            budget=budget,
        )
        return {proposal.label: proposal.config for proposal in proposals}

    # -- engines and files ----------------------------------------------------------------------------------------

    def execute_exported_file(self, config: PrecisionConfig) -> Steps[ExportedRun]:
        """Executes the exported file of a config on the samples of the search. Returns the result."""
        feed_indices = None if self.feed_index is None else [self.feed_index]
        exported_run = yield from execute_exported_file(
            self.workspace, self.store, self.reporter, config, Urgency.SEARCH, feed_indices
        )
        if feed_indices is None:
            self.reporter.send(ev.ExportedFileExecuted(self.reporter.job, config, exported_run))
        return exported_run

    def preview_config(self, config: PrecisionConfig) -> Steps[Preview | None]:
        """Returns the preview of a config; None if no preview is possible here. Weakly typed releases have none."""
        if not is_tensorrt_rtx_installed() or preview_mismatch_reason(self.workspace):
            return None
        self.reporter.send_progress("preview", 0, 0)
        preview = yield from self._make_preview_client().preview_config(config)
        self._report_progress(must_send=True)
        return preview if preview.refusal is None else None

    def preview_engine(self, config: PrecisionConfig) -> Steps[Preview | None]:
        """Returns the preview of a config with the effects of its moves; None if no preview is possible here."""
        preview = yield from self.preview_config(config)
        if preview is None or preview.ineffective_groups is not None:
            return preview
        return (yield from self._make_preview_client().add_move_effects(config, preview))

    def _make_preview_client(self) -> PreviewClient:
        return PreviewClient(self.workspace, self.store, self.reporter, self.workspace.ranges)

    def run_check_command(self, config: PrecisionConfig) -> Steps[CheckResult]:
        """Runs the check command on a config, once while the network is open.

        The result is not stored on disk, since files that the command reads may change.
        """
        workspace, command = self.workspace, self.request.check_command or ""
        key = self.store.make_result_key(workspace, "check", config, command)
        result = workspace.check_results.get(key)
        if result is None:
            arrays_by_tensor: dict[str, list[np.ndarray]] = {}
            for outputs in workspace.analysis.execute_config(config, workspace.ranges, workspace.feeds):
                for tensor, array in outputs.items():
                    arrays_by_tensor.setdefault(tensor, []).append(array)
                yield Urgency.SEARCH
            joined = {tensor: join_batches(tensor, arrays) for tensor, arrays in arrays_by_tensor.items()}
            with create_scratch_folder() as scratch_folder:
                (folder := scratch_folder / "check").mkdir()
                write_check_files(
                    folder, workspace.network, config, workspace.calibration or Calibration(), workspace.ranges, joined
                )
                result = yield from run_check_command(command, folder, self.reporter.wake)
                self._show_check_errors(config, result, shown_error_text(folder))
            workspace.check_results[key] = result
        yield Urgency.SEARCH
        return result

    def _show_check_errors(self, config: PrecisionConfig, result: CheckResult, error_text: str) -> None:
        """Sends the stderr of a failed check or an uncertain pass, unless the last such check had the same text."""
        if not result.failure_reason + result.doubt_reason or error_text in ("", self._shown_check_errors):
            return
        count = len(config.find_raised_groups(self.workspace.network))
        self.reporter.log(f"With {counted_noun_text(count, 'raised layer')} {result.text}:\n{error_text}", "note")
        self._shown_check_errors = error_text

    # -- progress -----------------------------------------------------------------------------------------------

    def _report_progress(self, must_send: bool = False) -> None:
        """Sends the progress of the search, at most ten times a second.

        Args:
            must_send: True to send it in any case, because the next step may crash the background process.
        """
        reporter, search, trial = self.reporter, self.search, self.search.current_trial or Trial(step_name="search")
        if must_send or reporter.is_report_due("search"):
            reporter.send(
                ev.SearchProgress(
                    reporter.job,
                    len(search.evaluations),
                    trial,
                    search.result,
                    self._has_other_samples,
                    search.margins,
                    tuple(self.remarks),
                )
            )

    def make_end_event(
        self,
        *,
        was_stopped: bool = False,
        held_out_result: HeldOutResult | None = None,
        accuracy_with_interval: Accuracy | None = None,
    ) -> ev.SearchEnded:
        """Returns the event that reports the result so far.

        Args:
            accuracy_with_interval: The accuracy of the result with the confidence interval of the metric; None without
                a metric.
        """
        search, result = self.search, self.search.result
        removals = [
            removal
            for removal in self.qdq_removals
            if removal.rejection or not removal.find_quantized_groups(self.network, result.config)
        ]
        qdq_reasons = {
            name: reason
            for removal in removals
            if not removal.rejection
            for name, reason in removal.move_reasons.items()
            if name in result.config.precision_moves and result.config.precision_moves[name].reason == PREVIEW_REASON
        }
        result = replace(result, raise_reasons={**qdq_reasons, **result.raise_reasons})
        target_outcome: TargetOutcome | None = None
        best, caveats = result.best_evaluation, self._list_export_and_engine_caveats()
        check_result = self._check_results.get(result.config)
        if best is not None and best.target_result.accuracy is not None:
            # The interval of the metric cannot change a failed command or a missed target.
            measured = (
                accuracy_with_interval
                if accuracy_with_interval is not None and best.passes
                else best.target_result.accuracy
            )
            accuracy = replace(measured, caveats=(*measured.caveats, *caveats)) if caveats else measured
            result = replace(
                result, best_evaluation=replace(best, target_result=replace(best.target_result, accuracy=accuracy))
            )
            if self.confirmed:  # its engine shows the gap of this config
                accuracy = replace(
                    accuracy, caveats=tuple(entry for entry in accuracy.caveats if entry.kind not in GAP_KINDS)
                )
            if measured is accuracy and measured is not accuracy_with_interval:
                target_outcome = best.target_result.target_outcome
            elif (target_outcome := judge_accuracy(self.targets, accuracy)) is not None and check_result is not None:
                target_outcome = combine_with_check(target_outcome, check_result)
        miss_text = held_out_result.miss_text if held_out_result is not None else ""
        target_outcome = target_outcome and target_outcome.with_missed_check(miss_text)
        missed_checks = [*(caveat.text for caveat in caveats if caveat.fails_run), *filter(None, [miss_text])]
        is_confirmed = (
            bool(self.confirmed)
            and best is not None
            and (check_result is None or check_result.passes)
            and search.is_within_budget(best.raised_groups, best.precisions)
        )
        is_met = (result.is_met or is_confirmed) and not missed_checks
        if is_met is not result.is_met:
            checks = missed_checks or [f"met by its engine: {self._engine_values_text}"]
            summary = f"{'; '.join(checks)}; simulated on the samples of the search, {result.summary}"
            result = replace(result, is_met=is_met, summary=summary)
        return ev.SearchEnded(
            self.reporter.job,
            result,
            search.method_text,
            tuple(search.evaluations),
            len(search.candidates),
            bool(search.sensitivities),
            self.confirmed,
            (
                *(removal.report_text for removal in removals),
                *self.remarks,
                *(
                    match.warning_text(self.network)
                    for match in match_known_defects(
                        self.network, self.workspace.build_target, result.config.precision_of
                    )
                    if match.is_certain and match.defect.is_in_exports
                ),
            ),
            was_stopped,
            held_out_result,
            self._make_engine_texts(),
            self._find_pareto_front(),
            search.margins,
            target_outcome,
            self.exported_result,
            self._has_other_samples,
            tuple(removals),
            replace(search.zero_cost_effort),
            {
                index: self._missed_checks[evaluation.config]
                for index, evaluation in enumerate(search.evaluations)
                if evaluation.config in self._missed_checks
            },
        )

    def _make_engine_texts(self) -> dict[int, str]:
        """Returns the measured values of each built engine as text, by the index of the evaluation of its config."""
        texts: dict[int, str] = {}
        for config, engine in self.engines.items():
            value_texts = (
                [target.measured_value_text(engine.accuracy) for target in self.targets]
                if engine.accuracy is not None
                else []
            )
            value_texts += [milliseconds_text(engine.latency_ms[0])] if engine.latency_ms is not None else []
            indices = [index for index, tried in enumerate(self.search.evaluations) if tried.config == config]
            texts |= dict.fromkeys(indices, ", ".join(value_texts) or "not judged")
        return texts

    def _list_export_and_engine_caveats(self) -> list[Caveat]:
        """Returns a caveat for a missing or failed exported file, and one for an engine that failed or is not judged."""
        exported, caveats = self.exported_result, []
        if exported is not None and not exported.is_met:
            kind = "not executed" if exported.is_met is None else "not met as exported"
            caveats.append(Caveat(kind, exported.exported_result_text, fails_run=exported.is_met is False))
        if self._unjudged_engine_text:
            caveats.append(Caveat("no engine", self._unjudged_engine_text))
        if self.confirmed is False:
            caveats.append(
                Caveat("not met by its engine", f"not met by its engine: {self._engine_values_text}", fails_run=True)
            )
        return caveats

    def _find_pareto_front(self) -> tuple[int, ...]:
        """Returns the indices of the evaluations whose configs no other config beats in both cost and score.

        Of equal configs the best evaluation is returned, or the first. Evaluations with a non-finite score are left
        out.
        """
        search, best = self.search, self.search.best_evaluation
        finite = [
            (index, evaluation)
            for index, evaluation in sorted(enumerate(search.evaluations), key=lambda item: item[1] is not best)
            if evaluation.score > -math.inf
        ]
        points = [
            (
                evaluation.estimated_latency
                if evaluation.estimated_latency is not None
                else sum(search.costs.get(name, 0.0) for name in evaluation.raised_groups),
                evaluation.score,
            )
            for _, evaluation in finite
        ]
        return tuple(finite[place][0] for place in pareto_front(points))


def _engine_deviation_text(engine: EngineResult) -> str:
    deviation_text = unrequested_precisions_text(engine.other_precisions)
    return f"{engine.attempts[-1].changes_text}; in another precision: {deviation_text}"
