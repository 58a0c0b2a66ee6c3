"""The forms of Q/DQ nodes in a file that cost an engine conversions: kernels that only change the type of values.

The check of the file lists such forms (`NetworkOutline.qdq_candidates`). Builders fuse most conversions with the layers
around them, so a form is a finding only if the layer information or the profile of an engine shows the conversion.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from trt_tui.core.engines.inspector import COMPUTE, IDLE, QDQ, REFORMAT, EngineLayer, EngineReport
from trt_tui.core.network.layers import NetworkOutline, QdqFinding
from trt_tui.core.precision import FLOAT_PRECISIONS
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.formatting import milliseconds_text, name_list_text

_QDQ_NAME_SUFFIX = re.compile(r"(?:_(?:de)?quantize_scale_node)?(?:_clone_\d+)?$")
"""The suffix of a Q or DQ node in the name of an engine layer of TensorRT 8."""

_MAX_NAMED_LAYERS = 2


def find_converted_findings(network: NetworkOutline, engine_report: EngineReport) -> Iterator[QdqFinding]:
    """Yields the candidates of a file that an engine of the file converts, with the engine layers that do so.

    Raises:
        InputError: No engine layer names a layer of the network.
    """
    if not any(layer.network_layers for layer in engine_report.layers):
        raise InputError(f"this is not an engine of {network.name}", "no engine layer names one of its layers",
                         "Give the engine or the layer information of an engine that was built from this file.")
    for candidate in network.qdq_candidates:
        layers = [layer for layer in engine_report.layers
                  if not layer.is_constant and _is_conversion(layer, candidate, engine_report, network)]
        if layers:
            times = [layer.ms for layer in layers if layer.ms is not None]
            time_text = f", {milliseconds_text(sum(times))}" if times else ""
            names = name_list_text([layer.name for layer in layers], _MAX_NAMED_LAYERS)
            yield replace(candidate, detail=f"{candidate.detail}; the engine converts in {names}{time_text}",
                          conversions=tuple((layer.name, layer.ms) for layer in layers))


def _is_conversion(layer: EngineLayer, candidate: QdqFinding, engine_report: EngineReport,
                   network: NetworkOutline) -> bool:
    """Returns True if an engine layer computes nothing but a conversion that belongs to a candidate."""
    if layer.network_layers or layer.kind == IDLE or layer.is_fused_region:
        return False
    names = {_QDQ_NAME_SUFFIX.sub("", name) for name in (layer.name, *layer.other_nodes)}
    if not names.isdisjoint(candidate.converting_nodes):
        return True
    return layer.kind in (REFORMAT, QDQ) and _changes_quantized_type(layer) and candidate.group != "" and any(
        not set(layer.output_tensors).isdisjoint(other.input_tensors)
        or not set(layer.input_tensors).isdisjoint(other.output_tensors)
        for other in engine_report.layers if other.kind == COMPUTE
        and not set(other.network_layers).isdisjoint(network.get_group(candidate.group).layers))


def _changes_quantized_type(layer: EngineLayer) -> bool:
    """Returns True if an engine layer reads floats and writes quantized values, or the reverse."""
    sides = [{precision for precision in types if precision is not None}
             for types in (layer.input_types, layer.output_types)]
    return any(first & set(FLOAT_PRECISIONS) and second & QUANTIZED_TYPES.keys()
               for first, second in (sides, reversed(sides)))
