"""Shapes and types of tensors, inferred by onnx, from neighbouring operators, and from plugin libraries."""

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.network.layers import Shape
from trt_tui.core.network.model_editing import collect_by_key, extract_subgraph_of_outputs
from trt_tui.core.network.operators import RUNTIME_ONLY_OPERATORS, is_plugin
from trt_tui.core.network.opset_conversion import detach_big_weights
from trt_tui.core.network.structure_check import get_onnx_schema
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError

_MAX_FOLLOWED_ELEMENTS = 1 << 16
"""The maximum number of elements of a tensor whose values onnx's shape inference may propagate one by one.

Ten million elements take 9 s and hundreds of MB."""

_LENGTH_KEEPING_OPERATORS = frozenset("Add Cast Identity Mul Squeeze Sub Unsqueeze".split())
"""Operators whose values onnx's shape inference propagates and that keep the number of elements."""

_INPUT_TYPED_OPERATORS = {
    "": RUNTIME_ONLY_OPERATORS,
    "com.microsoft": frozenset(
        "Attention BiasAdd BiasGelu BiasSoftmax BiasSplitGelu DecoderMaskedMultiHeadAttention FastGelu FusedConv FusedGemm "
        "FusedMatMul FusedMatMulActivation Gelu GroupNorm GroupQueryAttention MultiHeadAttention NhwcFusedConv NhwcMaxPool "
        "PackedAttention PackedMultiHeadAttention QuickGelu RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm "
        "SkipLayerNormalization SkipSimplifiedLayerNormalization TransposeMatMul".split()
    ),
}
"""Operators of ONNX Runtime whose first result has the type of their first input, by domain; its optimizer writes them.
"""


def infer_shapes(model: ir.Model) -> str:
    """Sets all shapes and types that onnx can infer, and returns onnx's error message; "" if there was no error.

    `onnx_ir.passes.common.ShapeInferencePass` turns types of sequences into tensors, and only logs its failures.
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
    r"\(op_type:(?P<operator>[^,)]+)(?:, node name: (?P<name>.*?))?\): \[ShapeInferenceError\] (?P<cause>"
    r"(?:Inferred shape and existing shape differ|Dimension mismatch in unification|Incompatible dimensions).*)"
)
"""The error message of onnx's strict shape inference about contradicting sizes."""


def check_declared_sizes(model: ir.Model, file_name: str) -> None:
    """Refuses a model whose declared tensor sizes contradict its operators.

    Raises:
        InputError: two sizes contradict each other; the error has onnx's message, with the node and the sizes.
    """
    try:
        proto = detach_big_weights(model)[0]
        onnx.shape_inference.infer_shapes(
            proto, strict_mode=True, data_prop=_count_propagated_elements(proto.graph) <= _MAX_FOLLOWED_ELEMENTS
        )
    except Exception as error:  # onnx also stops at unknown operators and types
        if (contradiction := _CONTRADICTION_PATTERN.search(str(error))) is not None:
            operator, name, cause = contradiction.groups()
            raise InputError(
                f"{file_name} declares a wrong size",
                f"{operator} {name or ''}: {cause}",
                "Correct the declared shapes, or export the network again.",
            ) from None


def infer_graph_shapes(model: onnx.ModelProto) -> onnx.GraphProto:
    """Returns the graph of a model with all shapes and types that onnx infers. Big weights are left out.

    Raises:
        Exception: any error that onnx raises for a model that it cannot infer.
    """
    return onnx.shape_inference.infer_shapes(
        model, data_prop=_count_propagated_elements(model.graph) <= _MAX_FOLLOWED_ELEMENTS
    ).graph


def declared_shape(value_info: onnx.ValueInfoProto) -> Shape:
    return tuple(
        size.dim_value if size.HasField("dim_value") else size.dim_param or None
        for size in value_info.type.tensor_type.shape.dim
    )


