"""Shapes and types by onnx's inference."""

import math
import re
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from trt_tui.core.network.conversion import detach_big_weights
from trt_tui.errors import InputError

_MAX_FOLLOWED_ELEMENTS = 1 << 16
"""Elements of a tensor whose values onnx's inference may follow one by one: ten million take 9 s and hundreds of MB."""

_LENGTH_KEEPING_OPERATORS = frozenset("Add Cast Identity Mul Squeeze Sub Unsqueeze".split())
"""Operators that onnx's inference follows value by value."""


def infer_shapes(model: ir.Model) -> str:
    """Gives values the shapes and types that onnx can infer; "", or why onnx could not go over the network.

    `onnx_ir.passes.common.ShapeInferencePass` turns types of sequences into tensors, and only logs where it fails.
    """
    try:
        graph = infer_graph_shapes(detach_big_weights(model)[0])
    except Exception as error:
        return str(error).strip() or type(error).__name__
    info_by_name = {info.name: info for info in (*graph.value_info, *graph.output)}
    for node in model.graph:
        for value in node.outputs:
            if value.name in info_by_name:
                ir.serde.deserialize_value_info_proto(info_by_name[value.name], value)
    return ""


_CONTRADICTION_PATTERN = re.compile(
    r"\(op_type:(?P<operator>[^,)]+)(?:, node name: (?P<name>.*?))?\): \[ShapeInferenceError\] (?:"
    r"Inferred shape and existing shape differ in (?P<where>dimension \d+|rank): \((?P<inferred>\d+)\) vs "
    r"\((?P<declared>\d+)\)|(?P<other>Dimension mismatch in unification between (?P<first>\d+) and (?P<second>\d+)|"
    r"Incompatible dimensions))")
"""What onnx's strict inference says of sizes that contradict each other."""


def check_declared_sizes(model: ir.Model, file_name: str) -> None:
    """Refuses a model that declares sizes which its operators contradict: of an output, an input or a tensor between.

    Raises:
        InputError: with the node, and both sizes.
    """
    try:
        proto = detach_big_weights(model)[0]
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=_count_propagated_elements(proto.graph)
                                          <= _MAX_FOLLOWED_ELEMENTS)
    except Exception as error:  # onnx also stops at operators and types that it does not know
        contradiction = _CONTRADICTION_PATTERN.search(str(error))
    else:
        return
    if contradiction is None:
        return
    node = f"{contradiction['operator']} {contradiction['name'] or ''}".strip()
    if contradiction["where"]:
        tensor_name = next((node.outputs[0].name for node in model.graph if node.name == contradiction["name"]),
                           "its result")
        rank = contradiction["where"] == "rank"
        sizes = [f"{contradiction[side]} axes" if rank else f"{contradiction['where']} of {contradiction[side]}"
                 for side in ("declared", "inferred")]
        cause = f"{tensor_name} is declared with {sizes[0]}, and {node} gives it {sizes[1]}"
    else:
        sizes_text = f": {contradiction['first']} and {contradiction['second']}" if contradiction["first"] else ""
        cause = f"{node} reads tensors whose declared sizes do not fit{sizes_text}"
    raise InputError(f"{file_name} declares a wrong size", cause,
                     "Correct the declared shapes, or export the network again.")


def infer_graph_shapes(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph of a model without big weights, with all that onnx infers of its tensors.

    Raises:
        Exception: whatever onnx raises for a model that it cannot go over.
    """
    return onnx.shape_inference.infer_shapes(model, data_prop=_count_propagated_elements(model.graph)
                                             <= _MAX_FOLLOWED_ELEMENTS).graph


def _count_propagated_elements(graph: onnx.GraphProto) -> float:
    """The most values that onnx's inference would follow in one tensor: what a Range counts, what Concats join."""
    stored_tensors = {item.name: item for item in graph.initializer}
    stored_tensors.update((node.output[0], node.attribute[0].t) for node in graph.node
                          if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"))
    lengths = {name: float(item.dims[0]) for name, item in stored_tensors.items() if len(item.dims) == 1}
    max_length = 0.0
    for node in graph.node:
        length = 1.0
        if node.op_type == "Range":
            length = _range_length(node, stored_tensors)
            max_length = max(max_length, length)
        elif node.op_type == "Concat" and any(item.name == "axis" and item.i == 0 for item in node.attribute):
            length = min(sum(lengths.get(name, 1.0) for name in node.input), 2.0 * _MAX_FOLLOWED_ELEMENTS)
            max_length = max(max_length, length)
        elif node.op_type in _LENGTH_KEEPING_OPERATORS:
            length = max(lengths.get(name, 1.0) for name in node.input)
        if length > 1:
            lengths.update((name, length) for name in node.output)
    return max_length


def _range_length(node: onnx.NodeProto, stored_tensors: Mapping[str, onnx.TensorProto]) -> float:
    """How far a Range over stored limits counts; 1 where they are computed."""
    limits = [onnx.numpy_helper.to_array(stored_tensors[name]) for name in node.input if name in stored_tensors]
    if len(limits) < 3 or any(limit_array.size != 1 for limit_array in limits):
        return 1.0
    start, limit, step = (float(limit_array.reshape(())) for limit_array in limits)
    return math.inf if step == 0 else (limit - start) / step
