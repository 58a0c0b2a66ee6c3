"""The model of a quantized or typed file as it was read, kept beside the FP32 network that was derived from it.

A layer has the same name in both. The conversion nodes between a tensor and its reader (Casts, QuantizeLinear,
DequantizeLinear) belong to the reader. A Q/DQ pair with several readers stays in a lowered network if at least one of
them is in file precision.

Under its default options ONNX Runtime quantizes the bias of a Conv, ConvTranspose, Gemm or MatMul of INT8 values whose
result is quantized. It computes ``bias / (s_in * s_w)`` in the type of the scales, rounds the quotient to INT32 and
dequantizes it with the product of the scales (``WeightBiasQuantization``; seen with 1.31 and 1.32). The result is wrong
if the quotient overflows that type or INT32, or if the product is 0. TensorRT adds the bias in a float type.

A product that is subnormal in FP16 but not 0 does no harm. The division and the multiplication use the same rounded
product, and the quotient keeps the 11 bits of an FP16 bias.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import stored_tensor
from trt_tui.core.network.inference import evaluate_node
from trt_tui.core.network.layers import FilePrecision, FusionGroup, Layer, LayerKind
from trt_tui.core.network.model_editing import list_subgraphs
from trt_tui.core.network.model_file import find_schema
from trt_tui.core.network.operators import COPIES, INNER_PRODUCTS, POINTWISE, PRODUCTS, REDUCTIONS
from trt_tui.core.network.qdq.rewrites import (
    find_node_refusals,
)
from trt_tui.core.network.qdq.steps import (
    PRECISION_BY_FLOAT_TYPE,
    PRECISION_BY_HALF_TYPE,
    QdqStep,
    apply_qdq_step,
    is_cast,
    is_dequantize,
    is_quantize,
    read_qdq_step,
    round_to_type,
)
from trt_tui.core.precision import FP16_MAX, FP16_MIN, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES

_EVALUATED_COPIES = frozenset("Dropout Identity Reshape Squeeze Transpose Unsqueeze".split())

_EVALUATED_OPERATORS = POINTWISE | REDUCTIONS | PRODUCTS | _EVALUATED_COPIES
"""Operators on constants that are evaluated here; their results are not larger than their operands imply."""

_TYPES_BY_WIDTH = ("NVFP4", "FP4", "INT4", "MXFP8", "FP8", "FP8 E5M2", "INT8", "INT16")
"""The names of quantized types in `steps.TYPE_NAMES`, by increasing number of bits."""


class SourceModel:
    """The model of a quantized or typed file with the types of its tensors and its conversion nodes; read-only.

    Args:
        model: The model of the file, with named nodes, inlined functions and at least the program's lowest opset.
        source_tensors: Tensors that only the FP32 network has, each with the tensor of the file that it represents.
        added_nodes: Nodes that only the FP32 network has.

    Attributes:
        types: The type of each tensor of the file if the file determines it.
        replaced_constants: Names of the FP32 network's constants that come from its FP32 reference.
        changed_layers: Names of layers whose quantized weights are not roundings of weights of the reference.
    """

    def __init__(self, model: ir.Model, source_tensors: Mapping[str, str], added_nodes: Collection[str]) -> None:
        graph = model.graph
        self.model = model
        self.source_tensors = dict(source_tensors)
        self.added_nodes = frozenset(added_nodes)
        self.replaced_constants: frozenset[str] = frozenset()
        self.changed_layers: tuple[str, ...] = ()
        self._nodes = {node.name or "": node for node in graph}
        self._values = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
        self.types = _find_tensor_types(graph, model.graph.opset_imports)
        self._steps: dict[str, QdqStep] = {}
        self._expressions: dict[ir.Value, np.ndarray | None] = {}

    # -- tensors ------------------------------------------------------------------------------------------------

    def find_ir_value(self, fp32_tensor: str) -> ir.Value | None:
        """Returns the value of the file that corresponds to a tensor of the FP32 network; None if there is none."""
        return self._values.get(self.source_tensors.get(fp32_tensor, fp32_tensor))

    def find_dtype(self, fp32_tensor: str) -> ir.DataType:
        """Returns the type that a float tensor of the FP32 network has in the file."""
        return self.types.get(self.source_tensors.get(fp32_tensor, fp32_tensor), ir.DataType.FLOAT)

    def find_node(self, layer_name: str) -> ir.Node | None:
        """Returns the node of a layer in the file; None if only the FP32 network has the layer."""
        return None if layer_name in self.added_nodes else self._nodes.get(layer_name)

    def find_input_value(self, layer: Layer, input_index: int) -> ir.Value | None:
        """Returns the value that a layer of the file reads at an input; None if there is none."""
        node = self.find_node(layer.name)
        if node is not None:
            return node.inputs[input_index] if input_index < len(node.inputs) else None
        return self.find_ir_value(layer.outputs[0])  # the result of a Q/DQ pair, or None

    # -- conversions between a tensor and a layer ---------------------------------------------------------------

    def get_qdq_step(self, node: ir.Node) -> QdqStep:
        """Returns the effect of a Cast, QuantizeLinear or DequantizeLinear node."""
        name = node.name or ""
        if name not in self._steps:
            self._steps[name] = read_qdq_step(node)
        return self._steps[name]

    def find_conversion_steps(self, layer: Layer, input_index: int) -> tuple[QdqStep, ...] | None:
        """Returns the conversion nodes of the file between a tensor and a layer that reads it, in order.

        Returns None if the file and the FP32 network compute the tensor differently.
        """
        value, source_value = self.find_input_value(layer, input_index), self.find_ir_value(layer.inputs[input_index])
        steps: list[QdqStep] = []
        while value is not None and value is not source_value:
            node = value.producer()
            if node is None or not (is_cast(node) or is_quantize(node) or is_dequantize(node)):
                return None
            steps.append(self.get_qdq_step(node))
            value = node.inputs[0]
        return tuple(reversed(steps)) if value is not None else None

    def find_dequantize_step(self, fp32_tensor: str, through_copies: bool = False) -> QdqStep | None:
        """Returns the effect of the DequantizeLinear of a stored constant; None if the constant is not stored as
        quantized values.

        Args:
            through_copies: True if Casts and copies, such as a Transpose, may be between the DequantizeLinear and the
                tensor. The axis of the step then need not be that of the tensor.
        """
        value = self.find_ir_value(fp32_tensor)
        node = value.producer() if value is not None else None
        while (
            through_copies
            and node is not None
            and (is_cast(node) or not node.domain and node.op_type in COPIES)
            and node.inputs
            and node.inputs[0] is not None
        ):
            node = node.inputs[0].producer()
        if node is None or not is_dequantize(node) or stored_tensor(node.inputs[0]) is None:
            return None
        return self.get_qdq_step(node)

    # -- constants ----------------------------------------------------------------------------------------------

    def constant_value(self, layer: Layer, input_index: int) -> np.ndarray | None:
        """Returns the constant that a layer of the file reads, float32; None if it equals that of the FP32 network."""
        value = self.find_input_value(layer, input_index)
        tensor = layer.inputs[input_index]
        if value is None or (
            value is self.find_ir_value(tensor)
            and stored_tensor(value) is not None
            and tensor not in self.replaced_constants
        ):
            return None
        return self._compute_constant(value)

    def _compute_constant(self, value: ir.Value) -> np.ndarray | None:
        """Returns the value of a constant of the file; None if it cannot be computed."""
        constant = stored_tensor(value)
        if constant is not None:
            array = constant.numpy()
            return array.astype(np.float32) if constant.dtype in PRECISION_BY_HALF_TYPE else array
        node = value.producer()
        if node is None or value in self._expressions:
            return self._expressions.get(value)
        if is_cast(node) or is_quantize(node) or is_dequantize(node):
            step, source = self.get_qdq_step(node), node.inputs[0]
            operand = (
                self._compute_constant(source)
                if source is not None and step.is_constant and not step.computes_scales
                else None
            )
            return None if operand is None else apply_qdq_step(step, operand)
        result = self._evaluate_operator(node, value)
        if node.op_type not in _EVALUATED_COPIES:
            self._expressions[value] = result
        return result

    def _evaluate_operator(self, node: ir.Node, value: ir.Value) -> np.ndarray | None:
        """Returns the result of an operator on constants in ONNX's arithmetic; None if it cannot be evaluated."""
        if node.domain or node.op_type not in _EVALUATED_OPERATORS:
            return None
        input_arrays = [
            self._compute_constant(node_input) if node_input is not None else None for node_input in node.inputs
        ]
        if any(
            node_input is not None and array is None
            for node_input, array in zip(node.inputs, input_arrays, strict=True)
        ):
            return None
        result = evaluate_node(node, input_arrays, self.model.graph.opset_imports.get("", 0))[0]
        dtype = self.types.get(value.name or "", ir.DataType.FLOAT)
        return round_to_type(result, dtype) if result.dtype == np.float32 else result

    # -- groups -------------------------------------------------------------------------------------------------

    def find_file_precision(self, group: FusionGroup, layers: Mapping[str, Layer]) -> FilePrecision:
        """Returns the precision that the file gives to a fusion group."""
        read_types: set[str] = set()
        operand_types: list[set[str]] = []
        refused_nodes: dict[str, str] = {}
        has_low_types = False
        for name in group.layers:
            layer = layers[name]
            read_nodes = [name]
            for index, tensor in enumerate(layer.inputs):
                if not tensor:
                    continue
                conversion_steps = self.find_conversion_steps(layer, index)
                dequantize_step = self.find_dequantize_step(tensor, through_copies=True)
                steps = (*(conversion_steps or ()), *([dequantize_step] if dequantize_step is not None else ()))
                read_nodes += [step.node_name for step in steps]
                type_names = {step.type_name for step in steps if step.type_name}
                has_low_types |= (
                    conversion_steps != ()
                    or self.find_dtype(tensor) in PRECISION_BY_HALF_TYPE
                    or bool(type_names - {"INT32"})
                )
                if layer.op_type in PRODUCTS and index < 2:
                    operand_types.append(type_names)
                if index < 2 or layer.op_type not in PRODUCTS:  # a quantized bias is added in 32 bits
                    read_types |= type_names
            refused_nodes |= {node: self.node_refusals[node] for node in read_nodes if node in self.node_refusals}
            has_low_types |= any(
                self.find_dtype(tensor) in PRECISION_BY_HALF_TYPE for tensor in layer.outputs if tensor
            )
        width_by_type = {type_name: width for width, type_name in enumerate(_TYPES_BY_WIDTH)}
        narrowest_type = min(
            read_types - {"INT32"}, key=lambda word: (width_by_type.get(word, len(width_by_type)), word), default=""
        )
        weights_only = bool(operand_types) and bool(narrowest_type) and not all(operand_types)
        float_type = self._find_compute_type([layers[name] for name in group.layers])
        result_type = PRECISION_BY_FLOAT_TYPE.get(self.find_dtype(group.final_tensor), Precision.FP32)
        boundary_type = float_type if float_type in group.allowed_precisions else Precision.FP32
        nearest = next(
            (
                precision
                for precision, quantized_type in QUANTIZED_TYPES.items()
                if precision in group.allowed_precisions
                and operand_types
                and precision.label == narrowest_type
                and weights_only is not quantized_type.quantizes_activations
            ),
            boundary_type,
        )
        label = narrowest_type + " w" * weights_only if narrowest_type else float_type.label
        return FilePrecision(label, float_type, result_type, nearest, not has_low_types, tuple(refused_nodes.items()))

    def _find_compute_type(self, layers: Sequence[Layer]) -> Precision:
        """Returns the float type of the products of a group. If it has no products, it is the type of most of its
        layers.
        """
        products = [layer for layer in layers if not layer.domain and layer.op_type in PRODUCTS | INNER_PRODUCTS]
        computing = products or [layer for layer in layers if layer.kind is LayerKind.COMPUTE] or layers
        types = Counter(self.find_dtype(next(filter(None, layer.outputs))) for layer in computing)
        return PRECISION_BY_FLOAT_TYPE.get(types.most_common(1)[0][0], Precision.FP32)

    @property
    def type_names(self) -> list[str]:
        """The names of the quantized and 16-bit types of the file, sorted."""
        quantized_types = {
            self.get_qdq_step(node).type_name
            for node in self.model.graph
            if is_dequantize(node) and not _computes_scales(node)
        }
        half_types = PRECISION_BY_HALF_TYPE.keys() & set(self.types.values())
        return sorted((quantized_types - {"INT32"}) | {PRECISION_BY_HALF_TYPE[dtype].label for dtype in half_types})

    @property
    def quantized_weight_count(self) -> int:
        """The number of weights that the file stores only as quantized values, without biases."""
        return sum(
            1
            for node in self.model.graph
            if is_dequantize(node)
            and self.get_qdq_step(node).quantized_dtype != ir.DataType.INT32
            and (constant := stored_tensor(node.inputs[0])) is not None
            and constant.size > 1
            and not any(use.idx == 1 and is_dequantize(use.node) for use in node.outputs[0].uses())
        )

    @cached_property
    def infinite_scale_nodes(self) -> tuple[str, ...]:
        return tuple(
            node.name or ""
            for node in self.model.graph
            if (is_quantize(node) or is_dequantize(node) and stored_tensor(node.inputs[0]) is not None)
            and (scale := self.get_qdq_step(node).scale) is not None
            and np.isinf(scale).any()
        )

    @cached_property
    def node_refusals(self) -> dict[str, str]:
        """The reasons why TensorRT refuses nodes of the file, by the name of the node."""
        return {node.name or "": reason for node, reason in find_node_refusals(self.model.graph, self.types).items()}

    def list_unsimulated_quantizations(self) -> list[str]:
        """Returns the nodes that quantize with scales of the run time, in a form that the simulation does not support."""
        return [
            node.name or ""
            for node in self.model.graph
            if is_quantize(node) and not self.get_qdq_step(node).is_constant
        ]


