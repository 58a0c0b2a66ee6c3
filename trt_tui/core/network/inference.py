"""Shapes and types of tensors, inferred by onnx, from neighbouring operators, and from plugin libraries."""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer, LayerKind, Shape
from trt_tui.core.network.model_editing import collect_by_key, extract_subgraph_of_outputs
from trt_tui.core.network.operators import RUNTIME_ONLY_OPERATORS, is_plugin
from trt_tui.core.network.opset_conversion import detach_big_weights
from trt_tui.core.network.structure_check import get_onnx_schema
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


MAX_GROWTH_BYTES = 2 << 30
"""The growth of the constants, in bytes, that is accepted for a file of any size."""

MAX_GROWTH_FACTOR = 16
"""The accepted growth of the constants as a multiple of the file size: 4-bit weights that are unpacked to FP32 twice.
"""

_MAX_SMALL_ELEMENTS = 64
"""The maximum number of elements of a tensor whose values are evaluated: sizes, repeats, limits."""

_SHRINKING_OPERATORS = frozenset(("Compress", "NonZero", "Unique"))
"""Operators whose results are not larger than their inputs, but have a size that onnx does not infer."""


def check_constant_growth(graph: LayerGraph, opsets: Mapping[str, int], file_name: str, file_bytes: int) -> None:
    """Refuses a network whose computed constants need far more memory than the file.

    The growth of a layer is the size of its constant results minus the size of all its inputs, and at least 0. Sizes
    are inferred. If that fails, the small constants that determine them are computed. Sizes that depend on the values
    of large constants are unknown and do not count.

    Args:
        opsets: Opsets by domain.
        file_name: The name of the file, for messages.
        file_bytes: Size of the file and its external data.

    Raises:
        InputError: the constants grow too much; the error names the layer with the largest growth.
    """
    layers = [layer for layer in graph.layers if layer.kind is LayerKind.CONSTANT and layer.inputs]
    sizes = _ConstantSizes(graph, opsets)
    sizes.infer_missing_shapes(layers)
    growth_bytes: dict[str, int] = {}
    for layer in layers:
        result_bytes = sum(map(sizes.count_bytes, filter(None, layer.outputs)))
        growth_bytes[layer.name] = max(
            0, result_bytes - sum(map(sizes.count_bytes, {name for name in layer.inputs if name}))
        )
    if sum(growth_bytes.values()) > max(MAX_GROWTH_BYTES, MAX_GROWTH_FACTOR * file_bytes):
        name = max(growth_bytes, key=growth_bytes.__getitem__)
        layer = graph.by_name[name]
        raise InputError(
            f"{file_name} computes constants that do not fit in memory",
            f"{name} ({layer.op_type}) needs {byte_size_text(growth_bytes[name])} from a file of "
            f"{byte_size_text(file_bytes)}",
            "Check the sizes at its inputs, and export the network again.",
        )


class _ConstantSizes:
    """The inferred shapes of constant tensors, with the values of small constants."""

    def __init__(self, graph: LayerGraph, opsets: Mapping[str, int]) -> None:
        self._graph = graph
        self._opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._shapes: dict[str, Shape] = {}
        self._values: dict[str, np.ndarray] = {}

    def count_bytes(self, tensor: str) -> int:
        """Returns the size of a tensor in bytes; 0 if unknown."""
        shape = self._find_shape(tensor)
        element_count = _count_elements(shape)
        dtype = self._graph.ir_value(tensor).dtype
        return 0 if element_count is None else math.ceil(element_count * (4 if dtype is None else dtype.itemsize))

    def infer_missing_shapes(self, layers: Iterable[Layer]) -> None:
        """Infers the shapes of constant layers whose shapes are still unknown after the inference on the whole network."""
        layers = list(layers)
        needed_tensors = {
            name
            for layer in layers
            for name in layer.outputs
            if name and _count_elements(self._find_shape(name)) is None
        }
        if not needed_tensors:
            return
        for layer in reversed(layers):
            if not needed_tensors.isdisjoint(layer.outputs):
                needed_tensors.update(layer.inputs)
        for layer in layers:
            if not needed_tensors.isdisjoint(layer.outputs):
                self._infer_layer_shapes(layer)

    def _find_shape(self, tensor: str) -> Shape | None:
        return self._shapes.get(tensor) or self._graph.shape(tensor)

    def _read_small_constant(self, tensor: str) -> np.ndarray | None:
        if tensor not in self._values:
            constant = stored_tensor(self._graph.ir_value(tensor))
            if constant is None or constant.size > _MAX_SMALL_ELEMENTS or constant.dtype == ir.DataType.STRING:
                return None
            self._values[tensor] = constant.numpy()
        return self._values[tensor]

    def _infer_layer_shapes(self, layer: Layer) -> None:
        """Infers the shapes of a layer's results. Small results are computed from small inputs."""
        input_names = [name for name in dict.fromkeys(layer.inputs) if name]
        small_inputs = {name: value for name in input_names if (value := self._read_small_constant(name)) is not None}
        try:
            model = self._build_layer_model(layer, small_inputs)
            inferred_model = onnx.shape_inference.infer_shapes(model)
            for info in inferred_model.graph.output:
                if info.type.tensor_type.HasField("shape"):
                    self._shapes[info.name] = declared_shape(info)
            counts = [_count_elements(self._find_shape(name)) for name in layer.outputs if name]
            is_small = layer.op_type in _SHRINKING_OPERATORS or all(
                count is not None and count <= _MAX_SMALL_ELEMENTS for count in counts
            )
            if is_small and len(small_inputs) == len(input_names):
                results = ReferenceEvaluator(model).run(None, {})
                self._values.update(
                    (info.name, np.asarray(value)) for info, value in zip(model.graph.output, results, strict=True)
                )
        except Exception:  # shapes that onnx cannot infer or compute stay open
            return

    def _build_layer_model(self, layer: Layer, small_inputs: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        """Builds a model of a single layer: small inputs are initializers, the others are inputs of the model."""
        inputs = [
            onnx.helper.make_tensor_value_info(name, int(dtype), self._find_shape(name))
            for name in dict.fromkeys(layer.inputs)
            if name and name not in small_inputs and (dtype := self._graph.ir_value(name).dtype) is not None
        ]
        outputs = [
            onnx.helper.make_tensor_value_info(name, int(self._graph.ir_value(name).dtype or 0), None)
            for name in layer.outputs
            if name
        ]
        stored_tensors = [onnx.numpy_helper.from_array(value, name) for name, value in small_inputs.items()]
        graph = onnx.helper.make_graph(
            [ir.to_proto(self._graph.node(layer.name))], "alone", inputs, outputs, stored_tensors
        )
        return onnx.helper.make_model(graph, opset_imports=self._opsets)


def _count_elements(shape: Shape | None) -> int | None:
    """Returns the number of elements of a shape; None if a size is open."""
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) else None
