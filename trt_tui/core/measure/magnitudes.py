"""The largest FP32 magnitudes of a network over samples: those of its tensors, and of values inside its operators.

A tensor is measured by reductions in the graph, so that only scalars leave the inference session. Three kinds of values
are not in any tensor:
- A partial sum of products. A kernel that accumulates in FP16 may add the products in any order.
- The normaliser of a Softmax, the sum of ``exp(x - max)``. A fused attention may divide by it after the product with
  the values.
- The argument of a logarithm. TensorRT's parser splits a LogSoftmax into a Softmax and a Log. It splits a ReduceLogSum
  or ReduceLogSumExp into a sum and a Log (up to 8.6 without subtracting the maximum).

Operators of `INNER_BOUNDS` hold further values. The argument of a logarithm follows from the magnitude of the result.
All other values have an upper bound, which follows from the magnitudes of the inputs and the L1 norms of constant
weights.
"""

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.tensor_collection import NetworkProbe
from trt_tui.core.data.adaptive_runner import FP32_RUNS
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import LoadingTask
from trt_tui.core.lowering.gated.gated_graph import expand_mask_to_axes
from trt_tui.core.lowering.rulebook import find_compute_type_results
from trt_tui.core.measure.judged_outputs import JudgedOutput, find_common_mask_name, find_mask_axes, read_mask
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_MAX, FP16_MIN, FP16_OVERFLOW
from trt_tui.core.runner import Backend, Runner

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PRODUCTS_OF_TWO = (*_CONVOLUTIONS, "Gemm", "MatMul")
"""Operators that add products of two operands; the bias of some is their third input."""

LOGARITHM_OPERATORS = ("LogSoftmax", "ReduceLogSum", "ReduceLogSumExp")
"""Operators that TensorRT computes as a logarithm behind other layers."""

_SATURATING_ACTIVATIONS = frozenset(("Tanh", "Sigmoid", "HardSigmoid", "Softsign"))
"""Activations of recurrent operators whose results are at most 1."""

_MAX_EXPONENT = 88.0
"""The largest argument of an exponential: that of a larger value exceeds FP32."""


@dataclass(frozen=True)
class Magnitudes:
    """The largest FP32 magnitudes of tensors, and of values inside layers, over samples. Infinities are left out.

    Attributes:
        tensor_magnitudes: By name of a float tensor that a fusion group computes or reads, and of a constant that FP16
            cannot represent and that is not a mask.
        inner_magnitudes: By name of a layer, the upper bound of the values that it computes on the way to its result. A
            layer is absent if no such value can exceed FP16.
    """

    tensor_magnitudes: Mapping[str, float] = field(default_factory=dict)
    inner_magnitudes: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_feeds(cls, feed_magnitudes: Iterable["Magnitudes"]) -> "Magnitudes":
        tensors: dict[str, float] = {}
        inner: dict[str, float] = {}
        for feed in feed_magnitudes:
            for joined, amaxes in ((tensors, feed.tensor_magnitudes), (inner, feed.inner_magnitudes)):
                for name, amax in amaxes.items():
                    joined[name] = max(joined.get(name, 0.0), amax)
        return cls(tensors, inner)


class MagnitudeSource(Protocol):
    """The parts of a simulation that a measurement of magnitudes needs."""

    network: Network
    samples: Samples
    backend: Backend
    judged_outputs: tuple[JudgedOutput, ...]


class MagnitudeContext(Protocol):
    """The context in which a `MagnitudeTask` measures the largest magnitudes of tensors."""

    @property
    def analysis(self) -> MagnitudeSource:
        """The simulation of the network."""


class MagnitudeTask(LoadingTask):
    """A task that measures the largest FP32 magnitudes of tensors in one feed.

    Values that a mask of the network hides are left out. Padding (elements that the one mask of the judged outputs
    leaves out) is left out too, with two exceptions. It counts if the tensor lacks the axes of the mask. It also counts
    if a padded value is beyond FP16: such a value becomes an infinity, and 0 times an infinity is NaN elsewhere.
    """

    _loaded: "_MagnitudeSession | None" = None

    def describe_item(self, feed_index: int) -> str:
        return f"the largest values of feed {feed_index}"

    def run_item(self, context: MagnitudeContext, feed_index: int) -> Generator[None, None, Magnitudes]:
        if self._loaded is None:
            self._loaded = _MagnitudeSession(context.analysis)
        yield from ()  # a feed is one step, so that runs in turn do not begin the same feed
        return self._loaded.measure_feed_magnitudes(feed_index)


