"""The layers and tensors of an opened model, with the producer and the consumers of each tensor, and the values of
constant tensors, read from the file or computed by the backend.

The graph also shows which fusion groups have float results that are converted to integers, or used as positions or
sizes. A rounded float that becomes an integer may become its neighbour: FP16 has no odd integer above 2048. An index
then selects another row of the table, or is out of bounds.

The search for them walks back from each Cast to an integer type, and from each float input that is read as a position
or a count (`INDEX_INPUTS`). Integer index inputs of Gather, ScatterND, Slice and others need no entry: floats reach
them through a Cast, or through an operator that compares and so ends the walk. The walk follows copies, elementwise
operators and casts. It ends at every other operator: products, normalisations and Softmax, whose results are inexact in
any precision, reductions, and ArgMax, TopK, NonZero, NonMaxSuppression and comparisons, which order values. A Cast to
bool compares with 0 and does not start a walk. A group that contains an operator that ends the walk is left out, even
if TensorRT fuses elementwise layers of the walk into the group.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.network.layer_tree import read_scope_from_metadata
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, Shape
from trt_tui.core.network.model_editing import SCOPE_KEY, extract_subgraph_of_outputs, iterate_reachable, list_subgraphs
from trt_tui.core.network.operators import (
    COPIES,
    INNER_PRODUCTS,
    INTEGER_OPERATORS,
    POINTWISE,
    PRODUCTS,
    SIZE_INPUTS,
    blocking_plugin_reason,
    find_plugin_ending_simulation,
    is_random,
    unsupported_operator_reason,
)
from trt_tui.core.precision import FP16_MAX, FP16_MIN
from trt_tui.core.runner import Backend, TensorInfo
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError

_MIN_MASK_MAGNITUDE = 1e9
"""The minimum magnitude of a constant that counts as a mask wherever a Where selects it."""

_SCALING_OPERATORS = frozenset(("Mul", "Div", "Add", "Sub"))


def stored_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Returns the tensor of an initializer or of a Constant node; None for any other value. The data are not read."""
    if value is None:
        return None
    if value.const_value is not None and value.producer() is None:
        return value.const_value
    node = value.producer()
    if node is not None and node.op_type == "Constant" and node.domain == "":
        constant = node.attributes.get("value")
        # onnx-ir's own look-up sets the name of the stored tensor, which would change the serialized model.
        return constant.as_tensor() if constant is not None else ir.convenience.get_const_tensor(value)
    return None


