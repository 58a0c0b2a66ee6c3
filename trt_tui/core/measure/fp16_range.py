"""The prediction of FP16 overflow in a config, from the FP32 magnitudes measured on the samples.

Each fusion group has one state (`Fp16RangeState`). A group in file precision has the types that the model file has.
The rules follow TensorRT 8.6 on an H200, measured on 41 small networks. TensorRT folds
a constant Mul or a BatchNormalization into the weights of a Conv, and multiplies a constant into a MatMul. It computes
the sums inside ReduceMean, pooling, ReduceL2 and InstanceNormalization in FP32. An overflow that changes no judged
output is no reason for doubt, whether a kernel rounds the value or not.

The following overflow in TensorRT:
- a Div behind a product, and the scale behind QK;
- an Add behind a Conv, and a bias that cancels a sum;
- squares in front of a mean.

An overflow has an effect if the judged outputs change as values become infinite.

A value beyond FP16's range may do no harm: the Tanh behind the cube in a GELU saturates, a Clip or a Where replaces the
value, or no judged output depends on it. A kernel may round such a value to infinity or keep it in FP32; the result is
the same. The network is executed twice in FP32, with and without infinities in place of these values, and the judged
outputs are compared element by element.

Only operators that compute each value by itself, or move values, may read the infinities. The kernel of another
operator may compute NaN from them: a Winograd convolution subtracts infinities.

The largest FP32 magnitudes are those of tensors, and of values inside operators.

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
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.tensor_collection import NetworkProbe
from trt_tui.core.data.adaptive_runner import FP32_RUNS
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.gated.gated_graph import expand_mask_to_axes
from trt_tui.core.lowering.network_rewrite import list_normalisation_rewrites
from trt_tui.core.lowering.rulebook import (
    HALF_PRECISIONS,
    GroupLowering,
    find_boundary_type,
    find_compute_type_results,
    flag_tensors_of_result_type,
    operand_qdq_sites,
)
from trt_tui.core.measure.causes import MIN_FP16_HEADROOM
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.judged_outputs import (
    JudgedOutput,
    find_common_mask_name,
    find_mask_axes,
    read_mask,
    take_judged_slice,
)
from trt_tui.core.measure.results import Caveat
from trt_tui.core.measure.run_sources import TensorCache
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import AttentionScaleMove, attention_scale_refusal_reason
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind
from trt_tui.core.network.model_editing import collect_by_key, iterate_reachable, list_subgraphs, value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import COPIES, POINTWISE
from trt_tui.core.precision import FP16_MAX, FP16_MIN, FP16_MIN_NORMAL, FP16_OVERFLOW, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import AnalysisProvider, Backend, LoadingTask, Runner
from trt_tui.errors import InputError, OutOfMemoryError
from trt_tui.formatting import number_text, percent_text

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


class JudgedNetwork(Protocol):
    """The parts of a simulation that the measurements of magnitudes and of the effect of overflow need."""

    network: Network
    samples: Samples
    backend: Backend
    judged_outputs: tuple[JudgedOutput, ...]
    metric_tensors: tuple[str, ...]
    partly_judged_outputs: Mapping[str, str]


class MagnitudeTask(LoadingTask):
    """A task that measures the largest FP32 magnitudes of tensors in one feed.

    Values that a mask of the network hides are left out. Padding (elements that the one mask of the judged outputs
    leaves out) is left out too, with two exceptions. It counts if the tensor lacks the axes of the mask. It also counts
    if a padded value is beyond FP16: such a value becomes an infinity, and 0 times an infinity is NaN elsewhere.
    """

    item_text = "the largest values of feed {}"
    _loaded: "_MagnitudeSession | None" = None

    def run_item(self, context: AnalysisProvider[JudgedNetwork], feed_index: int) -> Generator[None, None, Magnitudes]:
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

    def __init__(self, analysis: JudgedNetwork) -> None:
        self._network = network = analysis.network
        self._analysis = analysis
        self._bounds = [_InnerBound(network, layer) for layer in _find_layers_of_operators(network, INNER_BOUNDS)]
        operands = (tensor for bound in self._bounds for tensor in bound.operands)
        results = (
            tensor
            for group in network.groups
            for name in group.layers
            for tensor in find_compute_type_results(network, network.get_layer(name))
        )
        read = (tensor for group in network.groups for tensor in group.inputs)
        self.tensors = [
            tensor
            for tensor in dict.fromkeys((*results, *read, *operands))
            if tensor not in network.masked_tensors
            and tensor not in network.blocking_plugins
            and network.is_fp32(tensor)
        ]
        self.mask_name = find_common_mask_name(analysis.judged_outputs)
        self.mask_axes = (
            find_mask_axes(network, analysis.backend, analysis.samples, self.mask_name, self.tensors)
            if self.mask_name
            else {}
        )
        self._logarithms = [
            layer
            for layer in _find_layers_of_operators(network, LOGARITHM_OPERATORS)
            if layer.outputs[0] in self.tensors
        ]
        counted = {tensor for bound in self._bounds for tensor in bound.counted_operands}
        self.shape_tensors = sorted(counted - network.blocking_plugins.keys())
        self._runner: Runner | None = None
        self._finite_runner: Runner | None = None
        self._finite_outputs: dict[str, str] = {}
        self._in_use = False
        analysis.samples.memory_fallbacks.register_session_release(FP32_RUNS, self.unload_sessions)
        constants = {
            tensor
            for group in network.groups
            for name in group.layers
            for tensor in network.get_layer(name).inputs
            if tensor in network.constant_tensors and network.is_fp32(tensor)
        }
        self._large_constants = {
            tensor: amax
            for tensor in constants
            if (amax := float(np.max(network.constant_amax(tensor), initial=0))) >= FP16_OVERFLOW
            and not network.is_mask(tensor)
        }

    def close(self) -> None:
        self._in_use = False
        for runner in filter(None, (self._runner, self._finite_runner)):
            runner.close()

    def unload_sessions(self) -> bool:
        """Frees the inference sessions, and returns True if there were any. They are loaded again before their next
        use."""
        in_use = self._in_use
        self.close()
        return in_use

    def assign_tensors_to_groups(self, group_names: Sequence[str]) -> dict[str, list[str]] | None:
        """Assigns each tensor to the first of some groups that computes or reads it; returns None if a tensor
        remains."""
        remaining = dict.fromkeys(self.tensors)
        by_group = {}
        for name in group_names:
            group = self._network.get_group(name)
            touched = (
                *group.inputs,
                *(
                    tensor
                    for layer in map(self._network.get_layer, group.layers)
                    for tensor in (*layer.inputs, *layer.outputs)
                ),
            )
            by_group[name] = [tensor for tensor in dict.fromkeys(touched) if tensor in remaining]
            for tensor in by_group[name]:
                del remaining[tensor]
        return None if remaining else by_group

    def compute_magnitudes(
        self,
        feed: Mapping[str, np.ndarray],
        extremes: Mapping[str, Sequence[float]],
        sizes: Mapping[str, Sequence[int]],
    ) -> Magnitudes:
        """Computes the largest magnitudes of a feed, with another execution for tensors with infinities.

        Args:
            extremes: The maximum and the minimum of each tensor, and both again without the elements that the mask of
                the judged outputs hides.
            sizes: The shapes of `shape_tensors`.
        """
        tensors = {tensor: max(values[0], -values[1]) for tensor, values in extremes.items()}
        tensors.update(
            (tensor, max(extremes[tensor][2], -extremes[tensor][3]))
            for tensor in self.mask_axes
            if tensors[tensor] <= FP16_MAX
        )
        inner = {
            layer.name: _compute_largest_log_argument(layer, *extremes[layer.outputs[0]][:2])
            for layer in self._logarithms
        }
        inner |= {bound.layer.name: bound.compute_bound(tensors, sizes) for bound in self._bounds}
        if infinite := {tensor for tensor, amax in tensors.items() if not math.isfinite(amax)}:
            self._in_use = True
            tensors.update(self._measure_finite_magnitudes(feed, infinite))
        finite = {tensor: amax for tensor, amax in tensors.items() if math.isfinite(amax)}
        return Magnitudes(
            {**finite, **self._large_constants},
            {layer: magnitude for layer, magnitude in inner.items() if magnitude >= FP16_OVERFLOW},
        )

    def _measure_finite_magnitudes(self, feed: Mapping[str, np.ndarray], tensors: Set[str]) -> dict[str, float]:
        """Returns the largest finite magnitudes of these tensors and of those that were measured so before."""
        if self._finite_runner is None or not self._finite_outputs.keys() >= tensors:
            if self._finite_runner is not None:
                self._finite_runner.close()
            probe = NetworkProbe(self._network.model)
            for tensor in sorted(tensors | self._finite_outputs.keys()):
                size = probe.append_operator("Abs", probe.find_or_add_fp32_value(tensor))
                is_finite = probe.append_operator(
                    "Less", size, probe.add_constant(np.float32(np.inf)), dtype=ir.DataType.BOOL
                )
                finite = probe.append_operator("Where", is_finite, size, probe.add_constant(np.float32(0)))
                (self._finite_outputs[tensor],) = probe.add_reductions(finite, "ReduceMax")
            self._finite_runner = probe.load_output_runner(self._analysis.backend, self._analysis.samples)
        scalars = self._finite_runner.run(feed)
        return {tensor: float(scalars[output]) for tensor, output in self._finite_outputs.items()}


class _MagnitudeSession(MagnitudeEvaluation):
    """The loaded graph that measures the extremes of every tensor, with the evaluation of its results."""

    def __init__(self, analysis: JudgedNetwork) -> None:
        super().__init__(analysis)
        axes = self.mask_axes
        probe = NetworkProbe(self._network.model)
        self._mask_inputs = {
            axes_key: probe.add_input(f"trt_tui_kept_{number}", ir.DataType.BOOL, len(axes_key))
            for number, axes_key in enumerate(dict.fromkeys(axes.values()))
        }
        zero = probe.add_constant(np.float32(0))
        self._extreme_outputs: dict[str, list[str]] = {}
        for tensor in self.tensors:
            value = probe.find_or_add_fp32_value(tensor)
            self._extreme_outputs[tensor] = probe.add_reductions(value, "ReduceMax", "ReduceMin")
            if tensor in axes:
                self._extreme_outputs[tensor] += probe.add_reductions(
                    probe.append_operator("Where", self._mask_inputs[axes[tensor]], value, zero),
                    "ReduceMax",
                    "ReduceMin",
                )
        self._shape_outputs = {tensor: probe.add_shape_output(tensor) for tensor in self.shape_tensors}
        self._runner = (
            probe.load_output_runner(analysis.backend, analysis.samples) if self.tensors else None
        )  # no runtime accepts a graph without outputs

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
        extremes = {
            tensor: [float(scalars[output]) for output in outputs] for tensor, outputs in self._extreme_outputs.items()
        }
        sizes = {tensor: tuple(map(int, scalars[output])) for tensor, output in self._shape_outputs.items()}
        return self.compute_magnitudes(feed, extremes, sizes)


def _find_layers_of_operators(network: Network, operators: Collection[str]) -> list[Layer]:
    """Returns the layers in fusion groups that have one of some operators and can be executed."""
    layers = (network.get_layer(name) for group in network.groups for name in group.layers)
    return [
        layer
        for layer in layers
        if layer.op_type in operators
        and not layer.domain
        and network.blocking_plugins.keys().isdisjoint(layer.outputs)
        and any(map(network.is_fp32, layer.outputs))
    ]


def _compute_largest_log_argument(layer: Layer, max_result: float, min_result: float) -> float:
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
            layer.op_type, layer.inputs[:2] if layer.op_type in _PRODUCTS_OF_TWO else (*layer.inputs, *layer.outputs)
        )
        self.operands = [
            tensor
            for tensor in tensors
            if tensor and tensor not in network.constant_tensors and network.is_fp32(tensor)
        ]
        self.counted_operands = self.operands
        if layer.op_type in _PRODUCTS_OF_TWO:  # the sums of a constant weight need no shape
            self.counted_operands = [layer.inputs[layer.op_type in _CONVOLUTIONS]] if len(self.operands) == 2 else []
        self.attributes = network.node(layer.name).attributes

    def compute_bound(self, tensor_magnitudes: Mapping[str, float], shapes: Mapping[str, Sequence[int]]) -> float:
        """Returns the bound for one feed; 0 if an operand is masked or not finite."""
        self._tensor_magnitudes, self._shapes = tensor_magnitudes, shapes
        bound = INNER_BOUNDS[self.layer.op_type](self) if self.operands else 0.0
        return bound if math.isfinite(bound) else 0.0

    def input_amax(self, *indices: int) -> float:
        """Returns the largest magnitude of some inputs; 0 without them."""
        return max(
            (self.find_amax(self.layer.inputs[index]) for index in indices if index < len(self.layer.inputs)),
            default=0.0,
        )

    def find_amax(self, tensor: str) -> float:
        if tensor in self._network.constant_tensors:
            return (
                float(np.max(self._network.constant_amax(tensor), initial=0)) if self._network.is_fp32(tensor) else 0.0
            )
        return self._tensor_magnitudes.get(tensor, 0.0)

    def input_shape(self, index: int) -> Sequence[int]:
        """Returns the sizes of an input; () without it."""
        return self.find_shape(self.layer.inputs[index] if index < len(self.layer.inputs) else "")

    def find_shape(self, tensor: str) -> Sequence[int]:
        sizes = self._network.shape(tensor) or () if tensor in self._network.constant_tensors else ()
        return self._shapes.get(tensor) or [size for size in sizes if isinstance(size, int)]

    def max_row_sum(self, index: int, axis: int = -1) -> float:
        """Returns the largest sum of magnitudes along an axis of an input, or along all axes from that one on."""
        tensor = self.layer.inputs[index] if index < len(self.layer.inputs) else ""
        if tensor not in self._network.constant_tensors:
            return self.input_amax(index) * math.prod(self.input_shape(index)[axis:])
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
    shape = inputs.input_shape(operator in _CONVOLUTIONS) or (1, 1)
    if operator in _CONVOLUTIONS:
        return math.prod(shape) / shape[operator == "ConvTranspose"] * math.prod(amaxes)
    size = shape[0 if inputs.attributes.get_int("transA", 0) else -1]
    return size * (amaxes[1] if inputs.has_normalised_weights else math.prod(amaxes)) * inputs.gemm_factor


def _bound_einsum(inputs: _InnerBound) -> float:
    """Returns the bound of the sum of absolute products: their number is the product of the sizes that are summed over."""
    equation = inputs.attributes.get_string("equation", "") or ""
    operand_terms, _, result = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for index, axes in enumerate(operand_terms.split(",")):
        shape = inputs.input_shape(index)
        before, _, behind = axes.partition("...")
        sizes |= {
            **dict(zip(before, shape, strict=False)),
            **dict(zip(reversed(behind), reversed(shape), strict=False)),
        }
    kept = result or [axis for axis in sizes if operand_terms.count(axis) == 1]
    return math.prod(size for axis, size in sizes.items() if axis not in kept) * math.prod(
        map(inputs.find_amax, inputs.layer.inputs)
    )


def _bound_normaliser(inputs: _InnerBound) -> float:
    """Returns the number of values that a Softmax normalises together."""
    size = inputs.find_shape(inputs.layer.outputs[0]) or (1,)
    axis = inputs.attributes.get_int("axis", _default_softmax_axis(inputs.opset)) or 0
    return float(size[axis] if inputs.opset >= 13 else math.prod(size[axis:]))


def _bound_attention(inputs: _InnerBound) -> float:
    """Returns the bound of the scaled scores and of the unnormalised sum of values."""
    sizes, scale = inputs.input_shape(0), inputs.attributes.get_float("scale", 0.0)
    heads = inputs.attributes.get_int("q_num_heads", 1) if len(sizes) == 3 else 1
    channels = sizes[-1] / (heads or 1) if sizes else 1.0
    keys = sum(shape[-2] for shape in (inputs.input_shape(1), inputs.input_shape(4)) if len(shape) > 1)
    scores = inputs.input_amax(0) * inputs.input_amax(1, 4) * channels * abs(scale or 1 / math.sqrt(channels))
    return max(scores, inputs.input_amax(2, 5) * keys)


def _bound_recurrent_sum(inputs: _InnerBound) -> float:
    """Returns the bound of the sums before the activations, over the input, the state and both biases."""
    activations, states = inputs.attributes.get_strings("activations", ()), inputs.layer.outputs[:2]
    if not _SATURATING_ACTIVATIONS.issuperset(activations or ()) and not states[0]:
        return float(np.finfo(np.float32).max)  # no tensor has all states
    state = max(1.0, inputs.input_amax(5), *map(inputs.find_amax, filter(None, states)))
    return inputs.input_amax(0) * inputs.max_row_sum(1) + state * inputs.max_row_sum(2) + 2 * inputs.input_amax(3)


def _bound_sum_of_powers(inputs: _InnerBound) -> float:
    """Returns the bound of the sum of powers under the root of an Lp operator."""
    attributes, sizes = inputs.attributes, inputs.input_shape(0)
    axis = attributes.get_int("axis", -1) or 0
    summed = sizes[axis:][:1] if inputs.layer.op_type == "LpNormalization" else sizes[2:]
    kernel = tuple(attributes.get_ints("kernel_shape", ()) or summed)
    return float(inputs.input_amax(0) ** (attributes.get_int("p", 2) or 2) * math.prod(kernel))


def _bound_sum(inputs: _InnerBound) -> float:
    """Returns the bound of a sum of several tensors; 0 for a Sum of two, which is its result."""
    amaxes = [inputs.input_amax(index) for index in range(len(inputs.layer.inputs))]
    return sum(amaxes) if len(amaxes) > 2 or inputs.layer.op_type == "Mean" else 0.0


INNER_BOUNDS: Mapping[str, Callable[[_InnerBound], float]] = {
    **dict.fromkeys(_PRODUCTS_OF_TWO, _bound_product),
    "Einsum": _bound_einsum,
    "Softmax": _bound_normaliser,
    "Attention": _bound_attention,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _bound_recurrent_sum),
    "DeformConv": lambda inputs: inputs.input_amax(0) * inputs.max_row_sum(1, 1) * max(1.0, inputs.input_amax(4)),
    "STFT": lambda inputs: inputs.input_amax(0) * (inputs.max_row_sum(2) or math.prod(inputs.input_shape(0)[1:])),
    **dict.fromkeys(("Mean", "Sum"), _bound_sum),
    "LRN": lambda inputs: inputs.input_amax(0) ** 2 * (inputs.attributes.get_int("size", 1) or 1),
    **dict.fromkeys(("GlobalLpPool", "LpNormalization", "LpPool"), _bound_sum_of_powers),
    "RotaryEmbedding": lambda inputs: inputs.input_amax(0) * (inputs.input_amax(1) + inputs.input_amax(2)),
}
"""Operators with inner values, each with a function that returns their upper bound."""


_INNER_VALUE_TEXTS = {
    **dict.fromkeys(INNER_BOUNDS, "the sums inside"),
    **dict.fromkeys(("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"), "partial sums of"),
    "Softmax": "the normaliser of",
    "LogSoftmax": "the Softmax inside",
    "ReduceLogSum": "the sum inside",
    "ReduceLogSumExp": "the sum inside",
    "Attention": "the scores and sums inside",
}
"""The values inside an operator that may exceed FP16, in words."""

MAX_UNDERFLOW_SHARE = 0.05
"""The share of a tensor's values above which a loss by underflow is reported."""

