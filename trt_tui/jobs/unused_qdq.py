"""The job that takes the Q/DQ of layers out of a config if the previewed engine computes these layers in a float type.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from trt_tui.core.engines.preview import Preview
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.unused_qdq import QdqRemoval, plan_qdq_removal
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import BackendUnavailableError, InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.accuracy import measure_accuracy
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.engine_preview import (
    NOT_INSTALLED,
    PreviewClient,
    is_tensorrt_rtx_installed,
    preview_mismatch_reason,
)
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_qdq_removal_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                        request: rq.RemoveUnusedQdq) -> Steps[None]:
    """Sends the config without unused Q/DQ, with the kernels and the accuracy before and after."""
    config = request.config
    if not is_tensorrt_rtx_installed():
        raise BackendUnavailableError(NOT_INSTALLED.title, NOT_INSTALLED.cause, NOT_INSTALLED.next_step)
    if reason := preview_mismatch_reason(workspace):
        raise InputError("the preview does not hold for this TensorRT", reason,
                         "Build the config, and raise the layers that the engine page lists.")
    ensure_ranges(workspace, store, reporter, [config])
    client = PreviewClient(workspace, store, reporter, workspace.ranges)
    preview = yield from client.preview_config(config)
    if preview.refusal is not None:
        raise InputError("the config has no preview", preview.refusal.description, preview.refusal.next_step)
    removal = yield from remove_previewed_qdq(workspace.network, config, preview, client.preview_config,
                                              request.fixed_reasons)
    if removal.groups:
        accuracies = []
        for measured_config in (config, removal.config):
            accuracy = Accuracy({})
            for partial in measure_accuracy(workspace, store, reporter, measured_config, request.phase):
                accuracy = partial
                yield Urgency.WHAT_IF
            reporter.send(ev.AccuracyMeasured(reporter.job, "config", measured_config, accuracy, True))
            accuracies.append(accuracy)
        removal = replace(removal, accuracies=(accuracies[0], accuracies[1]))
    reporter.send(ev.UnusedQdqRemoved(reporter.job, config, removal))


def remove_previewed_qdq(network: NetworkOutline, config: PrecisionConfig, preview: Preview,
                         preview_config: Callable[[PrecisionConfig], Steps[Preview | None]] | Callable[
                             [PrecisionConfig], Steps[Preview]], fixed_reasons: Mapping[str, str]) -> Steps[QdqRemoval]:
    """Returns the removal of the unused Q/DQ of a config, with a preview of each config that it tries.

    Args:
        preview: The preview of the config.
        preview_config: The preview of another config; None if it has none.
        fixed_reasons: The reasons why some groups keep their precision, by group name.
    """
    plan = plan_qdq_removal(network, config, preview, fixed_reasons)
    try:
        tried_config = next(plan)
        while True:
            changed_preview = yield from preview_config(tried_config)
            tried_config = plan.send(changed_preview)
    except StopIteration as stop:
        removal: QdqRemoval = stop.value
        return removal
