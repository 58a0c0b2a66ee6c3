"""A piece of the network as a folder that shows a fault by itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.exporters.bundle import MAX_FEEDS, MAX_SAMPLE_BYTES, SampleRun
from trt_tui.core.exporters.subgraph import (
    FP32_FILE,
    TYPED_FILE,
    check_tensor_names,
    extract_subgraph,
    find_group_boundary,
    write_subgraph,
)
from trt_tui.core.lowering.ends import add_outputs
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.measure.failed_runs import attribute_failures_to_rounding
from trt_tui.files.folders import fill_folder_atomically, require_empty_folder
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import collect_ranges_to_write
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_write_subgraph_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                           request: rq.WriteSubgraph) -> Steps[None]:
    """Writes the folder; it appears whole or not at all."""
    destination, network = Path(request.path), workspace.network
    require_empty_folder(destination)
    start, stop = find_group_boundary(network, network.get_group(
        request.group)) if request.group else (request.start_tensors, request.stop_tensors)
    check_tensor_names(network, (*start, *stop))
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    ranges, no_data_reason = collect_ranges_to_write(workspace, store, reporter, request.config, request.config_ranges)
    typed_model = lower_from_source_model(network, request.config, ranges).model
    iterations = _collect_subgraph_sample_runs(workspace, typed_model, start, stop)
    workspace.require_unchanged_files()
    with fill_folder_atomically(destination) as folder:
        written_paths = write_subgraph(folder, network, {FP32_FILE: network.model, TYPED_FILE: typed_model}, start,
                                       stop, iterations)
    reporter.send(
        ev.ConfigExported(reporter.job, (str(destination), *(str(destination / path.name) for path in written_paths)),
                          (), no_data_reason))


def _collect_subgraph_sample_runs(workspace: Workspace, typed_model: ir.Model, start_tensors: Sequence[str],
                                  stop_tensors: Sequence[str]) -> list[SampleRun]:
    """What goes into the piece on the first judged feeds, and what FP32 and the typed piece make of it."""
    network, samples = workspace.network, workspace.data_sets.judged_samples
    produced = {value.name for node in network.model.graph for value in node.outputs}
    output_names = {output.name for output in network.model.graph.outputs}
    read_names = [name for name in dict.fromkeys((*start_tensors, *stop_tensors)) if name in produced]
    extended_model = add_outputs(network.model, [name for name in read_names if name not in output_names])
    iterations: list[SampleRun] = []
    piece_model = extract_subgraph(typed_model, start_tensors, stop_tensors)
    with load_adaptive_runner(workspace.backend, extended_model,
                              samples) as fp32, workspace.backend.load(piece_model) as lowered:
        for index in range(min(MAX_FEEDS, len(samples))):
            feed: Mapping[str, np.ndarray] = samples.read_feed(index)
            values = {**feed, **fp32.run(feed, read_names)}
            inputs = {name: values[name] for name in start_tensors}
            reference = {name: values[name] for name in stop_tensors}
            with attribute_failures_to_rounding(network):
                iteration = SampleRun(inputs, reference, lowered.run(inputs, list(stop_tensors)))
            if iterations and sum(item.size_bytes for item in (*iterations, iteration)) > MAX_SAMPLE_BYTES:
                break
            iterations.append(iteration)
    return iterations
