"""The rulebook of lowering: what a config makes of each group. Every lowering reads it, none decides for itself.

What the rules follow, as TensorRT-RTX 1.7 lists its engines' layers:

- A layer runs in INT8 only where its results have the type of its scales, or where they are 16 bit and its scales FP32:
  Q/DQ with FP16 scales in front of an FP32 layer leave a Conv in FP32.
- The scales of a layer's operands must have one type: a MatMul is refused otherwise ("type mismatch between matmul
  operand scales"). The skip of a residual Add is an operand of the Add and not of the Conv before it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.lowering import scales
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group, Kind, Layer, Site
from trt_tui.core.network.network import FP16_MASK, Network
from trt_tui.core.precision import Precision

TYPES = {Precision.FP32: ir.DataType.FLOAT, Precision.FP16: ir.DataType.FLOAT16, Precision.BF16: ir.DataType.BFLOAT16}
"""The float types of ONNX by precision."""

NUMPY = {Precision.FP32: np.dtype(np.float32), Precision.FP16: np.dtype(np.float16),
         Precision.BF16: np.dtype(ml_dtypes.bfloat16)}
"""The same in numpy."""

LOW_FLOATS = (Precision.FP16, Precision.BF16)
"""The float precisions below FP32."""

MASKS = {Precision.FP16: FP16_MASK, Precision.BF16: 2.0**127}
"""What a constant that a precision cannot hold is clamped to: FP32's least number is -Inf in BF16 too."""

ALL_SAME_TYPE = frozenset("Attention GridSample LinearAttention Pow RMSNormalization".split())
"""Operators whose floats ONNX lets differ in type, and TensorRT does not."""

EXACT = frozenset(
    "Relu MaxPool GlobalMaxPool Max Min Abs Neg Clip Sign ReduceMax ReduceMin Where ThresholdedRelu Floor Ceil "
    "Round".split())
"""Operators whose result on values of a precision is a value of that precision."""

_COMMUTES = frozenset(("Relu",))
"""Operators that rounding commutes with."""

ARITHMETIC = 2
"""Raised by one whenever a change here gives the same config other figures, so that kept results are measured anew."""


# -- types ---------------------------------------------------------------------------------------------------------


def surrounding(group: Group, precision: Precision, other: Precision) -> Precision:
    """The float type of a group's results: its own, or for INT8 that of the other layers if the group can have it."""
    if precision is not Precision.INT8:
        return precision
    return other if other in group.allowed else Precision.FP32


def why_not(group: Group, config: PrecisionConfig) -> str:
    """Why a group does not get the precision that it is asked for; "" where it does."""
    wanted = config.wanted(group)
    return group.refusals.get(config.other, group.refusals[wanted]) if wanted in group.refusals else ""


def opset_for(floats: Collection[Precision]) -> int:
    """The lowest opset that holds the float types: 17 for FP32, 21 with FP16 (its Q/DQ needs 19), 22 with BF16."""
    if Precision.BF16 in floats:
        return 22
    return 21 if Precision.FP16 in floats else 17


