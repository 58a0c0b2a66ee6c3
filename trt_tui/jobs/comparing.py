"""Runs against the reference: verdicts, shares on a few samples, errors at the groups, then shares as they end up."""

import contextlib
import time
from collections.abc import Mapping

from trt_tui.core.calibration.sweep import NotFiniteError
from trt_tui.core.lowering import rules
from trt_tui.core.lowering.bias_scales import MIN_WARNED_BITS, RaisedScale
from trt_tui.core.lowering.folds import Folds
from trt_tui.core.measure.comparison import GroupErrors, Verdict
from trt_tui.core.measure.failed_runs import failure_of
from trt_tui.core.measure.layers import measure_layers
from trt_tui.core.measure.masks import common_mask
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.amended import send_amended
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.exported_run import known_run
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.shares import send_shares
from trt_tui.jobs.spreading import following, hands_of
from trt_tui.jobs.steps import Steps, Urgency, Wait, at
from trt_tui.jobs.store import Store
from trt_tui.jobs.verdicts import reference_metric, send_verdicts, settle
from trt_tui.words import plural
from trt_tui.workspace import Workspace

FP32_RUN = "fp32"
"""The run of FP32 against a reference that was named: it has no layers that lose."""


def run(workspace: Workspace, store: Store, report: Report, request: rq.Compare) -> Steps[None]:
    """Measures the runs; sends their engines too, if they are known."""
    runs = _measurable(workspace, store, report, request.runs)
    measured = yield from send_verdicts(workspace, store, report, runs)
    _tell_of_raised_scales(workspace, report, runs)
    yield from reference_metric(workspace, store, report)
    for config in runs.values():
        known = store.engine(workspace, config)
        if known is not None:
            report.send(ev.Built(report.job, config, known))
        if (executed := known_run(workspace, store, config)) is not None:
            report.send(ev.ExportedExecuted(report.job, config, executed))
    if workspace.builder is not None:
        known = store.engine(workspace, PrecisionConfig.uniform(Precision.FP32))
        if known is not None:
            report.send(ev.Fp32EngineJudged(report.job, known))
    yield from send_amended(workspace, store, report, runs)
    yield from settle(workspace, store, report, runs, measured)
    runs = {name: config for name, config in runs.items() if name != FP32_RUN}
    if why := workspace.analysis.no_shares_reason(workspace.feeds):
        report.send(ev.Note(report.job, "Shares and errors at the layers are not measured, since FP32 is not finite "
                                        f"either. {why}.", "warning"))
        return
    order = sorted(runs, key=lambda name: name != request.shares_of) if request.shares_of is not None else []
    if not order:
        if request.layers:
            yield Urgency.LAYERS
            workspace.analysis.unload()  # errors at the groups have a session of their own, with all weights
            yield from send_layers(workspace, store, report, runs, Urgency.LAYERS)
        return
    # What each group owns, on a few samples, comes before what is measured at the layers.
    with contextlib.closing(send_shares(workspace, store, report, order[0], runs[order[0]])) as sharing:
        yield Urgency.MAP
        for step in sharing:
            if step is not Urgency.MAP and not isinstance(step, Wait):
                break
            yield step
        if request.layers:
            yield Urgency.LAYERS
            yield from send_layers(workspace, store, report, runs, Urgency.LAYERS)
        yield Urgency.BACKGROUND
        yield from sharing
    for name in order[1:]:
        yield from at(Urgency.BACKGROUND, send_shares(workspace, store, report, name, runs[name]))


def _measurable(workspace: Workspace, store: Store, report: Report, runs: Mapping[str, PrecisionConfig]
                ) -> Mapping[str, PrecisionConfig]:
    """Returns the runs that have ranges; says which have none since the network in FP32 is not finite.

    Only against something else than FP32 of the network are the others measured without them.

    Raises:
        InputError: see `ensure_ranges`.
    """
    if workspace.against is None:
        return runs
    found = {}
    for name, config in runs.items():
        try:
            ensure_ranges(workspace, store, report, [config])
        except NotFiniteError as error:
            report.send(ev.Note(report.job, f"{name} is not measured: {error.title}. {error.cause}", "warning"))
        else:
            found[name] = config
    return found


def _tell_of_raised_scales(workspace: Workspace, report: Report, runs: Mapping[str, PrecisionConfig]) -> None:
    """Says which weight scales of the runs were raised for a bias, and what it costs."""
    network, scales = workspace.network, dict[str, RaisedScale]()
    for config in runs.values():
        folds = Folds(network, config)
        rulings = rules.rule(network, config, workspace.ranges, constants=folds)
        scales.update((scale.text, scale) for scale in rules.raised_scales(network, rulings, folds))
    for text, scale in scales.items():
        report.send(ev.Note(report.job, text, "warning" if scale.bits >= MIN_WARNED_BITS else "note"))


def send_layers(workspace: Workspace, store: Store, report: Report, runs: Mapping[str, PrecisionConfig],
                   urgency: Urgency) -> Steps[None]:
    """Sends the errors at the groups of each run."""
    since, feeds = time.monotonic(), workspace.feeds
    configs: dict[str, PrecisionConfig] = {}
    for name, config in runs.items():
        known = store.known(workspace, "layers", config, dict[str, GroupErrors])
        verdict = store.known(workspace, "verdict", config, Verdict)
        if verdict is not None and failure_of(verdict):
            continue  # nothing comes out of it
        if known is not None:
            report.send(ev.LayersMeasured(report.job, name, config, known, workspace.judged_count, True))
        else:
            configs[name] = config
    if not configs:
        return
    names = list(configs)
    _tell_of_padding(workspace, report)
    hands, told = hands_of(workspace, report), 0
    report.send(ev.Progress(report.job, f"per-layer errors{hands.words}", 0, len(feeds) * len(configs)))
    for _ in workspace.analysis.measure_magnitudes(feeds, hands):
        yield following(hands, urgency)
    for partial in measure_layers(workspace.analysis, configs, workspace.ranges, feeds=feeds, hands=hands):
        if partial.done == told:
            yield following(hands, urgency)
            continue
        told = partial.done
        feed, position = divmod(partial.done - 1, len(names))
        name, final = names[position], feed + 1 == len(feeds)
        if final:
            store.keep(workspace, "layers", configs[name], partial.value[name])
        if final or feed == 0 or report.due(f"layers {name}"):
            samples = sum(workspace.data.judged.rows(index) for index in feeds[:feed + 1])
            report.send(ev.LayersMeasured(report.job, name, configs[name], partial.value[name], samples, final))
        report.progress(f"per-layer errors{hands.words}", partial.done, partial.total, since)
        yield following(hands, urgency)


def _tell_of_padding(workspace: Workspace, report: Report) -> None:
    """Says at how many groups the errors count what the judged outputs' mask leaves out."""
    network, mask = workspace.network, common_mask(workspace.judged)
    if not any(one.mask for one in workspace.judged):
        return
    tails = [group.tail for group in network.groups if group.tail not in network.behind]
    if counted := sum(tail not in workspace.analysis.padded for tail in tails):
        why = f"which of their axes {mask} has is not known" if mask else "the judged outputs have several masks"
        report.send(ev.Note(report.job, f"At {counted} of {plural(len(tails), 'group')} the errors count padding too: "
                                        f"{why}. The judged outputs leave it out.", "info"))
