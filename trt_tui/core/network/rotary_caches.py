"""The expansion of RotaryEmbedding caches to the batch size, which PyTorch's exporter omits at opset 23.

The operator requires `cos_cache` and `sin_cache` of shape (batch, sequence, half of the head). ONNX Runtime and
TensorRT refuse caches with one row for a batch of several.
"""

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import register_constant
from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.model_editing import FreshNames, value_name
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
    tensor_names, node_names = (
        FreshNames(graph),
        FreshNames(graph, taken_names=(node.name for node in graph if node.name)),
    )
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
            graph, tensor_names.make_unique_name(f"{node.name}_ones"), ir.tensor(np.ones(_CACHE_RANK - 1, np.int64))
        )
        int64 = ir.TensorType(ir.DataType.INT64)
        batch = _insert_operator_before(
            node, "Shape", [data], tensor_names, node_names, ir.val(None, shape=[1], type=int64), start=0, end=1
        )
        sizes = _insert_operator_before(
            node,
            "Concat",
            [batch, ones],
            tensor_names,
            node_names,
            ir.val(None, shape=[_CACHE_RANK], type=int64),
            axis=0,
        )
        for index, cache in zip(_CACHE_INPUTS, caches, strict=True):
            assert cache is not None and cache.shape is not None
            expanded_cache = _insert_operator_before(
                node,
                "Expand",
                [cache, sizes],
                tensor_names,
                node_names,
                ir.val(None, shape=ir.Shape([data.shape[0], *cache.shape[1:]]), type=cache.type),
            )
            node.replace_input_with(index, expanded_cache)
    if not count:
        return ""
    verb = "has" if count == 1 else "have"
    return (
        f"{counted_noun_text(count, 'RotaryEmbedding')} {verb} one row of angles for the whole batch, which neither "
        "ONNX Runtime nor TensorRT accepts: the angles are expanded to the batch."
    )


def _insert_operator_before(
    next_node: ir.Node,
    operator: str,
    inputs: list[ir.Value],
    tensor_names: FreshNames,
    node_names: FreshNames,
    output: ir.Value,
    **attributes: int,
) -> ir.Value:
    output.name = tensor_names.make_unique_name(f"{value_name(next_node.outputs[0])}_{operator.lower()}")
    next_node.prepend(
        ir.node(
            operator,
            inputs,
            attributes,
            name=node_names.make_unique_name(f"{next_node.name}_{operator.lower()}"),
            metadata_props=dict(next_node.metadata_props),
            outputs=[output],
        ),
    )
    return output
