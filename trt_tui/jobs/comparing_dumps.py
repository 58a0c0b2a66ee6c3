"""Two dumps of tensors, held against each other; nothing has to be open for it."""

import time

from trt_tui.core.data.dumps import open_dump
from trt_tui.core.measure.dumped import TensorErrors, advice, common_tensors, compare_tensor, placed, smallest_mask
from trt_tui.core.measure.reference import nothing_common
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace | None, store: Store, report: Report, request: rq.CompareDumps) -> Steps[None]:
    """Compares all tensors of both.

    Raises:
        InputError: one cannot be read, they do not fit each other, or neither fits the network.
    """
    report.send(ev.Progress(report.job, "reading the dumps", 0, 0))
    yield Urgency.OPENING
    first, second = open_dump(request.first), open_dump(request.second)
    yield Urgency.OPENING
    both, only_first, only_second = common_tensors(first, second)
    network = workspace.network if workspace is not None else None
    inputs = [info.name for info in network.inputs] if network is not None else []
    if network is not None and not any(network.has_tensor(name) for name in both):
        raise nothing_common(first.source, both, network.name,
                             [layer_output for layer in network.layers for layer_output in layer.outputs])
    mask, since, found = smallest_mask(network), time.monotonic(), list[TensorErrors]()
    for number, name in enumerate(both):
        for result in compare_tensor(first, second, name, request.threshold, mask):
            if result is not None:
                found.append(result)
            report.progress("comparing tensors", number, len(both), since)
            yield Urgency.BUILD
    ordered = placed(found, network, request.scaled)
    said = advice(ordered, first.source, second.source, inputs, network is not None)
    report.send(ev.DumpsCompared(report.job, first.source, second.source, len(first.iterations), tuple(ordered),
                                 only_first, only_second, tuple(said),
                                 store.network_sha256(network) if network is not None else ""))
