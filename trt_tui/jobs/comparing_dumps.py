"""Two dumps of tensors, held against each other; nothing has to be open for it."""

import time

from trt_tui.core.data.dumps import open_dump
from trt_tui.core.measure.dump_comparison import (
    TensorDifference,
    compare_tensor_of_dumps,
    comparison_advice_lines,
    find_common_tensors,
    find_min_mask_magnitude,
    sort_in_network_order,
)
from trt_tui.core.measure.reference import no_common_tensors_error
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.opening import WorkspaceSlot
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore


def run_dump_comparison_job(slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter,
                            request: rq.CompareDumps) -> Steps[None]:
    """Compares all tensors of both.

    Raises:
        InputError: one cannot be read, they do not fit each other, or neither fits the network.
    """
    reporter.send(ev.JobProgress(reporter.job, "reading the dumps", 0, 0))
    yield Urgency.OPENING
    first, second = open_dump(request.first), open_dump(request.second)
    yield Urgency.OPENING
    common_names, only_first, only_second = find_common_tensors(first, second)
    network = slot.workspace.network if slot.workspace is not None else None
    inputs = [info.name for info in network.inputs] if network is not None else []
    if network is not None and not any(network.has_tensor(name) for name in common_names):
        raise no_common_tensors_error(first.source, common_names, network.name,
                                      [layer_output for layer in network.layers for layer_output in layer.outputs])
    mask, start_time, tensor_errors = find_min_mask_magnitude(network), time.monotonic(), list[TensorDifference]()
    for index, name in enumerate(common_names):
        for result in compare_tensor_of_dumps(first, second, name, request.threshold, mask):
            if result is not None:
                tensor_errors.append(result)
            reporter.send_progress(request.phase, index, len(common_names), start_time)
            yield Urgency.BUILD
    ordered = sort_in_network_order(tensor_errors, network, request.scaled_tensors)
    advice_texts = comparison_advice_lines(ordered, first.source, second.source, inputs, network is not None)
    reporter.send(ev.DumpsCompared(reporter.job, first.source, second.source, len(first.iterations), tuple(ordered),
                                   only_first, only_second, tuple(advice_texts),
                                   store.network_sha256(network) if network is not None else ""))