def register_constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Adds a stored tensor to a graph as an initializer and returns its value. The name must not be in use."""
    value = ir.val(name, const_value=tensor)
    graph.register_initializer(value)
    return value


def largest_magnitude(array: np.ndarray, axis: int | None = None, block_size: int | None = None) -> np.ndarray:
    """Returns the largest absolute value of an array, float32: per tensor, channel or block.

    The arguments are those of `ConstantValues.constant_amax`. Infinities are ignored, as there.
    """
    axes: int | tuple[int, ...] | None = None
    if axis is not None and block_size is not None:
        array = array.reshape(*array.shape[:axis], -1, block_size, *array.shape[axis + 1 :])
        axes = axis + 1
    elif axis is not None:
        axes = tuple(i for i in range(array.ndim) if i != axis)
    high = np.max(array, axis=axes, initial=0.0)
    low = np.min(array, axis=axes, initial=0.0)
    amax = np.maximum(high, -low).astype(np.float32)
    if not np.all(np.isfinite(amax)):
        finite_magnitudes = np.where(np.isfinite(array), np.abs(array), 0.0)
        amax = np.max(finite_magnitudes, axis=axes, initial=0.0).astype(np.float32)
    return np.asarray(amax)


class ConstantValues:
    """The values of a network's constant tensors and their amax. Constants that are masks or epsilons are recognised.

    Args:
        model: The network.
        get_backend: Returns the backend that evaluates constant expressions; called at the first such expression.
    """

    def __init__(self, graph: "LayerGraph", model: ir.Model, get_backend: Callable[[], Backend] | None) -> None:
        self._graph = graph
        self._model = model
        self._get_backend = get_backend
        self._values: dict[str, np.ndarray] = {}
        self._amax: dict[tuple[str, int | None, int | None], np.ndarray] = {}
        self._has_evaluated_expressions = False

    def constant_value(self, tensor: str) -> np.ndarray:
        """Returns the value of a constant tensor. If the file stores it as an expression, the backend computes it.

        Raises:
            InputError: the expression could not be evaluated, or there is no backend.
            BackendUnavailableError: the backend does not work on this machine.
        """
        if tensor not in self._values:
            constant = stored_tensor(self._graph.ir_value(tensor))
            if constant is not None:
                return constant.numpy()
            self._values[tensor] = self._evaluate_constant(tensor)
        return self._values[tensor]

    def constant_amax(self, tensor: str, axis: int | None = None, block_size: int | None = None) -> np.ndarray:
        """Returns the largest finite absolute value of a constant, float32: a scalar, or one value per index of
        ``axis``.

        With ``block_size``, which must divide the size of the axis, each block along the axis gets one value. The
        result then has the shape of the constant with that axis divided. Infinities are ignored, because they are
        masks.
        """
        key = (tensor, axis, block_size)
        if key not in self._amax:
            self._amax[key] = largest_magnitude(self.constant_value(tensor), axis, block_size)
        return self._amax[key]

    def is_mask(self, tensor: str) -> bool:
        """Returns True if a constant that exceeds the range of FP16 is a mask. Weights and scales of activations are
        not masks.

        Examples of masks are -3.4e38 before a Softmax and the factor of (1 - mask). A convolution kernel, a divisor or
        a constant that denormalises a result is not a mask.
        """
        graph = self._graph
        if not (graph.is_fp32(tensor) and float(self.constant_amax(tensor)) > FP16_MAX):
            return False  # before its readers are listed, because thousands of layers may read one constant
        readers = [graph.by_name[name] for name in graph.consumers.get(tensor, ())]
        return not any(
            layer.op_type in PRODUCTS or layer.op_type == "Div" and layer.inputs[1] == tensor for layer in readers
        ) and not self._only_scales_products(tensor, readers)

    def _only_scales_products(self, tensor: str, reader_layers: Sequence[Layer]) -> bool:
        """Returns True if a constant is positive and is only multiplied with, or added to, results of products.

        A mask has values of 0 or below, is selected by a Where, or is combined with tensors computed from masks, not
        with products.
        """
        return (
            all(
                layer.op_type in _SCALING_OPERATORS and self._is_computed_from_product(operand)
                for layer in reader_layers
                for operand in layer.inputs
                if operand != tensor
            )
            and bool(reader_layers)
            and bool(np.all(self.constant_value(tensor) > 0))
        )

    def _is_computed_from_product(self, tensor: str) -> bool:
        """Returns True if a tensor is the result of a product, also behind pointwise operators and copies."""
        graph = self._graph
        computed = iterate_reachable([tensor], partial(self._list_float_inputs, POINTWISE | COPIES))
        return any((layer := graph.find_producer(name)) is not None and layer.op_type in PRODUCTS for name in computed)

    def _list_float_inputs(self, operators: Collection[str], tensor: str) -> list[str]:
        """Returns the float inputs of the layer that computes a tensor; [] if the layer has none of the given
        operators.
        """
        layer = self._graph.find_producer(tensor)
        return (
            [name for name in layer.inputs if self._graph.is_fp32(name)]
            if layer is not None and layer.op_type in operators
            else []
        )

    @cached_property
    def masked_tensors(self) -> frozenset[str]:
        """The tensors that contain mask values: the results of an Add, Where or Mul with a mask, up to the next
        Softmax.
        """
        graph = self._graph
        tensors: set[str] = set()
        for layer in graph.layers:
            if layer.outputs[0] in graph.static_tensors or layer.op_type not in POINTWISE | COPIES:
                continue
            if any(
                input_name in tensors or input_name in graph.constant_tensors and self.is_mask(input_name)
                for input_name in layer.inputs
                if input_name
            ):
                tensors.update(tensor for tensor in layer.outputs if graph.is_fp32(tensor))
        return frozenset(tensors)

    def mask_magnitude_threshold(self, tensor: str) -> float:
        """Returns the magnitude from which the values of a tensor count as mask values of a Where; 0.0 if it has no
        such values.

        The threshold is half the magnitude of the Where's constant (masked logits: -1e9, -3.4e38). Only copies may be
        between the Where and the tensor.
        """
        graph = self._graph
        magnitudes = (
            float(self.constant_amax(source)) / 2
            for name in iterate_reachable([tensor], partial(self._list_float_inputs, COPIES | {"Where"}))
            for source in self._list_float_inputs(("Where",), name)
            if source in graph.constant_tensors
            and stored_tensor(graph.ir_value(source)) is not None
            and self.constant_amax(source) >= _MIN_MASK_MAGNITUDE
        )
        return min(magnitudes, default=0.0)

    @cached_property
    def epsilon_readers(self) -> Mapping[str, Collection[str]]:
        """The stored epsilons that FP16 rounds to zero, with the operators that 0 would make infinite: Div or Log.

        An epsilon is a positive operand of an Add, Max or Clip. Its result is a divisor or has a logarithm, possibly
        after a root.
        """
        graph = self._graph
        epsilon_readers: dict[str, Collection[str]] = {}
        for layer in graph.layers:
            guard_inputs = {"Add": layer.inputs, "Max": layer.inputs, "Clip": layer.inputs[1:2]}.get(layer.op_type, ())
            for tensor in guard_inputs:
                constant = stored_tensor(graph.ir_value(tensor)) if tensor in graph.constant_tensors else None
                if constant is None or constant.size != 1 or not graph.is_fp32(tensor):
                    continue
                readers = self._find_readers_without_zero(layer.outputs[0])
                if 0 < float(constant.numpy().reshape(-1)[0]) <= FP16_MIN / 2 and readers:
                    epsilon_readers[tensor] = readers | set(epsilon_readers.get(tensor, ()))
        return epsilon_readers

    def _find_readers_without_zero(self, tensor: str, max_steps: int = 4) -> set[str]:
        """Returns the operators, Div or Log, that 0 in a tensor makes infinite, directly or behind a root or a copy."""
        graph = self._graph
        readers: set[str] = set()
        for name in graph.consumers.get(tensor, ()) if max_steps else ():
            layer = graph.by_name[name]
            if layer.op_type == "Log":
                readers.add("Log")
            if layer.op_type == "Reciprocal" or layer.op_type == "Div" and layer.inputs[1] == tensor:
                readers.add("Div")
            if layer.op_type == "Pow" and layer.inputs[0] == tensor:
                exponent = stored_tensor(graph.ir_value(layer.inputs[1]))
                if exponent is not None and exponent.size == 1 and float(exponent.numpy().reshape(-1)[0]) < 0:
                    readers.add("Div")
            if layer.op_type in COPIES | {"Sqrt", "Pow"}:
                readers |= self._find_readers_without_zero(layer.outputs[0], max_steps - 1)
        return readers

    # -- expressions --------------------------------------------------------------------------------------------

    def _evaluate_constant(self, tensor: str) -> np.ndarray:
        """Returns the value of a constant expression. The first call lets the backend compute all expressions at once."""
        title, next_step = (
            f"constant {tensor} could not be computed",
            "Fold the network's constants (for example with onnxsim) and open it again.",
        )
        if self._get_backend is None:
            raise InputError(
                title, "the file holds it as an expression, and no backend is available to compute it", next_step
            )
        try:
            backend = self._get_backend()
        except BackendUnavailableError as error:
            raise BackendUnavailableError(
                title, f"the file holds it as an expression. {error.title}: {error.cause}", error.next_step
            ) from None
        if not self._has_evaluated_expressions:
            self._has_evaluated_expressions = True
            with contextlib.suppress(TrtTuiError):  # the failing expression is reported when its value is requested
                self._values.update(self._run_constant_expressions(backend, self._list_constant_expressions()))
        if tensor in self._values:
            return self._values[tensor]
        try:
            return self._run_constant_expressions(backend, [tensor])[tensor]
        except TrtTuiError as error:
            raise InputError(title, error.cause or error.title, next_step) from None

    def _run_constant_expressions(self, backend: Backend, tensor_names: Sequence[str]) -> dict[str, np.ndarray]:
        """Computes constant tensors from the stored ones."""
        if not tensor_names:
            return {}
        model = extract_subgraph_of_outputs(self._model, tensor_names)
        model.graph.inputs.clear()
        with backend.load(model) as runner:
            return {name: np.asarray(array) for name, array in runner.run({}, tensor_names).items()}

    def _list_constant_expressions(self) -> list[str]:
        """Returns the float tensors that the file computes from constants and that other layers read."""
        graph = self._graph
        read_constants = dict.fromkeys(
            name
            for layer in graph.layers
            if layer.kind is not LayerKind.CONSTANT
            for name in graph.input_tensors(layer.name)
            if name in graph.constant_tensors
        )
        return [name for name in read_constants if graph.is_fp32(name) and stored_tensor(graph.ir_value(name)) is None]


SHAPE_READERS = frozenset(("Shape", "Size"))
"""Operators that read the shape of a tensor, but none of its values."""

_ANY_FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class LayerGraph:
    """The layers and tensors of a model, by name; read-only.

    Attributes:
        opset: The opset of ONNX's own operators; 0 if the model does not state it.
        output_names: The names of the network outputs.
        layers: In network order.
        by_name: The layers, by name.
        producer: The name of the layer that writes a tensor, by tensor name.
        consumers: The layers that read a tensor, by tensor name; includes layers whose subgraphs read it.
        readers: The consumers without Shape and Size, which read no values.
        constant_tensors: Tensors that are stored, or computed only from stored tensors.
        static_tensors: The constant tensors, and tensors computed only from constants and shapes.
        blocking_plugins: The plugin that prevents the simulation of a tensor, by tensor name.
        value_sized_tensors: Tensors whose sizes depend on computed values and may therefore differ between precisions.
            Examples are the result of a NonZero, or of a Range up to a computed length.

    Args:
        has_operator_library: True if the backend has a library of operators, so that the simulation runs plugins too.
    """

    def __init__(self, model: ir.Model, has_operator_library: bool = False) -> None:
        graph = model.graph
        self.opset = graph.opset_imports.get("", 0)
        self.inputs = tuple(map(tensor_info, graph.inputs))
        self.outputs = tuple(map(tensor_info, graph.outputs))
        self.output_names = frozenset(info.name for info in self.outputs)
        self._values: dict[str, ir.Value] = {v.name or "": v for v in (*graph.inputs, *graph.initializers.values())}
        self._nodes = {node.name or "": node for node in graph}
        self.producer: dict[str, str] = {}
        self.consumers: dict[str, list[str]] = {}
        self.readers: dict[str, list[str]] = {}
        constant_tensors = set(graph.initializers)
        static_tensors = set(constant_tensors)
        self.blocking_plugins: dict[str, str] = {}
        blocking_plugins = None if has_operator_library else self.blocking_plugins
        self._reads: dict[str, tuple[str, ...]] = {}
        self.layers = tuple(
            _build_layer(index, node, constant_tensors, static_tensors, blocking_plugins)
            for index, node in enumerate(graph)
        )
        self.by_name = {layer.name: layer for layer in self.layers}
        for layer in self.layers:
            node = self._nodes[layer.name]
            self._values.update((v.name, v) for v in node.outputs if v.name)
            self.producer.update((name, layer.name) for name in layer.outputs if name)
            reads = (*filter(None, layer.inputs), *iterate_captured_tensors(node))
            self._reads[layer.name] = layer.inputs if reads == layer.inputs else reads
            for name in dict.fromkeys(reads):
                self.consumers.setdefault(name, []).append(layer.name)
                if not reads_only_shape(layer):
                    self.readers.setdefault(name, []).append(layer.name)
        self._float_types = {
            name: value.dtype
            for name, value in self._values.items()
            if value.dtype in _ANY_FLOAT_TYPES and not isinstance(value.type, ir.SequenceType | ir.OptionalType)
        }
        self.constant_tensors = frozenset(constant_tensors)
        self.static_tensors = frozenset(static_tensors)
        self.value_sized_tensors = self._find_data_dependent_size_tensors()

    def _find_data_dependent_size_tensors(self) -> frozenset[str]:
        tensors: set[str] = set()
        for layer in self.layers:
            size_inputs = [
                name for index, name in enumerate(layer.inputs) if index in SIZE_INPUTS.get(layer.op_type, ())
            ]
            if any(name and name not in self.static_tensors for name in size_inputs) or not tensors.isdisjoint(
                self.input_tensors(layer.name)
            ):
                tensors.update(filter(None, layer.outputs))
        return frozenset(tensors)

    def node(self, layer_name: str) -> ir.Node:
        """Returns the ONNX node of a layer; the caller must not change it."""
        return self._nodes[layer_name]

    def input_tensors(self, layer_name: str) -> tuple[str, ...]:
        """Returns the tensors that a layer reads, including those that only its subgraphs read."""
        return self._reads[layer_name]

    def find_producer(self, tensor: str) -> Layer | None:
        """Returns the layer that computes a tensor; None for inputs, stored tensors and unknown names."""
        return self.by_name.get(self.producer.get(tensor, ""))

    def find_sole_reader(self, tensor: str) -> Layer | None:
        """Returns the layer that reads the values of a tensor; None if there are several, or if it is a network output."""
        names = self.readers.get(tensor, ())
        return self.by_name[names[0]] if len(names) == 1 and tensor not in self.output_names else None

    def has_tensor(self, name: str) -> bool:
        """Returns True if a tensor of this name is computed, stored, or an input of the network."""
        return name in self._values

    def ir_value(self, tensor: str) -> ir.Value:
        """Returns the onnx-ir value of a tensor; the caller must not change it."""
        return self._values[tensor]

    def is_fp32(self, tensor: str) -> bool:
        """Returns True for a tensor in FP32."""
        return self._float_types.get(tensor) is ir.DataType.FLOAT

    def is_float_tensor(self, tensor: str) -> bool:
        """Returns True for a tensor in FP32, FP64, FP16 or BF16."""
        return tensor in self._float_types

    def shape(self, tensor: str) -> Shape | None:
        """Returns the shape of a tensor; None if its rank is unknown."""
        value = self._values.get(tensor)
        return None if value is None else _value_shape(value)


def reads_only_shape(layer: Layer) -> bool:
    return layer.op_type in SHAPE_READERS and not layer.domain


def tensor_info(value: ir.Value) -> TensorInfo:
    """Returns the name, type and shape of a network input or output.

    The type is ``object`` if the value is not a tensor or its type is unknown.
    """
    is_known = value.dtype not in (None, ir.DataType.UNDEFINED) and isinstance(value.type, ir.TensorType)
    dtype = np.dtype(value.dtype.numpy() if is_known and value.dtype is not None else object)
    return TensorInfo(value.name or "", dtype, _value_shape(value))


def iterate_captured_tensors(node: ir.Node) -> Iterator[str]:
    """Yields the names of outer tensors that the subgraphs of a node use, at any depth.

    The names include outer tensors that a subgraph only returns, which `onnx_ir.analysis.analyze_implicit_usage` leaves
    out.
    """
    for subgraph in list_subgraphs(node):
        graphs = [subgraph, *subgraph.subgraphs()]
        used_values = [value for inner_node in subgraph.all_nodes() for value in inner_node.inputs if value is not None]
        used_values += [value for graph in graphs for value in graph.outputs]
        yield from dict.fromkeys(value.name or "" for value in used_values if value.graph not in graphs)


# -- classification ---------------------------------------------------------------------------------------------------


def _build_layer(
    index: int,
    node: ir.Node,
    constant_tensors: set[str],
    static_tensors: set[str],
    blocking_plugins: dict[str, str] | None,
) -> Layer:
    """Builds the layer of a node. Its outputs are added to the sets of constant, static or blocked tensors, in place."""
    inputs = tuple(value.name or "" if value is not None else "" for value in node.inputs)
    outputs = tuple(value.name or "" for value in node.outputs)
    input_names = [name for name in (*inputs, *iterate_captured_tensors(node)) if name]
    kind, note = _classify_node(node)
    if blocking_plugins is not None and (plugin := find_plugin_ending_simulation(node, input_names, blocking_plugins)):
        blocking_plugins.update(dict.fromkeys(filter(None, outputs), plugin))
        kind, note = LayerKind.OPAQUE, blocking_plugin_reason(node, plugin)
    if kind is not LayerKind.OPAQUE and not is_random(node):
        if all(name in constant_tensors for name in input_names):
            kind, note = LayerKind.CONSTANT, "constant"
            constant_tensors.update(outputs)
            static_tensors.update(outputs)
        elif node.op_type in SHAPE_READERS or all(name in static_tensors for name in input_names):
            kind, note = LayerKind.SHAPE, "shape arithmetic"
            static_tensors.update(outputs)
    return Layer(
        node.name or "",
        node.op_type,
        node.domain,
        index,
        inputs,
        outputs,
        kind,
        read_scope_from_metadata(node.metadata_props, node.meta.get(SCOPE_KEY, ())),
        count_macs(node, _value_shape),
        note,
        sum(map(_count_float_layers, list_subgraphs(node))),
    )


def _classify_node(node: ir.Node) -> tuple[LayerKind, str]:
    """Returns the kind of a node, and the reason why it cannot take a lower precision ("" if it can)."""
    inputs, outputs = ([value for value in values if value is not None] for values in (node.inputs, node.outputs))
    dtypes, unsupported_reason = {value.dtype for value in outputs if value.name}, unsupported_operator_reason(node)
    rules = (
        (bool(list_subgraphs(node)), LayerKind.OPAQUE, f"{node.op_type} contains a subgraph, which stays in FP32"),
        (bool(unsupported_reason), LayerKind.OPAQUE, unsupported_reason),
        (
            bool(node.domain),
            LayerKind.OPAQUE,
            f"operator of another domain ({node.domain}): its types are unknown",
        ),
        (not onnx.defs.has(node.op_type), LayerKind.OPAQUE, "not an ONNX operator: its types are unknown"),
        (
            node.op_type in INTEGER_OPERATORS,
            LayerKind.OPAQUE,
            "already computes on integers; export with Q/DQ pairs to select its precision",
        ),
        (
            any(not isinstance(value.type, ir.TensorType | None) for value in (*inputs, *outputs)),
            LayerKind.OPAQUE,
            "works on sequences or optionals, which have no precision",
        ),
        (node.op_type == "Cast", LayerKind.CAST, "type conversion"),
        (None in dtypes, LayerKind.OPAQUE, "its output type could not be inferred"),
        (
            any(value.dtype is None for value in inputs),
            LayerKind.OPAQUE,
            "the type of its input could not be inferred",
        ),
        (ir.DataType.FLOAT in dtypes, LayerKind.COPY if node.op_type in COPIES else LayerKind.COMPUTE, ""),
        (ir.DataType.DOUBLE in dtypes, LayerKind.OPAQUE, "computes in FP64"),
    )
    return next(
        ((kind, note) for applies, kind, note in rules if applies), (LayerKind.INTEGER, "integer or boolean result")
    )


def _count_float_layers(body: ir.Graph) -> int:
    """Returns the number of layers of a subgraph, at any depth, that compute floats.

    Layers that compute from constants and shapes alone do not count.
    """
    static_values = {value for graph in (body, *body.subgraphs()) for value in graph.initializers.values()}
    count = 0
    for node in body.all_nodes():
        if (
            node.op_type in SHAPE_READERS
            or not is_random(node)
            and all(value is None or value.const_value is not None or value in static_values for value in node.inputs)
        ):
            static_values.update(node.outputs)
        elif not list_subgraphs(node) and node.op_type not in (*COPIES, *INTEGER_OPERATORS, "Cast"):
            count += any(
                value.dtype in (None, *_ANY_FLOAT_TYPES)
                and not isinstance(value.type, ir.SequenceType | ir.OptionalType)
                for value in node.outputs
            )
    return count


def count_macs(node: ir.Node, find_shape: Callable[[ir.Value], Shape | None]) -> int | None:
    """Counts the multiply-accumulates of one execution of a node; None for Attention and Einsum, and if a size is open.

    An open first dimension counts as a batch of 1.
    """
    if node.op_type not in PRODUCTS | INNER_PRODUCTS or node.domain != "":
        return 0
    if node.op_type in ("Attention", "Einsum"):
        return None
    result, data, weight = (
        _read_sizes_per_sample(value, find_shape) for value in (node.outputs[0], node.inputs[0], node.inputs[1])
    )
    if node.op_type in ("GRU", "LSTM", "RNN"):
        recurrent_weight = _read_sizes_per_sample(node.inputs[2], find_shape)
        if data is None or weight is None or recurrent_weight is None:
            return None
        return math.prod(data[:2]) * (math.prod(weight) + math.prod(recurrent_weight))
    if result is None or weight is None:
        return None
    if "Conv" in node.op_type:
        positions = data if node.op_type == "ConvTranspose" else result
        return None if positions is None else math.prod(positions) * math.prod(weight[1:])
    is_gemm = node.op_type == "Gemm"
    return math.prod(result) * weight[node.attributes.get_int("transB", 0) if is_gemm else max(len(weight) - 2, 0)]


def _value_shape(value: ir.Value) -> Shape | None:
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else size.value for size in value.shape)


def _read_sizes_per_sample(value: ir.Value | None, find_shape: Callable[[ir.Value], Shape | None]) -> list[int] | None:
    """Returns the sizes of a value, with 1 for an open batch size; None if another size is open."""
    shape = None if value is None else find_shape(value)
    if shape is None:
        return None
    sizes = [
        size if isinstance(size, int) else 1 for index, size in enumerate(shape) if isinstance(size, int) or index == 0
    ]
    return sizes if len(sizes) == len(shape) else None


INDEX_INPUTS = {"OneHot": (0, 1), "Range": (0, 1, 2), "Resize": (2,), "Upsample": (1,)}
"""Float inputs that are read as positions, counts or factors of a size, by operator.

