"""How a search measures here: verdicts and impacts of the simulation, engines, the user's command."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from trt_tui.core.calibration.ranges import for_codes
from trt_tui.core.codes import CODES
from trt_tui.core.engines.preview import Preview
from trt_tui.core.lowering.lowered import cannot_lower, lowers
from trt_tui.core.measure.comparison import EngineErrors, EngineResult, ExportedRun, GroupErrors, Verdict
from trt_tui.core.measure.group_sweep import GroupSweep, Swept
from trt_tui.core.measure.judgement import HeldOut, judge
from trt_tui.core.measure.shares import Impact, impact_of
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.offers import out_of_the_file
from trt_tui.core.network.layers import Group
from trt_tui.core.search import Space
from trt_tui.errors import CancelledError, InputError
from trt_tui.files.reading import digest
from trt_tui.jobs import build, engine_errors
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.checking import check_words, run_check
from trt_tui.jobs.comparing import send_layers
from trt_tui.jobs.exported_run import execute
from trt_tui.jobs.free import proposals
from trt_tui.jobs.previewing import Asking, is_installed
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.searched_engines import macs_of
from trt_tui.jobs.searching import SearchJob
from trt_tui.jobs.spreading import following, hands_of
from trt_tui.jobs.statistics import ranges_by_method
from trt_tui.jobs.steps import Steps, Urgency, at
from trt_tui.jobs.store import Store
from trt_tui.jobs.verdicts import judge_ahead, reference_metric, settle, verdict_of
from trt_tui.workspace import Workspace, runs_here

WORTH_S = 0.1
"""Configs are judged ahead by others where a verdict takes at least so long here."""


def run(workspace: Workspace, store: Store, report: Report, request: rq.FindConfig) -> Steps[None]:
    """Finds layers to raise. What was measured before, also by an interrupted search, is not measured again.

    The result depends on the network, the data, the targets and the seed. It does not depend on what was measured
    before, on how many workers there are, or on how long anything takes; engines are timed, and so are the exception.
    """
    network, metric = workspace.network, workspace.metric
    targets = [parse_target(text) for text in request.tolerances]
    for target in targets:
        target.require_measurable(workspace.judged, network, metric.name if metric is not None else None)
    if not lowers(network, request.config):
        raise InputError("there is nothing to search", cannot_lower(network) or "every layer is in FP32 already",
                         "Begin with a config that lowers layers, such as --precision int8.")
    if request.check is not None:
        check_words(request.check)
    ensure_ranges(workspace, store, report, [request.config])
    shown, everything = workspace, report
    workspace = workspace.for_search(request.hold_out and not request.sample)
    if workspace is not shown:
        report = _of_other_samples(report)
    bench = WorkspaceBench(workspace, store, report, request)
    if request.sample not in ("", "worst"):
        bench.feed = feed_of(workspace, int(request.sample))
    work = SearchJob(network, request, targets, bench)
    if any(target.kind == "metric" for target in targets):
        score = yield from reference_metric(workspace, store, report)
        work.targets = tuple(target.with_base(score) for target in targets)
    try:
        yield from work.steps()
        settled = yield from _settled(workspace, store, report, work)
        held_out = yield from _held_out(workspace, report, work, bench.feed)
    except (GeneratorExit, CancelledError):
        report.send(replace(work.ended(report.job, stopped=True), other_samples=workspace is not shown))
        raise
    if workspace is not shown and work.search.result.met:  # what was built and executed, on the samples of the screen
        config = work.search.result.config
        if work.engines.has(config):
            yield from build.build(shown, store, everything, config)
        everything.send(ev.ExportedExecuted(report.job, config, (
            yield from execute(shown, store, everything, config, Urgency.SEARCH))))
    ended = work.ended(report.job, held_out=held_out, settled=settled)
    report.send(replace(ended, other_samples=workspace is not shown))


def _settled(workspace: Workspace, store: Store, report: Report, work: SearchJob) -> Steps[Verdict | None]:
    """Returns the verdict of the config found with the interval of the metric, if a tolerance bounds the metric."""
    best, config = work.search.result.best, work.search.result.config
    if best is None or work.request.sample or not any(target.kind == "metric" for target in work.targets):
        return None
    yield from at(Urgency.SEARCH, settle(workspace, store, report, {"config": config}))
    return store.known(workspace, "verdict", config, Verdict)


_OTHER_SAMPLES = (ev.VerdictMeasured, ev.Built, ev.Fp32EngineJudged, ev.LayersMeasured, ev.ReferenceMeasured,
                  ev.EngineErrorsMeasured, ev.ExportedExecuted)
"""Events with values that are of the samples they were taken on."""


def _of_other_samples(report: Report) -> Report:
    """Returns a report that keeps back values on other samples than those of the screen."""
    quiet = copy.copy(report)

    def send(event: ev.Event) -> None:
        if not isinstance(event, _OTHER_SAMPLES):
            report.send(event)

    quiet.send = send
    return quiet


def _held_out(workspace: Workspace, report: Report, work: SearchJob, chosen_on: int | None) -> Steps[HeldOut | None]:
    """Returns what the config found yields on the samples that the search has not seen, where there are enough."""
    feeds, analysis, result, targets = workspace.held_out, workspace.analysis, work.search.result, work.targets
    if chosen_on is not None:
        feeds = [index for index in workspace.feeds if index != chosen_on]
    if not feeds or not targets or result.best is None:
        return None
    if any(target.kind == "metric" for target in targets):
        for index in feeds:
            analysis.reference(index)
            yield Urgency.SEARCH
        base = analysis.reference_metric(feeds)
        targets = tuple(target.with_base(base, whole=False) for target in targets)
    since, verdict = time.monotonic(), Verdict({})
    for partial in analysis.verdict(result.config, workspace.ranges, feeds, settle=True):
        verdict = partial.value
        report.progress("held-out samples", partial.done, partial.total, since)
        yield Urgency.SEARCH
    chosen = workspace.judged_count if chosen_on is None else workspace.data.judged.rows(chosen_on)
    return HeldOut(judge(targets, verdict), verdict.samples, chosen)


def feed_of(workspace: Workspace, sample: int) -> int:
    """The feed that holds a sample, by its number among those that are judged.

    Raises:
        InputError: there are fewer.
    """
    first = 0
    for index in workspace.feeds:
        if first <= sample < (first := first + workspace.data.judged.rows(index)):
            return index
    raise InputError(f"there is no sample {sample}", f"{first} are judged, from 0 to {first - 1}",
                     "Name one of them with --sample, or the worst.")


def worst_sample(verdict: Verdict) -> int:
    """The number of the sample with the lowest SQNR at any output; 0 where no output has one for each sample."""
    found = [(one.worst_sqnr_db, one.worst_index) for one in verdict.outputs.values()
             if one.worst_index is not None and one.worst_sqnr_db is not None]
    return min(found)[1] if found else 0


class WorkspaceBench:
    """See `trt_tui.jobs.searching.Bench`."""

    def __init__(self, workspace: Workspace, store: Store, report: Report, request: rq.FindConfig) -> None:
        self._workspace, self._store, self._report, self._request = workspace, store, report, request
        builder = workspace.builder
        self.builds = builder is not None and runs_here(builder, workspace.plan.settings)
        self.checks = request.check is not None
        self.feed: int | None = None
        self._took = 0.0

    def report(self, work: SearchJob, heard: bool = False) -> None:
        """Sends the search's progress, at most ten times a second unless it must be heard."""
        if heard or self._report.due("search"):
            self._report.send(work.progress(self._report.job))

    def verdict(self, config: PrecisionConfig) -> Steps[Verdict]:
        """Returns the verdict on all samples of the search, from the store where it is known."""
        if self._request.sample:
            return (yield from self._verdict_of_sample(config))
        return (yield from self._verdict_of_all(config))

    def judge_ahead(self, likely: Callable[[int, float], Sequence[PrecisionConfig]]) -> Steps[None]:
        """See `trt_tui.jobs.searching.Bench`; not where a verdict takes less than it takes to ask for it elsewhere."""
        workspace, others = self._workspace, self._workspace.others
        if others is None or others.lost or self._request.sample or self._took < WORTH_S:
            return
        if (able := others.able()) > 1 and self._store.known(workspace, "verdict", likely(1, 0.0)[0], Verdict) is None:
            yield from judge_ahead(workspace, self._store, self._report, likely(able, self._took / 4),
                                   Urgency.SEARCH)

    def _verdict_of_sample(self, config: PrecisionConfig) -> Steps[Verdict]:
        """Returns the verdict on the batch of one sample."""
        workspace = self._workspace
        if self.feed is None:
            whole = yield from self._verdict_of_all(self._request.config)
            self.feed = feed_of(workspace, worst_sample(whole))
        verdict: Verdict | None = None
        for partial in workspace.analysis.verdict(config, workspace.ranges, [self.feed]):
            verdict = partial.value
            yield Urgency.SEARCH
        assert verdict is not None, "a feed was named"
        return verdict

    def macs(self, space: Space) -> dict[str, float]:
        """See `trt_tui.jobs.searching.Bench`."""
        return macs_of(space, self._workspace.outline)

    def times(self, space: Space) -> dict[str, float]:
        """See `trt_tui.jobs.searching.Bench`."""
        engine = self._store.engine(self._workspace, space.config(space.candidates))
        made = engine.made if engine is not None else {}
        return {name: ms for name in space.candidates if name in made and (ms := made[name].ms) is not None}

    def _verdict_of_all(self, config: PrecisionConfig) -> Steps[Verdict]:
        whole: Verdict | None = None
        since = time.monotonic()
        for verdict in verdict_of(self._workspace, self._store, self._report, config):
            whole = verdict
            self._took = max(self._took, time.monotonic() - since)
            yield Urgency.SEARCH
        assert whole is not None, "a workspace has feeds"
        return whole

    def free(self, config: PrecisionConfig, kinds: str) -> dict[str, PrecisionConfig]:
        """See `trt_tui.jobs.searching.Bench`."""
        workspace, leaves_file = self._workspace, False
        if workspace.network.given is not None:
            try:
                ensure_ranges(workspace, self._store, self._report, [out_of_the_file(config, workspace.network.groups)])
                leaves_file = True
            except InputError as error:
                self._report.send(ev.Note(self._report.job, "What costs nothing at run time is tried on no layer that "
                                                            f"is as in the file: {error.title}.", "warning"))
        found = proposals(workspace, self._report, workspace.network.groups, config,
                          reason=f"search:{self._request.method}", kinds=kinds, leaves_file=leaves_file, together=True)
        return {one.label: one.config for one in found}

    def ranges(self, groups: Sequence[Group], config: PrecisionConfig) -> dict[str, dict[str, float]]:
        """Returns the ranges (amax) that other methods choose, by tensor and method, without those in use."""
        known = ranges_by_method(self._workspace, self._report, groups, config, together=True)
        found: dict[str, dict[str, float]] = {}
        for group in groups:
            precision = config.precision_of(group)
            current = for_codes(self._workspace.ranges, CODES[precision])
            for tensor in dict.fromkeys(site.tensor for site in group.ranged(precision)):
                found[tensor] = {method: amax for method, amax in known[tensor].items() if amax != current.get(tensor)}
        return found

    def ahead(self, configs: Sequence[PrecisionConfig]) -> Steps[int]:
        """See `trt_tui.jobs.searching.Bench`."""
        return (yield from build.ahead(self._workspace, self._store, self._report, configs))

    def build(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns the config's engine; sends the simulated verdict too."""
        verdict = yield from self.verdict(config)
        self._report.send(ev.VerdictMeasured(self._report.job, "config", config, verdict, True))
        known = self._store.engine(self._workspace, config)
        if known is None:
            return (yield from build.build(self._workspace, self._store, self._report, config))
        self._report.send(ev.Built(self._report.job, config, known))
        return known

    def executed(self, config: PrecisionConfig) -> Steps[ExportedRun]:
        """Implements `trt_tui.jobs.searching.Bench.executed`."""
        feeds = None if self.feed is None else [self.feed]
        found = yield from execute(self._workspace, self._store, self._report, config, Urgency.SEARCH, feeds)
        if feeds is None:
            self._report.send(ev.ExportedExecuted(self._report.job, config, found))
        return found

    def inside(self, config: PrecisionConfig) -> Steps[EngineErrors | None]:
        """See `trt_tui.jobs.triage.Looks`."""
        builder = self._workspace.builder
        marked = builder is None or not builder.capabilities.hands_out
        return (yield from engine_errors.measure(self._workspace, self._store, self._report, config, marked))

    def layers(self, config: PrecisionConfig) -> Steps[Mapping[str, GroupErrors]]:
        """See `trt_tui.jobs.triage.Looks`."""
        workspace, store, report = self._workspace, self._store, self._report
        yield from send_layers(workspace, store, report, {"config": config}, Urgency.SEARCH)
        return store.known(workspace, "layers", config, dict[str, GroupErrors]) or {}

    def preview(self, config: PrecisionConfig) -> Steps[Preview | None]:
        """See `trt_tui.jobs.searching.Bench`; engines of weakly typed releases are fused otherwise."""
        workspace, builder = self._workspace, self._workspace.builder
        if not is_installed() or builder is not None and (workspace.plan.weak or not builder.capabilities.strong):
            return None
        asking = Asking(workspace, self._store, self._report, workspace.ranges)
        preview = yield from asking.preview(config)
        if preview.refused is not None:
            return None
        return preview if preview.no_effect is not None else (yield from asking.with_effects(config, preview))

    def impacts(self, config: PrecisionConfig, names: Sequence[str]) -> Steps[Mapping[str, Impact]]:
        """Implements `trt_tui.jobs.searching.Bench.impacts`: all on few samples, those that may matter on more.

        Groups go in network order, whatever is known of their errors.
        """
        workspace, store, report = self._workspace, self._store, self._report
        exact = workspace.options.exact
        kind = "alone, exact" if exact else "alone"
        hands = hands_of(workspace, report)
        sweep = GroupSweep(workspace.analysis, config, workspace.ranges, order=names, feeds=workspace.feeds,
                           exact=exact, lowered=True, known=store.known(workspace, kind, config, Swept), hands=hands)
        since = time.monotonic()
        try:
            for done, total in sweep.steps():
                report.progress(f"sensitivity of each layer{hands.words}", round(done),
                                max(round(total), round(done) + 1), since)
                if report.due("impacts kept"):
                    store.keep(workspace, kind, config, sweep.swept)
                yield following(hands, Urgency.SEARCH)
        finally:
            store.keep(workspace, kind, config, sweep.swept)
        return {name: impact_of(sweep, name) for name in names}

    def check(self, config: PrecisionConfig) -> Steps[int]:
        """It is asked once for as long as the network is open, and not kept: what else it reads may have changed."""
        workspace, command = self._workspace, self._request.check or ""
        files = [digest(word) for word in check_words(command)]
        key = self._store.key(workspace, "check", config, command, files)
        code = workspace.codes.get(key)
        if code is None:
            fetched: dict[str, list[np.ndarray]] = {}
            for outputs in workspace.analysis.outputs(config, workspace.ranges, workspace.feeds):
                for tensor, array in outputs.items():
                    fetched.setdefault(tensor, []).append(np.atleast_1d(array))
                yield Urgency.SEARCH
            joined = {tensor: np.concatenate(arrays) for tensor, arrays in fetched.items()}
            code = yield from run_check(command, workspace.network, config, workspace.ranges, joined,
                                        self._report.wake)
            workspace.codes[key] = code
        yield Urgency.SEARCH
        return code
