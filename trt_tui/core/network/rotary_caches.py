"""RotaryEmbeddings whose angles leave the batch to broadcasting, as PyTorch's exporter writes them at opset 23.

The operator wants `cos_cache` and `sin_cache` of (batch, sequence, half of the head); ONNX Runtime and TensorRT refuse
one row of them for a batch of several.
"""

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.naming import FreshNames, name_of
from trt_tui.words import plural

_DATA, _CACHES, _POSITIONS = 0, (1, 2), 3
_RANK = 3


def spread_rotary_caches(model: ir.Model) -> str:
    """Puts an Expand in front of caches of one row whose data has a batch that is not 1, in place.

    Returns:
        What was done, in words; "" where there was nothing to do.
    """
    graph = model.graph
    found = [node for node in graph if node.op_type == "RotaryEmbedding" and not node.domain
             and (len(node.inputs) <= _POSITIONS or node.inputs[_POSITIONS] is None)]
    if not found:
        return ""
    if any(value is None or value.shape is None for node in found for value in node.inputs[:_POSITIONS]):
        infer_shapes(model)
    count = 0
    names, nodes = FreshNames(graph), FreshNames(graph, taken=(node.name for node in graph if node.name))
    for node in found:
        data, caches = node.inputs[_DATA], [node.inputs[index] for index in _CACHES]
        if data is None or data.shape is None or data.shape[0] == 1 or any(
                cache is None or cache.shape is None or len(cache.shape) != _RANK or cache.shape[0] != 1
                for cache in caches):
            continue
        count += 1
        batch = _before(node, "Shape", [data], names, nodes, start=0, end=1)
        batch.type, batch.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1])
        sizes = _before(node, "Concat", [batch, _ones(graph, node, names)], names, nodes, axis=0)
        sizes.type, sizes.shape = batch.type, ir.Shape([_RANK])
        for index, cache in zip(_CACHES, caches, strict=True):
            assert cache is not None and cache.shape is not None
            whole = _before(node, "Expand", [cache, sizes], names, nodes)
            whole.type, whole.shape = cache.type, ir.Shape([data.shape[0], *cache.shape[1:]])
            node.replace_input_with(index, whole)
    if not count:
        return ""
    each = "has" if count == 1 else "have"
    return (f"{plural(count, 'RotaryEmbedding')} {each} one row of angles for the whole batch, which neither ONNX "
            "Runtime nor TensorRT takes: the angles are expanded to the batch.")


def _ones(graph: ir.Graph, node: ir.Node, names: FreshNames) -> ir.Value:
    tensor = ir.tensor(np.ones(_RANK - 1, np.int64), name=names.new(f"{node.name}_ones"))
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([_RANK - 1]),
                     const_value=tensor)
    graph.register_initializer(value)
    return value


def _before(node: ir.Node, operator: str, inputs: list[ir.Value], names: FreshNames, nodes: FreshNames,
            **attributes: int) -> ir.Value:
    new = ir.node(operator, inputs, attributes, name=nodes.new(f"{node.name}_{operator.lower()}"))
    new.metadata_props.update(node.metadata_props)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(node, new)
    output = new.outputs[0]
    output.name = names.new(f"{name_of(node.outputs[0])}_{operator.lower()}")
    return output
