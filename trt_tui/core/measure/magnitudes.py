"""The largest FP32 magnitudes of a network over samples: of its tensors, and of values inside its operators.

A tensor is measured by reductions in the graph, so that only scalars leave the inference session. Two kinds of values
stand in no tensor:

- A partial sum of products. A kernel that accumulates in FP16 may add the products in any order. The largest partial
  sum in any order is ``(sum of |products| + |sum|) / 2``: all products of one sign are added first.
- The normaliser of a Softmax, the sum of ``exp(x - max)``. It is the inverse of the largest probability of a row. A
  fused attention may divide by it after the product with the values, so that product is measured before the division.

Both cost another product. They are measured only where a bound by the magnitudes of the operands, and by the L1 norms
of constant weights, allows a value beyond FP16.

- The argument of a logarithm. TensorRT's parser makes a Log behind a Softmax of a LogSoftmax, and one behind a sum of a
  ReduceLogSum or ReduceLogSumExp (up to 8.6 without the maximum subtracted). The magnitude of the result tells the
  argument, so this costs nothing.
"""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.sweep import Probe, scalar
from trt_tui.core.data.fitted import PLAIN
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.gated.gated import with_axes
from trt_tui.core.lowering.rules import typed_results
from trt_tui.core.measure.judge import Judged
from trt_tui.core.measure.masks import axes_of_mask, common_mask, kept_rows
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_LEAST, FP16_MAX, FP16_OVERFLOW
from trt_tui.core.runner import Backend, Runner

PRODUCTS = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")
"""Operators that add products of two operands; the bias of some is their third input."""

LOGARITHMS = ("LogSoftmax", "ReduceLogSum", "ReduceLogSumExp")
"""Operators that TensorRT computes as a logarithm behind other layers."""

_LARGEST_EXPONENT = 88.0
"""The exponential of a larger value exceeds FP32."""

MAX_STEPS_OF_FEED = 3
"""A measurement of one feed consists of so many steps, at most."""


@dataclass(frozen=True)
class Magnitudes:
    """The largest FP32 magnitudes over samples, infinities left out.

    Attributes:
        tensors: By name of a float tensor that a fusion group computes or reads, and of a constant that FP16 cannot
            hold and that is no mask.
        inner: By name of a layer, the largest value that it may compute on the way to its result. A layer is absent if
            no such value can exceed FP16.
    """

    tensors: Mapping[str, float] = field(default_factory=dict)
    inner: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def join(cls, parts: Iterable["Magnitudes"]) -> "Magnitudes":
        """Returns the largest magnitudes of several feeds."""
        tensors: dict[str, float] = {}
        inner: dict[str, float] = {}
        for part in parts:
            for joined, found in ((tensors, part.tensors), (inner, part.inner)):
                for name, amax in found.items():
                    joined[name] = max(joined.get(name, 0.0), amax)
        return cls(tensors, inner)


class Simulated(Protocol):
    """The parts of a simulation that a measurement of magnitudes needs."""

    network: Network
    samples: Samples
    backend: Backend
    judged: tuple[Judged, ...]


class Measures(Protocol):
    """The context of `MagnitudesOfFeed`."""

    @property
    def analysis(self) -> Simulated:
        """The simulation."""