_MAX_NAMED_GROUPS = 3
"""The maximum number of fusion groups that a caveat names."""


class Fp16RangeState(StrEnum):
    """The state of a fusion group in FP16: its values fit, overflow without effect, may overflow, or overflow.

    The members are in the order of severity.

    - OVERFLOWS: an output of the group, or an output of an FP32 group that it reads, rounds to infinity however
      TensorRT fuses the layers.
    - MAY_OVERFLOW: only a value inside the group rounds to infinity, which a kernel may keep in FP32; or an input of
      the network does, which may be a mask.
    - HARMLESS: a value rounds to infinity, and the judged outputs are the same as without the overflow.
    - SAFE: no value rounds to infinity.
    """

    SAFE = "safe"
    HARMLESS = "overflows without effect"
    MAY_OVERFLOW = "may overflow"
    OVERFLOWS = "overflows"


@dataclass(frozen=True)
class Fp16Overflow:
    """A value of a fusion group that FP16 rounds to infinity.

    Attributes:
        group_name: Name of the fusion group.
        value_text: The value in words: ``MatMul /qk``, ``partial sums of Conv /head``.
        magnitude: Its largest FP32 magnitude; for a value inside an operator, the upper bound of that.
        tensor: The tensor that has the value; "" for a value inside an operator.
        readers: The layers that read the tensor in FP16; empty if its producer rounds it for all readers.
        harmless_reason: The reason why the overflow has no effect, as a clause; "" in any other state.
    """

    group_name: str
    state: Fp16RangeState
    value_text: str
    magnitude: float
    tensor: str = ""
    readers: tuple[str, ...] = ()
    harmless_reason: str = ""

    @property
    def overflow_text(self) -> str:
        """The description of the overflow as one clause without the name of the group."""
        if math.isinf(self.magnitude):
            return f"{self.value_text} vanishes in FP16, and a Log reads it"
        if not self.tensor:
            return f"{self.value_text} may exceed FP16's {FP16_MAX:.0f}: at most {number_text(self.magnitude, 2)}"
        return f"{self.value_text} reaches {number_text(self.magnitude, 2)}, beyond FP16's {FP16_MAX:.0f}"

    @property
    def effect_text(self) -> str:
        """The overflow and its effect on the results, as a sentence without a full stop."""
        effect = self.harmless_reason or (
            "the outputs are infinite or wrong if the kernel rounds it to FP16, and right if it does not"
            if self.state is Fp16RangeState.MAY_OVERFLOW
            else "every kernel in FP16 makes it infinite"
        )
        return f"{self.overflow_text}; {effect}"


