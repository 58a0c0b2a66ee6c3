"""Several pointwise operators on what a group computed that end in one tensor: SiLU, GELU, chains of arithmetic.

Source: "PointWise fusion" of TensorRT's catalog.
"""

from trt_tui.core.network.fusion.growing import REGION_LIMIT, Growing, Match, Members
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.operators import POINTWISE


def match(growing: Growing, members: Members) -> Match:
    """Takes the smallest region in that hides what the group computed."""
    if growing.is_output(members.tail):
        return Match(reason="what the group computes is an output of the network")
    region = _region(growing, members.tail)
    tail = growing.end(region)
    if tail is None:
        return Match(reason="no pointwise operators that end in one tensor are all that reads it")
    return Match(tuple(region), tail)


def hides(growing: Growing, tensor: str) -> bool:
    """Whether pointwise operators that end in one tensor are all that reads a tensor."""
    return not growing.is_output(tensor) and bool(_region(growing, tensor))


def _region(growing: Growing, start: str) -> list[Layer]:
    """Layers computed from ``start`` and constants alone that end in one tensor; [] where there are none."""
    region: list[Layer] = []
    derived = {start}
    frontier = [start]
    while frontier and len(region) < REGION_LIMIT:
        tensor = frontier.pop(0)
        for layer in growing.users_inside(tensor):
            if (layer in region or layer.name in growing.owner or not growing.computes(layer, POINTWISE)
                    or any(name not in derived for name in growing.dynamic_inputs(layer))):
                continue
            region.append(layer)
            region.sort(key=lambda one: one.index)
            derived.add(layer.outputs[0])
            frontier.append(layer.outputs[0])
            # A layer that waited for this result can follow now.
            frontier.extend(name for name in derived if name not in frontier and name != tensor)
        if region and growing.end(region) and not growing.escapes((start,), region):
            return region
    return []
