"""The search for fusion groups whose float results are converted to integers, or used as positions or sizes.

A rounded float that becomes an integer may become its neighbour: FP16 has no odd integer above 2048. An index then
selects another row of the table, or is out of bounds.

The search walks back from each Cast to an integer type, and from each float input that is read as a position or a count
(`INDEX_INPUTS`). Integer index inputs of Gather, ScatterND, Slice and others need no entry: floats reach them through a
Cast, or through an operator that compares and so ends the walk. The walk follows copies, elementwise operators and
casts. It ends at every other operator: products, normalisations and Softmax, whose results are inexact in any
precision, reductions, and ArgMax, TopK, NonZero, NonMaxSuppression and comparisons, which order values. A Cast to bool
compares with 0 and does not start a walk. A group that contains an operator that ends the walk is left out, even if
TensorRT fuses elementwise layers of the walk into the group.
"""

from collections.abc import Iterable

import onnx_ir as ir

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind
from trt_tui.core.network.model_editing import iterate_reachable
from trt_tui.core.network.operators import COPIES, POINTWISE

INDEX_INPUTS = {"OneHot": (0, 1), "Range": (0, 1, 2), "Resize": (2,), "Upsample": (1,)}
"""Float inputs that are read as positions, counts or factors of a size, by operator.

The region of interest of a Resize is missing because it moves the sampling points, which is a coordinate: see
`trt_tui.core.measure.group_errors`."""

_CAST_OPERATORS = frozenset(("Cast", "CastLike"))

_FOLLOWED_OPERATORS = POINTWISE | COPIES | _CAST_OPERATORS | {"Mod", "BitShift", "Range", "OneHot"}

_INTEGER_TYPES = frozenset(
    (
        ir.DataType.INT4,
        ir.DataType.UINT4,
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.INT16,
        ir.DataType.UINT16,
        ir.DataType.INT32,
        ir.DataType.UINT32,
        ir.DataType.INT64,
        ir.DataType.UINT64,
    )
)


def find_groups_computing_indices(graph: LayerGraph, groups: Iterable[FusionGroup]) -> tuple[str, ...]:
    """Returns the fusion groups whose float results are converted to integers or used as positions, in network order."""
    groups = tuple(groups)
    group_by_layer = {layer: group for group in groups for layer in group.layers}
    exact_groups = {
        group.name
        for group in groups
        if all(
            _is_copy_or_elementwise(graph.by_name[name]) or graph.by_name[name].kind is LayerKind.INTEGER
            for name in group.layers
        )
    }

    def find_producer(tensor: str) -> Layer | None:
        layer = graph.find_producer(tensor)
        return layer if layer is not None and _is_copy_or_elementwise(layer) else None

    def list_source_tensors(tensor: str) -> list[str]:
        layer = find_producer(tensor)
        return [name for name in layer.inputs if name and name not in graph.static_tensors] if layer is not None else []

    starts = [
        tensor
        for layer in graph.layers
        for tensor in _iterate_index_tensors(graph, layer)
        if tensor not in graph.static_tensors
    ]
    layers = [find_producer(tensor) for tensor in iterate_reachable(starts, list_source_tensors)]
    index_groups = {
        group_by_layer[layer.name].name for layer in layers if layer is not None and layer.name in group_by_layer
    }
    return tuple(group.name for group in groups if group.name in index_groups & exact_groups)


def _is_copy_or_elementwise(layer: Layer) -> bool:
    return not layer.domain and layer.op_type in _FOLLOWED_OPERATORS


def _iterate_index_tensors(graph: LayerGraph, layer: Layer) -> Iterable[str]:
    """Yields the float tensors that a layer turns into integers, or reads as positions."""
    if layer.domain:
        return
    if layer.op_type in _CAST_OPERATORS:
        if graph.is_fp32(layer.inputs[0]) and graph.ir_value(layer.outputs[0]).dtype in _INTEGER_TYPES:
            yield layer.inputs[0]
        return
    for index in INDEX_INPUTS.get(layer.op_type, ()):
        tensor = layer.inputs[index] if index < len(layer.inputs) else ""
        if tensor and graph.is_fp32(tensor) and tensor not in graph.static_tensors:
            yield tensor
            yield from (
                layer.outputs if layer.op_type in _FOLLOWED_OPERATORS else ()
            )  # the group of the layer reads the tensor in its float type
