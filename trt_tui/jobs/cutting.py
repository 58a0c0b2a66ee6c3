"""A piece of the network as a folder that shows a fault by itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.fitted import fitted
from trt_tui.core.exporters.bundle import MOST_FEEDS, MOST_SAMPLE_BYTES, Iteration
from trt_tui.core.exporters.subgraph import FP32, TYPED, around, check_tensors, piece, write_subgraph
from trt_tui.core.lowering.ends import with_outputs
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.measure.failed_runs import rounding_blamed
from trt_tui.files.folders import new_folder, refuse_folder
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ranges_to_write
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.WriteSubgraph) -> Steps[None]:
    """Writes the folder; it appears whole or not at all."""
    place, network = Path(request.path), workspace.network
    refuse_folder(place)
    start, stop = around(network, network.group(request.group)) if request.group else (request.start, request.stop)
    check_tensors(network, (*start, *stop))
    report.send(ev.Progress(report.job, f"writing {place.name}", 0, 0))
    yield Urgency.BUILD
    ranges, needless = ranges_to_write(workspace, store, report, request.config, request.given)
    typed = lower_strong(network, request.config, ranges).model
    iterations = _iterations(workspace, typed, start, stop)
    workspace.require_unchanged()
    with new_folder(place) as folder:
        written = write_subgraph(folder, network, {FP32: network.model, TYPED: typed}, start, stop, iterations)
    report.send(ev.Exported(report.job, (str(place), *(str(place / path.name) for path in written)), (), needless))


def _iterations(workspace: Workspace, typed: ir.Model, start: Sequence[str], stop: Sequence[str]
                ) -> list[Iteration]:
    """What goes into the piece on the first judged feeds, and what FP32 and the typed piece make of it."""
    network, samples = workspace.network, workspace.data.judged
    made = {value.name for node in network.model.graph for value in node.outputs}
    ends = {output.name for output in network.model.graph.outputs}
    named = [name for name in dict.fromkeys((*start, *stop)) if name in made]
    whole = with_outputs(network.model, [name for name in named if name not in ends])
    found: list[Iteration] = []
    cut = piece(typed, start, stop)
    with fitted(workspace.backend, whole, samples) as fp32, workspace.backend.load(cut) as lowered:
        for index in range(min(MOST_FEEDS, len(samples))):
            feed: Mapping[str, np.ndarray] = samples.feed(index)
            values = {**feed, **fp32.run(feed, named)}
            inputs = {name: values[name] for name in start}
            reference = {name: values[name] for name in stop}
            with rounding_blamed(network):
                one = Iteration(inputs, reference, lowered.run(inputs, list(stop)))
            if found and sum(each.size for each in (*found, one)) > MOST_SAMPLE_BYTES:
                break
            found.append(one)
    return found
