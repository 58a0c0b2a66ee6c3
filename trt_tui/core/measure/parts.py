"""The parts that Concats make of a network's last tensor, also where reshapes and elementwise operators follow them.

A detector joins boxes and scores of several strides, often before a Sigmoid, a Split or a Reshape. Each input of such a
Concat is a part of the last tensor: a range of indices along some of its axes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import onnx_ir as ir

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import POINTWISE
from trt_tui.core.network.sizes import Shapes
from trt_tui.core.runner import Dimension

Sizes = tuple[Dimension, ...]
"""A shape as far as it is known."""

Extent = Mapping[int, tuple[int, int]]
"""Start and stop by axis; axes that are not in it are taken whole."""

_RESHAPES = frozenset("Reshape Flatten Squeeze Unsqueeze".split())
_CUTS = frozenset("Split Slice".split())
_AS_IT_IS = frozenset("Identity Dropout Cast".split())
FLOAT_TYPES = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
"""The types of what is judged by its error."""


@dataclass(frozen=True)
class _Axis:
    """How an axis of a tensor lies on an axis of the last one: index · ratio + shift."""

    last: int
    ratio: Fraction = Fraction(1)
    shift: Fraction = Fraction(0)

    def range(self, start: int, stop: int) -> tuple[int, int] | None:
        """Where a range lies; None if that is no whole number of indices."""
        ends = [index * self.ratio + self.shift for index in (start, stop)]
        if any(end.denominator != 1 for end in ends):
            return None
        return int(ends[0]), int(ends[1])


@dataclass(frozen=True)
class _Part:
    """A part of the last tensor, and what computes it.

    Attributes:
        source: The tensor that the search has come to; the part may be a range of it.
        axes: For each axis of ``source`` how it lies on the last tensor; None where it does not.
        origin: The tensor that is this part, as far back as there is one.
        depth: Concats between it and the last tensor.
    """

    source: str
    axes: tuple[_Axis | None, ...]
    origin: str
    ranges: Extent = field(default_factory=dict)
    depth: int = 0


def parts_of(network: Network, shapes: Shapes, tensor: str, most: int) -> list[tuple[Extent, str]]:
    """The parts of a tensor, each with the tensor it comes from; a single part if there is no Concat.

    Args:
        shapes: Those of the network's tensors.
        most: A Concat that would make more parts than this is not taken apart.
    """
    rank = len(shapes.get(tensor) or ())
    parts = [_Part(tensor, tuple(_Axis(axis) for axis in range(rank)), tensor)]
    waiting = list(parts)
    while waiting:
        part = min(waiting, key=lambda one: (one.depth, parts.index(one)))
        waiting.remove(part)
        place = parts.index(part)
        before = _walk(network, shapes, part, last=part.source == tensor)
        parts[place] = before
        pieces = _pieces(network, shapes, before)
        if pieces is not None and len(parts) - 1 + len(pieces) <= most:
            parts[place:place + 1] = pieces
            waiting += pieces
    return [(part.ranges, part.origin) for part in parts]


def _walk(network: Network, shapes: Shapes, part: _Part, last: bool) -> _Part:
    """Goes back through operators that compute each element from one element, while nothing else reads the tensor."""
    while part.source in network.producer and (last or _read_once(network, part.source)):
        layer = network.layer(network.producer[part.source])
        before = _step(network, shapes, layer, part)
        if before is None:
            break
        part, last = before, False
    return part


def _read_once(network: Network, tensor: str) -> bool:
    users = [network.layer(name) for name in network.consumers.get(tensor, ())]
    return len(users) == 1 or all(user.op_type in _CUTS or user.op_type == "Shape" for user in users)


def _step(network: Network, shapes: Shapes, layer: Layer, part: _Part) -> _Part | None:
    """The part as a part of what a layer reads; None if it cannot be followed through the layer."""
    dynamic = [name for name in layer.inputs if name and name not in network.static]
    if layer.domain != "" or len(dynamic) != 1 or dynamic[0] not in network.producer:
        return None
    source = dynamic[0]
    before, after = shapes.get(source), shapes.get(part.source)
    if before is None or after is None or network.value(source).dtype not in FLOAT_TYPES:
        return None
    exact = part.source == part.origin

    def moved(axes: Sequence[_Axis | None]) -> _Part:
        return replace(part, source=source, axes=tuple(axes), origin=source if exact else part.origin)

    if layer.op_type in POINTWISE | _AS_IT_IS:
        return moved(part.axes) if _same(before, after) else None
    if layer.op_type == "Transpose":
        attr = network.node(layer.name).attributes.get("perm")
        order = tuple(attr.as_ints()) if attr is not None else tuple(range(len(after)))[::-1]
        if sorted(order) != list(range(len(part.axes))):
            return None
        return moved([part.axes[order.index(axis)] for axis in range(len(order))])
    if layer.op_type in _RESHAPES:
        return moved(_reshaped(before, after, part.axes))
    if layer.op_type in _CUTS and len(before) == len(after):
        starts, ranges = _starts(network, shapes, layer, part.source, before), _known(part, before, after)
        if starts is None or ranges is None:
            return None
        axes = [_later(axis, start) for axis, start in zip(part.axes, starts, strict=True)]
        return _Part(source, tuple(axes), part.origin, ranges, part.depth)
    return None


def _same(before: Sizes, after: Sizes) -> bool:
    """Whether an elementwise operator does not broadcast its input."""
    return len(before) == len(after) and all(
        one == other or one != 1 and not (isinstance(one, int) and isinstance(other, int))
        for one, other in zip(before, after, strict=True))


def _later(axis: _Axis | None, start: int) -> _Axis | None:
    """An axis of what was cut at ``start``."""
    return axis if axis is None else replace(axis, shift=axis.shift - start * axis.ratio)


def _known(part: _Part, before: Sizes, after: Sizes) -> Extent | None:
    """The part's ranges where its source was cut out of a larger tensor; None where they are not known."""
    ranges = dict(part.ranges)
    for axis, whole, size in zip(part.axes, before, after, strict=True):
        if axis is None or axis.last in ranges or whole == size:
            continue
        covered = axis.range(0, size) if isinstance(size, int) else None
        if covered is None:
            return None
        ranges[axis.last] = covered
    return ranges


