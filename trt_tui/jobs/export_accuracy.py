"""The accuracy of the exported network of a quantized or typed file that cannot be exported unchanged.

The result is shown beside the accuracy of the file itself.
"""

from collections.abc import Mapping

from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.runs import RunKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.naming import value_name
from trt_tui.core.network.qdq_steps import PRECISION_BY_HALF_TYPE
from trt_tui.core.network.typed_refusals import add_fp32_casts_to_operators
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs.engine_accuracy import measure_lowered_network_accuracy
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def measure_export_accuracy(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                            runs: Mapping[str, PrecisionConfig], urgency: Urgency = Urgency.ACCURACY) -> Steps[None]:
    """Measures the accuracy of the exported network for each run in file precision, if TensorRT refuses a part of the
    file."""
    for run, config in runs.items():
        if any(
                config.precision_of(group) is Precision.FILE and group.file_precision is not None
                and group.file_precision.refused_nodes for group in workspace.network.groups):
            yield urgency
            accuracy = store.load_result(workspace, "amended", config, Accuracy)
            if accuracy is None:
                accuracy = yield from _measure_typed_network_accuracy(workspace, config, urgency)
                store.save_result(workspace, "amended", config, accuracy)
            reporter.send(ev.AccuracyMeasured(reporter.job, run, config, accuracy, True, RunKind.TYPED_NETWORK))


def _measure_typed_network_accuracy(workspace: Workspace, config: PrecisionConfig, urgency: Urgency) -> Steps[Accuracy]:
    """Executes the typed network of a config as written. Returns its accuracy."""
    typed_model = lower_from_source_model(workspace.network, config, workspace.ranges).model
    infer_shapes(typed_model)
    values = (value for node in typed_model.graph for value in (*node.inputs, *node.outputs) if value is not None)
    add_fp32_casts_to_operators(typed_model.graph,
                                {value_name(value): value.dtype
                                 for value in values
                                 if value.dtype in PRECISION_BY_HALF_TYPE})
    steps = measure_lowered_network_accuracy(workspace.analysis, typed_model,
                                             workspace.find_judged_feeds(config))
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            accuracy: Accuracy = stop.value
            return accuracy
        yield urgency
