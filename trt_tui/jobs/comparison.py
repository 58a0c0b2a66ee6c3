"""The jobs that measure configs: comparisons, what-ifs, range methods, toggled rows, remedies and zero-cost changes."""

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from trt_tui.core.calibration.calibration import list_range_methods
from trt_tui.core.calibration.tensor_collection import NonFiniteTensorError, RunProgress
from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.network_rewrite import EditedConstants, toggle_fp32
from trt_tui.core.lowering.rulebook import MIN_WARNED_BITS, RaisedWeightScales, raised_scales_text
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.engine_agreement import remove_all_unused_qdq
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.measure.group_errors import ConfigWithGroupErrors, measure_group_errors
from trt_tui.core.measure.group_sweep import (
    MAX_SHOWN_HALF_WIDTH,
    SAMPLE_ERRORS,
    SINGLE_SAMPLES,
    GroupSweep,
    GroupSweepState,
    SampleErrors,
    error_share_from_sweep,
    measure_accuracy_per_raised_group,
    measure_sample_errors,
    measure_single_sample,
)
from trt_tui.core.measure.judged_outputs import find_common_mask_name
from trt_tui.core.measure.results import (
    FP32_ENGINE,
    Accuracy,
    ErrorShare,
    GroupErrors,
    RunKind,
    RunResult,
    restrict_to_common_samples,
)
from trt_tui.core.measure.simulation import PartialResult
from trt_tui.core.measure.simulation_limits import find_simulation_failure_reason
from trt_tui.core.measure.zero_cost_kinds import (
    ZERO_COST_KINDS,
    ConfigProposal,
    ProposalContext,
    TrialBudget,
    ZeroCostKind,
)
from trt_tui.core.moves.config import PrecisionConfig, RangeMove, find_next_precision, replace_file_precision_of_groups
from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.layer_tree import Scope, build_scope_tree, iterate_rows_with_depth
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.qdq.rewrites import add_fp32_casts_to_operators
from trt_tui.core.network.qdq.steps import PRECISION_BY_HALF_TYPE
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import map_generator_items
from trt_tui.errors import BackendUnavailableError, InputError, RunFailedError
from trt_tui.formatting import counted_noun_text, run_title
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges, measure_ranges, measure_ranges_by_method
from trt_tui.jobs.engine import load_stored_exported_run
from trt_tui.jobs.engine_build import measure_lowered_network_accuracy
from trt_tui.jobs.engine_preview import NOT_INSTALLED, PreviewClient, is_tensorrt_rtx_installed, preview_mismatch_reason
from trt_tui.jobs.scheduler import (
    JobReporter,
    Steps,
    Urgency,
    WaitStep,
    choose_next_job_step,
    get_executor,
    override_urgency,
    run_to_last_value,
)
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

T = TypeVar("T")


def measure_accuracy(
    workspace: Workspace, store: ResultStore, config: PrecisionConfig
) -> Iterator[PartialResult[Accuracy]]:
    """Yields the accuracy of a config after each feed. The last value covers all feeds and is stored."""
    cached = store.load_result(workspace, "verdict", config, Accuracy)
    if cached is not None:
        yield PartialResult(cached, cached.samples, cached.total)
        return
    feeds = workspace.find_judged_feeds(config)
    for partial in workspace.analysis.measure_accuracy(config, workspace.ranges, feeds):
        if partial.is_final_result:
            store.save_result(workspace, "verdict", config, partial.value)
        yield partial


def measure_final_accuracy(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    config: PrecisionConfig,
    urgency: Urgency,
    phase: str = "",
) -> Steps[Accuracy]:
    """Returns the accuracy of a config on all feeds.

    Args:
        phase: The phase under which the progress is reported; "" to report none.
    """
    return reporter.run_steps(run_to_last_value(measure_accuracy(workspace, store, config), phase), urgency)


def measure_unless_stored(
    workspace: Workspace,
    store: ResultStore,
    result_kind: str,
    config: PrecisionConfig,
    result_type: type[T],
    steps: Steps[T],
) -> Steps[T]:
    """Returns a stored result of a config. A result that is not stored is measured by the steps, and stored."""
    result = store.load_result(workspace, result_kind, config, result_type)
    if result is None:
        result = yield from steps
        store.save_result(workspace, result_kind, config, result)
    return result


class AccuracyTask:
    """The task that measures the accuracy of one config per item.

    Args:
        feeds_by_config: The feeds that judge each config.
    """

    item_text = "the accuracy of a config"

    def __init__(self, ranges: Mapping[str, float], feeds_by_config: Mapping[PrecisionConfig, JudgedFeeds]) -> None:
        self._ranges, self._feeds_by_config = ranges, dict(feeds_by_config)

    def run_item(self, context: Workspace, item: PrecisionConfig) -> Generator[None, None, Accuracy]:
        partials = context.analysis.measure_accuracy(item, self._ranges, self._feeds_by_config[item])
        return (yield from map_generator_items(run_to_last_value(partials), lambda step: None))


def measure_accuracies_in_parallel(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    configs: Sequence[PrecisionConfig],
    urgency: Urgency,
) -> Steps[None]:
    """Measures several configs in parallel, each on one worker, and stores the results."""
    unknown = [config for config in configs if store.load_result(workspace, "verdict", config, Accuracy) is None]
    executor = get_executor(workspace, reporter)
    task = AccuracyTask(workspace.ranges, {config: workspace.find_judged_feeds(config) for config in unknown})
    for finished in executor.map(task, unknown):
        if finished is not None:
            store.save_result(workspace, "verdict", *finished)
        yield choose_next_job_step(executor, urgency)


PendingIntervals = dict[str, Iterator[PartialResult[Accuracy]]]
"""The measurements that remain for each run after its last feed: the metric on draws of the samples, by run key."""


