"""Activations that a quantizer left to the ranges of its pairs, as the FP32 network has them.

A range tells that there was an activation, and where samples ended: a ReLU6 whose samples stayed below 6 looks like a
Relu, and a tensor that happened not to be negative like one behind a Relu. The FP32 network knows.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import Constants
from trt_tui.core.network.given import Given
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.naming import FreshNames

_CUTS = frozenset(("Relu", "Clip"))
_FOLDED = frozenset(("BatchNormalization",))
"""Operators that quantizers fold into the layer before."""


def take_true_activations(graph: ir.Graph, given: Given, partners: Mapping[str, str], reference: LayerGraph,
                          values: Constants) -> int:
    """Gives restored activations the operator and the bounds of the FP32 network, in place; returns how many differed.

    Args:
        graph: The FP32 network that was made of the quantized one.
        partners: The reference's layer for each of its nodes, by name.
        reference: The layers of the reference.
        values: Its constants.
    """
    names = FreshNames(graph)
    changed = 0
    for node in graph:
        maker = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if node.name not in given.made or node.op_type not in _CUTS or maker is None:
            continue
        partner = partners.get(maker.name or "")
        behind = _behind(reference, reference.by_name[partner]) if partner is not None else None
        if behind is None:
            continue
        operator = behind.op_type if behind.op_type in _CUTS else "Identity"
        bounds = _bounds(reference, behind, values) if operator == "Clip" else []
        if operator == "Clip" and bounds is None or _same(node, operator, bounds or []):
            continue
        node.op_type = operator
        node.resize_inputs(1 + len(bounds or []))
        for index, bound in enumerate(bounds or [], 1):
            node.replace_input_with(index, _scalar(graph, bound, names.new(f"{node.name}__bound")))
        changed += 1
    return changed


def _behind(reference: LayerGraph, layer: Layer) -> Layer | None:
    """What alone reads a layer's result, folded operators passed; None where that is nothing or several."""
    while True:
        readers = reference.readers.get(layer.outputs[0], [])
        if len(readers) != 1:
            return None
        layer = reference.by_name[readers[0]]
        if layer.op_type not in _FOLDED:
            return layer


def _bounds(reference: LayerGraph, layer: Layer, values: Constants) -> list[float | None] | None:
    """The bounds of a Clip, None for one that it does not have; None where they are computed."""
    found: list[float | None] = []
    for tensor in layer.inputs[1:]:
        if tensor and tensor not in reference.constants:
            return None
        found.append(float(values.value(tensor).reshape(())) if tensor else None)
    return found


def _same(node: ir.Node, operator: str, bounds: list[float | None]) -> bool:
    held = [None if value is None or value.const_value is None else float(value.const_value.numpy().reshape(()))
            for value in node.inputs[1:]]
    return node.op_type == operator and held == bounds


def _scalar(graph: ir.Graph, number: float | None, name: str) -> ir.Value | None:
    if number is None:
        return None
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]),
                     const_value=ir.tensor(np.float32(number), name=name))
    graph.register_initializer(value)
    return value
