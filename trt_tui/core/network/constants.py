"""Values of constant tensors: as the file stores them, or computed by what runs the network."""

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Kind, Layer
from trt_tui.core.network.operators import ANCHORS, COPIES, POINTWISE
from trt_tui.core.precision import FP16_LEAST, FP16_MAX
from trt_tui.core.runner import Backend
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError

_MASK_LEAST = 1e9
"""The least magnitude of a constant that is taken for a mask wherever a Where selects it."""

_SCALING = frozenset(("Mul", "Div", "Add", "Sub"))
"""Operators that scale or shift by a constant."""


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant node's output, without reading it; None for anything else."""
    if value is None:
        return None
    if value.const_value is not None and value.producer() is None:
        return value.const_value
    node = value.producer()
    if node is not None and node.op_type == "Constant" and node.domain == "":
        stored = node.attributes.get("value")
        # onnx-ir's own look-up names the stored tensor, which would change what the model serializes to.
        return stored.as_tensor() if stored is not None else ir.convenience.get_const_tensor(value)
    return None


def largest(array: np.ndarray, axis: int | None = None, block: int | None = None) -> np.ndarray:
    """The largest absolute value of an array, float32; arguments and infinities as `Constants.amax`."""
    axes: int | tuple[int, ...] | None = None
    if axis is not None and block is not None:
        array = array.reshape(*array.shape[:axis], -1, block, *array.shape[axis + 1:])
        axes = axis + 1
    elif axis is not None:
        axes = tuple(i for i in range(array.ndim) if i != axis)
    high = np.max(array, axis=axes, initial=0.0)
    low = np.min(array, axis=axes, initial=0.0)
    amax = np.maximum(high, -low).astype(np.float32)
    if not np.all(np.isfinite(amax)):
        finite = np.where(np.isfinite(array), np.abs(array), 0.0)
        amax = np.max(finite, axis=axes, initial=0.0).astype(np.float32)
    return np.asarray(amax)


