"""The values of small tensors, and the sizes of tensors, that a file computes from stored numbers and from shapes.

onnx's shape inference finds no shape behind a Slice to ``size // 2 * 1``. Therefore the arithmetic is evaluated here,
and its results become constants of the model whose shapes onnx infers.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.inference import declared_shape, infer_graph_shapes
from trt_tui.core.network.layers import Layer, LayerKind, Shape
from trt_tui.core.network.model_editing import extract_subgraph_of_outputs, value_name
from trt_tui.core.network.opset_conversion import detach_big_weights
from trt_tui.errors import InputError
from trt_tui.formatting import byte_size_text

_MAX_ELEMENTS = 1024
"""The maximum number of elements of a tensor whose value is computed."""

_MAX_ROUNDS = 40
"""The maximum number of rounds; each round resolves the next unfolded Slice of a chain."""

MAX_GROWTH_BYTES = 2 << 30
"""The growth of the constants, in bytes, that is accepted for a file of any size."""

MAX_GROWTH_FACTOR = 16
"""The accepted growth of the constants as a multiple of the file size: 4-bit weights that are unpacked to FP32 twice.
"""

_SHRINKING_OPERATORS = frozenset(("Compress", "NonZero", "Unique"))
"""Operators whose results are not larger than their inputs, but have a size that onnx does not infer."""


_Operator = Callable[..., Any]
"""A function of the attributes and the inputs of a layer that returns its result."""


def evaluate_node(node: ir.Node, inputs: Sequence[np.ndarray | None], opset: int) -> list[np.ndarray]:
    """Returns the results of a node on arrays, computed by onnx's reference evaluator."""
    feed = {value_name(value): array for value, array in zip(node.inputs, inputs, strict=True) if value is not None}
    outputs = [value_name(value) for value in node.outputs]
    function = onnx.helper.make_function(
        "constants", "of", list(feed), outputs, [ir.to_proto(node)], [onnx.helper.make_opsetid("", opset)]
    )
    return [np.asarray(result) for result in ReferenceEvaluator(function).run(outputs, feed, attributes={})]


def _make_arithmetic(operation: Callable[..., Any], compute_size: Callable[[int, int], int | None]) -> _Operator:
    """Returns the operator of an arithmetic operation on arrays of floats, or of sizes that may be open."""

    def combine(first: object, second: object) -> int | None:
        size = compute_size(first, second) if isinstance(first, int) and isinstance(second, int) else None
        return size if size is not None and abs(size) < 1 << 62 else None

    combine_sizes = np.frompyfunc(combine, 2, 1)
    return lambda attributes, first, second: (
        operation(first, second) if first.dtype.kind == "f" else np.asarray(combine_sizes(first, second), object)
    )


