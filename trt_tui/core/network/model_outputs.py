"""Models with other outputs: more of them, or only the part that computes some of its tensors."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass


def drop_unused_nodes(model: ir.Model) -> None:
    """Takes nodes and initializers out, in place."""
    RemoveUnusedNodesPass()(model)


def add_outputs(model: ir.Model, tensor_names: Sequence[str]) -> ir.Model:
    """The model with some of its tensors as outputs too, in the types that they have there; itself for none."""
    if not tensor_names:
        return model
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.extend(values[name] for name in tensor_names)
    return model


def extract_subgraph_of_outputs(model: ir.Model, tensor_names: Sequence[str]) -> ir.Model:
    """The part of the model that computes some of its tensors, which are its outputs."""
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.clear()
    model.graph.outputs.extend(values[name] for name in tensor_names)
    drop_unused_nodes(model)
    return model
