"""Lowering of a quantized or typed file to a strongly typed network: only the changed groups of the file are lowered.

A group in file precision keeps every node of the file: quantized values, scales, zero points, Casts, names. A changed
group loses its Q/DQ and Casts of the file and is lowered by the rulebook for its new precision. Other readers of a Q/DQ
pair keep the pair. If no group is changed, the result is the network of the file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.edited_constants import refuse_edits_under_file_precision
from trt_tui.core.lowering.lowering_checks import has_half_subgraph_results
from trt_tui.core.lowering.network_rewrite import rewrite_network_for_config
from trt_tui.core.lowering.rulebook import ONNX_TYPES
from trt_tui.core.lowering.typed_network import (
    TypedLowering,
    TypedNetwork,
    lower_to_typed_network,
    required_opset_of_lowerings,
)
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig
from trt_tui.core.network.constants import register_constant
from trt_tui.core.network.graph_editor import remove_unread_values
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.model_editing import iterate_reachable, value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.opset_conversion import convert_opset, find_ir_version
from trt_tui.core.network.qdq.source_model import SourceModel
from trt_tui.core.network.qdq.steps import PRECISION_BY_HALF_TYPE, is_cast, is_dequantize, is_quantize
from trt_tui.core.network.qdq.typed_refusals import replace_refused_nodes
from trt_tui.core.precision import MIN_UNSAFE_OPSET, Precision
from trt_tui.errors import InputError


def lower_from_source_model(network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> TypedNetwork:
    """Lowers a config to a strongly typed network. If groups are in file precision, it starts from the model of the
    file.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.

    Raises:
        InputError: an INT8 layer's input has no range, or the opset cannot be raised.
    """
    source_model = network.source_model
    if source_model is None or not any(config.precision_of(group) is Precision.FILE for group in network.groups):
        return lower_to_typed_network(network, config, ranges)
    refuse_edits_under_file_precision(network, config)
    # the layers of the file read tensors by their names in the file
    rewritten_network = rewrite_network_for_config(network, config, keeps_neutral_layers=True)
    typed_network = _SourceModelLowering(rewritten_network.network, source_model, config, ranges).lower_network()
    return replace(
        typed_network,
        layer_changes={**typed_network.layer_changes, **rewritten_network.layer_changes},
        notes=(*typed_network.notes, *rewritten_network.notes),
    )


class _SourceModelLowering(TypedLowering):
    def __init__(
        self, network: Network, source_model: SourceModel, config: PrecisionConfig, ranges: Mapping[str, float]
    ) -> None:
        group_lowerings = rulebook.plan_lowering(network, config, ranges)
        touched_groups = [
            group for group in network.groups if group_lowerings[group.name].precision is not Precision.FILE
        ]
        opset = source_model.model.graph.opset_imports.get("", 0)
        required_opset = (
            max(
                network.opset,
                required_opset_of_lowerings(
                    {group.name: group_lowerings[group.name] for group in touched_groups}, opset
                ),
            )
            if touched_groups
            else opset
        )
        super().__init__(
            network,
            config,
            group_lowerings,
            required_opset,
            _convert_source_model_to_opset(network, source_model, required_opset),
            with_casts=True,
        )
        self.source_model = source_model
        self.touched_layers = {name for group in touched_groups for name in group.layers}
        self.types = {name: dtype for name, dtype in source_model.types.items() if dtype in PRECISION_BY_HALF_TYPE}
        self.file_types = dict(self.types)
        self.file_nodes = {node_name(node): node for node in self.graph}
        self.kept_nodes = set(self.graph)
        self.base_nodes = {node_name(node): node for node in network.convert_model_to_opset(required_opset).graph}
        node_outputs = (value for node in self.graph for value in node.outputs)
        self.values_by_name = {
            value.name or "": value for value in (*self.graph.inputs, *self.graph.initializers.values(), *node_outputs)
        }
        self.read_values = [value for value in self.values_by_name.values() if value.uses()]
        self.unquantized_constants: dict[str, ir.Value] = {}

    def lower_network(self) -> TypedNetwork:
        for layer in self.network.layers:
            if layer.name in self.touched_layers:
                self._lower_changed_layer(layer)
            else:
                group = self.network.find_group(layer.name)
                self.layer_changes[layer.name] = "as it was" if group is None else group.precision_label(Precision.FILE)
        self._restore_types_of_kept_layers()
        for name in BarrierMove.subject_kind.sort_subjects(self.network, self.config.get_moves(BarrierMove)):
            value = self._find_value_of_fp32_tensor(name)
            if not value.is_graph_output():
                self.graph.outputs.append(value)
                self._restore_fp32_output(len(self.graph.outputs) - 1, value)
        if self.touched_layers:
            self._remove_qdq_of_ungrouped_layers()
        remove_unread_values(self.graph, self.read_values)
        self.graph.sort()
        self.notes += replace_refused_nodes(self.graph, self.kept_nodes, self.types)
        self.model.ir_version = max(self.model.ir_version, find_ir_version(self.opset))
        return self.build_typed_network()

    # -- one layer ----------------------------------------------------------------------------------------------

    def _lower_changed_layer(self, layer: Layer) -> None:
        """Lowers a layer of a changed group to its new precision. The layer no longer reads through Q/DQ of the file."""
        group = self.network.find_group(layer.name)
        base_node = self.base_nodes.get(layer.name)
        if group is None or base_node is None:
            self.layer_changes[layer.name] = f"part of an operator that opset {self.opset} writes as several operators"
            return
        if has_half_subgraph_results(self.network, group):
            raise InputError(
                f"{layer.name} cannot be exported in FP32 alone",
                "the file computes the layers inside it in a lower precision",
                "Keep it in file precision, or give every layer another precision.",
            )
        node = self._find_or_add_node(layer, base_node)
        if len(node.inputs) < len(layer.inputs):  # bias correction adds a bias to a node without one in the file
            node.resize_inputs(len(layer.inputs))
        self._convert_layer(layer, group, node, base_node, self._connect_inputs(layer, node))
        if self.opset >= MIN_UNSAFE_OPSET and layer.op_type == "Add":
            self._unsqueeze_bias(node, layer, ONNX_TYPES[self.group_lowerings[group.name].boundary_type])

    def _connect_inputs(self, layer: Layer, node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
        """Connects a node to the tensors that its layer reads in the FP32 network; yields the float inputs by index."""
        for index, tensor in enumerate(layer.inputs):
            if tensor:
                value = self._find_value_of_fp32_tensor(tensor)
                node.replace_input_with(index, value)
                if self.network.is_fp32(tensor):
                    yield index, value

    def _find_or_add_node(self, layer: Layer, fp32_node: ir.Node) -> ir.Node:
        """Returns the node of a layer in the file, with the attributes that the FP32 network has.

        If the file has no such node, the node of the FP32 network is added.
        """
        node = self.file_nodes.get(layer.name)
        if node is None or layer.name in self.source_model.added_nodes or node.op_type != fp32_node.op_type:
            return self._add_layer_node(layer, fp32_node)
        self.kept_nodes.discard(node)
        node.attributes.update(
            (name, attribute)
            for name, attribute in fp32_node.attributes.items()
            if attribute.type in (ir.AttributeType.INT, ir.AttributeType.TENSOR)
        )
        return node

    def _add_layer_node(self, layer: Layer, fp32_node: ir.Node) -> ir.Node:
        node = ir.Node(
            fp32_node.domain,
            fp32_node.op_type,
            [None] * len(layer.inputs),
            list(fp32_node.attributes.values()),
            num_outputs=len(layer.outputs),
            name=self.names.make_unique_name(layer.name),
            metadata_props=dict(fp32_node.metadata_props),
        )
        for name, output, original in zip(layer.outputs, node.outputs, fp32_node.outputs, strict=True):
            output.name, output.type, output.shape = name, original.type, original.shape
            old = self.values_by_name.get(name)
            if old is not None:  # the same, or a network output behind a Q/DQ pair
                for index, value in enumerate(self.graph.outputs):
                    if value is old:
                        self.graph.outputs[index] = output
                if not is_dequantize(old.producer()):  # another operator computes the tensor now
                    old.replace_all_uses_with(output)
                old.name = self.names.make_unique_name(f"{name}__as_in_file")
                self.types.pop(name, None)
                if (dtype := self.file_types.get(name)) is not None:
                    self.types[old.name] = dtype
            self.values_by_name[name] = output
        self.graph.append(node)
        return node

    # -- inputs of changed layers --------------------------------------------------------------------------------

    def _find_value_of_fp32_tensor(self, tensor: str) -> ir.Value:
        """Returns the value in the lowered model that represents a tensor of the FP32 network."""
        if tensor in self.network.constant_tensors:
            return self._find_unquantized_constant(tensor)
        producer = self.network.producer.get(tensor)
        if producer in self.source_model.added_nodes and not is_cast(self.base_nodes[producer]):
            return self._add_computation_of_tensor(self.network.get_layer(producer), tensor)
        return self.values_by_name[self.source_model.source_tensors.get(tensor, tensor)]

    def _add_computation_of_tensor(self, layer: Layer, tensor: str) -> ir.Value:
        """Adds a layer that only the FP32 network has, and returns its result in the type of the file's tensor."""
        if tensor not in self.values_by_name:
            node = self._add_layer_node(layer, self.base_nodes[layer.name])
            dtype = self.source_model.find_dtype(tensor)
            for index, name in enumerate(layer.inputs):
                node.replace_input_with(
                    index, self._add_cast(self._find_value_of_fp32_tensor(name), dtype) if name else None
                )
            self._set_type(node.outputs[0], dtype)
        return self.values_by_name[tensor]

    def _find_unquantized_constant(self, tensor: str) -> ir.Value:
        """Returns a constant without Q/DQ: that of the file if it is stored so, or else that of the FP32 network.

        Constants that come from the FP32 reference are always those of the FP32 network.
        """
        if tensor not in self.unquantized_constants:
            value = self.values_by_name.get(tensor)
            if value is None or any(
                item.name in self.source_model.replaced_constants
                or is_quantize(item.producer())
                or is_dequantize(item.producer())
                for item in iterate_reachable([value], _list_operands)
            ):
                value = register_constant(
                    self.graph,
                    self.names.make_unique_name(f"{tensor}__float"),
                    ir.tensor(self.network.constant_value(tensor)),
                )
            self.unquantized_constants[tensor] = value
        return self.unquantized_constants[tensor]

    # -- unchanged parts of the file ----------------------------------------------------------------------------

    def _restore_types_of_kept_layers(self) -> None:
        """Inserts Casts so that layers in file precision, and network outputs, keep the types of the file."""
        outputs = list(self.graph.outputs)
        for name in self._list_results_of_changed_layers():
            value, dtype = self.values_by_name[name], self.file_types.get(name, ir.DataType.FLOAT)
            if self.types.get(name, ir.DataType.FLOAT) is dtype:
                continue
            for use in list(value.uses()):
                if use.node in self.kept_nodes:
                    use.node.replace_input_with(use.idx, self._add_cast(value, dtype))
            for index, output in enumerate(outputs):
                if output is value:
                    self._cast_output(index, value, dtype)

    def _list_results_of_changed_layers(self) -> list[str]:
        return [
            name
            for layer in self.network.layers
            if layer.name in self.touched_layers
            for tensor in layer.outputs
            if tensor
            and self.network.is_fp32(tensor)
            and (name := self.source_model.source_tensors.get(tensor, tensor)) in self.values_by_name
        ]

    def _remove_qdq_of_ungrouped_layers(self) -> None:
        """Removes Q/DQ before layers without a group, such as Shape, if no other layer reads the pair."""
        for layer in self.network.layers:
            node = self.file_nodes.get(layer.name)
            if (
                node is None
                or self.network.find_group(layer.name) is not None
                or layer.name in self.source_model.added_nodes
            ):
                continue
            for index, tensor in enumerate(layer.inputs):
                value = node.inputs[index]
                if (
                    value is None
                    or not tensor
                    or not is_dequantize(value.producer())
                    or tensor in self.network.constant_tensors
                    or not self.network.is_fp32(tensor)
                ):
                    continue
                grouped = any(self.network.find_group(node_name(use.node)) is not None for use in value.uses())
                if not grouped and not value.is_graph_output():
                    dtype = self.types.get(value_name(value), ir.DataType.FLOAT)
                    node.replace_input_with(index, self._add_cast(self._find_value_of_fp32_tensor(tensor), dtype))


def _convert_source_model_to_opset(network: Network, source_model: SourceModel, opset: int) -> ir.Model:
    """Returns a copy of the file's model, converted to an opset."""
    if opset <= source_model.model.graph.opset_imports.get("", 0):
        return source_model.model.clone()
    try:
        return convert_opset(source_model.model, opset)
    except Exception as error:
        raise InputError(
            f"{network.name} cannot be converted to opset {opset}",
            str(error),
            getattr(error, "next_step", "")
            or f"Give no layer a precision that needs it, or quantize the network at opset {opset}.",
        ) from None


def _list_operands(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else [node_input for node_input in node.inputs if node_input is not None]


def node_name(node: ir.Node) -> str:
    return node.name or ""
