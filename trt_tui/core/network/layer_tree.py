"""The layer tree: scopes with one row per fusion group, as immutable data, as text, and as a matrix of repeated blocks.

A scope comes from the first of these sources that provides one:

1. the file, by `read_scope_from_metadata`: metadata of torch's default exporter, the calls of inlined functions;
2. node names: ``/layer1/0/conv/Conv`` (PyTorch's older exporter), ``a/b/c`` (TensorFlow), ``layer1.0.conv``;
3. structure, if no node name contains a scope. The groups in network order are cut wherever a single tensor is alive,
  and each part between two cuts is a block (a residual block, a fire or inception module, half an encoder layer).
  Tensors that reach over half of the network and are read three times or more (attention masks) do not count as alive.
  A network that is one plain chain is cut behind its pools.

A chain of scopes with a single child each is merged into one row, such as ``mlp/fc2``. A scope with a single group
becomes a row with the name of the scope. The groups of an attention get a separate scope.
"""

from __future__ import annotations

import ast
import os.path
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

from trt_tui.core.network.layers import IRRELEVANT_KINDS, FusionGroup, Layer, NetworkOutline, Shape
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import table_lines

_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
_NAMESPACE = "namespace"
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"

_POOLING_OPERATORS = frozenset(("MaxPool", "AveragePool", "LpPool"))
_MAX_CHAIN_GROUPS = 8