def send_accuracies(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, runs: Mapping[str, PrecisionConfig]
) -> Steps[PendingIntervals]:
    """Measures and sends the accuracy of each run. One feed is executed by all runs before the next feed begins.

    Returns the pending metric intervals, which `add_metric_intervals` completes.
    """
    done = total = 0
    pending: PendingIntervals = {}
    unfinished: list[str] = []

    def warn_of_failed_run(run: str, accuracy: Accuracy) -> None:
        if reason := find_simulation_failure_reason(accuracy):
            reporter.log(f"{run_title(run)} fails in execution: {reason}.", "warning")

    def measure_next_feed(run: str) -> None:
        nonlocal done
        config, partial = runs[run], next(pending[run])
        if partial.is_final_result:
            unfinished.remove(run)
            store.save_result(workspace, "verdict", config, partial.value)
            warn_of_failed_run(run, partial.value)
        if (
            partial.is_final_result
            or partial.done_count == 1
            or workspace.metric is None
            and reporter.is_report_due(f"verdict {run}")
        ):
            reporter.send(ev.AccuracyMeasured(reporter.job, run, config, partial.value, partial.is_final_result))
        done += 1
        reporter.send_progress("comparing with FP32", done, total)

    for run, config in runs.items():
        ensure_ranges(workspace, store, reporter, [config])  # only now: the first FP16 result does not wait for it
        cached = store.load_result(workspace, "verdict", config, Accuracy)
        if cached is not None:
            reporter.send(ev.AccuracyMeasured(reporter.job, run, config, cached, True))
            warn_of_failed_run(run, cached)
            continue
        feeds = workspace.find_judged_feeds(config)
        pending[run] = workspace.analysis.measure_accuracy(config, workspace.ranges, feeds, with_metric_interval=True)
        unfinished.append(run)
        total += len(feeds.all_feeds)
        measure_next_feed(run)
        yield Urgency.FIRST_ACCURACY
    if unfinished and workspace.metric is not None:
        try:
            reference_values = workspace.analysis.measure_reference_metric(workspace.feeds[:1])
            sample_count = workspace.count_samples(workspace.feeds[:1])
            reporter.send(ev.ReferenceMetricMeasured(reporter.job, reference_values, sample_count, False))
        except InputError:  # some metrics need samples of several classes; a metric that always fails ends the job here
            yield from send_reference_metric(workspace, store, reporter, runs.values())
    yield Urgency.ACCURACY
    while unfinished:
        for run in tuple(unfinished):
            measure_next_feed(run)
            yield Urgency.ACCURACY
    return pending


def add_metric_intervals(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    runs: Mapping[str, PrecisionConfig],
    pending_intervals: PendingIntervals | None = None,
) -> Steps[None]:
    """Adds the confidence interval of the metric to the accuracies that lack one, and sends these accuracies again.

    Args:
        pending_intervals: The measurements that `send_accuracies` has begun. All other runs are measured again.
    """
    if workspace.metric is None:
        return
    for run, config in runs.items():
        cached = store.load_result(workspace, "verdict", config, Accuracy)
        if (
            cached is None
            or not cached.metric
            or cached.intervals is not None
            and cached.intervals.metric_draws is not None
        ):
            continue
        settled = cached
        for partial in (pending_intervals or {}).get(run) or workspace.analysis.measure_accuracy(
            config, workspace.ranges, workspace.find_judged_feeds(config), with_metric_interval=True
        ):
            settled = partial.value if partial.is_final_result else settled
            yield Urgency.GROUP_ERRORS
        store.save_result(workspace, "verdict", config, settled)
        reporter.send(ev.AccuracyMeasured(reporter.job, run, config, settled, True))


def send_reference_metric(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, configs: Iterable[PrecisionConfig]
) -> Steps[dict[str, float]]:
    """Measures and sends the metric of the reference on the samples that judge every given config. Returns its
    values."""
    fp32, feeds = PrecisionConfig.from_precision(Precision.FP32), tuple(workspace.find_judged_feeds(*configs))
    metric_values = store.load_result(workspace, "metric", fp32, dict[str, float], feeds)
    if metric_values is None:
        for index in feeds if workspace.metric is not None else ():
            workspace.analysis.get_reference_outputs(index)
            yield Urgency.ACCURACY
        metric_values = workspace.analysis.measure_reference_metric(feeds)
        store.save_result(workspace, "metric", fp32, metric_values, feeds)
    reporter.send(ev.ReferenceMetricMeasured(reporter.job, metric_values, workspace.count_samples(feeds), True))
    return metric_values


MAX_RAISED_GROUPS = 12
"""The maximum number of groups that are raised together. The accuracy is measured with the first 1, 2, ... of them."""

MIN_RAISED_SHARE = 0.002
"""The minimum error share of a group that is raised together with the others."""


def load_group_errors(
    workspace: Workspace, store: ResultStore, config: PrecisionConfig, feeds: Sequence[int]
) -> dict[str, GroupErrors] | None:
    """Returns the stored errors at the groups of a config on some feeds, by group; None if there are none."""
    return store.load_result(workspace, "layers", config, dict[str, GroupErrors], tuple(feeds))


def order_groups_by_isolated_error(workspace: Workspace, store: ResultStore, config: PrecisionConfig) -> list[str]:
    """Returns the names of all groups by decreasing isolated error. An unmeasured group counts as 0 dB."""
    group_errors = next(
        filter(
            None,
            (
                load_group_errors(workspace, store, measured, feeds)
                for measured in (config, replace(config, moves={}))
                for feeds in (workspace.find_group_error_feeds(measured), workspace.feeds)
            ),
        ),
        {},
    )

    def isolated_sqnr_db(group_name: str) -> float:
        errors = group_errors[group_name].isolated if group_name in group_errors else None
        return errors.comparable_sqnr_db if errors is not None else 0.0

    return sorted((group.name for group in workspace.network.groups), key=isolated_sqnr_db)


def send_error_shares(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    run: str,
    config: PrecisionConfig,
    with_raises: bool = True,
) -> Steps[dict[str, ErrorShare]]:
    """Measures, sends and returns the error share of each group. Stored shares are not measured again.

    Every group is measured on a few samples first, in urgent steps. Shares with a wide confidence interval are sent
    only at the end.

    Args:
        with_raises: True to measure the accuracy with the worst groups raised together afterwards.
    """
    names = order_groups_by_isolated_error(workspace, store, config)
    shares = load_stored_shares(workspace, store, config)
    if shares.keys() >= set(names):
        shares = {name: shares[name] for name in names}
        reporter.send(ev.ErrorSharesMeasured(reporter.job, run, config, shares, len(names), len(names)))
    else:
        shares = yield from _measure_shares(workspace, store, reporter, run, config, names)
    if with_raises:
        yield from _send_cumulative_raise_accuracies(workspace, store, reporter, config, shares)
    return shares