@dataclass(frozen=True)
class LargestMagnitude:
    """The largest FP32 magnitude inside a group, and the layer that computes it."""

    layer: str
    magnitude: float

    @property
    def fp16_headroom(self) -> float:
        """The FP16 headroom: the factor by which the magnitude could grow before FP16 overflows."""
        return FP16_MAX / self.magnitude


def uses_fp16(network: Network, config: PrecisionConfig) -> bool:
    """Returns True if a group of a config has results or products in FP16."""
    return any(
        Precision.FP16
        in (find_boundary_type(group, precision, config.other), group.resolve_file_precision(precision).value_type)
        for group in network.groups
        for precision in (config.precision_of(group),)
    )


def list_fp16_overflows(network: Network, config: PrecisionConfig, magnitudes: Magnitudes) -> list[Fp16Overflow]:
    """Returns all values that FP16 rounds to infinity, in network order, whatever effect the infinity has."""
    magnitudes = apply_divisors_to_magnitudes(network, config, magnitudes)
    if (
        max((*magnitudes.tensor_magnitudes.values(), *magnitudes.inner_magnitudes.values()), default=0.0)
        < FP16_OVERFLOW
    ):
        return []
    return [
        value for group in network.groups for value in _find_fp16_overflows_of_group(network, config, group, magnitudes)
    ]


