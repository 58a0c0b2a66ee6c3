"""A LayerNorm, RMSNorm, GroupNorm or Softmax that an exporter took apart.

Source: "Reduce" fusions and Normalization of TensorRT's catalog; TensorRT-RTX 1.7 lists them as one engine layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from trt_tui.core.network.fusion.growing import REGION_LIMIT, Growing, Match
from trt_tui.core.network.layers import Kind, Layer
from trt_tui.core.network.operators import POINTWISE, REDUCTIONS

_STARTS = REDUCTIONS | {"Pow", "Mul", "Exp"}
_PARTS = POINTWISE | REDUCTIONS
_CURVED = frozenset(("Sqrt", "Exp", "Pow", "ReduceL2"))
_SCALING = frozenset(("Div", "Mul"))


def match(growing: Growing, layer: Layer) -> Match:
    """Takes the region in that starts at ``layer``: a match without it, whose tail is the region's.

    It is a region of reductions and pointwise operators over one tensor, with a square root or an exponential in it,
    that ends in one tensor. The tensor it starts from may be used elsewhere too (a residual).
    """
    if layer.op_type not in _STARTS or layer.kind is not Kind.COMPUTE:
        return Match(reason=f"no normalisation starts with {layer.op_type}")
    sources = set(growing.dynamic_inputs(layer))
    if len(sources) != 1:
        return Match(reason="it reads several tensors")
    (start,) = sources
    region = [layer]
    derived = {start, layer.outputs[0]}
    while len(region) < REGION_LIMIT:
        nearest = min(_candidates(growing, start, derived, region), key=lambda one: one.index, default=None)
        if nearest is None:
            return Match(reason="what is computed from it leaves before it is scaled")
        region.append(nearest)
        region.sort(key=lambda one: one.index)
        derived.add(nearest.outputs[0])
        kinds = {one.op_type for one in region}
        if nearest.op_type in _SCALING and kinds & REDUCTIONS and kinds & _CURVED:
            tail = growing.end(region)
            if tail is not None:
                return Match(tuple(one for one in region if one is not layer), tail)
    return Match(reason=f"it is made of more than {REGION_LIMIT} layers")


def _candidates(growing: Growing, start: str, derived: set[str], region: Sequence[Layer]) -> list[Layer]:
    """Layers in no group that compute from what the region has alone."""
    inside = {one.name for one in region}
    found = []
    for tensor in derived:
        for user in growing.users_inside(tensor):
            if user.name in inside or user.name in growing.owner or not growing.computes(user, _PARTS):
                continue
            read = growing.dynamic_inputs(user)
            if all(name in derived for name in read) and (
                    tensor != start or user.op_type in REDUCTIONS or any(name != start for name in read)):
                found.append(user)
    return found


def operator(layers: Sequence[Layer]) -> str:
    """What such a region is called: LayerNorm, RMSNorm or Softmax; "" for a group of other layers."""
    kinds = [layer.op_type for layer in layers]
    if len(layers) > 3 and not REDUCTIONS.isdisjoint(kinds):
        if not {"Sqrt", "Pow", "Reciprocal"}.isdisjoint(kinds):
            return "LayerNorm" if kinds.count("ReduceMean") > 1 else "RMSNorm"
        if "Exp" in kinds:
            return "Softmax"
    return ""
