"""The jobs on dynamic ranges: they are measured, set by hand, or read from a calibration cache or a config."""

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from trt_tui.core.calibration.cache import read_calibration_cache, read_calibration_cache_header, select_network_ranges
from trt_tui.core.calibration.calibration import (
    RANGE_METHODS,
    TYPES_WITH_OWN_RANGES,
    Calibration,
    DominantChannels,
    TensorStats,
    calibrate,
    collect_tensor_stats,
    list_range_methods,
    override_ranges,
)
from trt_tui.core.calibration.tensor_collection import NonFiniteTensorError
from trt_tui.core.calibration.user_ranges import find_named_tensors, parse_amax, resolve_amax_text
from trt_tui.core.exporters.formats import config_calibration_cache_text
from trt_tui.core.guards.guards import CACHE_SOURCE, CONFIG_SOURCE, MEASURED_SOURCE, GuardFacts, RangeFacts
from trt_tui.core.guards.measurements import find_mismatched_ranges
from trt_tui.core.lowering.network_rewrite import quantizes_activations
from trt_tui.core.measure.cause_facts import collect_value_ranges, measure_group_facts
from trt_tui.core.measure.causes import GROUP_DETAILS, GroupDetails
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.quantized_types import INT8, QUANTIZED_TYPES, TYPES_WITH_RANGES
from trt_tui.errors import InputError
from trt_tui.files.reading import read_text
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import counted_noun_text, name_list_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import JobReporter, Steps, Urgency, get_executor
from trt_tui.jobs.store import FileCache, ResultStore
from trt_tui.workspace import Workspace


def run_calibration_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.CalibrateRanges
) -> Steps[None]:
    """Measures ranges with a range method, and sends the ranges of some tensors as moves of a config."""
    calibration, network = measure_ranges(workspace, store, reporter, request.method), workspace.network
    precisions = {
        site.tensor: request.config.precision_of(group)
        for group in network.groups
        for site in group.activation_qdq_sites()
    }
    moves = {
        tensor: RangeMove(
            calibration.ranges_by_type.get(precisions[tensor].value, calibration.ranges).get(
                tensor, calibration.ranges[tensor]
            ),
            request.method,
        )
        for tensor in request.tensors
        if tensor in calibration.ranges
    }
    reporter.send(ev.RequestedRangesReady(reporter.job, moves))
    yield from ()


def run_use_ranges_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.UseRanges
) -> Steps[None]:
    """Sets the ranges of a config file or a session as the ranges in use."""
    options = workspace.options
    if options.calib_cache is not None and request.only_missing:
        _calibrate_from_cache(
            workspace,
            store,
            reporter,
            options.calib_cache,
            options.calib_method,
            _mark_ranges_of_other_origin(workspace, request),
        )
    else:
        calibration = _mark_ranges_of_other_origin(workspace, request)
        workspace.calibration, fill_method = _measure_missing_ranges(
            workspace, store, reporter, replace(request, calibration=calibration)
        )
        reporter.send(ev.CalibrationReady(reporter.job, workspace.calibration))
        _write_new_calib_cache(workspace, reporter, workspace.calibration)
        if request.config_name:
            send_range_facts(
                workspace,
                reporter,
                RangeFacts(
                    CONFIG_SOURCE,
                    request.config_name,
                    calibration.method,
                    calibration.samples,
                    fallback_method=fill_method,
                ),
                calibration.ranges,
            )
    yield from ()


def _mark_ranges_of_other_origin(workspace: Workspace, request: rq.UseRanges) -> Calibration:
    """Returns the calibration of a request, with the names of the tensors whose ranges come from elsewhere.

    Ranges from elsewhere were measured on other samples than those that calibrate here. If a config file has ranges of
    the samples that calibrate here, its moves were measured on them too.
    """
    calibration = request.calibration
    if calibration.given_tensors:
        return calibration
    if calibration.data_sha256 == workspace.calibration_samples.hash_inputs():
        workspace.given_moves = {}
        return calibration
    return replace(calibration, given_tensors=tuple(calibration.ranges))


def _measure_missing_ranges(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.UseRanges
) -> tuple[Calibration, str]:
    """Returns the requested calibration with its missing ranges measured, and the range method of the measured ranges.

    The range method is "" if no range is missing. A file of another tool contains only the ranges that its own layers
    read. Other configs of the network need more.
    """
    calibration, options = request.calibration, workspace.options
    missing = [tensor for tensor in workspace.network.calibrated_tensors if tensor not in calibration.ranges]
    if not missing:
        return calibration, ""
    measured_calibration = measure_ranges(workspace, store, reporter, options.calib_method)
    count = len(workspace.network.calibrated_tensors)
    reporter.log(
        f"{request.config_name or 'The session'} has ranges for {count - len(missing)} of "
        f"{counted_noun_text(count, 'tensor')}. The others are measured ({measured_calibration.method}) on "
        f"{workspace.calibration_samples.source}: {name_list_text(missing, 3)}.",
        "note",
    )
    return _fill_missing_ranges(calibration, measured_calibration), measured_calibration.method


