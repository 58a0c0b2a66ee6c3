"""Finds the fusion groups whose float results become integers or positions: indices of a look-up, sizes, counts.

A rounded float that becomes an integer may become its neighbour: FP16 has no odd integer above 2048. An index is then
another row of the table, or lies beyond it.

The search walks back from each Cast to an integer type, and from each float input that is read as a position or a
count (`POSITIONS`). Integer index inputs of Gather, ScatterND, Slice and others need no entry: floats reach them
through a Cast, or through an operator that compares and so ends the walk. The walk follows copies, elementwise
operators and casts. It ends at every other operator: products, normalisations and Softmax, whose results are inexact in
any precision, reductions, and ArgMax, TopK, NonZero, NonMaxSuppression and comparisons, which order values. A Cast to
bool compares with 0 and is no start. A group that holds such an operator is left out, although elementwise layers that
TensorRT fuses behind it may be a part of the walk.
"""

from collections.abc import Iterable

import onnx_ir as ir

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Group, Kind, Layer
from trt_tui.core.network.operators import COPIES, POINTWISE

POSITIONS = {"OneHot": (0, 1), "Range": (0, 1, 2), "Resize": (2,), "Upsample": (1,)}
"""Float inputs that are read as positions, counts or factors of a size, by operator. The region of interest of a
Resize moves where it samples, which is a coordinate: see `trt_tui.core.measure.coordinates`."""

_CASTS = frozenset(("Cast", "CastLike"))

_WALKED = POINTWISE | COPIES | _CASTS | {"Mod", "BitShift", "Range", "OneHot"}

_INTEGERS = frozenset((
    ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16,
    ir.DataType.INT32, ir.DataType.UINT32, ir.DataType.INT64, ir.DataType.UINT64))


def find_index_groups(graph: LayerGraph, groups: Iterable[Group]) -> tuple[str, ...]:
    """Returns the names of the groups whose floats become integers or positions, in network order."""
    groups = tuple(groups)
    group_by_layer = {layer: group for group in groups for layer in group.layers}
    exact = {group.name for group in groups
             if all(_is_walked(graph.by_name[name]) or graph.by_name[name].kind is Kind.INTEGER
                    for name in group.layers)}
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [tensor for layer in graph.layers for tensor in _starts(graph, layer)]
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or tensor in graph.static:
            continue
        seen.add(tensor)
        layer = graph.by_name.get(graph.producer.get(tensor, ""))
        if layer is None or not _is_walked(layer):
            continue
        group = group_by_layer.get(layer.name)
        if group is not None and group.name in exact:
            found.add(group.name)
        waiting.extend(filter(None, layer.inputs))
    return tuple(group.name for group in groups if group.name in found)


def _is_walked(layer: Layer) -> bool:
    """Returns True if a layer copies values, converts them or computes each from those at the same position."""
    return layer.domain in ("", "ai.onnx") and layer.op_type in _WALKED


def _starts(graph: LayerGraph, layer: Layer) -> Iterable[str]:
    """Yields the float tensors that a layer turns into integers, or reads as positions."""
    if layer.domain not in ("", "ai.onnx"):
        return
    if layer.op_type in _CASTS:
        if graph.is_float(layer.inputs[0]) and graph.value(layer.outputs[0]).dtype in _INTEGERS:
            yield layer.inputs[0]
        return
    for place in POSITIONS.get(layer.op_type, ()):
        tensor = layer.inputs[place] if place < len(layer.inputs) else ""
        if tensor and graph.is_float(tensor) and tensor not in graph.static:
            yield tensor
            yield from layer.outputs if layer.op_type in _WALKED else ()  # its own group reads it in its float type
