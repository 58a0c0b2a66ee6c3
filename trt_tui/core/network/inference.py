"""Shapes and types by onnx's inference."""

import math
import re
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from trt_tui.core.network.conversion import without_weights
from trt_tui.errors import InputError

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


_CONTRADICTION = re.compile(
    r"\(op_type:(?P<operator>[^,)]+)(?:, node name: (?P<name>.*?))?\): \[ShapeInferenceError\] (?:"
    r"Inferred shape and existing shape differ in (?P<where>dimension \d+|rank): \((?P<inferred>\d+)\) vs "
    r"\((?P<declared>\d+)\)|(?P<other>Dimension mismatch in unification between (?P<first>\d+) and (?P<second>\d+)|"
    r"Incompatible dimensions))")
"""What onnx's strict inference says of sizes that contradict each other."""


def refuse_wrong_sizes(model: ir.Model, file: str) -> None:
    """Refuses a model that declares sizes which its operators contradict: of an output, an input or a tensor between.

    Raises:
        InputError: with the node, and both sizes.
    """
    try:
        proto = without_weights(model)[0]
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=_longest(proto.graph) <= _LONGEST)
    except Exception as error:  # onnx also stops at operators and types that it does not know
        found = _CONTRADICTION.search(str(error))
    else:
        return
    if found is None:
        return
    node = f"{found['operator']} {found['name'] or ''}".strip()
    if found["where"]:
        made = next((node.outputs[0].name for node in model.graph if node.name == found["name"]), "its result")
        rank = found["where"] == "rank"
        sizes = [f"{found[side]} axes" if rank else f"{found['where']} of {found[side]}"
                 for side in ("declared", "inferred")]
        cause = f"{made} is declared with {sizes[0]}, and {node} gives it {sizes[1]}"
    else:
        both = f": {found['first']} and {found['second']}" if found["first"] else ""
        cause = f"{node} reads tensors whose declared sizes do not fit{both}"
    raise InputError(f"{file} declares a wrong size", cause,
                     "Correct the declared shapes, or export the network again.")


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
