"""The parts of a judged tensor that Concat operators join, also behind reshapes and elementwise operators.

A detector joins boxes and scores of several strides, often before a Sigmoid, a Split or a Reshape. Each input of such a
Concat is a part of the judged tensor: a range of indices along some of its axes.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate, takewhile

import onnx_ir as ir

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.folded_shapes import FoldedShapes
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import POINTWISE
from trt_tui.core.runner import Dimension

PartialShape = tuple[Dimension, ...]
"""A shape whose sizes may be unknown."""

AxisRanges = Mapping[int, tuple[int, int]]
"""Start and stop index by axis. An axis without an entry is covered whole."""

_RESHAPE_OPERATORS = frozenset("Reshape Flatten Squeeze Unsqueeze".split())
_CUT_OPERATORS = frozenset("Split Slice".split())
_UNCHANGED_OPERATORS = frozenset("Identity Dropout Cast".split())
FLOAT_TYPES = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
"""The types of tensors that are judged by their numeric error."""


@dataclass(frozen=True)
class _AxisMap:
    """A linear mapping from indices along an axis of an inner tensor to an axis of the judged tensor: index · ratio +
    offset."""

    final_axis: int
    ratio: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)

    def map_range_to_final_axis(self, start: int, stop: int) -> tuple[int, int] | None:
        """Returns the range on the axis of the judged tensor for a range on the inner tensor; None if an end is not
        whole."""
        ends = [index * self.ratio + self.offset for index in (start, stop)]
        if any(end.denominator != 1 for end in ends):
            return None
        return int(ends[0]), int(ends[1])


@dataclass(frozen=True)
class _ConcatPart:
    """A part of a judged tensor that Concats join, with the inner tensor that computes the part.

    Attributes:
        source_tensor: The tensor at which the backward search is; the part may be a range of it.
        axis_maps: For each axis of ``source_tensor`` its mapping to the judged tensor; None if there is none.
        origin_tensor: The earliest tensor whose elements are exactly this part.
        concat_depth: Number of Concats between the part and the judged tensor.
    """

    source_tensor: str
    axis_maps: tuple[_AxisMap | None, ...]
    origin_tensor: str
    ranges: AxisRanges = field(default_factory=dict)
    concat_depth: int = 0


def find_concat_parts(network: Network, shapes: FoldedShapes, tensor: str,
                      max_parts: int) -> list[tuple[AxisRanges, str]]:
    """Returns the parts that Concats join into a tensor: for each part its index ranges and the tensor that computes
    it.

    The only part is the whole tensor if no Concat computes it.

    Args:
        shapes: The shapes of the tensors of the network.
        max_parts: The maximum number of parts. A Concat is not divided if more parts would result.
    """
    rank = len(shapes.find_shape(tensor) or ())
    parts = [_ConcatPart(tensor, tuple(_AxisMap(axis) for axis in range(rank)), tensor)]
    waiting = list(parts)
    while waiting:
        part = min(waiting, key=lambda candidate: (candidate.concat_depth, parts.index(candidate)))
        waiting.remove(part)
        index = parts.index(part)
        before = _find_origin_of_part(network, shapes, part, is_judged_tensor=part.source_tensor == tensor)
        parts[index] = before
        pieces = _split_part_at_concat(network, shapes, before)
        if pieces is not None and len(parts) - 1 + len(pieces) <= max_parts:
            parts[index:index + 1] = pieces
            waiting += pieces
    return [(part.ranges, part.origin_tensor) for part in parts]


def _find_origin_of_part(network: Network, shapes: FoldedShapes, part: _ConcatPart,
                         is_judged_tensor: bool) -> _ConcatPart:
    """Traces a part back through operators that compute each element from one element, while the tensor has a single
    reader."""
    while part.source_tensor in network.producer and (is_judged_tensor
                                                      or _has_single_reader(network, part.source_tensor)):
        layer = network.get_layer(network.producer[part.source_tensor])
        before = _trace_part_through_layer(network, shapes, layer, part)
        if before is None:
            break
        part, is_judged_tensor = before, False
    return part


def _has_single_reader(network: Network, tensor: str) -> bool:
    users = [network.get_layer(name) for name in network.consumers.get(tensor, ())]
    return len(users) == 1 or all(user.op_type in _CUT_OPERATORS or user.op_type == "Shape" for user in users)


def _trace_part_through_layer(network: Network, shapes: FoldedShapes, layer: Layer,
                              part: _ConcatPart) -> _ConcatPart | None:
    """Returns a part of a layer's output as a part of its input; None if it cannot be traced through the layer."""
    dynamic = [name for name in layer.inputs if name and name not in network.static_tensors]
    if layer.domain != "" or len(dynamic) != 1 or dynamic[0] not in network.producer:
        return None
    source = dynamic[0]
    input_sizes, output_sizes = shapes.find_shape(source), shapes.find_shape(part.source_tensor)
    if input_sizes is None or output_sizes is None or network.ir_value(source).dtype not in FLOAT_TYPES:
        return None
    exact = part.source_tensor == part.origin_tensor

    def make_input_part(axis_maps: Sequence[_AxisMap | None]) -> _ConcatPart:
        return replace(part, source_tensor=source, axis_maps=tuple(axis_maps),
                       origin_tensor=source if exact else part.origin_tensor)

    if layer.op_type in POINTWISE | _UNCHANGED_OPERATORS:
        return make_input_part(part.axis_maps) if _has_same_sizes(input_sizes, output_sizes) else None
    if layer.op_type == "Transpose":
        attr = network.node(layer.name).attributes.get("perm")
        order = tuple(attr.as_ints()) if attr is not None else tuple(range(len(output_sizes)))[::-1]
        if sorted(order) != list(range(len(part.axis_maps))):
            return None
        return make_input_part([part.axis_maps[order.index(axis)] for axis in range(len(order))])
    if layer.op_type in _RESHAPE_OPERATORS:
        return make_input_part(_map_reshaped_axes(input_sizes, output_sizes, part.axis_maps))
    if layer.op_type in _CUT_OPERATORS and len(input_sizes) == len(output_sizes):
        starts, ranges = _find_slice_starts(network, shapes, layer, part.source_tensor,
                                            input_sizes), _find_index_ranges_of_part(part, input_sizes, output_sizes)
        if starts is None or ranges is None:
            return None
        axes = [_shift_axis_map(axis, start) for axis, start in zip(part.axis_maps, starts, strict=True)]
        return _ConcatPart(source, tuple(axes), part.origin_tensor, ranges, part.concat_depth)
    return None


