"""Operators that only move values stay with what computed them.

Source: "Shuffle and Shuffle", "Shuffle and Reduce" of TensorRT's catalog: moving values takes no precision of its own.
"""

from trt_tui.core.network.fusion.growing import Growing, Match, Members
from trt_tui.core.network.layers import Layer


def source(growing: Growing, layer: Layer) -> Members | None:
    """The group that computed the one float tensor a layer reads."""
    moved = _moved(growing, layer)
    return growing.owner.get(growing.graph.producer.get(moved[0], "")) if len(moved) == 1 else None


def match(growing: Growing, members: Members, layer: Layer) -> Match:
    """Takes a copy in, where it can wait for the group.

    Whatever else it reads must be there at the group's position, shape arithmetic on the group itself apart: that is
    the group's own (`Group.inner`).
    """
    if not members.takes_copies:
        return Match(reason=f"{members.leader.op_type} is kept as it is")
    if not growing.moves_only(layer):
        return Match(reason="it does more than move values")
    (moved,) = _moved(growing, layer)
    for name in growing.graph.reads(layer.name):
        last = members.position if name in growing.graph.static else members.position - 1
        if name != moved and growing.ready.get(name, -1) > last:
            return Match(reason=f"it reads {name}, which the group would have to wait for")
    return Match((layer,))


def _moved(growing: Growing, layer: Layer) -> list[str]:
    return [name for name in growing.dynamic_inputs(layer) if growing.graph.is_float(name)]