The region of interest of a Resize is missing because it moves the sampling points, which is a coordinate: see
`trt_tui.core.measure.group_errors`."""

_CAST_OPERATORS = frozenset(("Cast", "CastLike"))

_FOLLOWED_OPERATORS = POINTWISE | COPIES | _CAST_OPERATORS | {"Mod", "BitShift", "Range", "OneHot"}

_INTEGER_TYPES = frozenset(
    (
        ir.DataType.INT4,
        ir.DataType.UINT4,
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.INT16,
        ir.DataType.UINT16,
        ir.DataType.INT32,
        ir.DataType.UINT32,
        ir.DataType.INT64,
        ir.DataType.UINT64,
    )
)


def find_groups_computing_indices(graph: LayerGraph, groups: Iterable[FusionGroup]) -> tuple[str, ...]:
    """Returns the fusion groups whose float results are converted to integers or used as positions, in network order."""
    groups = tuple(groups)
    group_by_layer = {layer: group for group in groups for layer in group.layers}
    exact_groups = {
        group.name
        for group in groups
        if all(
            _is_copy_or_elementwise(graph.by_name[name]) or graph.by_name[name].kind is LayerKind.INTEGER
            for name in group.layers
        )
    }

    def find_producer(tensor: str) -> Layer | None:
        layer = graph.find_producer(tensor)
        return layer if layer is not None and _is_copy_or_elementwise(layer) else None

    def list_source_tensors(tensor: str) -> list[str]:
        layer = find_producer(tensor)
        return [name for name in layer.inputs if name and name not in graph.static_tensors] if layer is not None else []

    starts = [
        tensor
        for layer in graph.layers
        for tensor in _iterate_index_tensors(graph, layer)
        if tensor not in graph.static_tensors
    ]
    layers = [find_producer(tensor) for tensor in iterate_reachable(starts, list_source_tensors)]
    index_groups = {
        group_by_layer[layer.name].name for layer in layers if layer is not None and layer.name in group_by_layer
    }
    return tuple(group.name for group in groups if group.name in index_groups & exact_groups)


def _is_copy_or_elementwise(layer: Layer) -> bool:
    return not layer.domain and layer.op_type in _FOLLOWED_OPERATORS


def _iterate_index_tensors(graph: LayerGraph, layer: Layer) -> Iterable[str]:
    """Yields the float tensors that a layer turns into integers, or reads as positions."""
    if layer.domain:
        return
    if layer.op_type in _CAST_OPERATORS:
        if graph.is_fp32(layer.inputs[0]) and graph.ir_value(layer.outputs[0]).dtype in _INTEGER_TYPES:
            yield layer.inputs[0]
        return
    for index in INDEX_INPUTS.get(layer.op_type, ()):
        tensor = layer.inputs[index] if index < len(layer.inputs) else ""
        if tensor and graph.is_fp32(tensor) and tensor not in graph.static_tensors:
            yield tensor
            yield from (
                layer.outputs if layer.op_type in _FOLLOWED_OPERATORS else ()
            )  # the group of the layer reads the tensor in its float type
