"""From a file to a model that the rest of the program can rely on.

`open_model` reads an ONNX file and returns an onnx-ir model in which every node has a unique name, local functions are
inlined, the opset is at least 17, Q/DQ pairs and 16-bit types are taken out and remembered, and shapes are inferred.
Weights stay where they are: initializers in external files are memory-mapped when somebody reads them.
"""

from collections import ChainMap
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from trt_tui.core.network import adapters, low_floats, quantized
from trt_tui.core.network.bias_quantization import overflowing_biases
from trt_tui.core.network.chance import chance_notes
from trt_tui.core.network.conversion import convert_opset, drop_initializer_inputs, ir_version_for
from trt_tui.core.network.given import Given
from trt_tui.core.network.inference import infer_shapes, refuse_wrong_sizes
from trt_tui.core.network.inlining import inline_functions
from trt_tui.core.network.naming import FreshNames, name_nodes
from trt_tui.core.network.qoperators import read_as_pairs, stored_blocks
from trt_tui.core.network.reading import read_model
from trt_tui.core.network.refused import summary
from trt_tui.core.network.rotary_caches import spread_rotary_caches
from trt_tui.core.network.steps import dequantizes, quantizes, read_step
from trt_tui.core.network.structure import OLDEST_OPSET, check_ranks, refuse_other_opsets
from trt_tui.core.network.types import spread_types
from trt_tui.core.network.unread import unread_notes
from trt_tui.errors import InputError
from trt_tui.words import first_few, plural

_NOTE = ("The file has precisions of its own ({}): layers run as in the file, and errors are taken against the FP32 "
         "network with its weights.")

_CODES_ALONE = ("{} stored as codes alone: what quantizing this lost is not known, and FP32 here means the "
                "weights that the codes stand for; --reference FP32.onnx names the network that they were made from.")

CODES_OPSET = 21
"""The first opset in which Q and DQ hold all that the operators of TensorRT and ONNX Runtime for the same do."""

_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32)
"""The codes that Q and DQ of any opset hold."""

BASE_OPSET = 17
"""The lowest opset that the program works in; TensorRT 8.6 reads no higher one."""


@dataclass
class OpenedModel:
    """A model as `open_model` returns it, and what was found on the way.

    Attributes:
        model: Float network, Q/DQ pairs taken out.
        external_files: The data files that the weights lie in.
        notes: What was changed at opening, one sentence each.
        quantized_ranges: amax of activation tensors that carried Q/DQ pairs, by tensor name.
        as_read: The network before that, with what the FP32 network has of its own; None where it is that network.
        unused_weights: Initializers that nothing reads, by name, taken out of the model.
    """

    model: ir.Model
    external_files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    quantized_ranges: dict[str, float] = field(default_factory=dict)
    as_read: Given | None = None
    unused_weights: dict[str, ir.Value] = field(default_factory=dict)


