"""The gated graph: its inputs, and the feeds of a config."""

import math
import weakref
from collections import deque
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.emitter import NodeEmitter
from trt_tui.core.lowering.network_rewrite import (
    EditedConstants,
    list_normalisation_rewrites,
    refuse_edits_under_file_precision,
)
from trt_tui.core.lowering.rulebook import (
    REDUCED_OPERAND_TYPES,
    GatedFeatures,
    GroupLowering,
    QdqScale,
    veltkamp_split_factor,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, QdqSite
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.qdq.steps import PRECISION_BY_FLOAT_TYPE
from trt_tui.core.network.zero_cost_support import Normalisation
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES

OperandTypes = dict[Precision, frozenset[Precision]]
"""The types of a group's activations besides FP32, by boundary type; see `GatedFeatures.find_operand_types`."""


@dataclass(frozen=True)
class WeightInput:
    """An input of the gated graph that holds a weight, scale or bias.

    Attributes:
        site: The layer input that receives the value. Its tensor is "" if the layer lacks this input in the network;
            the value is then 0 unless a move sets it.
        shape: The shape of a value that the network lacks; () for any other value.
    """

    group: str
    site: QdqSite
    shape: tuple[int, ...] = ()


class GatedGraphInputs:
    """The inputs of a gated graph for all fusion groups that can run in several precisions.

    Attributes:
        operand_types: The available types of each such group.
        gates: Bool scalars by kind, by group; see `trt_tui.core.lowering.gated.gated_graph.GatedGraph`.
        scales: Float32 scalars of activations, by group and tensor; groups may share one.
        weights: Float32 weights, scales and biases, by group, layer and index of the layer's input.
        weight_inputs: The weight, scale or bias of each input, by the input's name.
        summing_groups: The groups whose kernels can accumulate in FP16.
        split_factors: If gates are data, the float32 factors that `NodeEmitter.round_fp16_sum` needs, by group and
            number of roundings.
        factor_input_names: The names of the inputs for channel divisors, float32, by divided tensor.
    """

    def __init__(self, emitter: NodeEmitter, features: GatedFeatures, *, gates_as_data: bool = False) -> None:
        network = emitter.network
        self._norm_operators = network.zero_cost_support.norms if features.norm_operators else {}
        self.operand_types: Mapping[str, OperandTypes] = {
            group.name: operand_types
            for group in network.groups
            if (operand_types := features.find_operand_types(group))
        }
        self.gates: dict[str, dict[str, ir.Value]] = {}
        self.scales: dict[tuple[str, str], ir.Value] = {}
        self.weights: dict[tuple[str, str, int], ir.Value] = {}
        self.weight_inputs: dict[str, WeightInput] = {}
        self._shared_scales: dict[str, ir.Value] = {}
        self.summing_groups: set[str] = set()
        self.split_factors: dict[tuple[str, int], ir.Value] = {}
        self._emitter = emitter
        self._scaled_shapes = network.zero_cost_support.scaled_tensor_shapes if features.editable_constants else {}
        self._channel_factors: dict[str, ir.Value] = {}
        self.factor_input_names: dict[str, str] = {}
        for index, group in enumerate(network.groups):
            constants = (
                _iterate_editable_constants(network, group, self.operand_types) if features.editable_constants else ()
            )
            for number, weight_input in enumerate(constants):
                self._add_weight_input(emitter, f"constant/{index}/{number}", weight_input)
            if group.name not in self.operand_types:
                continue
            operand_types = self.operand_types[group.name]
            for precision in dict.fromkeys(
                operand_type for precisions in operand_types.values() for operand_type in sorted(precisions)
            ):
                for site in group.calibrated_qdq_sites(precision):
                    if (group.name, site.tensor) not in self.scales:
                        self.scales[group.name, site.tensor] = self._add_scale_input(emitter, site.tensor, features)
            for number, site in enumerate(group.weight_qdq_sites()):
                self._add_weight_input(emitter, f"weight/{index}/{number}", WeightInput(group.name, site))
            kinds = _list_data_flow_gate_kinds(operand_types) if gates_as_data else _list_gate_kinds(operand_types)
            if Precision.FP16 in operand_types.get(Precision.FP16, ()) and any(
                rulebook.count_accumulator_roundings(network, layer) > 1
                or rulebook.find_bias_input_index(network, layer) is not None
                for layer in map(network.get_layer, group.layers)
            ):
                self.summing_groups.add(group.name)
                kinds += [] if gates_as_data else ["sums"]
            if self.find_normalisation_operator(group.name) is not None:
                kinds.append("operator")
            self.gates[group.name] = {
                kind: emitter.add_input(f"gate/{index}/{kind}", ir.DataType.BOOL) for kind in kinds
            }

    def _add_scale_input(self, emitter: NodeEmitter, tensor: str, features: GatedFeatures) -> ir.Value:
        """Adds the scale input of a tensor. Groups share one input if their scales cannot differ."""
        quantized_types = features.quantized_types & QUANTIZED_TYPES.keys()
        shared = len(quantized_types) == 1 and features.boundary_types == {Precision.FP32}
        if shared and tensor in self._shared_scales:
            return self._shared_scales[tensor]
        value = self._shared_scales[tensor] = emitter.add_input(f"scale/{len(self.scales)}", ir.DataType.FLOAT)
        return value

    def _add_weight_input(self, emitter: NodeEmitter, name: str, weight_input: WeightInput) -> None:
        tensor = weight_input.site.tensor
        shape = ir.Shape(weight_input.shape) if weight_input.shape else emitter.network.ir_value(tensor).shape
        self.weights[weight_input.group, weight_input.site.layer, weight_input.site.index] = emitter.add_input(
            name, ir.DataType.FLOAT, shape
        )
        self.weight_inputs[name] = weight_input

    def find_channel_divisor_input(self, tensor: str) -> ir.Value | None:
        """Returns the graph input with the channel divisors of a tensor; None if no move can scale the channels."""
        if tensor in self._scaled_shapes and tensor not in self._channel_factors:
            factors = self._emitter.add_input(
                f"factors/{len(self._channel_factors)}", ir.DataType.FLOAT, ir.Shape(self._scaled_shapes[tensor])
            )
            self._channel_factors[tensor] = factors
            self.factor_input_names[tensor] = value_name(factors)
        return self._channel_factors.get(tensor)

    @property
    def weight_input_bytes(self) -> int:
        """The size of all weights that are inputs. Sizes that shape inference leaves open count as 1."""
        return 4 * sum(
            math.prod(size for size in value.shape if isinstance(size, int))
            for value in self.weights.values()
            if value.shape is not None
        )

    def find_normalisation_operator(self, group_name: str) -> Normalisation | None:
        """Returns the normalisation of a group that the graph can compute as its operator; None if there is none."""
        norm = self._norm_operators.get(group_name)
        return norm if norm is not None and not norm.no_rewrite_reason else None


def _iterate_editable_constants(
    network: Network, group: FusionGroup, gated_groups: Container[str]
) -> Iterator[WeightInput]:
    """Yields the constants of a fusion group that a config can edit, besides its weights."""
    zero_cost_support, group_layers = network.zero_cost_support, set(group.layers)
    # the weights of gated groups are inputs already
    weights = {(site.layer, site.index) for site in group.weight_qdq_sites()} if group.name in gated_groups else ()
    ports = [port for port in zero_cost_support.scalable_layer_inputs if port not in weights]
    bias = zero_cost_support.biases.get(group.name) if group.name in gated_groups else None
    if bias is not None and bias.port is not None:
        ports.append(bias.port)
    for layer, index in dict.fromkeys(port for port in ports if port[0] in group_layers):
        inputs = network.get_layer(layer).inputs
        tensor = inputs[index] if index < len(inputs) else ""
        site = QdqSite(layer, index, tensor, "constant")
        yield WeightInput(group.name, site, (bias.channels,) if bias is not None and not tensor else ())


def _list_gate_kinds(operand_types: OperandTypes) -> list[str]:
    """Returns the kinds of gates that a group needs if gates are If nodes."""
    kinds = ["fp32", *(boundary_type.value for boundary_type in list(operand_types)[:-1])]
    mixed_types = {
        operand_type for precisions in operand_types.values() if len(precisions) > 1 for operand_type in precisions
    }
    if mixed_types:
        kinds += [
            *(quantized_type.value for quantized_type in REDUCED_OPERAND_TYPES if quantized_type in mixed_types),
            "clean",
        ]
    if any(boundary_type in precisions for boundary_type, precisions in operand_types.items()):
        kinds.append("direct")
    return kinds


def _list_data_flow_gate_kinds(operand_types: OperandTypes) -> list[str]:
    """Returns the kinds of gates that a group needs if gates are Where nodes."""
    gate_types = {*operand_types, *(gate_type for precisions in operand_types.values() for gate_type in precisions)}
    return sorted(gate_type.value for gate_type in gate_types if gate_type is not Precision.FP32)


_WeightKey = tuple[object, ...]
"""The cache key of a weight in a feed.

It consists of tensor, precision, edits by the config and, for a quantized weight, `QdqScale.weight_cache_key`."""


_GATE_VALUES = {gate: np.array(gate) for gate in (False, True)}
"""The arrays for true and false gates.

Every feed contains the same arrays, so that a device does not need to receive them again."""


_UNIT_SCALE = np.ones((), np.float32)

_MAX_SCALES_PER_GROUP = 8
"""The maximum number of cached scale sets per group; each belongs to one precision and set of ranges."""


@dataclass(frozen=True)
class GatedGraph:
    """A gated graph, with the names and meanings of its inputs and outputs.

    All gates are 0-d bools, scales 0-d float32, weights float32 of the weight's own shape.

    Attributes:
        features: The precisions and edits that the graph supports.
        gates: Input names (bool scalars) by kind, by group; each group has only the kinds that it needs:

            - "fp32": the group runs in FP32;
            - "fp16", "bf16": the group has this boundary type;
            - "file": the group runs in file precision;
            - "int8", "fp8", "mxfp8", "nvfp4": activations are converted to this quantized type;
            - "clean": every float input already has values of the boundary type;
            - "direct": the same, and no input is quantized;
            - "operator": a normalisation has the roundings of its operator;
            - "sums": products are accumulated in FP16; if gates are data, ``split_inputs`` express this.
        scale_inputs: Input names (float32 scalars) of activation scales, by group and tensor.
        results_by_group: Tensors that have the boundary type of a group, by group.
        weight_inputs: The weight, scale or bias of each further input, by the input's name.
        factor_inputs: Input names of the divisors of channels, by tensor. Results that are returned or measured are
            multiplied by these factors.
        edge_gates: If gates are data, input names (bool scalars) of gates for rounded inputs, each with the producing
            group and the reading group. True if one of them has results below FP32.
        split_inputs: If gates are data, input names (float32 scalars) of the factors that split sums, each with the
            group and the number of roundings.
        compared_outputs: Output names of the comparisons in the graph, by the name of the compared tensor.
        reference_inputs: Input names of the references of these comparisons, float32, by the name of the compared
            tensor. A reference has the shape of the tensor, or one element if its sums are not needed.
        test_outputs: Output names of the test branch, by tensor of the network.
        reference_outputs: Output names of the reference branch, by tensor of the network; empty if there is no such
            branch.
        sums_outputs: Output names of the error sums by kind ("accumulated" and "isolated"), float64, with a row per
            measured group and the columns of `ERROR_SUM_COLUMNS`.
        measured_groups: Groups in the order of the rows of the sums.
        counting_gate: Input name (bool scalar) of the gate for counting values that FP16 cannot represent; None if
            there are no sums or gates are data.
        mask_inputs: Input names (bool) of the masks of elements that count in the sums, by the axes of the tensor that
            the mask has.
        kept_feeds: Number of feeds whose weights are cached. With two, no weight is computed again if one group after
            another is changed and restored.
    """

    model: ir.Model
    network: Network
    features: GatedFeatures
    gates: Mapping[str, Mapping[str, str]]
    scale_inputs: Mapping[tuple[str, str], str]
    weight_inputs: Mapping[str, WeightInput]
    factor_inputs: Mapping[str, str]
    edge_gates: Mapping[str, tuple[str, str]]
    split_inputs: Mapping[str, tuple[str, int]]
    compared_outputs: Mapping[str, str]
    reference_inputs: Mapping[str, str]
    results_by_group: Mapping[str, frozenset[str]]
    test_outputs: Mapping[str, str]
    reference_outputs: Mapping[str, str]
    sums_outputs: Mapping[str, str]
    measured_groups: tuple[str, ...]
    counting_gate: str | None = None
    mask_inputs: Mapping[tuple[bool, ...], str] = field(default_factory=dict)
    kept_feeds: int = 1
    _weight_cache: weakref.WeakValueDictionary[_WeightKey, np.ndarray] = field(
        default_factory=weakref.WeakValueDictionary, repr=False, compare=False
    )
    _amax_cache: dict[Hashable, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    _scale_cache: rulebook.ScaleCache = field(default_factory=dict, repr=False, compare=False)
    _scalar_cache: dict[float, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    _group_feed_cache: dict[str, tuple[tuple[object, ...], Mapping[QdqSite, QdqScale], Mapping[str, np.ndarray]]] = (
        field(default_factory=dict, repr=False, compare=False)
    )
    _recent_weights: deque[list[np.ndarray]] = field(default_factory=deque, repr=False, compare=False)

    def make_feed(self, config: PrecisionConfig, ranges: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Returns the gates, scales and weights with which the test branch executes a config.

        Unchanged weights are the same arrays as in the last ``kept_feeds`` feeds and in feeds that are still in use.
        The graph must support the features of the config (`GatedFeatures.from_config`).

        Raises:
            InputError: an input of a quantized layer has no range.
        """
        network = self.network
        refuse_edits_under_file_precision(network, config)
        feed: dict[str, np.ndarray] = {}
        type_by_tensor: dict[str, Precision] = {}  # for tensors with values of a lower precision
        edited_constants = EditedConstants(network, config, self._amax_cache)
        if len(self._scale_cache) > _MAX_SCALES_PER_GROUP * len(network.groups):
            self._scale_cache.clear()
        group_lowerings = rulebook.plan_lowering(
            network, config, ranges, edited_constants=edited_constants, scale_cache=self._scale_cache
        )
        operators = list_normalisation_rewrites(config)
        feed.update(dict.fromkeys(self.scale_inputs.values(), self._get_cached_scalar(_UNIT_SCALE)))
        gates_are_data = bool(self.edge_gates or self.split_inputs)
        for group in network.groups:
            gates = self.gates.get(group.name)
            if gates is None:
                continue
            group_lowering = group_lowerings[group.name]
            already_rounded = not gates_are_data and all(
                type_by_tensor.get(tensor) is group_lowering.boundary_type for tensor in group.inputs
            )
            feed.update(self._make_group_feed(group, gates, group_lowering, already_rounded, group.name in operators))
            if gates_are_data:
                continue
            source_model = network.source_model if group_lowering.precision is Precision.FILE else None
            type_by_tensor.update(
                (tensor, tensor_type)
                for tensor in self.results_by_group[group.name]
                if (
                    tensor_type := group_lowering.boundary_type
                    if source_model is None
                    else PRECISION_BY_FLOAT_TYPE.get(source_model.find_dtype(tensor), Precision.FP32)
                )
                is not Precision.FP32
            )
        weights = {
            name: self._make_weight_array(weight, group_lowerings[weight.group], edited_constants)
            for name, weight in self.weight_inputs.items()
        }
        while len(self._recent_weights) > self.kept_feeds - 1:
            self._recent_weights.popleft()
        self._recent_weights.append(list(weights.values()))
        divisors = config.find_divisors(network) if self.factor_inputs else {}
        for tensor, name in self.factor_inputs.items():
            shape = network.zero_cost_support.scaled_tensor_shapes[tensor]
            feed[name] = np.ascontiguousarray(np.broadcast_to(divisors.get(tensor, _UNIT_SCALE), shape), np.float32)
        reduced_groups = {
            name
            for name, group_lowering in group_lowerings.items()
            if group_lowering.boundary_type is not Precision.FP32
        }
        feed.update(
            (name, _GATE_VALUES[producer in reduced_groups or reader in reduced_groups])
            for name, (producer, reader) in self.edge_gates.items()
        )
        feed.update(
            (
                name,
                self._get_cached_scalar(
                    np.array(
                        veltkamp_split_factor(count) if _accumulates_in_fp16(group_lowerings[group]) else 1, np.float32
                    )
                ),
            )
            for name, (group, count) in self.split_inputs.items()
        )
        if self.counting_gate is not None:
            feed[self.counting_gate] = _GATE_VALUES[False]
        return feed | weights

    def _make_group_feed(
        self,
        group: FusionGroup,
        gate_names: Mapping[str, str],
        group_lowering: GroupLowering,
        inputs_are_rounded: bool,
        uses_norm_operator: bool,
    ) -> Mapping[str, np.ndarray]:
        """Returns the gates and scales of a group; the cached arrays if their inputs have not changed."""
        key = (group_lowering.precision, group_lowering.boundary_type, inputs_are_rounded, uses_norm_operator)
        cached = self._group_feed_cache.get(group.name)
        if cached is not None and cached[0] == key and cached[1] is group_lowering.scales:
            return cached[2]
        boundary_type = Precision.FILE if group_lowering.precision is Precision.FILE else group_lowering.boundary_type
        operand_type_read = group_lowering.operand_type
        is_plain_fp32 = group.file_precision is None or group.file_precision.is_plain_fp32
        values = {
            "fp32": is_plain_fp32
            if boundary_type is Precision.FILE
            else boundary_type is Precision.FP32 and operand_type_read is None,
            "clean": inputs_are_rounded,
            "direct": inputs_are_rounded and operand_type_read is None,
            "operator": uses_norm_operator,
            "sums": _accumulates_in_fp16(group_lowering),
        }
        values |= {
            operand_type.value: operand_type_read is operand_type for operand_type in rulebook.REDUCED_OPERAND_TYPES
        }
        group_feed = {
            name: _GATE_VALUES[values[kind] if kind in values else kind == boundary_type.value]
            for kind, name in gate_names.items()
        }
        group_feed.update(
            (self.scale_inputs[group.name, site.tensor], self._get_cached_scalar(scale.values))
            for site, scale in group_lowering.scales.items()
            if site.role != "weight" and scale.quantized_type.needs_ranges
        )
        self._group_feed_cache[group.name] = key, group_lowering.scales, group_feed
        return group_feed

    def make_mask_feed(self, mask: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the mask inputs that restrict the error sums to the elements that are true in a bool mask."""
        return {name: expand_mask_to_axes(mask, axes) for axes, name in self.mask_inputs.items()}

    def _get_cached_scalar(self, value: np.ndarray) -> np.ndarray:
        """Returns a scalar as an array. Equal values always give the same array."""
        return self._scalar_cache.setdefault(float(value), np.asarray(value))

    def _make_weight_array(
        self, weight_input: WeightInput, group_lowering: GroupLowering, edited_constants: EditedConstants
    ) -> np.ndarray:
        site = weight_input.site
        port, scale = (site.layer, site.index), group_lowering.scales.get(site)
        edit_key = edited_constants.constant_edit_key(port)
        if not site.tensor and edit_key is None:
            return np.zeros(weight_input.shape, np.float32)
        tf32 = group_lowering.precision is Precision.TF32 and site.role == "weight"
        precision_key = group_lowering.boundary_type if scale is None and not tf32 else group_lowering.precision
        key = (
            site.tensor or port,
            weight_input.shape,
            precision_key,
            edit_key,
            port if group_lowering.precision is Precision.FILE else (),
            *(scale.weight_cache_key if scale is not None else ()),
        )
        array = self._weight_cache.get(key)
        if array is None:
            constant = edited_constants.compute_constant(port)
            assert constant is not None  # the network has the constant, or an edit creates it
            if scale is not None:
                array = rulebook.quantize_dequantize_weight(constant, scale)
            elif group_lowering.precision is Precision.FILE and self.network.source_model is not None:
                file_weight = self.network.source_model.constant_value(self.network.get_layer(site.layer), site.index)
                array = constant if file_weight is None else file_weight
            elif tf32:
                array = rulebook.round_to_precision(constant, Precision.TF32)
            elif group_lowering.boundary_type is Precision.FP32 or not self._has_boundary_type(site):
                array = constant
            elif edit_key is None:
                array = rulebook.round_constant(self.network, site.tensor, group_lowering.boundary_type)
            else:
                array = rulebook.round_to_precision(constant, group_lowering.boundary_type)
            if weight_input.shape:
                array = np.ascontiguousarray(np.broadcast_to(array, weight_input.shape))
            self._weight_cache[key] = array
        return array

    def _has_boundary_type(self, qdq_site: QdqSite) -> bool:
        """Returns True if an input has the float type at the boundary of its group.

        The scale of a BatchNormalization does not, because it stays in FP32.
        """
        ports = rulebook.flag_tensors_of_result_type(self.network.node(qdq_site.layer), self.network.opset)[0]
        return qdq_site.index >= len(ports) or ports[qdq_site.index]


def _accumulates_in_fp16(group_lowering: GroupLowering) -> bool:
    return group_lowering.precision is not Precision.FILE and group_lowering.accumulator is Precision.FP16


def expand_mask_to_axes(mask: np.ndarray, axis_flags: Sequence[bool]) -> np.ndarray:
    """Returns a mask that broadcasts to a tensor: axes that the mask lacks get size 1."""
    sizes = iter(mask.shape)
    return mask.reshape([next(sizes) if has else 1 for has in axis_flags])
