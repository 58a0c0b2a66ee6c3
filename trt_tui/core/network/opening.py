"""From a file to a model that the rest of the program can rely on.

`open_model` reads an ONNX file and returns an onnx-ir model in which every node has a unique name, local functions are
inlined, the opset is at least 17, Q/DQ pairs and 16-bit types are taken out and remembered, and shapes are inferred.
Weights stay where they are: initializers in external files are memory-mapped when somebody reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.network.inlining import inline_functions
from trt_tui.core.network.naming import Names, name_nodes
from trt_tui.core.network.reading import SMALL_TENSOR_BYTES, read_model
from trt_tui.core.network.structure import OLDEST_OPSET, check_ranks
from trt_tui.errors import InputError

BASE_OPSET = 17
"""The lowest opset that the program works in; TensorRT 8.6 reads no higher one."""

_LOW_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type")


@dataclass
class Opened:
    """A model as `open_model` returns it, and what was found on the way.

    Attributes:
        model: Float network, Q/DQ pairs taken out.
        external_files: The data files that the weights lie in.
        notes: What was changed at opening, one sentence each.
        quantized_ranges: amax of activation tensors that carried Q/DQ pairs, by tensor name.
        quantized_layers: Names of nodes that the file runs in INT8.
        unused_weights: Initializers that nothing reads, by name, taken out of the model.
    """

    model: ir.Model
    external_files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    quantized_ranges: dict[str, float] = field(default_factory=dict)
    quantized_layers: set[str] = field(default_factory=set)
    unused_weights: dict[str, ir.Value] = field(default_factory=dict)


def open_model(path: Path) -> Opened:
    """Reads an ONNX file.

    Raises:
        InputError: the file is missing, empty, not ONNX, truncated, older than opset 7, or its external data is
            missing, too short or outside its folder.
    """
    opened = Opened(*read_model(path))
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
    inline_functions(model, path.name)
    name_nodes(model.graph)
    if opset < BASE_OPSET:
        opened.model = model = _converted(opened, path, opset, BASE_OPSET)
    model.ir_version = max(model.ir_version, ir_version_for(model.graph.opset_imports[""]))
    model.graph.sort()
    _strip_quantization(opened)
    _drop_unused_weights(opened)
    raised = _raise_low_floats(opened)
    name_nodes(model.graph)  # what was put in may be called as something that was there
    _infer_shapes(model)
    check_ranks(model.graph, path.name)
    if raised:
        _drop_idle_casts(model.graph)
    return opened


def ir_version_for(opset: int) -> int:
    """The IR version that came with an opset; that of opset 22 for opsets that onnx does not know."""
    try:
        return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    except ValueError:
        return 10


def _drop_initializer_inputs(graph: ir.Graph) -> None:
    """Old files list every weight among the inputs; only what has no value is an input."""
    kept = [value for value in graph.inputs if value.name not in graph.initializers]
    if len(kept) != len(graph.inputs):
        graph.inputs.clear()
        graph.inputs.extend(kept)


def _drop_unused_weights(opened: Opened) -> None:
    """Takes out initializers that nothing reads: left by exporters, or by Q/DQ pairs that went.

    `onnx_ir.passes.common.RemoveUnusedNodesPass` would take nodes with them, which belong to what the file shows.
    """
    initializers = opened.model.graph.initializers
    for name, value in list(initializers.items()):
        if not value.uses() and not value.is_graph_output():
            opened.unused_weights[name] = initializers.pop(name)


def without_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.Value]]:
    """The model without its big weights, and those by name.

    The weights over 1 KiB stand as graph inputs, so that neither size limits nor copies matter. The given model is left
    as it was.
    """
    graph = model.graph
    inputs = list(graph.inputs)
    initializers = list(graph.initializers.values())
    big = [v for v in initializers
           if v.const_value is not None
           and (v.const_value.nbytes > SMALL_TENSOR_BYTES or isinstance(v.const_value, ir.ExternalTensor))]
    for value in big:
        value.shape = value.shape or ir.Shape(value.const_value.shape)
        value.dtype = value.dtype or value.const_value.dtype
        del graph.initializers[value.name]
    graph.inputs.extend(big)
    try:
        return ir.to_proto(model), {value.name: value for value in big}
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        for value in initializers:
            graph.initializers[value.name] = value


def _with_weights(proto: onnx.ModelProto, weights: dict[str, ir.Value]) -> ir.Model:
    """The model of a skeleton, its big weights put back."""
    model = ir.from_proto(proto)
    graph = model.graph
    inputs = list(graph.inputs)
    graph.inputs.clear()
    graph.inputs.extend(value for value in inputs if value.name not in weights)
    for value in inputs:
        weight = weights.get(value.name)
        if weight is not None:
            value.const_value, value.shape, value.type = weight.const_value, weight.shape, weight.type
            graph.initializers[value.name] = value
    return model


def convert_opset(model: ir.Model, opset: int) -> ir.Model:
    """The model at a higher opset, by onnx's version converter.

    Raises:
        Exception: whatever the converter raises for an operator that it cannot convert.
    """
    skeleton, weights = without_weights(model)
    converted = _with_weights(onnx.version_converter.convert_version(skeleton, opset), weights)
    _name_replacements(model.graph, converted.graph)
    before = {node.name: node for node in model.graph}
    for node in converted.graph:
        if node.name in before:
            node.metadata_props.update(before[node.name].metadata_props)
            node.meta.update(before[node.name].meta)
    name_nodes(converted.graph)
    converted.ir_version = max(model.ir_version, ir_version_for(opset))
    _drop_initializer_inputs(converted.graph)
    return converted


def _name_replacements(before: ir.Graph, after: ir.Graph) -> None:
    """Gives operators that the converter wrote anew the names, of output too, that they had (Upsample is Resize)."""
    known = {node.name for node in after}
    tensors = {value.name for node in after for value in node.outputs} | set(after.initializers)
    lost = [node for node in before if node.name not in known]
    for node in after:
        if node.name:
            continue
        old = next((one for one in lost if one.op_type == node.op_type
                    or (one.op_type, node.op_type) == ("Upsample", "Resize")), None)
        if old is None:
            continue
        lost.remove(old)
        node.name = old.name
        for new, value in zip(node.outputs, old.outputs, strict=False):
            if value.name and value.name not in tensors:
                new.name = value.name


def _converted(opened: Opened, path: Path, opset: int, target: int) -> ir.Model:
    if opset < 9 and any(node.op_type == "Scan" for node in opened.model.graph.all_nodes()):
        raise InputError(f"{path.name} uses opset {opset}, which could not be converted to {target}",
                         "the Scan of opset 8 has another form", f"Export the network again with opset {target}.")
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


def _infer_shapes(model: ir.Model) -> None:
    """Gives values the shapes and types that onnx can infer; leaves them as they are where inference gives up."""
    try:
        graph = onnx.shape_inference.infer_shapes(without_weights(model)[0], data_prop=True).graph
    except Exception:
        return
    found = {info.name: info for info in (*graph.value_info, *graph.output)}
    for node in model.graph:
        for value in node.outputs:
            if value.name in found:
                ir.serde.deserialize_value_info_proto(found[value.name], value)


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


def _strip_quantization(opened: Opened) -> None:
    """Takes Q/DQ pairs out of the graph, remembering their ranges and the layers they feed.

    A DequantizeLinear on an INT8, UINT8 or INT32 constant becomes the FP32 constant that it computes (TensorRT takes no
    int32 bias with a DequantizeLinear); on other types it stays: it is how a weight is stored.
    """
    graph = opened.model.graph
    pairs = asymmetric = 0
    sources: dict[ir.Node, ir.Value] = {}
    activations = _Activations(graph)
    for node in [one for one in graph if one.op_type == "DequantizeLinear" and one.domain == ""]:
        quantize = node.inputs[0].producer() if node.inputs[0] is not None else None
        if quantize is None or quantize.op_type != "QuantizeLinear":
            stored = constant_tensor(node.inputs[0])
            if stored is not None:
                if stored.dtype == ir.DataType.INT8:
                    opened.quantized_layers.update(use.node.name for use in node.outputs[0].uses())
                _fold_dequantize(graph, node, stored)
            continue
        source = sources.get(quantize) or quantize.inputs[0]
        scale = constant_tensor(node.inputs[1])
        zero = constant_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
        if scale is not None and scale.size == 1 and constant_tensor(source) is None \
                and (zero is None or zero.dtype in (ir.DataType.INT8, ir.DataType.UINT8)):
            low, high = _quantized_range(scale, zero)
            if low == 0 and quantize not in sources and _may_be_negative(source):
                source = sources[quantize] = activations.behind(source, high)
            asymmetric += low != -high
            amax = max(high, -low)
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
    if sources:
        opened.notes.append(f"{len(sources)} activations that the quantizer had left to the range of a Q/DQ pair "
                            "that cuts off what is below 0 are Relu and Clip again.")


def _fold_dequantize(graph: ir.Graph, node: ir.Node, stored: ir.TensorProtocol) -> None:
    """Puts an FP32 initializer, computed when somebody reads it, in place of a DequantizeLinear on a constant."""
    output = node.outputs[0]
    parts = [constant_tensor(value) for value in node.inputs if value is not None]
    block = node.attributes.get("block_size")
    if (stored.dtype not in (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32) or None in parts
            or output.is_graph_output() or (block is not None and block.as_int())):
        return
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1

    def dequantized() -> ir.Tensor:
        codes, scale, *zero = (part.numpy() for part in parts)
        shape = [1] * codes.ndim
        if scale.size > 1:
            shape[axis] = scale.size
        codes = codes.astype(np.float32)
        if zero:
            codes -= zero[0].astype(np.float32).reshape(shape)
        return ir.tensor(codes * scale.astype(np.float32).reshape(shape))

    value = ir.Value(name=output.name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(stored.shape))
    value.const_value = ir.LazyTensor(dequantized, dtype=ir.DataType.FLOAT, shape=ir.Shape(stored.shape), cache=True,
                                      name=output.name)
    output.name = f"{output.name}__dequantized"
    output.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.register_initializer(value)


def _quantized_range(scale: ir.TensorProtocol, zero: ir.TensorProtocol | None) -> tuple[float, float]:
    """The least and the largest value that a Q/DQ pair lets through, without the code -128 where 0 is the middle."""
    step = float(scale.numpy().astype(np.float64).reshape(()))
    point = 0 if zero is None else int(zero.numpy().reshape(()))
    codes = np.iinfo(np.uint8 if zero is None else zero.dtype.numpy())
    low = codes.min - point
    high = codes.max - point
    return step * (-high if low == -high - 1 else low), step * high


def _may_be_negative(value: ir.Value) -> bool:
    """Whether a value is what a Conv, MatMul or the like computes, behind which a quantizer drops a Relu."""
    node = value.producer()
    return node is not None and node.op_type in (
        "Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "MatMul", "Sub")


class _Activations:
    """The activations that a quantizer left to the ranges of its pairs, put back: one of a kind for each tensor."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[ir.Value, str], ir.Value] = {}

    @cached_property
    def _names(self) -> Names:
        return Names(self._graph)

    def behind(self, value: ir.Value, high: float) -> ir.Value:
        """The value behind a Relu or, where its range ends at 6, a Clip to 0 and 6 (ReLU6)."""
        operator = "Clip" if abs(high - 6) < 0.01 else "Relu"
        if (value, operator) not in self._known:
            self._known[value, operator] = self._new(value, operator)
        return self._known[value, operator]

    def _new(self, value: ir.Value, operator: str) -> ir.Value:
        inputs = [value]
        for bound in (0, 6) if operator == "Clip" else ():
            name = self._names.new(f"{value.name}__{bound}")
            limit = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]),
                             const_value=ir.tensor(np.float32(bound), name=name))
            self._graph.register_initializer(limit)
            inputs.append(limit)
        producer = value.producer()
        node = ir.Node("", operator, inputs, name=f"{producer.name}__relu",
                       metadata_props=dict(producer.metadata_props))
        output = node.outputs[0]
        output.name = self._names.new(f"{value.name}__relu")
        output.type, output.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        node.meta.update(producer.meta)
        self._graph.insert_after(producer, node)
        return output


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


