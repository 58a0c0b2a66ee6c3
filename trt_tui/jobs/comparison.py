"""The job that compares runs: their accuracies, their errors at the groups, and the accuracy of exported networks."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from trt_tui.core.calibration.tensor_collection import NonFiniteTensorError
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.bias_scales import MIN_WARNED_BITS, RaisedWeightScales
from trt_tui.core.lowering.folded_constants import FoldedConstants
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.measure.analysis import PartialResult
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.measure.failed_runs import find_failure_reason
from trt_tui.core.measure.group_errors import ConfigWithGroupErrors, measure_group_errors
from trt_tui.core.measure.masks import find_common_mask_name
from trt_tui.core.measure.results import FP32_ENGINE, Accuracy
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.naming import value_name
from trt_tui.core.network.qdq_steps import PRECISION_BY_HALF_TYPE
from trt_tui.core.network.typed_refusals import add_fp32_casts_to_operators
from trt_tui.core.precision import Precision
from trt_tui.errors import RunFailedError
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.accuracy import (
    PendingIntervals,
    add_metric_intervals,
    load_group_errors,
    send_accuracies,
    send_error_shares,
    send_reference_metric,
)
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.engine_accuracy import measure_lowered_network_accuracy
from trt_tui.jobs.executors import choose_next_job_step, get_executor
from trt_tui.jobs.exported_run import find_stored_exported_run
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency, Wait, override_urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

FP32_RUN = "fp32"
"""The run key of FP32 in a comparison with an external reference. No layer of this run has a lower precision."""


def run_comparison_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                       request: rq.CompareRuns) -> Steps[None]:
    """Measures the runs and sends their results, with stored results of their engines."""
    if not request.with_isolated_errors and _can_measure_accuracy_with_errors(workspace):
        yield from _send_accuracies_with_errors(workspace, store, reporter, request.runs)
        return
    runs = _filter_measurable_runs(workspace, store, reporter, request.runs)
    first_sums, pending = yield from _send_first_errors(workspace, store, reporter, runs, request.first_errors_run)
    pending |= yield from send_accuracies(workspace, store, reporter,
                                          {name: config for name, config in runs.items() if name not in pending})
    _report_raised_weight_scales(workspace, reporter, runs)
    yield from send_reference_metric(workspace, store, reporter, runs.values())
    for config in runs.values():
        cached = store.load_engine_result(workspace, config)
        if cached is not None:
            reporter.send(ev.EngineBuilt(reporter.job, config, cached))
        if (executed := find_stored_exported_run(workspace, store, config)) is not None:
            reporter.send(ev.ExportedFileExecuted(reporter.job, config, executed))
    if workspace.builder is not None:
        cached = store.load_engine_result(workspace, PrecisionConfig.from_precision(Precision.FP32))
        if cached is not None:
            reporter.send(ev.Measured(reporter.job, FP32_ENGINE, None, cached))
    yield from measure_export_accuracy(workspace, store, reporter, runs)
    yield from add_metric_intervals(workspace, store, reporter, runs, pending)
    runs = {name: config for name, config in runs.items() if name != FP32_RUN}
    if reason := workspace.analysis.explain_missing_shares(workspace.find_judged_feeds(*runs.values())):
        reporter.send(
            ev.LogMessage(
                reporter.job, "Shares and errors at the layers are not measured, since FP32 is not finite "
                f"either. {reason}.", "warning"))
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
    with contextlib.closing(send_error_shares(workspace, store, reporter, order[0], runs[order[0]])) as share_steps:
        yield Urgency.FIRST_SHARES
        for step in share_steps:
            if step is not Urgency.FIRST_SHARES and not isinstance(step, Wait):
                break
            yield step
        if has_late_errors:
            yield Urgency.GROUP_ERRORS
            yield from send_group_errors(workspace, store, reporter, runs, Urgency.GROUP_ERRORS, first_sums)
        yield Urgency.BACKGROUND
        yield from share_steps
    for name in order[1:]:
        yield from override_urgency(Urgency.BACKGROUND, send_error_shares(workspace, store, reporter, name, runs[name]))


def _can_measure_accuracy_with_errors(workspace: Workspace) -> bool:
    """Returns True if one execution of a feed can yield the outputs of a run and its errors at the groups.

    The reference must be FP32 of the network, every batch full, and a group simulated.
    """
    network, samples = workspace.network, workspace.data_sets.judged_samples
    return (workspace.reference_source is None and not any(map(samples.is_padded, workspace.feeds.all_feeds))
            and any(group.final_tensor not in network.blocking_plugins for group in network.groups))


def _send_accuracies_with_errors(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                                 runs: Mapping[str, PrecisionConfig]) -> Steps[None]:
    """Measures and sends the accuracy of each run with its accumulated errors at the groups, in the same executions.

    Each run executes its config and FP32 once. A run that fails because of rounding is measured without errors.
    """
    start_time, done, error_feeds = time.monotonic(), 0, workspace.find_judged_feeds(*runs.values())
    total = sum(len(workspace.find_judged_feeds(config).all_feeds) for config in runs.values())
    _report_padding_in_group_errors(workspace, reporter)
    for name, config in runs.items():
        ensure_ranges(workspace, store, reporter, [config])
        source = ConfigWithGroupErrors(workspace.analysis, config, workspace.ranges, name, error_feeds)
        try:
            for partial in _send_accuracy_with_errors(workspace, reporter, source, config):
                reporter.send_progress("per-layer errors", done + partial.done_count, total, start_time)
                yield Urgency.ACCURACY
            done += partial.total_count
            if workspace.metric is not None:
                reporter.send(ev.AccuracyMeasured(reporter.job, name, config, partial.value, True))
        except RunFailedError:
            yield from send_accuracies(workspace, store, reporter, {name: config})
    _report_raised_weight_scales(workspace, reporter, runs)
    yield from measure_export_accuracy(workspace, store, reporter, runs)
    yield from send_reference_metric(workspace, store, reporter, runs.values())


def _send_accuracy_with_errors(workspace: Workspace, reporter: JobReporter, source: ConfigWithGroupErrors,
                               config: PrecisionConfig) -> Iterator[PartialResult[Accuracy]]:
    """Measures and sends the accuracy of a run and its accumulated errors at the groups; yields each partial result.

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
            reporter.send(ev.GroupErrorsMeasured(reporter.job, name, config, source.group_errors,
                                                 workspace.count_samples(source.error_feeds), True))
        yield partial


