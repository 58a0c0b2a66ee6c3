"""Q/DQ pairs of a quantized network taken out, which leaves the FP32 network that it was made from.

What the file has in place of them is kept beside it (`trt_tui.core.network.given`).
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.naming import FreshNames, name_of
from trt_tui.core.network.steps import WORDS, Step, applied, dequantizes, limits, quantizes, read_step
from trt_tui.words import plural


@dataclass
class Pairs:
    """What was found when Q/DQ pairs were taken out.

    Attributes:
        ranges: amax of activation tensors that carried pairs, by tensor name.
        stands_for: Tensors that are new, by name, and the tensor of the file that each stands for.
        made: Names of nodes that are new.
        found: Whether there was anything to take out.
        notes: One sentence for each change.
    """

    ranges: dict[str, float] = field(default_factory=dict)
    stands_for: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    found: bool = False
    notes: list[str] = field(default_factory=list)


def take_out_pairs(graph: ir.Graph) -> Pairs:
    """Takes Q/DQ pairs out of the graph, in place, and returns what they said.

    A DequantizeLinear on a constant becomes what it computes.

    Raises:
        InputError: a node's scale, zero point or blocks make no sense; names it.
    """
    found = Pairs()
    sources: dict[ir.Node, ir.Value] = {}
    activations = _Activations(graph)
    for node in [one for one in graph if dequantizes(one)]:
        step = read_step(node)
        codes = node.inputs[0]
        quantize = codes.producer() if codes is not None else None
        if quantize is None or codes is not quantize.outputs[0] or not quantizes(quantize):
            stored = constant_tensor(codes)
            if stored is not None:
                found.found |= _fold_dequantize(graph, node, stored, step)
            continue
        read_step(quantize)
        source = sources.get(quantize) or quantize.inputs[0]
        if source is None:  # an input that the call of a local function leaves out
            continue
        if step.known and step.scale is not None and step.scale.ndim == 0 \
                and np.isfinite(step.scale) and constant_tensor(source) is None:
            low, high = _quantized_range(step)
            if low == 0 and quantize not in sources and may_be_negative(source):
                sources[quantize] = behind = activations.behind(source, high)
                found.stands_for[name_of(behind)] = name_of(source)
                source = behind
            amax = max(high, -low)
            name = name_of(source)
            found.ranges[name] = max(amax, found.ranges.get(name, 0.0))
        found.found = True
        made = _bypass(graph, node.outputs[0], source)
        if made:
            found.made.add(made)
        _remove(graph, node)
        if not any(output.uses() or output.is_graph_output() for output in quantize.outputs):
            graph.remove(quantize, safe=True)
    found.made |= activations.made
    if sources:
        found.notes.append(f"{plural(len(sources), 'activation')} restored as Relu or Clip: the quantizer left them to "
                           "a Q/DQ pair whose range cuts off what is below 0.")
    return found


def _remove(graph: ir.Graph, node: ir.Node) -> None:
    """Removes a node, and what computed its scale where nothing else reads that."""
    scale = node.inputs[1].producer() if len(node.inputs) > 1 and node.inputs[1] is not None else None
    graph.remove(node, safe=True)
    if scale is not None and dequantizes(scale) and not scale.outputs[0].uses() \
            and not scale.outputs[0].is_graph_output():
        graph.remove(scale, safe=True)


def _fold_dequantize(graph: ir.Graph, node: ir.Node, stored: ir.TensorProtocol, step: Step) -> bool:
    """Puts an FP32 initializer, computed when somebody reads it, in place of a DequantizeLinear on a constant; returns
    whether it could be."""
    output = node.outputs[0]
    if stored.dtype not in WORDS or not step.known or output.is_graph_output():
        return False
    shape = ir.Shape(stored.shape.numpy())
    value = ir.Value(name=output.name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
    value.const_value = ir.LazyTensor(lambda: ir.tensor(np.ascontiguousarray(applied(step, stored.numpy()))),
                                      dtype=ir.DataType.FLOAT, shape=shape, cache=True, name=output.name)
    output.name = f"{output.name}__dequantized"
    output.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.register_initializer(value)
    return True


def _quantized_range(step: Step) -> tuple[float, float]:
    """The least and the largest value that a Q/DQ pair lets through, without the code -128 where 0 is the middle."""
    assert step.scale is not None and step.zero is not None and step.codes is not None
    scale, point = float(step.scale), float(step.zero)
    low, high = (limit - point for limit in limits(step.codes))
    return scale * (-high if low == -high - 1 else low), scale * high


def may_be_negative(value: ir.Value) -> bool:
    """Whether a Conv, MatMul or similar operator computes a value; a quantizer drops a Relu behind these."""
    node = value.producer()
    return node is not None and node.op_type in (
        "Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "MatMul", "Sub")


class _Activations:
    """The activations that a quantizer left to the ranges of its pairs, put back: one of a kind for each tensor.

    Attributes:
        made: Names of the nodes.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self.made: set[str] = set()
        self._known: dict[tuple[ir.Value, str], ir.Value] = {}

    @cached_property
    def _names(self) -> FreshNames:
        return FreshNames(self._graph)

    @cached_property
    def _nodes(self) -> FreshNames:
        return FreshNames(self._graph, taken=(node.name for node in self._graph if node.name))

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
        node = ir.Node("", operator, inputs, name=self._nodes.new(f"{producer.name}__relu"),
                       metadata_props=dict(producer.metadata_props))
        output = node.outputs[0]
        output.name = self._names.new(f"{value.name}__relu")
        output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        node.meta.update(producer.meta)
        self._graph.insert_after(producer, node)
        self.made.add(node.name or "")
        return output


def _bypass(graph: ir.Graph, old: ir.Value, new: ir.Value) -> str:
    """Lets everything that used ``old`` use ``new``; a graph output keeps its name through an Identity, whose name is
    returned."""
    made = ""
    if old.is_graph_output():
        name = old.name
        old.name = f"{name}__dequantized"
        made = FreshNames(graph, taken=(node.name for node in graph if node.name)).new(f"{name}__output")
        identity = ir.Node("", "Identity", [new], name=made)
        identity.outputs[0].name = name
        identity.outputs[0].shape, identity.outputs[0].type = old.shape, old.type
        graph.append(identity)
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = identity.outputs[0]
    old.replace_all_uses_with(new)
    return made