def _has_same_sizes(input_sizes: PartialShape, output_sizes: PartialShape) -> bool:
    """Returns True if an elementwise operator does not broadcast its input."""
    return len(input_sizes) == len(output_sizes) and all(
        input_size == output_size
        or input_size != 1 and not (isinstance(input_size, int) and isinstance(output_size, int))
        for input_size, output_size in zip(input_sizes, output_sizes, strict=True))


def _shift_axis_map(axis_map: _AxisMap | None, cut_start: int) -> _AxisMap | None:
    """Returns the axis mapping of a whole tensor, from that of its slice that begins at ``cut_start``."""
    return axis_map if axis_map is None else replace(axis_map, offset=axis_map.offset - cut_start * axis_map.ratio)


def _find_index_ranges_of_part(part: _ConcatPart, input_sizes: PartialShape,
                               output_sizes: PartialShape) -> AxisRanges | None:
    """Returns the index ranges of a part whose source tensor was cut out of a larger tensor; None if they are unknown.
    """
    ranges = dict(part.ranges)
    for axis_map, whole, size in zip(part.axis_maps, input_sizes, output_sizes, strict=True):
        if axis_map is None or axis_map.final_axis in ranges or whole == size:
            continue
        covered = axis_map.map_range_to_final_axis(0, size) if isinstance(size, int) else None
        if covered is None:
            return None
        ranges[axis_map.final_axis] = covered
    return ranges


def _find_slice_starts(network: Network, shapes: FoldedShapes, layer: Layer, output_name: str,
                       input_sizes: PartialShape) -> list[int] | None:
    """Returns the start index of a Split or Slice output within its input, for each axis; None if unknown."""
    starts = [0] * len(input_sizes)
    if layer.op_type == "Split":
        attr = network.node(layer.name).attributes.get("axis")
        axis = (attr.as_int() if attr is not None else 0) % len(input_sizes)
        sizes = [(shapes.find_shape(name) or input_sizes)[axis]
                 for name in layer.outputs[:layer.outputs.index(output_name)]]
        known_sizes = [size for size in sizes if isinstance(size, int)]
        if len(known_sizes) < len(sizes):
            return None
        starts[axis] = sum(known_sizes)
        return starts
    parameters = [_find_integer_values(network, shapes, name) if name else None for name in layer.inputs[1:]]
    first, axes, steps = parameters[0], parameters[2] if len(parameters) > 2 else None, parameters[3] if len(
        parameters) > 3 else None
    if first is None or len(layer.inputs) > 3 and layer.inputs[3] and axes is None:
        return None
    if len(layer.inputs) > 4 and layer.inputs[4] and (steps is None or any(step != 1 for step in steps)):
        return None
    for axis, start in zip(axes if axes is not None else range(len(first)), first, strict=False):
        size = input_sizes[axis % len(input_sizes)]
        if not start:
            continue
        if not isinstance(size, int):
            return None
        starts[axis % len(input_sizes)] = min(max(start + size if start < 0 else start, 0), size)
    return starts


