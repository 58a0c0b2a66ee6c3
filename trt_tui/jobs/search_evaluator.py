"""The measurements of a search: simulated accuracies and sensitivities, engines, and the user's check command."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from trt_tui.core.calibration.calibration import Calibration, select_ranges_for_type
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.held_out import MIN_HELD_OUT_SAMPLES, MIN_SEARCH_SAMPLES
from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.engines.preview import Preview
from trt_tui.core.lowering.lowering_checks import no_lower_precision_reason, reduces_precision
from trt_tui.core.measure.group_sweep import GroupSweep, GroupSweepState
from trt_tui.core.measure.results import FP32_ENGINE, Accuracy, EngineErrors, EngineResult, ExportedRun, GroupErrors
from trt_tui.core.measure.shares import GroupSensitivity, sensitivity_from_sweep
from trt_tui.core.measure.target import Target, parse_target
from trt_tui.core.measure.target_outcome import HeldOutResult, HeldOutValue, check_targets
from trt_tui.core.measure.zero_cost_kind import TrialBudget, ZeroCostKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.zero_cost_checks import replace_file_precision
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.search import SearchSpace
from trt_tui.core.search.strategy_protocol import ZeroCostEffort
from trt_tui.errors import CancelledError, InputError
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.formatting import counted_noun_text, duration_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges, measure_ranges_by_method
from trt_tui.jobs.check_command import (
    CheckResult,
    run_check_command,
    shown_error_text,
    validate_check_command,
    write_check_files,
)
from trt_tui.jobs.comparison import (
    add_metric_intervals,
    load_group_errors,
    measure_accuracies_in_parallel,
    measure_accuracy,
    send_group_errors,
    send_reference_metric,
)
from trt_tui.jobs.engine import build_and_send_engine, build_engines_in_parallel, get_engine, send_engine_errors
from trt_tui.jobs.engine_preview import PreviewClient, is_tensorrt_rtx_installed, preview_mismatch_reason
from trt_tui.jobs.executions import execute_exported_file
from trt_tui.jobs.scheduler import JobReporter, choose_next_job_step, get_executor
from trt_tui.jobs.search_builds import count_candidate_macs
from trt_tui.jobs.search_job import SearchJob
from trt_tui.jobs.steps import Steps, Urgency, override_urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.jobs.zero_cost_moves import propose_zero_cost_moves
from trt_tui.workspace import Workspace, can_run_engines

MIN_PARALLEL_S = 0.1
"""The duration in seconds of one accuracy measurement from which workers measure further configs in advance."""


def run_search_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                   request: rq.FindMixedPrecisionConfig) -> Steps[None]:
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
        raise InputError("the search has nothing to do",
                         no_lower_precision_reason(network) or "every layer is in FP32 already",
                         "Start with a config in lower precision, such as --precision int8.")
    if request.check_command is not None:
        validate_check_command(request.check_command)
    ensure_ranges(workspace, store, reporter, [request.config])
    shown_workspace, full_reporter = workspace, reporter
    workspace = workspace.make_search_view(_can_calibrate(workspace, request), request.hold_out and not request.sample)
    has_other_samples = workspace.feeds != shown_workspace.find_judged_feeds(request.config)
    refusal_reason = _find_hold_out_refusal(workspace, request)
    if has_other_samples:
        reporter = _mute_measurement_events(reporter)
    evaluator = WorkspaceEvaluator(workspace, store, reporter, request)
    if request.sample not in ("", "worst"):
        evaluator.feed_index = _find_feed_of_sample(workspace, request.sample)
    search_job = SearchJob(network, request, targets, evaluator, shown_workspace.build_target)
    if refusal_reason and workspace.judged_sample_count >= MIN_SEARCH_SAMPLES + MIN_HELD_OUT_SAMPLES:
        search_job.remarks.append(f"not checked on held-out samples: {refusal_reason}")
    if any(target.kind == "metric" for target in targets):
        reference_values = yield from send_reference_metric(workspace, store, reporter, [request.config])
        search_job.targets = tuple(target.with_base_values(reference_values) for target in targets)
    try:
        yield from search_job.run_search_steps()
        settled_accuracy = yield from _measure_metric_interval(workspace, store, reporter, search_job)
        held_out = yield from _measure_held_out_samples(workspace, reporter, search_job, evaluator.feed_index,
                                                        settled_accuracy)
    except (GeneratorExit, CancelledError):
        reporter.send(
            replace(search_job.make_end_event(reporter.job, was_stopped=True), has_other_samples=has_other_samples))
        raise
    if has_other_samples and search_job.search.result.is_met:
        # The engine and the exported file are measured again, on the samples of the session.
        config = search_job.search.result.config
        if search_job.search_builds.has_requested_engine(config):
            yield from build_and_send_engine(shown_workspace, store, full_reporter, config)
        full_reporter.send(ev.ExportedFileExecuted(reporter.job, config, (
            yield from execute_exported_file(shown_workspace, store, full_reporter, config, Urgency.SEARCH))))
    ended = search_job.make_end_event(reporter.job, held_out_result=held_out, accuracy_with_interval=settled_accuracy)
    reporter.send(replace(ended, has_other_samples=has_other_samples))


def _can_calibrate(workspace: Workspace, request: rq.FindMixedPrecisionConfig) -> bool:
    """Returns True if the calibration samples determine any config of a search: its start, or one with other ranges or
    zero-cost changes."""
    if not request.try_zero_cost and not request.try_ranges:
        return workspace.is_calibrated_on_data(request.config)
    config = replace_file_precision(request.config, workspace.network.groups)
    return any(config.precision_of(group) in QUANTIZED_TYPES for group in workspace.network.groups)


def _find_hold_out_refusal(workspace: Workspace, request: rq.FindMixedPrecisionConfig) -> str:
    """Returns the reason why a search that should hold out samples does not; "" if it holds some out."""
    if not request.hold_out or request.sample or workspace.held_out:
        return ""
    return workspace.choose_held_out_feeds().refusal_reason


def _measure_metric_interval(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                             search_job: SearchJob) -> Steps[Accuracy | None]:
    """Returns the accuracy of the result with the confidence interval of the metric; None if no tolerance bounds the
    metric."""
    best, config = search_job.search.result.best_evaluation, search_job.search.result.config
    if best is None or search_job.request.sample or not any(target.kind == "metric" for target in search_job.targets):
        return None
    yield from override_urgency(Urgency.SEARCH, add_metric_intervals(workspace, store, reporter, {"config": config}))
    return store.load_result(workspace, "verdict", config, Accuracy)


_SAMPLE_BOUND_EVENTS = (ev.AccuracyMeasured, ev.EngineBuilt, ev.GroupErrorsMeasured,
                        ev.ReferenceMetricMeasured, ev.EngineErrorsMeasured, ev.ExportedFileExecuted)
"""The events whose values depend on the samples that they were measured on."""


def _mute_measurement_events(reporter: JobReporter) -> JobReporter:
    """Returns a reporter that drops values measured on other samples than the session uses."""
    filtered = copy.copy(reporter)

    def send_other_events(event: ev.Event) -> None:
        is_engine = isinstance(event, ev.ValueMeasured) and event.kind == FP32_ENGINE
        if not is_engine and not isinstance(event, _SAMPLE_BOUND_EVENTS):
            reporter.send(event)

    filtered.send = send_other_events
    return filtered


def _measure_held_out_samples(workspace: Workspace, reporter: JobReporter, search_job: SearchJob,
                              selection_feed_index: int | None,
                              settled_accuracy: Accuracy | None) -> Steps[HeldOutResult | None]:
    """Returns the accuracy of the result on samples that the search has not used; None if there are too few.

    Samples that calibrate the start of the search judge a result without measured ranges.

    Args:
        settled_accuracy: The accuracy on the samples of the search with the interval of the metric; None if it has no
            other values than the evaluation.
    """
    analysis, result, targets = workspace.analysis, search_job.search.result, search_job.targets
    others = workspace.held_out if selection_feed_index is None else [
        index for index in workspace.feeds if index != selection_feed_index]
    calibrating, is_calibrated = workspace.feeds.searched_feeds, workspace.is_calibrated_on_data(result.config)
    feed_indices = JudgedFeeds.from_indices(
        sorted((*others, *(() if is_calibrated else calibrating))),
        calibrating if is_calibrated and selection_feed_index is not None else ())
    if not feed_indices or not targets or result.best_evaluation is None:
        return None
    search_accuracy, search_targets = settled_accuracy or result.best_evaluation.target_result.accuracy, targets
    if any(target.kind == "metric" for target in targets):
        for index in feed_indices:
            analysis.get_reference_outputs(index)
            yield Urgency.SEARCH
        base = analysis.measure_reference_metric(feed_indices)
        targets = tuple(target.with_base_values(base, covers_all_samples=False) for target in targets)
    start_time, accuracy = time.monotonic(), Accuracy({})
    for partial in analysis.measure_accuracy(result.config, workspace.ranges, feed_indices, with_metric_interval=True):
        accuracy = partial.value
        reporter.send_progress("held-out samples", partial.done_count, partial.total_count, start_time)
        yield Urgency.SEARCH
    selection_count = (workspace.judged_sample_count if selection_feed_index is None else
                       workspace.data_sets.judged_samples.count_samples_of_feed(selection_feed_index))
    values = tuple(
        HeldOutValue(target.text, *_value_and_interval_texts(search_target, search_accuracy),
                     *_value_and_interval_texts(target, accuracy))
        for search_target, target in zip(search_targets, targets, strict=True))
    return HeldOutResult(check_targets(targets, accuracy), accuracy.samples, selection_count, values)


def _value_and_interval_texts(target: Target, accuracy: Accuracy | None) -> tuple[str, str]:
    """Returns the value that a target bounds and its confidence interval as texts; "" if they are unknown."""
    if accuracy is None:
        return "", ""
    return target.measured_value_text(accuracy), target.confidence_interval_text(accuracy)


def _find_feed_of_sample(workspace: Workspace, text: str) -> int:
    """Returns the index of the feed that contains a sample.

    Raises:
        InputError: There is no such sample, or it does not judge the search.
    """
    name = SampleName.from_text(text)
    assert name is not None, "the text was checked"
    feed_index, _ = workspace.data_sets.judged_samples.find_sample(name)
    if feed_index not in workspace.feeds:
        raise InputError(f"sample {name} cannot be searched on", "it calibrates",
                         "Name another sample, or calibrate on other data with --calib-data.")
    return feed_index


class WorkspaceEvaluator:
    """The measurements of a search in a workspace, as a `trt_tui.jobs.search_job.SearchEvaluator`."""

    def __init__(self, workspace: Workspace, store: ResultStore, reporter: JobReporter,
                 request: rq.FindMixedPrecisionConfig) -> None:
        self._workspace, self._store, self._report, self._request = workspace, store, reporter, request
        builder = workspace.builder
        self.can_build = builder is not None and can_run_engines(builder, workspace.plan.settings)
        self.has_check = request.check_command is not None
        self.feed_index: int | None = None
        feeds = workspace.feeds  # those that calibrate are searched at the end, unless nothing is measured then
        self._searched_feeds = feeds.searched_feeds if len(feeds) == 1 else ()
        self._max_duration_s = 0.0
        self._shown_check_errors = ""
        self._has_named_file_layers = False

    def report_progress(self, search_job: SearchJob, must_send: bool = False) -> None:
        """Sends the progress of the search, at most ten times a second unless ``must_send`` is True."""
        if must_send or self._report.is_report_due("search"):
            self._report.send(search_job.make_progress_event(self._report.job))

    def measure_accuracy(self, config: PrecisionConfig) -> Steps[Accuracy]:
        """Returns the accuracy of a config on all samples of the search, or on the batch of the selected sample."""
        if self._request.sample:
            return (yield from self._measure_selected_feed_accuracy(config))
        return (yield from self._measure_accuracy_on_all_samples(config))

    def measure_accuracies_in_parallel(
            self, choose_configs: Callable[[int, float], Sequence[PrecisionConfig]]) -> Steps[None]:
        """Implements `trt_tui.jobs.search_job.SearchEvaluator.measure_accuracies_in_parallel`.

        Nothing is measured in advance if one measurement takes less than `MIN_PARALLEL_S`, since a request to a worker
        takes longer.
        """
        workspace, worker_pool = self._workspace, self._workspace.worker_pool
        if (worker_pool is None or worker_pool.failure_reason or self._request.sample
                or self._max_duration_s < MIN_PARALLEL_S):
            return
        if (worker_count := worker_pool.count_workers()) > 1 and self._store.load_result(workspace, "verdict",
                                                                                         choose_configs(1, 0.0)[0],
                                                                                         Accuracy) is None:
            yield from measure_accuracies_in_parallel(workspace, self._store, self._report,
                                                      choose_configs(worker_count, self._max_duration_s / 4),
                                                      Urgency.SEARCH)

    def _measure_selected_feed_accuracy(self, config: PrecisionConfig) -> Steps[Accuracy]:
        workspace = self._workspace
        if self.feed_index is None:
            full_accuracy = yield from self._measure_accuracy_on_all_samples(self._request.config)
            worst, feeds = full_accuracy.worst_sample_errors, workspace.feeds
            name = worst.worst_sample if worst is not None else None
            worst_feed = workspace.data_sets.judged_samples.find_sample(name)[0] if name is not None else feeds[0]
            self.feed_index = worst_feed if worst_feed in feeds else feeds[0]
            self._searched_feeds = () if worst_feed in feeds else (worst_feed,)
        accuracy: Accuracy | None = None
        for partial in workspace.analysis.measure_accuracy(config, workspace.ranges, JudgedFeeds.from_indices(
                [self.feed_index], self._searched_feeds)):
            accuracy = partial.value
            yield Urgency.SEARCH
        assert accuracy is not None, "a feed was named"
        return accuracy

    def count_candidate_macs(self, search_space: SearchSpace) -> dict[str, float]:
        return count_candidate_macs(search_space, self._workspace.outline)

    def measure_candidate_times(self, search_space: SearchSpace) -> dict[str, float]:
        engine = self._store.load_engine_result(self._workspace, search_space.build_config(search_space.candidates))
        implementations = engine.implementations if engine is not None else {}
        return {
            name: ms
            for name in search_space.candidates
            if name in implementations and (ms := implementations[name].latency_ms) is not None
        }

    def _measure_accuracy_on_all_samples(self, config: PrecisionConfig) -> Steps[Accuracy]:
        latest: Accuracy | None = None
        start_time = time.monotonic()
        for accuracy in measure_accuracy(self._workspace, self._store, self._report, config):
            latest = accuracy
            self._max_duration_s = max(self._max_duration_s, time.monotonic() - start_time)
            yield Urgency.SEARCH
        assert latest is not None, "a workspace has feeds"
        return latest

    def propose_zero_cost_moves(self, config: PrecisionConfig, kinds: Sequence[ZeroCostKind],
                                budget: TrialBudget) -> dict[str, PrecisionConfig]:
        workspace, leaves_file = self._workspace, False
        if workspace.network.source_model is not None:
            try:
                ensure_ranges(workspace, self._store, self._report,
                              [replace_file_precision(config, workspace.network.groups)])
                leaves_file = True
            except InputError as error:
                if not self._has_named_file_layers:
                    self._report.send(ev.LogMessage(
                        self._report.job, "Zero-cost changes are not tried on layers in file precision: "
                                          f"{error.title}.", "warning"))
                self._has_named_file_layers = True
        zero_cost_configs = propose_zero_cost_moves(
            workspace, self._store, self._report, workspace.network.groups, config, kinds,
            reason=f"search:{self._request.method}", may_replace_file_precision=leaves_file,
            in_separate_pass=True, budget=budget)
        return {proposal.label: proposal.config for proposal in zero_cost_configs}

    def report_zero_cost_budget(self, effort: ZeroCostEffort) -> None:
        self._report.send(ev.LogMessage(
            self._report.job, "Zero-cost changes and other ranges: at most "
            f"{counted_noun_text(effort.budget, 'simulated config')}, about "
            f"{duration_text(effort.predicted_s)}, besides the measurement of the changes.", "info"))

    def measure_alternative_ranges(self, groups: Sequence[FusionGroup],
                                   config: PrecisionConfig) -> dict[str, dict[str, float]]:
        """Returns the ranges (amax) of other range methods, by tensor and method. Ranges equal to the current range are
        left out."""
        method_ranges = measure_ranges_by_method(self._workspace, self._report, groups, config, in_separate_pass=True)
        other_ranges: dict[str, dict[str, float]] = {}
        for group in groups:
            precision = config.precision_of(group)
            current = select_ranges_for_type(self._workspace.ranges, QUANTIZED_TYPES[precision])
            for tensor in dict.fromkeys(site.tensor for site in group.calibrated_qdq_sites(precision)):
                other_ranges[tensor] = {
                    method: amax
                    for method, amax in method_ranges[tensor].items()
                    if amax != current.get(tensor)
                }
        return other_ranges

    def build_engines_in_parallel(self, configs: Sequence[PrecisionConfig]) -> Steps[None]:
        return build_engines_in_parallel(self._workspace, self._store, self._report, configs)

    def build_engine(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns the engine of a config, and sends its simulated accuracy too."""
        accuracy = yield from self.measure_accuracy(config)
        self._report.send(ev.AccuracyMeasured(self._report.job, "config", config, accuracy, True))
        return (yield from get_engine(self._workspace, self._store, self._report, config))

    def execute_exported_file(self, config: PrecisionConfig) -> Steps[ExportedRun]:
        feed_indices = None if self.feed_index is None else [self.feed_index]
        exported_run = yield from execute_exported_file(self._workspace, self._store, self._report, config,
                                                        Urgency.SEARCH, feed_indices)
        if feed_indices is None:
            self._report.send(ev.ExportedFileExecuted(self._report.job, config, exported_run))
        return exported_run

    def measure_engine_errors(self, config: PrecisionConfig) -> Steps[EngineErrors | None]:
        builder = self._workspace.builder
        use_marked_engine = builder is None or not builder.capabilities.debug_tensors
        return (yield from send_engine_errors(self._workspace, self._store, self._report, config,
                                              use_marked_engine))

    def measure_group_errors(self, config: PrecisionConfig) -> Steps[Mapping[str, GroupErrors]]:
        workspace, store, reporter = self._workspace, self._store, self._report
        yield from send_group_errors(workspace, store, reporter, {"config": config}, Urgency.SEARCH)
        return load_group_errors(workspace, store, config, workspace.find_group_error_feeds(config)) or {}

    def preview_config(self, config: PrecisionConfig) -> Steps[Preview | None]:
        """Implements `trt_tui.jobs.search_job.SearchEvaluator.preview_config`.

        Weakly typed releases have no preview.
        """
        if not is_tensorrt_rtx_installed() or preview_mismatch_reason(self._workspace):
            return None
        preview = yield from self._make_preview_client().preview_config(config)
        return preview if preview.refusal is None else None

    def preview_engine(self, config: PrecisionConfig) -> Steps[Preview | None]:
        preview = yield from self.preview_config(config)
        if preview is None or preview.ineffective_groups is not None:
            return preview
        return (yield from self._make_preview_client().add_move_effects(config, preview))

    def _make_preview_client(self) -> PreviewClient:
        return PreviewClient(self._workspace, self._store, self._report, self._workspace.ranges)

    def measure_sensitivities(self, config: PrecisionConfig,
                              group_names: Sequence[str]) -> Steps[Mapping[str, GroupSensitivity]]:
        """Implements `trt_tui.jobs.search_job.SearchEvaluator.measure_sensitivities`.

        All groups are measured on a few samples, and groups that may matter on more. The groups are in network order,
        independent of known errors.
        """
        workspace, store, reporter = self._workspace, self._store, self._report
        exact = workspace.options.exact
        store_kind = "alone, exact" if exact else "alone"
        executor = get_executor(workspace, reporter)
        sweep = GroupSweep(workspace.analysis, config, workspace.ranges, group_order=group_names,
                           feed_indices=workspace.feeds, measures_all_samples=exact, reduces_groups=True,
                           earlier_state=store.load_result(workspace, store_kind, config,
                                                           GroupSweepState), executor=executor)
        start_time = time.monotonic()
        try:
            for done, total in sweep.measure_groups():
                reporter.send_progress(f"sensitivity of each layer{executor.location_text}", round(done),
                                       max(round(total), round(done) + 1), start_time)
                if reporter.is_report_due("sensitivities kept"):
                    store.save_result(workspace, store_kind, config, sweep.state)
                yield choose_next_job_step(executor, Urgency.SEARCH)
        finally:
            store.save_result(workspace, store_kind, config, sweep.state)
        return {name: sensitivity_from_sweep(sweep, name) for name in group_names}

    def run_check_command(self, config: PrecisionConfig) -> Steps[CheckResult]:
        """Runs the check command on a config, once while the network is open.

        The result is not stored on disk, since files that the command reads may change.
        """
        workspace, command = self._workspace, self._request.check_command or ""
        key = self._store.make_result_key(workspace, "check", config, command)
        result = workspace.check_results.get(key)
        if result is None:
            arrays_by_tensor: dict[str, list[np.ndarray]] = {}
            for outputs in workspace.analysis.execute_config(config, workspace.ranges, workspace.feeds):
                for tensor, array in outputs.items():
                    arrays_by_tensor.setdefault(tensor, []).append(np.atleast_1d(array))
                yield Urgency.SEARCH
            joined = {tensor: np.concatenate(arrays) for tensor, arrays in arrays_by_tensor.items()}
            with create_scratch_folder() as scratch_folder:
                (folder := scratch_folder / "check").mkdir()
                write_check_files(folder, workspace.network, config, workspace.calibration or Calibration(),
                                  workspace.ranges, joined)
                result = yield from run_check_command(command, folder, self._report.wake)
                self._show_check_errors(config, result, shown_error_text(folder))
            workspace.check_results[key] = result
        yield Urgency.SEARCH
        return result

    def _show_check_errors(self, config: PrecisionConfig, result: CheckResult, error_text: str) -> None:
        """Sends the stderr of a failed check or an uncertain pass, unless the last such check had the same text."""
        if not result.failure_reason + result.doubt_reason or error_text in ("", self._shown_check_errors):
            return
        count = len(config.find_raised_groups(self._workspace.network))
        self._report.send(ev.LogMessage(
            self._report.job, f"With {counted_noun_text(count, 'raised layer')} {result.text}:\n{error_text}", "note"))
        self._shown_check_errors = error_text
