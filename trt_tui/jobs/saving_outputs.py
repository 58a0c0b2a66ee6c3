"""The outputs of runs on all samples, as Polygraphy's RunResults."""

import contextlib
import time
from pathlib import Path

from trt_tui.core.data.places import refuse_over
from trt_tui.core.data.runresults import ResultsWriter
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.judge import tensor_outputs
from trt_tui.files.writing import atomic
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.SaveOutputs) -> Steps[None]:
    """Runs each config on all samples, those that calibrate too, so that others can be held against it."""
    network, samples = workspace.network, workspace.samples
    path, since, done = Path(request.path), time.monotonic(), 0
    refuse_over([path], [network.path, *network.external_files])
    ensure_ranges(workspace, store, report, list(request.runs.values()))
    names = tensor_outputs(network)
    analysis = Analysis(network, workspace.backend, samples, workspace.judged, other=workspace.options.other,
                        yields=names)
    with contextlib.closing(analysis), atomic(path) as stream, ResultsWriter(stream) as writer:
        for name, config in request.runs.items():
            writer.begin(name)
            for outputs in analysis.outputs(config, workspace.ranges):
                writer.add({tensor: outputs[tensor] for tensor in dict.fromkeys((*names, *analysis.tensors))})
                done += 1
                report.progress(f"outputs for {path.name}", done, len(samples) * len(request.runs), since)
                yield Urgency.BUILD
    report.send(ev.Exported(report.job, (request.path,)))