def load_stored_shares(workspace: Workspace, store: ResultStore, config: PrecisionConfig) -> dict[str, ErrorShare]:
    """Returns the stored error shares of a config, by group; empty if no measurement of all groups is stored.

    Shares measured on all samples are preferred. Shares on fewer samples are returned only without the option
    ``--exact``.
    """
    exact = store.load_result(workspace, "shares, exact", config, dict[str, ErrorShare])
    if exact is not None or workspace.options.exact:
        return exact or {}
    return store.load_result(workspace, "shares", config, dict[str, ErrorShare]) or {}


def _measure_shares(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    run: str,
    config: PrecisionConfig,
    group_names: Sequence[str],
) -> Steps[dict[str, ErrorShare]]:
    def send_updated_shares(sweep: GroupSweep, is_end: bool = False) -> None:
        updated = {name: error_share_from_sweep(sweep, name) for name in sweep.updated_groups}
        unsent = {
            name: share
            for name, share in updated.items()
            if is_end or not (share.unknown_reason or (share.half_width or 0.0) > MAX_SHOWN_HALF_WIDTH)
        }
        sweep.updated_groups[:] = [name for name in updated if name not in unsent]
        if unsent or is_end:
            reporter.send(
                ev.ErrorSharesMeasured(
                    reporter.job, run, config, unsent, len(sweep.fully_measured_groups), len(group_names)
                )
            )

    def handle_sweep_step(sweep: GroupSweep, done: float, is_complete: bool) -> Urgency:
        if (
            sweep.updated_groups and done and (is_complete or reporter.is_report_due("shares"))
        ):  # stored shares are sent at the end
            send_updated_shares(sweep)
        return Urgency.BACKGROUND if sweep.has_estimate_of_every_group else Urgency.FIRST_SHARES

    sweep = yield from run_group_sweep(
        workspace,
        store,
        reporter,
        config,
        "swept",
        "shares" if run == "config" else f"shares ({run})",
        handle_sweep_step,
        group_order=group_names,
        feed_indices=workspace.find_judged_feeds(config),
    )
    send_updated_shares(sweep, is_end=True)
    shares = {name: error_share_from_sweep(sweep, name) for name in group_names}
    store.save_result(workspace, _choose_store_kind(workspace, "shares"), config, shares)
    return shares


def run_group_sweep(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    config: PrecisionConfig,
    store_kind: str,
    phase: str,
    handle_sweep_step: Callable[[GroupSweep, float, bool], Urgency],
    **options: Any,
) -> Steps[GroupSweep]:
    """Measures the groups of a config one by one, from the stored state of an interrupted sweep, and stores the state.

    Args:
        store_kind: The name under which the state is stored.
        handle_sweep_step: A function that is called after each step and returns the urgency of the next step. Its
            arguments are the sweep, the work done, and True if every group has an estimate for the first time.
        options: The further options of the `GroupSweep`.
    """
    store_kind, executor = _choose_store_kind(workspace, store_kind), get_executor(workspace, reporter)
    sweep = GroupSweep(
        workspace.analysis,
        config,
        workspace.ranges,
        measures_all_samples=workspace.options.exact,
        earlier_state=store.load_result(workspace, store_kind, config, GroupSweepState),
        executor=executor,
        **options,
    )
    was_complete = False
    try:
        for done, total in sweep.measure_groups():
            is_complete, was_complete = (
                sweep.has_estimate_of_every_group and not was_complete,
                sweep.has_estimate_of_every_group,
            )
            urgency = handle_sweep_step(sweep, done, is_complete)
            reporter.send_progress(phase + executor.location_text, round(done), max(round(total), round(done) + 1))
            if reporter.is_report_due(f"{store_kind} kept"):
                store.save_result(workspace, store_kind, config, sweep.state)
            yield choose_next_job_step(executor, urgency)
    finally:
        store.save_result(workspace, store_kind, config, sweep.state)
    return sweep


def _choose_store_kind(workspace: Workspace, store_kind: str) -> str:
    """Returns the kind under which results are stored. Results on all samples (``--exact``) have a separate kind."""
    return f"{store_kind}, exact" if workspace.options.exact else store_kind


def _send_cumulative_raise_accuracies(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    config: PrecisionConfig,
    shares: Mapping[str, ErrorShare],
) -> Steps[None]:
    """Measures and sends the accuracies with the groups of the largest shares raised together."""
    worst = sorted(
        (name for name in shares if not shares[name].unknown_reason), key=lambda name: -shares[name].fraction
    )
    order = tuple(name for name in worst if shares[name].fraction >= MIN_RAISED_SHARE)[:MAX_RAISED_GROUPS]
    if not order:
        return
    partials = measure_accuracy_per_raised_group(
        workspace.analysis, config, workspace.ranges, order, workspace.find_judged_feeds(config)
    )
    steps = run_to_last_value(partials, "raising the worst layers one by one")
    accuracies = yield from measure_unless_stored(
        workspace, store, "raised", config, tuple[Accuracy, ...], reporter.run_steps(steps, Urgency.BACKGROUND)
    )
    reporter.send_value(ev.RAISED_ACCURACIES, config, accuracies)


FP32_RUN = "fp32"
"""The run key of FP32 in a comparison with an external reference. No layer of this run has a lower precision."""


