"""The jobs that measure the accuracy of configs, the error share of each group, and the accuracy with the groups of the
largest shares raised together."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.execution import translate_steps
from trt_tui.core.measure.analysis import PartialResult
from trt_tui.core.measure.failed_runs import find_failure_reason
from trt_tui.core.measure.group_sweep import GroupSweep, GroupSweepState
from trt_tui.core.measure.results import Accuracy, ErrorShare, GroupErrors
from trt_tui.core.measure.shares import error_share_from_sweep, measure_accuracy_per_raised_group
from trt_tui.core.measure.sweep_plan import MAX_SHOWN_HALF_WIDTH
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.formatting import run_title
from trt_tui.jobs import events as ev
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.executors import choose_next_job_step, get_executor
from trt_tui.jobs.scheduler import JobReporter, take_last_value
from trt_tui.jobs.steps import Steps, Urgency, override_urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def measure_accuracy(workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig,
                     phase: str = "") -> Iterator[Accuracy]:
    """Yields the accuracy of a config after each feed. The last value covers all feeds.

    Args:
        phase: The phase under which the progress is reported; "" to report none.
    """
    cached = store.load_result(workspace, "verdict", config, Accuracy)
    if cached is not None:
        yield cached
        return
    start_time = time.monotonic()
    feeds = workspace.find_judged_feeds(config)
    for partial in workspace.analysis.measure_accuracy(config, workspace.ranges, feeds):
        if partial.is_final_result:
            store.save_result(workspace, "verdict", config, partial.value)
        if phase:
            reporter.send_progress(phase, partial.done_count, partial.total_count, start_time)
        yield partial.value


def measure_final_accuracy(workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig,
                           urgency: Urgency, phase: str = "") -> Steps[Accuracy]:
    """Returns the accuracy of a config on all feeds; ``phase`` is as in `measure_accuracy`."""
    partials = (PartialResult(accuracy, accuracy.samples, accuracy.total)
                for accuracy in measure_accuracy(workspace, store, reporter, config, phase))
    return override_urgency(urgency, take_last_value(partials))


class AccuracyTask:
    """The task that measures the accuracy of a config on the feeds that judge it, by config."""

    def __init__(self, ranges: Mapping[str, float], feeds_by_config: Mapping[PrecisionConfig, JudgedFeeds]) -> None:
        self._ranges, self._feeds_by_config = ranges, dict(feeds_by_config)

    def describe_item(self, item: PrecisionConfig) -> str:
        return "the accuracy of a config"

    def run_item(self, context: Workspace, item: PrecisionConfig) -> Generator[None, None, Accuracy]:
        partials = context.analysis.measure_accuracy(item, self._ranges, self._feeds_by_config[item])
        return (yield from translate_steps(take_last_value(partials), lambda step: None))


def measure_accuracies_in_parallel(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                                   configs: Sequence[PrecisionConfig], urgency: Urgency) -> Steps[None]:
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


def send_accuracies(workspace: Workspace, store: ResultStore, reporter: JobReporter, runs: Mapping[str, PrecisionConfig]
                    ) -> Steps[PendingIntervals]:
    """Measures and sends the accuracy of each run: all runs on the first feed, then all runs one feed further at a
    time.

    Returns the pending metric intervals, which `add_metric_intervals` completes.
    """
    start_time, done, total = time.monotonic(), 0, 0
    pending: PendingIntervals = {}
    unfinished: list[str] = []

    def warn_of_failed_run(run: str, accuracy: Accuracy) -> None:
        if reason := find_failure_reason(accuracy):
            reporter.send(ev.LogMessage(reporter.job, f"{run_title(run)} fails in execution: {reason}.", "warning"))

    def measure_next_feed(run: str) -> None:
        nonlocal done
        config, partial = runs[run], next(pending[run])
        if partial.is_final_result:
            unfinished.remove(run)
            store.save_result(workspace, "verdict", config, partial.value)
            warn_of_failed_run(run, partial.value)
        if partial.is_final_result or partial.done_count == 1 or workspace.metric is None and reporter.is_report_due(
                f"verdict {run}"):
            reporter.send(ev.AccuracyMeasured(reporter.job, run, config, partial.value, partial.is_final_result))
        done += 1
        reporter.send_progress("comparing with FP32", done, total, start_time)

    for run, config in runs.items():
        ensure_ranges(workspace, store, reporter,
                      [config])  # only now: the first FP16 result does not wait for it
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
        reference_values = workspace.analysis.measure_reference_metric(workspace.feeds[:1])
        reporter.send(ev.ReferenceMetricMeasured(reporter.job, reference_values,
                                                  workspace.count_samples(workspace.feeds[:1]), False))
    yield Urgency.ACCURACY
    while unfinished:
        for run in tuple(unfinished):
            measure_next_feed(run)
            yield Urgency.ACCURACY
    return pending


def add_metric_intervals(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         runs: Mapping[str, PrecisionConfig],
                         pending_intervals: PendingIntervals | None = None) -> Steps[None]:
    """Sends the accuracies of runs again, with the confidence interval of the metric added where it is missing.

    Args:
        pending_intervals: The measurements that `send_accuracies` has begun. All other runs are measured again.
    """
    if workspace.metric is None:
        return
    for run, config in runs.items():
        cached = store.load_result(workspace, "verdict", config, Accuracy)
        if (cached is None or not cached.metric
                or cached.intervals is not None and cached.intervals.metric_draws is not None):
            continue
        settled = cached
        for partial in (pending_intervals or {}).get(run) or workspace.analysis.measure_accuracy(
                config, workspace.ranges, workspace.find_judged_feeds(config), with_metric_interval=True):
            settled = partial.value if partial.is_final_result else settled
            yield Urgency.GROUP_ERRORS
        store.save_result(workspace, "verdict", config, settled)
        reporter.send(ev.AccuracyMeasured(reporter.job, run, config, settled, True))


def send_reference_metric(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                          configs: Iterable[PrecisionConfig]) -> Steps[dict[str, float]]:
    """Measures and sends the metric of the reference on the samples that judge all of some configs. Returns its values.
    """
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


def load_group_errors(workspace: Workspace, store: ResultStore, config: PrecisionConfig,
                      feeds: Sequence[int]) -> dict[str, GroupErrors] | None:
    """Returns the stored errors at the groups of a config on some feeds, by group; None if there are none."""
    return store.load_result(workspace, "layers", config, dict[str, GroupErrors], tuple(feeds))


def order_groups_by_isolated_error(workspace: Workspace, store: ResultStore, config: PrecisionConfig) -> list[str]:
    """Returns the names of all groups in the order of decreasing isolated error, as far as it is known."""
    group_errors = next(filter(None, (load_group_errors(workspace, store, measured, feeds)
                                      for measured in (config, replace(config, moves={}))
                                      for feeds in (workspace.find_group_error_feeds(measured), workspace.feeds))), {})

    def isolated_sqnr(group_name: str) -> float:
        errors = group_errors[group_name].isolated if group_name in group_errors else None
        return errors.comparable_sqnr_db if errors is not None else 0.0

    return sorted((group.name for group in workspace.network.groups), key=isolated_sqnr)


def send_error_shares(workspace: Workspace, store: ResultStore, reporter: JobReporter, run: str, config: PrecisionConfig
                      ) -> Steps[dict[str, ErrorShare]]:
    """Measures, sends and returns the error share of each group. Stored shares, also of an interrupted job, are not
    measured again.

    The accuracy with the worst groups raised together follows. Every group is measured on a few samples first; until
    then the steps are urgent. Shares that are not known well enough are sent at the end only.
    """
    names = order_groups_by_isolated_error(workspace, store, config)
    shares = load_stored_shares(workspace, store, config)
    if shares.keys() >= set(names):
        shares = {name: shares[name] for name in names}
        reporter.send(ev.ErrorSharesMeasured(reporter.job, run, config, shares, len(names), len(names)))
    else:
        shares = yield from _measure_shares(workspace, store, reporter, run, config, names)
    yield from _send_cumulative_raise_accuracies(workspace, store, reporter, config, shares)
    return shares


def load_stored_shares(workspace: Workspace, store: ResultStore, config: PrecisionConfig) -> dict[str, ErrorShare]:
    """Returns the stored final error shares of a config, by group; empty if there are none.

    Shares measured on all samples are preferred. Shares on fewer samples are returned only without the option
    ``--exact``.
    """
    exact = store.load_result(workspace, "shares, exact", config, dict[str, ErrorShare])
    if exact is not None or workspace.options.exact:
        return exact or {}
    return store.load_result(workspace, "shares", config, dict[str, ErrorShare]) or {}


def _measure_shares(workspace: Workspace, store: ResultStore, reporter: JobReporter, run: str, config: PrecisionConfig,
                    group_names: Sequence[str]) -> Steps[dict[str, ErrorShare]]:
    exact = workspace.options.exact
    store_kind = "swept, exact" if exact else "swept"
    executor = get_executor(workspace, reporter)
    sweep = GroupSweep(workspace.analysis, config, workspace.ranges, group_order=group_names,
                       feed_indices=workspace.find_judged_feeds(config), measures_all_samples=exact,
                       earlier_state=store.load_result(workspace, store_kind, config,
                                                       GroupSweepState), executor=executor)
    start_time, was_mapped = time.monotonic(), False

    def send_updated_shares(is_end: bool = False) -> None:
        updated = {name: error_share_from_sweep(sweep, name) for name in sweep.updated_groups}
        unsent = {name: share for name, share in updated.items() if is_end or not (
            share.unknown_reason or (share.half_width or 0.0) > MAX_SHOWN_HALF_WIDTH)}
        sweep.updated_groups[:] = [name for name in updated if name not in unsent]
        if unsent or is_end:
            reporter.send(ev.ErrorSharesMeasured(reporter.job, run, config, unsent, len(sweep.fully_measured_groups),
                                                 len(group_names)))

    try:
        for done, total in sweep.measure_groups():
            complete = sweep.has_estimate_of_every_group and not was_mapped
            was_mapped = sweep.has_estimate_of_every_group
            if sweep.updated_groups and done and (
                    complete or reporter.is_report_due("shares")):  # stored shares are sent at the end
                send_updated_shares()
            reporter.send_progress(("shares" if run == "config" else f"shares ({run})") + executor.location_text,
                                   round(done), max(round(total),
                                                    round(done) + 1), start_time)
            if reporter.is_report_due("shares kept"):
                store.save_result(workspace, store_kind, config, sweep.state)
            paused = time.monotonic()
            yield choose_next_job_step(
                executor, Urgency.BACKGROUND if sweep.has_estimate_of_every_group else Urgency.FIRST_SHARES)
            if complete:  # more urgent jobs ran in between; their time does not count
                start_time += time.monotonic() - paused
    finally:
        store.save_result(workspace, store_kind, config, sweep.state)
    send_updated_shares(is_end=True)
    shares = {name: error_share_from_sweep(sweep, name) for name in group_names}
    store.save_result(workspace, "shares, exact" if exact else "shares", config, shares)
    return shares


def _send_cumulative_raise_accuracies(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                                      config: PrecisionConfig, shares: Mapping[str, ErrorShare]) -> Steps[None]:
    """Measures and sends the accuracies with the groups of the largest shares raised together."""
    worst = sorted((name for name in shares if not shares[name].unknown_reason),
                   key=lambda name: -shares[name].fraction)
    order = tuple(name for name in worst if shares[name].fraction >= MIN_RAISED_SHARE)[:MAX_RAISED_GROUPS]
    if not order:
        return
    accuracies = store.load_result(workspace, "raised", config, tuple[Accuracy, ...])
    if accuracies is None:
        partials = measure_accuracy_per_raised_group(workspace.analysis, config, workspace.ranges, order,
                                                     workspace.find_judged_feeds(config))
        accuracies = yield from reporter.follow(take_last_value(partials, "raising the worst layers one by one"),
                                                Urgency.BACKGROUND)
        store.save_result(workspace, "raised", config, accuracies)
    reporter.send(ev.CumulativeRaiseMeasured(reporter.job, config, order, accuracies))