def _send_first_errors(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                       runs: Mapping[str, PrecisionConfig], name: str | None
                       ) -> Steps[tuple[dict[str, Sequence[ErrorSums]], PendingIntervals]]:
    """Measures and sends the accumulated errors at the groups of one run, with its accuracy.

    Returns the sums of the errors and the pending metric interval, by run. Both are empty if nothing was measured: no
    run is named, its results are stored, or its errors cannot be measured with its accuracy.
    """
    if name is None or name not in runs or not _can_measure_accuracy_with_errors(workspace):
        return {}, {}
    start_time, config = time.monotonic(), runs[name]
    ensure_ranges(workspace, store, reporter, [config])
    accuracy = store.load_result(workspace, "verdict", config, Accuracy)
    error_feeds = workspace.find_group_error_feeds(*runs.values())
    if accuracy is not None and (find_failure_reason(accuracy) or load_group_errors(
            workspace, store, config, error_feeds) is not None):
        return {}, {}
    source = ConfigWithGroupErrors(workspace.analysis, config, workspace.ranges, name, error_feeds, keeps_gates=True)
    pending = _send_accuracy_with_errors(workspace, reporter, source, config)
    try:
        for partial in pending:
            reporter.send_progress("per-layer errors", partial.done_count, partial.total_count, start_time)
            if partial.is_final_result:
                store.save_result(workspace, "verdict", config, partial.value)
                break
            yield Urgency.FIRST_ACCURACY
    except RunFailedError:
        return {}, {}
    return {name: source.error_sums}, {name: pending}


