"""A GELU, SiLU, Mish or HardSwish that an exporter took apart, of a tensor that is no group's own.

Source: "PointWise fusion" of TensorRT's catalog. Spellings of GELU: Hendrycks and Gimpel, "Gaussian Error Linear Units"
(erf, tanh, and x·sigmoid(1.702x)).
"""

from collections.abc import Collection, Sequence

from trt_tui.core.network.fusion.growing import REGION_LIMIT, Growing, Match
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.operators import POINTWISE

_CURVES = {"Erf": "GELU", "Softplus": "Mish", "Tanh": "GELU", "Sigmoid": "SiLU", "HardSigmoid": "HardSwish",
           "Clip": "HardSwish"}


def match(growing: Growing, layer: Layer) -> Match:
    """Takes in what computes x·f(x), of x and constants alone: a match without ``layer``, where it is the first of it.

    The tensor x may be used elsewhere too.
    """
    sources = set(growing.dynamic_inputs(layer))
    if not growing.computes(layer, POINTWISE) or len(sources) != 1:
        return Match(reason="it is not pointwise, or reads several tensors")
    (start,) = sources
    derived = _derived(growing, start)
    for end in derived:
        if end.op_type != "Mul" or len(set(growing.dynamic_inputs(end))) != 2:
            continue
        region = _behind(growing, end, start, derived)
        name = _name(growing, region, start)
        if name and region[0] is layer and growing.end(region) == end.outputs[0]:
            return Match(tuple(region[1:]), end.outputs[0], operator=name)
    return Match(reason="nothing that ends in a product of it and a curve over it starts there")


def _derived(growing: Growing, start: str) -> list[Layer]:
    """The first layers in no group that compute from a tensor and constants alone, in network order."""
    found: dict[str, Layer] = {}
    tensors = {start}
    while len(found) < REGION_LIMIT:
        following = [user for tensor in tensors for user in growing.users_inside(tensor)
                     if user.name not in found and user.name not in growing.owner
                     and growing.computes(user, POINTWISE) and tensors.issuperset(growing.dynamic_inputs(user))]
        nearest = min(following, key=lambda one: one.index, default=None)
        if nearest is None:
            break
        found[nearest.name] = nearest
        tensors.add(nearest.outputs[0])
    return sorted(found.values(), key=lambda one: one.index)


def _behind(growing: Growing, end: Layer, start: str, derived: Collection[Layer]) -> list[Layer]:
    """What computes the result of a layer from a tensor, in network order."""
    made_by = {layer.outputs[0]: layer for layer in derived}
    region, stack = {end.name: end}, [end]
    while stack:
        for name in growing.dynamic_inputs(stack.pop()):
            if name != start and made_by[name].name not in region:
                region[made_by[name].name] = made_by[name]
                stack.append(made_by[name])
    return sorted(region.values(), key=lambda one: one.index)


def _name(growing: Growing, region: Sequence[Layer], start: str) -> str:
    """What a region is called; "" where there is no curve in it that such activations have."""
    by_type = {layer.op_type: layer for layer in region}
    curve = next((kind for kind in _CURVES if kind in by_type), "")
    if curve == "Sigmoid" and growing.dynamic_inputs(by_type[curve]) != [start]:
        return "GELU"
    return _CURVES.get(curve, "")
