"""The jobs that measure the error share of each group, and the accuracy with the groups of the largest shares raised
together."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trt_tui.core.measure.group_sweep import GroupSweep, GroupSweepState
from trt_tui.core.measure.results import Accuracy, ErrorShare, GroupErrors
from trt_tui.core.measure.shares import error_share_from_sweep, measure_accuracy_per_raised_group
from trt_tui.core.measure.sweep_plan import MAX_SHOWN_HALF_WIDTH
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import events as ev
from trt_tui.jobs.executors import choose_next_job_step, get_executor
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

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
        start_time = time.monotonic()
        for partial in measure_accuracy_per_raised_group(workspace.analysis, config, workspace.ranges, order,
                                                         workspace.find_judged_feeds(config)):
            accuracies = partial.value
            reporter.send_progress("raising the worst layers one by one", partial.done_count, partial.total_count,
                                   start_time)
            yield Urgency.BACKGROUND
        store.save_result(workspace, "raised", config, accuracies)
    reporter.send(ev.CumulativeRaiseMeasured(reporter.job, config, order, accuracies or ()))