def _computes_scales(node: ir.Node) -> bool:
    """Returns True if a DequantizeLinear computes the scale of another DequantizeLinear."""
    uses = node.outputs[0].uses()
    return bool(uses) and all(use.idx == 1 and is_dequantize(use.node) for use in uses)


def _find_tensor_types(graph: ir.Graph, opsets: Mapping[str, int]) -> dict[str, ir.DataType]:
    """Returns the type of each tensor in a graph, by name.

    The type is that of the stored tensor or of the conversion node. If there is neither, the schema derives it from the
    type of an input. The last source is the declaration in the file.
    """
    types: dict[str, ir.DataType] = {}
    for value in (*graph.inputs, *graph.initializers.values()):
        dtype = value.const_value.dtype if value.const_value is not None else value.dtype
        if dtype is not None:
            types[value.name or ""] = dtype
    for node in graph:
        for output, dtype in zip(node.outputs, _find_output_types(node, types, opsets), strict=True):
            if output.name and dtype is not None:
                types[output.name] = dtype
    return types


def _find_output_types(
    node: ir.Node, types: Mapping[str, ir.DataType], opsets: Mapping[str, int]
) -> list[ir.DataType | None]:
    declared_types = [output.dtype for output in node.outputs]
    if is_cast(node):
        return [ir.DataType(node.attributes["to"].as_int())]
    if is_dequantize(node) and len(node.inputs) > 1 and node.inputs[1] is not None:
        output = node.attributes.get_int("output_dtype", 0)
        return [ir.DataType(output) if output else types.get(node.inputs[1].name or "", declared_types[0])]
    if is_quantize(node):
        return [read_qdq_step(node).dtype, *declared_types[1:]]
    if (constant := stored_tensor(node.outputs[0])) is not None:
        return [constant.dtype]
    if subgraphs := list_subgraphs(node):  # the body of a Loop returns a condition first
        results = subgraphs[0].outputs[1 if node.op_type == "Loop" else 0 :]
        return [result.dtype or dtype for result, dtype in zip(results, declared_types, strict=False)]
    schema = find_schema(node.op_type, node.domain, opsets.get(node.domain))
    if schema is None:
        return declared_types
    type_by_parameter: dict[str, ir.DataType] = {}
    for index, value in enumerate(node.inputs):
        if value is not None and (dtype := types.get(value.name or "")) is not None and schema.inputs:
            type_by_parameter.setdefault(schema.inputs[min(index, len(schema.inputs) - 1)].type_str, dtype)
    return [
        type_by_parameter.get(schema.outputs[min(index, len(schema.outputs) - 1)].type_str, dtype)
        for index, dtype in enumerate(declared_types)
    ]


