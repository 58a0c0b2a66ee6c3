"""A LayerNorm, RMSNorm, GroupNorm or Softmax that an exporter took apart.

Source: "Reduce" fusions and Normalization of TensorRT's catalog; TensorRT-RTX 1.7 lists them as one engine layer.
"""

from collections.abc import Mapping, Sequence

from trt_tui.core.network.fusion.growing import REGION_LIMIT, Growing, Match
from trt_tui.core.network.layers import Kind, Layer
from trt_tui.core.network.operators import POINTWISE, REDUCTIONS

_STARTS = REDUCTIONS | {"Pow", "Mul", "Exp"}
_PARTS = POINTWISE | REDUCTIONS
_CURVED = frozenset(("Sqrt", "Exp", "Pow", "ReduceL2"))
_SCALING = frozenset(("Div", "Mul"))
_SQUARES = frozenset(("Pow", "Mul"))


def match(growing: Growing, layer: Layer) -> Match:
    """Takes the region in that starts at ``layer``: a match without it, whose tail is the region's.

    It is a region of reductions, pointwise operators and copies over one tensor, with a square root or an exponential
    in it, that ends where values that are not reduced are scaled by reduced ones. The tensor it starts from may be
    used elsewhere too (a residual).
    """
    if layer.op_type not in _STARTS or layer.kind is not Kind.COMPUTE:
        return Match(reason=f"no normalisation starts with {layer.op_type}")
    sources = set(growing.dynamic_inputs(layer))
    if len(sources) != 1:
        return Match(reason="it reads several tensors")
    (start,) = sources
    region = [layer]
    # Which tensors are there, and whether they are reduced.
    derived = {start: False, layer.outputs[0]: layer.op_type in REDUCTIONS}
    while len(region) < REGION_LIMIT:
        nearest = min(_candidates(growing, start, derived, region), key=lambda one: one.index, default=None)
        if nearest is None:
            return Match(reason="what is computed from it leaves before it is scaled")
        region.append(nearest)
        region.sort(key=lambda one: one.index)
        read = {derived[name] for name in growing.dynamic_inputs(nearest) if name in derived}
        derived[nearest.outputs[0]] = nearest.op_type in REDUCTIONS or read == {True}
        kinds = {one.op_type for one in region}
        if nearest.op_type in _SCALING and len(read) == 2 and kinds & REDUCTIONS and kinds & _CURVED:
            tail = growing.end(region)
            if tail is not None:
                return Match(tuple(one for one in region if one is not layer), tail, operator=_operator(region))
    return Match(reason=f"it is made of more than {REGION_LIMIT} layers")


def _candidates(growing: Growing, start: str, derived: Mapping[str, bool], region: Sequence[Layer]) -> list[Layer]:
    """Layers in no group that compute from what the region has alone, or move what it has reduced."""
    inside = {one.name for one in region}
    found = []
    for tensor, reduced in derived.items():
        for user in growing.users_inside(tensor):
            if user.name in inside or user.name in growing.owner:
                continue
            if growing.computes(user, _PARTS):
                read = growing.dynamic_inputs(user)
                joins = all(name in derived for name in read) and (
                    tensor != start or user.op_type in REDUCTIONS or any(name != start for name in read)
                    or _is_square_to_reduce(growing, user))
            else:
                joins = reduced and growing.moves_only(user) and len(user.outputs) == 1 and user.inputs[0] == tensor
            if joins:
                found.append(user)
    return found


def _is_square_to_reduce(growing: Growing, layer: Layer) -> bool:
    """Whether a layer squares for a reduction alone: a variance as the mean of squares less the square of the mean."""
    behind = growing.sole_user(layer.outputs[0])
    return layer.op_type in _SQUARES and behind is not None and behind.op_type in REDUCTIONS


def _operator(region: Sequence[Layer]) -> str:
    """What such a region is called: LayerNorm, RMSNorm, L2Norm or Softmax; "" for one that has no name."""
    kinds = [layer.op_type for layer in region]
    if "ReduceL2" in kinds:
        return "L2Norm"
    if not {"Sqrt", "Pow", "Reciprocal"}.isdisjoint(kinds):
        means = kinds.count("ReduceMean")
        return ("L2Norm", "RMSNorm", "LayerNorm")[min(means, 2)]
    return "Softmax" if "Exp" in kinds else ""
