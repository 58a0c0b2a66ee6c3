"""From a file to a model that the rest of the program can rely on.

`open_model` reads an ONNX file and returns an onnx-ir model in which every node has a unique name, local functions are
inlined, the opset is at least 17, Q/DQ pairs and 16-bit types are taken out and remembered, and shapes are inferred.
Weights stay where they are: initializers in external files are memory-mapped when somebody reads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from trt_tui.errors import InputError

BASE_OPSET = 17
"""The lowest opset that the program works in; TensorRT 8.6 reads no higher one."""

OLDEST_OPSET = 7

_IR_VERSIONS = {17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12}
_SMALL_TENSOR_BYTES = 1024
_LOW_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

SCOPE_KEY = "trt_tui.scope"
"""Key in ``Node.meta`` of the call path of an inlined function, a tuple of names."""


@dataclass
class Opened:
    """A model as `open_model` returns it, and what was found on the way.

    Attributes:
        model: Float network, Q/DQ pairs taken out.
        notes: What was changed at opening, one sentence each.
        quantized_ranges: amax of activation tensors that carried Q/DQ pairs, by tensor name.
        quantized_layers: Names of nodes that the file runs in INT8.
        external_files: The data files that the weights lie in.
    """

    model: ir.Model
    notes: list[str] = field(default_factory=list)
    quantized_ranges: dict[str, float] = field(default_factory=dict)
    quantized_layers: set[str] = field(default_factory=set)
    external_files: list[Path] = field(default_factory=list)


def open_model(path: Path) -> Opened:
    """Reads an ONNX file.

    Raises:
        InputError: the file is missing, empty, not ONNX, truncated, older than opset 7, or its external data is
            missing, too short or outside its folder.
    """
    opened = Opened(_read(path))
    _check_external_data(opened, path)
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
    _drop_initializer_inputs(model.graph)
    _inline_functions(model)
    name_nodes(model.graph)
    if opset < BASE_OPSET:
        opened.model = model = _converted(opened, path, opset, BASE_OPSET)
    model.ir_version = max(model.ir_version, _IR_VERSIONS.get(model.graph.opset_imports[""], 10))
    _sort(model.graph, path)
    _strip_quantization(opened)
    _raise_low_floats(opened)
    opened.model = infer_shapes(model)
    return opened


def _read(path: Path) -> ir.Model:
    if not path.exists():
        raise InputError(f"{path} does not exist", "", "Check the path.")
    if path.is_dir():
        raise InputError(f"{path} is a folder", "an ONNX file is needed", "Name the .onnx file in it.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty", "the file has 0 bytes", "Copy or export the network again.")
    try:
        model = ir.load(path)
    except PermissionError as error:
        raise InputError(f"{path} cannot be read", str(error), "Check the file's permissions.") from None
    except FileNotFoundError as error:
        raise _external_error(path, str(error)) from None
    except Exception as error:
        raise InputError(f"{path} is not a complete ONNX file", f"{type(error).__name__}: {error}",
                         "It may be truncated or another format: copy or export the network again.") from None
    if len(model.graph) == 0 and not model.graph.outputs:
        raise InputError(f"{path} is not an ONNX network", "it holds no graph",
                         "It may be truncated or another format: copy or export the network again.")
    return model


def _external_error(path: Path, cause: str) -> InputError:
    return InputError(f"external data of {path.name} cannot be read", cause,
                      "Put the data file beside the .onnx file, under the name it was exported with.")


def _all_graph_tensors(graph: ir.Graph):
    for node in graph.all_nodes():
        for attr in node.attributes.values():
            if attr.type == ir.AttributeType.TENSOR:
                yield attr.value
    yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)
    for subgraph in graph.subgraphs():
        yield from (v.const_value for v in subgraph.initializers.values() if v.const_value is not None)


def _check_external_data(opened: Opened, path: Path) -> None:
    folder = path.absolute().parent
    sizes: dict[str, int] = {}
    for tensor in _all_graph_tensors(opened.model.graph):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location = os.fspath(tensor.location)
        if location not in sizes:
            file = Path(os.path.normpath(folder / location))
            if os.path.isabs(location) or folder not in file.parents:
                raise InputError(f"external data of {path.name} lies outside its folder",
                                 f"tensor {tensor.name} points to {location}",
                                 "Save the network again with its data file beside it.")
            if not file.is_file():
                raise _external_error(path, f"{location} is missing; tensor {tensor.name} needs it")
            if folder.resolve() not in file.resolve().parents:
                raise InputError(f"external data of {path.name} lies outside its folder",
                                 f"{location} is a link to {file.resolve()}, which ONNX libraries refuse to follow",
                                 "Copy the network with its links followed (cp -L) and open the copy.")
            if file.stat().st_nlink > 1:
                raise InputError(f"external data of {path.name} cannot be read",
                                 f"{location} has several hard links, which ONNX libraries refuse to read",
                                 "Copy the network and its data file, and open the copy.")
            opened.external_files.append(file)
            sizes[location] = file.stat().st_size
        end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
        if end > sizes[location]:
            raise _external_error(
                path, f"{location} has {sizes[location]} bytes; tensor {tensor.name} needs {end}: it is truncated")


def _drop_initializer_inputs(graph: ir.Graph) -> None:
    """Old files list every weight among the inputs; only what has no value is an input."""
    kept = [value for value in graph.inputs if value.name not in graph.initializers]
    if len(kept) != len(graph.inputs):
        graph.inputs.clear()
        graph.inputs.extend(kept)


def _inline_functions(model: ir.Model) -> None:
    """Inlines local functions; each call's name becomes a scope of the nodes it expands to."""
    marker = "trt_tui_call_"
    count = 0
    while model.functions:
        calls = [node for node in model.graph.all_nodes() if node.op_identifier() in model.functions]
        if not calls:
            model.functions.clear()
            return
        for call in calls:
            function = model.functions[call.op_identifier()].clone()
            function.overload = f"{marker}{count}"
            count += 1
            scope = (*call.meta.get(SCOPE_KEY, ()), call.name or call.op_type)
            for node in function:
                node.meta[SCOPE_KEY] = scope
                node.name = f"{scope[-1]}/{node.name or node.op_type}"
                for key, value in call.metadata_props.items():
                    node.metadata_props.setdefault(key, value)
            model.functions[function.identifier()] = function
            call.overload = function.overload
        InlinePass(criteria=lambda function: function.overload.startswith(marker))(model)