MAX_BIAS_QUOTIENT = {Precision.FP16: FP16_MAX, Precision.FP32: 2.0**30}
"""The maximum quotient of a bias and the product of its scales, by the type of the scales.

For FP16 this is the largest FP16 value. For FP32 it is half of INT32's range, because an INT8 kernel adds up to 65,536
products of 2^14 to the bias in INT32."""

MIN_BIAS_SCALE = {Precision.FP16: FP16_MIN, Precision.FP32: float(np.finfo(np.float32).tiny)}
"""The minimum product of an input scale and a weight scale, by their type."""

FLOAT_TYPES: Mapping[Precision, np.dtype[Any]] = {
    Precision.FP16: np.dtype(np.float16),
    Precision.FP32: np.dtype(np.float32),
}
"""The NumPy type of a scale, by precision; the limits above apply to these types."""

BIAS_INPUTS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}
"""The index of the bias input, by operator; a MatMul has no such input, and an Add behind it adds its bias."""

_EIGHT_BIT_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


def flag_channels_with_bias_overflow(
    weight_scale: np.ndarray, input_scale: float, bias_magnitudes: np.ndarray, scale_precision: Precision
) -> np.ndarray:
    """Returns a flag for each channel: True if ONNX Runtime cannot quantize its bias.

    Some execution providers round the product of the scales before the division, and some do not; both cases are
    checked.

    Args:
        bias_magnitudes: Largest magnitude of the bias by channel, from `measure_bias_channel_magnitudes`.
        scale_precision: The type of the scales, one of `FLOAT_TYPES`.
    """
    exact_scale = weight_scale.astype(np.float64) * input_scale
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        rounded_scale = exact_scale.astype(FLOAT_TYPES[scale_precision]).astype(np.float64)
        is_too_large = (
            np.maximum(bias_magnitudes / exact_scale, bias_magnitudes / rounded_scale)
            > MAX_BIAS_QUOTIENT[scale_precision]
        )
    return np.asarray(is_too_large | (rounded_scale < MIN_BIAS_SCALE[scale_precision]))


