"""The measurements of a search: simulated accuracies and sensitivities, engines, and the user's check command."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trt_tui.core.calibration.calibration import Calibration, select_ranges_for_type
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.engines.preview import Preview
from trt_tui.core.measure.results import Accuracy, EngineErrors, EngineResult, ExportedRun, GroupErrors
from trt_tui.core.measure.shares import GroupSensitivity, sensitivity_from_sweep
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_outcome import HeldOutResult, HeldOutValue, check_targets
from trt_tui.core.measure.zero_cost_kind import TrialBudget, ZeroCostKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.zero_cost_checks import replace_file_precision
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges, measure_ranges_by_method
from trt_tui.jobs.check_command import CheckResult, run_check_command, shown_error_text, write_check_files
from trt_tui.jobs.comparison import (
    add_metric_intervals,
    load_group_errors,
    measure_accuracies_in_parallel,
    measure_final_accuracy,
    run_group_sweep,
    send_group_errors,
)
from trt_tui.jobs.engine import build_engines_in_parallel, get_engine, send_engine_errors
from trt_tui.jobs.engine_preview import PreviewClient, is_tensorrt_rtx_installed, preview_mismatch_reason
from trt_tui.jobs.executions import execute_exported_file
from trt_tui.jobs.scheduler import JobReporter, take_last_value
from trt_tui.jobs.steps import Steps, Urgency, override_urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.jobs.what_if import propose_zero_cost_moves
from trt_tui.workspace import Workspace, can_run_engines

MIN_PARALLEL_S = 0.1
"""The duration in seconds of one accuracy measurement from which workers measure further configs in advance."""


class SearchEvaluator:
    """The measurements of a search in its workspace.

    Attributes:
        can_build: True if engines can run here.
        feed_index: The only feed of the search; None for all feeds, or if the worst sample is not known yet.

    Raises:
        InputError: The selected sample does not exist, or it does not judge the search.
    """

    def __init__(self, workspace: Workspace, store: ResultStore, reporter: JobReporter,
                 request: rq.FindMixedPrecisionConfig) -> None:
        self.workspace, self.store, self.reporter, self.request = workspace, store, reporter, request
        builder = workspace.builder
        self.can_build = builder is not None and can_run_engines(builder, workspace.plan.settings)
        self.feed_index: int | None = None
        if request.sample not in ("", "worst"):
            name = SampleName.from_text(request.sample)
            assert name is not None, "the text was checked"
            self.feed_index, _ = workspace.data_sets.judged_samples.find_sample(name)
            if self.feed_index not in workspace.feeds:
                raise InputError(f"sample {name} cannot be searched on", "it calibrates",
                                 "Name another sample, or calibrate on other data with --calib-data.")
        feeds = workspace.feeds  # those that calibrate are searched at the end, unless nothing is measured then
        self._searched_feeds = feeds.searched_feeds if len(feeds) == 1 else ()
        self._max_duration_s = 0.0
        self._shown_check_errors = ""
        self._has_named_file_layers = False

    # -- accuracies -----------------------------------------------------------------------------------------------

    def measure_accuracy(self, config: PrecisionConfig) -> Steps[Accuracy]:
        """Returns the accuracy of a config on all samples of the search, or on the batch of the selected sample."""
        workspace = self.workspace
        if not self.request.sample:
            return (yield from self._measure_accuracy_on_all_samples(config))
        if self.feed_index is None:
            full_accuracy = yield from self._measure_accuracy_on_all_samples(self.request.config)
            worst, feeds = full_accuracy.worst_sample_errors, workspace.feeds
            name = worst.worst_sample if worst is not None else None
            worst_feed = workspace.data_sets.judged_samples.find_sample(name)[0] if name is not None else feeds[0]
            self.feed_index = worst_feed if worst_feed in feeds else feeds[0]
            self._searched_feeds = () if worst_feed in feeds else (worst_feed,)
        return (yield from override_urgency(Urgency.SEARCH, take_last_value(workspace.analysis.measure_accuracy(
            config, workspace.ranges, JudgedFeeds.from_indices([self.feed_index], self._searched_feeds)))))

    def _measure_accuracy_on_all_samples(self, config: PrecisionConfig) -> Steps[Accuracy]:
        start_time = time.monotonic()
        accuracy = yield from measure_final_accuracy(self.workspace, self.store, self.reporter, config, Urgency.SEARCH)
        self._max_duration_s = max(self._max_duration_s, time.monotonic() - start_time)
        return accuracy

    def measure_accuracies_in_parallel(self,
                                       choose_configs: Callable[[int], Sequence[PrecisionConfig]]) -> Steps[None]:
        """Measures the requested config in parallel with configs that may be requested next, if there are workers.

        Nothing is measured in advance if one measurement takes less than `MIN_PARALLEL_S`, since a request to a worker
        takes longer.

        Args:
            choose_configs: A function that returns up to a number of configs, the requested config first.
        """
        worker_pool = self.workspace.worker_pool
        if (worker_pool is None or worker_pool.failure_reason or self.request.sample
                or self._max_duration_s < MIN_PARALLEL_S):
            return
        worker_count = worker_pool.count_workers()
        if worker_count > 1 and self.store.load_result(self.workspace, "verdict", choose_configs(1)[0],
                                                       Accuracy) is None:
            yield from measure_accuracies_in_parallel(self.workspace, self.store, self.reporter,
                                                      choose_configs(worker_count), Urgency.SEARCH)

    def measure_metric_interval(self, config: PrecisionConfig) -> Steps[Accuracy | None]:
        """Returns the accuracy of a config on all samples with the confidence interval of the metric."""
        yield from override_urgency(Urgency.SEARCH, add_metric_intervals(self.workspace, self.store, self.reporter,
                                                                         {"config": config}))
        return self.store.load_result(self.workspace, "verdict", config, Accuracy)

    def measure_held_out_samples(self, config: PrecisionConfig, accuracy: Accuracy | None,
                                 targets: Sequence[Target]) -> Steps[HeldOutResult | None]:
        """Returns the accuracy of a result on samples that the search has not used; None if there are too few.

        Samples that calibrate the start of the search judge a result without measured ranges.

        Args:
            accuracy: The accuracy on the samples of the search.
        """
        workspace, analysis = self.workspace, self.workspace.analysis
        others = workspace.held_out if self.feed_index is None else [
            index for index in workspace.feeds if index != self.feed_index]
        calibrating, is_calibrated = workspace.feeds.searched_feeds, workspace.is_calibrated_on_data(config)
        feed_indices = JudgedFeeds.from_indices(
            sorted((*others, *(() if is_calibrated else calibrating))),
            calibrating if is_calibrated and self.feed_index is not None else ())
        if not feed_indices or not targets:
            return None
        held_out_targets = tuple(targets)
        if any(target.kind == "metric" for target in targets):
            for index in feed_indices:
                analysis.get_reference_outputs(index)
                yield Urgency.SEARCH
            base = analysis.measure_reference_metric(feed_indices)
            held_out_targets = tuple(target.with_base_values(base, covers_all_samples=False) for target in targets)
        partials = analysis.measure_accuracy(config, workspace.ranges, feed_indices, with_metric_interval=True)
        held_out_accuracy = yield from self.reporter.follow(take_last_value(partials, "held-out samples"),
                                                            Urgency.SEARCH)
        selection_count = (workspace.judged_sample_count if self.feed_index is None else
                           workspace.data_sets.judged_samples.count_samples_of_feed(self.feed_index))
        values = tuple(
            HeldOutValue(held_out_target.text, *_value_and_interval_texts(target, accuracy),
                         *_value_and_interval_texts(held_out_target, held_out_accuracy))
            for target, held_out_target in zip(targets, held_out_targets, strict=True))
        return HeldOutResult(check_targets(held_out_targets, held_out_accuracy), held_out_accuracy.samples,
                             selection_count, values)

    # -- groups, changes and ranges -------------------------------------------------------------------------------

    def measure_sensitivities(self, config: PrecisionConfig,
                              group_names: Sequence[str]) -> Steps[Mapping[str, GroupSensitivity]]:
        """Returns the sensitivities of some groups of a config, by name.

        All groups are measured on a few samples, and groups that may matter on more. The groups are in network order,
        independent of known errors.
        """
        sweep = yield from run_group_sweep(
            self.workspace, self.store, self.reporter, config, "alone", "sensitivity of each layer",
            lambda *_: Urgency.SEARCH, group_order=group_names, feed_indices=self.workspace.feeds, reduces_groups=True)
        return {name: sensitivity_from_sweep(sweep, name) for name in group_names}

    def propose_zero_cost_moves(self, config: PrecisionConfig, kind: ZeroCostKind,
                                budget: TrialBudget) -> dict[str, PrecisionConfig]:
        """Returns the configs with further zero-cost moves of a kind, by the label of the moves.

        Args:
            budget: The budget of the configs that are simulated to measure the moves.
        """
        workspace, leaves_file = self.workspace, False
        if workspace.network.source_model is not None:
            try:
                ensure_ranges(workspace, self.store, self.reporter,
                              [replace_file_precision(config, workspace.network.groups)])
                leaves_file = True
            except InputError as error:
                if not self._has_named_file_layers:
                    self.reporter.send(ev.LogMessage(
                        self.reporter.job, "Zero-cost changes are not tried on layers in file precision: "
                                           f"{error.title}.", "warning"))
                self._has_named_file_layers = True
        proposals = propose_zero_cost_moves(
            workspace, self.store, self.reporter, workspace.network.groups, config, [kind],
            reason=f"search:{self.request.method}", may_replace_file_precision=leaves_file,
            in_separate_pass=True, budget=budget)
        return {proposal.label: proposal.config for proposal in proposals}

    def measure_alternative_ranges(self, groups: Sequence[FusionGroup],
                                   config: PrecisionConfig) -> dict[str, dict[str, float]]:
        """Returns the ranges (amax) of other range methods for the quantized tensors of some groups, by tensor and
        method. Ranges equal to the current range are left out."""
        method_ranges = measure_ranges_by_method(self.workspace, self.reporter, groups, config, in_separate_pass=True)
        other_ranges: dict[str, dict[str, float]] = {}
        for group in groups:
            precision = config.precision_of(group)
            current = select_ranges_for_type(self.workspace.ranges, QUANTIZED_TYPES[precision])
            for tensor in dict.fromkeys(site.tensor for site in group.calibrated_qdq_sites(precision)):
                other_ranges[tensor] = {method: amax for method, amax in method_ranges[tensor].items()
                                        if amax != current.get(tensor)}
        return other_ranges

    # -- engines and files ----------------------------------------------------------------------------------------

    def build_engines_in_parallel(self, configs: Sequence[PrecisionConfig]) -> Steps[None]:
        return build_engines_in_parallel(self.workspace, self.store, self.reporter, configs)

    def build_engine(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns the engine of a config, measured as built; from the store if it was built before.

        Its simulated accuracy is sent too.
        """
        accuracy = yield from self.measure_accuracy(config)
        self.reporter.send(ev.AccuracyMeasured(self.reporter.job, "config", config, accuracy, True))
        return (yield from get_engine(self.workspace, self.store, self.reporter, config))

    def measure_engine_errors(self, config: PrecisionConfig) -> Steps[EngineErrors | None]:
        """Returns the errors inside the engine of a config; None if there is no engine.

        A marked engine is measured if the release has no debug tensors.
        """
        builder = self.workspace.builder
        use_marked_engine = builder is None or not builder.capabilities.debug_tensors
        return send_engine_errors(self.workspace, self.store, self.reporter, config, use_marked_engine)

    def measure_group_errors(self, config: PrecisionConfig) -> Steps[Mapping[str, GroupErrors]]:
        """Returns the simulated errors at the groups of a config, by group name."""
        yield from send_group_errors(self.workspace, self.store, self.reporter, {"config": config}, Urgency.SEARCH)
        return load_group_errors(self.workspace, self.store, config,
                                 self.workspace.find_group_error_feeds(config)) or {}

    def execute_exported_file(self, config: PrecisionConfig) -> Steps[ExportedRun]:
        """Executes the exported file of a config on the samples of the search. Returns the result."""
        feed_indices = None if self.feed_index is None else [self.feed_index]
        exported_run = yield from execute_exported_file(self.workspace, self.store, self.reporter, config,
                                                        Urgency.SEARCH, feed_indices)
        if feed_indices is None:
            self.reporter.send(ev.ExportedFileExecuted(self.reporter.job, config, exported_run))
        return exported_run

    def preview_config(self, config: PrecisionConfig) -> Steps[Preview | None]:
        """Returns the preview of a config; None if no preview is possible here. Weakly typed releases have none."""
        if not is_tensorrt_rtx_installed() or preview_mismatch_reason(self.workspace):
            return None
        preview = yield from self._make_preview_client().preview_config(config)
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
                    arrays_by_tensor.setdefault(tensor, []).append(np.atleast_1d(array))
                yield Urgency.SEARCH
            joined = {tensor: np.concatenate(arrays) for tensor, arrays in arrays_by_tensor.items()}
            with create_scratch_folder() as scratch_folder:
                (folder := scratch_folder / "check").mkdir()
                write_check_files(folder, workspace.network, config, workspace.calibration or Calibration(),
                                  workspace.ranges, joined)
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
        self.reporter.send(ev.LogMessage(
            self.reporter.job, f"With {counted_noun_text(count, 'raised layer')} {result.text}:\n{error_text}", "note"))
        self._shown_check_errors = error_text


def _value_and_interval_texts(target: Target, accuracy: Accuracy | None) -> tuple[str, str]:
    """Returns the value that a target bounds and its confidence interval as texts; "" if they are unknown."""
    if accuracy is None:
        return "", ""
    return target.measured_value_text(accuracy), target.confidence_interval_text(accuracy)
