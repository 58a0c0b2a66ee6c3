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
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.calibration.ranges import for_codes
from trt_tui.core.codes import CODES, CodeType
from trt_tui.core.lowering import bias_scales, scales
from trt_tui.core.lowering.bias_scales import RaisedScale, weight_db
from trt_tui.core.lowering.folds import Folds, folds_anything, rewritten
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group, Kind, Layer, Site
from trt_tui.core.network.network import FP16_MASK, Network
from trt_tui.core.network.structure import known_schema
from trt_tui.core.precision import FIRST_OPSETS, FP16_LEAST, Precision

TYPES = {Precision.FP32: ir.DataType.FLOAT, Precision.FP16: ir.DataType.FLOAT16, Precision.BF16: ir.DataType.BFLOAT16}
"""The float types of ONNX by precision."""

NUMPY = {Precision.FP32: np.dtype(np.float32), Precision.FP16: np.dtype(np.float16),
         Precision.BF16: np.dtype(ml_dtypes.bfloat16)}
"""The same in numpy."""

READ_AS = (*CODES, Precision.TF32)
"""What the operands of a product can be read as, other than values of the float type around it."""

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

TF32_SPLIT, TF32_BOUND = 2.0**13 + 1, 2.0**100
"""TF32 keeps 10 bits of a mantissa of 23: ``x`` becomes ``c - (c - x)`` with ``c = (2**13 + 1) x`` (Veltkamp's
splitting; Dekker, "A floating-point technique for extending the available precision", 1971) below a bound."""

ARITHMETIC = 14
"""To be increased whenever a change here, or in how layers are grouped, gives the same config other figures: stored
results of another number are measured again."""


# -- types ---------------------------------------------------------------------------------------------------------


def surrounding(group: Group, precision: Precision, other: Precision) -> Precision:
    """The float type of a group's results: its own, or where it reads codes that of the other layers if the group can
    have it."""
    if precision not in CODES and precision is not Precision.FILE:
        return precision.values
    if Precision.FILE in (precision, other):
        return group.given.floats if group.given is not None else Precision.FP32
    return other if other in group.allowed else Precision.FP32


def why_not(group: Group, config: PrecisionConfig) -> str:
    """Why a group does not get the precision that it is asked for; "" where it does."""
    wanted = config.wanted(group)
    return group.refusals.get(config.other, group.refusals[wanted]) if wanted in group.refusals else ""


def opset_for(floats: Collection[Precision], codes: Collection[Precision] = ()) -> int:
    """The lowest opset that holds float types and codes (`FIRST_OPSETS` of floats)."""
    return max([FIRST_OPSETS[Precision.FP32], *(FIRST_OPSETS[precision] for precision in floats),
                *(CODES[precision].opset for precision in codes)])