def name_nodes(graph: ir.Graph) -> None:
    """Gives every node the unique name that TensorRT's parser would give its layer.

    The rule: the node's own name, else ``node_of_<first output>``; a repeated name gets ``_<n>`` appended.
    """
    taken: set[str] = set()
    suffix = 0
    for node in graph:
        wanted = node.name or "node_of_" + next((o.name for o in node.outputs if o.name), node.op_type)
        name = wanted
        while name in taken:
            name = f"{wanted}_{suffix}"
            suffix += 1
        taken.add(name)
        node.name = name


def _sort(graph: ir.Graph, path: Path) -> None:
    try:
        graph.sort()
    except ValueError as error:
        raise InputError(f"{path.name} has a cycle", str(error), "Check the export.") from None


def with_skeleton(model: ir.Model, function: Callable[[onnx.ModelProto], onnx.ModelProto]) -> ir.Model:
    """Applies a function of ``onnx`` to the model without its big weights, and puts them back.

    The weights over 1 KiB stand as graph inputs while ``function`` runs, so that neither size limits nor copies
    matter. The given model is left as it was.
    """
    graph = model.graph
    inputs = list(graph.inputs)
    big = [v for v in graph.initializers.values()
           if v.const_value is not None
           and (v.const_value.nbytes > _SMALL_TENSOR_BYTES or isinstance(v.const_value, ir.ExternalTensor))]
    meta = {node.name: dict(node.meta) for node in graph}
    for value in big:
        value.shape = value.shape or ir.Shape(value.const_value.shape)
        value.dtype = value.dtype or value.const_value.dtype
        del graph.initializers[value.name]
    graph.inputs.extend(big)
    try:
        proto = ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        for value in big:
            graph.initializers[value.name] = value
    result = ir.from_proto(function(proto))
    kept = []
    weights = {value.name: value for value in big}
    for value in list(result.graph.inputs):
        weight = weights.get(value.name)
        if weight is None:
            kept.append(value)
            continue
        value.const_value = weight.const_value
        value.shape = weight.shape
        value.dtype = weight.dtype
    values = [value for value in result.graph.inputs if value.name in weights]
    result.graph.inputs.clear()
    result.graph.inputs.extend(kept)
    for value in values:
        result.graph.initializers[value.name] = value
    for node in result.graph:
        node.meta.update(meta.get(node.name, {}))
    return result