class MagnitudeEvaluation:
    """The tensors whose extremes are measured, and the computation of magnitudes from these extremes.

    Another execution measures the finite values of tensors with infinities.

    Attributes:
        tensors: The tensors whose extremes are needed.
        mask_axes: The axes of the mask of the judged outputs, by tensor; a tensor without these axes is absent.
        shape_tensors: The tensors whose shapes are needed.
    """

    def __init__(self, analysis: MagnitudeSource) -> None:
        self._network = network = analysis.network
        self._analysis = analysis
        self._bounds = [_InnerBound(network, layer) for layer in _find_layers_of_operators(network, INNER_BOUNDS)]
        operands = (tensor for bound in self._bounds for tensor in bound.operands)
        results = (tensor for group in network.groups for name in group.layers
                   for tensor in find_compute_type_results(network, network.get_layer(name)))
        read = (tensor for group in network.groups for tensor in group.inputs)
        self.tensors = [
            tensor for tensor in dict.fromkeys((*results, *read, *operands)) if tensor not in network.masked_tensors
            and tensor not in network.blocking_plugins and network.is_float(tensor)
        ]
        self.mask_name = find_common_mask_name(analysis.judged_outputs)
        self.mask_axes = find_mask_axes(network, analysis.backend, analysis.samples, self.mask_name,
                                        self.tensors) if self.mask_name else {}
        self._logarithms = [layer for layer in _find_layers_of_operators(network, LOGARITHM_OPERATORS)
                            if layer.outputs[0] in self.tensors]
        counted = {tensor for bound in self._bounds for tensor in bound.counted_operands}
        self.shape_tensors = sorted(counted - network.blocking_plugins.keys())
        self._finite_graph: _FiniteMagnitudeGraph | None = None
        self._in_use = False
        analysis.samples.memory_fallbacks.register_session_release(FP32_RUNS, self.unload_sessions)
        constants = {tensor for group in network.groups for name in group.layers
                     for tensor in network.get_layer(name).inputs
                     if tensor in network.constant_tensors and network.is_float(tensor)}
        self._large_constants = {tensor: amax for tensor in constants
                                 if (amax := float(np.max(network.constant_amax(tensor), initial=0))) >= FP16_OVERFLOW
                                 and not network.is_mask(tensor)}

    def close(self) -> None:
        self._in_use = False
        if self._finite_graph is not None:
            self._finite_graph.close()

    def unload_sessions(self) -> bool:
        """Frees the inference sessions, and returns True if there were any. They are loaded again before their next
        use."""
        in_use = self._in_use
        self.close()
        return in_use

    def find_extreme_tensors(self, group_names: Sequence[str]) -> dict[str, list[str]] | None:
        """Returns the tensors by the first of some groups that computes or reads them; None if none of these groups
        does."""
        remaining = dict.fromkeys(self.tensors)
        by_group = {}
        for name in group_names:
            group = self._network.get_group(name)
            touched = (*group.inputs, *(tensor for layer in map(self._network.get_layer, group.layers)
                                        for tensor in (*layer.inputs, *layer.outputs)))
            by_group[name] = [tensor for tensor in dict.fromkeys(touched) if tensor in remaining]
            for tensor in by_group[name]:
                del remaining[tensor]
        return None if remaining else by_group

    def compute_magnitudes(self, feed: Mapping[str, np.ndarray], extremes: Mapping[str, Sequence[float]],
                           sizes: Mapping[str, Sequence[int]]) -> Magnitudes:
        """Computes the largest magnitudes of a feed, with another execution for tensors with infinities.

        Args:
            extremes: The maximum and the minimum of each tensor, and both again without the elements that the mask of
                the judged outputs hides.
            sizes: The shapes of `shape_tensors`.
        """
        tensors = {tensor: max(values[0], -values[1]) for tensor, values in extremes.items()}
        tensors.update((tensor, max(extremes[tensor][2], -extremes[tensor][3])) for tensor in self.mask_axes
                       if tensors[tensor] <= FP16_MAX)
        inner = {layer.name: _max_log_argument(layer, *extremes[layer.outputs[0]][:2]) for layer in self._logarithms}
        inner |= {bound.layer.name: bound.compute_bound(tensors, sizes) for bound in self._bounds}
        if infinite := {tensor for tensor, amax in tensors.items() if not math.isfinite(amax)}:
            if self._finite_graph is None or not self._finite_graph.tensors >= infinite:
                if self._finite_graph is not None:
                    infinite |= self._finite_graph.tensors
                    self._finite_graph.close()
                self._finite_graph = _FiniteMagnitudeGraph(self._analysis, sorted(infinite))
            self._in_use = True
            tensors.update(self._finite_graph.measure_magnitudes(feed))
        finite = {tensor: amax for tensor, amax in tensors.items() if math.isfinite(amax)}
        return Magnitudes({**finite, **self._large_constants}, {layer: magnitude for layer, magnitude in inner.items()
                                                                if magnitude >= FP16_OVERFLOW})