def open_model(path: Path) -> OpenedModel:
    """Reads an ONNX file.

    Raises:
        InputError: the file is missing, empty, not ONNX, truncated, older than opset 7, or its external data is
            missing, too short or outside its folder; or it declares sizes that contradict its operators.
    """
    opened = OpenedModel(*read_model(path))
    model = opened.model
    opset = model.graph.opset_imports.get("")
    if opset is None:
        if any(node.domain == "" for node in model.graph):
            raise InputError(f"{path.name} names no opset", "its opset_import has no entry for ONNX's own operators",
                             "Export the network again with a current exporter.")
        opset = model.graph.opset_imports[""] = BASE_OPSET
    if opset < OLDEST_OPSET:
        raise InputError(f"{path.name} uses opset {opset}", f"opsets before {OLDEST_OPSET} are not read",
                         f"Export the network again with opset {BASE_OPSET} or higher.")
    if len(model.graph) == 0:
        raise InputError(f"{path.name} has no nodes", "the file holds an empty graph", "Check the export.")
    drop_initializer_inputs(model.graph)
    _end_subgraphs_in_results(model)
    inline_functions(model, path.name)
    name_nodes(model.graph)
    refuse_other_opsets(model.graph, opset, path.name)
    refuse_wrong_sizes(model, path.name)
    if opset < BASE_OPSET:
        opened.model = model = _converted(opened, path, opset, BASE_OPSET)
    opset = model.graph.opset_imports[""]
    if opset < CODES_OPSET and any(stored_blocks(node) for node in model.graph if node.op_type == "MatMulNBits"):
        opened.model = model = _converted(opened, path, opset, CODES_OPSET)
    opened.notes += _grid_notes(model)
    model.ir_version = max(model.ir_version, ir_version_for(model.graph.opset_imports[""]))
    model.graph.sort()
    if spread := spread_rotary_caches(model):
        opened.notes.append(spread)
    if count := read_as_pairs(model.graph):
        opened.notes.append(f"{plural(count, 'operator')} on codes, read and written as Q/DQ with the same codes: "
                            "TensorRT takes no others.")
    lowered = low_floats.has_low_floats(model.graph) or any(dequantizes(node) for node in model.graph)
    as_read = _kept(model) if lowered else None
    found = quantized.take_out_pairs(model.graph)
    opened.quantized_ranges = found.ranges
    opened.notes += found.notes
    _drop_unused_weights(opened)
    raised = low_floats.raise_to_fp32(model.graph) if lowered else low_floats.Raised()
    if as_read is not None and (found.found or raised.found):
        given = opened.as_read = Given(as_read, found.stands_for | raised.stands_for, found.made | raised.made)
        opened.notes += _said_of(given)
    opset = model.graph.opset_imports[""]
    if opset < CODES_OPSET and as_read is not None and any(
            dequantizes(node) and (node.domain == "trt" or node.domain and read_step(node).codes not in _EIGHT_BITS)
            for node in as_read.graph):
        opened.model = model = _converted(opened, path, opset, CODES_OPSET)
    failed = infer_shapes(model)
    if spread_types(model):
        failed = infer_shapes(model)
    if failed:
        opened.notes.append(f"Shapes could not be inferred, so some layers may lack details: {failed}")
    check_ranks(model.graph, path.name)
    for gone, source in low_floats.drop_idle_casts(model.graph).items():
        if (amax := opened.quantized_ranges.pop(gone, None)) is not None:
            opened.quantized_ranges[source] = max(amax, opened.quantized_ranges.get(source, 0.0))
    nodes = list(model.graph.all_nodes())
    opened.notes += [f"{node.name} (BatchNormalization) is in training mode: it takes the statistics of each batch, "
                     "and TensorRT refuses it. Export the network in evaluation mode."
                     for node in nodes if node.op_type == "BatchNormalization" and node.domain == ""
                     and "training_mode" in node.attributes and node.attributes["training_mode"].as_int()]
    opened.notes += chance_notes(nodes) + unread_notes(nodes)
    return opened


def _grid_notes(model: ir.Model) -> list[str]:
    """Writes GridSamples so that TensorRT's parser reads them as ONNX does; returns what to know of it."""
    notes = []
    if found := adapters.leave_out_linear_modes(model):
        notes.append(f"{first_few(found, most=2)} (GridSample): the parsers of TensorRT up to 11.1 and of TensorRT-RTX "
                     "up to 1.5 read the mode linear of this file as nearest. Files that are written here leave the "
                     "mode out, which is read as linear; build from these.")
    if found := adapters.cubic_grids(model):
        notes.append(f"{adapters.CUBIC_READ_AS_NEAREST.format(first_few(found, most=2))}. {adapters.OLDER_CUBIC}")
    return notes