def convert_opset(model: ir.Model, opset: int) -> ir.Model:
    """The model at a higher opset, by onnx's version converter.

    Raises:
        Exception: whatever the converter raises for an operator that it cannot convert.
    """
    metadata = {node.name: dict(node.metadata_props) for node in model.graph}
    converted = with_skeleton(model, lambda proto: onnx.version_converter.convert_version(proto, opset))
    for node in converted.graph:
        node.metadata_props.update(metadata.get(node.name, {}))
    name_nodes(converted.graph)
    converted.ir_version = max(model.ir_version, _IR_VERSIONS.get(opset, 10))
    _drop_initializer_inputs(converted.graph)
    return converted


def _converted(opened: Opened, path: Path, opset: int, target: int) -> ir.Model:
    try:
        # The converter wants a model that its own checker's IR rules accept.
        opened.model.ir_version = max(opened.model.ir_version, 4)
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


def infer_shapes(model: ir.Model) -> ir.Model:
    """The model with the shapes and types that onnx can infer; unchanged where inference gives up."""
    try:
        return with_skeleton(model, lambda proto: onnx.shape_inference.infer_shapes(proto, data_prop=True))
    except Exception:
        return model


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant node's output, without reading it; None for anything else."""
    if value is None:
        return None
    if value.const_value is not None and value.producer() is None:
        return value.const_value
    node = value.producer()
    if node is not None and node.op_type == "Constant" and node.domain == "":
        return ir.convenience.get_const_tensor(value)
    return None


def _strip_quantization(opened: Opened) -> None:
    """Takes Q/DQ pairs out of the graph, remembering their ranges and the layers they feed.

    A DequantizeLinear on a constant stays: it is how a weight (or an int32 bias) is stored.
    """
    graph = opened.model.graph
    pairs = asymmetric = 0
    for node in list(graph):
        if node.op_type != "DequantizeLinear" or node.domain != "":
            continue
        quantize = node.inputs[0].producer() if node.inputs[0] is not None else None
        if quantize is None or quantize.op_type != "QuantizeLinear":
            if constant_tensor(node.inputs[0]) is not None:
                opened.quantized_layers.update(use.node.name for use in node.outputs[0].uses()
                                               if constant_tensor(node.inputs[0]).dtype == ir.DataType.INT8)
            continue
        source = quantize.inputs[0]
        scale = constant_tensor(node.inputs[1])
        if scale is not None and scale.size == 1 and constant_tensor(source) is None:
            zero = constant_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
            amax, shifted = _quantized_amax(scale, zero)
            asymmetric += shifted
            opened.quantized_ranges[source.name] = max(amax, opened.quantized_ranges.get(source.name, 0.0))
        pairs += 1
        opened.quantized_layers.update(use.node.name for use in node.outputs[0].uses())
        _bypass(graph, node.outputs[0], source)
        graph.remove(node, safe=True)
        if not quantize.outputs[0].uses() and not quantize.outputs[0].is_graph_output():
            graph.remove(quantize, safe=True)
    if pairs:
        opened.notes.append(f"Already quantized: {pairs} Q/DQ pairs read as the precision of the layers they feed.")
    if asymmetric:
        opened.notes.append(f"{asymmetric} ranges had a zero point other than 0; TensorRT takes symmetric ranges only, "
                            "so each was widened to its larger side.")