def typed_ports(node: ir.Node, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which inputs must have the type of the first output, and which outputs have it, by the operator's schema."""
    return _ports(node.op_type, opset, len(node.inputs), len(node.outputs))


@functools.cache
def _ports(op_type: str, opset: int, inputs: int, outputs: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    schema = onnx.defs.get_schema(op_type, opset)
    main = schema.outputs[0].type_str

    def typed(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[bool, ...]:
        return tuple(op_type in ALL_SAME_TYPE or parameters[min(index, len(parameters) - 1)].type_str == main
                     for index in range(count))

    return typed(schema.inputs, inputs), typed(schema.outputs, outputs)


def typed_results(network: Network, layer: Layer) -> list[str]:
    """The float results of a layer that have the type it computes in."""
    if layer.kind is Kind.OPAQUE:
        return []
    own = typed_ports(network.node(layer.name), network.opset)[1]
    return [tensor for tensor, typed in zip(layer.outputs, own, strict=True)
            if typed and tensor and network.is_float(tensor)]


def round_to(array: np.ndarray, precision: Precision) -> np.ndarray:
    """Float32 values rounded to a float precision, as float32."""
    if precision is Precision.FP32:
        return array
    with np.errstate(over="ignore"):
        return array.astype(NUMPY[precision]).astype(np.float32)


def clamped_at(network: Network, tensor: str, precision: Precision) -> float | None:
    """The magnitude that a constant is clamped to before it is rounded to a precision; None where it is not.

    That concerns masks which the precision cannot hold, and no weights.
    """
    limit = MASKS.get(precision)
    if limit is None or tensor not in network.constants or not network.is_mask(tensor):
        return None
    if np.isfinite(round_to(network.constant_amax(tensor), precision)):
        return None
    return limit


def keeps_precision(layer: Layer) -> bool:
    """Whether a layer's results on values of a precision are values of that precision."""
    return layer.kind is Kind.COPY or layer.op_type in EXACT


def commutes_with_rounding(layer: Layer) -> bool:
    """Whether a layer yields the same from rounded values as when its results are rounded."""
    return layer.op_type in _COMMUTES


# -- what a config makes of a group --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scale:
    """The scale of one site: its values as the target holds them, float32 ``()`` or ``(channels,)``, and their type."""

    values: np.ndarray
    held: Precision


@dataclass(frozen=True, eq=False)
class Ruling:
    """What a config makes of a group.

    Attributes:
        precision: What it is asked to run in.
        around: The float type of its results, and of all that it reads.
        scales: Of the sites that carry Q/DQ; none unless it runs in INT8.
    """

    precision: Precision
    around: Precision
    scales: Mapping[Site, Scale] = field(default_factory=dict)


def rule(network: Network, config: PrecisionConfig, ranges: Mapping[str, float], *,
         casts: bool = True) -> dict[str, Ruling]:
    """What a config makes of each group, by group name, in network order.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        casts: False for a release that takes float types layer by layer: its scales are FP32.

    Raises:
        InputError: an INT8 layer's input has no range.
    """
    amax = scales.activation_ranges(network, ranges, config)
    rulings = {}
    for group in network.groups:
        precision = config.precision_of(group)
        around = surrounding(group, precision, config.other)
        held = _scales(network, group, amax, around if casts else Precision.FP32) \
            if precision is Precision.INT8 else {}
        rulings[group.name] = Ruling(precision, around, held)
    return rulings


def _scales(network: Network, group: Group, amax: Mapping[str, float], around: Precision) -> dict[Site, Scale]:
    """The scales of a group's sites; those of one layer's operands have one type."""
    exact = {site: scales.weight_scale(network, site) if site.role == "weight"
             else scales.require(network, amax, site.tensor) for site in group.sites}
    held = {layer: scales.held_type((scale for site, scale in exact.items() if site.layer == layer), around)
            for layer in dict.fromkeys(site.layer for site in group.sites)}
    return {site: Scale(round_to(scale, held[site.layer]), held[site.layer]) for site, scale in exact.items()}


def quantized_weight(network: Network, site: Site, scale: Scale) -> np.ndarray:
    """A weight as an INT8 layer sees it, float32: codes times scale.

    It is rounded to the type of its scale before it is quantized.
    """
    weight = round_to(network.constant(site.tensor), scale.held)
    step = scale.values
    if site.axis is not None:
        step = step.reshape([-1 if axis == site.axis else 1 for axis in range(weight.ndim)])
    result: np.ndarray = weight / step
    np.rint(result, out=result)
    np.clip(result, -128, 127, out=result)
    result *= step
    return result


def rounded_constant(network: Network, tensor: str, precision: Precision) -> np.ndarray:
    """A constant rounded to a float precision, float32; a mask that it cannot hold is clamped."""
    array = network.constant(tensor)
    limit = clamped_at(network, tensor, precision)
    if limit is not None:
        array = np.clip(array, np.float32(-limit), np.float32(limit))
    return round_to(array, precision)


# -- what a simulation must offer ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """What a gated graph can be asked for.

    Attributes:
        floats: Float precisions below FP32 that every group has, as far as it can.
        others: What may surround INT8 layers.
    """

    floats: frozenset[Precision]
    others: frozenset[Precision]

    @classmethod
    def of(cls, floats: Iterable[Precision], others: Iterable[Precision]) -> Offer:
        """An offer of some float precisions; FP32, which every group has, counts for nothing among them."""
        return cls(frozenset(floats) - {Precision.FP32}, frozenset(others))

    @classmethod
    def needed(cls, network: Network, config: PrecisionConfig) -> Offer:
        """The least that a config needs."""
        asked = set(config.assignment(network).values())
        return cls.of(asked & set(LOW_FLOATS), {config.other} if Precision.INT8 in asked else ())

    def __or__(self, more: Offer) -> Offer:
        return Offer(self.floats | more.floats, self.others | more.others)

    def covers(self, needed: Offer) -> bool:
        """Whether all that is needed is offered."""
        return self.floats >= needed.floats and self.others >= needed.others

    def forms(self, group: Group) -> dict[Precision, frozenset[Precision]]:
        """What of it a group can run in: FP16, BF16 and INT8, by the float type of its results."""
        found: dict[Precision, set[Precision]] = {}
        for precision in LOW_FLOATS:
            if precision in self.floats and precision in group.allowed:
                found.setdefault(precision, set()).add(precision)
        if group.quantizable:
            for other in sorted(self.others):
                around = surrounding(group, Precision.INT8, other)
                found.setdefault(around, set()).add(Precision.INT8)
        return {around: frozenset(precisions) for around, precisions in found.items()}
