"""Judged outputs: the tensors, or parts of tensors, at which a run is compared with the reference.

A mean over a whole output hides a broken part (boxes in pixels beside scores up to 1, small objects beside large ones).
So Concats at the end of the network are judged part by part. If an output results from a selection (ArgMax, TopK,
NonMaxSuppression) or is an integer, the float tensors that decide it are judged. Integers are judged by the fraction
that differs.

A detector joins boxes and scores of several strides by Concats, often before a Sigmoid, a Split or a Reshape. Each
input of such a Concat is a part of the judged tensor: a range of indices along some of its axes.

Masks select the elements that count and leave out padding. They also apply at the fusion groups whose tensors have the
axes of the mask.
"""

import difflib
import functools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate, takewhile

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.tensor_collection import measure_tensor_shapes
from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.error_metrics import flatten_each_sample
from trt_tui.core.network.graph import stored_tensor
from trt_tui.core.network.inference import FoldedShapes
from trt_tui.core.network.layers import Layer, NetworkOutline
from trt_tui.core.network.model_editing import collect_by_key, iterate_reachable
from trt_tui.core.network.network import FP16_MASK_VALUE, Network
from trt_tui.core.network.operators import COPIES, INNER_PRODUCTS, POINTWISE, PRODUCTS
from trt_tui.core.runner import Backend, Dimension
from trt_tui.errors import InputError
from trt_tui.formatting import escape_hidden_characters, name_list_text

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


def find_concat_parts(
    network: Network, shapes: FoldedShapes, tensor: str, max_parts: int
) -> list[tuple[AxisRanges, str]]:
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
            parts[index : index + 1] = pieces
            waiting += pieces
    return [(part.ranges, part.origin_tensor) for part in parts]


def _find_origin_of_part(
    network: Network, shapes: FoldedShapes, part: _ConcatPart, is_judged_tensor: bool
) -> _ConcatPart:
    """Traces a part back through operators that compute each element from one element, while the tensor has a single
    reader."""
    while part.source_tensor in network.producer and (
        is_judged_tensor or _has_single_reader(network, part.source_tensor)
    ):
        layer = network.get_layer(network.producer[part.source_tensor])
        before = _trace_part_through_layer(network, shapes, layer, part)
        if before is None:
            break
        part, is_judged_tensor = before, False
    return part


def _has_single_reader(network: Network, tensor: str) -> bool:
    users = [network.get_layer(name) for name in network.consumers.get(tensor, ())]
    return len(users) == 1 or all(user.op_type in _CUT_OPERATORS or user.op_type == "Shape" for user in users)


def _trace_part_through_layer(
    network: Network, shapes: FoldedShapes, layer: Layer, part: _ConcatPart
) -> _ConcatPart | None:
    """Converts a part of a layer's output to the equal part of its input; returns None if the layer changes the
    values."""
    dynamic = [name for name in layer.inputs if name and name not in network.static_tensors]
    if layer.domain != "" or len(dynamic) != 1 or dynamic[0] not in network.producer:
        return None
    source = dynamic[0]
    input_sizes, output_sizes = shapes.find_shape(source), shapes.find_shape(part.source_tensor)
    if input_sizes is None or output_sizes is None or network.ir_value(source).dtype not in FLOAT_TYPES:
        return None
    exact = part.source_tensor == part.origin_tensor

    def make_input_part(axis_maps: Sequence[_AxisMap | None]) -> _ConcatPart:
        return replace(
            part,
            source_tensor=source,
            axis_maps=tuple(axis_maps),
            origin_tensor=source if exact else part.origin_tensor,
        )

    if layer.op_type in POINTWISE | _UNCHANGED_OPERATORS:
        return make_input_part(part.axis_maps) if _has_same_sizes(input_sizes, output_sizes) else None
    if layer.op_type == "Transpose":
        order = network.node(layer.name).attributes.get_ints("perm", range(len(output_sizes))[::-1])
        if sorted(order) != list(range(len(part.axis_maps))):
            return None
        return make_input_part([part.axis_maps[order.index(axis)] for axis in range(len(order))])
    if layer.op_type in _RESHAPE_OPERATORS:
        return make_input_part(_map_reshaped_axes(input_sizes, output_sizes, part.axis_maps))
    if layer.op_type in _CUT_OPERATORS and len(input_sizes) == len(output_sizes):
        starts, ranges = (
            _find_slice_starts(network, shapes, layer, part.source_tensor, input_sizes),
            _find_index_ranges_of_part(part, input_sizes, output_sizes),
        )
        if starts is None or ranges is None:
            return None
        axes = [_shift_axis_map(axis, start) for axis, start in zip(part.axis_maps, starts, strict=True)]
        return _ConcatPart(source, tuple(axes), part.origin_tensor, ranges, part.concat_depth)
    return None


def _has_same_sizes(input_sizes: PartialShape, output_sizes: PartialShape) -> bool:
    """Returns True if an elementwise operator does not broadcast its input."""
    return len(input_sizes) == len(output_sizes) and all(
        input_size == output_size
        or input_size != 1
        and not (isinstance(input_size, int) and isinstance(output_size, int))
        for input_size, output_size in zip(input_sizes, output_sizes, strict=True)
    )


