"""The conversion of networks typed in 16 bits to the FP32 networks that they were made from."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.naming import FreshNames, value_name

_HALF_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type")


@dataclass
class UpcastResult:
    """The changes that the conversion of a 16-bit network to FP32 made.

    Attributes:
        has_changes: True if the network contained 16-bit types.
        source_tensors: New tensors by name, each with the tensor of the file that it represents.
        added_nodes: Names of new nodes.
    """

    has_changes: bool = False
    source_tensors: dict[str, str] = field(default_factory=dict)
    added_nodes: set[str] = field(default_factory=set)


def has_half_precision(graph: ir.Graph) -> bool:
    """Returns True if any input, weight, constant or Cast of a network has the type FP16 or BF16."""
    stored = [
        typed_value.const_value
        for inner_graph in (graph, *graph.subgraphs())
        for typed_value in inner_graph.initializers.values()
    ]
    return any(typed_value.dtype in _HALF_TYPES for typed_value in graph.inputs) or any(
        tensor is not None and tensor.dtype in _HALF_TYPES for tensor in stored) or any(
        attr.type == ir.AttributeType.INT and attr.value in _HALF_TYPES and (
            node.op_type == "Cast" or attr.name in _TYPE_ATTRIBUTES)
        or attr.type == ir.AttributeType.TENSOR and attr.value.dtype in _HALF_TYPES
        for node in graph.all_nodes() for attr in node.attributes.values())


def upcast_to_fp32(graph: ir.Graph) -> UpcastResult:
    """Converts a network typed in FP16 or BF16 to FP32, in place; its inputs and outputs keep their types."""
    subgraphs = list(graph.subgraphs())
    stored_tensors = [(typed_value, typed_value.const_value)
                      for inner_graph in (graph, *subgraphs)
                      for typed_value in inner_graph.initializers.values()
                      if typed_value.const_value is not None and typed_value.const_value.dtype in _HALF_TYPES]
    inputs = [typed_value for typed_value in graph.inputs if typed_value.dtype in _HALF_TYPES]
    cast_nodes = [
        typed_node for typed_node in graph.all_nodes() if typed_node.op_type == "Cast" and typed_node.domain == ""
        and typed_node.attributes["to"].as_int() in _HALF_TYPES
    ]
    constant_nodes = [typed_node for typed_node in graph.all_nodes() for attribute in typed_node.attributes.values()
                      if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _HALF_TYPES]
    if not (stored_tensors or inputs or cast_nodes or constant_nodes):
        return UpcastResult()
    upcast, tensor_names = UpcastResult(has_changes=True), FreshNames(graph)
    node_names = FreshNames(graph, taken_names=(node.name for node in graph if node.name))
    for value, tensor in stored_tensors:
        value.const_value = _convert_to_float32(tensor)
        value.dtype = ir.DataType.FLOAT
    for node in constant_nodes:
        for attr in list(node.attributes.values()):
            if attr.type == ir.AttributeType.TENSOR and attr.value.dtype in _HALF_TYPES:
                node.attributes[attr.name] = ir.AttrTensor(attr.name, _convert_to_float32(attr.value))
    for node in cast_nodes:
        node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
    output_types = {
        id(typed_value): typed_value.dtype
        for typed_value in graph.outputs
        if typed_value.dtype in _HALF_TYPES
    }
    for node in graph.all_nodes():
        for attr in list(node.attributes.values()):
            if attr.name in _TYPE_ATTRIBUTES and attr.type == ir.AttributeType.INT and attr.value in _HALF_TYPES:
                node.attributes[attr.name] = ir.AttrInt64(attr.name, int(ir.DataType.FLOAT))
        for output in node.outputs:
            if output.dtype in _HALF_TYPES:
                output.dtype = ir.DataType.FLOAT
    for value in (typed_value for inner_graph in subgraphs
                  for typed_value in (*inner_graph.inputs, *inner_graph.outputs)):
        if value.dtype in _HALF_TYPES:
            value.dtype = ir.DataType.FLOAT
    for value in inputs:
        cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(ir.DataType.FLOAT))},
                       name=node_names.make_unique_name(f"{value.name}__to_fp32"))
        cast.outputs[0].name = tensor_names.make_unique_name(f"{value.name}__fp32")
        upcast.added_nodes.add(cast.name or "")
        upcast.source_tensors[cast.outputs[0].name] = value.name or ""
        cast.outputs[0].dtype, cast.outputs[0].shape = ir.DataType.FLOAT, value.shape
        for use in list(value.uses()):
            use.node.replace_input_with(use.idx, cast.outputs[0])
        cast.replace_input_with(0, value)
        graph.insert_before(graph[0], cast)
    for index, value in enumerate(list(graph.outputs)):
        dtype = output_types.get(id(value))
        if dtype is None or value in inputs:
            continue
        name = value.name
        value.name = tensor_names.make_unique_name(f"{name}__fp32")
        upcast.source_tensors[value.name] = name or ""
        cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(dtype))},
                       name=node_names.make_unique_name(f"{name}__to_output_type"))
        upcast.added_nodes.add(cast.name or "")
        cast.outputs[0].name = name
        cast.outputs[0].dtype, cast.outputs[0].shape = dtype, value.shape
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]
    return upcast


def drop_identity_casts(graph: ir.Graph) -> dict[str, str]:
    """Removes Casts from FP32 to FP32, which remain of Casts between 16 and 32 bits and of `x.float()`.

    Returns:
        The tensor that replaces each removed result, by the name of the result.
    """
    replaced_names: dict[str, str] = {}
    for node in list(graph):
        if node.op_type == "Cast" and node.domain == "" and not node.outputs[0].is_graph_output() \
                and (source := node.inputs[0]) is not None \
                and source.dtype == node.outputs[0].dtype == ir.DataType.FLOAT:
            replaced_names[value_name(node.outputs[0])] = value_name(source)
            node.outputs[0].replace_all_uses_with(source)
            graph.remove(node, safe=True)
    return replaced_names


def _convert_to_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.LazyTensor(lambda: ir.tensor(tensor.numpy().astype(np.float32)), dtype=ir.DataType.FLOAT,
                         shape=ir.Shape(tensor.shape.numpy()), cache=True, name=tensor.name)
