"""The shapes of tensors in networks whose shape arithmetic the exporter did not fold.

onnx's shape inference finds no shape behind a Slice to ``size // 2 * 1``. Therefore this module evaluates the shape
arithmetic and replaces it by constants.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from trt_tui.core.network.graph import count_macs
from trt_tui.core.network.inference import declared_shape, infer_graph_shapes
from trt_tui.core.network.layers import NetworkOutline, Shape
from trt_tui.core.network.network import Network
from trt_tui.core.network.opset_conversion import detach_big_weights

_MAX_ROUNDS = 40
"""The maximum number of rounds; each round resolves the next unfolded Slice of a chain."""

_MAX_LAYERS = 5_000
"""The maximum number of layers of a network whose shapes are folded, which takes about a second."""

_MAX_SHAPE_ELEMENTS = 64
"""The maximum number of elements of a tensor that is treated as a shape."""


class FoldedShapes:
    """The shapes of a network's tensors. If inference leaves a size open, the shape arithmetic is folded to find it.

    The arithmetic is folded at the first request for a tensor with an open size. All sizes of the network inputs except
    the batch must be fixed. In other networks the open sizes depend on the data.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._has_fixed_inputs = all(
            isinstance(size, int) for info in network.inputs for size in (info.shape or (None,) * 2)[1:]
        )
        self._values: dict[str, np.ndarray] = {}

    def find_shape(self, tensor: str) -> Shape | None:
        """Returns the shape of a tensor; None if its rank is unknown."""
        shape = self._network.shape(tensor)
        if not self._has_fixed_inputs or shape is not None and all(isinstance(size, int) for size in shape[1:]):
            return shape
        folded_shape = self._shape_by_tensor.get(tensor)
        return shape if folded_shape is None or shape is not None and len(folded_shape) != len(shape) else folded_shape

    def find_integer_values(self, tensor: str) -> list[int] | None:
        """Returns the values of an integer tensor that the file computes from fixed sizes; None for any other tensor."""
        if not self._has_fixed_inputs or tensor not in self._shape_by_tensor or tensor not in self._values:
            return None
        return [int(number) for number in self._values[tensor].reshape(-1)]

    @cached_property
    def _shape_by_tensor(self) -> Mapping[str, Shape]:
        return _infer_folded_shapes(detach_big_weights(self._network.model)[0], self._values)


def build_outline_for_input_sizes(network: Network, input_sizes: Mapping[str, Sequence[int]]) -> NetworkOutline:
    """Returns the network outline with the shapes and multiply-accumulates that follow from the given input sizes.

    Shapes and counts that the file already determines are kept.

    Args:
        input_sizes: Sizes by input name. If all inputs with an open first axis share its size, that size is a batch and
            counts as 1.
    """
    outline = network.build_outline()
    if len(outline.layers) > _MAX_LAYERS or all(layer.macs is not None for layer in outline.layers):
        return outline
    open_batch_inputs = [info.name for info in network.inputs if info.shape and not isinstance(info.shape[0], int)]
    is_batched = len({tuple(input_sizes[name][:1]) for name in open_batch_inputs if name in input_sizes}) == 1
    model, _ = detach_big_weights(network.model)
    for info in model.graph.input:
        for axis, (dim, size) in enumerate(
            zip(info.type.tensor_type.shape.dim, input_sizes.get(info.name, ()), strict=False)
        ):
            if not dim.HasField("dim_value"):
                dim.dim_value = 1 if is_batched and not axis else size
    shape_by_tensor = _infer_folded_shapes(model, {})
    layers = tuple(
        layer
        if layer.macs is not None
        else replace(
            layer, macs=count_macs(network.node(layer.name), lambda value: shape_by_tensor.get(value.name or ""))
        )
        for layer in outline.layers
    )
    shapes = {
        name: shape_by_tensor.get(name, shape)
        if shape is None or None in shape[1:] or any(isinstance(size, str) for size in shape[1:])
        else shape
        for name, shape in outline.shapes.items()
    }
    return replace(outline, layers=layers, shapes=shapes)