def _shift_axis_map(axis_map: _AxisMap | None, cut_start: int) -> _AxisMap | None:
    """Returns the axis mapping of a whole tensor, from that of its slice that begins at ``cut_start``."""
    return axis_map if axis_map is None else replace(axis_map, offset=axis_map.offset - cut_start * axis_map.ratio)


def _find_index_ranges_of_part(
    part: _ConcatPart, input_sizes: PartialShape, output_sizes: PartialShape
) -> AxisRanges | None:
    """Returns the index ranges of a part whose source tensor was cut out of a larger tensor; None if they are unknown."""
    ranges = dict(part.ranges)
    for axis_map, whole, size in zip(part.axis_maps, input_sizes, output_sizes, strict=True):
        if axis_map is None or axis_map.final_axis in ranges or whole == size:
            continue
        covered = axis_map.map_range_to_final_axis(0, size) if isinstance(size, int) else None
        if covered is None:
            return None
        ranges[axis_map.final_axis] = covered
    return ranges


def _find_slice_starts(
    network: Network, shapes: FoldedShapes, layer: Layer, output_name: str, input_sizes: PartialShape
) -> list[int] | None:
    """Returns the start index of a Split or Slice output within its input, for each axis; None if unknown."""
    starts = [0] * len(input_sizes)
    if layer.op_type == "Split":
        axis = network.node(layer.name).attributes.get_int("axis", 0) % len(input_sizes)
        sizes = [
            (shapes.find_shape(name) or input_sizes)[axis] for name in layer.outputs[: layer.outputs.index(output_name)]
        ]
        known_sizes = [size for size in sizes if isinstance(size, int)]
        if len(known_sizes) < len(sizes):
            return None
        starts[axis] = sum(known_sizes)
        return starts
    _, first_name, _, axes_name, steps_name = (*layer.inputs, "", "", "", "")[:5]
    first, axes, steps = (
        _find_integer_values(network, shapes, name) if name else None for name in (first_name, axes_name, steps_name)
    )
    if first is None or axes_name and axes is None or steps_name and (steps is None or set(steps) - {1}):
        return None
    for axis, start in zip(axes if axes is not None else range(len(first)), first, strict=False):
        size = input_sizes[axis]
        if start and not isinstance(size, int):
            return None
        starts[axis] = slice(start, None).indices(size)[0] if isinstance(size, int) else 0
    return starts


def _find_integer_values(network: Network, shapes: FoldedShapes, tensor: str) -> list[int] | None:
    stored = stored_tensor(network.ir_value(tensor)) if network.has_tensor(tensor) else None
    return (
        shapes.find_integer_values(tensor) if stored is None else [int(number) for number in stored.numpy().reshape(-1)]
    )


def _map_reshaped_axes(
    input_sizes: PartialShape, output_sizes: PartialShape, output_axes: Sequence[_AxisMap | None]
) -> list[_AxisMap | None]:
    """Returns the mapping to the judged tensor for each axis of a reshape's input.

    Sizes are matched from the left in blocks of equal product. The outermost axes of two such blocks correspond.
    """
    result: list[_AxisMap | None] = [None] * len(input_sizes)
    input_axis = output_axis = 0
    while input_axis < len(input_sizes) and output_axis < len(output_sizes):
        input_size, output_size = input_sizes[input_axis], output_sizes[output_axis]
        if (
            input_size == output_size
            or input_axis == output_axis == 0
            and not isinstance(input_size, int)
            and not isinstance(output_size, int)
        ):
            result[input_axis] = output_axes[output_axis]
            input_axis, output_axis = input_axis + 1, output_axis + 1
            continue
        block = _count_leading_axes_of_equal_size(input_sizes[input_axis:], output_sizes[output_axis:])
        if block is None:
            break
        outer = next(
            (axis_index for axis_index in range(input_axis, input_axis + block[0]) if input_sizes[axis_index] != 1),
            input_axis,
        )
        onto = next(
            (axis_index for axis_index in range(output_axis, output_axis + block[1]) if output_sizes[axis_index] != 1),
            output_axis,
        )
        axis, size, other_size = output_axes[onto], input_sizes[outer], output_sizes[onto]
        if axis is not None and isinstance(size, int) and isinstance(other_size, int):
            result[outer] = replace(axis, ratio=axis.ratio * Fraction(other_size, size))
        input_axis, output_axis = input_axis + block[0], output_axis + block[1]
    return result


def _count_leading_axes_of_equal_size(input_sizes: PartialShape, output_sizes: PartialShape) -> tuple[int, int] | None:
    """Returns the numbers of leading input axes and output axes with equal element counts; None if unknown."""
    input_counts, output_counts = (
        list(accumulate(takewhile(lambda size: isinstance(size, int) and size > 0, sizes), operator.mul))
        for sizes in (input_sizes, output_sizes)
    )
    return next(
        (
            (index + 1, output_counts.index(count) + 1)
            for index, count in enumerate(input_counts)
            if count in output_counts
        ),
        None,
    )


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
                _ConcatPart(
                    name, tuple(piece_axes), name, {**part.ranges, axis.final_axis: clipped}, part.concat_depth + 1
                )
            )
        start += size
    if len(pieces) == 1:  # a cut behind the Concat left only this input
        return [replace(pieces[0], ranges=part.ranges)]
    return pieces or None


