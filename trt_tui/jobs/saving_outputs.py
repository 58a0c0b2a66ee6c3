"""The outputs of runs on all samples, as Polygraphy's RunResults."""

import contextlib
import time
from pathlib import Path

from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.data.runresults import RunResultsWriter
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.files.writing import open_atomic_writer
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_save_outputs_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.SaveOutputs) -> Steps[None]:
    """Runs each config on all samples, those that calibrate too, so that others can be held against it."""
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
