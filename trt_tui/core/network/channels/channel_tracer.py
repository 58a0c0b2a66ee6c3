"""The tracer that follows channels through the layers, from their producers to their readers.

Each output channel of a producer gets an id. Producers are Convs, Gemms, MatMuls, and normalisations with a scale. The
id follows the channel through operators that commute with a positive factor: ``f(x / s) = f(x) / s``. If channels meet,
as in a residual Add, their ids are united, so that they share a factor. The channels before a layer that does not
commute keep the factor 1. The sizes of tensors come from the file, from shape arithmetic, and from channel ids.

Channels with equal roots share a factor.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import LayerGraph, reads_only_shape, stored_tensor
from trt_tui.core.network.inference import SmallTensorValues
from trt_tui.core.network.layers import ClippedTensor, Layer, LayerKind, Shape

UNSCALED = 0
"""The id of all channels that are known to have the factor 1."""

_MIN_OPEN_BOUND = 3e38
"""The magnitude from which a bound of a Clip bounds nothing."""

_SAME_SHAPE_OPERATORS = frozenset("Relu LeakyRelu Neg Abs Identity Dropout".split())
"""Operators with one data input and a result of its shape that commute with positive factors."""

_SPATIAL_OPERATORS = frozenset(
    "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool Resize Upsample".split()
)
"""Operators that combine positions of a channel, commute with positive factors, and keep the axes of channels."""

_SHARED_FACTOR_OPERATORS = frozenset("Add Sub Sum Mean Max Min".split())
"""Operators that commute with a factor if all operands have it."""

_HOMOGENEOUS_REDUCTIONS = frozenset("ReduceMean ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2".split())

_CHANNELS_FIRST_NORMS = frozenset(("BatchNormalization", "GroupNormalization"))
_CHANNELS_LAST_NORMS = frozenset(("LayerNormalization", "RMSNormalization"))

_Result = np.ndarray | Sequence[np.ndarray] | str
"""The channel ids of one output or of all outputs of a layer, or the reason why the layer does not commute."""


# -- reshaping of channel ids along blocks of axes, such as the axes that a Reshape merges into one ---------------------

MAX_CHANNEL_IDS = 1 << 20
"""The maximum number of channel ids of one tensor; a tensor with more stays unscaled."""

Block = tuple[tuple[int, int], tuple[int, int]]
"""A range of axes before a Reshape, and the range of axes with the same elements behind it."""


def reshape_channel_ids(
    channel_ids: np.ndarray, before: Shape, after: Shape, blocks: Sequence[Block]
) -> np.ndarray | str:
    """Returns the channel ids after a Reshape, or the reason why the channels cannot be traced through it.

    The sizes of blocks with different ids must be known.
    """
    source, result = [1] * len(before), [1] * len(after)
    for old, new in blocks:
        if any(size > 1 for size in channel_ids.shape[slice(*old)]):
            source[slice(*old)], result[slice(*new)] = (
                [size for size in shape[slice(*axes)] if isinstance(size, int)]
                for shape, axes in ((before, old), (after, new))
            )
    if math.prod(source) > MAX_CHANNEL_IDS:
        return "it has too many channels to be followed"
    reshaped = np.broadcast_to(channel_ids, source).reshape(result)
    for axis in range(reshaped.ndim):
        first = np.take(reshaped, [0], axis)
        if reshaped.shape[axis] > 1 and (reshaped == first).all():
            reshaped = first
    return reshaped


def has_equal_sizes(before: Shape, after: Shape) -> bool:
    """Returns True if all sizes of a block are known and have the same product."""
    old_sizes, new_sizes = ([size for size in shape if isinstance(size, int)] for shape in (before, after))
    return (len(old_sizes), len(new_sizes)) == (len(before), len(after)) and math.prod(old_sizes) == math.prod(
        new_sizes
    )


def match_all_blocks(before: Shape, after: Shape) -> list[Block]:
    """Returns the blocks of a Reshape: ranges of axes before and after it with equal numbers of elements."""
    blocks = _match_blocks(before, after)
    taken = sum(stop - start for (start, stop), _ in blocks), sum(stop - start for _, (start, stop) in blocks)
    ends = len(before), len(after)
    right = [
        ((ends[0] - old[1], ends[0] - old[0]), (ends[1] - new[1], ends[1] - new[0]))
        for old, new in _match_blocks(before[taken[0] :][::-1], after[taken[1] :][::-1])
    ]
    rest = (
        (taken[0], min([ends[0], *(old[0] for old, _ in right)])),
        (taken[1], min([ends[1], *(new[0] for _, new in right)])),
    )
    return [*blocks, rest, *right]


def _match_blocks(before: Shape, after: Shape) -> list[Block]:
    """Returns the leading blocks of axes with equal products, each as a range of axes before and after the Reshape."""
    blocks: list[Block] = []
    old = new = 0
    while old < len(before) and new < len(after):
        start = old, new
        first, second = before[old], after[new]
        old, new = old + 1, new + 1
        while first != second and isinstance(first, int) and isinstance(second, int):
            grows_old = first < second
            size = before[old : old + 1] if grows_old else after[new : new + 1]
            if not size or not isinstance(size[0], int) or not first or not second:
                return blocks
            if grows_old:
                first, old = first * size[0], old + 1
            else:
                second, new = second * size[0], new + 1
        if first is None or first != second:
            return blocks
        blocks.append(((start[0], old), (start[1], new)))
    return blocks


# -- sizes -----------------------------------------------------------------------------------------------------------


def _find_remaining_size(before: Shape, requested: Sequence[int | str | None]) -> int | None:
    """Returns the size that a Reshape states as -1; None if open sizes make it unknown."""
    open_before = sorted(str(size) for size in before if not isinstance(size, int))
    open_requested = sorted(str(size) for size in requested if not isinstance(size, int))
    divisor = math.prod(size for size in requested if isinstance(size, int) and size != -1)
    if open_before != open_requested or "None" in open_before or not divisor:
        return None
    return math.prod(size for size in before if isinstance(size, int)) // divisor


# -- tracing ---------------------------------------------------------------------------------------------------------


class ChannelTracer:
    """A tracer that gives ids to channels and unites the ids of channels that must share a scale factor.

    The channel ids of a tensor are an int array that broadcasts to the tensor. Values with id ``n`` are divided by
    factor ``n``, values with id ``-n`` are multiplied by it.

    Attributes:
        values: The values of shape arithmetic, and of the numbers that scale attentions.
        channel_ids: The channel ids by tensor. Each of their sizes is that of the tensor, or 1. A tensor without an
            entry has no scaled channels.
        producers: The constants that are divided: layer, input index and channel ids.
        readers: The constants that are multiplied: layer, input index, activation and channel ids.
        clips: The Clips with finite bounds, each with the channel ids of its input.
        products: The layers that sum over channels of two computed tensors, each with the channel ids of its operands.
        links: Pairs of arrays of united channel ids.
        grouped_layers: The layers of fusion groups. Moves can change the constants of these layers only.
    """

    def __init__(self, graph: LayerGraph, grouped_layers: Collection[str]) -> None:
        self.graph = graph
        self.grouped_layers = grouped_layers
        self.channel_ids: dict[str, np.ndarray] = {}
        self._refined_shapes: dict[str, Shape] = {}
        self.values = SmallTensorValues(graph)
        self.count = 1
        self.producers: list[tuple[Layer, int, np.ndarray]] = []
        self.readers: list[tuple[Layer, int, str, np.ndarray]] = []
        self.clips: list[tuple[ClippedTensor, np.ndarray]] = []
        self.products: list[tuple[Layer, np.ndarray, np.ndarray]] = []
        self.links: list[tuple[np.ndarray, np.ndarray]] = []
        self.reasons: list[str] = [""]
        self.reason_by_id = np.zeros(1, np.int32)
        """The index of the reason why a channel must have the factor 1, by channel id; 0 if there is no such reason."""
        # A rule receives the layer, the channel ids of its first input, and its node.
        rules: dict[str, Callable[[Layer, np.ndarray, ir.Node], _Result]] = {
            "Conv": self._trace_conv,
            "ConvTranspose": self._trace_conv,
            "Gemm": self._trace_gemm,
            "MatMul": self._trace_matmul,
            "Mul": self._trace_mul,
            "Div": self._trace_div,
            "PRelu": self._trace_prelu,
            "Clip": self._trace_clip,
            "Where": self._trace_where,
            "Concat": self._trace_concat,
            "Split": self._trace_split,
            "Slice": self._trace_slice,
            "Gather": self._trace_gather,
            "Transpose": self._trace_transpose,
            "Reshape": self._trace_reshape,
            "Flatten": self._trace_reshape,
            "Squeeze": self._trace_reshape,
            "Unsqueeze": self._trace_reshape,
            "Expand": self._trace_expand,
            "Tile": self._trace_tile,
            "Pad": self._trace_pad,
            "DepthToSpace": self._trace_depth_to_space,
        }
        rules |= dict.fromkeys(_SAME_SHAPE_OPERATORS, lambda layer, channel_ids, node: channel_ids)
        rules |= dict.fromkeys(_SPATIAL_OPERATORS, self._trace_spatial_operator)
        rules |= dict.fromkeys(_SHARED_FACTOR_OPERATORS, self._trace_shared_factor_operator)
        rules |= dict.fromkeys(_HOMOGENEOUS_REDUCTIONS, self._trace_reduction)
        rules |= dict.fromkeys((*_CHANNELS_FIRST_NORMS, *_CHANNELS_LAST_NORMS), self._trace_norm)
        self._rules = rules

    def trace_layers(self) -> None:
        """Finds the channel ids of all tensors."""
        for layer in self.graph.layers:
            if layer.kind in (LayerKind.CONSTANT, LayerKind.SHAPE) or reads_only_shape(layer):
                self.values.evaluate_layer(layer, self._shape)
                continue
            first_id = self.count
            result = self._trace_layer(layer)
            if isinstance(result, str):
                self.mark_unscaled(np.arange(first_id, self.count), result or f"{layer.name} is not followed")
                for tensor in self.graph.input_tensors(layer.name):
                    self.mark_unscaled(
                        self.channel_ids.get(tensor),
                        result or (f"{layer.name} ({layer.op_type}) reads {tensor}, and would see the scaled channels"),
                    )
            else:
                self.channel_ids.update((tensor, ids) for tensor, ids in result.items() if tensor and ids.any())
        for info in self.graph.outputs:
            self.mark_unscaled(self.channel_ids.get(info.name), f"{info.name} is an output of the network")

    def _trace_layer(self, layer: Layer) -> dict[str, np.ndarray] | str:
        """Returns the channel ids of a layer's outputs, or the reason why factors cannot pass the layer; "" if no rule
        fits."""
        rule = self._rules.get(layer.op_type)
        is_followed = (
            layer.kind is LayerKind.COPY or layer.kind is LayerKind.COMPUTE and layer.name in (self.grouped_layers)
        )
        if (
            rule is None
            or not is_followed
            or not layer.inputs
            or not self.graph.is_fp32(layer.outputs[0])
            or any(self._shape(name) is None for name in (layer.inputs[0], layer.outputs[0]))
        ):
            return ""
        try:
            result = rule(layer, self._get_channel_ids(layer.inputs[0]), self.graph.node(layer.name))
        except (IndexError, ValueError):
            return f"the sizes at {layer.name} contradict each other"
        if isinstance(result, str):
            return result
        channel_ids = dict(zip(layer.outputs, [result] if isinstance(result, np.ndarray) else result, strict=False))
        if any(array.size > MAX_CHANNEL_IDS for array in channel_ids.values()):
            return f"{layer.name} has too many channels to be followed"
        if any(array.any() and array.ndim != len(self._shape(tensor) or ()) for tensor, array in channel_ids.items()):
            return f"the sizes at {layer.name} contradict each other"
        return channel_ids

    # -- sizes --

    def _shape(self, tensor: str) -> Shape | None:
        """Returns the shape of a tensor. Sizes that the file leaves open are filled in if they are known."""
        shape, channel_ids = self._refined_shapes.get(tensor, self.graph.shape(tensor)), self.channel_ids.get(tensor)
        if shape is None or channel_ids is None:
            return shape
        return tuple(
            number_size if number_size > 1 else size for size, number_size in zip(shape, channel_ids.shape, strict=True)
        )

    def _store_requested_shape(self, layer: Layer) -> None:
        """Stores the shape of a layer's result, as requested by the input that holds the new shape."""
        sizes = self._read_sizes(layer, 1)
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

    def _read_sizes(self, layer: Layer, index: int) -> list[int | str | None] | None:
        """Returns the elements of an input that shape arithmetic computes: numbers, names of open sizes, or None.

        Returns None if all of them are unknown.
        """
        value = self.values.find_value(layer.inputs[index]) if index < len(layer.inputs) else None
        return None if value is None else value.reshape(-1).tolist()

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
        return self.values.find_integers(layer.inputs[index]) if index < len(layer.inputs) else None

    # -- channel ids --

    def _create_channel_ids(self, channels: int) -> np.ndarray:
        """Returns unused channel ids, int64 ``(channels,)``."""
        first, self.count = self.count, self.count + channels
        if self.count > len(self.reason_by_id):
            self.reason_by_id = np.concatenate((self.reason_by_id, np.zeros(self.count, np.int32)))
        return np.arange(first, self.count)

    def mark_unscaled(self, channel_ids: np.ndarray | None, reason: str) -> None:
        """Records that channels must keep the factor 1."""
        if channel_ids is None or not channel_ids.any():
            return
        absolute = np.unique(np.abs(channel_ids))
        fresh = absolute[self.reason_by_id[absolute] == 0]
        self.reasons.append(reason)
        self.reason_by_id[fresh[fresh != UNSCALED]] = len(self.reasons) - 1

    def is_scaled(self, channel_ids: np.ndarray) -> bool:
        """Returns True if any channel may have a factor other than 1."""
        absolute = np.abs(channel_ids)
        return bool(((absolute != UNSCALED) & (self.reason_by_id[absolute] == 0)).any())

    def _unite_channel_ids(self, first: np.ndarray, second: np.ndarray, reason: str) -> None:
        """Unites two arrays of channel ids element by element, after broadcasting."""
        first, second = np.broadcast_arrays(first, second)
        pairs = np.unique(np.stack((first.ravel(), second.ravel()), axis=1), axis=0)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        for column in (0, 1):
            self.mark_unscaled(pairs[pairs[:, 1 - column] == UNSCALED, column], reason)
        pairs = pairs[(pairs != UNSCALED).all(axis=1)]
        self.links.append((pairs[:, 0], pairs[:, 1]))

    def _unite_along_axes(self, channel_ids: np.ndarray, axes: Iterable[int], reason: str) -> np.ndarray:
        """Unites channel ids along some axes, and returns an array with size 1 along these axes."""
        for axis in axes:
            if channel_ids.shape[axis] > 1:
                first = np.take(channel_ids, [0], axis)
                self._unite_channel_ids(channel_ids, first, reason)
                channel_ids = first
        return channel_ids

    def _get_channel_ids(self, tensor: str) -> np.ndarray:
        """Returns the channel ids of a tensor, with as many axes as the tensor."""
        channel_ids = self.channel_ids.get(tensor)
        return np.zeros((1,) * len(self._shape(tensor) or ()), np.int64) if channel_ids is None else channel_ids

    def _divide_constant(self, layer: Layer, index: int, channel_ids: np.ndarray) -> np.ndarray | None:
        """Makes an added constant a producer. Its channels are divided like those of the other operand.

        Channels with a common value of the constant must share a factor.

        Args:
            channel_ids: The channel ids of the result.

        Returns:
            The channel ids of the result; None if the constant has too few values.
        """
        shape = self._read_constant_shape(layer.inputs[index])
        if shape is None:
            return None
        aligned = (1,) * (channel_ids.ndim - len(shape)) + shape
        varying = [axis for axis, size in enumerate(channel_ids.shape) if size > 1]
        if len(aligned) != channel_ids.ndim or varying and not any(aligned[axis] > 1 for axis in varying):
            return None
        channel_ids = self._unite_along_axes(
            channel_ids,
            [axis for axis in varying if aligned[axis] == 1],
            f"{layer.name} adds a constant with one value for several channels",
        )
        self.producers.append((layer, index, channel_ids.reshape(channel_ids.shape[channel_ids.ndim - len(shape) :])))
        return channel_ids

    # -- layers that multiply --

    def _trace_conv(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        shape = self._read_constant_shape(layer.inputs[1])
        sizes = self._shape(layer.outputs[0])
        if shape is None or sizes is None:
            return ""
        conv_groups = node.attributes.get_int("group", 1)
        if conv_groups < 1 or shape[0] % conv_groups:
            return ""
        forward = layer.op_type == "Conv"
        inputs, outputs = (shape[1] * conv_groups, shape[0]) if forward else (shape[0], shape[1] * conv_groups)
        rest = [axis for axis in range(channel_ids.ndim) if axis != 1]
        source = self._unite_along_axes(channel_ids, rest, f"{layer.name} combines several positions").reshape(-1)
        spatial = (1,) * (len(shape) - 2)
        self._add_reader(
            layer,
            1,
            source,
            self._arrange_ids_like_weight(
                np.broadcast_to(source, (inputs,)), conv_groups, shape[0] if forward else 1, forward, spatial
            ),
        )
        produced = self._create_channel_ids(outputs)
        self.producers.append(
            (
                layer,
                1,
                self._arrange_ids_like_weight(
                    produced, conv_groups, shape[0] if not forward else 1, not forward, spatial
                ),
            )
        )
        return self._divide_bias(layer, produced, produced.reshape((1, outputs) + (1,) * (len(sizes) - 2)))

    @staticmethod
    def _arrange_ids_like_weight(
        channel_ids: np.ndarray, conv_groups: int, other_size: int, is_second: bool, spatial: tuple[int, ...]
    ) -> np.ndarray:
        """Returns the ids of a Conv's input or output channels in the axis order of its weight.

        In a grouped Conv, the second axis has only the channels of the group to which an index of the first axis
        belongs.

        Args:
            channel_ids: ``(channels,)``, all input or all output channels.
            other_size: Size of the first axis of the weight, if the channels are along the second.
            is_second: True if the channels are along the second axis.
        """
        if not is_second:
            return channel_ids.reshape(-1, 1, *spatial)
        by_group = channel_ids.reshape(conv_groups, -1)
        if conv_groups > 1:
            by_group = np.repeat(by_group, other_size // conv_groups, axis=0)
        return by_group.reshape(*by_group.shape, *spatial)

    def _trace_gemm(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        shape = self._read_constant_shape(layer.inputs[1])
        if shape is None or node.attributes.get_int("transA", False):
            return ""
        source = self._unite_along_axes(channel_ids, [0], f"{layer.name} combines several rows").reshape(-1)
        turned = bool(node.attributes.get_int("transB", False))
        self._add_reader(layer, 1, source, source.reshape((1, -1) if turned else (-1, 1)))
        produced = self._create_channel_ids(shape[0 if turned else 1])
        self.producers.append((layer, 1, produced.reshape((-1, 1) if turned else (1, -1))))
        return self._divide_bias(layer, produced, produced.reshape(1, -1))

    def _divide_bias(self, layer: Layer, channel_ids: np.ndarray, result: np.ndarray) -> np.ndarray:
        """Divides the bias of a layer and returns the channel ids of the result; ids stay unscaled if the bias cannot
        be divided."""
        bias = layer.inputs[2] if len(layer.inputs) > 2 else ""
        if not bias:
            return result
        shape = self._read_constant_shape(bias)
        if shape is None or shape[-1:] != (channel_ids.size,) or layer.op_type != "Gemm" and len(shape) != 1:
            self.mark_unscaled(channel_ids, f"the bias of {layer.name} is not a constant with one value per channel")
        else:
            self.producers.append((layer, 2, channel_ids.reshape((1,) * (len(shape) - 1) + (-1,))))
        return result

    def _add_reader(self, layer: Layer, index: int, source: np.ndarray, channel_ids: np.ndarray) -> None:
        if source.any():
            self.readers.append((layer, index, layer.inputs[1 - index], channel_ids))

    def _trace_matmul(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        first, second = layer.inputs
        if self._shape(second) is None:
            return ""
        if self._is_computed(first) and self._is_computed(second):
            return self._trace_computed_product(layer)
        weight_index = int(not self._is_computed(second))
        shape = self._read_constant_shape(layer.inputs[weight_index])
        channel_ids = self._get_channel_ids(layer.inputs[1 - weight_index])
        if shape is None or len(shape) != 2 or channel_ids.ndim < 2:
            return ""
        if weight_index == 0:
            return self._unite_along_axes(
                channel_ids, [channel_ids.ndim - 2], f"{layer.name} combines several positions"
            )
        row = self._unite_along_axes(
            channel_ids, range(channel_ids.ndim - 1), f"{layer.name} multiplies several positions by one weight"
        ).reshape(-1)
        self._add_reader(layer, 1, row, row.reshape(-1, 1))
        outputs = self._create_channel_ids(shape[1])
        self.producers.append((layer, 1, outputs.reshape(1, -1)))
        return outputs.reshape((1,) * (channel_ids.ndim - 1) + (-1,))

    def _trace_computed_product(self, layer: Layer) -> _Result:
        """Returns the channel ids of a product of two computed tensors.

        A factor along the summed axis needs its inverse at the other operand. A factor along another axis passes to the
        result if the other operand has no factors.
        """
        first, second = (self._get_channel_ids(name) for name in layer.inputs)
        rank = len(self._shape(layer.outputs[0]) or ())
        if min(first.ndim, second.ndim) < 2 or rank != max(first.ndim, second.ndim):
            return ""
        first, second = (ids.reshape((1,) * (rank - ids.ndim) + ids.shape) for ids in (first, second))
        sums_channels = self.is_scaled(first) and first.shape[-1] > 1 or self.is_scaled(second) and second.shape[-2] > 1
        if sums_channels or self.is_scaled(first) and self.is_scaled(second):
            reason = f"{layer.name} multiplies several positions"
            first = self._unite_along_axes(first, [rank - 2], reason)
            second = self._unite_along_axes(second, [rank - 1], reason)
            self.products.append((layer, np.swapaxes(first, -1, -2), second))
            return np.zeros((1,) * rank, np.int64)
        return first if self.is_scaled(first) else second

    def unite_products(self) -> None:
        """Gives the two operands of each product in `products` inverse factors, which leave the sums unchanged."""
        for layer, first, second in self.products:
            self._unite_channel_ids(first, -second, f"the other operand of {layer.name} is not scaled")

    # -- pointwise layers --

    def _align_channel_ids(self, layer: Layer, tensor: str) -> np.ndarray:
        """Returns the channel ids of an operand with as many axes as the result of the layer."""
        rank, channel_ids = len(self._shape(layer.outputs[0]) or ()), self._get_channel_ids(tensor)
        return channel_ids.reshape((1,) * (rank - channel_ids.ndim) + channel_ids.shape)

    def _trace_shared_factor_operator(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        computed = [self._align_channel_ids(layer, name) for name in layer.inputs if self._is_computed(name)]
        channel_ids = computed[0]
        for other in computed[1:]:
            self._unite_channel_ids(channel_ids, other, f"{layer.name} joins it with a tensor that is not scaled")
            channel_ids = np.broadcast_arrays(channel_ids, other)[0]
        if not channel_ids.any():
            return channel_ids
        for index, name in enumerate(layer.inputs):
            if not self._is_computed(name):
                divided = self._divide_constant(layer, index, channel_ids) if layer.op_type in ("Add", "Sub") else None
                if divided is None:
                    return f"{layer.name} ({layer.op_type}) combines it with a constant that cannot be scaled"
                channel_ids = divided
        return channel_ids

    def _trace_mul(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        computed = [name for name in layer.inputs if self._is_computed(name)]
        if not computed:
            return ""
        first, second = (self._align_channel_ids(layer, name) for name in (computed[0], computed[-1]))
        if len(computed) == 2:
            if self.is_scaled(first) and self.is_scaled(second):
                return f"{layer.name} (Mul) multiplies two tensors whose channels could both be scaled"
            return first if self.is_scaled(first) else second
        if self.is_scaled(first):
            return first
        # the scale of a decomposed normalisation is a producer
        index = next(index for index, name in enumerate(layer.inputs) if not self._is_computed(name))
        shape = self._read_constant_shape(layer.inputs[index])
        result_shape = self._shape(layer.outputs[0]) or ()
        if shape is None or sum(size > 1 for size in shape) != 1 or len(shape) > len(result_shape):
            return first
        channel_ids = self._create_channel_ids(math.prod(shape)).reshape(shape)
        self.producers.append((layer, index, channel_ids))
        return channel_ids.reshape((1,) * (len(result_shape) - len(shape)) + shape)

    def _trace_div(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        dividend, divisor = layer.inputs
        if (
            not self._is_computed(dividend)
            or self._is_computed(divisor)
            and self.is_scaled(self._get_channel_ids(divisor))
        ):
            return ""
        return self._align_channel_ids(layer, dividend)

    def _trace_prelu(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        return "" if self._is_computed(layer.inputs[1]) else channel_ids

    def _trace_clip(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        bounds = []
        for index, attribute, default in ((1, "min", -math.inf), (2, "max", math.inf)):
            tensor = layer.inputs[index] if index < len(layer.inputs) else ""
            constant = stored_tensor(self.graph.ir_value(tensor)) if tensor in self.graph.constant_tensors else None
            if tensor and constant is None:
                return ""
            bounds.append(
                float(constant.numpy().reshape(-1)[0])
                if constant is not None
                else node.attributes.get_float(attribute, default)
            )
        low, high = (bound if abs(bound) < _MIN_OPEN_BOUND else math.copysign(math.inf, bound) for bound in bounds)
        if low > 0 or high < 0:
            return ""
        if channel_ids.any() and (low not in (0.0, -math.inf) or high not in (0.0, math.inf)):
            self.clips.append((ClippedTensor(layer.inputs[0], low, high), channel_ids))
        return channel_ids

    def _trace_where(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        choices = [self._align_channel_ids(layer, name) for name in layer.inputs[1:]]
        for name in layer.inputs[1:]:
            constant = None if self._is_computed(name) else stored_tensor(self.graph.ir_value(name))
            if not self._is_computed(name) and (constant is None or constant.size > 1 or constant.numpy().any()):
                return ""
        if all(map(self._is_computed, layer.inputs[1:])):
            self._unite_channel_ids(choices[0], choices[1], f"{layer.name} joins it with a tensor that is not scaled")
            return np.broadcast_arrays(choices[0], choices[1])[0]
        return choices[0] if self._is_computed(layer.inputs[1]) else choices[1]

    # -- copies --

    def _trace_transpose(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        order = node.attributes.get_ints("perm", ()) or range(channel_ids.ndim)[::-1]
        return channel_ids.transpose(tuple(order))

    def _trace_reshape(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        if layer.op_type == "Reshape":
            self._store_requested_shape(layer)
        before, after = self._shape(layer.inputs[0]), self._shape(layer.outputs[0])
        assert before is not None and after is not None  # both ranks are known
        if not channel_ids.any():
            return np.zeros((1,) * len(after), np.int64)
        blocks = match_all_blocks(before, after)
        for old, new in blocks:
            if not has_equal_sizes(before[slice(*old)], after[slice(*new)]):
                channel_ids = self._unite_along_axes(
                    channel_ids,
                    range(*old),
                    (f"{layer.name} ({layer.op_type}) changes sizes that the file leaves open"),
                )
        return reshape_channel_ids(channel_ids, before, after, blocks)

    def _trace_expand(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        self._store_requested_shape(layer)
        return self._align_channel_ids(layer, layer.inputs[0])

    def _trace_tile(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        repeats = self._read_integers(layer, 1)
        if repeats is None:
            sizes = list(zip(self._shape(layer.inputs[0]) or (), self._shape(layer.outputs[0]) or (), strict=True))
            if any(
                size > 1 and before != after for size, (before, after) in zip(channel_ids.shape, sizes, strict=True)
            ):
                return ""
            return channel_ids
        return np.tile(
            channel_ids, [count if size > 1 else 1 for count, size in zip(repeats, channel_ids.shape, strict=True)]
        )

    def _trace_pad(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        value = layer.inputs[2] if len(layer.inputs) > 2 else ""
        constant = stored_tensor(self.graph.ir_value(value)) if value in self.graph.constant_tensors else None
        old_value = float(node.attributes.get_float("value", 0.0))  # below opset 11
        if value and (constant is None or constant.numpy().any()) or old_value != 0:
            return f"{layer.name} (Pad) pads with another value than zero"
        return self._keep_resized_axes(layer, channel_ids)

    def _keep_resized_axes(self, layer: Layer, channel_ids: np.ndarray) -> _Result:
        """Returns the channel ids of a layer's input. Channels along an axis whose size changes must share a factor."""
        before, after = (self._shape(name) or () for name in (layer.inputs[0], layer.outputs[0]))
        axes = [
            axis
            for axis, sizes in enumerate(zip(before, after, strict=True))
            if sizes[0] != sizes[1] or not isinstance(sizes[0], int)
        ]
        return self._unite_along_axes(channel_ids, axes, f"{layer.name} combines several positions")

    def _trace_spatial_operator(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        if len(self._shape(layer.outputs[0]) or ()) != channel_ids.ndim:
            return ""
        if layer.op_type in ("Resize", "Upsample"):
            is_crop = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
            return "" if is_crop else self._keep_resized_axes(layer, channel_ids)
        return self._unite_along_axes(
            channel_ids, range(2, channel_ids.ndim), f"{layer.name} combines several positions"
        )

    def _trace_reduction(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        axes = self._read_integers(layer, 1, "axes")
        has_axes = len(layer.inputs) > 1 and bool(layer.inputs[1])
        if axes is None and has_axes or not axes and "noop_with_empty_axes" in node.attributes:
            return ""
        reduced = tuple(axis % channel_ids.ndim for axis in axes or range(channel_ids.ndim))
        channel_ids = self._unite_along_axes(channel_ids, reduced, f"{layer.name} combines several channels")
        return channel_ids if node.attributes.get_int("keepdims", 1) else channel_ids.squeeze(reduced)

    def _trace_concat(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        rank = len(self._shape(layer.outputs[0]) or ())
        axis = node.attributes.get_int("axis", 0) % rank
        parts = [self._get_channel_ids(name) for name in layer.inputs]
        sizes = [(self._shape(name) or ())[axis] for name in layer.inputs]
        if not any(part.any() for part in parts):
            return np.zeros((1,) * rank, np.int64)
        common = [max(part.shape[index] for part in parts) for index in range(rank)]
        if common[axis] > 1 and all(isinstance(size, int) for size in sizes):
            known = [size for size in sizes if isinstance(size, int)]
            return np.concatenate(
                [
                    np.broadcast_to(part, [size if index == axis else common[index] for index in range(rank)])
                    for part, size in zip(parts, known, strict=True)
                ],
                axis,
            )
        reason = f"{layer.name} (Concat) combines it with a tensor that is not scaled"
        parts = [self._unite_along_axes(part, [axis], reason) for part in parts]
        for part in parts[1:]:
            self._unite_channel_ids(parts[0], part, reason)
        return np.broadcast_to(parts[0], [1 if index == axis else common[index] for index in range(rank)])

    def _trace_split(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        axis = node.attributes.get_int("axis", 0) % channel_ids.ndim
        if channel_ids.shape[axis] == 1:
            return [channel_ids] * len(layer.outputs)
        shapes = [self._shape(name) or (None,) * channel_ids.ndim for name in layer.outputs]
        sizes = [size for shape in shapes if isinstance(size := shape[axis], int)]
        if len(sizes) != len(layer.outputs) or sum(sizes) != channel_ids.shape[axis]:
            return ""
        return np.split(channel_ids, np.cumsum(sizes)[:-1].tolist(), axis)

    def _trace_slice(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        starts, ends = self._read_integers(layer, 1, "starts"), self._read_integers(layer, 2, "ends")
        axes = self._read_integers(layer, 3, "axes")
        has_axes = "axes" in node.attributes or len(layer.inputs) > 3 and bool(layer.inputs[3])
        steps = self._read_integers(layer, 4)
        if steps is None and len(layer.inputs) > 4 and layer.inputs[4] or steps and min(steps) < 0:
            return ""
        if axes is None:
            if has_axes:
                return self._keep_resized_axes(layer, channel_ids)
            axes = list(range(len(starts or ())))
        if starts is None or ends is None:
            return self._keep_resized_axes(layer, channel_ids)
        selection: list[slice] = [slice(None)] * channel_ids.ndim
        for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
            if channel_ids.shape[axis] > 1:
                selection[axis % channel_ids.ndim] = slice(start, end, step)
        return channel_ids[tuple(selection)]

    def _trace_gather(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        axis = node.attributes.get_int("axis", 0) % channel_ids.ndim
        indices_shape = self._shape(layer.inputs[1])
        if indices_shape is None:
            return ""
        indices = self._read_integers(layer, 1)
        if indices is None or channel_ids.shape[axis] == 1:
            united = self._unite_along_axes(channel_ids, [axis], f"{layer.name} (Gather) selects among its channels")
            return united.reshape(united.shape[:axis] + (1,) * len(indices_shape) + united.shape[axis + 1 :])
        taken = np.take(channel_ids, indices, axis)
        sizes = tuple(size for size in indices_shape if isinstance(size, int))
        return taken.reshape(channel_ids.shape[:axis] + sizes + channel_ids.shape[axis + 1 :])

    def _trace_depth_to_space(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        if channel_ids.ndim != 4 or channel_ids.shape[1] == 1:
            return channel_ids
        channel_ids = self._unite_along_axes(channel_ids, (0, 2, 3), f"{layer.name} combines several positions")
        blocks = node.attributes.get_int("blocksize", 1) ** 2
        axis = 1 if node.attributes.get_string("mode", "DCR") == "CRD" else 0
        by_block = channel_ids.reshape((-1, blocks) if axis else (blocks, -1))
        united = self._unite_along_axes(by_block, [axis], f"{layer.name} makes positions of channels")
        return united.reshape(1, -1, 1, 1)

    # -- normalisations --

    def _trace_norm(self, layer: Layer, channel_ids: np.ndarray, node: ir.Node) -> _Result:
        """Returns new channel ids for the result of a normalisation operator. Its scale and bias are divided."""
        rank = len(self._shape(layer.outputs[0]) or ())
        self.mark_unscaled(
            channel_ids, f"{layer.name} ({layer.op_type}) reads {layer.inputs[0]}, and would see the scaled channels"
        )
        shapes = [self._read_constant_shape(name) for name in layer.inputs[1:3] if name]
        axis = rank - 1 if layer.op_type in _CHANNELS_LAST_NORMS else 1
        size = (self._shape(layer.outputs[0]) or ())[axis]
        is_last = node.attributes.get_int("axis", -1) in (-1, rank - 1) or layer.op_type in _CHANNELS_FIRST_NORMS
        if (
            not shapes
            or not isinstance(size, int)
            or any(shape != (size,) for shape in shapes)
            or not is_last
            or (len(layer.outputs) > 1 and any(layer.outputs[1:]))
        ):
            return np.zeros((1,) * rank, np.int64)
        produced = self._create_channel_ids(size)
        self.producers += [(layer, index, produced) for index, name in enumerate(layer.inputs[:3]) if index and name]
        return produced.reshape([-1 if index == axis else 1 for index in range(rank)])


# -- roots -----------------------------------------------------------------------------------------------------------


class ChannelRoots:
    """The roots of all channel ids. United ids have the same root and must share a factor.

    Attributes:
        count: One more than the largest root.
    """

    def __init__(self, tracer: ChannelTracer) -> None:
        self.count = tracer.count
        self._tracer = tracer
        # node 2n is the id n, node 2n + 1 its negation, so that an id that meets its negation is found
        links = [link for first, second in tracer.links for link in ((first, second), (-first, -second))]
        labels = label_connected_components(
            2 * tracer.count,
            *(
                _signed_node_indices(np.concatenate([np.zeros(0, np.int64), *(link[side] for link in links)]))
                for side in (0, 1)
            ),
        )
        positive, negative = labels[0::2], labels[1::2]
        representative = np.minimum(positive, negative) >> 1
        known = np.flatnonzero(tracer.reason_by_id[: tracer.count])
        reasons = np.full(tracer.count, len(tracer.reasons), np.int64)
        np.minimum.at(reasons, representative[known], tracer.reason_by_id[known])
        self._reasons = reasons[representative]
        is_unscaled = (positive == negative) | (self._reasons < len(tracer.reasons))
        self._root = np.where(is_unscaled, UNSCALED, (positive >> 1) * (1 - 2 * (positive & 1)))

    def find_roots(self, channel_ids: np.ndarray) -> np.ndarray:
        """Returns the root of each channel id, with the sign of the id; `UNSCALED` for a channel whose factor is 1."""
        roots: np.ndarray = np.sign(channel_ids) * self._root[np.abs(channel_ids)]
        return roots

    def find_refusal_reason(self, channel_ids: np.ndarray) -> str:
        """Returns the first reason why one of the channels must have the factor 1."""
        reasons = self._tracer.reasons
        index = int(self._reasons[np.abs(channel_ids)].min(initial=len(reasons)))
        return reasons[index] if index < len(reasons) else "its channels meet others that would need the inverse factor"


def _signed_node_indices(channel_ids: np.ndarray) -> np.ndarray:
    """Returns the node of each signed channel id in the graph of united ids: ``2n`` for the id ``n``, ``2n + 1`` for
    ``-n``.
    """
    nodes: np.ndarray = 2 * np.abs(channel_ids) + (channel_ids < 0)
    return nodes


def label_connected_components(count: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Labels each node of a graph with the smallest node of its connected component."""
    labels = np.arange(count)
    while True:
        smaller = np.minimum(labels[first], labels[second])
        updated = labels.copy()
        for ends in (first, second):
            np.minimum.at(updated, labels[ends], smaller)
            np.minimum.at(updated, ends, smaller)
        while not np.array_equal(jumped := updated[updated], updated):
            updated = jumped
        if np.array_equal(updated, labels):
            return labels
        labels = updated
