"""What a config's judged figures become when one row or scope is flipped: raised to FP32, or taken back where it is
there."""

import time
from collections.abc import Iterable, Sequence

from trt_tui.core.measure.comparison import Share, Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.hierarchy import Scope, build_tree, walk
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.shares import LEAST_OWNED, known_shares
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.jobs.verdicts import verdict_of
from trt_tui.workspace import Workspace

MOST = 40
"""Rows that are flipped at most: each takes a what-if on all samples."""

MOST_SCOPES = 20
"""Scopes that are flipped at most, after the rows."""

def run(workspace: Workspace, store: Store, report: Report, request: rq.TryFlips) -> Steps[None]:
    """Measures the config with each row flipped that matters, after all that anybody waits for; then with each scope.

    What was changed comes first, then what has the largest shares; without shares there is nothing else.
    """
    config = request.config
    yield Urgency.FLIPS
    ensure_ranges(workspace, store, report, [config])
    worth = flipped(config, workspace.network, known_shares(workspace, store, config))
    since = time.monotonic()
    for done, changed in enumerate(worth, 1):
        verdict: Verdict | None = None
        for measured in verdict_of(workspace, store, report, changed):
            verdict = measured
            yield Urgency.FLIPS
        if verdict is not None:
            report.send(ev.VerdictMeasured(report.job, "flip", changed, verdict, True))
        report.progress("each row if flipped", done, len(worth), since)


def flipped(config: PrecisionConfig, network: Network, shares: dict[str, Share]) -> list[PrecisionConfig]:
    """The configs that differ from this one in one row each, then in one scope each, those of most interest first."""
    def interest(groups: Sequence[Group]) -> float:
        return sum(2.0 if group.name in config.groups else max(0.0, shares[group.name].owns)
                   if group.name in shares else 0.0 for group in groups)

    def first(sets: Iterable[Sequence[Group]], most: int) -> list[Sequence[Group]]:
        return sorted((one for one in sets if interest(one) >= LEAST_OWNED), key=interest, reverse=True)[:most]

    by_name = network.group_by_name
    scopes = [[by_name[name] for name in row.groups] for _, row in walk(build_tree(network.layers, network.groups))
              if isinstance(row, Scope) and 1 < len(row.groups) <= rq.TryFlips.LARGEST_SCOPE]
    order = (*first(([group] for group in network.groups), MOST), *first(scopes, MOST_SCOPES))
    return [changed for changed in dict.fromkeys(config.toggled(groups) for groups in order) if changed != config]
