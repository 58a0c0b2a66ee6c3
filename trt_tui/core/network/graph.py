"""Layers and tensors of an opened model, and what makes and reads each: all that the fusion rules look at."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.network.chance import draws
from trt_tui.core.network.inlining import SCOPE_KEY
from trt_tui.core.network.layers import Kind, Layer, Shape
from trt_tui.core.network.operators import ANCHORS, COPIES, QUANTIZED, SIZED_BY
from trt_tui.core.network.plugins import cutting, why_cut
from trt_tui.core.network.scopes import stated_scope
from trt_tui.core.network.unread import why_unread
from trt_tui.core.runner import TensorInfo

SHAPE_READERS = frozenset(("Shape", "Size"))
"""Operators that read no values."""

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class LayerGraph:
    """Layers and tensors of a model by name; not to be changed.

    Attributes:
        opset: Of ONNX's own operators; 0 where the model names none.
        layers: In network order.
        by_name: The same by name.
        producer: The layer that makes a tensor, by tensor name.
        consumers: The layers that read a tensor, those whose subgraphs capture it too, by tensor name.
        readers: Those of them that read its values: all but Shape and Size.
        constants: Tensors that are stored or computed from stored ones alone.
        static: These, and what is computed from them and shapes alone.
        behind: The plugin in front of each tensor that cannot be simulated, by tensor name.
        selected: Tensors whose sizes values decide, so that they may differ from precision to precision: behind a
            NonZero, or a Range up to a computed length.

    Args:
        operators: A library of operators was given, so that what simulates runs plugins too.
    """

    def __init__(self, model: ir.Model, operators: bool = False) -> None:
        graph = model.graph
        self.opset = graph.opset_imports.get("", 0)
        self.inputs = tuple(map(tensor_info, graph.inputs))
        self.outputs = tuple(map(tensor_info, graph.outputs))
        self._values: dict[str, ir.Value] = {v.name or "": v for v in (*graph.inputs, *graph.initializers.values())}
        self._nodes = {node.name or "": node for node in graph}
        self.producer: dict[str, str] = {}
        self.consumers: dict[str, list[str]] = {}
        self.readers: dict[str, list[str]] = {}
        constant = set(graph.initializers)
        static = set(constant)
        self.behind: dict[str, str] = {}
        behind = None if operators else self.behind
        self._reads: dict[str, tuple[str, ...]] = {}
        self.layers = tuple(_layer(index, node, constant, static, behind) for index, node in enumerate(graph))
        self.by_name = {layer.name: layer for layer in self.layers}
        for layer in self.layers:
            node = self._nodes[layer.name]
            self._values.update((v.name, v) for v in node.outputs if v.name)
            self.producer.update((name, layer.name) for name in layer.outputs if name)
            reads = (*filter(None, layer.inputs), *captured(node))
            self._reads[layer.name] = layer.inputs if reads == layer.inputs else reads
            for name in dict.fromkeys(reads):
                self.consumers.setdefault(name, []).append(layer.name)
                if not reads_shape(layer):
                    self.readers.setdefault(name, []).append(layer.name)
        self._floats = frozenset(name for name, value in self._values.items() if value.dtype == ir.DataType.FLOAT
                                 and not isinstance(value.type, ir.SequenceType | ir.OptionalType))
        self.constants = frozenset(constant)
        self.static = frozenset(static)
        self.selected = self._selected()

    def _selected(self) -> frozenset[str]:
        found: set[str] = set()
        for layer in self.layers:
            sizes = [name for place, name in enumerate(layer.inputs) if place in SIZED_BY.get(layer.op_type, ())]
            if any(name and name not in self.static for name in sizes) or not found.isdisjoint(
                    self.reads(layer.name)):
                found.update(filter(None, layer.outputs))
        return frozenset(found)

    def node(self, layer: str) -> ir.Node:
        """The node behind a layer; not to be changed."""
        return self._nodes[layer]

    def reads(self, layer: str) -> tuple[str, ...]:
        """Tensors a layer reads, those captured by its subgraphs too."""
        return self._reads[layer]

    def has_tensor(self, name: str) -> bool:
        """Whether a tensor of this name is made, stored or given."""
        return name in self._values

    def value(self, tensor: str) -> ir.Value:
        """The value behind a tensor; not to be changed."""
        return self._values[tensor]

    def is_float(self, tensor: str) -> bool:
        """Whether a tensor is FP32, and no sequence or optional."""
        return tensor in self._floats

    def shape(self, tensor: str) -> Shape | None:
        """Sizes of a tensor: a number, a name, or None for an open one; None where not even the rank is known."""
        value = self._values.get(tensor)
        return None if value is None else _shape(value)


def reads_shape(layer: Layer) -> bool:
    """Whether a layer reads a tensor's sizes and none of its values."""
    return layer.op_type in SHAPE_READERS and layer.domain in ("", "ai.onnx")


def tensor_info(value: ir.Value) -> TensorInfo:
    """Name, type and shape of an input or output; the type is ``object`` where it is no tensor or not known."""
    known = value.dtype not in (None, ir.DataType.UNDEFINED) and isinstance(value.type, ir.TensorType)
    dtype = np.dtype(value.dtype.numpy() if known and value.dtype is not None else object)
    return TensorInfo(value.name or "", dtype, _shape(value))