FLOAT_KIND = "float"
INTEGER_KIND = "integer"

SELECTION_OPERATORS = frozenset(("ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "NonZero", "Unique", "Compress"))
"""Operators that select or order values. One changed selection shifts all values behind it."""

MAX_JUDGED_PARTS = 16
"""The maximum number of parts. A Concat is not divided if more parts would result."""

_INTEGER_PATTERN = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class AxisSlice:
    """A slice ``start:stop`` along one axis, as in numpy: negative indices count from the end, ``stop`` None means the
    end."""

    axis: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class JudgedOutput:
    """A tensor, or a part of one, at which a run is compared with the reference.

    Attributes:
        name: The name in reports: the name of the tensor, with the slice if it is a part.
        tensor: The tensor; an output of the network or a tensor inside the network.
        slices: At most one slice per axis, by axis; empty for the whole tensor. No axis is dropped.
        kind: `FLOAT_KIND` (judged by its error) or `INTEGER_KIND` (by the fraction that differs).
        mask: The input or label that selects the elements that count; "" if all count.
        mask_threshold: The magnitude from which FP32 values are masks. Such an element does not count if the run masks
            it too. 0.0 if all elements count.
        doubt: The reason why a pass is uncertain: errors in parts of the tensor can be hidden; "" if there is none.
        note: The origin of the part, or the reason why this tensor is judged in place of an output; "" if neither
            applies.
    """

    name: str
    tensor: str
    slices: tuple[AxisSlice, ...] = ()
    kind: str = FLOAT_KIND
    note: str = ""
    mask: str = ""
    mask_threshold: float = 0.0
    doubt: str = ""


def take_judged_slice(array: np.ndarray, judged_output: JudgedOutput) -> np.ndarray:
    """Returns the judged part of a tensor's value as a view with the same rank and dtype."""
    index = [slice(None)] * array.ndim
    for cut in judged_output.slices:
        index[cut.axis] = slice(cut.start, cut.stop)
    return array[tuple(index)]


def list_tensor_outputs(network: Network) -> tuple[str, ...]:
    """Returns the names of the network outputs that are tensors and can be simulated.

    Sequences, maps and optional values are neither compared nor passed to a metric. The same holds for outputs behind a
    plugin that only an engine can execute.
    """
    return tuple(
        info.name
        for info in network.outputs
        if info.name not in network.blocking_plugins and isinstance(network.ir_value(info.name).type, ir.TensorType)
    )


def find_judged_inner_tensors(network: Network, judged_outputs: Sequence[JudgedOutput]) -> tuple[str, ...]:
    """Returns the judged tensors inside the network that an engine must yield in addition to its outputs.

    An engine with a plugin is judged at the tensors before the plugin, which are simulated too. A metric receives these
    tensors from every run.
    """
    outputs = {info.name for info in network.outputs}
    return tuple(
        dict.fromkeys(
            judged_output.tensor
            for judged_output in judged_outputs
            if network.blocking_plugins and judged_output.tensor not in outputs
        )
    )


def find_unjudged_output_reasons(
    network: Network, judged_outputs: Sequence[JudgedOutput] | None = None
) -> dict[str, str]:
    """Returns the reason why some network outputs are not judged, by the name of the output.

    Args:
        judged_outputs: The judged outputs, if the default selection is reduced to those that a reference has.
    """
    reasons: dict[str, str] = {}
    whole = set(list_tensor_outputs(network))
    kinds: dict[type, str] = {ir.SequenceType: "a sequence of tensors", ir.OptionalType: "an optional value"}
    judged_tensors = None if judged_outputs is None else {output.tensor for output in judged_outputs}
    for name in (info.name for info in network.outputs):
        if name in network.blocking_plugins:
            reasons[name] = f"computed after the plugin {network.blocking_plugins[name]}, in engines only"
        elif name not in whole:
            reasons[name] = kinds.get(type(network.ir_value(name).type), "no tensor")
        elif judged_tensors is not None:
            selected = {output.tensor for output in _select_judged_tensors(network, name)}
            if selected and judged_tensors.isdisjoint(selected):
                reasons[name] = "the reference lacks it"
    return reasons


def unjudged_output_notes(network: Network) -> tuple[str, ...]:
    """Returns a note for each network output that is not judged, because it is not a tensor or comes from a plugin."""
    return tuple(f"{name}: {reason}: not judged" for name, reason in find_unjudged_output_reasons(network).items())


_SCORE_OPERATORS = frozenset(("Gemm", "MatMul", "Conv", "Softmax", "LogSoftmax", "GlobalAveragePool"))
"""Operators that compute class scores. An output of another operator, such as a division by its norm, is not a
classifier."""


def find_class_score_output(network: NetworkOutline, judged_outputs: Sequence[JudgedOutput]) -> JudgedOutput | None:
    """Returns the judged output with the scores of a classifier; None if there is none.

    Its shape is ``(samples, classes)``, possibly with more axes of size 1.
    """
    float_outputs = [candidate for candidate in judged_outputs if candidate.kind == FLOAT_KIND]
    if len(float_outputs) != 1 or float_outputs[0].slices or float_outputs[0].mask:
        return None
    shape = network.shape(float_outputs[0].tensor)
    if (
        shape is None
        or len(shape) < 2
        or not isinstance(shape[1], int)
        or shape[1] < 2
        or any(size != 1 for size in shape[2:])
    ):
        return None
    producers = {tensor: candidate for candidate in network.layers for tensor in candidate.outputs}
    layer = producers.get(float_outputs[0].tensor)
    while layer is not None and layer.op_type in ("Cast", "Identity"):  # files in FP16 cast their outputs
        layer = producers.get(layer.inputs[0])
    group = network.find_group(layer.name) if layer is not None else None
    return float_outputs[0] if group is not None and group.operator in _SCORE_OPERATORS else None


def select_judged_outputs(
    network: Network, judge_texts: Sequence[str] = (), label_names: Sequence[str] = ()
) -> tuple[JudgedOutput, ...]:
    """Selects the judged outputs of a network: the tensors named by the user, or a default selection.

    Args:
        judge_texts: ``TENSOR``, ``TENSOR[slice]`` or ``TENSOR@MASK`` texts; they replace the default altogether.

    Raises:
        InputError: a text names no tensor that can be judged, or the network has no such output.
    """
    if judge_texts:
        return _exclude_masked_values(
            network, _remove_duplicates(_parse_judged_output(network, text, label_names) for text in judge_texts)
        )
    selected = _remove_duplicates(
        output for info in network.outputs for output in _select_judged_tensors(network, info.name)
    )
    if not selected:
        raise InputError(
            f"{network.name} has no output that can be judged",
            "; ".join(unjudged_output_notes(network)) or "none of its outputs is a tensor computed from the inputs",
            "Name a tensor with --judge.",
        )
    return _exclude_masked_values(network, selected)


def _exclude_masked_values(network: Network, judged_outputs: Sequence[JudgedOutput]) -> tuple[JudgedOutput, ...]:
    """Returns judged outputs with a threshold that leaves out the mask values written by a Where operator of the
    network.

    FP16 cannot represent a mask value such as -3.4e38, and no reader of the output needs it.
    """
    unmasked_outputs = []
    for output in judged_outputs:
        beyond = network.mask_magnitude_threshold(output.tensor) if output.kind == FLOAT_KIND else 0.0
        mask_note = f"masked values, outside ±{beyond:.2g}, are not judged" if beyond else ""
        unmasked_outputs.append(
            replace(output, mask_threshold=beyond, note="; ".join(filter(None, (output.note, mask_note))))
        )
    return tuple(unmasked_outputs)


def _remove_duplicates(judged_outputs: Iterable[JudgedOutput]) -> tuple[JudgedOutput, ...]:
    equal_outputs = collect_by_key(((output.tensor, output.slices, output.mask), output) for output in judged_outputs)
    return tuple(outputs[0] for outputs in equal_outputs.values())


# -- default selection ------------------------------------------------------------------------------------------------


def _select_judged_tensors(network: Network, output_name: str) -> list[JudgedOutput]:
    value = network.ir_value(output_name)
    if output_name in network.blocking_plugins:
        return _select_judged_tensors_before_plugins(network, output_name)
    if (
        output_name not in network.producer
        or output_name in network.static_tensors
        or not isinstance(value.type, ir.TensorType)
        or 0 in (network.shape(output_name) or ())
    ):
        return []
    integer = value.dtype not in FLOAT_TYPES
    before, selector = _find_tensors_before_selection(network, output_name, integer)
    selected = []
    value_kind = "text" if value.dtype is ir.DataType.STRING else "integers"
    if integer:
        selected.append(
            JudgedOutput(
                output_name, output_name, kind=INTEGER_KIND, note=f"{value_kind}: judged by the fraction that differs"
            )
        )
    elif not before:
        return _split_tensor_into_concat_parts(network, output_name)
    reason = f"{output_name} is selected by {selector}" if selector else f"{output_name} holds {value_kind}"
    return selected + [
        replace(part, note="; ".join(filter(None, (f"{reason}: judged before it", part.note))))
        for tensor in before
        for part in _split_tensor_into_concat_parts(network, tensor)
    ]


def _select_judged_tensors_before_plugins(network: Network, output_name: str) -> list[JudgedOutput]:
    """Returns the last float tensors before an output behind a plugin that can be simulated, in network order."""
    plugin = network.get_layer(network.blocking_plugins[output_name])
    reason = (
        f"{output_name} is computed by the plugin {plugin.name} ({plugin.op_type}), in engines only: judged before it"
    )

    def list_read_tensors(name: str) -> Sequence[str]:
        return network.input_tensors(network.producer[name])

    behind = iterate_reachable(
        [output_name], lambda name: [read for read in list_read_tensors(name) if read in network.blocking_plugins]
    )
    tensors = {
        name
        for tensor in behind
        for name in list_read_tensors(tensor)
        if name in network.producer
        and name not in network.static_tensors
        and name not in network.blocking_plugins
        and network.ir_value(name).dtype in FLOAT_TYPES
    }
    return [
        replace(part, note="; ".join(filter(None, (reason, part.note))))
        for tensor in sorted(tensors, key=lambda name: (network.get_layer(network.producer[name]).index, name))
        for name in _find_tensors_before_selection(network, tensor, False)[0] or [tensor]
        for part in _split_tensor_into_concat_parts(network, name)
    ]


def _find_tensors_before_selection(network: Network, output_name: str, is_integer: bool) -> tuple[list[str], str]:
    """Returns the float tensors before a selection (such as ArgMax) that an output depends on, and the selecting
    operator.

    The tensors are in network order. For a float output, selections between the output and the nearest products
    count. For an integer output, the nearest float tensors decide.
    """
    nearest, selector = _find_nearest_floats_before_selection(network, output_name, is_integer)
    find_earlier = functools.cache(lambda name: _find_nearest_floats_before_selection(network, name, False)[0])
    final = [name for name in iterate_reachable(nearest, find_earlier) if not find_earlier(name)]
    return sorted(final, key=lambda name: (network.get_layer(network.producer[name]).index, name)), selector


def _find_nearest_floats_before_selection(network: Network, output_name: str, is_integer: bool) -> tuple[set[str], str]:
    """Returns the nearest float tensors before an integer output, or before a selection that leads to a float output.

    Before a selection are the tensors that decide it, and those whose values it selects: a Gather reads indices behind
    a TopK, and its data before it. The second value is the type of the selecting operator, "" without a selection.
    """
    behind = [] if is_integer else _find_layers_behind_selection(network, output_name)
    selectors = [layer for layer in behind if layer.op_type in SELECTION_OPERATORS]
    floats, reached_selectors = _find_deciding_floats(
        network,
        [output_name]
        if is_integer
        else [name for layer in selectors for name in _list_computed_inputs(network, layer.name)],
    )
    results = {name for layer in behind for name in layer.outputs}
    floats |= {
        name
        for layer in behind
        for name in _list_computed_inputs(network, layer.name)
        if name not in results and network.ir_value(name).dtype in FLOAT_TYPES
    }
    return floats, next((layer.op_type for layer in selectors + reached_selectors), "")


def _find_deciding_floats(network: Network, tensors: Iterable[str]) -> tuple[set[str], list[Layer]]:
    """Returns the nearest float tensors at or before some tensors, and the selections in between."""

    def is_float(tensor: str) -> bool:
        return network.ir_value(tensor).dtype in FLOAT_TYPES

    reached = list(
        iterate_reachable(
            tensors, lambda tensor: [] if is_float(tensor) else _list_computed_inputs(network, network.producer[tensor])
        )
    )
    layers = [network.get_layer(network.producer[tensor]) for tensor in reached if not is_float(tensor)]
    return set(filter(is_float, reached)), [layer for layer in layers if layer.op_type in SELECTION_OPERATORS]


def _list_computed_inputs(network: Network, layer_name: str) -> list[str]:
    return [
        name
        for name in network.input_tensors(layer_name)
        if name not in network.static_tensors and name in network.producer
    ]


def _find_layers_behind_selection(network: Network, output_name: str) -> list[Layer]:
    """Returns the selections between an output and the nearest products, and the layers behind them.

    The layers are in reverse network order. A selection counts if computed floats decide it: rounding does not change
    the places that a mask among the inputs names.
    """

    def list_layers_before(layer: Layer) -> list[Layer]:
        producers = [network.get_layer(network.producer[name]) for name in _list_computed_inputs(network, layer.name)]
        return [producer for producer in producers if producer.op_type not in PRODUCTS | INNER_PRODUCTS]

    last = network.get_layer(network.producer[output_name])
    reached = [] if last.op_type in PRODUCTS | INNER_PRODUCTS else iterate_reachable([last], list_layers_before)
    behind: list[Layer] = []
    results: set[str] = set()
    for layer in sorted(reached, key=lambda layer: layer.index):
        is_selection = layer.op_type in SELECTION_OPERATORS and bool(
            _find_deciding_floats(network, _list_computed_inputs(network, layer.name))[0]
        )
        if is_selection or not results.isdisjoint(network.input_tensors(layer.name)):
            behind.insert(0, layer)
            results.update(layer.outputs)
    return behind


def find_partly_judged_output_reasons(network: Network) -> dict[str, str]:
    """Returns the float outputs that are judged only in front of a selection such as TopK, each with a reason for doubt.

    The reason names the layers behind the selection that compute the output from selected floats, or that look it up in
    a constant, whose rows no judged tensor has. It is "" if the layers behind the selection only copy.
    """
    copying = SELECTION_OPERATORS | COPIES | _UNCHANGED_OPERATORS | {"Where"}
    reasons = {}
    for name in list_tensor_outputs(network):
        if name not in network.producer or network.ir_value(name).dtype not in FLOAT_TYPES:
            continue
        behind = _find_layers_behind_selection(network, name)
        selected = {
            result
            for layer in behind
            for result in layer.outputs
            if result and network.ir_value(result).dtype in FLOAT_TYPES
        }
        computing = [
            layer.name
            for layer in reversed(behind)
            if (layer.op_type not in copying and not selected.isdisjoint(layer.inputs))
            or (layer.inputs[0] in network.static_tensors and not selected.isdisjoint(layer.outputs))
        ]
        if behind:
            reasons[name] = (
                f"layers behind its selection compute it ({name_list_text(computing, 2)})" if computing else ""
            )
    return reasons


def _split_tensor_into_concat_parts(network: Network, tensor: str) -> list[JudgedOutput]:
    """Returns one judged output for each part of a tensor that Concats join, and one for the whole tensor without
    Concats."""
    shape = network.shape(tensor) or ()
    parts = find_concat_parts(network, FoldedShapes(network.graph, network.model), tensor, MAX_JUDGED_PARTS)
    if len(parts) < 2:
        return [JudgedOutput(tensor, tensor)]
    return [
        JudgedOutput(
            tensor + slice_text(slices, len(shape)),
            tensor,
            slices,
            note=f"from {source}, one of {len(parts)} parts of a Concat",
        )
        for ranges, source in parts
        for slices in [
            tuple(AxisSlice(axis, *ends) for axis, ends in sorted(ranges.items()) if ends != (0, shape[axis]))
        ]
    ]


def slice_text(slices: Sequence[AxisSlice], rank: int) -> str:
    """Returns slices in the notation of numpy, such as ``[:, 4:]``; "" for the whole tensor."""
    if not slices:
        return ""
    texts = [":"] * (max(cut.axis for cut in slices) + 1)
    for cut in slices:
        start = str(cut.start) if cut.start or cut.stop is not None else ""
        texts[cut.axis] = f"{start}:{'' if cut.stop is None else cut.stop}"
    return f"[{', '.join(texts[:rank] if rank else texts)}]"


# -- selection by the user --------------------------------------------------------------------------------------------


def _parse_judged_output(network: Network, judge_text: str, label_names: Sequence[str]) -> JudgedOutput:
    tensor, slices, mask = judge_text.strip(), None, ""
    if not network.has_tensor(tensor) and "@" in tensor:
        tensor, _, mask = (part.strip() for part in tensor.rpartition("@"))
        _refuse_unknown_mask(network, judge_text, mask, label_names)
    if not network.has_tensor(tensor):
        match = re.fullmatch(r"(.*\S)\s*\[([^\[\]]*)\]", tensor)
        if match is not None:
            tensor, slices = match.group(1), match.group(2)
    if not network.has_tensor(tensor):
        tensor_names = [
            layer_output for layer in network.layers for layer_output in layer.outputs if network.is_fp32(layer_output)
        ]
        near = difflib.get_close_matches(tensor, tensor_names, 3, 0.5)
        raise InputError(
            f"--judge {judge_text}: {network.name} has no tensor {tensor}",
            f"Did you mean {', '.join(near)}?" if near else "",
            "Name an output or a tensor as the file does, for example --judge "
            f"'{next((i.name for i in network.outputs), 'out')}[:, 4:]'.",
        )
    if tensor not in network.producer or tensor in network.static_tensors:
        origin = "computed from constants and shapes alone" if tensor in network.producer else "an input or a constant"
        raise InputError(
            f"--judge {judge_text}: {tensor} is {origin}",
            "no precision changes it",
            "Name a tensor that the network computes from its inputs.",
        )
    if tensor in network.blocking_plugins:
        raise InputError(
            f"--judge {judge_text}: {tensor} is computed after the plugin {network.blocking_plugins[tensor]}",
            "the simulation ends there",
            "Judge a tensor before it, or give its library with --ort-ops.",
        )
    if not network.is_fp32(tensor) and network.ir_value(tensor).dtype not in FLOAT_TYPES:
        dtype = network.ir_value(tensor).dtype
        raise InputError(
            f"--judge {judge_text}: {tensor} is not a float tensor",
            f"its type is {dtype.name if dtype is not None else 'unknown'}",
            "Name a float tensor; integer outputs are judged by themselves.",
        )
    shape = network.shape(tensor)
    cuts = _parse_axis_slices(judge_text, slices, shape) if slices is not None else ()
    name = tensor + slice_text(cuts, len(shape or ())) + (f"@{mask}" if mask else "")
    mask_note = f", where {mask} is not 0" if mask else ""
    parts = [] if cuts else _split_tensor_into_concat_parts(network, tensor)
    doubt = (
        f"{escape_hidden_characters(name)} is judged as a whole, so that one of its {len(parts)} parts can lose more "
        "than the target allows (by default each part is judged)"
        if len(parts) > 1
        else ""
    )
    return JudgedOutput(name, tensor, cuts, note=f"named by --judge{mask_note}", mask=mask, doubt=doubt)


def _refuse_unknown_mask(network: Network, judge_text: str, mask_name: str, label_names: Sequence[str]) -> None:
    """Raises an error if a mask is neither an input of the network nor an array of the data."""
    mask_names = [*(info.name for info in network.inputs), *label_names]
    if mask_name not in mask_names:
        near = difflib.get_close_matches(mask_name, mask_names, 3, 0.5) or mask_names
        raise InputError(
            f"--judge {judge_text}: there is no {mask_name or 'name after @'}",
            f"a mask is an input of the network or another array of the data: {', '.join(near)}",
            "Write it as --judge 'TENSOR@MASK', for example last_hidden_state@attention_mask.",
        )


def _parse_axis_slices(
    judge_text: str, slices_text: str, shape: tuple[int | str | None, ...] | None
) -> tuple[AxisSlice, ...]:
    def make_slice_error(cause: str) -> InputError:
        return InputError(
            f"--judge {judge_text}: [{slices_text}] is not a slice of it",
            cause,
            "Write it as numpy does, for example [:, 4:] or [0, 1:3].",
        )

    items = [item.strip() for item in slices_text.split(",")]
    if items and items[-1] == "" and len(items) > 1:
        items.pop()
    if items.count("...") > 1:
        raise make_slice_error("... may be used only once")
    if "..." in items:
        if shape is None:
            raise make_slice_error("the tensor's rank is unknown, so ... cannot be used")
        index = items.index("...")
        items[index : index + 1] = [":"] * (len(shape) - len(items) + 1)
    if shape is not None and len(items) > len(shape):
        raise make_slice_error(f"it has {len(items)} axes, the tensor has {len(shape)}: ({', '.join(map(str, shape))})")
    cuts = []
    for axis, item in enumerate(items):
        bounds = [part.strip() for part in item.split(":")]
        if len(bounds) > 2:
            raise make_slice_error("steps are not supported")
        if item == "" or any(bound_text and not _INTEGER_PATTERN.fullmatch(bound_text) for bound_text in bounds):
            raise make_slice_error(f"'{item}' is neither a whole number nor start:stop")
        size = shape[axis] if shape is not None else None
        cut = _parse_axis_slice(axis, bounds, size if isinstance(size, int) else None)
        if cut is None:
            raise make_slice_error(
                f"axis {axis} has {size} entries, and '{item}' selects none of them"
                if isinstance(size, int)
                else f"'{item}' selects nothing"
            )
        if cut.start or cut.stop is not None:
            cuts.append(cut)
    return tuple(cuts)


def _parse_axis_slice(axis: int, bound_texts: list[str], size: int | None) -> AxisSlice | None:
    """Returns the slice along one axis for an index or ``start:stop``; None if it is empty.

    Negative indices are converted to positive ones if the size of the axis is known.
    """
    if len(bound_texts) == 1:
        start, stop = int(bound_texts[0]), int(bound_texts[0]) + 1 or None
    else:
        start, stop = int(bound_texts[0] or 0), int(bound_texts[1]) if bound_texts[1] else None
    if size is not None:
        start, stop, _ = slice(start, stop).indices(size)
        return None if stop <= start else AxisSlice(axis, start, None if stop == size else stop)
    if stop is not None and stop <= start and (stop < 0) == (start < 0):
        return None
    return AxisSlice(axis, start, stop)


_MIN_MASK_MAGNITUDE = FP16_MASK_VALUE / 2
"""The minimum magnitude of a mask value in every type: half of the value that represents a mask in FP16."""


def find_unmasked_elements(
    judged_output: JudgedOutput,
    samples: Samples,
    feed_index: int,
    reference: np.ndarray,
    test: np.ndarray | None = None,
) -> np.ndarray | None:
    """Returns the elements of a judged output that no mask leaves out in a feed, as a bool array; None if there is no
    mask.

    A mask has the leading axes of the tensor (or 1 in their place) and applies to all other axes: ``(samples, tokens)``
    for ``(samples, tokens, features)``. An element counts if the mask is not 0 there. An element that the network
    itself masks does not count, unless the run no longer masks it.

    Args:
        reference: The whole tensor in FP32.
        test: The whole tensor in the judged run, of the same shape. If None, the masks of FP32 alone apply.

    Raises:
        InputError: the data have no such array, or its shape does not fit.
    """
    unmasked = (
        _find_elements_outside_network_mask(judged_output, reference, test) if judged_output.mask_threshold else None
    )
    if not judged_output.mask:
        return unmasked
    shape = reference.shape
    arrays = {**samples.read_labels(feed_index), **samples.read_feed(feed_index)}
    if judged_output.mask not in arrays:
        raise InputError(
            f"--judge {judged_output.name}: the data have no {judged_output.mask}",
            f"they have {', '.join(arrays)}",
            "Name an input or another array of the data after @.",
        )
    mask = arrays[judged_output.mask]
    fits = mask.ndim <= len(shape) and all(
        mask_size in (1, size) for mask_size, size in zip(mask.shape, shape, strict=False)
    )
    if not fits:
        sizes, tensor_sizes = ("x".join(map(str, shape_of_array)) for shape_of_array in (mask.shape, shape))
        raise InputError(
            f"--judge {judged_output.name}: {judged_output.mask} does not fit {judged_output.tensor}",
            f"its shape is {sizes}, the tensor's {tensor_sizes}: the leading axes have to be the same",
            "Name a mask such as (samples, tokens) for a tensor (samples, tokens, features).",
        )
    counts = np.reshape(mask != 0, mask.shape + (1,) * (len(shape) - mask.ndim))
    is_counted = take_judged_slice(np.broadcast_to(counts, shape), judged_output)
    return is_counted if unmasked is None else is_counted & unmasked


def _find_elements_outside_network_mask(
    judged_output: JudgedOutput, reference: np.ndarray, test: np.ndarray | None
) -> np.ndarray:
    """Returns the elements of a judged output that the network itself does not mask, as a bool array. NaN is not a
    mask."""
    expected = take_judged_slice(reference, judged_output)
    masked = np.abs(expected) >= judged_output.mask_threshold
    if test is not None:
        got = take_judged_slice(test, judged_output)
        masked &= (np.abs(got) >= min(judged_output.mask_threshold, _MIN_MASK_MAGNITUDE)) & (
            np.signbit(got) == np.signbit(expected)
        )
    unmasked: np.ndarray = ~masked
    return unmasked


def refuse_nan_in_judged_tensors(
    judged_outputs: Sequence[JudgedOutput],
    samples: Samples,
    feed_index: int,
    arrays_by_tensor: Mapping[str, np.ndarray],
    source_text: str,
) -> None:
    """Raises an error if the judged tensors of a reference contain NaN outside masked elements.

    NaN counts unless every judged output of its tensor leaves it out as padding.

    Args:
        arrays_by_tensor: Whole tensors of a feed by name.
        source_text: The origin of the tensors, for the error message.

    Raises:
        InputError: a NaN counts.
    """
    for tensor, array in arrays_by_tensor.items():
        if array.dtype.kind != "f" or not np.isnan(array).any():
            continue
        parts = [
            (take_judged_slice(array, output), find_unmasked_elements(output, samples, feed_index, array))
            for output in judged_outputs
            if output.tensor == tensor
        ]
        if not parts or any(counts is None or np.isnan(part[counts]).any() for part, counts in parts):
            nan = next(
                (
                    found
                    for part, counts in parts
                    if (found := np.isnan(part if counts is None else np.where(counts, part, 0))).any()
                ),
                np.isnan(array),
            )
            row = int(flatten_each_sample(nan, samples.count_samples_of_feed(feed_index)).any(axis=1).argmax())
            raise InputError(
                f"{source_text} yields NaN at {tensor}",
                f"sample {samples.sample_name(feed_index, row)} of {samples.source} causes it",
                "No precision can be judged against it: check the network and the data.",
            )


def find_common_mask_name(judged_outputs: Iterable[JudgedOutput]) -> str:
    """Returns the name of the only mask of the judged outputs; "" if there is none or more than one."""
    masks = {output.mask for output in judged_outputs if output.mask}
    return masks.pop() if len(masks) == 1 else ""


def read_mask(mask_name: str, samples: Samples, feed_index: int) -> np.ndarray:
    """Returns the mask of a feed as a bool array, True for each element that is compared."""
    mask: np.ndarray = {**samples.read_labels(feed_index), **samples.read_feed(feed_index)}[mask_name] != 0
    return mask


def find_mask_axes(
    network: Network, backend: Backend, samples: Samples, mask_name: str, tensors: Sequence[str]
) -> dict[str, tuple[bool, ...]]:
    """Returns for each tensor the axes that it shares with a mask: one bool for each axis of the tensor.

    Shared axes are recognised by their sizes in the first and the last feed, which are executed for this purpose. The
    first axis of mask and tensor is that of the samples. The second axis of the mask is the only other axis of the
    tensor with the same size. A tensor is left out if several axes have this size, as in attention scores, or none has
    it.
    """
    possible: dict[str, set[int]] = {}
    ranks: dict[str, int] = {}
    for index in sorted({0, len(samples) - 1}):
        sizes = samples.pad_rows(read_mask(mask_name, samples, index), index).shape
        for tensor, shape in measure_tensor_shapes(
            network.model, dict.fromkeys(tensors), samples, backend, index
        ).items():
            fits = len(sizes) in (1, 2) and shape[:1] == sizes[:1]
            matching_axes = {axis for axis, size in enumerate(shape) if axis and size == sizes[-1]} if fits else set()
            matching_axes = {0} if fits and len(sizes) == 1 else matching_axes
            possible[tensor] = possible.get(tensor, matching_axes) & matching_axes
            ranks[tensor] = len(shape)
    return {
        tensor: tuple(axis == 0 or axis in matching_axes for axis in range(ranks[tensor]))
        for tensor, matching_axes in possible.items()
        if len(matching_axes) == 1
    }