def _starts(network: Network, shapes: Shapes, layer: Layer, output: str, before: Sizes) -> list[int] | None:
    """Where the output of a Split or Slice begins in its input, by axis; None where that is not known."""
    starts = [0] * len(before)
    if layer.op_type == "Split":
        attr = network.node(layer.name).attributes.get("axis")
        axis = (attr.as_int() if attr is not None else 0) % len(before)
        sizes = [(shapes.get(name) or before)[axis] for name in layer.outputs[:layer.outputs.index(output)]]
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) < len(sizes):
            return None
        starts[axis] = sum(known)
        return starts
    held = [_integers(network, shapes, name) if name else None for name in layer.inputs[1:]]
    first, axes, steps = held[0], held[2] if len(held) > 2 else None, held[3] if len(held) > 3 else None
    if first is None or len(layer.inputs) > 3 and layer.inputs[3] and axes is None:
        return None
    if len(layer.inputs) > 4 and layer.inputs[4] and (steps is None or any(step != 1 for step in steps)):
        return None
    for axis, start in zip(axes if axes is not None else range(len(first)), first, strict=False):
        size = before[axis % len(before)]
        if not start:
            continue
        if not isinstance(size, int):
            return None
        starts[axis % len(before)] = min(max(start + size if start < 0 else start, 0), size)
    return starts


def _integers(network: Network, shapes: Shapes, tensor: str) -> list[int] | None:
    stored = constant_tensor(network.value(tensor)) if network.has_tensor(tensor) else None
    return shapes.integers(tensor) if stored is None else [int(number) for number in stored.numpy().reshape(-1)]


def _reshaped(before: Sizes, after: Sizes, axes: Sequence[_Axis | None]) -> list[_Axis | None]:
    """How the axes before a reshape lie on the last tensor.

    Sizes are matched from the left in blocks of equal product; the outermost axes of a block correspond.
    """
    result: list[_Axis | None] = [None] * len(before)
    i = j = 0
    while i < len(before) and j < len(after):
        one, other = before[i], after[j]
        if one == other or i == j == 0 and not isinstance(one, int) and not isinstance(other, int):
            result[i] = axes[j]
            i, j = i + 1, j + 1
            continue
        block = _block(before[i:], after[j:])
        if block is None:
            break
        outer = next((k for k in range(i, i + block[0]) if before[k] != 1), i)
        onto = next((k for k in range(j, j + block[1]) if after[k] != 1), j)
        axis, size, other_size = axes[onto], before[outer], after[onto]
        if axis is not None and isinstance(size, int) and isinstance(other_size, int):
            result[outer] = replace(axis, ratio=axis.ratio * Fraction(other_size, size))
        i, j = i + block[0], j + block[1]
    return result


def _block(before: Sizes, after: Sizes) -> tuple[int, int] | None:
    """How many axes from the left hold the same number of elements, on either side; None where that is not known."""
    count, known = [1, 1], (_leading(before), _leading(after))
    while count[0] <= len(known[0]) and count[1] <= len(known[1]):
        products = math.prod(known[0][:count[0]]), math.prod(known[1][:count[1]])
        if products[0] == products[1]:
            return count[0], count[1]
        shorter = 0 if products[0] < products[1] else 1
        if count[shorter] == len((before, after)[shorter]):
            return None
        count[shorter] += 1
    return None


def _leading(sizes: Sizes) -> list[int]:
    """The sizes from the left up to the first that is not known, or is 0."""
    known: list[int] = []
    for size in sizes:
        if not isinstance(size, int) or size <= 0:
            break
        known.append(size)
    return known


def _pieces(network: Network, shapes: Shapes, part: _Part) -> list[_Part] | None:
    """What the inputs of a Concat are as parts of its result; None if it joins along the batch or a size is not static.
    """
    layer = network.layer(network.producer[part.source]) if part.source in network.producer else None
    if layer is None or layer.op_type != "Concat" or layer.domain != "" or not part.axes:
        return None
    place = network.node(layer.name).attributes["axis"].as_int() % len(part.axes)
    axis = part.axes[place]
    if axis is None or axis.last == 0:
        return None
    pieces, start = [], 0
    for name in layer.inputs:
        shape = shapes.get(name)
        size = shape[place] if shape is not None and len(shape) == len(part.axes) else None
        if not isinstance(size, int):
            return None
        covered = axis.range(start, start + size)
        if covered is None or name not in network.producer or name in network.static:
            return None
        low, high = part.ranges.get(axis.last, covered)
        clipped = max(low, covered[0]), min(high, covered[1])
        if clipped[0] < clipped[1]:
            own = [*part.axes]
            own[place] = _later(axis, -start)
            pieces.append(_Part(name, tuple(own), name, {**part.ranges, axis.last: clipped}, part.depth + 1))
        start += size
    if len(pieces) == 1:  # the only one that a cut behind the Concat left
        return [replace(pieces[0], ranges=part.ranges)]
    return pieces or None
