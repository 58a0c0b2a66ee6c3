"""Shapes and types of tensors, inferred by onnx, from neighbouring operators, and from plugin libraries; the values of
small tensors, and the sizes of tensors, that a file computes from stored numbers and from shapes.

onnx's shape inference finds no shape behind a Slice to ``size // 2 * 1``. Therefore the arithmetic is evaluated here,
and its results become constants of the model whose shapes onnx infers.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from trt_tui.core.network.graph import LayerGraph, stored_tensor
from trt_tui.core.network.layers import Layer, LayerKind, Shape
from trt_tui.core.network.model_editing import collect_by_key, extract_subgraph_of_outputs, value_name
from trt_tui.core.network.model_file import get_onnx_schema
from trt_tui.core.network.operators import RUNTIME_ONLY_OPERATORS, is_plugin
from trt_tui.core.network.opset_conversion import detach_big_weights
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError
from trt_tui.formatting import byte_size_text

_MAX_FOLLOWED_ELEMENTS = 1 << 16
"""The maximum number of elements of a tensor whose values onnx's shape inference may propagate one by one.

Ten million elements take 9 s and hundreds of MB."""

_LENGTH_KEEPING_OPERATORS = frozenset("Add Cast Identity Mul Squeeze Sub Unsqueeze".split())
"""Operators whose values onnx's shape inference propagates and that keep the number of elements."""

_INPUT_TYPED_OPERATORS = {
    "": RUNTIME_ONLY_OPERATORS,
    "com.microsoft": frozenset(
        "Attention BiasAdd BiasGelu BiasSoftmax BiasSplitGelu DecoderMaskedMultiHeadAttention FastGelu FusedConv FusedGemm "
        "FusedMatMul FusedMatMulActivation Gelu GroupNorm GroupQueryAttention MultiHeadAttention NhwcFusedConv NhwcMaxPool "
        "PackedAttention PackedMultiHeadAttention QuickGelu RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm "
        "SkipLayerNormalization SkipSimplifiedLayerNormalization TransposeMatMul".split()
    ),
}
"""Operators of ONNX Runtime whose first result has the type of their first input, by domain; its optimizer writes them.
"""


def infer_shapes(model: ir.Model) -> str:
    """Sets all shapes and types that onnx can infer, and returns onnx's error message; "" if there was no error.

    `onnx_ir.passes.common.ShapeInferencePass` turns types of sequences into tensors, and only logs its failures.
    """
    try:
        graph = infer_graph_shapes(detach_big_weights(model)[0])
    except Exception as error:
        return str(error).strip() or type(error).__name__
    info_by_name = {info.name: info for info in (*graph.value_info, *graph.output)}
    for node in model.graph:
        for value in node.outputs:
            if value.name in info_by_name:
                ir.serde.deserialize_value_info_proto(info_by_name[value.name], value)
    return ""


_CONTRADICTION_PATTERN = re.compile(
    r"\(op_type:(?P<operator>[^,)]+)(?:, node name: (?P<name>.*?))?\): \[ShapeInferenceError\] (?P<cause>"
    r"(?:Inferred shape and existing shape differ|Dimension mismatch in unification|Incompatible dimensions).*)"
)
"""The error message of onnx's strict shape inference about contradicting sizes."""


def check_declared_sizes(model: ir.Model, file_name: str) -> None:
    """Refuses a model whose declared tensor sizes contradict its operators.

    Raises:
        InputError: two sizes contradict each other; the error has onnx's message, with the node and the sizes.
    """
    try:
        proto = detach_big_weights(model)[0]
        onnx.shape_inference.infer_shapes(
            proto, strict_mode=True, data_prop=_count_propagated_elements(proto.graph) <= _MAX_FOLLOWED_ELEMENTS
        )
    except Exception as error:  # onnx also stops at unknown operators and types
        if (contradiction := _CONTRADICTION_PATTERN.search(str(error))) is not None:
            operator, name, cause = contradiction.groups()
            raise InputError(
                f"{file_name} declares a wrong size",
                f"{operator} {name or ''}: {cause}",
                "Correct the declared shapes, or export the network again.",
            ) from None


def infer_graph_shapes(model: onnx.ModelProto) -> onnx.GraphProto:
    """Returns the graph of a model with all shapes and types that onnx infers. Big weights are left out.

    Raises:
        Exception: any error that onnx raises for a model that it cannot infer.
    """
    return onnx.shape_inference.infer_shapes(
        model, data_prop=_count_propagated_elements(model.graph) <= _MAX_FOLLOWED_ELEMENTS
    ).graph


def declared_shape(value_info: onnx.ValueInfoProto) -> Shape:
    return tuple(
        size.dim_value if size.HasField("dim_value") else size.dim_param or None
        for size in value_info.type.tensor_type.shape.dim
    )


