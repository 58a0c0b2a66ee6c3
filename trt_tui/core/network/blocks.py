"""Networks that repeat, as a matrix of roles and blocks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trt_tui.core.network.hierarchy import GroupRow, Row, Scope, walk

_MOST_ROLES = 200
_DIGITS = re.compile(r"\d+")


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
