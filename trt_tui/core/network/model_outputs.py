"""Copies of a model with other outputs: additional ones, or only some of its tensors."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass


def drop_unused_nodes(model: ir.Model) -> None:
    RemoveUnusedNodesPass()(model)


def add_outputs(model: ir.Model, tensor_names: Sequence[str]) -> ir.Model:
    """Returns a copy of the model with additional tensors as outputs, in the types they have in the model.

    Returns the model itself if ``tensor_names`` is empty.
    """
    if not tensor_names:
        return model
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.extend(values[name] for name in tensor_names)
    return model


def set_output_types(model: ir.Model, output_types: Mapping[str, ir.DataType]) -> ir.Model:
    """Returns a copy of the model in which some FP32 outputs have a 16-bit type.

    If a Cast writes the output, its input becomes the output. If not, only the declared type changes: a weakly typed
    TensorRT then writes the output in that type. Returns the model itself if ``output_types`` is empty.
    """
    if not output_types:
        return model
    model = model.clone()
    for index, value in enumerate(model.graph.outputs):
        dtype = output_types.get(value.name or "")
        if dtype is None or value.dtype == dtype:
            continue
        node = value.producer()
        source = node.inputs[0] if node is not None and node.op_type == "Cast" else None
        if source is not None and source.dtype == dtype and not (source.is_graph_output() or source.is_graph_input()):
            name, value.name = value.name, f"{value.name}_raised"
            source.name = name
            model.graph.outputs[index] = source
        else:
            value.type = ir.TensorType(dtype)
    drop_unused_nodes(model)
    return model


def extract_subgraph_of_outputs(model: ir.Model, tensor_names: Sequence[str]) -> ir.Model:
    """Returns the part of a model that computes the named tensors, with these tensors as its only outputs."""
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.clear()
    model.graph.outputs.extend(values[name] for name in tensor_names)
    drop_unused_nodes(model)
    return model