def run_comparison_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.CompareRuns
) -> Steps[None]:
    """Measures the runs and sends their results, with stored results of their engines."""
    if not request.with_isolated_errors and _can_measure_accuracy_with_errors(workspace):
        yield from _send_accuracies_with_errors(workspace, store, reporter, request.runs)
        return
    runs = _filter_measurable_runs(workspace, store, reporter, request.runs)
    first_sums, pending = yield from _send_errors_of_first_run(
        workspace, store, reporter, runs, request.first_errors_run
    )
    pending |= yield from send_accuracies(
        workspace, store, reporter, {name: config for name, config in runs.items() if name not in pending}
    )
    _report_raised_weight_scales(workspace, reporter, runs)
    yield from send_reference_metric(workspace, store, reporter, runs.values())
    for config in runs.values():
        cached = store.load_engine_result(workspace, config)
        if cached is not None:
            reporter.send(ev.EngineBuilt(reporter.job, config, cached))
        if (executed := load_stored_exported_run(workspace, store, config)) is not None:
            reporter.send(ev.ExportedFileExecuted(reporter.job, config, executed))
    if workspace.builder is not None:
        cached = store.load_engine_result(workspace, PrecisionConfig.from_precision(Precision.FP32))
        if cached is not None:
            reporter.send_value(FP32_ENGINE, None, cached)
    yield from measure_export_accuracy(workspace, store, reporter, runs)
    yield from add_metric_intervals(workspace, store, reporter, runs, pending)
    runs = {name: config for name, config in runs.items() if name != FP32_RUN}
    if reason := workspace.analysis.explain_missing_shares(workspace.find_judged_feeds(*runs.values())):
        reporter.log(
            f"Shares and errors at the layers are not measured, since FP32 is not finite either. {reason}.", "warning"
        )
        return
    order = sorted(runs, key=lambda name: name != request.shares_run) if request.shares_run is not None else []
    has_late_errors = request.with_group_errors
    if has_late_errors and (not order or request.first_errors_run in runs and not first_sums):
        yield Urgency.GROUP_ERRORS
        workspace.analysis.unload_session()  # group errors use another inference session with all weights
        yield from send_group_errors(workspace, store, reporter, runs, Urgency.GROUP_ERRORS, first_sums)
        has_late_errors = False
    if not order:
        return
    # Error shares on a few samples come before the errors at the groups.
    with contextlib.closing(
        send_error_shares(workspace, store, reporter, order[0], runs[order[0]], request.with_raises)
    ) as share_steps:
        yield Urgency.FIRST_SHARES
        for step in share_steps:
            if step is not Urgency.FIRST_SHARES and not isinstance(step, WaitStep):
                break
            yield step
        if has_late_errors:
            yield Urgency.GROUP_ERRORS
            yield from send_group_errors(workspace, store, reporter, runs, Urgency.GROUP_ERRORS, first_sums)
        yield Urgency.BACKGROUND
        yield from share_steps
    for name in order[1:]:
        steps = send_error_shares(workspace, store, reporter, name, runs[name], request.with_raises)
        yield from override_urgency(Urgency.BACKGROUND, steps)


def _can_measure_accuracy_with_errors(workspace: Workspace) -> bool:
    """Returns True if one execution can yield both the outputs of a run and its errors at the groups.

    The reference must be FP32 of the network, every batch full, and a group simulated.
    """
    network, samples = workspace.network, workspace.data_sets.judged_samples
    return (
        workspace.reference_source is None
        and not any(map(samples.is_padded, workspace.feeds.all_feeds))
        and any(group.final_tensor not in network.blocking_plugins for group in network.groups)
    )


def _send_accuracies_with_errors(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, runs: Mapping[str, PrecisionConfig]
) -> Steps[None]:
    """Measures and sends the accuracy of each run with its accumulated errors at the groups, in the same executions.

    Each run executes its config and FP32 once. A run that fails because of rounding is measured without errors.
    """
    done, error_feeds = 0, workspace.find_judged_feeds(*runs.values())
    total = sum(len(workspace.find_judged_feeds(config).all_feeds) for config in runs.values())
    _report_padding_in_group_errors(workspace, reporter)
    for name, config in runs.items():
        ensure_ranges(workspace, store, reporter, [config])
        source = ConfigWithGroupErrors(workspace.analysis, config, workspace.ranges, name, error_feeds)
        try:
            for partial in _send_accuracy_with_errors(workspace, reporter, source, config):
                reporter.send_progress("per-layer errors", done + partial.done_count, total)
                yield Urgency.ACCURACY
            done += partial.total_count
            if workspace.metric is not None:
                reporter.send(ev.AccuracyMeasured(reporter.job, name, config, partial.value, True))
        except RunFailedError:
            yield from send_accuracies(workspace, store, reporter, {name: config})
    _report_raised_weight_scales(workspace, reporter, runs)
    yield from measure_export_accuracy(workspace, store, reporter, runs)
    yield from send_reference_metric(workspace, store, reporter, runs.values())


def _send_accuracy_with_errors(
    workspace: Workspace, reporter: JobReporter, source: ConfigWithGroupErrors, config: PrecisionConfig
) -> Iterator[PartialResult[Accuracy]]:
    """Measures and sends the accuracy of a run and its accumulated errors at the groups. Yields each partial result.

    Further partial results, which refine the interval of the metric, are not sent.

    Raises:
        RunFailedError: Rounding makes the execution fail.
    """
    name, last_done = source.run.name, 0
    for partial in workspace.analysis.compare(source, workspace.find_judged_feeds(config)):
        assert isinstance(partial, PartialResult), "the simulation waits for nobody"
        is_refined, last_done = partial.done_count == last_done, partial.done_count
        if not is_refined and (partial.is_final_result or partial.done_count == 1):
            reporter.send(ev.AccuracyMeasured(reporter.job, name, config, partial.value, partial.is_final_result))
        if not is_refined and partial.is_final_result:
            reporter.send(ev.GroupErrorsMeasured(reporter.job, name, config, source.group_errors, True))
        yield partial


def _send_errors_of_first_run(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    runs: Mapping[str, PrecisionConfig],
    name: str | None,
) -> Steps[tuple[dict[str, ErrorSums], PendingIntervals]]:
    """Measures and sends the accuracy of one run with its accumulated errors at the groups, in the same executions.

    Returns the sums of the errors and the pending metric interval, by run. Both are empty if nothing was measured. This
    is the case if no run is named, if its results are stored, or if its errors cannot be measured with its accuracy.
    """
    if name is None or name not in runs or not _can_measure_accuracy_with_errors(workspace):
        return {}, {}
    config = runs[name]
    ensure_ranges(workspace, store, reporter, [config])
    accuracy = store.load_result(workspace, "verdict", config, Accuracy)
    error_feeds = workspace.find_group_error_feeds(*runs.values())
    if accuracy is not None and (
        find_simulation_failure_reason(accuracy) or load_group_errors(workspace, store, config, error_feeds) is not None
    ):
        return {}, {}
    source = ConfigWithGroupErrors(workspace.analysis, config, workspace.ranges, name, error_feeds, keeps_gates=True)
    pending = _send_accuracy_with_errors(workspace, reporter, source, config)
    try:
        for partial in pending:
            reporter.send_progress("per-layer errors", partial.done_count, partial.total_count)
            if partial.is_final_result:
                store.save_result(workspace, "verdict", config, partial.value)
                break
            yield Urgency.FIRST_ACCURACY
    except RunFailedError:
        return {}, {}
    return {name: source.error_sums}, {name: pending}


