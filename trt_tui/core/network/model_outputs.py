"""Copies of a model with other outputs: additional ones, or only some of its tensors."""

from collections.abc import Mapping, Sequence

import numpy as np
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


HALF_INPUT_SUFFIX = "_half"
"""The suffix of the Identity behind an input of a weakly typed network, whose result has a 16-bit type."""


def set_boundary_types(model: ir.Model, types: Mapping[str, ir.DataType], is_strongly_typed: bool) -> ir.Model:
    """Returns a copy of the model in which some FP32 inputs and outputs have a 16-bit type.

    An input that only Casts to that type read gets the type. In a weakly typed network an Identity follows the input;
    the builder must be told its type. If a Cast writes an output, its input becomes the output. If not, only the
    declared type changes: a weakly typed TensorRT then writes the output in that type. Returns the model itself if
    ``types`` is empty.
    """
    if not types:
        return model
    model = model.clone()
    for value in model.graph.inputs:
        dtype = types.get(value.name or "")
        readers = [node for node, _ in value.uses()]
        if dtype is None or value.dtype != ir.DataType.FLOAT or not readers:
            continue
        if is_strongly_typed:
            if all(node.op_type == "Cast" and node.attributes.get_int("to") == dtype and not
                   node.outputs[0].is_graph_output() for node in readers):
                value.type = ir.TensorType(dtype)
                for node in readers:
                    node.outputs[0].replace_all_uses_with(value)
        else:
            identity = ir.node("Identity", [value], outputs=[ir.Value(
                name=f"{value.name}{HALF_INPUT_SUFFIX}", type=value.type, shape=value.shape)])
            identity.name = f"{value.name}{HALF_INPUT_SUFFIX}"
            value.replace_all_uses_with(identity.outputs[0])
            identity.replace_input_with(0, value)
            model.graph.insert_before(model.graph[0], identity)
    for index, value in enumerate(model.graph.outputs):
        dtype = types.get(value.name or "")
        if dtype is None or value.dtype == dtype:
            continue
        producer = value.producer()
        source = producer.inputs[0] if producer is not None and producer.op_type == "Cast" else None
        if source is not None and source.dtype == dtype and not (source.is_graph_output() or source.is_graph_input()):
            name, value.name = value.name, f"{value.name}_raised"
            source.name = name
            model.graph.outputs[index] = source
        else:
            value.type = ir.TensorType(dtype)
    drop_unused_nodes(model)
    return model


_HALF_TYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def quantize_outputs(model: ir.Model, steps: Mapping[str, tuple[np.ndarray, int | None, ir.DataType]]) -> ir.Model:
    """Returns a copy of the model in which a Q/DQ pair follows some outputs; the model itself if ``steps`` is empty.

    The pair has the scales, the axis (None for one scale) and the type of the quantized values. The dequantized values
    become the output, under its name.
    """
    if not steps:
        return model
    model = model.clone()
    for index, value in enumerate(model.graph.outputs):
        name = value.name or ""
        if name not in steps:
            continue
        scales, axis, dtype = steps[name]
        value.name = f"{name}__unquantized"
        float_type = value.dtype if value.dtype in _HALF_TYPES else ir.DataType.FLOAT
        constants = []
        for suffix, array in (("scale", scales.astype(float_type.numpy())), ("zero_point", np.zeros(scales.shape,
                                                                                                  dtype.numpy()))):
            constant = ir.Value(name=f"{name}__output_{suffix}")
            constant.const_value = ir.tensor(array, name=constant.name)
            constant.type, constant.shape = ir.TensorType(constant.const_value.dtype), ir.Shape(array.shape)
            model.graph.register_initializer(constant)
            constants.append(constant)
        attributes = {} if axis is None else {"axis": axis}
        quantize = ir.node("QuantizeLinear", [value, *constants], attributes, outputs=[ir.Value(
            name=f"{name}__output_q", type=ir.TensorType(dtype), shape=value.shape)], name=f"{name}__output_q")
        dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], *constants], attributes, outputs=[ir.Value(
            name=name, type=ir.TensorType(float_type), shape=value.shape)], name=f"{name}__output_dq")
        model.graph.extend([quantize, dequantize])
        model.graph.outputs[index] = dequantize.outputs[0]
    return model


def extract_subgraph_of_outputs(model: ir.Model, tensor_names: Sequence[str]) -> ir.Model:
    """Returns the part of a model that computes the named tensors, with these tensors as its only outputs."""
    model = model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.clear()
    model.graph.outputs.extend(values[name] for name in tensor_names)
    drop_unused_nodes(model)
    return model
