"""Deterministic random numbers: the replacement of random operators by nodes with the same output in every execution.

A seed would not suffice: the generators of ONNX Runtime continue from one execution to the next. The numbers of a batch
would therefore depend on earlier executions. The replacing nodes read numbers in order from a fixed table, from an
offset that depends on the attributes of the original node. Nodes with the same attributes, seed included, get the same
numbers.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TABLE_SIZE = 65521
"""The number of values in a table of random numbers: a prime, so that a tensor axis is unlikely to repeat the table."""


_CAST_LIKE_OPSET, _RANGE_OPSET = 15, 11
"""The opsets that introduced CastLike and Range."""


def make_random_nodes_deterministic(graph: onnx.GraphProto, random_outputs: Mapping[str, int], opset: int) -> None:
    """Replaces random nodes by nodes that yield the same numbers for the same shapes in every execution, also in
    subgraphs.

    Args:
        random_outputs: The first outputs of the nodes to replace, with their element types; FP32 if the type is
            unknown. A Multinomial is not replaced, since networks use it only to choose at random.
        opset: The opset of the model. Below 11 no node is replaced, since Range does not exist.
    """
    if opset < _RANGE_OPSET:
        return
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            for subgraph in ([attribute.g] if attribute.HasField("g") else attribute.graphs):
                make_random_nodes_deterministic(subgraph, random_outputs, opset)
        replacement = None
        if node.output and node.output[0] in random_outputs and node.op_type in _REPLACERS:
            replacement = _RandomNodeReplacement(node,
                                                 None if opset >= _CAST_LIKE_OPSET else random_outputs[node.output[0]])
        if replacement is not None:
            _REPLACERS[node.op_type](replacement)
        graph.node.extend([node] if replacement is None else replacement.nodes)


class _RandomNodeReplacement:
    """The nodes that replace one random node.

    Args:
        element_type: The element type of the output; None if a CastLike can take the type from the input.
    """

    def __init__(self, node: onnx.NodeProto, element_type: int | None) -> None:
        self.node = node
        self._element_type = element_type
        self.attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        self.nodes: list[onnx.NodeProto] = []
        key_parts = [node.op_type, *(f"{name}={value}" for name, value in sorted(self.attributes.items()))]
        self._table_offset = zlib.crc32(" ".join(key_parts).encode()) % _TABLE_SIZE

    def add_node(self, operator: str, inputs: Sequence[str], result: str = "", **attributes: Any) -> str:
        """Adds a node and returns the name of its output.

        Args:
            result: The name of the output; "" for a name derived from the replaced node.
        """
        result = result or f"{self.node.output[0]}__chance_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], name=result, **attributes))
        return result

    def add_constant(self, array: np.ndarray | np.generic) -> str:
        return self.add_node("Constant", [], value=numpy_helper.from_array(np.asarray(array)))

    def add_output_shape(self) -> str:
        """Adds the nodes that yield the shape of the random tensor: that of the first input, or of the ``shape``
        attribute."""
        shape_attribute = self.attributes.get("shape")
        return self.add_node("Shape", self.node.input[:1]) if shape_attribute is None else self.add_constant(
            np.array(shape_attribute, np.int64))

    def add_random_tensor(self, number_table: np.ndarray) -> str:
        """Adds the nodes that read FP32 numbers from a table in the shape of the random tensor. Returns the name of the
        output."""
        shape = self.add_output_shape()
        count = self.add_node("ReduceProd", [shape], keepdims=0)
        start = self.add_constant(np.int64(self._table_offset))
        indices = self.add_node("Range", [start, self.add_node("Add", [start, count]), self.add_constant(np.int64(1))])
        indices = self.add_node("Mod", [indices, self.add_constant(np.int64(_TABLE_SIZE))])
        return self.add_node("Reshape", [self.add_node("Gather", [self.add_constant(number_table), indices]), shape])

    def add_cast_to_input_type(self, value: str, result: str = "") -> str:
        """Adds a Cast to the type of the first input and returns the name of its output."""
        if self._element_type is None:
            return self.add_node("CastLike", [value, self.node.input[0]], result)
        return self.add_node("Cast", [value], result, to=self._element_type)

    def add_cast_to_result_type(self, value: str) -> None:
        """Adds a Cast to the output of the replaced node, with the type of its ``dtype`` attribute or its first input.
        """
        dtype = self.attributes.get("dtype")
        if dtype is None and self.node.input:
            self.add_cast_to_input_type(value, self.node.output[0])
        else:
            self.add_node("Cast", [value], self.node.output[0], to=dtype or TensorProto.FLOAT)


def _replace_random_normal_node(replacement: _RandomNodeReplacement) -> None:
    _build_scaled_random_tensor(replacement,
                                _make_random_number_tables()[0], replacement.attributes.get("scale", 1.0),
                                replacement.attributes.get("mean", 0.0))


def _replace_random_uniform_node(replacement: _RandomNodeReplacement) -> None:
    low, high = replacement.attributes.get("low", 0.0), replacement.attributes.get("high", 1.0)
    _build_scaled_random_tensor(replacement, _make_random_number_tables()[1], high - low, low)


def _build_scaled_random_tensor(replacement: _RandomNodeReplacement, number_table: np.ndarray, scale: float,
                                offset: float) -> None:
    replacement.add_cast_to_result_type(
        replacement.add_random_tensor((number_table * scale + offset).astype(np.float32)))


def _replace_bernoulli_node(replacement: _RandomNodeReplacement) -> None:
    probability = replacement.add_node("Cast", replacement.node.input[:1], to=TensorProto.FLOAT)
    replacement.add_cast_to_result_type(
        replacement.add_node("Less", [replacement.add_random_tensor(_make_random_number_tables()[1]), probability]))


def _replace_dropout_node(replacement: _RandomNodeReplacement) -> None:
    data, ratio, training = (*replacement.node.input, "")[:3]
    probability = replacement.add_node("Cast", [ratio], to=TensorProto.FLOAT) if ratio else replacement.add_constant(
        np.float32(0.5))
    probability = replacement.add_node("Where", [training, probability, replacement.add_constant(np.float32(0))])
    mask = replacement.add_node("GreaterOrEqual",
                                [replacement.add_random_tensor(_make_random_number_tables()[1]), probability],
                                (*replacement.node.output, "")[1])
    factor = replacement.add_node("Reciprocal",
                                  [replacement.add_node("Sub", [replacement.add_constant(np.float32(1)), probability])])
    factor = replacement.add_node("Where", [mask, factor, replacement.add_constant(np.float32(0))])
    replacement.add_node("Mul", [data, replacement.add_cast_to_input_type(factor)], replacement.node.output[0])


_REPLACERS = {
    "RandomNormal": _replace_random_normal_node, "RandomNormalLike": _replace_random_normal_node,
    "RandomUniform": _replace_random_uniform_node, "RandomUniformLike": _replace_random_uniform_node,
    "Bernoulli": _replace_bernoulli_node, "Dropout": _replace_dropout_node
}


@functools.cache
def _make_random_number_tables() -> tuple[np.ndarray, np.ndarray]:
    """Returns the tables of normal and of uniform FP32 numbers."""
    random = np.random.default_rng(0)
    return random.standard_normal(_TABLE_SIZE, np.float32), random.random(_TABLE_SIZE, np.float32)
