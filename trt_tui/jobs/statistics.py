"""Statistics of tensors: histograms, what determines a range, and the ranges of every method."""

from collections.abc import Iterable

from trt_tui.core.calibration.statistics import TensorStats, TopChannels, collect_stats
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.spreading import hands_of
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.Stats) -> Steps[None]:
    """Measures the values of a group's inputs and of its tail, and the ranges of its weights' channels."""
    network = workspace.network
    group = network.group(request.group)
    named = (*(site.tensor for site in group.activations()), *group.inputs[:2], group.tail)
    tensors = [tensor for tensor in dict.fromkeys(named) if network.is_float(tensor) and tensor not in network.behind]
    axes = {}
    for site in group.activations():
        rank = len(network.shape(site.tensor) or ())
        conv = network.layer(site.layer).op_type in ("Conv", "ConvTranspose")
        axes[site.tensor] = 1 if conv or rank < 2 else rank - 1
    stats = collect_stats(network.model, tensors, workspace.calibrating, workspace.backend, channel_axes=axes,
                          progress=report.sweeping("activation statistics", gives_way=True),
                          hands=hands_of(workspace, report))
    workspace.statistics.update(stats)
    weights = {site.tensor: TopChannels.of(site.axis, network.constant_amax(site.tensor, site.axis))
               for site in group.weights() if site.axis is not None}
    report.send(ev.StatsMeasured(report.job, group.name, stats,
                                 {tensor: top for tensor, top in weights.items() if top is not None}))
    yield Urgency.STATS


def ranges_by_method(workspace: Workspace, report: Report, groups: Iterable[Group], config: PrecisionConfig, *,
                     together: bool = False) -> dict[str, dict[str, float]]:
    """The ranges (amax) of the activations of some groups, by tensor and method, for the codes that a config has them
    read, the last group's where they differ; measured where they are not known.

    Args:
        together: Measured in one pass over these tensors alone, whatever is known of them; see `Workspace.together`.
    """
    tensors = {site.tensor: config.precision_of(group) for group in groups for site in group.activations()}
    known: dict[str, TensorStats] = workspace.statistics
    if together:
        known = workspace.together.setdefault(("statistics", *tensors), {})
    missing = [tensor for tensor in tensors if tensor not in known]
    if missing:
        hands = hands_of(workspace, report)
        stats = collect_stats(workspace.network.model, missing, workspace.calibrating, workspace.backend,
                              progress=report.sweeping("other ranges", gives_way=True, hands=hands), hands=hands)
        known.update(stats)
    return {tensor: known[tensor].ranges_for(precision) for tensor, precision in tensors.items()}