def _filter_measurable_runs(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, runs: Mapping[str, PrecisionConfig]
) -> Mapping[str, PrecisionConfig]:
    """Returns the runs whose ranges can be measured. Warns about runs that need ranges of tensors with NaN or Inf.

    If the reference is FP32 of the network, all runs are returned.

    Raises:
        InputError: `ensure_ranges` raises it.
    """
    if workspace.reference_source is None:
        return runs
    measurable = {}
    for name, config in runs.items():
        try:
            ensure_ranges(workspace, store, reporter, [config])
        except NonFiniteTensorError as error:
            reporter.log(f"{name} is not measured: {error.title}. {error.cause}", "warning")
        else:
            measurable[name] = config
    return measurable


def _report_raised_weight_scales(
    workspace: Workspace, reporter: JobReporter, runs: Mapping[str, PrecisionConfig]
) -> None:
    """Reports the weight scales of the runs that were raised for a bias, and the resulting loss of bits."""
    network, scales = workspace.network, list[RaisedWeightScales]()
    for config in runs.values():
        folds = EditedConstants(network, config)
        group_lowerings = rulebook.plan_lowering(network, config, workspace.ranges, edited_constants=folds)
        scales += rulebook.find_raised_weight_scales(network, group_lowerings, folds)
    if scales:
        has_warned_loss = any(scale.max_channel_bit_loss >= MIN_WARNED_BITS for scale in scales)
        level = "warning" if has_warned_loss else "note"
        reporter.log(raised_scales_text(scales), level)


def send_group_errors(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    runs: Mapping[str, PrecisionConfig],
    urgency: Urgency,
    known_sums: Mapping[str, ErrorSums] | None = None,
) -> Steps[None]:
    """Measures and sends the errors at the groups of each run.

    Args:
        known_sums: The sums of the accumulated errors of runs whose isolated errors alone are measured, by run.
    """
    feed_indices = workspace.find_group_error_feeds(*runs.values())
    range_feeds = workspace.feeds.all_feeds
    configs: dict[str, PrecisionConfig] = {}
    for name, config in runs.items():
        cached = load_group_errors(workspace, store, config, feed_indices)
        accuracy = store.load_result(workspace, "verdict", config, Accuracy)
        if accuracy is not None and find_simulation_failure_reason(accuracy):
            continue  # a failed run has no values at the groups
        if cached is not None:
            reporter.send(ev.GroupErrorsMeasured(reporter.job, name, config, cached, True))
        else:
            configs[name] = config
    if not configs:
        return
    _report_padding_in_group_errors(workspace, reporter)
    _report_filled_batch_in_group_errors(workspace, reporter, feed_indices)
    executor, total_count, done_before = get_executor(workspace, reporter), len(feed_indices) * len(configs), 0
    reporter.send(ev.JobProgress(reporter.job, f"per-layer errors{executor.location_text}", 0, total_count))
    for _ in workspace.analysis.measure_magnitudes(range_feeds, executor):
        yield choose_next_job_step(executor, urgency)
    known = {name: sums for name, sums in (known_sums or {}).items() if name in configs}
    for names, sums in (
        (tuple(name for name in configs if name not in known), None),
        *(((name,), run_sums) for name, run_sums in known.items()),
    ):
        last_done = 0
        for partial in (
            measure_group_errors(
                workspace.analysis,
                {name: configs[name] for name in names},
                workspace.ranges,
                feed_indices=feed_indices,
                executor=executor,
                known_sums=sums,
                keeps_gates=len(configs) > 1,
                range_feeds=range_feeds,
            )
            if names
            else ()
        ):
            if partial.done_count == last_done:
                yield choose_next_job_step(executor, urgency)
                continue
            last_done = partial.done_count
            feed, run_index = divmod(partial.done_count - 1, len(names))
            name, final = names[run_index], feed + 1 == len(feed_indices)
            if final:
                store.save_result(workspace, "layers", configs[name], partial.value[name], feed_indices)
            if final or feed == 0 or reporter.is_report_due(f"layers {name}"):
                reporter.send(ev.GroupErrorsMeasured(reporter.job, name, configs[name], partial.value[name], final))
            reporter.send_progress(
                f"per-layer errors{executor.location_text}", done_before + partial.done_count, total_count
            )
            yield choose_next_job_step(executor, urgency)
        done_before += last_done


def _report_filled_batch_in_group_errors(
    workspace: Workspace, reporter: JobReporter, feed_indices: Sequence[int]
) -> None:
    """Reports the samples of the errors at the groups if the last batch of the network is filled up with copies."""
    samples, sample_count = workspace.data_sets.judged_samples, workspace.count_samples(feed_indices)
    if not any(map(samples.is_padded, workspace.feeds.all_feeds)):
        return
    copies = sum(map(samples.count_rows_of_full_feed, feed_indices)) - sample_count
    text = (
        f"count the last sample {copies + 1} times"
        if copies
        else f"are those of {counted_noun_text(sample_count, 'sample')}, without the last batch, which is filled up"
    )
    reporter.log(f"Errors at the layers {text}. Errors at the outputs are those of all samples.", "note")


def _report_padding_in_group_errors(workspace: Workspace, reporter: JobReporter) -> None:
    """Reports the number of groups whose errors include padding. The mask of the judged outputs excludes this
    padding."""
    network, mask = workspace.network, find_common_mask_name(workspace.judged_outputs)
    if not any(output.mask for output in workspace.judged_outputs):
        return
    tails = [group.final_tensor for group in network.groups if group.final_tensor not in network.blocking_plugins]
    if counted_groups := sum(tail not in workspace.analysis.mask_axes_by_tensor for tail in tails):
        reason = f"the axes of {mask} in these tensors are unknown" if mask else "the judged outputs have several masks"
        reporter.log(
            f"At {counted_groups} of {counted_noun_text(len(tails), 'fused layer')} the errors count padding too: "
            f"{reason}. The judged outputs leave it out.",
            "info",
        )


def measure_export_accuracy(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    runs: Mapping[str, PrecisionConfig],
    urgency: Urgency = Urgency.ACCURACY,
) -> Steps[None]:
    """Measures the accuracy of the exported network of each run in file precision for which TensorRT refuses a part of
    the file."""
    for run, config in runs.items():
        if any(
            config.precision_of(group) is Precision.FILE
            and group.file_precision is not None
            and group.file_precision.refused_nodes
            for group in workspace.network.groups
        ):
            yield urgency
            accuracy = yield from measure_unless_stored(
                workspace,
                store,
                "amended",
                config,
                Accuracy,
                _measure_typed_network_accuracy(workspace, config, urgency),
            )
            reporter.send(ev.AccuracyMeasured(reporter.job, run, config, accuracy, True, RunKind.TYPED_NETWORK))