def typed_ports(node: ir.Node, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which inputs must have the type of the first output, and which outputs have it, by the operator's schema."""
    return _ports(node.op_type, opset, len(node.inputs), len(node.outputs))


@functools.cache
def _ports(op_type: str, opset: int, inputs: int, outputs: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    schema = known_schema(op_type, opset)
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
    if precision is Precision.TF32:
        with np.errstate(over="ignore", invalid="ignore"):
            split = array * np.float32(TF32_SPLIT)
            rounded: np.ndarray = np.where(np.abs(array) < TF32_BOUND, split - (split - array), array)
            return rounded
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


def lifted_to(network: Network, tensor: str, precision: Precision) -> float | None:
    """What a constant is raised to before it is rounded to a precision; None where it is not.

    That concerns numbers that keep a divisor from being zero and that FP16 would round to zero themselves.
    """
    return FP16_LEAST if precision is Precision.FP16 and tensor in network.epsilons else None


def keeps_precision(layer: Layer) -> bool:
    """Whether a layer's results on values of a precision are values of that precision."""
    return layer.kind is Kind.COPY or layer.op_type in EXACT


def commutes_with_rounding(layer: Layer) -> bool:
    """Whether a layer yields the same from rounded values as when its results are rounded."""
    return layer.op_type in _COMMUTES


# -- what a config makes of a group --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scale:
    """The scale of one site.

    Attributes:
        values: As the target holds them, float32: ``()``, ``(channels,)``, or for blocks the shape of the weight with
            its axis divided by the size of a block.
        held: Their type.
        code: What is held by them.
        axis: The axis along which they differ, None for one scale.
        block: How many values along the axis share one; None where each index of it has its own.
        read: The float type that the layer reads dequantized values in; None where it multiplies codes.
        before: The values before they were raised for a bias, see `trt_tui.core.lowering.bias_scales`; None if they
            were not.
    """

    values: np.ndarray
    held: Precision
    code: CodeType
    axis: int | None = None
    block: int | None = None
    read: Precision | None = None
    before: np.ndarray | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What decides, beside a tensor's values, what becomes of a weight."""
        return (self.held, self.code.precision, self.axis, self.block, self.read,
                self.values.tobytes() if self.before is not None else None)

    def spread(self, shape: Sequence[int]) -> np.ndarray:
        """The values in a shape that those of the tensor divide by."""
        if self.axis is None:
            return self.values
        if self.block is not None:
            return np.repeat(self.values, self.block, self.axis)
        return self.values.reshape([-1 if axis == self.axis else 1 for axis in range(len(shape))])


@dataclass(frozen=True, eq=False)
class Ruling:
    """What a config makes of a group.

    Attributes:
        precision: What it is asked to run in; TF32 for a product in FP32 of an engine that may use that.
        around: The float type of its results, and of all that it reads.
        scales: Of the sites that carry Q/DQ; none unless it reads codes.
    """

    precision: Precision
    around: Precision
    scales: Mapping[Site, Scale] = field(default_factory=dict)

    @property
    def sums(self) -> Precision:
        """The type that its products are summed in: TensorRT's kernels for FP16 may sum in FP16, unless Casts around a
        product ask for FP32. Codes are summed in INT32 or FP32."""
        return Precision.FP16 if self.precision is Precision.FP16 else Precision.FP32

    @property
    def read_as(self) -> Precision | None:
        """Which of `READ_AS` its activations are read as; None for none."""
        code = CODES.get(self.precision)
        return self.precision if self.precision is Precision.TF32 or code is not None and code.activations else None


_NO_SCALES: Mapping[Site, Scale] = {}

Scaled = dict[tuple[object, ...], Mapping[Site, Scale]]
"""Scales of groups by all that decides them."""


def sites_read_as(group: Group, precision: Precision) -> tuple[Site, ...]:
    """The sites of a group's activations that are read as one of `READ_AS`."""
    return group.multiplied() if precision is Precision.TF32 else group.ranged(precision)


def uses_tf32(group: Group, config: PrecisionConfig) -> bool:
    """Whether a group, where it is in FP32, multiplies in TF32."""
    return config.tf32 and bool(group.multiplied())


def rule(network: Network, config: PrecisionConfig, ranges: Mapping[str, float], *,
         casts: bool = True, constants: Folds | None = None, known: Scaled | None = None) -> dict[str, Ruling]:
    """What a config makes of each group, by group name, in network order.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        casts: False for a release that takes float types layer by layer: its scales are FP32.
        constants: The weights as the config changes them, where the network has them unchanged.
        known: Scales of earlier configs of this network, which are not computed again; it takes those of this one.

    Raises:
        InputError: an input of a layer that reads codes has no range.
    """
    common = scales.activation_ranges(network, ranges, config)
    amax = {code.precision: common if (own := for_codes(ranges, code)) is ranges
            else scales.activation_ranges(network, own, config) for code in CODES.values() if code.activations}
    rulings = {}
    for group in network.groups:
        precision = config.precision_of(group)
        around = surrounding(group, precision, config.other)
        if precision is Precision.FP32 and uses_tf32(group, config):
            precision = Precision.TF32
        code = CODES.get(precision)
        held = _NO_SCALES if code is None else _scales(network, group, code, amax.get(precision, {}),
                                               around if casts else Precision.FP32, constants, known)
        rulings[group.name] = Ruling(precision, around, held)
    return rulings


def _scales(network: Network, group: Group, code: CodeType, amax: Mapping[str, float], around: Precision,
            constants: Folds | None, known: Scaled | None = None) -> Mapping[Site, Scale]:
    """The scales of a group's sites; those of one layer's operands have one type."""
    sites = group.coded(code.precision)
    biases = {site: bias_scales.bias_port(network, group, site) for site in sites if site.role == "weight"} \
        if code.precision is Precision.INT8 else {}
    if known is not None:
        what = (group.name, code.precision, around, *(
            amax.get(site.tensor) if site.role != "weight" else constants and constants.key((site.layer, site.index))
            for site in sites), *(constants.key(port) for port in biases.values() if constants and port is not None))
        if what not in known:
            known[what] = _scales(network, group, code, amax, around, constants)
        return known[what]
    exact = {site: scales.weight_scale(network, site, code, constants) if site.role == "weight"
             else scales.require(amax, site.tensor, code) for site in sites}
    held = {layer: scales.held_type((scale for site, scale in exact.items() if site.layer == layer), around, code)
            for layer in dict.fromkeys(site.layer for site in sites)}
    found = {}
    for site, scale in exact.items():
        axis, block = scales.laid_out(network, site, code) if site.role == "weight" else (None, None)
        found[site] = Scale(round_to(scale, held[site.layer]), held[site.layer], code, axis, block,
                            None if code.activations else around)
    for site, port in biases.items():
        if port is not None and held[site.layer] is around:  # with Casts between nothing quantizes the bias
            found[site] = _for_bias(network, found, site, port, constants)
    return found


def _for_bias(network: Network, found: Mapping[Site, Scale], site: Site, port: tuple[str, int],
              constants: Folds | None) -> Scale:
    """Returns the scale of a weight, raised where ONNX Runtime could not quantize the bias of the layer otherwise."""
    scale = found[site]
    read = [one for other, one in found.items() if other.layer == site.layer and other.role == "input"]
    bias = bias_scales.bias_of(network, port, constants)
    if len(read) != 1 or bias is None:
        return scale
    values = bias_scales.raised(scale.values, float(read[0].values), round_to(bias, scale.held), scale.held)
    return scale if values is scale.values else replace(scale, values=values, before=scale.values)


def raised_scales(network: Network, rulings: Mapping[str, Ruling], constants: Folds | None = None) -> list[RaisedScale]:
    """Returns the weight scales that were raised for a bias, in network order, with what it costs.

    Args:
        constants: The weights as the config changes them, where the network has them unchanged.
    """
    found = []
    for ruling in rulings.values():
        for site, scale in ruling.scales.items():
            if scale.before is None:
                continue
            port = site.layer, site.index
            weight = network.constant(site.tensor) if constants is None else constants.constant(port)
            assert weight is not None
            costs = [weight_db(weight, quantized_weight(weight, one))
                     for one in (replace(scale, values=scale.before), scale)]
            changed = np.flatnonzero(scale.values != scale.before)
            found.append(RaisedScale(site.layer, tuple(map(int, changed)) if scale.axis is not None else (),
                                     scale.before.ravel()[changed], scale.values.ravel()[changed],
                                     (costs[0], costs[1])))
    return found


def quantized_weight(constant: np.ndarray, scale: Scale) -> np.ndarray:
    """A weight as a layer that reads codes sees it, float32: codes times scale.

    It is rounded to the type of its scale before it is quantized, and where weights alone are codes, to the float type
    that the layer multiplies in behind.
    """
    weight = round_to(constant, scale.held)
    step = scale.spread(weight.shape)
    result: np.ndarray = scale.code.rounded(weight / step)
    result *= step
    return result if scale.read is None else round_to(round_to(result, scale.held), scale.read)


def rounded_constant(network: Network, tensor: str, precision: Precision) -> np.ndarray:
    """A constant rounded to a float precision, float32; a mask that it cannot hold is clamped, an epsilon raised."""
    array = network.constant(tensor)
    limit = clamped_at(network, tensor, precision)
    if limit is not None:
        array = np.clip(array, np.float32(-limit), np.float32(limit))
    if (least := lifted_to(network, tensor, precision)) is not None:
        array = np.maximum(array, np.float32(least))
    return round_to(array, precision)


# -- what a simulation must offer ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """What a gated graph can be asked for.

    Attributes:
        floats: Float precisions below FP32 that every group has, as far as it can, and what the file has.
        others: What may surround layers that read codes.
        codes: The precisions of these; TF32 for products in FP32.
        constants: Scales and biases of normalisations, and biases of what can read codes, are fed.
        operators: Decomposed normalisations can be run as the operator rounds.
    """

    floats: frozenset[Precision]
    others: frozenset[Precision]
    codes: frozenset[Precision]
    constants: bool = False
    operators: bool = False

    @classmethod
    def of(cls, floats: Iterable[Precision], others: Iterable[Precision],
           codes: Iterable[Precision] = (Precision.INT8,)) -> Offer:
        """An offer of some float precisions; FP32, which every group has, counts for nothing among them."""
        return cls(frozenset(floats) - {Precision.FP32}, frozenset(others), frozenset(codes))

    @classmethod
    def needed(cls, network: Network, config: PrecisionConfig) -> Offer:
        """The least that a config needs."""
        asked = {precision.values for precision in config.assignment(network).values()}
        codes = asked & CODES.keys()
        tf32 = any(uses_tf32(group, config) for group in network.groups)
        precisions = cls.of(asked & {*LOW_FLOATS, Precision.FILE}, {config.other} if codes else (),
                            codes | ({Precision.TF32} if tf32 else set()))
        return replace(precisions, constants=folds_anything(config), operators=bool(rewritten(config)))

    def __or__(self, more: Offer) -> Offer:
        return Offer(self.floats | more.floats, self.others | more.others, self.codes | more.codes,
                     self.constants or more.constants, self.operators or more.operators)

    def covers(self, needed: Offer) -> bool:
        """Whether all that is needed is offered."""
        return (self.floats >= needed.floats and self.others >= needed.others and self.codes >= needed.codes
                and self.constants >= needed.constants and self.operators >= needed.operators)

    def forms(self, group: Group) -> dict[Precision, frozenset[Precision]]:
        """What of it the activations of a group can pass through, by the float type of its results: that type alone, or
        codes. A group whose weights alone are codes has the form of its float type: its weights are fed."""
        found: dict[Precision, set[Precision]] = {}
        if Precision.FILE in self.floats and group.given is not None and not group.given.plain:
            found[Precision.FILE] = {Precision.FILE}
        for precision in LOW_FLOATS:
            if precision in self.floats and precision in group.allowed:
                found.setdefault(precision, set()).add(precision)
        for precision, code in CODES.items():
            if precision in self.codes and precision in group.allowed:
                for other in sorted(self.others):
                    around = surrounding(group, precision, other)
                    found.setdefault(around, set()).add(precision if code.activations else around)
        if Precision.TF32 in self.codes and group.multiplied():
            found.setdefault(Precision.FP32, set()).add(Precision.TF32)
        return {around: frozenset(precisions) for around, precisions in found.items()}
