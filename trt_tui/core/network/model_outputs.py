"""Copies of a model with other outputs: additional ones, or only some of its tensors."""

from collections.abc import Sequence

import onnx_ir as ir

from trt_tui.core.network.subgraphs import remove_unused_nodes


def drop_unused_nodes(model: ir.Model) -> None:
    """Removes the nodes and initializers on which no output depends, except initializers that are inputs."""
    used = remove_unused_nodes(model.graph)
    for name, value in list(model.graph.initializers.items()):
        if id(value) not in used and not value.is_graph_input():
            del model.graph.initializers[name]


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


def extract_subgraph_of_outputs(model: ir.Model, tensor_names: Sequence[str]) -> ir.Model:
    """Returns the part of a model that computes the named tensors, with these tensors as its only outputs."""
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.clear()
    model.graph.outputs.extend(values[name] for name in tensor_names)
    drop_unused_nodes(model)
    return model
