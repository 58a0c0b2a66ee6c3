"""The layer tree: scopes, each with one row per fusion group, as immutable data.

The sources of a scope are described in `trt_tui.core.network.scopes`. A chain of scopes with a single child is one row,
``mlp/fc2``. A scope that holds one group is a row with the name of the scope. The groups of one attention are the
children of a scope of their own.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from trt_tui.core.network.layers import IRRELEVANT_KINDS, FusionGroup, Layer
from trt_tui.core.network.scopes import find_layer_scope, find_scopes_by_structure
from trt_tui.core.precision import Precision


@dataclass(frozen=True, eq=False)
class GroupRow:
    """The row of one fusion group in the layer tree.

    Attributes:
        label: Unique among the rows of its scope.
        path: Unique in the tree: the parts of the scope and the part of the row, joined by "/". Repeated blocks have
            the same paths below the path of the block.
        group: The group; its ``layers`` are the nodes below the row.
        refusal_reason: The reason why the group cannot run in FP16 or, if it can, in INT8. "" if it can run in both.
    """

    label: str
    path: str
    group: FusionGroup
    refusal_reason: str


@dataclass(frozen=True, eq=False)
class UngroupedRow:
    """The row of a layer that is in no fusion group but shown, such as an If or a custom operator.

    Attributes:
        refusal_reason: The reason why the layer cannot take a lower precision.
    """

    label: str
    path: str
    layer: Layer
    refusal_reason: str


@dataclass(frozen=True, eq=False)
class OtherNodesRow:
    """The last row of the layer tree: the names of all layers that do not affect precision."""

    label: str
    path: str
    layers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Scope:
    """An inner node of the layer tree, with rows and scopes below.

    Attributes:
        label: The parts of the scope, joined by "/"; several parts if a chain of scopes was merged; "" for the root.
        path: Unique in the tree; "" for the root.
        children: Rows and scopes, in the order of their first group in the network.
        groups: Names of all groups below, in row order.
    """

    label: str
    path: str
    children: tuple[Row, ...]
    groups: tuple[str, ...]


Row: TypeAlias = "Scope | GroupRow | UngroupedRow | OtherNodesRow"

ATTENTION_LABEL = "attention core"
"""The label of the scope that holds the groups of one attention."""

_PlacedRow: TypeAlias = "tuple[int, tuple[str, ...], str, str, FusionGroup | Layer]"  # index, scope, path part, label


# -- building -------------------------------------------------------------------------------------------------------


class _ScopeBuilder:
    """A mutable scope during the construction of the layer tree.

    Attributes:
        scopes: The child scopes, by name.
        items: The children in order: a scope, or a row as its path part, label, and group or layer.
    """

    __slots__ = ("name", "scopes", "items")

    def __init__(self, name: str) -> None:
        self.name = name
        self.scopes: dict[str, _ScopeBuilder] = {}
        self.items: list[_ScopeBuilder | tuple[str, str, FusionGroup | Layer]] = [
        ]


def build_scope_tree(layers: Sequence[Layer], groups: Sequence[FusionGroup]) -> Scope:
    """Builds the layer tree of a network.

    Args:
        layers: All layers, in network order.
        groups: All groups, in network order. A group is placed in the scope of its main layer.
    """
    by_name = {layer.name: layer for layer in layers}
    grouped_layers = {name for group in groups for name in group.layers}
    folded_layers = tuple(layer.name
                          for layer in layers
                          if layer.kind in IRRELEVANT_KINDS and layer.name not in grouped_layers)
    other_layers = [
        layer for layer in layers if layer.kind not in IRRELEVANT_KINDS and layer.name not in grouped_layers
    ]

    placed_rows: list[_PlacedRow] = []
    for group in groups:
        scope, own_part = find_layer_scope(by_name[group.name])
        placed_rows.append((by_name[group.layers[0]].index, scope, own_part, own_part, group))
    if len(groups) > 1 and not any(scope for _, scope, *_ in placed_rows):
        placed_rows = [(index, scope, role, own_part, group) for (index, _, _, own_part, group), (scope, role)
                       in zip(placed_rows, find_scopes_by_structure(groups, by_name), strict=True)]
    for layer in other_layers:
        scope, own_part = find_layer_scope(layer)
        placed_rows.append((layer.index, scope, own_part, own_part, layer))
    placed_rows = _move_attention_into_own_scopes(placed_rows)
    if other_layers:
        placed_rows.sort(key=lambda placed_row: placed_row[0])

    root = _ScopeBuilder("")
    for _, scope, own_part, label, group_or_layer in placed_rows:
        parent = root
        for part in scope:
            child = parent.scopes.get(part)
            if child is None:
                child = parent.scopes[part] = _ScopeBuilder(part)
                parent.items.append(child)
            parent = child
        parent.items.append((own_part, label, group_or_layer))
    return _build_immutable_tree(root, folded_layers)


def _move_attention_into_own_scopes(placed_rows: Sequence[_PlacedRow]) -> list[_PlacedRow]:
    """Moves the groups of each attention into a new scope inside their innermost common scope."""
    scopes_by_attention: dict[str, list[tuple[str, ...]]] = {}
    for _, scope, _, _, group_or_layer in placed_rows:
        if isinstance(group_or_layer, FusionGroup) and group_or_layer.attention:
            scopes_by_attention.setdefault(group_or_layer.attention, []).append(scope)
    taken_names: set[str] = set()
    attention_scopes = {}
    for attention, group_scopes in scopes_by_attention.items():
        common_scope = tuple(os.path.commonprefix(group_scopes))
        *_, name = _make_unique_label("/".join((*common_scope, ATTENTION_LABEL)), taken_names).split("/")
        attention_scopes[attention] = (*common_scope, name)
    return [(index, attention_scopes[group_or_layer.attention], group_or_layer.attention_role,
             group_or_layer.attention_role,
             group_or_layer) if isinstance(group_or_layer, FusionGroup) and group_or_layer.attention else
            (index, scope, own_part, label, group_or_layer)
            for index, scope, own_part, label, group_or_layer in placed_rows]


def _build_immutable_tree(root: _ScopeBuilder, folded_layers: tuple[str, ...]) -> Scope:
    """Converts the scope builders into an immutable tree, from the leaves upwards.

    There is no recursion, because scopes can be nested deeper than Python's recursion limit.
    """
    scopes: list[tuple[_ScopeBuilder, str]] = []
    stack = [(root, "")]
    while stack:
        scope, path = stack.pop()
        scopes.append((scope, path))
        stack.extend((item, f"{path}/{item.name}" if path else item.name)
                     for item in scope.items if isinstance(item, _ScopeBuilder))
    row_by_scope: dict[int, Row] = {}
    for scope, path in reversed(scopes):
        taken_names = set(scope.scopes)
        rows: list[Row] = []
        for item in scope.items:
            if isinstance(item, _ScopeBuilder):
                rows.append(row_by_scope.pop(id(item)))
                continue
            own_part, label, group_or_layer = item
            own_part = _make_unique_label(own_part, taken_names)
            rows.append(_build_row(label, f"{path}/{own_part}" if path else own_part, group_or_layer))
        if scope is not root and len(rows) == 1:
            # the name of a scope identifies its only group, whose own label is dropped
            label = f"{scope.name}/{rows[0].label}" if isinstance(scope.items[0], _ScopeBuilder) else scope.name
            row_by_scope[id(scope)] = replace(rows[0], label=label)
            continue
        rows = _make_labels_unique(rows)
        if scope is root and folded_layers:
            plural = "s" if len(folded_layers) > 1 else ""
            rows.append(
                OtherNodesRow(f"{len(folded_layers)} shape and constant node{plural} folded", "\0folded",
                              folded_layers))
        row_by_scope[id(scope)] = Scope(scope.name, path, tuple(rows),
                                        tuple(name for row in rows for name in _group_names(row)))
    tree = row_by_scope[id(root)]
    assert isinstance(tree, Scope)
    return tree


def _build_row(label: str, path: str, group_or_layer: FusionGroup | Layer) -> GroupRow | UngroupedRow:
    if isinstance(group_or_layer, Layer):
        return UngroupedRow(label, path, group_or_layer, group_or_layer.refusal_reason)
    refusal_reason = group_or_layer.refusal_reasons.get(Precision.FP16) or group_or_layer.refusal_reasons.get(
        Precision.INT8, "")
    return GroupRow(label, path, group_or_layer, refusal_reason)


def _make_unique_label(label: str, taken_labels: set[str]) -> str:
    base_name, count = label, 0
    while label in taken_labels:
        count += 1
        label = f"{base_name}_{count}"
    taken_labels.add(label)
    return label


def _make_labels_unique(rows: list[Row]) -> list[Row]:
    """Returns the rows with labels that are unique among them; the labels of scopes do not change."""
    if len({row.label for row in rows}) == len(rows):
        return rows
    taken_names = {row.label for row in rows if isinstance(row, Scope)}
    return [row if isinstance(row, Scope) or (label := _make_unique_label(row.label, taken_names)) == row.label
            else replace(row, label=label) for row in rows]


def _group_names(row: Row) -> tuple[str, ...]:
    if isinstance(row, Scope):
        return row.groups
    return (row.group.name,) if isinstance(row, GroupRow) else ()


# -- traversal ---------------------------------------------------------------------------------------------------------


def walk_rows(scope_tree: Scope) -> Iterator[tuple[int, Row]]:
    """Yields all rows below a scope in display order, each with its depth; the children of the scope have depth 0."""
    stack: list[tuple[int, Row]] = [(0, row) for row in reversed(scope_tree.children)]
    while stack:
        depth, row = stack.pop()
        yield depth, row
        if isinstance(row, Scope):
            stack.extend((depth + 1, child) for child in reversed(row.children))


def group_titles(scope_tree: Scope) -> dict[str, str]:
    """Returns the position of each group in the layer tree as labels joined by "/", by group name."""
    title_by_group: dict[str, str] = {}
    parent_labels: list[str] = []
    for depth, row in walk_rows(scope_tree):
        del parent_labels[depth:]
        if isinstance(row, Scope):
            parent_labels.append(row.label)
        elif isinstance(row, GroupRow):
            title_by_group[row.group.name] = "/".join((*parent_labels, row.label))
    return title_by_group