def read_scope_from_metadata(metadata: Mapping[str, str], function_calls: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the scope that the file states for a node, outermost part first; () if there is none.

    Reads ``pkg.torch.onnx.name_scopes``, or else ``namespace`` (``path: class/path: class/name: operator``). The former
    contains the repr of a list of module paths, outermost first, which ends with the name of the node.

    Args:
        metadata: The node's `metadata_props`.
        function_calls: Names of the function calls that the node was inlined from.
    """
    return (
        *_split_module_paths(_read_module_paths(metadata)),
        *(part for call in function_calls for part in _split_name_into_parts(call)),
    )


def _read_module_paths(metadata: Mapping[str, str]) -> list[str]:
    text = metadata.get(_NAME_SCOPES)
    if text:
        try:
            modules = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            modules = None
        if isinstance(modules, (list, tuple)) and all(isinstance(module, str) for module in modules):
            return list(modules[:-1])
    text = metadata.get(_NAMESPACE, "")
    if ": " in text:
        return [part.partition(": ")[0] for part in text.split("/")][:-1]
    return []


def _split_module_paths(module_paths: Iterable[str]) -> list[str]:
    parts: list[str] = []
    outer = ""
    for module in module_paths:
        if not module or module == _NO_MODULE:
            continue
        inner = module[len(outer) + 1 :] if outer and module.startswith(outer + ".") else module
        if module != outer:
            parts.extend(part for part in inner.split(".") if part)
        outer = module
    return parts


def _split_name_into_parts(name: str) -> list[str]:
    return [part for part in name.replace("/", ".").split(".") if part]


def _parse_node_name(node_name: str) -> tuple[tuple[str, ...], str]:
    """Returns the scope in a node name, and the rest of the name."""
    if node_name.startswith("node_of_"):  # the node is named after its first output
        node_name = node_name[len("node_of_") :].removesuffix("_output_0")
    if "/" in node_name:
        scope, _, own_part = node_name.rstrip("/").rpartition("/")
        return tuple(_split_name_into_parts(scope)), own_part or node_name
    *scope_parts, own_part = [part for part in node_name.split(".") if part] or [node_name]
    if any(part.isidentifier() for part in scope_parts):
        return tuple(scope_parts), own_part
    return (), node_name


def find_layer_scope(layer: Layer) -> tuple[tuple[str, ...], str]:
    """Returns the scope of a layer and the rest of its name. The scope of the file has priority over the one in the
    name.
    """
    scope, own_part = _parse_node_name(layer.name)
    if not layer.scope:
        return scope, own_part
    if own_part.startswith("node_"):  # torch's default exporter numbers the nodes of the whole network
        own_part = re.sub(r"_\d+$", "", own_part[len("node_") :])
    return tuple(part for scope_name in layer.scope for part in _split_name_into_parts(scope_name)), own_part


# -- structure ------------------------------------------------------------------------------------------------------


def find_scopes_by_structure(
    groups: Sequence[FusionGroup], layer_by_name: Mapping[str, Layer]
) -> list[tuple[tuple[str, ...], str]]:
    """Returns a scope and a role for each group of a network whose node names contain no scopes.

    The groups are cut wherever a single tensor is alive between them. A role is the operator, with the suffix ``+Add``
    for a join.
    """
    segments = _split_groups_at_single_tensors(groups)
    if len(groups) > _MAX_CHAIN_GROUPS and all(len(segment) == 1 for segment in segments):
        segments = _split_after_last_items(group.operator in _POOLING_OPERATORS for group in groups)
    scopes_and_roles: list[tuple[tuple[str, ...], str]] = []
    block = 0
    for segment in segments:
        scope: tuple[str, ...] = ()
        if len(segment) > 1:
            scope = (f"block {block}",)
            block += 1
        for index in segment:
            group = groups[index]
            has_join = any(
                layer_by_name[name].op_type in ("Add", "Sum")
                and sum(map(bool, layer_by_name[name].inputs)) > 1
                and len(group.inputs) > 1
                for name in group.layers[1:]
            )
            scopes_and_roles.append((scope, f"{group.operator}+Add" if has_join else group.operator))
    return scopes_and_roles


def _split_groups_at_single_tensors(groups: Sequence[FusionGroup]) -> list[list[int]]:
    producer_index = {tensor: index for index, group in enumerate(groups) for tensor in group.outputs}
    readers = [
        (tensor, index) for index, group in enumerate(groups) for tensor in group.inputs if tensor in producer_index
    ]
    last_reader_index, reader_counts = dict(readers), Counter(tensor for tensor, _ in readers)
    counted_tensors = {
        tensor
        for tensor, last_index in last_reader_index.items()
        if reader_counts[tensor] < 3 or last_index - producer_index[tensor] <= len(groups) / 2
    }
    ending_counts = Counter(last_reader_index[tensor] for tensor in counted_tensors)
    alive_counts = accumulate(
        sum(tensor in counted_tensors for tensor in group.outputs) - ending_counts[index]
        for index, group in enumerate(groups)
    )
    return _split_after_last_items(alive_count <= 1 for alive_count in alive_counts)


def _split_after_last_items(is_last_by_index: Iterable[bool]) -> list[list[int]]:
    """Splits indices into segments. Each index that is flagged as the last of its segment ends one."""
    segments: list[list[int]] = [[]]
    for index, is_last in enumerate(is_last_by_index):
        segments[-1].append(index)
        if is_last:
            segments.append([])
    return [segment for segment in segments if segment]


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
    """The row of a layer outside the fusion groups that affects precision, such as an If or a custom operator.

    Attributes:
        refusal_reason: The reason why the layer cannot take a lower precision.
    """

    label: str
    path: str
    layer: Layer
    refusal_reason: str


@dataclass(frozen=True, eq=False)
class OtherNodesRow:
    """The last row of the layer tree. It lists all layers that do not affect precision."""

    label: str
    path: str
    layers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Scope:
    """An inner node of the layer tree. It contains rows and further scopes.

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


_ScopeItems: TypeAlias = dict[str | int, Any]
"""The children of a scope in order: the items of a scope by its name, or the path part, the label, and the group or
layer of a row by the number of the child."""


def build_scope_tree(layers: Sequence[Layer], groups: Sequence[FusionGroup]) -> Scope:
    """Builds the layer tree of a network.

    Args:
        layers: All layers, in network order.
        groups: All groups, in network order. A group is placed in the scope of its main layer.
    """
    by_name = {layer.name: layer for layer in layers}
    grouped_layers = {name for group in groups for name in group.layers}
    folded_layers = tuple(
        layer.name for layer in layers if layer.kind in IRRELEVANT_KINDS and layer.name not in grouped_layers
    )
    other_layers = [
        layer for layer in layers if layer.kind not in IRRELEVANT_KINDS and layer.name not in grouped_layers
    ]

    placed_rows: list[_PlacedRow] = [
        (by_name[group.layers[0]].index, scope, own_part, own_part, group)
        for group in groups
        for scope, own_part in [find_layer_scope(by_name[group.name])]
    ]
    if len(groups) > 1 and not any(scope for _, scope, *_ in placed_rows):
        placed_rows = [
            (index, scope, role, own_part, group)
            for (index, _, _, own_part, group), (scope, role) in zip(
                placed_rows, find_scopes_by_structure(groups, by_name), strict=True
            )
        ]
    placed_rows += [
        (layer.index, scope, own_part, own_part, layer)
        for layer in other_layers
        for scope, own_part in [find_layer_scope(layer)]
    ]
    placed_rows = _move_attention_into_own_scopes(placed_rows)
    if other_layers:
        placed_rows.sort(key=lambda placed_row: placed_row[0])

    root: _ScopeItems = {}
    for _, scope, own_part, label, group_or_layer in placed_rows:
        items = root
        for part in scope:
            items = items.setdefault(part, {})
        items[len(items)] = own_part, label, group_or_layer
    return _build_immutable_tree(root, folded_layers)


def _move_attention_into_own_scopes(placed_rows: Sequence[_PlacedRow]) -> list[_PlacedRow]:
    """Moves the groups of each attention into a new scope inside their innermost common scope."""
    scopes_by_attention = collect_by_key(
        (group_or_layer.attention, scope)
        for _, scope, _, _, group_or_layer in placed_rows
        if isinstance(group_or_layer, FusionGroup) and group_or_layer.attention
    )
    taken_names: set[str] = set()
    attention_scopes = {}
    for attention, group_scopes in scopes_by_attention.items():
        common_scope = tuple(os.path.commonprefix(group_scopes))
        *_, name = _make_unique_label("/".join((*common_scope, ATTENTION_LABEL)), taken_names).split("/")
        attention_scopes[attention] = (*common_scope, name)
    return [
        (
            index,
            attention_scopes[group_or_layer.attention],
            group_or_layer.attention_role,
            group_or_layer.attention_role,
            group_or_layer,
        )
        if isinstance(group_or_layer, FusionGroup) and group_or_layer.attention
        else (index, scope, own_part, label, group_or_layer)
        for index, scope, own_part, label, group_or_layer in placed_rows
    ]


def _build_immutable_tree(root: _ScopeItems, folded_layers: tuple[str, ...]) -> Scope:
    """Converts the items of scopes into an immutable tree, from the leaves upwards.

    There is no recursion, because scopes can be nested deeper than Python's recursion limit.
    """
    scopes = [("", "", root)]
    for _, path, items in scopes:  # which grows: scopes follow the scope that contains them
        scopes.extend(
            (key, f"{path}/{key}" if path else key, item) for key, item in items.items() if isinstance(key, str)
        )
    row_by_scope: dict[int, Row] = {}
    for name, path, items in reversed(scopes):
        taken_names = {key for key in items if isinstance(key, str)}
        rows: list[Row] = []
        for key, item in items.items():
            if isinstance(key, str):
                rows.append(row_by_scope.pop(id(item)))
                continue
            own_part, label, group_or_layer = item
            own_part = _make_unique_label(own_part, taken_names)
            rows.append(_build_row(label, f"{path}/{own_part}" if path else own_part, group_or_layer))
        if items is not root and len(rows) == 1:
            # the name of a scope identifies its only group, whose own label is dropped
            label = name if 0 in items else f"{name}/{rows[0].label}"
            row_by_scope[id(items)] = replace(rows[0], label=label)
            continue
        rows = _make_labels_unique(rows)
        if items is root and folded_layers:
            plural = "s" if len(folded_layers) > 1 else ""
            rows.append(
                OtherNodesRow(f"{len(folded_layers)} shape and constant node{plural} folded", "\0folded", folded_layers)
            )
        row_by_scope[id(items)] = Scope(
            name, path, tuple(rows), tuple(group for row in rows for group in _group_names(row))
        )
    tree = row_by_scope[id(root)]
    assert isinstance(tree, Scope)
    return tree


def _build_row(label: str, path: str, group_or_layer: FusionGroup | Layer) -> GroupRow | UngroupedRow:
    if isinstance(group_or_layer, Layer):
        return UngroupedRow(label, path, group_or_layer, group_or_layer.refusal_reason)
    refusal_reason = group_or_layer.refusal_reasons.get(Precision.FP16) or group_or_layer.refusal_reasons.get(
        Precision.INT8, ""
    )
    return GroupRow(label, path, group_or_layer, refusal_reason)


def _make_unique_label(label: str, taken_labels: set[str]) -> str:
    base_name, count = label, 0
    while label in taken_labels:
        count += 1
        label = f"{base_name}_{count}"
    taken_labels.add(label)
    return label


def _make_labels_unique(rows: list[Row]) -> list[Row]:
    """Returns rows whose labels differ from each other. Labels of scopes are not changed."""
    taken_names = {row.label for row in rows if isinstance(row, Scope)}
    return [
        row
        if isinstance(row, Scope) or (label := _make_unique_label(row.label, taken_names)) == row.label
        else replace(row, label=label)
        for row in rows
    ]


def _group_names(row: Row) -> tuple[str, ...]:
    if isinstance(row, Scope):
        return row.groups
    return (row.group.name,) if isinstance(row, GroupRow) else ()


# -- traversal ---------------------------------------------------------------------------------------------------------


def iterate_rows_with_depth(scope_tree: Scope) -> Iterator[tuple[int, Row]]:
    """Yields all rows below a scope, each with its depth, in display order. The children of the scope have depth 0."""
    stack: list[tuple[int, Row]] = [(0, row) for row in reversed(scope_tree.children)]
    while stack:
        depth, row = stack.pop()
        yield depth, row
        if isinstance(row, Scope):
            stack.extend((depth + 1, child) for child in reversed(row.children))


@lru_cache(maxsize=1)
def group_titles(network: NetworkOutline) -> dict[str, str]:
    """Returns the title of each fusion group, by group name: the labels on the way to its row, joined by "/"."""
    scope_tree = build_scope_tree(network.layers, network.groups)
    return {row.group.name: title for row, title in _iterate_group_titles(scope_tree)}


def _iterate_group_titles(scope: Scope) -> Iterator[tuple[GroupRow, str]]:
    """Yields the rows of groups below a scope, each with its title relative to the scope."""
    labels: list[str] = []
    for depth, row in iterate_rows_with_depth(scope):
        labels[depth:] = [row.label]
        if isinstance(row, GroupRow):
            yield row, "/".join(labels)


_INVENTED_PREFIX = "unk__"  # the prefix of the names that onnx's shape inference gives to unknown sizes
_PRECISIONS = (Precision.FP16, *QUANTIZED_TYPES)
_COLUMNS = ("operator", "shape", "nodes", *(item.label for item in _PRECISIONS), "why not")


def render_tree(scope_tree: Scope, find_shape: Callable[[str], Shape | None], *, show_nodes: bool = False) -> str:
    """Returns the layer tree as indented text with one line per row and aligned columns.

    Args:
        scope_tree: The result of `build_scope_tree`.
        find_shape: Returns the shape of a tensor by name; None if unknown.
        show_nodes: True if the nodes of each group are listed below it.
    """
    rows = list(iterate_rows_with_depth(scope_tree))
    has_file_precision = any(isinstance(row, GroupRow) and row.group.file_precision is not None for _, row in rows)
    columns = (*_COLUMNS[:-1], "in the file", _COLUMNS[-1]) if has_file_precision else _COLUMNS
    lines: list[tuple[str, ...]] = [("layer", *columns)]
    for depth, row in rows:
        label = "  " * depth + row.label
        if isinstance(row, GroupRow):
            group = row.group
            lines.append(
                (
                    label,
                    group.operator,
                    tensor_shape_text(find_shape(group.final_tensor)),
                    str(len(group.layers)),
                    *("yes" if precision in group.allowed_precisions else "no" for precision in _PRECISIONS),
                    *((group.file_precision.label,) if group.file_precision is not None else ()),
                    row.refusal_reason,
                )
            )
            if show_nodes and len(group.layers) > 1:
                lines.extend((f"{'  ' * depth}  · {name}",) for name in group.layers)
            if show_nodes and group.file_precision is not None:
                lines.extend(
                    (f"{'  ' * depth}  ! TensorRT refuses {reason} at {name}",)
                    for name, reason in group.file_precision.refused_nodes
                )
        elif isinstance(row, UngroupedRow):
            output = next((name for name in row.layer.outputs if name), "")
            lines.append(
                (
                    label,
                    row.layer.op_type,
                    tensor_shape_text(find_shape(output)),
                    "1",
                    *("no" for _ in _PRECISIONS),
                    *(("",) if has_file_precision else ()),
                    row.refusal_reason,
                )
            )
        else:
            lines.append((label,))
    return "\n".join(table_lines(lines, left_aligned_columns=1 + len(columns)))


def tensor_shape_text(shape: Shape | None) -> str:
    """Returns a shape as text, such as ``batch×64×56×56``, with ``?`` for an unknown size."""
    if shape is None:
        return "?"
    return (
        "×".join("?" if size is None or str(size).startswith(_INVENTED_PREFIX) else str(size) for size in shape)
        or "scalar"
    )


_MAX_ROLES = 200
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class BlockMatrix:
    """A matrix of the fusion groups of a network with repeated blocks: roles as rows, blocks as columns.

    Attributes:
        roles: The roles of groups within a block, such as ``mlp/fc2``.
        columns: The blocks, such as ``0`` to ``11``.
        cells: ``cells[role][column]`` has the names of the groups with that role in that block; empty if there are
            none.
    """

    roles: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[tuple[str, ...], ...], ...]


