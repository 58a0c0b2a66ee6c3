"""The gated graph: the emission of its nodes, its inputs, and the feeds of a config.

Emitted nodes have unique names. Tensors are rounded to lower precisions in FP32 arithmetic: by Cast pairs, Q/DQ pairs
and clamped masks.
"""

import math
import weakref
from collections import ChainMap, deque
from collections.abc import Container, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.network_rewrite import (
    EditedConstants,
    list_normalisation_rewrites,
    refuse_edits_under_file_precision,
)
from trt_tui.core.lowering.rulebook import (
    ONNX_TYPES,
    REDUCED_OPERAND_TYPES,
    GatedFeatures,
    GroupLowering,
    QdqScale,
    veltkamp_split_factor,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, Layer, Normalisation, QdqSite, Shape
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.qdq.steps import PRECISION_BY_FLOAT_TYPE, PRECISION_BY_HALF_TYPE, QdqStep
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES, QuantizedType

Nodes = list[ir.Node]
"""The nodes of a graph under construction, in order."""

Operand = ir.Value | float | Sequence[int]
"""An input of an operator: a value, or the numbers of a constant."""


BranchTensors = ChainMap[str, ir.Value]
"""The tensors of a branch, by their names in the network; absent names are looked up outside the branch."""


_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_MIN_NORMAL_FLOAT32 = float(np.finfo(np.float32).tiny)
_MAX_ROUNDED_CONSTANT_BYTES = 1 << 20
"""The maximum size of constants that are stored again, rounded to each lower precision."""


class NodeEmitter:
    """A builder of the nodes, inputs and constants of one gated graph.

    Attributes:
        nodes: The nodes of the main graph.
        inputs: The inputs of the main graph.
        initializers: The constants of the main graph, by name.
        values: The tensors that all branches can read, by their names in the network: inputs, constants, tensors
            computed only from constants and, with a reference branch, its tensors.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.nodes: Nodes = []
        self.inputs: list[ir.Value] = []
        self.initializers: dict[str, ir.Value] = {}
        self.values: dict[str, ir.Value] = {}
        self._name_count = 0

    def make_unique_name(self, name_prefix: str) -> str:
        """Returns a name that is unique in the gated graph."""
        self._name_count += 1
        return f"{name_prefix}#{self._name_count}"

    def add_operator(
        self,
        nodes: Nodes,
        operator: str,
        inputs: Sequence[Operand],
        name_prefix: str,
        *,
        like: ir.Value | None = None,
        **attributes: int | Sequence[int],
    ) -> ir.Value:
        """Appends an operator with one output and returns the output. Its name begins with ``name_prefix``.

        Args:
            inputs: Values, float32 scalars as numbers, and int64 vectors as sequences.
            like: The value whose type and shape the output has; None to leave both open.
        """
        values = [item if isinstance(item, ir.Value) else self.get_constant(item) for item in inputs]
        node = ir.node(operator, values, attributes, name=self.make_unique_name(name_prefix))
        output = node.outputs[0]
        output.name = node.name
        if like is not None:
            output.type, output.shape = like.type, like.shape
        nodes.append(node)
        return output

    def add_reduction(self, nodes: Nodes, operator: str, value: ir.Value, *axes: int, keepdims: int = 0) -> ir.Value:
        """Appends a reduction over some axes and returns the result. Before opset 18 the axes are an attribute."""
        name = operator.lower()
        if self.network.opset < 18:
            return self.add_operator(nodes, operator, [value], name, keepdims=keepdims, axes=axes)
        return self.add_operator(nodes, operator, [value, axes], name, keepdims=keepdims)

    def add_if_node(
        self,
        nodes: Nodes,
        condition: ir.Value,
        then_graph: ir.Graph,
        else_graph: ir.Graph,
        name_prefix: str,
        output_count: int = 1,
    ) -> Sequence[ir.Value]:
        """Appends an ``If`` and returns its outputs, which the caller must name."""
        node = ir.node(
            "If",
            [condition],
            {"then_branch": then_graph, "else_branch": else_graph},
            num_outputs=output_count,
            name=self.make_unique_name(name_prefix),
        )
        nodes.append(node)
        return node.outputs

    def build_graph(self, results: Sequence[ir.Value], nodes: Nodes, name_prefix: str) -> ir.Graph:
        return ir.Graph([], results, nodes=nodes, name=self.make_unique_name(name_prefix))

    def copy_type_and_shape(self, value: ir.Value, source_tensor: str) -> None:
        """Copies the type and shape of a network tensor to a value, and the name too if the value has none."""
        original = self.network.ir_value(source_tensor)
        if value.name is None:
            value.name = self.make_unique_name(source_tensor)
        value.type = original.type
        value.shape = _remove_dimension_names(original.shape)

    # -- inputs and constants -----------------------------------------------------------------------------------

    def add_input(self, name: str, dtype: ir.DataType, shape: ir.Shape | None = None) -> ir.Value:
        """Adds an input to the gated graph, by default a scalar."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]) if shape is None else shape)
        self.inputs.append(value)
        return value

    def add_shared_constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Adds a constant of the network to the gated graph. Its data are shared, not copied."""
        self.initializers[name] = ir.val(name, const_value=tensor)
        return self.initializers[name]

    def get_array_constant(self, array: np.ndarray, name: str) -> ir.Value:
        """Returns a constant of the gated graph by name. The first call adds it."""
        name = f"gated/{name}"
        return self.initializers[name] if name in self.initializers else self.add_constant(array, name)

    def add_constant(self, array: np.ndarray, name: str) -> ir.Value:
        return self.add_shared_constant(name, ir.tensor(array))

    def get_constant(self, numbers: float | Sequence[int]) -> ir.Value:
        """Returns a float32 scalar for a number, or an int64 vector for a sequence."""
        if isinstance(numbers, Sequence):
            return self.get_array_constant(np.array(numbers, np.int64), f"int64/{'/'.join(map(str, numbers))}")
        return self.get_array_constant(np.array(numbers, np.float32), f"scalar/{numbers!r}")

    # -- layers of the network ----------------------------------------------------------------------------------

    def clone_node(
        self,
        layer: Layer,
        inputs: Sequence[ir.Value | None],
        values_by_tensor: MutableMapping[str, ir.Value],
        name: str,
    ) -> ir.Node:
        """Returns a copy of a layer's node with other inputs. The copy is not yet part of a graph.

        Args:
            values_by_tensor: The tensors that subgraphs of the node read.
        """
        original = self.network.node(layer.name)
        node = ir.Node(
            original.domain,
            original.op_type,
            inputs,
            list(original.attributes.values()),
            num_outputs=len(original.outputs),
            overload=original.overload,
            name=name,
        )
        for source, output in zip(original.outputs, node.outputs, strict=True):
            output.name = self.make_unique_name(source.name) if source.name else ""
            output.type, output.shape = source.type, _remove_dimension_names(source.shape)
        for attr in original.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                node.attributes[attr.name] = ir.AttrGraph(
                    attr.name, _rebind_subgraph_inputs(attr.as_graph(), values_by_tensor)
                )
        return node

    def copy_layer(
        self, layer: Layer, values_by_tensor: MutableMapping[str, ir.Value], nodes: Nodes, name: str
    ) -> None:
        """Appends a copy of a layer that reads its inputs from ``values_by_tensor`` and stores its results there.

        A Cast back from a wider type yields the value before both Casts. ONNX Runtime 1.32 removes such a pair, and with
        it the value that the branches of an If read.
        """
        source = _find_value_before_lossless_casts(self.network.node(layer.name))
        if source is not None and value_name(source) in values_by_tensor:
            values_by_tensor[layer.outputs[0]] = values_by_tensor[value_name(source)]
            return
        inputs = [values_by_tensor[input_name] if input_name else None for input_name in layer.inputs]
        node = self.clone_node(layer, inputs, values_by_tensor, name)
        nodes.append(node)
        values_by_tensor.update(
            (tensor, output) for tensor, output in zip(layer.outputs, node.outputs, strict=True) if tensor
        )

    # -- roundings -----------------------------------------------------------------------------------------------------

    def round_to_precision(self, value: ir.Value, precision: Precision, nodes: Nodes) -> ir.Value:
        """Returns a value rounded to a float precision by a pair of Casts."""
        add = self.add_operator
        low = add(nodes, "Cast", [value], "low", to=int(ONNX_TYPES[precision]))
        return add(nodes, "Cast", [low], "rounded", to=int(ir.DataType.FLOAT))

    def round_to_type(self, value: ir.Value, dtype: ir.DataType, nodes: Nodes) -> ir.Value:
        """Returns a value rounded to FP16 or BF16; for any other type, the value itself."""
        return (
            self.round_to_precision(value, PRECISION_BY_HALF_TYPE[dtype], nodes)
            if dtype in PRECISION_BY_HALF_TYPE
            else value
        )

    def emit_qdq_step(self, step: QdqStep, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Emits a Cast, Q or DQ node of the file, with its scale and zero point as constants, and returns the result.

        The result is quantized values, or float32 rounded to the type of the step. A step that computes block scales
        returns dequantized values. The DQ after it returns them unchanged.
        """
        if step.computes_scales and step.block_type is not None and step.scale is not None:
            tensor_scale = self.get_constant(float(step.scale)) if step.block_type.needs_ranges else None
            return self.quantize_dequantize_blocks(value, tensor_scale, step.block_type, step.axis, step.shape, nodes)
        if step.scale is None or step.zero_point is None:  # a Cast, or they are computed at run time
            return self.round_to_type(value, step.dtype, nodes)
        pair = [
            self.get_array_constant(array, f"file/{step.node_name}/{name}")
            for name, array in (("scale", step.scale), ("zero", step.zero_point))
        ]
        operator = "QuantizeLinear" if step.operator == "quantize" else "DequantizeLinear"
        attributes: dict[str, Any] = {"axis": step.axis} if step.scale.ndim else {}
        if step.block_size:
            attributes["block_size"] = step.block_size
        result = self.add_operator(nodes, operator, [value, *pair], "file", **attributes)
        return result if step.operator == "quantize" else self.round_to_type(result, step.dtype, nodes)

    def round_fp16_sum(self, value: ir.Value, split_factor: ir.Value | float, nodes: Nodes) -> ir.Value:
        """Returns a sum of products with the rounding error of a kernel with an FP16 accumulator.

        The sum is rounded by Veltkamp's splitting; `trt_tui.core.lowering.rulebook.veltkamp_split_factor`
        gives the factor. Infinities and NaN do not change. To avoid the difference of two infinities, the product is
        clamped to finite values.
        """
        add = self.add_operator
        product = self.clamp(add(nodes, "Mul", [value, split_factor], "split"), _MAX_FLOAT32, nodes)
        return add(nodes, "Sub", [product, add(nodes, "Sub", [product, value], "rest")], "summed")

    def add_bias(self, layer: Layer, value: ir.Value, bias: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the sum of a layer with its bias added. The bias of a Conv is added along the channels."""
        rank = len(self.network.shape(layer.inputs[1]) or ())
        if layer.op_type != "Gemm":
            bias = self.add_operator(nodes, "Reshape", [bias, [-1, *[1] * (rank - 2)]], "bias")
        return self.add_operator(nodes, "Add", [value, bias], "biased")

    def round_input(self, value: ir.Value, tensor: str, precision: Precision, nodes: Nodes) -> ir.Value:
        """Returns a tensor from outside a group, rounded to a float precision. Masks beyond its range are clamped
        first.
        """
        network = self.network
        if tensor in network.constant_tensors:
            sizes = value.shape.numpy() if value.shape is not None and value.shape.is_static() else None
            if sizes is not None and 4 * int(np.prod(sizes)) <= _MAX_ROUNDED_CONSTANT_BYTES:
                name = f"{precision.value}/{tensor}"
                if name not in self.initializers:
                    self.add_constant(rulebook.round_constant(network, tensor, precision), name)
                return self.initializers[name]
            limit = rulebook.mask_clamp_limit(network, tensor, precision)
            if limit is not None:
                value = self.clamp(value, limit, nodes)
        return self.round_to_precision(value, precision, nodes)

    def scale_channels(self, operator: str, value: ir.Value, factors: ir.Value | None, nodes: Nodes) -> ir.Value:
        """Returns a value divided ("Div") or multiplied ("Mul") by channel factors; unchanged if there are no factors."""
        return value if factors is None else self.add_operator(nodes, operator, [value, factors], "scaled", like=value)

    def clamp(self, value: ir.Value, limit: float, nodes: Nodes) -> ir.Value:
        """Returns a value clamped to the interval from ``-limit`` to ``limit``."""
        return self.add_operator(nodes, "Clip", [value, -limit, limit], "clamped")

    def quantize_dequantize(
        self, value: ir.Value, scale: ir.Value, quantized_type: QuantizedType, nodes: Nodes
    ) -> ir.Value:
        """Returns a value after quantization with a scale that is an input of the graph, and dequantization."""
        add = self.add_operator
        if quantized_type.is_float:
            ratio = add(nodes, "Div", [value, scale], "ratio")
            return add(
                nodes, "Mul", [self._round_to_float_type(ratio, quantized_type.onnx_type, nodes), scale], "dequantized"
            )
        pair = [scale, self.get_array_constant(np.zeros((), np.int8), "zero")]
        quantized = add(nodes, "QuantizeLinear", [value, *pair], "codes")
        return add(nodes, "DequantizeLinear", [quantized, *pair], "dequantized")

    def quantize_dequantize_blocks(
        self,
        value: ir.Value,
        tensor_scale: ir.Value | None,
        quantized_type: QuantizedType,
        axis: int,
        shape: Shape,
        nodes: Nodes,
    ) -> ir.Value:
        """Returns a value after quantization with computed block scales, and dequantization.

        `trt_tui.core.quantized_types` defines the arithmetic. For blocks with a NaN or an infinity, NaN is added to the
        scale: a mean of differences that is 0 for any other block.

        Args:
            tensor_scale: The scale of the tensor; None for 1.
            axis: The axis that is divided into blocks, one of the last two.
            shape: The shape of the value; the size of the axis is known.
        """
        add = self.add_operator
        size, block_size = int(shape[axis] or 0), quantized_type.block_sizes[0]
        inner_sizes = [-1] * (len(shape) - 1 - axis)

        def reshape(source: ir.Value, sizes: list[int]) -> ir.Value:
            return add(nodes, "Reshape", [source, [0] * axis + sizes + inner_sizes], "blocks")

        def reduce_blocks(operator: str, source: ir.Value) -> ir.Value:
            reduced = self.add_reduction(nodes, operator, source, axis + 1)
            return add(nodes, "Unsqueeze", [reduced, [axis + 1]], "block")

        blocks = reshape(value, [size // block_size, block_size])
        amax = reduce_blocks("ReduceMax", add(nodes, "Abs", [blocks], "magnitudes"))
        limit: ir.Value | float = quantized_type.max_value
        if tensor_scale is not None:
            limit = add(nodes, "Mul", [limit, tensor_scale], "limit")
        ratio = add(nodes, "Div", [amax, limit], "ratio")
        if quantized_type.block_scale_type == "E4M3":
            scale = self._round_to_float_type(ratio, ir.DataType.FLOAT8E4M3FN, nodes)
        else:
            scale = self._round_up_to_power_of_two(ratio, nodes)
        if tensor_scale is not None:
            scale = add(nodes, "Mul", [scale, tensor_scale], "scale")
        non_finite = reduce_blocks("ReduceMean", add(nodes, "Sub", [blocks, blocks], "differences"))
        scale = add(nodes, "Add", [scale, non_finite], "scale")
        is_positive = add(nodes, "Greater", [scale, 0], "positive")
        divisor = add(nodes, "Where", [is_positive, scale, 1], "divisor")
        ratio = add(nodes, "Div", [blocks, divisor], "ratio")
        quantized = self._round_to_float_type(ratio, quantized_type.onnx_type, nodes)
        return reshape(add(nodes, "Mul", [quantized, scale], "dequantized"), [size])

    def find_block_axis(self, precision: Precision, group: FusionGroup, tensor: str) -> int | None:
        """Returns the axis along which an operand is quantized in blocks at run time; None if the type has no blocks."""
        quantized_type = QUANTIZED_TYPES.get(precision)
        if quantized_type is None or not quantized_type.block_scale_type:
            return None
        return next(
            site.reduced_axis for site in group.activation_qdq_sites_at_precision(precision) if site.tensor == tensor
        )

    def convert_operand(
        self,
        precision: Precision,
        group: FusionGroup,
        tensor: str,
        value: ir.Value,
        scale: ir.Value | None,
        nodes: Nodes,
    ) -> ir.Value:
        """Returns an operand of a product converted to a quantized type or TF32. TF32 and MXFP8 need no scale."""
        axis = self.find_block_axis(precision, group, tensor)
        if axis is not None:
            quantized_type = QUANTIZED_TYPES[precision]
            return self.quantize_dequantize_blocks(
                value,
                scale if quantized_type.needs_ranges else None,
                quantized_type,
                axis,
                self._find_operand_shape(group, tensor, axis),
                nodes,
            )
        if precision is Precision.TF32 or scale is None:
            return self.round_to_tf32(value, nodes)
        return self.quantize_dequantize(value, scale, QUANTIZED_TYPES[precision], nodes)

    def _find_operand_shape(self, group: FusionGroup, tensor: str, axis: int) -> Shape:
        """Returns the shape of an operand. The size of its summed axis comes from the weight."""
        network = self.network
        (weight,) = group.weight_qdq_sites()
        assert weight.axis is not None
        shape, weight_shape = list(network.shape(tensor) or ()), network.shape(weight.tensor) or ()
        shape[axis] = weight_shape[1 - weight.axis]
        return tuple(shape)

    def round_to_tf32(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns a value rounded to TF32 by the splitting that `rulebook.TF32_SPLIT` describes."""
        add = self.add_operator
        split = add(nodes, "Mul", [value, rulebook.TF32_SPLIT], "split")
        rounded = add(nodes, "Sub", [split, add(nodes, "Sub", [split, value], "rest")], "tf32")
        fits = add(nodes, "Less", [add(nodes, "Abs", [value], "size"), rulebook.TF32_BOUND], "fits")
        return add(nodes, "Where", [fits, rounded, value], "rounded")

    def _round_up_to_power_of_two(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the smallest power of two that is at least a positive number and at least 2**-126, bit-exact.

        Numbers above 1 are divided by 2**30, so that no product overflows.
        """
        add = self.add_operator
        value = add(nodes, "Max", [value, _MIN_NORMAL_FLOAT32], "normal")
        is_large = add(nodes, "Greater", [value, 1], "large")
        factor = add(nodes, "Where", [is_large, 2.0**-30, 1], "factor")
        small = add(nodes, "Mul", [value, factor], "small")
        power = self._find_power_of_two(small, nodes)
        twice = add(nodes, "Add", [power, power], "twice")
        power = add(nodes, "Where", [add(nodes, "Less", [power, small], "below"), twice, power], "power")
        return add(nodes, "Div", [power, factor], "scale")

    def _find_power_of_two(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the largest power of two that is at most the magnitude of a number.

        For a number ``c`` it is ``|q - (1 - u) q|`` with ``q = (2**23 + 1) c`` and ``u = 2**-24`` (Rump, "Error
        estimation of floating-point summation and dot product", 2012, `ufp`).
        """
        add = self.add_operator
        product = add(nodes, "Mul", [value, 2.0**23 + 1], "product")
        less = add(nodes, "Mul", [product, 1 - 2.0**-24], "less")
        return add(nodes, "Abs", [add(nodes, "Sub", [product, less], "signed")], "power")

    def _round_to_float_type(self, value: ir.Value, dtype: ir.DataType, nodes: Nodes) -> ir.Value:
        """Returns a value rounded to FP8 (E4M3) or FP4 (E2M1) in FP32 arithmetic, bit-exact for any opset and provider.

        Opsets before 19 have no FP8. The step of a type with ``m`` bits of mantissa is the power of two at or below the
        value, divided by 2**m, and no smaller than the step of the smallest normal number. Adding and subtracting 1.5 *
        2**23 steps rounds to a multiple of the step, ties to even.
        """
        add = self.add_operator
        limits = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
        max_value, bits = float(limits.max), int(limits.nmant)
        clipped = add(nodes, "Clip", [value, -max_value, max_value], "clipped")
        power = self._find_power_of_two(clipped, nodes)
        power = add(nodes, "Max", [power, float(limits.smallest_normal)], "normal")
        steps = add(nodes, "Mul", [power, 1.5 * 2.0 ** (23 - bits)], "steps")
        raised = add(nodes, "Add", [clipped, steps], "raised")
        return add(nodes, "Sub", [raised, steps], "codes")


def _find_value_before_lossless_casts(node: ir.Node) -> ir.Value | None:
    """Returns the value that a Cast yields unchanged, because a Cast before it has only widened its type; None if there
    is none."""
    wide = node.inputs[0] if node.op_type == "Cast" else None
    widening = wide.producer() if wide is not None else None
    source = widening.inputs[0] if widening is not None and widening.op_type == "Cast" else None
    if source is None or wide is None or source.dtype is None or wide.dtype is None:
        return None
    narrow_type, wide_type = source.dtype.numpy(), wide.dtype.numpy()
    is_lossless = np.can_cast(narrow_type, wide_type, "safe") and (
        narrow_type.kind == wide_type.kind or narrow_type.itemsize < 8  # FP64 rounds integers of 64 bits
    )
    return source if is_lossless and source.dtype == node.outputs[0].dtype else None


def _remove_dimension_names(shape: ir.Shape | None) -> ir.Shape | None:
    """Returns a shape without the names of its open sizes.

    A runtime treats equal names as equal sizes, but an operator such as NonZero may return different sizes in two
    branches.
    """
    return None if shape is None else ir.Shape([size if isinstance(size, int) else None for size in shape])


def _rebind_subgraph_inputs(subgraph: ir.Graph, values_by_tensor: MutableMapping[str, ir.Value]) -> ir.Graph:
    """Returns a copy of a subgraph whose outer tensors, at any depth, are replaced by those of ``values_by_tensor``."""
    copy = subgraph.clone(allow_outer_scope_values=True)
    graphs = [copy, *copy.subgraphs()]
    for graph in graphs:
        for node in graph:
            for index, value in enumerate(node.inputs):
                if value is not None and value.graph not in graphs:
                    node.replace_input_with(index, values_by_tensor.get(value_name(value), value))
            for output in node.outputs:
                output.shape = _remove_dimension_names(output.shape)
        for index, output in enumerate(graph.outputs):
            if output.graph not in graphs:
                graph.outputs[index] = values_by_tensor.get(value_name(output), output)
    return copy


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
