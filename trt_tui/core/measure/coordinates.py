"""Warns of coordinates and angles that 16-bit floats hold too coarsely.

Rule: half a step (ulp) of the float type at the largest coordinate may move a sampling point by 1/32 pixel at most, and
an angle by 1/32 radian, which is 3 % of the amplitude of a sine. A grid of GridSample lies between -1 and 1: with W
pixels, half an FP16 step below 1 is 2^-12, which moves the point by W / 2^13 pixels. So W above 256 is too much.

Coordinates are the grid of GridSample, the computed region or factors of Resize, the boxes of RoiAlign, and what Sin
and Cos read (rotary and sinusoidal positions). From there the search walks back through copies and through additions
and multiplications by constants, as long as the effect of a rounded value on the coordinate is known.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.rules import surrounding
from trt_tui.core.measure.comparison import GroupErrors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Layer, Shape
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import COPIES
from trt_tui.core.network.sizes import sized
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.words import number

MAX_SHIFT = 1 / 32
"""In pixels, or in radians."""

_MANTISSA_BITS = {Precision.FP16: 10, Precision.BF16: 7}
_MIN_EXPONENTS = {Precision.FP16: -14, Precision.BF16: -126}

_UNCHANGED = COPIES | {"Add", "Sub", "Neg", "Sum", "Min", "Max", "Clip", "Where"}
"""Operators that hand on the error of an input as it is."""

class Measured(Protocol):
    """What shapes are taken of."""

    network: Network
    samples: Samples


Sizes = Callable[[], Mapping[str, Shape | None]]
"""Shapes of tensors whose sizes the file leaves open, as the samples have them."""


@dataclass(frozen=True)
class _Coordinate:
    """A tensor that is read as a coordinate, or from which one is computed.

    Attributes:
        reader: The layer that reads the coordinate.
        per_unit: Pixels or radians by which the point moves where the tensor changes by 1.
        unit: ``pixels`` or ``radians``.
        limit: Magnitudes beyond this make no difference.
        relative: The error counts as a share of the tensor's magnitude.
        default: The magnitude if none was measured; None if that is not known.
    """

    tensor: str
    reader: Layer
    per_unit: float
    unit: str = "pixels"
    limit: float = math.inf
    relative: bool = False
    default: float | None = None


def half_step(magnitude: float, precision: Precision) -> float:
    """Returns half the distance of neighbouring numbers of a 16-bit type, at or just below a magnitude."""
    exponent = math.ceil(math.log2(magnitude)) - 1 if magnitude > 0 else _MIN_EXPONENTS[precision]
    return float(2.0 ** (max(exponent, _MIN_EXPONENTS[precision]) - _MANTISSA_BITS[precision] - 1))


def coordinate_warnings(network: Network, config: PrecisionConfig, magnitudes: Mapping[str, float], sizes: Sizes
                        ) -> dict[str, str]:
    """Returns what is to be warned of, by the name of the group that rounds the coordinate.

    Args:
        magnitudes: The largest magnitude of each tensor in FP32.
    """
    worst: dict[str, tuple[float, str]] = {}
    for layer in network.layers:
        for coordinate in _coordinates(network, layer, sizes):
            for group_name, precision, step, shift in _shifts(network, config, coordinate, magnitudes):
                if shift > max(MAX_SHIFT, worst.get(group_name, (0.0, ""))[0]):
                    what = "angles" if coordinate.unit == "radians" else "sampling points"
                    worst[group_name] = shift, (
                        f"half a step of {precision.label} at {number(step)} moves the {what} of {layer.op_type} "
                        f"{layer.name} by up to {number(shift)} {coordinate.unit} (more than 1/32); FP32 avoids it")
    return {name: text for name, (_, text) in worst.items()}


def with_coordinates(errors: Mapping[str, GroupErrors], warnings: Mapping[str, str]) -> dict[str, GroupErrors]:
    """Returns the errors at groups, with a warning of coordinates where there is no other."""
    return {name: replace(one, warning=warnings[name]) if name in warnings and not one.warning else one
            for name, one in errors.items()}


def sample_shapes(analysis: Measured) -> Mapping[str, Shape | None]:
    """Returns the shapes of the groups' results and of the layers' first outputs, as they are for the first feed."""
    return sized(analysis.network, {name: array.shape for name, array in analysis.samples.feed(0).items()}).shapes


def _coordinates(network: Network, layer: Layer, sizes: Sizes) -> Iterator[_Coordinate]:
    """Yields the coordinates that a layer reads."""
    if layer.domain not in ("", "ai.onnx"):
        return
    if layer.op_type in ("Sin", "Cos"):
        yield _Coordinate(layer.inputs[0], layer, 1.0, "radians")
        return
    if layer.op_type == "RoiAlign":
        scale = network.node(layer.name).attributes.get_float("spatial_scale", 1.0)
        yield _Coordinate(layer.inputs[1], layer, scale)
        return
    if layer.op_type not in ("GridSample", "Resize", "Upsample"):
        return
    pixels = _largest_size(network, layer.inputs[0], sizes)
    if pixels is None:
        return
    attributes = network.node(layer.name).attributes
    if layer.op_type == "GridSample":
        width = pixels - 1 if attributes.get_int("align_corners", 0) else pixels
        reflected = attributes.get_string("padding_mode", "zeros") == "reflection"
        yield _Coordinate(layer.inputs[1], layer, width / 2, limit=math.inf if reflected else 1.0, default=1.0)
        return
    for place, tensor in enumerate(layer.inputs):
        if not tensor or not network.is_float(tensor) or tensor in network.static:
            continue
        if layer.op_type == "Resize" and place == 1:
            yield _Coordinate(tensor, layer, pixels - 1)
        elif place == (2 if layer.op_type == "Resize" else 1):
            yield _Coordinate(tensor, layer, pixels, relative=True)


def _largest_size(network: Network, tensor: str, sizes: Sizes) -> int | None:
    """Returns the largest size behind batch and channels; None where one is not known."""
    shape = network.shape(tensor)
    if shape is None or not all(isinstance(size, int) for size in shape[2:]):
        shape = sizes().get(tensor)
    known = [size for size in (shape or ())[2:] if isinstance(size, int)]
    return max(known) if shape is not None and known and len(known) == len(shape) - 2 else None


def _shifts(network: Network, config: PrecisionConfig, coordinate: _Coordinate, magnitudes: Mapping[str, float]
            ) -> Iterator[tuple[str, Precision, float, float]]:
    """Yields each group that rounds a coordinate or what it is computed from: its name, its float type, the magnitude
    and by how much the point moves."""
    waiting, seen = [coordinate], set()
    while waiting:
        one = waiting.pop()
        if one.tensor in seen:
            continue
        seen.add(one.tensor)
        maker = network.producer.get(one.tensor, "")
        magnitude = _magnitude(network, one, magnitudes)
        rounding = [network.group_of(maker) if maker and one.tensor not in network.static else None,
                    network.group_of(one.reader.name) if one is coordinate else None]
        for group in rounding:
            if group is None or magnitude is None:
                continue
            precision = surrounding(group, config.precision_of(group), config.other)
            if precision in _MANTISSA_BITS:
                at = min(magnitude, one.limit)
                step = half_step(at, precision)
                yield group.name, precision, at, one.per_unit * (step / at if one.relative else step)
        if maker and one.tensor not in network.static and not one.relative:
            waiting.extend(_computed_from(network, network.layer(maker), one))


def _computed_from(network: Network, layer: Layer, one: _Coordinate) -> Iterator[_Coordinate]:
    """Yields what a coordinate is computed from, as far as the effect of its error is known."""
    if layer.domain not in ("", "ai.onnx"):
        return
    floats = [tensor for tensor in layer.inputs if tensor and network.is_float(tensor)]
    computed = [tensor for tensor in floats if tensor not in network.static]
    gain = 1.0
    if layer.op_type in ("Mul", "Div"):
        constant = next((tensor for tensor in floats if tensor not in computed), "")
        factors = _constant(network, constant) if len(computed) == 1 else None
        if factors is None or not factors.size or not factors.all():
            return
        if layer.op_type == "Div" and computed[0] != layer.inputs[0]:
            return
        # A factor for each axis goes with the size of that axis, and sizes are taken as the largest one.
        gain = float(factors.min() if layer.op_type == "Mul" else 1 / factors.max())
    elif layer.op_type not in _UNCHANGED:
        return
    for tensor in computed:
        yield replace(one, tensor=tensor, per_unit=one.per_unit * gain, limit=math.inf, default=None)


def _magnitude(network: Network, one: _Coordinate, magnitudes: Mapping[str, float]) -> float | None:
    """Returns the largest magnitude of a coordinate; None where it is not known, not finite or 0."""
    measured = magnitudes.get(one.tensor)
    if measured is None and (values := _constant(network, one.tensor)) is not None:
        measured = float(values.max(initial=0.0))
    if measured is None:
        measured = one.default
    return measured if measured and math.isfinite(measured) else None


def _constant(network: Network, tensor: str) -> np.ndarray | None:
    """Returns the magnitudes of a constant; None if it is none, or cannot be computed here."""
    if tensor not in network.constants:
        return None
    try:
        magnitudes: np.ndarray = np.abs(network.constant(tensor))
    except TrtTuiError:
        return None
    return magnitudes