class _MagnitudeSession(MagnitudeEvaluation):
    """The loaded graph that measures the extremes of every tensor, with the evaluation of its results."""

    def __init__(self, analysis: MagnitudeSource) -> None:
        super().__init__(analysis)
        axes = self.mask_axes
        probe = NetworkProbe(self._network.model)
        self._mask_inputs = {axes_key: probe.add_input(f"trt_tui_kept_{number}", ir.DataType.BOOL, len(axes_key))
                             for number, axes_key in enumerate(dict.fromkeys(axes.values()))}
        zero = probe.add_constant(np.float32(0))
        self._extreme_outputs: dict[str, list[str]] = {}
        for tensor in self.tensors:
            value = probe.get_fp32_value(tensor)
            self._extreme_outputs[tensor] = probe.add_reductions(value, "ReduceMax", "ReduceMin")
            if tensor in axes:
                self._extreme_outputs[tensor] += probe.add_reductions(
                    probe.append_operator("Where", self._mask_inputs[axes[tensor]], value, zero),
                    "ReduceMax", "ReduceMin")
        self._shape_outputs = {
            tensor: probe.add_output(probe.append_operator("Shape", probe.get_fp32_value(tensor),
                                                           dtype=ir.DataType.INT64))
            for tensor in self.shape_tensors
        }
        self._runner = (probe.load_probe_runner(analysis.backend, analysis.samples) if self.tensors
                        else None)  # no runtime accepts a graph without outputs

    def close(self) -> None:
        super().close()
        if self._runner is not None:
            self._runner.close()

    def measure_feed_magnitudes(self, feed_index: int) -> Magnitudes:
        """Measures the largest FP32 magnitudes of tensors in one feed."""
        if self._runner is None:
            return Magnitudes()
        samples = self._analysis.samples
        feed = samples.read_feed(feed_index)
        masks = {}
        if self._mask_inputs:
            mask = read_mask(self.mask_name, samples, feed_index)
            masks = {value_name(value): expand_mask_to_axes(mask, axes) for axes, value in self._mask_inputs.items()}
        self._in_use = True
        scalars = self._runner.run({**feed, **masks})
        extremes = {tensor: [float(scalars[output]) for output in outputs]
                    for tensor, outputs in self._extreme_outputs.items()}
        sizes = {tensor: tuple(map(int, scalars[output])) for tensor, output in self._shape_outputs.items()}
        return self.compute_magnitudes(feed, extremes, sizes)


def _find_layers_of_operators(network: Network, operators: Collection[str]) -> list[Layer]:
    """Returns the layers in fusion groups that have one of some operators and can be executed."""
    layers = (network.get_layer(name) for group in network.groups for name in group.layers)
    return [layer for layer in layers if layer.op_type in operators and not layer.domain
            and network.blocking_plugins.keys().isdisjoint(layer.outputs) and any(map(network.is_float, layer.outputs))]


