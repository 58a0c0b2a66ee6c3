"""The conversion of an ONNX file into a model in the form that the rest of the program requires.

`open_model` reads an ONNX file and returns an onnx-ir model. Every node has a unique name, local functions are inlined,
the opset is at least 17, and shapes are inferred. Q/DQ pairs and 16-bit types are removed and recorded. Weights are not
loaded: initializers in external files are memory-mapped at the first access.

A constant of a quantized file may be a rounding of a constant of an FP32 network, the reference. It is then replaced by
that constant, and so are activations that the quantizer dropped. The result is only a proposal:
`trt_tui.workspace.Workspace.check_reference_weights` executes the network with the proposed weights. FP32 runs use them
only if the outputs equal those of the reference.
"""

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.network import opset_conversion
from trt_tui.core.network.graph import ConstantValues, LayerGraph, register_constant, stored_tensor
from trt_tui.core.network.inference import check_declared_sizes, infer_shapes, propagate_types
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.model_editing import (
    FreshNames,
    assign_node_names,
    collect_by_key,
    inline_functions,
    list_subgraphs,
    value_name,
)
from trt_tui.core.network.model_file import (
    OLDEST_OPSET,
    check_input_types,
    check_operand_ranks,
    check_operator_opsets,
    read_model,
)
from trt_tui.core.network.operators import PRODUCTS, randomness_notes, unsupported_operator_notes
from trt_tui.core.network.opset_conversion import convert_opset, drop_initializer_inputs, find_ir_version
from trt_tui.core.network.qdq import rewrites
from trt_tui.core.network.qdq.rewrites import refusal_summary_lines
from trt_tui.core.network.qdq.source_model import SourceModel, find_overflowing_biases
from trt_tui.core.network.qdq.steps import PRECISION_BY_HALF_TYPE, QdqStep, apply_qdq_step, is_dequantize, read_qdq_step
from trt_tui.core.network.rotary_caches import expand_rotary_caches
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, name_list_text

QUANTIZED_TYPES_OPSET = 21
"""The first opset whose Q and DQ cover the quantized types of TensorRT's and ONNX Runtime's own Q and DQ operators."""

_COMMON_QUANTIZED_TYPES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32)
"""The quantized types that Q and DQ of every opset support."""

BASE_OPSET = 17
"""The lowest opset that the program works in, and the highest that TensorRT 8.6 reads."""


@dataclass
class OpenedModel:
    """The model that `open_model` returns, with facts about the file and the changes made to it.

    Attributes:
        model: The float network, without Q/DQ pairs.
        external_files: The data files that contain the weights.
        notes: Changes that were made, one sentence each.
        quantized_ranges: amax of activation tensors that have Q/DQ pairs in the file, by tensor name.
        source_model: The network with its Q/DQ pairs and 16-bit types, and its relation to the FP32 network. None if
            the file is an FP32 network.
        unused_weights: Initializers that nothing reads, by name; they were removed from the model.
        linear_grid_samples: The names of the GridSamples whose mode linear was removed.
    """

    model: ir.Model
    external_files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    quantized_ranges: dict[str, float] = field(default_factory=dict)
    source_model: SourceModel | None = None
    unused_weights: dict[str, ir.Value] = field(default_factory=dict)
    linear_grid_samples: list[str] = field(default_factory=list)