def captured(node: ir.Node) -> Iterator[str]:
    """Names of outer tensors that a node's subgraphs use, those nested in them and their bare results too.

    `onnx_ir.analysis.analyze_implicit_usage` leaves out what a subgraph hands on without reading it.
    """
    for attr in node.attributes.values():
        if attr.type not in _GRAPHS:
            continue
        for subgraph in (attr.value,) if attr.type == ir.AttributeType.GRAPH else attr.value:
            graphs = [subgraph, *subgraph.subgraphs()]
            inner = {v for graph in graphs for v in (*graph.inputs, *graph.initializers.values())}
            inner.update(v for n in subgraph.all_nodes() for v in n.outputs)
            used = [v for n in subgraph.all_nodes() for v in n.inputs if v is not None]
            used += [v for graph in graphs for v in graph.outputs]
            yield from dict.fromkeys(v.name for v in used if v not in inner)


# -- what a node is ---------------------------------------------------------------------------------------------------


def _layer(index: int, node: ir.Node, constant: set[str], static: set[str], behind: dict[str, str] | None) -> Layer:
    """The layer of a node; adds what it makes to the constant and static tensors that come before it, or to those
    behind a plugin."""
    inputs = tuple(v.name or "" if v is not None else "" for v in node.inputs)
    outputs = tuple(v.name or "" for v in node.outputs)
    read = [name for name in (*inputs, *captured(node)) if name]
    kind, note = _kind(node)
    if behind is not None and (plugin := cutting(node, read, behind)):
        behind.update(dict.fromkeys(filter(None, outputs), plugin))
        kind, note = Kind.OPAQUE, why_cut(node, plugin)
    if kind is not Kind.OPAQUE and not draws(node):
        if all(name in constant for name in read):
            kind, note = Kind.CONSTANT, "constant"
            constant.update(outputs)
            static.update(outputs)
        elif node.op_type in SHAPE_READERS or all(name in static for name in read):
            kind, note = Kind.SHAPE, "shape arithmetic"
            static.update(outputs)
    return Layer(node.name or "", node.op_type, node.domain, index, inputs, outputs, kind,
                 stated_scope(node.metadata_props, node.meta.get(SCOPE_KEY, ())), macs(node, _shape), note)


def _kind(node: ir.Node) -> tuple[Kind, str]:
    """The kind of a node, and why it cannot take a lower precision."""
    if any(attr.type in _GRAPHS for attr in node.attributes.values()):
        return Kind.OPAQUE, f"{node.op_type} holds a subgraph, which is kept whole in FP32"
    if unread := why_unread(node):
        return Kind.OPAQUE, unread
    if node.domain not in ("", "ai.onnx"):
        return Kind.OPAQUE, f"operator of another domain ({node.domain}): its types are not known"
    if not onnx.defs.has(node.op_type):
        return Kind.OPAQUE, "ONNX has no such operator: its types are not known"
    if node.op_type in QUANTIZED:
        return Kind.OPAQUE, "already computes on integers; export with Q/DQ pairs to choose its precision"
    if any(not isinstance(v.type, ir.TensorType) for v in (*node.inputs, *node.outputs)
           if v is not None and v.type is not None):
        return Kind.OPAQUE, "works on sequences or optionals, which have no precision"
    if node.op_type == "Cast":
        return Kind.CAST, "type conversion"
    dtypes = {v.dtype for v in node.outputs if v.name}
    if None in dtypes:
        return Kind.OPAQUE, "its output type could not be inferred"
    if any(v is not None and v.dtype is None for v in node.inputs):
        return Kind.OPAQUE, "the type of its input could not be inferred"
    if ir.DataType.FLOAT not in dtypes:
        if ir.DataType.DOUBLE in dtypes:
            return Kind.OPAQUE, "computes in FP64"
        return Kind.INTEGER, "integer or boolean result"
    return (Kind.COPY if node.op_type in COPIES else Kind.COMPUTE), ""


def macs(node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]) -> int | None:
    """Multiply-accumulates of one run, an open batch taken as 1; None where sizes are open."""
    if node.op_type not in ANCHORS or node.domain != "":
        return 0
    result, weight = (_sizes(value, shape_of) for value in (node.outputs[0], node.inputs[1]))
    if result is None or weight is None:
        return None
    if node.op_type == "Conv":
        return math.prod(result) * math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        data = _sizes(node.inputs[0], shape_of)
        return None if data is None else math.prod(data) * math.prod(weight[1:])
    if node.op_type == "Gemm":
        return math.prod(result) * weight[1 if node.attributes.get_int("transB", 0) else 0]
    return math.prod(result) * (weight[-2] if len(weight) > 1 else weight[0])


def _shape(value: ir.Value) -> Shape | None:
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def _sizes(value: ir.Value | None, shape_of: Callable[[ir.Value], Shape | None]) -> list[int] | None:
    """Static sizes, an open first dimension (the batch) taken as 1; None where another one is open."""
    shape = None if value is None else shape_of(value)
    if shape is None:
        return None
    sizes = [size if isinstance(size, int) else 1 for index, size in enumerate(shape)
             if isinstance(size, int) or index == 0]
    return sizes if len(sizes) == len(shape) else None