def _filter_measurable_runs(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                            runs: Mapping[str, PrecisionConfig]) -> Mapping[str, PrecisionConfig]:
    """Returns the runs whose ranges can be measured, and warns about the others, whose FP32 network is not finite.

    Runs are left out only with an external reference. If the reference is FP32 of the network, all runs are returned.

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
            reporter.send(
                ev.LogMessage(reporter.job, f"{name} is not measured: {error.title}. {error.cause}", "warning"))
        else:
            measurable[name] = config
    return measurable


def _report_raised_weight_scales(workspace: Workspace, reporter: JobReporter, runs: Mapping[str,
                                                                                            PrecisionConfig]) -> None:
    """Reports the weight scales of the runs that were raised for a bias, and the resulting loss of bits."""
    network, scales = workspace.network, dict[str, RaisedWeightScales]()
    for config in runs.values():
        folds = FoldedConstants(network, config)
        group_lowerings = rulebook.plan_lowering(network, config, workspace.ranges, folded_constants=folds)
        scales.update((scale.scale_change_text, scale)
                      for scale in rulebook.find_raised_weight_scales(network, group_lowerings, folds))
    for text, scale in scales.items():
        reporter.send(
            ev.LogMessage(reporter.job, text, "warning" if scale.max_channel_bit_loss >= MIN_WARNED_BITS else "note"))


def send_group_errors(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                      runs: Mapping[str, PrecisionConfig], urgency: Urgency,
                      known_sums: Mapping[str, Sequence[ErrorSums]] | None = None) -> Steps[None]:
    """Measures and sends the errors at the groups of each run.

    Args:
        known_sums: The sums of the accumulated errors of runs whose isolated errors alone are measured, by run.
    """
    start_time, feed_indices = time.monotonic(), workspace.find_group_error_feeds(*runs.values())
    sample_count, range_feeds = workspace.count_samples(feed_indices), workspace.feeds.all_feeds
    configs: dict[str, PrecisionConfig] = {}
    for name, config in runs.items():
        cached = load_group_errors(workspace, store, config, feed_indices)
        accuracy = store.load_result(workspace, "verdict", config, Accuracy)
        if accuracy is not None and find_failure_reason(accuracy):
            continue  # a failed run has no values at the groups
        if cached is not None:
            reporter.send(
                ev.GroupErrorsMeasured(reporter.job, name, config, cached, sample_count, True))
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
    for names, sums in ((tuple(name for name in configs if name not in known), ()),
                        *(((name,), run_sums) for name, run_sums in known.items())):
        last_done = 0
        for partial in measure_group_errors(
                workspace.analysis, {name: configs[name] for name in names}, workspace.ranges,
                feed_indices=feed_indices, executor=executor, known_sums=sums,
                keeps_gates=len(configs) > 1, range_feeds=range_feeds) if names else ():
            if partial.done_count == last_done:
                yield choose_next_job_step(executor, urgency)
                continue
            last_done = partial.done_count
            feed, run_index = divmod(partial.done_count - 1, len(names))
            name, final = names[run_index], feed + 1 == len(feed_indices)
            if final:
                store.save_result(workspace, "layers", configs[name], partial.value[name], feed_indices)
            if final or feed == 0 or reporter.is_report_due(f"layers {name}"):
                samples = workspace.count_samples(feed_indices[:feed + 1])
                reporter.send(ev.GroupErrorsMeasured(reporter.job, name, configs[name], partial.value[name], samples,
                                                     final))
            reporter.send_progress(f"per-layer errors{executor.location_text}", done_before + partial.done_count,
                                   total_count, start_time)
            yield choose_next_job_step(executor, urgency)
        done_before += last_done


def _report_filled_batch_in_group_errors(workspace: Workspace, reporter: JobReporter,
                                         feed_indices: Sequence[int]) -> None:
    """Reports the samples of the errors at the groups if the last batch of the network is filled up with copies."""
    samples, sample_count = workspace.data_sets.judged_samples, workspace.count_samples(feed_indices)
    if not any(map(samples.is_padded, workspace.feeds.all_feeds)):
        return
    copies = sum(map(samples.count_rows_of_full_feed, feed_indices)) - sample_count
    text = (f"count the last sample {copies + 1} times" if copies else
            f"are those of {counted_noun_text(sample_count, 'sample')}, without the last batch, which is filled up")
    reporter.send(
        ev.LogMessage(reporter.job, f"Errors at the layers {text}. Errors at the outputs are those of all samples.",
                      "note"))


def _report_padding_in_group_errors(workspace: Workspace, reporter: JobReporter) -> None:
    """Reports the number of groups whose errors include padding, which the mask of the judged outputs leaves out."""
    network, mask = workspace.network, find_common_mask_name(workspace.judged_outputs)
    if not any(output.mask for output in workspace.judged_outputs):
        return
    tails = [group.final_tensor for group in network.groups if group.final_tensor not in network.blocking_plugins]
    if counted_groups := sum(tail not in workspace.analysis.mask_axes_by_tensor for tail in tails):
        reason = f"the axes of {mask} in these tensors are unknown" if mask else "the judged outputs have several masks"
        reporter.send(
            ev.LogMessage(
                reporter.job,
                f"At {counted_groups} of {counted_noun_text(len(tails), 'group')} the errors count padding too: "
                f"{reason}. The judged outputs leave it out.", "info"))


def measure_export_accuracy(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                            runs: Mapping[str, PrecisionConfig], urgency: Urgency = Urgency.ACCURACY) -> Steps[None]:
    """Measures the accuracy of the exported network for each run in file precision, if TensorRT refuses a part of the
    file."""
    for run, config in runs.items():
        if any(
                config.precision_of(group) is Precision.FILE and group.file_precision is not None
                and group.file_precision.refused_nodes for group in workspace.network.groups):
            yield urgency
            accuracy = store.load_result(workspace, "amended", config, Accuracy)
            if accuracy is None:
                accuracy = yield from _measure_typed_network_accuracy(workspace, config, urgency)
                store.save_result(workspace, "amended", config, accuracy)
            reporter.send(ev.AccuracyMeasured(reporter.job, run, config, accuracy, True, RunKind.TYPED_NETWORK))


def _measure_typed_network_accuracy(workspace: Workspace, config: PrecisionConfig, urgency: Urgency) -> Steps[Accuracy]:
    """Executes the typed network of a config as written. Returns its accuracy."""
    typed_model = lower_from_source_model(workspace.network, config, workspace.ranges).model
    infer_shapes(typed_model)
    values = (value for node in typed_model.graph for value in (*node.inputs, *node.outputs) if value is not None)
    add_fp32_casts_to_operators(typed_model.graph,
                                {value_name(value): value.dtype
                                 for value in values
                                 if value.dtype in PRECISION_BY_HALF_TYPE})
    return override_urgency(urgency, measure_lowered_network_accuracy(workspace.analysis, typed_model,
                                                                      workspace.find_judged_feeds(config)))