def _fill_missing_ranges(calibration: Calibration, measured_calibration: Calibration) -> Calibration:
    """Returns a calibration with measured ranges for the tensors that it lacks."""
    other_ranges = {
        precision: {tensor: amax for tensor, amax in type_ranges.items() if tensor not in calibration.ranges}
        for precision, type_ranges in measured_calibration.ranges_by_type.items()
    }
    return replace(
        calibration,
        ranges={**measured_calibration.ranges, **calibration.ranges},
        ranges_by_type={
            precision: {**other_ranges.get(precision, {}), **calibration.ranges_by_type.get(precision, {})}
            for precision in (*other_ranges, *calibration.ranges_by_type)
        },
    )


def ensure_ranges(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, configs: Collection[PrecisionConfig]
) -> None:
    """Calibrates the network if a config needs ranges and there are none yet."""
    if workspace.calibration is None and any(quantizes_activations(workspace.network, config) for config in configs):
        method = workspace.options.calib_method
        if method not in RANGE_METHODS:
            raise InputError(
                f"unknown calibration method {method}",
                f"available: {', '.join(RANGE_METHODS)}",
                "Choose one with --calib-method.",
            )
        if (cache := workspace.options.calib_cache) is not None:
            _calibrate_from_cache(workspace, store, reporter, cache, method)
        else:
            workspace.calibration = measure_ranges(workspace, store, reporter, method)
            reporter.send(ev.CalibrationReady(reporter.job, workspace.calibration))
            if warning := workspace.data_sets.calibration_warning:
                reporter.log(warning, "warning")
            _write_new_calib_cache(workspace, reporter, workspace.calibration)
            _send_measured_range_facts(workspace, reporter, workspace.calibration)
        unsupported_types = [
            quantized_type
            for quantized_type in TYPES_WITH_OWN_RANGES
            if method not in list_range_methods(quantized_type)
            and any(
                config.precision_of(group) is quantized_type.precision
                for config in configs
                for group in workspace.network.groups
            )
        ]
        for quantized_type in unsupported_types:
            reporter.log(
                f"The method {method} is not defined for {quantized_type.precision.label}, whose "
                "steps grow with the value: its layers use minmax.",
                "warning",
            )


def measure_ranges(workspace: Workspace, store: ResultStore, reporter: JobReporter, method: str) -> Calibration:
    """Returns the ranges measured on the calibration data. Stored ranges are not measured again."""
    network, source = workspace.network, workspace.calibration_samples
    sha256 = workspace.fingerprint.sha256 if workspace.fingerprint is not None else store.network_sha256(network)
    key = FileCache.make_key(
        "calibration",
        sha256,
        source.hash_inputs(),
        len(source),
        method,
        workspace.backend.version,
        network.calibrated_tensors,
        [quantized_type.precision.value for quantized_type in TYPES_WITH_OWN_RANGES],
    )
    calibration = store.results.get(key, Calibration)
    if calibration is None:
        executor = get_executor(workspace, reporter)
        calibration = calibrate(
            network.model,
            network.calibrated_tensors,
            source,
            workspace.backend,
            method=method,
            progress=reporter.make_progress_callback(f"calibrating ({method})", executor=executor),
            executor=executor,
        )
        workspace.require_unchanged_files()
        store.results.put(key, calibration)
    return calibration


def collect_ranges_for_export(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    config: PrecisionConfig,
    config_calibration: Calibration | None,
) -> tuple[Mapping[str, float], str]:
    """Returns the ranges by tensor for an export of a config, and the reason why they needed no data; "" if they did.

    The arguments and the reason are those of `collect_calibration_for_export`. The ranges that the config sets itself
    are included.
    """
    calibration, no_data_reason = collect_calibration_for_export(workspace, store, reporter, config, config_calibration)
    return add_ranges_set_by_config(calibration.range_table, config), no_data_reason


def add_ranges_set_by_config(ranges: Mapping[str, float], config: PrecisionConfig) -> Mapping[str, float]:
    """Returns ranges by tensor. A tensor that lacks a range gets the range that the config sets for it."""
    return override_ranges(
        ranges, {tensor: move.amax for tensor, move in config.range_moves.items() if tensor not in ranges}
    )


