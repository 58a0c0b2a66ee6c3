"""A network's precisions as its file has them: the model as it was read, beside the FP32 network made of it.

Layers are the same nodes in both, by name. What stands between a tensor of the FP32 network and a layer that reads it
(Casts, QuantizeLinear, DequantizeLinear) belongs to the layer that reads; a Q/DQ pair that several read stays while one
of them is as in the file.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.layers import AsGiven, Group, Layer
from trt_tui.core.network.operators import ANCHORS, COPIES, POINTWISE, REDUCTIONS
from trt_tui.core.network.refused import Refusal, refusal, refusals, refused_type
from trt_tui.core.network.steps import (
    FLOATS,
    LOW_FLOATS,
    WORDS,
    Step,
    applied,
    casts,
    dequantizes,
    quantizes,
    read_step,
    rounded,
)
from trt_tui.core.network.structure import schema_of
from trt_tui.core.precision import Precision

_EVALUATED = POINTWISE | REDUCTIONS | ANCHORS
"""Operators whose results on constants are computed here, none of which makes more of them than its operands say."""

_NARROW = ("FP4", "INT4", "FP8", "FP8 E5M2", "INT8", "INT16")
"""Codes from the fewest bits up, as `steps.WORDS` calls them."""


class Given:
    """What the file says; nothing of it may be changed.

    Args:
        model: As read: nodes named, functions inlined, opset at least the program's.
        stands_for: Tensors that the FP32 network alone has, and the tensor of the file that each stands for.
        made: Nodes that it alone has.

    Attributes:
        model: The same.
        stands_for: The same.
        made: The same.
        types: The type of each tensor of the file, as far as it follows from what the file says.
        replaced: Constants of the FP32 network that are another network's, by name.
    """

    def __init__(self, model: ir.Model, stands_for: Mapping[str, str], made: Collection[str]) -> None:
        graph = model.graph
        self.model = model
        self.stands_for = dict(stands_for)
        self.made = frozenset(made)
        self.replaced: frozenset[str] = frozenset()
        self._nodes = {node.name or "": node for node in graph}
        self._values = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values())}
        self._values.update((value.name, value) for node in graph for value in node.outputs if value.name)
        self.types = _types(graph, model.graph.opset_imports)
        self._steps: dict[str, Step] = {}
        self._chains: dict[tuple[str, int], tuple[Step, ...] | None] = {}
        self._expressions: dict[ir.Value, np.ndarray | None] = {}

    # -- tensors ------------------------------------------------------------------------------------------------

    def value(self, tensor: str) -> ir.Value | None:
        """The file's value for a tensor of the FP32 network; None where the file has none."""
        return self._values.get(self.stands_for.get(tensor, tensor))

    def dtype(self, tensor: str) -> ir.DataType:
        """The type that the file has a float tensor of the FP32 network in."""
        return self.types.get(self.stands_for.get(tensor, tensor), ir.DataType.FLOAT)

    def node(self, layer: str) -> ir.Node | None:
        """The file's node for a layer; None where the FP32 network alone has it."""
        return None if layer in self.made else self._nodes.get(layer)

    def read(self, layer: Layer, index: int) -> ir.Value | None:
        """What a layer reads in the file as one of its inputs."""
        node = self.node(layer.name)
        if node is not None:
            return node.inputs[index] if index < len(node.inputs) else None
        return self._values.get(layer.outputs[0])  # a network output behind a pair, or nothing

    # -- what stands between a tensor and a layer ---------------------------------------------------------------

    def step(self, node: ir.Node) -> Step:
        """What a Cast, QuantizeLinear or DequantizeLinear of the file does."""
        name = node.name or ""
        if name not in self._steps:
            self._steps[name] = read_step(node)
        return self._steps[name]

    def chain(self, layer: Layer, index: int) -> tuple[Step, ...]:
        """What the file does to a tensor before a layer reads it, first to last; () where nothing, or where the file
        computes the tensor otherwise."""
        key = layer.name, index
        if key not in self._chains:
            self._chains[key] = self._chain(layer, index)
        return self._chains[key] or ()

    def follows(self, layer: Layer, index: int) -> bool:
        """Whether a layer's input is, in the file, the tensor that it reads in the FP32 network, through steps."""
        self.chain(layer, index)
        return self._chains[layer.name, index] is not None

    def _chain(self, layer: Layer, index: int) -> tuple[Step, ...] | None:
        if layer.name in self.made and layer.outputs[0] not in self._values:
            return ()
        value, target = self.read(layer, index), self.value(layer.inputs[index])
        steps: list[Step] = []
        while value is not None and value is not target:
            node = value.producer()
            if node is None or not (casts(node) or quantizes(node) or dequantizes(node)):
                return None
            steps.append(self.step(node))
            value = node.inputs[0]
        return tuple(reversed(steps)) if value is not None else None

    def stored(self, tensor: str) -> Step | None:
        """The step that makes a constant of the FP32 network from the codes that the file stores."""
        value = self.value(tensor)
        node = value.producer() if value is not None else None
        if node is None or not dequantizes(node) or constant_tensor(node.inputs[0]) is None:
            return None
        return self.step(node)

    # -- constants ----------------------------------------------------------------------------------------------

    def constant(self, layer: Layer, index: int) -> np.ndarray | None:
        """The constant that a layer reads in the file, float32; None where it is the FP32 network's own."""
        value = self.read(layer, index)
        tensor = layer.inputs[index]
        if value is None or (value is self.value(tensor) and constant_tensor(value) is not None
                             and tensor not in self.replaced):
            return None
        return self._computed(value)

    def _computed(self, value: ir.Value) -> np.ndarray | None:
        """The value of a constant of the file."""
        stored = constant_tensor(value)
        if stored is not None:
            array = stored.numpy()
            return array.astype(np.float32) if stored.dtype in LOW_FLOATS else array
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None:
            return None
        if node.domain == "" and node.op_type in _EVALUATED:
            return self._evaluated(node, value)
        source = self._computed(node.inputs[0])
        if source is None:
            return None
        if casts(node) or quantizes(node) or dequantizes(node):
            step = self.step(node)
            return applied(step, source) if step.known else None
        return _copied(node, source) if node.domain == "" and node.op_type in COPIES else None

    def _evaluated(self, node: ir.Node, value: ir.Value) -> np.ndarray | None:
        """What an operator makes of constants of the file, with ONNX's own arithmetic; None where that cannot be told.
        """
        if value not in self._expressions:
            self._expressions[value] = None
            sources = [self._computed(one) if one is not None else None for one in node.inputs]
            if all(one is None or array is not None for one, array in zip(node.inputs, sources, strict=True)):
                made = _made_by(node, sources, self.model.graph.opset_imports.get("", 0))
                dtype = self.types.get(value.name or "", ir.DataType.FLOAT)
                self._expressions[value] = rounded(made, dtype) if made.dtype == np.float32 else made
        return self._expressions[value]

    # -- groups -------------------------------------------------------------------------------------------------

    def group(self, group: Group, layers: Mapping[str, Layer]) -> AsGiven:
        """What the file runs a fusion group in."""
        read: set[str] = set()
        operands: list[set[str]] = []
        refused: dict[str, str] = {}
        lowered = False
        for name in group.layers:
            layer = layers[name]
            if (node := self.node(name)) is not None and (what := refused_type(node, self.types)):
                refused[name] = what
            for index, tensor in enumerate(layer.inputs):
                if not tensor:
                    continue
                chain, stored = self.chain(layer, index), self.stored(tensor)
                steps = (*chain, stored) if stored is not None else chain
                refused |= {step.node: what for step in steps if (what := refusal(step))}
                words = {WORDS.get(codes, codes.name) for step in steps if (codes := step.codes) is not None}
                lowered |= bool(chain) or self.dtype(tensor) in LOW_FLOATS or bool(words - {"INT32"}) \
                    or not self.follows(layer, index)
                if layer.op_type in ANCHORS and index < 2:
                    operands.append(words)
                if index < 2 or layer.op_type not in ANCHORS:  # a bias of codes is added in 32 bits
                    read |= words
            lowered |= any(self.dtype(tensor) in LOW_FLOATS for tensor in layer.outputs if tensor)
        order = {word: place for place, word in enumerate(_NARROW)}
        narrowest = min(read - {"INT32"}, key=lambda word: (order.get(word, len(order)), word), default="")
        weights_only = bool(operands) and bool(narrowest) and not all(operands)
        floats = FLOATS.get(self.dtype(group.tail), Precision.FP32)
        around = floats if floats in group.allowed else Precision.FP32
        code = next((one for one in Precision if one in group.allowed and operands and one.label == narrowest
                     and weights_only is (one is Precision.INT4)), around)
        label = narrowest + " w" * weights_only if narrowest else floats.label
        return AsGiven(label, floats, code, not lowered, tuple(refused.items()))

    @cached_property
    def words(self) -> frozenset[str]:
        """The types of codes that the file holds, as `steps.WORDS` calls them."""
        return frozenset(WORDS.get(codes, codes.name) for node in self.model.graph if dequantizes(node)
                         if (codes := self.step(node).codes) is not None) - {"INT32"}

    @cached_property
    def float_words(self) -> frozenset[str]:
        """The float types below FP32 that the file holds tensors in."""
        return frozenset(LOW_FLOATS[dtype].label for dtype in self.types.values() if dtype in LOW_FLOATS)

    @property
    def codes_alone(self) -> int:
        """How many weights the file stores as codes alone, biases apart."""
        return sum(1 for node in self.model.graph if dequantizes(node) and self.step(node).codes != ir.DataType.INT32
                   and (stored := constant_tensor(node.inputs[0])) is not None and stored.size > 1
                   and not any(use.idx == 1 and dequantizes(use.node) for use in node.outputs[0].uses()))

    @cached_property
    def infinite(self) -> tuple[str, ...]:
        """Nodes that make codes, or read stored ones, with a scale that is infinite."""
        return tuple(node.name or "" for node in self.model.graph
                     if (quantizes(node) or dequantizes(node) and constant_tensor(node.inputs[0]) is not None)
                     and (scale := self.step(node).scale) is not None and np.isinf(scale).any())

    @cached_property
    def refused(self) -> tuple[Refusal, ...]:
        """What a strongly typed TensorRT refuses of the file's Q/DQ and of its float types."""
        return refusals(self.model.graph, self.types)

    def unknown(self) -> list[ir.Node]:
        """Nodes whose scale or zero point a run computes."""
        return [node for node in self.model.graph
                if (quantizes(node) or dequantizes(node)) and not self.step(node).known]