class Constants:
    """Values of a network's constant tensors.

    Args:
        model: The network.
        backend: Gives what runs the network, and so its constant expressions; asked when the first one is met.
    """

    def __init__(self, graph: LayerGraph, model: ir.Model, backend: Callable[[], Backend] | None) -> None:
        self._graph = graph
        self._model = model
        self._backend = backend
        self._values: dict[str, np.ndarray] = {}
        self._amax: dict[tuple[str, int | None, int | None], np.ndarray] = {}
        self._folded = False

    def value(self, tensor: str) -> np.ndarray:
        """The value of a constant tensor, computed from other constants where the file holds it as an expression.

        Raises:
            InputError: the expression could not be evaluated, or there is nothing to run it.
            BackendUnavailableError: what would run it does not work here.
        """
        if tensor not in self._values:
            stored = constant_tensor(self._graph.value(tensor))
            if stored is not None:
                return stored.numpy()
            self._values[tensor] = self._evaluate(tensor)
        return self._values[tensor]

    def amax(self, tensor: str, axis: int | None = None, block: int | None = None) -> np.ndarray:
        """Largest absolute value of a constant, float32: a scalar, or one value for each index of ``axis``.

        With ``block``, which divides the axis, one for each so many values along it and each index of the other axes:
        the shape is the constant's, that axis divided. Infinities are left out: they are masks, not magnitudes.
        """
        key = (tensor, axis, block)
        if key not in self._amax:
            self._amax[key] = largest(self.value(tensor), axis, block)
        return self._amax[key]

    def is_mask(self, tensor: str) -> bool:
        """Whether a constant lies beyond FP16, is no weight and scales or shifts no activation: -3.4e38 in front of a
        Softmax and the factor of (1 - mask), not a kernel, not what denormalises a result."""
        graph = self._graph
        if not (graph.is_float(tensor) and float(self.amax(tensor)) > FP16_MAX):
            return False  # before its readers are listed: thousands of layers may read one constant
        readers = [graph.by_name[name] for name in graph.consumers.get(tensor, ())]
        return not any(layer.op_type in ANCHORS for layer in readers) and not self._scales(tensor, readers)

    def _scales(self, tensor: str, readers: Sequence[Layer]) -> bool:
        """Whether a constant, all of it above zero, is only multiplied with, or added to, what products yield.

        A mask is 0 or less somewhere, is selected, or meets what is computed from masks, which are no products.
        """
        return all(layer.op_type in _SCALING and self._of_products(other) for layer in readers
                   for other in layer.inputs if other != tensor) and bool(readers) and bool(
                       np.all(self.value(tensor) > 0))

    def _of_products(self, tensor: str) -> bool:
        """Whether a tensor is what a product yields, floats computed or copied point by point in between."""
        graph, stack, seen = self._graph, [tensor], {tensor}
        while stack:
            layer = graph.by_name.get(graph.producer.get(stack.pop(), ""))
            if layer is not None and layer.op_type in ANCHORS:
                return True
            read = layer.inputs if layer is not None and layer.op_type in POINTWISE | COPIES else ()
            stack += [one for one in read if one not in seen and graph.is_float(one)]
            seen.update(read)
        return False

    @cached_property
    def masked(self) -> frozenset[str]:
        """Tensors that a mask constant was added to, selected into or scaled into, up to the Softmax behind."""
        graph = self._graph
        found: set[str] = set()
        for layer in graph.layers:
            if layer.outputs[0] in graph.static or layer.op_type not in POINTWISE | COPIES:
                continue
            if any(t in found or t in graph.constants and self.is_mask(t) for t in layer.inputs if t):
                found.update(tensor for tensor in layer.outputs if graph.is_float(tensor))
        return frozenset(found)

    def hidden_from(self, tensor: str) -> float:
        """The magnitude from which values of a tensor are masks that a Where put in place of values, 0.0 for none.

        Half that of the constant, on the way to the tensor by copies alone: masked logits (-1e9, -3.4e38).
        """
        graph, stack, seen, found = self._graph, [tensor], {tensor}, []
        while stack:
            name = graph.producer.get(stack.pop())
            if name is None or graph.by_name[name].op_type not in COPIES | {"Where"}:
                continue
            layer = graph.by_name[name]
            for read in (t for t in layer.inputs if t and t not in seen and graph.is_float(t)):
                seen.add(read)
                stack.append(read)
                stored = constant_tensor(graph.value(read)) if read in graph.constants else None
                if stored is not None and layer.op_type == "Where" and self.amax(read) >= _MASK_LEAST:
                    found.append(float(self.amax(read)) / 2)
        return min(found, default=0.0)

    @cached_property
    def epsilons(self) -> frozenset[str]:
        """Stored numbers above zero that FP16 rounds to zero, and that keep a divisor from being zero: what an Add, Max
        or Clip puts under a division, roots in between."""
        graph = self._graph
        found: set[str] = set()
        for layer in graph.layers:
            guards = {"Add": layer.inputs, "Max": layer.inputs, "Clip": layer.inputs[1:2]}.get(layer.op_type, ())
            for tensor in guards:
                stored = constant_tensor(graph.value(tensor)) if tensor in graph.constants else None
                if stored is None or stored.size != 1 or not graph.is_float(tensor):
                    continue
                if 0 < float(stored.numpy().reshape(-1)[0]) <= FP16_LEAST / 2 and self._divides(layer.outputs[0]):
                    found.add(tensor)
        return frozenset(found)

    def _divides(self, tensor: str, steps: int = 4) -> bool:
        """Whether something divides by a tensor, by its root or by a copy of it."""
        graph = self._graph
        for name in graph.consumers.get(tensor, ()) if steps else ():
            layer = graph.by_name[name]
            if layer.op_type == "Reciprocal" or layer.op_type == "Div" and layer.inputs[1] == tensor:
                return True
            if layer.op_type == "Pow" and layer.inputs[0] == tensor:
                exponent = constant_tensor(graph.value(layer.inputs[1]))
                if exponent is not None and exponent.size == 1 and float(exponent.numpy().reshape(-1)[0]) < 0:
                    return True
            if layer.op_type in COPIES | {"Sqrt", "Pow"} and self._divides(layer.outputs[0], steps - 1):
                return True
        return False

    # -- expressions --------------------------------------------------------------------------------------------

    def _evaluate(self, tensor: str) -> np.ndarray:
        """A constant expression's value, computed by the backend; the first request computes all of them."""
        title, next_step = (f"constant {tensor} could not be computed",
                            "Fold the network's constants (for example with onnxsim) and open it again.")
        if self._backend is None:
            raise InputError(title, "the file holds it as an expression, and the network was opened with nothing to "
                             "run it", next_step)
        try:
            backend = self._backend()
        except BackendUnavailableError as error:
            raise BackendUnavailableError(
                title, f"the file holds it as an expression. {error.title}: {error.cause}", error.next_step) from None
        if not self._folded:
            self._folded = True
            with contextlib.suppress(TrtTuiError):  # one of them, which is named when it is asked for
                self._values.update(self._run(backend, self._expressions()))
        if tensor in self._values:
            return self._values[tensor]
        try:
            return self._run(backend, [tensor])[tensor]
        except TrtTuiError as error:
            raise InputError(title, error.cause or error.title, next_step) from None

    def _run(self, backend: Backend, tensors: Sequence[str]) -> dict[str, np.ndarray]:
        if not tensors:
            return {}
        with backend.load(self._expression_model(tensors)) as runner:
            return {name: np.asarray(array) for name, array in runner.run({}, tensors).items()}

    def _expressions(self) -> list[str]:
        """Float tensors that the file computes from constants and that something else reads."""
        graph = self._graph
        read = dict.fromkeys(name for layer in graph.layers if layer.kind is not Kind.CONSTANT
                             for name in graph.reads(layer.name) if name in graph.constants)
        return [name for name in read if graph.is_float(name) and constant_tensor(graph.value(name)) is None]

    def _expression_model(self, tensors: Sequence[str]) -> ir.Model:
        """The network that computes constant tensors from those that the file stores."""
        source = self._graph
        needed: set[str] = set()
        stack = list(tensors)
        while stack:
            name = source.producer.get(stack.pop())
            if name is not None and name not in needed:
                needed.add(name)
                stack.extend(n for n in source.by_name[name].inputs if n)
        values: dict[str, ir.Value] = {}
        stored = []
        nodes = []
        for layer in (one for one in source.layers if one.name in needed):
            for name in layer.inputs:
                if name and name not in values:
                    held = source.value(name)
                    values[name] = ir.Value(name=name, type=held.type, shape=held.shape, const_value=held.const_value)
                    stored.append(values[name])
            original = source.node(layer.name)
            node = ir.Node(original.domain, original.op_type, [values[n] if n else None for n in layer.inputs],
                           list(original.attributes.values()), num_outputs=len(layer.outputs), name=layer.name)
            for name, output in zip(layer.outputs, node.outputs, strict=True):
                output.name = name
                if name:
                    output.type = source.value(name).type
                    values[name] = output
            nodes.append(node)
        graph = ir.Graph([], [values[name] for name in tensors], nodes=nodes, initializers=stored, name="constants",
                         opset_imports=dict(self._model.graph.opset_imports))
        return ir.Model(graph, ir_version=self._model.ir_version)
