"""The restoration of a quantized network's original weights and activations from its FP32 network (the reference)."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import ConstantValues, stored_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.naming import FreshNames, value_name
from trt_tui.core.network.opening import OpenedModel, quantized_weights_note
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.network.qdq_steps import PRECISION_BY_HALF_TYPE
from trt_tui.core.network.source_model import SourceModel
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, name_list_text

_CLIPPING_OPERATORS = frozenset(("Relu", "Clip"))
_FOLDED_OPERATORS = frozenset(("BatchNormalization",))
"""Operators that quantizers fold into the layer before."""

MAX_WEIGHT_NOISE_SHARE = 0.25
"""The maximum energy of the difference of two weights that count as equal, as a share of the energy of the weight: 6
dB.

INT4 in blocks causes a fiftieth of this difference. A folded weight differs completely."""

_InputPort = tuple[ir.Node, int]


def restore_original_activations(graph: ir.Graph, source_model: SourceModel, fp32_layer_by_node: Mapping[str, str],
                                 fp32_graph: LayerGraph, constant_values: ConstantValues) -> int:
    """Gives restored activations the operator and bounds that the FP32 network has, in place; returns the number of
    changes.

    A Q/DQ range shows that there was an activation, and where the samples ended. A ReLU6 whose samples stayed below 6
    looks like a Relu, and a tensor without negative samples looks like the output of a Relu. The FP32 network resolves
    this.

    Args:
        graph: The FP32 network that was derived from the quantized file.
        fp32_layer_by_node: The reference layer for each node of the graph, by name.
        fp32_graph: The layers of the reference.
        constant_values: The constants of the reference.
    """
    fresh_names = FreshNames(graph)
    change_count = 0
    for node in graph:
        producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if node.name not in source_model.added_nodes or node.op_type not in _CLIPPING_OPERATORS or producer is None:
            continue
        reference_name = fp32_layer_by_node.get(producer.name or "")
        next_layer = _find_sole_next_layer(fp32_graph,
                                           fp32_graph.by_name[reference_name]) if reference_name is not None else None
        if next_layer is None:
            continue
        operator = next_layer.op_type if next_layer.op_type in _CLIPPING_OPERATORS else "Identity"
        bounds = _read_clip_bounds(fp32_graph, next_layer, constant_values) if operator == "Clip" else []
        if operator == "Clip" and bounds is None or _has_same_bounds(node, operator, bounds or []):
            continue
        node.op_type = operator
        node.resize_inputs(1 + len(bounds or []))
        for index, bound in enumerate(bounds or [], 1):
            node.replace_input_with(index, _add_scalar(graph, bound,
                                                       fresh_names.make_unique_name(f"{node.name}__bound")))
        change_count += 1
    return change_count


def _find_sole_next_layer(fp32_graph: LayerGraph, layer: Layer) -> Layer | None:
    """Returns the only reader of a layer's result, after any folded operators; None if there is no reader or several.
    """
    while True:
        readers = fp32_graph.readers.get(layer.outputs[0], [])
        if len(readers) != 1:
            return None
        layer = fp32_graph.by_name[readers[0]]
        if layer.op_type not in _FOLDED_OPERATORS:
            return layer


def _read_clip_bounds(fp32_graph: LayerGraph, layer: Layer,
                      constant_values: ConstantValues) -> list[float | None] | None:
    """Returns the bounds of a Clip, with None for an absent bound; None if the bounds are computed."""
    bounds: list[float | None] = []
    for tensor in layer.inputs[1:]:
        if tensor and tensor not in fp32_graph.constant_tensors:
            return None
        bounds.append(float(constant_values.constant_value(tensor).reshape(())) if tensor else None)
    return bounds


def _has_same_bounds(node: ir.Node, expected_operator: str, expected_bounds: list[float | None]) -> bool:
    own_bounds = [None if value is None or value.const_value is None else float(value.const_value.numpy().reshape(()))
                  for value in node.inputs[1:]]
    return node.op_type == expected_operator and own_bounds == expected_bounds


def _add_scalar(graph: ir.Graph, number: float | None, name: str) -> ir.Value | None:
    if number is None:
        return None
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]),
                     const_value=ir.tensor(np.float32(number), name=name))
    graph.register_initializer(value)
    return value


class _Fp32Network:
    """The FP32 reference network: its layers and the values of its constants."""

    def __init__(self, opened_model: OpenedModel, get_backend: Callable[[], Backend] | None) -> None:
        self.graph = LayerGraph(opened_model.model)
        self.constant_values = ConstantValues(self.graph, opened_model.model, get_backend)


def restore_original_weights(opened_model: OpenedModel, file_name: str, fp32_model: OpenedModel, fp32_path: Path,
                             get_backend: Callable[[], Backend] | None) -> None:
    """Replaces the weights of a quantized network by those of its FP32 network (the reference), in place.

    Groups in file precision keep the weights of the file.

    The weights of a quantized file already contain the quantization error, so errors measured against them would hide
    it. Layers are matched by name. Layers that the quantizer renamed are matched by operator and shapes, in order. A
    weight is replaced only if the reference weight is similar: quantizers also fold (a BatchNormalization into the Conv
    before it), and a folded weight has no counterpart.

    Args:
        opened_model: The quantized network.
        file_name: The name of the quantized network's file.
        fp32_model: The FP32 network.
        fp32_path: The file of the FP32 network.
        get_backend: Returns the backend that evaluates the constant expressions of the FP32 network.

    Raises:
        InputError: the reference is in FP32, and no quantized layer has a weight similar to one in the reference.
    """
    source_model = opened_model.source_model
    integer_nodes = [
        node.name or "" for node in opened_model.model.graph if node.op_type in ("ConvInteger", "MatMulInteger")
    ]
    if source_model is None or fp32_model.source_model is not None or integer_nodes:
        reason_text = f"computes on quantized values in {name_list_text(integer_nodes, max_count=2)}" \
            if integer_nodes else \
            f"keeps its own dequantized weights, because {fp32_path.name} is itself quantized or in 16 bits"
        opened_model.notes.append(
            f"{file_name} {reason_text}: only its outputs are compared with {fp32_path.name}'s.")
        return
    original = _Fp32Network(fp32_model, get_backend)
    reference_names = _match_nodes_to_fp32_layers(opened_model.model.graph, original.graph)
    replaced_names, unmatched_layers = [], []
    for value, ports in _list_weights_with_readers(opened_model.model.graph):
        array = _find_original_weight(value, ports, reference_names, original)
        if array is not None:
            value.const_value = ir.tensor(array, name=value.name)
            replaced_names.append(value_name(value))
        elif ports[0][0].op_type in PRODUCTS and ports[0][1] < 2:
            unmatched_layers.append(ports[0][0].name or "")
    if not any(node.op_type in PRODUCTS
               for value, ports in _list_weights_with_readers(opened_model.model.graph)
               for node, _ in ports
               if value.name in set(replaced_names)):
        raise InputError(
            f"{fp32_path.name} is not a reference of {file_name}",
            f"it has no weights like those of {name_list_text(unmatched_layers) or 'its layers'}",
            f"Name the FP32 network that {file_name} was made from.")
    replaced_names += _restore_constants_beyond_16_bits(opened_model.model.graph, reference_names, original,
                                                        frozenset(replaced_names))
    source_model.replaced_constants = frozenset(replaced_names)
    change_count = restore_original_activations(opened_model.model.graph, source_model, reference_names, original.graph,
                                                original.constant_values)
    opened_model.external_files += [fp32_path, *fp32_model.external_files]
    opened_model.notes.append(
        f"FP32 means the weights of {fp32_path.name}." if not unmatched_layers else
        f"FP32 means the weights of {fp32_path.name}, but for {counted_noun_text(len(unmatched_layers), 'layer')} "
        f"without matching weights, which keep their dequantized weights: {name_list_text(unmatched_layers)}.")
    if change_count:
        opened_model.notes.append(
            f"{counted_noun_text(change_count, 'activation')} restored as "
            f"{fp32_path.name} has them, not as their ranges "
            "suggest.")
    if not unmatched_layers:
        opened_model.notes = [note for note in opened_model.notes if note != quantized_weights_note(source_model)]


def _restore_constants_beyond_16_bits(graph: ir.Graph, fp32_layer_by_node: dict[str, str], fp32_network: _Fp32Network,
                                      replaced_names: frozenset[str]) -> list[str]:
    """Replaces constants that 16-bit types could not represent: masks that became infinite, epsilons that became 0.

    Returns their names. A constant is taken only if it rounds to the file's own.
    """
    ports_by_value: dict[ir.Value, list[_InputPort]] = defaultdict(list)
    for node in graph:
        for index, value in enumerate(node.inputs):
            constant = stored_tensor(value)
            if value is not None and constant is not None and constant.dtype is ir.DataType.FLOAT \
                    and value_name(value) not in replaced_names:
                ports_by_value[value].append((node, index))
    restored_names = []
    for value, value_ports in ports_by_value.items():
        constant = stored_tensor(value)
        assert constant is not None  # checked in the loop above
        own_array = constant.numpy()
        array = _find_original_constant(
            value_ports, fp32_layer_by_node,
            fp32_network) if not np.isfinite(own_array).all() or not own_array.any() else None
        if array is None or np.array_equal(array, own_array) or not _is_equal_after_rounding(array, own_array):
            continue
        tensor, producer = ir.tensor(array, name=value.name), value.producer()
        if producer is None:
            value.const_value = tensor
        else:
            producer.attributes.clear()
            producer.attributes["value"] = ir.AttrTensor("value", tensor)
        restored_names.append(value_name(value))
    return restored_names


def _is_equal_after_rounding(array: np.ndarray, rounded_array: np.ndarray) -> bool:
    """Returns True if an array rounded to FP16 or BF16 equals ``rounded_array``."""
    with np.errstate(over="ignore"):
        return array.shape == rounded_array.shape and any(
            np.array_equal(array.astype(dtype.numpy()).astype(np.float32), rounded_array)
            for dtype in PRECISION_BY_HALF_TYPE)


def _find_original_constant(input_ports: list[_InputPort], fp32_layer_by_node: dict[str, str],
                            fp32_network: _Fp32Network) -> np.ndarray | None:
    """Returns the constant of the reference at the given inputs, float32; None if there is not exactly one."""
    names = set()
    for node, index in input_ports:
        layer = fp32_layer_by_node.get(node.name or "")
        inputs = fp32_network.graph.by_name[layer].inputs if layer is not None else ()
        names.add(inputs[index] if index < len(inputs) else "")
    tensor = names.pop()
    if names or tensor not in fp32_network.graph.constant_tensors or not fp32_network.graph.is_float(tensor):
        return None
    return np.asarray(fp32_network.constant_values.constant_value(tensor), np.float32)


def _list_weights_with_readers(graph: ir.Graph) -> list[tuple[ir.Value, list[_InputPort]]]:
    """Returns the float initializers with more than one element, each with the node inputs that read it."""
    ports_by_weight: dict[ir.Value, list[_InputPort]] = defaultdict(list)
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.producer() is None and value.dtype == ir.DataType.FLOAT \
                    and value.const_value is not None and value.const_value.size > 1:
                ports_by_weight[value].append((node, index))
    return list(ports_by_weight.items())


def _find_original_weight(value: ir.Value, input_ports: list[_InputPort], fp32_layer_by_node: dict[str, str],
                          fp32_network: _Fp32Network) -> np.ndarray | None:
    """Returns the reference weight that corresponds to a weight; None if there is not exactly one or it is not similar.
    """
    array = _find_original_constant(input_ports, fp32_layer_by_node, fp32_network)
    assert value.const_value is not None  # `_list_weights_with_readers` lists only stored weights
    own_array = np.asarray(value.const_value.numpy(), np.float64)
    if array is None or array.shape != own_array.shape:
        return None
    if _is_equal_after_rounding(array, own_array):  # also if the file's constant is infinite
        return array
    energy = float(np.sum(np.square(array, dtype=np.float64)))
    return array if float(np.sum(np.square(own_array - array))) <= MAX_WEIGHT_NOISE_SHARE * energy else None


def _match_nodes_to_fp32_layers(graph: ir.Graph, fp32_graph: LayerGraph) -> dict[str, str]:
    """Returns the matching reference layer for each node, by node name.

    Nodes without a layer of the same name are matched by operator and shapes, in order, if both networks have equally
    many of that kind.
    """
    reference_names: dict[str, str] = {}
    unmatched_nodes: dict[object, list[str]] = defaultdict(list)
    for node in graph:
        name = node.name or ""
        layer = fp32_graph.by_name.get(name)
        if layer is not None and layer.op_type == node.op_type:
            reference_names[name] = name
        else:
            unmatched_nodes[node.op_type,
                            tuple(
                                tuple(constant.shape.numpy()) if (
                                    constant := stored_tensor(value)) is not None else None
                                for value in node.inputs)].append(name)
    matched_names = set(reference_names.values())
    unmatched_layers: dict[object, list[str]] = defaultdict(list)
    for layer in fp32_graph.layers:
        if layer.name not in matched_names:
            sizes = tuple(fp32_graph.shape(tensor) if tensor in fp32_graph.constant_tensors else None
                          for tensor in layer.inputs)
            unmatched_layers[layer.op_type, sizes].append(layer.name)
    for signature, names in unmatched_nodes.items():
        if len(unmatched_layers[signature]) == len(names):
            reference_names.update(zip(names, unmatched_layers[signature], strict=True))
    return reference_names