def _said_of(given: Given) -> list[str]:
    """What to know of a file's own precisions, one sentence each."""
    notes = [*summary(given.refused), _NOTE.format(", ".join(sorted(given.words | given.float_words)))]
    unknown = [node.name for node in given.unknown() if quantizes(node)]
    if unknown:
        notes.append(f"{len(unknown)} activations are quantized with scales that a run finds ({unknown[0]}): that is "
                     "written back as it is, and is not simulated.")
    if given.infinite:
        notes.append(f"The scale of {first_few(given.infinite, most=2)} is infinite: what it quantizes becomes NaN. "
                     "Quantizers write that for masks of -inf; quantize the network again without those layers.")
    if found := overflowing_biases(given):
        notes.append(f"ONNX Runtime cannot quantize the bias of {first_few(found, most=2)}, as it does under its "
                     "default options: bias / (input scale x weight scale) overflows. Its results are wrong there, "
                     "those of TensorRT are not. Load the file with the session's entry session.disable_quant_qdq "
                     "set to 1.")
    if given.codes_alone:
        notes.append(codes_alone_note(given))
    return notes


def codes_alone_note(given: Given) -> str:
    """The note on a file that stores weights as codes alone."""
    return _CODES_ALONE.format("1 weight is" if given.codes_alone == 1 else f"{given.codes_alone} weights are")


def _kept(model: ir.Model) -> ir.Model:
    """A copy of a model that keeps its types: those of a clone are the model's own."""
    copy = model.clone()
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for value in (*graph.inputs, *graph.initializers.values(), *(one for node in graph for one in node.outputs)):
            if isinstance(value.type, ir.TensorType):
                value.type = ir.TensorType(value.type.dtype)
    return copy


def _end_subgraphs_in_results(model: ir.Model) -> None:
    """Puts an Identity where a branch or body returns what a graph around it holds, which no runtime takes as it is."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        if next(graph.subgraphs(), None) is not None:
            _end_in_results(graph, ChainMap(), FreshNames(graph))


def _end_in_results(graph: ir.Graph, around: ChainMap[str | None, ir.Value], names: FreshNames) -> None:
    own = {value.name: value for value in (*graph.inputs, *graph.initializers.values(),
                                           *(value for node in graph for value in node.outputs))}
    for index, value in enumerate(graph.outputs):
        if value.name not in own and value.name in around:  # onnx-ir makes another value of it, which nothing makes
            copy = ir.Node("", "Identity", [around[value.name]])
            graph.append(copy)
            result, = copy.outputs
            result.name, result.type, result.shape = names.new(f"{value.name}_returned"), value.type, value.shape
            graph.outputs[index] = result
    inside = around.new_child(own)
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _end_in_results(attribute.as_graph(), inside, names)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for inner in attribute.as_graphs():
                    _end_in_results(inner, inside, names)


def _drop_unused_weights(opened: OpenedModel) -> None:
    """Takes out initializers that nothing reads: left by exporters, or by Q/DQ pairs that went.

    `onnx_ir.passes.common.RemoveUnusedNodesPass` would take nodes with them, which belong to what the file shows.
    """
    initializers = opened.model.graph.initializers
    for name, value in list(initializers.items()):
        if not value.uses() and not value.is_graph_output():
            opened.unused_weights[name] = initializers.pop(name)


def _converted(opened: OpenedModel, path: Path, opset: int, target: int) -> ir.Model:
    if opset < 9 and any(node.op_type == "Scan" for node in opened.model.graph.all_nodes()):
        raise InputError(f"{path.name} uses opset {opset}, which could not be converted to {target}",
                         "the Scan of opset 8 has another form", f"Export the network again with opset {target}.")
    try:
        # The converter wants a model that its own checker's IR rules accept.
        opened.model.ir_version = max(opened.model.ir_version, 4)
        opened.notes += adapters.reading_notes(opened.model, target)
        model = convert_opset(opened.model, target)
    except Exception as error:
        if opset >= 13:
            opened.notes.append(f"Kept at opset {opset}: onnx's version converter says: {error}")
            return opened.model
        raise InputError(f"{path.name} uses opset {opset}, which could not be converted to {target}",
                         str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__,
                         f"Export the network again with opset {target} or higher.") from None
    opened.notes.append(f"Converted from opset {opset} to {target}.")
    return model