def find_worst_overflows(overflows: Iterable[Fp16Overflow]) -> dict[str, Fp16Overflow]:
    """Returns the worst value of each group, by group name in the order of the values.

    A measured value of a tensor is worse than the bound of a value inside an operator in the same state.
    """
    return {
        name: max(values, key=lambda value: ([*Fp16RangeState].index(value.state), bool(value.tensor), value.magnitude))
        for name, values in collect_by_key((value.group_name, value) for value in overflows).items()
    }


def apply_divisors_to_magnitudes(network: Network, config: PrecisionConfig, magnitudes: Magnitudes) -> Magnitudes:
    """Returns the magnitudes after the moves of a config, such as SmoothQuant, have divided tensors.

    If the channels of a tensor have different divisors, the result is an upper bound: the largest channel with the
    smallest divisor.
    """
    divisors = {tensor: float(divisor.min()) for tensor, divisor in config.find_divisors(network).items()}
    by_layer = {network.producer.get(tensor, ""): divisor for tensor, divisor in divisors.items()}
    return Magnitudes(
        {tensor: amax / divisors.get(tensor, 1.0) for tensor, amax in magnitudes.tensor_magnitudes.items()},
        {layer: amax / by_layer.get(layer, 1.0) for layer, amax in magnitudes.inner_magnitudes.items()},
    )