def _measure_typed_network_accuracy(workspace: Workspace, config: PrecisionConfig, urgency: Urgency) -> Steps[Accuracy]:
    """Executes the typed network of a config without changes and returns its accuracy."""
    typed_model = lower_from_source_model(workspace.network, config, workspace.ranges).model
    infer_shapes(typed_model)
    values = (value for node in typed_model.graph for value in (*node.inputs, *node.outputs) if value is not None)
    add_fp32_casts_to_operators(
        typed_model.graph, {value_name(value): value.dtype for value in values if value.dtype in PRECISION_BY_HALF_TYPE}
    )
    steps = measure_lowered_network_accuracy(workspace.analysis, typed_model, workspace.find_judged_feeds(config))
    return (yield from override_urgency(urgency, steps))


def run_method_comparison_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.CompareRangeMethods
) -> Steps[None]:
    """Measures the accuracy of a config with the ranges of each range method, and sends the table after each method.

    The seconds of a row are those of the calibration alone. They are near 0 if the ranges are already stored.
    """
    if workspace.options.calib_cache is not None or workspace.options.new_calib_cache is not None:
        raise InputError(
            "calibration methods cannot be compared",
            "a calibration cache holds the ranges of one method",
            "Leave out --calib-cache.",
        )
    rows: list[ev.RangeMethodResult] = []
    yield from send_reference_metric(workspace, store, reporter, [request.config])
    for method in request.methods:
        start = time.perf_counter()
        calibration = measure_ranges(workspace, store, reporter, method)
        seconds = time.perf_counter() - start
        yield Urgency.ACCURACY
        partials = workspace.analysis.measure_accuracy(
            request.config, calibration.range_table, workspace.feeds, with_metric_interval=True
        )
        accuracy = yield from reporter.run_steps(run_to_last_value(partials, f"judging {method}"), Urgency.ACCURACY)
        rows.append(ev.RangeMethodResult(method, accuracy, seconds, calibration.samples))
        reporter.send_value(ev.METHOD_COMPARISON, None, ev.RangeMethodComparison(request.config, tuple(rows)))


def run_what_if_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.MeasureWhatIf
) -> Steps[None]:
    """Measures the simulated accuracy of a config, then its error shares and its errors at the groups if requested.

    The accuracy of the exported network follows if the export differs from the file. All but the accuracy of the config
    runs in the background.
    """
    config = request.config
    ensure_ranges(workspace, store, reporter, [config])
    for partial in measure_accuracy(workspace, store, config):
        reporter.send_progress("what-if", partial.done_count, partial.total_count)
        if partial.is_final_result or reporter.is_report_due("what-if"):
            reporter.send(ev.AccuracyMeasured(reporter.job, "config", config, partial.value, partial.is_final_result))
        yield Urgency.WHAT_IF
    yield from add_metric_intervals(workspace, store, reporter, {"config": config})
    if request.with_shares:
        yield Urgency.FIRST_SHARES
        yield from send_error_shares(workspace, store, reporter, "config", config)
        yield from send_group_errors(workspace, store, reporter, {"config": config}, Urgency.BACKGROUND)
    yield from measure_export_accuracy(workspace, store, reporter, {"config": config}, Urgency.BACKGROUND)


def run_sample_error_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.MeasureSampleErrors
) -> Steps[None]:
    """Measures and sends the error of each sample in a config. Stored errors are sent at once."""
    config = request.config
    ensure_ranges(workspace, store, reporter, [config])
    partials = measure_sample_errors(workspace.analysis, config, workspace.ranges, workspace.find_judged_feeds(config))
    steps = run_to_last_value(partials, request.phase)
    errors = yield from measure_unless_stored(
        workspace, store, "samples", config, SampleErrors, reporter.run_steps(steps, Urgency.ACCURACY)
    )
    reporter.send_value(SAMPLE_ERRORS, config, errors)


def run_single_sample_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.MeasureSingleSample
) -> Steps[None]:
    """Measures a single sample, and sends its results as more groups are measured."""
    ensure_ranges(workspace, store, reporter, request.runs.values())
    position = workspace.analysis.samples.find_sample(request.sample)
    for partial in measure_single_sample(workspace.analysis, request.runs, request.config, workspace.ranges, *position):
        reporter.send_progress(request.phase, partial.done_count, partial.total_count)
        if partial.value.is_complete or reporter.is_report_due("one sample"):
            reporter.send_value(SINGLE_SAMPLES, (request.config, partial.value.name), partial.value)
        yield Urgency.FIRST_SHARES


MAX_TOGGLED_ROWS = 40
"""The maximum number of toggled rows. Each takes a what-if on all samples."""

MAX_TOGGLED_SCOPES = 20
"""The maximum number of toggled scopes, which are measured after the rows."""


def run_toggle_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.MeasureToggles
) -> Steps[None]:
    """Measures the accuracy of a config with one row toggled, for each relevant row, and then for each relevant scope.

    The job has the lowest urgency. `list_toggled_configs` selects the rows and scopes. If no error shares are known,
    only changed rows are measured.
    """
    config = request.config
    yield Urgency.TOGGLES
    ensure_ranges(workspace, store, reporter, [config])
    toggled = list_toggled_configs(config, workspace.network, load_stored_shares(workspace, store, config))
    for done, toggled_config in enumerate(toggled, 1):
        accuracy = yield from measure_final_accuracy(workspace, store, reporter, toggled_config, Urgency.TOGGLES)
        reporter.send(ev.AccuracyMeasured(reporter.job, "flip", toggled_config, accuracy, True))
        reporter.send_progress(request.phase, done, len(toggled))