def _copied(node: ir.Node, array: np.ndarray) -> np.ndarray | None:
    """What a copy makes of a constant; None for one with operands of its own that are no constants."""
    attributes = node.attributes
    if node.op_type == "Transpose":
        axes = attributes["perm"].as_ints() if "perm" in attributes else None
        return np.ascontiguousarray(np.transpose(array, axes))
    if node.op_type in ("Identity", "Dropout"):
        return array
    operand = constant_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    if operand is None:
        return None
    sizes = [int(size) for size in operand.numpy().reshape(-1)]
    if node.op_type == "Reshape":
        return array.reshape([array.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)])
    if node.op_type == "Unsqueeze":
        return np.expand_dims(array, tuple(sizes))
    if node.op_type == "Squeeze":
        return np.squeeze(array, tuple(sizes))
    return None


def _types(graph: ir.Graph, opsets: Mapping[str, int]) -> dict[str, ir.DataType]:
    """The type of each tensor: as stored or made by a step, else that of the input it follows by its schema, else as
    the file says."""
    types: dict[str, ir.DataType] = {}
    for value in (*graph.inputs, *graph.initializers.values()):
        dtype = value.const_value.dtype if value.const_value is not None else value.dtype
        if dtype is not None:
            types[value.name or ""] = dtype
    for node in graph:
        for output, dtype in zip(node.outputs, _made_types(node, types, opsets), strict=True):
            if output.name and dtype is not None:
                types[output.name] = dtype
    return types


