"""Lowered networks with other outputs: more, for what an engine has to yield, or those alone that can be run."""

from collections.abc import Sequence

import onnx_ir as ir

from trt_tui.core.network.unused import drop_unused


def with_outputs(model: ir.Model, tensors: Sequence[str]) -> ir.Model:
    """The model with some of its tensors as outputs too, in the types that they have there; itself for none."""
    if not tensors:
        return model
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.extend(values[name] for name in tensors)
    return model


def ending_in(model: ir.Model, tensors: Sequence[str]) -> ir.Model:
    """The part of the model that computes some of its tensors, which are its outputs."""
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.clear()
    model.graph.outputs.extend(values[name] for name in tensors)
    drop_unused(model)
    return model
