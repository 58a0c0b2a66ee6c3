"""What guards need that takes runs of its own: other ranges, and judged values beyond those in use."""

import math
import time
from collections.abc import Mapping

from trt_tui.core.calibration.calibrate import calibrate
from trt_tui.core.guards.facts import Beyond, Facts, Grown
from trt_tui.core.guards.sampled import shares_beyond
from trt_tui.core.lowering.lowered import quantizes
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.jobs.verdicts import verdict_of
from trt_tui.workspace import Workspace

FEWEST_FEEDS = 4
"""A quarter of the calibrating samples is at least one feed."""


def run(workspace: Workspace, store: Store, report: Report, request: rq.Preflight) -> Steps[None]:
    """Measures the facts that take runs of their own, and sends each as it is known."""
    config = request.config
    if not quantizes(workspace.network, config):
        report.send(ev.FactsMeasured(report.job, Facts(not_grown="nothing takes a range")))
        return
    ensure_ranges(workspace, store, report, [config])
    report.send(ev.FactsMeasured(report.job, (yield from _grown(workspace, store, report, config))))
    report.send(ev.FactsMeasured(report.job, Facts(beyond=(yield from _beyond(workspace, report, config)))))


def _grown(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig) -> Steps[Facts]:
    """The config's SQNR with ranges from a quarter, a half and all of the calibrating samples."""
    calibration, samples = workspace.calibration, workspace.calibrating
    assert calibration is not None, "it was ensured"
    measured_here = workspace.options.calib_cache is None and calibration.samples == samples.count
    if samples.random or not measured_here:
        return Facts(not_grown="random inputs" if samples.random else "the ranges were not measured on these samples")
    if len(samples) < FEWEST_FEEDS:
        return Facts(not_grown=f"fewer than {FEWEST_FEEDS} batches calibrate")
    network, fixed = workspace.network, {tensor: one.amax for tensor, one in config.ranges.items()}
    found: list[Grown] = []
    for step in (4, 2):
        some = samples.take(range(0, len(samples), step))
        phase = f"calibrating on {some.count} of {samples.count} samples"
        ranges = calibrate(network.model, network.activations, some, workspace.backend, method=calibration.method,
                           progress=report.sweeping(phase)).ranges
        yield Urgency.VERDICT
        since, sqnr = time.monotonic(), math.nan
        for partial in workspace.analysis.verdict(config, {**ranges, **fixed}, workspace.feeds):
            worst = partial.value.worst
            sqnr = _decibels(worst[1].errors.sqnr_db if worst is not None else None)
            report.progress(f"{config.codes_in_use(network).label} {phase}", partial.done, partial.total, since)
            yield Urgency.VERDICT
        found.append(Grown(some.count, sqnr))
    for verdict in verdict_of(workspace, store, report, config):
        worst = verdict.worst
        yield Urgency.VERDICT
    found.append(Grown(samples.count, _decibels(worst[1].errors.sqnr_db if worst is not None else None)))
    if any(math.isnan(one.sqnr_db) for one in found):
        return Facts(not_grown="no SQNR was measured")
    return Facts(grown=tuple(found))


def _decibels(sqnr: float | None) -> float:
    return math.nan if sqnr is None else sqnr


def _beyond(workspace: Workspace, report: Report, config: PrecisionConfig) -> Steps[Mapping[str, Beyond]]:
    """The share of each ranged tensor's values beyond its range, in the judged and the calibrating samples."""
    network, data = workspace.network, workspace.data
    used = dict.fromkeys(site.tensor for group in network.groups
                         for site in group.ranged(config.precision_of(group)))
    known = {**workspace.ranges, **{tensor: one.amax for tensor, one in config.ranges.items()}}
    ranges = {tensor: known[tensor] for tensor in used if known.get(tensor, 0.0) > 0}
    if not ranges:
        return {}
    shares: list[dict[str, float]] = []
    for samples in (data.judged.take(workspace.feeds), data.calibration):
        since, found = time.monotonic(), dict.fromkeys(ranges, 0.0)
        for done, so_far in enumerate(shares_beyond(network.model, ranges, samples, workspace.backend), 1):
            report.progress("values beyond their range", done, len(samples), since)
            found = so_far
            yield Urgency.VERDICT
        shares.append(found)
    return {tensor: Beyond(shares[0][tensor], shares[1][tensor]) for tensor in ranges}