def _count_propagated_elements(graph: onnx.GraphProto) -> float:
    """Returns the maximum number of values of one tensor that onnx's shape inference would propagate.

    Long tensors come from Range nodes and from Concats.
    """
    stored_tensors = {item.name: item for item in graph.initializer}
    stored_tensors.update(
        (node.output[0], node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t")
    )
    lengths = {name: float(item.dims[0]) for name, item in stored_tensors.items() if len(item.dims) == 1}
    max_length = 0.0
    for node in graph.node:
        length = 1.0
        if node.op_type == "Range":
            length = _range_operator_length(node, stored_tensors)
            max_length = max(max_length, length)
        elif node.op_type == "Concat" and any(item.name == "axis" and item.i == 0 for item in node.attribute):
            length = min(sum(lengths.get(name, 1.0) for name in node.input), 2.0 * _MAX_FOLLOWED_ELEMENTS)
            max_length = max(max_length, length)
        elif node.op_type in _LENGTH_KEEPING_OPERATORS:
            length = max(lengths.get(name, 1.0) for name in node.input)
        if length > 1:
            lengths.update((name, length) for name in node.output)
    return max_length


def _range_operator_length(node: onnx.NodeProto, stored_tensors: Mapping[str, onnx.TensorProto]) -> float:
    """Returns the number of elements of a Range with stored limits; 1 if a limit is computed."""
    limits = [onnx.numpy_helper.to_array(stored_tensors[name]) for name in node.input if name in stored_tensors]
    if len(limits) < 3 or any(limit_array.size != 1 for limit_array in limits):
        return 1.0
    start, limit, step = (float(limit_array.reshape(())) for limit_array in limits)
    return math.inf if step == 0 else (limit - start) / step


def propagate_types(model: ir.Model) -> bool:
    """Sets the types of untyped tensors from the schemas of the neighbouring operators; returns True if any type was
    set.

    If a schema requires equal types for two tensors, the untyped one gets the type of the other.
    """
    opset = model.graph.opset_imports.get("", 0)
    pending = {
        node: type_groups
        for node in model.graph
        if (type_groups := list(_iterate_values_of_same_type(node, opset)))
        and any(value.dtype is None for _, values in type_groups for value in values)
    }
    has_changed = False
    queue = list(pending)
    while queue:
        node = queue.pop()
        for dtype, values in pending[node]:
            known_type = dtype or next((value.dtype for value in values if value.dtype is not None), None)
            for value in values:
                if value.dtype is None and known_type is not None:
                    value.type, has_changed = ir.TensorType(known_type), True
                    neighbours = (value.producer(), *(use.node for use in value.uses()))
                    queue.extend(neighbour for neighbour in neighbours if neighbour in pending)
    return has_changed


def _iterate_values_of_same_type(node: ir.Node, opset: int) -> Iterator[tuple[ir.DataType | None, list[ir.Value]]]:
    """Yields sets of a node's tensors that must have equal types, each with the type if only one is allowed."""
    if node.op_type in _INPUT_TYPED_OPERATORS.get(node.domain, ()):
        if node.inputs and node.inputs[0] is not None:
            yield None, [node.inputs[0], node.outputs[0]]
        return
    if node.domain or not onnx.defs.has(node.op_type):
        return
    inputs, outputs, type_by_parameter = _find_type_parameters(node.op_type, opset, len(node.inputs), len(node.outputs))
    values_by_parameter = collect_by_key(
        (name, value)
        for name, value in (*zip(inputs, node.inputs, strict=True), *zip(outputs, node.outputs, strict=True))
        if name and value is not None
    )
    for name, values in values_by_parameter.items():
        yield type_by_parameter.get(name), values


@functools.cache
def _find_type_parameters(
    operator: str, opset: int, input_count: int, output_count: int
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, ir.DataType]]:
    """Returns the schema's type parameter of each input and each output, and the type of each parameter with only one
    allowed type.

    The parameter is "" for an input or output of any type.
    """
    schema = get_onnx_schema(operator, opset)
    allowed_types = {
        constraint.type_param_str: list(constraint.allowed_type_strs) for constraint in schema.type_constraints
    }

    def list_type_parameters(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[str, ...]:
        type_parameters = []
        for index in range(count):
            parameter = parameters[min(index, len(parameters) - 1)]
            fits = index < len(parameters) or parameter.is_homogeneous
            kinds = allowed_types.get(parameter.type_str, [parameter.type_str])
            type_parameters.append(
                parameter.type_str if fits and all(kind.startswith("tensor(") for kind in kinds) else ""
            )
        return tuple(type_parameters)

    type_by_parameter = {
        name: types[0]
        for name in (
            *list_type_parameters(schema.inputs, input_count),
            *list_type_parameters(schema.outputs, output_count),
        )
        if name and len(types := allowed_types.get(name, [name])) == 1
    }
    return (
        list_type_parameters(schema.inputs, input_count),
        list_type_parameters(schema.outputs, output_count),
        {
            name: ir.DataType[type_text.removeprefix("tensor(").removesuffix(")").upper()]
            for name, type_text in type_by_parameter.items()
        },
    )


def infer_plugin_types(model: ir.Model, backend: Backend) -> None:
    """Sets the types and shapes of plugin outputs, and of all tensors computed from them, by means of a backend.

    The backend must have loaded the libraries of the plugins.

    Raises:
        InputError: the backend does not accept a plugin; the error names the node.
    """
    plugin_values = [value for node in model.graph if is_plugin(node) for value in node.outputs if value.name]
    if not plugin_values:
        return
    names = [value.name or "" for value in plugin_values]
    try:
        with backend.load(extract_subgraph_of_outputs(model, names), low_memory=True) as runner:
            info_by_name = {info.name: info for info in runner.outputs}
    except InputError as error:
        node = next((node for node in model.graph if is_plugin(node) and node.op_type in error.cause), None)
        node_text = f": node {node.name} ({node.op_type})" if node is not None else ""
        raise InputError(
            f"{error.title}{node_text}",
            error.cause,
            "Name the library of the operator with --ort-ops (may "
            "be repeated); without it the simulation ends before "
            "the node.",
        ) from None
    for value in plugin_values:
        info = info_by_name[value.name or ""]
        if info.dtype != np.dtype(object):
            value.type = ir.TensorType(ir.DataType.from_numpy(info.dtype))
            value.shape = ir.Shape(info.shape) if info.shape else value.shape
    infer_shapes(model)
