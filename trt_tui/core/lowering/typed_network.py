"""Lowering to a strongly typed ONNX network, in which Cast and Q/DQ nodes alone express the precisions.

TensorRT 10 and 11 build this network with strong typing. Weights remain the FP32 initializers of the network and are
never copied. TensorRT's builder folds the Cast and Q/DQ nodes after them.

A network from a quantized or typed file is lowered from the model of the file: only its changed groups are lowered. A
group in file precision keeps every node of the file: quantized values, scales, zero points, Casts, names. A changed
group loses its Q/DQ and Casts of the file and is lowered by the rulebook for its new precision. Other readers of a Q/DQ
pair keep the pair. If no group is changed, the result is the network of the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.network_rewrite import (
    RewrittenNetwork,
    has_half_subgraph_results,
    refuse_edits_under_file_precision,
    rewrite_network_for_config,
    tensorrt_operators_text,
)
from trt_tui.core.lowering.rulebook import ONNX_TYPES, GroupLowering, QdqScale, raised_scales_text
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig
from trt_tui.core.network.graph import SHAPE_READERS, reads_only_shape, register_constant, stored_tensor
from trt_tui.core.network.graph_editor import GraphEditor, remove_unread_values
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, QdqSite
from trt_tui.core.network.model_editing import iterate_reachable, list_subgraphs, value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import INITIALIZER_ONLY_INPUTS, TENSORRT_DOMAIN
from trt_tui.core.network.opset_conversion import find_ir_version
from trt_tui.core.network.qdq.rewrites import replace_refused_nodes
from trt_tui.core.network.qdq.source_model import SourceModel
from trt_tui.core.network.qdq.steps import (
    PRECISION_BY_FLOAT_TYPE,
    PRECISION_BY_HALF_TYPE,
    is_cast,
    is_dequantize,
    is_quantize,
)
from trt_tui.core.precision import MIN_UNSAFE_OPSET, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

QUANTIZED_WEIGHT_SUFFIX, DEQUANTIZED_SUFFIX = "_quantized", "_DequantizeLinear_Output"
"""The suffixes of the tensors behind Q of a weight and DQ of an activation.

ONNX Runtime's ``qdq_loss_debug`` finds the tensor of the FP32 network by these."""

_GEMM_RANK, _ZERO_POINT_INPUT, _BIAS_INPUT = 2, 2, 2
_FIRST_AXES_PREFIX = "first_axes_"


@dataclass(frozen=True)
class TypedNetwork:
    """A strongly typed network, with a record of the changes to its layers.

    Attributes:
        model: The network; its weights are tensors of the base network.
        layer_changes: The change to each layer as text for users, by layer name; "as it was" for layers without float
            results.
        refused_layers: The reason why a layer did not get its requested precision, by layer name.
        notes: Notes on the network as a whole.
    """

    model: ir.Model
    layer_changes: Mapping[str, str]
    refused_layers: Mapping[str, str]
    notes: tuple[str, ...] = ()


