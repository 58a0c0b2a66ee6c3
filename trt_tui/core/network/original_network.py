"""The search for the original FP32 weights and activations of a quantized network.

The originals are taken from an FP32 network, the reference. A constant of the quantized file may be a rounding of a
constant of the reference. It is then replaced by that constant. The result is only a proposal:
`trt_tui.workspace.Workspace.check_reference_weights` executes the network with the proposed weights. FP32 runs use them
only if the outputs equal those of the reference.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import ConstantValues, LayerGraph, register_constant, stored_tensor
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.model_editing import FreshNames, value_name
from trt_tui.core.network.opening import OpenedModel
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.network.qdq.source_model import SourceModel
from trt_tui.core.network.qdq.steps import PRECISION_BY_HALF_TYPE, QdqStep, apply_qdq_step
from trt_tui.core.runner import Backend
from trt_tui.formatting import counted_noun_text

_CLIPPING_OPERATORS = frozenset(("Relu", "Clip"))
_FOLDED_OPERATORS = frozenset(("BatchNormalization",))
"""Operators that quantizers fold into the layer before."""

MAX_ROUNDING_ERROR_RATIO = 4.0
"""The maximum energy of the difference between a quantized weight and the weight before it was quantized, in units of
the energy that rounding to the nearest quantized value costs.