def _max_log_argument(layer: Layer, max_result: float, min_result: float) -> float:
    """Returns the largest argument of a layer's logarithm; infinite if FP16 rounds the smallest argument to 0.

    Args:
        max_result, min_result: The largest and the smallest result of the layer.
    """
    if -math.inf < min_result < math.log(FP16_MIN / 2):
        return math.inf
    return 0.0 if layer.op_type == "LogSoftmax" else math.exp(min(max_result, _MAX_EXPONENT))


class _InnerBound:
    """An upper bound of values inside a layer that are in no tensor.

    Attributes:
        operands: The float tensors from whose magnitudes the bound follows.
        counted_operands: The operands from whose shapes it follows.
        opset: The opset of the network.
    """

    def __init__(self, network: Network, layer: Layer) -> None:
        self._network, self.layer, self.opset = network, layer, network.opset
        tensors = {"Einsum": layer.inputs, "Softmax": layer.outputs}.get(
            layer.op_type, layer.inputs[:2] if layer.op_type in _PRODUCTS_OF_TWO else (*layer.inputs, *layer.outputs))
        self.operands = [tensor for tensor in tensors
                         if tensor and tensor not in network.constant_tensors and network.is_float(tensor)]
        self.counted_operands = self.operands
        if layer.op_type in _PRODUCTS_OF_TWO:  # the sums of a constant weight need no shape
            self.counted_operands = [layer.inputs[layer.op_type in _CONVOLUTIONS]] if len(self.operands) == 2 else []
        self.attributes = network.node(layer.name).attributes

    def compute_bound(self, tensor_magnitudes: Mapping[str, float], shapes: Mapping[str, Sequence[int]]) -> float:
        """Returns the bound for one feed; 0 if an operand is masked or not finite."""
        self._tensor_magnitudes, self._shapes = tensor_magnitudes, shapes
        bound = INNER_BOUNDS[self.layer.op_type](self) if self.operands else 0.0
        return bound if math.isfinite(bound) else 0.0

    def amax(self, *indices: int) -> float:
        """Returns the largest magnitude of some inputs; 0 without them."""
        return max((self.find_amax(self.layer.inputs[index]) for index in indices if index < len(self.layer.inputs)),
                   default=0.0)

    def find_amax(self, tensor: str) -> float:
        if tensor in self._network.constant_tensors:
            return (float(np.max(self._network.constant_amax(tensor), initial=0)) if self._network.is_float(tensor)
                    else 0.0)
        return self._tensor_magnitudes.get(tensor, 0.0)

    def shape(self, index: int) -> Sequence[int]:
        """Returns the sizes of an input; () without it."""
        return self.find_shape(self.layer.inputs[index] if index < len(self.layer.inputs) else "")

    def find_shape(self, tensor: str) -> Sequence[int]:
        sizes = self._network.shape(tensor) or () if tensor in self._network.constant_tensors else ()
        return self._shapes.get(tensor) or [size for size in sizes if isinstance(size, int)]

    def sum_of_row(self, index: int, axis: int = -1) -> float:
        """Returns the largest sum of magnitudes along an axis of an input, or along all axes from that one on."""
        tensor = self.layer.inputs[index] if index < len(self.layer.inputs) else ""
        if tensor not in self._network.constant_tensors:
            return self.amax(index) * math.prod(self.shape(index)[axis:])
        weight = np.abs(self._network.constant_value(tensor).astype(np.float64))
        return float(weight.reshape(*weight.shape[:axis], -1).sum(-1).max(initial=0))


    @cached_property
    def max_weight_l1_norm(self) -> float:
        """The largest sum of absolute weights of a product that contribute to one result."""
        position = 1 if self.layer.inputs[1] in self._network.constant_tensors else 0
        weight = np.abs(self._network.constant_value(self.layer.inputs[position]).astype(np.float64))
        weight = np.where(np.isfinite(weight), weight, 0)
        if self.layer.op_type == "Conv":
            return float(weight.reshape(len(weight), -1).sum(1).max(initial=0))
        if self.layer.op_type == "ConvTranspose":
            groups = self.attributes.get_int("group", 1) or 1
            group_weights = weight.reshape(groups, len(weight) // groups, weight.shape[1], -1)
            return float(group_weights.sum((1, 3)).max(initial=0))
        transposed = bool(self.attributes.get_int("transB" if position else "transA", 0))
        if weight.ndim < 2:
            return float(weight.sum())
        axis = -1 if (position == 1) is transposed else -2
        return float(weight.sum(axis).max(initial=0)) * self.gemm_factor

    @property
    def gemm_factor(self) -> float:
        """The factor of a Gemm's product in its largest form: TensorRT multiplies by an alpha behind the product."""
        return max(abs(self.attributes.get_float("alpha", 1.0) or 0.0), 1.0)

    @property
    def has_normalised_weights(self) -> bool:
        """True if the first operand of a MatMul is the result of a Softmax along the axis that is summed over."""
        network, source = self._network, self._network.producer.get(self.layer.inputs[0])
        if self.layer.op_type != "MatMul" or source is None or network.get_layer(source).op_type != "Softmax":
            return False
        rank = len(network.shape(network.get_layer(source).outputs[0]) or ())
        return network.node(source).attributes.get_int("axis", _default_softmax_axis(self.opset)) in (-1, rank - 1)


def _default_softmax_axis(opset: int) -> int:
    return -1 if opset >= 13 else 1


def _bound_product(inputs: _InnerBound) -> float:
    """Returns the bound of the sum of absolute products that one result of a Conv, MatMul or similar layer adds.

    An unnormalised attention product is at most the sum of the values of a column. The bound of a product of two
    activations therefore covers it too.
    """
    operator, amaxes = inputs.layer.op_type, [inputs.find_amax(tensor) for tensor in inputs.operands]
    if len(amaxes) == 1:
        return amaxes[0] * inputs.max_weight_l1_norm
    shape = inputs.shape(operator in _CONVOLUTIONS) or (1, 1)
    if operator in _CONVOLUTIONS:
        return math.prod(shape) / shape[operator == "ConvTranspose"] * math.prod(amaxes)
    size = shape[0 if inputs.attributes.get_int("transA", 0) else -1]
    return size * (amaxes[1] if inputs.has_normalised_weights else math.prod(amaxes)) * inputs.gemm_factor


def _bound_einsum(inputs: _InnerBound) -> float:
    """Returns the bound of the sum of absolute products: their number is the product of the sizes that are summed over.
    """
    equation = inputs.attributes.get_string("equation", "") or ""
    operand_terms, _, result = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for index, axes in enumerate(operand_terms.split(",")):
        shape = inputs.shape(index)
        before, _, behind = axes.partition("...")
        sizes |= {**dict(zip(before, shape, strict=False)),
                  **dict(zip(reversed(behind), reversed(shape), strict=False))}
    kept = result or [axis for axis in sizes if operand_terms.count(axis) == 1]
    return math.prod(size for axis, size in sizes.items() if axis not in kept) * math.prod(
        map(inputs.find_amax, inputs.layer.inputs))


def _bound_normaliser(inputs: _InnerBound) -> float:
    """Returns the number of values that a Softmax normalises together."""
    size = inputs.find_shape(inputs.layer.outputs[0]) or (1,)
    axis = inputs.attributes.get_int("axis", _default_softmax_axis(inputs.opset)) or 0
    return float(size[axis] if inputs.opset >= 13 else math.prod(size[axis:]))


def _bound_attention(inputs: _InnerBound) -> float:
    """Returns the bound of the scaled scores and of the unnormalised sum of values."""
    sizes, scale = inputs.shape(0), inputs.attributes.get_float("scale", 0.0)
    heads = inputs.attributes.get_int("q_num_heads", 1) if len(sizes) == 3 else 1
    channels = sizes[-1] / (heads or 1) if sizes else 1.0
    keys = sum(shape[-2] for shape in (inputs.shape(1), inputs.shape(4)) if len(shape) > 1)
    scores = inputs.amax(0) * inputs.amax(1, 4) * channels * abs(scale or 1 / math.sqrt(channels))
    return max(scores, inputs.amax(2, 5) * keys)


def _bound_recurrent_sum(inputs: _InnerBound) -> float:
    """Returns the bound of the sums before the activations, over the input, the state and both biases."""
    activations, states = inputs.attributes.get_strings("activations", ()), inputs.layer.outputs[:2]
    if not _SATURATING_ACTIVATIONS.issuperset(activations or ()) and not states[0]:
        return float(np.finfo(np.float32).max)  # no tensor has all states
    state = max(1.0, inputs.amax(5), *map(inputs.find_amax, filter(None, states)))
    return inputs.amax(0) * inputs.sum_of_row(1) + state * inputs.sum_of_row(2) + 2 * inputs.amax(3)


def _bound_sum_of_powers(inputs: _InnerBound) -> float:
    """Returns the bound of the sum of powers under the root of an Lp operator."""
    attributes, sizes = inputs.attributes, inputs.shape(0)
    axis = attributes.get_int("axis", -1) or 0
    summed = sizes[axis:][:1] if inputs.layer.op_type == "LpNormalization" else sizes[2:]
    kernel = tuple(attributes.get_ints("kernel_shape", ()) or summed)
    return float(inputs.amax(0)**(attributes.get_int("p", 2) or 2) * math.prod(kernel))


def _bound_sum(inputs: _InnerBound) -> float:
    """Returns the bound of a sum of several tensors; 0 for a Sum of two, which is its result."""
    amaxes = [inputs.amax(index) for index in range(len(inputs.layer.inputs))]
    return sum(amaxes) if len(amaxes) > 2 or inputs.layer.op_type == "Mean" else 0.0


INNER_BOUNDS: Mapping[str, Callable[[_InnerBound], float]] = {
    **dict.fromkeys(_PRODUCTS_OF_TWO, _bound_product), "Einsum": _bound_einsum, "Softmax": _bound_normaliser,
    "Attention": _bound_attention,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _bound_recurrent_sum),
    "DeformConv": lambda inputs: inputs.amax(0) * inputs.sum_of_row(1, 1) * max(1.0, inputs.amax(4)),
    "STFT": lambda inputs: inputs.amax(0) * (inputs.sum_of_row(2) or math.prod(inputs.shape(0)[1:])),
    **dict.fromkeys(("Mean", "Sum"), _bound_sum),
    "LRN": lambda inputs: inputs.amax(0)**2 * (inputs.attributes.get_int("size", 1) or 1),
    **dict.fromkeys(("GlobalLpPool", "LpNormalization", "LpPool"), _bound_sum_of_powers),
    "RotaryEmbedding": lambda inputs: inputs.amax(0) * (inputs.amax(1) + inputs.amax(2)),
}
"""Operators with inner values, each with a function that returns their upper bound."""


class _FiniteMagnitudeGraph:
    """A graph that computes the largest finite magnitude of some tensors."""

    def __init__(self, analysis: MagnitudeSource, tensors: Collection[str]) -> None:
        self.tensors = frozenset(tensors)
        probe = NetworkProbe(analysis.network.model)
        self._outputs = {}
        for tensor in tensors:
            size = probe.append_operator("Abs", probe.get_fp32_value(tensor))
            is_finite = probe.append_operator("Less", size, probe.add_constant(np.float32(np.inf)),
                                              dtype=ir.DataType.BOOL)
            finite = probe.append_operator("Where", is_finite, size, probe.add_constant(np.float32(0)))
            self._outputs[tensor], = probe.add_reductions(finite, "ReduceMax")
        self._runner: Runner = probe.load_probe_runner(analysis.backend, analysis.samples)

    def close(self) -> None:
        self._runner.close()

    def measure_magnitudes(self, feed: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the largest finite magnitudes by tensor."""
        scalars = self._runner.run(feed)
        return {tensor: float(scalars[output]) for tensor, output in self._outputs.items()}
