"""The expansion of RotaryEmbedding caches to the batch size, which PyTorch's exporter omits at opset 23.

The operator requires `cos_cache` and `sin_cache` of shape (batch, sequence, half of the head). ONNX Runtime and
TensorRT refuse caches with one row for a batch of several.
"""

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.graph import register_constant
from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.model_editing import FreshNames
from trt_tui.formatting import counted_noun_text

_DATA_INPUT, _CACHE_INPUTS, _POSITION_INPUT = 0, (1, 2), 3
_CACHE_RANK = 3


def expand_rotary_caches(model: ir.Model) -> str:
    """Inserts an Expand before RotaryEmbedding caches with a single row if the batch size is not 1, in place.

    Returns:
        A note for the user about the change; "" if nothing changed.
    """
    graph = model.graph
    rotary_nodes = [
        node
        for node in graph
        if node.op_type == "RotaryEmbedding"
        and not node.domain
        and (len(node.inputs) <= _POSITION_INPUT or node.inputs[_POSITION_INPUT] is None)
    ]
    if not rotary_nodes:
        return ""
    if any(value is None or value.shape is None for node in rotary_nodes for value in node.inputs[:_POSITION_INPUT]):
        infer_shapes(model)
    count = 0
    fresh_names = FreshNames(graph, taken_names=(node.name for node in graph if node.name))
    for node in rotary_nodes:
        data, caches = node.inputs[_DATA_INPUT], [node.inputs[index] for index in _CACHE_INPUTS]
        if (
            data is None
            or data.shape is None
            or data.shape[0] == 1
            or any(
                cache is None or cache.shape is None or len(cache.shape) != _CACHE_RANK or cache.shape[0] != 1
                for cache in caches
            )
        ):
            continue
        count += 1
        ones = register_constant(
            graph, fresh_names.make_unique_name(f"{node.name}_ones"), ir.tensor(np.ones(_CACHE_RANK - 1, np.int64))
        )
        batch = _insert_operator_before(node, "Shape", [data], fresh_names, start=0, end=1)
        sizes = _insert_operator_before(node, "Concat", [batch, ones], fresh_names, axis=0)
        for index, cache in zip(_CACHE_INPUTS, caches, strict=True):
            assert cache is not None
            expanded_cache = _insert_operator_before(node, "Expand", [cache, sizes], fresh_names)
            node.replace_input_with(index, expanded_cache)
    if not count:
        return ""
    verb = "has" if count == 1 else "have"
    return (
        f"{counted_noun_text(count, 'RotaryEmbedding')} {verb} one row of angles for the whole batch, which neither "
        "ONNX Runtime nor TensorRT accepts: the angles are expanded to the batch."
    )


def _insert_operator_before(
    next_node: ir.Node, operator: str, inputs: list[ir.Value], fresh_names: FreshNames, **attributes: int
) -> ir.Value:
    """Inserts a node before another one, with its scope, and returns the result."""
    name = fresh_names.make_unique_name(f"{next_node.name}_{operator.lower()}")
    result_type = ir.TensorType(ir.DataType.INT64) if operator == "Shape" else inputs[0].type
    new_node = ir.node(
        operator,
        inputs,
        attributes,
        name=name,
        metadata_props=dict(next_node.metadata_props),
        outputs=[ir.val(fresh_names.make_unique_name(f"{name}_output"), type=result_type)],
    )
    next_node.prepend(new_node)
    return new_node.outputs[0]
