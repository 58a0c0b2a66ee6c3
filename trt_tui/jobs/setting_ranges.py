"""Ranges of tensors as a user gives them."""

import difflib

from trt_tui.core.calibration.given import amax_chosen, amax_given
from trt_tui.core.calibration.statistics import collect_stats
from trt_tui.core.codes import CODES, INT8
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.SetRanges) -> Steps[None]:
    """Sends a range for each tensor; measures what is not given as a number."""
    network, config = workspace.network, request.config
    for tensor, text in request.ranges:
        if tensor not in network.activations:
            near = difflib.get_close_matches(tensor, network.activations, 3, 0.5)
            raise InputError(f"no layer reads codes of {tensor}", "so it has no range",
                             f"Did you mean {', '.join(near)}?" if near else "trt-tui inspect --nodes lists tensors.")
        amax_given(text)
    wanted = [tensor for tensor, text in request.ranges
              if amax_given(text) is None and tensor not in workspace.statistics]
    if wanted:
        stats = collect_stats(network.model, wanted, workspace.calibrating, workspace.backend,
                              progress=report.sweeping("activation statistics", gives_way=True))
        workspace.statistics.update(stats)
    codes = {site.tensor: CODES.get(config.precision_of(group), INT8) for group in network.groups
             for site in group.activations()}
    moves = {}
    for tensor, text in request.ranges:
        amax = amax_given(text)
        moves[tensor] = RangeChoice(amax, "user") if amax is not None else RangeChoice(
            amax_chosen(text, workspace.statistics[tensor], codes[tensor]), text.lower())
    report.send(ev.RangesSet(report.job, moves))
    yield from ()
