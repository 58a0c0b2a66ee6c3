"""Networks that repeat, as a matrix of roles and blocks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trt_tui.core.network.hierarchy import GroupRow, Row, Scope, walk_rows

_MAX_ROLES = 200
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class BlockMatrix:
    """Groups of a network that repeats, as a matrix.

    Attributes:
        roles: What the groups are in each block, such as ``mlp/fc2``.
        columns: The blocks, such as ``0`` to ``11``.
        cells: ``cells[role][column]``: names of the groups there; empty where a block lacks the role.
    """

    roles: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[tuple[str, ...], ...], ...]


def find_repeated_blocks(scope_tree: Scope) -> BlockMatrix | None:
    """Roles × blocks of a network that repeats; None where no scope occurs three times or more.

    Blocks are scopes whose paths differ in numbers only and that share at least half of their roles. Of several such
    families (stages and the blocks in them) the one that covers most groups most densely is taken, then the one with
    the fewest rows and columns.
    """
    families: dict[str, list[Scope]] = {}
    for _, row in walk_rows(scope_tree):
        if isinstance(row, Scope) and 1 < len(row.groups) <= _MAX_ROLES:
            pattern = _DIGITS.sub("#", row.path)
            if pattern != row.path:
                families.setdefault(pattern, []).append(row)
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
        if best_score is None or cells * filled_share > best_score[0] * 1.01 or (cells * filled_share > best_score[0]
                                                                                 * 0.99 and size < best_score[1]):
            best_score, best_family = (cells * filled_share, size), (scopes, roles, columns)
    if best_family is None:
        return None
    scopes, roles, columns = best_family
    return BlockMatrix(tuple(roles.values()), _block_column_names(scopes),
                       tuple(tuple((column[role],) if role in column else () for column in columns) for role in roles))


def _align_block_roles(block_scopes: Sequence[Scope]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """All roles (path below the block → label) in an order that fits every block, and each block's groups by role."""
    order: list[str] = []
    labels: dict[str, str] = {}
    columns: list[dict[str, str]] = []
    for scope in block_scopes:
        column: dict[str, str] = {}
        index = 0
        for role, label, group in _iterate_block_roles(scope):
            column[role] = group
            if role not in labels:
                labels[role] = label
                order.insert(index, role)
            index = order.index(role) + 1
        columns.append(column)
        if len(order) > _MAX_ROLES:
            break
    return {role: labels[role] for role in order}, columns


def _iterate_block_roles(block_scope: Scope) -> Iterator[tuple[str, str, str]]:
    """Path below the scope, display label and name of each group in it."""
    prefix_length = len(block_scope.path) + 1
    is_structural = block_scope.path.startswith("block ")
    stack: list[tuple[str, Row]] = [("", row) for row in reversed(block_scope.children)]
    while stack:
        label_prefix, row = stack.pop()
        if isinstance(row, Scope):
            stack.extend((f"{label_prefix}{row.label}/", child) for child in reversed(row.children))
        elif isinstance(row, GroupRow):
            role = row.path[prefix_length:]
            yield role, role if is_structural else label_prefix + row.label, row.group.name


def _block_column_names(block_scopes: Sequence[Scope]) -> tuple[str, ...]:
    """The numbers in which the paths differ, joined by "."."""
    numbers = [_DIGITS.findall(scope.path) for scope in block_scopes]
    varying_columns = [i for i in range(len(numbers[0])) if len({path_numbers[i] for path_numbers in numbers}) > 1]
    return tuple(".".join(path_numbers[i] for i in varying_columns) for path_numbers in numbers)
