"""Finds the fusion groups of a network by the rules beside it."""

from collections.abc import Callable

from trt_tui.core.network import forms
from trt_tui.core.network.fusion import (
    activation,
    attention,
    batch_normalisation,
    constant_pointwise,
    copies,
    group_normalisation,
    moved,
    nan_guard,
    normalisation,
    pointwise_region,
    residual,
    rotary,
    scores,
    selection,
)
from trt_tui.core.network.fusion.growing import Growing, Match, Members, has_group
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Group, Kind, Layer
from trt_tui.core.network.operators import ANCHORS, FREE_COPIES, NORMALISATIONS, POINTWISE
from trt_tui.core.precision import Precision

BEHIND: tuple[Callable[[Growing, Members], Match], ...] = (
    batch_normalisation.match, constant_pointwise.match, residual.match, moved.match, pointwise_region.match,
    selection.match, nan_guard.match)
"""The rules by which a group grows, in the order in which they are tried."""

STARTS: tuple[Callable[[Growing, Layer], Match], ...] = (
    scores.match, normalisation.match, group_normalisation.match, activation.match, rotary.match)
"""The rules by which a layer starts a group of several, in the order in which they are tried."""

_GROWS = ANCHORS | POINTWISE | NORMALISATIONS | {"Softmax"}


def find_groups(graph: LayerGraph) -> tuple[Group, ...]:
    """Partitions the float layers of a network into groups, in network order; takes time linear in the network.

    No group waits for itself, not even through others. While a group grows, only its last tensor is read from outside,
    and every member leads to it: so groups run in the order of those last layers (their positions). A copy behind it
    joins only where it does not change that.
    """
    growing = Growing(graph)
    anchors = [layer for layer in graph.layers if layer.op_type in ANCHORS and layer.kind is Kind.COMPUTE]
    # Later anchors first, so that a residual Add goes to the Conv computed last.
    groups = [_started(growing, layer) for layer in reversed(anchors)]
    for layer in graph.layers:
        position = growing.waits_for(layer)
        if has_group(graph, layer):
            if layer.name not in growing.owner and not _joins(growing, layer):
                groups.append(_started(growing, layer))
            position = growing.owner[layer.name].position
        else:
            growing.loose[layer.name] = position
        growing.ready.update((name, position) for name in layer.outputs if name)
    groups.sort(key=lambda members: min(layer.index for layer in members.layers))
    cores = {part: (members.leader.name, role) for members in groups
             for part, role in attention.match(growing, members).roles.items()}
    return tuple(_group(growing, members, *cores.get(members, ("", ""))) for members in groups)


def _joins(growing: Growing, layer: Layer) -> bool:
    """Puts a copy into the group that computed what it moves."""
    members = copies.source(growing, layer)
    match = Match() if members is None else copies.match(growing, members, layer)
    if members is None or not match:
        return False
    growing.take(members, match)
    return True


def _started(growing: Growing, layer: Layer) -> Members:
    """A group that starts at a layer, with what a rule found to start there, and what follows it."""
    whole = layer.kind is Kind.OPAQUE or len(layer.outputs) != 1 and layer.op_type not in FREE_COPIES
    tail = next(name for name in layer.outputs if growing.graph.is_float(name))
    members = Members(layer, tail, takes_copies=not whole)
    start = growing.first(members, (rule(growing, layer) for rule in STARTS)) or Match()
    growing.owner[layer.name] = members
    growing.take(members, start)
    if not whole and (start or layer.op_type in _GROWS):
        while match := growing.first(members, (rule(growing, members) for rule in BEHIND)):
            growing.take(members, match)
    members.position = max(one.index for one in members.layers)
    return members


# -- describing -----------------------------------------------------------------------------------------------------


def _group(growing: Growing, members: Members, core: str, role: str) -> Group:
    graph, leader = growing.graph, members.leader
    layers = sorted(members.layers, key=lambda one: one.index)
    produced = {output for layer in layers for output in layer.outputs if output}
    names = {layer.name for layer in layers}
    inputs = dict.fromkeys(
        name for layer in layers for name in layer.inputs
        if name and name not in produced and name not in graph.static and graph.is_float(name))
    outputs = tuple(
        output for layer in layers for output in layer.outputs
        if output and (growing.is_output(output) or not names.issuperset(graph.consumers.get(output, ()))))
    sites, why_not = forms.sites(graph, leader, members.skip, members.operator)
    refusals = forms.refusals(graph, layers, leader, sites, why_not)
    return Group(name=leader.name, operator=members.operator, layers=tuple(layer.name for layer in layers),
                 inputs=tuple(inputs), outputs=outputs or (members.computed,), tail=members.computed,
                 sites=sites if Precision.INT8 not in refusals else (), refusals=refusals,
                 inner=_inner(growing, members), core=core, role=role)


def _inner(growing: Growing, members: Members) -> tuple[str, ...]:
    """Layers in no group between what the group computes and the shapes that it reads, in network order."""
    graph = growing.graph
    found: set[str] = set()
    stack = [name for layer in members.layers for name in graph.reads(layer.name) if name in graph.static]
    while stack:
        layer = graph.producer.get(stack.pop(), "")
        if layer not in found and growing.loose.get(layer) == members.position:
            found.add(layer)
            stack.extend(graph.reads(layer))
    return tuple(sorted(found, key=lambda name: graph.by_name[name].index))