def find_repeated_blocks(scope_tree: Scope) -> BlockMatrix | None:
    """Returns the matrix of repeated blocks; None if no scope occurs three times or more.

    Scopes form a family of blocks if their paths differ only in numbers and they share at least half of their roles. A
    network may have several families, such as stages and the blocks in them. The result is the family with the largest
    and densest coverage of groups. Among equals, it is the one with the fewest rows and columns.
    """
    families = collect_by_key(
        (_DIGITS.sub("#", row.path), row)
        for _, row in iterate_rows_with_depth(scope_tree)
        if isinstance(row, Scope) and 1 < len(row.groups) <= _MAX_ROLES and _DIGITS.search(row.path)
    )
    best_score: tuple[float, int] | None = None
    best_family: tuple[list[Scope], dict[str, str], list[dict[str, str]]] | None = None
    for scopes in families.values():
        if len(scopes) < 3:
            continue
        roles, columns = _align_block_roles(scopes)
        cells = sum(map(len, columns))
        filled_share = cells / (len(roles) * len(scopes))
        size = len(roles) + len(scopes)
        if len(roles) > _MAX_ROLES or filled_share < 0.5:
            continue
        if (
            best_score is None
            or cells * filled_share > best_score[0] * 1.01
            or (cells * filled_share > best_score[0] * 0.99 and size < best_score[1])
        ):
            best_score, best_family = (cells * filled_share, size), (scopes, roles, columns)
    if best_family is None:
        return None
    scopes, roles, columns = best_family
    return BlockMatrix(
        tuple(roles.values()),
        _block_column_names(scopes),
        tuple(tuple((column[role],) if role in column else () for column in columns) for role in roles),
    )


def _align_block_roles(block_scopes: Sequence[Scope]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Returns all roles in an order that agrees with every block, and the groups of each block by role.

    The key of a role is its path below the block, the value is its label.
    """
    order: list[str] = []
    labels: dict[str, str] = {}
    columns: list[dict[str, str]] = []
    for scope in block_scopes:
        column: dict[str, str] = {}
        index = 0
        for row, title in _iterate_group_titles(scope):
            role = row.path[len(scope.path) + 1 :]
            column[role] = row.group.name
            if role not in labels:
                labels[role] = role if scope.path.startswith("block ") else title
                order.insert(index, role)
            index = order.index(role) + 1
        columns.append(column)
        if len(order) > _MAX_ROLES:
            break
    return {role: labels[role] for role in order}, columns


def _block_column_names(block_scopes: Sequence[Scope]) -> tuple[str, ...]:
    """Returns the names of the blocks: the numbers in which their paths differ, joined by "."."""
    numbers = [_DIGITS.findall(scope.path) for scope in block_scopes]
    varying_columns = [i for i in range(len(numbers[0])) if len({path_numbers[i] for path_numbers in numbers}) > 1]
    return tuple(".".join(path_numbers[i] for i in varying_columns) for path_numbers in numbers)
