"""Warnings about coordinates and angles for which a 16-bit float type is too coarse.

Rule: half a step (ulp) of the float type at the largest coordinate may move a sampling point by at most 1/32 pixel. For
an angle the limit is 1/32 radian, which is 3 % of the amplitude of a sine. A grid of GridSample has values between -1
and 1. With W pixels, half an FP16 step below 1 is 2^-12, which moves the point by W / 2^13 pixels. So a W above 256
exceeds the limit.

Coordinates are the grid of GridSample, the computed region or factors of Resize, the boxes of RoiAlign, and the inputs
of Sin and Cos (rotary and sinusoidal positions). The search walks back from there through copies, and through additions
and multiplications by constants, as long as the effect of a rounded value on the coordinate is known.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.rulebook import find_boundary_type
from trt_tui.core.measure.results import CoordinateShift, GroupErrors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.folded_shapes import build_outline_for_input_sizes
from trt_tui.core.network.layers import Layer, Shape
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import COPIES
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError

MAX_COORDINATE_SHIFT = 1 / 32
"""The maximum shift of a sampling point in pixels, or of an angle in radians."""

_MANTISSA_BITS = {Precision.FP16: 10, Precision.BF16: 7}
_MIN_EXPONENTS = {Precision.FP16: -14, Precision.BF16: -126}

_ERROR_PRESERVING_OPERATORS = COPIES | {"Add", "Sub", "Neg", "Sum", "Min", "Max", "Clip", "Where"}
"""Operators whose output has the same absolute error as their input."""

class ShapeSource(Protocol):
    """The network and the samples from which shapes are inferred."""

    network: Network
    samples: Samples


ShapesCallback = Callable[[], Mapping[str, Shape | None]]
"""Returns the shapes of tensors for the input sizes of the samples. It is called for sizes that the file leaves open.
"""


@dataclass(frozen=True)
class _CoordinateTensor:
    """A tensor that a layer reads as a coordinate, or from which such a coordinate is computed.

    Attributes:
        reading_layer: The layer that reads the coordinate.
        shift_per_unit: Pixels or radians by which the sampling point moves if the tensor changes by 1.
        unit: ``pixels`` or ``radians``.
        max_magnitude: The magnitude beyond which a larger value does not move the point further.
        is_relative: True if ``shift_per_unit`` applies to the error relative to the tensor's magnitude.
        default_magnitude: The magnitude to assume if none was measured; None if there is no such magnitude.
    """

    tensor: str
    reading_layer: Layer
    shift_per_unit: float
    unit: str = "pixels"
    max_magnitude: float = math.inf
    is_relative: bool = False
    default_magnitude: float | None = None


def max_rounding_error(magnitude: float, precision: Precision) -> float:
    """Returns the largest rounding error of a 16-bit float type for values up to a magnitude: half a step of the type.
    """
    exponent = math.ceil(math.log2(magnitude)) - 1 if magnitude > 0 else _MIN_EXPONENTS[precision]
    return float(2.0 ** (max(exponent, _MIN_EXPONENTS[precision]) - _MANTISSA_BITS[precision] - 1))


def find_coordinate_shifts(network: Network, config: PrecisionConfig, magnitudes: Mapping[str, float],
                           get_shapes: ShapesCallback) -> dict[str, CoordinateShift]:
    """Returns the coordinates that a 16-bit type rounds too coarsely, by the name of the rounding group.

    Args:
        magnitudes: The largest magnitude of each tensor in FP32.
    """
    worst: dict[str, CoordinateShift] = {}
    for layer in network.layers:
        for coordinate in _find_coordinate_inputs(network, layer, get_shapes):
            for group_name, precision, step, shift in _estimate_coordinate_shifts(network, config, coordinate,
                                                                                  magnitudes):
                if shift > max(MAX_COORDINATE_SHIFT, worst[group_name].shift if group_name in worst else 0.0):
                    worst[group_name] = CoordinateShift(precision, step, shift, coordinate.unit,
                                                        f"{layer.op_type} {layer.name}")
    return worst


def add_coordinate_shifts(errors_by_group: Mapping[str, GroupErrors],
                          shifts_by_group: Mapping[str, CoordinateShift]) -> dict[str, GroupErrors]:
    """Returns the errors at groups with their coordinate shifts, which are the warning of a group without another
    one."""
    return {
        name: replace(group_errors, coordinate_shift=shifts_by_group[name],
                      warning=group_errors.warning or shifts_by_group[name].warning_text)
        if name in shifts_by_group else group_errors
        for name, group_errors in errors_by_group.items()
    }


def infer_shapes_of_first_feed(shape_source: ShapeSource) -> Mapping[str, Shape | None]:
    """Returns the shapes of group results and of first layer outputs for the input sizes of the first feed."""
    return build_outline_for_input_sizes(shape_source.network,
                                         {name: array.shape
                                          for name, array in shape_source.samples.read_full_feed(0).items()}).shapes


def _find_coordinate_inputs(network: Network, layer: Layer, get_shapes: ShapesCallback) -> Iterator[_CoordinateTensor]:
    """Yields the inputs that a layer reads as coordinates or angles."""
    if layer.domain not in ("", "ai.onnx"):
        return
    if layer.op_type in ("Sin", "Cos"):
        yield _CoordinateTensor(layer.inputs[0], layer, 1.0, "radians")
        return
    if layer.op_type == "RoiAlign":
        scale = network.node(layer.name).attributes.get_float("spatial_scale", 1.0)
        yield _CoordinateTensor(layer.inputs[1], layer, scale)
        return
    if layer.op_type not in ("GridSample", "Resize", "Upsample"):
        return
    pixels = _find_largest_spatial_size(network, layer.inputs[0], get_shapes)
    if pixels is None:
        return
    attributes = network.node(layer.name).attributes
    if layer.op_type == "GridSample":
        width = pixels - 1 if attributes.get_int("align_corners", 0) else pixels
        reflected = attributes.get_string("padding_mode", "zeros") == "reflection"
        yield _CoordinateTensor(layer.inputs[1], layer, width / 2, max_magnitude=math.inf if reflected else 1.0,
                                default_magnitude=1.0)
        return
    for index, tensor in enumerate(layer.inputs):
        if not tensor or not network.is_float(tensor) or tensor in network.static_tensors:
            continue
        if layer.op_type == "Resize" and index == 1:
            yield _CoordinateTensor(tensor, layer, pixels - 1)
        elif index == (2 if layer.op_type == "Resize" else 1):
            yield _CoordinateTensor(tensor, layer, pixels, is_relative=True)


def _find_largest_spatial_size(network: Network, tensor: str, get_shapes: ShapesCallback) -> int | None:
    """Returns the largest size of a tensor behind the batch and channel axes; None if a size is unknown."""
    shape = network.shape(tensor)
    if shape is None or not all(isinstance(size, int) for size in shape[2:]):
        shape = get_shapes().get(tensor)
    known_sizes = [size for size in (shape or ())[2:] if isinstance(size, int)]
    return max(known_sizes) if shape is not None and known_sizes and len(known_sizes) == len(shape) - 2 else None


def _estimate_coordinate_shifts(network: Network, config: PrecisionConfig, coordinate: _CoordinateTensor,
                                magnitudes: Mapping[str, float]) -> Iterator[tuple[str, Precision, float, float]]:
    """Yields the shift of a sampling point by each group that rounds the coordinate, or a value that it is computed
    from.

    An item has the group's name, its float type, the magnitude of the rounded value, and the shift in the coordinate's
    unit.
    """
    waiting, visited = [coordinate], set()
    while waiting:
        traced = waiting.pop()
        if traced.tensor in visited:
            continue
        visited.add(traced.tensor)
        maker = network.producer.get(traced.tensor, "")
        magnitude = _find_coordinate_magnitude(network, traced, magnitudes)
        rounding = [network.find_group(maker) if maker and traced.tensor not in network.static_tensors else None,
                    network.find_group(traced.reading_layer.name) if traced is coordinate else None]
        for group in rounding:
            if group is None or magnitude is None:
                continue
            precision = find_boundary_type(group, config.precision_of(group), config.other)
            if precision in _MANTISSA_BITS:
                rounded_magnitude = min(magnitude, traced.max_magnitude)
                step = max_rounding_error(rounded_magnitude, precision)
                yield group.name, precision, rounded_magnitude, traced.shift_per_unit * (step / rounded_magnitude if
                                                                                         traced.is_relative else step)
        if maker and traced.tensor not in network.static_tensors and not traced.is_relative:
            waiting.extend(_find_sources_of_coordinate(network, network.get_layer(maker), traced))


def _find_sources_of_coordinate(network: Network, layer: Layer,
                                coordinate: _CoordinateTensor) -> Iterator[_CoordinateTensor]:
    """Yields the tensors from which a layer computes a coordinate, as far as the effect of their error is known."""
    if layer.domain not in ("", "ai.onnx"):
        return
    float_inputs = [tensor for tensor in layer.inputs if tensor and network.is_float(tensor)]
    computed = [tensor for tensor in float_inputs if tensor not in network.static_tensors]
    gain = 1.0
    if layer.op_type in ("Mul", "Div"):
        constant = next((tensor for tensor in float_inputs if tensor not in computed), "")
        factors = _read_constant_magnitudes(network, constant) if len(computed) == 1 else None
        if factors is None or not factors.size or not factors.all():
            return
        if layer.op_type == "Div" and computed[0] != layer.inputs[0]:
            return
        # Each axis has a factor that goes with its size. The largest size is assumed, so the smallest gain is used.
        gain = float(factors.min() if layer.op_type == "Mul" else 1 / factors.max())
    elif layer.op_type not in _ERROR_PRESERVING_OPERATORS:
        return
    for tensor in computed:
        yield replace(coordinate, tensor=tensor, shift_per_unit=coordinate.shift_per_unit * gain,
                      max_magnitude=math.inf, default_magnitude=None)


def _find_coordinate_magnitude(network: Network, coordinate: _CoordinateTensor,
                               magnitudes: Mapping[str, float]) -> float | None:
    """Returns the largest magnitude of a coordinate; None if it is unknown, not finite or 0."""
    measured = magnitudes.get(coordinate.tensor)
    if measured is None and (values := _read_constant_magnitudes(network, coordinate.tensor)) is not None:
        measured = float(values.max(initial=0.0))
    if measured is None:
        measured = coordinate.default_magnitude
    return measured if measured and math.isfinite(measured) else None


def _read_constant_magnitudes(network: Network, tensor: str) -> np.ndarray | None:
    """Returns the magnitudes of a constant; None if the tensor is not a constant or its value cannot be computed."""
    if tensor not in network.constant_tensors:
        return None
    try:
        magnitudes: np.ndarray = np.abs(network.constant_value(tensor))
    except TrtTuiError:
        return None
    return magnitudes