def _made_by(node: ir.Node, inputs: Sequence[np.ndarray | None], opset: int) -> np.ndarray:
    """What a node of one output makes of arrays."""
    names = [f"i{index}" if array is not None else "" for index, array in enumerate(inputs)]
    proto = onnx.NodeProto.FromString(ir.to_proto(node).SerializeToString())
    proto.ClearField("input")
    proto.ClearField("output")
    proto.input.extend(names)
    proto.output.append("made")
    fed = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    function = onnx.helper.make_function("constants", "of", list(fed), ["made"], [proto],
                                         [onnx.helper.make_opsetid("", opset)])
    made, = ReferenceEvaluator(function).run(["made"], fed, attributes={})
    return np.asarray(made)


def _made_types(node: ir.Node, types: Mapping[str, ir.DataType],
                opsets: Mapping[str, int]) -> list[ir.DataType | None]:
    said = [output.dtype for output in node.outputs]
    if casts(node):
        return [ir.DataType(node.attributes["to"].as_int())]
    if dequantizes(node) and len(node.inputs) > 1 and node.inputs[1] is not None:
        output = node.attributes.get_int("output_dtype", 0)
        return [ir.DataType(output) if output else types.get(node.inputs[1].name or "", said[0])]
    if quantizes(node):
        return [read_step(node).dtype, *said[1:]]
    if node.op_type == "Constant" and node.domain == "":
        stored = constant_tensor(node.outputs[0])
        return [stored.dtype if stored is not None else said[0]]
    schema = schema_of(node.op_type, node.domain, opsets.get(node.domain))
    if schema is None:
        return said
    by_word: dict[str, ir.DataType] = {}
    for index, value in enumerate(node.inputs):
        if value is not None and (dtype := types.get(value.name or "")) is not None and schema.inputs:
            by_word.setdefault(schema.inputs[min(index, len(schema.inputs) - 1)].type_str, dtype)
    return [by_word.get(schema.outputs[min(index, len(schema.outputs) - 1)].type_str, dtype)
            for index, dtype in enumerate(said)]
