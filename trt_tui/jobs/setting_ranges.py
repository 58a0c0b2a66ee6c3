"""Ranges of tensors as a user gives them."""

import difflib

from trt_tui.core.calibration.statistics import collect_tensor_stats
from trt_tui.core.calibration.user_ranges import parse_amax, resolve_amax_text
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.quantized_types import INT8, QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_set_ranges_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                       request: rq.SetRanges) -> Steps[None]:
    """Sends a range for each tensor; measures what is not given as a number."""
    network, config = workspace.network, request.config
    for tensor, text in request.ranges:
        if tensor not in network.calibrated_tensors:
            similar_names = difflib.get_close_matches(tensor, network.calibrated_tensors, 3, 0.5)
            raise InputError(
                f"no layer reads codes of {tensor}", "so it has no range", f"Did you mean {', '.join(similar_names)}?"
                if similar_names else "trt-tui inspect --nodes lists tensors.")
        parse_amax(text)
    unmeasured = [tensor for tensor, text in request.ranges
                  if parse_amax(text) is None and tensor not in workspace.statistics]
    if unmeasured:
        stats = collect_tensor_stats(
            network.model, unmeasured, workspace.calibration_samples, workspace.backend,
            progress=reporter.make_progress_callback("activation statistics", is_preemptible=True))
        workspace.statistics.update(stats)
    quantized_types = {site.tensor: QUANTIZED_TYPES.get(config.precision_of(group), INT8) for group in network.groups
                       for site in group.activation_qdq_sites()}
    moves = {}
    for tensor, text in request.ranges:
        amax = parse_amax(text)
        moves[tensor] = RangeMove(amax, "user") if amax is not None else RangeMove(
            resolve_amax_text(text, workspace.statistics[tensor], quantized_types[tensor]), text.lower())
    reporter.send(ev.RequestedRangesReady(reporter.job, moves))
    yield from ()