def _raise_low_floats(opened: Opened) -> bool:
    """Turns a network typed in FP16 or BF16 into the FP32 network it was made from; inputs and outputs keep types.

    Returns whether there was anything to turn.
    """
    graph = opened.model.graph
    subgraphs = list(graph.subgraphs())
    stored = [v for one in (graph, *subgraphs) for v in one.initializers.values()
              if v.const_value is not None and v.const_value.dtype in _LOW_FLOATS]
    inputs = [v for v in graph.inputs if v.dtype in _LOW_FLOATS]
    casts = [n for n in graph.all_nodes()
             if n.op_type == "Cast" and n.domain == "" and n.attributes["to"].as_int() in _LOW_FLOATS]
    constants = [n for n in graph.all_nodes() for a in n.attributes.values()
                 if a.type == ir.AttributeType.TENSOR and a.value.dtype in _LOW_FLOATS]
    if not (stored or inputs or casts or constants):
        return False
    names = Names(graph)
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
            if attr.name in _TYPE_ATTRIBUTES and attr.type == ir.AttributeType.INT and attr.value in _LOW_FLOATS:
                node.attributes[attr.name] = ir.AttrInt64(attr.name, int(ir.DataType.FLOAT))
        for output in node.outputs:
            if output.dtype in _LOW_FLOATS:
                output.dtype = ir.DataType.FLOAT
    for value in (v for one in subgraphs for v in (*one.inputs, *one.outputs)):
        if value.dtype in _LOW_FLOATS:
            value.dtype = ir.DataType.FLOAT
    for value in inputs:
        cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(ir.DataType.FLOAT))},
                       name=f"{value.name}__to_fp32")
        cast.outputs[0].name = names.new(f"{value.name}__fp32")
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
        value.name = names.new(f"{name}__fp32")
        cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(dtype))}, name=f"{name}__to_output_type")
        cast.outputs[0].name = name
        cast.outputs[0].dtype, cast.outputs[0].shape = dtype, value.shape
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]
    opened.notes.append("The file is typed in 16 bits; it is read as the FP32 network with the same weights, which is "
                        "what every error is measured against.")
    return True


def _drop_idle_casts(graph: ir.Graph) -> None:
    """Takes out Casts from FP32 to FP32: what is left of Casts between 16 bits and 32."""
    for node in list(graph):
        if node.op_type == "Cast" and node.domain == "" and not node.outputs[0].is_graph_output() \
                and node.inputs[0].dtype == node.outputs[0].dtype == ir.DataType.FLOAT:
            node.outputs[0].replace_all_uses_with(node.inputs[0])
            graph.remove(node, safe=True)


def _as_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.LazyTensor(lambda: ir.tensor(tensor.numpy().astype(np.float32)), dtype=ir.DataType.FLOAT,
                         shape=ir.Shape(tensor.shape), cache=True, name=tensor.name)
