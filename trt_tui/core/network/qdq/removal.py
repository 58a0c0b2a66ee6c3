"""The removal of Q/DQ pairs from a quantized network, which yields the FP32 network that it was made from.

The file's version of the network is kept beside the result (`trt_tui.core.network.qdq.source_model`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import register_constant, stored_tensor
from trt_tui.core.network.graph import SHAPE_READERS
from trt_tui.core.network.graph_editor import replace_value
from trt_tui.core.network.model_editing import FreshNames, iterate_reachable, list_subgraphs, value_name
from trt_tui.core.network.qdq.steps import (
    PRECISION_BY_FLOAT_TYPE,
    TYPE_NAMES,
    QdqStep,
    apply_qdq_step,
    is_cast,
    is_dequantize,
    is_quantize,
    read_qdq_step,
    type_limits,
)
from trt_tui.core.network.structure_check import find_schema
from trt_tui.formatting import counted_noun_text


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

    def record_range(self, value: ir.Value, amax: float) -> None:
        self.ranges[value_name(value)] = max(amax, self.ranges.get(value_name(value), 0.0))


def remove_qdq_pairs(graph: ir.Graph, conversion: Fp32Conversion) -> None:
    """Removes Q/DQ pairs from a graph, in place. Records their ranges and all changes.

    A DequantizeLinear on a constant is replaced by its result.

    Raises:
        InputError: the scale, zero point or blocks of a node are invalid; the error names the node.
    """
    activation_by_quantize: dict[ir.Node, ir.Value] = {}
    activations = _ActivationRestorer(graph, conversion)
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
                source = activation_by_quantize[quantize] = activations.add_activation(source, high)
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
                for reader in iterate_reachable([use.node], _list_readers_of_cast)
            )
        }
        if node.outputs[0].is_graph_output() or identity_uses:
            identity_name = activations.node_names.make_unique_name(f"{node.outputs[0].name}__output")
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


def _list_readers_of_cast(node: ir.Node) -> Sequence[ir.Node]:
    """Returns the readers of a Cast, before which the file has the Cast; () for any other node."""
    return node.outputs[0].consumers() if is_cast(node) else ()


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


class _ActivationRestorer:
    """A restorer of activations that a quantizer replaced by the ranges of Q/DQ pairs. A tensor gets at most one of
    each kind.
    """

    def __init__(self, graph: ir.Graph, conversion: Fp32Conversion) -> None:
        self._graph, self._conversion = graph, conversion
        self._activation_by_value: dict[tuple[ir.Value, str], ir.Value] = {}

    @cached_property
    def _tensor_names(self) -> FreshNames:
        return FreshNames(self._graph)

    @cached_property
    def node_names(self) -> FreshNames:
        return FreshNames(self._graph, taken_names=(node.name for node in self._graph if node.name))

    def add_activation(self, value: ir.Value, max_value: float) -> ir.Value:
        """Adds a Relu after a value and returns its result. If the range ends at 6, it adds a Clip to 0 and 6 (ReLU6)
        instead.
        """
        operator = "Clip" if abs(max_value - 6) < 0.01 else "Relu"
        if (value, operator) not in self._activation_by_value:
            producer = value.producer()
            assert producer is not None, "a value that may be negative is computed"
            bounds = [
                register_constant(
                    self._graph,
                    self._tensor_names.make_unique_name(f"{value.name}__{bound}"),
                    ir.tensor(np.float32(bound)),
                )
                for bound in ((0, 6) if operator == "Clip" else ())
            ]
            node = ir.node(
                operator,
                [value, *bounds],
                name=self.node_names.make_unique_name(f"{producer.name}__relu"),
                metadata_props=dict(producer.metadata_props),
                outputs=[
                    ir.val(self._tensor_names.make_unique_name(f"{value.name}__relu"), ir.DataType.FLOAT, value.shape)
                ],
            )
            node.meta.update(producer.meta)
            self._graph.insert_after(producer, node)
            self._conversion.added_nodes.add(node.name or "")
            self._conversion.source_tensors[value_name(node.outputs[0])] = value_name(value)
            self._activation_by_value[value, operator] = node.outputs[0]
        return self._activation_by_value[value, operator]
