"""The jobs on files of other programs: the comparison and writing of dumps, and the layers of engine files."""

import contextlib
import time
from pathlib import Path

from trt_tui.backends.registry import get_engine_builder
from trt_tui.core.data.dumps import open_dump
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.data.polygraphy_json import RunResultsWriter
from trt_tui.core.engines.inspector import read_engine_report
from trt_tui.core.engines.profile_report import read_profile_report
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.dump_comparison import (
    TensorDifference,
    TensorSummary,
    comparison_advice_lines,
    find_common_tensors,
    find_min_mask_magnitude,
    measure_tensor_difference,
    sort_in_network_order,
    summarize_tensor,
)
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.reference import DumpIterations, check_dump_shape, no_common_tensors_error
from trt_tui.errors import BackendUnavailableError
from trt_tui.files.reading import read_bytes
from trt_tui.files.writing import open_atomic_writer
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.opening import WorkspaceSlot
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_dump_comparison_job(slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter,
                            request: rq.CompareDumps) -> Steps[None]:
    """Compares all common tensors of two dumps.

    Raises:
        InputError: A dump cannot be read, the dumps do not match each other, or they do not match the network.
    """
    reporter.send(ev.JobProgress(reporter.job, "reading the dumps", 0, 0))
    yield Urgency.OPENING
    first, second = open_dump(request.reference.file_path), open_dump(request.run.file_path)
    yield Urgency.OPENING
    common_names, only_in_reference, only_in_run = find_common_tensors(first, second)
    feed_indices = range(len(first.iterations))
    network = slot.workspace.network if slot.workspace is not None else None
    inputs = [info.name for info in network.inputs] if network is not None else []
    if network is not None and not any(network.has_tensor(name) for name in common_names):
        raise no_common_tensors_error(first.source, common_names, network.name,
                                      [layer_output for layer in network.layers for layer_output in layer.outputs])
    for name in common_names:
        if network is not None and network.has_tensor(name):
            check_dump_shape(first, network, name)
    mask, start_time, tensor_errors = find_min_mask_magnitude(network), time.monotonic(), list[TensorDifference]()
    for index, name in enumerate(common_names):
        reference, source = (DumpIterations(run, dump, [name]) for run, dump in ((request.reference, first),
                                                                               (request.run, second)))
        for result in measure_tensor_difference(reference, source, feed_indices, name, request.threshold, mask):
            if result is not None:
                tensor_errors.append(result)
            reporter.send_progress(request.phase, index, len(common_names), start_time)
            yield Urgency.BUILD
    ordered = sort_in_network_order(tensor_errors, network, request.scaled_tensors)
    advice_texts = comparison_advice_lines(ordered, first.source, second.source, inputs, network is not None)
    reporter.send(ev.DumpsCompared(reporter.job, reference.run, source.run, len(feed_indices), tuple(ordered),
                                   only_in_reference, only_in_run, tuple(advice_texts),
                                   store.network_sha256(network) if network is not None else ""))


def run_dump_inspection_job(slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter,
                            request: rq.InspectDump) -> Steps[None]:
    """Summarizes each tensor of a dump.

    Raises:
        InputError: The dump cannot be read.
    """
    dump, summaries, start_time = open_dump(request.file_path), list[TensorSummary](), time.monotonic()
    for index, name in enumerate(dump.tensor_names):
        for summary in summarize_tensor(dump, name):
            summaries += [summary] if summary is not None else []
            reporter.send_progress(request.phase, index, len(dump.tensor_names), start_time)
            yield Urgency.BUILD
    reporter.send(ev.DumpInspected(reporter.job, dump.source, len(dump.iterations), tuple(summaries)))


def run_save_outputs_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.SaveOutputs) -> Steps[None]:
    """Executes each config on all samples, calibration samples included, and writes the outputs as a dump."""
    network, samples = workspace.network, workspace.samples
    path, start_time, done = Path(request.path), time.monotonic(), 0
    refuse_overwriting_inputs([path], [network.path, *network.external_files])
    ensure_ranges(workspace, store, reporter, list(request.runs.values()))
    names = list_tensor_outputs(network)
    analysis = Analysis(network, workspace.backend, samples, workspace.judged_outputs,
                        boundary_type=workspace.options.other, extra_tensors=names)
    with contextlib.closing(analysis), open_atomic_writer(path) as stream, RunResultsWriter(stream) as writer:
        for name, config in request.runs.items():
            writer.begin_runner(name)
            for outputs in analysis.execute_config(config, workspace.ranges):
                writer.add_iteration(
                    {tensor: outputs[tensor]
                     for tensor in dict.fromkeys((*names, *analysis.fetched_tensors))})
                done += 1
                reporter.send_progress(request.phase, done, len(samples) * len(request.runs), start_time)
                yield Urgency.BUILD
    reporter.send(ev.ConfigExported(reporter.job, (request.path,)))


def run_engine_inspection_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                              request: rq.ReadEngineFile) -> Steps[None]:
    """Reads the layers of an engine file, of the inspector's JSON file, or of a profile, and sends them.

    Raises:
        InputError: The file is none of these, or the engine is from another release.
        BackendUnavailableError: No TensorRT works here to load the engine.
    """
    yield from ()
    file = Path(request.path)
    data = read_bytes(file)
    if data.lstrip()[:1] == b"[":
        reporter.send(ev.EngineFileRead(reporter.job, read_profile_report(file, workspace.network)))
        return
    if file.suffix.lower() == ".json" or data[:1] == b"{" and b'"Layers"' in data[:4096]:
        text = data.decode("utf-8", "replace")
    else:
        text = _inspect_engine(workspace, data)
    reporter.send(ev.EngineFileRead(reporter.job, read_engine_report(text, workspace.network)))


def _inspect_engine(workspace: Workspace, engine_bytes: bytes) -> str:
    builder = get_engine_builder(workspace.options.backend, plugins=workspace.options.production.plugins)
    if builder is None:
        raise BackendUnavailableError("no TensorRT here can load an engine", "trt-tui doctor shows why",
                                      "Give the JSON of trtexec --exportLayerInfo instead of the engine.")
    with builder.load_engine(engine_bytes) as runner:
        return runner.inspect()