def measure_bias_channel_magnitudes(bias: np.ndarray, channel_count: int) -> np.ndarray:
    """Returns the largest magnitude of a bias for each channel of the weight scale, float64.

    If the size of the bias is not a multiple of the number of channels, all channels get its largest magnitude.
    """
    magnitude = np.abs(np.nan_to_num(bias.astype(np.float64))).ravel()
    if channel_count == 1 or magnitude.size == 0 or magnitude.size % channel_count:
        return np.full(channel_count, magnitude.max(initial=0))
    return np.asarray(magnitude.reshape(-1, channel_count).max(0))


def find_overflowing_biases(source_model: SourceModel) -> list[str]:
    """Returns the nodes of a quantized file whose bias ONNX Runtime cannot quantize, in file order."""
    node_names = []
    for node in source_model.model.graph:
        bias = _find_constant_bias(node)
        steps = [
            source_model.get_qdq_step(producer)
            for value in node.inputs[:2]
            if value is not None and (producer := value.producer()) is not None and is_dequantize(producer)
        ]
        if (
            bias is None
            or len(steps) < 2
            or any(step.quantized_dtype not in _EIGHT_BIT_TYPES or step.block_size for step in steps)
        ):
            continue
        scale_precision = PRECISION_BY_FLOAT_TYPE.get(steps[1].dtype)
        input_scale, weight_scale = (step.scale for step in steps)
        if (
            scale_precision is None
            or scale_precision not in FLOAT_TYPES
            or input_scale is None
            or weight_scale is None
            or input_scale.size != 1
        ):
            continue
        magnitude = measure_bias_channel_magnitudes(
            bias.numpy().astype(FLOAT_TYPES[scale_precision]), weight_scale.size
        )
        if flag_channels_with_bias_overflow(
            weight_scale.ravel(), float(input_scale.reshape(())), magnitude, scale_precision
        ).any():
            node_names.append(node.name or "")
    return node_names


def _find_constant_bias(node: ir.Node) -> ir.TensorProtocol | None:
    """Returns the constant bias of a product; None if there is none."""
    if node.domain:
        return None
    if (index := BIAS_INPUTS.get(node.op_type)) is not None:
        return _find_stored_tensor(node.inputs[index]) if len(node.inputs) > index else None
    users = list(node.outputs[0].uses()) if node.op_type == "MatMul" else []
    if len(users) != 1 or users[0].node.op_type != "Add":
        return None
    return next(filter(None, map(_find_stored_tensor, users[0].node.inputs)), None)


def _find_stored_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Returns the stored tensor of a constant, or of a Cast of a constant; None for any other value."""
    producer = value.producer() if value is not None else None
    return stored_tensor(producer.inputs[0] if producer is not None and is_cast(producer) else value)
