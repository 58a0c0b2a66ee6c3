"""The jobs on ranges: tensor statistics, ranges from the user, and the comparison of range methods."""

import time
from collections.abc import Iterable

from trt_tui.core.calibration.statistics import DominantChannels, TensorStats, collect_tensor_stats
from trt_tui.core.calibration.tensor_collection import NonFiniteTensorError
from trt_tui.core.calibration.user_ranges import find_named_tensors, parse_amax, resolve_amax_text
from trt_tui.core.measure.cause_facts import collect_value_ranges, measure_group_facts
from trt_tui.core.measure.causes import GROUP_DETAILS, GroupDetails
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import RangeMove
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.quantized_types import INT8, QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, name_list_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.accuracy import send_reference_metric
from trt_tui.jobs.calibration import measure_ranges
from trt_tui.jobs.executors import get_executor
from trt_tui.jobs.scheduler import JobReporter, take_last_value
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace


def run_tensor_stats_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.MeasureTensorStats) -> Steps[None]:
    """Measures and sends the tensor statistics of the inputs and results of groups, the ranges of their weights'
    channels, and the facts from which causes are found."""
    network = workspace.network
    groups = [network.get_group(name) for name in dict.fromkeys((request.group, *request.other_groups))]
    tensors_by_group: dict[str, list[str]] = {}
    axes: dict[str, int] = {}
    for group in groups:
        tensor_names = (*(site.tensor for site in group.activation_qdq_sites()), *group.inputs[:2], group.final_tensor)
        tensors_by_group[group.name] = [tensor for tensor in dict.fromkeys(tensor_names)
                                        if network.is_float(tensor) and tensor not in network.blocking_plugins]
        for site in group.activation_qdq_sites():
            rank = len(network.shape(site.tensor) or ())
            conv = network.get_layer(site.layer).op_type in ("Conv", "ConvTranspose")
            axes[site.tensor] = 1 if conv or rank < 2 else rank - 1
    progress = reporter.make_progress_callback("activation statistics", is_preemptible=True)
    tensors = list(dict.fromkeys(tensor for names in tensors_by_group.values() for tensor in names))
    stats: dict[str, TensorStats] | None = None
    while stats is None:
        try:
            stats = collect_tensor_stats(
                network.model, tensors, workspace.calibration_samples, workspace.backend, channel_axes=axes,
                progress=progress, executor=get_executor(workspace, reporter))
        except NonFiniteTensorError as error:  # a mask of -Inf is no error if nothing quantizes it
            if error.tensor in axes or error.tensor not in tensors:
                raise
            tensors.remove(error.tensor)
    workspace.statistics.update(stats)
    value_ranges = collect_value_ranges(network, groups, workspace.calibration_samples, workspace.backend,
                                        progress=progress, executor=get_executor(workspace, reporter))
    for group in groups:
        weights = {
            site.tensor: DominantChannels.from_channel_amaxes(site.axis, network.constant_amax(site.tensor, site.axis))
            for site in group.weight_qdq_sites()
            if site.axis is not None
        }
        facts = measure_group_facts(network, group, value_ranges[group.name], workspace.calibration_samples,
                                    workspace.backend)
        tensors_of_group = {tensor: stats[tensor] for tensor in tensors_by_group[group.name] if tensor in stats}
        reporter.send(ev.Measured(reporter.job, GROUP_DETAILS, group.name, GroupDetails(
            tensors_of_group, {tensor: top for tensor, top in weights.items() if top is not None}, facts)))
    yield Urgency.TENSOR_STATS


