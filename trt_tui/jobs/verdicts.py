"""Configs at the judged outputs."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence

from trt_tui.core.measure.analysis import Partial
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.measure.failed_runs import failure_of
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.spreading import following, hands_of
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.words import run_title
from trt_tui.workspace import Workspace


def verdict_of(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig,
               phase: str = "") -> Iterator[Verdict]:
    """Yields the verdict of one config, complete at the end; reports progress if the phase has a name."""
    known = store.known(workspace, "verdict", config, Verdict)
    if known is not None:
        yield known
        return
    since = time.monotonic()
    for partial in workspace.analysis.verdict(config, workspace.ranges, workspace.feeds):
        if partial.final:
            store.keep(workspace, "verdict", config, partial.value)
        if phase:
            report.progress(phase, partial.done, partial.total, since)
        yield partial.value


class Judging:
    """An errand: the whole verdict of a config on some feeds."""

    def __init__(self, ranges: Mapping[str, float], feeds: Sequence[int]) -> None:
        self._ranges, self._feeds = ranges, tuple(feeds)

    def words(self, item: PrecisionConfig) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return "the verdict of a config"

    def do(self, subject: Workspace, item: PrecisionConfig) -> Generator[None, None, Verdict]:
        """See `trt_tui.core.hands.Errand`."""
        verdict = Verdict({})
        for partial in subject.analysis.verdict(item, self._ranges, self._feeds):
            verdict = partial.value
            yield
        return verdict


def judge_ahead(workspace: Workspace, store: Store, report: Report, configs: Sequence[PrecisionConfig], urgency: Urgency
                ) -> Steps[None]:
    """Has other processes judge several configs at once, one each; what comes of them is stored."""
    unknown = [config for config in configs if store.known(workspace, "verdict", config, Verdict) is None]
    hands = hands_of(workspace, report)
    for made in hands.work(Judging(workspace.ranges, workspace.feeds), unknown):
        if made is not None:
            store.keep(workspace, "verdict", *made)
        yield following(hands, urgency)


Settling = dict[str, Iterator[Partial[Verdict]]]
"""What goes on with the metric on draws of the samples, by run, once all its feeds are measured."""


def send_verdicts(workspace: Workspace, store: Store, report: Report, runs: Mapping[str, PrecisionConfig]
                  ) -> Steps[Settling]:
    """Sends the verdict of each run: all on the first feed, then all of them one feed further at a time.

    Returns what `settle` goes on with.
    """
    since, done, feeds = time.monotonic(), 0, workspace.feeds
    measuring: Settling = {}

    def tell_of_failure(run: str, accuracy: Verdict) -> None:
        if why := failure_of(accuracy):
            report.send(ev.Note(report.job, f"{run_title(run)} fails as it runs: {why}.", "warning"))

    def go_on(run: str) -> None:
        nonlocal done
        config, partial = runs[run], next(measuring[run])
        if partial.final:
            store.keep(workspace, "verdict", config, partial.value)
            tell_of_failure(run, partial.value)
        if partial.final or partial.done == 1 or workspace.metric is None and report.due(f"verdict {run}"):
            report.send(ev.VerdictMeasured(report.job, run, config, partial.value, partial.final))
        done += 1
        report.progress("comparing with FP32", done, len(feeds) * len(measuring), since)

    for run, config in runs.items():
        ensure_ranges(workspace, store, report, [config])  # only now, so that FP16's first verdict does not wait for it
        known = store.known(workspace, "verdict", config, Verdict)
        if known is not None:
            report.send(ev.VerdictMeasured(report.job, run, config, known, True))
            tell_of_failure(run, known)
            continue
        measuring[run] = workspace.analysis.verdict(config, workspace.ranges, feeds, settle=True)
        go_on(run)
        yield Urgency.FIRST_VERDICT
    if measuring and workspace.metric is not None and len(feeds) > 1:
        score = workspace.analysis.reference_metric(feeds[:1])
        report.send(ev.ReferenceMeasured(report.job, score, workspace.data.judged.rows(feeds[0])))
    yield Urgency.VERDICT
    for _ in feeds[1:]:
        for run in measuring:
            go_on(run)
            yield Urgency.VERDICT
    return measuring


def settle(workspace: Workspace, store: Store, report: Report, runs: Mapping[str, PrecisionConfig],
           going_on: Settling | None = None) -> Steps[None]:
    """Sends the verdicts of runs again, with the interval of the metric where that is not known.

    Args:
        going_on: What was measured just now; the others are measured once more.
    """
    if workspace.metric is None:
        return
    for run, config in runs.items():
        known = store.known(workspace, "verdict", config, Verdict)
        if known is None or not known.metric or known.spread is not None and known.spread.draws is not None:
            continue
        settled = known
        for partial in (going_on or {}).get(run) or workspace.analysis.verdict(config, workspace.ranges,
                                                                               workspace.feeds, settle=True):
            settled = partial.value if partial.final else settled
            yield Urgency.LAYERS
        store.keep(workspace, "verdict", config, settled)
        report.send(ev.VerdictMeasured(report.job, run, config, settled, True))


def reference_metric(workspace: Workspace, store: Store, report: Report) -> Steps[dict[str, float]]:
    """Returns the metric of the FP32 network, and sends it."""
    fp32 = PrecisionConfig.uniform(Precision.FP32)
    score = store.known(workspace, "metric", fp32, dict[str, float])
    if score is None:
        for index in workspace.feeds if workspace.metric is not None else ():
            workspace.analysis.reference(index)
            yield Urgency.VERDICT
        score = workspace.analysis.reference_metric(workspace.feeds)
        store.keep(workspace, "metric", fp32, score)
    report.send(ev.ReferenceMeasured(report.job, score, workspace.judged_count))
    return score