def make_fp16_range_caveats(overflows_by_group: Mapping[str, Fp16Overflow]) -> tuple[Caveat, ...]:
    """Returns one caveat for the groups that overflow in FP16, and one for the groups that may overflow."""
    caveats = []
    for state, kind in ((Fp16RangeState.OVERFLOWS, "overflow"), (Fp16RangeState.MAY_OVERFLOW, "may overflow")):
        values = sorted(
            (value for value in overflows_by_group.values() if value.state is state), key=lambda value: -value.magnitude
        )
        if not values:
            continue
        named = "; ".join(f"{value.group_name}: {value.overflow_text}" for value in values[:_MAX_NAMED_GROUPS])
        more = f"; and {len(values) - _MAX_NAMED_GROUPS} more" if len(values) > _MAX_NAMED_GROUPS else ""
        verb = "overflows" if state is Fp16RangeState.OVERFLOWS else "may overflow"
        caveats.append(Caveat(kind, f"FP16 {verb} ({named}{more})", fails_run=state is Fp16RangeState.OVERFLOWS))
    return tuple(caveats)


def _find_fp16_overflows_of_group(
    network: Network, config: PrecisionConfig, group: FusionGroup, magnitudes: Magnitudes
) -> Iterator[Fp16Overflow]:
    """Yields the values of a group that FP16 rounds to infinity.

    A group in file precision can have FP16 at some layers alone. These round to infinity.
    """
    precision = config.precision_of(group)
    if precision is not Precision.FILE and find_boundary_type(group, precision, config.other) is not Precision.FP16:
        return

    def find_amax_beyond_fp16(tensor: str) -> float:
        amax = magnitudes.tensor_magnitudes.get(tensor, 0.0)
        return amax if amax >= FP16_OVERFLOW else 0.0

    readers_by_tensor = _find_readers_in_fp16(network, config, group)
    for tensor, readers in readers_by_tensor.items():
        amax = find_amax_beyond_fp16(tensor)
        if amax and not _is_rounded_by_producer(network, config, tensor):
            # An input of the network may be a mask, whose infinity in FP16 is correct.
            may_stay_finite = tensor not in network.producer or _is_always_quantized_by_group(
                network, config, group, tensor
            )
            yield Fp16Overflow(
                group.name,
                Fp16RangeState.MAY_OVERFLOW if may_stay_finite else Fp16RangeState.OVERFLOWS,
                f"its input {tensor}",
                amax,
                tensor,
                tuple(readers),
            )
    for name, tensor, quantized in _find_constants_in_float_type(network, config, group):
        if amax := find_amax_beyond_fp16(tensor):
            # A kernel that multiplies quantized values never has the weight in FP16. Any other kernel for it does.
            yield Fp16Overflow(
                group.name,
                Fp16RangeState.MAY_OVERFLOW if quantized else Fp16RangeState.OVERFLOWS,
                f"the constant {tensor} of {name}",
                amax,
                tensor,
                (name,),
            )
    handed_on = {*group.outputs, group.final_tensor}
    for name in _list_layers_with_rounded_results(network, config, group):
        layer = network.get_layer(name)
        for tensor in filter(None, layer.outputs):
            if amax := find_amax_beyond_fp16(tensor):
                outside = tensor in handed_on and not _is_quantized_by_all_readers(network, config, tensor)
                yield Fp16Overflow(
                    group.name,
                    Fp16RangeState.OVERFLOWS if outside else Fp16RangeState.MAY_OVERFLOW,
                    f"{layer.op_type} {name}",
                    amax,
                    tensor,
                )
        amax = magnitudes.inner_magnitudes.get(name, 0.0)
        if amax >= FP16_OVERFLOW and _accumulates_in_fp16(group, precision):
            yield Fp16Overflow(
                group.name,
                Fp16RangeState.MAY_OVERFLOW,
                f"{_INNER_VALUE_TEXTS[layer.op_type]} {layer.op_type} {name}",
                amax,
            )


def _accumulates_in_fp16(group: FusionGroup, precision: Precision) -> bool:
    """Returns True if the layers of a group with results in FP16 add products in FP16."""
    resolved = group.resolve_file_precision(precision)
    is_float_in_file = precision is Precision.FILE and resolved not in QUANTIZED_TYPES
    return is_float_in_file or GroupLowering(resolved, Precision.FP16).accumulator is Precision.FP16


def _list_layers_with_rounded_results(network: Network, config: PrecisionConfig, group: FusionGroup) -> list[str]:
    """Returns the layers of a group whose results are rounded to the group's float type.

    If a normalisation is rewritten as one operator, only the result of its last layer is rounded. In file precision,
    the results that the file has in FP16 are rounded.
    """
    if config.precision_of(group) is Precision.FILE:
        return [
            name
            for name in group.layers
            if any(_is_fp16_in_file(network, tensor) for tensor in network.get_layer(name).outputs if tensor)
        ]
    norm = network.zero_cost_support.norms.get(group.name)
    inside = set(norm.layers[:-1]) if norm is not None and group.name in list_normalisation_rewrites(config) else set()
    return [name for name in group.layers if name not in inside]


def _find_constants_in_float_type(
    network: Network, config: PrecisionConfig, group: FusionGroup
) -> Iterator[tuple[str, str, bool]]:
    """Yields each constant that a group reads in its float type: its layer, its name, and True if it is quantized.

    The exported network dequantizes a quantized constant to that type.
    """
    quantized = {(site.layer, site.index) for site in group.qdq_sites_at_precision(config.precision_of(group))}
    for name in group.layers:
        layer = network.get_layer(name)
        is_known_operator = not layer.domain and layer.kind is not LayerKind.OPAQUE
        ports = flag_tensors_of_result_type(network.node(name), network.opset)[0] if is_known_operator else ()
        for index, (tensor, follows) in enumerate(zip(layer.inputs, ports, strict=False)):
            if follows and tensor in network.constant_tensors and _is_read_in_fp16(network, config, group, name, index):
                yield name, tensor, (name, index) in quantized


