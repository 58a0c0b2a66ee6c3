"""What a file loses where its export cannot be as the file is: the run as given beside that of its typed network."""

from __future__ import annotations

from collections.abc import Mapping

from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs.judging import judged_run
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def send_amended(workspace: Workspace, store: Store, report: Report, runs: Mapping[str, PrecisionConfig]
                 ) -> Steps[None]:
    """Measures, for a file of which TensorRT refuses something, what the network loses as the export has it."""
    network = workspace.network
    given = network.given
    config = next((config for config in runs.values() if config.quantized is Precision.FILE and not config.moves), None)
    if given is None or config is None or not given.refused or "BF16" in given.float_words:
        return
    yield Urgency.VERDICT
    known = store.known(workspace, "amended", config, Verdict)
    if known is None:
        typed = lower_strong(network, config, workspace.ranges)
        steps = judged_run(workspace.analysis, typed.model, workspace.feeds)
        while known is None:
            try:
                next(steps)
            except StopIteration as stop:
                known = stop.value
            yield Urgency.VERDICT
        store.keep(workspace, "amended", config, known)
    report.send(ev.ExportedMeasured(report.job, config, known))