def collect_calibration_for_export(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    config: PrecisionConfig,
    config_calibration: Calibration | None,
    *,
    all_tensors: bool = False,
    needs_ranges: bool = True,
) -> tuple[Calibration, str]:
    """Returns the calibration for an export of a config, and the reason why it needed no data; "" if it did.

    Args:
        config_calibration: The ranges of the config file, as in `trt_tui.jobs.requests.WrittenConfig`; None to use the
            ranges of the workspace.
        all_tensors: True for the ranges of every tensor that could be quantized; False for those that the config
            quantizes.
        needs_ranges: False if the export can lack ranges. Without data, missing ranges are then left out.

    Raises:
        InputError: There are neither ranges nor data, or they cannot be used.
    """
    if config_calibration is None:
        ensure_ranges(workspace, store, reporter, [config])
        return workspace.calibration or Calibration(), ""
    options, network, calibration = workspace.options, workspace.network, config_calibration
    has_facts = False
    if options.calib_cache is not None:
        cache_ranges = _read_matching_cache_ranges(workspace, reporter, options.calib_cache)
        calibration = replace(
            calibration.with_ranges(cache_ranges),
            method=read_calibration_cache_header(options.calib_cache).range_method,
        )
        fill_method = (
            options.calib_method
            if set(network.calibrated_tensors) - calibration.ranges.keys() and options.has_data
            else ""
        )
        has_facts = send_cached_range_facts(workspace, reporter, options.calib_cache, cache_ranges, fill_method)
    needed = {
        site.tensor
        for group in network.groups
        for site in (
            group.activation_qdq_sites() if all_tensors else group.calibrated_qdq_sites(config.precision_of(group))
        )
    }
    missing = sorted(needed - calibration.ranges.keys() - config.range_moves.keys())
    if options.new_calib_cache is not None and needed:
        measured_calibration = measure_ranges(workspace, store, reporter, options.calib_method)
        known_ranges = {} if missing else calibration.ranges
        _write_new_calib_cache(
            workspace,
            reporter,
            replace(
                measured_calibration,
                ranges={**measured_calibration.ranges, **known_ranges},
                method=calibration.method if known_ranges else measured_calibration.method,
            ),
        )
    if not missing:
        reason = "the ranges are known" if calibration.ranges or config.range_moves else "no layer needs a range"
        return calibration, "" if has_facts else reason
    if not options.has_data and not needs_ranges:
        return calibration, ""
    if not options.has_data:
        requested_precisions = {config.precision_of(group) for group in network.groups}
        labels = [
            quantized_type.precision.label
            for quantized_type in TYPES_WITH_RANGES
            if quantized_type.precision in requested_precisions
        ]
        raise InputError(
            f"{' and '.join(labels) or 'A calibration cache'} needs ranges",
            f"none for {name_list_text(missing, 1)}",
            "Give --calib-data or --data to calibrate on, or --calib-cache.",
        )
    measured_calibration = measure_ranges(workspace, store, reporter, options.calib_method)
    if options.calib_cache is not None:
        return replace(measured_calibration.with_ranges(calibration.ranges), method=calibration.method), ""
    _send_measured_range_facts(workspace, reporter, measured_calibration)
    return _fill_missing_ranges(calibration, measured_calibration) if calibration.ranges else measured_calibration, ""


def _send_measured_range_facts(workspace: Workspace, reporter: JobReporter, calibration: Calibration) -> None:
    send_range_facts(
        workspace,
        reporter,
        RangeFacts(MEASURED_SOURCE, workspace.calibration_samples.source, calibration.method, calibration.samples),
        calibration.ranges,
    )


def _write_new_calib_cache(workspace: Workspace, reporter: JobReporter, calibration: Calibration) -> None:
    """Writes the calibration cache that ``--calib-cache`` names, if the file does not exist.

    The cache holds the calibrated ranges without the moves of a config, as the export of an INT8 config writes them. A
    run that reads the cache therefore has the same ranges before moves. If another program has created the file in the
    meantime, the file is kept.

    Raises:
        InputError: The file cannot be written.
    """
    cache_path = workspace.options.new_calib_cache
    if cache_path is None:
        return
    text = config_calibration_cache_text(workspace.network, PrecisionConfig(), calibration.ranges, calibration.method)
    if os.path.exists(cache_path):
        with contextlib.suppress(InputError):
            if read_text(Path(cache_path)) == text:
                return
        reporter.log(
            f"{cache_path} exists now and was not replaced. The ranges in use are others: "
            "they were calibrated before the file appeared.",
            "warning",
        )
        return
    write_file_atomically(cache_path, text)
    reporter.log(
        f"Wrote {cache_path} with the ranges of {counted_noun_text(text.count(chr(10)) - 1, 'tensor')}.", "note"
    )


