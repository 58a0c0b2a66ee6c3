"""The values of constant tensors, read from the file or computed by the backend."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.model_editing import extract_subgraph_of_outputs, iterate_reachable
from trt_tui.core.network.operators import COPIES, POINTWISE, PRODUCTS
from trt_tui.core.precision import FP16_MAX, FP16_MIN
from trt_tui.core.runner import Backend
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

    def __init__(self, graph: LayerGraph, model: ir.Model, get_backend: Callable[[], Backend] | None) -> None:
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
        graph, magnitudes = self._graph, []
        for name in iterate_reachable([tensor], partial(self._list_float_inputs, COPIES | {"Where"})):
            for source in self._list_float_inputs(("Where",), name):
                constant = stored_tensor(graph.ir_value(source)) if source in graph.constant_tensors else None
                if constant is not None and self.constant_amax(source) >= _MIN_MASK_MAGNITUDE:
                    magnitudes.append(float(self.constant_amax(source)) / 2)
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
