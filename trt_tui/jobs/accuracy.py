"""The jobs that measure the accuracy of configs at the judged outputs."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.measure.analysis import PartialResult
from trt_tui.core.measure.failed_runs import find_failure_reason
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.formatting import run_title
from trt_tui.jobs import events as ev
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.executors import choose_next_job_step, get_executor
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
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


class AccuracyTask:
    """The task that measures the accuracy of a config on the feeds that judge it, by config."""

    def __init__(self, ranges: Mapping[str, float], feeds_by_config: Mapping[PrecisionConfig, JudgedFeeds]) -> None:
        self._ranges, self._feeds_by_config = ranges, dict(feeds_by_config)

    def describe_item(self, item: PrecisionConfig) -> str:
        return "the accuracy of a config"

    def run_item(self, context: Workspace, item: PrecisionConfig) -> Generator[None, None, Accuracy]:
        accuracy = Accuracy({})
        for partial in context.analysis.measure_accuracy(item, self._ranges, self._feeds_by_config[item]):
            accuracy = partial.value
            yield
        return accuracy


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
