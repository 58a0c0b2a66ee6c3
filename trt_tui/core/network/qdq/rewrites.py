"""The rewrites of Q/DQ nodes and 16-bit types: to the FP32 network that a file was made from, and to nodes that
strongly typed TensorRT accepts.

The file's version of the network is kept beside the FP32 network (`trt_tui.core.network.qdq.source_model`).

ONNX Runtime's quantizer leaves copies of quantized values, such as a Transpose between Q and DQ, but TensorRT reads only
adjacent Q/DQ pairs. Such copies become copies of floats first. The quantized values do not change.

TensorRT quantizes symmetrically to INT8, FP8, INT4 and FP4. A zero point must be 0. Unsigned and 16-bit quantized types
are refused, and so is a DequantizeLinear on an INT32 bias (TensorRT developer guide, "Working with quantized types").

- Zero point other than 0: the range is widened to its larger side. UINT8 values around 128 become INT8 values around 0,
  which represent the same numbers. If a quantizer replaced a Relu by a range that begins at 0, the Relu is restored.
- INT32 bias: the bias is stored as equal floats.
- 4-bit weights that are unsigned, or have one scale per tensor: stored in 8 bits, which represent the same weights.
  TensorRT-RTX 1.7 does not build them beside INT8.
- 16-bit quantized types: removed. The tensor stays in floats, behind the Relu or ReLU6 that its range stood for.
- An operator in a float type without a kernel (`operators.UNSUPPORTED_FLOAT_TYPES`): computed in FP32.
"""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import SHAPE_READERS, largest_magnitude, register_constant, stored_tensor
from trt_tui.core.network.graph_editor import GraphEditor, remove_unread_values, replace_value
from trt_tui.core.network.model_editing import FreshNames, iterate_reachable, list_subgraphs, value_name
from trt_tui.core.network.model_file import find_schema
from trt_tui.core.network.operators import UNSUPPORTED_FLOAT_TYPES
from trt_tui.core.network.qdq.steps import (
    PRECISION_BY_FLOAT_TYPE,
    PRECISION_BY_HALF_TYPE,
    TYPE_NAMES,
    QdqStep,
    apply_qdq_step,
    has_known_attributes,
    is_cast,
    is_dequantize,
    is_quantize,
    read_qdq_step,
    round_to_type,
    type_limits,
)
from trt_tui.core.quantized_types import broadcast_scales
from trt_tui.formatting import counted_noun_text, name_list_text


@dataclass
class Fp32Conversion:
    """The changes that convert a quantized or typed network to the FP32 network that it was made from.

    Attributes:
        ranges: amax of activation tensors that had Q/DQ pairs, by tensor name.
        source_tensors: New tensors by name, each with the tensor of the file that it represents.
        added_nodes: Names of new nodes.
        has_changes: True if there were Q/DQ pairs to remove or 16-bit types to convert.
        notes: One sentence for each kind of change.
    """

    ranges: dict[str, float] = field(default_factory=dict)
    source_tensors: dict[str, str] = field(default_factory=dict)
    added_nodes: set[str] = field(default_factory=set)
    has_changes: bool = False
    notes: list[str] = field(default_factory=list)

    def add_tensor(self, value: ir.Value, source: ir.Value) -> None:
        """Records the result of a new node, which represents a tensor of the file."""
        producer = value.producer()
        self.added_nodes.add(producer.name or "" if producer is not None else "")
        self.source_tensors[value_name(value)] = value_name(source)

    def record_range(self, value: ir.Value, amax: float) -> None:
        self.ranges[value_name(value)] = max(amax, self.ranges.get(value_name(value), 0.0))


