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

from trt_tui.core.calibration.calibration import select_ranges_for_type
from trt_tui.core.lowering import bias_scales, scales
from trt_tui.core.lowering.bias_scales import RaisedWeightScales, weight_sqnr_db
from trt_tui.core.lowering.folded_constants import FoldedConstants, has_constant_edits, list_normalisation_rewrites
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, QdqSite
from trt_tui.core.network.network import FP16_MASK_VALUE, Network
from trt_tui.core.network.structure_check import get_onnx_schema
from trt_tui.core.precision import FP16_MIN, MIN_OPSETS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES, TYPES_WITH_RANGES, QuantizedType

ONNX_TYPES = {
    Precision.FP32: ir.DataType.FLOAT, Precision.FP16: ir.DataType.FLOAT16, Precision.BF16: ir.DataType.BFLOAT16
}
"""The float types of ONNX by precision."""

NUMPY_TYPES = {Precision.FP32: np.dtype(np.float32), Precision.FP16: np.dtype(np.float16),
               Precision.BF16: np.dtype(ml_dtypes.bfloat16)}
"""The same in numpy."""

REDUCED_OPERAND_TYPES = (*QUANTIZED_TYPES, Precision.TF32)
"""What the operands of a product can be read as, other than values of the float type around it."""

HALF_PRECISIONS = (Precision.FP16, Precision.BF16)
"""The float precisions below FP32."""

MASK_LIMITS = {Precision.FP16: FP16_MASK_VALUE, Precision.BF16: 2.0**127}
"""What a constant that a precision cannot hold is clamped to: FP32's least number is -Inf in BF16 too."""

ALL_SAME_TYPE = frozenset("Attention GridSample LinearAttention Pow RMSNormalization".split())
"""Operators whose floats ONNX lets differ in type, and TensorRT does not."""

VALUE_PRESERVING = frozenset(
    "Relu MaxPool GlobalMaxPool Max Min Abs Neg Clip Sign ReduceMax ReduceMin Where ThresholdedRelu Floor Ceil "
    "Round".split())
"""Operators whose result on values of a precision is a value of that precision."""

_COMMUTING_OPERATORS = frozenset(("Relu",))
"""Operators that rounding commutes with."""

TF32_SPLIT, TF32_BOUND = 2.0**13 + 1, 2.0**100
"""TF32 keeps 10 bits of a mantissa of 23: ``x`` becomes ``c - (c - x)`` with ``c = (2**13 + 1) x`` (Veltkamp's
splitting; Dekker, "A floating-point technique for extending the available precision", 1971) below a bound."""

ARITHMETIC_VERSION = 15
"""To be increased whenever a change here, or in how layers are grouped, gives the same config other figures: stored
results of another number are measured again."""


# -- types ---------------------------------------------------------------------------------------------------------


def find_boundary_type(group: FusionGroup, precision: Precision, other_precision: Precision) -> Precision:
    """The float type of a group's results: its own, or where it reads codes that of the other layers if the group can
    have it."""
    if precision not in QUANTIZED_TYPES and precision is not Precision.FILE:
        return precision.value_type
    if Precision.FILE in (precision, other_precision):
        return group.file_precision.float_type if group.file_precision is not None else Precision.FP32
    return other_precision if other_precision in group.allowed_precisions else Precision.FP32


def precision_refusal_reason(group: FusionGroup, config: PrecisionConfig) -> str:
    """Why a group does not get the precision that it is asked for; "" where it does."""
    requested = config.requested_precision(group)
    return group.refusal_reasons.get(config.other,
                                     group.refusal_reasons[requested]) if requested in group.refusal_reasons else ""


def required_opset(float_types: Collection[Precision], quantized_types: Collection[Precision] = ()) -> int:
    """The lowest opset that holds float types and codes (`MIN_OPSETS` of floats)."""
    return max([MIN_OPSETS[Precision.FP32], *(MIN_OPSETS[precision] for precision in float_types),
                *(QUANTIZED_TYPES[precision].min_opset for precision in quantized_types)])


