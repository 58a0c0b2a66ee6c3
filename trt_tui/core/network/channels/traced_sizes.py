"""The sizes of tensors during channel tracing, from the file, from shape arithmetic, and from channel ids."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer, Shape

_SIZE_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.floordiv,
}
"""The operators of shape arithmetic on two numbers."""

_MAX_SIZES, _MAX_SIZE_DEPTH = 1024, 12
"""The maximum number of elements of a tensor of sizes, and of layers that compute it one after the other."""


class SizeReader:
    """A reader of the shapes and integer tensors that are known during channel tracing.

    Attributes:
        channel_ids: The channel ids by tensor. Each of their sizes is that of the tensor, or 1. A tensor without an
            entry has no scaled channels.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.channel_ids: dict[str, np.ndarray] = {}
        self._refined_shapes: dict[str, Shape] = {}

    def _shape(self, tensor: str) -> Shape | None:
        """Returns the shape of a tensor. Sizes that the file leaves open are filled in if they are known."""
        shape, channel_ids = self._refined_shapes.get(tensor, self.graph.shape(tensor)), self.channel_ids.get(tensor)
        if shape is None or channel_ids is None:
            return shape
        return tuple(
            number_size if number_size > 1 else size for size, number_size in zip(shape, channel_ids.shape, strict=True)
        )

    def _store_requested_shape(self, layer: Layer, sizes: Sequence[int | str | None] | None) -> None:
        """Stores the shape of a layer's result, as requested by the input that holds the new shape."""
        before, after = (self._shape(name) or () for name in (layer.inputs[0], layer.outputs[0]))
        if sizes is None or len(sizes) != len(after) or all(isinstance(size, int) for size in after):
            return
        requested = [
            before[axis] if size == 0 and axis < len(before) and layer.op_type == "Reshape" else size
            for axis, size in enumerate(sizes)
        ]
        if requested.count(-1) == 1 and layer.op_type == "Reshape":
            requested[requested.index(-1)] = _find_remaining_size(before, requested)
        self._refined_shapes[layer.outputs[0]] = tuple(
            known if isinstance(known, int) or size in (None, -1) else size
            for known, size in zip(after, requested, strict=True)
        )

    def read_sizes(self, tensor: str, depth: int = 0) -> list[int | str | None] | None:
        """Returns the elements of an integer tensor that is computed by shape arithmetic; None if they are unknown.

        An element is a number, the name of an open size, or None.
        """
        constant = stored_tensor(self.graph.ir_value(tensor)) if self.graph.has_tensor(tensor) else None
        if constant is not None:
            return [int(number) for number in constant.numpy().reshape(-1)] if constant.size <= _MAX_SIZES else None
        layer = self.graph.by_name.get(self.graph.producer.get(tensor, ""))
        if layer is None or depth > _MAX_SIZE_DEPTH:
            return None
        if layer.op_type == "Shape":
            attributes, shape = self.graph.node(layer.name).attributes, self._shape(layer.inputs[0])
            return (
                None
                if shape is None
                else list(shape)[attributes.get_int("start", 0) : attributes.get_int("end", len(shape))]
            )
        operands = [self.read_sizes(name, depth + 1) for name in layer.inputs]
        first = operands[0] if operands else None
        if layer.op_type == "Concat":
            sizes = [size for part in operands for size in part or ()]
            return None if any(part is None for part in operands) else sizes
        if first is None:
            return None
        if layer.op_type in ("Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity"):
            return first
        if any(part is None for part in operands):
            return None
        numbers = [[size for size in part if isinstance(size, int)] for part in operands if part is not None]
        if layer.op_type == "Gather":
            return (
                [first[index] for index in numbers[1]]
                if all(-len(first) <= index < len(first) for index in numbers[1])
                else None
            )
        if layer.op_type == "Slice" and all(len(part) == 1 for part in numbers[1:]):
            return first[slice(numbers[1][0], numbers[2][0], numbers[4][0] if len(numbers) > 4 else 1)]
        if layer.op_type in _SIZE_ARITHMETIC and all(len(part) == 1 for part in numbers) and len(first) == 1:
            left, right = numbers[0][0], numbers[1][0]
            return None if layer.op_type == "Div" and right <= 0 else [_SIZE_ARITHMETIC[layer.op_type](left, right)]
        return None

    def _is_computed(self, tensor: str) -> bool:
        return bool(tensor) and tensor not in self.graph.constant_tensors

    def _read_constant_shape(self, tensor: str) -> tuple[int, ...] | None:
        """Returns the shape of a float constant; None for any other tensor."""
        shape = self._shape(tensor) if tensor in self.graph.constant_tensors and self.graph.is_fp32(tensor) else None
        return (
            tuple(size for size in shape if isinstance(size, int))
            if shape is not None and all(isinstance(size, int) for size in shape)
            else None
        )

    def _read_integers(self, layer: Layer, index: int, attribute: str = "") -> list[int] | None:
        """Returns the integers in an input or in an attribute of a layer; None if they are unknown."""
        attributes = self.graph.node(layer.name).attributes
        if attribute and attribute in attributes:
            return list(attributes.get_ints(attribute, ()))
        sizes = self.read_sizes(layer.inputs[index]) if index < len(layer.inputs) else None
        integers = [size for size in sizes or () if isinstance(size, int)]
        return None if sizes is None or len(integers) < len(sizes) else integers


def _find_remaining_size(before: Shape, requested: Sequence[int | str | None]) -> int | None:
    """Returns the size that a Reshape states as -1; None if open sizes make it unknown."""
    open_before = sorted(str(size) for size in before if not isinstance(size, int))
    open_requested = sorted(str(size) for size in requested if not isinstance(size, int))
    divisor = math.prod(size for size in requested if isinstance(size, int) and size != -1)
    if open_before != open_requested or "None" in open_before or not divisor:
        return None
    return math.prod(size for size in before if isinstance(size, int)) // divisor
