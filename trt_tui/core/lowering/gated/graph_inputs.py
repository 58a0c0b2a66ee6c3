"""The inputs of a gated graph besides those of the network: gates, scales and weights."""

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from trt_tui.core.lowering import fp16_accumulation
from trt_tui.core.lowering.gated.emitter import NodeEmitter
from trt_tui.core.lowering.rulebook import REDUCED_OPERAND_TYPES, GatedFeatures
from trt_tui.core.network.layers import FusionGroup, QdqSite
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.zero_cost_support import Normalisation
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES

OperandTypes = dict[Precision, frozenset[Precision]]
"""The types of a group's activations besides FP32, by boundary type; see `GatedFeatures.find_operand_types`."""


@dataclass(frozen=True)
class WeightInput:
    """A weight, scale or bias that is an input of the gated graph.

    Attributes:
        site: The layer input that receives the value; its tensor is "" if the layer has no such input in the network.
            The value is then 0, unless a move sets another.
        shape: The shape of the value in that case; () for that in the network.
    """

    group: str
    site: QdqSite
    shape: tuple[int, ...] = ()


class GraphInputs:
    """The inputs of a gated graph for all fusion groups that have a choice of precisions.

    Attributes:
        operand_types: The available types of each such group.
        gates: Bool scalars by kind, by group; see `trt_tui.core.lowering.gated.gated_graph.GatedGraph`.
        scales: Float32 scalars of activations, by group and tensor; groups may share one.
        weights: Float32 weights, scales and biases, by group, layer and index of the layer's input.
        weight_inputs: The weight, scale or bias of each input, by the input's name.
        summing_groups: The groups whose kernels can accumulate in FP16.
        split_factors: If gates are data, float32 factors that split sums, by group and number of roundings.
        factor_input_names: The names of the inputs of float32 divisors, by the tensor whose channels are divided.
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
            constants = _iterate_editable_constants(
                network, group, self.operand_types) if features.editable_constants else ()
            for number, weight_input in enumerate(constants):
                self._add_weight_input(emitter, f"constant/{index}/{number}", weight_input)
            if group.name not in self.operand_types:
                continue
            operand_types = self.operand_types[group.name]
            for precision in dict.fromkeys(operand_type for precisions in operand_types.values()
                                           for operand_type in sorted(precisions)):
                for site in group.calibrated_qdq_sites(precision):
                    if (group.name, site.tensor) not in self.scales:
                        self.scales[group.name, site.tensor] = self._add_scale_input(emitter, site.tensor, features)
            for number, site in enumerate(group.weight_qdq_sites()):
                name = f"weight/{index}/{number}"
                value = emitter.add_input(name, ir.DataType.FLOAT, network.ir_value(site.tensor).shape)
                self.weights[group.name, site.layer, site.index] = value
                self.weight_inputs[name] = WeightInput(group.name, site)
            kinds = _list_data_flow_gate_kinds(operand_types) if gates_as_data else _list_gate_kinds(operand_types)
            if Precision.FP16 in operand_types.get(Precision.FP16, ()) and any(
                    fp16_accumulation.has_repeated_rounding(network, network.get_layer(name)) for name in group.layers):
                self.summing_groups.add(group.name)
                kinds += [] if gates_as_data else ["sums"]
            if self.find_normalisation_operator(group.name) is not None:
                kinds.append("operator")
            self.gates[group.name] = {
                kind: emitter.add_input(f"gate/{index}/{kind}", ir.DataType.BOOL) for kind in kinds}

    def _add_scale_input(self, emitter: NodeEmitter, tensor: str, features: GatedFeatures) -> ir.Value:
        """Adds the scale input of a tensor; groups share one input if their scales cannot differ."""
        quantized_types = features.quantized_types & QUANTIZED_TYPES.keys()
        shared = len(quantized_types) == 1 and features.boundary_types == {Precision.FP32}
        if shared and tensor in self._shared_scales:
            return self._shared_scales[tensor]
        value = self._shared_scales[tensor] = emitter.add_input(f"scale/{len(self.scales)}", ir.DataType.FLOAT)
        return value

    def _add_weight_input(self, emitter: NodeEmitter, name: str, weight_input: WeightInput) -> None:
        tensor = weight_input.site.tensor
        shape = ir.Shape(weight_input.shape) if weight_input.shape else emitter.network.ir_value(tensor).shape
        self.weights[weight_input.group, weight_input.site.layer,
                     weight_input.site.index] = emitter.add_input(name, ir.DataType.FLOAT, shape)
        self.weight_inputs[name] = weight_input

    def find_channel_factors(self, tensor: str) -> ir.Value | None:
        """Returns the input of the divisors of a tensor's channels; None if no move can scale them."""
        if tensor in self._scaled_shapes and tensor not in self._channel_factors:
            factors = self._emitter.add_input(f"factors/{len(self._channel_factors)}", ir.DataType.FLOAT,
                                              ir.Shape(self._scaled_shapes[tensor]))
            self._channel_factors[tensor] = factors
            self.factor_input_names[tensor] = value_name(factors)
        return self._channel_factors.get(tensor)

    @property
    def weight_bytes(self) -> int:
        return 4 * sum(math.prod(value.shape.numpy()) for value in self.weights.values() if value.shape is not None)

    def find_normalisation_operator(self, group_name: str) -> Normalisation | None:
        """Returns the normalisation of a group that can be computed by its operator; None if there is none."""
        norm = self._norm_operators.get(group_name)
        return norm if norm is not None and not norm.no_rewrite_reason else None


def _iterate_editable_constants(network: Network, group: FusionGroup,
                                gated_groups: Container[str]) -> Iterator[WeightInput]:
    """Yields the constants of a fusion group that a config can edit, besides its weights."""
    zero_cost_support, group_layers = network.zero_cost_support, set(group.layers)
    # the weights of gated groups are inputs already
    weights = {(site.layer, site.index) for site in group.weight_qdq_sites()} if group.name in gated_groups else ()
    ports = [port for port in zero_cost_support.edited_ports if port not in weights]
    bias = zero_cost_support.biases.get(group.name) if group.name in gated_groups else None
    if bias is not None and bias.port is not None:
        ports.append(bias.port)
    for layer, index in dict.fromkeys(port for port in ports if port[0] in group_layers):
        inputs = network.get_layer(layer).inputs
        tensor = inputs[index] if index < len(inputs) else ""
        site = QdqSite(layer, index, tensor, "constant")
        yield WeightInput(group.name, site, (bias.channels,) if bias is not None and not tensor else ())


def _list_gate_kinds(operand_types: OperandTypes) -> list[str]:
    """Returns the kinds of gates that a group needs if gates are control flow."""
    kinds = ["fp32", *(boundary_type.value for boundary_type in list(operand_types)[:-1])]
    mixed_types = {
        operand_type
        for precisions in operand_types.values() if len(precisions) > 1 for operand_type in precisions
    }
    if mixed_types:
        kinds += [
            *(quantized_type.value for quantized_type in REDUCED_OPERAND_TYPES if quantized_type in mixed_types),
            "clean"
        ]
    if any(boundary_type in precisions for boundary_type, precisions in operand_types.items()):
        kinds.append("direct")
    return kinds


def _list_data_flow_gate_kinds(operand_types: OperandTypes) -> list[str]:
    """Returns the kinds of gates that a group needs if gates are data."""
    gate_types = {*operand_types, *(gate_type for precisions in operand_types.values() for gate_type in precisions)}
    return sorted(gate_type.value for gate_type in gate_types if gate_type is not Precision.FP32)
