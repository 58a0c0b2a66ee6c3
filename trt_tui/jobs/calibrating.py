"""The ranges that layers in INT8 and FP8 are quantized with: measured, or taken from a cache or a config."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from trt_tui.core.calibration.cache import match_cache, read_cache
from trt_tui.core.calibration.calibrate import Calibration, calibrate
from trt_tui.core.calibration.methods import OTHER_CODES, RANGE_METHODS, methods_of
from trt_tui.core.calibration.ranges import overridden
from trt_tui.core.codes import CODES
from trt_tui.core.guards.facts import CONFIG, MEASURED, RangeFacts
from trt_tui.core.lowering.lowered import quantizes
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.guarding import tell_of_cache, tell_of_ranges
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.spreading import hands_of
from trt_tui.jobs.steps import Steps
from trt_tui.jobs.store import FileCache, Store
from trt_tui.words import first_few
from trt_tui.workspace import Workspace


def run(workspace: Workspace, store: Store, report: Report, request: rq.Calibrate) -> Steps[None]:
    """Measures the ranges by a method, and sends those of some tensors as moves of a config."""
    found, network = measured(workspace, store, report, request.method), workspace.network
    kinds = {site.tensor: request.config.precision_of(group) for group in network.groups
             for site in group.activations()}
    moves = {tensor: RangeChoice(found.others.get(kinds[tensor].value, found.ranges).get(tensor, found.ranges[tensor]),
                                 request.method) for tensor in request.tensors if tensor in found.ranges}
    report.send(ev.RangesSet(report.job, moves))
    yield from ()


def use(workspace: Workspace, store: Store, report: Report, request: rq.UseRanges) -> Steps[None]:
    """Takes ranges as they are given."""
    options = workspace.options
    if options.calib_cache is not None and request.fill:
        _take_cache(workspace, store, report, options.calib_cache, options.calib_method, request.calibration)
    else:
        taken = request.calibration
        workspace.calibration, rest = _completed(workspace, store, report, request)
        report.send(ev.Calibrated(report.job, workspace.calibration))
        if request.name:
            tell_of_ranges(workspace, report, RangeFacts(CONFIG, request.name, taken.method, taken.samples, rest=rest),
                           taken.ranges)
    yield from ()


def _completed(workspace: Workspace, store: Store, report: Report, request: rq.UseRanges) -> tuple[Calibration, str]:
    """Returns given ranges with measured ones for the tensors that have none, and the method of these; "" if all have
    one. A file of another tool holds the ranges alone that its own layers read, and other configs read more."""
    given, options = request.calibration, workspace.options
    missing = [tensor for tensor in workspace.network.activations if tensor not in given.ranges]
    if not missing:
        return given, ""
    found = measured(workspace, store, report, options.calib_method)
    count = len(workspace.network.activations)
    report.send(ev.Note(report.job, f"{request.name or 'The session'} has ranges for {count - len(missing)} of {count} "
                                    f"tensors. The others are measured ({found.method}) on "
                                    f"{workspace.calibrating.source}: {first_few(missing, 3)}.", "note"))
    ranges = {tensor: given.ranges.get(tensor, amax) for tensor, amax in found.ranges.items()}
    others = {precision: {tensor: amax for tensor, amax in own.items() if tensor not in given.ranges}
              for precision, own in found.others.items()}
    return replace(given, ranges={**ranges, **given.ranges},
                   others={precision: {**others.get(precision, {}), **given.others.get(precision, {})}
                           for precision in (*others, *given.others)}), found.method


def ensure_ranges(workspace: Workspace, store: Store, report: Report, configs: Collection[PrecisionConfig]) -> None:
    """Calibrates if any of the configs needs ranges and there are none yet."""
    if workspace.calibration is None and any(quantizes(workspace.network, config) for config in configs):
        method = workspace.options.calib_method
        _calibrate(workspace, store, report, method)
        told = [code for code in OTHER_CODES if method not in methods_of(code) and any(
            config.precision_of(group) is code.precision for config in configs for group in workspace.network.groups)]
        for code in told:
            report.send(ev.Note(report.job, f"The {method} of 128 equal steps says nothing of {code.precision.label}, "
                                           f"whose steps grow with the value: layers in it take min-max.", "warning"))


def measured(workspace: Workspace, store: Store, report: Report, method: str) -> Calibration:
    """The ranges on the calibration data, from the store where they are known."""
    network, source = workspace.network, workspace.calibrating
    sha256 = workspace.source.sha256 if workspace.source is not None else store.network_sha256(network)
    key = FileCache.key("calibration", sha256, source.sha256(), len(source), method,
                        workspace.backend.version, network.activations, [code.precision.value for code in OTHER_CODES])
    calibration = store.results.get(key, Calibration)
    if calibration is None:
        hands = hands_of(workspace, report)
        calibration = calibrate(network.model, network.activations, source, workspace.backend, method=method,
                                progress=report.sweeping(f"calibrating ({method})", hands=hands), hands=hands)
        workspace.require_unchanged()
        store.results.put(key, calibration)
    return calibration


def ranges_to_write(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig,
                    given: Mapping[str, float] | None, *, every: bool = False) -> tuple[Mapping[str, float], str]:
    """The ranges that a config is written with, and why no data was needed for them ("" where it was).

    Args:
        given: See `trt_tui.jobs.requests.Export`.
        every: Of every tensor that could be quantized, whether or not the config does.

    Raises:
        InputError: there are neither ranges nor data, or they cannot be used.
    """
    if given is None:
        ensure_ranges(workspace, store, report, [config])
        return workspace.ranges, ""
    options, network = workspace.options, workspace.network
    known: Mapping[str, float] = overridden(given, {tensor: choice.amax for tensor, choice in config.ranges.items()
                                                    if tensor not in given})
    looked_at = False
    if options.calib_cache is not None:
        fitting = _read_cache(workspace, report, options.calib_cache)
        known = overridden(known, fitting)
        rest = options.calib_method if set(network.activations) - known.keys() and options.has_data else ""
        looked_at = tell_of_cache(workspace, report, options.calib_cache, fitting, rest)
    needed = {site.tensor for group in network.groups
              for site in (group.activations() if every else group.ranged(config.precision_of(group)))}
    missing = sorted(needed - known.keys())
    if not missing:
        why = "the ranges are known" if given or options.calib_cache else "nothing takes a range"
        return known, "" if looked_at else why
    if not options.has_data:
        asked = {config.precision_of(group) for group in network.groups}
        labels = [code.precision.label for code in CODES.values() if code.activations and code.precision in asked]
        raise InputError(f"{' and '.join(labels) or 'A calibration cache'} needs ranges",
                         f"{len(missing)} tensors have none, {missing[0]} among them",
                         "Give --calib-data or --data to calibrate on, or --calib-cache.")
    found = measured(workspace, store, report, options.calib_method)
    if options.calib_cache is not None:
        return overridden(found.by_codes, known), ""
    _tell_of_measured(workspace, report, found)
    return found.by_codes, ""


def _calibrate(workspace: Workspace, store: Store, report: Report, method: str) -> None:
    if method not in RANGE_METHODS:
        raise InputError(f"unknown calibration method {method}", f"there are: {', '.join(RANGE_METHODS)}",
                         "Choose one with --calib-method.")
    if (cache := workspace.options.calib_cache) is not None:
        _take_cache(workspace, store, report, cache, method)
        return
    workspace.calibration = measured(workspace, store, report, method)
    report.send(ev.Calibrated(report.job, workspace.calibration))
    _tell_of_measured(workspace, report, workspace.calibration)


def _tell_of_measured(workspace: Workspace, report: Report, found: Calibration) -> None:
    tell_of_ranges(workspace, report, RangeFacts(MEASURED, workspace.calibrating.source, found.method, found.samples),
                   found.ranges)


def _read_cache(workspace: Workspace, report: Report, path: str) -> dict[str, float]:
    """The ranges of a cache that fit the network; says what does not."""
    fitting, warnings = match_cache(read_cache(path), workspace.network.activations)
    for warning in warnings:
        report.send(ev.Note(report.job, warning, "warning"))
    return fitting


def _take_cache(workspace: Workspace, store: Store, report: Report, path: str, method: str,
                given: Calibration | None = None) -> None:
    """Takes the ranges of a cache; what it lacks is taken from a config, or calibrated where data are."""
    options, activations = workspace.options, workspace.network.activations
    fitting = _read_cache(workspace, report, path)
    rest = given
    if rest is None and options.has_data and set(activations) - set(fitting):
        rest = measured(workspace, store, report, method)
    if rest is None:
        rest = Calibration("cache", 0, "", {})
    others = {precision: {tensor: amax for tensor, amax in own.items() if tensor not in fitting}
              for precision, own in rest.others.items()}
    workspace.calibration = replace(rest, ranges={**rest.ranges, **fitting}, others=others)
    report.send(ev.Calibrated(report.job, workspace.calibration))
    tell_of_cache(workspace, report, path, fitting, rest.method if rest.ranges.keys() - fitting.keys() else "")
