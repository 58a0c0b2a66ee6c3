"""The ways out of a group's loss, and how each would do: free ones first, then a step up, FP32, another range."""

from trt_tui.core.calibration.methods import methods_of
from trt_tui.core.codes import CODES
from trt_tui.core.moves.config import PrecisionConfig, step
from trt_tui.core.moves.offers import out_of_the_file
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import free
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.statistics import ranges_by_method
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.jobs.verdicts import verdict_of
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.TryWaysOut) -> Steps[None]:
    """Measures the ways out of a group, and sends those that are measured after each."""
    group, config = workspace.network.group(request.group), request.config
    ensure_ranges(workspace, store, report, [config, out_of_the_file(config, workspace.network.groups)])
    wanted = _ways_out(workspace, report, group, config)
    options: list[ev.WayOut] = []
    for key, label, changed in wanted:
        for verdict in verdict_of(workspace, store, report, changed, f"trying {label}"):
            if verdict.samples >= workspace.judged_count:
                options.append(ev.WayOut(key, label, changed, verdict))
            yield Urgency.WAYS_OUT
        report.send(ev.WaysOutMeasured(report.job, group.name, config, tuple(options)))
    if not wanted:
        report.send(ev.WaysOutMeasured(report.job, group.name, config, ()))


def _ways_out(workspace: Workspace, report: Report, group: Group, config: PrecisionConfig
              ) -> list[tuple[str, str, PrecisionConfig]]:
    """For each the key that takes it, its name, and the config that it leads to."""
    found: list[tuple[str, str, PrecisionConfig]] = []
    now = config.precision_of(group)
    found += [(ev.FREE_KEY, one.label, one.config) for one in free.proposals(
        workspace, report, [group], config, leaves_file=True)]
    higher = step(group, now, True, config.ladder)
    if higher is not now and higher is not Precision.FP32:
        found.append(("=", higher.label, config.with_groups([group], higher)))
    if now is not Precision.FP32:
        found.append(("space", Precision.FP32.label, config.with_groups([group], Precision.FP32)))
    if group.ranged(now):
        ranges = ranges_by_method(workspace, report, [group], config)
        smoothed = {tensor for move in config.of(Smooth).values() for tensor in move.ranges}
        used = workspace.calibration.method if workspace.calibration is not None else ""
        methods = methods_of(CODES[now]) if smoothed.isdisjoint(ranges) else ()  # measured without the factors
        for method in methods:
            if method == used:
                continue
            changed = config
            for tensor, by_method in ranges.items():
                changed = changed.with_range(tensor, RangeChoice(by_method[method], method))
            found.append(("r", f"{method} range", changed))
    return found
