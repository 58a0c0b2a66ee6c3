"""What a strongly typed TensorRT refuses of a quantized file, node by node, and the way out of each.

TensorRT quantizes symmetrically to INT8, FP8, INT4 and FP4: a zero point has to be 0, unsigned and 16-bit codes are not
taken, and neither is a DequantizeLinear on an int32 bias (TensorRT developer guide, "Working with quantized types").

- A zero point other than 0: the range is widened to its larger side. Codes of UINT8 around 128 are those of INT8 around
  0, and mean the same. Where a quantizer left a Relu to a range that begins at 0 there is a Relu again.
- An int32 bias is stored as floats, which mean the same.
- Codes of 4 bits that are unsigned, or have one scale for the tensor (beside INT8 TensorRT-RTX 1.7 builds none of
  these): in 8 bits, which hold the same weights.
- 16-bit codes are left out: the tensor stays in floats, behind the Relu or ReLU6 that their range stood for.
- An operator in a float type that it has no kernel for (`operators.TENSORRT_LACKS`) is computed in FP32.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.naming import FreshNames, name_of
from trt_tui.core.network.operators import TENSORRT_LACKS
from trt_tui.core.network.quantized import may_be_negative
from trt_tui.core.network.steps import (
    LOW_FLOATS,
    Step,
    applied,
    dequantizes,
    limits,
    quantizes,
    read_step,
    rounded,
    spread,
)
from trt_tui.words import first_few, plural

_WIDE = (ir.DataType.INT16, ir.DataType.UINT16)

ASYMMETRIC = "a zero point other than 0"
UNSIGNED = "unsigned codes"
BIAS = "a DequantizeLinear on an int32 bias"
WIDE = "16-bit codes"
NARROW = "4-bit codes with one scale for the tensor"

_WAYS_OUT = {ASYMMETRIC: "the export widens the range to its larger side",
            UNSIGNED: "the export has the same codes signed",
            BIAS: "the export stores the bias in floats",
            WIDE: "the export leaves the tensor in floats",
            NARROW: "the export has them in 8 bits"}
"""What the typed export does, by what is refused of codes."""


@dataclass(frozen=True)
class Refusal:
    """A node that TensorRT refuses, and for what (see `way_out`)."""

    node: str
    what: str


def way_out(what: str) -> str:
    """What the typed export does about what is refused: of codes, or an operator in a float type."""
    return _WAYS_OUT.get(what, "the export has it in FP32")


def refused_type(node: ir.Node, types: Mapping[str, ir.DataType]) -> str:
    """What TensorRT refuses of the float type that an operator computes in; "" where it takes it.

    Args:
        types: The types of tensors, by name.
    """
    precision = LOW_FLOATS.get(types.get(node.outputs[0].name or "", ir.DataType.UNDEFINED)) if node.outputs else None
    if precision is None or node.domain or node.op_type not in TENSORRT_LACKS[precision]:
        return ""
    return f"{node.op_type} in {precision.label}"


def refusal(step: Step) -> str:
    """What TensorRT refuses of a step that quantizes or dequantizes; "" where it takes it."""
    if not step.known:
        return ""
    if step.codes is ir.DataType.INT32:
        return BIAS
    if step.codes in _WIDE:
        return WIDE
    if step.zero is None:
        return ""
    zero = step.zero.astype(np.float32)
    if step.codes is ir.DataType.UINT8 and (zero == 128).all():
        return UNSIGNED
    if step.codes in (ir.DataType.UINT8, ir.DataType.UINT4) or zero.any():
        return ASYMMETRIC
    return NARROW if step.codes is ir.DataType.INT4 and not zero.shape else ""


def refusals(nodes: Iterable[ir.Node], types: Mapping[str, ir.DataType]) -> tuple[Refusal, ...]:
    """All nodes that TensorRT refuses for their codes or for their float type, in order.

    Args:
        types: The types of tensors, by name.
    """
    return tuple(Refusal(node.name or "", what) for node in nodes if (what := _refused(node, types)))


def _refused(node: ir.Node, types: Mapping[str, ir.DataType]) -> str:
    return refusal(read_step(node)) if quantizes(node) or dequantizes(node) else refused_type(node, types)


def summary(found: Iterable[Refusal]) -> list[str]:
    """What is refused and the way out, a sentence for each kind, with the first nodes of it."""
    lines = []
    found = tuple(found)
    for what in dict.fromkeys((*_WAYS_OUT, *(one.what for one in found))):
        nodes = [one.node for one in found if one.what == what]
        if nodes:
            lines.append(f"TensorRT refuses {what} ({first_few(nodes, most=2)}); as given it is simulated, and "
                         f"{way_out(what)}.")
    return lines


def amend(graph: ir.Graph, written: Callable[[ir.Node], bool], types: Mapping[str, ir.DataType]) -> list[str]:
    """Replaces, in place, all that TensorRT refuses by what it takes; returns what was done, in words.

    Args:
        written: Whether a node is one of the file; others are left as they are.
        types: The types of the graph's tensors below FP32, by name.
    """
    found = {node: what for node in graph if written(node) and (what := _refused(node, types))}
    way = _WaysOut(graph)
    steps = {node: read_step(node) for node in found if quantizes(node) or dequantizes(node)}
    for node, what in found.items():
        if node in steps:
            way.take(node, steps[node], what)
        else:
            way.raise_to_fp32(node, types)
    way.drop_unread()
    counts = {what: sum(one == what for one in found.values())
              for what in dict.fromkeys((*_WAYS_OUT, *found.values()))}
    return [f"TensorRT refuses {what}, which the file has {plural(count, 'time')}: {way_out(what)}."
            for what, count in counts.items() if count]


def round_by_casts(graph: ir.Graph, types: Mapping[str, ir.DataType]) -> None:
    """Has every operator compute in FP32, in place, with Casts around it that round as its own types do: ONNX Runtime's
    CPU provider lacks most operators in BF16, and computes those in FP16 in FP32 without rounding between them.

    Args:
        types: The types of the graph's tensors below FP32, by name.
    """
    way = _WaysOut(graph)
    for node in list(graph):
        within = any(one.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for one in node.attributes.values())
        if not node.domain and node.op_type != "Cast" and not within:
            way.raise_to_fp32(node, types)


class _WaysOut:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._names = FreshNames(graph, taken=(node.name for node in graph if node.name))
        self._held: dict[tuple[str, str, int], ir.Value] = {}
        self._relus: dict[tuple[ir.Value, bool], ir.Value] = {}
        self._let_go: list[ir.Value] = []

    def take(self, node: ir.Node, step: Step, what: str) -> None:
        value = node.inputs[0]
        if value is None:
            return
        stored = constant_tensor(value) if dequantizes(node) else None
        if what == BIAS or stored is not None and what == WIDE:
            if stored is not None:
                self._replace(node, applied(step, stored.numpy()), step.dtype)
        elif what == WIDE:
            if dequantizes(node):
                quantize = value.producer()
                if quantize is not None and quantizes(quantize) and quantize.inputs[0] is not None:
                    self._relu(quantize, read_step(quantize), cut=True)
                    self._bypass(node, quantize.inputs[0])
        elif stored is not None:
            self._signed_weight(node, step, stored)
        else:
            self._signed(node, step, what)

    def raise_to_fp32(self, node: ir.Node, types: Mapping[str, ir.DataType]) -> None:
        """Puts Casts around a node that computes in a float type below FP32."""
        for index, value in enumerate(node.inputs):
            if value is not None and types.get(value.name or "") in LOW_FLOATS:
                cast = self._cast(value, ir.DataType.FLOAT, f"{value.name}__fp32")
                self._graph.insert_before(node, cast)
                node.replace_input_with(index, cast.outputs[0])
        for output in node.outputs:
            dtype = types.get(output.name or "")
            if dtype not in LOW_FLOATS or dtype is None:
                continue
            name = name_of(output)
            cast = self._cast(output, dtype, name)
            result = cast.outputs[0]
            self._graph.insert_after(node, cast)
            ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
            cast.replace_input_with(0, output)
            result.name, output.name = name, self._names.new(f"{name}__fp32")
            output.type = ir.TensorType(ir.DataType.FLOAT)

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
        cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))], name=self._names.new(f"{name}__cast"))
        result = cast.outputs[0]
        result.name, result.type, result.shape = self._names.new(name), ir.TensorType(dtype), value.shape
        return cast

    def _signed(self, node: ir.Node, step: Step, what: str) -> None:
        """Gives a node on an activation INT8 codes around 0."""
        assert step.scale is not None and step.zero is not None and step.codes is not None
        scale = step.scale
        if what != UNSIGNED:
            low, high = limits(step.codes)
            zero = step.zero.astype(np.float32)
            scale = np.maximum(high - zero, zero - low) * step.scale / np.float32(127)
            if quantizes(node):
                self._relu(node, step)
        self._give(node, scale.astype(np.float32))

    def _signed_weight(self, node: ir.Node, step: Step, stored: ir.TensorProtocol) -> None:
        """Gives a DequantizeLinear INT8 codes around 0 of the same weight."""
        assert step.scale is not None and step.zero is not None
        codes = stored.numpy().astype(np.int32)
        if step.codes is ir.DataType.UINT8 and (step.zero == 128).all():
            scale, signed = step.scale, codes - 128
        else:
            zero = spread(step.zero.astype(np.int32), codes.shape, step.axis, step.block)
            centred = codes - zero
            axis = step.axis % max(codes.ndim, 1)
            if step.block:
                most = np.maximum.reduceat(np.abs(centred), np.arange(0, codes.shape[axis], step.block), axis=axis)
            else:
                most = np.abs(centred).max(axis=tuple(one for one in range(codes.ndim)
                                                      if step.scale.size == 1 or one != axis))
            most = np.maximum(most, 1).astype(np.float32).reshape(step.scale.shape)
            factor = np.maximum(most / np.float32(127), 1)  # codes that fit stay as they are
            scale = (step.scale * factor).astype(np.float32)
            signed = np.clip(np.rint(centred / spread(factor, codes.shape, step.axis, step.block)), -128, 127)
        before = node.inputs[0]
        node.replace_input_with(0, self._new(np.ascontiguousarray(signed.astype(np.int8)), f"{node.name}__codes"))
        if before is not None:
            self._let_go.append(before)
        self._give(node, scale)

    def _give(self, node: ir.Node, scale: np.ndarray) -> None:
        old = node.inputs[1]
        assert old is not None, "a step that is known has a scale"
        stored = constant_tensor(old)
        floats = stored.dtype if stored is not None else ir.DataType.FLOAT
        held = scale.astype(floats.numpy())
        for index, array, word in ((1, held, "scale"), (2, np.zeros(scale.shape, np.int8), "zero_point")):
            before = node.inputs[index] if len(node.inputs) > index else None
            new = self._new(array, f"{name_of(old)}__{word}")
            if len(node.inputs) <= index:
                node.resize_inputs(index + 1)
            node.replace_input_with(index, new)
            if before is not None:
                self._let_go.append(before)
        if quantizes(node):
            node.outputs[0].type = ir.TensorType(ir.DataType.INT8)
            node.attributes.pop("output_dtype", None)

    def _relu(self, node: ir.Node, step: Step, cut: bool = False) -> None:
        """Puts back a Relu that a quantizer has left to a range that begins at 0.

        Args:
            cut: Whether the codes go, so that nothing saturates at 6 any more either (ReLU6).
        """
        source = node.inputs[0]
        if source is None or not may_be_negative(source) or not step.known or step.codes is None \
                or step.scale is None or step.zero is None:
            return
        low, high = limits(step.codes)
        if not (step.zero.astype(np.float32) == low).all():
            return
        six = cut and bool((np.abs((high - low) * step.scale - 6) < 0.01).all())
        if (source, six) not in self._relus:
            floats = (source.dtype or ir.DataType.FLOAT).numpy()
            bounds = [self._new(np.array(bound, floats), f"{source.name}__{bound}") for bound in (0, 6)] if six else []
            relu = ir.Node("", "Clip" if six else "Relu", [source, *bounds], name=self._names.new(f"{node.name}__relu"))
            relu.outputs[0].name = self._names.new(f"{source.name}__relu")
            relu.outputs[0].type, relu.outputs[0].shape = source.type, source.shape
            self._graph.insert_before(node, relu)
            self._relus[source, six] = relu.outputs[0]
        node.replace_input_with(0, self._relus[source, six])

    def _replace(self, node: ir.Node, array: np.ndarray, dtype: ir.DataType) -> None:
        """A constant in place of a node."""
        floats = rounded(array, dtype).astype(dtype.numpy())
        new = self._new(np.ascontiguousarray(floats), f"{name_of(node.outputs[0])}__float")
        self._bypass(node, new)

    def _bypass(self, node: ir.Node, value: ir.Value) -> None:
        output = node.outputs[0]
        if output.is_graph_output():
            keep = ir.Node("", "Identity", [value], name=self._names.new(f"{node.name}__identity"))
            keep.outputs[0].type, keep.outputs[0].shape = output.type, output.shape
            keep.outputs[0].name, output.name = output.name, self._names.new(f"{output.name}__as_in_file")
            self._graph.append(keep)
            for index, one in enumerate(self._graph.outputs):
                if one is output:
                    self._graph.outputs[index] = keep.outputs[0]
        output.replace_all_uses_with(value)
        self._let_go += [one for one in node.inputs if one is not None]
        self._graph.remove(node, safe=True)

    def _new(self, array: np.ndarray, name: str) -> ir.Value:
        key = name, str(array.dtype), hash(array.tobytes())
        if key not in self._held:
            fresh = self._names.new(name)
            tensor = ir.tensor(array, name=fresh)
            value = ir.Value(name=fresh, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape),
                             const_value=tensor)
            self._graph.register_initializer(value)
            self._held[key] = value
        return self._held[key]

    def drop_unread(self) -> None:
        """Takes out what nothing reads any more of what was let go."""
        while self._let_go:
            value = self._let_go.pop()
            node = value.producer()
            if value.uses() or value.is_graph_output():
                continue
            if node is not None and node.graph is self._graph:
                self._let_go += [one for one in node.inputs if one is not None]
                self._graph.remove(node, safe=True)
            elif self._graph.initializers.get(name_of(value)) is value:
                del self._graph.initializers[name_of(value)]
