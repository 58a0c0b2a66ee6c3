"""The pass over the layers that follows channels from their producers to their readers.

Each output channel of a producer (a Conv, Gemm or MatMul, or a normalisation with scale) gets a number. The number
follows the channel through operators that commute with a positive factor: ``f(x / s) = f(x) / s``. Where channels meet,
as in a residual Add, their numbers are united and take one factor. The channels before a layer that does not commute
keep the factor 1.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.channels.reshape_blocks import (
    MAX_NUMBERS,
    has_equal_sizes,
    match_all_blocks,
    reshape_channels,
)
from trt_tui.core.network.channels.traced_sizes import SizeReader
from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.graph import LayerGraph, reads_only_shape
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.zero_cost_support import ClippedTensor

UNSCALED = 0
"""The number of all channels whose factor is 1."""

_MIN_OPEN_BOUND = 3e38
"""The magnitude from which a bound of a Clip bounds nothing."""

_SAME_SHAPE_OPERATORS = frozenset("Relu LeakyRelu Neg Abs Identity Dropout".split())
"""Operators with one data input and a result of its shape that commute with positive factors."""

_SPATIAL_OPERATORS = frozenset(
    "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool Resize Upsample".split())
"""Operators that combine positions of a channel, commute with positive factors, and keep the axes of channels."""

_JOINS = frozenset("Add Sub Sum Mean Max Min".split())
"""Operators that commute with a factor if all operands have it."""

_HOMOGENEOUS_REDUCTIONS = frozenset("ReduceMean ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2".split())

_CHANNELS_FIRST_NORMS = frozenset(("BatchNormalization", "GroupNormalization"))
_CHANNELS_LAST_NORMS = frozenset(("LayerNormalization", "RMSNormalization"))

_Result = np.ndarray | Sequence[np.ndarray] | str
"""The channel numbers of one output or of all outputs of a layer, or the reason why the layer does not commute."""

_Rule = Callable[[Layer, np.ndarray, ir.Node], _Result]
"""The rule of an operator; it receives the layer, the numbers of its first input, and its node."""


class ChannelTracer(SizeReader):
    """The pass over all layers that numbers channels and unites the numbers of channels that must share a factor.

    The numbers of a tensor are an int array that broadcasts to the tensor. A number ``n`` above 0 means that the value
    is divided by factor ``n``, the number ``-n`` that it is multiplied by the factor.

    Attributes:
        producers: The constants that are divided, each with its layer input and its numbers.
        readers: The constants that are multiplied, each with its layer input, activation and numbers.
        clips: The Clips with finite bounds, each with the numbers of its input.
        products: The layers that sum products of channels of two computed tensors, each with the numbers of its
            operands in a form that broadcasts.
        links: Pairs of arrays of united numbers.
        grouped_layers: The layers of fusion groups. Moves can change the constants of these layers only.
    """

    def __init__(self, graph: LayerGraph, grouped_layers: Collection[str]) -> None:
        super().__init__(graph)
        self.grouped_layers = grouped_layers
        self.count = 1
        self.producers: list[tuple[Layer, int, np.ndarray]] = []
        self.readers: list[tuple[Layer, int, str, np.ndarray]] = []
        self.clips: list[tuple[ClippedTensor, np.ndarray]] = []
        self.products: list[tuple[Layer, np.ndarray, np.ndarray]] = []
        self.links: list[tuple[np.ndarray, np.ndarray]] = []
        self.reasons: list[str] = [""]
        self.reason_by_number = np.zeros(1, np.int32)
        """The index of the reason why a number is known to be unscaled, by number; 0 if it is not known to be."""
        rules: dict[str, _Rule] = {
            "Conv": self._trace_conv, "ConvTranspose": self._trace_conv, "Gemm": self._trace_gemm,
            "MatMul": self._trace_matmul, "Mul": self._trace_mul, "Div": self._trace_div, "PRelu": self._trace_prelu,
            "Clip": self._trace_clip, "Where": self._trace_where, "Concat": self._trace_concat,
            "Split": self._trace_split, "Slice": self._trace_slice, "Gather": self._trace_gather,
            "Transpose": self._trace_transpose, "Reshape": self._trace_reshape, "Flatten": self._trace_reshape,
            "Squeeze": self._trace_reshape, "Unsqueeze": self._trace_reshape, "Expand": self._trace_expand,
            "Tile": self._trace_tile, "Pad": self._trace_pad, "DepthToSpace": self._trace_depth_to_space}
        rules |= dict.fromkeys(_SAME_SHAPE_OPERATORS, lambda layer, numbers, node: numbers)
        rules |= dict.fromkeys(_SPATIAL_OPERATORS, self._trace_spatial_operator)
        rules |= dict.fromkeys(_JOINS, self._trace_join)
        rules |= dict.fromkeys(_HOMOGENEOUS_REDUCTIONS, self._trace_reduction)
        rules |= dict.fromkeys((*_CHANNELS_FIRST_NORMS, *_CHANNELS_LAST_NORMS), self._trace_norm)
        self._rules = rules

    def trace_layers(self) -> None:
        """Numbers the channels of all tensors."""
        for layer in self.graph.layers:
            if layer.kind in (LayerKind.CONSTANT, LayerKind.SHAPE) or reads_only_shape(layer):
                continue
            first_number = self.count
            result = self._trace_layer(layer)
            if isinstance(result, str):
                self.keep_unscaled(np.arange(first_number, self.count), result or f"{layer.name} is not followed")
                for tensor in self.graph.input_tensors(layer.name):
                    self.keep_unscaled(self.numbers.get(tensor), result or (
                        f"{layer.name} ({layer.op_type}) reads {tensor}, and would see the scaled channels"))
            else:
                self.numbers.update((tensor, numbers) for tensor, numbers in result.items() if tensor and numbers.any())
        for info in self.graph.outputs:
            self.keep_unscaled(self.numbers.get(info.name), f"{info.name} is an output of the network")

    def _trace_layer(self, layer: Layer) -> dict[str, np.ndarray] | str:
        """Returns the numbers of the outputs of a layer, or the reason why it does not commute; "" if no rule fits."""
        rule = self._rules.get(layer.op_type)
        is_followed = layer.kind is LayerKind.COPY or layer.kind is LayerKind.COMPUTE and layer.name in (
            self.grouped_layers)
        if rule is None or not is_followed or not layer.inputs or any(
                self._shape(name) is None for name in (layer.inputs[0], layer.outputs[0])):
            return ""
        try:
            result = rule(layer, self._read_numbers(layer.inputs[0]), self.graph.node(layer.name))
        except (IndexError, ValueError):
            return f"the sizes at {layer.name} contradict each other"
        if isinstance(result, str):
            return result
        numbers = dict(zip(layer.outputs, [result] if isinstance(result, np.ndarray) else result, strict=False))
        if any(array.size > MAX_NUMBERS for array in numbers.values()):
            return f"{layer.name} has too many channels to be followed"
        if any(array.any() and array.ndim != len(self._shape(tensor) or ()) for tensor, array in numbers.items()):
            return f"the sizes at {layer.name} contradict each other"
        return numbers

    # -- numbers --

    def _add_numbers(self, channels: int) -> np.ndarray:
        """Returns new numbers, int64 ``(channels,)``."""
        first, self.count = self.count, self.count + channels
        if self.count > len(self.reason_by_number):
            self.reason_by_number = np.concatenate((self.reason_by_number, np.zeros(self.count, np.int32)))
        return np.arange(first, self.count)

    def keep_unscaled(self, numbers: np.ndarray | None, reason: str) -> None:
        """Gives the factor 1 to some channels."""
        if numbers is None or not numbers.any():
            return
        absolute = np.unique(np.abs(numbers))
        fresh = absolute[self.reason_by_number[absolute] == 0]
        self.reasons.append(reason)
        self.reason_by_number[fresh[fresh != UNSCALED]] = len(self.reasons) - 1

    def is_scaled(self, numbers: np.ndarray) -> bool:
        """Returns True if a channel is not known to be unscaled."""
        absolute = np.abs(numbers)
        return bool(((absolute != UNSCALED) & (self.reason_by_number[absolute] == 0)).any())

    def _unite_numbers(self, first: np.ndarray, second: np.ndarray, reason: str) -> None:
        """Unites two arrays of numbers element by element, after broadcasting."""
        first, second = np.broadcast_arrays(first, second)
        pairs = np.unique(np.stack((first.ravel(), second.ravel()), axis=1), axis=0)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        for column in (0, 1):
            self.keep_unscaled(pairs[pairs[:, 1 - column] == UNSCALED, column], reason)
        pairs = pairs[(pairs != UNSCALED).all(axis=1)]
        self.links.append((pairs[:, 0], pairs[:, 1]))

    def _unite_along_axes(self, numbers: np.ndarray, axes: Iterable[int], reason: str) -> np.ndarray:
        """Returns numbers of size 1 along some axes, along which all channels must share a factor."""
        for axis in axes:
            if numbers.shape[axis] > 1:
                first = np.take(numbers, [0], axis)
                self._unite_numbers(numbers, first, reason)
                numbers = first
        return numbers

    def _read_numbers(self, tensor: str) -> np.ndarray:
        """Returns the numbers of a tensor, of its rank."""
        numbers = self.numbers.get(tensor)
        return np.zeros((1,) * len(self._shape(tensor) or ()), np.int64) if numbers is None else numbers

    def _divide_constant(self, layer: Layer, index: int, numbers: np.ndarray) -> np.ndarray | None:
        """Lets a constant operand be divided like the tensor it is added to.

        Channels that share a value of the constant must share a factor.

        Args:
            numbers: The numbers of the result, of its rank.

        Returns:
            The numbers of the result; None if the constant has too few values.
        """
        shape = self._read_constant_shape(layer.inputs[index])
        if shape is None:
            return None
        aligned = (1,) * (numbers.ndim - len(shape)) + shape
        varying = [axis for axis, size in enumerate(numbers.shape) if size > 1]
        if len(aligned) != numbers.ndim or varying and not any(aligned[axis] > 1 for axis in varying):
            return None
        numbers = self._unite_along_axes(numbers, [axis for axis in varying if aligned[axis] == 1],
                                         f"{layer.name} adds a constant with one value for several channels")
        self.producers.append((layer, index, numbers.reshape(numbers.shape[numbers.ndim - len(shape):])))
        return numbers

    # -- layers that multiply --

    def _trace_conv(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        shape = self._read_constant_shape(layer.inputs[1])
        sizes = self._shape(layer.outputs[0])
        if shape is None or sizes is None or not self.graph.is_float(layer.outputs[0]):
            return ""
        conv_groups = node.attributes.get_int("group", 1)
        if conv_groups < 1 or shape[0] % conv_groups:
            return ""
        forward = layer.op_type == "Conv"
        inputs, outputs = (shape[1] * conv_groups, shape[0]) if forward else (shape[0], shape[1] * conv_groups)
        rest = [axis for axis in range(numbers.ndim) if axis != 1]
        source = self._unite_along_axes(numbers, rest, f"{layer.name} combines several positions").reshape(-1)
        spatial = (1,) * (len(shape) - 2)
        self._add_reader(layer, 1, source, self._arrange_weight_numbers(
            np.broadcast_to(source, (inputs,)), conv_groups, shape[0] if forward else 1, forward, spatial))
        produced = self._add_numbers(outputs)
        self.producers.append((layer, 1, self._arrange_weight_numbers(produced, conv_groups, shape[0] if not forward
                                                                      else 1, not forward, spatial)))
        return self._divide_bias(layer, produced, produced.reshape((1, outputs) + (1,) * (len(sizes) - 2)))

    @staticmethod
    def _arrange_weight_numbers(numbers: np.ndarray, conv_groups: int, other_size: int, is_second: bool,
                                spatial: tuple[int, ...]) -> np.ndarray:
        """Returns the numbers of a Conv's channels in the shape of its weight.

        The channels of a grouped Conv lie along the second axis, with those of the group of each index of the first.

        Args:
            numbers: ``(channels,)``, all input or all output channels.
            other_size: Size of the first axis of the weight, if the channels lie along the second.
            is_second: True if the channels lie along the second axis.
        """
        if not is_second:
            return numbers.reshape(-1, 1, *spatial)
        by_group = numbers.reshape(conv_groups, -1)
        if conv_groups > 1:
            by_group = np.repeat(by_group, other_size // conv_groups, axis=0)
        return by_group.reshape(*by_group.shape, *spatial)

    def _trace_gemm(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        shape = self._read_constant_shape(layer.inputs[1])
        if shape is None or node.attributes.get_int("transA", False):
            return ""
        source = self._unite_along_axes(numbers, [0], f"{layer.name} combines several rows").reshape(-1)
        turned = bool(node.attributes.get_int("transB", False))
        self._add_reader(layer, 1, source, source.reshape((1, -1) if turned else (-1, 1)))
        produced = self._add_numbers(shape[0 if turned else 1])
        self.producers.append((layer, 1, produced.reshape((-1, 1) if turned else (1, -1))))
        return self._divide_bias(layer, produced, produced.reshape(1, -1))

    def _divide_bias(self, layer: Layer, numbers: np.ndarray, result: np.ndarray) -> np.ndarray:
        """Returns the numbers of a result, whose bias is divided too; they stay unscaled if it cannot be."""
        bias = layer.inputs[2] if len(layer.inputs) > 2 else ""
        if not bias:
            return result
        shape = self._read_constant_shape(bias)
        if shape is None or shape[-1:] != (numbers.size,) or layer.op_type != "Gemm" and len(shape) != 1:
            self.keep_unscaled(numbers, f"the bias of {layer.name} is not a constant with one value per channel")
        else:
            self.producers.append((layer, 2, numbers.reshape((1,) * (len(shape) - 1) + (-1,))))
        return result

    def _add_reader(self, layer: Layer, index: int, source: np.ndarray, numbers: np.ndarray) -> None:
        if source.any():
            self.readers.append((layer, index, layer.inputs[1 - index], numbers))

    def _trace_matmul(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        first, second = layer.inputs
        if not self.graph.is_float(layer.outputs[0]) or self._shape(second) is None:
            return ""
        if self._is_computed(first) and self._is_computed(second):
            return self._trace_computed_product(layer)
        weight_index = int(not self._is_computed(second))
        shape = self._read_constant_shape(layer.inputs[weight_index])
        numbers = self._read_numbers(layer.inputs[1 - weight_index])
        if shape is None or len(shape) != 2 or numbers.ndim < 2:
            return ""
        if weight_index == 0:
            return self._unite_along_axes(numbers, [numbers.ndim - 2], f"{layer.name} combines several positions")
        row = self._unite_along_axes(numbers, range(numbers.ndim - 1),
                                     f"{layer.name} multiplies several positions by one weight").reshape(-1)
        self._add_reader(layer, 1, row, row.reshape(-1, 1))
        outputs = self._add_numbers(shape[1])
        self.producers.append((layer, 1, outputs.reshape(1, -1)))
        return outputs.reshape((1,) * (numbers.ndim - 1) + (-1,))

    def _trace_computed_product(self, layer: Layer) -> _Result:
        """Returns the numbers of a product of two computed tensors.

        Factors along the summed axis need their inverse at the other operand. Factors along any other axis pass through
        if the other operand has none.
        """
        first, second = (self._read_numbers(name) for name in layer.inputs)
        rank = len(self._shape(layer.outputs[0]) or ())
        if min(first.ndim, second.ndim) < 2 or rank != max(first.ndim, second.ndim):
            return ""
        first, second = (numbers.reshape((1,) * (rank - numbers.ndim) + numbers.shape) for numbers in (first, second))
        sums_channels = self.is_scaled(first) and first.shape[-1] > 1 or self.is_scaled(second) and second.shape[-2] > 1
        if sums_channels or self.is_scaled(first) and self.is_scaled(second):
            reason = f"{layer.name} multiplies several positions"
            first = self._unite_along_axes(first, [rank - 2], reason)
            second = self._unite_along_axes(second, [rank - 1], reason)
            self.products.append((layer, np.swapaxes(first, -1, -2), second))
            return np.zeros((1,) * rank, np.int64)
        return first if self.is_scaled(first) else second

    def unite_products(self) -> None:
        """Gives the operands of `products` inverse factors, with which the sums of products stay the same."""
        for layer, first, second in self.products:
            self._unite_numbers(first, -second, f"the other operand of {layer.name} is not scaled")

    # -- pointwise layers --

    def _align_numbers(self, layer: Layer, tensor: str) -> np.ndarray:
        """Returns the numbers of an operand with the rank of the layer's result."""
        rank, numbers = len(self._shape(layer.outputs[0]) or ()), self._read_numbers(tensor)
        return numbers.reshape((1,) * (rank - numbers.ndim) + numbers.shape)

    def _trace_join(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        if not self.graph.is_float(layer.outputs[0]):
            return ""
        computed = [self._align_numbers(layer, name) for name in layer.inputs if self._is_computed(name)]
        numbers = computed[0]
        for other in computed[1:]:
            self._unite_numbers(numbers, other, f"{layer.name} joins it with a tensor that is not scaled")
            numbers = np.broadcast_arrays(numbers, other)[0]
        if not numbers.any():
            return numbers
        for index, name in enumerate(layer.inputs):
            if not self._is_computed(name):
                divided = self._divide_constant(layer, index, numbers) if layer.op_type in ("Add", "Sub") else None
                if divided is None:
                    return f"{layer.name} ({layer.op_type}) combines it with a constant that cannot be scaled"
                numbers = divided
        return numbers

    def _trace_mul(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        computed = [name for name in layer.inputs if self._is_computed(name)]
        if not self.graph.is_float(layer.outputs[0]) or not computed:
            return ""
        first, second = (self._align_numbers(layer, name) for name in (computed[0], computed[-1]))
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
        numbers = self._add_numbers(math.prod(shape)).reshape(shape)
        self.producers.append((layer, index, numbers))
        return numbers.reshape((1,) * (len(result_shape) - len(shape)) + shape)

    def _trace_div(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        dividend, divisor = layer.inputs
        if not self._is_computed(dividend) or self._is_computed(divisor) and self.is_scaled(
                self._read_numbers(divisor)):
            return ""
        return self._align_numbers(layer, dividend)

    def _trace_prelu(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        return "" if self._is_computed(layer.inputs[1]) else numbers

    def _trace_clip(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        bounds = []
        for index, attribute, default in ((1, "min", -math.inf), (2, "max", math.inf)):
            tensor = layer.inputs[index] if index < len(layer.inputs) else ""
            constant = stored_tensor(self.graph.ir_value(tensor)) if tensor in self.graph.constant_tensors else None
            if tensor and constant is None:
                return ""
            bounds.append(float(constant.numpy().reshape(-1)[0]) if constant is not None else node.attributes.get_float(
                attribute, default))
        low, high = (bound if abs(bound) < _MIN_OPEN_BOUND else math.copysign(math.inf, bound)
                     for bound in bounds)
        if low > 0 or high < 0:
            return ""
        if numbers.any() and (low not in (0.0, -math.inf) or high not in (0.0, math.inf)):
            self.clips.append((ClippedTensor(layer.inputs[0], low, high), numbers))
        return numbers

    def _trace_where(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        choices = [self._align_numbers(layer, name) for name in layer.inputs[1:]]
        if not self.graph.is_float(layer.outputs[0]):
            return ""
        for name in layer.inputs[1:]:
            constant = None if self._is_computed(name) else stored_tensor(self.graph.ir_value(name))
            if not self._is_computed(name) and (constant is None or constant.size > 1 or constant.numpy().any()):
                return ""
        if all(map(self._is_computed, layer.inputs[1:])):
            self._unite_numbers(choices[0], choices[1], f"{layer.name} joins it with a tensor that is not scaled")
            return np.broadcast_arrays(choices[0], choices[1])[0]
        return choices[0] if self._is_computed(layer.inputs[1]) else choices[1]

    # -- copies --

    def _trace_transpose(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        order = node.attributes.get_ints("perm", ()) or range(numbers.ndim)[::-1]
        return numbers.transpose(tuple(order))

    def _trace_reshape(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        if layer.op_type == "Reshape":
            self._refine_shape(layer, self.read_sizes(layer.inputs[1]) if len(layer.inputs) > 1 else None)
        before, after = self._shape(layer.inputs[0]), self._shape(layer.outputs[0])
        assert before is not None and after is not None  # both ranks are known
        if not numbers.any():
            return np.zeros((1,) * len(after), np.int64)
        blocks = match_all_blocks(before, after)
        for old, new in blocks:
            if not has_equal_sizes(before[slice(*old)], after[slice(*new)]):
                numbers = self._unite_along_axes(numbers, range(*old), (
                    f"{layer.name} ({layer.op_type}) changes sizes that the file leaves open"))
        return reshape_channels(numbers, before, after, blocks)

    def _trace_expand(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        self._refine_shape(layer, self.read_sizes(layer.inputs[1]))
        return self._align_numbers(layer, layer.inputs[0])

    def _trace_tile(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        repeats = self._read_integers(layer, 1)
        if repeats is None:
            sizes = list(zip(self._shape(layer.inputs[0]) or (), self._shape(layer.outputs[0]) or (),
                             strict=True))
            if any(number_size > 1 and before != after
                   for number_size, (before, after) in zip(numbers.shape, sizes, strict=True)):
                return ""
            return numbers
        return np.tile(numbers, [count if size > 1 else 1 for count, size in zip(repeats, numbers.shape, strict=True)])

    def _trace_pad(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        value = layer.inputs[2] if len(layer.inputs) > 2 else ""
        constant = stored_tensor(self.graph.ir_value(value)) if value in self.graph.constant_tensors else None
        old_value = float(node.attributes.get_float("value", 0.0))  # below opset 11
        if value and (constant is None or constant.numpy().any()) or old_value != 0:
            return f"{layer.name} (Pad) pads with another value than zero"
        return self._keep_resized_axes(layer, numbers)

    def _keep_resized_axes(self, layer: Layer, numbers: np.ndarray) -> _Result:
        """Returns the numbers of a layer's input; channels along axes whose size changes share a factor."""
        before, after = (self._shape(name) or () for name in (layer.inputs[0], layer.outputs[0]))
        axes = [axis for axis, sizes in enumerate(zip(before, after, strict=True))
                if sizes[0] != sizes[1] or not isinstance(sizes[0], int)]
        return self._unite_along_axes(numbers, axes, f"{layer.name} combines several positions")

    def _trace_spatial_operator(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        if len(self._shape(layer.outputs[0]) or ()) != numbers.ndim:
            return ""
        if layer.op_type in ("Resize", "Upsample"):
            is_crop = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
            return "" if is_crop else self._keep_resized_axes(layer, numbers)
        return self._unite_along_axes(numbers, range(2, numbers.ndim), f"{layer.name} combines several positions")

    def _trace_reduction(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        axes = self._read_integers(layer, 1, "axes")
        has_axes = len(layer.inputs) > 1 and bool(layer.inputs[1])
        if axes is None and has_axes or not axes and "noop_with_empty_axes" in node.attributes:
            return ""
        reduced = tuple(axis % numbers.ndim for axis in axes or range(numbers.ndim))
        numbers = self._unite_along_axes(numbers, reduced, f"{layer.name} combines several channels")
        return numbers if node.attributes.get_int("keepdims", 1) else numbers.squeeze(reduced)

    def _trace_concat(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        rank = len(self._shape(layer.outputs[0]) or ())
        axis = node.attributes.get_int("axis", 0) % rank
        parts = [self._read_numbers(name) for name in layer.inputs]
        sizes = [(self._shape(name) or ())[axis] for name in layer.inputs]
        if not any(part.any() for part in parts):
            return np.zeros((1,) * rank, np.int64)
        common = [max(part.shape[index] for part in parts) for index in range(rank)]
        if common[axis] > 1 and all(isinstance(size, int) for size in sizes):
            known = [size for size in sizes if isinstance(size, int)]
            return np.concatenate([
                np.broadcast_to(part, [size if index == axis else common[index] for index in range(rank)])
                for part, size in zip(parts, known, strict=True)
            ], axis)
        reason = f"{layer.name} (Concat) combines it with a tensor that is not scaled"
        parts = [self._unite_along_axes(part, [axis], reason) for part in parts]
        for part in parts[1:]:
            self._unite_numbers(parts[0], part, reason)
        return np.broadcast_to(parts[0], [1 if index == axis else common[index] for index in range(rank)])

    def _trace_split(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        axis = node.attributes.get_int("axis", 0) % numbers.ndim
        if numbers.shape[axis] == 1:
            return [numbers] * len(layer.outputs)
        shapes = [self._shape(name) or (None,) * numbers.ndim for name in layer.outputs]
        sizes = [size for shape in shapes if isinstance(size := shape[axis], int)]
        if len(sizes) != len(layer.outputs) or sum(sizes) != numbers.shape[axis]:
            return ""
        return np.split(numbers, np.cumsum(sizes)[:-1].tolist(), axis)

    def _trace_slice(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        starts, ends = self._read_integers(layer, 1, "starts"), self._read_integers(layer, 2, "ends")
        axes = self._read_integers(layer, 3, "axes")
        has_axes = "axes" in node.attributes or len(layer.inputs) > 3 and bool(layer.inputs[3])
        steps = self._read_integers(layer, 4)
        if steps is None and len(layer.inputs) > 4 and layer.inputs[4] or steps and min(steps) < 0:
            return ""
        if axes is None:
            if has_axes:
                return self._keep_resized_axes(layer, numbers)
            axes = list(range(len(starts or ())))
        if starts is None or ends is None:
            return self._keep_resized_axes(layer, numbers)
        selection: list[slice] = [slice(None)] * numbers.ndim
        for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
            if numbers.shape[axis] > 1:
                selection[axis % numbers.ndim] = slice(start, end, step)
        return numbers[tuple(selection)]

    def _trace_gather(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        if not self._is_computed(layer.inputs[0]):
            return np.zeros((1,) * len(self._shape(layer.outputs[0]) or ()), np.int64)
        axis = node.attributes.get_int("axis", 0) % numbers.ndim
        indices_shape = self._shape(layer.inputs[1])
        if indices_shape is None:
            return ""
        indices = self._read_integers(layer, 1)
        if indices is None or numbers.shape[axis] == 1:
            numbers = self._unite_along_axes(numbers, [axis], f"{layer.name} (Gather) selects among its channels")
            return numbers.reshape(numbers.shape[:axis] + (1,) * len(indices_shape) + numbers.shape[axis + 1:])
        taken = np.take(numbers, indices, axis)
        sizes = tuple(size for size in indices_shape if isinstance(size, int))
        return taken.reshape(numbers.shape[:axis] + sizes + numbers.shape[axis + 1:])

    def _trace_depth_to_space(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        if numbers.ndim != 4 or numbers.shape[1] == 1:
            return numbers
        numbers = self._unite_along_axes(numbers, (0, 2, 3), f"{layer.name} combines several positions")
        blocks = node.attributes.get_int("blocksize", 1)**2
        axis = 1 if node.attributes.get_string("mode", "DCR") == "CRD" else 0
        by_block = numbers.reshape((-1, blocks) if axis else (blocks, -1))
        united = self._unite_along_axes(by_block, [axis], f"{layer.name} makes positions of channels")
        return united.reshape(1, -1, 1, 1)

    # -- normalisations --

    def _trace_norm(self, layer: Layer, numbers: np.ndarray, node: ir.Node) -> _Result:
        """Returns new numbers for the results of a normalisation operator, whose scale and bias are divided."""
        rank = len(self._shape(layer.outputs[0]) or ())
        self.keep_unscaled(numbers, f"{layer.name} ({layer.op_type}) reads {layer.inputs[0]}, and would see the scaled "
                                    "channels")
        shapes = [self._read_constant_shape(name) for name in layer.inputs[1:3] if name]
        axis = rank - 1 if layer.op_type in _CHANNELS_LAST_NORMS else 1
        size = (self._shape(layer.outputs[0]) or ())[axis]
        is_last = node.attributes.get_int("axis", -1) in (-1, rank - 1) or layer.op_type in _CHANNELS_FIRST_NORMS
        if not shapes or not isinstance(size, int) or any(shape != (size,) for shape in shapes) or not is_last or (
                len(layer.outputs) > 1 and any(layer.outputs[1:])):
            return np.zeros((1,) * rank, np.int64)
        produced = self._add_numbers(size)
        self.producers += [(layer, index, produced) for index, name in enumerate(layer.inputs[:3]) if index and name]
        return produced.reshape([-1 if index == axis else 1 for index in range(rank)])
