"""The jobs that measure single configs: what-ifs, errors of samples, toggled rows, remedies and zero-cost changes."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np

from trt_tui.core.calibration.range_methods import list_range_methods
from trt_tui.core.calibration.tensor_collection import RunProgress
from trt_tui.core.lowering.folded_constants import toggle_fp32
from trt_tui.core.measure.group_sweep import (
    SAMPLE_ERRORS,
    SINGLE_SAMPLES,
    SampleErrors,
    measure_sample_errors,
    measure_single_sample,
)
from trt_tui.core.measure.results import Accuracy, ErrorShare, RunKind, RunResult, on_common_samples
from trt_tui.core.measure.unused_qdq import remove_unused_qdq
from trt_tui.core.measure.zero_cost_kind import (
    ConfigProposal,
    JudgedMeasurement,
    ProposalContext,
    TrialBudget,
    ZeroCostKind,
)
from trt_tui.core.measure.zero_cost_kinds import ZERO_COST_KINDS, add_zero_cost_moves
from trt_tui.core.moves.config import PrecisionConfig, RangeMove, find_next_precision
from trt_tui.core.moves.zero_cost_checks import replace_file_precision
from trt_tui.core.network.hierarchy import Scope, build_scope_tree, walk_rows
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import BackendUnavailableError, InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges, measure_ranges_by_method
from trt_tui.jobs.comparison import (
    MIN_RAISED_SHARE,
    add_metric_intervals,
    load_stored_shares,
    measure_accuracy,
    measure_export_accuracy,
    measure_final_accuracy,
    send_error_shares,
    send_group_errors,
)
from trt_tui.jobs.engine_preview import NOT_INSTALLED, PreviewClient, is_tensorrt_rtx_installed, preview_mismatch_reason
from trt_tui.jobs.exported_run import find_stored_exported_run
from trt_tui.jobs.scheduler import JobReporter, get_executor, take_last_value
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_what_if_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                    request: rq.MeasureWhatIf) -> Steps[None]:
    """Measures the simulated accuracy of a config, then its error shares and its errors at the groups if requested.

    The accuracy of the exported network follows if the export differs from the file. All but the accuracy of the config
    runs in the background.
    """
    config = request.config
    ensure_ranges(workspace, store, reporter, [config])
    for accuracy in measure_accuracy(workspace, store, reporter, config, "what-if"):
        final = accuracy.samples >= accuracy.total
        if final or reporter.is_report_due("what-if"):
            reporter.send(ev.AccuracyMeasured(reporter.job, "config", config, accuracy, final))
        yield Urgency.WHAT_IF
    yield from add_metric_intervals(workspace, store, reporter, {"config": config})
    if request.with_shares:
        yield Urgency.FIRST_SHARES
        yield from send_error_shares(workspace, store, reporter, "config", config)
        yield from send_group_errors(workspace, store, reporter, {"config": config}, Urgency.BACKGROUND)
    yield from measure_export_accuracy(workspace, store, reporter, {"config": config}, Urgency.BACKGROUND)


def run_sample_error_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.MeasureSampleErrors) -> Steps[None]:
    """Measures and sends the error of each sample in a config. Stored errors are sent at once."""
    config = request.config
    ensure_ranges(workspace, store, reporter, [config])
    errors = store.load_result(workspace, "samples", config, SampleErrors)
    if errors is None:
        partials = measure_sample_errors(workspace.analysis, config, workspace.ranges,
                                         workspace.find_judged_feeds(config))
        errors = yield from reporter.follow(take_last_value(partials, request.phase), Urgency.ACCURACY)
        store.save_result(workspace, "samples", config, errors)
    reporter.send(ev.ValueMeasured(reporter.job, SAMPLE_ERRORS, config, errors))


def run_single_sample_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                          request: rq.MeasureSingleSample) -> Steps[None]:
    """Measures a single sample, and sends its results as more groups are measured."""
    ensure_ranges(workspace, store, reporter, request.runs.values())
    position = workspace.analysis.samples.find_sample(request.sample)
    start_time = time.monotonic()
    for partial in measure_single_sample(workspace.analysis, request.runs, request.config, workspace.ranges,
                                         *position):
        reporter.send_progress(request.phase, partial.done_count, partial.total_count, start_time)
        if partial.value.is_complete or reporter.is_report_due("one sample"):
            reporter.send(ev.ValueMeasured(reporter.job, SINGLE_SAMPLES, (request.config, partial.value.name),
                                      partial.value))
        yield Urgency.FIRST_SHARES


MAX_TOGGLED_ROWS = 40
"""The maximum number of toggled rows. Each takes a what-if on all samples."""

MAX_TOGGLED_SCOPES = 20
"""The maximum number of toggled scopes, which are measured after the rows."""

def run_toggle_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                   request: rq.MeasureToggles) -> Steps[None]:
    """Measures the config with each relevant row toggled, then with each relevant scope toggled.

    The job has the lowest urgency. Changed rows come first, then rows by decreasing error share. If no shares are
    known, only changed rows are measured.
    """
    config = request.config
    yield Urgency.TOGGLES
    ensure_ranges(workspace, store, reporter, [config])
    toggled = list_toggled_configs(config, workspace.network, load_stored_shares(workspace, store, config))
    start_time = time.monotonic()
    for done, toggled_config in enumerate(toggled, 1):
        accuracy = yield from measure_final_accuracy(workspace, store, reporter, toggled_config, Urgency.TOGGLES)
        reporter.send(ev.AccuracyMeasured(reporter.job, "flip", toggled_config, accuracy, True))
        reporter.send_progress(request.phase, done, len(toggled), start_time)


def list_toggled_configs(config: PrecisionConfig, network: Network, shares: dict[str,
                                                                                 ErrorShare]) -> list[PrecisionConfig]:
    """Returns the configs with one row toggled, then the configs with one scope toggled, each by decreasing relevance.
    """
    def measure_toggle_interest(groups: Sequence[FusionGroup]) -> float:
        return sum(2.0 if group.name in config.precision_moves else max(0.0, shares[group.name].fraction)
                   if group.name in shares else 0.0 for group in groups)

    def choose_top_group_sets(group_sets: Iterable[Sequence[FusionGroup]],
                              max_count: int) -> list[Sequence[FusionGroup]]:
        return sorted((group_set for group_set in group_sets if measure_toggle_interest(group_set) >= MIN_RAISED_SHARE),
                      key=measure_toggle_interest, reverse=True)[:max_count]

    by_name = network.group_by_name
    scopes = [[by_name[name]
               for name in row.groups]
              for _, row in walk_rows(build_scope_tree(network.layers, network.groups))
              if isinstance(row, Scope) and 1 < len(row.groups) <= rq.MeasureToggles.MAX_SCOPE_GROUPS]
    order = (*choose_top_group_sets(
        ([group] for group in network.groups), MAX_TOGGLED_ROWS), *choose_top_group_sets(scopes, MAX_TOGGLED_SCOPES))
    return [
        toggled_config for toggled_config in dict.fromkeys(toggle_fp32(network, config, groups) for groups in order)
        if toggled_config != config
    ]


def run_stored_results_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                           request: rq.LoadStoredResults) -> Steps[None]:
    """Sends the stored results of each config. Results with other ranges or on other samples are not sent."""
    yield Urgency.TENSOR_STATS  # the first accuracy comes before
    ensure_ranges(workspace, store, reporter, request.configs)
    for config in request.configs:
        accuracy = store.load_result(workspace, "verdict", config, Accuracy)
        stored = {RunKind.SIMULATED_CONFIG: RunResult(accuracy) if accuracy is not None else None,
                  RunKind.EXPORTED_FILE: find_stored_exported_run(workspace, store, config),
                  RunKind.BUILT_ENGINE: store.load_engine_result(workspace, config)}
        if runs := {kind: result for kind, result in stored.items() if result is not None}:
            reporter.send(ev.StoredResultsLoaded(reporter.job, config, runs))
        yield Urgency.TENSOR_STATS


T = TypeVar("T")

MeasuredProposal: TypeAlias = tuple[ConfigProposal, Accuracy | None]
"""A proposed change and the accuracy of its config; None if it is not measured yet."""

MAX_EQUAL_DIFFERENCE_DB = 0.1
"""The difference of two judged errors below which two changes of the same channels are one change in lists."""


def run_zero_cost_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                      request: rq.MeasureZeroCostChanges) -> Steps[None]:
    """Measures each zero-cost change of a group and of the whole network, then previews the kernels of each.

    All changes listed so far are sent after each measurement. The changes of the group come first.
    """
    network, config = workspace.network, request.config
    ensure_ranges(workspace, store, reporter, [config, replace_file_precision(config, network.groups)])
    changes: list[ev.ZeroCostChange] = []
    known_configs: set[PrecisionConfig] = set()

    def send_changes(further_changes: Sequence[ev.ZeroCostChange] = (), is_complete: bool = False) -> None:
        listed = (*changes, *further_changes)
        reporter.send(ev.ValueMeasured(reporter.job, ev.ZERO_COST_CHANGES, (request.group, config),
                                  ev.ZeroCostChanges(listed, is_complete),
                                  {change.config: change.accuracy for change in listed if change.accuracy is not None}))

    for is_for_network in (False, True):
        groups = network.groups if is_for_network else [network.get_group(request.group)] if request.group else []
        kinds = [kind for kind in ZERO_COST_KINDS if (kind.is_for_searches if is_for_network else kind.is_for_rows)]
        proposals = propose_zero_cost_moves(workspace, store, reporter, groups, config, kinds,
                                            may_replace_file_precision=True)
        measured: list[MeasuredProposal] = [(proposal, None) for proposal in proposals
                                            if proposal.config not in known_configs]
        known_configs |= {proposal.config for proposal, _ in measured}

        def list_changes(measured: Sequence[MeasuredProposal] = measured,
                         is_for_network: bool = is_for_network) -> list[ev.ZeroCostChange]:
            return [ev.ZeroCostChange(proposal.label, proposal.config, is_for_network, accuracy)
                    for proposal, accuracy in list_distinct_proposals(config, measured)]

        send_changes(list_changes())
        ensure_ranges(workspace, store, reporter, [proposal.config for proposal, _ in measured])
        for index, (proposal, _) in enumerate(measured):
            accuracy = yield from measure_final_accuracy(workspace, store, reporter, proposal.config, Urgency.REMEDIES,
                                                         f"trying {proposal.label}")
            measured[index] = proposal, accuracy
            send_changes(list_changes())
        changes += list_changes()
    if changes and request.use_preview and is_tensorrt_rtx_installed() and not preview_mismatch_reason(workspace):
        previewer = PreviewClient(workspace, store, reporter, workspace.ranges)
        before = yield from previewer.preview_config(config)
        for index, change in enumerate(changes if before.refusal is None else ()):
            after = yield from previewer.preview_config(change.config)
            if after.refusal is None:
                changes[index] = replace(
                    change, added_kernels=len(after.kernels) - len(before.kernels),
                    attention_kernels=(before.attention_kernel_count, after.attention_kernel_count))
                send_changes()
    send_changes(is_complete=True)


def list_distinct_proposals(config: PrecisionConfig, measured: Sequence[MeasuredProposal]) -> list[MeasuredProposal]:
    """Returns the proposals that lists show, in their order.

    Of the variants of a change only the best one is left. It has the place of the first variant. If two changes scale
    some of the same channels with equal results, such as SmoothQuant and equalization, the better one is left. The
    metric of the user decides, if there is one, and then the judged error.

    Args:
        config: The config without the changes.
    """
    def loss(entry: MeasuredProposal) -> tuple[float, float]:
        accuracy = entry[1]
        if accuracy is None or accuracy.nonfinite_count or accuracy.judged_error is None:
            return math.inf, math.inf
        return -(accuracy.headline_metric or 0.0), accuracy.judged_error

    families: dict[object, list[MeasuredProposal]] = {}
    for index, entry in enumerate(measured):
        families.setdefault(entry[0].family or index, []).append(entry)
    distinct: list[MeasuredProposal] = []
    for entry in (min(variants, key=loss) for variants in families.values()):
        equal_index = next((index for index, other in enumerate(distinct) if _scale_same_channels(
            config, entry[0].config, other[0].config) and _are_losses_equal(loss(entry), loss(other))), None)
        if equal_index is None:
            distinct.append(entry)
        elif loss(entry) < loss(distinct[equal_index]):
            distinct[equal_index] = entry
    return distinct


def _are_losses_equal(first: tuple[float, float], second: tuple[float, float]) -> bool:
    errors = first[1], second[1]
    return first[0] == second[0] and 0 < min(errors) and max(errors) < math.inf and abs(
        10 * math.log10(errors[0] / errors[1])) < MAX_EQUAL_DIFFERENCE_DB


def _scale_same_channels(config: PrecisionConfig, first: PrecisionConfig, second: PrecisionConfig) -> bool:
    """Returns True if two configs scale channels of a common group that a third config does not scale."""
    subjects = [{subject for (kind, subject), move in changed.moves.items()
                 if move.scales_channels and config.moves.get((kind, subject)) != move} for changed in (first, second)]
    return not subjects[0].isdisjoint(subjects[1])


def propose_zero_cost_moves(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                            groups: Sequence[FusionGroup], config: PrecisionConfig, kinds: Iterable[ZeroCostKind], *,
                            reason: str = "user", may_replace_file_precision: bool = False,
                            in_separate_pass: bool = False,
                            budget: TrialBudget | None = None) -> list[ConfigProposal]:
    """Returns the zero-cost changes of some kinds that groups can have and do not have yet, one config for each.

    Args:
        may_replace_file_precision: True to change groups in file precision too. They get the nearest other precision.
        in_separate_pass: True to measure values for these groups in one separate pass, even if they are known
            (`Workspace.separate_pass_values`).
        budget: The budget of the configs that are simulated to choose among variants; None for no limit.

    Raises:
        InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
    """
    def find_or_measure(title: str, changed: PrecisionConfig, result_type: type[T], measure: Callable[[], T], *,
                        subjects: Sequence[str] = ()) -> T:
        samples = workspace.calibration_samples
        key = (list(subjects), len(samples), samples.hash_inputs()) if subjects else ()
        value = store.load_result(workspace, title, changed, result_type, *key)
        if value is None:
            value = measure()
            store.save_result(workspace, title, changed, value, *key)
        return value

    def measure_sample_errors(changed: PrecisionConfig, feeds: Sequence[int], progress: RunProgress
                              ) -> tuple[np.ndarray, np.ndarray]:
        errors: tuple[np.ndarray, np.ndarray] | None = None
        for partial in workspace.analysis.measure_noise_by_sample(changed, workspace.ranges, feeds):
            errors = partial.value
            progress(partial.done_count, partial.total_count)
        assert errors is not None, "a workspace has feeds"
        return errors

    judged_tensors = dict.fromkeys(output.tensor for output in workspace.judged_outputs
                                   if workspace.network.is_float(output.tensor))
    judged_measurement = JudgedMeasurement(workspace.data_sets.judged_samples,
                                           tuple(workspace.find_judged_feeds(config)), tuple(judged_tensors),
                                           measure_sample_errors)
    context = ProposalContext(
        workspace.network, config, groups, workspace.calibration_samples, workspace.backend, workspace.ranges,
        workspace.calibration.method if workspace.calibration is not None else "", reason,
        may_replace_file_precision, in_separate_pass,
        workspace.separate_pass_values, judged_measurement, budget or TrialBudget(), find_or_measure,
        lambda: get_executor(workspace, reporter),
        lambda title: reporter.make_progress_callback(title, is_preemptible=True),
        lambda config, moves: add_zero_cost_moves(config, workspace.network, moves))
    return [proposal for kind in kinds for proposal in kind.make_proposals(context)]


def run_remedy_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                   request: rq.MeasureRemedies) -> Steps[None]:
    """Measures the remedies for a group. After each remedy, all remedies measured so far are sent."""
    group, config = workspace.network.get_group(request.group), request.config
    ensure_ranges(workspace, store, reporter, [config, replace_file_precision(config, workspace.network.groups)])
    remedies = _list_remedies(workspace, store, reporter, group, config)
    ensure_ranges(workspace, store, reporter, [proposal.config for _, proposal in remedies])
    measured: list[tuple[str, ConfigProposal, Accuracy]] = []
    for key, proposal in remedies:
        measured.append((key, proposal, (yield from measure_final_accuracy(
            workspace, store, reporter, proposal.config, Urgency.REMEDIES, f"trying {proposal.label}"))))
        distinct = list_distinct_proposals(config, [(proposal, accuracy) for _, proposal, accuracy in measured])
        shown = [entry for entry in measured if any(entry[1] is proposal for proposal, _ in distinct)]
        compared_accuracies = on_common_samples([accuracy for *_, accuracy in shown])
        reporter.send(ev.ValueMeasured(reporter.job, ev.REMEDIES, (group.name, config), tuple(
            ev.Remedy(key, proposal.label, proposal.config, accuracy, proposal.short_label, compared_accuracy)
            for (key, proposal, accuracy), compared_accuracy in zip(shown, compared_accuracies, strict=True)),
            {proposal.config: accuracy for _, proposal, accuracy in shown}))
    if not remedies:
        reporter.send(ev.ValueMeasured(reporter.job, ev.REMEDIES, (group.name, config), ()))


def _list_remedies(workspace: Workspace, store: ResultStore, reporter: JobReporter, group: FusionGroup,
                   config: PrecisionConfig) -> list[tuple[str, ConfigProposal]]:
    """Returns the remedies for a group: the key that selects each, and its label with the resulting config."""
    current = config.precision_of(group)
    remedies = [(ev.ZERO_COST_KEY, proposal) for proposal in propose_zero_cost_moves(
        workspace, store, reporter, [group], config, [kind for kind in ZERO_COST_KINDS if kind.is_for_rows],
        may_replace_file_precision=True)]
    higher = find_next_precision(group, current, True, config.precision_steps)
    if higher is not current and higher is not Precision.FP32:
        remedies.append(("=", ConfigProposal(higher.label, config.with_group_precision([group], higher))))
    if current is not Precision.FP32:
        remedies.append(("space", ConfigProposal(Precision.FP32.label,
                                                 config.with_group_precision([group], Precision.FP32))))
    if group.calibrated_qdq_sites(current):
        ranges = measure_ranges_by_method(workspace, reporter, [group], config)
        current_method = workspace.calibration.method if workspace.calibration is not None else ""
        methods = list_range_methods(QUANTIZED_TYPES[current]) if config.fixed_range_tensors.isdisjoint(ranges) else (
        )  # the ranges are measured without the factors of these channels
        for method in methods:
            if method != current_method:
                moves = {tensor: RangeMove(by_method[method], method) for tensor, by_method in ranges.items()}
                remedies.append(("r", ConfigProposal(f"{method} range", config.with_moves(moves))))
    return remedies


def run_qdq_removal_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                        request: rq.RemoveUnusedQdq) -> Steps[None]:
    """Sends the config without unused Q/DQ, with the kernels and the accuracy before and after."""
    config = request.config
    if not is_tensorrt_rtx_installed():
        raise BackendUnavailableError(NOT_INSTALLED.title, NOT_INSTALLED.cause, NOT_INSTALLED.next_step)
    if reason := preview_mismatch_reason(workspace):
        raise InputError("the preview does not hold for this TensorRT", reason,
                         "Build the config, and raise the layers that the engine page lists.")
    ensure_ranges(workspace, store, reporter, [config])
    client = PreviewClient(workspace, store, reporter, workspace.ranges)
    preview = yield from client.preview_config(config)
    if preview.refusal is not None:
        raise InputError("the config has no preview", preview.refusal.description, preview.refusal.next_step)
    removal = yield from remove_unused_qdq(workspace.network, config, preview, client.preview_config,
                                           request.fixed_reasons)
    if removal.groups:
        accuracies = []
        for measured_config in (config, removal.config):
            accuracy = yield from measure_final_accuracy(workspace, store, reporter, measured_config, Urgency.WHAT_IF,
                                                         request.phase)
            reporter.send(ev.AccuracyMeasured(reporter.job, "config", measured_config, accuracy, True))
            accuracies.append(accuracy)
        removal = replace(removal, accuracies=(accuracies[0], accuracies[1]))
    reporter.send(ev.UnusedQdqRemoved(reporter.job, config, removal))