class MagnitudesOfFeed:
    """A task that measures the magnitudes of one feed.

    Values that a mask of the network hides are left out. Padding (elements that the judged outputs' one mask leaves
    out) counts if the tensor lacks the axes of the mask, or if a padded value lies beyond FP16: such a value becomes
    an infinity, and 0 times an infinity is NaN elsewhere.
    """

    def __init__(self) -> None:
        self._loaded: _Session | None = None

    def __getstate__(self) -> dict[str, None]:
        return {"_loaded": None}

    def words(self, item: int) -> str:
        """Returns the description of the task for one feed."""
        return f"the largest values of feed {item}"

    def do(self, subject: Measures, item: int) -> Generator[None, None, Magnitudes]:
        """Implements `trt_tui.core.hands.Errand.do`."""
        if self._loaded is None:
            self._loaded = _Session(subject.analysis)
        found = yield from self._loaded.measure(item)
        return found

    def close(self) -> None:
        """Frees the inference sessions."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None


class _Session:
    """The loaded graphs: one that reduces every tensor, and one for the values that need a closer look."""

    def __init__(self, analysis: Simulated) -> None:
        self._network = network = analysis.network
        self._analysis = analysis
        self._bounds = [_ProductBound(network, layer) for layer in _layers_of(network, PRODUCTS)]
        self._softmaxes = _layers_of(network, ("Softmax",))
        operands = (tensor for bound in self._bounds for tensor in bound.operands)
        results = (tensor for group in network.groups for name in group.layers
                   for tensor in typed_results(network, network.layer(name)))
        read = (tensor for group in network.groups for tensor in group.inputs)
        tensors = [tensor for tensor in dict.fromkeys((*results, *read, *operands))
                   if tensor not in network.masked and tensor not in network.behind and network.is_float(tensor)]
        self._mask = common_mask(analysis.judged)
        axes = axes_of_mask(network, analysis.backend, analysis.samples, self._mask, tensors) if self._mask else {}
        probe = Probe(network.model)
        self._fed = {one: probe.input(f"trt_tui_kept_{number}", ir.DataType.BOOL, len(one))
                     for number, one in enumerate(dict.fromkeys(axes.values()))}
        zero = probe.constant(np.float32(0))
        self._outputs: dict[str, list[str]] = {}
        self._kept: dict[str, list[str]] = {}
        for tensor in tensors:
            value = probe.float_value(tensor)
            self._outputs[tensor] = _extremes(probe, value)
            if tensor in axes:
                self._kept[tensor] = _extremes(probe, probe.apply("Where", self._fed[axes[tensor]], value, zero))
        self._logarithms = {layer: self._outputs[layer.outputs[0]] for layer in _layers_of(network, LOGARITHMS)
                            if layer.outputs[0] in self._outputs}
        counted = {bound.counted for bound in self._bounds if bound.counted}
        counted |= {layer.outputs[0] for layer in self._softmaxes}
        self._sizes = {tensor: probe.emit(probe.apply("Shape", probe.float_value(tensor), dtype=ir.DataType.INT64))
                       for tensor in sorted(counted - network.behind.keys())}
        self._runner = (probe.load(analysis.backend, analysis.samples) if tensors
                        else None)  # no runtime takes a graph without outputs
        self._closer: _CloserLook | None = None
        self._in_use = False
        analysis.samples.portions.held_by(PLAIN, self.unload)
        constants = {tensor for group in network.groups for name in group.layers
                     for tensor in network.layer(name).inputs
                     if tensor in network.constants and network.is_float(tensor)}
        self._constants = {tensor: amax for tensor in constants
                           if (amax := float(np.max(network.constant_amax(tensor), initial=0))) >= FP16_OVERFLOW
                           and not network.is_mask(tensor)}

    def close(self) -> None:
        self._in_use = False
        if self._runner is not None:
            self._runner.close()
        if self._closer is not None:
            self._closer.close()

    def unload(self) -> bool:
        """Frees the inference sessions, if there are any; they are loaded again when they are needed."""
        in_use = self._in_use
        self.close()
        return in_use

    def measure(self, index: int) -> Generator[None, None, Magnitudes]:
        """Measures one feed; yields between two runs."""
        if self._runner is None:
            return Magnitudes()
        samples = self._analysis.samples
        feed = samples.feed(index)
        masks = {}
        if self._fed:
            mask = kept_rows(self._mask, samples, index)
            masks = {name_of(value): with_axes(mask, axes) for axes, value in self._fed.items()}
        self._in_use = True
        scalars = self._runner.run({**feed, **masks})
        tensors = {tensor: _magnitude(scalars, outputs) for tensor, outputs in self._outputs.items()}
        tensors.update((tensor, _magnitude(scalars, outputs)) for tensor, outputs in self._kept.items()
                       if tensors[tensor] <= FP16_MAX)
        yield
        sizes = {tensor: tuple(map(int, scalars[output])) for tensor, output in self._sizes.items()}
        wanted = _Wanted(
            tuple(bound.layer for bound in self._bounds if bound.at(tensors, sizes) >= FP16_OVERFLOW),
            tuple(layer for layer in self._softmaxes if _row_length(self._network, layer, sizes) >= FP16_OVERFLOW),
            tuple(tensor for tensor, amax in tensors.items() if not math.isfinite(amax)))
        inner = {layer.name: argument for layer, outputs in self._logarithms.items()
                 if (argument := _argument_of(layer, *(float(scalars[output]) for output in outputs))) >= FP16_OVERFLOW}
        if any((wanted.products, wanted.softmaxes, wanted.tensors)):
            if self._closer is None or not self._closer.covers(wanted):
                if self._closer is not None:
                    wanted = wanted | self._closer.wanted
                    self._closer.close()
                self._closer = _CloserLook(self._analysis, wanted)
            self._in_use = True
            closer, found = self._closer.measure(feed)
            tensors.update(closer)
            inner.update(found)
            yield
        finite = {tensor: amax for tensor, amax in tensors.items() if math.isfinite(amax)}
        return Magnitudes({**finite, **self._constants}, inner)


def _layers_of(network: Network, operators: Sequence[str]) -> list[Layer]:
    """Returns the layers of fusion groups that have one of some operators and can be executed."""
    layers = (network.layer(name) for group in network.groups for name in group.layers)
    return [layer for layer in layers if layer.op_type in operators and not layer.domain
            and layer.outputs[0] not in network.behind and network.is_float(layer.outputs[0])]


def _argument_of(layer: Layer, most: float, least: float) -> float:
    """Returns the largest argument of a layer's logarithm; infinite if FP16 makes the least one 0.

    Args:
        most: The largest result; ``least`` the least one.
    """
    if -math.inf < least < math.log(FP16_LEAST / 2):
        return math.inf
    return 0.0 if layer.op_type == "LogSoftmax" else math.exp(min(most, _LARGEST_EXPONENT))


def _row_length(network: Network, layer: Layer, sizes: Mapping[str, Sequence[int]]) -> int:
    """Returns the number of values that a Softmax normalises together."""
    size = sizes.get(layer.outputs[0], ())
    axis = network.node(layer.name).attributes.get_int("axis", -1 if network.opset >= 13 else 1) or 0
    if not size:
        return 1
    return size[axis] if network.opset >= 13 else math.prod(size[axis:])


class _ProductBound:
    """An upper bound of the sum of absolute products at any result of a layer.

    Attributes:
        operands: The operands that are computed.
        counted: The operand whose shape has the number of products of a result; "" if a constant weight has it.
    """

    def __init__(self, network: Network, layer: Layer) -> None:
        self._network, self.layer = network, layer
        self.operands = [tensor for tensor in layer.inputs[:2] if tensor not in network.constants]
        self.counted = layer.inputs[0] if len(self.operands) == 2 else ""
        if layer.op_type == "Einsum":
            self.counted = self.operands[0] if self.operands and len(layer.inputs) == 2 else ""

    @cached_property
    def _weight(self) -> float:
        """The largest L1 norm of the weights of one result; 1 if both operands are computed."""
        first, second = self.layer.inputs[:2]
        if first not in self._network.constants and second not in self._network.constants:
            return 1.0
        position = 1 if second in self._network.constants else 0
        weight = np.abs(self._network.constant(self.layer.inputs[position]).astype(np.float64))
        weight = np.where(np.isfinite(weight), weight, 0)
        attributes = self._network.node(self.layer.name).attributes
        if self.layer.op_type == "Conv":
            return float(weight.reshape(len(weight), -1).sum(1).max(initial=0))
        if self.layer.op_type == "ConvTranspose":
            groups = attributes.get_int("group", 1) or 1
            each = weight.reshape(groups, len(weight) // groups, weight.shape[1], -1)
            return float(each.sum((1, 3)).max(initial=0))
        transposed = bool(attributes.get_int("transB" if position else "transA", 0))
        if weight.ndim < 2:
            return float(weight.sum())
        axis = -1 if (position == 1) is transposed else -2
        return float(weight.sum(axis).max(initial=0)) * abs(attributes.get_float("alpha", 1.0) or 0.0)

    def at(self, tensors: Mapping[str, float], sizes: Mapping[str, Sequence[int]]) -> float:
        """Returns the bound for the magnitudes and shapes of one feed; 0 if an operand is masked or not finite.

        The product of an unnormalised attention is at most the sum of the values of a column, so the bound of a
        product of two activations covers it, too.
        """
        amaxes = [tensors.get(tensor, 0.0) for tensor in self.operands]
        if not amaxes or not all(map(math.isfinite, amaxes)):
            return 0.0
        if not self.counted:
            return amaxes[0] * self._weight if self.layer.op_type != "Einsum" else 0.0
        shape = sizes.get(self.counted, ())
        transposed = self._network.node(self.layer.name).attributes.get_int("transA", 0)
        if self.layer.op_type == "Einsum":
            return self._einsum_terms(shape) * math.prod(amaxes) * self._constant_amax
        last = shape[0 if transposed else -1] if shape else 1
        count = last if self.layer.op_type in ("MatMul", "Gemm") else math.prod(shape[1:])
        normalised = _softmax_before(self._network, self.layer) is not None
        return count * (amaxes[1] if normalised else math.prod(amaxes))


    @cached_property
    def _constant_amax(self) -> float:
        """The largest magnitude of the constant operand; 1 if there is none."""
        amaxes = (float(np.max(self._network.constant_amax(tensor), initial=0)) for tensor in self.layer.inputs[:2]
                  if tensor in self._network.constants)
        return math.prod(amaxes)

    def _einsum_terms(self, shape: Sequence[int]) -> int:
        """Returns how many products a result of an Einsum adds, at most: as many as the sizes that the result lacks."""
        equation = self._network.node(self.layer.name).attributes.get_string("equation", "") or ""
        given, _, result = equation.replace(" ", "").partition("->")
        terms = given.split(",")[list(self.layer.inputs).index(self.counted)]
        if "." in equation or not result or len(terms) != len(shape):
            return math.prod(shape)
        return math.prod(size for axis, size in zip(terms, shape, strict=True) if axis not in result)


def _softmax_before(network: Network, layer: Layer) -> Layer | None:
    """Returns the Softmax whose result is the first operand of a MatMul; None if there is none."""
    source = network.producer.get(layer.inputs[0])
    if layer.op_type != "MatMul" or source is None or network.layer(source).op_type != "Softmax":
        return None
    softmax = network.layer(source)
    rank = len(network.shape(softmax.outputs[0]) or ())
    axis = network.node(source).attributes.get_int("axis", -1 if network.opset >= 13 else 1)
    return softmax if axis in (-1, rank - 1) else None


@dataclass(frozen=True)
class _Wanted:
    """The layers and tensors that need a closer look."""

    products: tuple[Layer, ...]
    softmaxes: tuple[Layer, ...]
    tensors: tuple[str, ...]

    def __or__(self, more: "_Wanted") -> "_Wanted":
        return _Wanted(tuple(dict.fromkeys((*self.products, *more.products))),
                       tuple(dict.fromkeys((*self.softmaxes, *more.softmaxes))),
                       tuple(dict.fromkeys((*self.tensors, *more.tensors))))


class _CloserLook:
    """A graph with the exact largest partial sums, normalisers and finite magnitudes."""

    def __init__(self, analysis: Simulated, wanted: _Wanted) -> None:
        self.wanted = wanted
        self._network = network = analysis.network
        self._probe = probe = Probe(network.model)
        self._finite = {tensor: self._largest(self._finite_part(probe.float_value(tensor)))
                        for tensor in wanted.tensors}
        self._inner = {layer.name: self._largest(self._partial_sum(layer)) for layer in wanted.products}
        self._inner |= {layer.name: self._largest(self._normaliser(layer)) for layer in wanted.softmaxes}
        probe.model.graph.sort()  # an operand may be computed behind the one that a node was put after
        self._runner: Runner = probe.load(analysis.backend, analysis.samples)

    def covers(self, wanted: _Wanted) -> bool:
        return (set(self.wanted.products) >= set(wanted.products)
                and set(self.wanted.softmaxes) >= set(wanted.softmaxes)
                and set(self.wanted.tensors) >= set(wanted.tensors))

    def close(self) -> None:
        self._runner.close()

    def measure(self, feed: Mapping[str, np.ndarray]) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the finite magnitudes by tensor, and the largest inner values by layer."""
        scalars = self._runner.run(feed)
        finite, inner = ({name: float(scalars[output]) for name, output in outputs.items()}
                         for outputs in (self._finite, self._inner))
        return finite, {name: amax for name, amax in inner.items() if math.isfinite(amax)}

    def _largest(self, value: ir.Value) -> str:
        return self._probe.emit(scalar(self._probe.apply("ReduceMax", value, keepdims=0)))

    def _finite_part(self, value: ir.Value) -> ir.Value:
        """Emits the magnitudes of a tensor, with 0 for NaN and infinities."""
        probe = self._probe
        size = probe.apply("Abs", value)
        finite = probe.apply("Less", size, probe.constant(np.float32(np.inf)), dtype=ir.DataType.BOOL)
        return probe.apply("Where", finite, size, probe.constant(np.float32(0)))

    def _partial_sum(self, layer: Layer) -> ir.Value:
        """Emits the largest partial sum of products, in any order, at each result of a layer without its bias."""
        probe = self._probe
        operands = [self._operand(tensor) for tensor in layer.inputs[:2]]
        softmax = _softmax_before(self._network, layer)
        whole = self._product(layer, [probe.apply("Abs", operand) for operand in operands])
        if softmax is not None:  # all probabilities are positive
            return probe.apply("Div", whole, self._row_maximum(softmax))
        size = probe.apply("Abs", self._product(layer, operands))
        return probe.apply("Mul", probe.apply("Add", whole, size), probe.constant(np.float32(0.5)))

    def _normaliser(self, layer: Layer) -> ir.Value:
        """Emits the sum of exp(x - max) of each row of a Softmax."""
        return self._probe.apply("Reciprocal", self._row_maximum(layer))

    def _row_maximum(self, softmax: Layer) -> ir.Value:
        probe, value = self._probe, self._probe.float_value(softmax.outputs[0])
        opset = self._network.opset
        axis = self._network.node(softmax.name).attributes.get_int("axis", -1 if opset >= 13 else 1) or 0
        if opset < 13:  # all axes from there on are one row
            value, axis = probe.apply("Flatten", value, axis=axis), 1
        if opset >= 18:
            return probe.apply("ReduceMax", value, probe.constant(np.array([axis], np.int64)), keepdims=1)
        return self._node("ReduceMax", [value], {"axes": [axis], "keepdims": 1})

    def _operand(self, tensor: str) -> ir.Value:
        """Returns a tensor or a constant as an FP32 value."""
        constant = self._probe.model.graph.initializers.get(tensor)
        if constant is None:
            return self._probe.float_value(tensor)
        if constant.dtype == ir.DataType.FLOAT:
            return constant
        return self._probe.apply("Cast", constant, to=int(ir.DataType.FLOAT))

    def _product(self, layer: Layer, operands: Sequence[ir.Value]) -> ir.Value:
        """Emits the layer's operator on other operands, without its bias."""
        node = self._network.node(layer.name)
        inputs = [*operands]
        if layer.op_type == "Gemm":  # opsets below 11 require a bias
            inputs.append(self._probe.constant(np.float32(0)))
        return self._node(layer.op_type, inputs, {name: attribute.value for name, attribute in node.attributes.items()})

    def _node(self, operator: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any]) -> ir.Value:
        """Emits a node with any attributes behind those that compute its inputs."""
        probe = self._probe
        placeholder = probe.apply("Identity", inputs[0])
        node = placeholder.producer()
        assert node is not None  # `Probe.apply` has just made it
        made = ir.node(operator, list(inputs), dict(attributes), name=f"{node.name}_{operator}")
        probe.model.graph.insert_after(node, made)
        result = made.outputs[0]
        result.name, result.type = made.name, ir.TensorType(ir.DataType.FLOAT)
        return result


def _extremes(probe: Probe, value: ir.Value) -> list[str]:
    return [probe.emit(scalar(probe.apply(operator, value, keepdims=0))) for operator in ("ReduceMax", "ReduceMin")]


def _magnitude(scalars: Mapping[str, np.ndarray], outputs: Sequence[str]) -> float:
    most, least = outputs
    return max(float(scalars[most]), -float(scalars[least]))