def list_toggled_configs(
    config: PrecisionConfig, network: Network, shares: dict[str, ErrorShare]
) -> list[PrecisionConfig]:
    """Returns the configs in which one row or one scope is toggled between FP32 and its default precision.

    The configs of rows come first. Rows and scopes are in the order of decreasing relevance: changed groups, then
    groups with large error shares.
    """

    def toggle_relevance(groups: Sequence[FusionGroup]) -> float:
        return sum(
            2.0
            if group.name in config.precision_moves
            else max(0.0, shares[group.name].fraction)
            if group.name in shares
            else 0.0
            for group in groups
        )

    def choose_most_relevant_group_sets(
        group_sets: Iterable[Sequence[FusionGroup]], max_count: int
    ) -> list[Sequence[FusionGroup]]:
        return sorted(
            (group_set for group_set in group_sets if toggle_relevance(group_set) >= MIN_RAISED_SHARE),
            key=toggle_relevance,
            reverse=True,
        )[:max_count]

    by_name = network.group_by_name
    scopes = [
        [by_name[name] for name in row.groups]
        for _, row in iterate_rows_with_depth(build_scope_tree(network.layers, network.groups))
        if isinstance(row, Scope) and 1 < len(row.groups) <= rq.MeasureToggles.MAX_SCOPE_GROUPS
    ]
    rows = ([group] for group in network.groups)
    order = (
        *choose_most_relevant_group_sets(rows, MAX_TOGGLED_ROWS),
        *choose_most_relevant_group_sets(scopes, MAX_TOGGLED_SCOPES),
    )
    return [
        toggled_config
        for toggled_config in dict.fromkeys(toggle_fp32(network, config, groups) for groups in order)
        if toggled_config != config
    ]


def run_stored_results_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.LoadStoredResults
) -> Steps[None]:
    """Sends the stored results of each config. Results with other ranges or on other samples are not sent."""
    yield Urgency.ACCURACY  # the first accuracy comes before
    ensure_ranges(workspace, store, reporter, request.configs)
    for config in request.configs:
        accuracy = store.load_result(workspace, "verdict", config, Accuracy)
        stored = {
            RunKind.SIMULATED_CONFIG: RunResult(accuracy) if accuracy is not None else None,
            RunKind.EXPORTED_FILE: load_stored_exported_run(workspace, store, config),
            RunKind.BUILT_ENGINE: store.load_engine_result(workspace, config),
        }
        if runs := {kind: result for kind, result in stored.items() if result is not None}:
            reporter.send(ev.StoredResultsLoaded(reporter.job, config, runs))
        yield Urgency.ACCURACY


def run_zero_cost_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.MeasureZeroCostChanges
) -> Steps[None]:
    """Measures each zero-cost change of a group and of the whole network, then previews the kernels of each.

    All changes listed so far are sent after each measurement. The changes of the group come first.
    """
    network, config = workspace.network, request.config
    ensure_ranges(workspace, store, reporter, [config, replace_file_precision_of_groups(config, network.groups)])
    changes_by_scope: dict[bool, list[ev.ZeroCostChange]] = {False: [], True: []}
    kernel_counts: dict[PrecisionConfig, dict[str, Any]] = {}

    def list_changes() -> list[ev.ZeroCostChange]:
        return [
            replace(change, **kernel_counts.get(change.config, {}))
            for changes in changes_by_scope.values()
            for change in list_distinct_changes(changes)
        ]

    def send_changes(is_complete: bool = False) -> None:
        listed = list_changes()
        accuracies = {change.config: change.accuracy for change in listed if change.accuracy is not None}
        reporter.send_value(
            ev.ZERO_COST_CHANGES,
            (request.group, config),
            ev.ZeroCostChanges(tuple(listed), is_complete),
            accuracies,
        )

    for is_for_network, changes in changes_by_scope.items():
        groups = network.groups if is_for_network else [network.get_group(request.group)] if request.group else []
        kinds = [kind for kind in ZERO_COST_KINDS if (kind.is_for_searches if is_for_network else kind.is_for_rows)]
        known_configs = {change.config for change in changes_by_scope[False]}
        changes += [
            ev.ZeroCostChange(**vars(proposal), is_for_network=is_for_network)
            for proposal in propose_zero_cost_moves(
                workspace, store, reporter, groups, config, kinds, may_replace_file_precision=True
            )
            if proposal.config not in known_configs
        ]
        send_changes()
        ensure_ranges(workspace, store, reporter, [change.config for change in changes])
        for index, change in enumerate(changes):
            accuracy = yield from measure_final_accuracy(
                workspace, store, reporter, change.config, Urgency.REMEDIES, f"trying {change.label}"
            )
            changes[index] = replace(change, accuracy=accuracy)
            send_changes()
    listed = list_changes()
    if listed and request.use_preview and is_tensorrt_rtx_installed() and not preview_mismatch_reason(workspace):
        previewer = PreviewClient(workspace, store, reporter, workspace.ranges)
        before = yield from previewer.preview_config(config)
        for change in listed if before.refusal is None else ():
            after = yield from previewer.preview_config(change.config)
            if after.refusal is None:
                kernel_counts[change.config] = {
                    "added_kernels": len(after.kernels) - len(before.kernels),
                    "attention_kernels": (before.attention_kernel_count, after.attention_kernel_count),
                }
                send_changes()
    send_changes(is_complete=True)


ChangeT = TypeVar("ChangeT", ev.ZeroCostChange, ev.Remedy)


def list_distinct_changes(changes: Sequence[ChangeT]) -> list[ChangeT]:
    """Returns changes in their order, with one change for all its variants.

    Of the variants of a change only the best one is left. It has the place of the first variant. The metric of the user
    decides, if there is one, and then the judged error.
    """

    def comparable_loss(change: ChangeT) -> tuple[float, float]:
        accuracy = change.accuracy
        if accuracy is None or accuracy.nonfinite_count or accuracy.judged_error is None:
            return math.inf, math.inf
        return -(accuracy.headline_metric or 0.0), accuracy.judged_error

    families: dict[object, list[ChangeT]] = {}
    for index, change in enumerate(changes):
        families.setdefault(change.family or index, []).append(change)
    return [min(variants, key=comparable_loss) for variants in families.values()]