def _read_matching_cache_ranges(workspace: Workspace, reporter: JobReporter, cache_path: str) -> dict[str, float]:
    """Reads a calibration cache. Returns the ranges of the network's tensors, and warns about all other entries."""
    cache_ranges, warnings = select_network_ranges(
        read_calibration_cache(cache_path), workspace.network.calibrated_tensors
    )
    for warning in warnings:
        reporter.log(warning, "warning")
    return cache_ranges


def _calibrate_from_cache(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    cache_path: str,
    method: str,
    config_calibration: Calibration | None = None,
) -> None:
    """Sets the ranges of a calibration cache as the ranges in use.

    A tensor without an entry in the cache gets the range of the config, or a measured range if there is data.
    """
    options, activations = workspace.options, workspace.network.calibrated_tensors
    cache_ranges = _read_matching_cache_ranges(workspace, reporter, cache_path)
    other_calibration = config_calibration
    if other_calibration is None and options.has_data and set(activations) - set(cache_ranges):
        other_calibration = measure_ranges(workspace, store, reporter, method)
    if other_calibration is None:
        other_calibration = Calibration("cache", 0, "", {})
    workspace.calibration = other_calibration.with_ranges(cache_ranges)
    reporter.send(ev.CalibrationReady(reporter.job, workspace.calibration))
    send_cached_range_facts(
        workspace,
        reporter,
        cache_path,
        cache_ranges,
        other_calibration.method if other_calibration.ranges.keys() - cache_ranges.keys() else "",
    )


def send_cached_range_facts(
    workspace: Workspace, reporter: JobReporter, cache_path: str, ranges: Mapping[str, float], missing_range_method: str
) -> bool:
    """Sends the guard facts of ranges from a calibration cache. Returns True if the ranges were compared with samples.

    Args:
        ranges: The ranges of the cache that match the network.
        missing_range_method: The range method of tensors without an entry in the cache; "" if every tensor has one.
    """
    builder, header, method = (
        workspace.builder,
        read_calibration_cache_header(cache_path),
        workspace.options.calib_method,
    )
    uses_cache = builder is not None and builder.name == "tensorrt" and int(builder.version.partition(".")[0]) < 11
    return send_range_facts(
        workspace,
        reporter,
        RangeFacts(
            CACHE_SOURCE,
            Path(cache_path).name,
            header.range_method,
            cache_header=header,
            fallback_method=missing_range_method,
            requested_method=method if method != RANGE_METHODS[0] else "",
            builder_release=builder.version if builder is not None and uses_cache else "",
        ),
        ranges,
    )


def send_range_facts(
    workspace: Workspace, reporter: JobReporter, range_facts: RangeFacts, ranges: Mapping[str, float]
) -> bool:
    """Sends the guard facts of the ranges in use. Returns True if the ranges were compared with samples.

    Ranges from a cache or a config are compared with the samples, if there are samples.
    """
    sampled = range_facts.source != MEASURED_SOURCE and workspace.options.has_data and bool(ranges)
    if sampled:
        try:
            off, compared, count = find_mismatched_ranges(
                workspace.network.model,
                ranges,
                workspace.calibration_samples,
                workspace.backend,
                method_clips=range_facts.method != RANGE_METHODS[0],
                progress=reporter.make_progress_callback("comparing ranges with the samples"),
            )
            range_facts = replace(range_facts, mismatches=off, compared_tensors=compared, checked_samples=count)
        except InputError as error:
            reporter.log(f"The ranges are not compared with the samples. {error.title}: {error.cause}")
    reporter.send(
        ev.GuardFactsMeasured(
            reporter.job,
            GuardFacts(
                has_random_inputs=workspace.options.data is None and workspace.options.calib_data is None,
                range_facts=range_facts,
            ),
        )
    )
    return sampled