def _infer_folded_shapes(model: onnx.ModelProto, folded_values: dict[str, np.ndarray]) -> dict[str, Shape]:
    """Folds the shape arithmetic of a model in place, and returns the shapes that onnx then infers, by tensor name.

    Args:
        folded_values: Receives the values of the folded tensors, by name.
    """
    shapes: dict[str, Shape] = {}
    for _ in range(_MAX_ROUNDS):
        del model.graph.value_info[:]
        try:
            graph = infer_graph_shapes(model)
        except Exception:  # onnx stops at the first operator that it cannot infer; earlier shapes are kept
            break
        shapes |= {
            info.name: declared_shape(info)
            for info in (*graph.input, *graph.value_info, *graph.output)
            if info.type.tensor_type.HasField("shape")
        }
        shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
        previous_count = len(folded_values)
        _fold_shape_layers(model.graph, shapes, folded_values)
        if len(folded_values) == previous_count:
            break
    return shapes


def _fold_shape_layers(
    graph: onnx.GraphProto, shapes: Mapping[str, Shape], folded_values: dict[str, np.ndarray]
) -> None:
    """Replaces layers that compute known shapes by constants, in place.

    Args:
        folded_values: Receives the values of the folded tensors, by name.
    """
    stored_tensors = {tensor.name: tensor for tensor in graph.initializer}
    stored_tensors.update(
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant" and not node.domain
        for attribute in node.attribute
        if attribute.name == "value"
    )
    values = {
        name: onnx.numpy_helper.to_array(tensor)
        for name, tensor in stored_tensors.items()
        if tensor.data_type == onnx.TensorProto.INT64 and int(np.prod(tensor.dims)) <= _MAX_SHAPE_ELEMENTS
    }
    kept_nodes = []
    for node in graph.node:
        value = _evaluate_shape_node(node, values, shapes)
        if value is not None:
            values[node.output[0]] = value
        if value is None or np.isnan(value.astype(np.float64)).any():
            kept_nodes.append(node)
        else:
            folded_values[node.output[0]] = value
            graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.int64), node.output[0]))
    if len(kept_nodes) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept_nodes)


def _evaluate_shape_node(
    node: onnx.NodeProto, values: Mapping[str, np.ndarray], shapes: Mapping[str, Shape]
) -> np.ndarray | None:
    """Returns the result of a node of shape arithmetic, with NaN for unknown sizes; None for any other node."""
    if node.domain or len(node.output) != 1:
        return None
    attributes: dict[str, Any] = {attr.name: onnx.helper.get_attribute_value(attr) for attr in node.attribute}
    if node.op_type == "Shape":
        shape = shapes.get(node.input[0])
        sizes = None if shape is None else [size if isinstance(size, int) else np.nan for size in shape]
        return (
            None if sizes is None else np.array(sizes[attributes.get("start", 0) : attributes.get("end")], np.float64)
        )
    operator = _SHAPE_OPERATORS.get(node.op_type)
    if operator is None or any(name not in values for name in node.input if name):
        return None
    try:
        return np.asarray(operator(attributes, *(values[name] for name in node.input if name)))
    except (IndexError, ValueError):  # the sizes are known only at run time
        return None


_SHAPE_OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    "Add": lambda attributes, first, second: first + second,
    "Sub": lambda attributes, first, second: first - second,
    "Mul": lambda attributes, first, second: first * second,
    "Div": lambda attributes, dividend, divisor: np.trunc(dividend / np.where(divisor == 0, np.nan, divisor)),
    "Gather": lambda attributes, data, indices: np.take(data, indices.astype(np.int64), axis=attributes.get("axis", 0)),
    "Concat": lambda attributes, *pieces: np.concatenate(pieces, axis=attributes["axis"]),
    "Unsqueeze": lambda attributes, data, axes: np.expand_dims(data, tuple(int(axis) for axis in axes)),
    "Squeeze": lambda attributes, data, *axes: np.squeeze(data),
    "Identity": lambda attributes, data: data,
}
