"""What writing a config takes from the data: ranges to quantize with, and shapes to optimize for.

Data may be a user's script, so with data this runs in the child process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from trt_tui.backends.registry import get_backend
from trt_tui.core.calibration.cache import match_cache, read_cache
from trt_tui.core.calibration.calibrate import calibrate
from trt_tui.core.data.samples import Samples, load_samples, split
from trt_tui.core.data.shapes import ShapeRange, parse_shapes
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.jobs import messages as m
from trt_tui.workspace import profile_of


def prepare(network: Network, request: m.Prepare,
            progress: Callable[[int, int], None] | None = None) -> m.Prepared:
    """The ranges and the profile for a config.

    Args:
        network: The one that the request's options name.
        progress: Told how far calibrating is.

    Raises:
        InputError: there are neither ranges nor data, or they cannot be used.
    """
    options = request.options
    asked = parse_shapes(options.shapes, network.inputs) if options.shapes else {}
    load = partial(load_samples, inputs=network.inputs, batch=options.batch, seed=options.seed,
                   shapes={name: one.opt for name, one in asked.items()} or None)
    ranges, missing = known_ranges(network, request)
    if missing and not options.has_data:
        raise InputError("INT8 needs ranges", f"{len(missing)} tensors have none, {missing[0]} among them",
                         "Give --calib-data or --data to calibrate on, or --calib-cache.")
    wants_shapes = request.shapes and options.data is not None
    calibration: Samples | None = None
    judged: Samples | None = None
    if options.calib_data is not None and (missing or wants_shapes):
        calibration = load(options.calib_data)
    if options.data is not None and (wants_shapes or missing and calibration is None):
        sets = split(load(options.data, limit=options.samples), calibration)
        calibration, judged = sets.calibration, sets.judged
    if missing:
        measured = calibrate(network.model, network.activations, calibration, get_backend(),
                             method=options.calib_method, progress=progress).ranges
        ranges = {**measured, **ranges} if options.calib_cache is not None else dict(measured)
    shapes = {}
    if judged is not None and wants_shapes:
        shapes = {name: ShapeRange(*one) for name, one in profile_of(network, judged, range(len(judged))).items()}
    return m.Prepared(0, ranges, {**shapes, **asked})


def known_ranges(network: Network, request: m.Prepare,
                 warn: Callable[[str], None] = lambda text: None) -> tuple[Mapping[str, float], list[str]]:
    """The ranges that are known without data, and the tensors that lack one.

    Args:
        warn: Told what of a calibration cache fits nothing.
    """
    if not request.quantizes:
        return request.ranges, []
    config, known = request.config, request.ranges
    if request.options.calib_cache is not None:
        fitting, warnings = match_cache(read_cache(request.options.calib_cache), network.activations)
        for warning in warnings:
            warn(warning)
        known = {**known, **fitting}
    chosen: dict[str, float] = {}
    for (_, target), move in config.moves.items():
        move.adjust(chosen, (target,))
    known = {**chosen, **known}
    needed = {site.tensor for group in network.groups for site in group.activations()
              if request.every or config.precision_of(group) is Precision.INT8}
    return known, sorted(needed - set(known))
