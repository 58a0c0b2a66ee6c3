"""Statistics of tensors: histograms, what determines a range, and the ranges of every method."""

from collections.abc import Iterable

from trt_tui.core.calibration.statistics import DominantChannels, TensorStats, collect_tensor_stats
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.executors import get_executor
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_tensor_stats_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.MeasureTensorStats) -> Steps[None]:
    """Measures the values of a group's inputs and of its tail, and the ranges of its weights' channels."""
    network = workspace.network
    group = network.get_group(request.group)
    tensor_names = (*(site.tensor for site in group.activation_qdq_sites()), *group.inputs[:2], group.final_tensor)
    tensors = [
        tensor for tensor in dict.fromkeys(tensor_names)
        if network.is_float(tensor) and tensor not in network.blocking_plugins
    ]
    axes = {}
    for site in group.activation_qdq_sites():
        rank = len(network.shape(site.tensor) or ())
        conv = network.get_layer(site.layer).op_type in ("Conv", "ConvTranspose")
        axes[site.tensor] = 1 if conv or rank < 2 else rank - 1
    stats = collect_tensor_stats(network.model, tensors, workspace.calibration_samples, workspace.backend,
                                 channel_axes=axes,
                                 progress=reporter.make_progress_callback("activation statistics", is_preemptible=True),
                                 executor=get_executor(workspace, reporter))
    workspace.statistics.update(stats)
    weights = {
        site.tensor: DominantChannels.from_channel_amaxes(site.axis, network.constant_amax(site.tensor, site.axis))
        for site in group.weight_qdq_sites()
        if site.axis is not None
    }
    reporter.send(ev.TensorStatsMeasured(reporter.job, group.name, stats,
                                         {tensor: top for tensor, top in weights.items() if top is not None}))
    yield Urgency.TENSOR_STATS


def measure_ranges_by_method(workspace: Workspace, reporter: JobReporter, groups: Iterable[FusionGroup],
                             config: PrecisionConfig, *, one_pass: bool = False) -> dict[str, dict[str, float]]:
    """The ranges (amax) of the activations of some groups, by tensor and method, for the codes that a config has them
    read, the last group's where they differ; measured where they are not known.

    Args:
        one_pass: Measured in one pass over these tensors alone, whatever is known of them; see
    `Workspace.one_pass_values`.
    """
    tensors = {site.tensor: config.precision_of(group) for group in groups for site in group.activation_qdq_sites()}
    tensor_stats: dict[str, TensorStats] = workspace.statistics
    if one_pass:
        tensor_stats = workspace.one_pass_values.setdefault(("statistics", *tensors), {})
    missing = [tensor for tensor in tensors if tensor not in tensor_stats]
    if missing:
        executor = get_executor(workspace, reporter)
        stats = collect_tensor_stats(
            workspace.network.model, missing, workspace.calibration_samples, workspace.backend,
            progress=reporter.make_progress_callback("other ranges", is_preemptible=True,
                                                     executor=executor), executor=executor)
        tensor_stats.update(stats)
    return {tensor: tensor_stats[tensor].amax_by_range_method(precision) for tensor, precision in tensors.items()}