def find_same_type_ports(node: ir.Node, opset: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which inputs must have the type of the first output, and which outputs have it, by the operator's schema."""
    return _find_same_type_schema_ports(node.op_type, opset, len(node.inputs), len(node.outputs))


@functools.cache
def _find_same_type_schema_ports(op_type: str, opset: int, input_count: int,
                                 output_count: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    schema = get_onnx_schema(op_type, opset)
    main = schema.outputs[0].type_str

    def flag_same_type_parameters(parameters: Sequence[onnx.defs.OpSchema.FormalParameter],
                                  count: int) -> tuple[bool, ...]:
        return tuple(op_type in ALL_SAME_TYPE or parameters[min(index, len(parameters) - 1)].type_str == main
                     for index in range(count))

    return flag_same_type_parameters(schema.inputs,
                                     input_count), flag_same_type_parameters(schema.outputs, output_count)


def find_compute_type_results(network: Network, layer: Layer) -> list[str]:
    """The float results of a layer that have the type it computes in."""
    if layer.kind is LayerKind.OPAQUE:
        return []
    is_typed_output = find_same_type_ports(network.node(layer.name), network.opset)[1]
    return [tensor for tensor, is_typed in zip(layer.outputs, is_typed_output, strict=True)
            if is_typed and tensor and network.is_float(tensor)]


def round_to_precision(array: np.ndarray, precision: Precision) -> np.ndarray:
    """Float32 values rounded to a float precision, as float32."""
    if precision is Precision.FP32:
        return array
    if precision is Precision.TF32:
        with np.errstate(over="ignore", invalid="ignore"):
            split = array * np.float32(TF32_SPLIT)
            rounded: np.ndarray = np.where(np.abs(array) < TF32_BOUND, split - (split - array), array)
            return rounded
    with np.errstate(over="ignore"):
        return array.astype(NUMPY_TYPES[precision]).astype(np.float32)


def mask_clamp_limit(network: Network, tensor: str, precision: Precision) -> float | None:
    """The magnitude that a constant is clamped to before it is rounded to a precision; None where it is not.

    That concerns masks which the precision cannot hold, and no weights.
    """
    limit = MASK_LIMITS.get(precision)
    if limit is None or tensor not in network.constant_tensors or not network.is_mask(tensor):
        return None
    if np.isfinite(round_to_precision(network.constant_amax(tensor), precision)):
        return None
    return limit


def min_divisor_epsilon(network: Network, tensor: str, precision: Precision) -> float | None:
    """What a constant is raised to before it is rounded to a precision; None where it is not.

    That concerns numbers that keep a divisor from being zero and that FP16 would round to zero themselves.
    """
    return FP16_MIN if precision is Precision.FP16 and tensor in network.epsilon_constants else None


def preserves_precision_of_values(layer: Layer) -> bool:
    """Whether a layer's results on values of a precision are values of that precision."""
    return layer.kind is LayerKind.COPY or layer.op_type in VALUE_PRESERVING


def commutes_with_rounding(layer: Layer) -> bool:
    """Whether a layer yields the same from rounded values as when its results are rounded."""
    return layer.op_type in _COMMUTING_OPERATORS


# -- what a config makes of a group --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class QdqScale:
    """The scale of one site.

    Attributes:
        values: As the target holds them, float32: ``()``, ``(channels,)``, or for blocks the shape of the weight with
            its axis divided by the size of a block.
        stored_type: Their type.
        quantized_type: What is held by them.
        axis: The axis along which they differ, None for one scale.
        block_size: How many values along the axis share one; None where each index of it has its own.
        dequantized_type: The float type that the layer reads dequantized values in; None where it multiplies codes.
        original_values: The values before they were raised for a bias, see `trt_tui.core.lowering.bias_scales`; None if
            they were not.
    """

    values: np.ndarray
    stored_type: Precision
    quantized_type: QuantizedType
    axis: int | None = None
    block_size: int | None = None
    dequantized_type: Precision | None = None
    original_values: np.ndarray | None = None

    @property
    def weight_cache_key(self) -> tuple[object, ...]:
        """What decides, beside a tensor's values, what becomes of a weight."""
        return (self.stored_type, self.quantized_type.precision, self.axis, self.block_size, self.dequantized_type,
                self.values.tobytes() if self.original_values is not None else None)

    def broadcast_to_shape(self, shape: Sequence[int]) -> np.ndarray:
        """The values in a shape that those of the tensor divide by."""
        if self.axis is None:
            return self.values
        if self.block_size is not None:
            return np.repeat(self.values, self.block_size, self.axis)
        return self.values.reshape([-1 if axis == self.axis else 1 for axis in range(len(shape))])


@dataclass(frozen=True, eq=False)
class GroupLowering:
    """What a config makes of a group.

    Attributes:
        precision: What it is asked to run in; TF32 for a product in FP32 of an engine that may use that.
        boundary_type: The float type of its results, and of all that it reads.
        scales: Of the sites that carry Q/DQ; none unless it reads codes.
    """

    precision: Precision
    boundary_type: Precision
    scales: Mapping[QdqSite, QdqScale] = field(default_factory=dict)

    @property
    def accumulator(self) -> Precision:
        """The type that its products are summed in: TensorRT's kernels for FP16 may sum in FP16, unless Casts around a
        product ask for FP32. Codes are summed in INT32 or FP32."""
        return Precision.FP16 if self.precision is Precision.FP16 else Precision.FP32

    @property
    def operand_type(self) -> Precision | None:
        """Which of `REDUCED_OPERAND_TYPES` its activations are read as; None for none."""
        quantized_type = QUANTIZED_TYPES.get(self.precision)
        return (self.precision if self.precision is Precision.TF32
                or quantized_type is not None and quantized_type.quantizes_activations else None)


_NO_SCALES: Mapping[QdqSite, QdqScale] = {}

ScaleCache = dict[tuple[object, ...], Mapping[QdqSite, QdqScale]]
"""Scales of groups by all that decides them."""


def operand_qdq_sites(group: FusionGroup, precision: Precision) -> tuple[QdqSite, ...]:
    """The sites of a group's activations that are read as one of `REDUCED_OPERAND_TYPES`."""
    return group.qdq_sites_of_multiplied_inputs() if precision is Precision.TF32 else group.calibrated_qdq_sites(
        precision)


def uses_tf32(group: FusionGroup, config: PrecisionConfig) -> bool:
    """Whether a group, where it is in FP32, multiplies in TF32."""
    return config.tf32 and bool(group.qdq_sites_of_multiplied_inputs())


def plan_lowering(network: Network, config: PrecisionConfig, ranges: Mapping[str, float], *, with_casts: bool = True,
                  folded_constants: FoldedConstants | None = None,
                  scale_cache: ScaleCache | None = None) -> dict[str, GroupLowering]:
    """What a config makes of each group, by group name, in network order.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        with_casts: False for a release that takes float types layer by layer: its scales are FP32.
        folded_constants: The weights as the config changes them, where the network has them unchanged.
        scale_cache: Scales of earlier configs of this network, which are not computed again; it takes those of this
            one.

    Raises:
        InputError: an input of a layer that reads codes has no range.
    """
    common_ranges = scales.compute_activation_ranges(network, ranges, config)
    amax = {
        quantized_type.precision: common_ranges if
        (type_ranges := select_ranges_for_type(ranges, quantized_type)) is ranges else scales.compute_activation_ranges(
            network, type_ranges, config)
        for quantized_type in TYPES_WITH_RANGES
    }
    group_lowerings = {}
    for group in network.groups:
        precision = config.precision_of(group)
        boundary_type = find_boundary_type(group, precision, config.other)
        if precision is Precision.FP32 and uses_tf32(group, config):
            precision = Precision.TF32
        quantized_type = QUANTIZED_TYPES.get(precision)
        group_scales = _NO_SCALES if quantized_type is None else _compute_qdq_scales(
            network, group, quantized_type, amax.get(precision, {}), boundary_type if with_casts else Precision.FP32,
            folded_constants, scale_cache)
        group_lowerings[group.name] = GroupLowering(precision, boundary_type, group_scales)
    return group_lowerings


def _compute_qdq_scales(network: Network, group: FusionGroup, quantized_type: QuantizedType,
                        amax_by_tensor: Mapping[str, float], boundary_type: Precision,
                        folded_constants: FoldedConstants | None,
                        scale_cache: ScaleCache | None = None) -> Mapping[QdqSite, QdqScale]:
    """The scales of a group's sites; those of one layer's operands have one type."""
    sites = group.qdq_sites_at_precision(quantized_type.precision)
    biases = {site: bias_scales.find_bias_input(network, group, site) for site in sites if site.role == "weight"} \
        if quantized_type.precision is Precision.INT8 else {}
    if scale_cache is not None:
        cache_key = (group.name, quantized_type.precision, boundary_type, *(amax_by_tensor.get(
            site.tensor) if site.role != "weight" else folded_constants and folded_constants.constant_edit_key(
                (site.layer, site.index)) for site in sites), *(folded_constants.constant_edit_key(port)
                                                                for port in biases.values()
                                                                if folded_constants and port is not None))
        if cache_key not in scale_cache:
            scale_cache[cache_key] = _compute_qdq_scales(network, group, quantized_type, amax_by_tensor, boundary_type,
                                                         folded_constants)
        return scale_cache[cache_key]
    exact_scales = {
        site: scales.compute_weight_scale(network, site, quantized_type, folded_constants)
        if site.role == "weight" else scales.compute_activation_scale(amax_by_tensor, site.tensor, quantized_type)
        for site in sites
    }
    scale_types = {
        layer: scales.choose_scale_type((scale
                                         for site, scale in exact_scales.items()
                                         if site.layer == layer), boundary_type, quantized_type)
        for layer in dict.fromkeys(site.layer for site in sites)
    }
    scales_by_site = {}
    for site, scale in exact_scales.items():
        axis, block = scales.find_weight_scale_layout(network, site,
                                                      quantized_type) if site.role == "weight" else (None, None)
        scales_by_site[site] = QdqScale(round_to_precision(scale, scale_types[site.layer]), scale_types[site.layer],
                                        quantized_type, axis, block,
                                        None if quantized_type.quantizes_activations else boundary_type)
    for site, port in biases.items():
        if port is not None and scale_types[
                site.layer] is boundary_type:  # with Casts between nothing quantizes the bias
            scales_by_site[site] = _raise_weight_scale_for_bias(network, scales_by_site, site, port, folded_constants)
    return scales_by_site


def _raise_weight_scale_for_bias(network: Network, scales_by_site: Mapping[QdqSite, QdqScale], qdq_site: QdqSite,
                                 bias_input: tuple[str, int], folded_constants: FoldedConstants | None) -> QdqScale:
    """Returns the scale of a weight, raised where ONNX Runtime could not quantize the bias of the layer otherwise."""
    scale = scales_by_site[qdq_site]
    input_scales = [
        site_scale for other_site, site_scale in scales_by_site.items()
        if other_site.layer == qdq_site.layer and other_site.role == "input"
    ]
    bias = bias_scales.read_bias_array(network, bias_input, folded_constants)
    if len(input_scales) != 1 or bias is None:
        return scale
    values = bias_scales.raise_weight_scales_for_bias(scale.values, float(input_scales[0].values),
                                                      round_to_precision(bias, scale.stored_type), scale.stored_type)
    return scale if values is scale.values else replace(scale, values=values, original_values=scale.values)


def find_raised_weight_scales(network: Network, group_lowerings: Mapping[str, GroupLowering],
                              folded_constants: FoldedConstants | None = None) -> list[RaisedWeightScales]:
    """Returns the weight scales that were raised for a bias, in network order, with what it costs.

    Args:
        folded_constants: The weights as the config changes them, where the network has them unchanged.
    """
    raised = []
    for group_lowering in group_lowerings.values():
        for site, scale in group_lowering.scales.items():
            if scale.original_values is None:
                continue
            port = site.layer, site.index
            weight = network.constant_value(
                site.tensor) if folded_constants is None else folded_constants.compute_constant(port)
            assert weight is not None
            costs = [weight_sqnr_db(weight, quantize_dequantize_weight(weight, used_scale))
                     for used_scale in (replace(scale, values=scale.original_values), scale)]
            changed = np.flatnonzero(scale.values != scale.original_values)
            raised.append(RaisedWeightScales(site.layer, tuple(map(int, changed)) if scale.axis is not None else (),
                                             scale.original_values.ravel()[changed], scale.values.ravel()[changed],
                                             (costs[0], costs[1])))
    return raised


def quantize_dequantize_weight(weight_array: np.ndarray, qdq_scale: QdqScale) -> np.ndarray:
    """A weight as a layer that reads codes sees it, float32: codes times scale.

    It is rounded to the type of its scale before it is quantized, and where weights alone are codes, to the float type
    that the layer multiplies in behind.
    """
    weight = round_to_precision(weight_array, qdq_scale.stored_type)
    step = qdq_scale.broadcast_to_shape(weight.shape)
    result: np.ndarray = qdq_scale.quantized_type.quantize(weight / step)
    result *= step
    return result if qdq_scale.dequantized_type is None else round_to_precision(
        round_to_precision(result, qdq_scale.stored_type), qdq_scale.dequantized_type)


def round_constant(network: Network, tensor: str, precision: Precision) -> np.ndarray:
    """A constant rounded to a float precision, float32; a mask that it cannot hold is clamped, an epsilon raised."""
    array = network.constant_value(tensor)
    limit = mask_clamp_limit(network, tensor, precision)
    if limit is not None:
        array = np.clip(array, np.float32(-limit), np.float32(limit))
    if (min_value := min_divisor_epsilon(network, tensor, precision)) is not None:
        array = np.maximum(array, np.float32(min_value))
    return round_to_precision(array, precision)


# -- what a simulation must offer ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GatedFeatures:
    """What a gated graph can be asked for.

    Attributes:
        float_types: Float precisions below FP32 that every group has, as far as it can, and what the file has.
        boundary_types: What may surround layers that read codes.
        quantized_types: The precisions of these; TF32 for products in FP32.
        editable_constants: Scales and biases of normalisations, and biases of what can read codes, are fed.
        norm_operators: Decomposed normalisations can be run as the operator rounds.
    """

    float_types: frozenset[Precision]
    boundary_types: frozenset[Precision]
    quantized_types: frozenset[Precision]
    editable_constants: bool = False
    norm_operators: bool = False

    @classmethod
    def from_precisions(cls, float_types: Iterable[Precision], boundary_types: Iterable[Precision],
                        quantized_types: Iterable[Precision] = (Precision.INT8,)) -> GatedFeatures:
        """An offer of some float precisions; FP32, which every group has, counts for nothing among them."""
        return cls(frozenset(float_types) - {Precision.FP32}, frozenset(boundary_types), frozenset(quantized_types))

    @classmethod
    def from_config(cls, network: Network, config: PrecisionConfig) -> GatedFeatures:
        """The least that a config needs."""
        requested = {precision.value_type for precision in config.precision_by_group(network).values()}
        quantized_types = requested & QUANTIZED_TYPES.keys()
        tf32 = any(uses_tf32(group, config) for group in network.groups)
        precisions = cls.from_precisions(requested & {*HALF_PRECISIONS, Precision.FILE},
                                         {config.other} if quantized_types else (),
                                         quantized_types | ({Precision.TF32} if tf32 else set()))
        return replace(precisions, editable_constants=has_constant_edits(config),
                       norm_operators=bool(list_normalisation_rewrites(config)))

    def __or__(self, more: GatedFeatures) -> GatedFeatures:
        return GatedFeatures(self.float_types | more.float_types, self.boundary_types | more.boundary_types,
                             self.quantized_types | more.quantized_types, self.editable_constants
                             or more.editable_constants, self.norm_operators or more.norm_operators)

    def includes_features(self, required_features: GatedFeatures) -> bool:
        """Whether all that is needed is offered."""
        return (self.float_types >= required_features.float_types
                and self.boundary_types >= required_features.boundary_types
                and self.quantized_types >= required_features.quantized_types
                and self.editable_constants >= required_features.editable_constants
                and self.norm_operators >= required_features.norm_operators)

    def find_operand_types(self, group: FusionGroup) -> dict[Precision, frozenset[Precision]]:
        """What of it the activations of a group can pass through, by the float type of its results: that type alone, or
        codes. A group whose weights alone are codes has the form of its float type: its weights are fed."""
        operand_types: dict[Precision, set[Precision]] = {}
        if (Precision.FILE in self.float_types and group.file_precision is not None
                and not group.file_precision.is_plain_fp32):
            operand_types[Precision.FILE] = {Precision.FILE}
        for precision in HALF_PRECISIONS:
            if precision in self.float_types and precision in group.allowed_precisions:
                operand_types.setdefault(precision, set()).add(precision)
        for precision, quantized_type in QUANTIZED_TYPES.items():
            if precision in self.quantized_types and precision in group.allowed_precisions:
                for other_precision in sorted(self.boundary_types):
                    boundary_type = find_boundary_type(group, precision, other_precision)
                    operand_types.setdefault(
                        boundary_type, set()).add(precision if quantized_type.quantizes_activations else boundary_type)
        if Precision.TF32 in self.quantized_types and group.qdq_sites_of_multiplied_inputs():
            operand_types.setdefault(Precision.FP32, set()).add(Precision.TF32)
        return {boundary_type: frozenset(precisions) for boundary_type, precisions in operand_types.items()}
