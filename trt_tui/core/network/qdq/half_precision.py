"""The conversion of networks typed in 16 bits to the FP32 networks that they were made from."""

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.model_editing import FreshNames, value_name
from trt_tui.core.network.qdq.removal import Fp32Conversion

_HALF_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type")


def has_half_precision(graph: ir.Graph) -> bool:
    """Returns True if any input, weight, constant or Cast of a network has the type FP16 or BF16."""
    stored = [
        typed_value.const_value
        for inner_graph in (graph, *graph.subgraphs())
        for typed_value in inner_graph.initializers.values()
    ]
    return (
        any(typed_value.dtype in _HALF_TYPES for typed_value in graph.inputs)
        or any(tensor is not None and tensor.dtype in _HALF_TYPES for tensor in stored)
        or any(
            attr.type == ir.AttributeType.INT
            and attr.value in _HALF_TYPES
            and (node.op_type == "Cast" or attr.name in _TYPE_ATTRIBUTES)
            or attr.type == ir.AttributeType.TENSOR
            and attr.value.dtype in _HALF_TYPES
            for node in graph.all_nodes()
            for attr in node.attributes.values()
        )
    )


def upcast_to_fp32(graph: ir.Graph, conversion: Fp32Conversion) -> None:
    """Converts a network typed in FP16 or BF16 to FP32, in place. Its inputs and outputs keep their types."""
    subgraphs = list(graph.subgraphs())
    stored_tensors = [
        (typed_value, typed_value.const_value)
        for inner_graph in (graph, *subgraphs)
        for typed_value in inner_graph.initializers.values()
        if typed_value.const_value is not None and typed_value.const_value.dtype in _HALF_TYPES
    ]
    inputs = [typed_value for typed_value in graph.inputs if typed_value.dtype in _HALF_TYPES]
    cast_nodes = [
        typed_node
        for typed_node in graph.all_nodes()
        if typed_node.op_type == "Cast"
        and typed_node.domain == ""
        and typed_node.attributes["to"].as_int() in _HALF_TYPES
    ]
    constant_nodes = [
        typed_node
        for typed_node in graph.all_nodes()
        for attribute in typed_node.attributes.values()
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _HALF_TYPES
    ]
    if not (stored_tensors or inputs or cast_nodes or constant_nodes):
        return
    conversion.has_changes = True
    tensor_names = FreshNames(graph)
    node_names = FreshNames(graph, taken_names=(node.name for node in graph if node.name))
    for value, tensor in stored_tensors:
        value.const_value = _convert_to_float32(tensor)
        value.dtype = ir.DataType.FLOAT
    for node in cast_nodes:
        node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
    output_types = {
        id(typed_value): typed_value.dtype for typed_value in graph.outputs if typed_value.dtype in _HALF_TYPES
    }
    for node in graph.all_nodes():
        for attr in list(node.attributes.values()):
            if attr.name in _TYPE_ATTRIBUTES and attr.type == ir.AttributeType.INT and attr.value in _HALF_TYPES:
                node.attributes[attr.name] = ir.AttrInt64(attr.name, int(ir.DataType.FLOAT))
            elif attr.type == ir.AttributeType.TENSOR and attr.value.dtype in _HALF_TYPES:
                node.attributes[attr.name] = ir.AttrTensor(attr.name, _convert_to_float32(attr.value))
        for output in node.outputs:
            if output.dtype in _HALF_TYPES:
                output.dtype = ir.DataType.FLOAT
    for value in (
        typed_value for inner_graph in subgraphs for typed_value in (*inner_graph.inputs, *inner_graph.outputs)
    ):
        if value.dtype in _HALF_TYPES:
            value.dtype = ir.DataType.FLOAT
    for value in inputs:
        uses = tuple(value.uses())
        cast = ir.node(
            "Cast",
            [value],
            {"to": int(ir.DataType.FLOAT)},
            name=node_names.make_unique_name(f"{value.name}__to_fp32"),
            outputs=[ir.val(tensor_names.make_unique_name(f"{value.name}__fp32"), ir.DataType.FLOAT, value.shape)],
        )
        conversion.added_nodes.add(cast.name or "")
        conversion.source_tensors[value_name(cast.outputs[0])] = value.name or ""
        for use in uses:
            use.node.replace_input_with(use.idx, cast.outputs[0])
        graph.insert_before(graph[0], cast)
    for index, value in enumerate(list(graph.outputs)):
        dtype = output_types.get(id(value))
        if dtype is None or value in inputs:
            continue
        name = value.name
        value.name = tensor_names.make_unique_name(f"{name}__fp32")
        conversion.source_tensors[value.name] = name or ""
        cast = ir.node(
            "Cast",
            [value],
            {"to": int(dtype)},
            name=node_names.make_unique_name(f"{name}__to_output_type"),
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