def run_tensor_stats_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.MeasureTensorStats
) -> Steps[None]:
    """Measures and sends the details of some groups. The causes of their loss are found from these details.

    The details are the statistics of inputs and results, the dominant channels of weights, and further facts.
    """
    network = workspace.network
    groups = [network.get_group(name) for name in dict.fromkeys((request.group, *request.other_groups))]
    tensors_by_group: dict[str, list[str]] = {}
    axes: dict[str, int] = {}
    for group in groups:
        tensor_names = (*(site.tensor for site in group.activation_qdq_sites()), *group.inputs[:2], group.final_tensor)
        tensors_by_group[group.name] = [
            tensor
            for tensor in dict.fromkeys(tensor_names)
            if network.is_fp32(tensor) and tensor not in network.blocking_plugins
        ]
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
                network.model,
                tensors,
                workspace.calibration_samples,
                workspace.backend,
                channel_axes=axes,
                progress=progress,
                executor=get_executor(workspace, reporter),
            )
        except NonFiniteTensorError as error:  # a mask of -Inf is no error if nothing quantizes it
            if error.tensor in axes or error.tensor not in tensors:
                raise
            tensors.remove(error.tensor)
    workspace.statistics.update(stats)
    value_ranges = collect_value_ranges(
        network,
        groups,
        workspace.calibration_samples,
        workspace.backend,
        progress=progress,
        executor=get_executor(workspace, reporter),
    )
    for group in groups:
        weights = {
            site.tensor: DominantChannels.from_channel_amaxes(site.axis, network.constant_amax(site.tensor, site.axis))
            for site in group.weight_qdq_sites()
            if site.axis is not None
        }
        facts = measure_group_facts(
            network, group, value_ranges[group.name], workspace.calibration_samples, workspace.backend
        )
        tensors_of_group = {tensor: stats[tensor] for tensor in tensors_by_group[group.name] if tensor in stats}
        reporter.send_value(
            GROUP_DETAILS,
            group.name,
            GroupDetails(tensors_of_group, {tensor: top for tensor, top in weights.items() if top is not None}, facts),
        )
    yield Urgency.TENSOR_STATS


def measure_ranges_by_method(
    workspace: Workspace,
    reporter: JobReporter,
    groups: Iterable[FusionGroup],
    config: PrecisionConfig,
    *,
    in_separate_pass: bool = False,
) -> dict[str, dict[str, float]]:
    """Returns the range (amax) that each range method gives to the activations of some groups, by tensor and method.

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
    _measure_missing_statistics(workspace, reporter, tensors, tensor_stats, "other ranges")
    return {tensor: tensor_stats[tensor].amax_by_range_method(precision) for tensor, precision in tensors.items()}


def _measure_missing_statistics(
    workspace: Workspace, reporter: JobReporter, tensors: Iterable[str], known: dict[str, TensorStats], phase: str
) -> None:
    """Adds the statistics of some tensors to the known ones."""
    if missing := [tensor for tensor in tensors if tensor not in known]:
        executor = get_executor(workspace, reporter)
        known |= collect_tensor_stats(
            workspace.network.model,
            missing,
            workspace.calibration_samples,
            workspace.backend,
            progress=reporter.make_progress_callback(phase, is_preemptible=True, executor=executor),
            executor=executor,
        )


def run_set_ranges_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.SetRanges
) -> Steps[None]:
    """Sends the requested range of each tensor. If a request names a method instead of a number, the tensor is
    measured."""
    network, config = workspace.network, request.config
    ranges: dict[str, tuple[int, str]] = {}  # the last entry that names a tensor sets its range
    for index, (name, text) in enumerate(request.ranges):
        tensors = find_named_tensors(network, name)
        parse_amax(text)
        ranges |= dict.fromkeys(tensors, (index, text))
        if tensors != (name,):
            reporter.log(
                f"{name} names {counted_noun_text(len(tensors), 'tensor')} with the range "
                f"{text}: {name_list_text(tensors, 3)}.",
                "note",
            )
    effective = {index for index, _ in ranges.values()}
    for index, (name, text) in enumerate(request.ranges):
        if index not in effective:
            reporter.log(
                f"--range {name}={text} has no effect: later ranges replace it. Put the "
                "range of fewer tensors behind that of more.",
                "warning",
            )
    measured = (tensor for tensor, (_, text) in ranges.items() if parse_amax(text) is None)
    _measure_missing_statistics(workspace, reporter, measured, workspace.statistics, "activation statistics")
    quantized_types = {
        site.tensor: QUANTIZED_TYPES.get(config.precision_of(group), INT8)
        for group in network.groups
        for site in group.activation_qdq_sites()
    }
    moves = {}
    for tensor, (_, text) in ranges.items():
        amax = parse_amax(text)
        moves[tensor] = (
            RangeMove(amax, "user")
            if amax is not None
            else RangeMove(resolve_amax_text(text, workspace.statistics[tensor], quantized_types[tensor]), text.lower())
        )
    reporter.send(ev.RequestedRangesReady(reporter.job, moves))
    yield from ()
