"""The jobs that measure values of single configs: a what-if, the errors of samples, and toggled rows."""

import time
from collections.abc import Iterable, Sequence

from trt_tui.core.lowering.folded_constants import toggle_fp32
from trt_tui.core.measure.results import Accuracy, ErrorShare, RunResult
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.measure.single_sample import (
    SAMPLE_ERRORS,
    SINGLE_SAMPLES,
    SampleErrors,
    measure_sample_errors,
    measure_single_sample,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.hierarchy import Scope, build_scope_tree, walk_rows
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges
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
from trt_tui.jobs.executions import find_stored_exported_run
from trt_tui.jobs.scheduler import JobReporter, take_last_value
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