def _cast(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Converts numbers; integers that may be open sizes stay as they are."""
    return data if data.dtype == object and dtype.kind == "i" else data.astype(dtype)


def _slice(attributes: object, data: np.ndarray, *limits: np.ndarray | None) -> np.ndarray:
    """Returns a Slice along one axis."""
    start, end, axis, step = (None if limit is None else int(limit.item()) for limit in (*limits, None, None)[:4])
    selected: np.ndarray = data[(*[slice(None)] * ((axis or 0) % data.ndim), slice(start, end, step))]
    return selected


_OPERATORS: Mapping[str, _Operator] = {
    "Shape": lambda attributes, sizes: sizes[attributes.get_int("start", 0) : attributes.get_int("end", len(sizes))],
    "Add": _make_arithmetic(np.add, operator.add),
    "Sub": _make_arithmetic(np.subtract, operator.sub),
    "Mul": _make_arithmetic(np.multiply, operator.mul),
    "Div": _make_arithmetic(
        np.divide, lambda dividend, divisor: dividend // divisor if dividend >= 0 < divisor else None
    ),
    "Pow": _make_arithmetic(np.power, lambda base, exponent: None),
    "Sqrt": lambda attributes, data: np.sqrt(data),
    "Reciprocal": lambda attributes, data: 1 / data,
    "Concat": lambda attributes, *parts: np.concatenate(parts, attributes.get_int("axis", 0)),
    "Gather": lambda attributes, data, indices: np.take(data, indices.astype(np.int64), attributes.get_int("axis", 0)),
    "Slice": _slice,
    "Unsqueeze": lambda attributes, data, axes: np.expand_dims(data, tuple(axes.tolist())),
    "Squeeze": lambda attributes, data, axes=None: np.squeeze(data, None if axes is None else tuple(axes.tolist())),
    "Reshape": lambda attributes, data, sizes: data.reshape(sizes.tolist()),
    "Identity": lambda attributes, data: data,
    "Cast": lambda attributes, data: _cast(data, ir.DataType(attributes["to"].as_int()).numpy()),
}
"""The operators of shape arithmetic."""


class SmallTensorValues:
    """The values of small tensors of a network: stored ones, and those that evaluated layers compute.

    A value is an array of numbers. For a tensor that depends on shapes, it is an array of objects: numbers, names of
    open sizes, and None for unknown numbers.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self._graph = graph
        self._values: dict[str, np.ndarray] = {}

    def find_value(self, tensor: str) -> np.ndarray | None:
        """Returns the value of a tensor; None if it is unknown or large."""
        constant = stored_tensor(self._graph.ir_value(tensor)) if self._graph.has_tensor(tensor) else None
        if constant is None:
            return self._values.get(tensor)
        return constant.numpy() if constant.size <= _MAX_ELEMENTS and constant.dtype != ir.DataType.STRING else None

    def find_integers(self, tensor: str) -> list[int] | None:
        """Returns the elements of a tensor; None if one of them is unknown or not an integer."""
        value = self.find_value(tensor)
        elements = [] if value is None else value.reshape(-1).tolist()
        return elements if value is not None and all(isinstance(element, int) for element in elements) else None

    def evaluate_layer(
        self, layer: Layer, find_shape: Callable[[str], Shape | None], *, any_operator: bool = False
    ) -> None:
        """Stores the results of a layer that are known and small.

        Args:
            any_operator: True to evaluate operators other than those of shape arithmetic too, if they have small
                results.
        """
        node, inputs = self._graph.node(layer.name), layer.inputs
        if layer.op_type == "Shape":
            shape = find_shape(inputs[0])
            operands = [None if shape is None else np.array(shape, object)]
        else:
            operands = [self.find_value(name) for name in inputs]
        if layer.domain or any(name and operand is None for name, operand in zip(inputs, operands, strict=True)):
            return
        try:
            if (evaluate := _OPERATORS.get(layer.op_type)) is not None:
                with np.errstate(all="ignore"):
                    results = [evaluate(node.attributes, *operands)]
            elif (
                any_operator
                and layer.outputs[0] not in self._values
                and (
                    layer.op_type in _SHRINKING_OPERATORS
                    or all(
                        count_elements(find_shape(name), _MAX_ELEMENTS + 1) <= _MAX_ELEMENTS for name in layer.outputs
                    )
                )
            ):
                results = evaluate_node(node, operands, self._graph.opset)
            else:
                return
        except Exception:  # the sizes are known only at run time, or contradict each other
            return
        for name, result in zip(layer.outputs, results, strict=False):
            value = np.asarray(result, None if isinstance(result, np.ndarray | np.generic) else object)
            if value.size <= _MAX_ELEMENTS:
                self._values[name] = value


def infer_folded_shapes(graph: LayerGraph, model: onnx.ModelProto, values: SmallTensorValues) -> dict[str, Shape]:
    """Folds the shape arithmetic of a model in place, and returns the shapes that onnx then infers, by tensor name.

    Args:
        graph: The layers of the model.
        values: Receives the values of small tensors.
    """
    shapes: dict[str, Shape] = {}
    for _ in range(_MAX_ROUNDS):
        del model.graph.value_info[:]
        try:
            inferred = infer_graph_shapes(model)
        except Exception:  # onnx stops at the first operator that it cannot infer; earlier shapes are kept
            break
        shapes |= {
            info.name: declared_shape(info)
            for info in (*inferred.input, *inferred.value_info, *inferred.output)
            if info.type.tensor_type.HasField("shape")
        }
        shapes |= {tensor.name: tuple(tensor.dims) for tensor in inferred.initializer}
        for layer in graph.layers:
            if layer.kind in (LayerKind.CONSTANT, LayerKind.SHAPE):
                values.evaluate_layer(layer, shapes.get, any_operator=True)
        folded = {
            node.output[0]: value
            for node in model.graph.node
            if node.op_type != "Constant"
            and values.find_integers(node.output[0]) is not None
            and (value := values.find_value(node.output[0])) is not None
        }
        if not folded:
            break
        nodes = [node for node in model.graph.node if node.output[0] not in folded]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        for name, value in folded.items():
            dtype = graph.ir_value(name).dtype or ir.DataType.INT64
            model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(dtype.numpy()), name))
    return shapes