Rounding every value up or down costs at most four times as much (errors spread over a whole step, not over its half).
GPTQ costs up to twice as much. Weights that were trained further, scaled or folded exceed the limit."""

_FP32_ROUNDING_SHARE = 1e-12
"""The energy of a difference that FP32 rounding explains, as a share of the energy of a constant."""

_SIGNATURE_SIZE = 256
"""The number of elements, evenly spaced, by which the most similar constant is found."""


def propose_original_weights(
    opened_model: OpenedModel, reference: OpenedModel, reference_name: str, get_backend: Callable[[], Backend] | None
) -> None:
    """Replaces the constants and activations of a quantized network by those of its FP32 reference, in place.

    A quantized weight contains its quantization error, so errors against it would hide that error. Groups in file
    precision keep the constants of the file.

    Args:
        opened_model: The quantized network.
        reference: The FP32 network.
        get_backend: Returns the backend that evaluates the constant expressions of the FP32 network.

    Raises:
        InputError: a constant expression of the reference cannot be evaluated.
    """
    source_model, graph = opened_model.source_model, opened_model.model.graph
    assert source_model is not None, "only quantized and typed files are restored"
    matcher = _ConstantMatcher(LayerGraph(reference.model), reference.model, get_backend)
    replaced_names, changed_layers = [], []
    original_by_constant: dict[ir.Value, str] = {}
    for value in dict.fromkeys(node_input for node in graph for node_input in node.inputs if node_input is not None):
        constant = stored_tensor(value)
        if constant is None or constant.dtype is not ir.DataType.FLOAT:
            continue
        own_array, step = constant.numpy(), source_model.find_dequantize_step(value_name(value))
        original_name = matcher.find_original_constant(value_name(value), own_array, step)
        if original_name is None:
            changed_layers += [
                use.node.name or "" for use in value.uses() if use.node.op_type in PRODUCTS and use.idx < 2
            ]
            continue
        original_by_constant[value] = original_name
        array = matcher.values.constant_value(original_name).reshape(own_array.shape)
        if not np.array_equal(array, own_array):
            _set_constant(value, array)
            replaced_names.append(value_name(value))
    source_model.replaced_constants = frozenset(replaced_names)
    source_model.changed_layers = tuple(dict.fromkeys(changed_layers))
    change_count = _restore_activations(graph, source_model, matcher, original_by_constant)
    if change_count:
        opened_model.notes.append(
            f"{counted_noun_text(change_count, 'activation')} restored as "
            f"{reference_name} has them, not as their ranges suggest."
        )


class _ConstantMatcher:
    """A matcher that finds the original of a constant among the float constants of the reference.

    Attributes:
        values: The values of all constants of the reference.
    """

    def __init__(self, graph: LayerGraph, model: ir.Model, get_backend: Callable[[], Backend] | None) -> None:
        self.graph, self.values = graph, ConstantValues(graph, model, get_backend)
        names = dict.fromkeys(
            name
            for layer in graph.layers
            for name in layer.inputs
            if name in graph.constant_tensors and graph.is_fp32(name)
        )
        self._names_by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
        self._signatures: dict[str, np.ndarray] = {}
        for name in names:
            array = self.values.constant_value(name)
            self._names_by_shape[_shape_without_ones(array)].append(name)
            self._signatures[name] = _take_evenly_spaced_elements(array)

    def find_original_constant(self, name: str, own_array: np.ndarray, step: QdqStep | None) -> str | None:
        """Returns the name of the reference's constant that rounds to a constant of the file; None if there is none.

        Args:
            name: The constant of the file. The constant of the same name is tried first, then the most similar one.
            step: The DequantizeLinear of the constant in the file; None if it is not quantized.
        """
        candidates = self._names_by_shape.get(_shape_without_ones(own_array), [])
        signature = _take_evenly_spaced_elements(own_array)
        nearest = min(
            candidates, key=lambda candidate: _squared_norm(signature - self._signatures[candidate]), default=None
        )
        for candidate in dict.fromkeys((name if name in candidates else nearest, nearest)):
            if candidate is not None and _is_rounded_copy(
                own_array, self.values.constant_value(candidate).reshape(own_array.shape), step
            ):
                return candidate
        return None


def _shape_without_ones(array: np.ndarray) -> tuple[int, ...]:
    return tuple(size for size in array.shape if size != 1)


def _take_evenly_spaced_elements(array: np.ndarray) -> np.ndarray:
    """Takes evenly spaced elements of a constant, float64, clipped to the range of FP16."""
    flat = array.reshape(-1)
    return np.clip(np.nan_to_num(flat[:: max(1, flat.size // _SIGNATURE_SIZE)].astype(np.float64)), -65504, 65504)


def _squared_norm(array: np.ndarray) -> float:
    return float(np.sum(np.square(array, dtype=np.float64)))


def _is_rounded_copy(own_array: np.ndarray, array: np.ndarray, step: QdqStep | None) -> bool:
    """Returns True if a constant of the file equals the given constant after rounding to the type in the file."""
    array = np.asarray(array, np.float32)
    with np.errstate(all="ignore"):
        if np.array_equal(array, own_array) or any(
            np.array_equal(array.astype(dtype.numpy()).astype(np.float32), own_array)
            for dtype in PRECISION_BY_HALF_TYPE
        ):
            return True
        if step is None or step.scale is None or step.quantized_dtype is None:
            return False
        quantize_step = replace(step, operator="quantize", dtype=step.quantized_dtype)
        rounded_array = apply_qdq_step(step, apply_qdq_step(quantize_step, array))
        return _squared_norm(own_array - array) <= (
            MAX_ROUNDING_ERROR_RATIO * _squared_norm(rounded_array - array)
            + _FP32_ROUNDING_SHARE * _squared_norm(array)
        )


def _set_constant(value: ir.Value, array: np.ndarray) -> None:
    """Replaces the values of an initializer or of a Constant node."""
    tensor, producer = ir.tensor(np.asarray(array, np.float32), name=value.name), value.producer()
    if producer is None:
        value.const_value = tensor
    else:
        producer.attributes.clear()
        producer.attributes["value"] = ir.AttrTensor("value", tensor)


def _restore_activations(
    graph: ir.Graph, source_model: SourceModel, matcher: _ConstantMatcher, original_by_constant: dict[ir.Value, str]
) -> int:
    """Gives restored activations the operator and bounds of the reference, in place; returns the number of changes.

    A Q/DQ range shows that there was an activation, and where the samples ended. A ReLU6 whose samples stayed below 6
    looks like a Relu, and a tensor without negative samples looks like the output of a Relu. The reference resolves
    this.

    Args:
        graph: The FP32 network that was derived from the quantized file.
        original_by_constant: The constant of the reference for each matched constant of the graph.
    """
    fresh_names = FreshNames(graph)
    change_count = 0
    for node in graph:
        producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if node.name not in source_model.added_nodes or node.op_type not in _CLIPPING_OPERATORS or producer is None:
            continue
        layer = _find_original_layer(producer, matcher.graph, original_by_constant)
        next_layer = _find_sole_next_layer(matcher.graph, layer) if layer is not None else None
        if next_layer is None:
            continue
        operator = next_layer.op_type if next_layer.op_type in _CLIPPING_OPERATORS else "Identity"
        bounds = _read_clip_bounds(matcher.graph, next_layer, matcher.values) if operator == "Clip" else []
        if operator == "Clip" and bounds is None or _has_same_bounds(node, operator, bounds or []):
            continue
        node.op_type = operator
        node.resize_inputs(1 + len(bounds or []))
        for index, bound in enumerate(bounds or [], 1):
            name = fresh_names.make_unique_name(f"{node.name}__bound")
            node.replace_input_with(
                index, None if bound is None else register_constant(graph, name, ir.tensor(np.float32(bound)))
            )
        change_count += 1
    return change_count


def _find_original_layer(
    node: ir.Node, fp32_graph: LayerGraph, original_by_constant: dict[ir.Value, str]
) -> Layer | None:
    """Returns the layer of the reference with the name of a node, or the only layer with the node's constants; None if
    there is none."""
    layer = fp32_graph.by_name.get(node.name or "")
    if layer is not None and layer.op_type == node.op_type:
        return layer
    readers = {
        reader
        for value in node.inputs
        if value in original_by_constant
        for reader in fp32_graph.readers.get(original_by_constant[value], [])
        if fp32_graph.by_name[reader].op_type == node.op_type
    }
    return fp32_graph.by_name[readers.pop()] if len(readers) == 1 else None


def _find_sole_next_layer(fp32_graph: LayerGraph, layer: Layer) -> Layer | None:
    """Returns the only reader of a layer's result, after any folded operators; None if there is no reader or several."""
    while True:
        readers = fp32_graph.readers.get(layer.outputs[0], [])
        if len(readers) != 1:
            return None
        layer = fp32_graph.by_name[readers[0]]
        if layer.op_type not in _FOLDED_OPERATORS:
            return layer


def _read_clip_bounds(
    fp32_graph: LayerGraph, layer: Layer, constant_values: ConstantValues
) -> list[float | None] | None:
    """Returns the bounds of a Clip, with None for an absent bound; None if the bounds are computed."""
    bounds: list[float | None] = []
    for tensor in layer.inputs[1:]:
        if tensor and tensor not in fp32_graph.constant_tensors:
            return None
        bounds.append(float(constant_values.constant_value(tensor).reshape(())) if tensor else None)
    return bounds


def _has_same_bounds(node: ir.Node, expected_operator: str, expected_bounds: list[float | None]) -> bool:
    own_bounds = [
        None if value is None or value.const_value is None else float(value.const_value.numpy().reshape(()))
        for value in node.inputs[1:]
    ]
    return node.op_type == expected_operator and own_bounds == expected_bounds
