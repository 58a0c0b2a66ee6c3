"""The conversion of an ONNX file into a model in the form that the rest of the program requires.

`open_model` reads an ONNX file and returns an onnx-ir model. Every node has a unique name, local functions are inlined,
the opset is at least 17, and shapes are inferred. Q/DQ pairs and 16-bit types are removed and recorded. Weights are not
loaded: initializers in external files are memory-mapped at the first access.
"""

from collections import ChainMap
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from trt_tui.core.network import opset_conversion
from trt_tui.core.network.inference import check_declared_sizes, infer_shapes, propagate_types
from trt_tui.core.network.model_editing import FreshNames, assign_node_names, inline_functions, list_subgraphs
from trt_tui.core.network.model_file import read_model
from trt_tui.core.network.operators import randomness_notes, unsupported_operator_notes
from trt_tui.core.network.opset_conversion import convert_opset, drop_initializer_inputs, find_ir_version
from trt_tui.core.network.qdq import rewrites
from trt_tui.core.network.qdq.rewrites import refusal_summary_lines
from trt_tui.core.network.qdq.source_model import SourceModel, find_overflowing_biases
from trt_tui.core.network.qdq.steps import is_dequantize, read_qdq_step
from trt_tui.core.network.rotary_caches import expand_rotary_caches
from trt_tui.core.network.structure_check import (
    OLDEST_OPSET,
    check_input_types,
    check_operand_ranks,
    check_operator_opsets,
)
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
