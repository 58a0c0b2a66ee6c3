"""The layer tree: scopes, and in them one row for each fusion group. Plain immutable data, no drawing.

`trt_tui.core.network.scopes` says where a scope comes from. A chain of scopes with a single child is one row,
``mlp/fc2``; a scope that holds one group is a row with its name. The groups of one attention lie in a row of their own.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from trt_tui.core.network.layers import FOLDED_KINDS, Group, Layer
from trt_tui.core.network.scopes import place, places_by_structure
from trt_tui.core.precision import Precision


@dataclass(frozen=True, eq=False)
class GroupRow:
    """One fusion group.

    Attributes:
        label: Unique among the rows of its scope.
        path: Unique in the tree: scope parts and the row's own part, joined by "/". Two blocks that repeat have the
            same paths below their own.
        group: The group; its ``layers`` are the nodes below the row.
        refused: Why it cannot run in INT8 or, where it cannot run in FP16 either, in FP16; "" where it can run in both.
    """

    label: str
    path: str
    group: Group
    refused: str


@dataclass(frozen=True, eq=False)
class LayerRow:
    """A layer that is in no group and not folded: an If, a custom operator, ... with the reason in ``refused``."""

    label: str
    path: str
    layer: Layer
    refused: str


@dataclass(frozen=True, eq=False)
class FoldedRow:
    """All layers that make no difference to precision, by name; always the last row of the tree."""

    label: str
    path: str
    layers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Scope:
    """An inner node of the tree.

    Attributes:
        name: Its parts joined by "/"; several where a chain of scopes was joined; "" for the root.
        path: Unique in the tree; "" for the root.
        children: In order of their first group in the network.
        groups: Names of all groups below, in row order.
    """

    name: str
    path: str
    children: tuple[Row, ...]
    groups: tuple[str, ...]

    @property
    def label(self) -> str:
        """What its row is called."""
        return self.name


Row: TypeAlias = "Scope | GroupRow | LayerRow | FoldedRow"

CORE = "attention core"
"""What the row of the groups of one attention is called."""

_Placed: TypeAlias = "tuple[int, tuple[str, ...], str, str, Group | Layer]"  # index, scope, own part, label


# -- building -------------------------------------------------------------------------------------------------------


class _Open:
    """A scope while the tree is built: its children by name, rows as lists of what has this own part."""

    __slots__ = ("name", "scopes", "items")

    def __init__(self, name: str) -> None:
        self.name = name
        self.scopes: dict[str, _Open] = {}
        self.items: list[_Open | tuple[str, str, Group | Layer]] = []  # a row is own part, label, what it shows


def build_tree(layers: Sequence[Layer], groups: Sequence[Group]) -> Scope:
    """The tree of a network.

    Args:
        layers: All layers, in network order.
        groups: All groups, in network order. A group lies in the scope of the layer that it is named after.
    """
    by_name = {layer.name: layer for layer in layers}
    grouped = {name for group in groups for name in group.layers}
    folded = tuple(layer.name for layer in layers if layer.kind in FOLDED_KINDS and layer.name not in grouped)
    others = [layer for layer in layers if layer.kind not in FOLDED_KINDS and layer.name not in grouped]

    placed: list[_Placed] = []
    for group in groups:
        scope, own = place(by_name[group.name])
        placed.append((by_name[group.layers[0]].index, scope, own, own, group))
    if len(groups) > 1 and not any(scope for _, scope, *_ in placed):
        placed = [(index, scope, role, own, group) for (index, _, _, own, group), (scope, role)
                  in zip(placed, places_by_structure(groups, by_name), strict=True)]
    for layer in others:
        scope, own = place(layer)
        placed.append((layer.index, scope, own, own, layer))
    placed = _with_cores(placed)
    if others:
        placed.sort(key=lambda one: one[0])

    root = _Open("")
    for _, scope, own, label, thing in placed:
        at = root
        for part in scope:
            inner = at.scopes.get(part)
            if inner is None:
                inner = at.scopes[part] = _Open(part)
                at.items.append(inner)
            at = inner
        at.items.append((own, label, thing))
    return _closed(root, folded)


def _with_cores(placed: Sequence[_Placed]) -> list[_Placed]:
    """Puts the groups of each attention into a scope of its own, in the innermost one that they have in common."""
    scopes: dict[str, list[tuple[str, ...]]] = {}
    for _, scope, _, _, thing in placed:
        if isinstance(thing, Group) and thing.core:
            scopes.setdefault(thing.core, []).append(scope)
    taken: set[str] = set()
    cores = {}
    for core, found in scopes.items():
        around = tuple(os.path.commonprefix(found))
        *_, name = _unique("/".join((*around, CORE)), taken).split("/")
        cores[core] = (*around, name)
    return [(index, cores[thing.core], thing.role, thing.role, thing)
            if isinstance(thing, Group) and thing.core else (index, scope, own, label, thing)
            for index, scope, own, label, thing in placed]


def _closed(root: _Open, folded: tuple[str, ...]) -> Scope:
    """The immutable tree, from the leaves up and without recursion (names may nest deeper than Python does)."""
    order: list[tuple[_Open, str]] = []
    stack = [(root, "")]
    while stack:
        scope, path = stack.pop()
        order.append((scope, path))
        stack.extend((item, f"{path}/{item.name}" if path else item.name)
                     for item in scope.items if isinstance(item, _Open))
    done: dict[int, Row] = {}
    for scope, path in reversed(order):
        taken = set(scope.scopes)
        rows: list[Row] = []
        for item in scope.items:
            if isinstance(item, _Open):
                rows.append(done.pop(id(item)))
                continue
            own, label, thing = item
            own = _unique(own, taken)
            rows.append(_row(label, f"{path}/{own}" if path else own, thing))
        if scope is not root and len(rows) == 1:
            done[id(scope)] = _joined(scope, rows[0], fresh=not isinstance(scope.items[0], _Open))
            continue
        rows = _labelled(rows)
        if scope is root and folded:
            plural = "s" if len(folded) > 1 else ""
            rows.append(FoldedRow(f"{len(folded)} shape and constant node{plural} folded", "\0folded", folded))
        names: list[str] = []
        for row in rows:
            names.extend(_group_names(row))
        done[id(scope)] = Scope(scope.name, path, tuple(rows), tuple(names))
    tree = done[id(root)]
    assert isinstance(tree, Scope)
    return tree


def _row(label: str, path: str, thing: Group | Layer) -> GroupRow | LayerRow:
    if isinstance(thing, Layer):
        return LayerRow(label, path, thing, thing.note)
    refused = thing.refusals.get(Precision.FP16) or thing.refusals.get(Precision.INT8, "")
    return GroupRow(label, path, thing, refused)


def _joined(scope: _Open, row: Row, fresh: bool) -> Row:
    """A scope with one child: the child under both names; a group's own part goes where the scope names it already."""
    label = scope.name if fresh else f"{scope.name}/{row.label}"
    if isinstance(row, Scope):
        return Scope(label, row.path, row.children, row.groups)
    return _relabelled(row, label)