def _is_rounded_by_producer(network: Network, config: PrecisionConfig, tensor: str) -> bool:
    """Returns True if the group that computes a tensor rounds it to FP16. Its overflow is then reported at that group."""
    group = network.find_group(network.producer.get(tensor, ""))
    if group is not None and config.precision_of(group) is Precision.FILE:
        return _is_fp16_in_file(network, tensor)
    return group is not None and find_boundary_type(group, config.precision_of(group), config.other) is Precision.FP16


def _is_fp16_in_file(network: Network, tensor: str) -> bool:
    return network.source_model is not None and network.source_model.find_dtype(tensor) is ir.DataType.FLOAT16


def _is_read_in_fp16(
    network: Network, config: PrecisionConfig, group: FusionGroup, layer_name: str, index: int
) -> bool:
    """Returns True if a layer of an FP16 group, or of a group in file precision, reads an input in FP16."""
    if config.precision_of(group) is not Precision.FILE or network.source_model is None:
        return True
    layer, source_model = network.get_layer(layer_name), network.source_model
    value = source_model.find_input_value(layer, index)
    return (
        value is not None
        and source_model.types.get(value.name or "") is ir.DataType.FLOAT16
        and not any(step.operator == "quantize" for step in source_model.find_conversion_steps(layer, index) or ())
    )


def _find_readers_in_fp16(network: Network, config: PrecisionConfig, group: FusionGroup) -> dict[str, list[str]]:
    """Returns the layers of a group that read a tensor in FP16, by tensor from outside the group.

    In file precision, also by tensor of the group: a Cast in the group can round a tensor to FP16.
    """
    tensors = set(group.inputs)
    if config.precision_of(group) is Precision.FILE:
        tensors.update(tensor for name in group.layers for tensor in network.get_layer(name).outputs if tensor)
    return collect_by_key(
        dict.fromkeys(
            (tensor, name)
            for name in group.layers
            for index, tensor in enumerate(network.get_layer(name).inputs)
            if tensor in tensors and _is_read_in_fp16(network, config, group, name, index)
        )
    )


def _is_always_quantized_by_group(network: Network, config: PrecisionConfig, group: FusionGroup, tensor: str) -> bool:
    """Returns True if a group quantizes a tensor at every layer that reads it."""
    precision = config.precision_of(group)
    places = {(site.layer, site.index) for site in operand_qdq_sites(group, precision) if site.tensor == tensor}
    read = {
        (name, index)
        for name in group.layers
        for index, source in enumerate(network.get_layer(name).inputs)
        if source == tensor
    }
    return bool(read) and read <= places and precision not in (*HALF_PRECISIONS, Precision.FILE)


def _is_quantized_by_all_readers(network: Network, config: PrecisionConfig, tensor: str) -> bool:
    """Returns True if every reader of a tensor quantizes it, so that a kernel need not round it to FP16."""
    if any(info.name == tensor for info in network.outputs):
        return False
    groups = {reader: network.find_group(reader) for reader in network.consumers.get(tensor, ())}
    return bool(groups) and all(
        group is not None and _is_always_quantized_by_group(network, config, group, tensor) for group in groups.values()
    )


def find_largest_magnitude(
    network: Network, config: PrecisionConfig, group: FusionGroup, magnitudes: Magnitudes
) -> LargestMagnitude | None:
    """Returns the largest magnitude that a group rounds to FP16, or would round in FP16; None if it is unknown or 0."""
    magnitudes_by_layer = [
        (magnitudes.tensor_magnitudes.get(tensor, 0.0), name)
        for name in _list_layers_with_rounded_results(network, config, group) or group.layers
        for tensor in network.get_layer(name).outputs
        if tensor
    ]
    amax, layer = max(((amax, name) for amax, name in magnitudes_by_layer if math.isfinite(amax)), default=(0.0, ""))
    return LargestMagnitude(layer, amax) if amax > 0 else None


def describe_fp16_values(
    network: Network,
    config: PrecisionConfig,
    group: FusionGroup,
    overflow: Fp16Overflow | None,
    largest: LargestMagnitude | None,
    sums: Mapping[str, float],
    isolated: ErrorMetrics | None,
) -> str:
    """Returns the finding about the values of a group in FP16, or about NaN and Inf that arise in the group.

    A remedy follows if there is one. "" if there is no finding.

    Args:
        overflow: The worst value that FP16 rounds to infinity; None if there is none.
        largest: The largest magnitude that the group rounds.
        sums: The error sums of the group's result.
        isolated: The isolated error of the group; None if it was not measured.
    """
    if overflow is not None and overflow.state is Fp16RangeState.HARMLESS:
        return overflow.effect_text
    is_fp16 = find_boundary_type(group, config.precision_of(group), config.other) is Precision.FP16
    norm = network.zero_cost_support.norms.get(group.name)
    if norm is not None and (len(norm.layers) == 1 or group.name in list_normalisation_rewrites(config)):
        norm = None
    text, remedy = "", ""
    if largest is not None and largest.fp16_headroom < MIN_FP16_HEADROOM:
        remedy = _attention_scale_text(network, config, group, largest) or (
            norm.rewrite_text if norm is not None and largest.layer in norm.layers else ""
        )
        text = (
            f"distance to FP16's limit ×{largest.fp16_headroom:.1f}: {network.get_layer(largest.layer).op_type} "
            f"{largest.layer} reaches {number_text(largest.magnitude, 2)}"
        )
    elif norm is not None and isolated is not None and isolated.is_lossy and 0 < norm.epsilon <= FP16_MIN / 2:
        text, remedy = (
            (f"its epsilon {norm.epsilon:.0e} is 0 in FP16 (raised to {FP16_MIN:.0e}), and so are variances as small"),
            norm.rewrite_text,
        )
    elif 0 < sums["ref_max"] < FP16_MIN_NORMAL:
        text = f"max {number_text(sums['ref_max'], 2)} is below FP16's smallest normal {number_text(FP16_MIN_NORMAL)}"
    elif sums["fp16_under"] > MAX_UNDERFLOW_SHARE * sums["count"]:
        text = (
            f"{percent_text(sums['fp16_under'] / sums['count'])} underflow: below FP16's smallest value "
            f"{number_text(FP16_MIN)}"
        )
    text = overflow.effect_text if overflow is not None else text if is_fp16 else ""
    if text and (remedy or Precision.BF16 in group.allowed_precisions):
        text += f"; {remedy or 'BF16 has the range of FP32'}"
    arise = (
        f"{isolated.nan} NaN and {isolated.inf} Inf arise here"
        if isolated is not None and isolated.nonfinite_count
        else ""
    )
    return ": ".join(filter(None, (arise, text)))