def open_model(path: Path) -> OpenedModel:
    """Reads an ONNX file and converts the model to the form that the rest of the program requires.

    Raises:
        InputError: the file is missing, empty, not ONNX, truncated, older than opset 7, or its external data is
            missing, too short or outside its folder; or it declares sizes that contradict its operators.
    """
    opened_model = OpenedModel(*read_model(path))
    model = opened_model.model
    opset = model.graph.opset_imports.get("")
    if opset is None:
        if any(node.domain == "" for node in model.graph):
            raise InputError(
                f"{path.name} has no opset",
                "its opset_import has no entry for ONNX's own operators",
                "Export the network again with a current exporter.",
            )
        opset = model.graph.opset_imports[""] = BASE_OPSET
    if opset < OLDEST_OPSET:
        raise InputError(
            f"{path.name} uses opset {opset}",
            f"opsets before {OLDEST_OPSET} are not read",
            f"Export the network again with opset {BASE_OPSET} or higher.",
        )
    if len(model.graph) == 0:
        raise InputError(f"{path.name} has no nodes", "the file holds an empty graph", "Check the export.")
    drop_initializer_inputs(model.graph)
    _add_subgraph_output_identities(model)
    inline_functions(model, path.name)
    assign_node_names(model.graph)
    check_operator_opsets(model.graph, opset, path.name)
    check_input_types(model.graph, opset, path.name)
    check_declared_sizes(model, path.name)
    if opset < BASE_OPSET:
        opened_model.model = model = _convert_opened_model(opened_model, path, opset, BASE_OPSET)
    opened_model.linear_grid_samples = opset_conversion.drop_linear_grid_sample_modes(model)
    opened_model.notes += _grid_sample_notes(model, opened_model.linear_grid_samples)
    model.ir_version = max(model.ir_version, find_ir_version(model.graph.opset_imports[""]))
    model.graph.sort()
    if rotary_note := expand_rotary_caches(model):
        opened_model.notes.append(rotary_note)
    if count := rewrites.rewrite_quantized_copies(model.graph):
        opened_model.notes.append(
            f"{counted_noun_text(count, 'operator')} on quantized values, read and written as Q/DQ with the same "
            "values: TensorRT accepts no other form."
        )
    has_file_types = rewrites.has_half_precision(model.graph) or any(is_dequantize(node) for node in model.graph)
    original_model = model.clone() if has_file_types else None
    conversion = rewrites.Fp32Conversion(opened_model.quantized_ranges, notes=opened_model.notes)
    rewrites.remove_qdq_pairs(model.graph, conversion)
    _drop_unused_weights(opened_model)
    if has_file_types:
        rewrites.upcast_to_fp32(model.graph, conversion)
    if original_model is not None and conversion.has_changes:
        source_model = opened_model.source_model = SourceModel(
            original_model, conversion.source_tensors, conversion.added_nodes
        )
        opened_model.notes += _source_model_notes(source_model)
    opset = model.graph.opset_imports[""]
    if (
        opset < QUANTIZED_TYPES_OPSET
        and original_model is not None
        and any(
            is_dequantize(node)
            and (
                node.domain == "trt"
                or node.domain
                and read_qdq_step(node).quantized_dtype not in _COMMON_QUANTIZED_TYPES
            )
            for node in original_model.graph
        )
    ):
        opened_model.model = model = _convert_opened_model(opened_model, path, opset, QUANTIZED_TYPES_OPSET)
    inference_error = infer_shapes(model)
    if propagate_types(model):
        inference_error = infer_shapes(model)
    if inference_error:
        opened_model.notes.append(f"Shapes could not be inferred, so some layers may lack details: {inference_error}")
    check_operand_ranks(model.graph, path.name)
    for removed_name, source_name in rewrites.drop_identity_casts(model.graph).items():
        if (amax := opened_model.quantized_ranges.pop(removed_name, None)) is not None:
            opened_model.quantized_ranges[source_name] = max(amax, opened_model.quantized_ranges.get(source_name, 0.0))
    nodes = list(model.graph.all_nodes())
    opened_model.notes += [
        f"{node.name} (BatchNormalization) is in training mode: it takes the statistics of each batch, "
        "and TensorRT refuses it. Export the network in evaluation mode."
        for node in nodes
        if node.op_type == "BatchNormalization"
        and node.domain == ""
        and "training_mode" in node.attributes
        and node.attributes["training_mode"].as_int()
    ]
    opened_model.notes += randomness_notes(nodes) + unsupported_operator_notes(nodes)
    return opened_model


def _grid_sample_notes(model: ir.Model, linear_grid_samples: list[str]) -> list[str]:
    """Returns notes for the user on GridSamples whose mode TensorRT's parser interprets differently from ONNX."""
    notes = []
    if linear_grid_samples:
        notes.append(
            f"{name_list_text(linear_grid_samples, max_count=2)} (GridSample): the parsers of TensorRT up to 11.1 and "
            "of TensorRT-RTX "
            "up to 1.5 read the mode linear of this file as nearest. Files that are written here leave the "
            "mode out, which is read as linear; build from these."
        )
    if node_names := opset_conversion.find_cubic_grid_samples(model):
        notes.append(
            f"{opset_conversion.CUBIC_GRID_NOTE.format(name_list_text(node_names, max_count=2))}. "
            f"{opset_conversion.CUBIC_GRID_NEXT_STEP}"
        )
    return notes


def _source_model_notes(source_model: SourceModel) -> list[str]:
    """Returns notes for the user on the precisions of a quantized or typed model file, one sentence each."""
    notes = [
        *refusal_summary_lines(source_model.node_refusals),
        f"The file sets precisions ({', '.join(source_model.type_names)}): layers run in file precision, and errors are "
        "taken against the FP32 network with its weights.",
    ]
    if runtime_nodes := source_model.list_unsimulated_quantizations():
        notes.append(
            f"An execution computes the scales of {counted_noun_text(len(runtime_nodes), 'activation')} "
            f"({runtime_nodes[0]}), in a form that is not MXFP8 or NVFP4 of TensorRT: that is "
            "written back as it is, and is not simulated."
        )
    if source_model.infinite_scale_nodes:
        notes.append(
            f"The scale of "
            f"{name_list_text(source_model.infinite_scale_nodes, max_count=2)} is infinite: what it quantizes "
            f"becomes NaN. "
            "Quantizers write that for masks of -inf; quantize the network again without those layers."
        )
    if bias_nodes := find_overflowing_biases(source_model):
        notes.append(
            f"ONNX Runtime cannot quantize the bias of "
            f"{name_list_text(bias_nodes, max_count=2)}, as it does under its "
            "default options: bias / (input scale x weight scale) overflows. Its results are wrong there, "
            "those of TensorRT are not. Load the file with the session's entry session.disable_quant_qdq "
            "set to 1."
        )
    if source_model.quantized_weight_count:
        notes.append(quantized_weights_note(source_model))
    return notes


