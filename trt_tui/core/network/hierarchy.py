"""The layer tree: scopes, and in them one row for each fusion group. Plain immutable data, no drawing.

Where a scope comes from, the first that says something:

1. what the file states, `stated_scope`: metadata of torch's default exporter, the calls of inlined functions;
2. node names: ``/layer1/0/conv/Conv`` (PyTorch's older exporter), ``a/b/c`` (TensorFlow), ``layer1.0.conv``;
3. structure, where no layer's name carries a scope: the groups in network order are cut wherever a single tensor is
   alive, and what lies between two cuts is a block (a residual block, a fire or inception module, half an encoder
   layer). Tensors that reach over half of the network and are read three times or more (attention masks) do not count
   as alive. A network that is one plain chain is cut behind its pools.

A chain of scopes with a single child is one row, ``mlp/fc2``; a scope that holds one group is a row with its name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from trt_tui.core.network.inlining import SCOPE_KEY
from trt_tui.core.precision import Precision
from trt_tui.words import cells, left, visible

if TYPE_CHECKING:
    from trt_tui.core.network.layers import Group, Layer

_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
_NAMESPACE = "namespace"
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"

_POOLS = frozenset(("MaxPool", "AveragePool", "LpPool"))
_LONG_CHAIN = 8
_MOST_ROLES = 200
_INVENTED = "unk__"  # how onnx's shape inference begins the names of sizes that it does not know
_DIGITS = re.compile(r"\d+")


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
        return self.name


Row: TypeAlias = "Scope | GroupRow | LayerRow | FoldedRow"


@dataclass(frozen=True)
class Blocks:
    """Groups of a network that repeats, as a matrix.

    Attributes:
        roles: What the groups are in each block, such as ``mlp/fc2``.
        columns: The blocks, such as ``0`` to ``11``.
        cells: ``cells[role][column]``: names of the groups there; empty where a block lacks the role.
        paths: Paths of the blocks, one for each column.
    """

    roles: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[tuple[str, ...], ...], ...]
    paths: tuple[str, ...]


# -- where a layer belongs ------------------------------------------------------------------------------------------


def stated_scope(node: ir.Node) -> tuple[str, ...]:
    """The scope that the file states for a node, outermost part first; () where it states none.

    Reads ``pkg.torch.onnx.name_scopes`` (the repr of a list of module paths, each with those around it, the last one
    the node's own name), else ``namespace`` (``path: class/path: class/name: operator``), and adds the names of the
    function calls that the node was inlined from.
    """
    calls = node.meta.get(SCOPE_KEY, ())
    return (*_module_parts(_modules(node.metadata_props)), *(part for call in calls for part in _split(call)))


def _modules(metadata: dict[str, str]) -> list[str]:
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


def _module_parts(modules: Iterable[str]) -> list[str]:
    parts: list[str] = []
    outer = ""
    for module in modules:
        if not module or module == _NO_MODULE:
            continue
        inner = module[len(outer) + 1:] if outer and module.startswith(outer + ".") else module
        if module != outer:
            parts.extend(part for part in inner.split(".") if part)
        outer = module
    return parts


def _split(name: str) -> list[str]:
    return [part for part in name.replace("/", ".").split(".") if part]


def _from_name(name: str) -> tuple[tuple[str, ...], str]:
    """Scope and own part of a node name."""
    if name.startswith("node_of_"):  # named after its first output
        name = name[len("node_of_"):].removesuffix("_output_0")
    if "/" in name:
        scope, _, own = name.rstrip("/").rpartition("/")
        return tuple(_split(scope)), own
    *scope_parts, own = [part for part in name.split(".") if part] or [name]
    if any(part.isidentifier() for part in scope_parts):
        return tuple(scope_parts), own
    return (), name


def _place(layer: Layer) -> tuple[tuple[str, ...], str]:
    """Scope and own part of a layer."""
    scope, own = _from_name(layer.name)
    if not layer.scope:
        return scope, own
    if own.startswith("node_"):  # torch's default exporter numbers its nodes through the whole network
        own = re.sub(r"_\d+$", "", own[len("node_"):])
    return tuple(part for stated in layer.scope for part in _split(stated)), own


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
    from trt_tui.core.network.layers import FOLDED_KINDS

    by_name = {layer.name: layer for layer in layers}
    grouped = {name for group in groups for name in group.layers}
    folded = tuple(layer.name for layer in layers if layer.kind in FOLDED_KINDS and layer.name not in grouped)
    others = [layer for layer in layers if layer.kind not in FOLDED_KINDS and layer.name not in grouped]

    placed: list[tuple[int, tuple[str, ...], str, str, Group | Layer]] = []
    for group in groups:
        scope, own = _place(by_name[group.name])
        placed.append((by_name[group.layers[0]].index, scope, own, own, group))
    if len(groups) > 1 and not any(scope for _, scope, *_ in placed):
        placed = [(index, scope, role, own, group) for (index, _, _, own, group), (scope, role)
                  in zip(placed, _by_structure(groups, by_name), strict=True)]
    for layer in others:
        scope, own = _place(layer)
        placed.append((layer.index, scope, own, own, layer))
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
        names = tuple(name for row in rows for name in _group_names(row))
        done[id(scope)] = Scope(scope.name, path, tuple(rows), names)
    tree = done[id(root)]
    assert isinstance(tree, Scope)
    return tree


def _row(label: str, path: str, thing: Group | Layer) -> GroupRow | LayerRow:
    refusals = getattr(thing, "refusals", None)
    if refusals is None:
        return LayerRow(label, path, thing, thing.note)
    return GroupRow(label, path, thing, refusals.get(Precision.FP16) or refusals.get(Precision.INT8, ""))


def _joined(scope: _Open, row: Row, fresh: bool) -> Row:
    """A scope with one child: the child under both names; a group's own part goes where the scope names it already."""
    label = scope.name if fresh else f"{scope.name}/{row.label}"
    if isinstance(row, Scope):
        return Scope(label, row.path, row.children, row.groups)
    return _relabelled(row, label)


def _relabelled(row: Row, label: str) -> Row:
    if isinstance(row, GroupRow):
        return GroupRow(label, row.path, row.group, row.refused)
    if isinstance(row, LayerRow):
        return LayerRow(label, row.path, row.layer, row.refused)
    return row


def _unique(name: str, taken: set[str]) -> str:
    wanted, count = name, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def _labelled(rows: list[Row]) -> list[Row]:
    """Rows with labels unique among them; scopes keep theirs."""
    taken = {row.label for row in rows if isinstance(row, Scope)}
    return [row if isinstance(row, Scope) or (label := _unique(row.label, taken)) == row.label
            else _relabelled(row, label) for row in rows]


def _group_names(row: Row) -> tuple[str, ...]:
    if isinstance(row, Scope):
        return row.groups
    return (row.group.name,) if isinstance(row, GroupRow) else ()


# -- structure ------------------------------------------------------------------------------------------------------


def _by_structure(groups: Sequence[Group], by_name: dict[str, Layer]) -> list[tuple[tuple[str, ...], str]]:
    """Scope and role of each group, by where a single tensor is alive. A role is the operator, ``+Add`` for a join."""
    segments = _segments(groups)
    if len(groups) > _LONG_CHAIN and all(len(segment) == 1 for segment in segments):
        segments = _cut_behind_pools(groups)
    result: list[tuple[tuple[str, ...], str]] = []
    block = 0
    for segment in segments:
        scope: tuple[str, ...] = ()
        if len(segment) > 1:
            scope = (f"block {block}",)
            block += 1
        for index in segment:
            group = groups[index]
            joins = any(by_name[name].op_type in ("Add", "Sum") and sum(map(bool, by_name[name].inputs)) > 1
                        and len(group.inputs) > 1 for name in group.layers[1:])
            result.append((scope, f"{group.operator}+Add" if joins else group.operator))
    return result


def _segments(groups: Sequence[Group]) -> list[list[int]]:
    made = {tensor: index for index, group in enumerate(groups) for tensor in group.outputs}
    last: dict[str, int] = {}
    readers: dict[str, int] = {}
    for index, group in enumerate(groups):
        for tensor in group.inputs:
            if tensor in made:
                last[tensor] = index
                readers[tensor] = readers.get(tensor, 0) + 1
    ending: list[int] = [0] * len(groups)
    counted = {tensor for tensor, end in last.items()
               if readers[tensor] < 3 or end - made[tensor] <= len(groups) / 2}
    for tensor in counted:
        ending[last[tensor]] += 1
    alive, segments, current = 0, [], []
    for index, group in enumerate(groups):
        current.append(index)
        alive += sum(tensor in counted for tensor in group.outputs) - ending[index]
        if alive <= 1:
            segments.append(current)
            current = []
    if current:
        segments.append(current)
    return segments


def _cut_behind_pools(groups: Sequence[Group]) -> list[list[int]]:
    segments: list[list[int]] = [[]]
    for index, group in enumerate(groups):
        segments[-1].append(index)
        if group.operator in _POOLS:
            segments.append([])
    return [segment for segment in segments if segment]


# -- repetition -----------------------------------------------------------------------------------------------------


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


def blocks(tree: Scope) -> Blocks | None:
    """Roles × blocks of a network that repeats; None where no scope occurs three times or more.

    Blocks are scopes whose paths differ in numbers only and that share at least half of their roles. Of several such
    families (stages and the blocks in them) the one that covers most groups most densely is taken, then the one with
    the fewest rows and columns.
    """
    families: dict[str, list[Scope]] = {}
    for _, row in walk(tree):
        if isinstance(row, Scope) and 1 < len(row.groups) <= _MOST_ROLES:
            pattern = _DIGITS.sub("#", row.path)
            if pattern != row.path:
                families.setdefault(pattern, []).append(row)
    best: tuple[float, int] | None = None
    chosen: tuple[list[Scope], dict[str, str], list[dict[str, str]]] | None = None
    for scopes in families.values():
        if len(scopes) < 3:
            continue
        roles, columns = _roles(scopes)
        cells = sum(map(len, columns))
        filled = cells / (len(roles) * len(scopes))
        size = len(roles) + len(scopes)
        if len(roles) > _MOST_ROLES or filled < 0.5:
            continue
        if best is None or cells * filled > best[0] * 1.01 or (cells * filled > best[0] * 0.99 and size < best[1]):
            best, chosen = (cells * filled, size), (scopes, roles, columns)
    if chosen is None:
        return None
    scopes, roles, columns = chosen
    return Blocks(tuple(roles.values()), _column_names(scopes),
                  tuple(tuple((column[role],) if role in column else () for column in columns) for role in roles),
                  tuple(scope.path for scope in scopes))


def _roles(scopes: Sequence[Scope]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """All roles (path below the block → label) in an order that fits every block, and each block's groups by role."""
    order: list[str] = []
    labels: dict[str, str] = {}
    columns: list[dict[str, str]] = []
    for scope in scopes:
        column: dict[str, str] = {}
        place = 0
        for role, label, group in _roles_of(scope):
            column[role] = group
            if role not in labels:
                labels[role] = label
                order.insert(place, role)
            place = order.index(role) + 1
        columns.append(column)
        if len(order) > _MOST_ROLES:
            break
    return {role: labels[role] for role in order}, columns


def _roles_of(scope: Scope) -> Iterator[tuple[str, str, str]]:
    """Path below the scope, display label and name of each group in it."""
    prefix = len(scope.path) + 1
    structural = scope.path.startswith("block ")
    stack: list[tuple[str, Row]] = [("", row) for row in reversed(scope.children)]
    while stack:
        above, row = stack.pop()
        if isinstance(row, Scope):
            stack.extend((f"{above}{row.label}/", child) for child in reversed(row.children))
        elif isinstance(row, GroupRow):
            role = row.path[prefix:]
            yield role, role if structural else above + row.label, row.group.name


def _column_names(scopes: Sequence[Scope]) -> tuple[str, ...]:
    """The numbers in which the paths differ, joined by "."."""
    numbers = [_DIGITS.findall(scope.path) for scope in scopes]
    varying = [i for i in range(len(numbers[0])) if len({one[i] for one in numbers}) > 1]
    return tuple(".".join(one[i] for i in varying) for one in numbers)


# -- as text --------------------------------------------------------------------------------------------------------

_COLUMNS = ("operator", "shape", "nodes", "FP16", "INT8", "why not")


def render_tree(tree: Scope, shape_of: Callable[[str], Sequence[int | str | None] | None], *,
                nodes: bool = False) -> str:
    """The tree as indented text, a line for each row, columns aligned.

    Args:
        tree: From `build_tree`.
        shape_of: Gives the shape of a tensor by name, None where it is not known.
        nodes: Whether the nodes of each group are listed below it.
    """
    lines: list[tuple[str, ...]] = [("layer", *_COLUMNS)]
    for depth, row in walk(tree):
        label = "  " * depth + row.label
        if isinstance(row, GroupRow):
            group = row.group
            fp16, int8 = Precision.FP16 not in group.refusals, Precision.INT8 not in group.refusals
            lines.append((label, group.operator, shape_text(shape_of(group.tail)), str(len(group.layers)),
                          "yes" if fp16 else "no", "yes" if int8 else "no", row.refused))
            if nodes and len(group.layers) > 1:
                lines.extend((f"{'  ' * depth}  · {name}",) for name in group.layers)
        elif isinstance(row, LayerRow):
            output = next((name for name in row.layer.outputs if name), "")
            lines.append((label, row.layer.op_type, shape_text(shape_of(output)), "1", "no", "no", row.refused))
        else:
            lines.append((label,))
    lines = [tuple(map(visible, line)) for line in lines]
    widths = [max((cells(line[i]) for line in lines if len(line) > max(i, 1)), default=0)
              for i in range(len(_COLUMNS) + 1)]
    return "\n".join("  ".join(left(cell, width) for cell, width in zip(line, widths, strict=False)).rstrip()
                     for line in lines)


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """A shape such as ``batch×64×56×56``; ``?`` stands for what is not known."""
    if shape is None:
        return "?"
    return "×".join("?" if size is None or str(size).startswith(_INVENTED) else str(size) for size in shape) or "scalar"