def remove_qdq_pairs(graph: ir.Graph, conversion: Fp32Conversion) -> None:
    """Removes Q/DQ pairs from a graph, in place. Records their ranges and all changes.

    A DequantizeLinear on a constant is replaced by its result.

    Raises:
        InputError: the scale, zero point or blocks of a node are invalid; the error names the node.
    """
    activation_by_quantize: dict[ir.Node, ir.Value] = {}
    activations = _ActivationRestorer(graph)
    for node in [candidate for candidate in graph if is_dequantize(candidate)]:
        step = read_qdq_step(node)
        quantized_value = node.inputs[0]
        quantize = quantized_value.producer() if quantized_value is not None else None
        if quantize is None or quantized_value is not quantize.outputs[0] or not is_quantize(quantize):
            constant = stored_tensor(quantized_value)
            if constant is not None:
                conversion.has_changes |= _fold_dequantized_weight(graph, node, constant, step)
            continue
        quantize_step = read_qdq_step(quantize)
        source = activation_by_quantize.get(quantize) or quantize.inputs[0]
        if source is None:  # an input that the call of a local function omits
            continue
        if (
            step.is_constant
            and step.scale is not None
            and step.scale.ndim == 0
            and np.isfinite(step.scale)
            and stored_tensor(source) is None
        ):
            low, high = _compute_representable_range(step)
            if low == 0 and quantize not in activation_by_quantize and can_be_negative(source):
                restored = activations.add_activation(source, "Clip" if abs(high - 6) < 0.01 else "Relu")
                conversion.add_tensor(restored, source)
                source = activation_by_quantize[quantize] = restored
            conversion.record_range(source, max(high, -low))
        elif (
            quantize_step.block_type is not None
            and quantize_step.block_type.needs_ranges
            and quantize_step.scale is not None
        ):
            conversion.record_range(source, float(quantize_step.scale) * quantize_step.block_type.max_tensor_value)
        conversion.has_changes = True
        identity_name = ""
        identity_uses = {
            use
            for use in node.outputs[0].uses()
            if any(
                _is_reader_outside_groups(graph, reader)
                for reader in iterate_reachable(
                    [use.node], lambda node: node.outputs[0].consumers() if is_cast(node) else ()
                )
            )
        }
        if node.outputs[0].is_graph_output() or identity_uses:
            identity_name = activations.names.make_unique_name(f"{node.outputs[0].name}__output")
            conversion.added_nodes.add(identity_name)
        replace_value(graph, node.outputs[0], source, identity_name, identity_uses)
        _remove_dequantize(graph, node)
        if not any(output.uses() or output.is_graph_output() for output in quantize.outputs):
            graph.remove(quantize, safe=True)
    if activation_by_quantize:
        conversion.notes.append(
            f"{counted_noun_text(len(activation_by_quantize), 'activation')} restored as Relu or Clip: the quantizer "
            "replaced them by a Q/DQ pair whose range clips values below 0."
        )


def _is_reader_outside_groups(graph: ir.Graph, node: ir.Node) -> bool:
    """Returns True if a node computes on the values that it reads but belongs to no fusion group.

    Such a node has no float result, such as ArgMax, or is not an operator of ONNX, such as a plugin. An Identity is
    inserted before it. The conversions of the file belong to this Identity, whose group has a precision.
    """
    if node.graph is not graph or list_subgraphs(node):
        return True
    if node.op_type in SHAPE_READERS or is_quantize(node) or is_dequantize(node):
        return False
    if is_cast(node):
        return node.attributes["to"].as_int() not in PRECISION_BY_FLOAT_TYPE or node.outputs[0].is_graph_output()
    schema = find_schema(node.op_type, node.domain, graph.opset_imports.get(node.domain))
    if schema is None or node.domain:
        return True
    types = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    return all("tensor(float)" not in types.get(output.type_str, (output.type_str,)) for output in schema.outputs)


def _remove_dequantize(graph: ir.Graph, node: ir.Node) -> None:
    """Removes a DequantizeLinear, and the node that computes its scale if no other node reads the scale."""
    scale = node.inputs[1].producer() if len(node.inputs) > 1 and node.inputs[1] is not None else None
    graph.remove(node, safe=True)
    if (
        scale is not None
        and is_dequantize(scale)
        and not scale.outputs[0].uses()
        and not scale.outputs[0].is_graph_output()
    ):
        graph.remove(scale, safe=True)


def _fold_dequantized_weight(graph: ir.Graph, node: ir.Node, weight: ir.TensorProtocol, step: QdqStep) -> bool:
    """Replaces the DequantizeLinear of a constant by an FP32 initializer; returns True if this was possible.

    The values are computed at the first access.
    """
    output = node.outputs[0]
    if weight.dtype not in TYPE_NAMES or not step.is_constant or output.is_graph_output():
        return False
    name, output.name = value_name(output), f"{output.name}__dequantized"
    output.replace_all_uses_with(
        register_constant(
            graph,
            name,
            ir.LazyTensor(
                lambda: ir.tensor(np.ascontiguousarray(apply_qdq_step(step, weight.numpy()))),
                dtype=ir.DataType.FLOAT,
                shape=ir.Shape(weight.shape.numpy()),
                cache=True,
                name=name,
            ),
        )
    )
    graph.remove(node, safe=True)
    return True


