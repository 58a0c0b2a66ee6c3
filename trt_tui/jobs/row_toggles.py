"""The job that measures the accuracy of a config with one row or scope toggled between FP32 and its default precision.
"""

import time
from collections.abc import Iterable, Sequence

from trt_tui.core.lowering.folded_constants import toggle_fp32
from trt_tui.core.measure.results import Accuracy, ErrorShare
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.hierarchy import Scope, build_scope_tree, walk_rows
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.accuracy import measure_accuracy
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.shares import MIN_RAISED_SHARE, load_stored_shares
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

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
        accuracy: Accuracy | None = None
        for partial in measure_accuracy(workspace, store, reporter, toggled_config):
            accuracy = partial
            yield Urgency.TOGGLES
        if accuracy is not None:
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
