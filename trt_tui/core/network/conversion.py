"""Models at another opset, and models without their big weights, for what onnx does in C++."""

import onnx
import onnx_ir as ir

from trt_tui.core.network import adapters, plugins
from trt_tui.core.network.model_file import SMALL_TENSOR_BYTES
from trt_tui.core.network.naming import assign_node_names
from trt_tui.core.network.opset_changes import NEWEST_WRITTEN_OPSET


def find_ir_version(opset: int) -> int:
    """The IR version that came with an opset; that of opset 22 for opsets that onnx does not know."""
    try:
        return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    except ValueError:
        return 10


def detach_big_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.Value]]:
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


def _attach_big_weights(proto: onnx.ModelProto, weights: dict[str, ir.Value]) -> ir.Model:
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
    adapters.drop_batch_normalisation_outputs(model, before_opset, opset)
    with plugins.move_plugins_to_own_domain(model):
        skeleton, weights = detach_big_weights(model)
    converted_model = _attach_big_weights(onnx.version_converter.convert_version(skeleton, opset), weights)
    plugins.restore_plugin_domains(converted_model)
    _restore_names_of_replaced_nodes(model.graph, converted_model.graph)
    adapters.adapt_converted_operators(converted_model, before_opset)
    node_by_name = {node.name: node for node in model.graph}
    for node in converted_model.graph:
        if node.name in node_by_name:
            node.metadata_props.update(node_by_name[node.name].metadata_props)
            node.meta.update(node_by_name[node.name].meta)
    assign_node_names(converted_model.graph)
    converted_model.ir_version = max(model.ir_version, find_ir_version(opset))
    drop_initializer_inputs(converted_model.graph)
    return converted_model


def _restore_names_of_replaced_nodes(source_graph: ir.Graph, converted_graph: ir.Graph) -> None:
    """Gives operators that the converter rewrote (Upsample is Resize) the names that they and their outputs had."""
    node_names = {node.name for node in converted_graph}
    tensor_names = {value.name
                    for node in converted_graph
                    for value in node.outputs} | set(converted_graph.initializers)
    lost_nodes = [node for node in source_graph if node.name not in node_names]
    for node in converted_graph:
        if node.name:
            continue
        old_node = next((candidate for candidate in lost_nodes if candidate.op_type == node.op_type
                         or (candidate.op_type, node.op_type) == ("Upsample", "Resize")), None)
        if old_node is None:
            continue
        lost_nodes.remove(old_node)
        node.name = old_node.name
        for new_value, value in zip(node.outputs, old_node.outputs, strict=False):
            if value.name and value.name not in tensor_names:
                new_value.name = value.name


def drop_initializer_inputs(graph: ir.Graph) -> None:
    """Old files list every weight among the inputs; only what has no value is an input."""
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    if len(inputs) != len(graph.inputs):
        graph.inputs.clear()
        graph.inputs.extend(inputs)