def quantized_weights_note(source_model: SourceModel) -> str:
    count = source_model.quantized_weight_count
    return (
        f"{counted_noun_text(count, 'weight')} {'is' if count == 1 else 'are'} stored only as quantized values: their "
        "quantization error is unknown, and FP32 means the dequantized weights; name the original network with "
        "--reference FP32.onnx."
    )


def _add_subgraph_output_identities(model: ir.Model) -> None:
    """Inserts an Identity wherever a subgraph directly returns a value of an outer graph, which no runtime accepts."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        if next(graph.subgraphs(), None) is not None:
            _add_identities_for_outer_values(graph, ChainMap(), FreshNames(graph))


def _add_identities_for_outer_values(
    graph: ir.Graph, outer_values: ChainMap[str | None, ir.Value], fresh_names: FreshNames
) -> None:
    own_values = {
        value.name: value
        for value in (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
    }
    for index, value in enumerate(graph.outputs):
        if value.name not in own_values and value.name in outer_values:
            # onnx-ir represents it by another value, which has no producer
            identity = ir.node(
                "Identity",
                [outer_values[value.name]],
                outputs=[
                    ir.val(fresh_names.make_unique_name(f"{value.name}_returned"), shape=value.shape, type=value.type)
                ],
            )
            graph.append(identity)
            graph.outputs[index] = identity.outputs[0]
    inner_values = outer_values.new_child(own_values)
    for node in graph:
        for subgraph in list_subgraphs(node):
            _add_identities_for_outer_values(subgraph, inner_values, fresh_names)


def _drop_unused_weights(opened_model: OpenedModel) -> None:
    """Removes initializers without readers, which come from the exporter or from removed Q/DQ pairs.

    `onnx_ir.passes.common.RemoveUnusedNodesPass` would also remove unused nodes, which the user wants to see.
    """
    initializers = opened_model.model.graph.initializers
    for name, value in list(initializers.items()):
        if not value.uses() and not value.is_graph_output():
            opened_model.unused_weights[name] = initializers.pop(name)


def _convert_opened_model(opened_model: OpenedModel, path: Path, source_opset: int, target_opset: int) -> ir.Model:
    if source_opset < 9 and any(node.op_type == "Scan" for node in opened_model.model.graph.all_nodes()):
        raise InputError(
            f"{path.name} uses opset {source_opset}, which could not be converted to {target_opset}",
            "the Scan of opset 8 has another form",
            f"Export the network again with opset {target_opset}.",
        )
    try:
        # The converter requires a model that passes the IR rules of its checker.
        opened_model.model.ir_version = max(opened_model.model.ir_version, 4)
        opened_model.notes += opset_conversion.parser_difference_notes(opened_model.model, target_opset)
        model = convert_opset(opened_model.model, target_opset)
    except Exception as error:
        if source_opset >= 13:
            opened_model.notes.append(f"Kept at opset {source_opset}: onnx's version converter says: {error}")
            return opened_model.model
        raise InputError(
            f"{path.name} uses opset {source_opset}, which could not be converted to {target_opset}",
            str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__,
            f"Export the network again with opset {target_opset} or higher.",
        ) from None
    opened_model.notes.append(f"Converted from opset {source_opset} to {target_opset}.")
    return model


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
        arrays = {
            name: self.values.constant_value(name)
            for layer in graph.layers
            for name in layer.inputs
            if name in graph.constant_tensors and graph.is_fp32(name)
        }
        self._names_by_shape = collect_by_key((_shape_without_ones(array), name) for name, array in arrays.items())
        self._signatures = {name: _take_evenly_spaced_elements(array) for name, array in arrays.items()}

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
    tensors = layer.inputs[1:]
    if not fp32_graph.constant_tensors.issuperset(filter(None, tensors)):
        return None
    return [float(constant_values.constant_value(tensor).reshape(())) if tensor else None for tensor in tensors]


def _has_same_bounds(node: ir.Node, expected_operator: str, expected_bounds: list[float | None]) -> bool:
    own_bounds = [
        None if value is None or value.const_value is None else float(value.const_value.numpy().reshape(()))
        for value in node.inputs[1:]
    ]
    return node.op_type == expected_operator and own_bounds == expected_bounds