def lower_to_typed_network(network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> TypedNetwork:
    """Lowers a config to a strongly typed network.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.

    Raises:
        InputError: an input of a quantized layer has no range, or the opset cannot be raised.
    """
    return lower_rewritten_network(rewrite_network_for_config(network, config), config, ranges)


def lower_rewritten_network(
    rewritten_network: RewrittenNetwork,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    *,
    with_casts: bool = True,
) -> TypedNetwork:
    """Lowers a config to a strongly typed network, from a network that already contains the edits of the config.

    Args:
        with_casts: False keeps every tensor in FP32, for a release that takes float precisions as layer constraints.
            Masks that FP16 layers read are clamped all the same, and scales are in FP32.
    """
    network = rewritten_network.network
    group_lowerings = rulebook.plan_lowering(network, config, ranges, with_casts=with_casts)
    opset = required_opset_of_lowerings(group_lowerings, network.opset, with_casts=with_casts)
    model = network.convert_model_to_opset(opset).clone()
    lowering = TypedLowering(rewritten_network, config, group_lowerings, opset, model, with_casts=with_casts)
    return lowering.lower_network()


def required_opset_of_lowerings(
    group_lowerings: Mapping[str, GroupLowering], min_opset: int, *, with_casts: bool = True
) -> int:
    """Returns the lowest opset, at least ``min_opset``, that supports the types of all group lowerings."""
    float_types = {group_lowering.boundary_type for group_lowering in group_lowerings.values()} if with_casts else ()
    quantized_types = {
        scale.quantized_type.precision
        for group_lowering in group_lowerings.values()
        for scale in group_lowering.scales.values()
    }
    return max(rulebook.required_opset(float_types, quantized_types), min_opset)


class TypedLowering(GraphEditor):
    """The lowering of one config to a strongly typed network.

    Args:
        rewritten_network: The network with the edits of the config.
        group_lowerings: The result of `rulebook.plan_lowering`.
        model: The model that is changed, converted to ``opset``.
        with_casts: False keeps every tensor in FP32, as in `lower_rewritten_network`.
    """

    def __init__(
        self,
        rewritten_network: RewrittenNetwork,
        config: PrecisionConfig,
        group_lowerings: Mapping[str, GroupLowering],
        opset: int,
        model: ir.Model,
        *,
        with_casts: bool,
    ) -> None:
        super().__init__(model.graph)
        self.rewritten_network, self.network = rewritten_network, rewritten_network.network
        self.config = config
        self.with_casts = with_casts
        self.group_lowerings = group_lowerings
        self.opset = opset
        self.model = model
        self.cast_cache: dict[tuple[str, ir.DataType], ir.Value] = {}
        self.qdq_cache: dict[tuple[object, ...], ir.Value] = {}
        self.layer_changes: dict[str, str] = {}
        self.notes: list[str] = []
        self._replaced_constants: list[ir.Value] = []  # constants that were replaced by another form

    def lower_network(self) -> TypedNetwork:
        """Lowers all layers and outputs and returns the typed network."""
        by_name = {node.name: node for node in self.graph}
        outputs = list(self.graph.outputs)
        for layer in self.network.layers:
            node = by_name.get(layer.name)
            if node is not None:
                self._lower_layer(layer, node)
            else:
                self.layer_changes[layer.name] = (
                    f"part of an operator that opset {self.opset} writes as several operators"
                )
        for node in list(self.graph):
            if node.name is not None and not self.network.has_layer(node.name) and node.name in by_name:
                self._restore_fp32_inputs(node)
        for index, value in enumerate(outputs):
            self._restore_fp32_output(index, value)
        self.graph.sort()
        return self.build_typed_network()

    def build_typed_network(self) -> TypedNetwork:
        """Returns the typed network from the lowered model, with its notes and refusals."""
        self.model.ir_version = max(self.model.ir_version, find_ir_version(self.opset))
        remove_unread_values(self.graph, self._replaced_constants)
        fp32_attention = [
            layer.name
            for layer in self.network.layers
            if layer.op_type == "Attention"
            and not layer.domain
            and (group := self.network.find_group(layer.name)) is not None
            and self.group_lowerings[group.name].boundary_type is Precision.FP32
        ]
        if fp32_attention:
            self.notes.append(
                f"Attention in FP32 "
                f"({name_list_text(fp32_attention, max_count=2)}): TensorRT has kernels for it in 16 bits "
                "alone. Engines built here compute it in several layers; another builder does so where "
                "the node has TRT_decomposable=1, an attribute that ONNX Runtime does not take."
            )
        if texts := tensorrt_operators_text(self.network, self.config):
            self.notes.append(
                f"Layers in {texts} contain operators of TensorRT (domain {TENSORRT_DOMAIN}), which ONNX "
                "Runtime does not have."
            )
        if raised_scales := rulebook.find_raised_weight_scales(self.network, self.group_lowerings):
            self.notes.append(raised_scales_text(raised_scales))
        refused_layers = {
            name: reason
            for group in self.network.groups
            if (reason := rulebook.precision_refusal_reason(group, self.config))
            for name in group.layers
        }
        return TypedNetwork(
            self.model,
            {**self.layer_changes, **self.rewritten_network.layer_changes},
            refused_layers,
            (*self.notes, *self.rewritten_network.notes),
        )

    # -- one layer ----------------------------------------------------------------------------------------------

    def _lower_layer(self, layer: Layer, node: ir.Node) -> None:
        group = self.network.find_group(layer.name)
        if group is None or layer.kind is LayerKind.OPAQUE:
            if not reads_only_shape(layer):
                self._restore_fp32_inputs(node)
            self.layer_changes[layer.name] = "as it was" if group is None else Precision.FP32.label
            return
        if self.opset >= MIN_UNSAFE_OPSET and layer.op_type == "Add":
            self._unsqueeze_bias(node, layer, ONNX_TYPES[self.group_lowerings[group.name].boundary_type])
        self._convert_layer(
            layer,
            group,
            node,
            node,
            ((index, value) for index, value in enumerate(node.inputs) if value is not None and self._is_float(value)),
        )

    def _convert_layer(
        self,
        layer: Layer,
        group: FusionGroup,
        node: ir.Node,
        schema_node: ir.Node,
        float_inputs: Iterable[tuple[int, ir.Value]],
    ) -> ir.Node:
        """Converts the inputs and results of a layer to the types of its precision, with Q/DQ pairs; returns the node
        that computes it.

        Args:
            schema_node: The node of the layer in the network, which states the ports of the layer.
            float_inputs: The float inputs of the layer by index, before they are converted.
        """
        group_lowering, opaque = self.group_lowerings[group.name], layer.kind is LayerKind.OPAQUE
        boundary_type = ir.DataType.FLOAT if opaque else ONNX_TYPES[group_lowering.boundary_type]
        sites = {site.index: (site, scale) for site, scale in group_lowering.scales.items() if site.layer == layer.name}
        is_typed_input, is_typed_output = (
            ((), ()) if opaque else rulebook.flag_tensors_of_result_type(schema_node, self.opset)
        )
        for index, value in float_inputs:
            node.replace_input_with(
                index,
                self._add_qdq_pair(*sites[index], value, boundary_type)
                if index in sites
                else self._convert_input_type(
                    layer, index, value, boundary_type if not opaque and is_typed_input[index] else ir.DataType.FLOAT
                ),
            )
        for index, output in enumerate(node.outputs if self.with_casts else ()):
            if output.name and self.network.is_fp32(layer.outputs[index]):
                self._set_type(output, boundary_type if not opaque and is_typed_output[index] else ir.DataType.FLOAT)
        self.layer_changes[layer.name] = self._describe_layer_change(group_lowering.precision, boundary_type, sites)
        if self.with_casts and group_lowering.precision is Precision.FP16_ACC_FP32 and layer.name in group.main_layers:
            return self._accumulate_in_fp32(node, boundary_type)
        return node

    def _set_type(self, value: ir.Value, dtype: ir.DataType) -> None:
        value.type = ir.TensorType(dtype)  # a clone shares its types with the network
        self.types.pop(value_name(value), None)
        if dtype is not ir.DataType.FLOAT:
            self.types[value_name(value)] = dtype

    def _accumulate_in_fp32(self, node: ir.Node, boundary_type: ir.DataType) -> ir.Node:
        """Replaces a product of FP16 values by an FP32 product between Casts, and returns it.

        TensorRT builds this as one kernel that reads and writes FP16 and accumulates in FP32.

        The bias of a Gemm is added in FP16 after the product. If it were added within the product or before the Cast,
        TensorRT-RTX 1.7 would compute in FP32. Therefore the product is rounded, and the result is rounded again. The
        simulation rounds only the result. It is up to 3 dB better at such a layer, or more if the bias cancels much of
        the product.
        """
        name, result = node.name or "", node.outputs[0]
        operands = [value for value in node.inputs]
        has_bias = (
            node.op_type == "Gemm" and len(operands) > _BIAS_INPUT and node.attributes.get_float("beta", 1.0) == 1
        )
        bias = operands.pop() if has_bias else None
        product = ir.Node(
            node.domain,
            node.op_type,
            [
                self._add_operator(
                    "Cast",
                    [value],
                    {"to": int(ir.DataType.FLOAT)},
                    f"{value_name(value)}__fp32",
                    ir.DataType.FLOAT,
                    value.shape,
                )
                if value is not None
                else None
                for value in operands
            ],
            list(node.attributes.values()),
            name=name,
            metadata_props=dict(node.metadata_props),
        )
        product_value = product.outputs[0]
        product_value.name, product_value.type, product_value.shape = (
            self.names.make_unique_name(f"{result.name}__sum"),
            ir.TensorType(ir.DataType.FLOAT),
            result.shape,
        )
        node.name = self.names.make_unique_name(f"{result.name}__{_short_type_name(boundary_type)}")
        self.graph.append(product)
        source = product_value
        if bias is not None:
            source = self._add_operator(
                "Cast",
                [product_value],
                {"to": int(boundary_type)},
                f"{result.name}__product",
                boundary_type,
                result.shape,
            )
        node.resize_inputs(1 if bias is None else 2)
        for index, value in enumerate([source] if bias is None else [source, bias]):
            node.replace_input_with(index, value)
        node.op_type = "Cast" if bias is None else "Add"
        node.attributes.clear()
        if bias is None:
            node.attributes["to"] = ir.AttrInt64("to", int(boundary_type))
        return product

    def _unsqueeze_bias(self, node: ir.Node, layer: Layer, boundary_type: ir.DataType) -> None:
        """Gives the bias of a quantized MatMul as many dimensions as its result has.

        If the bias has one dimension, ONNX Runtime fuses it into a Reshape and a Gemm, and then refuses the Q that it
        adds for these (`MIN_UNSAFE_OPSET`).
        """
        ranks = [len(self.network.shape(tensor) or ()) for tensor in (*layer.inputs, layer.outputs[0])]
        for index, value in enumerate(node.inputs):
            other_input = node.inputs[1 - index]
            producer = other_input.producer() if other_input is not None else None
            if value is None or ranks[index] != 1 or ranks[-1] <= _GEMM_RANK or not is_quantized_matmul(producer):
                continue
            stored = stored_tensor(value)
            if stored is None:
                axes = self._add_constant(
                    np.arange(ranks[-1] - 1, dtype=np.int64), f"{_FIRST_AXES_PREFIX}{ranks[-1] - 1}"
                )
                shape = ir.Shape([*[1] * (ranks[-1] - 1), *(value.shape or (None,))])
                bias_value = self._add_operator(
                    "Unsqueeze",
                    [self._add_cast(value, boundary_type), axes],
                    {},
                    f"{value.name}__spread",
                    boundary_type,
                    shape,
                )
            else:
                shape = ir.Shape([*[1] * (ranks[-1] - 1), stored.shape.numpy()[0]])
                name = self.names.make_unique_name(f"{value.name}__spread")
                bias_value = register_constant(
                    self.graph,
                    name,
                    ir.LazyTensor(
                        partial(_reshape_tensor, stored, shape), dtype=stored.dtype, shape=shape, cache=True, name=name
                    ),
                )
                self._replaced_constants.append(value)
            node.replace_input_with(index, bias_value)

    def _is_float(self, value: ir.Value) -> bool:
        """Returns True if a tensor is FP32 in the network. For tensors of the opset conversion, the converted model
        decides.
        """
        name = value_name(value)
        return self.network.is_fp32(name) if self.network.has_tensor(name) else value.dtype is ir.DataType.FLOAT

    def _describe_layer_change(
        self,
        precision: Precision,
        boundary_type: ir.DataType,
        qdq_by_input_index: Mapping[int, tuple[QdqSite, QdqScale]],
    ) -> str:
        if precision in QUANTIZED_TYPES:
            if qdq_by_input_index:
                return f"{precision.label}: Q/DQ on " + ", ".join(
                    f"input {i} ({qdq_by_input_index[i][0].role})" for i in sorted(qdq_by_input_index)
                )
            return f"{_short_type_name(boundary_type).upper()}, fused behind an {precision.label} layer"
        return precision.label

    def _restore_fp32_inputs(self, node: ir.Node) -> None:
        """Inserts Casts so that an unchanged layer, and its subgraphs, read FP32."""
        subgraphs = [nested for subgraph in list_subgraphs(node) for nested in (subgraph, *subgraph.subgraphs())]
        for reader in (node, *(inner for graph in subgraphs for inner in graph)):
            for index, value in enumerate(reader.inputs):
                if value is not None and value.name in self.types:
                    reader.replace_input_with(index, self._add_cast(value, ir.DataType.FLOAT))
        for graph in subgraphs:
            for index, value in enumerate(graph.outputs):
                if value.name in self.types:
                    graph.outputs[index] = self._add_cast(value, ir.DataType.FLOAT)

    def _restore_fp32_output(self, output_index: int, value: ir.Value) -> None:
        """Casts a network output back to FP32. The output of a fusion barrier may stay in FP16, which avoids the Cast."""
        dtype = self.types.get(value_name(value), ir.DataType.FLOAT)
        hidden = value_name(value) in self.config.get_moves(BarrierMove)
        if dtype is not ir.DataType.FLOAT and not (hidden and dtype is ir.DataType.FLOAT16):
            self._cast_output(output_index, value, ir.DataType.FLOAT)

    def _cast_output(self, index: int, value: ir.Value, dtype: ir.DataType) -> None:
        """Gives a network output the required type by a Cast that takes over its name."""
        name = value_name(value)
        current_type = self.types.get(name, ir.DataType.FLOAT)
        value.name = self.names.make_unique_name(f"{name}__{_short_type_name(current_type)}")
        cast_node = self._add_node("Cast", [value], {"to": int(dtype)}, f"{name}__output")
        cast_node.outputs[0].name = name
        cast_node.outputs[0].dtype, cast_node.outputs[0].shape = dtype, value.shape
        self.graph.outputs[index] = cast_node.outputs[0]

    # -- operators ----------------------------------------------------------------------------------------------

    def _convert_input_type(self, layer: Layer, input_index: int, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Returns an input of a layer in the given type: behind a Cast, or as an initializer if TensorRT requires one
        there.
        """
        stored_value = (
            stored_tensor(value)
            if input_index in INITIALIZER_ONLY_INPUTS.get(layer.op_type, ()) and self.with_casts
            else None
        )
        if stored_value is None:
            return self._add_cast(value, dtype)
        return self._add_constant(
            stored_value.numpy().astype(dtype.numpy()), f"{value.name}__{_short_type_name(dtype)}"
        )

    def _add_cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = value_name(value)
        if self.types.get(name, ir.DataType.FLOAT) is dtype:
            return value
        key = (name, dtype)
        if key not in self.cast_cache:
            source = self._clamp_constant(value, dtype)
            self.cast_cache[key] = (
                source
                if not self.with_casts
                else self._add_operator(
                    "Cast", [source], {"to": int(dtype)}, f"{name}__{_short_type_name(dtype)}", dtype, value.shape
                )
            )
        return self.cast_cache[key]

    def _clamp_constant(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Returns a value in which a mask or epsilon beyond the range of a type is replaced by the nearest
        representable value."""
        label, min_value = (
            PRECISION_BY_FLOAT_TYPE[dtype].label,
            rulebook.min_divisor_epsilon(self.network, value_name(value), PRECISION_BY_FLOAT_TYPE[dtype]),
        )
        if min_value is not None:
            self.notes.append(
                f"Constant {value.name} is 0 in {label} and is raised to {min_value:.2g}: it protects a divisor from 0."
            )
            floor = self._add_constant(np.asarray(min_value, np.float32), f"{_short_type_name(dtype)}_least")
            return self._add_operator(
                "Max", [value, floor], {}, f"{value.name}__raised", ir.DataType.FLOAT, value.shape
            )
        limit = rulebook.mask_clamp_limit(self.network, value_name(value), PRECISION_BY_FLOAT_TYPE[dtype])
        if limit is None:
            return value
        self.notes.append(f"Constant {value.name} exceeds {label} and is clamped to ±{limit:.6g}.")
        low = self._add_constant(np.asarray(-limit, np.float32), f"{_short_type_name(dtype)}_lowest")
        high = self._add_constant(np.asarray(limit, np.float32), f"{_short_type_name(dtype)}_highest")
        return self._add_operator(
            "Clip", [value, low, high], {}, f"{value.name}__clamped", ir.DataType.FLOAT, value.shape
        )

    def _add_qdq_pair(
        self, qdq_site: QdqSite, qdq_scale: QdqScale, value: ir.Value, boundary_type: ir.DataType
    ) -> ir.Value:
        """Adds Q and DQ to an input, in the type of its scale. Casts are added if the boundary type differs."""
        key = (
            value_name(value),
            boundary_type if self.with_casts else ir.DataType.FLOAT,
            qdq_site.reduced_axis if qdq_scale.quantized_type.block_scale_type else None,
            *qdq_scale.weight_cache_key,
        )
        if key in self.qdq_cache:
            return self.qdq_cache[key]
        scale_type = ONNX_TYPES[qdq_scale.stored_type]
        base = value_name(value)
        suffix = (
            f"{base}__{_short_type_name(boundary_type)}"
            if boundary_type is not ir.DataType.FLOAT and self.with_casts
            else base
        )
        if qdq_scale.quantized_type.block_scale_type:
            self.qdq_cache[key] = self._add_block_qdq_pair(qdq_site, qdq_scale, value, boundary_type, suffix)
            return self.qdq_cache[key]
        packed = self._build_block_weight(qdq_site, qdq_scale, value, f"{suffix}__codes")
        if packed is None:
            value = self._add_cast(
                self._add_cast(value, boundary_type) if qdq_site.role != "weight" else value, scale_type
            )
        attributes = {} if qdq_scale.axis is None else {"axis": qdq_scale.axis}
        if qdq_scale.block_size is not None:
            attributes["block_size"] = qdq_scale.block_size
        step = self._add_constant(
            qdq_scale.values.astype(ONNX_TYPES[qdq_scale.stored_type].numpy()), f"{suffix}__scale"
        )
        zero = self._add_constant(
            np.zeros(qdq_scale.values.shape, qdq_scale.quantized_type.onnx_type.numpy()), f"{suffix}__zero_point"
        )
        shape, stored_type = value.shape, qdq_scale.quantized_type.onnx_type
        weight = qdq_site.role == "weight"
        quantized = (
            packed
            if packed is not None
            else self._add_operator(
                "QuantizeLinear",
                [value, step, zero],
                attributes,
                f"{suffix}__q",
                stored_type,
                shape,
                f"{base}{QUANTIZED_WEIGHT_SUFFIX}" if weight else "",
            )
        )
        result = self._add_operator(
            "DequantizeLinear",
            [quantized, step, zero],
            attributes,
            f"{suffix}__dq",
            scale_type,
            shape,
            f"{base}{DEQUANTIZED_SUFFIX}" if not weight else "",
        )
        if scale_type is not ir.DataType.FLOAT:
            self.types[value_name(result)] = scale_type
        result = self._add_cast(result, boundary_type)
        self.qdq_cache[key] = result
        return result

    def _add_block_qdq_pair(
        self, qdq_site: QdqSite, qdq_scale: QdqScale, value: ir.Value, boundary_type: ir.DataType, suffix: str
    ) -> ir.Value:
        """Adds the Q and DQ nodes of MXFP8 or NVFP4 to an input.

        TensorRT computes the scales of an activation in an operator of its own (domain ``trt``). In MXFP8, another of
        its operators reads scales as bytes, which are exponents with a bias of 127. In NVFP4, a DequantizeLinear
        multiplies the E4M3 scales by the scale of the tensor, and another one the values by the result. ModelOpt writes
        the same forms.
        """
        quantized_type, shape = qdq_scale.quantized_type, value.shape
        is_weight, is_mxfp8 = qdq_site.role == "weight", quantized_type.block_scale_type == "E8M0"
        axis = qdq_scale.axis if is_weight else qdq_site.reduced_axis
        assert axis is not None, "a group without the axis of the sum cannot have the type"
        attributes = {"axis": axis, "block_size": quantized_type.block_sizes[0]}
        scale_dtype = ir.DataType.UINT8 if is_mxfp8 else ir.DataType.FLOAT8E4M3FN
        tensor_scale = (
            None
            if is_mxfp8
            else self._add_constant(
                np.asarray(qdq_scale.tensor_scale if is_weight else qdq_scale.values, np.float32),
                f"{suffix}__tensor_scale",
            )
        )
        if is_weight:
            quantized = self._build_block_weight(qdq_site, qdq_scale, value, f"{suffix}__codes")
            assert quantized is not None, "the weight is stored"
            ratios = qdq_scale.values / np.float32(qdq_scale.tensor_scale)
            scales = self._add_constant(
                (np.frexp(ratios)[1] + 126).astype(np.uint8) if is_mxfp8 else ratios.astype(scale_dtype.numpy()),
                f"{suffix}__scale",
            )
        else:
            source = self._add_cast(value, boundary_type)
            node = self._add_node(
                f"TRT_{'MXFP8' if is_mxfp8 else 'FP4'}DynamicQuantize",
                [source] if tensor_scale is None else [source, tensor_scale],
                {
                    **attributes,
                    **(
                        {"output_dtype": int(quantized_type.onnx_type)}
                        if is_mxfp8
                        else {"scale_type": int(scale_dtype)}
                    ),
                },
                f"{suffix}__q",
                TENSORRT_DOMAIN,
                output_count=2,
            )
            quantized, scales = node.outputs
            quantized.name, scales.name = (
                self.names.make_unique_name(f"{suffix}__codes"),
                self.names.make_unique_name(f"{suffix}__scales"),
            )
            quantized.dtype, quantized.shape, scales.dtype = quantized_type.onnx_type, shape, scale_dtype
            self.model.graph.opset_imports[TENSORRT_DOMAIN] = 1
        result_name = "" if is_weight else f"{value_name(value)}{DEQUANTIZED_SUFFIX}"
        if tensor_scale is None:
            self.model.graph.opset_imports[TENSORRT_DOMAIN] = 1
            dtype = boundary_type if self.with_casts else ir.DataType.FLOAT
            return self._add_operator(
                "TRT_MXFP8DequantizeLinear",
                [quantized, scales],
                {**attributes, "output_dtype": int(dtype)},
                f"{suffix}__dq",
                dtype,
                shape,
                result_name,
                TENSORRT_DOMAIN,
            )
        block_scales = self._add_operator(
            "DequantizeLinear", [scales, tensor_scale], {}, f"{suffix}__scale_dq", ir.DataType.FLOAT, scales.shape
        )
        result = self._add_operator(
            "DequantizeLinear",
            [quantized, block_scales],
            attributes,
            f"{suffix}__dq",
            ir.DataType.FLOAT,
            shape,
            result_name,
        )
        return self._add_cast(result, boundary_type)

    def _build_block_weight(
        self, qdq_site: QdqSite, qdq_scale: QdqScale, weight: ir.Value, name: str
    ) -> ir.Value | None:
        """Returns a weight as quantized values that are computed at the first access; None if the weight keeps its
        QuantizeLinear.

        Weights without blocks stay in FP32 with a QuantizeLinear, because TensorRT 8.6 builds no other form.
        """
        tensor = stored_tensor(self.network.ir_value(qdq_site.tensor)) if qdq_site.role == "weight" else None
        if (
            not qdq_scale.quantized_type.block_sizes
            or tensor is None
            and not (qdq_site.role == "weight" and qdq_scale.quantized_type.block_scale_type)
        ):
            return None
        dtype = qdq_scale.quantized_type.onnx_type
        shape = ir.Shape(
            tensor.shape.numpy() if tensor is not None else self.network.constant_value(qdq_site.tensor).shape
        )

        def compute_quantized_tensor() -> ir.TensorProtocol:
            source = tensor.numpy() if tensor is not None else self.network.constant_value(qdq_site.tensor)
            array = rulebook.round_to_precision(source.astype(np.float32), qdq_scale.stored_type)
            return ir.Tensor(
                qdq_scale.quantized_type.quantize(array / qdq_scale.broadcast_to_shape(array.shape)).astype(
                    dtype.numpy()
                ),
                dtype=dtype,
            )

        self._replaced_constants.append(weight)
        name = self.names.make_unique_name(name)
        return register_constant(
            self.graph, name, ir.LazyTensor(compute_quantized_tensor, dtype=dtype, shape=shape, cache=True, name=name)
        )


def is_quantized_matmul(node: ir.Node | None) -> bool:
    """Returns True if a node is a MatMul of INT8 values."""
    data = node.inputs[0] if node is not None and node.op_type == "MatMul" else None
    producer = data.producer() if data is not None else None
    if producer is not None and producer.op_type == "Cast" and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    zero = (
        producer.inputs[2]
        if producer is not None and producer.op_type == "DequantizeLinear" and len(producer.inputs) > _ZERO_POINT_INPUT
        else None
    )
    return zero is not None and zero.dtype is ir.DataType.INT8


def _reshape_tensor(tensor: ir.TensorProtocol, shape: ir.Shape) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().reshape(shape.numpy()))


def _short_type_name(dtype: ir.DataType) -> str:
    return PRECISION_BY_FLOAT_TYPE[dtype].value


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
    return _SourceModelLowering(rewritten_network, source_model, config, ranges).lower_network()


class _SourceModelLowering(TypedLowering):
    def __init__(
        self,
        rewritten_network: RewrittenNetwork,
        source_model: SourceModel,
        config: PrecisionConfig,
        ranges: Mapping[str, float],
    ) -> None:
        network = rewritten_network.network
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
            rewritten_network,
            config,
            group_lowerings,
            required_opset,
            network.convert_model_to_opset(required_opset, source_model.model).clone(),
            with_casts=True,
        )
        self.source_model = source_model
        self.touched_layers = {name for group in touched_groups for name in group.layers}
        self.types = {name: dtype for name, dtype in source_model.types.items() if dtype in PRECISION_BY_HALF_TYPE}
        self.file_types = dict(self.types)
        self.file_nodes = {node_name(node): node for node in self.graph}
        self.kept_nodes = set(self.graph)
        self.base_nodes = {node_name(node): node for node in network.convert_model_to_opset(required_opset).graph}
        self.values_by_name = ir.convenience.create_value_mapping(self.graph, include_subgraphs=False)
        self.read_values = [value for value in self.values_by_name.values() if value.uses() or value.is_graph_output()]
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
            self._remove_qdq_before_shapes()
        remove_unread_values(self.graph, self.read_values)
        self.graph.sort()
        self.notes += replace_refused_nodes(self.graph, self.kept_nodes, self.types)
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
        self.read_values += node.outputs
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
        outputs, source_tensors = list(self.graph.outputs), self.source_model.source_tensors
        changed_layers = (layer for layer in self.network.layers if layer.name in self.touched_layers)
        for tensor in (tensor for layer in changed_layers for tensor in layer.outputs if tensor):
            name = source_tensors.get(tensor, tensor)
            value, dtype = self.values_by_name.get(name), self.file_types.get(name, ir.DataType.FLOAT)
            if value is None or not self.network.is_fp32(tensor) or self.types.get(name, ir.DataType.FLOAT) is dtype:
                continue
            for use in list(value.uses()):
                if use.node in self.kept_nodes:
                    use.node.replace_input_with(use.idx, self._add_cast(value, dtype))
            for index, output in enumerate(outputs):
                if output is value:
                    self._cast_output(index, value, dtype)

    def _remove_qdq_before_shapes(self) -> None:
        """Removes Q/DQ pairs that only Shape and Size read, because the tensor before a pair has the same shape."""
        for layer in filter(reads_only_shape, self.network.layers):
            value = self.file_nodes[layer.name].inputs[0]
            if (
                value is not None
                and is_dequantize(value.producer())
                and layer.inputs[0] not in self.network.constant_tensors
                and not value.is_graph_output()
                and all(use.node.op_type in SHAPE_READERS for use in value.uses())
            ):
                value.replace_all_uses_with(self._find_value_of_fp32_tensor(layer.inputs[0]))


def _list_operands(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else [node_input for node_input in node.inputs if node_input is not None]


def node_name(node: ir.Node) -> str:
    return node.name or ""