def _attention_scale_text(
    network: Network, config: PrecisionConfig, group: FusionGroup, largest_magnitude: LargestMagnitude
) -> str:
    """Returns the FP16 headroom of the product of an attention with its scale in front; "" if the scale cannot go there
    or another value is the largest."""
    if attention_scale_refusal_reason(network, group.name) or group.name in config.get_moves(AttentionScaleMove):
        return ""
    tensors = network.get_layer(largest_magnitude.layer).outputs
    multiplier = math.prod(
        scaling.multiplier
        for scaling in network.zero_cost_support.attention_scales[group.name].scalings
        if scaling.side == "scores" and not set(scaling.tensors).isdisjoint(tensors)
    )
    headroom = largest_magnitude.fp16_headroom
    return (
        ""
        if multiplier >= 1
        else (f"zero-cost remedy: its scale in front (9), distance ×{headroom:.2g} → ×{headroom / multiplier:.2g}")
    )


MAX_RELATIVE_CHANGE = 2.0**-16
"""The change of a judged value that counts as none, relative to the value or to the RMS of its tensor."""

_TRANSPARENT_OPERATORS = (
    POINTWISE
    | COPIES
    | {
        "And",
        "Cast",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Mod",
        "Not",
        "Or",
        "Shape",
        "Size",
        "Xor",
    }
)
"""The operators that may read an infinity."""

_Site = tuple[str, str]
"""A tensor that FP16 rounds, and the layer that reads it in FP16; "" if its producer rounds it for all readers."""


