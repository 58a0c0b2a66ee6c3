"""Activations that a quantizer left to the ranges of its pairs, as the FP32 network has them.

A range tells that there was an activation, and where samples ended: a ReLU6 whose samples stayed below 6 looks like a
Relu, and a tensor that happened not to be negative like one behind a Relu. The FP32 network knows.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import ConstantValues
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.naming import FreshNames
from trt_tui.core.network.source_model import SourceModel

_CLIPPING_OPERATORS = frozenset(("Relu", "Clip"))
_FOLDED_OPERATORS = frozenset(("BatchNormalization",))
"""Operators that quantizers fold into the layer before."""


def restore_original_activations(graph: ir.Graph, source_model: SourceModel, fp32_layer_by_node: Mapping[str, str],
                                 fp32_graph: LayerGraph, constant_values: ConstantValues) -> int:
    """Gives restored activations the operator and the bounds of the FP32 network, in place; returns how many differed.

    Args:
        graph: The FP32 network that was made of the quantized one.
        fp32_layer_by_node: The reference's layer for each of its nodes, by name.
        fp32_graph: The layers of the reference.
        constant_values: Its constants.
    """
    fresh_names = FreshNames(graph)
    change_count = 0
    for node in graph:
        producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if node.name not in source_model.added_nodes or node.op_type not in _CLIPPING_OPERATORS or producer is None:
            continue
        reference_name = fp32_layer_by_node.get(producer.name or "")
        next_layer = _find_sole_next_layer(fp32_graph,
                                           fp32_graph.by_name[reference_name]) if reference_name is not None else None
        if next_layer is None:
            continue
        operator = next_layer.op_type if next_layer.op_type in _CLIPPING_OPERATORS else "Identity"
        bounds = _read_clip_bounds(fp32_graph, next_layer, constant_values) if operator == "Clip" else []
        if operator == "Clip" and bounds is None or _has_same_bounds(node, operator, bounds or []):
            continue
        node.op_type = operator
        node.resize_inputs(1 + len(bounds or []))
        for index, bound in enumerate(bounds or [], 1):
            node.replace_input_with(index, _add_scalar(graph, bound,
                                                       fresh_names.make_unique_name(f"{node.name}__bound")))
        change_count += 1
    return change_count


def _find_sole_next_layer(fp32_graph: LayerGraph, layer: Layer) -> Layer | None:
    """What alone reads a layer's result, folded operators passed; None where that is nothing or several."""
    while True:
        readers = fp32_graph.readers.get(layer.outputs[0], [])
        if len(readers) != 1:
            return None
        layer = fp32_graph.by_name[readers[0]]
        if layer.op_type not in _FOLDED_OPERATORS:
            return layer


def _read_clip_bounds(fp32_graph: LayerGraph, layer: Layer,
                      constant_values: ConstantValues) -> list[float | None] | None:
    """The bounds of a Clip, None for one that it does not have; None where they are computed."""
    bounds: list[float | None] = []
    for tensor in layer.inputs[1:]:
        if tensor and tensor not in fp32_graph.constant_tensors:
            return None
        bounds.append(float(constant_values.constant_value(tensor).reshape(())) if tensor else None)
    return bounds


def _has_same_bounds(node: ir.Node, expected_operator: str, expected_bounds: list[float | None]) -> bool:
    own_bounds = [None if value is None or value.const_value is None else float(value.const_value.numpy().reshape(()))
                  for value in node.inputs[1:]]
    return node.op_type == expected_operator and own_bounds == expected_bounds


def _add_scalar(graph: ir.Graph, number: float | None, name: str) -> ir.Value | None:
    if number is None:
        return None
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]),
                     const_value=ir.tensor(np.float32(number), name=name))
    graph.register_initializer(value)
    return value
