"""What a file loses where its export cannot be as the file is: the run as given beside that of its typed network."""

from collections.abc import Mapping

from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.refused import round_by_casts
from trt_tui.core.network.steps import LOW_FLOATS
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs.judging import judged_run
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def send_amended(workspace: Workspace, store: Store, report: Report, runs: Mapping[str, PrecisionConfig],
                 urgency: Urgency = Urgency.VERDICT) -> Steps[None]:
    """Measures, where TensorRT refuses something of what stays as in the file, what the network loses as the export
    has it."""
    for config in runs.values():
        if any(config.precision_of(group) is Precision.FILE and group.given is not None and group.given.refused
               for group in workspace.network.groups):
            yield urgency
            known = store.known(workspace, "amended", config, Verdict)
            if known is None:
                known = yield from _judged(workspace, config, urgency)
                store.keep(workspace, "amended", config, known)
            report.send(ev.ExportedMeasured(report.job, config, known))


def _judged(workspace: Workspace, config: PrecisionConfig, urgency: Urgency) -> Steps[Verdict]:
    """Returns the verdict of the typed network of a config, run as it is written."""
    typed = lower_strong(workspace.network, config, workspace.ranges).model
    infer_shapes(typed)
    values = (value for node in typed.graph for value in (*node.inputs, *node.outputs) if value is not None)
    round_by_casts(typed.graph, {name_of(value): value.dtype for value in values if value.dtype in LOW_FLOATS})
    steps = judged_run(workspace.analysis, typed, workspace.feeds)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            verdict: Verdict = stop.value
            return verdict
        yield urgency