def _relabelled(row: Row, label: str) -> Row:
    if isinstance(row, GroupRow):
        return GroupRow(label, row.path, row.group, row.refused)
    return row if isinstance(row, Scope) else replace(row, label=label)


def _unique(name: str, taken: set[str]) -> str:
    wanted, count = name, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def _labelled(rows: list[Row]) -> list[Row]:
    """Rows with labels unique among them; scopes keep theirs."""
    if len({row.label for row in rows}) == len(rows):
        return rows
    taken = {row.label for row in rows if isinstance(row, Scope)}
    return [row if isinstance(row, Scope) or (label := _unique(row.label, taken)) == row.label
            else _relabelled(row, label) for row in rows]


def _group_names(row: Row) -> tuple[str, ...]:
    if isinstance(row, Scope):
        return row.groups
    return (row.group.name,) if isinstance(row, GroupRow) else ()


# -- going over it -----------------------------------------------------------------------------------------------------


def walk(tree: Scope) -> Iterator[tuple[int, Row]]:
    """All rows below a scope in display order, each with its depth (0 for the scope's children)."""
    stack: list[tuple[int, Row]] = [(0, row) for row in reversed(tree.children)]
    while stack:
        depth, row = stack.pop()
        yield depth, row
        if isinstance(row, Scope):
            stack.extend((depth + 1, child) for child in reversed(row.children))


def titles(tree: Scope) -> dict[str, str]:
    """Where each group stands in the tree, as a path of labels, by group name."""
    found: dict[str, str] = {}
    above: list[str] = []
    for depth, row in walk(tree):
        del above[depth:]
        if isinstance(row, Scope):
            above.append(row.label)
        elif isinstance(row, GroupRow):
            found[row.group.name] = "/".join((*above, row.label))
    return found
