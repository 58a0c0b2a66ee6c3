"""Q/DQ pairs of a quantized network: taken out, their ranges and what they feed remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.naming import FreshNames, name_of


@dataclass
class Pairs:
    """What was found at taking Q/DQ pairs out.

    Attributes:
        ranges: amax of activation tensors that carried pairs, by tensor name.
        layers: Names of the nodes that read codes: those that the file runs in INT8.
        notes: One sentence for each change.
    """

    ranges: dict[str, float] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def take_out_pairs(graph: ir.Graph) -> Pairs:
    """Takes Q/DQ pairs out of the graph, in place.

    A DequantizeLinear on an INT8, UINT8 or INT32 constant becomes the FP32 constant that it computes (TensorRT takes no
    int32 bias with a DequantizeLinear); on other types it stays: it is how a weight is stored.
    """
    found = Pairs()
    pairs = asymmetric = 0
    sources: dict[ir.Node, ir.Value] = {}
    activations = _Activations(graph)
    for node in [one for one in graph if one.op_type == "DequantizeLinear" and one.domain == ""]:
        quantize = node.inputs[0].producer() if node.inputs[0] is not None else None
        if quantize is None or quantize.op_type != "QuantizeLinear":
            stored = constant_tensor(node.inputs[0])
            if stored is not None:
                if stored.dtype == ir.DataType.INT8:
                    found.layers.update(_readers(node.outputs[0]))
                _fold_dequantize(graph, node, stored)
            continue
        source = sources.get(quantize) or quantize.inputs[0]
        if source is None:  # an input that the call of a local function leaves out
            continue
        scale = constant_tensor(node.inputs[1])
        zero = constant_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
        if scale is not None and scale.size == 1 and constant_tensor(source) is None \
                and (zero is None or zero.dtype in (ir.DataType.INT8, ir.DataType.UINT8)):
            low, high = _quantized_range(scale, zero)
            if low == 0 and quantize not in sources and _may_be_negative(source):
                source = sources[quantize] = activations.behind(source, high)
            asymmetric += low != -high
            amax = max(high, -low)
            name = name_of(source)
            found.ranges[name] = max(amax, found.ranges.get(name, 0.0))
        pairs += 1
        found.layers.update(_readers(node.outputs[0]))
        _bypass(graph, node.outputs[0], source)
        graph.remove(node, safe=True)
        if not quantize.outputs[0].uses() and not quantize.outputs[0].is_graph_output():
            graph.remove(quantize, safe=True)
    if pairs:
        found.notes.append(f"Already quantized: {pairs} Q/DQ pairs read as the precision of the layers they feed.")
    if asymmetric:
        found.notes.append(f"{asymmetric} ranges had a zero point other than 0; TensorRT takes symmetric ranges only, "
                            "so each was widened to its larger side.")
    if sources:
        found.notes.append(f"{len(sources)} activations that the quantizer had left to the range of a Q/DQ pair "
                            "that cuts off what is below 0 are Relu and Clip again.")
    return found


def _readers(value: ir.Value) -> list[str]:
    """Names of the nodes that read a value, less those in inner graphs that have none."""
    return [use.node.name for use in value.uses() if use.node.name]


def _fold_dequantize(graph: ir.Graph, node: ir.Node, stored: ir.TensorProtocol) -> None:
    """Puts an FP32 initializer, computed when somebody reads it, in place of a DequantizeLinear on a constant."""
    output = node.outputs[0]
    given = [value for value in node.inputs if value is not None]
    parts = [part for value in given if (part := constant_tensor(value)) is not None]
    block = node.attributes.get("block_size")
    if (stored.dtype not in (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32) or len(parts) < len(given)
            or output.is_graph_output() or (block is not None and block.as_int())):
        return
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1

    def dequantized() -> ir.TensorProtocol:
        codes, scale, *zero = (part.numpy() for part in parts)
        shape = [1] * codes.ndim
        if scale.size > 1:
            shape[axis] = scale.size
        codes = codes.astype(np.float32)
        if zero:
            codes -= zero[0].astype(np.float32).reshape(shape)
        return ir.tensor(codes * scale.astype(np.float32).reshape(shape))

    shape = ir.Shape(stored.shape.numpy())
    value = ir.Value(name=output.name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
    value.const_value = ir.LazyTensor(dequantized, dtype=ir.DataType.FLOAT, shape=shape, cache=True, name=output.name)
    output.name = f"{output.name}__dequantized"
    output.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.register_initializer(value)


def _quantized_range(scale: ir.TensorProtocol, zero: ir.TensorProtocol | None) -> tuple[float, float]:
    """The least and the largest value that a Q/DQ pair lets through, without the code -128 where 0 is the middle."""
    step = float(scale.numpy().astype(np.float64).reshape(()))
    point = 0 if zero is None else int(zero.numpy().reshape(()))
    codes = np.iinfo(np.uint8 if zero is None else zero.dtype.numpy())
    low = codes.min - point
    high = codes.max - point
    return step * (-high if low == -high - 1 else low), step * high


def _may_be_negative(value: ir.Value) -> bool:
    """Whether a value is what a Conv, MatMul or the like computes, behind which a quantizer drops a Relu."""
    node = value.producer()
    return node is not None and node.op_type in (
        "Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "MatMul", "Sub")


class _Activations:
    """The activations that a quantizer left to the ranges of its pairs, put back: one of a kind for each tensor."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[ir.Value, str], ir.Value] = {}

    @cached_property
    def _names(self) -> FreshNames:
        return FreshNames(self._graph)

    def behind(self, value: ir.Value, high: float) -> ir.Value:
        """The value behind a Relu or, where its range ends at 6, a Clip to 0 and 6 (ReLU6)."""
        operator = "Clip" if abs(high - 6) < 0.01 else "Relu"
        if (value, operator) not in self._known:
            self._known[value, operator] = self._new(value, operator)
        return self._known[value, operator]

    def _new(self, value: ir.Value, operator: str) -> ir.Value:
        inputs = [value]
        for bound in (0, 6) if operator == "Clip" else ():
            name = self._names.new(f"{value.name}__{bound}")
            limit = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]),
                             const_value=ir.tensor(np.float32(bound), name=name))
            self._graph.register_initializer(limit)
            inputs.append(limit)
        producer = value.producer()
        assert producer is not None, "what may be negative is computed"
        node = ir.Node("", operator, inputs, name=f"{producer.name}__relu",
                       metadata_props=dict(producer.metadata_props))
        output = node.outputs[0]
        output.name = self._names.new(f"{value.name}__relu")
        output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        node.meta.update(producer.meta)
        self._graph.insert_after(producer, node)
        return output


def _bypass(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Lets everything that used ``old`` use ``new``; a graph output keeps its name through an Identity."""
    if old.is_graph_output():
        name = old.name
        old.name = f"{name}__dequantized"
        identity = ir.Node("", "Identity", [new], name=f"{name}__output")
        identity.outputs[0].name = name
        identity.outputs[0].shape, identity.outputs[0].type = old.shape, old.type
        graph.append(identity)
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = identity.outputs[0]
    old.replace_all_uses_with(new)