class OverflowEffectMeasurement:
    """The measurement of the effect of FP16 overflow on the judged outputs.

    One loaded graph serves all configs: a runtime input for each rounded tensor says whether a config rounds it. Each
    result is kept, and so are the outputs without overflow.
    """

    def __init__(self, context: JudgedNetwork) -> None:
        self._context = context
        self._gates: dict[_Site, str] = {}
        self._runner: Runner | None = None
        self._results: dict[tuple[frozenset[_Site], int], bool] = {}
        self._references = TensorCache()
        context.samples.memory_fallbacks.register_session_release(FP32_RUNS, self.unload_session)

    def mark_harmless_overflows(
        self, overflows: Sequence[Fp16Overflow], feed_indices: Sequence[int]
    ) -> list[Fp16Overflow]:
        """Returns the overflows of a config, with a mark on those that do not change the judged outputs.

        The tensors are harmless if the judged outputs of all feeds stay the same while all of them overflow. A value
        inside an operator, such as a partial sum, is harmless only if no judged output depends on it.
        """
        network = self._context.network
        used = [not self._judged_layers.isdisjoint(network.get_group(value.group_name).layers) for value in overflows]
        sites = frozenset(
            (value.tensor, reader)
            for value, is_used in zip(overflows, used, strict=True)
            if value.tensor and is_used
            for reader in value.readers or ("",)
        )
        are_harmless = bool(sites) and all(self._is_feed_unchanged(sites, index) for index in feed_indices)
        return [
            replace(
                value,
                state=Fp16RangeState.HARMLESS,
                harmless_reason="no judged output changes on these samples"
                if is_used
                else "no judged output depends on it",
            )
            if not is_used or value.tensor and are_harmless
            else value
            for value, is_used in zip(overflows, used, strict=True)
        ]

    @cached_property
    def _judged_layers(self) -> frozenset[str]:
        """The layers that the judged outputs depend on."""
        network = self._context.network
        judged_layers = filter(None, map(network.producer.get, self._judged_tensors))
        return frozenset(
            iterate_reachable(
                judged_layers, lambda name: filter(None, map(network.producer.get, network.input_tensors(name)))
            )
        )

    @property
    def _judged_tensors(self) -> tuple[str, ...]:
        context = self._context
        judged_tensors = (output.tensor for output in context.judged_outputs)
        return tuple(dict.fromkeys((*judged_tensors, *context.metric_tensors, *context.partly_judged_outputs)))

    def unload_session(self) -> bool:
        """Frees the inference session, and returns True if there was one. It is loaded again before its next use."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
        return runner is not None

    def _is_feed_unchanged(self, sites: frozenset[_Site], feed_index: int) -> bool:
        key = sites, feed_index
        if key not in self._results:
            try:
                self._results[key] = self._are_outputs_unchanged(sites, feed_index)
            except OutOfMemoryError:
                raise
            except InputError:  # an index that was computed from an infinity, for example
                self._results[key] = False
        return self._results[key]

    def _are_outputs_unchanged(self, sites: frozenset[_Site], feed_index: int) -> bool:
        """Returns True if overflow in the tensors of some sites does not change the judged outputs of a feed."""
        if self._runner is None or not sites <= self._gates.keys():
            self.unload_session()
            self._references.clear()
            self._load_session(sites | self._gates.keys())
        if (runner := self._runner) is None:
            return False
        feed = self._context.samples.read_feed(feed_index)
        reference = self._references.get_or_load(
            feed_index, lambda _: runner.run({**feed, **self._make_gate_feed(frozenset())})
        )
        outputs = runner.run({**feed, **self._make_gate_feed(sites)})
        judged = [(output, self._output_names[output.tensor]) for output in self._context.judged_outputs]
        pairs = [
            tuple(take_judged_slice(arrays[name], output) for arrays in (outputs, reference)) for output, name in judged
        ]
        judged_names = {name for _, name in judged}
        pairs += [(outputs[name], reference[name]) for name in outputs if name not in judged_names]
        return all(_are_arrays_equal(*pair) for pair in pairs)

    def _make_gate_feed(self, sites: frozenset[_Site]) -> dict[str, np.ndarray]:
        used = {info.name for info in self._runner.inputs} if self._runner is not None else set()
        return {name: np.array(site in sites) for site, name in self._gates.items() if name in used}

    def _load_session(self, sites: frozenset[_Site]) -> None:
        """Loads the graph with a gate for each site. No session is loaded if the effect of a site cannot be measured."""
        context, probe = self._context, NetworkProbe(self._context.network.model)
        graph = probe.model.graph
        values = {
            value_name(value): value
            for value in (
                *graph.inputs,
                *graph.initializers.values(),
                *(output for node in graph for output in node.outputs),
            )
            if value.name
        }
        if any(tensor not in values or values[tensor].dtype is not ir.DataType.FLOAT for tensor, _ in sites):
            return
        rounded, self._gates = self._insert_infinities(probe, values, sites)
        judged = {tensor: rounded.get(tensor, values[tensor]) for tensor in self._judged_tensors}
        self._output_names = {tensor: probe.add_output(value) for tensor, value in judged.items()}
        operands = _find_exposed_operands(graph, set(self._gates.values()), judged.values())
        if operands is None:
            self._gates = {}  # so that later sites are measured without this one
            return
        zero, infinity = probe.add_constant(np.float32(0)), probe.add_constant(np.float32(np.inf))
        one = probe.add_constant(np.float32(1))
        for value in operands:
            is_finite = probe.append_operator(
                "Less", probe.append_operator("Abs", value), infinity, dtype=ir.DataType.BOOL
            )
            probe.add_reductions(probe.append_operator("Where", is_finite, zero, one), "ReduceSum")
        graph.sort()  # the roundings of inputs and constants are behind the layers that read them
        self._runner = probe.load_output_runner(context.backend, context.samples)

    @staticmethod
    def _insert_infinities(
        probe: NetworkProbe, values: dict[str, ir.Value], sites: frozenset[_Site]
    ) -> tuple[dict[str, ir.Value], dict[_Site, str]]:
        """Replaces the tensors of sites by tensors whose values beyond FP16 are infinite where a gate is open.

        Returns the new values of tensors whose producer rounds them, and the names of the gates.
        """
        limit, infinity = probe.add_constant(np.float32(FP16_OVERFLOW)), probe.add_constant(np.float32(np.inf))
        uses = {tensor: list(values[tensor].uses()) for tensor, _ in sites}
        rounded: dict[str, ir.Value] = {}
        gates: dict[_Site, str] = {}
        for number, (tensor, reader) in enumerate(sorted(sites)):  # the reader "" comes first
            gate = probe.add_input(f"trt_tui_overflows_{number}", ir.DataType.BOOL, 0)
            gates[tensor, reader] = value_name(gate)
            value = rounded.get(tensor, values[tensor])
            is_large = probe.append_operator(
                "GreaterOrEqual", probe.append_operator("Abs", value), limit, dtype=ir.DataType.BOOL
            )
            overflows = probe.append_operator("And", is_large, gate, dtype=ir.DataType.BOOL)
            result = probe.append_operator("Where", overflows, probe.append_operator("Mul", value, infinity), value)
            result.shape = value.shape
            for use in uses[tensor]:
                if reader in ("", use.node.name):
                    use.node.replace_input_with(use.idx, result)
            if not reader:
                rounded[tensor] = result
        return rounded, gates


def _find_exposed_operands(
    graph: ir.Graph, gates: set[str], judged_values: Iterable[ir.Value]
) -> list[ir.Value] | None:
    """Returns the float operands behind gates of the operators that must not read new infinities.

    Operators count only if a judged output depends on them. None if a tensor behind a gate is read by control flow.
    """

    def list_read_nodes(node: ir.Node) -> Iterator[ir.Node]:
        inner = (inner_node for subgraph in list_subgraphs(node) for inner_node in subgraph.all_nodes())
        return _list_producers(value for member in (node, *inner) for value in member.inputs if value is not None)

    needed = set(iterate_reachable(_list_producers(judged_values), list_read_nodes))
    exposed: list[ir.Value] = []
    for value in iterate_reachable(
        (value for value in graph.inputs if value.name in gates),
        lambda value: (output for use in value.uses() if use.node in needed for output in use.node.outputs),
    ):
        for node in {use.node for use in value.uses()}:
            if node.graph is not graph or list_subgraphs(node):
                return None
            if (
                node in needed
                and not _may_read_infinity(node)
                and value.dtype is ir.DataType.FLOAT
                and value not in exposed
            ):
                exposed.append(value)
    return exposed


def _list_producers(values: Iterable[ir.Value]) -> Iterator[ir.Node]:
    return (node for value in values if (node := value.producer()) is not None)


def _may_read_infinity(node: ir.Node) -> bool:
    """Returns True if every kernel of an operator computes the same from infinities. A Cast to integers does not."""
    target = ir.DataType(node.attributes.get_int("to", 0) or 0) if node.op_type == "Cast" else ir.DataType.FLOAT
    return (
        not node.domain
        and node.op_type in _TRANSPARENT_OPERATORS
        and (target.is_floating_point() or target is ir.DataType.BOOL)
    )


def _are_arrays_equal(array: np.ndarray, reference: np.ndarray) -> bool:
    """Returns True if two arrays have equal values, NaN and infinities, apart from the order of FP32 sums."""
    if array.shape != reference.shape:
        return False
    if reference.dtype.kind != "f":
        return np.array_equal(array, reference)
    finite = reference[np.isfinite(reference)].astype(np.float64)
    rms = float(np.sqrt(np.square(finite).mean())) if finite.size else 0.0
    return np.allclose(
        array.astype(np.float64),
        reference.astype(np.float64),
        MAX_RELATIVE_CHANGE,
        MAX_RELATIVE_CHANGE * rms,
        equal_nan=True,
    )