def propose_zero_cost_moves(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    groups: Sequence[FusionGroup],
    config: PrecisionConfig,
    kinds: Iterable[ZeroCostKind],
    *,
    reason: str = "user",
    may_replace_file_precision: bool = False,
    in_separate_pass: bool = False,
    budget: TrialBudget | None = None,
) -> list[ConfigProposal]:
    """Returns the zero-cost changes of some kinds that some groups allow and do not have yet, each with its config.

    Args:
        may_replace_file_precision: True to change groups in file precision too. They get the nearest other precision.
        in_separate_pass: True to measure values for these groups in one separate pass, even if they are known
            (`Workspace.separate_pass_values`).
        budget: The budget of the configs that are simulated to choose among variants; None for no limit.

    Raises:
        InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
    """

    def load_or_measure(
        title: str,
        changed: PrecisionConfig,
        result_type: type[T],
        measure: Callable[[], T],
        *,
        subjects: Sequence[str] = (),
    ) -> T:
        samples = workspace.calibration_samples
        key = (list(subjects), len(samples), samples.hash_inputs()) if subjects else ()
        value = store.load_result(workspace, title, changed, result_type, *key)
        if value is None:
            value = measure()
            store.save_result(workspace, title, changed, value, *key)
        return value

    def measure_sample_errors(
        changed: PrecisionConfig, feeds: Sequence[int], progress: RunProgress
    ) -> tuple[np.ndarray, np.ndarray]:
        errors: tuple[np.ndarray, np.ndarray] | None = None
        for partial in workspace.analysis.measure_noise_by_sample(changed, workspace.ranges, feeds):
            errors = partial.value
            progress(partial.done_count, partial.total_count)
        assert errors is not None, "a workspace has feeds"
        return errors

    context = ProposalContext(
        workspace.network,
        config,
        groups,
        workspace.calibration_samples,
        workspace.backend,
        workspace.ranges,
        workspace.calibration.method if workspace.calibration is not None else "",
        reason,
        may_replace_file_precision,
        in_separate_pass,
        workspace.separate_pass_values,
        workspace.data_sets.judged_samples,
        tuple(workspace.find_judged_feeds(config)),
        measure_sample_errors,
        budget or TrialBudget(),
        load_or_measure,
        lambda: get_executor(workspace, reporter),
        lambda title: reporter.make_progress_callback(title, is_preemptible=True),
    )
    return [proposal for kind in kinds for proposal in kind.make_proposals(context)]


def run_remedy_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.MeasureRemedies
) -> Steps[None]:
    """Measures the accuracy with each remedy for a group. After each remedy, all remedies measured so far are sent."""
    group, config = workspace.network.get_group(request.group), request.config
    ensure_ranges(
        workspace, store, reporter, [config, replace_file_precision_of_groups(config, workspace.network.groups)]
    )
    remedies = _list_remedies(workspace, store, reporter, group, config)
    ensure_ranges(workspace, store, reporter, [proposal.config for _, proposal in remedies])
    measured: list[ev.Remedy] = []
    for key, proposal in remedies:
        accuracy = yield from measure_final_accuracy(
            workspace, store, reporter, proposal.config, Urgency.REMEDIES, f"trying {proposal.label}"
        )
        measured.append(ev.Remedy(**vars(proposal), key=key, accuracy=accuracy))
        shown = list_distinct_changes(measured)
        compared_accuracies = restrict_to_common_samples([remedy.accuracy for remedy in shown])
        reporter.send_value(
            ev.REMEDIES,
            (group.name, config),
            tuple(
                replace(remedy, compared_accuracy=compared_accuracy)
                for remedy, compared_accuracy in zip(shown, compared_accuracies, strict=True)
            ),
            {remedy.config: remedy.accuracy for remedy in shown},
        )
    if not remedies:
        reporter.send_value(ev.REMEDIES, (group.name, config), ())


def _list_remedies(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, group: FusionGroup, config: PrecisionConfig
) -> list[tuple[str, ConfigProposal]]:
    """Returns the remedies for a group. Each is the key that selects it, and the proposed config with its label."""
    current = config.precision_of(group)
    remedies = [
        (ev.ZERO_COST_KEY, proposal)
        for proposal in propose_zero_cost_moves(
            workspace,
            store,
            reporter,
            [group],
            config,
            [kind for kind in ZERO_COST_KINDS if kind.is_for_rows],
            may_replace_file_precision=True,
        )
    ]
    higher = find_next_precision(group, current, True, config.precision_steps)
    if higher is not current and higher is not Precision.FP32:
        remedies.append(("=", ConfigProposal(higher.label, config.with_group_precision([group], higher))))
    if current is not Precision.FP32:
        remedies.append(
            ("space", ConfigProposal(Precision.FP32.label, config.with_group_precision([group], Precision.FP32)))
        )
    if group.calibrated_qdq_sites(current):
        ranges = measure_ranges_by_method(workspace, reporter, [group], config)
        current_method = workspace.calibration.method if workspace.calibration is not None else ""
        methods = (
            list_range_methods(QUANTIZED_TYPES[current]) if config.fixed_range_tensors.isdisjoint(ranges) else ()
        )  # the ranges are measured without the factors of these channels
        for method in methods:
            if method != current_method:
                moves = {tensor: RangeMove(by_method[method], method) for tensor, by_method in ranges.items()}
                remedies.append(("r", ConfigProposal(f"{method} range", config.with_moves(moves))))
    return remedies


def run_qdq_removal_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.RemoveUnusedQdq
) -> Steps[None]:
    """Takes the unused Q/DQ out of a config. Sends the new config, with kernels and accuracies before and after."""
    config = request.config
    if not is_tensorrt_rtx_installed():
        raise BackendUnavailableError(NOT_INSTALLED.title, NOT_INSTALLED.cause, NOT_INSTALLED.next_step)
    if reason := preview_mismatch_reason(workspace):
        raise InputError(
            "the preview does not hold for this TensorRT",
            reason,
            "Build the config, and raise the layers that the engine page lists.",
        )
    ensure_ranges(workspace, store, reporter, [config])
    client = PreviewClient(workspace, store, reporter, workspace.ranges)
    preview = yield from client.preview_config(config)
    if preview.refusal is not None:
        raise InputError("the config has no preview", preview.refusal.refusal_text, preview.refusal.next_step)
    removal = yield from remove_all_unused_qdq(
        workspace.network, config, preview, client.preview_config, request.fixed_reasons
    )
    if removal.groups:
        accuracies = []
        for measured_config in (config, removal.config):
            accuracy = yield from measure_final_accuracy(
                workspace, store, reporter, measured_config, Urgency.WHAT_IF, request.phase
            )
            reporter.send(ev.AccuracyMeasured(reporter.job, "config", measured_config, accuracy, True))
            accuracies.append(accuracy)
        removal = replace(removal, accuracies=(accuracies[0], accuracies[1]))
    reporter.send(ev.UnusedQdqRemoved(reporter.job, config, removal))
