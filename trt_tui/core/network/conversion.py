"""Models at another opset, and models without their big weights, for what onnx does in C++."""

import onnx
import onnx_ir as ir

from trt_tui.core.network import adapters, plugins
from trt_tui.core.network.naming import name_nodes
from trt_tui.core.network.opset_changes import NEWEST_WRITTEN_OPSET
from trt_tui.core.network.reading import SMALL_TENSOR_BYTES


def ir_version_for(opset: int) -> int:
    """The IR version that came with an opset; that of opset 22 for opsets that onnx does not know."""
    try:
        return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    except ValueError:
        return 10


def without_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.Value]]:
    """The model without its big weights, and those by name.

    The weights over 1 KiB stand as graph inputs, so that neither size limits nor copies matter. The given model is left
    as it was.
    """
    graph = model.graph
    inputs = list(graph.inputs)
    initializers = dict(graph.initializers)
    big: dict[str, ir.Value] = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and (tensor.nbytes > SMALL_TENSOR_BYTES or isinstance(tensor, ir.ExternalTensor)):
            value.shape = value.shape or ir.Shape(tensor.shape.numpy())
            value.dtype = value.dtype or tensor.dtype
            big[name] = graph.initializers.pop(name)
    graph.inputs.extend(big.values())
    try:
        return ir.to_proto(model), big
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        graph.initializers.update(initializers)


def _with_weights(proto: onnx.ModelProto, weights: dict[str, ir.Value]) -> ir.Model:
    """The model of a skeleton, its big weights put back."""
    model = ir.from_proto(proto)
    graph = model.graph
    inputs = list(graph.inputs)
    graph.inputs.clear()
    graph.inputs.extend(value for value in inputs if value.name not in weights)
    for value in inputs:
        weight = weights.get(value.name or "")
        if weight is not None and weight.name:
            value.const_value, value.shape, value.type = weight.const_value, weight.shape, weight.type
            graph.initializers[weight.name] = value
    return model


def convert_opset(model: ir.Model, opset: int) -> ir.Model:
    """The model at a higher opset, by onnx's version converter and `trt_tui.core.network.adapters`.

    Raises:
        Exception: whatever the converter raises for an operator that it cannot convert; a ValueError for one whose
            meaning the new opset cannot express, and for an opset whose changes nobody has looked at.
    """
    if opset > NEWEST_WRITTEN_OPSET:
        raise ValueError(f"no network is raised above opset {NEWEST_WRITTEN_OPSET}")
    before_opset = model.graph.opset_imports[""]
    adapters.prepare(model, before_opset, opset)
    with plugins.out_of_the_way(model):
        skeleton, weights = without_weights(model)
    converted = _with_weights(onnx.version_converter.convert_version(skeleton, opset), weights)
    plugins.put_back(converted)
    _name_replacements(model.graph, converted.graph)
    adapters.adapt(converted, before_opset)
    before = {node.name: node for node in model.graph}
    for node in converted.graph:
        if node.name in before:
            node.metadata_props.update(before[node.name].metadata_props)
            node.meta.update(before[node.name].meta)
    name_nodes(converted.graph)
    converted.ir_version = max(model.ir_version, ir_version_for(opset))
    drop_initializer_inputs(converted.graph)
    return converted


def _name_replacements(before: ir.Graph, after: ir.Graph) -> None:
    """Gives operators that the converter rewrote (Upsample is Resize) the names that they and their outputs had."""
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


def drop_initializer_inputs(graph: ir.Graph) -> None:
    """Old files list every weight among the inputs; only what has no value is an input."""
    kept = [value for value in graph.inputs if value.name not in graph.initializers]
    if len(kept) != len(graph.inputs):
        graph.inputs.clear()
        graph.inputs.extend(kept)