def measure_ranges_by_method(workspace: Workspace, reporter: JobReporter, groups: Iterable[FusionGroup],
                             config: PrecisionConfig, *, in_separate_pass: bool = False) -> dict[str, dict[str, float]]:
    """Returns the ranges (amax) of the activations of some groups, by tensor and range method.

    The ranges are for the quantized types that the config gives to the groups. If groups with different types share a
    tensor, the type of the last group counts. Tensors without known statistics are measured.

    Args:
        in_separate_pass: True to measure these tensors in one separate pass, even if their statistics are known
            (`Workspace.separate_pass_values`).
    """
    tensors = {site.tensor: config.precision_of(group) for group in groups for site in group.activation_qdq_sites()}
    tensor_stats: dict[str, TensorStats] = workspace.statistics
    if in_separate_pass:
        tensor_stats = workspace.separate_pass_values.setdefault(("statistics", *tensors), {})
    missing = [tensor for tensor in tensors if tensor not in tensor_stats]
    if missing:
        executor = get_executor(workspace, reporter)
        stats = collect_tensor_stats(
            workspace.network.model, missing, workspace.calibration_samples, workspace.backend,
            progress=reporter.make_progress_callback("other ranges", is_preemptible=True,
                                                     executor=executor), executor=executor)
        tensor_stats.update(stats)
    return {tensor: tensor_stats[tensor].amax_by_range_method(precision) for tensor, precision in tensors.items()}


def run_set_ranges_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                       request: rq.SetRanges) -> Steps[None]:
    """Sends the requested range of each tensor. Tensors whose range is not given as a number are measured."""
    network, config = workspace.network, request.config
    ranges: dict[str, tuple[int, str]] = {}  # the last entry that names a tensor sets its range
    for index, (name, text) in enumerate(request.ranges):
        tensors = find_named_tensors(network, name)
        parse_amax(text)
        ranges |= dict.fromkeys(tensors, (index, text))
        if tensors != (name,):
            reporter.send(
                ev.LogMessage(reporter.job, f"{name} names {counted_noun_text(len(tensors), 'tensor')} with the range "
                                            f"{text}: {name_list_text(tensors, 3)}.", "note"))
    effective = {index for index, _ in ranges.values()}
    for index, (name, text) in enumerate(request.ranges):
        if index not in effective:
            reporter.send(
                ev.LogMessage(reporter.job, f"--range {name}={text} has no effect: later ranges replace it. Put the "
                                            "range of fewer tensors behind that of more.", "warning"))
    unmeasured = [tensor for tensor, (_, text) in ranges.items()
                  if parse_amax(text) is None and tensor not in workspace.statistics]
    if unmeasured:
        stats = collect_tensor_stats(
            network.model, unmeasured, workspace.calibration_samples, workspace.backend,
            progress=reporter.make_progress_callback("activation statistics", is_preemptible=True))
        workspace.statistics.update(stats)
    quantized_types = {site.tensor: QUANTIZED_TYPES.get(config.precision_of(group), INT8) for group in network.groups
                       for site in group.activation_qdq_sites()}
    moves = {}
    for tensor, (_, text) in ranges.items():
        amax = parse_amax(text)
        moves[tensor] = RangeMove(amax, "user") if amax is not None else RangeMove(
            resolve_amax_text(text, workspace.statistics[tensor], quantized_types[tensor]), text.lower())
    reporter.send(ev.RequestedRangesReady(reporter.job, moves))
    yield from ()


def run_method_comparison_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                              request: rq.CompareRangeMethods) -> Steps[None]:
    """Measures the accuracy of a config with the ranges of each range method, and sends the table after each method.

    The seconds of a row are those of the calibration alone. They are near 0 if the ranges are already stored.
    """
    if workspace.options.calib_cache is not None or workspace.options.new_calib_cache is not None:
        raise InputError("calibration methods cannot be compared", "a calibration cache holds the ranges of one method",
                         "Leave out --calib-cache.")
    rows: list[ev.RangeMethodResult] = []
    yield from send_reference_metric(workspace, store, reporter, [request.config])
    for method in request.methods:
        start = time.perf_counter()
        calibration = measure_ranges(workspace, store, reporter, method)
        seconds = time.perf_counter() - start
        yield Urgency.ACCURACY
        partials = workspace.analysis.measure_accuracy(request.config, calibration.range_table, workspace.feeds,
                                                       with_metric_interval=True)
        accuracy = yield from reporter.follow(take_last_value(partials, f"judging {method}"), Urgency.ACCURACY)
        rows.append(ev.RangeMethodResult(method, accuracy, seconds, calibration.samples))
        reporter.send(ev.Measured(reporter.job, ev.METHOD_COMPARISON, None,
                                  ev.RangeMethodComparison(request.config, tuple(rows))))