def _find_integer_values(network: Network, shapes: FoldedShapes, tensor: str) -> list[int] | None:
    stored = stored_tensor(network.ir_value(tensor)) if network.has_tensor(tensor) else None
    return shapes.find_integer_values(tensor) if stored is None else [
        int(number) for number in stored.numpy().reshape(-1)
    ]


def _map_reshaped_axes(input_sizes: PartialShape, output_sizes: PartialShape,
                       output_axes: Sequence[_AxisMap | None]) -> list[_AxisMap | None]:
    """Returns the mapping to the judged tensor for each axis of a reshape's input.

    Sizes are matched from the left in blocks of equal product. The outermost axes of two such blocks correspond.
    """
    result: list[_AxisMap | None] = [None] * len(input_sizes)
    input_axis = output_axis = 0
    while input_axis < len(input_sizes) and output_axis < len(output_sizes):
        input_size, output_size = input_sizes[input_axis], output_sizes[output_axis]
        if input_size == output_size or input_axis == output_axis == 0 and not isinstance(
                input_size, int) and not isinstance(output_size, int):
            result[input_axis] = output_axes[output_axis]
            input_axis, output_axis = input_axis + 1, output_axis + 1
            continue
        block = _count_leading_axes_of_equal_size(input_sizes[input_axis:], output_sizes[output_axis:])
        if block is None:
            break
        outer = next(
            (axis_index for axis_index in range(input_axis, input_axis + block[0]) if input_sizes[axis_index] != 1),
            input_axis)
        onto = next(
            (axis_index for axis_index in range(output_axis, output_axis + block[1]) if output_sizes[axis_index] != 1),
            output_axis)
        axis, size, other_size = output_axes[onto], input_sizes[outer], output_sizes[onto]
        if axis is not None and isinstance(size, int) and isinstance(other_size, int):
            result[outer] = replace(axis, ratio=axis.ratio * Fraction(other_size, size))
        input_axis, output_axis = input_axis + block[0], output_axis + block[1]
    return result


def _count_leading_axes_of_equal_size(input_sizes: PartialShape, output_sizes: PartialShape) -> tuple[int, int] | None:
    """Returns the numbers of leading input axes and output axes with equal element counts; None if unknown."""
    input_counts, output_counts = (list(accumulate(takewhile(lambda size: isinstance(size, int) and size > 0, sizes),
                                                   operator.mul)) for sizes in (input_sizes, output_sizes))
    return next(((index + 1, output_counts.index(count) + 1) for index, count in enumerate(input_counts)
                 if count in output_counts), None)


def _split_part_at_concat(network: Network, shapes: FoldedShapes, part: _ConcatPart) -> list[_ConcatPart] | None:
    """Returns the inputs of a Concat as parts of the judged tensor that the Concat leads to.

    None if the part does not come from a Concat, or the Concat joins along the batch, or a size is not static.
    """
    layer = network.get_layer(network.producer[part.source_tensor]) if part.source_tensor in network.producer else None
    if layer is None or layer.op_type != "Concat" or layer.domain != "" or not part.axis_maps:
        return None
    concat_axis = network.node(layer.name).attributes["axis"].as_int() % len(part.axis_maps)
    axis = part.axis_maps[concat_axis]
    if axis is None or axis.final_axis == 0:
        return None
    pieces, start = [], 0
    for name in layer.inputs:
        shape = shapes.find_shape(name)
        size = shape[concat_axis] if shape is not None and len(shape) == len(part.axis_maps) else None
        if not isinstance(size, int):
            return None
        covered = axis.map_range_to_final_axis(start, start + size)
        if covered is None or name not in network.producer or name in network.static_tensors:
            return None
        low, high = part.ranges.get(axis.final_axis, covered)
        clipped = max(low, covered[0]), min(high, covered[1])
        if clipped[0] < clipped[1]:
            piece_axes = [*part.axis_maps]
            piece_axes[concat_axis] = _shift_axis_map(axis, -start)
            pieces.append(
                _ConcatPart(name, tuple(piece_axes), name, {**part.ranges, axis.final_axis: clipped},
                            part.concat_depth + 1))
        start += size
    if len(pieces) == 1:  # a cut behind the Concat left only this input
        return [replace(pieces[0], ranges=part.ranges)]
    return pieces or None
