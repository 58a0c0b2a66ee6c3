"""Random numbers that are the same in every run, in a model for ONNX Runtime.

A seed would not do: its generators go on from run to run, so that the second batch of one run would be given what the
first of another was. Numbers are taken from a fixed table instead, in order, from a place that a node's attributes
decide; nodes with the same attributes, seed included, draw the same.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_NUMBERS = 65521
"""Numbers in a table: a prime, so that no axis of a tensor is likely to repeat it."""


_CAST_LIKE, _RANGE = 15, 11
"""The opsets that have brought these operators."""


def without_chance(graph: onnx.GraphProto, drawn: Mapping[str, int], opset: int) -> None:
    """Replaces nodes by ones that make the same of the same shapes in each run, in subgraphs too.

    Args:
        drawn: The first results of the nodes to replace, with their element types as far as these are known, else
            FP32's. A Multinomial stays: nobody reads one but for its choice.
        opset: That of the model; below 11 all stay, since there is nothing to make numbers of.
    """
    if opset < _RANGE:
        return
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            for subgraph in ([attribute.g] if attribute.HasField("g") else attribute.graphs):
                without_chance(subgraph, drawn, opset)
        made = None
        if node.output and node.output[0] in drawn and node.op_type in _MAKERS:
            made = _Drawn(node, None if opset >= _CAST_LIKE else drawn[node.output[0]])
        if made is not None:
            _MAKERS[node.op_type](made)
        graph.node.extend([node] if made is None else made.nodes)


class _Drawn:
    """The nodes in place of one that draws.

    Args:
        element_type: Of what it yields; None where a CastLike can tell.
    """

    def __init__(self, node: onnx.NodeProto, element_type: int | None) -> None:
        self.node = node
        self._element_type = element_type
        self.attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        self.nodes: list[onnx.NodeProto] = []
        words = [node.op_type, *(f"{name}={value}" for name, value in sorted(self.attributes.items()))]
        self._offset = zlib.crc32(" ".join(words).encode()) % _NUMBERS

    def add(self, operator: str, inputs: Sequence[str], result: str = "", **attributes: Any) -> str:
        """Adds a node; its result, named after the node's where no name is given."""
        result = result or f"{self.node.output[0]}__chance_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], name=result, **attributes))
        return result

    def constant(self, array: np.ndarray | np.generic) -> str:
        """Adds a constant; its name."""
        return self.add("Constant", [], value=numpy_helper.from_array(np.asarray(array)))

    def shape(self) -> str:
        """The shape of what is drawn: of the first input, or as an attribute has it."""
        given = self.attributes.get("shape")
        return self.add("Shape", self.node.input[:1]) if given is None else self.constant(np.array(given, np.int64))

    def numbers(self, table: np.ndarray) -> str:
        """Numbers of a table, FP32, in the shape of what is drawn."""
        shape = self.shape()
        count = self.add("ReduceProd", [shape], keepdims=0)
        start = self.constant(np.int64(self._offset))
        places = self.add("Range", [start, self.add("Add", [start, count]), self.constant(np.int64(1))])
        places = self.add("Mod", [places, self.constant(np.int64(_NUMBERS))])
        return self.add("Reshape", [self.add("Gather", [self.constant(table), places]), shape])

    def like_data(self, value: str, result: str = "") -> str:
        """Adds a Cast to the type of the first input; its result."""
        if self._element_type is None:
            return self.add("CastLike", [value, self.node.input[0]], result)
        return self.add("Cast", [value], result, to=self._element_type)

    def typed(self, value: str) -> None:
        """Ends in the node's result, of the type that its attribute or its input says."""
        dtype = self.attributes.get("dtype")
        if dtype is None and self.node.input:
            self.like_data(value, self.node.output[0])
        else:
            self.add("Cast", [value], self.node.output[0], to=dtype or TensorProto.FLOAT)


def _normal(made: _Drawn) -> None:
    _scaled(made, _tables()[0], made.attributes.get("scale", 1.0), made.attributes.get("mean", 0.0))


def _uniform(made: _Drawn) -> None:
    low, high = made.attributes.get("low", 0.0), made.attributes.get("high", 1.0)
    _scaled(made, _tables()[1], high - low, low)


def _scaled(made: _Drawn, table: np.ndarray, scale: float, moved: float) -> None:
    made.typed(made.numbers((table * scale + moved).astype(np.float32)))


def _bernoulli(made: _Drawn) -> None:
    chance = made.add("Cast", made.node.input[:1], to=TensorProto.FLOAT)
    made.typed(made.add("Less", [made.numbers(_tables()[1]), chance]))


def _dropout(made: _Drawn) -> None:
    data, ratio, training = (*made.node.input, "")[:3]
    chance = made.add("Cast", [ratio], to=TensorProto.FLOAT) if ratio else made.constant(np.float32(0.5))
    chance = made.add("Where", [training, chance, made.constant(np.float32(0))])
    kept = made.add("GreaterOrEqual", [made.numbers(_tables()[1]), chance], (*made.node.output, "")[1])
    factor = made.add("Reciprocal", [made.add("Sub", [made.constant(np.float32(1)), chance])])
    factor = made.add("Where", [kept, factor, made.constant(np.float32(0))])
    made.add("Mul", [data, made.like_data(factor)], made.node.output[0])


_MAKERS = {"RandomNormal": _normal, "RandomNormalLike": _normal, "RandomUniform": _uniform,
           "RandomUniformLike": _uniform, "Bernoulli": _bernoulli, "Dropout": _dropout}


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Normal and uniform numbers, FP32."""
    random = np.random.default_rng(0)
    return random.standard_normal(_NUMBERS, np.float32), random.random(_NUMBERS, np.float32)
