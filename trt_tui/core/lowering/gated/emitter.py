"""The emission of nodes into a gated graph: unique names, constants, copies of the network's layers, and roundings.

Tensors are rounded to lower precisions in FP32 arithmetic: by Cast pairs, Q/DQ pairs and clamped masks.
"""

from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.rulebook import ONNX_TYPES
from trt_tui.core.network.layers import FusionGroup, Layer, Shape
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.qdq.steps import PRECISION_BY_HALF_TYPE, QdqStep
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
        for tensor, output in zip(layer.outputs, node.outputs, strict=True):
            if tensor:
                values_by_tensor[tensor] = output

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