class FoldedShapes:
    """The shapes of a network's tensors. If inference leaves a size open, the shape arithmetic is folded to find it.

    The arithmetic is folded at the first request for a tensor with an open size. All sizes of the network inputs except
    the batch must be fixed. In other networks the open sizes depend on the data.
    """

    def __init__(self, graph: LayerGraph, model: ir.Model) -> None:
        self._graph, self._model = graph, model
        self._has_fixed_inputs = all(
            isinstance(size, int) for info in graph.inputs for size in (info.shape or (None,) * 2)[1:]
        )
        self._values = SmallTensorValues(graph)

    def find_shape(self, tensor: str) -> Shape | None:
        """Returns the shape of a tensor; None if its rank is unknown."""
        shape = self._graph.shape(tensor)
        if not self._has_fixed_inputs or shape is not None and all(isinstance(size, int) for size in shape[1:]):
            return shape
        folded_shape = self._shape_by_tensor.get(tensor)
        return shape if folded_shape is None or shape is not None and len(folded_shape) != len(shape) else folded_shape

    def find_integer_values(self, tensor: str) -> list[int] | None:
        """Returns the values of an integer tensor that the file computes from fixed sizes; None for any other tensor."""
        return self._values.find_integers(tensor) if self._has_fixed_inputs and self._shape_by_tensor else None

    @cached_property
    def _shape_by_tensor(self) -> Mapping[str, Shape]:
        return infer_folded_shapes(self._graph, detach_big_weights(self._model)[0], self._values)


def count_elements(shape: Shape | None, unknown_count: int = 0) -> int:
    """Returns the number of elements of a shape; ``unknown_count`` if a size is open."""
    sizes = [size for size in shape or () if isinstance(size, int)]
    return unknown_count if shape is None or len(sizes) < len(shape) else math.prod(sizes)


def check_constant_growth(graph: LayerGraph, model: ir.Model, file_name: str, file_bytes: int) -> None:
    """Refuses a network whose computed constants need far more memory than the file.

    The growth of a layer is the size of its constant results minus the size of all its inputs, and at least 0. Sizes
    that depend on the values of large constants are unknown and do not count.

    Args:
        file_name: The name of the file, for messages.
        file_bytes: Size of the file and its external data.

    Raises:
        InputError: the constants grow too much; the error names the layer with the largest growth.
    """
    layers = [layer for layer in graph.layers if layer.kind is LayerKind.CONSTANT and layer.inputs]
    results = [name for layer in layers for name in layer.outputs if name]
    shapes = {name: graph.shape(name) for layer in layers for name in (*layer.inputs, *layer.outputs) if name}
    if open_results := [name for name in results if count_elements(shapes[name], -1) < 0]:
        constants = detach_big_weights(extract_subgraph_of_outputs(model, open_results))[0]
        shapes |= infer_folded_shapes(graph, constants, SmallTensorValues(graph))

    def count_bytes(tensors: Sequence[str]) -> int:
        dtypes = {name: graph.ir_value(name).dtype for name in tensors if name}
        return sum(
            math.ceil(count_elements(shapes[name]) * (4 if dtype is None else dtype.itemsize))
            for name, dtype in dtypes.items()
        )

    growth_bytes = {layer.name: max(0, count_bytes(layer.outputs) - count_bytes(layer.inputs)) for layer in layers}
    if sum(growth_bytes.values()) > max(MAX_GROWTH_BYTES, MAX_GROWTH_FACTOR * file_bytes):
        name = max(growth_bytes, key=growth_bytes.__getitem__)
        raise InputError(
            f"{file_name} computes constants that do not fit in memory",
            f"{name} ({graph.by_name[name].op_type}) needs {byte_size_text(growth_bytes[name])} from a file of "
            f"{byte_size_text(file_bytes)}",
            "Check the sizes at its inputs, and export the network again.",
        )