def _count_propagated_elements(graph: onnx.GraphProto) -> float:
    """Returns the maximum number of values of one tensor that onnx's shape inference would propagate.

    Long tensors come from Range nodes and from Concats.
    """
    stored_tensors = {item.name: item for item in graph.initializer}
    stored_tensors.update(
        (node.output[0], node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t")
    )
    lengths = {name: float(item.dims[0]) for name, item in stored_tensors.items() if len(item.dims) == 1}
    max_length = 0.0
    for node in graph.node:
        length = 1.0
        if node.op_type == "Range":
            length = _range_operator_length(node, stored_tensors)
            max_length = max(max_length, length)
        elif node.op_type == "Concat" and any(item.name == "axis" and item.i == 0 for item in node.attribute):
            length = min(sum(lengths.get(name, 1.0) for name in node.input), 2.0 * _MAX_FOLLOWED_ELEMENTS)
            max_length = max(max_length, length)
        elif node.op_type in _LENGTH_KEEPING_OPERATORS:
            length = max(lengths.get(name, 1.0) for name in node.input)
        if length > 1:
            lengths.update((name, length) for name in node.output)
    return max_length


def _range_operator_length(node: onnx.NodeProto, stored_tensors: Mapping[str, onnx.TensorProto]) -> float:
    """Returns the number of elements of a Range with stored limits; 1 if a limit is computed."""
    limits = [onnx.numpy_helper.to_array(stored_tensors[name]) for name in node.input if name in stored_tensors]
    if len(limits) < 3 or any(limit_array.size != 1 for limit_array in limits):
        return 1.0
    start, limit, step = (float(limit_array.reshape(())) for limit_array in limits)
    return math.inf if step == 0 else (limit - start) / step


def propagate_types(model: ir.Model) -> bool:
    """Sets the types of untyped tensors from the schemas of the neighbouring operators; returns True if any type was
    set.

    If a schema requires equal types for two tensors, the untyped one gets the type of the other.
    """
    opset = model.graph.opset_imports.get("", 0)
    pending = {
        node: type_groups
        for node in model.graph
        if (type_groups := list(_iterate_values_of_same_type(node, opset)))
        and any(value.dtype is None for _, values in type_groups for value in values)
    }
    has_changed = False
    queue = list(pending)
    while queue:
        node = queue.pop()
        for dtype, values in pending[node]:
            known_type = dtype or next((value.dtype for value in values if value.dtype is not None), None)
            for value in values:
                if value.dtype is None and known_type is not None:
                    value.type, has_changed = ir.TensorType(known_type), True
                    neighbours = (value.producer(), *(use.node for use in value.uses()))
                    queue.extend(neighbour for neighbour in neighbours if neighbour in pending)
    return has_changed


def _iterate_values_of_same_type(node: ir.Node, opset: int) -> Iterator[tuple[ir.DataType | None, list[ir.Value]]]:
    """Yields sets of a node's tensors that must have equal types, each with the type if only one is allowed."""
    if node.op_type in _INPUT_TYPED_OPERATORS.get(node.domain, ()):
        if node.inputs and node.inputs[0] is not None:
            yield None, [node.inputs[0], node.outputs[0]]
        return
    if node.domain or not onnx.defs.has(node.op_type):
        return
    inputs, outputs, type_by_parameter = _find_type_parameters(node.op_type, opset, len(node.inputs), len(node.outputs))
    values_by_parameter = collect_by_key(
        (name, value)
        for name, value in (*zip(inputs, node.inputs, strict=True), *zip(outputs, node.outputs, strict=True))
        if name and value is not None
    )
    for name, values in values_by_parameter.items():
        yield type_by_parameter.get(name), values


@functools.cache
def _find_type_parameters(
    operator: str, opset: int, input_count: int, output_count: int
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, ir.DataType]]:
    """Returns the schema's type parameter of each input and each output, and the type of each parameter with only one
    allowed type.

    The parameter is "" for an input or output of any type.
    """
    schema = get_onnx_schema(operator, opset)
    allowed_types = {
        constraint.type_param_str: list(constraint.allowed_type_strs) for constraint in schema.type_constraints
    }

    def list_type_parameters(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> tuple[str, ...]:
        type_parameters = []
        for index in range(count):
            parameter = parameters[min(index, len(parameters) - 1)]
            fits = index < len(parameters) or parameter.is_homogeneous
            kinds = allowed_types.get(parameter.type_str, [parameter.type_str])
            type_parameters.append(
                parameter.type_str if fits and all(kind.startswith("tensor(") for kind in kinds) else ""
            )
        return tuple(type_parameters)

    type_by_parameter = {
        name: types[0]
        for name in (
            *list_type_parameters(schema.inputs, input_count),
            *list_type_parameters(schema.outputs, output_count),
        )
        if name and len(types := allowed_types.get(name, [name])) == 1
    }
    return (
        list_type_parameters(schema.inputs, input_count),
        list_type_parameters(schema.outputs, output_count),
        {
            name: ir.DataType[type_text.removeprefix("tensor(").removesuffix(")").upper()]
            for name, type_text in type_by_parameter.items()
        },
    )


def infer_plugin_types(model: ir.Model, backend: Backend) -> None:
    """Sets the types and shapes of plugin outputs, and of all tensors computed from them, by means of a backend.

    The backend must have loaded the libraries of the plugins.

    Raises:
        InputError: the backend does not accept a plugin; the error names the node.
    """
    plugin_values = [value for node in model.graph if is_plugin(node) for value in node.outputs if value.name]
    if not plugin_values:
        return
    names = [value.name or "" for value in plugin_values]
    try:
        with backend.load(extract_subgraph_of_outputs(model, names), low_memory=True) as runner:
            info_by_name = {info.name: info for info in runner.outputs}
    except InputError as error:
        node = next((node for node in model.graph if is_plugin(node) and node.op_type in error.cause), None)
        node_text = f": node {node.name} ({node.op_type})" if node is not None else ""
        raise InputError(
            f"{error.title}{node_text}",
            error.cause,
            "Name the library of the operator with --ort-ops (may "
            "be repeated); without it the simulation ends before "
            "the node.",
        ) from None
    for value in plugin_values:
        info = info_by_name[value.name or ""]
        if info.dtype != np.dtype(object):
            value.type = ir.TensorType(ir.DataType.from_numpy(info.dtype))
            value.shape = ir.Shape(info.shape) if info.shape else value.shape
    infer_shapes(model)


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
