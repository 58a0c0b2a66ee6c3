"""Shapes and types by onnx's inference."""

import math
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from trt_tui.core.network.conversion import without_weights

_LONGEST = 1 << 16
"""Elements of a tensor whose values onnx's inference may follow one by one: ten million take 9 s and hundreds of MB."""

_KEEP_LENGTH = frozenset("Add Cast Identity Mul Squeeze Sub Unsqueeze".split())
"""Operators that onnx's inference follows value by value."""


def infer_shapes(model: ir.Model) -> str:
    """Gives values the shapes and types that onnx can infer; "", or why onnx could not go over the network.

    `onnx_ir.passes.common.ShapeInferencePass` turns types of sequences into tensors, and only logs where it fails.
    """
    try:
        graph = inferred(without_weights(model)[0])
    except Exception as error:
        return str(error).strip() or type(error).__name__
    found = {info.name: info for info in (*graph.value_info, *graph.output)}
    for node in model.graph:
        for value in node.outputs:
            if value.name in found:
                ir.serde.deserialize_value_info_proto(found[value.name], value)
    return ""


def inferred(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph of a model without big weights, with all that onnx infers of its tensors.

    Raises:
        Exception: whatever onnx raises for a model that it cannot go over.
    """
    return onnx.shape_inference.infer_shapes(model, data_prop=_longest(model.graph) <= _LONGEST).graph


def _longest(graph: onnx.GraphProto) -> float:
    """The most values that onnx's inference would follow in one tensor: what a Range counts, what Concats join."""
    stored = {one.name: one for one in graph.initializer}
    stored.update((node.output[0], node.attribute[0].t) for node in graph.node
                  if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"))
    lengths = {name: float(one.dims[0]) for name, one in stored.items() if len(one.dims) == 1}
    longest = 0.0
    for node in graph.node:
        length = 1.0
        if node.op_type == "Range":
            length = _count(node, stored)
            longest = max(longest, length)
        elif node.op_type == "Concat" and any(one.name == "axis" and one.i == 0 for one in node.attribute):
            length = min(sum(lengths.get(name, 1.0) for name in node.input), 2.0 * _LONGEST)
            longest = max(longest, length)
        elif node.op_type in _KEEP_LENGTH:
            length = max(lengths.get(name, 1.0) for name in node.input)
        if length > 1:
            lengths.update((name, length) for name in node.output)
    return longest


def _count(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> float:
    """How far a Range over stored limits counts; 1 where they are computed."""
    limits = [onnx.numpy_helper.to_array(stored[name]) for name in node.input if name in stored]
    if len(limits) < 3 or any(one.size != 1 for one in limits):
        return 1.0
    start, limit, step = (float(one.reshape(())) for one in limits)
    return math.inf if step == 0 else (limit - start) / step