def _quantized_amax(scale: ir.TensorProtocol, zero: ir.TensorProtocol | None) -> tuple[float, bool]:
    step = float(scale.numpy().astype(np.float64).reshape(()))
    if zero is None:
        return step * 127, False
    point = int(zero.numpy().reshape(()))
    low, high = (0, 255) if zero.dtype == ir.DataType.UINT8 else (-128, 127)
    if low == -128 and point == 0:
        return step * 127, False
    return step * max(high - point, point - low), True


def _bypass(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Lets everything that used ``old`` use ``new``; a graph output keeps its name through an Identity."""
    if old.is_graph_output():
        name = old.name
        old.name = f"{name}__dequantized"
        identity = ir.Node("", "Identity", [new], name=f"{name}__output")
        identity.outputs[0].name = name
        identity.outputs[0].shape, identity.outputs[0].type = old.shape, old.type
        graph.append(identity)
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = identity.outputs[0]
    old.replace_all_uses_with(new)


def _raise_low_floats(opened: Opened) -> None:
    """Turns a network typed in FP16 or BF16 into the FP32 network it was made from; inputs and outputs keep types."""
    graph = opened.model.graph
    stored = [v for v in graph.initializers.values()
              if v.const_value is not None and v.const_value.dtype in _LOW_FLOATS]
    inputs = [v for v in graph.inputs if v.dtype in _LOW_FLOATS]
    casts = [n for n in graph.all_nodes() if n.op_type == "Cast" and n.attributes["to"].as_int() in _LOW_FLOATS]
    constants = [n for n in graph.all_nodes() for a in n.attributes.values()
                 if a.type == ir.AttributeType.TENSOR and a.value.dtype in _LOW_FLOATS]
    if not (stored or inputs or casts or constants):
        return
    for value in stored:
        value.const_value = _as_float32(value.const_value)
        value.dtype = ir.DataType.FLOAT
    for node in constants:
        for attr in list(node.attributes.values()):
            if attr.type == ir.AttributeType.TENSOR and attr.value.dtype in _LOW_FLOATS:
                node.attributes[attr.name] = ir.AttrTensor(attr.name, _as_float32(attr.value))
    for node in casts:
        node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
    outputs = {id(v): v.dtype for v in graph.outputs if v.dtype in _LOW_FLOATS}
    for node in graph.all_nodes():
        for attr in list(node.attributes.values()):
            if attr.name in ("dtype", "stash_type") and attr.type == ir.AttributeType.INT and attr.value in _LOW_FLOATS:
                node.attributes[attr.name] = ir.AttrInt64(attr.name, int(ir.DataType.FLOAT))
        for output in node.outputs:
            if output.dtype in _LOW_FLOATS:
                output.dtype = ir.DataType.FLOAT
    for value in inputs:
        cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(ir.DataType.FLOAT))},
                       name=f"{value.name}__to_fp32")
        cast.outputs[0].name = f"{value.name}__fp32"
        cast.outputs[0].dtype, cast.outputs[0].shape = ir.DataType.FLOAT, value.shape
        for use in list(value.uses()):
            use.node.replace_input_with(use.idx, cast.outputs[0])
        cast.replace_input_with(0, value)
        graph.insert_before(graph[0], cast)
    for index, value in enumerate(list(graph.outputs)):
        dtype = outputs.get(id(value))
        if dtype is None or value in inputs:
            continue
        name = value.name
        value.name = f"{name}__fp32"
        cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(dtype))}, name=f"{name}__to_output_type")
        cast.outputs[0].name = name
        cast.outputs[0].dtype, cast.outputs[0].shape = dtype, value.shape
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]
    opened.notes.append("The file is typed in 16 bits; it is read as the FP32 network with the same weights, which is "
                        "what every error is measured against.")


def _as_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.LazyTensor(lambda: ir.tensor(tensor.numpy().astype(np.float32)), dtype=ir.DataType.FLOAT,
                         shape=ir.Shape(tensor.shape), name=tensor.name)