def _compute_representable_range(step: QdqStep) -> tuple[float, float]:
    """Returns the smallest and the largest value that survive a Q/DQ pair without clipping.

    In a symmetric type, the quantized value -128 is ignored.
    """
    assert step.scale is not None and step.zero_point is not None and step.quantized_dtype is not None
    scale, zero_point = float(step.scale), float(step.zero_point)
    low, high = (limit - zero_point for limit in type_limits(step.quantized_dtype))
    return scale * (-high if low == -high - 1 else low), scale * high


def can_be_negative(value: ir.Value) -> bool:
    """Returns True if a value is the result of a Conv, MatMul or similar operator, also before a Cast."""
    node = value.producer()
    while node is not None and is_cast(node) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type in (
        "Add",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "Gemm",
        "InstanceNormalization",
        "MatMul",
        "Sub",
    )


class _ActivationRestorer(GraphEditor):
    """A restorer of activations that a quantizer replaced by the ranges of Q/DQ pairs. A tensor gets at most one of
    each kind.
    """

    def __init__(self, graph: ir.Graph) -> None:
        super().__init__(graph)
        self._activation_by_value: dict[tuple[ir.Value, str], ir.Value] = {}

    def add_activation(self, value: ir.Value, operator: str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        """Adds a Relu, or a Clip to 0 and 6 (ReLU6), after a computed value and returns its result."""
        if (value, operator) not in self._activation_by_value:
            producer = value.producer()
            assert producer is not None, "a value that may be negative is computed"
            bounds = [
                self._add_constant(np.array(bound, dtype.numpy()), f"{value.name}__{bound}")
                for bound in ((0, 6) if operator == "Clip" else ())
            ]
            node = ir.node(
                operator,
                [value, *bounds],
                name=self.names.make_unique_name(f"{producer.name}__relu"),
                metadata_props=dict(producer.metadata_props),
                outputs=[ir.val(self.names.make_unique_name(f"{value.name}__relu"), dtype, value.shape)],
            )
            node.meta.update(producer.meta)
            self.graph.insert_after(producer, node)
            self._activation_by_value[value, operator] = node.outputs[0]
        return self._activation_by_value[value, operator]


_HALF_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type")


def has_half_precision(graph: ir.Graph) -> bool:
    """Returns True if any input, weight, constant or Cast of a network has the type FP16 or BF16."""
    return (
        any(value.dtype in _HALF_TYPES for value in graph.inputs)
        or any(_iterate_half_initializers(graph))
        or any(
            _states_half_type(node, attribute) or _holds_half_tensor(attribute)
            for node in graph.all_nodes()
            for attribute in node.attributes.values()
        )
    )


def _iterate_half_initializers(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yields the initializers of a graph and its subgraphs in FP16 or BF16, each with its tensor."""
    for inner_graph in (graph, *graph.subgraphs()):
        for value in inner_graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype in _HALF_TYPES:
                yield value, value.const_value


def _states_half_type(node: ir.Node, attribute: ir.Attr) -> bool:
    """Returns True if an attribute gives a result of its node the type FP16 or BF16."""
    return (
        attribute.type == ir.AttributeType.INT
        and attribute.value in _HALF_TYPES
        and (node.op_type == "Cast" or attribute.name in _TYPE_ATTRIBUTES)
    )


def _holds_half_tensor(attribute: ir.Attr) -> bool:
    return attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _HALF_TYPES


def upcast_to_fp32(graph: ir.Graph, conversion: Fp32Conversion) -> None:
    """Converts a network typed in FP16 or BF16 to FP32, in place. Its inputs and outputs keep their types."""
    if not has_half_precision(graph):
        return
    conversion.has_changes = True
    names = FreshNames(graph, taken_names=(node.name for node in graph if node.name))
    inputs = [value for value in graph.inputs if value.dtype in _HALF_TYPES]
    output_types = {id(value): value.dtype for value in graph.outputs if value.dtype in _HALF_TYPES}
    for value, tensor in list(_iterate_half_initializers(graph)):
        value.const_value, value.type = _convert_to_float32(tensor), ir.TensorType(ir.DataType.FLOAT)
    for node in graph.all_nodes():
        for attribute in list(node.attributes.values()):
            if _states_half_type(node, attribute):
                node.attributes[attribute.name] = ir.AttrInt64(attribute.name, int(ir.DataType.FLOAT))
            elif _holds_half_tensor(attribute):
                node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _convert_to_float32(attribute.value))
    for value in (
        *(value for node in graph.all_nodes() for value in node.outputs),
        *(value for subgraph in graph.subgraphs() for value in (*subgraph.inputs, *subgraph.outputs)),
    ):
        if value.dtype in _HALF_TYPES:
            value.type = copy.deepcopy(value.type)  # a clone of the file shares it
            value.dtype = ir.DataType.FLOAT
    for value in inputs:
        uses = tuple(value.uses())
        cast = ir.node(
            "Cast",
            [value],
            {"to": int(ir.DataType.FLOAT)},
            name=names.make_unique_name(f"{value.name}__to_fp32"),
            outputs=[ir.val(names.make_unique_name(f"{value.name}__fp32"), ir.DataType.FLOAT, value.shape)],
        )
        conversion.add_tensor(cast.outputs[0], value)
        for use in uses:
            use.node.replace_input_with(use.idx, cast.outputs[0])
        graph.insert_before(graph[0], cast)
    for index, value in enumerate(list(graph.outputs)):
        dtype = output_types.get(id(value))
        if dtype is None or value in inputs:
            continue
        name = value.name
        value.name = names.make_unique_name(f"{name}__fp32")
        conversion.source_tensors[value.name] = name or ""
        cast = ir.node(
            "Cast",
            [value],
            {"to": int(dtype)},
            name=names.make_unique_name(f"{name}__to_output_type"),
            outputs=[ir.val(name, dtype, value.shape)],
        )
        conversion.added_nodes.add(cast.name or "")
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]


def drop_identity_casts(graph: ir.Graph) -> dict[str, str]:
    """Removes Casts from FP32 to FP32, which the conversion to FP32 and `x.float()` leave behind.

    Returns:
        The tensor that replaces each removed result, by the name of the result.
    """
    replaced_names: dict[str, str] = {}
    for node in list(graph):
        if (
            node.op_type == "Cast"
            and node.domain == ""
            and not node.outputs[0].is_graph_output()
            and (source := node.inputs[0]) is not None
            and source.dtype == node.outputs[0].dtype == ir.DataType.FLOAT
        ):
            replaced_names[value_name(node.outputs[0])] = value_name(source)
            node.outputs[0].replace_all_uses_with(source)
            graph.remove(node, safe=True)
    return replaced_names


def _convert_to_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy().astype(np.float32)),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape(tensor.shape.numpy()),
        cache=True,
        name=tensor.name,
    )


_COPY_OPERATORS = frozenset("MaxPool Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Gather Expand".split())
"""Operators that copy quantized values unchanged, so that they have the same effect on dequantized values."""


def rewrite_quantized_copies(graph: ir.Graph) -> int:
    """Rewrites copies of quantized values as copies of floats between a DQ and a Q, in place; returns their number."""
    has_quantized_values = any(node.op_type == "QuantizeLinear" or is_dequantize(node) for node in graph)
    return _CopyRewriter(graph).rewrite_copies() if has_quantized_values else 0


class _CopyRewriter(GraphEditor):
    def __init__(self, graph: ir.Graph) -> None:
        super().__init__(graph)
        self._parameters_by_value: dict[ir.Value | None, list[ir.Value]] = {}  # scale, and zero point if stated

    def rewrite_copies(self) -> int:
        count = 0
        for node in filter(has_known_attributes, list(self.graph)):
            if node.op_type == "QuantizeLinear" and len(node.inputs) > 1 and node.inputs[1] is not None:
                self._parameters_by_value[node.outputs[0]] = _list_parameters(node)
            elif (
                node.domain == ""
                and node.op_type in _COPY_OPERATORS
                and node.inputs
                and node.inputs[0] in self._parameters_by_value
                and len([output for output in node.outputs if output.name]) == 1
            ):
                self._rewrite_copy(node, self._parameters_by_value[node.inputs[0]])
                count += 1
        for node in [candidate for candidate in self.graph if is_dequantize(candidate)]:
            count += self._rewrite_constant_copy(node)
        return count

    def _rewrite_constant_copy(self, node: ir.Node) -> bool:
        """Moves the DequantizeLinear of a constant before the node that copies the constant, which then copies floats."""
        copy_node = node.inputs[0].producer() if node.inputs[0] is not None else None
        quantized_value = copy_node.inputs[0] if copy_node is not None and copy_node.inputs else None
        if (
            copy_node is None
            or quantized_value is None
            or node.inputs[1] is None
            or copy_node.domain != ""
            or copy_node.op_type not in _COPY_OPERATORS
            or stored_tensor(quantized_value) is None
            or len(copy_node.outputs) != 1
            or (scale := stored_tensor(node.inputs[1])) is not None
            and scale.size > 1
        ):
            return False
        new_node = self._insert_float_copy(copy_node, node, _list_parameters(node))
        new_node.name = self.names.make_unique_name(f"{copy_node.name}__float")
        new_node.outputs[0].name = node.outputs[0].name
        ir.convenience.replace_all_uses_with(node.outputs[0], new_node.outputs[0], replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        remove_unread_values(self.graph, copy_node.outputs)
        if copy_node.graph is None:
            new_node.name = copy_node.name
        return True

    def _rewrite_copy(self, node: ir.Node, parameters: list[ir.Value]) -> None:
        """Inserts a DequantizeLinear before a copy of quantized values and a QuantizeLinear after it."""
        new_node, copied_value = self._insert_float_copy(node, node, parameters), node.outputs[0]
        new_node.outputs[0].name = self.names.make_unique_name(f"{copied_value.name}__float")
        zero_point = stored_tensor(parameters[1]) if len(parameters) > 1 else None
        quantize = ir.node(
            "QuantizeLinear",
            [new_node.outputs[0], *parameters],
            name=self.names.make_unique_name(f"{copied_value.name}_QuantizeLinear"),
            outputs=[
                ir.val(
                    copied_value.name,
                    zero_point.dtype if zero_point is not None else ir.DataType.UINT8,
                    copied_value.shape,
                )
            ],
        )
        self.graph.insert_before(node, quantize)
        self._parameters_by_value[quantize.outputs[0]] = parameters
        copied_value.replace_all_uses_with(quantize.outputs[0], replace_graph_outputs=True)
        self.graph.remove(node, safe=True)

    def _insert_float_copy(self, node: ir.Node, position: ir.Node, parameters: list[ir.Value]) -> ir.Node:
        """Inserts a copy of dequantized values that takes over the name of the original copy."""
        quantized_value = node.inputs[0]
        assert quantized_value is not None, "it has a scale"
        scale = stored_tensor(parameters[0])
        float_type = scale.dtype if scale is not None else parameters[0].dtype or ir.DataType.FLOAT
        dequantize = ir.node(
            "DequantizeLinear",
            [quantized_value, *parameters],
            name=self.names.make_unique_name(f"{quantized_value.name}_DequantizeLinear"),
            outputs=[
                ir.val(
                    self.names.make_unique_name(f"{quantized_value.name}__dequantized"),
                    float_type,
                    quantized_value.shape,
                )
            ],
        )
        self.graph.insert_before(node, dequantize)
        new_node = ir.Node(
            "",
            node.op_type,
            [dequantize.outputs[0], *node.inputs[1:]],
            list(node.attributes.values()),
            name=node.name,
            metadata_props=dict(node.metadata_props),
            outputs=[ir.val(None, float_type, node.outputs[0].shape)],
        )
        new_node.meta.update(node.meta)
        self.graph.insert_before(position, new_node)
        return new_node


def _list_parameters(node: ir.Node) -> list[ir.Value]:
    """Returns the scale of a Q or DQ node, and its zero point if it has one."""
    return [value for value in node.inputs[1:3] if value is not None]


_WIDE_TYPES = (ir.DataType.INT16, ir.DataType.UINT16)

ASYMMETRIC = "a zero point other than 0"
UNSIGNED = "unsigned quantized types"
BIAS = "a DequantizeLinear on an int32 bias"
WIDE = "16-bit quantized types"
NARROW = "4-bit quantized types with one scale for the tensor"

_WORKAROUND_TEXTS = {
    ASYMMETRIC: "the export widens the range to its larger side",
    UNSIGNED: "the export has the same quantized values, signed",
    BIAS: "the export stores the bias in floats",
    WIDE: "the export leaves the tensor in floats",
    NARROW: "the export has them in 8 bits",
}
"""The rewrite by the typed export for users, by the reason for the refusal."""


def refusal_workaround_text(refusal_reason: str) -> str:
    return _WORKAROUND_TEXTS.get(refusal_reason, "the export has it in FP32")


def float_type_refusal_reason(node: ir.Node, dtype_by_tensor: Mapping[str, ir.DataType]) -> str:
    """Returns the reason why TensorRT refuses the float type of an operator; "" if it accepts the type.

    Args:
        dtype_by_tensor: The types of tensors, by name.
    """
    precision = (
        PRECISION_BY_HALF_TYPE.get(dtype_by_tensor.get(node.outputs[0].name or "", ir.DataType.UNDEFINED))
        if node.outputs
        else None
    )
    if precision is None or node.domain or node.op_type not in UNSUPPORTED_FLOAT_TYPES[precision]:
        return ""
    return f"{node.op_type} in {precision.label}"


def qdq_refusal_reason(step: QdqStep) -> str:
    """Returns the reason why TensorRT refuses a Q or DQ node; "" if it accepts the node."""
    dtype = step.quantized_dtype
    zero_point = np.zeros(()) if step.zero_point is None else step.zero_point.astype(np.float32)
    rules = (
        (not step.is_constant, ""),
        (dtype is ir.DataType.INT32, BIAS),
        (dtype in _WIDE_TYPES, WIDE),
        (dtype is ir.DataType.UINT8 and (zero_point == 128).all(), UNSIGNED),
        (dtype in (ir.DataType.UINT8, ir.DataType.UINT4) or zero_point.any(), ASYMMETRIC),
        (dtype is ir.DataType.INT4 and not zero_point.shape, NARROW),
    )
    return next((reason for applies, reason in rules if applies), "")


def find_node_refusals(nodes: Iterable[ir.Node], dtype_by_tensor: Mapping[str, ir.DataType]) -> dict[ir.Node, str]:
    """Returns all nodes with a quantized or float type that TensorRT refuses, in order, with the reasons.

    Args:
        dtype_by_tensor: The types of tensors, by name.
    """
    return {
        node: reason
        for node in nodes
        if (
            reason := qdq_refusal_reason(read_qdq_step(node))
            if is_quantize(node) or is_dequantize(node)
            else float_type_refusal_reason(node, dtype_by_tensor)
        )
    }


def refusal_summary_lines(node_refusals: Mapping[str, str]) -> list[str]:
    """Returns notes for users on refused nodes: one sentence for each reason, with the rewrite and the first nodes.

    Args:
        node_refusals: The reasons by the name of the node.
    """
    return [
        f"TensorRT refuses {reason} ({name_list_text(nodes, max_count=2)}); it is simulated as stored, and "
        f"{refusal_workaround_text(reason)}."
        for reason in dict.fromkeys((*_WORKAROUND_TEXTS, *node_refusals.values()))
        if (nodes := [name for name, node_reason in node_refusals.items() if node_reason == reason])
    ]


def replace_refused_nodes(
    graph: ir.Graph, file_nodes: Collection[ir.Node], dtype_by_tensor: Mapping[str, ir.DataType]
) -> list[str]:
    """Rewrites all nodes that TensorRT refuses, in place; returns a sentence for each kind of rewrite.

    Args:
        file_nodes: The nodes of the file; other nodes do not change.
        dtype_by_tensor: The types of the graph's tensors below FP32, by name.
    """
    reason_by_node = find_node_refusals([node for node in graph if node in file_nodes], dtype_by_tensor)
    workarounds = _RefusedNodeRewriter(graph)
    steps = {node: read_qdq_step(node) for node in reason_by_node if is_quantize(node) or is_dequantize(node)}
    for node, reason in reason_by_node.items():
        if node in steps:
            workarounds.replace_refused_qdq_node(node, steps[node], reason)
        else:
            workarounds.add_fp32_casts_around_node(node, dtype_by_tensor)
    remove_unread_values(graph, workarounds.released_values)
    counts = {
        reason: sum(node_reason == reason for node_reason in reason_by_node.values())
        for reason in dict.fromkeys((*_WORKAROUND_TEXTS, *reason_by_node.values()))
    }
    return [
        f"TensorRT refuses "
        f"{reason}, which occurs {counted_noun_text(count, 'time')}: {refusal_workaround_text(reason)}."
        for reason, count in counts.items()
        if count
    ]


def add_fp32_casts_to_operators(graph: ir.Graph, dtype_by_tensor: Mapping[str, ir.DataType]) -> None:
    """Makes every operator compute in FP32, in place. Casts around it round to its original types.

    ONNX Runtime's CPU provider lacks most operators in BF16, and computes FP16 operators in FP32 without rounding
    between them.

    Args:
        dtype_by_tensor: The types of the graph's tensors below FP32, by name.
    """
    workarounds = _RefusedNodeRewriter(graph)
    for node in list(graph):
        if not node.domain and node.op_type != "Cast" and not list_subgraphs(node):
            workarounds.add_fp32_casts_around_node(node, dtype_by_tensor)


class _RefusedNodeRewriter(_ActivationRestorer):
    """A rewriter that replaces the nodes of one graph that TensorRT refuses by nodes that it accepts.

    Attributes:
        released_values: The values that rewritten nodes no longer read.
    """

    def __init__(self, graph: ir.Graph) -> None:
        super().__init__(graph)
        self.released_values: list[ir.Value] = []

    def replace_refused_qdq_node(self, node: ir.Node, step: QdqStep, reason: str) -> None:
        value = node.inputs[0]
        if value is None:
            return
        constant = stored_tensor(value) if is_dequantize(node) else None
        if reason == BIAS or constant is not None and reason == WIDE:
            if constant is not None:
                array = round_to_type(apply_qdq_step(step, constant.numpy()), step.dtype).astype(step.dtype.numpy())
                self._replace_node_by_value(
                    node, self._add_constant(np.ascontiguousarray(array), f"{value_name(node.outputs[0])}__float")
                )
        elif reason == WIDE:
            quantize = value.producer() if is_dequantize(node) else None
            if quantize is not None and is_quantize(quantize) and quantize.inputs[0] is not None:
                self._restore_dropped_relu(quantize, read_qdq_step(quantize), drops_quantization=True)
                self._replace_node_by_value(node, quantize.inputs[0])
        elif constant is not None:
            self._convert_weight_to_int8(node, step, constant, reason)
        else:
            self._convert_qdq_node_to_int8(node, step, reason)

    def add_fp32_casts_around_node(self, node: ir.Node, dtype_by_tensor: Mapping[str, ir.DataType]) -> None:
        """Inserts Casts before and behind a node that computes in a float type below FP32."""
        for index, value in enumerate(node.inputs):
            if value is not None and dtype_by_tensor.get(value.name or "") in PRECISION_BY_HALF_TYPE:
                cast = self._create_cast(value, ir.DataType.FLOAT, f"{value.name}__fp32")
                self.graph.insert_before(node, cast)
                node.replace_input_with(index, cast.outputs[0])
        for output in node.outputs:
            dtype = dtype_by_tensor.get(output.name or "")
            if dtype not in PRECISION_BY_HALF_TYPE or dtype is None:
                continue
            name = value_name(output)
            cast = self._create_cast(output, dtype, name)
            self.graph.insert_after(node, cast)
            ir.convenience.replace_all_uses_with(output, cast.outputs[0], replace_graph_outputs=True)
            cast.replace_input_with(0, output)
            cast.outputs[0].name, output.name = name, self.names.make_unique_name(f"{name}__fp32")
            output.type = ir.TensorType(ir.DataType.FLOAT)

    def _create_cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
        return ir.node(
            "Cast",
            [value],
            {"to": int(dtype)},
            name=self.names.make_unique_name(f"{name}__cast"),
            outputs=[ir.val(self.names.make_unique_name(name), dtype, value.shape)],
        )

    def _convert_qdq_node_to_int8(self, node: ir.Node, step: QdqStep, reason: str) -> None:
        """Converts the Q or DQ node of an activation to symmetric INT8."""
        assert step.scale is not None and step.zero_point is not None and step.quantized_dtype is not None
        scale = step.scale
        if reason != UNSIGNED:
            low, high = type_limits(step.quantized_dtype)
            zero_point = step.zero_point.astype(np.float32)
            scale = np.maximum(high - zero_point, zero_point - low) * step.scale / np.float32(127)
            if is_quantize(node):
                self._restore_dropped_relu(node, step)
        self._set_symmetric_scale(node, scale.astype(np.float32))

    def _convert_weight_to_int8(self, node: ir.Node, step: QdqStep, weight: ir.TensorProtocol, reason: str) -> None:
        """Replaces the quantized values and the scale of a weight by symmetric INT8 ones."""
        assert step.scale is not None and step.zero_point is not None
        shape, scale = tuple(weight.shape.numpy()), step.scale
        values = weight.numpy().astype(np.int32) - broadcast_scales(
            step.zero_point.astype(np.int32), shape, step.axis, step.block_size
        )
        if reason != UNSIGNED:
            axis = None if scale.size == 1 and not step.block_size else step.axis % max(len(shape), 1)
            block_size = min(step.block_size, shape[axis]) if axis is not None and step.block_size else None
            amax = np.maximum(largest_magnitude(values.astype(np.float32), axis, block_size), 1).reshape(scale.shape)
            factor = np.maximum(amax / np.float32(127), 1)  # values that fit into INT8 do not change
            scale = (scale * factor).astype(np.float32)
            values = np.clip(np.rint(values / broadcast_scales(factor, shape, step.axis, step.block_size)), -128, 127)
        self._replace_input(node, 0, np.ascontiguousarray(values.astype(np.int8)), f"{node.name}__codes")
        self._set_symmetric_scale(node, scale)

    def _set_symmetric_scale(self, node: ir.Node, scale: np.ndarray) -> None:
        old_scale, constant = node.inputs[1], stored_tensor(node.inputs[1])
        assert old_scale is not None and constant is not None, "a step that is known has a scale"
        node.resize_inputs(3)
        self._replace_input(node, 1, scale.astype(constant.dtype.numpy()), f"{old_scale.name}__scale")
        self._replace_input(node, 2, np.zeros(scale.shape, np.int8), f"{old_scale.name}__zero_point")
        if is_quantize(node):
            node.outputs[0].type = ir.TensorType(ir.DataType.INT8)
            node.attributes.pop("output_dtype", None)

    def _replace_input(self, node: ir.Node, index: int, array: np.ndarray, name: str) -> None:
        self.released_values += filter(None, [node.inputs[index]])
        node.replace_input_with(index, self._add_constant(array, name))

    def _restore_dropped_relu(self, node: ir.Node, step: QdqStep, drops_quantization: bool = False) -> None:
        """Restores the Relu that a quantizer replaced by a range from 0.

        Args:
            drops_quantization: True if the quantization is removed. Then no range clips at 6, so a ReLU6 is restored
                too.
        """
        source = node.inputs[0]
        if (
            source is None
            or not can_be_negative(source)
            or not step.is_constant
            or step.quantized_dtype is None
            or step.scale is None
            or step.zero_point is None
        ):
            return
        low, high = type_limits(step.quantized_dtype)
        if not (step.zero_point.astype(np.float32) == low).all():
            return
        is_relu6 = drops_quantization and bool((np.abs((high - low) * step.scale - 6) < 0.01).all())
        scale = stored_tensor(node.inputs[1])
        dtype = source.dtype or (scale.dtype if scale is not None else ir.DataType.FLOAT)
        node.replace_input_with(0, self.add_activation(source, "Clip" if is_relu6 else "Relu", dtype))

    def _replace_node_by_value(self, node: ir.Node, value: ir.Value) -> None:
        is_output = node.outputs[0].is_graph_output()
        replace_value(
            self.graph,
            node.outputs[0],
            value,
            self.names.make_unique_name(f"{node.name}__identity") if is_output else "",
        )
        self.released_values += filter(None, node.inputs)
        self.graph.remove(node, safe=True)
